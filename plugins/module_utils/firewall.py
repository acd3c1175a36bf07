# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The firewall of a cluster's host: which ports it closes, and whose servers it shuts out with them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils.findings import Finding

CLOSED = ("6379-6399", "8265", "10001-19999", "29400-29600")
"""Ray's GCS and its neighbours, its dashboard, its clients and workers; rendezvous of torch and vLLM, supervisors of ranks.

The role firewall has the same list, and adds the range from which the kernel takes ports, as the host has it.
"""
EPHEMERAL = "32768-60999"
"""That range, as Linux has it by default."""


def is_closed(port: int, closed: Iterable[str | int]) -> bool:
    """Tell whether a port is in one of C(closed): ports, or ranges C(FIRST-LAST)."""
    for entry in closed:
        first, _dash, last = str(entry).partition("-")
        if int(first) <= port <= int(last or first):
            return True
    return False


def shut_out(
    listening: Sequence[Mapping[str, Any]], allowed: Iterable[int], closed: Iterable[str | int] = ()
) -> list[Finding]:
    """Name the servers of somebody else that the firewall closes to other networks.

    listening: of M(dgxspark.vllm.spark_info). Containers and units of this collection are what it is for; loopback is not
    closed; ports that Docker publishes never come to where it looks.
    """
    ranges = [*CLOSED, EPHEMERAL, *closed]
    open_ports = set(allowed)
    shut: dict[int, str] = {}
    for entry in listening:
        port, owner = int(entry["port"]), str(entry.get("container") or entry.get("unit") or entry.get("process") or "")
        if (
            ipaddress.ip_address(str(entry["address"])).is_loopback
            or entry.get("process") == "docker-proxy"
            or any(str(entry.get(key) or "").startswith("spark-") for key in ("container", "unit"))
            or port in open_ports
            or not is_closed(port, ranges)
        ):
            continue
        shut.setdefault(port, owner)
    if not shut:
        return []
    names = ", ".join(f"{port} ({owner})" if owner else str(port) for port, owner in sorted(shut.items()))
    ports = ", ".join(str(port) for port in sorted(shut))
    return [
        Finding(
            "firewall.shuts_out",
            "warning",
            f"what listens on {names} is closed to other networks than the fabric by the firewall of clusters: Ray, torch and "
            "the kernel take ports from the same ranges.",
            fix=f"Where it is to be reached: spark_firewall_allowed: [{ports}].",
            basis="measured",
        )
    ]
