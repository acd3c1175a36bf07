# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text tables, sizes and durations for people. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .foreign_text import printable
from .sizes import GIB


def some_of(names: Sequence[str], most: int) -> str:
    """Return the first names, and the number of further ones."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def one_line(text: Any, most: int = 200) -> str:
    """Return a text of somebody else as one printable line of bounded length."""
    line = " ".join(printable(str(text)).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned text table; columns whose cells are all figures are flush right."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    right = [
        bool(rows) and all(row[column][:1].isdigit() or row[column] in ("", "-") for row in rows)
        for column in range(len(header))
    ]
    lines = []
    for index, row in enumerate(cells):
        parts = [cell.rjust(width) if flush else cell.ljust(width) for cell, width, flush in zip(row, widths, right)]
        lines.append("  ".join(parts).rstrip())
        if index == 0:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)


def gib(size: Any, already_gib: bool = False) -> str:
    """Return a size in GiB with one decimal; C(-) for an unknown one."""
    return "-" if size is None else f"{float(size) if already_gib else float(size) / GIB:.1f}"


def uptime(seconds: Any) -> str:
    """Return a duration in its two largest units."""
    if seconds is None:
        return "-"
    minutes, hours, days = int(seconds) // 60, int(seconds) // 3600, int(seconds) // 86400
    if days:
        return f"{days}d {hours % 24}h"
    return f"{hours}h {minutes % 60}m" if hours else f"{minutes}m {int(seconds) % 60}s"
