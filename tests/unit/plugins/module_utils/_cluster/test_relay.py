# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every setting of a relay of a ring is present, or named: changes by hand, and programs without an answer."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import relay
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer

ROUTE = {"to": "192.168.102.0/24", "via": "192.168.100.11", "dev": "enp1s0f0np0"}
WAYS = [{"from": "a0", "to": "a1"}, {"from": "a1", "to": "a0"}]
KERNEL = (
    "default via 10.0.0.1 dev enP7s7 proto dhcp metric 100\n"
    "192.168.100.0/24 dev enp1s0f0np0 proto kernel scope link src 192.168.100.10\n"
    "192.168.102.0/24 via 192.168.100.11 dev enp1s0f0np0 proto static\n"
)
SHOWN = f"Id={relay.UNIT}\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"


def host(**changes: tuple[int, str, str]) -> Any:
    """A host that answers programs by their names; all is well but for changes."""
    answers = {
        "ip": (0, KERNEL, ""),
        "systemctl": (0, SHOWN, ""),
        "sysctl": (0, "1\n", ""),
        "iptables": (0, "", ""),
        **changes,
    }
    return lambda argv: answers[argv[0].rpartition("/")[2]]


def test_routes_are_those_of_the_file_of_the_network() -> None:
    ethernets = {"enp1s0f0np0": {"routes": [{"to": ROUTE["to"], "via": ROUTE["via"]}]}, "enp1s0f1np1": {"mtu": 9000}}
    assert relay.routes_of({"network": {"ethernets": ethernets}}) == [ROUTE]
    assert relay.routes_of({}) == []


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ((0, KERNEL, ""), []),
        (
            (0, KERNEL.replace("via 192.168.100.11", "via 192.168.100.12"), ""),
            ["there is no route to 192.168.102.0/24"],
        ),
        ((0, "\n".join(KERNEL.splitlines()[:2]), ""), ["there is no route to 192.168.102.0/24"]),
        # A route to one host of the network is not enough.
        ((0, KERNEL.replace("192.168.102.0/24", "192.168.102.7"), ""), ["there is no route to 192.168.102.0/24"]),
    ],
)
def test_a_route_that_is_gone_is_named(message: tuple[int, str, str], why: list[str]) -> None:
    result = relay.lost_routes(host(ip=message), [ROUTE])
    assert len(result) == len(why) and all(text.startswith(start) for text, start in zip(result, why)), result


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, []),
        ({"sysctl": (0, "0\n", "")}, ["net.ipv4.ip_forward is not 1: 0"]),
        (
            {"systemctl": (0, SHOWN.replace("=active", "=inactive"), "")},
            [f"{relay.UNIT} is not active, or not at boot: inactive, enabled"],
        ),
        (
            {"iptables": (1, "", "iptables: Bad rule")},
            [
                "Docker's chain DOCKER-USER does not accept what comes by a0 and leaves by a1",
                "Docker's chain DOCKER-USER does not accept what comes by a1 and leaves by a0",
            ],
        ),
    ],
)
def test_what_the_unit_has_set_and_is_set_no_more_is_named(
    changes: dict[str, tuple[int, str, str]], why: list[str]
) -> None:
    assert relay.not_passed_on(host(**changes), WAYS) == why


def test_a_host_that_passes_nothing_on_is_asked_nothing() -> None:
    def never(_argv: list[str]) -> tuple[int, str, str]:
        raise AssertionError("asked")

    assert relay.lost_routes(never, []) == relay.not_passed_on(never, []) == []


@pytest.mark.parametrize("to", ["192.168.102.7/32", "192.168.102.7"])
def test_a_route_to_one_host_is_known_however_it_is_written(to: str) -> None:
    run = host(ip=(0, KERNEL.replace("192.168.102.0/24", "192.168.102.7"), ""))
    assert relay.lost_routes(run, [{**ROUTE, "to": to}]) == []


@pytest.mark.parametrize(
    "message",
    [
        {"iptables": (4, "", "Another app is currently holding the xtables lock")},
        {"iptables": (127, "", "no such program")},
        {"iptables": (3, "", "can't initialize iptables table")},
        {"sysctl": (255, "", "permission denied")},
        {"systemctl": (1, "", "Failed to connect to bus")},
        {"ip": (1, "", "Cannot open netlink socket")},
    ],
)
def test_a_program_that_does_not_say_has_not_said_no(message: dict[str, tuple[int, str, str]]) -> None:
    (program,) = message
    with pytest.raises(NoAnswer, match=f"^{program} failed: {message[program][2]}"):
        relay.lost_routes(host(**message), [ROUTE])
        relay.not_passed_on(host(**message), WAYS)
