"""The single steps of a plan; test_plan.py and test_clustering.py test them together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cluster_fixture
import pytest
from planned_fixture import FAST, MEASURED, SOURCES, resolved, service, spark

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import ray_cluster
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
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service import Host


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


def test_the_disk_of_a_kv_cache_in_files_has_to_hold_it() -> None:
    host = spark({**FAST, "image": "vllm/vllm-openai:v0.33.0", "kv_tiers": {"host_gib": 8, "disk_gib": 200}})
    folder = "/var/cache/dgxspark/fast/kv"

    def on_disk(free_gib: float) -> tuple[list[str], list[str]]:
        measured = {**MEASURED, "disks": {**MEASURED["disks"], folder: {"free_gib": free_gib}}}
        planned = host_plan.plan_host(replace(host, measured=measured), SOURCES)
        messages = [finding["message"] for finding in planned.findings if finding["rule"] == "host.disk"]
        return planned.settings["kv_folders"], messages

    folders, (message,) = on_disk(150.0)
    assert folders == [folder]
    assert message.startswith(f"the disk of {folder} has 150.0 GiB free; kv_tiers.disk_gib is 200")
    assert on_disk(250.0) == ([folder], [])


def test_an_engine_that_reads_by_io_uring_has_a_profile_unless_one_is_chosen() -> None:
    def options(**service: Any) -> list[str]:
        host = spark({**FAST, **service})
        return service_files.profile_option(service_files.place(host.settings, host.services[0], SOURCES.digest).files)

    table = {"env": {"VLLM_PLE_TABLE_MEMORY": "disk"}}
    option, profile = options(**table)
    assert option == "--security-opt" and profile.startswith("seccomp=/etc/dgxspark/files/fast/")
    assert options() == []
    assert options(**table, docker_args=["--security-opt", "seccomp=/etc/own.json"]) == []


def test_a_path_into_the_checkpoint_needs_a_link_to_its_snapshot() -> None:
    def linked(digest: str | None = None, **service: Any) -> bool:
        host = spark({**FAST, **service})
        return service_files.place(host.settings, host.services[0], lambda _path: digest).linked

    assert not linked()
    assert linked(args={**FAST["args"], "chat-template": "{model}/chat.jinja"})
    assert linked(files=[{"source": "{model}/chat.jinja", "path": "/chat.jinja"}])
    assert not linked("0" * 64, files=[{"source": "/here/chat.jinja", "path": "/chat.jinja"}])
    # A model in a folder has no snapshot.
    folder = {"model": {"path": "/srv/models/fast"}, "args": {**FAST["args"], "chat-template": "{model}/chat.jinja"}}
    assert not linked(**folder)


def test_a_shorter_context_is_the_fix_of_the_models_maximum_too_if_it_is_below() -> None:
    """The 4B takes 262,144 tokens at most, of 144 KiB each: a tenth of the memory holds fewer, most of it more."""

    def fixes(utilization: float) -> dict[str, str]:
        host = spark(
            {**FAST, "args": {**FAST["args"], "gpu-memory-utilization": utilization, "max-model-len": 900_000}}
        )
        findings = host_plan.plan_host(host, SOURCES).findings
        assert {finding.get("consequence_of") for finding in findings if finding["rule"] == "memory.one_request"} == {
            "SPK403"
        }
        return {finding["rule"]: finding["fix"] for finding in findings}

    small, large = fixes(0.2), fixes(0.85)
    assert small["SPK403"] == small["memory.one_request"]
    assert large["SPK403"] != large["memory.one_request"] and "262144" in large["SPK403"]


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


def cabled(executor: str = "mp", **fabric: Any) -> tuple[dict[str, Any], dict[str, Host]]:
    """The plan of a pair with a cable whose addresses the role has set, and its hosts. fabric: facts of the second one's netdevs."""
    cluster = Cluster(
        "pair", ["s1", "s2"], executor, [{"name": "big", "recipe": "qwen3-235b-a22b-gptq-int4", "port": 8000}]
    )
    facts = cluster_fixture.settled_ring(cluster.hosts)
    for port in facts["s2"]["fabric"]["ports"]:
        for netdev in port["netdevs"]:
            netdev.update(fabric)
    hosts = {
        name: replace(
            spark(name=name, address=f"192.0.2.{name[1]}"), measured={**MEASURED, "fabric": facts[name]["fabric"]}
        )
        for name in cluster.hosts
    }
    messages: list[str] = []
    planned = spanning.plan_cluster(cluster, hosts, SOURCES, messages)
    assert messages == []
    return planned


def test_the_head_of_an_engine_by_ray_keeps_its_network_variables_to_itself() -> None:
    """vLLM would copy the interfaces and devices of the head to the other ranks."""

    def carried(executor: str) -> list[list[str]]:
        members = cabled(executor)[1].values()
        placed = [service_files.place(host.settings, host.services[1], SOURCES.digest) for host in members]
        return [[file.content or "" for file in ranked.files if file.path == carry_over] for ranked in placed]

    carry_over = ray_cluster.carry_over([])["path"]
    assert carried("mp") == [[], []]
    (content,), of_worker = carried("ray")
    assert of_worker == [] and "NCCL_SOCKET_IFNAME" in content


def test_an_mtu_that_differs_is_a_warning_that_the_role_tests() -> None:
    findings = cabled(mtu=1500)[0]["findings"]
    assert {finding["severity"] for finding in findings if finding["rule"] == "fabric.mtu_differs"} == {"warning"}
    assert not [finding for finding in cabled()[0]["findings"] if finding["rule"] == "fabric.mtu_differs"]


def test_errors_that_the_role_may_repair_are_warnings() -> None:
    """Both netdevs of the second host are in one subnet, by a file of somebody else, which the role replaces on request."""
    facts = [cluster_fixture.fabric_facts(number) for number in (1, 2)]
    for netdev in facts[1]["ports"][0]["netdevs"]:
        netdev["addresses"] = [netdev["addresses"][0].replace("192.168.101", "192.168.100")]
        netdev["stored"] = [{"path": "/etc/netplan/99-own.yaml", "persistent": True, "alone": True, "managed": False}]
    hosts = {
        name: replace(spark(name=name, address=f"192.0.2.{name[1]}"), measured={**MEASURED, "fabric": fabric})
        for name, fabric in zip(("s1", "s2"), facts)
    }

    def severities(**fabric: Any) -> set[str]:
        cluster = Cluster("pair", ["s1", "s2"], "mp", [], fabric=fabric)
        findings = spanning.plan_cluster(cluster, hosts, SOURCES, [])[0]["findings"]
        return {finding["severity"] for finding in findings if finding["rule"] == "fabric.same_subnet"}

    assert severities() == {"error"}
    assert severities(migrate=True) == {"warning"}


def test_hosts_of_a_cluster_take_part_in_one_test_of_their_network() -> None:
    cluster_plan, members = cabled()
    planned = {name: host_plan.plan_host(host, SOURCES) for name, host in members.items()}
    rules = {finding["rule"] for finding in planned["s2"].findings}
    assert "model.moving_revision" in rules
    members["s2"].settings["spark_ignore_rules"] = ["model.moving_revision"]
    cluster = Cluster("pair", ["s1", "s2"], "mp", [])
    spanning.join_ranks(cluster, cluster_plan, members, planned)
    tests = [(body.cluster or {})["collective"] for body in planned.values()]
    assert [(test["service"], test["host"], test["hosts"]) for test in tests] == [
        ("big", "s1", ["s1", "s2"]),
        ("big", "s2", ["s1", "s2"]),
    ]
    # A rule that a host ignores is left out of its findings alone.
    assert {finding["rule"] for finding in planned["s2"].findings} == rules - {"model.moving_revision"}
    assert "model.moving_revision" in {finding["rule"] for finding in planned["s1"].findings}


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


@pytest.mark.parametrize("ignored", [False, True])
def test_an_open_prometheus_of_a_host_that_is_no_spark_is_told_unless_ignored(ignored: bool) -> None:
    rules = {"spark_ignore_rules": ["monitoring.open"]} if ignored else {}
    sockets = [{"kind": "prometheus", "port": 9090, "address": "0.0.0.0"}]
    around: dict[str, Any] = {"forge": {"sockets": sockets, "findings": []}}
    forge = spark(name="forge", **rules)
    plan.plan_firewalls({}, {"forge": forge}, {}, {}, around, lambda _name: ())
    assert [finding["rule"] for finding in around["forge"]["findings"]] == ([] if ignored else ["monitoring.open"])


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
