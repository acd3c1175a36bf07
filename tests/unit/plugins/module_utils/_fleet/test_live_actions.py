# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions of the live page: what each one runs, what is refused, and what the journal says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import live_fixture
import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import live_agent
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_agent import Actions
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import pins
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import FINISHED, SILENT, Answer

SPAN = {"cluster": {"name": "duo", "size": 2, "executor": "mp"}, "rank": 0}


class Host:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.argvs, self.lines = folder, list[list[str]](), list[str]()
        self.active: set[str] = set()
        self.answer: Answer | None = None
        (folder / "services").mkdir()
        for name, exclusive in (("heavy", "big"), ("rival", "big"), ("coder", None)):
            (folder / f"services/{name}.json").write_text(
                json.dumps({"unit": f"spark-{name}.service", "exclusive": exclusive})
            )
        self.gateway = folder / "spark_gateway.py"
        services = [live_fixture.service(name) for name in ("heavy", "rival")]
        services += [live_fixture.service("coder", state="on_demand"), live_fixture.service("giant", **SPAN)]
        self.actions = Actions(
            "s1", services, folder, folder / "run", self.gateway, lambda text, _level: self.lines.append(text)
        )
        monkeypatch.setattr(live_agent.command, "run", self.run)

    def run(self, argv: list[str], *_seconds: float) -> Answer:
        self.argvs.append([word for word in argv[argv[0] != "systemctl" :] if word != "--"])
        if argv[1] == "show":
            names = [word for word in argv if word.endswith(".service")]
            blocks = (
                f"Id={name}\nLoadState=loaded\nActiveState={'active' if name in self.active else 'inactive'}\nSubState=x\n"
                for name in names
            )
            return Answer(FINISHED, 0, "\n".join(blocks))
        return self.answer or Answer(FINISHED, 0)

    def act(self, verb: str, service: str, host: str = "s1") -> str:
        self.argvs.clear()
        return self.actions.act({"verb": verb, "host": host, "service": service, "reader": "192.0.2.9"})

    def changes(self) -> list[str]:
        return [" ".join(argv[1:]) for argv in self.argvs if argv[1] != "show"]

    def pin(self) -> str:
        return pins.read(self.folder / "run" / pins.FOLDER, "coder").word


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_start_and_stop(host: Host) -> None:
    assert host.act("start", "heavy") == "it starts"
    assert host.changes() == ["reset-failed spark-heavy.service", "start --no-block spark-heavy.service"]
    assert host.act("stop", "heavy") == "it stops"
    assert host.changes() == ["stop --no-block spark-heavy.service"]
    assert host.lines == [
        "192.0.2.9 asks on the live page to start heavy",
        "start heavy: it starts",
        "192.0.2.9 asks on the live page to stop heavy",
        "stop heavy: it stops",
    ]


def test_a_gateway_on_the_host_is_drained_before_a_stop(host: Host) -> None:
    host.gateway.write_text("")
    host.act("stop", "heavy")
    assert host.changes() == [
        f"--json drain s1/heavy --timeout {live_agent.DRAIN_SECONDS}",
        "stop --no-block spark-heavy.service",
    ]
    assert "gives it requests" in host.act("admit", "heavy")
    host.answer = Answer(FINISHED, 1, err="the gateway has no backend s1/heavy")
    assert host.act("drain", "heavy") == "the gateway has no such backend"
    host.answer = Answer(FINISHED, 1, err="broken")
    with pytest.raises(ValueError, match="did not drain"):
        host.act("stop", "heavy")
    assert not any("stop" in line for line in host.changes())  # requests still run


def test_pins_of_services_on_demand(host: Host) -> None:
    for verb, word in (("start", "warm"), ("stop", "cold"), ("auto", ""), ("warm", "warm"), ("cold", "cold")):
        host.act(verb, "coder")
        assert host.pin() == word, verb
    assert host.act("stop", "coder") == "it stops" and host.changes() == ["stop --no-block spark-coder.service"]


@pytest.mark.parametrize(
    ("verb", "service", "where", "why"),
    [
        ("restart", "heavy", "s1", "not known"),
        ("stop", "heavy", "s2", "has no service"),
        ("stop", "ssh", "s1", "has no service"),
        ("stop", "--now", "s1", "has no service"),
        ("stop", "giant", "s1", "several hosts"),
        ("warm", "heavy", "s1", "not on demand"),
    ],
)
def test_what_is_refused(host: Host, verb: str, service: str, where: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        host.act(verb, service, where)
    assert host.argvs == []


def test_one_service_of_an_exclusive_set_runs(host: Host) -> None:
    host.active = {"spark-rival.service"}
    with pytest.raises(ValueError, match="exclusive set big"):
        host.act("start", "heavy")
    assert host.changes() == [] and "exclusive set big" in host.lines[-1]


@pytest.mark.parametrize(
    "answer", [Answer(SILENT, 124, why="systemctl did not end"), Answer(FINISHED, 1, err="no such unit")]
)
def test_a_failure_is_said_and_written(host: Host, answer: Any) -> None:
    host.answer = answer
    with pytest.raises(ValueError, match="systemctl stop failed"):
        host.act("stop", "heavy")
    assert "systemctl stop failed" in host.lines[-1]


def test_one_action_at_a_time(host: Host) -> None:
    with host.actions.lock, pytest.raises(ValueError, match="another action"):
        host.act("stop", "heavy")
    assert host.argvs == []
