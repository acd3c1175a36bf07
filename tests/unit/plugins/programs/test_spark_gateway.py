# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gateway's helper: the next run admits drained backends that answer and that no other program holds."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[4] / "roles/gateway/files/spark_gateway.py"
SPEC = importlib.util.spec_from_file_location("spark_gateway", SCRIPT)
assert SPEC and SPEC.loader
helper = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(helper)
HEAVY, VOICE = "spark-1/heavy", "spark-1/voice"


class Gateway:
    """The files of a gateway that serves an engine, which asks for a key, and a speech server that is gone."""

    def __init__(self, folder: Path, engine: Any, closed_port: int) -> None:
        self.folder, self.engine = folder, engine
        self.settings: dict[str, Any] = {
            "names": ["heavy"],
            "keys": [],
            "backend_keys": {"BACKEND_0": "backend-0"},
            "health_timeout": 20,
            "backends": {
                HEAVY: {
                    "url": engine.url,
                    "kind": "vllm",
                    "model": "heavy",
                    "check": "completion",
                    "key": "BACKEND_0",
                },
                VOICE: {
                    "url": f"http://127.0.0.1:{closed_port}",
                    "kind": "asr",
                    "model": "voice",
                    "check": "/health",
                    "key": "",
                },
            },
        }
        for name in ("config", "secrets", "run"):
            (folder / name).mkdir()
        (folder / "secrets/backend-0").write_text("sk-1\n")
        self.write()
        # The gateway itself answers with its names like an engine.
        engine.set(key="sk-1", models=["heavy"])

    def write(self) -> None:
        (self.folder / "config/gateway.json").write_text(json.dumps(self.settings))

    def __call__(self, *words: str, code: int = 0) -> Any:
        folders = [f"--{name}={self.folder / name}" for name in ("config", "secrets", "run")]
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *folders, "--json", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout.splitlines()[-1]) if code == 0 else done.stderr

    def settle(self) -> Any:
        self.engine.set(key=None)  # this gateway has no keys
        try:
            return self("ready", self.engine.url, "--admit")
        finally:
            self.engine.set(key="sk-1")

    def drained(self) -> list[str]:
        path = self.folder / "run/drained.json"
        return list(json.loads(path.read_text())["drained"]) if path.exists() else []


@pytest.fixture
def gateway(tmp_path: Path, engine: Any, closed_port: int) -> Gateway:
    return Gateway(tmp_path, engine, closed_port)


def test_what_answers_is_admitted_and_what_does_not_is_named(gateway: Gateway) -> None:
    gateway("drain", HEAVY)
    gateway("drain", VOICE)
    settled = gateway.settle()
    assert settled["changed"] is True and settled["admitted"] == [HEAVY]
    assert list(settled["left"]) == [VOICE] and settled["left"][VOICE].startswith("it does not answer: ")
    assert gateway.drained() == [VOICE]
    (path, body) = gateway.engine.requests[-1]
    assert path == "/v1/chat/completions" and body["max_tokens"] == 1
    second = gateway.settle()
    assert second["changed"] is False and second["admitted"] == []


def test_the_last_backend_of_a_name_is_spared(gateway: Gateway) -> None:
    gateway.settings["routes"] = {"both": sorted([HEAVY, VOICE]), "heavy": [HEAVY]}
    gateway.write()
    assert "is the last backend of heavy, so it is not drained" in gateway("drain", HEAVY, "--spare-last", code=1)
    gateway.settings["routes"] = {"both": sorted([HEAVY, VOICE])}
    gateway.write()
    assert gateway("drain", VOICE, "--spare-last")["changed"]
    assert "is the last backend of both" in gateway("drain", HEAVY, "--spare-last", code=1)
    assert gateway.drained() == [VOICE]


def test_nothing_drained_asks_nobody(gateway: Gateway) -> None:
    assert gateway.settle()["changed"] is False
    assert gateway.engine.requests == []


def test_an_engine_that_fails_stays_drained(gateway: Gateway) -> None:
    gateway("drain", HEAVY)
    gateway.engine.reasoning = lambda handler, _body: gateway.engine.answer(
        handler, 500, {"error": {"message": "dead"}}
    )
    settled = gateway.settle()
    assert settled["left"] == {HEAVY: "it does not answer: HTTP 500"} and gateway.drained() == [HEAVY]


def test_the_key_of_the_backend_is_used(gateway: Gateway) -> None:
    gateway("drain", HEAVY)
    gateway.settings["names"] = []  # so that the gateway needs no list, and the engine may insist on its key
    gateway.write()
    (gateway.folder / "secrets/backend-0").write_text("another\n")
    gateway.settings["keys"] = [{"name": "master", "role": "master", "file": "master"}]
    (gateway.folder / "secrets/master").write_text("sk-1\n")
    gateway.write()
    assert gateway("ready", gateway.engine.url, "--admit")["left"] == {HEAVY: "it does not answer: HTTP 401"}
    (gateway.folder / "secrets/backend-0").write_text("sk-1\n")
    assert gateway("ready", gateway.engine.url, "--admit")["admitted"] == [HEAVY]


def test_what_a_person_holds_is_left_alone(gateway: Gateway) -> None:
    gateway("drain", HEAVY, "--hold")
    settled = gateway.settle()
    assert settled["admitted"] == [] and settled["left"] == {HEAVY: "it is held: admit it by hand"}
    assert gateway("status")["backends"][HEAVY]["held"] is True
    gateway("drain", HEAVY)  # by a run: the person's word stays
    assert gateway.settle()["admitted"] == []
    assert gateway("admit", HEAVY)["changed"] is True
    gateway("drain", HEAVY)
    assert gateway.settle()["admitted"] == [HEAVY], "what was admitted is no longer held"


def test_what_another_run_drains_at_the_moment_is_left_alone(gateway: Gateway) -> None:
    gateway("drain", HEAVY)
    name = f"draining-{hashlib.sha256(HEAVY.encode()).hexdigest()[:16]}"
    with (gateway.folder / "run" / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert gateway.settle()["left"] == {HEAVY: "it is being drained"}
    assert gateway.settle()["admitted"] == [HEAVY]


def test_a_backend_that_the_gateway_no_longer_has_is_forgotten(gateway: Gateway) -> None:
    gateway("drain", VOICE)
    del gateway.settings["backends"][VOICE]
    gateway.write()
    assert gateway.settle()["admitted"] == [VOICE] and gateway.drained() == []


def test_the_unit_admits_nobody(gateway: Gateway) -> None:
    gateway("drain", HEAVY)
    gateway.engine.set(key=None)
    assert "admitted" not in gateway("ready", gateway.engine.url)
    assert gateway.drained() == [HEAVY]


# --- state files of the gateway's processes are untrusted


def made(tmp_path: Path) -> Any:
    run = tmp_path / "run"
    (run / "state").mkdir(parents=True)
    return helper.Gateway(tmp_path / "etc", run, tmp_path / "secrets", tmp_path / "code")


GOOD_CHILD = {"pid": 5, "leaving": False, "drained": [], "running": {"a/b": 1}, "queued": 0, "unhealthy": {"a/b": "x"}}
GOOD_KEEPER = {"generation": 1, "fingerprint": "a", "pid": 5, "starting": 0, "last": 1, "code": "b", "error": ""}


def test_states_as_the_gateway_writes_them_are_taken(tmp_path: Path) -> None:
    gateway = made(tmp_path)
    (gateway.run / "state/child-5.json").write_text(json.dumps(GOOD_CHILD))
    (gateway.run / "state/supervisor.json").write_text(json.dumps({**GOOD_KEEPER, "leaving": []}))
    assert gateway.runs() and gateway.running("a/b") == 1


@pytest.mark.parametrize("name", ["state/child-5.json", "state/supervisor.json", "drained.json"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "huge", "list", "text", "deep"])
def test_a_state_that_is_no_state_is_said_at_once(tmp_path: Path, name: str, kind: str) -> None:
    gateway = made(tmp_path)
    path = gateway.run / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text({"huge": "[" + "1," * 10**6 + "1]", "list": "[1]", "text": '"x"', "deep": "[" * 10**5}[kind])
    if kind == "deep":  # unreadable JSON counts as a file that is being replaced
        assert gateway.running("a") == 0
        return
    with pytest.raises(helper.GatewayError, match="Start the gateway anew"):
        {
            "drained.json": gateway.drained,
            "state/supervisor.json": gateway.supervisor,
            "state/child-5.json": gateway.children,
        }[name]()


@pytest.mark.parametrize(
    ("key", "value"),
    [("pid", "5"), ("pid", -1), ("pid", 10**400), ("drained", "x"), ("drained", [1]), ("running", {"a/b": "1"}), ("running", []),
     ("queued", None), ("unhealthy", {"a": 1}), ("leaving", 1)],
)  # fmt: skip
def test_a_state_of_another_shape_is_said_with_its_key(tmp_path: Path, key: str, value: Any) -> None:
    gateway = made(tmp_path)
    path = gateway.run / "state/child-5.json"
    path.write_text(json.dumps({**GOOD_CHILD, key: value}))
    with pytest.raises(helper.GatewayError, match=rf"is not what the gateway writes: .*it\.{key}\b"):
        gateway.children()
    path.write_text(json.dumps({name: value for name, value in GOOD_CHILD.items() if name != key}))
    with pytest.raises(helper.GatewayError, match=f"is not what the gateway writes: it lacks '{key}'"):
        gateway.children()


def test_what_the_gateway_says_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    backend = {"running": 1, "drained_since": "", "held": False, "wrong": "\x1b[2Jgone\n", "url": "http://127.0.0.1:1"}
    helper.show(
        {
            "supervisor": {**GOOD_KEEPER, "error": "\x1b]0;x\x07"},
            "runs": True,
            "stale": "",
            "queued": 0,
            "backends": {"a/b": backend},
        }
    )
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x07" not in shown and "\\x1b[2Jgone\\n" in shown


@pytest.fixture
def caller(gateway: Gateway) -> Gateway:
    """A gateway with an alias that promises tools; it asks for no key, and the engine behind it plays both."""
    gateway.settings["tools"] = ["heavy"]
    gateway.write()
    gateway.engine.set(key=None)
    return gateway


def test_an_alias_calls_a_tool_through_the_gateway_once_a_configuration(caller: Gateway) -> None:
    result = caller("ready", caller.engine.url, "--timeout", "20", "--admit")
    assert result["tools"] == ["heavy"] and result["tools_unknown"] == {}
    bodies = [body for path, body in caller.engine.requests if body.get("tools")]
    assert len(bodies) == 1 and bodies[0]["model"] == "heavy" and bodies[0]["tool_choice"] == "auto"
    assert caller("ready", caller.engine.url, "--timeout", "20", "--admit")["tools"] == ["heavy"]
    assert len([body for _path, body in caller.engine.requests if body.get("tools")]) == 1
    caller.settings["names"] = ["heavy", "heavy"]
    caller.write()
    caller("ready", caller.engine.url, "--timeout", "20", "--admit")
    assert len([body for _path, body in caller.engine.requests if body.get("tools")]) == 2


@pytest.mark.parametrize("answer", ["text", "refused"])
def test_an_alias_that_answers_without_the_tool_is_named(caller: Gateway, answer: str) -> None:
    caller.engine.set(tools=answer)
    error = caller("ready", caller.engine.url, "--timeout", "20", "--admit", code=1)
    assert "the alias heavy does not call tools" in error


def test_an_answer_that_was_cut_off_says_nothing_of_tools(caller: Gateway) -> None:
    caller.engine.set(thinks=10**6)
    result = caller("ready", caller.engine.url, "--timeout", "20", "--admit")
    assert result["tools"] == [] and list(result["tools_unknown"]) == ["heavy"]


def test_without_a_promise_nobody_is_asked(caller: Gateway) -> None:
    caller.settings["tools"] = []
    caller.write()
    assert caller("ready", caller.engine.url, "--timeout", "20", "--admit")["tools"] == []
    assert [body for _path, body in caller.engine.requests if body.get("tools")] == []
