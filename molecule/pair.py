"""What the tests of pair_mp and pair_ray share: both nodes, seen past Ansible, SSH and the network that they are about."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from nodes import MANAGEMENT_NETWORK, NODES, SUBNET, container, engine, node

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
BASE = ROOT / "molecule" / "inventory.yml"
KEY = "molecule-secret-key"
HEAD, WORKER = "spark-1", "spark-2"
OTHER = {HEAD: WORKER, WORKER: HEAD}
NUMBER = {HEAD: 11, WORKER: 12}
MANAGEMENT, INTERFACES = "enP7s7", ("enp1s0f0np0", "enP2p1s0f0np0")
UNIT = "spark-tiny.service"
URL = f"http://{SUBNET}.0.11:8003"
ACTIVE_SECONDS, STOPPED_SECONDS = 300, 120
"""How long an engine may take to start, and to stop; scenarios with more ranks have more."""
FOLDERS = ("/etc/dgxspark", "/etc/systemd/system", "/etc/netplan", "/usr/local/lib/dgxspark", "/usr/local/libexec")


def management(host):
    return f"{SUBNET}.0.{NUMBER[host]}"


def fabric(host):
    return f"{SUBNET}.1.{NUMBER[host]}"


def outside(*argv, check=True):
    """Run a command on this machine, which has the nodes' networks."""
    return subprocess.run(argv, capture_output=True, text=True, check=check).stdout


def unit(host, *properties):
    # A node that is booting has no systemd to ask yet.
    shown = node(host, "systemctl", "show", UNIT, "--property=" + ",".join(properties), check=False)
    return {**dict.fromkeys(properties, ""), **dict(line.split("=", 1) for line in shown.splitlines())}


def state(host):
    return unit(host, "ActiveState")["ActiveState"]


def status(host):
    """The output of `systemctl status` for the unit."""
    return unit(host, "StatusText")["StatusText"]


def containers(host):
    """Name and id of every container in any state."""
    listed = node(host, "docker", "ps", "--all", "--no-trunc", "--format", "{{.Names}} {{.ID}}", check=False)
    return dict(line.split() for line in listed.splitlines())


def engines():
    return {host: containers(host) for host in NODES}


def processes(host):
    """The live processes of an engine, a Ray or a docker client, by their command lines."""
    return node(host, "pgrep", "--list-full", "--full", "vllm|VLLM|ray::|raylet|gcs_server", check=False).splitlines()


def empty(host):
    return not containers(host) and not processes(host)


def ask(path, body=None, timeout=60, parse=True):
    request = urllib.request.Request(
        URL + path,
        data=json.dumps(body).encode() if body else None,
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
    )
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return json.loads(reply.read()) if parse else reply.read()


def chat(timeout=60, **options):
    """Ask the model over the head's management address and return the completion."""
    return ask(
        "/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **options}, timeout
    )


def chat_in_vain(**options):
    """Ask for what breaks off."""
    try:
        chat(300, **options)
    except OSError:  # urllib's errors and http.client's broken connections are among them
        return
    pytest.fail("the request was answered to its end")


def starts(host):
    """How often the unit was started since the node came up; each start has a separate invocation in the journal."""
    fields = ("--unit", UNIT, "--boot", "--output=json", "--output-fields=_SYSTEMD_INVOCATION_ID", "--no-pager")
    lines = node(host, "journalctl", *fields).splitlines()
    return len({json.loads(line).get("_SYSTEMD_INVOCATION_ID") for line in lines} - {None})


def answers():
    """Tell whether the model answers with the text in its weights; without its other half it cannot."""
    message = chat(max_tokens=16)["choices"][0]["message"]
    # The scripted model closes no thinking, so its reasoning parser takes all that it says.
    return "scripted test model" in (message["content"] or message["reasoning"])


def wait(condition, seconds, description):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.5)
    pytest.fail(f"not within {seconds} s: {description}\n{report()}")


def report():
    """The visible state of both nodes, for the message of a failed test."""
    lines = []
    for host in NODES:
        lines += [
            f"--- {host}",
            node(host, "systemctl", "status", "--no-pager", "--lines=0", "--full", UNIT, check=False),
        ]
        lines += [
            node(host, "journalctl", "--unit", UNIT, "--lines=60", "--no-pager", "--output=short-precise", check=False)
        ]
        lines += [str(containers(host)), *processes(host)]
    return "\n".join(lines)


def serves(before=None, parts=None):
    """Wait until both units are active, and see that the model answers.

    before: containers that were there before a fault. None of them may be left, on either node.
    """
    wait(lambda: all(state(host) == "active" for host in NODES), ACTIVE_SECONDS, "all units are active")
    assert answers(), report()
    for host, earlier in (before or {}).items():
        assert not set(earlier.values()) & set(containers(host).values()), (
            f"{host} still has a rank of before\n{report()}"
        )
    for host, names in (parts or {}).items():
        assert set(containers(host)) == set(names), report()


def waits(host, *words):
    """Wait until a rank has stopped, holds nothing, and says what it waits for."""
    wait(
        lambda: state(host) == "activating" and empty(host) and all(word in status(host) for word in words),
        STOPPED_SECONDS,
        f"{host} holds nothing and waits, saying {words}",
    )


def cable(host, plugged):
    for interface in INTERFACES:
        node(host, "ip", "link", "set", "dev", interface, "up" if plugged else "down")


def reboot(host):
    container(host).restart(timeout=60)


def snapshot():
    """What a refused run may not change: containers, the starts of the units, and every file of ours."""
    files = ("find", *FOLDERS, "-type", "f", "-printf", "%p %T@ %s\\n")
    return {
        host: (
            containers(host),
            unit(host, "ActiveState", "InvocationID", "NRestarts"),
            sorted(node(host, *files, check=False).splitlines()),
        )
        for host in NODES
    }


def inventory(scenario):
    return ROOT / "molecule" / scenario / "inventory.yml"


def cluster(scenario, **service):
    """Return the cluster of a scenario with keys of its service changed."""
    document = yaml.safe_load(inventory(scenario).read_text(encoding="utf-8"))
    settings = document["sparks"]["children"]["pair"]["vars"]["spark_cluster"]
    settings["services"][0].update(service)
    return settings


def play(scenario, *options, hosts=None, **variables):
    """Run site.yml as a person would; returns its exit code and all that it printed, as one line.

    hosts: further variables of hosts. variables: extra variables.
    """
    with tempfile.TemporaryDirectory() as folder:
        more = Path(folder) / "zz.yml"
        more.write_text(yaml.safe_dump({"sparks": {"hosts": hosts or {}}}), encoding="utf-8")
        inventories = [word for path in (BASE, inventory(scenario), more) for word in ("-i", str(path))]
        ran = subprocess.run(
            ["ansible-playbook", *inventories, "dgxspark.vllm.site", *options, "-e", json.dumps(variables)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        )
    # Ansible wraps displayed messages.
    return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


def refused(scenario, *needles, hosts=None, options=(), **variables):
    """Run site.yml and see that it fails with these words, and that the hosts keep running the same engines."""
    before = snapshot()
    code, text = play(scenario, *options, hosts=hosts, **variables)
    assert code != 0, text
    assert [needle for needle in needles if needle not in text] == [], text
    assert snapshot() == before, text


def counters(host, interface):
    """Bytes that an interface has received and sent."""
    return [
        int(node(host, "cat", f"/sys/class/net/{interface}/statistics/{direction}_bytes")) for direction in ("rx", "tx")
    ]


# --- who reaches what

REACH = """
import json, socket, subprocess, sys
from concurrent.futures import ThreadPoolExecutor

given = json.loads(sys.argv[1])
for target, gateway in given["routes"].items():
    subprocess.run(["ip", "route", "replace", target, "via", gateway], check=True)
for target in given["datagrams"]:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"?", tuple(target))


def answers(target):
    try:
        socket.create_connection(tuple(target), 3).close()
    except OSError:
        return False
    return True


with ThreadPoolExecutor(32) as pool:
    print(json.dumps([t for t, there in zip(given["targets"], pool.map(answers, given["targets"])) if there]))
"""


def listening(host):
    """TCP ports of a node that something listens on, with the addresses."""
    addresses = {}
    for line in node(host, "ss", "--tcp", "--listening", "--numeric", "--no-header").splitlines():
        address, _colon, port = line.split()[3].rpartition(":")
        addresses.setdefault(int(port), set()).add(address.partition("%")[0])
    return addresses


def reached(host, targets):
    """Return the pairs (address, port) that a node reaches."""
    request = json.dumps({"targets": targets, "routes": {}, "datagrams": []})
    return {tuple(target) for target in json.loads(node(host, "python3", "-c", REACH, request))}


def reached_by_stranger(targets, routes, datagrams=()):
    """Return the pairs (address, port) that another machine of the management network reaches, given such routes.

    datagrams: addresses that get one by UDP, too.
    """
    request = json.dumps({"targets": targets, "routes": routes, "datagrams": datagrams})
    reached = engine().containers.run(
        container(HEAD).image, ["-c", REACH, request], entrypoint="python3", network=MANAGEMENT_NETWORK, cap_add=["NET_ADMIN"], remove=True
    )  # fmt: skip
    return {tuple(target) for target in json.loads(reached)}


def only_ssh_answers_a_peer(host):
    """See what a host's peer reaches of it over the management network, and that the rest is there for it over the fabric.

    The engine answers those that the inventory names (spark_allow_from), as the tests do that ask it.
    """
    ports = listening(host)
    by_management = reached(OTHER[host], [(management(host), port) for port in ports])
    assert {port for _address, port in by_management} == {22}, ports
    everywhere = {"0.0.0.0", "*", "[::]", fabric(host)}
    on_fabric = {port for port, addresses in ports.items() if addresses & everywhere}
    by_fabric = reached(OTHER[host], [(fabric(host), port) for port in on_fabric])
    assert {port for _address, port in by_fabric} == on_fabric, ports
    assert len(on_fabric - {22}) > 1, "ranks listen for each other"


def the_fabric_is_closed_to_the_management_network():
    """Linux takes in packets for any of its addresses on any interface, and forwards them where Docker runs."""
    targets = [(fabric(host), port) for host in NODES for port in {*listening(host), 6379, 29501} - {22}]
    for by in NODES:
        routes = {f"{fabric(host)}/32": management(by) for host in NODES}
        open_and_closed = [(management(HEAD), 22), (management(HEAD), 8003)]
        assert reached_by_stranger([*targets, *open_and_closed], routes) == {(management(HEAD), 22)}


def the_supervisors_hear_the_fabric_alone():
    """Datagrams of strangers are dropped before the supervisors see them, to every address of the host."""

    def dropped(host):
        rules = node(host, "nft", "list", "chain", "inet", "dgxspark", "input")
        return int(re.search(r"udp dport @ranges counter packets (\d+)", rules)[1])

    port = json.loads(node(HEAD, "cat", "/etc/dgxspark/services/tiny.json"))["rank"]["port"]
    before = {host: dropped(host) for host in NODES}
    for host in NODES:
        routes = {f"{fabric(host)}/32": management(host)}
        reached_by_stranger([], routes, [(management(host), port), (fabric(host), port)])
        assert dropped(host) >= before[host] + 2


def a_request_crosses_the_fabric(tokens=64):
    """Every token takes two all-reduces a layer; each of two ranks sends and receives a whole hidden state for each."""
    layers, hidden, bfloat16 = 2, 512, 2
    interfaces = (INTERFACES[0], MANAGEMENT)
    before = {(host, name): counters(host, name) for host in NODES for name in interfaces}
    assert chat(max_tokens=tokens, ignore_eos=True)["usage"]["completion_tokens"] == tokens
    grown = {place: [now - then for now, then in zip(counters(*place), before[place])] for place in before}
    least = tokens * layers * 2 * hidden * bfloat16
    for host in NODES:
        assert min(grown[host, INTERFACES[0]]) >= least, grown
        assert max(grown[host, MANAGEMENT]) < least / 2, grown
