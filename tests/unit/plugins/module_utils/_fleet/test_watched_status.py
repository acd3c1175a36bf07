# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet as its monitor knows it: checks, engines' metrics and exporters, on the page that status.yml makes of ssh."""

from __future__ import annotations

import json
from typing import Any

import pytest
from html_fixture import Reader

from ansible_collections.dgxspark.vllm.plugins.filter.page_plan import FilterModule
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.sizes import GIB
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import status_page, watched_status

NOW = 1_795_000_000.0
HOSTILE = "</style><script>alert(1)</script>\"'&<img src=x onerror=1>"


def service(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "unit": f"spark-{name}.service",
        "recipe": "r",
        "model": {"repo": f"Org/{name}"},
        "memory": {"residency_gib": {"typical": 40.0}},
        **more,
    }


def plan(*services: dict[str, Any]) -> dict[str, Any]:
    parts = [{"label": "free", "gib": 120.0, "kind": "free", "service": None}]
    return {"total_gib": 120.0, "memory_map": parts, "findings": [], "services": list(services)}


def exporter(*names: str, age: float = 10.0, state: str = "active", more: str = "") -> watched_status.Exporter:
    lines = [
        f"dgxspark_collector_last_run_timestamp_seconds {NOW - age}",
        "dgxspark_collector_interval_seconds 30",
        f"dgxspark_memory_total_bytes {120 * GIB}",
        f"dgxspark_memory_available_bytes {60 * GIB}",
        "some_other_metric 1",
    ]
    for name in names:
        unit = f'{{unit="spark-{name}.service",service="{name}"}}'
        lines += [
            f"dgxspark_unit_active{unit} {int(state == 'active')}",
            f"dgxspark_unit_starting{unit} {int(state == 'activating')}",
            f"dgxspark_unit_failed{unit} {int(state == 'failed')}",
            f"dgxspark_unit_active_seconds{unit} 268200",
            f'dgxspark_unit_restarts_total{{unit="spark-{name}.service",service="{name}",supervisor="0"}} 0',
            f'dgxspark_gpu_memory_bytes{{service="{name}",owner="spark-{name}"}} {39.5 * GIB}',
            f'dgxspark_benchmark_decode_tokens_per_second{{service="{name}"}} 41.5',
            f'dgxspark_benchmark_ratio{{service="{name}"}} 1',
            f'dgxspark_receipt_timestamp_seconds{{service="{name}"}} {NOW - 86400}',
            f'dgxspark_receipt_measured{{service="{name}",figure="decode_tokens_per_second"}} 40.25',
        ]
    return "\n".join([*lines, more]), ""


def check(ok: bool = True, error: str = "", hint: str = "", url: str = "http://192.168.1.11:8001") -> dict[str, Any]:
    return {"url": url, "ok": ok, "error": error, "hint": hint, "completion": None, "note": ""}


FIGURES = {"kv_cache_usage": 0.12, "requests_running": 3, "requests_waiting": 0, "tokens_per_second": 12.34}


def seen(
    plans: dict[str, Any],
    checks: dict[str, Any] | None = None,
    exporters: dict[str, watched_status.Exporter] | None = None,
    figures: dict[str, Any] | None = None,
) -> tuple[dict[str, dict[str, Any]], dict[str, Any], str]:
    """Return rows by service, the report and the text of the page."""
    planned = watched_status.planned(plans)
    json.dumps(planned)
    status, endpoints = watched_status.report(planned, checks or {}, figures or {}, exporters or {}, NOW)
    text = Reader(status_page.page(status, planned, endpoints, "Made anew.")).text
    return {f"{row.host}/{row.service}": row for row in status.services}, status, text


def whole_page() -> str:
    """Return a page with one of each, which tests/webui shows in a browser."""
    late = service("late", state="on_demand")
    finding = {"rule": "memory.node", "severity": "error", "service": "", "message": "Too much.", "fix": "Less."}
    planned = watched_status.planned(
        {
            "s1": {**plan(service("heavy"), late), "findings": [finding]},
            "s2": plan(service("fast")),
            "s3": plan(service("far")),
        }
    )
    checks = {
        "s1/heavy": check(),
        "s2/fast": check(False, "no token of fast: no answer within 60 s"),
        "s3/far": check(False, "refused"),
        "forge/gateway": check(url="http://192.168.1.5:4000"),
        "M3": check(False, "Connection refused", "see its fan", "http://192.168.1.10:8009"),
    }
    exporters = {
        "s1": exporter("heavy"),
        "s2": exporter("fast", age=900),
        "s3": (None, "its exporter does not answer: timed out"),
    }
    status, endpoints = watched_status.report(planned, checks, {"s1/heavy": FIGURES}, exporters, NOW)
    return status_page.page(status, planned, endpoints, "By the fleet monitor of forge.")


def test_a_page_with_one_of_each() -> None:
    text = Reader(whole_page()).text
    assert all(
        word in text
        for word in ("unreachable", "down", "warning", "healthy", "memory.node", "served tok/s", "Other endpoints")
    )


def test_a_service_with_all_that_is_known_of_it() -> None:
    rows, status, text = seen(
        {"s1": plan(service("heavy"))},
        {"s1/heavy": check()},
        {"s1": exporter("heavy")},
        {"s1/heavy": FIGURES},
    )
    assert rows["s1/heavy"].state == "healthy" and status.healthy and status.hosts["s1"].why == ""
    assert (
        "heavy Org/heavy - healthy 3 running 12 % used 39.5 GiB 40.0 GiB planned 41.5 - 3d 2h 12.3 2026-11-1" in text
        and "UTC, 40.2 tok/s" in text
    )
    assert "Nothing: everything checked is healthy" in text and "Made anew." in text


def test_without_exporters_nothing_is_known_of_memory_and_units_and_that_is_no_trouble() -> None:
    rows, status, text = seen({"s1": plan(service("heavy"))}, {"s1/heavy": check()})
    assert rows["s1/heavy"].state == "healthy" and status.healthy
    assert f"Its memory is not known: {watched_status.NO_EXPORTERS}" in text and "Nothing: everything checked" in text
    rows, _status, text = seen({"s1": plan(service("heavy"))}, {"s1/heavy": check(False, "Connection refused")})
    assert rows["s1/heavy"].state == "down" and "s1/heavy down Connection refused Fix: On s1: journalctl" in text


@pytest.mark.parametrize(
    ("unit", "state"), [("active", "down"), ("activating", "starting"), ("failed", "down"), ("inactive", "down")]
)
def test_a_service_that_does_not_answer_by_its_unit(unit: str, state: str) -> None:
    rows, _status, _text = seen(
        {"s1": plan(service("heavy"))},
        {"s1/heavy": check(False, "HTTP 503")},
        {"s1": exporter("heavy", state=unit)},
    )
    assert (rows["s1/heavy"].state, rows["s1/heavy"].unit) == (state, unit)


def test_a_service_that_the_monitor_may_not_ask_goes_by_its_unit() -> None:
    plans = {"s1": plan(service("hidden"))}
    assert seen(plans, {}, {"s1": exporter("hidden")})[0]["s1/hidden"].state == "healthy"
    assert seen(plans)[0]["s1/hidden"].state == "unknown"


def test_one_on_demand_is_cold_though_its_socket_answers() -> None:
    plans = {"s1": plan(service("late", state="on_demand"))}
    rows, _status, text = seen(plans, {"s1/late": check()}, {"s1": exporter("late", state="inactive")})
    assert rows["s1/late"].state == "unloaded" and "Nothing: everything checked is healthy" in text


def test_ranks_without_exporters_run_when_the_model_answers() -> None:
    span = {"name": "pair", "size": 2, "executor": "mp"}
    plans = {
        "s1": plan(service("big", rank=0, cluster={**span, "hosts": ["s1", "s2"]})),
        "s2": plan(service("big", rank=1, cluster=span)),
    }
    rows, status, _text = seen(plans, {"pair/big": check()})
    assert {row.state for row in rows.values()} == {"healthy"} and status.counts["services"] == 1
    rows, _status, _text = seen(plans, {"pair/big": check(False, "no answer")})
    assert rows["s1/big"].state == "down" and rows["s2/big"].state == "unknown"


def test_a_cold_cluster_on_demand_is_well_with_exporters_and_without() -> None:
    span = {"name": "pair", "size": 2, "executor": "mp"}
    plans = {
        "s1": plan(service("big", rank=0, state="on_demand", cluster={**span, "hosts": ["s1", "s2"]})),
        "s2": plan(service("big", rank=1, state="on_demand", cluster=span)),
    }
    exporters_by_host = {host: exporter("big", state="inactive") for host in plans}
    rows, _status, text = seen(plans, {"pair/big": check()}, exporters_by_host)
    assert {row.state for row in rows.values()} == {"unloaded"} and "Nothing: everything checked is healthy" in text
    rows, _status, _text = seen(plans, {"pair/big": check()})
    assert {row.state for row in rows.values()} == {"healthy"}  # its socket answers, and no more is known
    rows, _status, _text = seen(
        plans, {"pair/big": check()}, {**exporters_by_host, "s2": exporter("big", state="failed")}
    )
    assert rows["s2/big"].state == "down"


def test_an_exporter_that_is_gone() -> None:
    gone = {"s1": (None, "its exporter does not answer: timed out")}
    rows, status, text = seen({"s1": plan(service("heavy"))}, {"s1/heavy": check(False, "refused")}, gone)
    assert rows["s1/heavy"].state == "unreachable" and "s1 unreachable its exporter does not answer" in text
    # The engine answers: the host is there, and somebody looks after the exporter.
    rows, status, text = seen({"s1": plan(service("heavy"))}, {"s1/heavy": check()}, gone)
    assert rows["s1/heavy"].state == "healthy" and status.hosts["s1"].state == "warning"
    assert "s1 warning its exporter does not answer: timed out Fix: doctor.yml --limit s1" in text


def test_figures_that_are_old_or_not_there_are_not_shown() -> None:
    plans, checks = {"s1": plan(service("heavy"))}, {"s1/heavy": check()}
    rows, status, text = seen(plans, checks, {"s1": exporter("heavy", age=900)})
    assert status.hosts["s1"].notes == ["its collector has written no metrics for 15m 0s"]
    assert rows["s1/heavy"].residency_gib is None and "Its memory is not known: its collector has stopped" in text
    # By the clock of that host, which is another than the monitor's.
    late = exporter("heavy", age=900, more=f"node_time_seconds {NOW - 890}")
    assert seen(plans, checks, {"s1": late})[1].hosts["s1"].state == "healthy"
    _rows, status, _text = seen(plans, checks, {"s1": ("node_load1 1\n", "")})
    assert status.hosts["s1"].notes == [watched_status.NO_COLLECTOR]


def test_the_guard_is_heard() -> None:
    more = 'dgxspark_guard_level{level="short"} 1\ndgxspark_guard_stopped{service="fast"} 1'
    _rows, status, _text = seen({"s1": plan(service("heavy"))}, {}, {"s1": exporter("heavy", more=more)})
    assert status.hosts["s1"].notes == ["the guard finds memory short", "the guard of the memory stopped fast"]


def test_endpoints_beside_the_plan_are_on_the_page() -> None:
    checks = {"forge/gateway": check(url="http://192.168.1.5:4000"), "M3": check(False, "refused", "see its fan")}
    _rows, _status, text = seen({"s1": plan()}, checks)
    assert "M3 down refused Fix: see its fan" in text and "forge/gateway 192.168.1.5:4000 up" in text


def test_no_plan_yet() -> None:
    _rows, status, text = seen({}, {"s1/heavy": check()})
    assert status.services == [] and "s1/heavy 192.168.1.11:8001 up" in text


def test_what_travels_of_a_plan() -> None:
    body = plan(service("heavy", argv=["--secret"], env={"TOKEN": "x"}, api_key={"source": "/keys/heavy"}, rank=None))
    finding = {"rule": "r", "severity": "warning", "service": "", "message": "m", "fix": "f", "source": "/home/me"}
    body["findings"] = [finding, {**finding, "severity": "info"}]
    planned = FilterModule().filters()["page_plan"]({"s1": body})
    assert set(planned["s1"]["services"][0]) == {"name", "unit", "recipe", "cluster", "model", "memory"}
    assert planned["s1"]["findings"] == [
        {key: finding[key] for key in ("rule", "severity", "service", "message", "fix")}
    ]


@pytest.mark.parametrize(
    ("before", "count", "expected"),
    [
        ([NOW - 100, 500], 1500.0, 10.0),
        (None, 1500.0, None),
        ([NOW - 100, 500], None, None),
        ([NOW - 100, 5000], 1500.0, None),
        ([NOW, 500], 1500.0, None),
        (["x", 500], 1500.0, None),
        ([NOW - 100], 1500.0, None),
        ({"at": 1}, 1500.0, None),
    ],
)
def test_tokens_a_second(before: Any, count: float | None, expected: float | None) -> None:
    assert watched_status.rate(before, NOW, count) == expected


def test_what_a_host_says_cannot_become_markup() -> None:
    quoted = HOSTILE.replace("\\", "\\\\").replace('"', '\\"')
    more = f'dgxspark_guard_stopped{{service="{quoted}"}} 1'
    plans = watched_status.planned({HOSTILE: plan(service(HOSTILE))})
    checks = {f"{HOSTILE}/{HOSTILE}": check(False, HOSTILE), HOSTILE: check(False, HOSTILE, HOSTILE, "http://h:1")}
    status, endpoints = watched_status.report(plans, checks, {}, {HOSTILE: exporter(more=more)}, NOW)
    reader = Reader(status_page.page(status, plans, endpoints, HOSTILE))
    assert not {tag for tag, _attributes in reader.tags} & {"script", "img"} and reader.text.count("alert(1)") >= 6


def test_a_time_that_no_calendar_has() -> None:
    more = 'dgxspark_receipt_timestamp_seconds{service="late"} 1e300'
    rows, _status, _text = seen({"s1": plan(service("late"))}, {}, {"s1": exporter(more=more)})
    assert rows["s1/late"].watched.proved is None
