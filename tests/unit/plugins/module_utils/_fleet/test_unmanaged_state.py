"""unmanaged_state stops a launch of somebody else and restores its former state; the section adoption of spark_info reports it. Docker is played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from module_calls import call_module
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import unmanaged
from ansible_collections.dgxspark.vllm.plugins.modules import service_state, spark_info

GIB = 1024 * 1024


class Docker:
    """One hand-made container."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.box: dict[str, Any] = {
            "Name": "/mine",
            "Id": "a" * 64,
            "Image": "sha256:1",
            "Config": {"Cmd": ["vllm", "serve", "Org/M", "--port", "8001"], "Image": "img:1", "Labels": {}},
            "State": {"Running": True, "Status": "running"},
            "HostConfig": {"RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3}, "NetworkMode": "host"},
        }
        self.calls: list[list[str]] = []
        self.file_state = "enabled"
        self.failing: dict[str, tuple[int, str, str]] = {}
        self.memory(20)

    def memory(self, gib: float) -> None:
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "proc/meminfo").write_text(f"MemAvailable: {int(gib * GIB)} kB\n")

    def running(self, runs: bool) -> None:
        self.box["State"] = {"Running": runs}
        self.memory(20 if runs else 110)

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.calls.append(argv)
        failing = next((answer for start, answer in self.failing.items() if " ".join(argv).startswith(start)), None)
        if failing:
            return failing
        if argv[:2] == ["docker", "ps"]:
            return 0, "a" * 64, ""
        if argv[1:3] == ["container", "inspect"]:
            return 0, json.dumps([self.box]), ""
        if argv[1:3] == ["image", "inspect"]:
            return 0, json.dumps([{"Id": "sha256:1", "Config": {}}]), ""
        if argv[:2] == ["systemctl", "show"]:
            shown = {
                "Id": argv[-1],
                "LoadState": "loaded",
                "ActiveState": "active" if self.box["State"]["Running"] else "inactive",
                "UnitFileState": self.file_state,
                "FragmentPath": "/etc/systemd/system/mine.service",
            }
            return 0, "\n".join(f"{name}={value}" for name, value in shown.items()), ""
        if argv[:2] in (["docker", "stop"], ["systemctl", "stop"]):
            self.running(False)
        if argv[:2] in (["docker", "start"], ["systemctl", "start"]):
            self.running(True)
        return 0, "", ""

    def did(self, *words: str) -> bool:
        return any(argv[: len(words)] == list(words) for argv in self.calls)


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Docker:
    played = Docker(tmp_path)
    play(monkeypatch, played)
    monkeypatch.setattr(unmanaged, "UNITS", tmp_path / "units")
    monkeypatch.setattr(unmanaged, "NOTES", str(tmp_path / "notes"))
    monkeypatch.setattr(unmanaged, "PROC_ROOT", str(tmp_path))
    return played


def program(root: Path, pid: int, command: str, cgroup: str) -> None:
    """Let a program run on the host."""
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")
    (folder / "cgroup").write_text(f"0::{cgroup}\n")


@pytest.fixture
def call(tmp_path: Path, capsys: Any) -> Any:
    def call(state: str, **args: Any) -> dict[str, Any]:
        check = {"_ansible_check_mode": args.pop("_ansible_check_mode", False)}
        settings = {"unmanaged": {"container": "mine", **args}, "state": state, "root": str(tmp_path), "timeout": 0}
        return call_module(service_state, {**settings, "etc": str(tmp_path / "etc"), **check}, capsys)

    return call


def test_a_container_is_stopped_for_good_and_comes_back_as_it_was(docker: Docker, call: Any, tmp_path: Path) -> None:
    result = call("stopped")
    assert (result["changed"], result["freed_gib"]) == (True, 90.0)
    assert docker.did("docker", "update", "--restart=no")
    assert call("stopped")["changed"] is False
    assert call("started")["changed"] is True
    assert docker.did("docker", "update", "--restart=on-failure:3") and docker.did("docker", "start")
    assert list((tmp_path / "notes").iterdir()) == []


def test_a_unit_is_what_stops_and_starts_its_container(docker: Docker, call: Any) -> None:
    call("stopped", unit="mine.service")
    assert docker.did("systemctl", "disable") and docker.did("systemctl", "stop") and not docker.did("docker", "stop")
    call("started", unit="mine.service")
    assert docker.did("systemctl", "enable", "--", "/etc/systemd/system/mine.service")
    assert docker.did("systemctl", "start", "--no-block") and not docker.did("docker", "start")


def test_a_unit_that_did_not_start_at_boot_does_not_afterwards(docker: Docker, call: Any) -> None:
    docker.file_state = "disabled"
    assert call("stopped", unit="mine.service")["changed"] is True
    assert call("started", unit="mine.service")["changed"] is True
    assert docker.did("systemctl", "start") and not docker.did("systemctl", "enable")
    assert not docker.did("systemctl", "disable")


SERVE = "/opt/vllm/bin/python3 /opt/vllm/bin/vllm serve Org/M --port 8001 --api-key sk-secret"


def test_a_unit_without_a_container_is_stopped_and_comes_back(
    docker: Docker, call: Any, tmp_path: Path, capsys: Any
) -> None:
    program(tmp_path, 71, SERVE, "/system.slice/mine.service")
    result = call("stopped", container="", unit="mine.service", service="fast", url="http://127.0.0.1:8001")
    assert (result["changed"], result["freed_gib"]) == (True, 90.0)
    with patch_module_args({"gather": ["adoption"], "root": str(tmp_path)}), pytest.raises(SystemExit):
        spark_info.main()
    (stopped,) = json.loads(capsys.readouterr().out)["adoption"]["taken"]
    assert (stopped["name"], stopped["service"], stopped["there"]) == ("mine.service", "fast", True)
    assert stopped["url"] == "http://127.0.0.1:8001"
    assert call("started", container="", unit="mine.service")["changed"] is True
    assert docker.did("systemctl", "start", "--no-block", "--", "mine.service")
    assert not docker.did("docker", "stop") and not docker.did("docker", "start")


def test_a_unit_that_is_no_server_of_vllm_is_never_touched(docker: Docker, call: Any, tmp_path: Path) -> None:
    program(tmp_path, 71, "/usr/bin/postgres -D /data", "/system.slice/mine.service")
    program(tmp_path, 72, SERVE, "/system.slice/other.service")
    assert "left alone" in call("stopped", container="", unit="mine.service")["msg"]
    assert not docker.did("systemctl", "stop")


NO_BUS = (1, "", "Failed to connect to bus: Connection refused")


def test_a_unit_of_which_systemd_does_not_say_whether_it_starts_at_boot_is_not_stopped(
    docker: Docker, call: Any, tmp_path: Path
) -> None:
    program(tmp_path, 71, SERVE, "/system.slice/mine.service")
    docker.file_state = ""
    assert "does not say whether it starts at boot" in call("stopped", container="", unit="mine.service")["msg"]
    assert not docker.did("systemctl", "stop") and not (tmp_path / "notes").exists()


def test_a_unit_of_which_systemd_does_not_say_is_neither_stopped_nor_called_so(
    docker: Docker, call: Any, tmp_path: Path
) -> None:
    program(tmp_path, 71, SERVE, "/system.slice/mine.service")
    docker.failing["systemctl show"] = NO_BUS
    result = call("stopped", container="", unit="mine.service")
    assert result["failed"] and "Failed to connect to bus" in result["msg"]
    assert not docker.did("systemctl", "stop") and not (tmp_path / "notes").exists()


def test_memory_is_not_called_free_because_nvidia_smi_fails(docker: Docker, call: Any, tmp_path: Path) -> None:
    docker.failing["nvidia-smi"] = (15, "", "Unable to determine the device handle: GPU is lost")
    result = call("stopped")
    assert result["failed"] and "GPU is lost" in result["msg"]
    assert not docker.did("docker", "stop")


def test_nor_is_a_unit_of_this_collection(docker: Docker, call: Any, tmp_path: Path) -> None:
    (tmp_path / "etc/services").mkdir(parents=True)
    (tmp_path / "etc/services/fast.json").write_text("{}")
    program(tmp_path, 71, SERVE, "/system.slice/spark-fast.service")
    assert "left alone" in call("stopped", container="", unit="spark-fast.service")["msg"]
    assert not docker.did("systemctl", "stop")


def test_nothing_named_is_refused(docker: Docker, call: Any) -> None:
    assert "name the container" in call("stopped", container="")["msg"]


def test_what_runs_and_was_not_stopped_is_left_as_it_is(docker: Docker, call: Any) -> None:
    assert call("started")["changed"] is False
    assert not docker.did("docker", "start") and not docker.did("docker", "update")


@pytest.mark.parametrize(
    "config", [{"Cmd": ["postgres"]}, {"Cmd": ["vllm", "serve", "x"], "Labels": {"dgxspark.managed": "true"}}]
)
def test_what_is_not_recognised_is_never_touched(docker: Docker, call: Any, config: dict[str, Any]) -> None:
    docker.box["Config"] = config
    assert call("stopped")["failed"] is True
    assert not docker.did("docker", "stop") and not docker.did("docker", "update")


def test_what_was_not_noted_is_not_brought_back(docker: Docker, call: Any) -> None:
    docker.running(False)
    assert "is not recorded" in call("started")["msg"]


def test_check_mode_touches_nothing(docker: Docker, call: Any, tmp_path: Path) -> None:
    assert call("stopped", _ansible_check_mode=True)["changed"] is True
    assert not docker.did("docker", "stop") and not (tmp_path / "notes").exists()


def test_adoption_names_the_launch_and_the_unit(docker: Docker, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "units").mkdir()
    (tmp_path / "units/mine.service").write_text("[Service]\nExecStart=/usr/bin/docker start -a mine\n")
    with patch_module_args({"gather": ["adoption"], "root": str(tmp_path)}), pytest.raises(SystemExit):
        spark_info.main()
    result = json.loads(capsys.readouterr().out)["adoption"]
    (launch,) = result["launches"]
    assert (launch["name"], launch["container"], launch["unit"]) == ("mine", "mine", "mine.service")
    assert result["available_gib"] == 20.0 and result["taken"] == []
    assert launch["argv"][-4:] == ["serve", "Org/M", "--port", "8001"]


def test_adoption_finds_servers_in_no_container_once_a_unit(docker: Docker, tmp_path: Path, capsys: Any) -> None:
    program(tmp_path, 71, SERVE, "/system.slice/mine.service")
    program(tmp_path, 72, SERVE, "/system.slice/mine.service")  # forked
    program(tmp_path, 73, "docker run --rm img vllm serve Org/M", "/system.slice/run.service")
    program(tmp_path, 74, SERVE, f"/system.slice/docker-{'a' * 64}.scope")
    program(tmp_path, 75, "vllm serve Org/N", "/user.slice/user-1000.slice/session-2.scope")
    with patch_module_args({"gather": ["adoption"], "root": str(tmp_path)}), pytest.raises(SystemExit):
        spark_info.main()
    text = capsys.readouterr().out
    launches_by_name = {launch["name"]: launch for launch in json.loads(text)["adoption"]["launches"]}
    assert sorted(launches_by_name) == ["mine", "mine.service", "process 75"]
    assert (
        launches_by_name["mine.service"]["unit"] == "mine.service" and launches_by_name["mine.service"]["alone"] == ""
    )
    assert "no unit runs it" in launches_by_name["process 75"]["alone"]
    assert "sk-secret" not in text
