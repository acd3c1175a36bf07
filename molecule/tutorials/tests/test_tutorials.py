"""The tutorials, typed as docs/tutorials.md has them, on two simulated Sparks: each command of the page, in its order.

Differences from the page: addresses, how ssh finds the key, the simulation's variables (it has no GPU, RDMA and hub), shorter
benchmarks, and the model of the pair, which is the scripted one on real vLLM under the name of the page's recipe. Each command has to end with
the page's exit code, by default 0, and print the lines of the page, with any figures; models have to
answer. Commands and output are kept in `.cache/tutorials.log`. Tests run once, in this order.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path[:0] = [str(ROOT / "molecule"), str(ROOT / "scripts")]

import newcomer
import tutorial
from nodes import SUBNET

PAGE = "docs/tutorials.md"
FOLDER = ROOT / ".cache" / "molecule" / SUBNET / "tutorials"
LOG = ROOT / ".cache" / "tutorials.log"
ADDRESSES = {
    "spark-1": f"{SUBNET}.0.11",
    "spark-2": f"{SUBNET}.0.12",
    "spark-001": f"{SUBNET}.0.11",
    "spark-002": f"{SUBNET}.0.12",
    "spark-081": f"{SUBNET}.0.12",
}
SCRAPED_SECONDS = 90
REAL_RECIPE, SCRIPTED = "qwen3-235b-a22b-gptq-int4", ROOT / "playbooks" / "recipes" / "scripted-tiny.yml"


def variables(recipes, text=""):
    """Return what differs for simulated Sparks, as a file of variables.

    recipes: a folder with a substitute for a model that takes two GPUs: a recipe of the same name. text: of the command that gets them
    """
    # Two hosts of the page's rack are the same node; an inventory must not name it twice.
    other = "spark-081" if "spark-002" in text else "spark-002"
    addresses = {name: address for name, address in ADDRESSES.items() if name != other}
    recipes.mkdir(exist_ok=True)
    recipe = yaml.safe_load(SCRIPTED.read_text(encoding="utf-8"))
    recipe |= {"name": REAL_RECIPE, "args": {**recipe["args"], "gpu-memory-utilization": 0.05}}
    (recipes / f"{REAL_RECIPE}.yml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return tutorial.simulated(
        SUBNET,
        {name: address.rpartition(".")[2] for name, address in addresses.items()},
        spark_fabric_args=[],
        spark_model_dir=str(ROOT / ".cache" / "sim" / "models"),
        spark_recipe_dirs=[str(recipes)],
        spark_rollout_bench={
            "prompt_tokens": [128],
            "output_tokens": 16,
            "repeats": 1,
            "idle_seconds": 0,
            "ceiling": False,
        },
        spark_rollout_slower_percent=95,
    )


@pytest.fixture(scope="module")
def terminal():
    """A newcomer's, where the collection is installed."""
    typed = newcomer.installed(FOLDER, LOG)
    tutorial.reached(typed)
    tutorial.named(FOLDER / "bin", ADDRESSES)
    return typed


def tutorials():
    """Return the headings of the page's tutorials, in order."""
    return re.findall(r"^## (.*)$", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE)


def follow(terminal, command):
    """Type a command of the page, and see that it ends, prints and answers as the page says."""
    contacts = newcomer.CONTACTS_HOSTS.search(command.text)
    (terminal.folder / "simulated.yml").write_text(variables(FOLDER / "recipes", command.text), encoding="utf-8")
    deadline = time.monotonic() + SCRAPED_SECONDS
    while True:
        code, output = terminal.type(f"{command.plain} -e @simulated.yml" if contacts else command.text)
        problem = command.problem(code, output, str(FOLDER / "home")) or unanswered(command, output)
        # The page says of this one alone that it takes a while.
        if not problem or "query=up" not in command.text or time.monotonic() > deadline:
            break
        time.sleep(5)
    assert not problem, problem


def unanswered(command, output):
    """Return the fault of a server's answer to a command of the page; empty for a right answer."""
    if "/v1/chat/completions" in command.text:
        message = json.loads(output)["choices"][0]["message"]
        return "" if (message["content"] or message["reasoning"]).strip() else output
    if "query=up" in command.text:
        targets = {command["metric"]["job"]: command["value"][1] for command in json.loads(output)["data"]["result"]}
        return "" if {"node", "vllm"} <= set(targets) and set(targets.values()) == {"1"} else output
    return ""


@pytest.mark.parametrize("heading", tutorials())
def test_the_tutorial(terminal, heading):
    typed = tutorial.commands(PAGE, heading)
    assert typed
    for command in typed:
        follow(terminal, command)
