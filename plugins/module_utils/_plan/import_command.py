# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the arguments of C(vllm serve) in a draft, and refuse containers that do not start it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import import_engine, import_inline
from .import_draft import OWN_IMAGE, Draft, Unreadable, program_name
from .import_engine import Engine, brief, pip_packages, quiet, replaced_by
from .import_tables import CLUSTER_ENV, HF_TOKENS, MACHINE_ENV, OWN_ENV


def read_command(draft: Draft, container_env: Mapping[str, str | None], catalogued: str | None) -> Engine:
    """Return C(vllm serve) of a draft, with all variables of its container; raises C(Unreadable) if that runs something else."""
    entrypoint = draft.run.last("--entrypoint")
    words = [*(entrypoint or "").split(), *draft.run.command]
    env = dict(container_env)
    engine = import_engine.find(words, {name: value for name, value in env.items() if value is not None})
    replaces_entrypoint = draft.typed or entrypoint is not None
    if engine is not None:
        engine.bare = draft.by_docker and replaces_entrypoint and not catalogued
    if entrypoint is not None and not (engine and engine.bare):
        draft.leave(f"--entrypoint {entrypoint or repr('')}", "the image's own entrypoint is used")
    engine = engine or _started_by_image(draft, env, words, catalogued)
    if engine is None:
        _refuse_other_programs(draft, env, words, entrypoint, catalogued == "serve")
        engine = Engine(words=words)
    elif not replaces_entrypoint:
        _leave_second_serve(draft, words, catalogued)
    _read_surroundings(draft, env, engine)
    engine.env = env
    return engine


def _leave_second_serve(draft: Draft, words: Sequence[str], catalogued: str | None) -> None:
    """Record a command C(vllm serve) that repeats the image's entrypoint."""
    if catalogued == "serve" and draft.by_docker and words and program_name(words[0]) == "vllm":
        draft.leave(
            "vllm serve", "is the entrypoint of this image; typed again, its second word is taken for the model"
        )


def _read_surroundings(draft: Draft, env: dict[str, str | None], engine: Engine) -> None:
    """Record the programs and other commands around the engine, with their packages, and add their variables to C(env)."""
    while engine.words[:2] == ["vllm", "serve"]:
        draft.leave("vllm serve", "stands there twice")
        engine.words = engine.words[2:]
    for item, reason in engine.left_out:
        draft.leave(item, reason)
    for other in engine.other_commands:
        if draft.note_download(other):
            continue
        packages = pip_packages(other)
        engine.packages += packages
        if not packages and not quiet(other):
            reason = f"ran before the engine by {engine.program}; move its commands to {OWN_IMAGE}"
            draft.leave(brief(other), replaced_by(other) or reason)
    for name in engine.unset:
        env.pop(name, None)
    for name, value in engine.env.items():
        if name in MACHINE_ENV:
            draft.leave(f"{name}={value}", "the image's own is kept")
        else:
            env[name] = value


def _started_by_image(
    draft: Draft, env: dict[str, str | None], words: Sequence[str], catalogued: str | None
) -> Engine | None:
    """Return the engine of a container without vllm in its command, if variables or C(serve) make the image start one."""
    started = None if words else import_engine.by_variables(draft.run.image, env)
    if started:
        engine, read_variables = started
        engine.bare = True
        for name in read_variables:
            env.pop(name, None)
        draft.leave(
            "the image's own start script",
            "its variables are read as options of vllm serve; other actions of the script are not known",
        )
        return engine
    if words[:1] == ["serve"] and not catalogued and draft.by_docker:
        draft.leave("serve", "the image runs vllm itself; 'vllm serve' is typed whole here, without its entrypoint")
        return Engine(words=list(words[1:]), bare=True)
    return None


def _refuse_other_programs(
    draft: Draft, env: Mapping[str, str | None], words: Sequence[str], entrypoint: str | None, serves: bool
) -> None:
    """Refuse a container whose command is no C(vllm serve) and cannot be options of one. serves: whether its entrypoint is."""
    mounted = any(words[:1] == [target] for _source, target in draft.run.mounts)
    only_path = len(words) == 1 and words[0].startswith("/") and not mounted
    program = import_engine.program(words) or (brief(words[:1]) if entrypoint else "")
    if not program and not serves and draft.by_docker:
        if not words:
            raise Unreadable(_unknown_start(draft, env))
        # A name without a folder is neither an option nor a model.
        bare_name = "/" not in words[0] and not words[0].startswith(("-", "$", "{", "<"))
        program = brief(words[:1]) if only_path or bare_name else ""
    if program:
        raise Unreadable(_other_program(program, import_inline.script_path(words), only_path))


def _other_program(program: str, path: str, only_path: bool) -> str:
    """Return why a container is refused. program: in its command. path: of its script, empty without one."""
    if not path and not only_path:
        return f"the container runs {program}, not vllm serve"
    shown = program if path in program else f"{program} {path}"
    return (
        f"the container runs {shown}, not vllm serve; this text does not contain the command that it starts. Pass the script, or the command "
        "from docker top"
    )


def _unknown_start(draft: Draft, env: Mapping[str, str | None]) -> str:
    """Return why a container without a command cannot be imported."""
    image = draft.run.image or "the image"
    standard_names = {*OWN_ENV, *MACHINE_ENV, *CLUSTER_ENV, *HF_TOKENS}
    names = [name for name in env if name not in standard_names and not name.startswith(("NCCL_", "NVIDIA_"))]
    if "vllm" not in image and not any("VLLM" in name or "MODEL" in name for name in names):
        return f"the container runs {image}, which does not look like vLLM"
    shown = f" ({', '.join(names[:8])})" if names else ""
    return (
        f"{image} is started by its own variables{shown}: the vllm serve command that its start script builds is not known; pass that command "
        "(docker top shows it)"
    )
