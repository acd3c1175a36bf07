"""docs/cluster.md has the plans that the recipes get."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tree


def test_table_is_what_its_generator_writes() -> None:
    run = subprocess.run(
        [sys.executable, str(tree.ROOT / "scripts/generate_docs.py"), "cluster", "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tree.ROOT / "collections"), "PATH": str(Path(sys.executable).parent)},
    )
    assert run.returncode == 0, run.stdout + run.stderr
