"""A pair that Ray spans: what it serves and who reaches it, what it survives where Ray makes a difference, and images without Ray.

The tests run in order on one pair. Each leaves it serving, by the hosts' own means: a test puts back what it
broke, and never what follows from it. Tests independent of the executor are in pair_mp.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule"))

import pair
from confined import confined
from pair import HEAD, NODES, OTHER, WORKER, node

SCENARIO = "pair_ray"
PARTS = {HEAD: ["spark-tiny-ray", "spark-tiny"], WORKER: ["spark-tiny-ray"]}


# --- what converge left


def test_the_model_answers_through_the_head_and_both_units_are_active():
    pair.serves(parts=PARTS)


@pytest.mark.parametrize("host", NODES)
def test_an_actor_of_ray_runs_the_rank_on_each_node(host):
    assert any("ray::" in line and "Worker" in line for line in pair.processes(host)), pair.processes(host)


@pytest.mark.parametrize(("host", "rank"), [(HEAD, 0), (WORKER, 1)])
def test_status_and_receipt_show_the_rank(host, rank):
    shown = node(host, "systemctl", "status", "--no-pager", pair.UNIT)
    assert f"rank {rank} of 2" in shown and f"serving with {OTHER[host]}" in shown
    receipt = json.loads(node(host, "cat", "/var/lib/dgxspark/receipts/tiny.json"))
    assert (receipt["cluster"]["executor"], receipt["rank"]) == ("ray", rank)


@pytest.mark.parametrize("host", NODES)
def test_a_real_engine_serves_without_capabilities_and_cannot_write_its_weights(host):
    for container in PARTS[host]:
        confined(partial(node, host), container)


@pytest.mark.nightly
def test_a_request_crosses_the_fabric_and_not_the_management_network():
    pair.a_request_crosses_the_fabric()


@pytest.mark.nightly
@pytest.mark.parametrize("host", NODES)
def test_over_management_only_ssh_answers_a_peer(host):
    assert host == WORKER or 6379 in pair.listening(host)
    pair.only_ssh_answers_a_peer(host)


@pytest.mark.nightly
def test_the_addresses_of_the_fabric_are_not_reached_by_way_of_the_management_network():
    pair.the_fabric_is_closed_to_the_management_network()
    pair.the_supervisors_hear_the_fabric_alone()


# --- refused before anything is touched


@pytest.mark.nightly
def test_an_image_without_ray_that_cannot_be_given_one_leaves_the_pair_as_it_is():
    ref = "vllm/vllm-openai:v0.24.0-ubuntu2404"
    pair.refused(
        SCENARIO, "Its image has no Ray; one with Ray", "could not be put into the image",
        "With an index of your own: spark_ray_pip_env", "Without Ray: spark_cluster.executor: mp",
        options=["-v"],  # that Ray is put into an image is a note
        spark_cluster=pair.cluster(SCENARIO, image=ref),
        spark_ray_pip_env={"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"},
    )  # fmt: skip
    assert pair.answers()


# --- faults


@pytest.mark.nightly
def test_a_worker_whose_ray_is_killed_ends_with_new_engines_on_both_that_serve():
    before = pair.engines()
    node(WORKER, "docker", "kill", "spark-tiny-ray")
    pair.wait(lambda: pair.engines()[HEAD] != before[HEAD], 120, "the head has let go of its rank")
    pair.serves(before, PARTS)


@pytest.mark.nightly
def test_a_cable_that_is_out_for_30_s_ends_with_both_serving():
    pair.cable(WORKER, plugged=False)
    time.sleep(30)
    pair.cable(WORKER, plugged=True)
    pair.serves(parts=PARTS)


@pytest.mark.nightly
def test_a_cable_that_is_out_for_good_ends_with_both_ranks_waiting_and_serving_once_it_is_back():
    before = pair.engines()
    pair.cable(WORKER, plugged=False)
    pair.waits(HEAD, "spark-2 (rank 1)")
    pair.waits(WORKER, "spark-1 (rank 0)")
    pair.cable(WORKER, plugged=True)
    pair.serves(before, PARTS)


@pytest.mark.nightly
def test_a_reboot_of_the_worker_ends_with_both_serving():
    before = pair.engines()
    pair.reboot(WORKER)
    pair.wait(lambda: pair.engines()[HEAD] != before[HEAD], 120, "the head has let go of its rank")
    pair.serves(before, PARTS)


@pytest.mark.nightly
def test_a_reboot_of_the_head_ends_with_both_serving():
    before = pair.engines()
    pair.reboot(HEAD)
    pair.wait(lambda: pair.engines()[WORKER] != before[WORKER], 120, "the worker has let go of its rank")
    pair.serves(before, PARTS)
