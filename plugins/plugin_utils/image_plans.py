# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The answers of images about launches, on the controller: in the lock file, and a file per image and launch in C(.spark/image_plans)."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import Untrusted, parse_json, printable
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import plan_probe
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import image_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import read_stored, write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

FOLDER = "image_plans"
NO_ANSWER_SECONDS = 24 * 3600
"""An image that ran out of time or memory is asked again after that."""


class ImagePlans:
    """The answers of this run and of earlier ones."""

    def __init__(self, task_vars: Mapping[str, Any], keep: bool, locked: Mapping[str, Any] | None = None) -> None:
        """Read nothing yet."""
        self.locked: Mapping[str, str] = (locked or {}).get("image_plans") or {}
        self.folder = controller_paths.state_folder(task_vars, FOLDER)
        self.keep = keep
        self.answers: dict[str, dict[str, Any] | None] = {}

    def __call__(self, key: str) -> dict[str, Any] | None:
        """Return C(answer) and C(reason) of a question, None for an unknown one."""
        if key not in self.answers:
            self.answers[key] = self._read(key)
        return self.answers[key]

    def _read(self, key: str) -> dict[str, Any] | None:
        for entry in (self._locked(key), self._read_file(key)):
            # The image is asked again if another release wrote the answer.
            with contextlib.suppress(Untrusted):
                if entry:
                    return (
                        entry
                        if entry["answer"] is None
                        else {"answer": image_answer.read(entry["answer"]), "reason": ""}
                    )
        return None

    def _locked(self, key: str) -> dict[str, Any] | None:
        with contextlib.suppress(KeyError, ValueError):
            return {"answer": parse_json(self.locked[key], f"the answer {key} of the lock file"), "reason": ""}
        return None

    def _read_file(self, key: str) -> dict[str, Any] | None:
        """Return the content of the file of a question, None without a file or with an outdated failure."""
        path = self.folder / key if self.folder else None
        content = read_stored(path, plan_probe.SCHEMA)
        if path is None or not content:
            return None
        is_fresh = 0 <= time.time() - path.stat().st_mtime < NO_ANSWER_SECONDS
        entry = {"answer": content.get("answer"), "reason": str(content.get("reason") or "")}
        return entry if is_fresh or entry["answer"] is not None else None

    def text(self, key: str) -> str | None:
        """Return the text of an answer for the lock file, None without an answer."""
        entry = self._read_file(key) or self._locked(key)
        if not entry or entry["answer"] is None or not (self(key) or {}).get("answer"):
            return None
        return json.dumps(image_answer.brief(entry["answer"]), sort_keys=True, separators=(",", ":"))

    def hear(self, host: str, registered: Any) -> None:
        """Add the answers of a host. registered: results of the module C(image_plan) in a loop over the questions."""
        for result in plain((registered or {}).get("results")) or []:
            question = result.get("item")
            if result.get("skipped") or not isinstance(question, dict) or not question.get("key"):
                continue
            if result.get("failed") or result.get("unreachable"):
                self._refuse(question, printable(str(result.get("msg") or "the module failed")))
                continue
            answer = checked_answer(result, answers.IMAGE_PLAN, host, "image_plan")
            is_same = answer["image_id"] == question["image_id"] or not question["image_id"]
            if is_same or set(answer.get("repo_digests") or ()) & set(question["digests"]):
                self._add(question, answer)
            else:
                self._refuse(question, f"{host} asked image {answer['image_id']}, not {question['image_id']}")

    def _refuse(self, question: Mapping[str, Any], reason: str) -> None:
        self.answers[question["key"]] = {"answer": None, "reason": reason}

    def _add(self, question: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        raw, reason = result["answer"], result["reason"]
        try:
            answer = None if raw is None else image_answer.read(raw)
        except Untrusted as error:
            answer, raw, reason = None, None, f"its answer cannot be right: {error}"
        self.answers[question["key"]] = {"answer": answer, "reason": reason}
        # Answers of an image without an id are not kept: its name may move.
        if self.keep and self.folder is not None and question["image_id"]:
            content = {"schema": plan_probe.SCHEMA, "id": question["image_id"], "answer": raw, "reason": reason}
            write(self.folder / question["key"], json.dumps(content, sort_keys=True) + "\n")
