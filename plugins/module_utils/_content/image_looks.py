# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of a host, and facts about their contents: from Docker, from the cache, from the images themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._host import docker, docker_facts
from .._host.host_view import BadRequest, Explained, HostView, Request
from .._runtime import state_file
from .._runtime.command import NoAnswer, Run, Unknown
from . import image_contents, spread_names
from .image_contents import Ask

Asker = Callable[[Run, str, int, "Callable[[str], None]"], Ask]
"""C(image_asker.asker)."""


def section(view: HostView, request: Request, asker: Asker | None = None) -> dict[str, Any]:
    """Return the section C(images) of M(dgxspark.vllm.spark_info).

    :param asker: asks images that were never asked for their contents, if the task wants it; no container is started in check mode
    :raises BadRequest: for a time limit below a second
    :raises Unknown: where Docker does not list its images
    """
    params = request.params
    if asker and params["probe_timeout"] < 1:
        raise BadRequest(f"probe_timeout is {params['probe_timeout']}; it must be 1 or more")
    try:
        images = look_up(view.run, params["images"])
    except (Unknown, NoAnswer) as reason:
        if view.docker_is_down():
            raise Explained(str(reason)) from reason
        raise
    folder = str(Path(params["state_dir"], "images"))
    ask = None
    if asker and params["probe_images"] and not request.check_mode:
        ask = asker(view.long_question, folder, params["probe_timeout"], request.warnings.append)
    add_contents(images, folder, ask)
    return images


def look_up(run: Run, refs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the images as Docker describes them, by one call for all.

    :raises Unknown: for texts that are no references, and where Docker does not say
    """
    refs = list(dict.fromkeys(refs))
    bad = [ref for ref in refs if not ref or any(map(str.isspace, ref))]
    if bad:
        raise Unknown(f"not references of images: {', '.join(map(repr, bad))}")
    images = _inspect(run, refs)
    # An image that another host sent has a tag here instead of its digest: Docker knows digests of pulled images alone.
    tags = {ref: tag for ref in refs if images[ref] is None and (tag := spread_names.local_alias(ref))}
    tagged = _inspect(run, list(tags.values()))
    images.update({ref: tagged[tag] for ref, tag in tags.items()})
    return {ref: image or docker_facts.absent_image() for ref, image in images.items()}


def _inspect(run: Run, refs: list[str]) -> dict[str, Any]:
    items = docker.images(run, refs) if refs else {}
    return {ref: docker_facts.describe_image(item) if item else None for ref, item in items.items()}


def add_contents(images: dict[str, dict[str, Any]], cache_dir: str, ask: Ask | None = None) -> None:
    """Add to each image its contents by its own report, C(probe), and the source of that, C(probe_from).

    :param ask: asks an image whose answer is not cached, by its id; None asks none
    """
    answers: dict[str, tuple[str, dict[str, Any] | None]] = {}
    for image in images.values():
        key = str(image["id"])
        if image["present"] and key not in answers:
            cached = _read(Path(cache_dir, image_contents.cache_name(key)))
            answers[key] = ("cache", cached) if cached is not None else ("image", ask(key)) if ask else ("none", None)
        image["probe_from"], answer = answers.get(key, ("none", None))
        image["probe"] = image_contents.describe(answer, image["env"])
        if image["probe"] and image["probe"]["vllm_version"]:
            image["vllm_version"], image["vllm_version_source"] = image["probe"]["vllm_version"], "package"


def _read(path: Path) -> dict[str, Any] | None:
    """Return a cached answer, None for a missing or unreadable one."""
    content = state_file.read(path)
    answer = content.get("answer") if content and content.get("schema") == image_contents.SCHEMA else None
    return answer if isinstance(answer, dict) else None
