# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planned services as arguments of modules: the keys that are read, and their defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._host.host_view import BadRequest

SERVICE: dict[str, Any] = {
    "name": None,
    "unit": None,
    "container": None,
    "rank": 0,
    "cluster": None,
    "memory": {},
    "fast_path": {},
    "probe": {},
    "cache_dir": None,
}
"""Keys that M(dgxspark.vllm.spark_info) reads."""
PROVED: dict[str, Any] = {
    **SERVICE,
    "url": None,
    "served_model_name": None,
    "settings": {},
    "checks": {},
    "image": None,
    "model": None,
    "vllm_version": None,
    "argv": [],
    "env": None,
    "fingerprint": None,
    "speed": {},
    "on_demand": None,
    "kv_tiers": None,
    "parts": [],
}
"""Keys that M(dgxspark.vllm.service_proof) reads."""


def complete(services: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return services with all keys, and with the names of their unit and container. Raises BadRequest for one without a name."""
    completed = []
    for given in services:
        service = {**PROVED, **given}
        if not service["name"]:
            raise BadRequest("services: one of them has no name")
        name = f"spark-{service['name']}"
        unit, container = service["unit"] or f"{name}.service", service["container"] or name
        completed.append({**service, "unit": unit, "container": container, "probe": service["probe"] or {}})
    return completed
