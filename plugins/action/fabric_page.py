# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the page of the networks of clusters; documented in plugins/modules/fabric_page.py."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import fabric_figures, fabric_tables
from ansible_collections.dgxspark.vllm.plugins.modules.fabric_page import DOCUMENTATION
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.arguments import documented
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import read_kept, write_report
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.lock_file import dest_path
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain


class ActionModule(ActionBase):
    """Add to what is kept of all clusters, and write it as a page."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return where the page is."""
        result = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(documented(DOCUMENTATION))
        args = plain(args)
        messages: list[str] = []
        dest = dest_path(args["dest"], task_vars or {}, messages)
        if messages:
            raise AnsibleActionFail(messages[0])
        page = Path(dest).with_name("fabric.html")
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        try:
            with alone(page.parent):
                kept = page.with_name(fabric_figures.FILE)
                state = added(fabric_figures.read(read_kept(kept)), args, at)
                write_report(kept, json.dumps(state, indent=1, sort_keys=True) + "\n")
                write_report(page, fabric_tables.page(state))
        except OSError as error:
            raise AnsibleActionFail(f"{page} cannot be written on the controller: {error}") from error
        result.update(changed=False, page=str(page))
        return result


def added(state: dict[str, Any], args: dict[str, Any], at: str) -> dict[str, Any]:
    """Return a state with what the task was given. at: now."""
    name, least = args["name"], args["min_gbps"]
    if args["planned"]:
        state = fabric_figures.with_plan(state, name, args["planned"], at)
    if args["rails"]:
        state = fabric_figures.with_rails(state, name, args["rails"], least, at)
    if args["test"] and args["results"]:
        state = fabric_figures.with_test(state, name, args["test"], args["results"], least, at)
    return state


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold back others who write there meanwhile: hosts of several clusters are workers side by side. folder: it is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
