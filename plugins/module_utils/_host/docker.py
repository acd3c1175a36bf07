# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs docker on a host, for modules that change it: questions, each by one call for all objects, and changes.

A question returns objects, nothing for missing objects, and raises C(NoAnswer) for every other failure. A change returns the reason of
its failure, empty when it worked. Reports ask through C(HostView).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .._common.foreign_text import parse_json
from .._runtime.command import Run, answered, says_missing, unreadable
from . import docker_facts

IMAGES_COMMAND = ["docker", "image", "ls", "--all", "--quiet", "--no-trunc"]


def inspect(run: Run, kind: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return C(docker inspect) of objects; missing ones are left out.

    :param run: runs a program
    :param kind: C(container) or C(image)
    :param names: their names or ids
    :returns: the objects
    :raises NoAnswer: where docker fails or prints something else
    """
    if not names:
        return []
    rc, out, err = run(["docker", kind, "inspect", "--", *names])
    if rc == 127:
        return []
    # An object that is removed between two calls makes inspect fail, but it still prints the others.
    answered("docker", 0 if says_missing(err) else rc, err)
    return docker_facts.read_inspected(out, err)


def inspect_all(run: Run, kind: str) -> list[dict[str, Any]]:
    """Return C(docker inspect) of all containers or images. kind: C(container) or C(image). Raises C(NoAnswer)."""
    rc, out, err = run(docker_facts.LIST_COMMAND if kind == "container" else IMAGES_COMMAND)
    if rc == 127:
        raise unreadable("docker", err)  # who removes what is unused needs the answer
    answered("docker", rc, err)
    return inspect(run, kind, sorted(set(docker_facts.read_ids(out))))


def container(run: Run, name: str) -> dict[str, Any] | None:
    """Return C(docker container inspect) of a container, None for a missing one. Raises C(NoAnswer)."""
    return next(iter(inspect(run, "container", [name])), None)


def image(run: Run, name: str) -> dict[str, Any] | None:
    """Return C(docker image inspect) of an image, None for a missing one. Raises C(NoAnswer)."""
    return next(iter(inspect(run, "image", [name])), None)


def image_names(run: Run) -> dict[str, list[str]]:
    """Return the names of all images by id; untagged ones have none. Raises C(NoAnswer)."""
    rc, out, err = run(["docker", "image", "ls", "--no-trunc", "--format", "{{.ID}} {{.Repository}}:{{.Tag}}"])
    answered("docker", rc, err)
    names: dict[str, list[str]] = {}
    for line in out.splitlines() if rc == 0 else []:
        image_id, _space, name = line.partition(" ")
        names.setdefault(image_id, []).extend([] if "<none>" in name else [name])
    return names


def info(run: Run) -> dict[str, Any]:
    """Return the Docker engine as C(docker_facts.parse_info) has it. Raises C(NoAnswer) without an engine that answers."""
    rc, out, err = run(docker_facts.INFO_COMMAND)
    engine = docker_facts.parse_info(out) if rc == 0 else {}
    if not engine.get("reachable"):
        answered("docker", rc or 1, str(engine.get("error") or err))
    return engine


def running_names(run: Run, label: str) -> list[str]:
    """Return the names of the running containers that have a label. Raises C(NoAnswer)."""
    rc, out, err = run(["docker", "ps", "--no-trunc", "--filter", f"label={label}", "--format", "{{.Names}}"])
    answered("docker", rc, err)
    return out.split() if rc == 0 else []


def log(run: Run, name: str, lines: int, *options: str) -> tuple[str, str] | None:
    """Return both outputs of a container, the last lines of each; None where docker has no log of it.

    :param run: runs a program
    :param name: of the container
    :param lines: most lines of each
    :param options: further options of C(docker logs)
    :returns: standard output and errors
    """
    rc, out, err = run(["docker", "logs", f"--tail={lines}", *options, name])
    return (out, err) if rc == 0 else None


def act(run: Run, *words: str, missing: bool = False, seconds: float | None = None) -> str:
    """Run docker for a change; returns the reason of its failure, empty when it worked.

    :param run: runs a program
    :param missing: whether an object that is missing is fine, as for removals
    :param seconds: that it may take, those of C(run) unless given
    :param words: of the command line, after C(docker)
    :returns: a line of text
    """
    rc, out, err = run(["docker", *words], **({} if seconds is None else {"seconds": seconds}))
    if rc == 0 or (missing and says_missing(err)):
        return ""
    return err.strip() or out.strip() or f"exit code {rc}"


def remove_containers(run: Run, names: Iterable[str]) -> str:
    """Stop and remove containers; returns the reason of a failure, empty when they are gone."""
    return act(run, "rm", "--force", *names, missing=True)


def values(run: Run, argv: list[str]) -> Any:
    """Return the JSON that a docker command with C(--format) prints. Raises C(NoAnswer)."""
    rc, out, err = run(argv)
    answered("docker", rc if rc != 127 else 1, err)
    try:
        return parse_json(out, "docker")
    except ValueError:
        raise unreadable("docker", out) from None
