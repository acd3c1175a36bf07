# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The document of a Spark is what its programs say, and looks without readers run none."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import live_fixture
import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import live_host, live_status
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_host import LiveHost
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_status import Spark
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer

METRICS = """vllm:num_requests_running{engine="0"} 2
vllm:num_requests_waiting{engine="0"} 1
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:generation_tokens_total{engine="0"} %d
"""


class Host:
    """A played host: units by name and state, and the metrics of its engine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.units, self.argvs, self.tokens = folder, {"heavy": "active"}, list[list[str]](), 0
        self.gpu: str | None = "0, NVIDIA GB10, GPU-1, 580.1, 12.1, 61, 45.5, 2400, 87"
        for path in ("state/receipts", "state/watchdog", "run/starts", "etc/services", "root/proc", "units"):
            (folder / path).mkdir(parents=True)
        (folder / "etc/services/heavy.json").write_text("{}")
        (folder / "root/proc/meminfo").write_text(
            "MemTotal: 125500000 kB\nMemFree: 1000 kB\nMemAvailable: 50000000 kB\n"
        )
        self.cpu(100, 900)

    def cpu(self, busy: int, idle: int) -> None:
        (self.folder / "root/proc/stat").write_text(f"cpu {busy} 0 0 {idle} 0 0 0 0 0 0\n")

    def run(self, argv: list[str], *_seconds: Any, **_options: Any) -> tuple[int, str, str]:
        self.argvs.append(argv)
        if argv[0] == "systemctl":
            blocks = (
                f"Id=spark-{name}.service\nLoadState=loaded\nActiveState={state}\nSubState=x\nNRestarts=0\nInvocationID=abc\n"
                f"ActiveEnterTimestampMonotonic=1000000\nInactiveExitTimestampMonotonic={round((time.monotonic() - 80) * 1e6)}\n"
                for name, state in self.units.items()
            )
            return 0, "\n".join(blocks), ""
        if argv[0] == "nvidia-smi":
            if self.gpu is None:
                raise NoAnswer("nvidia-smi", "it did not end")
            return (0, "", "") if "compute-apps" in argv[1] else (0, self.gpu + "\n", "")
        if argv[0] == "journalctl":
            line = {"__MONOTONIC_TIMESTAMP": str(round(time.monotonic() * 1e6)), "MESSAGE": "Starting to load model"}
            return 0, json.dumps(line) + "\n", ""
        return 0, "", ""

    def live(self, *services: dict[str, Any]) -> LiveHost:
        settings = {
            "host": "spark-1",
            "services": list(services),
            "rails": ["enp1s0f0np0"],
            "sysroot": str(self.folder / "root"),
        }
        folders = (self.folder / name for name in ("etc", "state", "run"))
        return LiveHost(settings, *folders, str(self.folder / "units"), self.run)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def engine(host: Host) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (METRICS % host.tokens).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def state_of(document: dict[str, Any]) -> tuple[str, str]:
    (row,) = live_status.report([Spark("spark-1", live_status.parse(document, "spark-1"))], {}, "now")[0].services
    return row.state, row.status or row.error


def test_what_is_shown_is_what_runs(host: Host, engine: str) -> None:
    live = host.live(live_fixture.service("heavy", url=engine))
    first = live.look(True)
    live_status.parse(first, "spark-1")
    assert first["gpu"] == {"utilization_percent": 87, "power_w": 45.5, "temperature_c": 61, "sm_clock_mhz": 2400}
    assert first["links"] == [{"name": "enp1s0f0np0", "up": False, "gbps": None}]
    (before,) = first["services"]
    assert (
        before["requests_running"],
        before["requests_waiting"],
        before["kv_cache_usage"],
        before["tokens_per_second"],
    ) == (2, 1, 0.25, None)
    host.tokens, now = 500, time.monotonic()
    live.tokens["heavy"] = (now - 10, 0)
    host.cpu(175, 925)
    second = live.look(True)
    assert second["services"][0]["tokens_per_second"] == pytest.approx(50, rel=0.1) and second["cpu_percent"] == 75.0
    host.tokens = 0  # the engine was restarted
    assert live.look(True)["services"][0]["tokens_per_second"] is None


@pytest.mark.parametrize(
    ("unit", "meant", "state", "text"),
    [
        ("active", "started", "healthy", ""),
        ("inactive", "started", "down", "its unit is inactive"),
        ("failed", "started", "down", "its unit is failed"),
        ("inactive", "on_demand", "unloaded", ""),
        ("inactive", "stopped", "stopped", ""),
        ("activating", "started", "starting", "arguments, after 80 s"),
    ],
)
def test_each_state_of_a_unit(host: Host, engine: str, unit: str, meant: str, state: str, text: str) -> None:
    host.units["heavy"] = unit
    if unit == "activating":
        record = {"unit": "spark-heavy.service", "invocation": "abc", "gate": {"clock": time.monotonic() - 70}}
        (host.folder / "run/starts/spark-heavy.service.json").write_text(json.dumps(record))
        text = "load, after 80 s"
    shown = state_of(host.live(live_fixture.service("heavy", url=engine, state=meant)).look(True))
    assert shown == (state, text)


def test_a_wedged_engine_is_down_though_its_unit_is_active(host: Host, engine: str) -> None:
    path = host.folder / "state/watchdog/state.json"
    note = {"clock": time.monotonic(), "services": {"heavy": {"state": "wedged", "text": "no token for 300 s"}}}
    path.write_text(json.dumps(note))
    service = live_fixture.service("heavy", url=engine)
    assert state_of(host.live(service).look(True)) == ("down", "the watchdog finds it wedged: no token for 300 s")
    path.write_text(json.dumps({**note, "clock": time.monotonic() - 1000}))  # its watchdog has ended
    assert state_of(host.live(service).look(True))[0] == "healthy"
    path.write_text("[1")
    assert state_of(host.live(service).look(True))[0] == "healthy"


def test_programs_that_do_not_answer_leave_out_their_figures(host: Host) -> None:
    host.gpu = None
    host.live().look(True)
    document = host.live(live_fixture.service("heavy", url="http://127.0.0.1:9")).look(True)
    assert document["gpu"] == {} and "refused" in document["services"][0]["silent"]
    status, _endpoints = live_status.report([Spark("spark-1", live_status.parse(document, "spark-1"))], {}, "now")
    assert status.hosts["spark-1"].state == "warning" and status.services[0].state == "healthy"


def test_a_look_without_readers_runs_no_program(host: Host, engine: str) -> None:
    idle = host.live(live_fixture.service("other", url="http://127.0.0.1:9"))
    idle.look(False)
    assert host.argvs == []
    busy = host.live(live_fixture.service("heavy", url=engine))
    document = busy.look(False)
    assert [argv[0] for argv in host.argvs] == ["nvidia-smi"] and document["gpu"]["power_w"] == 45.5
    assert live_status.figures(live_status.parse(document, "spark-1"))[0] == pytest.approx(72, rel=0.01)


def test_each_look_asks_for_states_and_a_changed_unit_for_everything(host: Host, engine: str) -> None:
    live = host.live(live_fixture.service("heavy", url=engine))

    def programs() -> list[str]:
        before = len(host.argvs)
        live.look(True)
        return sorted(argv[0] for argv in host.argvs[before:])

    everything, few = programs(), ["nvidia-smi", "systemctl"]
    assert len(everything) > len(few) and programs() == few
    live.facts_at -= live_host.FULL_SECONDS
    assert programs() == everything
    host.units["heavy"] = "activating"  # the stage of a start is read at each look
    assert all("journalctl" in programs() for _look in range(2))
    host.units["heavy"] = "inactive"
    assert programs() == everything and programs() == few


def test_the_last_proof(host: Host, engine: str) -> None:
    receipt = {
        "schema": 1,
        "service": "heavy",
        "deployed": {},
        "measured": {"decode_tokens_per_second": 40.5},
        "baseline": {},
    }
    (host.folder / "state/receipts/heavy.json").write_text(json.dumps(receipt))
    (entry,) = host.live(live_fixture.service("heavy", url=engine)).look(True)["services"]
    assert entry["proved_rate"] == 40.5 and entry["proved"].endswith("UTC")
    (host.folder / "state/receipts/heavy.json").write_text("{")
    (entry,) = host.live(live_fixture.service("heavy", url=engine)).look(True)["services"]
    assert entry["proved"] is entry["proved_rate"] is None
