# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a host that serves in reach: what C(spark_guard), C(spark_host_protection) and C(spark_gpu_clocks) say.

What the guard decides on the host is in C(_runtime/guard.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .._common import plain_data, schema, validation
from .._common.findings import Finding
from .._common.schema import NUMBER, Key
from .._runtime import guard

DEFAULTS = guard.Settings()
LEAST_FLOOR_GIB, SHARE_OF_LEFT = 1.5, 0.75
"""A floor that nobody has set is no more than this share of what the plan leaves free, so that a host with all that it was planned for is not
short of memory all the time; and never below that."""

KEYS: dict[str, Key] = {
    "enabled": Key(bool, True, "guard the memory of the host while engines serve"),
    "act": Key(bool, True, "take the steps; with false they are only logged and counted"),
    "floor_gib": Key(
        NUMBER,
        None,
        f"memory is short below this `MemAvailable`; when left out {DEFAULTS.floor_gib:g}, or three quarters of what the plan leaves free where that "
        f"is less, {LEAST_FLOOR_GIB:g} at least",
        least=0.25,
        most=64,
        unit="GiB",
    ),
    "start_floor_gib": Key(
        NUMBER,
        None,
        f"the same while an engine starts; {DEFAULTS.start_floor_gib:g} or less, in the same way, when left out",
        least=0.25,
        most=64,
        unit="GiB",
    ),
    "free_floor_gib": Key(
        NUMBER,
        DEFAULTS.free_floor_gib,
        "the page cache is dropped while `MemFree` is below this",
        least=0.25,
        most=64,
        unit="GiB",
    ),
    "contiguous_floor_gib": Key(
        NUMBER,
        DEFAULTS.contiguous_floor_gib,
        "memory is compacted while less than this is free in blocks of 2 MiB, which the driver wants",
        least=0.01,
        most=64,
        unit="GiB",
    ),
    "last_gib": Key(
        NUMBER,
        DEFAULTS.last_gib,
        "memory is critical below this `MemAvailable`, now or in two seconds as it falls",
        least=0.1,
        most=64,
        unit="GiB",
    ),
    "pressure_percent": Key(
        NUMBER,
        DEFAULTS.pressure_percent,
        "share of time that all tasks wait for memory (PSI `full avg10`) from which memory is short; four times that is critical",
        least=0.1,
        most=100,
    ),
    "swap_percent": Key(
        NUMBER, DEFAULTS.swap_percent, "share of the swap in use from which memory is short", least=1, most=100
    ),
    "interval_seconds": Key(
        NUMBER, DEFAULTS.interval_seconds, "seconds between two looks", least=0.1, most=60, unit="seconds"
    ),
    "calm_seconds": Key(
        NUMBER,
        DEFAULTS.calm_seconds,
        "seconds without a shortage before requests are admitted again; longer after several shortages within an hour",
        least=1,
        most=3600,
        unit="seconds",
    ),
    "idle": Key(
        bool, DEFAULTS.idle, "stop engines that are on demand and have no request; the next one starts them again"
    ),
    "refuse": Key(bool, DEFAULTS.refuse, "let a gateway on this host give the engine in question no new requests"),
    "restart": Key(bool, DEFAULTS.restart, "restart the engine that holds more than its plan"),
    "stop": Key(bool, DEFAULTS.stop, "as the last step stop the least important engine"),
    "stop_for_others": Key(
        bool,
        DEFAULTS.stop_for_others,
        "stop an engine inside its plan also when something else on the host took the memory",
    ),
    "cooldown_minutes": Key(
        NUMBER, DEFAULTS.cooldown_minutes, "least minutes between two restarts of an engine", least=1, most=1440
    ),
    "max_restarts": Key(int, DEFAULTS.max_restarts, "most restarts of an engine within 24 hours", least=0, most=24),
    "order": Key(list, [], "services, the most important first; the order of the inventory when left out"),
}
"""Keys of C(spark_guard). The floors are those that owners of Sparks run with: 5 GiB for a start, 3 GiB while serving."""

PROTECTION_KEYS: dict[str, Key] = {
    "enabled": Key(bool, True, "protect what keeps the host in reach"),
    "ssh_mib": Key(int, 512, "memory of sshd that is not reclaimed; 0 for none", least=0, most=16384, unit="MiB"),
    "sessions_mib": Key(
        int, 512, "the same of all sessions of users together; 0 for none", least=0, most=16384, unit="MiB"
    ),
    "journal_mib": Key(int, 128, "the same of the journal; 0 for none", least=0, most=16384, unit="MiB"),
    "hardware_watchdog_seconds": Key(
        int,
        60,
        "seconds without a sign of systemd after which the board resets the host, if it has a watchdog; 0 for never",
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
    """Read C(spark_guard) as a person wrote it; return the settings with every default, and what is wrong.

    A boolean switches the guard; C(None) is the default, which is on. Floors that nobody has set are C(None), C(plan) works them out.
    """
    settings, problems = _switched(host, "spark_guard", value, KEYS)
    floor, start = settings["floor_gib"], settings["start_floor_gib"]
    if not problems.messages:
        if settings["last_gib"] > (DEFAULTS.floor_gib if floor is None else floor):
            problems.add(
                f"last_gib: is {settings['last_gib']:g}, above floor_gib ({DEFAULTS.floor_gib if floor is None else floor:g}); memory is short "
                "before it is critical. Make it smaller."
            )
        if start is not None and start < (DEFAULTS.floor_gib if floor is None else floor):
            problems.add(
                f"start_floor_gib: is {start:g}, below floor_gib ({DEFAULTS.floor_gib if floor is None else floor:g}); a start needs more room, "
                "not less. Make it larger."
            )
        problems.messages.extend(
            f"host {host}, spark_guard: order: {name!r} is not the name of a service."
            for name in settings["order"]
            if not isinstance(name, str)
        )
    numbers = {
        key: None if settings[key] is None else float(settings[key])
        for key, default in asdict(DEFAULTS).items()
        if isinstance(default, float)
    }
    return {**settings, **numbers}, problems.messages


def floors(settings: Mapping[str, Any], left_gib: float | None) -> dict[str, float]:
    """Return C(floor_gib) and C(start_floor_gib), worked out where nobody has set them.

    :param settings: of C(read)
    :param left_gib: what the plan leaves free with all that may run at once, None where that is not known
    """
    most = DEFAULTS.start_floor_gib if left_gib is None else SHARE_OF_LEFT * left_gib
    floor, start = settings["floor_gib"], settings["start_floor_gib"]
    if floor is None:
        floor = max(LEAST_FLOOR_GIB, settings["last_gib"], min(DEFAULTS.floor_gib, most))
    if start is None:
        start = max(floor, min(DEFAULTS.start_floor_gib, most))
    return {"floor_gib": round(floor, 2), "start_floor_gib": round(max(start, floor), 2)}


def read_protection(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_host_protection), in the same way."""
    settings, problems = _switched(host, "spark_host_protection", value, PROTECTION_KEYS)
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


def _switched(host: str, name: str, value: Any, keys: Mapping[str, Key]) -> tuple[dict[str, Any], validation.Problems]:
    """Read a variable that a boolean switches and a mapping changes."""
    settings = schema.defaults(dict(keys))
    problems = validation.Problems(f"host {host}, {name}")
    if value is None or isinstance(value, bool):
        return {**settings, "enabled": value is not False}, problems
    if not isinstance(value, Mapping):
        problems.add(f"must be true, false or a mapping, not {plain_data.kind(value)}. Known keys: {', '.join(keys)}.")
        return settings, problems
    given = {str(key).replace("-", "_"): item for key, item in value.items()}
    return schema.filled(problems, given, dict(keys)), problems


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
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the variables of the role guard, and findings.

    :param host: name of the host
    :param settings: of C(read)
    :param protection: of C(read_protection)
    :param clocks: of C(read_clocks)
    :param services: of the host's plan, in its order, to what each is planned to hold in GiB, None where that is not known
    :param backends: services to their keys at the gateway, where that is on this host
    :param beside: containers of add-on services, whose memory is planned
    :param reserve_gib: what is in use beside the services
    :param sysroot: where C(/proc) is read
    :param helpers: of C(speech.unloading)
    :param left_gib: what the plan leaves free with all that may run at once, None where that is not known
    :returns: the variables, and findings
    """
    names = list(services)
    limits = floors(settings, left_gib)
    findings = [
        Finding(
            "guard.unknown_service",
            "warning",
            f"spark_guard.order of {host} names '{name}', which is no service of {host}{validation.nearest(str(name), names)}",
            fix=f"Take it out, or correct it. Services of {host}: {', '.join(names) or 'none'}.",
        )
        for name in settings["order"]
        if name not in names
    ]
    order = [name for name in settings["order"] if name in names]
    chosen = {key: value for key, value in {**settings, **limits}.items() if key not in ("enabled", "order")}
    on = settings["enabled"] and bool(services)
    if on and left_gib is not None and settings["floor_gib"] is not None and settings["floor_gib"] > left_gib:
        findings.append(
            Finding(
                "guard.floor",
                "warning",
                f"spark_guard.floor_gib of {host} is {settings['floor_gib']:g} GiB, but the plan leaves {left_gib:.1f} GiB free: memory would be "
                "short all the time, and the guard would take its steps for nothing.",
                fix="Take floor_gib out, which derives it; or leave more free (spark_safety_margin_gib).",
            )
        )
    return {
        "state": "present" if on else "absent",
        "settings": {
            **chosen,
            "order": [*order, *(name for name in names if name not in order)],
            "services": {name: _known(held, backends.get(name)) for name, held in services.items()},
            "beside": sorted(beside),
            "helpers": [dict(each) for each in helpers],
            "reserve_gib": reserve_gib,
            "sysroot": sysroot,
        },
        "protection": {key: value for key, value in protection.items() if key != "enabled"}
        if protection["enabled"]
        else {},
        "clocks": dict(clocks) if clocks["max_mhz"] else {},
    }, findings


def _known(planned_gib: float | None, backend: str | None) -> dict[str, Any]:
    """Return what the guard is told of a service; what is not known is left out."""
    return {
        **({"planned_gib": planned_gib} if planned_gib is not None else {}),
        **({"backend": backend} if backend else {}),
    }
