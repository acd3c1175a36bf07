"""The module deploy, killed with SIGKILL at random moments on a node with a real systemd: the next run ends with the whole document.

Two documents take turns. They differ in files, folders, a key, an account and units, so each run writes, removes, stops and starts. The module
runs from the archive that Ansible sent, so that a kill hits it at any step. The moments follow from FAULTS_SEED.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path.insert(0, str(ROOT / "molecule"))

import nodes

HOST = "spark-1"
PART = "killed"
FOLDER = "/etc/dgxspark/killed"
RECORD = "/var/lib/dgxspark/deployed.json"
POINTS = int(os.environ.get("FAULTS_KILLS", "50"))
UNIT = "[Unit]\nDescription={name}\n[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
LETTERS = {"first": "abc", "second": "bcd"}
"""Letters of the units and files of each document: b and c are in both, with other contents."""


def document(state: str) -> dict:
    """Return the arguments of the task that deploys a document."""
    letters = LETTERS[state]
    units = [f"spark-killed-{letter}.service" for letter in letters]
    files = [{"path": f"{FOLDER}/{letter}/{state}.conf", "content": f"{state}\n" * 2000} for letter in letters]
    files += [{"path": f"{FOLDER}/{letter}/shared.conf", "content": f"{letter} {state}\n"} for letter in letters]
    files += [{"path": f"{FOLDER}/key-{state}", "content": f"secret-{state}", "secret": True, "mode": "0600"}]
    files += [{"path": f"/etc/systemd/system/{unit}", "content": UNIT.format(name=f"{unit} {state}")} for unit in units]
    account = {"name": f"spark-killed-{state}", "home": "/nonexistent", "shell": "/usr/sbin/nologin", "groups": []}
    return {
        "part": PART,
        "accounts": [{**account, "remove": True}],
        "folders": [{"path": FOLDER}, *({"path": f"{FOLDER}/{letter}"} for letter in letters)],
        "files": files,
        "units": [
            {"name": unit, "enabled": True, "restart_on": [f"{FOLDER}/{letter}/shared.conf"]}
            for unit, letter in zip(units, letters)
        ],
    }


def node(*argv: str, check: bool = True) -> str:
    """Run a command as root on the node and return its output."""
    return nodes.node(HOST, *argv, check=check)


def deploy(folder: Path, arguments: dict, **environment: str) -> None:
    """Deploy a document by Ansible."""
    play = folder / "deploy.yml"
    task = {"name": "Deploy", "dgxspark.vllm.deploy": arguments}
    play.write_text(json.dumps([{"hosts": HOST, "become": True, "gather_facts": False, "tasks": [task]}]))
    inventories = [
        word for name in ("inventory.yml", "faults/inventory.yml") for word in ("-i", ROOT / "molecule" / name)
    ]
    ran = subprocess.run(
        ["ansible-playbook", *inventories, play],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The archives of the module for each document, with all contents, on the node."""
    folder = tmp_path_factory.mktemp("killed")
    paths = {}
    for state in LETTERS:
        deploy(folder, {"part": PART, "parts": [PART]})
        node("sh", "-c", "rm -rf /root/.ansible/tmp/* /home/*/.ansible/tmp/*")
        deploy(folder, document(state), ANSIBLE_KEEP_REMOTE_FILES="1")
        archives = node(
            "find", "/root", "/home", "/tmp", "/var/tmp", "-name", "AnsiballZ_deploy.py", "-printf", "%T@ %p\n"
        )
        newest = max(archives.splitlines(), key=lambda line: float(line.split()[0])).split(" ", 1)[1]
        paths[state] = f"/root/deploy-{state}.py"
        node("cp", newest, paths[state])
    yield paths
    deploy(folder, {"part": PART, "parts": [PART]})
    node("rm", "-f", *paths.values())


def run(program: str) -> dict:
    """Run the module to its end; returns its result."""
    result = json.loads(node("python3", program))
    assert not result.get("failed"), result
    return result


def assert_deployed(state: str) -> None:
    """The node has the document, and nothing that only the other one has."""
    expected = document(state)
    paths = sorted(file["path"] for file in expected["files"] if file["path"].startswith(FOLDER))
    assert sorted(node("find", FOLDER, "-type", "f").split()) == paths
    for file in expected["files"]:
        assert node("cat", file["path"]) == file["content"], file["path"]
    folders = sorted(row["path"] for row in expected["folders"])
    assert sorted(node("find", FOLDER, "-type", "d").split()) == folders
    units = [unit["name"] for unit in expected["units"]]
    shown = node("systemctl", "show", "--property=ActiveState,UnitFileState,NeedDaemonReload,Description", *units)
    for unit, block in zip(units, shown.split("\n\n")):
        facts = dict(line.split("=", 1) for line in block.splitlines())
        assert (facts["ActiveState"], facts["UnitFileState"], facts["NeedDaemonReload"]) == (
            "active",
            "enabled",
            "no",
        ), facts
        assert facts["Description"] == f"{unit} {state}"
    listed = node("sh", "-c", "ls /etc/systemd/system | grep -c '^spark-killed-'", check=False).strip()
    assert listed == str(len(units))
    running = node("systemctl", "list-units", "--plain", "--no-legend", "--state=active", "spark-killed-*")
    assert sorted(line.split()[0] for line in running.splitlines()) == sorted(units)
    other = next(name for name in LETTERS if name != state)
    accounts = [nodes.run(HOST, "id", f"spark-killed-{name}")[0] == 0 for name in (state, other)]
    assert accounts == [True, False]
    record = json.loads(node("cat", RECORD))["state"]
    assert sorted(row["path"] for row in record["files"] if row["part"] == PART) == sorted(
        file["path"] for file in expected["files"]
    )
    leftovers = node("find", "/etc/dgxspark", "/etc/systemd/system", "/var/lib/dgxspark", "-name", ".dgxspark-*")
    assert leftovers == ""


def test_a_killed_deploy_is_completed_by_the_next(programs):
    chance = random.Random(f"{os.environ.get('FAULTS_SEED', '1')} killed deploy")
    state, seconds = "first", []
    run(programs[state])
    for _turn in range(2):
        state = "second" if state == "first" else "first"
        began = time.monotonic()
        run(programs[state])
        seconds.append(time.monotonic() - began)
    longest, killed, started = max(seconds), 0, 0
    for point in range(POINTS):
        state = "second" if state == "first" else "first"
        moment = chance.uniform(0.15, 1.0) * longest
        status = nodes.run(HOST, "timeout", "--signal=KILL", f"{moment:.3f}", "python3", programs[state])[0]
        killed += status == 137
        # systemd finishes a job that the module has asked for.
        result = run(programs[state])
        started += result["changed"]
        print(f"point {point}: {state}, killed after {moment:.3f} of {longest:.3f} s: {status}")
        assert_deployed(state)
        second = run(programs[state])
        assert second["changed"] is False, second
    print(f"{killed} of {POINTS} runs were killed; {started} of the next runs had something left to do")
    assert killed > POINTS / 2
