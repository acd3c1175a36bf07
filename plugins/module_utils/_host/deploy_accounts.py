# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts of a state document: users that may use Docker."""

from __future__ import annotations

import grp
import pwd

from .deployment import Deployment, Refused, group_exists, user_exists
from .host_state import Account

DOCKER = "docker"
USERADD, USERMOD = "/usr/sbin/useradd", "/usr/sbin/usermod"


def make_accounts(job: Deployment) -> list[str]:
    """Make missing accounts, and add accounts to the group docker; returns the people who were added to it."""
    joined = []
    for account in job.state.accounts:
        argv = command_for(account)
        if not argv:
            continue
        job.changed = True
        job.note(f"account {account.name}", "", f"{' '.join(argv)}\n")
        if account.shell is None:
            joined.append(account.name)
        if job.check:
            continue
        rc, out, err = job.run(argv)
        if rc:
            raise Refused(f"{' '.join(argv)} failed: {(err or out).strip()}", account.part)
    return joined


def command_for(account: Account) -> list[str]:
    """Return the command that creates or corrects an account, an empty list for a correct one."""
    settings = [
        *(["--home-dir", account.home] if account.home else []),
        *(["--shell", account.shell] if account.shell else []),
    ]
    if not user_exists(account.name):
        kind = ["--create-home"] if account.shell is None else ["--system", "--no-create-home"]
        # useradd refuses a name that a group has already, unless it is told to use that group.
        group = ["--gid", account.name] if group_exists(account.name) else []
        return [USERADD, *kind, *settings, *group, "--groups", DOCKER, "--", account.name]
    user = pwd.getpwnam(account.name)
    changes = []
    if account.home and user.pw_dir != account.home:
        changes += ["--home", account.home]
    if account.shell and user.pw_shell != account.shell:
        changes += ["--shell", account.shell]
    if not is_member(account.name):
        changes += ["--append", "--groups", DOCKER]
    return [USERMOD, *changes, "--", account.name] if changes else []


def is_member(name: str) -> bool:
    """Tell whether an account belongs to the group docker."""
    try:
        docker = grp.getgrnam(DOCKER)
    except KeyError:
        return False
    return name in docker.gr_mem or pwd.getpwnam(name).pw_gid == docker.gr_gid
