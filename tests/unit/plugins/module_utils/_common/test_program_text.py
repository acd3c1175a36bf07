# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of a program does not depend on the importer, and runs in one piece."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import program_text

BESIDE = "from __future__ import annotations\n\nWORD = 'größer'\n"
MAIN = "from __future__ import annotations\n\nfrom .beside import WORD\n\n\ndef main():\n    print(WORD)\n"


def module(name: str, text: Any) -> ModuleType:
    """A module whose loader has this for its source."""
    made = ModuleType(name)
    made.__loader__ = SimpleNamespace(get_source=lambda _name: text)  # type: ignore[assignment]  # all that is asked of it
    return made


@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_program_and_what_it_imports_run_in_one_piece(kind: Any) -> None:
    text = program_text.program(module("main", kind(MAIN)), module("beside", kind(BESIDE)))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True, env={"PYTHONUTF8": "1"})
    assert done.stdout.decode() == "größer\n"


@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_text_is_that_of_the_file(kind: Any) -> None:
    assert program_text.source(module("beside", kind(BESIDE))) == BESIDE
