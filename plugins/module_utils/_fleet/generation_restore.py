# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring a generation of a host back: deploy its document, once it is known that its images, weights and files are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from .._host import beneath, deploy, deployed, docker
from .._host.deployment import Deployment, Tools
from .._host.deployment import Refused as NotDeployable
from . import document_check, generation_looks, generation_records
from . import generations as engine
from .generation_host import Host, Refused


def restore(host: Host, tools: Tools) -> dict[str, Any]:
    """Bring a generation back; nothing is touched when something that it needs is missing.

    :param host: the host
    :param tools: of the module
    :returns: results of the module
    :raises Refused: for a generation that cannot come back, and a step that fails
    """
    number, why = engine.target(host.manifests, host.current, host.same(), host.params["generation"])
    manifest = host.manifests.get(number or 0)
    problems = [why] if manifest is None else generation_looks.missing(host, manifest)
    if manifest is None or problems:
        raise Refused("nothing was touched:\n- " + "\n- ".join(problems))
    todo = generation_looks.differences_to(host, manifest)
    models = models_to_set(host, manifest)
    tags = tags_to_set(host, manifest)
    result = {
        "target": number,
        "steps": todo.lines() + [f"sets {entry['repo']}@{entry['revision']} back" for entry in models],
        "touched": generation_looks.touched(todo),
        "key_changes": generation_looks.other_keys(host, manifest),
        "plan": manifest.plan,
        "changed": todo.any() or bool(models) or bool(tags) or host.current.number != number,
    }
    if host.check or not result["changed"]:
        if host.current.restoring is not None and not host.check:
            generation_records.set_current(host, replace(host.current, restoring=None))
        return result
    came = host.current.came_from if host.current.number == number else host.current.number
    # Noted first, so that a run that is cut off is finished by the next one.
    generation_records.set_current(host, replace(host.current, restoring=number))
    for entry in models:
        set_model(host, entry)
    for image, name in tags:
        why = docker.act(host.run, "tag", image, name)
        if why:
            raise Refused(f"docker tag {image} {name} failed: {why}")
    job = deployment_of(host, manifest, tools)
    try:
        deploy.deploy(job)
    except NotDeployable as refused:
        raise Refused(str(refused)) from refused
    restore_receipts(host, manifest)
    retired = tuple(path for path in job.after.retired if host.at(path).exists())
    deployed.save(deployed.Deployed(manifest.state, manifest.checksums, retired))
    generation_records.set_current(host, engine.Current(number, came if came is not None else number))
    return result


def deployment_of(host: Host, manifest: engine.Generation, tools: Tools) -> Deployment:
    """Return the deployment of the document of a generation."""
    state = generation_looks.restorable(host, manifest)
    return Deployment(state, tools, document_check.parts_of(state, host.record.state), host.record)


def restore_receipts(host: Host, manifest: engine.Generation) -> None:
    """Write the receipts of a generation, and remove those that it does not have."""
    for path in set(host.receipts) - set(manifest.receipts):
        host.at(path).unlink(missing_ok=True)
    for path, entry in manifest.receipts.items():
        content = host.kept(entry["sha256"]) if host.receipts.get(path) != entry else None
        if content is not None:
            host.at(path).parent.mkdir(parents=True, exist_ok=True)
            mode = int(entry["mode"], 8)
            beside = generation_records.beside(host.at(path), content, mode, entry["owner"], entry["group"])
            beside.replace(host.at(path))


def models_to_set(host: Host, manifest: engine.Generation) -> list[dict[str, Any]]:
    """Return the models whose revision is another commit by now, or whose link leads elsewhere."""
    found = []
    for entry in manifest.models.values():
        if not entry.get("repo") or entry["commit"] == entry["revision"]:
            continue
        now = host.model(entry["repo"], entry["revision"], None)
        link = host.at(entry["link"]) if entry.get("link") else None
        leads = str(link.readlink()) if link is not None and link.is_symlink() else None
        if now["commit"] != entry["commit"] or leads != entry.get("leads"):
            found.append(entry)
    return found


def set_model(host: Host, entry: dict[str, Any]) -> None:
    """Have a revision mean the commit that it meant then."""
    hf_home = host.at(host.params["hf_home"])
    ref = f"hub/{host.model_folder(entry['repo']).name}/refs/{entry['revision']}"
    try:
        with beneath.folder(hf_home, str(Path(ref).parent), make=True):
            owner = host.owner(hf_home / Path(ref).parent)
        beneath.write(hf_home, ref, entry["commit"].encode())
        generation_records.chown(hf_home / ref, owner["owner"], owner["group"])
        if entry.get("link"):
            beneath.link(hf_home, str(Path(entry["link"]).relative_to(host.params["hf_home"])), entry["leads"])
    except beneath.Refused as error:
        raise Refused(str(error)) from error


def tags_to_set(host: Host, manifest: engine.Generation) -> list[tuple[str, str]]:
    """Return the ids and names of images whose name leads elsewhere than then."""
    images = {entry["ref"]: entry.get("id") for entry in manifest.images.values()}
    there = host.inspect(sorted(images))
    return [
        (image, ref)
        for ref, image in sorted(images.items())
        if "@" not in ref and not ref.startswith("sha256:") and image and there.get(ref) != image
    ]
