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
import yaml
from cluster_fixture import fabric_facts, network
from planned_fixture import MEASURED, RECIPES
from playbook_runs import ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import fabric
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import bundle
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import desired_state, settled_host

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
    text = settled_host.network_text(pair()["hosts"]["s1"]["netplan"])
    assert asked["file"] == {"path": settled_host.NETWORK_FILE, "sha256": hashlib.sha256(text.encode()).hexdigest()}
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


def test_hosts_of_a_ring_have_to_listen() -> None:
    ring = {**network("ring", ["s1", "s2", "s3"]), "ready": True}
    (_asked, why) = settled_host.network_of(PLAN, ring, "s1")
    assert why[0] == "the hosts of pair are a ring, and have to listen how it is cabled"


def test_the_file_of_the_network_is_what_the_role_makes_of_its_template(tmp_path: Path) -> None:
    document = pair()["hosts"]["s1"]["netplan"]
    template = ROOT / "roles" / "fabric" / "templates" / "netplan.yaml.j2"
    task = {"ansible.builtin.template": {"src": str(template), "dest": str(tmp_path / "made"), "mode": "0600"}}
    variables = {"__fabric_own": {"netplan": document}}
    play = {"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": [task]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    ran = ansible_playbook("-i", "localhost,", "-c", "local", "play.yml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "made").read_text() == settled_host.network_text(document)
    places = yaml.safe_load((ROOT / "roles" / "fabric" / "vars" / "main.yml").read_text())
    assert places["__fabric_netplan"] == settled_host.NETWORK_FILE


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
