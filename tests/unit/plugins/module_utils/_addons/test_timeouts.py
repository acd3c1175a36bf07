# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a request may take, against what owners of Sparks measured."""

from __future__ import annotations

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import timeouts

# Tokens of a prompt and seconds until its first token, a pair with the driver 580.178.04; one run each.
MEASURED = [(199_838, 102.9), (399_720, 245.2), (699_290, 519.6), (949_221, 815.2)]


@pytest.mark.parametrize(("tokens", "seconds"), MEASURED)
def test_what_is_assumed_covers_what_was_measured(tokens: int, seconds: float) -> None:
    assert tokens / seconds > timeouts.ASSUMED_RATE
    limits = timeouts.limits(tokens)
    assert (
        limits.assumed
        and limits.silent > timeouts.MARGIN * seconds
        and limits.answer >= limits.silent + timeouts.ANSWER_SECONDS
    )


@pytest.mark.parametrize(("tokens", "seconds"), MEASURED)
def test_a_measured_rate_leaves_room_for_others(tokens: int, seconds: float) -> None:
    limits = timeouts.limits(tokens, tokens / seconds)
    assert not limits.assumed and timeouts.limits(tokens).silent >= limits.silent >= timeouts.MARGIN * seconds


def test_short_and_unknown_contexts_have_what_they_always_had() -> None:
    for length in (None, 0, 4096, 131072):
        limits = timeouts.limits(length)
        assert (limits.silent, limits.answer) == (timeouts.SILENT_SECONDS, timeouts.WHOLE_SECONDS)


def test_a_rate_that_is_measured_again_changes_little() -> None:
    steps = {timeouts.limits(949_221, rate).silent for rate in range(1160, 1170)}
    assert len(steps) <= 2 and all(step % timeouts.STEP == 0 for step in steps)


@pytest.mark.parametrize("length", [None, 4096, 949_221])
def test_a_request_that_is_held_while_its_engine_loads_is_waited_for_on_top(length: int | None) -> None:
    plain, held = timeouts.limits(length), timeouts.limits(length, hold=870)
    assert (held.silent - plain.silent, held.answer - plain.answer) == (
        900,
        900,
    ) or plain.answer == timeouts.WHOLE_SECONDS
    assert held.silent >= 870 + plain.silent and held.answer >= held.silent + timeouts.ANSWER_SECONDS
    assert held.reading == plain.silent == plain.reading
