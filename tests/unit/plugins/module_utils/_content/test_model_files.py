# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The section model_files of spark_info, on a separate hub cache."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from module_calls import call_module

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots
from ansible_collections.dgxspark.vllm.plugins.modules import spark_info

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def call(tmp_path: Path, capsys: Any) -> Any:
    def call(*models: dict[str, Any], **args: Any) -> dict[str, Any]:
        settings = {"gather": ["model_files"], "models": list(models), "hf_home": str(tmp_path), **args}
        settings["state_dir"] = str(tmp_path / "state")
        return call_module(spark_info, settings, capsys)

    return call


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    folder = snapshots.repo_folder(tmp_path, "Org/Model")
    made = folder / "snapshots" / COMMIT
    made.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_text("weights")
    return made


def test_commit_sizes_and_sums(call: Any, snapshot: Path, tmp_path: Path) -> None:
    result = call({"repo": "Org/Model"})
    models = result["model_files"][0]
    assert result["changed"] is False
    assert (models["revision"], models["commit"], models["path"]) == ("main", COMMIT, str(snapshot))
    assert models["files"]["config.json"] == {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest(), "blob": ""}
    assert models["problems"] == []
    assert (tmp_path / "state" / "models" / "Org--Model.json").exists()


def test_a_check_run_keeps_nothing(call: Any, snapshot: Path, tmp_path: Path) -> None:
    assert call({"repo": "Org/Model"}, _ansible_check_mode=True)["model_files"][0]["commit"] == COMMIT
    assert not (tmp_path / "state").exists()


def test_what_is_not_there_has_no_commit(call: Any, snapshot: Path) -> None:
    models = call({"repo": "Org/Other"}, {"repo": "Org/Model", "revision": "v2"})["model_files"]
    assert [(entry["repo"], entry["commit"], entry["files"]) for entry in models] == [
        ("Org/Other", None, {}), ("Org/Model", None, {}),
    ]  # fmt: skip


def test_a_host_that_was_deployed_by_commit_knows_no_main(call: Any, snapshot: Path) -> None:
    (snapshot.parents[1] / "refs" / "main").unlink()
    assert call({"repo": "Org/Model"})["model_files"][0]["commit"] is None
    assert call({"repo": "Org/Model", "locked": COMMIT})["model_files"][0]["commit"] == COMMIT


def test_only_what_was_asked_for(call: Any, snapshot: Path) -> None:
    assert list(call({"repo": "Org/Model", "only": ["*.json"]})["model_files"][0]["files"]) == ["config.json"]


def test_an_entry_without_repo_is_refused(call: Any) -> None:
    assert "needs 'repo'" in call({"revision": "main"})["msg"]
