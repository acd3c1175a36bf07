# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The measured speed of servers whose speed is set, and the record of a proof about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from paced_engine import PacedEngine

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import fast_path, speed_probe, speed_proof
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.engine_client import Client
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.judge import Expected, Measured, Signs

Start = Callable[..., PacedEngine]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(speed_probe, "LOAD_SECONDS", 0.0)
    engines: list[PacedEngine] = []

    def start(**behaviour: Any) -> PacedEngine:
        engines.append(PacedEngine(**behaviour))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def measure(engine: PacedEngine, streams: int = 4, length: int | None = 8192, **more: Any) -> Measured:
    return speed_probe.Probe(Client(engine.url), "heavy", streams, length, **more).measure()


def test_rates_of_one_stream_of_several_and_of_prefill(start: Start) -> None:
    # Steps of many milliseconds: a few that a busy machine adds do not count.
    engine = start(steps=60.0, slowdown=0.2, prefill=1500.0)
    measured = measure(engine, clock=lambda: 2405.0)
    assert measured.single == pytest.approx(60, rel=0.25)
    assert measured.several == pytest.approx(60 / 1.6, rel=0.25)  # each of four
    assert measured.prefill == pytest.approx(1500, rel=0.25)
    assert (measured.streams, measured.clock_mhz, measured.tokens_per_step, measured.missing) == (4, 2405.0, None, "")


def test_a_long_prompt_fits_a_vocabulary_of_characters(start: Start) -> None:
    measured = measure(start(context=4096), streams=1, length=4096)
    assert measured.single and measured.prefill and not measured.missing


@pytest.mark.parametrize(("tokens", "length"), [(2048, 1024), (819, 8192)])
def test_the_long_prompt_has_the_predicted_length(start: Start, tokens: int, length: int) -> None:
    measured = measure(start(context=length), streams=1, length=length, prefill_tokens=tokens)
    assert measured.prompt_tokens and 0.75 <= measured.prompt_tokens / min(tokens, length // 2) <= 1.25


def test_a_refused_long_prompt_costs_the_prefill_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_probe, "_RANDOM_START", 0.1)
    measured = measure(start(context=4096), streams=1, length=4096)
    assert measured.single and measured.prefill is None and "maximum context length" in measured.missing


def test_prompts_differ_from_their_first_word_in_each_run(start: Start) -> None:
    engine = start(steps=4000.0)
    measure(engine, streams=16)
    measure(engine, streams=16)
    assert len(engine.prompts) == 2 * (1 + 16 + 1)
    assert len({prompt.split()[0] for prompt in engine.prompts}) == len(engine.prompts)
    several = engine.prompts[1:17]
    assert len({prompt.split(maxsplit=1)[1] for prompt in several}) == 16
    assert all(body["ignore_eos"] and body["stream_options"]["include_usage"] for body in engine.bodies)


def test_tokens_are_counted_by_the_engine_and_not_by_pieces(start: Start) -> None:
    """A step of a drafter is one piece of three tokens."""
    engine = start(steps=200.0, accepted=3, drafts=True)
    measured = measure(engine)
    assert measured.tokens_per_step == pytest.approx(3.0, abs=0.1)
    assert measured.single == pytest.approx(600, rel=0.25)


def test_each_run_counts_its_own_acceptance(start: Start) -> None:
    """Alone the drafter is right, and wrong among others."""
    measured = measure(start(steps=200.0, accepted=3, accepted_together=1, drafts=True))
    assert measured.single_tokens_per_step == pytest.approx(3.0, abs=0.1)
    assert measured.several_tokens_per_step == pytest.approx(1.0, abs=0.2)
    assert 1.1 < (measured.tokens_per_step or 0) < 2.0


@pytest.mark.parametrize("counts", ["end", "none"])
def test_pieces_are_never_counted(start: Start, counts: str) -> None:
    uncounted = measure(start(steps=4000.0, counts=counts), streams=1)
    assert uncounted.single is None and "does not count tokens" in uncounted.missing


def test_a_slow_engine_ends_in_time_with_its_rate(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_probe, "PART_SECONDS", 0.5)
    measured = measure(start(steps=20.0, prefill=100.0), streams=2)
    assert measured.single == pytest.approx(20, rel=0.25) and measured.several == pytest.approx(20, rel=0.25)
    assert measured.prefill is None and "longer than 0.5 s" in measured.missing


def test_streams_that_wait_for_each_other_give_no_rate(start: Start) -> None:
    measured = measure(start(steps=1000.0, most=2), streams=4)
    assert measured.single and measured.several is None and "did not run at once" in measured.missing


@pytest.mark.parametrize(
    ("behaviour", "length", "reason"),
    [
        ({"running": 2}, 8192, "serves 2 requests of others"),
        ({"foreign": 100, "steps": 4000.0}, 8192, "other requests ran meanwhile"),
        ({"status": 404}, 8192, "HTTP 404"),
        ({}, 256, "context of 256 tokens"),
    ],
)
def test_why_nothing_is_measured(
    start: Start, monkeypatch: pytest.MonkeyPatch, behaviour: Any, length: int, reason: str
) -> None:
    monkeypatch.setattr(speed_probe, "IDLE_SECONDS", 0.0)
    measured = measure(start(**behaviour), length=length)
    assert reason in measured.missing and measured.single is None


def test_a_neighbour_that_serves_requests_disturbs(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_probe, "IDLE_SECONDS", 0.0)
    neighbour = start(running=1)
    measured = measure(start(), neighbours=[Client(neighbour.url)])
    assert neighbour.url in measured.missing


# --- the record ----------------------------------------------------------------------------------------------------

EXPECTED = Expected(single={"low": 20.0, "typical": 22.0, "high": 25.0}, ceilings={"single": 30.0})


def record_of(*rates: float, previous: Any = None, expected: Expected = EXPECTED, not_judged: str = "") -> Any:
    """The record, and the findings' ids, after measurements with these rates."""
    waiting = [Measured(single=rate or None, missing="" if rate else "busy") for rate in rates]
    record, findings = speed_proof.prove(
        "heavy", expected, lambda: waiting.pop(0), previous, Signs(), not_judged=not_judged
    )
    assert not waiting
    return record, [finding.rule for finding in findings]


def test_the_record_has_measured_and_expected_and_the_first_measurement() -> None:
    record, rules = record_of(21.0)
    assert (record["verdict"], record["line"], rules) == ("fine", "fine", [])
    assert record["measured"]["single"] == 21.0 and record["expected"]["single"]["low"] == 20.0
    later, _rules = record_of(19.0, previous=record)
    assert later["first"] == record["first"] == {"measured": record["measured"], "verdict": "fine"}
    assert later["figures"][0]["against"] == "receipt"


def test_a_bad_result_is_measured_again_and_the_better_figures_count() -> None:
    assert record_of(8.0, 21.0)[0]["verdict"] == "fine"
    record, rules = record_of(8.0, 9.0)
    assert record["measured"]["single"] == 9.0 and rules == ["speed.wrong"]
    assert speed_proof.finding_of(record)["message"].startswith("heavy is far slower")
    # The first fine measurement becomes the reference.
    healed, _rules = record_of(22.0, previous=record)
    assert healed["first"]["measured"]["single"] == 22.0 and speed_proof.finding_of(healed) is None


def test_a_refused_measurement_is_no_reference() -> None:
    record, rules = record_of(35.0)
    assert record["refused"] and record["first"] is None and rules == ["speed.refused"]
    assert speed_proof.finding_of(record) is None


def test_nothing_measured_is_said_and_leaves_an_earlier_record() -> None:
    record, rules = record_of(0.0)
    assert (record["verdict"], record["reason"], record["first"], rules) == (
        "unknown",
        "busy",
        None,
        [],
    )
    assert record_of(0.0, previous=record_of(20.0)[0]) == (None, [])


def test_rates_of_a_simulated_host_are_kept_and_not_judged() -> None:
    record, rules = record_of(2.0, not_judged="the host is simulated")
    assert (record["verdict"], record["reason"], rules) == ("unknown", "the host is simulated", [])


def test_signs_come_from_the_start_up_lines() -> None:
    checks = {"moe_backend": fast_path.Check(verdict="off"), "linear_kernel": fast_path.Check(verdict="ok")}
    runs = fast_path.Running(graphs="NONE", slow=["emulation", "untuned_moe"])
    assert speed_proof.signs_of(runs, checks) == Signs(True, ("moe_backend", "emulation"))
    assert speed_proof.signs_of(fast_path.Running(graphs="FULL"), {}) == Signs()
