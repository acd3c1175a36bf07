# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets that an inventory holds in plain text, where they would end up in units, process lists and docker inspect. Pure functions.

What is a secret is decided by C(redaction) alone, by the name of a thing and by the form of its value. No message repeats a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import redaction

WHERE_SEEN = "everybody who may list processes, run docker inspect or read the unit would see it"
PAIRS = re.compile(r"(?:-[el]|--(?:env|label|annotation|log-opt|storage-opt|sysctl|driver-opt))(?==|$)")
"""Options of docker run that are given NAME=VALUE."""
_SHORT_PAIR = re.compile(r"-[el](?=\w)")
_QUERY = re.compile(r"(?<=[?&;])([\w.%-]{1,80})=([^&;#\s\"']{1,400})")
_QUERY_WORDS = ("sig", "signature", "key", "code")
_PHRASE = re.compile(r"(?:KEY|SEED|PASS)_?PHRASE$|MNEMONIC$|SIGNATURE$|(?:PRIVATE|SECRET|ACCESS|SIGNING|MASTER)KEY$")
"""Ends of variables that hold secrets beside those whose words say so."""
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=_-]{12,}")


def in_environment(env: Mapping[Any, Any]) -> list[str]:
    """Return the names of variables whose values are secrets, in their order."""
    return [str(name) for name, value in env.items() if holds_secret(value) or _of_variable(str(name), value)]


def _of_variable(name: str, value: Any) -> bool:
    """Tell whether the name of a variable says that its value is a secret; S3_ACCESS may be a key or a word such as read."""
    if name.upper().endswith("ACCESS") and _RANDOM.fullmatch(str(value)):
        return True
    return redaction.could_be_secret(value, name) and bool(
        redaction.is_secret_variable(name) or _PHRASE.search(name.upper())
    )


def holds_secret(value: Any) -> bool:
    """Tell whether a text has a secret in it: by its form, or by the name of a parameter of a URL (C(?token=...))."""
    if redaction.holds_secret(value):
        return True
    parameters = _QUERY.findall(value) if isinstance(value, str) and "://" in value else ()
    return any(
        (redaction.is_secret_option(name) or name.lower() in _QUERY_WORDS) and redaction.could_be_secret(text, name)
        for name, text in parameters
    )


def in_settings(settings: Any, path: str = "", secret: bool = False) -> Iterator[tuple[str, str]]:
    """Yield each secret of nested settings: where it stands, as C(key.key[0]), and what it is.

    :param settings: mappings and lists of scalars, as options of a program have them
    :param path: where they stand
    :param secret: their name says so
    :returns: pairs of place and secret
    """
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from in_settings(value, f"{path}.{key}" if path else str(key), redaction.is_secret_option(str(key)))
    elif isinstance(settings, list):
        for index, value in enumerate(settings):
            yield from in_settings(value, f"{path}[{index}]", secret)
    elif holds_secret(settings) or (secret and redaction.could_be_secret(settings, path)):
        yield path, str(settings)


def in_words(words: Sequence[Any]) -> list[str]:
    """Return what in the words of a command line is a secret: names of variables and options, else the number of the word.

    words: those of C(docker run) or of a program, as C(['-e', 'NAME=value', '--token=value', ...]).
    """
    found = []
    texts = [str(word) for word in words]
    for index, text in enumerate(texts):
        before = texts[index - 1] if index else ""
        own, short = PAIRS.match(text), _SHORT_PAIR.match(text)
        if PAIRS.fullmatch(before) or short or (own and own.end() < len(text)):
            given = text[short.end() :] if short else text[own.end() + 1 :] if own and own.end() < len(text) else text
            name, equals, value = given.partition("=")
            found += in_environment({name: value}) if equals else []
            continue
        option, equals, value = text.partition("=")
        if option.startswith("--") and equals and redaction.is_secret_option(option.lstrip("-")):
            found += [option] if redaction.could_be_secret(value, option) else []
        elif before.startswith("--") and "=" not in before and redaction.is_secret_option(before.lstrip("-")):
            found += [before] if not text.startswith("-") and redaction.could_be_secret(text, before) else []
        elif holds_secret(text):
            found.append(option if equals and option.startswith("-") else f"word {index + 1}")
    return found


def sentences(key: str, names: Iterable[str], fix: str) -> list[str]:
    """Return one sentence for each secret that a key of the inventory holds.

    :param key: of the inventory
    :param names: of the secrets, or their places
    :param fix: where they belong
    :returns: sentences
    """
    return [f"'{key}' holds a secret in plain text ({name}): {WHERE_SEEN}. {fix}" for name in names]
