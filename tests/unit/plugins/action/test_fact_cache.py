# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts that Ansible keeps between runs, as docs/fleet.md has it: one, and nothing that a run measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from playbook_runs import ansible_playbook

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
CONFIG = """\
[defaults]
fact_caching = ansible.builtin.jsonfile
fact_caching_connection = {folder}/facts
fact_caching_timeout = 604800
"""


def doctor(folder: Path) -> str:
    service = {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8002}
    settings = {
        "ansible_connection": "local",
        "ansible_become": False,
        "spark_sysroot": str(folder),
        "spark_services": [service],
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": {"spark-1": settings}}}))
    (folder / "ansible.cfg").write_text(CONFIG.format(folder=folder))
    ran = ansible_playbook(
        "-vvv",
        "-i",
        folder / "hosts.yml",
        "dgxspark.vllm.doctor",
        "-e",
        "spark_doctor_fail_on=never",
        cwd=folder,
        env={"ANSIBLE_CONFIG": str(folder / "ansible.cfg")},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.nightly
def test_python_is_looked_for_once_and_nothing_that_was_measured_is_kept(tmp_path: Path) -> None:
    asks = "echo FOUND"
    assert asks in doctor(tmp_path)
    (cached,) = (tmp_path / "facts").iterdir()
    text = cached.read_text()
    facts = json.loads(text)
    # Newer versions of Ansible store the facts as JSON text inside the JSON file.
    facts = json.loads(facts["__payload__"]) if "__payload__" in facts else facts
    assert set(facts) == {"discovered_interpreter_python"}
    assert asks not in doctor(tmp_path)
