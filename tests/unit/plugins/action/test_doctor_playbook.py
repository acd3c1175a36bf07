# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook doctor.yml as a person runs it: this machine plays one host, and a second host does not answer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import planned_fixture
import pytest
import yaml
from playbook_runs import LOST_SSH, ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.action.doctor import drifted
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.reader import to_dict

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
UNIT = "Id=spark-fast.service\\nType=exec\\nLoadState=loaded\\nActiveState={state}\\nSubState=x\\nResult=exit-code\\nNRestarts=3\\nUnitFileState=enabled\\n"


def doctor(folder: Path, engine: Any, state: str, *options: str, silent: bool = False) -> tuple[int, str]:
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    scripts = {
        "systemctl": f"#!/bin/sh\nprintf '{UNIT.format(state=state)}'\n",
        "docker": '#!/bin/sh\necho \'{"ServerErrors": ["Cannot connect to the Docker daemon"]}\'\nexit 1\n',
        "ssh": LOST_SSH,
        "journalctl": "#!/bin/sh\necho 'NVRM: Xid (PCI:000f:01:00): 31'\n",
    }
    for name, text in scripts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    port = int(engine.url.rpartition(":")[2])
    services = [{"name": "fast", "recipe": "qwen3-4b-instruct-2507", "served_model_name": "fast", "port": port}]
    local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    lost = {"ansible_connection": "ssh", "ansible_ssh_executable": str(programs / "ssh")}
    hosts = {"spark-1": lost if silent else local, "spark-2": lost}
    settings = {
        "spark_services": services,
        "ansible_become": False,
        "spark_status_timeout": 2,
        "spark_sysroot": str(folder),
    }
    inventory = folder / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"sparks": {"hosts": hosts, "vars": settings}}, sort_keys=False))
    ran = ansible_playbook(
        "-i", inventory, "dgxspark.vllm.doctor", *options, cwd=folder, env={"PATH": f"{programs}:{os.environ['PATH']}"}
    )
    return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


def test_everything_is_found_and_said(tmp_path: Path, engine: Any) -> None:
    dest = tmp_path / "out" / "doctor.json"
    code, text = doctor(tmp_path, engine.set(models=["fast"]), "failed", "-e", f"spark_doctor_file={dest}")
    assert code == 2, text
    report = json.loads(dest.read_text())
    rules = {(finding["host"], finding["rule"]) for finding in report["findings"]}
    assert {
        ("spark-1", "doctor.unit_failed"),
        ("spark-1", "doctor.gpu_fault"),
        ("spark-1", "doctor.not_asked"),  # there is no engine to ask for images
        ("spark-1", "host.docker"),  # of the plan
        ("spark-1", "host.gpu"),
        ("spark-2", "doctor.unreachable"),
    } <= rules
    assert ("spark-2", "host.gpu") not in rules
    severities = [finding["severity"] for finding in report["findings"]]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    assert "spark-2: the host is unreachable: port 22: No route to host. [doctor.unreachable] Fix: Try ssh" in text
    assert report["counts"]["silent"] == 1 and "2 hosts (1 silent): " in text
    assert report["reason"] in text and "unreachable=0" in text


def test_the_exit_code_goes_by_what_is_asked(tmp_path: Path, engine: Any) -> None:
    engine.set(models=["fast"])
    never = ("-e", "spark_doctor_fail_on=never", "-e", "spark_doctor_file=-")
    code, text = doctor(tmp_path, engine, "active", *never)
    assert code == 0, text
    assert '"healthy": true' in text and "doctor.gpu_fault" in text
    code, text = doctor(tmp_path, engine, "active", *never, "-e", '{"spark_ignore_rules": ["doctor.gpu_fault"]}')
    assert code == 0, text
    assert "doctor.unreachable" in text and "doctor.gpu_fault" not in text


def test_a_fleet_that_is_silent_as_a_whole_is_reported(tmp_path: Path, engine: Any) -> None:
    code, text = doctor(tmp_path, engine, "active", silent=True)
    assert code == 2, text
    assert "spark-1..2: the host is unreachable" in text
    assert engine.requests == []


def test_what_was_changed_since_it_was_deployed_is_said_once() -> None:
    service = to_dict(planned_fixture.service())
    facts = {"services": ["fast", "left"], "units": [], "containers": []}
    deployed = {"recorded": {"number": 3, "units": {"spark-gateway.service": {"enabled": True, "active": "active"}}}}
    deployed["units"] = {"spark-gateway.service": {"enabled": True, "active": "failed"}}
    planned = {"services": [service], "models": []}
    report = drifted(planned, facts, {"images": {"images": {}}, "deployed": deployed})
    # That the unit of a service is gone, and a service left over, the doctor says itself.
    assert [(finding.rule, finding.service) for finding in report] == [("drift.stopped", "")]
    assert "spark-gateway.service ran when it was recorded, but is now failed" in report[0].message
    assert drifted(planned, facts, {"deployed": {"failed": True, "msg": "no"}}) == []
    assert drifted(planned, {}, {"deployed": deployed}) == []
