# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs of a host, played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command


def play(monkeypatch: pytest.MonkeyPatch, programs: Callable[..., tuple[int, str, str]]) -> None:
    """Have C(programs) answer in place of the host's: argv and options in, (rc, stdout, stderr) out; NoAnswer is silence."""

    def run(argv: list[str], timeout: float = command.QUERY_SECONDS, **options: Any) -> command.Answer:
        try:
            return command.Answer(command.FINISHED, *programs(argv, **options))
        except command.NoAnswer as nothing:
            return command.Answer(command.SILENT, 124, why=str(nothing))
        except OSError as error:
            return command.Answer(command.MISSING, 127, err=str(error), why=f"{argv[0]} cannot be run")

    monkeypatch.setattr(command, "run", run)
