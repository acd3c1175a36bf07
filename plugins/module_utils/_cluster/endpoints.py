# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The endpoints of a fleet, with their addresses and names. Gateway, monitoring, fleet monitor and clients read this list."""

from __future__ import annotations

import ipaddress
from typing import Any, TypedDict

from .._common import plain_data

KINDS = ("vllm", "asr", "tts", "ollama", "external")
HEALTH = {"vllm": "/v1/models", "asr": "/health", "tts": "/health", "ollama": "/api/tags", "external": "/v1/models"}
"""Path that says whether an endpoint of each kind is there, as the report of two Sparks with speech and Ollama asks them."""


class Endpoint(TypedDict):
    """A server under one URL; C(key) is host/service, or cluster/service for a model over several hosts.

    on_demand: a request starts it; hold_seconds: the request waits for so long, 0 if it has to be repeated.
    """

    key: str
    host: str
    service: str
    kind: str
    address: str
    port: int
    listen: str
    url: str
    models: list[str]
    api_key_file: str | None
    health: str
    max_model_len: int | None
    memory_gib: float | None
    unit: str
    container: str
    hosts: list[str]
    tools: bool
    on_demand: bool
    hold_seconds: int


def make(host: str, address: str, service: str, kind: str, port: int, listen: str, **more: Any) -> Endpoint:
    """Return an endpoint with what follows from the rest filled in.

    :param address: the host's in the inventory; where the server listens on one address alone, that one is taken
    :param kind: C(vllm), C(ollama), C(asr), C(tts) or C(external)
    """
    reached = address if is_any(listen) else listen
    made: Endpoint = {
        "key": f"{host}/{service}",
        "host": host,
        "service": service,
        "kind": kind,
        "address": reached,
        "port": port,
        "listen": listen,
        "url": f"http://{bracketed(reached)}:{port}",
        "models": [service],
        "api_key_file": None,
        "health": HEALTH[kind],
        "max_model_len": None,
        "memory_gib": None,
        "unit": f"spark-{service}.service",
        "container": f"spark-{service}",
        "hosts": [host],
        "tools": False,
        "on_demand": False,
        "hold_seconds": 0,
    }
    # Callers pass keys of Endpoint; a TypedDict cannot type keyword arguments.
    made.update(more)  # type: ignore[typeddict-item]
    return made


def is_loopback(listen: str) -> bool:
    """Tell whether a server that listens there can be reached from its own host alone. Names other than localhost are not treated as loopback."""
    try:
        address = ipaddress.ip_address(plain_data.strict_address(listen.strip("[]")))
    except ValueError:
        return listen == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_any(listen: str) -> bool:
    """Tell whether a server that listens there answers on all addresses of its host."""
    try:
        return ipaddress.ip_address(plain_data.strict_address(listen.strip("[]"))).is_unspecified
    except ValueError:
        return listen in ("", "0")


def bracketed(address: str) -> str:
    """Return an address as a URL holds it."""
    return f"[{address}]" if ":" in address else address


def reachable(endpoint: Endpoint, host: str) -> bool:
    """Tell whether a program on C(host) can reach an endpoint, as far as the address tells."""
    return endpoint["host"] == host or not is_loopback(endpoint["listen"])
