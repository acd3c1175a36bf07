"""The single steps of a plan; test_plan.py and test_clustering.py test them together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned_fixture import FAST, SOURCES, resolved, service, spark

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster.clustering import Cluster
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.reader import from_dict, to_dict
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import (
    addon_plan,
    host_plan,
    inventory,
    plan,
    service_files,
    service_findings,
    spanning,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.planned import (
    ClusterOf,
    PlannedService,
    Secret,
)


def test_problems_of_a_spark_are_collected_and_not_raised() -> None:
    messages: list[str] = []
    inventory.read_spark("s1", {"vars": {"spark_listen": "no address", "spark_services": [{}]}}, SOURCES, messages)
    assert any("spark_listen" in message for message in messages)
    assert any("spark_services[0]" in message for message in messages)


def test_a_service_without_a_key_listens_on_loopback_and_is_probed_there() -> None:
    planned = resolved(spark())
    assert (planned.host, planned.url) == ("127.0.0.1", "http://127.0.0.1:8002")
    assert planned.settings.url == planned.probe.url == planned.url


def test_each_container_carries_the_fingerprint_of_what_it_is_started_from() -> None:
    first, other = resolved(spark()), resolved(spark({**FAST, "env": {"SOME_SETTING": "1"}}))
    assert f"dgxspark.fingerprint={first.fingerprint}" in first.argv
    assert first.fingerprint != other.fingerprint


def test_a_host_says_what_it_needs_and_nothing_is_missing_where_nobody_asked() -> None:
    planned = host_plan.plan_host(spark(), SOURCES)
    assert planned.start_order == ["fast"]
    assert [model["repo"] for model in planned.models] == ["Qwen/Qwen3-4B-Instruct-2507"]
    assert planned.missing == {"images": [], "models": []}


def test_a_branch_and_a_package_without_a_sum_are_told() -> None:
    host = spark({**FAST, "model": {"revision": "main"}, "pip": ["some-package"]})
    placed = service_files.place(host.settings, host.services[0], SOURCES.digest)
    findings = {finding.rule for finding in service_findings.check(host, SOURCES, resolved(host), placed)}
    assert {"model.moving_revision", "pip.unhashed"} <= findings
    fixed = spark({**FAST, "model": {"revision": "0" * 40}})
    placed = service_files.place(fixed.settings, fixed.services[0], SOURCES.digest)
    findings = {finding.rule for finding in service_findings.check(fixed, SOURCES, resolved(fixed), placed)}
    assert not {"model.moving_revision", "pip.unhashed"} & findings


def test_ranks_stand_behind_the_own_services_of_each_host() -> None:
    entry = {"name": "large", "recipe": "qwen3-235b-a22b-gptq-int4", "port": 8000}
    cluster = Cluster("pair", ["s1", "s2"], "mp", [entry])
    hosts = {name: spark(name=name, address=f"192.0.2.{name[1]}") for name in cluster.hosts}
    messages: list[str] = []
    cluster_plan, members = spanning.plan_cluster(cluster, hosts, SOURCES, messages)
    assert messages == []
    assert cluster_plan["services"][0]["executor"] == "mp"
    planned = {name: host_plan.plan_host(host, SOURCES) for name, host in members.items()}
    assert [planned[name].start_order for name in cluster.hosts] == [["fast", "large"]] * 2
    spanning.join_ranks(cluster, cluster_plan, members, planned)
    marks = {rank.fingerprint for body in planned.values() if (rank := body.services[1].settings.rank)}
    assert len(marks) == 1
    assert marks != {""}
    assert [(body.cluster or {})["rank"] for body in planned.values()] == [0, 1]


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
    plan.plan_firewalls(sparks, {}, planned, {}, around, lambda _name: ())
    wall = planned["s1"].firewall or {}
    assert wall["closed"] == [8002] and "192.0.2.9" in str(wall)


def test_a_service_behind_no_gateway_says_so() -> None:
    host = spark()
    planned = {"s1": host_plan.plan_host(host, SOURCES)}
    around = addon_plan.plan_add_ons({"s1": host}, {}, planned, {}, SOURCES)
    assert planned["s1"].services[0].gateway is None
    assert around["s1"]["gateway"] is None


def test_ansible_is_given_mappings_and_what_it_hands_back_is_the_service() -> None:
    made = resolved(spark({**FAST, "api_key_file": "/keys/one", "pip": [f"a==1 --hash=sha256:{'0' * 64}"]}))
    plain = to_dict(made)
    assert plain["secrets"] == [
        {"name": "VLLM_API_KEY", "source": "/keys/one", "path": "/etc/dgxspark/secrets/fast/VLLM_API_KEY"}
    ]
    assert "content" in plain["files"][0] and "rank" not in plain["settings"] and plain["cluster"] is None
    second = from_dict(PlannedService, plain)
    assert (second, to_dict(second)) == (made, plain)
    with pytest.raises(TypeError, match="served_model_name"):
        from_dict(PlannedService, {key: value for key, value in plain.items() if key != "served_model_name"})


@pytest.mark.parametrize("executor", ["mp", "ray"])
def test_so_is_a_rank_of_a_cluster(executor: str) -> None:
    cluster = Cluster(
        "pair", ["s1", "s2"], executor, [{"name": "big", "recipe": "qwen3-235b-a22b-gptq-int4", "port": 8000}]
    )
    hosts = {name: spark(name=name, address=f"192.0.2.{name[1]}") for name in cluster.hosts}
    _cluster_plan, members = spanning.plan_cluster(cluster, hosts, SOURCES, [])
    for host in members.values():
        for made in host_plan.plan_host(host, SOURCES).services:
            assert from_dict(PlannedService, to_dict(made)) == made


PAIR = ClusterOf("pair_a", 2, "spark-1", ["spark-1", "spark-2"], "mp")
HEAVY = service(
    name="heavy",
    port=8001,
    host="192.168.1.11",
    served_model_name="qwen-heavy",
    secrets=[Secret("VLLM_API_KEY", "/keys/heavy", "/etc/x")],
    args={"max-model-len": 65536},
    memory={"residency_gib": {"typical": 93.54}},
)


def test_an_engine_is_listed_with_what_clients_need() -> None:
    (endpoint,) = addon_plan.endpoints_of("spark-1", "spark-1.lan", [HEAVY])
    assert endpoint["key"] == "spark-1/heavy" and endpoint["url"] == "http://192.168.1.11:8001"
    assert endpoint["models"] == ["qwen-heavy"] and endpoint["api_key_file"] == "/keys/heavy"
    assert (endpoint["max_model_len"], endpoint["memory_gib"]) == (65536, 93.54)
    assert (endpoint["unit"], endpoint["hosts"]) == ("spark-heavy.service", ["spark-1"])


def test_a_model_over_two_hosts_is_one_endpoint_of_its_head() -> None:
    head = addon_plan.endpoints_of("spark-1", "10.0.0.1", [replace(HEAVY, cluster=PAIR)])
    worker = addon_plan.endpoints_of("spark-2", "10.0.0.2", [replace(HEAVY, cluster=PAIR, rank=1)])
    assert [endpoint["key"] for endpoint in head] == ["pair_a/heavy"] and worker == []
    assert head[0]["hosts"] == ["spark-1", "spark-2"]


def test_lengths_that_the_engine_works_out_are_not_known() -> None:
    (endpoint,) = addon_plan.endpoints_of(
        "s", "s", [replace(HEAVY, args={"max-model-len": "auto"}, memory={}, secrets=[])]
    )
    assert (endpoint["max_model_len"], endpoint["memory_gib"], endpoint["api_key_file"]) == (None, None, None)


def test_the_collector_is_told_what_the_plan_expects() -> None:
    assumed = replace(HEAVY, name="measured", memory={**HEAVY.memory, "assumed_residency_gib": 90.0})
    assert addon_plan.planned_gib([HEAVY, replace(HEAVY, name="new", memory={}), assumed]) == {
        "heavy": 93.54,
        "measured": 90.0,
    }
