# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders and files of a state document: which of them differ, and how they get in place."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from . import made, staging
from .deploy_fill import content_of
from .deployment import Deployment, Refused, digest_of, group_exists, is_folder, is_present, user_exists
from .file_times import stamp_written
from .host_state import Folder, HostFile, HostState

NOT_FOUND = 127  # exit code for a program that is missing
SHOWN_BYTES = 100_000  # of a file, in a diff


def without_missing_devices(state: HostState) -> HostState:
    """Return the document for a host that lacks some devices: without the files for those."""
    return replace(state, files=tuple(file for file in state.files if not file.device or Path(file.device).exists()))


def differing(state: HostState) -> list[HostFile]:
    """Return the files whose content on the disk is another. Raises Refused where a folder is in the way."""
    for file in state.files:
        if is_folder(Path(file.path)):
            raise Refused(f"{file.path} is a folder, a file belongs there; move it away", file.part)
    return [file for file in state.files if digest_of(Path(file.path)) != file.digest]


def check_owners(state: HostState) -> None:
    """Refuse owners and groups that neither the host nor the document has."""
    planned = {account.name for account in state.accounts}
    rows: list[Folder | HostFile] = [*state.folders, *state.files]
    unknown = []
    for row in rows:
        if row.owner not in planned and not user_exists(row.owner):
            unknown.append((row.part, f"owner {row.owner} of {row.path}"))
        if row.group not in planned and not group_exists(row.group):
            unknown.append((row.part, f"group {row.group} of {row.path}"))
    if unknown:
        raise Refused(
            f"{', '.join(text for _part, text in unknown)}: no such account on this host. Run site.yml without tags once, which makes it",
            unknown[0][0],
        )


def validate(job: Deployment, files: Iterable[HostFile]) -> None:
    """Ask the programs of C(validate) about new contents. Raises Refused with all refusals."""
    refused = []
    checked = [(file, file.validate) for file in files if file.validate]
    if not checked:
        return
    with job.own_folder() as folder:
        for number, (file, program) in enumerate(checked):
            # By the same name, which some programs read the kind of a file from.
            path = Path(folder, str(number), Path(file.path).name)
            path.parent.mkdir(0o700)
            path.touch(0o600, exist_ok=False)
            path.write_bytes(content_of(file))
            rc, out, err = job.run([word.replace("%s", str(path)) for word in shlex.split(program)])
            if rc == NOT_FOUND:
                refused.append(
                    (file.part, f"{file.path} cannot be checked: {shlex.split(program)[0]} is not installed")
                )
            elif rc:
                output = (err or out).strip().replace(str(path), file.path)
                refused.append((file.part, f"{file.path} is not valid: {program.split(maxsplit=1)[0]} says: {output}"))
    if refused:
        raise Refused("; ".join(text for _part, text in refused) + ". Nothing was changed", refused[0][0])


def make_folders(job: Deployment) -> None:
    """Make missing folders, and set owner, group and mode of those that are ours."""
    for folder in job.state.folders:
        path = Path(folder.path)
        exists = path.is_dir()
        if not exists:
            if is_present(path):
                raise Refused(f"{path} is not a folder, but one belongs there; move it away", folder.part)
            job.changed = True
            job.note(folder.path, "state: absent\n", "state: directory\n")
            if not job.check:
                made.make_folder(path, folder.holds)
        elif not made.is_own(folder.path):
            continue
        elif not job.check:
            made.adopt_folder(folder.path, folder.holds)
        set_attributes(job, folder, exists or not job.check, shown=exists)


def set_attributes(job: Deployment, row: Folder | HostFile, exists: bool, shown: bool = True) -> None:
    """Correct owner, group and mode. exists: check mode may only assume it. shown: whether C(--diff) shows the difference."""
    if job.check and not (exists and user_exists(row.owner) and group_exists(row.group)):
        job.changed = True
        return
    difference: dict[str, object] = {}
    if job.tools.attributes(row.path, row.owner, row.group, row.mode, difference):
        job.changed = True
        if difference and shown:
            job.diffs.append({**difference, "before_header": row.path, "after_header": row.path})


def stage(job: Deployment, files: Iterable[HostFile]) -> None:
    """Write new contents to temporary files next to the old ones. Raises Refused or PermissionError; no old file has changed then."""
    for file in files:
        path = Path(file.path)
        if not path.parent.is_dir():
            raise Refused(f"the folder of {path} does not exist; list it in folders", file.part)
        try:
            job.staged[file.path] = staging.beside(path, content_of(file), int(file.mode, 8), file.owner, file.group)
        except PermissionError:
            raise
        except OSError as error:
            raise Refused(
                f"{path} cannot be written: {error.strerror}. No file was changed. Fix that (df -h {path.parent}, df -i {path.parent}) and run again",
                file.part,
            ) from error


def put_in_place(job: Deployment, files: Sequence[HostFile]) -> list[str]:
    """Rename staged contents to their places, and set the attributes of all files; returns the paths of the contents."""
    new = {file.path for file in files}
    for file in job.state.files:
        path = Path(file.path)
        exists = is_present(path)
        if file.path in new:
            job.touch(path)
            show(job, file)
            if not job.check:
                # Date the file by its rename: a unit that started between staging and rename runs from the old file.
                os.utime(job.staged[file.path])
                stamp_written(job.staged[file.path])
                job.staged.pop(file.path).replace(path)
                exists = True
        set_attributes(job, file, exists)
    return [file.path for file in files]


def show(job: Deployment, file: HostFile) -> None:
    """Record the difference between the content on the disk and the new one for C(--diff)."""
    path, new = Path(file.path), content_of(file)
    if file.secret or file.generate:
        job.note(file.path, "a secret\n" if is_present(path) else "", "a new secret\n")
        return
    old = path.read_bytes() if path.is_file() else b""
    if max(len(old), len(new)) > SHOWN_BYTES:
        job.note(file.path, f"{len(old)} bytes\n", f"{len(new)} other bytes\n")
    else:
        job.note(file.path, old.decode("utf-8", "replace"), new.decode("utf-8", "replace"))
