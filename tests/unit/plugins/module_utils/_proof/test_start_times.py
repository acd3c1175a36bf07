# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings about the last start of a service, and advice."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import start_times
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import start_stages

GIB = 2**30


def findings_of(
    *starts: dict[str, Any], args: dict[str, Any] | None = None, version: str = "0.33.0", **service: Any
) -> dict[str, Finding]:
    planned = {
        "name": "heavy", "args": args or {}, "on_demand": None, "vllm_version": version, "cluster": None,
        "memory": {"weights_bytes": 24 * GIB}, **service,
    }  # fmt: skip
    findings = start_times.findings(planned, list(starts))
    assert len({finding.rule for finding in findings}) == len(findings)
    return {finding.rule.removeprefix("start."): finding for finding in findings}


def start(launch: str = "one", compiled: float = 0.0, **stages: float) -> dict[str, Any]:
    return start_stages.entry("", launch, stages, {"compile_seconds": compiled} if compiled else {})


def test_without_a_start_nothing_is_said() -> None:
    assert findings_of() == {}


def test_each_stage_is_told_and_a_quick_start_gets_no_advice() -> None:
    findings = findings_of(start(gate=3.0, arguments=12.0, load=20.0, graphs=7.0), on_demand={"idle_minutes": 20})
    assert list(findings) == ["took"] and findings["took"].severity == "info" and not findings["took"].fix
    assert findings["took"].message == "its last start took 42 s: gate 3 s, arguments 12 s, load 20 s, graphs 7 s."


def test_a_first_start_that_compiled_is_said_to_be_one() -> None:
    first, second = start(compiled=38.0, profile=41.0), start(compiled=2.0, profile=5.0)
    assert (
        "compiled for 38 s" in findings_of(first)["took"].message
        and "first known start" in findings_of(first)["took"].fix
    )
    assert not findings_of(first, second)["took"].fix
    # Another launch compiles for itself.
    assert "first known start" in findings_of(first, start("two", 38.0, profile=41.0))["took"].fix


def test_a_start_that_waited() -> None:
    assert "waited for 31 s of 33 s" in findings_of(start(gate=31.0, load=2.0))["waited"].message
    assert "waited" not in findings_of(start(gate=29.0, load=2.0))


def test_weights_that_load_slower_than_before() -> None:
    findings = findings_of(start(load=106.0), start(load=600.0), args={"load-format": "instanttensor"})
    assert findings["load_slower"].severity == "warning" and "buddyinfo" in findings["load_slower"].fix
    assert "600 s to load; the same launch did it in 106 s before" in findings["load_slower"].message
    for starts in ([start(load=106.0), start(load=300.0)], [start(load=2.0), start(load=29.0)], [start(load=600.0)]):
        assert "load_slower" not in findings_of(*starts)


@pytest.mark.parametrize(
    ("args", "version", "more", "advised"),
    [
        ({}, "0.33.0", {}, "fastsafetensors or instanttensor"),
        ({"load-format": "safetensors"}, "0.33.0", {}, "fastsafetensors or instanttensor"),
        ({}, "0.17.0", {}, "fastsafetensors"),
        ({}, "", {}, "fastsafetensors or instanttensor"),
        ({"speculative-config": {"method": "mtp"}}, "0.33.0", {"cluster": {"name": "pair"}}, "fastsafetensors"),
        ({}, "0.33.0", {"cluster": {"name": "pair"}}, "fastsafetensors or instanttensor"),
        ({"load-format": "fastsafetensors"}, "0.33.0", {}, ""),
        ({"load-format": "b12x"}, "0.33.0", {}, ""),
    ],
)
def test_a_load_format_is_advised_where_weights_take_long(
    args: dict[str, Any], version: str, more: dict[str, Any], advised: str
) -> None:
    findings = findings_of(start(load=120.0, profile=20.0), args=args, version=version, **more)
    if not advised:
        assert "load_format" not in findings
        return
    assert "120 s of the 140 s of its last start, 24.0 GiB at 0.20 GiB/s" in findings["load_format"].message
    assert f"load-format: {advised}, " in findings["load_format"].fix and "eugr" in findings["load_format"].source
    assert "load_format" not in findings_of(start(load=29.0), args=args, version=version, **more)


def test_without_the_size_of_the_weights_no_rate_is_told() -> None:
    assert "GiB/s" not in findings_of(start(load=120.0), memory={})["load_format"].message


def test_compiling_anew_is_worth_a_warning() -> None:
    findings = findings_of(start(compiled=38.0, profile=40.0), start(compiled=36.0, profile=39.0))
    assert "36 s, although the same launch had compiled before (38 s)" in findings["compiled_again"].message
    for starts in (
        [start(compiled=36.0, profile=39.0)],
        [start("two", 38.0, profile=40.0), start(compiled=36.0, profile=39.0)],
        [start(compiled=80.0, profile=90.0), start(compiled=36.0, profile=39.0)],
        [start(profile=40.0), start(compiled=36.0, profile=39.0)],
    ):
        assert "compiled_again" not in findings_of(*starts)


def test_graphs_are_left_out_of_services_on_demand_that_are_asked_rarely() -> None:
    last, on_demand = start(compiled=38.0, profile=41.0, graphs=7.0), {"idle_minutes": 20}
    finding = findings_of(last, on_demand=on_demand)["graphs"]
    assert "compiled for 38 s and captured CUDA graphs for 7 s" in finding.message and "enforce-eager" in finding.fix
    assert "graphs" not in findings_of(last) and "graphs" not in findings_of(
        last, on_demand=on_demand, args={"enforce-eager": True}
    )


def test_each_service_of_a_host_has_its_own_starts() -> None:
    services = [{"name": "heavy"}, {"name": "fast"}]
    findings = start_times.of_host(services, {"fast": [start(load=3.0)], "heavy": "none", "gone": [start(load=3.0)]})
    assert [(finding.rule, finding.service) for finding in findings] == [("start.took", "fast")]
    assert start_times.of_host(services, None) == start_times.of_host(services, []) == []
