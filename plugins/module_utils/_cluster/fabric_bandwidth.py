# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the bandwidth of a fabric: the commands of the probes, their output, and the verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._common.findings import Finding
from .._common.foreign_text import parse_json
from .cable_probe import BANDWIDTH_TOOLS

PROBE_BYTES = 1 << 30
"""A probe of the bandwidth moves 1 GiB: 16 GiB buffers have frozen nodes (NVIDIA/dgx-spark-playbooks#102)."""
PROBE_MESSAGE = 65536
PROBE_PORT = 18515


def bandwidth_tests(plan_: Mapping[str, Any], tools: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Return the bandwidth probes of a planned group: the first host with each other one, on each rail.

    tools: programs on each host. Returns C([{rail, topology, tool, server, client, listen, send}]) with both command lines;
    empty if no tool is on all hosts.
    """
    tool = next((name for name in BANDWIDTH_TOOLS if tools and all(name in has for has in tools.values())), None)
    if tool is None:
        return []
    tests = []
    for rail in plan_["rails"]:
        ends = {host: end for host, end in rail["ends"].items() if end["present"]}
        hosts = [host for host in plan_["hosts"] if host in ends]
        for client in hosts[1:]:
            server = hosts[0]
            listening, sending = ends[server], ends[client]
            if tool == "ib_write_bw" and not (listening["rdma"] and sending["rdma"]):
                continue
            tests.append(
                {
                    "rail": rail["name"],
                    "topology": plan_["topology"],
                    "tool": tool,
                    "server": server,
                    "client": client,
                    "listen": probe_command(tool, listening),
                    "send": probe_command(tool, sending, listening["present"].partition("/")[0]),
                }
            )
    return tests


def probe_command(tool: str, end: Mapping[str, Any], target: str = "") -> list[str]:
    """Return the command line of one side of a probe: 1 GiB, at most a minute.

    :param tool: one of C(BANDWIDTH_TOOLS)
    :param end: of the plan's C(bandwidth_tests): address and RoCE device
    :param target: address of the server; makes it the client
    """
    address = str(end["present"]).partition("/")[0]
    if tool == "ib_write_bw":
        messages = str(PROBE_BYTES // PROBE_MESSAGE)
        device = ["-d", str(end["rdma"]), "--report_gbits", "-F", "-s", str(PROBE_MESSAGE), "-n", messages]
        command = ["ib_write_bw", *device, "-p", str(PROBE_PORT)]
        return ["timeout", "60", *command, *([target] if target else [])]
    common = ["iperf3", "-p", str(PROBE_PORT), "-B", address]
    if target:
        return ["timeout", "60", *common, "-c", target, "-n", str(PROBE_BYTES), "-J"]
    return ["timeout", "60", *common, "-s", "-1"]


def parse_bandwidth(tool: str, out: str) -> float | None:
    """Return the Gb/s that a probe's client printed, or None."""
    if tool == "iperf3":
        try:
            return round(float(parse_json(out, "iperf3")["end"]["sum_received"]["bits_per_second"]) / 1e9, 2)
        except (ValueError, KeyError, TypeError):
            return None
    # #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]
    rows = re.findall(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$", out, re.MULTILINE)
    return float(rows[-1]) if rows else None


DEGRADED = (
    "About 13 Gb/s at a 200 Gb/s link means that the card came up degraded, with any kernel: shut down, take the power off for one to five "
    "minutes, and start with the cable in."
)
ON_SWITCH = (
    "About 5 Gb/s on a switch is traffic that its chip does not forward: put all ports into one bridge, and where two switches have an uplink "
    "each, see that RSTP does not block the link between them (a path cost for the second uplink). At most 100: take the limit out of the "
    "port's shaper, and set 200G-baseCR4. "
)
"""Reported for a MikroTik CRS812; other switches use other words."""


def judge_bandwidth(results: Sequence[Mapping[str, Any]], least: Mapping[str, float]) -> Iterator[Finding]:
    """Judge the results of probes, with C(gbps) or C(error). least: Gb/s that are enough, by tool."""
    if not results:
        message = "the bandwidth was not measured: neither ib_write_bw (package perftest) nor iperf3 is on all hosts."
        fix = "Install one of them on all hosts of the group; or see what site.yml says of each cable before an engine starts."
        yield Finding("fabric.no_probe", "info", message, fix, basis="probed")
    for result in results:
        way, tool = f"{result['rail']}: {result['client']} to {result['server']}", result["tool"]
        need, switched = float(least.get(tool, 0)), result.get("topology") == "switch"
        if result.get("gbps") is None:
            message = f"{way}: {tool} gave no figure: {result.get('error') or 'no output'}."
            fix = f"Run it by hand; port {PROBE_PORT} of the fabric must be open."
            yield Finding("fabric.probe_failed", "warning", message, fix, basis="probed")
        elif result["gbps"] < need:
            message = f"{way}: {result['gbps']:g} Gb/s by {tool}, less than {need:g}."
            fix = f"{ON_SWITCH if switched else ''}{DEGRADED} fabric_min_gbps sets the limit."
            source = "NVIDIA/dgx-spark-playbooks PR#108; NVIDIA developer forum t/383649; healthy rails: 92 to 112 Gb/s by ib_write_bw"
            source += (
                "; owners of a MikroTik CRS812: 4.9 over a second bridge, 4.5 past a blocked link" if switched else ""
            )
            yield Finding("fabric.slow", "warning", message, fix, source=source, basis="probed")
