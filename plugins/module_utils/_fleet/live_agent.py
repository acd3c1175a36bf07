# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live loop of the agent: serves the page and the document of one Spark.

It runs in the process of the slow loops, so nothing here delays a look at the memory.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._agent import services
from .._common.foreign_text import printable
from .._host import systemctl, units
from .._runtime import command, engine_client, pins, state_file
from .._runtime.command import NoAnswer
from .._runtime.systemd import journal
from . import live_host, live_status
from .live_page import VERBS
from .live_server import IDLE_SECONDS, Live, Server
from .live_status import Spark

say = journal("live")
SECONDS = 60.0
DRAIN_SECONDS = 300
"""Running requests have so long to end before a stop, as in stop.yml."""


class LiveAgent:
    """The page of one Spark."""

    def __init__(self, etc: Path, run_dir: Path, state_dir: Path, unit_dir: str, gateway: Path, page: Path) -> None:
        """Read the settings; the address is bound by C(tick). Raises SettingsError if the settings or the key cannot be read.

        etc, run_dir, state_dir, unit_dir, page: folders of settings, of starts and pins, of receipts and the watchdog's state, of unit files, and of files
        of the page. gateway: program that drains backends of a gateway on this host.
        """
        self.settings = services.load_settings(etc, services.LIVE)
        self.page = page
        self.host = live_host.LiveHost(self.settings, etc, state_dir, run_dir, unit_dir)
        try:
            self.key = engine_client.read_api_key(self.settings.get("api_key_file"))
        except engine_client.Problem as problem:
            raise services.SettingsError(f"{problem.message}; run site.yml again") from problem
        actions = Actions(self.host.name, self.host.planned, etc, run_dir, gateway, say)
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


class Actions:
    """Carries out one action at a time: start, stop, pin and drain a service, each as the playbook of that name does it.

    Each action has a line in the journal before it is carried out. Ranks of a cluster are refused: their playbooks act on all hosts together.
    """

    def __init__(
        self,
        host: str,
        planned: Sequence[Mapping[str, Any]],
        etc: Path,
        run_dir: Path,
        gateway: Path,
        say: Callable[..., None],
    ) -> None:
        """Set the host and its planned services; folders and gateway as for C(LiveAgent). say: writes a line of the journal."""
        self.host, self.etc, self.run_dir, self.gateway, self.say = host, etc, run_dir, gateway, say
        self.planned = {str(service["name"]): service for service in planned}
        self.run = command.reader(SECONDS, math.inf)
        self.lock = threading.Lock()

    def act(self, request: Mapping[str, str]) -> str:
        """Carry out an action; returns a sentence. Raises ValueError with the reason why it cannot be.

        request: C({verb, host, service, reader}), checked here.
        """
        verb, name = request["verb"], request["service"]
        service = self.planned.get(name)
        if verb not in VERBS:
            raise ValueError(f"the action {verb!r} is not known")
        if request["host"] != self.host or service is None:
            raise ValueError(f"{self.host} has no service {name!r}")
        if service.get("cluster"):
            raise ValueError(f"{name} runs on several hosts: use the playbook {verb}.yml")
        if verb in ("warm", "cold", "auto") and service.get("state") != "on_demand":
            raise ValueError(f"{name} is not on demand, so it cannot be pinned")
        if not self.lock.acquire(blocking=False):
            raise ValueError("another action is under way")
        try:
            self.say(f"{request['reader']} asks on the live page to {verb} {name}", 5)
            text = self._carry_out(verb, name, service)
        except ValueError as error:
            self.say(f"{verb} {name}: {error}", 4)
            raise
        finally:
            self.lock.release()
        self.say(f"{verb} {name}: {text}", 5)
        return text

    def _carry_out(self, verb: str, name: str, service: Mapping[str, Any]) -> str:
        unit, is_on_demand = str(service["unit"]), service.get("state") == "on_demand"
        if verb == "start":
            self._refuse_excluded(name)
            if is_on_demand:
                return self._pin(name, unit, pins.WARM)
            self._systemctl("reset-failed", unit, allowed=(0, 1))
            self._systemctl("start", unit, "--no-block")
            self._drain("admit", name)
            return "it starts"
        if verb == "stop":
            self._drain("drain", name)
            if is_on_demand:
                self._pin(name, unit, pins.COLD)
            self._systemctl("stop", unit, "--no-block")
            return "it stops"
        if verb in ("warm", "cold", "auto"):
            return self._pin(name, unit, "" if verb == "auto" else verb)
        return self._drain(verb, name) or "no gateway runs on this host"

    def _refuse_excluded(self, name: str) -> None:
        """Raise ValueError if another service of its exclusive set runs, as service_state does."""
        from .._plan import verbs

        settings = {path.stem: state_file.read(path) or {} for path in sorted((self.etc / "services").glob("*.json"))}
        units_of_others = [f"spark-{other}.service" for other in settings if other != name]
        try:
            shown = units.ask(self.run, units_of_others) if units_of_others else []
        except NoAnswer as nothing:
            raise ValueError(f"nothing was started: {nothing}") from nothing
        running = [unit["name"] for unit in shown if unit["active_state"] in verbs.RUNNING]
        active = [name[len("spark-") : -len(".service")] for name in running]
        problems = verbs.excluded(settings, active, [name])
        if problems:
            raise ValueError("; ".join(problems))

    def _pin(self, name: str, unit: str, word: str) -> str:
        """Pin a service on demand; the program that makes room for it starts or stops it."""
        if word == pins.WARM:
            self._systemctl("reset-failed", unit, allowed=(0, 1))
        try:
            pins.write(self.run_dir / pins.FOLDER, name, word)
        except OSError as error:
            raise ValueError(f"the pin cannot be written: {error}") from error
        return f"it is kept {word} until the next boot" if word else "requests start it and idleness stops it"

    def _systemctl(self, verb: str, unit: str, *options: str, allowed: tuple[int, ...] = (0,)) -> None:
        try:
            why = systemctl.act(self.run, verb, [unit], *options, allowed=allowed)
        except NoAnswer as nothing:
            why = str(nothing)
        if why:
            raise ValueError(f"systemctl {verb} failed: {why[:200]}")

    def _drain(self, verb: str, name: str) -> str:
        """Drain or admit a backend of the gateway on this host; returns a sentence, empty without a gateway."""
        if not self.gateway.exists():
            return ""
        key = f"{self.host}/{name}"
        words = ["--timeout", str(DRAIN_SECONDS)] if verb == "drain" else []
        answer = command.run([sys.executable, str(self.gateway), "--json", verb, key, *words], DRAIN_SECONDS + SECONDS)
        if "has no backend" in answer.err:
            return "the gateway has no such backend"
        if answer.state != command.FINISHED or answer.rc:
            raise ValueError(f"the gateway did not {verb} {key}: {(answer.why or answer.err).strip()[:200]}")
        return "the gateway gives it no new requests" if verb == "drain" else "the gateway gives it requests"
