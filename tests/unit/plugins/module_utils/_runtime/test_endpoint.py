from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import answer_checks, endpoint, engine_client

KEY = "sk-not-to-be-seen-123"


ASKED = {field.name for field in dataclasses.fields(endpoint.Requests)} - {"timeout"}


def wait(engine: Any, model: str | None = "heavy", **options: Any) -> dict[str, Any]:
    settings = {"timeout": 120.0, "interval": 0.05, **options}
    requests = {"timeout": settings.pop("request_timeout", 60.0), "completion_timeout": 60.0}
    requests |= {name: settings.pop(name) for name in ASKED if name in settings}
    return endpoint.wait_ready(engine.url, model, endpoint.Requests(**requests), **settings)


def hour_after(engine: Any, requests: int) -> Callable[[], float]:
    """A clock that jumps an hour ahead after a number of requests, so that the deadline does not depend on the speed of this machine."""
    return lambda: time.monotonic() + 3600 * (len(engine.requests) >= requests)


def test_ready_server_gives_figures(engine: Any) -> None:
    engine.set(tokens=8, delay=0.02)
    result = wait(engine)
    assert result["ready"] and result["error"] == "" and result["stage"] == "completion"
    assert result["model"] == "heavy"
    assert result["max_model_len"] == 65536
    assert result["server_version"] == "0.19.0"
    assert result["api"] == "chat"
    assert result["completion_tokens"] == 8
    assert result["ttft_seconds"] >= 0.02
    assert result["decode_tokens_per_second"] > 0
    assert result["reply"].startswith("t0 t1")
    assert result["checks"] == {"health": True, "models": True, "completion": True, "tools": None, "reasoning": None}


def test_first_request_warms_up_and_the_second_is_measured(engine: Any) -> None:
    assert wait(engine)["ready"]
    assert len(engine.requests) == 2
    engine.requests.clear()
    assert wait(engine, measure=False)["ready"]
    assert len(engine.requests) == 1


def test_requests_are_real_streamed_chats(engine: Any) -> None:
    wait(engine, prompt="Hi", max_tokens=5)
    path, body = engine.requests[0]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert body["stream"] is True and body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["max_tokens"]) == ("heavy", 5)


def test_answer_of_few_tokens_has_no_rate(engine: Any) -> None:
    result = wait(engine.set(tokens=3, delay=0.01))
    assert result["ready"] and result["decode_tokens_per_second"] is None


@pytest.mark.parametrize("suffix", ["/", "/v1", "/v1/"])
def test_url_may_carry_the_api_path(engine: Any, suffix: str) -> None:
    engine.url += suffix
    assert wait(engine)["ready"]


def test_loading_server_is_waited_for(engine: Any) -> None:
    engine.set(loading_until=time.monotonic() + 3600)
    seen: list[tuple[str, str]] = []

    def on_event(stage: str, text: str) -> None:
        seen.append((stage, text))
        if "503" in text:
            threading.Timer(0.2, engine.set, kwargs={"loading_until": 0.0}).start()

    assert wait(engine, on_event=on_event)["ready"]
    assert [stage for stage, text in seen if text == "waiting"] == ["health", "models", "completion"]
    assert ("health", "HTTP 503 at /health") in seen
    assert len(seen) == 4  # the same answer again is not said again


def test_nothing_listens(closed_port: int) -> None:
    result = endpoint.wait_ready(f"http://127.0.0.1:{closed_port}", "heavy", timeout=60, interval=99)
    assert not result["ready"] and result["stage"] == "health"
    assert f"connection refused: nothing listens on 127.0.0.1:{closed_port}" in result["error"]
    assert "port" in result["fix"]
    assert result["checks"]["health"] is False


def test_model_without_chat_template_is_asked_for_a_completion(engine: Any) -> None:
    result = wait(engine.set(chat="no-template"))
    assert result["ready"] and result["api"] == "completions"
    assert [path for path, _body in engine.requests] == ["/v1/chat/completions", "/v1/completions", "/v1/completions"]


def test_a_model_of_vectors_is_proved_by_vectors(engine: Any) -> None:
    result = wait(engine.set(pools="embed"))
    assert (result["ready"], result["api"]) == (True, "embeddings")
    assert result["reply"] == "vectors of 2 numbers, 0.994 alike for the same meaning, 0.000 for another"
    assert (result["completion_tokens"], result["decode_tokens_per_second"]) == (None, None)
    # The server is asked once for chat and completions, not for each request.
    assert [path for path, _body in engine.requests].count("/v1/chat/completions") == 1


@pytest.mark.parametrize(
    ("vectors", "needle"),
    [
        ([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]], "are no nearer (0.000) than one of another (0.994)"),
        ([[1.0, 0.0], [0.9, 0.1]], "2 vectors for 3 texts"),
        ([[0.0, 0.0], [0.9, 0.1], [0.0, 1.0]], "one is nothing but zeros"),
        ([[1.0], [0.9, 0.1], [0.0, 1.0]], "they differ in length"),
        ([["a"], ["b"], ["c"]], "no lists of numbers"),
    ],
)
def test_vectors_that_say_nothing_are_no_proof(engine: Any, vectors: list[list[Any]], needle: str) -> None:
    result = wait(engine.set(pools="embed", vectors=vectors))
    assert not result["ready"] and result["stage"] == "completion"
    assert needle in result["error"] and "runner, convert and hf-overrides" in result["fix"]


def test_a_reranker_is_proved_by_its_order(engine: Any) -> None:
    result = wait(engine.set(pools="rank"))
    assert (result["ready"], result["api"]) == (True, "rerank")
    assert result["reply"] == "0.900 for the document that answers, 0.100 for another"
    wrong = wait(engine.set(scores={0: 0.8, 1: 0.2}))
    assert not wrong["ready"] and "the document that answers has 0.200, another 0.800" in wrong["error"]
    few = wait(engine.set(scores={0: 0.8}))
    assert not few["ready"] and "not one score for each document" in few["error"]


@pytest.mark.parametrize(("pools", "api"), [("embed", "embeddings"), ("rank", "rerank")])
def test_a_model_that_pools_is_looked_after_by_what_it_has(engine: Any, pools: str, api: str) -> None:
    client = engine_client.Client(engine.set(pools=pools).url)
    assert engine_client.one_token(client, "heavy", 60.0)["api"] == api
    engine.set(vectors=[], scores={})
    with pytest.raises(engine_client.Problem, match=r"answered without a (vector|score)"):
        engine_client.one_token(client, "heavy", 60.0)


def test_adapters_are_listed_and_answer(engine: Any) -> None:
    result = wait(engine.set(models=["heavy", "sql", "law"]), adapters=("sql", "law"))
    assert result["ready"] and result["checks"]["adapters"] is True
    assert {body["model"] for _path, body in engine.requests} == {"heavy", "sql", "law"}
    missing = wait(engine.set(models=["heavy", "sql"]), adapters=("sql", "law"))
    assert not missing["ready"] and missing["stage"] == "adapters"
    assert "does not list law: it serves heavy, sql" in missing["error"] and "max_rank" in missing["fix"]


def test_wedged_engine_is_called_that(engine: Any) -> None:
    result = wait(engine.set(chat="wedged"), completion_timeout=0.4, clock=hour_after(engine, 2))
    assert not result["ready"] and result["stage"] == "completion"
    assert "wedged: /health answers 200" in result["error"]
    assert "restart the unit" in result["fix"]
    assert result["checks"]["models"] is True and result["checks"]["completion"] is False
    assert len(engine.requests) >= 2  # one lost request is no proof


def test_deadline_within_the_first_completion_is_no_verdict(engine: Any) -> None:
    result = wait(engine.set(chat="wedged"), timeout=10, completion_timeout=300)
    assert not result["ready"] and "wedged" not in result["error"]
    assert "into the first completion" in result["error"] and "give more time" in result["fix"]


def test_hang_with_dead_health_is_not_called_wedged(engine: Any) -> None:
    seen: list[str] = []

    def on_event(stage: str, text: str) -> None:
        seen.append(text)
        if stage == "completion":
            engine.set(health=503)

    result = wait(engine.set(chat="wedged"), completion_timeout=0.3, on_event=on_event, clock=hour_after(engine, 2))
    assert "wedged" not in result["error"] and "/health answers HTTP 503 now" in result["error"]


def test_missing_key_fails_at_once(engine: Any) -> None:
    result = wait(engine.set(key=KEY), timeout=120)
    assert not result["ready"] and result["stage"] == "models" and result["elapsed_seconds"] < 60
    assert "HTTP 401" in result["error"] and "none was given" in result["error"]
    assert result["fix"] == "set api_key_file"


def test_wrong_key_names_its_file_and_not_the_key(engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk-wrong\n")
    result = wait(engine.set(key="sk-wrong-but-longer"), api_key_file=str(path))
    assert "HTTP 401" in result["error"] and str(path) in result["error"]
    assert "sk-wrong" not in json.dumps(result)


def test_right_key_is_sent_and_never_returned(engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    result = wait(engine.set(key=KEY), api_key_file=str(path), tools=True)
    assert result["ready"]
    assert KEY not in json.dumps(result)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read"), ("\n", "is empty"), ("a\nb\n", "more than one key"), ("é", "HTTP headers")],
)
def test_useless_key_files(engine: Any, tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    result = wait(engine, api_key_file=str(path))
    assert not result["ready"] and words in result["error"] and str(path) in result["error"]
    assert engine.requests == []


def test_wrong_model_fails_at_once_and_names_what_is_served(engine: Any) -> None:
    result = wait(engine.set(models=["fast", "other"]), timeout=120)
    assert result["stage"] == "models" and result["elapsed_seconds"] < 60
    assert result["error"] == "the server serves fast, other, not heavy"
    assert "--served-model-name" in result["fix"]


def test_without_a_name_the_first_model_is_taken(engine: Any) -> None:
    assert wait(engine.set(models=["fast"]), model=None)["model"] == "fast"


def test_empty_list_of_models_is_waited_for(engine: Any) -> None:
    result = wait(engine.set(models=[]), timeout=60.0, interval=99.0)
    assert "lists no model yet" in result["error"] and result["error"].startswith("not ready after")


def test_server_error_is_given_up_after_three(engine: Any) -> None:
    result = wait(engine.set(chat="error"), timeout=120)
    assert not result["ready"] and result["elapsed_seconds"] < 60
    assert "HTTP 500" in result["error"] and "EngineCore encountered an issue" in result["error"]
    assert len(engine.requests) == 3


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("cut", "was cut before its end, after 3 pieces"),
        ("midstream", "EngineDeadError"),
        ("empty", "without a single token"),
        ("broken", "closed the connection"),
    ],
)
def test_incomplete_answers(engine: Any, mode: str, words: str) -> None:
    result = wait(engine.set(chat=mode), timeout=60.0, interval=99.0)
    assert not result["ready"] and result["stage"] == "completion"
    assert words in result["error"]


GARBAGE = {
    "!!!!!": "'!' 5 times and nothing else",
    "!" * 64: "'!' 64 times and nothing else",
    "The" + "!" * 61: "'!' over and over",
    " word" * 64: "'word' over and over",
    "ungsungs" * 20: "'ungs' over and over",
    "\n" * 64: "nothing but blanks and line breaks",
    "\x00\x01\x02": "3 of its 3 signs cannot be read",
    "a\ufffd" + "\ufffd" * 30: "31 of its 32 signs cannot be read",
    "哈" * 40: "'哈' over and over",
}
FINE = [
    "Hello from the scripted test model.",  # the scripted model of the simulated hosts
    "Hello from the simulated model.",
    "".join(f"t{number} " for number in range(64)),
    "Hello! Red, green and blue!!!",
    "Hello!!!!!!!!",
    "Hi! 👋👋👋 Three colours: 🔴🟢🔵",
    "1. Red\n2. Green\n3. Blue",
    "- red\n- green\n- blue\n\n----------------",
    "no no no, I meant red, green and blue",
    "Hello. I am a model. I am a model. I am a model. I am a model. I am a model. I am a model. I am a model. I am a model.",
    "!",
    "...",
    "42",
    "\n",
    "",
    "Hello <think>\nThe user asked.\n</think>",
    "你好！红、绿、蓝。",
]


@pytest.mark.parametrize(("text", "words"), GARBAGE.items(), ids=lambda value: repr(value)[:20])
def test_garbage_is_named(text: str, words: str) -> None:
    assert answer_checks.garbage(text) == words


@pytest.mark.parametrize("text", FINE, ids=lambda value: repr(value)[:20])
def test_answers_are_not_garbage(text: str) -> None:
    assert answer_checks.garbage(text) == "" and answer_checks.garbage(text, chat=False) == ""


@pytest.mark.parametrize("text", ["Name: " + "_" * 60, "\n" * 64, "- " * 40, "." * 64])
def test_a_model_without_chat_may_write_forms(text: str) -> None:
    assert answer_checks.garbage(text, chat=False) == ""
    assert answer_checks.garbage("!" * 64, chat=False) != ""


def test_garbage_is_no_proof(engine: Any) -> None:
    result = wait(engine.set(says=["!"] * 64), timeout=120)
    assert not result["ready"] and result["stage"] == "completion" and result["checks"]["completion"] is False
    assert result["error"] == f"the answer is garbage, '!' 64 times and nothing else: {'!' * 60!r}"
    assert "moe-backend: marlin" in result["fix"] and "sm_121" in result["fix"]
    assert len(engine.requests) == 6, "it is asked three times, each with a warm-up"


def test_garbage_of_the_warm_up_alone_is_borne(engine: Any) -> None:
    """The answer of the warm engine counts."""
    engine.set(says=["!"] * 64)
    real = engine.stream

    def stream(handler: Any, body: dict[str, Any]) -> None:
        real(handler, body)
        engine.set(says=None)

    engine.stream = stream
    assert wait(engine)["ready"]


def test_a_unit_does_not_judge(engine: Any) -> None:
    """A restart would not mend wrong results of the image."""
    assert wait(engine.set(says=["!"] * 64), measure=False)["ready"]


def test_tokens_without_a_text_are_named(engine: Any) -> None:
    result = wait(engine.set(says=[""] * 64), timeout=120)
    assert "ended without a text, after 64 tokens that none is made of" in result["error"]
    assert "moe-backend: marlin" in result["fix"]


def test_engine_that_recovers_is_ready(engine: Any) -> None:
    engine.set(chat="cut")

    def on_event(stage: str, text: str) -> None:
        if "cut" in text:
            engine.set(chat="stream")

    assert wait(engine, on_event=on_event)["ready"]


def test_endless_answer_ends_at_the_deadline(engine: Any) -> None:
    result = wait(engine.set(tokens=3000, delay=0.1), clock=hour_after(engine, 1))
    assert not result["ready"]
    assert "still going on at the deadline" in result["error"]


def test_dead_unit_ends_the_wait(closed_port: int) -> None:
    answers = iter([None, None, "the unit spark-heavy.service has failed"])
    result = endpoint.wait_ready(
        f"http://127.0.0.1:{closed_port}", "heavy", timeout=30, interval=0.01, alive=lambda: next(answers)
    )
    assert not result["ready"] and result["elapsed_seconds"] < 60
    assert result["error"].startswith("the unit spark-heavy.service has failed; last seen: connection refused")


def test_tools_good(engine: Any) -> None:
    result = wait(engine, tools=True)
    assert result["ready"] and result["stage"] == "tools" and result["checks"]["tools"] is True
    assert result["tool_turns"] == endpoint.AGENT_TURNS
    bodies = [body for _path, body in engine.requests if len(body.get("tools") or []) > 1]
    assert [len(body["messages"]) for body in bodies] == [1, 3, 5] and len(bodies[0]["tools"]) == 12
    # Each turn contains the results of the earlier ones.
    assert "src/net/ports.py" in bodies[1]["messages"][2]["content"]
    assert bodies[2]["messages"][3]["tool_calls"][0]["function"]["name"] == "read_file"
    assert all(body["max_tokens"] <= endpoint.AGENT_TOKENS for body in bodies)


MALFORMED = [
    # Recorded from an agent on vLLM 0.24.0 with MTP and prefix caching.
    "I will look it up.\n<function=read_file>\n<parameter=path>\nsrc/app.py\n<parameter=limit>\n</function>\n</tool_call>",
    '<tool_call>{"name": "read_file", "arguments": {"path": "a',
    '[TOOL_CALLS]read_file{"path": "src/net/ports.py"}',
    '<|tool_call>call:read_file{path:<|"|>a.py<|"|>}',
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.read_file:0",
    "<\uff5ctool\u2581calls\u2581begin\uff5c>read_file",
    'Sure.\n```json\n{"name": "read_file", "arguments": {"path": "src/net/ports.py"}}\n```',
]


@pytest.mark.parametrize("content", MALFORMED)
@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_call_that_arrives_as_text_is_named_as_such(engine: Any, content: str, turn: int) -> None:
    result = wait(engine.set(tools=content, agent_turn=turn), tools=True)
    assert not result["ready"] and result["stage"] == "tools"
    assert result["error"].startswith(
        f"turn {turn + 1} of a conversation with 12 tools: a malformed call inside content: "
    )
    assert "enable-prefix-caching: false" in result["fix"] and "speculative-config" in result["fix"]


@pytest.mark.parametrize(
    "content", ["The tests pass now.", 'Use `parse_port(text)`, or:\n```json\n{"port": 80}\n```', ""]
)
def test_a_model_that_stops_calling_is_no_fault_of_the_engine(engine: Any, content: str) -> None:
    result = wait(engine.set(tools=content, agent_turn=2), tools=True)
    assert result["ready"] and result["tool_turns"] == 2


def test_the_conversation_ends_in_time(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "AGENT_SECONDS", 0.5)
    begin = time.monotonic()
    result = wait(engine.set(tools="slow"), tools=True)
    assert result["ready"] and result["tool_turns"] == 1 and time.monotonic() - begin < 3


def test_a_short_context_has_no_conversation(engine: Any) -> None:
    assert wait(engine.set(max_model_len=4096), tools=True)["tool_turns"] is None


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("text", "a malformed call inside content"),
        ("refused", "--enable-auto-tool-choice"),
        ("bad-json", "are not a JSON object"),
        ("finish", "finish_reason 'stop'"),
    ],
)
def test_tools_bad(engine: Any, mode: str, words: str) -> None:
    result = wait(engine.set(tools=mode), tools=True)
    assert not result["ready"] and result["stage"] == "tools" and result["checks"]["completion"] is True
    assert words in result["error"]
    assert "tool-call-parser" in result["fix"]


def test_a_model_that_thinks_at_length_is_given_the_tokens_it_needs(engine: Any) -> None:
    engine.set(thinks=9000)
    cut_off = wait(engine, tools=True)
    assert not cut_off["ready"] and cut_off["stage"] == "tools"
    assert cut_off["error"].startswith("the answer was ended by length before a tool was called: 4096 tokens at most")
    assert "checks.max_tokens" in cut_off["fix"] and "parser" not in cut_off["fix"]
    assert wait(engine, tools=True, check_tokens=10000, check_temperature=0.6)["ready"]
    assert {body["temperature"] for _path, body in engine.requests if body.get("tools")} == {0.0, 0.6}


def test_a_check_asks_for_no_more_than_the_context_holds(engine: Any) -> None:
    assert wait(engine.set(max_model_len=4096), tools=True, check_tokens=10000)["ready"]
    short = wait(engine.set(thinks=3500), tools=True, check_tokens=10000)
    assert "less in a context of 4096" in short["error"] and short["fix"].startswith("raise max-model-len")


@pytest.mark.parametrize("mode", ["reasoning", "reasoning_content", "mistral"])
def test_reasoning_good(engine: Any, mode: str) -> None:
    result = wait(engine.set(reasoning=mode), reasoning=True)
    assert result["ready"] and result["checks"]["reasoning"] is True


@pytest.mark.parametrize(("mode", "words"), [("inside", "inside the content"), ("none", "no reasoning")])
def test_reasoning_bad(engine: Any, mode: str, words: str) -> None:
    result = wait(engine.set(reasoning=mode), reasoning=True)
    assert result["stage"] == "reasoning" and words in result["error"] and "reasoning-parser" in result["fix"]


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:notaport"])
def test_url_that_is_none(url: str) -> None:
    result = endpoint.wait_ready(url, "heavy", timeout=120)
    assert not result["ready"] and "is not the URL of a server" in result["error"]


def test_server_without_tls(engine: Any) -> None:
    engine.url = engine.url.replace("http:", "https:")
    result = wait(engine, timeout=120)
    assert "TLS" in result["error"] and result["elapsed_seconds"] < 60


def test_name_that_does_not_resolve() -> None:
    result = endpoint.wait_ready("http://no-such-host.invalid:1", "heavy", timeout=60, interval=99)
    assert "does not resolve" in result["error"]


def test_proxies_of_the_environment_are_not_used(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert wait(engine)["ready"]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b'{"error": {"message": "m", "type": "NotFoundError"}}', "m"),
        (b'{"object": "error", "message": "m"}', "m"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"plain", "plain"),
        (b"[1]", "[1]"),
    ],
)
def test_error_texts(raw: bytes, text: str) -> None:
    assert engine_client.error_text(raw) == text


def test_one_token_is_asked_for_and_counted(engine: Any) -> None:
    result = engine_client.one_token(engine_client.Client(engine.url), "heavy", 5)
    assert result["api"] == "chat" and result["seconds"] >= 0
    ((path, body),) = engine.requests
    assert path == "/v1/chat/completions"
    assert (body["model"], body["max_tokens"], body["stream"]) == ("heavy", 1, False)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"choices": [], "usage": {"completion_tokens": 1}}, "without a token"),
        ({"choices": [{"message": {"content": ""}}], "usage": {"completion_tokens": 0}}, "without a token"),
    ],
)
def test_one_token_has_to_come(engine: Any, answer: dict[str, Any], words: str) -> None:
    engine.reasoning = lambda handler, _body: engine.answer(handler, 200, answer)
    with pytest.raises(engine_client.Problem, match=words):
        engine_client.one_token(engine_client.Client(engine.url), "heavy", 5)


def test_one_token_of_a_thought_that_no_field_shows_counts(engine: Any) -> None:
    answer = {"choices": [{"message": {"content": None}}], "usage": {"completion_tokens": 1}}
    engine.reasoning = lambda handler, _body: engine.answer(handler, 200, answer)
    assert engine_client.one_token(engine_client.Client(engine.url), "heavy", 5)["api"] == "chat"


def test_one_token_of_a_model_without_chat(engine: Any) -> None:
    def plain(handler: Any, _body: dict[str, Any]) -> None:
        if handler.path == "/v1/chat/completions":
            engine.answer(handler, 400, {"error": {"message": "no chat template"}})
        else:
            engine.answer(handler, 200, {"choices": [{"text": ""}], "usage": {"completion_tokens": 1}})

    engine.reasoning = plain
    assert engine_client.one_token(engine_client.Client(engine.url), "heavy", 5)["api"] == "completions"
    assert [path for path, _body in engine.requests] == ["/v1/chat/completions", "/v1/completions"]
