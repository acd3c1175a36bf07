# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check answers of hosts, which are untrusted: names, ids, sizes and paths, before the controller uses them.

A parser takes a value and its place, and returns the value or raises C(Untrusted). C(record), C(listing) and C(table) combine
parsers. No I/O.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any

from .foreign_text import Untrusted as Untrusted
from .foreign_text import printable as printable
from .foreign_text import received as received
from .foreign_text import steers
from .plain_data import strict_address

Parser = Callable[[Any, str], Any]

MOST_TEXT = 4096
"""Characters of a text in one line."""
MOST_NAME = 255
MOST_PATH = 1024
MOST_ENTRIES = 100_000
MOST_BYTES = 2**53
"""Bytes that a size may say: what JSON carries exactly, a thousand times the largest disk."""
COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
BLOB = re.compile(r"(?:[0-9a-f]{64}|[0-9a-f]{40})")
IMAGE_ID = re.compile(r"sha256:[0-9a-f]{64}")
# As Docker's own reference: a registry, names, a tag, a digest.
IMAGE = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
REPO = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", re.ASCII)
PLATFORM = re.compile(r"[a-z0-9]{1,32}", re.ASCII)
FILE_NAME = re.compile(r"[A-Za-z0-9_][\w.@+-]*", re.ASCII)
SSH_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{1,200}={0,2}(?: [\w.@-]{1,100})?", re.ASCII)


def refuse(where: str, value: Any, form: str) -> Untrusted:
    """Return the error for a value that has not the form that is wanted.

    :param where: place of the value, for the message
    :param value: displayed shortened and printable
    :param form: the expected form
    :returns: the error, for the caller to raise
    """
    shown = repr(value) if not isinstance(value, (list, dict)) else f"a {type(value).__name__}"
    return Untrusted(f"{where} is {printable(shown if len(shown) <= 80 else shown[:79] + '…')}, not {form}")


# --- texts ------------------------------------------------------------------------------------------------------------


def anything(value: Any, where: str) -> Any:
    """Return a text of a host for people to read; C(received) has made it printable."""
    return value


def text(value: Any, where: str) -> str:
    """One line of text."""
    if not isinstance(value, str) or len(value) > MOST_TEXT or any(steers(character) for character in value):
        raise refuse(where, value, "one line of text")
    return value


def _matching(pattern: re.Pattern[str], form: str, most: int = MOST_NAME) -> Parser:
    def parse(value: Any, where: str) -> str:
        if not isinstance(value, str) or len(value) > most or not pattern.fullmatch(value):
            raise refuse(where, value, form)
        return value

    return parse


commit = _matching(COMMIT, "a commit of 40 hexadecimal digits")
sha256 = _matching(SHA256, "a SHA-256 of 64 hexadecimal digits")
blob = _matching(BLOB, "a name of a blob")
image_id = _matching(IMAGE_ID, "an image id, sha256: and 64 hexadecimal digits")
image = _matching(IMAGE, "a name of an image", 512)
repo = _matching(REPO, "a model, ORG/NAME")
platform = _matching(PLATFORM, "a name of a platform")
file_name = _matching(FILE_NAME, "a plain name of a file")
ssh_key = _matching(SSH_KEY, "a public key of ssh, of the kind ed25519", 400)


def relative(value: Any, where: str) -> str:
    """A path that stays below its folder, in its one spelling: no empty part, no C(.), no C(..)."""
    line = text(value, where)
    parts = line.split("/")
    if (
        not line
        or len(line) > MOST_PATH
        or any(part in ("", ".", "..") or len(part) > MOST_NAME for part in parts)
        or line[0] in "-~"
        or "\\" in line
    ):
        raise refuse(where, value, "a path below its folder")
    return line


def absolute(value: Any, where: str) -> str:
    """An absolute path without C(..)."""
    line = text(value, where)
    if not line.startswith("/") or len(line) > MOST_PATH or ".." in line.split("/"):
        raise refuse(where, value, "an absolute path")
    return line


def revision(value: Any, where: str) -> str:
    """A branch, tag or commit, as it may be a file below C(refs)."""
    line = relative(value, where)
    if line.startswith("-"):
        raise refuse(where, value, "a branch, tag or commit")
    return line


def name_of_image(value: Any, where: str) -> str:
    """A name of an image, or its id."""
    return str((image_id if isinstance(value, str) and value.startswith("sha256:") else image)(value, where))


def address(value: Any, where: str) -> str:
    """An IP address."""
    try:
        return str(ipaddress.ip_address(strict_address(text(value, where)).partition("%")[0]))
    except ValueError as error:
        raise refuse(where, value, "an IP address") from error


def network(value: Any, where: str) -> str:
    """An IP network."""
    try:
        return str(ipaddress.ip_network(strict_address(text(value, where))))
    except ValueError as error:
        raise refuse(where, value, "an IP network") from error


# --- numbers ----------------------------------------------------------------------------------------------------------


def size(value: Any, where: str) -> int:
    """A number of bytes, or of things."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_BYTES:
        raise refuse(where, value, f"a whole number from 0 to {MOST_BYTES}")
    return value


def number(value: Any, where: str) -> float:
    """Return a finite number of at least 0."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= MOST_BYTES:
        raise refuse(where, value, f"a number from 0 to {MOST_BYTES}")
    return value


def flag(value: Any, where: str) -> bool:
    """Yes or no."""
    if not isinstance(value, bool):
        raise refuse(where, value, "yes or no")
    return value


# --- parsers of parsers -----------------------------------------------------------------------------------------------


def one_of(*values: Any) -> Parser:
    """One of some values."""

    def parse(value: Any, where: str) -> Any:
        if not any(value == allowed and type(value) is type(allowed) for allowed in values):
            raise refuse(where, value, f"one of {', '.join(map(repr, values))}")
        return value

    return parse


def maybe(parser: Parser, *empty: Any) -> Parser:
    """Return a parser that also accepts None and the values of C(empty)."""

    def parse(value: Any, where: str) -> Any:
        return (
            value
            if value is None or any(value == allowed and type(value) is type(allowed) for allowed in empty)
            else parser(value, where)
        )

    return parse


def listing(parser: Parser, most: int = MOST_ENTRIES) -> Parser:
    """Return the parser of a list whose entries another parser accepts."""

    def parse(value: Any, where: str) -> list[Any]:
        if not isinstance(value, (list, tuple)) or len(value) > most:
            raise refuse(where, value, f"a list of at most {most} entries")
        return [parser(item, f"{where}[{place}]") for place, item in enumerate(value)]

    return parse


def table(key: Parser, parser: Parser, most: int = MOST_ENTRIES) -> Parser:
    """Return the parser of a mapping of names to values that another parser accepts.

    :param key: parser of the names
    :param parser: of the values
    :param most: entries
    :returns: the parser
    """

    def parse(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping) or len(value) > most:
            raise refuse(where, value, f"a mapping of at most {most} entries")
        return {
            key(name, f"a name in {where}"): parser(item, f"{where}.{printable(str(name))[:80]}")
            for name, item in value.items()
        }

    return parse


def record(
    needed: Mapping[str, Parser], more: Mapping[str, Parser] | None = None, keep_unknown: bool = False
) -> Parser:
    """Return the parser of a mapping with required and optional keys.

    :param needed: parsers of the required keys
    :param more: parsers of the optional keys
    :param keep_unknown: keep other keys unchanged; else they are dropped
    :returns: the parser
    """

    def parse(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise refuse(where, value, "a mapping")
        entries = {str(name): item for name, item in value.items()} if keep_unknown else {}
        for name, parser in needed.items():
            if name not in value:
                raise Untrusted(f"{where} lacks '{name}'")
            entries[name] = parser(value[name], f"{where}.{name}")
        for name, parser in (more or {}).items():
            if name in value:
                entries[name] = parser(value[name], f"{where}.{name}")
        return entries

    return parse
