# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Property of the owner: refused places, folders that engines cannot read, and removal by name."""

from __future__ import annotations

import os
import shutil
import stat
import struct
from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import engine_access, host_paths, made
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import preflight
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.plan import make_plan

THEM = 12345  # a user id that is nobody's here
COMMIT = "c" * 40
root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another account")


# --- places


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/",
            "//",
            "/etc",
            "/home",
            "/srv",
            "/data",
            "/etc/dgxspark",
            "/home/me",
            "/home/me/",
            "relative/path",
            "",
            "~",
            "./x/y",
        ),
        *(
            "/srv/../etc",
            "/srv/x/..",
            "/srv/./x",
            "/usr/lib",
            "/usr/share/models",
            "/var/lib",
            "/var/cache",
            "/var/lib/docker/x",
        ),
        *("/proc/1", "/dev/shm", "/run/x", "/boot/efi", "/var/log/x", "/root"),
    ],
)
def test_hostile_places_for_weights_and_caches_are_refused(path: str) -> None:
    assert host_paths.problem(path)
    for name in ("spark_hf_home", "spark_cache_dir"):
        with pytest.raises(InventoryError) as caught:
            make_plan({"spark-1": {"vars": {name: path}}}, {})
        assert any(f"host spark-1: '{name}' is '{path}'" in message for message in caught.value.messages), path


@pytest.mark.parametrize(
    "path",
    [
        "/srv/huggingface",
        "/home/me/.cache/huggingface",
        "/var/cache/dgxspark",
        "/mnt/nvme/hf",
        "/var/lib/x",
        "/root/.cache/hf",
        "/tmp/a",
    ],
)
def test_places_of_their_own_are_taken(path: str) -> None:
    assert host_paths.problem(path) == ""


def test_one_folder_for_both_is_refused() -> None:
    with pytest.raises(InventoryError, match="are both '/data/x'"):
        make_plan({"spark-1": {"vars": {"spark_hf_home": "/data/x", "spark_cache_dir": "/data/x/"}}}, {})


# --- who may read


def lay(home: Path, repo: str = "Org/Model") -> Path:
    """Put a model there as the hub library does."""
    folder = home / "hub" / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(COMMIT)
    (folder / "blobs/aaa").write_text("weights")
    (snapshot / "model.safetensors").symlink_to("../../blobs/aaa")
    return folder


def give(top: Path, owner: int = THEM) -> None:
    for base, names, files in os.walk(top):
        for path in (Path(base), *(Path(base, name) for name in (*names, *files))):
            os.chown(path, owner, owner, follow_symlinks=False)


@root
def test_a_closed_folder_of_somebody_is_an_error_with_the_command(tmp_path: Path) -> None:
    home = tmp_path / "home"
    folder = lay(home)
    give(home)
    # The hub's client keeps its own listings there.
    listing = folder / "trees" / "c.json"
    listing.parent.mkdir()
    listing.write_text("{}")
    listing.chmod(0o600)
    give(home)
    assert engine_access.look(home)["closed"] == {}
    (folder / "blobs/aaa").chmod(0o600)
    seen = engine_access.look(home)
    assert set(seen["closed"]) == {"Org/Model"} and seen["owner"] == str(THEM)
    home.chmod(0o700)
    seen = engine_access.look(home)
    assert seen["closed"][""] == [str(home)] and seen["mode"] == "0700"
    findings = preflight.check_host({"hf_home": seen}, [], {"hf_home": str(home), "repos": ["Org/Model"]})
    (message,) = [finding for finding in findings if finding.rule == "host.weights_closed"]
    assert (message.severity, message.basis) == ("error", "measured") and f"setfacl -R -m u:0:rX {home}" in message.fix
    # A closed model that nothing serves is no matter.
    home.chmod(0o755)
    other = preflight.check_host(
        {"hf_home": engine_access.look(home)}, [], {"hf_home": str(home), "repos": ["Org/Other"]}
    )
    assert not [finding for finding in other if finding.rule == "host.weights_closed"]


def acl(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@root
@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([(1, 7, 0), (2, 5, 0), (4, 0, 0), (16, 5, 0), (32, 0, 0)], True),
        ([(1, 7, 0), (2, 5, 0), (4, 0, 0), (16, 4, 0), (32, 7, 0)], False),  # the mask takes it away
        ([(1, 7, 0), (2, 5, 99), (4, 0, 0), (16, 5, 0), (32, 0, 0)], False),  # somebody else's
        ([(1, 7, 0), (4, 0, 0), (8, 5, 0), (16, 5, 0), (32, 0, 0)], True),  # a group of root
        ([(1, 7, 0), (4, 0, 0), (8, 5, 7), (16, 5, 0), (32, 5, 0)], True),
    ],
)
def test_an_acl_for_root_is_read_as_the_kernel_reads_it(
    entries: list[tuple[int, int, int]], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(tmp_path, THEM, THEM)
    tmp_path.chmod(0o750)
    monkeypatch.setattr(os, "getxattr", lambda path, name: acl(*entries))
    assert engine_access.readable(tmp_path) is expected
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"\x09\x00\x00\x00")
    assert engine_access.readable(tmp_path) is False


# --- made files, and files from before


@root
def test_what_a_download_makes_is_the_owners_and_what_was_there_stays_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    folder = lay(home)
    give(home)
    made.begin_fetch(home, "Org/Model")
    (folder / "blobs/bbb").write_text("more weights")
    made.begin_fetch(home, "Org/Model")  # a second start of a download that was cut off
    (folder / "snapshots" / ("d" * 40)).mkdir()
    (folder / "snapshots" / ("d" * 40) / "b.safetensors").symlink_to("../../blobs/bbb")
    new = made.end_fetch(home, "Org/Model")
    base = "hub/models--Org--Model"
    assert new == [f"{base}/blobs/bbb", f"{base}/snapshots/{'d' * 40}", f"{base}/snapshots/{'d' * 40}/b.safetensors"]
    assert {os.lstat(home / name).st_uid for name in new} == {THEM}
    removed, remaining, size = made.remove_made("Org--Model")
    assert sorted(removed) == [str(home / name) for name in new] and remaining == [] and size > 10
    assert (folder / "blobs/aaa").read_text() == "weights" and snapshots.look(home, "Org/Model", "main")["complete"]
    assert made.noted_models() == []


def test_what_nobody_noted_is_not_removed(tmp_path: Path) -> None:
    lay(tmp_path)
    assert made.remove_made("Org--Model") == ([], [], 0)
    assert (tmp_path / "hub/models--Org--Model/blobs/aaa").exists()
    assert made.remove_folder(str(tmp_path)) == (False, "this collection did not make it")


def test_a_check_says_the_same_and_removes_nothing(tmp_path: Path) -> None:
    made.begin_fetch(tmp_path, "Org/Model")
    folder = lay(tmp_path)
    made.end_fetch(tmp_path, "Org/Model")
    (folder / "blobs/theirs").write_text("x")
    removed = made.remove_made("Org--Model", check=True)
    assert (folder / "blobs/aaa").exists()
    assert made.remove_made("Org--Model") == removed
    assert [Path(entry["path"]).name for entry in removed[1]] == ["blobs", "models--Org--Model", "hub"]
    assert [path.name for path in folder.rglob("*")] == ["blobs", "theirs"]
    (folder / "blobs/theirs").unlink()
    assert str(tmp_path / "hub") in made.remove_made("Org--Model")[0], "the next time finishes it"


@root
def test_hostile_links_below_a_folder_of_weights_lead_root_nowhere(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "aaa").write_text("theirs")
    (victim / "model.safetensors").write_text("theirs")
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, THEM, THEM)
    made.begin_fetch(home, "Org/Model")
    folder = lay(home)
    # Between the download and its end the owner swaps the files of root.
    shutil.rmtree(folder / "blobs")
    (folder / "blobs").symlink_to(victim)
    os.link(victim / "aaa", folder / "hard")
    made.end_fetch(home, "Org/Model")
    assert {path.lstat().st_uid for path in (victim, *victim.iterdir())} == {0}
    shutil.rmtree(folder / "snapshots" / COMMIT)
    (folder / "snapshots" / COMMIT).symlink_to(victim)
    made.remove_made("Org--Model")
    assert sorted(path.name for path in victim.iterdir()) == ["aaa", "model.safetensors"]
    for name in ("../victim/aaa", "/etc/passwd", "hub//x", "hub/../../victim/aaa"):
        made._write(made._record("Evil"), {"homes": {str(home): [name]}})
        assert made.remove_made("Evil")[0] == []
    assert (victim / "aaa").read_text() == "theirs"


def test_folders_go_with_what_was_made_for_them_and_shared_ones_when_they_are_empty(tmp_path: Path) -> None:
    shared, cache = tmp_path / "data/caches", tmp_path / "data/caches/heavy"
    made.make_folder(shared, "shared")
    made.make_folder(cache, "cache")
    (cache / "vllm").mkdir()
    theirs = shared / "theirs"
    theirs.mkdir()
    assert made.folders() == {str(tmp_path / "data"): "shared", str(shared): "shared", str(cache): "cache"}
    assert made.remove_folder(str(cache)) == (True, "") and not cache.exists()
    assert made.remove_folder(str(shared)) == (False, "not empty: theirs")
    theirs.rmdir()
    assert made.remove_folder(str(shared)) == (True, "")
    assert made.remove_folder(str(tmp_path / "data")) == (True, "") and made.folders() == {}


def test_hostile_a_folder_that_was_swapped_for_a_link_is_not_removed(tmp_path: Path) -> None:
    cache, victim = tmp_path / "caches/heavy", tmp_path / "victim"
    made.make_folder(cache, "cache")
    victim.mkdir()
    (victim / "theirs").write_text("x")
    cache.rmdir()
    cache.symlink_to(victim)
    assert made.remove_folder(str(cache))[0] is False and (victim / "theirs").exists()


def test_a_folder_that_was_there_is_not_ours(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    made.make_folder(theirs / "ours", "cache")
    assert not made.is_own(str(theirs)) and made.is_own(str(theirs / "ours")) and made.is_own("/etc/dgxspark/x")
    assert not made.is_own("/etc/dgxspark-of-mine")


def test_damaged_notes_make_nothing_ours(tmp_path: Path) -> None:
    for text in ("", "[]", '{"folders": []}', '{"folders": 7, "images": {}}'):
        made.state_dir().mkdir(parents=True, exist_ok=True)
        (made.state_dir() / "made").write_text(text)
        assert made.folders() == {} and made.images() == set()
    assert made.note_images(["sha256:1"]) and not made.note_images(["sha256:1"])
    assert stat.S_IMODE((made.state_dir() / "made").stat().st_mode) == 0o644
    made.forget_images(["sha256:1"])
    assert made.images() == set()
