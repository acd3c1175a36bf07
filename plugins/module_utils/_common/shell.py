# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words of a shell as people paste them: quotes, variables, arrays. Nothing is run: no substitution, no globbing.

C(shell_script) reads whole scripts on top of it.
"""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Union

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?]")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^]\s]*\])?(\+?)=")
_PARAMETER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*])(\[[^]]*\])?(.*)", re.DOTALL)
_UNKNOWN = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+)\}|(\$\(.*?\)|`[^`]*`)", re.DOTALL)
# <MODEL> in a template: nobody redirects from and to one name without blanks.
_PLACEHOLDER = re.compile(r"<([A-Za-z][A-Za-z0-9_.-]*)>")
_REDIRECTION = re.compile(r"\d*(?:>>|>\||>&|<<<|<<-?|<&|>(?!\()|<(?!\())&?|&>>?")
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\[ \t]*\r?\n")
_LAUNCHES = re.compile(r"\b(?:docker|podman|nerdctl)\b.*?\brun\b|\bvllm\s+serve\b", re.DOTALL)
_OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

Value = Union[str, "list[str]"]

MOST_EXPANDED = 2**20
"""Characters that all variables of one launch may expand to together. Variables that hold each other ten times over would need more memory than
any machine has; the largest published launch needs 20,000."""
MOST_NESTED = 40
"""Commands, and variables in defaults of variables, that may stand in each other."""
MOST_CUT = 4096
"""Characters of a value of which C(#), C(%) and C(/) take a part: each length is tried."""
MOST_READ = 2**22
"""Characters that are read of one launch: those of a function at each call, those of a here-document once more as a script."""


@dataclass
class _Effort:
    """Characters that one launch has taken so far."""

    expanded: int = 0
    read: int = 0


_effort: ContextVar[_Effort] = ContextVar("effort")


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Limit the expanded and read text inside this context, summed over all texts."""
    token = _effort.set(_Effort())
    try:
        yield
    finally:
        _effort.reset(token)


class TooLong(ValueError):
    """A launch takes more than C(MOST_EXPANDED) or C(MOST_READ) characters."""


def count_expanded(name: str, value: Value) -> Value:
    """Return the value of a variable, counted against the bound."""
    effort = _effort.get(None) or _Effort()
    effort.expanded += len(value) if isinstance(value, str) else sum(map(len, value)) + len(value)
    if effort.expanded > MOST_EXPANDED:
        raise TooLong(
            f"with ${{{name}}} its variables expand to more than {MOST_EXPANDED // 1024} KiB, which no launch needs"
        )
    return value


@dataclass
class Command:
    """One simple command: its words, the variables that were exported before or stand in front of it, its here-document."""

    words: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    stdin: str = ""


@dataclass
class Shell:
    """The state of a shell while a script is read.

    values: variables. arrays: of bash. arguments: of the script or the function, C(None) if unknown.
    substitutions: commands in C($(...)) that launch something.
    """

    values: MutableMapping[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    arguments: list[str] | None = field(default_factory=list)
    substitutions: list[str] = field(default_factory=list)

    def get(self, name: str) -> str | None:
        """Return the value of a variable or an argument, C(None) if unknown."""
        if name.isdigit():
            if self.arguments is None or int(name) == 0:
                return None
            return self.arguments[int(name) - 1] if int(name) <= len(self.arguments) else None
        if name in self.arrays and name not in self.values:
            return next(iter(self.arrays[name]), "")
        return self.values.get(name)

    def assign(self, name: str, value: Value, more: bool) -> None:
        """Set a variable or an array. value: a list makes an array. more: append to the present value, as C(+=) does."""
        if isinstance(value, list):
            self.arrays[name] = [*(self.arrays.get(name, []) if more else []), *value]
            self.values.pop(name, None)
        elif more and name in self.arrays:
            self.arrays[name] = [self.arrays[name][0] + value, *self.arrays[name][1:]] if self.arrays[name] else [value]
        else:
            self.values[name] = (self.values.get(name, "") if more else "") + value
            self.arrays.pop(name, None)


def read_words(text: str, variables: Mapping[str, str] | None = None) -> list[str]:
    """Read one command line that no shell reads (systemd, compose): quotes count, operators are words like any other."""
    return Reader(text, Shell(dict(variables or {})), operators=False).all_fields()


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace C($NAME), C(${NAME}) and C(${NAME:-default}) in a text; unknown variables stay as C(${NAME})."""
    return _expand(text, Shell(ChainMap({}, variables)))  # type: ignore[arg-type]  # only the first of them is written to


def unknown_names(text: str) -> list[str]:
    """Return the names of variables, and the commands, that a text still waits for."""
    return [name or code for name, code in _UNKNOWN.findall(text)]


def _expand(text: str, shell: Shell) -> str:
    out, position = "", 0
    while position < len(text):
        if text[position] == "$":
            value, position, _splits = expansion(text, position, shell, quoted=True)
            out += " ".join(value) if isinstance(value, list) else value
        else:
            out += text[position]
            position += 1
    return out


def expansion(text: str, position: int, shell: Shell, quoted: bool) -> tuple[Value, int, bool]:
    """Read what begins with the C($) at C(position).

    :returns: its value (a list for all of an array), where to go on, and whether blanks in it separate words
    """
    if text.startswith("$$", position):
        return "$", position + 2, False
    if text.startswith("$((", position):
        end = _closing_parenthesis(text, position + 2)
        result = arithmetic(text[position + 3 : end - 2], shell)
        return (text[position:end] if result is None else str(result)), end, False
    if text.startswith("$(", position):
        end = _closing_parenthesis(text, position + 2)
        inner = text[position + 2 : end - 1]
        if _LAUNCHES.search(inner):
            shell.substitutions.append(inner)
        return text[position:end], end, False
    if text.startswith("${", position):
        end = _closing_brace(text, position + 2)
        if end:
            return _parameter(text[position + 2 : end], shell, quoted), end + 1, True
    plain = _NAME.match(text, position + 1)
    if plain:
        return _parameter(plain.group(), shell, quoted), plain.end(), True
    return "$", position + 1, False


def unquoted(text: str, position: int) -> Iterator[int]:
    """Yield the positions from C(position) on that neither quotes nor a backslash hide."""
    quote = ""
    while position < len(text):
        sign = text[position]
        if sign == "\\" and quote != "'":
            position += 1
        elif quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        else:
            yield position
        position += 1


def _closing_parenthesis(text: str, position: int) -> int:
    """Return where the text behind the closing parenthesis begins."""
    depth = 1
    for place in unquoted(text, position):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place + 1
    raise ValueError(f"the ( at character {position} is never closed")


def _closing_brace(text: str, position: int) -> int:
    """Return the position of the closing brace of a C(${), 0 if missing. A plain opening brace does not count, as in bash."""
    depth, quote = 1, ""
    while position < len(text):
        sign = text[position]
        if sign == "\\":
            position += 1
        elif quote:
            quote = "" if sign == quote else quote
        elif sign == "'" or (sign == '"' and text.find('"', position + 1) > 0):
            quote = sign
        elif text.startswith("${", position):
            depth += 1
            if depth > MOST_NESTED:
                raise ValueError("it is nested too deeply")
            position += 1
        elif sign == "}":
            depth -= 1
            if not depth:
                return position
        position += 1
    return 0


def _parameter(inner: str, shell: Shell, quoted: bool) -> Value:
    """Return the value of C(${inner})."""
    if inner.startswith("#") and len(inner) > 1:
        return _length(inner[1:], shell)
    match = _PARAMETER.fullmatch(inner)
    if not match:
        if inner == "#" and shell.arguments is not None:
            return str(len(shell.arguments))
        return f"${{{inner}}}"
    name, index, operation = match.group(1), (match.group(2) or "")[1:-1], match.group(3)
    return count_expanded(name, _read_parameter(name, index, operation, shell, quoted))


def _read_parameter(name: str, index: str, operation: str, shell: Shell, quoted: bool) -> Value:
    value: Value | None
    if name in ("@", "*") or index in ("@", "*"):
        value = list(shell.arguments or []) if name in ("@", "*") else shell.arrays.get(name)
        if value is None and name in shell.values:
            value = [shell.values[name]]
        if quoted and "*" in (name, index) and isinstance(value, list):
            value = " ".join(value)
    elif index:
        items = shell.arrays.get(name, [])
        value = items[int(index)] if index.isdigit() and int(index) < len(items) else None
    else:
        value = shell.get(name)
    return _applied(name, value, operation, shell, quoted)


def _length(inner: str, shell: Shell) -> str:
    match = _PARAMETER.fullmatch(inner)
    if match and match.group(2) in ("[@]", "[*]"):
        return str(len(shell.arrays.get(match.group(1), [])))
    value = shell.get(inner)
    return f"${{{inner}}}" if value is None else str(len(value))


def _applied(name: str, value: Value | None, operation: str, shell: Shell, quoted: bool) -> Value:
    """Apply the operation of C(${NAME...}): a default, an alternative, a cut."""
    unknown = f"${{{name}}}"
    colon, sign = re.match(r"(:?)([-=+?]?)", operation).groups()  # type: ignore[union-attr]  # it always matches
    missing = value is None or (colon and not value)  # a colon includes empty values
    word = operation[len(colon + sign) :]
    if sign in ("-", "=") and missing:
        if value is None and not word and name.isdigit() and shell.arguments is None:
            return unknown
        return _default(name, word, sign == "=", shell, quoted)
    if sign == "+":
        return "" if missing else _word(word, shell, quoted)
    if value is None:
        return unknown
    if sign or not operation:
        return value
    return value if isinstance(value, list) else _cut(value, operation, shell, unknown)


def _default(name: str, word: str, assigns: bool, shell: Shell, quoted: bool) -> Value:
    """Return the default of a missing variable; C(=) also assigns it."""
    value = _word(word, shell, quoted)
    if assigns and isinstance(value, str):
        shell.values[name] = value
    return value


def _word(word: str, shell: Shell, quoted: bool) -> Value:
    if quoted:
        return _expand(word.replace('"', "") if "\\" not in word else word, shell)
    fields = Reader(word, shell, operators=False).all_fields()
    return fields if len(fields) > 1 else "".join(fields)


def _cut(value: str, operation: str, shell: Shell, unknown: str) -> str:
    """Apply C(#), C(%) and C(/); other operations are unknown."""
    if len(value) > MOST_CUT:
        return unknown
    kind = next((sign for sign in ("##", "#", "%%", "%", "//", "/") if operation.startswith(sign)), "")
    pattern = _expand(operation[len(kind) :].replace('"', "").replace("'", ""), shell)
    if kind in ("/", "//"):
        return _replace(value, pattern, kind == "//", unknown)
    if kind in ("#", "##"):
        ends = [end for end in range(len(value) + 1) if fnmatchcase(value[:end], pattern)]
        return value[(max if kind == "##" else min)(ends) :] if ends else value
    if kind in ("%", "%%"):
        starts = [start for start in range(len(value) + 1) if fnmatchcase(value[start:], pattern)]
        return value[: (min if kind == "%%" else max)(starts)] if starts else value
    return unknown


def _replace(value: str, pattern: str, every: bool, unknown: str) -> str:
    """Apply C(/OLD/NEW); unknown for an old text with wildcards."""
    old, _slash, new = pattern.partition("/")
    if old and value.count(old) * len(new) > MOST_EXPANDED:
        raise TooLong(f"a replacement in {unknown} has more than {MOST_EXPANDED // 1024} KiB, which no launch needs")
    return value.replace(old, new, -1 if every else 1) if old and not re.search(r"[*?\[]", old) else unknown


def arithmetic(text: str, shell: Shell) -> int | None:
    """Return C($((...))) of whole numbers, C(None) if a part is unknown or not a number."""

    def value(match: re.Match[str]) -> str:
        return str(count_expanded(match.group(), shell.get(match.group()) or match.group()))

    text = re.sub(r"\b[A-Za-z_]\w*\b", value, _expand(text, shell))
    try:
        return _number(ast.parse(text.replace("/", "//").strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _small(value: int) -> int:
    if abs(value) >= 10**15:
        raise ValueError("no number of a launch")
    return value


def _number(node: Any) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return _small(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.BinOp):
        for kind, operation in _OPERATIONS.items():
            if isinstance(node.op, kind):
                return _small(operation(_number(node.left), _number(node.right)))
    raise ValueError("no number")


class Reader:
    """Goes through a script once, character by character."""

    def __init__(self, text: str, shell: Shell, operators: bool = True) -> None:
        effort = _effort.get(None) or _Effort()
        effort.read += len(text)
        if effort.read > MOST_READ:
            raise TooLong("its functions and here-documents are read too often: this is no launch")
        text = text.strip()
        # A backslash at the end of a line joins it with the next; people leave blanks behind it.
        self.joints = [match.start() for match in _CONTINUED.finditer(text)]
        self.text = _CONTINUED.sub(r"\1", text)
        self.shell = shell
        self.operators = operators
        self.splits = True
        self.position = 0
        self.documents: list[tuple[str, bool, bool, Command]] = []  # here-documents whose lines are still to come

    @property
    def done(self) -> bool:
        """Whether all of it is read."""
        return self.position >= len(self.text)

    @property
    def line(self) -> int:
        """The number of the line at the position, in the original script."""
        shift = 0
        for count, joint in enumerate(self.joints):
            shift = count if joint - shift > self.position else count + 1
        return 1 + self.text.count("\n", 0, self.position) + shift

    def line_end(self) -> int:
        """Return the end of the line at the position."""
        end = self.text.find("\n", self.position)
        return len(self.text) if end < 0 else end

    def all_fields(self) -> list[str]:
        """Read every word to the end."""
        words: list[str] = []
        while not self.done:
            if self.text[self.position] in " \t\r\n":
                self.position += 1
            else:
                words += self.fields()
        return words

    def skip_blanks(self) -> None:
        """Go on to the next sign of the line."""
        while not self.done and self.text[self.position] in " \t\r":
            self.position += 1

    def simple(self) -> tuple[Command, list[tuple[str, Value, bool]]]:
        """Read a simple command up to the next operator; returns it and the assignments in front of it."""
        command = Command()
        assigned: list[tuple[str, Value, bool]] = []
        while not self.done:
            self.skip_blanks()
            if self.done:
                break
            upcoming = self.text[self.position : self.position + 200]
            redirected = _REDIRECTION.match(upcoming) if not _PLACEHOLDER.match(upcoming) else None
            assignment = _ASSIGNMENT.match(self.text, self.position)
            if upcoming[0] == "#":
                self.position = self.line_end()
            elif redirected:
                self._redirected(redirected, command)
            elif upcoming[0] in ";|&()\n":
                break
            elif assignment and (
                not command.words or command.words[0] in ("local", "declare", "export", "readonly", "typeset")
            ):
                self.position = assignment.end()
                value: Value
                if self.text.startswith("(", self.position):
                    value = self._array()
                else:
                    self.splits = False
                    value = self.home(next(iter(self.fields()), ""))
                    self.splits = True
                assigned.append((assignment.group(1), value, bool(assignment.group(3))))
                if command.words:
                    command.words.append(assignment.group(1))
            else:
                command.words += self.fields()
        return command, assigned

    def _array(self) -> list[str]:
        items: list[str] = []
        self.position += 1
        while not self.done:
            sign = self.text[self.position]
            if sign == ")":
                self.position += 1
                return items
            if sign in " \t\r\n":
                self.position += 1
            elif sign == "#":
                self.position = self.line_end()
            elif sign in ";|&(<>" and not self.text.startswith(("<(", ">("), self.position):
                if not _PLACEHOLDER.match(self.text, self.position):
                    raise ValueError(f"line {self.line}: '{sign}' cannot stand in an array")
                items += self.fields()
            else:
                items += self.fields()
        raise ValueError(f"line {self.line}: the ( of an array is never closed")

    def _redirected(self, sign: re.Match[str], command: Command) -> None:
        self.position += sign.end()
        self.skip_blanks()
        if self.done or self.text[self.position] in "\n;|":
            return
        quoted = self.text[self.position] in "'\"\\"
        target = self.fields()
        if sign.group() in ("<<", "<<-") and target:
            self.documents.append((target[0], sign.group() == "<<-", quoted, command))
        elif sign.group() == "<<<" and target:
            command.stdin = " ".join(target)

    def read_documents(self) -> None:
        """Read the here-documents that begin behind the end of this line."""
        for delimiter, indented, quoted, command in self.documents:
            lines = []
            while not self.done:
                line = self.text[self.position : self.line_end()]
                self.position += len(line) + 1
                if (line.lstrip("\t") if indented else line).rstrip("\r") == delimiter:
                    break
                lines.append(line)
            body = "\n".join(lines)
            if not quoted:  # a dollar behind a backslash stays one
                parts = re.split(r"(\\.)", body, flags=re.DOTALL)
                body = "".join(part if part.startswith("\\") else _expand(part, self.shell) for part in parts)
                body = re.sub(r"\\([$`\\])", r"\1", body)
            command.stdin = body
        self.documents = []

    def fields(self) -> list[str]:
        """Read one word and remove its quotes; a variable may result in several words or in none."""
        words: list[str] = []
        current: str | None = None
        while not self.done:
            if self._ends():
                break
            pieces, separates = self._piece()
            if separates and self.splits:
                if not any(pieces):
                    continue
                if pieces[0][:1].isspace() and current is not None:
                    words.append(current)
                    current = None
                pieces = " ".join(pieces).split()
            for number, piece in enumerate(pieces):
                if number and current is not None:
                    words.append(current)
                    current = None
                current = (current or "") + piece
        if current is not None:
            words.append(current)
        return [self.home(word) if number == 0 else word for number, word in enumerate(words)]

    def _ends(self) -> bool:
        sign = self.text[self.position]
        if sign in " \t\r\n":
            return True
        if not self.operators or sign not in ";|&()<>":
            return False
        return not (_PLACEHOLDER.match(self.text, self.position) or self.text.startswith(("<(", ">("), self.position))

    def _piece(self) -> tuple[list[str], bool]:
        """Read the next piece of a word: its values, and whether blanks in them separate words."""
        sign = self.text[self.position]
        placeholder = _PLACEHOLDER.match(self.text, self.position)
        if placeholder:
            self.position = placeholder.end()
            name = placeholder.group(1)
            variable = self.shell.values.get(name, self.shell.values.get(re.sub(r"\W", "_", name)))
            if variable is None:
                return [f"${{{re.sub(r'[^A-Za-z0-9_]', '_', name)}}}"], False
            return [str(count_expanded(name, variable))], False
        if self.text.startswith(("<(", ">("), self.position):
            start, self.position = self.position, _closing_parenthesis(self.text, self.position + 2)
            return [self.text[start : self.position]], False
        if sign == "'" or self.text.startswith("$'", self.position):
            start = self.position + (1 if sign == "'" else 2)
            end = self._closing("'", start)
            self.position = end + 1
            return [self.text[start:end]], False
        if sign == '"':
            return self._quoted(), False
        if sign == "\\":
            self.position += 2
            return [self.text[self.position - 1 : self.position]], False
        if sign == "`":
            start, end = self.position, self._closing("`", self.position + 1)
            self.position = end + 1
            return [self.text[start : end + 1]], False
        if sign == "$":
            value, self.position, separates = expansion(self.text, self.position, self.shell, quoted=not self.splits)
            parts = value if isinstance(value, list) else [value]
            return parts, separates and not isinstance(value, list) and not unknown_names(value)
        self.position += 1
        return [sign], False

    def home(self, text: str) -> str:
        """Replace a leading tilde by the home if it is known."""
        if text != "~" and not text.startswith("~/"):
            return text
        return f"{count_expanded('HOME', self.shell.values.get('HOME', '~'))}{text[1:]}"

    def _closing(self, sign: str, start: int) -> int:
        end = self.text.find(sign, start)
        if end < 0:
            raise ValueError(f"the {sign} at character {start} is never closed")  # what follows it may be a secret
        return end

    def _quoted(self) -> list[str]:
        """Read the text in double quotes: one word, or the words of an array."""
        start = self.position
        self.position += 1
        out, only_array = [""], False
        while not self.done:
            sign = self.text[self.position]
            if sign == '"':
                self.position += 1
                return [] if only_array and out == [""] else out
            if sign == "\\" and self.text[self.position + 1 : self.position + 2] in tuple('"\\$`'):
                out[-1] += self.text[self.position + 1]
                self.position += 2
            elif sign == "$":
                value, self.position, _separates = expansion(self.text, self.position, self.shell, quoted=True)
                if isinstance(value, list):
                    only_array = out == [""]
                    out = [*out[:-1], out[-1] + value[0], *value[1:]] if value else out
                else:
                    out[-1] += value
            else:
                out[-1] += sign
                self.position += 1
        raise ValueError(f'the " at character {start + 1} is never closed')
