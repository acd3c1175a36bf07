# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Having Ollama give its memory back: which models it holds, and unloading them. It loads them again when it is asked something."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from .._common.foreign_text import parse_json
from . import http_client
from .hostmem import GIB

REQUEST_SECONDS = 5.0


def ollama_url(etc: Path) -> str | None:
    """Return the URL of the host's Ollama from C(ollama.json), or None. Raises ValueError for an unreadable file."""
    path = etc / "ollama.json"
    try:
        url = parse_json(path.read_text(encoding="utf-8"), str(path))["url"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} cannot be read, Ollama is left alone: {error}") from error
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ValueError(f"{path} cannot be read, Ollama is left alone: its url is {url!r}")
    return url


def ask(url: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask Ollama something. body: posted as JSON; None for a GET. Raises OSError or ValueError."""
    data = None if body is None else json.dumps(body).encode()
    address = url.rstrip("/") + path
    method = "GET" if data is None else "POST"
    answer = http_client.fetch(address, method, {"Content-Type": "application/json"}, data, REQUEST_SECONDS)
    if answer.status != 200:
        raise OSError(f"HTTP {answer.status} at {path}")
    answer_body = parse_json(answer.body or b"{}", address)
    if not isinstance(answer_body, dict):
        raise ValueError("no JSON object came back")
    return answer_body


def loaded_models(url: str) -> dict[str, float]:
    """The models that Ollama holds in memory, by name, GiB. Raises OSError or ValueError."""
    models = ask(url, "/api/ps").get("models") or []
    loaded = {}
    for model in models if isinstance(models, list) else []:
        name = str(model.get("model") or model.get("name") or "") if isinstance(model, dict) else ""
        size = model.get("size") if name else None
        if name:
            loaded[name] = size / GIB if isinstance(size, (int, float)) else 0.0
    return loaded


def unload(url: str, limit_seconds: float, poll: float = 0.5) -> tuple[str, bool]:
    """Unload all models, and wait until none is left.

    :param limit_seconds: time limit for unloading; a busy model answers first
    :param poll: seconds between two looks, at most half a second
    :returns: a text about it, empty where nothing was loaded or nothing answers, and whether memory came back
    """
    began = time.monotonic()
    requested_at: dict[str, float] = {}
    try:
        while True:
            held = loaded_models(url)
            for name in sorted(held.keys() - requested_at.keys()):
                requested_at[name] = held[name]
                # Whether it goes is seen below.
                with contextlib.suppress(OSError, ValueError):
                    ask(url, "/api/generate", {"model": name, "keep_alive": 0, "stream": False})
            if not held:
                break
            if time.monotonic() - began >= limit_seconds:
                return f"Ollama still uses {', '.join(sorted(held))} after {limit_seconds:.0f} s", False
            time.sleep(min(poll, 0.5))
    except (OSError, ValueError) as error:
        # A missing server holds nothing; a broken connection is reported.
        return (
            f"Ollama at {url} was asked to unload {', '.join(sorted(requested_at))}: {error}" if requested_at else "",
            False,
        )
    if not requested_at:
        return "", False
    named = ", ".join(f"{name} ({size:.2f} GiB)" for name, size in sorted(requested_at.items()))
    return f"Ollama unloaded {named} in {time.monotonic() - began:.1f} s", True
