"""vLLM's exposition format; the sample lines come from a real server."""

from __future__ import annotations

import time

import pytest
from hostile_texts import HOSTILE, is_harmless

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import metrics

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="heavy"} 3.0
vllm:num_requests_running{engine="1",model_name="heavy"} 1.0
vllm:num_requests_waiting{engine="0",model_name="heavy"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="a {b} c"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="heavy"} 0.42
broken line
vllm:num_requests_waiting{engine="1"} not-a-number
"""


def test_figures_of_several_engines() -> None:
    assert metrics.parse(TEXT) == {"kv_cache_usage": 0.42, "requests_running": 4, "requests_waiting": 1}


def test_the_old_name_of_the_kv_gauge() -> None:
    assert metrics.parse('vllm:gpu_cache_usage_perc{model_name="x"} 0.5')["kv_cache_usage"] == 0.5


def test_nothing_known() -> None:
    assert metrics.parse("") == {"kv_cache_usage": None, "requests_running": None, "requests_waiting": None}


MOVING = """\
vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:prompt_tokens_total{engine="0"} 3.1290591e+07
vllm:generation_tokens_total{engine="0"} 197122.0
vllm:generation_tokens_total{engine="1"} 8.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 5.0
vllm:iteration_tokens_total_count{engine="0"} 77.0
vllm:iteration_tokens_total_sum{engine="0"} 9999.0
"""


def test_what_moves() -> None:
    assert metrics.progress(MOVING) == {
        "generation_tokens": 197130.0,
        "prompt_tokens": 31290591.0,
        "iterations": 77.0,
        "requests_running": 2.0,
        "requests_waiting": 0.0,
    }


def test_what_moves_is_not_known_of_another_server() -> None:
    assert set(metrics.progress("up 1\n").values()) == {None}


def test_samples_with_their_labels() -> None:
    text = 'a_one{x="1",y="a\\"b,\\\\"} 2.5\na_two 1\na_bad x\na_nan NaN\nb_other{x="1"} 1\n# a_comment 1\na_late{} 7 1700000000\n'
    assert metrics.labelled(text, "a_") == {
        "a_one": [({"x": "1", "y": 'a"b,\\'}, 2.5)],
        "a_two": [({}, 1.0)],
        "a_late": [({}, 7.0)],
    }
    assert set(metrics.labelled(text, ("a_two", "b_"))) == {"a_two", "b_other"}


@pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", "Infinity", "1e308", "-1e300"])
def test_values_that_no_sum_takes_are_left_out(value: str) -> None:
    text = "".join(
        f'{name}{{engine="{engine}"}} {value}\n'
        for names in (*metrics.GAUGES.values(), *metrics.COUNTERS.values())
        for name in names
        for engine in (0, 1)
    )
    assert set(metrics.parse(text).values()) == set(metrics.progress(text).values()) == {None}
    good = text + 'vllm:num_requests_running{engine="2"} 3\n'
    assert metrics.parse(good)["requests_running"] == metrics.progress(good)["requests_running"] == 3


def test_labels_of_a_stranger_take_no_time_and_steer_nothing() -> None:
    began = time.monotonic()
    assert metrics.labelled("a_one{" + "a" * 200_000 + "} 1", "a_") == {"a_one": [({}, 1.0)]}
    assert time.monotonic() - began < 5  # it took minutes
    for text in HOSTILE:
        samples = metrics.labelled('a_one{x="' + text + '"} 1', "a_")
        assert all(is_harmless(label) for labels, _value in samples.get("a_one", []) for label in labels.values())
