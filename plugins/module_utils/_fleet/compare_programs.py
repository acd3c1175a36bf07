# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask programs of a host about its network and servers: ufw, routes and packets of its cluster, speech servers, Ollama, drained backends.

Each function returns the reasons why there may be something to apply. A program without an answer is a reason too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .._cluster import pings, relay
from .._runtime import state_file
from .._runtime.command import NoAnswer, Run

Ask = Callable[["list[str]"], "tuple[int, str, str]"]
UFW = "/usr/sbin/ufw"
HELPER = "/usr/local/libexec/dgxspark/spark_unit.py"
DRAINED = "run/dgxspark/gateway/drained.json"
"""The drained backends of the gateway (roles/gateway/files/spark_gateway.py)."""
SERVER_SECONDS = 30.0  # for a running server; the role gives a slow one its full time
ASK_SECONDS = 15.0  # for ping, which needs 4 s to lose all its packets, and for ufw
MOST_TEXT = 300


def failures(run: Run, root: Path, params: Mapping[str, Any], check: bool) -> list[str]:
    """Ask the programs of a host in the order of the roles, up to the first program that reports a problem.

    :param params: of M(dgxspark.vllm.compare): C(network) with C(ufw), C({netdevs, peers}), C(routes) of C(relay.routes_of), C(relay)
        and C(pings) of C(fabric.plan); C(servers), each with C(name), C(settings), its file on the host, and C(seconds);
        C(parts) of the run, None for all
    :param check: check mode; servers are not asked
    """
    network = params["network"]

    def ask(argv: list[str]) -> tuple[int, str, str]:
        return run(argv, ASK_SECONDS)

    questions: list[Callable[[], list[str]]] = [
        partial(_blocked_by_ufw, ask, root, network.get("ufw") or {}),
        lambda: (
            relay.lost_routes(ask, network.get("routes") or []) + relay.not_passed_on(ask, network.get("relay") or [])
        ),
        *(partial(_lost_packets, ask, ping) for ping in network.get("pings") or []),
        *(partial(_server_failure, run, server) for server in ([] if check else params["servers"])),
        *([partial(_left_drained, root)] if "gateway" in (params.get("parts") or ("gateway",)) else []),
    ]
    try:
        return next(filter(None, (question() for question in questions)), [])
    except NoAnswer as silence:
        return [str(silence)]


def _blocked_by_ufw(ask: Ask, root: Path, allowed: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the interfaces and peers of the cluster that ufw blocks."""
    if not allowed or not (root / UFW.lstrip("/")).exists():
        return []
    rc, out, err = ask(["ufw", "status"])
    if rc:
        return [f"ufw does not say what it lets in: {(err or out).strip()}"]
    if not re.search(r"^Status. active", out, re.MULTILINE):
        return []
    rules = {name: rf"Anywhere on {re.escape(name)} +ALLOW" for name in allowed["netdevs"]}
    rules.update({peer: rf"ALLOW( IN)? +{re.escape(peer)} *$" for peer in allowed["peers"]})
    return [
        f"ufw does not let in what comes by {name}"
        for name, rule in rules.items()
        if not re.search(rule, out, re.MULTILINE)
    ]


def _lost_packets(ask: Ask, ping: Mapping[str, Any]) -> list[str]:
    """Return the hosts of the cluster that one ping does not reach."""
    return [finding.message for finding in pings.judge_pings([pings.send(ask, ping)])]


def _server_failure(run: Run, server: Mapping[str, Any]) -> list[str]:
    """Return why a server gives no real answer to the question of its role; Ollama lists its models and pulls none."""
    seconds = min(float(server["seconds"]), SERVER_SECONDS)
    argv = ["/usr/bin/python3", HELPER, "server", "prove", str(server["settings"]), "--seconds", f"{seconds:g}"]
    rc, out, err = run(argv, seconds + ASK_SECONDS)
    first_line = ((err or out).strip().splitlines() or [f"exit code {rc}"])[0]
    return [f"{server['name']}: {first_line[:MOST_TEXT]}"] if rc else []


def _left_drained(root: Path) -> list[str]:
    """Return the backends that an interrupted run may have left drained; the role admits those that answer."""
    drained = state_file.read(root / DRAINED) or {}
    since, held = drained.get("since"), drained.get("held")
    held = held if isinstance(held, list) else []
    names = sorted(name for name in since if name not in held) if isinstance(since, dict) else []
    return [f"the gateway sends no requests to {', '.join(names)}"[:MOST_TEXT]] if names else []
