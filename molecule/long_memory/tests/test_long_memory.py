"""A long prompt survives evictions and a restart of its engine; its files stay in bounds and go with the launch that wrote them.

The tests run in order on the shared nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path.insert(0, str(ROOT / "molecule"))

from nodes import node

HOST, FOLDER = "spark-1", "/var/cache/dgxspark/tiny/kv"


def play(playbook, *options):
    argv = ["ansible-playbook", f"--inventory={ROOT}/molecule/inventory.yml"]
    argv += [f"--inventory={ROOT}/molecule/long_memory/inventory.yml", f"dgxspark.vllm.{playbook}", *options]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def record():
    return json.loads(node(HOST, "cat", "/var/lib/dgxspark/receipts/tiny.json"))["kv_tiers"]


def files():
    return node(HOST, "find", FOLDER, "-name", "*.bin").split()


def until(check, seconds=90):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end
        time.sleep(1)


def test_an_evicted_prompt_comes_back_from_files():
    kept = record()
    print(kept)
    assert kept["cold"]["restored"] == 0 and kept["evicted"]["restored"] >= 0.5 * kept["tokens"]
    assert kept["evicted"]["seconds"] < kept["cold"]["seconds"]
    assert files() and node(HOST, "stat", "-c", "%a %U", FOLDER).split() == ["700", "root"]


def test_it_comes_back_after_a_restart():
    node(HOST, "systemctl", "restart", "spark-tiny.service")
    text = play("site", "-e", "spark_apply_all=true")
    kept = record()
    print(kept)
    assert "after a restart" in text
    assert kept["restarted"]["restored"] >= 0.5 * kept["tokens"]
    assert kept["restarted"]["seconds"] < kept["cold"]["seconds"]


def test_the_oldest_files_go_when_there_are_too_many():
    assert node(HOST, "systemctl", "is-active", "spark-kv-files.service").strip() == "active"
    newest = set(files())
    node(HOST, "mkdir", f"{FOLDER}/old")
    for number in range(11):
        node(HOST, "fallocate", "-l", "100M", f"{FOLDER}/old/{number}.bin")
        node(HOST, "touch", "-d", "2 days ago", f"{FOLDER}/old/{number}.bin")
    until(lambda: int(node(HOST, "du", "-sm", FOLDER).split()[0]) < 0.95 * 1024)
    assert newest <= set(files())


def test_files_of_another_launch_are_removed():
    node(HOST, "sed", "-i", 's/"key": *"[0-9a-f]*"/"key": "another"/', "/etc/dgxspark/services/tiny.json")
    node(HOST, "systemctl", "restart", "spark-tiny.service")
    journal = node(HOST, "journalctl", "-u", "spark-tiny", "-b", "-o", "cat", "-g", "KV cache files")
    assert "removed" in journal
    assert not [path for path in files() if "/old/" in path]


def test_a_service_without_tiers_leaves_nothing():
    play("site", "-e", '{"spark_services": []}', "--limit", HOST)
    assert node(HOST, "ls", "/var/lib/dgxspark/kv_files", check=False).strip() == ""
    assert node(HOST, "systemctl", "is-active", "spark-kv-files.service", check=False).strip() != "active"
    assert node(HOST, "ls", "-d", FOLDER, check=False).strip() == ""
