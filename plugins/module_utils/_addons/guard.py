# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads C(spark_guard), C(spark_load_guard), C(spark_host_protection) and C(spark_gpu_clocks), and plans the role guard with C(power).

C(_runtime/guard.py) and C(_runtime/load_guard.py) decide on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .._common import plain_data, schema, validation
from .._common.findings import Finding
from .._common.schema import Key
from . import power
from .descriptions import PROGRAMS, finding, options

DEFAULTS = PROGRAMS["guard"]
LEAST_FLOOR_GIB, SHARE_OF_LEFT = 1.5, 0.75
"""A floor that nobody has set is no more than this share of what the plan leaves free, so that a host with all that it was planned for is not
short of memory all the time; and never below that."""
KEYS = options("spark_guard")
LOAD_KEYS = options("spark_load_guard")
PROTECTION_KEYS = options("spark_host_protection")
CLOCK_KEYS = options("spark_gpu_clocks")


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


def read_load_guard(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_load_guard); see C(read)."""
    settings, problems = read_switched(host, "spark_load_guard", value, LOAD_KEYS)
    return {**settings, **{key: float(settings[key]) for key in asdict(PROGRAMS["load_guard"])}}, problems.messages


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
    settings = schema.defaults(keys)
    problems = validation.Problems(f"host {host}, {name}")
    if value is None or isinstance(value, bool):
        return {**settings, "enabled": value is not False}, problems
    if not isinstance(value, Mapping):
        problems.add(f"must be true, false or a mapping, not {plain_data.kind(value)}. Known keys: {', '.join(keys)}.")
        return settings, problems
    written = {str(key).replace("-", "_"): item for key, item in value.items()}
    return schema.filled(problems, written, keys), problems


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
    known = ", ".join(services) or "none"
    findings = [
        finding(
            "guard.unknown_service",
            host=host,
            name=name,
            nearest=validation.nearest(str(name), services),
            services=known,
        )
        for name in settings["order"]
        if name not in services
    ]
    floor = settings["floor_gib"]
    if left_gib is not None and floor is not None and floor > left_gib:
        findings.append(finding("guard.floor", host=host, floor=floor, left_gib=left_gib))
    return findings
