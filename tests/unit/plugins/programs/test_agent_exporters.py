# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of metrics that the agent makes: run on the tree of a Spark, with programs that answer as GB10's do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._agent import figures
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import bench_compare

REPO = Path(__file__).resolve().parents[4]
SCRIPT = REPO / "roles/guard/files/spark_agent.py"
HEAVY, OTHER = "a" * 64, "b" * 64

PROGRAM = """#!{python} -SE
import pathlib, sys
asked = pathlib.Path({calls!r})
asked.write_text(asked.read_text() + " ".join(sys.argv[:3]).replace(sys.argv[0], {name!r}) + "\\n" if asked.exists() else {name!r} + "\\n")
answers = {answers!r}
text, code = next((answer for words, answer in answers.items() if words in " ".join(sys.argv[1:])), ("", 0))
print(text, end="")
sys.exit(code)
"""
UNITS = """Id=spark-heavy.service
Type=exec
LoadState=loaded
ActiveState=active
SubState=running
NRestarts=2
ActiveEnterTimestampMonotonic=1000000

Id=spark-late.service
Type=exec
LoadState=loaded
ActiveState=activating
SubState=start
NRestarts=0

Id=spark-pair.service
Type=notify
LoadState=loaded
ActiveState=failed
SubState=failed
NRestarts=7
ActiveEnterTimestampMonotonic=1000000
"""


def container(identity: str, name: str, service: str | None) -> dict[str, Any]:
    labels = {"dgxspark.managed": "true", "dgxspark.service": service} if service else {}
    return {"Id": identity, "Name": f"/{name}", "Config": {"Labels": labels}, "State": {"Status": "running", "Pid": 1}}


class Host:
    """A host with the files and programs that the collector reads."""

    def __init__(self, tmp: Path, tree: Any) -> None:
        self.tmp, self.tree = tmp, tree
        tree.qsfp()
        self.etc, self.state, self.run_dir, self.bin = (tmp / name for name in ("etc", "state", "run", "bin"))
        for folder in (
            "etc/services",
            "etc/agent",
            "state/receipts",
            "state/watchdog",
            "state/guard",
            "run/starts",
            "bin",
            "units",
        ):
            (tmp / folder).mkdir(parents=True)
        self.settings(rails={"enp1s0f0np0": 9000, "enP2p1s0f0np0": 9000}, planned_gib={"heavy": 93.5})
        self.write("etc/services/heavy.json", {"unit": "spark-heavy.service", "model": "heavy", "memory_gib": 90.5})
        self.program(
            "nvidia-smi",
            {
                "--query-compute-apps": ("101, VLLM::EngineCore, 92672\n202, python3, 1024\n303, ghost, [N/A]\n", 0),
                "--query-gpu": ("0, NVIDIA GB10, GPU-1, 580.1, 12.1, 55, 13.46, 2405, 96\n", 0),
            },
        )
        inspected = [container(HEAVY, "spark-heavy", "heavy"), container(OTHER, "comfyui", None)]
        self.program("docker", {"ps": (f"{HEAVY}\n{OTHER}\n", 0), "inspect": (json.dumps(inspected), 0)})
        self.program("systemctl", {"show": (UNITS, 0)})
        tree.write("proc/101/cgroup", f"0::/system.slice/docker-{HEAVY}.scope\n")
        tree.write("proc/202/cgroup", f"0::/system.slice/docker-{OTHER}.scope\n")

    def settings(self, **more: Any) -> None:
        self.write("etc/agent/exporters.json", {"sysroot": str(self.tree.root), "gpu": False, **more})

    def write(self, name: str, content: dict[str, Any]) -> None:
        (self.tmp / name).write_text(json.dumps(content))

    def program(self, name: str, answers: dict[str, tuple[str, int]]) -> None:
        path = self.bin / name
        path.write_text(
            PROGRAM.format(python=sys.executable, name=name, answers=answers, calls=str(self.tmp / "calls"))
        )
        path.chmod(0o755)

    def __call__(self, *more: str, script: Path = SCRIPT, library: Path = REPO / "collections") -> tuple[str, str]:
        done = subprocess.run(
            [
                sys.executable,
                str(script),
                "--once=exporters",
                f"--etc={self.etc}",
                f"--state={self.state}",
                f"--run={self.run_dir}",
                f"--units={self.tmp / 'units'}",
                *more,
            ],
            env={"PATH": f"{self.bin}", "PYTHONPATH": str(library)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout, done.stderr


@pytest.fixture
def host(tmp_path: Path, tree: Any) -> Host:
    return Host(tmp_path / "host", tree)


def samples(text: str) -> dict[str, float]:
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _space, value = line.rpartition(" ")
            values[name] = float(value)
    return values


def test_a_container_that_docker_does_not_describe_is_not_somebody_elses(host: Host) -> None:
    """Otherwise its memory would count as unowned, and its service would seem to hold no memory."""
    host.program("docker", {"ps": (f"{HEAVY}\n", 0), "inspect": ("", 1)})
    page, stderr = host()
    assert "docker container inspect ended with 1" in stderr
    assert "dgxspark_gpu_memory_bytes{" not in page


def test_gpu_memory_goes_to_whom_it_belongs(host: Host) -> None:
    page = samples(host()[0])
    assert page['dgxspark_gpu_memory_bytes{service="heavy",owner="spark-heavy"}'] == 92672 * 1024**2
    assert page['dgxspark_gpu_memory_bytes{service="",owner="comfyui"}'] == 1024 * 1024**2
    assert not any("ghost" in name for name in page), "[N/A] is no zero"
    assert page["dgxspark_gpu_up"] == 1
    assert page['dgxspark_service_planned_bytes{service="heavy"}'] == 93.5 * 1024**3
    assert page['dgxspark_service_requested_bytes{service="heavy"}'] == 90.5 * 1024**3


def test_a_service_that_holds_nothing_yet_holds_zero(host: Host) -> None:
    host.program("nvidia-smi", {"--query-compute-apps": ("", 0)})
    page = samples(host()[0])
    assert page['dgxspark_gpu_memory_bytes{service="heavy",owner="spark-heavy"}'] == 0


def test_memory_is_told_apart(host: Host) -> None:
    page = samples(host()[0])
    assert page["dgxspark_memory_total_bytes"] == 127535224 * 1024
    assert page["dgxspark_memory_available_bytes"] == 23135528 * 1024
    assert page["dgxspark_memory_free_bytes"] == 4510768 * 1024
    assert page["dgxspark_memory_page_cache_bytes"] == (20448480 + 77328 + 231480 - 755460) * 1024
    assert page["dgxspark_memory_swap_used_bytes"] == (16777212 - 16723228) * 1024


def test_power_and_clock_only_without_another_exporter(host: Host) -> None:
    assert "dgxspark_gpu_power_watts" not in host()[0]
    host.settings(gpu=True)
    page = samples(host()[0])
    assert page["dgxspark_gpu_power_watts"] == 13.46
    assert page["dgxspark_gpu_sm_clock_hertz"] == 2405e6
    assert page["dgxspark_gpu_temperature_celsius"] == 55
    assert page["dgxspark_gpu_utilization_ratio"] == 0.96


def test_what_is_not_available_has_no_figure(host: Host) -> None:
    host.settings(gpu=True)
    host.program("nvidia-smi", {"--query-gpu": ("0, NVIDIA GB10, GPU-1, 580.1, 12.1, [N/A], [N/A], [N/A], [N/A]\n", 0)})
    page = samples(host()[0])
    assert not [name for name in page if re.match(r"dgxspark_gpu_(power|temperature|sm|util)", name)]


def test_a_gpu_that_is_gone_is_said(host: Host) -> None:
    host.program("nvidia-smi", {"": ("No devices were found\n", 6)})
    text, stderr = host()
    page = samples(text)
    assert page["dgxspark_gpu_up"] == 0
    assert page['dgxspark_collector_source_up{source="gpu"}'] == 0
    assert page['dgxspark_collector_source_up{source="memory"}'] == 1
    assert "nvidia-smi ended with 6: No devices were found" in stderr


def test_rails(host: Host, tree: Any) -> None:
    port = "sys/class/infiniband/roceP2p1s0f0/ports/1"
    tree.write(f"{port}/counters/port_rcv_data", "81408901908\n")
    tree.write(f"{port}/counters/port_xmit_data", "11\n")
    tree.write(f"{port}/hw_counters/out_of_sequence", "3\n")
    tree.write("sys/class/net/enP2p1s0f0np0/mtu", "1500\n")
    page = samples(host()[0])
    rail = 'netdev="enP2p1s0f0np0",rdma="roceP2p1s0f0",cage="0"'
    assert page[f"dgxspark_rail_up{{{rail}}}"] == 1
    assert page[f"dgxspark_rail_received_bytes_total{{{rail}}}"] == 325635607632, "the card counts words of four bytes"
    assert page[f"dgxspark_rail_transmitted_bytes_total{{{rail}}}"] == 44
    assert page[f'dgxspark_rail_errors_total{{{rail},counter="out_of_sequence"}}'] == 3
    assert page[f"dgxspark_rail_mtu_bytes{{{rail}}}"] == 1500
    assert page['dgxspark_rail_expected_mtu_bytes{netdev="enP2p1s0f0np0"}'] == 9000
    assert page[f"dgxspark_rail_pcie_lanes{{{rail}}}"] == 4
    assert page['dgxspark_rail_up{netdev="enp1s0f1np1",rdma="rocep1s0f1",cage="1"}'] == 0


def test_no_more_counters_of_the_card_are_read_than_named(host: Host, tree: Any) -> None:
    """Each read of such a counter traps into the firmware."""
    tree.write("sys/class/infiniband/rocep1s0f0/ports/1/hw_counters/np_cnp_sent", "5\n")
    assert "np_cnp_sent" not in host()[0]


def test_a_rail_of_the_cluster_that_is_gone_is_down(host: Host, tree: Any) -> None:
    shutil.rmtree(tree.root / "sys/class/infiniband")
    shutil.rmtree(tree.root / "sys/class/net")
    page = samples(host()[0])
    assert page['dgxspark_rail_up{netdev="enp1s0f0np0",rdma="",cage="0"}'] == 0
    assert page['dgxspark_rail_expected{netdev="enp1s0f0np0"}'] == 1
    host.settings()
    assert "dgxspark_rail" not in host()[0], "without a cable and without a cluster there is nothing to tell"


def test_units(host: Host) -> None:
    page = samples(host()[0])
    assert page['dgxspark_unit_active{unit="spark-heavy.service",service="heavy"}'] == 1
    assert page['dgxspark_unit_restarts_total{unit="spark-heavy.service",service="heavy",supervisor="0"}'] == 2
    assert page['dgxspark_unit_failed{unit="spark-pair.service",service=""}'] == 1
    assert page['dgxspark_unit_active_seconds{unit="spark-heavy.service",service="heavy"}'] > 0
    assert 'dgxspark_unit_active_seconds{unit="spark-pair.service",service=""}' not in page
    starting = {key: value for key, value in page.items() if key.startswith("dgxspark_unit_starting")}
    assert {key for key, value in starting.items() if value} == {
        'dgxspark_unit_starting{unit="spark-late.service",service=""}'
    }
    assert page['dgxspark_unit_restarts_total{unit="spark-pair.service",service="",supervisor="1"}'] == 7


def test_receipts_starts_and_guards(host: Host) -> None:
    receipt = {
        "schema": 1,
        "deployed": {},
        "measured": {"decode_tokens_per_second": 38.5, "ttft_seconds": None, "checks": {}},
        "baseline": {"decode_tokens_per_second": 43.0},
    }
    host.write("state/receipts/heavy.json", receipt)
    host.write(
        "state/watchdog/state.json",
        {
            "services": {
                "heavy": {"state": "idle", "restarts_24h": 2, "last_action": {"at": 1795176000.0, "what": "restart"}}
            }
        },
    )
    host.write(
        "state/guard/state.json",
        {
            "level": "short",
            "lowest_gib": 0.5,
            "steps": {"drop": 4, "stop": 1},
            "last": {"at": 1795176000.0, "what": "stop", "whom": "fast"},
            "stopped": {"fast": {}},
        },
    )
    guard = {"drops": 3, "compactions": 1, "lowest_free_gib": 1.5}
    host.write("run/starts/spark-heavy.service.json", {"start_seconds": 412.5, "load_guard": guard})
    (host.state / "receipts/half.json").write_text("{")
    text, stderr = host()
    page = samples(text)
    assert page['dgxspark_receipt_measured{service="heavy",figure="decode_tokens_per_second"}'] == 38.5
    assert page['dgxspark_receipt_baseline{service="heavy",figure="decode_tokens_per_second"}'] == 43
    assert page['dgxspark_receipt_timestamp_seconds{service="heavy"}'] > 1_700_000_000
    assert page['dgxspark_watchdog_restarts_within_day{service="heavy"}'] == 2
    assert page['dgxspark_watchdog_state{service="heavy",state="idle"}'] == 1
    assert page['dgxspark_watchdog_last_action_timestamp_seconds{service="heavy"}'] == 1795176000
    assert page['dgxspark_guard_level{level="short"}'] == 1 and page['dgxspark_guard_stopped{service="fast"}'] == 1
    assert page['dgxspark_guard_steps_total{step="drop"}'] == 4
    assert page["dgxspark_guard_lowest_available_bytes"] == 0.5 * 1024**3
    assert page['dgxspark_guard_last_action_timestamp_seconds{service="fast",step="stop"}'] == 1795176000
    assert page['dgxspark_service_start_seconds{service="heavy"}'] == 412.5
    assert page['dgxspark_load_guard_drops{service="heavy"}'] == 3
    assert page['dgxspark_load_guard_lowest_free_bytes{service="heavy"}'] == 1.5 * 1024**3
    assert "half.json" in stderr and page['dgxspark_collector_source_up{source="receipts"}'] == 1


def measured(host: Host, **section: Any) -> dict[str, float]:
    """Return the page's figures of bench.yml for a receipt with this section."""
    receipt = {"schema": 1, "deployed": {}, "measured": {}, "baseline": {}, "benchmark": section}
    host.write("state/receipts/heavy.json", receipt)
    text, stderr = host()
    assert stderr == ""
    return {name: value for name, value in samples(text).items() if name.startswith("dgxspark_benchmark_")}


def test_what_bench_measured(host: Host) -> None:
    at, service = "2026-11-09T10:00:00+00:00", '{service="heavy"}'
    figures = {"decode_tokens_per_second": 38.7, "baseline_decode_tokens_per_second": 43.0}
    assert measured(host, at=at, ratio=0.9, **figures) == {
        f"dgxspark_benchmark_decode_tokens_per_second{service}": 38.7,
        f"dgxspark_benchmark_baseline_decode_tokens_per_second{service}": 43,
        f"dgxspark_benchmark_ratio{service}": 0.9,
        f"dgxspark_benchmark_timestamp_seconds{service}": 1794218400,
    }
    stale = measured(host, at=at, ratio=None, stale=True, **figures)
    assert f"dgxspark_benchmark_ratio{service}" not in stale and len(stale) == 3, "what is not comparable has no ratio"


@pytest.mark.parametrize("section", [{}, {"at": "yesterday", "ratio": "0.9"}, {"at": None, "ratio": True}])
def test_a_section_without_figures_tells_none(host: Host, section: dict[str, Any]) -> None:
    assert measured(host, **section) == {}


def test_the_section_that_bench_writes_is_the_one_that_is_read() -> None:
    row = {"prompt_tokens": 512, "decode_tokens_per_second": {"median": 41.0, "low": 40.5, "high": 41.5}}
    new = {"at": "2026-11-09T10:00:00+00:00", "conditions": {}, "workload": {}, "single": [row], "concurrency": []}
    settings = {"regression_percent": 10, "rebaseline": False, "ceiling": True}
    section, _findings = bench_compare.compare(None, new, "heavy", settings)
    figure_names = figures.BENCHMARK
    assert {section[figure] for figure in figure_names.values()} == {41.0, 1.0}


def test_a_bare_host_still_gets_a_page(host: Host, tmp_path: Path, tree: Any) -> None:
    for name in ("nvidia-smi", "docker", "systemctl"):
        (host.bin / name).unlink()
    (host.etc / "agent/exporters.json").unlink()
    text, stderr = host()
    page = samples(text)
    assert (
        page['dgxspark_collector_source_up{source="units"}'] == 0
        and page['dgxspark_collector_source_up{source="gpu"}'] == 0
    )
    assert page["dgxspark_collector_last_run_timestamp_seconds"] > 0
    assert "exporters.json" in stderr


def test_the_copies_on_a_host_are_enough(host: Host, installed: Any, tmp_path: Path) -> None:
    """Hosts have no collection: the program lies next to the package that it imports."""
    copied, stderr = host(script=installed("agent", SCRIPT) / SCRIPT.name, library=tmp_path / "nowhere")
    assert stderr == ""

    def timeless(text: str) -> list[str]:
        return [line for line in text.splitlines() if "collector_" not in line and "active_seconds{" not in line]

    assert timeless(copied) == timeless(host()[0])
