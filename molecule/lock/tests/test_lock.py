"""What a deployment from lock and bundle leaves behind, and what it refuses: two nodes with the same bytes, one never had a network.

Tests of a host run for both; the others run playbooks as a person would, once, in this order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path.insert(0, str(ROOT / "molecule"))

from nodes import NODES, SUBNET, node

LANE = ROOT / ".cache" / "molecule" / SUBNET
BUNDLE = LANE / "bundle"
LOCK = yaml.safe_load((LANE / "spark.lock.yml").read_text(encoding="utf-8"))
REF = "127.0.0.1:5000/sim/engine:latest"
REPO = "Qwen/Qwen3-4B-Instruct-2507"
MODEL = LOCK["models"][f"{REPO}@main"]
IMAGE = next(iter(LOCK["images"][REF]["platforms"].values()))
SNAPSHOT = f"/srv/huggingface/hub/models--{REPO.replace('/', '--')}/snapshots/{MODEL['commit']}"
WEIGHTS = next(name for name in MODEL["files"] if name.endswith(".safetensors"))


def play(playbook, *options):
    """Run a playbook of the collection; returns its exit code and all that it printed, in one line."""
    ran = subprocess.run(
        [
            "ansible-playbook",
            *("-i", str(ROOT / "molecule" / "inventory.yml")),
            *("-i", str(ROOT / "molecule" / "lock" / "inventory.yml")),
            f"dgxspark.vllm.{playbook}",
            *options,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"},
    )
    return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


def on(name, command):
    """Run a command of a shell as root on a node."""
    return node(name, "bash", "-ec", command).strip()


def container(name):
    return json.loads(on(name, "docker container inspect spark-fast"))[0]


def test_the_lock_says_what_is_served_to_the_last_file():
    entry = LOCK["services"]["spark-1/fast"]
    assert (entry["image"], entry["models"]) == (REF, [f"{REPO}@main"])
    assert entry["recipe"]["name"] == "qwen3-4b-instruct-2507"
    assert len(entry["recipe"]["sha256"]) == 64
    assert LOCK["services"]["spark-2/fast"] == entry
    assert LOCK["images"][REF]["vllm_version"] == "0.19.0"
    assert IMAGE["digest"].startswith("sha256:")
    files = on("spark-1", f"cd {SNAPSHOT}; find -L . -type f -printf '%P %s\\n' | sort").splitlines()
    assert files == [f"{name} {file['size']}" for name, file in sorted(MODEL["files"].items())]


def test_every_file_is_as_locked_and_belongs_to_the_owner_of_the_folder(host):
    owner = host.check_output("stat --format %U /srv/huggingface")
    for name, file in MODEL["files"].items():
        path = f"{SNAPSHOT}/{name}"
        assert host.check_output("sha256sum %s", path).split()[0] == file["sha256"]
        assert host.check_output("stat --dereference --format %%s %s", path) == str(file["size"])
        # The other's are the simulation's own.
        if host.check_output("hostname") == "spark-2":
            assert host.check_output("stat --dereference --format %%U:%%a %s", path) == f"{owner}:644"
    assert host.run("ls -d /srv/huggingface/.bundle").rc != 0
    assert host.check_output("ls /var/lib/dgxspark/bundle 2>/dev/null || true") == ""


def test_the_engine_runs_the_locked_image_at_the_locked_commit(host):
    container = json.loads(host.check_output("docker container inspect spark-fast"))[0]
    assert container["Image"] == IMAGE["id"]
    words = container["Args"]
    assert words[words.index("--revision") + 1] == MODEL["commit"]
    assert container["State"]["Running"]


def test_it_answers(host):
    body = {"model": "fast", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 16}
    models = json.loads(host.check_output("curl --silent --fail http://127.0.0.1:8001/v1/models"))
    body["model"] = models["data"][0]["id"]
    answer = json.loads(
        host.check_output(
            "curl --silent --fail -H 'Content-Type: application/json' --data %s http://127.0.0.1:8001/v1/chat/completions",
            json.dumps(body),
        )
    )
    assert answer["choices"][0]["message"]["content"].strip()


def test_one_of_them_has_no_way_out_and_never_had_the_tag():
    assert on("spark-2", "ip route show default") == ""
    assert on("spark-2", "docker image inspect --format '{{.Id}}' " + REF) == IMAGE["id"]
    assert set(on("spark-2", "docker image ls --all --quiet --no-trunc").split()) == {IMAGE["id"]}
    # Its local image has no registry's digest; the image with a registry goes by the digest.
    assert container("spark-2")["Config"]["Image"] == IMAGE["id"]
    assert container("spark-1")["Config"]["Image"] == f"{REF.rpartition(':')[0]}@{IMAGE['digest']}"


def test_a_fleet_is_refused_what_moves_all_at_once():
    before = [container(name)["Id"] for name in NODES]
    code, text = play("site", "-e", f"spark_lock_file={LANE}/none.yml", "-e", "spark_moving_hosts=1")
    assert code != 0
    assert f"fast on spark-1..2: {REF} and {REPO}@main can become something else" in text
    assert "deploy one host of each different service with -e spark_allow_moving=true --limit HOSTS" in text
    assert "no host was changed" in text
    assert [container(name)["Id"] for name in NODES] == before


def test_damaged_weights_are_found_repaired_and_no_longer_served():
    """One file is cut short; of another a byte is turned over behind the back of its times, which only reading it finds."""
    before = container("spark-1")
    cut, turned = (on("spark-1", f"readlink -f {SNAPSHOT}/{name}") for name in ("tokenizer.json", WEIGHTS))
    on("spark-1", f"truncate --size=-1 {cut}")
    flip = "import os,sys; f=os.open(sys.argv[1],os.O_RDWR); s=os.fstat(f); b=os.pread(f,1,s.st_size-1)"
    flip += "; os.pwrite(f,bytes([b[0]^1]),s.st_size-1); os.utime(f,ns=(s.st_atime_ns,s.st_mtime_ns))"
    on("spark-1", f"python3 -c '{flip}' {turned}")
    code, text = play("site", "--limit", "spark-1", "-e", "spark_verify=all")
    assert code == 0, text
    assert f"tokenizer.json has {MODEL['files']['tokenizer.json']['size'] - 1} bytes instead of" in text
    assert f"{WEIGHTS} has the sha256" in text
    assert text.count("it comes again") == 2
    for name in ("tokenizer.json", WEIGHTS):
        assert on("spark-1", f"sha256sum {SNAPSHOT}/{name}").split()[0] == MODEL["files"][name]["sha256"]
    assert container("spark-1")["State"]["StartedAt"] > before["State"]["StartedAt"]


@pytest.mark.nightly
def test_a_tag_that_moved_is_said_and_not_deployed():
    newer = on("spark-1", "docker image inspect --format '{{.Id}}' " + REF)
    assert newer != IMAGE["id"]
    before = container("spark-1")
    code, text = play("site", "--limit", "spark-1", "-e", "spark_verify=all")
    assert code == 0, text
    message = f"{REF} is {newer[7:19]} on this host now; {IMAGE['digest'][7:19]} of the lock file is deployed."
    assert message in text
    assert "dgxspark.vllm.lock --limit spark-1" in text
    assert "changed=0" in text
    assert (container("spark-1")["Id"], container("spark-1")["Image"]) == (before["Id"], IMAGE["id"])


@pytest.mark.nightly
def test_a_flipped_byte_in_the_bundle_is_refused_by_name():
    file = next(path for path in BUNDLE.rglob(WEIGHTS) if MODEL["commit"] in path.parts)
    original = file.read_bytes()
    on("spark-2", f"rm {SNAPSHOT}/{WEIGHTS}")
    file.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    try:
        code, text = play("site", "--limit", "spark-2", "--tags", "models")
    finally:
        file.write_bytes(original)
    assert code != 0
    assert f"{file} in the bundle is damaged: its sha256 differs from the manifest. It was not used." in text
    assert on("spark-2", f"ls {SNAPSHOT}/{WEIGHTS} 2>/dev/null || echo none") == "none"
    code, text = play("site", "--limit", "spark-2", "--tags", "models")
    assert code == 0, text
    assert on("spark-2", f"sha256sum {SNAPSHOT}/{WEIGHTS}").split()[0] == MODEL["files"][WEIGHTS]["sha256"]
