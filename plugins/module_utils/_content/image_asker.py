# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask images for their contents by short containers, and keep the answers on the host."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._common import program_text
from .._host import containers, docker
from .._runtime import state_file
from .._runtime.command import Run
from . import image_contents, image_probe, image_probe_program
from .image_contents import Ask


def asker(run: Run, cache_dir: str, timeout: int, warn: Callable[[str], None]) -> Ask:
    """Return a function that asks an image, by its id, by a short container, and keeps what will be the same next time."""

    def ask(image_id: str) -> dict[str, Any]:
        container = f"dgxspark-probe-{os.getpid()}"
        program = program_text.program(image_probe_program)
        rc, out, err = run(containers.image_question(image_id, container, program, timeout), timeout + 60)
        answer, lasting = image_probe.parse(rc, out, err, timeout)
        if rc in image_probe.TIMED_OUT:
            docker.remove_container(run, container)
        if lasting:
            path = Path(cache_dir, image_contents.cache_name(image_id))
            try:
                state_file.write(path, {"schema": image_contents.SCHEMA, "id": image_id, "answer": answer})
            except OSError as error:
                warn(f"the answer of image {image_id} could not be kept in {path.parent}: {error}")
        return answer

    return ask
