# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents of agents, and a fleet of them in which every state occurs."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import live_status
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_alarms import Alarm, Alarms
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_server import BUCKET_SECONDS, BUCKETS, Live
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_status import Spark

FILES = Path(__file__).resolve().parents[3] / "roles/guard/files/live"
CHECKS = {
    "forge/gateway": {"url": "http://192.168.1.5:4000", "ok": True, "error": "", "hint": "", "note": "lists 4 models"},
    "spark-2/asr": {
        "url": "http://192.168.1.12:8765",
        "ok": False,
        "error": "HTTP 503",
        "hint": "see its log",
        "note": "",
    },
}


def service(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "unit": f"spark-{name}.service",
        "model": {"repo": f"Org/{name}-30B-NVFP4"},
        "memory": {"residency_gib": {"typical": 40.0}},
        "state": "started",
        "url": "http://192.168.1.11:8001",
        "vllm_version": "0.33.0",
        "predicted": 41.0,
        **more,
    }


def answer(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "ready": True,
        "stage": "unit",
        "error": "",
        "silent": "",
        "kv_cache_usage": 0.31,
        "requests_running": 3,
        "requests_waiting": 1,
        "tokens_per_second": 96.4,
        "proved": "2026-11-28 18:20 UTC",
        "proved_rate": 40.2,
        **more,
    }


def unit(name: str, state: str = "active", **more: Any) -> dict[str, Any]:
    return {
        "name": f"spark-{name}.service",
        "active_state": state,
        "active_seconds": 268200,
        "n_restarts": 0,
        "status_text": "",
        **more,
    }


def document(host: str, *services: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a document whose services are up; C(facts) and other keys of C(more) are merged."""
    names = [entry["name"] for entry in services]
    facts = {
        "memory": {"total_gib": 119.7, "available_gib": 42.5},
        "units": [unit(name) for name in names],
        "resident": [{"name": name, "gib": 39.5} for name in names],
        "starting": {},
        "causes": {},
        "on_demand": {},
        "guard": None,
        "unknown": {},
        **more.pop("facts", {}),
    }
    return {
        "schema": 1,
        "host": host,
        "facts": facts,
        "services": [answer(name) for name in names],
        "planned": list(services),
        "gpu": {"utilization_percent": 93, "power_w": 61.5, "temperature_c": 68, "sm_clock_mhz": 2418},
        "cpu_percent": 11.5,
        "links": [{"name": "enp1s0f0np0", "up": True, "gbps": 200.0}],
        **more,
    }


IDLE = {
    "ready": False,
    "tokens_per_second": None,
    "kv_cache_usage": None,
    "requests_running": None,
    "requests_waiting": None,
}
GPU_CAPPED = {"utilization_percent": 97, "power_w": 14.0, "temperature_c": 45, "sm_clock_mhz": 611}


def sparks(count: int = 8) -> list[Spark]:
    """Return Sparks in turn: serving, stopped, cold, starting, with a latched clock, two ranks of a cluster, unreachable."""
    made = []
    for number in range(1, count + 1):
        host = f"spark-{number}"
        made.append(spark(host, (number - 1) % 8, f"c{(number + 7) // 8}"))
    return made


def spark(host: str, turn: int, cluster: str = "c1") -> Spark:
    """Return the Spark of a turn of C(sparks)."""
    now = time.time()
    if turn == 1:
        heavy = service("heavy")
        made = document(
            host,
            heavy,
            facts={"units": [unit("heavy", "inactive")], "resident": []},
            services=[answer("heavy", **IDLE)],
        )
        made["gpu"] = {"utilization_percent": 0, "power_w": 4.5, "temperature_c": 38, "sm_clock_mhz": 208}
    elif turn == 2:
        coder = service("coder", state="on_demand")
        state = {"coder": {"state": "cold", "idle_seconds": None, "waiting": 0, "pin": "", "why": ""}}
        facts = {"units": [unit("coder", "inactive")], "resident": [], "on_demand": state}
        made = document(host, coder, facts=facts, services=[answer("coder", **IDLE)])
    elif turn == 3:
        progress = {"heavy": {"stage": "load", "percent": 45, "seconds": 80, "left_seconds": 95}}
        facts = {
            "units": [unit("heavy", "activating")],
            "resident": [{"name": "heavy", "gib": 21.0}],
            "starting": progress,
        }
        made = document(host, service("heavy"), facts=facts, services=[answer("heavy", **IDLE)])
    elif turn == 4:
        made = document(host, service("heavy"), gpu=GPU_CAPPED, services=[answer("heavy", tokens_per_second=11.2)])
    elif turn in (5, 6):
        span = {"cluster": {"name": cluster, "size": 2, "executor": "ray"}, "rank": turn - 5}
        ranks = service("giant", **span, **({"url": None} if turn == 6 else {}))
        made = document(host, ranks, services=[answer("giant", **(IDLE | {"ready": True} if turn == 6 else {}))])
    else:
        made = document(host, service("heavy"), service("fast"))
    why = "its agent does not answer: timed out" if turn == 7 else ""
    return Spark(host, live_status.parse(made, host), why, now - (900 if why else 2))


def live(count: int, act: Any = None, seconds: float = 1.0) -> Live:
    """Return the page of a fleet whose figures change with each look, with an hour behind it."""

    def look(_is_read: bool) -> list[Spark]:
        moving = sparks(count)
        phase = time.monotonic()
        for number, entry in enumerate(moving):
            gpu = dict(entry.document["gpu"])  # type: ignore[index]
            gpu["power_w"] = round(gpu["power_w"] + 3 * math.sin(phase + number), 1)
            entry.document["gpu"] = gpu  # type: ignore[index]
        return moving

    now = time.time()
    capped = Alarm("SparkGpuCapped", "warning", "spark-5", "The GPU of spark-5 is busy at 611 MHz", now - 2700)
    page = Live(look, lambda: CHECKS, act, seconds, lambda: Alarms((capped,), rules=40))
    for bucket in range(BUCKETS):
        for entry in sparks(count):
            page._keep(entry, now - (BUCKETS - bucket) * BUCKET_SECONDS)
    for number, hour in enumerate(page.hours.values()):
        for bucket, row in enumerate(list(hour)):
            wave = 0.5 + 0.5 * math.sin(bucket / 9 + number)
            hour[bucket] = (row[0], 60 + 20 * wave, 100 * wave, 20 + 60 * wave, 110 * wave)
    return page
