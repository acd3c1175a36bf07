# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role spread in check mode on hosts that are folders here, and the steps of its plan with answers of hosts."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spread_names

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def run(
    folder: Path, tasks: list[dict[str, Any]], hosts: dict[str, dict[str, Any]], *options: str, **keywords: Any
) -> tuple[int, str]:
    local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    inventory = {"all": {"hosts": hosts, "vars": {**local, "ansible_become": False}}}
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    play = {"name": "Test", "hosts": "all", "gather_facts": False, "tasks": tasks, **keywords}
    (folder / "play.yml").write_text(yaml.safe_dump([play], sort_keys=False))
    # The hosts are folders of the controller, which may lack programs that hosts need; check mode calls none of them.
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for tool in spread_names.TOOLS:
        (tools / tool).write_text("#!/bin/sh\nexit 1\n")
        (tools / tool).chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    settings = {
        "PATH": path,
        "COLUMNS": "300",
    }
    done = ansible_playbook("-i", "hosts.yml", "play.yml", *options, cwd=folder, env=settings)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def lay(home: Path) -> None:
    """Put a whole model there, under the digest that the hub would have named it by."""
    content = b"weights"
    blob = home / "hub/models--Org--Model/blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.write_bytes(content)
    snapshot = home / "hub/models--Org--Model/snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{blob.name}")


ROLE = {"name": "Spread", "ansible.builtin.import_role": {"name": "dgxspark.vllm.spread"}}


def hosts(folder: Path, count: int, **more: Any) -> dict[str, dict[str, Any]]:
    model = {"repo": "Org/Model", "revision": COMMIT, "only": [], "image": "an/image:1", "link": ""}
    return {
        f"spark-{index}": {
            "spread_kinds": ["models"],
            "spread_models": [model, {"source": "/a/folder", "path": "/b"}],
            "spread_hf_home": str(folder / f"home-{index}"),
            "spread_address": f"192.0.2.{index}",
            "spread_reserve_gb": 0,
            **more,
        }
        for index in range(1, count + 1)
    }


def test_check_mode_says_who_would_read_and_nothing_is_changed(tmp_path: Path) -> None:
    lay(tmp_path / "home-1")
    code, text = run(tmp_path, [ROLE], hosts(tmp_path, 3), "--check")
    assert code == 0, text
    assert f"Org/Model@{COMMIT}: spark-1 reads the files and compares them" in text
    assert "changed=1" in text
    assert not (tmp_path / "home-2").exists()


def test_check_mode_says_who_would_fetch_what_nobody_has(tmp_path: Path) -> None:
    code, text = run(tmp_path, [ROLE], hosts(tmp_path, 3), "--check")
    assert code == 0, text
    assert f"Org/Model@{COMMIT}: spark-1 brings it into the site; 2 more take it from there" in text


def test_where_all_have_it_nothing_is_done(tmp_path: Path) -> None:
    for index in (1, 2):
        lay(tmp_path / f"home-{index}")
    code, text = run(tmp_path, [ROLE], hosts(tmp_path, 2))
    assert code == 0 and text.count("changed=0") == 2, text
    assert "Create the keys" not in text


def test_a_site_with_a_mirror_is_left_alone(tmp_path: Path) -> None:
    code, text = run(tmp_path, [ROLE], hosts(tmp_path, 2, spread_mirrors=["models"]))
    assert code == 0 and "List images and models on the host" not in text, text


def look(index: int, has_model: bool) -> dict[str, Any]:
    store = "models--Org--Model/blobs/" + "a" * 64
    entry = {"path": "model.safetensors", "store": store, "link": "../../blobs/" + "a" * 64, "size": 5_000_000_000}
    files = [{**entry, "sha256": "a" * 64, "known": "yes"}] if has_model else []
    model = {"repo": "Org/Model", "revision": "main", "only": [], "folder": "models--Org--Model", "files": files}
    return {
        "images": {},
        "models": {
            "Org/Model@main": {**model, "commit": COMMIT if has_model else None, "complete": has_model, "staged": {}}
        },
        "address": f"192.0.2.{index}",
        "fabric": "",
        "interfaces": [],
        "disks": {kind: {"path": "/", "device": "1", "free": 10**12} for kind in ("images", "models", "saved")},
        "tools_missing": [],
    }


def test_hosts_of_other_batches_are_no_sources(tmp_path: Path) -> None:
    """They are not at this task, so nobody is let in there."""
    survey = {"step": "survey", "looks_from": "looked"}
    tasks: list[dict[str, Any]] = [
        {"name": "Survey", "dgxspark.vllm.spread": survey, "run_once": True, "register": "s"},
        {"name": "Say", "ansible.builtin.debug": {"msg": "{{ s.hosts | sort | join(' ') }}"}, "run_once": True},
    ]
    variables = {f"spark-{index}": {"looked": {"distribution": look(index, index == 1)}} for index in range(1, 4)}
    code, text = run(tmp_path, tasks, variables, serial=[1, 2])
    assert code == 0, text
    assert '"msg": "spark-1"' in text and '"msg": "spark-2 spark-3"' in text
    assert "spark-2 brings it into the site; 1 more take it from there" in text


def test_a_pull_and_its_review_go_by_the_answers_of_the_hosts(tmp_path: Path) -> None:
    tasks: list[dict[str, Any]] = [
        {
            "name": "Survey",
            "dgxspark.vllm.spread": {"step": "survey", "looks_from": "looked"},
            "run_once": True,
            "register": "s",
        },
        {
            "name": "Pull",
            "dgxspark.vllm.spread": {
                "step": "pull",
                "looks_from": "looked",
                "keys_from": "keys",
                "things": "{{ s.things }}",
            },
            "run_once": True,
            "register": "p",
        },
        {
            "name": "Review",
            "dgxspark.vllm.spread": {"step": "review", "looks_from": "looked", "got_from": "got"},
            "run_once": True,
            "register": "r",
        },
        {
            "name": "Survey again",
            "dgxspark.vllm.spread": {
                "step": "survey",
                "looks_from": "looked",
                "doubted": "{{ r.doubted }}",
                "again": True,
            },
            "run_once": True,
            "register": "again",
        },
        {
            "name": "Keep",
            "ansible.builtin.copy": {
                "content": "{{ [s, p, r, again] | to_json }}",
                "dest": str(tmp_path / "out.json"),
                "mode": "0600",
            },
            "run_once": True,
        },
    ]
    failures = [{"source": "spark-1", "why": "another SHA-256", "wrong": True}]
    result = {"got": {"Org/Model@main": {"ok": True, "why": "", "source": "spark-3", "failed": failures}}}
    variables = {
        f"spark-{index}": {
            "looked": {"distribution": look(index, index in (1, 3))},
            "keys": {"client_key": f"ssh-ed25519 c{index}", "host_key": f"ssh-ed25519 h{index}"},
            "got": result if index == 2 else {},
        }
        for index in range(1, 4)
    }
    code, text = run(tmp_path, tasks, variables)
    assert code == 0, text
    survey, pull, review, second_survey = json.loads((tmp_path / "out.json").read_text())
    assert survey["ready"] and survey["moves"] and "spark-1 to spark-2 (lan): Org/Model@main, 5.00 GB" in text
    assert survey["things"]["Org/Model@main"]["bytes"] == 5_000_000_000
    (take,) = pull["hosts"]["spark-2"]["take"]
    assert [source["name"] for source in take["sources"]] == ["spark-1", "spark-3"]
    assert take["sources"][0]["links"] == [{"kind": "lan", "own": "192.0.2.2", "source": "192.0.2.1"}]
    plan_of_first = pull["hosts"]["spark-1"]
    assert [peer["name"] for peer in plan_of_first["peers"]] == ["spark-2", "spark-3"]
    assert (plan_of_first["take"], plan_of_first["ready"], pull["hosts"]["spark-2"]["ready"]) == (
        [],
        ["Org/Model@main"],
        [],
    )
    assert review["doubted"] == {"spark-1": ["Org/Model@main"]}
    assert [task["key"] for task in second_survey["hosts"]["spark-1"]["verify"]] == [
        "Org/Model@main"
    ] and not second_survey["ready"]
