# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that serves the page of a fleet, with its settings, its keys, and the agents that it reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import live_fixture
import pytest

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[4]
SCRIPT = REPO / "roles/fleet_monitor/files/spark_status_page.py"


@contextmanager
def program(folder: Path, **changes: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the program; yields it with its first line."""
    settings = {
        "listen": "127.0.0.1",
        "port": 0,
        "host": "forge",
        "agents": [],
        "checks": str(folder / "checks.json"),
        "stale_seconds": 600,
    }
    (folder / "settings.json").write_text(json.dumps({**settings, **changes}))
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder / "settings.json"), f"--page={live_fixture.FILES}"],
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPO / "collections")},
    ) as process:
        assert process.stderr is not None
        try:
            yield process, process.stderr.readline()
        finally:
            process.terminate()


@pytest.fixture
def agent() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_admitted = self.headers.get("Authorization") == "Bearer sk-agent"
            body = (
                json.dumps(live_fixture.document("s1", live_fixture.service("heavy"))).encode() if is_admitted else b""
            )
            self.send_response(200 if is_admitted else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture
def world_readable() -> Iterator[Path]:
    """A folder that nobody can read, as the state of the fleet monitor is; those of pytest belong to one account."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_it_shows_its_agents_behind_its_key_as_nobody(tmp_path: Path, agent: str, world_readable: Path) -> None:
    for name in ("page", "agent"):
        (tmp_path / name).write_text(f"sk-{name}\n")
    rows = [{"host": "s1", "url": agent, "key_file": str(tmp_path / "agent")}]
    checks = world_readable / "checks.json"
    checks.write_text(json.dumps({"at": time.time(), "endpoints": live_fixture.CHECKS}))
    with program(tmp_path, agents=rows, key_file=str(tmp_path / "page"), checks=str(checks)) as (process, line):
        assert "serves 1 Sparks on 127.0.0.1, port " in line
        url = f"http://127.0.0.1:{line.rpartition(' ')[2].strip()}/"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=30)
        request = urllib.request.Request(url, headers={"Authorization": "Bearer sk-page"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
        assert "1 host, 1 service: 1 healthy." in text and "forge/gateway" in text and "sk-" not in text
        if os.getuid() == 0:
            assert Path(f"/proc/{process.pid}").stat().st_uid == 65534


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"agents": [{"host": "s1"}]}, "run site.yml again"),
        ({"key_file": "/nothing/here"}, "cannot be read"),
        ({"listen": "0.0.0.0"}, "a key is needed"),
        ({"listen": "192.0.2.1", "key_file": "KEY"}, "see who has it"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    (tmp_path / "key").write_text("sk-page")
    changes = {name: str(tmp_path / "key") if value == "KEY" else value for name, value in changes.items()}
    with program(tmp_path, **changes) as (process, line):
        assert why in line and process.wait(60) in (1, 2)
