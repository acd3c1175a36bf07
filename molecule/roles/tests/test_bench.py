"""bench.yml, run from here as a person does: figures go into the receipts that the proof wrote, and a next proof keeps them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(os.environ.get("MOLECULE_PROJECT_DIRECTORY", Path(__file__).parents[3]))
SETTINGS = {
    "prompt_tokens": [256],
    "output_tokens": 32,
    "repeats": 2,
    "concurrency": [2],
    "idle_seconds": 30,
    "ceiling": False,
}


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    dest = tmp_path_factory.mktemp("bench") / "bench.json"
    inventories = [
        f"--inventory={PROJECT}/molecule/inventory.yml",
        f"--inventory={PROJECT}/molecule/roles/inventory.yml",
    ]
    options = ["--extra-vars", json.dumps({"spark_bench": SETTINGS, "spark_bench_dest": str(dest)})]
    ran = subprocess.run(
        ["ansible-playbook", *inventories, str(PROJECT / "playbooks" / "bench.yml"), *options],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {"text": ran.stdout, **json.loads(dest.read_text())}


def receipt(host, name):
    with host.sudo():
        return json.loads(host.file(f"/var/lib/dgxspark/receipts/{name}.json").content_string)


def services(host):
    return ["heavy", "fast"] if host.backend.get_hostname() == "spark-1" else ["gemma4", "tiny"]


def test_every_service_was_measured(host, benched):
    spark = host.backend.get_hostname()
    assert benched["not_measured"] == []
    measured = {entry["where"]: entry for entry in benched["services"]}
    for name in services(host):
        section = measured[f"{spark}/{name}"]
        assert section["single"][0]["output_tokens"] == 32 and section["single"][0]["short"] == 0
        assert section["decode_tokens_per_second"] > 0 and section["concurrency"][0]["failed"] == 0
        assert f"{spark}/{name}" in benched["text"]


def test_figures_stand_beside_what_the_proof_wrote(host, benched):
    for name in services(host):
        proof = receipt(host, name)
        section = proof["benchmark"]
        assert proof["measured"]["checks"]["completion"] is True
        speed = proof["speed"]
        assert speed["verdict"] == "unknown"
        if speed["measured"].get("single"):
            assert "simulated" in speed["reason"]
        else:  # an engine on a CPU that others use has no 4 tokens in 15 s
            assert "in 15 s" in speed["reason"], speed
        assert section["ratio"] == 1.0 and section["stale"] is False
        assert section["conditions"]["image_id"].startswith("sha256:")
        assert section["conditions"]["fingerprint"] in " ".join(proof["deployed"]["argv"])
        assert (
            section["conditions"]["driver"]
            == host.run("nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout.strip()
        )


def test_the_key_is_nowhere(host, benched):
    key = (PROJECT / ".cache" / "molecule" / "api_key").read_text().strip()
    assert key not in json.dumps(benched)
    for name in services(host):
        assert key not in json.dumps(receipt(host, name))
