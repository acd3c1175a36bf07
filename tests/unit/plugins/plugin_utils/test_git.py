# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that a stranger's repository, or the caller's environment, plants for git: none of them runs. Real repositories and real git."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import recipe_references
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import git as hardened

RECIPE = "name: one\ncontainer: registry.example/vllm:1\ncommand: vllm serve org/One\n"
MISSING = "1" * 40
HOOKS = (
    *("applypatch-msg", "fsmonitor-watchman", "post-checkout", "post-index-change", "post-merge", "post-rewrite", "pre-auto-gc"),
    *("pre-push", "pre-receive", "proc-receive", "push-to-checkout", "reference-transaction", "update"),
)  # fmt: skip

CONFIGURATION = {
    "promisor": "[core]\nrepositoryformatversion = 1\n[extensions]\npartialClone = origin\n"
    '[remote "origin"]\nurl = file:///nowhere\npromisor = true\nuploadpack = PROGRAM\n',
    "promisor over ssh": "[core]\nrepositoryformatversion = 1\nsshCommand = PROGRAM\n[extensions]\npartialClone = origin\n"
    '[remote "origin"]\nurl = ssh://git@example.org/x\npromisor = true\n',
    "promisor by a remote helper": "[core]\nrepositoryformatversion = 1\n[extensions]\npartialClone = origin\n"
    '[remote "origin"]\nurl = ext::PROGRAM\npromisor = true\n[protocol "ext"]\nallow = always\n',
    "file system monitor": "[core]\nfsmonitor = PROGRAM\n",
    "hooks": "[core]\nhooksPath = HOOKS\n",
    "difference": "[diff]\nexternal = PROGRAM\n",
    "attributes": '[diff "evil"]\ntextconv = PROGRAM\ncommand = PROGRAM\n[merge "evil"]\ndriver = PROGRAM\n'
    '[filter "evil"]\nsmudge = PROGRAM\nclean = PROGRAM\nprocess = PROGRAM\nrequired = true\n',
    "pager": "[core]\npager = PROGRAM\n[pager]\nls-tree = PROGRAM\ncat-file = PROGRAM\nfetch = PROGRAM\n",
    "pack of objects": "[uploadpack]\npackObjectsHook = PROGRAM\n",
    "alternate references": "[core]\nalternateRefsCommand = PROGRAM\n",
    "included file": "[include]\npath = INCLUDED\n",
    "included file by folder": '[includeIf "gitdir:/**"]\npath = INCLUDED\n[includeIf "onbranch:*"]\npath = INCLUDED\n',
    "logins": "[credential]\nhelper = !PROGRAM\n[core]\naskPass = PROGRAM\n",
    "other addresses": '[url "ext::PROGRAM "]\ninsteadOf = file://\ninsteadOf = /\n[protocol]\nallow = always\n',
    "aliases": '[alias]\ncat-file = "!PROGRAM"\nls-tree = "!PROGRAM"\nupload-pack = "!PROGRAM"\n',
    "proxy": "[core]\ngitProxy = PROGRAM\n",
    "submodules": "[submodule]\nrecurse = true\n[fetch]\nrecurseSubmodules = true\n"
    '[submodule "evil"]\nurl = ext::PROGRAM\nupdate = !PROGRAM\nactive = true\n',
    "upkeep": "[gc]\nauto = 1\nautoPackLimit = 1\nrecentObjectsHook = PROGRAM\n[maintenance]\nauto = true\n",
    "signatures": "[log]\nshowSignature = true\n[gpg]\nprogram = PROGRAM\n",
    "not a configuration": "[core\n",
}
"""What a stranger may write into .git/config; PROGRAM notes that it ran."""


def git(folder: Path, *words: str, **env: str) -> str:
    """Run git as the stranger who makes the repository."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *who, *words],
        cwd=folder,
        env={**clean, "GIT_CONFIG_GLOBAL": "/dev/null", **env},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with one recipe, whose attributes name a driver for everything."""
    folder = tmp_path / "clone"
    (folder / "recipes").mkdir(parents=True)
    (folder / "recipes/one.yaml").write_text(RECIPE)
    (folder / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    (folder / ".gitmodules").write_text('[submodule "evil"]\n\tpath = sub\n\turl = ext::touch\n\tupdate = !touch\n')
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "recipes")
    return folder


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that leaves a file, and fails."""
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
    path.chmod(0o755)
    return path


def files_of(origin: str, commit: str) -> dict[str, bytes]:
    with hardened.fetched_commit(origin, commit) as fetched:
        files = [(path, blob) for path, mode, blob, _size in fetched.files() if mode.startswith("100")]
        return dict(zip([path for path, _blob in files], fetched.read([blob for _path, blob in files]), strict=True))


def plant_hooks(folder: Path, program: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in HOOKS:
        shutil.copy2(program, folder / name)


@pytest.mark.parametrize("way", ["path", "address", "worktree", "bare"])
@pytest.mark.parametrize("name", CONFIGURATION)
def test_no_program_of_a_repository_runs(tmp_path: Path, clone: Path, program: Path, name: str, way: str) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    place = clone
    if way == "worktree":
        place = tmp_path / "worktree"
        git(clone, "worktree", "add", "--quiet", str(place))
    elif way == "bare":
        place = tmp_path / "bare.git"
        git(tmp_path, "clone", "--quiet", "--bare", str(clone), str(place))
    folder = place if way == "bare" else clone / ".git"
    included = (
        f"[core]\nfsmonitor = {program}\nhooksPath = {tmp_path}/hooks\n[uploadpack]\npackObjectsHook = {program}\n"
    )
    (tmp_path / "included").write_text(included)
    plant_hooks(tmp_path / "hooks", program)
    plant_hooks(folder / "hooks", program)
    text = CONFIGURATION[name].replace("PROGRAM", str(program)).replace("HOOKS", f"{tmp_path}/hooks")
    with (folder / "config").open("a") as file:
        file.write(text.replace("INCLUDED", f"{tmp_path}/included"))
    origin = f"file://{place}" if way == "address" else str(place)
    assert files_of(origin, commit)["recipes/one.yaml"] == RECIPE.encode()
    with pytest.raises(hardened.GitError, match=MISSING):
        files_of(origin, MISSING)
    assert not (tmp_path / "ran").exists()


def test_the_programs_do_run_where_git_is_not_held_back(tmp_path: Path, clone: Path, program: Path) -> None:
    """Otherwise the test above would show nothing."""
    with (clone / ".git/config").open("a") as file:
        file.write(CONFIGURATION["promisor"].replace("PROGRAM", str(program)))
    with pytest.raises(subprocess.CalledProcessError):
        git(clone, "cat-file", "-t", MISSING)
    assert (tmp_path / "ran").exists()


def test_variables_of_the_caller_change_nothing(
    tmp_path: Path, clone: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    (tmp_path / "exec").mkdir()
    for name in ("git-upload-pack", "git-fetch", "git-remote-file", "git-pack-objects"):
        shutil.copy2(program, tmp_path / "exec" / name)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text(
        f"[uploadpack]\npackObjectsHook = {program}\n[core]\nfsmonitor = {program}\n"
    )
    plant_hooks(tmp_path / "template", program)
    plant_hooks(tmp_path / "template/hooks", program)
    variables = {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": "/nowhere",
        "GIT_ASKPASS": str(program),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.fsmonitor",
        "GIT_CONFIG_VALUE_0": str(program),
        "GIT_CONFIG_GLOBAL": str(tmp_path / "home/.gitconfig"),
        "GIT_CONFIG_PARAMETERS": f"'uploadpack.packObjectsHook={program}'",
        "GIT_CONFIG_SYSTEM": str(tmp_path / "home/.gitconfig"),
        "GIT_DIR": "/nowhere",
        "GIT_EXEC_PATH": str(tmp_path / "exec"),
        "GIT_EXTERNAL_DIFF": str(program),
        "GIT_INDEX_FILE": "/nowhere",
        "GIT_OBJECT_DIRECTORY": "/nowhere",
        "GIT_PAGER": str(program),
        "GIT_PROXY_COMMAND": str(program),
        "GIT_SSH_COMMAND": str(program),
        "GIT_TEMPLATE_DIR": str(tmp_path / "template"),
        "GIT_TRACE": str(tmp_path / "ran"),
        "GIT_WORK_TREE": "/nowhere",
        "HOME": str(tmp_path / "home"),
        "PAGER": str(program),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert files_of(str(clone), commit)["recipes/one.yaml"] == RECIPE.encode()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c touch% ran",
        "ext::PROGRAM",
        "fd::17",
        "-oProxyCommand=PROGRAM@host:x",
        "--upload-pack=PROGRAM",
        "ssh://-oProxyCommand=PROGRAM/x",
        "ssh://git@-oProxyCommand=PROGRAM/x",
        "me@-oProxyCommand=PROGRAM:x",
        "transport::PROGRAM",
    ],
)
def test_an_address_is_no_option_and_no_program(tmp_path: Path, program: Path, url: str) -> None:
    url = url.replace("PROGRAM", str(program))
    with pytest.raises(hardened.GitError):
        files_of(url, MISSING)
    assert not (tmp_path / "ran").exists() and not Path("ran").exists()
    if not url.startswith("ssh:"):  # those with a known scheme are git's to refuse
        sources, wrong = recipe_references.read_sources([{"name": "a", "url": url, "commit": MISSING}], "host x")
        assert sources == {} and "must be an address" in wrong[0]


def test_what_borrows_objects_of_others_is_read(tmp_path: Path, clone: Path) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    git(tmp_path, "clone", "--quiet", "--shared", str(clone), "shared")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{clone}", "shallow")
    for name in ("shared", "shallow"):
        assert files_of(str(tmp_path / name), commit)["recipes/one.yaml"] == RECIPE.encode()


def test_a_repository_with_longer_names_of_objects_is_read(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(RECIPE)
    git(tmp_path, "init", "--quiet", "--object-format=sha256")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "-m", "x")
    assert files_of(str(tmp_path), git(tmp_path, "rev-parse", "HEAD")) == {"one.yaml": RECIPE.encode()}


def test_a_commit_stands_for_its_files_alone(tmp_path: Path, clone: Path) -> None:
    """A replaced commit, or an object with other content, does not pass for the pinned one."""
    commit = git(clone, "rev-parse", "HEAD")
    (clone / "recipes/one.yaml").write_text("evil\n")
    git(clone, "commit", "--quiet", "--all", "-m", "evil")
    git(clone, "replace", commit, "HEAD")
    assert git(clone, "show", f"{commit}:recipes/one.yaml") == "evil"
    assert files_of(str(clone), commit)["recipes/one.yaml"] == RECIPE.encode()
    git(clone, "replace", "-d", commit)
    blob = git(clone, "rev-parse", f"{commit}:recipes/one.yaml")
    place = clone / ".git/objects" / blob[:2] / blob[2:]
    place.chmod(0o644)
    place.write_bytes(zlib.compress(b"blob 5\0evil\n"))
    with pytest.raises(hardened.GitError):
        files_of(str(clone), commit)


def test_folders_that_hold_each_other_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "--quiet", "--bare", ".")
    blob = subprocess.run(
        ["git", "hash-object", "-w", "--stdin"], cwd=tmp_path, input=b"x", capture_output=True, check=True
    ).stdout.decode()
    listing = "".join(f"100644 blob {blob.strip()}\tf{number}.yaml\n" for number in range(10))
    for _level in range(9):  # a billion files
        done = subprocess.run(
            ["git", "mktree"], cwd=tmp_path, input=listing, capture_output=True, check=True, text=True
        )
        tree = done.stdout.strip()
        listing = "".join(f"040000 tree {tree}\td{number}\n" for number in range(10))
    commit = git(tmp_path, "commit-tree", "-m", "x", tree)
    monkeypatch.setattr(hardened, "MOST_BYTES", 2**20)
    started = time.monotonic()
    with pytest.raises(hardened.GitError, match="printed more than 1048576 bytes"):
        files_of(str(tmp_path), commit)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("content", ["gitdir: /nowhere\n", "gitdir: \x00\n", "x" * 5000, ""])
def test_a_folder_that_is_no_repository(tmp_path: Path, content: str) -> None:
    (tmp_path / ".git").write_text(content)
    with pytest.raises(hardened.GitError, match="no git repository"):
        files_of(str(tmp_path), MISSING)


def test_a_git_that_hangs_is_given_up_with_all_that_it_started(
    tmp_path: Path, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    os.mkfifo(clone / ".git/objects/info/alternates")  # its reader waits for ever
    monkeypatch.setattr(hardened, "SECONDS", 2.0)
    with pytest.raises(hardened.GitError, match="git did not answer in 2 s"):
        files_of(str(clone), commit)
    waiting = [
        path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in contents(path) and b"git" in contents(path)
    ]  # fmt: skip
    assert waiting == []


def contents(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve repositories below a folder by git's own protocol."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["git", "daemon", "--export-all", f"--base-path={folder}", "--listen=127.0.0.1", f"--port={port}"]
    daemon = subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        for _try in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"git://127.0.0.1:{port}"
    finally:
        os.killpg(daemon.pid, signal.SIGTERM)
        daemon.wait()


def test_a_repository_is_fetched_from_its_address(tmp_path: Path, clone: Path) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    with served(tmp_path) as address:
        assert files_of(f"{address}/clone", commit)["recipes/one.yaml"] == RECIPE.encode()
        with pytest.raises(hardened.GitError, match=f"the commit {MISSING} cannot be fetched"):
            files_of(f"{address}/clone", MISSING)
