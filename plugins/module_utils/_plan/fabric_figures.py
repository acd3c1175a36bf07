# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was last found and measured of the networks of clusters, and when: kept beside the plan, from run to run. Pure functions.

A state is C({schema, clusters}). Each cluster has C(at), C(fabric), the part of C(fabric.plan) that its page shows, and C(figures).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._cluster import collective
from .._common.foreign_text import parse_json

SCHEMA = 1
FILE = "fabric.json"
"""Its name, beside plan.json."""
KEPT = ("topology", "ready", "cables", "ports", "wrong")
"""Of the plan of a network, beside its hosts, rails and findings."""
TOLD = ("rule", "severity", "message", "fix")
"""Of a finding."""
KINDS = ("all", "cable", "rail")
"""What a figure is about: all hosts of an engine, the two at the ends of a cable or on a switch, one rail of two hosts."""
LONGEST = 600
"""Of a text that a host said."""


def read(text: str) -> dict[str, Any]:
    """Return a state that was written, an empty one where it cannot be read or has another form.

    :param text: of the file, empty where there is none
    :returns: the state
    """
    try:
        state = parse_json(text, FILE)
    except ValueError:
        state = None
    if not isinstance(state, dict) or state.get("schema") != SCHEMA or not isinstance(state.get("clusters"), dict):
        return {"schema": SCHEMA, "clusters": {}}
    known = {name: body for name, body in state["clusters"].items() if _is_whole(body)}
    return {"schema": SCHEMA, "clusters": known}


def _is_whole(body: Any) -> bool:
    """Tell whether an entry has what the page reads of it."""
    fabric = body.get("fabric") if isinstance(body, dict) else None
    return (
        isinstance(fabric, dict)
        and isinstance(fabric.get("hosts"), dict)
        and {"topology", "ready", "rails", "findings"} <= set(fabric)
        and isinstance(body.get("figures"), list)
        and isinstance(body.get("at"), str)
        and all(isinstance(each, dict) and _is_figure(each) for each in body["figures"])
    )


def _is_figure(figure: Mapping[str, Any]) -> bool:
    """Tell whether a figure has what the page reads of it."""
    return (
        {"kind", "hosts", "at"} <= set(figure)
        and figure["kind"] in KINDS
        and ("error" in figure or all(isinstance(figure.get(key), (int, float)) for key in ("gbps", "least")))
    )


def with_plan(state: Mapping[str, Any], name: str, fabric: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Return a state with the network of a cluster as it was planned just now. Figures of what is cabled otherwise by now are left out.

    :param state: what was known
    :param name: of the cluster
    :param fabric: of C(fabric.plan)
    :param at: when
    :returns: the state
    """
    kept = {
        **{key: fabric[key] for key in KEPT if key in fabric},
        "hosts": {host: {} for host in fabric["hosts"]},
        "rails": [
            {
                "name": rail["name"],
                "subnet": rail["subnet"],
                "ends": {host: {"cage": end["cage"], "netdev": end["netdev"]} for host, end in rail["ends"].items()},
            }
            for rail in fabric["rails"]
        ],
        "findings": [{key: found[key] for key in TOLD if key in found} for found in fabric["findings"]],
    }
    before = (state["clusters"].get(name) or {}).get("figures") or []
    figures = [figure for figure in before if _holds(figure, kept)]
    return {**state, "clusters": {**state["clusters"], name: {"at": at, "fabric": kept, "figures": figures}}}


def _holds(figure: Mapping[str, Any], fabric: Mapping[str, Any]) -> bool:
    """Tell whether what a figure was measured on is there still."""
    ends = set(figure["hosts"])
    if figure["kind"] == "rail":
        return any(rail["name"] == figure.get("rail") and ends <= set(rail["ends"]) for rail in fabric["rails"])
    if figure["kind"] == "cable":
        return any(ends <= set(rail["ends"]) for rail in fabric["rails"])
    return bool(fabric["rails"]) and ends <= set(fabric["hosts"])


def with_rails(
    state: Mapping[str, Any], name: str, results: Sequence[Mapping[str, Any]], least: Mapping[str, float], at: str
) -> dict[str, Any]:
    """Return a state with what the role fabric has measured on rails.

    :param state: with the cluster
    :param name: of the cluster
    :param results: C(bandwidth) of M(dgxspark.vllm.fabric_check)
    :param least: Gb/s that are enough, by tool
    :param at: when
    :returns: the state
    """
    figures = [
        {
            "kind": "rail",
            "rail": each["rail"],
            "hosts": [each["client"], each["server"]],
            "gbps": float(each["gbps"]),
            "least": float(least.get(each["tool"]) or 0),
            "tool": each["tool"],
            "at": at,
        }
        for each in results
        if isinstance(each.get("gbps"), (int, float))
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
    """Return a state with what the ranks of an engine measured before it started: each cable, and all of them together.

    :param state: with the cluster
    :param name: of the cluster
    :param test: C(cluster.collective) of the plan of a host
    :param results: host to C(collective) of M(dgxspark.vllm.fabric_check)
    :param least: Gb/s that are enough, by tool
    :param at: when
    :returns: the state
    """
    hosts = list(test["hosts"])
    need = float(least.get(collective.TOOL) or 0)
    figures: list[dict[str, Any]] = [
        {"kind": "cable", "least": need if each["tool"] == "nccl" else 0.0, "at": at, **each}
        for host, result in results.items()
        for each in collective.measured(hosts, result)
        if each["hosts"][0] == host
    ]
    whole: dict[str, Any] = {"kind": "all", "hosts": hosts, "service": test["service"], "at": at}
    wrong = {host: result for host, result in results.items() if "error" in result}
    head = results.get(hosts[0]) or {}
    if wrong:
        # Who names the two ends says more than who waited for them.
        host, said = min(wrong.items(), key=lambda each: ("between" not in each[1], hosts.index(each[0])))
        between = [hosts[rank] for rank in said.get("between") or []]
        figures.append({**whole, "error": f"{host}: {said['error']}"[:LONGEST], "between": between})
    elif isinstance(head.get("gbps"), (int, float)):
        backend = str(head.get("backend"))
        tool = " ".join(filter(None, (backend, str(head.get("nccl") or ""))))
        least_of_all = need if backend == "nccl" else 0.0
        figures.append({**whole, "gbps": float(head["gbps"]), "least": least_of_all, "tool": tool})
    return _with(state, name, figures)


def _with(state: Mapping[str, Any], name: str, figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put figures in the place of older ones of the same."""
    entry = state["clusters"].get(name)
    if entry is None or not figures:
        return dict(state)
    new = {_subject(figure) for figure in figures}
    kept = [figure for figure in entry["figures"] if _subject(figure) not in new]
    return {**state, "clusters": {**state["clusters"], name: {**entry, "figures": [*kept, *figures]}}}


def _subject(figure: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a figure is about: there is one of each."""
    return figure["kind"], figure.get("rail"), frozenset(figure["hosts"])


def of_clusters(state: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the figures by cluster. state: what is kept."""
    return {name: list(entry["figures"]) for name, entry in state["clusters"].items()}
