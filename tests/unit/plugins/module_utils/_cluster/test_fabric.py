# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric is planned from facts of hosts; hosts here are trees of sysfs, read as on a real one."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import (
    fabric,
    fabric_bandwidth,
    fabric_layout,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.render import render_template

LEFT = ("enp1s0f0np0", "enP2p1s0f0np0")
RIGHT = ("enp1s0f1np1", "enP2p1s0f1np1")
DEVICES = {
    "enp1s0f0np0": "0000:01:00.0",
    "enp1s0f1np1": "0000:01:00.1",
    "enP2p1s0f0np0": "0002:01:00.0",
    "enP2p1s0f1np1": "0002:01:00.1",
}
MANAGEMENT = {"enP7s7": ["10.0.0.{n}/24"], "docker0": ["172.17.0.1/16"]}

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def make(tree: Any, fake_run: Any, tmp_path: Path) -> Make:
    """Make the entry of a host: its links, addresses and MTUs, and files of sysfs that differ from the usual."""
    numbers = iter(range(1, 20))

    def host(
        up: tuple[str, ...] = LEFT,
        addresses: dict[str, str | list[str]] | None = None,
        mtu: dict[str, int] | None = None,
        files: dict[str, str] | None = None,
        stored: dict[str, str] | None = None,
        neighbours: list[dict[str, Any]] | None = None,
        card: bool = True,
        **entry: Any,
    ) -> dict[str, Any]:
        number = next(numbers)
        host_tree = type(tree)(tmp_path / f"host{number}")
        if card:
            host_tree.qsfp(up)
            for index, (name, address) in enumerate(DEVICES.items()):
                base = f"sys/devices/pci{address[:7]}/{address}/net/{name}"
                host_tree.write(f"{base}/address", mac(number, index) + "\n")
                host_tree.write(f"{base}/mtu", f"{(mtu or {}).get(name, 9000)}\n")
        for name, text in {**(files or {}), **(stored or {})}.items():
            host_tree.write(name, text)
        networks = {name: [text.format(n=number) for text in texts] for name, texts in MANAGEMENT.items()}
        shown = [
            *networks.items(),
            *((name, [texts] if isinstance(texts, str) else texts) for name, texts in (addresses or {}).items()),
        ]
        links = [
            {
                "ifname": name,
                "addr_info": [
                    {
                        "local": text.split("/", 1)[0],
                        "prefixlen": int(text.split("/", 1)[1]),
                        "scope": "link" if text.startswith("169.254") else "global",
                    }
                    for text in texts
                ],
            }
            for name, texts in shown
        ]
        run = type(fake_run)().on("ip -j addr", json.dumps(links)).on("ip -j neigh", json.dumps(neighbours or []))
        facts = HostView(run, str(host_tree), config_root=str(host_tree)).fabric()
        return {"fabric": facts, "management_address": f"10.0.0.{number}", **entry}

    return host


def mac(number: int, index: int) -> str:
    return f"3c:6d:66:cc:{number:02x}:{index:02x}"


def heard(*links: tuple[str, str, str]) -> list[dict[str, str]]:
    return [{"netdev": netdev, "host": host, "peer": peer} for netdev, host, peer in links]


def both(host: str, first_addresses: tuple[str, ...] = LEFT, other: tuple[str, ...] = LEFT) -> list[dict[str, str]]:
    """Frames over a cable: each interface hears both of the other end."""
    return heard(*((netdev, host, peer) for netdev in first_addresses for peer in other))


def on(number: int, names: tuple[str, ...] = LEFT, first: int = 100) -> dict[str, str]:
    """NVIDIA's addresses: a subnet for each interface."""
    return {name: f"192.168.{first + index}.{number}/24" for index, name in enumerate(names)}


FILE = "etc/netplan/40-cx7.yaml"
NVIDIA_FILE = {
    FILE: "network:\n  version: 2\n  ethernets:\n    enp1s0f0np0: {mtu: 9000}\n    enP2p1s0f0np0: {mtu: 9000}\n"
}
OUR_FILE = {FILE: "# Ansible managed: dgxspark.vllm.fabric\n" + NVIDIA_FILE[FILE]}


def rules(plan: dict[str, Any], *severities: str) -> list[str]:
    return sorted(
        {finding["rule"] for finding in plan["findings"] if not severities or finding["severity"] in severities}
    )


def message(plan: dict[str, Any], rule: str) -> str:
    return next(f"{entry['message']} {entry.get('fix', '')}" for entry in plan["findings"] if entry["rule"] == rule)


def actions(plan: dict[str, Any]) -> list[str]:
    return [host["action"] for host in plan["hosts"].values()]


# --- a pair that has nothing yet


def test_a_bare_pair_is_configured(make: Make) -> None:
    plan = fabric.plan({"a": make(heard=both("b"), mtu=dict.fromkeys(LEFT, 1500)), "b": make(heard=both("a"))})
    assert (plan["topology"], plan["ready"], plan["findings"]) == ("direct", False, [])
    assert actions(plan) == ["configure", "configure"]
    assert [rail["subnet"] for rail in plan["rails"]] == ["192.168.100.0/24", "192.168.101.0/24"]
    assert plan["hosts"]["b"]["netplan"] == {
        "network": {
            "version": 2,
            "ethernets": {
                name: {
                    "addresses": [f"192.168.{100 + index}.11/24"],
                    "dhcp4": False,
                    "dhcp6": False,
                    "link-local": [],
                    "mtu": 9000,
                    "optional": True,
                }
                for index, name in enumerate(LEFT)
            },
        }
    }
    assert plan["hosts"]["a"]["rails"][1]["peers"] == {"b": "192.168.101.11"}
    assert plan["hosts"]["a"]["pings"] == []
    assert ["ip", "link", "set", "dev", "enp1s0f0np0", "mtu", "1500"] in plan["hosts"]["a"]["restore"]


def test_subnets_and_addresses_may_be_given(make: Make) -> None:
    settings = fabric_layout.Settings(subnets=("10.1.0.0/28", "10.2.0.0/28"), first_host=1)
    arguments = {"enp1s0f0np0": "10.1.0.7/28"}
    plan = fabric.plan({"a": make(heard=both("b"), addresses={}), "b": make(heard=both("a"))}, settings)
    assert [end["address"] for end in plan["rails"][0]["ends"].values()] == ["10.1.0.1/28", "10.1.0.2/28"]
    hosts = {"a": {**make(heard=both("b"))}, "b": make(heard=both("a"))}
    hosts["a"]["addresses"] = arguments
    plan = fabric.plan(hosts, settings)
    assert [end["address"] for end in plan["rails"][0]["ends"].values()] == ["10.1.0.7/28", "10.1.0.2/28"]
    assert plan["rails"][1]["subnet"] == "10.2.0.0/28"


def test_given_addresses_of_two_subnets_and_too_small_a_network(make: Make) -> None:
    hosts = {"a": make(heard=both("b")), "b": make(heard=both("a"))}
    hosts["a"]["addresses"], hosts["b"]["addresses"] = {LEFT[0]: "10.1.0.1/24"}, {LEFT[0]: "10.2.0.1/24"}
    plan = fabric.plan(hosts)
    assert rules(plan, "error") == ["fabric.given_differ"] and actions(plan) == ["refuse", "refuse"]
    assert "a enp1s0f0np0 10.1.0.1/24 and b enp1s0f0np0 10.2.0.1/24" in message(plan, "fabric.given_differ")
    hosts = {"a": make(heard=both("b")), "b": make(heard=both("a"))}
    plan = fabric.plan(hosts, fabric_layout.Settings(subnets=("10.1.0.0/30", "10.2.0.0/30"), first_host=2))
    assert rules(plan, "error") == ["fabric.no_address"] and "refuse" in actions(plan)
    assert "10.1.0.0/30 has no address left for b" in message(plan, "fabric.no_address")


def test_a_subnet_that_a_host_uses_for_something_else_is_passed_over(make: Make) -> None:
    hosts = {"a": make(heard=both("b")), "b": make(heard=both("a"))}
    hosts["a"]["fabric"]["networks"]["enP7s7"] = ["192.168.100.5/24"]
    plan = fabric.plan(hosts)
    assert [rail["subnet"] for rail in plan["rails"]] == ["192.168.101.0/24", "192.168.102.0/24"]
    plan = fabric.plan(hosts, fabric_layout.Settings(network="192.168.100.0/24"))
    # A /24 is cut in two, and both halves are the network of the host.
    assert rules(plan) == ["fabric.no_subnet"] and actions(plan) == ["refuse", "refuse"]
    assert "enP7s7 (192.168.100.5/24) on a" in message(plan, "fabric.no_subnet")


def test_settings_are_checked_all_at_once() -> None:
    wrong = fabric_layout.Settings(
        network="192.168.100.1/24", subnets=("fd00::/64",), mtu=100, topology="star", first_host=0
    )
    assert len(fabric_layout.check_settings(wrong)) == 5
    with pytest.raises(ValueError, match=r"network: .*; subnets: .*; topology: .*; mtu: "):
        fabric.plan({}, wrong)
    with pytest.raises(ValueError, match="two hosts"):
        fabric.plan({"a": {"fabric": {}}})


@pytest.mark.parametrize(
    ("network", "parts", "expected"),
    [
        ("192.168.100.0/22", 2, ["192.168.100.0/24", "192.168.101.0/24"]),
        ("192.168.100.0/22", 6, ["192.168.100.0/25", "192.168.100.128/25"]),
        ("10.0.0.0/24", 2, ["10.0.0.0/25", "10.0.0.128/25"]),
        ("10.0.0.0/30", 2, []),
    ],
)
def test_networks_are_cut(network: str, parts: int, expected: list[str]) -> None:
    assert fabric_layout.cut(network, parts)[:2] == expected


# --- layouts that are there already


def test_the_layout_of_nvidias_playbook_is_adopted(make: Make) -> None:
    a = make(heard=both("b"), addresses=on(10), stored=NVIDIA_FILE)
    b = make(heard=both("a"), addresses=on(11), stored=NVIDIA_FILE)
    plan = fabric.plan({"a": a, "b": b})
    assert (plan["ready"], plan["findings"], actions(plan)) == (True, [], ["keep", "keep"])
    assert plan["hosts"]["a"]["netplan"] == {} and plan["hosts"]["a"]["apply"] is False
    assert plan["rails"][0]["ends"]["a"]["address"] == "192.168.100.10/24"
    assert [ping["size"] for ping in plan["hosts"]["a"]["pings"]] == [8972, 8972]


def test_what_this_collection_wrote_is_written_again_and_changes_nothing(make: Make) -> None:
    a = make(heard=both("b"), addresses=on(10), stored=OUR_FILE)
    b = make(heard=both("a"), addresses=on(11), stored=OUR_FILE)
    plan = fabric.plan({"a": a, "b": b}, fabric_layout.Settings(network="10.9.0.0/22"))
    assert actions(plan) == ["configure", "configure"] and plan["ready"]
    assert [plan["hosts"][name]["apply"] for name in "ab"] == [False, False]
    # An address that works is not changed because the default of new ones did.
    assert plan["hosts"]["a"]["netplan"]["network"]["ethernets"]["enp1s0f0np0"]["addresses"] == ["192.168.100.10/24"]


def test_what_this_collection_wrote_is_repaired_without_being_asked(make: Make) -> None:
    a = make(heard=both("b"), addresses=on(10), stored=OUR_FILE, mtu={"enp1s0f0np0": 1500})
    b = make(heard=both("a"), addresses=on(11), stored=NVIDIA_FILE)
    plan = fabric.plan({"a": a, "b": b})
    assert actions(plan) == ["configure", "keep"] and plan["hosts"]["a"]["apply"] is True and not plan["ready"]
    assert "The role fabric does it." in message(plan, "fabric.mtu_differs")


def test_mtu_1500_on_one_side_is_refused_until_asked(make: Make) -> None:
    a = make(heard=both("b"), addresses=on(10), stored=NVIDIA_FILE, mtu={"enp1s0f0np0": 1500})
    b = make(heard=both("a"), addresses=on(11), stored=NVIDIA_FILE)
    plan = fabric.plan({"a": a, "b": b})
    assert not plan["ready"] and actions(plan) == ["refuse", "keep"]
    text = message(plan, "fabric.mtu_differs")
    assert "rail0: the ends differ in MTU: a enp1s0f0np0 1500 and b enp1s0f0np0 9000" in text
    assert "fabric_migrate: true" in text
    assert plan["hosts"]["a"]["pings"][0]["size"] == 8972  # packets of the larger end get lost
    plan = fabric.plan({"a": a, "b": b}, fabric_layout.Settings(migrate=True))
    assert actions(plan) == ["migrate", "keep"]
    assert plan["hosts"]["a"]["rails"][0]["address"] == "192.168.100.10/24"  # the address was right and stays


def test_mtu_1500_on_both_sides_is_slow_and_works(make: Make) -> None:
    small = dict.fromkeys(LEFT, 1500)
    a = make(heard=both("b"), addresses=on(10), stored=NVIDIA_FILE, mtu=small)
    b = make(heard=both("a"), addresses=on(11), stored=NVIDIA_FILE, mtu=small)
    plan = fabric.plan({"a": a, "b": b})
    assert plan["ready"] and rules(plan) == ["fabric.mtu_small"] and actions(plan) == ["keep", "keep"]
    assert plan["hosts"]["a"]["pings"][0]["size"] == 1472
    assert rules(fabric.plan({"a": a, "b": b}, fabric_layout.Settings(mtu=1500))) == []


def test_twins_in_one_subnet_are_named_and_migrated_when_asked(make: Make) -> None:
    """NVIDIA's set-up script does this: 192.168.0.1 to .4 in one /24."""
    wrong = [{name: f"192.168.0.{2 * host + index}/24" for index, name in enumerate(LEFT, 1)} for host in (0, 1)]
    a = make(heard=both("b"), addresses=wrong[0], stored=NVIDIA_FILE)
    b = make(heard=both("a"), addresses=wrong[1], stored=NVIDIA_FILE)
    plan = fabric.plan({"a": a, "b": b})
    assert rules(plan) == ["fabric.same_subnet"] and actions(plan) == ["refuse", "refuse"] and not plan["ready"]
    text = message(plan, "fabric.same_subnet")
    assert "a: enp1s0f0np0 (192.168.0.1/24) and enP2p1s0f0np0 (192.168.0.2/24) share the subnet" in text
    assert "NVIDIA's cluster set-up script" in text
    assert plan["hosts"]["a"]["environment"]["mp"] == {}
    plan = fabric.plan({"a": a, "b": b}, fabric_layout.Settings(migrate=True))
    assert actions(plan) == ["migrate", "migrate"]
    assert [rail["address"] for rail in plan["hosts"]["b"]["rails"]] == ["192.168.100.11/24", "192.168.101.11/24"]
    assert plan["hosts"]["a"]["set_aside"] == []  # the file of that name is replaced, a copy is kept
    assert plan["hosts"]["a"]["restore"] == []  # the file brings its addresses back


def test_link_local_addresses_are_no_layout(make: Make) -> None:
    """NVIDIA's example asset: link-local: [ipv4] on each interface."""
    local = [{name: f"169.254.{index}.{host}/16" for index, name in enumerate(LEFT)} for host in (1, 2)]
    a, b = (make(heard=both("ba"[n]), addresses=local[n], stored=NVIDIA_FILE) for n in (0, 1))
    plan = fabric.plan({"a": a, "b": b})
    assert rules(plan) == ["fabric.same_subnet"] and "link-local example" in message(plan, "fabric.same_subnet")
    assert actions(plan) == ["refuse", "refuse"]
    del local[0]["enP2p1s0f0np0"]
    plan = fabric.plan({"a": make(heard=both("b"), addresses=local[0]), "b": b})
    assert "fabric.link_local" in rules(plan, "error")


def test_an_address_that_only_nmcli_has_is_gone_after_a_reboot(make: Make) -> None:
    volatile = {
        f"run/NetworkManager/system-connections/{name}.nmconnection": f"[connection]\ninterface-name={name}\n"
        for name in LEFT
    }
    a = make(heard=both("b"), addresses=on(10), stored=volatile)
    b = make(heard=both("a"), addresses=on(11), stored=NVIDIA_FILE)
    plan = fabric.plan({"a": a, "b": b})
    assert plan["ready"] and actions(plan) == ["keep", "keep"]
    assert rules(plan, "warning") == ["fabric.volatile"]
    assert "nmcli keeps it in /run/NetworkManager" in message(plan, "fabric.volatile")
    plan = fabric.plan({"a": a, "b": b}, fabric_layout.Settings(migrate=True))
    assert actions(plan) == ["migrate", "keep"] and len(plan["hosts"]["a"]["set_aside"]) == 2
    assert ["ip", "addr", "replace", "192.168.100.10/24", "dev", "enp1s0f0np0"] in plan["hosts"]["a"]["restore"]
    assert plan["hosts"]["a"]["rails"][0]["address"] == "192.168.100.10/24"


def test_a_bond_is_refused_even_when_asked_to_migrate(make: Make) -> None:
    hosts = {"a": make(heard=both("b"), addresses={}), "b": make(heard=both("a"), addresses=on(11))}
    for netdev in hosts["a"]["fabric"]["ports"][0]["netdevs"]:
        netdev["master"] = "bond0"
    plan = fabric.plan(hosts, fabric_layout.Settings(migrate=True))
    assert "fabric.bond" in rules(plan, "error") and actions(plan)[0] == "refuse" and not plan["ready"]
    assert "are part of bond0" in message(plan, "fabric.bond")


def test_one_twin_in_a_bond_is_enough_to_be_refused(make: Make) -> None:
    hosts = {"a": make(heard=both("b")), "b": make(heard=both("a"))}
    hosts["a"]["fabric"]["ports"][0]["netdevs"][1]["master"] = "bond0"
    plan = fabric.plan(hosts, fabric_layout.Settings(migrate=True))
    assert actions(plan) == ["refuse", "refuse"] and "is part of bond0" in message(plan, "fabric.bond")


def test_who_repairs_depends_on_whose_network_it_is(make: Make) -> None:
    small = {"enp1s0f0np0": 1500}
    a = make(heard=both("b"), addresses=on(10), stored=OUR_FILE, mtu=small)
    ours = make(heard=both("a"), addresses=on(10), stored=OUR_FILE)
    theirs = make(heard=both("a"), addresses=on(10), stored=NVIDIA_FILE)
    assert "The role fabric does it." in message(fabric.plan({"a": a, "b": ours}), "fabric.duplicate_address")
    assert "fabric_migrate: true" in message(fabric.plan({"a": a, "b": theirs}), "fabric.duplicate_address")


def test_crossed_subnets_and_one_address_twice(make: Make) -> None:
    crossed = dict(zip(LEFT, reversed(on(11).values())))
    a, b = make(heard=both("b"), addresses=on(10)), make(heard=both("a"), addresses=crossed)
    assert "fabric.subnets_differ" in rules(fabric.plan({"a": a, "b": b}), "error")
    b = make(heard=both("a"), addresses=on(10))
    plan = fabric.plan({"a": a, "b": b})
    assert "fabric.duplicate_address" in rules(plan, "error")
    assert "all have 192.168.100.10" in message(plan, "fabric.duplicate_address")


def test_a_subnet_of_the_management_network(make: Make) -> None:
    a = make(heard=both("b"), addresses={"enp1s0f0np0": "10.0.0.77/24", "enP2p1s0f0np0": "192.168.101.10/24"})
    b = make(heard=both("a"), addresses={"enp1s0f0np0": "10.0.0.78/24", "enP2p1s0f0np0": "192.168.101.11/24"})
    plan = fabric.plan({"a": a, "b": b})
    assert "fabric.overlap" in rules(plan, "error") and "enP7s7 (10.0.0.1/24)" in message(plan, "fabric.overlap")


def test_addresses_other_than_the_inventory_gives(make: Make) -> None:
    hosts = {
        "a": make(heard=both("b"), addresses=on(10), stored=NVIDIA_FILE),
        "b": make(heard=both("a"), addresses=on(11), stored=NVIDIA_FILE),
    }
    plan = fabric.plan(hosts, fabric_layout.Settings(subnets=("10.1.0.0/24", "10.2.0.0/24")))
    assert rules(plan) == ["fabric.other_address"] and actions(plan) == ["refuse", "refuse"]
    plan = fabric.plan(hosts, fabric_layout.Settings(subnets=("10.1.0.0/24", "10.2.0.0/24"), migrate=True))
    assert plan["hosts"]["a"]["rails"][0]["address"] == "10.1.0.10/24"


def test_a_file_that_configures_other_interfaces_too_is_not_replaced(make: Make) -> None:
    shared = {"etc/netplan/01-all.yaml": "network: {ethernets: {enP7s7: {}, enp1s0f0np0: {}, enP2p1s0f0np0: {}}}\n"}
    same = {name: f"192.168.0.{index}/24" for index, name in enumerate(LEFT, 1)}
    a = make(heard=both("b"), addresses=same, stored=shared)
    b = make(heard=both("a"), addresses=on(11), stored=NVIDIA_FILE)
    plan = fabric.plan({"a": a, "b": b}, fabric_layout.Settings(migrate=True))
    assert "fabric.shared_file" in rules(plan, "error") and actions(plan)[0] == "refuse"
    assert message(plan, "fabric.shared_file").startswith("a: /etc/netplan/01-all.yaml configures QSFP interfaces")
    assert plan["hosts"]["a"]["netplan"] == {}


def test_a_file_that_was_not_applied_is_named(make: Make) -> None:
    plan = fabric.plan({"a": make(heard=both("b"), stored=NVIDIA_FILE), "b": make(heard=both("a"))})
    assert actions(plan) == ["refuse", "refuse"] and "/etc/netplan/40-cx7.yaml" in message(plan, "fabric.foreign_file")


def test_two_files_about_one_interface(make: Make) -> None:
    second = {"etc/netplan/90-x.yaml": "network: {ethernets: {enp1s0f0np0: {}}}\n"}
    a = make(heard=both("b"), addresses=on(10), stored={**OUR_FILE, **second})
    b = make(heard=both("a"), addresses=on(11), stored=OUR_FILE)
    plan = fabric.plan({"a": a, "b": b})
    assert "90-x.yaml" in message(plan, "fabric.defined_twice") and not plan["ready"]


@pytest.mark.parametrize("both_have", [True, False])
def test_of_several_addresses_the_one_in_the_subnet_of_the_others_is_taken(make: Make, both_have: bool) -> None:
    more = [{name: [f"10.7.{index}.{host}/24", on(host)[name]] for index, name in enumerate(LEFT)} for host in (10, 11)]
    a = make(heard=both("b"), addresses=more[0] if both_have else on(10), stored=OUR_FILE)
    plan = fabric.plan({"a": a, "b": make(heard=both("a"), addresses=more[1], stored=OUR_FILE)})
    assert plan["ready"] and rules(plan) == ["fabric.several_addresses"]
    assert "10.7.0.11/24 and 192.168.100.11/24; 192.168.100.11/24 is taken" in str(plan["findings"])
    assert plan["hosts"]["b"]["environment"]["mp"]["VLLM_HOST_IP"] == "192.168.100.11"
    assert plan["hosts"]["b"]["apply"] is False


def test_a_host_that_joins_gets_an_address_of_the_subnets_in_use(make: Make) -> None:
    a = make(heard=both("b"), addresses=on(11), stored=NVIDIA_FILE)
    plan = fabric.plan({"a": a, "b": make(heard=both("a"))})
    assert actions(plan) == ["keep", "configure"] and not plan["ready"]
    # .11 would be the second host's, and is taken.
    assert [rail["address"] for rail in plan["hosts"]["b"]["rails"]] == ["192.168.100.12/24", "192.168.101.12/24"]


def test_one_twin_without_an_address_is_half_the_speed(make: Make) -> None:
    first = [{"enp1s0f0np0": f"192.168.100.{host}/24"} for host in (10, 11)]
    hosts = {
        "a": make(heard=both("b"), addresses=first[0], stored=NVIDIA_FILE),
        "b": make(heard=both("a"), addresses={**on(11)}, stored=NVIDIA_FILE),
    }
    plan = fabric.plan(hosts)
    assert plan["ready"] and rules(plan) == ["fabric.half"] and actions(plan) == ["keep", "keep"]
    assert plan["hosts"]["a"]["environment"]["mp"]["NCCL_IB_HCA"] == "rocep1s0f0"
    plan = fabric.plan(hosts, fabric_layout.Settings(migrate=True))
    assert actions(plan) == ["migrate", "keep"]
    assert plan["hosts"]["a"]["rails"][1]["address"] == "192.168.101.10/24"


# --- hardware


def test_no_card_means_no_cable(make: Make) -> None:
    plan = fabric.plan({"a": make(card=False), "b": make(up=())})
    assert rules(plan) == ["fabric.no_connectx", "fabric.no_link"] and plan["topology"] == "none"
    assert "no QSFP cable is plugged in" in message(plan, "fabric.no_connectx")
    assert actions(plan) == ["keep", "keep"] and plan["rails"] == [] and not plan["ready"]


def test_a_link_that_came_up_slow(make: Make) -> None:
    pci = "sys/devices/pci0002:01/0002:01:00.0"
    files = {
        f"{pci}/current_link_width": "2\n",
        f"{pci}/net/enP2p1s0f0np0/speed": "100000\n",
        "sys/devices/pci0000:01/0000:01:00.0/infiniband/rocep1s0f0/ports/1/state": "1: DOWN\n",
    }
    plan = fabric.plan({"a": make(heard=both("b"), files=files, addresses=on(10)), "b": make(heard=both("a"))})
    assert rules(plan, "warning") == ["fabric.slow_link", "fabric.slow_pcie", "fabric.volatile"]
    assert "enP2p1s0f0np0 runs at 100 Gb/s instead of 200" in message(plan, "fabric.slow_link")
    assert "32 GT/s x2 instead of 32 GT/s x4" in message(plan, "fabric.slow_pcie")
    assert "rocep1s0f0 is DOWN" in message(plan, "fabric.rdma_down")


def test_a_pcie_link_that_says_only_half(make: Make) -> None:
    pci = "sys/devices/pci0002:01/0002:01:00.0"
    files = {f"{pci}/current_link_width": "2\n", f"{pci}/current_link_speed": "Unknown\n"}
    plan = fabric.plan({"a": make(heard=both("b"), files=files), "b": make(heard=both("a"))})
    assert "? GT/s x2 instead of 32 GT/s x4" in message(plan, "fabric.slow_pcie")


def test_a_twin_that_is_down(make: Make) -> None:
    a, b = make(up=LEFT[:1], heard=both("b", LEFT[:1])), make(heard=both("a", LEFT, LEFT[:1]))
    plan = fabric.plan({"a": a, "b": b})
    assert rules(plan) == ["fabric.interface_down"] and len(plan["rails"]) == 1


def test_an_address_needs_its_gid_and_no_index_is_stored(make: Make) -> None:
    port = "sys/devices/pci0000:01/0000:01:00.0/infiniband/rocep1s0f0/ports/1"
    local = {f"{port}/gids/0": "fe80:0:0:0:3e6d:66ff:fecc:b3b7\n", f"{port}/gid_attrs/types/0": "RoCE v2\n"}
    late = {f"{port}/gids/5": "0:0:0:0:0:ffff:c0a8:640a\n", f"{port}/gid_attrs/types/5": "RoCE v2\n"}
    b = make(heard=both("a"), addresses=on(11), stored=NVIDIA_FILE)
    a = make(heard=both("b"), addresses=on(10), stored=NVIDIA_FILE, files=local)
    assert "no RoCE v2 GID for 192.168.100.10" in message(fabric.plan({"a": a, "b": b}), "fabric.no_gid")
    a = make(heard=both("b"), addresses=on(10), stored=NVIDIA_FILE, files={**local, **late})
    plan = fabric.plan({"a": a, "b": b})
    assert rules(plan) == []
    assert not any("GID_INDEX" in name for name in plan["hosts"]["a"]["environment"]["ray"])


# --- cables


def test_a_cable_in_different_cages(make: Make) -> None:
    a = make(heard=both("b", LEFT, RIGHT), addresses=on(10), stored=NVIDIA_FILE)
    right = {FILE: NVIDIA_FILE[FILE].replace("f0np0", "f1np1")}
    b = make(up=RIGHT, heard=both("a", RIGHT, LEFT), addresses=on(11, RIGHT), stored=right)
    plan = fabric.plan({"a": a, "b": b})
    assert plan["ready"] and rules(plan) == ["fabric.unequal_cages"]
    first, second = (plan["hosts"][name]["environment"] for name in "ab")
    assert first["mp"]["NCCL_IB_HCA"] == "rocep1s0f0,roceP2p1s0f0"
    assert second["mp"]["NCCL_IB_HCA"] == "rocep1s0f1,roceP2p1s0f1"
    assert second["mp"]["NCCL_SOCKET_IFNAME"] == "enp1s0f1np1" and "NCCL_IB_HCA" in second["per_host"]


def test_nothing_heard_falls_back_to_what_answered(make: Make) -> None:
    neighbours = [{"dst": "192.168.100.11", "dev": "enp1s0f0np0", "lladdr": mac(2, 1), "state": ["REACHABLE"]}]
    plan = fabric.plan({"a": make(up=LEFT + RIGHT, neighbours=neighbours), "b": make(up=LEFT + RIGHT)})
    assert [end["cage"] for end in plan["rails"][0]["ends"].values()] == [0, 1]


def test_nothing_tried_out_is_assumed_and_said(make: Make) -> None:
    plan = fabric.plan({"a": make(), "b": make(up=RIGHT)})
    assert [end["netdev"] for end in plan["rails"][1]["ends"].values()] == ["enP2p1s0f0np0", "enP2p1s0f1np1"]
    assert "fabric.assumed" in rules(plan, "info")
    plan = fabric.plan({"a": make(up=LEFT + RIGHT), "b": make(up=LEFT + RIGHT)})
    assert len(plan["rails"]) == 4
    plan = fabric.plan({name: make(up=LEFT + RIGHT) for name in "abc"})
    assert plan["topology"] == "ring" and rules(plan) == ["fabric.assumed"]  # one cable each would do for a switch
    plan = fabric.plan({name: make() for name in "abc"})
    assert plan["topology"] == "switch"


def test_a_ring_that_nobody_has_listened_to_yet_is_planned_by_its_addresses(make: Make) -> None:
    """After a boot: units must not be written for another network than the present one."""
    hosts = ring(make, addresses=True)
    tried = fabric.plan(hosts)
    silent = fabric.plan({name: {**entry, "heard": None} for name, entry in hosts.items()})
    assert "fabric.not_joined" in rules(silent, "error")  # listened, and heard nothing
    for entry in hosts.values():
        del entry["heard"]
    unheard = fabric.plan(hosts)
    assert unheard["topology"] == "ring" and rules(unheard) == ["fabric.assumed"]
    assert {name: host["environment"] for name, host in unheard["hosts"].items()} == {
        name: host["environment"] for name, host in tried["hosts"].items()
    }


def test_tried_out_and_not_heard_is_not_joined(make: Make) -> None:
    plan = fabric.plan({"a": make(heard=[]), "b": make(heard=[])})
    assert plan["topology"] == "none" and rules(plan, "error") == ["fabric.not_joined"]
    assert "joins a with b" in message(plan, "fabric.not_joined")


def test_two_cables_make_four_rails(make: Make) -> None:
    up = LEFT + RIGHT
    a = make(up=up, heard=both("b") + both("b", RIGHT, RIGHT))
    b = make(up=up, heard=both("a") + both("a", RIGHT, RIGHT))
    plan = fabric.plan({"a": a, "b": b})
    assert plan["topology"] == "direct" and len({rail["subnet"] for rail in plan["rails"]}) == 4
    assert rules(plan) == ["fabric.second_cable"]


def test_a_switch_is_one_segment(make: Make) -> None:
    names = ["a", "b", "c", "d"]
    hosts = {name: make(heard=[link for other in names if other != name for link in both(other)]) for name in names}
    plan = fabric.plan(hosts)
    assert plan["topology"] == "switch" and len(plan["rails"]) == 2
    assert [end["address"] for end in plan["rails"][1]["ends"].values()] == [
        f"192.168.101.{n}/24" for n in range(10, 14)
    ]


def test_a_pair_on_a_switch_shows_by_its_second_cage_or_by_strangers(make: Make) -> None:
    up = LEFT + RIGHT
    a = make(up=up, heard=both("b", up, up) + both("a", LEFT, RIGHT))
    plan = fabric.plan({"a": a, "b": make(up=up, heard=both("a", up, up))})
    assert plan["topology"] == "switch" and len(plan["rails"]) == 4
    plan = fabric.plan({"a": make(heard=both("b") + both("stranger")), "b": make(heard=both("a"))})
    assert plan["topology"] == "switch"
    plan = fabric.plan(
        {"a": make(heard=both("b")), "b": make(heard=both("a"))}, fabric_layout.Settings(topology="switch")
    )
    assert plan["topology"] == "switch"


def ring(make: Make, addresses: bool = False) -> dict[str, Any]:
    """Three cables, each from the left cage of one to the right cage of the next."""
    names = ["a", "b", "c"]
    hosts = {}
    for index, name in enumerate(names):
        following, before = names[(index + 1) % 3], names[index - 1]
        addresses_of_host = {
            **{dev: f"10.{index}.{interface}.1/24" for interface, dev in enumerate(LEFT)},
            **{dev: f"10.{(index - 1) % 3}.{interface}.2/24" for interface, dev in enumerate(RIGHT)},
        }
        addresses_of_host = {
            dev: address.replace("10.0.", "10.3.") for dev, address in addresses_of_host.items()
        }  # 10.0.0 is the management network
        hosts[name] = make(
            up=LEFT + RIGHT,
            heard=both(following, LEFT, RIGHT) + both(before, RIGHT, LEFT),
            addresses=addresses_of_host if addresses else {},
            stored={FILE: NVIDIA_FILE[FILE] + "    enp1s0f1np1: {mtu: 9000}\n    enP2p1s0f1np1: {mtu: 9000}\n"}
            if addresses
            else {},
        )
    return hosts


def test_a_ring_of_three(make: Make) -> None:
    plan = fabric.plan(ring(make))
    assert plan["topology"] == "ring" and rules(plan) == [] and len(plan["rails"]) == 6
    assert len({rail["subnet"] for rail in plan["rails"]}) == 6
    assert all(len(host["netplan"]["network"]["ethernets"]) == 4 for host in plan["hosts"].values())


def test_engines_on_a_ring_start_over_the_management_network(make: Make) -> None:
    plan = fabric.plan(ring(make, addresses=True))
    assert plan["ready"] and plan["findings"] == []
    env = plan["hosts"]["b"]["environment"]["mp"]
    assert (env["VLLM_HOST_IP"], env["NCCL_SOCKET_IFNAME"]) == ("10.0.0.2", "enP7s7")
    assert env["NCCL_IB_HCA"].count("roce") == 4
    assert (env["NCCL_IB_MERGE_NICS"], env["NCCL_IB_SUBNET_AWARE_ROUTING"], env["NCCL_NET_PLUGIN"]) == (
        "0",
        "1",
        "none",
    )


def test_a_ring_that_is_cabled_left_to_left(make: Make) -> None:
    hosts = ring(make)
    hosts["a"]["heard"] = both("b", LEFT, LEFT) + both("c", RIGHT, LEFT)
    hosts["b"]["heard"] = both("a", LEFT, LEFT) + both("c", RIGHT, RIGHT)
    hosts["c"]["heard"] = both("b", RIGHT, RIGHT) + both("a", LEFT, RIGHT)
    plan = fabric.plan(hosts)
    assert plan["topology"] == "ring"
    assert "between a and b joins cage 0 with cage 0" in message(plan, "fabric.ring_cabling")
    assert "the plugs of b port 0 and b port 1 are exchanged" in message(plan, "fabric.ring_cabling")


def test_three_with_a_cable_twice_are_no_ring(make: Make) -> None:
    up = LEFT + RIGHT
    hosts = {
        "a": make(up=up, heard=both("b", LEFT, LEFT) + both("b", RIGHT, RIGHT)),
        "b": make(up=up, heard=both("a", LEFT, LEFT) + both("a", RIGHT, RIGHT)),
        "c": make(heard=[]),
    }
    plan = fabric.plan(hosts)
    assert plan["topology"] == "none"
    assert "a with c and b with c" in message(plan, "fabric.not_joined")


def test_what_an_interface_says_that_the_host_does_not_show_is_left_out(make: Make) -> None:
    a = make(heard=both("b") + heard(("enp1s0f0np0", "b", "enp1s0f1np1"), ("gone", "b", "enp1s0f0np0")))
    plan = fabric.plan({"a": a, "b": make(heard=[])})
    assert plan["topology"] == "direct" and len(plan["rails"]) == 2


def test_three_in_a_row_are_a_line(make: Make) -> None:
    hosts = {
        "a": make(heard=both("b")),
        "b": make(up=LEFT + RIGHT, heard=both("a") + both("c", RIGHT, LEFT)),
        "c": make(heard=both("b", LEFT, RIGHT)),
    }
    plan = fabric.plan(hosts)
    assert plan["topology"] == "line" and "a line of a, b and c" in message(plan, "fabric.line")
    assert "b port 0 belongs into a port 1" in message(plan, "fabric.line")


# --- environment


def test_environment_of_a_pair(make: Make) -> None:
    a = make(heard=both("b"), addresses=on(10), stored=NVIDIA_FILE)
    b = make(heard=both("a"), addresses=on(11), stored=NVIDIA_FILE)
    env = fabric.plan({"a": a, "b": b})["hosts"]["b"]["environment"]
    assert env["mp"] == {
        "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        "MN_IF_NAME": "enp1s0f0np0",
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0",
        "NCCL_IB_MERGE_NICS": "1",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
        "OMPI_MCA_btl_tcp_if_include": "enp1s0f0np0",
        "TP_SOCKET_IFNAME": "enp1s0f0np0",
        "UCX_NET_DEVICES": "enp1s0f0np0",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1800",
        "VLLM_HOST_IP": "192.168.100.11",
    }
    assert set(env["ray"]) - set(env["mp"]) == {
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
        "RAY_NODE_IP_ADDRESS",
        "RAY_OVERRIDE_NODE_IP_ADDRESS",
        "RAY_memory_monitor_refresh_ms",
    }
    assert env["ray"]["RAY_NODE_IP_ADDRESS"] == env["mp"]["VLLM_HOST_IP"]
    # What differs by host must not be copied from the head, and everything has its source.
    assert {"NCCL_IB_HCA", "VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "RAY_NODE_IP_ADDRESS"} <= set(env["per_host"])
    assert "NCCL_IB_DISABLE" not in env["per_host"]
    assert set(env["sources"]) == set(env["ray"]) and all(env["sources"].values())


def carried_out(hosts: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """Return the hosts after the plan was carried out."""
    after = copy.deepcopy(hosts)
    for name, entry in after.items():
        ethernets = plan["hosts"][name]["netplan"].get("network", {}).get("ethernets", {})
        for netdev in (interface for port in entry["fabric"]["ports"] for interface in port["netdevs"]):
            if netdev["name"] in ethernets:
                ethernet = ethernets[netdev["name"]]
                ours = {"path": fabric_layout.NETPLAN_FILE, "persistent": True, "alone": True, "managed": True}
                netdev.update(addresses=ethernet["addresses"], mtu=ethernet["mtu"], stored=[ours])
    return after


def wrong_pair(make: Make, *addresses: Any, **entry: Any) -> dict[str, Any]:
    return {
        name: make(heard=both("ba"[index]), addresses=addresses[index], stored=NVIDIA_FILE, **entry)
        for index, name in enumerate("ab")
    }


STARTS: dict[str, Callable[[Make], dict[str, Any]]] = {
    "bare": lambda make: {"a": make(heard=both("b")), "b": make(heard=both("a"))},
    "bare, nobody listened": lambda make: {"a": make(), "b": make(up=RIGHT)},
    "adopted": lambda make: wrong_pair(make, on(10, first=30), on(11, first=30)),
    "interfaces in one subnet": lambda make: wrong_pair(
        make, *({name: f"192.168.0.{2 * host + index}/24" for index, name in enumerate(LEFT)} for host in (1, 2))
    ),
    "ends in different subnets": lambda make: wrong_pair(make, on(10), on(11, first=50)),
    "one address twice": lambda make: wrong_pair(make, on(10), on(10)),
    "half": lambda make: wrong_pair(make, {LEFT[0]: "192.168.100.10/24"}, {LEFT[0]: "192.168.100.11/24"}),
    "another MTU": lambda make: wrong_pair(make, on(10), on(11), mtu={LEFT[0]: 1500}),
    "one that joins": lambda make: {
        "a": make(heard=both("b"), addresses=on(7, first=30), stored=OUR_FILE),
        "b": make(heard=both("a")),
    },
    "two cables": lambda make: {
        name: make(up=LEFT + RIGHT, heard=both(other) + both(other, RIGHT, RIGHT)) for name, other in ("ab", "ba")
    },
    "ring": ring,
}


@pytest.mark.parametrize("start", STARTS)
def test_what_engines_are_told_is_the_same_before_and_after(make: Make, start: str) -> None:
    """Units are planned from it, and a unit that changes restarts an engine."""
    hosts = STARTS[start](make)
    settings = fabric_layout.Settings(migrate=True)
    before = fabric.plan(hosts, settings)
    assert not {"refuse"} & set(actions(before))
    after = fabric.plan(carried_out(hosts, before), settings)
    assert after["ready"] and rules(after, "error") == []
    for name in hosts:
        result = [{key: plan["hosts"][name][key] for key in ENGINES} for plan in (before, after)]
        assert result[0] == result[1]
        assert result[0]["address"] == result[0]["environment"]["mp"]["VLLM_HOST_IP"] != ""
        assert result[0]["netdev"] == result[0]["environment"]["mp"]["NCCL_SOCKET_IFNAME"] != ""


ENGINES = ("address", "netdev", "environment", "firewall")


def test_a_bare_pair_is_told_what_it_is_going_to_have(make: Make) -> None:
    plan = fabric.plan({"a": make(heard=both("b")), "b": make(up=RIGHT, heard=both("a", RIGHT, LEFT))})
    b = plan["hosts"]["b"]
    assert (b["address"], b["netdev"]) == ("192.168.100.11", "enp1s0f1np1")
    assert b["environment"]["mp"]["NCCL_IB_HCA"] == "rocep1s0f1,roceP2p1s0f1"
    assert b["firewall"] == {
        "fabric": ["enP2p1s0f1np1", "enp1s0f1np1"],
        "peers": ["192.168.100.0/24", "192.168.101.0/24"],
    }


@pytest.mark.parametrize("start", ["interfaces in one subnet", "ends in different subnets", "one address twice"])
def test_engines_are_told_nothing_while_the_network_stays_wrong(make: Make, start: str) -> None:
    plan = fabric.plan(STARTS[start](make))
    assert "refuse" in actions(plan)
    for host in plan["hosts"].values():
        assert (host["address"], host["netdev"], host["environment"]["mp"]) == ("", "", {})
        assert host["firewall"] == {"fabric": [], "peers": []}


def test_engines_are_told_of_the_rail_that_is_right_beside_one_that_is_kept_bare(make: Make) -> None:
    plan = fabric.plan(STARTS["half"](make))
    assert actions(plan) == ["keep", "keep"] and rules(plan) == []
    a = plan["hosts"]["a"]
    assert (a["address"], a["environment"]["mp"]["NCCL_IB_HCA"]) == ("192.168.100.10", "rocep1s0f0")
    assert a["firewall"] == {"fabric": [LEFT[0]], "peers": ["192.168.100.0/24"]}


def test_the_firewall_of_a_ring_lets_the_peers_in_by_the_management_network(make: Make) -> None:
    """Engines start over it; nobody else on it is let in."""
    firewall = fabric.plan(ring(make))["hosts"]["a"]["firewall"]
    assert firewall["fabric"] == sorted(["enP7s7", *LEFT, *RIGHT])
    assert firewall["peers"][:2] == ["10.0.0.2", "10.0.0.3"] and len(firewall["peers"]) == 2 + 4


def test_a_device_that_is_not_active_is_left_out(make: Make) -> None:
    state = "sys/devices/pci0002:01/0002:01:00.0/infiniband/roceP2p1s0f0/ports/1/state"
    a = make(heard=both("b"), addresses=on(10), stored=NVIDIA_FILE, files={state: "1: DOWN\n"})
    plan = fabric.plan({"a": a, "b": make(heard=both("a"), addresses=on(11), stored=NVIDIA_FILE)})
    assert plan["hosts"]["a"]["environment"]["mp"]["NCCL_IB_HCA"] == "rocep1s0f0"
    assert rules(plan, "error") == ["fabric.rdma_down"]


# --- pings, probes of the bandwidth


def test_probes_of_the_bandwidth(make: Make) -> None:
    a = make(heard=both("b"), addresses=on(10), stored=NVIDIA_FILE)
    b = make(heard=both("a"), addresses=on(11), stored=NVIDIA_FILE)
    plan = fabric.plan({"a": a, "b": b})
    assert fabric_bandwidth.bandwidth_tests(plan, {"a": ["iperf3"], "b": ["ib_write_bw"]}) == []
    first, second = fabric_bandwidth.bandwidth_tests(
        plan, {"a": ["iperf3", "ib_write_bw"], "b": ["iperf3", "ib_write_bw"]}
    )
    assert (first["tool"], first["server"], first["client"], second["rail"]) == ("ib_write_bw", "a", "b", "rail1")
    assert first["topology"] == "direct"
    assert first["send"][-1] == "192.168.100.10" and "rocep1s0f0" in first["listen"]
    messages, size = (int(first["send"][first["send"].index(option) + 1]) for option in ("-n", "-s"))
    assert messages * size == 1 << 30
    send = fabric_bandwidth.bandwidth_tests(plan, {"a": ["iperf3"], "b": ["iperf3"]})[1]["send"]
    assert send[send.index("-n") + 1] == str(1 << 30) and send[send.index("-c") + 1] == "192.168.101.10"


IB_OUT = """ #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]    MsgRate[Mpps]
 65536      882805           0.00               92.57                0.176554
"""


def test_figures_of_probes() -> None:
    assert fabric_bandwidth.parse_bandwidth("ib_write_bw", IB_OUT) == 92.57
    assert (
        fabric_bandwidth.parse_bandwidth("iperf3", '{"end": {"sum_received": {"bits_per_second": 13230000000.0}}}')
        == 13.23
    )
    assert fabric_bandwidth.parse_bandwidth("iperf3", "iperf3: error") is None
    assert fabric_bandwidth.parse_bandwidth("ib_write_bw", "Couldn't connect") is None


def test_probes_are_judged() -> None:
    way = {"rail": "rail0", "tool": "ib_write_bw", "server": "a", "client": "b", "error": ""}
    assert [finding.rule for finding in fabric_bandwidth.judge_bandwidth([], {})] == ["fabric.no_probe"]
    least = {"ib_write_bw": 80.0}
    assert not list(fabric_bandwidth.judge_bandwidth([{**way, "gbps": 92.57}], least))
    (slow,) = fabric_bandwidth.judge_bandwidth([{**way, "gbps": 13.23}], least)
    assert slow.rule == "fabric.slow" and "rail0: b to a: 13.23 Gb/s by ib_write_bw, less than 80" in slow.message
    assert "the card came up degraded" in slow.fix and "switch" not in slow.fix
    (switched,) = fabric_bandwidth.judge_bandwidth([{**way, "topology": "switch", "gbps": 4.9}], least)
    assert [word in switched.fix for word in ("one bridge", "RSTP", "shaper", "degraded")] == [True] * 4
    (failed,) = fabric_bandwidth.judge_bandwidth([{**way, "gbps": None, "error": "refused"}], least)
    assert failed.rule == "fabric.probe_failed" and "refused" in failed.message


def test_findings_as_lines() -> None:
    result = [*fabric_bandwidth.judge_bandwidth([], {}), *fabric.judge_hardware("a", {"connectx": False})]
    first, second = fabric.lines(finding.to_dict() for finding in result)
    assert first.startswith("error fabric.no_connectx: a: ") and second.startswith("info fabric.no_probe: ")


@pytest.mark.parametrize(("refused", "code"), [("", 0), ("lo", 1)])
def test_what_is_put_back_leaves_out_interfaces_that_are_off_the_bus(tmp_path: Path, refused: str, code: int) -> None:
    """A ConnectX-7 goes off the bus when its last cable does; nothing else of a reset may fail by that."""
    commands = [
        [*("ip", "-4", "addr", "flush", "dev"), name, "scope", "global"] for name in ("gone0", "lo", "gone1")
    ] + [["ip", "addr", "replace", "10.0.0.1/24", "dev", name] for name in ("lo", "gone0")]
    (tmp_path / "restore").write_text(render_template("fabric/restore.sh.j2", {"__fabric_own": {"restore": commands}}))
    (tmp_path / "ip").write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncase "$*" in *flush*{refused or "nothing"}*) exit 2 ;; esac\n'
    )
    (tmp_path / "ip").chmod(0o755)
    ran = subprocess.run(["/bin/sh", str(tmp_path / "restore")], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False)
    assert ran.returncode == code
    assert (tmp_path / "asked").read_text().splitlines() == [
        "-4 addr flush dev lo scope global", "addr replace 10.0.0.1/24 dev lo"
    ]  # fmt: skip
