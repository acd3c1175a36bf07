# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of an inventory without a playbook: what it prints, and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "plan.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPT.exists(), reason="the collection as shipped has no scripts"),
]


def run(*argv: object) -> subprocess.CompletedProcess[str]:
    """What the script prints, from a folder that is not the clone."""
    words = [sys.executable, SCRIPT, *argv]
    return subprocess.run([str(word) for word in words], cwd="/", text=True, capture_output=True, check=False)


def inventory(folder: Path, recipe: str, port: str = "8001", more: str = "") -> Path:
    """An inventory of one Spark with one service."""
    (folder / "group_vars").mkdir()
    (folder / "hosts.yml").write_text("sparks: {hosts: {spark-1: {}}}\n", encoding="utf-8")
    text = (
        f"spark_services:\n  - name: one\n    recipe: '{{{{ chosen }}}}'\n    port: {port}\n{more}\nchosen: {recipe}\n"
    )
    (folder / "group_vars" / "sparks.yml").write_text(text, encoding="utf-8")
    return folder


def test_what_fits(tmp_path: Path) -> None:
    given = inventory(tmp_path, "qwen3-4b-instruct-2507")
    done = run(given, "--show", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    (service,) = answer["hosts"]["spark-1"]["services"]
    assert service["name"] == "one" and answer["schema"] == 1
    assert not [found for found in answer["findings"] if found["severity"] == "error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["group_vars", "hosts.yml"], "nothing is written"


def test_what_does_not_fit(tmp_path: Path) -> None:
    more = "    args: {gpu-memory-utilization: 0.05}"
    done = run(inventory(tmp_path, "qwen3-4b-instruct-2507", more=more))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ERROR" in done.stdout and "Fix: " in done.stdout


@pytest.mark.parametrize("recipe", ["no-such-recipe"])
def test_what_cannot_be_planned(tmp_path: Path, recipe: str) -> None:
    done = run(inventory(tmp_path, recipe), tmp_path / "nowhere")
    assert done.returncode == 2 and "nowhere' is no file or folder" in done.stderr
    done = run(tmp_path)
    assert done.returncode == 2 and recipe in done.stderr and not done.stdout
    (tmp_path / "hosts.yml").write_text("sparks: [\n", encoding="utf-8")
    done = run(tmp_path)
    assert done.returncode == 2 and "hosts.yml" in done.stderr, done.stderr
