# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The networks of clusters as pictures: hosts and their ports, what is cabled to what, what is wrong, what was measured. Pure functions.

On the page of the plan, and on one of their own, which the role fabric writes before it stops at wrong plugs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from . import page_parts

WIDTH, HEIGHT = 760, 500
ACROSS, DOWN = 285, 185
"""Half the width and half the height of the ellipse on which the hosts stand."""
BOX = (66.0, 17.0)
"""Half the width and half the height of the box of a host."""
RADIUS = 10
"""Of the circle of a port; it stands outside of the box."""
SHAPES = {
    "direct": "a pair on cables",
    "switch": "a switch",
    "ring": "a ring",
    "line": "a line, no ring",
    "none": "not all joined",
}
STATES = {
    "joined": "",
    "outside": "leads to a host outside of the group",
    "silent": "has a link and hears nobody",
    "dark": "has no link",
}
"""What a port is joined to, in words; see C(cabling.port_states)."""
STYLE = """
.net svg{display:block;width:100%;min-width:36rem;max-width:760px;height:auto}.net rect{fill:var(--bg);stroke:var(--line)}
.net text{fill:var(--ink);font-size:14px;text-anchor:middle}.net .port text{font-size:11px}
.net .figure{font-size:12px;paint-order:stroke;stroke:var(--card);stroke-width:4px}
.net path{fill:none;stroke:var(--fits);stroke-width:3}.net .slow path{stroke:var(--tight)}.net .dead path{stroke:var(--fails)}
.net .wrong path{stroke:var(--fails);stroke-dasharray:8 5}
.net .missing path{stroke:var(--fails);stroke-dasharray:1 7;stroke-linecap:round}
.net circle{fill:var(--card);stroke:var(--fits);stroke-width:2}.net .silent circle,.net .outside circle{stroke:var(--tight)}
.net .dark circle{stroke:var(--line)}.net .dark text{fill:var(--soft)}
.net .wrong circle{stroke:var(--fails);stroke-width:4}.net .wrong text{fill:var(--ink)}
.keys{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:.2rem 0 .8rem;padding:0;list-style:none;color:var(--soft);font-size:.87rem}
.keys i{display:inline-block;width:1.8rem;margin-right:.4rem;vertical-align:.25rem;border-top:3px solid var(--fits)}
.keys .slow{border-color:var(--tight)}.keys .dead{border-color:var(--fails)}
.keys .wrong{border-top:3px dashed var(--fails)}.keys .missing{border-top:3px dotted var(--fails)}
""".strip()
KEYS = {
    "right": "as it belongs",
    "slow": "slower than it has to be",
    "dead": "carries nothing",
    "wrong": "in a wrong port",
    "missing": "belongs here and is not",
}

End = tuple[str, int]  # host, port


@dataclass(frozen=True)
class Cable:
    """A cable of a picture. state: a word of C(KEYS); figure: what was measured, in words."""

    one: End
    other: End
    subnets: Sequence[str] = ()
    state: str = "right"
    figure: str = ""


def networks(plan: Mapping[str, Any], figures: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the section of the page of a plan with the networks of all clusters that were looked at; nothing where there is none.

    :param plan: of C(plan.make_plan)
    :param figures: of C(fabric_figures.of_clusters)
    :returns: HTML
    """
    known = {name: whole["fabric"] for name, whole in (plan.get("clusters") or {}).items() if whole.get("fabric")}
    if not known:
        return ""
    shown = [network(name, fabric, figures.get(name) or []) for name, fabric in known.items()]
    return "\n".join(["<section>", "<h2>Networks</h2>", *shown, "</section>"])


def page(state: Mapping[str, Any]) -> str:
    """Return the page of the networks of all clusters that were found out, as they were last.

    :param state: of C(fabric_figures)
    :returns: a document, the same for the same state
    """
    clusters = state["clusters"]
    title = f"Network{'s'[: len(clusters) != 1]} of {len(clusters)} cluster{'s'[: len(clusters) != 1]} of DGX Sparks"
    wrong = {name: _marked(entry["fabric"]) for name, entry in clusters.items()}
    plugs = sum(each.state in ("wrong", "missing") for cables in wrong.values() for each in cables)
    ready = sum(bool(entry["fabric"]["ready"]) for entry in clusters.values())
    tiles = [(f"{ready} of {len(clusters)}", "ready", "fits" if ready == len(clusters) else "fails")]
    tiles += [(str(plugs), f"wrong cable{'s'[: plugs != 1]}", "fails")] if plugs else []
    shown = [
        f"<section>{network(name, entry['fabric'], entry['figures'], entry['at'])}</section>"
        for name, entry in sorted(clusters.items())
    ]
    return page_parts.document(title, [page_parts.tiles(tiles), _keys(), *shown], STYLE)


def _keys() -> str:
    """What the lines of the pictures mean."""
    return f'<ul class="keys">{"".join(f"""<li><i class="{name}"></i>{words}</li>""" for name, words in KEYS.items())}</ul>'


def network(name: str, fabric: Mapping[str, Any], figures: Sequence[Mapping[str, Any]] = (), at: str = "") -> str:
    """Return the picture of one cluster's network, with what was measured and what is wrong below it.

    :param name: of the cluster
    :param fabric: as C(fabric.plan) returns it
    :param figures: of C(fabric_figures), of this cluster
    :param at: when it was found out; empty for a plan, which says so itself
    :returns: HTML
    """
    hosts = list(fabric["hosts"])
    cables = _marked(fabric, figures)
    shape = SHAPES.get(str(fabric["topology"]), str(fabric["topology"]))
    wrong = [found for found in fabric.get("findings") or [] if found["severity"] != "info"]
    when = f", as of {at}" if at else ""
    lines = [
        f'<div class="open net"><div class="inside"><p><b>{escape(name)}</b>: {escape(shape)} of {len(hosts)} Sparks, '
        f"{'ready' if fabric['ready'] else 'not ready'}{escape(when)}</p>",
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(f"Network of {name}", quote=True)}">',
        f'<svg viewBox="{_view(hosts)}" role="img" aria-label="{escape(told(fabric, figures), quote=True)}">',
        *(_drawn(cable, hosts) for cable in cables),
        *(
            _host("switch", _place(hosts, name))
            for name in dict.fromkeys(each.other[0] for each in cables)
            if name not in hosts
        ),
        *(_host(host, _place(hosts, host)) for host in hosts),
        *_ports(fabric, hosts, cables),
        "</svg></div>",
        *_table(figures),
    ]
    lines += [
        f'<p class="{escape(found["severity"])}"><span class="word">{escape(found["rule"])}</span> {escape(found["message"])}'
        + (f" <b>Fix:</b> {escape(found['fix'])}" if found.get("fix") else "")
        + "</p>"
        for found in wrong
    ]
    return "\n".join([*lines, "</div></div>"])


# --- cables -----------------------------------------------------------------------------------------------------------

SWITCH = "\0switch"
"""What the name of a switch begins with; no host has such a name."""


def _marked(fabric: Mapping[str, Any], figures: Sequence[Mapping[str, Any]] = ()) -> list[Cable]:
    """Return the cables that a plan knows or misses, with what is wrong with each and what was measured."""
    wrong = fabric.get("wrong") or {}
    bad = {_pair(each) for each in wrong.get("cables") or []}
    dead = [set(each["between"]) for each in figures if each.get("between")]
    found: dict[frozenset[End], tuple[End, End, list[str]]] = {}
    for rail in fabric.get("rails") or []:
        ends: list[End] = [(host, end["cage"]) for host, end in rail["ends"].items()]
        pairs = [(end, (SWITCH, 0)) for end in ends] if fabric["topology"] == "switch" else list(zip(ends, ends[1:]))
        for one, other in pairs:
            found.setdefault(frozenset({one, other}), (one, other, []))[2].append(rail["subnet"])
    for one, other in _joined([*map(_pair, fabric.get("cables") or []), *bad]):
        found.setdefault(frozenset({one, other}), (one, other, []))
    cables = []
    for pair, (one, other, subnets) in found.items():
        own = [each for each in figures if each["kind"] == "cable" and set(each["hosts"]) == {one[0], other[0]}]
        own = own or [each for each in figures if each["kind"] == "rail" and set(each["hosts"]) == {one[0], other[0]}]
        slow = any(each["gbps"] < each["least"] for each in own)
        state = "wrong" if pair in bad else "dead" if {one[0], other[0]} in dead else "slow" if slow else "right"
        figure = " + ".join(f"{each['gbps']:g}" for each in own)
        cables.append(Cable(one, other, subnets, state, f"{figure} Gb/s" if figure else ""))
    for each in wrong.get("missing") or []:
        one, other = sorted(_pair(each))
        cables.append(Cable(one, other, state="missing"))
    return cables


def _joined(pairs: Sequence[frozenset[End]]) -> list[tuple[End, End]]:
    """Return cables by their ends; ports that are in several pairs hang on a switch, which each of them is joined to."""
    groups: list[set[End]] = []
    for pair in pairs:
        met = [group for group in groups if group & pair]
        groups = [group for group in groups if not group & pair] + [set(pair).union(*met)]
    cables: list[tuple[End, End]] = []
    for number, group in enumerate(groups):
        first, *others = sorted(group)
        cables += (
            [(first, others[0])] if len(others) == 1 else [(end, (f"{SWITCH}{number}", 0)) for end in sorted(group)]
        )
    return cables


def _pair(given: Sequence[Sequence[Any]]) -> frozenset[End]:
    """Read the two ends of a cable."""
    return frozenset((str(host), int(cage)) for host, cage in given)


def told(fabric: Mapping[str, Any], figures: Sequence[Mapping[str, Any]] = ()) -> str:
    """Say in words what the picture shows.

    :param fabric: as C(fabric.plan) returns it
    :param figures: of C(fabric_figures)
    :returns: a text
    """
    texts = []
    for cable in _marked(fabric, figures):
        end = "switch" if cable.other[0].startswith(SWITCH) else f"{cable.other[0]} port {cable.other[1]}"
        words = [*cable.subnets[:1], *(f"and {subnet}" for subnet in cable.subnets[1:])]
        more = [" ".join(words), cable.figure, KEYS[cable.state] if cable.state != "right" else ""]
        texts.append(", ".join(filter(None, (f"{cable.one[0]} port {cable.one[1]} to {end}", *more))))
    texts += [
        f"{host} port {port} {STATES[state]}"
        for host, ports in (fabric.get("ports") or {}).items()
        for port, state in ports.items()
        if STATES.get(state)
    ]
    return "; ".join(texts)


# --- drawing ----------------------------------------------------------------------------------------------------------


def _view(hosts: Sequence[str]) -> str:
    """What is to be seen: of a pair the middle alone."""
    high = 150 if len(hosts) == 2 else HEIGHT
    return f"0 {(HEIGHT - high) / 2:g} {WIDTH} {high}"


def _turn(hosts: Sequence[str], name: str) -> float:
    """The angle at which a host stands: the first at the top, on clockwise; of a pair the first on the left."""
    return 2 * math.pi * hosts.index(name) / len(hosts) - (math.pi if len(hosts) == 2 else math.pi / 2)


def _place(hosts: Sequence[str], name: str) -> tuple[float, float]:
    """Where a host stands. What is no host is in the middle."""
    if name not in hosts:
        return WIDTH / 2, HEIGHT / 2
    turn = _turn(hosts, name)
    return WIDTH / 2 + ACROSS * math.cos(turn), HEIGHT / 2 + DOWN * math.sin(turn)


def _port(hosts: Sequence[str], end: End) -> tuple[float, float]:
    """Where a port is: beside the box of its host towards the middle, port 0 on the side of the host that comes next."""
    left, top = _place(hosts, end[0])
    if end[0] not in hosts:
        return left, top
    turn = _turn(hosts, end[0])
    side = 0.9 if end[1] == 0 else -0.9
    across, down = -math.cos(turn) - side * math.sin(turn), -math.sin(turn) + side * math.cos(turn)
    wide, high = BOX[0] + RADIUS + 2, BOX[1] + RADIUS + 2
    scale = min(wide / abs(across) if across else math.inf, high / abs(down) if down else math.inf)
    return left + scale * across, top + scale * down


def _host(name: str, place: tuple[float, float]) -> str:
    left, top = place
    shown = name if len(name) <= 16 else f"{name[:15]}…"
    return (
        f'<g><rect x="{left - BOX[0]:.1f}" y="{top - BOX[1]:.1f}" width="{2 * BOX[0]:g}" height="{2 * BOX[1]:g}" rx="6"></rect>'
        f'<text x="{left:.1f}" y="{top + 5:.1f}">{escape(shown)}</text></g>'
    )


def _drawn(cable: Cable, hosts: Sequence[str]) -> str:
    """A cable from port to port; one that comes back to its own host is bent towards the middle."""
    (left, top), (right, bottom) = _port(hosts, cable.one), _port(hosts, cable.other)
    middle = ((left + right) / 2, (top + bottom) / 2)
    bend = 0.5 if cable.one[0] == cable.other[0] else 0.0
    pulled = (middle[0] + bend * (WIDTH / 2 - middle[0]), middle[1] + bend * (HEIGHT / 2 - middle[1]))
    title = f"<title>{escape(', '.join(cable.subnets))}</title>" if cable.subnets else ""
    figure = (
        f'<text class="figure" x="{middle[0]:.1f}" y="{middle[1] + 4:.1f}">{escape(cable.figure)}</text>'
        if cable.figure
        else ""
    )
    return (
        f'<g class="{cable.state}"><path d="M{left:.1f} {top:.1f}Q{pulled[0]:.1f} {pulled[1]:.1f} {right:.1f} {bottom:.1f}">'
        f"{title}</path>{figure}</g>"
    )


def _ports(fabric: Mapping[str, Any], hosts: Sequence[str], cables: Sequence[Cable]) -> list[str]:
    """The ports of all hosts: by what they are joined to, and whether a plug is or belongs elsewhere."""
    states = fabric.get("ports") or {}
    plugged = {end: "joined" for cable in cables for end in (cable.one, cable.other) if cable.state != "missing"}
    wrong = {(str(host), int(cage)) for host, cage in (fabric.get("wrong") or {}).get("ends") or []}
    wrong |= {end for cable in cables if cable.state in ("wrong", "missing") for end in (cable.one, cable.other)}
    lines = []
    for host in hosts:
        for port in (0, 1):
            end = (host, port)
            state = str((states.get(host) or {}).get(str(port)) or plugged.get(end) or "dark")
            left, top = _port(hosts, end)
            kind = f"port {state if state in STATES else 'dark'}{' wrong' if end in wrong else ''}"
            title = STATES.get(state, "")
            lines.append(
                f'<g class="{kind}"><circle cx="{left:.1f}" cy="{top:.1f}" r="{RADIUS}">'
                + (f"<title>{escape(f'{host} port {port} {title}')}</title>" if title else "")
                + f'</circle><text x="{left:.1f}" y="{top + 4:.1f}">{port}</text></g>'
            )
    return lines


# --- figures ----------------------------------------------------------------------------------------------------------

WHAT = {"all": "all hosts", "cable": "two hosts, all rails", "rail": "one rail"}


def _table(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was measured last, each figure with its time."""
    if not figures:
        return []
    order = list(WHAT)
    rows = []
    for each in sorted(figures, key=lambda one: (order.index(one["kind"]), str(one.get("rail")), list(one["hosts"]))):
        what = str(each.get("rail") or WHAT[each["kind"]]) + (f", {each['service']}" if each.get("service") else "")
        if "error" in each:
            value = f'<span class="word fails">failed</span> {escape(str(each["error"]))}'
        else:
            low = " tight" if each["gbps"] < each["least"] else ""
            value = f'<span class="word{low}">{each["gbps"]:g}</span>'
        cells = {
            "of": escape(what),
            "between": escape(", ".join(each["hosts"])),
            "Gb/s": value,
            "by": escape(str(each.get("tool") or "")),
            "at": escape(str(each["at"])),
        }
        rows.append("<tr>" + "".join(f'<td data-of="{head}">{text}</td>' for head, text in cells.items()) + "</tr>")
    heads = "".join(f"<th>{head}</th>" for head in ("of", "between", "Gb/s", "by", "at"))
    return [f'<table class="cards"><thead><tr>{heads}</tr></thead><tbody>', *rows, "</tbody></table>"]
