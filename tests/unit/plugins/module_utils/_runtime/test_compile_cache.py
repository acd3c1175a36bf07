"""Caches of another image are removed before its first start; downloads stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import compile_cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv("DGXSPARK_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state" / "compile_caches").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "weights").write_text("")
    cache = tmp_path / "cache"
    for name in ("vllm", "triton", *compile_cache.KEPT):
        (cache / name).mkdir(parents=True)
    (cache / "link").symlink_to(tmp_path / "elsewhere")
    return cache


def test_only_another_image_empties_the_folder_and_downloads_stay(folder: Path) -> None:
    assert compile_cache.of_image("heavy", folder, "sha256:a") == []  # nobody knows who filled it
    assert compile_cache.of_image("heavy", folder, "sha256:a") == []
    assert compile_cache.of_image("heavy", folder, "sha256:b") == ["link", "triton", "vllm"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(compile_cache.KEPT)
    assert (folder.parent / "elsewhere" / "weights").is_file()
    assert compile_cache.of_image("heavy", folder, "sha256:b") == []


def test_a_folder_that_is_a_link_is_left_alone(folder: Path) -> None:
    link = folder.parent / "linked"
    link.symlink_to(folder)
    for image in ("sha256:a", "sha256:b"):
        assert compile_cache.of_image("heavy", link, image) == []
    assert (folder / "vllm").is_dir()
