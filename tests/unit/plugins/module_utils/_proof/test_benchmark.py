"""What is asked, and what follows from when the answer came: recorded and made-up streams, no clock."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import nvidia_smi
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import benchmark

FIXTURES = Path(__file__).parents[2] / "fixtures" / "bench"
ROOT = Path(__file__).parents[5]


def chunk(tokens: int | None, text: str = "x", field: str = "content") -> dict[str, Any]:
    event: dict[str, Any] = {"choices": [{"delta": {field: text}}]}
    if tokens is not None:
        event["usage"] = {"prompt_tokens": 100, "completion_tokens": tokens}
    return event


def arrivals(*seen: tuple[float, dict[str, Any]]) -> list[benchmark.Arrival]:
    return [benchmark.arrival(at, event) for at, event in seen]


# --- settings ---


def test_settings_are_filled_in() -> None:
    settings, messages = benchmark.read("host spark-1", None)
    assert messages == []
    assert settings == {name: key.default for name, key in benchmark.KEYS.items()}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"promt_tokens": [512]}, "did you mean 'prompt_tokens'?"),
        ({"prompt_tokens": 512}, "'prompt_tokens' is a number; it must be a list"),
        ({"prompt_tokens": []}, "'prompt_tokens' is empty"),
        ({"prompt_tokens": [512, "8k"]}, "'prompt_tokens' holds '8k'"),
        ({"concurrency": [1]}, "'concurrency' holds 1; its entries are whole numbers from 2"),
        ({"contents": ["prose"]}, "'contents' holds 'prose'; its entries are medium, long, code, reasoning"),
        ({"request_rates": [0]}, "'request_rates' holds 0; its entries are numbers above 0"),
        ({"request_rates": [True]}, "'request_rates' holds True"),
        ({"output_tokens": 4}, "'output_tokens' is 4; it must be a whole number, 16 or more"),
        ({"warmup": 0}, "'warmup' is 0; it must be a whole number, 1 or more"),
        ({"regression_percent": 100}, "must lie between 0 and 100"),
        ({"client": "vlm"}, "did you mean 'vllm'?"),
        ({"disturb": "perhaps"}, "'disturb' is a text; it must be a boolean"),
        ("fast", "'spark_bench' must be a mapping"),
    ],
)
def test_wrong_settings_are_named_with_the_fix(given: Any, said: str) -> None:
    _settings, messages = benchmark.read("host spark-1", given)
    assert len(messages) == 1 and said in messages[0] and messages[0].startswith("host spark-1, spark_bench: "), (
        messages
    )


def test_what_the_command_line_hands_over() -> None:
    settings, messages = benchmark.read("h", {"disturb": "true", "prompt_tokens": [4096, 512, 512]})
    assert messages == [] and settings["disturb"] is True and settings["prompt_tokens"] == [512, 4096]
    assert benchmark.names("heavy, fast,") == ["heavy", "fast"] and benchmark.names(["heavy"]) == ["heavy"]
    assert benchmark.names("") == benchmark.names(None) == []


# --- prompts ---


def test_prompts_share_no_beginning_but_the_rest() -> None:
    one, two = benchmark.prompt(2000, "0a1b", "512/0"), benchmark.prompt(2000, "9f8e", "512/0")
    assert len(one) == len(two) == 2000
    assert one[:8] != two[:8]
    assert one.partition(". ")[2] == two.partition(". ")[2]
    assert benchmark.prompt(2000, "0a1b", "512/1") != one


def test_long_prompts_are_prose_to_the_end() -> None:
    text = benchmark.prompt(60_000, "n", "s")
    assert len(text) == 60_000 and text.count(benchmark.NOTES[0]) > 5


def test_lengths_that_fit_into_the_context() -> None:
    settings, _messages = benchmark.read("h", {"prompt_tokens": [512, 4096, 16384], "output_tokens": 256})
    assert benchmark.lengths(settings, 131072) == ([512, 4096, 16384], [])
    assert benchmark.lengths(settings, 8192) == ([512, 4096], [16384])
    assert benchmark.lengths(settings, None) == ([512, 4096, 16384], [])
    fitting, left = benchmark.lengths(settings, 512)
    assert left == [512, 4096, 16384] and len(fitting) == 1 and fitting[0] * 1.05 + 256 + benchmark.MARGIN <= 512
    assert benchmark.lengths(settings, 300) == ([], [512, 4096, 16384])


def test_a_warm_up_tells_how_long_a_prompt_has_to_be() -> None:
    assert benchmark.characters(100) == 500
    assert benchmark.characters(1000, 500, 125) == 4000


HI = [{"role": "user", "content": "hi"}]


def test_what_a_server_does_not_take_is_left_out_step_by_step() -> None:
    full = benchmark.body("m", "chat", HI, 64, 0, None)
    assert full["ignore_eos"] is True and full["min_tokens"] == 64
    assert full["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "chat_template_kwargs" not in full
    last = benchmark.body("m", "completions", HI, 64, len(benchmark.EXTRAS) - 1, True)
    assert set(last) == {"model", "max_tokens", "temperature", "stream", "stream_options", "prompt"}
    assert last["stream_options"] == {"include_usage": True}
    for before, after in itertools.pairwise(benchmark.EXTRAS):
        assert set(after) < set(before)


def test_thinking_is_asked_for_in_both_spellings() -> None:
    asked = benchmark.body("m", "chat", HI, 64, 0, False)["chat_template_kwargs"]
    assert asked == {"enable_thinking": False, "thinking": False}


# --- one stream ---


def test_every_arrival_has_one_token() -> None:
    events = [(1.0 + 0.1 * number, chunk(number + 1)) for number in range(11)]
    figures = benchmark.stream_figures(0.5, arrivals(*events), {"prompt_tokens": 100, "completion_tokens": 11}, 11)
    assert figures["counted_by"] == "events"
    assert figures["ttft_seconds"] == pytest.approx(0.5)
    assert figures["prefill_tokens_per_second"] == pytest.approx(200)
    assert figures["decode_tokens_per_second"] == pytest.approx(10)  # (tokens - 1) / (last - first)
    assert figures["gaps_ms"] == pytest.approx([100.0] * 10)


def test_a_drafter_brings_several_tokens_at_once() -> None:
    """Three tokens an arrival, five arrivals a second: the first one's own are not counted, nor is any lost."""
    events = [(0.2 * number, chunk(3 * (number + 1))) for number in range(11)]
    figures = benchmark.stream_figures(-1.0, arrivals(*events), {"prompt_tokens": 8, "completion_tokens": 33}, 33)
    assert figures["decode_tokens_per_second"] == pytest.approx(15)
    assert figures["arrivals"] == 11 and figures["completion_tokens"] == 33


def test_without_a_count_in_each_event_the_last_one_counts() -> None:
    events = [(0.2 * number, chunk(None)) for number in range(11)]
    figures = benchmark.stream_figures(-1.0, arrivals(*events), {"prompt_tokens": 8, "completion_tokens": 33}, 33)
    assert figures["counted_by"] == "usage"
    assert figures["decode_tokens_per_second"] == pytest.approx(16)
    pieces = benchmark.stream_figures(-1.0, arrivals(*events), {}, 33)
    assert (pieces["counted_by"], pieces["completion_tokens"], pieces["prompt_tokens"]) == ("pieces", 11, None)
    assert pieces["decode_tokens_per_second"] == pytest.approx(5)
    assert pieces["prefill_tokens_per_second"] is None


@pytest.mark.parametrize("field", ["content", "reasoning", "reasoning_content", "thinking_text_of_tomorrow"])
def test_reasoning_counts_whatever_its_field_is_called(field: str) -> None:
    events = [(0.1 * number, chunk(None, field=field)) for number in range(1, 12)]
    figures = benchmark.stream_figures(0.0, arrivals(*events), {"completion_tokens": 11}, 11)
    assert figures["ttft_seconds"] == pytest.approx(0.1)
    assert figures["decode_tokens_per_second"] == pytest.approx(10)


def test_the_role_and_the_closing_count_are_no_tokens() -> None:
    events = [
        (0.1, {"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": {"completion_tokens": 0}}),
        (1.0, chunk(1)),
        (2.0, chunk(2)),
        (9.0, {"choices": [], "usage": {"completion_tokens": 2}}),
    ]
    figures = benchmark.stream_figures(0.0, arrivals(*events), {"completion_tokens": 2}, 2)
    assert figures["ttft_seconds"] == 1.0
    assert figures["decode_tokens_per_second"] == pytest.approx(1.0)


def test_an_answer_of_nothing() -> None:
    figures = benchmark.stream_figures(0.0, [], {"prompt_tokens": 3, "completion_tokens": 0}, 16)
    assert figures["ttft_seconds"] is None and figures["decode_tokens_per_second"] is None


def test_a_recorded_stream_of_vllm() -> None:
    """24 tokens, all reasoning; every seventh is a special one that comes without text and is counted all the same."""
    recorded = json.loads((FIXTURES / "stream-0.32.0.json").read_text())["events"]
    seen = [benchmark.arrival(at, event) for at, event in recorded]
    figures = benchmark.stream_figures(0.0, seen, recorded[-1][1]["usage"], 24)
    first = next(at for at, event in recorded if (event["usage"]["completion_tokens"]) == 1)
    last = next(at for at, event in recorded if (event["usage"]["completion_tokens"]) == 24)
    assert figures["completion_tokens"] == 24 and figures["reasoning_tokens"] == 21 and figures["prompt_tokens"] == 918
    assert figures["arrivals"] == 21 == sum(entry.text for entry in seen)
    assert figures["ttft_seconds"] == first
    assert figures["decode_tokens_per_second"] == pytest.approx(23 / (last - first))


# --- rows ---


def test_percentiles_are_those_of_vllm() -> None:
    values = [3.0, 1.0, 2.0, 10.0]
    assert benchmark.percentile(values, 50) == 2.5
    assert benchmark.percentile(values, 95) == pytest.approx(8.95)  # numpy.percentile
    assert benchmark.percentile([7.0], 95) == 7.0 and benchmark.percentile([], 50) is None


def run(decode: float, **more: Any) -> dict[str, Any]:
    made = {
        "asked_tokens": 256,
        "prompt_tokens": 515,
        "completion_tokens": 256,
        "reasoning_tokens": None,
        "arrivals": 256,
    }
    made.update(
        counted_by="events", ttft_seconds=0.1, prefill_tokens_per_second=5150.0, decode_tokens_per_second=decode
    )
    made.update(seconds=6.1, gaps_ms=[20.0] * 19 + [60.0])
    return {**made, **more}


def test_a_row_has_the_median_and_how_far_it_scatters() -> None:
    row = benchmark.single_row(512, [run(40.0), run(44.0), run(43.0)])
    assert row["decode_tokens_per_second"] == {"median": 43.0, "low": 40.0, "high": 44.0}
    assert row["prompt_tokens"] == 512 and row["prompt_tokens_measured"] == 515
    assert row["inter_token_ms"] == {"median": 20.0, "p95": 22.0}
    assert (row["short"], row["disturbed"], row["tokens_per_arrival"]) == (0, 0, 1.0)


def test_a_row_tells_answers_that_ended_early_and_others_that_ran() -> None:
    row = benchmark.single_row(512, [run(40.0, completion_tokens=80), run(44.0, seen={"disturbed": True})])
    assert (row["short"], row["disturbed"]) == (1, 1)


def metrics(**values: float) -> dict[str, float | None]:
    return {**dict.fromkeys(benchmark.COUNTERS), **values}


def test_the_engine_counts_what_others_had() -> None:
    before = metrics(generation_tokens=1000, prompt_tokens=5000, cache_queries=0, cache_hits=0)
    alone = metrics(generation_tokens=1256, prompt_tokens=5512, cache_queries=512, cache_hits=16)
    found = benchmark.seen(before, alone, 512, 256)
    assert found["disturbed"] is False and found["foreign_tokens"] == 0
    assert found["cached_share"] == pytest.approx(16 / 512, abs=1e-4)
    probe = metrics(generation_tokens=1257, prompt_tokens=5532)
    assert benchmark.seen(before, probe, 512, 256)["disturbed"] is False  # a watchdog asks for one token
    crowd = metrics(generation_tokens=1600, prompt_tokens=9000)
    assert benchmark.seen(before, crowd, 512, 256)["disturbed"] is True
    assert benchmark.seen(metrics(), metrics(), 512, 256)["disturbed"] is False  # an engine that counts nothing


def test_what_a_drafter_brings() -> None:
    before = metrics(drafts=100, draft_tokens=300, accepted_tokens=200)
    after = metrics(drafts=200, draft_tokens=600, accepted_tokens=440)
    found = benchmark.seen(before, after, 1, 1)
    assert found["draft_acceptance"] == pytest.approx(0.8) and found["tokens_per_step"] == pytest.approx(3.4)


def test_counters_of_several_engines_are_summed() -> None:
    text = (
        "# TYPE vllm:generation_tokens_total counter\n"
        'vllm:generation_tokens_total{engine="0",model_name="m"} 10.0\n'
        'vllm:generation_tokens_total{engine="1",model_name="m"} 5.0\n'
        'vllm:num_requests_running{engine="0"} 2.0\n'
    )
    found = benchmark.counters(text)
    assert found["generation_tokens"] == 15 and found["running"] == 2 and found["waiting"] is None


def test_requests_at_once() -> None:
    """Four answers of 101 tokens, 1 s to the first and 10 s in all, two at a time."""
    runs = [run(0, completion_tokens=101, ttft_seconds=1.0, seconds=11.0, prompt_tokens=512) for _number in range(4)]
    row = benchmark.load_row(2, runs, 22.0)
    assert row["output_tokens_per_second"] == pytest.approx(404 / 22, rel=1e-3)
    assert row["time_per_token_ms"] == {"median": 100.0, "p95": 100.0}
    assert row["ttft_ms"]["median"] == 1000.0 and (row["requests"], row["failed"]) == (4, 0)
    assert benchmark.load_row(2, runs, 22.0, failed=1)["requests"] == 5


# --- vllm bench serve ---


def test_a_result_of_vllm_bench_serve() -> None:
    text = (FIXTURES / "serve-0.32.0.json").read_text()
    row, reason = benchmark.parse_load(0, f"some log\n{benchmark.MARK}\n{text}", "", 4)
    assert reason == "" and row is not None
    found = json.loads(text)
    assert row["output_tokens_per_second"] == pytest.approx(found["output_throughput"], rel=1e-3)
    assert row["output_tokens_per_second"] == pytest.approx(256 / found["duration"], rel=1e-3)
    assert (row["client"], row["requests"], row["failed"], row["output_tokens"]) == ("vllm", 8, 0, 32)
    assert row["ttft_ms"] == {"median": 33.31, "p95": 47.4} and row["time_per_token_ms"]["median"] == 9.82


@pytest.mark.parametrize(
    ("rc", "out", "err", "said"),
    [
        (127, "", "the image has no program vllm\n", "the image has no program vllm"),
        (124, "", "", "did not end in time"),
        (2, "", "usage: vllm\nvllm: error: argument subparser: invalid choice: 'bench'\n", "invalid choice: 'bench'"),
        (1, "", "Traceback\nOSError: no tokenizer\n[rank0] bye\n", "OSError: no tokenizer"),
        (0, "no mark", "", "exit code 0"),
        (0, f"{benchmark.MARK}\n{{", "", "no result that can be read"),
        (0, f'{benchmark.MARK}\n{{"completed": 0}}', "", "all requests of vllm bench serve failed"),
    ],
)
def test_without_a_result_the_reason_is_told(rc: int, out: str, err: str, said: str) -> None:
    row, reason = benchmark.parse_load(rc, out, err, 4)
    assert row is None and said in reason


def test_each_run_of_vllm_bench_asks_something_else() -> None:
    args = {"tokenizer-mode": "mistral", "trust-remote-code": True}
    task = {"level": 4, "prompt_tokens": 512, "output_tokens": 256}
    options = benchmark.load_options("http://127.0.0.1:8001", "heavy", task, 77, args)
    pairs = dict(zip(options, options[1:]))
    assert pairs["--seed"] == "77" and pairs["--num-prompts"] == "8" and pairs["--max-concurrency"] == "4"
    assert "--request-rate" not in options
    assert pairs["--tokenizer-mode"] == "mistral" and options[-1] == "--trust-remote-code" and "--ignore-eos" in options


def test_a_rate_of_requests_is_handed_to_vllm_bench() -> None:
    task = {"rate": 4.0, "requests": 100, "prompt_tokens": 1024, "output_tokens": 256}
    options = benchmark.load_options("http://127.0.0.1:8001", "heavy", task, 77, {})
    pairs = dict(zip(options, options[1:]))
    assert pairs["--request-rate"] == "4" and pairs["--num-prompts"] == "100" and "--max-concurrency" not in options
    text = (FIXTURES / "serve-0.32.0.json").read_text()
    row, _reason = benchmark.parse_load(0, f"{benchmark.MARK}\n{text}", "", 4.0, "request_rate")
    assert row is not None and row["request_rate"] == 4.0 and "concurrency" not in row


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
    command = benchmark.load_command(
        "spark-heavy", "/usr/local/libexec/dgxspark/with-secrets", ["", "", "/m"], 60, ["--x"]
    )
    assert command[:5] == ["docker", "exec", "spark-heavy", "/usr/local/libexec/dgxspark/with-secrets", "sh"]
    assert command[-5:] == ["", "", "/m", "60", "--x"]
    assert not any(word.startswith(("-e", "--env")) for word in command)


# --- GPU ---


def test_a_gb10_has_no_power_limit() -> None:
    found = nvidia_smi.parse_load("580.173.02, 2405, 13.46, [N/A], 55\n")
    assert found == {
        "driver": "580.173.02",
        "sm_clock_mhz": 2405,
        "power_watts": 13.46,
        "power_limit_watts": None,
        "temperature_c": 55,
    }
    assert nvidia_smi.parse_load("No devices were found\n") is None


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


def test_a_recorded_stream_with_a_drafter() -> None:
    """Several tokens an event. By the count of events alone the rate would be half of what it is."""
    recorded = json.loads((FIXTURES / "stream-ngram-0.32.0.json").read_text())["events"]
    seen = [benchmark.arrival(at, event) for at, event in recorded]
    figures = benchmark.stream_figures(0.0, seen, recorded[-1][1]["usage"], 24)
    came = [(at, event["usage"]["completion_tokens"]) for at, event in recorded if event["choices"]]
    came = [entry for entry in came if entry[1]]
    assert figures["completion_tokens"] == 24 == came[-1][1] and figures["arrivals"] == 12
    assert figures["decode_tokens_per_second"] == pytest.approx((24 - came[0][1]) / (came[-1][0] - came[0][0]))


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
        {"p95_tpot_ms": True},
    ],
)
def test_figures_of_the_image_that_are_none_are_a_reason_and_no_row(changes: dict[str, Any]) -> None:
    given = {
        "completed": 8, "num_prompts": 8, "duration": 2.0, "total_input_tokens": 800, "total_output_tokens": 80, "output_throughput": 40.0,
        "median_ttft_ms": 1.0, "p95_ttft_ms": 2.0,
    }  # fmt: skip
    row, reason = benchmark.parse_load(0, f"{benchmark.MARK}\n{json.dumps(given)}", "", 4)
    assert row is not None and reason == ""
    row, reason = benchmark.parse_load(0, f"{benchmark.MARK}\n{json.dumps({**given, **changes})}", "", 4)
    assert row is None and "figures that cannot be read" in reason
