# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find containers and units of vLLM that the collection did not make: the section C(adoption) of M(dgxspark.vllm.spark_info). Changes nothing.

Only recognised launches are ever stopped: running containers without the collection's labels, and units without a container, that
run vLLM's server.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._common.redaction import without_secrets
from .._host import docker, machine
from .._host.container_launch import launch_of
from .._host.docker_facts import MANAGED_LABEL
from .._host.host_view import HostView, Request
from .._runtime import hostmem, state_file

NOTES = "/var/lib/dgxspark/adopted"
"""Former states of stopped launches."""
PROC_ROOT = "/"
"""Root of C(/proc); a simulated Spark has its own memory figures, but no processes."""
ENGINE = re.compile(r"vllm\.entrypoints|(?:^|[/ ])vllm serve\b")
SERVER = re.compile(r"vllm\.entrypoints\.\S+")
"""The server as a Python module."""
UNITS = Path("/etc/systemd/system")
"""Unit files that administrators wrote."""
CLIENTS = ("docker", "podman", "nerdctl", "sudo", "ssh", "systemd-run")
"""Programs that are not the server although its command follows theirs."""


def name_of(container: Mapping[str, Any]) -> str:
    """Return the name of a container of C(docker inspect)."""
    return str(container.get("Name") or "").lstrip("/")


def labels(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the labels of a container of C(docker inspect)."""
    names: Mapping[str, Any] = (container.get("Config") or {}).get("Labels") or {}
    return names


def is_managed(container: Mapping[str, Any]) -> bool:
    """Tell whether the collection made a container."""
    return str(labels(container).get(MANAGED_LABEL, "")).lower() == "true"


def is_unmanaged(container: Mapping[str, Any]) -> bool:
    """Tell whether a container runs and was made by somebody else."""
    is_running = bool((container.get("State") or {}).get("Running"))
    return is_running and not is_managed(container) and not labels(container).get("dgxspark.fetch")


def is_engine(container: Mapping[str, Any]) -> bool:
    """Tell whether a container runs vLLM's server."""
    config = container.get("Config") or {}
    words = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
    return bool(ENGINE.search(" ".join(str(word) for word in words)))


def engine_words(words: Sequence[str]) -> list[str]:
    """Return the command of vLLM's server in the command line of a process, empty for any other process.

    A process with the command in one word, such as C(bash -c), only starts the server.
    """
    if not words or words[0].rpartition("/")[2] in CLIENTS:
        return []
    for position, word in enumerate(words[:4]):
        following = words[position + 1] if len(words) > position + 1 else ""
        if word.rpartition("/")[2] == "vllm" and following == "serve":
            return ["vllm", *words[position + 1 :]]
        if word == "-m" and SERVER.fullmatch(following):
            return ["python3", *words[position:]]
    return []


def unit_of(cgroup: str) -> tuple[str, str]:
    """Return the system unit of a process, or the reason without one. cgroup: text of C(/proc/PID/cgroup)."""
    lines = [line.split(":", 2) for line in cgroup.splitlines() if line.count(":") >= 2]
    # The line of cgroup v2 and systemd's hierarchy name the unit; other hierarchies of v1 may not.
    paths = [path for _number, controllers, path in lines if controllers in ("", "name=systemd")]
    parts = [part for path in paths for part in path.split("/") if part]
    if any(part.startswith("user@") for part in parts):
        return "", "a unit of a user runs it, which is left to its user"
    unit = next((part for part in reversed(parts) if part.endswith(".service")), "")
    return (unit, "") if unit else ("", "no unit runs it: it was started in a session, and could not come back")


def programs_of(processes: Sequence[Mapping[str, Any]], container_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the servers of vLLM outside of containers, one for each unit, as launches of the section C(adoption).

    :param processes: C([{pid, words, cgroup}])
    """
    launches: dict[str, dict[str, Any]] = {}
    for process in sorted(processes, key=lambda process: int(process["pid"])):
        words = engine_words(process["words"])
        if not words or any(container_id in process["cgroup"] for container_id in container_ids):
            continue
        unit, why = unit_of(process["cgroup"])
        launch = {
            "name": unit or f"process {process['pid']}",
            "container": "",
            "unit": unit,
            "argv": without_secrets(words),
            "alone": why,
            "project": "",
            "restart": "",
            "removed": False,
        }
        # Forks of a server have the same command.
        launches.setdefault(unit or " ".join(words), launch)
    return list(launches.values())


def is_own_unit(unit: str, services: Sequence[str]) -> bool:
    """Tell whether a unit belongs to a service that the collection deployed."""
    return unit.startswith("spark-") and unit[len("spark-") : -len(".service")] in services


def owner_of(container: Mapping[str, Any], units: Mapping[str, str]) -> str:
    """Return the unit whose C(docker run), C(start) or C(compose) names a container; empty if not exactly one does.

    units: texts of unit files by name.
    """
    word = re.compile(rf"(?<![\w.-]){re.escape(name_of(container))}(?![\w.-])")
    owners = [
        unit
        for unit, text in sorted(units.items())
        if any("docker" in line and word.search(line) for line in text.splitlines() if line.startswith("Exec"))
    ]
    return owners[0] if len(owners) == 1 else ""


# --- the section C(adoption) of M(dgxspark.vllm.spark_info)


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


def _read_units() -> dict[str, str]:
    """Return the texts of the unit files that administrators wrote, by name."""
    unit_texts = {}
    for file in UNITS.glob("*.service"):
        with contextlib.suppress(OSError):
            if file.is_file() and not file.is_symlink():
                unit_texts[file.name] = file.read_text(encoding="utf-8", errors="replace")
    return unit_texts


def launches_of(view: HostView) -> list[dict[str, Any]]:
    """Return the unmanaged launches of vLLM: running containers, and units without a container."""
    running = [container for container in view.inspected_containers() if (container.get("State") or {}).get("Running")]
    engines = [box for box in running if is_unmanaged(box) and is_engine(box)]
    image_ids = sorted({str(container.get("Image")) for container in engines})
    images = {str(image.get("Id")): image for image in docker.inspect(view.run, "image", image_ids)}
    unit_texts = _read_units()
    launches = [_launch(container, images.get(str(container.get("Image"))) or {}, unit_texts) for container in engines]
    services = machine.read_services(view.settings)
    container_ids = [str(container.get("Id")) for container in running]
    programs = programs_of(machine.read_processes(PROC_ROOT), container_ids)
    return launches + [program for program in programs if not is_own_unit(program["unit"], services)]


def _launch(container: dict[str, Any], image: dict[str, Any], unit_texts: dict[str, str]) -> dict[str, Any]:
    settings, name = container.get("HostConfig") or {}, name_of(container)
    return {
        "name": name,
        "container": name,
        "argv": launch_of(container, image),
        "unit": owner_of(container, unit_texts),
        # It would start the container again.
        "project": str(labels(container).get("com.docker.compose.project") or ""),
        "restart": str((settings.get("RestartPolicy") or {}).get("Name") or "no"),
        "removed": bool(settings.get("AutoRemove")),
    }


def _read_notes() -> list[dict[str, Any]]:
    """Return the notes on this host about stopped launches."""
    notes: list[dict[str, Any]] = []
    for file in sorted(Path(NOTES).glob("*.json")):
        content = state_file.read(file) or {}
        note = {key: str(content.get(key) or "") for key in ("container", "unit", "path", "service", "url")}
        name = note["container"] or note["unit"]
        notes += [{"name": name, **note}] if name else []
    return notes


def stopped_launches(view: HostView) -> list[dict[str, Any]]:
    """Return the notes of M(dgxspark.vllm.service_state) about stopped launches, and whether each can come back (C(there))."""
    notes = _read_notes()
    unit_names = sorted({note["unit"] for note in notes if note["unit"]})
    loaded = {unit["name"] for unit in view.named_units(unit_names) if unit["load_state"] == "loaded"}
    containers = {name_of(container) for container in view.inspected_containers()} if notes else set()
    for stopped in notes:
        if stopped["unit"]:  # it makes its container anew
            stopped["there"] = stopped["unit"] in loaded or bool(stopped["path"] and Path(stopped["path"]).is_file())
        else:
            stopped["there"] = stopped["container"] in containers
    return notes
