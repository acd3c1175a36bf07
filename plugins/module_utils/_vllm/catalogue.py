# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue of vLLM versions, and its look-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from . import catalogue_data
from .versions import Version, at_most, version

# --- versions -----------------------------------------------------------------------------------------------------


@cache
def versions() -> tuple[Version, ...]:
    """Return the versions whose packages were read, oldest first."""
    return tuple(version(text) for text in catalogue_data.VERSIONS.split())


@cache
def _numbers() -> dict[Version, int]:
    return {release: number for number, release in enumerate(versions())}


class _Window(NamedTuple):
    """The versions read that a version may be like, as bits, and whether it lies outside of all that were read."""

    bits: int
    older: bool = False
    newer: bool = False


@cache
def _window(release: Version) -> _Window:
    """Return the read versions that C(release) may resemble: itself, or the versions before and after it.

    A development build may already have what the next minor release brings.
    """
    read_versions, numbers = versions(), _numbers()
    if release in numbers:
        return _Window(1 << numbers[release])
    near = at_most(release)
    before = sum(1 for read_version in read_versions if read_version < release)
    behind = sum(1 for read_version in read_versions if read_version < near)
    first, last = max(before - 1, 0), min(behind, len(read_versions) - 1)
    return _Window((1 << (last + 1)) - (1 << first), before == 0, behind == len(read_versions))


@dataclass(frozen=True)
class Span:
    """Versions that have something: bit n stands for the n-th version that was read."""

    bits: int

    def has(self, release: Version) -> bool | None:
        """Tell whether C(release) has it; C(None) if unknown."""
        window = _window(release)
        common = self.bits & window.bits
        if not common:
            return False
        return True if common == window.bits and not window.older else None

    def runs(self) -> list[tuple[int, int]]:
        """Return the first and last number of every unbroken run of versions."""
        runs: list[tuple[int, int]] = []
        for number in range(self.bits.bit_length()):
            if not self.bits >> number & 1:
                continue
            if runs and runs[-1][1] == number - 1:
                runs[-1] = (runs[-1][0], number)
            else:
                runs.append((number, number))
        return runs

    def text(self) -> str:
        """Return the span in words, for a message."""
        read_versions = versions()
        newest = len(read_versions) - 1
        runs = self.runs()
        if runs == [(0, newest)]:
            return "in every version known"
        if len(runs) == 1:
            first, last = runs[0]
            parts = [f"since {read_versions[first]}"] if first else []
            parts += [f"removed in {read_versions[last + 1]}"] if last < newest else []
            return ", ".join(parts)
        words = []
        for first, last in runs:
            if last == newest:
                words.append(f"since {read_versions[first]}")
            elif first == 0:
                words.append(f"up to {read_versions[last]}")
            else:
                words.append(f"in {read_versions[first]}" + (f" to {read_versions[last]}" if last > first else ""))
        return " and ".join(words)


@cache
def parse_span(text: str) -> Span:
    """Read a span as C(catalogue_data) writes it: runs of versions with commas between; nothing is every version."""
    numbers = _numbers()
    bits = 0
    for run in text.split(","):
        first, dash, last = run.partition("-")
        start = numbers[version(first)] if first else 0
        end = numbers[version(last)] if last else (len(numbers) - 1 if dash or not first else start)
        bits |= (1 << (end + 1)) - (1 << start)
    return Span(bits)


# --- tables -------------------------------------------------------------------------------------------------------


class Item(NamedTuple):
    """One line of a table with the lines that belong to it; each part is followed by the versions that have it.

    C(tokens) are what C(catalogue_data) writes with a sign in front: C(-) another spelling, C(=) a choice, C(~) a
    suggestion, C(!) a remark.
    """

    name: str
    span: Span
    kinds: tuple[tuple[str, Span], ...]
    defaults: tuple[tuple[str, Span], ...]
    tokens: tuple[tuple[str, Span], ...]


@cache
def items(table: str) -> dict[str, Item]:
    """Return a table of C(catalogue_data), parsed."""
    item_by_name: dict[str, Item] = {}
    kinds: list[tuple[str, Span]] = []
    defaults: list[tuple[str, Span]] = []
    tokens: list[tuple[str, Span]] = []
    head: tuple[str, Span] | None = None
    for line in (*catalogue_data.TABLES[table].splitlines(), ""):
        if line.startswith(" "):
            if head is None:
                raise ValueError(f"catalogue_data.TABLES[{table!r}] begins with a detail of no item")
            token, _bar, remainder = line[1:].partition("|")
            if token in (":", ">"):
                span, _bar, value = remainder.partition("|")
                (kinds if token == ":" else defaults).append((value, parse_span(span)))
            else:
                token_span = parse_span(remainder) if remainder else head[1]
                tokens += ((word, token_span) for word in token.split())
            continue
        if head is not None:
            item = Item(*head, tuple(kinds), tuple(defaults), tuple(sorted(tokens, key=lambda token: token[0])))
            item_by_name.update({name: item._replace(name=name) for name in item.name.split()})
        if line:
            alike, span, kind, default = (*line.split("|", 3), "", "", "")[:4]
            head = (alike, parse_span(span))
            kinds = [(kind, head[1])] if kind else []
            defaults = [(default, head[1])] if default else []
            tokens = []
    return dict(sorted(item_by_name.items()))


_VIEWS = {"spec_keys": ("json_keys", "speculative-config."), "environment": ("environment", "VLLM_")}
"""Tables under the names that the rules use: the written table, and what its names begin with, which is left out."""


@cache
def names(table: str) -> dict[str, Span]:
    """Return the names of one table, or of one of C(_VIEWS), with their spans."""
    written, prefix = _VIEWS.get(table, (table, ""))
    return {name[len(prefix) :]: item.span for name, item in items(written).items() if name.startswith(prefix)}


def has(table: str, name: str, release: Version | None) -> bool | None:
    """Tell whether a version of vLLM knows a name; None if unknown (newer or older than the versions that were read)."""
    spans = names(table)
    if release is None:
        return None
    if name in spans:
        return spans[name].has(release)
    window = _window(release)
    return None if window.older or window.newer else False


def was_read(release: Version | None) -> bool:
    """Tell whether a version is one of those read, or lies between two of them."""
    return release is not None and not (_window(release).older or _window(release).newer)


def requirement(package: str, release: Version) -> str | None:
    """Return what C(release) asks of a package (C(==2.11.0)); empty for any version, C(None) if it asks for nothing.

    C(python) is the range of Pythons. Raises C(KeyError) for a package that was not read.
    """
    item = items("requirements")[package]
    return _at(item.defaults, _window(release).bits)


def _at(variants: tuple[tuple[str, Span], ...], bits: int) -> str | None:
    """Return the variant of the newest of these versions that has one."""
    having = [(value, span.bits & bits) for value, span in variants if span.bits & bits]
    return max(having, key=lambda pair: pair[1])[0] if having else None


# --- options ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """One option of C(vllm serve), as one version reads it.

    kind: flag (no value, cannot be negated), switch (no value, has a C(--no-) form), int, float, size (takes C(64k)
    and C(64K)), size-auto (size or C(auto)), json, text. values: C(+) several, C(?) none or one, C(*) may be repeated,
    nothing for one. span: the versions that have it. aliases: other spellings, long ones without dashes. choices:
    all values that the parser accepts.
    default: JSON. optional: C(None) or nothing as a value means none. lowered: C(Marlin-X) is read as C(marlin_x).
    plain_text: the parser also accepts text that is not JSON. level: it accepts a bare number. read_into_class: JSON for one of
    vLLM's configuration classes, so that unknown keys are refused at once.
    """

    name: str
    aliases: tuple[str, ...]
    kind: str
    values: str
    span: Span
    choices: tuple[str, ...] = ()
    default: str = "null"
    optional: bool = False
    lowered: bool = False
    plain_text: bool = False
    level: bool = False
    read_into_class: bool = False

    @property
    def takes_value(self) -> bool:
        """Whether it takes a value."""
        return self.kind not in ("flag", "switch")


@cache
def options(release: Version | None = None) -> dict[str, Option]:
    """Return the options by their long names without dashes: those C(release) may have, or every option ever read.

    Fields that differ between the possible versions have the value of the newest; spellings and choices include all versions.
    """
    bits = _window(release).bits if release else (1 << len(versions())) - 1
    return {
        name: _option(item, item.span.bits & bits) for name, item in items("options").items() if item.span.bits & bits
    }


def _option(item: Item, bits: int) -> Option:
    kind, *marks = (_at(item.kinds, bits) or "text").split("/")
    last = marks.pop() if marks else kind
    values = last[-1] if last[-1] in "+*?" else ""
    marks.append(last.rstrip("+*?"))
    tokens = [token for token, span in item.tokens if span.bits & bits]
    choices: list[str] = []
    for token in tokens:
        if token.startswith("=@"):  # all names of a table
            choices += [name for name, named in items(token[2:]).items() if named.span.bits & bits]
        elif token[0] == "=":
            choices.append(token[1:])
    return Option(
        name=item.name,
        aliases=tuple(token[2:] if token.startswith("--") else token for token in tokens if token[0] == "-"),
        kind=kind.rstrip("+*?").replace("json-text", "json"),
        values=values,
        span=item.span,
        choices=tuple(dict.fromkeys(choices)),
        default=_at(item.defaults, bits) or "null",
        optional="none" in marks,
        lowered="lower_" in marks,
        plain_text=kind.startswith("json-text"),
        level="int" in marks,
        read_into_class="class" in marks,
    )


# Options whose values are the names of a table, and vLLM's spelling of a value: unchanged, in capitals, or with underscores.
_VALUE_TABLES: dict[str, tuple[str, str]] = {
    "attention-backend": ("attention_backends", "upper"),
    "distributed-executor-backend": ("executor_backends", ""),
    "kv-cache-dtype": ("kv_cache_dtypes", ""),
    "linear-backend": ("linear_backends", "lower"),
    "load-format": ("load_formats", ""),
    "moe-backend": ("moe_backends", "lower"),
    "quantization": ("quantizations", ""),
    "reasoning-parser": ("reasoning_parsers", ""),
    "tool-call-parser": ("tool_parsers", ""),
}


@cache
def option_values(option: str) -> dict[str, Span]:
    """Return the values that any version names for an option, with the versions that have them; empty where any text will do."""
    if option in _VALUE_TABLES:
        return names(_VALUE_TABLES[option][0])
    item = items("options").get(option)
    if item is None:
        return {}
    words = sorted({token[1:] for token, _span in item.tokens if token[0] in "=~" and token[1] != "@"})
    spans = {word: span.bits for word in words if (span := choice_span(option, word)) is not None}
    named = 0
    for bits in spans.values():
        named |= bits
    unnamed = item.span.bits & ~named  # versions that take any value
    if unnamed >> (len(versions()) - 1):
        return {}
    return {word: Span(bits | unnamed) for word, bits in spans.items()}


def spelled_value(option: str, value: Any) -> str:
    """Return the value of an option as C(option_values) spells it."""
    text = str(value).strip()
    spelling = _VALUE_TABLES.get(option, ("", ""))[1]
    return text.upper() if spelling == "upper" else text.lower().replace("-", "_") if spelling == "lower" else text


def minors_with_launch(architectures: Sequence[str], args: Mapping[str, Any]) -> frozenset[int]:
    """Return the minor releases, 19 for 0.19, that know the architecture and the options of a launch.

    Names that no release knows belong to a fork and are ignored. If no release knows the whole launch, the architecture alone decides.

    :param architectures: of config.json; vLLM takes the first that it knows
    :param args: options by their long names
    :returns: all minor releases that were read if none knows the architecture
    """
    spans_by_name = names("architectures")
    model = 0
    for name in architectures:
        model |= spans_by_name[name].bits if name in spans_by_name else 0
    model = model or (1 << len(versions())) - 1
    launch = model
    for option, value in args.items():
        for span in _spans_of_option(option, value):
            launch &= span.bits
    bits = launch or model
    return frozenset(read_version.release[1] for number, read_version in enumerate(versions()) if bits >> number & 1)


def _spans_of_option(option: str, value: Any) -> list[Span]:
    """Return the versions that have an option, and those that have its value and the keys of its JSON, as far as known."""
    spans = [items("options")[option].span] if option in items("options") else []
    spans += [span for word, span in option_values(option).items() if word == spelled_value(option, value)]
    if option == "speculative-config" and isinstance(value, Mapping):
        spans += [span for key, span in json_keys(option, None).items() if key in value]
        spans += [span for word, span in names("spec_methods").items() if word == value.get("method")]
    return spans


@cache
def json_keys(option: str, release: Version | None) -> dict[str, Span]:
    """Return the keys that C(release) may know in the JSON of an option; empty where vLLM has no class for it."""
    bits = _window(release).bits if release else (1 << len(versions())) - 1
    return {
        name.partition(".")[2]: item.span
        for name, item in items("json_keys").items()
        if name.partition(".")[0] == option and item.span.bits & bits
    }


def choice_span(option: str, choice: str) -> Span | None:
    """Return the versions whose parser offers a choice of an option, C(None) if none ever did."""
    bits = 0
    for token, span in items("options")[option].tokens:
        if token[0] in "=~" and token[1] == "@" and choice in items(token[2:]):
            bits |= items(token[2:])[choice].span.bits & span.bits
        elif token[0] in "=~" and token[1:] == choice:
            bits |= span.bits
    return Span(bits) if bits else None


def trait(name: str, release: Version | None) -> bool:
    """Tell whether the parser of C(release) may have a trait of C(catalogue_data); without a version, of the newest."""
    item = items("traits").get(name)
    bits = _window(release).bits if release else 1 << (len(versions()) - 1)
    return item is not None and bool(item.span.bits & bits)
