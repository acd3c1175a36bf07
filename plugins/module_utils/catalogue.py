# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of vLLM versions, and the lookups that the rest of the engine uses."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from ansible_collections.dgxspark.vllm.plugins.module_utils import catalogue_data

# --- versions -----------------------------------------------------------------------------------------------------


class Version(NamedTuple):
    """A vLLM version, ordered: a development build comes before the release that it is named after."""

    release: tuple[int, ...]
    final: bool

    def __str__(self) -> str:
        return ".".join(map(str, self.release)) + ("" if self.final else " (development build)")


def parse_version(text: str) -> Version | None:
    """Read C(0.19.0), C(v0.20.2rc1.dev49+g9b4e839) or C(0.19.0+ab12.nv26.04); C(None) if it is no version.

    What stands behind C(+) says who built it, not what it can do, and is ignored.
    """
    match = re.fullmatch(r"v?(\d+(?:\.\d+)+)((?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d*)?)(?:\+.*)?", text.strip())
    if not match:
        return None
    release = tuple(int(part) for part in match.group(1).split("."))
    return Version((*release, 0, 0)[: max(3, len(release))], not re.search(r"a|b|rc|dev", match.group(2)))


def version(text: str) -> Version:
    """Like C(parse_version) for a text that is known to be a version; raises C(ValueError) otherwise."""
    found = parse_version(text)
    if found is None:
        raise ValueError(f"{text!r} is not a version of vLLM")
    return found


def compare(left: str, right: str) -> int:
    """Return -1, 0 or 1 as C(left) is older than, the same as or newer than C(right)."""
    one, two = version(left), version(right)
    return (one > two) - (one < two)


def at_most(of: Version) -> Version:
    """Return the newest release whose features C(of) can have: itself, or the next minor for a development build."""
    return of if of.final else Version((of.release[0], of.release[1] + 1, 0), True)


@dataclass(frozen=True)
class Span:
    """Versions that have something. C(None) stands for no bound; between the two bounds of an end nothing is known.

    not_in / since: newest version known without it, oldest known with it.
    until / gone: newest version known with it, oldest known without it again.
    """

    not_in: Version | None = None
    since: Version | None = None
    until: Version | None = None
    gone: Version | None = None

    def has(self, wanted: Version) -> bool | None:
        """Tell whether C(wanted) has it; C(None) if that is not known.

        A development build may already have what the next minor release brings, so near such a bound it is not known.
        """
        near = at_most(wanted)
        if self.gone is not None and near >= self.gone:
            return False if wanted >= self.gone else None
        if self.until is not None and near > self.until:
            return None
        if self.since is None:
            return True if wanted >= version(catalogue_data.READ_FROM[0]) or self.gone else None
        if wanted >= self.since:
            return True
        if near >= self.since or (self.not_in is not None and near > self.not_in):
            return None
        return False

    def text(self) -> str:
        """Say the span in words, for a message."""
        parts = []
        if self.since:
            parts.append(
                f"since {self.since}" if not self.not_in else f"in {self.since} and newer, not in {self.not_in}"
            )
        if self.gone:
            parts.append(f"gone in {self.gone}" if self.until else f"removed in {self.gone}")
        return ", ".join(parts) or "in every version known"


def parse_span(text: str) -> Span:
    """Read a span as C(catalogue_data) writes it."""
    start, _colon, end = text.partition(":")
    not_in, less, since = start.rpartition("<")
    until, _more, gone = end.partition(">")

    def bound(value: str) -> Version | None:
        return version(value) if value else None

    return Span(bound(not_in) if less else None, bound(since), bound(until), bound(gone))


# --- names and options --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """One option of C(vllm serve). C(kind) is one of flag, switch, int, float, size, size-auto, json, text."""

    name: str
    aliases: tuple[str, ...]
    kind: str
    values: str
    span: Span
    choices: tuple[str, ...]

    @property
    def takes_value(self) -> bool:
        """Whether it is followed by a value at all."""
        return self.kind not in ("flag", "switch")


@cache
def options() -> dict[str, Option]:
    """Return every known option by its long name without dashes."""
    lines: list[str] = []
    for line in catalogue_data.OPTIONS.splitlines():
        if line.startswith(" "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    found = {}
    for line in lines:
        head, kind, span, choices = (*line.split("|"), "", "", "")[:4]
        name, *aliases = head.split()
        values = kind[-1] if kind[-1] in "+*?" else ""
        found[name] = Option(name, tuple(aliases), kind.rstrip("+*?"), values, parse_span(span), tuple(choices.split()))
    return found


@cache
def _names(table: str) -> tuple[Version, dict[str, Span]]:
    newest, text = catalogue_data.NAMES[table]
    found = {}
    for token in text.split():
        name, _at, span = token.partition("@")
        found[name] = parse_span(span)
    return version(newest), found


def names(table: str) -> dict[str, Span]:
    """Return the names of one table of C(catalogue_data.NAMES) with their spans."""
    return _names(table)[1]


def has(table: str, name: str, wanted: Version | None) -> bool | None:
    """Tell whether C(wanted) knows C(name); C(None) if that cannot be known (newer or older than what was read)."""
    newest, known = _names(table)
    if wanted is None:
        return None
    if name in known:
        return known[name].has(wanted)
    covered = wanted >= version(catalogue_data.READ_FROM[0]) and at_most(wanted) <= newest
    return False if covered else None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that C(word) was most likely meant to be."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else None
