# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring a generation of a host back: files, models, images and units, once it is known that all of it is there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._host import beneath, file_times
from .._runtime import command
from . import generation_looks, generation_records
from . import generations as engine
from .generation_host import Host, Refused

LOG_LINES = 15


def restore(host: Host) -> dict[str, Any]:
    """Bring a generation back; nothing is touched when something that it needs is missing."""
    number, why = engine.target(host.manifests, host.current, host.same(), host.params["generation"])
    manifest = host.manifests.get(number or 0)
    problems = [why] if manifest is None else generation_looks.missing(host, manifest)
    if manifest is None or problems:
        raise Refused("nothing was touched:\n- " + "\n- ".join(problems))
    todo = host.steps_to(manifest)
    models = models_to_set(host, manifest)
    result = {
        "target": number,
        "steps": engine.lines_of(todo) + [f"sets {entry['repo']}@{entry['revision']} back" for entry in models],
        "touched": sorted({*todo.start, *todo.restart, *todo.stop}),
        "key_changes": generation_looks.other_keys(host, manifest),
        "plan": manifest.plan,
        "changed": todo.any() or bool(models) or host.current.number != number,
    }
    if host.check or not result["changed"]:
        if host.current.restoring is not None and not host.check:
            generation_records.set_current(host, replace(host.current, restoring=None))
        return result
    came = host.current.came_from if host.current.number == number else host.current.number
    staged: dict[str, Path] = {}
    try:
        stage(host, manifest, todo, staged)
        # Noted first, so that a run that is cut off is finished by the next one.
        generation_records.set_current(host, replace(host.current, restoring=number))
        systemctl(host, "stop", todo.stop)
        systemctl(host, "disable", [name for name in todo.stop if name not in manifest.state.units], allowed=True)
        write_back(host, manifest, todo, staged)
    finally:
        for beside in staged.values():
            beside.unlink(missing_ok=True)
    for entry in models:
        set_model(host, entry)
    retag(host, manifest.state.images)
    must(host, ["systemctl", "daemon-reload"])
    systemctl(host, "disable", todo.disable)
    systemctl(host, "enable", todo.enable)
    start(host, manifest, todo)
    generation_records.set_current(host, engine.Current(number, came if came is not None else number))
    return result


def stage(host: Host, manifest: engine.Generation, todo: engine.Steps, staged: dict[str, Path]) -> None:
    """Write what comes back beside its place, so that a disk that is full leaves all files as they are."""
    for path, entry in sorted(manifest.state.folders.items()):
        place = host.at(path)
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            place.unlink()
        place.mkdir(parents=True, exist_ok=True)
        generation_records.chown(place, entry["owner"], entry["group"])
        place.chmod(int(entry["mode"], 8))
    wanted = {**manifest.receipts, **manifest.state.files}
    for path in [*engine.differences(host.receipts, manifest.receipts)[0], *todo.write]:
        entry, place = wanted[path], host.at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if "link" in entry:
            continue
        content = host.kept(entry)
        if content is None:
            raise Refused(f"{path}: what was kept of it is gone since a moment ago; run again")
        staged[path] = generation_records.beside(place, content, int(entry["mode"], 8), entry["owner"], entry["group"])


def write_back(host: Host, manifest: engine.Generation, todo: engine.Steps, staged: dict[str, Path]) -> None:
    """Put in place, remove and hand over files and folders."""
    state = manifest.state
    for path in todo.remove:
        host.at(path).unlink(missing_ok=True)
    for path in sorted(set(host.state.folders) - set(state.folders), reverse=True):
        if host.at(path).is_dir() and not any(host.at(path).iterdir()):
            host.at(path).rmdir()
    receipts = engine.differences(host.receipts, manifest.receipts)
    for path in receipts[2]:
        host.at(path).unlink(missing_ok=True)
    wanted = {**manifest.receipts, **state.files}
    for path in [*receipts[0], *todo.write]:
        entry, place = wanted[path], host.at(path)
        if "link" in entry:
            place.unlink(missing_ok=True)
            place.symlink_to(entry["link"])
            continue
        # Dated by when it counts: a unit that began since it was written beside its place ran from the old one.
        os.utime(staged[path])
        file_times.stamp_written(staged[path])
        staged.pop(path).replace(place)
    for path in todo.attributes:
        if "link" not in wanted[path]:
            generation_records.chown(host.at(path), wanted[path]["owner"], wanted[path]["group"])
            host.at(path).chmod(int(wanted[path]["mode"], 8))


def models_to_set(host: Host, manifest: engine.Generation) -> list[dict[str, Any]]:
    """Return the models whose revision is another commit by now, or whose link leads elsewhere."""
    found = []
    for entry in manifest.state.models.values():
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


def retag(host: Host, images: dict[str, Any]) -> None:
    """Have names of images lead where they led then."""
    there = host.inspect(sorted({entry["ref"] for entry in images.values()}))
    for entry in images.values():
        by_tag = "@" not in entry["ref"] and not entry["ref"].startswith("sha256:")
        if by_tag and entry.get("id") and there.get(entry["ref"]) != entry["id"]:
            must(host, ["docker", "tag", entry["id"], entry["ref"]])


def start(host: Host, manifest: engine.Generation, todo: engine.Steps) -> None:
    """Bring units along. systemd holds engines back until those before them answer; the caller waits for that."""
    services = {f"spark-{name}.service" for name in engine.service_names(manifest.state.files)}
    again = [*todo.start, *todo.restart]
    if again:
        # Earlier failures count against a start; 1: there is nothing to forget.
        host.run(["systemctl", "reset-failed", *again])
    taken_over = [
        name
        for name in todo.restart
        if name not in services
        and f"{engine.SYSTEM}/{name}" not in todo.write
        and "\nExecReload=" in host.texts.get(name, "")
        and (host.state.images.get(name) or {}).get("id") == (manifest.state.images.get(name) or {}).get("id")
    ]
    systemctl(host, "restart", [name for name in todo.restart if name in services], "--no-block")
    systemctl(host, "start", [name for name in todo.start if name in services], "--no-block")
    systemctl(host, "restart", [name for name in todo.restart if name not in services and name not in taken_over])
    systemctl(host, "start", [name for name in todo.start if name not in services])
    systemctl(host, "reload", taken_over)


def systemctl(host: Host, verb: str, names: list[str], *options: str, allowed: bool = False) -> None:
    """Run systemctl; fail with its own words and the end of the log."""
    if not names:
        return
    seconds = command.QUERY_SECONDS if "--no-block" in options else command.WORK_SECONDS
    rc, out, err = host.run(["systemctl", verb, *options, "--", *names], seconds)
    if rc and not allowed:
        log = host.run(
            [
                "journalctl",
                "--no-pager",
                "--quiet",
                "--output=cat",
                f"--lines={LOG_LINES}",
                *[f"--unit={name}" for name in names],
            ]
        )[1]
        raise Refused(f"systemctl {verb} {' '.join(names)} failed: {(err or out).strip()}\n{log}")


def must(host: Host, argv: list[str]) -> None:
    """Run a program that may not fail."""
    rc, out, err = host.run(argv)
    if rc:
        raise Refused(f"{' '.join(argv)} failed: {(err or out).strip()}")
