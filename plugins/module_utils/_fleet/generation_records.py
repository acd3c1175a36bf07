# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record the state of a host as a generation, and remove the generations, files and names of images that are not kept."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .._host import deployed, docker, host_lock, made, staging
from .._plan import service_views
from .._runtime import command
from . import generations as engine
from .generation_host import Host, Refused


def beside(path: Path, content: bytes, mode: int, owner: str = "root", group: str = "root") -> Path:
    """Write a file whole beside its place; returns where."""
    if os.geteuid() != 0:
        return staging.beside(path, content, mode)
    return staging.beside(path, content, mode, number_or_name(owner), number_or_name(group))


def put(path: Path, content: bytes) -> None:
    """Write a file of ours: there is the old one or the new one, never a part."""
    beside(path, content, 0o600).replace(path)


def chown(path: Path, owner: str, group: str) -> None:
    """Give a file to its owner."""
    if os.geteuid() == 0:
        shutil.chown(path, number_or_name(owner), number_or_name(group))


def set_current(host: Host, current: engine.Current) -> None:
    """Keep which generation the host is."""
    host.current = current
    put(host.folder / "current.json", (json.dumps(current.plain(), indent=1) + "\n").encode())


def store(host: Host, manifest: engine.Generation) -> None:
    """Keep a generation: its files first, so that there is none without them.

    :raises Refused: for a file on the disk that is not what was deployed, and whose deployed content no earlier generation has
    """
    for folder in (host.folder, host.folder / "store"):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    digests = {file.path: file.digest for file in manifest.state.files if file.digest and not file.secret}
    digests.update({path: entry["sha256"] for path, entry in manifest.receipts.items()})
    for path, digest in digests.items():
        if host.kept(digest) is not None:
            continue
        place = host.at(path)
        content = place.read_bytes() if place.is_file() and not place.is_symlink() else b""
        if engine.sha256_of(content) != digest:
            raise Refused(
                f"nothing was recorded: {path} is not what was deployed. Run site.yml, which writes it again, and run this again when nothing "
                "else changes it"
            )
        put(host.folder / "store" / digest, content)
    put(host.folder / f"{manifest.number}.json", engine.dump(manifest).encode())
    host.manifests[manifest.number] = manifest


def scrub(host: Host) -> None:
    """Take the keys out of what an earlier release has kept."""
    held = [manifest for manifest in host.manifests.values() if manifest.held_secrets]
    for manifest in held:
        host.manifests[manifest.number] = replace(manifest, held_secrets=False)
        put(host.folder / f"{manifest.number}.json", engine.dump(manifest).encode())
    if held:
        drop_unused(host)


def drop_unused(host: Host) -> None:
    """Remove files that no generation names any more."""
    sums = engine.used(host.manifests.values())[0]
    for path in (host.folder / "store").iterdir():
        if path.name not in sums:
            path.unlink()


def drop_keys(host: Host) -> None:
    """Remove the key files that no row lists any more: until now, the generation before could have come back."""
    for path in host.record.retired:
        host.at(path).unlink(missing_ok=True)
        host.secrets.pop(path, None)
        folder = host.at(path).parent
        if engine.is_secret(str(folder)) and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    if host.record.retired:
        host.record = replace(host.record, retired=())
        deployed.save(host.record)


def baseline(host: Host) -> None:
    """Record what is deployed on a host that has services and no generation yet.

    It counts as proven when every service has a receipt and its unit is active.
    """
    names = host.services
    if host.manifests or not names or host.check:
        return
    active = all((host.units.get(f"spark-{name}.service") or {}).get("active") == "active" for name in names)
    record(host, active and all(f"{engine.RECEIPTS}/{name}.json" in host.receipts for name in names))


def record(host: Host, proven: bool | None) -> dict[str, Any]:
    """Make a new generation where the host is another than the current one says.

    :param host: the host
    :param proven: whether the services were proved in this run, C(None) where they were not tried
    :returns: C(recorded), C(removed) and C(changed)
    :raises Refused: where the state of the host is not known, or not that of this run
    """
    others = host_lock.between(host.params["controller"])
    if others and not host.check:
        raise Refused(
            f"nothing was recorded: while this run was at work here, {' and '.join(others)} changed this host too, so what it is now "
            "is neither run's. Let one controller run at a time, and run again: that makes the host what one inventory says"
        )
    if proven and not host.check:
        drop_keys(host)
    if host.silent:
        # A state whose images are not known would be another one than that same state tomorrow.
        raise Refused(
            f"nothing was recorded, since Docker does not say which images run: {host.silent}. "
            "See systemctl status docker, and run again"
        )
    services = host.params["services"]
    services = host.services_of_receipts() if services is None else services
    plan = {"services": service_views.view(services, "record"), "settings": host.params["settings"]}
    current = host.generation()
    manifest = engine.Generation(
        number=max(host.manifests, default=0) + 1,
        parent=host.current.number if current is not None else None,
        at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        state=host.record.state,
        checksums=host.record.checksums,
        units=host.units,
        images=host.image_ids,
        models=host.models(services),
        receipts=host.receipts,
        proven=bool(proven),
        plan=plan,
        wanted=host.params["wanted"],
        reason="" if proven else host.params["reason"],
        facts=host.params["facts"] or {},
        secrets=host.secrets,
        others=host.added(),
    )
    if current is not None and manifest.identity == current.identity:
        return {"recorded": False, "removed": [], "changed": record_again(host, current, manifest)}
    if host.check:
        return {"recorded": True, "removed": [], "changed": True}
    store(host, manifest)
    set_current(host, engine.Current(manifest.number))
    return {"recorded": True, "removed": prune(host), "changed": True}


def record_again(host: Host, current: engine.Generation, manifest: engine.Generation) -> bool:
    """Note in the current generation what was proved of the same state once more; returns whether it is proven by that."""
    changed = manifest.proven and not current.proven
    proved = replace(
        current,
        proven=True,
        reason="",
        secrets=manifest.secrets,
        checksums=manifest.checksums,
        # Another kernel or driver makes no other state; it is noted once the state was proved with it.
        facts=manifest.facts or current.facts,
        # A run with tags has deployed some parts: the mark stays that of a whole run.
        wanted=manifest.wanted or ("" if changed else current.wanted),
    )
    if manifest.proven and engine.dump(proved) != engine.dump(current):
        note(host, replace(proved, units=manifest.units, receipts=manifest.receipts, plan=manifest.plan))
    if not host.check:
        if host.current.restoring is not None:
            set_current(host, replace(host.current, restoring=None))
        # The run that recorded it may have been cut off before, or Docker with it.
        name_images(host, engine.used(host.manifests.values())[1], set())
    return changed


def note(host: Host, current: engine.Generation) -> None:
    """Have the current generation say what is known of it by now."""
    host.manifests[current.number] = current
    if not host.check:
        store(host, current)


def confirm(host: Host) -> bool:
    """Note that a proven generation was proved again, with the facts of today; returns whether they are new.

    Never makes one proven: services that were stopped, or failed when it was recorded, may not have been tried.
    """
    current, facts = host.generation(), host.params["facts"]
    if current is None or not current.proven or not facts or facts == current.facts or not host.same():
        return False
    note(host, replace(current, facts=facts))
    return True


def prune(host: Host) -> list[str]:
    """Remove what is not kept, and give the images of what is kept a name; returns what was removed."""
    keep = engine.kept(host.manifests, host.current.number, host.params["keep"])
    gone = [host.manifests.pop(number) for number in sorted(set(host.manifests) - keep)]
    for manifest in gone:
        (host.folder / f"{manifest.number}.json").unlink(missing_ok=True)
    images = engine.used(host.manifests.values())[1]
    drop_unused(host)
    removed = [f"generation {manifest.number}" for manifest in gone]
    return removed + name_images(host, images, engine.used(gone)[1] - images)


def name_images(host: Host, wanted: set[str], gone: set[str]) -> list[str]:
    """Have each image that a generation names carry our name, and remove what only removed ones named."""
    there, meant = host.tags(), {engine.tag_of(image): image for image in wanted}
    for tag in sorted(set(meant) - there):
        docker.act(host.run, "tag", meant[tag], tag)
    removed = []
    # Only what this collection has brought; and never by force: what a container uses stays.
    for image in sorted(gone & made.images()):
        names = host.images([image]).get(image) or {}
        for name in [*(names.get("RepoTags") or []), *(names.get("RepoDigests") or [])]:
            if not name.startswith(f"{engine.TAG}:") and not remove_name(host, name):
                removed.append(name)
    for tag in sorted(there - set(meant)):
        remove_name(host, tag)
    left = {str(image["Id"]) for image in host.images(sorted(gone)).values()} if removed else gone
    # Where Docker does not say which are left, they stay noted as ours: else nothing would remove them any more.
    if not host.silent:
        made.forget_images(gone - left)
    return removed


def remove_name(host: Host, name: str) -> str:
    """Remove a name of an image, and the image with its last name, which takes Docker a while; returns the reason of a failure."""
    return docker.act(lambda argv: host.run(argv, command.WORK_SECONDS), "image", "rm", name)


def forget(host: Host) -> bool:
    """Remove everything that generations left behind; images stay."""
    tags = host.tags()
    found = bool(tags) or host.folder.exists()
    if found and not host.check:
        for tag in sorted(tags):
            image = host.images([tag]).get(tag) or {}
            # With its last name an image would go too.
            if len([*(image.get("RepoTags") or []), *(image.get("RepoDigests") or [])]) > 1:
                remove_name(host, tag)
        shutil.rmtree(host.folder, ignore_errors=True)
    return found


def number_or_name(account: str) -> str | int:
    """Return an account as C(shutil.chown) takes it: some have no name."""
    return int(account) if account.isdigit() else account
