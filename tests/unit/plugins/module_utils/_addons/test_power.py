# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The switches of C(spark_power): settings, the choice by version and image, and what a host cannot have."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import power
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue_data

KNOB = "VLLM_SHM_BROADCAST_BUSY_LOOP_S"
FACTS = {"cx7_hotplug": True, "cx7_cable": False, "governors": ["performance", "schedutil"]}


def test_everything_is_off_by_default() -> None:
    for value in (None, {}, {"idle": "default", "spin_wait": "default"}):
        settings, wrong = power.read("spark-1", value)
        assert settings == {"spin_wait": "default", "idle": []} and not wrong
    assert power.plan_idle([], FACTS, False) == ([], [])


def test_save_has_the_switches_that_somebody_measured() -> None:
    settings, wrong = power.read("spark-1", {"spin_wait": "low", "idle": "save"})
    assert settings == {"spin_wait": "low", "idle": ["cx7_hotplug"]} and not wrong


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "must be a mapping"),
        ("save", "must be a mapping"),
        ({"idle": "all"}, "idle: is 'all'"),
        ({"idle": ["cx7_hotplug", "magic"]}, "a list of cx7_hotplug"),
        ({"idle": [["cx7_hotplug"]]}, "a list of cx7_hotplug"),
        ({"idle": {"save": True}}, "idle"),
        ({"spin_wait": "never"}, "spin_wait"),
        ({"spin": "low"}, "spin"),
    ],
)
def test_wrong_values_are_refused(value: Any, reason: str) -> None:
    settings, wrong = power.read("spark-1", value)
    assert len(wrong) == 1 and reason in wrong[0] and "spark-1" in wrong[0]
    assert settings["idle"] == [] or settings["idle"] == ["cx7_hotplug"]


@pytest.mark.parametrize(
    ("version", "features", "processes", "env", "set_env", "severity", "words"),
    [
        ("0.31.0", [KNOB[5:]], 2, {}, {KNOB: "0.002"}, "info", "0.002. Published, not measured here"),
        ("0.31.0", [KNOB[5:]], 2, {KNOB: "0.01"}, {}, "info", f"{KNOB} is 0.01"),
        (None, ["SPARKRING_SHM_BUSY_LOOP_S"], 2, {}, {"SPARKRING_SHM_BUSY_LOOP_S": "0.002"}, "info", "1 to 2 %"),
        ("0.31.0", [KNOB[5:]], 1, {}, {}, "info", "one process"),
        ("0.11.0", [], 2, {}, {"VLLM_SLEEP_WHEN_IDLE": "1"}, "warning", "idle engines alone"),
        ("0.11.0", [], 2, {"VLLM_SLEEP_WHEN_IDLE": "0"}, {}, "warning", "idle engines alone"),
        ("0.17.1", [], 2, {}, {"VLLM_SLEEP_WHEN_IDLE": "1"}, "warning", "idle engines alone"),
        ("0.18.0", [], 2, {}, {}, "warning", "has no switch"),
        ("0.33.0", [], 4, {}, {}, "warning", "has no switch"),
        ("0.99.0", [], 2, {}, {}, "warning", "unknown"),
        (None, [], 2, {}, {}, "warning", "unknown"),
        ("garbage", [], 2, {}, {}, "warning", "unknown"),
    ],
)
def test_the_switch_against_busy_waiting(
    version: str | None, features: list[str], processes: int, env: Any, set_env: Any, severity: str, words: str
) -> None:
    made, finding = power.spin_wait("heavy", version, features, processes, env)
    assert made == set_env
    assert finding.rule == "power.spin_wait" and finding.severity == severity and words in finding.message


def test_every_version_of_the_catalogue_has_an_answer() -> None:
    for version in catalogue_data.VERSIONS.split():
        made, finding = power.spin_wait("heavy", version, [], 2, {})
        assert "unknown" not in finding.message
        assert bool(made) is (tuple(map(int, version.split(".")[:2])) < (0, 18))


@pytest.mark.parametrize(
    ("names", "facts", "is_cabled", "planned", "words"),
    [
        (["cx7_hotplug"], FACTS, False, ["cx7_hotplug"], "40 to 25 W"),
        (["cx7_hotplug"], None, False, ["cx7_hotplug"], "40 to 25 W"),
        (["cx7_hotplug"], {**FACTS, "cx7_cable": None}, False, ["cx7_hotplug"], "40 to 25 W"),
        (["cx7_hotplug"], FACTS, True, [], "the plan uses the QSFP cables"),
        (["cx7_hotplug"], {**FACTS, "cx7_cable": True}, False, [], "a QSFP cable is plugged in"),
        (["cx7_hotplug"], {**FACTS, "cx7_hotplug": False}, False, [], "no driver cx7-pcie-hotplug"),
        (["cpu_governor"], FACTS, True, ["cpu_governor"], "an estimate"),
        (["cpu_governor"], {**FACTS, "governors": ["performance"]}, False, [], "only performance"),
        (["cpu_governor"], {**FACTS, "governors": []}, False, [], "only none"),
        (["display_reserve"], FACTS, False, [], "patched driver"),
        (["pcie_aspm"], FACTS, False, [], "no ASPM"),
        (["gpu_clocks"], FACTS, False, [], "lowers its clock by itself"),
    ],
)
def test_a_switch_of_an_idle_spark_is_planned_or_refused_with_the_reason(
    names: list[str], facts: Any, is_cabled: bool, planned: list[str], words: str
) -> None:
    made, (finding,) = power.plan_idle(names, facts, is_cabled)
    assert made == planned and words in finding.message
    assert finding.severity == ("info" if planned else "warning")
    assert bool(finding.fix) is not bool(planned) and finding.source
    if planned:
        assert "Published, not measured here" in finding.message


def test_every_switch_names_its_change_effect_source_and_undo() -> None:
    switches = power.DESCRIPTION["idle_switches"]
    assert set(power.DESCRIPTION["idle_save"]) <= set(switches)
    for name, switch in switches.items():
        assert switch["changes"] and switch["published"] and switch["source"], name
        assert (switch["changes"] == "nothing") is bool(switch.get("refused"))
        assert name in power.KEYS["idle"].meaning


@pytest.mark.parametrize(("features", "is_set"), [([KNOB[5:]], True), ([], False)])
def test_the_plan_sets_the_variable_in_the_environment_of_the_engine(features: list[str], is_set: bool) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
    }
    service = {
        "name": "fast",
        "port": 8001,
        "image": {"ref": "example.org/fork:1", "vllm_version": "0.31.0", "entrypoint": "serve"},
        "model": {"repo": "Qwen/Qwen3-4B"},
        "config": config,
        "args": {"tensor-parallel-size": 2, "max-model-len": 4096, "gpu-memory-utilization": 0.5},
    }
    variables = {
        "spark_services": [service],
        "spark_total_gib": 119.67,
        "spark_power": {"spin_wait": "low", "idle": "save"},
        "spark_image_catalogue": [{"image": "example.org/fork:1", "vllm_version": "0.31.0", "features": features}],
    }
    plan = engine.make_plan({"spark-1": {"vars": variables, "address": "192.0.2.1"}}, {})
    (planned,) = plan["hosts"]["spark-1"]["services"]
    assert planned["env"].get(KNOB) == ("0.002" if is_set else None)
    rules = [finding["rule"] for finding in engine.plan_findings(plan)]
    assert rules.count("power.spin_wait") == 1 and rules.count("power.idle") == 1 and "SPK829" not in rules
    assert plan["addons"]["spark-1"]["guard"]["power"] == {"switches": ["cx7_hotplug"]}
