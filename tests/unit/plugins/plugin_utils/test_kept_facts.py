# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of hosts that the last run planned with: who gets them back, and which files count as none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from planned_fixture import MEASURED

from ansible_collections.dgxspark.vllm.plugins.action import plan as plan_action
from ansible_collections.dgxspark.vllm.plugins.action.plan import JudgedPlan, are_unchanged, judged_with
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import kept_facts
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.kept_facts import KeptFacts, checksum_of

IMAGES = {"an/image:1": {"present": True, "id": f"sha256:{'1' * 64}", "probe_from": "cache"}}
FACTS = {"measured": MEASURED, "images": IMAGES}
ERROR = {"rule": "memory.total", "severity": "error", "host": "s1", "service": "x", "message": "m", "fix": "f"}


def kept_in(folder: Path) -> KeptFacts:
    return KeptFacts({"groups": {"sparks": ["s1"]}, "hostvars": {"s1": {"inventory_dir": str(folder)}}})


def path_in(folder: Path, name: str = "s1") -> Path:
    return folder / ".spark" / "facts" / f"{name}.json"


def test_facts_come_back_to_the_host_that_said_them_and_to_no_other(tmp_path: Path) -> None:
    store = kept_in(tmp_path)
    assert store.of_host("s1") == {} and store.keep("s1", MEASURED, IMAGES)
    assert store.of_host("s1") == FACTS and store.of_host("s2") == {}
    assert path_in(tmp_path).stat().st_mode & 0o777 == 0o600
    # A renamed host is asked again, even if its file was renamed too.
    path_in(tmp_path).rename(path_in(tmp_path, "s2"))
    assert store.of_host("s2") == {} == store.of_host("s1")
    # The name of a host is no path.
    assert store.keep("../s3", MEASURED, IMAGES) and not (tmp_path / ".spark" / "s3.json").exists()
    assert store.of_host("../s3") == FACTS


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},  # another release
        {"host": "s9"},
        {"measured": None},
        {"measured": {**MEASURED, "memory": {"total_gib": "much"}}},
        {"measured": {**MEASURED, "units": [{"name": "spark-x.service"}]}},
        {"measured": {**MEASURED, "kernel": 7}},
        {"images": {"an/image:1": []}},
    ],
)
def test_a_file_of_another_form_counts_as_none(tmp_path: Path, change: dict[str, Any]) -> None:
    store = kept_in(tmp_path)
    store.keep("s1", MEASURED, IMAGES)
    content = json.loads(path_in(tmp_path).read_text())
    path_in(tmp_path).write_text(json.dumps({**content, **change}))
    assert store.of_host("s1") == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff", '{"schema": 1e999}', "[" * 10_000])
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    store = kept_in(tmp_path)
    store.keep("s1", MEASURED, IMAGES)
    path_in(tmp_path).write_bytes(text.encode("latin-1"))
    assert store.of_host("s1") == {}


def test_a_file_that_is_too_long_is_neither_written_nor_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = kept_in(tmp_path)
    monkeypatch.setattr(kept_facts, "MOST_BYTES", 100)
    assert not store.keep("s1", MEASURED, IMAGES) and not path_in(tmp_path).exists()
    monkeypatch.undo()
    store.keep("s1", MEASURED, IMAGES)
    monkeypatch.setattr(kept_facts, "MOST_BYTES", 100)
    assert store.of_host("s1") == {}


def test_answers_that_a_plan_cannot_use_are_not_kept(tmp_path: Path) -> None:
    store = kept_in(tmp_path)
    for measured in (None, {}, {**MEASURED, "units": 7}):
        assert not store.keep("s1", measured, IMAGES)
    # Without an inventory folder nothing is kept.
    assert not KeptFacts({}).keep("s1", MEASURED, IMAGES) and KeptFacts({}).of_host("s1") == {}


def plan_of(*errors: dict[str, Any]) -> JudgedPlan:
    return JudgedPlan({"hosts": {}}, [dict(error) for error in errors], False)


def test_an_error_stops_the_run_before_hosts_are_asked_only_if_the_inventory_alone_has_one() -> None:
    made: list[Mapping[str, Any]] = []
    facts_by_host = {"s1": FACTS}

    def judged(with_kept: JudgedPlan, bare: JudgedPlan) -> JudgedPlan:
        made.clear()

        def judge(facts: Mapping[str, Any]) -> JudgedPlan:
            made.append(facts)
            return with_kept if facts else bare

        return judged_with(facts_by_host, judge)

    plan = judged(plan_of(), plan_of(ERROR))
    assert (plan.facts, plan.findings, made) == ({"s1": checksum_of(FACTS)}, [], [facts_by_host])
    # Kept facts may be old: the plan counts, and its errors stop nothing yet.
    plan = judged(plan_of(ERROR), plan_of())
    assert plan.facts and plan.findings == [ERROR] and made == [facts_by_host, {}]
    plan = judged(plan_of(ERROR), plan_of(ERROR))
    assert not plan.facts and plan.findings == [ERROR]
    assert judged_with({}, lambda _facts: plan_of(ERROR)).facts == {}


def test_a_plan_that_kept_facts_make_impossible_is_made_without_them() -> None:
    def judge(facts: Mapping[str, Any]) -> JudgedPlan:
        if facts:
            raise AnsibleActionFail("the inventory cannot be planned")
        return plan_of()

    assert judged_with({"s1": FACTS}, judge).facts == {}


def test_a_host_is_unchanged_if_it_is_up_to_date_and_says_what_the_plan_was_made_with() -> None:
    answer = {"up_to_date": True, "spark": MEASURED, "images": IMAGES}

    def unchanged(said: dict[str, Any]) -> bool:
        return are_unchanged({"spark-1": said}, {"spark-1": checksum_of(FACTS)})

    assert unchanged(answer)
    assert unchanged({**answer, "spark": {**MEASURED, "gpu": {**MEASURED["gpu"], "temperature_c": 60}}})
    assert not unchanged({**answer, "up_to_date": False})
    assert not unchanged({**answer, "spark": {**MEASURED, "kernel": "6.18"}})
    assert not unchanged({**answer, "images": {}}) and not unchanged({})


def test_hosts_that_are_not_to_be_asked_or_not_in_the_run_are_not_planned_with_kept_facts(tmp_path: Path) -> None:
    store = kept_in(tmp_path)
    for name in ("s1", "s2", "s3"):
        store.keep(name, MEASURED, IMAGES)
    hosts: dict[str, Any] = {name: {"vars": {}} for name in ("s1", "s2", "s3")}
    hosts["s2"]["vars"]["spark_plan_facts"] = "never"
    variables = {
        "groups": {"sparks": list(hosts)},
        "hostvars": {"s1": {"inventory_dir": str(tmp_path)}},
        "ansible_play_hosts_all": ["s1", "s2"],
    }
    assert plan_action.ActionModule._kept_facts(hosts, variables) == {"s1": FACTS}
