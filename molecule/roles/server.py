"""Answers as a speech server on port 8765, and keeps the bodies posted to port 8766; gone while /run/fleet_test.down exists."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DOWN, POSTED = Path("/run/fleet_test.down"), Path("/run/fleet_test.posted")


class Handler(BaseHTTPRequestHandler):
    def reply(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.reply(503 if DOWN.exists() else 200)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with POSTED.open("ab") as stream:
            stream.write(body + b"\n")
        self.reply(200)


for port in (8765, 8766):
    threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever).start()
