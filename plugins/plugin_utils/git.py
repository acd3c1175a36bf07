# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch one commit of a git repository that may belong to a stranger, and read its files. No program of the repository runs.

Git obeys the configuration of a repository that it opens, and several settings name programs. A repository on this machine is therefore never
opened: an empty repository of our own borrows its objects, and the commit is fetched from there. The fetch also computes every checksum, so the
commit's digits do pin the files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command

SECONDS = 300.0
MOST_BYTES = 256 * 1024**2
"""That git may print; folders that hold each other ten times over list more files than there are atoms."""
MOST_POINTER_BYTES = 4096
"""Of a file that names a folder of git; a path is no longer."""
SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.commitGraph=false",
    "core.pager=cat",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.version=2",  # serves a commit that no branch names
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
)
"""Win over every configuration file. What runs in the background would outlive the temporary folder."""
ENVIRONMENT = {"GIT_NO_LAZY_FETCH": "1", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_TERMINAL_PROMPT": "0"}
# An address needs the user's own configuration: proxy, credential helper, ssh command. Objects on this machine need none.
REMOTE = {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh"}
LOCAL = {"GIT_ALLOW_PROTOCOL": "file", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
KEPT = ("GIT_SSL_CAINFO",)
"""Variables of git that are passed on; all others of the caller would change which repository, program or configuration is used."""


class GitError(ValueError):
    """Git failed, or there is no such repository; the message says why."""


class Commit:
    """The files of one commit, in a temporary repository of our own."""

    def __init__(self, folder: str, commit: str) -> None:
        """Set repository and commit."""
        self._folder = folder
        self._commit = commit

    def files(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield path, mode, object name and bytes of each entry, as C(git ls-tree) has them; other than files have no size, so 0."""
        for entry in run_git(self._folder, "ls-tree", "-r", "-l", "-z", "--full-tree", self._commit).split(b"\0"):
            about, _tab, name = entry.partition(b"\t")
            words = about.decode("ascii", "replace").split()
            if len(words) == 4:
                yield name.decode("utf-8", "replace"), words[0], words[2], int(words[3]) if words[3].isdigit() else 0

    def read(self, blobs: list[str]) -> Iterator[bytes]:
        """Yield the contents of files."""
        names = "".join(f"{blob}\n" for blob in blobs).encode()
        data = run_git(self._folder, "cat-file", "--batch", stdin=names)
        for _blob in blobs:
            head, _line, data = data.partition(b"\n")
            size = int(head.split()[2])
            yield data[:size]
            data = data[size + 1 :]


@contextlib.contextmanager
def fetched_commit(origin: str, commit: str) -> Iterator[Commit]:
    """Fetch a commit into a temporary repository, which is removed afterwards.

    origin: folder of a clone, or address. commit: all its hexadecimal digits. Raises GitError for a missing repository or commit.
    """
    if shutil.which("git") is None:
        raise GitError("there is no git on the controller. Install it")
    with tempfile.TemporaryDirectory() as folder:
        place = unquote(origin[7:]) if origin.startswith("file://") else origin if origin.startswith("/") else ""
        if place:
            origin = _borrow(place, f"{folder}/borrowed", commit)
        _init(f"{folder}/fetched", commit)
        options = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--upload-pack=git-upload-pack")
        try:
            run_git(f"{folder}/fetched", "fetch", *options, "--", origin, commit, local=bool(place))
        except GitError as error:
            raise GitError(f"the commit {commit} cannot be fetched: {error}") from None
        if run_git(f"{folder}/fetched", "cat-file", "-t", commit).strip() != b"commit":
            raise GitError(f"{commit} is no commit")
        yield Commit(f"{folder}/fetched", commit)


def _init(folder: str, commit: str) -> None:
    Path(folder).mkdir()
    form = "sha256" if len(commit) == 64 else "sha1"
    run_git(folder, "init", "--quiet", "--bare", "--template=", f"--object-format={form}", ".")


def _borrow(place: str, folder: str, commit: str) -> str:
    """Make an empty repository that has the objects of another one and nothing else of it; return its address."""
    try:
        objects = str(_objects_of(Path(place)).resolve())
    except (OSError, ValueError) as error:
        raise error if isinstance(error, GitError) else GitError(f"it is no git repository: {error}") from None
    if "\n" in objects:
        raise GitError("its path has a line end, which git's list of borrowed objects cannot have")
    _init(folder, commit)
    Path(folder, "objects/info").mkdir(exist_ok=True)
    Path(folder, "objects/info/alternates").write_text(f"{objects}\n", encoding="utf-8", errors="surrogateescape")
    return f"file://{folder}"


def _objects_of(place: Path) -> Path:
    """Return the folder with the objects of a clone, a further worktree, a submodule or a bare repository."""
    if not place.is_dir():
        raise GitError("there is no such folder")
    git = place / ".git"
    if git.is_file():
        git = place / _pointer(git).removeprefix("gitdir:").strip()
    elif not git.is_dir():
        git = place
    if (git / "commondir").is_file():
        git = git / _pointer(git / "commondir").strip()
    if not (git / "objects").is_dir():
        raise GitError("it is no git repository")
    return git / "objects"


def _pointer(file: Path) -> str:
    with file.open(encoding="utf-8", errors="surrogateescape") as stream:
        return stream.read(MOST_POINTER_BYTES)


def run_git(folder: str, *words: str, stdin: bytes = b"", local: bool = True) -> bytes:
    """Run git in a repository of our own and return what it prints.

    words: what a stranger chose stands behind C(--). local: needs no other machine, and so none of the user's configuration. Raises GitError with
    git's last line if it fails.
    """
    settings = [word for setting in SETTINGS for word in ("-c", setting)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key in KEPT}
    answer = command.run(
        ["git", *settings, *words],
        SECONDS,
        data=stdin,
        limit=MOST_BYTES,
        cwd=folder,
        env={**environment, **ENVIRONMENT, **(LOCAL if local else REMOTE)},
        encoding="latin-1",
    )
    if answer.state != command.FINISHED:
        raise GitError(answer.why)
    if answer.rc:
        lines = answer.err.encode("latin-1").decode("utf-8", "replace").strip().splitlines()
        raise GitError(lines[-1] if lines else "git failed without a word")
    return answer.out.encode("latin-1")
