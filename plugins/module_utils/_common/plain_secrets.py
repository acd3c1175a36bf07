# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find secrets that an inventory holds in plain text, which would appear in units, process lists and docker inspect. Pure functions.

C(redaction) decides by name and form of a value whether it is a secret. No message repeats a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import redaction, secret_names

WHERE_SEEN = "everybody who may list processes, run docker inspect or read the unit would see it"
PAIRS = re.compile(r"(?:-[el]|--(?:env|label|annotation|log-opt|storage-opt|sysctl|driver-opt))(?==|$)")
"""Options of docker run with an argument NAME=VALUE."""
_SHORT_PAIR = re.compile(r"-[el](?=\w)")
_QUERY = re.compile(r"(?<=[?&;])([\w.%-]{1,80})=([^&;#\s\"']{1,400})")
_QUERY_WORDS = ("sig", "signature", "key", "code")
_PHRASE = re.compile(r"(?:KEY|SEED|PASS)_?PHRASE$|MNEMONIC$|SIGNATURE$|(?:PRIVATE|SECRET|ACCESS|SIGNING|MASTER)KEY$")
"""Ends of variables that hold secrets, in addition to the words of C(redaction)."""
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=_-]{12,}")


def in_environment(env: Mapping[Any, Any]) -> list[str]:
    """Return the names of variables whose values are secrets, in their order."""
    names = []
    for name, value in ((str(name), value) for name, value in env.items()):
        is_named = secret_names.is_secret_variable(name) or _PHRASE.search(name.upper())
        # S3_ACCESS may be a key or a word such as read.
        is_access = name.upper().endswith("ACCESS") and _RANDOM.fullmatch(str(value))
        if holds_secret(value) or is_access or (is_named and redaction.could_be_secret(value, name)):
            names.append(name)
    return names


def holds_secret(value: Any) -> bool:
    """Tell whether a text contains a secret: by its form, or by the name of a parameter of a URL (C(?token=...))."""
    if redaction.holds_secret(value):
        return True
    parameters = _QUERY.findall(value) if isinstance(value, str) and "://" in value else ()
    return any(
        (secret_names.is_secret_option(name) or name.lower() in _QUERY_WORDS) and redaction.could_be_secret(text, name)
        for name, text in parameters
    )


def in_settings(settings: Any, path: str = "", secret: bool = False) -> Iterator[tuple[str, str]]:
    """Yield each secret of nested settings: its place, as C(key.key[0]), and its value. secret: whether their name marks them as secrets."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from in_settings(
                value, f"{path}.{key}" if path else str(key), secret_names.is_secret_option(str(key))
            )
    elif isinstance(settings, list):
        for index, value in enumerate(settings):
            yield from in_settings(value, f"{path}[{index}]", secret)
    elif holds_secret(settings) or (secret and redaction.could_be_secret(settings, path)):
        yield path, str(settings)


def _variable(word: str, before: str) -> str | None:
    """Return the NAME=VALUE that a word passes to docker run, alone or behind its option; None for other words."""
    pair, short = PAIRS.match(word), _SHORT_PAIR.match(word)
    if short:
        return word[short.end() :]
    if pair and pair.end() < len(word):
        return word[pair.end() + 1 :]
    return word if PAIRS.fullmatch(before) else None


def in_words(words: Sequence[Any]) -> list[str]:
    """Return the secrets in the words of a command line: names of variables and options, else the number of the word.

    words: of C(docker run) or of a program, such as C(['-e', 'NAME=value', '--token=value', ...]).
    """
    names = []
    texts = [str(word) for word in words]
    for number, (before, text) in enumerate(zip(["", *texts], texts), 1):
        variable = _variable(text, before)
        if variable is not None:
            name, equals, value = variable.partition("=")
            names += in_environment({name: value} if equals else {})
            continue
        option, equals, value = text.partition("=")
        if equals and _is_secret_option(option):
            names += [option] if redaction.could_be_secret(value, option) else []
        elif "=" not in before and _is_secret_option(before):
            names += [before] if not text.startswith("-") and redaction.could_be_secret(text, before) else []
        elif holds_secret(text):
            names.append(option if equals and option.startswith("-") else f"word {number}")
    return names


def _is_secret_option(word: str) -> bool:
    return word.startswith("--") and secret_names.is_secret_option(word.lstrip("-"))


def sentences(key: str, names: Iterable[str], fix: str) -> list[str]:
    """Return one sentence for each secret that a key of the inventory holds."""
    return [f"'{key}' contains a secret in plain text ({name}): {WHERE_SEEN}. {fix}" for name in names]
