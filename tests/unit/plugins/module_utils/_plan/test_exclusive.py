"""Exclusive sets: memory is planned for the largest service, and one service of a set runs."""

from __future__ import annotations

from typing import Any

import pytest
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError

HEAVY = {"name": "heavy", "recipe": "qwen3-next-80b-a3b-instruct-fp8", "port": 8001}
FAST = {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8002}


def with_args(service: dict[str, Any], **args: Any) -> dict[str, Any]:
    return {**service, "args": {key.replace("_", "-"): value for key, value in args.items()}}


def plan_of(*services: dict[str, Any], measured: dict[str, Any] | None = None) -> dict[str, Any]:
    host_input = {"vars": {"spark_services": list(services)}, "address": "192.168.1.11", "measured": measured}
    planned: dict[str, Any] = engine.make_plan({"spark-1": host_input}, RECIPES)["hosts"]["spark-1"]
    return planned


BIG = with_args({**HEAVY, "name": "big", "port": 8003}, gpu_memory_utilization=0.8)


def of_set(service: dict[str, Any], name: str = "large", **more: Any) -> dict[str, Any]:
    return {**service, "exclusive": name, **more}


def rules(planned: dict[str, Any], severity: str = "error") -> list[str]:
    return [finding["rule"] for finding in planned["findings"] if finding["severity"] == severity]


def states(planned: dict[str, Any]) -> dict[str, str]:
    return {service["name"]: service["state"] for service in planned["services"]}


def running(*names: str) -> list[dict[str, str]]:
    return [{"name": f"spark-{name}.service", "active_state": "active"} for name in names]


HEAVY_80 = with_args(HEAVY, gpu_memory_utilization=0.8)


def test_two_that_never_run_at_once_need_the_memory_of_one() -> None:
    assert "memory.utilization_sum" in rules(plan_of(HEAVY_80, BIG))
    planned = plan_of(of_set(HEAVY_80), of_set(BIG))
    assert rules(planned) == []
    assert planned["utilization_sum"] == 0.8


def test_the_map_shows_the_largest_and_adds_up_to_the_node() -> None:
    small = with_args({**FAST}, gpu_memory_utilization=0.1)
    planned = plan_of(of_set(HEAVY_80), of_set(small))
    named = {part["service"] for part in planned["memory_map"]}
    assert "heavy" in named and "fast" not in named
    assert sum(part["gib"] for part in planned["memory_map"]) == pytest.approx(119.67, abs=0.1)


def test_a_third_service_is_planned_beside_the_largest() -> None:
    fast = with_args(FAST, gpu_memory_utilization=0.3)
    planned = plan_of(of_set(HEAVY_80), of_set(BIG), fast)
    assert "memory.utilization_sum" in rules(planned)
    assert rules(plan_of(of_set(HEAVY_80), of_set(BIG), with_args(FAST, gpu_memory_utilization=0.1))) == []


def test_what_is_open_is_solved_for_each_of_a_set_as_if_it_were_alone() -> None:
    open_heavy = with_args(HEAVY, max_model_len=65536, max_num_seqs=4)
    alone = plan_of(open_heavy)["utilization_sum"]
    both = plan_of(of_set(open_heavy), of_set({**open_heavy, "name": "twin", "port": 8009}))
    assert rules(both) == []
    shares = {s["name"]: s["args"]["gpu-memory-utilization"] for s in both["services"]}
    assert shares == {"heavy": alone, "twin": alone}


def test_one_that_runs_gives_its_memory_to_the_other() -> None:
    # 'heavy' holds 95 GiB, so 18 GiB are available; 'big' asks for 95.7 and takes its place.
    measured = {"mem_available_gib": 18.0, "resident": [{"name": "heavy", "gib": 95.0}]}
    services = [{"name": "heavy", "memory_gib": 95.0}, {"name": "big", "memory_gib": 100.0}]
    beside = memory_budget({"services": services, "measured": measured})
    assert beside["verdict"] == "fails"
    instead = memory_budget({"services": [{**s, "exclusive": "large"} for s in services], "measured": measured})
    assert instead["verdict"] == "fits"
    too_large = [
        {"name": "heavy", "memory_gib": 95.0, "exclusive": "large"},
        {"name": "big", "memory_gib": 116.0, "exclusive": "large"},
    ]
    assert memory_budget({"services": too_large, "measured": measured})["verdict"] == "fails"


def test_sets_of_other_names_run_beside_each_other() -> None:
    assert "memory.utilization_sum" in rules(plan_of(of_set(HEAVY_80, "one"), of_set(BIG, "two")))


def test_the_first_of_a_set_runs_unless_another_one_does() -> None:
    pair = (of_set(HEAVY_80), of_set(BIG))
    assert states(plan_of(*pair)) == {"heavy": "started", "big": "stopped"}
    memory = {"total_gib": 119.67, "available_gib": 110.0, "free_gib": 108.0}
    planned = plan_of(*pair, measured={"machine": {"is_spark": True}, "memory": memory, "units": running("big")})
    assert states(planned) == {"heavy": "stopped", "big": "started"}


def test_a_host_on_which_one_of_a_set_runs_plans_green() -> None:
    measured = {
        "machine": {"is_spark": True},
        "gpu": {"name": "NVIDIA GB10", "driver_version": "580.159.03"},
        "docker": {"version": "29.2.1", "runtimes": ["nvidia"]},
        "memory": {"total_gib": 119.67, "available_gib": 15.0, "free_gib": 15.0},
        "units": running("heavy"),
        "services": ["heavy", "big"],
        "resident": [{"name": "heavy", "gib": 95.0}],
    }
    planned = plan_of(of_set(HEAVY_80), of_set(BIG), measured=measured)
    assert rules(planned) == [] and planned["verdict"] != "fails"
    beside = plan_of(HEAVY_80, BIG, measured=measured)
    assert beside["verdict"] == "fails"


def test_a_port_is_not_wanted_by_what_is_stopped() -> None:
    measured = {
        "machine": {"is_spark": True},
        "gpu": {"name": "NVIDIA GB10", "driver_version": "580.159.03"},
        "docker": {"version": "29.2.1", "runtimes": ["nvidia"]},
        "listening": [{"port": 8002, "address": "127.0.0.1", "process": "other"}],
    }
    assert "host.port_taken" in rules(plan_of(FAST, measured=measured))
    assert "host.port_taken" not in rules(plan_of({**FAST, "state": "stopped"}, measured=measured))


PAIR_MODEL = {"name": "pair", "recipe": "qwen3-235b-a22b-gptq-int4", "port": 8005, "exclusive": "large"}


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        ({}, {"a": {"heavy": "started", "pair": "stopped"}, "b": {"pair": "stopped"}}),
        ({"a": ["pair"], "b": ["pair"]}, {"a": {"heavy": "stopped", "pair": "started"}, "b": {"pair": "started"}}),
    ],
)
def test_an_engine_over_two_hosts_stands_back_on_both(active: dict[str, list[str]], expected: dict[str, Any]) -> None:
    hosts: dict[str, Any] = {}
    for host in ("a", "b"):
        services = [of_set(HEAVY_80)] if host == "a" else []
        variables = {"spark_services": services, "spark_cluster": {"name": "two", "services": [PAIR_MODEL]}}
        measured = {"machine": {"is_spark": True}, "units": running(*active.get(host, []))}
        hosts[host] = {"vars": variables, "address": f"192.168.1.{ord(host)}", "measured": measured}
    planned = engine.make_plan(hosts, RECIPES, groups={"two": ["a", "b"]})["hosts"]
    assert {host: states(body) for host, body in planned.items()} == expected


def test_an_owner_who_stopped_a_service_has_the_last_word() -> None:
    assert states(plan_of({**HEAVY_80, "state": "stopped"}, FAST)) == {"heavy": "stopped", "fast": "started"}
    assert states(plan_of(of_set(HEAVY_80, state="stopped"), of_set(BIG))) == {"heavy": "stopped", "big": "started"}


def test_the_set_is_in_the_settings_of_its_services_alone() -> None:
    settings = {s["name"]: s["settings"].get("exclusive") for s in plan_of(of_set(HEAVY_80), FAST)["services"]}
    assert settings == {"heavy": "large", "fast": None}


def test_state_and_set_change_nothing_that_an_engine_is_started_from() -> None:
    plain = {s["name"]: s["fingerprint"] for s in plan_of(HEAVY_80)["services"]}
    assert {s["name"]: s["fingerprint"] for s in plan_of(of_set(HEAVY_80, state="stopped"))["services"]} == plain


@pytest.mark.parametrize(("key", "value"), [("state", "off"), ("exclusive", "Large Models"), ("exclusive", 3)])
def test_what_is_misspelt_is_told(key: str, value: Any) -> None:
    with pytest.raises(InventoryError) as caught:
        plan_of({**FAST, key: value})
    assert any(f"'{key}'" in message for message in caught.value.messages)


def test_a_number_that_comes_by_the_command_line_is_a_number() -> None:
    variables = {
        "vars": {"spark_services": [FAST], "spark_memory_timeout": "90", "spark_update_batch": "x"},
        "address": "h",
    }
    with pytest.raises(InventoryError) as caught:
        engine.make_plan({"spark-1": variables}, RECIPES)
    assert [message for message in caught.value.messages if "spark_memory_timeout" in message] == []
    assert any("'spark_update_batch' is a text" in message for message in caught.value.messages)
