"""Recipes and services: merging, and every complaint that bad input earns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import recipes
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service import ServiceSpec

RECIPE: dict[str, Any] = {
    "name": "base",
    "summary": "a model",
    "model": {"repo": "Org/Model", "revision": "main"},
    "images": [
        {"ref": "nvcr.io/nvidia/vllm:26.04-py3", "args": {"max-num-seqs": 2}, "env": {"FROM_IMAGE": "1"}},
        {"ref": "vllm/vllm-openai:v0.24.0-ubuntu2404"},
    ],
    "args": {
        "max-model-len": 1000,
        "max-num-seqs": 1,
        "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
    },
    "env": {"A": "recipe"},
    "variants": {"long": {"args": {"max_model_len": 9000}, "checks": {"tools": True}}},
    "config": {"architectures": ["X"]},
    "source": ["somewhere"],
}
KNOWN = {"base": RECIPE}


def resolve(service: Any, defaults: dict[str, Any] | None = None) -> tuple[ServiceSpec | None, list[str]]:
    return recipes.resolve_service(service, "host spark-1, spark_services[0]", KNOWN, defaults)


def ok(service: dict[str, Any], defaults: dict[str, Any] | None = None) -> ServiceSpec:
    merged, problems = resolve({"name": "a", "port": 8001, "recipe": "base", **service}, defaults)
    assert problems == []
    assert merged is not None
    return merged


def test_later_layers_win_whatever_their_spelling() -> None:
    merged = ok({"variant": "long", "args": {"max_num_seqs": 7}}, {"args": {"--max-num-seqs": 5, "seed": 1}})
    assert merged.args["max-model-len"] == 9000
    assert merged.args["max-num-seqs"] == 7
    assert merged.args["seed"] == 1
    assert merged.checks == {"tools": True, "reasoning": False}


def test_an_image_of_the_recipe_brings_its_adjustments() -> None:
    assert ok({}).args["max-num-seqs"] == 2
    assert ok({}).env == {"A": "recipe", "FROM_IMAGE": "1"}
    other = ok({"image": "vllm/vllm-openai:v0.24.0-ubuntu2404"})
    assert other.args["max-num-seqs"] == 1
    assert "FROM_IMAGE" not in other.env


def test_null_removes_and_json_values_are_replaced_whole() -> None:
    assert "speculative-config" not in ok({"args": {"speculative-config": None}}).args
    assert ok({"args": {"speculative-config": {"method": "ngram"}}}).args["speculative-config"] == {"method": "ngram"}


def test_a_service_key_may_be_spelled_with_dashes() -> None:
    assert ok({"served-model-name": "writer"}).served_model_name == "writer"
    assert ok({}).served_model_name == "a"


def test_an_api_key_file_is_a_secret_of_the_engine() -> None:
    assert ok({}, {"api_key_file": "/keys/a"}).secrets == {"VLLM_API_KEY": "/keys/a"}


@pytest.mark.parametrize(
    ("service", "needle"),
    [
        ({"recipe": "bas"}, "unknown recipe 'bas'; did you mean 'base'?"),
        ({"prot": 1}, "unknown key 'prot'; did you mean 'port'?"),
        ({"variant": "lang"}, "unknown variant 'lang' of recipe base; did you mean 'long'?"),
        ({"port": 0}, "'port' is 0; it must be a whole number from 1 to 65535"),
        ({"port": True}, "'port' is a boolean; it must be a whole number from 1 to 65535"),
        ({"port": "8001"}, "'port' is a text"),
        ({"name": "a b"}, "'name' is 'a b'"),
        ({"name": "a;reboot"}, "'name' is 'a;reboot'"),
        ({"name": "%n"}, "'name' is '%n'"),
        (
            {"name": "gateway"},
            "'name' is 'gateway', which is a unit of this collection already (spark-gateway.service)",
        ),
        ({"model": {"repo": "Org/Mo;del$(reboot)"}}, "'model.repo' is 'Org/Mo;del$(reboot)'; it must be ORG/NAME"),
        ({"model": {"repo": "Org/Model", "path": "/x"}}, "needs either 'repo'"),
        (
            {"model": {"repo": "Org/Model", "revision": "a b"}},
            "'model.revision' is 'a b'; it must be a commit, tag or branch",
        ),
        ({"image": "-v /:/host"}, "'image' is '-v /:/host'"),
        ({"args": {"port": 1}}, "it is the key 'port' of the service"),
        ({"args": {"served_model_name": "x"}}, "it is the key 'served_model_name' of the service"),
        ({"args": {"chat-template": "a\nb"}}, "args.chat-template contains a control character"),
        ({"env": {"HF_TOKEN": "x"}}, "looks like a secret"),
        ({"env": {"A B": "x"}}, "no environment variable"),
        ({"env": {"A": "x\ny"}}, "line break"),
        ({"weights_gib": -1}, "'weights_gib' is -1"),
        ({"shm_size": "lots"}, "'shm_size' is 'lots'"),
        ({"start_timeout": 5}, "'start_timeout' is 5"),
        ({"host": "a b"}, "'host' is 'a b'"),
        ({"docker_args": "x"}, "'docker_args' is a text; it must be a list"),
        ({"checks": {"tols": True}}, "unknown key of checks: 'tols'; did you mean 'tools'?"),
        ({"checks": {"tools": "yes"}}, "'checks.tools' is a text; it must be a boolean"),
        ({"checks": {"max_tokens": "many"}}, "'checks.max_tokens' is a text; it must be a whole number"),
        ({"checks": {"max_tokens": True}}, "'checks.max_tokens' is a boolean"),
        ({"checks": {"temperature": -1}}, "'checks.temperature' is -1; it must be a number from 0 to 2"),
        ({"checks": {"temperature": float("nan")}}, "'checks.temperature' is nan"),
        ({"args": []}, "'args' is a list; it must be a mapping"),
    ],
)
def test_bad_input_is_named_with_its_place(service: dict[str, Any], needle: str) -> None:
    _merged, problems = resolve({"name": "a", "port": 8001, "recipe": "base", **service})
    assert any(needle in problem for problem in problems), problems
    assert all(problem.startswith("host spark-1, spark_services[0]") for problem in problems)


def test_all_problems_are_told_at_once() -> None:
    _merged, problems = resolve({"name": "A", "port": -1, "recipe": "nope", "what": 1})
    assert len(problems) == 4, problems


def test_something_that_is_no_mapping() -> None:
    assert resolve("base")[1] == [
        "host spark-1, spark_services[0]: must be a mapping with at least name, recipe and port, not a text."
    ]


def test_a_service_without_recipe_needs_model_image_and_config() -> None:
    _merged, problems = resolve({"name": "a", "port": 1, "model": {"path": "/srv/own"}})
    assert any("'image' is missing" in problem for problem in problems)
    assert any("'config' is missing" in problem for problem in problems)
    # The config of a repository can be read once a host has the model.
    _merged, problems = resolve({"name": "a", "port": 1, "model": {"repo": "Org/Model"}, "image": "an/image:1"})
    assert problems == []
    assert any("'recipe' is missing" in problem for problem in resolve({"name": "a", "port": 1})[1])


FOLDER = Path(__file__).parents[5] / "playbooks" / "recipes"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yml")), ids=lambda path: path.stem)
def test_shipped_recipes_are_valid(path: Path) -> None:
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert recipes.validate_recipe(recipe, path.name) == []
    assert recipe["name"] == path.stem


def test_a_broken_recipe_says_all_that_is_wrong() -> None:
    wrong = recipes.validate_recipe({"name": "x", "imagse": [], "args": {"host": "1"}}, "x.yml")
    assert any("unknown key 'imagse'; did you mean 'images'?" in message for message in wrong)
    assert any("'summary' is missing" in message for message in wrong)
    assert any("key 'host' of the service" in message for message in wrong)
    assert recipes.validate_recipe([], "x.yml") == ["recipe x.yml: must be a mapping, not a list."]
