# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs docker on a host, for modules that change it: questions, each by one call for all objects, and changes.

A question leaves out missing objects, and raises C(NoAnswer) for every other failure. A change returns the reason of its failure, empty if
it worked. Reports ask through C(HostView).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .._common.foreign_text import parse_json
from .._runtime import command
from .._runtime.command import Answer, Run, Unknown, answered, says_missing, unreadable
from . import docker_commands, docker_facts

NO_DOCKER = "there is no docker on this host; install the Docker engine (DGX OS ships it)"
IMAGES_COMMAND = ["docker", "image", "ls", "--all", "--quiet", "--no-trunc"]


def _answer(run: Run, *words: str, needs_docker: bool = False, **options: Any) -> tuple[int, str, str]:
    """Return exit code, output and messages of docker; a missing object is an answer.

    :param needs_docker: whether a host without docker is no answer
    :returns: the code is 0, the error code for a missing object, or 127 without docker
    :raises NoAnswer: for any other failure
    """
    rc, out, err = run(["docker", *words], **options)
    answered("docker", 0 if says_missing(err) else 1 if needs_docker and rc == 127 else rc, err)
    return rc, out, err


def inspect(run: Run, kind: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return C(docker inspect) of objects; missing ones are left out. kind: C(container) or C(image). Raises C(NoAnswer)."""
    # An object that is removed between two calls makes inspect fail, but it still prints the others.
    rc, out, err = _answer(run, kind, "inspect", "--", *names) if names else (127, "", "")
    return [] if rc == 127 else docker_facts.read_inspected(out, err)


def inspect_all(run: Run, kind: str) -> list[dict[str, Any]]:
    """Return C(docker inspect) of all containers or images. kind: C(container) or C(image). Raises C(NoAnswer), also without docker."""
    command_line = docker_facts.LIST_COMMAND if kind == "container" else IMAGES_COMMAND
    _rc, out, _err = _answer(run, *command_line[1:], needs_docker=True)
    return inspect(run, kind, sorted(set(docker_facts.read_ids(out))))


def container_state(run: Run, name: str, seconds: float | None = None) -> dict[str, Any] | None:
    """Return C(State) of a container as Docker has it (C(Status), C(Running), C(ExitCode)), None for a missing one. Raises C(NoAnswer)."""
    options: dict[str, Any] = {} if seconds is None else {"seconds": seconds}
    rc, out, _err = _answer(run, "container", "inspect", "--format", "{{json .State}}", "--", name, **options)
    if rc:
        return None
    try:
        state = parse_json(out, "docker")
    except ValueError:
        state = None
    if not isinstance(state, dict):
        raise unreadable("docker", out)
    return state


def containers(run: Run, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return containers as C(docker_facts.parse_containers) has them; missing ones are left out. Raises C(NoAnswer)."""
    rc, out, err = _answer(run, "container", "inspect", "--", *names)
    return [] if rc == 127 else docker_facts.parse_containers(out, err)


def running_names(run: Run, label: str) -> list[str]:
    """Return the names of the running containers with a label. Raises C(NoAnswer)."""
    words = ["ps", "--no-trunc", "--filter", f"label={label}", "--format", "{{.Names}}"]
    rc, out, _err = _answer(run, *words)
    return [] if rc else out.split()


def log(run: Run, name: str, lines: int | None = None, **options: Any) -> tuple[str, str] | None:
    """Return standard output and errors of a container, None without a log."""
    limit = [] if lines is None else [f"--tail={lines}"]
    rc, out, err = run(["docker", "logs", *limit, name], **options)
    return (out, err) if rc == 0 else None


def images(run: Run, refs: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    """Return C(docker image inspect) by reference (tag, digest or id), None for a missing image; one call for all.

    Raises C(Unknown) without docker, and if it does not answer.
    """
    rc, out, err = run(["docker", "image", "inspect", "--", *refs])
    if rc == 127:
        raise Unknown(NO_DOCKER)
    matched = docker_facts.match_images(refs, out, err)
    if matched is not None:
        return matched
    if len(refs) > 1:  # the answer cannot be told apart
        return {ref: image for ref in refs for image in images(run, [ref]).values()}
    if rc != 0 and says_missing(err):  # docker names the image differently
        return dict.fromkeys(refs)
    raise Unknown(f"docker image inspect failed for {', '.join(refs)}: {err.strip() or f'exit code {rc}'}")


def image_names(run: Run) -> dict[str, str]:
    """Return one name of each image, by id. Raises C(NoAnswer)."""
    rc, out, _err = _answer(run, "image", "ls", "--no-trunc", "--format", "{{.ID}} {{.Repository}}:{{.Tag}}")
    names: dict[str, str] = {}
    for line in out.splitlines() if rc == 0 else []:
        image_id, _space, name = line.partition(" ")
        docker_facts.read_ids(image_id)
        names.setdefault(image_id, name)
    return names


def tags(run: Run, repository: str) -> tuple[set[str], str]:
    """Return the names of a repository's images, and the reason if Docker does not list them."""
    rc, out, err = run(["docker", "image", "ls", "--format", "{{.Tag}}", repository])
    if rc not in (0, 127):
        return set(), err.strip() or f"exit code {rc}"
    return {f"{repository}:{tag}" for tag in out.split() if tag != "<none>"}, ""


def image_sizes(run: Run, ids: Iterable[str]) -> dict[str, int]:
    """Return the bytes of images by id, without images that were removed meanwhile. Raises C(NoAnswer)."""
    _rc, out, _err = _answer(run, "image", "inspect", "--format", "{{.Id}} {{.Size}}", "--", *ids)
    rows = [line.partition(" ") for line in out.splitlines()]
    return {image_id: int(size) for image_id, _space, size in rows if size.isdigit()}


def image_layers(run: Run, image_id: str) -> list[str]:
    """Return the digests of an image's layers, the lowest first. Raises C(NoAnswer), for a missing image too."""
    rc, out, err = run(docker_commands.layers(image_id))
    answered("docker", rc if rc != 127 else 1, err)
    return docker_facts.read_layers(out)


def present_layers(run: Run) -> list[list[str]]:
    """Return the layers of each image on the host. Raises C(NoAnswer).

    Empty with the containerd image store: it keeps layers under other names, and may have removed the content of an image.
    """
    if "io.containerd.snapshotter" in _answer(run, "info", "--format", "{{json .DriverStatus}}", needs_docker=True)[1]:
        return []
    ids = sorted(set(docker_facts.read_ids(_answer(run, *IMAGES_COMMAND[1:], needs_docker=True)[1])))
    if not ids:
        return []
    rc, out, err = run(docker_commands.layers(*ids))
    answered("docker", rc, err)
    return [docker_facts.read_layers(line) for line in out.splitlines()]


def has_image(run: Run, image_id: str) -> bool:
    """Whether the host has an image. Raises C(NoAnswer)."""
    return _answer(run, "image", "inspect", "--format", "{{.Id}}", image_id, needs_docker=True)[0] == 0


def data_folder(run: Run) -> str:
    """Return the folder in which Docker keeps images. Raises C(NoAnswer)."""
    _rc, out, _err = _answer(run, "info", "--format", "{{.DockerRootDir}}", needs_docker=True)
    if not out.strip():
        raise unreadable("docker", out)
    return out.strip()


def act(run: Run, *words: str, missing: bool = False) -> str:
    """Run docker for a change; returns the reason of its failure, empty if it worked. missing: accept a missing object, as for removals."""
    rc, out, err = run(["docker", *words])
    if rc == 0 or (missing and says_missing(err)):
        return ""
    return err.strip() or out.strip() or f"exit code {rc}"


def with_config(folder: str, words: Sequence[str], seconds: float, data: bytes | None = None) -> Answer:
    """Run docker with the settings of a folder, such as its accounts at registries."""
    return command.run(["docker", "--config", folder, *words], seconds, data=data)


def exec_command(container: str, *words: str) -> list[str]:
    """Return the command that runs a program in a running container."""
    return ["docker", "exec", container, *words]


def remove_container(run: Run, name: str) -> str:
    """Stop and remove a container; returns the reason of a failure, empty when it is gone."""
    return act(run, "rm", "--force", name, missing=True)
