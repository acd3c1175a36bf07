# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The forms that a launch of vLLM is found in, each read into one C(Draft).

The recipe formats are those of eugr/spark-vllm-docker (recipes/README.md), sparkrun (RECIPES.md, version 2) and
vllm-project/recipes (CONTRIBUTING.md and taxonomy.yaml), as of autumn 2026.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils import docker_run, shell
from ansible_collections.dgxspark.vllm.plugins.module_utils.docker_run import DockerRun

FORMS = ("docker", "compose", "systemd", "eugr", "sparkrun", "vllm_recipe")
# What vllm-project/recipes calls this machine, and what it belongs to; the first that a recipe has counts.
HARDWARE = ("dgx_spark_gb10", "blackwell", "nvidia")


class Unreadable(ValueError):
    """There is no launch of vLLM in a text, or not exactly one."""


@dataclass
class Draft:
    """A launch in docker's terms.

    variables: of the shell that started it. files: env files by the path that names them. unit: the systemd unit around
    it, if there is one. text: what else it stood in.
    """

    form: str
    name: str = ""
    run: DockerRun = field(default_factory=DockerRun)
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    left_out: list[dict[str, str]] = field(default_factory=list)
    unit: docker_run.Unit | None = None
    text: str = ""

    def leave(self, item: str, reason: str) -> None:
        """Say that something is not carried over."""
        self.left_out.append({"item": item, "reason": reason})

    def env(self, given: Any) -> None:
        """Add variables, from a mapping or a list of C(NAME=value)."""
        if isinstance(given, Mapping):
            items = [str(name) if value is None else f"{name}={_text(value)}" for name, value in given.items()]
        else:
            items = [str(item) for item in given or []]
        self.run.options += [("--env", item) for item in items]


def detect(text: str, document: Any) -> str:
    """Tell which form a text has."""
    if docker_run.is_unit(text):
        return "systemd"
    if isinstance(document, Mapping):
        if isinstance(document.get("services"), Mapping):
            return "compose"
        if isinstance(document.get("model"), Mapping) and document["model"].get("model_id"):
            return "vllm_recipe"
        if document.get("runtime") or str(document.get("recipe_version")) == "2":
            return "sparkrun"
        if document.get("container") and (document.get("command") or document.get("model")):
            return "eugr" if document.get("command") else "sparkrun"
        raise Unreadable("YAML, but neither a compose file nor a recipe of eugr, sparkrun or vLLM")
    return "docker"


def read_source(text: str, document: Any, form: str, **options: Any) -> Draft:
    """Read a text of one of C(FORMS) or C(auto); raises C(Unreadable)."""
    form = detect(text, document) if form == "auto" else form
    if form not in FORMS:
        raise Unreadable(f"form is {form!r}, expected auto or one of {', '.join(FORMS)}")
    draft = Draft(form, variables=options["variables"], files=options["files"], text=text)
    try:
        _READERS[form](draft, text if form in ("docker", "systemd") else _mapping(document, form), options)
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(str(error)) from error
    except (AttributeError, KeyError, TypeError) as error:  # a list where a text belongs, and the like
        raise Unreadable(f"it is not written as the form {form} is: {error}") from error
    return draft


def _mapping(document: Any, form: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise Unreadable(f"a file of the form {form} is a YAML mapping, this is not")
    return document


def brief(words: Sequence[str]) -> str:
    """Name a command that is left out; one that may hold a secret by its first words only."""
    text = " ".join(words)
    return f"{' '.join(words[:2])} ..." if re.search(r"(?i)token|key|secret|passw|bearer|login", text) else text


def _text(value: Any) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


# --- docker run ---------------------------------------------------------------------------------------------------


def _commands(draft: Draft, text: str) -> Iterator[shell.Command]:
    """Read a script, and the scripts that it hands to tmux, a shell and the like."""
    for command in shell.read_script(text, draft.variables):
        inner = next((word for word in command.words if re.search(r"\bdocker run\b|\bvllm serve\b", word)), None)
        if inner is None or docker_run.read_docker_run(command.words) is not None:
            yield command
        else:
            draft.leave(command.words[0], "systemd supervises the engines here")
            yield from _commands(draft, inner)


def _docker(draft: Draft, text: str, options: Mapping[str, Any]) -> None:
    text = re.sub(r"\^\r?\n", " ", text)  # how a command goes on in cmd.exe
    found: list[tuple[str, DockerRun]] = []
    starts: dict[str, shell.Command] = {}
    bare: list[shell.Command] = []
    for command in _commands(draft, text):
        run = docker_run.read_docker_run(command.words)
        if run is not None:
            name = next(iter(run.values("--name")), run.image)
            found.append((name, run))
            starts[name] = command
        elif "vllm" in [word.rpartition("/")[2] for word in command.words[:4]] and "serve" in command.words:
            bare.append(command)
        elif command.words:
            draft.leave(brief(command.words), "stands beside the launch; the roles of this collection prepare hosts")
    if not found and len(bare) == 1:
        draft.run = DockerRun(command=bare[0].words)
        draft.env(bare[0].variables)
        return
    draft.name, draft.run = _one(found, options["select"], "docker run commands")
    draft.variables.update(starts[draft.name].variables)
    if not draft.run.values("--name"):
        draft.name = ""


def _one(found: Sequence[tuple[str, Any]], select: str | None, what: str) -> tuple[str, Any]:
    names = ", ".join(name for name, _value in found)
    if select is not None:
        for name, value in found:
            if name == select:
                return name, value
        raise Unreadable(f"there is no {select!r} among the {what}: {names or 'none'}")
    if not found:
        raise Unreadable(f"no vllm in here: found none of the {what}")
    if len(found) > 1:
        raise Unreadable(f"{len(found)} {what} in here ({names}); say which one (select)")
    return found[0]


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


def _systemd(draft: Draft, text: str, options: Mapping[str, Any]) -> None:
    unit = draft.unit = docker_run.read_unit(text)
    for path in unit.all("Service", "EnvironmentFile"):
        content = draft.files.get(path.lstrip("-"))
        if content is None:
            draft.leave(f"EnvironmentFile={path}", "cannot be read here; say what it sets (variables, files)")
            continue
        draft.variables.update(_assignments(content.splitlines(), draft.variables))
    for line in unit.all("Service", "Environment"):
        draft.variables.update(_assignments(shell.read_words(line), draft.variables))
    for key, value in unit.sections.get("Service", []):
        if key in ("ExecStart", "Environment", "EnvironmentFile", "Type"):
            continue
        if key == "ExecStartPre":
            draft.leave(f"{key}={value}", _before(value))
        else:
            draft.leave(f"{key}={value}", _UNIT_REASONS.get(key, "this collection writes the unit itself"))
    starts = [
        shell.read_words(docker_run.exec_command(line).replace("%%", "%"), draft.variables)
        for line in unit.all("Service", "ExecStart")
    ]
    if not starts:
        raise Unreadable("the unit has no ExecStart")
    words = starts[-1]
    run = docker_run.read_docker_run(words)
    if run is None and [word.rpartition("/")[2] for word in words[:1]] in (["bash"], ["sh"]) and len(words) > 2:
        _docker(draft, words[-1], options)
        return
    if run is None:
        if not any(word.rpartition("/")[2] == "vllm" or word.startswith("vllm.") for word in words):
            raise Unreadable(f"the unit runs {words[0] if words else 'nothing'}, not vllm serve")
        draft.run = DockerRun(command=words)
        draft.env(draft.variables)
        return
    draft.run = run
    draft.name = next(iter(run.values("--name")), "")


def _before(command: str) -> str:
    if "drop_caches" in command:
        return "the gate of the unit gives the page cache back and waits for memory"
    if re.search(r"docker\s+(?:stop|rm|kill)", command):
        return "the unit removes its own container, and runs it with --rm"
    if "docker pull" in command:
        return "the role images brings images once"
    return "has no place in the unit; a role of your own can do it before"


def _assignments(items: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = item.strip().partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            found[name] = shell.expand(value.strip("\"'"), {**known, **found})
    return found


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
# What a key of a service may hold; of others the text is taken.
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
    entries = [(str(name), body) for name, body in document["services"].items() if isinstance(body, Mapping)]
    engines = [entry for entry in entries if options["select"] or "vllm" in str(_settled(entry[1], draft.variables))]
    name, body = _one(engines, options["select"], "services that run vLLM")
    for other, _body in entries:
        if other != name:
            draft.leave(f"service {other}", "another service of the compose file")
    body = {key: value for key, value in _settled(body, draft.variables).items() if value is not None}
    draft.name = str(body.get("container_name") or name)
    for key, kinds in _COMPOSE_KINDS.items():
        if not isinstance(body.get(key, kinds[0]()), kinds):
            wanted = " or ".join(_KINDS[kind] for kind in kinds)
            raise Unreadable(f"'{key}' of the service {name} must be {wanted}")
    options_of = draft.run.options
    for key, value in body.items():
        if key in _COMPOSE_VALUES:
            options_of.append((_COMPOSE_VALUES[key], str(value)))
        elif key in _COMPOSE_LISTS:
            for item in value if isinstance(value, (list, Mapping)) else [value]:
                path = item.get("path") if isinstance(item, Mapping) else item
                options_of.append((_COMPOSE_LISTS[key], str(path)))
        elif key in _COMPOSE_FLAGS:
            options_of += [(_COMPOSE_FLAGS[key], None)] if value else []
        elif key == "environment":
            draft.env(value)
        elif key == "ports":
            options_of += [("--publish", _published(item)) for item in value]
        elif key == "volumes":
            options_of += [("--volume", _volume(item)) for item in value]
        elif key == "ulimits":
            options_of += [("--ulimit", f"{limit}={_limit(bound)}") for limit, bound in value.items()]
        elif key not in ("image", "command", "entrypoint"):
            draft.leave(key, _COMPOSE_REASONS.get(key, "this key of compose has no counterpart"))
    draft.run.image = str(body.get("image") or "")
    draft.run.command = _words(body.get("command"))
    if "entrypoint" in body:
        start = _words(body["entrypoint"])
        options_of.append(("--entrypoint", start[0] if start else ""))
        draft.run.command = [*start[1:], *draft.run.command]


def _settled(value: Any, variables: Mapping[str, str]) -> Any:
    """Replace variables as compose does; C($$) is a dollar."""
    if isinstance(value, Mapping):
        return {str(key): _settled(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_settled(item, variables) for item in value]
    return shell.expand(value, variables) if isinstance(value, str) else value


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return shell.read_words(value)
    return [_text(item) for item in value or []]


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


# --- recipes ------------------------------------------------------------------------------------------------------


_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_DOUBLED = re.compile(r"\{\{|\{([A-Za-z_]\w*)\}|\}\}")


def _fill(template: str, values: Mapping[str, Any]) -> str:
    """Replace C({name}); braces around anything else are literal, and doubled ones where a template doubles them."""
    texts = {name: _text(value) for name, value in values.items()}
    for name in texts:  # a value may hold placeholders itself
        texts[name] = _PLACEHOLDER.sub(lambda m: texts.get(m[1], m[0]), texts[name])
    missing = sorted({m[1] for m in _DOUBLED.finditer(template) if m[1] and m[1] not in texts})
    if missing:
        raise Unreadable(f"the command waits for {', '.join(missing)}: say what that is (variables)")
    if "{{" in template:
        return _DOUBLED.sub(lambda m: texts[m[1]] if m[1] else m[0][0], template)
    return _PLACEHOLDER.sub(lambda m: texts[m[1]], template)


def _template(draft: Draft, document: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Read the command of a recipe: a script with C(vllm serve) in it."""
    text = _fill(str(document["command"]), values)
    for command in shell.read_script(text, draft.variables):
        if not draft.run.command and "serve" in command.words:
            draft.run.command = command.words
            draft.env(command.variables)
        else:
            draft.leave(brief(command.words), "ran beside the engine; put what it does into an image of your own")
    if not draft.run.command:
        raise Unreadable("the command of the recipe has no vllm serve in it")


_RECIPE_REASONS = {
    "mods": "patches the container at every start; images run as they are here, so put the patches into one of your own",
    "build_args": "images are pulled, not built, on the hosts: push what it builds to a registry",
    "builder": "images are pulled, not built, on the hosts: push what it builds to a registry",
    "builder_config": "images are pulled, not built, on the hosts: push what it builds to a registry",
    "pre_exec": "ran in the container before the engine; put what it does into an image of your own",
    "post_exec": "ran in the container after the start; the role prove asks the engine here",
    "post_commands": "ran after the start; the role prove asks the engine here",
    "executor_config": "options of docker: add those that are needed as docker_args",
    "distribution_config": "the role models brings weights to each host",
    "containers": "one image per host is written in the inventory, as image of the service",
    "runtime_config": "of sparkrun's runtime",
    "benchmark": "nothing here measures throughput",
}
_RECIPE_SILENT = {
    "name",
    "description",
    "model",
    "model_revision",
    "container",
    "command",
    "defaults",
    "env",
    "metadata",
    "recipe_version",
    "runtime",
    "runtime_version",
    "solo_only",
    "min_nodes",
    "max_nodes",
    "mode",
    "cluster_only",
}


def _recipe(draft: Draft, document: Mapping[str, Any]) -> dict[str, Any]:
    """Read what the recipes of eugr and sparkrun share; returns what placeholders stand for."""
    values = {**(document.get("defaults") or {}), **draft.variables}
    if document.get("model"):
        values.setdefault("model", document["model"])
    draft.run.image = str(document.get("container") or "")
    draft.run.options.append(("--network", "host"))
    draft.env(document.get("env"))
    draft.name = str(document.get("name") or "")
    for key, value in document.items():
        if key not in _RECIPE_SILENT and value:
            detail = f" {', '.join(map(str, value))}" if isinstance(value, list) else ""
            draft.leave(f"{key}{detail}", _RECIPE_REASONS.get(key, "this key of the recipe has no counterpart"))
    nodes = document.get("min_nodes")
    if document.get("cluster_only") or document.get("mode") == "cluster" or (isinstance(nodes, int) and nodes > 1):
        draft.leave("cluster", "the recipe is for several Sparks; a service runs on one")
    if draft.run.image and "/" not in draft.run.image:
        draft.leave(
            f"container {draft.run.image}", "is built on the machine itself; push it to a registry and name it in full"
        )
    return values


def _eugr(draft: Draft, document: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    if not document.get("command"):
        raise Unreadable("the recipe has no command")
    _template(draft, document, _recipe(draft, document))


_SPARKRUN_NAMES = {
    "tensor_parallel": "tensor-parallel-size",
    "pipeline_parallel": "pipeline-parallel-size",
    "data_parallel": "data-parallel-size",
}


def _sparkrun(draft: Draft, document: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    runtime = str(document.get("runtime") or "vllm")
    if "vllm" not in runtime:
        raise Unreadable(f"the recipe is for the runtime {runtime}, not for vLLM")
    values = _recipe(draft, document)
    if document.get("command"):
        _template(draft, document, values)
    else:  # sparkrun makes the command from the defaults
        draft.run.command = ["vllm", "serve", str(document.get("model") or "")]
        for key, value in {**(document.get("defaults") or {}), **draft.variables}.items():
            option = f"--{_SPARKRUN_NAMES.get(key, key.replace('_', '-'))}"
            if value is True:
                draft.run.command.append(option)
            elif value is not False and value is not None:
                draft.run.command += [option, _text(value)]
    if document.get("model_revision"):
        draft.run.command += ["--revision", str(document["model_revision"])]


def _vllm_recipe(draft: Draft, document: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    model = document["model"]
    variants = document.get("variants") or {"default": {}}
    if options["variant"] not in variants:
        raise Unreadable(f"the recipe has no variant {options['variant']!r}; it has {', '.join(variants)}")
    variant = variants[options["variant"]] or {}
    here = _hardware(variant.get("hardware_overrides"))
    general = _hardware(document.get("hardware_overrides"))
    words = ["vllm", "serve", str(variant.get("model_id") or model["model_id"])]
    for part, args, env in (
        (model, "base_args", "base_env"),
        (variant, "extra_args", "extra_env"),
        (general, "extra_args", "extra_env"),
        (here, "extra_args", "extra_env"),
    ):
        words += _words(part.get(args))
        draft.env(part.get(env))
    for name, body in _features(draft, document, variant, options["features"]).items():
        mode = _mode(body, (variant.get("default_modes") or {}).get(name))
        own = _hardware(mode.get("hardware_overrides")) or _hardware(body.get("hardware_overrides"))
        words += _words(own.get("args") or mode.get("args"))
        draft.env(mode.get("env"))
    draft.run.command = words
    draft.run.image = _recipe_image(draft, model, variant, here)
    draft.run.options.append(("--network", "host"))
    draft.name = str((document.get("meta") or {}).get("slug") or "")
    supported = variant.get("supported_hardware")
    if supported and HARDWARE[0] not in supported:
        draft.leave(f"variant {options['variant']}", f"the recipe does not name {HARDWARE[0]} for it")
    for other in document.get("dependencies") or []:
        draft.leave(f"dependency: {other.get('note', '')}", "put what it installs into an image of your own")


def _hardware(overrides: Any) -> Mapping[str, Any]:
    found = next((overrides[key] for key in HARDWARE if (overrides or {}).get(key)), None) if overrides else None
    return found if isinstance(found, Mapping) else {}


def _features(
    draft: Draft, document: Mapping[str, Any], variant: Mapping[str, Any], wanted: Sequence[str] | None
) -> dict[str, Mapping[str, Any]]:
    """Return the features that are on: those asked for, else those that the recipe has on by itself."""
    known: Mapping[str, Any] = document.get("features") or {}
    off = [name for name in document.get("opt_in_features") or [] if name not in (variant.get("default_modes") or {})]
    chosen = [name for name in known if name not in off] if wanted is None else list(wanted)
    for name in chosen:
        if name not in known:
            raise Unreadable(f"the recipe has no feature {name!r}; it has {', '.join(known) or 'none'}")
    for name in known:
        if name not in chosen:
            draft.leave(f"feature {name}", "is off; name it in 'features' to have it")
    return {name: known[name] for name in chosen}


def _mode(feature: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    modes = feature.get("modes")
    if not isinstance(modes, Mapping) or not modes:
        return feature
    found = modes.get(name or feature.get("default_mode") or next(iter(modes)))
    return found if isinstance(found, Mapping) else {}


def _recipe_image(draft: Draft, model: Mapping[str, Any], variant: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    for part in (here, variant, model):
        image = part.get("docker_image")
        image = image.get("nvidia") if isinstance(image, Mapping) else image
        if image:
            return str(image)
    version = str(variant.get("min_vllm_version") or model.get("min_vllm_version") or "")
    if not version:
        return ""
    draft.leave("image", f"the recipe names none; vllm/vllm-openai:v{version} is the oldest that it accepts")
    return f"vllm/vllm-openai:v{version}"


_READERS: dict[str, Callable[[Draft, Any, Mapping[str, Any]], None]] = {
    "docker": _docker,
    "compose": _compose,
    "systemd": _systemd,
    "eugr": _eugr,
    "sparkrun": _sparkrun,
    "vllm_recipe": _vllm_recipe,
}
