# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command that the keys of a distribution are restricted to: it gives peers the models and images of the run, and nothing else.

sshd runs it for each request, as C(python3 -m dgxspark_vllm._content.spread_server FOLDER). Requests: C(hold ID KIND) reserves an
image or snapshot for one peer per kind of network, C(files FOLDER) sends files of models (C(hub)) or of an image (its ID) inside SSH and
C(files FOLDER ADDRESS) over TCP. An image is saved into files when the first peer reserves it; the answer describes them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._common.foreign_text import parse_json
from .._host import docker
from .._runtime.command import NoAnswer, Unknown, reader
from . import file_stream, image_archive, spread_files

SETTINGS = "served.json"
"""What peers may take: C(hub) and C(saved), the folders of models and saved images; C(clear), addresses without encryption; C(images),
names on this host by id."""
STATE = "state.json"
"""Progress of the job of this host, written once per second while it runs."""
ITEMS = "items"
"""Folder of the items that this host has (C(ID.ready)) or failed to get (C(ID.failed)), with locks (C(ID.KIND))."""
FREE, BUSY, COMING, GONE = "free", "busy", "coming", "gone"
"""Answers to C(hold): reserved for this peer; another peer takes it; this host does not have it yet; it will not get it."""
COMING_SECONDS = 300.0
"""Time without progress after which a job counts as dead. Jobs of a large play start minutes apart."""
ITEM = re.compile(r"[0-9a-f]{16}")
HUB = "hub"
DOCKER_SECONDS = 120.0


def main() -> None:
    """Answer one request of a peer."""
    folder = Path(sys.argv[1])
    settings = parse_json((folder / SETTINGS).read_text(encoding="utf-8"), SETTINGS)
    verb, *words = os.environ.get("SSH_ORIGINAL_COMMAND", "").split(" ")
    answer = {"hold": hold, "files": send_files}.get(verb)
    try:
        if not answer or not answer(folder, settings, words):
            raise SystemExit("this key takes models and the images of this run, nothing else")
    except (OSError, Unknown, NoAnswer, image_archive.UnexpectedContent) as error:
        raise SystemExit(str(error)) from error


def announce(line: str) -> None:
    """Send a line to the peer at once."""
    sys.stdout.write(line)
    sys.stdout.flush()


def hold(run: Path, settings: Mapping[str, Any], words: Sequence[str]) -> bool:
    """Reserve an item, for one peer on each kind of network, until the peer closes its connection, or answer why not.

    :returns: whether the request is allowed
    """
    if len(words) != 2 or not ITEM.fullmatch(words[0]) or words[1] not in ("fabric", "lan"):
        return False
    item, kind = words
    folder = run / ITEMS
    if not (folder / f"{item}.ready").exists():
        announce(f"{COMING if is_coming(run, item) else GONE}\n")
        return True
    with (folder / f"{item}.{kind}").open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(f"{BUSY}\n")
            return True
        announce(f"{FREE}{' ' + describe_image(run, settings, item) if item in settings['images'] else ''}\n")
        sys.stdin.buffer.read()
    return True


def describe_image(run: Path, settings: Mapping[str, Any], item: str) -> str:
    """Return the description of an image in JSON, after saving it into files unless that was done.

    :raises OSError: if the disk has too little space
    :raises UnexpectedContent: if docker save fails
    """
    name, folder = settings["images"][item], Path(settings["saved"]) / item
    with (run / ITEMS / f"{item}.saving").open("ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # peers of two networks may come at once
        present = docker.images(reader(DOCKER_SECONDS), [name])[name]
        if not present:
            raise OSError(f"this host has no image {name} any more")
        image = spread_files.read_saved(folder, present["Id"])
        if image is None:
            draft = folder.with_name(folder.name + spread_files.DRAFT)
            for path in (folder, draft):
                shutil.rmtree(path, ignore_errors=True)
            draft.mkdir(mode=0o700, parents=True)
            free, size = shutil.disk_usage(draft).free, int(present.get("Size") or 0)
            if free < size:
                raise OSError(
                    f"{folder} has {free / 1e9:.2f} GB free, and the saved image {name} needs {size / 1e9:.2f} GB"
                )
            image = image_archive.save(name, draft)
            spread_files.describe_saved(draft, present["Id"], image)
            draft.rename(folder)
    return json.dumps(image, separators=(",", ":"))


def is_coming(folder: Path, item: str) -> bool:
    """Whether this host may still get an item: it has not failed, and the job runs or is about to start."""
    if (folder / ITEMS / f"{item}.failed").exists():
        return False
    times = [path.stat().st_mtime for path in (folder / SETTINGS, folder / STATE) if path.exists()]
    return time.time() - max(times) < COMING_SECONDS


def send_files(_run: Path, settings: Mapping[str, Any], words: Sequence[str]) -> bool:
    """Send files inside SSH, or over TCP on an address; returns whether the request is allowed.

    :param words: C(HUB) or the id of an image, and the address
    """
    folder, *address = words or [""]
    is_offered = folder == HUB or folder in settings["images"]
    if not is_offered or len(address) > 1 or not set(address) <= set(settings["clear"]):
        return False
    root = Path(settings["hub"]) if folder == HUB else Path(settings["saved"]) / folder
    if address:
        file_stream.serve_connection(root, address[0], announce)
    else:
        file_stream.serve_output(root)
    return True


if __name__ == "__main__":
    main()
