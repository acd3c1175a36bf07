# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads C(spark_watchdog), and plans the role watchdog. C(_runtime/wedge.py) and C(_runtime/quality.py) decide on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .._cluster.endpoints import Endpoint
from .._common import plain_data, schema, validation
from .._common.findings import Finding
from .._common.schema import NUMBER, Key
from .._runtime import quality, wedge
from . import guard

DEFAULTS, QUALITY = wedge.Settings(), quality.Settings()

KEYS: dict[str, Key] = {
    "enabled": Key(bool, True, "monitor the model servers of the host"),
    "restart": Key(bool, DEFAULTS.restart, "restart wedged servers; with false only report them"),
    "interval_seconds": Key(NUMBER, DEFAULTS.interval_seconds, "seconds between two checks", least=1, most=600),
    "window_seconds": Key(
        NUMBER,
        DEFAULTS.window_seconds,
        "seconds without progress of running requests until a probe",
        least=2,
        most=7200,
    ),
    "power_watts": Key(
        NUMBER,
        DEFAULTS.power_watts,
        "GPU power from which the GPU counts as working",
        least=0,
        most=1000,
    ),
    "probes": Key(int, DEFAULTS.probes, "failed probes in a row until a restart", least=2, most=10),
    "probe_seconds": Key(NUMBER, DEFAULTS.probe_seconds, "timeout of a probe in seconds", least=10, most=600),
    "grace_seconds": Key(
        NUMBER,
        DEFAULTS.grace_seconds,
        "seconds without probes after a server became ready",
        least=0,
        most=7200,
    ),
    "compile_minutes": Key(
        NUMBER,
        DEFAULTS.compile_minutes,
        "minutes that compilers in its container count as progress",
        least=0,
        most=1440,
    ),
    "idle_probe_minutes": Key(
        NUMBER,
        DEFAULTS.idle_probe_minutes,
        "minutes without a request until an idle server is probed; 0: never",
        least=0,
        most=1440,
    ),
    "cooldown_minutes": Key(
        NUMBER, DEFAULTS.cooldown_minutes, "least minutes between two restarts of a server", least=1, most=1440
    ),
    "max_restarts": Key(
        int,
        DEFAULTS.max_restarts,
        "most restarts of a server within 24 hours",
        least=0,
        most=24,
    ),
    "quality": Key(bool, QUALITY.quality, "ask serving engines [quality questions](#quality-while-serving)"),
    "quality_minutes": Key(
        NUMBER, QUALITY.quality_minutes, "least minutes between two questions to a server", least=0.05, most=1440
    ),
    "quality_share": Key(
        NUMBER, QUALITY.quality_share, "most share of time for questions, in percent", least=0.01, most=50
    ),
    "quality_looks": Key(
        int, QUALITY.quality_looks, "bad answers in a row until a server is degenerate", least=2, most=20
    ),
    "quality_tokens": Key(
        int,
        QUALITY.quality_tokens,
        "tokens of a long prompt, at most half of max-model-len",
        least=256,
        most=262144,
    ),
    "quality_drain": Key(bool, QUALITY.quality_drain, "drain a degenerate server at a gateway on this host"),
    "keep": Key(int, 5, "diagnostic snapshots kept per server", least=1, most=100),
    "leave_out": Key(list, [], "services without a watchdog"),
    "services": Key(
        dict,
        {},
        "overrides by service, for the keys from restart to quality_drain",
    ),
}
"""Keys of C(spark_watchdog). One failed request is no proof, and a busy server misses short limits: hence two probes of 10 seconds at least."""
OF_SERVICE = tuple(key for key in {**asdict(DEFAULTS), **asdict(QUALITY)} if key != "interval_seconds")
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
    }, list(_findings(host, settings, servers))


def _findings(host: str, settings: Mapping[str, Any], servers: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings about unknown services, and about a watchdog that restarts nothing."""
    for key in ("leave_out", "services"):
        for name in settings[key]:
            if name not in servers:
                text = (
                    f"spark_watchdog.{key} of {host} names '{name}', which is no model server that {host} answers for"
                )
                text += validation.nearest(str(name), servers)
                fix = f"Take it out, or correct it. Model servers of {host}: {', '.join(servers) or 'none'}."
                yield Finding("watchdog.unknown_service", "warning", text, fix)
    if settings["enabled"] and settings["max_restarts"] == 0:
        text = f"spark_watchdog.max_restarts of {host} is 0: wedged model servers are reported and never restarted."
        yield Finding("watchdog.max_restarts", "info", text)
