# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker of a distribution: it pulls, verifies and publishes. Sources run the real server; a local process stands in for ssh."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from spread_fixture import COMMIT, NAME, REPO, contents, digest, lay, oci

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import (
    distribution,
    file_stream,
    spread_files,
    spread_names,
    spread_server,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spread_worker as worker

REPOSITORY = Path(__file__).resolve().parents[5]
KEY = "Org/Model@main"
LAN = [{"kind": "lan", "own": "127.0.0.1", "source": "127.0.0.1"}]
FABRIC = [
    {"kind": "fabric", "own": "127.0.0.1", "source": "127.0.0.1"},
    {"kind": "fabric", "own": "127.0.0.2", "source": "127.0.0.2"},
]


def source_of(name: str = "spark-1", links: list[dict[str, str]] | None = None) -> dict[str, Any]:
    return {"name": name, "links": links or LAN}


@pytest.fixture(autouse=True)
def records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spread_files, "SAVED", tmp_path / "saved")
    monkeypatch.setattr(spread_files, "SUMS", tmp_path / "sums")
    monkeypatch.setattr(worker, "PAUSES", (0.05,))


def digest_of(path: Path) -> str:
    with path.open("rb") as handle:
        return spread_files.digests(handle)[0]


class Site:
    """Sources with a model, and a host that takes it from them. requests: those that reached a source."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.requests: list[tuple[str, str, str]] = []
        self.refused: dict[str, str] = {}
        """Requests that a source answers with a text of its own, by their first word."""
        self.source, self.home = tmp_path / "spark-1" / "hub", tmp_path / "home"
        self.blobs = [lay(self.source, f"model-{number}.safetensors", bytes([number]) * 100_000) for number in range(5)]
        lay(self.source, "nested/config.json", b"{}", large=False)
        plain = self.source / REPO / "snapshots" / COMMIT / "plain.txt"
        plain.write_text("text")
        self.files = distribution.model_files(self.source.parent, "Org/Model", COMMIT)
        for entry in self.files:
            entry["sha256"] = digest_of(self.source / entry["store"])
        self.hub = self.home / "hub"
        self.snapshot = self.hub / REPO / "snapshots" / COMMIT
        self.staged_blobs = self.home / spread_files.STAGING / REPO / "blobs"
        self.open("spark-1")

    def open(self, name: str, ready: bool = True) -> Path:
        """Open the access of a source; returns the folder of its run."""
        run = self.tmp_path / name / "run"
        (run / spread_server.ITEMS).mkdir(parents=True)
        folders = {folder: str(self.tmp_path / name / folder) for folder in ("hub", "saved")}
        settings = {**folders, "clear": ["127.0.0.1", "127.0.0.2"], "images": {spread_names.item_id(NAME): NAME}}
        (run / spread_server.SETTINGS).write_text(json.dumps(settings))
        if ready:
            self.make_ready(name)
        return run

    def make_ready(self, name: str) -> None:
        for key in (KEY, NAME):
            (self.tmp_path / name / "run" / spread_server.ITEMS / f"{spread_names.item_id(key)}.ready").touch()

    def copy_source(self, name: str) -> None:
        shutil.copytree(self.source, self.tmp_path / name / "hub", symlinks=True)
        self.open(name)

    def ssh_argv(self, route: worker.Route, link: worker.Link, request: str) -> list[str]:
        self.requests.append((route.source, link["source"], request))
        if request.split(" ")[0] in self.refused:
            return ["sh", "-c", self.refused[request.split(" ")[0]]]
        words = [f"SSH_ORIGINAL_COMMAND={request}", f"PYTHONPATH={REPOSITORY / 'collections'}"]
        module = "dgxspark_vllm._content.spread_server"
        return ["env", *words, sys.executable, "-m", module, str(self.tmp_path / route.source / "run")]

    def task(self, **more: Any) -> dict[str, Any]:
        return {
            "kind": "model",
            "key": KEY,
            "sources": [source_of()],
            "port": 8722,
            "hf_home": str(self.home),
            "folder": REPO,
            "files": self.files,
            "streams": 3,
            "commit": COMMIT,
            "revision": "main",
            "bytes": 500_006,
            **more,
        }

    def run(self, **more: Any) -> dict[str, Any]:
        progress = worker.Progress(self.tmp_path / "state.json")
        result = worker.run_task(self.task(**more), progress, self.tmp_path / "run")
        self.done = progress.counted
        return result

    def bring(self, **more: Any) -> dict[str, Any]:
        """Run the task, which has to succeed."""
        result = self.run(**more)
        assert result["ok"], result
        return result

    def streams(self) -> list[tuple[str, str, str]]:
        return [request for request in self.requests if request[2].startswith("files")]

    def is_complete(self) -> bool:
        return all(
            (self.snapshot / entry["path"]).read_bytes() == (self.source / entry["store"]).read_bytes()
            for entry in self.files
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(worker, "is_reachable", lambda link, port: True)
    monkeypatch.setattr(worker.Route, "ssh_argv", lambda route, link, request: made.ssh_argv(route, link, request))
    return made


@pytest.fixture(params=["ssh", "tcp"])
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of a task that takes files inside SSH, or over TCP on a fabric."""
    return {} if request.param == "ssh" else {"sources": [source_of(links=FABRIC)], "clear": True}


def test_a_model_arrives_in_the_layout_of_the_hub(site: Site, tmp_path: Path, way: dict[str, Any]) -> None:
    result = site.bring(**way)
    assert (result["bytes"], result["files"], result["source"], result["failed"]) == (500_006, 7, "spark-1", [])
    assert (result["link"], result["encrypted"]) == (("fabric", False) if way else ("lan", True))
    assert site.is_complete()
    assert (site.snapshot / "model-0.safetensors").readlink() == Path(f"../../blobs/{site.blobs[0].name}")
    assert (site.hub / REPO / "refs" / "main").read_text() == COMMIT
    assert not (site.home / spread_files.STAGING).exists()
    assert len(site.streams()) == 3
    # From now on the host is a source itself.
    assert [path.suffix for path in (tmp_path / "run" / spread_server.ITEMS).iterdir()] == [".ready"]


def test_both_rails_of_a_fabric_are_used(site: Site) -> None:
    site.bring(sources=[source_of(links=[*FABRIC, *LAN])], clear=True)
    assert {address for _source, address, _request in site.streams()} == {"127.0.0.1", "127.0.0.2"}


def test_present_files_are_not_sent_again(site: Site, way: dict[str, Any]) -> None:
    site.bring(**way)
    site.requests.clear()
    assert site.bring(**way)["bytes"] == 0
    assert site.requests == []


def test_partly_received_files_are_resumed(site: Site, way: dict[str, Any]) -> None:
    site.staged_blobs.mkdir(parents=True)
    for number, content in ((1, bytes([1]) * 60_000), (2, bytes([2]) * 100_000), (3, bytes([3]) * 100_001)):
        (site.staged_blobs / site.blobs[number].name).write_bytes(content)
    assert site.bring(**way)["bytes"] == 240_006
    assert site.is_complete()


def test_a_wrong_part_costs_only_its_file(site: Site, way: dict[str, Any]) -> None:
    site.staged_blobs.mkdir(parents=True)
    (site.staged_blobs / site.blobs[1].name).write_bytes(bytes([9]) * 60_000)
    assert site.bring(**way)["bytes"] == 540_006
    assert site.is_complete()


def test_a_file_that_is_damaged_on_its_way_is_received_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    take, damages = file_stream.Receiver.take, iter([True])

    def damaged(self: Any, store: str, begin: int, size: int, target: Any, digest: Any) -> None:
        take(self, store, begin, size, target, digest)
        if store.endswith(site.blobs[2].name) and next(damages, False):
            digest.update(b"!")

    monkeypatch.setattr(file_stream.Receiver, "take", damaged)
    assert site.bring()["bytes"] == 600_006
    assert site.is_complete()


@pytest.mark.parametrize("content", [b"?" * 100_000, b"?" * 99_999])
def test_a_source_with_other_content_is_named_and_nothing_is_published(
    site: Site, tmp_path: Path, way: dict[str, Any], content: bytes
) -> None:
    site.blobs[2].write_bytes(content)
    result = site.run(**way)
    assert not result["ok"] and "came from spark-1 2 times with another SHA-256" in result["why"]
    assert [failure["wrong"] for failure in result["failed"]] == [True] * worker.MOST_TRIES
    assert not site.snapshot.exists() and not (site.hub / REPO / "refs").exists()
    assert [path.suffix for path in (tmp_path / "run" / spread_server.ITEMS).iterdir()] == [".failed"]


def test_a_missing_file_of_the_source_is_named(site: Site, way: dict[str, Any]) -> None:
    site.blobs[2].unlink()
    result = site.run(**way)
    assert not result["ok"] and result["why"].startswith("taking files from spark-1 failed: ")
    assert site.blobs[2].name in result["why"] and "No such file" in result["why"]


def test_a_damaged_file_in_its_place_is_replaced(site: Site) -> None:
    site.bring()
    blob = site.hub / REPO / "blobs" / site.blobs[3].name
    blob.write_bytes(b"?" * 100_000)
    truncated = site.hub / REPO / "blobs" / site.blobs[4].name
    truncated.write_bytes(truncated.read_bytes()[:30_000])
    assert site.bring()["bytes"] == 170_000
    assert site.is_complete()


def test_streams_share_the_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    init = file_stream.Receiver.__init__

    def note(self: Any, reader: Any, writer: Any, limit: float = 0.0) -> None:
        limits.append(limit)
        init(self, reader, writer, limit)

    monkeypatch.setattr(file_stream.Receiver, "__init__", note)
    site.bring(limit_mbs=300)
    assert limits == [1e8] * 3


@pytest.mark.parametrize("change", [{"store": "../../etc/passwd"}, {"path": "../x"}, {"link": "/etc/passwd"}])
def test_names_outside_of_the_folder_are_refused(site: Site, change: dict[str, str]) -> None:
    site.files[0].update(change)
    assert not site.run()["ok"]
    assert not site.snapshot.exists()


def test_without_a_tcp_connection_a_fabric_uses_ssh(
    site: Site, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    def refuse(*_arguments: Any) -> Any:
        raise file_stream.NoConnection(f"port {closed_port} is not reached")

    monkeypatch.setattr(file_stream, "connect", refuse)
    result = site.bring(sources=[source_of(links=FABRIC)], clear=True)
    assert site.is_complete() and result["encrypted"]


def test_a_partly_unencrypted_transfer_is_not_reported_as_encrypted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, allowed = file_stream.connect, iter([True])

    def once(*arguments: Any) -> Any:
        if next(allowed, False):
            return connect(*arguments)
        raise file_stream.NoConnection("a firewall")

    monkeypatch.setattr(file_stream, "connect", once)
    result = site.bring(sources=[source_of(links=FABRIC)], clear=True, streams=2)
    assert site.is_complete() and not result["encrypted"]


@pytest.mark.parametrize("more", [{"clear": False, "sources": [source_of(links=FABRIC)]}, {"clear": True}])
def test_a_lan_and_an_encrypted_fabric_use_ssh(site: Site, more: dict[str, Any]) -> None:
    assert site.bring(**more)["encrypted"]
    assert {request for _source, _address, request in site.streams()} == {"files hub"}


# --- sources


def test_a_source_serves_one_host_at_a_time_over_each_network(site: Site, tmp_path: Path) -> None:
    link = LAN[0]
    route = worker.Route("spark-1", [link], 8722, tmp_path)
    item = spread_names.item_id(KEY)
    with worker.request(route, link, f"hold {item} lan") as first:
        assert worker.read_line(first) == spread_server.FREE
        for kind, answer in (("lan", spread_server.BUSY), ("fabric", spread_server.FREE)):
            with worker.request(route, link, f"hold {item} {kind}") as second:
                assert worker.read_line(second) == answer
        results: list[dict[str, Any]] = []
        waiting = threading.Thread(target=lambda: results.append(site.run()))
        waiting.start()
        time.sleep(0.5)
        assert site.streams() == []
    waiting.join(30)
    assert results[0]["ok"] and results[0]["failed"] == [] and site.is_complete()


def test_a_source_without_the_thing_is_waited_for(site: Site) -> None:
    shutil.copytree(site.source, site.tmp_path / "spark-2" / "hub", symlinks=True)
    site.open("spark-2", ready=False)
    threading.Timer(0.5, site.make_ready, ["spark-2"]).start()
    result = site.bring(sources=[source_of("spark-2")])
    assert result["source"] == "spark-2" and result["failed"] == []


def test_sources_that_will_not_have_it_are_left_alone(site: Site) -> None:
    dead = site.open("spark-2", ready=False)
    os.utime(dead / spread_server.SETTINGS, (0, 0))
    failed = site.open("spark-3", ready=False)
    (failed / spread_server.ITEMS / f"{spread_names.item_id(KEY)}.failed").touch()
    result = site.run(sources=[source_of("spark-2"), source_of("spark-3")])
    assert (result["ok"], result["why"], result["failed"]) == (False, "no host that has it, whole, is left", [])
    assert site.bring(sources=[source_of("spark-2"), source_of("spark-3"), source_of()])["source"] == "spark-1"


def test_another_source_is_tried_after_a_failure_and_goes_on_there(site: Site) -> None:
    site.copy_source("spark-2")
    site.blobs[2].write_bytes(b"?" * 100_000)
    result = site.run(sources=[source_of(), source_of("spark-2")])
    assert result["ok"] and result["source"] == "spark-2"
    assert [(failure["source"], failure["wrong"]) for failure in result["failed"]] == [("spark-1", True)]
    # Only the damaged file was received again, each time.
    assert result["bytes"] == 500_006 + 2 * 100_000


def test_the_lan_is_the_last_choice(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [source_of("spark-1"), source_of("spark-2", FABRIC)]
    pull = worker.Pull({"key": KEY, "sources": sources, "port": 1}, site.tmp_path)
    assert [source["name"] for source in pull.candidates()] == ["spark-2"]
    pull.failures.append({"source": "spark-2"})
    assert [source["name"] for source in pull.candidates()] == ["spark-1"]
    pull.failures.append({"source": "spark-1"})
    assert [source["name"] for source in pull.candidates()] == ["spark-2"]
    pull.gone.add("spark-2")
    assert [source["name"] for source in pull.candidates()] == ["spark-1"]


def test_the_last_words_of_ssh_are_reported(site: Site) -> None:
    site.refused = {"hold": "echo 'root@192.0.2.1: Permission denied (publickey).' >&2; exit 255"}
    result = site.run()
    assert result["why"] == (
        "spark-1 does not give Org/Model@main; root@192.0.2.1: Permission denied (publickey). (ssh ended with 255)"
    )
    site.refused = {"files": "echo 'Connection reset' >&2; exit 255"}
    result = site.run()
    assert "taking files from spark-1 failed" in result["why"] and "Connection reset (ssh" in result["why"]


def test_the_fabric_comes_first_and_the_lan_when_it_does_not_answer(closed_port: int, tmp_path: Path) -> None:
    fabric = {"kind": "fabric", "own": "127.0.0.2", "source": "127.0.0.2"}
    source = source_of(links=[fabric, *LAN])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert worker.find_route(source, port, tmp_path).links == [source["links"][1]]
        with socket.create_server(("127.0.0.2", port)):
            assert worker.find_route(source, port, tmp_path).links == [source["links"][0]]
    with pytest.raises(spread_files.Failed, match=f"spark-1 does not answer on port {closed_port} .*set spread_port"):
        worker.find_route(source, closed_port, tmp_path)


def test_ssh_ignores_the_settings_of_the_host(tmp_path: Path) -> None:
    argv = worker.Route("spark-1", LAN, 8722, tmp_path).ssh_argv(LAN[0], "files")
    assert argv[:3] == ["ssh", "-F", "none"] and argv[-2:] == ["127.0.0.1", "files"]
    assert {"StrictHostKeyChecking=yes", "HostKeyAlias=spark-1", "BindAddress=127.0.0.1"} <= set(argv)


def test_files_are_distributed_so_that_streams_end_together() -> None:
    shares = worker.share_out([{"size": size} for size in (9, 1, 8, 2, 7, 3)], 3)
    assert sorted(sum(entry["size"] for entry in share) for share in shares) == [10, 10, 10]
    assert worker.share_out([], 3) == []


# --- verifying


def verify(site: Site, **more: Any) -> dict[str, Any]:
    files = [{**entry, "whole_size": entry["size"], **more} for entry in site.files]
    task = {"hf_home": str(site.source.parent), "folder": REPO, "files": files, "streams": 2}
    return worker.verify_model(task, worker.Progress(site.tmp_path / "state.json"))


def test_verified_files_are_recorded(site: Site) -> None:
    assert verify(site)["damaged"] == []
    listed = distribution.model_files(site.source.parent, "Org/Model", COMMIT)
    assert {entry["known"] for entry in listed} == {"yes"}
    assert [entry["sha256"] for entry in listed] == [entry["sha256"] for entry in site.files]


def test_damage_is_found_by_the_name_that_the_hub_gave(site: Site) -> None:
    site.blobs[0].write_bytes(b"?" * 100_000)
    site.blobs[1].write_bytes(bytes([1]) * 40_000)
    assert verify(site, sha256=None)["damaged"] == ["model-0.safetensors", "model-1.safetensors"]
    assert not site.blobs[0].exists() and not site.blobs[1].exists()
    # The start of the truncated one is kept, to be resumed.
    staged = site.source.parent / spread_files.STAGING / REPO / "blobs"
    assert [path.name for path in staged.iterdir()] == [site.blobs[1].name]


def test_damage_of_a_plain_file_is_found_by_its_recorded_digest(site: Site) -> None:
    verify(site)
    (site.source / REPO / "snapshots" / COMMIT / "plain.txt").write_text("tent")
    assert verify(site, sha256=None)["damaged"] == ["plain.txt"]


# --- images and the job


DOCKER = """#!{python} -SE
import os, pathlib, sys, time
home = pathlib.Path({home!r})
words = sys.argv[1:]
is_source = "SSH_ORIGINAL_COMMAND" in os.environ

def text(file):
    return (home / file).read_text() if (home / file).exists() else ""

with (home / "calls").open("a") as stream:
    stream.write(" ".join(words) + "\\n")
if words[0] == "save":
    sys.stdout.buffer.write((home / "archive").read_bytes())
    sys.stdout.flush()
    sys.exit(text("save.err") or 0)
if words[0] == "load":
    content = sys.stdin.buffer.read()
    if not content.endswith(bytes(1024)):
        sys.exit("invalid tar header")
    (home / "loaded").write_bytes(content)
    print("Loaded image")
    if (home / "once").exists():
        (home / "once").unlink()
        sys.exit("open blobs/sha256/0: no such file or directory")
elif words[0] == "info":
    print(text("store"))
elif words[:2] == ["image", "ls"]:
    print(text("ids"))
elif words[:3] == ["image", "inspect", "--format"]:
    print(text("present"))
elif words[:2] == ["image", "inspect"]:
    if (home / "down").exists() and not is_source:
        sys.exit("Cannot connect to the Docker daemon")
    known = text("known").split() or words[3:]
    is_there = is_source or (home / "loaded").exists()
    present = [word for word in words[3:] if is_there and (is_source or word in known)]
    print("[" + ",".join(text("source.json" if is_source else "inspect.json") for _word in present) + "]")
    for word in words[3:]:
        if word not in present:
            print(f"Error response from daemon: No such image: {{word}}", file=sys.stderr)
    sys.exit(len(present) < len(words[3:]))
elif words[:2] == ["image", "tag"] and (home / "full").exists():
    sys.exit("no space left on device")
"""
ITEM = {"Id": "sha256:1", "Size": 5000, "RootFS": {"Layers": ["sha256:a"]}, "Config": {}}
BELOW, ABOVE = os.urandom(300_000), os.urandom(20_000)
ARCHIVE = oci(BELOW, ABOVE)
BYTES = sum(len(content) for name, content in contents(ARCHIVE).items() if name.startswith("blobs/"))


@pytest.fixture
def images(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A source with an image, and a program in the place of docker on both hosts."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(DOCKER.format(python=sys.executable, home=str(tmp_path)))
    (tmp_path / "bin/docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "archive").write_bytes(ARCHIVE)
    for name in ("source.json", "inspect.json"):
        (tmp_path / name).write_text(json.dumps(ITEM))
    return site


def image_task(**more: Any) -> dict[str, Any]:
    return {
        "kind": "image",
        "key": NAME,
        "ref": NAME,
        "alias": "",
        "sources": [source_of(links=FABRIC)],
        "port": 8722,
        "streams": 2,
        "clear": True,
        "image": spread_files.describe(ITEM),
        "bytes": 5000,
        **more,
    }


def run_job(tmp_path: Path, *tasks: dict[str, Any]) -> list[dict[str, Any]]:
    folder = tmp_path / "run"
    worker.run_job(tasks, worker.Progress(folder / worker.STATE), folder)
    state = json.loads((folder / worker.STATE).read_text())
    assert state["finished"]
    results: list[dict[str, Any]] = state["results"]
    return results


def calls(tmp_path: Path, start: str = "") -> list[str]:
    lines = (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []
    return [line for line in lines if line.startswith(start)]


def received(name: str = NAME) -> Path:
    return spread_files.SAVED / spread_names.item_id(name)


def test_an_image_arrives_as_files_and_is_loaded(images: Site, tmp_path: Path) -> None:
    (result,) = run_job(tmp_path, image_task())
    assert (result["ok"], result["bytes"], result["files"], result["link"]) == (True, BYTES, 4, "fabric"), result
    assert (result["source"], result["encrypted"]) == ("spark-1", False)
    assert {address for _source, address, _request in images.streams()} == {"127.0.0.1", "127.0.0.2"}
    loaded = contents((tmp_path / "loaded").read_bytes())
    blobs = {name: content for name, content in contents(ARCHIVE).items() if name.startswith("blobs/")}
    assert {name: content for name, content in loaded.items() if name.startswith("blobs/")} == blobs
    assert json.loads(loaded["manifest.json"])[0]["RepoTags"] == [NAME]
    assert calls(tmp_path, "image tag") == []
    state = json.loads((tmp_path / "run" / worker.STATE).read_text())
    assert state["done"] == state["total"] == BYTES
    # This host is a source itself now, and saves nothing.
    assert spread_files.finished_images() == [received()]
    assert spread_files.read_saved(received(), "sha256:1") is not None


def test_a_source_saves_an_image_once(images: Site, tmp_path: Path) -> None:
    for _host in range(2):
        (result,) = run_job(tmp_path, image_task())
        assert result["ok"], result
        shutil.rmtree(received())
        (tmp_path / "loaded").unlink()
    assert len(calls(tmp_path, "save")) == 1
    (tmp_path / "source.json").write_text(json.dumps({**ITEM, "Id": "sha256:2"}))  # another image under the name
    run_job(tmp_path, image_task())
    assert len(calls(tmp_path, "save")) == 2


def lay_layers(tmp_path: Path) -> None:
    """Give the host the lower layer of the image."""
    (tmp_path / "ids").write_text(f"{'7' * 64}\n{'8' * 64}\n")
    (tmp_path / "present").write_text(f"{json.dumps([f'sha256:{digest(BELOW)}'])}\nnull")


def test_present_layers_are_not_sent(images: Site, tmp_path: Path) -> None:
    lay_layers(tmp_path)
    (result,) = run_job(tmp_path, image_task())
    assert result["ok"] and result["bytes"] == BYTES - len(BELOW), result
    # Before it is a source it has to save the image, since it has not received all of it.
    assert list(received().iterdir()) == []


def test_an_image_that_does_not_load_without_layers_is_received_whole(images: Site, tmp_path: Path) -> None:
    lay_layers(tmp_path)
    (tmp_path / "once").touch()
    (result,) = run_job(tmp_path, image_task())
    assert result["ok"] and result["bytes"] == BYTES, result
    state = json.loads((tmp_path / "run" / worker.STATE).read_text())
    assert state["done"] == state["total"] == BYTES


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("store", '[["driver-type","io.containerd.snapshotter.v1"]]'),
        ("present", "[1]"),
        ("present", "not JSON"),
        ("ids", ""),
    ],
)
def test_without_known_layers_the_whole_image_is_sent(images: Site, tmp_path: Path, file: str, text: str) -> None:
    lay_layers(tmp_path)
    (tmp_path / file).write_text(text)
    (result,) = run_job(tmp_path, image_task())
    assert result["ok"] and result["bytes"] == BYTES, result


def test_layers_that_have_arrived_are_not_received_again(images: Site, tmp_path: Path) -> None:
    received().mkdir(parents=True)
    (received() / digest(BELOW)).write_bytes(BELOW[:200_000])
    (received() / digest(ABOVE)).write_bytes(ABOVE)
    (received() / ("0" * 64)).write_bytes(b"of another image of that name")
    (result,) = run_job(tmp_path, image_task())
    assert result["ok"] and result["bytes"] == BYTES - 200_000 - len(ABOVE), result
    assert not (received() / ("0" * 64)).exists()


def test_a_layer_that_differs_from_its_digest_is_not_loaded(images: Site, tmp_path: Path) -> None:
    (result,) = run_job(tmp_path, image_task())
    saved_layer = tmp_path / "spark-1/saved" / received().name / digest(BELOW)
    saved_layer.write_bytes(BELOW[:-1] + bytes([BELOW[-1] ^ 1]))
    shutil.rmtree(received())
    (tmp_path / "loaded").unlink()
    (result,) = run_job(tmp_path, image_task())
    assert not result["ok"] and "came from spark-1 2 times with another SHA-256" in result["why"]
    assert not (tmp_path / "loaded").exists()
    # What is right stays for the next attempt.
    assert digest(ABOVE) in [path.name for path in received().iterdir()]


def test_an_image_by_digest_gets_its_alias(images: Site, tmp_path: Path) -> None:
    """Docker has another id for it here than at the source."""
    more = {
        "ref": "an/image@sha256:1",
        "alias": "an/image:sha256-1",
        "image": {**spread_files.describe(ITEM), "id": "sha256:0"},
    }
    (result,) = run_job(tmp_path, image_task(**more))
    assert result["ok"], result
    loaded = contents((tmp_path / "loaded").read_bytes())
    assert json.loads(loaded["manifest.json"])[0]["RepoTags"] == ["an/image:sha256-1"]


@pytest.mark.parametrize(
    ("description", "why"),
    [
        ({"files": {"../../etc/passwd": 1}}, "a name in the image of spark-1.files is '../../etc/passwd'"),
        ({"layers": ["x"]}, "the image of spark-1.layers[0] is 'x'"),
        ({"root": {"mediaType": "x", "digest": "x", "size": 1}}, "the image of spark-1.root.digest is 'x'"),
        ({"files": None}, "the image of spark-1.files is "),
    ],
)
def test_a_wrong_description_is_refused(images: Site, tmp_path: Path, description: dict[str, Any], why: str) -> None:
    right = {"config": "0" * 64, "layers": [], "diff_ids": [], "files": {}, "root": None}
    images.refused = {"hold": f"echo 'free {json.dumps({**right, **description})}'; cat > /dev/null"}
    (result,) = run_job(tmp_path, image_task())
    assert not result["ok"] and why in result["why"], result
    assert calls(tmp_path, "load") == []


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("save.err", "reference does not exist", "reference does not exist (docker ended with 1)"),
        ("archive", "", "not an archive of docker save"),
        (
            "source.json",
            json.dumps({**ITEM, "Size": 10**18}),
            "GB free, and the saved image an/image:1 needs 1000000000.00 GB",
        ),
    ],
)
def test_the_reason_of_the_source_is_reported(images: Site, tmp_path: Path, file: str, text: str, why: str) -> None:
    (tmp_path / file).write_text(text)
    (result,) = run_job(tmp_path, image_task())
    assert not result["ok"] and result["why"].startswith("spark-1 does not give an/image:1; "), result
    assert why in result["why"]


def test_a_different_image_is_removed_again(images: Site, tmp_path: Path) -> None:
    (result,) = run_job(
        tmp_path, image_task(image={**spread_files.describe(ITEM), "id": "sha256:2", "content": "other"})
    )
    assert not result["ok"] and "sent an/image:1 as sha256:1, not as sha256:2" in result["why"]
    assert "image rm -- an/image:1" in calls(tmp_path)


@pytest.mark.parametrize("file", ["down", "inspect.json"])
def test_an_image_stays_if_docker_does_not_describe_it(images: Site, tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("")
    (result,) = run_job(tmp_path, image_task())
    assert not result["ok"] and "docker image inspect failed for" in result["why"], result
    assert result["why"].endswith(f"(on {socket.gethostname()})")
    assert calls(tmp_path, "image rm") == []


def test_a_failed_tag_is_reported_and_the_image_is_not_sent_again(images: Site, tmp_path: Path) -> None:
    (tmp_path / "known").write_text("sha256:1")
    (tmp_path / "full").touch()
    (result,) = run_job(tmp_path, image_task(alias="an/image:own"))
    assert not result["ok"] and "image tag sha256:1 an/image:own failed on" in result["why"]
    assert "no space left on device" in result["why"]
    assert len(calls(tmp_path, "load")) == 1


def test_a_failed_task_does_not_stop_the_others(images: Site, tmp_path: Path) -> None:
    images.refused = {}
    first, second = run_job(tmp_path, image_task(key="lost", sources=[]), image_task())
    assert (first["ok"], second["ok"]) == (False, True)
