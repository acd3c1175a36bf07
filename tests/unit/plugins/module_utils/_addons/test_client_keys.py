# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons.client_keys import GENERATED_LETTERS, client_keys
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import mark_of

SECRET = {"mode": "0600", "secret": True}


def keys(*secrets: tuple[str, list[dict[str, Any]]], read: Any = {"/c/key": " read\n"}.get) -> dict[str, Any]:
    """The files of keys, by path."""
    rows = client_keys([{"path": path, "parts": parts} for path, parts in secrets], read)
    return {row.pop("path"): row for row in rows}


def test_keys_are_joined_of_their_parts() -> None:
    joined = ("/s/joined", [{"controller": "/c/key"}, {"text": "sk-{{ 7 }}"}, {"host": "/s/other"}])
    made = keys(joined, ("/s/other", [{"controller": "/c/key"}]))
    assert made["/s/joined"] == {**SECRET, "content": "read;sk-{{ 7 }};read"}
    assert made["/s/other"] == {**SECRET, "content": "read"}


def test_a_generated_key_is_made_by_the_host_and_filled_in_where_it_is_used() -> None:
    made = keys(("/s/joined", [{"host": "/s/own"}, {"controller": "/c/key"}]), ("/s/own", [{"generated": True}]))
    assert made["/s/own"] == {**SECRET, "generate": GENERATED_LETTERS}
    filled = {"content": f"{mark_of('file:/s/own')};read", "fill": ["file:/s/own"]}
    assert made["/s/joined"] == {**SECRET, **filled}


def test_a_key_that_cannot_be_read_is_left_to_the_deployment() -> None:
    made = keys(("/s/joined", [{"text": "x"}, {"controller": "/c/missing"}]))
    assert made == {"/s/joined": {**SECRET, "source": "/c/missing"}}


def test_the_key_of_a_client_that_the_host_does_not_have_is_an_error() -> None:
    with pytest.raises(ValueError, match="/s/joined has the key /s/own, which no client of this host has"):
        keys(("/s/joined", [{"host": "/s/own"}]))
