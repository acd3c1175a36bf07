# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last known networks of clusters and their measurements, in a file next to plan.json. Pure functions.

A state is C({schema, clusters}). Each cluster has C(at), C(fabric), the part of C(fabric.plan) that its page shows, and C(figures).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._cluster import collective
from .._common import reader
from .._common.foreign_text import parse_json

SCHEMA = 1
FILE = "fabric.json"
FABRIC_KEYS = ("topology", "ready", "cables", "ports", "wrong")
"""Keys of the plan of a network, without its hosts, rails and findings."""
FINDING_KEYS = ("rule", "severity", "message", "fix")
KINDS = ("all", "cable", "rail")
"""Subjects of a figure: all hosts of an engine, two hosts on a cable or switch, or one rail of two hosts."""
LONGEST = 600
"""Characters of a text from a host."""


def read(text: str) -> dict[str, Any]:
    """Return the state in the text of a file; an empty state for an unreadable file, without malformed clusters."""
    try:
        state = parse_json(text, FILE)
    except ValueError:
        state = None
    if not isinstance(state, dict) or state.get("schema") != SCHEMA or not isinstance(state.get("clusters"), dict):
        return {"schema": SCHEMA, "clusters": {}}
    clusters = {name: entry for name, entry in state["clusters"].items() if not reader.problems(_CLUSTER, entry, name)}
    return {"schema": SCHEMA, "clusters": clusters}


_FIGURE = {"kind": reader.one_of(*KINDS), "hosts": Any, "at": Any}
_CLUSTER = {
    "at": str,
    "fabric": {"topology": Any, "ready": Any, "hosts": {str: Any}, "rails": Any, "findings": Any},
    "figures": [reader.Either({**_FIGURE, "error": Any}, {**_FIGURE, "gbps": float, "least": float})],
}
"""The keys that the page reads."""


def with_plan(state: Mapping[str, Any], name: str, fabric: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Return a state with the present network of a cluster, without the figures of earlier cabling. fabric: of C(fabric.plan)."""
    network = {
        **{key: fabric[key] for key in FABRIC_KEYS if key in fabric},
        "hosts": {host: {} for host in fabric["hosts"]},
        "rails": [
            {
                "name": rail["name"],
                "subnet": rail["subnet"],
                "ends": {host: {"cage": end["cage"], "netdev": end["netdev"]} for host, end in rail["ends"].items()},
            }
            for rail in fabric["rails"]
        ],
        "findings": [{key: finding[key] for key in FINDING_KEYS if key in finding} for finding in fabric["findings"]],
    }
    earlier = (state["clusters"].get(name) or {}).get("figures") or []
    figures = [figure for figure in earlier if _is_present(figure, network)]
    return {**state, "clusters": {**state["clusters"], name: {"at": at, "fabric": network, "figures": figures}}}


def _is_present(figure: Mapping[str, Any], fabric: Mapping[str, Any]) -> bool:
    ends, rails = set(figure["hosts"]), fabric["rails"]
    if figure["kind"] == "rail":
        rails = [rail for rail in rails if rail["name"] == figure.get("rail")]
    if figure["kind"] == "all":
        return bool(rails) and ends <= set(fabric["hosts"])
    return any(ends <= set(rail["ends"]) for rail in rails)


def with_rails(
    state: Mapping[str, Any], name: str, results: Sequence[Mapping[str, Any]], least: Mapping[str, float], at: str
) -> dict[str, Any]:
    """Return a state with the bandwidth of rails. results: C(bandwidth) of M(dgxspark.vllm.fabric_check). least: required Gb/s by tool."""
    figures = [
        {
            "kind": "rail",
            "rail": result["rail"],
            "hosts": [result["client"], result["server"]],
            "gbps": float(result["gbps"]),
            "least": float(least.get(result["tool"]) or 0),
            "tool": result["tool"],
            "at": at,
        }
        for result in results
        if isinstance(result.get("gbps"), (int, float))
    ]
    return _with(state, name, figures)


def with_test(
    state: Mapping[str, Any],
    name: str,
    test: Mapping[str, Any],
    results: Mapping[str, Mapping[str, Any]],
    least: Mapping[str, float],
    at: str,
) -> dict[str, Any]:
    """Return a state with the bandwidth that the ranks of an engine measured before its start, of each cable and of all hosts.

    test: C(cluster.collective) of a host's plan. results: host to C(collective) of M(dgxspark.vllm.fabric_check). least: Gb/s by tool.
    """
    hosts = list(test["hosts"])
    required = float(least.get(collective.TOOL) or 0)
    figures: list[dict[str, Any]] = [
        {"kind": "cable", "least": required if cable["tool"] == "nccl" else 0.0, "at": at, **cable}
        for host, result in results.items()
        for cable in collective.measured(hosts, result)
        if cable["hosts"][0] == host
    ]
    of_all: dict[str, Any] = {"kind": "all", "hosts": hosts, "service": test["service"], "at": at}
    failed = {host: result for host, result in results.items() if "error" in result}
    head = results.get(hosts[0]) or {}
    if failed:
        # A host that names the two ends is more precise than a host that waited for them.
        host = min(failed, key=lambda name: ("between" not in failed[name], hosts.index(name)))
        between = [hosts[rank] for rank in failed[host].get("between") or []]
        figures.append({**of_all, "error": f"{host}: {failed[host]['error']}"[:LONGEST], "between": between})
    elif isinstance(head.get("gbps"), (int, float)):
        backend = str(head.get("backend"))
        tool = " ".join(filter(None, (backend, str(head.get("nccl") or ""))))
        least_of_all = required if backend == "nccl" else 0.0
        figures.append({**of_all, "gbps": float(head["gbps"]), "least": least_of_all, "tool": tool})
    return _with(state, name, figures)


def _with(state: Mapping[str, Any], name: str, figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a state in which figures replace earlier ones with the same subject."""
    entry = state["clusters"].get(name)
    if entry is None or not figures:
        return dict(state)
    replaced = {_subject(figure) for figure in figures}
    remaining = [figure for figure in entry["figures"] if _subject(figure) not in replaced]
    return {**state, "clusters": {**state["clusters"], name: {**entry, "figures": [*remaining, *figures]}}}


def _subject(figure: Mapping[str, Any]) -> tuple[Any, ...]:
    return figure["kind"], figure.get("rail"), frozenset(figure["hosts"])


def of_clusters(state: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the figures by cluster."""
    return {name: list(entry["figures"]) for name, entry in state["clusters"].items()}
