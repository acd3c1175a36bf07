# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tests/oracle/memory_tables.md has the present plans of the launches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tree


def test_table_is_what_its_generator_writes() -> None:
    run = subprocess.run(
        [sys.executable, str(tree.ROOT / "scripts/generate_docs.py"), "measured", "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tree.ROOT / "collections"), "PATH": str(Path(sys.executable).parent)},
    )
    assert run.returncode == 0, run.stdout + run.stderr
