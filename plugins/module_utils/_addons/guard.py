# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads C(spark_guard), C(spark_host_protection) and C(spark_gpu_clocks), and plans the role guard with C(power).

C(_runtime/guard.py) decides on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .._common import plain_data, schema, validation
from .._common.findings import Finding
from .._common.schema import NUMBER, Key
from .._runtime import guard
from . import power

DEFAULTS = guard.Settings()
LEAST_FLOOR_GIB, SHARE_OF_LEFT = 1.5, 0.75
"""A floor that nobody has set is no more than this share of what the plan leaves free, so that a host with all that it was planned for is not
short of memory all the time; and never below that."""

KEYS: dict[str, Key] = {
    "enabled": Key(bool, True, "guard the memory while engines serve"),
    "act": Key(bool, True, "take the steps; with false only log and count them"),
    "floor_gib": Key(
        NUMBER,
        None,
        f"memory is short below this `MemAvailable`; by default {DEFAULTS.floor_gib:g}, or three quarters of the planned free memory if less, "
        f"at least {LEAST_FLOOR_GIB:g}",
        least=0.25,
        most=64,
        unit="GiB",
    ),
    "start_floor_gib": Key(
        NUMBER,
        None,
        f"the same while an engine starts; by default {DEFAULTS.start_floor_gib:g}, or less in the same way",
        least=0.25,
        most=64,
        unit="GiB",
    ),
    "free_floor_gib": Key(
        NUMBER,
        DEFAULTS.free_floor_gib,
        "the page cache is dropped below this `MemFree`",
        least=0.25,
        most=64,
        unit="GiB",
    ),
    "contiguous_floor_gib": Key(
        NUMBER,
        DEFAULTS.contiguous_floor_gib,
        "memory is compacted when less is free in blocks of 2 MiB, which the driver needs",
        least=0.01,
        most=64,
        unit="GiB",
    ),
    "last_gib": Key(
        NUMBER,
        DEFAULTS.last_gib,
        "memory is critical below this `MemAvailable`, now or, at its current rate, in two seconds",
        least=0.1,
        most=64,
        unit="GiB",
    ),
    "pressure_percent": Key(
        NUMBER,
        DEFAULTS.pressure_percent,
        "share of time that all tasks wait for memory (PSI `full avg10`): short; critical at four times that",
        least=0.1,
        most=100,
    ),
    "swap_percent": Key(NUMBER, DEFAULTS.swap_percent, "share of swap in use: short", least=1, most=100),
    "interval_seconds": Key(
        NUMBER, DEFAULTS.interval_seconds, "seconds between two checks", least=0.1, most=60, unit="seconds"
    ),
    "calm_seconds": Key(
        NUMBER,
        DEFAULTS.calm_seconds,
        "seconds without a shortage until requests are admitted again",
        least=1,
        most=3600,
        unit="seconds",
    ),
    "idle": Key(bool, DEFAULTS.idle, "stop idle engines on demand; the next request starts them"),
    "refuse": Key(bool, DEFAULTS.refuse, "send the next engine no new requests from a gateway on this host"),
    "restart": Key(bool, DEFAULTS.restart, "restart the engine above its plan"),
    "stop": Key(bool, DEFAULTS.stop, "stop the least important engine as the last step"),
    "stop_for_others": Key(
        bool,
        DEFAULTS.stop_for_others,
        "stop an engine within its plan also if another program took the memory",
    ),
    "cooldown_minutes": Key(
        NUMBER, DEFAULTS.cooldown_minutes, "least minutes between two restarts of an engine", least=1, most=1440
    ),
    "max_restarts": Key(int, DEFAULTS.max_restarts, "most restarts of an engine within 24 hours", least=0, most=24),
    "order": Key(list, [], "services, the most important first; by default the order of the inventory"),
}
"""Keys of C(spark_guard). The floors are those that owners of Sparks run with: 5 GiB for a start, 3 GiB while serving."""

PROTECTION_KEYS: dict[str, Key] = {
    "enabled": Key(bool, True, "protect SSH and the journal"),
    "ssh_mib": Key(int, 512, "protected memory of sshd; 0 for none", least=0, most=16384, unit="MiB"),
    "sessions_mib": Key(int, 512, "of all user sessions together", least=0, most=16384, unit="MiB"),
    "journal_mib": Key(int, 128, "of the journal", least=0, most=16384, unit="MiB"),
    "hardware_watchdog_seconds": Key(
        int,
        60,
        "seconds without a sign of systemd until the board resets the host; 0: never",
        least=0,
        most=3600,
        unit="seconds",
    ),
}
"""Keys of C(spark_host_protection)."""

CLOCK_KEYS: dict[str, Key] = {
    "max_mhz": Key(int, None, "highest clock of the GPU", least=200, most=4000, unit="MHz"),
    "min_mhz": Key(int, 0, "lowest clock of the GPU", least=0, most=4000, unit="MHz"),
}
"""Keys of C(spark_gpu_clocks)."""


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_guard) as a person wrote it; return the settings with all defaults, and the problems.

    Floors that nobody has set are C(None); C(plan) works them out.
    """
    settings, problems = read_switched(host, "spark_guard", value, KEYS)
    if not problems.messages:
        floor, start = settings["floor_gib"] or DEFAULTS.floor_gib, settings["start_floor_gib"]
        if settings["last_gib"] > floor:
            problems.add(
                f"last_gib: is {settings['last_gib']:g}, above floor_gib ({floor:g}); memory is short before it is critical. Make it smaller."
            )
        if start is not None and start < floor:
            problems.add(
                f"start_floor_gib: is {start:g}, below floor_gib ({floor:g}); a start needs more room, not less. Make it larger."
            )
        problems.messages.extend(
            f"host {host}, spark_guard: order: {name!r} is not the name of a service."
            for name in settings["order"]
            if not isinstance(name, str)
        )
    numbers = [key for key, default in asdict(DEFAULTS).items() if isinstance(default, float)]
    return {**settings, **{key: settings[key] and float(settings[key]) for key in numbers}}, problems.messages


def floors(settings: Mapping[str, Any], left_gib: float | None) -> dict[str, float]:
    """Return C(floor_gib) and C(start_floor_gib), derived unless somebody has set them.

    :param left_gib: free memory by the plan, with all services that may run at once; None if unknown
    """
    most = DEFAULTS.start_floor_gib if left_gib is None else SHARE_OF_LEFT * left_gib
    floor, start = settings["floor_gib"], settings["start_floor_gib"]
    if floor is None:
        floor = max(LEAST_FLOOR_GIB, settings["last_gib"], min(DEFAULTS.floor_gib, most))
    if start is None:
        start = max(floor, min(DEFAULTS.start_floor_gib, most))
    return {"floor_gib": round(floor, 2), "start_floor_gib": round(max(start, floor), 2)}


def read_protection(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_host_protection); see C(read)."""
    settings, problems = read_switched(host, "spark_host_protection", value, PROTECTION_KEYS)
    return settings, problems.messages


def read_clocks(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_gpu_clocks): a mapping with C(max_mhz). Nothing, or an empty mapping, leaves the clocks alone."""
    problems = validation.Problems(f"host {host}, spark_gpu_clocks")
    settings = schema.defaults(CLOCK_KEYS)
    if value is None or value == {}:
        return settings, []
    if not isinstance(value, Mapping):
        problems.add(f"must be a mapping such as {{max_mhz: 2200}}, not {plain_data.kind(value)}.")
        return settings, problems.messages
    settings = schema.filled(problems, {str(key).replace("-", "_"): item for key, item in value.items()}, CLOCK_KEYS)
    if not problems.messages and settings["max_mhz"] is None:
        problems.add("max_mhz is missing: the highest clock in MHz, such as 2200.")
    elif not problems.messages and settings["min_mhz"] > settings["max_mhz"]:
        problems.add(f"min_mhz: is {settings['min_mhz']}, above max_mhz ({settings['max_mhz']}).")
    return settings, problems.messages


def read_switched(
    host: str, name: str, value: Any, keys: Mapping[str, Key]
) -> tuple[dict[str, Any], validation.Problems]:
    """Read a variable that is a boolean, a mapping of settings, or left out, which switches it on."""
    settings = schema.defaults(dict(keys))
    problems = validation.Problems(f"host {host}, {name}")
    if value is None or isinstance(value, bool):
        return {**settings, "enabled": value is not False}, problems
    if not isinstance(value, Mapping):
        problems.add(f"must be true, false or a mapping, not {plain_data.kind(value)}. Known keys: {', '.join(keys)}.")
        return settings, problems
    written = {str(key).replace("-", "_"): item for key, item in value.items()}
    return schema.filled(problems, written, dict(keys)), problems


def plan(
    host: str,
    settings: Mapping[str, Any],
    protection: Mapping[str, Any],
    clocks: Mapping[str, Any],
    services: Mapping[str, float | None],
    backends: Mapping[str, str],
    beside: Sequence[str],
    reserve_gib: float,
    sysroot: str = "/",
    helpers: Sequence[Mapping[str, Any]] = (),
    left_gib: float | None = None,
    power_asked: tuple[Sequence[str], Mapping[str, Any] | None, bool] = ((), None, False),
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the variables of the role guard, and findings.

    :param services: of the host's plan, in its order, with the planned memory of each in GiB, None if unknown
    :param backends: services with their keys at a gateway on this host
    :param beside: containers of add-on services, whose memory is planned
    :param reserve_gib: memory of everything but the services
    :param left_gib: free memory by the plan, with all services that may run at once; None if unknown
    """
    switches, power_findings = power.plan_idle(*power_asked)
    is_on = settings["enabled"] and bool(services)
    names = list(services)
    chosen = {**settings, **floors(settings, left_gib)}
    variables = {
        "state": "present" if is_on else "absent",
        "settings": {
            **{key: value for key, value in chosen.items() if key not in ("enabled", "order")},
            "order": _order(settings["order"], names),
            "services": {name: _service(planned, backends.get(name)) for name, planned in services.items()},
            "beside": sorted(beside),
            "helpers": [dict(helper) for helper in helpers],
            "reserve_gib": reserve_gib,
            "sysroot": sysroot,
        },
        "protection": {key: value for key, value in protection.items() if key != "enabled" and protection["enabled"]},
        "clocks": dict(clocks) if clocks["max_mhz"] else {},
        "power": {"switches": switches} if switches else {},
    }
    return variables, [*_findings(host, settings, names, left_gib if is_on else None), *power_findings]


def _order(written: Sequence[Any], services: list[str]) -> list[str]:
    """Return the services in the written order, then the others."""
    order = [name for name in written if name in services]
    return [*order, *(name for name in services if name not in order)]


def _service(planned_gib: float | None, backend: str | None) -> dict[str, Any]:
    """Return the settings of one service; unknown values are left out."""
    values = {"planned_gib": planned_gib, "backend": backend or None}
    return {key: value for key, value in values.items() if value is not None}


def _findings(host: str, settings: Mapping[str, Any], services: list[str], left_gib: float | None) -> list[Finding]:
    """Return findings for unknown services, and for a floor above the free memory of the plan."""
    findings = []
    for name in settings["order"]:
        if name not in services:
            nearest = validation.nearest(str(name), services)
            text = f"spark_guard.order of {host} names '{name}', which is no service of {host}{nearest}"
            fix = f"Take it out, or correct it. Services of {host}: {', '.join(services) or 'none'}."
            findings.append(Finding("guard.unknown_service", "warning", text, fix))
    floor = settings["floor_gib"]
    if left_gib is not None and floor is not None and floor > left_gib:
        text = (
            f"spark_guard.floor_gib of {host} is {floor:g} GiB, but the plan leaves {left_gib:.1f} GiB free: memory would be "
            "short all the time, and the guard would take its steps for nothing."
        )
        fix = "Take floor_gib out, which derives it; or leave more free (spark_safety_margin_gib)."
        findings.append(Finding("guard.floor", "warning", text, fix))
    return findings
