# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Explain logs and print the explanations; documented in plugins/modules/explain.py."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.reader import from_dict
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import explain
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import Action
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.events import EventLog

display = Display()
PART_BYTES = 2**20
"""Bytes that are read of each end of a long file: a failed start stands at the end."""


class ActionModule(Action):
    """Explain a file or a text on the controller, or have the module explain the logs of services on the host."""

    VALIDATED = True
    RULES: Mapping[str, Any] = {
        rule: [["src", "content", "services"]] for rule in ("mutually_exclusive", "required_one_of")
    }

    def act(self) -> dict[str, Any]:
        """Return the explanations; print them as labelled lines."""
        args, host = self.args, ""
        if args["services"] is None:
            text = read_log(args["src"]) if args["src"] else args["content"]
            explanations = [{"name": args["src"] or "", **explain.explain(text.splitlines()).to_dict()}]
        else:
            answer = self._execute_module(task_vars=self.variables)
            if answer.get("failed"):
                return dict(answer)
            try:
                explanations = foreign_text.received(answer.get("explanations") or [])
            except foreign_text.Untrusted as error:
                raise AnsibleActionFail(f"explain: the answer of the host is invalid: {error}") from error
            host = self.host
        for explanation in explanations:
            EventLog.write("explanation", host=host, **explanation)
        if args["show"]:
            display.display("\n\n".join(page(explanation, host) for explanation in explanations))
        return {"changed": False, "explanations": explanations}


def page(explanation: dict[str, str], host: str) -> str:
    """Return the printed text of an explanation: the name of its log and the labelled lines."""
    name = foreign_text.printable("/".join(filter(None, (host, explanation["name"]))))
    lines = from_dict(explain.Explanation, explanation).lines()
    return "\n".join([*([f"Log: {name}"] if name else []), *map(foreign_text.printable, lines)])


def read_log(src: str) -> str:
    """Return the text of a log file, its begin and end if it is long. Raises AnsibleActionFail if it cannot be read."""
    path = Path(src).expanduser()
    if not path.is_file():
        raise AnsibleActionFail(f"explain: explain_log names '{src}', which is no file on the controller")
    try:
        with path.open("rb") as stream:
            raw = stream.read(2 * PART_BYTES)
            size = path.stat().st_size
            if size > 2 * PART_BYTES:
                stream.seek(size - PART_BYTES)
                raw = raw[:PART_BYTES] + b"\n" + stream.read(PART_BYTES)
    except OSError as error:
        raise AnsibleActionFail(f"explain: '{src}' cannot be read: {error.strerror}") from error
    # Redirections of PowerShell write UTF-16.
    is_utf16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return raw.decode("utf-16" if is_utf16 else "utf-8-sig", "replace")
