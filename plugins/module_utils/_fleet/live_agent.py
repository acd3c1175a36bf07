# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live loop of the agent: serves the page and the document of one Spark.

It runs in the process of the slow loops, so nothing here delays a look at the memory.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from .._agent import services
from .._common.foreign_text import printable
from .._runtime import engine_client
from .._runtime.systemd import journal
from . import live_actions, live_host, live_status
from .live_server import IDLE_SECONDS, Live, Server
from .live_status import Spark

say = journal("live")


class LiveAgent:
    """The page of one Spark."""

    def __init__(self, etc: Path, run_dir: Path, state_dir: Path, unit_dir: str, gateway: Path, page: Path) -> None:
        """Read the settings; the address is bound by C(tick).

        :param etc: folder of settings
        :param run_dir: folder of records of starts, and of pins
        :param state_dir: folder of receipts and of the state of the watchdog
        :param unit_dir: folder of unit files
        :param gateway: program that drains backends of a gateway on this host
        :param page: folder with the files of the page
        :raises SettingsError: if the settings or the key cannot be read
        """
        self.settings = services.load_settings(etc, services.LIVE)
        self.page = page
        self.host = live_host.LiveHost(self.settings, etc, state_dir, run_dir, unit_dir)
        try:
            self.key = engine_client.read_api_key(self.settings.get("api_key_file"))
        except engine_client.Problem as problem:
            raise services.SettingsError(f"{problem.message}; run site.yml again") from problem
        actions = live_actions.Actions(self.host.name, self.host.planned, etc, run_dir, gateway, say)
        has_actions = bool(self.settings.get("actions") and self.key)
        self.live = Live(self.look, act=actions.act if has_actions else None)
        self.server: Server | None = None
        self.error = ""

    def look(self, is_read: bool) -> list[Spark]:
        """Return this Spark."""
        try:
            document = live_status.parse(self.host.look(is_read), self.host.name)
        except Exception as error:  # the boundary of a look: programs and files of the host may say anything
            return [Spark(self.host.name, None, f"the agent cannot measure this host: {printable(repr(error))}")]
        return [Spark(self.host.name, document, at=time.time())]

    def tick(self) -> None:
        """Bind the address if it is not bound yet, and look if it is time to."""
        if self.server is None:
            self._bind()
        self.live.tick()

    def _bind(self) -> None:
        """Serve; a taken or missing address is logged once and tried again."""
        address = str(self.settings.get("listen") or "127.0.0.1"), int(self.settings.get("port") or 0)
        try:
            self.server = Server(address, self.live, self.page, self.key, [self.host.name], self.document)
        except (OSError, ValueError) as error:
            if str(error) != self.error:
                say(f"warning: the page cannot be served on {address[0]}, port {address[1]}: {error}", 4)
            self.error = str(error)
            return
        self.server.serve()
        say(f"serves the page of this Spark on {address[0]}, port {self.server.server_address[1]}")

    def document(self, live: Live, is_idle: bool) -> dict[str, Any]:
        """Return the document with its age, for a fleet monitor. is_idle: nobody reads its page."""
        live.update(IDLE_SECONDS / 2 if is_idle else live.seconds)
        spark = live.sparks[0]
        age = round(max(time.monotonic() - live.looked_at, 0.0), 1)
        return {**spark.document, "age_seconds": age} if spark.document else {"error": spark.why}
