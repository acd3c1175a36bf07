# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The check of the GPU in a container before the first engine of a host starts: the unchanged task of bring.yml, with a script as docker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

pytestmark = pytest.mark.slow

TASKS = Path(__file__).parents[4] / "playbooks" / "tasks"
DOCKER = """#!/bin/sh
echo "$*" >> "$PLAYED/calls"
cat "$PLAYED/says" >&2
exit "$(cat "$PLAYED/rc")"
"""
SERVICE = {"image": {"run": "vllm/vllm-openai:v0.24.0"}, "ray_image": None}
REFUSED = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]]'


def task() -> dict[str, Any]:
    """Return the task that asks, of the file that prepares hosts."""
    tasks = [item for item in yaml.safe_load((TASKS / "bring.yml").read_text()) if "GPU" in item["name"]]
    assert len(tasks) == 1
    tasks[0]["ansible.builtin.import_tasks"] = str(TASKS / "gpu.yml")
    return tasks[0]


def run(
    folder: Path,
    rc: int = 0,
    says: str = "",
    services: Any = None,
    containers: Any = (),
    gpu: Any = ("--gpus", "all"),
    options: Any = (),
) -> tuple[int, str, list[str]]:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin/docker").write_text(DOCKER)
    (folder / "bin/docker").chmod(0o755)
    (folder / "says").write_text(says)
    (folder / "rc").write_text(str(rc))
    (folder / "hosts").write_text("spark-1 ansible_connection=local\n")
    plan = {"settings": {"gpu_args": list(gpu)}, "services": [SERVICE] if services is None else services}
    values = {"spark_plan": plan, "spark_measured": {"spark": {"containers": list(containers)}}}
    play = [{"name": "Ask", "hosts": "all", "gather_facts": False, "vars": values, "tasks": [task()]}]
    (folder / "play.yml").write_text(yaml.safe_dump(play))
    env = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PLAYED": str(folder)}
    done = ansible_playbook("-i", "hosts", "play.yml", *options, cwd=folder, env=env)
    calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    return done.returncode, " ".join((done.stdout + done.stderr).split()), calls


def test_the_container_is_given_the_gpu_as_engines_are(tmp_path: Path) -> None:
    code, text, calls = run(tmp_path, gpu=["--runtime", "nvidia"])
    assert code == 0 and "changed=0" in text, text
    assert len(calls) == 1 and "--runtime nvidia --entrypoint nvidia-smi vllm/vllm-openai:v0.24.0" in calls[0]
    assert "--pull never" in calls[0] and "--network none" in calls[0]


@pytest.mark.parametrize(
    ("rc", "says", "fix"),
    [
        (125, REFUSED, "nvidia-ctk runtime configure"),
        (
            125,
            "docker: Error response from daemon: unknown or invalid runtime name: nvidia",
            "nvidia-ctk runtime configure",
        ),
        (125, "nvidia-container-cli: initialization error: nvml error: driver not loaded", "modprobe nvidia"),
        (127, 'exec: "nvidia-smi": executable file not found in $PATH', "nvidia-ctk runtime configure"),
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", "modprobe nvidia"),
        (255, "exec /usr/bin/nvidia-smi: exec format error", 'mode = "legacy"'),
        (
            125,
            "docker: Error response from daemon: unresolvable CDI devices nvidia.com/gpu=all",
            "nvidia-ctk cdi generate",
        ),
        (1, "Failed to initialize NVML: Unknown Error", "daemon-reload"),
        (1, "", "nvidia-ctk runtime configure"),
    ],
)
def test_no_gpu_in_a_container_stops_the_host_with_the_fix(tmp_path: Path, rc: int, says: str, fix: str) -> None:
    code, text, _calls = run(tmp_path, rc, says)
    assert code != 0 and "spark-1: no container gets the GPU, so nothing was started" in text
    assert (says[-30:] or "exit code 1") in text and fix in text.replace("\\", "")


@pytest.mark.parametrize(
    ("rc", "says"),
    [
        (124, ""),
        pytest.param(137, "", marks=pytest.mark.nightly),
        pytest.param(125, "docker: Error: No such image: vllm/vllm-openai:v0.24.0", marks=pytest.mark.nightly),
        pytest.param(125, "Unable to find image 'nvcr.io/nvidia-x/vllm:26.04-py3' locally", marks=pytest.mark.nightly),
        (
            125,
            "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        ),
        pytest.param(
            125,
            "docker: permission denied while trying to connect to the Docker daemon socket",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            127, "timeout: failed to run command 'docker': No such file or directory", marks=pytest.mark.nightly
        ),
        pytest.param(125, "", marks=pytest.mark.nightly),
    ],
)
def test_an_answer_that_does_not_come_says_nothing_of_the_gpu(tmp_path: Path, rc: int, says: str) -> None:
    code, text, _calls = run(tmp_path, rc, says)
    assert code == 0 and "whether containers get the GPU is not known" in text


def test_the_image_that_one_with_ray_is_built_from(tmp_path: Path) -> None:
    service = {"image": {"run": "dgxspark/ray:abc"}, "ray_image": {"base": "nvcr.io/nvidia/vllm:26.04-py3"}}
    code, _text, calls = run(tmp_path, services=[service])
    assert code == 0 and "nvcr.io/nvidia/vllm:26.04-py3" in calls[0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"gpu": []},  # as simulated hosts have it
        {"services": []},
        {"containers": [{"name": "spark-heavy", "managed": True}]},
        {"options": ["--check"]},
    ],
)
def test_nobody_is_asked_where_it_does_not_matter_or_is_known(tmp_path: Path, arguments: dict[str, Any]) -> None:
    code, text, calls = run(tmp_path, 1, "x", **arguments)
    assert (code, calls) == (0, []), text


def test_a_container_of_somebody_else_says_nothing_of_ours(tmp_path: Path) -> None:
    _code, _text, calls = run(tmp_path, containers=[{"name": "mine", "managed": False}])
    assert len(calls) == 1
