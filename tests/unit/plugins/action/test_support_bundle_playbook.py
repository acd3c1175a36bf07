# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook support_bundle.yml as a person runs it: this machine plays one host, and a second host does not answer."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import LOST_SSH, ansible_playbook

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]


def test_a_bundle_a_host_and_an_index(tmp_path: Path, engine: Any) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    scripts = {
        "ssh": LOST_SSH,
        "docker": "#!/bin/sh\nexit 1\n",
        "journalctl": "#!/bin/sh\necho 'with hf_AbCdEfGhIjKlMnOpQr in it'\n",
        "systemctl": "#!/bin/sh\nexit 1\n",
    }
    for name, text in scripts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    port = int(engine.url.rpartition(":")[2])
    local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    lost = {"ansible_connection": "ssh", "ansible_ssh_executable": str(programs / "ssh")}
    services = [{"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": port}]
    settings = {"spark_services": services, "ansible_become": False, "spark_sysroot": str(tmp_path)}
    # A host that runs an add-on service, and a host without any part of this collection.
    watched = {**local, "ansible_become": False, "spark_fleet_monitor": {"notify": []}, "spark_support_mib": 4}
    groups = {
        "sparks": {"hosts": {"spark-1": local, "spark-2": lost}, "vars": settings},
        "others": {"hosts": {"forge": watched, "printer": lost}},
    }
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump(groups))
    ran = ansible_playbook(
        "-i",
        inventory,
        "dgxspark.vllm.support_bundle",
        "-v",
        cwd=tmp_path,
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
    )
    text = " ".join((ran.stdout + ran.stderr).split())
    assert ran.returncode == 2, text
    assert "1 of 3 hosts have no bundle: spark-2 (port 22: No route to host)" in text
    dest = tmp_path / ".spark" / "support"
    bundle = dest / "spark-1.tar.gz"
    index = json.loads((dest / "index.json").read_text())
    assert set(index["hosts"]) == {"spark-1", "spark-2", "forge"}
    assert index["hosts"]["spark-2"] == {"why": "port 22: No route to host"}
    assert index["hosts"]["spark-1"]["sha256"] == sha256(bundle.read_bytes()).hexdigest()
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600 and stat.S_IMODE(dest.stat().st_mode) == 0o700
    with tarfile.open(bundle) as archive:
        names = archive.getnames()
        log = archive.extractfile("journal/spark-fast.service.log")
        assert log and log.read() == b"with <redacted> in it\n"
    assert {"MANIFEST.json", "facts.json", "plan.json", "metrics/fast.txt"} <= set(names)
    assert "base64" not in text and "content" not in text  # the bundle itself is not on the screen
