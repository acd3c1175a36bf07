# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers of modules on hosts, checked by an action plugin before it uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import untrusted


def checked_answer(found: Any, parser: untrusted.Parser, host: str, what: str) -> Any:
    """Return a host's answer as far as a parser of C(answers.py) takes it; fail, naming host and fault, where it does not.

    found: what a module returned. what: of whom the answer is, for the message.
    """
    try:
        return parser(untrusted.received(found), what)
    except untrusted.Untrusted as error:
        raise AnsibleActionFail(
            f"{host} returned an invalid answer, which was discarded: {error}. Is it the expected host, and does it run "
            "this collection's release alone?"
        ) from error


def images_apart(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a host's answers by name, with the images, which M(dgxspark.vllm.spark_info) says as a part of C(host), as one of their own.

    One that was not answered is C({failed, msg}), as M(dgxspark.vllm.ask) has it.
    """
    host = said.get("host") or {}
    if host.get("failed") or "images" not in host:
        return dict(said)
    images = host["images"]
    why = {"failed": True, "msg": str(host.get("msg") or "Docker does not say which images there are")}
    return {**said, "images": why if images is None else {"images": images}}
