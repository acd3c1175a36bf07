"""Real supervisors on two addresses of this machine; their containers are processes behind a stand-in for docker."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from on_demand_fixture import HANDED
from planned_fixture import service
from ports import free_port

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import unit_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.planned import Container, RankSettings
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import pins, ranks
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.render import render_template

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[4]
SCRIPT = REPO / "roles/host/files/spark_rank.py"
UNIT_SCRIPT = REPO / "roles/host/files/spark_unit.py"

MEMINFO = "MemTotal: 127535224 kB\nMemFree: 4510768 kB\nMemAvailable: 23135528 kB\n"
LIMIT = 60.0  # for things that happen; nothing here is proved by how long it took

# A container is a process with its own session that outlives the client which started it, as a real one does.
DOCKER = """#!{python} -SE
import json, os, pathlib, signal, subprocess, sys, time
state, words = pathlib.Path({state!r}), sys.argv[1:]
with (state / "log").open("a") as log:
    log.write(" ".join(words[:4]) + "\\n")
if (state / "hangs").exists() and words[0] in (state / "hangs").read_text().split():
    time.sleep(600)
name = words[words.index("--name") + 1] if "--name" in words else words[-1]
held = state / (name.replace("/", "_") + ".pid")

def runs():
    try:
        pid = int(held.read_text())
        return pid if pathlib.Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0] not in "ZX" else 0
    except (OSError, ValueError):
        return 0

def end(number, seconds):
    pid = runs()
    if pid:
        os.kill(pid, number)
    give_up = time.monotonic() + seconds
    while runs() and time.monotonic() < give_up:
        time.sleep(0.02)
    return not runs()

if words[:2] == ["image", "inspect"]:
    image = state / "image"
    if (state / "down").exists():
        sys.exit("Cannot connect to the Docker daemon")
    if not image.exists():
        sys.exit("Error: No such image: " + name)
    print(image.read_text())
elif words[0] == "run":
    if runs():
        sys.stderr.write("Conflict. The container name is already in use\\n")
        sys.exit(125)
    time.sleep(float((state / "slow").read_text()) if (state / "slow").exists() else 0)
    child = subprocess.Popen(words[words.index("IMAGE") + 1:], start_new_session=True)
    held.write_text(str(child.pid))
    code = child.wait()
    held.unlink(missing_ok=True)
    sys.exit(code if code >= 0 else 128 - code)
elif words[0] == "exec":
    sys.stdin.read()
    print((state / "ray").read_text())
    sys.exit(0 if '"ready": true' in (state / "ray").read_text() else 1)
elif not runs():
    held.unlink(missing_ok=True)
    sys.exit("Error: No such container: " + name)
elif words[0] == "stop":
    end(signal.SIGTERM, float(words[2])) or end(signal.SIGKILL, 5)
elif words[0] in ("kill", "rm"):
    end(signal.SIGKILL, 5)
    held.unlink(missing_ok=True)
else:
    print("running")
"""

SYSTEMCTL = """#!{python} -SE
import pathlib, sys
state = pathlib.Path({state!r}) / sys.argv[-1]
print(state.read_text() if state.exists() else "ActiveState=inactive\\nSubState=dead\\nInvocationID=\\nMainPID=0")
"""

# An engine: answers as soon as it runs, or never; may ignore SIGTERM, or end by itself.
ENGINE = """
import http.server, json, os, pathlib, signal, sys, time
port, orders = int(sys.argv[1]), pathlib.Path(sys.argv[2])
order = orders.read_text() if orders.exists() else ""
signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in order else lambda *_: os._exit(0))
print("engine says: starts", flush=True)  # from here on it answers SIGTERM as ordered
if "fails" in order:
    sys.exit(1)
if not port or "silent" in order:
    time.sleep(600)

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        self.answer(json.dumps({{"data": [{{"id": "big"}}]}}))

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        events = [{{"choices": [{{"delta": {{"content": "hello"}}}}]}}, {{"choices": [], "usage": {{"completion_tokens": 1}}}}]
        self.answer("".join("data: " + json.dumps(event) + "\\n\\n" for event in events) + "data: [DONE]\\n\\n")

    def log_message(self, *words):
        pass

http.server.ThreadingHTTPServer.allow_reuse_address = True
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
""".replace("{{", "{").replace("}}", "}")


def until(condition: Callable[[], Any], why: Callable[[], str], limit: float = LIMIT) -> None:
    give_up = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < give_up, why()
        time.sleep(0.05)


class Unit:
    """A host with one unit and the systemd functions that it needs: start, stop, notify, restart, ExecStopPost."""

    def __init__(self, tmp: Path, rank: int, size: int, port: int, http: int, settings: dict[str, Any]) -> None:
        self.rank, self.home = rank, tmp / f"spark-{rank + 1}"
        self.etc, self.run_dir, self.bin, self.state, self.root = (
            self.home / name for name in ("etc", "run", "bin", "state", "root")
        )
        for path in (self.etc / "services", self.bin, self.state, self.root / "proc/sys/vm"):
            path.mkdir(parents=True)
        for name, text in {"docker": DOCKER, "systemctl": SYSTEMCTL}.items():
            path = self.bin / name
            path.write_text(text.format(python=sys.executable, state=str(self.state)))
            path.chmod(0o755)
        (self.home / "engine.py").write_text(ENGINE)
        (self.root / "proc/meminfo").write_text(MEMINFO)
        (self.root / "proc/sys/vm/drop_caches").write_text("0\n")
        self.orders = self.home / "orders"
        self.image("sha256:aaa")
        self.settings: dict[str, Any] = {
            "name": "big",
            "unit": "spark-big.service",
            "container": "spark-big",
            "url": None if rank else f"http://127.0.0.1:{http}",
            "model": "big",
            "api_key_file": None,
            "start_deadline_seconds": 600,
            "memory_gib": 1.0,
            "memory_wait_seconds": 0,
            "sysroot": str(self.root),
            "rank": {
                "cluster": "pair_a",
                "rank": rank,
                "size": size,
                "executor": "mp",
                "address": f"127.0.0.{rank + 1}",
                "port": port,
                "peers": [
                    {"rank": other, "host": f"spark-{other + 1}", "address": f"127.0.0.{other + 1}"}
                    for other in range(size)
                    if other != rank
                ],
                "fingerprint": "f0",
                "image": "vllm:1",
                "model": {"repo": None, "revision": None, "hub": "/nowhere"},
                "peer_timeout_seconds": 300,
                "starts": 3,
                "start_interval": 9300,
                "parts": [self.part("spark-big", 0 if rank else http)],
                **settings,
            },
        }
        self.options = ["--interval=0.05", "--fresh=2", "--poll=0.05", "--look=0.2", "--stop-seconds=5"]
        self.process: subprocess.Popen[str] | None = None
        self.wanted = False
        self.result = ""
        self.codes: list[int] = []
        self.lines: list[str] = []
        self.notes: list[str] = []
        self.active = False
        self.thread: threading.Thread | None = None
        self.wrapper: list[str] = []  # what hands sockets over
        self.handed: tuple[int, ...] = ()

    def part(self, container: str, port: int, **more: Any) -> dict[str, Any]:
        argv = [str(self.bin / "docker"), "run", "--name", container, "IMAGE"]
        return {
            "container": container,
            "argv": [*argv, sys.executable, str(self.home / "engine.py"), str(port), str(self.orders)],
            **more,
        }

    def image(self, number: str, content: str = "layers") -> None:
        (self.state / "image").write_text(f"{number} {content}")

    def order(self, *words: str) -> None:
        self.orders.write_text(" ".join(words))

    def write(self) -> None:
        (self.etc / "services/big.json").write_text(json.dumps(self.settings))

    def start(self) -> Unit:
        assert self.thread is None or not self.thread.is_alive()
        self.write()
        self.wanted, self.result = True, ""
        self.thread = threading.Thread(target=self._supervise, daemon=True)
        self.thread.start()
        return self

    def _supervise(self) -> None:
        while self.wanted:
            code = self._once()
            self.codes.append(code)
            if code == 78:
                self.result = "failed"
                return
            time.sleep(0.2)
        self.result = "stopped"

    def _once(self) -> int:
        name = f"\0dgxspark-test-{os.getpid()}-{id(self)}-{len(self.codes)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes:
            notes.bind(name)
            notes.settimeout(0.1)
            invocation = f"{self.rank}-{len(self.codes)}"
            self.systemd("activating", "start", invocation)
            env = {
                "PATH": f"{self.bin}:/usr/bin:/bin",
                "PYTHONPATH": str(REPO / "collections"),
                "WATCHDOG_USEC": "400000",
            }
            common = [f"--etc={self.etc}", f"--run={self.run_dir}"]
            self.process = subprocess.Popen(
                [*self.wrapper, sys.executable, str(SCRIPT), "big", *common, *self.options],
                pass_fds=self.handed,
                env={**env, "NOTIFY_SOCKET": "@" + name[1:], "INVOCATION_ID": invocation},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert self.process.stdout is not None
            threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()
            while self.process.poll() is None:
                try:
                    note = notes.recv(65536).decode()
                except TimeoutError:
                    continue
                self.notes.append(note)
                if "READY=1" in note:
                    self.active = True
                    self.systemd("active", "running", invocation)
            self.active = False
            self.systemd("activating", "auto-restart", "")
            for part in self.settings["rank"]["parts"]:
                subprocess.run(
                    [str(self.bin / "docker"), "rm", "--force", part["container"]], capture_output=True, check=False
                )
            subprocess.run([sys.executable, str(UNIT_SCRIPT), "release", "big", *common], env=env, check=True)
            return self.process.returncode

    def _read(self, stream: Any) -> None:
        for line in stream:
            self.lines.append(line.rstrip("\n"))

    def systemd(self, active: str, sub: str, invocation: str) -> None:
        fresh = self.state / ".new"
        fresh.write_text(f"ActiveState={active}\nSubState={sub}\nInvocationID={invocation}\nMainPID=0\n")
        fresh.replace(self.state / "spark-big.service")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        self.wanted = False
        give_up = time.monotonic() + LIMIT
        while self.thread is not None and self.thread.is_alive() and time.monotonic() < give_up:
            if self.process is not None and self.process.poll() is None:  # it may have been started just now
                self.signal(signal.SIGCONT)
                self.signal(signal.SIGTERM)
            self.thread.join(1)

    def container(self, name: str = "spark-big") -> int:
        """Return the process id of the running container, or 0."""
        try:
            pid = int((self.state / f"{name}.pid").read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):
            return 0
        return 0 if state in "ZX" else pid

    @property
    def status(self) -> str:
        return next((note[7:] for note in reversed(self.notes) if note.startswith("STATUS=")), "")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def log(self) -> str:
        """Return the calls of docker, one per line."""
        path = self.state / "log"
        return path.read_text() if path.exists() else ""

    def said(self, words: str) -> None:
        until(lambda: words in self.text, lambda: f"{words!r} is not in: {self.text}")

    def tells(self, words: str) -> None:
        until(lambda: words in self.status, lambda: f"{words!r} is not in {self.status!r}; {self.text}")


class DemandUnit(Unit):
    """The same of a model on demand: nothing restarts it; systemd holds the socket of a rank behind the first one and starts it for a datagram."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.settings["on_demand"] = True
        self.settings["rank"]["peer_timeout_seconds"] = 3
        self.udp: socket.socket | None = None
        if self.rank:
            rank = self.settings["rank"]
            self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.udp.bind((rank["address"], rank["port"]))
            self.handed = (self.udp.fileno(),)
            self.wrapper = [sys.executable, "-c", HANDED, "big", str(self.udp.fileno())]

    def available(self, gib: float) -> None:
        fresh = self.root / "proc/.new"
        fresh.write_text(
            f"MemTotal: 127535224 kB\nMemFree: {round(gib * 2**20)} kB\nMemAvailable: {round(gib * 2**20)} kB\n"
        )
        fresh.replace(self.root / "proc/meminfo")

    def _supervise(self) -> None:
        while self.wanted:
            if self.udp is not None:
                if not select.select([self.udp], [], [], 0.1)[0]:
                    continue
                self.codes.append(self._once())
                while select.select([self.udp], [], [], 0)[0]:  # FlushPending
                    self.udp.recv(65536)
            else:
                self.codes.append(self._once())
                self.wanted = False
        self.result = "stopped"


class Pair:
    """The hosts of a model; two of them unless said otherwise."""

    def __init__(self, tmp: Path, size: int = 2, kind: type[Unit] = Unit, **settings: Any) -> None:
        self.port, self.http = free_port(), free_port()
        self.units = [kind(tmp, rank, size, self.port, self.http, settings) for rank in range(size)]
        self.head, self.worker = self.units[:2]

    def start(self) -> Pair:
        for unit in self.units:
            unit.start()
        return self

    def serving(self) -> Pair:
        until(
            lambda: all(unit.active for unit in self.units),
            lambda: "not active:\n" + "\n--\n".join(f"{unit.status}\n{unit.text}" for unit in self.units),
        )
        return self

    def down(self) -> Pair:
        """Wait until no container runs and no unit is active."""
        until(
            lambda: not any(unit.container() or unit.active for unit in self.units),
            lambda: "\n--\n".join(unit.text for unit in self.units),
        )
        return self

    def boots(self) -> list[int]:
        return [len(unit.codes) for unit in self.units]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """Create hosts; at the end none of their processes may remain."""
    made: list[Pair] = []

    def make(size: int = 2, **settings: Any) -> Pair:
        made.append(Pair(tmp_path, size, **settings))
        return made[-1]

    yield make
    units = [unit for entry in made for unit in entry.units]
    for unit in units:
        unit.stop()
    containers = [unit.container(name) for unit in units for name in ("spark-big", "spark-big-ray")]
    for pid in containers:
        if pid:
            os.kill(pid, signal.SIGKILL)
    assert not any(containers), "a container was left behind"


@pytest.fixture
def pair(hosts: Callable[..., Pair]) -> Pair:
    return hosts()


def test_on_demand_a_request_starts_all_ranks_and_a_stop_gives_the_memory_of_all_hosts_back(
    hosts: Callable[..., Pair],
) -> None:
    pair = hosts(kind=DemandUnit)
    for unit in pair.units:
        unit.available(110)
    pair.worker.start()
    time.sleep(0.5)
    assert pair.worker.process is None  # nothing runs that nobody asks for
    pair.head.start()
    pair.serving()
    assert pair.worker.container() and pair.head.container()
    for unit in pair.units:
        record = unit.run_dir / "starts/spark-big.service.json"
        until(lambda record=record: "ready" in record.read_text(), lambda unit=unit: unit.text)
        record_content = json.loads(record.read_text())
        record_content["ready"]["available_gib"] = record_content["gate"]["available_gib"] - 60
        record.write_text(json.dumps(record_content))
        unit.available(50)
    pair.head.signal(signal.SIGTERM)
    until(lambda: not pair.worker.container(), lambda: pair.worker.text)
    time.sleep(0.5)
    assert (
        pair.head.process is not None and pair.head.process.poll() is None
    )  # the memory of the other host is not back yet
    pair.worker.available(105)
    until(
        lambda: pair.head.codes == [0] and pair.worker.codes == [0], lambda: f"{pair.head.text}\n--\n{pair.worker.text}"
    )
    pair.worker.said("55.0 GiB are back after")
    pair.head.said("memory that is back on the other hosts: spark-2 55.0 GiB")
    assert json.loads((pair.head.run_dir / "freed/big.json").read_text()) == {"hosts": {"spark-2": 55.0}}
    time.sleep(1)
    assert pair.worker.codes == [0]  # the last words of the first rank have woken nobody
    pair.head.start()
    pair.serving()


def test_on_demand_a_start_that_fails_ends_with_its_reason_and_is_not_tried_again(hosts: Callable[..., Pair]) -> None:
    pair = hosts(kind=DemandUnit)
    pair.worker.order("fails")
    pair.start()
    until(
        lambda: pair.head.codes == [1] and pair.worker.codes == [1], lambda: f"{pair.head.text}\n--\n{pair.worker.text}"
    )
    assert pair.head.status.startswith(
        "down: spark-2 (rank 1): went down: the container spark-big ended by itself with exit code 1"
    )
    assert not pair.head.container()
    pair.worker.orders.unlink()
    pair.head.start()
    pair.serving()
    os.kill(pair.worker.container(), signal.SIGTERM)
    until(
        lambda: pair.head.codes == [1, 1] and pair.worker.codes == [1, 1],
        lambda: f"{pair.head.text}\n--\n{pair.worker.text}",
    )
    assert not pair.head.container()


@pytest.mark.nightly
def test_on_demand_a_host_that_is_not_there_is_the_reason(hosts: Callable[..., Pair]) -> None:
    pair = hosts(kind=DemandUnit)
    stale = pair.head.run_dir / "freed/big.json"
    stale.parent.mkdir(parents=True)
    stale.write_text('{"hosts": {"spark-2": 99.0}}')
    pair.head.start()
    until(lambda: pair.head.codes == [1], lambda: pair.head.text)
    assert not stale.exists()  # of an earlier start, which says nothing of this one
    assert "down: gave up after 18 s: waits for spark-2 (rank 1): no heartbeat for 18 s" in pair.head.status
    assert not pair.head.container() and not pair.head.log.count("run --name")


@pytest.mark.nightly
def test_on_demand_a_host_without_its_address_is_the_reason(hosts: Callable[..., Pair]) -> None:
    """A head with an unplugged cable has no address on the fabric: it gives up as for an absent host."""
    pair = hosts(kind=DemandUnit)
    pair.head.settings["rank"]["address"] = "192.0.2.1"
    pair.head.start()
    until(lambda: pair.head.codes == [1], lambda: pair.head.text)
    reason = f"cannot listen on 192.0.2.1, UDP port {pair.port}: Cannot assign requested address"
    assert pair.head.status == f"down: gave up after 18 s: {reason}"
    assert "no heartbeat" not in pair.head.text and not pair.head.log.count("run --name")


@pytest.mark.nightly
def test_on_demand_a_rank_that_its_guard_stopped_is_the_reason_at_once(hosts: Callable[..., Pair]) -> None:
    """The next request wakes it by a datagram; it says that it is kept cold, and the first rank gives up."""
    pair = hosts(kind=DemandUnit)
    pins.write(pair.worker.run_dir / pins.FOLDER, "big", pins.COLD, "the guard of spark-2: 0.3 GiB available")
    pair.start()
    until(lambda: pair.head.codes == [1], lambda: pair.head.text)
    assert (
        "down: waits for spark-2 (rank 1): the model is kept cold by the guard of spark-2: 0.3 GiB available"
        in pair.head.status
    )
    assert not any(unit.log.count("run --name") for unit in pair.units)
    until(lambda: pair.worker.codes, lambda: pair.worker.text)
    pins.write(pair.worker.run_dir / pins.FOLDER, "big", "")
    pair.head.start()
    pair.serving()


@pytest.mark.nightly
def test_a_socket_of_another_address_is_said(hosts: Callable[..., Pair]) -> None:
    pair = hosts(kind=DemandUnit)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        pair.worker.handed = (other.fileno(),)
        pair.worker.wrapper = [sys.executable, "-c", HANDED, "big", str(other.fileno())]
        pair.worker.udp = other
        pair.worker.start()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wakes:
            wakes.sendto(b"wake", other.getsockname())
        address = pair.worker.settings["rank"]["address"]
        pair.worker.said(
            f"hands over a socket at 127.0.0.1, port {other.getsockname()[1]}, not at {address}, UDP port {pair.port}"
        )
        until(lambda: pair.worker.codes, lambda: pair.worker.text)
        assert pair.worker.text.count("hands over a socket") == 1
        pair.worker.stop()


def test_both_come_up_and_are_active_when_the_model_has_answered(pair: Pair) -> None:
    pair.worker.start()
    pair.worker.tells("waits for spark-1 (rank 0): no heartbeat for")
    assert not pair.worker.container() and not (pair.worker.run_dir / "start.json").exists()
    pair.head.start()
    pair.serving()
    pair.head.tells("serving with spark-2")
    pair.worker.tells("serving with spark-1")
    until(lambda: all("WATCHDOG=1" in unit.notes for unit in pair.units), lambda: str(pair.head.notes))
    for unit in pair.units:
        assert unit.container()
        unit.said("engine says: starts")  # the journal has the output of the engine
        assert not (unit.run_dir / "start.json").exists()
        record = json.loads((unit.run_dir / "starts/spark-big.service.json").read_text())
        assert "ready" in record and record["invocation"] == f"{unit.rank}-0"
        assert (unit.root / "proc/sys/vm/drop_caches").read_text() == "3\n"


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_an_engine_that_ends_takes_all_down_and_all_come_up_again(pair: Pair, victim: int) -> None:
    pair.start().serving()
    ends, other = pair.units[victim], pair.units[1 - victim]
    ends.said("engine says: starts")  # a rank without a port may be serving before its engine is that far
    first = [unit.container() for unit in pair.units]
    os.kill(first[victim], signal.SIGTERM)
    ends.said("the container spark-big ended by itself with exit code 0")
    other.said(
        f"spark-{victim + 1} (rank {victim}): went down: the container spark-big ended by itself with exit code 0"
    )
    until(lambda: min(pair.boots()) == 1, lambda: ends.text)
    pair.serving()
    assert pair.boots() == [1, 1] and all(unit.codes == [1] for unit in pair.units)
    assert not set(first) & {unit.container() for unit in pair.units}


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_supervisor_that_is_killed_is_noticed(pair: Pair, victim: int) -> None:
    pair.start().serving()
    pair.units[victim].signal(signal.SIGKILL)
    pair.units[1 - victim].said(f"spark-{victim + 1} (rank {victim}) was started anew")
    until(lambda: min(pair.boots()) == 1, lambda: pair.head.text)
    pair.serving()


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_stop_on_purpose_frees_the_other_host_until_it_is_started(pair: Pair, victim: int) -> None:
    pair.start().serving()
    stops, other = pair.units[victim], pair.units[1 - victim]
    stops.stop()
    assert stops.result == "stopped" and stops.codes == [0]
    pair.down()
    other.tells(f"waits for spark-{victim + 1} (rank {victim}): no heartbeat for")
    other.tells("last word: it was stopped on purpose")
    assert not other.container() and not (other.run_dir / "start.json").exists()
    stops.start()
    pair.serving()


@pytest.mark.nightly
def test_both_restarted_at_once_come_up(pair: Pair) -> None:
    pair.start().serving()
    for unit in pair.units:
        unit.signal(signal.SIGTERM)
    until(lambda: min(pair.boots()) == 1, lambda: pair.head.text)
    pair.serving()


@pytest.mark.nightly
def test_three_hosts_live_and_die_together(hosts: Callable[..., Pair]) -> None:
    three = hosts(3).start().serving()
    three.head.tells("serving with spark-2, spark-3")
    os.kill(three.units[2].container(), signal.SIGKILL)
    until(lambda: min(three.boots()) == 1, lambda: three.head.text)
    three.serving()
    three.worker.stop()
    three.down()
    three.worker.start()
    three.serving()
    assert three.head.codes == three.units[2].codes == [1, 1] and three.worker.codes == [1, 0]


def test_a_host_that_stands_still_is_lost_and_meets_the_others_again(hosts: Callable[..., Pair]) -> None:
    pair = hosts(peer_timeout_seconds=2).start().serving()
    pair.worker.signal(signal.SIGSTOP)
    pair.head.said("spark-2 (rank 1) sent no heartbeat for")
    until(lambda: pair.head.codes == [1] and not pair.head.container(), lambda: pair.head.text)
    pair.head.tells("waits for spark-2 (rank 1)")
    assert pair.worker.container()  # it knows of nothing yet
    pair.worker.signal(signal.SIGCONT)
    until(lambda: pair.worker.codes == [1], lambda: pair.worker.text)
    pair.serving()


def test_a_cable_that_is_out_is_noticed_where_signs_of_life_go_another_way(hosts: Callable[..., Pair]) -> None:
    links = [{"netdev": "enp1s0f0np0", "host": "spark-2"}, {"netdev": "enP2p1s0f0np0", "host": "spark-2"}]
    pair = hosts(peer_timeout_seconds=1, links=links)

    def plug(state: str) -> None:
        for unit in pair.units:
            for link in links:
                path = unit.root / "sys/class/net" / link["netdev"] / "operstate"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{state}\n")

    plug("up")
    pair.start().serving()
    plug("lowerlayerdown")
    pair.head.said("enP2p1s0f0np0 has no link to spark-2: a cable of the ring is out for")
    until(lambda: pair.head.codes == pair.worker.codes == [1], lambda: pair.head.text)
    pair.head.tells("enp1s0f0np0 has no link to spark-2")
    pair.worker.tells("waits for spark-1 (rank 0)")
    assert not pair.head.container() and not pair.worker.container()
    plug("up")
    pair.serving()


@pytest.mark.nightly
def test_a_short_silence_changes_nothing(pair: Pair) -> None:
    pair.start().serving()
    pair.worker.signal(signal.SIGSTOP)
    time.sleep(2.5)  # longer than a sign of life is fresh
    pair.worker.signal(signal.SIGCONT)
    time.sleep(0.5)
    assert pair.boots() == [0, 0] and all(unit.active for unit in pair.units)


def test_other_settings_wait_and_are_named_in_the_journal(pair: Pair) -> None:
    pair.worker.settings["rank"]["fingerprint"] = "f1"
    pair.start()
    pair.head.tells(
        "the settings here and on spark-2 (rank 1) differ: f0 here, f1 there; run site.yml for all hosts of pair_a"
    )
    pair.worker.said("the settings here and on spark-1 (rank 0) differ: f1 here, f0 there")
    assert not any(unit.container() for unit in pair.units)
    pair.worker.stop()
    pair.worker.settings["rank"]["fingerprint"] = "f0"
    pair.worker.start()
    pair.serving()
    assert pair.head.codes == []


def test_other_images_wait_until_one_is_brought(pair: Pair) -> None:
    pair.worker.image("sha256:bbb", "other layers")
    pair.start()
    pair.head.tells("the images here and on spark-2 (rank 1) differ: sha256:aaa here, sha256:bbb there")
    pair.worker.image("sha256:aaa")
    pair.serving()
    assert pair.boots() == [0, 0]


def test_an_image_that_is_missing_is_told_on_both_hosts(pair: Pair) -> None:
    (pair.worker.state / "image").unlink()
    pair.start()
    pair.worker.tells("the image vllm:1 is not there (Error: No such image: vllm:1)")
    pair.head.tells("waits for spark-2 (rank 1): the image vllm:1 is not there")
    pair.worker.image("sha256:aaa")
    pair.serving()


def test_an_image_of_which_docker_does_not_say_is_not_called_missing(pair: Pair) -> None:
    (pair.worker.state / "down").touch()
    pair.start()
    pair.worker.tells("whether the image vllm:1 is there is not known: Cannot connect to the Docker daemon")
    (pair.worker.state / "down").unlink()
    pair.serving()


def test_other_weights_wait(pair: Pair) -> None:
    for unit in pair.units:
        refs = unit.home / "hub/models--org--name/refs"
        refs.mkdir(parents=True)
        (refs / "main").write_text(f"{unit.rank}" * 40 + "\n")
        unit.settings["rank"]["model"] = {"repo": "org/name", "revision": "main", "hub": str(unit.home / "hub")}
    pair.start()
    pair.head.tells("the weights here and on spark-2 (rank 1) differ: " + "0" * 40 + " here, " + "1" * 40 + " there")
    (pair.worker.home / "hub/models--org--name/refs/main").write_text("0" * 40)
    pair.serving()


@pytest.mark.nightly
def test_three_starts_that_fail_are_the_end_and_the_other_side_says_why(pair: Pair) -> None:
    pair.worker.order("fails")
    pair.start()
    until(lambda: pair.worker.result == "failed", lambda: pair.worker.text)
    assert pair.worker.codes == [1, 1, 78]
    pair.worker.said(
        "gave up after 3 failed starts within 155 min, the last one: the container spark-big ended by itself"
    )
    assert "When the cause is gone: systemctl start spark-big.service" in pair.worker.text
    pair.head.tells("it does not come back by itself: gave up after 3 failed starts")
    pair.down()
    until(lambda: not (pair.head.run_dir / "start.json").exists(), lambda: pair.head.text)
    pair.worker.order("")
    pair.worker.start()
    pair.serving()


@pytest.mark.nightly
def test_an_answer_that_never_comes_is_a_failed_start(pair: Pair) -> None:
    pair.head.settings["start_deadline_seconds"] = 1
    pair.head.order("silent")
    pair.start()
    until(lambda: pair.head.result == "failed", lambda: pair.head.text)
    pair.head.said(
        "gave up after 3 failed starts within 155 min, the last one: not ready, stage health: not ready after 1.0 s"
    )
    assert pair.head.codes == [1, 1, 78] and 78 not in pair.worker.codes
    pair.down()


@pytest.mark.nightly
def test_too_little_memory_is_tried_again_and_then_given_up(pair: Pair) -> None:
    pair.worker.settings["memory_gib"] = 95.0
    pair.start()
    until(lambda: pair.worker.result == "failed", lambda: pair.worker.text)
    pair.worker.said("the last one: not enough memory: needs 95.00 GiB, 22.06 GiB available")
    assert not any("spark-big" in line and line.startswith("run") for line in pair.head.log.splitlines())
    (pair.worker.root / "proc/meminfo").write_text(MEMINFO.replace("23135528", "123135528"))
    pair.worker.start()
    pair.serving()


@pytest.mark.nightly
def test_an_engine_that_does_not_stop_is_killed(pair: Pair) -> None:
    for unit in pair.units:
        unit.order("stubborn")
        unit.options = [*unit.options[:-1], "--stop-seconds=1"]
    pair.start().serving()
    for unit in pair.units:
        unit.said("engine says: starts")
    pair.head.stop()
    assert pair.head.codes == [0]
    pair.down()


def test_a_docker_that_hangs_holds_up_neither_signs_of_life_nor_the_end(pair: Pair) -> None:
    pair.worker.options = [*pair.worker.options[:-1], "--stop-seconds=-14"]  # with the grace for the client: one second
    pair.start().serving()
    (pair.worker.state / "hangs").write_text("stop")
    pair.worker.signal(signal.SIGTERM)
    pair.head.said("spark-2 (rank 1): it was stopped on purpose")
    pair.down()
    assert "warning" not in pair.worker.text
    (pair.worker.state / "hangs").unlink()


def test_a_container_whose_client_is_killed_does_not_stay(pair: Pair) -> None:
    pair.start().serving()
    container = pair.worker.container()
    parent = int(Path(f"/proc/{container}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    pair.worker.said("the container spark-big ended by itself with signal 9")
    until(lambda: min(pair.boots()) == 1, lambda: pair.worker.text)
    pair.serving()
    assert not Path(f"/proc/{container}/cmdline").exists() or pair.worker.container() != container


@pytest.mark.nightly
def test_a_stop_before_docker_has_made_the_container_leaves_none(pair: Pair) -> None:
    (pair.worker.state / "slow").write_text("3")
    pair.start()
    until(lambda: "run --name" in pair.worker.log, lambda: pair.worker.text)
    pair.worker.stop()
    assert pair.worker.codes == [0] and not pair.worker.container()
    (pair.worker.state / "slow").unlink()


def test_strangers_are_not_heard(pair: Pair) -> None:
    pair.head.start()
    pair.head.tells("no heartbeat for")
    message = {
        "magic": "dgxspark-rank-1",
        "cluster": "pair_a",
        "service": "big",
        "rank": 1,
        "boot": "b",
        "seq": 1,
        "phase": "down",
        "fingerprint": "f0",
        "facts": {"image": "", "content": "", "commit": "", "problem": ""},
        "members": None,
        "reachable_peers": {},
        "reason": "stranger",
        "final": True,
    }
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.3", 0))
        stranger.sendto(json.dumps(message).encode(), ("127.0.0.1", pair.port))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as user:  # of the right host, but not the supervisor
        user.bind(("127.0.0.2", 0))
        user.sendto(json.dumps(message).encode(), ("127.0.0.1", pair.port))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.2", pair.port))
        peer.sendto(b"junk", ("127.0.0.1", pair.port))
        peer.sendto(json.dumps({**message, "rank": 0}).encode(), ("127.0.0.1", pair.port))
        peer.sendto(json.dumps({**message, "reason": "the peer itself"}).encode(), ("127.0.0.1", pair.port))
    pair.head.tells("the peer itself")
    assert not any("stranger" in note for note in pair.head.notes)


def test_an_address_that_is_not_there_yet_is_said(pair: Pair) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", pair.port))
        pair.head.start()
        pair.head.tells(f"cannot listen on 127.0.0.1, UDP port {pair.port}: Address already in use")
    pair.worker.start()
    pair.serving()


def test_ray_starts_on_all_hosts_and_the_engine_when_it_has_its_nodes(pair: Pair) -> None:
    head, worker = pair.units
    for unit in pair.units:
        unit.settings["rank"]["executor"] = "ray"
        unit.settings["rank"]["parts"] = [unit.part("spark-big-ray", 0)]
    after = {"ray": {"address": "127.0.0.1:6379", "nodes": 2, "gpus": 2}}
    head.settings["rank"]["parts"].append(head.part("spark-big", pair.http, after=after))
    ray = head.state / "ray"
    ray.write_text(
        json.dumps(
            {"ready": False, "nodes": [{"address": "127.0.0.1", "alive": True}], "gpus": 1, "error": "1 of 2 nodes"}
        )
    )
    pair.start()
    until(lambda: head.container("spark-big-ray") and worker.container("spark-big-ray"), lambda: head.text)
    until(lambda: "exec" in head.log, lambda: head.text)
    assert not head.container()
    (head.state / ".ray").write_text(
        json.dumps(
            {
                "ready": True,
                "nodes": [{"address": f"127.0.0.{number}", "alive": True} for number in (1, 2)],
                "gpus": 2,
                "error": "",
            }
        )
    )
    (head.state / ".ray").replace(ray)
    pair.serving()
    head.said("Ray has the nodes 127.0.0.1, 127.0.0.2 and 2 GPUs")
    assert head.container() and not worker.container()
    os.kill(worker.container("spark-big-ray"), signal.SIGTERM)
    head.said("spark-2 (rank 1): went down: the container spark-big-ray ended by itself")
    until(lambda: min(pair.boots()) == 1, lambda: head.text)
    pair.serving()
    log = head.log.splitlines()
    stops = [line.rsplit(" ", 1)[-1] for line in log if line.startswith("stop")]
    assert stops[:2] == ["spark-big", "spark-big-ray"]


@pytest.mark.nightly
def test_ray_that_does_not_get_its_nodes_is_a_failed_start(pair: Pair) -> None:
    head = pair.head
    for unit in pair.units:
        unit.settings["rank"]["executor"] = "ray"
        unit.settings["rank"]["parts"] = [unit.part("spark-big-ray", 0)]
        unit.options.append("--nodes-seconds=0.3")
    after = {"ray": {"address": "127.0.0.1:6379", "nodes": 2, "gpus": 2}}
    head.settings["rank"]["parts"].append(head.part("spark-big", pair.http, after=after))
    (head.state / "ray").write_text(
        json.dumps(
            {"ready": False, "nodes": [{"address": "127.0.0.1", "alive": True}], "gpus": 1, "error": "1 of 2 nodes"}
        )
    )
    pair.start()
    until(lambda: head.result == "failed", lambda: head.text)
    head.said("Ray did not get its 2 nodes within 0 s: Ray has the nodes 127.0.0.1 and 1 GPUs; 1 of 2 nodes")


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda settings: settings.pop("rank"), "this service has no ranks"),
        (lambda settings: settings["rank"].update(peers=[]), "'rank' lacks peers"),
        (lambda settings: settings.pop("model"), "lacks model"),
    ],
)
def test_settings_that_cannot_work_are_not_tried_again(pair: Pair, break_it: Any, words: str) -> None:
    rank = pair.head.settings["rank"]
    break_it(pair.head.settings)
    pair.head.write()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "big", f"--etc={pair.head.etc}", f"--run={pair.head.run_dir}"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPO / "collections")},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 78 and words in done.stdout and "run site.yml again" in done.stdout, done
    pair.head.settings["rank"] = rank


# --- on a host ------------------------------------------------------------------------------------------------------


def test_what_the_role_puts_on_a_host_is_all_it_needs(tmp_path: Path) -> None:
    """The layout on a host, made from the list of the role, and no compiled files left behind."""
    for file in unit_files.host({**unit_files.DEFAULTS, "host_hf_home": "/srv", "host_cache_dir": "/var"})["files"]:
        target = tmp_path / file["path"].lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / file["bundled"], target)
    libexec = tmp_path / "usr/local/libexec/dgxspark"
    before = sorted(libexec.rglob("*"))
    done = subprocess.run(
        [sys.executable, str(libexec / "spark_rank.py"), "big", f"--etc={tmp_path}", f"--run={tmp_path}"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 78 and "cannot be read" in done.stdout, done
    assert sorted(libexec.rglob("*")) == before and libexec / "dgxspark_vllm/_runtime/ray_nodes.py" in before


def test_the_unit_and_the_supervisor_agree(pair: Pair) -> None:
    rank = pair.head.settings["rank"]
    rank["parts"] = [pair.head.part("spark-big-ray", 0), pair.head.part("spark-big", 1)]
    parts = [Container(part["container"], part["argv"]) for part in rank["parts"]]
    item = service(
        name="big",
        port=8000,
        container="spark-big",
        after=["spark-small.service"],
        cache_dir="/var/cache/dgxspark/big",
    )
    item = replace(item, settings=replace(item.settings, rank=RankSettings(**{**rank, "parts": parts})))
    unit = unit_files.engine_unit(item, "dgxspark", "/srv/huggingface")
    lines = render_template(unit["template"], unit["values"]).splitlines()
    assert "LimitCORE=0" in lines  # a core dump holds keys
    assert f"RestartPreventExitStatus={ranks.EXIT_FOR_GOOD}" in lines and "Restart=always" in lines
    assert "Environment=SPARK_FINGERPRINT=f0" in lines and "After=spark-small.service" in lines
    assert "Description=vLLM big, rank 0 of 2 of pair_a, on port 8000 (dgxspark.vllm)" in lines
    for step in ("ExecStartPre", "ExecStopPost"):
        assert f"{step}=-/usr/bin/timeout --kill-after=5 60 /usr/bin/docker rm --force spark-big-ray spark-big" in lines
    (start,) = [line.split() for line in lines if line.startswith("ExecStart=")]
    process = subprocess.run(
        [sys.executable, str(SCRIPT), *start[2:], f"--etc={pair.head.home}"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPO / "collections")},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert process.returncode == 78 and "big.json cannot be read" in process.stdout, process  # its words are understood


def test_each_rank_keeps_memory_free_while_the_model_loads_and_no_longer(pair: Pair) -> None:
    short = "MemTotal: 127535224 kB\nMemFree: 3145728 kB\nMemAvailable: 23135528 kB\nCached: 19000000 kB\n"
    for unit in pair.units:
        unit.settings["load_guard"] = {"enabled": True, "floor_gib": 8.0, "interval_seconds": 0.1}
        (unit.root / "proc/meminfo").write_text(short)
    pair.head.order("silent")
    pair.start()
    for unit in pair.units:
        unit.tells("; load guard: caches dropped")
        assert (unit.root / "proc/sys/vm/drop_caches").read_text() == "1\n"
    pair.worker.order("fails")  # for the next start
    pair.head.order("")
    os.kill(pair.head.container(), signal.SIGTERM)  # the start fails, and so ends the guard of both
    for unit in pair.units:
        unit.said("load guard: dropped caches")
        unit.said("lowest MemFree 3.00 GiB")
        until(lambda unit=unit: unit.codes, lambda unit=unit: unit.text)


def test_the_guard_ends_when_the_model_has_answered(pair: Pair) -> None:
    for unit in pair.units:
        unit.settings["load_guard"] = {"enabled": True, "floor_gib": 8.0, "interval_seconds": 0.1}
    pair.start().serving()
    for unit in pair.units:
        unit.said("load guard: had nothing to")
        unit.tells("serving with")
        record = json.loads((unit.run_dir / "starts/spark-big.service.json").read_text())
        assert record["load_guard"]["drops"] == 0 and "ready" in record
        (unit.root / "proc/meminfo").write_text("MemTotal: 127535224 kB\nMemFree: 1 kB\nCached: 19000000 kB\n")
        (unit.root / "proc/sys/vm/drop_caches").write_text("untouched")
    time.sleep(1)
    assert {(unit.root / "proc/sys/vm/drop_caches").read_text() for unit in pair.units} == {"untouched"}
