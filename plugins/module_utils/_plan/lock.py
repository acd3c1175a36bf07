# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock file: which bytes the fleet runs. Read, applied to a plan, made from what hosts say, and written. Pure functions.

C(images) and C(models) say what a name stands for, once for the whole fleet; C(services) says what was served by which
names when the lock was made, so that what changed since can be told. C(image_plans) has what images said of launches that the arithmetic
does not know: texts, by the names of C(plan_probe.cache_name).
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._common import plain_data
from .._common.findings import Finding
from .._vllm import image_catalogue
from .service import ServiceSpec

SCHEMA = 1
FILE_NAME = "spark.lock.yml"
HEADER = """\
# Which bytes the fleet runs: images by digest, models by commit and the sum of each file. Commit this file.
# Made and refreshed by the playbook dgxspark.vllm.lock; site.yml deploys what stands here.
"""
MOVING_REVISIONS = ("main", "master")
PLATFORM = "linux/arm64"
"""What a Spark is; a lock that has more than one platform is read for this one until the host has said what it is."""
MACHINES = {"aarch64": "linux/arm64", "arm64": "linux/arm64", "x86_64": "linux/amd64", "amd64": "linux/amd64"}
PIN = (
    "Pin it, or deploy one host with -e spark_allow_moving=true --limit HOST, then run dgxspark.vllm.lock --limit HOST: what is locked "
    "there holds for all hosts."
)
MOST_NAMES = 6
"""Services that are named with the same moving names; the plan above has all."""
SUM = re.compile(r"sha256:[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")
HEX = re.compile(r"[0-9a-f]{64}")
# What of a recipe decides what is launched; texts and figures for people do not.
LAUNCHES = (
    "model",
    "images",
    "args",
    "env",
    "checks",
    "files",
    "pip",
    "nodes",
    "config",
    "quant_config",
    "weights_gib",
    "draft_weights_gib",
    "memory",
    "memory_gib",
    "draft_config",
    "served_model_name",
    "start_timeout",
    "shm_size",
)


# --- reading -------------------------------------------------------------------------------------------------------


def read(data: Any, origin: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Check what was read from a lock file; returns C((lock, messages)), C(lock) is None where there is none."""
    if data is None:
        return None, []
    fix = "Restore it from version control, or remove it and run dgxspark.vllm.lock."
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, Mapping) else type(data).__name__
        return None, [f"lock file {origin}: schema is {found!r}; this release reads {SCHEMA}. {fix}"]
    messages = [f"{text} {fix}" for text in plain_data.unfit(data, f"lock file {origin}")]
    if messages:
        return None, messages
    lock: dict[str, Any] = {"schema": SCHEMA}
    for part in ("images", "models", "services"):
        body = data.get(part) or {}
        if not isinstance(body, Mapping):
            messages.append(f"lock file {origin}: '{part}' must be a mapping. {fix}")
            body = {}
        lock[part] = {str(key): value for key, value in body.items()}
    answers = data.get("image_plans") or {}
    if plain_data.misfits(answers, plain_data.MappingOf(str), "image_plans"):
        messages.append(f"lock file {origin}: 'image_plans' must be a mapping of texts. {fix}")
        answers = {}
    lock["image_plans"] = {str(key): str(text) for key, text in answers.items()}
    for ref, image in lock["images"].items():
        platforms = image.get("platforms") if isinstance(image, Mapping) else None
        version = image.get("vllm_version") if platforms else None
        if not _is_platforms(platforms) or not isinstance(version, (str, type(None))):
            messages.append(f"lock file {origin}, image {ref}: each of 'platforms' needs an id, sha256:... {fix}")
    for key, model in lock["models"].items():
        files = model.get("files") if isinstance(model, Mapping) else None
        if "@" not in key or not isinstance(files, Mapping) or not COMMIT.fullmatch(str(model.get("commit"))):
            messages.append(f"lock file {origin}, model {key}: needs a 'commit' and 'files'. {fix}")
            continue
        messages += [
            f"lock file {origin}, model {key}, file {name}: needs 'size' and 'sha256', and a name below the model. {fix}"
            for name, entry in files.items()
            if not _is_file(str(name), entry)
        ]
    messages += [
        f"lock file {origin}, service {key}: needs 'image', a list 'models' and 'recipe', a name and a sum. {fix}"
        for key, entry in lock["services"].items()
        if not _is_service(entry)
    ]
    return (None if messages else lock), messages


def _is_platforms(entry: Any) -> bool:
    return isinstance(entry, Mapping) and bool(entry) and all(_is_image(each) for each in entry.values())


def _is_image(entry: Any) -> bool:
    return (
        isinstance(entry, Mapping)
        and SUM.fullmatch(str(entry.get("id"))) is not None
        and (entry.get("digest") is None or SUM.fullmatch(str(entry["digest"])) is not None)
    )


def _is_service(entry: Any) -> bool:
    form = {"image": str, "models": [str], "recipe": {"name": str, "sha256": str}, "image_plan": str}
    return isinstance(entry, Mapping) and not plain_data.misfits(entry, form, "service")


def _is_file(name: str, entry: Any) -> bool:
    inside = bool(name) and not name.startswith("/") and ".." not in name.split("/")
    return (
        inside
        and isinstance(entry, Mapping)
        and plain_data.is_whole(entry.get("size"), 0)
        and HEX.fullmatch(str(entry.get("sha256"))) is not None
    )


# --- what a name stands for ----------------------------------------------------------------------------------------


def model_key(repo: str, revision: str | None) -> str:
    """Return the name of a model in the lock: as it was asked for."""
    return f"{repo}@{revision or 'main'}"


def _on(image: Mapping[str, Any], machine: str | None) -> Mapping[str, Any]:
    """Return what a locked image is on a machine."""
    platforms: Mapping[str, Any] = image["platforms"]
    wanted = MACHINES.get(str(machine), PLATFORM)
    chosen: Mapping[str, Any] = platforms.get(wanted) or platforms[sorted(platforms)[0]]
    return chosen


def pinned_ref(ref: str, image: Mapping[str, Any], machine: str | None = None) -> str:
    """Return a reference that cannot move; the tag stays in it for people and for the catalogue of images.

    An image that no registry knows has no digest: its name stays, and C(by_planned_names) judges it by its id.

    :param ref: as the inventory has it
    :param image: of the lock
    :param machine: C(aarch64) or C(x86_64), None for the lock's only one
    :returns: NAME:TAG@DIGEST
    """
    digest = _on(image, machine).get("digest")
    return f"{ref.partition('@')[0]}@{digest}" if digest else ref


def ids(image: Mapping[str, Any]) -> list[str]:
    """Return the ids that a locked image has on any platform."""
    return sorted({str(entry["id"]) for entry in image["platforms"].values()})


def ids_of(lock: Mapping[str, Any] | None, ref: str, machine: str | None = None) -> list[str]:
    """Return the ids of a locked image.

    :param lock: None where there is none
    :param ref: as the plan names it, see C(pinned_ref)
    :param machine: see C(pinned_ref)
    :returns: ids, none of an image that is not locked
    """
    locked = ((lock or {}).get("images") or {}).items()
    return sorted({each for name, image in locked if ref == pinned_ref(name, image, machine) for each in ids(image)})


def candidates(lock: Mapping[str, Any] | None, refs: Iterable[str], machine: str | None = None) -> list[str]:
    """Return what a host is asked for beside the names themselves, by which locked images may be there.

    :param lock: None where there is none
    :param refs: the names
    :param machine: see C(pinned_ref)
    :returns: references and ids
    """
    found: set[str] = set()
    for ref in refs:
        image = _image_of(lock, ref)
        if image:
            # The name itself, too: whether it stands for something else on the host by now is said.
            found |= {_written(lock, ref), pinned_ref(_written(lock, ref), image, machine), *ids(image)}
    return sorted(found - set(refs))


def _written(lock: Mapping[str, Any] | None, ref: str) -> str:
    """Return the name in the lock that a pinned reference stands for; any other as it is."""
    images = (lock or {}).get("images") or {}
    if ref in images:
        return ref
    name, _at, digest = ref.partition("@")
    known = images.get(name)
    return name if known and any(e.get("digest") == digest for e in known["platforms"].values()) else ref


def _image_of(lock: Mapping[str, Any] | None, ref: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = ((lock or {}).get("images") or {}).get(_written(lock, ref))
    return found


def by_planned_names(
    images: Mapping[str, Any], lock: Mapping[str, Any] | None, machine: str | None = None, pin: bool = True
) -> dict[str, Any]:
    """Return what a host said about images, with locked ones under the names that the plan uses.

    An image that came from a bundle or another host has no digest of a registry there, and one that was pulled by
    digest has no
    tag; by its id it is the same image.

    :param images: by reference, C(images) of M(dgxspark.vllm.spark_info)
    :param lock: None where there is none
    :param machine: see C(pinned_ref)
    :param pin: a name without digest counts only with the id that the lock has
    :returns: images by reference
    """
    seen = dict(images)
    for ref, image in ((lock or {}).get("images") or {}).items():
        pinned = pinned_ref(ref, image, machine)
        by_id = next((images[each] for each in ids(image) if (images.get(each) or {}).get("present")), None)
        there = images.get(pinned) if pinned != ref else None
        locked = there if (there or {}).get("present") else by_id
        if not pin:
            if locked and not (images.get(ref) or {}).get("present"):
                seen[ref] = locked
        elif locked:
            seen[pinned] = locked
        elif pinned == ref and (images.get(ref) or {}).get("id") not in (None, *ids(image)):
            seen[ref] = {**images[ref], "present": False, "other_id": images[ref]["id"]}
    return seen


def preferred(lock: Mapping[str, Any] | None, key: str) -> list[str]:
    """Return the image that a service was locked with, for the choice among those of its recipe."""
    entry = ((lock or {}).get("services") or {}).get(key) or {}
    ref = entry.get("image")
    return [str(ref)] if ref in ((lock or {}).get("images") or {}) else []


def recipe_sum(recipe: Mapping[str, Any] | None, variants: Sequence[str], digest: Callable[[str], str | None]) -> str:
    """Return a hash of what a recipe and the chosen variants say about the launch; files count by their content.

    :param recipe: None for a service without one
    :param variants: the names of those that were chosen
    :param digest: the SHA-256 of a file, None where there is none
    :returns: 64 hexadecimal digits, empty without a recipe
    """
    if not recipe:
        return ""

    def kept(body: Mapping[str, Any]) -> dict[str, Any]:
        copy = {key: body[key] for key in LAUNCHES if body.get(key) is not None}
        if copy.get("images"):
            copy["images"] = [_with_sums(image, digest) for image in copy["images"]]
        return _with_sums(copy, digest)

    bodies = [kept(recipe), *(kept((recipe.get("variants") or {}).get(name) or {}) for name in variants)]
    return hashlib.sha256(json.dumps(bodies, sort_keys=True).encode()).hexdigest()


def _with_sums(body: Mapping[str, Any], digest: Callable[[str], str | None]) -> dict[str, Any]:
    """Name files by their content: where a checkout lies on the controller is not part of the recipe."""
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
    """Return what the lock keeps of a service as it is written: the names that it is served by, and its recipe.

    :param service: with its recipe applied
    :param key: C(host/name), or C(cluster/name)
    :param recipe: None for a service without one
    :param digest: see C(recipe_sum)
    :returns: C({key, image, models: [{repo, revision, only}], recipe, recipe_sha256})
    """
    model = service.model
    asked = [model] if model.get("repo") else []
    return {
        "key": key,
        "image": service.image.get("ref"),
        "models": [
            {
                "repo": entry["repo"],
                "revision": entry.get("revision") or "main",
                "only": list(entry.get("only") or []) if entry is not model else [],
            }
            for entry in [*asked, *(model.get("extra") or [])]
        ],
        "recipe": service.recipe,
        "recipe_sha256": recipe_sum(recipe, service.variant, digest),
    }


def pin(service: ServiceSpec, lock: Mapping[str, Any] | None, machine: str | None = None) -> ServiceSpec:
    """Return a service with its image by digest and its models by commit, as far as the lock has them.

    :param service: with its recipe applied
    :param lock: None where there is none
    :param machine: see C(pinned_ref)
    :returns: a copy
    """
    pinned: dict[str, Any] = {}
    image = service.image
    locked = _image_of(lock, str(image.get("ref")))
    if locked:
        ref = pinned_ref(image["ref"], locked, machine)
        pinned["image"] = {
            **image,
            "ref": ref,
            **({"vllm_version": locked["vllm_version"]} if locked.get("vllm_version") else {}),
        }
        pinned["alternatives"] = [ref]
    model = service.model
    if model.get("repo"):
        pinned["model"] = {**model, "revision": commit(lock, model)}
    if model.get("extra"):
        extra = [{**entry, "revision": commit(lock, entry)} for entry in model["extra"]]
        pinned["model"] = {**pinned.get("model", model), "extra": extra}
    return replace(service, **pinned)


def commit(lock: Mapping[str, Any] | None, asked: Mapping[str, Any]) -> Any:
    """Return the commit that the lock has for a model, else the revision as it was asked for."""
    revision = asked.get("revision")
    found = ((lock or {}).get("models") or {}).get(model_key(asked["repo"], revision))
    return found["commit"] if found else revision


def files_of(
    lock: Mapping[str, Any] | None, repo: str, revision: str, only: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the locked files of a model at a commit.

    :param lock: None where there is none
    :param repo: ORG/NAME
    :param revision: branch, tag or commit
    :param only: patterns of the files that are meant; all when empty
    :returns: name to C({size, sha256}), size in bytes; empty where the lock has none
    """
    for key, model in sorted(((lock or {}).get("models") or {}).items()):
        if key.rpartition("@")[0] == repo and revision in (model["commit"], key.rpartition("@")[2]):
            return {
                str(name): {"size": entry["size"], "sha256": entry["sha256"]}
                for name, entry in sorted(model["files"].items())
                if not only or any(fnmatch.fnmatch(name, pattern) for pattern in only)
            }
    return {}


def locked_images(lock: Mapping[str, Any] | None, refs: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what a host has to know of its locked images, by the reference that is deployed: the name, and the ids."""
    found = {}
    for ref in refs:
        image = _image_of(lock, ref)
        if image:
            found[ref] = {"name": _written(lock, ref), "ids": ids(image)}
    return dict(sorted(found.items()))


# --- add-on services ------------------------------------------------------------------------------------------------------


def pin_ref(lock: Mapping[str, Any] | None, ref: str, machine: str | None = None) -> str:
    """Return what a reference stands for in the lock: itself by digest, or as it is where the lock or the registry has none.

    :param lock: None where there is none
    :param ref: as the inventory has it
    :param machine: see C(pinned_ref)
    :returns: a reference
    """
    image = _image_of(lock, ref)
    return pinned_ref(ref, image, machine) if image else ref


def run_ref(lock: Mapping[str, Any] | None, ref: str, images: Mapping[str, Any], machine: str | None = None) -> str:
    """Return by what a host runs an image: by digest, or by its id where it has the locked one without a digest.

    :param lock: None where there is none
    :param ref: as the inventory has it
    :param images: what the host said, as C(by_planned_names) returns it; empty where it was not asked
    :param machine: see C(pinned_ref)
    :returns: a reference or an id
    """
    image = _image_of(lock, ref)
    if not image:
        return ref
    pinned = pinned_ref(ref, image, machine)
    there = images.get(pinned) or {}
    by_digest = any(digest.partition("@")[2] == pinned.partition("@")[2] for digest in there.get("repo_digests") or [])
    return str(there["id"]) if there.get("present") and there.get("id") in ids(image) and not by_digest else pinned


def addons(
    lock: Mapping[str, Any] | None, refs: Iterable[str], machine: str | None = None
) -> dict[str, dict[str, Any]]:
    """Return what C(locked_images) does, for images of add-on services.

    :param lock: None where there is none
    :param refs: as the inventory has them
    :param machine: see C(pinned_ref)
    :returns: pinned reference to C({name, ids})
    """
    found = {}
    for ref in refs:
        image = _image_of(lock, ref)
        if image:
            found[pinned_ref(ref, image, machine)] = {"name": _written(lock, ref), "ids": ids(image)}
    return dict(sorted(found.items()))


def addon_findings(
    lock: Mapping[str, Any] | None,
    host: str,
    named: Mapping[str, str],
    said: Mapping[str, Any],
    upstream: Mapping[str, Mapping[str, str]] | None,
    bundle: str = "",
) -> list[Finding]:
    """Return what is to be said of the images of a host's add-on services.

    :param lock: None where there is none
    :param host: its name
    :param named: server to its image, as the inventory has it
    :param said: what the host said of images, as C(by_planned_names) returns it
    :param upstream: see C(moved)
    :param bundle: the folder of a bundle, which brings what no registry knows
    :returns: findings
    """
    found: list[Finding] = []
    by_tag = sorted({ref for ref in named.values() if "@" not in ref and _image_of(lock, ref) is None})
    for name, ref in named.items():
        found += other_image(ref, said, name, bundle)
        # One that no registry knows is an error of its own where the locked one is not there.
        if not (said.get(ref) or {}).get("other_id"):
            asked = {"key": f"{host}/{name}", "image": ref, "models": []}
            found += moved(lock, asked, said, {}, name, upstream)
    if by_tag:
        found.append(
            Finding(
                "lock.by_tag",
                "warning" if lock else "info",
                f"{', '.join(by_tag)} {'is' if len(by_tag) == 1 else 'are'} deployed by tag: whoever pushes to the registry decides what it is.",
                "Run dgxspark.vllm.lock once it is deployed, which records the digest that this host has; or name a digest.",
            )
        )
    return found


# --- what is said about it -----------------------------------------------------------------------------------------


def findings(
    lock: Mapping[str, Any] | None, described: Mapping[str, Any], name: str, sparks: int, settings: Mapping[str, Any]
) -> list[Finding]:
    """Return where a service and the lock do not agree, and what may not be deployed on a fleet as it is.

    :param lock: None where there is none
    :param described: of C(describe)
    :param name: of the service
    :param sparks: how many Sparks the inventory has
    :param settings: of the host, as the plan has read them
    :returns: findings
    """
    found = _moving(lock, described, name, sparks, settings)
    if lock is None:
        return found
    entry = lock["services"].get(described["key"])
    where = described["key"]
    again = f"Run dgxspark.vllm.lock --limit {where.partition('/')[0]} once it serves as wanted, and commit the file."
    if entry is None:
        known = [
            *([described["image"]] if described["image"] in lock["images"] else []),
            *(key for key in _keys(described) if key in lock["models"]),
        ]
        what = (
            f"{' and '.join(known)} {'is' if len(known) == 1 else 'are'} deployed as locked"
            if known
            else "nothing of it is"
        )
        message = f"{where} is not in the lock file; {what}."
        return [*found, Finding("lock.unlisted", "warning", message, again, name)]
    if entry.get("image") != described["image"]:
        message = (
            f"{where} was locked with the image {entry.get('image')}, and is to be served from {described['image']}."
        )
        if described["image"] not in lock["images"]:
            message += " That one is deployed by its tag."
        found.append(Finding("lock.image", "warning", message, again, name))
    if [*(entry.get("models") or [])] != _keys(described):
        were, are = ", ".join(entry.get("models") or []) or "no model", ", ".join(_keys(described)) or "no model"
        message = f"{where} was locked with {were}, and is to serve {are}."
        found.append(Finding("lock.model", "warning", message, again, name))
    recipe = entry.get("recipe") or {}
    if (recipe.get("name"), recipe.get("sha256") or "") != (described["recipe"], described["recipe_sha256"]):
        message = f"the recipe of {where} is not what it was when the lock was made"
        was = f"{recipe.get('name') or 'none'} {str(recipe.get('sha256') or '')[:12]}".strip()
        now = f"{described['recipe'] or 'none'} {described['recipe_sha256'][:12]}".strip()
        found.append(
            Finding(
                "lock.recipe",
                "warning",
                f"{message}: {was} then, {now} now. Its options are deployed as they are now; image and weights as locked.",
                again,
                name,
            )
        )
    return found


def other_image(ref: str, images: Mapping[str, Any], name: str, bundle: str) -> list[Finding]:
    """Return that a host has another image under a locked name that no registry has a digest for.

    :param ref: as the inventory has it
    :param images: what the host said, as C(by_planned_names) returns it
    :param name: of the service
    :param bundle: the folder of a bundle, which brings it; empty without one
    :returns: one finding, or none
    """
    other = (images.get(ref) or {}).get("other_id")
    if not other or bundle:
        return []
    return [
        Finding(
            "lock.image_other",
            "error",
            f"the host has {ref} as {other[7:19]}, which is not what the lock file says; no registry knows that one by a digest, so it "
            "cannot be pulled.",
            "Bring it from a bundle (spark_bundle_dir), or lock what is there: dgxspark.vllm.lock.",
            name,
            basis="probed",
        )
    ]


def moved(
    lock: Mapping[str, Any] | None,
    described: Mapping[str, Any],
    images: Mapping[str, Any],
    refs: Mapping[str, Mapping[str, str]],
    name: str,
    upstream: Mapping[str, Mapping[str, str]] | None = None,
) -> list[Finding]:
    """Return which names of a service stand for something else by now; what is locked is deployed all the same.

    :param lock: None where there is none
    :param described: of C(describe)
    :param images: what the host said, by reference
    :param refs: repository to what its branches and tags stand for on the host
    :param name: of the service
    :param upstream: C(upstream) of M(dgxspark.vllm.spark_info), None where nobody was asked
    :returns: findings
    """
    where = described["key"].partition("/")[0]
    ref = str(described["image"])
    locked = ((lock or {}).get("images") or {}).get(ref)
    pushed = ((upstream or {}).get("images") or {}).get(ref)
    found = _moved_image(ref, locked, images.get(ref) or {}, pushed, where) if locked else []
    for entry in described["models"]:
        key = model_key(entry["repo"], entry["revision"])
        model, now = ((lock or {}).get("models") or {}).get(key), refs.get(entry["repo"], {}).get(entry["revision"])
        newest = ((upstream or {}).get("models") or {}).get(key)
        found += _moved_model(key, str(model["commit"]), now, newest, where) if model else []
    return [dataclasses.replace(finding, service=name) for finding in found]


def _moved_image(
    ref: str, locked: Mapping[str, Any], there: Mapping[str, Any], pushed: str | None, where: str
) -> list[Finding]:
    """there: the image on the host. pushed: the digest that its registry has for the name, None where it was not asked."""
    had = str(_on(locked, None).get("digest") or _on(locked, None)["id"])
    if "@" not in ref and there.get("present") and not _is_locked(there, locked):
        return [
            Finding(
                "lock.moved",
                "warning",
                f"{ref} is {str(there['id'])[7:19]} on this host now; {had[7:19]} of the lock file is deployed.",
                f"To serve the newer one run dgxspark.vllm.lock --limit {where}, then site.yml; else take it away there: docker rmi {ref}.",
                basis="probed",
            )
        ]
    if pushed and pushed not in [entry.get("digest") for entry in locked["platforms"].values()]:
        return [
            Finding(
                "lock.moved",
                "warning",
                f"{ref} is {pushed[7:19]} at its registry by now; {had[7:19]} of the lock file is deployed.",
                f"To serve the newer one run docker pull {ref} on {where}, then dgxspark.vllm.lock --limit {where} and site.yml. "
                "spark_lock_ask: false does not ask.",
            )
        ]
    return []


def _moved_model(key: str, commit: str, now: str | None, newest: str | None, where: str) -> list[Finding]:
    """commit: the locked one. now, newest: what the revision is on the host and at the hub, None where it is not known."""
    if newest and newest not in (commit, now):
        return [
            Finding(
                "lock.moved",
                "warning",
                f"{key} is commit {newest[:12]} at the hub by now; {commit[:12]} of the lock file is deployed.",
                f"To serve the newer one set the revision to {newest}, run site.yml, then dgxspark.vllm.lock --limit {where}. "
                "spark_lock_ask: false does not ask.",
            )
        ]
    if now and now != commit:
        return [
            Finding(
                "lock.moved",
                "warning",
                f"{key} is commit {now[:12]} on this host now; {commit[:12]} of the lock file is deployed.",
                f"To serve the newer one run dgxspark.vllm.lock --limit {where}, then site.yml. To silence this add lock.moved to "
                "spark_ignore_rules.",
                basis="measured",
            )
        ]
    return []


def questions(lock: Mapping[str, Any] | None, described: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return what to ask registries and the hub for: locked names of services that can move."""
    images, models = (lock or {}).get("images") or {}, (lock or {}).get("models") or {}
    refs, keys = set(), {}
    for each in described:
        locked = images.get(each["image"])
        if locked and "@" not in each["image"] and _on(locked, None).get("digest"):
            refs.add(str(each["image"]))
        for entry in each["models"]:
            key = model_key(entry["repo"], entry["revision"])
            if key in models and not COMMIT.fullmatch(entry["revision"]):
                keys[key] = {"repo": entry["repo"], "revision": entry["revision"]}
    return {"images": sorted(refs), "models": [keys[key] for key in sorted(keys)]}


def _is_locked(there: Mapping[str, Any], locked: Mapping[str, Any]) -> bool:
    """Tell whether an image on a host is the locked one: by id, or by a digest, which two kinds of image store have in common."""
    digests = {digest.partition("@")[2] for digest in there.get("repo_digests") or []}
    return there.get("id") in ids(locked) or any(each.get("digest") in digests for each in locked["platforms"].values())


def _keys(described: Mapping[str, Any]) -> list[str]:
    return [model_key(entry["repo"], entry["revision"]) for entry in described["models"]]


def moves(ref: str, catalogue: Sequence[Mapping[str, Any]] = ()) -> bool:
    """Tell whether an image reference names something that its publisher pushes again and again."""
    _repository, tag, digest = image_catalogue.split_image(ref)
    if digest:
        return False
    entry = image_catalogue.lookup(ref, [each for each in catalogue if isinstance(each, Mapping)])
    if entry and entry["moving"]:
        return True
    return not entry and image_catalogue.tag_moves(tag)


def _moving(
    lock: Mapping[str, Any] | None, described: Mapping[str, Any], name: str, sparks: int, settings: Mapping[str, Any]
) -> list[Finding]:
    if sparks <= settings["spark_moving_hosts"] or settings["spark_allow_moving"]:
        return []
    images, models = (lock or {}).get("images") or {}, (lock or {}).get("models") or {}
    ref = str(described["image"])
    moving = []
    if ref not in images and moves(ref, settings["spark_image_catalogue"]):
        moving.append(ref)
    moving += [
        model_key(entry["repo"], entry["revision"])
        for entry in described["models"]
        if entry["revision"] in MOVING_REVISIONS and model_key(entry["repo"], entry["revision"]) not in models
    ]
    if not moving:
        return []
    return [
        Finding(
            "lock.moving",
            "error",
            f"{' and '.join(moving)} can become something else between two hosts and two runs, and no lock entry holds "
            f"{'them' if len(moving) > 1 else 'it'}; that is refused on more than {settings['spark_moving_hosts']} Sparks, "
            f"these are {sparks}.",
            PIN,
            name,
        )
    ]


def refusal(errors: Sequence[Mapping[str, Any]]) -> str:
    """Say what would be deployed from names that move: all of it with the services, and once what to do; an empty text for none."""
    served: dict[str, list[str]] = {}
    for error in errors:
        served.setdefault(str(error["message"]), []).append(f"{error['host']}/{error['service']}")
    if not served:
        return ""
    lines = [f"{_some(names)}: {message}" for message, names in served.items()]
    return "\n- ".join([*lines[:-1], f"{lines[-1]} {PIN} [lock.moving]"])


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


# --- making it -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What the services of the hosts that were asked pin, by the hosts that have it in their plan."""

    services: Mapping[str, Mapping[str, Any]]  # key of the service -> what describes it
    images: Mapping[str, Sequence[str]]  # reference -> hosts
    models: Mapping[str, Sequence[str]]  # REPO@REVISION -> hosts


def collect(
    plan: Mapping[str, Any],
    play: Sequence[str],
    images: Mapping[str, Mapping[str, Any]],
    models: Mapping[str, Sequence[Mapping[str, Any]]],
    previous: Mapping[str, Any] | None,
    answers: Callable[[str], str | None] = lambda _name: None,
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Make the lock from what the hosts of the play say; entries of other hosts stay as they are.

    :param plan: hosts to C({services, addon_images}), made without the lock; hosts that are no Sparks have the
        latter alone
    :param play: hosts that were asked
    :param images: host to C(images) of M(dgxspark.vllm.spark_info)
    :param models: host to C(model_files) of M(dgxspark.vllm.spark_info)
    :param previous: the lock that is there, None for the first
    :param answers: the text of what an image said of a launch, by the name that C(image_answers) of the plan has
    :returns: the lock, refusals and notes; with refusals nothing is to be written
    """
    refusals: list[str] = []
    notes: list[str] = []
    before = previous or {"images": {}, "models": {}, "services": {}}
    asked = _asked(plan, play)
    beside: dict[str, list[str]] = {}
    for host, body in sorted(plan.items()):
        for ref in (body.get("addon_images") or {}).values():
            beside.setdefault(ref, []).append(host)
    made_images = _collect_images(asked.images, beside, play, images, refusals, notes)
    made_models = _collect_models(asked.models, models, refusals, notes)
    services = _collect_services(plan, asked.services, before["services"])
    # A name that another host still uses keeps what the lock had, unless the hosts of this run say something new.
    used_images = {str(entry.get("image")) for entry in services.values()} | set(beside)
    used_models = {key for entry in services.values() for key in entry.get("models") or []}
    for ref, image in made_images.items():
        old = before["images"].get(ref)
        if image and old:
            _keep_known(image, old)
    lock: dict[str, Any] = {
        "schema": SCHEMA,
        "images": {ref: made_images.get(ref) or before["images"].get(ref) for ref in sorted(used_images)},
        "models": {key: made_models.get(key) or before["models"].get(key) for key in sorted(used_models)},
        "services": {key: services[key] for key in sorted(services)},
        "image_plans": _collect_answers(services, before, answers, notes),
    }
    for part in ("images", "models"):
        lock[part] = {key: value for key, value in lock[part].items() if value}
    return lock, refusals, notes


def _collect_answers(
    services: Mapping[str, dict[str, Any]],
    before: Mapping[str, Any],
    answers: Callable[[str], str | None],
    notes: list[str],
) -> dict[str, str]:
    """Return the texts of the answers that services were planned with; a service whose text is not to be had is without its name."""
    found: dict[str, str] = {}
    for service, entry in sorted(services.items()):
        name = str(entry.get("image_plan") or "")
        text = (answers(name) or (before.get("image_plans") or {}).get(name)) if name else None
        if text and len(text.encode()) <= plain_data.LONGEST_TEXT:
            found[name] = text
            continue
        entry.pop("image_plan", None)
        if text:
            notes.append(
                f"service {service}: what its image said of it is too long to be locked, {len(text)} characters."
            )
    return dict(sorted(found.items()))


def _asked(plan: Mapping[str, Any], play: Sequence[str]) -> _Asked:
    services: dict[str, Mapping[str, Any]] = {}
    images: dict[str, list[str]] = {}
    models: dict[str, list[str]] = {}
    for host in sorted(set(play) & set(plan)):
        for service in plan[host].get("services") or []:
            described = {**service["lock"], "image_plan": (plan[host].get("image_answers") or {}).get(service["name"])}
            services[described["key"]] = described
            images.setdefault(str(described["image"]), []).append(host)
            for key in _keys(described):
                if host not in models.setdefault(key, []):
                    models[key].append(host)
    return _Asked(services, images, models)


def _collect_images(
    wanted: Mapping[str, Sequence[str]],
    beside: Mapping[str, Sequence[str]],
    play: Sequence[str],
    images: Mapping[str, Mapping[str, Any]],
    refusals: list[str],
    notes: list[str],
) -> dict[str, Any]:
    """Return the lock's entry of each image. wanted: of services, reference to hosts. beside: likewise of add-on services."""
    made: dict[str, Any] = {}
    for ref, hosts in sorted(wanted.items()):
        made[ref] = _collect_image(ref, {host: (images.get(host) or {}).get(ref) or {} for host in hosts}, refusals)
    for ref, hosts in sorted(beside.items()):
        there = {host: (images.get(host) or {}).get(ref) or {} for host in hosts if host in play}
        if any(image.get("present") for image in there.values()):
            made[ref] = made.get(ref) or _collect_image(ref, there, refusals)
        elif there and ref not in wanted:
            notes.append(f"image {ref}: {', '.join(there)} has not got it yet; lock again when it is deployed there.")
    return made


def _collect_models(
    wanted: Mapping[str, Sequence[str]],
    models: Mapping[str, Sequence[Mapping[str, Any]]],
    refusals: list[str],
    notes: list[str],
) -> dict[str, Any]:
    """Return the lock's entry of each model. wanted: REPO@REVISION to hosts."""
    made: dict[str, Any] = {}
    for key, hosts in sorted(wanted.items()):
        said = {
            host: entry
            for host in hosts
            for entry in models.get(host) or []
            if model_key(entry["repo"], entry["revision"]) == key
        }
        made[key] = _collect_model(key, hosts, said, refusals, notes)
    return made


def _collect_services(
    plan: Mapping[str, Any], asked: Mapping[str, Mapping[str, Any]], before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the lock's entry of each service: new for those that were asked, as before for others that are still planned."""
    every = {service["lock"]["key"] for body in plan.values() for service in body.get("services") or []}
    return {
        **{key: dict(value) for key, value in before.items() if key in every},
        **{
            key: {
                "image": described["image"],
                "models": _keys(described),
                "recipe": {"name": described["recipe"], "sha256": described["recipe_sha256"]}
                if described["recipe"]
                else None,
                **({"image_plan": described["image_plan"]} if described["image_plan"] else {}),
            }
            for key, described in asked.items()
        },
    }


def _keep_known(image: dict[str, Any], old: Mapping[str, Any]) -> None:
    """Keep what the lock had of an image: the digest of a build that is still that one, and platforms that were not asked."""
    for platform, entry in image["platforms"].items():
        known = old["platforms"].get(platform) or {}
        # One that came from a bundle or another host has no digest there; by its id it is the one that was locked.
        if entry["digest"] is None and known.get("id") == entry["id"]:
            entry["digest"] = known.get("digest")
    image["platforms"] = {**_unseen(old, image), **image["platforms"]}


def _unseen(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return platforms of an image that no host of this run has, if it is still the same push."""
    digests = {entry.get("digest") for entry in new["platforms"].values()} - {None}
    return {
        platform: entry
        for platform, entry in old["platforms"].items()
        if platform not in new["platforms"] and entry.get("digest") in digests
    }


def _collect_image(ref: str, said: Mapping[str, Mapping[str, Any]], refusals: list[str]) -> dict[str, Any] | None:
    """Join what hosts say of one image; the ids of one platform, or a digest that all have, must agree."""
    there = {host: image for host, image in said.items() if image.get("present")}
    if not there:
        refusals.append(
            f"image {ref}: none of {', '.join(said)} has it. Deploy one of them first, on a fleet with "
            "-e spark_allow_moving=true --limit HOST."
        )
        return None
    repository = image_catalogue.split_image(ref)[0]
    platforms: dict[str, Any] = {}
    by_platform: dict[str, dict[str, tuple[str, set[str]]]] = {}
    for host, image in there.items():
        platform = f"{image.get('os') or 'linux'}/{image.get('architecture') or 'arm64'}"
        digests = {
            digest.partition("@")[2]
            for digest in image.get("repo_digests") or []
            if image_catalogue.split_image(digest)[0] == repository
        }
        by_platform.setdefault(platform, {})[host] = (str(image["id"]), digests)
    for platform, hosts in sorted(by_platform.items()):
        known = [digests for _id, digests in hosts.values() if digests]
        shared = set.intersection(*known) if known else set()
        every_id = {image_id for image_id, _digests in hosts.values()}
        if len(every_id) > 1 and not (shared and len(known) == len(hosts)):
            said_by = _who({host: image_id[7:19] for host, (image_id, _digests) in hosts.items()})
            refusals.append(
                f"image {ref}: hosts have different builds of it: {said_by}. Remove the unwanted one there (docker rmi {ref}), "
                "run site.yml, then lock again."
            )
            continue
        ref_digest = image_catalogue.split_image(ref)[2]
        digest = ref_digest if ref_digest in shared else next(iter(sorted(shared)), None)
        first = hosts[sorted(hosts)[0]]
        platforms[platform] = {"digest": digest, "id": first[0]}
    if not platforms:
        return None
    versions = sorted({str(image["vllm_version"]) for image in there.values() if image.get("vllm_version")})
    return {"vllm_version": versions[0] if len(versions) == 1 else None, "platforms": platforms}


def _collect_model(
    key: str, hosts: Sequence[str], said: Mapping[str, Mapping[str, Any]], refusals: list[str], notes: list[str]
) -> dict[str, Any] | None:
    """Join what hosts say of one model: one commit, and the same bytes under the same names."""
    there = {host: entry for host, entry in said.items() if entry.get("commit") and entry.get("files")}
    if not there:
        refusals.append(
            f"model {key}: none of {', '.join(hosts)} has it. Deploy one of them first, on a fleet with "
            "-e spark_allow_moving=true --limit HOST."
        )
        return None
    wrong = len(refusals)
    commits = {host: str(entry["commit"]) for host, entry in there.items()}
    if len(set(commits.values())) > 1:
        refusals.append(
            f"model {key}: hosts have different commits of it: {_who({h: c[:12] for h, c in commits.items()})}. Set model.revision to "
            "one of them, run site.yml, then lock again."
        )
        return None
    for host, entry in there.items():
        refusals += [
            f"model {key} on {host}: {problem}. Remove the file there and run site.yml, which fetches it again; then lock."
            for problem in entry.get("problems") or []
        ]
    files: dict[str, dict[str, Any]] = {}
    for name in sorted({name for entry in there.values() for name in entry["files"]}):
        sums = {
            host: (int(entry["files"][name]["size"]), str(entry["files"][name]["sha256"]))
            for host, entry in there.items()
            if name in entry["files"]
        }
        if len(set(sums.values())) > 1:
            told = _who({host: f"{size} bytes, {checksum[:12]}" for host, (size, checksum) in sums.items()})
            refusals.append(
                f"model {key}: {name} is not the same on all hosts: {told}. Remove the damaged one and run site.yml; then lock."
            )
            continue
        lacking = sorted(set(there) - set(sums))
        if lacking:
            notes.append(f"model {key}: {', '.join(lacking)} has no {name}; site.yml will bring it there.")
        size, checksum = next(iter(sums.values()))
        files[name] = {"size": size, "sha256": checksum}
    if len(refusals) > wrong:
        return None
    return {"commit": next(iter(commits.values())), "files": files}


def _who(values: Mapping[str, str]) -> str:
    """Say which hosts have which value: C(a, b: x; c: y)."""
    groups: dict[str, list[str]] = {}
    for host in sorted(values):
        groups.setdefault(values[host], []).append(host)
    return "; ".join(f"{', '.join(hosts)}: {value}" for value, hosts in groups.items())


# --- writing it ----------------------------------------------------------------------------------------------------


def render(lock: Mapping[str, Any]) -> str:
    """Write a lock as YAML: sorted, one line a file of a model, so that a diff shows what changed and no more."""
    lines = [f"schema: {SCHEMA}", "images:" if lock["images"] else "images: {}"]
    for ref, image in sorted(lock["images"].items()):
        lines += [f"  {_text(ref)}:", f"    vllm_version: {_text(image.get('vllm_version'))}", "    platforms:"]
        for platform, entry in sorted(image["platforms"].items()):
            lines += [
                f"      {platform}:",
                f"        digest: {_text(entry.get('digest'))}",
                f"        id: {_text(entry['id'])}",
            ]
    lines.append("models:" if lock["models"] else "models: {}")
    for key, model in sorted(lock["models"].items()):
        lines += [
            f"  {_text(key)}:",
            f"    commit: {_sum(model['commit'])}",
            "    files:" if model["files"] else "    files: {}",
        ]
        lines += [
            f"      {_text(name)}: {{size: {entry['size']}, sha256: {_sum(entry['sha256'])}}}"
            for name, entry in sorted(model["files"].items())
        ]
    lines.append("services:" if lock["services"] else "services: {}")
    for key, entry in sorted(lock["services"].items()):
        lines += [f"  {_text(key)}:", f"    image: {_text(entry.get('image'))}"]
        models = entry.get("models") or []
        lines.append("    models:" if models else "    models: []")
        lines += [f"      - {_text(model)}" for model in models]
        recipe = entry.get("recipe")
        told = f"{{name: {_text(recipe['name'])}, sha256: {_sum(recipe['sha256'])}}}" if recipe else "null"
        lines.append(f"    recipe: {told}")
        if entry.get("image_plan"):
            lines.append(f"    image_plan: {_text(entry['image_plan'])}")
    answers = lock.get("image_plans") or {}
    if answers:
        lines += ["image_plans:", *(f"  {_text(name)}: {_text(text)}" for name, text in sorted(answers.items()))]
    return HEADER + "\n".join(lines) + "\n"


# Words that YAML reads as a text whatever stands around them: no colon, no number, no keyword.
_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


def _text(value: Any) -> str:
    """Write one value; what YAML might read as something else than a text is quoted."""
    if value is None:
        return "null"
    plain = _PLAIN.fullmatch(str(value)) and str(value).lower() not in _WORDS
    return str(value) if plain else json.dumps(str(value))


def _sum(value: Any) -> str:
    """Write a hash; always quoted, since one of digits alone, or with one e among them, would be read as a number."""
    return json.dumps(str(value))


def changes(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[str]:
    """Say in a few lines what a new lock changes."""
    before = old or {"images": {}, "models": {}, "services": {}}
    lines = []
    for part, what in (("images", "image"), ("models", "model"), ("services", "service")):
        for key in sorted({*before[part], *new[part]}):
            was, now = before[part].get(key), new[part].get(key)
            if was == now:
                continue
            if was is None:
                lines.append(f"{what} {key}: added{_short(part, now)}")
            elif now is None:
                lines.append(f"{what} {key}: removed")
            else:
                lines.append(f"{what} {key}: changed{_short(part, was)} ->{_short(part, now)}")
    return lines


def _short(part: str, entry: Mapping[str, Any]) -> str:
    if part == "images":
        found = _on(entry, None)
        return f" {str(found.get('digest') or found['id'])[7:19]}"
    if part == "models":
        size = sum(file["size"] for file in entry["files"].values())
        return f" {entry['commit'][:12]} ({len(entry['files'])} files, {size / 1e9:.2f} GB)"
    return ""
