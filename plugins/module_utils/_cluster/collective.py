# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the ranks of an engine can add up a number together, before any of them loads: its command, its result, what follows.

The bandwidth of single cables does not show it: each may be fast, and the engine's NCCL still choose TCP, or connect hosts that no cable joins.
nccl-tests over hosts would need MPI, and SSH among the hosts; torch and NCCL of the engine's own image need neither, and are what serves then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .._common.findings import Finding
from .._content import image_probe_program
from . import collective_program

CONTAINER = "dgxspark-collective"
SECONDS = 180
"""After which it is ended: a GPU image takes half a minute to import torch, ranks may wait a minute for each other, and a round as long."""
TOOL = "all_reduce"
"""Its key in C(min_gbps)."""
TAKEN = ("NCCL_", "GLOO_", "UCX_", "OMPI_", "MN_IF_NAME", "TP_SOCKET_IFNAME", "VLLM_HOST_IP")
"""How variables begin that say over which network ranks talk."""
NCCL_FIX = (
    "Nothing was started. env: {NCCL_DEBUG: INFO} of the service shows by which device each way goes; docs/fabric.md has the settings. "
    "bandwidth: false below fabric of spark_cluster starts without this test."
)


def program() -> str:
    """Return the text that runs inside the image: joined to that of the image probe, which it imports."""
    parts = []
    for module in (image_probe_program, collective_program):
        loader: Any = module.__loader__
        parts.append(str(loader.get_source(module.__name__)))
    own = [
        line
        for line in parts[1].splitlines()
        if not line.startswith(("from __future__", "from .._content.image_probe_program"))
    ]
    return "\n".join((parts[0], *own, "main()", ""))


def environment(env: Mapping[str, str], rank: int, size: int, head: str, port: int) -> dict[str, str]:
    """Return the variables of a rank of the test.

    :param env: of the engine; what says over which network it talks is taken from it
    :param rank: of the host
    :param size: ranks
    :param head: address of the first rank
    :param port: at which ranks meet
    :returns: variables
    """
    own = {name: value for name, value in env.items() if name.startswith(TAKEN)}
    return {
        **own,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": head,
        "MASTER_PORT": str(port),
        # A way that is dead becomes an error with a text, and not an abort or a wait.
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    }


def choose(services: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the services of a cluster that are measured: those that will run, in their order, no two on one host.

    :param services: C(name), C(hosts) and C(state) of each
    :returns: names
    """
    taken: set[str] = set()
    chosen = []
    for service in services:
        if service["state"] in ("started", "on_demand") and not taken & set(service["hosts"]):
            chosen.append(str(service["name"]))
            taken |= set(service["hosts"])
    return chosen


def read(rc: int, out: str, err: str) -> dict[str, Any]:
    """Return the result of one rank: C({gbps, backend, ...}), C({error}), C({lacks}), or C({unknown}) where it said nothing.

    :param rc: exit code of the container
    :param out: its output
    :param err: its errors
    :returns: the result
    """
    mark = collective_program.RESULT
    line = next((line for line in out.splitlines() if line.startswith(mark)), None)
    if line is not None:
        try:
            found = json.loads(line[len(mark) :])
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
    if rc in (124, 137):
        return {"unknown": f"it did not end within {SECONDS} s"}
    last = err.strip().splitlines()[-1:] or out.strip().splitlines()[-1:] or [f"exit code {rc}"]
    return {"unknown": last[0][:300]}


def judge(host: str, service: str, result: Mapping[str, Any], least: Mapping[str, float]) -> list[Finding]:
    """Judge the result of one rank.

    :param host: that it ran on
    :param service: whose image and environment it was
    :param result: of C(read)
    :param least: Gb/s that are enough, by tool
    :returns: findings
    """

    def found(rule: str, severity: str, message: str, fix: str, source: str = "") -> list[Finding]:
        return [Finding(f"fabric.{rule}", severity, message, fix=fix, service=service, source=source, basis="probed")]

    if "error" in result:
        return found(
            "collective",
            "error",
            f"{host}: the ranks of {service} cannot add up a number together: {result['error']}.",
            NCCL_FIX,
        )
    if "lacks" in result:
        why, fix = f"the image has no {result['lacks']}", "Nothing, where the image is no vLLM."
    else:
        why, fix = str(result.get("unknown") or "no figure"), "Read what the engine says when it starts; or run again."
    need, gbps = float(least.get(TOOL, 0)), result.get("gbps")
    if not isinstance(gbps, (int, float)):
        return found(
            "collective_unknown",
            "info" if "lacks" in result else "warning",
            f"{host}: whether the ranks of {service} can add up a number together is not known: {why}.",
            fix,
        )
    if result.get("backend") == "nccl" and gbps < need:
        return found(
            "collective_slow",
            "warning",
            f"{host}: the ranks of {service} add up at {gbps:g} Gb/s by NCCL {result.get('nccl') or 'of the image'}, less than {need:g}.",
            "One slow cable slows all: see fabric.slow, or min_gbps for what is enough. 12 Gb/s a host means TCP and not RDMA.",
            "spark-vllm-docker: 10 GB/s on a ring of four; a pair has 23",
        )
    return []
