# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variable spark_live, and what is planned of it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import live


def planned(value: Any, *services: dict[str, Any]) -> dict[str, Any]:
    settings, problems = live.read("s1", value)
    assert problems == []
    return live.plan("s1", settings, "192.168.1.11", services, ["rail1", "rail0"], "/")


def test_without_a_key_it_is_served_on_loopback() -> None:
    made = planned(True, {"name": "heavy"})
    assert (made["listen"], made["port"], made["key"]) == ("127.0.0.1", live.KEYS["port"].default, None)
    assert made["settings"]["rails"] == ["rail0", "rail1"] and made["settings"]["api_key_file"] is None


def test_with_a_key_the_fleet_can_read_it() -> None:
    made = planned({"api_key_file": "/keys/live", "actions": True})
    assert (made["listen"], made["settings"]["api_key_file"], made["settings"]["actions"]) == (
        "192.168.1.11",
        live.KEY_FILE,
        True,
    )
    assert "/keys/live" not in str(made["settings"])


def test_without_services_or_switched_off_there_is_none() -> None:
    assert planned(True) == planned(False, {"name": "heavy"}) == {}


@pytest.mark.parametrize("value", [{"actions": True}, {"listen": "0.0.0.0"}, {"listen": "192.168.1.11"}])
def test_nothing_is_open_without_a_key(value: dict[str, Any]) -> None:
    (problem,) = live.read("s1", value)[1]
    assert "api_key_file" in problem
    assert not live.read("s1", {**value, "api_key_file": "/keys/live"})[1]


@pytest.mark.parametrize(
    ("listen", "reader", "url"),
    [
        ("127.0.0.1", "forge", None),
        ("127.0.0.1", "s1", "http://127.0.0.1:8095"),
        ("192.168.1.11", "forge", "http://192.168.1.11:8095"),
        ("0.0.0.0", "forge", "http://192.168.1.11:8095"),
        ("0.0.0.0", "s1", "http://127.0.0.1:8095"),
        ("fd00::1", "forge", "http://[fd00::1]:8095"),
    ],
)
def test_where_a_monitor_reads_it(listen: str, reader: str, url: str | None) -> None:
    assert live.url("s1", reader, {"listen": listen, "port": 8095}, "192.168.1.11") == url
