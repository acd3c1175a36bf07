# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The networks of clusters as pictures: hosts, what is cabled to what by which port, subnets, and what is wrong. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 620, 380
ACROSS, DOWN = 225, 135
"""Half the width and half the height of the ellipse on which the hosts stand."""
ASIDE = 11
"""From a line to the number of a port."""
SHAPES = {
    "direct": "a pair on cables",
    "switch": "a switch",
    "ring": "a ring",
    "line": "a line, no ring",
    "none": "not all joined",
}
STYLE = """
.net svg{display:block;width:100%;max-width:620px;height:auto}.net rect{fill:var(--bg);stroke:var(--line)}.net text{fill:var(--ink);font-size:13px;
text-anchor:middle}.net .port{fill:var(--soft);font-size:11px}.net line{stroke:var(--fits);stroke-width:3}.net .wrong line{stroke:var(--fails);
stroke-dasharray:6 4}
""".strip()

End = tuple[str, int]  # host, port


def networks(plan: Mapping[str, Any]) -> str:
    """Return the section of the page with the networks of all clusters that were looked at; nothing where there is none."""
    known = {name: whole["fabric"] for name, whole in (plan.get("clusters") or {}).items() if whole.get("fabric")}
    if not known:
        return ""
    return "\n".join(
        ["<section>", "<h2>Networks</h2>", *(network(name, fabric) for name, fabric in known.items()), "</section>"]
    )


def network(name: str, fabric: Mapping[str, Any]) -> str:
    """Return the picture of one cluster's network, with what is wrong below it.

    :param name: of the cluster
    :param fabric: as C(fabric.plan) returns it
    :returns: HTML
    """
    hosts = list(fabric["hosts"])
    shape = SHAPES.get(str(fabric["topology"]), str(fabric["topology"]))
    wrong = [found for found in fabric.get("findings") or [] if found["severity"] != "info"]
    lines = [
        f'<div class="open net"><div class="inside"><p><b>{escape(name)}</b>: {escape(shape)} of {len(hosts)} Sparks, '
        f"{'ready' if fabric['ready'] else 'not ready'}</p>",
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(told(fabric), quote=True)}">',
        *_cables(fabric, hosts),
        *(_host(host, _place(hosts, host)) for host in hosts),
        "</svg>",
    ]
    lines += [f"<p>{escape(text)}</p>" for text in figures(fabric)]
    lines += [
        f'<p class="{escape(found["severity"])}"><span class="word">{escape(found["rule"])}</span> {escape(found["message"])}</p>'
        for found in wrong
    ]
    return "\n".join([*lines, "</div></div>"])


def figures(fabric: Mapping[str, Any]) -> list[str]:
    """Say what the role fabric has measured in this run, a line a cable or rail; of a probe without a figure it is a finding."""
    return [
        f"{each['rail']}, {each['client']} to {each['server']}: {each['gbps']:g} Gb/s ({each['tool']})"
        for each in fabric.get("measured") or []
        if each.get("gbps") is not None
    ]


def cables_of(fabric: Mapping[str, Any]) -> list[tuple[End, End, list[str]]]:
    """Return the cables that a plan knows, by their ends, with the subnets on them; C(switch) stands for one."""
    found: dict[tuple[End, End], list[str]] = {}
    for rail in fabric.get("rails") or []:
        ends: list[End] = [(host, end["cage"]) for host, end in rail["ends"].items()]
        pairs = [(end, ("switch", 0)) for end in ends] if fabric["topology"] == "switch" else list(zip(ends, ends[1:]))
        for one, other in pairs:
            found.setdefault((one, other), []).append(rail["subnet"])
    for one, other in fabric.get("cables") or []:
        found.setdefault(((one[0], one[1]), (other[0], other[1])), [])
    return [(one, other, subnets) for (one, other), subnets in found.items()]


def told(fabric: Mapping[str, Any]) -> str:
    """Say in words what the picture shows."""
    return "; ".join(
        f"{one[0]} port {one[1]} to {other[0] if other[0] == 'switch' else f'{other[0]} port {other[1]}'}"
        + (f", {' and '.join(subnets)}" if subnets else "")
        for one, other, subnets in cables_of(fabric)
    )


def _place(hosts: Sequence[str], name: str) -> tuple[float, float]:
    """Where a host stands; the first at the top, on clockwise. What is no host is in the middle."""
    if name not in hosts:
        return WIDTH / 2, HEIGHT / 2
    turn = 2 * math.pi * hosts.index(name) / len(hosts) - math.pi / 2
    return WIDTH / 2 + ACROSS * math.cos(turn), HEIGHT / 2 + DOWN * math.sin(turn)


def _host(name: str, place: tuple[float, float]) -> str:
    left, top = place
    shown = name if len(name) <= 16 else f"{name[:15]}…"
    return (
        f'<g><rect x="{left - 62:.1f}" y="{top - 16:.1f}" width="124" height="32" rx="6"></rect>'
        f'<text x="{left:.1f}" y="{top + 5:.1f}">{escape(shown)}</text></g>'
    )


def _cables(fabric: Mapping[str, Any], hosts: Sequence[str]) -> list[str]:
    """The cables, with the ports at their ends; several between two hosts lie side by side."""
    wrong = ' class="wrong"' if fabric["topology"] in ("line", "none") else ""
    drawn: dict[frozenset[str], int] = {}
    lines = []
    for one, other, subnets in cables_of(fabric):
        (left, top), (right, bottom) = _place(hosts, one[0]), _place(hosts, other[0])
        aside = 14 * drawn.setdefault(frozenset({one[0], other[0]}), 0)
        drawn[frozenset({one[0], other[0]})] += 1
        left, right = left + aside, right + aside
        title = f"<title>{escape(', '.join(subnets))}</title>" if subnets else ""
        lines.append(
            f'<g{wrong}><line x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}">{title}</line>'
            + "".join(
                _port(end, (from_x, from_y), (to_x, to_y))
                for end, (from_x, from_y), (to_x, to_y) in (
                    (one, (left, top), (right, bottom)),
                    (other, (right, bottom), (left, top)),
                )
                if end[0] in hosts
            )
            + "</g>"
        )
    if any(other[0] == "switch" for _one, other, _subnets in cables_of(fabric)):
        lines.append(_host("switch", _place(hosts, "switch")))
    return lines


def _port(end: End, start: tuple[float, float], other: tuple[float, float]) -> str:
    """The port at an end of a cable, beside the line."""
    along, down = other[0] - start[0], other[1] - start[1]
    length = math.hypot(along, down) or 1.0
    # Above a line that lies, to the right of one that stands.
    side = 1 if (along, -down) > (0, 0) else -1
    left = start[0] + 0.3 * along + side * ASIDE * down / length
    top = start[1] + 0.3 * down - side * ASIDE * along / length
    return f'<text class="port" x="{left:.1f}" y="{top + 4:.1f}">{end[1]}</text>'
