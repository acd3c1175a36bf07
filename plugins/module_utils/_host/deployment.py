# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run that deploys a state document: the document, the tools of the module, and a record of changes."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._runtime.command import Run
from . import host_lock, staging
from .host_state import HostState

SYSTEM = Path("/etc/systemd")
"""Below this folder, a change makes systemd read its files again."""


class Refused(Exception):
    """The host cannot be made equal to the document. log: lines of the journal that say why."""

    def __init__(self, text: str, part: str = "", log: Iterable[str] = ()) -> None:
        super().__init__(f"{part}: {text}" if part else text)
        self.log = list(log)


@dataclass
class Tools:
    """Functions and settings that the module gives to a deployment.

    run: runs a command, as C(command.runner) makes it. attributes: takes path, owner, group, mode and a mapping for the difference, sets what
    differs unless this is check mode, and tells whether anything differs. warn: shows a warning. check: change nothing. tmpdir: for files
    that a boot may leave behind.
    """

    run: Run
    attributes: Callable[[str, str, str, str, dict[str, Any]], bool]
    warn: Callable[[str], None]
    check: bool
    tmpdir: str


class Deployment:
    """The document, the tools, and a record of the changes; in check mode, of the changes that would be made."""

    def __init__(self, state: HostState, tools: Tools) -> None:
        self.state, self.tools = state, tools
        self.run, self.check = tools.run, tools.check
        self.changed = False
        self.diffs: list[dict[str, Any]] = []
        self.removed: list[str] = []
        self.staged: dict[str, Path] = {}
        self.reload = False  # systemd has to read its files again
        self.parts = {unit.name: unit.part for unit in state.units}

    def note(self, path: str, before: str, after: str) -> None:
        """Record one difference for C(--diff).

        :param path: of the file or folder
        :param before: its text, or its state
        :param after: the same after the change
        """
        self.diffs.append({"before": before, "after": after, "before_header": path, "after_header": path})

    def part_of(self, units: Iterable[str]) -> str:
        """Return the parts that name some units, for messages."""
        return ", ".join(dict.fromkeys(self.parts[name] for name in units if self.parts.get(name)))

    def touch(self, path: Path) -> None:
        """Record that a file has changed."""
        self.changed = True
        self.reload = self.reload or SYSTEM in path.parents

    @contextlib.contextmanager
    def own_folder(self) -> Iterator[str]:
        """Make a folder for a moment in a place where the next run, or a boot, removes what a killed run leaves behind."""
        parent = str(host_lock.run_dir()) if os.access(host_lock.run_dir(), os.W_OK) else self.tools.tmpdir
        with tempfile.TemporaryDirectory(prefix=staging.PREFIX, dir=parent) as folder:
            yield folder


def is_present(path: Path) -> bool:
    """Tell whether anything has this name; a link that leads nowhere counts."""
    return path.exists() or path.is_symlink()


def is_folder(path: Path) -> bool:
    """Tell whether this is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def user_exists(name: str) -> bool:
    """Tell whether the host has this account. The number of an account, such as that of a container's user, needs no name there."""
    if name.isdigit():
        return True
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def group_exists(name: str) -> bool:
    """Tell whether the host has this group."""
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True
