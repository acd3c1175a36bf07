# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads C(spark_live), and plans the live page of a Spark, which its agent serves. C(_fleet/live_host.py) measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._cluster import endpoints
from . import guard
from .descriptions import options

KEY_FILE = "/etc/dgxspark/secrets/live-page/key"
KEYS = options("spark_live")


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_live) as a person wrote it; return the settings with all defaults, and the problems."""
    settings, problems = guard.read_switched(host, "spark_live", value, KEYS)
    if settings["actions"] and not settings["api_key_file"]:
        problems.add("actions: needs api_key_file, since anybody on the host could stop services otherwise.")
    if settings["listen"] and not settings["api_key_file"] and not endpoints.is_loopback(settings["listen"]):
        problems.add(
            f"listen: {settings['listen']} is reached from other hosts, so it needs api_key_file; dgxspark.vllm.keys makes it."
        )
    return settings, problems.messages


def plan(
    host: str,
    settings: Mapping[str, Any],
    address: str,
    services: Sequence[Mapping[str, Any]],
    rails: Sequence[str],
    sysroot: str,
) -> dict[str, Any]:
    """Return what the part C(live) of the role guard deploys; empty for a Spark without a page. services: as C(live_host) reads them."""
    key = settings["api_key_file"]
    if not settings["enabled"] or not (services or key):
        return {}
    listen = settings["listen"] or (address if key else "127.0.0.1")
    return {
        "listen": listen,
        "port": settings["port"],
        "key": key,
        "settings": {
            "host": host,
            "listen": listen,
            "port": settings["port"],
            "api_key_file": KEY_FILE if key else None,
            "actions": settings["actions"],
            "services": [dict(service) for service in services],
            "rails": sorted(rails),
            "sysroot": sysroot,
        },
    }


def url(host: str, reader: str, made: Mapping[str, Any], address: str) -> str | None:
    """Return the URL, without a path, where a monitor on C(reader) reads the page of a Spark; None if it cannot. made: of C(plan)."""
    listen = str(made["listen"])
    if host != reader and endpoints.is_loopback(listen):
        return None
    if endpoints.is_any(listen):
        listen = "127.0.0.1" if host == reader else address
    return f"http://{endpoints.bracketed(listen)}:{made['port']}"
