# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts values of the host into the contents of files: C(HostFile.fill) and C(HostFile.generate)."""

from __future__ import annotations

import base64
import grp
import hashlib
import pwd
import secrets
import string
from dataclasses import replace
from pathlib import Path

from .deployment import Deployment, Refused, digest_of
from .host_state import HostFile, HostState, mark_of

PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
UNKNOWN = "unknown"
"""Digest of a file with a value that the host does not have yet; no content has it."""
CHARACTERS = string.ascii_letters + string.digits


class _Unknown(Exception):
    """The host does not have a value yet; the text names it."""


class Values:
    """The values of one host for the files of a document.

    wanted: paths of files whose contents the controller has to send first. unknown: files with the value that each lacks.
    """

    def __init__(self, state: HostState) -> None:
        self.rows = {file.path: file for file in state.files}
        self.filled_rows: dict[str, HostFile] = {}
        self.open: list[str] = []  # files whose values are being looked up
        self.wanted: list[str] = []
        self.unknown: list[tuple[HostFile, str]] = []

    def fill(self, file: HostFile) -> HostFile:
        """Return a file with its values. Its digest is C(UNKNOWN) if the host lacks one."""
        if file.path not in self.filled_rows:
            if file.path in self.open:
                raise Refused(f"{file.path} has its own content as a value ({' -> '.join(self.open)})", file.part)
            self.open.append(file.path)
            self.filled_rows[file.path] = self._generate(file) if file.generate else self._fill(file)
            self.open.pop()
        return self.filled_rows[file.path]

    def _generate(self, file: HostFile) -> HostFile:
        path = Path(file.path)
        if file.data is not None:
            return file
        if path.exists() or path.is_symlink():
            return replace(file, digest=digest_of(path))
        return with_content(file, "".join(secrets.choice(CHARACTERS) for _character in range(file.generate)).encode())

    def _fill(self, file: HostFile) -> HostFile:
        if not file.fill or file.data is None:
            return file
        content = content_of(file)
        for value in file.fill:
            try:
                content = content.replace(mark_of(value).encode(), self._value(file, value).encode())
            except _Unknown as missing:
                self.unknown.append((file, str(missing)))
                return replace(file, digest=UNKNOWN)
        return with_content(file, content)

    def _value(self, file: HostFile, value: str) -> str:
        kind, _colon, name = value.partition(":")
        if value == "port_range":
            return "-".join(PORT_RANGE.read_text(encoding="ascii").split())
        if kind in ("uid", "gid"):
            try:
                return str(pwd.getpwnam(name).pw_uid if kind == "uid" else grp.getgrnam(name).gr_gid)
            except KeyError as error:
                raise _Unknown(value) from error
        if kind == "file" and file.secret:
            return self._text(name)
        text = f"{value} is no value" if kind != "file" else f"{value} is a value for secret files alone"
        raise Refused(f"{file.path}: {text}; known are port_range, uid:ACCOUNT, gid:GROUP and file:PATH", file.part)

    def _text(self, path: str) -> str:
        """Return the stripped text of another file, as it will be after this run."""
        row = self.fill(self.rows[path]) if path in self.rows else None
        if row is not None and row.data is not None and row.digest != UNKNOWN:
            content = content_of(row)
        elif row is not None and (row.digest == UNKNOWN or row.digest != digest_of(Path(path))):
            if row.data is None:
                self.wanted.append(path)
            raise _Unknown(f"file:{path}")
        else:
            try:
                content = Path(path).read_bytes()
            except FileNotFoundError as error:
                raise _Unknown(f"file:{path}") from error
        return content.decode("utf-8").strip()


def fill(state: HostState) -> tuple[HostState, Values]:
    """Return a document with the values of the host in its contents, and these values."""
    values = Values(state)
    return replace(state, files=tuple(map(values.fill, state.files))), values


def check(job: Deployment, values: Values) -> None:
    """Refuse values that this run does not bring: all except numbers of accounts that it makes."""
    made = {f"{kind}:{account.name}" for account in job.state.accounts for kind in ("uid", "gid")}
    sent_later = {f"file:{path}" for path in values.wanted}
    # A file whose value is a file without its own value yet.
    late = {f"file:{file.path}" for file, value in values.unknown if value in made}
    lacking = [(file, value) for file, value in values.unknown if value not in made | sent_later | late]
    if lacking:
        text = ", ".join(f"{value} for {file.path}" for file, value in lacking)
        raise Refused(f"the host has no {text}. Nothing was changed", lacking[0][0].part)


def fill_late(job: Deployment) -> list[HostFile]:
    """Fill in the numbers of accounts that this run has made; returns these files. In check mode none is made."""
    late = [file.path for file in job.state.files if file.digest == UNKNOWN]
    if job.check or not late:
        return []
    job.state, values = fill(job.state)
    if values.unknown:
        raise Refused(f"the host still has no {values.unknown[0][1]} for {values.unknown[0][0].path}")
    return [file for file in job.state.files if file.path in late]


def with_content(file: HostFile, content: bytes) -> HostFile:
    """Return a file with another content."""
    return replace(file, data=base64.b64encode(content).decode(), digest=hashlib.sha256(content).hexdigest())


def content_of(file: HostFile) -> bytes:
    """Return the content of a file if it is known."""
    return base64.b64decode(file.data or "")
