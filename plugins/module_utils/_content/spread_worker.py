# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job of a host in a distribution: it pulls images and models from other nodes, or verifies files of models.

Runs as C(python3 -m dgxspark_vllm._content.spread_worker FOLDER). Files arrive in a staging folder and are compared with their
digests before they are renamed into the layout of the hub, or loaded by Docker. An image or snapshot that has arrived is offered to other nodes at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._common.foreign_text import decode_text, parse_json
from .._common.reader import read
from .._host import beneath, docker
from .._runtime.command import NoAnswer, Unknown, reader
from . import file_stream, image_archive, spread_files
from .image_archive import last_words
from .spread_files import (
    CHUNK,
    STAGING,
    Failed,
    Wrong,
    digests,
    put_aside,
    safe_link,
)
from .spread_names import item_id
from .spread_server import BUSY, COMING, FREE, GONE, HUB, ITEMS, STATE

JOB = "job.json"
RECEIVE_TRIES = 2
"""How often a file is received; the second time because its digest was wrong."""
MOST_TRIES = 3
"""How often an item is taken, each time from another source if possible."""
CONNECT_SECONDS = 5
PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between two rounds of questions to sources that are busy or do not have the item yet; the last one repeats."""
DOCKER_SECONDS = 120.0
CIPHERS = "aes128-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr"


# --- progress ---------------------------------------------------------------------------------------------------------


class Progress:
    """The state file of the job, rewritten once per second while it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.state: dict[str, Any] = {"finished": False, "done": 0, "total": 0, "before": 0, "results": []}
        self.counted = 0
        self.count: Callable[[], int] | None = None
        """Returns further bytes that have arrived, for files that are still growing."""
        self.ended = threading.Event()

    def add(self, count: int) -> None:
        """Count bytes that have arrived."""
        with self.lock:
            self.counted += count

    def write(self) -> None:
        """Write the file."""
        with self.lock:
            self.state["done"] = self.counted + (self.count() if self.count else 0)
            beneath.write(self.path.parent, self.path.name, json.dumps(self.state).encode())

    def follow(self) -> None:
        """Write the file once per second until the job has ended."""
        while not self.ended.wait(1):
            self.write()


# --- sources ----------------------------------------------------------------------------------------------------------


Link = Mapping[str, str]
"""A pair of addresses of this host (C(own)) and of a source (C(source)). C(kind): C(fabric) or C(lan)."""
Source = Mapping[str, Any]
"""A host that has an item or is about to have it: its C(name) and C(links), the fastest first."""


@dataclass(frozen=True)
class Route:
    """The links of one kind over which a source answers. folder: of the run, with its keys."""

    source: str
    links: Sequence[Link]
    port: int
    folder: Path

    @property
    def kind(self) -> str:
        """Kind of the links."""
        return self.links[0]["kind"]

    def ssh_argv(self, link: Link, request: str) -> list[str]:
        """Return the command that sends a request to the source; it ignores the host's own ssh settings."""
        options = {
            "IdentityFile": self.folder / "client_key",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.folder / "known_hosts",
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "HostKeyAlias": self.source,
            "BatchMode": "yes",
            "BindAddress": link["own"],
            "ConnectTimeout": CONNECT_SECONDS * 3,
            "ServerAliveInterval": 15,
            "ServerAliveCountMax": 4,
            "Compression": "no",
            "Ciphers": CIPHERS,
            "LogLevel": "ERROR",
        }
        argv = ["ssh", "-F", "none", "-T", "-l", "root", "-p", str(self.port)]
        for name, value in options.items():
            argv += ["-o", f"{name}={value}"]
        return [*argv, link["source"], request]


def is_reachable(link: Link, port: int) -> bool:
    """Whether the source accepts connections on an address, from the address that it expects."""
    try:
        socket.create_connection((link["source"], port), CONNECT_SECONDS, (link["own"], 0)).close()
    except OSError:
        return False
    return True


def find_route(source: Source, port: int, folder: Path) -> Route:
    """Return the route over all links of the fastest kind that answers. Raises Failed if no link answers."""
    for kind in ("fabric", "lan"):
        links = [link for link in source["links"] if link["kind"] == kind and is_reachable(link, port)]
        if links:
            return Route(source["name"], links, port, folder)
    tried = ", ".join(f"{link['source']} from {link['own']}" for link in source["links"])
    raise Failed(
        f"{source['name']} does not answer on port {port} ({tried}); a firewall between the nodes? Open that port between them, or set spread_port to "
        "an open one"
    )


@contextlib.contextmanager
def request(route: Route, link: Link, text: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a request at a source until the end of the block; an OSError in the block gets the last words of ssh."""
    with (
        tempfile.TemporaryFile() as errors,
        image_archive.Program(
            route.ssh_argv(link, text), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
        ) as process,
    ):
        try:
            yield process
        except OSError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
            errors.seek(0)
            output = decode_text(errors.read())
            if process.returncode and output.strip():
                raise OSError(f"{error}; {last_words(output, 'ssh', process.returncode)}") from error
            raise
        finally:
            process.terminate()


def read_line(process: subprocess.Popen[bytes]) -> str:
    """Return the first line that a request prints."""
    return process.stdout.readline().decode("ascii", "replace").strip() if process.stdout else ""


class Pull:
    """Takes an item from the first of its sources that has it and is free. folder: of the run."""

    def __init__(self, task: Mapping[str, Any], folder: Path) -> None:
        self.key = str(task["key"])
        self.item = item_id(self.key)
        self.sources: list[Source] = list(task.get("sources") or [])
        self.port = int(task.get("port") or 0)
        self.folder = folder
        self.failures: list[dict[str, Any]] = []
        """Failed attempts: C(source), C(why), and whether its data were C(wrong)."""
        self.gone: set[str] = set()
        """Sources that will not get the item."""

    def run(self, take: Callable[[Route, str], None]) -> Route:
        """Ask the sources in turn until one is free, and take the item from it.

        :param take: takes the item, by the route and the source's description; raises C(Failed), C(Wrong) or OSError
        :raises Failed: when no source is left, or after C(MOST_TRIES) failures
        """
        for pause in itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])):
            for source in self.candidates():
                route = self.try_source(source, take)
                if route:
                    return route
                if len(self.failures) >= MOST_TRIES:
                    break
            if len(self.failures) >= MOST_TRIES or not self.candidates():
                break
            time.sleep(pause)
        raise Failed(self.failures[-1]["why"] if self.failures else "no host that has it, whole, is left")

    def candidates(self) -> list[Source]:
        """Return the sources to ask next: those that have not failed before the others, a fabric before the LAN."""
        failed = {failure["source"] for failure in self.failures}
        remaining = [source for source in self.sources if source["name"] not in self.gone]
        untried = [source for source in remaining if source["name"] not in failed] or remaining
        return [source for source in untried if source["links"][0]["kind"] == "fabric"] or untried

    def try_source(self, source: Source, take: Callable[[Route, str], None]) -> Route | None:
        """Take the item from a source if the source reserves it for this host. Returns the route if it was taken."""
        name = str(source["name"])
        try:
            route = find_route(source, self.port, self.folder)
            with request(route, route.links[0], f"hold {self.item} {route.kind}") as holding:
                answer, _space, description = read_line(holding).partition(" ")
                if answer == FREE:
                    take(route, description)
                    return route
                if answer == GONE:
                    self.gone.add(name)
                elif answer not in (BUSY, COMING):
                    raise OSError(f"{name} does not give {self.key}")
        except (Failed, OSError) as error:
            self.failures.append({"source": name, "why": str(error), "wrong": isinstance(error, Wrong)})
        return None


# --- models -----------------------------------------------------------------------------------------------------------


def share_out(files: Iterable[Mapping[str, Any]], streams: int) -> list[list[Mapping[str, Any]]]:
    """Distribute files over streams, the largest first, each to the stream with the fewest bytes."""
    shares: list[list[Mapping[str, Any]]] = [[] for _stream in range(max(streams, 1))]
    totals = [0] * len(shares)
    for entry in sorted(files, key=lambda entry: -int(entry["size"])):
        index = totals.index(min(totals))
        shares[index].append(entry)
        totals[index] += int(entry["size"])
    return [share for share in shares if share]


class Files:
    """Files that this host receives into a staging folder.

    folder: where sources have them, a word of the request C(files). staging: descriptor of the folder for incoming files, which only root
    can enter, even if the folders around it are exchanged. missing: files with C(store), C(size), C(sha256) and C(path).
    """

    def __init__(self, task: Mapping[str, Any], progress: Progress, folder: str, staging: int) -> None:
        self.progress = progress
        self.folder = folder
        self.staging = staging
        self.streams = int(task["streams"])
        self.limit = float(task.get("limit_mbs") or 0) * 1e6
        self.stream_limit = self.limit
        """Most bytes per second of all streams, and of one."""
        self.uses_tcp = bool(task.get("clear"))
        """Whether files cross a fabric without encryption."""
        self.encrypted = True
        """Whether all that has arrived was encrypted."""
        self.missing: list[Mapping[str, Any]] = []
        self.verified: set[str] = set()
        """Files that have arrived and have the expected digest."""
        self.announced = int(task["bytes"])
        """Bytes that the total of the job has for these files."""
        self.before = -1
        """Bytes that had arrived before this job."""
        self.repeated = 0
        """Bytes that were received once more."""
        self.lock = threading.Lock()

    def staged(self, entry: Mapping[str, Any]) -> int:
        """Return how many bytes of a file have arrived."""
        return beneath.size(self.staging, entry["store"]) or 0

    @property
    def size(self) -> int:
        """The bytes of the missing files."""
        return sum(int(entry["size"]) for entry in self.missing)

    def set_missing(self, missing: Sequence[Mapping[str, Any]]) -> None:
        """Set the files to receive, for the progress too; called again, other files of the same item."""
        self.missing = list(missing)
        if self.before < 0:
            self.before = sum(min(self.staged(entry), int(entry["size"])) for entry in missing)
            self.progress.state["before"] += self.before  # counted, but not part of the rate
        self.progress.state["total"] += self.size - self.announced
        self.announced = self.size
        self.progress.count = lambda: sum(self.staged(entry) for entry in self.missing)

    def result(self, route: Route | None, began: float) -> dict[str, Any]:
        """Return the result of a task, once the files have left the staging folder. began: by the monotonic clock."""
        self.progress.count = None
        self.progress.add(self.size)
        return {
            "bytes": self.size - self.before + self.repeated,
            "files": len(self.missing),
            "source": route.source if route else "",
            "link": route.kind if route else "",
            "encrypted": self.encrypted,
            "seconds": round(time.monotonic() - began, 3),
        }

    def take_from(self, route: Route) -> None:
        """Take the missing files from a source, in several streams. Raises C(Failed), or C(Wrong) for wrong digests."""
        shares = share_out((entry for entry in self.missing if entry["store"] not in self.verified), self.streams)
        self.stream_limit = self.limit / max(len(shares), 1)
        with ThreadPoolExecutor(max_workers=max(len(shares), 1)) as pool:
            links = [route.links[number % len(route.links)] for number in range(len(shares))]
            errors = [error for error in pool.map(self.take_share, [route] * len(shares), links, shares) if error]
        if errors:
            text = "; ".join(dict.fromkeys(map(str, errors)))
            raise (Wrong if any(isinstance(error, Wrong) for error in errors) else Failed)(text)

    def take_share(self, route: Route, link: Link, share: Sequence[Mapping[str, Any]]) -> Failed | None:
        """Take the files of one stream."""
        pending, source = list(share), route.source
        for _attempt in range(RECEIVE_TRIES):
            try:
                with self.open_stream(route, link) as receiver:
                    pending = [entry for entry in pending if not self.receive_file(receiver, entry)]
            except OSError as error:
                return Failed(f"taking files from {source} failed: {error}")
            if not pending:
                return None
            with self.lock:
                self.repeated += sum(int(entry["size"]) for entry in pending)
            for entry in pending:
                beneath.remove(self.staging, entry["store"])
        return Wrong(
            f"{pending[0]['path']} came from {source} {RECEIVE_TRIES} times with another SHA-256 than in the source's list; it was not used"
        )

    @contextlib.contextmanager
    def open_stream(self, route: Route, link: Link) -> Iterator[file_stream.Receiver]:
        """Yield a receiver: over TCP on a fabric, if allowed and possible, otherwise inside SSH."""
        if self.uses_tcp and link["kind"] == "fabric":
            with request(route, link, f"files {self.folder} {link['source']}") as process:
                try:
                    connection = file_stream.connect(link["own"], link["source"], read_line(process))
                except file_stream.NoConnection:
                    self.uses_tcp = False  # a firewall, for example, which leaves the port of SSH open
                else:
                    with connection, connection.makefile("rwb", buffering=0) as stream:
                        self.encrypted = False
                        yield file_stream.Receiver(stream, stream, self.stream_limit)
                        return
        with request(route, link, f"files {self.folder}") as process:
            if process.stdout and process.stdin:
                yield file_stream.Receiver(process.stdout, process.stdin, self.stream_limit)

    def receive_file(self, receiver: file_stream.Receiver, entry: Mapping[str, Any]) -> bool:
        """Receive the missing part of a file; returns whether the whole file has the expected digest."""
        store, size, digest = entry["store"], int(entry["size"]), hashlib.sha256()
        with beneath.folder(self.staging, str(Path(store).parent), make=True):
            pass
        if self.staged(entry) > size:  # not a part of this file
            beneath.remove(self.staging, store)
        with beneath.open_end(self.staging, store) as target:
            begin = os.fstat(target.fileno()).st_size
            if begin:
                with beneath.open_file(self.staging, store) as part:
                    while piece := part.read(CHUNK):
                        digest.update(piece)
            if begin < size:
                receiver.take(store, begin, size, target, digest)
                target.flush()
            beneath.drop_pages(target.fileno())
        is_right = digest.hexdigest() == str(entry["sha256"])
        if is_right:
            self.verified.add(store)
        return is_right


class Model:
    """One snapshot that this host pulls."""

    def __init__(self, task: Mapping[str, Any], progress: Progress, pull: Pull) -> None:
        self.task = task
        self.progress = progress
        self.pull = pull
        self.home = Path(task["hf_home"])
        self.repo = str(task["folder"])
        self.sums = spread_files.sums_of(self.repo)
        self.entries = {str(entry["store"]): entry for entry in task["files"]}
        self.staging = -1
        """Descriptor of the staging folder."""

    def bring(self) -> dict[str, Any]:
        """Pull the missing files, verify them and put them where the hub library looks; returns the result of the task."""
        self.home.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            with beneath.own_folder(self.home, STAGING) as self.staging:
                try:
                    return self.receive()
                finally:
                    for _path, folders, _files, at in os.fwalk(".", topdown=False, dir_fd=self.staging):
                        for name in folders:
                            with contextlib.suppress(OSError):  # not an empty folder
                                os.rmdir(name, dir_fd=at)
        finally:
            with contextlib.suppress(OSError), beneath.folder(self.home) as home:
                os.rmdir(STAGING, dir_fd=home)  # unless it holds parts of files

    def receive(self) -> dict[str, Any]:
        """Pull and publish the missing files; returns the result of the task."""
        began = time.monotonic()
        files = Files(self.task, self.progress, HUB, self.staging)
        files.set_missing([entry for entry in self.entries.values() if not self.is_whole(entry)])
        route = self.pull.run(lambda route, _description: files.take_from(route)) if files.missing else None
        self.publish(files.missing)
        return files.result(route, began)

    def path(self, entry: Mapping[str, Any]) -> str:
        """Return the path of a file in its place; its sum is recorded under that."""
        return f"{self.home}/hub/{entry['store']}"

    def is_whole(self, entry: Mapping[str, Any]) -> bool:
        """Whether a file is in its place already; a damaged one is taken out of use."""
        try:
            with beneath.open_file(self.home, f"hub/{entry['store']}") as handle:
                is_same = os.fstat(handle.fileno()).st_size == int(entry["size"]) and (
                    self.sums.digest_of(handle, self.path(entry)) == entry["sha256"]
                )
        except FileNotFoundError:
            return False
        if not is_same:
            put_aside(self.home, entry["store"], int(entry["size"]), self.repo)
        return is_same

    def publish(self, received: Sequence[Mapping[str, Any]]) -> None:
        """Move received files into the hub's layout: blobs first, then the snapshot, then the reference of the revision."""
        for entry in received:
            if "/snapshots/" not in entry["store"]:
                beneath.move(self.staging, entry["store"], self.home, f"hub/{entry['store']}")
                self.note_published(entry)
        commit = str(self.task["commit"])
        with beneath.folder(self.home, f"hub/{self.repo}", make=True) as root:
            if beneath.info(root, f"snapshots/{commit}") is not None:
                self.fill_snapshot(root, f"snapshots/{commit}", commit)
            else:
                draft = f"{self.repo}/drafts/{commit}"
                beneath.remove_tree(self.staging, draft)
                self.fill_snapshot(self.staging, draft, commit)
                with beneath.folder(root, "snapshots", make=True):
                    beneath.move(self.staging, draft, root, f"snapshots/{commit}")
            if self.task["revision"] != commit:
                beneath.write(root, f"refs/{self.task['revision']}", commit.encode())
        for entry in self.task["files"]:
            if not entry["link"]:
                self.note_published(entry)
        self.sums.save()
        beneath.remove_tree(self.staging, self.repo)

    def fill_snapshot(self, root: int, folder: str, commit: str) -> None:
        """Put the links and plain files of the snapshot into a folder."""
        for entry in self.task["files"]:
            path = f"{folder}/{entry['path']}"
            if entry["link"]:
                # Checked for the place where the link will be.
                beneath.link(root, path, safe_link(f"snapshots/{commit}/{entry['path']}", entry["link"]))
            elif beneath.info(root, path) is None:
                beneath.move(self.staging, entry["store"], root, path)

    def note_published(self, entry: Mapping[str, Any]) -> None:
        """Record a file that is in its place now."""
        info = beneath.info(self.home, f"hub/{entry['store']}")
        if info is not None:
            self.sums.note(beneath.stat_key(info), self.path(entry), entry["sha256"])


def verify_model(task: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Read every file of a snapshot, and take damaged files out of use.

    A file is damaged if its digest is neither the one in its name at the hub nor the one recorded when it was verified.
    """
    began = time.monotonic()
    home, repo = Path(task["hf_home"]), str(task["folder"])
    sums = spread_files.sums_of(repo)
    entries = list({entry["store"]: entry for entry in task["files"]}.values())

    def verify(entry: Mapping[str, Any]) -> str | None:
        try:
            with beneath.open_file(home, f"hub/{entry['store']}") as handle:
                key, (sha256, git) = beneath.stat_key(os.fstat(handle.fileno())), digests(handle)
        except (FileNotFoundError, beneath.Refused):
            return str(entry["path"])
        name = f"{home}/hub/{entry['store']}"
        progress.add(key[0])
        expected = (
            spread_files.named_digest(entry["store"]) or entry.get("sha256") or sums.recorded(name, key)[1] or sha256
        )
        if expected not in (sha256, git):
            sums.forget(name)
            put_aside(home, entry["store"], entry.get("whole_size"), repo)
            return str(entry["path"])
        sums.note(key, name, sha256)
        return None

    with ThreadPoolExecutor(max_workers=int(task["streams"])) as pool:
        damaged = sorted(filter(None, pool.map(verify, entries)))
    sums.save()
    read = sum(int(entry["size"] or 0) for entry in entries)
    return {"bytes": read, "damaged": damaged, "seconds": round(time.monotonic() - began, 3)}


# --- images -----------------------------------------------------------------------------------------------------------


def remove_others(staging: int, kept: Collection[str]) -> None:
    """Remove the files of a folder that are not in C(kept). staging: descriptor of the folder."""
    for name in beneath.names(staging):
        if name not in kept:
            beneath.remove(staging, name)


class Image:
    """One image that this host pulls, as the files of a saved image."""

    def __init__(self, task: Mapping[str, Any], progress: Progress, pull: Pull) -> None:
        self.task = task
        self.progress = progress
        self.pull = pull
        self.name = str(task.get("alias") or task["ref"])
        self.expected: Mapping[str, Any] = task["image"]
        self.folder = spread_files.SAVED / pull.item
        self.image_id = ""
        self.run = reader(DOCKER_SECONDS)

    def bring(self) -> dict[str, Any]:
        """Pull and load the image, and give it its name; returns the result of the task."""
        began = time.monotonic()
        self.folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with beneath.own_folder(self.folder.parent, self.folder.name) as staging:
            files = Files(self.task, self.progress, self.pull.item, staging)
            route = self.pull.run(lambda route, description: self.take_from(files, route, description))
            if not self.inspect([self.name]):
                reason = docker.act(self.run, "image", "tag", self.image_id, self.name)
                if reason:
                    raise Failed(
                        f"docker image tag {self.image_id} {self.name} failed on {socket.gethostname()}: {reason}"
                    )
            return files.result(route, began)

    def inspect(self, names: Sequence[str]) -> dict[str, Any] | None:
        """Return the first image that Docker has under one of some names. Raises C(Failed) if Docker does not answer."""
        try:
            images = docker.images(self.run, names)
        except (Unknown, NoAnswer) as error:
            # An image is not another one because Docker did not answer; it is not removed.
            raise Failed(f"{error} (on {socket.gethostname()})") from error
        return next((spread_files.describe(image) for image in images.values() if image), None)

    def take_from(self, files: Files, route: Route, description: str) -> None:
        """Receive the files of the image that this host needs, and load them. Raises C(Failed)."""
        where = f"the image of {route.source}"
        image = read(image_archive.SAVED, parse_json(description, where), where)
        entries = [{"store": name, "path": name, "size": size, "sha256": name} for name, size in image["files"].items()]
        remove_others(files.staging, image["files"])
        try:
            left_out = image_archive.present_files(image, docker.present_layers(self.run))
        except NoAnswer:
            left_out = set()
        while True:
            files.set_missing([entry for entry in entries if entry["store"] not in left_out])
            files.take_from(route)
            try:
                image_archive.load(image_archive.saved_members(self.folder, image, left_out), self.name)
                break
            except image_archive.UnexpectedContent as error:
                if not left_out:
                    raise Failed(f"loading {self.name} from {route.source} failed: {error}") from error
                left_out = set()  # the whole image needs none of the present layers
        present = self.inspect([self.expected["id"], self.name])
        if not present or not spread_files.same_image(self.expected, present):
            docker.act(self.run, "image", "rm", "--", self.name)
            raise Failed(
                f"{route.source} sent {self.name} as {(present or {}).get('id')}, not as {self.expected['id']}; it was removed again"
            )
        self.image_id = str(present["id"])
        if not left_out:
            spread_files.describe_saved(self.folder, self.image_id, image)
        else:
            remove_others(files.staging, ())  # a part of an image serves nobody


# --- the job ----------------------------------------------------------------------------------------------------------


def run_task(task: Mapping[str, Any], progress: Progress, folder: Path) -> dict[str, Any]:
    """Carry out a task of kind C(verify), C(model) or C(image); returns C(key), C(kind), C(ok), C(why), and details of the kind."""
    pull = Pull(task, folder)
    result: dict[str, Any] = {"key": task["key"], "kind": task["kind"], "ok": True, "why": ""}
    try:
        if task["kind"] == "verify":
            return {**result, **verify_model(task, progress)}
        result.update((Model if task["kind"] == "model" else Image)(task, progress, pull).bring())
    except (Failed, NoAnswer, OSError, ValueError, KeyError) as error:
        progress.count = None
        result.update(ok=False, why=str(error) or repr(error))
    if task["kind"] != "verify":
        result["failed"] = pull.failures
        beneath.write(folder, f"{ITEMS}/{pull.item}.{'ready' if result['ok'] else 'failed'}", b"", 0o600)
    return result


def run_job(tasks: Sequence[Mapping[str, Any]], progress: Progress, folder: Path) -> None:
    """Carry out tasks one after the other; a failed one does not stop the others.

    All hosts have their tasks in the same order, so that none waits for a host that waits for it.
    """
    progress.state["total"] = sum(int(task["bytes"]) for task in tasks)
    progress.write()
    following = threading.Thread(target=progress.follow, daemon=True)
    following.start()
    for task in tasks:
        progress.state["results"].append(run_task(task, progress, folder))
    progress.ended.set()
    following.join()
    progress.state["finished"] = True
    progress.write()


def main() -> None:
    """Run the job in the folder of the run."""
    folder = Path(sys.argv[1])
    job = parse_json((folder / JOB).read_text(encoding="utf-8"), JOB)
    run_job(job["tasks"], Progress(folder / STATE), folder)


if __name__ == "__main__":
    main()
