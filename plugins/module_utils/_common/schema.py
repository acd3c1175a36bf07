# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person may write: each key with its type, default, meaning and range, and the one reader that goes by it.

The tables of keys are beside what reads them: C(variables.py) has the variables of an inventory, the files of C(_addons) the keys
below theirs. Pages, and the roles' defaults and specifications, are written from the same tables by C(scripts/generate_variables.py).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from . import plain_data
from .validation import Problems, nearest_word

NUMBER = (int, float)
"""The types of a number that need not be whole."""
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "y", "t", "1"), True),
    **dict.fromkeys(("false", "no", "off", "n", "f", "0"), False),
}
"""As Ansible's filter C(bool) has them."""
_WRITTEN_NUMBER = re.compile(r"-?[0-9]{1,12}(?:\.[0-9]{0,6})?")
_WORDS = {str: "text", bool: "boolean", int: "whole number", float: "number", list: "list", dict: "mapping"}


class Key(NamedTuple):
    """One key that a person may write.

    types: a type of YAML, or several. default: C(None) where something else decides. meaning: one line of Markdown, without a full
    stop. choices: the texts that are allowed, or, of a list, its entries. least, most: of a number, both included; above: not included.
    unit: of a number, as messages name it. page: of C(docs/), with an anchor where that helps. required: may not be left out. form, like:
    tells whether a text is right, and what it must be, as the end of a sentence; the default may differ. of: the keys of a mapping, or
    of each entry of a list; a C(Key) for a list of anything else.
    """

    types: type | tuple[type, ...]
    default: Any
    meaning: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    unit: str = ""
    page: str = ""
    required: bool = False
    above: float | None = None
    form: Callable[[str], Any] | None = None
    like: str = ""
    of: Any = None

    @property
    def listed(self) -> tuple[type, ...]:
        """The types, also where it is one."""
        return self.types if isinstance(self.types, tuple) else (self.types,)

    @property
    def type_words(self) -> str:
        """The types for a page, C(whole number) or C(text or list)."""
        types = [kind for kind in self.listed if not (kind is int and float in self.listed)]
        return " or ".join(_WORDS[kind] for kind in types)


Keys = Mapping[str, Key]
_MAPPING = Key(dict, {}, "an entry of a list of mappings")


def defaults(keys: Keys) -> dict[str, Any]:
    """Return the default of each key; lists and mappings are copies."""
    return {
        name: copy.deepcopy(key.default) if isinstance(key.default, (list, dict)) else key.default
        for name, key in keys.items()
    }


def read(
    problems: Problems,
    given: Mapping[str, Any],
    keys: Keys,
    prefix: str = "",
    only: Iterable[str] | None = None,
    fill: bool = False,
    nulls: bool = False,
) -> dict[str, Any]:
    """Return what is right of some keys, and complain of the others: unknown ones, missing ones, values of a wrong type or range.

    :param problems: takes the complaints
    :param given: what was written; C(None) is as good as nothing
    :param keys: the table of keys
    :param prefix: of the keys in messages, C(services.heavy.)
    :param only: the keys that are allowed here; all of C(keys) when left out
    :param fill: what was left out or is wrong has its default, also in mappings below
    :param nulls: a key that is C(None) is kept, as it takes away what another layer has
    :returns: the values of the right type and range
    """
    known = {name: keys[name] for name in (keys if only is None else only)}
    problems.unknown([str(name) for name in given], tuple(known), f"key of {prefix.rstrip('.')}:" if prefix else "key")
    right = defaults(known) if fill else {}
    for name, key in known.items():
        value = given.get(name)
        if value is None or (key.required and value in ("", [], {})):
            if key.required:
                problems.add(f"'{prefix}{name}' is missing: {key.meaning}.")
            elif nulls and name in given:
                right[name] = None
        elif why := wrong(key, value):
            problems.add(f"'{prefix}{name}' {why}")
        elif isinstance(value, list) and key.of is not None:
            right[name] = entries(problems, value, key.of, f"{prefix}{name}", fill)
        elif isinstance(value, Mapping) and key.of is not None:
            right[name] = read(problems, value, key.of, f"{prefix}{name}.", None, fill, nulls)
        else:
            right[name] = copy.copy(value)
    return right


def filled(problems: Problems, given: Mapping[str, Any], keys: Keys, prefix: str = "") -> dict[str, Any]:
    """Return every key with its value, or with its default where it was left out or is wrong.

    :param problems: takes the complaints
    :param given: see C(read)
    :param keys: the table of keys
    :param prefix: see C(read)
    :returns: a value for each key
    """
    return read(problems, given, keys, prefix, fill=True)


def entries(problems: Problems, given: list[Any], keys: Keys | Key, place: str, fill: bool = True) -> list[Any]:
    """Return what is right of a list, entry by entry; of two entries with one name, the second is complained of.

    :param problems: takes the complaints
    :param given: what was written
    :param keys: the keys of each entry, or what each is where it is no mapping
    :param place: of the list, in messages
    :param fill: see C(read)
    :returns: the entries, less those of a wrong type
    """
    found: list[Any] = []
    for index, entry in enumerate(given):
        why = wrong(keys if isinstance(keys, Key) else _MAPPING, entry)
        if why:
            problems.add(f"'{place}[{index}]' {why}")
        elif isinstance(keys, Key):
            found.append(entry)
        else:
            found.append(read(problems, entry, keys, f"{place}[{index}].", fill=fill))
            name = found[-1].get("name")
            if name is not None and any(other.get("name") == name for other in found[:-1]):
                problems.add(f"'{place}[{index}].name' is {plain_data.shown(name)}; another entry has that name.")
    return found


def wrong(key: Key, value: Any) -> str:
    """Say what is wrong with a value and what is allowed, as the end of a sentence; empty where it is right."""
    if not isinstance(value, key.listed) or (isinstance(value, bool) and bool not in key.listed):
        fraction = isinstance(value, float) and int in key.listed
        is_what = plain_data.shown(value) if fraction else plain_data.kind(value)
        return f"is {is_what}; it must be {_allowed(key)}.{_how_to_write(key, value)}"
    if isinstance(value, NUMBER) and not isinstance(value, bool):
        if not plain_data.is_number(value, -plain_data.LARGEST, plain_data.LARGEST) or not _within(key, value):
            return f"is {plain_data.shown(value)}; it must be {_allowed(key)}."
    elif isinstance(value, str) and key.choices and value not in key.choices:
        return f"is {plain_data.shown(value)}; {_meant(value, key.choices, 'it must')} be {one_of(key.choices)}."
    elif isinstance(value, str) and key.form and value != key.default and not key.form(value):
        return f"is {plain_data.shown(value)}; it must be {key.like}."
    elif isinstance(value, list) and key.choices and not all(entry in key.choices for entry in value):
        other = next(entry for entry in value if entry not in key.choices)
        return f"holds {plain_data.shown(other)}; {_meant(other, key.choices, 'its entries must')} be {one_of(key.choices)}."
    return ""


def _how_to_write(key: Key, value: Any) -> str:
    """Say how YAML writes what a key takes, where the value is of another form; empty where that does not help."""
    only = key.listed[0] if len(key.listed) == 1 else None
    if only is list and isinstance(value, Mapping):
        return " Begin each entry with a dash."
    if only is list and isinstance(value, str):
        return " Write [VALUE], or each value on a line with a dash."
    if only is dict and isinstance(value, (list, str)):
        return " Write NAME: VALUE on a line each, without dashes."
    is_number = isinstance(value, str) and re.fullmatch(r"\d+(?:\.\d+)?", value.strip())
    return " Write it without quotes." if is_number and {int, float} & {*key.listed} else ""


def _meant(value: Any, choices: Iterable[str], rest: str) -> str:
    """Begin the end of a complaint about a choice, with the one that was meant where one is like it."""
    near = nearest_word(value, choices) if isinstance(value, str) else None
    return f"did you mean '{near}'? {rest[0].upper()}{rest[1:]}" if near else rest


def meant(key: Key, value: Any) -> Any:
    """Return what a text of the command line stands for: C(-e name=true) and C(-e name=3) hand over texts."""
    if not isinstance(value, str) or str in key.listed:
        return value
    if bool in key.listed and value.strip().lower() in _BOOLEANS:
        return _BOOLEANS[value.strip().lower()]
    if int in key.listed and _WRITTEN_NUMBER.fullmatch(value) and (float in key.listed or "." not in value):
        return float(value) if "." in value else int(value)
    return value


def one_of(choices: Iterable[str]) -> str:
    """Return choices as a sentence has them: C(auto, never or required)."""
    *first, last = choices
    return f"{', '.join(first)} or {last}" if first else last


def _within(key: Key, value: float) -> bool:
    least, above, most = key.least, key.above, key.most
    return (least is None or value >= least) and (above is None or value > above) and (most is None or value <= most)


def _allowed(key: Key) -> str:
    """Return what a value has to be, with its range."""
    if key.like:
        return key.like
    if key.choices and str in key.listed:
        return one_of(key.choices)
    words = one_of([plain_data.kind(kind()) for kind in key.listed if not (kind is float and int in key.listed)])
    whole = int in key.listed and float not in key.listed
    words = words.replace("a number", "a whole number") if whole else words
    unit = f" of {key.unit}" if key.unit else ""
    if key.least is not None and key.most is not None:
        return f"{words}{unit} from {key.least:g} to {key.most:g}"
    if key.above is not None:
        return f"{words}{unit} above {key.above:g}" + (f", at most {key.most:g}" if key.most is not None else "")
    return f"{words}{unit}" + (f", {key.least:g} or more" if key.least is not None else "")
