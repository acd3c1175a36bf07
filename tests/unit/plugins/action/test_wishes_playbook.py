# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan.yml with spark_wishes: the proposal is an inventory that plan.yml accepts. No host is contacted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

pytestmark = pytest.mark.slow

FAST: dict[str, Any] = {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8001}
JOBS = [
    {"name": "coder", "jobs": ["code"], "features": ["tools"], "tokens_per_second": 30, "context": 65536},
    {"name": "large", "recipe": "qwen3-235b-a22b-gptq-int4", "context": 32768},
    {"name": "moon", "jobs": ["embed"], "features": ["vision"]},
]


def plan(folder: Path, *options: str) -> tuple[int, str]:
    ran = ansible_playbook("-i", folder / "hosts.yml", "dgxspark.vllm.plan", *options, cwd=folder)
    return ran.returncode, ran.stdout + ran.stderr


def test_the_proposal_is_an_inventory_that_is_accepted(tmp_path: Path) -> None:
    hosts = {f"spark-{number}": {"ansible_host": f"192.0.2.{number}"} for number in (1, 2, 3)}
    hosts["spark-3"]["spark_services"] = [{**FAST, "api_key_file": ".secrets/fast"}]  # type: ignore[assignment]
    (tmp_path / "hosts.yml").write_text(
        yaml.safe_dump({"sparks": {"hosts": hosts, "vars": {"spark_os_reserve_gib": 6}}})
    )
    (tmp_path / "jobs.yml").write_text(yaml.safe_dump({"spark_wishes": JOBS}))
    code, text = plan(tmp_path, "-e", "@jobs.yml")
    assert code == 0, text
    assert "2 of 3 are served" in text and "moon is not served: no recipe is able to do all of" in text
    written = tmp_path / ".spark" / "proposal.yml"
    proposed = yaml.safe_load(written.read_text())
    sparks = proposed["sparks"]
    assert (
        sparks["hosts"]["spark-3"]["spark_services"][0] == {**FAST, "api_key_file": ".secrets/fast"}
        and sparks["vars"]["spark_os_reserve_gib"] == 6
    )
    assert (
        sparks["hosts"]["spark-1"]["ansible_host"] == "192.0.2.1"
        and "spark_wishes" not in written.read_text().partition("---")[2]
    )
    again = tmp_path / "again"
    again.mkdir()
    shutil.copy(written, again / "hosts.yml")
    code, text = plan(again)
    assert code == 0, text
    assert "coder" in text and "large" in text and "fast" in text
    # The same input gives the same proposal; another file is never replaced.
    before = written.read_bytes()
    code, text = plan(tmp_path, "-e", "@jobs.yml")
    assert code == 0 and written.read_bytes() == before
    code, text = plan(tmp_path, "-e", "@jobs.yml", "-e", json.dumps({"spark_wishes_file": str(tmp_path / "jobs.yml")}))
    assert code != 0 and "is no proposal, so it is not replaced" in " ".join(text.split())


def test_mistakes_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": {"spark-1": {}}}}))
    code, text = plan(tmp_path, "-e", json.dumps({"spark_wishes": [{"name": "x", "jobz": ["code"]}]}))
    assert code == 1 and "jobz" in text and "did you mean" in text
    code, text = plan(tmp_path, "-e", json.dumps({"spark_wishes": ["chat", "code"]}))
    assert code == 1 and "'spark_wishes[0]' is a text; it must be a mapping" in " ".join(text.split())
    # Wrong variables of the inventory are errors of the plan.
    sparks = {"hosts": {"spark-1": {}}, "vars": {"spark_wishes": ["chat"]}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"sparks": sparks}))
    code, text = plan(tmp_path)
    assert code == 2 and "'spark_wishes[0]' is a text; it must be a mapping" in " ".join(text.split())
    assert not (tmp_path / ".spark").exists()
