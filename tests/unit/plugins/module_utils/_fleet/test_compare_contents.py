# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planned images, bundled models and network files, compared with the contents of a host."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import compare_contents, generations
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.generation_host import Host

NETPLAN = "/etc/netplan/40-cx7.yaml"
TEXT = "# Ansible managed: dgxspark.vllm.fabric\n"


def host_of(root: Path, present: Any = (), silent: str = "", **params: Any) -> Any:
    """A host whose files are below a folder. there: images."""
    return SimpleNamespace(
        params={"settings": {}, "controller": "me", **params},
        at=lambda path: root / path.lstrip("/"),
        owner=Host.owner,
        inspect=lambda refs: {ref: "sha256:1" for ref in refs if ref in present},
        tags=set,
        generation=lambda: None,
        generations={},
        current=generations.Current(),
        image_ids={},
        parts=None,
        silent=silent,
        check=False,
    )


def put(root: Path, path: str, text: str = "", mode: int = 0o600) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(mode)


def test_images_that_are_made_on_the_host_have_to_be_there(tmp_path: Path) -> None:
    images = [["built:1", "sha256:2"], ["ray:1"]]
    assert compare_contents.image_faults(host_of(tmp_path, ["built:1", "ray:1"]), images) == []
    assert compare_contents.image_faults(host_of(tmp_path, ["sha256:2", "ray:1"]), images) == []
    assert compare_contents.image_faults(host_of(tmp_path, ["ray:1"]), images) == ["the image built:1 is not there"]
    assert compare_contents.image_faults(host_of(tmp_path, silent="it hangs"), images) == [
        "Docker does not say which images run: it hangs"
    ]


def test_a_model_is_as_the_bundle_has_it(tmp_path: Path) -> None:
    commit, digest = "1" * 40, hashlib.sha256(b"{}").hexdigest()
    model = {
        "repo": "Org/M",
        "commit": commit,
        "revisions": ["main"],
        "files": {"config.json": {"size": 2, "sha256": digest}},
    }

    def faults_of(**changes: Any) -> list[str]:
        host = host_of(tmp_path, hf_home="/hf", settings={"verify": "changed"})
        return compare_contents.bundle_faults(host, {**model, **changes})

    put(tmp_path, f"/hf/hub/models--Org--M/snapshots/{commit}/config.json", "{}")
    put(tmp_path, "/hf/hub/models--Org--M/refs/main", commit)
    assert faults_of() == []
    assert faults_of(revisions=["other"]) == ["Org/M: the bundle has another commit"]
    assert faults_of(files={"config.json": {"size": 3, "sha256": digest}}) == [
        "Org/M: config.json has 2 bytes instead of 3"
    ]
    assert "Org/M: config.json is missing" in faults_of(commit="2" * 40)


@pytest.mark.parametrize(
    ("text", "mode", "fine"),
    [(TEXT, 0o600, True), (TEXT + "#", 0o600, False), (TEXT, 0o644, False), (None, 0, False)],
)
def test_the_file_of_the_network_is_what_the_role_would_write(
    tmp_path: Path, text: str | None, mode: int, fine: bool
) -> None:
    if text is not None:
        put(tmp_path, NETPLAN, text, mode)
    network = {"file": {"path": NETPLAN, "sha256": hashlib.sha256(TEXT.encode()).hexdigest()}}
    assert compare_contents.network_faults(host_of(tmp_path), network) == (
        [] if fine else [f"{NETPLAN} is not as it has to be"]
    )
    assert compare_contents.network_faults(host_of(tmp_path), {"file": {}}) == []  # it is somebody else's
