# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a host equal to a state document.

In this order: read and check everything; record the old and the new rows; accounts; folders; stage all contents; stop units that
leave; put the contents in place; remove files and folders that leave; reload systemd; stop, disable, enable, start and restart units; remove
accounts that leave; record the new rows. Nothing is written before everything was checked, and no file is replaced before all contents are
on the disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import deploy_accounts, deploy_files, deploy_fill, deploy_removal, deploy_units, deployed
from .deployment import Deployment, Refused
from .host_state import HostFile, HostState


def check(state: HostState) -> None:
    """Refuse a document with a file without content."""
    for file in state.files:
        if file.digest is None and not file.generate:
            raise Refused(f"{file.path} has neither content nor source; give one of them", file.part)


def deploy(job: Deployment) -> dict[str, Any]:
    """Make the host equal to the document, or report in check mode what that would change.

    :returns: results of the module, or C(wanted), paths of contents that the host needs, with nothing done yet
    :raises Refused: if the host differs from the assumptions of the document
    """
    job.state, values = deploy_fill.fill(deploy_files.without_missing_devices(job.state))
    if not job.check:
        deploy_files.check_owners(job.state)
        deploy_fill.check(job, values)
    differing = deploy_files.differing(job.state)
    missing = {file.path for file in differing if file.data is None} | set(values.wanted)
    if missing:
        return {"wanted": sorted(missing)}
    leaving = deploy_removal.plan(job)
    if not job.check:
        _prepare(job, differing)
    joined = deploy_accounts.make_accounts(job)
    late = {file.path for file in deploy_fill.fill_late(job)}
    if late:
        differing = deploy_files.differing(job.state)
        deploy_files.validate(job, [file for file in differing if file.path in late])
        leaving = deploy_removal.plan(job)
    deploy_files.make_folders(job)
    stopped, written = _replace(job, differing, leaving)
    deploy_removal.remove_rows(job, leaving)
    for row in job.state.removed:
        deploy_removal.remove(job, Path(row.path), row.part)
    todo = deploy_units.bring(job, written)
    for account in leaving.accounts:
        if account.remove:
            deploy_accounts.remove_account(job, account)
    if not job.check:
        deployed.save(job.after)
    return {
        "joined": joined,
        "written": written,
        "started": todo.start,
        "restarted": todo.restart,
        "reloaded": todo.reload,
        "stopped": [*stopped, *todo.stop],
        "restart_due": todo.due,
        "starting": todo.starting,
        "enabled": todo.enable,
        "disabled": todo.disable,
    }


def _prepare(job: Deployment, differing: list[HostFile]) -> None:
    """Check everything that can be checked before the first write, then record the old and the new rows."""
    deploy_files.validate(job, [file for file in differing if file.digest != deploy_fill.UNKNOWN])
    if differing and job.state.units:
        # A systemd that hangs is found before the first write.
        deploy_units.ask(job, [unit.name for unit in job.state.units])
    deploy_removal.save_both(job)


def _replace(job: Deployment, differing: list[HostFile], leaving: HostState) -> tuple[list[str], list[str]]:
    """Stage all contents, stop units that leave, whose memory the new ones need, then rename the contents to their places.

    :returns: units that were stopped, and paths that were written
    """
    try:
        if not job.check:
            deploy_files.stage(job, differing)
        stopped = deploy_removal.stop_units(job, leaving)
        return stopped, deploy_files.put_in_place(job, differing)
    finally:
        for path in job.staged.values():  # contents that were not put in place
            path.unlink(missing_ok=True)
