# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write values into configuration files so that the program that reads a file gets every value unchanged.

The syntaxes: systemd units and drop-ins, nftables, environment files of Docker, YAML, shell scripts and Dockerfiles.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .plain_data import CONTROL, NO_TEXT

MANAGED = "#\n# Managed by Ansible: dgxspark.vllm\n#\n"
PLAIN = re.compile(r"[A-Za-z0-9_@:,./+=~-]+")
"""A word that systemd reads as it stands."""
PREFIXES = "-+!:@|"
"""What may stand before a program or a path of a unit, such as C(-) for one that may fail or be missing."""
ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
MARK = re.compile("\0([0-9]+)\0")
"""Stands in a rendered text for a value that is not escaped yet. No file can hold NUL, so no value looks like it."""


class Verbatim(str):
    """Text that is already written in the syntax of its file; C(fill) does not escape it."""


# --- systemd ------------------------------------------------------------------------------------------------------------


def check(text: str) -> str:
    """Return a text that a unit can hold. Raises ValueError for a text that systemd would skip."""
    match = NO_TEXT.search(text)
    if match:
        raise ValueError(
            f"{text!r} contains U+{ord(match[0]):04X}, which is not allowed in files of systemd; remove it"
        )
    return text


def specifiers(text: Any) -> str:
    """Return a text in which systemd finds no specifier, for one line of a unit. Raises ValueError for a control character."""
    if CONTROL.search(str(text)):
        raise ValueError(
            f"{text!r} contains a control character or a line break, which this line of a unit cannot contain"
        )
    return check(str(text)).replace("%", "%%")


def _in_path(text: str) -> str:
    return specifiers(text).replace("\\", "\\\\").replace('"', '\\"')


def _in_argument(text: str) -> str:
    escaped = check(text).replace("%", "%%").replace("$", "$$").replace("\\", "\\\\").replace('"', '\\"')
    return CONTROL.sub(lambda match: ESCAPES.get(match[0], f"\\x{ord(match[0]):02x}"), escaped)


def quote(argument: str) -> str:
    """Quote one argument of a command line by systemd.syntax(7) and systemd.service(5). Raises ValueError, see C(check)."""
    return argument if PLAIN.fullmatch(argument) else f'"{_in_argument(argument)}"'


def _check_program(word: str) -> None:
    if word.startswith(tuple(PREFIXES)):
        raise ValueError(f"{word!r} is no program: systemd would take its beginning for a prefix of the command")


def command_line(arguments: Sequence[Any]) -> str:
    """Return the value of C(ExecStart=): an option starts a new line, its values follow on the same line.

    Raises ValueError for an empty list, and for what C(quote) refuses.
    """
    if not isinstance(arguments, (list, tuple)) or not arguments:
        raise ValueError("a command line needs a list with at least the program")
    _check_program(str(arguments[0]))
    lines: list[list[str]] = [[]]
    for argument in map(str, arguments):
        if argument.startswith("-") and lines[-1]:
            lines.append([])
        lines[-1].append(quote(argument))
    return " \\\n    ".join(" ".join(line) for line in lines)


def paths(*names: str) -> str:
    """Return a list of paths for C(RequiresMountsFor=) and similar settings. Raises ValueError for a control character."""
    return " ".join(name if PLAIN.fullmatch(name) else f'"{_in_path(name)}"' for name in names)


ONE_TEXT = frozenset(
    ["Description", "FileDescriptorName", "Group", "ListenDatagram", "ListenStream", "SyslogIdentifier", "User", "WorkingDirectory"]
)  # fmt: skip
"""Settings whose value is one text up to the end of the line; quotes would be part of it. All others are lists of words."""
WORD = re.compile("[^ \n]*\0[^ \n]*")


def _unit_line(line: str, values: Sequence[Any]) -> str:
    """Fill one line of a unit, with the lines that continue it, as its setting reads values."""
    key, _equals, setting = line.partition("=")
    if key in ONE_TEXT or not key.isalpha():
        text = MARK.sub(lambda match: specifiers(text_of(values[int(match[1])])), line)
        if text.endswith("\\"):
            raise ValueError(f"{text!r} ends with a backslash, so systemd would join the next line to it")
        return text
    is_command = key.startswith("Exec")
    words = WORD.sub(lambda match: _unit_word(match[0], values, is_command, match.start() == 0), setting)
    return f"{key}={words}"


def _unit_word(word: str, values: Sequence[Any], is_command: bool, is_first: bool) -> str:
    """Fill one word of a setting; a list becomes several words, and a whole command line where a command begins."""
    literals = MARK.split(word)
    numbers, literals = literals[1::2], literals[::2]
    if re.search(r"[\"'\\]", "".join(literals)):
        raise ValueError(f"{word!r}: write a value of a unit without quotes; they are added if needed")
    value = values[int(numbers[0])]
    if isinstance(value, (list, tuple)):
        return _unit_list(word, literals, value, is_command, is_first)
    texts = [text_of(values[int(number)]) for number in numbers]
    if is_command and is_first and not literals[0].strip(PREFIXES):
        _check_program(texts[0])
    if all(map(PLAIN.fullmatch, texts)):
        return "".join(map("".join, zip(literals, [*texts, ""])))
    escape = _in_argument if is_command else _in_path
    # Quotes begin behind the prefix of a command or a path.
    unprefixed = literals[0].lstrip(PREFIXES) if is_first or not is_command else literals[0]
    prefix = literals[0][: len(literals[0]) - len(unprefixed)]
    literals[0] = unprefixed
    return f'{prefix}"' + "".join(map("".join, zip(literals, [*map(escape, texts), ""]))) + '"'


def _unit_list(word: str, literals: Sequence[str], items: Sequence[Any], is_command: bool, is_first: bool) -> str:
    """Fill a word that stands for a list: a whole command line, or several words."""
    if is_command and is_first and not literals[0].strip(PREFIXES) and literals[1:] == [""]:
        return literals[0] + command_line(items)
    if literals != ["", ""]:
        raise ValueError(f"{word!r}: a list of words needs spaces around it")
    return " ".join(quote(text_of(item)) if is_command else paths(text_of(item)) for item in items)


# --- the other syntaxes -------------------------------------------------------------------------------------------------


def text_of(value: Any) -> str:
    """Return a text or a number as a text. Raises ValueError for anything else, as a file would hold Python's spelling of it."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is neither a text nor a number")
    return str(value)


def environment_value(value: Any) -> str:
    """Return a value for C(docker run --env-file), which reads a line literally: no quotes, no expansion. Raises ValueError for a value with a line break."""
    text = check(text_of(value))
    if CONTROL.search(text.replace("\t", "")):
        raise ValueError(f"{text!r}: a file of docker run --env-file cannot contain line breaks")
    return text


def environment_file(variables: Mapping[str, Any]) -> str:
    """Return a file for C(docker run --env-file). Raises ValueError for a value with a line break."""
    lines = []
    for name in sorted(variables):
        try:
            lines.append(f"{name}={environment_value(str(variables[name]))}\n")
        except ValueError as error:
            raise ValueError(f"{name} is set to {error}") from error
    return MANAGED + "".join(lines)


def json_file(value: Any) -> str:
    """Return a value as the helpers of the units read it."""
    return json.dumps(value, indent=4, sort_keys=True) + "\n"


YAML_BEFORE = re.compile(r"(?:^|: |- |[\[{,]) *$")
YAML_AFTER = re.compile(r" *(?:$|[\]},])")
"""Before and behind a value that is a whole scalar of its line."""
YAML_INSIDE = re.compile(r"[A-Za-z0-9_./-]*")
"""What may stand within a scalar of YAML, quoted or not."""


def _yaml_line(line: str, values: Sequence[Any]) -> str:
    def write(match: re.Match[str]) -> str:
        value = values[int(match[1])]
        if YAML_BEFORE.search(line[: match.start()]) and YAML_AFTER.match(line[match.end() :]):
            if value is not None and not isinstance(value, bool):
                text_of(value)
            # A text in quotes, with escapes for everything but ASCII.
            scalar = json.dumps(value, ensure_ascii=False, allow_nan=False)
            return re.sub(r"[^ -~]", lambda character: f"\\U{ord(character[0]):08X}", scalar)
        text = text_of(value)
        if not YAML_INSIDE.fullmatch(text):
            raise ValueError(
                f"{text!r} stands within a scalar of YAML, which {YAML_INSIDE.pattern} alone may; make it the whole scalar"
            )
        return text

    return MARK.sub(write, line)


NFT_WORD = re.compile(r"[A-Za-z0-9_.:/@-]+")
DOCKERFILE_WORD = re.compile(r"[A-Za-z0-9_@:,./+=<>!~;-]+")


def _nft_value(value: Any) -> str:
    words = [text_of(item) for item in value] if isinstance(value, (list, tuple)) else [text_of(value)]
    for word in words:
        if not NFT_WORD.fullmatch(word):
            raise ValueError(f"{word!r} is not a name, address or port for a table of nftables")
    return ", ".join(words)


def _shell_value(value: Any) -> str:
    items = value if isinstance(value, (list, tuple)) else [value]
    return " ".join(shlex.quote(check(text_of(item))) for item in items)


def _dockerfile_value(value: Any) -> str:
    text = text_of(value)
    if not DOCKERFILE_WORD.fullmatch(text):
        raise ValueError(f"{text!r} contains characters that Docker or the shell would split")
    return text


def _with(write: Callable[[Any], str]) -> Callable[[str, Sequence[Any]], str]:
    return lambda line, values: MARK.sub(lambda match: write(values[int(match[1])]), line)


SYNTAXES: dict[str, Callable[[str, Sequence[Any]], str]] = {
    **dict.fromkeys(("conf", "service", "socket", "timer"), _unit_line),
    **dict.fromkeys(("yaml", "yml"), _yaml_line),
    "Dockerfile": _with(_dockerfile_value),
    "env": _with(environment_value),
    "nft": _with(_nft_value),
    "sh": _with(_shell_value),
}
"""What fills a line of a file, by the end of the name of its template without C(.j2): a line with marks, and the values."""


def syntax_of(template: str) -> str:
    """Return the key of C(SYNTAXES) for the name of a template. Raises ValueError for a name without a known end."""
    syntax = template.removesuffix(".j2").rpartition("/")[2].rpartition(".")[2]
    if syntax not in SYNTAXES:
        raise ValueError(f"{template}: the end of its name tells no syntax; known are {', '.join(sorted(SYNTAXES))}")
    return syntax


def fill(text: str, values: Sequence[Any], syntax: str) -> str:
    """Return a text with its marks replaced by values that are escaped for its syntax.

    :param text: a rendered template; C(MARK) stands for each value by its number
    :param values: texts and numbers; lists of them if the syntax has words; C(Verbatim) is inserted unchanged
    :param syntax: a key of C(SYNTAXES)
    :raises ValueError: for a value that the file cannot hold at its place
    """

    def write_verbatim(match: re.Match[str]) -> str:
        value = values[int(match[1])]
        return check(value) if isinstance(value, Verbatim) else match[0]

    text = MARK.sub(write_verbatim, text)
    # A unit goes on in the next line behind a backslash.
    lines = re.split(r"(?<!\\)\n" if SYNTAXES[syntax] is _unit_line else "\n", text)
    return "\n".join(SYNTAXES[syntax](line, values) if "\0" in line else line for line in lines)
