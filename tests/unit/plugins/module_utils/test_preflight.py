"""A host against what is about to be put there; test_plan.py shows the same findings in the plan of a host."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils import preflight

SERVICE = {"name": "heavy", "unit": "spark-heavy.service", "container": "spark-heavy", "port": 8001}
HEALTHY: dict[str, Any] = {
    "machine": {"is_spark": True},
    "kernel": "6.17.0-1018-nvidia",
    "gpu": {"driver_version": "580.159.03"},
    "docker": {"version": "29", "runtimes": ["nvidia"]},
    "disks": {"/srv": {"free_gib": 100.0}},
}


def rules(wants: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    found = preflight.check_host({**HEALTHY, **changes}, [SERVICE], wants or {})
    assert all(finding.basis == "measured" and finding.fix for finding in found)
    return [finding.rule for finding in found]


def test_a_healthy_host_has_nothing_to_say() -> None:
    assert rules({"uses_gpu": True, "hf_home": "/srv", "download_gib": 90.0}) == []


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"docker": None}, "host.docker"),
        ({"docker": {"version": None}}, "host.docker"),
        ({"gpu": None}, "host.gpu"),
        ({"gpu": {"driver_version": "590.48.01"}}, "host.driver"),
        ({"kernel": "7.0.0-1019-nvidia"}, "host.kernel"),
        ({"machine": {"is_spark": False}}, "host.machine"),
        ({"units": [{"name": "spark-heavy.service"}]}, "host.unit_foreign"),
        ({"containers": [{"name": "spark-heavy", "managed": False}]}, "host.container_foreign"),
        ({"listening": [{"port": 8001, "address": "::", "process": "nginx"}]}, "host.port_taken"),
    ],
)
def test_each_problem_has_its_rule(changes: dict[str, Any], rule: str) -> None:
    assert rules(**changes) == [rule]


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


def test_the_disk_keeps_room_beside_the_weights() -> None:
    assert rules({"hf_home": "/srv", "download_gib": 95.5}) == ["host.disk"]
    assert rules({"hf_home": "/srv", "download_gib": 0.0}) == []
    assert rules({"hf_home": "/elsewhere", "download_gib": 95.5}) == []
