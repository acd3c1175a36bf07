# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What programs say of a host that its files do not show: ufw, routes and packets of its cluster, and the answers of servers that are no engines.

Each question gives reasons why there may be something to apply. A program without an answer is such a reason, too: the roles find out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._cluster import pings, relay
from .._common.findings import Finding
from .._runtime.command import NoAnswer, Run

UFW = "/usr/sbin/ufw"
HELPER = "/usr/local/libexec/dgxspark/spark_unit.py"
SERVER_SECONDS = 30.0  # for a server that runs and was asked before; its role gives a slower one all its time
ASK_SECONDS = 15.0  # for ping, which needs 4 s to lose all its packets, and for ufw


def failures(run: Run, root: Path, params: Mapping[str, Any], check: bool) -> list[str]:
    """Ask the programs of a host in the order of the roles; the first one that reports a problem ends it.

    :param run: asks a program, raises NoAnswer on silence
    :param root: where the host's files are
    :param params: of M(dgxspark.vllm.compare): C(network) with C(ufw), C({netdevs, peers}), C(routes) of C(relay.routes_of), and
        C(relay) and C(pings), of C(fabric.plan);
        C(servers), each with C(name), C(settings), the file that it is asked by, and C(seconds)
    :param check: whether the roles would ask no server either
    :returns: why there may be something to apply
    """
    try:
        why = blocked_by_ufw(run, root, params["network"].get("ufw") or {})
        why = why or lost_routes(run, params["network"])
        why = why or lost_packets(run, params["network"].get("pings") or [])
        for server in [] if check or why else params["servers"]:
            why = server_failure(run, server)
            if why:
                break
    except NoAnswer as nothing:
        return [str(nothing)]
    return why


def blocked_by_ufw(run: Run, root: Path, wanted: Mapping[str, Sequence[str]]) -> list[str]:
    """Say what ufw keeps out that the role fabric lets in."""
    if not wanted or not (root / UFW.lstrip("/")).exists():
        return []
    rc, out, err = run(["ufw", "status"], ASK_SECONDS)
    if rc:
        return [f"ufw does not say what it lets in: {(err or out).strip()}"]
    if not re.search(r"^Status. active", out, re.MULTILINE):
        return []
    netdevs = [name for name in wanted["netdevs"] if not re.search(rf"Anywhere on {re.escape(name)} +ALLOW", out)]
    peers = [
        name for name in wanted["peers"] if not re.search(rf"ALLOW( IN)? +{re.escape(name)} *$", out, re.MULTILINE)
    ]
    return [f"ufw does not let in what comes by {name}" for name in [*netdevs, *peers]]


def lost_routes(run: Run, wanted: Mapping[str, Any]) -> list[str]:
    """Say what a host of a ring has lost of its routes, and of what lets it pass on packets for others."""

    def ask(argv: list[str]) -> tuple[int, str, str]:
        return run(argv, ASK_SECONDS)

    return relay.lost_routes(ask, wanted.get("routes") or []) + relay.not_passed_on(ask, wanted.get("relay") or [])


def lost_packets(run: Run, wanted: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which hosts of the cluster packets do not get to."""
    findings: list[Finding] = []
    for ping in wanted:
        findings += pings.judge_pings([pings.send(lambda argv: run(argv, ASK_SECONDS), ping)])
        if findings:  # the role sends all of them
            break
    return [finding.message for finding in findings]


def server_failure(run: Run, server: Mapping[str, Any]) -> list[str]:
    """Say why a server does not give a real answer, as the roles speech and ollama ask it; Ollama is asked what it has, and pulls nothing."""
    seconds = min(float(server["seconds"]), SERVER_SECONDS)
    asked = ["/usr/bin/python3", HELPER, "server", "prove", str(server["settings"]), "--seconds", f"{seconds:g}"]
    rc, out, err = run(asked, seconds + ASK_SECONDS)
    said = ((err or out).strip().splitlines() or [f"exit code {rc}"])[0]
    return [f"{server['name']}: {said[:300]}"] if rc else []
