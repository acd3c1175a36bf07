# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host says is data of a stranger: names, ids, sizes and paths are checked here before the controller uses them.

A parser takes a value and where it stands, and returns the value or raises C(Untrusted). C(record), C(listing) and C(table) make
parsers of parsers. No I/O.
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


def refuse(where: str, value: Any, what: str) -> Untrusted:
    """Return the error for a value that has not the form that is wanted.

    :param where: it stands, for the message
    :param value: what is shown of it, shortened and printable
    :param what: the form that is wanted
    :returns: the error, for the caller to raise
    """
    shown = repr(value) if not isinstance(value, (list, dict)) else f"a {type(value).__name__}"
    return Untrusted(f"{where} is {printable(shown if len(shown) <= 80 else shown[:79] + '…')}, not {what}")


# --- texts ------------------------------------------------------------------------------------------------------------


def anything(value: Any, where: str) -> Any:
    """What a host says of itself for people to read; C(received) has made it harmless."""
    return value


def text(value: Any, where: str) -> str:
    """One line of text."""
    if not isinstance(value, str) or len(value) > MOST_TEXT or any(steers(each) for each in value):
        raise refuse(where, value, "one line of text")
    return value


def _matching(pattern: re.Pattern[str], what: str, most: int = MOST_NAME) -> Parser:
    def parse(value: Any, where: str) -> str:
        if not isinstance(value, str) or len(value) > most or not pattern.fullmatch(value):
            raise refuse(where, value, what)
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
    """A number that is none of a calculation's failures, and not below 0."""
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
        if not any(value == each and type(value) is type(each) for each in values):
            raise refuse(where, value, f"one of {', '.join(map(repr, values))}")
        return value

    return parse


def maybe(parser: Parser, *empty: Any) -> Parser:
    """What a parser takes, or None, or one of C(empty)."""

    def parse(value: Any, where: str) -> Any:
        return (
            value
            if value is None or any(value == each and type(value) is type(each) for each in empty)
            else parser(value, where)
        )

    return parse


def listing(parser: Parser, most: int = MOST_ENTRIES) -> Parser:
    """A list of what a parser takes."""

    def parse(value: Any, where: str) -> list[Any]:
        if not isinstance(value, (list, tuple)) or len(value) > most:
            raise refuse(where, value, f"a list of at most {most} entries")
        return [parser(each, f"{where}[{place}]") for place, each in enumerate(value)]

    return parse


def table(key: Parser, parser: Parser, most: int = MOST_ENTRIES) -> Parser:
    """Make the parser of a mapping of names to what another parser takes.

    :param key: parser of the names
    :param parser: of the values
    :param most: entries
    :returns: the parser
    """

    def parse(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping) or len(value) > most:
            raise refuse(where, value, f"a mapping of at most {most} entries")
        return {
            key(name, f"a name in {where}"): parser(each, f"{where}.{printable(str(name))[:80]}")
            for name, each in value.items()
        }

    return parse


def record(needed: Mapping[str, Parser], more: Mapping[str, Parser] | None = None, rest: bool = False) -> Parser:
    """Make the parser of a mapping with keys that have to be there, and others that may be.

    :param needed: parsers by key
    :param more: likewise
    :param rest: keep keys that nobody named, as they are; else they are left out
    :returns: the parser
    """

    def parse(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise refuse(where, value, "a mapping")
        found = {str(name): each for name, each in value.items()} if rest else {}
        for name, parser in needed.items():
            if name not in value:
                raise Untrusted(f"{where} lacks '{name}'")
            found[name] = parser(value[name], f"{where}.{name}")
        for name, parser in (more or {}).items():
            if name in value:
                found[name] = parser(value[name], f"{where}.{name}")
        return found

    return parse
