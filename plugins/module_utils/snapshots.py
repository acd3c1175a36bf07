# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Model snapshots in the layout of HF_HOME: what is there, what is whole, and the program that fetches one.

Layout (huggingface_hub): C(hub/models--ORG--NAME/{refs,snapshots,blobs}); a ref is a file that holds a commit, a
snapshot a folder of links to blobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COMMIT = re.compile(r"[0-9a-f]{40}")
WEIGHT_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

# Runs in a container of the serving image, which carries huggingface_hub; prints one JSON line of totals, then the
# path of the snapshot. Its arguments come as JSON on the command line, the token by HF_TOKEN_PATH.
FETCH_PROGRAM = """\
import fnmatch, json, sys
from huggingface_hub import HfApi, snapshot_download
want = json.loads(sys.argv[1])
api = HfApi(endpoint=want["endpoint"] or None)
info = api.model_info(want["repo"], revision=want["revision"], files_metadata=True)
only = want["only"] or None
sizes = [f.size or 0 for f in info.siblings if not only or any(fnmatch.fnmatch(f.rfilename, p) for p in only)]
print(json.dumps({"commit": info.sha, "files": len(sizes), "bytes": sum(sizes)}), flush=True)
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


def present(hf_home: Path) -> list[str]:
    """Return the models, ORG/NAME, that have at least one whole snapshot, weights or selected files."""
    found = []
    for folder in sorted(hf_home.glob("hub/models--*")):
        repo = folder.name[len("models--") :].replace("--", "/", 1)
        commits = [entry.name for entry in folder.glob("snapshots/*") if entry.is_dir()]
        if any(look(hf_home, repo, commit, only=["*"])["complete"] for commit in commits):
            found.append(repo)
    return found


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
