# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads C(spark_power), and plans its switches: against busy-waiting processes of an engine, and for the watts of an idle Spark.

C(roles/guard/meta/addon.yml) has the switches with their sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._common import schema
from .._common.findings import Finding
from .._common.validation import Problems
from .._vllm import catalogue, versions
from .descriptions import DESCRIPTIONS, finding, options

KEYS = options("spark_power")
DESCRIPTION = DESCRIPTIONS["guard"]
WINDOW = "0.002"
"""Seconds that a reader waits busily, instead of 1: the value of all reports."""
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
    idle, known = settings["idle"], DESCRIPTION["idle_switches"]
    switches = {"default": [], "save": DESCRIPTION["idle_save"]}.get(idle) if isinstance(idle, str) else idle
    if switches is None or any(not isinstance(name, str) or name not in known for name in switches):
        problems.add(f"idle: is {idle!r}; it must be 'save', 'default' or a list of {', '.join(known)}.")
        switches = []
    return {**settings, "idle": list(dict.fromkeys(switches))}, problems.messages


def spin_wait(
    service: str, version: str | None, features: Sequence[str], processes: int, env: Mapping[str, str]
) -> tuple[dict[str, str], Finding]:
    """Return the environment that makes an engine wait less busily, and a finding about it. features: names that its image knows, without C(VLLM_)."""
    rule, release = "power.spin_wait", versions.parse_version(version or "")
    if processes < 2:
        return {}, finding(rule, service, f"{rule}.one_process")
    for name, published in DESCRIPTION["spin_variables"].items():
        if name in env or name.removeprefix("VLLM_") in features:
            values = {"name": name, "value": env.get(name, WINDOW), "published": published["published"]}
            found = finding(rule, service, f"{rule}.variable", source=published["source"], **values)
            return {} if name in env else {name: WINDOW}, found
    knows = catalogue.has("environment", SLEEP_WHEN_IDLE.removeprefix("VLLM_"), release)
    if knows:
        added = {} if SLEEP_WHEN_IDLE in env else {SLEEP_WHEN_IDLE: "1"}
        return added, finding(rule, service, f"{rule}.idle_engines", version=version, name=SLEEP_WHEN_IDLE)
    if knows is None or not catalogue.was_read(release):
        return {}, finding(rule, service, f"{rule}.unknown", version=version or "of this image")
    return {}, finding(rule, service, f"{rule}.none", version=version)


def plan_idle(
    switches: Sequence[str], facts: Mapping[str, Any] | None, is_cabled: bool
) -> tuple[list[str], list[Finding]]:
    """Return the switches that a host can have, and a finding for each asked one.

    :param is_cabled: the plan uses its QSFP cables
    """
    planned, findings = [], []
    for name in switches:
        switch = DESCRIPTION["idle_switches"][name]
        reason = switch.get("refused") or _refusal_reason(name, facts, is_cabled)
        if not reason:
            planned.append(name)
        like = "power.idle.refused" if reason else "power.idle"
        findings.append(finding("power.idle", "", like, name=name, reason=reason, **switch))
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
