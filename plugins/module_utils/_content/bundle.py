# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bundle: images and weights in a folder, for machines without internet. Choosing, describing and finding its contents.

C(images/NAME-ID/NNNN) are the pieces of an archive of docker save without its layers, C(layers/NAME.zst/NNNN) the pieces of a layer, which
several images may have in common; C(hub/models--ORG--NAME) has the files of HF_HOME, without links, so it fits any file system.
C(manifest.json) has size and SHA-256 of everything.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .._common import validation
from .._common.findings import Finding
from .._common.foreign_text import Untrusted
from .._common.reader import (
    BLOB,
    COMMIT,
    EMPTY,
    FILE_NAME,
    IMAGE_ID,
    LINE,
    RELATIVE,
    REPO,
    SHA256,
    SIZE,
    Either,
    Maybe,
    is_relative,
    one_of,
    read,
    text,
)
from .._common.sizes import GIB

SCHEMA = 2
MANIFEST = "manifest.json"
STAGING = "/var/lib/dgxspark/bundle"
"""Folder on a host where pieces wait, those that are to leave it and those that came."""
PIECE_BYTES = GIB


def image_folder(ref: str, image_id: str) -> str:
    """Return the folder of an image in the bundle."""
    plain = re.sub(r"[^\w.-]+", "--", ref.partition("@")[0])
    return f"images/{plain}-{image_id.partition(':')[2][:12]}"


def layer_folder(name: str, compression: str) -> str:
    """Return the folder of a layer in the bundle. name: that archives have for it. compression: C(zstd) or C(gzip)."""
    return f"layers/{name}.{'zst' if compression == 'zstd' else 'gz'}"


def parts(image: Mapping[str, Any], left_out: Collection[str] = ()) -> list[dict[str, Any]]:
    """List the files of an image in the order in which they are an archive, one behind the other

    :returns: C([{name, path, size, sha256}]). name: of the file on a host. path: below the bundle
    """
    volumes = [
        {
            **piece,
            "name": f"{layer['name']}-{piece['name']}",
            "path": f"{layer_folder(layer['name'], image['compression'])}/{piece['name']}",
        }
        for layer in image["layers"]
        if layer["name"] not in left_out
        for piece in layer["pieces"]
    ]
    return volumes + [{**piece, "path": f"{image['folder']}/{piece['name']}"} for piece in image["pieces"]]


def repo_folder(repo: str) -> str:
    """Return the folder of a model in the bundle: that which it has below HF_HOME."""
    return "hub/models--" + repo.replace("/", "--")


def model_file(repo: str, commit: str, name: str) -> str:
    """Return where a file of a model lies in the bundle."""
    return f"{repo_folder(repo)}/snapshots/{commit}/{name}"


def findings(name: str, pip: Sequence[str]) -> list[Finding]:
    """Return what of a service no bundle has. name: of the service. pip: packages that it installs at each start."""
    if not pip:
        return []
    packages = [validation.package_name(package) for package in pip]
    text = (
        f"{', '.join(packages)} of 'pip' {'is' if len(packages) == 1 else 'are'} installed over the network at every start; a "
        "bundle has no packages, so without a network the engine does not start."
    )
    fix = "Build an image that has them (FROM the present one, RUN pip install ...), name it in 'image', leave 'pip' out, and pack again."
    return [Finding("bundle.pip", "warning", text, fix, name)]


# --- what goes in --------------------------------------------------------------------------------------------------


def survey(
    plan: Mapping[str, Any],
    play: Sequence[str],
    images: Mapping[str, Mapping[str, Any]],
    models: Mapping[str, Sequence[Mapping[str, Any]]],
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Choose a host for each image and model that the services of the play need.

    :param plan: hosts to C({services, images, models, images_locked, images_beside})
    :param images: host to C(images) of M(dgxspark.vllm.spark_info)
    :param models: host to C(model_files) of M(dgxspark.vllm.spark_info)
    :returns: the contents that each host hands over, distributed by bytes over the hosts that have them, and refusals
    """
    refusals: list[str] = []
    load: dict[str, int] = {host: 0 for host in play}
    work: dict[str, list[dict[str, Any]]] = {host: [] for host in play}
    needed_images, bases, needed_models = needs_of(plan, play)
    found: list[tuple[str, str, list[str], dict[str, dict[str, Any]], str]] = []
    for ref, hosts in sorted(needed_images.items()):
        reports = {host: (images.get(host) or {}).get(ref) or {} for host in play}
        items = {
            host: image_item(ref, report, bases.get(ref, ""))
            for host, report in reports.items()
            if report.get("present")
        }
        found.append(("image", ref, hosts, items, ""))
    for (repo, revision), hosts in sorted(needed_models.items()):
        entries = [(host, entry) for host in play for entry in models.get(host) or []]
        found.append(("model", f"{repo}@{revision}", hosts, *_model_holders(entries, repo, revision)))
    for kind, name, hosts, holders, why in found:
        refusal = _refusal(kind, name, hosts, holders, why)
        if refusal:
            refusals.append(refusal)
            continue
        host = min(sorted(holders), key=lambda name: load[name])
        work[host].append(holders[host])
        load[host] += holders[host]["bytes"]
    return work, refusals


def _model_holders(
    reported: Sequence[tuple[str, Mapping[str, Any]]], repo: str, revision: str
) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the hosts that have a model whole, each with its entry of a bundle, and the problems of the others as a part of a message."""
    entries = [
        (host, entry)
        for host, entry in reported
        if (entry["repo"], entry["revision"]) == (repo, revision) and entry.get("commit")
    ]
    broken = "; ".join(f"{host}: {', '.join(entry['problems'])}" for host, entry in entries if entry["problems"])
    items = {host: model_item(entry) for host, entry in entries if not entry["problems"]}
    return items, f" whole ({broken})" if broken else ""


def _refusal(kind: str, name: str, hosts: Sequence[str], holders: Mapping[str, Mapping[str, Any]], why: str) -> str:
    """Return why an image or model cannot be taken, or an empty text. hosts: that need it. holders: host to its entry of a bundle."""
    if not holders:
        return f"{kind} {name}: none of {', '.join(dict.fromkeys(hosts))} has it{why}; run site.yml there first."
    key, noun = ("id", "builds") if kind == "image" else ("commit", "commits")
    if len({item[key] for item in holders.values()}) == 1:
        return ""
    by_host = "; ".join(f"{host}: {item[key].removeprefix('sha256:')[:12]}" for host, item in sorted(holders.items()))
    return f"{kind} {name}: hosts have different {noun} of it ({by_host}); lock one with dgxspark.vllm.lock first."


def needs_of(
    plan: Mapping[str, Any], play: Sequence[str]
) -> tuple[dict[str, list[str]], dict[str, str], dict[tuple[str, str], list[str]]]:
    """Return what the services of the hosts in C(play) need. plan: see C(survey).

    :returns: the hosts that need each image, by reference; the ids of the images that others are made of, by the tag of those; the hosts that
        need each model, by repository and revision
    """
    images: dict[str, list[str]] = {}
    bases: dict[str, str] = {}
    models: dict[tuple[str, str], list[str]] = {}
    for host in play:
        for service in plan[host]["services"]:
            images.setdefault(service["image"]["ref"], []).append(host)
            for made in (service.get("ray_image"), service.get("built_image")):
                if made:
                    images.setdefault(made["tag"], []).append(host)
                    bases[made["tag"]] = str(service["image"]["id"])
        for ref in plan[host].get("images_beside") or []:
            images.setdefault(ref, []).append(host)
        for model in plan[host]["models"]:
            if model.get("repo"):
                models.setdefault((model["repo"], model["revision"]), []).append(host)
    return images, bases, models


def image_item(ref: str, image: Mapping[str, Any], base: str = "") -> dict[str, Any]:
    """Return the parts of an image to pack; the bytes are its unpacked size.

    :param base: id of the image that it is made from
    """
    return {
        "kind": "image",
        "ref": ref.partition("@")[0] if ":" in ref.partition("@")[0].rpartition("/")[2] else ref,
        "id": str(image["id"]),
        "digests": list(image.get("repo_digests") or []),
        "platform": f"{image.get('os') or 'linux'}/{image.get('architecture') or 'arm64'}",
        "folder": image_folder(ref, str(image["id"])),
        "bytes": int(float(image.get("size_gib") or 0) * GIB),
        "base": base,
    }


def model_item(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a model to pack."""
    return {
        "kind": "model",
        "repo": entry["repo"],
        "revisions": [entry["revision"]],
        "commit": entry["commit"],
        "path": entry["path"],
        "files": {name: dict(file) for name, file in sorted(entry["files"].items())},
        "bytes": sum(int(file["size"]) for file in entry["files"].values()),
    }


def no_room(need: int, free: int, where: str, noun: str) -> str:
    """Return a message if there is too little space, with the numbers; else an empty text."""
    if need <= free:
        return ""
    return f"{where} has {free / 1e9:.2f} GB free, and {noun} needs {need / 1e9:.2f} GB: {(need - free) / 1e9:.2f} GB are missing."


# --- contents ------------------------------------------------------------------------------------------------------


def make_manifest(images: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the manifest of the packed contents, with its checksum, so that half of one is recognised."""
    body = {
        "schema": SCHEMA,
        "images": sorted((dict(image) for image in images), key=lambda image: (image["ref"], image["id"])),
        "models": sorted((dict(model) for model in models), key=lambda model: (model["repo"], model["commit"])),
    }
    return {**body, "sha256": own_sum(body)}


def own_sum(manifest: Mapping[str, Any]) -> str:
    """Return the checksum of a manifest, computed without its checksum."""
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def read_manifest(data: Any, where: str) -> tuple[dict[str, Any], list[str]]:
    """Return C((manifest, messages)) of a parsed manifest."""
    copy_again = "Copy the bundle again, or run dgxspark.vllm.bundle again."
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        return {}, [f"{where} is no manifest of a bundle that this release reads. {copy_again}"]
    if data.get("sha256") != own_sum(data):
        return {}, [f"{where} is damaged: its checksum differs. {copy_again}"]
    try:
        # The bundle may have come on a stick: its texts are checked like answers of hosts.
        return dict(read(MANIFEST_FORM, data, where)), []
    except Untrusted as error:
        return {}, [f"{error}. {copy_again}"]


_PIECES = [{"name": FILE_NAME, "size": SIZE, "sha256": SHA256}]
_IMAGE = {
    "ref": LINE,
    "id": IMAGE_ID,
    "digests": [LINE],
    "folder": text("a folder below images", lambda path: is_relative(path) and path.startswith("images/")),
    "bytes": SIZE,
    "compression": one_of("zstd", "gzip"),
    "pieces": _PIECES,
    "layers": [{"name": SHA256, "size": SIZE, "diff_id?": SHA256, "pieces": _PIECES}],
    "diff_ids": [IMAGE_ID],
    Any: Any,
}
_MODEL = {
    "repo": REPO,
    "commit": COMMIT,
    "revisions": [RELATIVE],
    "files": {RELATIVE: {"size": SIZE, "sha256": SHA256, "blob?": Maybe(Either(BLOB, EMPTY))}},
    Any: Any,
}
MANIFEST_FORM = {"images": [_IMAGE], "models": [_MODEL], Any: Any}


# --- finding contents -----------------------------------------------------------------------------------------------


def find_image(
    manifest: Mapping[str, Any], ref: str, locked: Mapping[str, Any] | None, where: str
) -> tuple[dict[str, Any] | None, str]:
    """Return the entry of an image for a reference, by the id if it is locked, else by name and digest, and an empty text; or None and the reason."""
    name, _at, digest = ref.partition("@")
    names = (ref, name, locked.get("name") if locked else None)
    named = [image for image in manifest["images"] if image["ref"] in names]
    match = (
        next((image for image in manifest["images"] if image["id"] in locked["ids"]), None)
        if locked
        else _last_packed(named, digest)
    )
    if match:
        return dict(match), ""
    if locked and named:
        present = ", ".join(image["id"][7:19] for image in named)
        expected = ", ".join(image_id[7:19] for image_id in locked["ids"])
        return None, (
            f"the bundle {where} has {locked['name']} as {present}, the lock file says {expected}. Make the bundle "
            "again from hosts that were deployed with this lock file, or lock again."
        )
    content = ", ".join(sorted({image["ref"] for image in manifest["images"]})) or "no image"
    return (
        None,
        f"the bundle {where} has no image {ref}; it has {content}. Add it with dgxspark.vllm.bundle on a host that has it.",
    )


def _last_packed(named: Sequence[Mapping[str, Any]], digest: str) -> Mapping[str, Any] | None:
    """Return the image with the digest, any without one. A tag may have been packed twice; it stands for the last."""
    images = sorted(named, key=lambda image: image.get("current") is False)
    fitting = (image for image in images if not digest or any(ref.endswith(f"@{digest}") for ref in image["digests"]))
    return next(fitting, None)


def find_model(manifest: Mapping[str, Any], repo: str, revision: str, where: str) -> tuple[dict[str, Any] | None, str]:
    """Return the entry of a model of the bundle for a revision and an empty text, or None and the reason."""
    of_repo = [model for model in manifest["models"] if model["repo"] == repo]
    match = next((model for model in of_repo if revision == model["commit"] or revision in model["revisions"]), None)
    if match:
        return dict(match), ""
    has = (
        ", ".join(f"{model['repo']}@{model['commit'][:12]}" for model in (of_repo or manifest["models"])) or "no model"
    )
    return None, (
        f"the bundle {where} has no {repo}@{revision}; it has {has}. Add it with dgxspark.vllm.bundle on a host that has it."
    )
