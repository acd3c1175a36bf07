"""The quick start, typed as docs/quickstart.md has it, from two addresses and an empty folder to models that answer.

What differs from the page: addresses in place of names, how ssh finds the key, the simulation's variables, and no -K where sudo asks for
nothing. Every command and what it printed is kept in `log.txt` of the scenario's folder. Tests run once, in this order.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import yaml

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path[:0] = [str(ROOT / "molecule"), str(ROOT / "scripts")]

import newcomer
from nodes import NODES, SUBNET

FOLDER = ROOT / ".cache" / "molecule" / SUBNET / "quickstart"
INVENTORY = FOLDER / "my-sparks" / "hosts.yml"
ADDRESSES = [f"{SUBNET}.0.11", f"{SUBNET}.0.12"]
SSH = f"-o UserKnownHostsFile={ROOT}/.cache/sim/known_hosts -o IdentitiesOnly=yes"
SETTINGS = [
    "--private-key",
    str(ROOT / ".cache" / "sim" / "id_ed25519"),
    "--ssh-common-args",
    SSH,
    "-e",
    "@simulated.yml",
]
CHANGED = re.compile(r"changed=[1-9]")


def page_command(playbook):
    """The command of the page that runs a playbook, as words."""
    typed = [shlex.split(each, comments=True) for each in newcomer.commands(*newcomer.QUICK_START)]
    return next(words for words in typed if f"dgxspark.vllm.{playbook}" in words)


def run(playbook, *options):
    """Type the page's command for a playbook; returns the exit code and what it printed."""
    words = [word for word in page_command(playbook) if word != "-K"]
    words = [
        ",".join(ADDRESSES).join(["discover_hosts=", ""]) if word.startswith("discover_hosts=") else word
        for word in words
    ]
    command = [*words, *options]
    done = subprocess.run(
        [*command, *SETTINGS, "-e", "discover_user=spark"],
        cwd=FOLDER,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
        # The settings of a clone are not a newcomer's; the collection is found as an installed one is.
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
            "ANSIBLE_COLLECTIONS_PATH": os.environ["ANSIBLE_COLLECTIONS_PATH"],
            "ANSIBLE_NOCOLOR": "1",
        },
    )
    with (FOLDER / "log.txt").open("a", encoding="utf-8") as log:
        log.write(f"$ {shlex.join(command)}\n{done.stdout}\n")
    print(done.stdout)
    return done.returncode, done.stdout


@contextmanager
def hub():
    """The hub with the recommended model, on the nodes' network."""
    program = [str(ROOT / "tests" / "sim" / "fakehub" / "fakehub"), f"--host={SUBNET}.0.1", "--port=18091"]
    repo = yaml.safe_load((ROOT / "playbooks/recipes/qwen3.6-35b-a3b-nvfp4-modelopt.yml").read_text())["model"]["repo"]
    with subprocess.Popen([*program, f"--model={repo}={FOLDER / 'model'}"], stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    urllib.request.urlopen(f"http://{SUBNET}.0.1:18091/api/models/{repo}", timeout=5).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, "the hub does not answer"
                    time.sleep(0.2)
            yield
        finally:
            process.terminate()


def on(name, *command):
    """Run a command as root on a node; returns what it printed."""
    done = subprocess.run(
        ["docker", "exec", NODES[name], *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, (name, command, done.stdout, done.stderr)
    return done.stdout


def test_a_machine_that_does_not_answer_leaves_nothing_behind():
    ADDRESSES.append(f"{SUBNET}.0.99")
    try:
        code, said = run("quickstart")
    finally:
        ADDRESSES.pop()
    assert code != 0
    assert f"{SUBNET}.0.99" in said
    assert not INVENTORY.parent.exists()


def test_to_look_before_anything_is_deployed_writes_an_inventory_and_plans_it():
    code, said = run("discover")
    assert code == 0, said
    assert sorted(yaml.safe_load(INVENTORY.read_text(encoding="utf-8"))["sparks"]["hosts"]) == ["spark-1", "spark-2"]
    assert [on(name, "find", "/etc/systemd/system", "-name", "spark-q*.service") for name in NODES] == ["", ""]


def test_without_its_hub_it_says_what_is_missing_and_the_inventory_stays():
    """The first host lacks a model that nobody hands out; the second has all, and serves."""
    before = INVENTORY.read_bytes()
    code, said = run("quickstart")
    assert code != 0
    assert "nvidia/Qwen3.6-35B-A3B-NVFP4" in said
    assert INVENTORY.read_bytes() == before


def test_the_same_command_goes_on_to_models_that_are_served_and_proved():
    with hub():
        code, said = run("quickstart")
    assert code == 0, said
    assert re.search(r"spark-1 .*failed=0", said)
    for name in NODES:
        assert f"of {name}. From here: ssh -N -L 8000:127.0.0.1:8000" in " ".join(said.split())


def test_each_answers_as_the_last_lines_say():
    hosts = yaml.safe_load(INVENTORY.read_text(encoding="utf-8"))["sparks"]["hosts"]
    assert [hosts[name]["spark_services"][0]["recipe"] for name in sorted(hosts)] == [
        "qwen3.6-35b-a3b-nvfp4-modelopt",
        "gemma-4-26b-a4b",
    ]
    for name in NODES:
        models = json.loads(on(name, "curl", "--silent", "--fail", "http://127.0.0.1:8000/v1/models"))
        asked = {"model": models["data"][0]["id"], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
        answer = on(
            *(name, "curl", "--silent", "--fail", "--header", "Content-Type: application/json"),
            *("--data", json.dumps(asked), "http://127.0.0.1:8000/v1/chat/completions"),
        )
        assert json.loads(answer)["choices"][0]["message"]["content"].strip()


def test_typed_once_more_it_changes_nothing():
    code, said = run("quickstart")
    assert code == 0, said
    assert not CHANGED.search(said), said


def test_the_log_has_every_command_of_the_page():
    text = (FOLDER / "log.txt").read_text(encoding="utf-8")
    assert text.count("\n$ ansible-playbook") + text.startswith("$ ") == 5
    assert "PLAY RECAP" in text
