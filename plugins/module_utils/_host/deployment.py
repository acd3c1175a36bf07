# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run that deploys a state document: the document, the tools of the module, and a record of changes."""

from __future__ import annotations

import contextlib
import grp
import hashlib
import os
import pwd
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._runtime.command import Run
from . import host_lock, staging
from .deployed import Deployed
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
    """The document, the tools, and a record of the changes; in check mode, of the changes that would be made.

    state: the document, each row once. before: the record of what is deployed. after: the record as it will be. parts: whose rows go if the
    document has them no more.
    """

    def __init__(
        self, state: HostState, tools: Tools, parts: Collection[str] = (), before: Deployed | None = None
    ) -> None:
        self.state, self.tools, self.parts = state.distinct(), tools, parts
        self.before = before or Deployed()
        self.after = self.before
        self.sent = state.resolved()
        self.run, self.check = tools.run, tools.check
        self.changed = False
        self.diffs: list[dict[str, Any]] = []
        self.removed: list[str] = []
        self.staged: dict[str, Path] = {}
        self.reload = False  # systemd has to read its files again
        self.part_of_unit = {unit.name: unit.part for unit in (*self.before.state.units, *state.units)}

    def rows(self) -> HostState:
        """Return the rows of the document as they are on this host, those that parts share once for each part."""
        digests = {file.path: file.digest for file in self.state.files}
        files = (
            replace(file, digest=digests[file.path], data=None) for file in self.sent.files if file.path in digests
        )
        return replace(self.sent, files=tuple(files))

    def file_folders(self) -> set[Path]:
        """Return the folders of all files, in which a killed run may have left contents."""
        return {Path(file.path).parent for file in (*self.before.state.files, *self.state.files)}

    def note(self, path: str, before: str, after: str) -> None:
        """Record one difference for C(--diff)."""
        self.diffs.append({"before": before, "after": after, "before_header": path, "after_header": path})

    def part_of(self, units: Iterable[str]) -> str:
        """Return the parts that name some units, for messages."""
        return ", ".join(dict.fromkeys(self.part_of_unit[name] for name in units if self.part_of_unit.get(name)))

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


def digest_of(path: Path) -> str | None:
    """Return the SHA-256 of a regular file, None for anything else."""
    if path.is_symlink() or not path.is_file():
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def user_exists(name: str) -> bool:
    """Tell whether the host has this account. A number, such as the user of a container, needs no name there."""
    return _exists(pwd.getpwnam, name)


def group_exists(name: str) -> bool:
    """Tell whether the host has this group; a number needs no name there."""
    return _exists(grp.getgrnam, name)


def _exists(find: Callable[[str], Any], name: str) -> bool:
    try:
        return name.isdigit() or bool(find(name))
    except KeyError:
        return False
