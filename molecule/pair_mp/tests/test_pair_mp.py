"""A pair that vLLM spans by itself: its answers and its clients; faults that it survives; refusals before its start.

The tests run in order on one pair. Each leaves it serving, by the hosts' own means: a test puts back what it
broke (a cable, power), and never what follows from it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule"))

import pair
from confined import confined
from pair import HEAD, NODES, OTHER, WORKER, node

SCENARIO = "pair_mp"
PARTS = {host: ["spark-tiny"] for host in NODES}
TOKENS = 64


# --- what converge left


def test_the_model_answers_through_the_head_and_both_units_are_active():
    pair.serves(parts=PARTS)


@pytest.mark.parametrize(("host", "rank"), [(HEAD, 0), (WORKER, 1)])
def test_systemctl_status_shows_the_rank(host, rank):
    shown = node(host, "systemctl", "status", "--no-pager", pair.UNIT)
    assert f"rank {rank} of 2" in shown
    assert f"serving with {OTHER[host]}" in shown


@pytest.mark.parametrize(("host", "rank"), [(HEAD, 0), (WORKER, 1)])
def test_both_ranks_have_a_receipt(host, rank):
    receipt = json.loads(node(host, "cat", "/var/lib/dgxspark/receipts/tiny.json"))
    assert receipt["cluster"]["name"] == "pair"
    assert receipt["rank"] == rank


@pytest.mark.parametrize("host", NODES)
def test_a_real_engine_serves_without_capabilities_and_cannot_write_its_weights(host):
    for container in PARTS[host]:
        confined(partial(node, host), container)


def test_a_request_crosses_the_fabric_and_not_the_management_network():
    pair.a_request_crosses_the_fabric(TOKENS)


@pytest.mark.parametrize("host", NODES)
def test_over_management_only_ssh_answers_a_peer(host):
    pair.only_ssh_answers_a_peer(host)


def test_the_addresses_of_the_fabric_are_not_reached_by_way_of_the_management_network():
    pair.the_fabric_is_closed_to_the_management_network()
    pair.the_supervisors_hear_the_fabric_alone()


# --- refused before anything is touched


@pytest.mark.nightly
def test_one_of_two_hosts_is_refused_and_told_the_whole_limit():
    pair.refused(
        SCENARIO, "no host was touched", "cluster pair: the play has spark-1, not spark-2", "--limit spark-1,spark-2",
        options=("--limit", HEAD),
    )  # fmt: skip


def test_a_worker_that_does_not_answer_leaves_the_head_as_it_is():
    pair.refused(
        SCENARIO, "cluster pair: spark-2 cannot be reached", "so spark-1 is left as it is",
        hosts={WORKER: {"ansible_port": 1}},
    )  # fmt: skip


@pytest.mark.nightly
def test_an_interface_that_a_host_lacks_is_refused_by_name():
    env = {"NCCL_SOCKET_IFNAME": "enp9s9f9np9", "GLOO_SOCKET_IFNAME": "enp9s9f9np9"}
    pair.refused(
        SCENARIO, "env NCCL_SOCKET_IFNAME is enp9s9f9np9, but spark-1 has no network interface enp9s9f9np9",
        "Remove NCCL_SOCKET_IFNAME from env", "no host was changed", spark_cluster=pair.cluster(SCENARIO, env=env),
    )  # fmt: skip


def test_different_images_by_one_name_are_refused_with_both_ids():
    ref = "dgxspark/vllm-cpu:0.32.0"
    ours = node(WORKER, "docker", "image", "inspect", "--format", "{{.Id}}", ref).strip()
    made = node(WORKER, "docker", "create", ref).strip()
    other = node(WORKER, "docker", "commit", made, ref).strip()
    node(WORKER, "docker", "rm", made)
    try:
        pair.refused(
            SCENARIO, f"the hosts of pair have different images by the name {ref}",
            f"spark-1 {ours}, spark-2 {other}", "no host was changed",
        )  # fmt: skip
    finally:
        node(WORKER, "docker", "tag", ours, ref)
        node(WORKER, "docker", "rmi", other)


@pytest.mark.nightly
def test_mtu_1500_on_one_side_is_refused_with_the_result_of_the_ping():
    interface = pair.INTERFACES[0]
    node(WORKER, "ip", "link", "set", "dev", interface, "mtu", "1500")
    time.sleep(1.5)  # what stands for /sys follows within a second
    try:
        pair.refused(
            SCENARIO, f"the ends differ in MTU: spark-1 {interface} 9000 and spark-2 {interface} 1500",
            "ping -M do -s 8972: 0 of 3 came back",
        )  # fmt: skip
    finally:
        node(WORKER, "ip", "link", "set", "dev", interface, "mtu", "9000")
        time.sleep(1.5)


def test_what_was_refused_left_the_model_answering():
    pair.serves(parts=PARTS)


# --- faults


@pytest.mark.nightly
def test_a_cable_that_is_out_for_30_s_is_survived_by_the_same_engines_and_the_request_under_way():
    before = pair.engines()
    results = {}
    request = threading.Thread(target=lambda: results.update(pair.chat(300, max_tokens=TOKENS, ignore_eos=True)))
    pair.cable(WORKER, plugged=False)
    request.start()
    time.sleep(30)
    assert not results, "a token took the other rank, and there was no way to it"
    pair.cable(WORKER, plugged=True)
    request.join()
    assert results["usage"]["completion_tokens"] == TOKENS
    pair.serves()
    assert pair.engines() == before


@pytest.mark.nightly
def test_a_worker_whose_container_is_killed_ends_with_new_engines_on_both_that_serve():
    before = pair.engines()
    node(WORKER, "docker", "kill", "spark-tiny")
    pair.wait(lambda: pair.engines()[HEAD] != before[HEAD], 120, "the head has let go of its rank")
    pair.serves(before, PARTS)


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


@pytest.mark.nightly
def test_a_power_loss_of_the_worker_ends_with_both_serving():
    """Unlike a reboot it leaves a container behind in Docker's books, and no word for the head."""
    before = pair.engines()
    pair.container(WORKER).kill()
    pair.container(WORKER).start()
    pair.wait(lambda: pair.engines()[HEAD] != before[HEAD], 120, "the head has let go of its rank")
    pair.serves(before, PARTS)


@pytest.mark.nightly
def test_a_head_that_is_stopped_on_purpose_ends_with_the_worker_waiting_and_serving_once_it_is_started():
    before = pair.engines()
    node(HEAD, "systemctl", "stop", pair.UNIT)
    assert pair.state(HEAD) == "inactive" and pair.empty(HEAD)
    pair.waits(WORKER, "spark-1 (rank 0)", "stopped on purpose")
    node(HEAD, "systemctl", "start", pair.UNIT)
    pair.serves(before, PARTS)


# --- wedged: everything runs and /health says 200, but no token comes any more


def watched():
    """The watchdog's state of the model. It watches on the head, which answers for all ranks."""
    return json.loads(node(HEAD, "cat", "/var/lib/dgxspark/watchdog/state.json"))["services"]["tiny"]


def watch(**settings):
    """Have the watchdog go by such settings: quicker ones than the plan lets anybody ask for."""
    quick = {"interval_seconds": 1, "window_seconds": 5, "probe_seconds": 5, "grace_seconds": 2}
    variables = json.dumps({**quick, **settings})
    node(HEAD, "sh", "-c", f"echo '{variables}' > /etc/dgxspark/agent/watchdog.json && systemctl restart spark-agent")


@pytest.mark.nightly
def test_a_pair_that_turns_the_watchdog_away_is_left_alone():
    before, key = pair.engines(), json.loads(node(HEAD, "cat", "/etc/dgxspark/services/tiny.json"))["api_key_file"]
    node(HEAD, "sed", "-i", "s/$/-not/", key)
    try:
        watch(idle_probe_minutes=0.02)
        pair.wait(lambda: watched()["state"] == "unjudged", 60, "the watchdog is turned away")
        assert "HTTP 401" in watched()["text"]
    finally:
        node(HEAD, "sed", "-i", "s/-not$//", key)
    pair.serves(parts=PARTS)
    assert pair.engines() == before
    assert watched()["restarts_24h"] == 0


@pytest.mark.nightly
def test_a_worker_that_stands_still_ends_with_new_engines_on_both_once_and_what_was_seen_is_kept():
    """Nothing ends when a process stands still in the middle of a request, so the supervisors have nothing to act on."""
    watch()
    before, starts = pair.engines(), {host: pair.starts(host) for host in NODES}
    request = threading.Thread(target=pair.chat_in_vain, kwargs={"max_tokens": 4000, "ignore_eos": True})
    request.start()
    pair.wait(lambda: watched()["state"] == "working", 60, "the request is under way")
    node(WORKER, "pkill", "-STOP", "--full", "VLLM::Worker")
    pair.wait(lambda: watched()["state"] == "suspect", 60, "the watchdog suspects it")
    assert pair.ask("/health", parse=False) == b""
    seen = set()

    def active_again():
        seen.add(watched()["state"])
        return pair.starts(HEAD) > starts[HEAD] and pair.state(HEAD) == "active"

    pair.wait(active_again, 300, "the head has been restarted and serves")
    request.join()
    pair.serves(before, PARTS)
    after = pair.engines()
    assert "starting" in seen, "it looked on while the ranks loaded"
    pair.wait(lambda: watched()["state"] in ("idle", "working"), 60, "the watchdog finds it well")
    state = watched()
    assert (state["restarts_24h"], state["last_action"]["what"]) == (1, "restart")
    assert pair.engines() == after
    assert {host: pair.starts(host) - starts[host] for host in NODES} == {HEAD: 1, WORKER: 1}
    evidence = {
        name: node(HEAD, "cat", f"{state['last_action']['evidence']}/{name}.txt")
        for name in ("docker", "journal", "metrics", "processes", "stacks")
    }
    assert "Application startup complete" in evidence["docker"] and "spark-rank:" in evidence["journal"]
    assert "vllm:generation_tokens_total" in evidence["metrics"]
    assert "wchan=" in evidence["processes"] and "VLLM::EngineCor" in evidence["stacks"]
    assert not [name for name, text in evidence.items() if pair.KEY in text]
