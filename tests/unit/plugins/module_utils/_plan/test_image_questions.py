"""Questions to images about a service: who asks, and how the answers change a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from recipes_fixture import RECIPES as SHIPPED
from test_plan import FAST, RECIPES, errors, host, measured

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import plan_probe
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import image_answer
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import (
    image_questions,
    lock_making,
    picture,
    plan_page,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import lock as lock_file
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.lock_file import render

RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "image_plans.json").read_text(encoding="utf-8"))
SAID = {"answer": image_answer.read(RECORDED["dense"]["answer"]), "reason": ""}
ID, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
REF = "an/image:1"
NEW: dict[str, Any] = {
    "name": "new",
    "model": {"repo": "org/new"},
    "image": {"ref": REF, "vllm_version": "0.33.0", "entrypoint": "serve"},
    "config": {"architectures": ["NewForCausalLM"], "model_type": "of_next_year", "transformers_version": "5.0"},
    "args": {"max-model-len": 16384, "max-num-seqs": 4},
    "port": 8001,
}


def present(image_id: str = ID) -> dict[str, Any]:
    return {REF: {"present": True, "id": image_id, "repo_digests": []}}


def spark(*services: dict[str, Any], image_id: str = ID, available: float = 60.0, **variables: Any) -> dict[str, Any]:
    facts = measured(memory={"total_gib": 119.67, "available_gib": available})
    return host(*(services or (NEW,)), measured=facts, images=present(image_id), **variables)


def planned(hosts: dict[str, Any], answer_of: Any = lambda _key: None, **more: Any) -> dict[str, Any]:
    return dict(engine.make_plan(hosts, RECIPES, image_answer=answer_of, **more)["hosts"])


def states(hosts: dict[str, Any]) -> dict[str, list[str]]:
    return {name: [question["state"] for question in body["image_questions"]] for name, body in hosts.items()}


def test_what_the_arithmetic_knows_is_not_asked() -> None:
    assert states(planned({"a": spark(FAST)})) == {"a": []}


def test_a_service_that_the_arithmetic_does_not_know_is_asked_by_its_image_and_what_matters() -> None:
    body = planned({"a": spark()})["a"]
    (question,) = body["image_questions"]
    assert (question["service"], question["image"], question["image_id"], question["state"]) == ("new", REF, ID, "ask")
    assert json.loads(question["files"]["config.json"]) == NEW["config"]
    assert question["args"] == ["--max-model-len", "16384", "--max-num-seqs", "4"]
    # It is the name that the module on the host gives the answer, too.
    question_text = plan_probe.question(
        question["files"], question["args"], question["available"], question["draft_files"]
    )
    assert question["key"] == plan_probe.cache_name(ID, question_text) and question["files_there"]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"port": 8002, "served_model_name": "b", "memory_share": 2}, True),
        ({"args": {**NEW["args"], "gpu-memory-utilization": 0.5}}, True),
        ({"args": {**NEW["args"], "max-model-len": 8192}}, False),
        ({"config": {**NEW["config"], "hidden_size": 1}}, False),
        ({"args": {**NEW["args"], "trust-remote-code": True}}, False),
        ({"env": {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_CACHE_ROOT": "/x"}}, True),
        ({"env": {"VLLM_USE_V2_MODEL_RUNNER": "0"}}, False),
        ({"env": {"VLLM_KV_CACHE_LAYOUT": "HND"}}, False),
        ({"env": {"VLLM_USE_B12X_MOE": "1"}}, False),
    ],
)
def test_what_changes_no_memory_changes_no_question(change: dict[str, Any], same: bool) -> None:
    (before,) = planned({"a": spark()})["a"]["image_questions"]
    (after,) = planned({"a": spark({**NEW, **change})})["a"]["image_questions"]
    assert (before["key"] == after["key"]) is same


def test_an_answer_is_used_and_closes_the_question() -> None:
    (question,) = planned({"a": spark()})["a"]["image_questions"]
    body = planned({"a": spark()}, {question["key"]: SAID}.get)["a"]
    assert body["image_questions"] == [] and errors(body) == []
    memory = body["services"][0]["memory"]
    assert memory["sources"] == {"weights": "image", "kv_cache": "image"}
    assert memory["bytes_per_block"] == 2359296 and memory["weights_bytes"] == 8044936192
    assert body["services"][0]["args"]["gpu-memory-utilization"] == memory["gpu_memory_utilization"]


def test_an_answer_of_another_image_or_configuration_is_not_used() -> None:
    (question,) = planned({"a": spark()})["a"]["image_questions"]
    answer_of = {question["key"]: SAID}.get
    for other in (spark(image_id=OTHER), spark({**NEW, "config": {**NEW["config"], "hidden_size": 1}})):
        body = planned({"a": other}, answer_of)["a"]
        assert "memory.refused" in [finding["rule"] for finding in errors(body)] and len(body["image_questions"]) == 1


def test_what_was_not_answered_stays_refused_with_its_reason_and_is_no_question() -> None:
    body = planned({"a": spark()}, lambda _key: {"answer": None, "reason": "no answer within 300 seconds"})["a"]
    (error,) = errors(body)
    assert error["rule"] == "memory.refused" and "no answer within 300 seconds" in error["message"]
    assert body["image_questions"] == []


def test_a_fleet_asks_once_on_the_spark_with_the_most_memory() -> None:
    hosts = {"a": spark(available=20.0), "b": spark(available=90.0), "c": spark(image_id=OTHER)}
    assert states(planned(hosts)) == {"a": ["elsewhere"], "b": ["ask"], "c": ["ask"]}
    # Of those that the play reaches.
    assert states(planned(hosts, reached=["a"])) == {"a": ["ask"], "b": ["elsewhere"], "c": ["absent"]}


def test_a_spark_without_memory_to_spare_is_not_asked() -> None:
    body = planned({"a": spark(available=image_questions.FREE_GIB - 0.1)})["a"]
    assert [question["state"] for question in body["image_questions"]] == ["no_memory"]
    assert "has 8 GiB of memory available" in errors(body)[0]["message"]


def test_nobody_is_asked_where_that_is_switched_off_and_the_controller_for_all() -> None:
    body = planned({"a": spark(spark_probe="none")})["a"]
    assert [question["state"] for question in body["image_questions"]] == ["never"]
    assert "spark_probe is none" in errors(body)[0]["message"]
    hosts = {"a": host(NEW, spark_probe="controller"), "b": host(NEW, spark_probe="controller")}
    assert states(planned(hosts)) == {"a": ["ask"], "b": ["elsewhere"]}


def test_an_image_that_is_not_there_yet_is_asked_later() -> None:
    hosts = planned({"a": host(NEW, measured=measured())})
    assert states(hosts) == {"a": ["absent"]} and len(errors(hosts["a"])) == 1
    image_questions.postpone(hosts)
    assert errors(hosts["a"]) == []
    assert "before anything starts" in hosts["a"]["findings"][0]["message"]
    # A question that was asked in this run without an answer stays a refusal.
    hosts = planned({"a": spark()})
    image_questions.postpone(hosts)
    assert len(errors(hosts["a"])) == 1


def test_without_facts_a_locked_image_is_known_by_its_id() -> None:
    platforms = {"linux/arm64": {"id": ID, "digest": ""}}
    lock = {"images": {REF: {"platforms": platforms}}, "models": {}, "services": {}, "files": {}, "recipes": {}}
    (question,) = planned({"a": spark()})["a"]["image_questions"]
    body = planned({"a": host(NEW)}, {question["key"]: SAID}.get, lock=lock)["a"]
    assert body["services"][0]["memory"]["sources"]["kv_cache"] == "image"


def test_answers_are_locked_and_plan_without_anything_else() -> None:
    text = json.dumps(image_answer.brief(RECORDED["dense"]["answer"]))
    (question,) = planned({"a": spark()})["a"]["image_questions"]
    answer_of = {question["key"]: SAID}.get
    before = planned({"a": spark(), "b": spark()}, answer_of, pin=False)
    assert before["a"]["image_answers"] == {"new": question["key"]}
    image = {"present": True, "id": ID, "repo_digests": [], "os": "linux", "architecture": "arm64"}
    model = {"repo": "org/new", "revision": "main", "commit": "c" * 40, "path": "/srv/x", "problems": []}
    model["files"] = {"config.json": {"size": 2, "sha256": "a" * 64}}
    images, models = {name: {REF: image} for name in before}, {name: [model] for name in before}

    def collect(plan: dict[str, Any], old: Any, answers: Any) -> tuple[dict[str, Any], list[str]]:
        made, refusals, notes = lock_making.collect(plan, ["a", "b"], images, models, old, answers)
        assert refusals == []
        second, messages = lock_file.read(yaml.safe_load(render(made)), "x")
        assert messages == [] and second == made
        return made, notes

    made, notes = collect(before, None, {question["key"]: text}.get)
    # Once for the fleet, by image, configuration and arguments.
    assert (made["image_plans"], notes) == ({question["key"]: text}, [])
    assert {entry["image_plan"] for entry in made["services"].values()} == {question["key"]}
    answer = image_answer.read(json.loads(made["image_plans"][question["key"]]))
    body = planned({"a": host(NEW)}, {question["key"]: {"answer": answer, "reason": ""}}.get, lock=made)["a"]
    assert body["services"][0]["memory"]["sources"] == {"weights": "image", "kv_cache": "image"}
    # Locked again without the file that it was kept in, and by a run that had no answer, or another question.
    assert collect(before, made, lambda _key: None) == (made, [])
    unasked, _notes = collect(planned({"a": spark(), "b": spark()}, pin=False), made, lambda _key: None)
    assert unasked["image_plans"] == {} and "image_plans" not in render(unasked)
    assert all("image_plan" not in entry for entry in unasked["services"].values())
    long, notes = collect(before, None, lambda _key: " " * 60_001)
    assert long["image_plans"] == {} and "too long to be locked" in notes[0]


@pytest.mark.parametrize("wrong", [5, ["a"], {"a": {"b": 1}}, {"a": None}])
def test_a_lock_with_answers_that_are_none_is_refused(wrong: Any) -> None:
    made, messages = lock_file.read({"schema": 1, "image_plans": wrong}, "x")
    assert made is None and messages[0].startswith("lock file x: image_plans")


COMMIT = "c" * 40
PART = {key: value for key, value in NEW.items() if key != "config"}


def has(commit: str = COMMIT, revision: str = "main", **more: Any) -> dict[str, Any]:
    """A Spark with the image and a snapshot of the model."""
    facts = measured(memory={"total_gib": 119.67, "available_gib": 60.0})
    snapshot = {"commits": [commit], "refs": {revision: commit}}
    return {**facts, "models": ["org/new"], "snapshots": {"org/new": snapshot, **more}}


def with_snapshot(service: dict[str, Any], *more: Any, **variables: Any) -> dict[str, Any]:
    return host(service, *more, measured=has(), images=present(), **variables)


def test_without_the_whole_config_the_snapshot_on_the_host_is_read() -> None:
    trimmed = {**PART, "config": {"model_type": "of_next_year"}}
    for service in (PART, trimmed):
        (question,) = planned({"a": with_snapshot(service)})["a"]["image_questions"]
        assert (question["state"], question["files"]) == ("ask", {})
        assert question["snapshot"] == {"repo": "org/new", "commit": COMMIT}
        body = planned({"a": with_snapshot(service)}, {question["key"]: SAID}.get)["a"]
        assert body["image_questions"] == [] and errors(body) == []
        assert body["services"][0]["memory"]["sources"]["kv_cache"] == "image"
        # The commit is in the name; it is known without a host that is asked where the revision or the lock says it.
        other = host(service, measured=has("d" * 40), images=present())
        assert planned({"a": other}, {question["key"]: SAID}.get)["a"]["image_questions"] != []
    platforms = {"linux/arm64": {"id": ID, "digest": ""}}
    models = {"org/new@main": {"commit": COMMIT, "files": {}}}
    lock = {"images": {REF: {"platforms": platforms}}, "models": models, "services": {}, "files": {}, "recipes": {}}
    body = planned({"a": host(PART)}, {question["key"]: SAID}.get, lock=lock)["a"]
    assert body["services"][0]["memory"]["sources"]["kv_cache"] == "image"


def test_a_recipe_on_a_build_that_was_not_compared_is_asked_by_its_snapshot() -> None:
    recipe = RECIPES["qwen3-4b-instruct-2507"]
    repo, revision = recipe["model"]["repo"], recipe["model"].get("revision", "main")
    service = {**FAST, "image": {"ref": REF, "vllm_version": "0.32.1.dev1", "entrypoint": "serve"}}
    facts = {**has(), "snapshots": {repo: {"commits": [COMMIT], "refs": {revision: COMMIT}}}}
    body = planned({"a": host(service, measured=facts, images=present())})["a"]
    (question,) = body["image_questions"]
    assert (question["state"], question["snapshot"]["repo"], question["refused"]) == ("ask", repo, False)
    assert body["services"][0]["memory"]["sources"]["kv_cache"] == "calculated (not compared)"


def test_a_model_that_is_not_there_yet_is_asked_about_later_where_the_run_brings_it() -> None:
    def refusal(brings: list[str], answer_of: Any = None) -> list[str]:
        hosts = planned({"a": spark(PART)})
        assert states(hosts) == {"a": ["no_files"]} and hosts["a"]["image_questions"][0]["snapshot"]["commit"] == ""
        assert "has the files of the model yet" in errors(hosts["a"])[0]["message"]
        image_questions.postpone(hosts, brings)
        return [finding["rule"] for finding in errors(hosts["a"])]

    assert refusal(["images", "models"]) == refusal(["models"]) == []
    assert refusal(["images"]) == refusal([]) == ["memory.refused"]
    # By the name of a branch alone nothing is known.
    (question,) = planned({"a": spark(PART)})["a"]["image_questions"]
    assert planned({"a": spark(PART)}, {question["key"]: SAID}.get)["a"]["image_questions"] != []


def test_of_two_sparks_that_with_the_model_is_asked() -> None:
    service = {**PART, "model": {"repo": "org/new", "revision": COMMIT}}
    hosts = {"a": spark(service, available=90.0), "b": with_snapshot(service)}
    assert states(planned(hosts)) == {"a": ["elsewhere"], "b": ["ask"]}


def test_code_of_a_repository_is_read_where_it_lies_and_only_with_trust() -> None:
    trusting = {**NEW, "args": {**NEW["args"], "trust-remote-code": True}}
    (question,) = planned({"a": with_snapshot(trusting)})["a"]["image_questions"]
    assert question["snapshot"]["commit"] == COMMIT and question["args"][-1] == "--trust-remote-code"
    (question,) = planned({"a": with_snapshot(NEW)})["a"]["image_questions"]
    assert "snapshot" not in question and "config.json" in question["files"]
    # The controller has no snapshot, only the files of the inventory.
    (question,) = planned({"a": with_snapshot(trusting, spark_probe="controller")})["a"]["image_questions"]
    assert "snapshot" not in question and "config.json" in question["files"]


def test_a_drafter_is_read_from_its_own_snapshot() -> None:
    draft = {"speculative-config": {"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 3}}
    model = {"repo": "org/new", "extra": [{"repo": "org/draft"}]}
    service = {**PART, "model": model, "args": {**NEW["args"], **draft}}
    (question,) = planned({"a": with_snapshot(service)})["a"]["image_questions"]
    assert question["state"] == "no_files" and question["draft_snapshot"] == {"repo": "org/draft", "commit": ""}
    facts = has(**{"org/draft": {"commits": [COMMIT], "refs": {"main": COMMIT}}})
    (question,) = planned({"a": host(service, measured=facts, images=present())})["a"]["image_questions"]
    assert question["state"] == "ask" and question["draft_snapshot"]["commit"] == COMMIT
    body = planned({"a": with_snapshot({**service, "model": {"repo": "org/new"}})})["a"]
    assert body["image_questions"] == [] and "the drafter org/draft is not among" in errors(body)[0]["message"]


@pytest.mark.parametrize(
    ("change", "variables", "why"),
    [
        ({}, {"spark_probe": "controller"}, "the controller, which is asked, has no other"),
        ({"model": {"path": "/srv/own"}}, {}, "there is no snapshot of a repository to read"),
    ],
)
def test_what_nobody_can_read_is_not_asked(change: dict[str, Any], variables: dict[str, Any], why: str) -> None:
    body = planned({"a": with_snapshot({**PART, "config": {"model_type": "of_next_year"}, **change}, **variables)})["a"]
    assert body["image_questions"] == []
    assert "whole config.json" in errors(body)[0]["message"] and why in errors(body)[0]["message"]


def test_a_version_that_was_not_compared_is_asked_and_planned_meanwhile() -> None:
    config = {**RECIPES["qwen3-4b-instruct-2507"]["config"], "transformers_version": "5.0"}
    service = {**NEW, "config": config, "image": {"ref": REF, "vllm_version": "0.32.1.dev1", "entrypoint": "serve"}}
    body = planned({"a": spark(service)})["a"]
    (question,) = body["image_questions"]
    assert not question["refused"] and errors(body) == []
    assert body["services"][0]["memory"]["sources"]["kv_cache"] == "calculated (not compared)"
    body = planned({"a": spark(service)}, {question["key"]: SAID}.get)["a"]
    assert body["services"][0]["memory"]["sources"]["kv_cache"] == "image"


def test_what_a_person_states_is_planned_and_not_asked() -> None:
    body = planned({"a": spark({**NEW, "memory_gib": 30})})["a"]
    assert body["image_questions"] == [] and errors(body) == []
    assert body["services"][0]["args"]["gpu-memory-utilization"] == 0.26
    assert "memory.stated" in [finding["rule"] for finding in body["findings"]]
    body = planned({"a": spark({**NEW, "memory": {"weights_gib": 20, "kv_gib": 8, "other_gib": 1}})})["a"]
    assert body["services"][0]["memory"]["sources"] == {"weights": "given", "kv_cache": "given"}


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        ({"memory_gib": 0}, "'memory_gib' is 0"),
        ({"memory": {"kv_gib": 1}}, "'memory' needs 'weights_gib'"),
        ({"memory": {"weights_gib": "a"}}, "memory.weights_gib is 'a'"),
        ({"memory": {"weights_gib": 1, "kv": 2}}, "kv"),
        ({"memory": {"weights_gib": 1}, "memory_gib": 2}, "say the same"),
        (
            {"memory": {"weights_gib": 1}, "weights_gib": 2},
            "'weights_gib' has no effect with 'memory': write it as weights_gib of",
        ),
        ({"memory_gib": 9, "draft_weights_gib": 2}, "'draft_weights_gib' has no effect with 'memory_gib'"),
        (
            {"memory": {"weights_gib": 1, "other_gib": 2}, "overheads": {"inside_gib": 2}},
            "inside_gib, which has no effect with memory.other_gib",
        ),
    ],
)
def test_what_a_person_states_is_checked(memory: dict[str, Any], why: str) -> None:
    with pytest.raises(engine.InventoryError) as caught:
        planned({"a": spark({**NEW, **memory})})
    assert why in str(caught.value)


def test_a_statement_of_a_service_beats_the_size_of_its_recipe_and_can_be_taken_back() -> None:
    recipe = {**RECIPES["qwen3-4b-instruct-2507"], "weights_gib": 7.5}

    def memory(recipe: dict[str, Any], **changes: Any) -> dict[str, Any]:
        service = {"name": "fast", "recipe": "r", "port": 8002, "args": {"max-model-len": 8192}, **changes}
        plan = engine.make_plan({"a": spark(service)}, {"r": {**recipe, "name": "r"}})["hosts"]["a"]
        figures: dict[str, Any] = plan["services"][0]["memory"]
        return figures

    assert memory(recipe, memory={"weights_gib": 9, "kv_gib": 5})["weights_bytes"] == 9 << 30
    stated = {**recipe, "memory": {"weights_gib": 9, "kv_gib": 5}}
    del stated["weights_gib"]
    assert memory(stated)["weights_bytes"] == 9 << 30
    assert memory({**stated, "weights_gib": 7.5, "memory": None}, memory=None)["weights_bytes"] == 15 << 29


def test_the_plan_says_what_its_figures_rest_on() -> None:
    (question,) = planned({"a": spark()})["a"]["image_questions"]
    plan = engine.make_plan({"a": spark(NEW, FAST)}, RECIPES, image_answer={question["key"]: SAID}.get)
    notes = picture.label_notes(plan["hosts"]["a"]["services"])
    assert "new: weights and KV cache by the vLLM of the image" in notes
    assert any(note.startswith("fast: weights and KV cache calculated (") for note in notes)
    page = plan_page.page(plan, [])
    assert all(note in page for note in notes)
    assert "new: weights and KV cache by the vLLM of the image" in picture.plan_text(plan, [], 100, False, "")


# With five draft tokens the ring of raw keys does not divide the block, in no release that knows the model.
DRAFTING: dict[str, Any] = {
    "name": "drafting",
    "model": {"repo": "org/drafting"},
    "image": {"ref": REF, "entrypoint": "serve"},
    "config": {**SHIPPED["qwen3.8-flash-next-nvfp4"]["config"], "transformers_version": "5.0"},
    "args": {
        "max-model-len": 16384,
        "max-num-seqs": 4,
        "gpu-memory-utilization": 0.8,
        "speculative-config": {"method": "mtp", "num_speculative_tokens": 5},
        "enable-prefix-caching": True,
    },
    "weights_gib": 60,
    "port": 8001,
}


def test_an_image_of_unknown_version_is_asked_before_a_refusal_that_it_may_overrule() -> None:
    hosts = planned({"a": host(DRAFTING, measured=measured())})
    assert [finding["rule"] for finding in errors(hosts["a"])] == ["memory.plan"]
    assert states(hosts) == {"a": ["absent"]}
    image_questions.postpone(hosts)
    assert errors(hosts["a"]) == []
    (question,) = planned({"a": spark(DRAFTING)})["a"]["image_questions"]
    assert (question["state"], question["refused"]) == ("ask", True)
    body = planned({"a": spark(DRAFTING)}, {question["key"]: SAID}.get)["a"]
    assert "memory.plan" not in [finding["rule"] for finding in body["findings"]] and body["image_questions"] == []
    memory = body["services"][0]["memory"]
    assert memory["sources"]["kv_cache"] == "image"


def test_a_refusal_of_a_compared_release_is_final() -> None:
    drafting = {**DRAFTING, "image": {**DRAFTING["image"], "vllm_version": "0.32.0"}}
    hosts = planned({"a": host(drafting, measured=measured())})
    image_questions.postpone(hosts)
    (error,) = errors(hosts["a"])
    assert error["rule"] == "memory.plan" and hosts["a"]["image_questions"] == []
    assert error["vllm_error"] == "AssertionError: QSA ring capacity 12 must divide the attention block size 1616"
