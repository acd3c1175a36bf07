# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks plan.yml and export_measurements.yml with what proofs kept on the controller. No host is contacted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from playbook_runs import ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import measurement_rows

pytestmark = pytest.mark.slow

HOST, SERVICE = "alice-lab-spark", "secret-payroll"
ID = "sha256:" + "a" * 64
HOSTILE = (
    HOST,
    SERVICE,
    "alice",
    "payroll",
    "/srv/private",
    "sk-1234567890abcdef",
    "192.0.2.1",
    "acme",
    ID,
    "registry",
)


class Fleet:
    """Runs playbooks on an inventory of one host that proofs have measured."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables: dict[str, Any] = {
            "ansible_host": "192.0.2.1",
            "spark_services": [
                {
                    "name": SERVICE,
                    "recipe": "qwen3-4b-instruct-2507",
                    "port": 8002,
                    "served_model_name": "acme/payroll",
                    "image": "registry.acme.internal/alice/vllm:1",
                    "model": {"repo": "acme/payroll", "revision": "main"},
                    "args": {"gpu-memory-utilization": 0.5, "max-num-batched-tokens": 8192, "max-num-seqs": 256},
                    "env": {"ACME": "alice"},
                }
            ],
        }

    def run(self, playbook: str, *words: str) -> tuple[int, str]:
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": {HOST: self.variables}}}))
        ran = ansible_playbook("-i", self.folder / "hosts.yml", f"dgxspark.vllm.{playbook}", *words, cwd=self.folder)
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())

    def memory(self) -> dict[str, Any]:
        content = json.loads((self.folder / ".spark/plan.json").read_text(encoding="utf-8"))
        return dict(content["hosts"][HOST]["services"][0]["memory"])

    def measure(self) -> None:
        """Keep what a proof of the planned service would."""
        planned = self.memory()
        sizes = {
            key: planned[key]
            for key in ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization")
        }
        start = {
            **planned["launch"],
            **sizes,
            **{"image_id": ID, "vllm_version": "0.26.0+acme", "driver": "580.159.03", "gpu": "NVIDIA GB10"},
            **{"requested_gib": 59.835, "weights_gib": 7.64, "kv_cache_gib": 51.16, "inside_gib": [1.03, 1.03]},
            **{
                "outside_gib": [1.5, 1.5],
                "peak_gib": 0.8,
                "non_torch_gib": 0.22,
                "graphs_estimate_gib": None,
                "graphs_gib": 0.6,
            },
        }
        path = self.folder / ".spark/measured" / f"{quote(HOST)}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"schema": 1, "starts": [start]}))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_a_plan_goes_by_what_was_measured_and_the_export_names_nobody(fleet: Fleet) -> None:
    code, text = fleet.run("export_measurements")
    assert code == 0 and "Nothing was written" in text, text
    code, text = fleet.run("plan")
    assert code == 0, text
    assumed = fleet.memory()
    fleet.measure()
    code, text = fleet.run("plan")
    assert code == 0 and f"{SERVICE}: overheads narrowed by a measured start" in text, text
    narrowed = fleet.memory()
    assert narrowed["sources"]["overheads"] == "narrowed by a measured start"
    width = [estimate["overhead_gib"]["high"] - estimate["overhead_gib"]["low"] for estimate in (narrowed, assumed)]
    assert width[0] < width[1]
    assert fleet.run("plan", "-e", "spark_learn=false")[0] == 0 and fleet.memory() == assumed
    written = fleet.folder / ".spark/measurements.json"
    code, text = fleet.run("export_measurements", "--check")
    assert code == 0 and not written.exists(), text
    code, text = fleet.run("export_measurements")
    assert code == 0 and "1 measured launches of 1 services, 0 left out" in text, text
    exported = written.read_text(encoding="utf-8")
    assert [word for word in HOSTILE if word.lower() in exported.lower()] == []
    content = json.loads(exported)
    assert measurement_rows.problems(content) == []
    assert content["rows"][0]["gpu"] == "NVIDIA GB10" and content["rows"][0]["vllm"] == "0.26.0"
    assert measurement_rows.contradiction(content, content["rows"][0]) == ""
    # A name that leads into the inventory is refused, as for every file that is written.
    code, text = fleet.run("export_measurements", "-e", "spark_measurments_file=x")
    assert code != 0 and "did you mean 'spark_measurements_file'?" in text
