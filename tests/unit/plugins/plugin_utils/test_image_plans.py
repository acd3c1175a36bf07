"""What images said of launches, as the controller hears and keeps it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.image_answer import Answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import image_plans

RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "image_plans.json").read_text(encoding="utf-8"))
SAID = RECORDED["dense"]["answer"]
ID, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
DIGEST = "an/image@sha256:" + "c" * 64
QUESTION = {"key": "name.json", "image_id": ID, "digests": [DIGEST], "service": "new"}


def plans(folder: Path, keep: bool = True) -> image_plans.ImagePlans:
    variables = {"groups": {"sparks": ["a"]}, "hostvars": {"a": {"inventory_dir": str(folder)}}}
    return image_plans.ImagePlans(variables, keep)


def heard(**change: Any) -> dict[str, Any]:
    result = {"source": "image", "image_id": ID, "reason": "", "answer": SAID, "item": QUESTION}
    return {"results": [{**result, **change}]}


def kept_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(".spark/image_plans/*"))


def test_what_was_said_is_known_and_kept(tmp_path: Path) -> None:
    first = plans(tmp_path)
    assert first("name.json") is None
    first = plans(tmp_path)
    first.hear("a", heard())
    answer = first("name.json")
    assert answer is not None and isinstance(answer["answer"], Answer) and answer["reason"] == ""
    assert [path.name for path in kept_files(tmp_path)] == ["name.json"]
    assert plans(tmp_path)("name.json") == answer
    assert plans(tmp_path)("other.json") is None


def test_what_the_lock_file_has_is_known_without_a_file(tmp_path: Path) -> None:
    first = plans(tmp_path)
    first.hear("a", heard())
    text = first.text("name.json")
    assert text is not None and json.loads(text)["sizes"] == SAID["sizes"] and first.text("other.json") is None
    (path,) = kept_files(tmp_path)
    path.unlink()
    locked = image_plans.ImagePlans({}, True, {"image_plans": {"name.json": text, "broken.json": "{"}})
    answer = locked("name.json")
    assert answer is not None and isinstance(answer["answer"], Answer)
    assert answer["answer"].cuts == first("name.json")["answer"].cuts  # type: ignore[index]
    assert locked.text("name.json") == text  # locked again without changes
    assert locked("broken.json") is None and locked.text("broken.json") is None
    # An answer of another release is asked for again; an answer in the file counts.
    path.write_text(json.dumps({"schema": 1, "answer": SAID, "reason": ""}))
    variables = {"groups": {"sparks": ["a"]}, "hostvars": {"a": {"inventory_dir": str(tmp_path)}}}
    renewed = image_plans.ImagePlans(variables, True, {"image_plans": {"name.json": "{}"}})
    assert renewed("name.json") == first("name.json")


def test_a_check_run_and_an_image_known_by_name_alone_keep_nothing(tmp_path: Path) -> None:
    for question, keep in ((QUESTION, False), ({**QUESTION, "image_id": "", "digests": []}, True)):
        image_plans = plans(tmp_path, keep)
        image_plans.hear("a", heard(item=question))
        assert image_plans("name.json") is not None and kept_files(tmp_path) == []


def test_an_answer_about_another_image_is_not_used(tmp_path: Path) -> None:
    image_plans = plans(tmp_path)
    image_plans.hear("a", heard(image_id=OTHER))
    answer = image_plans("name.json")
    assert answer is not None and answer["answer"] is None and OTHER in answer["reason"] and kept_files(tmp_path) == []
    # An image of another architecture has the digest of the same list.
    image_plans.hear("a", heard(image_id=OTHER, repo_digests=[DIGEST]))
    answer = image_plans("name.json")
    assert answer is not None and answer["answer"] is not None


def test_an_image_without_an_answer_is_asked_again_after_a_day(tmp_path: Path) -> None:
    fresh_plans = plans(tmp_path)
    fresh_plans.hear("a", heard(source="none", answer=None, reason="no answer within 300 seconds"))
    second = plans(tmp_path)("name.json")
    assert second == {"answer": None, "reason": "no answer within 300 seconds"}
    (path,) = kept_files(tmp_path)
    old = path.stat().st_mtime - image_plans.NO_ANSWER_SECONDS - 1
    os.utime(path, (old, old))
    assert plans(tmp_path)("name.json") is None


@pytest.mark.parametrize("step", [60.0, 3600.0])
def test_a_date_in_the_future_keeps_no_image_from_being_asked(tmp_path: Path, step: float) -> None:
    """The controller's clock was ahead when it was written, and was set right since."""
    plans(tmp_path).hear("a", heard(source="none", answer=None, reason="no answer within 300 seconds"))
    (path,) = kept_files(tmp_path)
    later = path.stat().st_mtime + step
    os.utime(path, (later, later))
    assert plans(tmp_path)("name.json") is None


def test_a_module_that_failed_is_a_reason_and_is_not_kept(tmp_path: Path) -> None:
    image_plans = plans(tmp_path)
    image_plans.hear("a", {"results": [{"failed": True, "msg": "there is no docker", "item": QUESTION}]})
    assert image_plans("name.json") == {"answer": None, "reason": "there is no docker"} and kept_files(tmp_path) == []
    image_plans = plans(tmp_path)
    for nothing in (None, {}, {"results": []}, {"results": [{"skipped": True, "item": QUESTION}]}, {"skipped": True}):
        image_plans.hear("a", nothing)
    assert image_plans("name.json") is None


def test_what_cannot_be_an_answer_stops_the_run_and_broken_files_are_asked_again(tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match="image_plan"):
        plans(tmp_path).hear("a", heard(answer={"packages": 5}))
    image_plans = plans(tmp_path)
    image_plans.hear("a", heard(answer={**SAID, "ranks": []}))
    answer = image_plans("name.json")
    assert answer is not None and "cannot be right" in answer["reason"]
    (path,) = kept_files(tmp_path)
    for text in ("{", "[]", json.dumps({"schema": 0}), json.dumps({"schema": 1, "answer": {"ranks": 1}})):
        path.write_text(text)
        assert plans(tmp_path)("name.json") is None
