# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Families and quantisations that no launch of compared_launches.json has, as whole vLLM releases plan them (tests/oracle/compare.py)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from launches_fixture import FIXTURES, Answer, Case, judge, load, planned

DATA = load(FIXTURES / "compared_formats.json")
ROWS: list[tuple[str, Case, Answer]] = [
    (version, case, answer)
    for version, version_data in DATA["versions"].items()
    for case, answer in zip(DATA["cases"], version_data["answers"], strict=True)
]
PLANNED = [row for row in ROWS if isinstance(row[2], list)]
REFUSED = [row for row in ROWS if isinstance(row[2], str)]
# To the byte: nothing is quantised, or in a format whose scales are all counted.
WHOLE = re.compile(r"Kimi|MiMo|Inkling|Mistral|torchao")


def _config(case: Case) -> dict[str, Any]:
    result: dict[str, Any] = DATA["configs"][case[0]]
    return result


def _id(row: tuple[str, Case, Answer]) -> str:
    return f"{row[0]} {row[1][0]} {DATA['cases'].index(row[1])}"


@pytest.mark.parametrize("row", PLANNED, ids=_id)
def test_a_launch_is_planned_as_vllm_does(row: tuple[str, Case, Answer]) -> None:
    version, case, answer = row
    assert judge(_config(case), None, case, version, answer) == ("equal", [])


@pytest.mark.parametrize(
    "row",
    [row for row in PLANNED if WHOLE.search(row[1][0]) and row[1][1].get("tensor-parallel-size", 1) == 1],
    ids=_id,
)
def test_weights_are_equal_to_the_byte(row: tuple[str, Case, Answer]) -> None:
    version, case, answer = row
    assert planned(_config(case), None, case, version)["weights_bytes"] == answer[-1]


def test_what_was_asked_is_of_many_kinds() -> None:
    planned_models = {case[0] for _version, case, _answer in PLANNED}
    for kind in ("Kimi-Linear", "MiMo-7B", "Inkling", "Mistral-Small-4", "quark", "torchao", "bitsandbytes"):
        assert any(kind in model for model in planned_models), kind
    assert len(PLANNED) >= 100
    assert {version for version, _case, _answer in PLANNED} == {"0.27.1", "0.33.0"}
    assert sum("MoE" in model for model in planned_models) >= 12


@pytest.mark.parametrize("row", REFUSED, ids=_id)
def test_what_vllm_refuses_is_not_planned(row: tuple[str, Case, Answer]) -> None:
    """Some are refused in vLLM's own words, where the cache is too small, others in words of the plan."""
    version, case, answer = row
    # Of a model that no release planned the fixture has no fields; those are in test_scheme_formats.py.
    config = DATA["configs"].get(case[0])
    if config is None:
        assert not any(other[1][0] == case[0] for other in PLANNED)
        return
    assert judge(config, None, case, version, answer)[0] in ("equal", "refused alike", "refused")
