# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The predicted speed of a planned service."""

from __future__ import annotations

import time
from typing import Any

import pytest
from planned_fixture import FAST, resolved, spark
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.releases import parse_release
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import speeds
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.speeds import ServiceSpeed
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed import constants, estimate, reads, time_model
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.estimate import speed_estimate

MODEL = {"config": RECIPES["qwen3-8b"]["config"], "vllm_version": "0.33.0"}


def speed_of(model: dict[str, Any] | None = None, **args: Any) -> ServiceSpeed:
    """The speed of Qwen3 8B or another model; options with underscores."""
    launch_args = {"max-model-len": 32768, "max-num-seqs": 8, **{key.replace("_", "-"): args[key] for key in args}}
    return speeds.of_launch({**MODEL, **(model or {})}, launch_args)


def test_the_plan_predicts_what_the_module_predicts() -> None:
    speed = speed_of()
    service = {"name": "a", **MODEL, "args": {}}
    of_module = speed_estimate({"services": [service], "workload": {"concurrency": [1, 8], "prompt_tokens": [1024]}})
    figures = of_module["services"]["a"]
    assert speed.one_stream and speed.one_stream.to_dict() == figures["decode"]["1"]
    assert speed.all_streams and speed.all_streams.to_dict() == figures["aggregate"]["8"]
    assert speed.bytes_per_token == figures["bytes_per_token"]["total"]
    assert (speed.bound_by, speed.unknown, speed.steps) == ("memory", {}, None)


def test_a_planned_service_has_its_speed() -> None:
    planned = resolved(spark(FAST))
    assert planned.speed.streams == 2
    assert planned.speed.one_stream is not None and planned.speed.one_stream.typical > 10
    # Prompts of 8192 tokens are longer than its context of 4096.
    assert planned.speed.first_token_8k is None and planned.speed.first_token_full is not None


def test_requests_and_lengths_of_the_budget_count_without_options() -> None:
    memory = {"max_model_len": 32768, "max_num_seqs": 8}
    assert speeds.of_launch(MODEL, {}, memory) == speed_of()


def test_a_longer_prompt_waits_longer_and_more_streams_share_the_bus() -> None:
    speed = speed_of()
    assert speed.first_token_8k and speed.first_token_full and speed.one_stream and speed.all_streams
    assert speed.first_token_full.typical > 3 * speed.first_token_8k.typical
    assert speed.one_stream.typical < speed.all_streams.typical < 8 * speed.one_stream.typical


def test_no_rate_is_above_the_ceiling() -> None:
    speed = speed_of()
    assert speed.one_stream and speed.all_streams and speed.ceiling and speed.ceiling_all
    assert speed.one_stream.typical < speed.ceiling and speed.all_streams.typical < speed.ceiling_all
    assert speed.limit() == speed.ceiling
    assert speed.limit(8) == speed.ceiling_all
    assert ServiceSpeed(1).limit() is None


def test_a_drafter_raises_the_limit_and_keeps_steps_per_second() -> None:
    draft = {"method": "ngram", "num_speculative_tokens": 4}
    speed, plain = speed_of(speculative_config=draft), speed_of()
    assert speed.one_stream is None and "acceptance" in speed.unknown["decode"]
    # Matrices of 16 bits are read a little faster for several tokens than for one.
    assert speed.steps and plain.one_stream and speed.steps.typical <= 1.06 * plain.one_stream.typical
    assert plain.ceiling is not None and speed.limit() == 5 * plain.ceiling


def test_replicas_serve_their_own_streams() -> None:
    single, double = speed_of(), speed_of(data_parallel_size=2)
    assert (single.streams, double.streams) == (8, 16)
    assert double.one_stream is not None and double.one_stream.typical > 0
    assert single.ceiling_all is not None and double.ceiling_all == pytest.approx(2 * single.ceiling_all, abs=0.02)


def test_sizes_without_sense_take_no_time() -> None:
    began = time.process_time()
    speed = speed_of(max_model_len=1 << 24, max_num_batched_tokens=1)
    assert speed.first_token_full and speed.first_token_full.typical > 1e4
    assert "no prediction beyond" in speed_of(max_model_len=10**400).unknown["all"]
    assert "no prediction beyond" in speed_of(max_num_seqs=10**400).unknown["all"]
    assert time.process_time() - began < 2


def test_chunks_in_groups_take_as_long_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = estimate.Launch(
        reads.read_launch(MODEL["config"], None, reads.LaunchSettings(parse_release("0.33.0"))), chunk=64
    )
    single = time_model.prefill_seconds(launch, constants.GB10, 32768)
    monkeypatch.setattr(time_model, "_MOST_CHUNKS", 100)
    assert time_model.prefill_seconds(launch, constants.GB10, 32768) == pytest.approx(single, rel=0.01)


def test_what_cannot_be_predicted_has_a_reason() -> None:
    without_config = speed_of({"config": None})
    assert "config" in without_config.unknown["all"] and without_config.one_stream is None
    pooling = speed_of(runner="pooling")
    assert pooling.one_stream is None and "no tokens" in pooling.unknown["decode"]
    assert pooling.first_token_8k is not None
