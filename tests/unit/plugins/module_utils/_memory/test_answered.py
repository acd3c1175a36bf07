"""Services planned by the answer of their image, and by stated sizes: recorded answers of real vLLM against the arithmetic."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import (
    answered,
    budget,
    image_answer,
    service_cache,
    service_input,
    service_memory,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Refusal

ROOT = Path(__file__).parents[5]
RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "image_plans.json").read_text(encoding="utf-8"))
DENSE_ARGS = {"max-model-len": 16384, "max-num-seqs": 4, "max-num-batched-tokens": 8192}
HYBRID_ARGS = {
    **{"max-model-len": 65536, "max-num-seqs": 4, "max-num-batched-tokens": 8192, "kv-cache-dtype": "fp8"},
    **{"enable-prefix-caching": True, "speculative-config": {"method": "mtp", "num_speculative_tokens": 3}},
}
NEW = {"model_type": "of_next_year", "vision_config": None}
# Keys of a service that are not part of a question, or have other names in it.
OTHER_WORDS = ("sources", "kv_groups", "page_size_bytes", "kv_cache_dtype", "load_peak_bytes", "host_bytes")


def config(recipe: str) -> dict[str, Any]:
    result: dict[str, Any] = yaml.safe_load((ROOT / f"playbooks/recipes/{recipe}.yml").read_text(encoding="utf-8"))
    return dict(result["config"])


def plan(args: dict[str, Any], **service: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    result = memory_budget({"services": [{"name": "x", "vllm_version": "0.33.0", "args": args, **service}]})
    return result["services"]["x"], result["findings"]


def image_plan_answer(name: str, **change: Any) -> dict[str, Any]:
    return {"answer": {**copy.deepcopy(RECORDED[name]["answer"]), **change}, "reason": ""}


def rules(findings: list[dict[str, Any]]) -> dict[str, str]:
    return {finding["rule"]: finding["message"] for finding in findings}


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No family is known to the arithmetic."""

    def refuse(_config: Any) -> Any:
        raise Refusal("config.model_type", "the family is not known")

    monkeypatch.setattr(service_cache, "read_geometry", refuse)
    forget()
    yield
    forget()


def forget() -> None:
    """Have the next budget worked out anew."""
    service_memory._resolve.cache_clear()
    budget._judge_once.cache_clear()


CASES = {
    "dense": ("qwen3-4b-instruct-2507", DENSE_ARGS),
    "hybrid": ("qwen3.6-35b-a3b-fp8", HYBRID_ARGS),
}


def unquantised(recipe: str) -> dict[str, Any]:
    return {key: value for key, value in config(recipe).items() if key != "quantization_config"}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "more",
    [{}, {"gpu-memory-utilization": 0.85}, {"max-num-seqs": 64}, {"enforce-eager": True}],
    ids="".join,
)
def test_a_hidden_family_is_planned_by_the_image_as_by_arithmetic(
    name: str, more: dict[str, Any], request: Any
) -> None:
    recipe, args = CASES[name]
    args = {**args, **more}
    answer = image_plan_answer(name)
    if "enforce-eager" in more:
        answer["answer"]["resolved"].update(cudagraph_mode="NONE", cudagraph_sizes=0)
    computed, _findings = plan(args, config=unquantised(recipe))
    request.getfixturevalue("hidden")
    refused, findings = plan(args, config=unquantised(recipe))
    assert refused == {"verdict": "fails"} and "memory.refused" in rules(findings)
    result, findings = plan(args, config=unquantised(recipe), image_plan=answer)
    assert computed["sources"] == {
        "weights": "calculated (compared with vLLM)",
        "kv_cache": "calculated (compared with vLLM)",
    }
    assert result["sources"] == {"weights": "image", "kv_cache": "image"} and result["exact"]
    assert "config.model_type: the family is not known" in rules(findings)["memory.image"]
    # Longer ones were not asked about.
    assert result["largest_safe_max_model_len"] == min(computed["largest_safe_max_model_len"], args["max-model-len"])
    # The weights of vLLM's own classes are known to the byte, and the arithmetic to 0.002 %.
    near = {"weights_bytes", "draft_bytes", "vision_bytes", "available_kv_bytes", "largest_safe_max_model_len"}
    for key in set(computed) - set(OTHER_WORDS) - near:
        assert (key, result[key]) == (key, computed[key])
    for key in ("weights_bytes", "draft_bytes", "vision_bytes", "available_kv_bytes"):
        assert result[key] == pytest.approx(computed[key], rel=2e-4), key
    assert [item["layers"] for item in result["kv_groups"]] == [item["layers"] for item in computed["kv_groups"]]


@pytest.mark.parametrize("name", CASES)
def test_an_answer_that_does_not_say_how_wide_a_model_is_has_a_wide_range(name: str, request: Any) -> None:
    recipe, args = CASES[name]
    computed, _findings = plan(args, config=unquantised(recipe))
    request.getfixturevalue("hidden")
    answer = image_plan_answer(name)
    del answer["answer"]["resolved"]["widths"]
    result, _findings = plan(args, config=NEW, image_plan=answer)
    assert result["overhead_gib"]["low"] <= computed["overhead_gib"]["low"]
    assert result["overhead_gib"]["high"] >= computed["overhead_gib"]["typical"]
    assert result["model_runner"] == 2 and result["overhead_gib"]["high"] > 3 * result["overhead_gib"]["typical"] / 2


def test_sizes_of_a_rank_are_those_of_the_model_divided() -> None:
    """The layers of one rank of two give the same model as the layers of a single rank."""

    def layers(name: str, ranks: int) -> Any:
        answer = image_plan_answer(name)["answer"]
        answer["resolved"]["tensor_parallel"] = ranks
        for spec in answer["ranks"][0]["specs"] if ranks > 1 else ():
            if "shapes" in spec:  # conv_dim and heads are divided
                (taps, channels), (heads, *remainder) = spec["shapes"]
                spec["shapes"] = [[taps, channels // ranks], [heads // ranks, *remainder]]
            else:
                spec["num_kv_heads"] //= ranks
        made = answered.read_shapes(image_answer.read(answer), {})
        assert made is not None
        return made[1].layers

    for name in CASES:
        assert layers(name, 1) == layers(name, 2)
    mla = image_plan_answer("dense")["answer"]
    mla["ranks"][0]["specs"][0] |= {
        "kind": "MLAAttentionSpec",
        "num_kv_heads": 1,
        "head_size": 576,
        "head_size_v": None,
    }
    mla["resolved"]["tensor_parallel"] = 4
    made = answered.read_shapes(image_answer.read(mla), {})
    assert made is not None and (made[1].layers[0].kv_heads, made[1].layers[0].head_dim_v) == (1, 0)  # type: ignore[union-attr]
    assert len(made[1].layers) == 36


def test_a_runner_that_differs_is_said_where_the_image_had_triton() -> None:
    computed = config("qwen3-4b-instruct-2507")
    answer = image_plan_answer("dense")
    answer["answer"]["resolved"]["runner"] = "v1"
    result, findings = plan(DENSE_ARGS, config=computed, image_plan=answer)
    assert "model runner 2 and 1" in rules(findings)["memory.differs"] and result["model_runner"] == 2
    answer["answer"]["triton"] = False
    _result, findings = plan(DENSE_ARGS, config=computed, image_plan=answer)
    assert "memory.differs" not in rules(findings)


def test_a_request_that_windows_rule_is_said_to_be_ruled_by_the_batch(hidden: None) -> None:
    answer = image_plan_answer("dense")
    for item in answer["answer"]["sizes"]:
        (group,) = item["groups"]
        window = {**group, "kind": "SlidingWindowSpec", "sliding_window": 4096, "block": 4}
        item["groups"] = [group, window]
        item.update(blocks=item["blocks"], concurrency=item["blocks"] / 5120, needed=5120 * item["bytes_per_block"])
        item["tokens"] = int(item["concurrency"] * 16384)
    made = answered.kv_plan(image_answer.read(answer["answer"]), "", True)
    assert made.blocks_per_request(16384) == 5120 and made.ruled_by_batch(16384) and made.largest_batch(1, 16384) == 0
    args = {**DENSE_ARGS, "gpu-memory-utilization": 0.13}
    _result, findings = plan(args, config=NEW, image_plan=answer)
    assert "Most of it is for max-num-batched-tokens, 8192" in rules(findings)["memory.one_request"]
    plain = answered.kv_plan(image_answer.read(image_plan_answer("dense")["answer"]), "", True)
    assert not plain.ruled_by_batch(16384)


@pytest.mark.parametrize("name", CASES)
def test_blocks_tokens_and_requests_of_a_given_cache_are_those_of_the_arithmetic(name: str, request: Any) -> None:
    recipe, args = CASES[name]
    size = 41 * 2**30 + 12345
    fields = {"config": unquantised(recipe), "available_kv_bytes": size}
    computed, _findings = plan({**args, "gpu-memory-utilization": 0.9}, **fields)
    request.getfixturevalue("hidden")
    result, _findings = plan({**args, "gpu-memory-utilization": 0.9}, **fields, image_plan=image_plan_answer(name))
    keys = ("num_blocks", "gpu_kv_cache_size_tokens", "max_concurrency", "needed_bytes_one_request", "block_size")
    assert [result[key] for key in keys] == [computed[key] for key in keys]


@pytest.mark.parametrize("name", CASES)
def test_shorter_requests_are_never_priced_below_the_arithmetic(name: str) -> None:
    recipe, args = CASES[name]
    items = service_input.read_params(
        {"services": [{"name": "x", "config": unquantised(recipe), "vllm_version": "0.33.0", "args": args}]}
    )[1]
    computed = service_memory.resolve(items[0]).plan
    result = answered.kv_plan(image_answer.read(RECORDED[name]["answer"]), "", True)
    assert computed is not None and result.longest == args["max-model-len"]
    for length in (1, 16, 17, 1000, 2176, 2177, 16000, result.longest):
        if length <= result.longest:
            assert result.needed_bytes(length) == computed.needed_bytes(length)
            assert result.available_for(3, length) == computed.available_for(3, length)
    with pytest.raises(ValueError, match="was asked about"):
        result.needed_bytes(result.longest + 1)
    # If other options change the blocks, no request is cheaper than the request in the question.
    uncounted = answered.kv_plan(image_answer.read(RECORDED[name]["answer"]), "", False)
    assert (
        uncounted.needed_bytes(1)
        == uncounted.needed_bytes(uncounted.longest)
        == computed.needed_bytes(uncounted.longest)
    )


@pytest.mark.parametrize(("version", "null_blocks"), [("0.28.0", 0), ("0.29.0", 1), ("0.33.0", 1)])
def test_vllms_check_keeps_the_null_block_back_from_0_29(version: str, null_blocks: int) -> None:
    answer = image_plan_answer("dense", packages={"vllm": version})["answer"]
    made = answered.kv_plan(image_answer.read(answer), "", True)
    size = 8 << 30
    assert made.checked_bytes(size) == size - null_blocks * made.bytes_per_block
    assert made.available_for(1, made.longest) == made.needed_bytes(made.longest) + null_blocks * made.bytes_per_block


def test_states_of_every_block_are_part_of_the_price_of_a_token() -> None:
    answers = (answered.kv_plan(image_answer.read(RECORDED[name]["answer"]), "", True) for name in CASES)
    hybrid = next(entry for entry in answers if any(group.kind == "mamba" for group in entry.groups))
    states = [group.block_size for group in hybrid.groups if group.kind == "mamba"]
    every_block = replace(hybrid, mamba_cache_mode="all").marginal_bytes_per_token
    assert hybrid.mamba_cache_mode != "all"
    assert every_block - hybrid.marginal_bytes_per_token == pytest.approx(
        sum(hybrid.bytes_per_block / size for size in states)
    )


@pytest.mark.parametrize(
    ("kinds", "kind"),
    [(("FullAttentionSpec",) * 2, "full"), (("FullAttentionSpec", "SlidingWindowSpec"), "UniformTypeKVCacheSpecs")],
)
def test_a_group_of_several_specs_is_of_their_kind_if_they_have_one(kinds: tuple[str, ...], kind: str) -> None:
    answer = image_plan_answer("dense")["answer"]
    for item in answer["sizes"]:
        (group,) = item["groups"]
        members = [{**group, "kind": member} for member in kinds]
        item["groups"] = [{**group, "kind": "UniformTypeKVCacheSpecs", "members": members}]
    made = answered.kv_plan(image_answer.read(answer), "", True)
    assert [group.kind for group in made.groups] == [kind]
    assert bool(made.linear) is (kind == "full")


def test_compressed_caches_are_not_taken_to_follow_the_length() -> None:
    answer = image_plan_answer("dense")["answer"]
    for item in answer["sizes"]:
        item["groups"][0] |= {"kind": "MLAAttentionSpec", "compress_ratio": 4}
    result = answered.kv_plan(image_answer.read(answer), "", True)
    assert result.linear == () and result.needed_bytes(16) == result.needed_bytes(16384)


def test_an_image_that_was_asked_in_vain_leaves_the_refusal_with_its_reason(hidden: None) -> None:
    computed = config("qwen3-4b-instruct-2507")
    reason = "no answer within 300 seconds and 4 GiB of memory"
    result, findings = plan(DENSE_ARGS, config=computed, image_plan={"answer": None, "reason": reason})
    assert result == {"verdict": "fails"} and reason in rules(findings)["memory.refused"]
    failure = {"stage": "import", "kind": "unknown", "type": "ImportError", "text": "libcuda.so.1"}
    _result, findings = plan(
        DENSE_ARGS, config=computed, image_plan=image_plan_answer("dense", failure=failure, ranks=[], sizes=[])
    )
    assert "gives no plan (import: libcuda.so.1)" in rules(findings)["memory.refused"]


def test_a_refusal_of_vllm_in_the_image_is_an_error_in_its_own_words(hidden: None) -> None:
    result, findings = plan(DENSE_ARGS, config=NEW, image_plan=image_plan_answer("refused"))
    assert result == {"verdict": "fails"}
    (finding,) = findings
    assert finding["rule"] == "memory.refused" and "vLLM 0.33.0 refuses the launch" in finding["message"]
    assert "QwenOfNextYearForCausalLM" in finding["vllm_error"]


def test_a_version_that_was_not_compared_is_planned_by_its_image() -> None:
    computed, args = config("qwen3-4b-instruct-2507"), DENSE_ARGS
    plain, _findings = plan(args, config=computed, vllm_version="0.32.1.dev1")
    assert plain["sources"]["kv_cache"] == "calculated (not compared)" and not plain["exact"]
    result, findings = plan(args, config=computed, vllm_version="0.32.1.dev1", image_plan=image_plan_answer("dense"))
    assert result["sources"] == {"weights": "image", "kv_cache": "image"} and result["exact"]
    assert "memory.version" not in rules(findings) and "memory.differs" not in rules(findings)


def test_where_both_plan_a_difference_is_said_and_names_both() -> None:
    computed = config("qwen3-4b-instruct-2507")
    _result, findings = plan(DENSE_ARGS, config=computed, image_plan=image_plan_answer("dense"))
    assert "memory.differs" not in rules(findings)
    other = image_plan_answer("dense")
    for item in other["answer"]["sizes"]:
        item["block_size"] = 32
    result, findings = plan(DENSE_ARGS, config=computed, image_plan=other)
    assert "tokens of a block 16 and 32" in rules(findings)["memory.differs"]
    assert "with the figures of the calculation" in rules(findings)["memory.differs"] and result["block_size"] == 16
    result, findings = plan(DENSE_ARGS, config=computed, image_plan=other, vllm_version="0.32.1.dev1")
    assert "figures of the image" in rules(findings)["memory.differs"] and result["block_size"] == 32
    _result, findings = plan(DENSE_ARGS, config=computed, image_plan=image_plan_answer("refused"))
    assert "the image refuses the launch" in rules(findings)["memory.differs"]


def test_no_fix_rests_on_an_answer_about_other_arguments(hidden: None) -> None:
    args = {**DENSE_ARGS, "gpu-memory-utilization": 0.08}
    _result, findings = plan(args, config=config("qwen3-4b-instruct-2507"), image_plan=image_plan_answer("dense"))
    (finding,) = (item for item in findings if item["severity"] == "error")
    assert {key for change in finding["changes"] for key in change["args"]} <= set(service_input.ANSWERED_ARGS)
    assert "Set gpu-memory-utilization of x to" in finding["fix"]


def test_a_context_above_the_one_that_was_asked_about_is_not_planned(hidden: None) -> None:
    args = {**DENSE_ARGS, "max-model-len": 32768}
    _result, findings = plan(args, config=NEW, image_plan=image_plan_answer("dense"))
    assert "asked about 16384 tokens, not 32768" in rules(findings)["memory.refused"]


def test_blocks_that_do_not_follow_from_the_memory_are_no_plan(hidden: None) -> None:
    other = image_plan_answer("dense")
    other["answer"]["sizes"][0]["blocks"] -= 4
    other["answer"]["sizes"][0]["concurrency"] = other["answer"]["sizes"][0]["blocks"] / 1024
    _result, findings = plan(DENSE_ARGS, config=NEW, image_plan=other)
    assert "do not follow from the memory" in rules(findings)["memory.refused"]


def test_an_answer_that_cannot_be_right_is_malformed_input() -> None:
    with pytest.raises(InputError, match=r"image_plan\.answer"):
        plan(DENSE_ARGS, config=NEW, image_plan=image_plan_answer("dense", ranks=[]))
    with pytest.raises(InputError, match=r"image_plan\.reason"):
        plan(DENSE_ARGS, config=NEW, image_plan={"answer": None, "reason": 5})


# Stated sizes ---------------------------------------------------------------------------------------------------------


def test_the_fix_of_a_refusal_exists_and_plans(hidden: None) -> None:
    _result, findings = plan({}, config=NEW)
    assert "memory_gib" in findings[0]["fix"]
    result, findings = plan({}, config=NEW, memory_gib=40)
    assert result["verdict"] == "fits" and result["sources"] == {"weights": "given", "kv_cache": "given"}
    assert result["gpu_memory_utilization"] == 0.34 and result["solved"] == ["gpu-memory-utilization"]
    assert result["requested_bytes"] >= 40 * 2**30
    assert [(item["rule"], item["severity"]) for item in findings] == [("memory.stated", "warning")]
    assert "40.0 GiB" in findings[0]["message"]


def test_parts_that_are_stated_are_parts_of_the_map() -> None:
    stated = {"weights_gib": 20, "kv_gib": 10, "other_gib": 2}
    budget = memory_budget({"services": [{"name": "x", "config": NEW, "memory": stated}]})
    parts = {part["label"]: part["gib"] for part in budget["memory_map"]}
    assert parts["x weights"] == 20 and parts["x KV cache"] == pytest.approx(10, abs=1.2)
    assert budget["services"]["x"]["weights_bytes"] == 20 * 2**30
    assert budget["services"]["x"]["requested_bytes"] >= 32 * 2**30
    assert budget["services"]["x"]["stated_gib"] == 32
    assert budget["services"]["x"]["overhead_gib"] == {"low": 2, "typical": 2, "high": 2}
    cache = budget["services"]["x"]["requested_bytes"] - 22 * 2**30
    assert budget["services"]["x"]["available_kv_bytes"] == {"low": cache, "typical": cache, "high": cache}
    # Without a stated value the remaining memory is estimated and counts.
    less = memory_budget({"services": [{"name": "x", "config": NEW, "memory": {"weights_gib": 20, "kv_gib": 10}}]})
    assert 30 * 2**30 < less["services"]["x"]["requested_bytes"] < 33 * 2**30


def test_a_stated_model_with_a_tower_has_a_cache_of_images() -> None:
    """vLLM keeps processed images in host memory, 4 GiB by default, whatever the stated size of the engine."""

    def caches(**service: Any) -> dict[str, float]:
        args = service.pop("args", {})
        result, _findings = plan(args, memory_gib=40, **service)
        return {item["name"]: item["gib"]["high"] for item in result["host_memory"]}

    seeing = {**NEW, "vision_config": {"depth": 27}}
    assert caches(config=seeing)["media cache"] == 4
    assert caches(config=seeing, args={"mm-processor-cache-gb": 1.5})["media cache"] == 1.5
    assert "media cache" not in caches(config=NEW)
    assert "media cache" not in caches(config=seeing, args={"language-model-only": True})


def test_a_statement_and_a_utilisation_must_agree() -> None:
    _result, findings = plan({"gpu-memory-utilization": 0.2}, config=NEW, memory_gib=40)
    assert [(item["rule"], item["severity"]) for item in findings] == [("memory.stated", "error")]
    assert "to 0.34" in findings[0]["fix"]
    _result, findings = plan({"gpu-memory-utilization": 0.34}, config=NEW, memory_gib=40)
    assert [item["severity"] for item in findings] == ["warning"]
    result, findings = plan({"gpu-memory-utilization": 0.5}, config=NEW, memory={"weights_gib": 20})
    assert [item["severity"] for item in findings] == ["warning"]
    # The cache has what the share leaves of weights and overheads.
    assert result["stated_gib"] == pytest.approx(20 + result["overhead_gib"]["typical"], abs=0.02)
    _result, findings = plan({}, config=NEW, memory={"weights_gib": 20})
    assert "memory.kv_gib" in rules(findings)["memory.refused"]


def test_two_engines_that_are_stated_must_fit_together() -> None:
    services = [{"name": name, "config": NEW, "memory_gib": 70} for name in ("a", "b")]
    assert memory_budget({"services": services})["verdict"] == "fails"
    assert memory_budget({"services": services[:1]})["verdict"] == "fits"


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        ({"memory_gib": 5, "memory": {"weights_gib": 1}}, "is set together with memory"),
        ({"memory": {"kv_gib": 1}}, "memory.weights_gib: is missing"),
        ({"memory": {"weights_gib": -1}}, "must be at least 0"),
        ({"memory": {"weights_gib": 1, "other": 1}}, "memory.other: unknown key"),
        ({"memory": 5}, "expected a mapping"),
        ({"memory": {"weights_gib": 1, "kv_gib": 1}, "weights_gib": 5}, "weights_gib: has no effect with memory;"),
        ({"memory_gib": 5, "available_kv_bytes": 5}, "available_kv_bytes: has no effect with memory_gib"),
        (
            {"memory": {"weights_gib": 1, "other_gib": 1}, "overheads": {"inside_gib": 1}},
            "no effect with memory.other_gib",
        ),
    ],
)
def test_statements_are_checked(statements: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        plan({}, config=NEW, **statements)
