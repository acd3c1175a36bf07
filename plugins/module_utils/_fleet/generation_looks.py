# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the requirements and the changes of a rollback. Changes nothing."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from .._content import snapshots, vocabularies
from .._host.deployment import group_exists, user_exists
from .._host.host_state import Folder, HostFile, HostState
from . import document_check, generations
from .compare_contents import vocabulary_fault
from .document_check import Differences
from .generation_host import Host
from .generations import Generation

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


def _missing_contents(host: Host, generation: Generation) -> Iterator[str]:
    """Yield the problems with weights, vocabularies that units mount, stored files and keys, except keys that hosts generate."""
    files = generation.state.files
    for name, model in sorted(generation.models.items()):
        problem = lost_weights(host, model)
        if problem:
            yield f"{name}: {problem}; fetch it again (site.yml --tags models with that revision) and run again"
    for file in files:
        unit = host.stored(str(file.digest)) if file.path.endswith(".service") else None
        for vocabulary in vocabularies.mounted_by((unit or b"").decode(errors="replace")):
            fault = vocabulary_fault(host.at(vocabulary))
            if fault:
                text = f"{PurePosixPath(file.path).stem}: its vocabulary {vocabulary} {fault}"
                yield f"{text}; fetch it again (site.yml --tags models) and run again"
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
