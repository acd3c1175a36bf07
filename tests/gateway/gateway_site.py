# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real LiteLLM with the files that the role puts there, and what asks it.

GATEWAY_PYTHON names a Python that has the packages of tests/sim/gateway/requirements.txt; without it tests of the gateway are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import gateway
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints

HERE = Path(__file__).resolve().parent
FILES = HERE.parent.parent / "roles" / "gateway" / "files"
PYTHON = os.environ.get("GATEWAY_PYTHON", "")
PATIENCE = 240.0
needs_litellm = pytest.mark.skipif(not PYTHON, reason="GATEWAY_PYTHON names no Python with LiteLLM")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any], why: str) -> Any:
    """Wait for something that has to come."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.2)
    raise AssertionError(f"{why} did not come within {PATIENCE:.0f} s")


class Site:
    """A gateway with two backends, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config, self.secrets, self.run = folder / "config", folder / "secrets", folder / "run"
        for path in (self.config, self.secrets, self.run / "state"):
            path.mkdir(parents=True)
        self.port = free_port()
        self.ports = {"heavy": free_port(), "fast": free_port()}
        self.url = f"http://127.0.0.1:{self.port}"
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self.logs: dict[str, Any] = {}

    def write(self, **more: Any) -> None:
        """Put in place what the role would, from what a person would write."""
        fleet = [
            endpoints.make(
                "spark-1", "127.0.0.1", "heavy", "vllm", self.ports["heavy"], "0.0.0.0", api_key_file="keys/heavy"
            ),
            endpoints.make("spark-2", "127.0.0.1", "fast", "vllm", self.ports["fast"], "0.0.0.0"),
        ]
        aliases = {
            "both": {"backends": ["spark-1/heavy", "spark-2/fast"], "routing": "balance"},
            "ordered": ["spark-1/heavy", "spark-2/fast"],
            "only": "spark-1/heavy",
        }
        clients = [{"name": "hermes", "key_file": "keys/hermes", "aliases": ["only"]}]
        self.write_for(fleet, **{"aliases": aliases, "clients": clients, **more})

    def write_for(self, fleet: list[endpoints.Endpoint], **more: Any) -> None:
        """The same for backends of somebody else."""
        written: dict[str, Any] = {
            "listen": "127.0.0.1",
            "port": self.port,
            "master_key_file": "keys/master",
            "health_interval": 5,
            **more,
        }
        settings, messages = gateway.read("forge", written)
        planned, _gateway, _endpoint, findings = gateway.plan("forge", "127.0.0.1", settings, fleet)
        assert not messages and not findings
        contents = {"keys/master": "key of master", "keys/hermes": "key of hermes", "keys/heavy": "key-of-heavy"}
        for entry in planned["secrets"]:
            (self.secrets / entry["name"]).write_text(contents[entry["source"]] + "\n", encoding="utf-8")
        (self.config / "gateway.json").write_text(json.dumps(planned["settings"]), encoding="utf-8")
        (self.config / "litellm.yaml").write_text(json.dumps(planned["config"]), encoding="utf-8")

    def start(self, name: str, *command: str) -> None:
        self.logs[name] = (self.folder / f"{name}.log").open("ab")
        self.programs[name] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.logs[name], stderr=self.logs[name]
        )

    def start_backend(self, name: str) -> None:
        key = "key-of-heavy" if name == "heavy" else ""
        self.start(
            name, sys.executable, str(HERE / "standin.py"), str(self.ports[name]), name, "--pace", "0.3", "--key", key
        )
        until(lambda: self.get(f"http://127.0.0.1:{self.ports[name]}/metrics")[0] == 200, f"backend {name}")

    def stop(self, name: str) -> None:
        program = self.programs.pop(name)
        program.terminate()
        program.wait(timeout=60)

    def serve(self) -> None:
        folders = ["--config", self.config, "--secrets", self.secrets, "--run", self.run]
        options = ["--listen", "127.0.0.1", "--port", self.port, "--stop-seconds", 10, *folders]
        self.start("gateway", PYTHON, str(FILES / "container" / "serve.py"), *map(str, options))
        assert self.helper("ready", self.url, "--timeout", str(PATIENCE))["names"]

    def helper(self, *words: str, fails: bool = False) -> Any:
        folders = ["--config", self.config, "--run", self.run, "--secrets", self.secrets, "--code", FILES / "container"]
        done = subprocess.run(
            [sys.executable, str(FILES / "spark_gateway.py"), *map(str, folders), "--json", *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(FILES.parents[2] / "collections")},
        )
        assert (done.returncode != 0) == fails, done.stderr + done.stdout + self.log("gateway")
        return done.stderr if fails else json.loads(done.stdout.splitlines()[-1])

    def reload(self, fails: bool = False) -> Any:
        return self.helper(
            "reload", "--timeout", str(PATIENCE), "--pid", str(self.programs["gateway"].pid), fails=fails
        )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-4000:]

    def get(self, url: str, key: str = "", body: Any = None) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers={**headers, "content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def ask(
        self, model: str, key: str = "key of master", path: str = "chat/completions", **more: Any
    ) -> tuple[int, str]:
        body = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}], **more}
        return self.get(f"{self.url}/v1/{path}", key, body)

    def refused(self, model: str, path: str = "chat/completions", **more: Any) -> tuple[int, str, str | None]:
        """Status, message and Retry-After of a request that is not served."""
        prompt = {"prompt": "Hello"} if path == "completions" else {"messages": [{"role": "user", "content": "Hello"}]}
        body = {"model": model, **prompt, **more}
        headers = {"authorization": "Bearer key of master", "content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/{path}", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode(), None
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["error"]["message"], error.headers.get("retry-after")

    def stream(self, model: str, content: str) -> list[tuple[float, str]]:
        """The lines of a stream, each with the seconds after which it came."""
        body = {"model": model, "max_tokens": 2, "stream": True, "messages": [{"role": "user", "content": content}]}
        headers = {"authorization": "Bearer key of master", "content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        began, lines = time.monotonic(), []
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                for line in answer:
                    lines.append((time.monotonic() - began, line.decode().strip()))
        except urllib.error.HTTPError as error:
            lines.append((time.monotonic() - began, f"HTTP {error.code}: {error.read().decode()[:500]}"))
        return [(at, line) for at, line in lines if line]

    def count(self, name: str) -> int:
        """Requests that a backend has served."""
        text = self.get(f"http://127.0.0.1:{self.ports[name]}/metrics")[1]
        return int(next(line.split()[-1] for line in text.splitlines() if line.startswith("standin_served")))

    def waited(self) -> int:
        """Requests that have waited for a backend to be admitted."""
        lines = self.get(f"{self.url}/metrics/")[1].splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("dgxspark_gateway_queue_total{"))

    @contextlib.contextmanager
    def load(self, *models: str, clients: int = 200) -> Iterator[list[dict[str, Any]]]:
        """Keep requests running during the block; their results are in the list afterwards."""
        end = self.folder / f"end-{time.monotonic_ns()}"
        key = self.folder / "master"
        key.write_text("key of master\n", encoding="utf-8")
        words = [word for model in models for word in ("--model", model)]
        result: list[dict[str, Any]] = []
        with subprocess.Popen(
            [sys.executable, str(HERE / "load.py"), self.url, *words, "--key-file", str(key), "--clients", str(clients),
             "--tokens", "8", "--seconds", "600", "--until", str(end)],
            stdout=subprocess.PIPE, text=True,
        ) as program:  # fmt: skip
            assert program.stdout is not None
            program.stdout.readline()
            try:
                yield result
            finally:
                end.touch()
                result.append(json.loads(program.stdout.read().splitlines()[-1]))

    def end(self) -> None:
        for name in list(self.programs):
            program = self.programs[name]
            program.terminate()
            try:
                program.wait(timeout=30)
            except subprocess.TimeoutExpired:
                program.send_signal(signal.SIGKILL)
        for log in self.logs.values():
            log.close()
