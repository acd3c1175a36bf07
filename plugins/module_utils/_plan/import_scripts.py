# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands and scripts that launch vLLM, read into a C(Draft): C(docker run), C(docker exec), typed C(vllm serve)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .._cluster.clustering import OWNED_ARGS
from .._common import docker_run, shell, shell_script
from .._common.docker_run import DockerRun
from . import import_engine
from .import_draft import BUILT_THERE, OWN_IMAGE, PATCHED, Draft, Unreadable, choose, program_name, word_set
from .import_engine import SYSTEMD, brief, has_launch
from .import_inline import inline_scripts, mounted_scripts, script_path

HOST_WORK = "prepares the host; the roles of this collection do that"
RANKS = "the ranks of a spark_cluster are started by their units"
_MANIFEST = re.compile(r"^(?:apiVersion:|services:)", re.MULTILINE)
_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
# A continued line, comments, and the indentation of the next line.
_INNER_COMMENTS = re.compile(r"(\\\n)((?:[ \t]*#[^\n]*\n)+)(?=([ \t]*)(\S))")
_CONTAINER_PROGRAM = re.compile(r"\b(?:docker|podman|nerdctl)\b")


@dataclass
class _Launch:
    """A container, or the command of an engine. name: of its container, empty without one. variables: of its shell."""

    name: str
    run: DockerRun
    variables: Mapping[str, str]


@dataclass
class _Script:
    """The launches of a script.

    arguments: of the script, None if any. containers: started by docker. typed: engines that are typed in a container
    or without one. documents: here-documents that are printed or written, which may be a script. elsewhere: messages
    about files with the launch that are not read here.
    """

    arguments: list[str] | None
    containers: list[_Launch] = field(default_factory=list)
    typed: list[_Launch] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    @property
    def has_launches(self) -> bool:
        """Whether there is an engine or a container."""
        return bool(self.containers or self.typed)


def read(draft: Draft, text: str) -> None:
    """Read a script with one launch in it. Raises Unreadable without a launch, or with several."""
    if not text.strip():
        raise Unreadable("the text is empty")
    text = re.sub(r"\^\r?\n", " ", _launch_of_page(text))  # line continuation of cmd.exe
    text = re.sub(r"\\\s*\Z", "", text)  # an incomplete copy of a command
    text = _without_inner_comments(draft, text)
    variables, left_out = dict(draft.variables), list(draft.left_out)
    script = _Script(None)
    arguments: list[str] | None
    for arguments in ([], None):  # started without arguments, else with any
        draft.variables.clear()
        draft.variables.update(variables)
        draft.left_out[:] = left_out
        script = _Script(arguments)
        _collect(draft, text, script)
        if not script.has_launches:
            for document in script.documents:  # grows: a document may write others
                _collect(draft, document, script)
        if script.has_launches:
            break
    if script.elsewhere and not script.has_launches:
        raise Unreadable(f"no vllm in here: {script.elsewhere[0]}")
    _settle(draft, script)


def _without_inner_comments(draft: Draft, text: str) -> str:
    """Return a script without the comments between continued lines, at which a shell would end the command."""

    def continued(match: re.Match[str]) -> str:
        indented = len(match[3]) >= len(match[2]) - len(match[2].lstrip(" \t")) and (match[3] or match[4] == "-")
        if not indented:  # the comment stands behind the command
            return match[0]
        draft.leave("comments inside the command", "a shell would end the command there; they are skipped here")
        return match[1]

    return _INNER_COMMENTS.sub(continued, text)


def run_role(run: DockerRun) -> str:
    """Return the purpose of a container, as C(import_engine.role)."""
    entrypoint = run.last("--entrypoint") or ""
    words = [*entrypoint.split(), *run.command]
    role = import_engine.role(words)
    if role not in ("idle", "other") or not words or entrypoint:
        return role
    # Without a program these can be arguments of vllm serve.
    is_model = "/" in words[0] and not import_engine.program(words) and "vllm" in run.image
    is_option = words[0].startswith("-") and words[0] != "-c"
    if is_option or is_model or (words[0] == "serve" and len(words) > 1):
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


def note_rootless(draft: Draft, words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Record that the images and volumes of a rootless docker are not available here."""
    texts = [*words[:8], variables.get("DOCKER_HOST", ""), draft.variables.get("DOCKER_HOST", "")]
    if any("/run/user/" in text or text == "rootless" for text in texts):
        draft.leave(
            "rootless docker",
            "engines run under the host's Docker, which does not see images and volumes of rootless Docker",
        )


# --- the commands of a script ---------------------------------------------------------------------------------------


def _launch_of_page(text: str) -> str:
    """Return the only launch of a page in Markdown, and any other text unchanged."""
    blocks = [block for block in _FENCED.findall(text) if has_launch(block)]
    if "```" not in text or len(blocks) == 1:
        return blocks[0] if blocks else text
    if not blocks:
        raise Unreadable("no vllm in here: a page without a docker run or vllm serve command in a fenced block")
    raise Unreadable(f"a page with {len(blocks)} launches: put one of them into a separate file")


def _collect(draft: Draft, text: str, script: _Script) -> None:
    """Add the containers and engines of a text to C(script), and all other commands to the draft's omissions."""
    for command in shell_script.read_script(text, draft.variables, script.arguments):
        words = command.words
        run = docker_run.read_docker_run(words) or _cluster_script(words) or _launch_cluster(draft, words)
        _note_elsewhere(words, command.stdin, script)
        if (run is None or run_role(run) == "other") and draft.note_download(
            _inner_words(words, run), command.stdin, run.mounts if run else ()
        ):
            continue
        is_quiet = run is None and import_engine.quiet(words) and words[0] not in ("exec", "cat", "tee")
        if is_quiet or program_name(words[0]) in ("echo", "printf"):
            continue
        if run is None:
            _collect_other(draft, command, text, script)
        else:
            script.containers.append(_Launch(run.last("--name") or run.image, run, command.variables))
            note_rootless(draft, words, command.variables)


def _inner_words(words: list[str], run: DockerRun | None) -> list[str]:
    """Return the command that a container, or C(docker exec), runs inside, else the words themselves."""
    if run:
        return [*run.values("--entrypoint")[-1:], *run.command]
    inside = docker_run.read_docker_exec(words)
    return inside[2] if inside else words


def _collect_other(draft: Draft, command: shell.Command, text: str, script: _Script) -> None:
    """Add the launches of a command that starts no container by itself. text: the script with the command."""
    words = command.words
    # A nested script is shorter than its script; a $(...) was read in its place.
    nested = [word for word in words if len(word) < len(text) and not word.startswith(("$(", "`"))]
    inner = next((word for word in nested if has_launch(word)), "")
    if (composed := docker_run.read_compose_run(words)) is not None:
        _collect_composed(draft, words, *composed, script)
    elif _CONTAINER_PROGRAM.search(inner) and words[0] != "docker":
        draft.leave(words[0], "hosts are named in the inventory" if words[0] == "ssh" else SYSTEMD)
        _collect(draft, inner, script)
    elif has_launch(command.stdin) and words[0] in ("cat", "tee"):
        script.documents.append(command.stdin)
    elif has_launch(command.stdin) and not words[0].startswith("python"):
        _collect(draft, command.stdin, script)
    else:
        _collect_typed(draft, command, script)


def _note_elsewhere(words: Sequence[str], document: str, script: _Script) -> None:
    """Note a file of compose or of Kubernetes that a script writes or starts."""
    if _MANIFEST.search(document) and "vllm" in document:
        script.elsewhere.append(
            "the script writes a compose file or a Kubernetes manifest in a here-document; pass that text as a separate file"
        )
    elif re.match(r"(?:sudo )?(?:docker[ -]compose|podman[ -]compose)\b.*\bup\b", " ".join(words)):
        script.elsewhere.append("the script starts services of a compose file; give that file")
    elif re.match(r"(?:\S*/)?(?:sparkrun\s+run|run-recipe\.(?:sh|py))\s", " ".join(words)):
        script.elsewhere.append("the command names a recipe; give the file of the recipe")


def _collect_typed(draft: Draft, command: shell.Command, script: _Script) -> None:
    """Add a command to C(script) if it is an engine, else to the draft's omissions."""
    name, words, variables = "", command.words, command.variables
    inside = docker_run.read_docker_exec(words)
    if inside:  # variables of the outer shell are unknown inside
        name, run, words = inside
        variables = _passed_variables(run, command.variables)
    if import_engine.find(words) is not None:
        script.typed.append(_Launch(name, DockerRun(command=words), variables))
    elif words and words[0] in ("source", "."):
        reason = "the values in that file are not known; set them with variables"
        draft.leave(" ".join(words[:2]), import_engine.replaced_by(words) or reason)
    elif words and not import_engine.quiet(words):
        reason = f"runs in the container; move its commands to {OWN_IMAGE}" if inside else HOST_WORK
        joins = re.search(r"\bray\s+(?:start|status|stop)\b", " ".join(words))
        draft.leave(brief(command.words), RANKS if joins else import_engine.replaced_by(words) or reason)


def _passed_variables(run: DockerRun, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of C(--env), those without a value from the shell."""
    return {key: variables.get(key, f"${{{key}}}") if value is None else value for key, value in run.env.items()}


def _collect_composed(draft: Draft, words: Sequence[str], service: str, run: DockerRun, script: _Script) -> None:
    """Add the engine that C(docker compose run) or C(exec) starts in a service of a compose file, which is unavailable."""
    command = ["vllm", *run.command] if run.command[:1] == ["serve"] else run.command
    if import_engine.find(command) is None:
        draft.leave(brief(words), HOST_WORK)
        return
    draft.leave(
        f"docker compose, service {service}",
        "its image, volumes and variables stand in the compose file, which is not read here: name the image, or import that file",
    )
    script.typed.append(_Launch(service, DockerRun(command=command), _passed_variables(run, {})))


# --- scripts that start clusters ------------------------------------------------------------------------------------


def _script_place(words: Sequence[str], script: str) -> int | None:
    """Return the index of a script in a command, or None."""
    return next((index for index, word in enumerate(words) if program_name(word) == script), None)


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


_CLUSTER_VALUES = word_set("-t -e -v -p -n -m --name --nodes --eth-if --ib-if --apply-mod --shm-size")
"""Options of C(launch-cluster.sh) that take a value; every other one is a switch."""
_CLUSTER_ACTIONS = ("exec", "start", "stop", "status")
_CLUSTER_DOCKER = {"-e": "--env", "-v": "--volume", "-p": "--publish", "--name": "--name", "--shm-size": "--shm-size"}


def _launch_cluster(draft: Draft, words: Sequence[str]) -> DockerRun | None:
    """Read C(launch-cluster.sh -t IMAGE ... exec vllm serve) of eugr/spark-vllm-docker; None for its other actions."""
    place = _script_place(words, "launch-cluster.sh")
    if place is None:
        return None
    run, mods = DockerRun(options=[("--network", "host")]), []
    remaining = iter(words[place + 1 :])
    action = ""
    for word in remaining:
        if word in _CLUSTER_ACTIONS:
            action = word
            break
        name, equals, value = word.partition("=")
        if name in _CLUSTER_VALUES and not equals:
            value = next(remaining, "")
        if name == "-t":
            run.image = value
        elif name == "--apply-mod":
            mods.append(value)
        elif name in _CLUSTER_DOCKER:
            run.options.append((_CLUSTER_DOCKER[name], value))
    run.command = list(remaining)
    if action != "exec" or not has_launch(" ".join(["exec", *run.command])):
        return None
    if mods:
        draft.leave(f"mods {', '.join(mods)}", PATCHED)
    if "/" not in run.image:
        run.image = run.image or "vllm-node"
        draft.leave(f"container {run.image}", BUILT_THERE)
    return run


# --- the launch of a script -----------------------------------------------------------------------------------------


def _settle(draft: Draft, script: _Script) -> None:
    """Make the draft of the only launch of a script, or of the selected one."""
    select = draft.select
    for container in script.containers:
        _inline_mounted_script(draft, container.run, script.documents)
    engines = _with_role(script, "engine") or _with_role(script, "rank")
    if select is None and not engines and script.typed:
        _use_typed(draft, script)
        return
    candidates = (_without_other_ranks(engines) if select is None else []) or script.containers
    chosen: _Launch = choose([(launch.name, launch) for launch in candidates], select, "docker run commands")[1]
    _leave_others(draft, [other for other in script.containers if other.name != chosen.name])
    draft.run = chosen.run
    draft.variables.update(chosen.variables)
    draft.name = chosen.run.last("--name") or ""


def _without_other_ranks(engines: list[_Launch]) -> list[_Launch]:
    """Return the first of engines that are ranks of one launch, else all of them."""
    launches = {(engine.run.image, *without_owned(_engine_words(engine.run))) for engine in engines}
    spans = any("--nnodes" in word for engine in engines for word in " ".join(engine.run.command).split())
    return engines[:1] if len(launches) == 1 and spans else engines


def _with_role(script: _Script, *roles: str) -> list[_Launch]:
    return [container for container in script.containers if run_role(container.run) in roles]


def _leave_others(draft: Draft, containers: Sequence[_Launch]) -> None:
    for container in containers:
        is_rank = run_role(container.run) in ("ray", "rank", "engine")
        reason = RANKS if is_rank else "another container, which is no part of the engine"
        draft.leave(f"container {container.name}", reason)


def _inline_mounted_script(draft: Draft, run: DockerRun, documents: Sequence[str]) -> None:
    """Replace a mounted script that a container runs by its text, from the launch or from a file next to it."""
    words = [*(run.last("--entrypoint") or "").split(), *run.command]
    scripts = mounted_scripts(run.mounts, draft.scripts)
    mounted = next((target for _source, target in run.mounts if words[-1:] == [target]), None)
    if mounted and len(documents) == 1:
        scripts.setdefault(mounted, documents[0])
    inlined = inline_scripts(words, scripts, run.last("--workdir") or "/")
    if inlined == words:
        return
    path = script_path(words)
    # Without the entrypoint, and the volume of the script.
    run.options = [
        (option, value)
        for option, value in run.options
        if option != "--entrypoint" and not (path and option in ("--volume", "--mount") and path in str(value))
    ]
    run.options.append(("--entrypoint", ""))
    run.command = inlined
    draft.leave(
        f"script {path}", "the launch writes it, or it is in the same folder; the commands that it starts are read"
    )


def _typed_engine(script: _Script) -> _Launch:
    """Return the head of the only typed engine."""
    leading = [launch for launch in script.typed if not import_engine.is_rank(_engine_words(launch.run))]
    candidates = leading or script.typed
    different = {tuple(without_owned(_engine_words(launch.run))) for launch in candidates}
    if len(different) > 1:
        raise Unreadable(f"{len(different)} different vllm serve commands in here; give one of them")
    return candidates[0]


def _use_typed(draft: Draft, script: _Script) -> None:
    """Make the draft of a typed engine, inside a waiting container or without one."""
    engine = _typed_engine(script)
    named = [container for container in script.containers if container.name == engine.name]
    container = next(iter(named or _with_role(script, "idle", "ray")), None)
    if container is None:
        name = engine.name
        if name and not any(entry["item"].endswith(f" {name}") for entry in draft.left_out):
            draft.leave(
                f"container {brief([name])}",
                "is started somewhere else; its image, volumes and variables are not known here: name the image",
            )
        draft.run = engine.run
        draft.env(engine.variables)
        return
    run = container.run
    options = [(option, value) for option, value in run.options if option not in ("--entrypoint", "--workdir")]
    draft.run = DockerRun(options, run.image, engine.run.command)
    draft.typed = True
    outer = container.variables
    draft.env({key: value for key, value in engine.variables.items() if outer.get(key) != value})
    draft.variables.update(outer)
    draft.name = run.last("--name") or ""
    _leave_others(draft, [other for other in script.containers if other is not container])


def _engine_words(run: DockerRun) -> list[str]:
    engine = import_engine.find(run.command)
    return engine.words if engine else list(run.command)
