# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Links and pipes below folders that others can write to, where root reads, writes and removes: nothing outside is read or changed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from module_calls import call_module
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._agent import figures
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import distribution, file_sums, snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import cleanup
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import beneath
from ansible_collections.dgxspark.vllm.plugins.modules import bundle, model_folder, model_snapshot

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "hub/models--Org--Model"
SECRET = b"root:$6$secret:19000:0:99999:7:::\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Host:
    """HF_HOME, and files outside of it."""

    def __init__(self, folder: Path) -> None:
        self.home, self.outside, self.staging = folder / "hf", folder / "etc", folder / "staging"
        self.sums = folder / "sums"
        (self.outside / "cron.d").mkdir(parents=True)
        (self.outside / "shadow").write_bytes(SECRET)
        (self.outside / "shadow").chmod(0o600)
        self.home.mkdir()
        self.before = self.state()

    def state(self) -> list[Any]:
        """All that is outside, with modes, owners and contents."""
        result = []
        for path in [self.outside, *sorted(self.outside.rglob("*"))]:
            info = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            result.append((str(path), info.st_mode, info.st_uid, info.st_mtime_ns, content))
        return result

    def link(self, name: str, target: str) -> None:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self.outside / target if target else self.outside)

    def whole(self) -> dict[str, dict[str, Any]]:
        """Lay a model as the hub library does; returns its files as a lock file has them."""
        files = {}
        for name, content in {"config.json": b"{}", "model.safetensors": b"w" * 1000}.items():
            blob = self.home / REPO / "blobs" / sha256(content)
            blob.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(content)
            link = self.home / REPO / "snapshots" / COMMIT / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"../../blobs/{blob.name}")
            files[name] = {"size": len(content), "sha256": sha256(content)}
        (self.home / REPO / "refs").mkdir()
        (self.home / REPO / "refs/main").write_text(COMMIT)
        return files

    @property
    def snapshot(self) -> Path:
        return self.home / REPO / "snapshots" / COMMIT


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    laid_out = Host(tmp_path)
    yield laid_out
    assert laid_out.state() == laid_out.before


@pytest.fixture
def call(capsys: Any) -> Any:
    def call(module: Any, **args: Any) -> dict[str, Any]:
        return call_module(module, args, capsys)

    return call


# Places where an engine, or the owner of HF_HOME, may put a link before root comes.
WRITES = ["local", "local/ours", "local/ours/sub"]
MODEL_WRITES = ["hub", REPO, f"{REPO}/blobs", f"{REPO}/snapshots", f"{REPO}/snapshots/{COMMIT}", f"{REPO}/refs"]


@pytest.mark.parametrize("name", WRITES)
def test_a_folder_of_the_controller_is_placed_through_no_link(host: Host, call: Any, name: str) -> None:
    host.link(name, "cron.d")
    files = {"sub/x": {"size": 4, "mtime": 5, "sha256": sha256(b"evil"), "part": "p"}}
    arguments = {
        "source": "s",
        "path": str(host.home / "local/ours"),
        "hf_home": str(host.home),
        "staging": str(host.staging),
    }
    ready = call(model_folder, step="stage", files=files, **arguments)
    Path(ready["folder"], "p").write_bytes(b"evil")
    result = call(model_folder, step="place", files=files, **arguments)
    assert (
        result["failed"]
        and f"{host.home / name} is a link, or no folder" in result["msg"]
        and "mount --bind" in result["msg"]
    )
    assert call(model_folder, step="look", files=files, **arguments)["failed"]


def test_what_waits_lies_where_root_alone_can_change_it(host: Host, call: Any) -> None:
    """A link next to the model's folder is not used as the waiting place of files."""
    host.link("local/.ours.coming", "cron.d")
    files = {"x": {"size": 4, "mtime": 5, "sha256": sha256(b"evil"), "part": "p"}}
    arguments = {
        "source": "s",
        "path": str(host.home / "local/ours"),
        "hf_home": str(host.home),
        "staging": str(host.staging),
    }
    ready = call(model_folder, step="stage", files=files, **arguments)
    assert Path(ready["folder"]).parent == host.staging
    Path(ready["folder"], "p").write_bytes(b"evil")
    assert call(model_folder, step="place", files=files, **arguments)["bad"] == []
    assert (host.home / "local/ours/x").read_bytes() == b"evil" and not Path(ready["folder"]).exists()


def test_a_file_that_waits_is_read_through_no_link(host: Host, call: Any) -> None:
    files = {"x": {"size": len(SECRET), "mtime": 5, "sha256": sha256(SECRET), "part": "p"}}
    arguments = {
        "source": "s",
        "path": str(host.home / "local/ours"),
        "hf_home": str(host.home),
        "staging": str(host.staging),
    }
    ready = call(model_folder, step="stage", files=files, **arguments)
    Path(ready["folder"], "p").symlink_to(host.outside / "shadow")
    assert "is a link, or no regular file" in call(model_folder, step="place", files=files, **arguments)["msg"]


@pytest.mark.parametrize("name", MODEL_WRITES)
def test_a_model_of_a_bundle_is_placed_through_no_link(host: Host, call: Any, name: str) -> None:
    host.link(name, "cron.d")
    content = b"weights"
    model = {
        "repo": "Org/Model",
        "commit": COMMIT,
        "revisions": ["main"],
        "files": {"x": {"size": 7, "sha256": sha256(content)}},
    }
    arguments = {
        "action": "weights",
        "dir": "/x",
        "hf_home": str(host.home),
        "staging": str(host.staging),
        "sums_dir": str(host.sums),
    }
    result = call(bundle, step="look", item={"models": [model]}, **arguments)
    if not result.get("failed"):
        Path(result["models"][0]["folder"], sha256(content)).write_bytes(content)
        result = call(bundle, step="place", item={"model": model, "names": ["x"], "last": True}, **arguments)
    assert result.get("failed") and "is a link, or no folder" in result["msg"], result


def test_a_name_of_a_revision_is_not_written_through_a_link(host: Host, call: Any) -> None:
    host.link(f"{REPO}/refs/main", "shadow")
    content = b"weights"
    model = {
        "repo": "Org/Model",
        "commit": COMMIT,
        "revisions": ["main"],
        "files": {"x": {"size": 7, "sha256": sha256(content)}},
    }
    arguments = {
        "action": "weights",
        "dir": "/x",
        "hf_home": str(host.home),
        "staging": str(host.staging),
        "sums_dir": str(host.sums),
    }
    looked = call(bundle, step="look", item={"models": [model]}, **arguments)
    Path(looked["models"][0]["folder"], sha256(content)).write_bytes(content)
    assert call(bundle, step="place", item={"model": model, "names": ["x"], "last": True}, **arguments)["bad"] == []
    ref = host.home / REPO / "refs/main"
    assert not ref.is_symlink() and ref.read_text() == COMMIT
    assert snapshots.look(host.home, "Org/Model", "main", ["*"])["complete"]


@pytest.mark.parametrize("name", MODEL_WRITES)
def test_damaged_files_are_taken_away_through_no_link(host: Host, name: str) -> None:
    (host.outside / "snapshots" / COMMIT).mkdir(parents=True)
    (host.outside / "snapshots" / COMMIT / "x").write_text("of root")
    (host.outside / "x").write_text("of root")
    host.before = host.state()
    host.link(name, "")
    with contextlib.suppress(OSError):
        snapshots.drop(host.home, "Org/Model", host.snapshot, "x")


@pytest.mark.parametrize("target", ["shadow", ""])
def test_a_link_out_of_a_snapshot_is_neither_read_nor_sent(host: Host, target: str) -> None:
    files = host.whole()
    (host.snapshot / "config.json").unlink()
    host.link(f"{REPO}/snapshots/{COMMIT}/config.json", target)
    sums = file_sums.Sums(host.sums, "Org/Model")
    message, problems = snapshots.describe_files(host.snapshot, sums)
    assert list(message) == ["model.safetensors"] and problems == ["config.json leads out of the model's folder"]
    assert snapshots.check(host.snapshot, files, sums, "all") == [
        {"file": "config.json", "why": "leads out of the model's folder"}
    ]
    assert snapshots.check_own(host.snapshot, sums, "all") == [
        {"file": "config.json", "why": "leads out of the model's folder"}
    ]
    listed = distribution.model_files(host.home, "Org/Model", COMMIT)
    assert [entry["size"] for entry in listed if entry["path"] == "config.json"] == [None]
    snapshots.drop(host.home, "Org/Model", host.snapshot, "config.json")
    assert not (host.snapshot / "config.json").is_symlink()


def test_a_revision_that_is_a_link_or_a_pipe_says_nothing(host: Host) -> None:
    host.whole()
    (host.outside / "commit").write_text(COMMIT)
    host.before = host.state()
    host.link(f"{REPO}/refs/link", "commit")
    os.mkfifo(host.home / REPO / "refs/pipe")
    (host.home / REPO / "refs/huge").write_bytes(b"a" * 100_000)
    began = time.monotonic()
    for name in ("link", "pipe", "huge"):
        assert snapshots.commit_of(host.home, "Org/Model", name) is None
    assert snapshots.present(host.home) == ({"Org/Model": {"commits": [COMMIT], "refs": {"main": COMMIT}}}, {})
    assert cleanup.read_models(host.home)[0]["refs"] == {"main": COMMIT}
    assert time.monotonic() - began < 60


def test_the_link_to_a_snapshot_is_made_in_no_other_folder(
    host: Host, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """snapshots -> root: neither its owner nor its mode changes, and nothing is put into it."""
    play(monkeypatch, lambda argv, **options: (1, "", ""))
    host.whole()
    arguments = {
        "repo": "Org/Model",
        "image": "x",
        "hf_home": str(host.home),
        "sums_dir": str(host.sums),
        "link": "snapshots/Org--Model@main",
    }
    result = call(model_snapshot, **arguments)
    assert result["changed"] and result["link"] == "snapshots/Org--Model@main"
    link = host.home / "snapshots/Org--Model@main"
    assert str(link.readlink()) == f"../{REPO}/snapshots/{COMMIT}"
    assert not call(model_snapshot, **arguments)["changed"]
    link.unlink()
    link.parent.rmdir()
    host.link("snapshots", "")
    assert "is a link, or no folder" in call(model_snapshot, **arguments)["msg"]


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "chat_template.jinja", "modeling_evil.py", "sub/adapter_model.safetensors"]
)
def test_files_that_the_lock_does_not_list_are_refused_and_left(
    host: Host, call: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    play(monkeypatch, lambda argv, **options: pytest.fail(f"ran {argv}"))
    files = host.whole()
    stray = host.snapshot / name
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("evil")
    (host.snapshot / "README.md").write_text("of the repository")
    arguments = {
        "repo": "Org/Model",
        "image": "x",
        "hf_home": str(host.home),
        "sums_dir": str(host.sums),
        "files": files,
    }
    result = call(model_snapshot, **arguments)
    assert (
        result["failed"]
        and f"does not list, and that an engine would read: {name}." in result["msg"]
        and "lock again" in result["msg"]
    )
    assert stray.exists()
    stray.unlink()
    assert call(model_snapshot, **arguments)["complete"]


def test_a_change_with_the_old_time_is_found(host: Host, call: Any) -> None:
    files = host.whole()
    arguments = {
        "repo": "Org/Model",
        "image": "x",
        "hf_home": str(host.home),
        "sums_dir": str(host.sums),
        "files": files,
    }
    assert call(model_snapshot, **arguments)["complete"]
    blob = host.home / REPO / "blobs" / sha256(b"w" * 1000)
    before = blob.stat()
    with blob.open("r+b") as handle:
        handle.write(b"evil")
    os.utime(blob, ns=(before.st_atime_ns, before.st_mtime_ns))
    problems = snapshots.check(host.snapshot, files, file_sums.Sums(host.sums, "Org/Model"), "changed")
    assert [entry["file"] for entry in problems] == ["model.safetensors"]


# --- the helper itself


@pytest.mark.parametrize("relative", ["../x", "/etc/x", "a/../../x", "a\0b", "a/b/.."])
def test_paths_that_do_not_stay_below(host: Host, relative: str) -> None:
    for way in (beneath.read, beneath.write):
        with pytest.raises(beneath.Refused):
            way(host.home, relative, b"x" if way is beneath.write else 5)


def test_removal_goes_through_no_link(host: Host) -> None:
    (host.home / "cache/service").mkdir(parents=True)
    host.link("cache/service/link", "")
    host.link("other", "")
    beneath.remove_tree(host.home, "cache/service")
    beneath.remove_tree(host.home, "other")
    with pytest.raises(beneath.Refused):
        host.link("again", "")
        beneath.remove_tree(host.home, "again/cron.d")
    assert sorted(path.name for path in host.home.iterdir()) == ["again", "cache"]


def test_a_folder_of_ones_own_is_nobody_elses(host: Host) -> None:
    (host.home / "mine").mkdir(mode=0o777)
    with beneath.own_folder(host.home, "mine") as at:
        assert os.fstat(at).st_mode & 0o777 == 0o700
    host.link("theirs", "")
    with pytest.raises(beneath.Refused), beneath.own_folder(host.home, "theirs"):
        pass
    if os.geteuid() == 0:
        (host.home / "strange").mkdir()
        os.chown(host.home / "strange", 12345, 12345)
        with pytest.raises(beneath.Refused, match="belongs to another user"), beneath.own_folder(host.home, "strange"):
            pass


def test_the_collectors_page_is_written_through_no_link(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.link("dgxspark.prom", "shadow")
    host.link(f".dgxspark.prom.{os.getpid()}", "shadow")
    figures.write(host.home, "page\n")
    assert not (host.home / "dgxspark.prom").is_symlink() and (host.home / "dgxspark.prom").read_text() == "page\n"
