# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host knows of the files of its models: SHA-256 sums, kept between runs, and the time of the last repair."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from .._host import beneath, file_times
from .._runtime import state_file

SUMS_DIR = "/var/lib/dgxspark/models"
"""Where a host keeps the sums of files that it has read, a file per model."""


class Sums:
    """SHA-256 of files, kept between runs: a file that was not touched since is not read again."""

    def __init__(self, folder: Path, repo: str) -> None:
        self.path = folder / (repo.replace("/", "--") + ".json")
        self.read_bytes = 0
        self._new = False
        recorded = state_file.read(self.path) or {}
        self._known: dict[str, list[Any]] = {name: value for name, value in recorded.items() if isinstance(value, list)}

    def digest_of(self, handle: IO[bytes], name: str, renew: bool = False) -> str:
        """Return the SHA-256 of a file, from the record if the file is unchanged. renew: read it all the same."""
        key = beneath.stat_key(os.fstat(handle.fileno()))
        recorded = self._known.get(name)
        if recorded and recorded[:-1] == key and not renew:
            return str(recorded[-1])
        digest = beneath.sha256_of(handle)
        self.read_bytes += key[0]
        self.note(key, name, digest)
        return digest

    def recorded(self, name: str, key: Sequence[int]) -> tuple[str, str | None]:
        """Return C(yes) if a file is unchanged since it was read, C(changed) or C(no), and its sum at that time.

        :param key: what tells whether it changed
        """
        entry = self._known.get(name)
        return ("yes" if entry[:-1] == key else "changed", str(entry[-1])) if entry else ("no", None)

    def forget(self, name: str) -> None:
        """Remove the sum of a file that was damaged."""
        self._new |= self._known.pop(name, None) is not None

    def note(self, key: Sequence[int], name: str, digest: str) -> None:
        """Keep the sum of a file."""
        self._known[name] = [*key, digest]
        self._new = True

    def follow(self, marks: Mapping[str, tuple[list[int], list[int]]]) -> None:
        """Record new stat keys for files with unchanged content; each with the previous key, by path."""
        for name, (before, after) in marks.items():
            recorded = self._known.get(name)
            if recorded and recorded[:-1] == before:
                self.note(after, name, str(recorded[-1]))

    def save(self) -> None:
        """Write the record by one rename, without entries of removed files."""
        if not self._new:
            return
        existing = {name: value for name, value in sorted(self._known.items()) if Path(name).exists()}
        state_file.write(self.path, existing)


def repair_stamp(sums_dir: Path, repo: str) -> Path:
    """Return the file that is touched when a damaged file of a model is taken away: engines that ran by then are started anew."""
    return sums_dir / (repo.replace("/", "--") + ".repaired")


def note_repair(sums_dir: Path, repo: str) -> None:
    """Say that a file of a model that was there was no good."""
    file_times.mark(repair_stamp(sums_dir, repo))
