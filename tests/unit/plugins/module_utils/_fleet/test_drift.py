# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Differences between a host and its deployed state: an unchanged host has no findings, and each difference has its own finding."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import planned_fixture
import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.reader import to_dict
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import drift
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.planned import PlannedImage

UNIT, GATEWAY, TIMER = "spark-heavy.service", "spark-gateway.service", "spark-load-guard.service"
REF = "vllm/vllm-openai:v0.24.0-ubuntu2404"
RUNS, OTHER, THIRD = (f"sha256:{sign * 64}" for sign in "abc")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "Qwen/Qwen3-8B"
MARK = "1f" * 8
PLANNED = planned_fixture.service()


def argv(image: str = REF, *words: str, mark: str = MARK) -> list[str]:
    docker = [
        "/usr/bin/docker",
        "run",
        "--label",
        f"dgxspark.fingerprint={mark}",
        "--rm",
        "--env-file",
        "/e",
        "-v",
        "/a:/a",
    ]
    return [*docker, image, "vllm", "serve", REPO, "--max-model-len", "4096", *words]


def image(reported: str | None, ref: str = REF) -> dict[str, Any]:
    """A planned image, by its id on the host."""
    return to_dict(PlannedImage(ref, reported, None, ref))


def clean() -> dict[str, Any]:
    """A host that matches its deployed state and the plan."""
    service = {
        **to_dict(PLANNED),
        "name": "heavy",
        "unit": UNIT,
        "container": "spark-heavy",
        "state": "started",
        "cluster": None,
        "image": image(RUNS),
        "model": to_dict(replace(PLANNED.model, repo=REPO, revision="main")),
        "argv": argv(),
        "env": {"A": "1", "TOKEN": "hush"},
        "fingerprint": MARK,
        "lock": {"key": "spark-1/heavy"},
    }
    unit = {"name": UNIT, "active_state": "active", "enabled": True, "queued": False, "load_state": "loaded"}
    container = {
        "name": "spark-heavy",
        "state": "running",
        "image_id": RUNS,
        "managed": True,
        "service": "heavy",
        "fingerprint": MARK,
    }
    recorded = {
        "number": 3,
        "at": "2026-11-20T12:00:00+00:00",
        "proven": True,
        "checksums": {"service": "s", "gateway": "g"},
        "facts": {"kernel": "6.17.0-1014-nvidia", "driver": "580.159.03", "dgx_os": "7.5.0"},
        "from": None,
        "restoring": None,
        "units": {
            UNIT: {"enabled": True, "active": "active"},
            GATEWAY: {"enabled": True, "active": "active"},
            TIMER: {"enabled": False, "active": "inactive"},
        },
        "images": {UNIT: {"ref": f"{REF}@{RUNS}", "id": RUNS}},
    }
    return {
        "planned": {"services": [service], "images_locked": {}, "cluster": None},
        "facts": {
            "services": ["heavy"],
            "units": [unit],
            "containers": [container],
            "kernel": "6.17.0-1014-nvidia",
            "gpu": {"driver_version": "580.159.03"},
            "dgx_os": {"version": "7.5.0"},
        },
        "images": {REF: {"present": True, "id": RUNS}},
        "compared": {
            "recorded": recorded,
            "differences": {
                **{kind: [] for kind in ("changed", "missing", "added", "attributes")},
                "moved": {},
                "models": [
                    {"repo": REPO, "path": None, "revision": "main", "commit": COMMIT, "there": True, "wrong": []},
                ],
            },
            "units": copy.deepcopy(recorded["units"]),
            "launches": {"heavy": {"argv": argv(), "env": {"A": "1", "TOKEN": "hush"}, "image": {"ref": REF}}},
        },
        "checksums": {"service": "s", "gateway": "g"},
    }


def findings(host_data: dict[str, Any]) -> list[dict[str, Any]]:
    answers = host_data["facts"], host_data["images"], host_data["compared"]
    host = drift.Host(host_data["planned"], host_data["checksums"], host_data.get("ranks", True), *answers)
    return [finding.to_dict() for finding in drift.check(host)]


def only(host_data: dict[str, Any]) -> dict[str, Any]:
    reported = findings(host_data)
    assert len(reported) == 1, reported
    assert reported[0]["fix"] and reported[0]["message"]
    return reported[0]


def test_what_is_as_it_was_deployed_has_no_findings() -> None:
    assert findings(clean()) == []


def test_a_relay_that_is_asked_for_is_no_difference() -> None:
    host_data = clean()
    host_data["facts"]["fabric"] = {"relay": True}
    host_data["planned"]["cluster"] = {"name": "quad", "fabric": {"relay": True}}
    assert findings(host_data) == []


def service(host_data: dict[str, Any], **values: Any) -> None:
    host_data["planned"]["services"][0].update(values)


def unit(host_data: dict[str, Any], **values: Any) -> None:
    host_data["facts"]["units"][0].update(values)


def container(host_data: dict[str, Any], **values: Any) -> None:
    host_data["facts"]["containers"][0].update(values)


def stopped(host_data: dict[str, Any], state: str = "inactive") -> None:
    unit(host_data, active_state=state)
    host_data["facts"]["containers"].clear()


def meant_stopped(host_data: dict[str, Any]) -> None:
    service(host_data, state="stopped")
    unit(host_data, enabled=False)


def recorded(host_data: dict[str, Any], **values: Any) -> None:
    host_data["compared"]["recorded"].update(values)


def files(host_data: dict[str, Any], kind: str, path: str) -> None:
    host_data["compared"]["differences"][kind].append(path)


def both(*changes: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def change(host_data: dict[str, Any]) -> None:
        for modify in changes:
            modify(host_data)

    return change


Case = tuple[str, Callable[[dict[str, Any]], None], str, str, str]
CASES: tuple[Case, ...] = (
    ("stopped by hand", stopped, "stopped", "error", f"{UNIT} is inactive"),
    ("failed", lambda k: stopped(k, "failed"), "stopped", "error", f"{UNIT} has failed"),
    ("stopped by the guard", lambda k: (stopped(k), k["facts"].update(guard={"stopped": {"heavy": "0.8 GiB"}})), "stopped", "error",
     "the memory guard stopped it: 0.8 GiB"),
    ("its unit is gone", lambda k: (k["facts"]["units"].clear(), k["facts"]["containers"].clear()), "stopped", "error", "is gone"),
    ("runs though stopped", meant_stopped, "running", "error", "should be stopped"),
    ("not at boot", lambda k: unit(k, enabled=False), "boot", "warning", "is not enabled"),
    ("masked", lambda k: unit(k, enabled=False, load_state="masked"), "boot", "warning", "is masked"),
    (
        "starts though stopped",
        both(meant_stopped, stopped, lambda k: unit(k, enabled=True)),
        "boot",
        "warning",
        "will start at the next boot",
    ),
    ("by hand, beside its unit", lambda k: unit(k, active_state="inactive"), "by_hand", "error", "its unit is inactive"),
    ("by hand, in its place", lambda k: container(k, managed=False, fingerprint=None), "by_hand", "error", "not started by its unit"),
    ("never deployed", lambda k: (k["facts"]["services"].clear(), stopped(k)), "not_deployed", "warning", "never deployed"),
    ("no more planned", lambda k: k["facts"]["services"].append("old"), "unplanned", "warning", "its unit is gone"),
    ("gateway down", lambda k: k["compared"]["units"][GATEWAY].update(active="failed"), "stopped", "error", f"{GATEWAY} ran"),
    ("gateway off", lambda k: k["compared"]["units"][GATEWAY].update(enabled=False), "boot", "warning", GATEWAY),
    ("a relay is left", lambda k: k["facts"].update(fabric={"relay": True}), "relay", "warning", "does not ask for it any more"),
    (
        "a relay is left in a cluster",
        lambda k: (
            k["facts"].update(fabric={"relay": True}),
            k["planned"].update(cluster={"name": "pair", "fabric": {"relay": False}}),
        ),
        "relay",
        "warning",
        "dgxspark-fabric-relay.service",
    ),
    ("another image", lambda k: container(k, image_id=OTHER), "image", "error", "bbbbbbbbbbbb, and aaaaaaaaaaaa was deployed"),
    ("tag moved", lambda k: service(k, image=image(OTHER)), "image_moved", "warning", "is bbbbbbbbbbbb on this host"),
    ("image to come", lambda k: service(k, image=image(None)), "image_planned", "warning", "not on this host"),
    (
        "another one is locked",
        lambda k: (
            service(k, image=image(OTHER)),
            k["planned"].update(images_locked={REF: {"name": REF, "ids": [OTHER]}}),
        ),
        "image_planned",
        "warning",
        "the lock file has bbbbbbbbbbbb",
    ),
    ("model gone", lambda k: k["compared"]["differences"]["models"][0].update(there=False, commit=None), "model_gone", "error", f"{REPO}@main"),
    (
        "vocabulary gone",
        lambda k: k["compared"]["differences"]["models"].append(
            {"repo": None, "path": "/srv/hf/downloads/446a-o200k", "there": False, "wrong": [], "is_vocabulary": True}
        ),
        "model_gone",
        "error",
        "the vocabulary /srv/hf/downloads/446a-o200k is not on this host",
    ),
    (
        "model cut short",
        lambda k: k["compared"]["differences"]["models"][0].update(wrong=[f"{n}.bin is missing" for n in range(6)]),
        "model_files",
        "error",
        "0.bin is missing, 1.bin is missing, 2.bin is missing, 3.bin is missing and 2 more",
    ),
    (
        "branch moved",
        lambda k: k["compared"]["differences"]["moved"].update(
            heavy={"repo": REPO, "revision": "main", "was": COMMIT, "is": "f" * 40}
        ),
        "model_moved",
        "warning",
        "is commit ffffffffffff on this host now; 0123456789ab was deployed",
    ),
    (
        "launched otherwise",
        lambda k: service(k, fingerprint="2f" * 8, argv=argv(REF, "--max-num-seqs=8"), env={"A": "2", "TOKEN": "hush"}),
        "launch",
        "warning",
        ": --max-num-seqs, env A.",
    ),
    ("unit edited", lambda k: files(k, "changed", f"/etc/systemd/system/{UNIT}"), "file_changed", "warning", f"/{UNIT} was changed"),
    ("env gone", lambda k: files(k, "missing", "/etc/dgxspark/env/heavy.env"), "file_missing", "warning", "heavy.env is missing"),
    (
        "drop-in",
        lambda k: files(k, "added", f"/etc/systemd/system/{UNIT}.d/override.conf"),
        "file_added",
        "warning",
        "override.conf is new",
    ),
    (
        "key that others read",
        lambda k: files(k, "attributes", "/etc/dgxspark/secrets/heavy/VLLM_API_KEY"),
        "file_attributes",
        "warning",
        "VLLM_API_KEY has another owner or mode",
    ),
    ("kernel", lambda k: k["facts"].update(kernel="7.0.0-1"), "kernel", "info", "kernel 7.0.0-1; it was 6.17.0-1014-nvidia"),
    ("driver", lambda k: k["facts"]["gpu"].update(driver_version="595.1"), "driver", "info", "driver 595.1; it was 580.159.03"),
    ("DGX OS", lambda k: k["facts"]["dgx_os"].update(version="7.6.0"), "dgx_os", "info", "DGX OS 7.6.0; it was 7.5.0"),
    ("never recorded", lambda k: k["compared"].update(recorded=None), "unrecorded", "info", "no state of this host"),
    ("rollback cut off", lambda k: recorded(k, restoring=2), "restoring", "error", "generation 2 was interrupted"),
    ("taken back", lambda k: recorded(k, **{"from": 5}), "taken_back", "info", "from generation 5 to 3"),
    ("plan is newer", lambda k: recorded(k, checksums={"service": "older", "gateway": "g"}), "plan", "info", "deployment (service)"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "rule", "severity", "says"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_each_difference_has_its_finding(change: Any, rule: str, severity: str, says: str) -> None:
    host_data = clean()
    change(host_data)
    reported = only(host_data)
    assert (reported["rule"], reported["severity"]) == (f"drift.{rule}", severity)
    assert says in reported["message"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"/etc/systemd/system/{UNIT}", "heavy"),
        (f"/etc/systemd/system/{UNIT}.d/override.conf", "heavy"),
        ("/etc/dgxspark/env/heavy.env", "heavy"),
        ("/etc/dgxspark/services/heavy.json", "heavy"),
        ("/etc/dgxspark/secrets/heavy/VLLM_API_KEY", "heavy"),
        ("/etc/dgxspark/files/heavy/deep/template.jinja", "heavy"),
        ("/etc/systemd/system/spark-gateway.service", ""),
        ("/etc/dgxspark/secrets/gateway/master", ""),
        ("/usr/local/libexec/dgxspark/spark_unit.py", ""),
    ],
)
def test_a_file_is_its_service_s(path: str, name: str) -> None:
    host_data = clean()
    files(host_data, "changed", path)
    assert only(host_data)["service"] == name


def test_what_comes_up_or_waits_for_its_turn_is_no_difference() -> None:
    for state in ({"active_state": "activating"}, {"active_state": "inactive", "queued": True}):
        host_data = clean()
        stopped(host_data)
        unit(host_data, **state)
        assert findings(host_data) == []


def test_what_requests_start_may_run_or_not() -> None:
    host_data = clean()
    host_data["planned"]["services"][0]["state"] = "on_demand"
    unit(host_data, enabled=False)
    host_data["compared"]["units"][UNIT]["enabled"] = host_data["compared"]["recorded"]["units"][UNIT]["enabled"] = (
        False
    )
    assert findings(host_data) == []
    stopped(host_data)
    unit(host_data, active_state="inactive", enabled=False)
    assert findings(host_data) == []
    unit(host_data, active_state="failed", enabled=False)
    assert [lines_of_hosts["rule"] for lines_of_hosts in findings(host_data)] == ["drift.stopped"]
    unit(host_data, active_state="inactive", enabled=True)
    assert "started by requests alone" in only(host_data)["message"]


def test_an_image_that_no_run_put_there_is_an_error_also_when_it_is_planned_otherwise() -> None:
    host_data = clean()
    container(host_data, image_id=OTHER)
    service(host_data, image=image(THIRD))
    assert only(host_data)["message"].endswith(f"aaaaaaaaaaaa was deployed; cccccccccccc is planned ({REF}).")


def test_a_digest_is_named_by_its_beginning() -> None:
    host_data = clean()
    service(host_data, image=image(None, f"{REF}@{THIRD}"))
    assert only(host_data)["message"].startswith(f"{REF}@sha256:cccccccccccc is planned, ")


def test_an_image_with_ray_is_compared_with_what_was_recorded() -> None:
    host_data = clean()
    service(host_data, ray_image={"base": REF, "version": "2.49", "tag": "dgxspark/ray:1"}, image=image(THIRD))
    assert findings(host_data) == []
    container(host_data, image_id=OTHER)
    assert only(host_data)["rule"] == "drift.image"


def test_a_locked_id_is_right_by_whatever_name() -> None:
    host_data = clean()
    service(host_data, image=image(THIRD))
    host_data["planned"]["images_locked"] = {REF: {"name": REF, "ids": [RUNS, OTHER]}}
    assert findings(host_data) == []


def test_ranks_are_compared_with_the_plan_where_all_hosts_had_a_say() -> None:
    host_data = clean()
    cluster = {"name": "pair", "size": 2, "head": "spark-1", "hosts": ["spark-1", "spark-2"], "executor": "mp"}
    service(host_data, cluster=cluster, fingerprint="2f" * 8, argv=argv(REF, "--seed", "1"), env={"NCCL_IB_HCA": "x"})
    assert [lines_of_hosts["rule"] for lines_of_hosts in findings({**host_data, "ranks": True})] == ["drift.launch"]
    assert findings(host_data)[0]["message"].endswith(": --seed.")
    assert findings({**host_data, "ranks": False}) == []
    # Only a deployment knows the arguments that the fabric adds.
    service(host_data, argv=argv())
    assert findings({**host_data, "ranks": True}) == []


def test_only_the_image_of_a_launch_is_said_once() -> None:
    host_data = clean()
    service(host_data, argv=argv(f"{REF}@{OTHER}"), fingerprint="2f" * 8, image=image(OTHER))
    assert only(host_data)["rule"] == "drift.image_moved"


def test_a_newer_plan_is_not_said_beside_what_it_changes() -> None:
    host_data = clean()
    recorded(host_data, checksums={"service": "older"})
    service(host_data, fingerprint="2f" * 8, argv=argv(REF, "--seed", "1"))
    assert only(host_data)["rule"] == "drift.launch"
    assert findings({**host_data, "checksums": {}})[0]["rule"] == "drift.launch"


def test_names_of_launches_have_no_values() -> None:
    host_data = clean()
    service(
        host_data, fingerprint="x", env={"A": "1", "TOKEN": "very-secret"}, argv=argv(REF, "--api-token", "also-secret")
    )
    host_data["compared"]["launches"]["heavy"]["argv"] = argv("old", "--old=was-secret", mark="other")
    text = json.dumps(findings(host_data))
    assert "docker run" not in text  # the mark is no option of anybody's
    assert "--api-token" in text and "--old" in text and "env TOKEN" in text and "image" in text
    assert "secret" not in text and "hush" not in text


def test_parts_that_could_not_be_asked_are_no_differences() -> None:
    host_data = clean()
    assert findings({**host_data, "compared": None}) == []
    service(host_data, image=image(None))
    container(host_data, image_id=OTHER)
    assert findings({**host_data, "compared": None, "images": None}) == []


def lock(message: str, rule: str = "lock.recipe", host: str = "spark-1") -> dict[str, Any]:
    return {
        "rule": rule,
        "severity": "warning",
        "service": "heavy",
        "message": message.format(key=f"{host}/heavy"),
        "fix": f"Run dgxspark.vllm.lock --limit {host} once it serves as wanted, and commit the file.",
    }


def test_plan_and_lock_are_compared_once_for_all_hosts() -> None:
    messages = []
    for host in ("spark-1", "spark-2", "spark-3"):
        services = [{"name": "heavy", "lock": {"key": f"{host}/heavy"}}]
        lock_findings = [lock("the recipe of {key} is not what it was", host=host), lock("moves", "lock.moving", host)]
        lock_findings.append(lock("too large", "memory.fit", host))
        messages += [
            {"host": host, **finding} for finding in drift.check_lock({"findings": lock_findings, "services": services})
        ]
    assert [finding["rule"] for finding in messages] == ["lock.recipe"] * 3
    hosts = {host: {"reached": True, "why": ""} for host in ("spark-1", "spark-2", "spark-3")}
    report = drift.report(messages, hosts, 3, "now", "never")
    assert {body["state"] for body in report["hosts"].values()} == {"same"} and report["healthy"] is False
    text = drift.text(report)
    assert text.count("is not what it was") == 1
    assert "heavy on spark-1..3: the recipe of heavy is not what it was [lock.recipe]" in text
    assert "Fix: Run dgxspark.vllm.lock once it serves as wanted" in text


def fleet(*differing: str, fail_on: str = "never", silent: tuple[str, ...] = ()) -> dict[str, Any]:
    host_data = clean()
    files(host_data, "changed", "/etc/dgxspark/env/heavy.env")
    unit(host_data, enabled=False)
    reported = [{"host": host, **finding} for host in differing for finding in findings(host_data)]
    reported += [{"host": host, **drift.unreachable("port 22: No route to host").to_dict()} for host in silent]
    hosts = {
        f"spark-{number}": {"reached": f"spark-{number}" not in silent, "why": "", "generation": number}
        for number in (10, 2, 1)
    }
    return drift.report(reported, hosts, 3, "now", fail_on)


def test_nothing_is_one_line() -> None:
    reported = fleet()
    assert drift.text(reported) == drift.text(reported, "lines") == "3 hosts, 3 services: nothing has drifted."
    assert (reported["healthy"], reported["reason"]) == (True, "")
    assert [body["state"] for body in reported["hosts"].values()] == ["same"] * 3


def test_what_hosts_have_in_common_is_said_once_and_the_worst_first() -> None:
    reported = fleet("spark-1", "spark-2", silent=("spark-10",))
    lines = drift.text(reported).splitlines()
    assert lines[0].startswith("ERROR   spark-10: the host is unreachable: port 22: No route to host.")
    assert sum("heavy on spark-1..2: /etc/dgxspark/env/heavy.env was changed" in line for line in lines) == 1
    assert lines[-1] == "3 hosts (1 silent), 3 services: 1 error, 4 warnings."
    assert list(reported["hosts"]) == ["spark-1", "spark-2", "spark-10"]
    assert [body["state"] for body in reported["hosts"].values()] == ["drifted", "drifted", "unreachable"]
    assert reported["counts"]["drifted"] == 2 and reported["counts"]["silent"] == 1
    lines_of_hosts = drift.text(reported, "lines").splitlines()
    assert sum("/heavy: /etc/dgxspark/env/heavy.env was changed" in line for line in lines_of_hosts) == 2


def test_the_reason_goes_by_what_is_asked() -> None:
    two = fleet("spark-1", "spark-2", fail_on="warning", silent=("spark-10",))
    assert two["reason"] == (
        "1 of 3 hosts did not answer: spark-10; 4 differences on 2 of 3 hosts (spark-1..2): drift.boot, drift.file_changed"
    )
    assert fleet("spark-1", fail_on="error")["healthy"] is True
    assert fleet("spark-1", fail_on="never")["healthy"] is False
    assert fleet("spark-1", fail_on="error", silent=("spark-2",))["healthy"] is False


def test_what_is_only_to_know_is_no_reason_unless_asked() -> None:
    host_data = clean()
    host_data["facts"]["kernel"] = "7.0.0"
    reported = [{"host": "spark-1", **finding} for finding in findings(host_data)]
    hosts = {"spark-1": {"reached": True, "why": ""}}
    assert drift.report(reported, hosts, 1, "now", "warning")["healthy"] is True
    informed = drift.report(reported, hosts, 1, "now", "info")
    assert informed["reason"] == "1 difference on 1 of 1 host (spark-1): drift.kernel"
    assert drift.text(informed).splitlines()[-1] == "1 host, 1 service: 1 to know."
    # The same machine reads the same on every run.
    assert drift.report(reported, hosts, 1, "now", "info") == informed


def test_a_part_that_could_not_be_asked_is_named() -> None:
    reported = drift.not_asked("what was deployed", "Missing sudo password\nand more").to_dict()
    assert reported["severity"] == "error"
    assert reported["message"] == "what was deployed could not be read: Missing sudo password and more"


def test_parts_whose_document_changed_are_named() -> None:
    recorded_then = {"service": "s", "gateway": "g", "host": "h"}
    assert drift.changed_parts({"service": "s", "gateway": "x", "host": "h"}, recorded_then) == ["gateway"]
    assert drift.changed_parts({"service": "s", "gateway": "g", "host": "h", "guard": "n"}, recorded_then) == ["guard"]
    # A removed part and a part without rows have the checksum of an empty document.
    assert drift.changed_parts({"service": "s"}, {"service": "s", "guard": drift.NO_ROWS}) == []
    assert drift.changed_parts({"service": "s"}, {"service": "s", "guard": "n"}) == ["guard"]
    assert drift.changed_parts({}, recorded_then) == [] == drift.changed_parts({"service": "x"}, {})
