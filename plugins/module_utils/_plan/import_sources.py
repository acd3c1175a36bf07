# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The forms that a launch of vLLM is found in, each read into one C(Draft).

Units and compose files are read here, scripts and recipes by C(import_scripts) and C(import_recipes).
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._common import docker_run, shell
from .._common.docker_run import DockerRun
from . import import_kubernetes, import_recipes, import_scripts
from .import_draft import Draft, Unreadable, words_of
from .import_inline import inline_scripts, mounted_scripts, script_path

FORMS = ("docker", "compose", "kubernetes", "systemd", "eugr", "sparkrun", "vllm_recipe", "nvidia")
_HELM = re.compile(r"\{\{-?\s*(?:\.(?:Values|Release|Chart)\b|(?:include|if|with|range|toYaml|template|define)\s)")


def detect(text: str, document: Any) -> str:
    """Return the form of a text."""
    if docker_run.is_unit(text):
        return "systemd"
    if isinstance(document, Mapping):
        return _detect_yaml(document)
    if _HELM.search(text):
        raise Unreadable("a template of Helm: render it first (helm template), and give what comes out")
    return "docker"


def _detect_yaml(document: Mapping[str, Any]) -> str:
    """Return the form of a YAML document; raises Unreadable for any other."""
    if (document.get("kind") and document.get("apiVersion")) or _is_pod(document):
        return "kubernetes"
    if isinstance(document.get("services"), Mapping):
        return "compose"
    if isinstance(document.get("model"), Mapping) and document["model"].get("model_id"):
        return "vllm_recipe"
    if "schema_version" in document:
        return "nvidia"
    if document.get("runtime") or str(document.get("recipe_version")) == "2":
        return "sparkrun"
    if document.get("container") and (document.get("command") or document.get("model")):
        return "eugr" if document.get("command") else "sparkrun"
    if _is_chart_values(document):
        raise Unreadable(
            "values of a Helm chart: render it with them first (helm template NAME CHART -f VALUES), and give what comes out"
        )
    if _has_commands(document.get("models")):
        raise Unreadable("a configuration of llama-swap: give the command of one model (its cmd) by itself")
    raise Unreadable(
        "YAML, but neither a compose file, a manifest of Kubernetes nor a recipe of eugr, sparkrun, vLLM or NVIDIA"
    )


def _is_pod(document: Mapping[str, Any]) -> bool:
    """Return whether a document is the containers, the pod or the template of a workload, as guides print a part of it."""
    inner: Any = document
    for key in ("", "spec", "template", "spec"):
        inner = inner.get(key) if key and isinstance(inner.get(key), Mapping) else inner
        if isinstance(inner.get("containers"), list):
            return True
    return False


def _is_chart_values(value: Any) -> bool:
    """Return whether YAML names images as charts of Helm do: repository and tag by themselves."""
    if isinstance(value, Mapping):
        return {"repository", "tag"} <= value.keys() or any(map(_is_chart_values, value.values()))
    return isinstance(value, list) and any(map(_is_chart_values, value))


def _has_commands(models: Any) -> bool:
    return isinstance(models, Mapping) and any(
        isinstance(model, Mapping) and "cmd" in model for model in models.values()
    )


def read_source(text: str, document: Any, form: str, **options: Any) -> Draft:
    """Return the draft of a launch.

    :param text: the launch
    :param document: the text as YAML, if it is YAML
    :param form: one of C(FORMS), or C(auto)
    :param options: C(variables), C(files), C(scripts), C(select), C(variant) and C(features) of C(importer.import_launch)
    :returns: the launch, in docker's options
    :raises Unreadable: if it has no launch of vLLM
    """
    form = detect(text, document) if form == "auto" else form
    if form not in FORMS:
        raise Unreadable(f"form is {form!r}, expected auto or one of {', '.join(FORMS)}")
    draft = Draft(form, variables=options["variables"], files=options["files"], scripts=options["scripts"], text=text)
    try:
        _READERS[form](draft, text if form in ("docker", "systemd") else _mapping(document, form), options)
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"{error}{_folding(form, str(error))}") from error
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except (AttributeError, KeyError, TypeError) as error:  # a list where a text belongs, and the like
        raise Unreadable(f"it is not written as the form {form} is: {error}") from error
    return draft


def _folding(form: str, problem: str) -> str:
    """Return the effect of YAML on a command that no shell would accept."""
    if form not in ("compose", "kubernetes") or not problem.startswith("line "):
        return ""
    return "; the line is that of the container's command: a folded text ('>') keeps line breaks around lines that are indented further"


def _mapping(document: Any, form: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise Unreadable(f"a file of the form {form} is a YAML mapping, this is not")
    return document


# --- systemd ------------------------------------------------------------------------------------------------------

_UNIT_REASONS = {
    "User": "the unit runs docker as root, the engine is the image's user",
    "Group": "the unit runs docker as root, the engine is the image's user",
    "Restart": "the unit has Restart=always with a bounded number of starts: vllm serve exits with 0 when its engine dies",
    "RestartSec": "the unit has its own pause between starts",
    "TimeoutStartSec": "start_timeout is the time until the model has answered; 3000 seconds unless set",
    "TimeoutStopSec": "the unit stops an engine as long as vLLM needs",
    "PermissionsStartOnly": "what needs root has it in the unit of this collection",
}
_WRITES_UNIT = "this collection writes the unit itself"


def _systemd(draft: Draft, text: str, options: Mapping[str, Any]) -> None:
    unit = docker_run.read_unit(text)
    if "Container" in unit.sections:
        _quadlet(draft, unit)
        return
    draft.unit = unit
    _read_environment(draft, unit)
    for key, value in unit.sections.get("Service", []):
        if key in ("ExecStart", "Environment", "EnvironmentFile", "Type"):
            continue
        words = shell.read_words(docker_run.exec_command(value)) if key == "ExecStartPre" else []
        if words and draft.note_download(words):
            continue
        reason = _before(value) if key == "ExecStartPre" else _UNIT_REASONS.get(key, _WRITES_UNIT)
        draft.leave(f"{key}={value}", reason)
    starts = [
        shell.read_words(docker_run.exec_command(line).replace("%%", "%"), draft.variables)
        for line in unit.all("Service", "ExecStart")
    ]
    if not starts:
        raise Unreadable("the unit has no ExecStart")
    _read_start(draft, starts[-1], options)


def _read_environment(draft: Draft, unit: docker_run.Unit) -> None:
    """Add the variables of a unit to a draft."""
    for path in unit.all("Service", "EnvironmentFile"):
        content = draft.files.get(path.lstrip("-"))
        if content is None:
            draft.leave(f"EnvironmentFile={path}", "cannot be read here; say what it sets (variables, files)")
            continue
        draft.variables.update(_assignments(content.splitlines(), draft.variables))
    assignments = [word for line in unit.all("Service", "Environment") for word in shell.read_words(line)]
    draft.variables.update(_assignments(assignments, draft.variables))


def _read_start(draft: Draft, words: list[str], options: Mapping[str, Any]) -> None:
    """Add the command of a unit to a draft."""
    run = docker_run.read_docker_run(words)
    if run is None and [word.rpartition("/")[2] for word in words[:1]] in (["bash"], ["sh"]) and len(words) > 2:
        import_scripts.read(draft, words[-1], options["select"])
        return
    if run is None:
        if not any(word.rpartition("/")[2] == "vllm" or word.startswith("vllm.") for word in words):
            raise Unreadable(f"the unit runs {words[0] if words else 'nothing'}, not vllm serve")
        draft.run = DockerRun(command=words)
        draft.env(draft.variables)
        return
    import_scripts.rootless(draft, words, draft.variables)
    draft.run = run
    draft.name = next(iter(run.values("--name")), "")


_QUADLET = {
    "AddCapability": "--cap-add",
    "AddDevice": "--device",
    "AddHost": "--add-host",
    "ContainerName": "--name",
    "Entrypoint": "--entrypoint",
    "EnvironmentFile": "--env-file",
    "Mount": "--mount",
    "Network": "--network",
    "PublishPort": "--publish",
    "Pull": "--pull",
    "ShmSize": "--shm-size",
    "Tmpfs": "--tmpfs",
    "Ulimit": "--ulimit",
    "User": "--user",
    "Volume": "--volume",
    "WorkingDir": "--workdir",
}


def _quadlet(draft: Draft, unit: docker_run.Unit) -> None:
    """Read a container of Podman (podman-systemd.unit): its keys are options of C(podman run)."""
    for key, text in unit.sections["Container"]:
        value = text.replace("%h", "${HOME}").replace("%%", "%")
        if key == "Environment":
            draft.env(shell.read_words(value))
        elif key == "PodmanArgs":
            draft.run.options += docker_run.read_options(shell.read_words(value))[0].options
        elif key in _QUADLET:
            draft.run.options.append((_QUADLET[key], value))
        elif key not in ("Image", "Exec"):
            draft.leave(f"{key}={text}", "this key of a container of Podman has no counterpart")
    for key, value in unit.sections.get("Service", []):
        draft.leave(f"{key}={value}", _UNIT_REASONS.get(key, _WRITES_UNIT))
    draft.run.image = (unit.last("Container", "Image") or "").removeprefix("docker.io/")
    draft.run.command = shell.read_words(unit.last("Container", "Exec") or "", draft.variables)
    draft.name = unit.last("Container", "ContainerName") or ""
    if not draft.run.image:
        raise Unreadable("the container has no Image")


def _before(command: str) -> str:
    if "drop_caches" in command:
        return "the gate of the unit gives the page cache back and waits for memory"
    if re.search(r"docker\s+(?:stop|rm|kill)", command):
        return "the unit removes its own container, and runs it with --rm"
    if "docker pull" in command:
        return "the role images brings images once"
    return "has no place in the unit; a role of your own can do it before"


def _assignments(items: Sequence[str], variables_before: Mapping[str, str]) -> dict[str, str]:
    assigned: dict[str, str] = {}
    variables = ChainMap(assigned, dict(variables_before))
    for item in items:
        name, equals, value = item.strip().partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            assigned[name] = shell.expand(value.strip("\"'"), variables)
    return assigned


# --- compose ------------------------------------------------------------------------------------------------------

_COMPOSE_VALUES = {
    "container_name": "--name",
    "hostname": "--hostname",
    "ipc": "--ipc",
    "mem_limit": "--memory",
    "memswap_limit": "--memory-swap",
    "network_mode": "--network",
    "pids_limit": "--pids-limit",
    "platform": "--platform",
    "pull_policy": "--pull",
    "restart": "--restart",
    "runtime": "--runtime",
    "shm_size": "--shm-size",
    "stop_grace_period": "--stop-timeout",
    "stop_signal": "--stop-signal",
    "user": "--user",
    "working_dir": "--workdir",
    "cpus": "--cpus",
}
_COMPOSE_LISTS = {
    "cap_add": "--cap-add",
    "devices": "--device",
    "dns": "--dns",
    "env_file": "--env-file",
    "expose": "--expose",
    "extra_hosts": "--add-host",
    "group_add": "--group-add",
    "networks": "--network",
    "security_opt": "--security-opt",
    "tmpfs": "--tmpfs",
}
_COMPOSE_FLAGS = {
    "init": "--init",
    "privileged": "--privileged",
    "read_only": "--read-only",
    "stdin_open": "--interactive",
    "tty": "--tty",
}
_KINDS: dict[type, str] = {str: "a text", list: "a list", dict: "a mapping"}
# Types of a key's value; other values are read as text.
_COMPOSE_KINDS: dict[str, tuple[type, ...]] = {
    "image": (str,),
    "command": (str, list),
    "entrypoint": (str, list),
    "environment": (list, dict),
    "ports": (list,),
    "ulimits": (dict,),
    "volumes": (list,),
}
_COMPOSE_REASONS = {
    "configs": "only a script that the container runs is read from them",
    "build": "images are pulled, not built, on the hosts: push what it builds to a registry",
    "depends_on": "engines of a host start one after another in any case",
    "deploy": "spark_gpu_args gives every engine the GPU; systemd restarts it",
    "healthcheck": "the unit is active when the model has answered",
    "labels": "the unit of this collection sets its own",
    "logging": "the unit of this collection sets it itself",
    "gpus": "spark_gpu_args gives every engine the GPU",
    "profiles": "which services run is what the inventory lists",
}


def _compose(draft: Draft, document: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    select = options["select"]
    configs = document.get("configs")
    texts = _settled(configs, draft.variables) if isinstance(configs, Mapping) else {}
    entries = [
        (str(name), _with_scripts(draft, _settled(body, draft.variables), texts))
        for name, body in document["services"].items()
        if isinstance(body, Mapping)
    ]
    name, body = _selected(entries, select)
    for other, other_body in entries:
        if other != name:
            _note_other(draft, other, other_body)
    body = {key: value for key, value in body.items() if value is not None}
    draft.name = str(body.get("container_name") or name)
    _check_types(name, body)
    for key, value in body.items():
        _compose_key(draft, key, value)
    draft.run.image = str(body.get("image") or "")
    draft.run.command = words_of(body.get("command"))
    if "entrypoint" in body:
        start = words_of(body["entrypoint"])
        draft.run.options.append(("--entrypoint", "".join(start[:1])))
        draft.run.command = [*start[1:], *draft.run.command]
    if body.get("build") and not draft.run.image:
        draft.leave("image", "is built by the compose file: push it to a registry and name it (image)")


def _check_types(name: str, body: Mapping[str, Any]) -> None:
    """Raise Unreadable for a key of a service with a value of the wrong type."""
    for key, kinds in _COMPOSE_KINDS.items():
        if not isinstance(body.get(key, kinds[0]()), kinds):
            expected = " or ".join(_KINDS[kind] for kind in kinds)
            raise Unreadable(f"'{key}' of the service {name} must be {expected}")


def _note_other(draft: Draft, name: str, body: Mapping[str, Any]) -> None:
    """Record a further service of a compose file: a download, or an omission."""
    if draft.note_download(_command_of(body), "", DockerRun(options=_volumes_of(body)).mounts):
        return
    joins = _role(body) in ("ray", "rank")
    draft.leave(f"service {name}", import_scripts.RANKS if joins else "another service of the compose file")


def _selected(entries: Sequence[tuple[str, dict[str, Any]]], select: str | None) -> tuple[str, dict[str, Any]]:
    """Return name and body of the service to import: the selected one, else the only service with vLLM."""
    for entry in entries:
        if select and select in (entry[0], entry[1].get("container_name")):
            return entry
    if select is not None:
        return import_scripts.only(entries, select, "services that run vLLM")
    engines = [entry for entry in entries if "vllm" in str(entry)]
    leading = [entry for entry in engines if _role(entry[1]) == "engine"]
    default = [entry for entry in leading if not entry[1].get("profiles")]  # services that start without a profile
    only = entries if len(entries) == 1 else []
    choices = default if len(default) == 1 else leading or engines or only
    return import_scripts.only(choices, None, "services that run vLLM")


def _has_plain_command(body: Mapping[str, Any]) -> bool:
    return all(isinstance(body.get(key, ""), (str, list, type(None))) for key in ("command", "entrypoint"))


def _with_scripts(draft: Draft, body: dict[str, Any], configs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service of compose whose command has the text of scripts from configs and mounts.

    :param draft: with the files next to the compose file
    :param body: the service
    :param configs: the compose file's C(configs)
    :returns: the service
    """
    if not _has_plain_command(body):
        return body
    scripts = _config_scripts(draft, body, configs)
    scripts.update(mounted_scripts(DockerRun(options=_volumes_of(body)).mounts, draft.scripts))
    words = _command_of(body)
    inlined = inline_scripts(words, scripts, str(body.get("working_dir") or "/")) if scripts else words
    if inlined == words:
        return body
    path = script_path(words)
    draft.leave(f"script {path}" if path else "scripts", "its text is at hand: the engine that it starts is read")
    return {**body, "entrypoint": inlined[:1], "command": inlined[1:]}


def _config_scripts(draft: Draft, body: Mapping[str, Any], configs: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a service's configs by their path in the container."""
    scripts: dict[str, str] = {}
    for entry in body["configs"] if isinstance(body.get("configs"), list) else []:
        source = str(entry.get("source")) if isinstance(entry, Mapping) else str(entry)
        target = str(entry.get("target") or f"/{source}") if isinstance(entry, Mapping) else f"/{source}"
        config = configs.get(source)
        text = config.get("content") if isinstance(config, Mapping) else None
        if text is None and isinstance(config, Mapping):
            text = draft.scripts.get(str(config.get("file") or "").removeprefix("./"))
        if isinstance(text, str):
            scripts[target if target.startswith("/") else f"/{target}"] = text
    return scripts


def _command_of(body: Mapping[str, Any]) -> list[str]:
    """Return the words that a service of compose runs, none for a type that compose refuses."""
    parts = [body.get(key) for key in ("entrypoint", "command")]
    return [word for part in parts if isinstance(part, (str, list)) for word in words_of(part)]


def _volumes_of(body: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    volumes = body.get("volumes")
    return [("--volume", _volume(item)) for item in volumes] if isinstance(volumes, list) else []


def _role(body: Mapping[str, Any]) -> str:
    """Return the purpose of a service of compose, as C(import_scripts.run_role)."""
    if not _has_plain_command(body):
        return "engine"
    return import_scripts.run_role(DockerRun(image=str(body.get("image") or ""), command=_command_of(body)))


def _compose_key(draft: Draft, key: str, value: Any) -> None:
    """Add one key of a compose service as options of docker run."""
    options = draft.run.options
    if key in _COMPOSE_VALUES:
        options.append((_COMPOSE_VALUES[key], str(value)))
    elif key in _COMPOSE_LISTS:
        for item in value if isinstance(value, (list, Mapping)) else [value]:
            path = item.get("path") if isinstance(item, Mapping) else item
            options.append((_COMPOSE_LISTS[key], str(path)))
    elif key in _COMPOSE_FLAGS:
        options += [(_COMPOSE_FLAGS[key], None)] if value else []
    elif key == "environment":
        draft.env(value)
    elif key == "ports":
        options += [("--publish", _published(item)) for item in value]
    elif key == "volumes":
        options += [("--volume", _volume(item)) for item in value]
    elif key == "ulimits":
        options += [("--ulimit", f"{limit}={_limit(bound)}") for limit, bound in value.items()]
    elif key not in ("image", "command", "entrypoint"):
        draft.leave(key, _COMPOSE_REASONS.get(key, "this key of compose has no counterpart"))


def _settled(value: Any, variables: Mapping[str, str]) -> Any:
    """Replace variables as compose does; C($$) is a dollar."""
    if isinstance(value, Mapping):
        return {str(key): _settled(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_settled(item, variables) for item in value]
    return shell.expand(value, variables) if isinstance(value, str) else value


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


def _limit(bound: Any) -> str:
    return f"{bound.get('soft')}:{bound.get('hard')}" if isinstance(bound, Mapping) else str(bound)


def _docker(draft: Draft, text: str, options: Mapping[str, Any]) -> None:
    import_scripts.read(draft, text, options["select"])


_READERS: dict[str, Callable[[Draft, Any, Mapping[str, Any]], None]] = {
    "docker": _docker,
    "compose": _compose,
    "kubernetes": import_kubernetes.read,
    "systemd": _systemd,
    "eugr": import_recipes.eugr,
    "sparkrun": import_recipes.sparkrun,
    "vllm_recipe": import_recipes.vllm_recipe,
    "nvidia": import_recipes.nvidia,
}
