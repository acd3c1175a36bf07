# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write extensions/semaphore/project.json, which Semaphore restores as a project, from the job templates of extensions/awx/."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from common import ROOT

SOURCE = ROOT / "extensions/awx/controller.yml"
WRITTEN = ROOT / "extensions/semaphore/project.json"
NAMES = {
    "repository": "dgxspark.vllm",
    "inventory": "my-sparks",
    "environment": "none",
    "key": "Sparks",
    "view": "Sparks",
}


def question(asked: dict[str, Any]) -> dict[str, Any]:
    """Return a question of a survey as Semaphore has it."""
    kinds = {"text": "", "integer": "int", "multiplechoice": "enum"}
    found = {
        "name": asked["variable"],
        "title": asked["question_name"],
        "description": asked["question_description"],
        "required": asked["required"],
        "type": kinds[asked["type"]],
        "default_value": str(asked["default"]),
    }
    if asked["type"] == "multiplechoice":
        found["values"] = [{"name": choice, "value": choice} for choice in asked["choices"]]
    return found


def template(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job template as Semaphore has it."""
    return {
        "name": job["name"],
        "description": job["description"],
        "playbook": job["playbook"],
        "app": "ansible",
        "type": "",
        "repository": NAMES["repository"],
        "inventory": NAMES["inventory"],
        "environment": NAMES["environment"],
        "view": NAMES["view"],
        "allow_override_args_in_task": False,
        "suppress_success_alerts": False,
        "task_params": {"allow_override_limit": bool(job.get("ask_limit_on_launch"))},
        "survey_vars": [question(asked) for asked in job.get("survey_spec", {}).get("spec", [])],
        "vaults": [],
    }


def project(read: dict[str, Any]) -> dict[str, Any]:
    """Return a project: the templates, and empty places for key, inventory and repository."""
    (source,) = read["controller_projects"]
    return {
        "meta": {"name": "DGX Sparks", "alert": False, "max_parallel_tasks": 1, "type": ""},
        "keys": [{"name": NAMES["key"], "type": "none"}],
        "repositories": [
            {
                "name": NAMES["repository"],
                "git_url": source["scm_url"],
                "git_branch": source["scm_branch"],
                "ssh_key": NAMES["key"],
            }
        ],
        "inventories": [
            {
                "name": NAMES["inventory"],
                "type": "file",
                "inventory": "/etc/semaphore/my-sparks",
                "ssh_key": NAMES["key"],
                "become_key": None,
            }
        ],
        "environments": [{"name": NAMES["environment"], "json": "{}", "env": "{}"}],
        "views": [{"title": NAMES["view"], "position": 0}],
        "templates": [template(job) for job in read["controller_templates"]],
        "schedules": [],
        "integrations": [],
        "integration_aliases": [],
    }


def text(source: Path = SOURCE) -> str:
    """Return the file."""
    return json.dumps(project(yaml.safe_load(source.read_text(encoding="utf-8"))), indent=2) + "\n"


if __name__ == "__main__":
    WRITTEN.write_text(text(), encoding="utf-8")
    sys.exit(0)
