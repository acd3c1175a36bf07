"""Model snapshots on disk, judged on trees as huggingface_hub leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils import snapshots

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """One whole model of two shards, as links into blobs."""
    folder = snapshots.repo_folder(tmp_path, "Org/Model")
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    for name, text in {
        "config.json": "{}",
        "model.safetensors.index.json": json.dumps(index),
        "one.safetensors": "1" * 10,
        "two.safetensors": "2" * 20,
    }.items():
        blob = folder / "blobs" / name
        blob.write_text(text)
        (snapshot / name).symlink_to(blob)
    return tmp_path


def test_a_whole_snapshot(hub: Path) -> None:
    found = snapshots.look(hub, "Org/Model", "main")
    assert found["complete"] is True
    assert found["commit"] == COMMIT
    assert found["path"].endswith(COMMIT)
    assert found["bytes"] > 30


def test_a_shard_that_the_index_names_is_missed(hub: Path) -> None:
    (snapshots.repo_folder(hub, "Org/Model") / "snapshots" / COMMIT / "two.safetensors").unlink()
    found = snapshots.look(hub, "Org/Model", COMMIT)
    assert found["complete"] is False
    assert found["missing"] == ["two.safetensors"]


def test_a_link_that_leads_nowhere_is_missed(hub: Path) -> None:
    (snapshots.repo_folder(hub, "Org/Model") / "blobs" / "one.safetensors").unlink()
    assert snapshots.look(hub, "Org/Model", "main")["missing"] == ["one.safetensors"]


@pytest.mark.parametrize("revision", ["v2", "f" * 40])
def test_a_revision_that_is_not_there(hub: Path, revision: str) -> None:
    found = snapshots.look(hub, "Org/Model", revision)
    assert found["complete"] is False
    assert found["path"] is None


def test_selected_files_need_no_weights(hub: Path) -> None:
    snapshot = snapshots.repo_folder(hub, "Org/Model") / "snapshots" / COMMIT
    for name in ("one.safetensors", "two.safetensors", "model.safetensors.index.json"):
        (snapshot / name).unlink()
    assert snapshots.look(hub, "Org/Model", "main")["complete"] is False
    assert snapshots.look(hub, "Org/Model", "main", only=["*.json"])["complete"] is True


def test_present_lists_what_is_whole(hub: Path) -> None:
    assert snapshots.present(hub) == ["Org/Model"]
    (snapshots.repo_folder(hub, "Org/Model") / "blobs" / "one.safetensors").unlink()
    assert snapshots.present(hub) == []
    assert snapshots.present(hub / "nowhere") == []


def test_unfinished_files_count_as_progress(hub: Path) -> None:
    before = snapshots.fetched_bytes(hub, "Org/Model")
    (snapshots.repo_folder(hub, "Org/Model") / "blobs" / "x.incomplete").write_text("x" * 100)
    assert snapshots.fetched_bytes(hub, "Org/Model") == before + 100
    assert snapshots.fetched_bytes(hub, "Org/Other") == 0


def test_the_token_is_a_mounted_file_and_no_argument() -> None:
    argv = snapshots.fetch_argv("c", "image", "/srv", {"repo": "Org/Model"}, "/run/dgxspark/tokens/c")
    assert "type=bind,src=/run/dgxspark/tokens/c,dst=/run/dgxspark/token,readonly" in argv
    assert "HF_TOKEN_PATH=/run/dgxspark/token" in argv
    assert argv[argv.index("--entrypoint") + 2] == "image"
    compile(snapshots.FETCH_PROGRAM, "fetch", "exec")


@pytest.mark.parametrize(
    ("log", "token", "words"),
    [
        (
            "GatedRepoError: 401 Client Error",
            False,
            ("https://huggingface.co/Org/Model", "spark_hf_token_file", "and name"),
        ),
        ("GatedRepoError: 403 Client Error", True, ("https://huggingface.co/Org/Model", "belongs to", "fine-grained")),
        ("RepositoryNotFoundError: 401 Client Error", False, ("Correct model.repo", "spark_hf_token_file")),
        ("EntryNotFoundError: 404 Client Error", True, ("Correct model.repo",)),
        ("OSError: [Errno 28] No space left on device", False, ("Make room below /srv/hf",)),
        ("", False, ("it printed nothing", "Run the play again")),
    ],
)
def test_a_download_that_failed_is_explained(log: str, token: bool, words: tuple[str, ...]) -> None:
    text = snapshots.explain("Org/Model@main", "/srv/hf", log, token)
    assert text.startswith("fetching Org/Model@main failed: ")
    assert [word for word in words if word not in text] == []


def test_progress_says_bytes_rate_and_time_left() -> None:
    assert snapshots.progress(2_000_000_000, 8_000_000_000, 10) == "2.00 of 8.00 GB, 200 MB/s, 0 min 30 s left"
    assert snapshots.progress(0, None, 0) == "0.00 GB"
    assert snapshots.progress(5_000_000_000, 8_000_000_000, 10, before=5_000_000_000) == "5.00 of 8.00 GB"
