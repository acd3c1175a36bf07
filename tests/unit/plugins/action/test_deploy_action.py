# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The document that the action plugin sends, and the parts that a task deploys entirely."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.action import deploy

ROW = {"path": "/a", "content": "1"}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"part": "a"}, ["a"]),
        ({"files": [ROW]}, []),
        ({"part": "a", "files": [{**ROW, "part": "b"}]}, ["a", "b"]),
        ({"documents": [{"part": "a"}, {"parts": ["b", "c"], "files": [{**ROW, "part": "b"}]}]}, ["a", "b", "c"]),
        ({"part": "a", "parts": [], "files": [ROW]}, []),
        ({"part": "a", "parts": ["", "b"], "files": [ROW]}, ["", "b"]),
    ],
)
def test_a_task_deploys_the_parts_that_it_names(arguments: dict[str, Any], parts: list[str]) -> None:
    assert deploy.parts_of(arguments, deploy.document_of(arguments)) == parts


def test_a_file_of_two_parts_is_a_row_of_both_and_its_content_is_sent_once() -> None:
    documents = [{"part": part, "files": [ROW]} for part in ("a", "b")]
    state = deploy.document_of({"documents": documents})
    files = deploy._with_contents(state.files, {"/a": b"1"}, {"/a"})
    assert [(file.part, file.data) for file in files] == [("a", "MQ=="), ("b", None)]
