#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the pictures of README and docs/ as SVG: what the collection itself prints and draws, of plans that it makes here.

Run with PYTHONPATH=collections; --check only compares. The answers of hosts are invented here; their
evaluation and display are real.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import fleet_status, status_rows
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import page_parts, picture
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images"
COLUMNS = 124
CELL, LINE, LEFT, TOP = 8.43, 17.0, 12.0, 44.0
INK, PAPER = "#d6d9de", "#191b20"
COLOURS = {
    "31": "#f06262",
    "32": "#7ec46b",
    "33": "#e5c059",
    "34": "#6ca6f0",
    "35": "#cf8fd0",
    "36": "#54bec8",
    "90": "#8b919c",
}
"""Of SGR parameters, on PAPER; each has a contrast of 4.5 there."""
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
SANS = "system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
TOO_LONG = """\
sparks:
  hosts:
    spark-1:
      spark_services:
        - {name: heavy, recipe: qwen3-next-80b-a3b-instruct-fp8, port: 8001, args: {gpu-memory-utilization: 0.80}}
        - {name: fast, recipe: qwen3-4b-instruct-2507, port: 8002, args: {gpu-memory-utilization: 0.10, max-model-len: 32768}}
    spark-2:
      spark_services:
        - {name: qwen36, recipe: qwen3.6-35b-a3b-nvfp4, port: 8001, args: {gpu-memory-utilization: 0.55}}
"""
DAY = 86400


def planned(text: str) -> dict[str, Any]:
    """Return the plan of an inventory of single Sparks.

    :param text: its hosts.yml
    """
    hosts = {
        name: {"vars": variables, "address": name, "measured": None, "images": {}, "fabric": None}
        for name, variables in yaml.safe_load(text)["sparks"]["hosts"].items()
    }
    plan = engine.make_plan(hosts, load_recipes([RECIPES])[0], groups={"sparks": list(hosts)})
    return {**plan, "findings": engine.plan_findings(plan)}


# --- a terminal -----------------------------------------------------------------------------------------------------------


def runs(lines: Iterable[str]) -> Iterator[tuple[int, int, str, str]]:
    """Yield the parts of lines with colours: the line, the column, the text and its colour, which lasts until another."""
    colour = INK
    for number, line in enumerate(lines):
        column = 0
        for part in re.split(r"(\x1b\[[\d;]*m)", line):
            if part.startswith("\x1b"):
                colour = next((COLOURS[code] for code in part[2:-1].split(";") if code in COLOURS), INK)
            elif part:
                yield number, column, part, colour
                column += len(part)


def terminal(title: str, text: str) -> str:
    """Return a text with colours as a picture of a terminal.

    :param title: above the picture, and its alternative text
    :param text: printed text with SGR sequences
    """
    lines = [piece for line in text.splitlines() for piece in wrapped(line)]
    width, height = LEFT * 2 + COLUMNS * CELL, TOP + LINE * len(lines) + 6
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="{PAPER}"/>',
        *(
            f'<circle cx="{18 + 16 * i}" cy="17" r="5" fill="{c}"/>'
            for i, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
        f'<text x="{width / 2:.0f}" y="21" fill="{INK}" text-anchor="middle" font-family="{SANS}" font-size="13">{escape(title)}</text>',
        f'<g font-family="{MONO}" font-size="14">',
    ]
    for number, column, part, colour in runs(lines):
        words = part.strip()
        if words:
            x = LEFT + CELL * (column + len(part) - len(part.lstrip()))
            place = f'x="{x:.1f}" y="{TOP + LINE * number + 13:.1f}"'
            length = f'textLength="{CELL * len(words):.1f}" lengthAdjust="spacingAndGlyphs"'
            # Spaces side by side are one to SVG.
            drawn.append(f'<text {place} {length} fill="{colour}">{escape(words).replace(" ", chr(0xA0))}</text>')
    return "\n".join([*drawn, "</g>", "</svg>", ""])


def wrapped(line: str) -> Iterator[str]:
    """Yield the parts of a line in a terminal of COLUMNS, cut at spaces if possible."""
    while len(re.sub(r"\x1b\[[\d;]*m", "", line)) > COLUMNS:
        cut = line.rfind(" ", 1, COLUMNS)
        yield line[:cut]
        line = line[cut + 1 :]
    yield line


def plan_and_status() -> str:
    """The terminal of README: a plan with an error, shortened, and the status of the same Sparks."""
    plan = planned(TOO_LONG)
    findings = [finding for finding in plan["findings"] if finding["severity"] == "error"]
    text = picture.plan_text(plan, findings, COLUMNS - 1, True, "my-sparks/.spark/plan.html", notes=False)
    status = fleet_status.text(reported(plan), "groups")
    prompt = "\x1b[32m$\x1b[0m "
    return terminal(
        "plan.yml and status.yml",
        f"{prompt}ansible-playbook -i my-sparks dgxspark.vllm.plan\n{text}\n\n"
        f"{prompt}ansible-playbook -i my-sparks dgxspark.vllm.status\n{status}\n",
    )


def reported(plan: Mapping[str, Any]) -> fleet_status.Status:
    """Return the status of hosts with such a plan, one of whose services is down."""
    answers = {
        "spark-1": answers_of({"heavy": (95.0, 3, 0.09)}, "fast", 14.2),
        "spark-2": answers_of({"qwen36": (66.0, 6, 0.18)}, "", 48.9),
    }
    rows: list[status_rows.Row] = []
    for host, answer in answers.items():
        services = (answer.get("answers") or {}).get("services") or {}
        rows += status_rows.status_rows(host, plan["hosts"][host], services.get("host"), services.get("services"))
    hosts = {host: fleet_status.judge_host(answer, "services") for host, answer in answers.items()}
    return fleet_status.report(rows, hosts, "2026-11-24T08:00:00+00:00")


def answers_of(well: Mapping[str, tuple[float, int, float]], down: str, available: float) -> dict[str, Any]:
    """Return the answers of a host.

    :param well: GiB, running requests and use of the KV cache by service
    :param down: a service whose unit has failed, if one has
    :param available: GiB of the host
    """
    units = [
        {"name": f"spark-{name}.service", "active_state": "active", "n_restarts": 0, "active_seconds": 3 * DAY + 7200}
        for name in well
    ]
    services: list[dict[str, Any]] = [
        {"name": name, "ready": True, "requests_running": running, "requests_waiting": 0, "kv_cache_usage": usage}
        for name, (_gib, running, usage) in well.items()
    ]
    if down:
        units.append({"name": f"spark-{down}.service", "active_state": "failed", "n_restarts": 3, "active_seconds": 0})
        services.append(
            {"name": down, "ready": False, "error": "connection refused: nothing listens on 127.0.0.1:8002"}
        )
    resident = [{"name": name, "gib": figures[0]} for name, figures in well.items()]
    memory = {"available_gib": available, "total_gib": 119.67}
    host = {"units": units, "memory": memory, "resident": resident}
    return {"reached": True, "why": "", "answers": {"services": {"host": host, "services": services}}}


# --- the memory of a host -------------------------------------------------------------------------------------------------


@dataclass
class Part(HTMLParser):
    """Reads the bar that the page of the plan has: each part with its class, its share of the width, its tooltip and its text."""

    parts: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin."""
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take in a part."""
        attributes = {name: value or "" for name, value in attrs}
        if tag == "span" or attributes.get("class") == "over-mark":
            share = re.search(r"width:([\d.]+)%", attributes["style"])
            assert share is not None
            self.parts.append(
                {"class": attributes["class"], "share": share[1], "title": attributes["title"], "text": ""}
            )

    def handle_data(self, data: str) -> None:
        """Take in its text."""
        if self.parts:
            self.parts[-1]["text"] += data.strip()


STYLES = {"weights": 1.0, "kv_cache": 0.45, "host": 0.6, "overhead": 0.25, "plain": 0.7}
"""How much of a service's colour each kind of a part has."""


def memory_map() -> str:
    """The memory of two Sparks, as plan.html shows it."""
    plan = planned(TOO_LONG.replace("32768", "16384"))
    names = list(plan["hosts"])
    width, bar, room = 900, 34, 92
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 40} {room * len(names) + 44}" role="img" '
        f'aria-label="Memory of two Sparks" font-family="{SANS}">',
        "<title>Memory of two Sparks</title>",
        f'<rect width="{width + 40}" height="{room * len(names) + 44}" rx="8" fill="#ffffff"/>',
    ]
    for number, name in enumerate(names):
        body, top = plan["hosts"][name], 20 + room * number
        reader = Part()
        reader.feed(page_parts.memory_bar(body))
        drawn.append(
            f'<text x="20" y="{top + 14}" font-size="15" fill="#1b2330"><tspan font-weight="600">{escape(name)}</tspan> '
            f"{escape(body['verdict'])}, {escape(picture.room_text(body))} of {body['total_gib']:.1f} GiB</text>"
        )
        x = 20.0
        for part in reader.parts:
            share = width * float(part["share"]) / 100
            drawn += list(bar_part(part, x, top + 24, share, bar))
            x += share
    drawn += list(key_of_kinds(room * len(names) + 26))
    return "\n".join([*drawn, "</svg>", ""])


def bar_part(part: Mapping[str, str], x: float, top: float, share: float, bar: float) -> Iterator[str]:
    """Yield a part of a bar: its colour, tooltip and text."""
    *hues, kind = part["class"].split()
    hue = hues[0] if hues else ""
    index = int(hue[1:]) if hue else 0
    colour = page_parts.HUES[index] if hue else {"system": "#9aa4b2"}.get(kind, "#eef1f5")
    share_of_colour = STYLES.get(kind, 1.0) if hue else 1.0
    yield (
        f'<rect x="{x:.1f}" y="{top}" width="{share:.1f}" height="{bar}" fill="{colour}" fill-opacity="{share_of_colour}" '
        f'stroke="#ffffff"><title>{escape(part["title"])}</title></rect>'
    )
    if part["text"]:
        ink = page_parts.ON_HUES[index] if hue and kind == "weights" else "#10141a"
        yield (
            f'<text x="{x + share / 2:.1f}" y="{top + bar / 2 + 5}" text-anchor="middle" font-size="13" fill="{ink}">'
            f"{escape(part['text'])}</text>"
        )


def key_of_kinds(top: float) -> Iterator[str]:
    """Yield what the shades mean."""
    x = 20
    for kind, words in picture.KINDS.items():
        colour = page_parts.HUES[0] if kind in STYLES else {"system": "#9aa4b2"}.get(kind, "#eef1f5")
        yield f'<rect x="{x}" y="{top - 11}" width="22" height="12" fill="{colour}" fill-opacity="{STYLES.get(kind, 1.0)}" stroke="#d9dee6"/>'
        yield f'<text x="{x + 28}" y="{top}" font-size="13" fill="#46505f">{escape(words)}</text>'
        x += 120


PICTURES = {
    "plan-and-status.svg": plan_and_status,
    "memory-map.svg": memory_map,
}


def main(argv: list[str]) -> int:
    """Write the pictures, or compare them; 0 when they are as they should be."""
    wrong = []
    for name, draw in PICTURES.items():
        text, path = draw(), FOLDER / name
        if argv == ["--check"]:
            wrong += [] if path.exists() and path.read_text(encoding="utf-8") == text else [name]
        else:
            path.write_text(text, encoding="utf-8")
    if wrong:
        print(f"not what scripts/generate_pictures.py draws: {', '.join(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
