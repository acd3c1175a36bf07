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

    def label(self, value: Any) -> str:
        """Return the text of a choice."""
        return f"{value:,}{self.unit}" if isinstance(value, int) else f"{value}{self.unit}"


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
        choices = "".join(_choice(entry, str(value), entry.label(value), False) for value in entry.values)
        lines.append(
            f'<div class="pick" role="radiogroup" aria-label="{escape(entry.title)}"><span class="soft">{escape(entry.title)}</span>'
            f"{_choice(entry, 'all', 'any', True)}{choices}</div>"
        )
    lines.append('<div class="scroll"><table class="cards"><thead><tr>')
    lines += [
        f'<th scope="col"{" class=n" if 2 <= number <= 8 else ""}>{head}</th>' for number, head in enumerate(HEADS)
    ]
    lines.append("</tr></thead><tbody>")
    lines += [_row(row) for row in chosen]
    lines.append("</tbody></table></div>")
    lines.append(
        '<p class="soft">Tokens/s of one stream: the lowest published rate of the launch, else the prediction. All streams: as many as '
        "the recipe admits. Nothing here was measured by this project.</p></section>"
    )
    return page_parts.document("Models for DGX Spark", lines, _style())


def _choice(entry: Filter, value: str, label: str, checked: bool) -> str:
    key = f"{entry.name}-{value}"
    return f'<label><input type="radio" name="{entry.name}" id="{key}"{" checked" if checked else ""}>{escape(label)}</label>'


def _style() -> str:
    """Return a rule for each choice, which hides the rows without its class."""
    keys = [f"{entry.name}-{value}" for entry in FILTERS for value in entry.values]
    return ",\n".join(f".models:has(#{key}:checked) tbody tr:not(.{key})" for key in keys) + "{display:none}"


def _classes(row: Mapping[str, Any], rate: float) -> list[str]:
    """Return the choices that show a row."""
    passes: dict[str, Callable[[Any], bool]] = {
        "sparks": lambda value: row["nodes"] <= value,
        "job": lambda value: value in row["jobs"],
        "speed": lambda value: rate >= value,
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
    cells = [
        page_parts.cell(head, text, note=_basis(rate) if number == 1 else "")
        for number, (head, text) in enumerate(zip(HEADS[2:], figures))
    ]
    return (
        f'<tr class="{" ".join(_classes(row, rate.value if rate else 0.0))}"><td data-of="recipe"><span>{escape(row["recipe"])} '
        f'<small>{escape(row["summary"] or "")}</small></span></td><td data-of="variant">{escape(row["variant"] or "")}</td>'
        f'{"".join(cells)}<td data-of="for">{escape(", ".join(dict.fromkeys([*row["jobs"], *row["features"]])))}</td></tr>'
    )


def _basis(rate: model_table.Rate | None) -> str:
    return rate.basis if rate else ""
