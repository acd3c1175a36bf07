"""The command line of vllm serve, read as vLLM reads it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.launch import (
    human_int,
    long_name,
    parse,
    render,
    service_keys,
)


def kinds(line: str, version: str = "0.19.0") -> list[str]:
    return [problem.kind for problem in parse(line.split(), version).problems]


# Observed results of the real parser on 0.15.1, 0.19.0, 0.23.0 and 0.33.0.
@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("M --gpu-memory-util 0.8", {"gpu-memory-utilization": 0.8}),
        ("M --gpu_memory_utilization 0.8", {"gpu-memory-utilization": 0.8}),
        ("M --gpu_memory_utilization=0.8", {"gpu-memory-utilization": 0.8}),
        (
            "M -tp 2 -pp 3 -dp 4 -n 5 -r 1",
            {
                "tensor-parallel-size": 2,
                "pipeline-parallel-size": 3,
                "data-parallel-size": 4,
                "nnodes": 5,
                "node-rank": 1,
            },
        ),
        ("M -O3", {"optimization-level": "3"}),
        ("M -O=2", {"optimization-level": "2"}),
        ("M -O 1", {"optimization-level": "1"}),
        ("M --compilation-config.mode 3", {"compilation-config": {"mode": 3}}),
        (
            "M -cc.pass_config.fuse_norm=true -cc.mode 3",
            {"compilation-config": {"pass_config": {"fuse_norm": True}, "mode": 3}},
        ),
        (
            "M --compilation-config.custom_ops+ none,+rms_norm",
            {"compilation-config": {"custom_ops": ["none", "+rms_norm"]}},
        ),
        ("M --max-model-len 64k", {"max-model-len": 64000}),
        ("M --max-model-len 64K", {"max-model-len": 65536}),
        ("M --max-model-len auto", {"max-model-len": "auto"}),
        ("M --max-model-len -1", {"max-model-len": "auto"}),
        ("M --enforce-eager", {"enforce-eager": True}),
        ("M --no-enable-prefix-caching", {"enable-prefix-caching": False}),
        ("M --no_enable_prefix_caching", {"enable-prefix-caching": False}),
        ("M --served-model-name a b --seed 1", {"served-model-name": ["a", "b"], "seed": 1}),
        ("M --hf-token --seed 1", {"hf-token": True, "seed": 1}),
        ("M --middleware a.b --middleware c.d", {"middleware": ["a.b", "c.d"]}),
        ("M --seed 1 --seed 2", {"seed": 2}),
        ('M --speculative-config {"method":"mtp"}', {"speculative-config": {"method": "mtp"}}),
        ("M --kv-cache-memory-bytes 8G", {"kv-cache-memory-bytes": 8 * 2**30}),
    ],
)
def test_accepted(line: str, args: dict[str, Any]) -> None:
    parsed = parse(line.split(), "0.19.0")
    assert (parsed.model, parsed.args, parsed.problems) == ("M", args, [])


@pytest.mark.parametrize(
    ("line", "version", "kind"),
    [
        ("M --enforce-eager true", "0.19.0", "value_to_switch"),
        ("M --enforce-eager=true", "0.19.0", "value_to_switch"),
        ("M --max-num 3", "0.19.0", "ambiguous"),
        ("M --max-modle-len 3", "0.19.0", "unknown"),
        ("M --disable-prefix-caching", "0.32.0", "unknown"),
        ("M --attention-backend x", "0.12.0", "unknown"),
        ("M --swap-space 4", "0.18.0", "unknown"),
        ("M -tq 2", "0.19.0", "unknown"),
        ("M --no-headless", "0.19.0", "unknown"),
        ("M --max-model-len", "0.19.0", "no_value"),
        ("M --max-model-len --seed 1", "0.19.0", "no_value"),
        ("M --max-num-seqs 4.5", "0.19.0", "bad_value"),
        ("M --max-model-len 1.5K", "0.19.0", "bad_value"),
        ("M --speculative-config {method:mtp}", "0.19.0", "bad_value"),
        ("M --max-num-seqs.x 4", "0.19.0", "unknown"),
        ("M N", "0.19.0", "extra_word"),
        ("vllm serve vllm serve M", "0.19.0", "doubled"),
        ("--model M", "0.19.0", "model_option"),
        ("M --moe-backend merlin", "0.33.0", "bad_choice"),
    ],
)
def test_refused(line: str, version: str, kind: str) -> None:
    assert kinds(line, version) == [kind]


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("M --disable-prefix-caching", "0.33.0"),
        ("M --disable-log-requests", "0.33.0"),
        ("M --disable-log-requests", "0.16.0"),
        ("M --swap-space 4", "0.17.1"),
        ("M --attention-backend x", "0.13.0"),
        ("M --moe-backend Marlin", "0.33.0"),
        ("M --moe-backend marlin", "0.17.0"),
        ("M --nnodes 2", "0.11.1"),
        ("vllm serve M", "0.19.0"),
    ],
)
def test_accepted_by_version(line: str, version: str) -> None:
    assert kinds(line, version) == []


def test_unknown_option_names_its_versions_or_the_nearest() -> None:
    (gone,) = parse(["M", "--swap_space", "4"], "0.19.0").problems
    assert "removed in 0.18.0" in gone.detail and gone.vllm_error == "unrecognized arguments: --swap-space"
    (typo,) = parse(["M", "--max-modle-len", "4"], "0.19.0").problems
    assert typo.fix == "Did you mean --max-model-len?"
    (pair,) = parse(["M", "--disable-prefix-caching"], "0.19.0").problems
    assert pair.fix == "Did you mean --no-enable-prefix-caching?"


def test_every_problem_is_told_and_the_rest_is_read() -> None:
    parsed = parse(
        ["M", "--swap-space", "4", "--enforce-eager", "true", "--seed", "3", "--max-num-seqs", "x"], "0.19.0"
    )
    assert [problem.kind for problem in parsed.problems] == ["unknown", "value_to_switch", "bad_value"]
    assert parsed.args == {"swap-space": "4", "enforce-eager": True, "seed": 3}


def test_model_is_found_wherever_it_stands() -> None:
    assert parse(["--enforce-eager", "M"]).model == "M"
    assert parse(["--seed", "1", "M"]).model == "M"
    assert parse(["--model=M", "--seed", "1"]).model == "M"
    assert "model" not in parse(["--model", "M"]).args


@pytest.mark.parametrize(
    ("written", "args"),
    [
        ({"tp": 2}, {"tensor-parallel-size": 2}),
        ({"-tp": "2"}, {"tensor-parallel-size": 2}),
        ({"--max_model_len": "64K"}, {"max-model-len": 65536}),
        ({"enable-prefix-caching": False}, {"enable-prefix-caching": False}),
        ({"no-enable-prefix-caching": True}, {"enable-prefix-caching": False}),
        ({"enforce-eager": "True"}, {"enforce-eager": True}),
        ({"headless": False}, {}),
        ({"seed": None}, {}),
        ({"speculative-config": '{"method": "mtp"}'}, {"speculative-config": {"method": "mtp"}}),
        (
            {"speculative-config": {"method": "mtp"}, "speculative-config.num_speculative_tokens": 2},
            {"speculative-config": {"method": "mtp", "num_speculative_tokens": 2}},
        ),
        ({"served-model-name": "a"}, {"served-model-name": ["a"]}),
        (
            {"quantization": "fp8", "gpu-memory-utilization": "0.80"},
            {"quantization": "fp8", "gpu-memory-utilization": 0.8},
        ),
    ],
)
def test_mapping(written: dict[str, Any], args: dict[str, Any]) -> None:
    parsed = parse(written, "0.19.0")
    assert (parsed.args, parsed.problems) == (args, [])


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ({"enforce-eager": 1}, "value_to_switch"),
        ({"max-model-len": True}, "no_value"),
        ({"swap-space": 4}, "unknown"),
        ({"max-num-seqs": {"a": 1}}, "bad_value"),
        ({"hf-overrides": "m:f", "hf-overrides.x": 1}, "bad_value"),
    ],
)
def test_mapping_refused(written: dict[str, Any], kind: str) -> None:
    assert [problem.kind for problem in parse(written, "0.19.0").problems] == [kind]


def test_parsing_leaves_its_input_alone() -> None:
    launch = {"speculative-config": {"method": "mtp"}, "speculative-config.x": 1}
    parse(launch)
    assert launch == {"speculative-config": {"method": "mtp"}, "speculative-config.x": 1}


def test_what_is_no_launch() -> None:
    with pytest.raises(TypeError):
        parse("vllm serve M")
    with pytest.raises(ValueError, match="nightly"):
        parse([], "nightly")


def test_render() -> None:
    assert render(
        {
            "trust-remote-code": True,
            "enable-prefix-caching": False,
            "seed": None,
            "served-model-name": ["a", "b c"],
            "speculative-config": {"num_speculative_tokens": 2, "method": "mtp"},
            "gpu-memory-utilization": 0.8,
            "middleware": ["x.y", "z.z"],
            "max-model-len": "auto",
        }
    ) == [
        "--no-enable-prefix-caching",
        "--gpu-memory-utilization",
        "0.8",
        "--max-model-len",
        "auto",
        "--middleware",
        "x.y",
        "--middleware",
        "z.z",
        "--served-model-name",
        "a",
        "b c",
        "--speculative-config",
        '{"method":"mtp","num_speculative_tokens":2}',
        "--trust-remote-code",
    ]


def test_render_does_not_depend_on_the_order_of_its_input() -> None:
    args = {"seed": 1, "dtype": "auto", "compilation-config": {"b": 1, "a": {"d": 1, "c": 2}}}
    assert render(args) == render(dict(reversed(args.items())))


def sample(option: catalogue.Option, draw: random.Random) -> Any:
    value: Any = {
        "flag": True,
        "switch": draw.random() < 0.5,
        "int": draw.randrange(100),
        "float": draw.randrange(1, 9) / 8,
        "size": draw.randrange(1, 10**6),
        "size-auto": draw.choice(["auto", 4096]),
        "json": {"key": draw.randrange(9), "list": ["a", 1], "nested": {"x": None}},
        "text": draw.choice(option.choices) if option.choices else draw.choice(["a", "b c", "x=y", "a.b"]),
    }[option.kind]
    return [value] if option.values in ("+", "*") else value


@pytest.mark.parametrize("seed", range(20))
def test_rendered_arguments_read_back_the_same(seed: int) -> None:
    draw = random.Random(seed)
    options = [option for name, option in sorted(catalogue.options().items()) if name not in ("model", "config")]
    args = {option.name: sample(option, draw) for option in draw.sample(options, 40)}
    parsed = parse(["M", *render(args)])
    assert (parsed.args, parsed.problems) == (args, [])
    assert parse(args).args == args


def test_every_option_is_found_by_each_of_its_names() -> None:
    for option in catalogue.options().values():
        assert all(long_name(name) == option.name for name in (option.name, *option.aliases)), option


@pytest.mark.parametrize(
    ("name", "long"),
    [
        ("--gpu_memory_util", "gpu-memory-utilization"),
        ("tp", "tensor-parallel-size"),
        ("no-such", "no-such"),
        ("max-num", "max-num"),
        ("speculative-config", "speculative-config"),
    ],
)
def test_long_name(name: str, long: str) -> None:
    assert long_name(name) == long


def test_keys_of_the_service() -> None:
    problems = service_keys({"host": "x", "served-model-name": "y", "seed": 1})
    assert [problem.option for problem in problems] == ["host", "served-model-name"]
    assert "'served_model_name'" in problems[1].fix


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("64k", 64000),
        ("64K", 65536),
        ("1.5k", 1500),
        ("2M", 2**21),
        ("3g", 3 * 10**9),
        ("7", 7),
        ("1T", 2**40),
    ],
)
def test_human_int(text: str, number: int) -> None:
    assert human_int(text) == number


def test_json_is_compact_and_sorted() -> None:
    text = render({"speculative-config": {"b": [1, 2], "a": "ü"}})[1]
    assert json.loads(text) == {"a": "ü", "b": [1, 2]} and " " not in text


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.11.0", {"compilation-config": {"level": 3}}), ("0.19.0", {"optimization-level": "3"})],
)
def test_a_level_as_a_key_is_a_level_as_typed(version: str, expected: Any) -> None:
    for key in ("O", "-O"):
        assert parse({key: 3}, version).args == parse(["M", "-O3"], version).args == expected
