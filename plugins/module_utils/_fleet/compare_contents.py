# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares images, models and files outside of the state document with those of a host.

Each function gives reasons why there is something to apply, in plain words.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._content import snapshots, vocabularies
from .._host import beneath, file_times, made
from .._runtime.command import NoAnswer
from . import generations as engine
from .generation_host import Host, Refused

ROOT = {"owner": "root", "group": "root", "mode": "0644"}
NETWORK_MODE = "0600"  # of the file that the role fabric writes
COPIED_MODE = 0o644  # of files of M(dgxspark.vllm.model_folder)
MOST_NAMED = 3


def image_faults(host: Host, wanted: Sequence[Sequence[str]]) -> list[str]:
    """Return which images are missing.

    :param host: the host
    :param wanted: of each image the names by any of which it may exist; an image that hosts build is known by its name alone
    """
    if host.silent:
        return [f"Docker does not say which images run: {host.silent}"]
    present = host.inspect(name for names in wanted for name in names)
    why = [f"the image {names[0]} is not there" for names in wanted if not any(name in present for name in names)]
    current = host.generation()
    for name, then in (current.images if current else {}).items():
        now = host.image_ids.get(name)
        if now is not None and now["id"] != then.get("id") and now["ref"] == then.get("ref"):
            why.append(f"the image {now['ref']} of {name} is another than that of generation {host.current.number}")
    if not (host.parts is None or {"images", "service"} & set(host.parts)):
        return why
    try:
        tags = host.tags()
    except (NoAnswer, Refused) as reason:
        return [*why, str(reason)]
    lacking = {engine.tag_of(image) for image in engine.used(host.manifests.values())[1]} - tags
    return why + [f"the image {tag} of a generation has no name" for tag in sorted(lacking)]


def model_faults(host: Host, models: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the faults of models that the role models would repair."""
    why = []
    for model in models:
        if model.get("repo"):
            why += repository_faults(host, model)
        elif model.get("copied"):
            why += copy_faults(host, model)
        elif model.get("url"):
            why += vocabulary_faults(host, model["path"])
    return why


def repository_faults(host: Host, asked: Mapping[str, Any]) -> list[str]:
    """Return the faults of a model of the hub; touched files are hashed."""
    hf_home, what = host.at(host.params["hf_home"]), f"{asked['repo']}@{asked['revision']}"
    found = snapshots.look(hf_home, asked["repo"], asked["revision"], list(asked.get("only") or []))
    sums = snapshots.Sums(host.at(snapshots.SUMS_DIR), asked["repo"])
    wrong = snapshots.faults(found, asked, sums, str(host.params["settings"].get("verify") or "changed"))
    keep_sums(host, sums, asked["repo"])
    why = [f"{what}: {fault['file']} {fault['why']}" for fault in wrong]
    if found["path"] and asked.get("files"):
        strays = snapshots.unlisted(Path(found["path"]), asked["files"], list(asked.get("only") or []))
        why += [f"{what}: {name} is not in the lock file" for name in strays]
    if not found["complete"]:
        why.append(f"{what} is not whole")
    elif asked.get("link"):
        link = hf_home / asked["link"]
        if not link.is_symlink() or link.resolve() != Path(found["path"]).resolve():
            why.append(f"{link} does not lead to {what}")
    return why


def bundle_faults(host: Host, model: Mapping[str, Any]) -> list[str]:
    """Return what M(dgxspark.vllm.bundle) would bring of a model.

    :param host: the host
    :param model: C(repo), C(commit), C(revisions) that stand for it, and C(files), by name, as the bundle has them
    """
    hf_home, repo = host.at(host.params["hf_home"]), str(model["repo"])
    snapshot = snapshots.repo_folder(hf_home, repo) / "snapshots" / str(model["commit"])
    sums = snapshots.Sums(host.at(snapshots.SUMS_DIR), repo)
    wrong = snapshots.check(snapshot, model["files"], sums, str(host.params["settings"].get("verify") or "changed"))
    keep_sums(host, sums, repo)
    named = all(snapshots.commit_of(hf_home, repo, name) == model["commit"] for name in model["revisions"])
    other = [] if named else [f"{repo}: the bundle has another commit"]
    return [*(f"{repo}: {fault['file']} {fault['why']}" for fault in wrong), *other]


def keep_sums(host: Host, sums: snapshots.Sums, repo: str) -> None:
    """Keep the checksums of files that were read, so that they are read once."""
    if host.check or not host.params["controller"]:  # only a run that holds the lock of the host writes
        return
    try:
        sums.save()
    except OSError as error:  # they are read again the next time
        host.warn(f"sums of {repo} could not be kept: {error}")


def vocabulary_fault(file: Path) -> str:
    """Return C(is gone) or C(is damaged) for a vocabulary, empty if nothing is wrong with it."""
    if not file.is_file():
        return "is gone"
    is_whole = hashlib.sha256(file.read_bytes()).hexdigest().startswith(vocabularies.sum_in_name(file.name))
    return "" if is_whole else "is damaged"


def vocabulary_faults(host: Host, path: str) -> list[str]:
    """Return what the role models would mend of a vocabulary, which engines need from elsewhere than the hub."""
    fault = vocabulary_fault(host.at(path))
    return [f"the vocabulary {path} {fault}"] if fault else []


def copy_faults(host: Host, asked: Mapping[str, Any]) -> list[str]:
    """Return the files of a model from the controller that are not the copied ones; M(dgxspark.vllm.model_folder) knows them by size and time too."""
    if host.params["settings"].get("verify") == "all":
        return [f"{asked['path']} is to be read as a whole, and compared with the controller's"]
    hf_home, path = Path(host.params["hf_home"]), Path(asked["path"])
    if hf_home not in path.parents:
        return [f"{path} does not lie below {hf_home}"]
    within = path.relative_to(hf_home)
    ours = set(made.made_of(made.local_name(path.name)).get(str(hf_home)) or [])
    wrong = []
    for name, wanted in asked["copied"].items():
        inside = f"{within}/{name}"
        try:
            now = beneath.info(host.at(str(hf_home)), inside)
        except OSError:  # a link among them
            now = None
        same = (
            now is not None
            and stat.S_ISREG(now.st_mode)
            and (now.st_size, int(now.st_mtime)) == (wanted["size"], wanted["mtime"])
        )
        # The mode of a file of the owner stays.
        if now is None or not same or (inside in ours and stat.S_IMODE(now.st_mode) != COPIED_MODE):
            wrong.append(name)
    more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
    return [f"{path}: {', '.join(wrong[:MOST_NAMED])}{more} not as on the controller"] if wrong else []


def repaired_models(host: Host) -> list[str]:
    """Return the engines that began before a damaged file of their model was replaced."""
    current = host.generation()
    why = []
    for name, entry in (current.models if current else {}).items():
        unit, repo = f"spark-{name.partition('/')[0]}.service", entry.get("repo")
        began = host.seen[unit].began if unit in host.seen else None
        if not repo or began is None:
            continue
        stamp = snapshots.repair_stamp(host.at(snapshots.SUMS_DIR), repo)
        if stamp.exists() and file_times.written_at(stamp, *host.clocks) > began:
            why.append(f"{unit} runs with a file of {repo} that was damaged")
    return why


def moved_models(host: Host) -> dict[str, dict[str, Any]]:
    """Return the models whose revision stands for another commit than in the current generation, by service."""
    moved = {}
    current = host.generation()
    for name, entry in (current.models if current else {}).items():
        now = host.model(entry["repo"], entry["revision"], None)["commit"] if entry.get("repo") else None
        if now != entry.get("commit"):
            moved[name] = {"repo": entry["repo"], "revision": entry["revision"], "was": entry["commit"], "is": now}
    return moved


def model_report(host: Host, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether a planned model exists as it should, by the names and sizes of its files."""
    if asked.get("url"):
        fault = vocabulary_fault(host.at(asked["path"]))
        wrong = ["its checksum is another"] if fault == "is damaged" else []
        vocabulary = {"there": fault != "is gone", "wrong": wrong, "is_vocabulary": True}
        return {"repo": None, "path": asked["path"], "revision": None, "commit": None, **vocabulary}
    if not asked.get("repo"):
        place = host.at(asked["path"])
        exists = place.is_file() or (place.is_dir() and any(place.iterdir()))
        return {"repo": None, "path": asked["path"], "revision": None, "commit": None, "there": exists, "wrong": []}
    hf_home, only = host.at(host.params["hf_home"]), list(asked.get("only") or [])
    found: dict[str, Any] = {"path": None, "missing": [], "commit": None}
    # As the role models finds it: a bundle brings the locked commit without a name for it.
    for revision in (asked.get("revision") or "main", asked.get("locked")):
        if revision and not found["path"]:
            found = snapshots.look(hf_home, asked["repo"], revision, only)
    wrong = [f"{name} is missing" for name in found["missing"]]
    if found["path"] and asked.get("files"):
        sums = snapshots.Sums(host.at(snapshots.SUMS_DIR), asked["repo"])
        listed = snapshots.check(Path(found["path"]), asked["files"], sums, "size")
        wrong = list(dict.fromkeys([*wrong, *(f"{fault['file']} {fault['why']}" for fault in listed)]))
        strays = snapshots.unlisted(Path(found["path"]), asked["files"], only)
        wrong += [f"{name} is not in the lock file" for name in strays]
    return {
        "repo": asked["repo"],
        "path": None,
        "revision": asked.get("revision") or "main",
        "commit": found["commit"],
        "there": bool(found["path"]),
        "wrong": wrong,
    }


def network_faults(host: Host, network: Mapping[str, Any]) -> list[str]:
    """Return which files of the role fabric are not what it would write.

    :param host: the host
    :param network: C(file) and C(units), each C({path, sha256}); an empty C(file) is somebody else's
    """
    file = network.get("file") or {}
    files = [*([{**file, "mode": NETWORK_MODE}] if file else []), *(network.get("units") or [])]
    return [text for wanted in files for text in file_faults(host, wanted)]


def file_faults(host: Host, wanted: Mapping[str, str]) -> list[str]:
    """Return the faults of a file outside of the document.

    :param host: the host
    :param wanted: C({path, sha256}), and C(owner), C(group) and C(mode) unless root owns it with mode 0644; without a checksum, the file must not exist
    """
    path = host.at(wanted["path"])
    if not wanted["sha256"]:
        return [f"{wanted['path']} is to be gone"] if path.exists() else []
    try:
        same = not path.is_symlink() and hashlib.sha256(path.read_bytes()).hexdigest() == wanted["sha256"]
    except OSError:
        same = False
    seen = host.owner(path) if same else {}
    # Without root, only a test gets here.
    named = ("owner", "group", "mode") if os.geteuid() == 0 else ("mode",)
    right = {**ROOT, **wanted}
    is_right = same and all(seen[key] == right[key] for key in named)
    return [] if is_right else [f"{wanted['path']} is not as it has to be"]
