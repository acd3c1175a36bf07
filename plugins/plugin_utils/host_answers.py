# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers of modules on hosts, checked by an action plugin before it uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text, reader


def checked_answer(answer: Any, form: Any, host: str, name: str) -> Any:
    """Return a host's answer, or fail with the host and all problems of the answer.

    form: of C(answers.py); see C(reader.py). name: of the module, for the message.
    """
    try:
        return reader.read(form, foreign_text.received(answer), name)
    except foreign_text.Untrusted as error:
        raise AnsibleActionFail(
            f"{host} returned an invalid answer, which was discarded: {error}. Is it the expected host, and does it run "
            "this collection's release alone?"
        ) from error


def section_of(answers: Mapping[str, Any], name: str, key: str) -> Any:
    """Return a part of an answer, empty without one."""
    return (answers.get(name) or {}).get(key) or {}


def sections_apart(answers: Mapping[str, Any], name: str, *sections: str) -> dict[str, Any]:
    """Return a host's answers by name, with sections of one M(dgxspark.vllm.spark_info) as separate answers, C({section: ...}).

    A section without an answer is C({failed, msg}), like a failed answer of M(dgxspark.vllm.ask). name: of the answer with the sections.
    """
    answer = answers.get(name) or {}
    if answer.get("failed"):
        return dict(answers)
    unknown = answer.get("unknown") or {}
    apart: dict[str, Any] = {}
    for section in (section for section in sections if section in answer):
        value = answer[section]
        why = str(unknown.get(section) or f"{section} are not known")
        apart[section] = {"failed": True, "msg": why} if value is None else {section: value}
    return {**answers, **apart}
