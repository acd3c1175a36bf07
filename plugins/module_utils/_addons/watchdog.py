# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads C(spark_watchdog), and plans the role watchdog. C(_runtime/wedge.py) and C(_runtime/quality.py) decide on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .._cluster.endpoints import Endpoint
from .._common import plain_data, schema, validation
from .._common.findings import Finding
from . import guard
from .descriptions import PROGRAMS, finding, options

KEYS = options("spark_watchdog")
OF_SERVICE = tuple(key for name in ("wedge", "quality") for key in asdict(PROGRAMS[name]) if key != "interval_seconds")
"""Keys that may differ by service."""


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_watchdog) as a person wrote it; return the settings with all defaults, and the problems."""
    settings, problems = guard.read_switched(host, "spark_watchdog", value, KEYS)
    for name in settings["leave_out"]:
        if not isinstance(name, str):
            problems.add(f"leave_out: {name!r} is not the name of a service.")
    overrides = {}
    for name, override in settings["services"].items():
        if not isinstance(override, Mapping):
            problems.add(f"services.{name}: must be a mapping, not {plain_data.kind(override)}.")
            continue
        overrides[str(name)] = schema.read(problems, override, KEYS, f"services.{name}.", OF_SERVICE)
    settings["services"] = overrides
    for where, override in [("", {}), *((f"services.{name}.", item) for name, item in overrides.items())]:
        window, interval = ({**settings, **override}[key] for key in ("window_seconds", "interval_seconds"))
        if window < 2 * interval:
            problems.add(
                f"{where}window_seconds: is {window:g} with checks every {interval:g} s; a window needs two checks. Make it longer, or "
                "interval_seconds shorter."
            )
    return settings, problems.messages


def plan(
    host: str,
    settings: Mapping[str, Any],
    endpoints: Sequence[Endpoint],
    engine_facts: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the variables of the role watchdog, and findings.

    :param endpoints: of the fleet; the host watches the engines that it answers for. The head of a cluster watches
        for all of its ranks, since its restart restarts all of them
    :param engine_facts: what questions to each engine depend on: C(tools), C(temperature), C(length), C(backend), C(cures)
    """
    servers = [endpoint["service"] for endpoint in endpoints if endpoint["host"] == host and endpoint["kind"] == "vllm"]
    names = [name for name in servers if settings["services"].get(name, {}).get("quality", settings["quality"])]
    facts = {name: dict((engine_facts or {}).get(name, {})) for name in names}
    return {
        "state": "present" if settings["enabled"] and servers else "absent",
        "settings": {
            **{key: value for key, value in settings.items() if key != "enabled"},
            **({"engines": facts} if facts else {}),
        },
    }, _findings(host, settings, servers)


def _findings(host: str, settings: Mapping[str, Any], servers: Sequence[str]) -> list[Finding]:
    """Return the findings about unknown services, and about a watchdog that restarts nothing."""
    known = ", ".join(servers) or "none"
    findings = [
        finding(
            "watchdog.unknown_service",
            key=key,
            host=host,
            name=name,
            nearest=validation.nearest(str(name), servers),
            servers=known,
        )
        for key in ("leave_out", "services")
        for name in settings[key]
        if name not in servers
    ]
    if settings["enabled"] and settings["max_restarts"] == 0:
        findings.append(finding("watchdog.max_restarts", host=host))
    return findings
