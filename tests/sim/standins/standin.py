# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for add-on servers: Parakeet, Chatterbox and Ollama, with their options, ports, paths and refusals.

usage: standin.py parakeet|chatterbox|ollama [ARGUMENT ...]

Nothing is recognised, spoken or thought: a transcription says how long the audio was, speech is a tone as long as the text.
The memory of the real ones is booked in the ledger of the simulated pool, if that is mounted. SPARK_SIM_FAULT makes it
misbehave: fail (exit 1 at the start), hang (never ready), offline (nothing can be pulled).
"""

from __future__ import annotations

import email
import email.policy
import io
import json
import math
import os
import re
import signal
import struct
import sys
import threading
import time
import urllib.parse
import uuid
import wave
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import ledger

GIB = ledger.GIB
FAULT = os.environ.get("SPARK_SIM_FAULT", "")
REPLY = "Hello from the simulated model."


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Refused(Exception):
    """A request that cannot be served: status and body."""

    def __init__(self, code: int, body: dict[str, Any]) -> None:
        super().__init__(str(body))
        self.code = code
        self.body = body


class Handler(BaseHTTPRequestHandler):
    """The common part of the three; ROUTES maps (method, path) to the name of a method."""

    protocol_version = "HTTP/1.1"
    ROUTES: ClassVar[dict[tuple[str, str], str]] = {}

    def log_message(self, format: str, *args: Any) -> None:
        log(f"{self.address_string()} {format % args}")

    def route(self, method: str) -> None:
        name = self.ROUTES.get((method, urllib.parse.urlsplit(self.path).path))
        try:
            if name is None:
                raise Refused(404, {"error": {"message": f"no route {method} {self.path}", "type": "not_found"}})
            getattr(self, name)()
        except Refused as refused:
            self.json(refused.body, refused.code)

    def do_GET(self) -> None:
        self.route("GET")

    def do_HEAD(self) -> None:
        self.route("GET")

    def do_POST(self) -> None:
        self.route("POST")

    def do_DELETE(self) -> None:
        self.route("DELETE")

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = bytearray()
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(content)

    def request_body(self) -> dict[str, Any]:
        try:
            content = json.loads(self.body() or b"{}")
        except ValueError:
            raise Refused(400, {"error": "invalid JSON"}) from None
        if not isinstance(content, dict):
            raise Refused(400, {"error": "invalid JSON"})
        return content

    def answer(self, content: bytes, kind: str, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def json(self, value: Any, code: int = 200) -> None:
        self.answer(json.dumps(value).encode(), "application/json", code)

    def lines(self, pieces: list[bytes], kind: str) -> None:
        """A streamed answer: it ends with the connection."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)
            self.wfile.flush()
        self.close_connection = True


# --- speech -------------------------------------------------------------------------------------------------------


class Parakeet(Handler):
    """Speech to text, as ghcr.io/achetronic/parakeet answers."""

    KEY = os.environ.get("PARAKEET_API_KEY", "")
    ROUTES: ClassVar[dict[tuple[str, str], str]] = {
        ("GET", "/health"): "health",
        ("GET", "/v1/models"): "models",
        ("POST", "/v1/audio/transcriptions"): "transcribe",
    }

    def health(self) -> None:
        self.json({"status": "ok"} if FAULT != "hang" else {"status": "starting"}, 200 if FAULT != "hang" else 503)

    def check_key(self) -> None:
        if self.KEY and self.headers.get("Authorization", "").removeprefix("Bearer ") != self.KEY:
            raise Refused(401, {"error": {"message": "Invalid API key", "type": "authentication_error"}})

    def models(self) -> None:
        self.check_key()
        names = ("parakeet-tdt-0.6b", "whisper-1")
        self.json({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "nvidia"} for name in names]})

    def transcribe(self) -> None:
        content, kind = self.body(), self.headers.get("Content-Type", "")
        self.check_key()
        head = f"Content-Type: {kind}\r\n\r\n".encode()
        form = email.message_from_bytes(head + content, policy=email.policy.HTTP)
        parts = {str(part.get_param("name", header="content-disposition")): part for part in form.iter_parts()}
        if "file" not in parts:
            raise Refused(400, {"error": {"message": "Missing required file", "type": "invalid_request_error"}})
        audio = parts["file"].get_payload(decode=True)
        try:
            with wave.open(io.BytesIO(audio if isinstance(audio, bytes) else b"")) as file:
                seconds = file.getnframes() / file.getframerate()
        except (wave.Error, EOFError):
            raise Refused(400, {"error": {"message": "invalid WAV file", "type": "invalid_request_error"}}) from None
        text = f"simulated transcription of {seconds:.1f} seconds of audio"
        form_of = parts["response_format"].get_payload().strip() if "response_format" in parts else "json"
        if form_of == "text":
            self.answer(text.encode(), "text/plain")
        else:
            self.json({"text": text})


class Chatterbox(Handler):
    """Text to speech, as travisvn/chatterbox-tts-api answers."""

    READY_AT = time.monotonic() + float(os.environ.get("SPARK_SIM_DELAY", "1"))
    ROUTES: ClassVar[dict[tuple[str, str], str]] = {
        ("GET", "/health"): "health",
        ("GET", "/v1/models"): "models",
        ("POST", "/v1/audio/speech"): "speak",
    }

    def loaded(self) -> bool:
        return FAULT != "hang" and time.monotonic() >= self.READY_AT

    def health(self) -> None:
        # 200 before the model is there, as the real one.
        self.json(
            {"status": "healthy" if self.loaded() else "unhealthy", "model_loaded": self.loaded(), "device": device()}
        )

    def models(self) -> None:
        self.json(
            {"object": "list", "data": [{"id": "chatterbox-tts-1", "object": "model", "owned_by": "resemble-ai"}]}
        )

    def speak(self) -> None:
        text = self.request_body().get("input")
        if not isinstance(text, str) or not text.strip():
            raise Refused(422, {"detail": [{"loc": ["body", "input"], "msg": "Field required", "type": "missing"}]})
        if not self.loaded():
            raise Refused(500, {"error": {"message": "Model not loaded", "type": "model_error"}})
        rate = 24000
        count = int(rate * 0.05 * len(text))
        samples = (int(3000 * math.sin(2 * math.pi * 220 * step / rate)) for step in range(count))
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
        self.answer(buffer.getvalue(), "audio/wav")


def device() -> str:
    return os.environ.get("DEVICE", "cpu")


# --- Ollama -------------------------------------------------------------------------------------------------------

# Sizes in the library, in bytes.
LIBRARY = {
    "qwen3:8b": 5_225_388_164,
    "qwen3:4b": 2_497_293_931,
    "qwen3:0.6b": 522_653_767,
    "qwen3:32b": 20_201_253_588,
    "llama3.2:3b": 2_019_393_189,
    "nomic-embed-text:latest": 274_302_450,
}
VERSION = os.environ.get("OLLAMA_SIM_VERSION", "0.33.3")
KV_BYTES_PER_TOKEN = {"f16": 147_456, "q8_0": 78_336, "q4_0": 41_472}  # 36 layers, 8 heads of 128: qwen3:8b
RUNNER = GIB


def full_name(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() and int(text) else default


def seconds_of(value: Any) -> float:
    """A keep_alive: seconds, or a duration in Go's form; infinity for a negative one."""
    text = str(value)
    negative, text = text.startswith("-"), text.lstrip("-")
    if re.fullmatch(r"\d+(\.\d+)?", text):
        total = float(text)
    else:
        units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
        total = sum(float(count) * units[unit] for count, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text))
    return math.inf if negative else total


class Runner:
    """A model in memory."""

    def __init__(self, name: str, size: int, context: int) -> None:
        self.name, self.size, self.context = name, size, context
        self.until = math.inf
        self.used = time.monotonic()
        self.slot = ledger.Slot(f"ollama {name}", "/usr/bin/ollama")
        self.slot.write(gpu_bytes=size, host_bytes=0)

    def expires(self) -> str:
        remaining = min(self.until - time.monotonic(), 100 * 365 * 86400)
        return (datetime.now(timezone.utc) + timedelta(seconds=remaining)).isoformat()


class Store:
    """Models on disk and in memory."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.folder = Path(os.environ.get("OLLAMA_MODELS") or "/root/.ollama/models") / "simulated"
        self.running: dict[str, Runner] = {}

    def stored_models(self) -> dict[str, int]:
        entries = {}
        for path in sorted(self.folder.glob("*.json")):
            entry = json.loads(path.read_text())
            entries[entry["name"]] = int(entry["size"])
        return entries

    def add(self, name: str, size: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{urllib.parse.quote(name, safe='')}.json"
        path.write_text(json.dumps({"name": name, "size": size}))

    def load(self, name: str, keep_alive: Any) -> Runner:
        """Load a model into memory, at the expense of others beyond the limit; refuse as Ollama does."""
        name = full_name(name)
        with self.lock:
            size = self.stored_models().get(name)
            if size is None:
                raise Refused(404, {"error": f"model '{name}' not found"})
            runner = self.running.get(name)
            if runner is None:
                while len(self.running) >= number("OLLAMA_MAX_LOADED_MODELS", 3):
                    self.unload(min(self.running.values(), key=lambda model: model.used).name)
                runner = self.running[name] = self.start(name, size)
            runner.used = time.monotonic()
            runner.until = runner.used + seconds_of(
                os.environ.get("OLLAMA_KEEP_ALIVE") or "5m" if keep_alive is None else keep_alive
            )
            return runner

    def start(self, name: str, size: int) -> Runner:
        context = number("OLLAMA_CONTEXT_LENGTH", 4096)
        bytes_per_token = KV_BYTES_PER_TOKEN.get(
            os.environ.get("OLLAMA_KV_CACHE_TYPE") or "f16", KV_BYTES_PER_TOKEN["f16"]
        )
        need = size + RUNNER + context * number("OLLAMA_NUM_PARALLEL", 1) * bytes_per_token
        with ledger.books():
            free = ledger.available(ledger.records()) - int(os.environ.get("OLLAMA_GPU_OVERHEAD") or 0)
            if need > free:
                text = f"model requires more system memory ({need / GIB:.1f} GiB) than is available ({max(free, 0) / GIB:.1f} GiB)"
                raise Refused(500, {"error": text})
            log(f'msg="loading model" model={name} size="{need / GIB:.1f} GiB" context={context}')
            return Runner(name, need, context)

    def unload(self, name: str) -> None:
        with self.lock:
            runner = self.running.pop(full_name(name), None)
            if runner is not None:
                runner.slot.release()
                log(f'msg="unloaded model" model={runner.name}')

    def expire(self) -> None:
        while True:
            time.sleep(0.2)
            with self.lock:
                for runner in list(self.running.values()):
                    if time.monotonic() >= runner.until:
                        self.unload(runner.name)


STORE = Store()


def now() -> str:
    return datetime.now(timezone.utc).isoformat()


def details(name: str) -> dict[str, Any]:
    size = re.search(r"(\d+(?:\.\d+)?)b", name)
    return {
        "format": "gguf",
        "family": name.split(":")[0],
        "parameter_size": f"{size[1]}B" if size else "",
        "quantization_level": "Q4_K_M",
    }


class Ollama(Handler):
    """What ollama serve answers."""

    ROUTES: ClassVar[dict[tuple[str, str], str]] = {
        ("GET", "/"): "root",
        ("GET", "/api/version"): "version",
        ("GET", "/api/tags"): "tags",
        ("GET", "/api/ps"): "ps",
        ("POST", "/api/generate"): "generate",
        ("POST", "/api/chat"): "chat",
        ("POST", "/api/pull"): "pull",
        ("POST", "/api/show"): "show",
        ("GET", "/v1/models"): "models",
        ("POST", "/v1/chat/completions"): "completions",
    }

    def root(self) -> None:
        self.answer(b"Ollama is running", "text/plain")

    def version(self) -> None:
        self.json({"version": VERSION})

    def tags(self) -> None:
        if FAULT == "hang":
            raise Refused(503, {"error": "starting"})
        self.json(
            {
                "models": [
                    {
                        "name": name,
                        "model": name,
                        "modified_at": now(),
                        "size": size,
                        "digest": uuid.uuid5(uuid.NAMESPACE_DNS, name).hex,
                        "details": details(name),
                    }
                    for name, size in STORE.stored_models().items()
                ]
            }
        )

    def ps(self) -> None:
        with STORE.lock:
            self.json(
                {
                    "models": [
                        {
                            "name": model.name,
                            "model": model.name,
                            "size": model.size,
                            "size_vram": model.size,
                            "context_length": model.context,
                            "expires_at": model.expires(),
                            "details": details(model.name),
                        }
                        for model in STORE.running.values()
                    ]
                }
            )

    def named(self, body: dict[str, Any]) -> str:
        name = body.get("model") or body.get("name")
        if not isinstance(name, str) or not name:
            raise Refused(400, {"error": "model is required"})
        return name

    def generate(self) -> None:
        body = self.request_body()
        self.complete(body, "response", bool(body.get("prompt")))

    def chat(self) -> None:
        body = self.request_body()
        self.complete(body, "message", bool(body.get("messages")))

    def complete(self, body: dict[str, Any], key: str, prompted: bool) -> None:
        name = self.named(body)
        keep_alive = body.get("keep_alive")
        if not prompted and keep_alive is not None and seconds_of(keep_alive) == 0:
            if full_name(name) not in STORE.stored_models():
                raise Refused(404, {"error": f"model '{name}' not found"})
            STORE.unload(name)
            self.json(
                {"model": name, "created_at": now(), key: self.piece(key, ""), "done": True, "done_reason": "unload"}
            )
            return
        STORE.load(name, keep_alive)
        words = re.findall(r"\S+\s*", REPLY) if prompted else []
        last = {
            "model": name,
            "created_at": now(),
            "done": True,
            "done_reason": "stop" if prompted else "load",
            "eval_count": len(words),
        }
        if body.get("stream", True) and prompted:
            rows = [{"model": name, "created_at": now(), key: self.piece(key, word), "done": False} for word in words]
            pieces = [json.dumps(row).encode() + b"\n" for row in [*rows, {**last, key: self.piece(key, "")}]]
            self.lines(pieces, "application/x-ndjson")
        else:
            self.json({**last, key: self.piece(key, "".join(words))})

    def piece(self, key: str, text: str) -> Any:
        return text if key == "response" else {"role": "assistant", "content": text}

    def pull(self) -> None:
        name = full_name(self.named(self.request_body()))
        if FAULT == "offline":
            error = "pull model manifest: Get https://registry.ollama.ai/v2/: dial tcp: lookup registry.ollama.ai: no such host"
            self.lines([json.dumps({"error": error}).encode() + b"\n"], "application/x-ndjson")
            return
        size = LIBRARY.get(name)
        rows: list[dict[str, Any]] = [{"status": "pulling manifest"}]
        if size is None:
            rows.append({"error": "pull model manifest: file does not exist"})
        else:
            STORE.add(name, size)
            rows += [{"status": "pulling weights", "total": size, "completed": size}, {"status": "success"}]
        self.lines([json.dumps(row).encode() + b"\n" for row in rows], "application/x-ndjson")

    def show(self) -> None:
        name = full_name(self.named(self.request_body()))
        if name not in STORE.stored_models():
            raise Refused(404, {"error": f"model '{name}' not found"})
        self.json({"details": details(name), "capabilities": ["completion"]})

    def models(self) -> None:
        self.json(
            {
                "object": "list",
                "data": [{"id": name, "object": "model", "owned_by": "library"} for name in STORE.stored_models()],
            }
        )

    def completions(self) -> None:
        body = self.request_body()
        name = self.named(body)
        if not body.get("messages"):
            raise Refused(400, {"error": {"message": "[] is too short - 'messages'", "type": "invalid_request_error"}})
        STORE.load(name, None)
        head = {
            "id": f"chatcmpl-{uuid.uuid4().hex[:6]}",
            "created": int(time.time()),
            "model": name,
            "system_fingerprint": "fp_ollama",
        }
        usage = {"prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 13}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": REPLY}, "finish_reason": "stop"}
            self.json({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        deltas = [({"role": "assistant", "content": word}, None) for word in re.findall(r"\S+\s*", REPLY)]
        rows = [
            {
                **head,
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            }
            for delta, finish in [*deltas, ({"role": "assistant", "content": ""}, "stop")]
        ]
        pieces = [f"data: {json.dumps(row)}\n\n".encode() for row in rows]
        self.lines([*pieces, b"data: [DONE]\n\n"], "text/event-stream")


# --- starting -----------------------------------------------------------------------------------------------------


def go_flags(arguments: list[str], defaults: dict[str, str]) -> dict[str, str]:
    """Read options as Go's flag package does; refuse others with its words."""
    values, words = dict(defaults), list(arguments)
    while words:
        name, has_value, value = words.pop(0).lstrip("-").partition("=")
        if name not in defaults:
            log(f"flag provided but not defined: -{name}")
            sys.exit(2)
        values[name] = value if has_value else words.pop(0) if words else ""
    return values


def take(name: str, gib: float, on_gpu: bool) -> ledger.Slot:
    slot = ledger.Slot(name, name)
    slot.write(gpu_bytes=int(gib * GIB) if on_gpu else 0, host_bytes=0 if on_gpu else int(gib * GIB))
    return slot


def main(role: str, arguments: list[str]) -> None:
    # The first process of a container is not ended by a signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(0))
    if FAULT == "fail":
        log(f"{role}: simulated failure: the model cannot be loaded")
        sys.exit(1)
    address, handler, held = ("0.0.0.0", 0), Handler, None
    if role == "parakeet":
        defaults = {
            "port": os.environ.get("PARAKEET_PORT", "5092"),
            "models": "./models",
            "log-level": "info",
            "log-format": "text",
        }
        defaults["workers"] = os.environ.get("PARAKEET_WORKERS", "4")
        flags = go_flags(arguments, defaults)
        address, handler = ("0.0.0.0", int(flags["port"])), Parakeet
        held = take("parakeet", 0.6 + 0.67 * int(flags["workers"]), on_gpu=False)
    elif role == "chatterbox":
        address = (os.environ.get("HOST", "0.0.0.0"), int(os.environ.get("PORT", "5123")))
        handler = Chatterbox
        held = take("chatterbox", 4.5, on_gpu=device().startswith("cuda"))
    elif role == "ollama" and arguments == ["serve"]:
        host, _colon, port = os.environ.get("OLLAMA_HOST", "127.0.0.1:11434").rpartition(":")
        address, handler = (host, int(port)), Ollama
        threading.Thread(target=STORE.expire, daemon=True).start()
    else:
        log(f"unknown command: {' '.join([role, *arguments])}")
        sys.exit(1)
    log(f"{role} (simulated) listens on {address[0]}:{address[1]}")
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer(address, handler).serve_forever()
    del held


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
