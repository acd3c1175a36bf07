# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet monitor reads agents: those that are silent, refuse or say anything else keep their last figures and their reason."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import live_fixture
import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import live_fleet, live_status
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_fleet import Agent, Fleet
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file


class Played:
    """An agent that answers as it is told."""

    def __init__(self) -> None:
        self.status, self.body = (
            200,
            json.dumps({**live_fixture.document("s1", live_fixture.service("heavy")), "age_seconds": 7.0}),
        )
        self.requests: list[tuple[str, str | None, str]] = []
        played = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                played.requests.append((self.path, self.headers.get("Authorization"), data))
                body = played.body.encode()
                self.send_response(played.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.agent = Agent("s1", f"http://127.0.0.1:{self.server.server_address[1]}", "sk-1")


@pytest.fixture
def played() -> Iterator[Played]:
    made = Played()
    yield made
    made.server.shutdown()
    made.server.server_close()


def fleet(folder: Path, *agents: Agent) -> Fleet:
    return Fleet(agents, folder / "checks.json", 600)


def test_documents_are_read_with_the_key_and_their_age(tmp_path: Path, played: Played) -> None:
    gone = Agent("s2", "http://127.0.0.1:9")
    first, second = fleet(tmp_path, played.agent, gone).look(True)
    assert played.requests == [("/status.json", "Bearer sk-1", "")]
    assert first.document and not first.why and first.at == pytest.approx(time.time() - 7, abs=3)
    assert (second.host, second.document, second.at) == ("s2", None, None) and "refused" in second.why
    fleet(tmp_path, played.agent).look(False)
    assert played.requests[-1][0] == "/status.json?idle"


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, "A key is needed.", "HTTP 401: A key is needed."),
        (200, "{", "JSON"),
        (200, "[]", "not a mapping"),
        (200, '{"error": "it cannot measure"}', "it cannot measure"),
        (200, json.dumps({"schema": 2}), "schema"),
        (200, "[" * 5000, "agent"),
        (200, "x" * (live_fleet.MOST_BYTES + 1), "longer than"),
    ],
)
def test_an_agent_that_says_something_else_is_unreachable_with_its_last_document(
    tmp_path: Path, played: Played, status: int, body: str, why: str
) -> None:
    read = fleet(tmp_path, played.agent)
    (before,) = read.look(True)
    played.status, played.body = status, body
    (after,) = read.look(True)
    assert why in after.why and after.document == before.document and after.at == before.at
    (row,) = live_status.report([after], {}, "now")[0].services
    assert (row.service, row.state) == ("heavy", "unreachable")


def test_checks_of_the_monitor_and_their_age(tmp_path: Path) -> None:
    read = fleet(tmp_path)
    assert read.checks() == {}
    row = {"url": "http://h:1", "ok": True, "error": "", "hint": "", "note": ""}
    state_file.write(tmp_path / "checks.json", {"at": time.time(), "endpoints": {"gateway": row, "broken": 1}})
    assert read.checks() == {"gateway": row}
    state_file.write(tmp_path / "checks.json", {"at": time.time() - 3600, "endpoints": {"gateway": row}})
    assert "has not checked the endpoints since" in str(read.checks()[live_fleet.CHECKS_AGE]["error"])
    (tmp_path / "checks.json").write_text("[1")
    assert "cannot be read" in str(read.checks()[live_fleet.CHECKS_AGE]["error"])
    (tmp_path / "checks.json").write_text('{"endpoints": [], "at": "x"}')
    assert read.checks() == {}


def test_actions_go_to_the_agent_of_the_host(tmp_path: Path, played: Played) -> None:
    read = fleet(tmp_path, played.agent)
    request = {"verb": "stop", "host": "s1", "service": "heavy", "reader": "192.0.2.1"}
    played.body = '{"text": "it stops"}'
    assert read.act(request) == "it stops"
    path, key, data = played.requests[-1]
    assert (path, key, json.loads(data)) == ("/act", "Bearer sk-1", {"verb": "stop", "host": "s1", "service": "heavy"})
    played.status, played.body = 404, "Actions are off"
    for host, why in (("s1", "Actions are off"), ("s9", "no agent")):
        with pytest.raises(ValueError, match=why):
            read.act({**request, "host": host})
    with pytest.raises(ValueError, match="does not answer"):
        fleet(tmp_path, Agent("s1", "http://127.0.0.1:9")).act(request)
