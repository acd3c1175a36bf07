# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The watchdog of a host's model servers: what C(spark_watchdog) says. What it decides on the host is in wedge.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils import recipes, wedge
from ansible_collections.dgxspark.vllm.plugins.module_utils.endpoints import Endpoint
from ansible_collections.dgxspark.vllm.plugins.module_utils.findings import Finding

NUMBER = (int, float)
DEFAULTS = wedge.Settings()

KEYS: dict[str, tuple[tuple[type, ...], Any, str]] = {
    "enabled": ((bool,), True, "whether the model servers of the host are watched"),
    "restart": ((bool,), DEFAULTS.restart, "restart a wedged server; false only reports it"),
    "interval_seconds": (NUMBER, DEFAULTS.interval_seconds, "seconds between two looks"),
    "window_seconds": (NUMBER, DEFAULTS.window_seconds, "seconds that nothing may move while requests run"),
    "power_watts": (
        NUMBER,
        DEFAULTS.power_watts,
        "a GPU that takes this much works, where nvidia-smi says what it takes",
    ),
    "probes": ((int,), DEFAULTS.probes, "requests in a row that have to fail before a server is restarted"),
    "probe_seconds": (NUMBER, DEFAULTS.probe_seconds, "seconds that such a request may take"),
    "grace_seconds": (NUMBER, DEFAULTS.grace_seconds, "seconds after it became ready that a server is left alone"),
    "compile_minutes": (NUMBER, DEFAULTS.compile_minutes, "minutes that compilers in its container speak for a server"),
    "idle_probe_minutes": (
        NUMBER,
        DEFAULTS.idle_probe_minutes,
        "minutes without a request after which a server is asked for one token; 0 never asks",
    ),
    "cooldown_minutes": (NUMBER, DEFAULTS.cooldown_minutes, "minutes between two restarts of a server"),
    "max_restarts": (
        (int,),
        DEFAULTS.max_restarts,
        "restarts of a server within 24 hours; after that it is only reported",
    ),
    "keep": ((int,), 5, "collections of evidence that are kept for each server"),
    "leave_out": ((list,), [], "services that are not watched"),
    "services": (
        (dict,),
        {},
        "what differs for a service: its name, then any of the keys from restart to max_restarts",
    ),
}
"""Keys of C(spark_watchdog): types, default, meaning."""
BOUNDS: dict[str, tuple[float, float]] = {
    "interval_seconds": (1, 600),
    "window_seconds": (2, 7200),
    "power_watts": (0, 1000),
    "probes": (2, 10),
    "probe_seconds": (10, 600),
    "grace_seconds": (0, 7200),
    "compile_minutes": (0, 1440),
    "idle_probe_minutes": (0, 1440),
    "cooldown_minutes": (1, 1440),
    "max_restarts": (0, 24),
    "keep": (1, 100),
}
"""One failed request is no proof, and a busy server misses short limits: hence two probes of 10 seconds at least."""
OF_SERVICE = tuple(key for key in asdict(DEFAULTS) if key != "interval_seconds")
"""Keys that may differ by service."""


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_watchdog) as a person wrote it; return the settings with every default, and what is wrong.

    A boolean switches the watchdog; C(None) is the default, which is on.
    """
    settings = {key: _copy(default) for key, (_types, default, _meaning) in KEYS.items()}
    problems = recipes.Problems(f"host {host}, spark_watchdog")
    if value is None or isinstance(value, bool):
        return {**settings, "enabled": value is not False}, []
    if not isinstance(value, Mapping):
        problems.add(f"must be true, false or a mapping, not {recipes.kind(value)}. Known keys: {', '.join(KEYS)}.")
        return settings, problems.messages
    problems.unknown([str(key) for key in value], tuple(KEYS))
    settings.update(_checked(problems, value, tuple(KEYS), ""))
    for name in settings["leave_out"]:
        if not isinstance(name, str):
            problems.add(f"leave_out: {name!r} is not the name of a service.")
    services = {}
    for name, own in settings["services"].items():
        if not isinstance(own, Mapping):
            problems.add(f"services.{name}: must be a mapping, not {recipes.kind(own)}.")
            continue
        problems.unknown([str(key) for key in own], OF_SERVICE, f"key of services.{name}:")
        services[str(name)] = _checked(problems, own, OF_SERVICE, f"services.{name}.")
    settings["services"] = services
    for where, own in [("", {}), *[(f"services.{name}.", own) for name, own in services.items()]]:
        whole = {**settings, **own}
        if whole["window_seconds"] < 2 * whole["interval_seconds"]:
            problems.add(
                f"{where}window_seconds: is {whole['window_seconds']:g} with looks every {whole['interval_seconds']:g} s; a "
                "window has to hold two looks. Make it longer, or interval_seconds shorter."
            )
    return settings, problems.messages


def _copy(default: Any) -> Any:
    return type(default)(default) if isinstance(default, (list, dict)) else default


def _within(value: Any, low: float, high: float) -> bool:
    return math.isfinite(value) and low <= value <= high


def _checked(problems: recipes.Problems, given: Mapping[Any, Any], keys: Sequence[str], prefix: str) -> dict[str, Any]:
    """Return what is right of some keys, and complain about the rest."""
    right: dict[str, Any] = {}
    for key in keys:
        value = given.get(key)
        if value is None:
            continue
        types = KEYS[key][0]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            problems.add(f"{prefix}{key}: is {recipes.kind(value)}; it must be {recipes.kind(types[0]())}.")
        elif key in BOUNDS and not _within(value, *BOUNDS[key]):
            low, high = BOUNDS[key]
            problems.add(f"{prefix}{key}: is {value:g}; it must be from {low:g} to {high:g}.")
        else:
            right[key] = _copy(value)
    return right


def plan(host: str, settings: Mapping[str, Any], endpoints: Sequence[Endpoint]) -> tuple[dict[str, Any], list[Finding]]:
    """Return the variables of the role watchdog, and findings.

    endpoints: those of the fleet; the host watches the engines that it answers for. Ranks behind the head of a cluster are
    its head's to watch: a restart there takes all of them down and up together.
    """
    own = [endpoint["service"] for endpoint in endpoints if endpoint["host"] == host and endpoint["kind"] == "vllm"]
    findings = [
        Finding(
            "watchdog.unknown_service",
            "warning",
            f"spark_watchdog.{key} of {host} names '{name}', which is no model server that {host} answers for"
            f"{recipes.nearest(str(name), own)}",
            fix=f"Take it out, or correct it. Model servers of {host}: {', '.join(own) or 'none'}.",
        )
        for key in ("leave_out", "services")
        for name in settings[key]
        if name not in own
    ]
    if settings["enabled"] and settings["max_restarts"] == 0:
        findings.append(
            Finding(
                "watchdog.max_restarts",
                "info",
                f"spark_watchdog.max_restarts of {host} is 0: wedged model servers are reported and never restarted.",
            )
        )
    return {
        "state": "present" if settings["enabled"] and own else "absent",
        "settings": {key: value for key, value in settings.items() if key != "enabled"},
    }, findings
