"""Measured figures of a network have a time, newer figures replace them, and they are removed with their cable."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cluster_fixture import network

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import fabric_figures

HOSTS = ["a", "b", "c", "d"]
PROBE = {"rail": "rail0", "tool": "ib_write_bw", "server": "a", "client": "b", "gbps": 97.3}
TEST = {"service": "glm", "hosts": HOSTS}


def state_of(topology: str = "ring") -> dict[str, Any]:
    return fabric_figures.with_plan(fabric_figures.read(""), "quad", network(topology, HOSTS), "monday")


def figures(state: dict[str, Any], *keys: str) -> list[Any]:
    return [tuple(row.get(key) for key in keys) for row in state["clusters"]["quad"]["figures"]]


def test_a_newer_figure_takes_the_place_of_an_older_one() -> None:
    state = fabric_figures.with_rails(
        state_of(), "quad", [PROBE, {**PROBE, "rail": "rail1"}], {"ib_write_bw": 80}, "monday"
    )
    state = fabric_figures.with_rails(state, "quad", [{**PROBE, "gbps": 12.9}], {}, "tuesday")
    assert figures(state, "rail", "gbps", "least", "at") == [
        ("rail1", 97.3, 80.0, "monday"),
        ("rail0", 12.9, 0.0, "tuesday"),
    ]


def test_a_probe_without_a_figure_leaves_the_last_one() -> None:
    state = fabric_figures.with_rails(state_of(), "quad", [PROBE], {}, "monday")
    assert fabric_figures.with_rails(state, "quad", [{**PROBE, "gbps": None}], {}, "tuesday") == state


def test_the_figures_of_ranks_are_kept_once_each() -> None:
    result = {"backend": "nccl", "nccl": "2.28.9", "gbps": 98.1}
    results = {
        "a": {**result, "cables": {"0-1": 184, "0-3": 183}},
        "b": {**result, "cables": {"0-1": 184.4, "1-2": 182}},
    }
    state = fabric_figures.with_test(state_of(), "quad", TEST, results, {"all_reduce": 80}, "monday")
    assert figures(state, "kind", "hosts", "gbps", "least", "tool") == [
        ("cable", ["a", "b"], 184.0, 80.0, "nccl"),
        ("cable", ["a", "d"], 183.0, 80.0, "nccl"),
        ("cable", ["b", "c"], 182.0, 80.0, "nccl"),
        ("all", HOSTS, 98.1, 80.0, "nccl 2.28.9"),
    ]
    # How fast a processor adds is no cable's figure to be measured against.
    gloo = {"backend": "gloo", "gbps": 1.5, "cables": {"0-1": 1.2}}
    state = fabric_figures.with_test(state, "quad", TEST, {"a": gloo}, {"all_reduce": 80}, "tuesday")
    assert {figure for figure in figures(state, "tool", "least") if figure[0] == "gloo"} == {("gloo", 0.0)}


def test_of_ranks_that_fail_the_one_that_names_the_ends_is_told() -> None:
    results = {
        "a": {"error": "timed out"},
        "c": {"error": "NCCL error", "between": [2, 3]},
        "b": {"unknown": "it did not end within 180 s"},
    }
    state = fabric_figures.with_test(state_of(), "quad", TEST, results, {}, "monday")
    assert figures(state, "kind", "error", "between") == [("all", "c: NCCL error", ["c", "d"])]
    # Without new measurements the earlier figures stay.
    assert fabric_figures.with_test(state, "quad", TEST, {"a": {"unknown": "no"}}, {}, "tuesday") == state


def test_a_plan_leaves_out_what_was_measured_on_what_is_gone() -> None:
    state = fabric_figures.with_rails(
        state_of(), "quad", [PROBE, {**PROBE, "rail": "rail4", "server": "c"}], {}, "monday"
    )
    result = {"backend": "nccl", "gbps": 98.1, "cables": {"0-1": 184, "0-3": 183}}
    state = fabric_figures.with_test(state, "quad", TEST, {"a": result}, {}, "monday")
    assert (
        fabric_figures.with_plan(state, "quad", network("ring", HOSTS), "tuesday")["clusters"]["quad"]["at"]
        == "tuesday"
    )
    assert len(figures(fabric_figures.with_plan(state, "quad", network("ring", HOSTS), "tuesday"), "kind")) == 5
    # One host fewer: the cable between the first and the last is another one now.
    fewer = fabric_figures.with_plan(state, "quad", network("ring", HOSTS[:3]), "tuesday")
    assert figures(fewer, "kind", "hosts") == [("rail", ["b", "a"]), ("rail", ["b", "c"]), ("cable", ["a", "b"])]
    line = {**network("ring", HOSTS), "rails": [], "topology": "line", "ready": False}
    assert figures(fabric_figures.with_plan(state, "quad", line, "tuesday"), "kind") == []
    assert fabric_figures.with_rails(state, "another", [PROBE], {}, "tuesday") == state


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 2, "clusters": {}}',
        '{"schema": 1, "clusters": []}',
        '{"schema": 1, "clusters": {"quad": 5}}',
        '{"schema": 1, "clusters": {"quad": {"at": "x", "fabric": {}, "figures": []}}}',
    ],
)
def test_a_file_of_another_form_is_as_none(text: str) -> None:
    assert fabric_figures.read(text) == {"schema": 1, "clusters": {}}


@pytest.mark.parametrize(
    "figure", [5, {}, {"kind": "x", "hosts": [], "at": ""}, {"kind": "all", "hosts": [], "at": "", "gbps": "9"}]
)
def test_a_cluster_with_a_figure_that_is_none_is_found_out_anew(figure: Any) -> None:
    state = fabric_figures.with_rails(state_of(), "quad", [PROBE], {}, "monday")
    assert fabric_figures.read(json.dumps(state)) == state
    state["clusters"]["quad"]["figures"].append(figure)
    assert fabric_figures.read(json.dumps(state))["clusters"] == {}
