# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manifests of Kubernetes, read into a C(Draft): the container that runs vLLM, in any kind of workload."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._common import secret_names, shell
from .._common.docker_run import DockerRun
from . import import_scripts
from .import_draft import OWN_IMAGE, Draft, Unreadable, choose, text_of
from .import_inline import inline_scripts, script_path

# A name in brackets; two dollars escape it.
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_SIZE = re.compile(r"(\d+)([KMGT])i?")
_KEYS = {
    "lifecycle": "the unit starts and stops the engine as vLLM needs",
    "resources": "spark_gpu_args gives every engine the GPU, and the plan works its memory out",
    "securityContext": "engines run as the image's user here, without capabilities",
    **dict.fromkeys(
        ("livenessProbe", "readinessProbe", "startupProbe"), "the unit is active when the model has answered"
    ),
}
_POD = {
    "nodeSelector": "hosts are named in the inventory",
    "affinity": "hosts are named in the inventory",
    "hostPID": "engines have their own processes here",
}
_SILENT_KINDS = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "PodMonitor", "ServiceMonitor")
_KIND_REASONS = {
    "Service": "clients use the engine's port directly; spark_gateway gives one address for several engines",
    "Ingress": "clients use spark_gateway; set up a proxy in front of it yourself",
    "ConfigMap": "only the script that the engine's container runs, and variables, are read from it",
    "PersistentVolumeClaim": "weights are kept in spark_hf_home of each host",
    "PersistentVolume": "weights are kept in spark_hf_home of each host",
    "Secret": "keys are files on the controller here",
}
_ConfigMaps = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class _Container:
    """A container, with its workload, the keys from the workload to the pod, and the pod. maps: data of each ConfigMap of the file, by its name."""

    workload: Mapping[str, Any]
    pod_keys: Sequence[str]
    pod: Mapping[str, Any]
    body: Mapping[str, Any]
    maps: _ConfigMaps

    @property
    def name(self) -> str:
        return str(self.body.get("name") or _name(self.workload))

    @property
    def names(self) -> set[str]:
        """The names that C(select) accepts."""
        workload = _name(self.workload)
        kind = str(self.workload.get("kind"))
        return {self.name, workload, f"{workload}/{self.name}", f"{kind}/{workload}", f"{kind.lower()}/{workload}"}

    @property
    def text(self) -> str:
        """The unambiguous name of it, for messages."""
        workload = _name(self.workload)
        return f"{workload}/{self.name}" if workload and workload != self.name else self.name


def read(draft: Draft, document: Mapping[str, Any]) -> None:
    """Read a manifest, or a C(List) of several. Raises Unreadable if no container runs vLLM, or not exactly one."""
    items = document.get("items") if str(document.get("kind")).endswith("List") else [document]
    items = items if isinstance(items, list) else []
    if not all(isinstance(item, Mapping) for item in items):
        raise Unreadable("an item of the list is no manifest")
    maps: _ConfigMaps = {
        _name(item): item["data"]
        for item in items
        if item.get("kind") == "ConfigMap" and isinstance(item.get("data"), Mapping)
    }
    containers: list[_Container] = []
    for item in items:
        item_containers = list(_containers(item, item, (), maps))
        containers += item_containers
        kind = str(item.get("kind"))
        if not item_containers and kind not in _SILENT_KINDS:
            draft.leave(f"{kind} {_name(item)}", _KIND_REASONS.get(kind, "is no part of the engine"))
    chosen = _chosen(containers, draft.select)
    for container in containers:
        if container is not chosen:
            _leave_other(draft, container, chosen)
    _take(draft, chosen)


def _leave_other(draft: Draft, container: _Container, chosen: _Container) -> None:
    """Record a container that is not imported, with the reason."""
    same_workload = container.workload is chosen.workload
    is_rank = _role(container) in ("rank", "ray") or (same_workload and _of_workers(container))
    reason = import_scripts.RANKS if is_rank else "another container, which is no part of the engine"
    draft.leave(f"container {container.name if same_workload else container.text}", reason)


def _chosen(containers: Sequence[_Container], select: str | None) -> _Container:
    """Return the container that runs the engine, of the workload or name C(select)."""
    candidates = [container for container in containers if select is None or select in container.names]
    waiting = [container for container in candidates if select is not None or _missing_script(container)]
    matches = _engines(candidates) or waiting
    if select is not None and not matches:
        names = ", ".join(container.text for container in containers)
        raise Unreadable(f"there is no {select!r} among the containers: {names or 'none'}")
    chosen: _Container = choose(
        [(container.text, container) for container in matches], None, "containers that run vLLM"
    )[1]
    return chosen


def _engines(containers: Sequence[_Container]) -> list[_Container]:
    """Return the containers of leading engines, else of all engines and ranks."""
    serving = [container for container in containers if _role(container) in ("engine", "rank")]
    return [item for item in serving if _role(item) == "engine" and not _of_workers(item)] or serving


def _containers(
    workload: Mapping[str, Any], value: Any, keys: Sequence[str], maps: _ConfigMaps
) -> Iterator[_Container]:
    """Find every pod of a workload: a Deployment has one template, a LeaderWorkerSet and a RayCluster have several."""
    if isinstance(value, Mapping) and isinstance(value.get("containers"), list):
        yield from (
            _Container(workload, keys, value, body, maps) for body in value["containers"] if isinstance(body, Mapping)
        )
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _containers(workload, item, (*keys, str(key)), maps)
    elif isinstance(value, list):
        for item in value:
            yield from _containers(workload, item, keys, maps)


def _of_workers(container: _Container) -> bool:
    return any("worker" in key.lower() and key != "leaderWorkerTemplate" for key in container.pod_keys)


def _role(container: _Container) -> str:
    words = _words(container, {})
    role = import_scripts.run_role(DockerRun(image=str(container.body.get("image") or ""), command=words))
    default_command = not words and "vllm" in str(container.body.get("image"))
    return "engine" if default_command else role


def _words(container: _Container, placeholders: Mapping[str, str]) -> list[str]:
    """Return the command of a container with its arguments and the scripts of ConfigMaps in place."""
    body = container.body
    parts: list[Any] = [*_listed(body, "command"), *_listed(body, "args")]
    values = {str(entry.get("name")): entry.get("value") for entry in _env(container)}
    words = [_settled(part, values, placeholders) for part in parts]
    return inline_scripts(words, _scripts(container)[0], str(body.get("workingDir") or "/"))


def _scripts(container: _Container) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files that ConfigMaps bring into a container.

    :returns: text of each file by its path, and the names of ConfigMaps that the file lacks by the path of their mount
    """
    volumes = _by_name(container.pod, "volumes")
    files: dict[str, str] = {}
    missing: dict[str, str] = {}
    for mount in _listed(container.body, "volumeMounts"):
        volume = volumes.get(str(mount.get("name")), {}) if isinstance(mount, Mapping) else {}
        projected = volume.get("projected")
        sources = projected.get("sources") if isinstance(projected, Mapping) else [volume]
        for source in sources if isinstance(sources, list) else []:
            reference = source.get("configMap") if isinstance(source, Mapping) else None
            if not isinstance(reference, Mapping):
                continue
            name, folder = str(reference.get("name")), str(mount.get("mountPath")).rstrip("/")
            if name not in container.maps:
                missing[folder] = name
                continue
            files.update(_mounted_files(reference, container.maps[name], folder, str(mount.get("subPath") or "")))
    return files, missing


def _mounted_files(
    reference: Mapping[str, Any], data: Mapping[str, Any], folder: str, only: str
) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file of a ConfigMap. only: the path of the only mounted file, empty for all."""
    items = [item for item in reference.get("items") or [] if isinstance(item, Mapping)]
    paths = {str(item.get("key")): str(item.get("path")) for item in items} or {key: key for key in data}
    for key, path in paths.items():
        if not only or path == only:
            yield folder if only else f"{folder}/{path}", text_of(data.get(key, ""))


def _missing_script(container: _Container) -> str:
    """Return a message if a container runs a script of a ConfigMap that the file lacks, else an empty text."""
    path = script_path(_words(container, {}))
    name = next((name for folder, name in _scripts(container)[1].items() if path.startswith(folder)), "")
    if not path or not name:
        return ""
    return (
        f"the container {container.text} runs {path}, a script of the ConfigMap {name}, which is not in this file: add its "
        f"manifest (kubectl get configmap {name} -o yaml), or give the script itself"
    )


def _settled(value: Any, values: Mapping[str, Any], placeholders: Mapping[str, str]) -> str:
    """Return a text with C($(NAME)) of Kubernetes, and C(${NAME}) of a template, replaced; unknown ones stay."""

    def referred(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "$"
        if values.get(name) is None:
            return f"${{{name}}}"
        return str(shell.count_expanded(name, text_of(values[name])))

    text = _REFERENCE.sub(referred, text_of(value))
    return _PLACEHOLDER.sub(lambda match: placeholders.get(match.group(1), match.group()), text)


def _env(container: _Container) -> list[Mapping[str, Any]]:
    """Return the variables of a container; variables from ConfigMaps of the file have their values."""
    entries: list[Mapping[str, Any]] = []
    for source in _listed(container.body, "envFrom"):
        data = _referenced_data(source, "configMapRef", container.maps)
        prefix = str(source.get("prefix") or "") if isinstance(source, Mapping) else ""
        entries += [{"name": f"{prefix}{key}", "value": text_of(value)} for key, value in (data or {}).items()]
    for entry in _listed(container.body, "env"):
        if isinstance(entry, Mapping):
            origin = entry.get("valueFrom")
            data = _referenced_data(origin, "configMapKeyRef", container.maps)
            key = str(origin["configMapKeyRef"].get("key")) if isinstance(origin, Mapping) and data else ""
            entries.append({"name": entry.get("name"), "value": text_of(data[key])} if data and key in data else entry)
    return entries


def _referenced_data(origin: Any, key: str, maps: _ConfigMaps) -> Mapping[str, Any] | None:
    """Return the data of the ConfigMap that a source of variables refers to, None if the file lacks it."""
    reference = origin.get(key) if isinstance(origin, Mapping) else None
    return maps.get(str(reference.get("name"))) if isinstance(reference, Mapping) else None


def _by_name(body: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    return {str(entry.get("name")): entry for entry in _listed(body, key) if isinstance(entry, Mapping)}


def _listed(body: Mapping[str, Any], key: str) -> list[Any]:
    value = body.get(key)
    if value is not None and not isinstance(value, list):
        raise Unreadable(f"'{key}' of the container {body.get('name')} must be a list")
    return list(value or [])


def _take(draft: Draft, container: _Container) -> None:
    body, pod = container.body, container.pod
    draft.name = _name(container.workload) or container.name
    draft.run.image = _settled(body.get("image") or "", {}, draft.variables).removeprefix("docker.io/")
    draft.run.image = draft.run.image.removeprefix("library/")
    if body.get("imagePullPolicy") == "Never":
        draft.leave(
            f"image {draft.run.image}",
            "is never pulled (imagePullPolicy), so only its node has it: push it to a registry and name it in full",
        )
    problem = _missing_script(container)
    if problem:
        raise Unreadable(problem)
    command = _listed(body, "command")
    draft.run.command = _words(container, draft.variables)
    script = script_path([text_of(word) for word in (*command, *_listed(body, "args"))])
    if script in _scripts(container)[0]:
        draft.leave(f"script {script}", "its text is in the file: the engine that it starts is read")
    if command:
        draft.run.options.append(("--entrypoint", draft.run.command.pop(0)))
    draft.run.options.append(("--network", "host"))
    for entry in _env(container):
        _variable(draft, entry)
    for source in _listed(body, "envFrom"):
        if _referenced_data(source, "configMapRef", container.maps) is None:
            draft.leave("envFrom", "its values are not known; add them to env and secrets")
    _volumes(draft, pod, body)
    for key in filter(body.get, _KEYS):
        draft.leave(key, _KEYS[key])
    for init_container in _listed(pod, "initContainers"):
        words = _words(replace(container, body=init_container), draft.variables)
        if not draft.note_download(words):
            draft.leave("initContainers", f"ran before the engine; move their commands to {OWN_IMAGE}")
    for key in filter(pod.get, _POD):
        draft.leave(key, _POD[key])
    _size(draft, container.workload.get("spec"))


def _size(draft: Draft, spec: Any) -> None:
    """Record replicas, and set the number of Sparks of one."""
    if not isinstance(spec, Mapping):
        return
    replicas = spec.get("replicas")
    ranks = any("--nnodes" in word for word in draft.run.command)
    if isinstance(replicas, int) and replicas > 1 and not ranks:
        draft.leave(f"replicas: {replicas}", "replicas are separate services: define one service on each Spark")
    size = (spec.get("leaderWorkerTemplate") or {}).get("size")
    draft.nodes = size if isinstance(size, int) else 0


def _variable(draft: Draft, entry: Mapping[str, Any]) -> None:
    name = str(entry.get("name"))
    origin = entry.get("valueFrom")
    if not isinstance(origin, Mapping):
        values = {str(key): value for key, value in draft.run.env.items()}
        draft.env({name: _settled(entry.get("value", ""), values, draft.variables)})
    elif "secretKeyRef" in origin and secret_names.is_secret_variable(name):
        draft.run.options.append(("--env", name))
    elif "secretKeyRef" in origin:
        draft.leave(name, "comes from a secret of the cluster; put it into a file and name that under 'secrets'")
    else:
        draft.leave(name, f"is taken from {next(iter(origin), 'the pod')}, which is not known here")


def _volumes(draft: Draft, pod: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    """Take over folders of the host; record the reason for other volumes."""
    volumes = _by_name(pod, "volumes")
    for mount in _listed(body, "volumeMounts"):
        if not isinstance(mount, Mapping):
            raise Unreadable("'volumeMounts' must be a list of mappings")
        target, volume = str(mount.get("mountPath")), volumes.get(str(mount.get("name")), {})
        folder = volume.get("hostPath")
        if target == "/dev/shm":
            memory = volume.get("emptyDir")
            size = _SIZE.fullmatch(str(memory.get("sizeLimit") or "")) if isinstance(memory, Mapping) else None
            if size:
                draft.run.options.append(("--shm-size", f"{size.group(1)}{size.group(2).lower()}"))
        elif isinstance(folder, Mapping) and folder.get("path"):
            spec = f"{folder['path']}:{target}"
            draft.run.options.append(("--volume", f"{spec}:ro" if mount.get("readOnly") else spec))
        else:
            kind = next((key for key in volume if key != "name"), "nothing that is named here")
            reason = f"is made of {kind}; weights are kept in spark_hf_home and caches in spark_cache_dir of each host"
            if kind in ("configMap", "projected"):
                reason = "its files are not carried over; the script that the container runs is read where the file has its text"
            draft.leave(f"volume {mount.get('name')} at {target}", reason)
            draft.dropped.append(target)


def _name(workload: Mapping[str, Any]) -> str:
    about = workload.get("metadata")
    return str(about.get("name") or "") if isinstance(about, Mapping) else ""
