# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A launch in docker's options, read from any form."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .._common import docker_run, shell, shell_script
from .._common.docker_run import DockerRun
from .import_downloads import Download, holds, read_download

OWN_IMAGE = "an image of your own"
BUILT_THERE = "is built on the machine itself; push it to a registry and name it in full"
PATCHED = (
    "patches the container at every start, which is not done here; put what it does as RUN into 'dockerfile' of an image by digest, "
    f"or into {OWN_IMAGE}"
)
"""Where the reason has it, the engine would have had more than it gets here."""


class Unreadable(ValueError):
    """There is no launch of vLLM in a text, or not exactly one."""


@dataclass
class Draft:
    """A launch in docker's terms.

    variables: of the shell that started it. files: env files by the path that names them. unit: the systemd unit around
    it, if there is one. scripts: those that lie beside the launch, by their path
    relative to it. text: the original. nodes: its stated number of Sparks, 0 if it states none.
    typed: the engine is started in a container that is there, so that no entrypoint of its image takes part.
    downloads: models that the launch fetches into folders. dropped: paths of the container whose volumes are not carried over.
    """

    form: str
    name: str = ""
    run: DockerRun = field(default_factory=DockerRun)
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    left_out: list[dict[str, str]] = field(default_factory=list)
    unit: docker_run.Unit | None = None
    text: str = ""
    nodes: int = 0
    typed: bool = False
    downloads: list[Download] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def leave(self, item: str, reason: str) -> None:
        """Say that something is not carried over."""
        entry = {"item": item, "reason": reason}
        if entry not in self.left_out:
            self.left_out.append(entry)

    def note_download(self, words: Sequence[str], text: str = "", mounts: Sequence[tuple[str, str]] = ()) -> bool:
        """Keep what a command fetches from the hub into a folder.

        :param words: of the command
        :param text: its standard input
        :param mounts: source and target of the volumes of the container that runs it
        :returns: whether it is such a command
        """
        download = read_download(words, text)
        if download is None:  # sh -c "... && hf download ..."
            texts = [
                word for word in words if re.search(r"\s", word) and re.search(r"download|clone|huggingface", word)
            ]
            with contextlib.suppress(ValueError):
                commands = [command for word in texts for command in shell_script.read_script(word)]
                return any([self.note_download(command.words, command.stdin, mounts) for command in commands])
            return False
        self.downloads.append(download)
        for source, target in mounts:
            inner = holds(target, download.folder)
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
