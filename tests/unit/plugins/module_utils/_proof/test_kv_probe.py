# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof of kv_tiers against a server that keeps prompts in a small memory and in files."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import kv_probe
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.engine_client import Client

COLD_SECONDS, READ_SECONDS = 0.2, 0.05


class Engine(ThreadingHTTPServer):
    """holds: prompts that its memory keeps. files: prompts on disk, None for an engine without files."""

    daemon_threads = True

    def __init__(self, holds: int, files: set[str] | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.holds, self.files, self.memory, self.restored = holds, files, [], 0
        self.prompts: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def first_token(self, prompt: str, tokens: int) -> None:
        self.prompts.append(prompt)
        if prompt in self.memory:
            return
        if self.files is not None and prompt in self.files:
            time.sleep(READ_SECONDS)
            self.restored += tokens
        else:
            time.sleep(COLD_SECONDS)
        if self.files is not None:
            self.files.add(prompt)
        self.memory = [*self.memory, prompt][-self.holds :]


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        self._answer(f'{kv_probe.RESTORED}{{engine="0"}} {self.server.restored}\n'.encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.first_token(json.dumps(body["prompt"]), len(body["prompt"]))
        self._answer(b'data: {"choices": [{"text": "x"}]}\n\ndata: [DONE]\n\n')

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_probe, "STORE_SECONDS", 0.0)


@pytest.fixture
def servers() -> Iterator[list[Engine]]:
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.shutdown()
        engine.server_close()


def probe(engine: Engine, start: str = "first", **more: Any) -> kv_probe.Probe:
    values: dict[str, Any] = {"max_model_len": 4096, "most_tokens": None, "cache_tokens": 4096.0, **more}
    return kv_probe.Probe(Client(f"http://127.0.0.1:{engine.server_port}"), "heavy", start=start, **values)


def rules(record: dict[str, Any]) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity) for finding in kv_probe.findings("heavy", record)]


def test_an_evicted_prompt_and_one_after_a_restart_are_read_back(servers: list[Engine]) -> None:
    files: set[str] = set()
    servers.append(Engine(2, files))
    record = probe(servers[0]).measure(None)
    assert record["tokens"] == 2048 and record["cold"]["restored"] == 0
    assert record["evicted"]["restored"] == 2048 and record["evicted"]["seconds"] > 0
    # The same engine is not asked again.
    asked = len(servers[0].prompts)
    assert probe(servers[0]).measure(record) == record and len(servers[0].prompts) == asked
    assert probe(servers[0], start="").measure(record) == record
    servers.append(Engine(2, files))
    after = probe(servers[1], "second").measure(record)
    assert after["restarted"]["restored"] == 2048 and after["start"] == "second" and len(servers[1].prompts) == 1
    assert rules(after) == [("kv_tiers.proof", "info")]
    line = kv_probe.describe(after)
    assert "2,048 tokens" in line and "after eviction" in line and "after a restart" in line and "missing" not in line


def test_prompts_that_are_computed_again_are_a_warning(servers: list[Engine]) -> None:
    servers.append(Engine(2, None))
    record = probe(servers[0]).measure(None)
    assert record["evicted"]["restored"] == 0
    assert rules(record) == [("kv_tiers.proof", "warning")]


@pytest.mark.parametrize(
    ("cache_tokens", "why"),
    [(None, "size of the KV cache is unknown"), (4e6, "s to evict it")],
    ids=["unknown", "large"],
)
def test_a_long_flood_is_left_out(servers: list[Engine], cache_tokens: float | None, why: str) -> None:
    servers.append(Engine(2, set()))
    record = probe(servers[0], cache_tokens=cache_tokens).measure(None)
    assert "evicted" not in record and why in record["missing"] and len(servers[0].prompts) == 1
    assert rules(record) == [("kv_tiers.proof", "info")] and why in kv_probe.describe(record)


def test_the_prompt_fits_the_context_and_the_buffer(servers: list[Engine]) -> None:
    servers.append(Engine(2, set()))
    assert probe(servers[0], most_tokens=1000).measure(None)["tokens"] == 1000
    short = probe(servers[0], max_model_len=600).measure(None)
    assert "too short" in short["missing"] and rules(short) == [("kv_tiers.proof", "info")]


@pytest.mark.parametrize("damage", [{"seed": None}, {"tokens": "many"}, {"cold": 3}])
def test_a_damaged_record_is_measured_anew(servers: list[Engine], damage: dict[str, Any]) -> None:
    servers.append(Engine(2, set()))
    record = probe(servers[0]).measure(None)
    assert probe(servers[0]).measure({**record, **damage})["seed"] not in (record["seed"], None)


def test_a_server_that_is_gone_is_said(servers: list[Engine]) -> None:
    servers.append(Engine(2, set()))
    record = probe(servers[0]).measure(None)
    silent = kv_probe.Probe(Client("http://127.0.0.1:9"), "heavy", 4096, None, None, "second")
    after = silent.measure(record)
    assert "refused" in after["missing"] and after["cold"] == record["cold"] and "restarted" not in after
