"""Stopping what somebody else started, and bringing it back as it was; and adopt_info, which names it. Docker is played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

from ansible_collections.dgxspark.vllm.plugins.modules import adopt_info, foreign_state

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
        self.memory(20)

    def memory(self, gib: float) -> None:
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "proc/meminfo").write_text(f"MemAvailable: {int(gib * GIB)} kB\n")

    def running(self, runs: bool) -> None:
        self.box["State"] = {"Running": runs}
        self.memory(20 if runs else 110)

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.calls.append(argv)
        if argv[:2] == ["docker", "ps"]:
            return 0, "a" * 64, ""
        if argv[1:3] == ["container", "inspect"]:
            return 0, json.dumps([self.box]), ""
        if argv[1:3] == ["image", "inspect"]:
            return 0, json.dumps([{"Id": "sha256:1", "Config": {}}]), ""
        if argv[:2] in (["docker", "stop"], ["systemctl", "disable"]):
            self.running(False)
        if argv[:2] in (["docker", "start"], ["systemctl", "enable"]):
            self.running(True)
        return 0, "", ""

    def did(self, *words: str) -> bool:
        return any(argv[: len(words)] == list(words) for argv in self.calls)


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Docker:
    played = Docker(tmp_path)
    monkeypatch.setattr(AnsibleModule, "run_command", lambda module, argv, **options: played(argv))
    monkeypatch.setattr(foreign_state, "NOTES", tmp_path / "notes")
    monkeypatch.setattr(adopt_info, "UNITS", tmp_path / "units")
    return played


@pytest.fixture
def call(tmp_path: Path, capsys: Any) -> Any:
    def call(state: str, **args: Any) -> dict[str, Any]:
        settings = {"container": "mine", "state": state, "root": str(tmp_path), "timeout": 0, **args}
        with patch_module_args(settings), pytest.raises(SystemExit):
            foreign_state.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

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
    assert docker.did("systemctl", "disable", "--now") and not docker.did("docker", "stop")
    call("started", unit="mine.service")
    assert docker.did("systemctl", "enable", "--now") and not docker.did("docker", "start")


@pytest.mark.parametrize(
    "config", [{"Cmd": ["postgres"]}, {"Cmd": ["vllm", "serve", "x"], "Labels": {"dgxspark.managed": "true"}}]
)
def test_what_is_not_recognised_is_never_touched(docker: Docker, call: Any, config: dict[str, Any]) -> None:
    docker.box["Config"] = config
    assert call("stopped")["failed"] is True
    assert not docker.did("docker", "stop") and not docker.did("docker", "update")


def test_what_was_not_noted_is_not_brought_back(docker: Docker, call: Any) -> None:
    docker.running(False)
    assert "is not noted" in call("started")["msg"]


def test_check_mode_touches_nothing(docker: Docker, call: Any, tmp_path: Path) -> None:
    assert call("stopped", _ansible_check_mode=True)["changed"] is True
    assert not docker.did("docker", "stop") and not (tmp_path / "notes").exists()


def test_adopt_info_names_the_launch_and_the_unit(docker: Docker, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "units").mkdir()
    (tmp_path / "units/mine.service").write_text("[Service]\nExecStart=/usr/bin/docker start -a mine\n")
    with patch_module_args({"root": str(tmp_path)}), pytest.raises(SystemExit):
        adopt_info.main()
    result = json.loads(capsys.readouterr().out)
    (launch,) = result["launches"]
    assert (launch["container"], launch["unit"], result["available_gib"]) == ("mine", "mine.service", 20.0)
    assert launch["argv"][-4:] == ["serve", "Org/M", "--port", "8001"]
