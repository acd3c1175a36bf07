# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find unmanaged launches of vLLM on a host: the section C(adoption) of M(dgxspark.vllm.spark_info). Changes nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from .._host import docker, machine
from .._host.container_launch import launch_of
from .._host.host_view import HostView, Request
from .._runtime import hostmem, state_file
from . import unmanaged

UNITS = Path("/etc/systemd/system")
"""Unit files that administrators wrote."""


def section(view: HostView, _request: Request) -> dict[str, Any]:
    """Return C({launches, taken, available_gib}); C(adopted) and C(lines) are left to the controller, which knows the plan.

    :raises NoAnswer: where docker or systemctl do not answer
    """
    try:
        available_gib = round(hostmem.mem_available_gib(hostmem.read_meminfo(view.root)), 3)
    except OSError:
        available_gib = None
    return {
        "launches": launches_of(view),
        "taken": stopped_launches(view),
        "available_gib": available_gib,
        "adopted": [],
        "lines": [],
    }


def launches_of(view: HostView) -> list[dict[str, Any]]:
    """Return the unmanaged launches of vLLM: running containers, and units without a container."""
    running = [container for container in view.inspected_containers() if (container.get("State") or {}).get("Running")]
    engines = [box for box in running if unmanaged.is_unmanaged(box) and unmanaged.is_engine(box)]
    image_ids = sorted({str(container.get("Image")) for container in engines})
    images = {str(image.get("Id")): image for image in docker.inspect(view.run, "image", image_ids)}
    unit_texts = {}
    for file in UNITS.glob("*.service"):
        with contextlib.suppress(OSError):
            if file.is_file() and not file.is_symlink():
                unit_texts[file.name] = file.read_text(encoding="utf-8", errors="replace")
    launches = [_launch(container, images.get(str(container.get("Image"))) or {}, unit_texts) for container in engines]
    services = machine.read_services(view.settings)
    container_ids = [str(container.get("Id")) for container in running]
    programs = unmanaged.programs_of(machine.read_processes(unmanaged.PROC_ROOT), container_ids)
    return launches + [program for program in programs if not unmanaged.is_own_unit(program["unit"], services)]


def _launch(container: dict[str, Any], image: dict[str, Any], unit_texts: dict[str, str]) -> dict[str, Any]:
    settings, name = container.get("HostConfig") or {}, unmanaged.name_of(container)
    return {
        "name": name,
        "container": name,
        "argv": launch_of(container, image),
        "unit": unmanaged.owner_of(container, unit_texts),
        # It would start the container again.
        "project": str(unmanaged.labels(container).get("com.docker.compose.project") or ""),
        "restart": str((settings.get("RestartPolicy") or {}).get("Name") or "no"),
        "removed": bool(settings.get("AutoRemove")),
    }


def stopped_launches(view: HostView) -> list[dict[str, Any]]:
    """Return the notes of M(dgxspark.vllm.service_state) about stopped launches, and whether each can come back (C(there))."""
    notes = [note for note in map(_read_note, sorted(Path(unmanaged.NOTES).glob("*.json"))) if note["name"]]
    unit_names = sorted({note["unit"] for note in notes if note["unit"]})
    loaded = {unit["name"] for unit in view.named_units(unit_names) if unit["load_state"] == "loaded"}
    containers = {unmanaged.name_of(container) for container in view.inspected_containers()} if notes else set()
    for note in notes:
        if note["unit"]:  # it makes its container anew
            note["there"] = note["unit"] in loaded or bool(note["path"] and Path(note["path"]).is_file())
        else:
            note["there"] = note["container"] in containers
    return notes


def _read_note(file: Path) -> dict[str, Any]:
    """Return one note; an unreadable one has an empty name."""
    note = state_file.read(file) or {}
    texts = {key: str(note.get(key) or "") for key in ("container", "unit", "path", "service", "url")}
    return {"name": texts["container"] or texts["unit"], **texts}
