# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""scripts/add_measurements.py, on rows of real launches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import add_measurements
import pytest

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/unit/plugins/fixtures"
ROWS: dict[str, Any] = json.loads((FIXTURES / "gpu_rows.json").read_text(encoding="utf-8"))
GIB = 1 << 30


def row_of(name: str) -> dict[str, Any]:
    return next(dict(row) for row in ROWS["rows"] if row["launch"] == name)


def test_new_launches_of_a_file_are_added_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = row_of("q4-graphs-8192")
    row = {**real, "launch": "another", "kv_cache": real["kv_cache"] + 1}
    # A published config.json has more than the plan reads; the other fields are left out.
    config = {**ROWS["models"][row["model"]], "rms_norm_eps": 1e-06, "transformers_version": "4.51.0"}
    file, fixture = tmp_path / "rows.json", tmp_path / "fixture.json"
    file.write_text(json.dumps({"schema": 1, "models": {row["model"]: config}, "rows": [row]}))
    fixture.write_text(add_measurements.dump(ROWS))
    argv = [str(file), "--fixture", str(fixture)]
    assert add_measurements.main([*argv, "--check"]) == 0 and json.loads(fixture.read_text()) == ROWS
    assert add_measurements.main(argv) == 0 and len(json.loads(fixture.read_text())["rows"]) == len(ROWS["rows"]) + 1
    shown = capsys.readouterr().out
    assert "holds        another, vLLM 0.26.0" in shown and "1 launches are new of 1; 0 contradict the ranges." in shown
    assert add_measurements.main(argv) == 0 and "0 launches are new" in capsys.readouterr().out


def test_a_row_that_contradicts_is_shown_and_a_file_with_mistakes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {**row_of("q4-graphs-8192"), "kv_cache": 20 * GIB, "launch": "other"}
    content = {"schema": 1, "models": {row["model"]: ROWS["models"][row["model"]]}, "rows": [row]}
    file, fixture = tmp_path / "rows.json", tmp_path / "fixture.json"
    file.write_text(json.dumps(content))
    fixture.write_text(add_measurements.dump(ROWS))
    assert add_measurements.main([str(file), "--fixture", str(fixture)]) == 0
    shown = capsys.readouterr().out
    assert "CONTRADICTS  other, vLLM 0.26.0" in shown and "20.00 GiB of KV cache, planned" in shown and "Widen" in shown
    file.write_text(json.dumps({**content, "schema": 7, "rows": [{**row, "weights": 0, "host": "x"}]}))
    before = fixture.read_text()
    assert add_measurements.main([str(file), "--fixture", str(fixture)]) == 1 and fixture.read_text() == before
    shown = capsys.readouterr().out
    assert (
        "3 problems; nothing was added" in shown
        and "schema" in shown
        and "rows[0].host" in shown
        and "rows[0].weights" in shown
    )
    assert add_measurements.main([str(tmp_path / "none.json"), "--fixture", str(fixture)]) == 1
    assert "cannot be read as JSON" in capsys.readouterr().out


def test_the_file_that_is_kept_is_what_the_command_writes() -> None:
    assert (FIXTURES / "gpu_rows.json").read_text(encoding="utf-8") == add_measurements.dump(ROWS)
