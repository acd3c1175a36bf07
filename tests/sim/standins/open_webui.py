# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for Open WebUI: its variables, its accounts, and the models of its connections. There is no page to look at.

Simulated: /health, signing in and up, /api/models as seen by an account, a chat that goes to the connection which lists its model.
Accounts are kept in DATA_DIR; the first one is the administrator's, made from WEBUI_ADMIN_* where these are set.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from standin import FAULT, Handler, Refused, log

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ACCOUNTS = Path(os.environ.get("DATA_DIR") or "/app/backend/data") / "accounts.json"
UNKNOWN = "The email or password provided is incorrect. Please check for typos and try logging in again."


def is_on(name: str, default: str = "true") -> bool:
    return os.environ.get(name, default).lower() == "true"


def accounts() -> dict[str, str]:
    """Return the existing accounts: email to a hash of the password."""
    return dict(json.loads(ACCOUNTS.read_text())) if ACCOUNTS.exists() else {}


def add_account(email: str, password: str) -> None:
    ACCOUNTS.parent.mkdir(parents=True, exist_ok=True)
    ACCOUNTS.write_text(json.dumps({**accounts(), email: hashed(password)}))


def hashed(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


def token_of(email: str) -> str:
    return f"{email}.{hmac.new(os.environ['WEBUI_SECRET_KEY'].encode(), email.encode(), 'sha256').hexdigest()}"


def connections() -> list[tuple[str, str]]:
    """Return the OpenAI connections: URL and key of each, parted by semicolons in the variables."""
    urls = [url for url in os.environ.get("OPENAI_API_BASE_URLS", "").split(";") if url]
    keys = os.environ.get("OPENAI_API_KEYS", "").split(";")
    return [(url.rstrip("/"), keys[place] if place < len(keys) else "") for place, url in enumerate(urls)]


def request(url: str, key: str, body: dict[str, Any] | None = None, seconds: float = 300) -> Any:
    http_request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    http_request.add_header("Content-Type", "application/json")
    http_request.add_header("Authorization", f"Bearer {key}")
    with OPENER.open(http_request, timeout=seconds) as answer:
        return json.load(answer)


def models() -> dict[str, tuple[str, str]]:
    """Return name to connection. A silent connection is left out without a word, as the real program does."""
    by_name: dict[str, tuple[str, str]] = {}
    seconds = float(os.environ.get("AIOHTTP_CLIENT_TIMEOUT_MODEL_LIST") or 10)
    for url, key in connections():
        try:
            for entry in request(f"{url}/models", key, seconds=seconds)["data"]:
                by_name.setdefault(str(entry["id"]), (url, key))
        except (OSError, ValueError, KeyError) as error:
            log(f"connection {url}: {error}")
    return by_name


class OpenWebui(Handler):
    """What Open WebUI answers."""

    ROUTES: ClassVar[dict[tuple[str, str], str]] = {
        ("GET", "/"): "page",
        ("GET", "/health"): "health",
        ("POST", "/api/v1/auths/signin"): "sign_in",
        ("POST", "/api/v1/auths/signup"): "sign_up",
        ("GET", "/api/models"): "listed",
        ("POST", "/api/chat/completions"): "chat",
    }

    def page(self) -> None:
        self.answer(b"<title>Open WebUI (simulated)</title>", "text/html")

    def health(self) -> None:
        self.json({"status": FAULT != "hang"}, 200 if FAULT != "hang" else 503)

    def sign_in(self) -> None:
        body = self.request_body()
        email = str(body.get("email"))
        if not is_on("WEBUI_AUTH"):
            email = "admin@localhost"
        elif accounts().get(email) != hashed(str(body.get("password"))):
            raise Refused(400, {"detail": UNKNOWN})
        self.json({"token": token_of(email), "token_type": "Bearer", "email": email})

    def sign_up(self) -> None:
        body = self.request_body()
        if not is_on("ENABLE_SIGNUP"):
            raise Refused(403, {"detail": "You do not have permission to access this resource."})
        add_account(str(body["email"]), str(body["password"]))
        self.json({"token": token_of(str(body["email"])), "token_type": "Bearer"})

    def check_account(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token != token_of(token.rpartition(".")[0]):
            raise Refused(401, {"detail": "Your session has expired or the token is invalid. Please sign in again."})

    def listed(self) -> None:
        self.check_account()
        self.json({"data": [{"id": name, "object": "model", "name": name} for name in models()]})

    def chat(self) -> None:
        body = self.request_body()
        self.check_account()
        by_name = models()
        if body.get("model") not in by_name:
            raise Refused(404, {"detail": "Model not found"})
        url, key = by_name[body["model"]]
        try:
            self.json(
                request(f"{url}/chat/completions", key, body, float(os.environ.get("AIOHTTP_CLIENT_TIMEOUT") or 300))
            )
        except urllib.error.HTTPError as error:
            raise Refused(error.code, {"detail": error.read().decode(errors="replace")}) from None


def main() -> None:
    # The first process of a container is not ended by a signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(0))
    if FAULT == "fail":
        sys.exit("open-webui: simulated failure")
    if is_on("WEBUI_AUTH") and not os.environ.get("WEBUI_SECRET_KEY"):
        sys.exit("open-webui: WEBUI_SECRET_KEY is not set; it signs sessions.")
    os.environ.setdefault("WEBUI_SECRET_KEY", "none")
    if os.environ.get("WEBUI_ADMIN_EMAIL") and not accounts():
        add_account(os.environ["WEBUI_ADMIN_EMAIL"], os.environ["WEBUI_ADMIN_PASSWORD"])
    address = (os.environ.get("HOST") or "0.0.0.0", int(os.environ.get("PORT") or 8080))
    log(f"open-webui (simulated) listens on {address[0]}:{address[1]}")
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer(address, OpenWebui).serve_forever()


if __name__ == "__main__":
    main()
