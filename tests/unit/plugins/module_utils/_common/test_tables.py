"""Text tables and durations."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import tables


def test_columns_are_aligned_and_figures_flush_right() -> None:
    assert tables.table(["name", "GiB"], [["a", "1.0"], ["long", "10.0"]]).splitlines() == [
        "name   GiB",
        "----  ----",
        "a      1.0",
        "long  10.0",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (59, "0m 59s"), (3700, "1h 1m"), (90000, "1d 1h")])
def test_uptime(seconds: Any, text: str) -> None:
    assert tables.uptime(seconds) == text
