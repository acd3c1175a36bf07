# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock file: the bytes that the fleet runs. Read it, and apply it to services and images. Pure functions.

C(images) and C(models) resolve names, once for the whole fleet; C(services) records the names that each service used when the lock
was made, so that later changes are noticed. C(image_plans) has the answers of images about launches that the arithmetic
does not know: texts, by the names of C(plan_probe.cache_name).
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._common import plain_data, reader
from .._common.foreign_text import Untrusted
from .._common.reader import Maybe
from . import service_keys
from .service import ServiceSpec

SCHEMA = 1
FILE_NAME = "spark.lock.yml"
PLATFORM = "linux/arm64"
"""Platform of a Spark; used for a lock with several platforms until the host has reported its machine."""
MACHINES = {"aarch64": "linux/arm64", "arm64": "linux/arm64", "x86_64": "linux/amd64", "amd64": "linux/amd64"}
# Keys of a recipe that decide the launch; texts and figures for people do not.
LAUNCHES = {*service_keys.AS_IN_A_SERVICE, *service_keys.OF_A_RECIPE, "images", "nodes"} - {"ignore"}


# --- reading -------------------------------------------------------------------------------------------------------


def read(data: Any, origin: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the checked content of a lock file, or None, with messages. data: the parsed file, None for no file."""
    if data is None:
        return None, []
    fix = "Restore it from version control, or remove it and run dgxspark.vllm.lock."
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        schema = data.get("schema") if isinstance(data, Mapping) else type(data).__name__
        return None, [f"lock file {origin}: schema is {schema!r}; this release reads {SCHEMA}. {fix}"]
    messages = plain_data.unfit(data, f"lock file {origin}")
    lock = {part: data.get(part) or {} for part in _PARTS}
    for part, form in () if messages else _PARTS.items():
        messages += [f"lock file {origin}: {text}." for text in reader.problems(form, lock[part], part)]
    return (None if messages else {"schema": SCHEMA, **lock}), [f"{text} {fix}" for text in messages]


def _check_platforms(platforms: dict[str, Any], where: str) -> dict[str, Any]:
    if not platforms:
        raise Untrusted(f"{where} has no platform")
    return platforms


_KEY = reader.text("a name with a revision, NAME@REVISION", lambda name: "@" in name)
_FILE = reader.text(
    "a name of a file below the model", lambda name: name and not name.startswith("/") and ".." not in name.split("/")
)
_IMAGE = {
    "platforms": reader.Then({str: {"id": reader.DIGEST, "digest?": Maybe(reader.DIGEST)}}, _check_platforms),
    "vllm_version?": Maybe(str),
}
_MODEL = {"commit": reader.COMMIT, "files": {_FILE: {"size": reader.SIZE, "sha256": reader.SHA256}}}
_SERVICE = reader.facts(
    {"image": str, "models": [str], "recipe": reader.facts({"name": str, "sha256": str}), "image_plan": str}
)
_PARTS: Mapping[str, Any] = {
    "images": {str: _IMAGE},
    "models": {_KEY: _MODEL},
    "services": {str: _SERVICE},
    "image_plans": {str: str},
}


# --- resolving names ------------------------------------------------------------------------------------------------


def model_key(repo: str, revision: str | None) -> str:
    """Return the name of a model in the lock: repository and requested revision."""
    return f"{repo}@{revision or 'main'}"


def image_on(image: Mapping[str, Any], machine: str | None) -> Mapping[str, Any]:
    """Return the digest and id of a locked image on a machine."""
    platforms: Mapping[str, Any] = image["platforms"]
    chosen: Mapping[str, Any] = platforms.get(MACHINES.get(str(machine), PLATFORM)) or platforms[sorted(platforms)[0]]
    return chosen


def pinned_ref(ref: str, image: Mapping[str, Any], machine: str | None = None) -> str:
    """Return NAME:TAG@DIGEST, which cannot move; the tag is for people and for the catalogue of images.

    An image that no registry knows has no digest: its name stays, and C(by_planned_names) checks its id.
    machine: C(aarch64) or C(x86_64), None for the lock's only one.
    """
    digest = image_on(image, machine).get("digest")
    return f"{ref.partition('@')[0]}@{digest}" if digest else ref


def ids(image: Mapping[str, Any]) -> list[str]:
    """Return the ids that a locked image has on any platform."""
    return sorted({str(entry["id"]) for entry in image["platforms"].values()})


def _entries(lock: Mapping[str, Any] | None, part: str) -> Mapping[str, Any]:
    return (lock or {}).get(part) or {}


def ids_of(lock: Mapping[str, Any] | None, ref: str, machine: str | None = None) -> list[str]:
    """Return the ids of a locked image, none for an image that is not locked."""
    images = _entries(lock, "images").items()
    return sorted({id_ for name, image in images if ref == pinned_ref(name, image, machine) for id_ in ids(image)})


def candidates(lock: Mapping[str, Any] | None, refs: Iterable[str], machine: str | None = None) -> list[str]:
    """Return further references and ids under which a host may have the locked images."""
    aliases: set[str] = set()
    for ref in refs:
        if image := locked_image(lock, ref):
            # Includes the name itself: a finding tells if it has moved on the host.
            aliases |= {locked_name(lock, ref), pinned_ref(ref, image, machine), *ids(image)}
    return sorted(aliases - set(refs))


def locked_name(lock: Mapping[str, Any] | None, ref: str) -> str:
    """Return the name in the lock that a pinned reference resolves, and any other reference unchanged."""
    images = _entries(lock, "images")
    if ref in images:
        return ref
    name, _at, digest = ref.partition("@")
    image = images.get(name)
    return name if image and any(e.get("digest") == digest for e in image["platforms"].values()) else ref


def locked_image(lock: Mapping[str, Any] | None, ref: str) -> Mapping[str, Any] | None:
    """Return the lock's entry of an image, by its name or pinned reference, or None."""
    image: Mapping[str, Any] | None = _entries(lock, "images").get(locked_name(lock, ref))
    return image


def by_planned_names(
    images: Mapping[str, Any], lock: Mapping[str, Any] | None, machine: str | None = None, pin: bool = True
) -> dict[str, Any]:
    """Return the images of a host, with locked ones under the names that the plan uses.

    An image from a bundle or another host lacks a registry's digest there, and an image pulled by digest has no
    tag; by its id it is the same image. images: C(images) of M(dgxspark.vllm.spark_info). pin: a name without digest counts only with the
    id in the lock.
    """
    planned = dict(images)
    for ref, image in _entries(lock, "images").items():
        pinned = pinned_ref(ref, image, machine)
        names = ids(image) if pinned == ref else [pinned, *ids(image)]
        present = next((entry for name in names if (entry := _present(images, name))), None)
        if not pin:
            planned |= {ref: present} if present and not _present(images, ref) else {}
        elif present:
            planned[pinned] = present
        elif pinned == ref and (images.get(ref) or {}).get("id") not in (None, *ids(image)):
            planned[ref] = {**images[ref], "present": False, "other_id": images[ref]["id"]}
    return planned


def _present(images: Mapping[str, Any], ref: str) -> Mapping[str, Any] | None:
    """Return an image of a host, or None if the host lacks it."""
    image: Mapping[str, Any] | None = images.get(ref)
    return image if image and image.get("present") else None


def preferred(lock: Mapping[str, Any] | None, key: str) -> list[str]:
    """Return the locked image of a service, to be preferred among the images of its recipe."""
    ref = (_entries(lock, "services").get(key) or {}).get("image")
    return [str(ref)] if ref in _entries(lock, "images") else []


def recipe_sum(recipe: Mapping[str, Any] | None, variants: Sequence[str], digest: Callable[[str], str | None]) -> str:
    """Return the SHA-256 of what a recipe and the chosen variants fix about the launch, empty without a recipe; files count by content."""
    if not recipe:
        return ""

    bodies = []
    for body in (recipe, *((recipe.get("variants") or {}).get(name) or {} for name in variants)):
        copy = {key: body[key] for key in LAUNCHES if body.get(key) is not None}
        if copy.get("images"):
            copy["images"] = [_with_sums(image, digest) for image in copy["images"]]
        bodies.append(_with_sums(copy, digest))
    return hashlib.sha256(json.dumps(bodies, sort_keys=True).encode()).hexdigest()


def _with_sums(body: Mapping[str, Any], digest: Callable[[str], str | None]) -> dict[str, Any]:
    """Return a copy that names files by their content: the path on the controller is not part of the recipe."""
    copy = dict(body)
    if copy.get("files"):
        copy["files"] = [
            {**entry, "source": digest(entry["source"]) or posixpath.basename(str(entry["source"]))}
            for entry in copy["files"]
        ]
    return copy


def describe(
    service: ServiceSpec, key: str, recipe: Mapping[str, Any] | None, digest: Callable[[str], str | None]
) -> dict[str, Any]:
    """Return C({key, image, models: [{repo, revision, only}], recipe, recipe_sha256}) of a service. key: C(host/name), or C(cluster/name)."""
    model = service.model
    models = [{**model, "only": None}] if model.get("repo") else []
    return {
        "key": key,
        "image": service.image.get("ref"),
        "models": [
            {
                "repo": entry["repo"],
                "revision": entry.get("revision") or "main",
                "only": list(entry.get("only") or []),
            }
            for entry in [*models, *(model.get("extra") or [])]
        ],
        "recipe": service.recipe,
        "recipe_sha256": recipe_sum(recipe, service.variant, digest),
    }


def pin(service: ServiceSpec, lock: Mapping[str, Any] | None, machine: str | None = None) -> ServiceSpec:
    """Return a service with its image by digest and its models by commit, if the lock has them."""
    locked = locked_image(lock, str(service.image.get("ref")))
    if locked:
        ref = pinned_ref(service.image["ref"], locked, machine)
        version = {"vllm_version": locked["vllm_version"]} if locked.get("vllm_version") else {}
        service = replace(service, image={**service.image, "ref": ref, **version}, alternatives=[ref])
    model = dict(service.model)
    if model.get("repo"):
        model["revision"] = commit(lock, model)
    if model.get("extra"):
        model["extra"] = [{**entry, "revision": commit(lock, entry)} for entry in model["extra"]]
    return replace(service, model=model)


def commit(lock: Mapping[str, Any] | None, model: Mapping[str, Any]) -> Any:
    """Return the locked commit of a model, else its requested revision."""
    revision = model.get("revision")
    locked = _entries(lock, "models").get(model_key(model["repo"], revision))
    return locked["commit"] if locked else revision


def files_of(
    lock: Mapping[str, Any] | None, repo: str, revision: str, only: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the locked files of a model at a commit by name: C({size, sha256}), size in bytes. only: patterns of names, empty for all."""
    for key, model in sorted(_entries(lock, "models").items()):
        name, _at, named_revision = key.rpartition("@")
        if name == repo and revision in (model["commit"], named_revision):
            return {
                str(file): {"size": entry["size"], "sha256": entry["sha256"]}
                for file, entry in sorted(model["files"].items())
                if not only or any(fnmatch.fnmatch(file, pattern) for pattern in only)
            }
    return {}


def locked_images(lock: Mapping[str, Any] | None, refs: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the locked name and ids of images, by the deployed reference, for the host."""
    return {
        ref: {"name": locked_name(lock, ref), "ids": ids(image)}
        for ref in sorted(refs)
        if (image := locked_image(lock, ref))
    }


# --- add-on services ------------------------------------------------------------------------------------------------------


def pin_ref(lock: Mapping[str, Any] | None, ref: str, machine: str | None = None) -> str:
    """Return a reference by the digest in the lock, or unchanged without one."""
    image = locked_image(lock, ref)
    return pinned_ref(ref, image, machine) if image else ref


def run_ref(lock: Mapping[str, Any] | None, ref: str, images: Mapping[str, Any], machine: str | None = None) -> str:
    """Return the reference of an image that a host runs: its digest, or its id if its image, of C(by_planned_names), lacks the digest."""
    image = locked_image(lock, ref)
    if not image:
        return ref
    pinned = pinned_ref(ref, image, machine)
    present = _present(images, pinned) or {}
    digests = [name.partition("@")[2] for name in present.get("repo_digests") or []]
    by_id = present.get("id") in ids(image) and pinned.partition("@")[2] not in digests
    return str(present["id"]) if by_id else pinned


# --- services -------------------------------------------------------------------------------------------------------


def model_keys(described: Mapping[str, Any]) -> list[str]:
    """Return the names of the models of a service in the lock. described: of C(describe)."""
    return [model_key(entry["repo"], entry["revision"]) for entry in described["models"]]
