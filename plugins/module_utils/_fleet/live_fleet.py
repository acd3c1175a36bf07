# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the agents of a fleet and the alarms of Prometheus for the live page of the fleet monitor, and pass actions on to agents."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .._common.foreign_text import Untrusted, decode_text, parse_json, printable
from .._runtime import http_client, state_file
from . import live_alarms, live_status
from .live_alarms import Alarms
from .live_status import Spark

AT_ONCE = 24
SECONDS = 6.0
"""That one agent may take; nvidia-smi takes a second on a busy host."""
ACTION_SECONDS = 400.0
"""Longer than an agent drains a service."""
MOST_BYTES = 1024 * 1024
CHECKS_AGE = "the fleet monitor"
"""Name of the endpoint that stands for the monitor itself."""


@dataclass(frozen=True)
class Agent:
    """The agent of a Spark. key: empty for none."""

    host: str
    url: str
    key: str = ""

    def headers(self) -> dict[str, str]:
        """Return the headers of a request."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


class Fleet:
    """The agents of a fleet with their last documents."""

    def __init__(self, agents: Sequence[Agent], checks: Path, stale_seconds: float, prometheus: str = "") -> None:
        """Set the agents, the file with the results of the fleet monitor, the age from which these are old, and the address of a Prometheus, if any."""
        self.agents = {agent.host: agent for agent in agents}
        self.checks_file, self.stale_seconds = checks, stale_seconds
        self.prometheus = prometheus
        self.alarms: Alarms | None = None
        self.last: dict[str, Spark] = {}
        self.pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="agent")

    def look(self, is_read: bool) -> list[Spark]:
        """Return all Sparks; one without an answer keeps its last document, with the reason."""
        asked = self.pool.submit(self._ask_alarms) if is_read and self.prometheus else None
        answers = self.pool.map(lambda agent: self._ask(agent, is_read), self.agents.values())
        self.last = {spark.host: spark for spark in answers}
        self.alarms = asked.result() if asked else None
        return list(self.last.values())

    def _ask(self, agent: Agent, is_read: bool) -> Spark:
        """Return a Spark as its agent describes it now."""
        before = self.last.get(agent.host) or Spark(agent.host, None)
        try:
            url = f"{agent.url}/status.json{'' if is_read else '?idle'}"
            value = _fetch_json(url, "its agent answers ", f"the agent of {agent.host}", MOST_BYTES, agent.headers())
            if isinstance(value, dict) and "error" in value:
                raise OSError(str(value["error"]))
            document = live_status.parse(value, agent.host)
        except (OSError, ValueError, Untrusted) as error:
            why = f"its agent does not answer: {' '.join(printable(str(error)).split())[:200]}"
            return Spark(agent.host, before.document, why, before.at)
        return Spark(agent.host, document, at=time.time() - min(document.get("age_seconds") or 0.0, 3600.0))

    def _ask_alarms(self) -> Alarms:
        """Return the alarms of Prometheus; without a valid answer they are unknown."""
        try:
            answer = _fetch_json(f"{self.prometheus}{live_alarms.PATH}", "", "Prometheus", 4 * MOST_BYTES)
            return live_alarms.parse(answer, time.time())
        except (OSError, ValueError, Untrusted) as error:
            return Alarms(why=f"Prometheus gives no answer: {' '.join(printable(str(error)).split())[:200]}")

    def checks(self) -> dict[str, Mapping[str, Any]]:
        """Return the last results of the fleet monitor by endpoint, with an endpoint that fails if they are old."""
        saved = state_file.read(self.checks_file)
        if saved is None and self.checks_file.exists():
            return {CHECKS_AGE: _failed(f"its results cannot be read: {self.checks_file}")}
        saved = saved or {}
        endpoints, at = saved.get("endpoints"), saved.get("at")
        endpoints = endpoints if isinstance(endpoints, dict) else {}
        checks: dict[str, Mapping[str, Any]] = {
            str(key): row for key, row in endpoints.items() if isinstance(row, dict)
        }
        if isinstance(at, (int, float)) and time.time() - at > self.stale_seconds:
            moment = datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
            checks[CHECKS_AGE] = _failed(f"it has not checked the endpoints since {moment}")
        return checks

    def act(self, request: Mapping[str, str]) -> str:
        """Pass an action on to the agent of its host; returns its sentence. Raises ValueError with its reason."""
        agent = self.agents.get(request["host"])
        if agent is None:
            raise ValueError(f"{request['host']} has no agent that this monitor reads")
        headers = {**agent.headers(), "Content-Type": "application/json"}
        body = json.dumps({key: request[key] for key in ("verb", "host", "service")}).encode()
        try:
            reply = http_client.fetch(f"{agent.url}/act", "POST", headers, body, ACTION_SECONDS, most_bytes=MOST_BYTES)
            text = decode_text(reply.body)
            if reply.status != 200:
                raise ValueError(text.strip()[:300] or f"HTTP {reply.status}")
            return str(parse_json(text, "the agent")["text"])[:300]
        except (OSError, LookupError, TypeError) as error:
            raise ValueError(f"the agent of {agent.host} does not answer: {printable(str(error))[:200]}") from error


def _fetch_json(url: str, prefix: str, where: str, most_bytes: int, headers: Mapping[str, str] | None = None) -> Any:
    """Return JSON of an address. Raises OSError, also for another status than 200, and ValueError."""
    reply = http_client.fetch(url, headers=headers, timeout=SECONDS, most_bytes=most_bytes)
    if reply.status != 200:
        raise OSError(f"{prefix}HTTP {reply.status}: {decode_text(reply.body[:200]).strip()}")
    return parse_json(reply.body.decode("utf-8", "replace"), where)


def _failed(error: str) -> dict[str, Any]:
    """Return a check that stands for the monitor itself."""
    return {"url": "", "ok": False, "error": error, "hint": "journalctl -eu spark-fleet-monitor on its host"}
