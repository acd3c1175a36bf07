# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every shipped recipe, variant and image: it plans without an error, or it is meant to be refused, and says by what."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cluster_fixture import network
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat import compat
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import container_argv, judging, recipes
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.model_table import (
    architecture,
    model_row,
    model_rows,
    models_text,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue, image_catalogue
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.versions import version

GIB = 2**30

# Recipes that are not servable, and the finding with the reason.
REFUSED = {
    ("qwen3-235b-a22b-gptq-int4", "one-spark"): "memory.node",
    ("qwen3.5-122b-a10b-nvfp4", "bf16"): "memory.load",
    ("qwen3.5-397b-a17b-nvfp4", "two-sparks"): "memory.no_cache_memory",
}


def sparks_of(name: str, variant: str | None) -> int:
    """For how many Sparks a way to serve is written."""
    body = (RECIPES[name].get("variants") or {}).get(variant) or {}
    return int(body.get("nodes") or RECIPES[name].get("nodes") or 1)


def ways() -> Iterator[tuple[str, str | None, str]]:
    """Every recipe, variant and image."""
    for name, recipe in RECIPES.items():
        for variant in (None, *(recipe.get("variants") or {})):
            body = (recipe.get("variants") or {}).get(variant) or {}
            for image in body.get("images") or recipe["images"]:
                yield name, variant, image["ref"]


WAYS = list(ways())


def service(name: str, variant: str | None = None, image: str | None = None, **more: Any) -> dict[str, Any]:
    made = {"name": "model", "recipe": name, "port": 8001, **more}
    made.update({"variant": variant} if variant else {}, **({"image": image} if image else {}))
    return made


def plan_of(*services: dict[str, Any], images: dict[str, Any] | None = None, **variables: Any) -> dict[str, Any]:
    host = {
        "vars": {"spark_services": list(services), "spark_total_gib": 119.67, **variables},
        "address": "192.0.2.1",
        "images": images or {},
    }
    planned: dict[str, Any] = engine.make_plan({"spark": host}, RECIPES, lambda path: f"{len(path):064x}")["hosts"][
        "spark"
    ]
    return planned


def errors(planned: dict[str, Any]) -> list[str]:
    return [finding["rule"] for finding in planned["findings"] if finding["severity"] == "error"]


ONE = [way for way in WAYS if sparks_of(*way[:2]) == 1]
SEVERAL = [way for way in WAYS if sparks_of(*way[:2]) > 1]


def named(ways: list[tuple[str, str | None, str]]) -> list[str]:
    return [f"{name}-{variant}-{image}" for name, variant, image in ways]


@pytest.mark.parametrize(("name", "variant", "image"), ONE, ids=named(ONE))
def test_way_to_serve(name: str, variant: str | None, image: str) -> None:
    refused = REFUSED.get((name, variant))
    planned = plan_of(service(name, variant, image))
    assert (refused in errors(planned)) if refused else errors(planned) == []
    assert planned["verdict"] == ("fails" if refused else "fits")
    made = planned["services"][0]
    assert "{model}" not in str(made["argv"])
    assert made["image"]["ref"] == image


def cluster_of(count: int, entry: dict[str, Any], topology: str) -> dict[str, Any]:
    """The inventory of so many Sparks that are one cluster with one engine, with the network that the role fabric plans for them."""
    variables = {"spark_cluster": {"name": "all", "services": [entry]}, "spark_total_gib": 119.67}
    names = [f"spark-{rank}" for rank in range(count)]
    cabled = network(topology, names)
    return {
        name: {"vars": variables, "address": f"192.0.2.{rank + 1}", "images": {}, "fabric": cabled}
        for rank, name in enumerate(names)
    }


OVER = [
    (*way, topology)
    for way in SEVERAL
    for topology in ("ring", "switch")
    if topology == "switch" or sparks_of(*way[:2]) > 2
]


@pytest.mark.parametrize(
    ("name", "variant", "image", "topology"),
    OVER,
    ids=[f"{name}-{variant}-{image}-{cabled}" for name, variant, image, cabled in OVER],
)
def test_way_to_serve_over_several_sparks(name: str, variant: str | None, image: str, topology: str) -> None:
    """On the number that it is written for it plans, rank by rank, in a ring and on a switch; one Spark alone is told how many it needs."""
    count, entry = sparks_of(name, variant), service(name, variant, image)
    with pytest.raises(InventoryError, match=f"needs {count} Sparks"):
        plan_of(entry)
    inventory = cluster_of(count, entry, topology)
    made_of = engine.make_plan(inventory, RECIPES, lambda path: f"{len(path):064x}", groups={"all": list(inventory)})
    hosts = made_of["hosts"]
    assert len(hosts) == count
    refused = REFUSED.get((name, variant))
    for rank, host in enumerate(hosts.values()):
        rules = [rule for rule in errors(host) if rule.startswith(("memory.", "SPK", "cluster.", "fabric."))]
        assert (refused in rules) if refused else rules == [], rank
        (made,) = host["services"]
        assert (made["rank"], made["image"]["ref"]) == (rank, image)
        argv = " ".join(made["argv"] + made["command"])
        assert f"--nnodes {count}" in argv and f"--node-rank {rank}" in argv
        assert made["env"].get("NCCL_ALGO") == ("Ring" if topology == "ring" and count > 3 else None)
        assert made["env"]["NCCL_IB_HCA"].count("roce") == (4 if topology == "ring" else 2)


def test_what_is_refused_exists() -> None:
    assert set(REFUSED) <= {(name, variant) for name, variant, _image in WAYS}


@pytest.mark.parametrize("name", RECIPES)
def test_the_least_version_of_a_recipe_is_that_of_its_images(name: str) -> None:
    """No image of a recipe is older than its least version, which every recipe states."""
    recipe = RECIPES[name]
    least = recipe.get("least_vllm")
    assert least or recipe["model"].get("path")
    for body in (recipe, *(recipe.get("variants") or {}).values()):
        for image in body.get("images") or []:
            catalogued = image_catalogue.lookup(image["ref"]) or {}
            has = image.get("vllm_version") or catalogued.get("vllm_version")
            least_version = body.get("least_vllm") or least
            assert not has or not least_version or version(has) >= version(least_version), (image["ref"], has)


# What asks for a newer vLLM than the first that reads the launch: who says so.
LATER = {
    "deepseek-v4-flash": "its DSpark drafter: vLLM 0.25.0",
    "kimi-k2.6-nvfp4": "vLLM recipes, Kimi-K2.6: 0.25.0",
    "laguna-s-2.1-nvfp4": "vLLM recipes, Laguna-S-2.1: validated on a Spark with 0.25.1",
    "mimo-v2.6-flash-rl": "eugr: vLLM after 2026-09-21 has its MXFP4 experts",
    "nemotron-3.5-lightning-30b-a3b-nvfp4": "vLLM recipes: 0.27.1",
    "qwen3-coder-next-fp8": "its model card: 0.15.0",
    "qwen3.6-27b-nvfp4": "the first release whose wheel has FP4 kernels for SM12x",
    "qwen3.6-35b-a3b-nvfp4": "the oldest that it was served by: nvcr.io/nvidia/vllm:26.04-py3",
    "qwen3.6-35b-a3b-nvfp4-modelopt": "the first release whose wheel has FP4 kernels for SM12x",
    "qwen3.8-27b-nvfp4": "NVIDIA local-ai-inference-recipes: 0.28.0",
}
# Features of an image that its stated release lacks.
EARLIER = {"gemma-4-26b-a4b": "vllm/vllm-openai:gemma4-0505-arm64-cu130, a build of 0.20.1 that has MTP for Gemma 4"}
# Of a fork's image only names of any vLLM are checked: the architecture and the parsers.
ANY_BUILD = {"SPK401", "SPK701", "SPK702"}


def first_that_reads(recipe: dict[str, Any]) -> str:
    """The oldest vLLM of the catalogue that refuses nothing of a recipe's launch; how ranks find each other is the cluster's to say."""
    fork = all(image["ref"].startswith("eugr/") for image in recipe["images"])
    for release in map(str, catalogue.versions()):
        request = {
            "image": "example.org/vllm@sha256:" + "0" * 64,
            "vllm_version": release,
            "entrypoint": "serve",
            "model": {
                "repo": recipe["model"].get("repo"),
                "config": recipe["config"],
                "quant_config": recipe.get("quant_config"),
            },
            "args": recipe["args"],
            "env": recipe.get("env") or {},
        }
        rules = {
            finding["rule"] for finding in compat.check_launch(request)["findings"] if finding["severity"] == "error"
        }
        if not (rules & ANY_BUILD if fork else {rule for rule in rules if not rule.startswith("SPK8")}):
            return release
    raise AssertionError("no release reads it")


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe["model"].get("repo")])
def test_the_least_version_of_a_recipe_is_the_first_that_reads_its_launch(name: str) -> None:
    """By the catalogue, which is made from the packages of vLLM: architectures, parsers, options, methods of drafting."""
    least, first = version(RECIPES[name]["least_vllm"]), version(first_that_reads(RECIPES[name]))
    if first == catalogue.versions()[0]:  # the oldest that was read: older ones are not known
        first = min(first, version("0.10.1"))
    assert (least > first) == (name in LATER), (least, first)
    assert (least < first) == (name in EARLIER), (least, first)


def test_an_image_that_is_too_old_is_named() -> None:
    older = plan_of(service("qwen3.8-27b-nvfp4", image="vllm/vllm-openai:v0.24.0-ubuntu2404"))
    (error,) = [finding for finding in older["findings"] if finding["rule"] == "image.too_old"]
    assert "has vLLM 0.24.0" in error["message"] and "0.28.0 and newer" in error["message"]
    quiet = plan_of(service("qwen3.8-27b-nvfp4", image="vllm/vllm-openai:v0.24.0-ubuntu2404", ignore=["image.too_old"]))
    for planned in (plan_of(service("qwen3.8-27b-nvfp4")), quiet):
        assert "image.too_old" not in [finding["rule"] for finding in planned["findings"]]


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_recipe_is_for_is_what_it_does(name: str) -> None:
    """Its jobs are what it checks and reads: agents get their tools proved, images need a tower, vectors a model that pools."""
    recipe = RECIPES[name]
    jobs = set(recipe.get("jobs") or [])
    assert jobs or recipe["model"].get("path")
    assert ("agents" in jobs) <= bool(recipe.get("checks", {}).get("tools"))
    assert ("vision" in jobs) <= bool(recipe["config"].get("vision_config"))
    assert bool(jobs & {"embed", "rerank"}) == (recipe["args"].get("runner") == "pooling")


def test_memory_that_a_recipe_states_is_planned_with() -> None:
    spec, problems = recipes.resolve_service(service("deepseek-v4-flash"), "test", RECIPES)
    assert problems == [] and spec is not None
    assert spec.memory == {"weights_gib": 80.8, "kv_gib": 11, "other_gib": 10}
    # The variant's statement replaces all of the recipe's, and the service's replaces both.
    eight, _problems = recipes.resolve_service(service("deepseek-v4.1-flash", "eight-sparks"), "test", RECIPES)
    assert eight is not None and (eight.memory, eight.memory_gib) == (None, 95.7)
    overridden, _problems = recipes.resolve_service(service("deepseek-v4-flash", memory_gib=90), "test", RECIPES)
    assert overridden is not None and (overridden.memory, overridden.memory_gib) == (None, 90)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_names_its_sources(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe["source"]
    assert all(len(source) > 10 for source in recipe["source"])
    bodies = [recipe, *(recipe.get("variants") or {}).values()]
    assert [entry for body in bodies for entry in body.get("expect") or [] if not entry["source"]] == []
    # A variant with another figure needs another source.
    figures = ("weights_gib", "draft_weights_gib", "draft_config", "config")
    bare = [
        variant
        for variant, body in (recipe.get("variants") or {}).items()
        if any(body.get(key) for key in figures) and not body.get("source")
    ]
    assert bare == []


def test_every_word_of_a_recipe_is_checked() -> None:
    """A key that is misspelled anywhere in a recipe is refused by name."""
    for name, recipe in RECIPES.items():
        assert recipes.validate_recipe(recipe, name) == []
        for place in ("top", "images", "variants", "model", "checks", "expect", "files"):
            broken = copy.deepcopy(recipe)
            bodies: dict[str, Any] = {
                "top": broken,
                "images": broken["images"][0],
                "variants": broken.setdefault("variants", {}).setdefault("mutant", {}),
                "model": broken["model"],
                "checks": broken.setdefault("checks", {}),
                "expect": {},
                "files": {},
            }
            bodies[place]["speling"] = True
            if place in ("expect", "files"):
                broken[place] = [bodies[place]]
            messages = recipes.validate_recipe(broken, name)
            assert any("'speling'" in message for message in messages), (name, place, messages)


@pytest.mark.parametrize(
    ("change", "needle"),
    [
        (
            {"files": [{"source": "../x", "path": "/a"}]},
            "'files[0].source' is '../x'; it must be a file on the controller, or {model}/NAME",
        ),
        ({"files": [{"source": "{model}", "path": "/a"}]}, "'files[0].source' is '{model}'"),
        (
            {"files": [{"source": "x", "path": "a,readonly=false"}]},
            "'files[0].path' is 'a,readonly=false'; it must be an absolute path",
        ),
        ({"files": "x"}, "'files' is a text; it must be a list"),
        ({"pip": ["a; rm -rf /"]}, "'pip[0]' is 'a; rm -rf /'; it must be NAME==VERSION"),
        ({"pip": ["--index-url=x"]}, "'pip[0]' is '--index-url=x'"),
        ({"nodes": 0}, "'nodes' is 0"),
        ({"least_vllm": 0.28}, "'least_vllm' is a number; it must be a version of vLLM in quotes"),
        ({"jobs": ["chatt"]}, "'jobs' contains 'chatt'; did you mean 'chat'?"),
        ({"memory": {"kv_gib": 1}}, "'memory' needs 'weights_gib'"),
        ({"expect": [{"what": "x"}]}, "'expect[0].source' is missing"),
        ({"draft_weights_gib": -1}, "'draft_weights_gib' is -1"),
        ({"args": {"port": 1}}, "it is the key 'port' of the service"),
        ({"env": {"HF_TOKEN": "x"}}, "looks like a secret"),
        ({"model": {"repo": "no slash"}}, "'model.repo' is 'no slash'"),
    ],
)
def test_a_broken_variant_is_named(change: dict[str, Any], needle: str) -> None:
    recipe = copy.deepcopy(RECIPES["qwen3-8b"])
    recipe["variants"]["mine"] = change
    messages = recipes.validate_recipe(recipe, "x.yml")
    assert any(needle in message and message.startswith("recipe x.yml, variant mine:") for message in messages), (
        messages
    )


# Images -------------------------------------------------------------------------------------------------------------

FIRST, SECOND = (image["ref"] for image in RECIPES["gemma-4-26b-a4b-nvfp4"]["images"])


@pytest.mark.parametrize(
    ("present_images", "pinned", "served"),
    [
        ({}, None, FIRST),
        ({SECOND: True}, None, SECOND),
        ({FIRST: False, SECOND: True}, None, SECOND),
        ({FIRST: True, SECOND: True}, None, FIRST),
        ({SECOND: True}, FIRST, FIRST),
        ({FIRST: True}, SECOND, SECOND),
    ],
)
def test_the_first_image_that_the_host_has_serves(
    present_images: dict[str, bool], pinned: str | None, served: str
) -> None:
    images = {ref: {"present": has, "id": "sha256:" + "a" * 64} for ref, has in present_images.items()}
    planned = plan_of(service("gemma-4-26b-a4b-nvfp4", image=pinned), images=images)
    made = planned["services"][0]
    assert made["image"]["ref"] == served
    assert planned["images"] == [served]
    assert planned["image_candidates"] == ([pinned] if pinned else sorted((FIRST, SECOND)))
    # Each image with its own adjustments: the old one with the loader that the checkpoint ships, the new one without.
    mounted = [word for word in made["argv"] if "models/gemma4.py" in word]
    assert len(mounted) == (1 if served == FIRST else 0)
    notes = [finding for finding in planned["findings"] if finding["rule"] == "image.alternative"]
    assert bool(notes) == (served == SECOND and not pinned)


# Files and packages -------------------------------------------------------------------------------------------------


def test_a_file_of_the_checkpoint_is_named_without_its_commit() -> None:
    planned = plan_of(service("gemma-4-26b-a4b-nvfp4"))
    link = "snapshots/bg-digitalservices--Gemma-4-26B-A4B-it-NVFP4@main"
    loader = "/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py"
    mount = f"type=bind,src=/srv/huggingface/{link}/gemma4_patched.py,dst={loader},readonly"
    made = planned["services"][0]
    assert made["argv"][made["argv"].index(mount) - 1] == "--mount"
    assert [model["link"] for model in planned["models"]] == [link]
    assert made["folders"] == [{"path": "/var/cache/dgxspark/model", "mode": "0755", "holds": "cache"}]


def test_a_parser_and_a_drafter_of_the_checkpoint_are_found_in_the_container() -> None:
    made = plan_of(service("nemotron-3-nano-30b-a3b-nvfp4", "parser-file"))["services"][0]
    folder = "/root/.cache/huggingface/snapshots/nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4@main"
    assert made["args"]["reasoning-parser-plugin"] == f"{folder}/nano_v3_reasoning_parser.py"
    drafted = plan_of(service("gemma-4-12b-coder", "mtp"))["services"][0]
    assert drafted["args"]["speculative-config"]["model"].endswith("composer2.5-MTP-NVFP4@main/assistant")
    assert [m["link"] for m in plan_of(service("qwen3-8b"))["models"]] == [""], "no link where nothing needs one"


def test_a_file_of_the_controller_is_shipped_under_a_name_that_holds_its_content() -> None:
    template = {"source": "/inventory/fixed.jinja", "path": "/etc/dgxspark/chat.jinja"}
    entry = service("qwen3.5-122b-a10b-nvfp4", files=[template], args={"chat-template": template["path"]})
    host = {"vars": {"spark_services": [entry]}, "address": "192.0.2.1"}

    def made(sha256: str | None) -> dict[str, Any]:
        planned = engine.make_plan({"a": host}, RECIPES, lambda _path: sha256)["hosts"]["a"]
        shipped: dict[str, Any] = planned["services"][0]
        return shipped

    first, other = made("a" * 64), made("b" * 64)
    assert first["files"] == [
        {**template, "sha256": "a" * 64, "host": "/etc/dgxspark/files/model/aaaaaaaaaaaa-fixed.jinja"}
    ]
    assert {"path": "/etc/dgxspark/files/model", "mode": "0755"} in first["folders"]
    assert f"type=bind,src={first['files'][0]['host']},dst={template['path']},readonly" in first["argv"]
    assert first["fingerprint"] != other["fingerprint"], "a file that changes restarts the engine"
    assert first["fingerprint"] == made("a" * 64)["fingerprint"]
    assert made(None)["files"][0]["sha256"] is None


def test_files_of_a_recipe_are_relative_to_its_folder() -> None:
    recipe = copy.deepcopy(RECIPES["qwen3-8b"])
    recipe["files"] = [{"source": "a.jinja", "path": "/a"}, {"source": "/b", "path": "/b"}]
    recipe["images"][0]["files"] = [{"source": "{model}/c.py", "path": "/c"}]
    recipe["variants"]["ngram"]["files"] = [{"source": "d.py", "path": "/d"}]
    placed = recipes.anchor_files(recipe, "/recipes")
    assert [entry["source"] for entry in placed["files"]] == ["/recipes/a.jinja", "/b"]
    assert placed["images"][0]["files"][0]["source"] == "{model}/c.py"
    assert placed["variants"]["ngram"]["files"][0]["source"] == "/recipes/d.py"
    assert recipe["files"][0]["source"] == "a.jinja"


@pytest.mark.parametrize("keyed", [False, True])
def test_packages_are_installed_before_the_engine_and_the_entrypoint_stays_where_it_matters(keyed: bool) -> None:
    secret = {"api_key_file": "/keys/a"} if keyed else {}
    serve = plan_of(service("nemotron-3-nano-omni-30b-a3b-nvfp4", **secret))["services"][0]
    assert serve["argv"][serve["argv"].index("--entrypoint") + 1] == "/bin/sh"
    assert serve["command"][0] == "-c"
    assert re.fullmatch(
        r"pip install [-\w /.]+ --require-hashes --requirement (\S+) && exec \"\$@\"", serve["command"][1]
    )
    listed = next(file for file in serve["files"] if file["path"] == "/etc/dgxspark/pip/requirements.txt")
    assert [line.partition("==")[0] for line in listed["content"].splitlines()] == ["av", "scipy", "soundfile", "soxr"]
    assert f"type=bind,src={listed['host']},dst={listed['path']},readonly" in serve["argv"]
    # $0, then what the shell becomes.
    behind = serve["command"][3:]
    assert behind[: 3 if keyed else 2] == [*([container_argv.WITH_SECRETS] if keyed else []), "vllm", "serve"]
    ngc = plan_of(service("qwen3-8b", image="nvcr.io/nvidia/vllm:26.04-py3", pip=["a==1"], **secret))["services"][0]
    assert "--entrypoint" not in ngc["argv"], "NVIDIA's entrypoint brings forward compatibility"
    assert ngc["command"][:2] == ["/bin/sh", "-c"]


# Two Sparks, and the table -------------------------------------------------------------------------------------------


def test_the_pair_is_planned_by_rank() -> None:
    """57.64 GiB on each node, and at the document's 0.87 the cache holds the four requests that it measured."""
    spec, problems = recipes.resolve_service(
        service("qwen3-235b-a22b-gptq-int4", args={"gpu-memory-utilization": 0.87}), "test", RECIPES
    )
    assert problems == []
    assert spec is not None
    assert spec.nodes == 2
    judged = judging.judge(replace(spec, args={**spec.args, "nnodes": 2, "node-rank": 0, "master-addr": "192.0.2.1"}))
    assert judged["verdict"] == "fits"
    assert judged["memory"]["weights_bytes"] / GIB == pytest.approx(57.64, rel=0.005)
    assert judged["memory"]["max_concurrency"] > 4


@pytest.mark.nightly
def test_the_table_judges_one_and_two_sparks() -> None:
    rows = {(row["recipe"], row["variant"]): row for row in model_rows(RECIPES)}
    assert {name for name, _variant in rows} == set(RECIPES) - {"scripted-tiny"}
    assert set(rows) == {(name, variant) for name, variant, _image in WAYS if name != "scripted-tiny"}
    pair = rows[("qwen3-235b-a22b-gptq-int4", None)]
    assert (pair["fits"][1], pair["fits"][2]) == ("fails", "fits")
    assert rows[("qwen3.5-122b-a10b-nvfp4", None)]["fits"][1] == "fits"
    bf16 = rows[("qwen3.5-122b-a10b-nvfp4", "bf16")]
    assert (bf16["fits"][1], bf16["fits"][2]) == ("fails", "fails")
    assert bf16["remark"].startswith("memory.load: ")
    full, half = (rows[("qwen3.5-397b-a17b-nvfp4", variant)] for variant in (None, "two-sparks"))
    assert (full["fits"][2], full["fits"][4], half["fits"][2]) == ("fails", "fits", "fails")
    assert half["remark"].startswith("memory.no_cache_memory: ")
    text = models_text(list(rows.values()))
    assert re.search(r"^qwen3.5-122b-a10b-nvfp4 +bf16 .* no +no ", text, re.MULTILINE)


def test_weights_of_the_table_are_those_of_the_documents() -> None:
    """Sizes that people saw, within what a checkpoint's own tables make."""
    seen = {
        "qwen3.6-35b-a3b-nvfp4-modelopt": 21.94,
        "qwen3-235b-a22b-gptq-int4": 57.64,
        "qwen3.5-122b-a10b-nvfp4": 70.41,
        "gemma-4-12b-coder": 7.92,
    }
    for name, gib in seen.items():
        row = model_row(RECIPES, name, None, RECIPES[name]["images"][0]["ref"])
        assert row["weights_gib"] == pytest.approx(gib, rel=0.01), name


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        ("qwen3.6-35b-a3b-nvfp4", "MoE hybrid"),
        ("qwen3-30b-a3b", "MoE"),
        ("qwen3.6-27b-nvfp4", "dense hybrid"),
        ("gemma-4-31b-it-nvfp4", "dense"),
    ],
)
def test_the_kind_of_a_model_is_that_of_its_config(recipe: str, kind: str) -> None:
    """What a source calls pure MoE may be a hybrid: its layers say so."""
    assert architecture(RECIPES[recipe]["config"]) == kind
    assert architecture({}) == ""
