# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shell scripts, read into the commands that they would run: functions, conditions, loops, here-documents. Nothing is run.

A condition that the script itself decides is followed. If only the machine can decide (answer of a command, presence of a file),
the commands of all branches count, and the first branch that sets a variable wins.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase

from .shell import MOST_NESTED, Command, Reader, Shell, TooLong, Value, unknown_names, unquoted

TAKEN, PERHAPS, SKIPPED = 2, 1, 0
MOST_COMMANDS = 4_000
MOST_TURNS = 64
DEEPEST = 12
_WORD = re.compile(r"(?:\[\[|[A-Za-z]+|[{}!])(?=[\s;&|()<>]|$)")
_FUNCTION = re.compile(r"(?:function\s+([\w.:-]+)\s*(?:\(\s*\))?|([A-Za-z_][\w.:-]*)\s*\(\s*\))\s*")
_CLOSING = ("then", "do", "done", "fi", "elif", "else", "esac", "}")
_DECLARING = ("export", "local", "declare", "typeset", "readonly")
_SILENT_TRUE = (":", "true", "echo", "printf", "set", "trap", "shopt", "unset", "shift", *_DECLARING)


def read_script(
    text: str, variables: dict[str, str] | None = None, arguments: list[str] | None = None
) -> list[Command]:
    """Read a script into its commands.

    Unknown variables, and C(<NAME>) of a template, stay as C(${NAME}), see C(shell.unknown_names). Redirections are left out.

    :param variables: known values; variables that the script sets are added
    :param arguments: of the script; without them, uncalled functions are read as if they were called
    :returns: commands in the order in which they would run
    :raises ValueError: for a text that no shell would take, with the line
    """
    shell = Shell({} if variables is None else variables, {}, arguments)
    script = _Script(text, shell)
    script.block((), TAKEN)
    if arguments is None:
        script.uncalled()
    return script.commands


class _Script(Reader):
    """Reads a script; its commands, and the commands of its functions, end in one list."""

    def __init__(self, text: str, shell: Shell, caller: _Script | None = None) -> None:
        super().__init__(text, shell)
        self.commands: list[Command] = caller.commands if caller else []
        self.exported: dict[str, str] = caller.exported if caller else {}
        self.functions: dict[str, str] = caller.functions if caller else {}
        self.called: set[str] = caller.called if caller else set()
        self.read: list[int] = caller.read if caller else [0]
        self.depth: int = caller.depth + 1 if caller else 0
        self.nested = 0

    # --- lists of commands ----------------------------------------------------------------------------------------

    def block(self, ends: Collection[str], mode: int, opened: str = "") -> tuple[str, bool | None]:
        """Read commands up to one of the words C(ends); returns it, and whether the last command succeeds."""
        status: bool | None = True
        start = self.line
        while True:
            self._skip_lines()
            if self.done:
                if ends:
                    raise ValueError(f"line {start}: '{opened}' is never closed: there is no '{' or '.join(ends)}'")
                return "", status
            word = self._reserved()
            if word in ends:
                self.position += len(word)
                return word, status
            if ")" in ends and self.text[self.position] == ")":
                self.position += 1
                return ")", status
            if word in _CLOSING:
                raise ValueError(f"line {self.line}: '{word}' closes nothing; no shell would take this")
            position, outermost = self.position, self.depth == self.nested == 0
            try:
                status = self._list(mode)
            except TooLong as error:
                if not outermost:
                    raise
                self.position = position
                raise ValueError(f"line {self.line}: {error}") from None

    def _skip_lines(self) -> None:
        while not self.done:
            sign = self.text[self.position]
            if sign == "\n":
                self.position += 1
                self.read_documents()
            elif sign in " \t\r" or (sign == ";" and not self.text.startswith(";;", self.position)):
                self.position += 1
            elif sign == "#":
                self.position = self.line_end()
            else:
                return

    def _reserved(self) -> str:
        match = _WORD.match(self.text, self.position)
        return match.group() if match else (";;" if self.text.startswith(";;", self.position) else "")

    def _list(self, mode: int) -> bool | None:
        """Read commands that C(&&), C(||) and C(|) join."""
        current, status = mode, None
        while True:
            answer = self._command(current)
            status = status if current == SKIPPED != mode else answer
            self.skip_blanks()
            sign = next(
                (s for s in ("&&", "||", ";;", "|&", "|", ";", "&", "\n") if self.text.startswith(s, self.position)), ""
            )
            if sign in (";", "&"):
                self.position += 1
                return status if sign == ";" else True
            if not sign and not self.done and self.text[self.position] != ")":
                raise ValueError(
                    f"line {self.line}: '{self.text[self.position]}' is not expected here; no shell would take this"
                )
            if sign in ("", "\n", ";;"):
                return status
            self.position += len(sign)
            self._skip_lines()
            if self.done:
                raise ValueError(f"line {self.line}: nothing follows the '{sign}'; no shell would take this")
            current = _mode_behind(sign, status, current, mode)

    # --- one command ----------------------------------------------------------------------------------------------

    def _command(self, mode: int) -> bool | None:
        """Read a simple or a compound command; returns whether it succeeds, C(None) if unknown."""
        self.read[0] += 1
        if self.read[0] > MOST_COMMANDS:
            raise ValueError(f"more than {MOST_COMMANDS} commands: this is no launch")
        self.nested += 1
        if self.nested > MOST_NESTED:
            raise ValueError("it is nested too deeply")
        status = self._read_command(mode)
        self.nested -= 1
        return status

    def _read_command(self, mode: int) -> bool | None:
        self.skip_blanks()
        function = _FUNCTION.match(self.text, self.position)
        if function and (function.group(1) or function.group(2) not in ("if", "while", "until", "case", "for")):
            self.position = function.end()
            self._skip_lines()
            start = self.position
            self._command(SKIPPED)
            self.functions[function.group(1) or function.group(2)] = self.text[start : self.position]
            return True
        word = self._reserved()
        if word == "!":
            self.position += 1
            status = self._command(mode)
            return None if status is None else not status
        reader = {
            "if": self._if,
            "while": self._while,
            "until": self._while,
            "for": self._for,
            "select": self._for,
            "case": self._case,
            "{": self._group,
            "[[": self._double,
        }.get(word)
        if word == "time":
            self.position += len(word)
            return self._command(mode)
        if self.text.startswith("((", self.position):
            self.position = _behind(self.text, self.position, "))")
            return None
        if self.text.startswith("(", self.position):
            reader = self._group
        if reader is None:
            return self._simple(mode)
        status = reader(word, mode)
        command, assigned = self.simple()  # redirections
        if command.words or assigned:
            raise ValueError(
                f"line {self.line}: '{(command.words or [assigned[0][0]])[0]}' cannot follow there; no shell would take this"
            )
        return status

    def _group(self, word: str, mode: int) -> bool | None:
        self.position += 1
        return self.block(("}",) if word else (")",), mode, word or "(")[1]

    def _if(self, word: str, mode: int) -> bool | None:
        self.position += len(word)
        remaining, status = mode, None
        while word in ("if", "elif"):
            _then, condition = self.block(("then",), remaining, word)
            branch = SKIPPED if condition is False else remaining
            word, done = self.block(("elif", "else", "fi"), branch, "then")
            status = done if condition is True and remaining == TAKEN else status
            remaining = (
                SKIPPED if condition is True or remaining == SKIPPED else remaining if condition is False else PERHAPS
            )
        if word == "else":
            _fi, done = self.block(("fi",), remaining, "else")
            status = done if remaining == TAKEN else status
        return status

    def _while(self, word: str, mode: int) -> None:
        self.position += len(word)
        _do, status = self.block(("do",), min(mode, PERHAPS), word)
        never = status is not None and status == (word == "until")
        self.block(("done",), SKIPPED if never else min(mode, PERHAPS), "do")

    def _for(self, word: str, mode: int) -> None:
        self.position += len(word)
        self.skip_blanks()
        names: list[str] = []
        words: list[str] | None = list(self.shell.arguments or [])
        if self.text.startswith("((", self.position):
            self.position = _behind(self.text, self.position, "))")
            words = None
        else:
            header, _assigned = self.simple()
            names = header.words[:1]
            words = header.words[2:] if header.words[1:2] == ["in"] else words
        self._skip_lines()
        if self._reserved() != "do":
            raise ValueError(f"line {self.line}: '{word}' has no 'do'; no shell would take this")
        self.position += 2
        start = self.position
        self.block(("done",), SKIPPED, "do")
        body = self.text[start : self.position - len("done")]
        are_known = words is not None and not any(
            # An unknown variable may be several words, but not as a part of one, as in an array of NAME="$value".
            re.search(r"[*?]|\$\(|^\$\{[^}]*\}$|(?<!\$)\{.*\.\.", word_of_list)
            for word_of_list in words
        )
        turns = words if are_known and words is not None else [None]
        for turn in turns[:MOST_TURNS] if mode != SKIPPED else []:
            for name in names:
                self.shell.arrays.pop(name, None)
                if turn is None:
                    self.shell.values.pop(name, None)
                else:
                    self.shell.values[name] = turn
            self._inside(body, mode if are_known else min(mode, PERHAPS))

    def _case(self, word: str, mode: int) -> None:
        self.position += len(word)
        self.skip_blanks()
        subject = " ".join(self.fields())
        self._skip_lines()
        if self._reserved() != "in":
            raise ValueError(f"line {self.line}: 'case' has no 'in'; no shell would take this")
        self.position += 2
        unknown, remaining = bool(unknown_names(subject)), mode
        while True:
            self._skip_lines()
            if self.done:
                raise ValueError("'case' is never closed: there is no 'esac'")
            if self._reserved() == "esac":
                self.position += len("esac")
                return
            patterns = self._patterns()
            hit = any(fnmatchcase(subject, pattern) for pattern in patterns)
            branch = min(remaining, PERHAPS) if unknown else remaining if hit else SKIPPED
            end, _status = self.block((";;", "esac"), branch, "case")
            remaining = SKIPPED if hit and not unknown else remaining
            if end == "esac":
                return

    def _patterns(self) -> list[str]:
        """Read the patterns of a branch of C(case), up to their parenthesis."""
        if self.text.startswith("(", self.position):
            self.position += 1
        patterns: list[str] = []
        while not self.done:
            self.skip_blanks()
            sign = self.text[self.position : self.position + 1]
            if sign == ")":
                self.position += 1
                return patterns
            if sign == "|":
                self.position += 1
                continue
            before = self.position
            patterns += self.fields() or [""]
            if self.position == before:
                break
        raise ValueError(f"line {self.line}: a branch of 'case' has no ')'; no shell would take this")

    def _double(self, word: str, mode: int) -> bool | None:
        start = self.position + 2
        self.position = _behind(self.text, start, "]]")
        return _condition(self.text[start : self.position - 2], self.shell)

    # --- simple commands ------------------------------------------------------------------------------------------

    def _simple(self, mode: int) -> bool | None:
        before = self.position
        outer_count = len(self.shell.substitutions)
        command, assigned = self.simple()
        inner, self.shell.substitutions[outer_count:] = self.shell.substitutions[outer_count:], []
        if self.position == before:
            sign = next((s for s in ("&&", "||") if self.text.startswith(s, before)), self.text[before : before + 1])
            raise ValueError(f"line {self.line}: '{sign}' cannot stand there; no shell would take this")
        if mode == SKIPPED:
            return None
        for text in inner:
            self._inside(text, mode)
        words = command.words
        if not words or words[0] in _DECLARING:
            self._assign(words, assigned, mode)
            return None if any(isinstance(value, str) and "$(" in value for _n, value, _m in assigned) else True
        command.variables = {name: value for name, value, _more in assigned if isinstance(value, str)}
        return self._called(command, mode)

    def _assign(self, words: list[str], assigned: list[tuple[str, Value, bool]], mode: int) -> None:
        """Set the variables of a command that only assigns or declares them."""
        for name, value, more in assigned:
            is_set = name in self.shell.arrays or bool(self.shell.values.get(name))
            if mode == TAKEN or not is_set:
                self.shell.assign(name, value, more)
        if words[:1] == ["export"] or words[:2] == ["declare", "-x"]:
            self.exported.update({name: self.shell.values[name] for name in words[1:] if name in self.shell.values})

    def _called(self, command: Command, mode: int) -> bool | None:
        words = command.words
        name = words[0]
        if name == "read":
            for variable in words[1:]:
                self.shell.values.pop(variable, None)
            return None
        if name in ("shift", "set"):
            self._arguments(words)
            return True
        if name in self.functions:
            self._call(name, words[1:], mode)
            return None
        if name == "eval":
            self._inside(" ".join(words[1:]), mode)
            return None
        command.variables = {**self.exported, **command.variables}
        self.commands.append(command)
        if name in ("[", "test"):
            return test(words[1:-1] if name == "[" else words[1:])
        return True if name in _SILENT_TRUE else False if name == "false" else None

    def _arguments(self, words: list[str]) -> None:
        if words[0] == "set" and words[1:2] == ["--"]:
            self.shell.arguments = words[2:]
        elif words[0] == "shift" and self.shell.arguments:
            count = int(words[1]) if len(words) > 1 and words[1].isdigit() else 1
            self.shell.arguments = self.shell.arguments[count:]

    def _call(self, name: str, arguments: list[str] | None, mode: int) -> None:
        self.called.add(name)
        outer, self.shell.arguments = self.shell.arguments, arguments
        self._inside(self.functions[name], mode)
        self.shell.arguments = outer

    def _inside(self, text: str, mode: int) -> None:
        """Read the commands of a text that runs at this place."""
        if self.depth >= DEEPEST:
            raise ValueError("functions call each other without an end")
        _Script(text, self.shell, self).block((), mode)

    def uncalled(self) -> None:
        """Read the functions that nothing called."""
        for name in [name for name in self.functions if name not in self.called]:
            if name not in self.called:
                self._call(name, None, PERHAPS)


def _mode_behind(sign: str, status: bool | None, current: int, mode: int) -> int:
    """Return the mode of the command behind C(&&), C(||) or a pipe. status: of the commands before it, C(None) if unknown."""
    if sign == "&&":
        return SKIPPED if status is False else current
    if sign == "||":
        return SKIPPED if status is True or mode == SKIPPED else mode if status is False else PERHAPS
    return mode


def _behind(text: str, position: int, end: str) -> int:
    """Return where the text behind C(end) begins; quotes hide it."""
    for place in unquoted(text, position):
        if text.startswith(end, place) and (end != "]]" or text[place - 1].isspace()):
            return place + len(end)
    raise ValueError(f"the {text[position - 2 : position]} is never closed: there is no '{end}'")


def _condition(text: str, shell: Shell) -> bool | None:
    """Return the result of C([[ ... ]]), C(None) if unknown."""
    if re.search(r"[()]|=~", re.sub(r"\$\([^)]*\)", "", text)):
        return None
    result: bool | None = False
    for alternative in text.split("||"):
        all_true: bool | None = True
        for part in alternative.split("&&"):
            # An empty variable is a word of a test, too.
            quoted = re.sub(r'(?<!["\w\\])(\$(?:\{[^}"]*\}|\w+))(?=\s|$)', r'"\1"', part)
            answer = test(Reader(quoted, shell, operators=False).all_fields())
            all_true = False if answer is False or all_true is False else None if answer is None else all_true
        result = True if all_true is True or result is True else None if all_true is None else result
    return result


def test(words: list[str]) -> bool | None:
    """Return the result of a test of known texts and numbers; C(None) for files and everything else."""
    if words[:1] == ["!"]:
        inner = test(words[1:])
        return None if inner is None else not inner
    if any(unknown_names(word) for word in words):
        return None
    if len(words) == 1:
        return bool(words[0])
    if len(words) == 2 and words[0] in ("-n", "-z"):
        return bool(words[1]) == (words[0] == "-n")
    if len(words) != 3:
        return None
    operand, sign, right = words
    if sign in ("=", "==", "!="):
        return fnmatchcase(operand, right) == (sign != "!=")
    numbers = {"-eq": (0,), "-ne": (-1, 1), "-lt": (-1,), "-le": (-1, 0), "-gt": (1,), "-ge": (0, 1)}
    if sign in numbers and re.fullmatch(r"-?\d+", operand) and re.fullmatch(r"-?\d+", right):
        order = (int(operand) > int(right)) - (int(operand) < int(right))
        return order in numbers[sign]
    return None
