# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole playbooks on a host, which this machine plays, whose programs hang, are slow or lie.

The deadline of a program is seconds here and not half a minute: the collection is a copy of the repository in which one constant
is another one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ROOT, ansible_playbook

pytestmark = pytest.mark.slow

UNIT = "\n".join(
    (
        "Id=spark-fast.service",
        "Type=exec",
        "LoadState=loaded",
        "ActiveState=active",
        "SubState=running",
        "NRestarts=0",
        "UnitFileState=enabled",
        "ActiveEnterTimestampMonotonic=1000000",
    )
)
DOCKER = """
case "$*" in
info*) echo '{"ServerVersion": "29.1", "DockerRootDir": "/var/lib/docker", "Runtimes": {"nvidia": {}}}' ;;
*inspect*) for last; do :; done; echo '[]'; echo "Error response from daemon: No such image: $last" >&2; exit 1 ;;
esac
"""
# A healthy host's programs, as far as these playbooks ask them.
PROGRAMS = {
    "systemctl": f"case \"$*\" in *is-active*) echo active;; *show*) cat <<'END'\n{UNIT}\nEND\n;; esac",
    "docker": DOCKER,
    "nvidia-smi": "case \"$*\" in *index,name*) echo '0, NVIDIA GB10, GPU-1, 580.159.03, 12.1, 42, 11.2, 2411, 5';; esac",
    "journalctl": "echo 'a line'",
    "ip": "echo '[]'",
}
MEMINFO = """\
MemTotal: 127600000 kB
MemFree: 100000000 kB
MemAvailable: 110000000 kB
Buffers: 1000 kB
Cached: 9000000 kB
SwapTotal: 0 kB
SwapFree: 0 kB
SReclaimable: 1000 kB
Shmem: 1000 kB
"""
HANGS = "trap '' TERM; sleep 600"
SLOW = "sleep 1.5"

# Playbook, and what hangs that it asks: one program of a playbook, and every night all that are asked.
ASKED = [
    ("status", "systemctl"),
    ("drift", "docker"),
    ("plan", "nvidia-smi"),
    *(
        pytest.param(*case, marks=pytest.mark.nightly)
        for case in (
            ("status", "nvidia-smi"),
            ("doctor", "journalctl"),
            ("doctor", "systemctl"),
            ("doctor", "docker"),
            ("doctor", "nvidia-smi"),
            ("drift", "systemctl"),
            ("plan", "docker"),
            ("plan", "systemctl"),
        )
    ),
]
# Messages about a host whose program did answer: the thing does not exist, or does not work.
NO = {
    "systemctl": r"unit (absent|is gone)|spark-fast\.service (does not exist|is not|has failed)|drift\.(stopped|unit)|doctor\.unit_",
    "docker": r"host\.(docker|nvidia_runtime)\]|drift\.(image|container)|is not on this host. \[drift.image",
    "nvidia-smi": r"host\.gpu\]|host\.driver|doctor\.gpu",
    "journalctl": r"doctor\.gpu_fault",
}


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], Path]:
    """Makes the collection with another deadline for programs, in seconds."""

    def make(seconds: float) -> Path:
        folder = tmp_path_factory.mktemp("collections")
        collection = folder / "ansible_collections" / "dgxspark" / "vllm"
        collection.mkdir(parents=True)
        for name in ("meta", "playbooks", "roles", "galaxy.yml"):
            (collection / name).symlink_to(ROOT / name)
        for path in (ROOT / "plugins").iterdir():
            if path.name != "module_utils" and path.is_dir():
                (collection / "plugins" / path.name).mkdir(parents=True)
                for file in path.glob("*.py"):
                    (collection / "plugins" / path.name / file.name).symlink_to(file)
        utils = ROOT / "plugins" / "module_utils"
        for path in (*utils.rglob("*.py"), *utils.rglob("*.yml")):
            link = collection / path.relative_to(ROOT)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        command = collection / "plugins/module_utils/_runtime/command.py"
        text, count = re.subn(
            r"^QUERY_SECONDS = 30\.0", f"QUERY_SECONDS = {seconds}", command.read_text(), flags=re.MULTILINE
        )
        assert count == 1
        command.unlink()
        command.write_text(text)
        return folder

    return make


@pytest.fixture(scope="module")
def two_seconds(impatient: Callable[[float], Path]) -> Path:
    return impatient(2.0)


@pytest.fixture(scope="module")
def a_minute(impatient: Callable[[float], Path]) -> Path:
    return impatient(60.0)


def run(folder: Path, collections: Path, engine: Any, playbook: str, *options: str, **bad: str) -> tuple[int, str]:
    """Run a playbook; bad: shell commands that programs run before they answer, by program."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{bad.get(name, '')}\n{text}\n")
        (programs / name).chmod(0o755)
    port = int(engine.set(models=["fast"]).url.rpartition(":")[2])
    service = {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "served_model_name": "fast", "port": port}
    settings = {
        "spark_services": [service],
        "ansible_become": False,
        "ansible_connection": "local",
        "spark_status_timeout": 10,
        "spark_sysroot": str(folder),
    }
    (folder / "proc").mkdir(exist_ok=True)
    (folder / "proc/meminfo").write_text(MEMINFO)
    (folder / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": {"spark-1": settings}}}))
    ran = ansible_playbook(
        "-i",
        "hosts.yml",
        f"dgxspark.vllm.{playbook}",
        *options,
        cwd=folder,
        env={"PATH": f"{programs}:{os.environ['PATH']}", "ANSIBLE_COLLECTIONS_PATH": str(collections)},
    )
    return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


OPTIONS = {"plan": ("-e", "spark_plan_facts=auto")}


@pytest.mark.parametrize(("playbook", "program"), ASKED)
def test_a_program_that_hangs_is_named_and_is_no_answer(
    tmp_path: Path, two_seconds: Path, engine: Any, playbook: str, program: str
) -> None:
    _code, text = run(tmp_path, two_seconds, engine, playbook, *OPTIONS.get(playbook, ()), **{program: HANGS})
    assert "Traceback" not in text and "MODULE FAILURE" not in text
    assert re.search(rf"{program} did not answer in \d+ s", text)
    assert not re.search(NO[program], text)


@pytest.mark.nightly
def test_a_host_on_which_everything_hangs_is_looked_at_in_time(tmp_path: Path, two_seconds: Path, engine: Any) -> None:
    begun = time.monotonic()
    _code, text = run(tmp_path, two_seconds, engine, "doctor", **dict.fromkeys(PROGRAMS, HANGS))
    assert time.monotonic() - begun < 240
    assert "Traceback" not in text and "doctor.not_asked" in text
    for program in ("systemctl", "docker", "nvidia-smi"):
        assert f"{program} did not answer in" in text and not re.search(NO[program], text)


@pytest.mark.nightly
@pytest.mark.parametrize("playbook", ["status", "plan"])
def test_a_host_that_is_slow_is_read_like_any_other(tmp_path: Path, a_minute: Path, engine: Any, playbook: str) -> None:
    """Each program takes its time, within its deadline."""
    _code, text = run(tmp_path, a_minute, engine, playbook, *OPTIONS.get(playbook, ()), **dict.fromkeys(PROGRAMS, SLOW))
    assert "did not answer" not in text and "not known" not in text and "Traceback" not in text
    assert "active" in text if playbook == "status" else "host.gpu]" not in text
