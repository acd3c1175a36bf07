# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of the state document that a host has at present, C(deployed.json), and the rows that a new document leaves out.

The record holds checksums instead of contents, and nothing of secrets but their paths, owners and modes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .._runtime import state_file
from . import made
from .host_state import KEYS, ROWS, HostFile, HostState, Unit

SCHEMA = 1
NAME = "deployed.json"
RECORDED = tuple(kind for kind in ROWS if kind in KEYS)
"""Kinds of rows that a record has."""
DAMAGED = (KeyError, ValueError, TypeError, AttributeError)
"""Raised for content of another form than that of a record or a generation."""
SECRETS = "/etc/dgxspark/secrets/"
MANAGED = re.compile(r"^# (?:Managed by Ansible|Ansible managed): dgxspark\.vllm", re.MULTILINE)
"""Line in every unit file of the collection."""
UNIT_FILES = ("*.service", "*.socket", "*.timer", "*.path", "*.d/50-dgxspark.conf", "*.d/dgxspark.conf")
FABRIC, RELAY = "fabric", "dgxspark-fabric-relay.service"
"""Part of the QSFP network, and its unit; a reset leaves them unless it is asked for them."""


@dataclass(frozen=True)
class Deployed:
    """Everything that is deployed on a host.

    state: rows of all parts, without contents. checksums: of the document of each part, as C(checksum) gives them. retired: key files that no
    row lists any more and a generation still needs.
    """

    state: HostState = field(default_factory=HostState)
    checksums: Mapping[str, str] = field(default_factory=dict)
    retired: tuple[str, ...] = ()


def record_path(root: Path = Path("/")) -> Path:
    """Return the path of the record. root: where the files of the host are."""
    return (made.state_dir() if root == Path("/") else root / "var/lib/dgxspark") / NAME


def load(root: Path = Path("/"), warn: Callable[[str], None] = lambda _text: None) -> Deployed | None:
    """Return the record of a host; without one, or if it is damaged, its current generation; None without both."""
    path = record_path(root)
    content = state_file.read(path) or {}
    record = _parse(content) if content.get("schema") == SCHEMA else None
    if record is not None:
        return record
    if path.exists():
        warn(f"{path} cannot be read; the current generation of the host counts as deployed")
    generations = path.parent / "generations"
    number = (state_file.read(generations / "current.json") or {}).get("number")
    return _parse(state_file.read(generations / f"{number}.json") or {})


def find_units(root: Path = Path("/")) -> HostState:
    """Return rows for the unit files and drop-ins of the collection on a host, in its record or not. Their part is unknown, but for the relay."""
    folder = root / "etc/systemd/system"
    files, units = [], []
    for path in sorted(path for pattern in UNIT_FILES for path in folder.glob(pattern)):
        if path.is_symlink() or not path.is_file():
            continue
        if not MANAGED.search(path.read_text(encoding="utf-8", errors="replace")):
            continue
        part = FABRIC if path.name == RELAY else ""
        files.append(HostFile(f"/{path.relative_to(root)}", part=part))
        if path.parent == folder:
            units.append(Unit(path.name, restart_on=(), part=part))
    return HostState(files=tuple(files), units=tuple(units))


def save(deployed: Deployed, root: Path = Path("/")) -> bool:
    """Write the record of a host unless it is on the disk already; one without rows is no file. An OSError leaves the old record whole."""
    content = {
        "schema": SCHEMA,
        "state": {kind: rows for kind, rows in without_contents(deployed.state).to_dict().items() if rows},
        "checksums": dict(sorted(deployed.checksums.items())),
        **({"retired": sorted(deployed.retired)} if deployed.retired else {}),
    }
    path = record_path(root)
    if not any(vars(deployed.state).values()) and not deployed.retired:
        is_old = path.exists()
        path.unlink(missing_ok=True)
        return is_old
    if state_file.read(path) == content:
        return False
    try:
        state_file.write(path, content, 0o600)
    except OSError as error:
        error.filename = str(path)  # a full disk names no file
        raise
    return True


def checksum(state: HostState) -> str:
    """Return the checksum of a document, which the controller and the host compute alike. state: its files have digests."""
    files = (_without_content(file, file.digest) for file in state.files)
    units = (replace(unit, outdated=False) for unit in state.resolved().units)
    return hashlib.sha256(replace(state, files=tuple(files), units=tuple(units)).dump().encode()).hexdigest()


def checksums(state: HostState, parts: Iterable[str]) -> dict[str, str]:
    """Return the checksum of the document of each part."""
    return {part: checksum(state.of_parts([part])) for part in parts}


def without_contents(state: HostState) -> HostState:
    """Return the rows as a record has them: without contents, and without checksums of secrets."""
    units = (replace(unit, outdated=False) for unit in state.resolved().units)
    files = (_without_content(file, None if file.secret or file.generate else file.digest) for file in state.files)
    return replace(state, files=tuple(files), units=tuple(units), removed=())


def _without_content(file: HostFile, digest: str | None) -> HostFile:
    return replace(file, content=None, source=None, bundled=None, data=None, digest=digest)


def removed_rows(before: HostState, after: HostState, parts: Collection[str]) -> HostState:
    """Return the rows of some parts that have to be removed: those in C(before) whose path, unit or account no row of C(after) has."""
    rows = {}
    for kind in RECORDED:
        keys = {key_of(kind, row) for row in getattr(after, kind)}
        leaving = {key_of(kind, row): row for row in getattr(before, kind) if row.part in parts}
        rows[kind] = tuple(row for key, row in leaving.items() if key not in keys)
    return HostState(**rows)


def union(first: HostState, second: HostState) -> HostState:
    """Return the rows of two documents, each part with one row for a path, unit or account; rows of the first win."""
    rows = {}
    for kind in RECORDED:
        once: dict[tuple[str, str], Any] = {}
        for row in (*getattr(first, kind), *getattr(second, kind)):
            once.setdefault((row.part, key_of(kind, row)), row)
        rows[kind] = tuple(once.values())
    return HostState(**rows)


def rows_after(before: HostState, after: HostState, parts: Collection[str]) -> HostState:
    """Return the rows of a host once some parts are deployed.

    :param parts: that it deploys entirely. Rows without a part are replaced by rows of any part with the same path, unit or account
    """
    other_parts = HostState(
        **{kind: tuple(row for row in getattr(before, kind) if row.part not in parts) for kind in RECORDED}
    )
    rows = union(after, other_parts)
    owned = {(kind, key_of(kind, row)) for kind in RECORDED for row in getattr(rows, kind) if row.part}
    return HostState(
        **{
            kind: tuple(row for row in getattr(rows, kind) if row.part or (kind, key_of(kind, row)) not in owned)
            for kind in RECORDED
        }
    )


def key_of(kind: str, row: Any) -> str:
    """Return the identity of a row within its kind."""
    return str(getattr(row, KEYS[kind]))


def _parse(content: Mapping[str, Any]) -> Deployed | None:
    """Return the record that a file or a generation holds, None for content of another form."""
    try:
        written = {str(part): str(value) for part, value in (content.get("checksums") or {}).items()}
        retired = tuple(str(path) for path in content.get("retired") or ())
        return Deployed(HostState.from_dict(content["state"]), written, retired)
    except DAMAGED:
        return None
