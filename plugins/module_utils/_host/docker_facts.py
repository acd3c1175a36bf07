# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pure parsers of the JSON that docker prints about its engine, containers and images.

Anything else than JSON, printed with exit code 0, raises C(NoAnswer): it is not an empty answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .._common import secret_names
from .._common.foreign_text import parse_json
from .._runtime import command

INFO_COMMAND = ["docker", "info", "--format", "{{json .}}"]
LIST_COMMAND = ["docker", "ps", "--all", "--quiet", "--no-trunc"]

MANAGED_LABEL = "dgxspark.managed"
SERVICE_LABEL = "dgxspark.service"
FINGERPRINT_LABEL = "dgxspark.fingerprint"
NAME_PREFIX = "spark-"

_ENV_NAMES = re.compile(r"(VLLM|CUDA|NV|NVIDIA|NCCL|TORCH_CUDA|TRITON)[A-Z0-9_]*\Z")
_ID = re.compile(r"(sha256:)?[0-9a-f]{12,64}")
_LAYER = re.compile(r"sha256:[0-9a-f]{64}")
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?(?:[-.+a-z0-9]*)?)\Z")


def _json(text: str, kind: type) -> Any:
    try:
        value = parse_json(text, "docker")
    except ValueError:
        return None
    return value if isinstance(value, kind) else None


def _mapping(value: Any) -> dict[str, Any]:
    """Return a part of an answer, empty for a part of another type."""
    return value if isinstance(value, dict) else {}


def read_ids(text: str) -> list[str]:
    """Read lists of containers and images, printed with C(--quiet --no-trunc). Raises C(NoAnswer) for anything but ids."""
    ids = text.split()
    if not all(map(_ID.fullmatch, ids)):
        raise command.unreadable("docker", text)
    return ids


def read_layers(text: str) -> list[str]:
    """Read C(RootFS.Layers) of an image, digests from the lowest layer up. Raises C(NoAnswer) for anything else."""
    try:
        layers = parse_json(text, "docker image inspect")
    except ValueError:
        raise command.unreadable("docker", text) from None
    if layers is None:  # an image without layers
        return []
    if not isinstance(layers, list) or not all(isinstance(layer, str) and _LAYER.fullmatch(layer) for layer in layers):
        raise command.unreadable("docker", text)
    return layers


def read_inspected(text: str, errors: str = "") -> list[dict[str, Any]]:
    """Read the JSON list that C(docker inspect) prints. Raises C(NoAnswer).

    errors: its messages; if they report a missing object, the output may be empty.
    """
    items = [] if not text.strip() and command.says_missing(errors) else _json(text, list)
    if items is None or not all(isinstance(item, dict) for item in items):
        raise command.unreadable("docker", text)
    return list(items)


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def parse_info(text: str) -> dict[str, Any]:
    """Parse C(INFO_COMMAND): C({version, reachable, cgroup_version, cgroup_driver, runtimes, root_dir, error}).

    The client answers with an empty version and C(ServerErrors) when no engine can be reached; one that failed before that
    prints nothing. Raises C(NoAnswer) for anything else that is no JSON.
    """
    info = _json(text, dict) if text.strip() else {}
    if info is None:
        raise command.unreadable("docker", text)
    version = info.get("ServerVersion") or None
    errors = _texts(info.get("ServerErrors"))
    runtimes = info.get("Runtimes")
    return {
        "version": version,
        "reachable": version is not None,
        "cgroup_version": str(info["CgroupVersion"]) if info.get("CgroupVersion") else None,
        "cgroup_driver": info.get("CgroupDriver") or None,
        "runtimes": sorted(runtimes) if isinstance(runtimes, dict) else [],
        "root_dir": info.get("DockerRootDir") or None,
        "error": "" if version else "; ".join(str(error) for error in errors) or "the Docker engine does not answer",
    }


def parse_containers(text: str, errors: str = "") -> list[dict[str, Any]]:
    """Parse C(docker container inspect): C([{name, id, image, image_id, managed, service, fingerprint, state, pid, ports}]) by name.

    service: the label of the collection, or the name without its prefix, for managed containers; else None.
    fingerprint: the label with the fingerprint of its plan, else None.
    ports: host ports that the container publishes. C(errors) and C(NoAnswer): see C(read_inspected).
    """
    return sorted(map(_describe_container, read_inspected(text, errors)), key=lambda container: container["name"])


def _describe_container(item: dict[str, Any]) -> dict[str, Any]:
    config, state = _mapping(item.get("Config")), _mapping(item.get("State"))
    labels = {key: value for key, value in _mapping(config.get("Labels")).items() if isinstance(value, str)}
    name = str(item.get("Name") or "").lstrip("/")
    managed = labels.get(MANAGED_LABEL, "").lower() == "true"
    return {
        "name": name,
        "id": str(item.get("Id") or ""),
        "image": str(config.get("Image") or ""),
        "image_id": str(item.get("Image") or ""),
        "managed": managed,
        "service": labels.get(SERVICE_LABEL, name.removeprefix(NAME_PREFIX)) if managed else None,
        "fingerprint": labels.get(FINGERPRINT_LABEL) if managed else None,
        "state": str(state.get("Status") or ""),
        "pid": state.get("Pid") or None,
        "ports": _published_ports(item),
    }


def _published_ports(item: dict[str, Any]) -> list[int]:
    """Return the host ports that a container publishes."""
    bindings = _mapping(_mapping(item.get("HostConfig")).get("PortBindings"))
    rows = [row for entries in bindings.values() for row in (entries if isinstance(entries, list) else [])]
    ports = {str(_mapping(row).get("HostPort")) for row in rows}
    return sorted({int(port) for port in ports if re.fullmatch(r"[0-9]{1,5}", port)})


def match_images(refs: Sequence[str], text: str, errors: str) -> dict[str, dict[str, Any] | None] | None:
    """Return the images of C(docker image inspect) by reference. docker prints the present ones in the order of its arguments.

    :returns: the image as docker has it, or None for a missing one; None if output and messages do not add up (then ask one by one)
    """
    items = _json(text, list) or []
    missing = [
        ref for ref in refs if re.search(rf"[Nn]o such (image|object): {re.escape(ref)}\s*$", errors, re.MULTILINE)
    ]
    present = [ref for ref in refs if ref not in missing]
    if len(items) != len(present):
        return None
    return {**dict.fromkeys(refs), **dict(zip(present, items))}


def absent_image() -> dict[str, Any]:
    """Return the row of C(describe_image) for a missing image."""
    return {**describe_image({}), "present": False}


def describe_image(item: dict[str, Any]) -> dict[str, Any]:
    """Reduce one image of C(docker image inspect) to the facts that decide how an engine in it is started.

    Returns C({present, id, repo_digests, architecture, os, entrypoint, cmd, env, labels, size_gib, entrypoint_family,
    vllm_version, vllm_version_source}). env holds only names of vLLM, CUDA, Triton and NVIDIA and no secrets; labels only those
    of the collection and of OCI.
    """
    item = _mapping(item)
    config = _mapping(item.get("Config"))
    environment = dict(entry.split("=", 1) for entry in _texts(config.get("Env")) if "=" in entry)
    labels = {
        name: value
        for name, value in _mapping(config.get("Labels")).items()
        if name.startswith(("dgxspark.", "org.opencontainers.")) and isinstance(value, str)
    }
    entrypoint = _texts(config.get("Entrypoint"))
    cmd = _texts(config.get("Cmd"))
    version, source = vllm_version(environment, labels)
    size = item.get("Size")
    return {
        "present": bool(item),
        "id": item.get("Id") or None,
        "repo_digests": sorted(_texts(item.get("RepoDigests"))),
        "architecture": item.get("Architecture") or None,
        "os": item.get("Os") or None,
        "entrypoint": entrypoint,
        "cmd": cmd,
        "env": {
            name: value
            for name, value in sorted(environment.items())
            if _ENV_NAMES.match(name) and not secret_names.is_secret_variable(name)
        },
        "labels": dict(sorted(labels.items())),
        "size_gib": round(size / 1024**3, 3) if isinstance(size, (int, float)) and size else None,
        "entrypoint_family": entrypoint_family(entrypoint) if item else "unknown",
        "vllm_version": version,
        "vllm_version_source": source,
    }


def entrypoint_family(entrypoint: list[str]) -> str:
    """Return which words follow the image name on a command line.

    C(serve): the entrypoint is vLLM's server and takes its arguments (vllm/vllm-openai). C(passthrough): an image without entrypoint,
    or with one that executes its arguments (NVIDIA's nvidia_entrypoint.sh). C(unknown): any other program.
    """
    words = [word for part in entrypoint for word in part.split()]
    if not words:
        return "passthrough"
    base = [word.rsplit("/", 1)[-1] for word in words]
    if "vllm.entrypoints.openai.api_server" in words or any(
        first == "vllm" and second == "serve" for first, second in zip(base, base[1:])
    ):
        return "serve"
    if base[0] in ("nvidia_entrypoint.sh", "tini", "dumb-init", "env") and "serve" not in base:
        return "passthrough"
    return "unknown"


def vllm_version(environment: dict[str, str], labels: dict[str, str]) -> tuple[str | None, str | None]:
    """Return the version in the labels or environment of an image, with its place, else (None, None).

    C(NVIDIA_VLLM_VERSION) is not used: it is the release of NVIDIA's container (26.04), not of vLLM.
    """
    candidates = [
        ("label dgxspark.vllm.version", labels.get("dgxspark.vllm.version")),
        ("label dgxspark.vllm_version", labels.get("dgxspark.vllm_version")),
        ("env VLLM_VERSION", environment.get("VLLM_VERSION")),
    ]
    about = labels.get("org.opencontainers.image.title", "") + labels.get("org.opencontainers.image.source", "")
    if "vllm" in about.lower():
        candidates.append(("label org.opencontainers.image.version", labels.get("org.opencontainers.image.version")))
    for source, value in candidates:
        match = _VERSION.match(value or "")
        if match:
            return match.group(1), source
    return None, None
