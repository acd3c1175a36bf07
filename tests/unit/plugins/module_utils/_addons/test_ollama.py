# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ollama as a fallback: refused settings, the limits of its environment, and findings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import addons, ollama
from ansible_collections.dgxspark.vllm.plugins.module_utils._addons.servers import ServerHost
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints

DOCS = Path(__file__).resolve().parents[5] / "docs/speech.md"


def settings(**values: Any) -> dict[str, Any]:
    result, messages = ollama.read("spark-1", values)
    assert messages == []
    return result


def planned(values: dict[str, Any] | None = None, **more: Any) -> tuple[Any, Any, Any]:
    endpoints = more.pop("endpoints", ())
    host = ServerHost("spark-1", "192.168.1.11", **more)
    outcome, added, findings = ollama.plan(host, settings(**(values or {})), endpoints)
    return outcome, added, {finding.rule: finding for finding in findings}


def pairs(argv: list[str]) -> list[tuple[str, str]]:
    return list(zip(argv, argv[1:], strict=False))


def test_an_empty_mapping_is_the_fallback_of_the_report() -> None:
    values = settings()
    assert values["models"] == ["qwen3:8b"] and values["port"] == 11434
    assert set(values) == set(ollama.KEYS)
    assert re.search(r":\d+\.\d+\.\d+$", values["image"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "must be a mapping, not a list"),
        ({"model": "x"}, "unknown key 'model'; did you mean 'models'?"),
        ({"models": "qwen3:8b"}, "'models' is a text; it must be a list"),
        ({"models": ["qwen3 8b"]}, "'models' names 'qwen3 8b'; write NAME:TAG"),
        ({"models": ["llama3", "llama3:latest"]}, "'models' names llama3:latest twice"),
        ({"memory_gib": -1}, "'memory_gib' is -1; it must be a size"),
        ({"max_loaded_models": 0}, "'max_loaded_models' is 0; it must be a whole number from 1 to"),
        ({"context_length": True}, "'context_length' is a boolean"),
        ({"kv_cache_type": "fp8"}, "'kv_cache_type' is 'fp8'; it must be f16, q8_0 or q4_0"),
        ({"flash_attention": False}, "'kv_cache_type' is q8_0, which needs flash_attention"),
        ({"keep_alive": "soon"}, "'keep_alive' is 'soon'"),
        ({"on_demand": 20}, "'on_demand' is a number; it must be a mapping"),
        ({"on_demand": {"idle_minutes": 0}}, "'on_demand.idle_minutes' is 0"),
        ({"on_demand": {"idle": 5}}, "unknown key of on_demand: 'idle'; did you mean 'idle_minutes'?"),
        ({"on_demand": {"exclusive": "big"}}, "'on_demand.exclusive' is for engines. Ollama loads its models itself"),
        ({"on_demand": {"while_loading": "wait"}}, "'on_demand.while_loading' is for engines"),
        ({"on_demand": {}, "keep_alive": "5m"}, "'keep_alive' and 'on_demand' say the same in two ways"),
        ({"device": "cuda"}, "'device' is 'cuda'"),
        ({"models_dir": "models"}, "'models_dir' is 'models'; it must be an absolute path"),
        ({"models_dir": "/srv/a:b"}, "'models_dir' is '/srv/a:b': docker takes : for the end of a folder"),
        ({"gpu_overhead_gib": -2}, "'gpu_overhead_gib' is -2"),
        ({"env": {"OLLAMA_NUM_PARALLEL": 4}}, "'env' sets OLLAMA_NUM_PARALLEL, which follows from the keys"),
        ({"env": {"API_KEY": "x"}}, "'env' sets API_KEY, which looks like a secret"),
        ({"pull_timeout": 1}, "'pull_timeout' is 1"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(values: Any, message: str) -> None:
    _settings, messages = ollama.read("spark-1", values)
    assert message in "\n".join(messages)
    assert all(message.startswith("host spark-1, spark_ollama: ") for message in messages)


def test_its_own_settings_bound_it() -> None:
    values = {
        "num_parallel": 2,
        "max_loaded_models": 3,
        "context_length": 4096,
        "keep_alive": 300,
        "gpu_overhead_gib": 2.5,
    }
    env = planned(values)[0]["env"]
    assert env["OLLAMA_NUM_PARALLEL"] == "2"
    assert env["OLLAMA_MAX_LOADED_MODELS"] == "3"
    assert env["OLLAMA_CONTEXT_LENGTH"] == "4096"
    assert env["OLLAMA_KV_CACHE_TYPE"] == "q8_0" and env["OLLAMA_FLASH_ATTENTION"] == "1"
    assert env["OLLAMA_KEEP_ALIVE"] == "300"
    assert env["OLLAMA_GPU_OVERHEAD"] == str(5 * 2**29)
    assert env["OLLAMA_NO_CLOUD"] == "1"


@pytest.mark.parametrize(
    ("on_demand", "keep_alive"), [({}, "1200s"), ({"idle_minutes": 5}, "300s"), ({"idle_minutes": 0.1}, "6s")]
)
def test_on_demand_is_its_keep_alive(on_demand: dict[str, Any], keep_alive: str) -> None:
    outcome, _added, findings = planned({"on_demand": on_demand})
    assert outcome["env"]["OLLAMA_KEEP_ALIVE"] == keep_alive and "ollama.keep_alive" not in findings


def test_on_the_cpu_it_is_given_no_gpu() -> None:
    outcome, _added, _findings = planned({"device": "cpu"})
    assert "--gpus" not in outcome["argv"] and "OLLAMA_GPU_OVERHEAD" not in outcome["env"]
    assert ("--gpus", "all") in pairs(planned()[0]["argv"])


def test_container_endpoint_and_memory_follow() -> None:
    outcome, (endpoint,), _findings = planned({"models": ["qwen3:8b", "llama3"], "docker_args": ["--cpus", 4]})
    assert outcome["argv"][-1] == outcome["image"]
    assert ("--publish", "127.0.0.1:11434:11434") in pairs(outcome["argv"])
    assert ("--volume", "/srv/ollama:/models") in pairs(outcome["argv"]) and outcome["env"][
        "OLLAMA_MODELS"
    ] == "/models"
    assert ("--cpus", "4") in pairs(outcome["argv"])
    assert outcome["models"] == ["qwen3:8b", "llama3:latest"]  # as it lists them
    assert endpoint["models"] == ["qwen3:8b", "llama3"]  # as clients send them
    assert (endpoint["key"], endpoint["kind"], endpoint["health"]) == ("spark-1/ollama", "ollama", "/api/tags")
    sidecars = addons.sidecars({**dict.fromkeys(addons.SUBJECTS), "ollama": settings(memory_gib=9)})
    assert sidecars == [{"name": "ollama", "memory_gib": 9.0, "unit": "spark-ollama.service", "idle": True}]


@pytest.mark.parametrize(
    ("values", "gateway", "listen", "rule"),
    [
        ({}, "", "127.0.0.1", None),
        ({}, "forge", "192.168.1.11", "ollama.open"),
        ({"listen": "127.0.0.1"}, "forge", "127.0.0.1", "ollama.unreachable"),
    ],
)
def test_it_has_no_key_so_it_listens_on_loopback_unless_the_gateway_is_elsewhere(
    values: dict[str, Any], gateway: str, listen: str, rule: str | None
) -> None:
    outcome, (endpoint,), findings = planned(values, gateway=gateway)
    assert endpoint["listen"] == listen and outcome["url"] == f"http://{listen}:11434"
    assert set(findings) - {"ollama.download"} == ({rule} if rule else set())
    if rule == "ollama.open":
        assert "has no keys" in findings[rule].fix


@pytest.mark.parametrize(
    ("model", "gib"),
    [
        ("qwen3:8b", 4.8),
        ("qwen3:0.6b-q4_K_M", 0.36),
        ("mixtral:8x7b", 33.6),
        ("hf.co/x/Foo-3B-GGUF", 1.8),
        ("llama3", None),
    ],
)
def test_sizes_are_estimated_from_names(model: str, gib: float | None) -> None:
    assert ollama.estimate_gib(model) == (None if gib is None else pytest.approx(gib))


def test_models_that_will_not_fit_are_named_with_the_figure() -> None:
    finding = planned({"models": ["qwen3:32b"]})[2]["ollama.memory"]
    assert "about 20.2 GiB" in finding.message and "8 GiB are kept" in finding.message
    assert "memory_gib: 21" in finding.fix
    assert "ollama.memory" not in planned({"models": ["qwen3:8b", "qwen3:4b"]})[2]  # one at a time
    assert "ollama.memory" in planned({"models": ["qwen3:8b", "qwen3:4b"], "max_loaded_models": 2})[2]


def test_a_model_that_is_never_let_go_and_pulls_are_named() -> None:
    assert "ollama.keep_alive" in planned({"keep_alive": -1})[2]
    assert planned()[2]["ollama.download"].severity == "info"
    assert "ollama.download" not in planned({"models": []})[2]
    assert "llama3, qwen3:8b: pulled" in planned({"models": ["llama3", "qwen3:8b"]})[2]["ollama.download"].message


def test_ports_that_are_taken() -> None:
    engine = endpoints.make("spark-1", "", "heavy", "vllm", 11434, "127.0.0.1")
    assert planned(endpoints=(engine,))[2]["ollama.port"].severity == "error"
    system = {"port": 11434, "address": "127.0.0.1", "process": "ollama", "unit": "ollama.service"}
    assert "used by ollama.service" in planned(listening=[system])[2]["ollama.port_taken"].message


def test_the_page_says_where_each_of_its_settings_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert [name for name in ollama.environment_of(settings()) if f"`{name}`" not in text] == []
