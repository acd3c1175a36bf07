# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes the rows that a new document leaves out, and paths that must not exist."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

from . import deploy_units, deployed, deployment, host_lock, made, units
from .deployed import Deployed
from .deployment import Deployment, is_folder, is_present
from .host_state import Created, Folder, HostFile, HostState


def plan(job: Deployment) -> HostState:
    """Return the rows that this run removes, and set C(job.after) to the record as it will be then."""
    before, rows = job.before, job.rows()
    # Rows of parts that are not deployed entirely come in addition.
    state = deployed.rows_after(before.state, rows.of_parts(job.parts), job.parts)
    state = deployed.union(state, rows)
    leaving = deployed.removed_rows(before.state, state, job.parts)
    owned: list[Folder | HostFile] = [*state.files, *state.folders]
    owners = {name for row in owned for name in (row.owner, row.group)}
    needed = tuple(account for account in leaving.accounts if account.name in owners)
    listed = {file.path for file in state.files}
    keys = {*before.retired, *(file.path for file in leaving.files if file.secret)} - listed
    retired = _needed_keys(keys)
    files = {file.path: file for file in leaving.files} | {
        path: HostFile(path, secret=True) for path in before.retired if path in keys
    }
    checksums = {**before.checksums, **deployed.checksums(job.sent, job.parts)}
    state = replace(state, accounts=(*state.accounts, *needed))
    job.after = Deployed(deployed.without_contents(state), checksums, tuple(sorted(retired)))
    return replace(
        leaving,
        accounts=tuple(account for account in leaving.accounts if account not in needed),
        files=tuple(file for path, file in files.items() if path not in retired),
    )


def _needed_keys(paths: set[str]) -> set[str]:
    """Return the key files that a generation of the host names; they stay."""
    generations = (made.state_dir() / "generations").glob("[0-9]*.json") if paths else ()
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in generations]
    return {path for path in paths if any(json.dumps(path, ensure_ascii=False) in text for text in texts)}


def save_both(job: Deployment) -> None:
    """Write the record with all rows from before and after this run, so that the next run completes an interrupted one."""
    if job.check or job.after == job.before:
        return
    state = deployed.union(job.after.state, job.before.state)
    checksums = {part: text for part, text in job.before.checksums.items() if part not in job.parts}
    deployed.save(Deployed(state, checksums, tuple({*job.before.retired, *job.after.retired})))


def stop_units(job: Deployment, leaving: HostState) -> list[str]:
    """Stop and disable units that leave, the last started first; returns the names of running ones."""
    names = [unit.name for unit in leaving.units]
    if not names:
        return []
    seen = deploy_units.ask(job, names)
    running = [name for name in reversed(names) if seen[name].active not in ("inactive", "failed")]
    sockets = [name for name in names if name.endswith(".socket")]
    holders = _port_holders(job, sockets, names)
    deploy_units.systemctl(job, "stop", [*holders, *running])
    deploy_units.systemctl(job, "disable", [name for name in names if seen[name].enabled])
    if holders:
        _start_without(job, holders, leaving, sockets)
    if not job.check:
        _clean_up(job, leaving, [name for name in names if seen[name].active == "failed"])
    return running


def _clean_up(job: Deployment, leaving: HostState, failed: list[str]) -> None:
    """Have systemd forget failed units that leave, and run the clean-up commands of all units that leave."""
    if failed:
        job.run(["systemctl", "reset-failed", *failed])
    for unit in leaving.units:
        if unit.clean_up:
            job.run(list(unit.clean_up))


def _port_holders(job: Deployment, sockets: list[str], leaving: list[str]) -> list[str]:
    """Return running services that stay and hold the ports of sockets that leave: systemd handed these over at their start."""
    if not sockets:
        return []
    _rc, shown, _err = job.run(units.show_command(sockets, ["Triggers"]))
    triggered = " ".join(unit.get("Triggers", "") for unit in units.read_properties(shown)).split()
    names = {name for name in triggered if name.endswith(".service")} - set(leaving)
    seen = deploy_units.ask(job, sorted(names)) if names else {}
    return [name for name, unit in seen.items() if unit.active == "active"]


def _start_without(job: Deployment, holders: list[str], leaving: HostState, sockets: list[str]) -> None:
    """Start stopped services again without sockets that leave. Their files go first: a service pulls in the sockets that its unit names."""
    paths = {str(deployment.SYSTEM / "system" / name) for name in sockets}
    for file in leaving.files:
        if file.path in paths:
            remove(job, Path(file.path), file.part)
    if not job.check:
        job.run(["systemctl", "daemon-reload"])
    # Services of this document start later, from their new files.
    started = {unit.name for unit in job.state.units if unit.state == "started"}
    deploy_units.systemctl(job, "start", [name for name in holders if name not in started])


def remove_rows(job: Deployment, leaving: HostState) -> None:
    """Remove the files, created paths and folders that leave, folders deepest first."""
    rows: list[HostFile | Created] = [*leaving.files, *leaving.created]
    for row in rows:
        remove(job, Path(row.path), row.part)
    listed = {folder.path for folder in (*job.after.state.folders, *leaving.folders)}
    # Folders of keys that stayed longer than the rows of their folders.
    parents = {str(Path(file.path).parent): file.part for file in leaving.files if file.secret}
    orphans = [Folder(path, part=part) for path, part in parents.items() if path not in listed]
    for folder in sorted([*leaving.folders, *orphans], key=lambda row: (-row.path.count("/"), row.path)):
        remove_folder(job, folder)


def remove_folder(job: Deployment, folder: Folder) -> None:
    """Remove a folder of ours that no part lists any more, as C(Folder.remove) says; links are not followed."""
    path = Path(folder.path)
    if folder.remove == "never" or not is_folder(path) or not made.is_own(folder.path):
        return
    if any(path in Path(key).parents for key in job.after.retired):
        return
    if folder.remove == "whole":
        remove(job, path, folder.part)
        return
    gone = set(job.removed) if job.check else set()
    if all(str(entry) in gone for entry in path.iterdir()):
        remove(job, path, folder.part, emptied=True)


def remove(job: Deployment, path: Path, part: str, emptied: bool = False) -> None:
    """Remove a file, or a folder of ours with all that is in it; links are not followed.

    :param part: that names it, for the warning about a folder that stays
    :param emptied: the folder is empty, in check mode once the rest of this run is done
    """
    if not is_present(path):
        return
    noted = made.folders().get(os.path.realpath(path)) if is_folder(path) else None
    if is_folder(path) and (not made.is_own(str(path)) or (noted == "shared" and not emptied and any(path.iterdir()))):
        job.tools.warn(
            f"{part}: {path} stays, because it has files that this collection did not create; remove it yourself if you do not need it"
        )
        return
    # The lock that this very run has taken is nothing that somebody put there.
    if path != host_lock.run_dir() or {entry.name for entry in path.iterdir()} - set(host_lock.FILES):
        job.changed = True
        job.removed.append(str(path))
        job.note(str(path), "state: present\n", "state: absent\n")
    job.reload = job.reload or deployment.SYSTEM in path.parents
    if job.check:
        return
    if noted is not None:
        made.remove_folder(os.path.realpath(path))
    elif is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink()
