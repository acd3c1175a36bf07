# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A C(docker run) as somebody typed it, and the systemd unit that it may stand in, read into their parts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

# Options of docker run that stand alone (docker run --help, 29.x); every other one is followed by a value.
SWITCHES = {
    "--detach",
    "--help",
    "--init",
    "--interactive",
    "--no-healthcheck",
    "--oom-kill-disable",
    "--privileged",
    "--publish-all",
    "--quiet",
    "--read-only",
    "--rm",
    "--sig-proxy",
    "--tty",
    "--use-api-socket",
}
SHORT = {
    "-a": "--attach",
    "-c": "--cpu-shares",
    "-d": "--detach",
    "-e": "--env",
    "-h": "--hostname",
    "-i": "--interactive",
    "-l": "--label",
    "-m": "--memory",
    "-p": "--publish",
    "-P": "--publish-all",
    "-q": "--quiet",
    "-t": "--tty",
    "-u": "--user",
    "-v": "--volume",
    "-w": "--workdir",
    "--net": "--network",
}

# Options of docker itself that are followed by a value.
GLOBALS = ("-H", "--host", "-c", "--context", "--config", "-l", "--log-level", "--tlscacert", "--tlscert", "--tlskey")

# Options of docker compose itself that are followed by a value, and of compose run and exec that stand alone.
COMPOSE_GLOBALS = ("-f", "--file", "-p", "--project-name", "--profile", "--env-file", "--project-directory", "--ansi")
COMPOSE_SWITCHES = (
    "--service-ports",
    "-P",
    "--no-deps",
    "--no-TTY",
    "-T",
    "--build",
    "--use-aliases",
    "--quiet-pull",
    "--quiet-build",
    "--remove-orphans",
)


@dataclass
class DockerRun:
    """One C(docker run): long option names with their values (C(None) for a switch), image, and command."""

    options: list[tuple[str, str | None]] = field(default_factory=list)
    image: str = ""
    command: list[str] = field(default_factory=list)

    def values(self, *names: str) -> list[str]:
        """Return the values of options, in the order in which they were typed."""
        return [value for name, value in self.options if name in names and value is not None]

    def last(self, name: str) -> str | None:
        """Return the last value of an option, None without one."""
        return next(reversed(self.values(name)), None)

    def has(self, name: str) -> bool:
        """Tell whether an option is set to another value than false."""
        return any(option == name and value != "false" for option, value in self.options)

    @property
    def env(self) -> dict[str, str | None]:
        """Variables of C(--env); C(None) for a variable passed on from the caller's environment."""
        variables: dict[str, str | None] = {}
        for item in self.values("--env"):
            name, equals, value = item.partition("=")
            variables[name] = value if equals else None
        return variables

    @property
    def mounts(self) -> list[tuple[str, str]]:
        """Source and target of every volume and bind mount."""
        mounts = []
        for item in self.values("--volume"):
            source, colon, target = item.partition(":")
            mounts.append((source, target.partition(":")[0]) if colon else ("", source))
        for item in self.values("--mount"):
            parts = dict(part.partition("=")[::2] for part in item.split(","))
            source = parts.get("source") or parts.get("src") or ""
            mounts.append((source, parts.get("target") or parts.get("dst") or parts.get("destination") or ""))
        return mounts


def read_options(words: Sequence[str]) -> tuple[DockerRun, list[str]]:
    """Read the option words of C(docker run); returns the options and the words from the image on."""
    run = DockerRun()
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "-":
        word = words[position]
        position += 1
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if not word.startswith("--") and name not in SHORT:
            letters = [f"-{letter}" for letter in word[1:]]
            if all(SHORT.get(letter) in SWITCHES for letter in letters):  # -it
                run.options += [(SHORT[letter], None) for letter in letters]
                continue
            name, value, equals = word[:2], word[2:].lstrip("="), "="  # -p8000:8000
        name = SHORT.get(name, name)
        if name in SWITCHES:
            run.options.append((name, value if equals else None))
        elif equals:
            run.options.append((name, value))
        elif position < len(words):
            run.options.append((name, words[position]))
            position += 1
    return run, list(words[position:])


def read_docker_run(words: Sequence[str]) -> DockerRun | None:
    """Return the C(docker run) in a command such as C(/usr/bin/docker run ...); C(None) without one."""
    behind = _behind_subcommand(words, "run", "create")
    if behind is None:
        return None
    run, words_behind = read_options(behind)
    if words_behind:
        run.image, run.command = words_behind[0], words_behind[1:]
    return run


def read_compose_run(words: Sequence[str]) -> tuple[str, DockerRun] | None:
    """Return service and C(docker compose run) or C(exec) of a command, with options and program; C(None) without one."""
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        start = (
            index + 1 if name == "docker-compose" else index + 2 if words[index : index + 2] == [word, "compose"] else 0
        )
        if not start or name not in ("docker", "docker-compose", "podman"):
            continue
        while start < len(words) and words[start].startswith("-"):
            start += 2 if words[start] in COMPOSE_GLOBALS else 1
        if words[start : start + 1] in (["run"], ["exec"]):
            plain = [option for option in words[start + 1 :] if option not in COMPOSE_SWITCHES]
            run, words_behind = read_options(plain)
            if words_behind:
                run.command = words_behind[1:]
                return words_behind[0], run
    return None


def read_docker_exec(words: Sequence[str]) -> tuple[str, DockerRun, list[str]] | None:
    """Return container, options and program of the C(docker exec) in a command; C(None) without one."""
    run, words_behind = read_options(_behind_subcommand(words, "exec") or [])
    return (words_behind[0], run, words_behind[1:]) if words_behind else None


def _behind_subcommand(words: Sequence[str], *names: str) -> Sequence[str] | None:
    """Return the words behind a subcommand of docker, which options of docker itself (C(-H) of a rootless one) may precede."""
    for index, word in enumerate(words):
        if word.rpartition("/")[2] in ("docker", "podman", "nerdctl"):
            place = index + 1
            while place < len(words) and (words[place].startswith("-") or words[place] == "container"):
                place += 2 if words[place] in GLOBALS else 1
            if place < len(words) and words[place] in names:
                return words[place + 1 :]
    return None


def split_words(text: str) -> list[str]:
    """Split a command as a shell would, over several lines; raises C(ValueError) where a quote is left open."""
    return shlex.split(re.sub(r"\\\s*\n", " ", text), comments=True)


@dataclass
class Unit:
    """A systemd unit: section to settings in their order, continued lines joined."""

    sections: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def all(self, section: str, key: str) -> list[str]:
        """Return every value of a setting; an empty one clears those before it, as systemd does."""
        values: list[str] = []
        for name, value in self.sections.get(section, []):
            if name == key:
                values = [*values, value] if value else []
        return values

    def last(self, section: str, key: str) -> str | None:
        """Return the value of a setting that holds."""
        values = self.all(section, key)
        return values[-1] if values else None

    @property
    def run(self) -> DockerRun | None:
        """The C(docker run) of C(ExecStart), if there is one."""
        for value in self.all("Service", "ExecStart"):
            words = shlex.split(exec_command(value))
            if words and words[0].rpartition("/")[2] in ("bash", "sh") and len(words) > 2:
                words = split_words(words[-1])
            run = read_docker_run(words)
            if run is not None:
                return run
        return None


def exec_prefix(value: str) -> str:
    """Return the special characters that an C(Exec...=) line begins with."""
    return value[: len(value) - len(value.lstrip("-@:+!|"))]


def exec_command(value: str) -> str:
    """Return an C(Exec...=) line without its special characters."""
    return value.lstrip("-@:+!|").strip()


def is_unit(text: str) -> bool:
    """Tell whether a text is a systemd unit, or a container of Podman written as one."""
    return bool(re.search(r"^\s*\[(Unit|Service|Container)\]\s*$", text, re.MULTILINE))


def read_unit(text: str) -> Unit:
    """Read a systemd unit; raises C(ValueError) for a line that no unit can have."""
    unit = Unit()
    section: list[tuple[str, str]] | None = None
    for number, line in enumerate(_joined(text), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        head = re.fullmatch(r"\[([^]]+)\]", stripped)
        if head:
            section = unit.sections.setdefault(head.group(1), [])
            continue
        key, equals, value = stripped.partition("=")
        if section is None or not equals or not re.fullmatch(r"[A-Za-z0-9-]+", key.strip()):
            raise ValueError(f"line {number} is {stripped[:60]!r}, which no systemd unit has")
        section.append((key.strip(), value.strip()))
    return unit


def _joined(text: str) -> list[str]:
    """Join lines that end with a backslash; comment lines between them fall out, as in systemd."""
    lines: list[str] = []
    going_on = False
    for line in text.splitlines():
        if going_on and line.strip()[:1] in ("#", ";"):
            continue
        if going_on:
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
        going_on = lines[-1].endswith("\\")
        if going_on:
            lines[-1] = lines[-1][:-1].rstrip()
    return lines
