"""The facts of a host compared with its plan; test_plan.py shows the same findings in the plan of a host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planned_fixture import service

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import preflight
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.planned import ClusterOf

SERVICE = service(name="heavy", unit="spark-heavy.service", container="spark-heavy", port=8001)
PAIR = ClusterOf("pair", 2, "s1", ["s1", "s2"], "mp")
HEALTHY: dict[str, Any] = {
    "machine": {"is_spark": True},
    "kernel": "6.17.0-1018-nvidia",
    "gpu": {"driver_version": "580.159.03"},
    "docker": {"version": "29", "runtimes": ["nvidia"]},
    "disks": {"/srv": {"free_gib": 100.0}},
}


def rules(wants: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    findings = preflight.check_host({**HEALTHY, **changes}, [SERVICE], wants or {})
    assert all(finding.basis == "measured" and finding.fix for finding in findings)
    return [finding.rule for finding in findings]


def test_a_healthy_host_has_nothing_to_say() -> None:
    assert rules({"uses_gpu": True, "hf_home": "/srv", "download_gib": 90.0}) == []


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"docker": None}, "host.docker"),
        ({"docker": {"version": None}}, "host.docker"),
        ({"gpu": None}, "host.gpu"),
        ({"gpu": {"driver_version": "590.48.01"}}, "host.driver"),
        ({"kernel": "6.17.0-1021-nvidia"}, "host.kernel"),
        (
            {"kernel": "7.0.0-1019-nvidia", "memory": {"cma_total_gib": 0.031, "cma_free_gib": 9.36}},
            "host.kernel_handover",
        ),
        ({"machine": {"is_spark": False}}, "host.machine"),
        ({"machine": {"is_spark": False}, "gpu": None}, "host.gpu"),  # one cause, one finding
        ({"units": [{"name": "spark-heavy.service"}]}, "host.unit_foreign"),
        ({"containers": [{"name": "spark-heavy", "managed": False}]}, "host.container_foreign"),
        ({"listening": [{"port": 8001, "address": "::", "process": "nginx"}]}, "host.port_taken"),
    ],
)
def test_each_problem_has_its_rule(changes: dict[str, Any], rule: str) -> None:
    assert rules(**changes) == [rule]


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ({"cma_total_gib": 0.0, "cma_free_gib": 9.7}, True),
        ({"cma_total_gib": 0.0, "cma_free_gib": 0.0}, False),
        ({"cma_total_gib": 0.125, "cma_free_gib": 0.12}, False),
        ({"cma_total_gib": 0.0, "cma_free_gib": 1.0}, False),
        ({}, False),
    ],
)
def test_the_sign_of_memory_kept_for_handover_is_what_the_kernel_counts(
    memory: dict[str, float], expected: bool
) -> None:
    """DGX OS 7.6 boots 7.0.0-1019-nvidia with kho=off: then both are 0, and the kernel is a good one."""
    assert rules(kernel="7.0.0-1019-nvidia", memory=memory) == (["host.kernel_handover"] if expected else [])


def test_memory_kept_for_handover_stops_a_cluster_alone() -> None:
    facts = {"kernel": "7.0.0-1019-nvidia", "memory": {"cma_total_gib": 0.0, "cma_free_gib": 9.36}}
    for cluster, severity in ((PAIR, "error"), (None, "warning")):
        findings = preflight.check_host({**HEALTHY, **facts}, [replace(SERVICE, cluster=cluster)], {})
        assert {finding.rule: finding.severity for finding in findings}["host.kernel_handover"] == severity


def test_what_is_ours_is_no_stranger() -> None:
    ours = {
        "services": ["heavy"],
        "units": [{"name": "spark-heavy.service", "active_state": "active"}],
        "containers": [{"name": "spark-heavy", "managed": True}],
        "listening": [{"port": 8001, "address": "127.0.0.1", "process": "vllm"}],
    }
    assert rules(**ours) == []


def test_a_port_that_somebody_took_while_ours_was_down() -> None:
    down = {
        "services": ["heavy"],
        "units": [{"name": "spark-heavy.service", "active_state": "failed"}],
        "listening": [{"port": 8001, "address": "0.0.0.0", "process": "python3"}],
    }
    assert rules(**down) == ["host.port_taken"]


def test_the_port_of_a_service_that_this_run_removes_is_free() -> None:
    """It was renamed, say."""
    old = {"port": 8001, "address": "0.0.0.0", "process": "vllm", "container": "spark-old"}
    assert rules(services=["old"], listening=[old]) == []
    assert rules(services=[], listening=[old]) == ["host.port_taken"]  # of somebody else
    assert rules(services=["old"], listening=[{**old, "container": None}]) == ["host.port_taken"]


def test_the_disk_keeps_room_beside_the_weights() -> None:
    assert rules({"hf_home": "/srv", "download_gib": 95.5}) == ["host.disk"]
    assert rules({"hf_home": "/srv", "download_gib": 0.0}) == []
    assert rules({"hf_home": "/elsewhere", "download_gib": 95.5}) == []


@pytest.mark.parametrize(
    ("free", "blocks", "fires"),
    [(110.0, 27, True), (110.0, 1417, False), (110.0, None, False), (4.0, 5, False), (None, 5, False)],
)
def test_free_memory_in_small_pieces_is_named_before_a_load(
    free: float | None, blocks: int | None, fires: bool
) -> None:
    findings = rules(memory={"free_gib": free, "large_blocks": blocks})
    assert findings == (["host.fragmented"] if fires else [])


@pytest.mark.parametrize(("exclusive", "severity"), [("big", "error"), ("", "warning")])
def test_a_program_without_an_answer_is_named_and_its_facts_are_not_measured(exclusive: str, severity: str) -> None:
    facts = {"unknown": {"systemctl": "systemctl did not answer within 10 s"}}
    (finding,) = preflight.not_known(facts, [replace(SERVICE, exclusive=exclusive)])
    assert (finding.rule, finding.severity) == ("host.not_known", severity)
    assert finding.message.startswith("systemctl did not answer within 10 s; ")
    assert ("which of heavy runs" in finding.message) is bool(exclusive)
    assert list(preflight.not_known(HEALTHY, [SERVICE])) == []
