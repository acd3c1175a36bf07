# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shell scripts as people paste them, read into commands. Nothing is run: no substitution, no globbing, no arithmetic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_OPERATORS = ("&&", "||", ";;", ";", "|&", "|", "&", "(", ")", "\n")
_UNKNOWN = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|(\$\(.*?\)|`[^`]*`)")
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-?+])([^}]*))?\}")
# <MODEL> in a template: nobody redirects from and to a name in capitals without blanks.
_PLACEHOLDER = re.compile(r"<([A-Z][A-Z0-9_]*)>")
_REDIRECTION = re.compile(r"\d*(?:>>|>\||>&|<<<|<<|<&|>|<)&?|&>>?")


@dataclass
class Command:
    """One simple command: its words, and the variables that were exported before or stand in front of it."""

    words: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


def read_script(text: str, variables: dict[str, str] | None = None) -> list[Command]:
    """Read a script into its commands; raises C(ValueError) where a quote is left open.

    Variables are replaced by what is known of them: C(variables), to which is added what the script sets on its way.
    What is not known, and C(<NAME>) of a template, stays as C(${NAME}), see C(unknown_names). Redirections are left out, operators only separate.
    """
    known = {} if variables is None else variables
    exported: dict[str, str] = {}
    commands: list[Command] = []
    reader = _Reader(text, known)
    while not reader.done:
        command = reader.command()
        if command.words[:1] == ["export"]:
            for word in command.words[1:]:
                name, equals, value = word.partition("=")
                if equals:
                    known[name] = value
                if name in known:
                    exported[name] = known[name]
        elif command.words:
            command.variables = {**exported, **command.variables}
            commands.append(command)
        else:
            known.update(command.variables)
    return commands


def read_words(text: str, variables: Mapping[str, str] | None = None) -> list[str]:
    """Read one command line that no shell reads (systemd, compose): quotes count, operators are words like any other."""
    reader = _Reader(text, dict(variables or {}), operators=False)
    words: list[str] = []
    while not reader.done:
        words += reader.command().words
    return words


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace C($NAME), C(${NAME}) and C(${NAME:-default}) in a text; what is not known stays as C(${NAME})."""
    out, position = "", 0
    while position < len(text):
        if text[position] == "$":
            value, position = _variable(text, position, variables)
            out += value
        else:
            out += text[position]
            position += 1
    return out


def unknown_names(text: str) -> list[str]:
    """Return the names of variables, and the commands, that a text still waits for."""
    return [name or code for name, code in _UNKNOWN.findall(text)]


def _variable(text: str, position: int, known: Mapping[str, str]) -> tuple[str, int]:
    """Read what begins with the C($) at C(position); returns its value and where to go on."""
    if text.startswith("$$", position):
        return "$", position + 2
    if text.startswith("$(", position):
        end, depth = position + 2, 1
        while end < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        return text[position:end], end
    braced = _BRACED.match(text, position)
    if braced:
        name, operator, word = braced.groups()
        value = known.get(name)
        if operator in ("-", ":-") and (value is None or (operator == ":-" and not value)):
            value = word
        elif operator in ("+", ":+"):
            value = word if value else ""
        return (f"${{{name}}}" if value is None else value), braced.end()
    plain = _NAME.match(text, position + 1)
    if plain:
        return known.get(plain.group(), f"${{{plain.group()}}}"), plain.end()
    return "$", position + 1


class _Reader:
    """Goes through a script once, character by character."""

    def __init__(self, text: str, known: dict[str, str], operators: bool = True) -> None:
        # A backslash at the end of a line joins it with the next; people leave blanks behind it.
        self.text = re.sub(r"\\[ \t]*\r?\n", "", text.strip())
        self.known = known
        self.operators = operators
        self.position = 0

    @property
    def done(self) -> bool:
        return self.position >= len(self.text)

    def command(self) -> Command:
        """Read up to the next operator."""
        command = Command()
        while not self.done:
            rest = self.text[self.position :]
            redirected = _REDIRECTION.match(rest) if self.operators and not _PLACEHOLDER.match(rest) else None
            if rest[0] in " \t\r" or (rest[0] == "\n" and not self.operators):
                self.position += 1
            elif self.operators and rest[0] == "#":
                self.position += len(rest.partition("\n")[0])
            elif redirected:
                self.position += redirected.end()
                self._skip_blanks()
                if not self.done and self.text[self.position] not in "\n;|":
                    self.word()
            elif self.operators and rest.startswith(_OPERATORS):
                self.position += len(next(sign for sign in _OPERATORS if rest.startswith(sign)))
                return command
            else:
                assigned = None if command.words or not self.operators else _ASSIGNMENT.match(rest)
                word = self.word()
                if assigned:
                    command.variables[assigned.group(1)] = self.home(word[assigned.end() :])
                else:
                    command.words.append(word)
        return command

    def _skip_blanks(self) -> None:
        while not self.done and self.text[self.position] in " \t":
            self.position += 1

    def word(self) -> str:
        """Read one word, quotes taken off."""
        out = ""
        while not self.done:
            sign = self.text[self.position]
            placeholder = _PLACEHOLDER.match(self.text, self.position)
            if placeholder:
                out += self.known.get(placeholder.group(1), f"${{{placeholder.group(1)}}}")
                self.position = placeholder.end()
                continue
            if sign.isspace() or (self.operators and sign in ";|&()<>"):
                break
            if sign == "'":
                end = self._closing("'", self.position + 1)
                out += self.text[self.position + 1 : end]
                self.position = end + 1
            elif sign == '"':
                out += self._quoted()
            elif sign == "\\":
                out += self.text[self.position + 1 : self.position + 2]
                self.position += 2
            elif sign == "`":
                end = self._closing("`", self.position + 1)
                out += self.text[self.position : end + 1]
                self.position = end + 1
            elif sign == "$":
                value, self.position = _variable(self.text, self.position, self.known)
                out += value
            else:
                out += sign
                self.position += 1
        return self.home(out)

    def home(self, text: str) -> str:
        """Replace a leading tilde where the home is known."""
        return self.known.get("HOME", "~") + text[1:] if text == "~" or text.startswith("~/") else text

    def _closing(self, sign: str, start: int) -> int:
        end = self.text.find(sign, start)
        if end < 0:
            raise ValueError(f"the {sign} at character {start} is never closed")  # what follows it may be a secret
        return end

    def _quoted(self) -> str:
        """Read what stands in double quotes."""
        start = self.position
        self.position += 1
        out = ""
        while not self.done:
            sign = self.text[self.position]
            if sign == '"':
                self.position += 1
                return out
            if sign == "\\" and self.text[self.position + 1 : self.position + 2] in tuple('"\\$`'):
                out += self.text[self.position + 1]
                self.position += 2
            elif sign == "$":
                value, self.position = _variable(self.text, self.position, self.known)
                out += value
            else:
                out += sign
                self.position += 1
        raise ValueError(f'the " at character {start + 1} is never closed')
