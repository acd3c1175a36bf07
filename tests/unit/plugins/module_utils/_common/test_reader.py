# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Forms of data from outside, and objects from plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import Untrusted
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.reader import Either, Maybe, Most, Then

DISK = {"path": reader.ABSOLUTE, "free": reader.SIZE, "label?": Maybe(reader.LINE)}


def test_a_record_has_its_keys_alone() -> None:
    disk = {"path": "/x", "free": 5, "label": None, "other": 1}
    assert reader.read(DISK, disk, "disk") == {"path": "/x", "free": 5, "label": None}
    assert reader.read({**DISK, str: Any}, disk, "disk") == disk
    assert reader.read({"a": {}}, {"a": {"b": 1}}, "x") == {"a": {}}


def test_all_problems_are_listed_with_their_places() -> None:
    disks = [{"path": "x", "free": -1}, {"label": 5}, "disk"]
    assert reader.problems([DISK], disks, "disks") == [
        "disks[0].path is 'x', not an absolute path",
        "disks[0].free is -1, not a whole number from 0 to 9007199254740992",
        "disks[1] lacks 'path', 'free'",
        "disks[1].label is 5, not one line of text",
        "disks[2] is 'disk', not a mapping",
    ]
    with pytest.raises(Untrusted, match=r"disks\[0\]\.path .*; disks\[1\] lacks 'path', 'free'; and 2 more$"):
        reader.read([DISK], disks, "disks")


@pytest.mark.parametrize(
    ("form", "value", "description"),
    [
        (str, None, "nothing, not a text"),
        (str, True, "True, not a text"),
        (int, True, "True, not a whole number"),
        (int, 1.0, "1.0, not a whole number"),
        (int, 10**30, "a number of more than 19 digits, not a whole number"),
        (float, float("nan"), "nan, not a number"),
        (float, float("inf"), "inf, not a number"),
        (bool, 1, "1, not a boolean"),
        ([int], (1, "2"), None),
        ([int], {"a": 1}, "a mapping, not a list"),
        (Most([int], 1), [1, 2], None),
        (Most({str: int}, 1), {"a": 1, "b": 2}, None),
        (reader.LINE, "a\nb", "'a\\nb', not one line of text"),
        (reader.LINE, "\u202egnp", None),
        (reader.one_of(0, 1), True, "True, not one of 0, 1"),
        (Either(int, reader.EMPTY), "x", "'x', not a whole number"),
        (reader.IMAGE_NAME, "sha256:abc", "'sha256:abc', not a name or an id of an image"),
        (reader.RELATIVE, "a/../b", "'a/../b', not a path below its folder"),
        (reader.ADDRESS, "fe80::1%a b", None),
        (reader.INTERFACE, "192.168.1.1", "'192.168.1.1', not an address with its network"),
    ],
)
def test_a_wrong_value_is_named(form: Any, value: Any, description: str | None) -> None:
    problems = reader.problems(form, value, "x")
    assert len(problems) == 1 and (description is None or problems == [f"x is {description}"])
    assert problems[0].isprintable()


def test_too_many_entries_are_counted() -> None:
    for form, value in (([int], [1, 2]), ({str: int}, {"a": 1, "b": 2})):
        assert reader.problems(Most(form, 1), value, "x") == ["x has 2 entries, more than 1"]


def test_forms_of_forms() -> None:
    assert reader.read(Maybe(int), None, "x") is None
    assert reader.read(Either(int, reader.EMPTY), "", "x") == ""
    assert reader.read({reader.SHA256: int}, {"a" * 64: 1}, "x") == {"a" * 64: 1}
    assert reader.problems({reader.SHA256: int}, {"b": 1}, "x") == [
        "a name in x is 'b', not a SHA-256 of 64 hexadecimal digits"
    ]
    assert reader.read(reader.WORDS, " a\n b ", "x") == "a b"
    assert reader.read(reader.NETWORK, "10.0.0.0/24", "x") == "10.0.0.0/24"
    assert reader.problems(Then(int, lambda value, where: 1 // value), "a", "x") == ["x is 'a', not a whole number"]
    assert reader.problems(reader.facts({"a!": int, "b": int}), {"b": None}, "x") == ["x lacks 'a'"]


@dataclass(frozen=True)
class Part:
    name: Annotated[str, reader.FILE_NAME]
    size: int = 0


@dataclass(frozen=True)
class Whole:
    parts: Sequence[Part]
    first: Part | None
    by_name: Mapping[str, Part] = field(default_factory=dict)
    note: str | None = field(default=None, metadata=reader.OPTIONAL)


def test_a_dataclass_is_a_form() -> None:
    result = reader.read(Whole, {"parts": [{"name": "a"}], "first": None, "by_name": {"b": {"name": "b"}}}, "x")
    assert result == Whole([Part("a")], None, {"b": Part("b")})
    wrong = {"parts": [{"name": "../a", "size": "5"}]}
    assert reader.problems(Whole, wrong, "x") == [
        "x lacks 'first'",
        "x.parts[0].name is '../a', not a plain name of a file",
        "x.parts[0].size is '5', not a whole number",
    ]


def test_objects_become_plain_data_and_back() -> None:
    result = Whole([Part("a", 1)], Part("b"), {"c": Part("c")})
    plain = {"parts": [{"name": "a", "size": 1}], "first": {"name": "b", "size": 0}, "by_name": {"c": {"name": "c"}}}
    assert reader.from_dict(Whole, {**plain, "unknown": 1}) == result
    assert reader.to_dict([Part("a", 1), None, {"x": 1}]) == [{"name": "a", "size": 1}, None, {"x": 1}]
    assert "note" not in reader.to_dict(result) and reader.to_dict(Whole([], None, note="n"))["note"] == "n"
    assert reader.from_dict(Whole, {"parts": []}).first is None
    with pytest.raises(TypeError, match="name"):
        reader.from_dict(Part, {})
