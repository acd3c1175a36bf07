"""What a deployment from lock and bundle leaves behind: both nodes run the same bytes, one of them never had a network."""

from __future__ import annotations

import json
import os
from pathlib import Path

import yaml

LANE = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"], ".cache", "molecule", os.environ.get("SPARKSIM_SUBNET", "10.88"))
LOCK = yaml.safe_load((LANE / "spark.lock.yml").read_text(encoding="utf-8"))
REF = "nvcr.io/nvidia/vllm:26.04-py3"
KEY, MODEL = next(iter(LOCK["models"].items()))
FOLDER = "/srv/huggingface/hub/models--" + KEY.partition("@")[0].replace("/", "--")


def test_the_lock_has_both_hosts_and_one_copy_of_everything():
    assert sorted(LOCK["services"]) == ["spark-1/fast", "spark-2/fast"]
    assert list(LOCK["images"]) == [REF]
    assert len(LOCK["models"]) == 1


def test_every_file_is_as_locked_and_owned_by_root(host):
    with host.sudo():
        for name, entry in MODEL["files"].items():
            path = f"{FOLDER}/snapshots/{MODEL['commit']}/{name}"
            assert host.check_output("sha256sum %s", path).split()[0] == entry["sha256"]
            assert host.check_output("stat --dereference --format '%%U:%%s' %s", path) == f"root:{entry['size']}"
        assert host.run("ls -d /srv/huggingface/.bundle").rc != 0
        assert host.check_output("ls /var/lib/dgxspark/bundle 2>/dev/null || true") == ""


def test_the_engine_runs_the_locked_image_at_the_locked_commit(host):
    ids = [entry["id"] for entry in LOCK["images"][REF]["platforms"].values()]
    with host.sudo():
        said = json.loads(host.check_output("docker container inspect spark-fast"))[0]
        assert host.check_output("docker image inspect --format '{{.Id}}' %s", REF) in ids
    assert said["Image"] in ids
    words = said["Args"]
    assert words[words.index("--revision") + 1] == MODEL["commit"]
    assert said["State"]["Running"]


def test_one_of_them_has_no_way_out(host):
    if host.check_output("hostname") == "spark-2":
        assert host.check_output("ip route show default") == ""
