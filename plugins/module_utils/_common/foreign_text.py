# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse JSON and texts of programs, servers and files safely: bounded, finite, printable.

Programs of hosts carry a copy, some of them as a part of a single file, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

MOST_DEPTH = 40
MOST_JSON = 100 * 2**20
"""Bytes of a JSON text: what safetensors allows its header."""
MOST_DIGITS = 40
"""Of a number in JSON; more would overflow a float, and Python takes quadratic time for them."""


class Untrusted(ValueError):
    """A host said something that it cannot have said in good order; the message says where and what."""


# --- JSON -------------------------------------------------------------------------------------------------------------

# An escape that json.loads turns into a character which printable() spells out.
_ESCAPED_CONTROL = re.compile(r"\\[ubfr]")


def parse_json(
    document: str | bytes | bytearray, where: str, most_bytes: int = MOST_JSON, finite: bool = True, exact: bool = False
) -> Any:
    """Return the value of a JSON text that a program, a server or a file gave, with all texts in it printable.

    :param document: the JSON text; bytes in UTF-8
    :param most_bytes: longest text that is read, in bytes, or in characters of a str
    :param finite: refuse Infinity, NaN and numbers beyond a float, as C(1e999); configurations of models may have them
    :param exact: keep texts unchanged, for a caller that checks them
    :returns: the value, nested at most C(MOST_DEPTH) deep
    :raises Untrusted: for any other text; the message has C(where) and the reason
    """
    if len(document) > most_bytes:
        raise Untrusted(f"{where} has more than {most_bytes} bytes")
    try:
        if not isinstance(document, str):
            document = document.decode("utf-8")
        number = _finite if finite else float
        value = json.loads(document, parse_int=_integer, parse_float=number, parse_constant=number)
        if not exact and (_STEERING.search(document) or _ESCAPED_CONTROL.search(document)):
            return received(value)
        check_depth(value)
    except RecursionError as error:
        raise Untrusted(f"{where} is nested more than {MOST_DEPTH} deep") from error
    except ValueError as error:
        raise Untrusted(f"{where} is not valid JSON: {error}") from error
    return value


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise Untrusted(f"a number has {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise Untrusted(f"{digits[:MOST_DIGITS]} is not a finite number")
    return number


def check_depth(value: Any) -> None:
    """Raise C(Untrusted) for lists and mappings that are nested more than C(MOST_DEPTH) deep."""
    containers = [value] if isinstance(value, (dict, list)) else []
    for _level in range(MOST_DEPTH):
        items = [
            item
            for container in containers
            for item in (container.values() if isinstance(container, dict) else container)
        ]
        containers = [item for item in items if isinstance(item, (dict, list))]
        if not containers:
            return
    raise Untrusted(f"it is nested more than {MOST_DEPTH} deep")


# --- texts ------------------------------------------------------------------------------------------------------------


def steers(character: str) -> bool:
    """Whether a character steers a terminal or turns a text around instead of being seen: controls, bidi marks, halves of pairs."""
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _BIDI


_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
# Most texts contain no such character and only cost one search.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return a text for a terminal or a log: characters that would steer it are spelled out; line ends and tabs stay."""
    return _STEERING.sub(
        lambda match: repr(match[0])[1:-1] if ord(match[0]) < 0xD800 or ord(match[0]) > 0xDFFF else "\ufffd", text
    )


def decode_text(raw: bytes) -> str:
    """Return what a program, a server or a file of others wrote as text that steers no terminal.

    Colours are left out, other controls are spelled out, and a carriage return ends a line.
    """
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return printable(_COLOUR.sub("", text))


def received(value: Any, depth: int = 0) -> Any:
    """Return the answer of a host with printable texts; raises C(Untrusted) for an endless one."""
    if depth > MOST_DEPTH:
        raise Untrusted(f"the answer is nested more than {MOST_DEPTH} deep")
    if isinstance(value, str):
        return printable(value) if _STEERING.search(value) else value
    if isinstance(value, Mapping):
        return {received(key, depth + 1): received(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [received(item, depth + 1) for item in value]
    return value
