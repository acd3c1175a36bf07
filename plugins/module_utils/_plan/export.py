# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a planned service as launches for machines without this collection: docker run, compose, systemd, recipes of eugr and sparkrun.

The forms are those that C(importer.py) reads. A launch is the planned C(docker run) without the parts that belong to this collection: its labels,
wrapper of keys, caches, and offline settings. Secrets are named, never written.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .._cluster import engine_env
from .._common import plain_secrets, redaction
from .._common.docker_run import DockerRun, read_docker_run
from .._common.file_syntax import command_line, specifiers
from .._common.reader import from_dict
from .._host import containers, docker_facts
from . import import_compose
from .container_argv import WITH_SECRETS
from .import_draft import program_name
from .import_scripts import without_owned
from .import_tables import CLUSTER_ENV, OWN_ENV
from .planned import PlannedService
from .service_files import CONTAINER_CACHE, CONTAINER_HF_HOME, PROFILE, REQUIREMENTS
from .service_keys import HASHED

FORMS = ("docker", "compose", "systemd", "eugr", "sparkrun")
FILES = "/srv/{name}-files"
"""Folder on the target machine for the files of a service."""
OWN_OPTIONS = {
    "--rm": None,
    "--name": None,
    "--pull": "never",
    "--cap-drop": "ALL",
    "--pids-limit": str(containers.ENGINE_PIDS),
    "--stop-timeout": None,
    "--log-driver": None,
    "--env-file": None,
}
"""Options of docker run that this collection adds, with the value that is its own; None for any value."""
IN_EVERY_RECIPE = ("--network", "--ipc", "--shm-size", "--gpus", "--ulimit", "--device", "--cap-add")
"""Options that the launchers of eugr and sparkrun set themselves."""
PLACEHOLDERS = {
    "host": "host",
    "port": "port",
    "tensor-parallel-size": "tensor_parallel",
    "gpu-memory-utilization": "gpu_memory_utilization",
    "max-model-len": "max_model_len",
    "max-num-seqs": "max_num_seqs",
}
"""Options of vLLM that a recipe has as defaults, by their names there."""
COMPOSE_VALUES = {"--gpus": "gpus", **{option: key for key, option in import_compose.VALUES.items()}}
COMPOSE_LISTS = {option: key for key, option in import_compose.LISTS.items() if key != "networks"}
COMPOSE_FLAGS = {option: key for key, option in import_compose.FLAGS.items()}
"""Keys of compose by the options of docker run."""
IN_DOUBLE_QUOTES = re.compile(r'[\\"$`]')
"""Characters that bash reads between double quotes."""
NAMED_VOLUME = re.compile(r"[a-zA-Z0-9][\w.-]*")
FIGURES = {
    "decode_tokens_per_second": "{:.1f} tokens/s of one request",
    "ttft_seconds": "first token after {:.2f} s",
    "start_seconds": "start {:.0f} s",
    "residency_gib": "{:.1f} GiB of memory",
    "kv_cache_tokens": "KV cache of {:,.0f} tokens",
}
"""Figures of a receipt, in the order of the comment."""


@dataclass
class Launch:
    """One container of a service.

    serves: whether the image's entrypoint is C(vllm serve). words: its arguments, the model first. notes: work that remains, for comments.
    """

    name: str
    run: DockerRun
    serves: bool
    words: list[str]
    env: dict[str, str]
    secrets: list[str]
    pip: list[str]
    nodes: int
    by_ray: bool
    notes: list[str] = field(default_factory=list)

    @property
    def start(self) -> tuple[str, list[str]]:
        """The entrypoint to set, empty for the image's own, and the words behind the image."""
        serve = ["vllm", "serve", *self.words]
        if not self.pip:
            return "", self.words if self.serves else serve
        command = ["bash", "-c", f"pip install {shlex.join(self.pip)} && exec {shlex.join(serve)}"]
        return (command[0], command[1:]) if self.serves else ("", command)


def export(
    service: Mapping[str, Any], receipt: Mapping[str, Any] | None = None, forms: Sequence[str] = FORMS
) -> dict[str, dict[str, Any]]:
    """Return the files of a planned service by name, each C({header, body}): lines for comments, and a text or a document for YAML.

    :param receipt: of its last proof, None without one
    """
    planned = from_dict(PlannedService, service)
    launch = launch_of(planned)
    header = [f"{planned.name}: {launch.words[0]} on {_sparks(launch.nodes)}, exported by dgxspark.vllm"]
    header += _proved(planned, receipt)
    header += [*(f"set {name} in the environment before the start" for name in launch.secrets), *launch.notes]
    files: dict[str, dict[str, Any]] = {}
    for form in forms:
        extension, write = WRITERS[form]
        is_recipe = form in ("eugr", "sparkrun")
        # An engine of Ray is two containers that wait for each other; recipes leave that to their launchers.
        if planned.rank if is_recipe else launch.by_ray:
            continue
        rank = f"-rank{planned.rank}" if planned.cluster and not is_recipe else ""
        body, notes = write(launch)
        files[f"{planned.name}{rank}.{extension}"] = {"header": [*header, *notes], "body": body}
    mounted = [target for _source, target in launch.run.mounts]
    names = _file_names(file.path for file in planned.files)
    for file in planned.files:
        if file.content is not None and file.path in mounted:
            files[f"files/{names[file.path]}"] = {"header": [], "body": file.content}
    return files


def sources(service: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of the controller that a service mounts, by their name below the exported folder."""
    names = _file_names(file["path"] for file in service["files"])
    return {f"files/{names[file['path']]}": file["source"] for file in service["files"] if file.get("source")}


def _file_names(paths: Iterable[str]) -> dict[str, str]:
    """Return a name for each path of a container: its last part, or all parts where another path has the same last one."""
    parts = Counter(map(program_name, found := list(paths)))
    return {
        path: program_name(path) if parts[program_name(path)] == 1 else path.strip("/").replace("/", "-")
        for path in found
    }


def _sparks(nodes: int) -> str:
    return "one DGX Spark" if nodes == 1 else f"{nodes} DGX Sparks"


def _proved(planned: PlannedService, receipt: Mapping[str, Any] | None) -> list[str]:
    """Return the lines about version and proof. receipt: of the host, whose figures may be missing or of another type."""
    lines = [f"image {planned.image.ref}" + (f", digest {planned.image.digest}" if planned.image.digest else "")]
    deployed, measured = (receipt or {}).get("deployed") or {}, (receipt or {}).get("measured") or {}
    version = deployed.get("vllm_version") or planned.vllm_version
    lines[0] += f", vLLM {version}" if version else ""
    figures = [
        text.format(measured[name])
        for name, text in FIGURES.items()
        if isinstance(measured.get(name), (int, float)) and not isinstance(measured[name], bool)
    ]
    if not figures:
        return [*lines, "not proved on this host"]
    present = list(deployed.get("argv") or []) == _argv(planned)
    return [*lines, f"proof{'' if present else ' of an earlier deployment'}: {', '.join(figures)}"]


# --- the launch -----------------------------------------------------------------------------------------------------


def _argv(planned: PlannedService) -> list[str]:
    """Return the C(docker run) of the engine."""
    rank = planned.settings.rank
    return list(planned.argv or (rank.parts[-1].argv if rank else ()))


def launch_of(planned: PlannedService) -> Launch:
    """Return the launch of a planned service without the parts that belong to this collection."""
    run = read_docker_run(_argv(planned)) or DockerRun()
    env = {name: value for name, value in planned.env.items() if name not in OWN_ENV}
    hidden = plain_secrets.in_environment(env)
    launch = Launch(
        name=planned.name,
        run=DockerRun(image=planned.image.ref),
        serves=planned.entrypoint == "serve",
        words=_serve_words(planned),
        env={name: value for name, value in env.items() if name not in hidden},
        secrets=list(dict.fromkeys([*(secret.name for secret in planned.secrets), *hidden])),
        pip=[name.partition(" --hash")[0] for name in planned.pip],
        nodes=planned.cluster.size if planned.cluster else 1,
        by_ray=planned.cluster is not None and planned.cluster.executor == "ray",
    )
    if any(HASHED.fullmatch(name) for name in planned.pip):
        launch.notes.append("pip installs by version, without the checksums of the inventory")
    _add_options(launch, planned, run.options)
    _note_places(launch, planned)
    return launch


def _add_options(launch: Launch, planned: PlannedService, options: Iterable[tuple[str, str | None]]) -> None:
    """Add the options of docker run that this collection did not add."""
    own_files = {file.host: file for file in planned.files}
    for option, value in options:
        if option in ("--volume", "--mount"):
            _add_mount(launch, planned, own_files, option, value or "")
        elif option == "--env":
            name, equals, text = str(value).partition("=")
            launch.env.update({name: text} if equals else {})
            launch.secrets += [] if equals or name in launch.secrets else [name]
        elif not _is_own(option, value, planned):
            launch.run.options.append((option, value))


def _is_own(option: str, value: str | None, planned: PlannedService) -> bool:
    """Tell whether this collection added an option of docker run."""
    if option in OWN_OPTIONS:
        return OWN_OPTIONS[option] in (None, value)
    if option == "--security-opt" and value and value.startswith("seccomp=") and containers.OWN_STATE[0] in value:
        return True
    own_pairs = {
        ("--security-opt", "no-new-privileges"),
        ("--ulimit", "core=0"),
        ("--entrypoint", WITH_SECRETS),
        ("--entrypoint", "/bin/sh" if planned.pip else None),
    }
    is_label = option == "--label" and str(value).partition("=")[0].startswith(
        docker_facts.MANAGED_LABEL.partition(".")[0]
    )
    return is_label or (option, value) in own_pairs


def _add_mount(launch: Launch, planned: PlannedService, own_files: Mapping[str, Any], option: str, value: str) -> None:
    """Add a mount of the person's, of the weights, or of a file of the service; other mounts are this collection's."""
    source, target = DockerRun(options=[(option, value)]).mounts[0]
    if target == CONTAINER_HF_HOME:
        # The engine downloads its model, so that the folder is writable.
        launch.run.options.append(("--volume", f"{source}:{target}"))
    elif source in own_files:
        file = own_files[source]
        if file.source is None and file.content is None:
            folder = target.rpartition("/")[0]
            variables = [name for name, text in launch.env.items() if text == folder]
            for name in variables:  # the folder of a vocabulary, which an engine that is online downloads
                del launch.env[name]
            if not variables:
                launch.notes.append(
                    f"{target} is {program_name(source)} of the model's repository: download it, and mount it there"
                )
        elif target != REQUIREMENTS:
            folder, name = FILES.format(name=planned.name), _file_names(file.path for file in planned.files)[target]
            launch.run.options.append(("--volume", f"{folder}/{name}:{target}:ro"))
            launch.notes.append(f"copy files/{name} to {folder}")
    elif source != planned.cache_dir and not source.startswith(containers.OWN_STATE):
        launch.run.options.append((option, value))


def _serve_words(planned: PlannedService) -> list[str]:
    """Return the arguments of C(vllm serve), with the repository as the model and the address of clients."""
    words = [word for word in planned.command if word != WITH_SECRETS]
    if planned.pip:
        words = words[words.index("vllm") + 1 :]
    if words[:2] == ["vllm", "serve"]:
        words = words[2:]
    words[0] = planned.model.repo or planned.model.argument
    for option, value in (("--host", planned.host), ("--port", str(planned.port))):
        if option in words:  # behind a socket the engine listens elsewhere
            words[words.index(option) + 1] = value
    return [redaction.clean_forms(word, "(hidden)") for word in words]


def _note_places(launch: Launch, planned: PlannedService) -> None:
    """Note what a machine without this collection lacks."""
    if planned.model.source:
        launch.notes.append(f"the model is a folder: copy it to {launch.words[0]} of the container")
    texts = [*launch.words[1:], *launch.env.values()]
    if any(place in text for text in texts for place in (f"{CONTAINER_HF_HOME}/", CONTAINER_CACHE)):
        launch.notes.append(
            f"an option names a file below {CONTAINER_HF_HOME} or {CONTAINER_CACHE} that this collection puts there"
        )
    if any(file.host.endswith(PROFILE) for file in planned.files):
        launch.notes.append(
            "the engine uses io_uring, which Docker's seccomp profile denies: allow its three system calls"
        )
    if planned.built_image:
        launch.notes.append(f"the image is built from {planned.built_image.base}: {planned.built_image.dockerfile!r}")
    if launch.nodes > 1:
        launch.notes.append("addresses, interfaces and devices are those of this host: adapt them")
    for extra in planned.model.extra:
        launch.notes.append(f"it also loads {extra.repo}")


# --- forms ----------------------------------------------------------------------------------------------------------


def _docker_words(program: str, launch: Launch) -> list[str]:
    """Return the words of C(docker run). program: its path or name."""
    entrypoint, command = launch.start
    options = [
        *launch.run.options,
        *(("--env", name) for name in launch.secrets),
        *(("--env", f"{name}={value}") for name, value in launch.env.items()),
        *([("--entrypoint", entrypoint)] if entrypoint else []),
    ]
    words = [word for option in options for word in option if word is not None]
    return [program, "run", "--rm", "--name", launch.name, *words, launch.run.image, *command]


def _script(launch: Launch) -> tuple[str, list[str]]:
    """Return a script with C(docker run)."""
    words = _docker_words("docker", launch)
    image = len(words) - len(launch.start[1]) - 1
    lines: list[list[str]] = [[]]
    for index, word in enumerate(words):
        if word.startswith("-") or index == image:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return "#!/bin/bash\n" + " \\\n  ".join(" ".join(line) for line in lines) + "\n", []


def _unit(launch: Launch) -> tuple[str, list[str]]:
    """Return a unit that runs the container."""
    lines = [
        "[Unit]",
        f"Description={specifiers(f'vLLM: {launch.words[0]}')}",
        "Requires=docker.service",
        "After=docker.service network-online.target",
        "",
        "[Service]",
        *([f"EnvironmentFile=/etc/{launch.name}.env"] if launch.secrets else []),
        f"ExecStartPre=-/usr/bin/docker rm -f {launch.name}",
        f"ExecStart={command_line(_docker_words('/usr/bin/docker', launch))}",
        f"ExecStop=/usr/bin/docker stop -t 60 {launch.name}",
        "Restart=always",
        "RestartSec=30",
        "TimeoutStopSec=90",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n", []


def _compose(launch: Launch) -> tuple[dict[str, Any], list[str]]:
    """Return a compose file, and notes about options without a key."""
    body: dict[str, Any] = {"image": launch.run.image, "container_name": launch.name, "restart": "unless-stopped"}
    notes: list[str] = []
    for option, value in launch.run.options:
        if not _set_compose_key(body, option, value):
            notes.append(f"not in this form: {option} {value or ''}".rstrip())
    body["environment"] = [*launch.secrets, *(f"{name}={value}" for name, value in launch.env.items())]
    entrypoint, command = launch.start
    if entrypoint:
        body["entrypoint"] = [entrypoint]
    body["command"] = command
    named = [source for source, _target in launch.run.mounts if NAMED_VOLUME.fullmatch(source)]
    document = {"services": {launch.name: _doubled(body)}, "volumes": dict.fromkeys(named)}
    return {key: part for key, part in document.items() if part}, notes


def _set_compose_key(body: dict[str, Any], option: str, value: str | None) -> bool:
    """Set the key of an option of docker run in a service of compose; tells whether compose has one."""
    mount = value if option == "--volume" else _short_mount(str(value)) if option == "--mount" else None
    if mount:
        body.setdefault("volumes", []).append(mount)
    elif option == "--ulimit":
        name, _equals, limit = str(value).partition("=")
        soft, colon, hard = limit.partition(":")
        body.setdefault("ulimits", {})[name] = {"soft": int(soft), "hard": int(hard)} if colon else int(soft)
    elif option in COMPOSE_FLAGS:
        body[COMPOSE_FLAGS[option]] = True
    elif option in COMPOSE_LISTS:
        body.setdefault(COMPOSE_LISTS[option], []).append(value)
    elif option in COMPOSE_VALUES:
        body[COMPOSE_VALUES[option]] = value
    elif option == "--entrypoint":
        body["entrypoint"] = [value] if value else []
    else:
        return False
    return True


def _short_mount(value: str) -> str | None:
    """Return a bind mount as compose writes one in a line; None for a mount with more than source, target and a prohibition to write."""
    parts = dict(part.partition("=")[::2] for part in value.split(","))
    ((source, target),) = DockerRun(options=[("--mount", value)]).mounts
    mode = {parts.pop(name) for name in ("readonly", "ro") if name in parts}
    others = parts.keys() - {"type", "source", "src", "target", "dst", "destination"}
    if parts.get("type") != "bind" or others or not mode <= {"", "true", "1"}:
        return None
    return f"{source}:{target}:ro" if mode else f"{source}:{target}"


def _doubled(value: Any) -> Any:
    """Return a value in which compose finds no variable."""
    if isinstance(value, dict):
        return {key: _doubled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_doubled(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def _recipe(form: str, launch: Launch) -> tuple[dict[str, Any], list[str]]:
    """Return a recipe of eugr or sparkrun, and notes about parts that such a recipe cannot hold."""
    words, defaults = without_owned(launch.words), {}
    for index, word in enumerate(words[:-1]):
        name = PLACEHOLDERS.get(word[2:]) if word.startswith("--") else None
        if name:
            defaults[name] = words[index + 1] if name == "host" else _number(words[index + 1])
            words[index + 1] = f"\0{name}\0"
    document: dict[str, Any] = {
        "recipe_version": "1" if form == "eugr" else "2",
        "name": launch.name,
        "description": f"{launch.words[0]} on {_sparks(launch.nodes)}",
        "model": launch.words[0],
        "container": launch.run.image,
    }
    if form == "sparkrun":
        document["runtime"] = "vllm-ray" if launch.by_ray else "vllm-distributed"
        document.update(min_nodes=launch.nodes, max_nodes=launch.nodes)
    else:
        document["cluster_only" if launch.nodes > 1 else "solo_only"] = True
    pip = "".join(f"pip install {shlex.quote(name)}\n" for name in launch.pip)
    command = f"{pip}{_recipe_command(form, words)}\n"
    document.update(defaults=defaults, env=_recipe_env(form, launch), command=command)
    return document, [
        f"not in this form: {option} {value or ''}".rstrip()
        for option, value in launch.run.options
        if option not in IN_EVERY_RECIPE and f":{CONTAINER_HF_HOME}" not in str(value)
    ]


def _recipe_command(form: str, words: Sequence[str]) -> str:
    """Return C(vllm serve) of a recipe; a word between two NUL characters is the name of a default."""
    lines: list[list[str]] = [["vllm", "serve"]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        text = shlex.quote(word) if not word.startswith("\0") else word
        # eugr fills its template as Python formats texts, so that braces are doubled; sparkrun replaces names alone.
        text = text.replace("{", "{{").replace("}", "}}") if form == "eugr" else text
        lines[-1].append(f"{{{text[1:-1]}}}" if word.startswith("\0") else text)
    return " \\\n  ".join(" ".join(line) for line in lines)


def _recipe_env(form: str, launch: Launch) -> dict[str, str]:
    """Return the variables of a recipe; its launcher sets those of a cluster."""
    by_cluster = {*CLUSTER_ENV, *engine_env.ALWAYS, *engine_env.RING, *engine_env.LONG_RING, *engine_env.MANY}
    env = {name: value for name, value in launch.env.items() if launch.nodes == 1 or name not in by_cluster}
    if form == "eugr":
        # Its launcher writes export NAME="value" into a script of bash.
        env = {name: IN_DOUBLE_QUOTES.sub(r"\\\g<0>", value) for name, value in env.items()}
    return {**env, **{name: f"${{{name}}}" for name in launch.secrets}}


def _number(text: str) -> int | float | str:
    if text.isdigit():
        return int(text)
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else text


WRITERS: Mapping[str, tuple[str, Callable[[Launch], tuple[Any, list[str]]]]] = {
    "docker": ("docker.sh", _script),
    "compose": ("compose.yml", _compose),
    "systemd": ("service", _unit),
    "eugr": ("eugr.yaml", partial(_recipe, "eugr")),
    "sparkrun": ("sparkrun.yaml", partial(_recipe, "sparkrun")),
}
"""Extension and writer of each form; a writer returns a text or a document, and notes."""
