# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the ranks of an engine can add up a number together, before any of them loads: its command, its result, what follows.

The bandwidth of single cables does not show it: each may be fast, and the engine's NCCL still choose TCP, or connect hosts that no cable joins.
nccl-tests over hosts would need MPI, and SSH among the hosts; torch and NCCL of the engine's own image need neither, and are what serves then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._common import program_text
from .._common.findings import Finding
from .._content import image_probe, image_probe_program
from . import collective_program
from .cabling import join
from .fabric_bandwidth import DEGRADED, ON_SWITCH

CONTAINER = "dgxspark-collective"
SECONDS = 180
"""After which it is ended: a GPU image takes half a minute to import torch, ranks may wait a minute for each other, and a round as long."""
TOOL = "all_reduce"
"""Its key in C(min_gbps)."""
_PREFIXES = "NCCL_ GLOO_ UCX_ OMPI_ MN_IF_NAME TP_SOCKET_IFNAME VLLM_HOST_IP LD_PRELOAD LD_LIBRARY_PATH VLLM_NCCL_SO_PATH TORCH_USE_RTLD_GLOBAL"
NETWORK_VARIABLES = tuple(_PREFIXES.split())
"""Prefixes of variables that choose the network of ranks, and their NCCL."""
NCCL_FIX = (
    "Nothing was started. env: {NCCL_DEBUG: INFO} of the service shows the device of each connection; docs/fabric.md "
    "has the settings. "
    "bandwidth: false below fabric of spark_cluster starts without this test."
)


def program() -> str:
    """Return the text that runs inside the image: the program after the image probe, which it imports."""
    return program_text.program(collective_program, image_probe_program)


def cables(topology: str, size: int) -> list[tuple[int, int]]:
    """Return the pairs of ranks that are measured by themselves: neighbours, also on a switch, where each port is in a pair then.

    :returns: pairs; none of two ranks, which are a pair together
    """
    if size < 3 or topology not in ("ring", "switch"):
        return []
    return [(rank, rank + 1) for rank in range(size - 1)] + ([(0, size - 1)] if topology == "ring" else [])


def environment(
    env: Mapping[str, str], rank: int, size: int, head: str, port: int, pairs: Sequence[tuple[int, int]] = ()
) -> dict[str, str]:
    """Return the variables of a rank of the test."""
    return {
        **{name: value for name, value in env.items() if name.startswith(NETWORK_VARIABLES)},
        **({collective_program.CABLES: ",".join(f"{first}-{second}" for first, second in pairs)} if pairs else {}),
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
    """
    hosts_used: set[str] = set()
    chosen = []
    for service in services:
        if service["state"] in ("started", "on_demand") and not hosts_used & set(service["hosts"]):
            chosen.append(str(service["name"]))
            hosts_used |= set(service["hosts"])
    return chosen


def read(rc: int, out: str, err: str) -> dict[str, Any]:
    """Return the result of one rank: C({gbps, backend, ...}), C({error}), C({lacks}), or C({unknown}) without output."""
    result = image_probe.printed(out, collective_program.RESULT)
    if result is not None:
        return result
    if rc in image_probe.TIMED_OUT:
        return {"unknown": f"it did not end within {SECONDS} s"}
    last = err.strip().splitlines()[-1:] or out.strip().splitlines()[-1:] or [f"exit code {rc}"]
    return {"unknown": last[0][:300]}


def measured(hosts: Sequence[str], result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return C([{hosts, gbps, tool}]) of the cables that a rank is the first of. hosts: in the order of ranks. result: of C(read)."""
    rows = []
    for pair, gbps in (result.get("cables") or {}).items():
        names = [hosts[int(rank)] for rank in str(pair).split("-")]
        rows.append({"hosts": names, "gbps": float(gbps), "tool": str(result.get("backend"))})
    return rows


def judge(
    host: str, test: Mapping[str, Any], result: Mapping[str, Any], least: Mapping[str, float]
) -> Iterator[Finding]:
    """Judge the result of one rank.

    :param test: the test: C(service), whose image and environment it was, C(hosts) in the order of its ranks, and C(topology)
    :param least: Gb/s that are enough, by tool
    """
    if "error" in result:
        between = [str(test["hosts"][rank]) for rank in result.get("between") or []]
        already = f", already {join(between)} alone" if between else ""
        message = f"{host}: the ranks of {test['service']} cannot add up a number together{already}: {result['error']}."
        yield _finding("collective", "error", message, NCCL_FIX, test)
    elif not isinstance(result.get("gbps"), (int, float)):
        severity, why, fix = (
            "warning",
            str(result.get("unknown") or "no figure"),
            "Read the engine's log at its start, or run again.",
        )
        if "lacks" in result:
            severity, why, fix = "info", f"the image has no {result['lacks']}", "Nothing, where the image is no vLLM."
        message = f"{host}: whether the ranks of {test['service']} can add up a number together is not known: {why}."
        yield _finding("collective_unknown", severity, message, fix, test)
    elif result.get("backend") == "nccl":  # how fast a processor adds says nothing about cables
        yield from _judge_speed(host, test, result, float(least.get(TOOL, 0)))


def _finding(rule: str, severity: str, message: str, fix: str, test: Mapping[str, Any], source: str = "") -> Finding:
    """Return a finding of a test. wanted: as C(judge) takes it."""
    service = str(test["service"])
    return Finding(f"fabric.{rule}", severity, message, fix=fix, service=service, source=source, basis="probed")


def _judge_speed(host: str, test: Mapping[str, Any], result: Mapping[str, Any], need: float) -> Iterator[Finding]:
    """Judge the figures of NCCL: of the cables that a rank is the first of, and of all. need: Gb/s that are enough."""
    version = result.get("nccl") or "of the image"
    for row in measured([str(name) for name in test["hosts"]], result):
        if row["hosts"][0] == host and row["gbps"] < need:
            message = (
                f"{join(row['hosts'])} alone add up at {row['gbps']:g} Gb/s by NCCL {version}, less than {need:g}."
            )
            fix = f"{DEGRADED} 12 Gb/s means TCP and not RDMA. min_gbps sets the limit."
            fix = f"{ON_SWITCH}{fix}" if test.get("topology") == "switch" else fix
            yield _finding("cable_slow", "warning", message, fix, test, "a pair has 180 to 192")
    if result["gbps"] < need:
        yield _finding(
            "collective_slow",
            "warning",
            f"{host}: the ranks of {test['service']} add up at {result['gbps']:g} Gb/s by NCCL {version}, less than {need:g}.",
            "One slow cable slows all: see fabric.cable_slow and fabric.slow, or set the limit with min_gbps. 12 Gb/s a host means TCP and "
            "not RDMA.",
            test,
            "spark-vllm-docker: 10 GB/s on a ring of four; a pair has 23",
        )
