# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for the Hermes agent: its program, the places of its settings, its API server, and how it asks its provider.

    hermes --version
    hermes gateway run

It thinks of nothing by itself: a request goes on to the model of its settings, with a tool that tells the time, and the model's answer
comes back as the agent's. Settings of an administrator (HERMES_MANAGED_DIR) win over its home's (HERMES_HOME), and what
the real one refuses to start with is refused here too: exit code 78.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import yaml

VERSION = "0.19.0"
NEEDS_A_PERSON = 78
LEAST_CONTEXT = 64000
LEAST_KEY = 16
ROUNDS = 2
TOOL = {
    "type": "function",
    "function": {"name": "now", "description": "Tells the time.", "parameters": {"type": "object", "properties": {}}},
}
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def refuse(text: str) -> NoReturn:
    sys.stderr.write(f"hermes (a stand-in): {text}\n")
    sys.exit(NEEDS_A_PERSON)


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    result = dict(first)
    for key, value in second.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def folders() -> list[Path]:
    """Folders with settings, the weakest first."""
    home = Path(os.environ.get("HERMES_HOME") or Path.home() / ".hermes")
    managed = os.environ.get("HERMES_MANAGED_DIR")
    return [home, *([Path(managed)] if managed else [])]


def settings() -> tuple[dict[str, Any], dict[str, str]]:
    """Return config.yaml and .env of all folders, the managed ones winning; a variable of the process is below both."""
    config: dict[str, Any] = {}
    env = dict(os.environ)
    for folder in folders():
        path = folder / "config.yaml"
        if path.is_file():
            config = merged(config, yaml.safe_load(path.read_text(encoding="utf-8")) or {})
        path = folder / ".env"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        env.update(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return config, env


class Provider:
    """Where the agent's model is: one of C(providers), named by C(model.provider) as custom:NAME."""

    def __init__(self, config: dict[str, Any], env: dict[str, str]) -> None:
        model = config.get("model") or {}
        name = str(model.get("provider", "")).removeprefix("custom:")
        entry = (config.get("providers") or {}).get(name)
        if not entry:
            refuse(
                f"config.yaml: model.provider is {model.get('provider')!r}, and there is no such entry in providers."
            )
        self.model = model.get("default") or entry.get("default_model")
        if not self.model:
            refuse("config.yaml: model.default is missing.")
        length = model.get("context_length")
        if length is not None and length < LEAST_CONTEXT:
            refuse(f"{self.model} has a context of {length} tokens; at least {LEAST_CONTEXT} are needed.")
        self.key = env.get(entry.get("key_env", ""), "")
        if not self.key:
            refuse(f"{entry.get('key_env')} is not set: provider {name} has no key.")
        self.url = str(entry["base_url"]).rstrip("/")
        self.timeout = float(entry.get("request_timeout_seconds") or 600)

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}/chat/completions", json.dumps({**body, "model": self.model}).encode()
        )
        request.add_header("Content-Type", "application/json")
        request.add_header("Authorization", f"Bearer {self.key}")
        with OPENER.open(request, timeout=self.timeout) as answer:
            return dict(json.load(answer))

    def think(self, messages: list[dict[str, Any]]) -> tuple[str, list[str]]:
        """Return the last words of the model, and the tools that it has used before."""
        used: list[str] = []
        for turn in range(ROUNDS + 1):
            tools = {"tools": [TOOL], "tool_choice": "auto"} if turn < ROUNDS else {}
            message = self.ask({"messages": messages, "max_tokens": 256, **tools})["choices"][0]["message"]
            calls = message.get("tool_calls") or []
            if not calls:
                break
            messages = [*messages, {"role": "assistant", "content": message.get("content") or "", "tool_calls": calls}]
            for call in calls:
                used.append(call["function"]["name"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": time.strftime("%H:%M")})
        return message.get("content") or message.get("reasoning_content") or "", used


class Api(BaseHTTPRequestHandler):
    """The API server."""

    protocol_version = "HTTP/1.1"
    provider: Provider
    key: str
    name: str
    tool_sets: list[str] | None

    def log_message(self, format: str, *args: Any) -> None:
        sys.stderr.write(f"{self.address_string()} {format % args}\n")

    def answer(self, value: Any, code: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def allowed(self) -> bool:
        if self.headers.get("Authorization", "").removeprefix("Bearer ") == self.key:
            return True
        self.answer(
            {"error": {"message": "Invalid API key", "type": "invalid_request_error", "code": "invalid_api_key"}}, 401
        )
        return False

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer({"status": "ok", "platform": "hermes-agent", "simulated": True})
        elif self.path in ("/v1/models", "/v1/toolsets"):
            if self.allowed():
                names = [self.name] if self.path == "/v1/models" else (self.tool_sets or ["terminal"])
                self.answer({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})
        else:
            self.answer({"error": {"message": f"no route {self.path}"}}, 404)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/v1/chat/completions":
            self.answer({"error": {"message": f"no route {self.path}"}}, 404)
            return
        if not self.allowed():
            return
        try:
            text, used = self.provider.think(list(json.loads(content)["messages"]))
        except (ValueError, KeyError, TypeError) as error:
            self.answer(
                {"error": {"message": f"{type(error).__name__}: {error}", "type": "invalid_request_error"}}, 400
            )
            return
        except urllib.error.HTTPError as error:
            self.answer(
                {"error": {"message": f"its provider answers {error.code}: {error.read().decode()[:500]}"}}, 502
            )
            return
        except OSError as error:
            self.answer({"error": {"message": f"its provider cannot be reached: {error}"}}, 502)
            return
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        self.answer(
            {
                "id": f"chatcmpl-{uuid.uuid4().hex}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": self.name,
                "choices": [choice],
                "hermes": {"tools_used": used},
            }
        )


def gateway() -> None:
    """Run the part of C(hermes gateway run) that is simulated: the API server."""
    config, env = settings()
    if env.get("API_SERVER_ENABLED") != "true":
        refuse("no platform is enabled: API_SERVER_ENABLED is not true.")
    Api.key = env.get("API_SERVER_KEY", "")
    if len(Api.key) < LEAST_KEY:
        refuse(f"API_SERVER_KEY must have {LEAST_KEY} characters or more.")
    Api.provider = Provider(config, env)
    Api.name = env.get("API_SERVER_MODEL_NAME") or "hermes-agent"
    Api.tool_sets = (config.get("platform_toolsets") or {}).get("api_server")
    # Its home has to be writable for it.
    home = folders()[0]
    (home / "logs").mkdir(parents=True, exist_ok=True)
    (home / "logs" / "gateway.log").write_text(f"{VERSION}, a stand-in\n", encoding="utf-8")
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(0))
    address = (env.get("API_SERVER_HOST") or "127.0.0.1", int(env.get("API_SERVER_PORT") or 8642))
    sys.stderr.write(
        f"Hermes agent {VERSION} (a stand-in): API server on {address[0]}:{address[1]}, model {Api.provider.model}\n"
    )
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer(address, Api).serve_forever()


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(f"Hermes Agent v{VERSION} (a stand-in)")
    elif sys.argv[1:] == ["gateway", "run"]:
        gateway()
    else:
        sys.exit(f"hermes (a stand-in): knows --version and gateway run, not {' '.join(sys.argv[1:])!r}")


if __name__ == "__main__":
    main()
