# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of speech servers and Ollama (server_checks), run by the unit helper against separately running stand-ins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

ROOT = Path(__file__).resolve().parents[4]
HELPER = ROOT / "roles/host/files/spark_unit.py"
Start = Callable[..., dict[str, Any]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a stand-in with a separate pool; returns the settings of the helper."""
    program = tmp_path / "program"
    program.mkdir()
    shutil.copy(ROOT / "tests/sim/standins/standin.py", program)
    shutil.copy(ROOT / "tests/sim/common/ledger.py", program)
    running: list[subprocess.Popen[bytes]] = []

    def begin(kind: str, **more: str) -> dict[str, Any]:
        port = free_port()
        env = {**os.environ, "SPARK_SIM_ROOT": str(tmp_path / "pool"), "SPARK_SIM_DELAY": "0", **more}
        env |= {
            "PORT": str(port),
            "HOST": "127.0.0.1",
            "OLLAMA_HOST": f"127.0.0.1:{port}",
            "OLLAMA_MODELS": str(tmp_path / "models"),
        }
        words = {"asr": ["parakeet", "-port", str(port)], "tts": ["chatterbox"], "ollama": ["ollama", "serve"]}[kind]
        process = subprocess.Popen(
            [sys.executable, str(program / "standin.py"), *words], env=env, stderr=subprocess.DEVNULL
        )
        running.append(process)
        health = "/api/tags" if kind == "ollama" else "/health"
        return {
            "kind": kind,
            "unit": f"spark-{kind}.service",
            "container": f"no-such-container-{kind}",
            "url": f"http://127.0.0.1:{port}",
            "health": health,
            "model": "m",
            "deadline_seconds": 30,
            "pid": process.pid,
        }

    yield begin
    for process in running:
        process.kill()
        process.wait()


def ask(
    tmp_path: Path, step: str, settings: dict[str, Any], *more: str, **env: str
) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(settings))
    return subprocess.run(
        [sys.executable, str(HELPER), "server", step, str(file), *more, "--poll", "0.05"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )


def ready(tmp_path: Path, settings: dict[str, Any]) -> None:
    done = ask(tmp_path, "ready", settings)
    assert done.returncode == 0, done.stderr


def test_audio_in_text_out(tmp_path: Path, start: Start) -> None:
    settings = start("asr")
    ready(tmp_path, settings)
    assert (
        json.loads(ask(tmp_path, "prove", settings).stdout)["text"] == "simulated transcription of 1.0 seconds of audio"
    )


def test_text_in_audio_out_and_a_server_that_is_up_but_not_loaded_is_waited_for(tmp_path: Path, start: Start) -> None:
    settings = start("tts", SPARK_SIM_DELAY="1")
    ready(tmp_path, settings)
    proved = json.loads(ask(tmp_path, "prove", settings).stdout)
    assert proved["format"] == "WAV" and proved["bytes"] > 1000


def on_demand(tmp_path: Path, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the settings of a server on demand: at a port of the program, where nothing listens unless C(asked_url) is given."""
    return {
        **settings, "name": "ears", "on_demand": True, "fingerprint": "f1", "asked_url": f"http://127.0.0.1:{free_port()}",
        "proved": str(tmp_path / "proved/ears.json"), "told": str(tmp_path / "told.json"), "room_seconds": 0, "start_seconds": 20, **more,
    }  # fmt: skip


def played(tmp_path: Path, state: str) -> dict[str, str]:
    """Return an environment whose systemctl reports this state for a unit."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "systemctl").write_text(f"#!/bin/sh\necho LoadState=loaded\necho ActiveState={state}\n")
    (folder / "systemctl").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_server_on_demand_that_was_proved_and_is_cold_is_left_alone(tmp_path: Path, start: Start) -> None:
    server = start("asr")
    ready(tmp_path, server)
    settings = on_demand(tmp_path, server, asked_url=server["url"])
    cold, warm = played(tmp_path, "inactive"), {"PATH": os.environ["PATH"]}
    # Cold and never proved: the request to its port starts it.
    assert "text" in json.loads(ask(tmp_path, "prove", settings, **cold).stdout)
    silent = {**settings, "asked_url": f"http://127.0.0.1:{free_port()}"}
    assert json.loads(ask(tmp_path, "prove", silent, **cold).stdout) == {"rests": True}
    # A changed launch or a running server is asked again; without an answer from systemd it is asked, too.
    for changed, env in (({"fingerprint": "f2"}, cold), ({}, played(tmp_path / "..", "active")), ({}, warm)):
        done = ask(tmp_path, "prove", {**silent, **changed}, **env)
        assert done.returncode == 1 and "gives no answer" in done.stderr


@pytest.mark.parametrize(
    ("state", "room", "request_count"),
    [
        ("starting", 0, 2),
        pytest.param("cold", 60, 2, marks=pytest.mark.nightly),
        pytest.param("cold", 0, 1, marks=pytest.mark.nightly),
        ("failed", 60, 1),
    ],
)
def test_a_server_on_demand_is_asked_again_while_it_starts(
    tmp_path: Path, state: str, room: int, request_count: int
) -> None:
    """If the start failed, the answer of the first request contains the reason."""
    requests: list[str] = []

    class Port(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            first = len(requests) == 1
            body = b'{"error": {"message": "ears could not be started: no room"}}' if first else b'{"text": "a"}'
            self.send_response(503 if first else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: Any) -> None:
            pass

    (tmp_path / "told.json").write_text(json.dumps({"services": {"ears": {"state": state, "pin": "auto"}}}))
    with ThreadingHTTPServer(("127.0.0.1", 0), Port) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        plain = {
            "kind": "asr",
            "unit": "spark-ears.service",
            "container": "none",
            "url": "http://127.0.0.1:9",
            "model": "m",
        }
        settings = on_demand(tmp_path, plain, asked_url=f"http://127.0.0.1:{server.server_port}", room_seconds=room)
        done = ask(tmp_path, "prove", settings, **played(tmp_path, "inactive"))
        server.shutdown()
    assert len(requests) == request_count
    assert done.returncode == (0 if request_count == 2 else 1) and (
        request_count == 2 or ("answers 503: " in done.stderr and "no room" in done.stderr)
    )
    assert (tmp_path / "proved/ears.json").exists() == (request_count == 2)


def test_a_key_is_read_from_its_file_and_a_wrong_one_is_named(tmp_path: Path, start: Start) -> None:
    key = tmp_path / "key"
    key.write_text("sesame\n")
    settings = {**start("asr", PARAKEET_API_KEY="sesame"), "api_key_file": str(key)}
    ready(tmp_path, settings)
    assert ask(tmp_path, "prove", settings).returncode == 0
    key.write_text("wrong\n")
    done = ask(tmp_path, "prove", settings)
    assert done.returncode == 1
    assert "answers 401; its key differs" in done.stderr and "wrong" not in done.stderr


def test_a_server_that_never_gets_ready_is_given_up_with_what_is_missing(tmp_path: Path, start: Start) -> None:
    done = ask(tmp_path, "ready", {**start("asr", SPARK_SIM_FAULT="hang"), "deadline_seconds": 1})
    assert done.returncode == 1
    # Which of the two depends on whether it had come so far as to listen.
    assert (
        "spark-asr.service: not ready after" in done.stderr and "/health" in done.stderr and "Its log:" in done.stderr
    )


def test_a_server_that_has_ended_is_not_waited_for(tmp_path: Path, start: Start) -> None:
    settings = start("asr", SPARK_SIM_FAULT="fail")
    done = ask(tmp_path, "ready", settings, MAINPID=str(settings["pid"]))
    assert done.returncode == 1
    assert "its container has ended before it was ready" in done.stderr


def test_what_answers_something_else_is_no_proof(tmp_path: Path, start: Start) -> None:
    settings = start("ollama")
    ready(tmp_path, settings)
    assert "/v1/audio/transcriptions answers 404" in ask(tmp_path, "prove", {**settings, "kind": "asr"}).stderr
    assert "/v1/audio/speech answers 404" in ask(tmp_path, "prove", {**settings, "kind": "tts"}).stderr


def test_models_are_pulled_proved_and_measured(tmp_path: Path, start: Start) -> None:
    settings = {**start("ollama"), "models": ["qwen3:8b"], "memory_gib": 8}
    ready(tmp_path, settings)
    assert "has no qwen3:8b; it has no model" in ask(tmp_path, "prove", settings).stderr
    models = {"qwen3:8b": 4.87}
    pulled = ask(tmp_path, "pull", settings).stdout.splitlines()
    assert "pulled qwen3:8b in" in pulled[0] and json.loads(pulled[-1]) == {"pulled": ["qwen3:8b"], "models": models}
    assert json.loads(ask(tmp_path, "pull", settings).stdout) == {"pulled": [], "models": models}
    assert ask(tmp_path, "pull", settings, "qwen3:8b").returncode == 0
    assert json.loads(ask(tmp_path, "prove", settings).stdout) == {"models": {"qwen3:8b": 4.87}}
    small = ask(tmp_path, "prove", {**settings, "memory_gib": 4})
    assert small.returncode == 1 and "qwen3:8b (4.9 GiB) does not fit into the 4 GiB" in small.stderr


@pytest.mark.parametrize(
    ("fault", "model", "reason"),
    [
        ("", "nobody:1b", "file does not exist"),
        ("offline", "qwen3:8b", "no such host. Its container needs the internet"),
    ],
)
def test_a_pull_that_fails_says_why(tmp_path: Path, start: Start, fault: str, model: str, reason: str) -> None:
    settings = start("ollama", SPARK_SIM_FAULT=fault)
    ready(tmp_path, settings)
    done = ask(tmp_path, "pull", settings, model)
    assert done.returncode == 1 and f"cannot pull {model}" in done.stderr and reason in done.stderr


def test_settings_that_are_missing_or_broken_are_named(tmp_path: Path) -> None:
    assert "lacks its url or unit" in ask(tmp_path, "ready", {"kind": "asr"}).stderr
    done = subprocess.run(
        [sys.executable, str(HELPER), "server", "prove", str(tmp_path / "none.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "cannot be read" in done.stderr
