# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reader of data from outside: answers of hosts, images and registries, lock files, receipts, manifests.

C(read) and C(problems) compare a value with a form. C(from_dict) and C(to_dict) convert objects that this collection itself wrote, without
checks. A form is one of

* C(str), C(bool), C(int), C(float) or C(Any): that type of JSON
* a C(Form): a text or number of some kind, such as C(COMMIT)
* C([form]): a list
* C({"name": form, "other?": form}): a record; a key with a question mark may be missing, other keys are left out of the result
* C({form: form}): a mapping of names; in a record the form of all other keys, so that C({str: Any}) keeps them
* C(Maybe(form)), C(Either(form, form)), C(Most(form, entries)), C(Then(form, function))
* a dataclass: a record of its fields by their annotations, of which those with a default may be missing
* a function of a value and its place, which returns the value or raises C(Untrusted)

No I/O.
"""

from __future__ import annotations

import collections.abc
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from .foreign_text import Untrusted, printable, steers
from .plain_data import LARGEST, is_address, is_interface, kind, shown, strict_address

T = TypeVar("T")

MOST_ENTRIES = 100_000
MOST_TEXT = 4096
"""Characters of a text in one line."""
MOST_NAME = 255
MOST_PATH = 1024
MOST_BYTES = 2**53
"""Largest number of bytes: JSON carries it exactly, and it is a thousand times the largest disk."""
MOST_PROBLEMS = 3
"""In the message of C(Untrusted), which is one line; C(problems) lists all."""
OPTIONAL: Mapping[str, Any] = {"optional": True}
"""Metadata of a dataclass field: C(to_dict) leaves it out while it is C(None)."""


class Form(NamedTuple):
    """A kind of text or number. description: the end of "NAME is VALUE, not ..."."""

    description: str
    test: Callable[[Any], Any]


class Maybe(NamedTuple):
    """A form, or C(None)."""

    form: Any


class Either(NamedTuple):
    """The first form that a value has; messages are about the first one."""

    first: Any
    second: Any


class Most(NamedTuple):
    """A list or mapping of a bounded number of entries."""

    form: Any
    entries: int


class Then(NamedTuple):
    """A form, and a function for values of that form."""

    form: Any
    function: Callable[[Any, str], Any]


def read(form: Any, value: Any, where: str) -> Any:
    """Return a value that has a form: plain data, or an object of a dataclass. Raises Untrusted with the first problems and the number of others."""
    wrong: list[str] = []
    result = _read(form, value, where, wrong)
    if wrong:
        more = [f"and {len(wrong) - MOST_PROBLEMS} more"] if len(wrong) > MOST_PROBLEMS else []
        raise Untrusted("; ".join([*wrong[:MOST_PROBLEMS], *more]))
    return result


def problems(form: Any, value: Any, where: str) -> list[str]:
    """Return the problems of a value, each with its place."""
    wrong: list[str] = []
    _read(form, value, where, wrong)
    return wrong


def refused(where: str, value: Any, description: str) -> str:
    """Return the problem of a value without a form."""
    is_scalar = isinstance(value, (str, int, float))
    return f"{where} is {printable(shown(value)) if is_scalar else kind(value)}, not {description}"


def optional(record: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a record whose keys may be missing."""
    return {f"{name}?": form for name, form in record.items()}


def facts(record: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a record whose keys may be missing or C(None), except for those with an exclamation mark."""
    return {
        name.rstrip("!") if name.endswith("!") else f"{name}?": form if name.endswith("!") else Maybe(form)
        for name, form in record.items()
    }


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(form: Any, value: Any, where: str, wrong: list[str]) -> Any:
    """Return a value as far as it has a form; C(wrong) receives its problems."""
    read_form = _READERS.get(type(form))
    if read_form is not None:
        return read_form(form, value, where, wrong)
    if form in _TYPES:
        return _read_scalar(_TYPES[form], value, where, wrong)
    if is_dataclass(form):
        dataclass, before = cast(Any, form), len(wrong)
        entries = _read_mapping(_record_of(dataclass), value, where, wrong)
        return value if len(wrong) > before else dataclass(**entries)
    return _apply(form, value, where, wrong)


def _read_scalar(form: Form, value: Any, where: str, wrong: list[str]) -> Any:
    if not form.test(value):
        wrong.append(refused(where, value, form.description))
    return value


def _read_either(form: Either, value: Any, where: str, wrong: list[str]) -> Any:
    mistakes: list[str] = []
    result = _read(form.first, value, where, mistakes)
    if mistakes and not problems(form.second, value, where):
        return _read(form.second, value, where, [])
    wrong += mistakes
    return result


def _read_then(form: Then, value: Any, where: str, wrong: list[str]) -> Any:
    before = len(wrong)
    value = _read(form.form, value, where, wrong)
    return value if len(wrong) > before else _apply(form.function, value, where, wrong)


def _apply(function: Callable[[Any, str], Any], value: Any, where: str, wrong: list[str]) -> Any:
    try:
        return function(value, where)
    except Untrusted as error:
        wrong.append(str(error))
        return value


def _is_collection(value: Any, types: Any, description: str, where: str, wrong: list[str], most: int) -> bool:
    """Tell whether a value is of one of the types, with at most C(most) entries; C(wrong) receives the problem."""
    if not isinstance(value, types):
        wrong.append(refused(where, value, description))
        return False
    if len(value) > most:
        wrong.append(f"{where} has {len(value)} entries, more than {most}")
    return len(value) <= most


def _read_list(form: list[Any], value: Any, where: str, wrong: list[str], most: int = MOST_ENTRIES) -> Any:
    if not _is_collection(value, (list, tuple), "a list", where, wrong, most):
        return value
    return [_read(form[0], item, f"{where}[{index}]", wrong) for index, item in enumerate(value)]


def _read_mapping(form: dict[Any, Any], value: Any, where: str, wrong: list[str], most: int = MOST_ENTRIES) -> Any:
    if not _is_collection(value, Mapping, "a mapping", where, wrong, most):
        return value
    names = {key.rstrip("?"): entry_form for key, entry_form in form.items() if isinstance(key, str)}
    missing = [name for name in names if name in form and name not in value]
    if missing:
        wrong.append(f"{where} lacks {', '.join(map(repr, missing))}")
    entries = {
        name: _read(entry_form, value[name], f"{where}.{name}", wrong)
        for name, entry_form in names.items()
        if name in value
    }
    mapping = next((entry for entry in form.items() if not isinstance(entry[0], str)), None)
    if mapping:
        for name, item in value.items():
            if name not in names:
                name = _read(mapping[0], name, f"a name in {where}", wrong)
                entries[name] = _read(mapping[1], item, f"{where}.{printable(str(name))[:80]}", wrong)
    return entries


_READERS: Mapping[type, Callable[..., Any]] = {
    Form: _read_scalar,
    list: _read_list,
    dict: _read_mapping,
    Maybe: lambda form, value, *place: None if value is None else _read(form.form, value, *place),
    Either: _read_either,
    Most: lambda form, *value: _READERS[type(form.form)](form.form, *value, form.entries),
    Then: _read_then,
}


def _is_kind(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types) and (bool in types or not isinstance(value, bool))


_TYPES: Mapping[Any, Form] = {
    Any: Form("anything", lambda _value: True),
    str: Form("a text", _is_kind(str)),
    bool: Form("a boolean", _is_kind(bool)),
    int: Form("a whole number", lambda value: _is_kind(int)(value) and abs(value) <= LARGEST),
    float: Form("a number", lambda value: _is_kind(int, float)(value) and abs(value) <= LARGEST),
}


@cache
def _record_of(annotation: Any) -> dict[str, Any]:
    hints = get_type_hints(annotation, include_extras=True)
    record = {}
    for field in fields(annotation):
        is_required = field.default is MISSING and field.default_factory is MISSING
        record[field.name if is_required else f"{field.name}?"] = _form_of(hints[field.name])
    return record


def _form_of(annotation: Any) -> Any:
    origin, args = get_origin(annotation) or annotation, get_args(annotation)
    if origin is Annotated:
        return args[1]
    if origin in (list, collections.abc.Sequence):
        return [_form_of(args[0])]
    if origin in (dict, collections.abc.Mapping):
        return {str: _form_of(args[1]) if args else Any}
    if type(None) in args:
        return Maybe(_form_of(next(arg for arg in args if arg is not type(None))))
    return annotation


# --- objects of this collection ---------------------------------------------------------------------------------------


def from_dict(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return an object of a dataclass, with the objects in its fields, from a mapping that C(to_dict) made.

    Other keys are ignored; a missing field that may be C(None) is C(None). Raises TypeError if another field without default is missing.
    """
    entries = {}
    for name, (build, is_nullable) in _builders(cast(Any, kind)).items():
        if name in values:
            entries[name] = build(values[name])
        elif is_nullable:
            entries[name] = None
    return kind(**entries)


@cache
def _builders(kind: Any) -> dict[str, tuple[Callable[[Any], Any], bool]]:
    """Return by field the function that builds its value, and whether a missing value is C(None)."""
    return {
        name.rstrip("?"): (_builder(form), isinstance(form, Maybe) and not name.endswith("?"))
        for name, form in _record_of(kind).items()
    }


def _builder(form: Any) -> Callable[[Any], Any]:
    """Return what builds a value of a form; values without objects stay unchanged."""
    if is_dataclass(form):
        return lambda value: from_dict(form, value)  # type: ignore[arg-type]  # it is a class
    inner: Callable[[Any], Any] = _unchanged
    if isinstance(form, Maybe):
        inner = _builder(form.form)
    elif isinstance(form, (list, dict)):
        inner = _builder(form[0] if isinstance(form, list) else form.get(str))
    if inner is _unchanged:
        return _unchanged
    if isinstance(form, Maybe):
        return lambda value: inner(value) if value else None
    if isinstance(form, list):
        return lambda values: [inner(value) for value in values]
    return lambda values: {name: inner(value) for name, value in values.items()}


def _unchanged(value: Any) -> Any:
    return value


def to_dict(value: Any) -> Any:
    """Return plain data of an object of a dataclass, and of the objects in its fields, in lists and in tuples."""
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    # Most values are plain; mappings hold no objects.
    if value is None or isinstance(value, (str, int, float, dict)) or not is_dataclass(value):
        return value
    entries = ((name, is_optional, getattr(value, name)) for name, is_optional in _fields(cast(Any, type(value))))
    return {name: to_dict(item) for name, is_optional, item in entries if item is not None or not is_optional}


@cache
def _fields(kind: Any) -> tuple[tuple[str, bool], ...]:
    return tuple((field.name, bool(field.metadata.get("optional"))) for field in fields(kind))


# --- forms ------------------------------------------------------------------------------------------------------------


def one_of(*values: Any) -> Form:
    """Return the form of some allowed values; true is not 1."""
    names = ", ".join(map(repr, values))
    return Form(
        names if len(values) == 1 else f"one of {names}",
        lambda value: any(value == right and type(value) is type(right) for right in values),
    )


def text(description: str, test: Callable[[str], Any]) -> Form:
    """Return the form of texts that pass a test."""
    return Form(description, lambda value: isinstance(value, str) and test(value))


def matching(pattern: str, description: str, most: int = MOST_NAME) -> Form:
    """Return the form of texts that match an expression completely."""
    expression = re.compile(pattern, re.ASCII)
    return text(description, lambda value: len(value) <= most and expression.fullmatch(value))


def is_line(text: str) -> bool:
    """Tell whether a text is one line of bounded length without characters that steer a terminal."""
    return len(text) <= MOST_TEXT and not any(steers(character) for character in text)


def is_relative(text: str) -> bool:
    """Tell whether a path stays below its folder and has its one spelling: no empty part, no C(.), no C(..)."""
    parts = text.split("/")
    return (
        is_line(text)
        and 0 < len(text) <= MOST_PATH
        and not any(part in ("", ".", "..") or len(part) > MOST_NAME for part in parts)
        and text[0] not in "-~"
        and "\\" not in text
    )


def is_absolute(text: str) -> bool:
    """Tell whether a text is an absolute path without C(..)."""
    return is_line(text) and text.startswith("/") and len(text) <= MOST_PATH and ".." not in text.split("/")


def _to_address(parse: Callable[[str], Any], description: str) -> Callable[[str, str], str]:
    """Return a function that normalises an address. parse: raises ValueError for another text."""

    def change(text: str, where: str) -> str:
        try:
            return str(parse(strict_address(text)))
        except ValueError as error:
            raise Untrusted(refused(where, text, description)) from error

    return change


_SHA256 = r"[0-9a-f]{64}"
# As Docker's own reference: a registry, names, a tag, a digest.
_IMAGE = (
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    rf"(?::\w[\w.-]{{0,127}})?(?:@sha256:{_SHA256})?"
)
LINE = text("one line of text", is_line)
WORDS = Then(str, lambda value, _where: " ".join(printable(value[:MOST_TEXT]).split()))
"""A text for people, which becomes one line of bounded length."""
COMMIT = matching(r"[0-9a-f]{40}", "a commit of 40 hexadecimal digits")
SHA256 = matching(_SHA256, "a SHA-256 of 64 hexadecimal digits")
DIGEST = matching(f"sha256:{_SHA256}", "sha256: and 64 hexadecimal digits")
BLOB = matching(r"[0-9a-f]{64}|[0-9a-f]{40}", "a name of a blob")
IMAGE_ID = matching(f"sha256:{_SHA256}", "an image id, sha256: and 64 hexadecimal digits")
IMAGE_NAME = matching(f"sha256:{_SHA256}|(?!sha256:){_IMAGE}", "a name or an id of an image", 512)
REPO = matching(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", "a model, ORG/NAME")
PLATFORM = matching(r"[a-z0-9]{1,32}", "a name of a platform")
FILE_NAME = matching(r"[A-Za-z0-9_][\w.@+-]*", "a plain name of a file")
SSH_KEY = matching(
    r"ssh-ed25519 [A-Za-z0-9+/]{1,200}={0,2}(?: [\w.@-]{1,100})?", "a public key of ssh, of the kind ed25519", 400
)
RELATIVE = text("a path below its folder", is_relative)
ABSOLUTE = text("an absolute path", is_absolute)
ADDRESS = Then(LINE, _to_address(lambda address: ipaddress.ip_address(address.partition("%")[0]), "an IP address"))
NETWORK = Then(LINE, _to_address(ipaddress.ip_network, "an IP network"))
HOST = Form("an address or the name of a host", is_address)
INTERFACE = Form("an address with its network", is_interface)
SIZE = Form(f"a whole number from 0 to {MOST_BYTES}", lambda value: _is_kind(int)(value) and 0 <= value <= MOST_BYTES)
NUMBER = Form(
    f"a number from 0 to {MOST_BYTES}", lambda value: _is_kind(int, float)(value) and 0 <= value <= MOST_BYTES
)
EMPTY = one_of("")
