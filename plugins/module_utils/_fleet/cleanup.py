# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find images, caches and weights of a host that nothing uses. C(read_models), C(read_caches) and C(read_notes) read the disk.

In doubt a thing stays. A plan, a unit, a receipt or a container uses everything that it names. Files that could belong to somebody else are
not examined.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
"""Kinds that are only removed with C(spark_clean_weights)."""
DATA_FOLDERS = ("images", "models", "spread", "open-webui", "hermes", "speech", "ollama", "fabric", "textfile")
"""Folders below C(/var/lib/dgxspark) with data, or with lists of what is on the disk: a name in them is no use."""
NOTE_SUFFIXES = (".json", ".service", ".env", ".yml", ".conf")
MOST_NOTE_BYTES = 4 * 1024 * 1024
OWN_LABEL = "dgxspark."
OWN_REPOSITORY = "dgxspark/"


def check_request(remove: Any, weights: bool) -> tuple[list[str], list[str]]:
    """Return the kinds to remove, and the errors of the request."""
    kinds = names_of(remove)
    errors = [
        f"spark_clean_remove: '{kind}' is nothing that can be removed{nearest(kind, KINDS)} Known: {', '.join(KINDS)}."
        for kind in kinds
        if kind not in KINDS
    ]
    weight_kinds = [kind for kind in kinds if kind in WEIGHTS]
    if weight_kinds and not weights:
        errors.append(
            f"spark_clean_remove: {' and '.join(weight_kinds)} are weights, which take hours to fetch again. Set -e spark_clean_weights=true too."
        )
    return kinds, errors


def _images_of(service: Mapping[str, Any]) -> set[str]:
    """Return the names of the images of a planned service."""
    images = {str(value) for value in service["image"].values() if value}
    for derived in (service.get("ray_image") or {}, service.get("built_image") or {}):
        images |= {str(derived[key]) for key in ("base", "base_tag", "tag") if key in derived}
    return images


def in_use(planned: Mapping[str, Any], addons: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names in a host's plan: C({images, models: [[repo, revision]], paths, services})."""
    services, models = planned.get("services") or [], planned.get("models") or []
    images = {*(planned.get("images") or []), *(planned.get("image_candidates") or []), *_images_in(addons)}
    for service in services:
        images |= _images_of(service)
    repositories = {(model["repo"], model["revision"]) for model in models if model.get("repo")}
    return {
        "images": sorted(images),
        "models": [list(pair) for pair in sorted(repositories)],
        "paths": sorted(model["path"] for model in models if model.get("path")),
        "services": sorted(service["name"] for service in services),
    }


def _images_in(value: Any) -> Iterator[str]:
    """Yield each text below a key that names an image."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, str) and str(key).endswith("image") and item:
                yield item
            else:
                yield from _images_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _images_in(item)


def _unused(kind: str, title: str, size: int, remove: Sequence[str], why: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "what": title, "bytes": size, "remove": list(remove), "why": why, **more}


def _largest_first(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(entries, key=lambda entry: (-entry["bytes"], entry["what"]))


# --- images


def _has_own_label(image: Mapping[str, Any]) -> bool:
    return any(str(name).startswith(OWN_LABEL) for name in (image.get("Config") or {}).get("Labels") or {})


def _is_recognised(image: Mapping[str, Any], planned: Sequence[str], asked_ids: Collection[str]) -> bool:
    """Tell whether an image is of a known repository, made by the collection, or was asked for its contents."""
    if _has_own_label(image) or image.get("Id") in asked_ids:
        return True
    planned_repositories = {split_image(name)[0] for name in planned}
    names = [*(image.get("RepoTags") or []), *(image.get("RepoDigests") or [])]
    repositories = {split_image(name)[0] for name in names}
    return any(
        repository in planned_repositories or repository.startswith(OWN_REPOSITORY) or lookup(repository) is not None
        for repository in repositories
    )


def _unused_image(image: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of an unused image."""
    tags = [tag for tag in image.get("RepoTags") or [] if tag != "<none>:<none>"]
    names = sorted(tags or [digest for digest in image.get("RepoDigests") or [] if "<none>" not in digest])
    title, why = (
        ", ".join(names) or f"{str(image['Id'])[:19]} (no name)",
        "no container, unit, receipt or plan names it",
    )
    is_built = any(name.startswith(OWN_REPOSITORY) for name in tags) or _has_own_label(image)
    # Docker removes an image with the last of its names.
    remove, size = names or [image["Id"]], int(image.get("Size") or 0)
    return _unused("images", title, size, remove, why, id=str(image["Id"]), built=is_built)


def unused_images(
    images: Sequence[Mapping[str, Any]],
    containers: Iterable[str],
    planned: Sequence[str],
    keep: Sequence[str],
    asked_ids: Iterable[str],
    notes: str,
) -> list[dict[str, Any]]:
    """Return the images that nothing uses, largest first.

    :param images: of C(docker image inspect)
    :param containers: image ids of all containers, running or not
    """
    used_ids, asked_images = set(containers), set(asked_ids)
    used_names = {*planned, *keep}
    for repository, tag, digest in map(split_image, [*planned, *keep]):
        used_names.add(f"{repository}@{digest}" if digest else f"{repository}:{tag or 'latest'}")
    parents = {str(image.get("Parent") or "") for image in images}
    unused = []
    for image in images:
        all_names = names_of_image(image)
        # Docker removes a step of a build together with the image above it, and not before.
        is_step = image.get("Id") in parents and not image.get("RepoTags") and not image.get("RepoDigests")
        if is_step or image.get("Id") in used_ids or all_names & used_names:
            continue
        if not _is_recognised(image, planned, asked_images) or any(name in notes for name in all_names):
            continue
        unused.append(_unused_image(image))
    return _largest_first(unused)


# --- weights


def size_of(path: Path) -> int:
    """Return the bytes of a file or a folder, without following links."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(info.st_size for _path, info in beneath.walk(path.parent, path.name))
    except OSError:
        return 0


def read_models(hf_home: Path) -> list[dict[str, Any]]:
    """Return the models below HF_HOME; folders that are links are skipped.

    Returns C([{repo, path, bytes, refs: {name: commit}, revisions: {commit: {path, bytes, blobs}}, partial, orphans}]). Bytes and blobs of a
    revision are those that no other revision has. partial: unfinished files. orphans: finished files of no revision.
    """
    models = []
    for name in snapshots.models_of(hf_home):
        with contextlib.suppress(beneath.Refused):
            models.append(_read_model(hf_home, name))
    return models


def _revision(
    folder: Path, commit: str, blobs: Mapping[str, set[str]], plain_bytes: int, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Return a revision of a model. blobs: by commit. plain_bytes: of its files that are no links. sizes: of blobs."""
    elsewhere = set().union(*(blobs[other] for other in blobs if other != commit))
    alone = sorted(blobs[commit] - elsewhere)
    return {
        "path": str(folder / "snapshots" / commit),
        "bytes": plain_bytes + sum(sizes.get(blob, 0) for blob in alone),
        "blobs": [str(folder / "blobs" / blob) for blob in alone if blob in sizes],
    }


def _read_model(hf_home: Path, name: str) -> dict[str, Any]:
    folder, repo = hf_home / "hub" / name, name[len("models--") :].replace("--", "/", 1)
    with beneath.folder(hf_home, f"hub/{name}") as handle:
        sizes = {path[len("blobs/") :]: info.st_size for path, info in beneath.walk(handle, "blobs")}
        # Of each snapshot: its linked blobs, and the bytes of its files that are no links.
        blobs: dict[str, set[str]] = {}
        plain_bytes: dict[str, int] = {}
        for commit in snapshots.entries(hf_home, f"hub/{name}/snapshots"):
            with contextlib.suppress(beneath.Refused):
                files = list(beneath.walk(handle, f"snapshots/{commit}"))
                blobs[commit] = {_target(handle, path) for path, info in files if stat.S_ISLNK(info.st_mode)}
                plain_bytes[commit] = sum(info.st_size for _path, info in files if stat.S_ISREG(info.st_mode))
        total = sum(info.st_size for _path, info in beneath.walk(handle))
    partial = {blob for blob in sizes if blob.endswith(".incomplete")}
    orphans = sizes.keys() - set().union(*blobs.values()) - partial
    return {
        "repo": repo,
        "path": str(folder),
        "bytes": total,
        "refs": snapshots.refs_of(hf_home, repo, name),
        "revisions": {commit: _revision(folder, commit, blobs, plain_bytes[commit], sizes) for commit in blobs},
        "partial": {str(folder / "blobs" / blob): sizes[blob] for blob in sorted(partial)},
        "orphans": {str(folder / "blobs" / blob): sizes[blob] for blob in sorted(orphans)},
    }


def _target(handle: int, path: str) -> str:
    """Return the file name in the target of a link."""
    above, _slash, name = path.rpartition("/")
    with beneath.folder(handle, above) as folder:
        return os.readlink(name, dir_fd=folder).rpartition("/")[2]


def _leftovers(model: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the entries of unfinished files, and of files that no revision has."""
    for key, kind, words, why in (
        ("partial", "downloads", "unfinished", "the model is whole without"),
        ("orphans", "revisions", "of no revision", "no revision links to them"),
    ):
        files = model[key]
        if files:
            yield _unused(kind, f"{model['repo']}: {len(files)} {words}", sum(files.values()), files, why)


def unused_weights(
    models: Sequence[Mapping[str, Any]],
    planned: Sequence[Sequence[str]],
    keep: Sequence[str],
    notes: str,
    is_complete: Callable[[str, str], bool],
) -> list[dict[str, Any]]:
    """Return models, revisions and leftovers of downloads that nothing uses, largest first.

    :param keep: repositories, or C(REPO@COMMIT), that the owner keeps
    :param is_complete: whether a repository is complete at a revision; an interrupted download continues from its leftovers
    """
    entries: list[dict[str, Any]] = []
    for model in models:
        repo, refs = model["repo"], model["refs"]
        if repo in keep:
            continue
        revisions = {revision for name, revision in planned if name == repo}
        is_mentioned = repo in notes or model["path"].rsplit("/", 1)[-1] in notes
        if not revisions and not is_mentioned:
            why = "no service, unit, receipt or container names it"
            entries.append(_unused("models", repo, model["bytes"], [model["path"]], why))
            continue
        used = {refs.get(revision, revision) for revision in revisions}
        used |= {commit for commit in model["revisions"] if commit in notes or f"{repo}@{commit}" in keep}
        if not revisions:
            # The mention does not tell the revision, so all named revisions stay.
            used |= set(refs.values())
        entries += _unused_revisions(model, used & model["revisions"].keys())
        if all(is_complete(repo, revision) for revision in sorted(revisions)):
            entries += _leftovers(model)
    return _largest_first(entries)


def _unused_revisions(model: Mapping[str, Any], used: Collection[str]) -> list[dict[str, Any]]:
    """Return the other revisions of a model; none if no used revision is known."""
    entries = []
    why = f"in use is {', '.join(sorted(commit[:12] for commit in used))}"
    for commit, revision in sorted(model["revisions"].items()) if used else ():
        if commit not in used:
            names = [f"{model['path']}/refs/{name}" for name, target in model["refs"].items() if target == commit]
            remove = [revision["path"], *revision["blobs"], *names]
            entries.append(_unused("revisions", f"{model['repo']}@{commit[:12]}", revision["bytes"], remove, why))
    return entries


def unused_folders(
    folders: Mapping[str, int], used: Collection[str], kind: str, notes: str, why: str
) -> list[dict[str, Any]]:
    """Return the folders that neither C(used) nor C(notes) name, largest first. folders: bytes by path."""
    unused = {path: size for path, size in folders.items() if path not in used and path not in notes}
    return _largest_first(_unused(kind, path, size, [path], why) for path, size in unused.items())


def read_caches(cache_dir: Path) -> dict[str, int]:
    """Return the bytes of each service's folder of caches, by path."""
    if not cache_dir.is_dir():
        return {}
    return {
        str(entry): size_of(entry)
        for entry in sorted(cache_dir.iterdir())
        if entry.is_dir() and not entry.is_symlink() and SERVICE_NAME.fullmatch(entry.name)
    }


def read_notes(etc: Path, state: Path, units: Path) -> str:
    """Return the texts of all units, settings, receipts and generations of this host; every name in them is in use."""
    files = [*units.glob("*.service"), *units.glob("*.service.d/*.conf"), *etc.rglob("*")]
    for entry in state.iterdir() if state.is_dir() else ():
        if entry.name not in DATA_FOLDERS:
            files += [entry] if entry.is_file() else entry.rglob("*")
    return "\n".join(filter(None, map(_note, files)))


def _note(file: Path) -> str:
    """Return the text of a file, empty for a key, a large file and other formats."""
    if "secrets" in file.parts or file.suffix not in NOTE_SUFFIXES:
        return ""
    try:
        is_note = file.is_file() and file.stat().st_size <= MOST_NOTE_BYTES
        return file.read_text(encoding="utf-8", errors="replace") if is_note else ""
    except OSError:
        return ""


def lines_of(entries: Sequence[Mapping[str, Any]], removed: Sequence[str], done: bool, unjudged: str = "") -> list[str]:
    """Return the report for people. entries: unused things, with C(ours). unjudged: why weights were not judged."""
    lines: list[str] = []
    ours = [entry for entry in entries if entry.get("ours", True)]
    for kind in KINDS:
        if kind in removed:
            fate = "removed" if done else "would be removed"
        else:
            fate = f"stays; -e spark_clean_remove={kind}" + (" -e spark_clean_weights=true" if kind in WEIGHTS else "")
        lines += _section_lines(kind, fate, [entry for entry in ours if entry["kind"] == kind])
    foreign = [entry for entry in entries if not entry.get("ours", True)]
    fate = "kept; remove unneeded ones yourself"
    lines += _section_lines("not recorded as installed by this collection", fate, foreign)
    if unjudged:
        return [*lines, f"weights were not judged: {unjudged}"]
    return lines or ["nothing lies here that is not used"]


def _section_lines(title: str, fate: str, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    if not entries:
        return []
    total = sum(entry["bytes"] for entry in entries) / GIB
    lines = [f"  {entry['bytes'] / GIB:8.2f} GiB  {entry['what']}: {entry['why']}" for entry in entries]
    return [f"{title}: {total:.2f} GiB, {fate}", *lines]
