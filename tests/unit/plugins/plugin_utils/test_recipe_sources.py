# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes of others, from real git repositories: recipe_sources and recipe_references."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import printable
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import model_table, recipe_references, recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import recipe_sources
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
PAIR = """
name: Some Pair
container: registry.example/vllm:1
mods: [mods/patch-it]
env: {A: b}
defaults: {port: 8000, tensor_parallel: 2}
command: |
  vllm serve org/Some --port {port} --tensor-parallel-size {tensor_parallel} --seed 1
"""
LOCAL = "name: Local\ncontainer: vllm-node\ncommand: vllm serve org/Local\n"
OFFICIAL = """
model: {model_id: org/Official, min_vllm_version: 0.28.0}
variants:
  default: {vram_minimum_gb: 60, extra_args: [--seed, "1"]}
  small: {model_id: org/Official-NVFP4, vram_minimum_gb: 30, extra_args: [--kv-cache-dtype, fp8]}
"""
FILES = {
    "recipes/pair.yaml": PAIR,
    "recipes/local.yaml": LOCAL,
    "models/org/official.yaml": OFFICIAL,
    "recipes/4x/pair.yaml": PAIR.replace("tensor_parallel: 2", "tensor_parallel: 4").replace(
        "env:", "cluster_only: true\nenv:"
    ),
    "recipes/other.yaml": "name: Other\ncontainer: x/y\ncommand: sglang serve org/Other\n",
    "compose.yaml": "services: {a: {image: b}}\n",
    "big.yaml": "# " + "x" * 300_000,
    ".github/ci.yaml": PAIR,
    "run.sh": "touch /tmp/never\n",
}


def git(folder: Path, *words: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z"}
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *who, *words], cwd=folder, env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "recipes/linked.yaml").symlink_to("/etc/passwd")
    # A filter of a stranger's choice must not run when its files are read.
    (folder / ".gitattributes").write_text("*.yaml filter=evil\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "recipes")
    git(folder, "config", "filter.evil.smudge", f"touch {tmp_path}/ran; cat")
    return folder


def sources(folder: Path, *source: dict[str, str], keep: bool = True) -> recipe_sources.RecipeSources:
    parsed, wrong = recipe_references.read_sources(list(source), "host x")
    assert wrong == []
    return recipe_sources.RecipeSources(parsed, folder / ".spark/recipes", keep)


def recipe_of(
    made: recipe_sources.RecipeSources, reference: str, known_recipes: dict[str, Any] | None = None
) -> dict[str, Any]:
    return made.recipes([reference], known_recipes or {})[reference]


def service(reference: str, recipe: dict[str, Any], **more: Any) -> tuple[Any, list[str]]:
    written = {"name": "x", "recipe": reference, "port": 9000, "config": CONFIG, **more}
    return recipes.resolve_service(written, "host x", {reference: recipe})


@pytest.mark.parametrize("way", ["path", "url"])
def test_a_recipe_of_a_repository_at_a_commit(tmp_path: Path, clone: Path, way: str) -> None:
    commit = git(clone, "rev-parse", "HEAD")
    (clone / "recipes/local.yaml").write_text("changed since\n")
    source = {"name": "eugr", way: str(clone) if way == "path" else f"file://{clone}", "commit": commit}
    recipe = recipe_of(sources(tmp_path, source), "eugr:recipes/pair.yaml")
    assert (recipe["model"], recipe["nodes"], recipe["args"]) == (
        {"repo": "org/Some"},
        2,
        {"seed": 1, "tensor-parallel-size": 2},
    )
    assert recipe["images"] == [{"ref": "registry.example/vllm:1"}] and recipe["env"] == {"A": "b"}
    assert any("mods/patch-it" in text for text in recipe["left_out"])
    assert commit[:12] in recipe["source"][0]
    assert not (tmp_path / "ran").exists() and not Path("/tmp/never").exists()
    # A later run reads the cache, without the source, in check mode too.
    clone.rename(tmp_path / "gone")
    assert recipe_of(sources(tmp_path, source, keep=False), "eugr:recipes/pair.yaml") == recipe


def test_the_keys_of_a_service_win_and_variants_apply(tmp_path: Path, clone: Path) -> None:
    made = sources(tmp_path, {"name": "a", "path": str(clone), "commit": git(clone, "rev-parse", "HEAD")})
    pair = recipe_of(made, "a:recipes/pair.yaml")
    spec, wrong = service("a:recipes/pair.yaml", pair, args={"seed": 7}, env={"A": "mine"}, image="own/image:2")
    assert wrong == [] and spec.args == {"seed": 7, "tensor-parallel-size": 2} and spec.env == {"A": "mine"}
    assert spec.image == {"ref": "own/image:2"} and spec.left_out == pair["left_out"]
    solo, wrong = service("a:recipes/pair.yaml", pair, variant="solo")
    assert wrong == [] and solo.nodes == 1 and solo.args["tensor-parallel-size"] == 1
    official = recipe_of(made, "a:official")
    assert service("a:official", official)[0].args == {"seed": 1}
    small, wrong = service("a:official", official, variant="small")
    assert wrong == [] and small.args == {"kv-cache-dtype": "fp8"} and small.model == {"repo": "org/Official-NVFP4"}


def test_an_image_that_a_recipe_builds_is_asked_for(tmp_path: Path, clone: Path) -> None:
    made = sources(tmp_path, {"name": "a", "path": str(clone), "commit": git(clone, "rev-parse", "HEAD")})
    spec, wrong = service("a:local", recipe_of(made, "a:local"))
    assert spec is None and "the recipe builds vllm-node on the machine itself" in wrong[0]
    spec, wrong = service("a:local", recipe_of(made, "a:local"), image="own/image:2")
    assert wrong == [] and spec.image["ref"] == "own/image:2"


@pytest.mark.parametrize(
    ("reference", "needle"),
    [
        ("b:pair", "there is no source 'b' in spark_recipe_sources; it has a"),
        ("a:officiel", "there is no recipe 'officiel'; did you mean 'official'"),
        ("a:pair", None),  # the whole path without recipes/ is the nearer one
        ("a:4x/pair", None),
        ("a:../pair", "is no name of a recipe"),
        ("a:linked", "recipes/linked.yaml is not read: it is a symbolic link"),
        ("a:big", "big.yaml is not read: it has 292 KiB, more than 256"),
        ("a:compose", "is no recipe of eugr, sparkrun, vLLM or NVIDIA"),
        ("a:other", "no vllm serve in it: it runs sglang serve org/Other"),
        ("a:ci", "there is no recipe 'ci'"),
    ],
)
def test_a_reference_that_leads_nowhere_says_why(
    tmp_path: Path, clone: Path, reference: str, needle: str | None
) -> None:
    made = sources(tmp_path, {"name": "a", "path": str(clone), "commit": git(clone, "rev-parse", "HEAD")})
    recipe = recipe_of(made, reference)
    assert (needle or "") in recipe.get("refused", "") and bool(recipe.get("refused")) == (needle is not None)
    if needle:
        spec, wrong = service(reference, recipe)
        assert spec is None and any(needle in message for message in wrong)


def test_a_name_of_several_recipes_is_not_guessed() -> None:
    paths = [
        "recipes/a/x.yaml",
        "recipes/b/x.yaml",
        "models/m/dgx-spark/vllm/recipe.yaml",
        "models/m/rtx-pro/vllm/recipe.yaml",
    ]
    with pytest.raises(recipe_references.NoRecipe, match="2 recipes: a/x, b/x"):
        recipe_references.find("x", paths, {})
    assert recipe_references.find("m", paths, {}) == paths[2]
    assert recipe_references.find("m/rtx-pro", paths, {}) == paths[3]


def test_names_and_texts_of_a_stranger_do_not_steer_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    names = [
        "red\x1b[31m.yaml",
        "two\nlines.yaml",
        "turned\u202ecod.yaml",
        "link\x1b]0;x\x07.yaml",
        "fine.yaml",
        "crlf.yaml",
    ]
    text = 'name: x\ndescription: "a\\x1b[31m\\u202eb"\ncontainer: x/y\ncommand: vllm serve org/Some --seed 1\n'
    folder.mkdir()
    for name in names:
        if name.startswith("link"):
            (folder / name).symlink_to("fine.yaml")
        else:
            (folder / name).write_bytes((text.replace("\n", "\r\n") if name == "crlf.yaml" else text).encode())
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "x")
    source = {"name": "a", "path": str(folder), "commit": git(folder, "rev-parse", "HEAD")}
    made = sources(tmp_path, source)
    parsed = made.every({})
    assert set(parsed) == {"a:fine", "a:crlf"} and {recipe["args"]["seed"] for recipe in parsed.values()} == {1}
    text = json.dumps([parsed, made._content(made.sources["a"]).skipped], ensure_ascii=False)
    assert "a\\\\x1b[31m\\\\u202eb" in text and "its name has characters that steer a terminal" in text
    assert printable(text) == text and "\\u001b" not in text
    refused = recipe_of(made, "a:turned\u202ecod")["refused"]
    assert printable(refused) == refused


@pytest.mark.parametrize(
    ("source", "needle"),
    [
        ({"name": "a", "url": "https://example.org/x.git"}, "lacks 'commit'"),
        ({"name": "a", "url": "ext::sh -c touch", "commit": "0" * 40}, "must be an address with"),
        ({"name": "a", "path": "/x", "commit": "main"}, "a branch or a tag moves"),
        ({"name": "a", "path": "/x"}, "lacks 'commit'"),
        ({"name": "a", "path": "/x", "url": "https://example.org/x", "commit": "0" * 40}, "either 'path'"),
        ({"name": "A b", "path": "/x", "commit": "0" * 40}, "'name' is"),
        ({"nme": "a", "path": "/x", "commit": "0" * 40}, "'nme'"),
        ({"name": "a", "url": "https://me:hidden@example.org/x.git", "commit": "0" * 40}, "'url' contains a login"),
    ],
)
def test_sources_that_cannot_be_ones(source: dict[str, str], needle: str) -> None:
    parsed, wrong = recipe_references.read_sources([source], "host x")
    assert not any("hidden" in message for message in wrong)
    assert parsed == {} and any(needle in message and "spark_recipe_sources[0]" in message for message in wrong), wrong


def test_a_commit_that_is_not_there(tmp_path: Path, clone: Path) -> None:
    for way, place in (("path", str(clone)), ("url", f"file://{clone}")):
        refusal = recipe_of(sources(tmp_path, {"name": "a", way: place, "commit": "1" * 40}), "a:pair")["refused"]
        assert "cannot be read" in refusal and "1" * 40 in refusal
    refusal = recipe_of(sources(tmp_path, {"name": "a", "path": str(tmp_path / "no"), "commit": "1" * 40}), "a:pair")[
        "refused"
    ]
    assert "there is no such folder" in refusal


def test_an_address_without_an_answer_is_named_with_the_way_round_it(tmp_path: Path) -> None:
    source = {"url": "http://127.0.0.1:9/x.git", "commit": "1" * 40}
    refusal = recipe_of(sources(tmp_path, {"name": "a", **source}), "a:pair")["refused"]
    assert source["url"] in refusal and ("efused" in refusal or "connect to server" in refusal)
    assert refusal.endswith("Without a way there, give a clone of it by 'path'.")
    assert not list(tmp_path.glob(".spark/recipes/*"))


def test_the_sources_of_the_examples_are_pinned_addresses() -> None:
    """Nothing is fetched here: a source is read when a service first names a recipe of it."""
    named = [
        entry
        for file in sorted((Path(__file__).parents[4] / "inventories").rglob("*.yml"))
        for entry in (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("spark_recipe_sources") or []
    ]
    parsed, wrong = recipe_references.read_sources(named, "host x")
    assert wrong == [] and {"eugr", "nvidia", "vllm"} <= set(parsed)
    assert all(source.url and source.commit for source in parsed.values())


def test_a_check_fetches_nothing(tmp_path: Path, clone: Path) -> None:
    source = {"name": "a", "url": f"file://{clone}", "commit": git(clone, "rev-parse", "HEAD")}
    assert "a check fetches nothing" in recipe_of(sources(tmp_path, source, keep=False), "a:pair")["refused"]
    assert not (tmp_path / ".spark").exists()


def test_half_a_cache_is_fetched_again(tmp_path: Path, clone: Path) -> None:
    source = {"name": "a", "path": str(clone), "commit": git(clone, "rev-parse", "HEAD")}
    recipe_of(sources(tmp_path, source), "a:4x/pair")
    (cache_file,) = (tmp_path / ".spark/recipes").iterdir()
    cache_file.write_text(cache_file.read_text()[:100])
    assert "refused" not in recipe_of(sources(tmp_path, source), "a:4x/pair")


# --- the models ---------------------------------------------------------------------------------------------------


def test_all_recipes_of_a_source_are_listed(tmp_path: Path, clone: Path) -> None:
    made = sources(tmp_path, {"name": "a", "path": str(clone), "commit": git(clone, "rev-parse", "HEAD")})
    known_recipes, _wrong = load_recipes([RECIPES])
    rows = {row["recipe"]: row for row in model_table.reference_rows({**known_recipes, **made.every(known_recipes)})}
    assert set(rows) == {"a:pair", "a:4x/pair", "a:local", "a:org/official", "a:other"}
    assert rows["a:local"]["remark"] == "needs config and image of the service" and rows["a:pair"]["variants"] == [
        "solo"
    ]
    assert "sglang" in rows["a:other"]["remark"]
    text = model_table.references_text(list(rows.values()))
    assert "a:4x/pair" in text and "not taken over: mods mods/patch-it" in text


def test_a_recipe_whose_model_is_known_is_judged_like_our_own(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    known_recipes, _wrong = load_recipes([RECIPES])
    repo = known_recipes["qwen3-8b"]["model"]["repo"]
    (folder / "mine.yaml").write_text(
        f"name: x\ncontainer: vllm/vllm-openai:v0.24.0\ncommand: vllm serve {repo} --max-model-len 4096\n"
    )
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "x")
    made = sources(tmp_path, {"name": "a", "path": str(folder), "commit": git(folder, "rev-parse", "HEAD")})
    (row,) = [row for row in model_table.model_rows(made.every(known_recipes)) if row["recipe"] == "a:mine"]
    assert row["fits"][1] == "fits" and row["weights_gib"] > 7


def test_hosts_that_differ_in_a_source_are_told() -> None:
    one_of = {"name": "a", "path": "/x", "commit": "0" * 40}
    hosts = {
        "h1": {"vars": {"spark_recipe_sources": [one_of]}},
        "h2": {"vars": {"spark_recipe_sources": [{**one_of, "commit": "1" * 40}]}},
    }
    messages: list[str] = []
    recipe_sources.of_hosts(hosts, {}, True, messages)
    assert len(messages) == 1 and "host h2: the source 'a'" in messages[0]
