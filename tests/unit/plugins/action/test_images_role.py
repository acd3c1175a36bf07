# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role images where a registry refuses, as a play runs it on this machine; only docker is a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[4]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
DOCKER = """#!/bin/sh
echo "$*" >> "$CALLS"
[ "$1" = pull ] || exit 0
cat "$SAYS" >&2
[ -s "$SAYS" ] && exit 1
exit 0
"""

pytestmark = pytest.mark.slow


def pull(folder: Path, image: str, says: str) -> tuple[int, str, int]:
    """Run the role for one image; return the code, what was printed, and how often it was tried."""
    (folder / "bin").mkdir()
    (folder / "bin/docker").write_text(DOCKER)
    (folder / "bin/docker").chmod(0o755)
    (folder / "says").write_text(says)
    play = {
        "name": "Images",
        "hosts": "all",
        "gather_facts": False,
        "vars": {
            "images_refs": [image],
            "images_known": {image: {"present": False, "probe_from": "image"}},
            "images_delay": 0,
            "images_probe": False,
        },
        "roles": ["dgxspark.vllm.images"],
    }
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    settings = {
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        "ANSIBLE_NOCOLOR": "1",
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "SAYS": str(folder / "says"),
    }
    host = f"spark-1 ansible_connection=local ansible_python_interpreter={sys.executable}"
    (folder / "hosts").write_text(host + "\n")
    done = subprocess.run(
        [str(PLAYBOOK), "-i", "hosts", "--skip-tags", "never", "play.yml"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **settings},
    )
    tries = (folder / "calls").read_text().splitlines().count(f"pull {image}")
    return done.returncode, " ".join((done.stdout + done.stderr).replace("\\n", " ").split()), tries


@pytest.mark.parametrize(
    ("image", "says", "words"),
    [
        (
            "nvcr.io/nvidia/vllm:26.04-py3",
            "Error response from daemon: unauthorized: <html> <head><title>401 Authorization Required</title></head>",
            'docker login nvcr.io\\" on that host, with $oauthtoken as the user',
        ),
        (
            "nvcr.io/nvidia/vllm:26.04-py3",
            'Error response from daemon: Head "https://nvcr.io/v2/nvidia/vllm/manifests/26.04-py3": denied: denied',
            "docker login nvcr.io",
        ),
        (
            "vllm/vlm-openai:v0.24.0",
            "Error response from daemon: pull access denied for vllm/vlm-openai, repository does not exist or may require 'docker login'",
            "correct the name if it is misspelt",
        ),
        (
            "registry.lan:5000/team/vllm:1",
            'Error response from daemon: Get "https://registry.lan:5000/v2/": no basic auth credentials',
            "docker login registry.lan:5000",
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
        "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
        "manifest for nvcr.io/nvidia/vllm:26.04-py3 not found: manifest unknown",
    ],
)
def test_other_failures_are_tried_again_and_say_nothing_of_accounts(tmp_path: Path, says: str) -> None:
    code, text, tries = pull(tmp_path, "nvcr.io/nvidia/vllm:26.04-py3", says)
    assert code != 0 and tries == 4
    assert "docker login" not in text and says.split('"')[0].strip() in text
