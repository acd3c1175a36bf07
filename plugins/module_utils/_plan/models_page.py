# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipes as one HTML page with filters: Sparks, job, size, speed, context. Pure functions; filters need no script.

The same rows give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from . import model_choice, model_table, page_parts, speed_text
from .model_choice import ANY
from .service_keys import JOBS


@dataclass(frozen=True)
class Filter:
    """A filter with exclusive choices. name: of its classes. values: of the choices besides all. unit: after a value."""

    name: str
    title: str
    values: tuple[Any, ...]
    unit: str = ""


FILTERS = (
    Filter("sparks", "Sparks, at most", (1, 2, 3, 4)),
    Filter("job", "for", JOBS),
    Filter("speed", "tokens/s, at least", (10, 20, 30, 50, 80)),
    Filter("context", "context, at least", (32768, 65536, 131072, 262144)),
    Filter("gib", "weights on each Spark, at most", (20, 40, 60, 80), " GiB"),
    Filter("feature", "with", model_table.FEATURES),
)
HEADS = (
    "recipe",
    "variant",
    "Sparks",
    "tok/s (1 stream)",
    "predicted",
    "all streams",
    "first token, 8k",
    "longest",
    "weights",
    "for",
)


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of the recipes that fit unchanged, the fastest first. rows: of C(model_table.model_rows)."""
    chosen, _left_out = model_choice.ranked(rows, ANY)
    lines = ['<section class="models">']
    for entry in FILTERS:
        labels = {value: f"{value:,}" if isinstance(value, int) else value for value in entry.values}
        choices = "".join(_choice(entry, value, f"{label}{entry.unit}", False) for value, label in labels.items())
        lines.append(
            f'<div class="pick" role="radiogroup" aria-label="{escape(entry.title)}"><span class="soft">{escape(entry.title)}</span>'
            f"{_choice(entry, 'all', 'any', True)}{choices}</div>"
        )
    styles = [" ".join(_classes(row)) for row in chosen]
    lines.append(page_parts.table(HEADS, map(_row, chosen), HEADS[2:9], styles=styles))
    lines.append(
        '<p class="soft">Tokens/s of one stream: the lowest published rate of the launch, else the prediction. All streams: as many as '
        "the recipe admits. Nothing here was measured by this project.</p></section>"
    )
    # Each choice hides the rows without its class.
    keys = [f"{entry.name}-{value}" for entry in FILTERS for value in entry.values]
    style = ",\n".join(f".models:has(#{key}:checked) tbody tr:not(.{key})" for key in keys) + "{display:none}"
    return page_parts.document("Models for DGX Spark", lines, style)


def _choice(entry: Filter, value: object, label: str, checked: bool) -> str:
    key = f"{entry.name}-{value}"
    return f'<label><input type="radio" name="{entry.name}" id="{key}"{" checked" if checked else ""}>{escape(label)}</label>'


def _classes(row: Mapping[str, Any]) -> list[str]:
    """Return the choices that show a row."""
    rate = model_table.rate(row)
    passes: dict[str, Callable[[Any], bool]] = {
        "sparks": lambda value: row["nodes"] <= value,
        "job": lambda value: value in row["jobs"],
        "speed": lambda value: rate is not None and rate.value >= value,
        "context": lambda value: (row["longest"] or 0) >= value,
        "gib": lambda value: row["weights_gib"] is not None and row["weights_gib"] <= value,
        "feature": lambda value: value in row["features"],
    }
    return [f"{entry.name}-{value}" for entry in FILTERS for value in entry.values if passes[entry.name](value)]


def _row(row: Mapping[str, Any]) -> str:
    rate, speed = model_table.rate(row), row["speed"]
    together = speed["all_streams"]
    figures = [
        str(row["nodes"]),
        f"{rate.value:.3g}" if rate else "-",
        speed_text.spread(speed["one_stream"]),
        f"{speed_text.spread(together)} ({speed['streams']})" if together else "-",
        speed_text.seconds_text(speed["first_token_8k"]),
        f"{row['longest']:,}" if row["longest"] else "-",
        "-" if row["weights_gib"] is None else f"{row['weights_gib']:.1f} GiB",
    ]
    basis = rate.basis if rate else ""
    cells = [
        page_parts.text_cell("recipe", escape(row["recipe"]), row["summary"] or ""),
        page_parts.text_cell("variant", escape(row["variant"] or "")),
        *(
            page_parts.cell(head, text, note=basis if number == 1 else "")
            for number, (head, text) in enumerate(zip(HEADS[2:], figures))
        ),
        page_parts.text_cell("for", escape(", ".join(dict.fromkeys([*row["jobs"], *row["features"]])))),
    ]
    return "".join(cells)
