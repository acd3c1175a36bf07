# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record a host as a generation, and remove superseded generations with their files and names of images."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .._host import deployed, docker, host_lock, made, staging
from .._plan import service_views
from .._runtime import command
from . import generations
from .generation_host import Host, Refused
from .generations import Current, Generation

START_SECONDS = 3000  # without a deadline in the settings of a service


def write(path: Path, content: bytes, mode: int = 0o600, owner: str = "root", group: str = "root") -> None:
    """Replace a file at once; only root sets its owner."""
    accounts = (number_or_name(owner), number_or_name(group)) if os.geteuid() == 0 else ()
    staging.beside(path, content, mode, *accounts).replace(path)


def number_or_name(account: str) -> str | int:
    """Return an account as C(shutil.chown) takes it: some have no name."""
    return int(account) if account.isdigit() else account


def set_current(host: Host, current: Current) -> None:
    """Write which generation the host is."""
    host.current = current
    write(host.folder / "current.json", (json.dumps(current.to_dict(), indent=1) + "\n").encode())


def _save(host: Host, generation: Generation) -> None:
    """Write a generation, its files first: no generation may lack them.

    :raises Refused: for a changed file whose deployed content no earlier generation has
    """
    for folder in (host.folder, host.folder / "store"):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    digests = {file.path: file.digest for file in generation.state.files if file.digest and not file.secret}
    digests.update({path: receipt["sha256"] for path, receipt in generation.receipts.items()})
    for path, digest in digests.items():
        if host.stored(digest) is not None:
            continue
        file = host.at(path)
        content = file.read_bytes() if file.is_file() and not file.is_symlink() else b""
        if generations.sha256_of(content) != digest:
            raise Refused(
                f"nothing was recorded: {path} differs from the deployed file. Run site.yml, which writes it again; then repeat this when nothing "
                "else changes it"
            )
        write(host.folder / "store" / digest, content)
    write(host.folder / f"{generation.number}.json", generations.dump(generation).encode())
    host.generations[generation.number] = generation


def _remove_retired_keys(host: Host) -> None:
    """Remove the key files without a row. They were kept in case of a rollback to the generation before."""
    for path in host.record.retired:
        host.at(path).unlink(missing_ok=True)
        host.secrets.pop(path, None)
        folder = host.at(path).parent
        is_ours = host.at(generations.SECRETS) in folder.parents
        if is_ours and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    if host.record.retired:
        host.record = replace(host.record, retired=())
        deployed.save(host.record)


def baseline(host: Host) -> None:
    """Record a host that has services and no generation yet, as proven if every service runs and has a receipt."""
    services = host.services
    if host.generations or not services or host.check:
        return
    run = all((host.units.get(f"spark-{name}.service") or {}).get("active") == "active" for name in services)
    record(host, run and all(f"{generations.RECEIPTS}/{name}.json" in host.receipts for name in services))


def record(host: Host, proven: bool | None) -> dict[str, Any]:
    """Make a new generation if the host differs from the current one.

    :param proven: whether this run proved the services, None if it did not try
    :returns: C(recorded), C(removed) and C(changed)
    :raises Refused: if the host is not fully known, or another run has changed it
    """
    other_runs = host_lock.between(host.params["controller"])
    if other_runs and not host.check:
        raise Refused(
            f"nothing was recorded: while this run was at work here, {' and '.join(other_runs)} changed this host too, so its state belongs to "
            "neither run. Let one controller run at a time, and run again, so that the host matches one inventory"
        )
    if proven and not host.check:
        _remove_retired_keys(host)
    if host.silent:
        # Without the ids of images, the same state would look different tomorrow.
        raise Refused(
            f"nothing was recorded, since Docker does not say which images run: {host.silent}. "
            "See systemctl status docker, and run again"
        )
    current, generation = host.generation(), _generation_of(host, bool(proven))
    if current is not None and generation.identity == current.identity:
        return {"recorded": False, "removed": [], "changed": _record_again(host, current, generation)}
    if host.check:
        return {"recorded": True, "removed": [], "changed": True}
    _save(host, generation)
    set_current(host, Current(generation.number))
    return {"recorded": True, "removed": _prune(host), "changed": True}


def _generation_of(host: Host, proven: bool) -> Generation:
    """Return the host as a new generation."""
    services = host.params["services"]
    services = _services_of_receipts(host) if services is None else services
    return Generation(
        number=max(host.generations, default=0) + 1,
        parent=host.current.number if host.generation() is not None else None,
        at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        state=host.record.state,
        checksums=host.record.checksums,
        units=host.units,
        images=host.image_ids,
        models=dict(_models_of(host, services)),
        receipts=host.receipts,
        proven=proven,
        plan={"services": service_views.view(services, "record"), "settings": host.params["settings"]},
        wanted=host.params["wanted"],
        reason="" if proven else host.params["reason"],
        facts=host.params["facts"] or {},
        secrets=host.secrets,
        others=host.added(),
    )


def _models_of(host: Host, services: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the models of services with their commits; further ones of a service as C(SERVICE/REPO)."""
    for service in services:
        name, model = service["name"], service.get("model") or {}
        if model.get("repo"):
            yield name, host.model(model["repo"], model.get("revision") or "main", model.get("link"))
        elif model.get("path"):
            yield name, {"path": model["path"]}
        for further in (service.get("lock") or {}).get("models") or []:
            if further.get("repo") and further["repo"] != model.get("repo"):
                yield f"{name}/{further['repo']}", host.model(further["repo"], further.get("revision") or "main")


def _services_of_receipts(host: Host) -> list[dict[str, Any]]:
    """Return the deployed services in the form of a plan, by their receipts and settings."""
    services = []
    for name in sorted(host.services):
        deployment = host.read_json(f"{generations.RECEIPTS}/{name}.json").get("deployed") or {}
        settings = host.read_json(f"/etc/dgxspark/services/{name}.json")
        service = {
            "name": name,
            "unit": f"spark-{name}.service",
            "container": settings.get("container") or f"spark-{name}",
            "url": settings.get("url"),
            "served_model_name": settings.get("model"),
            "settings": settings,
            "start_timeout": settings.get("start_deadline_seconds") or START_SECONDS,
            "model": deployment.get("model") or {},
            "image": deployment.get("image") or {},
            "state": "on_demand" if settings.get("on_demand") else "started",
        }
        services.append(service)
    return services


def _record_again(host: Host, current: Generation, generation: Generation) -> bool:
    """Update the current generation by a new proof of the same state; return whether that proved it."""
    changed = generation.proven and not current.proven
    proved = replace(
        current,
        proven=True,
        reason="",
        secrets=generation.secrets,
        checksums=generation.checksums,
        # A new kernel or driver makes no new generation; it is noted after a proof with it.
        facts=generation.facts or current.facts,
        # A run with tags deploys only some parts, so the checksum of the last whole run stays.
        wanted=generation.wanted or ("" if changed else current.wanted),
    )
    if generation.proven and generations.dump(proved) != generations.dump(current):
        _update(host, replace(proved, units=generation.units, receipts=generation.receipts, plan=generation.plan))
    if not host.check:
        if host.current.restoring is not None:
            set_current(host, replace(host.current, restoring=None))
        # The run that recorded it may have been interrupted.
        _name_images(host, generations.used(host.generations.values())[1], set())
    return changed


def _update(host: Host, generation: Generation) -> None:
    host.generations[generation.number] = generation
    if not host.check:
        _save(host, generation)


def confirm(host: Host) -> bool:
    """Note today's facts in a proven generation that was proved again; return whether they are new.

    It never marks a generation as proven: its stopped and failed services may not have been tried.
    """
    current, facts = host.generation(), host.params["facts"]
    if current is None or not current.proven or not facts or facts == current.facts or not host.is_unchanged():
        return False
    _update(host, replace(current, facts=facts))
    return True


def _prune(host: Host) -> list[str]:
    """Remove superseded generations, and name the images of the others; return a text for each removal."""
    keep = generations.kept(host.generations, host.current.number, host.params["keep"])
    superseded = [host.generations.pop(number) for number in sorted(set(host.generations) - keep)]
    for generation in superseded:
        (host.folder / f"{generation.number}.json").unlink(missing_ok=True)
    checksums, images = generations.used(host.generations.values())
    for path in (host.folder / "store").iterdir():
        if path.name not in checksums:
            path.unlink()
    removed = [f"generation {generation.number}" for generation in superseded]
    return removed + _name_images(host, images, generations.used(superseded)[1] - images)


def _name_images(host: Host, images: set[str], unused: set[str]) -> list[str]:
    """Give each image of a generation the collection's name, and remove unused images; return the removed names."""
    tags, wanted_tags = host.tags(), {generations.tag_of(image): image for image in images}
    for tag in sorted(set(wanted_tags) - tags):
        docker.act(host.run, "tag", wanted_tags[tag], tag)
    removed = []
    # Only images that the collection brought, and never by force: images of containers stay.
    for image in sorted(unused & made.images()):
        names = [name for name in _names(host, image) if not name.startswith(f"{generations.TAG}:")]
        removed += [name for name in names if not _remove_name(host, name)]
    for tag in sorted(tags - set(wanted_tags)):
        _remove_name(host, tag)
    remaining = {str(image["Id"]) for image in host.images(sorted(unused)).values()} if removed else unused
    # If Docker gives no answer, they stay noted as the collection's: nothing else would remove them later.
    if not host.silent:
        made.forget_images(unused - remaining)
    return removed


def _names(host: Host, reference: str) -> list[str]:
    """Return all names of an image."""
    image = host.images([reference]).get(reference) or {}
    return [*(image.get("RepoTags") or []), *(image.get("RepoDigests") or [])]


def _remove_name(host: Host, name: str) -> str:
    """Remove a name of an image, and the image with its last name, which takes Docker long; return the reason of a failure."""
    return docker.act(lambda argv: host.run(argv, command.WORK_SECONDS), "image", "rm", name)


def forget(host: Host) -> bool:
    """Remove all generations; images stay. Return whether there was anything to remove."""
    tags = host.tags()
    exists = bool(tags) or host.folder.exists()
    if exists and not host.check:
        for tag in sorted(tags):
            # Docker removes an image with its last name.
            if len(_names(host, tag)) > 1:
                _remove_name(host, tag)
        shutil.rmtree(host.folder, ignore_errors=True)
    return exists
