# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of the roles, evaluated by Ansible, equal the engine's rendering, with any text in the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from playbook_runs import ansible_playbook
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.lookup.unit_files import located
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import unit_files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
TEXT = "😀 \u2028 \\ \" ' %n $HOME {{ 7 * 7 }} {% raw %} #: - !unsafe"
OF_ROLE = {
    "host": {"__host_document": "host"},
    "service": {"__service_document": "services"},
    "speech": {"__speech_document": "speech"},
    "ollama": {"__ollama_document": "ollama"},
    "watchdog": {"__watchdog_document": "watchdog"},
    "guard": {
        "__guard_document": "guard",
        "__guard_live": "live",
        "__guard_protection": "protection",
        "__guard_clocks": "gpu_clocks",
        "__guard_power": "power",
    },
}


def test_roles_are_given_what_the_engine_renders(tmp_path: Path) -> None:
    service = {
        "name": "heavy",
        "recipe": "qwen3-4b-instruct-2507",
        "port": 8001,
        "served_model_name": TEXT,
        "env": {"ONE": TEXT},
        "args": {"chat-template": TEXT},
        "api_key_file": f"/keys/{TEXT}",
    }
    variables = {
        "spark_services": [service],
        "spark_speech": [{"name": "ears", "kind": "asr", "env": {"ONE": TEXT}, "args": [TEXT]}],
        "spark_ollama": {"models": ["qwen3:8b"], "env": {"ONE": TEXT}},
        "spark_watchdog": {},
        "spark_guard": True,
        "spark_host_protection": True,
        "spark_gpu_clocks": {"max_mhz": 2200},
        "spark_power": {"idle": "save"},
        "spark_total_gib": 119.67,
    }
    plan = engine.make_plan({"spark-1": {"vars": variables, "address": "192.0.2.1"}}, RECIPES, lambda _path: "0" * 64)
    planned, addons = plan["hosts"]["spark-1"], plan["addons"]["spark-1"]
    # Results of a task, as the playbooks pass them on, so that no text is a template.
    arguments = {
        "service_services": planned["services"],
        "speech_services": addons["speech"]["services"],
        "watchdog_settings": addons["watchdog"]["settings"],
        "guard_settings": addons["guard"]["settings"],
        "guard_live": addons["guard"]["live"],
        "guard_protection": addons["guard"]["protection"],
        "guard_clocks": addons["guard"]["clocks"],
        "guard_power": addons["guard"]["power"],
        "__guard_watchdog": {"stat": {"exists": True}},
        **{f"ollama_{name}": value for name, value in addons["ollama"].items()},
    }
    (tmp_path / "given.json").write_text(json.dumps(arguments))
    names = [name for role in OF_ROLE.values() for name in role]
    read = [str(ROOT / "roles" / role / part / "main.yml") for role in OF_ROLE for part in ("defaults", "vars")]
    keep = {name: f"{{{{ __given.{name} }}}}" for name in arguments}
    (tmp_path / "play.yml").write_text(
        yaml.safe_dump(
            [
                {
                    "hosts": "localhost",
                    "gather_facts": False,
                    "vars_files": read,
                    "tasks": [
                        {"ansible.builtin.slurp": {"src": str(tmp_path / "given.json")}, "register": "read"},
                        {
                            "ansible.builtin.copy": {
                                "dest": str(tmp_path / "made.json"),
                                "content": "{{ {" + ", ".join(f"'{name}': {name}" for name in names) + "} | to_json }}",
                            },
                            "vars": {**keep, "__given": "{{ read.content | b64decode | from_json }}"},
                        },
                    ],
                }
            ]
        )
    )
    done = ansible_playbook("-i", "localhost,", "-c", "local", tmp_path / "play.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads((tmp_path / "made.json").read_text())
    rendered = json.loads(
        json.dumps({name: located(part) for name, part in unit_files.render(planned, addons).items()})
    )
    assert set(rendered) == {name for role in OF_ROLE.values() for name in role.values() if name}
    for role in OF_ROLE.values():
        for variable, component in role.items():
            if component:
                assert made[variable] == rendered[component], variable
