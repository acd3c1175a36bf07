# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the files of a service lie on its host and in its container: checkpoint, files of the owner, image."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._cluster import ray_cluster
from .._common.docker_run import read_options
from .._vllm import seccomp
from .._vllm.image_catalogue import split_image
from . import lora, recipes
from .service import PlacedService

CONTAINER_HF_HOME = "/root/.cache/huggingface"
CONTAINER_CACHE = "/root/.cache/dgxspark"
CONTAINER_SECRETS = "/run/dgxspark/secrets"
REQUIREMENTS = "/etc/dgxspark/pip/requirements.txt"
"""In the container: the packages of 'pip' that have sums."""
PROFILE = "io_uring.json"
"""The seccomp profile; docker run reads it, as the account of the unit."""
SNAPSHOTS = "snapshots"
"""Folder below HF_HOME with a link to each snapshot that a service names files of: such a path does not hold a commit."""


def place(settings: Mapping[str, Any], service: PlacedService, digest: Callable[[str], str | None]) -> PlacedService:
    """Say where a service's files are: those of its checkpoint, and those that the controller has."""
    model = model_of(settings, service)
    on_host, in_container = f"{settings['spark_hf_home']}/{model['link']}", f"{CONTAINER_HF_HOME}/{model['link']}"
    if model["path"]:
        on_host, in_container = model["path"], model["argument"]
    files: list[Mapping[str, Any]] = []
    for entry in service.files:
        if entry["source"].startswith(recipes.MODEL_FOLDER):
            files.append({**entry, "source": None, "sha256": None, "host": _filled(entry["source"], on_host)})
            continue
        sha256 = digest(entry["source"])
        # The name holds the content, so a file that changes changes the unit, too, and the engine is restarted.
        name = f"{(sha256 or 'missing')[:12]}-{posixpath.basename(entry['source'])}"
        host = f"/etc/dgxspark/files/{service.name}/{name}"
        files.append({**entry, "sha256": sha256, "host": host})
    files += _carry_over(service) + _requirements(service) + _profile(settings, service)
    args = _filled(service.args, in_container)
    linked = not model["path"] and (
        args != service.args or any(entry["source"] is entry["sha256"] is None for entry in files)
    )
    folders = {each["repo"]: f"{CONTAINER_HF_HOME}/{each['link']}" for each in model["extra"] if each.get("link")}
    args = {**args, **lora.options(service.lora, folders)}
    return replace(service, args=args, files=files, linked=linked)


def _carry_over(service: PlacedService) -> list[dict[str, Any]]:
    """Return the file by which vLLM does not copy the head's own variables to the other ranks; Ray's way has need of it."""
    span = service.cluster
    if span is None or span.executor != "ray" or service.rank or not span.per_host:
        return []
    file = ray_cluster.carry_over(span.per_host)
    sha256 = hashlib.sha256(file["content"].encode()).hexdigest()
    host = f"/etc/dgxspark/files/{service.name}/{sha256[:12]}-{posixpath.basename(file['path'])}"
    return [{"source": None, "content": file["content"], "path": file["path"], "sha256": sha256, "host": host}]


def _requirements(service: PlacedService) -> list[dict[str, Any]]:
    """Return the file that pip reads a service's packages from: sums are taken from a file alone."""
    packages = [package for package in service.pip if recipes.HASHED.fullmatch(package)]
    if not packages:
        return []
    content = "\n".join(packages) + "\n"
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    host = f"/etc/dgxspark/files/{service.name}/{sha256[:12]}-{posixpath.basename(REQUIREMENTS)}"
    return [{"source": None, "content": content, "path": REQUIREMENTS, "sha256": sha256, "host": host}]


def _profile(settings: Mapping[str, Any], service: PlacedService) -> list[dict[str, Any]]:
    """Return the seccomp profile of an engine that reads by io_uring, which Docker's own denies, unless somebody names another."""
    given, _rest = read_options([str(word) for word in (*settings["spark_docker_args"], *service.docker_args)])
    if not seccomp.needed_for(service.args, service.env) or seccomp.chosen(given):
        return []
    content = seccomp.profile()
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    host = f"/etc/dgxspark/files/{service.name}/{sha256[:12]}-{PROFILE}"
    return [{"source": None, "content": content, "path": "", "sha256": sha256, "host": host}]


def profile_option(files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the option of docker run by which a container gets the profile among its files, if there is one."""
    return [
        word
        for entry in files
        if not entry["path"] and entry["host"].endswith(f"-{PROFILE}")
        for word in ("--security-opt", f"seccomp={entry['host']}")
    ]


def _filled(value: Any, folder: str) -> Any:
    """Put the folder of the model's snapshot wherever a value names it."""
    if isinstance(value, str):
        return value.replace(recipes.MODEL_FOLDER, folder)
    if isinstance(value, Mapping):
        return {key: _filled(item, folder) for key, item in value.items()}
    return [_filled(item, folder) for item in value] if isinstance(value, list) else value


def mounts(files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the options of docker run that show an engine its files; what Docker itself reads has no path in the container."""
    return [
        word
        for entry in files
        if entry["path"]
        for word in ("--mount", f"type=bind,src={entry['host']},dst={entry['path']},readonly")
    ]


def folders_of(
    name: str, cache_dir: str, secrets: Sequence[Mapping[str, Any]], files: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Return the folders that a service needs before its files."""
    folders = [{"path": cache_dir, "mode": "0755", "holds": "cache"}]
    if secrets:
        folders.append({"path": f"/etc/dgxspark/secrets/{name}", "mode": "0700"})
    if any(entry["source"] or entry["sha256"] for entry in files):
        folders.append({"path": f"/etc/dgxspark/files/{name}", "mode": "0755"})
    return folders


def image_of(ref: str, there: Mapping[str, Any]) -> dict[str, Any]:
    """Name an image by what cannot move: the digest that its registry knows it by, else its id, else as it was written."""
    repository, _tag, wanted = split_image(ref)
    digests = [digest for digest in there.get("repo_digests") or [] if split_image(digest)[0] == repository]
    exact = [digest for digest in digests if wanted and digest.endswith(f"@{wanted}")]
    digest = next(iter([*exact, *digests]), None)
    return {"ref": ref, "id": there.get("id"), "digest": digest, "run": digest or there.get("id") or ref}


def _link(repo: str, revision: str) -> str:
    """Return the link below HF_HOME to a snapshot that a service names files of."""
    return f"{SNAPSHOTS}/{repo.replace('/', '--')}@{revision.replace('/', '--')}"


def model_of(settings: Mapping[str, Any], service: PlacedService) -> dict[str, Any]:
    model = service.model
    extra: list[dict[str, Any]] = [
        {"repo": e["repo"], "revision": e.get("revision") or "main", "only": list(e.get("only") or [])}
        for e in model.get("extra") or []
    ]
    adapters = {entry["repo"] for entry in service.lora.get("adapters") or []}
    for entry in extra:
        if entry["repo"] in adapters:  # the engine is given its folder, whose name holds no commit
            entry["link"] = _link(entry["repo"], entry["revision"])
    if model.get("path"):
        path = str(model["path"])
        leaf = path.rstrip("/").rsplit("/", 1)[-1]
        source = path if path.startswith("/") else f"{settings['spark_model_dir'].rstrip('/') or '.'}/{path}"
        return {
            "repo": None,
            "revision": None,
            "source": source,
            "extra": extra,
            "path": f"{settings['spark_hf_home']}/local/{leaf}",
            "link": None,
            "argument": f"{CONTAINER_HF_HOME}/local/{leaf}",
        }
    revision = model.get("revision") or "main"
    return {
        "repo": model["repo"],
        "revision": revision,
        "source": None,
        "path": None,
        "link": _link(str(model["repo"]), revision),
        "extra": extra,
        "argument": model["repo"],
    }
