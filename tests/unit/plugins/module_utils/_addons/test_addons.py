"""Add-on services, planned for a whole fleet: endpoints, memory and conflicts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError

FOLDER = Path(__file__).resolve().parents[5] / "playbooks" / "recipes"
NAMES = ("qwen3.6-35b-a3b-nvfp4", "gemma-4-26b-a4b")
MEASURED: dict[str, Any] = {"resident": [], "listening": [], "containers": [], "services": [], "disks": {}}
RECIPES = {name: yaml.safe_load((FOLDER / f"{name}.yml").read_text(encoding="utf-8")) for name in NAMES}

KEY = {"api_key_file": "/keys/engine"}
GATEWAY = {
    "master_key_file": "/keys/master",
    "clients": [{"name": "hermes", "key_file": "/keys/hermes", "aliases": ["spark-qwen36"]}],
    "aliases": {
        "spark-qwen36": {"backends": ["spark-1/qwen36"], "fallback": ["spark-gemma4"]},
        "spark-gemma4": {"backends": ["spark-2/gemma4"]},
        "spark8b": {"backends": ["spark-1/ollama"]},
    },
}


def spark(number: int, service: dict[str, Any], **variables: Any) -> dict[str, Any]:
    shared = {"spark_defaults": KEY, "spark_exporters": {}}
    return {"vars": {"spark_services": [service], **shared, **variables}, "address": f"192.168.1.1{number}"}


def fleet(**first: Any) -> dict[str, Any]:
    qwen = {"name": "qwen36", "recipe": NAMES[0], "port": 8001, "args": {"gpu-memory-utilization": 0.55}}
    gemma = {"name": "gemma4", "recipe": NAMES[1], "port": 8001, "args": {"gpu-memory-utilization": 0.80}}
    beside = {"spark_speech": [{"name": "asr", "kind": "asr"}], "spark_ollama": {"models": ["qwen3:8b"]}}
    return {"spark-1": spark(1, qwen, **{**beside, **first}), "spark-2": spark(2, gemma)}


def forge(**variables: Any) -> dict[str, Any]:
    return {"forge": {"vars": {"spark_gateway": GATEWAY, **variables}, "address": "192.168.1.20"}}


def plan(hosts: dict[str, Any] | None = None, other_hosts: dict[str, Any] | None = None) -> dict[str, Any]:
    return engine.make_plan(hosts or fleet(), RECIPES, other_hosts=other_hosts)


def rules(made: dict[str, Any], severity: str) -> set[str]:
    return {finding["rule"] for finding in engine.plan_findings(made) if finding["severity"] == severity}


def test_a_fleet_with_all_of_it_has_no_error() -> None:
    made = plan(
        other_hosts=forge(
            spark_clients={"hermes": {"model": "spark-qwen36"}},
            spark_monitoring={"grafana": "none"},
            spark_fleet_monitor={"notify": [{"webhook": {"url": "http://192.168.1.20:9/"}}]},
        )
    )
    assert rules(made, "error") == set()
    # The images of Sparks are in bundles; the other host is no Spark.
    assert made["hosts"]["spark-1"]["images_beside"] == [
        "ghcr.io/achetronic/parakeet:0.8.0-int8",
        "ollama/ollama:0.33.3",
    ]
    assert made["hosts"]["spark-2"]["images_beside"] == []
    front = made["addons"]["forge"]
    assert all(front[role] for role in ("gateway", "clients", "monitoring", "fleet_monitor"))
    assert front["watchdog"] is front["exporters"] is front["speech"] is None
    names = {entry["model_name"] for entry in front["gateway"]["config"]["model_list"]}
    assert set(GATEWAY["aliases"]) <= names
    watched = {check["key"] for check in front["fleet_monitor"]["settings"]["endpoints"]}
    assert watched == {"spark-1/qwen36", "spark-2/gemma4", "spark-1/asr", "spark-1/ollama", "forge/gateway"}
    access = next(c for c in front["fleet_monitor"]["settings"]["endpoints"] if c["key"] == "forge/gateway")
    assert {"spark-qwen36", "gemma4"} <= set(access["models"]) and not {"asr", "spark8b"} & set(access["models"])
    jobs = {job["name"]: job["targets"] for job in front["monitoring"]["jobs"]}
    assert len(jobs["node"]) == len(jobs["vllm"]) == 2 and len(jobs["gateway"]) == 1


def test_a_slow_engine_is_waited_for_by_gateway_and_clients() -> None:
    slow = {"spark_gateway": {**GATEWAY, "prefill_rates": {"spark-1/qwen36": 100}}}
    wished = {"open_webui": {"listen": "127.0.0.1"}, "hermes": {"model": "spark-gemma4"}}
    front = plan(other_hosts=forge(**slow, spark_clients=wished))["addons"]["forge"]
    entries = {entry["model_name"]: entry for entry in front["gateway"]["config"]["model_list"]}
    length = entries["spark-qwen36"]["model_info"]["max_input_tokens"]
    router = front["gateway"]["config"]["router_settings"]
    assert router["stream_timeout"] >= 1.5 * length / 100 > 600
    assert front["clients"]["open_webui"]["env"]["AIOHTTP_CLIENT_TIMEOUT"] == str(router["timeout"])
    provider = front["clients"]["hermes"]["config"]["providers"]["dgxspark"]
    params = entries["spark-gemma4"]["litellm_params"]
    assert (provider["request_timeout_seconds"], provider["stale_timeout_seconds"]) == (
        params["timeout"],
        params["stream_timeout"],
    )
    assert params["timeout"] < router["timeout"]


def test_what_runs_beside_an_engine_takes_its_memory() -> None:
    """It is taken from an engine whose share is worked out, and charged to one whose share is given."""
    alone, beside = fleet(spark_speech=None, spark_ollama=None), fleet()
    free = [
        next(part["gib"] for part in plan(hosts)["hosts"]["spark-1"]["memory_map"] if part["label"] == "free")
        for hosts in (alone, beside)
    ]
    held = 7.0  # of Ollama, and of Parakeet
    assert free[0] - free[1] > held
    labels = [part["label"] for part in plan(beside)["hosts"]["spark-1"]["memory_map"]]
    assert any("ollama" in label for label in labels) and any("asr" in label for label in labels)


def test_what_runs_already_is_not_charged_twice() -> None:
    """MemAvailable excludes running servers; the others have to fit into it."""
    memory = {"total_gib": 119.67, "available_gib": 65.0}  # the engine asks for 65.8
    units = [{"name": "spark-asr.service", "active_state": "active"}]
    messages = []
    for running in ([], units):
        hosts = fleet(spark_ollama=None)
        hosts["spark-1"]["measured"] = {**MEASURED, "memory": memory, "units": running}
        findings = engine.make_plan(hosts, RECIPES)["hosts"]["spark-1"]["findings"]
        messages += [finding["message"] for finding in findings if finding["rule"] == "memory.node"]
    missing = [float(re.search(r"([\d.]+) GiB are missing", message)[1]) for message in messages]  # type: ignore[index]
    assert missing[0] - missing[1] == pytest.approx(4.0, abs=0.01), messages


def test_a_model_that_ollama_holds_goes_before_an_engine_starts_and_may_come_back() -> None:
    """The gate unloads the model, so it is not counted as missing memory; the memory that Ollama may take later is."""
    available = 76.0  # the engine asks for 65.8, and stays; Ollama may take 8
    messages = []
    for holds in (0.0, 8.0):
        hosts = fleet(spark_speech=None)
        hosts["spark-1"]["measured"] = {
            **MEASURED,
            "memory": {"total_gib": 119.67, "available_gib": available - holds},
            "units": [{"name": "spark-ollama.service", "active_state": "active"}],
            "resident": [{"name": "ollama", "gib": holds}] if holds else [],
        }
        messages.append(
            {rule for rule in rules(engine.make_plan(hosts, RECIPES), "error") if rule.startswith("memory.")}
        )
    assert messages == [set(), set()]


@pytest.mark.parametrize(
    ("hosts", "other_hosts", "rule"),
    [
        (fleet(spark_defaults={}), forge(), "gateway.backend_on_loopback"),
        (
            fleet(),
            forge(spark_gateway={**GATEWAY, "aliases": {"x": {"backends": ["spark-1/qwen"]}}}),
            "gateway.unknown",
        ),
        (fleet(spark_clients={"hermes": {"model": "x"}}), None, "clients.gateway"),
        (fleet(spark_speech=[{"name": "asr", "kind": "asr", "port": 8001}]), None, "speech.port"),
    ],
)
def test_what_cannot_work_is_an_error_before_anything_starts(hosts: Any, other_hosts: Any, rule: str) -> None:
    errors = rules(plan(hosts, other_hosts), "error")
    assert any(error.startswith(rule) for error in errors), errors


def test_all_that_is_malformed_is_told_at_once() -> None:
    hosts = fleet(
        spark_watchdog={"windw_seconds": 3}, spark_load_guard=3, spark_speech=[{"name": "asr"}], spark_gatway={}
    )
    with pytest.raises(InventoryError) as caught:
        plan(hosts, {"forge": {"vars": {"spark_fleet_monitor": {"notify": [{}]}}, "address": "x"}})
    text = "\n".join(caught.value.messages)
    for words in (
        "host spark-1, spark_watchdog: unknown key 'windw_seconds'; did you mean 'window_seconds'?",
        "host spark-1, spark_load_guard: must be true, false or a mapping",
        "host spark-1, spark_speech[0]",
        "host spark-1: unknown variable 'spark_gatway'; did you mean 'spark_gateway'?",
        "host forge, spark_fleet_monitor: notify[0]",
    ):
        assert words in text, text


def test_names_are_used_once_on_a_host() -> None:
    hosts = fleet(spark_sidecars=[{"name": "ollama", "memory_gib": 3}])
    with pytest.raises(InventoryError, match="the name 'ollama' of spark_sidecars is already the name of a service"):
        plan(hosts)


def test_the_guard_of_a_start_is_in_the_settings_of_each_service() -> None:
    made = plan(fleet(spark_load_guard={"floor_gib": 5}))
    (service,) = made["hosts"]["spark-1"]["services"]
    assert service["settings"]["load_guard"]["floor_gib"] == 5
    (service,) = plan(fleet(spark_load_guard=False))["hosts"]["spark-1"]["services"]
    assert service["settings"]["load_guard"]["enabled"] is False


def test_the_watchdog_is_on_unless_it_is_switched_off() -> None:
    assert plan()["addons"]["spark-1"]["watchdog"]["state"] == "present"
    assert plan(fleet(spark_watchdog=False))["addons"]["spark-1"]["watchdog"]["state"] == "absent"


def test_a_service_knows_the_gateway_that_drains_it() -> None:
    made = plan(other_hosts=forge())
    services = {name: body["services"][0] for name, body in made["hosts"].items()}
    assert services["spark-2"]["gateway"] == {"host": "forge", "backend": "spark-2/gemma4"}
    assert plan()["hosts"]["spark-2"]["services"][0]["gateway"] is None
    only = forge(spark_gateway={**GATEWAY, "serve": "none", "aliases": {"a": {"backends": ["spark-1/qwen36"]}}})
    services = {name: body["services"][0]["gateway"] for name, body in plan(other_hosts=only)["hosts"].items()}
    assert services["spark-1"] and services["spark-2"] is None


def test_the_agent_knows_what_its_questions_depend_on() -> None:
    quality = {"spark_watchdog": {"quality": True}}
    made = plan(fleet(**quality, spark_gateway=GATEWAY))
    facts = made["addons"]["spark-1"]["watchdog"]["settings"]["engines"]["qwen36"]
    assert facts["backend"] == "spark-1/qwen36" and facts["tools"] is True and facts["length"] > 0
    # A gateway elsewhere is not the agent's to change.
    facts = plan(fleet(**quality), forge())["addons"]["spark-1"]["watchdog"]["settings"]["engines"]["qwen36"]
    assert "backend" not in facts
