# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of raw_texts.py: the output of a program is kept unchanged, with its failure."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import raw_texts
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer


def test_a_failure_is_said_before_the_text() -> None:
    assert raw_texts.read(lambda _argv, **_options: (0, "out\n", "err\n"), ["ip", "route"]) == "out\nerr\n"
    assert (
        raw_texts.read(lambda _argv, **_options: (2, "", "err\n"), ["ip", "route"]) == "# exit code 2: ip route\nerr\n"
    )


def test_silence_is_said_in_place_of_the_text() -> None:
    def silent(_argv: list[str], **_options: Any) -> tuple[int, str, str]:
        raise NoAnswer("ip", "ip did not answer in 30 s")

    assert raw_texts.read(silent, ["ip", "route"]) == "# ip did not answer in 30 s: ip route\n"


def test_no_two_texts_have_one_name() -> None:
    names = [name for name, _argv in (*raw_texts.COMMANDS, *raw_texts.logs(5), *raw_texts.unit_commands("x.service"))]
    assert len(names) == len(set(names))
