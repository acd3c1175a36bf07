# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings about a running host: none on a healthy host, and a separate one for each fault."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import planned_fixture
import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.reader import to_dict
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import doctor, doctor_signs
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.planned import ClusterOf, PlannedImage
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import explain

UNIT = "spark-heavy.service"
REF = "nvcr.io/nvidia/vllm:26.04-py3"
PLANNED = planned_fixture.service(image=PlannedImage(REF, None, None, REF), vllm_version=None)

SPAN = to_dict(ClusterOf("pair", 2, "a", ["a", "b"], "mp"))


def healthy() -> dict[str, Any]:
    return {
        "planned": {
            "services": [
                {
                    **to_dict(PLANNED),
                    "name": "heavy",
                    "unit": UNIT,
                    "container": "spark-heavy",
                    "args": {},
                    "cluster": None,
                }
            ]
        },
        "facts": {
            "units": [
                {
                    "name": UNIT,
                    "type": "exec",
                    "active_state": "active",
                    "n_restarts": 0,
                    "enabled": True,
                    "queued": False,
                    "managed": True,
                    "result": "success",
                }
            ],
            "services": ["heavy"],
            "containers": [{"name": "spark-heavy", "image_id": "sha256:" + "a" * 64}],
            "memory": {"available_gib": 20.0, "swap_total_gib": 16.0, "swap_free_gib": 15.9, "page_cache_gib": 30.0},
            "gpu": {"driver_version": "580.159.03", "processes": [{"pid": 7, "name": "VLLM", "used_mib": 90000, "container": "spark-heavy"}]},
            "kernel": "6.17.0-1014-nvidia",
            "dgx_os": {"version": "7.5.0"},
        },
        "health": {
            "clock": {"now": 1000.0, "synchronized": True},
            "disks": {"/": {"total_gib": 3700.0, "free_gib": 1200.0}},
            "gpu_error": "",
            "gpu_load": {"utilization": 95.0, "sm_mhz": 2400.0, "power_w": 60.0},
            "helpers": {"docker.service": {"active": True, "enabled": True}},
            "kernel_log": {},
            "reboot_required": False,
            "receipts": {"heavy": {"path": "/r/heavy.json", "age_days": 3.0, "image": REF}},
            "registries": [],
            "shm_gib": 0.0,
            "unused_images": [],
            "services": {
                "heavy": {
                    "log": {},
                    "answer": {"text": "The sea is wide. It is blue and deep. Ships cross it.", "error": ""},
                    "cache": {"path": "/c/heavy", "oldest": 500.0},
                    "unit_changed": 900.0,
                }
            },
        },
        "answers": {"heavy": {"ready": True, "requests_running": 2}},
        "images": {REF: {"present": True, "id": "sha256:" + "a" * 64}},
        "times": {"began": 995.0, "ended": 1001.0},
    }  # fmt: skip


def severities(host: dict[str, Any]) -> dict[str, str]:
    findings = doctor.check(doctor.HostReport(**host))
    assert all(finding.fix for finding in findings)
    return {finding.rule.removeprefix("doctor."): finding.severity for finding in findings}


def test_a_healthy_host_has_no_findings() -> None:
    assert severities(healthy()) == {}


def test_a_host_of_which_nothing_is_known_has_none_either() -> None:
    assert severities({**{part: {} for part in healthy()}, "planned": healthy()["planned"]}) == {}


def unit(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda host: host["facts"]["units"][0].update(values)


def looked(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda host: host["health"].update(values)


def went_off(hours: float, shut_down: bool = False) -> Callable[[dict[str, Any]], None]:
    def change(host: dict[str, Any]) -> None:
        now = 1790000000.0
        host["times"] = {"began": now - 5, "ended": now + 1}
        host["health"].update(
            clock={"now": now, "synchronized": True}, last_boot={"ended": now - hours * 3600, "shut_down": shut_down}
        )

    return change


def reset(code: str, uptime: float = 60.0) -> dict[str, Any]:
    """The answer of NVIDIA's reset_reason_reporter."""
    last = {"reason_code": code, "confidence": 95, "summary": "Kernel panic in the boot before"}
    return {"reset_reason_reporter": {"last_reset": last, "current_boot": {"uptime_seconds": uptime}}}


def memory(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda host: host["facts"]["memory"].update(values)


def service(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda host: host["planned"]["services"][0].update(values)


def answer(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda host: host["answers"]["heavy"].update(values)


def both(*changes: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def change(host: dict[str, Any]) -> None:
        for modify in changes:
            modify(host)

    return change


def words(text: str) -> Callable[[dict[str, Any]], None]:
    return lambda host: host["health"]["services"]["heavy"]["answer"].update(text=text)


def idle() -> Callable[[dict[str, Any]], None]:
    return looked(gpu_load={"utilization": 0.0, "sm_mhz": 208.0, "power_w": 4.0})


def log_of(text: str) -> Callable[[dict[str, Any]], None]:
    answer = explain.explain(text.splitlines()).to_dict()
    return lambda host: host["health"]["services"]["heavy"].update(log=answer)


FAILED_CORE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory."


REMOVED = {"doctor.fan": {"count": 1, "last": "Cable removal"}}

CASES: list[tuple[Callable[[dict[str, Any]], None], dict[str, str]]] = [
    (lambda host: host["facts"]["units"].clear(), {"unit_absent": "error"}),
    (unit(active_state="failed"), {"unit_failed": "error", "page_cache": "info", "cache_stale": "info"}),
    (unit(active_state="inactive"), {"unit_stopped": "error"}),
    (both(unit(active_state="inactive"), service(state="stopped")), {}),
    (unit(n_restarts=3), {"unit_restarts": "warning"}),
    (unit(n_restarts=3, type="notify"), {}),
    (unit(enabled=False), {"unit_disabled": "warning"}),
    (lambda host: host["facts"]["services"].append("old"), {"service_left": "warning"}),
    (answer(ready=False, stage="health", error="refused"), {"no_answer": "error"}),
    (both(answer(requests_running=9), service(args={"speculative-config": {"method": "mtp"}})), {"drafts_under_load": "info"}),
    (words("!" * 60), {"answer_repeats": "error"}),
    (words("The sea. " + "is the the is " * 12), {"answer_repeats": "error"}),
    (memory(available_gib=3.1), {"memory_low": "warning"}),
    (memory(available_gib=1.1), {"memory_low": "error"}),
    (memory(swap_free_gib=9.0), {"swap": "warning"}),
    (looked(shm_gib=8.0), {"shm_left": "warning"}),
    (lambda host: host["facts"]["gpu"]["processes"][0].update(container=None), {"gpu_process": "warning"}),
    (looked(disks={"/": {"total_gib": 3700.0, "free_gib": 6.0}, "/var": {"total_gib": 3700.0, "free_gib": 6.0}}), {"disk": "warning"}),
    (looked(disks={"/": {"total_gib": 3700.0, "free_gib": 0.2}}), {"disk": "error"}),
    (looked(clock={"now": 1100.0, "synchronized": True}), {"clock": "warning"}),
    (looked(clock={"now": 900.0, "synchronized": False}), {"clock": "warning", "clock_free": "warning"}),
    (both(looked(kernel_log=REMOVED, soc_c=61.0), idle()), {"fan": "warning"}),
    (both(looked(kernel_log=REMOVED, soc_c=44.0), idle()), {}),
    (both(looked(kernel_log=REMOVED, soc_c=None), idle()), {}),
    (both(looked(soc_c=61.0), idle()), {}),
    (looked(kernel_log=REMOVED, soc_c=88.0), {}),  # at work
    (log_of(f"{OUT_OF_MEMORY}\n{FAILED_CORE}"), {"engine_log": "error"}),
    (log_of(f"INFO: Application startup complete.\n{OUT_OF_MEMORY}"), {"engine_log": "warning"}),
    (log_of("INFO: Application startup complete."), {}),
    (log_of(FAILED_CORE), {}),  # the cause is not in the log
    (log_of(f"vLLM API server version 0.23.0\n{FAILED_CORE}"), {"engine_log": "error"}),
    (log_of(f"vLLM API server version 0.24.0\n{FAILED_CORE}"), {}),
    (looked(gpu_error="No devices were found"), {"gpu_silent": "error"}),
    # The cause alone is named.
    (looked(gpu_error="NVIDIA-SMI has failed", kernel_log={"doctor.module_key": {"count": 1, "last": "x"}}), {"module_key": "error"}),
    (looked(no_initrd=["6.17.0-1032-nvidia"]), {"initrd": "error"}),
    (looked(driver_packages={"595": ["libnvidia-compute-595", "nvidia-dkms-595"]}), {"driver_mixed": "warning"}),
    (looked(docker_proxies={"/home/me/.docker/config.json": ["HTTP_PROXY"]}), {"docker_proxy": "warning"}),
    (looked(gpu_load={"utilization": 96.0, "sm_mhz": 513.0, "power_w": 31.0}), {"power_stuck": "error"}),
    (looked(gpu_load={"utilization": None, "sm_mhz": 513.0, "power_w": 31.0}), {}),
    (looked(reboot_required=True), {"reboot": "warning"}),
    (went_off(hours=1), {"went_off": "warning"}),
    (went_off(hours=1, shut_down=True), {}),
    (went_off(hours=24 * 15), {}),
    (looked(nvidia_tools=reset("PLANNED_REBOOT")), {}),
    (looked(nvidia_tools=reset("KERNEL_PANIC_OR_OOPS")), {"reset_reason": "warning"}),
    (looked(nvidia_tools=reset("KERNEL_PANIC_OR_OOPS", 15 * 86400)), {}),
    (both(went_off(hours=1), looked(nvidia_tools=reset("KERNEL_PANIC_OR_OOPS"))), {"went_off": "warning"}),
    (looked(nvidia_tools={"spark_updatectl": {"pending_reboot": {"pending": True}}}), {"reboot": "warning"}),
    (looked(nvidia_tools={"spark_updatectl": {"pending_reboot": {"pending": True}}}, reboot_required=True), {"reboot": "warning"}),
    (looked(nvidia_tools={"spark_updatectl": {"pending_reboot": {"pending": False}}, "spark_diagctl": {"crash_dumps_found": []}}), {}),
    (looked(nvidia_tools={"spark_diagctl": {"crash_dumps_found": [{"path": "/var/crash/x"}]}}), {"crash_dumps": "info"}),
    (looked(last_boot={}), {}),
    (looked(helpers={"docker.service": {"active": True, "enabled": False}}), {"docker_disabled": "warning"}),
    (both(looked(helpers={"earlyoom.service": {"active": True, "enabled": True}}), service(cluster=SPAN)), {"earlyoom": "warning"}),
    (looked(receipts={}), {"no_receipt": "warning"}),
    (looked(receipts={"heavy": {"path": "/r", "error": "its schema is 9"}}), {"receipt_broken": "warning"}),
    (looked(receipts={"heavy": {"path": "/r", "age_days": 120.0, "image": REF}}), {"receipt_old": "info"}),
    (looked(receipts={"heavy": {"path": "/r", "age_days": 1.0, "image": "other:1"}}), {"receipt_image": "warning"}),
    (looked(receipts={"heavy": {"path": "/r", "age_days": 1.0, "image": REF, "speed": {"message": "slow.", "fix": "Look."}}}), {"speed": "warning"}),
    (lambda host: host["images"][REF].update(id="sha256:" + "b" * 64), {"image_moved": "warning"}),
    (lambda host: host["images"][REF].update(present=False, id=None), {"registry_login": "warning"}),
    (both(lambda host: host["images"][REF].update(present=False, id=None), looked(registries=["nvcr.io"])), {}),
    (looked(unused_images=[{"ref": "old:1", "gib": 25.0}]), {"images_unused": "info"}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_each_fault_has_its_finding_and_no_other(number: int) -> None:
    change, expected = CASES[number]
    host = copy.deepcopy(healthy())
    change(host)
    assert severities(host) == expected


def test_two_engines_at_work_share_a_gpu() -> None:
    host = healthy()
    host["planned"]["services"].append({**host["planned"]["services"][0], "name": "fast"})
    host["health"]["receipts"]["fast"] = host["health"]["receipts"]["heavy"]
    host["facts"]["services"].append("fast")
    host["answers"]["fast"] = {"ready": True, "requests_running": 1}
    assert severities(host) == {"gpu_shared": "info"}
    host["answers"]["fast"]["requests_running"] = 0
    assert severities(host) == {}


def test_the_other_one_of_an_exclusive_set_may_be_stopped() -> None:
    host = healthy()
    host["planned"]["services"][0]["exclusive"] = "day"
    other = {
        **host["planned"]["services"][0],
        "name": "night",
        "unit": "spark-night.service",
        "container": "spark-night",
    }
    host["planned"]["services"].append(other)
    host["facts"]["services"].append("night")
    host["facts"]["units"].append({**host["facts"]["units"][0], "name": other["unit"], "active_state": "inactive"})
    host["facts"]["containers"].append({"name": "spark-night", "image_id": None})
    assert severities(host) == {}
    other["exclusive"] = ""
    assert severities(host) == {"unit_stopped": "error"}


def guarded(**more: Any) -> dict[str, Any]:
    """The account that a host gives of its guard."""
    account = {
        "level": "calm",
        "available_gib": 20.0,
        "last": None,
        "stopped": {},
        "refused": [],
        "who": "",
        "act": True,
    }
    return {**account, **more}


def test_a_guard_that_runs_and_had_nothing_to_do_is_no_finding() -> None:
    host = healthy()
    host["facts"]["guard"] = guarded()
    host["facts"]["units"].append({**host["facts"]["units"][0], "name": "spark-agent.service", "managed": False})
    assert severities(host) == {}
    host["facts"]["units"][-1]["active_state"] = "failed"
    assert severities(host) == {"guard_off": "error"}
    host["facts"]["units"].pop()
    assert severities(host) == {"guard_off": "error"}
    host["facts"]["unknown"] = {"systemctl": "no answer"}
    assert severities(host) == {}


def test_what_the_guard_sees_and_did() -> None:
    host = healthy()
    host["facts"]["units"].append({**host["facts"]["units"][0], "name": "spark-agent.service", "managed": False})
    host["facts"]["guard"] = guarded(level="short", available_gib=2.5, who="python3 (pid 7) 8.0 GiB")
    (finding,) = doctor.check(doctor.HostReport(**host))
    assert finding.rule == "doctor.guard_short" and "2.50 GiB available. python3 (pid 7) 8.0 GiB use" in finding.message
    last = {"at": 900.0, "what": "restart", "whom": "heavy", "why": "4.0 GiB above its plan"}
    host["facts"]["guard"] = guarded(last=last)
    (finding,) = doctor.check(doctor.HostReport(**host))
    assert finding.rule == "doctor.guard_acted" and "restarted heavy (4.0 GiB above its plan)" in finding.message
    last["at"] = 1000.0 - 90000
    assert severities(host) == {}


def test_degenerate_answers_are_an_error_with_the_known_cure() -> None:
    host = healthy()
    note = {
        "state": "degenerate",
        "text": "a loop",
        "evidence": "/var/x",
        "cures": ["SPKK04: Do that."],
        "drained": True,
    }
    host["facts"]["quality"] = {"heavy": note, "left": note}
    (finding,) = doctor.check(doctor.HostReport(**host))
    assert (finding.rule, finding.severity, finding.service) == ("doctor.degenerate", "error", "heavy")
    assert "a loop. The gateway gives it no new requests." in finding.message
    assert finding.fix.startswith("SPKK04: Do that. systemctl restart spark-heavy.service") and "/var/x" in finding.fix
    host["facts"]["quality"] = {"heavy": {**note, "state": "doubtful", "cures": [], "drained": False}}
    assert severities(host) == {"degenerate": "warning"}


def test_a_service_that_the_guard_stopped_says_so() -> None:
    host = healthy()
    unit(active_state="inactive")(host)
    host["facts"]["guard"] = guarded(stopped={"heavy": "0.80 GiB available, nothing milder is left"})
    host["facts"]["units"].append({**host["facts"]["units"][0], "name": "spark-agent.service", "managed": False})
    findings = doctor.check(doctor.HostReport(**host))
    (finding,) = [result for result in findings if result.rule == "doctor.unit_stopped"]
    assert finding.message == (
        "spark-heavy.service was stopped by the memory guard: 0.80 GiB available, nothing milder is left."
    )


LINES = {
    "gpu_memory_refused": "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from _memdesc",
    "gpu_fault": "NVRM: Xid (PCI:000f:01:00): 31, pid=624869, name=VLLM::EngineCor",
    "driver_mismatch": "NVRM: API mismatch: the client has the version 580.173.02, but",
    "module_key": "modprobe[612]: modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
    "pcie_fault": "pcieport 0000:00:00.0: AER: Uncorrectable (Fatal) error message received",
    "oom_killed": "Out of memory: Killed process 4711 (python3) total-vm:1kB",
    "disk_fault": "blk_update_request: I/O error, dev nvme0n1, sector 12",
    "heat": "thermal thermal_zone0: critical temperature reached",
    "fan": "cx7-pcie-hotplug MTKP0001:00: Cable removal",
}


@pytest.mark.parametrize("rule", LINES)
def test_each_sign_is_seen_and_said_once(rule: str) -> None:
    account = doctor_signs.KERNEL_SIGNS
    counted = doctor_signs.count_signs(["quiet", LINES[rule], LINES[rule], "quiet"], account)
    assert {name: entry["count"] for name, entry in counted.items()} == {f"doctor.{rule}": 2}
    findings = list(doctor.signs(counted, account))
    assert [finding.rule for finding in findings] == [f"doctor.{rule}"]
    assert "2 times, last: " in findings[0].message and LINES[rule][:30] in findings[0].message


def test_all_signs_are_tried() -> None:
    assert {f"doctor.{rule}" for rule in LINES} == {sign.rule for sign in doctor_signs.KERNEL_SIGNS}


@pytest.mark.parametrize(
    "line",
    [
        "pcieport 0000:00:00.0: AER: Correctable error message received",
        "thermal_sys: Registered thermal governor 'step_wise'",
    ],
)
def test_ordinary_lines_are_no_signs(line: str) -> None:
    assert doctor_signs.count_signs([line], doctor_signs.KERNEL_SIGNS) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello, hello, hello!",
        "The sea is wide. The sea is deep. The sea is blue, and the ships that cross it are small.",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20",
    ],
)
def test_answers_that_repeat_nothing(text: str) -> None:
    assert doctor.repeats(text) == ""


@pytest.mark.parametrize(
    "text", ["!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!", "ab " * 20, "the sea " * 9 + "the", "x" + "\n0 0 1 " * 9]
)
def test_answers_that_repeat(text: str) -> None:
    assert doctor.repeats(text)


def test_the_cause_in_a_log_comes_with_its_service_fix_and_source() -> None:
    host = healthy()
    log_of("OSError: [Errno 28] No space left on device")(host)
    (finding,) = doctor.check(doctor.HostReport(**host))
    assert (finding.rule, finding.service, finding.severity) == ("doctor.engine_log", "heavy", "error")
    assert finding.message.endswith("(OSError: [Errno 28] No space left on device).")
    assert "df -h" in finding.fix and "disk_full" in finding.source


@pytest.mark.parametrize(
    ("path", "content", "fetches", "severity"),
    [
        ("", "", True, None),
        ("/t", "", True, "error"),
        ("/t", " \n", False, "warning"),
        ("/t", "hf_" + "a" * 34 + "\n", True, None),
        ("/t", "HF_TOKEN=hf_aaaa", True, "warning"),
        ("/t", "$ANSIBLE_VAULT;1.1;AES256\n33", True, None),
    ],
)
def test_the_token_of_the_hub(path: str, content: str, fetches: bool, severity: str | None) -> None:
    findings = doctor.token(path, content, fetches)
    assert [finding.severity for finding in findings] == ([severity] if severity else [])
    assert content.strip() == "" or all(content.strip() not in finding.message for finding in findings)


@pytest.mark.parametrize(
    ("fail_on", "why"),
    [("error", "1 error: a.a"), ("warning", "1 error and 2 warnings: a.a, b.b"), ("never", "")],
)
def test_the_worst_decides(fail_on: str, why: str) -> None:
    findings = [
        {"rule": "a.a", "severity": "error"},
        *[{"rule": "b.b", "severity": "warning"}] * 2,
        {"rule": "c.c", "severity": "info"},
    ]
    assert doctor.verdict(findings, fail_on) == why
    assert doctor.verdict(findings[3:], fail_on) == ""
