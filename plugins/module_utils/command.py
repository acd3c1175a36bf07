# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run programs for the readers, through the module that is at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Programs format numbers and times themselves, so both are pinned.
ENVIRONMENT = {"LC_ALL": "C", "LANG": "C", "LANGUAGE": "C", "TZ": "UTC"}


def runner(module: Any) -> Callable[[list[str]], tuple[int, str, str]]:
    """Return a function that runs an argv by C(module.run_command) and gives (rc, stdout, stderr).

    No shell is involved. A program that does not exist or may not be run gives rc 127 instead of a failed task.
    """

    def run(argv: list[str]) -> tuple[int, str, str]:
        try:
            rc, out, err = module.run_command(argv, environ_update=ENVIRONMENT, handle_exceptions=False)
        except OSError as error:
            return 127, "", str(error)
        return rc, out, err

    return run
