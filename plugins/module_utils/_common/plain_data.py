# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check data from outside: plain data that can be calculated with, compared, written to a file and read back.

C(unfit) checks inventories before anything interprets them, so other code does not have to handle infinite numbers or texts that no
file can hold.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

LARGEST = 2**63
"""No size, port, count or time is larger, and neither systemd nor Docker reads a larger number."""
LONGEST_TEXT = 60_000
"""Bytes; docker reads no line of an env file that is longer than 64 KiB."""
DEEPEST = 40
"""Levels of lists and mappings; no setting of vLLM, Docker or LiteLLM has more than ten."""
NESTED = f"it is nested more than {DEEPEST} deep"
MOST_PARTS = 100_000
"""Entries of all lists and mappings of a document together; the largest recipe has 2,000."""
EVERYWHERE = ("*",)
"""For C(endless) of C(unfit): infinite numbers are allowed everywhere."""
MOST_MESSAGES = 10
"""For one value; a file that is broken everywhere gets no more messages."""


def endless(value: Any) -> str:
    """Return why lists and mappings take too long to process (depth, or size with aliases of YAML), else an empty text."""
    count, level = 0, [value]
    for _depth in range(DEEPEST + 1):
        below = []
        for part in level:
            items = part.values() if isinstance(part, Mapping) else part if isinstance(part, (list, tuple)) else ()
            count += len(items)
            if count > MOST_PARTS:
                return f"it has more than {MOST_PARTS} entries, those that aliases repeat included"
            below += [item for item in items if isinstance(item, (Mapping, list, tuple))]
        if not below:
            return ""
        level = below
    return NESTED


class InputError(ValueError):
    """The input itself is wrong; C(messages) has one sentence for every mistake."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__("; ".join(messages))
        self.messages = messages


def kind(value: Any) -> str:
    """Return the name of a value's type in words of YAML."""
    names = {dict: "a mapping", list: "a list", str: "a text", bool: "a boolean", int: "a number", float: "a number"}
    return "nothing" if value is None else next((n for t, n in names.items() if isinstance(value, t)), "that")


def shown(value: Any) -> str:
    """Return a value for a message: on one line, short, without characters that a terminal or file refuses."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        return "a number of more than 19 digits"
    text = ascii(value) if not isinstance(value, str) or CONTROL.search(value) or _unfit_text(value) else repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


class Written:
    """Plain data as the key of a cache: equal if the text is equal, so true is not 1."""

    def __init__(self, content: Any) -> None:
        """Take the data, which must not change while it is a key. Raises ValueError and RecursionError if it has no text."""
        self.content = content
        self.text = repr(content)
        self._hash = hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Written) and other.text == self.text

    def __hash__(self) -> int:
        return self._hash


def unfit(value: Any, where: str, endless: Collection[str] = ()) -> list[str]:
    """Return the unusable parts of a value, each with its place; empty for plain data.

    :param endless: keys below which infinite numbers are allowed, as in a model's config.json
    """
    messages: list[str] = []
    for place, why in _unfit(value, where, endless, 0):
        if len(messages) == MOST_MESSAGES:
            messages.append(f"{where} has more of the kind.")
            break
        messages.append(f"{place} {why}")
    return messages


def _unfit(value: Any, place: str, endless: Collection[str], depth: int) -> Iterator[tuple[str, str]]:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, (str, int, float)):
        if why := _unfit_text(value) if isinstance(value, str) else _unfit_number(value, endless):
            yield place, why
    elif depth == DEEPEST:
        yield place, f"has more than {DEEPEST} levels of lists and mappings."
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                yield place, f"has the key {shown(key)}, which is {kind(key)}; a key is a text."
            elif why := _unfit_text(key):
                yield f"{place}, a key of it", why
            else:
                yield from _unfit(item, f"{place}.{key}", EVERYWHERE if key in endless else endless, depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _unfit(item, f"{place}[{index}]", endless, depth + 1)
    else:
        yield (
            place,
            f"is of the type {type(value).__name__}, which is neither text, number, list nor mapping; quote it.",
        )


def _unfit_number(value: float, endless: Collection[str]) -> str:
    if abs(value) <= LARGEST or (isinstance(value, float) and endless is EVERYWHERE):  # NaN compares as false
        return ""
    is_finite = isinstance(value, int) or math.isfinite(value)
    return "is a number of more than 19 digits." if is_finite else f"is {value}, which is no number."


def several_lines(value: Any, where: str, free: Collection[str] = ()) -> list[str]:
    """Return the places of texts with a line break or a control character. free: keys below which they are allowed, because their values are quoted."""
    if isinstance(value, str):
        shows = f"{where} is {shown(value)}; it must be one line of text without control characters."
        return [shows] if CONTROL.search(value) else []
    if isinstance(value, Mapping):
        items = [(f"{where}.{key}", item) for key, item in value.items() if key not in free]
        return [
            *(text for key in value for text in several_lines(key, f"{where}, a key of it", free)),
            *(text for place, item in items for text in several_lines(item, place, free)),
        ]
    items = [(f"{where}[{index}]", item) for index, item in enumerate(value)] if isinstance(value, list) else []
    return [text for place, item in items for text in several_lines(item, place, free)]


def _unfit_text(text: str) -> str:
    if text.isascii():
        if "\x00" in text:
            return "contains U+0000, which ends a text for every program. Remove it."
    elif match := NO_TEXT.search(text):
        return (
            f"contains U+{ord(match[0]):04X}, which is not a character, so nothing can be started with it. Remove it."
        )
    if len(text) > LONGEST_TEXT // 4 and len(text.encode()) > LONGEST_TEXT:
        return f"is longer than {LONGEST_TEXT} bytes, which no line of a unit or of an env file may be; put it into a file."
    return ""


CONTROL = re.compile(r"[\x00-\x1f\x7f]")
"""Characters that end a line or control a terminal in some program."""
# Halves of surrogate pairs, and noncharacters of Unicode; systemd skips a line that contains one.
NO_TEXT = re.compile("[\x00\ud800-\udfff\ufdd0-\ufdef" + "".join(f"{chr(n + 0xFFFE)}{chr(n + 0xFFFF)}" for n in range(0, 0x110000, 0x10000)) + "]")  # fmt: skip
HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


ZONE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")
"""Names of interfaces in Linux."""


def is_line(value: Any) -> bool:
    """Tell whether a value is a text of one line that is not blank."""
    return isinstance(value, str) and bool(value.strip()) and not CONTROL.search(value)


def is_whole(value: Any, least: int, most: int = LARGEST) -> bool:
    """Tell whether a value is a whole number within bounds; a boolean is not."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: Any, least: float, most: float = LARGEST) -> bool:
    """Tell whether a value is a number within bounds; a boolean is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def is_port(value: Any) -> bool:
    """Tell whether a value is a TCP or UDP port."""
    return is_whole(value, 1, 65535)


def strict_address(text: str) -> str:
    """Return the text of an address or network unchanged. Raises ValueError if the zone behind its C(%) is no name of an interface.

    Python accepts any characters in a zone, even line ends, so each parser of addresses gets its text from here.
    """
    zone = text.split("/")[0].partition("%")[2]
    if "%" in text and not ZONE.fullmatch(zone):
        raise ValueError(f"{shown(text)} has a zone that is no name of an interface")
    return text


def is_address(value: Any) -> bool:
    """Tell whether a value is an IP address or the name of a host."""
    if not isinstance(value, str):
        return False
    try:
        ipaddress.ip_address(strict_address(value))
    except ValueError:
        return HOST_NAME.fullmatch(value) is not None
    return True


def web_address(value: Any) -> SplitResult | None:
    """Return the parts of an HTTP address with host and valid port, C(None) for other values."""
    if not is_line(value) or " " in value:
        return None
    try:
        parts = urlsplit(value)
        fits = parts.scheme in ("http", "https") and is_address(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not match, a port that is no number
        return None
    return parts if fits else None


def is_interface(value: Any) -> bool:
    """Tell whether a value is an address with its network, C(192.168.1.11/24)."""
    try:
        return isinstance(value, str) and "/" in value and bool(ipaddress.ip_interface(strict_address(value)))
    except ValueError:
        return False
