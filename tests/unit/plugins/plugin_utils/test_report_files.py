# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports on the controller replace earlier reports, and no file of somebody else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playbook_runs import ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.action.plan import check_dest
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import page_parts
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import files

REPORT = json.dumps({"schema": 1, "hosts": {}, "counts": {}, "healthy": True})


@pytest.mark.parametrize("text", ["", REPORT, json.dumps({"schema": 0, "hosts": 1, "counts": {}, "new": 1})])
def test_an_earlier_report_is_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    files.write_report(tmp_path / "x.json", REPORT)
    assert (tmp_path / "x.json").read_text() == REPORT
    page = page_parts.document("Title", [])
    (tmp_path / "x.html").write_text(page.replace("Title", "Earlier") if text else "")
    files.write_report(tmp_path / "x.html", page)
    assert (tmp_path / "x.html").read_text() == page
    files.write_report(tmp_path / "new.html", page)


@pytest.mark.parametrize(
    "text",
    [
        "my notes\n",
        "[1]",
        '{"schema": 1, "notes": []}',
        '{"clusters": [], "users": []}',
        "true",
        "\udcff",
        "[" * 100_000,
    ],
)
@pytest.mark.parametrize("name", ["x.json", "x.html"])
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, name: str, text: str) -> None:
    data = text.encode(errors="surrogateescape")
    (tmp_path / name).write_bytes(data)
    report = page_parts.document("Title", []) if name.endswith(".html") else REPORT
    with pytest.raises(OSError, match="is no report of this collection, so it is not replaced"):
        files.write_report(tmp_path / name, report)
    assert (tmp_path / name).read_bytes() == data and len(list(tmp_path.iterdir())) == 1


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(OSError, match="is no report"):
        files.write_report(tmp_path / "x.json", REPORT)


@pytest.mark.parametrize("existing", ["notes.json", "notes.html"])
def test_a_plan_is_not_written_over_notes(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("my notes\n")
    (message,) = check_dest(str(tmp_path / "notes.json"))
    assert message.startswith("spark_plan_file: ") and existing in message
    assert check_dest(str(tmp_path / "plan.json")) == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--check",)], ids=["run", "check"])
def test_the_playbook_says_so_before_it_plans(tmp_path: Path, words: tuple[str, ...]) -> None:
    service = "{name: one, recipe: qwen3-4b-instruct-2507, port: 8001}"
    (tmp_path / "hosts.yml").write_text(f"sparks: {{hosts: {{spark-1: {{spark_services: [{service}]}}}}}}\n")
    (tmp_path / ".notes").mkdir()
    (tmp_path / ".notes/notes.html").write_text("my notes\n")
    arguments = ("-i", tmp_path / "hosts.yml", "dgxspark.vllm.plan", "-e", "spark_plan_file=.notes/notes.json", *words)
    ran = ansible_playbook(*arguments, cwd=tmp_path)
    assert ran.returncode != 0 and "notes.html is no report of this collection" in " ".join(ran.stdout.split())
    assert (tmp_path / ".notes/notes.html").read_text() == "my notes\n" and not (
        tmp_path / ".notes/notes.json"
    ).exists()
    (tmp_path / ".notes/notes.html").unlink()
    for _time in range(2):
        assert ansible_playbook(*arguments, cwd=tmp_path).returncode == 0
    assert (tmp_path / ".notes/notes.html").exists() is (words == ())
