# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of chat clients from their own host, for their units and the role: C(spark_unit.py client STEP URL).

ready URL    wait until the client answers
models URL   list the models that a user of the client sees, as JSON

Keys and passwords come from files, so that no list of processes shows them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._common.foreign_text import parse_json
from . import http_client

REQUEST_SECONDS = 35.0
RETRY_SECONDS = 1.0
REFUSALS = {400: "account or password is not known to it", 401: "the key is wrong or missing", 403: "not allowed"}


class Refused(Exception):
    """The client has answered, and will not answer otherwise if it is asked again."""


def main(argv: Sequence[str]) -> int:
    """Take one step; returns the exit code."""
    parser = argparse.ArgumentParser(prog="spark-unit client", description="Check a chat client.")
    parser.add_argument("step", choices=["ready", "models"])
    parser.add_argument("url", help="such as http://127.0.0.1:3000")
    parser.add_argument("--path", default="/health", help="that answers once the client is ready")
    parser.add_argument("--key-file", help="API keys, separated by semicolons; the first one is used")
    parser.add_argument("--email", help="account of Open WebUI")
    parser.add_argument("--password-file")
    parser.add_argument("--no-account", action="store_true", help="Open WebUI without accounts")
    parser.add_argument("--expect", action="append", default=[], help="model that has to be listed; may be repeated")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args(argv)
    deadline = time.monotonic() + options.seconds
    while True:
        try:
            if options.step == "ready":
                send(options.url + options.path)
                return 0
            models = list_models(options)
            missing = sorted(set(options.expect) - set(models))
            if not missing:
                sys.stdout.write(json.dumps({"models": sorted(models)}) + "\n")
                return 0
            problem = f"it lists {', '.join(sorted(models)) or 'no model'}, but not {', '.join(missing)}"
        except Refused as error:
            problem = str(error)
            break
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = str(error)
        if time.monotonic() + RETRY_SECONDS > deadline:
            break
        time.sleep(RETRY_SECONDS)
    sys.stderr.write(f"{options.url} did not reach the requested state within {options.seconds:g} s: {problem}\n")
    return 1


def list_models(options: argparse.Namespace) -> list[str]:
    """Return the names of the models that a user of the client sees."""
    if options.email or options.no_account:
        account = {"email": options.email or "", "password": read_secret(options.password_file)}
        token = send(f"{options.url}/api/v1/auths/signin", body=account)["token"]
        answer = send(f"{options.url}/api/models", token)
    else:
        answer = send(f"{options.url}/v1/models", read_secret(options.key_file).split(";")[0])
    return [str(model["id"]) for model in answer["data"]]


def read_secret(path: str | None) -> str:
    """Return the text of a file with a secret; empty without a file."""
    return Path(path).read_text(encoding="utf-8").strip() if path else ""


def send(url: str, key: str = "", body: dict[str, Any] | None = None) -> Any:
    """Send a GET, or a POST of C(body); returns its JSON or None. Raises OSError for a status that may change, Refused for one that does not."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    reply = http_client.fetch(url, "GET" if data is None else "POST", headers, data, REQUEST_SECONDS)
    if reply.status in REFUSALS:
        raise Refused(f"{url} answers {reply.status}: {REFUSALS[reply.status]}")
    if not 200 <= reply.status < 300:
        raise OSError(f"{url} answers {reply.status}")
    try:
        return parse_json(reply.body.decode(errors="replace"), url)
    except ValueError:
        return None
