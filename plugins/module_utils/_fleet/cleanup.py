# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What lies on a host and nobody uses any more. Decisions are pure; C(read_models), C(read_caches) and C(read_notes) read the disk.

In doubt a thing stays: what a plan, a unit, a receipt or a container names is in use, and what cannot be told from
somebody else's is not looked at.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._common.sizes import GIB
from .._common.validation import SERVICE_NAME, nearest
from .._content import snapshots
from .._host import beneath
from .._plan.verbs import names_of
from .._vllm.image_catalogue import lookup
from .._vllm.image_names import names_of_image, split_image

KINDS = {
    "images": "images of engines and of add-on services that no container, unit or plan names",
    "caches": "compile caches of services that are not on the host",
    "downloads": "what downloads left behind that will not be taken up again",
    "revisions": "revisions of models that are in use at another one",
    "models": "models that nothing names",
}
WEIGHTS = ("revisions", "models")
"""Kinds that are removed only when a variable of their own says so, too."""

NOT_NOTES = ("images", "models", "spread", "open-webui", "hermes", "speech", "ollama", "fabric", "textfile")
"""Folders below C(/var/lib/dgxspark) that say what is on the disk, or hold data: to be named there is no use."""
NOTE_ENDS = (".json", ".service", ".env", ".yml", ".conf")
MOST_NOTE_BYTES = 4 * 1024 * 1024


def check_request(remove: Any, weights: bool) -> tuple[list[str], list[str]]:
    """Read what is to be removed; returns the kinds, and what is wrong with the request."""
    kinds = names_of(remove)
    messages = [
        f"spark_clean_remove: '{kind}' is nothing that can be removed{nearest(kind, KINDS)} Known: {', '.join(KINDS)}."
        for kind in kinds
        if kind not in KINDS
    ]
    asked = [kind for kind in kinds if kind in WEIGHTS]
    if asked and not weights:
        messages.append(
            f"spark_clean_remove: {' and '.join(asked)} are weights, which take hours to fetch again. "
            "Give -e spark_clean_weights=true as well."
        )
    return kinds, messages


def in_use(planned: Mapping[str, Any], addons: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a host's plan uses: C({images, models: [[repo, revision]], paths, services})."""
    images = set(planned.get("images") or []) | set(planned.get("image_candidates") or [])
    for service in planned.get("services") or []:
        images |= {str(value) for value in service["image"].values() if value}
        for made in (service.get("ray_image"), service.get("built_image")):
            images |= {str(made[key]) for key in ("base", "base_tag", "tag") if made and key in made}
    images |= set(_images_in(addons))
    models = {(entry["repo"], entry["revision"]) for entry in planned.get("models") or [] if entry.get("repo")}
    return {
        "images": sorted(images),
        "models": [list(each) for each in sorted(models)],
        "paths": sorted(entry["path"] for entry in planned.get("models") or [] if entry.get("path")),
        "services": sorted(service["name"] for service in planned.get("services") or []),
    }


def _images_in(value: Any) -> Iterable[str]:
    """Every text that stands under a key which names an image."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, str) and str(key).endswith("image") and item:
                yield item
            else:
                yield from _images_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _images_in(item)


# Images ---------------------------------------------------------------------------------------------------------------


def recognised(image: Mapping[str, Any], wanted: Sequence[str], noted: Iterable[str]) -> bool:
    """Tell whether an image is of a kind that this collection brings: of a repository that it knows, or asked before."""
    labels = (image.get("Config") or {}).get("Labels") or {}
    if any(str(name).startswith("dgxspark.") for name in labels) or image.get("Id") in set(noted):
        return True
    own = {split_image(ref)[0] for ref in wanted}
    for name in [*(image.get("RepoTags") or []), *(image.get("RepoDigests") or [])]:
        repository = split_image(name)[0]
        if repository in own or repository.startswith("dgxspark/") or lookup(repository) is not None:
            return True
    return False


def unused_images(
    images: Sequence[Mapping[str, Any]],
    containers: Iterable[str],
    wanted: Sequence[str],
    keep: Sequence[str],
    noted: Iterable[str],
    notes: str,
) -> list[dict[str, Any]]:
    """Return the images that nothing uses, largest first.

    images: of C(docker image inspect). containers: image ids of all containers, running or not. wanted: references of the
    plan. keep: what the owner keeps. noted: ids of images that were asked what is in them. notes: see C(read_notes).
    """
    used = set(containers)
    named: set[str] = set()
    for ref in [*wanted, *keep]:
        named.add(ref)
        repository, tag, digest = split_image(ref)
        named.add(f"{repository}@{digest}" if digest else f"{repository}:{tag or 'latest'}")
    known = list(noted)
    parents = {str(image.get("Parent") or "") for image in images}
    found = []
    for image in images:
        names = names_of_image(image)
        # A step of a build that another image stands on: it goes with that one, and cannot before.
        if image.get("Id") in parents and not image.get("RepoTags") and not image.get("RepoDigests"):
            continue
        if image.get("Id") in used or names & named or not recognised(image, wanted, known):
            continue
        if any(name in notes for name in names):
            continue
        tags = [tag for tag in image.get("RepoTags") or [] if tag != "<none>:<none>"]
        what = tags or [digest for digest in image.get("RepoDigests") or [] if "<none>" not in digest]
        found.append(
            {
                "kind": "images",
                "what": ", ".join(sorted(what)) or f"{str(image['Id'])[:19]} (no name)",
                "bytes": int(image.get("Size") or 0),
                # By its names: an image with several is gone with the last of them.
                "remove": sorted(what) or [image["Id"]],
                "why": "no container, unit, receipt or plan names it",
                "id": str(image["Id"]),
                "built": any(name.startswith("dgxspark/") for name in tags)
                or any(str(label).startswith("dgxspark.") for label in (image.get("Config") or {}).get("Labels") or {}),
            }
        )
    return sorted(found, key=lambda entry: (-entry["bytes"], entry["what"]))


# Weights --------------------------------------------------------------------------------------------------------------


def size_of(path: Path) -> int:
    """Bytes that a file or a folder takes, links not followed."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(info.st_size for _path, info in beneath.walk(path.parent, path.name))
    except OSError:
        return 0


def read_models(hf_home: Path) -> list[dict[str, Any]]:
    """Say what is below HF_HOME, a model each.

    Returns C([{repo, path, bytes, refs: {name: commit}, revisions: {commit: {path, bytes, blobs}}, partial, orphans}]); bytes of
    a revision are those of the blobs that no other one has. partial are unfinished files, orphans finished ones
    that no revision links to. Folders that are links are left alone.
    """
    found = []
    for name in snapshots.models_of(hf_home):
        try:
            found.append(_read_model(hf_home, name))
        except beneath.Refused:
            continue
    return found


def _read_model(hf_home: Path, name: str) -> dict[str, Any]:
    folder = hf_home / "hub" / name
    with beneath.folder(hf_home, f"hub/{name}") as at:
        sizes = {path[len("blobs/") :]: info.st_size for path, info in beneath.walk(at, "blobs")}
        refs = {}
        for path, _info in beneath.walk(at, "refs"):
            with contextlib.suppress(beneath.Refused):
                text = beneath.read(at, path, snapshots.MOST_OF_A_REF).decode("utf-8", "replace")
                refs[path[len("refs/") :]] = text.strip()
        blobs: dict[str, set[str]] = {}
        plain: dict[str, int] = {}
        for commit in snapshots.entries(hf_home, f"hub/{name}/snapshots"):
            top = f"snapshots/{commit}"
            try:
                files = list(beneath.walk(at, top))
            except beneath.Refused:
                continue
            blobs[commit] = {_target(at, path) for path, info in files if stat.S_ISLNK(info.st_mode)}
            plain[commit] = sum(info.st_size for _path, info in files if stat.S_ISREG(info.st_mode))
        total = sum(info.st_size for _path, info in beneath.walk(at))
    revisions = {}
    for commit, own in blobs.items():
        others = set().union(*(each for other, each in blobs.items() if other != commit))
        alone = sorted(own - others)
        revisions[commit] = {
            "path": str(folder / "snapshots" / commit),
            "bytes": plain[commit] + sum(sizes.get(blob, 0) for blob in alone),
            "blobs": [str(folder / "blobs" / blob) for blob in alone if blob in sizes],
        }
    linked = set().union(*blobs.values()) if blobs else set()
    partial = {blob for blob in sizes if blob.endswith(".incomplete")}
    orphans = sorted(sizes.keys() - linked - partial)
    return {
        "repo": name[len("models--") :].replace("--", "/", 1),
        "path": str(folder),
        "bytes": total,
        "refs": refs,
        "revisions": revisions,
        "partial": {str(folder / "blobs" / blob): sizes[blob] for blob in sorted(partial)},
        "orphans": {str(folder / "blobs" / blob): sizes[blob] for blob in orphans},
    }


def _target(at: int, path: str) -> str:
    """Return the last name of what a link leads to."""
    above, _slash, name = path.rpartition("/")
    with beneath.folder(at, above) as folder:
        return os.readlink(name, dir_fd=folder).rpartition("/")[2]


def unused_weights(
    models: Sequence[Mapping[str, Any]],
    wanted: Sequence[Sequence[str]],
    keep: Sequence[str],
    notes: str,
    whole: Callable[[str, str], bool],
) -> list[dict[str, Any]]:
    """Return models, revisions and leftovers of downloads that nothing uses, largest first.

    wanted: pairs of repo and revision of the plan. notes: what units, receipts and containers say, see C(read_notes). whole:
    whether a repo is whole at a revision; what is not is still to be fetched, and goes on from what there is.
    """
    found: list[dict[str, Any]] = []
    for model in models:
        repo, refs = model["repo"], model["refs"]
        revisions = {revision for name, revision in wanted if name == repo}
        mentioned = repo in notes or model["path"].rsplit("/", 1)[-1] in notes
        if not revisions and not mentioned and repo not in keep:
            why = "no service, unit, receipt or container names it"
            found.append(_unused("models", repo, model["bytes"], [model["path"]], why))
        if repo in keep or not (revisions or mentioned):
            continue
        used = {refs.get(revision, revision) for revision in revisions}
        used |= {commit for commit in model["revisions"] if commit in notes or f"{repo}@{commit}" in keep}
        if mentioned and not revisions:
            # By whom is not known, so neither at what: all that has a name stays.
            used |= set(refs.values())
        # A model in use of which no revision is known to be the one: better too much than too little.
        found += _unused_revisions(model, used & model["revisions"].keys())
        if all(whole(repo, revision) for revision in sorted(revisions)):
            found += _unused_files(model)
    return sorted(found, key=lambda entry: (-entry["bytes"], entry["what"]))


def _unused(kind: str, what: str, size: int, remove: Sequence[str], why: str) -> dict[str, Any]:
    return {"kind": kind, "what": what, "bytes": size, "remove": list(remove), "why": why}


def _unused_revisions(model: Mapping[str, Any], used: Collection[str]) -> list[dict[str, Any]]:
    """Return the revisions of a model beside those in use; none where no revision is known to be in use."""
    found = []
    why = f"in use is {', '.join(sorted(each[:12] for each in used))}"
    for commit, revision in sorted(model["revisions"].items()) if used else ():
        if commit not in used:
            names = [f"{model['path']}/refs/{name}" for name, at in model["refs"].items() if at == commit]
            remove = [revision["path"], *revision["blobs"], *names]
            found.append(_unused("revisions", f"{model['repo']}@{commit[:12]}", revision["bytes"], remove, why))
    return found


def _unused_files(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a whole model does without: unfinished downloads, and files of no revision."""
    repo, partial, orphans = model["repo"], model["partial"], model["orphans"]
    found = []
    if partial:
        what = f"{repo}: {len(partial)} unfinished"
        found.append(_unused("downloads", what, sum(partial.values()), partial, "the model is whole without"))
    if orphans:
        what = f"{repo}: {len(orphans)} of no revision"
        found.append(_unused("revisions", what, sum(orphans.values()), orphans, "no revision links to them"))
    return found


def unused_folders(
    folders: Mapping[str, int], used: Iterable[str], kind: str, notes: str, why: str
) -> list[dict[str, Any]]:
    """Return folders, path to bytes, that are named neither in C(used) nor in C(notes), largest first."""
    keep = set(used)
    return sorted(
        (
            {"kind": kind, "what": path, "bytes": size, "remove": [path], "why": why}
            for path, size in folders.items()
            if path not in keep and path not in notes
        ),
        key=lambda entry: (-int(str(entry["bytes"])), str(entry["what"])),
    )


def read_caches(cache_dir: Path) -> dict[str, int]:
    """Return the folders of services below the folder of caches, with their bytes."""
    if not cache_dir.is_dir():
        return {}
    return {
        str(entry): size_of(entry)
        for entry in sorted(cache_dir.iterdir())
        if entry.is_dir() and not entry.is_symlink() and SERVICE_NAME.fullmatch(entry.name)
    }


def read_notes(etc: Path, state: Path, units: Path) -> str:
    """Return all that units, settings, receipts and generations of this host say, as one text: what it names is in use."""
    files = [*units.glob("*.service"), *units.glob("*.service.d/*.conf"), *etc.rglob("*")]
    if state.is_dir():
        for entry in state.iterdir():
            if entry.name not in NOT_NOTES:
                files += [entry] if entry.is_file() else entry.rglob("*")
    texts = []
    for file in files:
        # Keys lie below `secrets`; nothing is looked for in them.
        if "secrets" in file.parts or file.suffix not in NOTE_ENDS:
            continue
        try:
            if file.is_file() and file.stat().st_size <= MOST_NOTE_BYTES:
                texts.append(file.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


def lines_of(entries: Sequence[Mapping[str, Any]], removed: Sequence[str], done: bool, unjudged: str = "") -> list[str]:
    """Write what was found for people: a line a kind, then its things with their sizes; and why weights were not judged."""
    lines = []
    others = [entry for entry in entries if not entry.get("ours", True)]
    for kind in KINDS:
        own = [entry for entry in entries if entry["kind"] == kind and entry not in others]
        if not own:
            continue
        total = sum(entry["bytes"] for entry in own) / GIB
        if kind in removed:
            fate = "removed" if done else "would be removed"
        else:
            fate = f"stays; -e spark_clean_remove={kind}" + (" -e spark_clean_weights=true" if kind in WEIGHTS else "")
        lines.append(f"{kind}: {total:.2f} GiB, {fate}")
        lines += [f"  {entry['bytes'] / GIB:8.2f} GiB  {entry['what']}: {entry['why']}" for entry in own]
    if others:
        total = sum(entry["bytes"] for entry in others) / GIB
        lines.append(
            f"not recorded as brought by this collection: {total:.2f} GiB, kept; remove by hand what is not needed"
        )
        lines += [f"  {entry['bytes'] / GIB:8.2f} GiB  {entry['what']}: {entry['why']}" for entry in others]
    if unjudged:
        return [*lines, f"weights were not judged: {unjudged}"]
    return lines or ["nothing lies here that is not used"]
