# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What images said of launches, as the controller keeps it: in the lock file, and a file per image and launch in C(.spark/image_plans)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import Untrusted, parse_json, printable
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import plan_probe
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import image_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

FOLDER = "image_plans"
NO_ANSWER_SECONDS = 24 * 3600
"""An image that gave no answer at all, in time or memory, is asked again after that."""


class ImagePlans:
    """What was said: in this run, and before."""

    def __init__(self, task_vars: Mapping[str, Any], keep: bool, locked: Mapping[str, Any] | None = None) -> None:
        """Read nothing yet.

        :param task_vars: as an action has them
        :param keep: whether what is heard is written
        :param locked: the lock file, None where there is none
        """
        self.locked: Mapping[str, str] = (locked or {}).get("image_plans") or {}
        folder = controller_paths.fleet_folder(task_vars)
        self.folder = Path(folder, controller_paths.STATE, FOLDER) if folder else None
        self.keep = keep
        self.known: dict[str, dict[str, Any] | None] = {}

    def __call__(self, key: str) -> dict[str, Any] | None:
        """Return C(answer) and C(reason) of a question, None where it was not asked."""
        if key not in self.known:
            self.known[key] = self._read(key)
        return self.known[key]

    def _read(self, key: str) -> dict[str, Any] | None:
        for said in (self._locked(key), self._kept(key)):
            try:
                if said and said["answer"] is None:
                    return {"answer": None, "reason": said["reason"]}
                if said:
                    return {"answer": image_answer.read(said["answer"]), "reason": ""}
            except Untrusted:  # an answer of another release is asked for again
                continue
        return None

    def _locked(self, key: str) -> dict[str, Any] | None:
        try:
            return (
                {"answer": parse_json(self.locked[key], f"the answer {key} of the lock file"), "reason": ""}
                if key in self.locked
                else None
            )
        except ValueError:
            return None

    def _kept(self, key: str) -> dict[str, Any] | None:
        """Return what the file of a question has, None where there is none, or one of an image that is to be asked again."""
        if self.folder is None:
            return None
        path = self.folder / key
        try:
            content = parse_json(path.read_text(encoding="utf-8"), str(path))
            if not isinstance(content, dict) or content.get("schema") != plan_probe.SCHEMA:
                return None
            fresh = 0 <= time.time() - path.stat().st_mtime < NO_ANSWER_SECONDS
        except (OSError, ValueError):
            return None
        said = {"answer": content.get("answer"), "reason": str(content.get("reason") or "")}
        return said if fresh or said["answer"] is not None else None

    def text(self, key: str) -> str | None:
        """Return what the lock file keeps of an answer, None where there is no answer."""
        said = self._kept(key) or self._locked(key)
        if not said or said["answer"] is None or not (self(key) or {}).get("answer"):
            return None
        return json.dumps(image_answer.brief(said["answer"]), sort_keys=True, separators=(",", ":"))

    def hear(self, host: str, result: Any) -> None:
        """Take over what a host registered of the module C(image_plan), in a loop over its questions.

        :param host: its name
        :param result: what was registered
        """
        for each in plain((result or {}).get("results")) or []:
            question = each.get("item")
            if each.get("skipped") or not isinstance(question, dict) or not question.get("key"):
                continue
            if each.get("failed") or each.get("unreachable"):
                self.known[question["key"]] = {
                    "answer": None,
                    "reason": printable(str(each.get("msg") or "the module failed")),
                }
                continue
            said = checked_answer(each, answers.IMAGE_PLAN, host, "image_plan")
            same = said["image_id"] == question["image_id"] or not question["image_id"]
            if not same and not set(said.get("repo_digests") or ()) & set(question["digests"]):
                reason = f"{host} asked image {said['image_id']}, not {question['image_id']}"
                self.known[question["key"]] = {"answer": None, "reason": reason}
                continue
            self._take(question, said)

    def _take(self, question: Mapping[str, Any], said: Mapping[str, Any]) -> None:
        try:
            answer = None if said["answer"] is None else image_answer.read(said["answer"])
        except Untrusted as error:
            answer, said = None, {**said, "answer": None, "reason": f"its answer cannot be right: {error}"}
        self.known[question["key"]] = {"answer": answer, "reason": said["reason"]}
        # By a name alone nothing is kept: it may stand for another image tomorrow.
        if self.keep and self.folder is not None and question["image_id"]:
            content = {"schema": plan_probe.SCHEMA, "id": question["image_id"], "answer": said["answer"]}
            path = self.folder / question["key"]
            write(path, json.dumps({**content, "reason": said["reason"]}, sort_keys=True) + "\n")
