#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check a file of measured launches, print each with its plan, and add it to the measurements that the overheads are compared with.

Run with PYTHONPATH=collections. Such files come from export_measurements.yml; docs/memory.md describes them. A file with a mistake is
refused, with all of them. A launch that contradicts the ranges is added all the same: the tests fail then until the ranges hold it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.sizes import GIB
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import measurement_rows
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.overheads import LEVELS

FIXTURE = Path(__file__).resolve().parent.parent / "tests" / "unit" / "plugins" / "fixtures" / "gpu_rows.json"
MOST_BYTES = 64 << 20
CONFIGS = ("models", "quant_configs", "draft_configs")
_SHORT_LIST = re.compile(r"\[[^][{}]*\]")


def dump(content: Mapping[str, Any]) -> str:
    """Return the text of a file of rows; a list of plain values stands on one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    return _SHORT_LIST.sub(lambda match: json.dumps(json.loads(match.group())), text) + "\n"


def beside_plan(content: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return a line about a launch: measured and planned figures, and their contradictions."""
    wrong = measurement_rows.contradiction(content, row)
    text = f"{row['launch']}, vLLM {row['vllm']}, {row['gpu']}: {row['kv_cache'] / GIB:.2f} GiB of KV cache"
    if wrong:
        return f"CONTRADICTS  {text}: {wrong}"
    size = measurement_rows.planned(content, row)["available_kv_bytes"]
    return f"holds        {text}, planned {' / '.join(f'{size[level] / GIB:.2f}' for level in LEVELS)}"


def read(path: Path) -> Any:
    """Return the content of a file, with configs reduced to anonymous keys. Raises InputError with all problems."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError([f"{path}: is larger than {MOST_BYTES >> 20} MiB"])
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError([f"{path}: cannot be read as JSON: {error}"]) from error
    if isinstance(content, dict):  # a published config.json has more keys than the plan reads
        for part in CONFIGS:
            if isinstance(content.get(part), Mapping):
                content[part] = {name: measurement_rows.public_fields(config) for name, config in content[part].items()}
    wrong = measurement_rows.problems(content)
    if wrong:
        raise InputError([f"{path}: {problem}" for problem in wrong])
    return content


def main(argv: list[str]) -> int:
    """Check and add a file; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="rows to add")
    parser.add_argument("--check", action="store_true", help="add nothing")
    parser.add_argument("--fixture", type=Path, default=FIXTURE, help="where they are added")
    options = parser.parse_args(argv)
    try:
        content = read(options.file)
    except InputError as error:
        print(f"{len(error.messages)} problems; nothing was added:")
        print("\n".join(f"- {message}" for message in error.messages))
        return 1
    before = json.loads(options.fixture.read_text(encoding="utf-8"))
    after = measurement_rows.joined(before, content)
    added = after["rows"][len(before["rows"]) :]
    lines = [beside_plan(after, row) for row in added]
    print("\n".join(lines))
    wrong = sum(line.startswith("CONTRADICTS") for line in lines)
    print(f"{len(added)} launches are new of {len(content['rows'])}; {wrong} contradict the ranges.")
    if added and not options.check:
        options.fixture.write_text(dump(after), encoding="utf-8")
        print(
            f"Added to {options.fixture.name}. Now run scripts/generate_docs.py and the tests of test_profile_run.py."
        )
        if wrong:
            print("Widen what does not hold in _vllm/overheads.py, with the launch as its source.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
