# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for a model server, and tell the callback how far its start is; documented in plugins/modules/endpoint_ready.py."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.progress import LOAD
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction, checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import HEARD_EVERY, Channel

LONGEST_LOOK = 60.0  # s; a start of minutes is asked less and less often


class ActionModule(HostAction):
    """Run the module once. If a callback shows progress, run it again and again until the server answers."""

    MODULE = "dgxspark.vllm.endpoint_ready"

    def act(self) -> dict[str, Any]:
        """Return the module's last answer."""
        args, host = self.args, self.host
        # The name of the service, as the event "proof" has it.
        name = str(args.get("unit") or "").removeprefix("spark-").removesuffix(".service") or str(
            args.get("model") or ""
        )
        began, look = time.monotonic(), HEARD_EVERY
        listened = Channel.send(host, LOAD, name)
        while listened:
            waited = time.monotonic() - began
            if waited + look >= float(args.get("timeout") or 600):
                args["waited_seconds"] = waited
                break
            result = self.execute({**args, "look_seconds": look, "waited_seconds": waited})
            if not result.get("waiting"):
                return result
            progress = checked_answer(result, answers.ENDPOINT_STARTS, host, self.MODULE)
            args["restarts_before"] = progress["restarts_before"]
            stage = f"{name} ({progress['log_stage']})" if progress["log_stage"] else name
            Channel.send(host, LOAD, stage, progress["log_percent"], None, "%")
            look = min(look * 1.5, LONGEST_LOOK)
        return self.execute(args)
