# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a unit or a docker command of a test, and judging it."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.docker_run import (
    is_unit,
    read_docker_run,
    read_unit,
    split_words,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import check_written
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.rules_unit import Written


def read_written(text: str) -> Written:
    """Read a unit or a docker run. Raises ValueError for a unit or a command line that cannot be read."""
    if is_unit(text):
        unit = read_unit(text)
        return Written(unit, unit.run, text)
    run = read_docker_run(split_words(text))
    assert run is not None, "this is neither a systemd unit nor a docker run command"
    return Written(None, run, text)


def check_unit(text: str) -> list[dict[str, Any]]:
    """Return the findings about a unit or a docker run."""
    return check_written(read_written(text))
