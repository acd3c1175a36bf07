# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reset on folders of this machine: what was made goes by name, what is somebody else's stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import made
from ansible_collections.dgxspark.vllm.plugins.modules import reset


@pytest.fixture
def call(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(reset, "CACHES", tmp_path / "own-caches")

    def call(**args: Any) -> dict[str, Any]:
        with patch_module_args(args), pytest.raises(SystemExit):
            reset.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return call


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A disk of the owner's on which caches and weights were put, beside what the owner has there."""
    data = tmp_path / "data"
    (data / "photos").mkdir(parents=True)
    (data / "photos/one.jpg").write_text("mine")
    made.make_folder(data / "caches", "shared")
    made.make_folder(data / "caches/heavy", "cache")
    (data / "caches/heavy/graph").write_text("compiled")
    (data / "caches/notes.txt").write_text("mine")
    made.make_folder(data / "hf", "shared")
    for repo, ours in (("Org/Theirs", False), ("Org/Ours", True)):
        if ours:
            made.begin_fetch(data / "hf", repo)
        blobs = data / "hf/hub" / f"models--{made.repo_name(repo)}" / "blobs"
        blobs.mkdir(parents=True)
        (blobs / "a").write_text("weights")
        if ours:
            made.end_fetch(data / "hf", repo)
    state = made.state_dir()
    (state / "receipts").mkdir()
    (state / "open-webui").mkdir()
    (state / "open-webui/chats.db").write_text("a year of chats")
    (state / "models/Org--Ours.json").write_text("{}")
    return data


def tree(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


def test_caches_and_notes_go_and_weights_stay_with_their_notes(call: Any, host: Path) -> None:
    result = call()
    assert result["changed"] and str(host / "caches/heavy") in result["removed"]
    assert result["left"] == [{"path": str(host / "caches"), "why": "not empty: notes.txt"}]
    assert tree(host) == [
        "caches/notes.txt",
        "hf/hub/models--Org--Ours/blobs/a",
        "hf/hub/models--Org--Theirs/blobs/a",
        "photos/one.jpg",
    ]
    assert tree(made.state_dir()) == ["made", "models/Org--Ours.made", "open-webui/chats.db"]
    assert not call()["changed"]


def test_hostile_weights_that_were_there_before_stay_whatever_is_asked(call: Any, host: Path) -> None:
    said = call(weights=True, _ansible_check_mode=True)
    assert tree(host) and "hf/hub/models--Org--Ours/blobs/a" in tree(host)
    result = call(weights=True)
    assert said["removed"] == [
        path for path in result["removed"] if not path.startswith(str(made.state_dir() / "models"))
    ]
    assert f"Org/Ours below {host / 'hf'}" in result["removed"] and result["freed_bytes"] == len("weights")
    assert tree(host) == ["caches/notes.txt", "hf/hub/models--Org--Theirs/blobs/a", "photos/one.jpg"]
    assert {"path": str(host / "hf"), "why": "not empty: hub"} in result["left"]
    assert tree(made.state_dir()) == ["made", "open-webui/chats.db"]


def test_a_host_that_nothing_was_put_on_is_left_alone(call: Any) -> None:
    result = call(weights=True, fabric=True)
    assert (result["changed"], result["removed"], result["left"]) == (False, [], [])
