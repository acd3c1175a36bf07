# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes that satisfy a wish, the fastest first, each with the reason. Pure functions on the rows of C(model_table)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._common import schema, tables
from .._common.schema import NUMBER, Key
from .._common.validation import Problems
from . import model_table
from .service_keys import JOBS

KEYS: dict[str, Key] = {
    "speed": Key(NUMBER, 0, "least tokens per second of one stream, published or predicted", least=0),
    "context": Key(int, 0, "least context of one request, in tokens", least=0),
    "features": Key(list, [], "all of: tools, reasoning, vision", choices=model_table.FEATURES),
    "jobs": Key(list, [], f"all of: {', '.join(JOBS)}", choices=JOBS),
    "sparks": Key(int, 0, "most Sparks for one model; 0 for any number", least=0),
    "gib": Key(NUMBER, 0, "most weights on each Spark, in GiB; 0 for any size", least=0),
}
"""Keys of C(spark_pick)."""


@dataclass(frozen=True)
class Wish:
    """Requirements of a model; C(KEYS) describes the fields."""

    speed: float = 0
    context: int = 0
    features: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    sparks: int = 0
    gib: float = 0

    def __str__(self) -> str:
        parts = [f"{self.speed:g} tokens/s"] if self.speed else []
        parts += [f"{self.context} tokens of context"] if self.context else []
        parts += [*self.features, *self.jobs]
        parts += [f"at most {self.sparks} Spark{'s'[: self.sparks != 1]}"] if self.sparks else []
        return ", ".join([*parts, *([f"at most {self.gib:g} GiB"] if self.gib else [])])


ANY = Wish()
"""The wish that every recipe satisfies."""


def read_wish(value: Any) -> Wish:
    """Return the wish of C(spark_pick). Raises ValueError with all problems."""
    problems = Problems("spark_pick")
    entries = {
        name: schema.from_command_line(KEYS[name], entry) if name in KEYS else entry
        for name, entry in problems.mapping(value, "spark_pick").items()
    }
    filled = schema.filled(problems, entries, KEYS)
    if problems.messages:
        raise ValueError("\n- ".join(problems.messages))
    wished: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in filled.items()}
    return Wish(**wished)


def misses(row: Mapping[str, Any], wish: Wish) -> list[str]:
    """Return why a row does not satisfy a wish, in words that do not name the row; empty if it does. row: of C(model_table)."""
    rate = model_table.rate(row)
    reasons = ["that do not fit"] if row["fits"][row["nodes"]] == "fails" else []
    if wish.speed:
        reasons += ["of unknown speed"] if rate is None else ["slower"] if rate.value < wish.speed else []
    reasons += ["with a shorter context"] if (row["longest"] or 0) < wish.context else []
    reasons += [f"without {name}" for name in wish.features if name not in row["features"]]
    reasons += [f"not for {job}" for job in wish.jobs if job not in row["jobs"]]
    reasons += ["on more Sparks"] if wish.sparks and row["nodes"] > wish.sparks else []
    return reasons + (["larger"] if wish.gib and (row["weights_gib"] or 0) > wish.gib else [])


def ranked(rows: Sequence[Mapping[str, Any]], wish: Wish) -> tuple[list[Mapping[str, Any]], Counter[str]]:
    """Return the rows that satisfy a wish, the fastest first, and how many others miss it by the first of their reasons."""
    left_out: Counter[str] = Counter()
    chosen: dict[tuple[str, str | None], Mapping[str, Any]] = {}
    for row in rows:
        reasons = misses(row, wish)
        if reasons:
            left_out[reasons[0]] += 1
        else:
            chosen.setdefault((row["recipe"], row["variant"]), row)
    rates = {key: rate.value if (rate := model_table.rate(row)) else 0.0 for key, row in chosen.items()}
    order = sorted(chosen, key=lambda key: (-rates[key], chosen[key]["nodes"], key[0], key[1] or ""))
    return [chosen[key] for key in order], left_out


HEADER = ("recipe", "variant", "Sparks", "tokens/s", "", "longest", "weights", "features", "for")


def choice_text(rows: Sequence[Mapping[str, Any]], wish: Wish) -> str:
    """Return the short table of recipes for a terminal: those that satisfy a wish; without a wish one row for each recipe."""
    chosen, left_out = ranked(rows, wish)
    if wish == ANY:  # variants change how a recipe is served; those for more Sparks are other ways to serve it
        chosen = [row for row in chosen if row["variant"] is None or row["nodes"] > 1]
    lines = [f"Recipes for {wish}, the fastest first:" if wish != ANY else "Recipes, the fastest first:", ""]
    lines += [tables.table(HEADER, [_cells(row) for row in chosen])] if chosen else ["none"]
    if wish != ANY and left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common())
        lines += ["", f"Left out: {reasons}."]
    lines += [
        "",
        "Tokens/s of one stream: the lowest published rate of this launch, else predicted. Weights in GiB on each Spark.",
    ]
    lines += ["-e spark_plan_show=full shows every variant and why it fails;"]
    lines += ["""-e '{"spark_pick": {"speed": 30, "context": 100000, "features": ["tools"], "sparks": 2}}' picks."""]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    rate = model_table.rate(row)
    return [
        row["recipe"],
        row["variant"] or "",
        str(row["nodes"]),
        f"{rate.value:.3g}" if rate else "-",
        rate.basis if rate else "",
        str(row["longest"] or "-"),
        "-" if row["weights_gib"] is None else f"{row['weights_gib']:.1f}",
        ", ".join(row["features"]),
        ", ".join(job for job in row["jobs"] if job not in row["features"]),
    ]
