# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services over a part of a cluster: four hosts as one engine, or as two pairs in its place, in a ring and on a switch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_fixture import network
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import unit_files, verbs
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError

ROOT = Path(__file__).parents[5]
HOSTS = ["s1", "s2", "s3", "s4"]
MODEL = {"recipe": "qwen3-4b-instruct-2507", "exclusive": "shape", "args": {"gpu-memory-utilization": 0.3}}
BIG = {"name": "big", "port": 8000, **MODEL}
LEFT = {"name": "left", "port": 8001, "hosts": ["s1", "s2"], **MODEL}
RIGHT = {"name": "right", "port": 8001, "hosts": ["s3", "s4"], **MODEL}
ONE_CABLE = {name: {0} for name in HOSTS}


def inventory(topology: str, *services: dict[str, Any], **units: str) -> dict[str, Any]:
    """The hosts of an inventory. units: services that run, with the hosts that they run on."""
    body = {"name": "quad", "executor": "mp", "services": list(services)}
    planned = network(topology, HOSTS)
    return {
        name: {
            "vars": {"spark_cluster": body},
            "address": f"10.0.0.{number}",
            "measured": {
                "units": [
                    {"name": f"spark-{service}.service", "active_state": "active"}
                    for service, on in units.items()
                    if name in on.split()
                ]
            }
            if units
            else None,
            "images": {},
            "fabric": planned,
        }
        for number, name in enumerate(HOSTS, 1)
    }


def plan_of(topology: str, *services: dict[str, Any], **units: str) -> dict[str, Any]:
    return engine.make_plan(inventory(topology, *services, **units), RECIPES, groups={"quad": HOSTS, "sparks": HOSTS})


def ranks(plan: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    return {
        host: service for host, body in plan["hosts"].items() for service in body["services"] if service["name"] == name
    }


def option(service: dict[str, Any], name: str) -> str:
    words = service["argv"]
    return str(words[words.index(name) + 1])


def unreached(plan: dict[str, Any]) -> list[str]:
    return [finding["message"] for finding in plan["hosts"]["s1"]["findings"] if finding["rule"] == "cluster.unreached"]


@pytest.mark.parametrize(
    ("example", "group", "service", "topology", "devices"),
    [("ring4", "ring_a", "qwen235", "ring", 4), ("switch4", "switch_a", "qwen397", "switch", 2)],
)
def test_the_examples_of_four_on_their_cables(
    example: str, group: str, service: str, topology: str, devices: int
) -> None:
    """From bare hosts that have listened to the launch of each rank and the files to write; nothing is changed."""
    written = yaml.safe_load((ROOT / "inventories" / example / "hosts.yml").read_text(encoding="utf-8"))
    entry = written["sparks"]["children"][group]
    names = list(entry["hosts"])
    planned = network(topology, names)
    assert planned["topology"] == topology and [f for f in planned["findings"] if f["severity"] == "error"] == []
    hosts = {
        name: {
            "vars": {**entry["vars"], "spark_allow_moving": True},
            "address": f"192.168.1.1{number}",
            "measured": None,
            "images": {},
            "fabric": planned,
        }
        for number, name in enumerate(names, 1)
    }
    plan = engine.make_plan(hosts, RECIPES, groups={group: names, "sparks": names})
    assert [f for body in plan["hosts"].values() for f in body["findings"] if f["severity"] == "error"] == []
    for rank, name in enumerate(names):
        row = ranks(plan, service)[name]
        assert (row["rank"], option(row, "--nnodes"), option(row, "--tensor-parallel-size")) == (rank, "4", "4")
        assert len(row["env"]["NCCL_IB_HCA"].split(",")) == devices
        assert row["env"].get("NCCL_ALGO") == ("Ring" if topology == "ring" else None)
        assert row["env"]["VLLM_HOST_IP"] == (
            f"10.0.0.{rank + 1}" if topology == "ring" else f"192.168.100.{10 + rank}"
        )
        ethernets = planned["hosts"][name]["netplan"]["network"]["ethernets"]
        assert len(ethernets) == devices and {ethernet["mtu"] for ethernet in ethernets.values()} == {9000}
        assert plan["hosts"][name]["cluster"]["collective"]["service"] == service


def test_a_part_of_a_ring_is_a_pair_on_the_cable_between_its_hosts() -> None:
    plan = plan_of("ring", BIG, LEFT, RIGHT)
    right = ranks(plan, "right")
    assert list(right) == ["s3", "s4"] and [entry["rank"] for entry in right.values()] == [0, 1]
    assert {option(entry, "--nnodes") for entry in right.values()} == {"2"}
    assert {option(entry, "--tensor-parallel-size") for entry in right.values()} == {"2"}
    # The cable of the ring from port 0 of s3 into port 1 of s4.
    assert {option(entry, "--master-addr") for entry in right.values()} == {"192.168.103.12"}
    assert right["s3"]["env"]["NCCL_IB_HCA"] == "rocep1s0f0,roceP2p1s0f0"
    assert right["s4"]["env"]["NCCL_IB_HCA"] == "rocep1s0f1,roceP2p1s0f1"
    assert right["s4"]["env"]["GLOO_SOCKET_IFNAME"] == "enp1s0f1np1"
    assert "NCCL_ALGO" not in right["s3"]["env"] and right["s3"]["env"]["NCCL_IB_MERGE_NICS"] == "1"
    assert right["s3"]["url"] and not right["s4"]["url"]
    assert right["s3"]["settings"]["rank"]["peers"][0]["host"] == "s4"
    big = ranks(plan, "big")
    assert list(big) == HOSTS and big["s1"]["env"]["NCCL_ALGO"] == "Ring"
    assert unreached(plan) == []


def test_a_part_of_a_switch_keeps_its_addresses_and_has_the_settings_of_two() -> None:
    plan = plan_of("switch", BIG, LEFT, RIGHT)
    assert ranks(plan, "big")["s1"]["env"]["NCCL_NVLS_ENABLE"] == "0"
    right = ranks(plan, "right")
    assert "NCCL_NVLS_ENABLE" not in right["s3"]["env"]
    assert right["s3"]["env"]["VLLM_HOST_IP"] == ranks(plan, "big")["s3"]["env"]["VLLM_HOST_IP"]


@pytest.mark.parametrize(("topology", "hosts", "stopped"), [
    ("ring", ["s1", "s3"], True),
    ("ring", ["s1", "s2", "s3"], True),
    ("ring", ["s4", "s1"], False),
    ("switch", ["s1", "s3"], False),
    ("switch", ["s1", "s2", "s3"], False),
])  # fmt: skip
def test_hosts_that_no_cable_joins_are_no_part(topology: str, hosts: list[str], stopped: bool) -> None:
    part = {**LEFT, "hosts": hosts, "args": {"tensor-parallel-size": len(hosts)}}
    assert bool(unreached(plan_of(topology, BIG, part))) is stopped


def test_a_host_that_no_service_spans_is_named() -> None:
    with pytest.raises(InventoryError) as caught:
        plan_of("ring", LEFT)
    assert [message.partition(". ")[0] for message in caught.value.messages] == [
        "cluster quad: no service spans s3",
        "cluster quad: no service spans s4",
    ]


@pytest.mark.parametrize(
    ("hosts", "result"),
    [
        (["s1", "s9"], "'hosts' names s9, which the cluster does not have. It has s1, s2, s3, s4."),
        (["s1"], "'hosts' is s1; it must be two or more hosts of the cluster, each once."),
        (["s1", "s1"], "each once"),
        ("s1", "'hosts' is a text; it must be a list"),
    ],
)
def test_what_is_wrong_with_a_part_is_named(hosts: Any, result: str) -> None:
    with pytest.raises(InventoryError) as caught:
        plan_of("ring", {**LEFT, "hosts": hosts})
    assert any(result in message for message in caught.value.messages), caught.value.messages


def test_a_service_of_one_host_has_no_part() -> None:
    hosts = inventory("ring", BIG)
    hosts["s1"]["vars"]["spark_services"] = [{**LEFT, "name": "own", "port": 8005}]
    with pytest.raises(InventoryError) as caught:
        engine.make_plan(hosts, RECIPES, groups={"quad": HOSTS, "sparks": HOSTS})
    assert any("'hosts' is for services of spark_cluster" in message for message in caught.value.messages)


def test_two_pairs_may_have_one_port_and_one_head_may_not() -> None:
    plan_of("ring", LEFT, RIGHT)
    with pytest.raises(InventoryError) as caught:
        plan_of("ring", {**BIG, "port": 8001}, LEFT)
    assert "port 8001 is used on the head s1 already, by big" in "\n".join(caught.value.messages)


@pytest.mark.parametrize(
    ("units", "started"),
    [
        ({}, {"big"}),
        ({"big": "s1 s2 s3 s4"}, {"big"}),
        ({"left": "s1 s2", "right": "s3 s4"}, {"left", "right"}),
    ],
)
def test_four_as_one_or_two_pairs_run_and_never_both(units: dict[str, str], started: set[str]) -> None:
    plan = plan_of("ring", BIG, LEFT, RIGHT, **units)
    states = {(service["name"], service["state"]) for body in plan["hosts"].values() for service in body["services"]}
    assert states == {(name, "started" if name in started else "stopped") for name in ("big", "left", "right")}
    # Only one of the set is in memory at a time, so all three fit.
    assert not [f for body in plan["hosts"].values() for f in body["findings"] if f["rule"].startswith("memory.")
                and f["severity"] == "error"]  # fmt: skip


def test_a_swap_names_both_pairs_and_takes_whole_engines() -> None:
    plan = plan_of("ring", BIG, LEFT, RIGHT)
    result, wrong = verbs.select(plan["hosts"], HOSTS, ["left", "right"])
    assert (result, wrong) == ({"s1": ["left"], "s2": ["left"], "s3": ["right"], "s4": ["right"]}, [])
    _selected, wrong = verbs.select(plan["hosts"], ["s3"], ["right"])
    assert "leaves out s4" in wrong[0] and "s1" not in wrong[0]


def test_who_asks_for_a_part_comes_to_its_own_head() -> None:
    plan = plan_of("ring", BIG, LEFT, RIGHT)
    spans = {service["name"]: service["hosts"] for service in plan["clusters"]["quad"]["services"]}
    assert spans == {"big": HOSTS, "left": ["s1", "s2"], "right": ["s3", "s4"]}
    assert [host for host, entry in ranks(plan, "right").items() if entry["probe"]["url"]] == ["s3"]


def test_each_host_tests_the_network_with_the_engine_that_will_run_on_it() -> None:
    plan = plan_of("ring", BIG, LEFT, RIGHT)
    tests = {host: body["cluster"]["collective"] for host, body in plan["hosts"].items()}
    assert {(test["service"], tuple(test["hosts"])) for test in tests.values()} == {("big", tuple(HOSTS))}
    for number, host in enumerate(HOSTS):
        argv = tests[host]["argv"]
        assert tests[host]["host"] == host
        assert {f"RANK={number}", "WORLD_SIZE=4", "MASTER_ADDR=10.0.0.1", "NCCL_ALGO=Ring"} <= set(argv)
        assert ranks(plan, "big")[host]["image"]["run"] in argv
        # Nothing of the weights, of the keys or of the command of the engine.
        assert not [word for word in argv if word in ("serve", "--volume", "--mount", "--env-file")]
    plan = plan_of("ring", BIG, LEFT, RIGHT, left="s1 s2", right="s3 s4")
    assert [body["cluster"]["collective"]["service"] for body in plan["hosts"].values()] == ["left"] * 2 + ["right"] * 2
    assert "MASTER_ADDR=192.168.103.12" in plan["hosts"]["s4"]["cluster"]["collective"]["argv"]


def test_the_test_before_a_start_takes_the_nccl_of_its_engine() -> None:
    """A patched one by LD_PRELOAD and VLLM_NCCL_SO_PATH: its file is there before the test, and in its container."""
    library = "/opt/nccl/libnccl.so.2"
    env = {"LD_PRELOAD": library, "VLLM_NCCL_SO_PATH": library, "TORCH_USE_RTLD_GLOBAL": "1"}
    row = {
        **BIG,
        "files": [{"source": "libnccl.so.2", "path": library}],
        "env": env,
        "docker_args": ["--volume", "/opt/x:/opt/x"],
    }
    plan = engine.make_plan(
        inventory("ring", row), RECIPES, lambda path: "ab" * 32, groups={"quad": HOSTS, "sparks": HOSTS}
    )
    test = plan["hosts"]["s3"]["cluster"]["collective"]
    host = "/etc/dgxspark/files/big/abababababab-libnccl.so.2"
    assert test["files"] == [{"path": host, "source": "libnccl.so.2"}]
    assert [folder["path"] for folder in test["folders"]] == ["/etc/dgxspark/files/big"]
    assert {f"{name}={value}" for name, value in env.items()} <= set(test["argv"])
    assert f"type=bind,src={host},dst={library},readonly" in test["argv"] and "/opt/x:/opt/x" in test["argv"]
    # The role service finds what it would write itself.
    (service,) = plan["hosts"]["s3"]["services"]
    assert {"path": host, "source": "libnccl.so.2"} in unit_files.services([service], "dgxspark", "/srv/huggingface")[
        "files"
    ]
    assert "DGXSPARK_CABLES=0-1,1-2,2-3,0-3" in test["argv"] and test["topology"] == "ring"
    assert "DGXSPARK_CABLES=0-1,1-2,2-3" in plan_of("switch", BIG)["hosts"]["s1"]["cluster"]["collective"]["argv"]


def test_the_test_before_a_start_goes_round_as_the_cables_do() -> None:
    """In the order of these ranks each group of the engine is two neighbours; one group of all ranks in that order would not be."""
    split = {"tensor-parallel-size": 2, "pipeline-parallel-size": 2}
    turned = {**BIG, "hosts": HOSTS, "args": {**MODEL["args"], **split}}
    assert unreached(plan_of("ring", turned)) != []  # the stages of s1 and s3
    turned["hosts"] = ["s2", "s3", "s1", "s4"]
    plan = plan_of("ring", turned)
    assert unreached(plan) == [] and [entry["rank"] for entry in ranks(plan, "big").values()] == [2, 0, 1, 3]
    tests = {host: body["cluster"]["collective"] for host, body in plan["hosts"].items()}
    assert {tuple(test["hosts"]) for test in tests.values()} == {("s2", "s3", "s4", "s1")}
    assert {
        host: f"RANK={rank}" in tests[host]["argv"] for rank, host in enumerate(["s2", "s3", "s4", "s1"])
    } == dict.fromkeys(HOSTS, True)
    assert all("MASTER_ADDR=10.0.0.2" in test["argv"] for test in tests.values())


def test_supervisors_watch_the_cables_that_their_signs_of_life_do_not_take() -> None:
    plan = plan_of("ring", BIG, LEFT, RIGHT)
    assert ranks(plan, "big")["s1"]["settings"]["rank"]["links"] == [
        {"netdev": "enp1s0f0np0", "host": "s2"},
        {"netdev": "enP2p1s0f0np0", "host": "s2"},
        {"netdev": "enp1s0f1np1", "host": "s4"},
        {"netdev": "enP2p1s0f1np1", "host": "s4"},
    ]
    # A pair meets over its cable.
    assert "links" not in ranks(plan, "left")["s1"]["settings"]["rank"]
    assert "links" not in ranks(plan_of("switch", BIG), "big")["s1"]["settings"]["rank"]
