"""Model snapshots on disk, judged on trees as huggingface_hub leaves them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import file_sums, snapshots

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
    state = snapshots.look(hub, "Org/Model", "main")
    assert state["complete"] is True
    assert state["commit"] == COMMIT
    assert state["path"].endswith(COMMIT)
    assert state["bytes"] > 30


def test_a_shard_that_the_index_names_is_missed(hub: Path) -> None:
    (snapshots.repo_folder(hub, "Org/Model") / "snapshots" / COMMIT / "two.safetensors").unlink()
    state = snapshots.look(hub, "Org/Model", COMMIT)
    assert state["complete"] is False
    assert state["missing"] == ["two.safetensors"]


def test_a_link_that_leads_nowhere_is_missed(hub: Path) -> None:
    (snapshots.repo_folder(hub, "Org/Model") / "blobs" / "one.safetensors").unlink()
    assert snapshots.look(hub, "Org/Model", "main")["missing"] == ["one.safetensors"]


@pytest.mark.parametrize("revision", ["v2", "f" * 40])
def test_a_revision_that_is_not_there(hub: Path, revision: str) -> None:
    state = snapshots.look(hub, "Org/Model", revision)
    assert state["complete"] is False
    assert state["path"] is None


def test_selected_files_need_no_weights(hub: Path) -> None:
    snapshot = snapshots.repo_folder(hub, "Org/Model") / "snapshots" / COMMIT
    for name in ("one.safetensors", "two.safetensors", "model.safetensors.index.json"):
        (snapshot / name).unlink()
    assert snapshots.look(hub, "Org/Model", "main")["complete"] is False
    assert snapshots.look(hub, "Org/Model", "main", only=["*.json"])["complete"] is True


def test_present_lists_what_is_whole(hub: Path) -> None:
    folder = snapshots.repo_folder(hub, "Org/Model")
    half = "f" * 40
    (folder / "snapshots" / half).mkdir()
    (folder / "refs" / "pr").mkdir()
    (folder / "refs" / "pr" / "1").write_text(half)
    (folder / "refs" / "torn").write_text("012")
    assert snapshots.present(hub) == ({"Org/Model": {"commits": [COMMIT], "refs": {"main": COMMIT, "pr/1": half}}}, {})
    (folder / "blobs" / "one.safetensors").unlink()
    assert snapshots.present(hub) == ({}, {})
    assert snapshots.present(hub / "nowhere") == ({}, {})


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


HUB_LIBRARY = """
import os, shutil, types
shutil.disk_usage = lambda path: types.SimpleNamespace(free=int(os.environ["FREE"]))
class HfApi:
    def __init__(self, endpoint): pass
    def model_info(self, repo, revision, files_metadata):
        files = [types.SimpleNamespace(rfilename=name, size=size) for name, size in (("a", 400), ("b", 600), ("c.txt", 50))]
        return types.SimpleNamespace(sha="main-commit", siblings=files)
def try_to_load_from_cache(repo, name, revision):
    return "/path" if name == "a" and revision == "main-commit" else None
def snapshot_download(repo, revision, allow_patterns, ignore_patterns, endpoint):
    if allow_patterns == ["model.safetensors.index.json"]:
        return os.environ["INDEX"]
    print("left:", ignore_patterns)
    return "/snapshot"
"""


@pytest.mark.parametrize(
    ("free", "only", "refused"),
    [
        # Present files and parts of files need no room.
        (550, [], ""),
        (549, [], "No space left: 0.00 GB are to come, 0.00 GB are free; nothing was fetched"),
        (0, ["a"], ""),
    ],
)
def test_room_is_looked_at_before_anything_is_fetched(tmp_path: Path, free: int, only: list[str], refused: str) -> None:
    (tmp_path / "huggingface_hub.py").write_text(HUB_LIBRARY)
    part = tmp_path / "home" / "hub" / "models--Org--Model" / "blobs" / "x.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 100)
    request = {"repo": "Org/Model", "revision": "main", "only": only, "endpoint": "", "keep": [], "copies": "x"}
    ran = subprocess.run(
        [sys.executable, "-c", snapshots.FETCH_PROGRAM, json.dumps(request)],
        env={"PYTHONPATH": str(tmp_path), "HF_HOME": str(tmp_path / "home"), "FREE": str(free)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(ran.stdout.splitlines()[0])["bytes"] == (400 if only else 1050)
    assert ran.stderr.strip() == refused and ran.returncode == bool(refused)
    assert ("/snapshot" in ran.stdout) is not bool(refused)
    if refused:
        assert "Make room below /srv" in snapshots.explain("Org/Model@main", "/srv", ran.stderr)


GPT_OSS = {
    "model.safetensors.index.json": 1,
    "model-00000-of-00001.safetensors": 65,
    "model-00000-of-00007.safetensors": 3,
    "original/model--00001.safetensors": 60,
    "original/config.json": 1,
    "metal/model.bin": 60,
    "assistant/model.safetensors": 2,
    "config.json": 1,
}


@pytest.mark.parametrize(
    ("keep", "index", "skipped"),
    [
        # The drafter in a separate folder stays, and so do small files of the other forms.
        ([], True, ["metal/model.bin", "model-00000-of-00007.safetensors", "original/model--00001.safetensors"]),
        (["metal/model.bin"], True, ["model-00000-of-00007.safetensors", "original/model--00001.safetensors"]),
        ([], False, []),
    ],
)
def test_weights_that_are_there_once_more_are_not_fetched(
    tmp_path: Path, keep: list[str], index: bool, skipped: list[str]
) -> None:
    files = [(name, size) for name, size in GPT_OSS.items() if index or not name.endswith("index.json")]
    library = HUB_LIBRARY.replace('(("a", 400), ("b", 600), ("c.txt", 50))', repr(files))
    (tmp_path / "huggingface_hub.py").write_text(library)
    shown = {"weight_map": {"a.weight": "model-00000-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(shown))
    (tmp_path / "home").mkdir()
    request = {"repo": "Org/Model", "revision": "main", "only": [], "endpoint": "", "keep": keep}
    argv = snapshots.fetch_argv("c", "image", "/srv/hf", request, None)
    ran = subprocess.run(
        [sys.executable, *argv[argv.index("-c") :]],
        env={
            "PYTHONPATH": str(tmp_path),
            "HF_HOME": str(tmp_path / "home"),
            "FREE": "1000",
            "INDEX": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    output_lines = ran.stdout.splitlines()
    assert json.loads(output_lines[0])["bytes"] == sum(size for name, size in files if name not in skipped)
    assert output_lines[1] == f"left: {skipped or None}"


def test_a_lock_has_no_copies_of_weights_and_does_not_miss_them(hub: Path, tmp_path: Path) -> None:
    snapshot, files = snapshot_of(hub)
    (snapshot / "metal").mkdir()
    (snapshot / "metal" / "model.bin").write_bytes(b"again")
    described, problems = snapshots.describe_files(snapshot, file_sums.Sums(tmp_path, "Org/Model"))
    assert problems == [] and set(described) == set(files)
    assert snapshots.unlisted(snapshot, files) == []
    # Without all that the index names, nothing counts as there twice.
    shard = next(name for name in files if name.endswith(".safetensors"))
    (snapshot / shard).unlink()
    assert snapshots.unlisted(snapshot, files) == ["metal/model.bin"]


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


def safetensors(size: int) -> bytes:
    """A file of one tensor, whole by its own header."""
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"x" * size


def snapshot_of(hub: Path) -> tuple[Path, dict[str, dict[str, Any]]]:
    snapshot = snapshots.repo_folder(hub, "Org/Model") / "snapshots" / COMMIT
    files, _problems = snapshots.describe_files(snapshot, file_sums.Sums(hub / "sums", "Org/Model"))
    return snapshot, files


def test_a_whole_snapshot_is_what_it_is_to_be(hub: Path) -> None:
    snapshot, files = snapshot_of(hub)
    assert files["one.safetensors"]["size"] == 10
    assert files["one.safetensors"]["sha256"] == hashlib.sha256(b"1" * 10).hexdigest()
    for verify in ("size", "changed", "all"):
        assert snapshots.check(snapshot, files, file_sums.Sums(hub / "sums", "Org/Model"), verify) == []


def test_truncated_flipped_and_missing_files_are_named(hub: Path) -> None:
    snapshot, files = snapshot_of(hub)
    (snapshot / "one.safetensors").resolve().write_text("1" * 9)
    (snapshot / "two.safetensors").resolve().write_text("2" * 19 + "3")
    (snapshot / "config.json").unlink()
    wrong_files = snapshots.check(snapshot, files, file_sums.Sums(hub / "sums", "Org/Model"), "changed")
    assert [(entry["file"], entry["why"].split(" in")[0]) for entry in wrong_files] == [
        ("config.json", "is missing"),
        ("one.safetensors", "has 9 bytes"),
        ("two.safetensors", f"has the sha256 {hashlib.sha256(b'2' * 19 + b'3').hexdigest()[:12]}"),
    ]
    sizes = snapshots.check(snapshot, files, file_sums.Sums(hub / "sums", "Org/Model"), "size")
    assert [entry["file"] for entry in sizes] == ["config.json", "one.safetensors"]


def test_what_was_read_is_not_read_again_until_it_is_touched(hub: Path) -> None:
    snapshot, files = snapshot_of(hub)
    first = file_sums.Sums(hub / "sums", "Org/Model")
    assert snapshots.check(snapshot, files, first, "changed") == []
    first.save()
    assert first.read_bytes > 30
    second = file_sums.Sums(hub / "sums", "Org/Model")
    assert snapshots.check(snapshot, files, second, "changed") == []
    assert second.read_bytes == 0
    # Setting the time of change back hides nothing: the kernel keeps a time that nobody can set.
    blob = (snapshot / "two.safetensors").resolve()
    stat = blob.stat()
    blob.write_text("2" * 19 + "3")
    os.utime(blob, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    wrong_files = snapshots.check(snapshot, files, file_sums.Sums(hub / "sums", "Org/Model"), "changed")
    assert [entry["file"] for entry in wrong_files] == ["two.safetensors"]


def test_sums_that_cannot_be_read_are_made_again(hub: Path) -> None:
    snapshot, files = snapshot_of(hub)
    sums = file_sums.Sums(hub / "sums", "Org/Model")
    sums.path.parent.mkdir()
    for content in ("", "[]", '{"x": 1}'):
        sums.path.write_text(content)
        new_sums = file_sums.Sums(hub / "sums", "Org/Model")
        assert snapshots.check(snapshot, files, new_sums, "changed") == []
        new_sums.save()
        assert len(json.loads(sums.path.read_text())) == 4


def test_the_hubs_names_are_believed_until_asked_to_verify(hub: Path) -> None:
    snapshot, _files = snapshot_of(hub)
    content = safetensors(100)
    blob = snapshot.parents[1] / "blobs" / hashlib.sha256(content).hexdigest()
    blob.write_bytes(content[:-1] + b"y")
    (snapshot / "three.safetensors").symlink_to(blob)
    sums = file_sums.Sums(hub / "sums", "Org/Model")
    files, problems = snapshots.describe_files(snapshot, sums)
    assert files["three.safetensors"]["sha256"] == blob.name
    assert problems == []
    _files, problems = snapshots.describe_files(snapshot, sums, verify=True)
    assert [problem.split(":")[0] for problem in problems] == ["three.safetensors is damaged"]


def test_a_truncated_weight_file_contradicts_its_header(hub: Path) -> None:
    snapshot, _files = snapshot_of(hub)
    content = safetensors(100)
    (snapshot / "three.safetensors").write_bytes(content[:-1])
    _files, problems = snapshots.describe_files(snapshot, file_sums.Sums(hub / "sums", "Org/Model"))
    assert problems == [
        f"three.safetensors has {len(content) - 1} bytes, by its own header it is one of {len(content)}"
    ]


def test_without_a_lock_a_snapshot_is_held_against_itself(hub: Path) -> None:
    snapshot, _files = snapshot_of(hub)
    content = safetensors(100)
    blob = snapshot.parents[1] / "blobs" / hashlib.sha256(content).hexdigest()
    blob.write_bytes(content)
    (snapshot / "three.safetensors").symlink_to(blob)
    sums = file_sums.Sums(hub / "sums", "Org/Model")
    assert snapshots.check_own(snapshot, sums, "all") == []
    blob.write_bytes(content[:-1] + b"y")
    assert snapshots.check_own(snapshot, sums, "changed") == []
    wrong_files = snapshots.check_own(snapshot, sums, "all")
    assert [entry["file"] for entry in wrong_files] == ["three.safetensors"]
    assert "its name at the hub" in wrong_files[0]["why"]
    blob.write_bytes(content[:-1])
    for verify in ("changed", "size", "all"):
        wrong_files = snapshots.check_own(snapshot, sums, verify)
        assert wrong_files[0]["why"] == f"has {len(content) - 1} bytes instead of the {len(content)} in its header"
    assert snapshots.check_own(snapshot, sums, "all", ["*.json"]) == []


def test_a_damaged_file_goes_with_its_blob_and_nothing_else(hub: Path, tmp_path: Path) -> None:
    snapshot, _files = snapshot_of(hub)
    blob = (snapshot / "one.safetensors").resolve()
    snapshots.drop(hub, "Org/Model", snapshot, "one.safetensors")
    assert not blob.exists()
    assert not (snapshot / "one.safetensors").is_symlink()
    assert (snapshot / "two.safetensors").exists()
    outside = tmp_path / "shared.bin"
    outside.write_text("of somebody else")
    (snapshot / "link.bin").symlink_to(outside)
    snapshots.drop(hub, "Org/Model", snapshot, "link.bin")
    assert outside.exists()
    assert not (snapshot / "link.bin").is_symlink()


def test_a_repository_that_is_there_for_its_tokenizer_needs_no_weights(tmp_path: Path) -> None:
    snapshot = snapshots.repo_folder(tmp_path, "Org/Tokens") / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").write_text("{}")
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    tokenizer_state = snapshots.look(tmp_path, "Org/Tokens", "c" * 40, snapshots.TOKENIZER_FILES)
    assert tokenizer_state["complete"] and tokenizer_state["missing"] == []
    model_state = snapshots.look(tmp_path, "Org/Tokens", "c" * 40)
    assert not model_state["complete"] and model_state["missing"] == ["model-1.safetensors"]
    # A host says which of the two it has: a plan that wants the whole of it does not take one for the other.
    assert snapshots.present(tmp_path) == ({"Org/Tokens": {"commits": [], "refs": {}, "selected": ["c" * 40]}}, {})


BROKEN_INDEXES = {
    "deep": "[" * 200_000,
    "infinite": '{"weight_map": {"a": 1e999}}',
    "no mapping": '{"weight_map": [1]}',
    "binary": "\x00\x00",
}


@pytest.mark.parametrize("content", BROKEN_INDEXES.values(), ids=BROKEN_INDEXES)
def test_one_bad_model_folder_hides_no_other(hub: Path, content: str) -> None:
    good = {"commits": [COMMIT], "refs": {"main": COMMIT}}
    folder = snapshots.repo_folder(hub, "Org/Bad") / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text("x" * 9)
    (folder / "model.safetensors.index.json").write_text(content)
    assert snapshots.present(hub) == ({"Org/Model": good}, {})
    state = snapshots.look(hub, "Org/Bad", COMMIT)
    assert not state["complete"] and state["missing"] == ["model.safetensors.index.json"]
    problems = snapshots.describe_files(Path(state["path"]), file_sums.Sums(hub / "sums", "Org/Bad"))[1]
    assert "model.safetensors.index.json is no index that can be read" in problems


@pytest.mark.parametrize(
    "header",
    ["[" * 200_000, '{"a": {"data_offsets": [0, 1e999]}}', '{"a": {"data_offsets": [0, NaN]}}', "9" * 100_000, "[]"],
)
def test_a_header_that_cannot_be_read_says_no_size(hub: Path, header: str) -> None:
    file = snapshots.repo_folder(hub, "Org/Model") / "blobs" / "one.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    state = snapshots.look(hub, "Org/Model", "main")
    assert snapshots.check_own(Path(state["path"]), file_sums.Sums(hub / "sums", "Org/Model"), "all") == []


def test_a_model_folder_that_cannot_be_walked_is_named_with_its_reason(hub: Path) -> None:
    folder = snapshots.repo_folder(hub, "Org/Deep") / "snapshots" / COMMIT
    for _level in range(100):
        folder /= "d"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    present_models, unreadable = snapshots.present(hub)
    assert set(present_models) == {"Org/Model"}
    assert list(unreadable) == ["Org/Deep"] and "folders inside each other" in unreadable["Org/Deep"]
