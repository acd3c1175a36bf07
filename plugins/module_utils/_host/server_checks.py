# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of speech servers and Ollama from their own host, for their units and roles: C(spark_unit.py server STEP FILE).

ready FILE         wait until the health endpoint answers, or print the end of the log
prove FILE         send one real request: audio in, text out; text in, audio out; or the list of models. A server on demand that does not
                   run, and has answered since it was deployed, is left alone
pull FILE [MODEL]  have Ollama pull a model; without one, all missing models, and prove them

FILE holds the settings of the server. This file is copied to hosts unchanged.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import struct
import sys
import time
import wave
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .._common.foreign_text import parse_json
from .._runtime import command, http_client, state_file
from .._runtime.systemd import journal
from . import docker_commands, units

PROGRAM = "spark-unit"
LOG_LINES = 12
LOG_SECONDS = 20.0
REMIND_SECONDS = 60.0
REQUEST_SECONDS = 10.0
PROVE_SECONDS = 300.0
PULL_SECONDS = 300.0
RETRY_SECONDS = 2.0
LEAST_AUDIO = 100
NOT_READY = ("initializing", "loading", "not_ready", "starting", "unhealthy", "warming_up")
"""Statuses of servers that answer 200 before their model is loaded."""
AUDIO = {b"RIFF": "WAV", b"ID3": "MP3", b"\xff\xfb": "MP3", b"\xff\xf3": "MP3", b"OggS": "Ogg", b"fLaC": "FLAC"}
NOT_OPENAI = (
    "An image in spark_speech has to speak OpenAI's audio interface; its own documentation says whether it does"
)
BOUNDARY = "spark-unit-7f3c"

Settings = dict[str, Any]
say = journal(PROGRAM)


class Stop(Exception):
    """The step cannot go on; the text is the line for people."""


def load(path: Path) -> Settings:
    """Return the settings of a server. Raises Stop."""
    try:
        settings = parse_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError) as error:
        raise Stop(f"{path} cannot be read: {error}; run the playbook again") from error
    if not isinstance(settings, dict) or not settings.get("url") or not settings.get("unit"):
        raise Stop(f"{path} lacks its url or unit; run the playbook again")
    return settings


def key_header(settings: Settings) -> dict[str, str]:
    """Return the header with the API key, if the server has one. Raises Stop."""
    if not settings.get("api_key_file"):
        return {}
    try:
        key = Path(settings["api_key_file"]).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Stop(f"the key of {settings['unit']} cannot be read: {error}") from error
    return {"Authorization": f"Bearer {key}"}


def output(argv: list[str]) -> str:
    """Return both outputs of a program: empty if it failed, the reason if it did not answer."""
    answer = command.run(argv, LOG_SECONDS, tail=True, merge=True)
    return f"({answer.why})" if answer.state == command.SILENT else answer.out if answer.rc == 0 else ""


def log_tail(settings: Settings) -> str:
    """Return the last lines of the server: of its container, or of the journal once that is gone."""
    text = output(docker_commands.log(settings["container"], LOG_LINES))
    if not text:
        invocation = os.environ.get("INVOCATION_ID", "")
        text = output(units.journal_command(settings["unit"], LOG_LINES * 2, invocation=invocation))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(f"{PROGRAM}:")]
    return "\n".join(f"  {line}" for line in lines[-LOG_LINES:]) or "  (its log is empty)"


# --- ready --------------------------------------------------------------------------------------------------------


def health_problem(settings: Settings) -> str | None:
    """Return why the server is not ready; None if it is."""
    path = settings["health"]
    try:
        reply = http_client.fetch(settings["url"] + path, "GET", key_header(settings), None, REQUEST_SECONDS)
    except (OSError, ValueError) as error:
        return f"{path} does not answer: {error}"
    if not 200 <= reply.status < 300:
        return f"{path} answers {reply.status}"
    try:
        status = parse_json(reply.body, path).get("status")
    except (ValueError, AttributeError):
        return None
    return f"its status is {status}" if str(status).lower() in NOT_READY else None


def wait_ready(settings: Settings, poll: float) -> None:
    """Wait until the server is ready. Raises Stop. poll: seconds between two questions."""
    unit, limit = settings["unit"], float(settings["deadline_seconds"])
    begun, reminded = time.monotonic(), 0.0
    pid = os.environ.get("MAINPID", "0")  # of docker run in the foreground, which systemd names
    started = units.process_start(pid)
    while True:
        problem = health_problem(settings)
        waited = time.monotonic() - begun
        if problem is None:
            say(f"{unit}: ready after {waited:.0f} s at {settings['url']}")
            return
        if pid != "0" and (started is None or units.process_start(pid) != started):
            log = log_tail(settings)
            raise Stop(f"{unit}: its container has ended before it was ready ({problem}). Its log:\n{log}")
        if waited >= limit:
            raise Stop(
                f"{unit}: not ready after {waited:.0f} s: {problem} at {settings['url']}. A first start may have a model to "
                f"fetch: then raise start_timeout. Its log:\n{log_tail(settings)}"
            )
        if waited - reminded >= REMIND_SECONDS:
            say(f"{unit}: waits, {problem}")
            reminded = waited
        time.sleep(poll)


# --- prove --------------------------------------------------------------------------------------------------------


def tone() -> bytes:
    """Return one second of a quiet tone, 16 kHz mono, which every speech-to-text server accepts."""
    rate = 16000
    samples = (int(2000 * math.sin(2 * math.pi * 440 * step / rate)) for step in range(rate))
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return buffer.getvalue()


def post(settings: Settings, path: str, body: bytes, content_type: str, seconds: float) -> http_client.Reply:
    """Return the answer to a request.

    A server on demand is asked at the port whose requests start it, and again while it starts.

    :param seconds: timeout of the answer, in addition to a start
    :raises Stop: with the words of the server
    """
    unit, url = settings["unit"], settings.get("asked_url") or settings["url"]
    headers = {"Content-Type": content_type, **key_header(settings)}
    begun = time.monotonic()
    deadline = begun + seconds + float(settings.get("start_seconds") or 0)
    while True:
        timeout = max(deadline - time.monotonic(), REQUEST_SECONDS)
        try:
            reply = http_client.fetch(url + path, "POST", headers, body, timeout)
        except (OSError, ValueError) as error:
            raise Stop(f"{unit}: {path} gives no answer: {error}. Its log:\n{log_tail(settings)}") from error
        if reply.status != 503 or time.monotonic() >= deadline or not is_starting(settings, begun):
            break
    if not 200 <= reply.status < 300:
        words = reply.body[:500].decode("utf-8", "replace")
        fix = "; its key differs from api_key_file" if reply.status in (401, 403) else ""
        raise Stop(f"{unit}: {path} answers {reply.status}{fix}: {words}\nIts log:\n{log_tail(settings)}")
    return reply


def is_starting(settings: Settings, begun: float) -> bool:
    """Return whether a server on demand that refused a request is about to start, by the state of the on-demand proxy.

    The proxy writes its state a moment after it has answered. A server whose clients are told to come again may have to wait for room
    first. begun: clock of the first request.
    """
    if not settings.get("on_demand"):
        return False
    time.sleep(RETRY_SECONDS)
    proxy = state_file.read(Path(settings["told"])) or {}
    server = (proxy.get("services") or {}).get(settings["name"]) or {}
    waits = server.get("state") in ("cold", "stopping") and time.monotonic() - begun < settings["room_seconds"]
    return server.get("pin") != "cold" and (server.get("state") == "starting" or waits)


def is_proved_and_cold(settings: Settings) -> bool:
    """Return whether a server on demand does not run and has answered with the deployed settings; it is not started for another proof."""
    if not settings.get("on_demand"):
        return False
    shown = command.run(units.show_command([settings["unit"]], ("LoadState", "ActiveState")), LOG_SECONDS)
    is_cold = {"LoadState=loaded", "ActiveState=inactive"} <= set(shown.out.split())
    proof = state_file.read(Path(settings["proved"])) or {}
    return is_cold and proof.get("fingerprint") == settings["fingerprint"]


def prove(settings: Settings, seconds: float) -> dict[str, Any]:
    """Send one real request, and record the answer of a server on demand. Raises Stop."""
    if is_proved_and_cold(settings):
        return {"rests": True}
    result = PROOFS[settings["kind"]](settings, seconds)
    if settings.get("on_demand"):
        try:
            state_file.write(Path(settings["proved"]), {"fingerprint": settings["fingerprint"]})
        except OSError as error:
            say(f"warning: {settings['proved']} cannot be written, so {settings['name']} is asked again: {error}")
    return result


def prove_asr(settings: Settings, seconds: float) -> dict[str, Any]:
    """Have a tone transcribed."""
    head = ""
    for key, value in {"model": settings["model"], "response_format": "json"}.items():
        head += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
    head += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="tone.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    body = head.encode() + tone() + f"\r\n--{BOUNDARY}--\r\n".encode()
    reply = post(settings, "/v1/audio/transcriptions", body, f"multipart/form-data; boundary={BOUNDARY}", seconds)
    unit = settings["unit"]
    try:
        text = parse_json(reply.body, "the transcription")["text"]
    except (ValueError, KeyError, TypeError) as error:
        raise Stop(f"{unit}: its transcription is no JSON with a text: {reply.body[:200]!r}. {NOT_OPENAI}") from error
    if not isinstance(text, str):
        raise Stop(f"{unit}: the text of its transcription is {text!r}. {NOT_OPENAI}")
    return {"asked": "a tone of one second", "text": text}


def prove_tts(settings: Settings, seconds: float) -> dict[str, Any]:
    """Have a word spoken."""
    request = {
        "model": settings["model"],
        "input": "Ready.",
        "voice": settings.get("voice") or "alloy",
        "response_format": "wav",
    }
    reply = post(settings, "/v1/audio/speech", json.dumps(request).encode(), "application/json", seconds)
    audio, content_type = reply.body, reply.headers.get("content-type") or ""
    audio_format = next((name for mark, name in AUDIO.items() if audio.startswith(mark)), "")
    if len(audio) < LEAST_AUDIO or not (audio_format or content_type.startswith("audio/")):
        raise Stop(
            f"{settings['unit']}: /v1/audio/speech gave {len(audio)} bytes of {content_type or 'no type'}, no audio: "
            f"{audio[:120]!r}. {NOT_OPENAI}"
        )
    return {"asked": request["input"], "bytes": len(audio), "format": audio_format or content_type}


def list_models(settings: Settings) -> dict[str, float]:
    """Return the models that Ollama has, with their sizes in GiB. Raises Stop."""
    try:
        reply = http_client.fetch(settings["url"] + "/api/tags", timeout=REQUEST_SECONDS)
        models = parse_json(reply.body, "/api/tags")["models"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        log = log_tail(settings)
        raise Stop(f"{settings['unit']}: /api/tags gives no list of models: {error}. Its log:\n{log}") from error
    entries = [model for model in models or [] if isinstance(model, dict)]
    return {str(model.get("name")): float(model.get("size") or 0) / 2**30 for model in entries}


def prove_ollama(settings: Settings, _seconds: float) -> dict[str, Any]:
    """Check that all models are there and fit. None is loaded for that, since it would take memory from engines."""
    unit, sizes, names = settings["unit"], list_models(settings), settings.get("models") or []
    missing = [name for name in names if name not in sizes]
    if missing:
        raise Stop(
            f"{unit}: has no {', '.join(missing)}; it has {', '.join(sorted(sizes)) or 'no model'}. Run the playbook again, which pulls missing "
            "models"
        )
    limit = float(settings["memory_gib"])
    large = [f"{name} ({sizes[name]:.1f} GiB)" for name in names if sizes[name] > limit]
    if large:
        raise Stop(
            f"{unit}: {', '.join(large)} does not fit into the {limit:g} GiB that the plan keeps for Ollama. Raise "
            "spark_ollama.memory_gib, or take a smaller model"
        )
    return {"models": {name: round(sizes[name], 2) for name in names}}


PROOFS: dict[str, Callable[[Settings, float], dict[str, Any]]] = {
    "asr": prove_asr,
    "tts": prove_tts,
    "ollama": prove_ollama,
}


# --- pull ---------------------------------------------------------------------------------------------------------


def pull_events(settings: Settings, model: str) -> Iterator[dict[str, Any]]:
    """Yield the progress that Ollama reports about a pull, as it does."""
    body = json.dumps({"model": model}).encode()
    try:
        url = settings["url"] + "/api/pull"
        for line in http_client.lines(url, {"Content-Type": "application/json"}, body, PULL_SECONDS):
            if line.strip():
                yield parse_json(line, "/api/pull")
    except (OSError, ValueError) as error:
        yield {"error": str(error)}


def pull(settings: Settings, model: str, seconds: float) -> None:
    """Have Ollama pull a model. Raises Stop if it fails."""
    unit, begun, status = settings["unit"], time.monotonic(), None
    for event in pull_events(settings, model):
        if event.get("error"):
            raise Stop(
                f"{unit}: cannot pull {model}: {event['error']}. Its container needs the internet for that (registry.ollama.ai, HTTPS_PROXY in "
                "spark_ollama.env with a proxy); without internet, copy models_dir from another host"
            )
        status = event.get("status")
        if time.monotonic() - begun > seconds:
            raise Stop(f"{unit}: {model} is not there after {seconds:.0f} s ({status}); raise pull_timeout")
    if status != "success":
        raise Stop(
            f"{unit}: the pull of {model} ended before it was done; run the playbook again, it goes on from there"
        )
    say(f"{unit}: pulled {model} in {time.monotonic() - begun:.0f} s")


def pull_missing(settings: Settings, seconds: float) -> dict[str, Any]:
    """Pull the models that are missing, and prove that all fit. Raises Stop."""
    models = list_models(settings)
    missing = [name for name in settings.get("models") or [] if name not in models]
    for name in missing:
        pull(settings, name, seconds)
    return {"pulled": missing, **prove_ollama(settings, seconds)}


def main(argv: Sequence[str]) -> int:
    """Take one step; returns the exit code."""
    parser = argparse.ArgumentParser(prog="spark-unit server", description="Check a speech server or Ollama.")
    parser.add_argument("step", choices=("ready", "prove", "pull"))
    parser.add_argument("file", type=Path, help="settings of the server")
    parser.add_argument("model", nargs="?", default="", help="for pull: the model (default: all that are missing)")
    parser.add_argument("--poll", type=float, default=2.0, help="seconds between two looks (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=PROVE_SECONDS, help="limit of prove and pull (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    try:
        settings = load(options.file)
        result: dict[str, Any] | None = None
        if options.step == "ready":
            wait_ready(settings, options.poll)
        elif options.step == "prove":
            result = prove(settings, options.seconds)
        elif options.model:
            pull(settings, options.model, options.seconds)
        else:
            result = pull_missing(settings, options.seconds)
    except Stop as reason:
        sys.stderr.write(f"{PROGRAM}: {reason}\n")
        return 1
    if result is not None:
        sys.stdout.write(json.dumps(result) + "\n")
    return 0
