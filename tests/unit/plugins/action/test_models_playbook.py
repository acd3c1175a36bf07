# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan.yml --tags models, and findings of the plan about files of the controller, as a person runs them."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]


def run(folder: Path, *options: str) -> tuple[int, str]:
    settings = {"COLUMNS": "200"}
    done = ansible_playbook("dgxspark.vllm.plan", *options, cwd=folder, env=settings)
    return done.returncode, done.stdout + done.stderr


def inventory(folder: Path, service: dict[str, Any]) -> tuple[str, ...]:
    made = {"name": "mine", "recipe": "mine", "port": 8001, **service}
    hosts = {"spark-1": {"ansible_host": "192.0.2.1", "spark_services": [made]}}
    variables = {"spark_recipe_dirs": [str(folder / "recipes")], "spark_plan_file": str(folder / "plan.json")}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": hosts, "vars": variables}}))
    return "-i", str(folder / "hosts.yml")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A user's recipe, with a file in the same folder."""
    body = yaml.safe_load((ROOT / "playbooks/recipes/qwen3-8b.yml").read_text())
    body.update(name="mine", files=[{"source": "chat.jinja", "path": "/etc/dgxspark/chat.jinja"}])
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/mine.yml").write_text(yaml.safe_dump(body))
    (tmp_path / "recipes/chat.jinja").write_text("{{ messages }}")
    return tmp_path


@pytest.mark.nightly
def test_a_wish_picks_models_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    wish = {"speed": 30, "context": 100000, "features": ["tools"], "sparks": 2}
    code, text = run(tmp_path, "--tags", "models", "-e", json.dumps({"spark_pick": wish}))
    assert code == 0, text
    assert "Recipes for 30 tokens/s, 100000 tokens of context, tools, at most 2 Sparks, the fastest first:" in text
    assert re.search(r"^gpt-oss-120b +two-sparks +2 +[\d.]+ +predicted +131072 ", text, re.MULTILINE)
    assert re.search(r"^Left out: .*\d+ slower", text, re.MULTILINE) and "qwen3-235b-a22b" not in text
    code, text = run(tmp_path, "--tags", "models", "-e", json.dumps({"spark_pick": {"sped": 30}}))
    assert code != 0 and "nothing was picked" in text and "'sped'; did you mean 'speed'?" in text


@pytest.mark.nightly
def test_the_models_need_no_inventory(tmp_path: Path) -> None:
    code, text = run(tmp_path, "--tags", "models", "-e", "spark_plan_show=full")
    assert code == 0, text
    assert re.search(
        r"^qwen3.5-122b-a10b-nvfp4 +1 +[\d.]+ +[\d.]+ +262144 +yes +yes +yes +yes +14 to 17 +16$", text, re.MULTILINE
    )
    assert re.search(
        r"^qwen3-235b-a22b-gptq-int4 +2 +[\d.]+ +[\d.]+ +40960 +no +yes +yes +yes +16 to 2[45] +17", text, re.MULTILINE
    )
    assert "Plan from the inventory" not in text


@pytest.mark.nightly
def test_the_models_count_recipes_of_ones_own_and_nothing_is_planned(recipe: Path) -> None:
    code, text = run(recipe, *inventory(recipe, {}), "--tags", "models", "-e", "spark_plan_show=full")
    assert code == 0, text
    assert re.search(r"^mine +ngram ", text, re.MULTILINE)
    assert not (recipe / "plan.json").exists()


def test_a_file_beside_the_recipe_is_shipped_by_its_content(recipe: Path) -> None:
    code, text = run(recipe, *inventory(recipe, {}))
    assert code == 0, text
    shipped = json.loads((recipe / "plan.json").read_text())["hosts"]["spark-1"]["services"][0]["files"]
    sha256 = hashlib.sha256(b"{{ messages }}").hexdigest()
    assert shipped == [
        {
            "source": str(recipe / "recipes/chat.jinja"),
            "path": "/etc/dgxspark/chat.jinja",
            "sha256": sha256,
            "host": f"/etc/dgxspark/files/mine/{sha256[:12]}-chat.jinja",
        }
    ]


def test_a_file_that_is_not_there_stops_the_plan(recipe: Path) -> None:
    (recipe / "recipes/chat.jinja").unlink()
    code, text = run(recipe, *inventory(recipe, {"files": [{"source": "relative", "path": "/a"}]}))
    assert code != 0
    assert "[file.missing]" in text
    assert f"'{recipe}/relative', is no file on the controller" in text
    assert "chat.jinja', is no file on the controller" in text


def test_a_pair_is_refused_by_name(recipe: Path) -> None:
    code, text = run(recipe, *inventory(recipe, {"recipe": "qwen3-235b-a22b-gptq-int4"}))
    assert code != 0
    assert "recipe qwen3-235b-a22b-gptq-int4 needs 2 Sparks" in text


@pytest.fixture
def referenced(tmp_path: Path) -> dict[str, Any]:
    """A git repository with a recipe of somebody else, as a source."""
    clone = tmp_path / "clone"
    (clone / "recipes").mkdir(parents=True)
    (clone / "recipes/quick.yaml").write_text(
        "name: Quick\ncontainer: vllm/vllm-openai:v0.24.0\nmods: [mods/patch-it]\n"
        "command: vllm serve Qwen/Qwen3-8B --max-model-len 4096 --seed 1\n"
    )
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "x")):
        subprocess.run(["git", *who, *words], cwd=clone, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, check=True, capture_output=True, text=True)
    return {"name": "other", "path": "clone", "commit": head.stdout.strip()}


def with_source(folder: Path, source: dict[str, Any], service: dict[str, Any]) -> tuple[str, ...]:
    hosts = {"spark-1": {"ansible_host": "192.0.2.1", "spark_services": [{"name": "mine", "port": 8001, **service}]}}
    variables = {"spark_recipe_sources": [source], "spark_plan_file": str(folder / "plan.json")}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": hosts, "vars": variables}}))
    return "-i", str(folder / "hosts.yml")


def test_a_recipe_by_reference_is_planned_and_listed(tmp_path: Path, referenced: dict[str, Any]) -> None:
    options = with_source(tmp_path, referenced, {"recipe": "other:quick", "args": {"seed": 7}})
    code, text = run(tmp_path, *options)
    assert code == 0, text
    assert "recipe.not_taken_over" in text and "mods mods/patch-it" in text
    planned = json.loads((tmp_path / "plan.json").read_text())["hosts"]["spark-1"]["services"][0]
    assert planned["model"]["repo"] == "Qwen/Qwen3-8B" and planned["args"]["seed"] == 7
    assert planned["image"]["ref"] == "vllm/vllm-openai:v0.24.0"
    assert [path.suffix for path in (tmp_path / ".spark/recipes").iterdir()] == [".json"]
    (tmp_path / "clone").rename(tmp_path / "gone")  # one download is enough
    code, text = run(tmp_path, *options, "--check")
    assert code == 0, text
    code, text = run(tmp_path, *options, "--tags", "models", "-e", "spark_plan_show=full")
    assert code == 0, text
    assert re.search(r"^other:quick +Qwen/Qwen3-8B +1 ", text, re.MULTILINE)
    assert re.search(r"^other:quick +1 +[\d.]+ +[\d.]+ +\d+ +yes ", text, re.MULTILINE)


def test_a_reference_that_leads_nowhere_stops_the_plan(tmp_path: Path, referenced: dict[str, Any]) -> None:
    code, text = run(tmp_path, *with_source(tmp_path, referenced, {"recipe": "other:quik"}))
    assert code != 0
    assert "there is no recipe 'quik'; did you mean 'quick'" in text
    code, text = run(tmp_path, *with_source(tmp_path, {**referenced, "commit": "main"}, {"recipe": "other:quick"}))
    assert code != 0
    assert "a branch or a tag moves" in text
