"""The quick start, typed as docs/quickstart.md has it, from two addresses and an empty home to models that answer.

The first commands install the collection from a git repository of this tree. What differs from the page: addresses in place of names, how ssh
finds the key, the simulation's variables, and no -K where sudo asks for nothing. Every command and its output are kept in
`.cache/newcomer.log`. Tests run once, in this order.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path[:0] = [str(ROOT / "molecule"), str(ROOT / "scripts"), str(ROOT / "molecule" / "quickstart")]

import first_model
import newcomer
import tutorial
from nodes import NODES, SUBNET, node

FOLDER = ROOT / ".cache" / "molecule" / SUBNET / "quickstart"
LOG = ROOT / ".cache" / "newcomer.log"
INVENTORY = FOLDER / "home" / "my-sparks" / "hosts.yml"
ADDRESSES = [f"{SUBNET}.0.11", f"{SUBNET}.0.12"]
PORT = 18091
CHANGED = re.compile(r"changed=[1-9]")


@pytest.fixture(scope="module")
def terminal():
    """A newcomer's, where the collection is installed."""
    typed = newcomer.installed(FOLDER, LOG)
    tutorial.reached(typed)
    endpoint = f"http://{SUBNET}.0.1:{PORT}"
    # Only the first recommendation is that fast, so both hosts get it: the hub has no other model.
    settings = tutorial.simulated(SUBNET, {}, spark_hf_endpoint=endpoint, spark_pick={"speed": 90})
    (typed.folder / "simulated.yml").write_text(settings)
    return typed


def run(terminal, playbook, *more):
    """Type the page's command for a playbook; returns the exit code and what it printed."""
    command = next(
        typed.plain for typed in tutorial.commands(newcomer.QUICK_START) if f"dgxspark.vllm.{playbook} " in typed.text
    )
    command = re.sub(r"(discover_hosts=)\S+", rf"\g<1>{','.join([*ADDRESSES, *more])}", command)
    command = command.removesuffix(" -K")
    assert "-K" not in command
    return terminal.type(f"{command} -e @simulated.yml")


def test_a_machine_that_does_not_answer_leaves_nothing_behind(terminal):
    code, output = run(terminal, "quickstart", f"{SUBNET}.0.99")
    assert code != 0
    assert f"not known: {SUBNET}.0.99" in output, output
    assert not INVENTORY.parent.exists()


def test_to_look_before_anything_is_deployed_writes_an_inventory_and_plans_it(terminal):
    code, output = run(terminal, "discover")
    assert code == 0, output
    assert sorted(yaml.safe_load(INVENTORY.read_text(encoding="utf-8"))["sparks"]["hosts"]) == ["spark-1", "spark-2"]
    assert [node(name, "find", "/etc/systemd/system", "-name", "spark-q*.service") for name in NODES] == ["", ""]


def test_without_its_hub_it_says_what_is_missing_and_the_inventory_stays(terminal):
    """Both hosts lack the model."""
    before = INVENTORY.read_bytes()
    code, output = run(terminal, "quickstart")
    assert code != 0
    assert "nvidia/Qwen3.6-35B-A3B-NVFP4" in output
    assert INVENTORY.read_bytes() == before


def test_the_same_command_goes_on_to_models_that_are_served_and_proved(terminal):
    first_model.write(FOLDER / "model")
    models = {first_model.REPO: FOLDER / "model"}
    with tutorial.hub(f"{SUBNET}.0.1", PORT, models, FOLDER / "hub.pid"):
        code, output = run(terminal, "quickstart")
    assert code == 0, output
    assert re.search(r"spark-1 .*failed=0", output)
    _before, _endpoints, shown = output.partition("\nEndpoints\n")
    for name in NODES:
        assert re.search(rf"^\S+ +{name} +http://127\.0\.0\.1:800[01]/v1 +-", shown, re.MULTILINE), shown
    command = re.search(r"^Try \S+:\n +(.*)$", shown, re.MULTILINE)
    assert command, shown
    tutorial.named(FOLDER / "bin", {})
    code, answer = terminal.type(command[1])
    assert code == 0 and json.loads(answer)["choices"][0]["message"]["content"].strip(), answer


def test_each_answers_as_the_last_lines_say(terminal):
    hosts = yaml.safe_load(INVENTORY.read_text(encoding="utf-8"))["sparks"]["hosts"]
    assert {host["spark_services"][0]["recipe"] for host in hosts.values()} == {first_model.RECIPE["name"]}
    for name in NODES:
        models = json.loads(node(name, "curl", "--silent", "--fail", "http://127.0.0.1:8000/v1/models"))
        body = {"model": models["data"][0]["id"], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
        request = [
            *("curl", "--silent", "--fail", "--header", "Content-Type: application/json"),
            *("--data", json.dumps(body), "http://127.0.0.1:8000/v1/chat/completions"),
        ]
        answer = node(name, *request)
        assert json.loads(answer)["choices"][0]["message"]["content"].strip()
        terminal.note(f"{name}$ {' '.join(request)}\n{answer}")


def test_typed_once_more_it_changes_nothing(terminal):
    code, output = run(terminal, "quickstart")
    assert code == 0, output
    assert not CHANGED.search(output), output


def test_the_log_has_every_command_of_the_page_and_no_path_of_this_machine(terminal):
    text = LOG.read_text(encoding="utf-8")
    typed = [line for line in text.splitlines() if line.startswith("$ ")]
    first = [command.text for command in newcomer.installing()]
    assert [line[2:] for line in typed[: len(first)]] == first
    assert re.findall(r"ansible-playbook .*?dgxspark\.vllm\.(\w+)", "\n".join(typed[len(first) :])) == [
        "quickstart",
        "discover",
        "quickstart",
        "quickstart",
        "quickstart",
    ]
    assert "PLAY RECAP" in text and str(FOLDER) not in text
