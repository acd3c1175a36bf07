# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rollback needs and would change. Reads alone."""

from __future__ import annotations

import base64
import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from .._content import snapshots, vocabularies
from .._host.host_state import Folder, HostFile, HostState, Unit
from . import document_check
from . import generations as engine
from .compare_contents import vocabulary_fault
from .generation_host import Host


def look(host: Host) -> dict[str, Any]:
    """Return what a rollback would bring back and change."""
    same, current = host.same(), host.generation()
    number, why = engine.target(host.manifests, host.current, same, host.params["generation"])
    manifest = host.manifests.get(number or 0)
    todo = differences_to(host, manifest) if manifest else document_check.Differences()
    units = current.units if current else {}
    receipts = {}
    for path in host.receipts:
        receipt = host.read_json(path)
        receipts[str(receipt.get("service"))] = {
            "model": (receipt.get("deployed") or {}).get("model"),
            "benchmark": receipt.get("benchmark"),
        }
    return {
        "same": same,
        "restoring": host.current.restoring,
        "running": all(
            (host.units.get(name) or {}).get("active") == "active" for name, unit in units.items() if unit["enabled"]
        ),
        "safe": engine.restorable(host.manifests, host.current.number),
        "target": number,
        "problems": [why] if manifest is None else missing(host, manifest),
        "key_changes": other_keys(host, manifest) if manifest else [],
        "steps": todo.lines(),
        "touched": touched(todo),
        "gateways": engine.gateways([current, manifest]),
        "clusters": engine.clusters([current, manifest]),
        "plan": manifest.plan if manifest else {},
        "receipts": receipts,
    }


def touched(todo: document_check.Differences) -> list[str]:
    """Return the units that deploying a document starts, restarts or stops."""
    return sorted({unit for verb, unit in todo.units if verb in ("start", "restart", "stop")})


def differences_to(host: Host, manifest: engine.Generation) -> document_check.Differences:
    """Return what deploying the document of a generation would change."""
    return document_check.check(restorable(host, manifest), host.record, host.look)[0]


def restorable(host: Host, manifest: engine.Generation) -> HostState:
    """Return the document of a generation as it can be deployed: with contents from the store, and keys as they are now.

    Units of services are not waited for: systemd holds engines back until those before them answer. Units whose image is another by the same
    name are restarted.
    """
    services = {f"spark-{name}.service" for name in engine.service_names(file.path for file in manifest.state.files)}
    files = tuple(_with_content(host, file) for file in manifest.state.files)
    units = tuple(_restored_unit(host, manifest, unit, services) for unit in manifest.state.resolved().units)
    return replace(manifest.state, files=files, units=units)


def _with_content(host: Host, file: HostFile) -> HostFile:
    """Return a file with the content to deploy; it was valid, and what only the host knows was filled in."""
    path = Path(file.path)
    if file.secret:
        if not path.is_file():  # a generated one is made anew
            return file
        content = path.read_bytes()
    else:
        kept = host.kept(str(file.digest))
        if kept is None:  # C(missing) says so
            return replace(file, validate=None, fill=())
        content = kept
    data = base64.b64encode(content).decode()
    return replace(file, data=data, digest=engine.sha256_of(content), validate=None, fill=())


def _restored_unit(host: Host, manifest: engine.Generation, unit: Unit, services: set[str]) -> Unit:
    """Return a unit with the start at boot of then."""
    then = manifest.units.get(unit.name) or {}
    enabled = then.get("enabled") if unit.enabled is None else unit.enabled
    id_then = (manifest.images.get(unit.name) or {}).get("id")
    is_retagged = unit.name in manifest.images and (host.image_ids.get(unit.name) or {}).get("id") != id_then
    # One of a set of which one runs would keep the memory that the others need.
    is_idle = unit.state == "triggered" and unit.name in services
    return replace(
        unit,
        enabled=enabled,
        state="stopped" if is_idle else unit.state,
        outdated=is_retagged,
        defer=False,
        wait=unit.wait and unit.name not in services,
    )


def missing(host: Host, manifest: engine.Generation) -> list[str]:
    """Say what a generation needs that is not there: images, weights, kept files, accounts."""
    state = manifest.state
    problems = missing_images(host, dict(manifest.images))
    for name, entry in sorted(manifest.models.items()):
        lost = lost_weights(host, entry)
        if lost:
            problems.append(f"{name}: {lost}; fetch it again (site.yml --tags models with that revision) and run again")
    problems += missing_vocabularies(host, state.files)
    digests = {file.path: str(file.digest) for file in state.files if not file.secret}
    digests.update({path: entry["sha256"] for path, entry in manifest.receipts.items() if entry.get("sha256")})
    for path, digest in digests.items():
        if host.kept(digest) is None:
            problems.append(
                f"{path}: what generation {manifest.number} kept of it is gone or damaged "
                f"({host.folder}/store/{digest}); name another generation"
            )
    problems += [
        f"{path}: this key is not on the host any more, and generations keep none; put it there (root, mode 0600), or name a "
        "generation that does without"
        for path in lost_keys(host, manifest)
    ]
    if os.geteuid() == 0:
        made = {account.name for account in state.accounts}
        rows: list[HostFile | Folder] = [*state.files, *state.folders]
        for path, owner, group in [(row.path, row.owner, row.group) for row in rows]:
            if not (
                (owner in made or account(pwd.getpwnam, owner)) and (group in made or account(grp.getgrnam, group))
            ):
                problems.append(f"{path}: no account {owner}:{group} on this host; run site.yml --tags host")
    return sorted(set(problems))


def missing_vocabularies(host: Host, files: tuple[HostFile, ...]) -> list[str]:
    """Say which vocabularies that the units of a generation mount are not there, or damaged."""
    problems = []
    for file in files:
        unit = host.kept(str(file.digest)) if file.path.endswith(".service") else None
        for vocabulary in vocabularies.mounted_by((unit or b"").decode(errors="replace")):
            fault = vocabulary_fault(host.at(vocabulary))
            if fault:
                what = f"{PurePosixPath(file.path).stem}: its vocabulary {vocabulary} {fault}"
                problems.append(f"{what}; fetch it again (site.yml --tags models) and run again")
    return problems


def missing_images(host: Host, images: dict[str, Any]) -> list[str]:
    """Say which images of a generation are not there; that Docker does not say is a problem of its own."""
    there = host.inspect(
        sorted(
            {entry["ref"] for entry in images.values()} | {entry["id"] for entry in images.values() if entry.get("id")}
        )
    )
    if host.silent:
        return [
            f"which images are on this host is not known: Docker does not say: {host.silent}. See systemctl status docker, and run again"
        ]
    problems = []
    for unit, entry in sorted(images.items()):
        by_tag = "@" not in entry["ref"] and not entry["ref"].startswith("sha256:")
        if entry["ref"] in there and (there[entry["ref"]] == entry.get("id") or not by_tag):
            continue
        if entry.get("id") in there and by_tag:
            continue  # the name leads elsewhere by now; it is set back
        problems.append(
            f"{unit}: its image {entry['ref']} ({str(entry.get('id'))[:19]}) is not on this host any more; "
            f"bring it (docker pull {entry['ref']}, or docker load) and run again"
        )
    return problems


def lost_keys(host: Host, manifest: engine.Generation) -> list[str]:
    """Return the key files of a generation that are not on the host any more, but for those that hosts generate."""
    generated = {file.path for file in manifest.state.files if file.generate}
    return [path for path in engine.secret_changes(host.secrets, manifest.secrets)[1] if path not in generated]


def other_keys(host: Host, manifest: engine.Generation) -> list[str]:
    """Say which key files are others than at the time of a generation."""
    changed, _gone, come, _attributes = engine.secret_changes(host.secrets, manifest.secrets)
    number = manifest.number
    return [f"{path} changed since generation {number}; it stays as it is now" for path in changed] + [
        f"{path} is newer than generation {number}; it stays" for path in come
    ]


def lost_weights(host: Host, entry: Mapping[str, Any]) -> str:
    """Say what is missing of a model, empty when it is whole."""
    if entry.get("path"):
        path = host.at(entry["path"])
        there = path.is_file() or (path.is_dir() and any(path.iterdir()))
        return "" if there else f"its weights {entry['path']} are gone"
    snapshot = host.model_folder(entry["repo"]) / "snapshots" / str(entry["commit"])
    of = f"its weights {entry['repo']}@{str(entry['commit'])[:12]}"
    if not snapshot.is_dir():
        return f"{of} are gone"
    listed, broken = snapshots.listing(snapshot)
    if broken or not listed:
        return f"{of} are not whole ({', '.join(sorted(broken)[:3]) or 'empty'})"
    return ""


def account(find: Any, name: str) -> bool:
    """Tell whether there is such an account; a number stands for itself."""
    if name.isdigit():
        return True
    try:
        find(name)
    except KeyError:
        return False
    return True
