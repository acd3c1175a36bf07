# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program of spark-power.service, run as systemd runs it, on a tree of files that stands for the host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[4]
HOTPLUG = "sys/devices/platform/MTKP0001:00/pcie_hotplug"
HANDLER = "opt/nvidia/dgx-spark-mlnx-hotplug/mtk-hotplug-handler.sh"


def run(root: Path, *words: str, state: str = "running") -> subprocess.CompletedProcess[str]:
    systemctl = root / "bin/systemctl"
    systemctl.parent.mkdir(exist_ok=True, parents=True)
    systemctl.write_text(f"#!/bin/sh\necho {state}\n")
    systemctl.chmod(0o755)
    argv = [sys.executable, str(REPO / "roles/guard/files/spark_power.py"), *words]
    argv += ["--root", str(root), "--state", str(root / "power.json")]
    path = f"{systemctl.parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(REPO / "collections")}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, text in ((f"{HOTPLUG}/hotplug_enabled", "0"), (f"{HOTPLUG}/debug_state", "0"), (HANDLER, "#!/bin/sh\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_it_switches_and_restores(root: Path) -> None:
    marker = root / "etc/nvidia/cx7-hotplug-enabled"
    assert run(root, "apply", "cx7_hotplug").returncode == 0
    assert marker.exists() and (root / HOTPLUG / "hotplug_enabled").read_text() == "1"
    assert run(root, "undo", state="stopping").returncode == 0 and marker.exists()
    assert run(root, "undo").returncode == 0
    assert not marker.exists() and (root / HOTPLUG / "hotplug_enabled").read_text() == "0"


def test_a_host_without_the_driver_is_told_in_the_journal(tmp_path: Path) -> None:
    done = run(tmp_path, "apply", "cx7_hotplug", "cpu_governor")
    assert done.returncode == 0 and done.stdout.count("nothing was changed") == 2
    assert not (tmp_path / "power.json").exists()


def test_a_change_that_is_not_possible_fails_with_its_place(root: Path) -> None:
    (root / "etc").write_text("no folder")
    done = run(root, "apply", "cx7_hotplug")
    assert done.returncode == 1 and "apply failed" in done.stdout and "etc/nvidia" in done.stdout
