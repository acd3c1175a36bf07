# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands and scripts that launch vLLM, read into one C(Draft): C(docker run), C(docker exec), typed C(vllm serve)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._cluster.clustering import OWNED_ARGS
from .._common import docker_run, shell, shell_script
from .._common.docker_run import DockerRun
from . import import_engine
from .import_draft import BUILT_THERE, OWN_IMAGE, PATCHED, Draft, Unreadable
from .import_engine import SYSTEMD, brief
from .import_inline import inline_scripts, mounted_scripts, script_path

BESIDE = "stands beside the launch; the roles of this collection prepare hosts"
RANKS = "the ranks of a spark_cluster are started by their units"
_MANIFEST = re.compile(r"^(?:apiVersion:|services:)", re.MULTILINE)
_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)


@dataclass
class _Launches:
    """The launches of a script.

    runs: containers by name, each with the variables of the shell. typed: commands in a container (its name) or
    without one (an empty name). written: here-documents that are printed or written, which may be a script. elsewhere: messages about
    files with the launch that are not read here.
    """

    runs: list[tuple[str, DockerRun, dict[str, str]]] = field(default_factory=list)
    typed: list[tuple[str, list[str], dict[str, str]]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


def read(draft: Draft, text: str, select: str | None) -> None:
    """Read a script with one launch in it.

    :param draft: receives the launch
    :param text: the script, or a page with it in a fenced block
    :param select: name of one of several containers
    :raises Unreadable: without a launch, or with several
    """
    if not text.strip():
        raise Unreadable("the text is empty")
    text = re.sub(r"\^\r?\n", " ", _launch_of_page(text))  # line continuation of cmd.exe
    text = re.sub(r"\\\s*\Z", "", text)  # an incomplete copy of a command
    variables, left_out = dict(draft.variables), list(draft.left_out)
    launches = _Launches()
    arguments: list[str] | None
    for arguments in ([], None):  # started without arguments, else with any
        draft.variables.clear()
        draft.variables.update(variables)
        draft.left_out[:] = left_out
        launches = _Launches()
        _collect(draft, text, arguments, launches)
        if not launches.runs and not launches.typed:
            for document in launches.written:
                _collect(draft, document, arguments, launches)
        if launches.runs or launches.typed:
            break
    if launches.elsewhere and not launches.runs and not launches.typed:
        raise Unreadable(f"no vllm in here: {launches.elsewhere[0]}")
    _settle(draft, launches, select)


def only(launches: Sequence[tuple[str, Any]], select: str | None, plural: str) -> tuple[str, Any]:
    """Return name and value of the only launch, or of the selected one.

    :param launches: launches by name
    :param select: the requested name
    :param plural: noun for messages
    :returns: name and value
    :raises Unreadable: without a launch, or with several
    """
    names = ", ".join(name for name, _value in launches)
    if select is not None:
        for name, value in launches:
            if name == select:
                return name, value
        raise Unreadable(f"there is no {select!r} among the {plural}: {names or 'none'}")
    if not launches:
        raise Unreadable(f"no vllm in here: found none of the {plural}")
    if len(launches) > 1:
        raise Unreadable(f"{len(launches)} {plural} in here ({names}); say which one (select)")
    return launches[0]


def run_role(run: DockerRun) -> str:
    """Return the purpose of a container, as C(import_engine.role)."""
    entrypoint = next(iter(reversed(run.values("--entrypoint"))), "")
    words = [*entrypoint.split(), *run.command]
    role = import_engine.role(words)
    if role in ("idle", "other") and words and not entrypoint:
        serves = (
            words[0].startswith("-")
            or (words[0] == "serve" and len(words) > 1)
            or ("/" in words[0] and not import_engine.program(words) and "vllm" in run.image)
        )
        if serves and (words[0] != "-c"):
            return "rank" if import_engine.is_rank(words) else "engine"
    return role


def without_owned(words: Sequence[str]) -> list[str]:
    """Return options of C(vllm serve) without those in which ranks of one engine differ."""
    shared: list[str] = []
    skip = False
    for word in words:
        name, equals, _value = word.partition("=")
        owned = name.startswith("--") and name[2:].replace("_", "-") in OWNED_ARGS
        if owned or (skip and not word.startswith("-")):
            skip = owned and not equals
            continue
        skip = False
        shared.append(word)
    return shared


def _launch_of_page(text: str) -> str:
    """Return the only launch of a page in Markdown, and any other text unchanged."""
    blocks = [block for block in _FENCED.findall(text) if import_engine.starts(block)]
    if "```" not in text or len(blocks) == 1:
        return blocks[0] if blocks else text
    if not blocks:
        raise Unreadable("no vllm in here: a page without a docker run or vllm serve command in a fenced block")
    raise Unreadable(f"a page with {len(blocks)} launches in it: give one of them as a file of its own")


def _collect(draft: Draft, text: str, arguments: list[str] | None, launches: _Launches) -> None:
    """Add the containers and engines of a script to C(launches), and all other commands to the draft's omissions."""
    for command in shell_script.read_script(text, draft.variables, arguments):
        words = command.words
        run = docker_run.read_docker_run(words) or _cluster_script(words) or _launch_cluster(draft, words)
        _note_elsewhere(words, command.stdin, launches)
        if (run is None or run_role(run) == "other") and draft.note_download(
            _program_words(words, run), command.stdin, run.mounts if run else ()
        ):
            continue
        if run is None and import_engine.quiet(words) and words[0] not in ("exec", "cat", "tee"):
            continue
        if words[0].rpartition("/")[2] in ("echo", "printf"):
            continue
        if run is None:
            _collect_other(draft, command, text, arguments, launches)
            continue
        launches.runs.append((next(iter(run.values("--name")), run.image), run, command.variables))
        rootless(draft, words, command.variables)


def _program_words(words: list[str], run: DockerRun | None) -> list[str]:
    """Return the command that a container, or C(docker exec), runs inside, else the words themselves."""
    if run:
        return [*run.values("--entrypoint")[-1:], *run.command]
    inside = docker_run.read_docker_exec(words)
    return inside[2] if inside else words


def _collect_other(
    draft: Draft, command: shell.Command, text: str, arguments: list[str] | None, launches: _Launches
) -> None:
    """Add the launches of a command that starts no container by itself. text: the script with the command."""
    words = command.words
    composed = docker_run.read_compose_run(words)
    # A nested script is shorter than its script; a $(...) was read in its place.
    scripts = [word for word in words if len(word) < len(text) and not word.startswith(("$(", "`"))]
    inner = next((word for word in scripts if import_engine.starts(word)), None)
    if composed is not None:
        _composed(draft, words, *composed, launches)
    elif inner is not None and re.search(r"\b(?:docker|podman|nerdctl)\b", inner) and words[0] != "docker":
        draft.leave(words[0], "hosts are named in the inventory" if words[0] == "ssh" else SYSTEMD)
        _collect(draft, inner, arguments, launches)
    elif import_engine.starts(command.stdin) and words[0] in ("cat", "tee"):
        launches.written.append(command.stdin)
    elif import_engine.starts(command.stdin) and not words[0].startswith("python"):
        _collect(draft, command.stdin, arguments, launches)
    else:
        _typed(draft, command, launches)


def _note_elsewhere(words: Sequence[str], document: str, launches: _Launches) -> None:
    """Note a file of compose or of Kubernetes that a script writes or starts."""
    if _MANIFEST.search(document) and "vllm" in document:
        launches.elsewhere.append(
            "the script writes a compose file or a manifest of Kubernetes by a here-document; give that as a file of its own"
        )
    elif re.match(r"(?:sudo )?(?:docker[ -]compose|podman[ -]compose)\b.*\bup\b", " ".join(words)):
        launches.elsewhere.append("the script starts services of a compose file; give that file")


def _typed(draft: Draft, command: shell.Command, launches: _Launches) -> None:
    """Add a command to C(launches) if it is an engine, else to the draft's omissions."""
    inside = docker_run.read_docker_exec(command.words)
    name, words, variables = "", command.words, command.variables
    if inside:  # variables of the outer shell are unknown inside
        name, (run, words) = inside[0], inside[1:]
        variables = {
            key: command.variables.get(key, f"${{{key}}}") if value is None else value for key, value in run.env.items()
        }
    if import_engine.find(words) is not None:
        launches.typed.append((name, words, variables))
    elif words and words[0] in ("source", ".") and words[-1].endswith("/bin/activate"):
        draft.leave(" ".join(words[:2]), import_engine.PYTHON)
    elif words and words[0] in ("source", "."):
        draft.leave(" ".join(words[:2]), "what that file sets is not known here; say it (variables)")
    elif words and not import_engine.quiet(words):
        ranks = re.search(r"\bray\s+(?:start|status|stop)\b", " ".join(words))
        reason = RANKS if ranks else f"is run in the container; put what it does into {OWN_IMAGE}"
        draft.leave(brief(command.words), reason if inside or ranks else BESIDE)


def _composed(draft: Draft, words: Sequence[str], service: str, run: DockerRun, launches: _Launches) -> None:
    """Add the engine that C(docker compose run) or C(exec) starts in a service of a compose file, which is unavailable."""
    command = ["vllm", *run.command] if run.command[:1] == ["serve"] else run.command
    if import_engine.find(command) is None:
        draft.leave(brief(words), BESIDE)
        return
    draft.leave(
        f"docker compose, service {service}",
        "its image, volumes and variables stand in the compose file, which is not read here: name the image, or import that file",
    )
    launches.typed.append(
        (service, command, {key: f"${{{key}}}" if value is None else value for key, value in run.env.items()})
    )


def _cluster_script(words: Sequence[str]) -> DockerRun | None:
    """Read C(run_cluster.sh) of vLLM's examples: image, address of the head, role, folder of the weights, options of docker."""
    place = _script_place(words, "run_cluster.sh")
    if place is None or len(words) < place + 5:
        return None
    image, _head, part, home, *docker_options = words[place + 1 :]
    run, _behind = docker_run.read_options(docker_options)
    run.image = image
    run.options += [("--network", "host"), ("--volume", f"{home}:/root/.cache/huggingface")]
    run.command = ["ray", "start", "--head" if part == "--head" else "--address"]
    return run


_CLUSTER_VALUES = (
    "-t",
    "-e",
    "-v",
    "-p",
    "-n",
    "-m",
    "--name",
    "--nodes",
    "--eth-if",
    "--ib-if",
    "--apply-mod",
    "--shm-size",
)
"""Options of C(launch-cluster.sh) that take a value; every other one is a switch."""
_CLUSTER_ACTIONS = ("exec", "start", "stop", "status")
_CLUSTER_DOCKER = {"-e": "--env", "-v": "--volume", "-p": "--publish", "--name": "--name", "--shm-size": "--shm-size"}


def _launch_cluster(draft: Draft, words: Sequence[str]) -> DockerRun | None:
    """Read C(launch-cluster.sh -t IMAGE ... exec vllm serve) of eugr/spark-vllm-docker; None for its other actions."""
    place = _script_place(words, "launch-cluster.sh")
    if place is None:
        return None
    run, mods = DockerRun(options=[("--network", "host")]), []
    index = place + 1
    while index < len(words) and words[index] not in _CLUSTER_ACTIONS:
        name, equals, value = words[index].partition("=")
        index += 1
        if name in _CLUSTER_VALUES and not equals and index < len(words):
            value, index = words[index], index + 1
        if name == "-t":
            run.image = value
        elif name == "--apply-mod":
            mods.append(value)
        elif name in _CLUSTER_DOCKER:
            run.options.append((_CLUSTER_DOCKER[name], value))
    if words[index : index + 1] != ["exec"] or not import_engine.starts(" ".join(words[index:])):
        return None
    run.command = list(words[index + 1 :])
    if mods:
        draft.leave(f"mods {', '.join(mods)}", PATCHED)
    if "/" not in run.image:
        run.image = run.image or "vllm-node"
        draft.leave(f"container {run.image}", BUILT_THERE)
    return run


def _script_place(words: Sequence[str], script: str) -> int | None:
    """Return the index of a script in a command, or None."""
    return next((index for index, word in enumerate(words) if word.rpartition("/")[2] == script), None)


def rootless(draft: Draft, words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Record that the images and volumes of a rootless docker are not available here.

    :param draft: receives the note
    :param words: the command
    :param variables: of its shell or unit
    """
    where = [*words[:8], variables.get("DOCKER_HOST", ""), draft.variables.get("DOCKER_HOST", "")]
    if any("/run/user/" in word or word == "rootless" for word in where):
        draft.leave(
            "rootless docker",
            "engines run under the host's own Docker here; images and volumes of the rootless one are not seen by it",
        )


def _settle(draft: Draft, launches: _Launches, select: str | None) -> None:
    """Make the draft of the only launch of a script, or of the selected one."""
    for _name, run, _variables in launches.runs:
        _mounted_script(draft, run, launches.written)
    roles = [run_role(run) for _name, run, _variables in launches.runs]
    engines = _with_role(launches, roles, "engine") or _with_role(launches, roles, "rank")
    if select is None and not engines and launches.typed:
        _type(draft, launches, [role in ("idle", "ray") for role in roles])
        return
    pairs = (_alike(engines) if select is None else []) or launches.runs
    name, _run = only([(name, run) for name, run, _variables in pairs], select, "docker run commands")
    run, variables = next((run, variables) for other, run, variables in pairs if other == name)
    for other, other_run, _variables in launches.runs:
        if other_run is not run and other != name:
            draft.leave(f"container {other}", _reason(other_run))
    draft.run = run
    draft.variables.update(variables)
    draft.name = next(iter(run.values("--name")), "")


def _with_role(launches: _Launches, roles: Sequence[str], role: str) -> list[tuple[str, DockerRun, dict[str, str]]]:
    return [run for run, other_role in zip(launches.runs, roles) if other_role == role]


def _mounted_script(draft: Draft, run: DockerRun, written: Sequence[str]) -> None:
    """Replace a mounted script that a container runs by its text, from the launch or from a file next to it."""
    entrypoint = next(iter(reversed(run.values("--entrypoint"))), "")
    words = [*entrypoint.split(), *run.command]
    scripts = mounted_scripts(run.mounts, draft.scripts)
    mounted = next((target for _source, target in run.mounts if words[-1:] == [target]), None)
    if mounted and len(written) == 1:
        scripts.setdefault(mounted, written[0])
    folder = next(iter(reversed(run.values("--workdir"))), "/")
    inlined = inline_scripts(words, scripts, folder) if scripts else words
    if inlined == words:
        return
    path = script_path(words)
    run.options = [
        (option, value)
        for option, value in run.options
        if option != "--entrypoint" and not (path and option in ("--volume", "--mount") and path in str(value))
    ]
    run.options.append(("--entrypoint", ""))
    run.command = inlined
    draft.leave(f"script {path}", "the launch writes it, or it lies beside it; what it starts is read")


def _typed_engine(launches: _Launches) -> tuple[str, list[str], dict[str, str]]:
    """Return the only typed engine: its container's name, its command and its variables."""
    leading = [launch for launch in launches.typed if not import_engine.is_rank(_engine_words(launch[1]))]
    typed = leading or launches.typed
    different = {tuple(without_owned(_engine_words(words))) for _name, words, _variables in typed}
    if len(different) > 1:
        raise Unreadable(f"{len(different)} different vllm serve commands in here; give one of them")
    return typed[0]


def _type(draft: Draft, launches: _Launches, waits: Sequence[bool]) -> None:
    """Make the draft of a typed engine, inside a waiting container or without one."""
    name, words, variables = _typed_engine(launches)
    waiting = next((run for run, wait in zip(launches.runs, waits) if wait), None)
    base = next((run for run in launches.runs if run[0] == name), waiting)
    if base is None:
        if name and not any(entry["item"].endswith(f" {name}") for entry in draft.left_out):
            draft.leave(
                f"container {brief([name])}",
                "is started somewhere else; its image, volumes and variables are not known here: name the image",
            )
        draft.run = DockerRun(command=words)
        draft.env(variables)
        return
    _name, run, outer = base
    options = [(option, value) for option, value in run.options if option not in ("--entrypoint", "--workdir")]
    draft.run = DockerRun(options, run.image, words)
    draft.typed = True
    draft.env({key: value for key, value in variables.items() if outer.get(key) != value})
    draft.variables.update(outer)
    draft.name = next(iter(run.values("--name")), "")
    for other, other_run, _variables in launches.runs:
        if other_run is not run:
            draft.leave(f"container {other}", _reason(other_run))


def _engine_words(words: Sequence[str]) -> list[str]:
    engine = import_engine.find(words)
    return engine.words if engine else list(words)


def _alike(
    engines: list[tuple[str, DockerRun, dict[str, str]]],
) -> list[tuple[str, DockerRun, dict[str, str]]]:
    """Return the first of engines that are ranks of one launch, else all of them."""
    launches = {(run.image, *without_owned(_engine_words(run.command))) for _name, run, _variables in engines}
    spans = any("--nnodes" in word for _name, run, _variables in engines for word in " ".join(run.command).split())
    return engines[:1] if len(launches) == 1 and spans else engines


def _reason(run: DockerRun) -> str:
    if run_role(run) in ("ray", "rank", "engine"):
        return RANKS
    return "another container, which is no part of the engine"
