# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find C(vllm serve) in a command, through the programs and shells in front of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .._common import shell_script
from . import service_keys
from .import_draft import OWN_IMAGE, program_name, word_set

SYSTEMD = "systemd supervises the engines here"
_PRIORITY = "units here set no priority; systemd's Nice= in a drop-in does"
PYTHON = "the image's own Python runs the engine"
_USER = "engines run as the image's user here"
# Programs in front of vllm serve, and why they are not carried over; "" for no message.
PREFIXES = {
    **dict.fromkeys(word_set("exec command builtin tini dumb-init -- nvidia_entrypoint.sh time env taskset sudo"), ""),
    **dict.fromkeys(["nohup", "setsid", "tmux", "screen", "systemd-run", "systemd-inhibit", "disown"], SYSTEMD),
    **dict.fromkeys(["nice", "renice", "ionice", "chrt"], _PRIORITY),
    **dict.fromkeys(["stdbuf", "unbuffer"], "the journal stores each line at once"),
    **dict.fromkeys(["uv", "uvx", "conda", "mamba", "poetry", "pipx"], PYTHON),
    **dict.fromkeys(["gosu", "su-exec", "runuser", "setpriv", "capsh"], _USER),
    "numactl": "a Spark has one NUMA node",
    "timeout": "a service runs until it is stopped",
    "ray": "the ranks of a spark_cluster are started and joined by their units",
}
# Images whose own script starts the engine by variables, as their authors describe them (AEON-7/vllm-dflash, read 2026-11-23): the
# variable of the model, of the drafter with its tokens, and those that are an option.
BY_VARIABLES = re.compile(r"ghcr\.io/aeon-7/")
_MODEL, _DRAFTER, _TOKENS = "MODEL_PATH", "DFLASH_DRAFTER", "DFLASH_NUM_SPEC_TOKENS"
_OPTIONS = (
    "SERVED_MODEL_NAME",
    "MAX_MODEL_LEN",
    "MAX_NUM_SEQS",
    "MAX_NUM_BATCHED_TOKENS",
    "GPU_MEMORY_UTILIZATION",
    "KV_CACHE_DTYPE",
    "TENSOR_PARALLEL_SIZE",
    "HOST",
    "PORT",
)
# A drafter of DFlash needs both on sm_121 (practical guide, 14.5).
_DFLASH_ENV = {"VLLM_USE_DEEP_GEMM": "0"}
_DFLASH_OPTIONS = ("--attention-backend", "triton_attn")
# The word after one of these is a program again.
_ALONE = word_set("exec command builtin nohup setsid time tini dumb-init --")
_WRAPPED = f"ran as a wrapper of the engine; move its commands to {OWN_IMAGE}"
# Programs that name a launch and start none.
_MENTION = word_set(
    "echo printf cat grep egrep pgrep pkill killall which type ps tee sed awk logger history alias systemctl journalctl git "
    "docker-compose"
)
SHELLS = ("bash", "sh", "dash", "zsh", "ash")
# Commands of a script that change nothing that a role or a unit has to do.
_QUIET = word_set(
    ": true false [ [[ test set shopt trap exit return echo printf shift wait kill sleep read break continue cd pwd pushd popd "
    "unset mkdir date cat grep sed awk head tail tr cut sort tee wc seq basename dirname command type which clear umask jobs "
    "disown exec hostname id whoami uname nvidia-smi free ls stat touch mktemp python3 curl wget ip ibdev2netdev local"
)
_QUIET_DOCKER = word_set("stop rm kill logs ps inspect wait start image images info version pull")
_INSTALL = re.compile(r"(?:\S*python3? -m )?(?:uv )?\S*pip3? install ")


@dataclass
class Engine:
    """C(vllm serve) as a command has it.

    words: arguments of the engine. env: variables set in front of it. unset: removed variables. cpus: its CPU list.
    left_out: programs in front of it, with the reason. other_commands: of the script. program: the shell of the script.
    packages: that C(pip install) adds before. bare: vllm is started without the image's entrypoint.
    """

    words: list[str] = field(default_factory=list)
    env: dict[str, str | None] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)
    cpus: str = ""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    other_commands: list[list[str]] = field(default_factory=list)
    program: str = ""
    packages: list[str] = field(default_factory=list)
    bare: bool = False


def by_variables(image: str, env: Mapping[str, str | None]) -> tuple[Engine, tuple[str, ...]] | None:
    """Return the engine that an image's own script starts by variables.

    :returns: the engine, as C(vllm serve) would be given it, and the variables that are in it; None for any other image
    """
    if not BY_VARIABLES.match(image) or not env.get(_MODEL):
        return None
    words = [str(env[_MODEL])]
    for name in filter(env.get, _OPTIONS):
        words += [f"--{name.lower().replace('_', '-')}", str(env[name])]
    engine, drafter = Engine(words=words), env.get(_DRAFTER)
    tokens = str(env.get(_TOKENS) or "")
    if drafter:
        spec = {"method": "dflash", "model": drafter, "num_speculative_tokens": int(tokens) if tokens.isdigit() else 15}
        words += ["--speculative-config", json.dumps(spec), *_DFLASH_OPTIONS]
        engine.env.update({name: value for name, value in _DFLASH_ENV.items() if name not in env})
    return engine, (_MODEL, _DRAFTER, _TOKENS, *_OPTIONS)


def find(words: Sequence[str], variables: Mapping[str, str] | None = None) -> Engine | None:
    """Find C(vllm serve) in a command, through the programs and shells that people wrap it in."""
    first = program_name(words[0]) if words else ""
    position, behind = _place(words)
    if position is None:
        return None if first in _MENTION else _find_in_shell(words, variables)
    if position and (first in _MENTION or (first == "command" and "-v" in words[:position])):
        return None
    engine = Engine(words=list(words[behind:]))
    _read_prefix(words[:position], engine)
    return engine


def _find_in_shell(words: Sequence[str], variables: Mapping[str, str] | None) -> Engine | None:
    """Find the engine in a script that a shell, or a terminal multiplexer, gets as an argument."""
    place = next((i for i, word in enumerate(words) if program_name(word) in (*SHELLS, "tmux", "screen")), len(words))
    script = next((word for word in reversed(words[place + 1 :]) if "vllm" in word and not word.endswith(".sh")), None)
    if script is None:
        return None
    engine: Engine | None = None
    other_commands: list[list[str]] = []
    unset: list[str] = []
    values = dict(variables or {})
    for command in shell_script.read_script(script, values):
        first = find(command.words, values)
        if first is None:
            other_commands.append(command.words)
            unset += command.words[1:] if command.words[0] == "unset" else []
        elif engine is None:
            engine = first
            engine.env = {**command.variables, **first.env}
    if engine is not None:
        engine.other_commands = [*other_commands, *engine.other_commands]
        engine.unset += unset
        engine.program = program_name(words[place])
        _read_prefix(words[: place + 1] if words[place] in ("tmux", "screen") else words[:place], engine)
    return engine


_MODULES = (["-m", "vllm.entrypoints.openai.api_server"], ["-m", "vllm.entrypoints.cli.main", "serve"])


def _place(words: Sequence[str]) -> tuple[int | None, int]:
    """Return the index of the engine's program, and the index of its first option."""
    for index, word in enumerate(words):
        name = program_name(word)
        if name == "vllm" and list(words[index + 1 : index + 2]) == ["serve"]:
            return index, index + 2
        if re.fullmatch(r"python[\d.]*", name):
            flags = [flag for flag in words[index + 1 : index + 4] if flag in ("-u", "-O", "-I")]
            start = index + 1 + len(flags)
            for module in _MODULES:
                if list(words[start : start + len(module)]) == module:
                    return index, start + len(module)
    return None, 0


def _read_prefix(words: Sequence[str], engine: Engine) -> None:
    """Read the programs in front of the engine, each with the words up to the next."""
    groups: list[list[str]] = []
    for word in words:
        starts_program = not groups or (program_name(groups[-1][0]) in _ALONE and not word.startswith("-"))
        if program_name(word) in PREFIXES or starts_program:
            groups.append([word])
        else:
            groups[-1].append(word)
    for group in groups:
        _read_program(group, engine)


def _read_program(group: Sequence[str], engine: Engine) -> None:
    """Read a program in front of the engine with its words: variables, CPUs, and why it is left out."""
    name = program_name(group[0])
    for index, word in enumerate(group):
        assignment = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word, re.DOTALL)
        if assignment and (name in ("env", "sudo") or not index):
            engine.env.setdefault(assignment.group(1), assignment.group(2))
        elif word == "-u" and name == "env":
            engine.unset += group[index + 1 : index + 2]
    if name == "taskset":
        engine.cpus = _cpus(group) or engine.cpus
    reason = PREFIXES.get(name, "" if re.match(r"[A-Za-z_]\w*=", group[0]) else _WRAPPED)
    if reason:
        engine.left_out.append((name if name in ("tmux", "screen") else brief(group), reason))


def _cpus(words: Sequence[str]) -> str:
    """Return the CPUs that C(taskset) binds to, as docker's C(--cpuset-cpus) has them."""
    cpu_list = next((word for word in words[1:] if re.fullmatch(r"(?:-c)?\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*", word)), "")
    if any(word.startswith(("-c", "--cpu")) or word in ("-ac", "-ca") for word in words[1:]):
        return cpu_list.removeprefix("-c")
    mask = next((word for word in words[1:] if re.fullmatch(r"(?:0x)?[0-9a-fA-F]+", word)), "")
    bits = int(mask, 16) if mask else 0
    return ",".join(str(bit) for bit in range(bits.bit_length()) if bits >> bit & 1)


def role(words: Sequence[str]) -> str:
    """Return the purpose of a container by its command.

    :returns: engine, rank (led by another one), ray (it joins hosts), idle (it waits for somebody to type) or other
    """
    engine = find(words)
    if engine is not None:
        return "rank" if is_rank(engine.words) else "engine"
    text = " ".join(words)
    if re.search(r"\bray\s+start\b", text):
        return "ray"
    is_shell = (
        bool(words) and program_name(words[0]) in SHELLS and all(re.match("-[a-z]*$", word) for word in words[1:])
    )
    return "idle" if not words or is_shell or re.search(r"\bsleep\b|\btail\s+-f\b", text) else "other"


# Programs of images for inspection, for tests of a GPU, or for use besides an engine.
_PROGRAMS = word_set(
    "vllm nvidia-smi nvcc deviceQuery ls cat env printenv id whoami which find true echo sleep tail pip pip3 uv apt-get curl wget "
    "hf huggingface-cli git python python3 ray torchrun sglang trtllm-serve llama-server ollama jupyter nginx node npm java"
)
_PROGRAM_FILE = re.compile(r".*\.(?:sh|bash|py|pl|bin|run)|(?:.*/)?s?bin/[^/]+")
_START = re.compile(r"(?:.*/)?(?:docker-)?(?:entry ?point|start|startup|run|launch|serve|init|boot)(?:[-_.][\w.-]+)?")


def program(words: Sequence[str]) -> str:
    """Return the program that a command without C(vllm serve) runs, empty where its first word can be a model."""
    if not words or words[0].startswith("-"):
        return ""
    word, name = words[0], program_name(words[0])
    if name in ("vllm", "python", "python3", "uv", "pip", "pip3"):
        return brief(words[:2])
    path = word.startswith(("/", "./", "../", "~"))
    if name in _PROGRAMS or name in SHELLS or name in PREFIXES or _PROGRAM_FILE.fullmatch(word):
        return brief([word])
    return brief([word]) if (path or word == name) and _START.fullmatch(word) else ""


def is_rank(words: Sequence[str]) -> bool:
    """Return whether options of C(vllm serve) belong to a rank that another one leads."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--headless" and value != "false":
            return True
        if name in ("--node-rank", "--node_rank"):
            value = value if equals else "".join(words[index + 1 : index + 2])
            return value.isdigit() and int(value) > 0
    return False


def quiet(words: Sequence[str]) -> bool:
    """Return whether a command of a launch needs no message."""
    name = program_name(words[0]) if words else ""
    if name == "sudo":
        return quiet(words[1:])
    if name in ("docker", "podman"):
        arguments = words[2:] if words[1:2] == ["container"] else words[1:]
        return bool(arguments) and arguments[0] in _QUIET_DOCKER
    if name == "python3":
        return not _INSTALL.match(" ".join(words)) and len(words) > 1 and words[1] == "-c"
    if name == "chmod":
        return words[1:2] == ["+x"]
    target_of_makefile = len(words) == 1 and name.endswith(":")
    return name in _QUIET or name == "rm" or target_of_makefile or bool(re.match(r"[\])}]", name))


def replaced_by(words: Sequence[str]) -> str:
    """Return why a command around the engine is not needed: virtual environments, terminal multiplexers; empty for others."""
    name = program_name(words[0]) if words else ""
    if name in ("source", ".") and words[-1].endswith("/bin/activate"):
        return PYTHON
    return PREFIXES[name] if name in ("tmux", "screen", "uv", "uvx", "conda", "mamba", "poetry", "pipx") else ""


def brief(words: Sequence[str]) -> str:
    """Return a short form of a left-out command, without words that may be a secret."""
    text = " ".join(words)
    if re.search(r"(?i)token|key|secret|passw|bearer|login", text):
        return f"{' '.join(words[:2])} ..."
    return text if len(text) <= 160 else f"{text[:157]}..."


def has_launch(text: str) -> bool:
    """Return whether a text of several words has a launch in it."""
    launch = re.search(r"\b(?:docker|podman|nerdctl)\b[^\n]*?\brun\b|\bvllm\s+serve\b", text)
    return launch is not None and re.search(r"\s", text) is not None


# Options of pip install that do not change which packages are installed.
_QUIET_PIP = word_set("-q --quiet -U --upgrade --no-cache-dir --root-user-action=ignore --system --no-input")


def pip_packages(words: Sequence[str]) -> list[str]:
    """Return the packages of a C(pip install), empty if it has other arguments than packages by name."""
    text = " ".join(words)
    match = _INSTALL.match(text)
    arguments = text[match.end() :].split() if match else []
    packages = [word for word in arguments if word not in _QUIET_PIP]
    return packages if all(service_keys.REQUIREMENT.fullmatch(word) for word in packages) else []
