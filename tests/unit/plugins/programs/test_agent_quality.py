# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The quality loop of the agent against a real HTTP server whose answers change, and a helper of a gateway that notes its calls."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._agent import questions as loop
from ansible_collections.dgxspark.vllm.plugins.module_utils._agent import services
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import quality_account
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import quality, wedge

KEY = "sk-not-to-be-seen-789"
STORY = " ".join(f"word{number}" for number in range(300))
HELPER = """import json, pathlib, sys
home = pathlib.Path({home!r})
with (home / "calls").open("a") as stream:
    stream.write(json.dumps(sys.argv[1:]) + "\\n")
answer = (home / "refusal").read_text() if (home / "refusal").exists() else ""
if answer:
    sys.exit(answer)
drained = home / "run/gateway/drained.json"
if (home / "late").exists():  # drained, and then an error
    drained.parent.mkdir(parents=True, exist_ok=True)
    drained.write_text(json.dumps({{"drained": [sys.argv[2]]}}))
    sys.exit("drained, but process 7 of the gateway does not notice")
drained.parent.mkdir(parents=True, exist_ok=True)
drained.write_text(json.dumps({{"drained": [sys.argv[2]] if sys.argv[1] == "drain" else []}}))
print(json.dumps({{"changed": True}}))
"""


class Engine:
    """A server that answers questions well, until C(mode) says otherwise."""

    def __init__(self) -> None:
        self.mode, self.running, self.waiting = "good", 0, 0
        self.bodies: list[dict[str, Any]] = []
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def send(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def do_GET(self) -> None:
                names = {"running": engine.running, "waiting": engine.waiting}
                lines = [f"vllm:num_requests_{name} {value}" for name, value in names.items()]
                self.send(200, "\n".join([*lines, "vllm:generation_tokens_total 5", f"# {KEY}", ""]))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.headers["Authorization"] == f"Bearer {KEY}"
                engine.bodies.append(body)
                self.send(*engine.answer(body))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def answer(self, body: dict[str, Any]) -> tuple[int, str]:
        """Return status and body. The content of a bad answer has the API key, as a careless server would."""
        if self.mode == "mistral" and "chat_template_kwargs" in body:
            return 400, json.dumps({"error": {"message": "chat_template is not supported for Mistral tokenizers."}})
        if self.mode == "nan":
            return 500, json.dumps({"error": {"message": "Out of range float values are not JSON compliant: nan"}})
        if self.mode == "no chat":
            return 404, json.dumps({"error": {"message": "The model does not support Chat Completions API"}})
        if self.mode == "fails":
            return 500, json.dumps({"error": {"message": "EngineCore encountered an issue"}})
        message: dict[str, Any] = {"role": "assistant", "content": STORY}
        code = re.search(r"code of the vault is (\S+)\.", body["messages"][0]["content"])
        if self.mode == "loops":
            message["content"] = f"{KEY} " + "and so on and on " * 90
        elif code:
            message["content"] = code[1]
        elif body.get("tools"):
            function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
            message = {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
        return 200, json.dumps(
            {"choices": [{"message": message, "finish_reason": "stop" if message["content"] else "tool_calls"}]}
        )


class Host:
    def __init__(self, tmp: Path, url: str) -> None:
        self.home = tmp
        (tmp / "gateway.py").write_text(HELPER.format(home=str(tmp)))
        (tmp / "key").write_text(KEY)
        (tmp / "state/guard").mkdir(parents=True)
        engines = {
            "heavy": {
                "tools": True,
                "temperature": 0.6,
                "length": 8192,
                "backend": "spark-1/heavy",
                "cures": ["SPKK04: x."],
            }
        }
        self.content: dict[str, Any] = {"quality": True, "quality_minutes": 10, "quality_share": 50, "engines": engines}
        self.service = services.Service("heavy", "spark-heavy.service", (), url, "org/heavy", str(tmp / "key"))
        self.start()

    def start(self) -> None:
        """Start a new process of the agent."""
        tracker = SimpleNamespace(state=wedge.IDLE, invocation="i1")
        self.watchdog = SimpleNamespace(
            content=self.content,
            services={"heavy": self.service},
            trackers={"heavy": tracker},
            state_dir=self.home / "state/watchdog",
            run_dir=self.home / "run",
            etc=self.home / "etc",
            keep=5,
            host_starts=False,
        )
        self.loop = loop.QualityLoop(self.watchdog, self.home / "gateway.py")  # type: ignore[arg-type]

    def look(self, count: int = 1) -> None:
        for _ in range(count):
            for tracker in self.loop.trackers.values():
                tracker.due = -1e6
            self.loop.round()

    @property
    def saved(self) -> dict[str, Any]:
        return json.loads((self.home / "state/watchdog/quality.json").read_text())["services"]

    @property
    def calls(self) -> list[list[str]]:
        path = self.home / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.server.shutdown()
    engine.server.server_close()


@pytest.fixture
def host(tmp_path: Path, engine: Engine) -> Host:
    return Host(tmp_path, engine.url)


def test_each_kind_is_asked_in_turn_at_the_temperature_of_the_recipe(host: Host, engine: Engine) -> None:
    host.look(6)
    note = host.saved["heavy"]
    assert note["state"] == "good" and host.calls == []
    assert note["counts"] == {f"{kind} good": 2 for kind in quality.QUESTIONS}
    assert {body["temperature"] for body in engine.bodies} == {0.6}
    assert all(body["logprobs"] and body["model"] == "org/heavy" for body in engine.bodies)
    prompts = [body["messages"][0]["content"] for body in engine.bodies if not body.get("tools")]
    # Half of the context of 8192 tokens at most, 3 characters and more each.
    assert len(set(prompts)) == 4 and 8_000 < max(map(len, prompts)) < 16_400
    assert quality_account.account({"services": host.saved}) == {}


def test_degenerate_answers_are_drained_with_evidence_and_admitted_again(host: Host, engine: Engine) -> None:
    host.look(9)
    engine.mode = "loops"
    host.look(2)
    assert host.saved["heavy"]["state"] == "doubtful" and host.calls == [] and host.loop.status() == "heavy doubtful"
    host.look(1)
    assert host.calls == [["drain", "spark-1/heavy", "--spare-last", "--timeout", "5"]]
    note = quality_account.account({"services": host.saved})["heavy"]
    assert note["state"] == "degenerate" and note["drained"] and "a loop" in note["text"]
    assert quality_account.fix(note, "spark-heavy.service").startswith(
        "SPKK04: x. systemctl restart spark-heavy.service"
    )
    folder = Path(note["evidence"])
    assert sorted(path.name for path in folder.iterdir()) == [
        "meminfo.txt",
        "metrics.txt",
        "nvidia_smi.txt",
        "why.json",
    ]
    why = json.loads((folder / "why.json").read_text())
    assert (
        len(why["answers"]) == 3
        and "and so on" in why["answers"][0]["answer"]
        and why["known_failures"] == ["SPKK04: x."]
    )
    assert not [
        path for path in host.home.rglob("*") if path.is_file() and path.name != "key" and KEY in path.read_text()
    ]
    host.look(3)
    assert len(host.calls) == 1 and len(list(folder.parent.iterdir())) == 1  # once
    engine.mode = "good"
    host.look(1)
    assert len(host.calls) == 1
    host.look(1)
    assert host.calls[-1] == ["admit", "spark-1/heavy"] and host.saved["heavy"]["state"] == "good"
    assert "drained" not in host.saved["heavy"] and "answers" not in host.saved["heavy"]


def test_the_last_backend_serves_on_and_only_the_alarm_fires(host: Host, engine: Engine) -> None:
    engine.mode = "loops"
    (host.home / "refusal").write_text(
        "spark_gateway: spark-1/heavy is the last backend of heavy, so it is not drained."
    )
    host.look(5)
    assert (
        len(host.calls) == 3 and host.saved["heavy"]["state"] == "degenerate" and "drained" not in host.saved["heavy"]
    )
    engine.mode = "good"
    host.look(3)
    assert all(call[0] == "drain" for call in host.calls)


def test_a_backend_that_somebody_else_drained_is_left_to_them(host: Host, engine: Engine) -> None:
    (host.home / "run/gateway").mkdir(parents=True)
    (host.home / "run/gateway/drained.json").write_text('{"drained": ["spark-1/heavy"]}')
    engine.mode = "loops"
    host.look(4)
    engine.mode = "good"
    host.look(3)
    assert host.calls == [] and host.saved["heavy"]["state"] == "good"


def test_the_state_outlives_the_process_and_a_switch_admits(host: Host, engine: Engine) -> None:
    engine.mode = "loops"
    host.look(3)
    host.start()
    host.loop.round()
    assert host.saved["heavy"]["state"] == "degenerate" and len(engine.bodies) == 3  # not due
    host.content["quality"] = False
    host.start()
    host.loop.round()
    assert host.calls[-1] == ["admit", "spark-1/heavy"] and host.saved == {}


def test_a_backend_that_was_drained_with_an_error_is_admitted_again(host: Host, engine: Engine) -> None:
    (host.home / "late").touch()
    engine.mode = "loops"
    host.look(3)
    assert host.saved["heavy"]["drained"] == "spark-1/heavy"
    (host.home / "late").unlink()
    engine.mode = "good"
    host.look(3)
    assert host.calls[-1] == ["admit", "spark-1/heavy"] and "drained" not in host.saved["heavy"]


def test_a_switch_admits_even_if_the_gateway_answers_later(host: Host, engine: Engine) -> None:
    engine.mode = "loops"
    host.look(3)
    host.content["quality"] = False
    refusal = host.home / "refusal"
    refusal.write_text("no answer")
    host.loop.round()
    assert host.saved["heavy"] == {"state": "unknown", "counts": {}, "drained": "spark-1/heavy"}
    refusal.unlink()
    host.start()
    host.loop.round()
    assert host.calls[-1] == ["admit", "spark-1/heavy"] and host.saved == {}
    host.loop.round()
    assert len(host.calls) == 3


def test_a_backend_that_a_person_holds_stays_drained(host: Host, engine: Engine) -> None:
    engine.mode = "loops"
    host.look(3)
    (host.home / "run/gateway/drained.json").write_text('{"drained": ["spark-1/heavy"], "held": ["spark-1/heavy"]}')
    engine.mode = "good"
    host.look(3)
    assert [call[0] for call in host.calls] == ["drain"] and "drained" not in host.saved["heavy"]


@pytest.mark.parametrize("restarts", [True, False])
def test_another_model_is_admitted_after_good_answers(host: Host, engine: Engine, restarts: bool) -> None:
    engine.mode = "loops"
    host.look(3)
    service = services.Service("heavy", "spark-heavy.service", (), engine.url, "org/other", str(host.home / "key"))
    host.service = host.watchdog.services["heavy"] = service
    engine.mode = "good"
    if restarts:
        host.start()
    host.look(1)
    note = host.saved["heavy"]
    assert (note["state"], note["model"], "drained" in note) == ("good", "org/other", False)
    assert host.calls[-1] == ["admit", "spark-1/heavy"]


def test_another_model_begins_anew(host: Host, engine: Engine) -> None:
    engine.mode = "loops"
    host.look(3)
    host.service = services.Service("heavy", "spark-heavy.service", (), engine.url, "org/other", str(host.home / "key"))
    engine.mode = "good"
    host.start()
    host.look(1)
    assert host.saved["heavy"]["state"] == "good" and host.saved["heavy"]["model"] == "org/other"


@pytest.mark.parametrize(
    "change",
    [
        lambda host, engine: setattr(host.watchdog.trackers["heavy"], "state", wedge.STARTING),
        lambda host, engine: setattr(host.watchdog.trackers["heavy"], "state", wedge.STOPPED),
        lambda host, engine: host.watchdog.trackers.clear(),
        lambda host, engine: setattr(host.watchdog, "host_starts", True),
        lambda host, engine: (host.home / "state/guard/state.json").write_text('{"level": "short"}'),
        lambda host, engine: setattr(engine, "running", 1),
        lambda host, engine: setattr(engine, "waiting", 1),
        lambda host, engine: host.content.update(services={"heavy": {"quality": False}}),
    ],
)
def test_nobody_is_asked_who_does_not_serve_is_busy_or_short_of_memory(host: Host, engine: Engine, change: Any) -> None:
    change(host, engine)
    host.loop.round()
    assert engine.bodies == []


def test_a_busy_server_is_asked_in_the_end(host: Host, engine: Engine) -> None:
    engine.running = 3
    host.loop.round()
    host.look(1)  # due for days
    assert len(engine.bodies) == 1


def test_log_probabilities_that_no_json_can_have_are_degenerate(host: Host, engine: Engine) -> None:
    engine.mode = "nan"
    host.look(3)
    assert host.saved["heavy"]["state"] == "degenerate" and "NaN" in host.saved["heavy"]["text"]


@pytest.mark.parametrize("mode", ["fails", "no chat"])
def test_errors_are_no_verdict(host: Host, engine: Engine, mode: str) -> None:
    engine.mode = mode
    host.look(4)
    assert host.saved["heavy"]["state"] == "unknown"
    assert len(engine.bodies) == (1 if mode == "no chat" else 4)


def test_a_server_that_refuses_switches_is_asked_without_them(host: Host, engine: Engine) -> None:
    engine.mode = "mistral"
    host.look(3)
    assert [("logprobs" in body) for body in engine.bodies] == [True, False, False, False]
    assert host.saved["heavy"]["state"] == "good"


def test_a_missing_key_is_no_verdict(host: Host, engine: Engine) -> None:
    (host.home / "key").unlink()
    host.look(3)
    assert engine.bodies == [] and host.saved["heavy"]["state"] == "unknown"


@pytest.mark.parametrize("text", ["", "[]", '{"services": 3}', '{"services": {"heavy": 7}}'])
def test_a_damaged_state_file_is_replaced(host: Host, engine: Engine, text: str) -> None:
    path = host.home / "state/watchdog/quality.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    host.start()
    host.look(1)
    assert host.saved["heavy"]["state"] == "good"


@pytest.mark.parametrize(
    "state",
    [None, {}, {"services": []}, {"services": {"a": 3, "b": {}, "c": {"state": ["degenerate"]}}}],
)
def test_an_account_of_anything_is_one(state: Any) -> None:
    assert quality_account.account(state) == {}
    odd = {"services": {"a": {"state": "degenerate", "text": 3, "cures": "x", "evidence": None}}}
    assert quality_account.account(odd)["a"]["cures"] == []
