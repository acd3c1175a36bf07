# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""scripts/measure_gpu.py and scripts/add_measurements.py, on logs of real launches; vLLM and the GPU are played."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import add_measurements
import measure_gpu
import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import measurement_rows

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/unit/plugins/fixtures"
LOGS = FIXTURES / "engine_logs"
ROWS: dict[str, Any] = json.loads((FIXTURES / "gpu_rows.json").read_text(encoding="utf-8"))
GIB = 1 << 30
MACHINE = {"vllm": "0.26.0", "gpu": "NVIDIA H100 80GB HBM3", "driver": "580.159.04", "total": 85017493504}
HEALTHY = "healthy_fa3_graphs_then_sigterm.log"


def row_of(name: str) -> dict[str, Any]:
    return next(dict(row) for row in ROWS["rows"] if row["launch"] == name)


@pytest.mark.parametrize(
    ("log", "launch"),
    [
        (HEALTHY, "q4-graphs-8192"),
        ("healthy_moe_fp8_graphs_v1runner.log", "q30fp8-graphs-8192-256"),
        ("refused_no_available_memory.log", "q4-no-kv"),
        ("refused_kv_too_small_for_max_model_len.log", "q4-kv-too-small2"),
    ],
)
def test_the_row_of_a_log_is_the_one_that_was_measured_to_the_byte(log: str, launch: str) -> None:
    real = row_of(launch)
    text = (LOGS / log).read_text(encoding="utf-8")
    request = {"name": launch, "model": real["model"], "arguments": real["arguments"]}
    row = measure_gpu.make_row(request, text, MACHINE, {}, None)
    assert row["requested"] == real["requested"] and row["runner"] == real["runner"]
    for key in ("weights", "kv_cache", "torch_peak", "non_torch", "graphs_estimate"):
        if row[key] is not None:
            assert row[key] == pytest.approx(real[key], abs=0.01 * GIB)
    assert row["graphs_gib"] == real["graphs_gib"] and row["weights"] and row["kv_cache"]
    content = {"schema": 1, "models": {real["model"]: ROWS["models"][real["model"]]}, "rows": [row]}
    assert measurement_rows.problems(content) == []
    assert add_measurements.beside_plan(content, row).startswith("holds ")


def test_a_start_of_033_says_the_peak_of_torch_in_other_words() -> None:
    real = row_of("Qwen3-4B-Instruct-2507 8192/256 16384 0.33")
    text = (LOGS / "healthy_v33_v2runner_graphs.log").read_text(encoding="utf-8")
    request = {"name": "a", "model": real["model"], "arguments": real["arguments"]}
    row = measure_gpu.make_row(request, text, {**MACHINE, "vllm": "0.33.0"}, {}, None)
    for key in ("weights", "kv_cache", "torch_peak", "non_torch", "graphs_gib", "runner", "requested"):
        assert row[key] == pytest.approx(real[key], abs=1)
    assert row["torch_peak"] == pytest.approx(1.37 * GIB, abs=1) and row["non_torch"] is None


def test_a_launch_that_did_not_get_there_has_the_reason() -> None:
    text = (LOGS / "refused_gemma4_transformers_5_17.log").read_text(encoding="utf-8")
    with pytest.raises(measure_gpu.Problem, match="'head_dim' is a per-layer attribute"):
        measure_gpu.make_row({"name": "a", "model": "b", "arguments": {}}, text, MACHINE, {}, None)


def options(*words: str) -> Any:
    return measure_gpu.arguments(["--recipe", str(ROOT / "playbooks/recipes/qwen3-4b-instruct-2507.yml"), *words])


def test_every_combination_is_started_with_vllms_own_names_and_without_weights() -> None:
    parsed = options(
        "--batch", "2048,8192", "--sequences", "16", "--arg", "kv-cache-dtype=fp8", "--arg", "max-logprobs=3", "--eager"
    )
    name, config, quant = measure_gpu.read_model(parsed)
    assert (name, quant) == ("Qwen3-4B-Instruct-2507", None) and config["model_type"] == "qwen3"
    first, second = measure_gpu.launches(name, parsed)
    assert (
        first["name"] == "Qwen3-4B-Instruct-2507 2048/16 16384 eager"
        and second["arguments"]["max-num-batched-tokens"] == 8192
    )
    argv = measure_gpu.command("/a", first["arguments"])
    assert argv[0] == sys.executable and json.loads(argv[-1]) == {
        **{"model": "/a", "load_format": "dummy", "skip_tokenizer_init": True, "gpu_memory_utilization": 0.85},
        **{"max_model_len": 16384, "max_num_batched_tokens": 2048, "max_num_seqs": 16, "enforce_eager": True},
        **{"kv_cache_dtype": "fp8", "max_logprobs": 3},
    }


VLLM = """
import pathlib, sys
__version__ = "0.26.0+cu130"
class EngineArgs:
    def __init__(self, **given):
        self.given = given
class LLMEngine:
    from_engine_args = classmethod(lambda cls, arguments: cls(**arguments.given))
    def __init__(self, **given):
        assert given["load_format"] == "dummy" and pathlib.Path(given["model"], "config.json").is_file(), given
        print(pathlib.Path({log!r}).read_text())
        if given["max_num_batched_tokens"] == 2048:
            raise ValueError("this one fails")
        self.vllm_config = self.cache_config = self
        self.num_gpu_blocks = 14073
"""
TORCH = """
class cuda:
    get_device_properties = staticmethod(lambda number: type("P", (), {"total_memory": 85017493504}))
"""
SMI = """#!/bin/sh
case "$1" in
  *name*) echo 'NVIDIA H100 80GB HBM3, 580.159.04' ;;
  *) echo 480 ;;
esac
"""


def measure(folder: Path, *words: str, log: str = HEALTHY) -> subprocess.CompletedProcess[str]:
    """Run the script as a file that was copied to where vLLM is."""
    (folder / "vllm.py").write_text(VLLM.replace("{log!r}", repr(str(LOGS / log))))
    (folder / "torch.py").write_text(TORCH)
    smi = folder / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    copy = folder / "measure.py"
    copy.write_text((ROOT / "scripts/measure_gpu.py").read_text(encoding="utf-8"))
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, str(copy), *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def test_it_measures_each_launch_and_its_file_is_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "Qwen3-4B-Instruct-2507" / "config.json"
    config.parent.mkdir()
    # A published config.json has more than the plan reads; the other fields are left out.
    published = {"rms_norm_eps": 1e-06, "attention_dropout": 0.0, "transformers_version": "4.51.0"}
    config.write_text(json.dumps({**ROWS["models"]["Qwen3-4B-Instruct-2507"], **published}))
    words = ("--config", str(config), "--sequences", "256", "--utilization", "0.5", "--logs", "logs")
    ran = measure(tmp_path, *words, "--batch", "8192")
    assert ran.returncode == 0, ran.stderr
    assert "1 launches in rows.json" in ran.stdout and "30.92 GiB of KV cache" in ran.stdout
    content = json.loads((tmp_path / "rows.json").read_text())
    (row,) = content["rows"]
    assert row["num_blocks"] == 14073 and row["used"] == 0 and row["vllm"] == "0.26.0" and row["driver"] == "580.159.04"
    assert len(list((tmp_path / "logs").iterdir())) == 1
    fixture = tmp_path / "fixture.json"
    fixture.write_text(add_measurements.dump(ROWS))
    argv = [str(tmp_path / "rows.json"), "--fixture", str(fixture)]
    assert add_measurements.main([*argv, "--check"]) == 0 and json.loads(fixture.read_text()) == ROWS
    assert add_measurements.main(argv) == 0 and len(json.loads(fixture.read_text())["rows"]) == len(ROWS["rows"]) + 1
    assert "1 launches are new of 1; 0 contradict the ranges." in capsys.readouterr().out
    assert add_measurements.main(argv) == 0 and "0 launches are new" in capsys.readouterr().out


def test_a_launch_that_fails_is_said_and_the_others_are_kept(tmp_path: Path) -> None:
    words = ("--recipe", str(ROOT / "playbooks/recipes/qwen3-4b-instruct-2507.yml"), "--sequences", "256")
    ran = measure(tmp_path, *words, "--batch", "2048,8192", log="refused_gemma4_transformers_5_17.log")
    assert ran.returncode == 1 and not (tmp_path / "rows.json").exists()
    assert ran.stderr.count("did not come to its KV cache") == 2 and "this one fails" in ran.stderr


def test_it_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    ran = measure(tmp_path, "--config", "config.json", "--name", "a/b")
    assert ran.returncode == 1 and "no plain name" in ran.stderr and "lacks model_type or architectures" in ran.stderr
    (tmp_path / "config.json").write_text("{")
    assert "is no config.json" in measure(tmp_path, "--config", "config.json", "--name", "b").stderr
    printed = measure(tmp_path, "--recipe", str(ROOT / "playbooks/recipes/qwen3-4b-instruct-2507.yml"), "--print")
    assert printed.returncode == 0 and printed.stdout.count('"load_format": "dummy"') == 4


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
