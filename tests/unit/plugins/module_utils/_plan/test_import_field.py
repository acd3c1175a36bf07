# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A table of launches with their right answers (fixtures/imports/field.yml): import_inline, import_downloads and the refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import (
    import_downloads,
    import_inline,
    importer,
    plan,
    recipes,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_sources import document_of

TABLE = Path(__file__).parents[2] / "fixtures" / "imports" / "field.yml"
LAUNCHES: list[dict[str, Any]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
KNOWN = load_recipes([RECIPES])[0]
PLAIN = ("name", "port", "model", "image", "served_model_name", "checks", "weights_gib", "memory_gib")


def read(entry: dict[str, Any]) -> dict[str, Any]:
    text = entry["text"]
    launch: dict[str, Any] = importer.import_launch(
        text, document_of(text), known_recipes=KNOWN, **entry.get("options", {})
    )
    return launch


@pytest.mark.parametrize("entry", LAUNCHES, ids=[entry["name"] for entry in LAUNCHES])
def test_a_launch_gives_its_answer(entry: dict[str, Any]) -> None:
    if "refused" in entry:
        with pytest.raises(importer.Unreadable) as caught:
            read(entry)
        assert entry["refused"] in str(caught.value)
        return
    launch, expected = read(entry), entry["expect"]
    service = launch["service"]
    assert {key: service.get(key) for key in PLAIN if key in expected} == {
        key: expected[key] for key in PLAIN if key in expected
    }
    assert launch["nodes"] == expected.get("nodes", 1)
    if "image_ref" in expected:
        assert (service["image"]["ref"] if isinstance(service["image"], dict) else service["image"]) == expected[
            "image_ref"
        ]
    for key in ("args", "env"):
        actual = service.get(key, {})
        assert {name: actual.get(name) for name in expected.get(key, {})} == expected.get(key, {})
    service_keys = {*service, *service["args"], *service.get("env", {}), *service.get("docker_args", [])}
    assert not service_keys & set(expected.get("absent", ()))
    omissions = {item["item"]: item["reason"] for item in launch["left_out"]}
    for item, words in expected.get("left", {}).items():
        assert words in omissions.get(item, ""), omissions
    # The plan accepts the imported service, except for a config that only its owner has.
    problems = recipes.resolve_service(service, "service", {}, {})[1]
    assert all("'config' is missing" in problem for problem in problems)


GUIDE = [
    *("gemma4-26b", "gemma4-31b", "gemma4-coder", "laguna", "mtp", "nemotron-nano", "nemotron-omni"),
    *("qwen3-coder-next", "qwen35-122b", "qwen36-27b"),
]


# The guide prints these above the command.
DOWNLOADS = {
    "gemma4-26b": "hf download bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4 --local-dir ~/vllm/gemma4-26b-a4b-nvfp4\n",
    "gemma4-coder": "hf download sakamakismile/gemma-4-12B-coder-fable5-composer2.5-MTP-NVFP4 --local-dir ~/vllm/gemma4-coder\n",
}


@pytest.mark.parametrize("name", GUIDE)
def test_the_commands_of_the_guide_are_planned_as_they_are_printed(name: str) -> None:
    text = DOWNLOADS.get(name, "") + (TABLE.parent / f"{name}.txt").read_text(encoding="utf-8")
    launch = importer.import_launch(text, document_of(text), known_recipes=KNOWN)
    hosts = {"h": {"vars": {"spark_services": [launch["service"]], **launch["host_vars"]}, "address": "192.0.2.11"}}
    findings = plan.plan_findings(plan.make_plan(hosts, {}))
    assert [finding for finding in findings if finding["severity"] == "error"] == []


def test_a_script_that_calls_another_is_read_with_its_arguments() -> None:
    scripts = {"/s/a.sh": "export A=1\n/s/b.sh 8100", "/s/b.sh": "vllm serve m/n --port $1"}
    words = import_inline.inline_scripts(["bash", "-e", "/s/a.sh"], scripts)
    assert words[:2] == ["bash", "-c"] and "vllm serve m/n" in words[2] and "set -- 8100" in words[2]
    assert import_inline.inline_scripts(["./a.sh"], scripts, "/s")[2].startswith("export A=1")


def test_scripts_that_call_each_other_come_to_an_end() -> None:
    scripts = {"/a.sh": "/b.sh", "/b.sh": "/a.sh"}
    assert import_inline.inline_scripts(["/a.sh"], scripts)[0] == "bash"


@pytest.mark.parametrize(
    ("command", "repo"),
    [
        ("hf download a/b", None),  # the hub's cache
        ("hf download a/b --local-dir /x --repo-type dataset", None),
        ("hf download --local-dir=/x a/b", "a/b"),
        ("uvx hf download a/b --local-dir /x", "a/b"),
        ("git clone -b v1 git@hf.co:a/b.git /x", "a/b"),
        ("git clone https://github.com/a/b /x", None),
        ("wget -O /x https://huggingface.co/a/b/resolve/main/x.py", "a/b"),
        ("curl -LO https://example.org/x.py", None),
    ],
)
def test_downloads_into_a_folder(command: str, repo: str | None) -> None:
    launch = import_downloads.read_download(command.split())
    assert (launch.repo if launch else None) == repo


def test_paths_of_home_and_of_the_current_folder_are_one() -> None:
    assert import_downloads.path_below("$HOME/m", "/home/me/m/x") == "/x"
    assert import_downloads.path_below("./m", "$PWD/m") == ""
    assert import_downloads.path_below("/srv/m", "/srv/mm") is None
