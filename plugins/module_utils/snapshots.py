# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Model snapshots in the layout of HF_HOME: what is there, what is whole, and the program that fetches one.

Layout (huggingface_hub): C(hub/models--ORG--NAME/{refs,snapshots,blobs}); a ref is a file that holds a commit, a
snapshot a folder of links to blobs.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
SUMS_DIR = "/var/lib/dgxspark/models"
"""Where a host keeps the sums of files that it has read, a file per model."""
WEIGHT_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

# Runs in a container of the serving image, which carries huggingface_hub; prints one JSON line of totals, then the
# path of the snapshot. Its arguments come as JSON on the command line, the token by HF_TOKEN_PATH.
FETCH_PROGRAM = """\
import fnmatch, glob, json, os, shutil, sys
from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
want = json.loads(sys.argv[1])
api = HfApi(endpoint=want["endpoint"] or None)
info = api.model_info(want["repo"], revision=want["revision"], files_metadata=True)
only = want["only"] or None
files = [f for f in info.siblings if not only or any(fnmatch.fnmatch(f.rfilename, p) for p in only)]
print(json.dumps({"commit": info.sha, "files": len(files), "bytes": sum(f.size or 0 for f in files)}), flush=True)
home = os.environ["HF_HOME"]
parts = glob.glob(home + "/hub/models--" + want["repo"].replace("/", "--") + "/blobs/*.incomplete")
there = [isinstance(try_to_load_from_cache(want["repo"], f.rfilename, revision=info.sha), str) for f in files]
need = sum(f.size or 0 for f, has in zip(files, there) if not has) - sum(os.path.getsize(part) for part in parts)
free = shutil.disk_usage(home).free
if need > free:
    sys.exit(f"No space left: {need / 1e9:.2f} GB are to come, {free / 1e9:.2f} GB are free; nothing was fetched")
path = snapshot_download(want["repo"], revision=want["revision"], allow_patterns=only, endpoint=want["endpoint"] or None)
print(path, flush=True)
"""


def repo_folder(hf_home: Path, repo: str) -> Path:
    """Return the folder of a model below HF_HOME."""
    return hf_home / "hub" / ("models--" + repo.replace("/", "--"))


def commit_of(hf_home: Path, repo: str, revision: str) -> str | None:
    """Return the commit that a revision stands for on this host, or None."""
    if COMMIT.fullmatch(revision):
        return revision
    try:
        text = (repo_folder(hf_home, repo) / "refs" / revision).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return text if COMMIT.fullmatch(text) else None


def missing_files(snapshot: Path) -> list[str]:
    """Return what a snapshot lacks: shards that its index names, links that lead nowhere."""
    missing = [
        str(link.relative_to(snapshot)) for link in snapshot.rglob("*") if link.is_symlink() and not link.exists()
    ]
    for index in WEIGHT_INDEXES:
        try:
            shards = set(json.loads((snapshot / index).read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError):
            continue
        missing += [shard for shard in shards if not (snapshot / shard).exists()]
    return sorted(set(missing))


def look(hf_home: Path, repo: str, revision: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """Say what the host has of a model at a revision.

    Returns C(commit) (or None), C(path) of the snapshot, C(complete), C(missing) (why it is not complete) and C(bytes).
    A snapshot of selected files (C(only)) is complete when its folder holds any of them.
    """
    commit = commit_of(hf_home, repo, revision)
    state: dict[str, Any] = {"commit": commit, "path": None, "complete": False, "missing": [], "bytes": 0}
    if commit is None:
        return state
    snapshot = repo_folder(hf_home, repo) / "snapshots" / commit
    if not snapshot.is_dir():
        return state
    state["path"] = str(snapshot)
    state["missing"] = missing_files(snapshot)
    files = [file for file in snapshot.rglob("*") if file.is_file()]
    state["bytes"] = sum(file.stat().st_size for file in files)
    has_weights = any(file.suffix in (".safetensors", ".bin", ".gguf") for file in files)
    state["complete"] = bool(files) and not state["missing"] and (has_weights or bool(only))
    return state


def present(hf_home: Path) -> dict[str, dict[str, Any]]:
    """Return the models, ORG/NAME, that have at least one whole snapshot, weights or selected files.

    Each with the C(commits) that are whole, and C(refs), the commit that each branch or tag stands for on this host.
    """
    found: dict[str, dict[str, Any]] = {}
    for folder in sorted(hf_home.glob("hub/models--*")):
        repo = folder.name[len("models--") :].replace("--", "/", 1)
        commits = sorted(entry.name for entry in folder.glob("snapshots/*") if entry.is_dir())
        whole = [commit for commit in commits if look(hf_home, repo, commit, only=["*"])["complete"]]
        names = [str(file.relative_to(folder / "refs")) for file in sorted(folder.glob("refs/**/*")) if file.is_file()]
        refs = {name: commit for name in names if (commit := commit_of(hf_home, repo, name))}
        if whole:
            found[repo] = {"commits": whole, "refs": refs}
    return found


class Sums:
    """SHA-256 of files, kept between runs: a file that was not touched since is not read again."""

    def __init__(self, folder: Path, repo: str) -> None:
        self.path = folder / (repo.replace("/", "--") + ".json")
        self.read_bytes = 0
        self._known: dict[str, list[Any]] = {}
        self._new = False
        try:
            known = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = None
        if isinstance(known, dict):
            self._known = {str(name): value for name, value in known.items() if isinstance(value, list)}

    def of(self, file: Path, again: bool = False) -> str:
        """Return the sum of a file; C(again) reads it even if nothing touched it."""
        real = file.resolve()
        mark = self._mark(real)
        known = self._known.get(str(real))
        if known and known[:-1] == mark and not again:
            return str(known[-1])
        found = sha256_of(real)
        self.read_bytes += mark[0]
        self._known[str(real)] = [*mark, found]
        self._new = True
        return found

    def save(self) -> None:
        """Keep what was read, by one rename; entries of files that are gone are dropped."""
        if not self._new:
            return
        kept = {name: value for name, value in sorted(self._known.items()) if Path(name).exists()}
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.new")
        draft.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.path)

    @staticmethod
    def _mark(file: Path) -> list[int]:
        stat = file.stat()
        return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def sha256_of(file: Path) -> str:
    """Return the sum of a file, and let go of what was read: on a Spark the page cache is the GPU's memory."""
    total = hashlib.sha256()
    with file.open("rb", buffering=0) as handle:
        done = 0
        while block := handle.read(8 * 2**20):
            total.update(block)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle.fileno(), done, len(block), os.POSIX_FADV_DONTNEED)
            done += len(block)
    return total.hexdigest()


def names_of(snapshot: Path, only: Sequence[str] = ()) -> list[str]:
    """Return the files of a snapshot that are there, by their names in the repository."""
    names = sorted(str(file.relative_to(snapshot)) for file in snapshot.rglob("*") if file.is_file())
    return [name for name in names if not only or any(fnmatch.fnmatch(name, pattern) for pattern in only)]


def describe_files(
    snapshot: Path, sums: Sums, only: Sequence[str] = (), verify: bool = False
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return size, sum and blob of each file of a snapshot, and what is wrong with them.

    The hub library names the blobs of large files by their sum; those are read only with C(verify). All others are.
    """
    files: dict[str, dict[str, Any]] = {}
    problems = [f"{name} is missing" for name in missing_files(snapshot)]
    for name in names_of(snapshot, only):
        file = snapshot / name
        blob = file.resolve().name if file.is_symlink() else ""
        named = blob if SHA256.fullmatch(blob) else ""
        found = named if named and not verify else sums.of(file, again=verify)
        if named and found != named:
            problems.append(f"{name} is damaged: its sha256 is {found}, the hub names it {named}")
        size = file.stat().st_size
        wanted = safetensors_size(file) if file.suffix == ".safetensors" else None
        if wanted is not None and wanted != size:
            problems.append(f"{name} has {size} bytes, by its own header it is one of {wanted}")
        files[name] = {"size": size, "sha256": found, "blob": blob}
    return files, problems


def safetensors_size(file: Path) -> int | None:
    """Return how long a safetensors file is by its header, None where it has none that can be read."""
    try:
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if not 2 <= length <= 100 * 2**20:
                return None
            header = json.loads(handle.read(length))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    return 8 + length + max(ends, default=0)


def check(snapshot: Path, files: Mapping[str, Mapping[str, Any]], sums: Sums, verify: str) -> list[dict[str, str]]:
    """Compare a snapshot with what its files are to be; returns C([{file, why}]), empty when all is well.

    verify: C(size) looks at sizes alone, C(changed) reads what is new or was touched, C(all) reads everything.
    """
    wrong = []
    for name, wanted in sorted(files.items()):
        file = snapshot / name
        if not file.is_file():
            wrong.append({"file": name, "why": "is missing"})
        elif file.stat().st_size != int(wanted["size"]):
            wrong.append({"file": name, "why": f"has {file.stat().st_size} bytes instead of {wanted['size']}"})
        elif verify != "size":
            found = sums.of(file, again=verify == "all")
            if found != wanted["sha256"]:
                wrong.append(
                    {"file": name, "why": f"has the sha256 {found[:12]} instead of {str(wanted['sha256'])[:12]}"}
                )
    return wrong


def check_own(snapshot: Path, sums: Sums, verify: str, only: Sequence[str] = ()) -> list[dict[str, str]]:
    """Compare a snapshot with what it says of itself, where no lock file says what it is to be; returns as C(check) does.

    A safetensors file is as long as its header says. With C(all), large files are read: the hub library names them by their sum.
    """
    wrong = []
    for name in names_of(snapshot, only):
        file = snapshot / name
        size = file.stat().st_size
        wanted = safetensors_size(file) if file.suffix == ".safetensors" else None
        blob = file.resolve().name if file.is_symlink() else ""
        if wanted is not None and wanted != size:
            wrong.append({"file": name, "why": f"has {size} bytes instead of the {wanted} of its own header"})
        elif verify == "all" and SHA256.fullmatch(blob) and (found := sums.of(file, again=True)) != blob:
            wrong.append(
                {"file": name, "why": f"has the sha256 {found[:12]} instead of {blob[:12]}, its name at the hub"}
            )
    return wrong


def faults(found: Mapping[str, Any], wanted: Mapping[str, Any], sums: Sums, verify: str) -> list[dict[str, str]]:
    """Compare a snapshot that C(look) found with the lock file's C(files) of it, or with itself; returns as C(check) does."""
    if not found["path"]:
        return []
    if wanted.get("files"):
        return check(Path(found["path"]), wanted["files"], sums, verify)
    return check_own(Path(found["path"]), sums, verify, wanted.get("only") or [])


def repair_mark(sums_dir: Path, repo: str) -> Path:
    """Return the file that is touched when a damaged file of a model is taken away: engines that ran by then are started anew."""
    return sums_dir / (repo.replace("/", "--") + ".repaired")


def mark_repair(sums_dir: Path, repo: str) -> None:
    """Say that a file of a model that was there was no good."""
    mark = repair_mark(sums_dir, repo)
    mark.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    mark.touch()


def drop(hf_home: Path, repo: str, snapshot: Path, name: str) -> None:
    """Take a damaged file away, with the blob that it leads to, so that it is fetched again and never served."""
    file = snapshot / name
    folder = repo_folder(hf_home, repo).resolve()
    blob = file.resolve()
    file.unlink(missing_ok=True)
    if folder in blob.parents:
        blob.unlink(missing_ok=True)


def fetched_bytes(hf_home: Path, repo: str) -> int:
    """Return how many bytes of a model are on the disk, unfinished files included."""
    blobs = repo_folder(hf_home, repo) / "blobs"
    try:
        return sum(file.stat().st_size for file in blobs.iterdir() if file.is_file())
    except OSError:
        return 0


def fetch_argv(container: str, image: str, hf_home: str, request: dict[str, Any], token_path: str | None) -> list[str]:
    """Return the C(docker run) that fetches a snapshot in the background."""
    argv = [
        "docker",
        "run",
        "--detach",
        "--name",
        container,
        "--network",
        "host",
        "--label",
        "dgxspark.fetch=true",
        "--volume",
        f"{hf_home}:/root/.cache/huggingface",
        "--env",
        "HF_HOME=/root/.cache/huggingface",
        "--env",
        "HF_HUB_DISABLE_PROGRESS_BARS=1",
        "--env",
        "HF_HUB_DISABLE_TELEMETRY=1",
        "--env",
        "HF_HUB_OFFLINE=0",
    ]
    if token_path:
        argv += [
            "--mount",
            f"type=bind,src={token_path},dst=/run/dgxspark/token,readonly",
            "--env",
            "HF_TOKEN_PATH=/run/dgxspark/token",
        ]
    return [*argv, "--entrypoint", "python3", image, "-c", FETCH_PROGRAM, json.dumps(request, sort_keys=True)]


def announced(log: str) -> dict[str, Any]:
    """Return the totals that the fetching program printed, or an empty dict before that."""
    for line in log.splitlines():
        try:
            totals = json.loads(line)
        except ValueError:
            continue
        if isinstance(totals, dict) and "bytes" in totals:
            return totals
    return {}


HUB = "https://huggingface.co"
"""Where licences are accepted, whichever mirror weights come from."""
# What the hub library prints -> what to do about it; the first that matches counts.
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


def explain(what: str, hf_home: str, log: str, token: bool = False) -> str:
    """Say why a download failed and what to do, from the hub library's own words.

    what: REPO@REVISION. token: whether the download had one.
    """
    last = [line for line in log.strip().splitlines() if line.strip()][-1:] or ["it printed nothing"]
    hint = next((fix for words, fix in REASONS if any(word in log for word in words)), None)
    account = (
        "with the account that the token of spark_hf_token_file belongs to; a fine-grained one has to be allowed gated models too."
        if token
        else "and name a file with a token of the same account in spark_hf_token_file."
    )
    page = f"{HUB}/{what.partition('@')[0]}"
    fix = (hint or "Run the play again: it goes on where it stopped.").format(
        hf_home=hf_home, page=page, account=account
    )
    return f"fetching {what} failed: {last[0]}. {fix}"


def progress(done: int, total: int | None, seconds: float, before: int = 0) -> str:
    """Write progress for a person: bytes in GB as download pages count them, rate and time left."""
    rate = max(done - before, 0) / seconds if seconds > 0 else 0.0
    text = f"{done / 1e9:.2f} GB" if not total else f"{done / 1e9:.2f} of {total / 1e9:.2f} GB"
    if rate > 0:
        text += f", {rate / 1e6:.0f} MB/s"
        if total and total > done:
            left = int((total - done) / rate)
            text += f", {left // 60} min {left % 60:02d} s left"
    return text
