# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask images for their contents by short containers, once per image id, and keep the answers on the host."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._common import program_text
from .._common.foreign_text import parse_json
from .._host import containers, docker
from .._runtime import state_file
from .._runtime.command import Run
from . import image_looks, image_probe_program
from .image_looks import Ask

TIMED_OUT = (124, 137)  # what coreutils' timeout returns after TERM and after KILL


def printed(out: str, mark: str) -> dict[str, Any] | None:
    """Return the mapping in JSON that a program in an image printed behind a mark, or None."""
    line = next((line for line in out.splitlines() if line.startswith(mark)), None)
    try:
        answer = parse_json(line[len(mark) :], "the answer of the image") if line is not None else None
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else None


def parse(rc: int, out: str, err: str, timeout: int) -> tuple[dict[str, Any], bool]:
    """Return the answer, C({error}) of an image that cannot be asked, and whether it will be the same next time, so that it may be kept."""
    answer = printed(out, image_probe_program.MARK)
    if answer is not None:
        return {"error": None, **answer}, True
    if rc in TIMED_OUT:
        return {"error": f"no answer within {timeout} seconds"}, False
    detail = err.strip().splitlines()[-1] if err.strip() else f"exit code {rc}"
    if rc == 127 and "python3" in err:
        return {"error": "the image has no python3"}, True
    return {"error": detail}, False


def asker(run: Run, cache_dir: str, timeout: int, warn: Callable[[str], None]) -> Ask:
    """Return a function that asks an image, by its id, by a short container, and keeps what will be the same next time."""

    def ask(image_id: str) -> dict[str, Any]:
        container = f"dgxspark-probe-{os.getpid()}"
        program = program_text.program(image_probe_program)
        rc, out, err = run(containers.image_question(image_id, container, program, timeout), timeout + 60)
        answer, lasting = parse(rc, out, err, timeout)
        if rc in TIMED_OUT:
            docker.remove_container(run, container)
        if lasting:
            path = Path(cache_dir, image_looks.cache_name(image_id))
            try:
                state_file.write(path, {"schema": image_looks.SCHEMA, "id": image_id, "answer": answer})
            except OSError as error:
                warn(f"the answer of image {image_id} could not be kept in {path.parent}: {error}")
        return answer

    return ask
