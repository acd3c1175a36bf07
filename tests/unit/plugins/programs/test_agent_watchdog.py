# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as a watchdog of real HTTP servers whose counters stand still, and of the stand-in engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

from ansible_collections.dgxspark.vllm.plugins.module_utils._agent import evidence

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[4]
SCRIPT = REPO / "roles/guard/files/spark_agent.py"
KEY = "sk-not-to-be-seen-456"

# The stand-in for every program that the watchdog runs: appends its call to a file and prints its answer from another file.
PROGRAM = """#!{python} -SE
import json, os, pathlib, sys
home = pathlib.Path({home!r})
name = pathlib.Path(sys.argv[0]).name
with (home / "calls").open("a") as stream:
    stream.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if name == "systemctl" and sys.argv[1] == "show":
    units = sys.argv[sys.argv.index("--") + 1:]
    print("\\n\\n".join("Id=" + unit + "\\n" + (home / "units" / unit).read_text() for unit in units
                       if (home / "units" / unit).exists()))
    sys.exit(0)
answer = home / "answers" / name
if not answer.exists():
    sys.exit(127)
text = answer.read_text()
sys.stdout.write(text)
sys.exit(1 if text.startswith("FAILS") else 0)
"""


class Engine:
    """A server with vLLM's metrics; C(mode) selects the answer to a request, C(pace) the new tokens per look."""

    def __init__(self) -> None:
        self.mode, self.pace, self.running, self.tokens, self.key = "answers", 0, 2, 100, ""
        self.metrics = 200
        self.probes = 0
        self.closing = threading.Event()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def send(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def do_GET(self) -> None:
                engine.tokens += 50 if self.path == "/wake" else engine.pace
                lines = [
                    f'vllm:num_requests_running{{engine="0"}} {engine.running}',
                    f'vllm:generation_tokens_total{{engine="0"}} {engine.tokens}',
                    'vllm:prompt_tokens_total{engine="0"} 7',
                    f"# {KEY}",
                ]
                self.send(engine.metrics, "\n".join(lines) + "\n")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                engine.probes += 1
                if engine.key and self.headers.get("Authorization") != f"Bearer {engine.key}":
                    self.send(401, '{"error": "Unauthorized"}')
                elif engine.mode == "hangs":
                    engine.closing.wait(30)
                elif engine.mode == "fails":
                    self.send(500, '{"error": {"message": "EngineCore encountered an issue"}}')
                else:
                    self.send(200, '{"choices": [{"message": {"content": "x"}}], "usage": {"completion_tokens": 1}}')

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()


class Host:
    """A host with its own settings, programs and state."""

    def __init__(self, tmp: Path) -> None:
        self.home, self.etc, self.run_dir, self.state, self.bin = (
            tmp / name for name in ("home", "etc", "run", "watchdog", "bin")
        )
        for path in (self.etc / "services", self.etc / "agent", self.run_dir / "starts", self.state, self.bin):
            path.mkdir(parents=True)
        for name in ("units", "answers"):
            (self.home / name).mkdir(parents=True)
        for name in ("systemctl", "journalctl", "docker", "nvidia-smi"):
            path = self.bin / name
            path.write_text(PROGRAM.format(python=sys.executable, home=str(self.home)))
            path.chmod(0o755)
        self.answer("systemctl", "")
        self.answer("journalctl", f"Nov 21 engine: started with {KEY}\n")
        self.answer("docker", "a line of the engine\n")
        self.answer("nvidia-smi", "11.0\n")
        self.settings()
        self.processes: list[subprocess.Popen[str]] = []

    def answer(self, name: str, text: str) -> None:
        (self.home / "answers" / name).write_text(text)

    def settings(self, **changes: Any) -> None:
        quick = {"interval_seconds": 0.1, "window_seconds": 0.4, "probe_seconds": 0.5, "grace_seconds": 1, "keep": 2}
        (self.etc / "agent/watchdog.json").write_text(json.dumps({**quick, **changes}))

    def service(self, name: str, url: str, **more: Any) -> None:
        unit = f"spark-{name}.service"
        service = {"name": name, "unit": unit, "container": f"spark-{name}", "url": url, "model": name, **more}
        (self.etc / "services" / f"{name}.json").write_text(json.dumps(service))
        self.unit(name)

    def unit(self, name: str, active: str = "active", invocation: str = "i1", age: float = 1000.0) -> None:
        # The clock counts from the machine's start, which may be a minute ago.
        entered = max(int((time.monotonic() - age) * 1e6), 1)
        path = self.home / "units" / f"spark-{name}.service"
        fresh = path.with_suffix(".new")
        fresh.write_text(f"ActiveState={active}\nInvocationID={invocation}\nActiveEnterTimestampMonotonic={entered}\n")
        fresh.replace(path)

    def calls(self, *start: str) -> list[list[str]]:
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if call[: len(start)] == list(start)]

    @property
    def restarts(self) -> list[str]:
        return [call[-1] for call in self.calls("systemctl", "--no-block")]

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                sys.executable,
                str(SCRIPT),
                f"--etc={self.etc}",
                f"--run={self.run_dir}",
                f"--state={self.state.parent}",
                *words,
            ],
            env={
                "PATH": f"{self.bin}:/usr/bin:/bin",
                "PYTHONPATH": str(REPO / "collections"),
                "NOTIFY_SOCKET": str(self.home / "notify"),
            },
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
            output += process.communicate(timeout=120)[0]
        self.processes = []
        return output

    def service_state(self, name: str) -> dict[str, Any]:
        """Return the entry of a service in the state file, empty without one."""
        try:
            service_state: dict[str, Any] = json.loads((self.state / "state.json").read_text())["services"][name]
        except (OSError, KeyError, ValueError):
            return {}
        return service_state


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


def looks(host: Host) -> int:
    return len(host.calls("systemctl", "show"))


def look_on(host: Host, rounds: int = 25) -> None:
    """Wait for this many looks of the watchdog."""
    first = looks(host)
    wait_for(lambda: looks(host) >= first + rounds, 60)


def test_a_wedged_engine_is_restarted_once_and_what_was_seen_is_kept(
    host: Host, engine: Engine, tmp_path: Path
) -> None:
    secret = host.etc / "secrets/heavy"
    secret.mkdir(parents=True)
    (secret / "VLLM_API_KEY").write_text(KEY + "\n")
    engine.key = KEY
    engine.pace = 5
    host.service("heavy", engine.url, api_key_file=str(secret / "VLLM_API_KEY"))
    host.start()
    wait_for(lambda: host.service_state("heavy").get("state") == "working")
    look_on(host, 10)
    assert engine.probes == 0 and host.restarts == []
    engine.pace, engine.mode = 0, "hangs"
    wait_for(lambda: host.restarts)
    look_on(host, 15)  # it stays wedged, but nobody restarts it again before the cooldown is over
    assert host.restarts == ["spark-heavy.service"]
    (call,) = host.calls("systemctl", "--no-block")
    assert call[1:] == ["--no-block", "--job-mode=fail", "try-restart", "--", "spark-heavy.service"]
    service_state = wait_for(
        lambda: host.service_state("heavy") if host.service_state("heavy").get("state") == "wedged" else None
    )
    assert service_state["restarts_24h"] == 1 and "it is restarted in 30 minutes" in service_state["text"]
    folder = Path(service_state["last_action"]["evidence"])
    names = {path.name for path in folder.iterdir()}
    assert {
        "why.json",
        "journal.txt",
        "docker.txt",
        "metrics.txt",
        "nvidia_smi.txt",
        "processes.txt",
        "stacks.txt",
    } <= names
    assert "vllm:generation_tokens_total" in (folder / "metrics.txt").read_text()
    assert "probes in a row failed" in json.loads((folder / "why.json").read_text())["reason"]
    for path in folder.iterdir():
        assert KEY not in path.read_text() and path.stat().st_mode & 0o077 == 0
    assert "********" in (folder / "journal.txt").read_text()
    output = host.stop()
    assert KEY not in output and KEY not in (host.state / "state.json").read_text()
    assert output.count("is restarted (number 1 within 24 hours)") == 1
    assert output.count("is wedged: nothing moved") == 2  # once acted on, once reported


def test_a_clock_that_was_set_while_it_was_away_shortens_no_pause(host: Host, engine: Engine) -> None:
    """The clock was an hour behind when the last process wrote, a minute after it had restarted the service."""
    engine.mode = "hangs"
    host.service("heavy", engine.url)
    wall, boot = time.time() - 3600, Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (host.state / "state.json").write_text(
        json.dumps(
            {"at": wall, "clock": time.monotonic(), "boot": boot, "services": {"heavy": {"restarts": [wall - 60]}}}
        )
    )
    host.start()
    service_state = wait_for(
        lambda: host.service_state("heavy") if host.service_state("heavy").get("state") == "wedged" else None
    )
    assert "its last restart was 1 minutes ago" in service_state["text"] and host.restarts == []


@pytest.mark.parametrize("mode", ["answers", "fails"])
def test_a_probe_that_comes_back_decides(host: Host, engine: Engine, mode: str) -> None:
    engine.mode = mode
    host.settings(probe_seconds=60)  # it answers, however slow this machine is
    host.service("heavy", engine.url)
    host.start()
    if mode == "fails":
        wait_for(lambda: host.restarts)
    else:
        wait_for(lambda: engine.probes >= 3)
        assert host.restarts == []


def test_without_power_the_probes_decide(host: Host, engine: Engine) -> None:
    engine.mode = "hangs"
    host.answer("nvidia-smi", "[N/A]\n")
    host.service("heavy", engine.url)
    host.start()
    wait_for(lambda: host.restarts)
    assert "the power of the GPU is not known" in host.stop()


def test_a_gpu_that_works_is_left_to_work(host: Host, engine: Engine) -> None:
    engine.mode = "hangs"
    host.settings(window_seconds=3)
    host.answer("nvidia-smi", "47.5\n")
    host.service("heavy", engine.url)
    host.start()
    wait_for(
        lambda: (
            "48 W" in host.service_state("heavy").get("text", "") or "47" in host.service_state("heavy").get("text", "")
        )
    )
    assert engine.probes == 0


@pytest.mark.parametrize(
    "obstacle",
    [
        *("activating", "inactive", "record"),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("deactivating", "lock", "young")),
    ],
)
def test_an_engine_that_starts_or_is_stopped_is_left_alone(host: Host, engine: Engine, obstacle: str) -> None:
    engine.mode = "hangs"
    host.service("heavy", engine.url)
    if obstacle == "record":
        record = {"unit": "spark-heavy.service", "invocation": "i1", "gate": {}}
        (host.run_dir / "starts/spark-heavy.service.json").write_text(json.dumps(record))
        host.unit("heavy", age=300)
    elif obstacle == "lock":
        (host.run_dir / "start.json").write_text(json.dumps({"unit": "spark-heavy.service", "invocation": "i1"}))
        host.unit("heavy", age=300)
    elif obstacle == "young":
        host.settings(grace_seconds=600)
        host.unit("heavy", age=30)
    else:
        host.unit("heavy", obstacle)
    host.start()
    look_on(host)
    assert engine.probes == 0 and host.restarts == []
    assert host.service_state("heavy")["state"] == (
        "stopped" if obstacle in ("inactive", "deactivating") else "starting"
    )


def test_an_engine_that_wants_another_key_is_left_alone(host: Host, engine: Engine) -> None:
    engine.key = KEY
    host.settings(probe_seconds=60)
    host.service("heavy", engine.url)
    host.start()
    wait_for(lambda: engine.probes >= 3)
    assert host.restarts == []
    assert "HTTP 401" in host.stop()


@pytest.mark.nightly
def test_a_key_that_cannot_be_read_is_no_reason(host: Host, engine: Engine) -> None:
    engine.mode = "hangs"
    host.service("heavy", engine.url, api_key_file="/nonexistent/key")
    host.start()
    look_on(host, 40)
    assert host.restarts == [] and "turned away" in host.stop()


def test_metrics_that_do_not_come(host: Host, engine: Engine) -> None:
    engine.metrics, engine.mode = 500, "hangs"
    host.service("heavy", engine.url)
    host.start()
    wait_for(lambda: host.restarts)


def test_a_unit_that_is_stopped_meanwhile_stays_stopped(host: Host, engine: Engine) -> None:
    """A person stopped the unit between the look and the restart, so it is not restarted."""
    engine.mode = "hangs"
    host.service("heavy", engine.url)
    script = host.bin / "journalctl"  # runs while evidence is collected
    script.write_text(f"#!/bin/sh\nrm -f {host.home}/units/spark-heavy.service\n")
    host.start()
    wait_for(lambda: list(host.state.glob("heavy/*/meminfo.txt")))
    look_on(host, 5)
    assert host.restarts == [] and "is left alone: meanwhile it is unknown" in host.stop()


def test_an_engine_that_comes_back_meanwhile_is_left_alone(host: Host, engine: Engine) -> None:
    engine.mode = "hangs"
    host.service("heavy", engine.url)
    script = host.bin / "journalctl"  # runs while evidence is collected
    script.write_text(f"#!{sys.executable}\nimport urllib.request\nurllib.request.urlopen('{engine.url}/wake')\n")
    host.start()
    wait_for(lambda: list(host.state.glob("heavy/*/meminfo.txt")))
    look_on(host, 3)
    assert host.restarts == []
    assert "makes tokens again" in host.stop()


@pytest.mark.nightly
def test_ranks_behind_the_head_and_what_is_left_out_are_not_watched(host: Host, engine: Engine) -> None:
    engine.mode = "hangs"
    host.settings(leave_out=["fast"])
    host.service("fast", engine.url)
    host.service("worker", engine.url, rank={"rank": 1, "parts": []})
    host.service("head", engine.url, rank={"rank": 0, "parts": [{"container": "spark-head"}]})
    host.start()
    wait_for(lambda: host.restarts)
    look_on(host, 10)
    assert host.restarts == ["spark-head.service"]
    assert set(json.loads((host.state / "state.json").read_text())["services"]) == {"head"}


@pytest.mark.nightly
def test_one_wedged_engine_of_two(host: Host, engine: Engine) -> None:
    """The other engine keeps the GPU busy, so the power draw proves nothing."""
    other = Engine()
    other.pace, engine.mode = 5, "hangs"
    host.answer("nvidia-smi", "60.0\n")
    host.service("heavy", engine.url)
    host.service("fast", other.url)
    host.start()
    wait_for(lambda: host.restarts)
    look_on(host, 10)
    assert host.restarts == ["spark-heavy.service"] and other.probes == 0
    other.close()


@pytest.mark.nightly
def test_restarts_are_counted_across_processes(host: Host, engine: Engine) -> None:
    engine.mode = "hangs"
    host.settings(cooldown_minutes=0.001, max_restarts=2)
    host.service("heavy", engine.url)
    host.start()
    wait_for(lambda: len(host.restarts) == 2)
    host.stop()
    host.start()
    wait_for(lambda: host.service_state("heavy").get("state") == "wedged")
    look_on(host, 10)
    assert len(host.restarts) == 2
    assert "it was restarted 2 times within 24 hours" in host.stop()
    assert len(list(host.state.glob("heavy/*"))) <= 2  # as keep says


@pytest.mark.parametrize(
    ("state", "ends"),
    [
        pytest.param("print('false')", True, marks=pytest.mark.nightly),
        ("sys.exit('Error response from daemon: No such container')", True),
        pytest.param("print('true')", False, marks=pytest.mark.nightly),
        pytest.param("sys.exit('Cannot connect to the Docker daemon')", False, marks=pytest.mark.nightly),
    ],
)
def test_what_of_a_wedged_engine_does_not_end_is_killed(host: Host, engine: Engine, state: str, ends: bool) -> None:
    """The container is followed by its id, because the next start uses the same name. A missing answer from Docker does not count as its end."""
    engine.mode, number = "hangs", "5" * 64
    host.service("heavy", engine.url)
    program = host.bin / "docker"
    program.write_text(
        f"""#!{sys.executable}
import json, pathlib, sys
calls = pathlib.Path({str(host.home)!r}) / "calls"
with calls.open("a") as stream:
    stream.write(json.dumps(["docker", *sys.argv[1:]]) + "\\n")
restarted = "try-restart" in calls.read_text()
if sys.argv[1] == "ps":
    print({number!r}, "spark-heavy")
if sys.argv[2] == "inspect":
    if restarted:
        {state}
    else:
        print("true")
"""
    )
    host.start()
    wait_for(
        lambda: (
            host.service_state("heavy").get("state") == "wedged" and host.service_state("heavy")["restarts_24h"] == 1
        ),
        60,
    )
    assert host.restarts == ["spark-heavy.service"]
    assert host.calls("docker", "kill") == ([] if ends else [["docker", "kill", "--", number]])
    assert ("spark-heavy has not ended within 10 s" in host.stop()) is not ends


def test_one_look_for_people_changes_nothing(host: Host, engine: Engine) -> None:
    engine.mode = "hangs"
    host.service("heavy", engine.url)
    out = host.start("--once=watchdog").communicate(timeout=120)[0]
    assert json.loads(out)["heavy"]["state"] == "working"
    assert not (host.state / "state.json").exists()
    host.processes = []


def test_collecting_by_hand(host: Host, engine: Engine) -> None:
    host.service("heavy", engine.url)
    out = host.start("--collect", "heavy").communicate(timeout=120)[0]
    assert (Path(out.strip()) / "metrics.txt").is_file() and host.restarts == []
    out = host.start("--collect", "heavi").communicate(timeout=120)[0]
    assert "'heavi' is no service that this host answers for; there are: heavy" in out
    host.processes = []


def test_python_stacks_need_py_spy(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's py-spy is used if installed, else the image's; without both the evidence says so."""
    monkeypatch.setenv("PATH", str(host.bin))
    stack_of = evidence.stack_of
    pid = str(os.getpid())
    host.answer("docker", "Thread 0x1 (idle): in the image\n")
    assert stack_of(os.getpid(), "spark-heavy") == "Thread 0x1 (idle): in the image\n"
    ((*argv, _inner),) = host.calls("docker")
    assert argv == ["docker", "exec", "spark-heavy", "py-spy", "dump", "--pid"]
    (host.home / "answers/docker").unlink()  # as docker exec does for a missing program, it then exits with 127
    assert stack_of(os.getpid(), "spark-heavy").startswith("py-spy is neither on the host nor in the image")
    shutil.copy(host.bin / "docker", host.bin / "py-spy")
    host.answer("py-spy", "Thread 0x1 (idle): on the host\n")
    assert stack_of(os.getpid(), "spark-heavy") == "Thread 0x1 (idle): on the host\n"
    assert host.calls("py-spy") == [["py-spy", "dump", "--pid", pid]]


def test_a_state_file_that_is_broken_is_no_hindrance(host: Host, engine: Engine) -> None:
    engine.pace = 5
    (host.state / "state.json").write_text("{")
    host.service("heavy", engine.url)
    host.start()
    wait_for(lambda: host.service_state("heavy").get("state") == "working")


def test_systemd_hears_that_it_is_ready_and_alive(host: Host, engine: Engine) -> None:
    engine.pace = 5
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stream:
        stream.bind(str(host.home / "notify"))
        stream.settimeout(20)
        host.service("heavy", engine.url)
        host.start()
        give_up = time.monotonic() + 120
        while not any({"READY=1", "WATCHDOG=1", "STATUS=heavy working"} <= set(text.splitlines()) for text in heard):
            assert time.monotonic() < give_up, heard
            heard.append(stream.recv(4096).decode())


# --- the stand-in engine ------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Run the stand-in engine as a separate process, as in its image; a call restarts it."""
    home = tmp_path / "stand-in"
    shutil.copytree(REPO / "tests/sim/engine", home)
    shutil.copy(REPO / "tests/sim/common/ledger.py", home / "vllm_sim/ledger.py")
    (home / "image.json").write_text('{"version": "0.24.0", "device": "cuda"}')
    model = tmp_path / "model"
    model.mkdir()
    config = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 64}
    (model / "config.json").write_text(
        json.dumps({**config, "num_key_value_heads": 1, "max_position_embeddings": 4096})
    )
    (model / "model.safetensors").write_bytes(b"\0" * 100)
    port = free_port()
    running: list[subprocess.Popen[bytes]] = []
    program = "import sys; from vllm_sim.main import main; sys.exit(main(sys.argv[1:]))"

    def start() -> str:
        for process in running:
            process.kill()
            process.wait()
        words = ["serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "heavy"]
        env = {**os.environ, "PYTHONPATH": str(home), "SPARK_SIM_ROOT": str(tmp_path / "sim"), "SPARK_SIM_DELAY": "0.1"}
        running[:] = [subprocess.Popen([sys.executable, "-c", program, *words], env=env, stdout=subprocess.DEVNULL)]
        url = f"http://127.0.0.1:{port}"

        def up() -> bool:
            try:
                with urllib.request.urlopen(url + "/health", timeout=2) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_for(up)
        return url

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_the_stand_in_engine_is_wedged_found_and_well_after_its_restart(
    host: Host, stand_in: Callable[[], str], tmp_path: Path
) -> None:
    url = stand_in()
    body = json.dumps({"model": "heavy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}).encode()

    def ask(seconds: float) -> int:
        request = urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return int(answer.status)
        except OSError:
            return 0

    host.settings(probe_seconds=3)
    host.service("heavy", url)
    host.start()
    assert ask(120) == 200
    wait_for(lambda: host.service_state("heavy").get("state") in ("idle", "working"))
    marker = tmp_path / "sim/wedge/heavy"
    marker.parent.mkdir(parents=True)
    marker.write_text("once")
    assert ask(0.5) == 0
    wait_for(lambda: host.restarts)
    assert host.restarts == ["spark-heavy.service"]
    host.unit("heavy", "activating", "i2")
    stand_in()
    host.unit("heavy", "active", "i2", age=1000)
    assert ask(120) == 200
    wait_for(lambda: host.service_state("heavy").get("state") in ("idle", "working"))
    assert host.restarts == ["spark-heavy.service"]
