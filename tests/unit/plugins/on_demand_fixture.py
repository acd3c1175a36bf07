# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with engines on demand: the real program, and a service manager and engines that are played by small programs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ports import free_port

REPO = Path(__file__).resolve().parents[3]
SCRIPT = REPO / "roles/service/files/spark_on_demand.py"
AVAILABLE_GIB = 110.0

# Functions of both programs for the files of a unit; running units reduce the available memory of the host.
COMMON = """
import fcntl, json, os, pathlib, signal, subprocess, sys, time
home = pathlib.Path({home!r})

def write(path, text):
    fresh = path.with_name("." + path.name + "." + str(os.getpid()))
    fresh.write_text(text)
    fresh.replace(path)

def read(unit):
    try:
        return json.loads((home / "units" / unit).read_text())
    except FileNotFoundError:
        return {{"state": "inactive"}}

def options(unit):
    return json.loads((home / "options" / unit).read_text())

def memory():
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = sum(json.loads(path.read_text()).get("held", 0.0) for path in (home / "units").glob("spark-*"))
        kib = round(({available} - held) * 2**20)
        write(home / "root/proc/meminfo", "MemTotal: %d kB\\nMemFree: %d kB\\nMemAvailable: %d kB\\n" % (119 * 2**20, kib, kib))

def become(unit, state, **further):
    now = round(time.monotonic() * 1e6)
    before = read(unit)
    if state in ("activating", "active"):
        further["InactiveExitTimestampMonotonic" if state == "activating" else "ActiveEnterTimestampMonotonic"] = now
    write(home / "units" / unit, json.dumps({{**before, **further, "state": state}}))
"""

SYSTEMCTL = """#!{python} -SE
{common}
with (home / "calls").open("a") as stream:
    stream.write(json.dumps([round(time.monotonic(), 3), *sys.argv[1:]]) + "\\n")
if (home / "silent").exists():
    time.sleep(60)
verb, units = [word for word in sys.argv[1:] if not word.startswith("-")][0], sys.argv[sys.argv.index("--") + 1:]

def alive(pid):
    try:
        return pathlib.Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

for unit in units:
    found = read(unit)
    if verb == "show":
        if found.get("pid") and found["state"] not in ("inactive", "failed") and not alive(found["pid"]):
            become(unit, "failed", Result="signal", held=0.0)
            memory()
            found = read(unit)
        print("Id=%s\\nActiveState=%s" % (unit, found["state"]))
        if found.get("pid"):
            print("InvocationID=i%d" % found["pid"])
        if options(unit).get("status"):
            print("StatusText=" + options(unit)["status"])
        for key in ("Result", "InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic"):
            if key in found:
                print("%s=%s" % (key, found[key]))
        print()
    elif verb == "start" and found["state"] in ("inactive", "failed"):
        if options(unit).get("fail") == "missing":
            sys.exit("Failed to start %s: Unit %s not found. password=hunter22" % (unit, unit))
        become(unit, "activating", held=0.0, Result="success", pid=0)
        subprocess.Popen([sys.executable, "-SE", str(home / "bin/engine"), unit], start_new_session=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=(home / "engine.log").open("a"))
    elif verb == "reset-failed" and found["state"] == "failed":
        become(unit, "inactive")
    elif verb == "stop" and found["state"] in ("active", "activating") and found["pid"]:
        become(unit, "deactivating")
        os.kill(found["pid"], signal.SIGTERM)
"""

# It speaks as vLLM does: events of a stream at a pace that is asked for, and an error for a model that it does not have.
ENGINE = """#!{python} -SE
{common}
import asyncio
unit = sys.argv[1]
given = options(unit)
running = 0

def available():
    return int((home / "root/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0])

def alone():
    # As the gate of a unit takes the start lock; an owner that was killed does not count.
    with (home / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            owner = json.loads((home / "start.json").read_text())
        except FileNotFoundError:
            owner = {{}}
        if owner and read(owner["unit"])["state"] == "activating" and pathlib.Path("/proc/" + owner["invocation"][1:]).exists():
            return False
        write(home / "start.json", json.dumps({{"unit": unit, "invocation": "i%d" % os.getpid(), "loads": True}}))
        return True

async def load():
    while not alone():
        await asyncio.sleep(0.02)
    while any(json.loads(path.read_text())["state"] == "deactivating" for path in (home / "units").glob("spark-*")):
        await asyncio.sleep(0.02)
    become(unit, "activating", held=given["gib"])
    memory()
    free = available()
    await asyncio.sleep(given["load"])
    if available() > free:  # as vLLM does, when memory comes back while it measures
        write(home / "journal", "AssertionError: Error in memory profiling.\\nspark-unit: %s: not ready: the main process has ended\\n" % unit)
        become(unit, "failed", Result="exit-code", held=0.0)
        memory()
        os._exit(1)
    if given.get("fail") == "exit":
        write(home / "journal", "spark-unit: %s: not ready, stage process: no room for KV; api_key=sk-abcdef0123456789abcdef\\n" % unit)
        become(unit, "failed", Result="exit-code", held=0.0)
        memory()
        os._exit(1)
    server = await asyncio.start_server(connection, given["host"], given["port"], backlog=1024, limit=2**24)
    write(home / "starts" / (unit + ".json"), json.dumps({{"gate": {{"available_gib": {available}}},
          "ready": {{"available_gib": {available} - given["gib"]}}}}))
    become(unit, "active")
    (home / "start.json").unlink()

async def end():
    become(unit, "deactivating")
    await asyncio.sleep(0.02)
    become(unit, given.get("stopped", "inactive"))
    await asyncio.sleep(given.get("late", 0.0))
    become(unit, given.get("stopped", "inactive"), held=0.0)
    memory()
    os._exit(0)

async def body_of(reader, headers):
    if headers.get("transfer-encoding") == "chunked":
        found = b""
        while size := int(await reader.readline(), 16):
            found += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return found
    return await reader.readexactly(int(headers.get("content-length", 0)))

async def connection(reader, writer):
    global running
    try:
        method, path, _version = (await reader.readline()).decode().split()
        headers = {{}}
        while line := (await reader.readline()).decode("latin-1").strip():
            name, _colon, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\\r\\n\\r\\n")
        body = await body_of(reader, headers)
        if path == "/metrics":
            labels = '{{engine="0"}}'
            text = "vllm:num_requests_running%s %.1f\\nvllm:num_requests_waiting%s 0.0\\n" % (labels, running + given.get("foreign", 0), labels)
            return whole(writer, 200, text.encode())
        if method == "GET":
            return whole(writer, 200, json.dumps({{"engine": unit, "path": path}}).encode())
        if headers.get("content-type", "").startswith("multipart/"):
            return whole(writer, 200, json.dumps({{"text": "", "bytes": len(body)}}).encode())
        asked = json.loads(body)
        if asked.get("model") != given["model"]:
            return whole(writer, 404, json.dumps({{"error": {{"message": "no model " + str(asked.get("model")), "code": 404}}}}).encode())
        running += 1
        gone = asyncio.ensure_future(reader.read(1))
        work = asyncio.ensure_future(complete(asked, len(body), headers, writer))
        try:
            await asyncio.wait({{gone, work}}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                with (home / "gone").open("a") as stream:
                    stream.write(unit + "\\n")
                work.cancel()
            gone.cancel()
        finally:
            running -= 1
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()

def whole(writer, status, body):
    writer.write(b"HTTP/1.1 %d -\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n" % (status, len(body)) + body)

async def complete(asked, size, headers, writer):
    tokens, pace = asked.get("max_tokens", 1), asked.get("pace", 0.0)
    if not asked.get("stream"):
        await asyncio.sleep(pace * tokens)
        value = {{"model": given["model"], "number": asked.get("number"), "bytes": size, "connection": headers.get("connection"),
                  "choices": [{{"index": 0, "finish_reason": "stop", "message": {{"role": "assistant", "content": unit}}}}]}}
        return whole(writer, 200, json.dumps(value).encode())
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\nTransfer-Encoding: chunked\\r\\nConnection: close\\r\\n\\r\\n")
    started = time.monotonic()
    for number in range(tokens):
        await asyncio.sleep(max(started + pace * number - time.monotonic(), 0))
        event(writer, json.dumps({{"model": given["model"], "choices": [{{"delta": {{"content": " %d" % number}}}}]}}))
        await writer.drain()
    event(writer, "[DONE]")
    writer.write(b"0\\r\\n\\r\\n")
    await writer.drain()

def event(writer, text):
    data = ("data: %s\\n\\n" % text).encode()
    writer.write(b"%x\\r\\n%s\\r\\n" % (len(data), data))

async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(end()))
    become(unit, "activating", pid=os.getpid())
    await load()
    await asyncio.Event().wait()

asyncio.run(main())
"""

# What engines print, by the clock at which they did; and what the helper of their unit says.
JOURNALCTL = """#!{python} -SE
{common}
if "--output=json" in sys.argv:
    lines = json.loads((home / "printed").read_text()) if (home / "printed").exists() else []
    for line in [] if any(word.startswith("--after-cursor") for word in sys.argv) else lines:
        print(json.dumps({{"__MONOTONIC_TIMESTAMP": str(round(time.monotonic() * 1e6)), "MESSAGE": line, "__CURSOR": "s"}}))
elif (home / "journal").exists():
    sys.stdout.write((home / "journal").read_text())
"""

# As systemd hands sockets over: from file descriptor 3 on, with their names.
HANDED = """
import fcntl, os, sys
names, numbers, argv = sys.argv[1], [int(each) for each in sys.argv[2].split(",")], sys.argv[3:]
high = [fcntl.fcntl(each, fcntl.F_DUPFD, 200) for each in numbers]
for place, each in enumerate(high):
    os.dup2(each, 3 + place)
    os.close(each)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(numbers)), LISTEN_FDNAMES=names)
os.execv(argv[0], argv)
"""


class Host:
    """Engines that are units; C(options) sets the behaviour of one, C(start) runs the program with sockets that stay when it ends."""

    def __init__(self, tmp: Path, names: str = "ab", poll: float = 0.4, **settings: Any) -> None:
        self.home, self.poll, self.names = tmp, poll, names
        for name in ("units", "options", "starts", "bin", "root/proc", "run", "state"):
            (tmp / name).mkdir(parents=True)
        common = COMMON.format(home=str(tmp), available=AVAILABLE_GIB)
        for name, text in (("systemctl", SYSTEMCTL), ("engine", ENGINE), ("journalctl", JOURNALCTL)):
            path = tmp / "bin" / name
            path.write_text(text.format(python=sys.executable, common=common, available=AVAILABLE_GIB))
            path.chmod(0o755)
        kib = round(AVAILABLE_GIB * 2**20)
        (tmp / "root/proc/meminfo").write_text(
            f"MemTotal: {119 * 2**20} kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\n"
        )
        self.sockets = {name: socket.create_server(("127.0.0.1", 0), backlog=512) for name in names}
        self.further: list[tuple[str, socket.socket]] = []
        self.services = {name: self.service(name, **settings) for name in names}
        self.sets: dict[str, Any] = {}
        for name in names:
            self.options(name)
        self.process: subprocess.Popen[str] | None = None
        self.log = (tmp / "log").open("a")

    def service(self, name: str, **changes: Any) -> dict[str, Any]:
        self.ports = getattr(self, "ports", {})
        self.ports[name] = free_port()
        settings = {
            "unit": f"spark-{name}.service", "engine": f"http://127.0.0.1:{self.ports[name]}", "model": f"org/{name}",
            "max_model_len": 4096, "api_key_file": None, "idle_seconds": 600, "minimum_seconds": 0.5, "priority": 0, "set": None,
            "hold_seconds": 300, "while_loading": "wait", "retry_seconds": 30, "start_seconds": 60,
        }  # fmt: skip
        return {**settings, **changes}

    def options(self, name: str, **changes: Any) -> None:
        engine_options = {
            "host": "127.0.0.1",
            "port": self.ports[name],
            "model": f"org/{name}",
            "load": 0.1,
            "gib": 40.0,
        }
        (self.home / "options" / f"spark-{name}.service").write_text(json.dumps({**engine_options, **changes}))

    # --- the program

    def start(self) -> Host:
        settings = {
            "services": self.services, "sets": self.sets, "sysroot": str(self.home / "root"),
            "run": str(self.home / "run"), "state": str(self.home / "state"),
        }  # fmt: skip
        (self.home / "run").mkdir(exist_ok=True)
        (self.home / "settings.json").write_text(json.dumps(settings))
        pairs = [*self.sockets.items(), *self.further]
        numbers = [sock.fileno() for _name, sock in pairs]
        words = [":".join(name for name, _sock in pairs), ",".join(map(str, numbers)), sys.executable, str(SCRIPT)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", HANDED, *words, f"--settings={self.home / 'settings.json'}", f"--poll={self.poll}"],
            env=self.environment,
            pass_fds=numbers,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.home / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(REPO / "collections")}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(SCRIPT), f"--settings={self.home / 'settings.json'}", *words]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False, timeout=60)

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End the program; returns its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def systemctl(self, verb: str, name: str) -> None:
        argv = [str(self.home / "bin/systemctl"), "--no-block", verb, "--", f"spark-{name}.service"]
        subprocess.run(argv, check=True, timeout=60)

    def close(self) -> None:
        """End everything."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        for path in (self.home / "units").glob("spark-*"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(json.loads(path.read_text()).get("pid") or 2**22, signal.SIGKILL)
        for sock in (*self.sockets.values(), *(sock for _name, sock in self.further)):
            sock.close()
        self.log.close()

    # --- observations

    @property
    def said(self) -> str:
        return (self.home / "log").read_text()

    def unit(self, name: str) -> dict[str, Any]:
        path = self.home / "units" / f"spark-{name}.service"
        result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"state": "inactive"}
        return result

    def calls(self, verb: str) -> list[tuple[float, str]]:
        """When which unit was started or stopped."""
        path = self.home / "calls"
        result = map(json.loads, path.read_text().splitlines() if path.exists() else [])
        return [(call[0], call[-1]) for call in result if verb in call]

    @property
    def told(self) -> dict[str, Any]:
        try:
            services: dict[str, Any] = json.loads((self.home / "run/state.json").read_text())["services"]
        except (OSError, ValueError):
            return {}
        return services

    def state(self, name: str) -> str:
        return str(self.told.get(name, {}).get("state"))

    def works(self, name: str) -> bool:
        """Whether an engine works on a request, by itself."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[name], timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read()
        connection.close()
        return b'running{engine="0"} 1.0' in text

    # --- requests

    def connect(self, name: str, timeout: float = 300.0) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.sockets[name].getsockname()[1], timeout=timeout)

    def ask(self, name: str, path: str = "/v1/chat/completions", method: str = "POST", **body: Any) -> tuple[int, Any]:
        """One request to the port of a service; returns status and JSON."""
        status, _headers, text = self.fetch(name, path, method, **body)
        return status, json.loads(text)

    def fetch(
        self, name: str, path: str = "/v1/chat/completions", method: str = "POST", key: str = "", **body: Any
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self.connect(name)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        data = json.dumps({"model": f"org/{name}", **body}) if method == "POST" else None
        connection.request(method, path, data, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        result = {key.lower(): value for key, value in response.getheaders()}
        text = response.read()
        connection.close()
        return response.status, result, text


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until something holds; returns it."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"it did not come true within {seconds:g} s")
