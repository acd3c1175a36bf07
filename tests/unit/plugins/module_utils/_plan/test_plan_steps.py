"""The steps of a plan, each by itself; what they come to together is in test_plan.py and test_clustering.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster.clustering import Cluster
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import (
    addon_plan,
    firewall_plan,
    host_plan,
    inventory,
    judging,
    planned_service,
    service_files,
    service_findings,
    spanning,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service import Host, Sources

FOLDER = Path(__file__).parents[5] / "playbooks" / "recipes"
RECIPES = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.yml")}
SOURCES = Sources(RECIPES, lambda _path: None, None, True, None, 1)
FAST = {
    "name": "fast",
    "recipe": "qwen3-4b-instruct-2507",
    "port": 8002,
    "args": {"gpu-memory-utilization": 0.10, "max-model-len": 4096, "max-num-seqs": 2},
}


def spark(*services: dict[str, Any], name: str = "s1", address: str = "192.0.2.1", **variables: Any) -> Host:
    given = {"vars": {"spark_services": list(services or (FAST,)), **variables}, "address": address}
    messages: list[str] = []
    host = inventory.read_spark(name, given, SOURCES, messages)
    assert messages == []
    return host


def resolved(host: Host) -> dict[str, Any]:
    """The first service of a host, resolved as the only one."""
    placed = service_files.place(host.settings, host.services[0], SOURCES.digest)
    launch = judging.check_launch(placed, host.settings, None, {})
    return planned_service.plan_service(host, placed, launch, {}, 1, [])


def test_problems_of_a_spark_are_collected_and_not_raised() -> None:
    messages: list[str] = []
    inventory.read_spark("s1", {"vars": {"spark_listen": "no address", "spark_services": [{}]}}, SOURCES, messages)
    assert any("spark_listen" in message for message in messages)
    assert any("spark_services[0]" in message for message in messages)


def test_a_service_without_a_key_listens_on_loopback_and_is_probed_there() -> None:
    planned = resolved(spark())
    assert (planned["host"], planned["url"]) == ("127.0.0.1", "http://127.0.0.1:8002")
    assert planned["settings"]["url"] == planned["probe"]["url"] == planned["url"]


def test_each_container_carries_the_fingerprint_of_what_it_is_started_from() -> None:
    one, other = resolved(spark()), resolved(spark({**FAST, "env": {"SOME_SETTING": "1"}}))
    assert f"dgxspark.fingerprint={one['fingerprint']}" in one["argv"]
    assert one["fingerprint"] != other["fingerprint"]


def test_a_host_says_what_it_needs_and_nothing_is_missing_where_nobody_asked() -> None:
    planned = host_plan.plan_host(spark(), SOURCES)
    assert planned["start_order"] == ["fast"]
    assert [model["repo"] for model in planned["models"]] == ["Qwen/Qwen3-4B-Instruct-2507"]
    assert planned["missing"] == {"images": [], "models": []}


def test_a_branch_and_a_package_without_a_sum_are_told() -> None:
    host = spark({**FAST, "model": {"revision": "main"}, "pip": ["some-package"]})
    placed = service_files.place(host.settings, host.services[0], SOURCES.digest)
    found = {finding.rule for finding in service_findings.check(host, SOURCES, resolved(host), placed)}
    assert {"model.moving_revision", "pip.unhashed"} <= found
    fixed = spark({**FAST, "model": {"revision": "0" * 40}})
    placed = service_files.place(fixed.settings, fixed.services[0], SOURCES.digest)
    found = {finding.rule for finding in service_findings.check(fixed, SOURCES, resolved(fixed), placed)}
    assert not {"model.moving_revision", "pip.unhashed"} & found


def test_ranks_stand_behind_the_own_services_of_each_host() -> None:
    entry = {"name": "large", "recipe": "qwen3-235b-a22b-gptq-int4", "port": 8000}
    cluster = Cluster("pair", ["s1", "s2"], "mp", [entry])
    hosts = {name: spark(name=name, address=f"192.0.2.{name[1]}") for name in cluster.hosts}
    messages: list[str] = []
    whole, members = spanning.plan_cluster(cluster, hosts, SOURCES, messages)
    assert messages == []
    assert whole["services"][0]["executor"] == "mp"
    planned = {name: host_plan.plan_host(host, SOURCES) for name, host in members.items()}
    assert [planned[name]["start_order"] for name in cluster.hosts] == [["fast", "large"]] * 2
    spanning.join_ranks(cluster, whole, members, planned)
    marks = {body["services"][1]["settings"]["rank"]["fingerprint"] for body in planned.values()}
    assert len(marks) == 1
    assert marks != {""}
    assert [body["cluster"]["rank"] for body in planned.values()] == [0, 1]


def test_hosts_of_a_cluster_that_differ_are_refused() -> None:
    cluster = Cluster("pair", ["s1", "s2"], "mp", [])
    hosts = {"s1": spark(), "s2": spark(name="s2", spark_hf_home="/srv/other")}
    messages: list[str] = []
    spanning.plan_cluster(cluster, hosts, SOURCES, messages)
    assert [message for message in messages if "spark_hf_home" in message and "s2" in message]


def test_an_open_engine_gets_a_firewall_that_admits_who_is_named() -> None:
    host = spark({**FAST, "host": "0.0.0.0", "api_key_file": "/keys/one"}, spark_allow_from=["192.0.2.9"])
    sparks, planned = {"s1": host}, {"s1": host_plan.plan_host(host, SOURCES)}
    around = addon_plan.plan_add_ons(sparks, {}, planned, {}, SOURCES)
    firewall_plan.plan_firewalls(sparks, {}, planned, {}, around, lambda _name: ())
    assert planned["s1"]["firewall"]["closed"] == [8002]
    assert "192.0.2.9" in str(planned["s1"]["firewall"])


def test_a_service_behind_no_gateway_says_so() -> None:
    host = spark()
    planned = {"s1": host_plan.plan_host(host, SOURCES)}
    around = addon_plan.plan_add_ons({"s1": host}, {}, planned, {}, SOURCES)
    assert planned["s1"]["services"][0]["gateway"] is None
    assert around["s1"]["gateway"] is None
