# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serves the live page of a fleet from its agents, the last checks of the fleet monitor and the alarms of Prometheus: the program of spark-status-page.service.

It reads the keys as root, binds its port, and goes on as C(nobody).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # root runs it from /usr/local/lib, which holds installed files only

from dgxspark_vllm._fleet.live_fleet import Agent, Fleet
from dgxspark_vllm._fleet.live_server import Live, Server
from dgxspark_vllm._runtime import engine_client
from dgxspark_vllm._runtime.systemd import journal

NOBODY = 65534
SECONDS, SECONDS_OF_HOST = 5.0, 0.2
"""Between two looks at a fleet that somebody reads: at least, and for each Spark, which bounds the load of the server."""

say = journal("status page", errors=True)


def main() -> int:
    """Serve until it is stopped."""
    parser = argparse.ArgumentParser(prog="spark-status-page", description="Serves the live page of a fleet.")
    parser.add_argument(
        "settings", type=Path, help="JSON with listen, port, key_file, agents, checks, stale_seconds and prometheus"
    )
    parser.add_argument(
        "--page",
        type=Path,
        default=Path("/usr/local/libexec/dgxspark/live"),
        help="files of the page (default: %(default)s)",
    )
    args = parser.parse_args()
    try:
        settings = json.loads(args.settings.read_text(encoding="utf-8"))
        agents = [
            Agent(str(row["host"]), str(row["url"]), engine_client.read_api_key(row.get("key_file")))
            for row in settings["agents"]
        ]
        prometheus = str(settings.get("prometheus") or "")
        fleet = Fleet(agents, Path(settings["checks"]), float(settings["stale_seconds"]), prometheus)
        key = engine_client.read_api_key(settings.get("key_file"))
        address, names = (str(settings["listen"]), int(settings["port"])), [str(settings["host"])]
        has_actions = bool(settings.get("actions") and key)
    except (OSError, ValueError, LookupError, TypeError, engine_client.Problem) as error:
        say(f"{args.settings} cannot be used ({error}); run site.yml again", 3)
        return 2
    seconds = max(SECONDS, SECONDS_OF_HOST * len(agents))
    live = Live(fleet.look, fleet.checks, fleet.act if has_actions else None, seconds, lambda: fleet.alarms)
    try:
        server = Server(address, live, args.page, key, names)
    except (OSError, ValueError) as error:
        say(f"{address[0]}, port {address[1]}: {error}; see who has it: ss -ltnp", 3)
        return 1
    if os.getuid() == 0:  # it goes on as nobody
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    server.serve()
    say(f"serves {len(agents)} Sparks on {address[0]}, port {server.server_address[1]}")
    while True:
        try:
            live.tick()
        except Exception as error:  # an agent may answer anything; the page stays
            say(f"warning: a look failed: {error!r}", 4)
        time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
