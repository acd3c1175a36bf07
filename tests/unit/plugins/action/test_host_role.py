# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The accounts of the role host, with the module that makes them played: who is added is told how the group is used at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from playbook_runs import ansible_playbook, python

pytestmark = pytest.mark.slow

ROLE = Path(__file__).parents[4] / "roles" / "host"
DEPLOY = """#!/usr/bin/python
from pathlib import Path
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule({"part": {"type": "str"}, "documents": {"type": "raw"}}, supports_check_mode=True)
file = Path("members")
members = file.read_text().split() if file.exists() else []
(document,) = module.params["documents"]
people = [name for name, account in document["accounts"].items() if not account]
file.write_text(" ".join([*members, *people]))
module.exit_json(changed=True, joined=[name for name in people if name not in members])
"""


def run(folder: Path, people: list[str]) -> str:
    (folder / "library").mkdir(exist_ok=True)
    (folder / "library/played_deploy.py").write_text(DEPLOY)
    for path in (ROLE / "tasks").iterdir():
        (folder / path.name).write_text(path.read_text().replace("dgxspark.vllm.deploy:", "played_deploy:"))
    values = {"host_docker_users": people}
    read = [str(ROLE / part / "main.yml") for part in ("defaults", "vars")]
    play = {
        "hosts": "all",
        "gather_facts": False,
        "vars_files": read,
        "tasks": [{"import_tasks": "main.yml", "vars": values}],
    }
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    (folder / "hosts").write_text(f"spark-1 ansible_connection=local ansible_python_interpreter={python()}\n")
    done = ansible_playbook("-i", "hosts", "play.yml", cwd=folder, env={"ANSIBLE_LIBRARY": str(folder / "library")})
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 0, text
    return text


@pytest.mark.nightly
def test_who_is_added_to_the_group_is_told_how_to_use_it_at_once(tmp_path: Path) -> None:
    text = run(tmp_path, ["ada", "grace"])
    assert "spark-1: ada, grace may use Docker without sudo" in text and "newgrp docker" in text
    assert "newgrp docker" not in run(tmp_path, ["ada", "grace"])
    assert "spark-1: linus may use Docker" in run(tmp_path, ["ada", "linus"])


def test_nobody_is_told_about_an_empty_list(tmp_path: Path) -> None:
    assert "newgrp docker" not in run(tmp_path, [])
