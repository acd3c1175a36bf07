# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers and units that somebody made by hand: recognised on their host, and read as a launch. Pure functions.

Only what is recognised is ever touched: a running container that nobody of this collection made, or a unit that runs vLLM without one,
whose command is that of vLLM's server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._common.redaction import could_be_secret, secrets_of_environment, without_secrets
from .._common.secret_names import is_secret_variable
from .._host.docker_facts import MANAGED_LABEL

ENGINE = re.compile(r"vllm\.entrypoints|(?:^|[/ ])vllm serve\b")
SERVER = re.compile(r"vllm\.entrypoints\.\S+")
"""The server as a module of Python's."""
CLIENTS = ("docker", "podman", "nerdctl", "sudo", "ssh", "systemd-run")
"""Programs that have a server's command behind their own, and are none."""


def launch_of(box: Mapping[str, Any], image: Mapping[str, Any]) -> list[str]:
    """Write a container of C(docker inspect) as the C(docker run) that it came from, as far as a launch goes by it.

    image: that of C(docker image inspect): what the container has from it was not asked for. Values of secrets are left out.
    """
    config, host = box.get("Config") or {}, box.get("HostConfig") or {}
    own = image.get("Config") or {}
    argv = ["docker", "run", "--name", str(box.get("Name") or "").lstrip("/")]
    network = str(host.get("NetworkMode") or "")
    if network == "host":
        argv += ["--network", "host"]
    if host.get("IpcMode") == "host":
        argv += ["--ipc", "host"]
    for port, entries in sorted((host.get("PortBindings") or {}).items()):
        for entry in entries or []:
            argv += ["-p", f"{entry.get('HostPort') or ''}:{port.partition('/')[0]}"]
    for bind in host.get("Binds") or []:
        argv += ["-v", str(bind)]
    inherited = set(own.get("Env") or [])
    environment = [str(entry) for entry in config.get("Env") or []]
    for entry in environment:
        name, _equals, value = entry.partition("=")
        if entry not in inherited and not (is_secret_variable(name) and could_be_secret(value, name)):
            argv += ["-e", entry]
    entrypoint, command = list(config.get("Entrypoint") or []), list(config.get("Cmd") or [])
    if entrypoint and entrypoint != list(own.get("Entrypoint") or []):
        argv += ["--entrypoint", entrypoint[0]]
        command = [*entrypoint[1:], *command]
    argv += [str(config.get("Image") or box.get("Image") or ""), *command]
    # What the environment keeps secret may stand in the command once more, as behind bash -c.
    return without_secrets(argv, secrets_of_environment(environment))


def engine_words(words: Sequence[str]) -> list[str]:
    """Return the command of vLLM's server in that of a program, empty for any other program.

    A program that has it in one word, as C(bash -c) does, is not the server but what has started it.
    """
    if not words or words[0].rpartition("/")[2] in CLIENTS:
        return []
    for position, word in enumerate(words[:4]):
        if word.rpartition("/")[2] == "vllm" and words[position + 1 : position + 2] == ["serve"]:
            return ["vllm", *words[position + 1 :]]
        if word == "-m" and SERVER.fullmatch(words[position + 1] if len(words) > position + 1 else ""):
            return ["python3", *words[position:]]
    return []


def unit_of(cgroup: str) -> tuple[str, str]:
    """Return the unit of the system that a program belongs to, by the text of C(/proc/PID/cgroup), or why there is none."""
    lines = [line.split(":", 2) for line in cgroup.splitlines() if line.count(":") >= 2]
    # v2's line and systemd's own hierarchy know the unit; the other hierarchies of v1 may lack it.
    paths = [path for _number, controllers, path in lines if controllers in ("", "name=systemd")]
    parts = [part for path in paths for part in path.split("/") if part]
    if any(part.startswith("user@") for part in parts):
        return "", "a unit of a user runs it, which is left to its user"
    unit = next((part for part in reversed(parts) if part.endswith(".service")), "")
    return (unit, "") if unit else ("", "no unit runs it: it was started in a session, and could not come back")


def programs_of(processes: Sequence[Mapping[str, Any]], containers: Sequence[str]) -> list[dict[str, Any]]:
    """Find the servers of vLLM among the programs of a host that are in no container, one of each unit.

    processes: C([{pid, words, cgroup}]). containers: ids of all containers. Returns launches as in C(adoption) of M(dgxspark.vllm.spark_info).
    """
    found: dict[str, dict[str, Any]] = {}
    for process in sorted(processes, key=lambda each: int(each["pid"])):
        words = engine_words(process["words"])
        if not words or any(box in process["cgroup"] for box in containers):
            continue
        unit, why = unit_of(process["cgroup"])
        # Servers that are asked to be several, and what they fork, have the same command.
        found.setdefault(
            unit or " ".join(words),
            {
                "name": unit or f"process {process['pid']}",
                "container": "",
                "unit": unit,
                "argv": without_secrets(words),
                "alone": why,
                "project": "",
                "restart": "",
                "removed": False,
            },
        )
    return list(found.values())


def is_own(unit: str, services: Sequence[str]) -> bool:
    """Tell whether a unit is that of a service which this collection has put on the host."""
    return unit.startswith("spark-") and unit[len("spark-") : -len(".service")] in services


def is_engine(box: Mapping[str, Any]) -> bool:
    """Tell whether a container's command is that of vLLM's server."""
    config = box.get("Config") or {}
    words = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
    return bool(ENGINE.search(" ".join(str(word) for word in words)))


def is_unmanaged(box: Mapping[str, Any]) -> bool:
    """Tell whether a running container was made by somebody else."""
    labels = (box.get("Config") or {}).get("Labels") or {}
    ours = str(labels.get(MANAGED_LABEL, "")).lower() == "true" or labels.get("dgxspark.fetch")
    return bool((box.get("State") or {}).get("Running")) and not ours


def owner_of(box: Mapping[str, Any], units: Mapping[str, str]) -> str:
    """Name the unit that runs a container: the one file that names it in a C(docker run), C(start) or C(compose).

    units: text of unit files by name. Empty where there is none.
    """
    name = str(box.get("Name") or "").lstrip("/")
    word = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])")
    found = [
        unit
        for unit, text in sorted(units.items())
        if any("docker" in line and word.search(line) for line in text.splitlines() if line.startswith("Exec"))
    ]
    return found[0] if len(found) == 1 else ""


def compose_project(box: Mapping[str, Any]) -> str:
    """Name the compose project that a container belongs to, which would start it again."""
    labels = (box.get("Config") or {}).get("Labels") or {}
    return str(labels.get("com.docker.compose.project") or "")
