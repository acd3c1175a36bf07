# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask an image for its contents: the container that runs once per image id, and its answer."""

from __future__ import annotations

from typing import Any

from .._common.foreign_text import parse_json
from . import image_probe_program

TIMED_OUT = (124, 137)  # what coreutils' timeout returns after TERM and after KILL


def parse(rc: int, out: str, err: str, timeout: int) -> tuple[dict[str, Any], bool]:
    """Return the answer, C({error}) of an image that cannot be asked, and whether it will be the same next time, so that it may be kept."""
    line = next((line for line in out.splitlines() if line.startswith(image_probe_program.MARK)), None)
    if line is not None:
        try:
            answer = parse_json(line[len(image_probe_program.MARK) :], "the answer of the image")
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            return {"error": None, **answer}, True
    if rc in TIMED_OUT:
        return {"error": f"no answer within {timeout} seconds"}, False
    detail = err.strip().splitlines()[-1] if err.strip() else f"exit code {rc}"
    if rc == 127 and "python3" in err:
        return {"error": "the image has no python3"}, True
    return {"error": detail}, False
