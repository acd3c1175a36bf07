# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the recipes can serve on one and on two Sparks, as the rules and the memory budget judge it. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._common import tables
from .._common.sizes import GIB
from . import judging, recipes
from .service import ServiceSpec

SHARE = 0.9
"""Share of the memory that the largest context is worked out for: what one engine may take of a Spark of its own."""
PAIR = {"nnodes": 2, "node-rank": 0, "master-addr": "192.0.2.1"}
"""What makes a launch that of a pair without Ray; the address is one of those kept for documentation."""
ROOTS = ("memory.refused", "memory.load", "memory.no_cache_memory")
"""Findings that others follow from: what does not fit asks for too much, leaves too little, and so on."""
VERDICTS = {"fits": "yes", "tight": "tight", "fails": "no"}
HEADER = ("recipe", "variant", "weights", "KV cache", "longest", "one Spark", "two Sparks", "tokens/s")


def model_rows(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each recipe, variant and image; images that are judged alike share a row.

    known: recipe name to recipe. Recipes of a folder on the controller (C(model.path)) are tests and left out.
    """
    rows: list[dict[str, Any]] = []
    for name in sorted(known):
        recipe = known[name]
        if (recipe.get("model") or {}).get("path"):
            continue
        for variant in (None, *(recipe.get("variants") or {})):
            body: Mapping[str, Any] = (recipe.get("variants") or {}).get(variant) or {}
            alike: dict[tuple[Any, ...], dict[str, Any]] = {}
            for image in body.get("images") or recipe["images"]:
                row = model_row(known, name, variant, image["ref"])
                # Releases of vLLM share a cache out a little differently; what matters is whether it fits.
                same = alike.setdefault((row["one"], row["two"], row["remark"]), row)
                if same is not row:
                    same["images"] += row["images"]
            rows += alike.values()
    return rows


def model_row(known: Mapping[str, Mapping[str, Any]], name: str, variant: str | None, image: str) -> dict[str, Any]:
    """Judge one way to serve a recipe, by one Spark and by two."""
    wanted = {"name": "model", "recipe": name, "port": 8000, "image": image, "variant": [variant] if variant else []}
    service, problems = recipes.resolve_service(wanted, f"recipe {name}", known)
    if service is None:
        raise ValueError("; ".join(problems))
    one, two = judged(service, 1), judged(service, 2)
    own = two if service.nodes > 1 else one
    share = judged(replace(service, args={**service.args, "gpu-memory-utilization": SHARE}), service.nodes)
    memory = own["memory"]
    longest = share["memory"].get("largest_safe_max_model_len") or 0
    if own["verdict"] != "fails":  # a length beyond the config's own is the recipe's to ask for
        longest = max(longest, memory.get("max_model_len") or 0)
    body: Mapping[str, Any] = (known[name].get("variants") or {}).get(variant) or {}
    return {
        "recipe": name,
        "variant": variant,
        "summary": body.get("summary") if variant else known[name]["summary"],
        "images": [image],
        "nodes": service.nodes,
        "one": one["verdict"],
        "two": two["verdict"],
        "weights_gib": _gib(memory.get("weights_bytes"), memory.get("draft_bytes")),
        "kv_gib": _gib((memory.get("available_kv_bytes") or {}).get("typical")),
        "longest": longest,
        "published": [
            entry for entry in (body if variant else known[name]).get("expect") or [] if entry.get("tokens_per_second")
        ],
        "remark": decisive(own["findings"]),
    }


def judged(service: ServiceSpec, sparks: int) -> dict[str, Any]:
    """Judge a resolved service on so many Sparks, one rank each."""
    args = {key: value for key, value in service.args.items() if key not in PAIR}
    args.update({"tensor-parallel-size": sparks}, **(PAIR if sparks > 1 else {}))
    return judging.judge(replace(service, args=args, nodes=sparks))


def decisive(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return the finding that decides, by its first sentence: an error before a warning, the root of others before them."""
    told = [finding for finding in findings if finding["severity"] != "info"]
    told.sort(key=lambda finding: (finding["severity"] != "error", finding["rule"] not in ROOTS))
    return f"{told[0]['rule']}: {told[0]['message'].split('. ', maxsplit=1)[0].rstrip('.')}." if told else ""


def _gib(*sizes: Any) -> float | None:
    given = [size for size in sizes if size is not None]
    return sum(given) / GIB if given else None


def _cells(row: Mapping[str, Any]) -> list[str]:
    rates = [f"{entry['tokens_per_second']:g}{_streams(entry)}" for entry in row["published"]]
    refused = row["one" if row["nodes"] == 1 else "two"] == "fails"
    return [
        row["recipe"],
        row["variant"] or "",
        "-" if row["weights_gib"] is None else f"{row['weights_gib']:.1f}",
        "-" if row["kv_gib"] is None or refused else f"{max(row['kv_gib'], 0.0):.1f}",
        "-" if refused or not row["longest"] else f"{row['longest']}",
        VERDICTS[row["one"]],
        VERDICTS[row["two"]],
        ", ".join(rates) or "-",
    ]


def models_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table for a terminal, then the remarks and where the published rates come from."""
    remarks = [(f"{row['recipe']} {row['variant'] or ''}".strip(), row) for row in rows]
    cells: list[list[str]] = []
    for row in rows:
        made = _cells(row)
        if cells and cells[-1][:2] == made[:2]:  # the same from another image, which makes a difference
            made[0], made[1] = "", row["images"][0]
        cells.append(made)
    lines = [tables.table(HEADER, cells), ""]
    lines += ["Sizes in GiB on each Spark; the longest context of one request at 0.9 of the memory.", ""]
    lines += dict.fromkeys(f"- {name}: {row['remark']}" for name, row in remarks if row["remark"])
    return "\n".join(lines)


def models_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return docs/models.md."""
    first: dict[tuple[str, str | None], Mapping[str, Any]] = {}
    for row in rows:
        first.setdefault((row["recipe"], None), row)
    lines = [
        "# Models",
        "",
        "<!-- Written by scripts/generate_models_doc.py from playbooks/recipes. -->",
        "",
        "What one DGX Spark can serve, what two can, and how fast others found it: every recipe with its variants, judged",
        "by the same rules and the same memory budget as a plan. `ansible-playbook dgxspark.vllm.plan --tags models` shows",
        "the same for the recipes at hand, your own included.",
        "",
        "- **Weights**: GiB on each Spark, a drafter's included.",
        "- **KV cache**: GiB at the length and the number of requests of the recipe, where the plan works out the share of",
        "  the memory by itself.",
        f"- **Longest**: the longest context of one request, where an engine of its own takes {SHARE:g} of the memory.",
        "- **One Spark**, **two Sparks**: whether it fits and nothing speaks against a start. Two Sparks are one engine",
        "  with tensor parallelism over both; this release plans such a pair here and refuses to deploy it.",
        "- **Tokens/s**: published, for one stream unless said otherwise. Nothing here was measured by this project.",
        "",
        *_table(("recipe", "what it is", *HEADER[2:]), [_page_cells(row, True) for row in first.values()]),
        "",
    ]
    for (name, _variant), base in first.items():
        own = [row for row in rows if row["recipe"] == name]
        lines += [f"## {name}", "", f"{base['summary']}.", ""]
        header = ("variant", "what it is", *HEADER[2:], "image")
        lines += _table(header, [_page_cells(row, False) for row in own])
        rates = [(row["variant"], entry) for row in own for entry in row["published"]]
        notes = [f"- {_label(row)}: {row['remark']}" for row in own if row["remark"]]
        notes += [
            f"- {entry['tokens_per_second']:g} tokens/s{_on(entry)}{f' ({variant})' if variant else ''}: "
            f"{entry['what']}; {entry['source']}"
            for variant, entry in rates
        ]
        lines += ["", *dict.fromkeys(notes), ""] if notes else [""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _streams(entry: Mapping[str, Any]) -> str:
    return f" ({entry['streams']} streams)" if entry.get("streams") else ""


def _on(entry: Mapping[str, Any]) -> str:
    return " on two Sparks" if entry.get("sparks") == 2 else ""


def _label(row: Mapping[str, Any]) -> str:
    return f"{row['variant'] or 'as it is'}, {', '.join(row['images'])}"


def _page_cells(row: Mapping[str, Any], overview: bool) -> list[str]:
    cells = _cells(row)
    if overview:
        anchor = re.sub(r"[^a-z0-9_-]", "", row["recipe"].lower())
        return [f"[{row['recipe']}](#{anchor})", row["summary"], *cells[2:]]
    images = ", ".join(f"`{image}`" for image in row["images"])
    return [row["variant"] or "", (row["summary"] if row["variant"] else "") or "", *cells[2:], images]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
