# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find unmanaged launches of vLLM on a host: the section C(adoption) of M(dgxspark.vllm.spark_info). Changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._host import docker, machine
from .._host.host_view import HostView, Request
from .._runtime import hostmem, state_file
from . import unmanaged

UNITS = Path("/etc/systemd/system")
NOTES = Path("/var/lib/dgxspark/adopted")
PROC_ROOT = "/"
"""Where processes are read; a simulated Spark has its own memory there, and no processes."""


def section(view: HostView, _request: Request) -> dict[str, Any]:
    """Return C({launches, taken, available_gib}); C(adopted) and C(lines) are left to the controller, which knows the plan.

    :raises NoAnswer: where docker or systemctl do not answer
    """
    try:
        available = round(hostmem.mem_available_gib(hostmem.read_meminfo(view.root)), 3)
    except OSError:
        available = None
    return {
        "launches": launches_of(view),
        "taken": taken(view),
        "available_gib": available,
        "adopted": [],
        "lines": [],
    }


def unit_files() -> dict[str, str]:
    """Return the texts of the unit files that administrators wrote, by name."""
    texts = {}
    for file in UNITS.glob("*.service"):
        try:
            if file.is_file() and not file.is_symlink():
                texts[file.name] = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    return texts


def launches_of(view: HostView) -> list[dict[str, Any]]:
    """Return the launches of vLLM that this collection did not make: of running containers, and of units without one."""
    running = [box for box in view.inspected_containers() if (box.get("State") or {}).get("Running")]
    boxes = [box for box in running if unmanaged.is_unmanaged(box) and unmanaged.is_engine(box)]
    images = inspect_images(view, sorted({str(box.get("Image")) for box in boxes}))
    unit_texts = unit_files()
    launches = [
        {
            "name": str(box.get("Name") or "").lstrip("/"),
            "container": str(box.get("Name") or "").lstrip("/"),
            "argv": unmanaged.launch_of(box, images.get(str(box.get("Image"))) or {}),
            "unit": unmanaged.owner_of(box, unit_texts),
            "project": unmanaged.compose_project(box),
            "restart": str(((box.get("HostConfig") or {}).get("RestartPolicy") or {}).get("Name") or "no"),
            "removed": bool((box.get("HostConfig") or {}).get("AutoRemove")),
        }
        for box in boxes
    ]
    services = machine.read_services(view.settings)
    programs = unmanaged.programs_of(machine.read_processes(PROC_ROOT), [str(box.get("Id")) for box in running])
    return launches + [program for program in programs if not unmanaged.is_own(program["unit"], services)]


def inspect_images(view: HostView, ids: list[str]) -> dict[str, dict[str, Any]]:
    """Return C(docker image inspect) of images, by id; missing ones are left out."""
    return {str(image.get("Id")): image for image in docker.inspect(view.run, "image", ids)}


def taken(view: HostView) -> list[dict[str, Any]]:
    """Return the notes of M(dgxspark.vllm.service_state) about launches that it stopped, and whether each could come back (C(there))."""
    notes = [note for note in map(read_note, sorted(NOTES.glob("*.json"))) if note["name"]]
    unit_names = sorted({note["unit"] for note in notes if note["unit"]})
    loaded = {unit["name"] for unit in view.named_units(unit_names) if unit["load_state"] == "loaded"}
    names = {str(box.get("Name") or "").lstrip("/") for box in view.inspected_containers()} if notes else set()
    for note in notes:
        # A unit makes its container anew.
        note["there"] = (
            note["unit"] in loaded or bool(note["path"] and Path(note["path"]).is_file())
            if note["unit"]
            else note["container"] in names
        )
    return notes


def read_note(file: Path) -> dict[str, Any]:
    """Return one note; an unreadable one has an empty name."""
    note = state_file.read(file) or {}
    texts = {key: str(note.get(key) or "") for key in ("container", "unit", "path", "service", "url")}
    return {"name": texts["container"] or texts["unit"], **texts}
