# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The section health of spark_info on a host whose programs are scripts: what it reads, and that nothing of it has to be there."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from module_calls import call_module

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import host_health
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import machine
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import receipts
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import start_stages
from ansible_collections.dgxspark.vllm.plugins.modules import spark_info

INSPECT = [
    {
        "Name": "/spark-heavy",
        "Id": "abcdefabcdef",
        "Image": "sha256:0123456789ab",
        "Config": {"Labels": {"dgxspark.managed": "true"}},
        "State": {"Status": "running", "Pid": 1},
    }
]
SCRIPTS = {
    "docker": """#!/bin/sh
case "$1 $2" in
"info "*) echo '{"ServerVersion": "29.2.1", "Runtimes": {"nvidia": {}}, "DockerRootDir": "/"}' ;;
"ps "*) echo abcdefabcdef ;;
"container inspect") cat "$SPARK_TEST_INSPECT" ;;
"logs "*) echo 'ok'; echo 'torch.OutOfMemoryError: CUDA out of memory' >&2 ;;
"image ls") printf 'sha256:0123456789ab vllm:1\\nsha256:ba9876543210 vllm:0\\nsha256:ba9876543210 vllm:alias\\n' ;;
"image inspect") printf 'sha256:0123456789ab 1073741824\\nsha256:ba9876543210 2147483648\\n' ;;
esac
""",
    "journalctl": """#!/bin/sh
case "$*" in *_TRANSPORT=kernel*) echo 'host kernel: NVRM: Xid (PCI:000f:01:00): 31' ;;
*--boot=-1*) echo '1790000000.25 host kernel: all is well' ;; *) echo 'OSError: No space left on device' ;; esac
""",
    "nvidia-smi": "#!/bin/sh\necho '0, NVIDIA GB10, GPU-1, 580.159.03, 12.1, 44, [N/A], 2411, 97'\n",
    "timedatectl": "#!/bin/sh\necho no\n",
    "systemctl": "#!/bin/sh\nprintf 'Id=docker.service\\nLoadState=loaded\\nActiveState=active\\nUnitFileState=disabled\\n'\n",
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: Any) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (tmp_path / "inspect.json").write_text(json.dumps(INSPECT))
    monkeypatch.setenv("SPARK_TEST_INSPECT", str(tmp_path / "inspect.json"))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def run(capsys: Any, **args: Any) -> dict[str, Any]:
    result = call_module(spark_info, {"gather": ["health"], **args}, capsys)
    assert result["changed"] is False
    health: dict[str, Any] = result["health"]
    return health


def test_what_it_reads(programs: Path, engine: Any, tree: Any, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "a.so").write_text("x")
    os.utime(tmp_path / "cache" / "a.so", (1000, 1000))
    (tmp_path / "receipts").mkdir()
    slow = {"rule": "speed.slow", "severity": "warning", "message": "heavy is slower.", "fix": "Look."}
    receipt = receipts.build("heavy", {"image": {"ref": "vllm:1"}}, {}, None, speed={"findings": [slow]})
    (tmp_path / "receipts" / "heavy.json").write_text(receipts.dump(receipt))
    (tmp_path / "receipts" / "broken.json").write_text("{")
    last = start_stages.entry("2026-11-23T08:00:00Z", "5f1c", {"gate": 4.0, "load": 120.0}, {})
    (tmp_path / "starts").mkdir()
    (tmp_path / "starts" / "heavy.json").write_text(json.dumps(start_stages.with_start(None, last)))
    for number, text in enumerate(("41000\n", "52500\n", "")):
        tree.write(f"sys/class/thermal/thermal_zone{number}/temp", text)
    probe = {"url": engine.url, "model": "heavy"}
    services = [
        {"name": "heavy", "unit": "spark-heavy.service", "container": "spark-heavy", "cache_dir": str(tmp_path / "cache"), "probe": probe},
        {"name": "gone", "unit": "spark-gone.service", "container": "spark-gone", "probe": {}},
    ]  # fmt: skip
    folders = {"state_dir": str(tmp_path), "root": str(tree)}
    section = run(capsys, services=services, disk_paths=[str(tmp_path)], answer_timeout=5, **folders)
    assert section["starts"] == {"heavy": [last], "gone": []}
    assert section["soc_c"] == 52.5
    assert section["clock"]["synchronized"] is False and section["clock"]["now"] > 1
    assert section["gpu_load"] == {"utilization": 97.0, "sm_mhz": 2411.0, "power_w": None}
    assert section["helpers"] == {"docker.service": {"active": True, "enabled": False}}
    assert set(section["kernel_log"]) == {"doctor.gpu_fault"}
    assert section["last_boot"] == {"ended": 1790000000.25, "shut_down": False}
    assert section["unused_images"] == [{"ref": "vllm:0", "gib": 2.0}]
    assert str(tmp_path) in section["disks"] and "/var/log" in section["disks"]
    assert section["receipts"]["heavy"]["image"] == "vllm:1" and section["receipts"]["heavy"]["age_days"] < 1
    assert section["receipts"]["heavy"]["speed"] == {"message": "heavy is slower.", "fix": "Look."}
    assert "error" in section["receipts"]["broken"]
    heavy, gone = section["services"]["heavy"], section["services"]["gone"]
    assert heavy["log"]["id"] == "cuda_memory"  # of the container that runs
    assert gone["log"]["id"] == "disk_full"  # of the unit, since no container does
    assert heavy["cache"] == {"path": str(tmp_path / "cache"), "oldest": 1000.0} and gone["cache"] == {}
    assert heavy["answer"]["text"] and gone["answer"] == {"text": "", "error": ""}


def test_nothing_has_to_be_there(tree: Any, tmp_path: Path, closed_port: int, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    probe = {"url": f"http://127.0.0.1:{closed_port}", "model": "x"}
    services = [{"name": "x", "unit": "spark-x.service", "container": "spark-x", "probe": probe}]
    folders = {"state_dir": str(tmp_path / "none"), "root": str(tree)}
    section = run(capsys, services=services, answer_timeout=1, **folders)
    assert section["starts"] == {"x": []}
    assert section["gpu_load"] == {} and section["gpu_error"] == "" and section["unused_images"] == []
    assert section["receipts"] == {} and section["kernel_log"] == {} and section["helpers"] == {}
    assert section["services"]["x"]["answer"]["text"] == "" and section["services"]["x"]["answer"]["error"]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("systemctl", "systemctl failed: broken"),
        ("journalctl", "journalctl failed: broken"),
        ("docker", "docker failed: broken"),
    ],
)
def test_a_program_that_fails_is_named_and_finds_nothing_healthy(
    programs: Path, tree: Any, tmp_path: Path, capsys: Any, program: str, message: str
) -> None:
    script = programs / program
    script_text = script.read_text().replace("#!/bin/sh\n", "")
    # Docker itself answers; the other commands fail.
    head = 'case "$1 $2" in "info "*|"ps "*|"container inspect") ;; *) echo broken >&2; exit 1 ;; esac\n'
    script.write_text("#!/bin/sh\n" + (head if program == "docker" else "echo broken >&2; exit 1\n") + script_text)
    services = [{"name": "heavy", "unit": "spark-heavy.service", "container": "spark-heavy", "probe": {}}]
    section = run(capsys, services=services, state_dir=str(tmp_path), root=str(tree), ask_services=False)
    assert section["unknown"] == {program: message}


@pytest.mark.parametrize(
    ("printed", "ended", "shut_down"),
    [
        ("1790000000.250000 a systemd-journald[412]: Journal stopped\n", 1790000000.25, True),
        ("1789999999.1 a systemd[1]: Reached target reboot.target - System Reboot.\n1790000000.5 a kernel: x\n", 1790000000.5, True),
        ("1789999999.1 a spark-unit[7]: serving\n1790000000.5 a kernel: x\n", 1790000000.5, False),
    ],
)  # fmt: skip
def test_how_the_last_boot_ended(printed: str, ended: float, shut_down: bool) -> None:
    assert host_health.last_boot(HostView(lambda argv: (0, printed, ""))) == {"ended": ended, "shut_down": shut_down}


@pytest.mark.parametrize(
    "message",
    [
        "Data from the specified boot (-1) is not available: No such boot ID in journal",
        "Specifying boot ID or boot offset has no effect, no persistent journal was found.",
    ],
)
def test_a_journal_without_an_earlier_boot_says_nothing_of_it(message: str) -> None:
    assert host_health.last_boot(HostView(lambda argv: (1, "", message))) == {}


def test_a_container_that_ended_since_it_was_seen_is_an_answer() -> None:
    gone = (1, "", "Error response from daemon: No such container: x")
    assert host_health.read_log(HostView(lambda argv: gone), "x", "x.service", 5) == ""


def test_it_asks_nothing_when_told(engine: Any, tree: Any, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    services = [{"name": "x", "unit": "u.service", "container": "c", "probe": {"url": engine.url, "model": "heavy"}}]
    section = run(capsys, services=services, ask_services=False, root=str(tree))
    assert "answer" not in section["services"]["x"] and engine.requests == []


def test_registries_are_named_and_no_account_is_read(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    assert host_health.registries(config) == []
    config.write_text(
        json.dumps({"auths": {"https://nvcr.io/v2/": {"auth": "c2VjcmV0"}}, "credHelpers": {"ghcr.io": "x"}})
    )
    assert host_health.registries(config) == ["ghcr.io", "nvcr.io"]
    config.write_text("[]")
    assert host_health.registries(config) == []


def test_what_nvidia_smi_says_when_it_finds_nothing() -> None:
    assert host_health.gpu_load(HostView(lambda argv: (6, "No devices were found\n", ""))) == (
        {},
        "No devices were found",
    )
    assert host_health.gpu_load(HostView(lambda argv: (127, "", "no such file"))) == ({}, "")


def test_proxies_of_dockers_client_are_named_without_their_values(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    assert host_health.proxies_of(config) == []
    for text in (
        "{",
        "[]",
        "{}",
        '{"proxies": null}',
        '{"proxies": {"default": {"httpProxy": ""}}}',
        '{"proxies": [1]}',
    ):
        config.write_text(text)
        assert host_health.proxies_of(config) == [], text
    proxies = {
        "default": {"httpProxy": "http://me:secret@proxy:3128", "noProxy": "localhost"},
        "unix:///x": {"allProxy": "socks5://p"},
    }
    config.write_text(json.dumps({"auths": {}, "proxies": proxies}))
    assert host_health.proxies_of(config) == ["ALL_PROXY", "HTTP_PROXY", "NO_PROXY"]


def test_the_account_of_a_unit_has_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units run as dgxspark, which has no home; with service_user they may run as somebody who has."""
    units = {
        "etc/systemd/system/spark-a.service": "[Service]\nUser=me\n",
        "etc/systemd/system/spark-b.service": "[Service]\n",
    }
    homes = {"me": tmp_path / "me", "root": tmp_path / "root"}

    def account(name: str) -> Any:
        if name not in homes:
            raise KeyError(name)
        return type("Account", (), {"pw_dir": str(homes[name])})

    monkeypatch.setattr(machine, "read_text", lambda _root, path: units.get(path))
    monkeypatch.setattr(pwd, "getpwnam", account)
    for home in homes.values():
        (home / ".docker").mkdir(parents=True)
        (home / ".docker/config.json").write_text('{"proxies": {"default": {"httpsProxy": "http://p:1"}}}')
    mine, roots = (str(homes[name] / ".docker/config.json") for name in ("me", "root"))
    assert host_health.docker_proxies(["spark-a.service"]) == {mine: ["HTTPS_PROXY"]}
    assert host_health.docker_proxies(["spark-a.service", "spark-b.service"]) == {
        mine: ["HTTPS_PROXY"],
        roots: ["HTTPS_PROXY"],
    }
    assert host_health.docker_proxies(["spark-gone.service"]) == {}
    units["etc/systemd/system/spark-a.service"] = "[Service]\nUser=nobody-here\n"
    assert host_health.docker_proxies(["spark-a.service"]) == {}


def test_what_the_next_boot_lacks(programs: Path, tree: Any, capsys: Any) -> None:
    tree.write("boot/vmlinuz-6.17.0-1032-nvidia", "kernel")
    tree.write("sys/module/nvidia/version", "580.178.04\n")
    (programs / "dpkg-query").write_text(
        "#!/bin/sh\nprintf 'nvidia-dkms-595 595.84-1 installed\\nlibnvidia-compute-580 580.178.04-1 installed\\nnvidia-utils-595 595.84-1 config-files\\n'\n"
    )
    (programs / "dpkg-query").chmod(0o755)
    (programs / "journalctl").write_text(
        "#!/bin/sh\necho \"host modprobe[7]: ERROR: could not insert 'nvidia': Key was rejected by service\"\n"
    )
    section = run(capsys, services=[], root=str(tree))
    assert section["no_initrd"] == ["6.17.0-1032-nvidia"]
    assert section["driver_packages"] == {"595": ["nvidia-dkms-595"]}
    assert set(section["kernel_log"]) == {"doctor.module_key"}
    tree.write("boot/initrd.img-6.17.0-1032-nvidia", "disk")
    assert run(capsys, services=[], root=str(tree))["no_initrd"] == []
