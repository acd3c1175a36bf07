# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command that the keys of a distribution are restricted to: it gives peers the models and images of the run, and nothing else.

sshd runs it for each request, as C(python3 -m dgxspark_vllm._content.spread_server FOLDER). Requests: C(hold ID KIND) reserves an
image or snapshot for one peer per kind of network, C(files) sends files of models inside SSH and C(files ADDRESS) over TCP,
C(layers REF) lists the layers of an image, and C(image REF LAYER...) sends the image without these layers.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .._common.foreign_text import parse_json
from .._host import docker_commands
from . import file_stream
from .image_layers import members
from .image_stream import CHUNK, ArchiveGuard, Program, UnexpectedContent

SETTINGS = "served.json"
"""What peers may take: C(hub), the folder of models; C(clear), addresses without encryption; C(images), references."""
STATE = "state.json"
"""Progress of the job of this host, written once per second while it runs."""
ITEMS = "items"
"""Folder of the items that this host has (C(ID.ready)) or failed to get (C(ID.failed)), with locks (C(ID.KIND))."""
FREE, BUSY, COMING, GONE = "free", "busy", "coming", "gone"
"""Answers to C(hold): reserved for this peer; another peer takes it; this host does not have it yet; it will not get it."""
COMING_SECONDS = 300.0
"""Time without progress after which a job counts as dead. Jobs of a large play start minutes apart."""
ITEM = re.compile(r"[0-9a-f]{16}")
LAYER = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Access:
    """The files that peers may take, from the folder of the run."""

    folder: Path
    hub: Path
    clear: Sequence[str]
    images: Sequence[str]

    @classmethod
    def load(cls, folder: Path) -> Access:
        """Read the settings of the run. folder: of the run."""
        settings = parse_json((folder / SETTINGS).read_text(encoding="utf-8"), SETTINGS)
        return cls(folder, Path(settings["hub"]), settings["clear"], settings["images"])


def main() -> None:
    """Answer one request of a peer."""
    access = Access.load(Path(sys.argv[1]))
    verb, *words = os.environ.get("SSH_ORIGINAL_COMMAND", "").split(" ")
    answer = {"hold": hold, "files": send_files, "layers": list_layers, "image": send_image}.get(verb)
    try:
        if not answer or not answer(access, words):
            raise SystemExit("this key takes models and the images of this run, nothing else")
    except (OSError, UnexpectedContent) as error:
        raise SystemExit(str(error)) from error


def announce(line: str) -> None:
    """Send a line to the peer at once."""
    sys.stdout.write(line)
    sys.stdout.flush()


def hold(access: Access, words: Sequence[str]) -> bool:
    """Reserve an item for one peer until the peer closes its connection, or answer why that is not possible.

    :param access: of the run
    :param words: id of the item, and kind of the network; each network can serve a peer
    :returns: whether the request is allowed
    """
    if len(words) != 2 or not ITEM.fullmatch(words[0]) or words[1] not in ("fabric", "lan"):
        return False
    item, kind = words
    folder = access.folder / ITEMS
    if not (folder / f"{item}.ready").exists():
        announce(f"{COMING if is_coming(access.folder, item) else GONE}\n")
        return True
    with (folder / f"{item}.{kind}").open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(f"{BUSY}\n")
            return True
        announce(f"{FREE}\n")
        sys.stdin.buffer.read()
    return True


def is_coming(folder: Path, item: str) -> bool:
    """Whether this host may still get an item: it has not failed, and the job runs or is about to start."""
    if (folder / ITEMS / f"{item}.failed").exists():
        return False
    times = [path.stat().st_mtime for path in (folder / SETTINGS, folder / STATE) if path.exists()]
    return time.time() - max(times) < COMING_SECONDS


def send_files(access: Access, words: Sequence[str]) -> bool:
    """Send files of models inside SSH, or over TCP on an address; returns whether the request is allowed."""
    if words and (len(words) > 1 or words[0] not in access.clear):
        return False
    if words:
        file_stream.serve_connection(access.hub, words[0], announce)
    else:
        file_stream.serve_output(access.hub)
    return True


def list_layers(access: Access, words: Sequence[str]) -> bool:
    """Print the layers of an image; returns whether the request is allowed."""
    if len(words) != 1 or words[0] not in access.images:
        return False
    command = docker_commands.layers(words[0])
    os.execvp(command[0], command)


def send_image(access: Access, words: Sequence[str]) -> bool:
    """Write an archive of an image to standard output; returns whether the request is allowed.

    :param access: of the run
    :param words: reference of the image, and names of layers that the peer has
    """
    ref, *without = words or [""]
    if ref not in access.images or not all(map(LAYER.fullmatch, without)):
        return False
    command = docker_commands.save(ref)
    if not without:
        os.execvp(command[0], command)
    guard = ArchiveGuard([ref], members(without))
    with Program(command, stdout=subprocess.PIPE) as saving:
        if saving.stdout is None:
            raise UnexpectedContent("docker save has no output")
        while piece := saving.stdout.read1(CHUNK):  # type: ignore[attr-defined]
            sys.stdout.buffer.write(guard.feed(piece))
        if saving.wait():
            raise SystemExit(saving.returncode)
    guard.end()
    sys.stdout.buffer.flush()
    return True


if __name__ == "__main__":
    main()
