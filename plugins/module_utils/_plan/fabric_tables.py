# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The networks of clusters as HTML: cables with their ports and subnets, problems, and measurements. Pure functions.

The plan's page has them, and the page that the role fabric writes before it stops at wrong plugs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from . import page_parts

TOPOLOGIES = {
    "direct": "a pair on cables",
    "switch": "a switch",
    "ring": "a ring",
    "line": "a line, no ring",
    "none": "not all joined",
}
PORT_STATES = {
    "outside": "leads to a host outside of the group",
    "silent": "has a link and hears nobody",
    "dark": "has no link",
}
"""Words for the states of ports without a cable to the group; see C(cabling.port_states)."""
CABLE_STATES = {
    "right": ("fits", "right"),
    "slow": ("tight", "slower than required"),
    "dead": ("fails", "carries nothing"),
    "wrong": ("fails", "in a wrong port"),
    "missing": ("fails", "belongs here and is missing"),
}
"""The CSS class and the words of each state of a cable."""

End = tuple[str, int]  # host, port


@dataclass(frozen=True)
class Cable:
    """A cable between two ports. state: of C(CABLE_STATES); figure: measured Gb/s, several are joined by a plus."""

    end: End
    other_end: End
    subnets: Sequence[str] = ()
    state: str = "right"
    figure: str = ""


def render_networks(plan: Mapping[str, Any], figures: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the section of the plan's page with the networks of its clusters, empty if none is known. figures: of C(fabric_figures)."""
    fabrics = {
        name: cluster["fabric"] for name, cluster in (plan.get("clusters") or {}).items() if cluster.get("fabric")
    }
    if not fabrics:
        return ""
    networks = [render_network(name, fabric, figures.get(name) or []) for name, fabric in fabrics.items()]
    return "\n".join(["<section>", "<h2>Networks</h2>", *networks, "</section>"])


def page(state: Mapping[str, Any]) -> str:
    """Return the page of the last known networks of all clusters. state: of C(fabric_figures)."""
    clusters = state["clusters"]
    title = f"Network{'s'[: len(clusters) != 1]} of {len(clusters)} cluster{'s'[: len(clusters) != 1]} of DGX Sparks"
    cables = [cable for entry in clusters.values() for cable in _cables(entry["fabric"])]
    wrong = sum(cable.state in ("wrong", "missing") for cable in cables)
    ready = sum(bool(entry["fabric"]["ready"]) for entry in clusters.values())
    tiles = [(f"{ready} of {len(clusters)}", "ready", "fits" if ready == len(clusters) else "fails")]
    tiles += [(str(wrong), f"wrong cable{'s'[: wrong != 1]}", "fails")] if wrong else []
    networks = [
        f"<section>{render_network(name, entry['fabric'], entry['figures'], entry['at'])}</section>"
        for name, entry in sorted(clusters.items())
    ]
    return page_parts.document(title, [page_parts.tiles(tiles), *networks])


def render_network(
    name: str, fabric: Mapping[str, Any], figures: Sequence[Mapping[str, Any]] = (), at: str = ""
) -> str:
    """Return the tables of one cluster's cables and figures, and the problems of its network.

    fabric: of C(fabric.plan). figures: of C(fabric_figures). at: time of the probe; empty for a plan, which has its own time.
    """
    topology = TOPOLOGIES.get(str(fabric["topology"]), str(fabric["topology"]))
    problems = [finding for finding in fabric.get("findings") or [] if finding["severity"] != "info"]
    when = f", as of {at}" if at else ""
    lines = [
        f'<div class="open"><div class="inside"><p><b>{escape(name)}</b>: {escape(topology)} of {len(fabric["hosts"])} Sparks, '
        f"{'ready' if fabric['ready'] else 'not ready'}{escape(when)}</p>",
        *_cable_table(fabric, figures),
        *_figure_table(figures),
    ]
    lines += [
        f'<p class="{escape(finding["severity"])}"><span class="word">{escape(finding["rule"])}</span> '
        + escape(finding["message"])
        + (f" <b>Fix:</b> {escape(finding['fix'])}" if finding.get("fix") else "")
        + "</p>"
        for finding in problems
    ]
    return "\n".join([*lines, "</div></div>"])


# --- cables -----------------------------------------------------------------------------------------------------------

SWITCH = "\0switch"
"""The names of switches begin with it; no host has such a name."""


def _cables(fabric: Mapping[str, Any], figures: Sequence[Mapping[str, Any]] = ()) -> list[Cable]:
    """Return the planned, connected and missing cables with their states and measured figures."""
    wrong = fabric.get("wrong") or {}
    wrong_pairs = [_pair(ends) for ends in wrong.get("cables") or []]
    connections = _connections(fabric)
    for end, other_end in _joined([*map(_pair, fabric.get("cables") or []), *wrong_pairs]):
        connections.setdefault(frozenset({end, other_end}), (end, other_end, []))
    cables = []
    for pair, (end, other_end, subnets) in connections.items():
        state, figure = _measured_state({end[0], other_end[0]}, figures)
        cables.append(Cable(end, other_end, subnets, "wrong" if pair in wrong_pairs else state, figure))
    for missing in wrong.get("missing") or []:
        end, other_end = sorted(_pair(missing))
        cables.append(Cable(end, other_end, state="missing"))
    return cables


def _connections(fabric: Mapping[str, Any]) -> dict[frozenset[End], tuple[End, End, list[str]]]:
    """Return the connections of the rails of a network, each with its subnets."""
    connections: dict[frozenset[End], tuple[End, End, list[str]]] = {}
    for rail in fabric.get("rails") or []:
        ends: list[End] = [(host, end["cage"]) for host, end in rail["ends"].items()]
        pairs = [(end, (SWITCH, 0)) for end in ends] if fabric["topology"] == "switch" else list(zip(ends, ends[1:]))
        for end, other_end in pairs:
            connections.setdefault(frozenset({end, other_end}), (end, other_end, []))[2].append(rail["subnet"])
    return connections


def _measured_state(hosts: set[str], figures: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the state of a cable between two hosts by its figures, and the figures for a table."""
    between = [figure for figure in figures if set(figure["hosts"]) == hosts]
    measured = [figure for figure in between if figure["kind"] == "cable"]
    measured = measured or [figure for figure in between if figure["kind"] == "rail"]
    text = " + ".join(f"{figure['gbps']:g}" for figure in measured)
    if hosts in [set(figure["between"]) for figure in figures if figure.get("between")]:
        return "dead", text
    return ("slow" if any(figure["gbps"] < figure["least"] for figure in measured) else "right"), text


def _joined(pairs: Sequence[frozenset[End]]) -> list[tuple[End, End]]:
    """Return the ends of cables from pairs of ports that hear each other; a group of more than two ports is on a switch."""
    groups: list[set[End]] = []
    for pair in pairs:
        met = [group for group in groups if group & pair]
        groups = [group for group in groups if not group & pair] + [set(pair).union(*met)]
    cables: list[tuple[End, End]] = []
    for number, group in enumerate(groups):
        ends = sorted(group)
        cables += [(ends[0], ends[1])] if len(ends) == 2 else [(end, (f"{SWITCH}{number}", 0)) for end in ends]
    return cables


def _pair(ends: Sequence[Sequence[Any]]) -> frozenset[End]:
    """Return the two ends of a cable, read from JSON."""
    return frozenset((str(host), int(cage)) for host, cage in ends)


def _cable_table(fabric: Mapping[str, Any], figures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table of cables, and of ports without a cable to the group."""
    rows = []
    for cable in _cables(fabric, figures):
        other_end = "switch" if cable.other_end[0].startswith(SWITCH) else _port_name(*cable.other_end)
        texts = (_port_name(*cable.end), other_end, ", ".join(cable.subnets), cable.figure)
        rows.append([*map(escape, texts), _marked(*CABLE_STATES[cable.state])])
    wrong_ends = {(str(host), int(cage)) for host, cage in (fabric.get("wrong") or {}).get("ends") or []}
    for host, ports in (fabric.get("ports") or {}).items():
        for port, state in ports.items():
            if state in PORT_STATES:
                style = "fails" if (host, int(port)) in wrong_ends else ""
                rows.append([escape(_port_name(host, port)), "", "", "", _marked(style, PORT_STATES[state])])
    return _table(("from", "to", "subnets", "Gb/s", "state"), rows)


def _port_name(host: str, port: int | str) -> str:
    return f"{host} port {port}"


def _marked(style: str, words: str) -> str:
    """Return the HTML of some words in the colour of a CSS class of the page; an empty class stands for none."""
    return f'<span class="word {style}">{escape(words)}</span>' if style else escape(words)


# --- figures ----------------------------------------------------------------------------------------------------------

SUBJECTS = {"all": "all hosts", "cable": "two hosts, all rails", "rail": "one rail"}


def _figure_table(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table of the last figures, each with its time."""
    order = list(SUBJECTS)
    rows = []
    for figure in sorted(
        figures, key=lambda entry: (order.index(entry["kind"]), str(entry.get("rail")), list(entry["hosts"]))
    ):
        subject = str(figure.get("rail") or SUBJECTS[figure["kind"]])
        subject += f", {figure['service']}" if figure.get("service") else ""
        if "error" in figure:
            value = f"{_marked('fails', 'failed')} {escape(str(figure['error']))}"
        else:
            value = _marked("tight" if figure["gbps"] < figure["least"] else "", f"{figure['gbps']:g}")
        tool, at = escape(str(figure.get("tool") or "")), escape(str(figure["at"]))
        rows.append([escape(subject), escape(", ".join(figure["hosts"])), value, tool, at])
    return _table(("of", "between", "Gb/s", "by", "at"), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of an HTML table, none if it has no rows. heads: plain text. rows: HTML of the cells."""
    lines = ["".join(map(page_parts.text_cell, heads, row)) for row in rows]
    return [page_parts.table(heads, lines)] if rows else []
