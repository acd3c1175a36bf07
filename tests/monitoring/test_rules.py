"""promtool reads the rules, and each alert fires when it should and keeps silent when it should not."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import debian_programs
import generate_docs
import pytest
import yaml

pytestmark = pytest.mark.slow

RULES = generate_docs.alert_rules()
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}
GIB = 1024**3

NODE = 'host="spark-1",instance="192.168.1.11:9100",job="node"'
GPU = 'host="spark-1",instance="192.168.1.11:9835",job="gpu",uuid="GPU-1"'
HEAVY = 'host="spark-1",service="heavy",model="heavy"'
VLLM = f'{HEAVY},instance="192.168.1.11:8001",job="vllm",engine="0",model_name="heavy"'
RAIL = f'{NODE},netdev="enP2p1s0f0np0",rdma="roceP2p1s0f0",cage="0"'
EXPECTED = f'{NODE},netdev="enP2p1s0f0np0"'
LITELLM = 'host="gate",instance="192.168.1.4:4000",job="gateway",litellm_model_name="openai/heavy",api_base="http://192.168.1.11:8001/v1"'
UNIT = f'{NODE},unit="spark-heavy.service",service="heavy"'
RUNNING, TOKENS, PROMPTS = (
    f"vllm:{name}{{{VLLM}}}" for name in ("num_requests_running", "generation_tokens_total", "prompt_tokens_total")
)
POWER = f"nvidia_smi_power_draw_watts{{{GPU}}}"
DRAFTED, ACCEPTED = (f"vllm:spec_decode_num_{name}_tokens_total{{{VLLM}}}" for name in ("draft", "accepted"))
QUERIED, HIT = (f"vllm:prefix_cache_{name}_total{{{VLLM}}}" for name in ("queries", "hits"))
CACHING_ON, CACHING_OFF = (
    f'vllm:cache_config_info{{{VLLM},enable_prefix_caching="{value}"}}' for value in ("True", "False")
)
STUCK = {RUNNING: "2x90", TOKENS: "500x90", PROMPTS: "90x90"}
FAILED = f'litellm_deployment_failure_responses_total{{{LITELLM},exception_status="500"}}'
ANSWERED = f"litellm_deployment_success_responses_total{{{LITELLM}}}"
DECODE = f'{NODE},service="heavy",figure="decode_tokens_per_second"'

# Alert -> the moment looked at, series that make it fire, the labels that it then has, and series that are near it and do not.
Series = dict[str, str]
CASES: dict[str, tuple[str, Series, str, list[Series]]] = {
    "SparkEngineWedged": (
        "20m",
        {**STUCK, POWER: "13x90"},
        HEAVY,
        [
            {**STUCK, POWER: "80x90"},  # a long prefill
            {**STUCK, TOKENS: "0+500x90", POWER: "13x90"},  # tokens come
            {**STUCK, RUNNING: "0x90", POWER: "13x90"},  # nobody asks
            {**STUCK, RUNNING: "0x17 2x90", POWER: "13x90"},  # the request is new
            STUCK,  # nobody knows the power: the other alert's
        ],
    ),
    "SparkEngineStalled": (
        "40m",
        STUCK,
        HEAVY,
        [
            {**STUCK, POWER: "80x90"},
            {**STUCK, POWER: "13x90"},  # the other alert's
            {**STUCK, TOKENS: "500x30 0+9x60"},
            {**STUCK, RUNNING: "0x90"},
        ],
    ),
    "SparkKvCacheFull": (
        "15m",
        {f"vllm:kv_cache_usage_perc{{{VLLM}}}": "0.99x20", f"vllm:num_requests_waiting{{{VLLM}}}": "3x20"},
        HEAVY,
        [
            {f"vllm:kv_cache_usage_perc{{{VLLM}}}": "0.99x20", f"vllm:num_requests_waiting{{{VLLM}}}": "0x20"},
            {f"vllm:kv_cache_usage_perc{{{VLLM}}}": "0.80x20", f"vllm:num_requests_waiting{{{VLLM}}}": "3x20"},
        ],
    ),
    "SparkSpeculationUseless": (
        "90m",
        {DRAFTED: "0+600x90", ACCEPTED: "0+60x90"},
        HEAVY,
        [{DRAFTED: "0+600x90", ACCEPTED: "0+420x90"}, {DRAFTED: "0+6x90", ACCEPTED: "0x90"}],
    ),
    "SparkPrefixCacheUnused": (
        "150m",
        {QUERIED: "0+12000x180", HIT: "0+120x180", CACHING_ON: "1x180"},
        HEAVY,
        [
            {QUERIED: "0+12000x180", HIT: "0+6000x180", CACHING_ON: "1x180"},  # of use
            {QUERIED: "0+600x180", HIT: "0x180", CACHING_ON: "1x180"},  # hardly anybody asks
            {QUERIED: "0+12000x180", HIT: "0x180", CACHING_OFF: "1x180"},
            {QUERIED: "0x100 0+12000x80", HIT: "0x180", CACHING_ON: "1x180"},  # for less than an hour
        ],
    ),
    "SparkBenchmarkRegression": (
        "10m",
        {f'dgxspark_benchmark_ratio{{{NODE},service="heavy"}}': "0.88x20"},
        f'{NODE},service="heavy"',
        [
            {f'dgxspark_benchmark_ratio{{{NODE},service="heavy"}}': "0.91x20"},
            {f'dgxspark_benchmark_ratio{{{NODE},service="heavy"}}': "1.07x20"},
            {  # not comparable: the figures are there, a ratio is not
                f'dgxspark_benchmark_decode_tokens_per_second{{{NODE},service="heavy"}}': "20x20",
                f'dgxspark_benchmark_baseline_decode_tokens_per_second{{{NODE},service="heavy"}}': "43x20",
            },
        ],
    ),
    "SparkReceiptRegression": (
        "10m",
        {f"dgxspark_receipt_measured{{{DECODE}}}": "38x20", f"dgxspark_receipt_baseline{{{DECODE}}}": "43x20"},
        DECODE,
        [
            {f"dgxspark_receipt_measured{{{DECODE}}}": "39x20", f"dgxspark_receipt_baseline{{{DECODE}}}": "43x20"},
            {f"dgxspark_receipt_measured{{{DECODE}}}": "38x20"},
        ],
    ),
    "SparkResidencyDiverges": (
        "45m",
        {
            f'dgxspark_gpu_memory_bytes{{{NODE},service="heavy",owner="spark-heavy"}}': f"{83 * GIB}x60",
            f'dgxspark_service_planned_bytes{{{NODE},service="heavy"}}': f"{93 * GIB}x60",
            f"dgxspark_unit_active{{{UNIT}}}": "1x60",
        },
        'host="spark-1",service="heavy"',
        [
            {  # within a tenth
                f'dgxspark_gpu_memory_bytes{{{NODE},service="heavy",owner="spark-heavy"}}': f"{85 * GIB}x60",
                f'dgxspark_service_planned_bytes{{{NODE},service="heavy"}}': f"{93 * GIB}x60",
                f"dgxspark_unit_active{{{UNIT}}}": "1x60",
            },
            {  # it loads
                f'dgxspark_gpu_memory_bytes{{{NODE},service="heavy",owner="spark-heavy"}}': f"{40 * GIB}x60",
                f'dgxspark_service_planned_bytes{{{NODE},service="heavy"}}': f"{93 * GIB}x60",
                f"dgxspark_unit_active{{{UNIT}}}": "0x60",
            },
        ],
    ),
    "SparkResidencyOverPlan": (
        "20m",
        {
            f'dgxspark_gpu_memory_bytes{{{NODE},service="heavy",owner="spark-heavy"}}': f"{97 * GIB}x20",
            f'dgxspark_service_planned_bytes{{{NODE},service="heavy"}}': f"{93 * GIB}x20",
        },
        'host="spark-1",service="heavy"',
        [
            {
                f'dgxspark_gpu_memory_bytes{{{NODE},service="heavy",owner="spark-heavy"}}': f"{94 * GIB}x20",
                f'dgxspark_service_planned_bytes{{{NODE},service="heavy"}}': f"{93 * GIB}x20",
            },
            {f'dgxspark_gpu_memory_bytes{{{NODE},service="",owner="comfyui"}}': f"{97 * GIB}x20"},
        ],
    ),
    "SparkTargetDown": (
        "10m",
        {f'up{{{HEAVY},instance="192.168.1.11:8001",job="vllm"}}': "0x20", f"dgxspark_unit_active{{{UNIT}}}": "1x20"},
        f'{HEAVY},instance="192.168.1.11:8001",job="vllm"',
        [
            {
                f'up{{{HEAVY},instance="192.168.1.11:8001",job="vllm"}}': "0x20",
                f"dgxspark_unit_active{{{UNIT}}}": "0x20",
            },
            {f'up{{{HEAVY},instance="192.168.1.11:8001",job="vllm"}}': "1x20"},
            {f"up{{{NODE}}}": "0x20"},  # has a separate alert
        ],
    ),
    "SparkServiceNotUp": (
        "30m",
        {f"dgxspark_unit_active{{{UNIT}}}": "0x40"},
        'host="spark-1",service="heavy"',
        [
            {f"dgxspark_unit_active{{{UNIT}}}": "0x15 1x30"},
            # Stopped by its owner, or cold.
            {f"dgxspark_unit_active{{{UNIT}}}": "0x40", f"dgxspark_unit_enabled{{{UNIT}}}": "0x40"},
            {f'dgxspark_unit_active{{{NODE},unit="spark-fleet-monitor.service",service=""}}': "0x40"},
        ],
    ),
    "SparkRestartLoop": (
        "31m",
        {f'dgxspark_unit_restarts_total{{{UNIT},supervisor="0"}}': "0x5 1x5 2x5 3x30"},
        f'{UNIT},supervisor="0"',
        [
            {f'dgxspark_unit_restarts_total{{{UNIT},supervisor="0"}}': "0x5 1x40"},
            {f'dgxspark_unit_restarts_total{{{UNIT},supervisor="1"}}': "0+1x40"},  # ranks come back by design
        ],
    ),
    "SparkUnitFailed": (
        "5m",
        {f"dgxspark_unit_failed{{{UNIT}}}": "1x10"},
        UNIT,
        [{f"dgxspark_unit_failed{{{UNIT}}}": "0x10"}, {f"dgxspark_unit_failed{{{UNIT}}}": "0x4 1x6"}],
    ),
    "SparkWatchdogActed": (
        "10m",
        {f'dgxspark_watchdog_last_action_timestamp_seconds{{{NODE},service="heavy"}}': "300x20"},
        f'{NODE},service="heavy"',
        [
            {f'dgxspark_watchdog_last_action_timestamp_seconds{{{NODE},service="heavy"}}': "-3600x20"},
            {  # the clock of the host is an hour ahead
                f'dgxspark_watchdog_last_action_timestamp_seconds{{{NODE},service="heavy"}}': "0x20",
                f"node_time_seconds{{{NODE}}}": "3600+60x20",
            },
        ],
    ),
    "SparkAnswersDegenerate": (
        "1m",
        {f'dgxspark_quality_state{{{NODE},service="heavy",state="degenerate"}}': "1x10"},
        f'{NODE},service="heavy",state="degenerate"',
        [{f'dgxspark_quality_state{{{NODE},service="heavy",state="doubtful"}}': "1x10"}],
    ),
    "SparkGuardActed": (
        "10m",
        {f'dgxspark_guard_last_action_timestamp_seconds{{{NODE},service="fast",step="stop"}}': "300x20"},
        f'{NODE},service="fast",step="stop"',
        [
            {f'dgxspark_guard_last_action_timestamp_seconds{{{NODE},service="fast",step="stop"}}': "-3600x20"},
            {
                f'dgxspark_guard_last_action_timestamp_seconds{{{NODE},service="fast",step="stop"}}': "0x20",
                f"node_time_seconds{{{NODE}}}": "3600+60x20",
            },
        ],
    ),
    "SparkGuardStopped": (
        "1m",
        {f'dgxspark_guard_stopped{{{NODE},service="fast"}}': "1x10"},
        f'{NODE},service="fast"',
        [{f'dgxspark_guard_steps_total{{{NODE},step="stop"}}': "1x10"}],
    ),
    "SparkGuardShort": (
        "5m",
        {f'dgxspark_guard_level{{{NODE},level="short"}}': "1x10"},
        f'{NODE},level="short"',
        [
            {f'dgxspark_guard_level{{{NODE},level="calm"}}': "1x10"},
            {f'dgxspark_guard_level{{{NODE},level="critical"}}': "1 stale"},
        ],
    ),
    "SparkMemoryLow": (
        "5m",
        {f"dgxspark_memory_available_bytes{{{NODE}}}": f"{3 * GIB}x10"},
        'host="spark-1"',
        [
            {f"dgxspark_memory_available_bytes{{{NODE}}}": f"{5 * GIB}x10"},
            # The collector is believed before node_exporter, which may see another host's memory.
            {
                f"dgxspark_memory_available_bytes{{{NODE}}}": f"{5 * GIB}x10",
                f"node_memory_MemAvailable_bytes{{{NODE}}}": f"{1 * GIB}x10",
            },
        ],
    ),
    "SparkMemoryCritical": (
        "5m",
        {f"node_memory_MemAvailable_bytes{{{NODE}}}": f"{1 * GIB}x10"},
        'host="spark-1"',
        [{f"dgxspark_memory_available_bytes{{{NODE}}}": f"{3 * GIB}x10"}],
    ),
    "SparkSwapping": (
        "10m",
        {f"dgxspark_memory_swap_used_bytes{{{NODE}}}": f"{6 * GIB}x20"},
        NODE,
        [{f"dgxspark_memory_swap_used_bytes{{{NODE}}}": "54000000x20"}],
    ),
    "SparkGpuGone": ("5m", {f"dgxspark_gpu_up{{{NODE}}}": "0x10"}, NODE, [{f"dgxspark_gpu_up{{{NODE}}}": "1x10"}]),
    "SparkGpuHot": (
        "10m",
        {f"dgxspark_gpu_temperature_celsius{{{NODE}}}": "92x20"},
        'host="spark-1"',
        [{f"nvidia_smi_temperature_gpu{{{GPU}}}": "85x20"}],
    ),
    "SparkGpuCapped": (
        "10m",
        {
            POWER: "25x20",
            f"nvidia_smi_utilization_gpu_ratio{{{GPU}}}": "0.96x20",
            f"nvidia_smi_clocks_current_sm_clock_hz{{{GPU}}}": "650000000x20",
        },
        'host="spark-1"',
        [
            {  # at work
                POWER: "78x20",
                f"nvidia_smi_utilization_gpu_ratio{{{GPU}}}": "0.96x20",
                f"nvidia_smi_clocks_current_sm_clock_hz{{{GPU}}}": "2405000000x20",
            },
            {  # idle
                POWER: "4x20",
                f"nvidia_smi_utilization_gpu_ratio{{{GPU}}}": "0x20",
                f"nvidia_smi_clocks_current_sm_clock_hz{{{GPU}}}": "208000000x20",
            },
        ],
    ),
    "SparkDiskFilling": (
        "15m",
        {
            f'node_filesystem_avail_bytes{{{NODE},mountpoint="/",fstype="ext4",device="/dev/nvme0n1p2"}}': "5x20",
            f'node_filesystem_size_bytes{{{NODE},mountpoint="/",fstype="ext4",device="/dev/nvme0n1p2"}}': "100x20",
        },
        f'{NODE},mountpoint="/",fstype="ext4",device="/dev/nvme0n1p2"',
        [
            {
                f'node_filesystem_avail_bytes{{{NODE},mountpoint="/",fstype="ext4",device="/dev/nvme0n1p2"}}': "25x20",
                f'node_filesystem_size_bytes{{{NODE},mountpoint="/",fstype="ext4",device="/dev/nvme0n1p2"}}': "100x20",
            },
            {
                f'node_filesystem_avail_bytes{{{NODE},mountpoint="/run",fstype="tmpfs",device="tmpfs"}}': "5x20",
                f'node_filesystem_size_bytes{{{NODE},mountpoint="/run",fstype="tmpfs",device="tmpfs"}}': "100x20",
            },
        ],
    ),
    "SparkRailDown": (
        "5m",
        {f"dgxspark_rail_up{{{RAIL}}}": "0x10", f"dgxspark_rail_expected{{{EXPECTED}}}": "1x10"},
        RAIL,
        [
            {f"dgxspark_rail_up{{{RAIL}}}": "1x10", f"dgxspark_rail_expected{{{EXPECTED}}}": "1x10"},
            {f"dgxspark_rail_up{{{RAIL}}}": "0x10"},  # an empty cage
        ],
    ),
    "SparkRailMtu": (
        "70m",
        {f"dgxspark_rail_mtu_bytes{{{RAIL}}}": "1500x90", f"dgxspark_rail_expected_mtu_bytes{{{EXPECTED}}}": "9000x90"},
        RAIL,
        [
            {
                f"dgxspark_rail_mtu_bytes{{{RAIL}}}": "9000x90",
                f"dgxspark_rail_expected_mtu_bytes{{{EXPECTED}}}": "9000x90",
            },
            {f"dgxspark_rail_mtu_bytes{{{RAIL}}}": "1500x90"},  # nothing was planned, nothing has changed
        ],
    ),
    "SparkRailNarrow": (
        "10m",
        {f"dgxspark_rail_pcie_lanes{{{RAIL}}}": "2x20", f"dgxspark_rail_up{{{RAIL}}}": "1x20"},
        RAIL,
        [
            {f"dgxspark_rail_pcie_lanes{{{RAIL}}}": "4x20", f"dgxspark_rail_up{{{RAIL}}}": "1x20"},
            {f"dgxspark_rail_pcie_lanes{{{RAIL}}}": "2x20", f"dgxspark_rail_up{{{RAIL}}}": "0x20"},
        ],
    ),
    "SparkExporterGone": (
        "10m",
        {f"up{{{NODE}}}": "0x20"},
        NODE,
        [{f"up{{{NODE}}}": "1x20"}, {f"up{{{NODE}}}": "1x8 0x10"}],
    ),
    "SparkCollectorStale": (
        "20m",
        {
            f"dgxspark_collector_last_run_timestamp_seconds{{{NODE}}}": "60x30",
            f"dgxspark_collector_interval_seconds{{{NODE}}}": "30x30",
        },
        NODE,
        [
            {
                f"dgxspark_collector_last_run_timestamp_seconds{{{NODE}}}": "0+60x30",
                f"dgxspark_collector_interval_seconds{{{NODE}}}": "30x30",
            },
            {  # the clock of the host is an hour behind
                f"dgxspark_collector_last_run_timestamp_seconds{{{NODE}}}": "-3600+60x30",
                f"dgxspark_collector_interval_seconds{{{NODE}}}": "30x30",
                f"node_time_seconds{{{NODE}}}": "-3600+60x30",
            },
            {  # a slow one
                f"dgxspark_collector_last_run_timestamp_seconds{{{NODE}}}": "60x30",
                f"dgxspark_collector_interval_seconds{{{NODE}}}": "600x30",
            },
        ],
    ),
    "SparkCollectorBlind": (
        "15m",
        {f'dgxspark_collector_source_up{{{NODE},source="units"}}': "0x20"},
        f'{NODE},source="units"',
        [
            {f'dgxspark_collector_source_up{{{NODE},source="units"}}': "1x20"},
            {f'dgxspark_collector_source_up{{{NODE},source="gpu"}}': "0x20"},
        ],
    ),
    "SparkGatewayBackendFailing": (
        "20m",
        {ANSWERED: "0+60x30", FAILED: "0+12x30"},
        'host="gate",litellm_model_name="openai/heavy",api_base="http://192.168.1.11:8001/v1"',
        [{ANSWERED: "0+60x30", FAILED: "0+1x30"}, {ANSWERED: "0+60x30"}, {ANSWERED: "60x30", FAILED: "12x30"}],
    ),
    "SparkAlertsNotDelivered": (
        "20m",
        {'alertmanager_notifications_failed_total{host="watch",integration="webhook",job="alertmanager"}': "0+1x30"},
        'host="watch",integration="webhook"',
        [{'alertmanager_notifications_failed_total{host="watch",integration="webhook",job="alertmanager"}': "7x30"}],
    ),
}
FIRES = [(alert, True, "", at, series, labels) for alert, (at, series, labels, _near) in CASES.items()]
KEEPS = [
    (alert, False, str(number), at, series, "")
    for alert, (at, _series, _labels, near) in CASES.items()
    for number, series in enumerate(near)
]


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "rules.yml"
    path.write_text(yaml.safe_dump(RULES))
    return path


def promtool(*argv: str) -> tuple[int, str]:
    done = subprocess.run([debian_programs.program("promtool"), *argv], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def outcome(rules: Path, folder: Path, tests: list[dict[str, Any]]) -> tuple[int, str]:
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    return promtool("test", "rules", str(path))


def case(alert: str, at: str, series: Series, labels: str) -> dict[str, Any]:
    """A test of promtool: at this moment the alert fires with these labels, or not at all."""
    severity = ALERTS[alert]["labels"]["severity"]
    fired = f'ALERTS{{alertname="{alert}",alertstate="firing",severity="{severity}",{labels}}}'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}',
                "eval_time": at,
                "exp_samples": [{"labels": fired, "value": 1}] if labels else [],
            }
        ],
    }


def test_promtool_takes_the_rules(rules: Path) -> None:
    code, text = promtool("check", "rules", str(rules))
    assert code == 0 and "SUCCESS" in text, text


def test_every_alert_has_its_cases() -> None:
    assert set(CASES) == set(ALERTS)
    assert [alert for alert, (_at, _series, _labels, near) in CASES.items() if not near] == []


@pytest.mark.parametrize(
    ("alert", "fires", "number", "at", "series", "labels"), FIRES + KEEPS, ids=lambda value: str(value)[:24]
)
def test_alert(
    rules: Path, tmp_path: Path, alert: str, fires: bool, number: str, at: str, series: Series, labels: str
) -> None:
    code, text = outcome(rules, tmp_path, [case(alert, at, series, labels)])
    assert code == 0, text


def test_a_wrong_expectation_fails(rules: Path, tmp_path: Path) -> None:
    """So that what passes above means something."""
    at, series, labels, near = CASES["SparkGpuGone"]
    assert outcome(rules, tmp_path, [case("SparkGpuGone", at, near[0], labels)])[0] != 0
    assert outcome(rules, tmp_path, [case("SparkGpuGone", at, series, "")])[0] != 0


@pytest.mark.parametrize("alert", ALERTS)
def test_annotations_name_what_the_alert_knows(alert: str) -> None:
    """A label that it does not have would leave a hole in the message."""
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "fix", "runbook"}
    text = " ".join(rule["annotations"].values())
    labels = set(re.findall(r"(\w+)=", CASES[alert][2]))
    assert set(re.findall(r"\$labels\.(\w+)", text)) - labels == set()
    for part in ("summary", "description"):
        assert (
            "{{ $labels.host }}" in rule["annotations"][part]
            or "litellm_model_name" in text
            or alert == "SparkAlertsNotDelivered"
        )
    assert rule["annotations"]["runbook"] == f"docs/monitoring.md#{alert.lower()}"


def test_thresholds_reach_the_rules() -> None:
    text = yaml.safe_dump(generate_docs.alert_rules({"wedge_power_watts": 41, "memory_warning_gib": 7, "restarts": 9}))
    assert "< 41" in text and str(7 * GIB) in text and "> 9 - 0.5" in text
