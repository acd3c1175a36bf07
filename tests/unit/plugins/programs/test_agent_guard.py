# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as a memory guard, with memory figures from a file, real processes, and stand-in programs that record their calls."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ollama_fixture import Server

from ansible_collections.dgxspark.vllm.plugins.module_utils._agent import accounts
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import pins

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[4]
SCRIPT = REPO / "roles/guard/files/spark_agent.py"

# Each stand-in program appends its call to a file and prints its answer from another file.
PROGRAM = """#!{python} -SE
import json, pathlib, sys
home = pathlib.Path({home!r})
name = pathlib.Path(sys.argv[0]).name
with (home / "calls").open("a") as stream:
    stream.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if name == "systemctl" and sys.argv[1] == "show":
    units = sys.argv[sys.argv.index("--") + 1:]
    print("\\n\\n".join("Id=" + unit + "\\nActiveState=" + (home / "units" / unit).read_text() for unit in units))
    sys.exit(0)
answer = home / "answers" / name
text = answer.read_text() if answer.exists() else ""
sys.stdout.write(text)
sys.exit(1 if text.startswith("FAILS") else 0)
"""


class Host:
    """A host of 119 GiB with two engines; C(memory) sets the kernel's figures."""

    def __init__(self, tmp: Path) -> None:
        self.home, self.etc, self.run_dir, self.state, self.bin, self.root = (
            tmp / name for name in ("home", "etc", "run", "state", "bin", "root")
        )
        for path in (
            *(self.etc / "services", self.etc / "agent", self.run_dir / "starts", self.state, self.bin),
            *(self.root / "proc/sys/vm", self.root / "proc/pressure", self.home / "units", self.home / "answers"),
        ):
            path.mkdir(parents=True)
        for name in ("systemctl", "docker", "nvidia-smi", "spark_gateway.py"):
            path = self.bin / name
            path.write_text(PROGRAM.format(python=sys.executable, home=str(self.home)))
            path.chmod(0o755)
        for name, held in (("heavy", 95.0), ("fast", 12.0)):
            unit = f"spark-{name}.service"
            (self.etc / "services" / f"{name}.json").write_text(json.dumps({"name": name, "unit": unit}))
            (self.home / "units" / unit).write_text("active")
            self.started(name, held)
        self.settings()
        self.memory(8.0)
        self.processes: list[subprocess.Popen[str]] = []

    def started(self, name: str, held: float) -> None:
        record = {"gate": {"available_gib": 110.0}, "ready": {"available_gib": 110.0 - held}}
        (self.run_dir / "starts" / f"spark-{name}.service.json").write_text(json.dumps(record))

    def settings(self, **changes: Any) -> None:
        defaults = {
            "interval_seconds": 0.1,
            "calm_seconds": 2.0,
            "order": ["heavy", "fast"],
            "services": {"heavy": {"planned_gib": 97.0}, "fast": {"planned_gib": 13.0, "backend": "here/fast"}},
            "beside": [],
            "reserve_gib": 5.0,
            "sysroot": str(self.root),
        }
        (self.etc / "agent/guard.json").write_text(json.dumps({**defaults, **changes}))

    def memory(self, available: float, total: float = 119.0, cache: float = 0.0) -> None:
        lines = {"MemTotal": total, "MemFree": available - cache, "MemAvailable": available, "Cached": cache}
        path = self.root / "proc/meminfo"
        fresh = path.with_suffix(".new")
        fresh.write_text("".join(f"{name}: {round(value * 2**20)} kB\n" for name, value in lines.items()))
        fresh.replace(path)

    def calls(self, *start: str) -> list[list[str]]:
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if call[: len(start)] == list(start)]

    @property
    def harm(self) -> list[list[str]]:
        return [call[3:] for call in self.calls("systemctl", "--no-block", "--job-mode=fail")]

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                *(sys.executable, str(SCRIPT), f"--etc={self.etc}", f"--run={self.run_dir}", f"--state={self.state}"),
                *(f"--gateway={self.bin / 'spark_gateway.py'}", *words),
            ],
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "PYTHONPATH": str(REPO / "collections")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def stop(self) -> str:
        """End the agent; return its output."""
        output = ""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
            output += process.communicate(timeout=60)[0]
        self.processes = []
        return output

    @property
    def saved_state(self) -> dict[str, Any]:
        try:
            saved: dict[str, Any] = json.loads((self.state / "guard/state.json").read_text())
        except (OSError, ValueError):
            return {}
        return saved


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.stop()


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


def test_the_steps_in_their_order(host: Host) -> None:
    """The engines grew by the missing memory: first the cache is dropped, then requests of the least important engine are refused, then it is stopped."""
    host.started("fast", 12.9)
    host.memory(0.8, total=114.5, cache=0.5)
    host.start()
    wait_for(lambda: host.harm)
    assert host.harm == [["stop", "--", "spark-fast.service"]]
    order = [call for call in host.calls() if call[0] == "spark_gateway.py" or call[1] == "--no-block"]
    assert [call[:3] for call in order] == [
        ["spark_gateway.py", "drain", "here/fast"],
        ["systemctl", "--no-block", "--job-mode=fail"],
    ]
    assert (host.root / "proc/sys/vm/drop_caches").read_text() == "1\n"
    guard_state = host.saved_state
    assert guard_state["level"] == "critical" and guard_state["steps"]["stop"] == guard_state["steps"]["refuse"] == 1
    assert (
        guard_state["last"]["what"] == "stop"
        and guard_state["last"]["whom"] == "fast"
        and "fast" in guard_state["stopped"]
    )
    # There is memory again: requests are admitted, and nothing more is done.
    (host.home / "units/spark-fast.service").write_text("inactive")
    host.memory(13.0, total=114.5)
    wait_for(lambda: host.calls("spark_gateway.py", "admit", "here/fast"))
    output = host.stop()
    assert len(host.harm) == 1
    assert "stops fast; it stays down until it is started: systemctl start spark-fast.service" in output
    assert "memory is no longer short" in output


@pytest.mark.parametrize("refused", [False, True])
def test_a_stop_of_an_engine_on_demand_lasts(host: Host, refused: bool) -> None:
    """Without the pin the next request would start it again, here or at the first rank on another host."""
    (host.etc / "services/fast.json").write_text(
        json.dumps({"name": "fast", "unit": "spark-fast.service", "on_demand": True, "rank": {"rank": 1, "parts": []}})
    )
    host.started("fast", 12.9)
    folder = host.run_dir / pins.FOLDER
    if refused:
        folder.parent.mkdir(parents=True)
        folder.write_text("no folder")
    host.memory(0.8, total=114.5)
    host.start()
    wait_for(lambda: host.harm)
    output = host.stop()
    assert host.harm == [["stop", "--", "spark-fast.service"]]
    pin = pins.read(folder, "fast")
    if refused:
        assert "requests may start it again: " in output
        return
    assert pin.word == pins.COLD and pin.why.startswith(
        f"the guard of {os.uname().nodename}, which stopped it: 0.80 GiB"
    )
    assert "start.yml -e services=fast" in pin.why


def test_what_someone_else_took_costs_no_engine(host: Host) -> None:
    host.memory(0.5, total=125.0)
    host.start()
    wait_for(lambda: host.saved_state.get("steps", {}).get("name"))
    time.sleep(4)
    output = host.stop()
    assert host.harm == [] and not host.calls("spark_gateway.py")
    assert (
        "GiB are used by processes that are no service of this host" in output
        and "no engine inside its plan is stopped for it" in output
    )
    assert host.saved_state["last"]["what"] == "name"


def test_who_holds_memory_has_a_name() -> None:
    """A process that holds memory is listed among all processes of this machine, with its use."""
    code = "import time; held = b'x' * (300 << 20); print('up', flush=True); time.sleep(300)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as hog:
        try:
            assert hog.stdout is not None and hog.stdout.readline() == b"up\n"
            account = accounts.list_processes()[hog.pid]
        finally:
            hog.kill()
    assert 300 << 20 <= account.resident < 400 << 20
    account.gpu = 2 << 30
    text = accounts.describe_largest([account, accounts.Process(1, "small", "", 1 << 20)])
    assert text.startswith("python") and f"(pid {hog.pid}" in text and text.endswith("2.3 GiB") and "small" not in text


@pytest.mark.parametrize("silent", ["nvidia-smi", "docker"])
def test_an_account_that_is_not_complete_costs_no_engine(host: Host, silent: str) -> None:
    (host.home / "answers" / silent).write_text("FAILS: no answer\n")
    host.memory(0.5, total=114.0)
    host.start()
    wait_for(lambda: len(host.calls("docker", "ps")) >= 2)
    host.stop()
    assert host.harm == [] and host.saved_state["level"] == "critical"


def test_what_was_stopped_and_runs_again_is_forgotten(host: Host) -> None:
    """A stop from before a reboot is forgotten, too, even if the clock was ahead then."""
    note = {"at": 1.0, "why": "short", "clock": 1e12}
    (host.state / "guard").mkdir()
    (host.state / "guard/state.json").write_text(
        json.dumps({"stopped": {"fast": note, "heavy": note}, "steps": {"stop": 2}})
    )
    (host.home / "units/spark-heavy.service").write_text("inactive")
    host.start()
    wait_for(lambda: set(host.saved_state.get("stopped", {})) == {"heavy"})
    assert host.saved_state["steps"]["stop"] == 2


def test_only_told(host: Host) -> None:
    host.settings(act=False)
    host.memory(0.8, total=113.0, cache=0.5)
    host.start()
    wait_for(lambda: host.saved_state.get("steps", {}).get("stop"))
    output = host.stop()
    assert host.harm == [] and not host.calls("spark_gateway.py") and "(act is false: nothing is done)" in output
    assert not (host.root / "proc/sys/vm/drop_caches").exists() and host.saved_state["stopped"] == {}


def test_an_engine_above_its_plan_is_restarted(host: Host) -> None:
    """The control group of an engine counts its memory; in this test it is the group of the test's own processes."""
    group = Path("/proc/self/cgroup").read_text().splitlines()[-1]
    (host.home / "answers/docker").write_text(f"{group} spark-fast\n")
    (host.home / "answers/nvidia-smi").write_text(f"{os.getpid()}, VLLM::EngineCore, 18432\n")
    host.memory(0.8, total=119.0)
    host.start()
    wait_for(lambda: host.harm)
    output = host.stop()
    assert host.harm == [["try-restart", "--", "spark-fast.service"]]
    assert (
        "above its plan" in output and host.saved_state["steps"]["restart"] == 1 and host.saved_state["stopped"] == {}
    )


@pytest.mark.parametrize("down", [True, False])
def test_docker_need_not_answer_a_host_without_memory(host: Host, down: bool) -> None:
    """Without memory the docker client may fail to start. The known names of running containers and the stopped units are enough."""
    group = Path("/proc/self/cgroup").read_text().splitlines()[-1]
    (host.home / "answers/docker").write_text(f"{group} spark-fast\n")
    (host.home / "answers/nvidia-smi").write_text(f"{os.getpid()}, VLLM::EngineCore, 18432\n")
    if down:
        (host.home / "units/spark-heavy.service").write_text("inactive")
    host.start()
    wait_for(lambda: host.calls("docker", "ps") and host.saved_state)
    time.sleep(0.5)
    (host.home / "answers/docker").write_text("FAILS: no memory\n")
    host.memory(0.8, total=119.0)
    wait_for(lambda: host.harm if down else len(host.calls("docker", "ps")) >= 3)
    output = host.stop()
    assert host.harm == ([["try-restart", "--", "spark-fast.service"]] if down else [])
    assert ("no answer from docker" in output) is not down


def test_one_look_for_people(host: Host) -> None:
    host.settings(services={"heavy": {"planned_gib": 97.0}, "fast": {"planned_gib": 5.0}})
    host.started("fast", 0.0)
    report = json.loads(host.start("--once=guard").communicate(timeout=60)[0])
    host.processes = []
    assert report["level"] == "calm" and report["next"] == []
    engines = {engine["name"]: engine for engine in report["account"]["engines"]}
    assert engines["fast"]["limit"] == round((5.0 * 1.05 + 1) * 2**30) and engines["fast"]["rank"] == 1
    assert engines["heavy"]["used"] == 95 * 2**30 and engines["heavy"]["serving"]
    assert not (host.state / "guard").exists()


def test_ollama_gives_its_memory_before_any_engine(host: Host) -> None:
    server = Server({"llama3.2:3b": 3 * 2**30})
    try:
        (host.etc / "ollama.json").write_text(json.dumps({"url": server.url}))
        host.memory(2.5, total=115.0)
        host.start()
        wait_for(lambda: not server.held)
        time.sleep(2)  # it looks once more whether the model is gone, and says so
        host.memory(5.5, total=115.0)
        wait_for(lambda: host.saved_state.get("level") == "calm")
        output = host.stop()
        assert "Ollama unloaded llama3.2:3b (3.00 GiB)" in output and host.harm == []
    finally:
        server.close()


def test_speech_gives_its_model_back_before_any_engine(host: Host) -> None:
    http_requests: list[tuple[str, str, str]] = []

    class Ears(BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            http_requests.append((self.command, self.path, self.headers.get("Authorization", "")))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            pass

    (host.home / "key").write_text("secret\n")
    (host.home / "answers/docker").write_text("0123456789abcdef spark-ears\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), Ears) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        way = {
            "method": "DELETE",
            "url": f"http://127.0.0.1:{server.server_port}/api/ps/w",
            "key_file": str(host.home / "key"),
        }
        helpers = [
            {"name": "ears", "container": "spark-ears", **way},
            {"name": "gone", "container": "spark-gone", **way},
        ]
        host.settings(helpers=helpers, beside=["spark-ears", "spark-gone"])
        host.memory(2.5, total=115.0)
        host.start()
        wait_for(lambda: http_requests)
        time.sleep(7)
        output = host.stop()
        server.shutdown()
    assert http_requests == [("DELETE", "/api/ps/w", "Bearer secret")] and host.harm == []
    assert "asks ears to unload its models" in output and "gone" not in output and "secret" not in output


@pytest.mark.parametrize("in_flight", [0, 1])
def test_a_speech_server_on_demand_without_requests_goes_as_an_engine_does(host: Host, in_flight: int) -> None:
    """The speech server does not count requests; the program at its port does."""
    (host.etc / "speech").mkdir()
    for name, more in (("ears", {"on_demand": True}), ("talk", {})):
        server_settings = {
            "name": name,
            "unit": f"spark-{name}.service",
            "container": f"spark-{name}",
            "url": "http://127.0.0.1:9",
            **more,
        }
        (host.etc / "speech" / f"{name}.json").write_text(json.dumps(server_settings))
        (host.home / f"units/spark-{name}.service").write_text("active")
    (host.run_dir / "on_demand").mkdir()
    gateway_state = {"services": {"ears": {"state": "ready", "in_flight": in_flight, "waiting": 0}}}
    (host.run_dir / "on_demand/state.json").write_text(json.dumps(gateway_state))
    host.memory(2.0, total=118.0)
    host.start()
    wait_for(lambda: len(host.calls("docker", "ps")) >= 1 and (in_flight or host.harm))
    time.sleep(1)
    host.stop()
    assert host.harm == ([] if in_flight else [["stop", "--", "spark-ears.service"]])


@pytest.mark.parametrize("requests", [0, 2])
def test_an_engine_on_demand_without_requests_goes_first(host: Host, requests: int) -> None:
    """The engine's metrics are read twice: when the account is taken and before the stop; both must show it idle."""
    page = f"vllm:num_requests_running {requests}\nvllm:num_requests_waiting 0\n".encode()

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        (host.etc / "services/fast.json").write_text(
            json.dumps({"name": "fast", "unit": "spark-fast.service", "url": url, "on_demand": {"idle_minutes": 20}})
        )
        host.memory(2.0, total=118.0)
        host.start()
        wait_for(lambda: len(host.calls("docker", "ps")) >= 1 and (requests or host.harm))
        time.sleep(2)
        output = host.stop()
        server.shutdown()
    assert host.harm == ([] if requests else [["stop", "--", "spark-fast.service"]])
    assert ("stops fast; the next request starts it again" in output) is (not requests)
    assert host.saved_state["stopped"] == {} and not host.calls("spark_gateway.py")


@pytest.mark.nightly
def test_nobody_is_asked_anything_while_there_is_memory(host: Host) -> None:
    """A look then only reads four files; names of containers are asked for once per start of an engine."""
    host.settings(interval_seconds=0.02)
    (host.root / "proc/buddyinfo").write_text("Node 0, zone Normal " + " ".join(["9999"] * 11) + "\n")
    (host.root / "proc/pressure/memory").write_text("some avg10=0.00 total=1\nfull avg10=0.00 total=1\n")
    host.start()
    wait_for(lambda: host.saved_state and host.calls())
    time.sleep(1)
    assert [call[:2] for call in host.calls()] == [["docker", "ps"]]
    host.started("fast", 11.0)
    wait_for(lambda: len(host.calls()) > 1)
    time.sleep(1)
    assert {tuple(call[:2]) for call in host.calls()} == {("docker", "ps")} and len(host.calls()) <= 3


def test_without_settings_it_says_what_to_do(host: Host) -> None:
    (host.etc / "agent/guard.json").write_text("{")
    process = host.start()
    output = process.communicate(timeout=60)[0]
    host.processes = []
    assert process.returncode == 1 and "guard.json cannot be read; run site.yml again" in output
