# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON and texts of programs, servers and files that nobody vouches for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hostile_texts import HOSTILE, is_harmless

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("[" * 200_000, "nested more than 40 deep"),
        ('{"a":' * 200_000, "nested more than 40 deep"),
        ("[" * 41 + "]" * 41, "nested more than 40 deep"),
        ('{"data_offsets": [0, 1e999]}', "1e999 is not a finite number"),
        ("[NaN]", "NaN is not a finite number"),
        ("-Infinity", "-Infinity is not a finite number"),
        ("9" * 100_000, "a number has 100000 digits"),
        ("{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"", "not valid JSON"),
        (" " * 101, "has more than 100 bytes"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_place(document: Any, reason: str) -> None:
    most = 100 if "100 bytes" in reason else foreign_text.MOST_JSON
    with pytest.raises(ValueError, match=r"^index\.json") as caught:
        foreign_text.parse_json(document, "index.json", most)
    assert reason in str(caught.value)


def test_what_is_allowed_is_read() -> None:
    value = json.loads("[" * 40 + "]" * 40)
    assert foreign_text.parse_json("[" * 40 + "]" * 40, "x") == value
    assert foreign_text.parse_json(b'{"a": [1, 2.5, true, null, 18446744073709551615]}', "x") == {
        "a": [1, 2.5, True, None, 2**64 - 1]
    }
    assert foreign_text.parse_json('{"rope": Infinity}', "x", finite=False) == {"rope": float("inf")}


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_come_out_printable(text: str) -> None:
    for document in (json.dumps({text: [text]}), json.dumps({text: [text]}, ensure_ascii=False)):
        value = foreign_text.parse_json(document.encode("utf-8", "surrogatepass").decode("utf-8", "replace"), "x")
        assert all(is_harmless(part) for key, parts in value.items() for part in (key, *parts))
    assert is_harmless(foreign_text.decode_text(text.encode("utf-8", "surrogatepass")))


def test_texts_that_are_judged_stay_as_they_are() -> None:
    assert foreign_text.parse_json('["\\u001b[31m"]', "x", exact=True) == ["\x1b[31m"]


def test_output_of_programs_keeps_its_lines_and_loses_its_colours() -> None:
    raw = b"\x1b[0;36m(EngineCore pid=7)\x1b[0m INFO\tone\r\ntwo\rthree\n\x1b\x1b[0m[2Jfour"
    assert foreign_text.decode_text(raw) == "(EngineCore pid=7) INFO\tone\ntwo\nthree\n\\x1b[2Jfour"
