# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The normal form of a launch: options of docker run, a command, variables. Every source form is read into it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .._common import docker_run, shell, shell_script
from .._common.docker_run import DockerRun
from .import_downloads import Download, path_below, read_download

OWN_IMAGE = "an image of your own"
BUILT_THERE = "is built on the machine itself; push it to a registry and name it in full"
PATCHED = (
    "patches the container at every start, which is not supported; put its commands as RUN into 'dockerfile' of an image by digest, or into "
    f"{OWN_IMAGE}"
)
"""Reason for patches that the engine does not get here."""


class Unreadable(ValueError):
    """There is no launch of vLLM in a text, or not exactly one."""


@dataclass
class Draft:
    """A launch in docker's terms.

    form, files, scripts, select, variant, features: arguments of C(importer.import_launch). variables: of the shell that started the
    launch. unit: the systemd unit around it, if there is one. nodes: its stated number of Sparks, 0 if it states none. typed: somebody
    types the engine's command in a running container, so its image's entrypoint takes no part. downloads: models that the launch
    fetches into folders. dropped: paths of the container whose volumes are not carried over.
    """

    form: str
    variables: dict[str, str]
    files: Mapping[str, str]
    scripts: Mapping[str, str]
    select: str | None
    variant: str | None
    features: Sequence[str] | None
    name: str = ""
    run: DockerRun = field(default_factory=DockerRun)
    left_out: list[dict[str, str]] = field(default_factory=list)
    unit: docker_run.Unit | None = None
    nodes: int = 0
    typed: bool = False
    downloads: list[Download] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    @property
    def by_docker(self) -> bool:
        """Whether docker starts the image with its own entrypoint; start programs of recipes clear it."""
        return bool(self.run.image) and self.form in ("docker", "compose", "kubernetes", "systemd")

    def leave(self, item: str, reason: str) -> None:
        """Record once that something is not carried over."""
        entry = {"item": item, "reason": reason}
        if entry not in self.left_out:
            self.left_out.append(entry)

    def note_download(self, words: Sequence[str], text: str = "", mounts: Sequence[tuple[str, str]] = ()) -> bool:
        """Record the model that a command fetches from the hub into a folder."""
        download = read_download(words, text)
        if download is None:  # sh -c "... && hf download ..."
            scripts = [
                word for word in words if re.search(r"\s", word) and re.search(r"download|clone|huggingface", word)
            ]
            with contextlib.suppress(ValueError):
                commands = [command for script in scripts for command in shell_script.read_script(script)]
                return any([self.note_download(command.words, command.stdin, mounts) for command in commands])
            return False
        self.downloads.append(download)
        for source, target in mounts:
            inner = path_below(target, download.folder)
            if inner is not None:
                self.downloads.append(replace(download, folder=source + inner))
        return True

    def env(self, assignments: Any) -> None:
        """Add variables, from a mapping or a list of C(NAME=value)."""
        if isinstance(assignments, Mapping):
            items = [str(name) if value is None else f"{name}={text_of(value)}" for name, value in assignments.items()]
        else:
            items = [str(item) for item in assignments or []]
        self.run.options += [("--env", item) for item in items]


def word_set(text: str) -> frozenset[str]:
    """Return the words of a table."""
    return frozenset(text.split())


def program_name(word: str) -> str:
    """Return the name of a program without its folder."""
    return word.rpartition("/")[2]


def text_of(value: Any) -> str:
    """Return a value of YAML as a command line has it."""
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


def words_of(value: Any) -> list[str]:
    """Return the words of a command, written as a text or as a list."""
    if isinstance(value, str):
        return shell.read_words(value)
    return [text_of(item) for item in value or []]


def texts_of(value: Any) -> list[str]:
    """Return all texts inside a value."""
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in texts_of(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts_of(item)]
    return [value] if isinstance(value, str) else []


def waits_for(names: Sequence[str]) -> str:
    """Return the reason for an item with unknown values."""
    return f"waits for {', '.join(names)}: set it with variables"


def choose(candidates: Sequence[tuple[str, Any]], select: str | None, plural: str) -> tuple[str, Any]:
    """Return name and value of the only candidate, or of the selected one. Raises Unreadable without a launch, or with several."""
    names = ", ".join(name for name, _value in candidates)
    if select is not None:
        for name, value in candidates:
            if name == select:
                return name, value
        raise Unreadable(f"there is no {select!r} among the {plural}: {names or 'none'}")
    if not candidates:
        raise Unreadable(f"no vllm in here: found none of the {plural}")
    if len(candidates) > 1:
        raise Unreadable(f"{len(candidates)} {plural} in here ({names}); say which one (select)")
    return candidates[0]
