# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow a download and print its progress; documented in plugins/modules/model_snapshot.py."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.progress import FETCH
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import bytes_moved, poll_seconds

display = Display()
MODULE = "dgxspark.vllm.model_snapshot"


class ActionModule(ActionBase):
    """Start the download on the host, then look at it until it has ended."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's last answer."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        args = dict(self._task.args)
        token_file = of_host(str(args.get("token_file") or ""), variables)
        if token_file:
            args["token"] = self._read_token(token_file)
        result = self._ask(args, variables)
        host, thing = str(variables.get("inventory_hostname", "")), f"{args.get('repo')}@{args.get('revision', 'main')}"
        what = f"{host}: {thing}"
        again = "would be" if self._task.check_mode else "is"
        for entry in result.get("wrong") or []:
            display.display(f"  {what}: {entry['file']} {entry['why']}; it {again} fetched again")
        began, first = time.monotonic(), None
        while result.get("running"):
            if time.monotonic() - began > int(args.get("timeout", 14400)):
                raise AnsibleActionFail(
                    f"{what} was not fetched within {args.get('timeout', 14400)} s; "
                    "the download goes on, run the play again to wait for it"
                )
            time.sleep(poll_seconds(int(args.get("poll", 15))))
            result = self._ask({**args, "token": "", "step": "look"}, variables)
            if result.get("running"):
                done = int(result.get("bytes") or 0)
                first = done if first is None else first
                bytes_moved(host, FETCH, thing, done, result.get("total_bytes"), time.monotonic() - began, first)
        return result

    def _ask(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Run the module; an answer that is none fails."""
        found: dict[str, Any] = self._execute_module(module_name=MODULE, module_args=args, task_vars=variables)
        if found.get("failed"):
            return dict(foreign_text.received(found))
        return dict(checked_answer(found, answers.MODEL_SNAPSHOT, str(variables.get("inventory_hostname", "")), MODULE))

    def _read_token(self, path: str) -> str:
        """Read the token on the controller; a file that ansible-vault encrypted is decrypted."""
        try:
            real = self._loader.get_real_file(path)
            token = Path(real).read_text(encoding="utf-8").strip()
        except (AnsibleError, OSError) as error:
            raise AnsibleActionFail(f"token_file {path} cannot be read on the controller: {error}") from error
        self._loader.cleanup_tmp_file(real)
        return token
