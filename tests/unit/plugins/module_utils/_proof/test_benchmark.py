"""Settings, workloads, options of vllm bench serve, and the rows that follow from its results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import nvidia_smi
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import benchmark

FIXTURES = Path(__file__).parents[2] / "fixtures" / "bench"
ROOT = Path(__file__).parents[5]


# --- settings ---


def test_settings_are_filled_in() -> None:
    settings, messages = benchmark.read("host spark-1", None)
    assert messages == []
    assert settings == {name: key.default for name, key in benchmark.KEYS.items()}


@pytest.mark.parametrize(
    ("spark_bench", "message"),
    [
        ({"promt_tokens": [512]}, "did you mean 'prompt_tokens'?"),
        ({"prompt_tokens": 512}, "'prompt_tokens' is a number; it must be a list"),
        ({"prompt_tokens": []}, "'prompt_tokens' is empty"),
        ({"prompt_tokens": [512, "8k"]}, "'prompt_tokens' contains '8k'"),
        ({"concurrency": [1]}, "'concurrency' contains 1; its entries are whole numbers from 2"),
        ({"contents": ["prose"]}, "'contents' has 'prose'; its entries are medium, long, code, reasoning"),
        ({"request_rates": [0]}, "'request_rates' contains 0; its entries are numbers above 0"),
        ({"request_rates": [True]}, "'request_rates' contains True"),
        ({"output_tokens": 4}, "'output_tokens' is 4; it must be a whole number, 16 or more"),
        ({"warmup": 0}, "'warmup' is 0; it must be a whole number, 1 or more"),
        ({"regression_percent": 100}, "must lie between 0 and 100"),
        ({"disturb": "perhaps"}, "'disturb' is a text; it must be a boolean"),
        ("fast", "'spark_bench' must be a mapping"),
    ],
)
def test_wrong_settings_are_named_with_the_fix(spark_bench: Any, message: str) -> None:
    _settings, messages = benchmark.read("host spark-1", spark_bench)
    assert len(messages) == 1 and message in messages[0] and messages[0].startswith("host spark-1, spark_bench: "), (
        messages
    )


def test_what_the_command_line_hands_over() -> None:
    settings, messages = benchmark.read("h", {"disturb": "true", "prompt_tokens": [4096, 512, 512]})
    assert messages == [] and settings["disturb"] is True and settings["prompt_tokens"] == [512, 4096]
    assert benchmark.names("heavy, fast,") == ["heavy", "fast"] and benchmark.names(["heavy"]) == ["heavy"]
    assert benchmark.names("") == benchmark.names(None) == []


# --- workloads ---


def test_lengths_that_fit_into_the_context() -> None:
    settings, _messages = benchmark.read("h", {"prompt_tokens": [512, 4096, 16384], "output_tokens": 256})
    assert benchmark.prompt_lengths(settings, 131072) == ([512, 4096, 16384], [])
    assert benchmark.prompt_lengths(settings, 8192) == ([512, 4096], [16384])
    assert benchmark.prompt_lengths(settings, None) == ([512, 4096, 16384], [])
    fitting, too_long = benchmark.prompt_lengths(settings, 512)
    assert too_long == [512, 4096, 16384] and len(fitting) == 1 and fitting[0] * 1.05 + 256 + benchmark.MARGIN <= 512
    assert benchmark.prompt_lengths(settings, 300) == ([], [512, 4096, 16384])


def settings(**values: Any) -> dict[str, Any]:
    return benchmark.read("h", values)[0]


def test_the_runs_of_a_measurement() -> None:
    runs, left_out = benchmark.workloads(settings(contents=["code"], request_rates=[4], rate_requests=50), 131072)
    assert left_out == []
    assert [(run.part, run.label, run.requests, run.warmup) for run in runs] == [
        ("single", "prompt 512", 3, 1),
        ("single", "prompt 4096", 3, 1),
        ("single", "prompt 16384", 3, 1),
        ("contents", "content code", 3, 1),
        ("prefix_cache", "shared prefix of 8192", 4, 0),
        ("concurrency", "2 at once", 4, 2),
        ("concurrency", "4 at once", 8, 4),
        ("concurrency", "16 at once", 32, 16),
        ("request_rates", "4 a second", 50, 4),
    ]
    assert [run.prompt_tokens for run in runs[5:]] == [512] * 4 and all(run.output_tokens for run in runs)


def test_runs_that_do_not_fit_into_the_context_are_left_out() -> None:
    runs, left_out = benchmark.workloads(settings(contents=["long", "code"], concurrency=[]), 600)
    assert [run.part for run in runs] == ["single", "contents"] and runs[1].content == "code"
    assert left_out == [
        *(f"prompts of {length} tokens: the context is 600" for length in (512, 4096, 16384)),
        "content long: the context is 600",
        "a shared prefix of 8192 tokens: the context is 600",
    ]
    assert benchmark.workloads(settings(prefix_tokens=0), 300)[0] == []
    assert benchmark.workloads(settings(), None)[1] == []


def test_no_more_requests_than_begin_in_half_of_the_time() -> None:
    assert benchmark.requests_in(4.0, 100, 600) == 100
    assert benchmark.requests_in(0.1, 100, 600) == 30
    assert benchmark.requests_in(0.001, 100, 60) == 1


SINGLE = benchmark.Workload("single", "prompt 512", 512, 256, 3, 1)
LOAD = benchmark.Workload("concurrency", "4 at once", 512, 256, 8, 4, level=4)
RATE = benchmark.Workload("request_rates", "4 a second", 1024, 256, 100, 4, rate=4.0)
CONTENT = benchmark.Workload("contents", "content code", 0, 300, 2, 1, content="code")
PREFIX = benchmark.Workload("prefix_cache", "shared prefix of 8192", 8192, 64, 4)


def test_the_request_for_a_content() -> None:
    first, options = benchmark.dataset(CONTENT, "0a1b")
    prompts = [entry["conversations"][0]["value"] for entry in json.loads(first)]
    assert len(prompts) == 3 and len({prompt[:12] for prompt in prompts}) == 3 and "interval tree" in prompts[0]
    assert options == ["--dataset-name", "sharegpt", "--sharegpt-output-len", "300"]


def test_random_prompts() -> None:
    for workload in (SINGLE, LOAD, RATE):
        text, options = benchmark.dataset(workload, "0a1b")
        assert text == "" and "--random-prefix-len" not in options
        assert ("--random-input-len", str(workload.prompt_tokens)) in pairs(options)
    assert ("--random-prefix-len", "8192") in pairs(benchmark.dataset(PREFIX, "0a1b")[1])


def pairs(options: list[str]) -> set[tuple[str, str]]:
    return set(zip(options, options[1:]))


def serve_options(workload: benchmark.Workload, api: str = "chat", **more: Any) -> list[str]:
    values = {"thinking": None, "seed": 77, "args": {}, **more}
    return benchmark.serve_options(workload, "http://127.0.0.1:8001", "heavy", api, **values)


def test_single_requests_are_recorded_one_by_one() -> None:
    options = serve_options(SINGLE, thinking=False)
    assert {("--max-concurrency", "1"), ("--num-prompts", "4"), ("--backend", "openai-chat")} <= pairs(options)
    assert "--save-detailed" in options and "--ignore-eos" in options and "--num-warmups" not in options
    kwargs = {"enable_thinking": False, "thinking": False}
    assert json.loads(options[options.index("--extra-body") + 1]) == {"chat_template_kwargs": kwargs}
    assert ("--backend", "openai") in pairs(serve_options(SINGLE, "completions", thinking=False))
    assert "--extra-body" not in serve_options(SINGLE, "completions", thinking=False)


def test_load_is_put_on_plain_completions() -> None:
    options = serve_options(LOAD, args={"tokenizer-mode": "mistral", "trust-remote-code": True})
    assert {("--max-concurrency", "4"), ("--num-prompts", "8"), ("--num-warmups", "4"), ("--seed", "77")} <= pairs(
        options
    )
    assert ("--endpoint", "/v1/completions") in pairs(options) and "--save-detailed" not in options
    assert ("--tokenizer-mode", "mistral") in pairs(options) and options[-1] == "--trust-remote-code"
    assert "--request-rate" not in options
    options = serve_options(RATE)
    assert {("--request-rate", "4"), ("--num-prompts", "100")} <= pairs(options) and "--max-concurrency" not in options


# --- rows ---


def detailed(answers: list[tuple[int, float, list[float]]], **more: Any) -> dict[str, Any]:
    """Return a result: tokens, seconds to the first one and gaps of each request."""
    return {
        "completed": len(answers),
        "num_prompts": len(answers),
        "input_lens": [515] * len(answers),
        "output_lens": [tokens for tokens, _ttft, _gaps in answers],
        "ttfts": [ttft for _tokens, ttft, _gaps in answers],
        "itls": [gaps for _tokens, _ttft, gaps in answers],
        "errors": [""] * len(answers),
        **more,
    }


SEEN = {"disturbed": False, "cached_share": 0.02, "draft_acceptance": None, "tokens_per_step": None, "preemptions": 0.0}


def test_a_row_has_the_median_and_how_far_it_scatters() -> None:
    """The first answer is the warm-up. Decode: tokens after the first arrival by the time to the last."""
    answers = [(11, 9.0, [9.0]), (11, 0.5, [0.1] * 10), (11, 0.25, [0.125] * 10), (11, 0.5, [0.05] * 9 + [0.35])]
    row = benchmark.row(SINGLE, detailed(answers), SEEN)
    assert row["decode_tokens_per_second"] == {"median": 10.0, "low": 8.0, "high": 12.5}
    assert row["prefill_tokens_per_second"] == {"median": 1030.0, "low": 1030.0, "high": 2060.0}
    assert row["ttft_seconds"] == {"median": 0.5, "low": 0.25, "high": 0.5}
    assert (row["prompt_tokens"], row["prompt_tokens_measured"], row["output_tokens"]) == (512, 515, 11)
    assert (row["repeats"], row["short"], row["disturbed"], row["cached_share"]) == (3, 3, 0, 0.02)
    assert row["inter_token_ms"]["median"] == 100.0 and row["tokens_per_arrival"] == 1.0


def test_a_drafter_brings_several_tokens_at_once() -> None:
    row = benchmark.row(
        SINGLE, detailed([(33, 1.0, [0.2] * 10)] * 2), {**SEEN, "draft_acceptance": 0.8, "tokens_per_step": 3.4}
    )
    assert row["decode_tokens_per_second"]["median"] == 16.0 and row["tokens_per_arrival"] == 3.0
    assert (row["draft_acceptance"], row["tokens_per_step"]) == (0.8, 3.4)


def test_the_percentiles_are_those_of_numpy() -> None:
    row = benchmark.row(SINGLE, detailed([(5, 1.0, [0.003, 0.001, 0.002, 0.010])] * 2), SEEN)
    assert row["inter_token_ms"] == {"median": 2.5, "p95": 8.95}


def test_failed_requests_are_no_answers() -> None:
    result = detailed(
        [(11, 9.0, [9.0]), (0, 0.0, []), (11, 0.5, [0.1] * 10)], completed=2, errors=["", "Bad Request", ""]
    )
    assert benchmark.row(SINGLE, result, SEEN)["repeats"] == 1
    with pytest.raises(ValueError, match=r"all requests of vllm bench serve failed: OSError: gone$"):
        benchmark.row(SINGLE, {**result, "completed": 0, "errors": ["", "Traceback\nOSError: gone\n"]}, SEEN)
    with pytest.raises(ValueError, match="no counted request"):
        benchmark.row(SINGLE, detailed([(11, 9.0, [9.0]), (0, 0.0, [])], completed=1, errors=["", "x"]), SEEN)


def test_the_row_of_a_content() -> None:
    row = benchmark.row(CONTENT, detailed([(300, 0.5, [0.1] * 299)] * 3), SEEN)
    assert (row["content"], row["prompt_tokens"], row["output_tokens_asked"], row["short"]) == ("code", 515, 300, 0)


def test_the_prefix_cache() -> None:
    """Three of four requests come from the cache but for their ends."""
    result = detailed([(64, 1.4, [0.1]), (64, 0.1, [0.1]), (64, 0.2, [0.1]), (64, 0.3, [0.1])])
    row = benchmark.row(PREFIX, result, {**SEEN, "cached_share": 0.72})
    assert (row["hit_rate"], row["first_ttft_seconds"], row["repeats"]) == (0.96, 1.4, 3)
    assert row["ttft_seconds"] == {"median": 0.2, "low": 0.1, "high": 0.3}
    assert benchmark.row(PREFIX, result, {**SEEN, "cached_share": None})["hit_rate"] is None


def metrics(**values: float) -> dict[str, float | None]:
    return {**dict.fromkeys(benchmark.COUNTERS), **values}


def test_the_engine_counts_what_others_had() -> None:
    before = metrics(generation_tokens=1000, prompt_tokens=5000, cache_queries=0, cache_hits=0)
    alone = metrics(generation_tokens=1256, prompt_tokens=5512, cache_queries=512, cache_hits=16)
    judged = benchmark.compare_counters(before, alone, 512, 256)
    assert judged["disturbed"] is False
    assert judged["cached_share"] == pytest.approx(16 / 512, abs=1e-4)
    probe = metrics(generation_tokens=1257, prompt_tokens=5532)
    assert benchmark.compare_counters(before, probe, 512, 256)["disturbed"] is False  # a watchdog asks for one token
    crowd = metrics(generation_tokens=1600, prompt_tokens=9000)
    assert benchmark.compare_counters(before, crowd, 512, 256)["disturbed"] is True
    assert (
        benchmark.compare_counters(metrics(), metrics(), 512, 256)["disturbed"] is False
    )  # an engine that counts nothing


def test_what_a_drafter_brings() -> None:
    before = metrics(drafts=100, draft_tokens=300, accepted_tokens=200)
    after = metrics(drafts=200, draft_tokens=600, accepted_tokens=440)
    judged = benchmark.compare_counters(before, after, 1, 1)
    assert judged["draft_acceptance"] == pytest.approx(0.8) and judged["tokens_per_step"] == pytest.approx(3.4)


def test_counters_of_several_engines_are_summed() -> None:
    text = (
        "# TYPE vllm:generation_tokens_total counter\n"
        'vllm:generation_tokens_total{engine="0",model_name="m"} 10.0\n'
        'vllm:generation_tokens_total{engine="1",model_name="m"} 5.0\n'
        'vllm:num_requests_running{engine="0"} 2.0\n'
    )
    judged = benchmark.counters(text)
    assert judged["generation_tokens"] == 15 and judged["running"] == 2 and judged["waiting"] is None


def test_the_prompts_of_a_chat_are_counted_without_its_template() -> None:
    result = {"total_input_tokens": 800, "total_output_tokens": 80}
    assert benchmark.tokens(SINGLE, result, "chat") == (800, 80)
    assert benchmark.tokens(CONTENT, result, "chat") == (None, 80)
    assert benchmark.tokens(LOAD, result, "chat") == (1200, 120)  # with its four warm-up requests
    assert (
        benchmark.compare_counters(
            metrics(generation_tokens=0, prompt_tokens=0), metrics(generation_tokens=80, prompt_tokens=9000), None, 80
        )["disturbed"]
        is False
    )


# --- vllm bench serve ---


def test_a_result_of_vllm_bench_serve() -> None:
    text = (FIXTURES / "serve-0.32.0.json").read_text()
    result = benchmark.parse_output(0, f"some log\n{benchmark.MARK}\n{text}", "", "vllm bench serve")
    row = benchmark.row(LOAD, result, SEEN)
    assert row["output_tokens_per_second"] == pytest.approx(256 / json.loads(text)["duration"], rel=1e-3)
    assert (row["concurrency"], row["client"], row["requests"], row["failed"], row["output_tokens"]) == (
        4,
        "vllm",
        8,
        0,
        32,
    )
    assert row["ttft_ms"] == {"median": 33.31, "p95": 47.4} and row["time_per_token_ms"]["median"] == 9.82
    row = benchmark.row(RATE, result, SEEN)
    assert row["request_rate"] == 4.0 and "concurrency" not in row


@pytest.mark.parametrize(
    ("rc", "out", "err", "reason"),
    [
        (127, "", "the image has no program vllm\n", "the image has no program vllm"),
        (124, "", "", "did not end in time"),
        (2, "", "usage: vllm\nvllm: error: argument subparser: invalid choice: 'bench'\n", "invalid choice: 'bench'"),
        (1, "", "Traceback\nOSError: no tokenizer\n[rank0] bye\n", "OSError: no tokenizer"),
        (0, "no mark", "", "exit code 0"),
        (0, f"{benchmark.MARK}\n{{", "", "no result that can be read"),
    ],
)
def test_without_a_result_the_reason_is_told(rc: int, out: str, err: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        benchmark.parse_output(rc, out, err, "vllm bench serve")


@pytest.mark.parametrize(
    ("model", "args", "words"),
    [
        ({"argument": "Org/M", "repo": "Org/M", "revision": "abc"}, {}, ["models--Org--M", "abc", "Org/M"]),
        ({"argument": "/srv/m", "repo": None, "revision": None}, {}, ["", "", "/srv/m"]),
        (
            {"argument": "Org/M", "repo": "Org/M", "revision": "abc", "extra": [{"repo": "Org/T", "revision": "def"}]},
            {"tokenizer": "Org/T"},
            ["models--Org--T", "def", "Org/T"],
        ),
        ({"argument": "Org/M", "repo": "Org/M"}, {"tokenizer": "Org/T"}, ["models--Org--T", "main", "Org/T"]),
    ],
)
def test_the_tokenizer_of_a_service(model: dict[str, Any], args: dict[str, Any], words: list[str]) -> None:
    assert benchmark.tokenizer(model, args) == words


def test_the_key_is_in_no_argument() -> None:
    wrapper = "/usr/local/libexec/dgxspark/with-secrets"
    command = benchmark.serve_command("spark-heavy", wrapper, ["", "", "/m"], 60, "text", ["--x"])
    assert command[:5] == ["docker", "exec", "spark-heavy", "/usr/local/libexec/dgxspark/with-secrets", "sh"]
    assert command[-6:] == ["60", "", "", "/m", "text", "--x"]
    assert not any(word.startswith(("-e", "--env")) for word in command)


# --- GPU ---


def test_a_gb10_has_no_power_limit() -> None:
    judged = nvidia_smi.load(lambda _argv: (0, "580.173.02, 2405, 13.46, [N/A], 55\n", ""))
    assert judged == {
        "driver": "580.173.02",
        "sm_clock_mhz": 2405,
        "power_watts": 13.46,
        "power_limit_watts": None,
        "temperature_c": 55,
    }
    assert nvidia_smi.load(lambda _argv: (0, "No devices were judged\n", "")) is None


def test_a_gpu_under_load_is_the_median_of_its_samples() -> None:
    samples = [
        {"sm_clock_mhz": clock, "power_watts": None, "temperature_c": 60 + clock % 7} for clock in (208, 2405, 2418)
    ]
    assert benchmark.gpu_under_load(samples)["sm_clock_mhz"] == 2405
    assert benchmark.gpu_under_load([]) == {"sm_clock_mhz": None, "power_watts": None, "temperature_c": None}


def test_the_playbook_names_the_variables() -> None:
    text = (ROOT / "playbooks" / "bench.yml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) and all(
        name in text for name in ("spark_bench ", "spark_bench_services", "spark_bench_dest")
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"duration": None, "output_throughput": "fast"},
        {"output_throughput": float("nan")},
        {"total_output_tokens": [1]},
        {"completed": "all"},
        {"completed": -1},
        {"completed": 9, "num_prompts": 8},
        {"median_ttft_ms": "1", "p95_ttft_ms": {}},
        {"median_tpot_ms": 1.0, "p95_tpot_ms": True},
    ],
)
def test_figures_that_make_no_sense_are_a_reason_and_no_row(changes: dict[str, Any]) -> None:
    result = {
        "completed": 8, "num_prompts": 8, "duration": 2.0, "total_input_tokens": 800, "total_output_tokens": 80, "output_throughput": 40.0,
        "median_ttft_ms": 1.0, "p95_ttft_ms": 2.0,
    }  # fmt: skip
    assert benchmark.row(LOAD, result, SEEN)["ttft_ms"] == {"median": 1.0, "p95": 2.0}
    with pytest.raises(ValueError, match="figures that cannot be read"):
        benchmark.row(LOAD, {**result, **changes}, SEEN)


@pytest.mark.parametrize(
    "changes",
    [
        {"itls": None},
        {"ttfts": [0.5]},
        {"ttfts": [0.5, "x"]},
        {"ttfts": [0.5, 0]},
        {"itls": [[0.1], ["x"]]},
        {"itls": [[0.1], 3]},
        {"output_lens": [4, 2.5]},
        {"input_lens": [4, float("nan")]},
    ],
)
def test_details_that_make_no_sense_are_a_reason_and_no_row(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="figures that cannot be read"):
        benchmark.row(SINGLE, detailed([(2, 0.5, [0.1])] * 2, **changes), SEEN)
