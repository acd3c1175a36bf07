# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes, corrects and removes the accounts of a state document."""

from __future__ import annotations

import grp
import pwd

from .deployment import Deployment, Refused, group_exists, user_exists
from .host_state import Account

USERADD, USERMOD, USERDEL = "/usr/sbin/useradd", "/usr/sbin/usermod", "/usr/sbin/userdel"
FIRST_PERSON = 1000
"""Lowest number of an account that is a person's (UID_MIN of login.defs)."""


def make_accounts(job: Deployment) -> list[str]:
    """Make missing accounts, and add accounts to their groups; returns the people who were added to one."""
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
        groups = ["--groups", ",".join(account.groups)] if account.groups else []
        return [USERADD, *kind, *settings, *group, *groups, "--", account.name]
    user = pwd.getpwnam(account.name)
    changes = []
    if account.home and user.pw_dir != account.home:
        changes += ["--home", account.home]
    if account.shell and user.pw_shell != account.shell:
        changes += ["--shell", account.shell]
    missing = [group for group in account.groups if not is_member(account.name, group)]
    if missing:
        changes += ["--append", "--groups", ",".join(missing)]
    return [USERMOD, *changes, "--", account.name] if changes else []


def is_member(name: str, group: str) -> bool:
    """Tell whether an account belongs to a group."""
    try:
        entry = grp.getgrnam(group)
    except KeyError:
        return False
    return name in entry.gr_mem or pwd.getpwnam(name).pw_gid == entry.gr_gid


def remove_account(job: Deployment, account: Account) -> None:
    """Remove a system account that is there. Raises Refused if that fails, such as for an account with processes."""
    if not user_exists(account.name) or pwd.getpwnam(account.name).pw_uid >= FIRST_PERSON:
        return
    job.changed = True
    job.removed.append(f"account {account.name}")
    job.note(f"account {account.name}", "state: present\n", "state: absent\n")
    if job.check:
        return
    rc, out, err = job.run([USERDEL, "--", account.name])
    if rc:
        raise Refused(f"the account {account.name} cannot be removed: {(err or out).strip()}", account.part)
