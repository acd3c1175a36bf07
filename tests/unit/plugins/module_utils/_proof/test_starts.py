# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a proof keeps of a start, by logs of vLLM 0.26.0 on a GPU; residency.py, receipts.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import measurement_rows
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import receipts, residency

FIXTURES = Path(__file__).parents[2] / "fixtures"
LAUNCHES: dict[str, Any] = json.loads((FIXTURES / "gpu_rows.json").read_text(encoding="utf-8"))
LAUNCH = {"image_id": "sha256:" + "a" * 64, "image_ref": "an/image:1", "model": "1" * 32, "options": "2" * 32}
GPU = {"name": "NVIDIA H100 80GB HBM3", "driver_version": "580.159.04"}
GIB = 1 << 30


def lines(name: str) -> list[str]:
    return (FIXTURES / "engine_logs" / name).read_text(encoding="utf-8").splitlines()


def planned(launch: str, **more: Any) -> dict[str, Any]:
    row = next(row for row in LAUNCHES["rows"] if row["launch"] == launch)
    return {**measurement_rows.planned(LAUNCHES, row), "launch": LAUNCH, **more}


def start(memory: dict[str, Any], log: list[str], residency_gib: float | None = 40.4) -> dict[str, Any] | None:
    parsed = residency.parse_log(log)
    use = residency.HostUse(taken_gib=residency_gib, reason="it is not known")
    terms, _findings = residency.compare("a", memory, parsed, use)
    return residency.start(memory, terms, parsed, GPU)


@pytest.mark.parametrize(
    ("launch", "log"),
    [
        ("q4-graphs-8192", "healthy_fa3_graphs_then_sigterm.log"),
        ("q30fp8-graphs-8192-256", "healthy_moe_fp8_graphs_v1runner.log"),
    ],
)
def test_each_term_of_a_start(launch: str, log: str) -> None:
    row = next(row for row in LAUNCHES["rows"] if row["launch"] == launch)
    record = start(planned(launch), lines(log))
    assert record is not None and record.items() >= LAUNCH.items()
    for key, name in (("weights_gib", "weights"), ("kv_cache_gib", "kv_cache"), ("peak_gib", "torch_peak")):
        assert record[key] == pytest.approx(row[name] / GIB, abs=0.006)
    inside = (row["requested"] - row["weights"] - row["kv_cache"]) / GIB
    assert record["inside_gib"] == pytest.approx(inside, abs=0.02)
    assert record["non_torch_gib"] == pytest.approx(row["non_torch"] / GIB, abs=0.01)
    assert record["graphs_gib"] == row["graphs_gib"] and record["vllm_version"] == "0.26.0"
    assert record["outside_gib"] == pytest.approx(40.4 - row["requested"] / GIB, abs=0.01)
    assert (record["driver"], record["gpu"]) == (GPU["driver_version"], GPU["name"])
    assert (
        record["max_num_batched_tokens"] == 8192
        and record["gpu_memory_utilization"] == row["arguments"]["gpu-memory-utilization"]
    )


def test_what_is_not_known_or_of_another_launch_is_not_kept() -> None:
    log, memory = lines("healthy_fa3_graphs_then_sigterm.log"), planned("q4-graphs-8192")
    without = start(memory, log, residency_gib=None)
    assert without is not None and without["outside_gib"] is None
    assert start({**memory, "launch": None}, log) is None
    assert start({**memory, "gpu_memory_utilization": 0.6}, log) is None
    assert start({**memory, "max_model_len": 8192}, log) is None
    assert start(memory, lines("flashinfer_cut_off_while_warming_up.log")[:40]) is None
    assert start(memory, [*log, "INFO [cpu_worker.py:1] x"]) is None
    assert start({}, log) is None
    for cut in range(0, len(log), 7):
        record = start(memory, log[:cut])
        assert record is None or record["kv_cache_gib"] == 30.92


def test_a_receipt_keeps_what_the_start_took() -> None:
    took = start(planned("q4-graphs-8192"), lines("healthy_fa3_graphs_then_sigterm.log"))
    first = receipts.build("a", {"image": "1"}, {}, None, start=took)
    assert first.start == took and receipts.load(receipts.dump(first)) == first
    # The log of an old start is gone; a new deployment has no log yet.
    assert receipts.build("a", {"image": "1"}, {}, first).start == took
    assert "start" not in receipts.build("a", {"image": "2"}, {}, first).to_dict()
    assert (
        receipts.drift(first, receipts.build("a", {"image": "1"}, {}, first, start={**(took or {}), "inside_gib": 9}))
        == []
    )
