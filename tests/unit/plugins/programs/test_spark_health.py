# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The helper of the units of speech and Ollama, against the stand-ins of the simulated Spark, as programs of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

ROOT = Path(__file__).resolve().parents[4]
HELPER = ROOT / "roles/speech/files/spark_health.py"
Start = Callable[..., dict[str, Any]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a stand-in with a pool of its own; returns the settings of the helper."""
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
        [sys.executable, str(HELPER), step, str(file), *more, "--poll", "0.05"],
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


def test_a_key_is_read_from_its_file_and_a_wrong_one_is_named(tmp_path: Path, start: Start) -> None:
    key = tmp_path / "key"
    key.write_text("sesame\n")
    settings = {**start("asr", PARAKEET_API_KEY="sesame"), "api_key_file": str(key)}
    ready(tmp_path, settings)
    assert ask(tmp_path, "prove", settings).returncode == 0
    key.write_text("wrong\n")
    done = ask(tmp_path, "prove", settings)
    assert done.returncode == 1
    assert "answers 401; its key is another one" in done.stderr and "wrong" not in done.stderr


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
    found = {"qwen3:8b": 4.87}
    pulled = ask(tmp_path, "pull", settings).stdout.splitlines()
    assert "pulled qwen3:8b in" in pulled[0] and json.loads(pulled[-1]) == {"pulled": ["qwen3:8b"], "models": found}
    assert json.loads(ask(tmp_path, "pull", settings).stdout) == {"pulled": [], "models": found}
    assert ask(tmp_path, "pull", settings, "qwen3:8b").returncode == 0
    assert json.loads(ask(tmp_path, "prove", settings).stdout) == {"models": {"qwen3:8b": 4.87}}
    small = ask(tmp_path, "prove", {**settings, "memory_gib": 4})
    assert small.returncode == 1 and "qwen3:8b (4.9 GiB) does not fit into the 4 GiB" in small.stderr


@pytest.mark.parametrize(
    ("fault", "model", "said"),
    [
        ("", "nobody:1b", "file does not exist"),
        ("offline", "qwen3:8b", "no such host. Its container needs the internet"),
    ],
)
def test_a_pull_that_fails_says_why(tmp_path: Path, start: Start, fault: str, model: str, said: str) -> None:
    settings = start("ollama", SPARK_SIM_FAULT=fault)
    ready(tmp_path, settings)
    done = ask(tmp_path, "pull", settings, model)
    assert done.returncode == 1 and f"cannot pull {model}" in done.stderr and said in done.stderr


def test_settings_that_are_missing_or_broken_are_named(tmp_path: Path) -> None:
    assert "lacks its url or unit" in ask(tmp_path, "ready", {"kind": "asr"}).stderr
    done = subprocess.run(
        [sys.executable, str(HELPER), "prove", str(tmp_path / "none.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "cannot be read" in done.stderr
