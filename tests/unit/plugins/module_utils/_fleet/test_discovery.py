# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finding Sparks, and the first inventory of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import discovery, first_inventory
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.discovery import Machine, Target
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.model_choice import Pick
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.model_table import Rate

PICK = Pick("qwen3.6-35b-a3b-nvfp4", 1, Rate(63.8, "published"), 21.9, ("chat",))


def netdev(name: str, mac: str, *neighbours: tuple[str, str]) -> dict[str, Any]:
    heard = [{"address": address, "mac": other} for address, other in neighbours]
    return {"name": name, "mac": mac, "up": True, "neighbours": heard, "addresses": []}


def facts(hostname: str = "spark-a", address: str = "192.168.1.11", **changes: Any) -> dict[str, Any]:
    port = {"cage": 0, "netdevs": [netdev("enp1s0f0np0", f"02:00:00:00:00:{address[-2:]}")]}
    return {
        "hostname": hostname,
        "management_address": address,
        "machine": {"is_spark": True, "product_name": "NVIDIA_DGX_Spark"},
        "fabric": {"ports": [port]},
        "gpu": {"driver_version": "580.95.05"},
        "memory": {"total_gib": 121.6, "available_gib": 115.0},
        **changes,
    }


def answers(**spark_answer: Any) -> dict[str, Any]:
    return {"reached": True, "answers": spark_answer}


def spark(address: str, **changes: Any) -> Machine:
    result = answers(spark={"spark": facts(address=address, **changes), "adoption": {"launches": []}})
    return discovery.read_machine(Target(address), result, {}, answers(probe={"cabling": {"heard": []}}))


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("spark-1", [("spark-1", "named", "", 0)]),
        ("me@spark-1.local:2222", [("spark-1.local", "named", "me", 2222)]),
        ("192.168.1.9-11", [(f"192.168.1.{last}", "range", "", 0) for last in (9, 10, 11)]),
        (
            "192.168.1.254-192.168.2.1",
            [(f"192.168.{last}", "range", "", 0) for last in ("1.254", "1.255", "2.0", "2.1")],
        ),
        ("192.168.1.0/30", [("192.168.1.1", "range", "", 0), ("192.168.1.2", "range", "", 0)]),
        ("fd00::1", [("fd00::1", "named", "", 0)]),
        (" a1 , a1,", [("a1", "named", "", 0)]),
    ],
)
def test_targets(text: str, outcome: list[tuple[str, str, str, int]]) -> None:
    targets, problems = discovery.read_targets([text])
    assert [(entry.address, entry.by, entry.user, entry.port) for entry in targets] == outcome and problems == []


@pytest.mark.parametrize(
    "text", ["10.0.0.0/8", "1.2.3.4-300", "1.2.3.9-4", "a b", "x:99999", "$(id)", "-oProxyCommand=id", "1.2.3", "a/b"]
)
def test_what_is_no_target_is_named(text: str) -> None:
    targets, (problem,) = discovery.read_targets([text])
    assert targets == [] and problem.startswith("discover_hosts: '") and text in problem


def test_too_many_addresses_in_all() -> None:
    _targets, (problem,) = discovery.read_targets(["10.0.0.0/22", "10.1.0.0/22"])
    assert "2044 addresses are more than the 1024" in problem


def test_mdns() -> None:
    text = (
        "+;eth0;IPv4;spark-1a2b;_ssh._tcp;local\n"
        "=;eth0;IPv6;spark-1a2b;_ssh._tcp;local;spark-1a2b.local;fe80::1;22;\n"
        "=;eth0;IPv4;spark-1a2b;_ssh._tcp;local;spark-1a2b.local;192.168.1.11;22;\n"
        "=;eth0;IPv6;six;_ssh._tcp;local;six.local;fe80::2;22;\n"
        "=;eth0;IPv4;bad;_ssh._tcp;local;$(id).local;192.168.1.12;22;\n"
        "=;eth0;IPv4;bad;_ssh._tcp;local;bad.local;nowhere;22;\n"
    )
    assert [(entry.address, entry.by) for entry in discovery.read_mdns(text)] == [
        ("192.168.1.11", "mDNS"),
        ("six.local", "mDNS"),
    ]


def test_neighbours_of_the_qsfp_ports() -> None:
    port = {"cage": 0, "netdevs": [netdev("enp1s0f0np0", "m", ("192.168.100.2", "n"), ("fe80::3", "n"))]}
    assert discovery.read_neighbours({"ports": [port]}) == [Target("192.168.100.2", discovery.NEIGHBOUR)]


def test_a_greeting_says_whether_it_could_be_a_spark() -> None:
    assert discovery.may_be_spark("SSH-2.0-OpenSSH_9.6p1 Ubuntu-3ubuntu13.5")
    assert not discovery.may_be_spark("SSH-2.0-dropbear_2022.83")
    assert not discovery.may_be_spark("SSH-2.0-OpenSSH_for_Windows_9.5")


def test_who_is_not_reached_is_not_known() -> None:
    outcome = discovery.read_machine(Target("a"), {"reached": False, "why": "Permission denied (publickey)."}, {}, {})
    assert (outcome.state, outcome.facts) == (
        "unknown",
        {},
    ) and "ssh-copy-id" in outcome.why
    why = 'Load key "/mnt/c/key": bad permissions me@a: Permission denied (publickey).'
    assert "chmod 600" in discovery.read_machine(Target("a"), {"reached": False, "why": why}, {}, {}).why
    # A task that ran out of time leaves nothing at all.
    assert discovery.read_machine(Target("a"), {}, {}, {}).why == "it was not asked"


def test_without_root_the_rest_is_known_and_what_is_not_is_said() -> None:
    failed = answers(spark={"failed": True, "msg": "Missing sudo password"})
    outcome = discovery.read_machine(Target("a"), failed, answers(spark={"spark": facts()}), {})
    assert outcome.state == "spark" and outcome.launches is None and outcome.heard is None
    assert "asked without root (Missing sudo password; add -K" in outcome.notes[0]
    assert [note.partition(":")[0] for note in outcome.notes[1:]] == [
        "what runs not known",
        "cables not known",
    ]
    both = discovery.read_machine(Target("a"), failed, failed, {})
    assert both.state == "unknown" and "add -K" in both.why


@pytest.mark.parametrize(
    "spark_answer",
    [
        None,
        [],
        {"machine": []},
        {"machine": {}, "fabric": "x"},
        {"memory": 5},
        {"fabric": {"ports": [5]}},
        {"fabric": {"ports": [{"cage": 0}]}},
    ],
)
def test_an_answer_of_another_form_is_not_known(spark_answer: Any) -> None:
    outcome = discovery.read_machine(Target("a"), answers(spark={"spark": spark_answer}), {}, {})
    assert outcome.state == "unknown" and "its answer is invalid" in outcome.why


def test_cables_of_another_form_are_not_known() -> None:
    outcome = discovery.read_machine(
        Target("a"),
        answers(spark={"spark": facts(), "adoption": {"launches": [5]}}),
        {},
        answers(probe={"cabling": {"heard": [{}]}}),
    )
    assert outcome.state == "spark" and outcome.heard is None and outcome.launches is None
    assert len([note for note in outcome.notes if "its answer is invalid" in note]) == 2


def test_another_machine_is_no_spark() -> None:
    other = facts(machine={"is_spark": False, "sys_vendor": "Dell", "product_name": "XPS"})
    assert discovery.read_machine(Target("a"), answers(spark={"spark": other}), {}, {}).why == "Dell XPS"


def test_one_machine_by_two_addresses_is_one() -> None:
    first, same, twin = spark("192.168.1.11"), spark("192.168.1.11"), spark("192.168.1.12")
    same.target = Target("spark-a.local", discovery.MDNS)
    outcome = discovery.join_same([first, same, twin])
    assert outcome == [first, twin] and first.also == ["spark-a.local"]
    # Machines are only merged if each has a hostname and an address.
    assert len(discovery.join_same([spark("1.1.1.1", hostname=""), spark("1.1.1.1", hostname="")])) == 2


def test_names() -> None:
    sparks = [
        spark("192.168.1.11"),
        spark("192.168.1.12"),
        spark("192.168.1.13", hostname="all"),
        spark("192.168.1.14", hostname="x: y"),
    ]
    sparks[1].target = Target("Forge.lan")
    twin = spark("192.168.1.15")
    discovery.give_names([*sparks, twin])
    assert [entry.name for entry in [*sparks, twin]] == ["spark-a", "forge", "spark-1", "spark-2", "spark-3"]


def pair() -> list[Machine]:
    first_host, two = spark("192.168.1.11", hostname="spark-a"), spark("192.168.1.12", hostname="spark-b")
    first_host.heard = [{"netdev": "enp1s0f0np0", "host": "192.168.1.12", "peer": "enp1s0f0np0"}]
    port = first_host.facts["fabric"]["ports"][0]
    port["netdevs"][0]["neighbours"] = [{"address": "169.254.3.4", "mac": "02:00:00:00:00:99"}]
    discovery.give_names([first_host, two])
    return [first_host, two]


def test_cables() -> None:
    outcome = discovery.find_cables(pair())
    assert outcome.groups() == [["spark-a", "spark-b"]]
    assert outcome.of_host("spark-a") == ["port 0 to spark-b port 0"]
    (stranger,) = outcome.strangers
    assert stranger.startswith("spark-a port 0 has a neighbour 169.254.3.4 that is not one of these Sparks")


def written(machines: list[Machine], picks: dict[str, Pick], user: str = "") -> tuple[dict[str, Any], str]:
    cables = discovery.find_cables(machines)
    texts = first_inventory.files(
        machines, picks, cables, user, {2: Pick("big-2", 2, Rate(30.0, "predicted"), 80.0, (), "two-sparks")}
    )
    assert set(texts) == {"hosts.yml", "group_vars/sparks.yml", "ansible.cfg"}
    groups = yaml.safe_load(texts["hosts.yml"])
    parsed = {**groups["sparks"]["hosts"], **groups.get("spark_found", {"hosts": {}})["hosts"]}
    # A Spark without services cannot be planned: it is in a separate group.
    assert all(("spark_services" in host) == (name in groups["sparks"]["hosts"]) for name, host in parsed.items())
    assert (yaml.safe_load(texts["group_vars/sparks.yml"]) or {}) == ({"ansible_user": user} if user else {})
    return parsed, texts["hosts.yml"]


def test_the_inventory_of_a_pair() -> None:
    machines = pair()
    machines[0].target = Target("192.168.1.11", "named", "me", 2222)
    hosts, text = written(machines, {"spark-a": PICK}, "spark")
    assert hosts["spark-a"] == {
        "ansible_host": "192.168.1.11",
        "ansible_user": "me",
        "ansible_port": 2222,
        "spark_services": [{"name": "qwen36", "recipe": "qwen3.6-35b-a3b-nvfp4", "port": 8000}],
    }
    assert yaml.safe_load(text)["spark_found"]["vars"] == {"ansible_user": "spark"}
    assert hosts["spark-b"] == {"ansible_host": "192.168.1.12"}
    assert "# Joined by QSFP: spark-a, spark-b." in text and "have big-2 (two-sparks), 30 tokens/s predicted." in text
    assert "# NVIDIA_DGX_Spark, driver 580.95.05, 115.0 of 121.6 GiB free" in text


def test_a_recommended_variant_and_context_are_written() -> None:
    machines = pair()
    hosts, _text = written(machines, {"spark-a": replace(PICK, variant="fast", context=100000)})
    service = hosts["spark-a"]["spark_services"][0]
    assert (service["variant"], service["args"]) == (["fast"], {"max-model-len": 100000})


def test_a_spark_that_serves_already_gets_no_recommendation() -> None:
    machine = spark("192.168.1.11")
    machine.launches = [{"container": "vllm", "name": "vllm"}]
    machine.name = "spark-a"
    assert first_inventory.serves(machine) == ["vllm (vLLM, not of this collection)"]
    hosts, text = written([machine], {})
    assert (
        hosts == {"spark-a": {"ansible_host": "192.168.1.11"}}
        and "# runs vllm" in text
        and "dgxspark.vllm.adopt" in text
    )


def test_the_machine_of_ansible_itself() -> None:
    machine = spark("192.168.1.11")
    machine.target = Target("localhost")
    discovery.give_names([machine])
    assert written([machine], {})[0] == {
        "spark-a": {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    }


def test_what_a_host_says_stays_in_its_comment() -> None:
    """Line ends, YAML and templates in the answers of a host become neither a host nor a variable."""
    evil = "x\n    evil:\n      ansible_host: 6.6.6.6 # {{ lookup('pipe', 'id') }}"
    machine = spark(
        "192.168.1.11", hostname=evil, gpu={"driver_version": evil, "processes": [{"name": evil, "used_mib": 2048}]}
    )
    machine.notes, machine.launches = [evil], []
    discovery.give_names([machine])
    hosts, text = written([machine], {"spark-1": PICK})
    assert list(hosts) == ["spark-1"] and set(hosts["spark-1"]) == {"ansible_host", "spark_services"}
    assert all(line.lstrip().startswith("#") for line in text.splitlines() if "evil" in line)
    assert "\n    evil" not in first_inventory.table([machine], discovery.Cables(), {})


def test_the_table_says_what_is_not_known() -> None:
    machine = spark("192.168.1.11")
    machine.name = "spark-a"
    silent = [Machine(Target(f"192.168.1.{last}"), "unknown", "did not answer in 3 s") for last in (20, 21, 22)]
    text = first_inventory.table([machine, *silent], discovery.Cables(), {"spark-a": PICK})
    assert "not known: 192.168.1.20..22 (3): did not answer in 3 s" in text
    assert "qwen3.6-35b-a3b-nvfp4, 63.8 tokens/s published" in text


def test_differences() -> None:
    outcome = first_inventory.differences("hosts.yml", "a\nmine\n", "a\n")
    assert "-mine" in outcome and "hosts.yml (yours, kept)" in outcome


def test_a_port_of_the_loopback_is_not_this_machine() -> None:
    """Somebody forwards it: ssh -L 2299:spark-1:22."""
    local, forwarded = (discovery.read_targets([text])[0][0] for text in ("127.0.0.1", "127.0.0.1:2299"))
    assert local.local and not forwarded.local and forwarded.port == 2299


def test_one_address_with_two_ports_needs_names() -> None:
    targets, problems = discovery.read_targets(["127.0.0.1:2298,127.0.0.1:2299"])
    assert [target.port for target in targets] == [2298]
    (problem,) = problems
    assert "'127.0.0.1:2299' names 127.0.0.1 with a second port; give each machine a name in ~/.ssh/config" in problem
    assert discovery.read_targets(["192.168.1.5:2222,192.168.1.4-6"])[1] == []


CONFIG = "host rack-a\nhostname 192.168.7.11\nuser me\nport 2222\nproxycommand none\nidentityfile ~/.ssh/a\nidentityfile ~/.ssh/b\n"


@pytest.mark.parametrize(
    ("target", "text", "way"),
    [
        (Target("rack-a"), CONFIG, ("192.168.7.11", 2222, False)),
        (Target("rack-a", port=2200), CONFIG, ("192.168.7.11", 2200, False)),
        (Target("rack-a"), CONFIG + "proxyjump bastion\n", ("192.168.7.11", 2222, True)),
        (Target("rack-a"), CONFIG.replace("proxycommand none", "proxycommand ssh -W %h:%p bastion"), ("192.168.7.11", 2222, True)),
        (Target("rack-a"), "", ("rack-a", 22, False)),
        (Target("rack-a"), "hostname\nport x\n", ("rack-a", 22, False)),
    ],
)  # fmt: skip
def test_where_ssh_connects_to(target: Target, text: str, way: tuple[str, int, bool]) -> None:
    assert discovery.read_ssh_way(target, text) == way


def test_launches_that_are_unknown_are_noted_with_the_reason() -> None:
    result = answers(spark={"spark": facts(), "adoption": None, "unknown": {"adoption": "docker ps failed"}})
    outcome = discovery.read_machine(Target("a"), result, {}, {})
    assert outcome.launches is None and any("what runs not known: docker ps failed" in note for note in outcome.notes)
