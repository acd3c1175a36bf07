# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of C(on_demand) of an engine or a speech server, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import schema
from .schema import NUMBER, Key
from .validation import SERVICE_NAME, Problems

PORT_STEP = 10_000
"""Distance between the port of the server and the port for clients, which the socket occupies."""

KEYS: dict[str, Key] = {
    "idle_minutes": Key(
        NUMBER, 20, "minutes without a request after which the engine is stopped", least=0.1, most=10080, unit="minutes"
    ),
    "exclusive": Key(str, "", "name of a set of services on demand that share memory; as many run as fit together"),
    "keep": Key(int, None, "most engines of the set at once; default: as many as fit", least=1, most=8),
    "minimum_minutes": Key(
        NUMBER,
        2,
        "least run time of an engine before another one of its set replaces it, minutes",
        least=0,
        most=1440,
        unit="minutes",
    ),
    "priority": Key(int, 0, "the engine with the lower number is stopped first", least=-100, most=100),
    "engine_port": Key(
        int,
        None,
        "loopback port of the engine; default: `port` + 10000, or - 10000 if that is too high",
        least=1,
        most=65535,
    ),
    "while_loading": Key(
        str,
        "wait",
        "requests to a loading engine: `wait` holds them, `comments` also sends SSE comments to streams, `reject` answers 503 with Retry-After",
        choices=("wait", "comments", "reject"),
    ),
    "hold_minutes": Key(
        NUMBER,
        15,
        "minutes until a held request gets 503 with Retry-After",
        least=0.1,
        most=1440,
        unit="minutes",
    ),
    "retry_minutes": Key(
        NUMBER,
        5,
        "minutes after a failed start in which requests get its reason at once",
        least=0.1,
        most=1440,
        unit="minutes",
    ),
}
"""Keys of C(on_demand) of a service."""


def read(problems: Problems, service: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a service's start on demand, and report wrong ones."""
    values = schema.filled(problems, problems.mapping(service["on_demand"], "on_demand"), KEYS, "on_demand.")
    name = values["exclusive"]
    if name and not SERVICE_NAME.fullmatch(name):
        problems.add(
            f"'on_demand.exclusive' is {name!r}; it must be the name of a set: lower-case letters, digits and inner dashes."
        )
    if values["keep"] and not name:
        problems.add("'on_demand.keep' counts engines of a set. Name the set in on_demand.exclusive, or leave it out.")
    port = service.get("port")
    if values["engine_port"] is None and isinstance(port, int):
        values["engine_port"] = port + PORT_STEP if port + PORT_STEP <= 65535 else port - PORT_STEP
    elif values["engine_port"] == port:
        problems.add("'on_demand.engine_port' is the port of the service, which its socket has. Take another one.")
    return values


def seconds(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the program on the host. values: of C(read)."""
    minutes = {key: round(values[f"{key}_minutes"] * 60) for key in ("idle", "minimum", "hold", "retry")}
    return {
        **{f"{key}_seconds": value for key, value in minutes.items()},
        "priority": values["priority"],
        "while_loading": values["while_loading"],
    }
