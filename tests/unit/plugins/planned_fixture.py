# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Spark and a service, planned by the engine itself; each test changes the values that it covers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import (
    inventory,
    judging,
    planned_service,
    service_files,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.planned import PlannedService
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service import Host, Sources

SOURCES = Sources(RECIPES, lambda _path: None, None, True, None, 1)
FAST = {
    "name": "fast",
    "recipe": "qwen3-4b-instruct-2507",
    "port": 8002,
    "args": {"gpu-memory-utilization": 0.10, "max-model-len": 4096, "max-num-seqs": 2},
}

# What M(dgxspark.vllm.spark_info) says of a Spark on which nothing runs.
MEASURED: dict[str, Any] = {
    "machine": {"is_spark": True},
    "kernel": "6.17.0-1018-nvidia",
    "architecture": "aarch64",
    "gpu": {"name": "NVIDIA GB10", "driver_version": "580.159.03"},
    "memory": {"total_gib": 119.67, "available_gib": 114.0},
    "docker": {"version": "29.2.1", "runtimes": ["nvidia", "runc"]},
    "containers": [],
    "units": [],
    "services": [],
    "listening": [],
    "resident": [],
    "models": [],
    "disks": {"/srv/huggingface": {"free_gib": 900.0, "total_gib": 3700.0}},
}


def spark(*services: dict[str, Any], name: str = "s1", address: str = "192.0.2.1", **variables: Any) -> Host:
    """A Spark, read from an inventory."""
    entry = {"vars": {"spark_services": list(services or (FAST,)), **variables}, "address": address}
    messages: list[str] = []
    host = inventory.read_spark(name, entry, SOURCES, messages)
    assert messages == []
    return host


def resolved(host: Host) -> PlannedService:
    """The first service of a host, resolved as the only one."""
    placed = service_files.place(host.settings, host.services[0], SOURCES.digest)
    launch = judging.check_launch(replace(host, measured=None, images={}), placed)
    return planned_service.plan_service(host, placed, launch, {}, [])


def service(**changes: Any) -> PlannedService:
    """A planned service, with fields that are others."""
    return replace(resolved(spark()), **changes)
