# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of compare: the arguments of the module for a plan, and when a host is asked a second time in a run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from planned_fixture import MEASURED, RECIPES

from ansible_collections.dgxspark.vllm.plugins.action import compare
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.stable_facts import stable_checksum
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine

SERVICE = {"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001}
CLEAN = {"up_to_date": True, "proved": True, "why": [], "recorded": {"number": 1, "proven": True}, "receipts": {}}


class Host:
    """A host whose module answers, and the tasks of a run about it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.setattr(ActionBase, "run", lambda *_args: {})
        variables = {"spark_services": [SERVICE], "spark_watchdog": {}, "spark_total_gib": 119.67}
        made = engine.make_plan({"s1": {"vars": variables, "address": "192.0.2.1"}}, RECIPES, lambda _path: "0" * 64)
        self.plan, self.addons = made["hosts"]["s1"], made["addons"]["s1"]
        images = {ref: {"present": True, "probe_from": "cache"} for ref in self.plan["images"]}
        self.facts = {"spark": MEASURED, "images": images, "unknown": {}}
        self.answer: dict[str, Any] = copy.deepcopy(CLEAN)
        self.sent: list[dict[str, Any]] = []
        self.variables = {
            "inventory_hostname": "s1",
            "ansible_play_hosts": ["s1", "s2"],
            "groups": {"sparks": ["s1"]},
            "hostvars": {"s1": {"inventory_dir": str(folder)}},
        }

    def checksum(self) -> str:
        return stable_checksum(self.facts["spark"], self.facts["images"])

    def task(self, check_mode: bool = False, **args: Any) -> dict[str, Any]:
        """Run a task of the playbook; the plan comes as text in JSON, as plans of many hosts do."""
        arguments = {"plan": json.dumps(self.plan), "addons": json.dumps(self.addons), "prove": True, **args}
        plugin = compare.ActionModule.__new__(compare.ActionModule)
        plugin._task = SimpleNamespace(args=arguments, _uuid="0", check_mode=check_mode)
        plugin._templar = SimpleNamespace(template=lambda value: value)
        plugin._loader = SimpleNamespace(get_text_file_contents=lambda path: Path(path).read_text(encoding="utf-8"))

        def execute(**call: Any) -> dict[str, Any]:
            self.sent.append(call["module_args"])
            return {**self.answer, **(self.facts if call["module_args"]["gather"] else {}), "invocation": {"x": 1}}

        plugin._execute_module = execute
        return dict(plugin.run(task_vars=self.variables))

    def first(self, **args: Any) -> dict[str, Any]:
        return self.task(gather={"hf_home": "/hf"}, facts_checksum=self.checksum(), **args)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    return Host(monkeypatch, tmp_path)


def test_facts_document_and_proof_are_one_question(host: Host) -> None:
    answer = host.first()
    (sent,) = host.sent
    assert sent["gather"] == {"hf_home": "/hf", "images": host.plan["image_candidates"]}
    assert {row["part"] for row in sent["document"]["units"]} == {"guard", "service", "watchdog"}
    assert sent["proof"]["services"][0]["name"] == "heavy" and sent["controller"]
    assert not set(compare.OF_CONTROLLER) & set(sent)
    assert answer["up_to_date"] and answer["proved"] and answer["spark"] == MEASURED
    # Contents of files may be in the arguments.
    assert "invocation" not in answer and "receipts" not in answer


def test_a_second_task_asks_nobody_if_the_plan_asks_for_the_same(host: Host) -> None:
    earlier = host.first()
    # Figures that follow the memory of the host are no part of the deployed state.
    host.plan["memory_map"] = [{"label": "free", "gib": 1.0}]
    repeated = host.task(earlier=earlier)
    assert len(host.sent) == 1 and repeated == {
        "changed": False,
        **{k: earlier[k] for k in compare.VERDICT if k in earlier},
    }
    host.answer.update(up_to_date=False, proved=False, why=["a file differs"])
    earlier = host.first()
    assert host.task(earlier=earlier)["why"] == ["a file differs"] and len(host.sent) == 2


def test_a_second_task_asks_the_host_if_the_new_plan_is_another_one(host: Host) -> None:
    earlier = host.first()
    host.plan["services"][0]["port"] = 8009
    host.addons["watchdog"] = None
    host.answer.update(up_to_date=False, why=["spark-watchdog.service has to go"], proved=False)
    repeated = host.task(earlier=earlier)
    assert len(host.sent) == 2 and repeated["why"] == ["spark-watchdog.service has to go"]
    # Facts are known; a proof goes by a few of them.
    assert (
        host.sent[1]["gather"] == {**compare.FEW_FACTS, "root": "/"}
        and host.sent[1]["document"] != host.sent[0]["document"]
    )


def test_other_facts_than_those_of_the_plan_are_judged_by_the_next_plan(host: Host) -> None:
    checksum = host.checksum()
    host.facts["spark"] = {**MEASURED, "kernel": "6.18"}
    host.answer.update(up_to_date=False, proved=False, why=["facts of the host differ from the plan"])
    earlier = host.task(gather={"hf_home": "/hf"}, facts_checksum=checksum)
    assert not earlier["up_to_date"] and earlier["compared_with"] == ""
    host.answer = copy.deepcopy(CLEAN)
    # The new plan asks for the same document, and the host is asked all the same: its first answer was about its facts.
    assert host.task(earlier=earlier)["up_to_date"] and len(host.sent) == 2


def test_a_host_without_kept_facts_says_its_facts_and_is_compared_with_the_plan_that_follows(host: Host) -> None:
    earlier = host.task(gather={"hf_home": "/hf"}, facts_checksum="")
    assert "document" not in host.sent[0] and "proof" not in host.sent[0]
    assert (earlier["up_to_date"], earlier["proved"]) == (False, False) and earlier["spark"] == MEASURED
    assert host.task(earlier=earlier)["proved"] and "document" in host.sent[1]


def test_a_host_on_which_nothing_was_recorded_is_not_asked_again(host: Host) -> None:
    host.answer.update(up_to_date=False, proved=False, why=["nothing was recorded yet"], recorded=None)
    earlier = host.task(gather={"hf_home": "/hf"}, facts_checksum="")
    assert host.task(earlier=earlier)["why"] == ["nothing was recorded yet"] and len(host.sent) == 1


@pytest.mark.parametrize(
    ("tags", "skipped", "parts"),
    [(["service"], [], ["service"]), (["service", "prove"], [], ["prove", "service"]), (["all"], [], None)],
)
def test_with_tags_only_what_these_apply_is_compared(
    host: Host, tags: list[str], skipped: list[str], parts: Any
) -> None:
    host.variables.update(ansible_run_tags=tags, ansible_skip_tags=skipped)
    host.first()
    assert host.sent[0]["parts"] == parts and ("proof" in host.sent[0]) is ("service" not in tags or "prove" in tags)


@pytest.mark.parametrize(("tags", "skipped"), [(["fabric"], []), (["mine"], []), (["all"], ["host"])])
def test_what_is_always_applied_is_not_compared(host: Host, tags: list[str], skipped: list[str]) -> None:
    host.variables.update(ansible_run_tags=tags, ansible_skip_tags=skipped)
    earlier = host.first()
    assert "document" not in host.sent[0] and not earlier["up_to_date"] and earlier["spark"] == MEASURED
    assert not host.task(earlier=earlier)["up_to_date"] and len(host.sent) == 1


def test_a_host_that_may_have_to_hand_on_models_is_not_up_to_date(host: Host) -> None:
    lacking = {"images": [], "models": ["s2"]}
    earlier = host.first(lacking=lacking)
    assert "document" not in host.sent[0] and earlier["why"] == ["models are missing on hosts of this run"]
    assert host.task(earlier=earlier, lacking=lacking)["why"] == earlier["why"] and len(host.sent) == 1


def test_images_that_nobody_has_asked_are_something_to_apply(host: Host) -> None:
    for image in host.facts["images"].values():
        image["probe_from"] = "none"
    earlier = host.first()
    assert not earlier["up_to_date"] and "are not known" in earlier["why"][0]
    assert "are not known" in host.task(earlier=earlier)["why"][0] and len(host.sent) == 1


def test_check_mode_proves_nothing(host: Host) -> None:
    host.first(check_mode=True)
    assert "document" in host.sent[0] and "proof" not in host.sent[0]


def test_a_comparison_without_a_plan_is_passed_on(host: Host) -> None:
    plugin_args = {"models": [{"repo": "Org/M", "revision": "main"}], "gather": {}}
    host.plan = host.addons = {}
    plugin = compare.ActionModule.__new__(compare.ActionModule)
    plugin._task = SimpleNamespace(args=plugin_args, _uuid="0", check_mode=False)
    plugin._execute_module = lambda **call: host.sent.append(call["module_args"]) or {"up_to_date": True}
    assert plugin.run(task_vars=host.variables) == {"up_to_date": True} and host.sent == [plugin_args]


def test_answers_of_hosts_are_untrusted(host: Host) -> None:
    host.answer["receipts"] = {"heavy": {"receipt": {"service": "../heavy", "start": {"image_id": 7}}}}
    with pytest.raises(AnsibleActionFail, match="s1 returned an invalid answer"):
        host.first()


def test_a_module_that_failed_keeps_its_reason(host: Host) -> None:
    host.answer = {"failed": True, "msg": "docker image inspect failed"}
    answer = host.first()
    assert answer["failed"] and answer["msg"] == "docker image inspect failed"
