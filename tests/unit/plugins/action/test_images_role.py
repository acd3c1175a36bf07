# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role images, for engines and for add-on services, as a play runs it on this machine; only docker is a stand-in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

ROOT = Path(__file__).parents[4]
DOCKER = """#!/bin/sh
echo "$*" >> "$CALLS"
[ -e "$DOWN" ] && echo "Cannot connect to the Docker daemon" >&2 && exit 1
for ref; do :; done
if [ "$1 $2" = "image inspect" ]; then
  [ -e "$HERE" ] && exec cat "$HERE"
  echo "[]"; echo "Error response from daemon: No such image: $ref" >&2; exit 1
fi
[ "$1" = pull ] || exit 0
cat "$SAYS" >&2
[ -s "$SAYS" ] && exit 1
cp "$REMOTE" "$HERE"
"""
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
ID = "sha256:" + "1" * 64

pytestmark = pytest.mark.slow


def run(folder: Path, image: str, says: str, task: dict[str, Any], built: str = ARCHITECTURE) -> tuple[int, str, int]:
    """Run the role for one image; return the exit code, the output and the number of tries.

    says: refusal of the registry. built: architecture of the image that the registry sends.
    """
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin/docker").write_text(DOCKER)
    (folder / "bin/docker").chmod(0o755)
    (folder / "says").write_text(says)
    (folder / "remote").write_text(json.dumps([{"Id": ID, "Architecture": built}]))
    play = {"name": "Images", "hosts": "all", "gather_facts": False, "tasks": [{"name": "Bring the image", **task}]}
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    files = {"CALLS": "calls", "SAYS": "says", "HERE": "here", "REMOTE": "remote", "DOWN": "down"}
    settings = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "DGXSPARK_STATE_DIR": str(folder / "state"),
        "DGXSPARK_RUN_DIR": str(folder / "run"),
        **{variable: str(folder / name) for variable, name in files.items()},
    }
    (folder / "hosts").write_text("spark-1 ansible_connection=local\n")
    done = ansible_playbook("-i", "hosts", "--skip-tags", "never", "play.yml", cwd=folder, env=settings)
    tries = (folder / "calls").read_text().splitlines().count(f"pull --quiet {image}")
    return done.returncode, " ".join((done.stdout + done.stderr).replace("\\n", " ").split()), tries


def pull(folder: Path, image: str, says: str) -> tuple[int, str, int]:
    """Run the role as for engines."""
    known_images = {image: {"present": False, "probe_from": "image"}}
    values = {"images_refs": [image], "images_known": known_images, "images_delay": 0, "images_probe": False}
    return run(folder, image, says, {"ansible.builtin.import_role": {"name": "dgxspark.vllm.images"}, "vars": values})


def add_on(folder: Path, image: str, says: str = "", built: str = ARCHITECTURE) -> tuple[int, str, int]:
    """Run it as a role of an add-on service does."""
    values = {"images_refs": [image], "images_setting": "spark_gateway.image", "images_delay": 0}
    role = {"name": "dgxspark.vllm.images", "tasks_from": "addon.yml"}
    return run(folder, image, says, {"ansible.builtin.import_role": role, "vars": values}, built)


@pytest.mark.parametrize(
    ("image", "says", "words"),
    [
        (
            "nvcr.io/nvidia/vllm:26.04-py3",
            "Error response from daemon: unauthorized: <html> <head><title>401 Authorization Required</title></head>",
            'docker login nvcr.io\\" on that host, with $oauthtoken as the user',
        ),
        pytest.param(
            "nvcr.io/nvidia/vllm:26.04-py3",
            'Error response from daemon: Head "https://nvcr.io/v2/nvidia/vllm/manifests/26.04-py3": denied: denied',
            "docker login nvcr.io",
            marks=pytest.mark.nightly,
        ),
        (
            "vllm/vlm-openai:v0.24.0",
            "Error response from daemon: pull access denied for vllm/vlm-openai, repository does not exist or may require 'docker login'",
            "correct the name if it is misspelt",
        ),
        pytest.param(
            "registry.lan:5000/team/vllm:1",
            'Error response from daemon: Get "https://registry.lan:5000/v2/": no basic auth credentials',
            "docker login registry.lan:5000",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_registry_that_refuses_is_named_with_the_login_at_once(
    tmp_path: Path, image: str, says: str, words: str
) -> None:
    code, text, tries = pull(tmp_path, image, says)
    assert code != 0 and tries == 1
    assert f"spark-1 may not pull {image}. Docker says: Error response from daemon" in text
    assert words in text


@pytest.mark.parametrize(
    "says",
    [
        'Get "https://nvcr.io/v2/": dial tcp: lookup nvcr.io: no such host',
        *(
            pytest.param(says, marks=pytest.mark.nightly)
            for says in (
                "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
                "manifest for nvcr.io/nvidia/vllm:26.04-py3 not found: manifest unknown",
            )
        ),
    ],
)
def test_other_failures_are_tried_again_and_say_nothing_of_accounts(tmp_path: Path, says: str) -> None:
    code, text, tries = pull(tmp_path, "nvcr.io/nvidia/vllm:26.04-py3", says)
    assert code != 0 and tries == 4
    assert "docker login" not in text and says.split('"')[0].strip() in text


def noted(folder: Path) -> list[str]:
    """Return the ids of the images that were noted as brought."""
    path = folder / "state" / "made"
    return json.loads(path.read_text())["images"] if path.exists() else []


def test_an_image_of_an_add_on_service_is_pulled_once_and_noted(tmp_path: Path) -> None:
    code, text, tries = add_on(tmp_path, "ghcr.io/berriai/litellm:v1")
    assert (code, tries) == (0, 1), text
    assert noted(tmp_path) == [ID]
    code, text, tries = add_on(tmp_path, "ghcr.io/berriai/litellm:v1")
    assert (code, tries) == (0, 1) and "changed=0" in text


def test_an_image_that_was_there_is_not_the_collections(tmp_path: Path) -> None:
    (tmp_path / "here").write_text(json.dumps([{"Id": ID, "Architecture": ARCHITECTURE}]))
    code, text, tries = add_on(tmp_path, "ghcr.io/berriai/litellm:v1")
    assert (code, tries, noted(tmp_path)) == (0, 0, []), text


def test_an_image_of_another_architecture_is_refused_and_can_be_cleaned_up(tmp_path: Path) -> None:
    code, text, _tries = add_on(tmp_path, "example/tool:1", built="s390x")
    assert code != 0 and noted(tmp_path) == [ID]
    assert f"spark-1, spark_gateway.image: example/tool:1 is built for s390x, the host is {ARCHITECTURE}" in text


@pytest.mark.parametrize(
    ("says", "tries", "words"),
    [
        (
            "dial tcp: lookup ghcr.io: no such host",
            4,
            "spark-1, spark_gateway.image: cannot pull ghcr.io/a/b:1: dial tcp",
        ),
        pytest.param(
            "no matching manifest for linux/arm64/v8",
            4,
            "It is not built for this host's architecture",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "denied: denied\nError response from daemon: denied", 1, "docker login ghcr.io", marks=pytest.mark.nightly
        ),
    ],
)
def test_an_add_on_image_that_cannot_be_had_is_said_with_its_variable(
    tmp_path: Path, says: str, tries: int, words: str
) -> None:
    code, text, tried = add_on(tmp_path, "ghcr.io/a/b:1", says)
    assert code != 0 and tried == tries and words in text
    assert noted(tmp_path) == []


def test_a_host_whose_docker_does_not_answer_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "down").touch()
    code, text, tries = add_on(tmp_path, "ghcr.io/a/b:1")
    assert code != 0 and tries == 0
    assert "Cannot connect to the Docker daemon; nothing was changed. Install Docker" in text
