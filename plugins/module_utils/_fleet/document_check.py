# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the differences between a host and a state document by running C(deploy) in check mode."""

from __future__ import annotations

import grp
import hashlib
import pwd
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .._host import deploy, deploy_files, deploy_fill, deploy_units
from .._host.deployed import Deployed
from .._host.deployment import Deployment, Tools, is_present
from .._host.deployment import Refused as NotDeployable
from .._host.host_state import HostState
from .._host.unit_steps import Seen
from .._runtime.command import NoAnswer, Run

VERBS = (
    ("stopped", "stop"),
    ("disabled", "disable"),
    ("enabled", "enable"),
    ("started", "start"),
    ("restarted", "restart"),
    ("restart_due", "restart"),
    ("reloaded", "reload"),
)
"""Results of C(deploy) that list units, with the step of each."""
WORDS = {
    "missing": "writes",
    "changed": "writes",
    "attributes": "sets owner and mode of",
    "removed": "removes",
    "accounts": "corrects",
}
ACCOUNT = "account "
NO_CONTENT = ""
"""Replaces the content of a changed file, which check mode never writes."""


@dataclass
class Differences:
    """The changes that deploying a document would make.

    changed, missing, attributes, removed: paths of files and folders. accounts: names. units: steps as C((verb, unit)), in order.
    starting: units that are starting and need no step. obstacles: why the document cannot be compared or deployed.
    """

    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    accounts: list[str] = field(default_factory=list)
    units: list[tuple[str, str]] = field(default_factory=list)
    starting: list[str] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)

    def has_content(self) -> bool:
        """Tell whether files, folders or accounts differ."""
        return bool(self.changed or self.missing or self.attributes or self.removed or self.accounts or self.obstacles)

    def any(self) -> bool:
        """Tell whether anything would change."""
        return bool(self.has_content() or self.units)

    def lines(self) -> list[str]:
        """Return the changes for people, without contents: some files are secret."""
        paths: dict[str, list[str]] = {}
        for name, word in WORDS.items():
            paths.setdefault(word, []).extend(getattr(self, name))
        steps: dict[str, list[str]] = {}
        for verb, unit in self.units:
            steps.setdefault(f"{verb}s", []).append(unit)
        texts = [f"{word} {', '.join(items)}" for word, items in {**paths, **steps}.items() if items]
        return [*self.obstacles, *texts, *(f"{unit} is activating" for unit in self.starting)]


def check(
    state: HostState, before: Deployed, run: Run, parts: Collection[str] | None = None
) -> tuple[Differences, dict[str, Seen]]:
    """Compare a host with a document.

    :param state: the document, with digests of its files. Secret files without a digest may have any content
    :returns: the differences, and the state of each unit of the document, by name
    """
    differences = Differences()
    units: dict[str, Seen] = {}

    def set_attributes(path: str, owner: str, group: str, mode: str, _difference: dict[str, Any]) -> bool:
        status = Path(path).stat()
        # Owners are names or numbers.
        user = int(owner) if owner.isdigit() else pwd.getpwnam(owner).pw_uid
        members = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
        is_other = (status.st_uid, status.st_gid, status.st_mode & 0o7777) != (user, members, int(mode, 8))
        if is_other:
            differences.attributes.append(path)
        return is_other

    tools = Tools(run, set_attributes, lambda _text: None, True, tempfile.gettempdir())
    try:
        chosen = state.parts() | before.state.parts() if parts is None else parts
        job = Deployment(_comparable(state), tools, chosen, before)
        result = deploy.deploy(job)
        units = deploy_units.ask(job, [unit.name for unit in state.units]) if state.units else {}
    except (NotDeployable, NoAnswer) as reason:
        differences.obstacles.append(str(reason))
    else:
        _add_results(differences, job, result)
    return differences, units


def _comparable(state: HostState) -> HostState:
    """Return a document with the values of the host filled in, and without contents; secret files without a digest count as equal."""
    files = []
    for file in state.files:
        if file.digest is None and not file.generate:
            path = Path(file.path)
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            file = replace(file, digest=hashlib.sha256(content).hexdigest())
        files.append(file)
    filled, _values = deploy_fill.fill(deploy_files.without_missing_devices(replace(state, files=tuple(files))))
    differing = {file.path for file in deploy_files.differing(filled)}
    comparable = (
        replace(file, data=NO_CONTENT) if file.path in differing and file.data is None else file
        for file in filled.files
    )
    return replace(filled, files=tuple(comparable))


def _add_results(differences: Differences, job: Deployment, result: dict[str, Any]) -> None:
    """Add the changes that a deployment in check mode would make."""
    for diff in job.diffs:
        name, before = str(diff.get("before_header")), diff.get("before")
        if before == "state: absent\n":
            differences.missing.append(name)
        elif name.startswith(ACCOUNT):
            differences.accounts.append(name)
    for path in result["written"]:
        (differences.changed if is_present(Path(path)) else differences.missing).append(path)
    differences.removed += job.removed
    differences.starting += result["starting"]
    differences.units += [(verb, unit) for name, verb in VERBS for unit in result[name]]
    # The owner of a row has no account on the host yet.
    if job.changed and not differences.any():
        differences.obstacles.append("owners of files are no accounts of this host yet")
