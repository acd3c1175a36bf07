# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What takes images and models from another node: hosts run a copy of this file, C(python3 spread_worker.py JOB STATE).

It receives into a staging folder below HF_HOME, compares every file with the digest that it was told, and only then
renames files into the layout of the hub. The standard library alone, Python 3.9.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NoReturn

sys.dont_write_bytecode = True

from dgxspark_vllm._common.foreign_text import decode_text, parse_json
from dgxspark_vllm._content import file_stream, image_layers, image_stream, spread_files
from dgxspark_vllm._content.spread_files import (
    CHUNK,
    STAGING,
    Failed,
    Wrong,
    digests,
    put_aside,
    safe,
    safe_link,
    stat_key,
)
from dgxspark_vllm._host import beneath

RUN_DIR = Path(os.environ.get("SPREAD_RUN_DIR") or "/run/dgxspark/spread")
TRIES = 2
"""How often a file is fetched whole; the second time because the first was not what the source said it sends."""
CONNECT_SECONDS = 5
LOOK_SECONDS = 0.5
"""Between two looks at which files of a stream have come."""
NO_IMAGE = b"no such image"
"""What Docker prints, in small letters, of an image that it does not have; any other failure is no answer."""

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


# --- progress ---------------------------------------------------------------------------------------------------------


class Progress:
    """The state file, rewritten once a second while work is under way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.state: dict[str, Any] = {
            "finished": False,
            "done": 0,
            "total": 0,
            "before": 0,
            "results": [],
        }
        self.counted = 0
        self.count: Callable[[], int] | None = None
        self.ended = threading.Event()

    def add(self, count: int) -> None:
        """Count bytes that have come."""
        with self.lock:
            self.counted += count

    def write(self) -> None:
        """Write the file, by one rename."""
        with self.lock:
            self.state["done"] = self.counted + (self.count() if self.count else 0)
            beneath.write(self.path.parent, self.path.name, json.dumps(self.state).encode())

    def follow(self) -> None:
        """Write it once a second, until the work has ended."""
        while not self.ended.wait(1):
            self.write()


# --- the way to the source --------------------------------------------------------------------------------------------


def reachable(link: Mapping[str, Any], port: int) -> bool:
    """Tell whether the source answers on one of its addresses, asked from the address that it expects us to have."""
    try:
        socket.create_connection((link["source"], port), CONNECT_SECONDS, (link["own"], 0)).close()
    except OSError:
        return False
    return True


def choose_links(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the addresses to take from: all that answer of the fastest kind that does."""
    for kind in ("fabric", "lan"):
        usable = [link for link in task["links"] if link["kind"] == kind and reachable(link, task["port"])]
        if usable:
            return usable
    tried = ", ".join(f"{link['source']} from {link['own']}" for link in task["links"])
    raise Failed(
        f"{task['source']} does not answer on port {task['port']} ({tried}); a firewall between the nodes? "
        "Open that port between them, or set spread_port to one that is open"
    )


def ssh_argv(task: Mapping[str, Any], link: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the command that reaches the source; nothing of the host's own ssh settings counts."""
    options = {
        "IdentityFile": folder / "client_key",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": folder / "known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlias": task["source"],
        "BatchMode": "yes",
        "BindAddress": link["own"],
        "ConnectTimeout": CONNECT_SECONDS * 3,
        "ServerAliveInterval": 15,
        "ServerAliveCountMax": 4,
        "Compression": "no",
        "Ciphers": "aes128-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr",
        "LogLevel": "ERROR",
    }
    words = ["ssh", "-F", "none", "-T", "-l", "root", "-p", str(task["port"])]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    return words


def last_words(text: bytes, program: str, code: int) -> str:
    """Return what a program said last, for a message: the cause comes before what followed from it."""
    lines = [line.strip() for line in decode_text(text).splitlines() if line.strip()]
    return (" / ".join(lines[-3:]) or "it printed nothing") + f" ({program} ended with {code})"


# --- models -----------------------------------------------------------------------------------------------------------


def share_out(files: Iterable[Mapping[str, Any]], streams: int) -> list[list[Mapping[str, Any]]]:
    """Deal files to streams, the largest first, each to the stream that has least."""
    hands: list[tuple[int, list[Mapping[str, Any]]]] = [(0, []) for _each in range(max(streams, 1))]
    for entry in sorted(files, key=lambda each: -int(each["size"])):
        place = min(range(len(hands)), key=lambda index: hands[index][0])
        total, hand = hands[place]
        hand.append(entry)
        hands[place] = (total + int(entry["size"]), hand)
    return [hand for _total, hand in hands if hand]


class Model:
    """One snapshot that this host takes from another."""

    def __init__(self, task: Mapping[str, Any], progress: Progress, folder: Path = RUN_DIR, run: Run = subprocess.run):
        self.task = task
        self.progress = progress
        self.folder = folder
        self.run = run
        self.home = Path(task["hf_home"])
        self.repo = safe(task["folder"])
        self.record = spread_files.read_record(self.repo)
        self.lock = threading.Lock()
        self.files = {safe(entry["store"]): entry for entry in task["files"]}
        self.links: list[Mapping[str, Any]] = []
        self.clear = False
        """Whether files come without encryption, which a fabric alone does, and each of them is hashed as it comes."""
        self.encrypted = True
        """Whether all that has come was encrypted."""
        self.staging = -1
        """Descriptor of the folder that files come into: root's alone, whatever the folders around it become."""
        self.again = 0
        self.wrong = False

    def bring(self) -> dict[str, Any]:
        """Take what is missing, verify it, put it where the hub library looks; returns how it went."""
        self.home.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            with beneath.own_folder(self.home, STAGING) as self.staging:
                try:
                    return self.receive()
                finally:
                    for _path, folders, _files, at in os.fwalk(".", topdown=False, dir_fd=self.staging):
                        for name in folders:
                            with contextlib.suppress(OSError):  # it is no empty folder
                                os.rmdir(name, dir_fd=at)
        finally:
            with contextlib.suppress(OSError), beneath.folder(self.home) as home:
                os.rmdir(STAGING, dir_fd=home)  # unless there is more to come in it

    def staged(self, entry: Mapping[str, Any]) -> int:
        """Return how much of a file has come."""
        return beneath.size(self.staging, entry["store"]) or 0

    def receive(self) -> dict[str, Any]:
        """Take what is missing, and say how it went."""
        began = time.monotonic()
        missing = [entry for entry in self.files.values() if not self.whole(entry)]
        self.progress.state["total"] += sum(int(entry["size"]) for entry in missing) - int(self.task["bytes"])
        self.links = choose_links(self.task) if missing else []
        self.clear = bool(self.task.get("clear") and self.links and self.links[0]["kind"] == "fabric")
        staged_before = sum(min(self.staged(entry), int(entry["size"])) for entry in missing)
        # What came earlier is counted, and is no rate.
        self.progress.state["before"] += staged_before
        self.progress.count = lambda: sum(self.staged(entry) for entry in missing)
        hands = share_out(missing, int(self.task["streams"]))
        with ThreadPoolExecutor(max_workers=max(len(hands), 1)) as pool:
            problems = [problem for problem in pool.map(self.take, range(len(hands)), hands) if problem]
        if problems:
            raise (Wrong if self.wrong else Failed)("; ".join(dict.fromkeys(problems)))
        self.publish(missing)
        received = sum(int(entry["size"]) for entry in missing)
        self.progress.count = None
        self.progress.add(received)
        return {
            "bytes": received - staged_before + self.again,
            "files": len(missing),
            "link": self.links[0]["kind"] if self.links else "",
            "encrypted": self.encrypted,
            "seconds": round(time.monotonic() - began, 3),
        }

    def whole(self, entry: Mapping[str, Any]) -> bool:
        """Tell whether a file is in its place already; one that is not what it should be leaves it."""
        try:
            with beneath.open_file(self.home, f"hub/{entry['store']}") as handle:
                verified = self.record.get(entry["store"]) or {}
                now = stat_key(handle)
                same = now[0] == int(entry["size"]) and bool(
                    (verified.get("mark") == now and verified.get("sha256") == entry["sha256"])
                    or digests(handle)[0] == entry["sha256"]
                )
        except FileNotFoundError:
            return False
        if same:
            self.note(entry, now)
        else:
            put_aside(self.home, entry["store"], int(entry["size"]), self.repo)
        return same

    def note(self, entry: Mapping[str, Any], now: list[int]) -> None:
        """Remember that a file was whole."""
        with self.lock:
            self.record[entry["store"]] = {"mark": now, "sha256": entry["sha256"]}

    def take(self, number: int, hand: Sequence[Mapping[str, Any]]) -> str:
        """One stream: take its files, verify them; returns what is wrong, or an empty text."""
        wanted = list(hand)
        why = ""
        for _attempt in range(TRIES):
            right: dict[str, bool] = {}
            why = self.fetch(number, wanted, right)
            if why:
                return why
            bad = [entry for entry in wanted if not right.get(entry["store"])]
            if not bad:
                return ""
            # What the source sends is not what it said, or what was staged was wrong: those files come anew.
            with self.lock:
                self.again += sum(int(entry["size"]) for entry in bad)
            for entry in bad:
                beneath.remove(self.staging, entry["store"])
            why = (
                f"{bad[0]['path']} came from {self.task['source']} {TRIES} times with another SHA-256 than that of "
                f"the source's list; it was not put to use"
            )
            wanted = bad
        self.wrong = True
        return why

    def fetch(self, number: int, files: Sequence[Mapping[str, Any]], right: dict[str, bool]) -> str:
        """Have a stream's files come, and compare each with what it should be.

        :param number: of the stream
        :param files: its files
        :param right: takes, by their names, whether they are
        :returns: why they did not come, or an empty text
        """
        if self.clear:
            try:
                return self.stream(number, files, right)
            except file_stream.NoWay:  # a firewall, say: SSH has a port that is open
                self.clear = False
        with ThreadPoolExecutor(max_workers=1) as pool:
            coming = pool.submit(self.rsync, number, files)
            while not wait([coming], timeout=LOOK_SECONDS).done:
                self.read_what_came(files, right)
            why = coming.result()
        if not why:
            self.read_what_came(files, right)
        return why

    def stream(self, number: int, files: Sequence[Mapping[str, Any]], right: dict[str, bool]) -> str:
        """Take a stream's files over a fabric, as C(fetch) does; raises C(file_stream.NoWay) before anything has come."""
        link = self.links[number % len(self.links)]
        argv = [*ssh_argv(self.task, link, self.folder), link["source"], f"files {link['source']}"]
        limit = float(self.task.get("limit_mbs") or 0) * 1e6 / int(self.task["streams"])
        # It ends when the connection does.
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as asking:
            try:
                told = asking.stdout.readline().decode("ascii", "replace") if asking.stdout else ""
                with file_stream.Receiver(link["own"], link["source"], told, limit) as receiver:
                    self.encrypted = False
                    for entry in files:
                        right[entry["store"]] = self.received(receiver, entry)
            except file_stream.NoWay:
                asking.terminate()
                raise
            except OSError as error:
                asking.terminate()
                return f"taking files from {self.task['source']} failed: {error}"
        return ""

    def received(self, receiver: file_stream.Receiver, entry: Mapping[str, Any]) -> bool:
        """Take the rest of a file, and tell whether it is what it should be."""
        size, digest = int(entry["size"]), hashlib.sha256()
        self.make_room(entry)
        with beneath.open_end(self.staging, entry["store"]) as target:
            begin = os.fstat(target.fileno()).st_size
            if begin:
                with beneath.open_file(self.staging, entry["store"]) as part:
                    while piece := part.read(CHUNK):
                        digest.update(piece)
            if begin < size:
                receiver.take(entry["store"], begin, size, target, digest)
                target.flush()
            beneath.drop_pages(target.fileno())
        return f"sha256:{digest.hexdigest()}" == str(entry["sha256"])

    def make_room(self, entry: Mapping[str, Any]) -> None:
        """Make the folder that a file comes into; what is longer than the file is no part of it."""
        with beneath.folder(self.staging, str(Path(entry["store"]).parent), make=True):
            pass
        if self.staged(entry) > int(entry["size"]):
            beneath.remove(self.staging, entry["store"])

    def read_what_came(self, files: Iterable[Mapping[str, Any]], right: dict[str, bool]) -> None:
        """Compare files that have come with what they should be, each once: rsync writes a file from its beginning to its end.

        :param files: those of a stream
        :param right: takes, by their names, whether they are
        """
        for entry in files:
            if entry["store"] not in right and self.staged(entry) == entry["size"]:
                right[entry["store"]] = self.right(entry)

    def right(self, entry: Mapping[str, Any]) -> bool:
        """Compare a file that has come with what it should be."""
        with beneath.open_file(self.staging, entry["store"]) as handle:
            return digests(handle)[0] == str(entry["sha256"])

    def rsync(self, number: int, files: Sequence[Mapping[str, Any]]) -> str:
        """Run rsync for a stream's files. A part that is there is not sent again: the digest tells whether it was right."""
        for entry in files:
            self.make_room(entry)
        names = self.folder / f"files.{number}"
        names.write_text("".join(f"{entry['store']}\0" for entry in files), encoding="utf-8")
        link = self.links[number % len(self.links)]
        shell = " ".join(ssh_argv(self.task, link, self.folder))
        argv = ["rsync", "--append", "--copy-links", "--times", "--no-implied-dirs", "--from0", f"--files-from={names}"]
        argv += ["--perms", "--chmod=F0644,D0755", "--timeout=120", f"--rsh={shell}", *self.limit()]
        # It goes into the open folder, by whatever name that is reached now.
        done = self.run(
            [*argv, f"{link['source']}::hub/", "./"],
            capture_output=True,
            check=False,
            cwd=f"/proc/self/fd/{self.staging}",
        )
        if done.returncode != 0:
            return f"taking files from {self.task['source']} failed: " + last_words(
                done.stderr, "rsync", done.returncode
            )
        return ""

    def limit(self) -> list[str]:
        """Return the option that spares the network, in KiB/s for each stream."""
        megabytes = float(self.task.get("limit_mbs") or 0)
        return [f"--bwlimit={max(int(megabytes * 1e6 / 1024 / int(self.task['streams'])), 1)}"] if megabytes else []

    def publish(self, received: Sequence[Mapping[str, Any]]) -> None:
        """Rename what has come into the hub's layout: blobs first, then the snapshot, then its name."""
        for entry in received:
            if "/snapshots/" in entry["store"]:
                continue
            beneath.move(self.staging, entry["store"], self.home, f"hub/{entry['store']}")
            self.put(entry)
        commit = safe(self.task["commit"])
        with beneath.folder(self.home, f"hub/{self.repo}", make=True) as root:
            there = beneath.info(root, f"snapshots/{commit}") is not None
            draft = f"{self.repo}/drafts/{commit}"
            build: tuple[int, str] = (root, f"snapshots/{commit}") if there else (self.staging, draft)
            if not there:
                beneath.remove_tree(self.staging, draft)
            for entry in self.task["files"]:
                path = f"{build[1]}/{safe(entry['path'])}"
                if entry["link"]:
                    # Judged where it is going to be.
                    beneath.link(build[0], path, safe_link(f"snapshots/{commit}/{entry['path']}", entry["link"]))
                elif beneath.info(build[0], path) is None:
                    beneath.move(self.staging, entry["store"], build[0], path)
            if not there:
                with beneath.folder(root, "snapshots", make=True):
                    beneath.move(self.staging, draft, root, f"snapshots/{commit}")
            if self.task["revision"] != commit:
                beneath.write(root, f"refs/{safe(self.task['revision'])}", commit.encode())
        for entry in self.task["files"]:
            if not entry["link"]:
                self.put(entry)
        spread_files.write_record(self.repo, self.record)
        beneath.remove_tree(self.staging, self.repo)

    def put(self, entry: Mapping[str, Any]) -> None:
        """Remember a file that has come into its place."""
        found = beneath.info(self.home, f"hub/{entry['store']}")
        if found is not None:
            self.note(entry, beneath.stat_key(found))


def verify_model(task: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Read every file of a snapshot that is not known to be whole, and take those that are damaged out of use.

    A file is damaged when its bytes are not what the hub named it by, or not what they were when it was verified.
    """
    began = time.monotonic()
    home, repo = Path(task["hf_home"]), safe(task["folder"])
    record = spread_files.read_record(repo)
    entries = list({entry["store"]: entry for entry in task["files"]}.values())

    def look(entry: Mapping[str, Any]) -> str | None:
        try:
            with beneath.open_file(home, f"hub/{safe(entry['store'])}") as handle:
                before, (sha256, git) = stat_key(handle), digests(handle)
        except (FileNotFoundError, beneath.Refused):
            return str(entry["path"])
        verified = record.get(entry["store"]) or {}
        progress.add(before[0])
        expected = spread_files.named_digest(entry["store"]) or entry.get("sha256") or verified.get("sha256") or sha256
        if expected not in (sha256, git):
            record.pop(entry["store"], None)
            put_aside(home, entry["store"], entry.get("whole_size"), repo)
            return str(entry["path"])
        record[entry["store"]] = {"mark": before, "sha256": sha256}
        return None

    with ThreadPoolExecutor(max_workers=int(task["streams"])) as pool:
        damaged = sorted(filter(None, pool.map(look, entries)))
    spread_files.write_record(repo, record)
    read = sum(int(entry["size"] or 0) for entry in entries)
    return {"bytes": read, "damaged": damaged, "seconds": round(time.monotonic() - began, 3)}


# --- images -----------------------------------------------------------------------------------------------------------


class Image:
    """One image that this host takes from another."""

    def __init__(self, task: Mapping[str, Any], progress: Progress, folder: Path = RUN_DIR, run: Run = subprocess.run):
        self.task = task
        self.progress = progress
        self.folder = folder
        self.run = run
        self.received = 0
        """Bytes that have come of it."""

    def inspect(self, ref: str) -> dict[str, Any] | None:
        """Return what the engine has under a name, None where it says that it has nothing.

        Raises C(Failed) where it does not say: an image is not another one, and not to be removed, because Docker did not answer.
        """
        done = self.run(["docker", "image", "inspect", "--", ref], capture_output=True, check=False)
        if done.returncode != 0:
            if NO_IMAGE in done.stderr.lower():
                return None
            self.fail("inspect", ref, last_words(done.stderr, "docker", done.returncode))
        try:
            return spread_files.describe(parse_json(done.stdout, "docker image inspect")[0])
        except (ValueError, LookupError, TypeError):
            self.fail("inspect", ref, "it printed no description of an image")

    def fail(self, verb: str, what: str, said: str) -> NoReturn:
        """Raise C(Failed) that names command, host and what Docker said."""
        raise Failed(f"docker image {verb} {what} failed on {socket.gethostname()}: {said}")

    def bring(self) -> dict[str, Any]:
        """Load the image as it is sent, and see that it is the one; the engine compares each layer with its digest."""
        began = time.monotonic()
        wanted, ref = self.task["image"], self.task["ref"]
        link = choose_links(self.task)[0]
        left_out = self.known_layers(link)
        try:
            received, loaded = self.stream(link, left_out)
        except Failed:
            if not left_out:
                raise
            # Whatever it was, all of the image needs nothing of what is here.
            self.progress.add(-self.received)
            received, loaded = self.stream(link)
        # Saved by digest or id it comes without a name, and other stores give it another id.
        names = loaded or [ref]
        found = next((image for image in map(self.inspect, [wanted["id"], *names]) if image), None)
        if not found or not spread_files.same_image(wanted, found):
            for name in names:
                self.run(["docker", "image", "rm", "--", name], capture_output=True, check=False)
            raise Failed(
                f"{self.task['source']} sent {ref} as {(found or {}).get('id')}, not as {wanted['id']}; "
                "it was removed again"
            )
        own = self.task.get("alias") or ref
        if not self.inspect(own):
            done = self.run(["docker", "image", "tag", str(found["id"]), own], capture_output=True, check=False)
            if done.returncode != 0:
                self.fail("tag", f"{found['id']} {own}", last_words(done.stderr, "docker", done.returncode))
        self.progress.add(max(int(wanted["size"]) - received, 0))
        return {"bytes": received, "link": link["kind"], "seconds": round(time.monotonic() - began, 3)}

    def known_layers(self, link: Mapping[str, Any]) -> list[str]:
        """Return names of the layers that need not come, as archives have them; none where that is not known."""
        asked = [*ssh_argv(self.task, link, self.folder), link["source"], f"layers {self.task['name']}"]
        try:
            there = image_layers.of_engine(self.printed)
            wanted = image_layers.read(self.printed(asked)) if there else []
        except (LookupError, ValueError):
            return []
        return image_layers.stored_as(wanted, image_layers.shared(wanted, there))

    def printed(self, argv: Sequence[str]) -> str:
        """Return what a program prints; raises C(LookupError) where it fails."""
        done = self.run(list(argv), capture_output=True, check=False)
        if done.returncode != 0:
            raise LookupError(argv[0])
        return bytes(done.stdout).decode()

    def stream(self, link: Mapping[str, Any], left_out: Sequence[str] = ()) -> tuple[int, list[str]]:
        """Copy from the source's C(docker save) into C(docker load).

        :param link: the addresses
        :param left_out: names of layers that the source is not to send
        :returns: how many bytes came, and what was loaded
        """
        errors = {name: self.folder / f"image.{name}" for name in ("ssh", "load")}
        limit = float(self.task.get("limit_mbs") or 0) * 1e6
        began, refused, self.received = time.monotonic(), "", 0
        guard = image_stream.ArchiveGuard(self.names())
        command = " ".join(["image", self.task["name"], *left_out])
        argv = [*ssh_argv(self.task, link, self.folder), link["source"], command]
        with (
            errors["ssh"].open("wb") as ssh_errors,
            errors["load"].open("wb") as load_errors,
            (self.folder / "image.out").open("w+b") as said,
            subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=ssh_errors) as sending,
            subprocess.Popen(
                ["docker", "load", "--quiet"], stdin=subprocess.PIPE, stdout=said, stderr=load_errors
            ) as loading,
        ):
            reader, writer = sending.stdout, loading.stdin
            try:
                while reader and writer:
                    # Popen promises IO[bytes]; a pipe is a BufferedReader, which has it.
                    piece = reader.read1(CHUNK)  # type: ignore[attr-defined]
                    if not piece:
                        break
                    writer.write(guard.feed(piece))
                    self.received += len(piece)
                    self.progress.add(len(piece))
                    if limit:
                        time.sleep(max(0.0, self.received / limit - (time.monotonic() - began)))
                if self.received:  # of nothing at all ssh says why
                    guard.end()
            except BrokenPipeError:
                sending.terminate()  # the engine refused what came; its own words follow
            except image_stream.UnexpectedContent as error:
                refused = str(error)
                loading.kill()  # before it has seen a name
                sending.terminate()
            if writer:
                try:
                    writer.close()
                except BrokenPipeError:
                    sending.terminate()
            codes = sending.wait(), loading.wait()
            said.seek(0)
            lines = decode_text(said.read()).splitlines()
        if refused and codes[0] in (0, -signal.SIGTERM):
            raise Failed(f"{self.task['source']} sent something else than {self.task['ref']}: {refused}")
        if any(codes):
            # The one that failed by itself: the engine refuses what ends too early, and ssh is ended when the engine refused.
            sent = codes[0] in (0, -signal.SIGTERM)
            text = errors["load" if sent else "ssh"].read_bytes()
            why = last_words(text, "docker load" if sent else "ssh", codes[1] if sent else codes[0])
            raise Failed(f"taking {self.task['ref']} from {self.task['source']} failed: {why}")
        # "Loaded image: NAME", or "Loaded image ID: sha256:..." of one without a name.
        names = [line.partition(": ")[2].strip() for line in lines if line.startswith("Loaded image")]
        asked = {image_stream.full_name(name) for name in self.names()}
        return self.received, [
            name for name in names if name.startswith("sha256:") or image_stream.full_name(name) in asked
        ]

    def names(self) -> list[str]:
        """Return the names that the image may come with: those that this host was told, not what the source says."""
        return [name for name in (self.task["ref"], self.task.get("alias"), self.task["name"]) if name]


# --- the job ----------------------------------------------------------------------------------------------------------


def one(task: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Carry out one part of a job."""
    if task["kind"] == "verify":
        return verify_model(task, progress)
    return Model(task, progress).bring() if task["kind"] == "model" else Image(task, progress).bring()


def work(job: Mapping[str, Any], progress: Progress) -> None:
    """Carry out a job, one thing after the other; one that fails leaves the others alone."""
    progress.state["total"] = sum(int(task["bytes"]) for task in job["tasks"])
    progress.write()
    following = threading.Thread(target=progress.follow, daemon=True)
    following.start()
    for task in job["tasks"]:
        about = {"key": task["key"], "kind": task["kind"], "source": task.get("source")}
        try:
            progress.state["results"].append({**about, "ok": True, "why": "", **one(task, progress)})
        except (Failed, OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            progress.count = None
            why = str(error) or repr(error)
            progress.state["results"].append({**about, "ok": False, "why": why, "wrong": isinstance(error, Wrong)})
    progress.ended.set()
    following.join()
    progress.state["finished"] = True
    progress.write()


def main(argv: Sequence[str]) -> int:
    """Run the job that a file describes."""
    job = parse_json(Path(argv[0]).read_text(encoding="utf-8"), argv[0])
    work(job, Progress(Path(argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
