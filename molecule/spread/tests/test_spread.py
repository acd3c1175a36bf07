"""Four nodes, one source: what crossed which cable, what is done about damage, and what is left behind.

The tests run in order; converge has spread a model of 256 MiB and an image of 48 MiB from spark-1 to the other three.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path.insert(0, str(ROOT / "molecule"))

from nodes import FLEET, SUBNET

LAN, RAILS = "enP7s7", ("enp1s0f0np0", "enP2p1s0f0np0")
MODEL, IMAGE = 256 * 1024 * 1024, 48 * 1024 * 1024
SHARD = 32 * 1024 * 1024
HUB = "/srv/huggingface/hub"
FOLDER = f"{HUB}/models--Org--Payload"
RUN_DIR = "/run/dgxspark/spread"
TOUCHED = (
    "test ! -e /run/dgxspark/spread && test ! -e /srv/huggingface/.spread && "
    "! systemctl is-active --quiet dgxspark-spread dgxspark-spread-worker && "
    "! grep -rqF dgxspark/spread /root/.ssh /etc/ssh /home/spark/.ssh 2>/dev/null"
)


def node(name, *argv, check=True):
    """Run a command as root on a node."""
    ran = subprocess.run(["docker", "exec", FLEET[name], *argv], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 or not check, f"{name}: {argv}: {ran.stdout}{ran.stderr}"
    return ran.stdout


def playbook(*options, hosts=None, kinds=("images", "models"), **variables):
    """Return the command that spreads, and where it runs."""
    body = [
        {
            "name": "Spread",
            "hosts": "sparks",
            "become": True,
            "gather_facts": False,
            "tasks": [{"name": "Spread", "ansible.builtin.import_role": {"name": "dgxspark.vllm.spread"}}],
        }
    ]
    place = ROOT / ".cache" / "molecule" / "spread.yml"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(body), encoding="utf-8")
    inventories = [word for name in ("inventory.yml", "spread/inventory.yml") for word in ("-i", f"molecule/{name}")]
    given = {"spread_kinds": list(kinds), **variables}
    limit = ["--limit", ",".join(hosts)] if hosts else []
    return ["ansible-playbook", *inventories, *limit, *options, "-e", json.dumps(given), str(place)]


def play(*options, **given):
    """Spread, as a person would; returns the exit code and what was printed, as one line."""
    ran = subprocess.run(
        playbook(*options, **given),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
    )
    return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


def bytes_of(name, interface, direction, place="/sys/class/net/{}/statistics"):
    return int(node(name, "cat", f"{place.format(interface)}/{direction}_bytes"))


def counters():
    return {
        (name, kind, direction): sum(bytes_of(name, interface, direction) for interface in interfaces)
        for name in FLEET
        for kind, interfaces in (("lan", (LAN,)), ("rails", RAILS))
        for direction in ("tx", "rx")
    }


def since(before):
    return {place: now - before[place] for place, now in counters().items()}


@pytest.fixture(scope="module")
def converged():
    """What crossed each cable from the end of prepare on."""
    before = {
        (name, kind, direction): sum(bytes_of(name, one, direction, "/run/spread-{}") for one in interfaces)
        for name in FLEET
        for kind, interfaces in (("lan", (LAN,)), ("rails", RAILS))
        for direction in ("tx", "rx")
    }
    return since(before)


def digests(name):
    """SHA-256 of every file of the snapshot, by its path there."""
    commit = node(name, "cat", f"{FOLDER}/refs/main")
    listed = node(name, "sh", "-c", f"cd {FOLDER}/snapshots/{commit} && find . -type l | sort | xargs sha256sum")
    return dict(line.split()[::-1] for line in listed.splitlines())


def shards(name):
    """The blobs of the shards, by name."""
    found = node(name, "find", f"{FOLDER}/blobs", "-type", "f", "-size", "+1M").splitlines()
    return sorted(found)


# --- what converge did


@pytest.mark.parametrize("name", FLEET)
def test_every_byte_is_there_in_the_layout_of_the_hub(name):
    assert digests(name) == digests("spark-1") and len(digests(name)) == 11
    for blob in shards(name):
        assert node(name, "sha256sum", blob).split()[0] == Path(blob).name
    assert node(name, "docker", "image", "inspect", "--format", "{{.Id}}", "spread/payload:1") == node(
        "spark-1", "docker", "image", "inspect", "--format", "{{.Id}}", "spread/payload:1"
    )


def test_the_source_sent_each_thing_twice_once_over_each_network(converged):
    payload = MODEL + IMAGE
    sent = {(name, kind): converged[name, kind, "tx"] for name in FLEET for kind in ("lan", "rails")}
    print({place: f"{count / 1e6:.1f} MB" for place, count in sorted(sent.items())})
    for place in (("spark-1", "lan"), ("spark-1", "rails"), ("spark-3", "rails")):
        assert payload < sent[place] < payload * 1.06, sent
    # What acknowledges, and what Ansible is told.
    for place in (
        ("spark-3", "lan"),
        ("spark-2", "lan"),
        ("spark-2", "rails"),
        ("spark-4", "lan"),
        ("spark-4", "rails"),
    ):
        assert sent[place] < payload * 0.06, sent


def test_both_rails_carried_a_share():
    for rail in RAILS:
        now, before = (
            bytes_of("spark-2", rail, "rx", place) for place in ("/sys/class/net/{}/statistics", "/run/spread-{}")
        )
        assert now - before > MODEL / 4


def test_two_rounds_were_enough():
    state = json.loads(node("spark-1", "cat", "/run/spread-state.json"))
    told = [(send["round"], send["source"], send["host"], send["link"]) for send in state["sent"]]
    assert sorted(told) == [
        (1, "spark-1", "spark-3", "lan"),
        (2, "spark-1", "spark-2", "fabric"),
        (2, "spark-3", "spark-4", "fabric"),
    ]
    assert state["failed"] == [] and all(send["bytes"] > MODEL for send in state["sent"])


@pytest.mark.parametrize("name", FLEET)
def test_nothing_of_the_access_is_left(name):
    node(name, "sh", "-c", TOUCHED)


# --- damage


def damage(name, blob, program):
    node(name, "python3", "-c", program, blob)


FLIP = "import sys; f = open(sys.argv[1], 'r+b'); f.seek(5000000); b = f.read(1); f.seek(5000000); f.write(bytes([b[0] ^ 1]))"
CUT = "import os, sys; os.truncate(sys.argv[1], 20000000)"


def test_a_flipped_byte_and_a_truncated_file_are_found_and_only_they_come_again():
    wanted = digests("spark-1")
    flipped, both = shards("spark-2")[0], shards("spark-4")[1]
    truncated = shards("spark-2")[3]
    damage("spark-2", flipped, FLIP)
    damage("spark-2", truncated, CUT)
    damage("spark-4", both, FLIP)
    damage("spark-4", both, CUT)
    before = counters()
    code, text = play()
    grown = since(before)
    assert code == 0, text
    assert digests("spark-2") == wanted and digests("spark-4") == wanted
    # The truncated file goes on where it was cut; the one that is wrong before that place comes whole after it.
    came = {name: grown[name, "rails", "rx"] for name in ("spark-2", "spark-4")}
    assert SHARD * 2 - 20_000_000 < came["spark-2"] < SHARD * 2, came
    assert SHARD * 2 - 20_000_000 < came["spark-4"] < SHARD * 2, came
    for name in FLEET:
        node(name, "sh", "-c", TOUCHED)


def test_what_is_flipped_without_a_trace_is_found_when_all_is_read():
    blob = shards("spark-3")[2]
    stamp = node("spark-3", "stat", "--format", "%y", blob).strip()
    damage("spark-3", blob, FLIP)
    node("spark-3", "touch", f"--date={stamp}", blob)
    assert play()[1].count("changed=0") == 4
    code, text = play(spread_verify="all", kinds=["models"])
    assert code == 0, text
    assert node("spark-3", "sha256sum", blob).split()[0] == Path(blob).name


# --- what is not, or not wholly, there


def forget(name):
    node(name, "rm", "-rf", FOLDER, "/var/lib/dgxspark/spread")


def test_check_mode_says_what_would_move_and_moves_nothing():
    forget("spark-4")
    code, text = play("--check", kinds=["models"])
    assert code == 0, text
    assert "round 1: spark-3 to spark-4 (fabric): Org/Payload@main, 0.27 GB" in text
    assert "changed=1" in text
    node("spark-4", "test", "!", "-e", FOLDER)


def test_without_room_nothing_moves_and_the_figures_say_why():
    node("spark-4", "docker", "image", "rm", "--force", "spread/payload:1")
    code, text = play(kinds=["models"], spread_reserve_gb=1_000_000)
    assert code != 0
    assert re.search(
        r"spark-4: /srv/huggingface has [\d.]+ GB free; 0.27 GB are to come .* 1000000.00 GB stay free", text
    )
    node("spark-4", "test", "!", "-e", FOLDER)


def test_a_run_that_is_cut_off_leaves_off_where_the_next_goes_on():
    argv = playbook(kinds=["models"], spread_limit_mbs=40)
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 60
        staged = 0
        while staged < MODEL / 8 and time.monotonic() < deadline:
            time.sleep(0.3)
            told = node("spark-4", "du", "--summarize", "--bytes", "/srv/huggingface/.spread", check=False).split()
            staged = int(told[0]) if told else 0
        os.killpg(process.pid, signal.SIGKILL)
    assert MODEL / 8 <= staged < MODEL, "it was cut off in the middle"
    node("spark-4", "test", "!", "-e", f"{FOLDER}/snapshots")
    assert "client_key" in node("spark-4", "ls", RUN_DIR)
    before = counters()
    code, text = play()
    assert code == 0, text
    came = since(before)["spark-4", "rails", "rx"]
    assert came < (MODEL - staged) * 1.06 + IMAGE * 1.06, (came, staged)
    assert digests("spark-4") == digests("spark-1")
    for name in FLEET:
        node(name, "sh", "-c", TOUCHED)


def test_the_server_of_a_run_that_was_cut_off_ends_by_itself():
    """What the unit is started with, tried with a short life: keys go with it."""
    node("spark-2", "mkdir", "-p", RUN_DIR)
    argv = json.loads(
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import json; from ansible_collections.dgxspark.vllm.plugins.module_utils import spread_access;"
                "print(json.dumps(spread_access.server_argv(1, '/bin/sleep')[:-4] + ['/bin/sleep', '600']))",
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    node("spark-2", *argv)
    for _attempt in range(60):
        if node("spark-2", "sh", "-c", f"test -e {RUN_DIR} || echo gone", check=False).strip() == "gone":
            return
        time.sleep(0.5)
    pytest.fail("the keys outlived the server")


# --- what nobody has


def test_what_nobody_has_enters_the_site_once():
    home = ROOT / ".cache" / "sim" / "models" / "scripted"
    log = ROOT / ".cache" / "molecule" / "spread-hub.log"
    address = f"{SUBNET}.0.1"
    argv = [
        str(ROOT / "tests/sim/fakehub/fakehub"),
        f"--model=Org/Scripted={home}",
        f"--host={address}",
        "--port=18089",
    ]
    model = {"repo": "Org/Scripted", "revision": "main", "only": [], "image": "vllm/vllm-openai:v0.24.0-ubuntu2404"}
    with log.open("w") as stream, subprocess.Popen(argv, stdout=stream, stderr=stream) as hub:
        try:
            code, text = play(
                kinds=["models"], spread_models=[model], spread_endpoint=f"http://{address}:18089", spread_poll=1
            )
        finally:
            hub.terminate()
    assert code == 0, text
    fetched = re.findall(r"^GET \S*/resolve/\S*?/(\S+) 20[06]", log.read_text(), re.MULTILINE)
    assert sorted(set(fetched)) == sorted(fetched) and "model.safetensors" in fetched, fetched
    weights = hashlib.sha256((home / "model.safetensors").read_bytes()).hexdigest()
    for name in FLEET:
        found = node(name, "sh", "-c", f"sha256sum {HUB}/models--Org--Scripted/snapshots/*/model.safetensors")
        assert found.split()[0] == weights


# --- how fast

COPY = """
import socket, sys, time
if sys.argv[1] == "take":
    with socket.create_server((sys.argv[2], 8723)) as server, open("/root/raw", "wb") as target:
        connection, _peer = server.accept()
        while piece := connection.recv(4194304):
            target.write(piece)
else:
    began = time.monotonic()
    with socket.create_connection((sys.argv[2], 8723)) as connection:
        for path in sys.argv[3:]:
            with open(path, "rb") as source:
                connection.sendfile(source)
    print(time.monotonic() - began)
"""


def test_the_rate_beside_one_raw_copy(capsys):
    blobs = shards("spark-1")
    with subprocess.Popen(
        ["docker", "exec", FLEET["spark-2"], "python3", "-c", COPY, "take", f"{SUBNET}.1.12"]
    ) as taking:
        time.sleep(1)
        raw = float(node("spark-1", "python3", "-c", COPY, "send", f"{SUBNET}.1.12", *blobs))
        assert taking.wait(60) == 0
    assert int(node("spark-2", "stat", "--format", "%s", "/root/raw")) == MODEL
    node("spark-2", "rm", "/root/raw")
    state = json.loads(node("spark-1", "cat", "/run/spread-state.json"))
    told = [f"one raw copy between two nodes, not encrypted and not compared: {MODEL / raw / 1e6:.0f} MB/s"]
    for send in state["sent"]:
        rate = send["bytes"] / send["seconds"] / 1e6
        told.append(f"round {send['round']}, {send['source']} to {send['host']} ({send['link']}): {rate:.0f} MB/s")
    with capsys.disabled():
        print("\n" + "\n".join(told))
