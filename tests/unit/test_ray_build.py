# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Credentials for pip do not stay in an image with Ray: neither in the result, nor in the stage in which pip ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.render import render_template

ROLE = Path(__file__).parents[2] / "roles" / "ray"
TAG = "dgxspark/ray:0123456789ab"
SECRET = "https://user:s3cret@index.example/simple"


def stages(listed: list[str]) -> list[list[str]]:
    """The instructions of each stage of the Dockerfile, a line each."""
    text = render_template(
        "ray/Dockerfile.j2",
        {
            "ray_pip_env": {"PIP_INDEX_URL": SECRET, "PIP_RETRIES": "0"},
            "__ray_from": "dgxspark/ray-base:0123456789ab",
            "__ray_listed": listed,
            "__ray_image": {"version": "2.60.0", "tag": TAG},
            "__ray_words": ["sha256:1", "vllm"],
        },
    )
    assert SECRET not in text
    commands: list[list[str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("FROM "):
            commands.append([])
        if line and not line.startswith("#"):
            commands[-1].append(line)
    return commands


@pytest.mark.parametrize("listed", [[], ["ray==2.60.0 --hash=sha256:0"]])
def test_one_step_of_a_stage_that_can_be_found_has_the_variables_of_pip(listed: list[str]) -> None:
    first, last = stages(listed)
    assert first[1] == f'LABEL dgxspark.stage="{TAG}"'
    assert first[-3:-1] == ["ARG PIP_INDEX_URL", "ARG PIP_RETRIES"] and " download " in first[-1]
    assert not [line for line in last if line.startswith("ARG ") or "dgxspark.stage" in line]


def test_the_stage_is_removed_whatever_becomes_of_the_build() -> None:
    tasks: list[dict[str, Any]] = yaml.safe_load((ROLE / "tasks/build.yml").read_text(encoding="utf-8"))
    (block,) = [task for task in tasks if "block" in task]
    (build,) = [
        task["ansible.builtin.command"] for task in block["block"] if "stdin" in task["ansible.builtin.command"]
    ]
    # By name alone: the value comes from the environment, and the command line of a program can be read by everybody.
    assert "['--build-arg'] | product(ray_pip_env | list | sort)" in " ".join(build["argv"].split())
    (remove,) = block["always"]
    assert remove["ansible.builtin.command"]["argv"] == [
        *["docker", "image", "prune", "--force", "--filter"],
        "label=dgxspark.stage={{ __ray_image.tag }}",
    ]
