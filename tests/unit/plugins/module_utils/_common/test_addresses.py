# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses with a zone: the name of an interface, without characters that end a line of a configuration file."""

from __future__ import annotations

import ipaddress
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints
from ansible_collections.dgxspark.vllm.plugins.module_utils._common import plain_data, reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import Untrusted
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import discovery
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError
from ansible_collections.dgxspark.vllm.plugins.modules import spread_access

ZONES = ["", "\nListenAddress 0.0.0.0", " x", "a" * 16, "a b", 'a"', "a;b", "a\u202e", "a%b", "a\x00"]
FAIR = ["10.0.0.1", "::1", "fe80::1", "fe80::1%eth0", "fe80::1%enp1s0f0np0", "fe80::1%2", "fe80::1%br-0.5_a"]


@pytest.mark.parametrize("zone", ZONES)
def test_a_zone_is_the_name_of_an_interface(zone: str) -> None:
    address = f"fe80::1%{zone}"
    if zone:  # Python has nothing against it, which is why this is asked
        assert zone == "a%b" or ipaddress.ip_address(address)
    assert not plain_data.is_address(address)
    for text in (address, f"{address}/64"):
        with pytest.raises(ValueError, match="zone"):
            plain_data.strict_address(text)
    for form in (reader.ADDRESS, reader.NETWORK):
        with pytest.raises(Untrusted):
            reader.read(form, address, "x")
    assert plain_data.is_interface(f"{address}/64") is False
    assert endpoints.is_loopback(f"::1%{zone}") is False
    assert discovery._is_address(address) is False


@pytest.mark.parametrize("address", FAIR)
def test_addresses_with_and_without_a_zone(address: str) -> None:
    assert plain_data.is_address(address) and plain_data.strict_address(address) == address
    assert reader.read(reader.ADDRESS, address, "x") == address.partition("%")[0]


class Refused(Exception):
    """The task failed."""


def module(**peer: Any) -> Any:
    def fail(msg: str) -> None:
        raise Refused(msg)

    key = "ssh-ed25519 AAAA"
    peers = [{"name": "spark-1", "client_key": key, "host_key": key, "addresses": ["10.0.0.1"], **peer}]
    return SimpleNamespace(params={"peers": peers, "images": {}}, fail_json=fail)


@pytest.mark.parametrize("address", [*(f"fe80::1%{zone}" for zone in ZONES), "10.0.0.1\n", 7, None, ["10.0.0.1"]])
def test_peers_with_addresses_that_are_none_are_refused(address: Any) -> None:
    with pytest.raises(Refused, match="needs a name, two keys of ssh-ed25519 and addresses"):
        spread_access.check_arguments(module(addresses=["10.0.0.1", address]))


def test_peers_with_addresses_are_taken() -> None:
    spread_access.check_arguments(module(addresses=FAIR))


@pytest.mark.parametrize("address", ["fe80::1%\nListen", "spark\nExecStart=/bin/id", "a b", "\x1b[31m", "\x00"])
def test_what_ansible_connects_to_is_one_word(address: str) -> None:
    hosts = {"spark-1": {"vars": {"spark_services": []}, "address": address}}
    with pytest.raises(InventoryError) as refused:
        engine.make_plan(hosts, {})
    assert any("host spark-1: ansible_host is" in message for message in refused.value.messages)
