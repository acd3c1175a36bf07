# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare services and images of hosts with the lock file: differences, moved names, and names that a fleet must not deploy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._common.findings import Finding
from .._content.snapshots import COMMIT
from .._vllm import image_catalogue, image_names
from .lock import ids, image_on, locked_image, model_key, model_keys

MOVING_REVISIONS = ("main", "master")
PIN = (
    "Pin it, or deploy one host of each different service with -e spark_allow_moving=true --limit HOSTS, then run dgxspark.vllm.lock --limit HOSTS: "
    "their locked versions apply to all hosts."
)


def addon_findings(
    lock: Mapping[str, Any] | None,
    host: str,
    named: Mapping[str, str],
    images: Mapping[str, Any],
    upstream: Mapping[str, Mapping[str, str]] | None,
    bundle: str = "",
) -> list[Finding]:
    """Return the findings about the images of a host's add-on services. named: image by server. images: of C(lock.by_planned_names)."""
    result: list[Finding] = []
    by_tag = sorted({ref for ref in named.values() if "@" not in ref and locked_image(lock, ref) is None})
    for name, ref in named.items():
        result += other_image(ref, images, name, bundle)
        # An image that no registry knows has its own error if the host has another one.
        if not (images.get(ref) or {}).get("other_id"):
            names = {"key": f"{host}/{name}", "image": ref, "models": []}
            result += moved(lock, names, images, {}, name, upstream)
    if by_tag:
        message = f"{', '.join(by_tag)} {'is' if len(by_tag) == 1 else 'are'} deployed by tag: a push to the registry can change it."
        fix = (
            "Run dgxspark.vllm.lock once it is deployed, which records the digest that this host has; or name a digest."
        )
        result.append(Finding("lock.by_tag", "warning" if lock else "info", message, fix))
    return result


def findings(
    lock: Mapping[str, Any] | None, described: Mapping[str, Any], name: str, sparks: int, settings: Mapping[str, Any]
) -> list[Finding]:
    """Return the differences between a service and the lock, and names that a fleet must not deploy. described: of C(lock.describe)."""
    result = _moving(lock, described, name, sparks, settings)
    if lock is None:
        return result
    relock = f"Run dgxspark.vllm.lock --limit {described['key'].partition('/')[0]} once it serves as wanted, and commit the file."
    entry = lock["services"].get(described["key"])
    rules = _unlisted(lock, described) if entry is None else _differences(lock, entry, described)
    return [*result, *(Finding(f"lock.{rule}", "warning", message, relock, name) for rule, message in rules)]


def _unlisted(lock: Mapping[str, Any], described: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return rule and message for a service that the lock does not list."""
    locked = [described["image"]] if described["image"] in lock["images"] else []
    locked += [key for key in model_keys(described) if key in lock["models"]]
    deployed = f"{' and '.join(locked)} {'is' if len(locked) == 1 else 'are'} deployed as locked"
    state = deployed if locked else "nothing of it is"
    return [("unlisted", f"{described['key']} is not in the lock file; {state}.")]


def _differences(
    lock: Mapping[str, Any], entry: Mapping[str, Any], described: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return rule and message for each difference between a service and its entry in the lock."""
    where, rules = described["key"], []
    if entry.get("image") != described["image"]:
        message = f"{where} was locked with the image {entry.get('image')}, and the inventory serves it from {described['image']}."
        if described["image"] not in lock["images"]:
            message += " That one is deployed by its tag."
        rules.append(("image", message))
    if [*(entry.get("models") or [])] != model_keys(described):
        were, are = (", ".join(keys) or "no model" for keys in (entry.get("models") or [], model_keys(described)))
        rules.append(("model", f"{where} was locked with {were}, and is to serve {are}."))
    recipe = entry.get("recipe") or {}
    if (recipe.get("name"), recipe.get("sha256") or "") != (described["recipe"], described["recipe_sha256"]):
        was = f"{recipe.get('name') or 'none'} {str(recipe.get('sha256') or '')[:12]}".strip()
        now = f"{described['recipe'] or 'none'} {described['recipe_sha256'][:12]}".strip()
        message = (
            f"the recipe of {where} has changed since the lock was made: {was} then, {now} now. The new options are deployed; image and weights "
            "stay as locked."
        )
        rules.append(("recipe", message))
    return rules


def other_image(ref: str, images: Mapping[str, Any], name: str, bundle: str) -> list[Finding]:
    """Return a finding if a host has another image under a locked name without a digest of a registry, and no bundle has the image.

    images: of the host, of C(lock.by_planned_names). bundle: a folder, empty for none.
    """
    other = (images.get(ref) or {}).get("other_id")
    if not other or bundle:
        return []
    message = (
        f"the host has {ref} as {other[7:19]}, which differs from the lock file; no registry has the locked image by digest, so it cannot be "
        "pulled."
    )
    fix = "Copy it from a bundle (spark_bundle_dir), or lock the present image: dgxspark.vllm.lock."
    return [Finding("lock.image_other", "error", message, fix, name, basis="probed")]


_Moved = tuple[str, str, str, str, str]
"""The name, where it is now, the locked one, the fix, and the basis."""


def moved(
    lock: Mapping[str, Any] | None,
    described: Mapping[str, Any],
    images: Mapping[str, Any],
    refs: Mapping[str, Mapping[str, str]],
    name: str,
    upstream: Mapping[str, Mapping[str, str]] | None = None,
) -> list[Finding]:
    """Return findings about names of a service that have moved since they were locked; the locked bytes are deployed.

    :param described: of C(lock.describe)
    :param refs: repository to commits of its branches and tags on the host
    :param upstream: C(upstream) of M(dgxspark.vllm.spark_info), None if it was not requested
    """
    where, ref = described["key"].partition("/")[0], str(described["image"])
    locked_images, locked_models = ((lock or {}).get(kind) or {} for kind in ("images", "models"))
    pushed_images, pushed_models = ((upstream or {}).get(kind) or {} for kind in ("images", "models"))
    locked, pushed = locked_images.get(ref), pushed_images.get(ref)
    rows = _moved_image(ref, locked, images.get(ref) or {}, pushed, where) if locked else []
    for entry in described["models"]:
        key = model_key(entry["repo"], entry["revision"])
        model, newest = locked_models.get(key), pushed_models.get(key)
        now = refs.get(entry["repo"], {}).get(entry["revision"])
        rows += _moved_model(key, str(model["commit"]), now, newest, where) if model else []
    return [
        Finding(
            "lock.moved",
            "warning",
            f"{subject} is {present}; {locked_sum} of the lock file is deployed.",
            f"To serve the newer one {fix}",
            name,
            basis=basis,
        )
        for subject, present, locked_sum, fix, basis in rows
    ]


def _moved_image(
    ref: str, locked: Mapping[str, Any], on_host: Mapping[str, Any], pushed: str | None, where: str
) -> list[_Moved]:
    """Return the row of an image that differs on the host or at its registry. pushed: the registry's digest, None if unknown."""
    relock = f"dgxspark.vllm.lock --limit {where}"
    locked_sum = str(image_on(locked, None).get("digest") or image_on(locked, None)["id"])[7:19]
    if "@" not in ref and on_host.get("present") and not _is_locked(on_host, locked):
        fix = f"run {relock}, then site.yml; else take it away there: docker rmi {ref}."
        return [(ref, f"{str(on_host['id'])[7:19]} on this host now", locked_sum, fix, "probed")]
    if pushed and pushed not in [entry.get("digest") for entry in locked["platforms"].values()]:
        fix = f"run docker pull {ref} on {where}, then {relock} and site.yml. spark_lock_ask: false does not ask."
        return [(ref, f"{pushed[7:19]} at its registry by now", locked_sum, fix, "inventory")]
    return []


def _moved_model(key: str, commit: str, now: str | None, newest: str | None, where: str) -> list[_Moved]:
    """Return the row of a model that differs on the host or at the hub.

    commit: the locked one. now, newest: commits of the revision on the host and at the hub, None if unknown.
    """
    relock = f"dgxspark.vllm.lock --limit {where}"
    if newest and newest not in (commit, now):
        fix = f"set the revision to {newest}, run site.yml, then {relock}. spark_lock_ask: false does not ask."
        return [(key, f"commit {newest[:12]} at the hub by now", commit[:12], fix, "inventory")]
    if now and now != commit:
        fix = f"run {relock}, then site.yml. To silence this add lock.moved to spark_ignore_rules."
        return [(key, f"commit {now[:12]} on this host now", commit[:12], fix, "measured")]
    return []


def questions(lock: Mapping[str, Any] | None, described: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the requests to registries and the hub: locked names of services that can move."""
    images, models = (lock or {}).get("images") or {}, (lock or {}).get("models") or {}
    refs, keys = set(), {}
    for service in described:
        locked = images.get(service["image"])
        if locked and "@" not in service["image"] and image_on(locked, None).get("digest"):
            refs.add(str(service["image"]))
        for entry in service["models"]:
            key = model_key(entry["repo"], entry["revision"])
            if key in models and not COMMIT.fullmatch(entry["revision"]):
                keys[key] = {"repo": entry["repo"], "revision": entry["revision"]}
    return {"images": sorted(refs), "models": [keys[key] for key in sorted(keys)]}


def _is_locked(image: Mapping[str, Any], locked: Mapping[str, Any]) -> bool:
    """Return whether an image on a host is the locked one: by id, or by a digest, which two kinds of image store have in common."""
    digests = {digest.partition("@")[2] for digest in image.get("repo_digests") or []}
    return image.get("id") in ids(locked) or any(
        entry.get("digest") in digests for entry in locked["platforms"].values()
    )


def moves(ref: str, catalogue: Sequence[Mapping[str, Any]] = ()) -> bool:
    """Return whether an image reference names a tag that its publisher pushes again and again."""
    _repository, tag, digest = image_names.split_image(ref)
    if digest:
        return False
    entry = image_catalogue.lookup(ref, [row for row in catalogue if isinstance(row, Mapping)])
    return bool(entry["moving"]) if entry else image_catalogue.tag_moves(tag)


def _moving(
    lock: Mapping[str, Any] | None, described: Mapping[str, Any], name: str, sparks: int, settings: Mapping[str, Any]
) -> list[Finding]:
    if sparks <= settings["spark_moving_hosts"] or settings["spark_allow_moving"]:
        return []
    images, models = (lock or {}).get("images") or {}, (lock or {}).get("models") or {}
    ref = str(described["image"])
    moving = [ref] if ref not in images and moves(ref, settings["spark_image_catalogue"]) else []
    moving += [
        key
        for key, entry in zip(model_keys(described), described["models"])
        if entry["revision"] in MOVING_REVISIONS and key not in models
    ]
    if not moving:
        return []
    message = (
        f"{' and '.join(moving)} can become something else between two hosts and two runs, and no lock entry pins "
        f"{'them' if len(moving) > 1 else 'it'}; that is refused on more than {settings['spark_moving_hosts']} Sparks, these are {sparks}."
    )
    return [Finding("lock.moving", "error", message, PIN, name)]
