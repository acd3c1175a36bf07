# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state document: the folders, files, accounts and units of a host, each row with the part that owns it.

Rows are read without C(reader.py): hosts read them with Python 3.9, which cannot evaluate the annotation C(str | None).
A part is what one role, and the tag of its name, puts on a host. The same input gives the same document: rows hold no times and no host facts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Folder:
    """A folder.

    holds: one of C(made.KINDS). remove: what happens to it when no part lists it any more: C(empty), it is removed if it is empty, C(whole),
    it is removed with everything in it, C(never), it stays, such as the data of people.
    """

    path: str
    owner: str = "root"
    group: str = "root"
    mode: str = "0755"
    holds: str = "shared"
    remove: str = "empty"
    part: str = ""


@dataclass(frozen=True)
class HostFile:
    """A file with its whole content.

    On the controller, the content is C(content), a text, C(source), a file of the controller, or C(bundled), a file of this
    collection. The host gets C(digest), its SHA-256, and C(data), the content in base64, once it asks for it. device: the file is left out
    on a host without this device. validate: a command that has to accept the file, with C(%s) for its path.

    fill: values that only the host knows, which replace their marks in the content (C(mark_of)): C(port_range), C(uid:ACCOUNT), C(gid:ACCOUNT),
    and, in a secret file alone, C(file:PATH), the stripped text of another file of the document. generate: letters and digits of a random
    secret that the host makes if the file is absent; an existing file is not changed.
    """

    path: str
    content: str | None = None
    source: str | None = None
    bundled: str | None = None
    owner: str = "root"
    group: str = "root"
    mode: str = "0644"
    secret: bool = False
    device: str | None = None
    validate: str | None = None
    fill: tuple[str, ...] = ()
    generate: int = 0
    digest: str | None = None
    data: str | None = None
    part: str = ""


@dataclass(frozen=True)
class Account:
    """A user. With C(home) and C(shell) it is a system account, without them a person's.

    groups: that it belongs to besides its own. remove: remove a system account when no part lists it any more.
    """

    name: str
    home: str | None = None
    shell: str | None = None
    groups: tuple[str, ...] = ("docker",)
    remove: bool = False
    part: str = ""


@dataclass(frozen=True)
class Unit:
    """A unit of systemd; units are started in the order of their rows.

    state: C(started), C(stopped) or C(triggered). restart_on: paths whose change restarts it, None for all files of its part.
    outdated: it is known to run from older files. defer: report a restart that is due instead of doing it. wait: wait for the job.
    reload: reload it instead of restarting it. reload_on: paths whose change reloads it. prints: a command; the unit is outdated if this
    prints something else than after the last start, which is kept in the file C(printed). clean_up: a command that runs once the unit was
    stopped because no part lists it any more; it may fail.
    """

    name: str
    state: str = "started"
    enabled: bool | None = None
    restart_on: tuple[str, ...] | None = None
    outdated: bool = False
    defer: bool = False
    wait: bool = True
    reload: bool = False
    reload_on: tuple[str, ...] = ()
    prints: tuple[str, ...] = ()
    printed: str | None = None
    clean_up: tuple[str, ...] = ()
    part: str = ""


@dataclass(frozen=True)
class Created:
    """A path that programs of a part create at run time, such as a receipt. It is removed when no part lists it any more."""

    path: str
    part: str = ""


@dataclass(frozen=True)
class Removed:
    """A file or folder that must not exist."""

    path: str
    part: str = ""


ROWS: dict[str, Any] = {
    "accounts": Account,
    "folders": Folder,
    "files": HostFile,
    "units": Unit,
    "created": Created,
    "removed": Removed,
}
"""Kinds of rows by their key in the document."""
KEYS = {"accounts": "name", "folders": "path", "files": "path", "units": "name", "created": "path"}
"""Field that identifies a row, by its kind; other kinds leave nothing on a host."""


@dataclass(frozen=True)
class HostState:
    """The rows of a document, by kind."""

    accounts: tuple[Account, ...] = ()
    folders: tuple[Folder, ...] = ()
    files: tuple[HostFile, ...] = ()
    units: tuple[Unit, ...] = ()
    created: tuple[Created, ...] = ()
    removed: tuple[Removed, ...] = ()

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], part: str = "") -> HostState:
        """Return the document that a mapping describes.

        :param document: lists of rows by kind; other keys are ignored. Accounts may be a mapping of names to the other fields
        :param part: owner of rows that name none
        :raises ValueError: for a row with an unknown key, or without its path or name
        """
        return cls(
            **{
                kind: tuple(_row(kind, row, part) for row in _listed(document[kind]))
                for kind in ROWS
                if document.get(kind) is not None
            }
        )

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return the document as plain data, without values that are the defaults."""
        return {kind: [_plain(row) for row in getattr(self, kind)] for kind in ROWS}

    def dump(self) -> str:
        """Return the document as JSON; equal documents give equal texts."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    def parts(self) -> set[str]:
        """Return the parts that own rows."""
        return {row.part for kind in ROWS for row in getattr(self, kind)}

    def of_parts(self, parts: Collection[str]) -> HostState:
        """Return the rows of some parts alone."""
        return HostState(**{kind: tuple(row for row in getattr(self, kind) if row.part in parts) for kind in ROWS})

    def resolved(self) -> HostState:
        """Return the document with the files that each unit is restarted for."""
        units = tuple(
            unit
            if unit.restart_on is not None
            else replace(unit, restart_on=tuple(file.path for file in self.files if file.part == unit.part))
            for unit in self.units
        )
        return replace(self, units=units)

    def distinct(self) -> HostState:
        """Return the document with each row once, and with the files that restart each unit. Raises ValueError for a file with two contents or modes."""
        once: dict[str, Any] = {}
        for kind, rows in vars(self.resolved()).items():
            first: dict[Any, Any] = {}
            for row in rows:
                first.setdefault(_comparable(row), row)
            once[kind] = tuple(first.values())
        paths = [file.path for file in once["files"]]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is listed twice; a file has one content")
        return HostState(**once)


def mark_of(value: str) -> str:
    """Return the text in a content that stands for a value of C(HostFile.fill)."""
    return f"@host:{value}@"


def merge(states: Iterable[HostState]) -> HostState:
    """Return one document with the rows of all, in their order."""
    every = list(states)
    return HostState(**{kind: tuple(row for state in every for row in getattr(state, kind)) for kind in ROWS})


def _comparable(row: Any) -> Any:
    """Return a row without its part, and without its content: that is sent once for all parts."""
    return replace(row, part="", data=None) if isinstance(row, HostFile) else replace(row, part="")


def _listed(rows: Any) -> list[Any]:
    """Return rows as a list, also those that stand below their names."""
    return [{"name": name, **row} for name, row in rows.items()] if isinstance(rows, Mapping) else list(rows)


def _row(kind: str, written: Any, part: str) -> Any:
    """Return one row of a kind."""
    row = {"path": written} if isinstance(written, str) and kind in ("created", "removed") else written
    columns = {field.name: field for field in fields(ROWS[kind])}
    unknown = sorted(set(row) - set(columns))
    if unknown:
        raise ValueError(f"{kind}: unknown keys {', '.join(unknown)}; known are {', '.join(columns)}")
    missing = [name for name, field in columns.items() if field.default is MISSING and row.get(name) is None]
    if missing:
        raise ValueError(f"{kind}: a row lacks {', '.join(missing)}")
    mappings = sorted(name for name, value in row.items() if isinstance(value, Mapping))
    if mappings:
        raise ValueError(f"{kind}: {', '.join(mappings)} must not be a mapping")
    values = {name: tuple(value) if isinstance(value, (list, tuple)) else value for name, value in row.items()}
    return ROWS[kind](**{**values, "part": row.get("part") or part})


def _plain(row: Any) -> dict[str, Any]:
    """Return one row without defaults."""
    values = {
        field.name: getattr(row, field.name) for field in fields(row) if getattr(row, field.name) != field.default
    }
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
