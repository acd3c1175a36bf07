# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Helper of the clients' units and of the role: waits until a client answers, and asks it which models it sees.

Keys and passwords come from files alone, so that none is in a list of processes. Python's standard library and the file beside it are all it needs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # it runs as root from /usr/local/lib, which is to hold what was installed and no more

from dgxspark_vllm._common.foreign_text import parse_json
from dgxspark_vllm._runtime import http_client

REQUEST_SECONDS = 35.0


class Refused(Exception):
    """The server has answered, and will not answer otherwise by being asked again."""


def main(argv: list[str]) -> int:
    """Run the helper; return the exit code."""
    parser = argparse.ArgumentParser(prog="spark_clients.py", description=__doc__)
    parser.add_argument("what", choices=["ready", "models"])
    parser.add_argument("url", help="such as http://127.0.0.1:3000")
    parser.add_argument("--path", default="/health")
    parser.add_argument("--key-file", help="of several keys, parted by semicolons, the first is taken")
    parser.add_argument("--email", help="account of Open WebUI that asks")
    parser.add_argument("--password-file")
    parser.add_argument("--no-account", action="store_true", help="Open WebUI without accounts")
    parser.add_argument("--expect", action="append", default=[], help="model that has to be listed; may be repeated")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args(argv)
    deadline = time.monotonic() + options.seconds
    problem = "not asked"
    while True:
        try:
            if options.what == "ready":
                request(options.url + options.path)
                return 0
            names = models(options)
            missing = sorted(set(options.expect) - set(names))
            if not missing:
                sys.stdout.write(json.dumps({"models": sorted(names)}) + "\n")
                return 0
            problem = f"it lists {', '.join(sorted(names)) or 'no model'}, but not {', '.join(missing)}"
        except Refused as error:
            problem = str(error)
            break
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = str(error)
        if time.monotonic() + 1 > deadline:
            break
        time.sleep(1)
    sys.stderr.write(f"{options.url} has not come to what was asked within {options.seconds:g} s: {problem}\n")
    return 1


def models(options: argparse.Namespace) -> list[str]:
    """Return the names that a client lists, as one of its users sees them."""
    if options.email or options.no_account:
        password = Path(options.password_file).read_text(encoding="utf-8").strip() if options.password_file else ""
        body = {"email": options.email or "", "password": password}
        token = request(f"{options.url}/api/v1/auths/signin", body=body)["token"]
        found = request(f"{options.url}/api/models", key=token)
    else:
        key = Path(options.key_file).read_text(encoding="utf-8").strip() if options.key_file else ""
        found = request(f"{options.url}/v1/models", key=key.split(";")[0])
    return [str(entry["id"]) for entry in found["data"]]


def request(url: str, key: str = "", body: dict[str, Any] | None = None) -> Any:
    """Send one request and return what came back; None where that is no JSON."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    answer = http_client.fetch(url, "GET" if data is None else "POST", headers, data, REQUEST_SECONDS)
    if not 200 <= answer.status < 300:
        message = f"{url} answers {answer.status}"
        if answer.status in (400, 401, 403):
            hints = {400: "account or password is not known to it", 401: "the key is wrong or missing"}
            raise Refused(f"{message}: {hints.get(answer.status, 'not allowed')}")
        raise OSError(message)
    try:
        return parse_json(answer.body.decode(errors="replace"), url)
    except ValueError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
