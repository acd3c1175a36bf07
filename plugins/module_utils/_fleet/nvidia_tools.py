# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks NVIDIA's management tools on a host that has them: reason of the last reset, pending update, crash dumps. Their answers are untrusted.

The tools are spark_updatectl, spark_diagctl and reset_reason_reporter of NVIDIA's DGX Spark management suite, 1.1.0. Only their reading commands
are used. A configuration on standard input takes away their log file, so that nothing is written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from .._common.foreign_text import Untrusted, parse_json
from .._common.reader import LINE, NUMBER, Maybe, Most, optional, read
from .._runtime.command import NoAnswer, Run

TOOL_SECONDS = 20.0
MOST_ANSWER = 2**20
"""Bytes of an answer; the tools truncate their texts at 500 kB."""
FOLDERS = (
    "usr/local/bin",
    "usr/bin",
    "opt/dgx_spark_management/bin",
    "opt/DGX_spark_management/bin",
    "opt/nvidia/dgx_spark_management/bin",
)
"""Folders that are searched. The suite is a folder of the owner's choice; tools in homes are not run as root."""
MOST_BESIDE = 10_000
"""Entries of the folder of a tool; in one with more, not all can be looked at."""
NO_LOG = ["--config", "/dev/stdin"]
TOOLS: Mapping[str, tuple[list[str], Any]] = {
    "reset_reason_reporter": (
        [],
        {
            "last_reset": {"reason_code": LINE, "confidence": NUMBER, "summary": LINE},
            "current_boot?": {"uptime_seconds?": Maybe(NUMBER)},
        },
    ),
    "spark_updatectl": (
        ["status"],
        {"pending_reboot": {"pending": bool, **optional({"indicators": Most([LINE], 100)})}},
    ),
    "spark_diagctl": (["crash", "status"], {"crash_dumps_found": Most([{"path": LINE}], 1000)}),
}
"""Arguments and form of C(data) of each tool."""


def look(run: Run, root: Path, unknown: dict[str, str]) -> dict[str, Any]:
    """Return C(data) of each tool that the host has, by name.

    :param unknown: receives tools without a usable answer, and the reason
    """
    answers = {}
    for name, (words, form) in TOOLS.items():
        candidates = (root / folder / file for folder in FOLDERS for file in (f"{name}.py", name))
        path = next((candidate for candidate in candidates if candidate.is_file()), None)
        if path is None:
            continue
        try:
            if not _is_roots_own(path):
                raise NoAnswer(name, f"{path} was not run: others than root may change it")
            argv = ["/usr/bin/python3", str(path), *NO_LOG, *words]
            _rc, out, _err = run(argv, TOOL_SECONDS, data=b'{"log_path": null}', limit=MOST_ANSWER, cwd="/")
            envelope = read({"ok": bool, "data?": Any}, parse_json(out, name, MOST_ANSWER), name)
            if not envelope["ok"]:
                raise NoAnswer(name, f"{name} failed by its own report")
            answers[name] = read(form, envelope.get("data"), f"{name}: data")
        except (NoAnswer, Untrusted, OSError) as error:
            text = str(error)
            unknown[name] = text if text.startswith(name) else f"{name}: {text}"
    return answers


def _is_roots_own(path: Path) -> bool:
    """Tell whether only root (or the account of the look) can change a program, what it may import, and the folders above. Raises OSError."""
    real = path.resolve()
    beside = list(islice(real.parent.rglob("*"), MOST_BESIDE + 1))
    imported = [entry for entry in beside if entry.is_dir() or entry.suffix in (".py", ".pyc", ".so")]
    for entry in (*imported, real, *real.parents):
        status = entry.stat()
        # In a folder such as /tmp, nobody replaces what is root's, but everybody can add a module.
        is_safe_above = entry in real.parents[1:] and status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.geteuid()) or (status.st_mode & 0o022 and not is_safe_above):
            return False
    return len(beside) <= MOST_BESIDE
