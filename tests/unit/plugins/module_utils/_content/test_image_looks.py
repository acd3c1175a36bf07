# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of a host: an unknown image is not treated as absent, and an image is asked once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import (
    image_looks,
    image_probe,
    image_probe_program,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import Unknown

IMAGE = {"Id": "sha256:aa", "Config": {"Env": ["CUDA_VERSION=13.0.2"]}}


@pytest.mark.parametrize(
    ("refs", "answer", "why"),
    [
        (["a b"], (0, "[]", ""), "not references of images: 'a b'"),
        (["a"], (127, "", ""), "there is no docker on this host"),
        (["a"], (1, "[]", "Cannot connect to the Docker daemon"), "Cannot connect"),
        (["a"], (3, "", ""), "docker image inspect failed for a: exit code 3"),
    ],
)
def test_what_docker_does_not_say_is_not_known(refs: list[str], answer: tuple[int, str, str], why: str) -> None:
    with pytest.raises(Unknown, match=why):
        image_looks.look_up(lambda *_args: answer, refs)


def test_an_image_is_asked_once_whatever_it_is_called(tmp_path: Path) -> None:
    images = image_looks.look_up(lambda *_args: (0, json.dumps([IMAGE, IMAGE]), ""), ["a:1", "a:2", "a:1"])
    asked_ids: list[str] = []

    def ask(image_id: str) -> dict[str, Any]:
        asked_ids.append(image_id)
        return {"packages": {"vllm": "0.24.0"}}

    image_looks.add_contents(images, str(tmp_path))
    assert [image["probe_from"] for image in images.values()] == ["none", "none"] and asked_ids == []
    image_looks.add_contents(images, str(tmp_path), ask)
    assert asked_ids == ["sha256:aa"]
    assert {image["vllm_version"] for image in images.values()} == {"0.24.0"}
    assert [image["probe_from"] for image in images.values()] == ["image", "image"]


def test_what_will_be_the_same_is_kept(tmp_path: Path) -> None:
    warned: list[str] = []
    out = f"{image_probe_program.MARK}{json.dumps({'packages': {'vllm': '0.24.0'}})}\n"
    ask = image_probe.asker(lambda *_args: (0, out, ""), str(tmp_path / "kept"), 5, warned.append)
    assert ask("sha256:aa")["packages"] == {"vllm": "0.24.0"} and warned == []
    images = {"a": {"id": "sha256:aa", "present": True, "env": {}}}
    image_looks.add_contents(images, str(tmp_path / "kept"))
    assert images["a"]["probe_from"] == "cache"
