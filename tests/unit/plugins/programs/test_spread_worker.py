# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker of the role spread: receive, verify, put in place. rsync is played by a function that can send wrong bytes."""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spread_fixture import COMMIT, EVIL, REPO, lay, saved

REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(REPOSITORY / "roles/spread/files"))
    monkeypatch.setenv("SPREAD_RUN_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    for name in ("spread_worker",):
        sys.modules.pop(name, None)
    loaded = importlib.import_module("spread_worker")
    monkeypatch.setattr(loaded.spread_files, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(loaded.spread_files, "SUMS", tmp_path / "sums")
    yield loaded
    for name in ("spread_worker",):
        sys.modules.pop(name, None)


class Rsync:
    """Copies the files that it is told to, from where a part of them is; C(bend) may change what it sends."""

    def __init__(self, hub: Path) -> None:
        self.hub = hub
        self.sent = 0
        self.calls: list[list[str]] = []
        self.bend: Callable[[str, bytes], bytes] = lambda store, content: content
        self.refuse = b""

    def __call__(self, argv: list[str], **_options: Any) -> subprocess.CompletedProcess[bytes]:
        self.calls.append(argv)
        assert argv[0] == "rsync" and argv[-2].endswith("::hub/") and "--append" in argv
        if self.refuse:
            return subprocess.CompletedProcess(argv, 12, b"", self.refuse)
        names = next(word for word in argv if word.startswith("--files-from=")).partition("=")[2]
        for store in filter(None, Path(names).read_text().split("\0")):
            content = self.bend(store, (self.hub / store).read_bytes())
            target = Path(_options["cwd"]) / store
            there = target.stat().st_size if target.exists() else 0
            with target.open("ab") as stream:
                stream.write(content[there:])
            self.sent += len(content[there:])
        return subprocess.CompletedProcess(argv, 0, b"", b"")


def digest_of(worker: Any, path: Path) -> str:
    with path.open("rb") as handle:
        return str(worker.digests(handle)[0])


class Site:
    """A source and a host that takes from it."""

    def __init__(self, worker: Any, tmp_path: Path) -> None:
        self.worker = worker
        self.source, self.home = tmp_path / "source" / "hub", tmp_path / "home"
        self.rsync = Rsync(self.source)
        self.blobs = [lay(self.source, f"model-{number}.safetensors", bytes([number]) * 100_000) for number in range(5)]
        lay(self.source, "nested/config.json", b"{}", large=False)
        plain = self.source / REPO / "snapshots" / COMMIT / "plain.txt"
        plain.write_text("text")
        self.files = worker.spread_files.snapshot_files(self.source, REPO, COMMIT)
        for entry in self.files:
            entry["sha256"] = digest_of(worker, self.source / entry["store"])
        self.hub = self.home / "hub"
        self.snapshot = self.hub / REPO / "snapshots" / COMMIT

    def task(self, **more: Any) -> dict[str, Any]:
        return {
            "kind": "model",
            "key": "Org/Model@main",
            "source": "spark-1",
            "port": 8722,
            "links": [{"kind": "lan", "own": "127.0.0.1", "source": "127.0.0.1"}],
            "hf_home": str(self.home),
            "folder": REPO,
            "files": self.files,
            "streams": 3,
            "commit": COMMIT,
            "revision": "main",
            "bytes": 500_006,
            **more,
        }

    def bring(self, tmp_path: Path, **more: Any) -> dict[str, Any]:
        progress = self.worker.Progress(tmp_path / "state.json")
        model = self.worker.Model(self.task(**more), progress, tmp_path / "run", self.rsync)
        result: dict[str, Any] = model.bring()
        return result

    def whole(self) -> bool:
        return all(
            (self.snapshot / entry["path"]).read_bytes() == (self.source / entry["store"]).read_bytes()
            for entry in self.files
        )


@pytest.fixture
def site(worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(worker, "reachable", lambda link, port: True)
    return Site(worker, tmp_path)


def test_a_model_comes_into_the_layout_of_the_hub(site: Site, tmp_path: Path) -> None:
    result = site.bring(tmp_path)
    assert (result["bytes"], result["files"], result["link"]) == (500_006, 7, "lan")
    assert site.whole()
    assert (site.snapshot / "model-0.safetensors").readlink() == Path(f"../../blobs/{site.blobs[0].name}")
    assert (site.hub / REPO / "refs" / "main").read_text() == COMMIT
    assert not (site.home / site.worker.STAGING).exists()
    assert len(site.rsync.calls) == 3


def test_a_file_is_read_while_the_next_one_comes(
    site: Site, tmp_path: Path, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LOOK_SECONDS", 0.01)
    read, digests = threading.Event(), worker.digests

    def noted(handle: Any) -> Any:
        read.set()
        return digests(handle)

    monkeypatch.setattr(worker, "digests", noted)
    sent: list[str] = []

    def bend(store: str, content: bytes) -> bytes:
        sent.append(store)
        assert len(sent) == 1 or read.wait(30)  # the first one is read before the last ones have come
        return content

    site.rsync.bend = bend
    site.bring(tmp_path, streams=1)
    assert site.whole() and len(sent) == 7


def test_what_is_there_is_not_sent_again(site: Site, tmp_path: Path) -> None:
    site.bring(tmp_path)
    site.rsync.calls.clear()
    assert site.bring(tmp_path)["bytes"] == 0
    assert site.rsync.calls == []


def test_what_came_earlier_is_not_sent_again(site: Site, tmp_path: Path) -> None:
    part = site.home / site.worker.STAGING / REPO / "blobs" / site.blobs[1].name
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes([1]) * 60_000)
    assert site.bring(tmp_path)["bytes"] == 440_006
    assert site.rsync.sent == 440_006 and site.whole()


def test_a_staged_part_that_is_wrong_costs_the_file_and_no_more(site: Site, tmp_path: Path) -> None:
    part = site.home / site.worker.STAGING / REPO / "blobs" / site.blobs[1].name
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes([9]) * 60_000)
    assert site.bring(tmp_path)["bytes"] == 540_006
    assert site.rsync.sent == 540_006 and site.whole()


def test_a_flipped_byte_on_the_way_is_found_and_the_file_comes_again(site: Site, tmp_path: Path) -> None:
    wrong = iter([True])

    def bend(store: str, content: bytes) -> bytes:
        if store.endswith(site.blobs[2].name) and next(wrong, False):
            return content[:-1] + bytes([content[-1] ^ 1])
        return content

    site.rsync.bend = bend
    assert site.bring(tmp_path)["bytes"] == 600_006
    assert site.whole()


@pytest.mark.parametrize("bend", [lambda _store, content: content[:-1] + b"!", lambda _store, content: content[:-1]])
def test_a_source_that_sends_something_else_is_named_and_nothing_is_put_to_use(
    site: Site, tmp_path: Path, bend: Callable[[str, bytes], bytes]
) -> None:
    site.rsync.bend = bend
    with pytest.raises(site.worker.Wrong, match="came from spark-1 2 times with another SHA-256"):
        site.bring(tmp_path)
    assert not site.snapshot.exists() and not (site.hub / REPO / "refs").exists()


def test_the_words_of_rsync_are_told(site: Site, tmp_path: Path) -> None:
    site.rsync.refuse = b"root@192.0.2.1: Permission denied (publickey).\nrsync: connection unexpectedly closed\n"
    with pytest.raises(site.worker.Failed, match=r"Permission denied .* / rsync: connection .*ended with 12"):
        site.bring(tmp_path)


def test_a_damaged_file_in_its_place_is_replaced(site: Site, tmp_path: Path) -> None:
    site.bring(tmp_path)
    blob = site.hub / REPO / "blobs" / site.blobs[3].name
    blob.write_bytes(b"?" * 100_000)
    cut = site.hub / REPO / "blobs" / site.blobs[4].name
    cut.write_bytes(cut.read_bytes()[:30_000])
    site.rsync.sent = 0
    site.bring(tmp_path)
    assert site.whole() and site.rsync.sent == 170_000


def test_several_links_share_the_streams(site: Site, tmp_path: Path) -> None:
    links = [{"kind": "fabric", "own": f"10.0.{rail}.2", "source": f"10.0.{rail}.1"} for rail in range(2)]
    site.bring(tmp_path, links=[*links, {"kind": "lan", "own": "192.0.2.2", "source": "192.0.2.1"}])
    assert sorted({argv[-2] for argv in site.rsync.calls}) == ["10.0.0.1::hub/", "10.0.1.1::hub/"]


def test_a_limit_is_shared_by_the_streams(site: Site, tmp_path: Path) -> None:
    site.bring(tmp_path, limit_mbs=300)
    assert all("--bwlimit=97656" in argv for argv in site.rsync.calls)


@pytest.mark.parametrize("change", [{"store": "../../etc/passwd"}, {"path": "../x"}, {"link": "/etc/passwd"}])
def test_names_that_lead_elsewhere_are_refused(site: Site, tmp_path: Path, change: dict[str, str]) -> None:
    site.files[0].update(change)
    with pytest.raises(site.worker.Failed):
        site.bring(tmp_path)
    assert not site.snapshot.exists()


# --- over a fabric


@pytest.fixture
def fabric(site: Site, worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A fabric on loopback, whose source runs its own program where SSH would; the commands that it got."""
    program = tmp_path / "file_stream.py"
    library = tmp_path / "library" / "dgxspark_vllm"
    library.parent.mkdir()
    library.symlink_to(REPOSITORY / "plugins/module_utils")
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(library.parent)!r})\n"
        "from dgxspark_vllm._content import file_stream\n"
        "what, address = sys.argv[-1].split()\nassert what == 'files'\n"
        f"sys.argv[1:] = [{str(site.source)!r}, address]\nfile_stream.main()\n"
    )
    asked: list[list[str]] = []

    def ssh_argv(task: Any, link: Any, folder: Path) -> list[str]:
        asked.append([task["source"], link["source"]])
        return [sys.executable, str(program)]

    monkeypatch.setattr(worker, "ssh_argv", ssh_argv)
    return asked


FABRIC = [
    {"kind": "fabric", "own": "127.0.0.1", "source": "127.0.0.1"},
    {"kind": "fabric", "own": "127.0.0.2", "source": "127.0.0.2"},
]


def test_over_a_fabric_files_come_without_rsync_by_all_of_its_rails(
    site: Site, tmp_path: Path, fabric: list[list[str]]
) -> None:
    result = site.bring(tmp_path, links=FABRIC, clear=True)
    assert (result["bytes"], result["files"], result["link"], result["encrypted"]) == (500_006, 7, "fabric", False)
    assert site.whole() and site.rsync.calls == []
    assert sorted({address for _source, address in fabric}) == ["127.0.0.1", "127.0.0.2"]
    assert site.bring(tmp_path, links=FABRIC, clear=True)["bytes"] == 0


def test_over_a_fabric_they_go_on_where_they_were(site: Site, tmp_path: Path, fabric: list[list[str]]) -> None:
    blobs = site.home / site.worker.STAGING / REPO / "blobs"
    blobs.mkdir(parents=True)
    (blobs / site.blobs[1].name).write_bytes(bytes([1]) * 60_000)
    (blobs / site.blobs[2].name).write_bytes(bytes([2]) * 100_000)
    (blobs / site.blobs[3].name).write_bytes(bytes([3]) * 100_001)
    assert site.bring(tmp_path, links=FABRIC, clear=True)["bytes"] == 240_006
    assert site.whole() and site.rsync.calls == []


def test_over_a_fabric_a_part_that_is_wrong_comes_anew(site: Site, tmp_path: Path, fabric: list[list[str]]) -> None:
    part = site.home / site.worker.STAGING / REPO / "blobs" / site.blobs[1].name
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes([9]) * 60_000)
    assert site.bring(tmp_path, links=FABRIC, clear=True)["bytes"] == 540_006
    assert site.whole()


@pytest.mark.parametrize("content", [b"?" * 100_000, b"?" * 99_999])
def test_over_a_fabric_a_source_that_sends_something_else_is_named(
    site: Site, tmp_path: Path, fabric: list[list[str]], content: bytes
) -> None:
    site.blobs[2].write_bytes(content)
    with pytest.raises(site.worker.Wrong, match="came from spark-1 2 times with another SHA-256"):
        site.bring(tmp_path, links=FABRIC, clear=True)
    assert not site.snapshot.exists()


def test_over_a_fabric_a_file_that_is_gone_is_named(site: Site, tmp_path: Path, fabric: list[list[str]]) -> None:
    site.blobs[2].unlink()
    with pytest.raises(site.worker.Failed, match=f"taking files from spark-1 failed: .*{site.blobs[2].name}.*No such"):
        site.bring(tmp_path, links=FABRIC, clear=True)


def test_a_fabric_that_lets_nothing_else_through_has_ssh(
    site: Site, tmp_path: Path, fabric: list[list[str]], worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "ssh_argv", lambda *_task: ["echo", "this key takes images, nothing else"])
    result = site.bring(tmp_path, links=FABRIC, clear=True)
    assert site.whole() and result["encrypted"] and len(site.rsync.calls) == 3


def test_what_came_in_clear_before_a_way_was_lost_is_not_called_encrypted(
    site: Site, tmp_path: Path, fabric: list[list[str]], worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_way, asked = worker.ssh_argv, iter(range(100))
    monkeypatch.setattr(worker, "ssh_argv", lambda *task: ["false"] if next(asked) else open_way(*task))
    result = site.bring(tmp_path, links=FABRIC, clear=True, streams=2)
    assert site.whole() and len(site.rsync.calls) == 1 and not result["encrypted"]


@pytest.mark.parametrize("more", [{"clear": False, "links": FABRIC}, {"clear": True}])
def test_a_lan_and_who_wants_it_so_is_encrypted(
    site: Site, tmp_path: Path, fabric: list[list[str]], more: dict[str, Any]
) -> None:
    assert site.bring(tmp_path, **more)["encrypted"]
    assert len(site.rsync.calls) == 3


# --- links


def test_the_fabric_comes_first_and_the_lan_when_it_does_not_answer(worker: Any, closed_port: int) -> None:
    lan = {"kind": "lan", "own": "127.0.0.1", "source": "127.0.0.1"}
    fabric = {"kind": "fabric", "own": "127.0.0.2", "source": "127.0.0.2"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        task = {"source": "spark-1", "port": port, "links": [fabric, lan]}
        assert worker.choose_links(task) == [lan]
        with socket.create_server(("127.0.0.2", port)):
            assert worker.choose_links(task) == [fabric]
    with pytest.raises(worker.Failed, match=f"spark-1 does not answer on port {closed_port} .*set spread_port"):
        worker.choose_links({"source": "spark-1", "port": closed_port, "links": [fabric, lan]})


def test_files_are_dealt_so_that_streams_end_together(worker: Any) -> None:
    hands = worker.share_out([{"size": size} for size in (9, 1, 8, 2, 7, 3)], 3)
    assert sorted(sum(entry["size"] for entry in hand) for hand in hands) == [10, 10, 10]
    assert worker.share_out([], 3) == []


# --- verifying


def verify(site: Site, tmp_path: Path, **more: Any) -> dict[str, Any]:
    files = [{**entry, "whole_size": entry["size"], **more} for entry in site.files]
    task = {"hf_home": str(site.source.parent), "folder": REPO, "files": files, "streams": 2}
    result: dict[str, Any] = site.worker.verify_model(task, site.worker.Progress(tmp_path / "state.json"))
    return result


def test_whole_files_are_known_from_then_on(site: Site, tmp_path: Path) -> None:
    assert verify(site, tmp_path)["damaged"] == []
    listed = site.worker.spread_files.snapshot_files(site.source, REPO, COMMIT)
    assert {entry["known"] for entry in listed} == {"yes"}
    assert [entry["sha256"] for entry in listed] == [entry["sha256"] for entry in site.files]


def test_damage_is_found_by_the_name_that_the_hub_gave(site: Site, tmp_path: Path) -> None:
    site.blobs[0].write_bytes(b"?" * 100_000)
    site.blobs[1].write_bytes(bytes([1]) * 40_000)
    assert verify(site, tmp_path, sha256=None)["damaged"] == ["model-0.safetensors", "model-1.safetensors"]
    assert not site.blobs[0].exists() and not site.blobs[1].exists()
    # The start of the truncated one is kept for what comes.
    staged = site.source.parent / site.worker.STAGING / REPO / "blobs"
    assert [path.name for path in staged.iterdir()] == [site.blobs[1].name]


def test_damage_of_a_plain_file_is_found_by_what_it_was(site: Site, tmp_path: Path) -> None:
    verify(site, tmp_path)
    (site.source / REPO / "snapshots" / COMMIT / "plain.txt").write_text("tent")
    assert verify(site, tmp_path, sha256=None)["damaged"] == ["plain.txt"]


# --- images and the job


PROGRAM = """#!{python} -SE
import pathlib, sys
home = pathlib.Path({home!r})
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
if name == "ssh":
    if words[-1].startswith("layers "):
        print((home / "layers").read_text() if (home / "layers").exists() else "")
        sys.exit(0)
    with (home / "asked").open("a") as stream:
        stream.write(words[-1] + "\\n")
    sys.stdout.buffer.write((home / "sent").read_bytes())
    if (home / "ssh.err").exists():
        print((home / "ssh.err").read_text(), file=sys.stderr)
    sys.exit(int((home / "ssh.rc").read_text()) if (home / "ssh.rc").exists() else 0)
with (home / "calls").open("a") as stream:
    stream.write(" ".join(words) + "\\n")
if words[0] == "load":
    content = sys.stdin.buffer.read()
    if not content.endswith(bytes(1024)):
        print("invalid tar header", file=sys.stderr)
        sys.exit(1)
    (home / "loaded").write_bytes(content)
    if (home / "said").exists():
        print((home / "said").read_text())
    if (home / "once").exists():
        (home / "once").unlink()
        print("open blobs/sha256/0: no such file or directory", file=sys.stderr)
        sys.exit(1)
elif words[:2] == ["image", "ls"] or words[0] == "info":
    print((home / words[-1].strip("-").split()[0]).read_text() if (home / words[-1].strip("-").split()[0]).exists() else "")
elif words[:3] == ["image", "inspect", "--format"]:
    print((home / "own").read_text())
elif words[:2] == ["image", "inspect"]:
    known = (home / "known").read_text().split() if (home / "known").exists() else [words[-1]]
    if (home / "down").exists():
        print("Cannot connect to the Docker daemon", file=sys.stderr)
        sys.exit(1)
    if not (home / "loaded").exists() or words[-1] not in known:
        print(f"Error response from daemon: No such image: {{words[-1]}}", file=sys.stderr)
        sys.exit(1)
    print((home / "inspect.json").read_text())
elif words[:2] == ["image", "tag"] and (home / "full").exists():
    print("no space left on device", file=sys.stderr)
    sys.exit(1)
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("ssh", "docker"):
        (folder / name).write_text(PROGRAM.format(python=sys.executable, home=str(tmp_path)))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    (tmp_path / "sent").write_bytes(saved("an/image:1"))
    item = {"Id": "sha256:1", "Size": 5000, "RootFS": {"Layers": ["sha256:a"]}, "Config": {}}
    (tmp_path / "inspect.json").write_text(json.dumps([item]))
    return tmp_path


def image_task(worker: Any, **more: Any) -> dict[str, Any]:
    item = {"Id": "sha256:1", "Size": 5000, "RootFS": {"Layers": ["sha256:a"]}, "Config": {}}
    return {
        "kind": "image",
        "key": "an/image:1",
        "ref": "an/image:1",
        "name": "an/image:1",
        "alias": "",
        "source": "spark-1",
        "port": 8722,
        "links": [{"kind": "fabric", "own": "10.0.0.2", "source": "10.0.0.1"}],
        "image": worker.spread_files.describe(item),
        "bytes": 5000,
        **more,
    }


def run_job(worker: Any, tmp_path: Path, *tasks: dict[str, Any]) -> list[dict[str, Any]]:
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"tasks": list(tasks)}))
    assert worker.main([str(job), str(tmp_path / "state.json")]) == 0
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["finished"]
    results: list[dict[str, Any]] = state["results"]
    return results


def test_an_image_is_loaded_as_it_comes(worker: Any, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "reachable", lambda link, port: True)
    (result,) = run_job(worker, programs, image_task(worker))
    size = len(saved("an/image:1"))
    assert (result["ok"], result["bytes"], result["link"]) == (True, size, "fabric"), result
    assert "image tag" not in (programs / "calls").read_text()


BELOW, ABOVE = ("sha256:" + sign * 64 for sign in "ab")


def layers_here(place: Path, worker: Any) -> list[str]:
    """A host that has the lower layer of the image, and another image; returns what the lower one is called in archives."""
    (place / "layers").write_text(json.dumps([BELOW, ABOVE]))
    (place / "no-trunc").write_text("sha256:7\nsha256:8\n")
    (place / "own").write_text(f"{json.dumps([BELOW])}\nnull")
    named: list[str] = worker.image_layers.stored_as([BELOW, ABOVE], [BELOW])
    return named


def test_layers_that_are_there_need_not_come(worker: Any, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "reachable", lambda link, port: True)
    named = layers_here(programs, worker)
    (result,) = run_job(worker, programs, image_task(worker))
    assert result["ok"] and named[0] == "a" * 64 and len(named) == 2, result
    assert (programs / "asked").read_text().splitlines() == [f"image an/image:1 {' '.join(named)}"]


def test_an_image_that_does_not_load_without_them_comes_whole(
    worker: Any, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "reachable", lambda link, port: True)
    named = layers_here(programs, worker)
    (programs / "once").touch()
    (result,) = run_job(worker, programs, image_task(worker))
    assert result["ok"] and result["bytes"] == len(saved("an/image:1")), result
    assert (programs / "asked").read_text().splitlines() == [f"image an/image:1 {' '.join(named)}", "image an/image:1"]
    state = json.loads((programs / "state.json").read_text())
    assert state["done"] == len(saved("an/image:1"))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("format", ""),  # docker info, in whose place the next line stands
        ("own", "[1]"),
        ("own", "not JSON"),
        ("layers", ""),
        ("layers", '["sha256:../../etc"]'),
        ("no-trunc", ""),
    ],
)
def test_where_layers_are_not_known_the_whole_image_comes(
    worker: Any, programs: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    monkeypatch.setattr(worker, "reachable", lambda link, port: True)
    layers_here(programs, worker)
    if file == "format":
        (programs / "{{json").write_text('[["driver-type","io.containerd.snapshotter.v1"]]')
    else:
        (programs / file).write_text(text)
    (result,) = run_job(worker, programs, image_task(worker))
    assert result["ok"] and (programs / "asked").read_text() == "image an/image:1\n", result


@pytest.mark.parametrize(
    ("more", "tag"),
    [
        ({"ref": "an/image@sha256:1", "alias": "an/image:sha256-1"}, "an/image:sha256-1"),
        ({"name": "sha256:0"}, "an/image:1"),
    ],
)
def test_an_image_that_comes_without_a_name_gets_one(
    worker: Any, programs: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str], tag: str
) -> None:
    """The engine here has another id for it than the source's, and says which."""
    monkeypatch.setattr(worker, "reachable", lambda link, port: True)
    (programs / "known").write_text("sha256:1")
    (programs / "said").write_text("Loaded image ID: sha256:1")
    wanted = {**image_task(worker)["image"], "id": "sha256:0"}
    (result,) = run_job(worker, programs, image_task(worker, image=wanted, **more))
    assert result["ok"], result
    assert f"image tag sha256:1 {tag}" in (programs / "calls").read_text()


def test_an_image_that_is_cut_off_is_none(worker: Any, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "reachable", lambda link, port: True)
    (programs / "sent").write_bytes(saved("an/image:1")[:5000])
    (result,) = run_job(worker, programs, image_task(worker))
    assert not result["ok"] and "the archive of docker save ends too early" in result["why"]


@pytest.mark.parametrize("names", [(EVIL,), ("an/image:1", EVIL)])
def test_a_source_that_plants_a_name_is_refused_before_the_engine_has_seen_it(
    worker: Any, programs: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(worker, "reachable", lambda link, port: True)
    (programs / "sent").write_bytes(saved(*names))
    (result,) = run_job(worker, programs, image_task(worker))
    assert not result["ok"] and f"the archive names images 'docker.io/{EVIL}'" in result["why"]
    assert not (programs / "loaded").exists()
    # Nor is anything of that name removed from this host.
    assert EVIL not in ((programs / "calls").read_text() if (programs / "calls").exists() else "")


def test_a_source_that_cannot_send_an_image_is_told_in_its_own_words(
    worker: Any, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine here says of the end that came too early follows from it."""
    monkeypatch.setattr(worker, "reachable", lambda link, port: True)
    (programs / "sent").write_bytes(b"")
    (programs / "ssh.err").write_text("reference does not exist")
    (programs / "ssh.rc").write_text("1")
    (result,) = run_job(worker, programs, image_task(worker))
    assert not result["ok"] and result["why"].endswith("reference does not exist (ssh ended with 1)")


def test_an_image_that_is_another_is_removed_again(
    worker: Any, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "reachable", lambda link, port: True)
    wanted = {**image_task(worker)["image"], "id": "sha256:2", "content": "other"}
    (result,) = run_job(worker, programs, image_task(worker, image=wanted))
    assert not result["ok"] and "sent an/image:1 as sha256:1, not as sha256:2" in result["why"]
    assert "image rm -- an/image:1" in (programs / "calls").read_text()


@pytest.mark.parametrize(
    ("down", "printed", "said"),
    [
        (True, None, "Cannot connect to the Docker daemon (docker ended with 1)"),
        (False, "", "it printed no description of an image"),
        (False, "[]", "it printed no description of an image"),
    ],
)
def test_an_engine_that_does_not_say_what_it_loaded_keeps_it(
    worker: Any, programs: Path, monkeypatch: pytest.MonkeyPatch, down: bool, printed: str | None, said: str
) -> None:
    """That it cannot be asked makes an image no other one."""
    monkeypatch.setattr(worker, "reachable", lambda link, port: True)
    if down:
        (programs / "down").touch()
    if printed is not None:
        (programs / "inspect.json").write_text(printed)
    (result,) = run_job(worker, programs, image_task(worker))
    assert not result["ok"]
    assert result["why"] == f"docker image inspect sha256:1 failed on {socket.gethostname()}: {said}"
    assert "image rm" not in (programs / "calls").read_text()


def test_a_name_that_cannot_be_given_says_what_docker_said(
    worker: Any, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "reachable", lambda link, port: True)
    (programs / "known").write_text("sha256:1")
    (programs / "full").touch()
    (result,) = run_job(worker, programs, image_task(worker, alias="an/image:own"))
    assert not result["ok"] and "image tag sha256:1 an/image:own failed on" in result["why"]
    assert "no space left on device" in result["why"]


def test_one_thing_that_fails_leaves_the_others_alone(
    worker: Any, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "reachable", lambda link, port: link["source"] == "10.0.0.1")
    lost = image_task(worker, key="lost", links=[{"kind": "lan", "own": "10.0.0.2", "source": "10.0.0.9"}])
    first, second = run_job(worker, programs, lost, image_task(worker))
    assert (first["ok"], second["ok"]) == (False, True)
