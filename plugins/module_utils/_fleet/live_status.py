# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the documents of agents as status.yml judges the answers of hosts. Pure functions.

A document comes from another host, so its form is checked; a malformed one makes that host C(unknown), and the others stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from .._common.reader import LINE, NUMBER, SIZE, WORDS, Form, Maybe, Most, one_of, optional, read
from .._host import guard_account
from . import fleet_status, status_rows
from .status_page import Endpoint
from .status_rows import LiveFigures, Row

SCHEMA = 1
GPU = ("utilization_percent", "power_w", "temperature_c", "sm_clock_mhz")
_COUNT, _FIGURE, _TEXT = Maybe(SIZE), Maybe(NUMBER), Maybe(WORDS)
_SHARE = Maybe(Form("a number", lambda value: isinstance(value, (int, float)) and -1e9 < value < 1e9))
_CLUSTER = Maybe({"name": LINE, "size": SIZE, "executor?": Maybe(LINE)})
_SERVICE = {
    "name": LINE,
    "unit": LINE,
    "model": {"repo": Maybe(LINE)},
    "memory": {"residency_gib": {"typical": _FIGURE}},
    **optional({"rank": _COUNT, "cluster": _CLUSTER, "predicted": _FIGURE, "by_unit": bool}),
    **optional(dict.fromkeys(("recipe", "state", "exclusive", "url", "vllm_version"), Maybe(LINE))),
}
_ANSWER = {
    "name": LINE,
    "ready": bool,
    "stage": LINE,
    "error": WORDS,
    "silent": WORDS,
    **optional(dict.fromkeys(("requests_running", "requests_waiting"), _COUNT)),
    **optional(
        dict.fromkeys(("kv_cache_usage", "tokens_per_second", "proved_rate", "decode_tokens_per_second"), _FIGURE)
    ),
    **optional({"decode_ratio": _FIGURE, "fast_path": _TEXT, "speed": _TEXT, "proved": _TEXT}),
}
_UNIT = {
    "name": LINE,
    **optional({"active_state": Maybe(LINE), "active_seconds": _FIGURE, "n_restarts": _COUNT, "status_text": _TEXT}),
}
_PROGRESS = optional({"stage": Maybe(LINE), "percent": _FIGURE, "seconds": _FIGURE, "left_seconds": _FIGURE})
_ON_DEMAND = optional({"state": LINE, "idle_seconds": _COUNT, "waiting": _COUNT, "pin": WORDS, "why": WORDS})
_STEP = Maybe({"at": _FIGURE, "what": one_of(*guard_account.DONE), "whom": WORDS, "why": WORDS})
_GUARD = {
    "act": bool,
    "last": _STEP,
    "stopped": Most({LINE: WORDS}, 1000),
    "refused": Most([WORDS], 1000),
    "level": Maybe(one_of(*guard_account.LEVELS)),
    "who": WORDS,
    **dict.fromkeys((*guard_account.FLOORS, "available_gib", "lowest_gib", "at"), _FIGURE),
}
_FACTS = {
    "memory": optional({"total_gib": _FIGURE, "available_gib": _FIGURE}),
    **optional(
        {
            "units": Most([_UNIT], 1000),
            "resident": Most([{"name": LINE, "gib": NUMBER}], 1000),
            "starting": Most({LINE: _PROGRESS}, 1000),
            "causes": Most({LINE: WORDS}, 1000),
            "on_demand": Most({LINE: _ON_DEMAND}, 1000),
            "guard": Maybe(_GUARD),
            "quality": Most({LINE: {"state": LINE, "text": WORDS, "drained?": bool}}, 1000),
            "unknown": Most({LINE: WORDS}, 1000),
        }
    ),
}
DOCUMENT = {
    "schema": one_of(SCHEMA),
    "host": LINE,
    "age_seconds?": NUMBER,
    "facts": _FACTS,
    "services": Most([_ANSWER], 1000),
    "planned": Most([_SERVICE], 1000),
    "gpu": optional(dict.fromkeys(GPU, _SHARE)),
    "cpu_percent": _SHARE,
    "links": Most([{"name": LINE, "up": bool, "gbps": _FIGURE}], 100),
}
"""The form of a document of an agent."""
CAPPED_MHZ, CAPPED_WATTS, BUSY_PERCENT, HOT = 1000, 40, 90, 90
"""A busy GPU with a lower clock and less power is limited by its power supply; the alerts SparkGpuCapped and SparkGpuHot have the same limits."""


@dataclass(frozen=True)
class Spark:
    """A Spark as its agent describes it. document: the last valid one; why: there is no new one. at: seconds since 1970."""

    host: str
    document: Mapping[str, Any] | None
    why: str = ""
    at: float | None = None

    @property
    def gpu(self) -> Mapping[str, Any]:
        """Load, power, temperature and clock of the GPU."""
        return (self.document or {}).get("gpu") or {}


def parse(value: Any, host: str) -> dict[str, Any]:
    """Return a document of an agent. Raises Untrusted for another form."""
    document: dict[str, Any] = read(DOCUMENT, value, f"the document of {host}")
    return document


def report(
    sparks: Sequence[Spark], checks: Mapping[str, Mapping[str, Any]], at: str
) -> tuple[fleet_status.Status, list[Endpoint]]:
    """Return the status of a fleet, and the checked endpoints that no agent knows.

    checks: of the fleet monitor, C({url, ok, error, hint, note}) by endpoint. at: time of the report.
    """
    rows: list[Row] = []
    hosts: dict[str, fleet_status.HostState] = {}
    service_names: set[str] = set()
    for spark in sparks:
        try:
            of_host, state = _judge(spark)
        except Exception as error:  # figures of one host must not hide the others
            of_host, state = [], fleet_status.HostState("unknown", f"its figures cannot be judged: {error!r}")
        hosts[spark.host] = state
        rows += of_host
        service_names |= {row.name for row in of_host}
    for row in rows:
        check = checks.get(row.name)
        if check and not check.get("ok") and not row.rank and row.ready and row.unit == "active":
            row.ready, row.stage, row.error = False, "network", str(check.get("error") or "")
    endpoints = [_endpoint(key, check) for key, check in checks.items() if key not in service_names]
    return fleet_status.report(rows, hosts, at), endpoints


def _endpoint(key: str, check: Mapping[str, Any]) -> Endpoint:
    texts = {field: str(check.get(field) or "") for field in ("error", "hint", "note")}
    return Endpoint(key, urlsplit(str(check.get("url"))).netloc, bool(check.get("ok")), **texts)


def _judge(spark: Spark) -> tuple[list[Row], fleet_status.HostState]:
    """Return the rows of a host, and its state."""
    document = spark.document or {}
    planned = {"services": [{"recipe": None, **service} for service in document.get("planned") or []]}
    if spark.why:
        rows = status_rows.status_rows(spark.host, planned, None, None)
        return rows, fleet_status.HostState("unreachable", spark.why)
    facts, answers = document["facts"], document["services"]
    rows = status_rows.status_rows(spark.host, planned, facts, answers)
    answered = {answer["name"]: answer for answer in answers}
    for row, service in zip(rows, document["planned"]):
        answer = answered.get(row.service) or {}
        row.live = LiveFigures(
            answer.get("tokens_per_second"), service.get("predicted"), answer.get("proved"), answer.get("proved_rate")
        )
    state = fleet_status.judge_facts(facts)
    silent = [f"{answer['name']}: {answer['silent']}" for answer in answers if answer["silent"]]
    notes = [*state.notes, *_notes(spark), *silent]
    return rows, replace(state, notes=notes, state="warning" if notes else "healthy")


def _notes(spark: Spark) -> list[str]:
    """Return notes about GPU and links."""
    document = spark.document or {}
    load, watts, heat, clock = (float(spark.gpu.get(name) or 0.0) for name in GPU)
    notes = []
    if load >= BUSY_PERCENT and 0 < clock < CAPPED_MHZ and 0 < watts < CAPPED_WATTS:  # 0: not measured
        notes.append(
            f"the GPU is busy at {clock:.0f} MHz and {watts:.0f} W: its power supply limits it; stop the services and unplug it for a minute"
        )
    if heat >= HOT:
        notes.append(f"the GPU has {heat:.0f} degrees Celsius and throttles")
    notes += [f"the link {link['name']} is down" for link in document.get("links") or [] if not link["up"]]
    return notes


def figures(document: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Return the figures whose last hour is kept: used memory in GiB, GPU load in percent, its power in watts, tokens per second."""
    memory, gpu = document["facts"]["memory"], document["gpu"]
    total, available = memory.get("total_gib"), memory.get("available_gib")
    used = None if total is None or available is None else round(total - available, 2)
    rates = [rate for answer in document["services"] if (rate := answer.get("tokens_per_second")) is not None]
    return used, gpu.get("utilization_percent"), gpu.get("power_w"), round(sum(rates), 1) if rates else None
