# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments of the module compare for a host, and reasons that need no answer of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from cluster_fixture import bare, fabric_facts, network, settled_ring
from planned_fixture import MEASURED, RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import fabric, fabric_layout
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import bundle
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import (
    compared_host,
    host_documents,
    playbook_tags,
    role_documents,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.compared_host import PlannedParts

ROOT = Path(__file__).parents[4]
EVERYTHING = frozenset({*compared_host.ROLES, *compared_host.ADD_ONS, "prove"})
PLAN = {"cluster": {"name": "pair", "fabric": {"firewall": True}}}


def pair(**changes: Any) -> dict[str, Any]:
    """The network of two hosts that have their addresses. changes: of the first interface of the second host."""
    facts = {f"s{number}": {"fabric": fabric_facts(number)} for number in (1, 2)}
    facts["s2"]["fabric"]["ports"][0]["netdevs"][0].update(changes)
    return fabric.plan(facts)


def network_of(plan: dict[str, Any], network_now: Any, host: str) -> tuple[dict[str, Any], list[str]]:
    return compared_host.network_of(PlannedParts(host, plan, {}, network_now or {}, {}))


def test_a_network_that_is_right_is_compared_asked_and_pinged() -> None:
    network, why = network_of(PLAN, pair(), "s1")
    assert why == [] and [ping["target"] for ping in network["pings"]] == ["192.168.100.12", "192.168.101.12"]
    assert network["ufw"] == {"netdevs": ["enP2p1s0f0np0", "enp1s0f0np0"], "peers": []}
    text = role_documents.network_text(pair()["hosts"]["s1"]["netplan"])
    assert network["file"] == {"path": role_documents.NETWORK_FILE, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    closed = {"cluster": {"name": "pair", "fabric": {"firewall": False}}}
    assert network_of(closed, pair(), "s1")[0]["ufw"] == {}
    assert network_of({"cluster": None}, None, "s1") == ({}, [])


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (None, "is not known to be ready"),
        ({}, "is not known to be ready"),
        (pair(addresses=[]), "the network of s2 may have to be changed"),
        (pair(mtu=1500), "is not known to be ready"),
        (pair(rdma={"name": "roce", "state": "DOWN"}), "NCCL would fall back to TCP"),
    ],
)
def test_a_network_that_is_not_known_to_be_right_is_for_the_role(facts: Any, why: str) -> None:
    for host in ("s1", "s2"):
        assert why in " ".join(network_of(PLAN, facts, host)[1])


RELAY = fabric_layout.Settings(relay=True)


@pytest.mark.parametrize(
    ("count", "settings"), [(3, fabric_layout.Settings()), (4, fabric_layout.Settings()), (4, RELAY), (6, RELAY)]
)
def test_a_ring_that_has_its_addresses_is_asked_what_it_needs_without_listening(
    count: int, settings: fabric_layout.Settings
) -> None:
    names = [f"s{number}" for number in range(1, count + 1)]
    entries = settled_ring(names, settings)
    listened = fabric.plan(
        {**entries, **{name: {**entries[name], "heard": heard} for name, heard in heard_in(names)}}, settings
    )
    now = fabric.plan(entries, settings)
    assert now["topology"] == "ring"
    for name in names:
        network, why = network_of(PLAN, now, name)
        assert why == [] and network_of(PLAN, listened, name) == (network, [])
        # Two interfaces of each of two cables, with a relay the networks behind them, and all others by the network of the engines.
        by = {"cable": 0, "management": 0}
        for ping in network["pings"]:
            by["management" if ping["rail"] == "management" else "cable"] += 1
            assert ping["size"] == (1472 if ping["rail"] == "management" else 8972)
        assert by["cable"] >= 4 and by["management"] == count - 1
        assert bool(network["routes"]) is bool(network["relay"]) is settings.relay
        assert len(network["relay"]) == (4 if settings.relay else 0)
        # The unit of the relay is a row of the document.
        planned = PlannedParts(name, {"settings": {"hf_home": "/hf", "cache_dir": "/c"}}, {}, now, {})
        units = [unit.name for unit in compared_host.document_of(planned, {"fabric"}).units]
        assert units == (["dgxspark-fabric-relay.service"] if settings.relay else [])
    sent = network_of(PLAN, now, "s1")[0]["pings"]
    beyond = {ping["target_host"] for ping in sent if ping["rail"] != "management"}
    assert beyond == (set(names) - {"s1"} if settings.relay or count == 3 else {"s2", f"s{count}"})


def heard_in(names: list[str]) -> list[tuple[str, Any]]:
    return [(name, entry["heard"]) for name, entry in bare("ring", names).items()]


@pytest.mark.parametrize("changed", [{"addresses": []}, {"addresses": ["192.168.77.9/24"]}, {"mtu": 1500}])
def test_a_ring_that_lacks_an_address_or_its_mtu_is_for_the_role(changed: dict[str, Any]) -> None:
    entries = settled_ring(["s1", "s2", "s3", "s4"], RELAY)
    entries["s2"]["fabric"]["ports"][1]["netdevs"][0].update(changed)
    for name in entries:
        assert network_of(PLAN, fabric.plan(entries, RELAY), name)[1]


def test_hosts_of_a_line_are_for_the_role() -> None:
    line = {**network("ring", ["s1", "s2", "s3"]), "topology": "line", "ready": True}
    why = network_of(PLAN, line, "s1")[1]
    assert why[0] == "the hosts of pair are a line, and have to listen how it is cabled"


def servers_of(addons: dict[str, Any], role_variables: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return compared_host.servers_of(PlannedParts("s1", {}, addons, {}, role_variables or {}), EVERYTHING)


def test_servers_are_asked_as_their_roles_would() -> None:
    addons = {"speech": {"services": [{"name": "hear"}]}, "ollama": {"state": "present"}}
    assert [server["name"] for server in servers_of(addons)] == ["hear", "ollama"]
    assert servers_of(addons, {"speech_prove_seconds": 7})[0]["seconds"] == 7
    assert [server["name"] for server in servers_of(addons, {"speech_prove": False})] == ["ollama"]
    assert servers_of({"ollama": {"state": "absent"}}) == [] == servers_of({})


def test_images_that_are_made_on_the_host() -> None:
    plan = {"built_images": [{"tag": "dgxspark/built:1"}], "ray_images": [{"tag": "dgxspark/ray:1"}]}
    assert compared_host.images_of(plan, EVERYTHING) == [["dgxspark/built:1"], ["dgxspark/ray:1"]]
    beside = {"images_beside": ["proxy@sha256:3"], "images_locked": {"proxy@sha256:3": {"ids": ["sha256:4"]}}}
    assert compared_host.images_of(beside, EVERYTHING) == []
    assert compared_host.images_of({**beside, "settings": {"bundle_dir": "/b"}}, EVERYTHING) == [
        ["proxy@sha256:3", "sha256:4"]
    ]
    assert compared_host.images_of({}, EVERYTHING) == []


@pytest.mark.parametrize("executor", ["mp", "ray"])
def test_a_pair_is_wanted_alike_before_and_after_its_hosts_have_listened(executor: str) -> None:
    service = {"name": "large", "recipe": "qwen3-235b-a22b-gptq-int4", "port": 8000}
    cluster = {"name": "pair", "executor": executor, "services": [service]}
    facts = {f"s{number}": fabric_facts(number) for number in (1, 2)}
    heard = {
        host: [
            {"netdev": netdev["name"], "host": other, "peer": netdev["name"]}
            for netdev in facts[host]["ports"][0]["netdevs"]
        ]
        for host, other in (("s1", "s2"), ("s2", "s1"))
    }
    entries = {
        host: {"fabric": body, "heard": heard[host], "management_address": f"10.0.0.{number}", "tools": ["iperf3"]}
        for number, (host, body) in enumerate(facts.items(), 1)
    }
    hosts: dict[str, dict[str, Any]] = {
        host: {
            "vars": {"spark_cluster": cluster},
            "address": entries[host]["management_address"],
            "measured": {**MEASURED, **entries[host]},
        }
        for host in facts
    }
    listened = {host: {**body, "fabric": fabric.plan(entries)} for host, body in hosts.items()}
    marks = []
    for hosts_of_case in (hosts, listened):
        plan = engine.make_plan(
            hosts_of_case, RECIPES, lambda _path: "0" * 64, {"pair": list(hosts_of_case), "sparks": list(hosts_of_case)}
        )
        bodies = plan["hosts"]
        marks.append(
            [host_documents.desired_checksum(bodies[host], plan["addons"][host], {}) for host in hosts_of_case]
        )
        network_now = plan["clusters"]["pair"]["fabric"]
        assert [network_of(bodies[host], network_now, host)[1] for host in hosts_of_case] == [[], []]
    assert marks[0] == marks[1] and marks[0][0] != marks[0][1]


def test_models_are_compared_with_a_bundle(tmp_path: Path) -> None:
    entry = {
        "repo": "Org/M",
        "commit": "1" * 40,
        "revisions": ["main", "v1"],
        "files": {"config.json": {"size": 2, "sha256": "a" * 64}},
    }
    plan: dict[str, Any] = {
        "models": [{"repo": "Org/M", "revision": "main", "files": {}}, {"path": "/own", "source": "/own"}]
    }
    assert compared_host.bundled_of(plan, {}) == ([], [])
    plan["settings"] = {"bundle_dir": str(tmp_path)}
    (nothing, (why,)) = compared_host.bundled_of(plan, {})
    assert nothing == [] and "has no" in why
    (tmp_path / bundle.MANIFEST).write_text(json.dumps(bundle.make_manifest([], [entry])))
    assert compared_host.bundled_of(plan, {}) == ([{**entry, "revisions": ["main"]}], [])
    plan["models"][0]["revision"] = "v2"
    assert "has no Org/M@v2" in compared_host.bundled_of(plan, {})[1][0]
    plan["models"][0].update(revision="v1", files={"config.json": {"size": 2, "sha256": "b" * 64}})
    assert "has not the files of Org/M@v1 that the lock file has" in compared_host.bundled_of(plan, {})[1][0]


@pytest.mark.parametrize(
    ("run", "skipped", "parts"),
    [
        (["all"], [], EVERYTHING),
        (["all"], ["prove"], EVERYTHING - {"prove"}),
        (["service"], [], {"service"}),
        (["spread", "guard"], [], {"images", "models", "guard"}),
        (["prove"], [], {"prove", "service"}),
        (["gateway", "monitoring"], [], {"gateway", "monitoring"}),
        (["service", "mine"], [], None),
        (["always"], [], None),
        (["tagged"], [], None),
        (["all"], ["host"], None),
    ],
)
def test_what_tags_apply(run: list[str], skipped: list[str], parts: set[str] | None) -> None:
    assert compared_host.parts_of(run, skipped) == parts


def test_every_tag_of_the_playbook_is_known() -> None:
    tags = playbook_tags.playbook_tags(ROOT / "playbooks" / "site.yml")
    assert tags - {"always"} == set(compared_host.TAGS)


def test_a_run_of_all_roles_is_known_by_its_tags() -> None:
    assert compared_host.applies_everything(["all"], []) and compared_host.applies_everything(["all"], ["prove"])
    assert not compared_host.applies_everything(["firewall", "prove"], [])
    assert not compared_host.applies_everything(["all"], ["firewall"])


@pytest.mark.parametrize("kind", ["images", "models"])
def test_a_host_that_may_have_to_hand_on_images_or_models_is_not_up_to_date(kind: str) -> None:
    lacking, play = {kind: ["s2"]}, ["s1", "s2"]
    for parts, tags in ((EVERYTHING, ["all"]), (frozenset({kind}), [kind])):
        assert compared_host.reasons_to_apply(tags, parts, lacking, play) == [
            f"{kind} are missing on hosts of this run"
        ]
    assert compared_host.reasons_to_apply(["x"], EVERYTHING - {kind}, lacking, play) == []
    assert compared_host.reasons_to_apply(["all"], EVERYTHING, lacking, ["s1"]) == []


def test_tags_that_are_always_applied_cost_no_comparison() -> None:
    for parts, tags in ((None, ["mine"]), (frozenset({"fabric"}), ["fabric"])):
        (why,) = compared_host.reasons_to_apply(tags, parts, {}, ["s1"])
        assert "always applied" in why


def test_images_whose_contents_nobody_knows_have_to_be_asked() -> None:
    plan = {"images": ["a:1"]}
    for images in ({}, {"a:1": {"present": True, "probe_from": "none"}}):
        assert compared_host.unknown_images(plan, images, EVERYTHING) == ["the contents of a:1 are not known"]
        assert compared_host.unknown_images(plan, images, {"service"}) == []
    assert compared_host.unknown_images(plan, {"a:1": {"probe_from": "cache"}}, EVERYTHING) == []


def planned_host(**variables: Any) -> PlannedParts:
    """Return the plan of a host with one service."""
    service = {"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001}
    variables_of_host = {"spark_services": [service], "spark_watchdog": {}, "spark_total_gib": 119.67, **variables}
    made = engine.make_plan(
        {"s1": {"vars": variables_of_host, "address": "192.0.2.1"}}, RECIPES, lambda _path: "0" * 64
    )
    return PlannedParts("s1", made["hosts"]["s1"], made["addons"]["s1"], {}, {})


def test_a_host_is_asked_about_the_parts_of_the_run_alone() -> None:
    planned = planned_host()
    arguments, why = compared_host.arguments_of(planned, EVERYTHING, {})
    assert why == [] and arguments["parts"] is None and [model["repo"] for model in arguments["models"]]
    assert {"host", "service", "watchdog"} <= {row["part"] for row in arguments["document"]["files"]}
    assert all(len(file["digest"]) == 64 and "content" not in file for file in arguments["document"]["files"])
    few, _why = compared_host.arguments_of(planned, frozenset({"service", "prove"}), {})
    assert few["parts"] == ["prove", "service"] and few["models"] == []
    assert {row["part"] for row in few["document"]["files"]} == {"service"}
    # A run without the proof does not ask about the facts of the last proof.
    unproved, _why = compared_host.arguments_of(planned, EVERYTHING - {"prove"}, {})
    assert unproved["parts"] == sorted(EVERYTHING - {"prove"})


def test_a_plan_that_no_file_can_hold_is_refused() -> None:
    planned = planned_host()
    planned.plan["services"][0]["name"] = "line\nbreak"
    with pytest.raises(AnsibleActionFail, match="the plan cannot be written to s1"):
        compared_host.arguments_of(planned, EVERYTHING, {})


def test_the_proof_is_asked_for_services_that_run() -> None:
    planned = planned_host()
    proof = compared_host.proof_of(planned)
    assert [service["unit"] for service in proof["services"]] == ["spark-heavy.service"]
    assert (proof["timeout"], proof["receipts_dir"]) == (120, "/var/lib/dgxspark/receipts")
    planned.plan["services"][0]["state"] = "stopped"
    assert compared_host.proof_of(planned)["services"] == []
