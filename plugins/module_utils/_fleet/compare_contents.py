# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a host with the parts of a plan that its state document lacks: images, models and the netplan file.

Each function returns the reasons why there is something to apply.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._common import tables
from .._content import file_sums, snapshots, vocabularies
from .._host import beneath, file_times, made
from .._runtime.command import NoAnswer
from . import generations
from .generation_host import Host, Refused

NETPLAN_OWNER = {"owner": "root", "group": "root", "mode": "0600"}
COPIED_MODE = 0o644  # of files of M(dgxspark.vllm.model_folder)
NAMED_FILES = 3


def _replaced_images(host: Host) -> Iterator[str]:
    """Yield the units whose image has another id than in the current generation, under the same name."""
    current = host.generation()
    for unit, recorded in (current.images if current else {}).items():
        now = host.image_ids.get(unit)
        if now is not None and now["id"] != recorded.get("id") and now["ref"] == recorded.get("ref"):
            yield f"the image {now['ref']} of {unit} differs from generation {host.current.number}"


def image_faults(host: Host, images: Sequence[Sequence[str]]) -> list[str]:
    """Return the missing and the replaced images.

    :param images: alternative names of each image; an image that hosts build has only its name
    """
    if host.silent:
        return [f"Docker does not say which images run: {host.silent}"]
    present = host.inspect(name for names in images for name in names)
    why = [f"the image {names[0]} is not there" for names in images if present.keys().isdisjoint(names)]
    why += _replaced_images(host)
    if host.parts is not None and {"images", "service"}.isdisjoint(host.parts):
        return why
    try:
        tags = host.tags()
    except (NoAnswer, Refused) as reason:
        return [*why, str(reason)]
    _checksums, image_ids = generations.used(host.generations.values())
    untagged = {generations.tag_of(image_id) for image_id in image_ids} - tags
    return why + [f"the image {tag} of a generation has no name" for tag in sorted(untagged)]


def model_faults(host: Host, models: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the faults of models that the role models would repair."""
    why: list[str] = []
    for model in models:
        if model.get("repo"):
            why += _repository_faults(host, model)
        elif model.get("copied"):
            why += _copy_faults(host, model)
        elif model.get("url"):
            fault = vocabulary_fault(host.at(model["path"]))
            why += [f"the vocabulary {model['path']} {fault}"] if fault else []
    return why


def _repository_faults(host: Host, model: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of a model of the hub; touched files are hashed."""
    hf_home, only = host.at(host.params["hf_home"]), list(model.get("only") or [])
    name = f"{model['repo']}@{model['revision']}"
    snapshot = snapshots.look(hf_home, model["repo"], model["revision"], only)
    with _kept_sums(host, model["repo"]) as (sums, verify):
        faults = snapshots.faults(snapshot, model, sums, verify)
    for fault in faults:
        yield f"{name}: {fault['file']} {fault['why']}"
    if snapshot["path"] and model.get("files"):
        for file in snapshots.unlisted(Path(snapshot["path"]), model["files"], only):
            yield f"{name}: {file} is not in the lock file"
    if not snapshot["complete"]:
        yield f"{name} is not whole"
    elif model.get("link"):
        link = hf_home / model["link"]
        if not link.is_symlink() or link.resolve() != Path(snapshot["path"]).resolve():
            yield f"{link} does not lead to {name}"


def bundle_faults(host: Host, model: Mapping[str, Any]) -> list[str]:
    """Return the changes that M(dgxspark.vllm.bundle) would make to a model.

    :param model: C(repo), C(commit), C(revisions) with that commit, and C(files) of the bundle, by name
    """
    hf_home, repo = host.at(host.params["hf_home"]), str(model["repo"])
    snapshot = snapshots.repo_folder(hf_home, repo) / "snapshots" / str(model["commit"])
    with _kept_sums(host, repo) as (sums, verify):
        faults = snapshots.check(snapshot, model["files"], sums, verify)
    why = [f"{repo}: {fault['file']} {fault['why']}" for fault in faults]
    if any(snapshots.commit_of(hf_home, repo, name) != model["commit"] for name in model["revisions"]):
        why.append(f"{repo}: the bundle has another commit")
    return why


@contextlib.contextmanager
def _kept_sums(host: Host, repo: str) -> Iterator[tuple[file_sums.Sums, str]]:
    """Return the checksums of a repository, and how to verify files; keep new checksums for the next run."""
    sums = file_sums.Sums(host.at(file_sums.SUMS_DIR), repo)
    yield sums, str(host.params["settings"].get("verify") or "changed")
    if host.check or not host.params["controller"]:  # only a run with the lock of the host writes
        return
    try:
        sums.save()
    except OSError as error:  # the next run reads the files again
        host.warn(f"sums of {repo} could not be kept: {error}")


def vocabulary_fault(file: Path) -> str:
    """Return C(is gone) or C(is damaged) for a vocabulary, else an empty text."""
    if not file.is_file():
        return "is gone"
    is_whole = hashlib.sha256(file.read_bytes()).hexdigest().startswith(vocabularies.sum_in_name(file.name))
    return "" if is_whole else "is damaged"


def _copy_faults(host: Host, model: Mapping[str, Any]) -> list[str]:
    """Return the changed files of a model from the controller, judged by size and time like M(dgxspark.vllm.model_folder) does."""
    if host.params["settings"].get("verify") == "all":
        return [f"{model['path']} needs a full read to compare it with the controller's"]
    hf_home, path = Path(host.params["hf_home"]), Path(model["path"])
    if hf_home not in path.parents:
        return [f"{path} does not lie below {hf_home}"]
    folder = path.relative_to(hf_home)
    copied_before = set(made.made_of(made.local_name(path.name)).get(str(hf_home)) or [])
    changed = [
        name
        for name, original in model["copied"].items()
        if not _is_copy(host.at(str(hf_home)), f"{folder}/{name}", original, f"{folder}/{name}" in copied_before)
    ]
    return [f"{path}: {tables.some_of(changed, NAMED_FILES)} not as on the controller"] if changed else []


def _is_copy(hf_home: Path, file: str, original: Mapping[str, int], has_our_mode: bool) -> bool:
    try:
        status = beneath.info(hf_home, file)
    except OSError:  # a link in the path
        return False
    if status is None or not stat.S_ISREG(status.st_mode):
        return False
    if (status.st_size, int(status.st_mtime)) != (original["size"], original["mtime"]):
        return False
    # Files of the owner keep their mode.
    return not has_our_mode or stat.S_IMODE(status.st_mode) == COPIED_MODE


def repaired_models(host: Host) -> list[str]:
    """Return the engines that started before a damaged file of their model was replaced."""
    current = host.generation()
    why = []
    for name, model in (current.models if current else {}).items():
        unit, repo = f"spark-{name.partition('/')[0]}.service", model.get("repo")
        began = host.seen[unit].began if unit in host.seen else None
        if not repo or began is None:
            continue
        stamp = file_sums.repair_stamp(host.at(file_sums.SUMS_DIR), repo)
        if stamp.exists() and file_times.written_at(stamp, *host.clocks) > began:
            why.append(f"{unit} runs with a file of {repo} that was damaged")
    return why


def moved_models(host: Host) -> dict[str, dict[str, Any]]:
    """Return the models whose revision has another commit than in the current generation, by service."""
    moved = {}
    current = host.generation()
    for name, model in (current.models if current else {}).items():
        now = host.model(model["repo"], model["revision"])["commit"] if model.get("repo") else None
        if now != model.get("commit"):
            moved[name] = {"repo": model["repo"], "revision": model["revision"], "was": model["commit"], "is": now}
    return moved


def model_report(host: Host, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether a planned model exists and is complete, by names and sizes of its files."""
    if model.get("repo"):
        return _repository_report(host, model)
    report = {"repo": None, "path": model["path"], "revision": None, "commit": None}
    path = host.at(model["path"])
    if model.get("url"):
        fault = vocabulary_fault(path)
        wrong = ["its checksum is another"] if fault == "is damaged" else []
        return {**report, "there": fault != "is gone", "wrong": wrong, "is_vocabulary": True}
    exists = path.is_file() or (path.is_dir() and any(path.iterdir()))
    return {**report, "there": exists, "wrong": []}


def _repository_report(host: Host, model: Mapping[str, Any]) -> dict[str, Any]:
    hf_home, repo, only = host.at(host.params["hf_home"]), model["repo"], list(model.get("only") or [])
    revision = model.get("revision") or "main"
    snapshot = snapshots.look(hf_home, repo, revision, only)
    # A bundle brings the locked commit without a name.
    if not snapshot["path"] and model.get("locked"):
        snapshot = snapshots.look(hf_home, repo, model["locked"], only)
    wrong = [f"{name} is missing" for name in snapshot["missing"]]
    if snapshot["path"] and model.get("files"):
        path, sums = Path(snapshot["path"]), file_sums.Sums(host.at(file_sums.SUMS_DIR), repo)
        faults = snapshots.check(path, model["files"], sums, "size")
        wrong = list(dict.fromkeys([*wrong, *(f"{fault['file']} {fault['why']}" for fault in faults)]))
        wrong += [f"{name} is not in the lock file" for name in snapshots.unlisted(path, model["files"], only)]
    content = {"commit": snapshot["commit"], "there": bool(snapshot["path"]), "wrong": wrong}
    return {"repo": repo, "path": None, "revision": revision, **content}


def network_faults(host: Host, network: Mapping[str, Any]) -> list[str]:
    """Return the fault of the netplan file.

    :param network: C(file) with C({path, sha256}); empty if the role fabric does not manage the file
    """
    file = network.get("file")
    if not file:
        return []
    path = host.at(file["path"])
    try:
        is_same = not path.is_symlink() and hashlib.sha256(path.read_bytes()).hexdigest() == file["sha256"]
    except OSError:
        is_same = False
    owner = host.owner(path) if is_same else {}
    # Only tests run without root.
    checked = ("owner", "group", "mode") if os.geteuid() == 0 else ("mode",)
    if is_same and all(owner[key] == NETPLAN_OWNER[key] for key in checked):
        return []
    return [f"{file['path']} is not as it has to be"]
