#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the dashboards of the role monitoring with Grafana's own library, and the tables of docs/monitoring.md.

Run with PYTHONPATH=collections; --check only compares, --tables leaves the dashboards alone (they need grafana-foundation-sdk).
No panel asks for what a GB10 does not have; tests/monitoring holds every query against that.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import jinja2
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import monitoring

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "roles/monitoring/files/dashboards"
PAGE = ROOT / "docs/monitoring.md"
RULES = ROOT / "roles/monitoring/templates/rules.yml.j2"
COLLECTOR = ROOT / "roles/exporters/files/spark_collector.py"
WIDTH = 24

# A panel: title, kind, unit, width, what it is for, and its queries (legend, PromQL).
Panel = tuple[str, str, str, int, str, list[tuple[str, str]]]

BY = "host, service"
H = '{host=~"$host"}'
S = '{host=~"$host",service=~"$service"}'


def quantiles(metric: str) -> list[tuple[str, str]]:
    """Return the queries of a histogram of vLLM."""
    rate = f"rate({metric}_bucket{S}[$__rate_interval])"
    return [
        (f"{{{{service}}}} {{{{host}}}} p{round(q * 100)}", f"histogram_quantile({q}, sum by (le, {BY}) ({rate}))")
        for q in (0.5, 0.95, 0.99)
    ]


def mean(metric: str) -> str:
    """Return the query of a histogram's mean."""
    return (
        f"sum by ({BY}) (rate({metric}_sum{S}[$__rate_interval])) "
        f"/ (sum by ({BY}) (rate({metric}_count{S}[$__rate_interval])) > 0)"
    )


FLEET: list[tuple[str, list[Panel]]] = [
    (
        "Now",
        [
            (
                "Sparks that answer",
                "stat",
                "short",
                4,
                "Hosts whose node_exporter answers.",
                [("", 'sum(up{job="node"})')],
            ),
            ("Engines that answer", "stat", "short", 4, "vLLM services that answer.", [("", 'sum(up{job="vllm"})')]),
            (
                "Alerts",
                "stat",
                "short",
                4,
                "Alerts that fire now.",
                [("", 'count(ALERTS{alertstate="firing"}) or vector(0)')],
            ),
            (
                "Tokens",
                "stat",
                "tokens/s",
                4,
                "What all engines generate together.",
                [("", "sum(dgxspark:generation_tokens:rate5m)")],
            ),
            ("Requests running", "stat", "short", 4, "In all engines.", [("", "sum(dgxspark:requests_running)")]),
            ("Requests waiting", "stat", "short", 4, "In all engines.", [("", "sum(dgxspark:requests_waiting)")]),
        ],
    ),
    (
        "Engines",
        [
            (
                "Generated tokens",
                "lines",
                "tokens/s",
                12,
                "By service.",
                [("{{service}} {{host}}", f"dgxspark:generation_tokens:rate5m{H}")],
            ),
            (
                "Time to first token, 95 %",
                "lines",
                "s",
                12,
                "By service: what 95 of 100 requests waited for their first token.",
                [
                    (
                        "{{service}} {{host}}",
                        f"histogram_quantile(0.95, sum by (le, {BY}) "
                        f"(rate(vllm:time_to_first_token_seconds_bucket{H}[$__rate_interval])))",
                    )
                ],
            ),
            (
                "KV cache in use",
                "lines",
                "percentunit",
                12,
                "By service.",
                [("{{service}} {{host}}", f"dgxspark:kv_cache_ratio{H}")],
            ),
            (
                "Requests waiting by service",
                "lines",
                "short",
                12,
                "By service.",
                [("{{service}} {{host}}", f"dgxspark:requests_waiting{H}")],
            ),
        ],
    ),
    (
        "Hosts",
        [
            (
                "Memory available",
                "lines",
                "bytes",
                12,
                "What is left of the unified memory. A GB10 without any freezes as a whole.",
                [("{{host}}", f"dgxspark:memory_available_bytes{H}")],
            ),
            (
                "Power of the GPU",
                "lines",
                "watt",
                12,
                "Below 30 W with requests running: stuck.",
                [("{{host}}", f"dgxspark:gpu_power_watts{H}")],
            ),
            (
                "Temperature of the GPU",
                "lines",
                "celsius",
                8,
                "Throttles at about 95.",
                [("{{host}}", f"dgxspark:gpu_temperature_celsius{H}")],
            ),
            (
                "Units that are not active",
                "lines",
                "short",
                8,
                "Units of the collection by host.",
                [
                    (
                        "{{host}}",
                        f"count by (host) (dgxspark_unit_active{H} == 0) or sum by (host) (dgxspark_unit_active{H}) * 0",
                    )
                ],
            ),
            (
                "Restarts within a day",
                "lines",
                "short",
                8,
                "By unit; more than a few are a loop.",
                [("{{unit}} {{host}}", f"increase(dgxspark_unit_restarts_total{H}[1d])")],
            ),
        ],
    ),
    (
        "Gateway",
        [
            (
                "Answers by backend",
                "lines",
                "reqps",
                12,
                "What LiteLLM got from where.",
                [
                    (
                        "{{litellm_model_name}} {{api_base}}",
                        "sum by (litellm_model_name, api_base) (rate(litellm_deployment_success_responses_total[$__rate_interval]))",
                    )
                ],
            ),
            (
                "Failures by backend",
                "lines",
                "reqps",
                12,
                "What came back as an error.",
                [
                    (
                        "{{litellm_model_name}} {{api_base}}",
                        "sum by (litellm_model_name, api_base) (rate(litellm_deployment_failure_responses_total[$__rate_interval]))",
                    )
                ],
            ),
        ],
    ),
]

GPU_HELD = f"sum by (owner) (dgxspark_gpu_memory_bytes{H})"
NODE: list[tuple[str, list[Panel]]] = [
    (
        "Unified memory",
        [
            (
                "Who holds the memory",
                "stacked",
                "bytes",
                24,
                "GPU processes by what they belong to, everything else, page cache and what is free; the lines are the plan and the total.",
                [
                    ("GPU {{owner}}", GPU_HELD),
                    (
                        "everything else",
                        f"clamp_min(sum(dgxspark_memory_total_bytes{H}) - sum(dgxspark_memory_free_bytes{H}) "
                        f"- sum(dgxspark_memory_page_cache_bytes{H}) - (sum(dgxspark_gpu_memory_bytes{H}) or vector(0)), 0)",
                    ),
                    ("page cache", f"sum(dgxspark_memory_page_cache_bytes{H})"),
                    ("free", f"sum(dgxspark_memory_free_bytes{H})"),
                    ("planned", f"sum(dgxspark_service_planned_bytes{H})"),
                    ("total", f"sum(dgxspark_memory_total_bytes{H})"),
                ],
            ),
            (
                "Held against the plan",
                "lines",
                "bytes",
                12,
                "GPU memory of each service, and what the plan expects it to hold.",
                [
                    ("{{service}} held", 'sum by (service) (dgxspark_gpu_memory_bytes{host=~"$host",service!=""})'),
                    ("{{service}} planned", f"sum by (service) (dgxspark_service_planned_bytes{H})"),
                ],
            ),
            (
                "Available, free, page cache",
                "lines",
                "bytes",
                12,
                "vLLM goes by what is available, the driver allocates from what is free; page cache lies between the two.",
                [
                    ("available", f"sum(dgxspark_memory_available_bytes{H})"),
                    ("free", f"sum(dgxspark_memory_free_bytes{H})"),
                    ("page cache", f"sum(dgxspark_memory_page_cache_bytes{H})"),
                    ("swap in use", f"sum(dgxspark_memory_swap_used_bytes{H})"),
                ],
            ),
            (
                "Pressure",
                "lines",
                "percentunit",
                12,
                "Share of time in which something stood still for want of memory (PSI).",
                [
                    ("all stand still", f"rate(node_pressure_memory_stalled_seconds_total{H}[$__rate_interval])"),
                    ("some wait", f"rate(node_pressure_memory_waiting_seconds_total{H}[$__rate_interval])"),
                ],
            ),
            (
                "Lowest free while loading",
                "lines",
                "bytes",
                12,
                "Lowest MemFree that the load guard saw during the last start of each service.",
                [("{{service}}", f"dgxspark_load_guard_lowest_free_bytes{H}")],
            ),
        ],
    ),
    (
        "GPU",
        [
            (
                "Power",
                "lines",
                "watt",
                6,
                "A GB10 has no power limit to compare with.",
                [("{{host}}", f"dgxspark:gpu_power_watts{H}")],
            ),
            (
                "SM clock",
                "lines",
                "hertz",
                6,
                "Up to 3 GHz; under load below 1 GHz is a fault.",
                [("{{host}}", f"dgxspark:gpu_sm_clock_hertz{H}")],
            ),
            (
                "Temperature",
                "lines",
                "celsius",
                6,
                "Throttles at about 95.",
                [("{{host}}", f"dgxspark:gpu_temperature_celsius{H}")],
            ),
            (
                "Utilisation",
                "lines",
                "percentunit",
                6,
                "96 % is also what a stuck engine shows; power tells the two apart.",
                [("{{host}}", f"dgxspark:gpu_utilization_ratio{H}")],
            ),
        ],
    ),
    (
        "QSFP rails",
        [
            (
                "Received by rail",
                "lines",
                "Bps",
                12,
                "RDMA included, which the kernel's own counters do not see.",
                [("{{netdev}} {{rdma}}", f"rate(dgxspark_rail_received_bytes_total{H}[$__rate_interval])")],
            ),
            (
                "Sent by rail",
                "lines",
                "Bps",
                12,
                "Both interfaces of a cage should carry about the same.",
                [("{{netdev}} {{rdma}}", f"rate(dgxspark_rail_transmitted_bytes_total{H}[$__rate_interval])")],
            ),
            (
                "Up",
                "lines",
                "short",
                6,
                "1: interface up and RoCE port active.",
                [("{{netdev}}", f"dgxspark_rail_up{H}")],
            ),
            (
                "MTU",
                "lines",
                "bytes",
                6,
                "9000 on both interfaces; a firmware update puts one back to 1500.",
                [
                    ("{{netdev}}", f"dgxspark_rail_mtu_bytes{H}"),
                    ("{{netdev}} planned", f"dgxspark_rail_expected_mtu_bytes{H}"),
                ],
            ),
            ("PCIe lanes", "lines", "short", 6, "4 each.", [("{{netdev}}", f"dgxspark_rail_pcie_lanes{H}")]),
            (
                "Errors",
                "lines",
                "short",
                6,
                "By the name of the card's counter.",
                [("{{netdev}} {{counter}}", f"rate(dgxspark_rail_errors_total{H}[$__rate_interval])")],
            ),
        ],
    ),
    (
        "Host",
        [
            (
                "CPU",
                "lines",
                "percentunit",
                6,
                "Busy share of all cores.",
                [
                    (
                        "{{host}}",
                        '1 - avg by (host) (rate(node_cpu_seconds_total{host=~"$host",mode="idle"}[$__rate_interval]))',
                    )
                ],
            ),
            (
                "Disk free",
                "lines",
                "percentunit",
                6,
                "By file system.",
                [
                    (
                        "{{mountpoint}}",
                        'node_filesystem_avail_bytes{host=~"$host",fstype!~"tmpfs|ramfs|overlay|squashfs|vfat"} '
                        '/ node_filesystem_size_bytes{host=~"$host",fstype!~"tmpfs|ramfs|overlay|squashfs|vfat"}',
                    )
                ],
            ),
            (
                "Disk reads",
                "lines",
                "Bps",
                6,
                "Weights are loaded from here.",
                [("{{device}}", f"rate(node_disk_read_bytes_total{H}[$__rate_interval])")],
            ),
            ("Units", "lines", "short", 6, "1: active.", [("{{unit}}", f"dgxspark_unit_active{H}")]),
            (
                "Management network",
                "lines",
                "Bps",
                12,
                "What the kernel sees, by interface: no RDMA.",
                [
                    (
                        "{{device}} in",
                        'rate(node_network_receive_bytes_total{host=~"$host",device!~"lo|veth.*|docker.*|br-.*"}[$__rate_interval])',
                    ),
                    (
                        "{{device}} out",
                        'rate(node_network_transmit_bytes_total{host=~"$host",device!~"lo|veth.*|docker.*|br-.*"}[$__rate_interval])',
                    ),
                ],
            ),
            (
                "Collector",
                "lines",
                "s",
                6,
                "How long one round takes.",
                [("{{host}}", f"dgxspark_collector_duration_seconds{H}")],
            ),
            (
                "Sources of the collector",
                "lines",
                "short",
                6,
                "1: could be read.",
                [("{{source}}", f"dgxspark_collector_source_up{H}")],
            ),
        ],
    ),
]

SERVICE: list[tuple[str, list[Panel]]] = [
    (
        "Speed",
        [
            (
                "Time to first token",
                "lines",
                "s",
                12,
                "Queue and prefill.",
                quantiles("vllm:time_to_first_token_seconds"),
            ),
            (
                "Between two tokens",
                "lines",
                "s",
                12,
                "What a reader of one answer feels.",
                quantiles("vllm:inter_token_latency_seconds"),
            ),
            (
                "Tokens",
                "lines",
                "tokens/s",
                12,
                "Generated and read.",
                [
                    ("{{service}} {{host}} generated", f"dgxspark:generation_tokens:rate5m{S}"),
                    ("{{service}} {{host}} prompts", f"dgxspark:prompt_tokens:rate5m{S}"),
                ],
            ),
            (
                "Where the time of a request goes",
                "lines",
                "s",
                12,
                "Means.",
                [
                    ("{{service}} waiting", mean("vllm:request_queue_time_seconds")),
                    ("{{service}} prefill", mean("vllm:request_prefill_time_seconds")),
                    ("{{service}} decode", mean("vllm:request_decode_time_seconds")),
                    ("{{service}} whole", mean("vllm:e2e_request_latency_seconds")),
                ],
            ),
        ],
    ),
    (
        "Load",
        [
            (
                "Requests",
                "lines",
                "short",
                8,
                "Running, and waiting for their turn.",
                [
                    ("{{service}} {{host}} running", f"dgxspark:requests_running{S}"),
                    ("{{service}} {{host}} waiting", f"dgxspark:requests_waiting{S}"),
                ],
            ),
            (
                "KV cache in use",
                "lines",
                "percentunit",
                8,
                "Full with requests waiting: too small.",
                [("{{service}} {{host}}", f"dgxspark:kv_cache_ratio{S}")],
            ),
            (
                "Preemptions",
                "lines",
                "short",
                8,
                "Requests that were thrown out of the KV cache and begin again, a second.",
                [("{{service}} {{host}}", f"sum by ({BY}) (rate(vllm:num_preemptions_total{S}[$__rate_interval]))")],
            ),
            (
                "How requests ended",
                "lines",
                "reqps",
                8,
                "stop and length are as they should be.",
                [
                    (
                        "{{service}} {{finished_reason}}",
                        f"sum by ({BY}, finished_reason) (rate(vllm:request_success_total{S}[$__rate_interval]))",
                    )
                ],
            ),
            (
                "Length of prompts and answers",
                "lines",
                "short",
                8,
                "Means, in tokens.",
                [
                    ("{{service}} prompt", mean("vllm:request_prompt_tokens")),
                    ("{{service}} answer", mean("vllm:request_generation_tokens")),
                ],
            ),
            (
                "Answers of the server",
                "lines",
                "reqps",
                8,
                "By status.",
                [("{{service}} {{status}}", f"sum by ({BY}, status) (rate(http_requests_total{S}[$__rate_interval]))")],
            ),
        ],
    ),
    (
        "Caches and speculation",
        [
            (
                "Prefix cache hits",
                "lines",
                "percentunit",
                8,
                "Share of prompt tokens that had not to be read again.",
                [
                    ("{{service}} {{host}}", f"dgxspark:prefix_cache_hits:ratio5m{S}"),
                    ("{{service}} {{host}} over an hour", f"dgxspark:prefix_cache_hits:ratio1h{S}"),
                ],
            ),
            (
                "Drafted tokens accepted",
                "lines",
                "percentunit",
                8,
                "Below a third speculation costs more than it gives.",
                [("{{service}} {{host}}", f"dgxspark:draft_tokens_accepted:ratio30m{S}")],
            ),
            (
                "Tokens a step",
                "lines",
                "short",
                8,
                "One, and what was accepted of the draft.",
                [
                    (
                        "{{service}} {{host}}",
                        f"1 + sum by ({BY}) (rate(vllm:spec_decode_num_accepted_tokens_total{S}[30m])) "
                        f"/ (sum by ({BY}) (rate(vllm:spec_decode_num_drafts_total{S}[30m])) > 0)",
                    )
                ],
            ),
            (
                "Accepted by position",
                "lines",
                "percentunit",
                12,
                "Share of drafts whose token at this position was accepted: the last ones tell whether fewer would do.",
                [
                    (
                        "{{service}} position {{position}}",
                        f"sum by ({BY}, position) (rate(vllm:spec_decode_num_accepted_tokens_per_pos_total{S}[30m])) "
                        f"/ on ({BY}) group_left () (sum by ({BY}) (rate(vllm:spec_decode_num_drafts_total{S}[30m])) > 0)",
                    )
                ],
            ),
            (
                "Memory against the plan",
                "lines",
                "bytes",
                12,
                "What the service holds, and what it was planned with.",
                [
                    ("{{service}} {{host}} held", f"sum by ({BY}) (dgxspark_gpu_memory_bytes{S})"),
                    ("{{service}} {{host}} planned", f"sum by ({BY}) (dgxspark_service_planned_bytes{S})"),
                ],
            ),
        ],
    ),
    (
        "Deployment",
        [
            (
                "Decoding at the last proof",
                "lines",
                "tokens/s",
                6,
                "One short request, and when the deployment was first proved.",
                [
                    (
                        "{{service}} {{host}}",
                        'dgxspark_receipt_measured{host=~"$host",service=~"$service",figure="decode_tokens_per_second"}',
                    ),
                    (
                        "{{service}} {{host}} first",
                        'dgxspark_receipt_baseline{host=~"$host",service=~"$service",figure="decode_tokens_per_second"}',
                    ),
                ],
            ),
            (
                "Decoding at the last bench.yml",
                "lines",
                "tokens/s",
                6,
                "The shortest prompts, and the same when it was first measured.",
                [
                    ("{{service}} {{host}}", f"dgxspark_benchmark_decode_tokens_per_second{S}"),
                    ("{{service}} {{host}} first", f"dgxspark_benchmark_baseline_decode_tokens_per_second{S}"),
                ],
            ),
            (
                "Against the baseline",
                "lines",
                "percentunit",
                6,
                "The one by the other, where the two are comparable: same image, arguments, prompts, driver and clock.",
                [("{{service}} {{host}}", f"dgxspark_benchmark_ratio{S}")],
            ),
            (
                "Age of the receipt",
                "lines",
                "s",
                6,
                "Since the service was last proved, and last measured.",
                [
                    ("{{service}} {{host}} proved", f"time() - dgxspark_receipt_timestamp_seconds{S}"),
                    ("{{service}} {{host}} measured", f"time() - dgxspark_benchmark_timestamp_seconds{S}"),
                ],
            ),
            (
                "Last start",
                "lines",
                "s",
                12,
                "Until the model answered.",
                [("{{service}} {{host}}", f"dgxspark_service_start_seconds{S}")],
            ),
            (
                "Restarts",
                "lines",
                "short",
                12,
                "Since the unit was last started by a person.",
                [("{{unit}} {{host}}", f"dgxspark_unit_restarts_total{S}")],
            ),
            (
                "What the watchdog did",
                "lines",
                "short",
                12,
                "Restarts within a day, and what it thinks of each server now.",
                [
                    ("{{service}} {{host}} restarts within a day", f"dgxspark_watchdog_restarts_within_day{S}"),
                    ("{{service}} {{host}} {{state}}", f"dgxspark_watchdog_state{S}"),
                ],
            ),
            (
                "What the guard did",
                "lines",
                "short",
                12,
                "Steps of the guard of the host since it was installed; who took the memory is in its journal.",
                [("{{host}} {{step}}", f"dgxspark_guard_steps_total{H}")],
            ),
            (
                "Lowest memory that the guard saw",
                "lines",
                "bytes",
                12,
                "MemAvailable since the guard was started.",
                [("{{host}}", f"dgxspark_guard_lowest_available_bytes{H}")],
            ),
            (
                "What the load guard did",
                "lines",
                "short",
                12,
                "In the last start of each service.",
                [
                    ("{{service}} caches dropped", f"dgxspark_load_guard_drops{S}"),
                    ("{{service}} memory compacted", f"dgxspark_load_guard_compactions{S}"),
                ],
            ),
        ],
    ),
]

# File -> title, variables, rows.
DASHBOARDS: dict[str, tuple[str, tuple[str, ...], list[tuple[str, list[Panel]]]]] = {
    "fleet": ("DGX Sparks: fleet", ("host",), FLEET),
    "node": ("DGX Sparks: node", ("host",), NODE),
    "service": ("DGX Sparks: service", ("host", "service"), SERVICE),
}
VARIABLES = {
    "host": "label_values(up, host)",
    "service": 'label_values(up{job="vllm",host=~"$host"}, service)',
}
# Grafana's names of units that differ from what stands above.
UNITS = {"tokens/s": "suffix: tokens/s"}


def dashboard(name: str) -> str:
    """Return the JSON of a dashboard."""
    from grafana_foundation_sdk.builders import common as common_builder
    from grafana_foundation_sdk.builders import dashboard as builder
    from grafana_foundation_sdk.builders import prometheus, stat, timeseries
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common
    from grafana_foundation_sdk.models import dashboard as model

    title, variables, rows = DASHBOARDS[name]
    source = model.DataSourceRef(type_val="prometheus", uid="dgxspark")
    made = (
        builder.Dashboard(title)
        .uid(f"dgxspark-{name}")
        .tags(["dgxspark"])
        .readonly()
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .link(
            builder.DashboardLink("DGX Sparks")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["dgxspark"])
            .as_dropdown(True)
            .keep_time(True)
        )
    )
    for variable in variables:
        single = name == "node"
        query = (
            builder.QueryVariable(variable)
            .query(VARIABLES[variable])
            .datasource(source)
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
        query = query.sort(model.VariableSort.ALPHABETICAL_ASC).label(variable)
        made = made.with_variable(query if single else query.multi(True).include_all(True).all_value(".*"))
    for row, panels in rows:
        made = made.with_row(builder.Row(row))
        for panel_title, kind, unit, width, description, queries in panels:
            assert 0 < width <= WIDTH
            shown: Any = stat.Panel() if kind == "stat" else timeseries.Panel()
            shown = (
                shown.title(panel_title)
                .description(description)
                .datasource(source)
                .unit(UNITS.get(unit, unit).replace("suffix: ", "suffix:"))
                .span(width)
                .height(4 if kind == "stat" else 10 if kind == "stacked" else 8)
            )
            if kind == "stat":
                shown = shown.graph_mode(common.BigValueGraphMode.AREA).reduce_options(
                    common_builder.ReduceDataOptions().calcs(["lastNotNull"])
                )
            else:
                shown = (
                    shown.line_width(1)
                    .fill_opacity(60 if kind == "stacked" else 8)
                    .show_points(common.VisibilityMode.NEVER)
                    .min(0)
                )
                shown = shown.tooltip(common_builder.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
                shown = shown.legend(
                    common_builder.VizLegendOptions()
                    .display_mode(common.LegendDisplayMode.LIST)
                    .placement(common.LegendPlacement.BOTTOM)
                    .show_legend(True)
                )
            if kind == "stacked":
                shown = shown.stacking(common_builder.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
                for line in ("planned", "total"):
                    shown = shown.override_by_name(
                        line,
                        [
                            model.DynamicConfigValue("custom.stacking", {"mode": "none", "group": line}),
                            model.DynamicConfigValue("custom.fillOpacity", 0),
                            model.DynamicConfigValue("custom.lineWidth", 2),
                        ],
                    )
            for number, (legend, asked_for) in enumerate(queries):
                asked = prometheus.Dataquery().expr(asked_for).ref_id(chr(ord("A") + number)).datasource(source)
                shown = shown.with_target(asked.legend_format(legend) if legend else asked)
            made = made.with_panel(shown)
    return str(JSONEncoder(sort_keys=True, indent=2).encode(made.build())) + "\n"


# --- tables of the page --------------------------------------------------------------------------------------------


def rules(thresholds: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the rules as the role writes them, with the thresholds' defaults."""
    values = {name: key.default for name, key in monitoring.THRESHOLDS.items()}
    environment = jinja2.Environment(
        variable_start_string="[[", variable_end_string="]]", undefined=jinja2.StrictUndefined
    )
    text = environment.from_string(RULES.read_text(encoding="utf-8")).render(
        monitoring_thresholds={**values, **(thresholds or {})}
    )
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def metrics() -> dict[str, tuple[str, str, tuple[str, ...]]]:
    """Return the table of the collector's figures."""
    found: dict[str, tuple[str, str, tuple[str, ...]]] = runpy.run_path(str(COLLECTOR))["METRICS"]
    return found


def plain(text: str) -> str:
    """Return an annotation as a page can show it: labels in angle brackets would vanish, so they are set as code."""
    return re.sub(r"\{\{\s*\$(?:labels\.)?(\w+)[^}]*\}\}", r"`\1`", " ".join(text.split()))


def tables() -> dict[str, list[str]]:
    """Return what stands between the marks of the page, by their names."""
    found: dict[str, list[str]] = {}
    found["metrics"] = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, (kind, meaning, labels) in metrics().items():
        found["metrics"].append(f"| `{name}` | {kind} | {', '.join(labels)} | {meaning} |")
    alerts = [rule for group in rules()["groups"] for rule in group["rules"] if "alert" in rule]
    found["alerts"] = ["| alert | severity | when |", "|---|---|---|"]
    for rule in alerts:
        name, notes = rule["alert"], rule["annotations"]
        found["alerts"].append(
            f"| [{name}](#{name.lower()}) | {rule['labels']['severity']} | {plain(notes['summary'])} |"
        )
    found["runbook"] = []
    for rule in alerts:
        notes, wait = rule["annotations"], f", for {rule['for']}" if "for" in rule else ""
        found["runbook"] += [
            f"### {rule['alert']}",
            "",
            f"{plain(notes['description'])} ({rule['labels']['severity']}{wait})",
            "",
        ]
        found["runbook"] += ["```text", " ".join(rule["expr"].split()), "```", "", plain(notes["fix"]), ""]
    return found


def page(text: str) -> str:
    """Return the page with its tables filled in."""
    for name, lines in tables().items():
        begin, end = f"<!-- {name}: written by scripts/generate_dashboards.py -->", f"<!-- /{name} -->"
        before, _mark, rest = text.partition(begin)
        if not rest or end not in rest:
            raise SystemExit(f"{PAGE.name} lacks the marks {begin} and {end}")
        text = before + begin + "\n\n" + "\n".join(lines).strip("\n") + "\n\n" + end + rest.partition(end)[2]
    return text


def main() -> int:
    """Write everything, or compare it; returns the exit code."""
    wanted = {PAGE: page(PAGE.read_text(encoding="utf-8"))}
    if "--tables" not in sys.argv[1:]:
        wanted.update({FOLDER / f"{name}.json": dashboard(name) for name in DASHBOARDS})
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(
                f"{path.relative_to(ROOT)} is not what scripts/generate_dashboards.py writes; run it and commit the result."
            )
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
