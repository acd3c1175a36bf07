# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a host equal to a state document.

In this order: read and check everything; accounts; folders; stage all contents; remove instances and units; put the contents in place; remove
files; reload systemd; stop, disable, enable, start and restart units. Nothing is written before everything was checked, and no file is
replaced before all contents are on the disk.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from . import deploy_accounts, deploy_files, deploy_removal, deploy_units
from .deployment import Deployment, Refused
from .host_state import HostFile, HostState, Unit


def check(state: HostState) -> None:
    """Refuse a document with a file without content, or with a marker without a name."""
    for file in state.files:
        if file.digest is None:
            raise Refused(f"{file.path} has neither content nor source; give one of them", file.part)
    for rule in state.instances:
        if (rule.marker.count("*"), Path(rule.marker).name.count("*")) != (1, 1):
            text = f"instances.marker is {rule.marker}; its last part needs exactly one *, for the name"
            raise Refused(text, rule.part)


def deploy(job: Deployment) -> dict[str, Any]:
    """Make the host equal to the document, or say in check mode what that would change.

    :param job: the deployment
    :returns: results of the module, or C(wanted), paths of contents that the host needs, with nothing done yet
    :raises Refused: where something is in the way
    """
    unwanted = [unit for unit in job.state.units if unit.state == "absent"]
    units = tuple(unit for unit in job.state.units if unit.state != "absent")
    state = deploy_files.without_missing_devices(replace(job.state, units=units))
    job.state = deploy_files.with_port_range(state)
    if not job.check:
        deploy_files.check_owners(job.state)
    differing = deploy_files.differing(job.state)
    missing = [file.path for file in differing if file.data is None]
    if missing:
        return {"wanted": missing}
    if not job.check:
        deploy_files.validate(job, differing)
        if differing and job.state.units:
            # A systemd that hangs is found out before the first write.
            deploy_units.ask(job, [unit.name for unit in job.state.units])
    joined = deploy_accounts.make_accounts(job)
    deploy_files.make_folders(job)
    gone, stopped, written = _replace(job, differing, unwanted)
    deploy_removal.purge(job)
    for row in job.state.removed:
        deploy_removal.remove(job, Path(row.path), row.part)
    todo = deploy_units.bring(job, written)
    return {
        "joined": joined,
        "written": written,
        "instances_removed": gone,
        "started": todo.start,
        "restarted": todo.restart,
        "reloaded": todo.reload,
        "stopped": [*stopped, *todo.stop],
        "restart_due": todo.due,
        "starting": todo.starting,
    }


def _replace(
    job: Deployment, differing: list[HostFile], unwanted: list[Unit]
) -> tuple[list[str], list[str], list[str]]:
    """Stage all contents, remove instances and units, then rename the contents to their places.

    :returns: names of removed instances, units that were stopped, and paths that were written
    """
    gone: list[str] = []
    stopped: list[str] = []
    try:
        if not job.check:
            deploy_files.stage(job, differing)
        for rule in job.state.instances:
            names, units = deploy_removal.remove_instances(job, rule)
            gone += names
            stopped += units
        stopped += deploy_removal.remove_units(job, [unit.name for unit in unwanted])
        return gone, stopped, deploy_files.put_in_place(job, differing)
    finally:
        deploy_files.unstage(job)
