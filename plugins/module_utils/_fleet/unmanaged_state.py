# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop a container or unit of vLLM that the collection did not create, and restore its former state.

The state is noted on the host before any change. Launches of the collection and other programs are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._host import docker, machine, systemctl, units
from .._host.host_view import HostView
from .._plan import verbs
from .._runtime import state_file
from .._runtime.command import NoAnswer, Run
from . import unmanaged

STOP_SECONDS = 60


class Refused(Exception):
    """The launch is not touched, or a step failed; the text names the reason."""


@dataclass
class Launch:
    """A container or a unit on the host.

    container: its C(docker inspect), None without one. unit: an entry of C(units.ask), None without one.
    """

    run: Run
    name: str
    container_name: str
    unit_name: str
    container: Mapping[str, Any] | None
    unit: Mapping[str, Any] | None

    @property
    def note(self) -> Path:
        """The file of its note."""
        return Path(unmanaged.NOTES) / f"{self.name.replace('/', '_')}.json"

    def is_running(self) -> bool:
        """Whether it runs."""
        if self.container_name:
            return self.container is not None and bool((self.container.get("State") or {}).get("Running"))
        return self.unit is not None and self.unit["active_state"] in verbs.RUNNING

    def held(self, ask: Run, root: str) -> tuple[float, list[int]]:
        """Return the GPU memory of its processes, GiB, and their ids. Raises C(NoAnswer)."""
        view = HostView(ask, root)
        apps = (view.gpu(view.containers()) or {}).get("processes") or []
        if self.container_name:
            return verbs.held_by([self.container_name], apps)
        pids = {process["pid"] for process in _processes(self.unit_name)}
        return verbs.held_by([self.name], [{**app, "container": self.name} for app in apps if app["pid"] in pids])

    def stop(self, service: str, url: str) -> None:
        """Note its state, and stop it until C(restore).

        :raises Refused: for an incomplete state, and for a failing program
        """
        enabled, path = False, ""
        if self.unit is not None:
            if self.unit["enabled"] is None:
                why = "systemd does not say whether it starts at boot, so it could not be restored later, and was not stopped"
                raise Refused(f"{self.name}: {why}")
            enabled = self.unit["enabled"]
            # disable removes the link to a unit file elsewhere.
            path = str(Path(self.unit["path"]).resolve()) if self.unit["path"] else ""
        note = {
            "container": self.container_name,
            "unit": self.unit_name,
            "enabled": enabled,
            "path": path,
            "restart": ((self.container or {}).get("HostConfig") or {}).get("RestartPolicy") or {},
            "service": service,
            "url": url,
        }
        # Noted first, to undo an interrupted run.
        state_file.write(self.note, note)
        if self.unit_name:
            self._systemctl("disable", self.unit_name if enabled else "")
            self._systemctl("stop", self.unit_name)
        else:
            self._docker("update", "--restart=no", "--", self.container_name)
            self._docker("stop", "--time", str(STOP_SECONDS), "--", self.container_name)

    def former_state(self) -> dict[str, Any] | None:
        """Return the note of C(stop), None for a running launch without a note. Raises C(Refused) for a stopped launch without a note."""
        note = state_file.read(self.note)
        if note is None and not self.is_running():
            why = f"its earlier state is not recorded on this host ({self.note}), so it is not restored. Start it yourself."
            raise Refused(f"{self.name}: {why}")
        return note

    def restore(self, note: Mapping[str, Any]) -> None:
        """Start it with its former settings, and remove its note; raises C(Refused) for a failing program. note: of C(former_state)."""
        if note["unit"]:
            self._systemctl("enable", (note["path"] or note["unit"]) if note["enabled"] else "")
            self._systemctl("start", note["unit"], "--no-block")
        else:
            policy = note["restart"]
            kind, retries = str(policy.get("Name") or "no"), policy.get("MaximumRetryCount") or 0
            limit = f":{retries}" if kind == "on-failure" and retries else ""
            self._docker("update", f"--restart={kind}{limit}", "--", self.container_name)
            self._docker("start", "--", self.container_name)
        self.note.unlink(missing_ok=True)

    def _docker(self, *words: str) -> None:
        why = docker.act(self.run, *words)
        if why:
            raise Refused(f"{self.name}: docker {' '.join(words)} failed: {why}")

    def _systemctl(self, verb: str, unit: str, *options: str) -> None:
        why = systemctl.act(self.run, verb, [unit] if unit else [], *options)
        if why:
            raise Refused(f"{self.name}: systemctl {verb} {unit} failed: {why}")


def _processes(unit: str) -> list[Mapping[str, Any]]:
    processes = machine.read_processes(unmanaged.PROC_ROOT)
    return [process for process in processes if unmanaged.unit_of(process["cgroup"])[0] == unit]


def _is_engine(launch: Launch) -> bool:
    """Tell whether a launch runs vLLM and is not of the collection; a stopped unit is believed."""
    if launch.container is not None:
        return not unmanaged.is_managed(launch.container) and unmanaged.is_engine(launch.container)
    if not launch.container_name and launch.is_running():
        return any(unmanaged.engine_words(process["words"]) for process in _processes(launch.unit_name))
    return True


def find(run: Run, container: str, unit: str, settings: str) -> Launch:
    """Return a launch that the collection did not create.

    :param container: its name; empty for a unit that runs vLLM without one
    :raises Refused: for a missing container, a launch of the collection, and other programs
    :raises NoAnswer: if docker or systemd do not answer
    """
    name = container or unit
    box = next(iter(docker.inspect(run, "container", [container] if container else [])), None)
    state = next(iter(units.ask(run, [unit])), None) if unit else None
    if unit and (state is None or not state["active_state"]):
        raise NoAnswer("systemctl", f"{name}: systemd does not say whether it runs")
    launch = Launch(run, name, container, unit, box, state)
    if container and box is None and not unit:
        fix = f"A removed container cannot be restored; remove its record: {launch.note}"
        raise Refused(f"{name}: there is no such container on this host. {fix}")
    if not _is_engine(launch) or unmanaged.is_own_unit(unit, machine.read_services(settings)):
        raise Refused(f"{name} is left alone: it is of this collection, or no launch of vLLM.")
    return launch
