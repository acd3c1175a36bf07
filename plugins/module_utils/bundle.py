# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bundle: images and weights in a folder, for machines without internet. What goes in, what is in it, what is taken out.

C(images/NAME-ID/NNNN) are the pieces of an archive of docker save; C(hub/models--ORG--NAME) is what HF_HOME has, without links,
so that it can lie on any file system. C(manifest.json) has size and SHA-256 of everything.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils.findings import Finding

SCHEMA = 1
MANIFEST = "manifest.json"
STAGING = "/var/lib/dgxspark/bundle"
"""Folder on a host where pieces wait, those that are to leave it and those that came."""
PIECE_BYTES = 2**30
COMMIT = re.compile(r"[0-9a-f]{40}")
HEX = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[\w.-]+")


def image_folder(ref: str, image_id: str) -> str:
    """Return the folder of an image in the bundle."""
    plain = re.sub(r"[^\w.-]+", "--", ref.partition("@")[0])
    return f"images/{plain}-{image_id.partition(':')[2][:12]}"


def repo_folder(repo: str) -> str:
    """Return the folder of a model in the bundle: that which it has below HF_HOME."""
    return "hub/models--" + repo.replace("/", "--")


def model_file(repo: str, commit: str, name: str) -> str:
    """Return where a file of a model lies in the bundle."""
    return f"{repo_folder(repo)}/snapshots/{commit}/{name}"


def findings(service: Mapping[str, Any]) -> list[Finding]:
    """Return what of a planned service no bundle has."""
    if not service["pip"]:
        return []
    return [
        Finding(
            "bundle.pip",
            "warning",
            f"{', '.join(service['pip'])} of 'pip' {'is' if len(service['pip']) == 1 else 'are'} installed over the network at every start; a "
            "bundle has no packages, so without a network the engine does not start.",
            "Build an image that has them (FROM the present one, RUN pip install ...), name it in 'image', leave 'pip' out, and pack again.",
            service["name"],
        )
    ]


# --- what goes in --------------------------------------------------------------------------------------------------


def survey(
    plan: Mapping[str, Any],
    play: Sequence[str],
    images: Mapping[str, Mapping[str, Any]],
    models: Mapping[str, Sequence[Mapping[str, Any]]],
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Choose a host for each image and model that the services of the play need.

    plan: hosts to C({services, images, models, images_locked, images_beside}). images: host to reference to M(dgxspark.vllm.image_info).
    models: host to the list of M(dgxspark.vllm.snapshot_info).
    Returns C((work, refusals)): what each host is to hand over, spread over the hosts that have it.
    """
    refusals: list[str] = []
    load: dict[str, int] = {host: 0 for host in play}
    work: dict[str, list[dict[str, Any]]] = {host: [] for host in play}

    def give(holders: Mapping[str, dict[str, Any]]) -> None:
        host = min(sorted(holders), key=lambda name: load[name])
        work[host].append(holders[host])
        load[host] += holders[host]["bytes"]

    names: dict[str, list[str]] = {}
    bases: dict[str, str] = {}
    wanted: dict[tuple[str, str], list[str]] = {}
    for host in play:
        for service in plan[host]["services"]:
            names.setdefault(service["image"]["ref"], []).append(host)
            if service.get("ray_image"):
                names.setdefault(service["ray_image"]["tag"], []).append(host)
                bases[service["ray_image"]["tag"]] = str(service["image"]["id"])
        for ref in plan[host].get("images_beside") or []:
            names.setdefault(ref, []).append(host)
        for model in plan[host]["models"]:
            if model.get("repo"):
                wanted.setdefault((model["repo"], model["revision"]), []).append(host)
    for ref, hosts in sorted(names.items()):
        there = {host: (images.get(host) or {}).get(ref) or {} for host in play}
        holders = {
            host: image_item(ref, image, bases.get(ref, "")) for host, image in there.items() if image.get("present")
        }
        if not holders:
            refusals.append(f"image {ref}: none of {', '.join(dict.fromkeys(hosts))} has it; run site.yml there first.")
        elif len({item["id"] for item in holders.values()}) > 1:
            told = "; ".join(f"{host}: {item['id'][7:19]}" for host, item in sorted(holders.items()))
            refusals.append(
                f"image {ref}: hosts have different builds of it ({told}); lock one with dgxspark.vllm.lock first."
            )
        else:
            give(holders)
    for (repo, revision), hosts in sorted(wanted.items()):
        found: dict[str, dict[str, Any]] = {}
        broken = []
        for host in play:
            for entry in models.get(host) or []:
                if (entry["repo"], entry["revision"]) != (repo, revision) or not entry.get("commit"):
                    continue
                if entry["problems"]:
                    broken.append(f"{host}: {', '.join(entry['problems'])}")
                else:
                    found[host] = model_item(entry)
        if not found:
            why = f" whole ({'; '.join(broken)})" if broken else ""
            refusals.append(
                f"model {repo}@{revision}: none of {', '.join(dict.fromkeys(hosts))} has it{why}; run site.yml there first."
            )
        elif len({item["commit"] for item in found.values()}) > 1:
            told = "; ".join(f"{host}: {item['commit'][:12]}" for host, item in sorted(found.items()))
            refusals.append(
                f"model {repo}@{revision}: hosts have different commits of it ({told}); lock one with dgxspark.vllm.lock first."
            )
        else:
            give(found)
    return work, refusals


def image_item(ref: str, image: Mapping[str, Any], base: str = "") -> dict[str, Any]:
    """Return what is packed of an image; the bytes are those that it takes unpacked. base: id of the image that it is made from."""
    return {
        "kind": "image",
        "ref": ref.partition("@")[0] if ":" in ref.partition("@")[0].rpartition("/")[2] else ref,
        "id": str(image["id"]),
        "digests": list(image.get("repo_digests") or []),
        "platform": f"{image.get('os') or 'linux'}/{image.get('architecture') or 'arm64'}",
        "folder": image_folder(ref, str(image["id"])),
        "bytes": int(float(image.get("size_gib") or 0) * 2**30),
        "base": base,
    }


def model_item(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is packed of a model."""
    return {
        "kind": "model",
        "repo": entry["repo"],
        "revisions": [entry["revision"]],
        "commit": entry["commit"],
        "path": entry["path"],
        "files": {name: dict(file) for name, file in sorted(entry["files"].items())},
        "bytes": sum(int(file["size"]) for file in entry["files"].values()),
    }


def no_room(need: int, free: int, where: str, what: str) -> str:
    """Say that there is no room, with the numbers; an empty text if there is."""
    if need <= free:
        return ""
    return f"{where} has {free / 1e9:.2f} GB free, and {what} needs {need / 1e9:.2f} GB: {(need - free) / 1e9:.2f} GB are missing."


# --- what is in it -------------------------------------------------------------------------------------------------


def make_manifest(images: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the manifest of what was packed; it carries its own sum, so that half of one is not taken for one."""
    body = {
        "schema": SCHEMA,
        "images": sorted((dict(image) for image in images), key=lambda image: (image["ref"], image["id"])),
        "models": sorted((dict(model) for model in models), key=lambda model: (model["repo"], model["commit"])),
    }
    return {**body, "sha256": own_sum(body)}


def own_sum(manifest: Mapping[str, Any]) -> str:
    """Return the sum of a manifest without the one that it carries."""
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def read_manifest(data: Any, where: str) -> tuple[dict[str, Any], list[str]]:
    """Check what was read from a manifest; returns C((manifest, messages))."""
    again = "Copy the bundle again, or run dgxspark.vllm.bundle again."
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        return {}, [f"{where} is no manifest of a bundle that this release reads. {again}"]
    if data.get("sha256") != own_sum(data):
        return {}, [f"{where} is not as it was written: its sum does not fit. {again}"]
    messages = []
    for image in data["images"]:
        if not _inside(image["folder"]) or not all(_is_piece(piece) for piece in image["pieces"]):
            messages.append(f"{where}: image {image['ref']} has a folder or a piece with an impossible name. {again}")
    for model in data["models"]:
        names = [name for name, file in model["files"].items() if not _inside(name) or not _is_file(file)]
        if names or not COMMIT.fullmatch(str(model["commit"])):
            messages.append(f"{where}: model {model['repo']} has files with impossible names or sums: {names}. {again}")
    return dict(data), messages


def _inside(path: str) -> bool:
    return bool(path) and not path.startswith("/") and ".." not in path.split("/")


def _is_piece(piece: Mapping[str, Any]) -> bool:
    return NAME.fullmatch(str(piece["name"])) is not None and ".." not in piece["name"] and _is_file(piece)


def _is_file(file: Mapping[str, Any]) -> bool:
    blob = str(file.get("blob") or "")
    return (
        isinstance(file.get("size"), int)
        and HEX.fullmatch(str(file.get("sha256"))) is not None
        and (not blob or re.fullmatch(r"[0-9a-f]{40,64}", blob) is not None)
    )


# --- what is taken out ---------------------------------------------------------------------------------------------


def find_image(
    manifest: Mapping[str, Any], ref: str, locked: Mapping[str, Any] | None, where: str
) -> tuple[dict[str, Any] | None, str]:
    """Return the image of the bundle for a reference, or why there is none.

    locked: C({name, ids}) of the plan. What is locked is found by its id, anything else by name, and by the digest if it has one.
    """
    name, _at, digest = ref.partition("@")
    named = [image for image in manifest["images"] if image["ref"] in (ref, (locked or {}).get("name"), name)]
    # A tag may have been packed twice; it stands for the last.
    named.sort(key=lambda image: image.get("current") is False)
    if locked:
        found = [image for image in manifest["images"] if image["id"] in locked["ids"]]
        if not found and named:
            has = ", ".join(image["id"][7:19] for image in named)
            wanted = ", ".join(image_id[7:19] for image_id in locked["ids"])
            return None, (
                f"the bundle {where} has {locked['name']} as {has}, the lock file says {wanted}. Make the bundle again from hosts "
                "that were deployed with this lock file, or lock again."
            )
    else:
        found = [
            image for image in named if not digest or any(each.endswith(f"@{digest}") for each in image["digests"])
        ]
    if found:
        return dict(found[0]), ""
    has = ", ".join(sorted({image["ref"] for image in manifest["images"]})) or "no image"
    return (
        None,
        f"the bundle {where} has no image {ref}; it has {has}. Add it with dgxspark.vllm.bundle on a host that has it.",
    )


def find_model(manifest: Mapping[str, Any], repo: str, revision: str, where: str) -> tuple[dict[str, Any] | None, str]:
    """Return the model of the bundle for a revision, or why there is none."""
    own = [model for model in manifest["models"] if model["repo"] == repo]
    found = next((model for model in own if revision == model["commit"] or revision in model["revisions"]), None)
    if found:
        return dict(found), ""
    has = ", ".join(f"{model['repo']}@{model['commit'][:12]}" for model in (own or manifest["models"])) or "no model"
    return None, (
        f"the bundle {where} has no {repo}@{revision}; it has {has}. Add it with dgxspark.vllm.bundle on a host that has it."
    )
