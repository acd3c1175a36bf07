#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the table of tests/oracle/memory_tables.md: the versions of vLLM that the memory calculation was compared with.

Run with PYTHONPATH=collections. tests/unit/test_memory_doc.py compares the page with the same table.
"""

from __future__ import annotations

import re
import sys

from common import ROOT, write_generated

sys.path.insert(0, str(ROOT / "tests" / "unit" / "plugins"))

from launches_fixture import compared

PAGE = ROOT / "tests" / "oracle" / "memory_tables.md"
BLOCK = re.compile(r"(?<=^<!-- computed: compared -->\n\n)(?:\|.*\n)+", re.MULTILINE)


def main() -> int:
    """Write the page; returns the exit code."""
    new, count = BLOCK.subn(f"{compared()}\n", PAGE.read_text(encoding="utf-8"))
    if not count:
        print(f"{PAGE.name} has no table below <!-- computed: compared -->.")
        return 1
    return write_generated({PAGE: new})


if __name__ == "__main__":
    sys.exit(main())
