# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the Docker engine says about itself, its containers and its images: pure parsers of its JSON."""

from __future__ import annotations

import json
import re
from typing import Any

INFO_COMMAND = ["docker", "info", "--format", "{{json .}}"]
LIST_COMMAND = ["docker", "ps", "--all", "--quiet", "--no-trunc"]

MANAGED_LABEL = "dgxspark.managed"
SERVICE_LABEL = "dgxspark.service"
FINGERPRINT_LABEL = "dgxspark.fingerprint"
NAME_PREFIX = "spark-"

_ENV_NAMES = re.compile(r"(VLLM|CUDA|NV|NVIDIA|NCCL|TORCH_CUDA|TRITON)[A-Z0-9_]*\Z")
_SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSW", re.IGNORECASE)
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?(?:[-.+a-z0-9]*)?)\Z")


def _json(text: str, wanted: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, wanted) else None


def parse_info(text: str) -> dict[str, Any]:
    """Parse C(INFO_COMMAND): C({version, reachable, cgroup_version, cgroup_driver, runtimes, root_dir, error}).

    The client answers with an empty version and C(ServerErrors) when no engine can be reached.
    """
    info = _json(text, dict) or {}
    version = info.get("ServerVersion") or None
    errors = info.get("ServerErrors") or []
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


def parse_containers(text: str) -> list[dict[str, Any]]:
    """Parse C(docker container inspect): C([{name, id, image, image_id, managed, service, fingerprint, state, pid, ports}]) by name.

    service: the label of the collection, or the name without its prefix, for managed containers; else None.
    fingerprint: the label that says which plan the container was started from, else None.
    ports: host ports that the container publishes.
    """
    found = []
    for item in _json(text, list) or []:
        if not isinstance(item, dict):
            continue
        config = item.get("Config") or {}
        state = item.get("State") or {}
        labels = config.get("Labels") or {}
        name = str(item.get("Name") or "").lstrip("/")
        managed = str(labels.get(MANAGED_LABEL, "")).lower() == "true"
        plain = name[len(NAME_PREFIX) :] if name.startswith(NAME_PREFIX) else name
        bindings = (item.get("HostConfig") or {}).get("PortBindings") or {}
        published = {
            int(binding["HostPort"])
            for entries in bindings.values()
            for binding in entries or []
            if str(binding.get("HostPort") or "").isdigit()
        }
        found.append(
            {
                "name": name,
                "id": str(item.get("Id") or ""),
                "image": str(config.get("Image") or ""),
                "image_id": str(item.get("Image") or ""),
                "managed": managed,
                "service": labels.get(SERVICE_LABEL, plain) if managed else None,
                "fingerprint": labels.get(FINGERPRINT_LABEL) if managed else None,
                "state": str(state.get("Status") or ""),
                "pid": state.get("Pid") or None,
                "ports": sorted(published),
            }
        )
    return sorted(found, key=lambda container: container["name"])


def image_command(refs: list[str]) -> list[str]:
    """Return the one call that describes all C(refs); docker prints those that exist and names the others on stderr."""
    return ["docker", "image", "inspect", "--", *refs]


def parse_images(refs: list[str], text: str, errors: str) -> dict[str, dict[str, Any] | None] | None:
    """Map each of C(refs) to its parsed image (see C(describe_image)), or to None when the engine does not have it.

    docker prints the found ones in the order asked for. Returns None when output and messages do not add up (then ask
    for each reference alone).
    """
    items = _json(text, list) or []
    missing = [
        ref for ref in refs if re.search(rf"[Nn]o such (image|object): {re.escape(ref)}\s*$", errors, re.MULTILINE)
    ]
    present = [ref for ref in refs if ref not in missing]
    if len(items) != len(present):
        return None
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(refs)
    found.update({ref: describe_image(item) for ref, item in zip(present, items)})
    return found


def absent_image() -> dict[str, Any]:
    """What C(describe_image) returns, for an image that is not there."""
    return {**describe_image({}), "present": False}


def describe_image(item: dict[str, Any]) -> dict[str, Any]:
    """Reduce one image of C(docker image inspect) to what decides how an engine in it is started.

    Returns C({present, id, repo_digests, architecture, os, entrypoint, cmd, env, labels, size_gib, entrypoint_family,
    vllm_version, vllm_version_source}). env holds only names of vLLM, CUDA, Triton and NVIDIA and no secrets; labels only those
    of the collection and of OCI.
    """
    config = item.get("Config") or {}
    environment = dict(entry.split("=", 1) for entry in config.get("Env") or [] if "=" in entry)
    labels = {
        name: value
        for name, value in (config.get("Labels") or {}).items()
        if name.startswith(("dgxspark.", "org.opencontainers."))
    }
    entrypoint = list(config.get("Entrypoint") or [])
    cmd = list(config.get("Cmd") or [])
    version, source = vllm_version(environment, labels)
    return {
        "present": bool(item),
        "id": item.get("Id") or None,
        "repo_digests": sorted(item.get("RepoDigests") or []),
        "architecture": item.get("Architecture") or None,
        "os": item.get("Os") or None,
        "entrypoint": entrypoint,
        "cmd": cmd,
        "env": {
            name: value
            for name, value in sorted(environment.items())
            if _ENV_NAMES.match(name) and not _SECRET_NAMES.search(name)
        },
        "labels": dict(sorted(labels.items())),
        "size_gib": round(item["Size"] / 1024**3, 3) if item.get("Size") else None,
        "entrypoint_family": entrypoint_family(entrypoint) if item else "unknown",
        "vllm_version": version,
        "vllm_version_source": source,
    }


def entrypoint_family(entrypoint: list[str]) -> str:
    """Tell what follows the image name on a command line.

    C(serve): the entrypoint is vLLM's server and takes its arguments (vllm/vllm-openai). C(passthrough): there is none,
    or one that executes what it is given (NVIDIA's nvidia_entrypoint.sh). C(unknown): any other program.
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
    """Return (version, where it is written) as far as an image says it itself, else (None, None).

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
