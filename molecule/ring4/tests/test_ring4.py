"""Four hosts in a ring of cables: its network, findings about moved plugs, one engine over all, and the faults that it survives.

The tests run in order on one ring. Each leaves it cabled and serving, by the hosts' own means: a test puts back what it broke (a cable,
power), and never what follows from it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule"))

import nodes

nodes.NODES.update(nodes.FLEET)  # the helpers of pairs then look at all four

import pair
from pair import BASE, ROOT, node

# Four engines start on the cores that two have elsewhere.
pair.ACTIVE_SECONDS, pair.STOPPED_SECONDS = 1800, 300

SCENARIO = "ring4"
HOSTS = list(nodes.FLEET)
PARTS = {host: ["spark-tiny"] for host in HOSTS}
RAILS = ("enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1")
RING = ["1.0-2.1", "2.0-3.1", "3.0-4.1", "4.0-1.1"]
RELAY = "dgxspark-fabric-relay.service"
PAYLOAD, PAYLOAD_BYTES = "/srv/huggingface/hub/models--Org--Payload", 256 * 1024 * 1024
BIG_AND_SMALL = {
    "big": ("tiny", "spark-1", 8003),
    "left": ("left", "spark-1", 8004),
    "right": ("right", "spark-3", 8004),
    "replicas": ("replicas", "spark-1", 8005),
}


def cabled(*cables):
    """Have the nodes cabled like this."""
    pair.outside(str(ROOT / "tests" / "sim" / "sparksim"), "cable", "--set", "ring", *cables)


def run(playbook, *options, **variables):
    """Run a playbook of the scenario's inventory; returns its exit code and all that it printed, as one line."""
    ran = subprocess.run(
        [
            "ansible-playbook",
            *("-i", str(BASE), "-i", str(pair.inventory(SCENARIO))),
            playbook,
            *options,
            *("-e", json.dumps(variables)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORKS": "8"},
    )
    return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


def cabling(*options, hosts=tuple(HOSTS), **variables):
    """Run the role fabric alone."""
    return run(str(ROOT / "molecule" / SCENARIO / "cabling.yml"), *options, ring_hosts=list(hosts), **variables)


def addresses(host):
    """Interface of the ring to its address and MTU."""
    links = {link["ifname"]: link for link in json.loads(node(host, "ip", "-j", "-4", "addr"))}
    return {
        name: (links[name]["addr_info"][0]["local"], links[name]["mtu"])
        for name in RAILS
        if name in links and links[name]["addr_info"]
    }


def ask(name):
    """Ask a model of the scenario at its own head, and return its answer."""
    model, host, port = BIG_AND_SMALL[name]
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}
    done = pair.outside(
        "curl", "--silent", "--max-time", "60", f"http://{nodes.SUBNET}.0.1{host[-1]}:{port}/v1/chat/completions",
        "--header", f"Authorization: Bearer {pair.KEY}", "--header", "Content-Type: application/json", "--data", json.dumps(body),
        check=False,
    )  # fmt: skip
    return done


def states(service):
    return [
        node(
            host, "systemctl", "show", f"spark-{service}.service", "--property=ActiveState", "--value", check=False
        ).strip()
        for host in HOSTS
    ]


def relayed(host):
    """Rules with which Docker's firewall lets a host forward packets of others."""
    return [line for line in node(host, "iptables", "-S", "DOCKER-USER").splitlines() if "-i en" in line]


# --- the network


def test_each_cable_has_two_subnets_and_full_frames():
    addresses_of = {host: addresses(host) for host in HOSTS}
    assert all(
        set(rails) == set(RAILS) and {mtu for _ip, mtu in rails.values()} == {9000} for rails in addresses_of.values()
    ), addresses_of
    everything = [address for rails in addresses_of.values() for address, _mtu in rails.values()]
    assert len(set(everything)) == 16
    for host in HOSTS:
        routes = [
            line.split()[0] for line in node(host, "ip", "route").splitlines() if " via " in line and "192.168." in line
        ]
        assert len(routes) == 4, routes


def test_all_hosts_reach_each_other_with_frames_that_fill_the_mtu():
    addresses_of = {host: addresses(host) for host in HOSTS}
    lost = [
        (host, target)
        for host, other in itertools.permutations(HOSTS, 2)
        for target, _mtu in addresses_of[other].values()
        if " 1 received" not in node(host, "ping", "-c1", "-W2", "-M", "do", "-s", "8972", target, check=False)
    ]
    assert lost == []


@pytest.mark.parametrize("host", HOSTS)
def test_the_relay_forwards_between_the_two_ports_and_past_docker(host):
    assert node(host, "systemctl", "is-active", RELAY).strip() == "active"
    assert node(host, "systemctl", "is-enabled", RELAY).strip() == "enabled"
    assert node(host, "sysctl", "-n", "net.ipv4.ip_forward").strip() == "1"
    assert len(relayed(host)) == 4


def test_the_relay_is_back_once_docker_has_made_its_chains_anew():
    node("spark-2", "systemctl", "restart", "docker")
    pair.wait(lambda: len(relayed("spark-2")) == 4, 60, "the relay is back beside Docker")


def test_what_somebody_changed_of_the_relay_is_set_again_by_the_next_run():
    route = next(line for line in node("spark-2", "ip", "route").splitlines() if " via 192.168." in line)
    node("spark-2", "ip", "route", "del", *route.split()[:5])
    node("spark-3", "sysctl", "-w", "net.ipv4.ip_forward=0")
    code, text = cabling()
    assert code == 0, text
    assert route in node("spark-2", "ip", "route")
    assert node("spark-3", "sysctl", "-n", "net.ipv4.ip_forward").strip() == "1"


# --- files of one host, which the others get over the cables


def digests(host):
    """SHA-256 of every blob of the payload's model."""
    return sorted(node(host, "sh", "-c", f"sha256sum {PAYLOAD}/blobs/*").splitlines())


def test_a_model_of_one_host_goes_from_neighbour_to_neighbour_by_both_rails_of_each_cable():
    """Each byte enters each host once: its neighbours have it from the first host, the one beyond from one of them."""
    made = ROOT / "molecule" / "spread" / "payload.py"
    node("spark-1", "python3", "-c", made.read_text(), "/srv/huggingface", "/root/layer.tar")
    interfaces = (*RAILS, pair.MANAGEMENT)
    try:
        before = {(host, name): pair.counters(host, name) for host in HOSTS for name in interfaces}
        code, text = run(str(ROOT / "molecule" / SCENARIO / "handed_on.yml"))
        assert code == 0, text
        sent = {place: pair.counters(*place)[1] - counters[1] for place, counters in before.items()}
        print({place: f"{count / 1e6:.1f} MB" for place, count in sent.items()})
        assert digests("spark-1") and all(digests(host) == digests("spark-1") for host in HOSTS[1:])
        # Two neighbours, a cable each, half of it on each rail.
        for name in RAILS:
            assert 0.4 * PAYLOAD_BYTES < sent["spark-1", name] < 0.65 * PAYLOAD_BYTES, sent
        # The host beyond has it from one of them, by both rails of that cable.
        beyond = [[sent["spark-2", name] for name in RAILS[:2]], [sent["spark-4", name] for name in RAILS[2:]]]
        assert sorted(min(way) > 0.4 * PAYLOAD_BYTES for way in beyond) == [False, True], sent
        assert sum(sent[host, name] for host in HOSTS for name in RAILS) < 3.3 * PAYLOAD_BYTES, sent
        assert all(sent[host, pair.MANAGEMENT] < 0.06 * PAYLOAD_BYTES for host in HOSTS), sent
    finally:
        for host in HOSTS:
            node(host, "rm", "-rf", PAYLOAD, "/root/layer.tar")


# --- one engine over it


def test_four_ranks_answer_as_one():
    pair.serves(parts=PARTS)
    for rank, host in enumerate(HOSTS):
        assert f"rank {rank} of 4" in node(host, "systemctl", "status", "--no-pager", pair.UNIT)
        assert json.loads(node(host, "cat", "/var/lib/dgxspark/receipts/tiny.json"))["rank"] == rank


def test_a_request_crosses_the_cables_and_not_the_management_network(tokens=64):
    """Each token takes two all-reduces a layer, and a rank sends at least a whole hidden state for each."""
    interfaces = (*RAILS, pair.MANAGEMENT)
    before = {(host, name): pair.counters(host, name) for host in HOSTS for name in interfaces}
    assert pair.chat(max_tokens=tokens, ignore_eos=True)["usage"]["completion_tokens"] == tokens
    grown = {place: [now - then for now, then in zip(pair.counters(*place), before[place])] for place in before}
    least = tokens * 2 * 2 * 512 * 2
    for host in HOSTS:
        assert min(sum(grown[host, name][way] for name in RAILS) for way in (0, 1)) >= least, grown
        # The scheduler's messages go over the management network, on which the hosts of a ring meet.
        assert sum(grown[host, pair.MANAGEMENT]) < sum(grown[host, name][way] for name in RAILS for way in (0, 1)), (
            grown
        )


# --- faults, which the hosts mend by themselves


def test_a_rank_that_is_killed_ends_with_four_new_ones():
    before = pair.engines()
    node("spark-3", "docker", "kill", "spark-tiny")
    pair.wait(
        lambda: pair.engines()["spark-1"] != before["spark-1"], pair.STOPPED_SECONDS, "the head has let go of its rank"
    )
    pair.serves(before, PARTS)


def test_two_faults_at_once_end_with_four_new_ranks():
    before = pair.engines()
    node("spark-2", "docker", "kill", "spark-tiny")
    node("spark-4", "systemctl", "kill", "--signal=KILL", "--kill-whom=main", pair.UNIT)
    pair.wait(
        lambda: pair.engines()["spark-1"] != before["spark-1"], pair.STOPPED_SECONDS, "the head has let go of its rank"
    )
    pair.serves(before, PARTS)


def test_one_cable_out_stops_all_ranks_is_named_and_all_serve_once_it_is_back():
    """NCCL's ring needs each cable, even if a relay could go round the other way: no rank starts while one is out."""
    before = pair.engines()
    cabled(*RING[:1], *RING[2:])
    out = "enp1s0f0np0 has no link to spark-3, enP2p1s0f0np0 has no link to spark-3: a cable of the ring is out"
    pair.waits("spark-2", out)
    pair.waits("spark-3", "enp1s0f1np1 has no link to spark-2")
    pair.waits("spark-4", f"spark-2 (rank 1): {out}")
    code, text = cabling("--check")
    assert code != 0 and "error fabric.line" in text, text
    assert "spark-2 port 0 belongs into spark-3 port 1" in text, text
    cabled(*RING)
    pair.serves(before, PARTS)
    # A card that comes back gets the settings that the host has written down.
    test_each_cable_has_two_subnets_and_full_frames()


def test_a_head_that_loses_power_ends_with_the_others_waiting_and_all_serving_once_it_is_back():
    before = pair.engines()
    nodes.container("spark-1").kill()
    for host in HOSTS[1:]:
        pair.waits(host, "spark-1 (rank 0)")
    nodes.container("spark-1").start()
    cabled(*RING)  # its ports are virtual: they went with its power
    pair.serves(before, PARTS)


def test_a_restart_of_all_at_once_ends_with_four_new_ranks():
    before = pair.engines()
    for host in HOSTS:
        node(host, "systemctl", "restart", "--no-block", pair.UNIT)
    pair.wait(
        lambda: pair.engines()["spark-1"] != before["spark-1"], pair.STOPPED_SECONDS, "the head has let go of its rank"
    )
    pair.serves(before, PARTS)


# --- one verb from four as one to two pairs


def test_one_command_changes_to_two_pairs_and_one_changes_back():
    code, text = run("dgxspark.vllm.swap", out="tiny", **{"in": "left,right"})
    assert code == 0, text
    assert (states("tiny"), states("left"), states("right")) == (
        ["inactive"] * 4, ["active", "active", "inactive", "inactive"], ["inactive", "inactive", "active", "active"],
    )  # fmt: skip
    for name in ("left", "right"):
        assert "scripted test model" in ask(name), name
    code, text = run("dgxspark.vllm.swap", out="left,right", **{"in": "tiny"})
    assert code == 0, text
    assert states("tiny") == ["active"] * 4 and states("left") == states("right") == ["inactive"] * 4
    pair.serves()


# --- four replicas in its place


def answered_by_replica():
    """How many requests each replica of `replicas` has ended, by its number: the head counts them apart."""
    metrics = pair.outside("curl", "--silent", "--max-time", "60", f"http://{nodes.SUBNET}.0.11:8005/metrics")
    counts: dict[str, float] = {}
    for labels, value in re.findall(r"^vllm:request_success_total\{(.*)\} (\S+)$", metrics, re.MULTILINE):
        replica = re.search(r'engine="(\d+)"', labels)[1]
        counts[replica] = counts.get(replica, 0) + float(value)
    return counts


def replicas_share(requests=24):
    """Send requests side by side: all are answered, and each replica has answered some."""
    before = answered_by_replica()
    with ThreadPoolExecutor(requests) as clients:
        answers = list(clients.map(lambda _number: ask("replicas"), range(requests)))
    assert [answer for answer in answers if "scripted test model" not in answer] == []
    grown = {replica: count - before[replica] for replica, count in answered_by_replica().items()}
    assert set(grown) == {"0", "1", "2", "3"} and min(grown.values()) >= 1 and sum(grown.values()) == requests, grown


def test_one_command_changes_to_four_replicas_that_share_the_requests():
    code, text = run("dgxspark.vllm.swap", out="tiny", **{"in": "replicas"})
    assert code == 0, text
    assert (states("tiny"), states("replicas")) == (["inactive"] * 4, ["active"] * 4)
    replicas_share()


def test_a_replica_that_is_killed_ends_with_four_new_ones():
    before = [pair.containers(host)["spark-replicas"] for host in HOSTS]
    node("spark-3", "docker", "kill", "spark-replicas")

    def anew():
        now = [pair.containers(host).get("spark-replicas") for host in HOSTS]
        return None not in now and not set(now) & set(before) and states("replicas") == ["active"] * 4

    pair.wait(anew, pair.ACTIVE_SECONDS, "all four replicas are new")
    replicas_share()


def test_one_command_changes_back_from_replicas():
    code, text = run("dgxspark.vllm.swap", out="replicas", **{"in": "tiny"})
    assert code == 0, text
    assert (states("tiny"), states("replicas")) == (["active"] * 4, ["inactive"] * 4)
    pair.serves()


# --- plugs in wrong ports: named before anything is changed

MISCABLED = {
    "the plugs of one host are exchanged": (
        ["1.0-2.0", "2.1-3.1", "3.0-4.1", "4.0-1.1"],
        ["error fabric.ring_cabling", "the plugs of spark-2 port 0 and spark-2 port 1 are exchanged"],
    ),
    "the last cable is missing": (RING[:3], ["error fabric.line", "spark-4 port 0 belongs into spark-1 port 1"]),
    "a cable joins two ports of one host": (
        ["1.0-2.1", "2.0-3.1", "4.0-4.1"],
        ["spark-3 port 0 belongs into spark-4 port 1", "spark-4 port 0 belongs into spark-1 port 1"],
    ),
    "another order": (
        ["1.0-3.1", "3.0-2.1", "2.0-4.1", "4.0-1.1"],
        ["error fabric.ring_order", "List the hosts of the group as spark-1, spark-3, spark-2, spark-4"],
    ),
    "two pairs in place of a ring": (
        ["1.0-2.1", "2.0-1.1", "3.0-4.1", "4.0-3.1"],
        ["spark-2 port 0 belongs into spark-3 port 1", "spark-4 port 0 belongs into spark-1 port 1"],
    ),
    "one host left out": (["1.0-2.1", "2.0-3.1", "3.0-1.1"], ["error fabric.no_link: spark-4"]),
}


def test_engines_are_stopped_before_plugs_are_moved():
    code, text = run("dgxspark.vllm.stop", "-e", "services=all")
    assert code == 0, text
    assert states("tiny") == ["inactive"] * 4


@pytest.mark.parametrize("fault", MISCABLED)
def test_plugs_in_wrong_ports_are_named(fault):
    cables, needles = MISCABLED[fault]
    cabled(*cables)
    files = {host: node(host, "md5sum", "/etc/netplan/40-cx7.yaml") for host in HOSTS}
    try:
        code, text = cabling("--check")
        assert code != 0 and [needle for needle in needles if needle not in text] == [], text
        assert {host: node(host, "md5sum", "/etc/netplan/40-cx7.yaml") for host in HOSTS} == files
    finally:
        cabled(*RING)


def test_a_deployment_tests_the_ring_with_the_engines_own_image_and_starts_it():
    code, text = run("dgxspark.vllm.site")
    assert code == 0, text
    assert re.search(r"all-reduce of tiny over 4 hosts: [\d.]+ Gb/s \(busbw, gloo\)", text), text
    pair.serves(parts=PARTS)


# --- three of them, by Ray; and the remains of a relay


def test_three_in_a_triangle_are_spanned_by_ray(tmp_path):
    """Heads, vocabulary and layers of the model divide by three."""
    assert run("dgxspark.vllm.stop", "-e", "services=all")[0] == 0
    for host in HOSTS:  # these tests start it more often than the ten times an hour that a cluster is given
        node(host, "rm", "-f", "/run/dgxspark/attempts/tiny.json")
    model = ROOT / ".cache" / "sim" / "models" / "scripted3"
    subprocess.run(
        [sys.executable, str(ROOT / "tests" / "sim" / "realengine" / "mkscripted.py"), str(model), "3"], check=True
    )
    cabled("1.0-2.1", "2.0-3.1", "3.0-1.1")
    document = yaml.safe_load(pair.inventory(SCENARIO).read_text(encoding="utf-8"))
    trio = document["sparks"]["children"].pop("quad")
    del document["sparks"]["hosts"]["spark-4"], trio["hosts"]["spark-4"]
    cluster = trio["vars"]["spark_cluster"]
    cluster.update(name="trio", executor="ray")
    cluster["fabric"].pop("relay")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    cluster["services"] = [{**cluster["services"][0], "model": {"path": "scripted3"}, "config": config, "env": {}}]
    document["sparks"]["children"]["trio"] = trio
    inventory = tmp_path / "trio.yml"
    inventory.write_text(yaml.safe_dump(document), encoding="utf-8")
    ran = subprocess.run(
        ["ansible-playbook", "-i", str(BASE), "-i", str(inventory), "dgxspark.vllm.site", "--skip-tags", "lock"],
        cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    three = HOSTS[:3]
    for host in three:
        assert pair.state(host) == "active"
        assert not node(host, "sh", "-c", f"ls /etc/systemd/system/{RELAY} 2>/dev/null", check=False)
        assert relayed(host) == []
    assert set(pair.containers("spark-1")) == {"spark-tiny", "spark-tiny-ray"}
    assert "scripted test model" in ask("big")
