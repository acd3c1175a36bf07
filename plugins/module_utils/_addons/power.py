# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads C(spark_power), and plans its switches: against busy-waiting processes of an engine, and for the watts of an idle Spark.

Every switch is a row with its source. The published figures are others' measurements or estimates; this collection has measured none of them
on a Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._common import schema
from .._common.findings import Finding
from .._common.schema import Key
from .._common.validation import Problems
from .._vllm import catalogue, versions


@dataclass(frozen=True)
class Switch:
    """A switch of C(spark_power.idle).

    changes: on the host. published: effect, and what it costs. refused: why it is not switched, empty if it can be.
    """

    changes: str
    published: str
    source: str
    refused: str = ""


IDLE: Mapping[str, Switch] = {
    "cx7_hotplug": Switch(
        "arms NVIDIA's hot-plug of the ConnectX-7 and takes the adapter off the bus while no QSFP cable is plugged in",
        "40 to 25 W at idle; four Sparks 202 to 120 W. Costs: the fan of two owners stopped without the adapter, and a cable "
        "plugged in later runs at 13 Gb/s until the host was without power",
        "graham33/nixos-dgx-spark#165; ajclark/dgx-spark-idle-power; release notes of DGX OS, January 2026; NVIDIA forum t/378945",
    ),
    "cpu_governor": Switch(
        "sets the governor of all CPUs to schedutil, in place of performance",
        "0 to 2 W by an estimate; the cost in tokens/s is unknown",
        "ajclark/dgx-spark-idle-power, docs/IDLE-POWER.md",
    ),
    "gpu_clocks": Switch(
        "nothing",
        "0 to 5 W by an estimate, where a lock keeps the clock up",
        "ajclark/dgx-spark-idle-power, docs/IDLE-POWER.md",
        "the GPU lowers its clock by itself unless it is locked. Set spark_gpu_clocks without min_mhz",
    ),
    "pcie_aspm": Switch(
        "nothing",
        "0 to 3 W by an estimate, of NVMe, Realtek and Wi-Fi",
        "ajclark/dgx-spark-idle-power, docs/IDLE-POWER.md",
        "the ConnectX-7 has no ASPM, firmware disables it on all links, and it is known to hang Realtek adapters. Use cx7_hotplug",
    ),
    "display_reserve": Switch(
        "nothing",
        "2,046 MiB in a patched driver; about 1.75 GiB at 60 to 70 % of the bandwidth through DRM buffers",
        "NVIDIA forum t/384621; MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#234 (open)",
        "it takes a patched driver or an engine that allocates DRM buffers, which DGX OS and the images of the catalogue do not have",
    ),
}
"""Switches by name."""
SAVE = ("cx7_hotplug",)
"""Switches of C(idle: save): those whose watts somebody has measured."""

KEYS: dict[str, Key] = {
    "spin_wait": Key(str, "default", "busy-waiting of engines with several processes", choices=("default", "low")),
    "idle": Key(
        (str, list),
        "default",
        f"switches of an idle Spark: `save` for {', '.join(SAVE)}, or a list of {', '.join(IDLE)}",
    ),
}
"""Keys of C(spark_power)."""

WINDOW = "0.002"
"""Seconds that a reader waits busily, instead of 1: the value of all reports."""
SPIN_VARIABLES: Mapping[str, tuple[str, str]] = {
    "VLLM_SHM_BROADCAST_BUSY_LOOP_S": (
        "333 to 89 % of a CPU, 11 to 20 degrees less at the same speed; another pair +9.9 % tokens/s and no degrees",
        "vllm-project/vllm#52814 (open); MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#79",
    ),
    "SPARKRING_SHM_BUSY_LOOP_S": ("1 to 2 % fewer decode steps per second", "FujitsuPolycom/sparkring#189"),
    "VLLM_MQ_SPIN_SECONDS": ("333 to 89 % of a CPU", "vllm-project/vllm#51950 (closed)"),
}
"""Variables of forked images that shorten busy-waiting, with the published effect and the source."""
SLEEP_WHEN_IDLE = "VLLM_SLEEP_WHEN_IDLE"
"""Of vLLM up to 0.17.1: a reader without a message for 3 s looks ten times a second. Later versions sleep after 1 s by themselves."""


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_power) as a person wrote it; return the settings with all defaults, C(idle) as a list of switches, and the problems."""
    problems = Problems(f"host {host}, spark_power")
    settings = schema.defaults(KEYS)
    if value is not None and not isinstance(value, Mapping):
        problems.add("must be a mapping such as {spin_wait: low, idle: save}.")
    elif value:
        settings = schema.filled(problems, {str(key): item for key, item in value.items()}, KEYS)
    idle = settings["idle"]
    switches = {"default": [], "save": list(SAVE)}.get(idle) if isinstance(idle, str) else idle
    if switches is None or any(not isinstance(name, str) or name not in IDLE for name in switches):
        problems.add(f"idle: is {idle!r}; it must be 'save', 'default' or a list of {', '.join(IDLE)}.")
        switches = []
    return {**settings, "idle": list(dict.fromkeys(switches))}, problems.messages


def spin_wait(
    service: str, version: str | None, features: Sequence[str], processes: int, env: Mapping[str, str]
) -> tuple[dict[str, str], Finding]:
    """Return the environment that makes an engine wait less busily, and a finding with the variable, or with the reason for none.

    :param features: names that its image knows, without C(VLLM_)
    :param processes: workers of the engine
    """
    release = versions.parse_version(version or "")
    if processes < 2:
        return {}, _spin_finding(service, "info", "it has one process, which does not wait in a loop; nothing is set.")
    for name, (published, source) in SPIN_VARIABLES.items():
        if name in env or name.removeprefix("VLLM_") in features:
            text = f"{name} is {env.get(name, WINDOW)}. Published, not measured here: {published}."
            return {} if name in env else {name: WINDOW}, _spin_finding(service, "info", text, source=source)
    knows = catalogue.has("environment", SLEEP_WHEN_IDLE.removeprefix("VLLM_"), release)
    if knows:
        text = f"vLLM {version} has a switch for idle engines alone, {SLEEP_WHEN_IDLE}: 1; while it decodes it waits busily."
        added = {} if SLEEP_WHEN_IDLE in env else {SLEEP_WHEN_IDLE: "1"}
        return added, _spin_finding(service, "warning", text, source="shm_broadcast.py of vLLM 0.10.1 to 0.17.1")
    fix = "Use an image with VLLM_SHM_BROADCAST_BUSY_LOOP_S, or remove spin_wait."
    if knows is None or not catalogue.was_read(release):
        text = f"it is unknown whether vLLM {version or 'of this image'} has a switch; nothing is set."
        return {}, _spin_finding(service, "warning", text, "Let site.yml ask the image, or set the variable in env.")
    text = f"vLLM {version} has no switch: a reader waits busily for a second after each message, which never ends while it decodes."
    return {}, _spin_finding(
        service, "warning", text, fix, "SpinCondition in shm_broadcast.py of vLLM 0.18.0 to 0.33.0"
    )


def _spin_finding(service: str, severity: str, text: str, fix: str = "", source: str = "") -> Finding:
    return Finding("power.spin_wait", severity, f"spark_power.spin_wait: low: {text}", fix, service, source=source)


def plan_idle(
    switches: Sequence[str], facts: Mapping[str, Any] | None, is_cabled: bool
) -> tuple[list[str], list[Finding]]:
    """Return the switches that a host can have, and a finding for each asked one.

    :param is_cabled: the plan uses its QSFP cables
    """
    planned, findings = [], []
    for name in switches:
        switch = IDLE[name]
        reason = switch.refused or _refusal_reason(name, facts, is_cabled)
        text = f"spark_power.idle: {name} {switch.changes}. Published, not measured here: {switch.published}."
        if reason:
            text = f"spark_power.idle: {name} is not switched: {reason}."
        else:
            planned.append(name)
        severity, fix = ("warning", f"Remove {name} from spark_power.idle.") if reason else ("info", "")
        findings.append(Finding("power.idle", severity, text, fix, source=switch.source))
    return planned, findings


def _refusal_reason(name: str, facts: Mapping[str, Any] | None, is_cabled: bool) -> str:
    """Return why a host cannot have a switch, empty if it can or if that is unknown: the unit looks again before it changes anything."""
    power_facts = facts or {}
    if name == "cx7_hotplug" and is_cabled:
        return "the plan uses the QSFP cables of this host"
    if name == "cx7_hotplug" and power_facts.get("cx7_hotplug") is False:
        return "the host has no driver cx7-pcie-hotplug or no handler of NVIDIA's package dgx-spark-mlnx-hotplug"
    if name == "cx7_hotplug" and power_facts.get("cx7_cable"):
        return "a QSFP cable is plugged in"
    governors = power_facts.get("governors")
    if name == "cpu_governor" and governors is not None and "schedutil" not in governors:
        return f"its kernel has no governor schedutil, only {', '.join(governors) or 'none'}"
    return ""
