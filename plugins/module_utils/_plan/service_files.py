# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a service on its host and in its container: checkpoint, files of the owner, image."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._cluster import ray_cluster
from .._common.docker_run import read_options
from .._content import vocabularies
from .._vllm import seccomp
from .._vllm.image_names import split_image
from .._vllm.kv_tiers import ENVIRONMENT as KV_ENVIRONMENT
from . import kv_tiers, lora, service_keys
from .planned import ExtraModel, File, PlannedImage, PlannedModel
from .service import ServiceSpec

CONTAINER_HF_HOME = "/root/.cache/huggingface"
CONTAINER_CACHE = "/root/.cache/dgxspark"
CONTAINER_SECRETS = "/run/dgxspark/secrets"
REQUIREMENTS = "/etc/dgxspark/pip/requirements.txt"
"""File in the container with the packages of C(pip) that have checksums."""
PROFILE = "io_uring.json"
"""The seccomp profile, which docker run reads with the account of the unit."""
SNAPSHOTS = "snapshots"
"""Folder below HF_HOME with links to snapshots, for paths without a commit."""


def place(settings: Mapping[str, Any], service: ServiceSpec, digest: Callable[[str], str | None]) -> ServiceSpec:
    """Return a service with the paths of its files, of its checkpoint and of the controller.

    :param digest: returns the SHA-256 of a file on the controller, None for a missing file
    """
    model = model_of(settings, service)
    on_host, in_container = f"{settings['spark_hf_home']}/{model.link}", f"{CONTAINER_HF_HOME}/{model.link}"
    if model.path:
        on_host, in_container = model.path, model.argument
    files = []
    for entry in service.files:
        source = str(entry.source)
        if source.startswith(service_keys.MODEL_FOLDER):
            files.append(replace(entry, source=None, host=_filled(source, on_host)))
            continue
        sha256 = digest(source)
        files.append(replace(entry, sha256=sha256, host=_own_path(service, sha256 or "missing", source)))
    files += _carry_over(service)
    if hashed := [package for package in service.pip if service_keys.HASHED.fullmatch(package)]:
        files.append(_made(service, REQUIREMENTS, "\n".join(hashed) + "\n"))  # pip reads checksums from files only
    files += _profile(settings, service)
    args = _filled(service.args, in_container)
    linked = not model.path and (args != service.args or any(entry.source is entry.sha256 is None for entry in files))
    folders = {extra.repo: f"{CONTAINER_HF_HOME}/{extra.link}" for extra in model.extra if extra.link}
    args = {**args, **lora.options(service.lora, folders), **kv_tiers.options(service)}
    vocabulary = vocabularies.needed_by(service.config, service.env)
    env = {**(KV_ENVIRONMENT if service.kv_tiers else {}), **service.env}
    if vocabulary:
        path = f"{vocabularies.CONTAINER_FOLDER}/{vocabulary.name}"
        files.append(File(None, path, host=vocabulary.path(settings["spark_hf_home"])))
        env[vocabulary.variable] = vocabularies.CONTAINER_FOLDER
    return replace(service, args=args, env=env, files=files, linked=linked)


def _own_path(service: ServiceSpec, sha256: str, name: str) -> str:
    """Return the path of a file on the host. A checksum in the name changes the unit with the content, which restarts the engine."""
    return f"/etc/dgxspark/files/{service.name}/{sha256[:12]}-{posixpath.basename(name)}"


def _made(service: ServiceSpec, path: str, content: str) -> File:
    """Return a file whose content is in the plan."""
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    return File(None, path, sha256, _own_path(service, sha256, path), content)


def _carry_over(service: ServiceSpec) -> list[File]:
    """Return the file that keeps vLLM under Ray from copying variables of the head to the other ranks."""
    span = service.cluster
    if not span or span.executor != "ray" or service.rank or not span.per_host:
        return []
    file = ray_cluster.carry_over(span.per_host)
    return [_made(service, file["path"], file["content"])]


def _profile(settings: Mapping[str, Any], service: ServiceSpec) -> list[File]:
    """Return the seccomp profile of an engine that uses io_uring, which the default of Docker denies, unless options choose a profile."""
    options, _words = read_options([str(word) for word in (*settings["spark_docker_args"], *service.docker_args)])
    if not seccomp.needed_for(service.args, service.env) or seccomp.chosen(options):
        return []
    return [replace(_made(service, PROFILE, seccomp.profile()), path="")]


def profile_option(files: Sequence[File]) -> list[str]:
    """Return the option of docker run for the seccomp profile among the files, if any."""
    paths = [entry.host for entry in files if not entry.path and entry.host.endswith(f"-{PROFILE}")]
    return [word for path in paths for word in ("--security-opt", f"seccomp={path}")]


def _filled(value: Any, folder: str) -> Any:
    """Return a value with the folder of the model's snapshot in place of its mark."""
    if isinstance(value, str):
        return value.replace(service_keys.MODEL_FOLDER, folder)
    if isinstance(value, Mapping):
        return {key: _filled(item, folder) for key, item in value.items()}
    return [_filled(item, folder) for item in value] if isinstance(value, list) else value


def mounts(files: Sequence[File]) -> list[str]:
    """Return the options of docker run that mount the files of an engine; files for Docker have no path in the container."""
    binds = [f"type=bind,src={entry.host},dst={entry.path},readonly" for entry in files if entry.path]
    return [word for bind in binds for word in ("--mount", bind)]


def folders_of(settings: Mapping[str, Any], service: ServiceSpec, cache_dir: str) -> list[dict[str, str]]:
    """Return the folders of a service as C(deploy) takes them."""
    folders = [{"path": cache_dir, "mode": "0755", "holds": "cache"}]
    kv_folder = kv_tiers.folder_of(settings, service)
    if kv_folder:  # its files are prompts in another form
        folders.append({"path": kv_folder, "mode": "0700", "holds": "cache", "remove": "whole"})
    if service.secrets:
        folders.append({"path": f"/etc/dgxspark/secrets/{service.name}", "mode": "0700"})
    if any(entry.source or entry.sha256 for entry in service.files):
        folders.append({"path": f"/etc/dgxspark/files/{service.name}", "mode": "0755"})
    return folders


def image_of(ref: str, on_host: Mapping[str, Any]) -> PlannedImage:
    """Return an image by its digest in the registry, else by its id, else by its reference."""
    repository, _tag, sha256 = split_image(ref)
    digests = [digest for digest in on_host.get("repo_digests") or [] if split_image(digest)[0] == repository]
    exact = [digest for digest in digests if sha256 and digest.endswith(f"@{sha256}")]
    digest = next(iter([*exact, *digests]), None)
    return PlannedImage(ref, on_host.get("id"), digest, digest or on_host.get("id") or ref)


def _link(repo: str, revision: str) -> str:
    """Return the link below HF_HOME to a snapshot."""
    return f"{SNAPSHOTS}/{repo.replace('/', '--')}@{revision.replace('/', '--')}"


def model_of(settings: Mapping[str, Any], service: ServiceSpec) -> PlannedModel:
    """Return the model of a service with its further repositories. settings: of its host."""
    model = service.model
    # Options name the folder of an adapter without a commit.
    adapters = {entry["repo"] for entry in service.lora.get("adapters") or []}
    extra = []
    for entry in model.get("extra") or []:
        repo, revision = entry["repo"], entry.get("revision") or "main"
        link = _link(repo, revision) if repo in adapters else None
        extra.append(ExtraModel(repo, revision, list(entry.get("only") or []), link))
    if model.get("path"):
        path = str(model["path"])
        leaf = path.rstrip("/").rsplit("/", 1)[-1]
        source = path if path.startswith("/") else f"{settings['spark_model_dir'].rstrip('/') or '.'}/{path}"
        on_host = f"{settings['spark_hf_home']}/local/{leaf}"
        return PlannedModel(None, None, source, on_host, None, f"{CONTAINER_HF_HOME}/local/{leaf}", extra)
    repo, revision = str(model["repo"]), model.get("revision") or "main"
    return PlannedModel(repo, revision, None, None, _link(repo, revision), repo, extra)
