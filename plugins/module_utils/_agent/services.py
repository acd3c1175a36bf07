# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What memory guard and watchdog both read: the model servers of the host, their units, and the processes of their containers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._common.foreign_text import decode_text
from .._host.units import read_properties, show_command
from .._runtime import command, engine_client, state_file

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
GUARD, WATCHDOG, EXPORTERS, LIVE = "guard", "watchdog", "exporters", "live"
LOOPS = (GUARD, WATCHDOG, EXPORTERS, LIVE)
"""Loops of the agent, each named after the role that deploys its settings file."""
CONTAINER_LIST = ["docker", "ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"]
UNIT_PROPERTIES = ("Id", "ActiveState", "InvocationID", "ActiveEnterTimestampMonotonic")
PROC = Path("/proc")


def settings_path(etc: Path, loop: str) -> Path:
    """Return the settings file of a loop; the loop runs if the file exists."""
    return etc / "agent" / f"{loop}.json"


class SettingsError(Exception):
    """The settings of a loop cannot be read; the text has the fix."""


def load_settings(etc: Path, loop: str) -> dict[str, Any]:
    """Return the settings of a loop. Raises SettingsError."""
    path = settings_path(etc, loop)
    settings = state_file.read(path)
    if settings is None:
        raise SettingsError(f"{path} cannot be read; run site.yml again")
    return settings


@dataclass(frozen=True)
class Service:
    """A model server of this host, from its settings file. rank: of a model over several hosts, else 0."""

    name: str
    unit: str
    containers: tuple[str, ...]
    url: str = ""
    model: str = ""
    api_key_file: str | None = None
    rank: int = 0
    on_demand: bool = False
    speech: bool = False

    def client(self) -> engine_client.Client:
        """Return a client of its API."""
        return engine_client.Client(self.url, engine_client.read_api_key(self.api_key_file), self.api_key_file or "")


def read_services(folder: Path, speech: bool = False) -> dict[str, Service]:
    """Return the servers with a settings file in a folder, by name. speech: whether they are speech servers."""
    services = {}
    for path in sorted(folder.glob("*.json")):
        settings = state_file.read(path)
        if not settings or not NAME.match(path.stem) or not settings.get("unit"):
            continue
        rank = settings.get("rank") or {}
        # With Ray, the workers of the engine run in the container of Ray.
        containers = tuple(str(part["container"]) for part in rank.get("parts") or [])
        services[path.stem] = Service(
            path.stem,
            str(settings["unit"]),
            containers or (str(settings.get("container") or f"spark-{path.stem}"),),
            str(settings.get("url") or ""),
            str(settings.get("model") or ""),
            settings.get("api_key_file"),
            int(rank.get("rank") or 0),
            bool(settings.get("on_demand")),
            speech,
        )
    return services


def unit_states(units: Collection[str], seconds: float) -> dict[str, dict[str, str]] | None:
    """Return properties of units by name; None if systemd does not answer. seconds: that it may take."""
    if not units:
        return {}
    answer = command.run(show_command(list(units), UNIT_PROPERTIES), seconds)
    if answer.state != command.FINISHED or answer.rc != 0:
        return None
    return {properties.get("Id", ""): properties for properties in read_properties(answer.out)}


def container_ids(names: Collection[str], seconds: float) -> dict[str, str] | None:
    """Return the names of running containers by id; None if Docker does not answer."""
    if not names:
        return {}
    answer = command.run(CONTAINER_LIST, seconds)
    if answer.state == command.MISSING:
        return {}
    if answer.state != command.FINISHED or answer.rc != 0:
        return None
    pairs = [line.split() for line in answer.out.splitlines()]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[1] in names}


def read_text(path: Path) -> str:
    """Return the text of a small file; empty if it cannot be read."""
    try:
        return decode_text(path.read_bytes())
    except OSError:
        return ""


def process_ids() -> Iterator[int]:
    """Yield the process ids of the host."""
    for path in PROC.iterdir():
        if path.name.isdigit():
            yield int(path.name)


@contextlib.contextmanager
def logged(say: Callable[[str, int], None], text: str) -> Iterator[None]:
    """Log an exception as a warning, and go on. text: what could not be done."""
    try:
        yield
    except Exception as error:
        say(f"warning: {text}: {error!r}", 3)
