# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compose files, read into a C(Draft): the service that runs vLLM, each key as options of C(docker run)."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from .._common import shell
from .._common.docker_run import DockerRun
from .import_draft import Draft, Unreadable, choose, word_set, words_of
from .import_inline import inline_scripts, mounted_scripts, script_path
from .import_scripts import RANKS, run_role
from .import_tables import GPU

VALUES = {
    "container_name": "--name",
    "mem_limit": "--memory",
    "memswap_limit": "--memory-swap",
    "network_mode": "--network",
    "pull_policy": "--pull",
    "stop_grace_period": "--stop-timeout",
    "working_dir": "--workdir",
    **{
        key: f"--{key.replace('_', '-')}"
        for key in word_set("hostname ipc pids_limit platform restart runtime shm_size stop_signal user cpus")
    },
}
LISTS = {
    "devices": "--device",
    "extra_hosts": "--add-host",
    "networks": "--network",
    **{
        key: f"--{key.replace('_', '-')}"
        for key in word_set("cap_add dns env_file expose group_add security_opt tmpfs")
    },
}
FLAGS = {
    "init": "--init",
    "privileged": "--privileged",
    "read_only": "--read-only",
    "stdin_open": "--interactive",
    "tty": "--tty",
}
_TYPE_NAMES: dict[type, str] = {str: "a text", list: "a list", dict: "a mapping"}
# Types of a key's value; other values are read as text.
_TYPES: dict[str, tuple[type, ...]] = {
    "image": (str,),
    "command": (str, list),
    "entrypoint": (str, list),
    "environment": (list, dict),
    "ports": (list,),
    "ulimits": (dict,),
    "volumes": (list,),
}
_REASONS = {
    "configs": "only a script that the container runs is read from them",
    "build": "images are pulled, not built, on the hosts: push what it builds to a registry",
    "depends_on": "engines of a host start one after another in any case",
    "deploy": f"{GPU}; systemd restarts it",
    "healthcheck": "the unit is active when the model has answered",
    "labels": "the unit of this collection sets its own",
    "logging": "the unit of this collection sets it itself",
    "gpus": GPU,
    "profiles": "which services run is what the inventory lists",
}


def read(draft: Draft, document: Mapping[str, Any]) -> None:
    """Read a compose file. Raises Unreadable without a service that runs vLLM, or with several."""
    configs = document.get("configs")
    configs = _expanded(configs, draft.variables) if isinstance(configs, Mapping) else {}
    services = {
        str(name): _with_scripts(draft, _expanded(body, draft.variables), configs)
        for name, body in document["services"].items()
        if isinstance(body, Mapping)
    }
    name, body = _chosen(services, draft.select)
    for other, other_body in services.items():
        if other != name:
            _note_other(draft, other, _outline(other_body))
    body = {key: value for key, value in body.items() if value is not None}
    draft.name = str(body.get("container_name") or name)
    _check_types(name, body)
    for key, value in body.items():
        _read_key(draft, key, value)
    draft.run.image = str(body.get("image") or "")
    draft.run.command = words_of(body.get("command"))
    if "entrypoint" in body:
        start = words_of(body["entrypoint"])
        draft.run.options.append(("--entrypoint", "".join(start[:1])))
        draft.run.command = [*start[1:], *draft.run.command]
    if body.get("build") and not draft.run.image:
        draft.leave("image", "is built by the compose file: push it to a registry and name it (image)")


def _note_other(draft: Draft, name: str, run: DockerRun | None) -> None:
    """Record a service that is not imported: as a download, else with the reason."""
    if run is None or not draft.note_download(run.command, "", run.mounts):
        joins = run is not None and run_role(run) in ("ray", "rank")
        draft.leave(f"service {name}", RANKS if joins else "another service of the compose file")


def _expanded(value: Any, variables: Mapping[str, str]) -> Any:
    """Replace variables as compose does; C($$) is a dollar."""
    if isinstance(value, Mapping):
        return {str(key): _expanded(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item, variables) for item in value]
    return shell.expand(value, variables) if isinstance(value, str) else value


def _check_types(name: str, body: Mapping[str, Any]) -> None:
    """Raise Unreadable for a key of a service with a value of the wrong type."""
    for key, types in _TYPES.items():
        if not isinstance(body.get(key, types[0]()), types):
            expected = " or ".join(_TYPE_NAMES[type_] for type_ in types)
            raise Unreadable(f"'{key}' of the service {name} must be {expected}")


# --- the services of a file -----------------------------------------------------------------------------------------


def _outline(body: Mapping[str, Any]) -> DockerRun | None:
    """Return image, volumes, entrypoint and command of a service; None for a command of a type that compose refuses."""
    parts = [body.get("entrypoint"), body.get("command")]
    if not all(isinstance(part, (str, list, type(None))) for part in parts):
        return None
    volumes = body.get("volumes")
    options = [("--volume", _volume(item)) for item in volumes] if isinstance(volumes, list) else []
    return DockerRun([*options], str(body.get("image") or ""), [word for part in parts for word in words_of(part)])


def _chosen(services: Mapping[str, dict[str, Any]], select: str | None) -> tuple[str, dict[str, Any]]:
    """Return name and body of the service to import: the selected one, else the only service with vLLM."""
    entries = list(services.items())
    if select is not None:
        named = [entry for entry in entries if select and select in (entry[0], entry[1].get("container_name"))]
        return named[0] if named else choose(entries, select, "services that run vLLM")
    return choose(_engines(entries) or (entries if len(entries) == 1 else []), None, "services that run vLLM")


def _engines(entries: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the services with vLLM: the only leading engine without a profile, else the leading engines, else all."""
    engines = [entry for entry in entries if "vllm" in str(entry)]
    runs = [_outline(body) for _name, body in engines]
    leading = [entry for entry, run in zip(engines, runs) if run is None or run_role(run) == "engine"]
    default = [entry for entry in leading if not entry[1].get("profiles")]
    return default if len(default) == 1 else leading or engines


def _with_scripts(draft: Draft, body: dict[str, Any], configs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service whose command has the text of scripts from configs and mounts. configs: of the compose file."""
    run = _outline(body)
    if run is None:
        return body
    scripts = {**_config_scripts(draft, body, configs), **mounted_scripts(run.mounts, draft.scripts)}
    words = inline_scripts(run.command, scripts, str(body.get("working_dir") or "/"))
    if words == run.command:
        return body
    path = script_path(run.command)
    draft.leave(f"script {path}" if path else "scripts", "its text is at hand: the engine that it starts is read")
    return {**body, "entrypoint": words[:1], "command": words[1:]}


def _config_scripts(draft: Draft, body: Mapping[str, Any], configs: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a service's configs by their path in the container."""
    scripts: dict[str, str] = {}
    entries = body.get("configs")
    for entry in entries if isinstance(entries, list) else []:
        reference = entry if isinstance(entry, Mapping) else {"source": entry}
        source = str(reference.get("source"))
        config = configs.get(source)
        if isinstance(config, Mapping):
            file = str(config.get("file") or "").removeprefix("./")
            text = draft.scripts.get(file) if config.get("content") is None else config["content"]
            if isinstance(text, str):
                scripts[posixpath.join("/", str(reference.get("target") or source))] = text
    return scripts


# --- the keys of a service ------------------------------------------------------------------------------------------


def _read_key(draft: Draft, key: str, value: Any) -> None:
    """Add one key of a service as options of docker run."""
    options = draft.run.options
    if key in VALUES:
        options.append((VALUES[key], str(value)))
    elif key in LISTS:
        for item in value if isinstance(value, (list, Mapping)) else [value]:
            options.append((LISTS[key], str(item.get("path") if isinstance(item, Mapping) else item)))
    elif key in FLAGS:
        options += [(FLAGS[key], None)] if value else []
    elif key == "environment":
        draft.env(value)
    elif key in _ITEMS:
        option, written = _ITEMS[key]
        options += [(option, written(item)) for item in value]
    elif key == "ulimits":
        for limit, bound in value.items():
            text = f"{bound.get('soft')}:{bound.get('hard')}" if isinstance(bound, Mapping) else str(bound)
            options.append(("--ulimit", f"{limit}={text}"))
    elif key not in ("image", "command", "entrypoint"):
        draft.leave(key, _REASONS.get(key, "this key of compose has no counterpart"))


def _published(item: Any) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    parts = [item.get("host_ip"), item.get("published"), item.get("target")]
    return ":".join(str(part) for part in parts if part is not None)


def _volume(item: Any) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    spec = f"{item['source']}:{item.get('target')}" if item.get("source") else str(item.get("target"))
    return f"{spec}:ro" if item.get("read_only") else spec


_ITEMS = {"ports": ("--publish", _published), "volumes": ("--volume", _volume)}
