# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the requirements and the changes of a rollback, and roll a host back: deploy the document of a generation."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from .._content import snapshots, vocabularies
from .._host import beneath, deploy, deployed, docker
from .._host.deployment import Deployment, Tools, group_exists, user_exists
from .._host.deployment import Refused as NotDeployable
from .._host.host_state import Folder, HostFile, HostState
from . import document_check, generation_records, generations
from .compare_contents import vocabulary_fault
from .document_check import Differences
from .generation_host import Host, Refused
from .generations import Current, Generation

NAMED_FILES = 3


def report(host: Host, **more: Any) -> dict[str, Any]:
    """Return the results of every action: the current generation, and all kept ones. more: further results."""
    current = host.generation()
    return {
        "current": generations.summary(current) if current else None,
        "same": host.is_unchanged(),
        "generations": [generations.summary(host.generations[number]) for number in sorted(host.generations)],
        **more,
    }


def look(host: Host) -> dict[str, Any]:
    """Return the target of a rollback, its requirements, and its changes."""
    is_unchanged, current = host.is_unchanged(), host.generation()
    target, problems = chosen(host, is_unchanged)
    changes = differences_to(host, target) if target else Differences()
    enabled = [name for name, unit in (current.units if current else {}).items() if unit["enabled"]]
    receipts = {}
    for path in host.receipts:
        receipt = host.read_json(path)
        receipts[str(receipt.get("service"))] = {
            "model": (receipt.get("deployed") or {}).get("model"),
            "benchmark": receipt.get("benchmark"),
        }
    return {
        "same": is_unchanged,
        "restoring": host.current.restoring,
        "running": all((host.units.get(name) or {}).get("active") == "active" for name in enabled),
        "safe": generations.restorable(host.generations, host.current.number),
        "target": target.number if target else None,
        "problems": problems,
        "key_changes": changed_keys(host, target) if target else [],
        "steps": changes.lines(),
        "touched": touched_units(changes),
        "gateways": generations.gateways([current, target]),
        "clusters": generations.clusters([current, target]),
        "plan": target.plan if target else {},
        "receipts": receipts,
    }


def chosen(host: Host, is_unchanged: bool) -> tuple[Generation | None, list[str]]:
    """Return the target of a rollback, and its problems; None with the reason without one."""
    number, why = generations.target(host.generations, host.current, is_unchanged, host.params["generation"])
    target = host.generations.get(number or 0)
    return target, missing(host, target) if target else [why]


def touched_units(changes: Differences) -> list[str]:
    """Return the units that a deployment starts, restarts or stops."""
    return sorted({unit for verb, unit in changes.units if verb in ("start", "restart", "stop")})


def differences_to(host: Host, generation: Generation) -> Differences:
    """Return the changes that deploying the document of a generation would make."""
    return document_check.check(restorable_document(host, generation), host.record, host.look)[0]


def restorable_document(host: Host, generation: Generation) -> HostState:
    """Return the document of a generation for a deployment: with contents of the store, and with the present keys.

    A rollback does not wait for units of services: systemd holds each engine back until those before it answer. Units whose image
    has changed under the same name restart.
    """
    state = generation.state
    services = {f"spark-{name}.service" for name in generations.service_names(file.path for file in state.files)}
    files = tuple(_with_content(host, file) for file in state.files)
    units = []
    for unit in state.resolved().units:
        recorded, image = generation.units.get(unit.name) or {}, generation.images.get(unit.name)
        # A stopped service of an exclusive set must stay stopped: the others need its memory.
        is_idle = unit.state == "triggered" and unit.name in services
        restored = replace(
            unit,
            enabled=recorded.get("enabled") if unit.enabled is None else unit.enabled,
            state="stopped" if is_idle else unit.state,
            outdated=image is not None and (host.image_ids.get(unit.name) or {}).get("id") != image.get("id"),
            defer=False,
            wait=unit.wait and unit.name not in services,
        )
        units.append(restored)
    return replace(state, files=files, units=tuple(units))


def _with_content(host: Host, file: HostFile) -> HostFile:
    """Return a file with the content to deploy. It was validated, and values of the host were filled in, at its first deployment."""
    path = Path(file.path)
    if file.secret and not path.is_file():  # a generated key is generated anew
        return file
    content = path.read_bytes() if file.secret else host.stored(str(file.digest))
    if content is None:  # C(missing) reports it
        return replace(file, validate=None, fill=())
    data = base64.b64encode(content).decode()
    return replace(file, data=data, digest=generations.sha256_of(content), validate=None, fill=())


# --- requirements


def missing(host: Host, generation: Generation) -> list[str]:
    """Return the problems of a rollback: missing images, weights, stored files, keys and accounts."""
    problems = {*missing_images(host, generation.images), *_missing_contents(host, generation)}
    if os.geteuid() == 0:
        problems |= set(_missing_accounts(generation.state))
    return sorted(problems)


def missing_images(host: Host, images: Mapping[str, Any]) -> list[str]:
    """Return the problems with the images of a generation; a Docker without an answer is one."""
    names = {image["ref"] for image in images.values()} | {image["id"] for image in images.values() if image.get("id")}
    ids = host.inspect(sorted(names))
    if host.silent:
        why = f"which images are on this host is not known: Docker does not say: {host.silent}"
        return [f"{why}. See systemctl status docker, and run again"]
    return [
        f"{unit}: its image {image['ref']} ({str(image.get('id'))[:19]}) is not on this host any more; "
        f"bring it (docker pull {image['ref']}, or docker load) and run again"
        for unit, image in sorted(images.items())
        if not _has_image(image, ids)
    ]


def _has_image(image: Mapping[str, Any], ids: Mapping[str, str]) -> bool:
    name, image_id = image["ref"], image.get("id")
    if "@" in name or name.startswith("sha256:"):
        return name in ids
    # The rollback gives the name back to an image that has lost it.
    return (name in ids and ids[name] == image_id) or image_id in ids


def _missing_vocabularies(host: Host, files: Sequence[HostFile]) -> Iterator[str]:
    """Yield the problems with vocabularies that units mount."""
    for file in files:
        unit = host.stored(str(file.digest)) if file.path.endswith(".service") else None
        for vocabulary in vocabularies.mounted_by((unit or b"").decode(errors="replace")):
            fault = vocabulary_fault(host.at(vocabulary))
            if fault:
                text = f"{PurePosixPath(file.path).stem}: its vocabulary {vocabulary} {fault}"
                yield f"{text}; fetch it again (site.yml --tags models) and run again"


def _missing_contents(host: Host, generation: Generation) -> Iterator[str]:
    """Yield the problems with weights, vocabularies that units mount, stored files and keys, except keys that hosts generate."""
    files = generation.state.files
    for name, model in sorted(generation.models.items()):
        problem = lost_weights(host, model)
        if problem:
            yield f"{name}: {problem}; fetch it again (site.yml --tags models with that revision) and run again"
    yield from _missing_vocabularies(host, files)
    digests = {file.path: str(file.digest) for file in files if not file.secret}
    digests.update({path: entry["sha256"] for path, entry in generation.receipts.items() if entry.get("sha256")})
    for path, digest in digests.items():
        if host.stored(digest) is None:
            yield (
                f"{path}: what generation {generation.number} kept of it is missing or damaged ({host.folder}/store/{digest}); name another "
                "generation"
            )
    generated = {file.path for file in files if file.generate}
    for path in generations.secret_changes(host.secrets, generation.secrets)["missing"]:
        if path not in generated:
            yield (
                f"{path}: this key is not on the host any more, and generations keep none; put it there (root, mode 0600), or name a "
                "generation that does without"
            )


def lost_weights(host: Host, model: Mapping[str, Any]) -> str:
    """Return the problem with the weights of a model, empty for complete weights."""
    if model.get("path"):
        path = host.at(model["path"])
        exists = path.is_file() or (path.is_dir() and any(path.iterdir()))
        return "" if exists else f"its weights {model['path']} are gone"
    snapshot = host.model_folder(model["repo"]) / "snapshots" / str(model["commit"])
    weights = f"its weights {model['repo']}@{str(model['commit'])[:12]}"
    if not snapshot.is_dir():
        return f"{weights} are gone"
    files, broken = snapshots.listing(snapshot)
    if broken or not files:
        return f"{weights} are not whole ({', '.join(sorted(broken)[:NAMED_FILES]) or 'empty'})"
    return ""


def _missing_accounts(state: HostState) -> Iterator[str]:
    deployed_accounts = {account.name for account in state.accounts}
    rows: list[HostFile | Folder] = [*state.files, *state.folders]
    for row in rows:
        has_owner = row.owner in deployed_accounts or user_exists(row.owner)
        if not (has_owner and (row.group in deployed_accounts or group_exists(row.group))):
            yield f"{row.path}: no account {row.owner}:{row.group} on this host; run site.yml --tags host"


def changed_keys(host: Host, generation: Generation) -> list[str]:
    """Return a line for each key file that has changed since a generation."""
    changes, number = generations.secret_changes(host.secrets, generation.secrets), generation.number
    lines = [f"{path} changed since generation {number}; it stays unchanged" for path in changes["changed"]]
    return lines + [f"{path} is newer than generation {number}; it stays" for path in changes["new"]]


# --- the rollback


def restore(host: Host, tools: Tools) -> dict[str, Any]:
    """Roll the host back; nothing is touched if a requirement is missing.

    :raises Refused: for a missing requirement, and a failed step
    """
    target, problems = chosen(host, host.is_unchanged())
    if target is None or problems:
        raise Refused("nothing was touched:\n- " + "\n- ".join(problems))
    changes = differences_to(host, target)
    models, tags = _models_to_set(host, target), _tags_to_set(host, target)
    result = {
        "target": target.number,
        "steps": changes.lines() + [f"sets {model['repo']}@{model['revision']} back" for model in models],
        "touched": touched_units(changes),
        "key_changes": changed_keys(host, target),
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
    state = restorable_document(host, target)
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
