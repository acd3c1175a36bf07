# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes files and folders, strangers in purged folders, units, and instances with their units."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from . import deploy_units, deployment, host_lock, made
from .deployment import Deployment, is_folder, is_present
from .host_state import Instances


def remove(job: Deployment, path: Path, part: str) -> None:
    """Remove a file, or a folder of ours with all that is in it; links are not followed.

    :param job: the deployment
    :param path: of the file or folder
    :param part: that names it, for the warning about a folder that stays
    """
    if not is_present(path):
        return
    noted = made.folders().get(os.path.realpath(path)) if is_folder(path) else None
    if is_folder(path) and (not made.is_own(str(path)) or (noted == "shared" and any(path.iterdir()))):
        job.tools.warn(
            f"{part}: {path} stays, since this collection did not make what is in it; remove it by hand if it is not needed"
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


def purge(job: Deployment) -> None:
    """Remove files that are no rows of the document from folders of C(purge), and folders that become empty by that."""
    rows = {file.path for file in job.state.files}
    for rule in job.state.purge:
        folder = Path(rule.folder)
        strangers = [
            path for path in sorted(folder.rglob(rule.pattern)) if not is_folder(path) and str(path) not in rows
        ]
        for path in strangers:
            remove(job, path, rule.part)
            while not job.check and path.parent != folder and not any(path.parent.iterdir()):
                path = path.parent
                path.rmdir()


def remove_units(job: Deployment, names: list[str]) -> list[str]:
    """Stop and disable units and remove their files; returns the names of those that ran.

    :param job: the deployment
    :param names: of units, in the order in which they are started
    """
    if not names:
        return []
    seen = deploy_units.ask(job, names)
    running = [name for name in reversed(names) if seen[name].active not in ("inactive", "failed")]
    deploy_units.systemctl(job, "stop", running)
    deploy_units.systemctl(job, "disable", [name for name in names if seen[name].enabled])
    for name in names:
        remove(job, deployment.SYSTEM / "system" / name, job.part_of([name]))
    failed = [name for name in names if seen[name].active == "failed"]
    if failed and not job.check:
        job.run(["systemctl", "reset-failed", *failed])
    return running


def remove_instances(job: Deployment, rule: Instances) -> tuple[list[str], list[str]]:
    """Remove the instances of one kind that the document does not keep; returns their names, and the units that ran."""
    folder, pattern = Path(rule.marker).parent, Path(rule.marker).name
    head, tail = pattern.split("*", 1)
    markers = {path.name[len(head) : len(path.name) - len(tail)]: path for path in folder.glob(pattern)}
    gone = sorted(set(markers) - set(rule.keep))
    units = [unit.replace("{name}", name) for name in gone for unit in rule.units]
    job.parts.update(dict.fromkeys(units, rule.part))
    stopped = remove_units(job, units)
    for name in gone:
        for path in rule.paths:
            remove(job, Path(path.replace("{name}", name)), rule.part)
        # Last, so that a run that is cut off is finished by the next one.
        remove(job, markers[name], rule.part)
    return gone, stopped
