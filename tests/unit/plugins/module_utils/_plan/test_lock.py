# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock file: made from hosts, written, read again, and what a plan makes of it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import lock, lock_findings, lock_making
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.lock_file import render

REF = "vllm/vllm-openai:v0.24.0-ubuntu2404"
DIGEST, ID = f"sha256:{'d' * 64}", f"sha256:{'1' * 64}"
OTHER = f"sha256:{'2' * 64}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "Qwen/Qwen3-8B"
SERVICE = {"name": "chat", "recipe": "qwen3-8b", "port": 8001, "image": REF, "args": {"gpu-memory-utilization": 0.5}}
FILES = {
    "config.json": {"size": 728, "sha256": "a" * 64, "blob": "x"},
    "model.safetensors": {"size": 16_000_000_000, "sha256": "b" * 64, "blob": "b" * 64},
}


def image(image_id: str = ID, digest: str | None = DIGEST, **more: Any) -> dict[str, Any]:
    return {
        "present": True,
        "id": image_id,
        "repo_digests": [f"vllm/vllm-openai@{digest}"] if digest else [],
        "os": "linux",
        "architecture": "arm64",
        "vllm_version": "0.24.0",
        **more,
    }


def host(*services: dict[str, Any], images: dict[str, Any] | None = None, **variables: Any) -> dict[str, Any]:
    return {
        "vars": {"spark_services": list(services), "spark_total_gib": 119.67, **variables},
        "address": "192.0.2.1",
        "images": images or {},
    }


def planned(hosts: dict[str, Any], locked: dict[str, Any] | None = None, pin: bool = True) -> dict[str, Any]:
    plan_hosts: dict[str, Any] = engine.make_plan(hosts, RECIPES, lock=locked, pin=pin)["hosts"]
    return plan_hosts


def model(commit: str | None = COMMIT, files: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "repo": REPO, "revision": "main", "commit": commit, "files": files or FILES, "problems": [], **more,
    }  # fmt: skip


def collect(
    names: list[str], images: dict[str, Any] | None = None, models: dict[str, Any] | None = None, old: Any = None
) -> tuple[dict[str, Any], list[str], list[str]]:
    plan = planned({name: host(SERVICE) for name in names}, pin=False)
    images = images or {name: {REF: image()} for name in names}
    models = models or {name: [model()] for name in names}
    return lock_making.collect(plan, list(images), images, models, old)


@pytest.fixture
def made() -> dict[str, Any]:
    locked, refusals, notes = collect(["spark-1", "spark-2"])
    assert (refusals, notes) == ([], [])
    return locked


def rules(plan: dict[str, Any], name: str = "spark-1") -> dict[str, str]:
    return {f["rule"]: f["severity"] for f in plan[name]["findings"] if f["rule"].startswith("lock.")}


# --- the file ------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again_and_never_changes_by_itself(made: dict[str, Any]) -> None:
    text = render(made)
    reread, messages = lock.read(yaml.safe_load(text), "x")
    assert messages == []
    assert reread is not None
    assert {**reread, "services": made["services"]} == made
    assert render(reread) == text
    assert list(yaml.safe_load(text)["services"]) == ["spark-1/chat", "spark-2/chat"]
    assert f"      model.safetensors: {{size: 16000000000, sha256: {'b' * 64}}}\n" in text


def test_numbers_and_words_stay_texts() -> None:
    sums = {"0e1": {"size": 1, "sha256": "1" * 64}, "on": {"size": 2, "sha256": "1e" + "2" * 62}}
    host_vars = {
        "schema": 1,
        "images": {"a:1": {"vllm_version": "0.30", "platforms": {"linux/arm64": {"digest": None, "id": ID}}}},
        "models": {"O/M@1.0": {"commit": "1" * 40, "files": sums}},
        "services": {"1/2": {"image": "a:1", "models": [], "recipe": None}},
    }
    assert yaml.safe_load(render(host_vars)) == host_vars
    empty: dict[str, Any] = {"schema": 1, "images": {}, "models": {}, "services": {}}
    assert yaml.safe_load(render(empty)) == empty


@pytest.mark.parametrize(
    ("change", "needle"),
    [
        (lambda data: data.update(schema=9), "schema is 9"),
        (lambda data: data["models"][f"{REPO}@main"].pop("commit"), f"models.{REPO}@main lacks 'commit'"),
        (
            lambda data: data["models"][f"{REPO}@main"]["files"].update({"../x": FILES["config.json"]}),
            "files is '../x', not a name of a file below the model",
        ),
        (
            lambda data: data["models"][f"{REPO}@main"]["files"]["config.json"].update(sha256="no"),
            "files.config.json.sha256 is 'no', not a SHA-256",
        ),
        (
            lambda data: data["images"][REF]["platforms"]["linux/arm64"].update(id="latest"),
            f"images.{REF}.platforms.linux/arm64.id is 'latest'",
        ),
        (lambda data: data.update(services=[]), None),
        (lambda data: data.update(services=["x"]), "services is a list, not a mapping"),
        (
            lambda data: data["services"]["spark-1/chat"].update(recipe="qwen3-8b"),
            "services.spark-1/chat.recipe is 'qwen3-8b', not a mapping",
        ),
        (
            lambda data: data["services"]["spark-1/chat"].update(models="x"),
            "services.spark-1/chat.models is 'x', not a list",
        ),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(made: dict[str, Any], change: Any, needle: str | None) -> None:
    data = yaml.safe_load(render(made))
    change(data)
    checked, messages = lock.read(data, "spark.lock.yml")
    if needle is None:
        assert messages == []
    else:
        assert checked is None
        assert any(needle in message and "spark.lock.yml" in message for message in messages)


# --- making it -----------------------------------------------------------------------------------------------------


def test_the_lock_says_what_the_names_stand_for(made: dict[str, Any]) -> None:
    assert made["images"][REF] == {
        "vllm_version": "0.24.0",
        "platforms": {"linux/arm64": {"digest": DIGEST, "id": ID}},
    }
    assert made["models"][f"{REPO}@main"]["commit"] == COMMIT
    assert made["models"][f"{REPO}@main"]["files"]["config.json"] == {"size": 728, "sha256": "a" * 64}
    entry = made["services"]["spark-2/chat"]
    assert (entry["image"], entry["models"]) == (REF, [f"{REPO}@main"])
    assert entry["recipe"]["name"] == "qwen3-8b"


def test_a_drafter_is_locked_too() -> None:
    service = {**SERVICE, "recipe": "gemma-4-26b-a4b"}
    plan = planned({"a": host(service)}, pin=False)
    requested = [(m["repo"], m["revision"]) for m in plan["a"]["models"]]
    reports = [model(repo=repo, revision=revision) for repo, revision in requested]
    locked, refusals, _notes = lock_making.collect(plan, ["a"], {"a": {REF: image()}}, {"a": reports}, None)
    assert refusals == []
    assert "google/gemma-4-26B-A4B-it-assistant@main" in locked["models"]
    after = planned({"a": host(service)}, locked)["a"]
    assert [m["revision"] for m in after["models"]] == [COMMIT] * len(requested)
    assert len(requested) == 2


@pytest.mark.parametrize(
    ("images", "models", "needles"),
    [
        (
            {"spark-1": {REF: image()}, "spark-2": {REF: image(OTHER, f"sha256:{'e' * 64}")}},
            None,
            ["different builds", "spark-1: 111111111111", "spark-2: 222222222222"],
        ),
        (
            None,
            {"spark-1": [model()], "spark-2": [model("f" * 40)]},
            ["different commits", "spark-1: 0123456789ab", "spark-2: ffffffffffff"],
        ),
        (
            None,
            {
                "spark-1": [model()],
                "spark-2": [model(files={**FILES, "config.json": {"size": 700, "sha256": "c" * 64}})],
            },
            ["config.json is not the same", "spark-1: 728 bytes", "spark-2: 700 bytes"],
        ),
        ({"spark-1": {REF: {"present": False}}, "spark-2": {}}, None, ["none of spark-1, spark-2 has it"]),
        (None, {"spark-1": [], "spark-2": [model(commit=None)]}, [f"model {REPO}@main", "none of"]),
        (
            None,
            {"spark-1": [model(problems=["model.safetensors is damaged"])], "spark-2": [model()]},
            ["on spark-1", "is damaged", "Remove the file"],
        ),
    ],
)
def test_hosts_that_disagree_are_named_and_nothing_is_locked(images: Any, models: Any, needles: list[str]) -> None:
    _locked, refusals, _notes = collect(["spark-1", "spark-2"], images, models)
    assert len(refusals) == 1
    assert [needle for needle in needles if needle not in refusals[0]] == []


def test_one_push_has_an_id_per_store_and_a_digest_for_all() -> None:
    """The same digest with other ids is what two kinds of image store make of one push."""
    images = {"spark-1": {REF: image()}, "spark-2": {REF: image(OTHER)}}
    locked, refusals, _notes = collect(["spark-1", "spark-2"], images)
    assert refusals == []
    assert locked["images"][REF]["platforms"]["linux/arm64"]["digest"] == DIGEST


def test_a_file_that_one_host_lacks_is_locked_and_said() -> None:
    less = {"config.json": FILES["config.json"]}
    locked, refusals, notes = collect(
        ["spark-1", "spark-2"], None, {"spark-1": [model()], "spark-2": [model(files=less)]}
    )
    assert refusals == []
    assert notes == [f"model {REPO}@main: spark-2 has no model.safetensors; site.yml will bring it there."]
    assert set(locked["models"][f"{REPO}@main"]["files"]) == set(FILES)


def test_a_limit_leaves_the_rest_and_a_removed_service_goes(made: dict[str, Any]) -> None:
    old = copy.deepcopy(made)
    old["services"]["spark-9/gone"] = old["services"]["spark-1/chat"]
    plan = planned({name: host(SERVICE) for name in ("spark-1", "spark-2")}, pin=False)
    newer = "f" * 40
    locked, refusals, _notes = lock_making.collect(
        plan, ["spark-1"], {"spark-1": {REF: image()}}, {"spark-1": [model(newer)]}, old
    )
    assert refusals == []
    assert set(locked["services"]) == {"spark-1/chat", "spark-2/chat"}
    assert locked["services"]["spark-2/chat"] == made["services"]["spark-2/chat"]
    assert locked["models"][f"{REPO}@main"]["commit"] == newer
    changes = lock_making.changes(old, locked)
    assert changes == [
        f"model {REPO}@main: changed 0123456789ab (2 files, 16.00 GB) -> ffffffffffff (2 files, 16.00 GB)",
        "service spark-9/gone: removed",
    ]


def test_a_host_that_was_deployed_from_a_bundle_does_not_take_the_digest_away(made: dict[str, Any]) -> None:
    plan = planned({"spark-1": host(SERVICE), "spark-3": host(SERVICE)}, pin=False)
    for image_id, digest in ((ID, DIGEST), (OTHER, None)):
        images = {"spark-3": {REF: image(image_id, None)}}
        locked, refusals, _notes = lock_making.collect(plan, ["spark-3"], images, {"spark-3": [model()]}, made)
        assert refusals == []
        assert locked["images"][REF]["platforms"]["linux/arm64"] == {"digest": digest, "id": image_id}
        assert {"spark-1/chat", "spark-3/chat"} <= set(locked["services"])


def test_another_platform_of_the_same_push_is_kept(made: dict[str, Any]) -> None:
    images = {"spark-1": {REF: image(OTHER, architecture="amd64")}}
    plan = planned({"spark-1": host(SERVICE)}, pin=False)
    locked, _refusals, _notes = lock_making.collect(plan, ["spark-1"], images, {"spark-1": [model()]}, made)
    assert {p: e["id"] for p, e in locked["images"][REF]["platforms"].items()} == {
        "linux/arm64": ID,
        "linux/amd64": OTHER,
    }
    pushed = {"spark-1": {REF: image(OTHER, f"sha256:{'e' * 64}", architecture="amd64")}}
    locked, _refusals, _notes = lock_making.collect(plan, ["spark-1"], pushed, {"spark-1": [model()]}, made)
    assert list(locked["images"][REF]["platforms"]) == ["linux/amd64"]


# --- what a plan makes of it ---------------------------------------------------------------------------------------


def test_what_is_locked_is_deployed_by_digest_and_commit(made: dict[str, Any]) -> None:
    plan = planned({"spark-1": host(SERVICE)}, made)["spark-1"]
    service = plan["services"][0]
    assert plan["images"] == [f"{REF}@{DIGEST}"]
    assert ID in plan["image_candidates"]
    assert service["model"]["revision"] == COMMIT
    assert service["args"]["gpu-memory-utilization"] == 0.5
    assert service["command"][service["command"].index("--revision") + 1] == COMMIT
    assert service["vllm_version"] == "0.24.0"
    assert plan["models"][0]["files"]["model.safetensors"] == {"size": 16_000_000_000, "sha256": "b" * 64}
    assert plan["images_locked"] == {f"{REF}@{DIGEST}": {"name": REF, "ids": [ID]}}
    assert rules({"spark-1": plan}) == {}
    assert "model.moving_revision" not in [finding["rule"] for finding in plan["findings"]]


def test_without_a_lock_nothing_changes() -> None:
    plan = planned({"spark-1": host(SERVICE)})["spark-1"]
    assert plan["images"] == [REF]
    assert plan["image_candidates"] == [REF]
    assert plan["models"][0]["files"] == {}
    assert plan["images_locked"] == {}
    assert rules({"spark-1": plan}) == {}


@pytest.mark.parametrize(
    ("images", "run"),
    [
        ({f"{REF}@{DIGEST}": image()}, f"vllm/vllm-openai@{DIGEST}"),
        # It came from a bundle: no registry's digest, the same id.
        ({f"{REF}@{DIGEST}": {"present": False}, ID: image(digest=None)}, ID),
        # The tag was pulled again meanwhile; the service still runs the older image.
        ({REF: image(OTHER, f"sha256:{'e' * 64}"), ID: image(digest=None)}, ID),
        ({REF: image(OTHER, f"sha256:{'e' * 64}")}, f"{REF}@{DIGEST}"),
    ],
)
def test_a_locked_image_is_known_by_digest_or_id(made: dict[str, Any], images: dict[str, Any], run: str) -> None:
    plan = planned({"spark-1": host(SERVICE, images=images)}, made)["spark-1"]
    assert plan["services"][0]["image"]["run"] == run


def test_an_image_of_no_registry_counts_by_its_id_alone() -> None:
    locked, refusals, _notes = collect(["spark-1"], {"spark-1": {REF: image(digest=None)}})
    assert refusals == []
    same = planned({"spark-1": host(SERVICE, images={REF: image(digest=None)})}, locked)["spark-1"]
    assert same["services"][0]["image"]["run"] == ID
    other = planned({"spark-1": host(SERVICE, images={REF: image(OTHER, None), ID: {"present": False}})}, locked)[
        "spark-1"
    ]
    assert other["services"][0]["image"]["id"] != ID
    assert rules({"spark-1": other}) == {"lock.image_other": "error"}
    host_vars = host(SERVICE, images={REF: image(OTHER, None), ID: {"present": False}}, spark_bundle_dir="/b")
    assert rules(planned({"spark-1": host_vars}, locked)) == {}
    assert rules({"spark-1": same}) == {}
    # Both are there: the locked one is served, by its id.
    both = planned({"spark-1": host(SERVICE, images={REF: image(OTHER, None), ID: image(digest=None)})}, locked)
    assert rules(both) == {"lock.moved": "warning"}
    assert both["spark-1"]["services"][0]["image"]["run"] == ID
    assert lock.by_planned_names({REF: image(OTHER, None)}, locked)[REF]["present"] is False
    assert lock.by_planned_names({REF: image(OTHER, None)}, locked)[REF]["other_id"] == OTHER


def test_a_service_keeps_the_image_that_it_was_locked_with(made: dict[str, Any]) -> None:
    """Neither the recipe's first image nor another one on the host."""
    offered = [entry["ref"] for entry in RECIPES["gpt-oss-120b"]["images"]]
    service = {"name": "chat", "recipe": "gpt-oss-120b", "port": 8001}
    locked = copy.deepcopy(made)
    locked["images"][offered[1]] = locked["images"].pop(REF)
    locked["services"]["spark-1/chat"]["image"] = offered[1]
    plan = planned({"spark-1": host(service, images={offered[0]: image()})}, locked)["spark-1"]
    assert plan["images"] == [f"{offered[1]}@{DIGEST}"]
    assert "image.alternative" not in [finding["rule"] for finding in plan["findings"]]


def test_what_moved_since_is_said_with_the_fix(made: dict[str, Any]) -> None:
    other = "nvcr.io/nvidia/vllm:26.04-py3"
    tag = planned({"spark-1": host({**SERVICE, "image": other})}, made)
    assert rules(tag) == {"lock.image": "warning"}
    finding = next(f for f in tag["spark-1"]["findings"] if f["rule"] == "lock.image")
    assert (REF in finding["message"], other in finding["message"]) == (True, True)
    assert "dgxspark.vllm.lock --limit spark-1" in finding["fix"]
    assert tag["spark-1"]["images"] == [other]
    revision = planned({"spark-1": host({**SERVICE, "model": {"revision": "v2"}})}, made)
    assert rules(revision) == {"lock.model": "warning"}
    assert revision["spark-1"]["models"][0]["revision"] == "v2"
    new = planned({"spark-1": host({**SERVICE, "name": "other"})}, made)
    assert rules(new) == {"lock.unlisted": "warning"}
    assert new["spark-1"]["images"] == [f"{REF}@{DIGEST}"]
    silenced = planned({"spark-1": host({**SERVICE, "name": "other"}, spark_ignore_rules=["lock.unlisted"])}, made)
    assert rules(silenced) == {}


def test_a_name_that_moved_on_the_host_is_said_and_not_deployed(made: dict[str, Any]) -> None:
    newer = "f" * 40
    images = {
        REF: image(OTHER, f"sha256:{'e' * 64}"),
        f"{REF}@{DIGEST}": image(),
    }
    host_vars = {
        **host(SERVICE, images=images),
        "measured": {"models": [REPO], "snapshots": {REPO: {"commits": [COMMIT, newer], "refs": {"main": newer}}}},
    }
    plan = planned({"spark-1": host_vars}, made)
    warnings = [f for f in plan["spark-1"]["findings"] if f["rule"] == "lock.moved"]
    assert [f["message"] for f in warnings] == [
        f"{REF} is 222222222222 on this host now; dddddddddddd of the lock file is deployed.",
        f"{REPO}@main is commit ffffffffffff on this host now; 0123456789ab of the lock file is deployed.",
    ]
    assert all("dgxspark.vllm.lock --limit spark-1" in f["fix"] for f in warnings)
    assert plan["spark-1"]["services"][0]["image"]["run"] == f"vllm/vllm-openai@{DIGEST}"
    assert plan["spark-1"]["models"][0]["revision"] == COMMIT
    assert plan["spark-1"]["missing"] == {"images": [], "models": []}
    # The same push in another kind of image store has another id.
    same = host(SERVICE, images={**images, REF: image(OTHER)})
    assert rules(planned({"spark-1": same}, made)) == {}
    assert REF in planned({"spark-1": host(SERVICE)}, made)["spark-1"]["image_candidates"]


def test_a_bundle_and_packages_of_pip_are_warned_of() -> None:
    service = {**SERVICE, "pip": ["flashinfer==1"]}
    for more, has_bundle in (({}, False), ({"spark_bundle_dir": "/b"}, True)):
        host_findings = planned({"a": host(service, **more)})["a"]["findings"]
        assert ("bundle.pip" in [finding["rule"] for finding in host_findings]) is has_bundle


def test_a_name_that_moved_at_its_registry_or_at_the_hub_is_said(made: dict[str, Any]) -> None:
    def moved_findings(upstream: dict[str, Any] | None, **more: Any) -> list[str]:
        plan = engine.make_plan({"spark-1": {**host(SERVICE), **more}}, RECIPES, lock=made, upstream=upstream)
        assert plan["hosts"]["spark-1"]["images"] == [f"{REF}@{DIGEST}"]
        return [f["message"] for f in plan["hosts"]["spark-1"]["findings"] if f["rule"] == "lock.moved"]

    newer, key = "f" * 40, f"{REPO}@main"
    assert moved_findings(None) == moved_findings({"images": {REF: DIGEST}, "models": {key: COMMIT}}) == []
    pushed = {"images": {REF: f"sha256:{'e' * 64}"}, "models": {key: newer}}
    assert moved_findings(pushed) == [
        f"{REF} is eeeeeeeeeeee at its registry by now; dddddddddddd of the lock file is deployed.",
        f"{key} is commit ffffffffffff at the hub by now; 0123456789ab of the lock file is deployed.",
    ]
    # Once is enough where the host has it already.
    images = {"models": [REPO], "snapshots": {REPO: {"commits": [newer], "refs": {"main": newer}}}}
    messages = moved_findings(pushed, measured=images, images={REF: image(OTHER, f"sha256:{'e' * 64}")})
    assert len(messages) == 2
    assert all("on this host now" in message for message in messages)


def test_what_is_asked_is_what_is_locked_and_can_move(made: dict[str, Any]) -> None:
    def questions(*services: dict[str, Any], locked: Any = made) -> dict[str, Any]:
        plan = planned({"spark-1": host(*services)}, locked)
        return lock_findings.questions(locked, [service["lock"] for service in plan["spark-1"]["services"]])

    assert questions(SERVICE) == {"images": [REF], "models": [{"repo": REPO, "revision": "main"}]}
    assert questions(SERVICE, locked=None) == {"images": [], "models": []}
    assert questions({**SERVICE, "image": f"{REF}@{DIGEST}", "model": {"revision": COMMIT}}) == {
        "images": [],
        "models": [],
    }
    local = copy.deepcopy(made)
    local["images"][REF]["platforms"]["linux/arm64"]["digest"] = None
    assert questions(SERVICE, locked=local)["images"] == []


def test_a_model_at_another_commit_is_missing(made: dict[str, Any]) -> None:
    older = {"commits": ["f" * 40], "refs": {"main": "f" * 40}}
    host_vars = {**host(SERVICE), "measured": {"models": [REPO], "snapshots": {REPO: older}}}
    assert planned({"a": host_vars})["a"]["missing"]["models"] == []
    assert planned({"a": host_vars}, made)["a"]["missing"]["models"] == [f"{REPO}@{COMMIT}"]
    # What a host said to an earlier release has no revisions in it.
    host_vars["measured"] = {"models": [REPO]}
    assert planned({"a": host_vars}, made)["a"]["missing"]["models"] == []


def test_two_services_may_take_different_files_of_one_repository() -> None:
    def extra(*only: str) -> dict[str, Any]:
        return {"model": {"extra": [{"repo": "O/drafts", "only": list(only)}]}}

    services = [{**SERVICE, **extra("a.bin")}, {**SERVICE, "name": "two", "port": 8002, **extra("b.bin")}]
    models = {m["repo"]: m["only"] for m in planned({"a": host(*services)})["a"]["models"]}
    assert models["O/drafts"] == ["a.bin", "b.bin"]
    services[1] = {**services[1], **extra()}
    models = {m["repo"]: m["only"] for m in planned({"a": host(*services)})["a"]["models"]}
    assert models["O/drafts"] == []


def test_a_changed_recipe_is_said_and_a_changed_text_is_not(made: dict[str, Any]) -> None:
    hosts = {"spark-1": host(SERVICE)}
    for change, warns in (
        ({"args": {**RECIPES["qwen3-8b"]["args"], "max-model-len": 4096}}, True),
        ({"summary": "x"}, False),
    ):
        changed = {**RECIPES, "qwen3-8b": {**RECIPES["qwen3-8b"], **change}}
        plan = engine.make_plan(hosts, changed, lock=made)["hosts"]
        assert rules(plan) == ({"lock.recipe": "warning"} if warns else {})


def test_a_recipe_is_the_same_in_every_checkout() -> None:
    def recipe(folder: str) -> dict[str, Any]:
        return {"args": {"a": 1}, "files": [{"source": f"{folder}/x.jinja", "path": "/x"}]}

    same = [lock.recipe_sum(recipe(folder), [], lambda _path: "sum") for folder in ("/home/a", "/srv/b")]
    assert same[0] == same[1]
    assert lock.recipe_sum(recipe("/srv/b"), [], lambda _path: "other") != same[0]
    variants = {**recipe("/a"), "variants": {"v": {"args": {"b": 1}}, "w": {"args": {"b": 2}}}}
    assert lock.recipe_sum(variants, ["v"], str) != lock.recipe_sum(variants, ["w"], str)
    assert lock.recipe_sum(variants, ["v"], str) != lock.recipe_sum(variants, [], str)


def fleet(count: int, locked: Any = None, **variables: Any) -> dict[str, Any]:
    """Return the plan of so many Sparks that serve an image by a moving tag."""
    service = {**SERVICE, "image": "vllm/vllm-openai:latest"}
    return planned({f"spark-{n}": host(service, **variables) for n in range(1, count + 1)}, locked)


def test_a_fleet_is_refused_moving_names_and_two_sparks_are_not() -> None:
    two = fleet(2)
    assert rules(two) == {}
    assert "SPK302" in [finding["rule"] for finding in two["spark-1"]["findings"]]
    assert rules(fleet(3)) == {"lock.moving": "error"}
    assert rules(fleet(3, spark_allow_moving="true")) == {}
    assert rules(fleet(3, spark_moving_hosts=3)) == {}


def test_a_lock_entry_holds_a_moving_name_in_a_fleet(made: dict[str, Any]) -> None:
    locked = copy.deepcopy(made)
    locked["images"]["vllm/vllm-openai:latest"] = locked["images"][REF]
    assert "lock.moving" not in rules(fleet(3, locked))
    assert rules(fleet(3, made), "spark-3") == {"lock.moving": "error", "lock.unlisted": "warning"}


def test_the_error_of_a_fleet_names_the_moving_image_and_model_and_the_fix() -> None:
    (finding,) = (finding for finding in fleet(3)["spark-1"]["findings"] if finding["rule"] == "lock.moving")
    assert "vllm/vllm-openai:latest and Qwen/Qwen3-8B@main" in finding["message"]
    assert finding["fix"].endswith("their locked versions apply to all hosts.")


@pytest.mark.parametrize(
    ("ref", "moving"),
    [
        ("vllm/vllm-openai:latest", True),
        ("vllm/vllm-openai:cu130-nightly", True),
        (REF, False),
        ("nvcr.io/nvidia/vllm:26.04-py3", False),
        ("example.org/own", True),
        ("example.org/own:main", True),
        ("example.org/own:arm64-nightly", True),
        ("example.org/own:stable", True),
        ("example.org/own:nightly-0a1b2c3", False),
        ("example.org/own:7", False),
        (f"example.org/own:main@{DIGEST}", False),
    ],
)
def test_which_tags_move(ref: str, moving: bool) -> None:
    assert lock_findings.moves(ref) is moving


def test_a_cluster_is_locked_once_for_its_hosts() -> None:
    service = {"name": "big", "recipe": "qwen3-235b-a22b-gptq-int4", "port": 8000, "image": REF}
    cluster = {"name": "pair", "services": [service]}
    hosts = {name: host(spark_cluster=cluster) for name in ("a", "b")}
    groups = {"pair": ["a", "b"]}
    plan = engine.make_plan(hosts, RECIPES, groups=groups, pin=False)["hosts"]
    requested = plan["a"]["models"][0]
    report = model(repo=requested["repo"], revision=requested["revision"])
    locked, refusals, _notes = lock_making.collect(
        plan, ["a", "b"], {"a": {REF: image()}, "b": {REF: image()}}, {"a": [report], "b": [report]}, None
    )
    assert refusals == []
    assert list(locked["services"]) == ["pair/big"]
    after = engine.make_plan(hosts, RECIPES, groups=groups, lock=locked)["hosts"]
    assert {after[name]["services"][0]["model"]["revision"] for name in "ab"} == {COMMIT}
    assert {name: rules(after, name) for name in "ab"} == {"a": {}, "b": {}}


def test_a_fallback_finds_what_has_no_tag_any_more(made: dict[str, Any]) -> None:
    """A host that was deployed from the lock has neither tag nor refs/main; the next lock is the same."""
    seen = lock.by_planned_names({f"{REF}@{DIGEST}": image(), REF: {"present": False}}, made, pin=False)
    assert seen[REF]["id"] == ID
    newer = image(OTHER, f"sha256:{'e' * 64}")
    seen = lock.by_planned_names({f"{REF}@{DIGEST}": image(), REF: newer}, made, pin=False)
    assert seen[REF] == newer
    plan = planned({"spark-1": host(SERVICE)}, made, pin=False)["spark-1"]
    assert {REF, f"{REF}@{DIGEST}", ID} <= set(plan["image_candidates"])
    assert plan["models"][0]["revision"] == "main"
    assert plan["models"][0]["locked"] == COMMIT


def test_a_plan_with_a_lock_is_plain_json(made: dict[str, Any]) -> None:
    plan = planned({"spark-1": host(SERVICE)}, made)
    assert json.loads(json.dumps(plan)) == plan
