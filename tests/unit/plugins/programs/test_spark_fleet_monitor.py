# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet monitor's program with real servers: its requests, its recipients, and how often it sends."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[4]
SCRIPT = REPO / "roles/fleet_monitor/files/spark_fleet_monitor.py"
KEY, TOKEN = "sk-endpoint-key-1", "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"


class Server:
    """Any HTTP server: C(answer) maps method and path to (status, body); C(came) records the requests."""

    def __init__(
        self, answer: Callable[[str, str, Any], tuple[int, Any]], context: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self.came: list[tuple[str, str, Any, dict[str, str]]] = []
        self.closing = threading.Event()
        me = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def handle_one(self, method: str) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                try:
                    body = json.loads(raw) if raw else None
                except ValueError:
                    body = raw.decode()
                me.came.append((method, self.path, body, dict(self.headers)))
                status, reply = me.answer(method, self.path, self.headers)
                if status == 0:  # never
                    me.closing.wait(30)
                    return
                data = reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", reply["to"])
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self.handle_one("GET")

            def do_POST(self) -> None:
                self.handle_one("POST")

        class Listener(ThreadingHTTPServer):
            request_queue_size = 128

        self.server = Listener(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()

    def asked(self, path: str) -> int:
        return sum(1 for _method, came, _body, _headers in self.came if came == path)


class Model(Server):
    """A model server that can be down, hang, lack its model, require a key, or produce tokens only for other clients."""

    def __init__(self) -> None:
        self.mode, self.tokens, self.key = "up", 0, ""
        super().__init__(self.say)

    def say(self, method: str, path: str, headers: Any) -> tuple[int, Any]:
        if self.mode == "down":
            return 503, "loading"
        if path == "/metrics":
            self.tokens += 5 if self.mode == "busy" else 0
            return 200, f"vllm:num_requests_running 3\nvllm:generation_tokens_total {self.tokens}\n"
        if self.key and headers.get("Authorization") != f"Bearer {self.key}":
            return 401, {"error": f"Unauthorized, wanted {self.key}"}
        if path == "/v1/models":
            return 200, {"data": [{"id": "other" if self.mode == "other" else "heavy"}]}
        if path == "/api/tags":
            return 200, {"models": [{"name": "qwen3:8b"}, {"name": "small:latest"}]}
        if path == "/health":
            return 200, {"status": "ok"}
        if path == "/v1/chat/completions":
            if self.mode in ("wedged", "busy"):
                return 0, ""
            # A model that thinks: one token, and no field that shows it.
            return 200, {"choices": [{"message": {"content": None}}], "usage": {"completion_tokens": 1}}
        return 404, {"detail": "Not Found"}


class Monitor:
    def __init__(self, tmp: Path) -> None:
        self.etc, self.state, self.keys = tmp / "etc", tmp / "state", tmp / "keys"
        (self.etc / "fleet_monitor").mkdir(parents=True)
        self.keys.mkdir()
        self.given: dict[str, Any] = {
            "host": "forge",
            "completion_every": 0,
            "timeout_seconds": 5,
            "completion_seconds": 1,
            "failures": 1,
            "heartbeat": "off",
            "quiet": [],
            "endpoints": [],
            "notify": [],
        }
        self.said = ""

    def watch(self, key: str, url: str, health: str = "/v1/models", **more: Any) -> None:
        base = {"models": [], "complete": False, "vllm": False, "api_key_file": None, "look": f"journalctl of {key}"}
        self.given["endpoints"].append({"key": key, "url": url, "health": health, **base, **more})

    def secret(self, name: str, text: str) -> str:
        (self.keys / name).write_text(text + "\n")
        return str(self.keys / name)

    def notify(self, kind: str, **more: Any) -> None:
        self.given["notify"].append({"name": kind, "kind": kind, **more})

    def run(self, *words: str) -> int:
        (self.etc / "fleet_monitor/settings.json").write_text(json.dumps(self.given))
        done = subprocess.run(
            [sys.executable, str(SCRIPT), f"--etc={self.etc}", f"--state={self.state}", *words],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPO / "collections"), "TZ": "UTC"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.out = done.stdout
        self.said += done.stdout + done.stderr
        assert "Traceback" not in self.said, self.said
        return done.returncode

    def memory(self) -> dict[str, Any]:
        saved: dict[str, Any] = json.loads((self.state / "state.json").read_text())
        return saved


@pytest.fixture
def monitor(tmp_path: Path) -> Monitor:
    return Monitor(tmp_path)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made: list[Server] = []
    yield made
    for server in made:
        server.close()


@pytest.fixture
def model(servers: list[Server]) -> Model:
    made = Model()
    servers.append(made)
    return made


@pytest.fixture
def hook(servers: list[Server]) -> Server:
    made = Server(lambda _method, _path, _headers: (200, "ok"))
    servers.append(made)
    return made


@pytest.mark.nightly
def test_exactly_one_message_when_it_goes_and_one_when_it_is_back(monitor: Monitor, model: Model, hook: Server) -> None:
    monitor.given["failures"] = 2
    monitor.watch("spark-1/heavy", model.url, models=["heavy"])
    monitor.watch("spark-1/asr", model.url, "/health")
    monitor.watch("spark-1/ollama", model.url, "/api/tags", models=["qwen3:8b", "small"])
    monitor.notify("webhook", url=hook.url + "/hook")
    assert monitor.run() == 0 and hook.came == []
    model.mode = "down"
    assert monitor.run() == 1 and hook.came == []  # one check is no change
    assert monitor.run() == 1 and len(hook.came) == 1
    assert monitor.run() == 1 and monitor.run() == 1 and len(hook.came) == 1
    body = hook.came[0][2]
    assert body["title"] == "Fleet monitor on forge: 3 down"
    assert [change["key"] for change in body["changes"]] == ["spark-1/heavy", "spark-1/asr", "spark-1/ollama"]
    assert "HTTP 503 at /health: loading" in body["text"] and "Look: see the unit's log" in body["text"]
    assert "journalctl of spark-1/heavy" in body["text"] and "All 3 endpoints went at once" in body["text"]
    model.mode = "up"
    assert monitor.run() == 0 and len(hook.came) == 2
    assert hook.came[1][2]["title"] == "Fleet monitor on forge: 3 up again"
    assert monitor.run() == 0 and len(hook.came) == 2


def test_nothing_listens(monitor: Monitor, hook: Server, closed_port: int) -> None:
    monitor.watch("spark-1/heavy", f"http://127.0.0.1:{closed_port}")
    monitor.notify("webhook", url=hook.url)
    assert monitor.run() == 1
    assert "connection refused: nothing listens on 127.0.0.1" in hook.came[0][2]["text"]


def test_another_model_on_the_port(monitor: Monitor, model: Model, hook: Server) -> None:
    model.mode = "other"
    monitor.watch("spark-1/heavy", model.url, models=["heavy"])
    monitor.notify("webhook", url=hook.url)
    assert monitor.run() == 1
    assert "/v1/models lists other, not heavy" in hook.came[0][2]["text"]


def test_a_wedged_engine_is_found_by_a_token_that_does_not_come(monitor: Monitor, model: Model, hook: Server) -> None:
    """/v1/models keeps answering; the checks between two completions do not hide the failure."""
    monitor.given.update(completion_every=4, failures=2)
    monitor.watch("spark-1/heavy", model.url, models=["heavy"], complete=True, vllm=True)
    monitor.notify("webhook", url=hook.url)
    path = "/v1/chat/completions"
    for _turn in range(4):
        assert monitor.run() == 0
    assert model.asked(path) == 1
    model.mode = "wedged"
    assert monitor.run() == 1 and hook.came == []
    assert monitor.run() == 1 and len(hook.came) == 1
    assert "no token of heavy: no answer from" in hook.came[0][2]["text"]
    model.mode = "up"
    assert monitor.run() == 0 and len(hook.came) == 2 and model.asked(path) == 4
    assert monitor.run() == 0 and model.asked(path) == 4


def test_an_engine_that_makes_tokens_for_others_is_busy(monitor: Monitor, model: Model, hook: Server) -> None:
    monitor.given["completion_every"] = 1
    model.mode = "busy"
    monitor.watch("spark-1/heavy", model.url, models=["heavy"], complete=True, vllm=True)
    monitor.notify("webhook", url=hook.url)
    assert monitor.run() == 0 and hook.came == []
    assert "busy: no token of its own within 1 s" in monitor.said


def test_checks_run_at_once_and_end(monitor: Monitor, servers: list[Server]) -> None:
    """Forty endpoints that never answer take a few limits, not forty."""
    dead = Server(lambda _method, _path, _headers: (0, ""))
    servers.append(dead)
    monitor.given["timeout_seconds"] = 2  # one after the other they would take longer than a run is given here
    for number in range(40):
        monitor.watch(f"h{number}/x", dead.url)
    assert monitor.run("--json") == 1
    assert len(json.loads(monitor.out)["endpoints"]) == 40 and len(dead.came) == 40


def test_keys_are_sent_and_shown_nowhere(monitor: Monitor, model: Model, hook: Server) -> None:
    model.key = KEY
    path = monitor.secret("endpoint", KEY)
    monitor.watch("spark-1/heavy", model.url, models=["heavy"], complete=True, api_key_file=path)
    monitor.notify("webhook", url=hook.url)
    assert monitor.run("--completion", "--json") == 0
    model.key = KEY + "-new"
    assert monitor.run() == 1
    assert "HTTP 401" in hook.came[0][2]["text"] and path in hook.came[0][2]["text"]
    for text in (monitor.said, json.dumps(hook.came), (monitor.state / "state.json").read_text()):
        assert KEY not in text


def test_telegram(monitor: Monitor, closed_port: int, servers: list[Server]) -> None:
    answers = [(500, {"description": f"cannot do that with {TOKEN}"}), (200, {"ok": True}), (200, {"ok": True})]
    telegram = Server(lambda _method, _path, _headers: answers.pop(0))
    servers.append(telegram)
    monitor.watch("spark-1/heavy", f"http://127.0.0.1:{closed_port}")
    monitor.notify("telegram", token_file=monitor.secret("bot", TOKEN), chat_id=42, url=telegram.url)
    assert monitor.run() == 3
    assert monitor.memory()["delivery"]["telegram"]["error"].startswith("HTTP 500")
    assert monitor.run() == 1  # told now
    assert monitor.run() == 1 and len(telegram.came) == 2
    method, path, body, _headers = telegram.came[1]
    assert (method, path, body["chat_id"]) == ("POST", f"/bot{TOKEN}/sendMessage", 42)
    assert body["text"].startswith("Fleet monitor on forge: 1 down\nDOWN spark-1/heavy")
    for text in (monitor.said, (monitor.state / "state.json").read_text()):
        assert TOKEN not in text and "AAHdqTcv" not in text
    assert "cannot do that with ********" in monitor.said


def test_a_change_that_was_not_delivered_is_told_with_what_came_since(
    monitor: Monitor, model: Model, closed_port: int, servers: list[Server]
) -> None:
    monitor.watch("spark-1/heavy", model.url)
    monitor.watch("spark-1/asr", model.url, "/health")
    monitor.notify("webhook", url=f"http://127.0.0.1:{closed_port}/hook")
    assert monitor.run() == 0
    model.mode = "down"
    assert monitor.run() == 3
    model.mode = "up"
    assert monitor.run() == 3
    hook = Server(lambda _method, _path, _headers: (200, ""))
    servers.append(hook)
    monitor.given["notify"][0]["url"] = hook.url
    assert monitor.run() == 0 and len(hook.came) == 1
    whats = [(change["what"], change["key"]) for change in hook.came[0][2]["changes"]]
    assert whats == [("down", "spark-1/heavy"), ("down", "spark-1/asr"), ("up", "spark-1/heavy"), ("up", "spark-1/asr")]
    assert monitor.memory()["delivery"] == {}


def test_ntfy_webhook_headers_and_url_files(monitor: Monitor, hook: Server, closed_port: int) -> None:
    monitor.watch("spark-1/heavy", f"http://127.0.0.1:{closed_port}")
    monitor.notify("ntfy", url=hook.url + "/sparks", token_file=monitor.secret("ntfy", "tk_secret"))
    headers = monitor.secret("headers", "X-Key: header-secret\nX-Other: 2")
    monitor.notify(
        "webhook", url_file=monitor.secret("url", hook.url + "/T00/B00/xyz"), headers_file=headers, text_key="content"
    )
    assert monitor.run() == 1
    (_m, path, text, ntfy), (_m2, path2, body, other) = hook.came
    assert path == "/sparks" and text.startswith("DOWN spark-1/heavy") and ntfy["Authorization"] == "Bearer tk_secret"
    assert ntfy["Priority"] == "high" and ntfy["Title"] == "Fleet monitor on forge: 1 down"
    assert path2 == "/T00/B00/xyz" and set(body) == {"content"} and other["X-Key"] == "header-secret"
    assert "header-secret" not in monitor.said and "T00" not in monitor.said and "tk_secret" not in monitor.said


def test_a_command_reads_the_message(monitor: Monitor, closed_port: int, tmp_path: Path) -> None:
    script = tmp_path / "tell"
    script.write_text(f"#!/bin/sh\ncat > {tmp_path}/told\nexit $(cat {tmp_path}/code)\n")
    script.chmod(0o755)
    (tmp_path / "code").write_text("7")
    monitor.watch("spark-1/heavy", f"http://127.0.0.1:{closed_port}")
    monitor.notify("command", argv=[str(script)])
    assert monitor.run() == 3 and "tell ended with 7" in monitor.said
    (tmp_path / "code").write_text("0")
    assert monitor.run() == 1
    assert (tmp_path / "told").read_text().startswith("Fleet monitor on forge: 1 down\nDOWN spark-1/heavy")
    monitor.given["notify"][0]["argv"] = [str(tmp_path / "none")]
    assert monitor.run("--test") == 3 and "cannot be run: No such file" in monitor.said


class MailServer:
    """An SMTP server of a few lines; keeps the messages."""

    def __init__(self, refuse: bool = False) -> None:
        self.refuse = refuse
        self.mails: list[tuple[str, list[str], str]] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                client, _address = self.socket.accept()
            except OSError:
                return
            with client, client.makefile("rwb") as stream:
                self.talk(stream)

    def talk(self, stream: Any) -> None:
        def say(text: str) -> None:
            stream.write(text.encode() + b"\r\n")
            stream.flush()

        sender, to = "", []
        say("220 mail.test")
        for raw in stream:
            word = raw.decode().strip()
            verb = word.split(" ")[0].upper()
            if verb in ("EHLO", "HELO"):
                say("250 mail.test")
            elif verb == "MAIL":
                sender = word
                say("550 not from you" if self.refuse else "250 ok")
            elif verb == "RCPT":
                to.append(word)
                say("250 ok")
            elif verb == "DATA":
                say("354 go on")
                lines = []
                for line in stream:
                    if line.rstrip(b"\r\n") == b".":
                        break
                    lines.append(line.decode())
                self.mails.append((sender, to, "".join(lines)))
                say("250 taken")
            elif verb == "QUIT":
                say("221 bye")
                return
            else:
                say("250 ok")


def test_mail(monitor: Monitor, closed_port: int) -> None:
    server = MailServer()
    monitor.watch("spark-1/heavy", f"http://127.0.0.1:{closed_port}")
    mail = {"server": "127.0.0.1", "port": server.port, "from": "sparks@forge", "to": ["a@b.c", "d@e.f"], "tls": "none"}
    monitor.notify("mail", **mail)
    assert monitor.run() == 1 and monitor.run() == 1
    ((sender, to, text),) = server.mails
    assert "sparks@forge" in sender and len(to) == 2
    assert "Subject: Fleet monitor on forge: 1 down" in text and "DOWN spark-1/heavy" in text
    server.socket.close()


def test_mail_that_is_refused_or_cannot_be_encrypted(monitor: Monitor, closed_port: int) -> None:
    server = MailServer(refuse=True)
    monitor.watch("spark-1/heavy", f"http://127.0.0.1:{closed_port}")
    mail = {"server": "127.0.0.1", "port": server.port, "from": "sparks@forge", "to": ["a@b.c"], "tls": "none"}
    monitor.notify("mail", **mail)
    assert monitor.run() == 3 and "550" in monitor.said and "not from you" in monitor.said
    monitor.given["notify"][0].update(tls="starttls", password_file=monitor.secret("mail", "mail-password"))
    assert monitor.run() == 3 and "STARTTLS" in monitor.said and "mail-password" not in monitor.said
    assert server.mails == []
    server.socket.close()


def test_a_token_follows_no_redirect(monitor: Monitor, hook: Server, closed_port: int, servers: list[Server]) -> None:
    elsewhere = Server(lambda _method, _path, _headers: (302, {"to": hook.url}))
    servers.append(elsewhere)
    monitor.watch("spark-1/heavy", f"http://127.0.0.1:{closed_port}")
    monitor.notify("ntfy", url=elsewhere.url, token_file=monitor.secret("ntfy", "tk_secret"))
    assert monitor.run() == 3 and hook.came == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate of the server")
def test_certificates_are_verified(monitor: Monitor, closed_port: int, servers: list[Server], tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = [
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(key),
        "-out",
        str(cert),
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run(["openssl", "req", "-x509", *words], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    hook = Server(lambda _method, _path, _headers: (200, ""), context)
    servers.append(hook)
    monitor.watch("spark-1/heavy", f"http://127.0.0.1:{closed_port}")
    monitor.notify("webhook", url=hook.url)
    assert monitor.run() == 3 and hook.came == []
    assert "certificate verify failed" in monitor.said


def test_a_test_message(monitor: Monitor, model: Model, hook: Server) -> None:
    monitor.watch("spark-1/heavy", model.url)
    assert monitor.run("--test") == 2  # nobody is told
    monitor.notify("webhook", url=hook.url)
    assert monitor.run("--test") == 0 and monitor.out == "webhook: sent\n"
    assert "This is a test. forge watches 1 endpoints" in hook.came[0][2]["text"]
    assert not (monitor.state / "state.json").exists()


def test_a_dry_run_remembers_and_sends_nothing(monitor: Monitor, hook: Server, closed_port: int) -> None:
    monitor.watch("spark-1/heavy", f"http://127.0.0.1:{closed_port}")
    monitor.notify("webhook", url=hook.url)
    assert monitor.run("--dry-run", "--json") == 1
    report = json.loads(monitor.out)
    assert report["endpoints"][0]["ok"] is False and [change["what"] for change in report["changes"]] == ["down"]
    assert hook.came == [] and not monitor.state.exists()
    assert monitor.run("--dry-run") == 1 and monitor.out.startswith("DOWN spark-1/heavy http://127.0.0.1")


def test_quiet_hours_keep_changes(monitor: Monitor, hook: Server, closed_port: int) -> None:
    monitor.given["quiet"] = ["00:00-12:00", "12:00-00:00"]
    monitor.watch("spark-1/heavy", f"http://127.0.0.1:{closed_port}")
    monitor.notify("webhook", url=hook.url)
    assert monitor.run() == 1 and hook.came == []
    monitor.given["quiet"] = []
    assert monitor.run() == 1 and len(hook.came) == 1


def test_the_heartbeat(monitor: Monitor, model: Model, hook: Server) -> None:
    monitor.given["heartbeat"] = "00:00"
    monitor.watch("spark-1/heavy", model.url)
    monitor.notify("webhook", url=hook.url)
    assert monitor.run() == 0 and hook.came == []
    state = monitor.memory()
    (monitor.state / "state.json").write_text(json.dumps({**state, "heartbeat": "2026-01-01"}))
    assert monitor.run() == 0 and monitor.run() == 0 and len(hook.came) == 1
    assert "ALIVE The one endpoint is up." in hook.came[0][2]["text"]


def test_a_broken_state_is_set_aside(monitor: Monitor, model: Model) -> None:
    monitor.watch("spark-1/heavy", model.url)
    monitor.state.mkdir()
    (monitor.state / "state.json").write_text("{")
    assert monitor.run() == 0 and (monitor.state / "state.json.broken").read_text() == "{"
    assert monitor.memory()["run"] == 1


def test_missing_settings(monitor: Monitor) -> None:
    shutil.rmtree(monitor.etc)
    (monitor.etc / "fleet_monitor").mkdir(parents=True)
    monitor.given = {}
    assert monitor.run() == 2 and "run site.yml again" in monitor.said


def test_two_runs_at_once_tell_once(monitor: Monitor, hook: Server, closed_port: int) -> None:
    monitor.watch("spark-1/heavy", f"http://127.0.0.1:{closed_port}")
    monitor.notify("webhook", url=hook.url)
    codes: list[int] = []
    monitor.run("--dry-run")  # writes the settings
    threads = [threading.Thread(target=lambda: codes.append(monitor.run())) for _number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [1, 1, 1] and len(hook.came) == 1


def test_the_live_page_gets_the_results_of_a_run(monitor: Monitor, model: Model) -> None:
    monitor.watch("spark-1/heavy", model.url, models=["heavy"], vllm=True)
    checks = monitor.state / "checks.json"
    assert monitor.run() == 0
    saved = json.loads(checks.read_text())
    assert saved["endpoints"]["spark-1/heavy"]["ok"] is True and abs(saved["at"] - time.time()) < 600
    assert checks.stat().st_mode & 0o777 == 0o644
    model.mode = "down"
    assert monitor.run() == 1
    endpoint = json.loads(checks.read_text())["endpoints"]["spark-1/heavy"]
    assert not endpoint["ok"] and "HTTP 503 at /v1/models" in endpoint["error"] and endpoint["url"] == model.url


def test_results_that_cannot_be_written_keep_nobody_from_being_told(
    monitor: Monitor, model: Model, hook: Server
) -> None:
    monitor.watch("spark-1/heavy", model.url, models=["heavy"])
    monitor.notify("webhook", url=hook.url)
    (monitor.state / "checks.json").mkdir(parents=True)
    model.mode = "down"
    assert monitor.run() == 1 and len(hook.came) == 1
    assert "checks.json cannot be written" in monitor.said
