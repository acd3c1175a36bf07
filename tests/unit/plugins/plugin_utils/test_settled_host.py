# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host that is believed up to date is asked beside its files, and what of its cluster speaks against it already."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cluster_fixture import bare, fabric_facts, network, settled_ring
from planned_fixture import MEASURED, RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import fabric, fabric_layout, relay
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import bundle
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import (
    desired_state,
    playbook_tags,
    role_documents,
    settled_host,
)

ROOT = Path(__file__).parents[4]
PLAN = {"cluster": {"name": "pair", "fabric": {"firewall": True}}}


def pair(**changes: Any) -> dict[str, Any]:
    """The network of two hosts that have their addresses. changes: of the first interface of the second host."""
    facts = {f"s{number}": {"fabric": fabric_facts(number)} for number in (1, 2)}
    facts["s2"]["fabric"]["ports"][0]["netdevs"][0].update(changes)
    return fabric.plan(facts)


def test_a_network_that_is_right_is_compared_asked_and_pinged() -> None:
    asked, why = settled_host.network_of(PLAN, pair(), "s1")
    assert why == [] and [ping["target"] for ping in asked["pings"]] == ["192.168.100.12", "192.168.101.12"]
    assert asked["ufw"] == {"netdevs": ["enP2p1s0f0np0", "enp1s0f0np0"], "peers": []}
    text = role_documents.network_text(pair()["hosts"]["s1"]["netplan"])
    assert asked["file"] == {"path": role_documents.NETWORK_FILE, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    closed = {"cluster": {"name": "pair", "fabric": {"firewall": False}}}
    assert settled_host.network_of(closed, pair(), "s1")[0]["ufw"] == {}
    assert settled_host.network_of({"cluster": None}, None, "s1") == ({}, [])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "is not known to be ready"),
        ({}, "is not known to be ready"),
        (pair(addresses=[]), "the network of s2 may have to be changed"),
        (pair(mtu=1500), "is not known to be ready"),
        (pair(rdma={"name": "roce", "state": "DOWN"}), "NCCL would fall back to TCP"),
    ],
)
def test_a_network_that_is_not_known_to_be_right_is_for_the_role(given: Any, why: str) -> None:
    for host in ("s1", "s2"):
        assert why in " ".join(settled_host.network_of(PLAN, given, host)[1])


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
        asked, why = settled_host.network_of(PLAN, now, name)
        assert why == [] and settled_host.network_of(PLAN, listened, name) == (asked, [])
        # Two interfaces of each of two cables, with a relay what lies beyond them, and all others by the network over which engines meet.
        by = {"cable": 0, "management": 0}
        for ping in asked["pings"]:
            by["management" if ping["rail"] == "management" else "cable"] += 1
            assert ping["size"] == (1472 if ping["rail"] == "management" else 8972)
        assert by["cable"] >= 4 and by["management"] == count - 1
        assert bool(asked["routes"]) is bool(asked["relay"]) is settings.relay
        assert len(asked["relay"]) == (4 if settings.relay else 0)
        (unit,) = asked["units"]
        assert (unit["path"], bool(unit["sha256"])) == (f"/etc/systemd/system/{relay.UNIT}", settings.relay)
    sent = settled_host.network_of(PLAN, now, "s1")[0]["pings"]
    beyond = {ping["target_host"] for ping in sent if ping["rail"] != "management"}
    assert beyond == (set(names) - {"s1"} if settings.relay or count == 3 else {"s2", f"s{count}"})


def heard_in(names: list[str]) -> list[tuple[str, Any]]:
    return [(name, entry["heard"]) for name, entry in bare("ring", names).items()]


@pytest.mark.parametrize("changed", [{"addresses": []}, {"addresses": ["192.168.77.9/24"]}, {"mtu": 1500}])
def test_a_ring_that_lacks_an_address_or_its_mtu_is_for_the_role(changed: dict[str, Any]) -> None:
    entries = settled_ring(["s1", "s2", "s3", "s4"], RELAY)
    entries["s2"]["fabric"]["ports"][1]["netdevs"][0].update(changed)
    for name in entries:
        assert settled_host.network_of(PLAN, fabric.plan(entries, RELAY), name)[1]


def test_hosts_of_a_line_are_for_the_role() -> None:
    line = {**network("ring", ["s1", "s2", "s3"]), "topology": "line", "ready": True}
    why = settled_host.network_of(PLAN, line, "s1")[1]
    assert why[0] == "the hosts of pair are a line, and have to listen how it is cabled"


def test_servers_are_asked_as_their_roles_would() -> None:
    addons = {"speech": {"services": [{"name": "hear"}]}, "ollama": {"state": "present"}}
    assert [server["name"] for server in settled_host.servers_of(addons, {})] == ["hear", "ollama"]
    assert settled_host.servers_of(addons, {"speech_prove_seconds": 7})[0]["seconds"] == 7
    assert [server["name"] for server in settled_host.servers_of(addons, {"speech_prove": False})] == ["ollama"]
    assert settled_host.servers_of({"ollama": {"state": "absent"}}, {}) == [] == settled_host.servers_of(None, {})


def test_images_that_are_made_on_the_host() -> None:
    plan = {"built_images": [{"tag": "dgxspark/built:1"}], "ray_images": [{"tag": "dgxspark/ray:1"}]}
    assert settled_host.images_of(plan) == [["dgxspark/built:1"], ["dgxspark/ray:1"]]
    beside = {"images_beside": ["proxy@sha256:3"], "images_locked": {"proxy@sha256:3": {"ids": ["sha256:4"]}}}
    assert settled_host.images_of(beside) == []
    assert settled_host.images_of({**beside, "settings": {"bundle_dir": "/b"}}) == [["proxy@sha256:3", "sha256:4"]]
    assert settled_host.images_of({}) == []


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
    for given in (hosts, listened):
        plan = engine.make_plan(given, RECIPES, lambda _path: "0" * 64, {"pair": list(given), "sparks": list(given)})
        own = plan["hosts"]
        marks.append([desired_state.desired_checksum(own[host], plan["addons"][host], {}) for host in given])
        network_now = plan["clusters"]["pair"]["fabric"]
        assert [settled_host.network_of(own[host], network_now, host)[1] for host in given] == [[], []]
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
    assert settled_host.bundled_of(plan, {}) == ([], [])
    plan["settings"] = {"bundle_dir": str(tmp_path)}
    (nothing, (why,)) = settled_host.bundled_of(plan, {})
    assert nothing == [] and "holds no" in why
    (tmp_path / bundle.MANIFEST).write_text(json.dumps(bundle.make_manifest([], [entry])))
    assert settled_host.bundled_of(plan, {}) == ([{**entry, "revisions": ["main"]}], [])
    plan["models"][0]["revision"] = "v2"
    assert "has no Org/M@v2" in settled_host.bundled_of(plan, {})[1][0]
    plan["models"][0].update(revision="v1", files={"config.json": {"size": 2, "sha256": "b" * 64}})
    assert "has not the files of Org/M@v1 that the lock file has" in settled_host.bundled_of(plan, {})[1][0]


@pytest.mark.parametrize(
    ("run", "skipped", "parts"),
    [
        (["all"], [], {*desired_state.SKIPPED, "prove"}),
        (["all"], ["prove"], set(desired_state.SKIPPED)),
        (["service"], [], {"service"}),
        (["spread", "guard"], [], {"images", "models", "guard"}),
        (["prove"], [], {"prove", "service"}),
        (["gateway", "monitoring"], [], set()),
        (["service", "mine"], [], None),
        (["always"], [], None),
        (["tagged"], [], None),
        (["all"], ["host"], None),
    ],
)
def test_what_tags_apply(run: list[str], skipped: list[str], parts: set[str] | None) -> None:
    assert settled_host.parts_of(run, skipped) == parts


def test_every_tag_of_the_playbook_is_known() -> None:
    found = playbook_tags.playbook_tags(ROOT / "playbooks" / "site.yml")
    assert found - {"always"} == set(settled_host.TAGS)


def test_what_a_run_has_applied_is_recorded_and_no_more() -> None:
    everything = frozenset(desired_state.SKIPPED)
    assert settled_host.applied(["all"], [], True) == (True, everything)
    assert settled_host.applied(["all"], ["prove"], None) == (True, everything)
    # Which of them a run has come to that failed is not known.
    assert settled_host.applied(["all"], [], False) == (True, frozenset())
    assert settled_host.applied(["firewall", "prove"], [], True) == (False, {"firewall"})
    assert settled_host.applied(["all"], ["firewall"], True) == (False, frozenset())


KNOWN: dict[str, Any] = {"run": ["all"], "facts": {}, "looked": {}, "lacking": {}, "play": ["s1", "s2"]}


@pytest.mark.parametrize(
    ("part", "plan", "addons", "known"),
    [
        ("fabric", {"cluster": None}, {}, {"facts": {"fabric": {"relay": True}}}),
        ("ollama", {}, {"ollama": {"state": "absent"}}, {}),
        ("service", {"services": [{"name": "heavy", "stale": True}]}, {}, {}),
        ("images", {"images": ["a:1"]}, {}, {}),
        ("images", {"images": ["a:1"]}, {}, {"looked": {"a:1": {"probe_from": "none"}}}),
        ("images", {}, {}, {"lacking": {"images": ["s2"]}}),
        ("models", {}, {}, {"lacking": {"models": ["s2"]}}),
    ],
)
def test_what_the_controller_knows_to_speak_against_it_counts_for_its_tags_alone(
    part: str, plan: dict[str, Any], addons: dict[str, Any], known: dict[str, Any]
) -> None:
    everything = frozenset({*desired_state.SKIPPED, "prove"})
    assert len(settled_host.unjudged(everything, plan, addons, {**KNOWN, **known})) == 1
    assert len(settled_host.unjudged(frozenset({part}), plan, addons, {**KNOWN, "run": [part], **known})) == 1
    assert settled_host.unjudged(everything - {part}, plan, addons, {**KNOWN, "run": ["x"], **known}) == []
    assert settled_host.unjudged(everything, {}, {}, KNOWN) == []


def test_tags_that_no_look_judges_cost_none() -> None:
    for parts, run in ((None, ["mine"]), (frozenset({"fabric"}), ["fabric"])):
        why = settled_host.unjudged(parts, {}, {}, {**KNOWN, "run": run})
        assert why == ["what these tags apply is not judged by a look"]


def test_a_look_is_not_about_files_of_other_tags_and_is_about_those_outside_of_generations() -> None:
    service = {"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001}
    variables = {"spark_services": [service], "spark_watchdog": {}, "spark_total_gib": 119.67}
    given = {"s1": {"vars": variables, "address": "192.0.2.1"}}
    made = engine.make_plan(given, RECIPES, lambda _path: "0" * 64)
    plan, addons = made["hosts"]["s1"], made["addons"]["s1"]
    others = settled_host.others_of({"service"}, plan, addons, {})
    assert "/etc/systemd/system/spark-heavy.service" not in others
    assert {"/etc/systemd/system/spark-watchdog.service", "/etc/dgxspark/firewall.nft"} <= set(others)
    others = settled_host.others_of({"watchdog", "firewall"}, plan, addons, {})
    assert "/etc/systemd/system/spark-heavy.service" in others and "/etc/dgxspark/firewall.nft" not in others
    # What several roles put there is of each of them.
    watched = {file.path for file in desired_state.document_of(plan, addons, {}).of_parts({"watchdog"}).files}
    assert watched and not watched & set(others)
    addons["guard"] = {"state": "absent", "protection": {"ssh_mib": 64}}
    board = {"guard": {"state": "absent", "protection": {"hardware_watchdog_seconds": 60}}}
    by_board = [file["path"] for file in settled_host.files_of({"guard"}, plan, board, {}) if file.get("device")]
    assert by_board == ["/etc/systemd/system.conf.d/50-dgxspark.conf"]
    beside = {file["path"]: file["sha256"] for file in settled_host.files_of({"guard"}, plan, addons, {})}
    drop_in = "/etc/systemd/system/ssh.service.d/50-dgxspark.conf"
    (text,) = [file.content for file in desired_state.document_of(plan, addons, {}).files if file.path == drop_in]
    assert beside[drop_in] == settled_host.sha256_of(str(text))
    assert beside["/etc/systemd/system.conf.d/50-dgxspark.conf"] == "", "what is not asked for has to be gone"
    assert settled_host.files_of({"service"}, plan, addons, {}) == []
    sums = desired_state.part_checksums(plan, addons, {})
    changed = desired_state.part_checksums({**plan, "firewall": {"state": "absent"}}, addons, {})
    assert {name for name, value in sums.items() if changed[name] != value} == {"firewall"}
