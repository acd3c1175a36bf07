# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow a download and print its progress; documented in plugins/modules/model_snapshot.py."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.progress import FETCH
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_steps import read_secret
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import bytes_moved, poll_seconds

display = Display()


class ActionModule(HostAction):
    """Start the download on the host, then look at it until it has ended."""

    MODULE = "dgxspark.vllm.model_snapshot"

    def act(self) -> dict[str, Any]:
        """Return the last answer of the module."""
        args, host = self.args, self.host
        timeout, poll = int(args.get("timeout", 14400)), int(args.get("poll", 15))
        token_file = of_host(str(args.get("token_file") or ""), self.variables)
        if token_file:
            args["token"] = read_secret(self._loader, token_file, "token_file", "token")
        answer = self.ask(args, answers.MODEL_SNAPSHOT)
        model = f"{args.get('repo')}@{args.get('revision', 'main')}"
        verb = "would be" if self._task.check_mode else "is"
        for entry in answer.get("wrong") or []:
            display.display(f"  {host}: {model}: {entry['file']} {entry['why']}; it {verb} fetched again")
        began, before = time.monotonic(), None
        while answer.get("running"):
            if time.monotonic() - began > timeout:
                raise AnsibleActionFail(
                    f"{host}: {model} was not fetched within {timeout} s; "
                    "the download goes on, run the play again to wait for it"
                )
            time.sleep(poll_seconds(poll))
            answer = self.ask({**args, "token": "", "step": "look"}, answers.MODEL_SNAPSHOT)
            if answer.get("running"):
                done = int(answer.get("bytes") or 0)
                before = done if before is None else before
                bytes_moved(host, FETCH, model, done, answer.get("total_bytes"), time.monotonic() - began, before)
        return answer
