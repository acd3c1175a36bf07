# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every row that vLLM's own planner computed for a made-up model (tests/oracle) comes out the same."""

from __future__ import annotations

from typing import Any

import pytest
from oracle_fixture import COLUMNS, answer, load

DATA = load()


def named(row: list[Any] | str | None) -> dict[str, Any] | str | None:
    """Return a row with the names of its columns; refusals and unknown rows stay unchanged."""
    return dict(zip(COLUMNS, row, strict=True)) if isinstance(row, list) else row


@pytest.mark.parametrize("version", DATA["answers"])
def test_every_row_of_the_oracle(version: str) -> None:
    rows = zip(DATA["cases"], DATA["answers"][version], strict=True)
    plan = [(number, named(answer(case, version)), named(truth)) for number, (case, truth) in enumerate(rows)]
    assert [row for row in plan if row[1] != row[2]] == [], "case, arithmetic, vLLM"


def test_the_rows_are_of_many_kinds() -> None:
    """Rows that all fail, or that are all refused, would prove nothing."""
    answers = [truth for item in DATA["answers"].values() for truth in item]
    planned = [truth for truth in answers if isinstance(truth, list)]
    assert len(planned) > 200
    assert {kind for row in planned for kind, _layers, _block in row[2]} == {
        "full",
        "sliding",
        "chunked",
        "mla",
        "state",
    }
    assert len({truth.split("(", 1)[0] for truth in answers if isinstance(truth, str)}) >= 4
    assert any(len(row[3]) > 1 for row in planned)
    assert sum(truth is None for truth in answers) < len(answers) / 10
