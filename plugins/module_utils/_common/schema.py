# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema of inventories: keys with type, default, meaning and range, and the reader that checks values against them.

Unlike C(reader.py), which refuses data of programs, this one helps a person: it sets defaults, suggests keys, and reads on after a mistake.
The tables of keys are in the modules that use them: C(variables.py) has the variables of an inventory, C(_addons/descriptions.py) reads the
keys of add-on services. C(scripts/generate_variables.py) writes pages, and the roles' defaults and specifications, from the same tables.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from . import plain_data
from .validation import Problems, nearest_word

NUMBER = (int, float)
"""The types of a number that may be fractional."""
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "y", "t", "1"), True),
    **dict.fromkeys(("false", "no", "off", "n", "f", "0"), False),
}
"""The words of Ansible's filter C(bool)."""
_WRITTEN_NUMBER = re.compile(r"-?[0-9]{1,12}(?:\.[0-9]{0,6})?")
_WORDS = {str: "text", bool: "boolean", int: "integer", float: "number", list: "list", dict: "mapping"}


class Key(NamedTuple):
    """One key that a person may write.

    types: a type of YAML, or several. default: C(None) if it depends on other settings. meaning: one line of Markdown, without a full
    stop. choices: allowed texts, or allowed entries of a list. least, most: of a number, both included; above: not included. unit: of a
    number, for messages. page: of C(docs/), possibly with an anchor. required: must not be left out. form, like: the test of a text, and
    the description of right texts as the end of a sentence; the default may differ. of: the keys of a mapping, or of each entry of a
    list; a C(Key) for a list of scalars.
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
        """The types as a tuple."""
        return self.types if isinstance(self.types, tuple) else (self.types,)

    @property
    def type_words(self) -> str:
        """The types for a page, C(integer) or C(text or list)."""
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
    values: Mapping[str, Any],
    keys: Keys,
    prefix: str = "",
    only: Iterable[str] | None = None,
    fill: bool = False,
    nulls: bool = False,
) -> dict[str, Any]:
    """Return the values of the right keys, and report unknown and missing keys and values of a wrong type or range.

    :param values: of the inventory; C(None) counts as unset
    :param only: the keys that are allowed here; all of C(keys) by default
    :param fill: set missing and wrong keys to their defaults, also in mappings below
    :param nulls: keep keys that are C(None), since they remove the value of another layer
    """
    allowed = {name: keys[name] for name in (keys if only is None else only)}
    problems.unknown(map(str, values), tuple(allowed), f"key of {prefix.rstrip('.')}:" if prefix else "key")
    right = defaults(allowed) if fill else {}
    for name, key in allowed.items():
        value = values.get(name)
        if _is_left_out(key, value):
            if key.required:
                problems.add(f"'{prefix}{name}' is missing: {key.meaning}.")
            elif nulls and name in values:
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


def _is_left_out(key: Key, value: Any) -> bool:
    return value is None or (key.required and value in ("", [], {}))


def filled(problems: Problems, values: Mapping[str, Any], keys: Keys, prefix: str = "") -> dict[str, Any]:
    """Return every key with its value; missing and wrong keys have their defaults."""
    return read(problems, values, keys, prefix, fill=True)


def entries(problems: Problems, items: list[Any], keys: Keys | Key, place: str, fill: bool = True) -> list[Any]:
    """Return the right entries of a list; wrong entries and repeated names are reported.

    :param keys: the keys of each entry; a C(Key) for entries that are no mappings
    """
    right: list[Any] = []
    for index, entry in enumerate(items):
        why = wrong(keys if isinstance(keys, Key) else _MAPPING, entry)
        if why:
            problems.add(f"'{place}[{index}]' {why}")
        elif isinstance(keys, Key):
            right.append(entry)
        else:
            right.append(read(problems, entry, keys, f"{place}[{index}].", fill=fill))
            name = right[-1].get("name")
            if name is not None and any(other.get("name") == name for other in right[:-1]):
                problems.add(f"'{place}[{index}].name' is {plain_data.shown(name)}; another entry has that name.")
    return right


def wrong(key: Key, value: Any) -> str:
    """Return the problem of a value and the allowed ones, as the end of a sentence; empty for a right value."""
    if not isinstance(value, key.listed) or (isinstance(value, bool) and bool not in key.listed):
        is_fraction = isinstance(value, float) and int in key.listed
        shown = plain_data.shown(value) if is_fraction else plain_data.kind(value)
        return f"is {shown}; it must be {_allowed(key)}.{_how_to_write(key, value)}"
    if isinstance(value, NUMBER) and not isinstance(value, bool):
        is_right = plain_data.is_number(value, -plain_data.LARGEST, plain_data.LARGEST) and _within(key, value)
        return "" if is_right else f"is {plain_data.shown(value)}; it must be {_allowed(key)}."
    if why := _wrong_choice(key, value):
        return why
    if isinstance(value, str) and key.form and value != key.default and not key.form(value):
        return f"is {plain_data.shown(value)}; it must be {key.like}."
    return ""


def _wrong_choice(key: Key, value: Any) -> str:
    """Return the problem of a text, or of the first entry of a list, that is no choice of the key."""
    is_text = isinstance(value, str)
    chosen = [value] if is_text else value if isinstance(value, list) else []
    unknown = [choice for choice in chosen if choice not in key.choices] if key.choices else []
    if not unknown:
        return ""
    suggestion = _suggested(unknown[0], key.choices, "it must" if is_text else "its entries must")
    return f"{'is' if is_text else 'contains'} {plain_data.shown(unknown[0])}; {suggestion} be {one_of(key.choices)}."


def _how_to_write(key: Key, value: Any) -> str:
    """Return how to write the key in YAML if the value has another form; empty if no hint applies."""
    only = key.listed[0] if len(key.listed) == 1 else None
    if only is list and isinstance(value, Mapping):
        return " Begin each entry with a dash."
    if only is list and isinstance(value, str):
        return " Write [VALUE], or each value on a line with a dash."
    if only is dict and isinstance(value, (list, str)):
        return " Write NAME: VALUE on a line each, without dashes."
    is_number = isinstance(value, str) and re.fullmatch(r"\d+(?:\.\d+)?", value.strip())
    return " Write it without quotes." if is_number and {int, float} & {*key.listed} else ""


def _suggested(value: Any, choices: Iterable[str], ending: str) -> str:
    """Return the beginning of the end of a sentence about a choice, with a suggestion if a choice is similar."""
    near = nearest_word(value, choices) if isinstance(value, str) else None
    return f"did you mean '{near}'? {ending[0].upper()}{ending[1:]}" if near else ending


def from_command_line(key: Key, value: Any) -> Any:
    """Return the value of a text of the command line: C(-e name=true) and C(-e name=3) pass texts."""
    if not isinstance(value, str) or str in key.listed:
        return value
    if bool in key.listed and value.strip().lower() in _BOOLEANS:
        return _BOOLEANS[value.strip().lower()]
    if int in key.listed and _WRITTEN_NUMBER.fullmatch(value) and (float in key.listed or "." not in value):
        return float(value) if "." in value else int(value)
    return value


def one_of(choices: Iterable[str]) -> str:
    """Return choices in the form of a sentence: C(auto, never or required)."""
    *first, last = choices
    return f"{', '.join(first)} or {last}" if first else last


def _within(key: Key, value: float) -> bool:
    least, above, most = key.least, key.above, key.most
    return (least is None or value >= least) and (above is None or value > above) and (most is None or value <= most)


def _allowed(key: Key) -> str:
    """Return the description of allowed values, with their range."""
    if key.like:
        return key.like
    if key.choices and str in key.listed:
        return one_of(key.choices)
    words = one_of([plain_data.kind(kind()) for kind in key.listed if not (kind is float and int in key.listed)])
    is_whole = int in key.listed and float not in key.listed
    words = words.replace("a number", "a whole number") if is_whole else words
    unit = f" of {key.unit}" if key.unit else ""
    if key.least is not None and key.most is not None:
        return f"{words}{unit} from {key.least:g} to {key.most:g}"
    if key.above is not None:
        return f"{words}{unit} above {key.above:g}" + (f", at most {key.most:g}" if key.most is not None else "")
    return f"{words}{unit}" + (f", {key.least:g} or more" if key.least is not None else "")
