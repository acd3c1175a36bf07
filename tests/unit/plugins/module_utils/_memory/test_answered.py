"""Services planned by what the vLLM of their image said, and by what a person says: recorded answers of real vLLM against the arithmetic."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
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
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import Refusal

ROOT = Path(__file__).parents[5]
RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "image_plans.json").read_text(encoding="utf-8"))
DENSE_ARGS = {"max-model-len": 16384, "max-num-seqs": 4, "max-num-batched-tokens": 8192}
HYBRID_ARGS = {
    **{"max-model-len": 65536, "max-num-seqs": 4, "max-num-batched-tokens": 8192, "kv-cache-dtype": "fp8"},
    **{"enable-prefix-caching": True, "speculative-config": {"method": "mtp", "num_speculative_tokens": 3}},
}
NEW = {"model_type": "of_next_year", "vision_config": None}
# What of a service is not asked of an image, or is said in other words.
OTHER_WORDS = ("sources", "kv_groups", "page_size_bytes", "kv_cache_dtype", "load_peak_bytes", "host_bytes")


def config(recipe: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / f"playbooks/recipes/{recipe}.yml").read_text(encoding="utf-8"))
    return dict(found["config"])


def plan(args: dict[str, Any], **service: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = memory_budget({"services": [{"name": "x", "vllm_version": "0.33.0", "args": args, **service}]})
    return found["services"]["x"], found["findings"]


def said(name: str, **change: Any) -> dict[str, Any]:
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
    answer = said(name)
    if "enforce-eager" in more:
        answer["answer"]["resolved"].update(cudagraph_mode="NONE", cudagraph_sizes=0)
    own, _findings = plan(args, config=unquantised(recipe))
    request.getfixturevalue("hidden")
    refused, findings = plan(args, config=unquantised(recipe))
    assert refused == {"verdict": "fails"} and "memory.refused" in rules(findings)
    found, findings = plan(args, config=unquantised(recipe), image_plan=answer)
    assert own["sources"] == {"weights": "arithmetic, compared", "kv_cache": "arithmetic, compared"}
    assert found["sources"] == {"weights": "image", "kv_cache": "image"} and found["exact"]
    assert "config.model_type: the family is not known" in rules(findings)["memory.image"]
    # Longer ones were not asked about.
    assert found["largest_safe_max_model_len"] == min(own["largest_safe_max_model_len"], args["max-model-len"])
    # The weights of vLLM's own classes are known to the byte, and the arithmetic to 0.002 %.
    near = {"weights_bytes", "draft_bytes", "vision_bytes", "available_kv_bytes", "largest_safe_max_model_len"}
    for key in set(own) - set(OTHER_WORDS) - near:
        assert (key, found[key]) == (key, own[key])
    for key in ("weights_bytes", "draft_bytes", "vision_bytes", "available_kv_bytes"):
        assert found[key] == pytest.approx(own[key], rel=2e-4), key
    assert [each["layers"] for each in found["kv_groups"]] == [each["layers"] for each in own["kv_groups"]]


@pytest.mark.parametrize("name", CASES)
def test_an_answer_that_does_not_say_how_wide_a_model_is_has_a_wide_range(name: str, request: Any) -> None:
    recipe, args = CASES[name]
    own, _findings = plan(args, config=unquantised(recipe))
    request.getfixturevalue("hidden")
    answer = said(name)
    del answer["answer"]["resolved"]["widths"]
    found, _findings = plan(args, config=NEW, image_plan=answer)
    assert found["overhead_gib"]["low"] <= own["overhead_gib"]["low"]
    assert found["overhead_gib"]["high"] >= own["overhead_gib"]["typical"]
    assert found["model_runner"] == 2 and found["overhead_gib"]["high"] > 3 * found["overhead_gib"]["typical"] / 2


def test_sizes_of_a_rank_are_those_of_the_model_divided() -> None:
    """What a rank of two says of its layers makes the same layers as one of one."""

    def layers(name: str, ranks: int) -> Any:
        answer = said(name)["answer"]
        answer["resolved"]["tensor_parallel"] = ranks
        for spec in answer["ranks"][0]["specs"] if ranks > 1 else ():
            if "shapes" in spec:  # conv_dim and heads are divided
                (taps, channels), (heads, *rest) = spec["shapes"]
                spec["shapes"] = [[taps, channels // ranks], [heads // ranks, *rest]]
            else:
                spec["num_kv_heads"] //= ranks
        made = answered.shapes(image_answer.read(answer), {})
        assert made is not None
        return made[1].layers

    for name in CASES:
        assert layers(name, 1) == layers(name, 2)
    mla = said("dense")["answer"]
    mla["ranks"][0]["specs"][0] |= {
        "kind": "MLAAttentionSpec",
        "num_kv_heads": 1,
        "head_size": 576,
        "head_size_v": None,
    }
    mla["resolved"]["tensor_parallel"] = 4
    made = answered.shapes(image_answer.read(mla), {})
    assert made is not None and (made[1].layers[0].kv_heads, made[1].layers[0].head_dim_v) == (1, 0)  # type: ignore[union-attr]
    assert len(made[1].layers) == 36


def test_a_runner_that_differs_is_said_where_the_image_had_triton() -> None:
    own = config("qwen3-4b-instruct-2507")
    answer = said("dense")
    answer["answer"]["resolved"]["runner"] = "v1"
    found, findings = plan(DENSE_ARGS, config=own, image_plan=answer)
    assert "model runner 2 and 1" in rules(findings)["memory.differs"] and found["model_runner"] == 2
    answer["answer"]["triton"] = False
    _found, findings = plan(DENSE_ARGS, config=own, image_plan=answer)
    assert "memory.differs" not in rules(findings)


def test_a_request_that_windows_rule_is_said_to_be_ruled_by_the_batch(hidden: None) -> None:
    answer = said("dense")
    for each in answer["answer"]["sizes"]:
        (group,) = each["groups"]
        window = {**group, "kind": "SlidingWindowSpec", "sliding_window": 4096, "block": 4}
        each["groups"] = [group, window]
        each.update(blocks=each["blocks"], concurrency=each["blocks"] / 5120, needed=5120 * each["bytes_per_block"])
        each["tokens"] = int(each["concurrency"] * 16384)
    made = answered.kv_plan(image_answer.read(answer["answer"]), "", True)
    assert made.blocks_per_request(16384) == 5120 and made.ruled_by_batch(16384) and made.largest_batch(1, 16384) == 0
    args = {**DENSE_ARGS, "gpu-memory-utilization": 0.13}
    _found, findings = plan(args, config=NEW, image_plan=answer)
    assert "Most of that is for max-num-batched-tokens, 8192" in rules(findings)["memory.one_request"]
    plain = answered.kv_plan(image_answer.read(said("dense")["answer"]), "", True)
    assert not plain.ruled_by_batch(16384)


@pytest.mark.parametrize("name", CASES)
def test_blocks_tokens_and_requests_of_a_given_cache_are_those_of_the_arithmetic(name: str, request: Any) -> None:
    recipe, args = CASES[name]
    size = 41 * 2**30 + 12345
    given = {"config": unquantised(recipe), "available_kv_bytes": size}
    own, _findings = plan({**args, "gpu-memory-utilization": 0.9}, **given)
    request.getfixturevalue("hidden")
    found, _findings = plan({**args, "gpu-memory-utilization": 0.9}, **given, image_plan=said(name))
    keys = ("num_blocks", "gpu_kv_cache_size_tokens", "max_concurrency", "needed_bytes_one_request", "block_size")
    assert [found[key] for key in keys] == [own[key] for key in keys]


@pytest.mark.parametrize("name", CASES)
def test_shorter_requests_are_never_priced_below_the_arithmetic(name: str) -> None:
    recipe, args = CASES[name]
    items = service_input.read_params(
        {"services": [{"name": "x", "config": unquantised(recipe), "vllm_version": "0.33.0", "args": args}]}
    )[1]
    own = service_memory.resolve(items[0]).plan
    found = answered.kv_plan(image_answer.read(RECORDED[name]["answer"]), "", True)
    assert own is not None and found.longest == args["max-model-len"]
    for length in (1, 16, 17, 1000, 2176, 2177, 16000, found.longest):
        if length <= found.longest:
            assert found.needed_bytes(length) == own.needed_bytes(length)
            assert found.available_for(3, length) == own.available_for(3, length)
    with pytest.raises(ValueError, match="was asked about"):
        found.needed_bytes(found.longest + 1)
    # Where other options change what a block holds, nothing is cheaper than what was asked about.
    whole = answered.kv_plan(image_answer.read(RECORDED[name]["answer"]), "", False)
    assert whole.needed_bytes(1) == whole.needed_bytes(whole.longest) == own.needed_bytes(whole.longest)


def test_compressed_caches_are_not_taken_to_follow_the_length() -> None:
    answer = said("dense")["answer"]
    for each in answer["sizes"]:
        each["groups"][0] |= {"kind": "MLAAttentionSpec", "compress_ratio": 4}
    found = answered.kv_plan(image_answer.read(answer), "", True)
    assert found.linear == () and found.needed_bytes(16) == found.needed_bytes(16384)


def test_an_image_that_was_asked_in_vain_leaves_the_refusal_with_its_reason(hidden: None) -> None:
    own = config("qwen3-4b-instruct-2507")
    reason = "no answer within 300 seconds and 4 GiB of memory"
    found, findings = plan(DENSE_ARGS, config=own, image_plan={"answer": None, "reason": reason})
    assert found == {"verdict": "fails"} and reason in rules(findings)["memory.refused"]
    failure = {"stage": "import", "kind": "unknown", "type": "ImportError", "text": "libcuda.so.1"}
    _found, findings = plan(DENSE_ARGS, config=own, image_plan=said("dense", failure=failure, ranks=[], sizes=[]))
    assert "gives no plan (import: libcuda.so.1)" in rules(findings)["memory.refused"]


def test_a_refusal_of_vllm_in_the_image_is_an_error_in_its_own_words(hidden: None) -> None:
    found, findings = plan(DENSE_ARGS, config=NEW, image_plan=said("refused"))
    assert found == {"verdict": "fails"}
    (finding,) = findings
    assert finding["rule"] == "memory.refused" and "vLLM 0.33.0 refuses the launch" in finding["message"]
    assert "QwenOfNextYearForCausalLM" in finding["vllm_error"]


def test_a_version_that_was_not_compared_is_planned_by_its_image() -> None:
    own, args = config("qwen3-4b-instruct-2507"), DENSE_ARGS
    plain, _findings = plan(args, config=own, vllm_version="0.32.1.dev1")
    assert plain["sources"]["kv_cache"] == "arithmetic, not compared" and not plain["exact"]
    found, findings = plan(args, config=own, vllm_version="0.32.1.dev1", image_plan=said("dense"))
    assert found["sources"] == {"weights": "image", "kv_cache": "image"} and found["exact"]
    assert "memory.version" not in rules(findings) and "memory.differs" not in rules(findings)


def test_where_both_plan_a_difference_is_said_and_names_both() -> None:
    own = config("qwen3-4b-instruct-2507")
    _found, findings = plan(DENSE_ARGS, config=own, image_plan=said("dense"))
    assert "memory.differs" not in rules(findings)
    other = said("dense")
    for each in other["answer"]["sizes"]:
        each["block_size"] = 32
    found, findings = plan(DENSE_ARGS, config=own, image_plan=other)
    assert "tokens of a block 16 and 32" in rules(findings)["memory.differs"]
    assert "those of the arithmetic" in rules(findings)["memory.differs"] and found["block_size"] == 16
    found, findings = plan(DENSE_ARGS, config=own, image_plan=other, vllm_version="0.32.1.dev1")
    assert "those of the image" in rules(findings)["memory.differs"] and found["block_size"] == 32
    _found, findings = plan(DENSE_ARGS, config=own, image_plan=said("refused"))
    assert "the image refuses the launch" in rules(findings)["memory.differs"]


def test_no_fix_rests_on_an_answer_about_other_arguments(hidden: None) -> None:
    args = {**DENSE_ARGS, "gpu-memory-utilization": 0.08}
    _found, findings = plan(args, config=config("qwen3-4b-instruct-2507"), image_plan=said("dense"))
    (finding,) = (each for each in findings if each["severity"] == "error")
    assert {key for change in finding["changes"] for key in change["args"]} <= set(service_input.ANSWERED_ARGS)
    assert "Set gpu-memory-utilization of x to" in finding["fix"]


def test_a_context_above_the_one_that_was_asked_about_is_not_planned(hidden: None) -> None:
    args = {**DENSE_ARGS, "max-model-len": 32768}
    _found, findings = plan(args, config=NEW, image_plan=said("dense"))
    assert "asked about 16384 tokens, not 32768" in rules(findings)["memory.refused"]


def test_blocks_that_do_not_follow_from_the_memory_are_no_plan(hidden: None) -> None:
    other = said("dense")
    other["answer"]["sizes"][0]["blocks"] -= 4
    other["answer"]["sizes"][0]["concurrency"] = other["answer"]["sizes"][0]["blocks"] / 1024
    _found, findings = plan(DENSE_ARGS, config=NEW, image_plan=other)
    assert "do not follow from the memory" in rules(findings)["memory.refused"]


def test_an_answer_that_cannot_be_right_is_malformed_input() -> None:
    with pytest.raises(InputError, match=r"image_plan\.answer"):
        plan(DENSE_ARGS, config=NEW, image_plan=said("dense", ranks=[]))
    with pytest.raises(InputError, match=r"image_plan\.reason"):
        plan(DENSE_ARGS, config=NEW, image_plan={"answer": None, "reason": 5})


# What a person says -------------------------------------------------------------------------------------------------


def test_the_fix_of_a_refusal_exists_and_plans(hidden: None) -> None:
    _found, findings = plan({}, config=NEW)
    assert "memory_gib" in findings[0]["fix"]
    found, findings = plan({}, config=NEW, memory_gib=40)
    assert found["verdict"] == "fits" and found["sources"] == {"weights": "stated", "kv_cache": "stated"}
    assert found["gpu_memory_utilization"] == 0.34 and found["solved"] == ["gpu-memory-utilization"]
    assert found["requested_bytes"] >= 40 * 2**30
    assert [(each["rule"], each["severity"]) for each in findings] == [("memory.stated", "warning")]
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
    # Left out, the rest is estimated as that of any engine, and counts.
    less = memory_budget({"services": [{"name": "x", "config": NEW, "memory": {"weights_gib": 20, "kv_gib": 10}}]})
    assert 30 * 2**30 < less["services"]["x"]["requested_bytes"] < 33 * 2**30


def test_a_statement_and_a_utilisation_must_agree() -> None:
    _found, findings = plan({"gpu-memory-utilization": 0.2}, config=NEW, memory_gib=40)
    assert [(each["rule"], each["severity"]) for each in findings] == [("memory.stated", "error")]
    assert "to 0.34" in findings[0]["fix"]
    _found, findings = plan({"gpu-memory-utilization": 0.34}, config=NEW, memory_gib=40)
    assert [each["severity"] for each in findings] == ["warning"]
    _found, findings = plan({"gpu-memory-utilization": 0.5}, config=NEW, memory={"weights_gib": 20})
    assert [each["severity"] for each in findings] == ["warning"]
    _found, findings = plan({}, config=NEW, memory={"weights_gib": 20})
    assert "memory.kv_gib" in rules(findings)["memory.refused"]


def test_two_engines_that_are_stated_must_fit_together() -> None:
    services = [{"name": name, "config": NEW, "memory_gib": 70} for name in ("a", "b")]
    assert memory_budget({"services": services})["verdict"] == "fails"
    assert memory_budget({"services": services[:1]})["verdict"] == "fits"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"memory_gib": 5, "memory": {"weights_gib": 1}}, "stands beside memory"),
        ({"memory": {"kv_gib": 1}}, "memory.weights_gib: is missing"),
        ({"memory": {"weights_gib": -1}}, "must be at least 0"),
        ({"memory": {"weights_gib": 1, "other": 1}}, "memory.other: unknown key"),
        ({"memory": 5}, "expected a mapping"),
        ({"memory": {"weights_gib": 1, "kv_gib": 1}, "weights_gib": 5}, "weights_gib: does not count beside memory;"),
        ({"memory_gib": 5, "available_kv_bytes": 5}, "available_kv_bytes: does not count beside memory_gib"),
        ({"memory": {"weights_gib": 1, "other_gib": 1}, "overheads": {"inside_gib": 1}}, "beside memory.other_gib"),
    ],
)
def test_statements_are_checked(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        plan({}, config=NEW, **given)
