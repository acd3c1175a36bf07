# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of systemd and containers of Podman (Quadlet), read into a C(Draft)."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping, Sequence

from .._common import docker_run, shell
from .._common.docker_run import DockerRun
from . import import_scripts
from .import_draft import Draft, Unreadable, program_name

_UNIT_REASONS = {
    "User": "the unit runs docker as root, the engine is the image's user",
    "Group": "the unit runs docker as root, the engine is the image's user",
    "Restart": "the unit has Restart=always with a bounded number of starts: vllm serve exits with 0 when its engine dies",
    "RestartSec": "the unit has its own pause between starts",
    "TimeoutStartSec": "start_timeout is the time until the model has answered; 3000 seconds unless set",
    "TimeoutStopSec": "the unit stops an engine as long as vLLM needs",
    "PermissionsStartOnly": "the unit of this collection runs the steps that need root as root",
}
# Commands of ExecStartPre.
_BEFORE = (
    ("drop_caches", "the gate of the unit gives the page cache back and waits for memory"),
    (r"docker\s+(?:stop|rm|kill)", "the unit removes its own container, and runs it with --rm"),
    ("docker pull", "the role images brings images once"),
    ("", "has no place in the unit; a role of your own can do it before"),
)
_WRITES_UNIT = "this collection writes the unit itself"
_QUADLET = {
    "AddCapability": "--cap-add",
    "AddDevice": "--device",
    "AddHost": "--add-host",
    "ContainerName": "--name",
    "Entrypoint": "--entrypoint",
    "EnvironmentFile": "--env-file",
    "Mount": "--mount",
    "Network": "--network",
    "PublishPort": "--publish",
    "Pull": "--pull",
    "ShmSize": "--shm-size",
    "Tmpfs": "--tmpfs",
    "Ulimit": "--ulimit",
    "User": "--user",
    "Volume": "--volume",
    "WorkingDir": "--workdir",
}


def read(draft: Draft, text: str) -> None:
    """Read a unit that starts an engine, or a container of Podman. Raises Unreadable if it starts something else."""
    unit = docker_run.read_unit(text)
    if "Container" in unit.sections:
        _read_quadlet(draft, unit)
        return
    draft.unit = unit
    _read_environment(draft, unit)
    for key, value in unit.sections.get("Service", []):
        if key in ("ExecStart", "Environment", "EnvironmentFile", "Type"):
            continue
        words = shell.read_words(docker_run.exec_command(value)) if key == "ExecStartPre" else []
        if not words or not draft.note_download(words):
            reason = _UNIT_REASONS.get(key, _WRITES_UNIT)
            if key == "ExecStartPre":
                reason = next(reason for command, reason in _BEFORE if re.search(command, value))
            draft.leave(f"{key}={value}", reason)
    starts = [
        shell.read_words(docker_run.exec_command(line).replace("%%", "%"), draft.variables)
        for line in unit.all("Service", "ExecStart")
    ]
    if not starts:
        raise Unreadable("the unit has no ExecStart")
    _read_start(draft, starts[-1])


def _read_environment(draft: Draft, unit: docker_run.Unit) -> None:
    """Add the variables of a unit, and of the files that it names."""
    for path in unit.all("Service", "EnvironmentFile"):
        content = draft.files.get(path.lstrip("-"))
        if content is None:
            draft.leave(f"EnvironmentFile={path}", "cannot be read here; say what it sets (variables, files)")
            continue
        draft.variables.update(_assignments(content.splitlines(), draft.variables))
    assignments = [word for line in unit.all("Service", "Environment") for word in shell.read_words(line)]
    draft.variables.update(_assignments(assignments, draft.variables))


def _assignments(items: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that C(NAME=value) items set. variables: known before."""
    assigned: dict[str, str] = {}
    values = ChainMap(assigned, dict(variables))
    for item in items:
        name, equals, value = item.strip().partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            assigned[name] = shell.expand(value.strip("\"'"), values)
    return assigned


def _read_start(draft: Draft, words: list[str]) -> None:
    run = docker_run.read_docker_run(words)
    if run is not None:
        import_scripts.note_rootless(draft, words, draft.variables)
        draft.run = run
        draft.name = run.last("--name") or ""
    elif len(words) > 2 and program_name(words[0]) in ("bash", "sh"):
        import_scripts.read(draft, words[-1])
    elif any(program_name(word) == "vllm" or word.startswith("vllm.") for word in words):
        draft.run = DockerRun(command=words)
        draft.env(draft.variables)
    else:
        raise Unreadable(f"the unit runs {words[0] if words else 'nothing'}, not vllm serve")


def _read_quadlet(draft: Draft, unit: docker_run.Unit) -> None:
    """Read a container of Podman (podman-systemd.unit): its keys are options of C(podman run)."""
    for key, text in unit.sections["Container"]:
        value = text.replace("%h", "${HOME}").replace("%%", "%")
        if key == "Environment":
            draft.env(shell.read_words(value))
        elif key == "PodmanArgs":
            draft.run.options += docker_run.read_options(shell.read_words(value))[0].options
        elif key in _QUADLET:
            draft.run.options.append((_QUADLET[key], value))
        elif key not in ("Image", "Exec"):
            draft.leave(f"{key}={text}", "this key of a container of Podman has no counterpart")
    for key, value in unit.sections.get("Service", []):
        draft.leave(f"{key}={value}", _UNIT_REASONS.get(key, _WRITES_UNIT))
    draft.run.image = (unit.last("Container", "Image") or "").removeprefix("docker.io/")
    draft.run.command = shell.read_words(unit.last("Container", "Exec") or "", draft.variables)
    draft.name = unit.last("Container", "ContainerName") or ""
    if not draft.run.image:
        raise Unreadable("the container has no Image")
