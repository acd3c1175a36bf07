# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every row that vLLM's own planner computed for a made-up model (tests/oracle) comes out the same."""

from __future__ import annotations

from typing import Any

import pytest
from oracle_fixture import COLUMNS, answer, load

DATA = load()
ROWS = [
    pytest.param(version, case, truth, id=f"{version} {number}")
    for version, answers in DATA["answers"].items()
    for number, (case, truth) in enumerate(zip(DATA["cases"], answers, strict=True))
]


@pytest.mark.parametrize(("version", "case", "truth"), ROWS)
def test_every_row_of_the_oracle(version: str, case: dict[str, Any], truth: list[Any] | str | None) -> None:
    found = answer(case, version)
    if isinstance(found, list) and isinstance(truth, list):
        assert dict(zip(COLUMNS, found, strict=True)) == dict(zip(COLUMNS, truth, strict=True))
    else:
        assert found == truth


def test_the_rows_are_of_many_kinds() -> None:
    """Rows that all fail, or that are all refused, would prove nothing."""
    answers = [truth for each in DATA["answers"].values() for truth in each]
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
