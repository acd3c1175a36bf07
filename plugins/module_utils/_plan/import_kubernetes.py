# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manifests of Kubernetes, read into one C(Draft): the container that runs vLLM, in whatever workload its pod stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._common import redaction, shell
from .._common.docker_run import DockerRun
from . import import_scripts
from .import_draft import OWN_IMAGE, Draft, Unreadable, text_of

# A name in brackets; two dollars keep it as it is.
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_SIZE = re.compile(r"(\d+)([KMGT])i?")
_KEYS = {
    "envFrom": "what it sets is not known here; add it to env and secrets",
    "lifecycle": "the unit starts and stops the engine as vLLM needs",
    "resources": "spark_gpu_args gives every engine the GPU, and the plan works its memory out",
    "securityContext": "engines run as the image's user here, without capabilities",
}
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_POD = {
    "initContainers": f"ran before the engine; put what they do into {OWN_IMAGE}",
    "nodeSelector": "hosts are named in the inventory",
    "affinity": "hosts are named in the inventory",
    "hostPID": "engines have their own processes here",
}
_SILENT_KINDS = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "PodMonitor", "ServiceMonitor")
_KIND_REASONS = {
    "Service": "the engine's own port is the one that clients use here; spark_gateway gives one address for several",
    "Ingress": "spark_gateway is what others reach; a proxy in front of it is yours",
    "PersistentVolumeClaim": "weights are kept in spark_hf_home of each host",
    "PersistentVolume": "weights are kept in spark_hf_home of each host",
    "Secret": "keys are files on the controller here",
}


@dataclass(frozen=True)
class _Container:
    """A container with what it stands in: its workload, the keys on the way to the pod, and the pod."""

    workload: Mapping[str, Any]
    way: Sequence[str]
    pod: Mapping[str, Any]
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.body.get("name") or _name(self.workload))


def read(draft: Draft, document: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Read a manifest, or a C(List) of several.

    :param draft: that becomes it
    :param document: the manifest
    :param options: of C(importer.import_launch)
    :raises Unreadable: where no container of it runs vLLM, or not exactly one
    """
    items = document.get("items") if str(document.get("kind")).endswith("List") else [document]
    found: list[_Container] = []
    for item in items if isinstance(items, list) else []:
        if not isinstance(item, Mapping):
            raise Unreadable("an item of the list is no manifest")
        own = list(_containers(item, item, ()))
        found += own
        kind = str(item.get("kind"))
        if not own and kind not in _SILENT_KINDS:
            draft.leave(f"{kind} {_name(item)}", _KIND_REASONS.get(kind, "is no part of the engine"))
    serving = [each for each in found if options["select"] or _role(each) in ("engine", "rank")]
    leading = [each for each in serving if _role(each) == "engine" and not _of_workers(each)] or serving
    named = [(each.name, each) for each in leading]
    _found, chosen = import_scripts.one(named, options["select"], "containers that run vLLM")
    for each in found:
        if each is not chosen:
            rank = each.workload is chosen.workload and (_of_workers(each) or _role(each) in ("rank", "ray"))
            reason = import_scripts.RANKS if rank else "another container, which is no part of the engine"
            draft.leave(f"container {each.name}", reason)
    _take(draft, chosen)


def _containers(workload: Mapping[str, Any], value: Any, way: Sequence[str]) -> Iterator[_Container]:
    """Find every pod of a workload: a Deployment has one template, a LeaderWorkerSet and a RayCluster have several."""
    if isinstance(value, Mapping):
        inner = value.get("containers")
        if isinstance(inner, list):
            yield from (_Container(workload, way, value, body) for body in inner if isinstance(body, Mapping))
            return
        for key, item in value.items():
            yield from _containers(workload, item, (*way, str(key)))
    elif isinstance(value, list):
        for item in value:
            yield from _containers(workload, item, way)


def _of_workers(container: _Container) -> bool:
    return any("worker" in key.lower() and key != "leaderWorkerTemplate" for key in container.way)


def _role(container: _Container) -> str:
    words = _words(container.body, {})
    role = import_scripts.run_role(DockerRun(image=str(container.body.get("image") or ""), command=words))
    own = not words and "vllm" in str(container.body.get("image"))
    return "engine" if own else role


def _words(body: Mapping[str, Any], given: Mapping[str, str]) -> list[str]:
    """Return the command of a container with its arguments; given: what placeholders of a template stand for."""
    parts: list[Any] = [*_listed(body, "command"), *_listed(body, "args")]
    known = {str(each.get("name")): each.get("value") for each in _env(body)}
    return [_settled(part, known, given) for part in parts]


def _settled(value: Any, known: Mapping[str, Any], given: Mapping[str, str]) -> str:
    """Return a text with C($(NAME)) of Kubernetes, and C(${NAME}) of a template, replaced; what is not known waits."""

    def referred(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "$"
        if known.get(name) is None:
            return f"${{{name}}}"
        return str(shell.count_expanded(name, text_of(known[name])))

    text = _REFERENCE.sub(referred, text_of(value))
    return _PLACEHOLDER.sub(lambda match: given.get(match.group(1), match.group()), text)


def _env(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in _listed(body, "env") if isinstance(each, Mapping)]


def _listed(body: Mapping[str, Any], key: str) -> list[Any]:
    value = body.get(key)
    if value is not None and not isinstance(value, list):
        raise Unreadable(f"'{key}' of the container {body.get('name')} must be a list")
    return list(value or [])


def _take(draft: Draft, container: _Container) -> None:
    """Make the draft of a container."""
    body, pod = container.body, container.pod
    draft.name = _name(container.workload) or container.name
    draft.run.image = _settled(body.get("image") or "", {}, draft.variables)
    command = _listed(body, "command")
    words = _words(body, draft.variables)
    if command:
        draft.run.options.append(("--entrypoint", words[0]))
        words = words[1:]
    draft.run.command = words
    draft.run.options.append(("--network", "host"))
    for each in _env(body):
        _variable(draft, each)
    _volumes(draft, pod, body)
    for key, reason in _KEYS.items():
        if body.get(key):
            draft.leave(key, reason)
    for key in _PROBES:
        if body.get(key):
            draft.leave(key, "the unit is active when the model has answered")
    for key, reason in _POD.items():
        if pod.get(key):
            draft.leave(key, reason)
    _size(draft, container.workload.get("spec"))


def _size(draft: Draft, spec: Any) -> None:
    """Say what becomes of replicas, and how many Sparks one of them spans."""
    if not isinstance(spec, Mapping):
        return
    replicas = spec.get("replicas")
    if isinstance(replicas, int) and replicas > 1:
        draft.leave(
            f"replicas: {replicas}", "replicas are services of their own: serve the model on each Spark by itself"
        )
    size = (spec.get("leaderWorkerTemplate") or {}).get("size")
    draft.nodes = size if isinstance(size, int) else 0


def _variable(draft: Draft, entry: Mapping[str, Any]) -> None:
    name = str(entry.get("name"))
    origin = entry.get("valueFrom")
    if not isinstance(origin, Mapping):
        known = {str(key): value for key, value in draft.run.env.items()}
        draft.env({name: _settled(entry.get("value", ""), known, draft.variables)})
    elif "secretKeyRef" in origin and redaction.is_secret_variable(name):
        draft.run.options.append(("--env", name))
    elif "secretKeyRef" in origin:
        draft.leave(name, "comes from a secret of the cluster; put it into a file and name that under 'secrets'")
    else:
        draft.leave(name, f"is taken from {next(iter(origin), 'the pod')}, which is not known here")


def _volumes(draft: Draft, pod: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    """Take over folders of the host; say of other volumes why not."""
    volumes = {str(each.get("name")): each for each in _listed(pod, "volumes") if isinstance(each, Mapping)}
    for mount in _listed(body, "volumeMounts"):
        if not isinstance(mount, Mapping):
            raise Unreadable("'volumeMounts' must be a list of mappings")
        target, volume = str(mount.get("mountPath")), volumes.get(str(mount.get("name")), {})
        folder = volume.get("hostPath")
        memory = volume.get("emptyDir")
        if target == "/dev/shm":
            limit = memory.get("sizeLimit") if isinstance(memory, Mapping) else None
            size = _SIZE.fullmatch(str(limit or ""))
            if size:
                draft.run.options.append(("--shm-size", f"{size.group(1)}{size.group(2).lower()}"))
        elif isinstance(folder, Mapping) and folder.get("path"):
            spec = f"{folder['path']}:{target}"
            draft.run.options.append(("--volume", f"{spec}:ro" if mount.get("readOnly") else spec))
        else:
            kind = next((key for key in volume if key != "name"), "nothing that is named here")
            draft.leave(
                f"volume {mount.get('name')} at {target}",
                f"is made of {kind}; weights are kept in spark_hf_home and caches in spark_cache_dir of each host",
            )


def _name(workload: Mapping[str, Any]) -> str:
    about = workload.get("metadata")
    return str(about.get("name") or "") if isinstance(about, Mapping) else ""
