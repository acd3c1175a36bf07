# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Speech servers and Ollama, asked from their own host: by their units, and by the roles that put them there.

spark-health ready FILE         after the start: wait until the health endpoint answers, or say what the log says
spark-health prove FILE         send one real request: audio in, text out; or text in, audio out; or the list of models. A server on demand
                                that does not run, and has answered as it is now, is left alone
spark-health pull FILE [MODEL]  have Ollama pull a model, and wait until it has; without one, all that it lacks, and prove them

FILE holds the settings of the server, as the role wrote them. Python's standard library and two files beside it are all that is needed.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # it runs as root from /usr/local/lib, which is to hold what was installed and no more

from dgxspark_vllm._common.foreign_text import parse_json
from dgxspark_vllm._runtime import command, http_client, state_file

PROGRAM = "spark-health"
LOG_LINES = 12
REMIND_SECONDS = 60.0
REQUEST_SECONDS = 10.0
PROVE_SECONDS = 300.0
AGAIN_SECONDS = 2.0
# Servers that answer 200 with one of these are up, but have not loaded their model.
NOT_READY = ("initializing", "loading", "not_ready", "starting", "unhealthy", "warming_up")
AUDIO = {b"RIFF": "WAV", b"ID3": "MP3", b"\xff\xfb": "MP3", b"\xff\xf3": "MP3", b"OggS": "Ogg", b"fLaC": "FLAC"}
NOT_OPENAI = (
    "An image in spark_speech has to speak OpenAI's audio interface; its own documentation says whether it does"
)


class Stop(Exception):
    """It cannot go on; the text is the line for people."""


def say(text: str) -> None:
    print(f"{PROGRAM}: {text}", flush=True)


def load(path: Path) -> dict[str, Any]:
    try:
        settings = parse_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError) as error:
        raise Stop(f"{path} cannot be read: {error}; run the playbook again") from error
    if not isinstance(settings, dict) or not settings.get("url") or not settings.get("unit"):
        raise Stop(f"{path} lacks its url or unit; run the playbook again")
    return settings


def headers(settings: dict[str, Any]) -> dict[str, str]:
    if not settings.get("api_key_file"):
        return {}
    try:
        key = Path(settings["api_key_file"]).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Stop(f"the key of {settings['unit']} cannot be read: {error}") from error
    return {"Authorization": f"Bearer {key}"}


def output(argv: list[str]) -> str:
    """What a program printed, both streams; empty when it failed or is not there, the reason when it did not answer."""
    done = command.run(argv, 20, tail=True, merge=True)
    return f"({done.why})" if done.state == command.SILENT else done.out if done.rc == 0 else ""


def log_tail(settings: dict[str, Any]) -> str:
    """The last lines of the server itself: from its container while it is there, else from the journal."""
    text = output(["docker", "logs", "--tail", str(LOG_LINES), settings["container"]])
    if not text:
        invocation = os.environ.get("INVOCATION_ID")
        match = [f"_SYSTEMD_INVOCATION_ID={invocation}"] if invocation else ["--unit", settings["unit"]]
        text = output(["journalctl", "--no-pager", "--output=cat", f"--lines={LOG_LINES * 2}", *match])
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(f"{PROGRAM}:")]
    return "\n".join(f"  {line}" for line in lines[-LOG_LINES:]) or "  (its log is empty)"


def main_process() -> tuple[int, str] | None:
    """The unit's main process, docker run in the foreground, and when it started; None outside of a unit."""
    text = os.environ.get("MAINPID", "")
    if not text.isdigit() or text == "0":
        return None
    return int(text), started(int(text)) or ""


def started(pid: int) -> str | None:
    """Start time of a live process; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


# --- ready --------------------------------------------------------------------------------------------------------


def ask_health(settings: dict[str, Any]) -> str | None:
    """None when the server is ready, else what is missing."""
    try:
        answer = http_client.fetch(
            settings["url"] + settings["health"], "GET", headers(settings), None, REQUEST_SECONDS
        )
    except (OSError, ValueError) as error:
        return f"{settings['health']} does not answer: {error}"
    if not 200 <= answer.status < 300:
        return f"{settings['health']} answers {answer.status}"
    try:
        status = parse_json(answer.body, settings["health"]).get("status")
    except (ValueError, AttributeError):
        return None
    return f"its status is {status}" if str(status).lower() in NOT_READY else None


def ready(settings: dict[str, Any], poll: float) -> None:
    unit, limit = settings["unit"], float(settings["deadline_seconds"])
    begun, reminded, process = time.monotonic(), 0.0, main_process()
    while True:
        missing = ask_health(settings)
        waited = time.monotonic() - begun
        if missing is None:
            say(f"{unit}: ready after {waited:.0f} s at {settings['url']}")
            return
        if process and started(process[0]) != process[1]:
            raise Stop(
                f"{unit}: its container has ended before it was ready ({missing}). Its log:\n{log_tail(settings)}"
            )
        if waited >= limit:
            raise Stop(
                f"{unit}: not ready after {waited:.0f} s: {missing} at {settings['url']}. A first start may have a model to "
                f"fetch: then raise start_timeout. Its log:\n{log_tail(settings)}"
            )
        if waited - reminded >= REMIND_SECONDS:
            say(f"{unit}: waits, {missing}")
            reminded = waited
        time.sleep(poll)


# --- prove --------------------------------------------------------------------------------------------------------


def tone() -> bytes:
    """One second of a quiet tone, 16 kHz mono: what every speech-to-text server takes."""
    rate = 16000
    samples = (int(2000 * math.sin(2 * math.pi * 440 * step / rate)) for step in range(rate))
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return buffer.getvalue()


def send(settings: dict[str, Any], path: str, body: bytes, kind: str, seconds: float) -> tuple[bytes, str]:
    """POST a body; return the answer and its type, or stop with what the server said.

    One on demand is asked at the port whose requests start it, which may take as long as a start does, and asked again while it starts.
    """
    unit, url = settings["unit"], settings.get("asked_url") or settings["url"]
    begun = time.monotonic()
    until = begun + seconds + float(settings.get("start_seconds") or 0)
    while True:
        try:
            left = max(until - time.monotonic(), REQUEST_SECONDS)
            answer = http_client.fetch(url + path, "POST", {"Content-Type": kind, **headers(settings)}, body, left)
        except (OSError, ValueError) as error:
            raise Stop(f"{unit}: {path} gives no answer: {error}. Its log:\n{log_tail(settings)}") from error
        if answer.status != 503 or time.monotonic() >= until or not still_starts(settings, begun):
            break
    if not 200 <= answer.status < 300:
        said = answer.body[:500].decode("utf-8", "replace")
        fix = "; its key is another one than api_key_file holds" if answer.status in (401, 403) else ""
        raise Stop(f"{unit}: {path} answers {answer.status}{fix}: {said}\nIts log:\n{log_tail(settings)}")
    return answer.body, answer.headers.get("content-type") or ""


def still_starts(settings: dict[str, Any], begun: float) -> bool:
    """Whether a server on demand that refused a request comes up, by the program that starts it; it says so a moment after it has answered.

    One that tells its clients to come again, in place of holding them, may have to wait for room first. begun: when it was asked, monotonic.
    """
    if not settings.get("on_demand"):
        return False
    time.sleep(AGAIN_SECONDS)
    told = state_file.read(Path(settings["told"])) or {}
    own = (told.get("services") or {}).get(settings["name"]) or {}
    waits = own.get("state") in ("cold", "stopping") and time.monotonic() - begun < settings["room_seconds"]
    return own.get("pin") != "cold" and (own.get("state") == "starting" or waits)


def rests(settings: dict[str, Any]) -> bool:
    """Whether a server on demand does not run, and has answered as what is deployed: it is not started to be asked again."""
    if not settings.get("on_demand"):
        return False
    shown = command.run(["systemctl", "show", "--property=LoadState,ActiveState", "--", settings["unit"]], 20)
    known = state_file.read(Path(settings["proved"])) or {}
    cold = {"LoadState=loaded", "ActiveState=inactive"} <= set(shown.out.split())
    return cold and known.get("fingerprint") == settings["fingerprint"]


def prove(settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Send one real request, and keep that one on demand has answered it."""
    if rests(settings):
        return {"rests": True}
    found = PROOFS[settings["kind"]](settings, seconds)
    if settings.get("on_demand"):
        try:
            state_file.write(Path(settings["proved"]), {"fingerprint": settings["fingerprint"]})
        except OSError as error:
            say(f"warning: {settings['proved']} cannot be written, so {settings['name']} is asked again: {error}")
    return found


def prove_asr(settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    mark = "spark-health-7f3c"
    fields = {"model": settings["model"], "response_format": "json"}
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n' for key, value in fields.items()
    ]
    head = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="tone.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    body = "".join(parts).encode() + head.encode() + tone() + f"\r\n--{mark}--\r\n".encode()
    answer, _kind = send(settings, "/v1/audio/transcriptions", body, f"multipart/form-data; boundary={mark}", seconds)
    try:
        text = parse_json(answer, "the transcription")["text"]
    except (ValueError, KeyError, TypeError) as error:
        raise Stop(
            f"{settings['unit']}: its transcription is no JSON with a text: {answer[:200]!r}. {NOT_OPENAI}"
        ) from error
    if not isinstance(text, str):
        raise Stop(f"{settings['unit']}: the text of its transcription is {text!r}. {NOT_OPENAI}")
    return {"asked": "a tone of one second", "text": text}


def prove_tts(settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    wanted = {
        "model": settings["model"],
        "input": "Ready.",
        "voice": settings.get("voice") or "alloy",
        "response_format": "wav",
    }
    answer, kind = send(settings, "/v1/audio/speech", json.dumps(wanted).encode(), "application/json", seconds)
    form = next((name for mark, name in AUDIO.items() if answer.startswith(mark)), "")
    if len(answer) < 100 or not (form or kind.startswith("audio/")):
        raise Stop(
            f"{settings['unit']}: /v1/audio/speech gave {len(answer)} bytes of {kind or 'no type'}, no audio: {answer[:120]!r}. "
            f"{NOT_OPENAI}"
        )
    return {"asked": wanted["input"], "bytes": len(answer), "format": form or kind}


def tags(settings: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        listed = parse_json(
            http_client.fetch(settings["url"] + "/api/tags", timeout=REQUEST_SECONDS).body, "/api/tags"
        )["models"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Stop(
            f"{settings['unit']}: /api/tags gives no list of models: {error}. Its log:\n{log_tail(settings)}"
        ) from error
    return [model for model in listed or [] if isinstance(model, dict)]


def prove_ollama(settings: dict[str, Any], _seconds: float) -> dict[str, Any]:
    """The models are there and fit; none is loaded for it, which would take memory from engines."""
    there = {str(model.get("name")): float(model.get("size") or 0) / 2**30 for model in tags(settings)}
    wanted = settings.get("models") or []
    missing = [name for name in wanted if name not in there]
    if missing:
        raise Stop(
            f"{settings['unit']}: has no {', '.join(missing)}; it has {', '.join(sorted(there)) or 'no model'}. Run the playbook "
            "again, which pulls what is missing"
        )
    bound = float(settings["memory_gib"])
    large = [f"{name} ({there[name]:.1f} GiB)" for name in wanted if there[name] > bound]
    if large:
        raise Stop(
            f"{settings['unit']}: {', '.join(large)} does not fit into the {bound:g} GiB that the plan keeps for Ollama. Raise "
            "spark_ollama.memory_gib, or take a smaller model"
        )
    return {"models": {name: round(there[name], 2) for name in wanted}}


PROOFS = {"asr": prove_asr, "tts": prove_tts, "ollama": prove_ollama}


# --- pull ---------------------------------------------------------------------------------------------------------


def pulling(settings: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
    """The lines in which Ollama says how far a pull has come."""
    body = json.dumps({"model": model}).encode()
    try:
        for line in http_client.lines(settings["url"] + "/api/pull", {"Content-Type": "application/json"}, body, 300):
            if line.strip():
                yield parse_json(line, "/api/pull")
    except (OSError, ValueError) as error:
        yield {"error": str(error)}


def pull(settings: dict[str, Any], model: str, seconds: float) -> None:
    begun, done = time.monotonic(), False
    for line in pulling(settings, model):
        if line.get("error"):
            raise Stop(
                f"{settings['unit']}: cannot pull {model}: {line['error']}. Its container needs the internet for that "
                "(registry.ollama.ai, HTTPS_PROXY in spark_ollama.env where there is a proxy); without, copy models_dir from a "
                "host that has it"
            )
        if time.monotonic() - begun > seconds:
            raise Stop(
                f"{settings['unit']}: {model} is not there after {seconds:.0f} s ({line.get('status')}); raise pull_timeout"
            )
        done = line.get("status") == "success"
    if not done:
        raise Stop(
            f"{settings['unit']}: the pull of {model} ended before it was done; run the playbook again, it goes on from there"
        )
    say(f"{settings['unit']}: pulled {model} in {time.monotonic() - begun:.0f} s")


def pull_missing(settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Pull the models that are not there, and see that all of them fit."""
    there = {str(model.get("name")) for model in tags(settings)}
    missing = [name for name in settings.get("models") or [] if name not in there]
    for name in missing:
        pull(settings, name, seconds)
    return {"pulled": missing, **prove_ollama(settings, seconds)}


def main() -> int:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Ask a speech server or Ollama on this host.")
    parser.add_argument("step", choices=("ready", "prove", "pull"))
    parser.add_argument("file", type=Path, help="settings of the server")
    parser.add_argument("model", nargs="?", default="", help="for pull: the model (default: all that are missing)")
    parser.add_argument("--poll", type=float, default=2.0, help="seconds between two looks (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=PROVE_SECONDS, help="limit of prove and pull (default: %(default)s)"
    )
    args = parser.parse_args()
    try:
        settings = load(args.file)
        if args.step == "ready":
            ready(settings, args.poll)
        elif args.step == "pull" and args.model:
            pull(settings, args.model, args.seconds)
        elif args.step == "pull":
            print(json.dumps(pull_missing(settings, args.seconds)))
        else:
            print(json.dumps(prove(settings, args.seconds)))
    except Stop as reason:
        print(f"{PROGRAM}: {reason}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
