# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Roll a host back: deploy the document of a generation after checking its images, weights and files."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._host import beneath, deploy, deployed, docker
from .._host.deployment import Deployment, Tools
from .._host.deployment import Refused as NotDeployable
from . import generation_looks, generation_records
from .generation_host import Host, Refused
from .generations import Current, Generation


def restore(host: Host, tools: Tools) -> dict[str, Any]:
    """Roll the host back; nothing is touched if a requirement is missing.

    :raises Refused: for a missing requirement, and a failed step
    """
    target, problems = generation_looks.chosen(host, host.is_unchanged())
    if target is None or problems:
        raise Refused("nothing was touched:\n- " + "\n- ".join(problems))
    changes = generation_looks.differences_to(host, target)
    models, tags = _models_to_set(host, target), _tags_to_set(host, target)
    result = {
        "target": target.number,
        "steps": changes.lines() + [f"sets {model['repo']}@{model['revision']} back" for model in models],
        "touched": generation_looks.touched_units(changes),
        "key_changes": generation_looks.changed_keys(host, target),
        "plan": target.plan,
        "changed": changes.any() or bool(models) or bool(tags) or host.current.number != target.number,
    }
    if host.check:
        return result
    if result["changed"]:
        _restore(host, target, models, tags, tools)
    elif host.current.restoring is not None:
        generation_records.set_current(host, replace(host.current, restoring=None))
    return result


def _restore(
    host: Host, target: Generation, models: list[dict[str, Any]], tags: list[tuple[str, str]], tools: Tools
) -> None:
    number = target.number
    came_from = host.current.came_from if host.current.number == number else host.current.number
    # Noted first: the next run finishes an interrupted rollback.
    generation_records.set_current(host, replace(host.current, restoring=number))
    for model in models:
        _set_model(host, model)
    for image_id, name in tags:
        why = docker.act(host.run, "tag", image_id, name)
        if why:
            raise Refused(f"docker tag {image_id} {name} failed: {why}")
    state = generation_looks.restorable_document(host, target)
    job = Deployment(state, tools, state.parts() | host.record.state.parts(), host.record)
    try:
        deploy.deploy(job)
    except NotDeployable as refused:
        raise Refused(str(refused)) from refused
    _restore_receipts(host, target)
    retired = tuple(path for path in job.after.retired if host.at(path).exists())
    deployed.save(deployed.Deployed(target.state, target.checksums, retired))
    generation_records.set_current(host, Current(number, number if came_from is None else came_from))


def _restore_receipts(host: Host, target: Generation) -> None:
    """Write the receipts of a generation, and remove all others."""
    for path in set(host.receipts) - set(target.receipts):
        host.at(path).unlink(missing_ok=True)
    for path, receipt in target.receipts.items():
        content = host.stored(receipt["sha256"]) if host.receipts.get(path) != receipt else None
        if content is not None:
            host.at(path).parent.mkdir(parents=True, exist_ok=True)
            generation_records.write(
                host.at(path), content, int(receipt["mode"], 8), receipt["owner"], receipt["group"]
            )


def _models_to_set(host: Host, target: Generation) -> list[dict[str, Any]]:
    """Return the models whose revision or link has moved since a generation."""
    models = []
    for model in target.models.values():
        if not model.get("repo") or model["commit"] == model["revision"]:
            continue
        commit = host.model(model["repo"], model["revision"])["commit"]
        link = host.at(model["link"]) if model.get("link") else None
        leads = str(link.readlink()) if link is not None and link.is_symlink() else None
        if commit != model["commit"] or leads != model.get("leads"):
            models.append(model)
    return models


def _set_model(host: Host, model: dict[str, Any]) -> None:
    """Set the revision of a model, and its link, back to the recorded commit."""
    hf_home = host.at(host.params["hf_home"])
    ref = f"hub/{host.model_folder(model['repo']).name}/refs/{model['revision']}"
    try:
        with beneath.folder(hf_home, str(Path(ref).parent), make=True):
            owner = host.owner(hf_home / Path(ref).parent)
        beneath.write(hf_home, ref, model["commit"].encode())
        if os.geteuid() == 0:
            user, group = (generation_records.number_or_name(owner[key]) for key in ("owner", "group"))
            shutil.chown(hf_home / ref, user, group)
        if model.get("link"):
            beneath.link(hf_home, str(Path(model["link"]).relative_to(host.params["hf_home"])), model["leads"])
    except beneath.Refused as error:
        raise Refused(str(error)) from error


def _tags_to_set(host: Host, target: Generation) -> list[tuple[str, str]]:
    """Return id and name of each image whose name has moved since a generation."""
    recorded = {image["ref"]: image.get("id") for image in target.images.values()}
    ids = host.inspect(sorted(recorded))
    return [
        (image_id, name)
        for name, image_id in sorted(recorded.items())
        if "@" not in name and not name.startswith("sha256:") and image_id and ids.get(name) != image_id
    ]
