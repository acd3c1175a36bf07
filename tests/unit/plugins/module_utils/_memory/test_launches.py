# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every launch that a whole vLLM release planned (tests/oracle/compare.py) comes out the same from the arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launches_fixture import COLUMNS, counted, judge, load, planned, results, save

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.releases import COMPARED_MINORS, parse_release

DATA = load()


@pytest.mark.parametrize("version", DATA["versions"])
def test_every_launch_is_planned_as_vllm_does(version: str) -> None:
    ended = zip(DATA["cases"], results()[version], strict=True)
    assert [(case, why) for case, (result, why) in ended if result == "different"] == []


@pytest.mark.parametrize("version", DATA["versions"])
def test_launches_were_planned_and_not_only_refused(version: str) -> None:
    """A version whose packages read none of the models would prove nothing."""
    ended = counted(version)
    assert ended["equal"] >= 8 or parse_release(version).minor not in COMPARED_MINORS
    assert sum(ended.values()) == len(DATA["cases"])


def test_the_launches_are_of_many_kinds() -> None:
    models = {case[0] for case in DATA["cases"]}
    args = [case[1] for case in DATA["cases"]]
    assert len(models) >= 20
    assert {item.get("kv-cache-dtype", "auto") for item in args} == {"auto", "fp8"}
    assert {item["enable-prefix-caching"] for item in args} == {True, False}
    assert any("speculative-config" in item for item in args)
    assert {item.get("tensor-parallel-size", 1) for item in args} >= {1, 2, 4}


def _planned_case() -> tuple[int, str]:
    """Return a case that a version planned, and the version."""
    return next(
        (number, version)
        for version, item in DATA["versions"].items()
        for number, answer in enumerate(item["answers"])
        if isinstance(answer, list) and results()[version][number][0] == "equal"
    )


@pytest.mark.parametrize("column", range(len(COLUMNS) + 1))
def test_a_figure_that_is_off_is_a_difference(column: int) -> None:
    number, version = _planned_case()
    case = DATA["cases"][number]
    answer = list(DATA["versions"][version]["answers"][number])
    answer[column] = [[1, 1]] if column == 0 else answer[column] + answer[column] // 100
    config, quant = DATA["configs"][case[0]], DATA["quant_configs"].get(case[0])
    assert judge(config, quant, case, version, answer)[0] == "different"


def test_other_ways_to_end() -> None:
    number, version = _planned_case()
    case = DATA["cases"][number]
    config, quant = DATA["configs"][case[0]], DATA["quant_configs"].get(case[0])
    assert judge(config, quant, case, version, {"unknown": "no class"}) == ("vLLM does not know", ["no class"])
    assert judge(config, quant, case, version, "some validator says no")[0] == "different"
    assert (
        judge({**config, "model_type": "made_up"}, quant, case, version, [[], 1, 1, 1, 1, 1])[0]
        == "arithmetic does not know"
    )
    # Too little for one request: the budget has vLLM's sentence.
    small = (case[0], case[1], 1 << 20)
    message = next(text for text in planned(config, quant, small, version)["messages"] if "ValueError: " in text)
    assert judge(config, quant, small, version, message.split("ValueError: ")[1])[0] == "refused alike"
    # Refused here and planned by vLLM is a difference, too.
    right = list(DATA["versions"][version]["answers"][number])
    assert judge(config, quant, small, version, right)[0] == "different"


def test_the_fixture_is_written_as_it_is_read(tmp_path: Path) -> None:
    place = tmp_path / "again.json"
    save(load(), place)
    assert load(place) == DATA
    assert json.loads(place.read_text(encoding="utf-8"))["about"] == DATA["about"]
