# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The name of a run, with which hosts distinguish runs and report the running one; for action plugins."""

from __future__ import annotations

import getpass
import os
import socket


def run_name(task_id: str) -> str:
    """Return the name of the run that a task belongs to: user, machine, and a unique mark.

    task_id: Ansible's id of the task, C(NODE-NODE-RUN-RUN-NUMBER), of which all but the number is the same for a whole run.
    """
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # an account without a name, as in some containers
        user = str(os.getuid())
    mark = "".join(task_id.split("-")[2:4]) or task_id
    return f"{user}@{socket.gethostname()}, run {mark}"
