# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands around the engines, over clusters of three to eight: each is planned once, and each reader of the plan is asked for all ranks."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
from cluster_fixture import network
from planned_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.action import service_bench
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import (
    doctor,
    drift,
    fleet_status,
    rollout,
    status_rows,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import bench_compare, receipts

SIZES = range(3, 9)
UNIT = "spark-big.service"
WATCH = {
    "spark_gateway": {"master_key_file": "m"},
    "spark_monitoring": {"grafana": "none"},
    "spark_fleet_monitor": {},
}


def names(size: int) -> list[str]:
    return [f"s{number + 1}" for number in range(size)]


@functools.cache
def plan_of(size: int, topology: str = "ring") -> dict[str, Any]:
    """One engine over all, from neighbour to neighbour; the gateway and the monitors stand on its last host."""
    hosts = names(size)
    service = {
        "name": "big",
        "recipe": "qwen3-4b-instruct-2507",
        "port": 8000,
        "api_key_file": "k",
        "args": {"tensor-parallel-size": 1, "pipeline-parallel-size": size, "gpu-memory-utilization": 0.3},
    }
    variables = {
        "spark_cluster": {"name": "many", "executor": "mp", "services": [service]},
        "spark_exporters": {},
        "spark_allow_moving": True,
    }
    rows_by_host = {
        host: {
            "vars": {**variables, **(WATCH if host == hosts[-1] else {})},
            "address": f"10.0.0.{number}",
            "measured": None,
            "images": {},
            "fabric": network(topology, hosts),
        }
        for number, host in enumerate(hosts, 1)
    }
    return engine.make_plan(rows_by_host, RECIPES, groups={"many": hosts, "sparks": hosts})


def ranks(size: int) -> dict[str, dict[str, Any]]:
    return {host: body["services"][0] for host, body in plan_of(size)["hosts"].items()}


@pytest.mark.parametrize("topology", ["ring", "switch"])
@pytest.mark.parametrize("size", SIZES)
def test_the_head_is_the_one_backend_endpoint_and_target_and_the_watchdogs_only_host(size: int, topology: str) -> None:
    hosts, addons = names(size), plan_of(size, topology)["addons"]
    front = addons[hosts[-1]]
    backends = front["gateway"]["settings"]["backends"]
    assert {key: entry["url"] for key, entry in backends.items()} == {"many/big": "http://10.0.0.1:8000"}
    watched = {entry["key"]: entry["url"] for entry in front["fleet_monitor"]["settings"]["endpoints"]}
    assert watched["many/big"] == "http://10.0.0.1:8000" and len(watched) == 2  # and the gateway
    jobs = {job["name"]: job["targets"] for job in front["monitoring"]["jobs"]}
    assert [(entry["targets"], entry["labels"]["cluster"]) for entry in jobs["vllm"]] == [(["10.0.0.1:8000"], "many")]
    assert [(entry["labels"]["host"], entry["labels"]["cluster"]) for entry in jobs["node"]] == [
        (host, "many") for host in hosts
    ]
    assert [host for host in hosts if addons[host]["watchdog"]["state"] == "present"] == ["s1"]
    assert {addons[host]["guard"]["settings"]["services"]["big"]["planned_gib"] > 1 for host in hosts} == {True}


def answer_of(host: str, state: str = "active", ready: bool = True) -> dict[str, Any]:
    answer = {"name": "big", "ready": ready, "stage": "completion" if ready else "health", "error": ""}
    body = {"units": [{"name": UNIT, "active_state": state, "n_restarts": 0, "active_seconds": 9000}]}
    return {"host": {**body, "resident": []}, "services": [answer] if host == "s1" else []}


def status(size: int, **answers: dict[str, Any]) -> tuple[fleet_status.Status, list[status_rows.Row]]:
    rows: list[status_rows.Row] = []
    results = {host: answers.get(host) or answer_of(host) for host in names(size)}
    for host, body in plan_of(size)["hosts"].items():
        rows += status_rows.status_rows(host, body, results[host]["host"], results[host]["services"])
    reached = {host: {"reached": True, "why": "", "answers": {"services": results[host]}} for host in results}
    judged = {host: fleet_status.judge_host(entry, "services") for host, entry in reached.items()}
    return fleet_status.report(rows, judged, "2026-11-23T12:00:00+00:00", "down"), rows


@pytest.mark.parametrize("size", SIZES)
def test_the_status_of_a_model_is_that_of_its_worst_rank(size: int) -> None:
    order, rows = status(size)
    assert order.healthy and [status_rows.part(row) for row in rows] == [
        f"rank {n} of {size} (mp)" for n in range(size)
    ]
    for number, host in list(enumerate(names(size)))[1:]:
        order, rows = status(size, **{host: answer_of(host, "failed")})
        assert not order.healthy and "many/big" in order.reason
        assert {row.stage for row in rows if row.host != host} == {f"rank {number}"}


@pytest.mark.parametrize("size", SIZES)
def test_each_rank_drifts_by_its_own_launch_and_only_where_all_were_asked(size: int) -> None:
    for host, service in ranks(size).items():
        run = {"name": service["container"], "state": "running", "image_id": "sha256:1", "managed": True}
        at = {"argv": service["argv"], "env": service["env"], "image": {"ref": service["image"]["ref"]}}
        facts = {"units": [], "containers": [{**run, "service": "big", "fingerprint": service["fingerprint"]}]}

        def launches(
            facts: dict[str, Any], at: dict[str, Any], has_ranks: bool = True, host: str = host
        ) -> list[dict[str, Any]]:
            planned = plan_of(size)["hosts"][host]
            drift_of_host = drift.Host(planned, {}, has_ranks, facts, compared={"launches": {"big": at}})
            return [entry.to_dict() for entry in drift.check_launches(drift_of_host)]

        assert launches(facts, at) == []
        facts["containers"][0]["fingerprint"] = "0" * 16
        other = {**at, "argv": [*service["argv"], "--seed", "7"]}
        (finding,) = launches(facts, other)
        assert "--seed" in finding["message"]
        # A host of the cluster that was not asked has no say in the plan, so nothing is held against it.
        assert launches(facts, other, has_ranks=False) == []


@pytest.mark.parametrize("size", SIZES)
def test_a_receipt_of_each_rank_and_a_cluster_that_loses_a_host_is_another_deployment(size: int) -> None:
    written = [
        receipts.build("big", {"image": "a"}, {"residency_gib": 9.0}, None, entry["cluster"], entry["rank"])
        for entry in ranks(size).values()
    ]
    assert [entry.rank for entry in written] == list(range(size))
    assert {entry.cluster["size"] for entry in written} == {size}
    smaller = {**written[0].cluster, "size": size - 1, "hosts": names(size - 1)}
    (finding,) = receipts.compare(
        written[0], receipts.build("big", {"image": "a"}, {"residency_gib": 9.0}, written[0], smaller, 0)
    )
    assert finding.rule == "receipt.drift" and finding.message.endswith("cluster.hosts, cluster.size")


@pytest.mark.parametrize("size", SIZES)
def test_the_doctor_looks_at_each_rank(size: int) -> None:
    earlyoom = {"helpers": {"earlyoom.service": {"active": True, "enabled": True}}}
    stopped = {"name": UNIT, "active_state": "inactive", "n_restarts": 0, "enabled": True, "queued": False}
    for body in plan_of(size)["hosts"].values():
        facts = {"units": [{**stopped, "type": "notify", "managed": True, "result": "success"}], "services": ["big"]}
        report = doctor.HostReport(body, facts, earlyoom, {}, {}, {})
        order = {entry.rule for entry in doctor.check(report)}
        assert {"doctor.earlyoom", "doctor.unit_stopped"} <= order


@pytest.mark.parametrize("size", SIZES)
def test_a_benchmark_of_the_head_asks_who_else_runs_on_any_of_the_hosts_and_takes_figures_of_as_many(size: int) -> None:
    planned = {
        host: {"services": [{**entry, "url": entry["probe"]["url"]}, {"name": f"own-{host}", "url": f"http://{host}:1", "rank": 0, "cluster": None}]}
        for host, entry in ranks(size).items()
    }  # fmt: skip
    neighbours = service_bench.neighbours(planned, "s1", planned["s1"]["services"][0])
    assert [entry["name"] for entry in neighbours] == ["own-s1"] + [f"{host}/own-{host}" for host in names(size)[1:]]
    base: dict[str, Any] = {"images": [], "args": {}}
    expect = [{"what": f"on {n}", "tokens_per_second": 5, "streams": 1, "sparks": n} for n in (1, 2, size)]
    section = {"levels": [{"streams": 1, "decode_tokens_per_second": 4.9, "tokens_per_second": 4.9}]}
    rows, _findings = bench_compare.published(expect, section, ranks(size)["s1"], base, size)
    assert [row["what"] for row in rows] == [f"on {size}"]


@pytest.mark.parametrize("seed", range(60))
def test_hosts_are_updated_in_batches_that_split_no_cluster(seed: int) -> None:
    draw = random.Random(seed)
    hosts = [f"s{number}" for number in range(draw.randint(2, 24))]
    draw.shuffle(hosts)
    remaining, clusters = list(hosts), {}
    while len(remaining) > 2 and draw.random() < 0.8:
        size = min(draw.randint(2, 8), len(remaining))
        clusters[f"c{len(clusters)}"] = [remaining.pop() for _host in range(size)]
    batch = draw.choice([1, 2, 3, 5, "10%", "50%", "100%"])
    done = [host for host in hosts if draw.random() < 0.2]
    silent = [host for host in hosts if draw.random() < 0.1]
    order = rollout.order(hosts, clusters, draw.choice(["", "none", *clusters]), batch, done, silent)
    assert sorted(order["hosts"]) == sorted(host for entry in order["batches"] for host in entry)
    assert not set(order["hosts"]) & set(silent)
    for members in clusters.values():
        together = [entry for entry in order["batches"] if set(entry) & set(members)]
        assert len(together) <= 1 and all(set(members) <= set(entry) for entry in together)
        # If a member of a cluster is silent, no member is touched.
        assert not (set(members) & set(silent) and together)
