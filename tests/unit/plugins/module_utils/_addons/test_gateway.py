# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gateway: its configuration, the backends of each name, and refused settings."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import gateway
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints

MASTER = {"master_key_file": "keys/master"}


def engine(host: str, service: str, port: int = 8001, listen: str = "0.0.0.0", **more: Any) -> endpoints.Endpoint:
    address = {"spark-1": "192.168.1.11", "spark-2": "192.168.1.12"}.get(host, "192.168.1.20")
    return endpoints.make(host, address, service, more.pop("kind", "vllm"), port, listen, **more)


TWO_ON_ONE = [
    engine("spark-1", "heavy", 8001, max_model_len=65536),
    engine("spark-1", "fast", 8002, max_model_len=65536),
]
TWO_SPARKS = [
    engine("spark-1", "qwen36", 8001, models=["Qwen3.6-35B-A3B"]),
    engine("spark-2", "gemma4", 8001, models=["gemma-4-26B-A4B"]),
    engine("spark-1", "ollama", 11434, kind="ollama", models=["qwen3:8b"]),
    engine("spark-1", "parakeet", 8765, kind="asr"),
    engine("spark-2", "chatterbox", 8882, kind="tts"),
]


def made(
    written: dict[str, Any], fleet: list[endpoints.Endpoint], host: str = "spark-1"
) -> tuple[dict[str, Any], list[Any]]:
    """Read and plan settings without errors."""
    before = copy.deepcopy(written)
    settings, messages = gateway.read(host, written)
    assert messages == []
    assert written == before
    outcome, _gateway, _endpoint, findings = gateway.plan(host, "192.168.1.11", settings, fleet)
    return outcome, findings


def leads(outcome: dict[str, Any], name: str) -> list[tuple[str, int]]:
    return [
        (entry["model_info"]["backend"], entry["model_info"]["level"])
        for entry in outcome["config"]["model_list"]
        if entry["model_name"] == name
    ]


def rules(findings: list[Any]) -> list[str]:
    return [finding.rule for finding in findings]


def test_three_aliases_for_two_models_of_one_spark() -> None:
    """writer and reviewer to the large model, sources to the small one; each may stand in for the other."""
    outcome, findings = made(
        {
            **MASTER,
            "serve": "none",
            "aliases": {
                "writer": "spark-1/heavy",
                "reviewer": ["spark-1/heavy", "spark-1/fast"],
                "sources": {"backends": ["spark-1/fast"], "fallback": ["writer"]},
            },
        },
        TWO_ON_ONE,
    )
    assert findings == []
    assert outcome["settings"]["names"] == ["reviewer", "sources", "writer"]
    assert leads(outcome, "writer") == [("spark-1/heavy", 0)]
    assert leads(outcome, "reviewer") == [("spark-1/heavy", 0), ("spark-1/fast", 1)]
    assert leads(outcome, "sources") == [("spark-1/fast", 0), ("spark-1/heavy", 1)]


def test_the_table_of_two_sparks() -> None:
    outcome, findings = made(
        {
            **MASTER,
            "aliases": {
                "spark-qwen36": "spark-1/qwen36",
                "spark-gemma4": "spark-2/gemma4",
                "spark8b": {"endpoint": "spark-1/ollama", "model": "qwen3:8b"},
            },
        },
        TWO_SPARKS,
        host="forge",
    )
    assert findings == []
    models = {entry["model_name"]: entry["litellm_params"] for entry in outcome["config"]["model_list"]}
    assert models["spark-qwen36"]["model"] == "hosted_vllm/Qwen3.6-35B-A3B"
    assert models["spark-qwen36"]["api_base"] == "http://192.168.1.11:8001/v1"
    assert models["spark8b"] == {
        "model": "openai/qwen3:8b",
        "api_base": "http://192.168.1.11:11434/v1",
        "api_key": "none",
    }
    # Under their own names too, speech among them.
    assert {"Qwen3.6-35B-A3B", "gemma-4-26B-A4B", "qwen3:8b", "parakeet", "chatterbox"} <= set(models)
    # A completion would load Ollama's model into memory that the engines need.
    assert outcome["settings"]["backends"]["spark-1/ollama"]["check"] == "/api/tags"
    assert outcome["settings"]["backends"]["spark-1/qwen36"]["check"] == "completion"


def test_engines_of_one_name_share_the_work() -> None:
    fleet = [engine("spark-1", "chat"), engine("spark-2", "chat")]
    outcome, findings = made(MASTER, fleet)
    assert findings == []
    assert leads(outcome, "chat") == [("spark-1/chat", 0), ("spark-2/chat", 0)]


def test_aliases_promise_tools_where_all_of_their_engines_do() -> None:
    fleet = [
        engine("spark-1", "heavy", tools=True),
        engine("spark-2", "fast", 8002, tools=True),
        engine("spark-2", "plain", 8003),
    ]
    aliases = {
        "writer": "spark-1/heavy",
        "both": {"backends": ["spark-1/heavy", "spark-2/fast"]},
        "mixed": {"backends": ["spark-1/heavy", "spark-2/plain"]},
        "plain": "spark-2/plain",
    }
    outcome, _findings = made({"aliases": aliases, "master_key_file": "/k"}, fleet, "forge")
    assert sorted(outcome["settings"]["tools"]) == ["both", "writer"]


def test_balance_and_order() -> None:
    both = ["spark-1/heavy", "spark-1/fast"]
    outcome, _findings = made(
        {**MASTER, "aliases": {"a": {"backends": both, "routing": "balance"}, "b": {"backends": both}}}, TWO_ON_ONE
    )
    assert [level for _key, level in leads(outcome, "a")] == [0, 0]
    assert [level for _key, level in leads(outcome, "b")] == [0, 1]


def test_somebody_elses_server_with_its_key_in_a_file() -> None:
    outcome, findings = made(
        {
            **MASTER,
            "serve": "none",
            "aliases": {
                "big": [
                    "spark-1/heavy",
                    {"url": "https://api.example.com/v1/", "model": "big-1", "api_key_file": "keys/example"},
                ],
                "bigger": {"url": "https://api.example.com", "model": "big-2", "api_key_file": "keys/example"},
            },
        },
        [engine("spark-1", "heavy", api_key_file="keys/heavy")],
    )
    assert findings == []
    params = [entry["litellm_params"] for entry in outcome["config"]["model_list"]]
    assert [entry["api_base"] for entry in params] == [
        "http://192.168.1.11:8001/v1",
        "https://api.example.com/v1",
        "https://api.example.com/v1",
    ]
    assert [entry["api_key"] for entry in params] == [
        "os.environ/DGXSPARK_BACKEND_KEY_0",
        "os.environ/DGXSPARK_BACKEND_KEY_1",
        "os.environ/DGXSPARK_BACKEND_KEY_1",
    ]
    assert outcome["settings"]["backend_keys"] == {
        "DGXSPARK_BACKEND_KEY_0": "backend-0",
        "DGXSPARK_BACKEND_KEY_1": "backend-1",
    }
    assert outcome["secrets"] == [
        {"name": "master", "source": "keys/master"},
        {"name": "backend-0", "source": "keys/heavy"},
        {"name": "backend-1", "source": "keys/example"},
    ]
    # Paths of the controller are told to the role alone, which copies the files.
    assert "keys/" not in json.dumps([outcome["config"], outcome["settings"]])


def test_clients_and_what_they_may_use() -> None:
    outcome, findings = made(
        {
            **MASTER,
            "metrics_key_file": "keys/metrics",
            "aliases": {"writer": "spark-1/heavy"},
            "clients": [
                {"name": "hermes", "key_file": "keys/hermes", "aliases": ["writer"]},
                {"name": "open-webui", "key_file": "keys/webui"},
            ],
        },
        TWO_ON_ONE,
    )
    assert findings == []
    keys = {entry["name"]: entry for entry in outcome["settings"]["keys"]}
    assert keys["hermes"] == {"name": "hermes", "role": "client", "file": "client-hermes", "aliases": ["writer"]}
    # LiteLLM takes an empty list for every model, so all names are spelled out.
    assert keys["open-webui"]["aliases"] == ["fast", "heavy", "writer"]
    assert keys["metrics"]["role"] == "metrics" and not outcome["settings"]["open_metrics"]


def test_listens_on_loopback_until_it_has_a_key() -> None:
    assert gateway.read("h", {})[0]["listen"] == "127.0.0.1"
    assert gateway.read("h", MASTER)[0]["listen"] == "0.0.0.0"
    outcome, findings = made({"listen": "0.0.0.0"}, TWO_ON_ONE)
    assert rules(findings) == ["gateway.no_master_key"]
    assert outcome["settings"]["open"]


@pytest.mark.parametrize(
    ("written", "fleet", "rule", "part"),
    [
        ({"aliases": {"a": "spark-1/heavi"}}, TWO_ON_ONE, "unknown_endpoint", "did you mean 'spark-1/heavy'?"),
        ({"serve": ["spark-1/hevy"]}, TWO_ON_ONE, "unknown_endpoint", "did you mean 'spark-1/heavy'?"),
        ({"aliases": {"heavy": "spark-1/fast"}}, TWO_ON_ONE, "alias_shadows", "spark-1/heavy"),
        ({"port": 8002}, TWO_ON_ONE, "port_taken", "fast"),
        (
            {"aliases": {"a": {"endpoint": "spark-1/heavy", "model": "hevy"}}},
            TWO_ON_ONE,
            "unknown_model",
            "did you mean 'heavy'?",
        ),
        ({}, [], "nothing_to_serve", "no alias"),
        ({"metrics_key_file": "keys/master"}, TWO_ON_ONE, "same_key", "keys/master"),
        ({"clients": [{"name": "c", "key_file": "keys/master"}]}, TWO_ON_ONE, "same_key", "client c"),
        (
            {"aliases": {"a": {"backends": ["spark-1/heavy"], "fallback": "bb"}, "b": "spark-1/fast"}},
            TWO_ON_ONE,
            "unknown_alias",
            "'bb'",
        ),
        (
            {
                "aliases": {
                    "a": {"backends": ["spark-1/heavy"], "fallback": ["b"]},
                    "b": {"backends": ["spark-1/fast"], "fallback": ["a"]},
                }
            },
            TWO_ON_ONE,
            "fallback_loop",
            "a -> b -> a",
        ),
        (
            {"clients": [{"name": "c", "key_file": "k", "aliases": ["havy"]}]},
            TWO_ON_ONE,
            "unknown_alias",
            "did you mean 'heavy'?",
        ),
        (
            {"aliases": {"a": "spark-2/far"}},
            [engine("spark-2", "far", listen="127.0.0.1")],
            "backend_on_loopback",
            "api_key_file",
        ),
        ({"serve": ["spark-2/far"]}, [engine("spark-2", "far", listen="127.0.0.1")], "backend_on_loopback", "spark-2"),
    ],
)
def test_what_will_not_work_is_named(written: dict[str, Any], fleet: list[Any], rule: str, part: str) -> None:
    _outcome, findings = made({**MASTER, **written}, fleet)
    errors = [finding for finding in findings if finding.severity == "error"]
    assert f"gateway.{rule}" in rules(errors)
    assert any(part in f"{finding.message} {finding.fix}" for finding in errors)
    assert all(finding.fix and finding.service == "gateway" for finding in findings)


def test_what_is_not_asked_for_by_name_may_stay_out_of_reach() -> None:
    outcome, findings = made(MASTER, [engine("spark-1", "near"), engine("spark-2", "far", listen="127.0.0.1")])
    assert [(f.rule, f.severity) for f in findings] == [("gateway.backend_on_loopback", "warning")]
    assert outcome["settings"]["names"] == ["near"]


def test_loopback_of_its_own_host_is_in_reach() -> None:
    outcome, findings = made({}, [engine("spark-1", "near", listen="127.0.0.1")])
    assert findings == []
    assert outcome["config"]["model_list"][0]["litellm_params"]["api_base"] == "http://127.0.0.1:8001/v1"
    assert outcome["url"] == "http://127.0.0.1:4000"


def test_backends_with_different_lengths() -> None:
    fleet = [
        engine("spark-1", "long", 8001, max_model_len=131072),
        engine("spark-1", "short", 8002, max_model_len=16384),
    ]
    _outcome, findings = made({**MASTER, "aliases": {"a": ["spark-1/long", "spark-1/short"]}}, fleet)
    assert [(f.rule, f.severity) for f in findings] == [("gateway.lengths_differ", "warning")]
    assert "16384" in findings[0].message


def test_a_backend_at_two_levels_is_asked_once() -> None:
    outcome, findings = made(
        {
            **MASTER,
            "aliases": {
                "a": {"backends": ["spark-1/heavy"], "fallback": ["b"]},
                "b": ["spark-1/heavy", "spark-1/fast"],
            },
        },
        TWO_ON_ONE,
    )
    assert findings == []
    assert leads(outcome, "a") == [("spark-1/heavy", 0), ("spark-1/fast", 2)]


@pytest.mark.parametrize(
    ("written", "part"),
    [
        ({"prot": 1}, "did you mean 'port'?"),
        ([], "must be a mapping"),
        ({"port": "4000"}, "'port'"),
        ({"port": 70000}, "'port'"),
        ({"timeout": 0}, "'timeout'"),
        ({"timeout": True}, "'timeout'"),
        ({"image": "ghcr.io/berriai/litellm:main-stable"}, "moves"),
        ({"image": "ghcr.io/berriai/litellm"}, "moves"),
        ({"log_level": "loud"}, "'log_level'"),
        ({"serve": "some"}, "'serve'"),
        ({"clients": [{"name": "A b", "key_file": "k"}]}, "'name'"),
        ({"clients": [{"name": "a"}]}, "'key_file'"),
        ({"clients": [{"name": "a", "key_file": "k", "alias": []}]}, "did you mean 'aliases'?"),
        ({"clients": [{"name": "a", "key_file": "k"}, {"name": "a", "key_file": "k"}]}, "twice"),
        ({"clients": [{"name": "a", "key_file": "k", "aliases": []}]}, "'aliases'"),
        ({"aliases": {"*": "spark-1/heavy"}}, "the name must be"),
        ({"aliases": {"a": []}}, "at least one"),
        ({"aliases": {"a": {"backend": ["x/y"]}}}, "did you mean 'backends'?"),
        ({"aliases": {"a": {"backends": ["x/y"], "routing": "random"}}}, "'routing'"),
        ({"aliases": {"a": {"url": "api.example.com", "model": "m"}}}, "'url'"),
        ({"aliases": {"a": {"url": "https://api.example.com"}}}, "'model' is missing"),
        ({"aliases": {"a": [{"endpoint": "x/y", "url": "http://z"}]}}, "either"),
        ({"aliases": {"a": [{"endpoint": "x/y", "api_key_file": "k"}]}}, "take 'api_key_file' out"),
        ({"aliases": {"a": [3]}}, "not a number"),
    ],
)
def test_what_cannot_be_read_is_said(written: Any, part: str) -> None:
    settings, messages = gateway.read("spark-1", written)
    assert any(part in message for message in messages), messages
    assert all(message.startswith("host spark-1, spark_gateway") for message in messages)
    assert set(settings) == set(gateway.KEYS)


def test_every_key_has_a_default_that_can_be_read() -> None:
    defaults = {name: key.default for name, key in gateway.KEYS.items()}
    assert gateway.read("h", defaults) == gateway.read("h", {})
    assert gateway.read("h", None) == gateway.read("h", {})
    assert gateway.read("h", {})[1] == []


def test_the_same_input_gives_the_same_plan() -> None:
    written = {**MASTER, "aliases": {"b": "spark-1/heavy", "a": "spark-1/fast"}}
    assert made(written, TWO_ON_ONE) == made(written, TWO_ON_ONE)
    reordered = {**MASTER, "aliases": {"a": "spark-1/fast", "b": "spark-1/heavy"}}
    assert made(written, TWO_ON_ONE)[0]["config"] == made(reordered, TWO_ON_ONE)[0]["config"]


# --- timeouts -----------------------------------------------------------------------------------------------------

LONG = [
    engine("spark-1", "long", 8001, max_model_len=1_048_576),
    engine("spark-1", "fast", 8002, max_model_len=65536),
]


def by_name(outcome: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["model_name"]: entry["litellm_params"] for entry in outcome["config"]["model_list"]}


def test_a_gateway_of_usual_contexts_waits_as_ever() -> None:
    outcome, findings = made(MASTER, TWO_ON_ONE)
    router = outcome["config"]["router_settings"]
    assert (router["timeout"], router["stream_timeout"]) == (1800, 600) and findings == []
    assert outcome["config"]["litellm_settings"]["sse_keepalive_ping_interval_seconds"] == 15
    assert outcome["config"]["litellm_settings"]["request_timeout"] == 1800
    assert not [name for params in by_name(outcome).values() for name in params if "timeout" in name]
    quiet, _findings = made({**MASTER, "keepalive_seconds": 0}, TWO_ON_ONE)
    assert "sse_keepalive_ping_interval_seconds" not in quiet["config"]["litellm_settings"]


def test_a_long_context_is_waited_for_and_others_are_not() -> None:
    outcome, findings = made(MASTER, LONG)
    router, models = outcome["config"]["router_settings"], by_name(outcome)
    # 60 s and one and a half times 1,048,576 tokens at 750 a second, in whole minutes; the first token of 950 K took 815 s.
    assert router["stream_timeout"] == 2160 and router["timeout"] == 3360
    assert outcome["config"]["litellm_settings"]["request_timeout"] == 3360
    assert "stream_timeout" not in models["long"]
    assert (models["fast"]["stream_timeout"], models["fast"]["timeout"]) == (600, 1800)
    assert rules(findings) == ["gateway.prefill_assumed"] and "spark-1/long" in findings[0].message


def test_a_measured_rate_counts() -> None:
    outcome, findings = made({**MASTER, "prefill_rates": {"spark-1/long": 1164}}, LONG)
    assert outcome["config"]["router_settings"]["stream_timeout"] == 1440 and findings == []
    _outcome, findings = made({**MASTER, "prefill_rates": {"spark-1/lang": 1164}}, LONG)
    assert rules(findings)[0] == "gateway.unknown_endpoint" and "spark-1/long" in findings[0].message


def test_a_timeout_that_cuts_long_prompts_off_is_named() -> None:
    outcome, findings = made({**MASTER, "stream_timeout": 300, "timeout": 3600}, LONG)
    router = outcome["config"]["router_settings"]
    assert (router["stream_timeout"], router["timeout"]) == (300, 3600)
    assert not [name for params in by_name(outcome).values() for name in params if "timeout" in name]
    assert rules(findings) == ["gateway.timeout_short"] and "stream_timeout is 300 s" in findings[0].message


def cold_fleet(**more: Any) -> list[endpoints.Endpoint]:
    options = {"max_model_len": 8192, "on_demand": True, "hold_seconds": 900, **more}
    return [
        endpoints.make("spark-1", "10.0.0.1", "cold", "vllm", 8001, "0.0.0.0", **options),
        endpoints.make("spark-1", "10.0.0.1", "fast", "vllm", 8002, "0.0.0.0", max_model_len=8192),
    ]


def test_a_request_that_wakes_an_engine_is_waited_for() -> None:
    outcome, findings = made({**MASTER, "aliases": {"both": ["spark-1/cold", "spark-1/fast"]}}, cold_fleet())
    models, router = by_name(outcome), outcome["config"]["router_settings"]
    assert findings == []  # nothing of it is the prefill of a long prompt
    assert (router["stream_timeout"], router["timeout"]) == (1500, 2700) and "stream_timeout" not in models["cold"]
    assert (models["fast"]["stream_timeout"], models["fast"]["timeout"]) == (600, 1800)
    # Asking the same engine once more is of no use, another one of the name is; of engines that are always there the usual number is.
    assert router["model_group_retry_policy"] == {
        "both": {"ServiceUnavailableErrorRetries": 1}, "cold": {"ServiceUnavailableErrorRetries": 0},
    }  # fmt: skip
    plain, _findings = made(MASTER, cold_fleet(on_demand=False, hold_seconds=0))
    assert "model_group_retry_policy" not in plain["config"]["router_settings"]


def test_a_request_that_wakes_a_speech_server_is_waited_for() -> None:
    ears = endpoints.make(
        "spark-1", "10.0.0.1", "ears", "asr", 8765, "10.0.0.1", on_demand=True, hold_seconds=900, models=["ears"]
    )
    fleet = [*cold_fleet(on_demand=False, hold_seconds=0), ears]
    outcome, findings = made(MASTER, fleet)
    models, router = by_name(outcome), outcome["config"]["router_settings"]
    waits = {key: models["ears"].get(key, router[key]) for key in ("stream_timeout", "timeout")}
    assert findings == [] and waits == {"stream_timeout": 1500, "timeout": 2700}
    assert router["model_group_retry_policy"] == {"ears": {"ServiceUnavailableErrorRetries": 0}}
    # A check of it starts nothing.
    assert outcome["settings"]["backends"]["spark-1/ears"]["check"] == "/health"
    _outcome, (finding,) = made({**MASTER, "stream_timeout": 700}, fleet)
    assert "an answer of spark-1/ears may take 600 s, and 900 s before that while" in finding.message
    assert "or lower on_demand.hold_minutes of spark-1/ears" in finding.fix


def test_a_request_that_is_told_to_come_again_is_not_waited_for() -> None:
    outcome, _findings = made(MASTER, cold_fleet(hold_seconds=0))
    assert outcome["config"]["router_settings"]["stream_timeout"] == 600


def test_a_timeout_that_cuts_off_who_waits_for_a_load_is_named() -> None:
    _outcome, findings = made({**MASTER, "stream_timeout": 700}, cold_fleet())
    assert (
        rules(findings) == ["gateway.timeout_short"]
        and "and 900 s before that while spark-1/cold loads" in findings[0].message
    )
    assert "on_demand.hold_minutes" in findings[0].fix


@pytest.mark.parametrize("rate", [0, -1, "fast", True, None])
def test_a_rate_that_is_none(rate: Any) -> None:
    _settings, messages = gateway.read("h", {"prefill_rates": {"spark-1/long": rate}})
    assert len(messages) == 1 and "prefill_rates" in messages[0]
