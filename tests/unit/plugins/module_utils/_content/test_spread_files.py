# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a snapshot: digests, the record of verified files, and names from other hosts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from spread_fixture import COMMIT, REPO, lay

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import distribution, file_sums, spread_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import beneath, made


@pytest.fixture(autouse=True)
def _records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread_files, "SUMS", tmp_path / "sums")


def test_the_hub_names_files_by_their_digests(tmp_path: Path) -> None:
    for large in (True, False):
        blob = lay(tmp_path, f"file-{large}", b"content", large)
        named = spread_files.named_digest(f"{REPO}/blobs/{blob.name}")
        with blob.open("rb") as handle:
            assert named in spread_files.digests(handle) and named is not None


def test_git_says_the_same_of_a_small_file(tmp_path: Path) -> None:
    blob = lay(tmp_path, "config.json", b"{}\n", large=False)
    git = subprocess.run(["git", "hash-object", blob], capture_output=True, text=True, check=True).stdout.strip()
    assert git == blob.name


@pytest.mark.parametrize("store", [f"{REPO}/blobs/etag-1", f"{REPO}/blobs/abc", f"{REPO}/snapshots/x/" + "a" * 64])
def test_other_names_say_nothing(store: str) -> None:
    assert spread_files.named_digest(store) is None


def test_files_are_listed_with_where_their_bytes_are(tmp_path: Path) -> None:
    blob = lay(tmp_path / "hub", "model.safetensors", b"weights")
    nested = lay(tmp_path / "hub", "nested/tokenizer.json", b"{}", large=False)
    plain = tmp_path / "hub" / REPO / "snapshots" / COMMIT / "plain.txt"
    plain.write_text("text")
    listed = {entry["path"]: entry for entry in distribution.model_files(tmp_path, "Org/Model", COMMIT)}
    assert listed["model.safetensors"]["store"] == f"{REPO}/blobs/{blob.name}"
    assert listed["nested/tokenizer.json"]["link"] == f"../../../blobs/{nested.name}"
    assert listed["plain.txt"]["store"] == f"{REPO}/snapshots/{COMMIT}/plain.txt" and listed["plain.txt"]["link"] == ""
    assert [entry["size"] for entry in listed.values()] == [7, 2, 4]
    assert [entry["path"] for entry in distribution.model_files(tmp_path, "Org/Model", COMMIT, ["*.txt"])] == [
        "plain.txt"
    ]


@pytest.mark.parametrize("kind", ["file", "blob", "folder"])
def test_what_a_link_out_of_the_models_folder_leads_to_is_not_sent(tmp_path: Path, kind: str) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/elsewhere").write_text("bytes")
    link = tmp_path / "hub" / REPO / "snapshots" / COMMIT / "file"
    link.parent.mkdir(parents=True)
    if kind == "file":
        link.symlink_to("../../../elsewhere")
    elif kind == "blob":
        link.symlink_to("../../blobs/x")
        (tmp_path / "hub" / REPO / "blobs").mkdir()
        (tmp_path / "hub" / REPO / "blobs/x").symlink_to("../../elsewhere")
    else:
        link.symlink_to("../../blobs/elsewhere")
        (tmp_path / "hub" / REPO / "blobs").symlink_to("..")
    (entry,) = distribution.model_files(tmp_path, "Org/Model", COMMIT)
    assert (entry["store"], entry["link"], entry["size"]) == (f"{REPO}/snapshots/{COMMIT}/file", "", None)


def test_what_was_verified_is_known_until_the_file_changes(tmp_path: Path) -> None:
    blob = lay(tmp_path / "hub", "model.safetensors", b"weights")

    def states() -> str:
        return str(distribution.model_files(tmp_path, "Org/Model", COMMIT)[0]["known"])

    assert states() == "no"
    mark = beneath.stat_key(blob.stat())
    sums = spread_files.sums_of(REPO)
    sums.note(mark, str(blob), blob.name)
    sums.save()
    assert states() == "yes"
    blob.write_bytes(b"weightz")
    os.utime(blob, ns=(mark[1], mark[1]))  # restored; the time of the change itself cannot be set
    assert states() == "changed"


@pytest.mark.parametrize("link", ["/etc/passwd", "../../../other/blobs/x", "../../../../x", "../.."])
def test_another_host_cannot_make_links_elsewhere(link: str) -> None:
    with pytest.raises(spread_files.Failed):
        spread_files.safe_link(f"snapshots/{COMMIT}/file", link)
    assert spread_files.safe_link(f"snapshots/{COMMIT}/a/file", "../../../blobs/x")


def test_the_start_of_a_truncated_file_is_kept_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    store = f"{REPO}/blobs/x"
    for content, size, is_staged in ((b"start", 10, True), (b"wrong", 5, False), (b"unknown", None, False)):
        path, staged = tmp_path / "hub" / store, tmp_path / spread_files.STAGING / store
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        staged.unlink(missing_ok=True)
        spread_files.put_aside(tmp_path, store, size, REPO)
        assert not path.exists() and staged.exists() is is_staged
    # Engines that have loaded it are started anew by the mark that the role models leaves, too.
    assert file_sums.repair_stamp(tmp_path / "sums", "Org/Model").exists()


def test_images_are_told_apart_by_what_they_are_made_of() -> None:
    item = {"Id": "sha256:1", "Size": 5, "RootFS": {"Layers": ["sha256:a"]}, "Config": {"Env": ["A=1"]}, "Os": "linux"}
    first_image = spread_files.describe(item)
    assert (first_image["id"], first_image["layers"], first_image["size"]) == ("sha256:1", 1, 5)
    assert spread_files.same_image(first_image, spread_files.describe({**item, "Id": "sha256:2"}))
    assert not spread_files.same_image(
        first_image, spread_files.describe({**item, "Id": "sha256:2", "Config": {"Env": []}})
    )
    assert not spread_files.same_image(first_image, None)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another account")
def test_files_that_are_handed_over_are_not_read_again(tmp_path: Path) -> None:
    """The owner of the folder of weights becomes theirs after they were verified, which changes the time of their last change."""
    hub = tmp_path / "hub"
    blob, strange = lay(hub, "model.safetensors", b"weights"), lay(hub, "other.safetensors", b"other weights")
    store = f"{REPO}/blobs/{blob.name}"
    sums = spread_files.sums_of(REPO)
    sums.note(beneath.stat_key(blob.stat()), str(blob), blob.name)
    sums.save()

    def states() -> dict[str, str]:
        return {
            str(file["path"]): str(file["known"]) for file in distribution.model_files(tmp_path, "Org/Model", COMMIT)
        }

    os.chown(tmp_path, 1234, 1234)
    handed_over = made.hand_over(tmp_path, [f"hub/{REPO}", f"hub/{store}", f"hub/{REPO}/blobs/{strange.name}"])
    assert set(handed_over) == {f"hub/{store}", f"hub/{REPO}/blobs/{strange.name}"}
    assert blob.stat().st_uid == 1234 and states()["model.safetensors"] == "changed"
    sums.follow({str(tmp_path / path): marks for path, marks in handed_over.items()})
    sums.save()
    assert states() == {"model.safetensors": "yes", "other.safetensors": "no"}
    with blob.open("rb") as handle:
        assert sums.digest_of(handle, str(blob)) == blob.name and sums.read_bytes == 0
    assert made.hand_over(tmp_path, [f"hub/{store}"]) == {}
