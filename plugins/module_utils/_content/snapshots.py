# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Model snapshots in the layout of HF_HOME: their files, their completeness, and the program that downloads one.

Layout (huggingface_hub): C(hub/models--ORG--NAME/{refs,snapshots,blobs}); a ref is a file that holds a commit, a
snapshot a folder of links to blobs.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, NamedTuple

from .._common.foreign_text import parse_json
from .._host import beneath, containers
from .file_sums import Sums

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
MOST_OF_A_REF = 4096
MOST_OF_AN_INDEX = 64 * 2**20
PAPERS = (
    "*.md",
    "license*",
    "notice*",
    ".gitattributes",
    ".gitignore",
    "*.png",
    "*.jpg",
    "*.jpeg",
    "*.gif",
    "*.svg",
    "*.pdf",
)
"""Files of a repository, in lower case, that no engine reads."""
WEIGHT_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
TOKENIZER_FILES = ("*.jinja", "*.json", "*.model", "*.txt")
"""What an engine reads of a repository that it has for the tokenizer alone; none has files of every kind."""

COPY = re.compile(r"(?:original|metal)/.*\.(?:safetensors|bin|pth?|gguf)|model-\d+-of-\d+\.safetensors", re.ASCII)
"""Weights that a repository may hold once more, in a form that vLLM does not read where an index or model.safetensors names others.

A pytorch_model.bin does not count: it is a program for its loader, so it is downloaded, locked and checked as any file.
"""

# Runs in a container of the serving image, which carries huggingface_hub; prints one JSON line of totals, then the
# path of the snapshot. Its arguments come as JSON on the command line, the token by HF_TOKEN_PATH.
FETCH_PROGRAM = """\
import fnmatch, glob, json, os, re, shutil, sys
from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
want = json.loads(sys.argv[1])
api = HfApi(endpoint=want["endpoint"] or None)
info = api.model_info(want["repo"], revision=want["revision"], files_metadata=True)
only = want["only"] or None
files = [f for f in info.siblings if not only or any(fnmatch.fnmatch(f.rfilename, p) for p in only)]
names, index, hub = {f.rfilename for f in files}, "model.safetensors.index.json", want["endpoint"] or None
shards = {"model.safetensors"} & names
if index in names and not only:
    folder = snapshot_download(want["repo"], revision=info.sha, allow_patterns=[index], ignore_patterns=None, endpoint=hub)
    with open(os.path.join(folder, index), encoding="utf-8") as file:
        shards = set(json.load(file)["weight_map"].values())
# Weights that are there once more in another form stay where they are, unless the lock has them.
copies = {n for n in names if re.fullmatch(want["copies"], n)} - shards - set(want["keep"])
skip = sorted(copies) if shards and shards <= names and not only else []
files = [f for f in files if f.rfilename not in skip]
print(json.dumps({"commit": info.sha, "files": len(files), "bytes": sum(f.size or 0 for f in files)}), flush=True)
home = os.environ["HF_HOME"]
parts = glob.glob(home + "/hub/models--" + want["repo"].replace("/", "--") + "/blobs/*.incomplete")
there = [isinstance(try_to_load_from_cache(want["repo"], f.rfilename, revision=info.sha), str) for f in files]
need = sum(f.size or 0 for f, has in zip(files, there) if not has) - sum(os.path.getsize(part) for part in parts)
free = shutil.disk_usage(home).free
if need > free:
    sys.exit(f"No space left: {need / 1e9:.2f} GB are to come, {free / 1e9:.2f} GB are free; nothing was fetched")
path = snapshot_download(
    want["repo"], revision=want["revision"], allow_patterns=only, ignore_patterns=skip or None, endpoint=hub
)
print(path, flush=True)
"""


def repo_folder(hf_home: Path, repo: str) -> Path:
    """Return the folder of a model below HF_HOME."""
    return hf_home / "hub" / ("models--" + repo.replace("/", "--"))


class File(NamedTuple):
    """A file of a snapshot."""

    real: str
    """Where its bytes are, below the folder of the model."""
    size: int

    @property
    def blob(self) -> str:
        """Name of the blob that it is a link to, empty for a plain file."""
        return self.real[len("blobs/") :] if self.real.startswith("blobs/") else ""


def _model(snapshot: Path) -> AbstractContextManager[int]:
    """Open the folder of the model that a snapshot is of; nothing below HF_HOME that is a link is followed."""
    folder = snapshot.parents[1]
    return beneath.folder(folder.parents[1], f"{folder.parent.name}/{folder.name}")


def listing(snapshot: Path) -> tuple[dict[str, File], dict[str, str]]:
    """Return the files of a snapshot by their names in the repository, and messages about invalid names.

    A file is present if it, or its link's target, is a regular file of the model's own folder. The target of a link elsewhere is
    neither looked at nor used.
    """
    files: dict[str, File] = {}
    wrong: dict[str, str] = {}
    top = f"snapshots/{snapshot.name}"
    try:
        with _model(snapshot) as model:
            for path, _info in beneath.walk(model, top):
                name = path[len(top) + 1 :]
                try:
                    real = beneath.find(model, path)
                    size = beneath.size(model, real)
                except FileNotFoundError:
                    wrong[name] = "is missing"
                except beneath.Refused:
                    wrong[name] = "leads out of the model's folder"
                else:
                    if size is None:
                        wrong[name] = "is no regular file"
                    else:
                        files[name] = File(real, size)
    except FileNotFoundError:
        pass
    return files, wrong


def commit_of(hf_home: Path, repo: str, revision: str) -> str | None:
    """Return the commit that a revision stands for on this host, or None."""
    if COMMIT.fullmatch(revision):
        return revision
    try:
        content = beneath.read(hf_home, f"hub/{repo_folder(hf_home, repo).name}/refs/{revision}", MOST_OF_A_REF)
    except OSError:
        return None
    text = content.decode("utf-8", "replace").strip()
    return text if COMMIT.fullmatch(text) else None


def _shards(snapshot: Path, files: Mapping[str, File], index: str) -> set[str] | None:
    """Return the shards that an index of a snapshot names, or None."""
    try:
        with _model(snapshot) as model:
            content = beneath.read(model, files[index].real, MOST_OF_AN_INDEX)
        return {str(shard) for shard in parse_json(content, index)["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def copies(snapshot: Path, files: Mapping[str, File]) -> set[str]:
    """Return the weights of a snapshot in a second format, which no engine reads next to the named one.

    Nothing is a copy before all that the index names is there.
    """
    named = _shards(snapshot, files, WEIGHT_INDEXES[0]) if WEIGHT_INDEXES[0] in files else None
    shards = named if named is not None else {"model.safetensors"} & set(files)
    if not shards or not shards <= set(files):
        return set()
    return {name for name in files if COPY.fullmatch(name)} - shards


def _missing(
    snapshot: Path, files: Mapping[str, File], wrong: Mapping[str, str], only: Sequence[str] = ()
) -> dict[str, str]:
    """Return what a snapshot lacks, with the reason: shards that its index names, an index that cannot be read, bad links."""
    missing = dict(wrong)
    for index in WEIGHT_INDEXES:
        shards = _shards(snapshot, files, index) if index in files else set()
        if shards is None:
            missing[index] = "is no index that can be read"
            continue
        # The index of a repository of which selected files are wanted names others too.
        selected = {shard for shard in shards if not only or any(fnmatch.fnmatch(shard, pattern) for pattern in only)}
        missing |= dict.fromkeys(selected - set(files) - set(missing), "is missing")
    return dict(sorted(missing.items()))


def look(hf_home: Path, repo: str, revision: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """Return the state of a model at a revision on the host.

    A snapshot of selected files is complete when its folder holds any of them.

    :param only: patterns of the files that are wanted; all when empty
    :returns: C(commit) (or None), C(path) of the snapshot, C(complete), C(missing) (why it is not complete) and
        C(bytes)
    """
    commit = commit_of(hf_home, repo, revision)
    state: dict[str, Any] = {"commit": commit, "path": None, "complete": False, "missing": [], "bytes": 0}
    if commit is None:
        return state
    snapshot = repo_folder(hf_home, repo) / "snapshots" / commit
    try:
        with beneath.folder(hf_home, f"hub/{snapshot.parents[1].name}/snapshots/{commit}"):
            pass
    except beneath.Refused as error:
        state["missing"] = [str(error)]
        return state
    except OSError:
        return state
    state["path"] = str(snapshot)
    files, wrong = listing(snapshot)
    state["missing"] = list(_missing(snapshot, files, wrong, only))
    state["bytes"] = sum(file.size for file in files.values())
    has_weights = any(name.endswith((".safetensors", ".bin", ".gguf")) for name in files)
    state["complete"] = bool(files) and not state["missing"] and (has_weights or bool(only))
    return state


def present(hf_home: Path) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the models, ORG/NAME, that have at least one whole snapshot, weights or selected files.

    :returns: each with the C(commits) that are whole, C(refs), the commit that each branch or tag stands for on this host, and where
        there are some, C(selected), the commits that have the files of a tokenizer but not all weights; and the models whose folder
        cannot be read, with the reason
    """
    snapshots: dict[str, dict[str, Any]] = {}
    unreadable: dict[str, str] = {}
    for folder in models_of(hf_home):
        repo = folder[len("models--") :].replace("--", "/", 1)
        try:
            commits = entries(hf_home, f"hub/{folder}/snapshots")
            complete = [commit for commit in commits if look(hf_home, repo, commit, only=["*"])["complete"]]
            selected = [
                commit
                for commit in commits
                if commit not in complete and look(hf_home, repo, commit, only=TOKENIZER_FILES)["complete"]
            ]
            refs = refs_of(hf_home, repo, folder)
        except Exception as error:  # the other models are still read
            unreadable[repo] = f"{hf_home}/hub/{folder} cannot be read: {error!r}"
            continue
        if complete or selected:
            model = {"commits": complete, "refs": refs}
            snapshots[repo] = {**model, "selected": selected} if selected else model
    return snapshots, unreadable


def refs_of(hf_home: Path, repo: str, folder: str) -> dict[str, str]:
    """Return the commit of each branch and tag of a model. folder: below hub."""
    top = f"hub/{folder}/refs"
    names = [path[len(top) + 1 :] for path, _info in _walk(hf_home, top)]
    return {name: commit for name in names if (commit := commit_of(hf_home, repo, name))}


def models_of(hf_home: Path) -> list[str]:
    """Return the names of the folders of models below HF_HOME."""
    return [name for name in entries(hf_home, "hub") if name.startswith("models--")]


def entries(hf_home: Path, relative: str) -> list[str]:
    """Return the content of a folder below HF_HOME; empty for a missing folder or a link."""
    try:
        with beneath.folder(hf_home, relative) as at:
            return beneath.names(at)
    except OSError:
        return []


def _walk(hf_home: Path, relative: str) -> list[tuple[str, os.stat_result]]:
    try:
        return list(beneath.walk(hf_home, relative))
    except OSError:
        return []


def sha256_of(file: Path) -> str:
    """Return the sum of a file that nobody else can exchange."""
    with file.open("rb", buffering=0) as handle:
        return beneath.sha256_of(handle)


def _chosen(names: Iterable[str], only: Sequence[str]) -> list[str]:
    return sorted(name for name in names if not only or any(fnmatch.fnmatch(name, pattern) for pattern in only))


def describe_files(
    snapshot: Path, sums: Sums, only: Sequence[str] = (), verify: bool = False
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return size, sum and blob of each file of a snapshot except C(copies) of weights, and messages about bad files.

    The hub library names the blobs of large files by their sum; those are read only on request. All others are.

    :param verify: read large files too
    """
    files: dict[str, dict[str, Any]] = {}
    files_present, wrong = listing(snapshot)
    problems = [f"{name} {why}" for name, why in _missing(snapshot, files_present, wrong, only).items()]
    if not files_present:
        return files, problems
    twice = copies(snapshot, files_present)
    with _model(snapshot) as model:
        for name in _chosen(files_present.keys() - twice, only):
            file = files_present[name]
            named = file.blob if SHA256.fullmatch(file.blob) else ""
            with beneath.open_file(model, file.real) as handle:
                digest = named if named and not verify else sums.digest_of(handle, _path(snapshot, file), renew=verify)
                expected_size = _safetensors_size(handle) if name.endswith(".safetensors") else None
            if named and digest != named:
                problems.append(f"{name} is damaged: its sha256 is {digest}, the hub names it {named}")
            if expected_size is not None and expected_size != file.size:
                problems.append(f"{name} has {file.size} bytes, by its own header it is one of {expected_size}")
            files[name] = {"size": file.size, "sha256": digest, "blob": file.blob}
    return files, problems


def texts(
    snapshot: Path, is_wanted: Callable[[str], bool], most: int, most_all: int
) -> tuple[dict[str, str], list[str]]:
    """Return the texts of small files of a snapshot's own folder, and why others that are wanted are not among them.

    :param most: bytes of one of them; C(most_all) of all
    """
    texts_by_name: dict[str, str] = {}
    files_present, wrong = listing(snapshot)
    messages = [f"{name} {why}" for name, why in wrong.items() if "/" not in name and is_wanted(name)]
    if not files_present:
        return texts_by_name, messages
    with _model(snapshot) as model:
        for name in sorted(name for name in files_present if "/" not in name and is_wanted(name)):
            size = files_present[name].size
            if size > most or size > most_all:
                messages.append(f"{name} has {size} bytes, too many to be read")
                continue
            try:
                texts_by_name[name] = beneath.read(model, files_present[name].real, most).decode()
            except (OSError, ValueError) as error:  # no UTF-8 is a ValueError
                messages.append(f"{name} cannot be read: {error}")
                continue
            most_all -= size
    return texts_by_name, messages


def _path(snapshot: Path, file: File) -> str:
    return str(snapshot.parents[1] / file.real)


def _safetensors_size(handle: IO[bytes]) -> int | None:
    try:
        handle.seek(0)
        length = int.from_bytes(handle.read(8), "little")
        if not 2 <= length <= 100 * 2**20:
            return None
        header = parse_json(handle.read(length), "a safetensors header")
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    return 8 + length + max(ends, default=0)


def check(snapshot: Path, files: Mapping[str, Mapping[str, Any]], sums: Sums, verify: str) -> list[dict[str, str]]:
    """Compare a snapshot with expected files.

    :param verify: C(size) compares sizes alone, C(changed) reads new and touched files, C(all) reads
        everything
    :returns: C([{file, why}]), empty when all is well
    """
    wrong = []
    files_present, strange = listing(snapshot)
    for name, expected in sorted(files.items()):
        file = files_present.get(name)
        if file is None:
            wrong.append({"file": name, "why": strange.get(name, "is missing")})
        elif file.size != int(expected["size"]):
            wrong.append({"file": name, "why": f"has {file.size} bytes instead of {expected['size']}"})
        elif verify != "size":
            with _model(snapshot) as model, beneath.open_file(model, file.real) as handle:
                digest = sums.digest_of(handle, _path(snapshot, file), renew=verify == "all")
            if digest != expected["sha256"]:
                wrong.append(
                    {"file": name, "why": f"has the sha256 {digest[:12]} instead of {str(expected['sha256'])[:12]}"}
                )
    return wrong


def unlisted(snapshot: Path, files: Mapping[str, Any], only: Sequence[str] = ()) -> list[str]:
    """Return files of a snapshot that its lock entry does not list, except files that are neither programs nor weights.

    An engine reads what it finds: weights that no index names, a chat template, code of the model. C(copies) it does not read.

    :param only: patterns of the entry's files; other files may belong to another service
    """
    files_present, strange = listing(snapshot)
    twice = copies(snapshot, files_present)
    return [
        name
        for name in _chosen([*files_present, *strange], only)
        if name not in files
        and name not in twice
        and not any(fnmatch.fnmatch(name.rpartition("/")[2].lower(), pattern) for pattern in PAPERS)
    ]


def check_own(snapshot: Path, sums: Sums, verify: str, only: Sequence[str] = ()) -> list[dict[str, str]]:
    """Check a snapshot without a lock entry against its own index and blobs; return as C(check) does.

    A safetensors file is as long as its header says.

    :param verify: see C(check); with C(all), large files are read, which the hub library names by their sum
    """
    files_present, strange = listing(snapshot)
    wrong = [{"file": name, "why": strange[name]} for name in _chosen(strange, only) if strange[name] != "is missing"]
    if not files_present:
        return wrong
    with _model(snapshot) as model:
        for name in _chosen(files_present, only):
            file = files_present[name]
            with beneath.open_file(model, file.real) as handle:
                expected_size = _safetensors_size(handle) if name.endswith(".safetensors") else None
                if expected_size is not None and expected_size != file.size:
                    why = f"has {file.size} bytes instead of the {expected_size} in its header"
                    wrong.append({"file": name, "why": why})
                    continue
                handle.seek(0)
                if (
                    verify == "all"
                    and SHA256.fullmatch(file.blob)
                    and (digest := sums.digest_of(handle, _path(snapshot, file), renew=True)) != file.blob
                ):
                    why = f"has the sha256 {digest[:12]} instead of {file.blob[:12]}, its name at the hub"
                    wrong.append({"file": name, "why": why})
    return wrong


def faults(present: Mapping[str, Any], expected: Mapping[str, Any], sums: Sums, verify: str) -> list[dict[str, str]]:
    """Compare a snapshot with the lock file's C(files), or check it by itself without them.

    :param expected: C({files, only}) of the model that is asked for
    """
    if not present["path"]:
        return []
    if expected.get("files"):
        return check(Path(present["path"]), expected["files"], sums, verify)
    return check_own(Path(present["path"]), sums, verify, expected.get("only") or [])


def drop(hf_home: Path, repo: str, snapshot: Path, name: str) -> None:
    """Take a damaged file away, with the blob that it leads to, so that it is fetched again and never served."""
    model = f"hub/{repo_folder(hf_home, repo).name}"
    file = f"snapshots/{snapshot.name}/{name}"
    with beneath.folder(hf_home, model) as at:
        with contextlib.suppress(OSError):  # a link that leads elsewhere goes alone
            beneath.remove(at, beneath.find(at, file))
        beneath.remove(at, file)


def fetched_bytes(hf_home: Path, repo: str) -> int:
    """Return how many bytes of a model are on the disk, unfinished files included."""
    blobs = _walk(hf_home, f"hub/{repo_folder(hf_home, repo).name}/blobs")
    return sum(info.st_size for _path, info in blobs if stat.S_ISREG(info.st_mode))


def fetch_argv(container: str, image: str, hf_home: str, request: dict[str, Any], token_path: str | None) -> list[str]:
    """Return the C(docker run) that fetches a snapshot in the background.

    :param request: input of the program: repository, revision, patterns, and C(keep), the files that a lock names
    """
    options = ["--detach", "--network", "host", "--label", "dgxspark.fetch=true"]
    options += ["--volume", f"{hf_home}:/root/.cache/huggingface"]
    variables = {
        "HF_HOME": "/root/.cache/huggingface",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "0",
    }
    if token_path:
        options += ["--mount", f"type=bind,src={token_path},dst=/run/dgxspark/token,readonly"]
        variables["HF_TOKEN_PATH"] = "/run/dgxspark/token"
    for name, value in variables.items():
        options += ["--env", f"{name}={value}"]
    program = [FETCH_PROGRAM, json.dumps({**request, "copies": COPY.pattern}, sort_keys=True)]
    # The folder may be a person's.
    return containers.python_helper(image, container, program, options, containers.OWNERS_FILES)


def announced(log: str) -> dict[str, Any]:
    """Return the totals that the fetching program printed, or an empty dict before that."""
    for line in log.splitlines():
        try:
            totals = parse_json(line, "the log of the download")
        except ValueError:
            continue
        if isinstance(totals, dict) and "bytes" in totals:
            return totals
    return {}


HUB = "https://huggingface.co"
"""Where licences are accepted, for every mirror of weights."""
# Messages of the hub library -> the fix; the first match counts.
REASONS = (
    # A hub says 401 of a model that does not exist too, to who has no token.
    (
        ("RepositoryNotFound",),
        "Correct model.repo; if the model is private, name a file with a token in spark_hf_token_file.",
    ),
    (("GatedRepo", "401", "403"), "Accept the licence at {page} {account}"),
    (("RevisionNotFound",), "That revision does not exist there; correct model.revision."),
    (("404",), "Correct model.repo; if the model is private, name a file with a token in spark_hf_token_file."),
    (("No space left",), "Make room below {hf_home}."),
    (("resolve", "Connection", "unreachable"), "Check the network, or set spark_hf_endpoint to a mirror."),
)


def explain(noun: str, hf_home: str, log: str, token: bool = False) -> str:
    """Return why a download failed, with the fix, from the hub library's messages. noun: REPO@REVISION."""
    last = [line for line in log.strip().splitlines() if line.strip()][-1:] or ["it printed nothing"]
    hint = next((fix for words, fix in REASONS if any(word in log for word in words)), None)
    account = (
        "with the account that the token of spark_hf_token_file belongs to; a fine-grained one has to be allowed gated models too."
        if token
        else "and name a file with a token of the same account in spark_hf_token_file."
    )
    page = f"{HUB}/{noun.partition('@')[0]}"
    fix = (hint or "Run the play again; it resumes.").format(hf_home=hf_home, page=page, account=account)
    return f"fetching {noun} failed: {last[0]}. {fix}"


def progress(done: int, total: int | None, seconds: float, before: int = 0) -> str:
    """Write progress for a person: bytes in GB as download pages count them, rate and time left.

    :param before: bytes that were there at the beginning
    """
    rate = max(done - before, 0) / seconds if seconds > 0 else 0.0
    text = f"{done / 1e9:.2f} GB" if not total else f"{done / 1e9:.2f} of {total / 1e9:.2f} GB"
    if rate > 0:
        text += f", {rate / 1e6:.0f} MB/s"
        if total and total > done:
            remaining = int((total - done) / rate)
            text += f", {remaining // 60} min {remaining % 60:02d} s left"
    return text
