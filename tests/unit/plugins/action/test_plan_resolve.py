# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of hosts that the firewall admits: asked of the controller, within a bound."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.action import plan
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import plan_input


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    plan_input.resolve.cache_clear()
    yield
    plan_input.resolve.cache_clear()


def test_a_name_has_the_addresses_that_the_controller_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(name: str, _port: Any, **_more: Any) -> list[Any]:
        assert name == "forge.lan"
        return [(0, 0, 0, "", (address, 0)) for address in ("192.168.1.20", "192.168.1.20", "fe80::1%eth0")]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    assert plan_input.resolve("forge.lan") == ("192.168.1.20", "fe80::1")


def test_one_that_nobody_knows_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_more: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert plan_input.resolve("nowhere.lan") == ()


def test_a_resolver_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    def wait(*_args: Any, **_more: Any) -> list[Any]:
        never.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    monkeypatch.setattr(plan_input, "RESOLVE_SECONDS", 0.05)
    assert plan_input.resolve("slow.lan") == ()
    never.set()


def test_a_host_of_the_inventory_is_known_by_its_address() -> None:
    variables = {
        "groups": {"all": ["laptop", "bare"]},
        "hostvars": {"laptop": {"ansible_host": "192.168.1.50"}, "bare": {}},
    }
    assert plan.ActionModule._known_as("laptop", variables) == "192.168.1.50"
    assert plan.ActionModule._known_as("bare", variables) == "bare"
    assert plan.ActionModule._known_as("elsewhere.lan", variables) == "elsewhere.lan"
