"""Clusters: read, checked, planned per rank. The fabric's own planning is tested in test_fabric.py."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_fixture import fabric_facts
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import clustering, firewall
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import nccl_data

ROOT = Path(__file__).parents[5]
LARGE = {"name": "large", "recipe": "qwen3-235b-a22b-gptq-int4", "port": 8000}
FAST = {
    "name": "fast",
    "recipe": "qwen3-4b-instruct-2507",
    "port": 8002,
    "args": {"gpu-memory-utilization": 0.11, "max-num-seqs": 1},
}
IMAGE = "nvcr.io/nvidia/vllm:26.04-py3"


def cluster(*services: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "pair", "services": list(services or (LARGE,)), **more}


def hosts(body: Any, count: int = 2, **by_host: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Hosts s1, s2 ... of one cluster; by_host: further keys of one host (vars are merged)."""
    made = {}
    for number in range(1, count + 1):
        more = copy.deepcopy(by_host.get(f"s{number}") or {})
        variables = {"spark_cluster": copy.deepcopy(body), **more.pop("vars", {})}
        made[f"s{number}"] = {"vars": variables, "address": f"10.0.0.{number}", "measured": None, "images": {}, **more}
    return made


def plan_of(body: Any, count: int = 2, **by_host: dict[str, Any]) -> dict[str, Any]:
    arguments = hosts(body, count, **by_host)
    return engine.make_plan(arguments, RECIPES, groups={"pair": list(arguments), "sparks": list(arguments)})


def refused(body: Any, count: int = 2, groups: dict[str, list[str]] | None = None, **by_host: dict[str, Any]) -> str:
    arguments = hosts(body, count, **by_host)
    with pytest.raises(InventoryError) as caught:
        engine.make_plan(arguments, RECIPES, groups=groups or {"pair": list(arguments)})
    return "\n".join(caught.value.messages)


def rank(plan: dict[str, Any], host: str, name: str = "large") -> dict[str, Any]:
    return next(service for service in plan["hosts"][host]["services"] if service["name"] == name)


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def rules(plan: dict[str, Any], host: str, severity: str | None = None) -> set[str]:
    return {f["rule"] for f in plan["hosts"][host]["findings"] if severity in (None, f["severity"])}


def test_a_malformed_service_of_a_host_is_named_beside_what_its_cluster_leaves_open() -> None:
    result = refused(cluster(), s1={"vars": {"spark_services": [{"name": "own", "port": 8002}]}})
    assert "host s1, spark_services[0] (own): 'recipe' is missing." in result


def test_a_port_of_a_malformed_service_is_taken_all_the_same() -> None:
    result = refused(cluster(), s1={"vars": {"spark_services": [{"name": "own", "port": LARGE["port"]}]}})
    assert "port 8000 is used on the head s1 already, by own" in result


def measured(number: int, cage: int = 0, available: float = 114.0) -> dict[str, Any]:
    return {
        "machine": {"is_spark": True},
        "kernel": "6.17.0-1018-nvidia",
        "architecture": "aarch64",
        "gpu": {"name": "NVIDIA GB10", "driver_version": "580.159.03"},
        "memory": {"total_gib": 119.67, "available_gib": available},
        "docker": {"version": "29.2.1", "runtimes": ["nvidia", "runc"]},
        "management_address": f"10.0.0.{number}",
        "fabric": fabric_facts(number, cage),
        "disks": {"/srv/huggingface": {"free_gib": 900.0, "total_gib": 3700.0}},
        **{key: [] for key in ("containers", "units", "services", "listening", "resident", "models")},
    }


def pair_hosts(**more: Any) -> dict[str, Any]:
    """Both hosts of a pair with what they said; more: changes of the second one's facts."""
    return {"s1": {"measured": measured(1)}, "s2": {"measured": {**measured(2), **more}}}


# --- one rank on each host ------------------------------------------------------------------------------------------


def test_each_host_gets_its_rank_of_one_launch() -> None:
    plan = plan_of(cluster())
    first, second = rank(plan, "s1"), rank(plan, "s2")
    assert [first["rank"], second["rank"]] == [0, 1]
    assert first["unit"] == second["unit"] == "spark-large.service"
    assert first["url"] == "http://127.0.0.1:8000"
    assert second["url"] is None
    assert second["probe"]["url"] is None
    assert second["settings"]["url"] is None
    for entry, number in ((first, "0"), (second, "1")):
        assert option(entry["argv"], "--node-rank") == number
        assert option(entry["argv"], "--nnodes") == "2"
        assert option(entry["argv"], "--master-addr") == "s1"
        assert option(entry["argv"], "--tensor-parallel-size") == "2"
        assert option(entry["argv"], "--distributed-executor-backend") == "mp"
        assert entry["argv"][entry["argv"].index("--device") :][:2] == ["--device", "/dev/infiniband"]
    assert "--headless" not in first["argv"]
    assert "--headless" in second["argv"]
    row = {"--node-rank", "0", "1", "--headless"}
    fingerprints = {
        word for entry in (first, second) for word in entry["argv"] if word.startswith("dgxspark.fingerprint=")
    }
    assert set(first["argv"]) ^ set(second["argv"]) <= row | fingerprints
    assert rules(plan, "s1", "error") == rules(plan, "s2", "error") == set()


def test_the_supervisor_of_each_rank_knows_its_peers() -> None:
    plan = plan_of(cluster(peer_timeout=20), **pair_hosts())
    first, second = (rank(plan, host)["settings"]["rank"] for host in ("s1", "s2"))
    assert first["peers"] == [{"rank": 1, "host": "s2", "address": "192.168.100.12"}]
    assert second["peers"] == [{"rank": 0, "host": "s1", "address": "192.168.100.11"}]
    assert first["address"] == "192.168.100.11"
    assert first["fingerprint"] == second["fingerprint"] != ""
    assert first["peer_timeout_seconds"] == 20
    assert first["parts"] == [{"container": "spark-large", "argv": rank(plan, "s1")["argv"]}]
    assert first["model"] == {
        "repo": "Qwen/Qwen3-235B-A22B-GPTQ-Int4",
        "revision": "main",
        "hub": "/srv/huggingface/hub",
    }


def test_a_change_on_one_rank_changes_the_mark_of_all() -> None:
    before = plan_of(cluster(), **pair_hosts())
    after = plan_of(cluster(), **{**pair_hosts(), "s2": {"measured": measured(2, cage=1)}})
    marks = [rank(plan, host)["settings"]["rank"]["fingerprint"] for plan in (before, after) for host in ("s1", "s2")]
    assert marks[0] == marks[1] != marks[2] == marks[3]


@pytest.mark.parametrize("change", [{"peer_timeout": 90}, {"head": "s2"}, {"services": [{**LARGE, "env": {"A": "1"}}]}])
def test_whatever_ranks_go_by_changes_their_mark(change: dict[str, Any]) -> None:
    marks = [
        rank(plan_of({**cluster(), **body}, **pair_hosts()), "s1")["settings"]["rank"]["fingerprint"]
        for body in ({}, change)
    ]
    assert marks[0] != marks[1]


def test_the_environment_is_that_of_each_host() -> None:
    """A cable in different cages: names differ by host."""
    plan = plan_of(cluster(), s1={"measured": measured(1)}, s2={"measured": measured(2, cage=1)})
    first, second = rank(plan, "s1")["env"], rank(plan, "s2")["env"]
    assert first["NCCL_IB_HCA"] == "rocep1s0f0,roceP2p1s0f0"
    assert second["NCCL_IB_HCA"] == "rocep1s0f1,roceP2p1s0f1"
    assert (first["VLLM_HOST_IP"], second["VLLM_HOST_IP"]) == ("192.168.100.11", "192.168.100.12")
    assert (first["GLOO_SOCKET_IFNAME"], second["GLOO_SOCKET_IFNAME"]) == ("enp1s0f0np0", "enp1s0f1np1")
    assert first["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "1800"
    assert "NCCL_IB_GID_INDEX" not in first
    for host in ("s1", "s2"):
        assert option(rank(plan, host)["argv"], "--master-addr") == "192.168.100.11"


def test_what_a_service_says_goes_before_what_the_fabric_says() -> None:
    plan = plan_of(cluster({**LARGE, "env": {"NCCL_DEBUG": "INFO", "NCCL_IB_MERGE_NICS": "0"}}), **pair_hosts())
    for host in ("s1", "s2"):
        assert rank(plan, host)["env"]["NCCL_IB_MERGE_NICS"] == "0"
        assert rank(plan, host)["env"]["NCCL_DEBUG"] == "INFO"


def test_the_head_may_be_another_host() -> None:
    plan = plan_of(cluster(head="s2"), **pair_hosts())
    assert [rank(plan, host)["rank"] for host in ("s1", "s2")] == [1, 0]
    assert plan["clusters"]["pair"]["hosts"] == ["s2", "s1"]
    assert option(rank(plan, "s1")["argv"], "--master-addr") == "192.168.100.12"


def test_only_the_head_listens_and_holds_the_key() -> None:
    result = pair_hosts()
    result["s1"]["vars"] = {"spark_allow_from": ["10.0.0.9"]}
    plan = plan_of(cluster({**LARGE, "api_key_file": "/keys/one"}), **result)
    first, second = rank(plan, "s1"), rank(plan, "s2")
    assert first["host"] == "10.0.0.1"
    assert [secret["name"] for secret in first["secrets"]] == ["VLLM_API_KEY"]
    assert second["host"] == "127.0.0.1"
    assert second["secrets"] == []


def test_three_sparks() -> None:
    """Tensor parallelism over three splits no model; pipeline stages do."""
    service = {
        **LARGE,
        "recipe": "qwen3-30b-a3b",
        "model": {"revision": "0" * 40},  # a moving revision is refused on three Sparks
        "args": {"pipeline-parallel-size": 3, "tensor-parallel-size": 1},
    }
    plan = plan_of(cluster(service), 3)
    assert [rank(plan, host)["rank"] for host in ("s1", "s2", "s3")] == [0, 1, 2]
    assert option(rank(plan, "s3")["argv"], "--nnodes") == "3"
    assert rules(plan, "s1", "error") == set()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_what_is_left_open_is_worked_out_once_for_all_ranks() -> None:
    small = {"s2": {"vars": {"spark_total_gib": 100.0}}}
    for by_host in ({}, small):
        plan = plan_of(cluster({**LARGE, "args": {"max-model-len": "auto"}}), **by_host)
        values = [
            {key: rank(plan, host)["args"][key] for key in ("gpu-memory-utilization", "max-model-len")}
            for host in ("s1", "s2")
        ]
        assert values[0] == values[1]
        assert rank(plan, "s1")["memory"]["solved"] == ["gpu-memory-utilization", "max-model-len"]
    alone = plan_of(cluster({**LARGE, "args": {"max-model-len": "auto"}}), s1={"vars": {"spark_total_gib": 100.0}})
    assert rank(plan, "s1")["args"] == rank(alone, "s1")["args"] | {"node-rank": 0}, (
        "the smaller host decides, whichever it is"
    )


def test_services_of_a_host_count_beside_its_rank_and_start_before_it() -> None:
    plan = plan_of(cluster(), s2={"vars": {"spark_services": [FAST]}})
    second = plan["hosts"]["s2"]
    assert second["start_order"] == ["fast", "large"]
    assert rank(plan, "s2")["after"] == ["spark-fast.service"]
    assert plan["hosts"]["s1"]["start_order"] == ["large"]
    gpu_memory_utilization = rank(plan, "s2")["memory"]["gpu_memory_utilization"]
    assert second["utilization_sum"] == pytest.approx(gpu_memory_utilization + 0.11)


def test_services_of_a_cluster_start_in_one_order_on_all_hosts() -> None:
    """By size they would start in different orders if one host had less memory; each would wait for the other."""
    small = {"name": "small", "recipe": "qwen3-30b-a3b", "port": 8001, "args": {"gpu-memory-utilization": 0.3}}
    large = {**small, "name": "larger", "port": 8005, "args": {"gpu-memory-utilization": 0.4}}
    plan = plan_of(cluster(small, large))
    for host in ("s1", "s2"):
        assert plan["hosts"][host]["start_order"] == ["small", "larger"]
        assert option(rank(plan, host, "small")["argv"], "--master-port") == "29501"
        assert option(rank(plan, host, "larger")["argv"], "--master-port") == "29502"
    ports = {rank(plan, "s1", name)["settings"]["rank"]["port"] for name in ("small", "larger")}
    assert len(ports) == 2


def test_what_one_host_lacks_refuses_the_cluster() -> None:
    heavy = {**FAST, "name": "heavy", "recipe": "qwen3-30b-a3b", "args": {"gpu-memory-utilization": 0.6}}
    plan = plan_of(cluster(), s2={"vars": {"spark_services": [heavy]}})
    assert rules(plan, "s1", "error") == set()
    assert rules(plan, "s2", "error") != set()


def test_a_model_that_does_not_fit_on_one_spark_fits_on_two() -> None:
    first = engine.make_plan(
        {"s1": {"vars": {"spark_services": [{**LARGE, "variant": "one-spark"}]}, "address": "10.0.0.1"}}, RECIPES
    )
    assert first["hosts"]["s1"]["verdict"] == "fails"
    plan = plan_of(cluster())
    assert plan["hosts"]["s1"]["verdict"] != "fails"
    assert rank(plan, "s1")["memory"]["weights_bytes"] / 2**30 == pytest.approx(57.64, rel=0.01)


# --- executor -----------------------------------------------------------------------------------------------------------


def probed(**probe: Any) -> dict[str, Any]:
    packages = {"vllm": probe.get("vllm_version", "0.24.0"), **({"ray": probe["ray"]} if probe.get("ray") else {})}
    image = {"present": True, "id": "sha256:" + "a" * 64, "repo_digests": [], "entrypoint_family": "passthrough"}
    return {IMAGE: {**image, "probe": {"packages": packages, "options": [], "names": [], **probe}}}


@pytest.mark.parametrize(
    ("expected", "probe", "executor", "built"),
    [
        ("auto", {"vllm_version": "0.24.0"}, "mp", False),
        ("auto", {"vllm_version": "0.24.0", "ray": "2.60.0"}, "mp", False),
        ("auto", {"vllm_version": "0.24.0", "options": ["model"] * 3, "ray": "2.60.0"}, "ray", False),
        ("auto", {"vllm_version": "0.24.0", "options": ["model", "nnodes"]}, "mp", False),
        ("ray", {"vllm_version": "0.24.0", "ray": "2.60.0"}, "ray", False),
        ("ray", {"vllm_version": "0.24.0"}, "ray", True),
        ("mp", {"vllm_version": "0.24.0"}, "mp", False),
    ],
)
def test_the_executor(expected: str, probe: dict[str, Any], executor: str, built: bool) -> None:
    image = {"images": probed(**probe)}
    plan = plan_of(cluster(executor=expected), s1=image, s2=image)
    about = plan["clusters"]["pair"]["services"][0]
    assert about["executor"] == executor
    assert about["reason"]
    first = rank(plan, "s1")
    assert option(first["command"], "--distributed-executor-backend") == executor
    assert (first["ray_image"] is not None) == built
    assert bool(plan["hosts"]["s1"]["ray_images"]) == built
    assert "SPK802" not in rules(plan, "s1")
    message = next(f for f in plan["hosts"]["s1"]["findings"] if f["rule"] == "cluster.executor")
    assert executor in message["message"]


def test_with_ray_every_host_runs_ray_and_the_head_the_engine_beside_it() -> None:
    plan = plan_of(cluster(executor="ray"), **pair_hosts())
    first, second = rank(plan, "s1")["parts"], rank(plan, "s2")["parts"]
    assert [part["container"] for part in first] == ["spark-large-ray", "spark-large"]
    assert [part["container"] for part in second] == ["spark-large-ray"]
    assert first[1]["after"] == {"ray": {"address": "192.168.100.11:6379", "nodes": 2, "gpus": 2}}
    assert option(first[1]["argv"], "--ipc") == "container:spark-large-ray"
    assert "--shm-size" not in first[1]["argv"]
    assert "nnodes" not in rank(plan, "s1")["args"]
    # The image has no Ray: both containers run from the derived image.
    tag = rank(plan, "s1")["ray_image"]["tag"]
    assert tag in first[0]["argv"]
    assert tag in first[1]["argv"]
    assert tag in second[0]["argv"]
    assert rank(plan, "s1")["settings"]["rank"]["image"] == rank(plan, "s1")["image"]["ref"], (
        "what is compared is what it is made from"
    )


def test_each_engine_has_a_ray_of_its_own() -> None:
    """One Ray gives an engine the whole GPU of each host, so a second engine would wait for ever."""
    small = {"name": "small", "recipe": "qwen3-30b-a3b", "port": 8001, "args": {"gpu-memory-utilization": 0.3}}
    plan = plan_of(cluster(small, {**small, "name": "other", "port": 8002}, executor="ray"), **pair_hosts())
    waits = [rank(plan, "s1", name)["parts"][1]["after"]["ray"]["address"] for name in ("small", "other")]
    assert waits == ["192.168.100.11:6379", "192.168.100.11:6380"]


def test_the_heads_own_variables_are_kept_from_the_workers() -> None:
    plan = plan_of(cluster(executor="ray"), **pair_hosts())
    file = rank(plan, "s1")["files"][0]
    assert {"NCCL_IB_HCA", "VLLM_HOST_IP"} <= set(json.loads(file["content"]))
    assert f"type=bind,src={file['host']},dst={file['path']},readonly" in rank(plan, "s1")["argv"]
    assert f"VLLM_CONFIG_ROOT={file['path'].rpartition('/')[0]}" in rank(plan, "s1")["argv"]
    assert {"path": "/etc/dgxspark/files/large", "mode": "0755"} in rank(plan, "s1")["folders"]
    assert rank(plan, "s2")["files"] == []
    assert rank(plan_of(cluster(), **pair_hosts()), "s1")["files"] == []


@pytest.mark.parametrize(
    ("version", "probe", "entry", "target"),
    [
        ("0.24.0", {"packages": {"ray": "2"}, "ray": "2"}, {"ray": False}, True),
        ("0.12.0", {"packages": {"vllm": "0.12.0"}}, {"ray": True}, False),
        ("0.12.0", {}, {"ray": False}, False),
        ("0.12.0", {}, None, True),
        ("0.18.0", {}, None, False),
        (None, {}, None, False),
    ],
)
def test_whether_an_image_has_ray(
    version: str | None, probe: dict[str, Any], entry: dict[str, Any] | None, target: bool
) -> None:
    assert clustering.has_ray(version, probe, entry) is target


# --- refused clusters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "needle"),
    [
        ({"executor": "rai"}, "'executor' is 'rai'; did you mean 'ray'? It must be auto, mp or ray"),
        ({"head": "s9"}, "'head' is 's9', which is not one of its hosts (s1, s2)"),
        ({"servces": []}, "unknown key 'servces'; did you mean 'services'?"),
        ({"peer_timeout": 1}, "'peer_timeout' is 1; it must be a number of seconds from 5 to 86400"),
        ({"peer_timeout": True}, "'peer_timeout' is a boolean"),
        ({"ray_version": "new"}, "'ray_version' is 'new'"),
        ({"ray_version": 2.6}, "'ray_version' is a number; it must be a text"),
        ({"services": {"a": 1}}, "'services' is a mapping; it must be a list"),
        ({"fabric": {"mtuu": 9000}}, "unknown key of fabric: 'mtuu'; did you mean 'mtu'?"),
        ({"fabric": {"mtu": 100}}, "'fabric.mtu' is 100; it must be a whole number from 1280 to 9216"),
        ({"fabric": {"topology": "rings"}}, "'fabric.topology' is 'rings'; did you mean 'ring'?"),
        ({"fabric": {"revert_seconds": 9}}, "a whole number of seconds from 10 to 3600"),
        ({"fabric": {"subnets": [3]}}, "fabric.subnets[0] is 3, not a text"),
        ({"fabric": {"min_gbps": {"iperf3": "x"}}}, "fabric.min_gbps.iperf3 is 'x', not a number"),
        ({"fabric": {"network": "nonsense"}}, "network: "),
        ({"name": "pear"}, "did you mean 'pair'?"),
    ],
)
def test_what_is_wrong_with_a_cluster_is_named(change: dict[str, Any], needle: str) -> None:
    body = {**cluster(), **change}
    assert needle in refused(body)


@pytest.mark.parametrize(
    ("service", "needle"),
    [
        (
            {"args": {"nnodes": 2}},
            "args names 'nnodes', which is the cluster's to say (the number of the cluster's hosts)",
        ),
        ({"args": {"distributed_executor_backend": "ray"}}, "spark_cluster.executor"),
        (
            {"args": {"data-parallel-size": 2}},  # of the recipe, which has TP 2
            "data-parallel-size 2 is 2 replicas of 2 GPUs each, 4 Sparks in all; it spans 2. Make tensor-parallel-size x "
            "pipeline-parallel-size 1, or name 4 hosts in 'hosts'.",
        ),
        (
            {"args": {"data-parallel-size": "4", "tensor-parallel-size": 1}},
            "data-parallel-size 4 is 4 replicas, 4 Sparks in all; it spans 2. Make data-parallel-size x tensor-parallel-size x "
            "pipeline-parallel-size 2, or",
        ),
        ({"args": {"data-parallel-rank": 1}}, "args names 'data-parallel-rank'. Replicas of a cluster come from"),
        ({"args": {"data-parallel-external-lb": True}}, "args names 'data-parallel-external-lb'"),
        ({"args": {"data-parallel-backend": "ray"}}, "other backends and balancers are not supported"),
        ({"args": {"data-parallel-address": "10.0.0.1"}}, "the cluster's to say (the head's address on the fabric)"),
        ({"env": {"VLLM_HOST_IP": "10.0.0.1"}}, "env names VLLM_HOST_IP"),
        ({"port": "x"}, "'port' is a text; it must be a whole number from 1 to 65535"),
        ({"recipe": "qwen3-235b-a22b-gptq-int5"}, "did you mean 'qwen3-235b-a22b-gptq-int4'?"),
    ],
)
def test_what_is_wrong_with_a_service_of_a_cluster_is_named(service: dict[str, Any], needle: str) -> None:
    assert needle in refused(cluster({**LARGE, **service}))


def test_names_and_ports_are_unique_among_both_kinds() -> None:
    text = refused(cluster(), s1={"vars": {"spark_services": [{**FAST, "port": 8000}]}})
    assert "port 8000 is used on the head s1 already, by fast" in text
    text = refused(cluster({**LARGE, "name": "fast"}), s2={"vars": {"spark_services": [FAST]}})
    assert "the name is taken on host s2" in text
    # A port that only the worker uses is free on the head.
    plan = plan_of(cluster(), s2={"vars": {"spark_services": [{**FAST, "port": 8000}]}})
    assert "s2" in plan["hosts"]


def test_the_group_must_be_what_the_cluster_says() -> None:
    assert "has 1 host; a cluster has two or more" in refused(cluster(), 1)
    text = refused(cluster(), groups={"pair": ["s1"], "other": ["s2"]})
    assert "host s2, spark_cluster: its name is pair, a group that this host is not in" in text
    text = refused(cluster(), s2={"vars": {"spark_cluster": cluster(peer_timeout=9)}})
    assert "spark_cluster of host s2 differs" in text
    text = refused(cluster(), s2={"vars": {"spark_defaults": {"env": {"A": "1"}}}})
    assert "spark_defaults differs on host s2 and the head s1" in text
    text = refused(cluster(), groups={"pair": ["s1", "s2", "s3"]})
    assert "host s3 of the group is not in the group of the Sparks" in text


def test_a_recipe_for_more_sparks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPES, LARGE["recipe"], {**RECIPES[str(LARGE["recipe"])], "nodes": 4})
    assert "needs 4 Sparks, the cluster has 2" in refused(cluster())


def test_a_recipe_for_fewer_sparks_has_to_be_split_over_all() -> None:
    assert "SPK810" in rules(plan_of(cluster(), 4), "s1", "error")


SPLITS = [(4, 4, 1), (4, 2, 2), (4, 1, 4), (8, 8, 1), (8, 4, 2), (8, 2, 4), (3, 1, 3)]


@pytest.mark.parametrize(("size", "tensor", "stages"), SPLITS)
def test_ranks_of_three_to_eight_are_planned_each(size: int, tensor: int, stages: int) -> None:
    args = {"tensor-parallel-size": tensor, "pipeline-parallel-size": stages, "enable-expert-parallel": None}
    made = plan_of(cluster({**LARGE, "args": args}), size)
    ranks = [rank(made, f"s{number + 1}") for number in range(size)]
    assert [option(entry["command"], "--node-rank") for entry in ranks] == [str(number) for number in range(size)]
    assert {option(entry["command"], "--nnodes") for entry in ranks} == {str(size)}
    assert ["--headless" in entry["command"] for entry in ranks] == [False] + [True] * (size - 1)
    assert {entry["memory"]["verdict"] for entry in ranks} == {"fits"}
    weights = [entry["memory"]["weights_bytes"] / 2**30 for entry in ranks]
    # 115 GiB in all; embeddings and norms are on several ranks.
    assert 114 < sum(weights) < 120 and max(weights) - min(weights) < 0.1 * max(weights)
    assert rules(made, "s1", "error") == {"lock.moving"}  # main, on more than two Sparks


# --- replicas -------------------------------------------------------------------------------------------------------

GIB = 1 << 30


def replicas(count: int, tensor: int = 1, **more: Any) -> dict[str, Any]:
    """A mixture of experts as so many replicas, each split over so many ranks."""
    args = {"data-parallel-size": count, "tensor-parallel-size": tensor, **more}
    return {"name": "large", "recipe": "qwen3-30b-a3b", "port": 8000, "args": {"enable-expert-parallel": True, **args}}


def test_replicas_of_one_rank_each_find_the_head_and_number_themselves() -> None:
    plan = plan_of(cluster(replicas(2)), **pair_hosts())
    first, second = rank(plan, "s1"), rank(plan, "s2")
    for entry in (first, second):
        argv = entry["command"]
        assert option(argv, "--data-parallel-size") == "2" and option(argv, "--data-parallel-size-local") == "1"
        assert option(argv, "--data-parallel-address") == "192.168.100.11"
        assert option(argv, "--data-parallel-rpc-port") == "29550"
        assert option(argv, "--distributed-executor-backend") == "mp"
        assert not {"--nnodes", "--node-rank", "--master-addr", "--master-port"} & set(argv)
    # Not on the head: there vLLM takes it for another way to share requests out.
    assert "--data-parallel-start-rank" not in first["command"] and "--headless" not in first["command"]
    assert option(second["command"], "--data-parallel-start-rank") == "1" and "--headless" in second["command"]
    # One process answers requests, on the head; a rank that is headless takes none.
    assert option(first["command"], "--api-server-count") == "1" and "--api-server-count" not in second["command"]
    assert [entry["env"]["VLLM_HOST_IP"] for entry in (first, second)] == ["192.168.100.11", "192.168.100.12"]
    assert rules(plan, "s1", "error") == rules(plan, "s2", "error") == set()
    (result,) = [entry for entry in plan["hosts"]["s1"]["findings"] if entry["rule"] == "cluster.executor"]
    assert "2 replicas: each has its own KV cache, and max-num-seqs is for each" in result["message"]


@pytest.mark.parametrize("executor", ["mp", "ray"])
def test_each_host_counts_the_host_memory_of_its_rank(executor: str) -> None:
    seen = {"name": "large", "recipe": "gemma-4-26b-a4b", "port": 8000, "args": {"kv-offloading-size": 8}}
    plan = plan_of(cluster(seen, executor=executor), **pair_hosts())
    names = [{part["name"] for part in rank(plan, host)["memory"]["host_memory"]} for host in ("s1", "s2")]
    everywhere = {"KV offload buffer", *(["Ray"] if executor == "ray" else [])}
    assert names == [{*everywhere, "media cache", "grammar cache", "further processes"}, everywhere]
    labels = [{part["label"] for part in plan["hosts"][host]["memory_map"]} for host in ("s1", "s2")]
    assert labels[0] - labels[1] == {"large media cache", "large further processes"}


def test_replicas_of_several_ranks_are_nodes_of_one_launch() -> None:
    plan = plan_of(cluster(replicas(2, 2, **{"api-server-count": 3})), 4)
    ranks = [rank(plan, f"s{number}") for number in (1, 2, 3, 4)]
    for number, entry in enumerate(ranks):
        argv = entry["command"]
        assert (option(argv, "--nnodes"), option(argv, "--node-rank")) == ("4", str(number))
        assert (option(argv, "--master-addr"), option(argv, "--data-parallel-address")) == ("s1", "s1")
        assert "--data-parallel-start-rank" not in argv  # vLLM works it out from the node
        assert ("--headless" in argv) == (number > 0) and ("--api-server-count" in argv) == (number == 0)
    assert option(ranks[0]["command"], "--api-server-count") == "3"
    assert rules(plan, "s1", "error") <= {"lock.moving"}  # main, on more than two Sparks


def test_replicas_share_hosts_out_where_nothing_says_how_each_is_split() -> None:
    for size, count, tensor in ((2, 2, "1"), (4, 2, "2"), (4, 4, "1")):
        result = clustering.spanning_args({"data-parallel-size": str(count)}, "mp", 0, size, "s1")
        assert str(result["tensor-parallel-size"]) == tensor


def test_ports_of_services_with_replicas_differ_and_are_closed_to_other_networks() -> None:
    first, other = ({**replicas(2, **{"gpu-memory-utilization": 0.4}), "name": name} for name in ("a", "b"))
    plan = plan_of(cluster(first, {**other, "port": 8001}), **pair_hosts())
    for host in ("s1", "s2"):
        ports = [int(option(rank(plan, host, name)["command"], "--data-parallel-rpc-port")) for name in ("a", "b")]
        assert ports == [29550, 29551] and all(firewall.is_closed(port, firewall.CLOSED) for port in ports)
        wall = plan["hosts"][host]["firewall"]
        # Ports that the kernel gives to vLLM are in the ranges, too; the other host comes in by the fabric.
        assert wall["ranges"] and firewall.is_closed(40000, [firewall.EPHEMERAL])
        assert wall["fabric"] or wall["peers"]


def test_replicas_hold_all_but_the_experts_each() -> None:
    """48 layers of 128 experts, each three matrices of 2048 x 768; all else is whole on each replica."""
    experts = 48 * 128 * 3 * 2048 * 768
    alone, pair, four = (
        rank(plan_of(cluster(replicas(count, **{"max-num-seqs": 4})), count), "s2")["memory"] for count in (2, 2, 4)
    )
    assert alone == pair
    # In 16 bits, two bytes each.
    assert pair["weights_bytes"] - four["weights_bytes"] == 2 * experts // 4
    tensor = rank(plan_of(cluster({**replicas(1, 2, **{"max-num-seqs": 4})})), "s2")["memory"]
    # Two replicas keep two copies of the weights that two ranks share.
    assert pair["weights_bytes"] > tensor["weights_bytes"] + 0.5 * GIB
    # The cache is for a whole model: each rank of a split one keeps half of the heads.
    cache = {
        name: entry["marginal_bytes_per_token"] for name, entry in (("pair", pair), ("four", four), ("tensor", tensor))
    }
    assert cache["pair"] == cache["four"] == 2 * cache["tensor"]


def test_each_replica_is_whole_where_a_model_has_no_experts() -> None:
    dense = {**FAST, "name": "large", "args": {**FAST["args"], "data-parallel-size": 2, "gpu-memory-utilization": 0.3}}
    memory = [rank(plan_of(cluster(dense)), host)["memory"] for host in ("s1", "s2")]
    alone = plan_of(cluster(), s1={"vars": {"spark_services": [{**FAST, "args": {"gpu-memory-utilization": 0.3}}]}})
    assert {entry["weights_bytes"] for entry in memory} == {rank(alone, "s1", "fast")["memory"]["weights_bytes"]}


@pytest.mark.parametrize(
    ("service", "count", "rule"),
    [
        (replicas(2, 2), 4, None),
        ({**FAST, "name": "large", "args": {**FAST["args"], "data-parallel-size": 2}}, 4, "SPK830"),
        (
            {
                **FAST,
                "name": "large",
                "args": {**FAST["args"], "data-parallel-size": 2, "enable-expert-parallel": True},
            },
            2,
            "SPK831",
        ),
        (replicas(5, **{"enable-expert-parallel": None}), 5, "SPK832"),
        (replicas(5), 5, None),
    ],
)
def test_replicas_that_vllm_would_not_start(service: dict[str, Any], count: int, rule: str | None) -> None:
    result = {entry for entry in rules(plan_of(cluster(service), count), "s1", "error") if entry.startswith("SPK")}
    assert result == ({rule} if rule else set())


def test_replicas_with_ray_are_refused_with_the_reason() -> None:
    message = refused(cluster(replicas(2), executor="ray"))
    assert "data-parallel-size 2 with the executor ray (as spark_cluster says): Ray chooses the host of each" in message


def test_an_image_is_not_asked_about_replicas() -> None:
    """Its statement would be about a model without others."""
    body = cluster(replicas(2), executor="mp")
    target = {"images": {IMAGE: {"present": True, "id": "sha256:" + "a" * 64}}}
    plan = plan_of(body, s1=target, s2=target)
    assert not any(host["image_questions"] for host in plan["hosts"].values())


RING = {
    "topology": "ring",
    "rails": [
        {"ends": {f"s{number + 1}": {}, f"s{(number + 1) % 4 + 1}": {}}} for number in range(4) for _rail in (0, 1)
    ],
}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, ""),
        ({"tensor-parallel-size": 4}, ""),
        ({"tensor-parallel-size": 4, "decode-context-parallel-size": 4}, ""),
        ({"tensor-parallel-size": 4, "decode-context-parallel-size": 2}, ""),
        ({"tensor-parallel-size": 4, "decode-context-parallel-size": 2, "dcp-comm-backend": "a2a"}, ""),
        (
            {"tensor-parallel-size": 4, "decode-context-parallel-size": 4, "dcp-comm-backend": "a2a"},
            "with tensor-parallel-size 4, decode-context-parallel-size 4 rank 0 on s1 sends to rank 2 on s3, which no cable of the ring joins.",
        ),
        ({"tensor-parallel-size": 1, "pipeline-parallel-size": 4}, ""),
        ({"data-parallel-size": 4, "tensor-parallel-size": 1}, ""),
        ({"data-parallel-size": 2}, ""),  # of two neighbours each
        (
            {"data-parallel-size": 4, "all2all-backend": "deepep_low_latency"},
            "with data-parallel-size 4 rank 0 on s1 sends to rank 2 on s3, which no cable of the ring joins.",
        ),
        (  # the first stage of one replica has experts for the first of the other
            {"data-parallel-size": 2, "tensor-parallel-size": 1, "pipeline-parallel-size": 2},
            "with data-parallel-size 2, tensor-parallel-size 1, pipeline-parallel-size 2 rank 0 on s1 sends to rank 2 on s3, which no cable "
            "of the ring joins.",
        ),
        (
            {"tensor-parallel-size": 2, "pipeline-parallel-size": 2},
            "with tensor-parallel-size 2, pipeline-parallel-size 2 rank 0 on s1 sends to rank 2 on s3, which no cable of the ring joins.",
        ),
        (  # quoted, as YAML may have them
            {"tensor-parallel-size": "2", "pipeline-parallel-size": "2"},
            "with tensor-parallel-size 2, pipeline-parallel-size 2 rank 0 on s1 sends to rank 2 on s3, which no cable of the ring joins.",
        ),
    ],
)
def test_ranks_that_no_cable_joins_do_not_talk(args: dict[str, Any], message: str) -> None:
    complete = clustering.Cluster("ring", ["s1", "s2", "s3", "s4"], "mp", [])
    check_reach = [
        entry for entry in clustering.check_reach(complete, "large", args, RING) if entry.severity == "error"
    ]
    assert [(entry.rule, entry.message) for entry in check_reach] == (
        [("cluster.unreached", message)] if message else []
    )
    assert not list(clustering.check_reach(complete, "large", args, {**RING, "topology": "switch"}))
    assert not list(clustering.check_reach(complete, "large", args, None))


@pytest.mark.parametrize(
    ("hosts", "args", "action"),
    [
        (4, {"tensor-parallel-size": 4}, ""),
        (3, {"tensor-parallel-size": 3, "enable-expert-parallel": True}, ""),
        (4, {"tensor-parallel-size": 4, "enable-expert-parallel": True}, "experts spread over the ranks"),
        (4, {"pipeline-parallel-size": "4", "tensor-parallel-size": 1}, "pipeline stages"),
        (4, {"decode-context-parallel-size": 2}, "a decode context over ranks"),
        (4, {"data-parallel-size": "4"}, "replicas"),
        (6, {"enable-expert-parallel": True}, "a ring of 6 and experts spread over the ranks"),
    ],
)
def test_what_nobody_has_run_in_a_ring_is_said(hosts: int, args: dict[str, Any], action: str) -> None:
    names = [f"s{number + 1}" for number in range(hosts)]
    rails = [{"ends": {first: {}, other: {}}} for first, other in zip(names, [*names[1:], names[0]])]
    cluster, planned = clustering.Cluster("ring", names, "mp", []), {"topology": "ring", "rails": rails}
    reach = list(clustering.check_reach(cluster, "x", args, planned))
    assert [(entry.rule, entry.severity) for entry in reach] == ([("cluster.unreported", "info")] if action else [])
    assert not action or f"nobody has reported {action} on Sparks in a ring" in reach[0].message


def test_a_ring_stops_the_plan_of_a_split_that_it_cannot_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "plan_fabric", lambda *_arguments: {**RING, "hosts": {}, "findings": []})
    args = {"tensor-parallel-size": 2, "pipeline-parallel-size": 2, "enable-expert-parallel": None}
    assert "cluster.unreached" in rules(plan_of(cluster({**LARGE, "args": args}), 4), "s1", "error")
    args = {**args, "tensor-parallel-size": 4, "pipeline-parallel-size": 1}
    assert "cluster.unreached" not in rules(plan_of(cluster({**LARGE, "args": args}), 4), "s1")


def test_all_problems_are_told_at_once() -> None:
    text = refused(cluster({**LARGE, "args": {"nnodes": 2}}, {"name": "x"}, executor="no"))
    assert len(text.splitlines()) >= 2
    text = refused(cluster({**LARGE, "args": {"nnodes": 2}, "env": {"VLLM_HOST_IP": "1"}}, {"name": "x", "port": 1}))
    assert "nnodes" in text
    assert "VLLM_HOST_IP" in text
    assert "'recipe' is missing" in text


# --- facts of hosts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "fires"),
    [
        ({"NCCL_SOCKET_IFNAME": "eth0"}, True),
        ({"NCCL_SOCKET_IFNAME": "^docker0,lo"}, False),
        ({"NCCL_SOCKET_IFNAME": "=enp1s0f0np0"}, False),
        ({"NCCL_SOCKET_IFNAME": "enp1"}, False),
        ({"GLOO_SOCKET_IFNAME": "enp1s0f0np0,eth9"}, True),
        ({"GLOO_SOCKET_IFNAME": "enP7s7"}, False),
        ({"NCCL_IB_HCA": "mlx5_0"}, True),
        ({"NCCL_IB_HCA": "rocep1s0f0:1"}, False),
    ],
)
def test_an_interface_that_a_host_does_not_have(env: dict[str, str], fires: bool) -> None:
    plan = plan_of(cluster({**LARGE, "env": env}), **pair_hosts())
    result = [f for host in ("s1", "s2") for f in plan["hosts"][host]["findings"] if f["rule"] == "cluster.interface"]
    assert bool(result) == fires
    if fires:
        assert result[0]["severity"] == "error"
        assert "it has enp1s0f0np0" in result[0]["message"] or "it has rocep1s0f0" in result[0]["message"]
    # Without facts nothing is said.
    assert "cluster.interface" not in rules(plan_of(cluster({**LARGE, "env": env})), "s1")


def image(identity: str, digest: str | None = None) -> dict[str, Any]:
    repo = IMAGE.partition(":")[0]
    digests = [f"{repo}@sha256:{digest * 64}"] if digest else []
    return {"images": {IMAGE: {"present": True, "id": f"sha256:{identity * 64}", "repo_digests": digests}}}


@pytest.mark.parametrize(
    ("first", "second", "fires"),
    [
        (image("a"), image("a"), False),
        (image("a"), image("b"), True),
        (image("a", "d"), image("b", "d"), False),  # the same pull in two kinds of image store
        (image("a", "d"), image("a", "e"), False),
        (image("a", "d"), image("b", "e"), True),
        (image("a"), {}, False),
    ],
)
def test_ranks_run_one_image(first: dict[str, Any], second: dict[str, Any], fires: bool) -> None:
    plan = plan_of(cluster(), s1=first, s2=second)
    assert ("cluster.image" in rules(plan, "s1", "error")) == fires


def test_a_network_that_cannot_be_used_stops_the_plan() -> None:
    wrong = fabric_facts(2)
    for netdev in wrong["ports"][0]["netdevs"]:
        netdev["addresses"] = [netdev["addresses"][0].replace("192.168.101", "192.168.100")]
        netdev["stored"] = [{"path": "/etc/netplan/99-own.yaml", "persistent": True, "alone": True, "managed": False}]
    plan = plan_of(cluster(), **pair_hosts(fabric=wrong))
    assert "fabric.same_subnet" in rules(plan, "s1", "error")
    assert plan["clusters"]["pair"]["fabric"]["ready"] is False
    # The role repairs it on request, so the plan continues then, and reports the coming repair.
    plan = plan_of(cluster(fabric={"migrate": True}), **pair_hosts(fabric=wrong))
    assert rules(plan, "s1", "error") == set()
    assert "fabric.same_subnet" in rules(plan, "s1", "warning")
    row = plan["clusters"]["pair"]["fabric"]["hosts"]
    assert rank(plan, "s2")["env"]["VLLM_HOST_IP"] == row["s2"]["address"] != ""


def test_a_cable_that_is_not_there_is_no_matter_of_repair() -> None:
    gone = {"ports": [], "connectx": False, "networks": {"enP7s7": ["10.0.0.2/24"]}}
    plan = plan_of(cluster(fabric={"migrate": True}), **pair_hosts(fabric=gone))
    assert rules(plan, "s1", "error") != set()


def test_what_the_role_fabric_has_planned_goes_before_the_facts() -> None:
    done = engine.make_plan(hosts(cluster(), **pair_hosts()), RECIPES, groups={"pair": ["s1", "s2"]})["clusters"][
        "pair"
    ]["fabric"]
    arguments = hosts(cluster())
    arguments["s2"]["fabric"] = done
    plan = engine.make_plan(arguments, RECIPES, groups={"pair": ["s1", "s2"]})
    assert rank(plan, "s1")["settings"]["rank"]["address"] == "192.168.100.11"


def test_the_firewall_closes_what_was_not_asked_for() -> None:
    keyed = plan_of(
        cluster({**LARGE, "api_key_file": "/k"}),
        s2={**pair_hosts()["s2"], "vars": {"spark_services": [FAST]}},
        s1={**pair_hosts()["s1"], "vars": {"spark_allow_from": ["10.0.0.128/25", "10.0.0.200", "fd00::9"]}},
    )
    first, second = keyed["hosts"]["s1"]["firewall"], keyed["hosts"]["s2"]["firewall"]
    assert first["fabric"] == ["enP2p1s0f0np0", "enp1s0f0np0"]
    assert first["peers"] == ["192.168.100.0/24", "192.168.101.0/24"]
    # With its key an engine is still for those alone who are named.
    assert first["allowed"] == second["allowed"] == []
    assert first["closed"] == second["closed"] == [8000]
    assert first["admitted"] == [{"ports": [8000], "from": ["10.0.0.128/25", "fd00::9"]}]
    assert second["admitted"] == []
    assert first["ranges"] and second["ranges"]
    off = plan_of(cluster(), s1={"vars": {"spark_firewall": False}})
    assert off["hosts"]["s1"]["firewall"]["state"] == "absent"
    assert off["hosts"]["s2"]["firewall"]["state"] == "present"
    assert "firewall.off" in rules(off, "s1") and "firewall.off" not in rules(off, "s2")


@pytest.mark.parametrize(
    ("executor", "variables", "fires"),
    [
        ("ray", {"spark_firewall": False}, True),
        ("mp", {"spark_firewall": False}, False),
        ("ray", {}, False),
        ("ray", {"spark_firewall": False, "spark_ignore_rules": ["firewall.ray"]}, False),
    ],
)
def test_ray_that_anybody_reaches_is_refused(executor: str, variables: dict[str, Any], fires: bool) -> None:
    plan = plan_of(cluster(executor=executor), s1={"vars": variables}, s2={"vars": variables})
    assert ("firewall.ray" in rules(plan, "s1", "error")) == fires


@pytest.mark.parametrize(
    ("target", "expected", "fires"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_a_host_that_cannot_close_ports_is_named_before_it_is_changed(
    target: bool, expected: bool, fires: bool
) -> None:
    second = {"measured": {**measured(2), "nft": target}, "vars": {"spark_firewall": expected}}
    plan = plan_of(cluster(), s1={"measured": measured(1)}, s2=second)
    assert ("host.nft" in rules(plan, "s2", "error")) == fires


def test_ports_that_stay_open() -> None:
    plan = plan_of(cluster(), s1={"vars": {"spark_firewall_allowed": [4000, "4001/tcp", "51820/udp"]}})
    assert plan["hosts"]["s1"]["firewall"]["allowed"] == [4000, 4001]
    assert plan["hosts"]["s1"]["firewall"]["allowed_udp"] == [51820]
    for entry in ("ssh", "99999", "80/sctp", 0):
        assert "is no port; write 4000 or 51820/udp" in refused(
            cluster(), s1={"vars": {"spark_firewall_allowed": [entry]}}
        )


@pytest.mark.parametrize(
    ("topologies", "addresses", "fires"),
    [
        (("direct", "direct"), ("192.168.100.10", "192.168.100.10"), False),
        (("switch", "direct"), ("192.168.100.10", "192.168.100.10"), True),
        (("switch", "switch"), ("192.168.100.10", "192.168.104.10"), False),
        (("switch", "switch"), ("", ""), False),
    ],
)
def test_clusters_on_a_switch_have_addresses_of_their_own(
    topologies: tuple[str, str], addresses: tuple[str, str], fires: bool
) -> None:
    networks: dict[str, Any] = {
        name: {"topology": topology, "hosts": {f"{name}-1": {"address": address}}}
        for name, topology, address in zip(("one", "two"), topologies, addresses)
    }
    result = list(clustering.check_addresses({**networks, "unasked": None}))
    assert [finding.service for finding in result] == (["two"] if fires else [])
    assert not fires or "two-1 of two and one-1 of one would both have 192.168.100.10" in result[0].message


def test_what_the_firewall_shuts_out_is_named() -> None:
    servers = [
        {"port": 41000, "address": "0.0.0.0", "process": "other"},
        {"port": 22, "address": "0.0.0.0", "process": "sshd"},
    ]
    first = {"measured": {**measured(1), "listening": servers}}
    plan = plan_of(cluster(), s1=first, s2={"measured": measured(2)})
    message = next(f for f in plan["hosts"]["s1"]["findings"] if f["rule"] == "firewall.shuts_out")
    assert "41000 (other)" in message["message"]
    assert "22" not in message["message"].split("41000")[1].split(" is closed")[0]
    allowed = plan_of(
        cluster(), s1={**first, "vars": {"spark_firewall_allowed": [41000]}}, s2={"measured": measured(2)}
    )
    assert "firewall.shuts_out" not in rules(allowed, "s1")


def test_what_is_left_of_a_cluster_is_taken_away() -> None:
    alone = {"vars": {"spark_services": [FAST]}, "address": "10.0.0.1"}
    for been, state in ((True, "absent"), (False, None)):
        arguments = {"s1": {**alone, "measured": {**measured(1), "firewall": been}}}
        plan = engine.make_plan(arguments, RECIPES)["hosts"]["s1"]
        assert (plan["firewall"] or {}).get("state") == state


def test_packages_for_the_head_alone_are_refused_with_ray() -> None:
    assert "pip with the executor ray" in refused(cluster({**LARGE, "pip": ["einops==0.8.0"]}, executor="ray"))
    assert plan_of(cluster({**LARGE, "pip": ["einops==0.8.0"]}))["clusters"]["pair"]["services"]


def test_a_host_outside_of_clusters_has_neither() -> None:
    plan = engine.make_plan({"s1": {"vars": {"spark_services": [FAST]}, "address": "10.0.0.1"}}, RECIPES)["hosts"]["s1"]
    assert plan["cluster"] is None
    assert plan["firewall"] is None
    assert plan["services"][0]["cluster"] is None
    assert "--device" not in plan["services"][0]["argv"]


def test_the_settings_of_the_role_fabric_are_its_own_defaults() -> None:
    role = yaml.safe_load((ROOT / "roles" / "fabric" / "defaults" / "main.yml").read_text(encoding="utf-8"))
    for name, key in clustering.FABRIC_KEYS.items():
        assert role[f"fabric_{name}"] == key.default, name
    plan = plan_of(cluster(fabric={"mtu": 1500, "min_gbps": {"iperf3": 1}}))
    settings = plan["hosts"]["s2"]["cluster"]["fabric"]
    assert settings["mtu"] == 1500
    assert settings["min_gbps"] == {"iperf3": 1}
    assert settings["network"] == role["fabric_network"]


def test_a_deployment_hands_each_setting_of_the_network_to_the_role() -> None:
    tasks = yaml.safe_load((ROOT / "playbooks" / "tasks" / "bring.yml").read_text(encoding="utf-8"))
    vars = next(task for task in tasks if task["name"] == "Configure the fabric of the cluster")["vars"]
    for name in clustering.FABRIC_KEYS:
        assert f"spark_plan.cluster.fabric.{name}" in vars[f"fabric_{name}"], name


def test_preflight_asks_for_the_port_on_the_head_alone() -> None:
    used = [{"port": 8000, "address": "0.0.0.0", "process": "nginx"}]
    plan = plan_of(cluster(), **pair_hosts(listening=used))
    assert "host.port_taken" not in rules(plan, "s2")
    plan = plan_of(cluster(), s1={"measured": {**measured(1), "listening": used}}, s2={"measured": measured(2)})
    assert "host.port_taken" in rules(plan, "s1", "error")


def test_hosts_with_different_kernels_are_warned_of_on_the_head() -> None:
    differ = "cluster.hosts_differ"
    assert differ not in rules(plan_of(cluster(), **pair_hosts()), "s1")
    assert differ in rules(plan_of(cluster(), **pair_hosts(kernel="7.0.0-1019-nvidia")), "s1", "warning")
    ignoring = pair_hosts(kernel="7.0.0-1019-nvidia")
    ignoring["s1"]["vars"] = {"spark_ignore_rules": [differ]}
    assert differ not in rules(plan_of(cluster(), **ignoring), "s1")


@pytest.mark.parametrize(
    ("version", "record"),
    [("0.31.0", False), ("0.31.1.dev5", False), ("0.30.0", True), ("0.32.0", True), (None, False)],
)
def test_what_flashinfer_autotuned_is_not_kept_where_a_second_start_hangs(version: str | None, record: bool) -> None:
    image = {"ref": "example.org/vllm:1", "entrypoint": "serve", **({"vllm_version": version} if version else {})}
    env = rank(plan_of(cluster({**LARGE, "image": image})), "s2")["env"]
    assert ("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR" not in env) is record
    assert env["VLLM_CACHE_ROOT"].startswith("/root/.cache/dgxspark/")


@pytest.mark.parametrize(
    "row", nccl_data.ROWS, ids=lambda row: f"{row['library']}-{row.get('version') or row['below']}"
)
def test_the_plan_judges_the_nccl_that_the_image_says_it_loads(row: dict[str, Any]) -> None:
    """Doctor shows the plan's findings and adds none; NCCL comes with images, so no update of DGX OS changes it."""
    answer = {"error": None, "vllm_version": "0.24.0", "packages": {"vllm": "0.24.0"}, "names": [], "options": []}
    result = {"library": row["library"], "version": row.get("version", "2.28.9")}
    image = {"present": True, "id": "sha256:1", "entrypoint_family": "passthrough", "probe": {**answer, "nccl": result}}
    plan = plan_of(cluster(), s1={"images": {IMAGE: image}}, s2={"images": {IMAGE: image}})
    outcome = [f for f in plan["hosts"]["s1"]["findings"] if f["rule"] == "SPK827"]
    if row["verdict"] == "good":
        assert outcome == []
    else:
        assert [(f["severity"], f["basis"]) for f in outcome] == [("warning", "probed")]
        assert row["why"] in outcome[0]["message"] and outcome[0]["fix"] == row["fix"] and outcome[0]["source"]
