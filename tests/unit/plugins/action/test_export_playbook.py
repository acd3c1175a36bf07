# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks export.yml and import.yml as a person runs them: a service becomes files, and a file a service again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

pytestmark = pytest.mark.slow

SERVICES = [
    {"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001},
    {"name": "fast", "recipe": "qwen3-8b", "port": 8002},
]
FORMS = ["compose.yml", "docker.sh", "eugr.yaml", "service", "sparkrun.yaml"]


def run(folder: Path, playbook: str, *words: str, **host: Any) -> str:
    variables = {"ansible_connection": "local", "spark_services": SERVICES, **host}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": {"spark-1": variables}}}))
    options = ["-e", "ansible_become=false"]
    ran = ansible_playbook("-i", "hosts.yml", f"dgxspark.vllm.{playbook}", *words, *options, cwd=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def exported(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_are_written_and_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages }}\n")
    templates = [{"source": str(tmp_path / "chat.jinja"), "path": "/t/chat.jinja"}]
    services = [{**SERVICES[0], "files": templates, "args": {"chat-template": "/t/chat.jinja"}}, SERVICES[1]]
    run(tmp_path, "export", "-e", "services=heavy", spark_services=services)
    wanted = [f"heavy/heavy.{form}" for form in FORMS]
    assert exported(tmp_path / "exported/spark-1") == sorted([*wanted, "heavy/files/chat.jinja"])
    assert (tmp_path / "exported/spark-1/heavy/files/chat.jinja").read_text() == "{{ messages }}\n"
    for name in wanted:
        page = run(tmp_path, "import", "-e", f"import_src=exported/spark-1/{name}")
        assert "Qwen/Qwen3-4B-Instruct-2507" in page and "port: 8001" in page, name


def test_a_second_run_changes_nothing_and_check_mode_writes_nothing(tmp_path: Path) -> None:
    words = ["-e", "services=fast", "-e", "export_form=compose", "-e", "export_dest=mine"]
    run(tmp_path, "export", *words, "--check")
    assert not (tmp_path / "mine").exists()
    run(tmp_path, "export", *words)
    assert exported(tmp_path / "mine/spark-1") == ["fast/fast.compose.yml"]
    assert "changed=0" in run(tmp_path, "export", *words)


def test_services_of_one_name_on_two_hosts_stay_apart(tmp_path: Path) -> None:
    names = ("spark-1", "spark-2")
    hosts = {
        name: {"ansible_connection": "local", "spark_services": [{**SERVICES[0], "port": port}]}
        for name, port in zip(names, (8001, 8002))
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": hosts}}))
    words = ["-e", "export_form=docker", "-e", "ansible_become=false"]
    ran = ansible_playbook("-i", "hosts.yml", "dgxspark.vllm.export", *words, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for name, port in zip(names, (8001, 8002)):
        assert f"--port {port}" in (tmp_path / f"exported/{name}/heavy/heavy.docker.sh").read_text()


def test_a_silent_host_is_exported_without_figures(tmp_path: Path) -> None:
    host = {"ansible_connection": "ssh", "ansible_host": "192.0.2.7", "ansible_ssh_executable": str(tmp_path / "ssh")}
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    run(tmp_path, "export", "-e", "export_form=docker", **host)
    texts = [(tmp_path / f"exported/spark-1/{name}/{name}.docker.sh").read_text() for name in ("heavy", "fast")]
    assert all("# not proved on this host" in text for text in texts)
