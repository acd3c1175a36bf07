"""Four nodes and one source: bytes on each cable, repair of damage, and leftovers on the nodes.

The tests run in order; converge has spread a model of 256 MiB and an image of 48 MiB from spark-1 to the other three.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path.insert(0, str(ROOT / "molecule"))

from nodes import FLEET, SUBNET, copy, node

LAN, RAILS = "enP7s7", ("enp1s0f0np0", "enP2p1s0f0np0")
MODEL, IMAGE = 256 * 1024 * 1024, 48 * 1024 * 1024
SHARD = 32 * 1024 * 1024
HUB = "/srv/huggingface/hub"
FOLDER = f"{HUB}/models--Org--Payload"
RUN_DIR = "/run/dgxspark/spread"
ENGINE, QWEN = "nvcr.io/nvidia/vllm:26.04-py3", "Qwen/Qwen3-4B-Instruct-2507"
SHARED = f"{HUB}/models--{QWEN.replace('/', '--')}"
ENVIRONMENT = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
TOUCHED = (
    "test ! -e /run/dgxspark/spread && test ! -e /srv/huggingface/.spread && "
    "! ls /var/lib/dgxspark/spread/images/*/* 2>/dev/null && "
    "! systemctl is-active --quiet dgxspark-spread dgxspark-spread-worker && "
    "! grep -rqF dgxspark/spread /root/.ssh /etc/ssh /home/spark/.ssh 2>/dev/null"
)


def playbook(*options, hosts=None, kinds=("images", "models"), **variables):
    """Return the command that runs the role."""
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
    arguments = {"spread_kinds": list(kinds), **variables}
    limit = ["--limit", ",".join(hosts)] if hosts else []
    return ["ansible-playbook", *inventories, *limit, *options, "-e", json.dumps(arguments), str(place)]


def play(*options, **arguments):
    """Spread, as a person would; returns the exit code and the output as one line."""
    return started(playbook(*options, **arguments))


def started(argv):
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False, env=ENVIRONMENT)
    return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


def site(*options, verb="site"):
    """Run site.yml or another playbook for the site, as a person would; returns as play does."""
    inventories = [
        word
        for name in ("inventory.yml", "spread/inventory.yml", "spread/site/inventory.yml")
        for word in ("-i", f"molecule/{name}")
    ]
    return started(["ansible-playbook", *inventories, f"dgxspark.vllm.{verb}", *options])


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
        (name, kind, direction): sum(bytes_of(name, interface, direction, "/run/spread-{}") for interface in interfaces)
        for name in FLEET
        for kind, interfaces in (("lan", (LAN,)), ("rails", RAILS))
        for direction in ("tx", "rx")
    }
    return since(before)


def image_id(name):
    return node(name, "docker", "image", "inspect", "--format", "{{.Id}}", "spread/payload:1")


def digests(name):
    """SHA-256 of every file of the snapshot, by its path there."""
    commit = node(name, "cat", f"{FOLDER}/refs/main")
    listed = node(name, "sh", "-c", f"cd {FOLDER}/snapshots/{commit} && find . -type l | sort | xargs sha256sum")
    return dict(line.split()[::-1] for line in listed.splitlines())


def shards(name):
    """The blobs of the shards, by name."""
    paths = node(name, "find", f"{FOLDER}/blobs", "-type", "f", "-size", "+1M").splitlines()
    return sorted(paths)


# --- what converge did


@pytest.fixture(scope="module")
def sent():
    """Digests of the source, before anything is damaged."""
    return digests("spark-1")


@pytest.mark.parametrize("name", FLEET)
def test_every_byte_is_there_in_the_layout_of_the_hub(name, sent):
    received = digests(name)
    assert received == sent and len(received) == 11
    # A blob has its digest as its name: links of the snapshot lead to it.
    assert {Path(blob).name for blob in shards(name)} <= set(received.values()) and shards(name)
    assert image_id(name) == image_id("spark-1")


def test_the_source_sent_each_thing_twice_once_over_each_network(converged):
    payload = MODEL + IMAGE
    sent = {(name, kind): converged[name, kind, "tx"] for name in FLEET for kind in ("lan", "rails")}
    print({place: f"{count / 1e6:.1f} MB" for place, count in sorted(sent.items())})
    for place in (("spark-1", "lan"), ("spark-1", "rails"), ("spark-3", "rails")):
        assert payload < sent[place] < payload * 1.06, sent
    # Acknowledgements, and the answers to Ansible.
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


@pytest.mark.parametrize(
    ("name", "source", "link", "encrypted"),
    [
        ("spark-2", "spark-1", "fabric", False),
        ("spark-3", "spark-1", "lan", True),
        ("spark-4", "spark-3", "fabric", False),
    ],
)
def test_a_model_comes_from_the_nearest_source(name, source, link, encrypted):
    result = json.loads(node(name, "cat", "/run/spread-got.json"))["Org/Payload@main"]
    assert (result["source"], result["link"], result["encrypted"], result["failed"]) == (source, link, encrypted, [])
    assert result["bytes"] > MODEL


@pytest.mark.parametrize("name", FLEET)
def test_nothing_of_the_access_is_left(name):
    node(name, "sh", "-c", TOUCHED)


# --- damage


def damage(name, blob, program):
    node(name, "python3", "-c", program, blob)


FLIP = "import sys; f = open(sys.argv[1], 'r+b'); f.seek(5000000); b = f.read(1); f.seek(5000000); f.write(bytes([b[0] ^ 1]))"
CUT = "import os, sys; os.truncate(sys.argv[1], 20000000)"


@pytest.mark.nightly
def test_a_flipped_byte_and_a_truncated_file_are_found_and_only_they_come_again():
    expected = digests("spark-1")
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
    assert digests("spark-2") == expected and digests("spark-4") == expected
    # The truncated file is resumed; a file that is damaged before its end is received whole.
    came = {name: grown[name, "rails", "rx"] for name in ("spark-2", "spark-4")}
    assert SHARD * 2 - 20_000_000 < came["spark-2"] < SHARD * 2, came
    assert SHARD * 2 - 20_000_000 < came["spark-4"] < SHARD * 2, came
    for name in FLEET:
        node(name, "sh", "-c", TOUCHED)


@pytest.mark.nightly
def test_what_somebody_flips_is_found_although_its_date_says_nothing():
    blob = shards("spark-2")[1]
    stamp = node("spark-2", "stat", "--format", "%y", blob).strip()
    damage("spark-2", blob, FLIP)
    node("spark-2", "touch", f"--date={stamp}", blob)
    code, text = play(kinds=["models"])
    assert code == 0, text
    assert node("spark-2", "sha256sum", blob).split()[0] == Path(blob).name


# --- missing and partial items


def forget(name):
    node(name, "rm", "-rf", FOLDER, "/var/lib/dgxspark/spread")


def test_check_mode_says_what_would_move_and_moves_nothing():
    forget("spark-4")
    code, text = play("--check", kinds=["models"])
    assert code == 0, text
    assert "spark-3 to spark-4 (fabric): Org/Payload@main, 0.27 GB" in text
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


STAGED = {"models": "/srv/huggingface/.spread", "images": "/var/lib/dgxspark/spread/images"}


def staged_on(name, kind):
    output = node(name, "du", "--summarize", "--bytes", STAGED[kind], check=False).split()
    return int(output[0]) if output else 0


@contextmanager
def slowly(log, kind="models", size=MODEL):
    """Let spark-4 take the model or the image at a rate that leaves time to do something about it; goes on when a part has come."""
    # The program itself, so that all of a run that is killed is gone.
    argv = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        *playbook(kinds=[kind], spread_limit_mbs=size / 6e6)[1:],
    ]
    # Molecule's own settings enable no callbacks.
    progress = {"ANSIBLE_CALLBACKS_ENABLED": "dgxspark.vllm.progress", "DGXSPARK_PROGRESS_FILE": f"{log}.jsonl"}
    environment = {**ENVIRONMENT, **progress}
    with (
        log.open("w") as stream,
        subprocess.Popen(
            argv, cwd=ROOT, stdout=stream, stderr=stream, start_new_session=True, env=environment
        ) as process,
    ):
        deadline, staged = time.monotonic() + 240, 0
        while staged < size / 8 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.3)
            staged = staged_on("spark-4", kind)
        assert size / 8 <= staged < size, f"it was to be cut off in the middle: {staged}"
        yield process, staged


@pytest.mark.nightly
def test_a_transfer_that_is_killed_goes_on_where_it_was(tmp_path):
    before, log = counters(), tmp_path / "log"
    with slowly(log) as (process, _staged):
        node("spark-4", "systemctl", "kill", "--signal=KILL", "dgxspark-spread-worker.service")
        node("spark-4", "test", "!", "-e", f"{FOLDER}/snapshots")
        code = process.wait(120)
    text = " ".join(log.read_text().split())
    assert code == 0, text
    assert re.search(r"not: Org/Payload@main to spark-4: the job ended before its time", text), text
    moved = [event for event in map(json.loads, Path(f"{log}.jsonl").read_text().splitlines()) if event.get("done")]
    counts = [event["done"] for event in moved if (event["host"], event["stage"]) == ("spark-4", "spread")]
    assert counts and counts == sorted(counts), moved
    assert all(
        event["done"] <= event["total"] < MODEL * 1.01 and event["what"] == "Org/Payload@main" for event in moved
    ), moved
    came = sum(count for (name, _kind, way), count in since(before).items() if (name, way) == ("spark-4", "rx"))
    assert MODEL < came < MODEL * 1.06, came
    assert digests("spark-4") == digests("spark-1")


def test_an_image_goes_on_within_the_layer_where_it_was(tmp_path):
    node("spark-4", "docker", "image", "rm", "--force", "spread/payload:1")
    before, log = counters(), tmp_path / "log"
    with slowly(log, "images", IMAGE) as (process, _staged):
        node("spark-4", "systemctl", "kill", "--signal=KILL", "dgxspark-spread-worker.service")
        code = process.wait(120)
    text = " ".join(log.read_text().split())
    assert code == 0, text
    assert "not: spread/payload:1 to spark-4: the job ended before its time" in text, text
    came = since(before)["spark-4", "rails", "rx"]
    # What was in the buffers of the connection is lost. Without resuming, it would be an eighth more than the image and its headers.
    assert IMAGE < came < IMAGE * 1.12, came
    assert image_id("spark-4") == image_id("spark-1")
    node("spark-4", "sh", "-c", TOUCHED)


@pytest.mark.nightly
def test_a_run_that_is_cut_off_leaves_off_where_the_next_goes_on(tmp_path):
    forget("spark-4")
    with slowly(tmp_path / "log") as (process, staged):
        os.killpg(process.pid, signal.SIGKILL)
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


@pytest.mark.nightly
def test_a_run_that_fails_says_why_and_leaves_no_key_anywhere():
    """The port of the source is closed from outside and open on the source itself; the whole output is searched for keys."""
    forget("spark-4")
    shut = ["INPUT", "--protocol", "tcp", "--dport", "8722", "--jump", "REJECT", "--reject-with", "tcp-reset"]
    local = ["INPUT", "--in-interface", "lo", "--jump", "ACCEPT"]
    stamp = node("spark-1", "date", "+%Y-%m-%d %H:%M:%S").strip()
    for rule in (shut, local):
        node("spark-1", "iptables", "--insert", *rule)
    try:
        code, text = play("-vvv", kinds=["models"], hosts=["spark-1", "spark-4"])
    finally:
        for rule in (shut, local):
            node("spark-1", "iptables", "--delete", *rule)
    assert code != 0
    assert (
        f"spark-4 did not get Org/Payload@main: spark-1 does not answer on port 8722 ({SUBNET}.0.11 from {SUBNET}.0.14)"
        in text
    )
    assert "Open that port between them, or set spread_port to an open one" in text
    assert "PRIVATE KEY" not in text and "ssh-ed25519 " in text, "public halves travel, private ones stay"
    for name in ("spark-1", "spark-4"):
        node(name, "sh", "-c", TOUCHED)
        assert "PRIVATE KEY" not in node(name, "journalctl", "--no-pager", f"--since={stamp}")
        leftovers = node(
            name,
            "grep",
            "-rlF",
            "OPENSSH PRIVATE KEY",
            "/run/dgxspark",
            "/tmp",
            "/var/tmp",
            "/root",
            "/home",
            check=False,
        )
        assert leftovers == ""
    assert play(kinds=["models"], hosts=["spark-3", "spark-4"])[0] == 0


def test_the_server_of_a_run_that_was_cut_off_ends_by_itself():
    """The command that starts the unit, with a short lifetime: keys go with it."""
    node("spark-2", "mkdir", "-p", RUN_DIR)
    argv = json.loads(
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import json; from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spread_access;"
                "print(json.dumps(spread_access.server_argv(1, '/bin/sleep', '/run/dgxspark/spread')[:-4] + ['/bin/sleep', '600']))",
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


# --- items that no host has


@contextmanager
def hub(home, log):
    """A hub of one model, which wants a token."""
    argv = [
        str(ROOT / "tests/sim/fakehub/fakehub"),
        f"--model=Org/Scripted={home}",
        f"--host={SUBNET}.0.1",
        "--port=18089",
        "--token=hf_spread_token",
    ]
    with log.open("w") as stream, subprocess.Popen(argv, stdout=stream, stderr=stream) as process:
        try:
            yield
        finally:
            process.terminate()


def fetched(log):
    return re.findall(r"^GET \S*/resolve/\S*?/(\S+) 20[06]", log.read_text(), re.MULTILINE)


@pytest.mark.nightly
def test_what_nobody_has_enters_the_site_once_and_a_source_that_decays_is_mended(tmp_path):
    home = ROOT / ".cache" / "sim" / "models" / "scripted"
    token = tmp_path / "token"
    token.write_text("hf_spread_token\n")
    model = {
        "repo": "Org/Scripted",
        "revision": "main",
        "only": [],
        "image": "vllm/vllm-openai:v0.24.0-ubuntu2404",
        "link": "",
    }
    arguments = {
        "kinds": ["models"],
        "spread_models": [model],
        "spread_endpoint": f"http://{SUBNET}.0.1:18089",
        "spread_token_file": str(token),
        "spread_poll": 1,
    }
    folder = f"{HUB}/models--Org--Scripted"
    weights = hashlib.sha256((home / "model.safetensors").read_bytes()).hexdigest()

    def everywhere():
        digests_found = [
            node(name, "sh", "-c", f"sha256sum {folder}/snapshots/*/model.safetensors").split()[0] for name in FLEET
        ]
        return digests_found == [weights] * len(FLEET)

    first, second = tmp_path / "first", tmp_path / "second"
    with hub(home, first):
        code, text = play(**arguments)
    assert code == 0 and everywhere(), text
    assert len(set(fetched(first))) == len(fetched(first)) and "model.safetensors" in fetched(first), first.read_text()
    # The only copy is damaged: neither its size nor its date says so.
    blob = node(
        "spark-1", "readlink", "-f", node("spark-1", "sh", "-c", f"ls {folder}/snapshots/*/model.safetensors").strip()
    ).strip()
    stamp = node("spark-1", "stat", "--format", "%y", blob).strip()
    damage("spark-1", blob, FLIP.replace("5000000", "50000"))
    node("spark-1", "touch", f"--date={stamp}", blob)
    for name in ("spark-2", "spark-3", "spark-4"):
        node(name, "rm", "-rf", folder)
    with hub(home, second):
        code, text = play(**arguments)
    assert code == 0 and everywhere(), text
    assert fetched(second) == ["model.safetensors"], second.read_text()
    for name in FLEET:
        node(name, "sh", "-c", TOUCHED)
        leftovers = node(
            name,
            "grep",
            "-rlF",
            "hf_spread_token",
            "/run/dgxspark",
            "/etc",
            "/srv/huggingface",
            "/var/lib/docker/containers",
            check=False,
        )
        assert leftovers == "" and "hf_spread_token" not in text


ASK = """
import time, urllib.request
for _attempt in range(100):
    try:
        answer = urllib.request.urlopen("http://127.0.0.1:5000/v2/sim/tiny/manifests/1")
        break
    except OSError:
        time.sleep(0.1)
print(answer.headers["Docker-Content-Digest"])
"""


NEXT = """
docker create --name next spread/payload:1 sh && head -c 1048576 /dev/urandom > /root/more && docker cp /root/more next:/more &&
docker commit next spread/payload:2 && docker rm next && rm /root/more
"""


@pytest.mark.nightly
def test_of_a_changed_image_the_layers_that_are_there_are_not_sent():
    """One of 1 MiB on top of one of 48 MiB, which each host has."""
    code, text = play(kinds=["images"])
    assert code == 0, text
    node("spark-1", "sh", "-c", NEXT)
    before = counters()
    try:
        code, text = play(kinds=["images"], spread_images=["spread/payload:2"])
        assert code == 0, text
        sent = {place: count for place, count in since(before).items() if place[2] == "tx"}
        assert (
            len({node(name, "docker", "image", "inspect", "--format", "{{.Id}}", "spread/payload:2") for name in FLEET})
            == 1
        )
        assert sum(sent.values()) > 3 * 2**20 and max(sent.values()) < IMAGE / 6, sent
        for name in FLEET:
            node(name, "sh", "-c", TOUCHED)
    finally:
        for name in FLEET:
            node(name, "docker", "image", "rm", "--force", "spread/payload:2", check=False)


@pytest.mark.nightly
def test_an_image_that_nobody_has_is_pulled_once_and_goes_on_by_its_digest():
    """The registry answers on the first node's loopback alone. Engines know a digest as a name of what they pulled."""
    program = ROOT / "tests" / "sim" / "registry" / "registry"
    copy(program, "spark-1", "/usr/local/bin/sim-registry")
    node("spark-1", "systemd-run", "--unit=sim-registry", "--collect", "/usr/local/bin/sim-registry", "5000")
    digest = node("spark-1", "python3", "-c", ASK).strip()
    ref, tag = f"127.0.0.1:5000/sim/tiny@{digest}", f"127.0.0.1:5000/sim/tiny:{digest[:39].replace(':', '-')}"
    try:
        code, text = play(kinds=["images"], spread_images=[ref])
        assert code == 0, text
        assert f"spark-3 to spark-4 (fabric): {ref}" in text
        ids = {node(name, "docker", "image", "inspect", "--format", "{{.Id}}", tag) for name in list(FLEET)[1:]}
        assert ids == {node("spark-1", "docker", "image", "inspect", "--format", "{{.Id}}", ref)}
        # The role images finds it by that tag, and pulls nothing.
        options = [
            "-i",
            "molecule/inventory.yml",
            "-i",
            "molecule/spread/inventory.yml",
            "-m",
            "dgxspark.vllm.spark_info",
        ]
        code, text = started(
            ["ansible", "spark-4", "--become", *options, "-a", json.dumps({"gather": ["images"], "images": [ref]})]
        )
        assert code == 0 and "present: true" in text, text
        assert play(kinds=["images"], spread_images=[ref])[1].count("changed=0") == 4
    finally:
        node("spark-1", "systemctl", "stop", "sim-registry.service")
        node("spark-1", "rm", "/usr/local/bin/sim-registry")
        for name in FLEET:
            node(name, "docker", "image", "rm", "--force", ref, tag, check=False)


# --- site.yml


@pytest.fixture(scope="module")
def nobody_asks():
    """An address in the place of the hub, which records connections."""
    knocks = []
    with socket.create_server((f"{SUBNET}.0.1", 18090)) as server:

        def listen():
            while True:
                try:
                    connection, peer = server.accept()
                except OSError:
                    return
                knocks.append(peer[0])
                connection.close()

        threading.Thread(target=listen, daemon=True).start()
        yield knocks


def has_engine(name):
    return node(name, "docker", "image", "inspect", "--format", "{{.Id}}", ENGINE, check=False).strip()


def has_model(name):
    listed = node(
        name, "sh", "-c", f"cd {SHARED}/snapshots/*/ && find . ! -type d | sort | xargs sha256sum", check=False
    )
    return listed.splitlines()


def bare(*names):
    for name in names:
        node(name, "docker", "image", "rm", "--force", ENGINE, check=False)
        node(name, "rm", "-rf", SHARED)
        assert not has_engine(name) and not has_model(name)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("verb", "options"), [pytest.param("spread", [], marks=pytest.mark.nightly), ("site", ["--tags", "images,models"])]
)
def test_check_mode_of_a_site_says_what_would_move(nobody_asks, verb, options):
    bare("spark-2", "spark-3", "spark-4")
    code, text = site("--check", *options, verb=verb)
    assert code == 0, text
    assert f"spark-1 to spark-3 (lan): {ENGINE}," in text
    assert f"{QWEN}@main: spark-1 reads the files and compares them with their digests" in text
    assert not has_engine("spark-3") and not has_model("spark-3")
    nobody_asks.clear()  # site.yml asks beforehand whether the hub would give what it lacks


@pytest.mark.nightly
def test_site_with_one_host_spreads_nothing(nobody_asks):
    code, text = site("--check", "--tags", "images,models", "--limit", "spark-2")
    assert code == 0, text
    assert "Distribute the images" in text and "List images and models on the host" not in text
    assert nobody_asks != [], "a host alone has only the hub to take from"
    nobody_asks.clear()


PAIR = ("--limit", "spark-1,spark-2")


def test_site_spreads_images_of_a_host_that_has_them(nobody_asks):
    bare("spark-2")
    code, text = site("--tags", "images", *PAIR)
    assert code == 0, text
    assert has_engine("spark-2") == has_engine("spark-1") != "" and not has_model("spark-2")
    assert f"spark-1 to spark-2 (fabric): {ENGINE}," in text
    assert nobody_asks == [], "a hub was asked for what another node has"


def test_site_spreads_models_of_a_host_that_has_them(nobody_asks):
    code, text = site("--tags", "models", *PAIR)
    assert code == 0, text
    assert has_model("spark-2") == has_model("spark-1") != [] and nobody_asks == []
    node("spark-2", "sh", "-c", TOUCHED)


@pytest.mark.nightly
def test_site_brings_all_hosts_what_one_has_and_serves_it(nobody_asks):
    bare("spark-2", "spark-3", "spark-4")
    code, text = site()
    assert code == 0, text
    assert f"spark-1 to spark-3 (lan): {ENGINE}," in text
    for name in FLEET:
        assert has_engine(name) == has_engine("spark-1") != ""
        assert has_model(name) == has_model("spark-1") != []
        assert node(name, "systemctl", "is-active", "spark-chat.service").strip() == "active"
        node(name, "sh", "-c", TOUCHED)
    assert nobody_asks == [], "a hub was asked for what another node has"
