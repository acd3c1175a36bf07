# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random documents: changes are named exactly, and a restore brings back the recorded files, also after an interruption."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from generation_fixture import Spark, spark
from module_calls import call_module

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generation_records, generation_restore
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generations as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import (
    deploy_files,
    deploy_removal,
    deploy_units,
    deployed,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState, merge
from ansible_collections.dgxspark.vllm.plugins.modules import compare, generation

__all__ = ["spark"]
SEEDS = [int(os.environ["DGXSPARK_SEED"])] if os.environ.get("DGXSPARK_SEED") else range(12)
FOLDERS = ("/etc/dgxspark/env", "/etc/dgxspark/files/a", "/etc/dgxspark/files/a/b", "/usr/local/lib/dgxspark")
PARTS = ("service", "guard", "gateway")


class Interrupted(BaseException):
    """A killed run; no code catches this exception."""


def random_document(spark: Spark, choice: random.Random) -> HostState:
    """A document of several parts, with secrets and units that are started, stopped or left to their triggers."""
    states = [spark.host()]
    for part in PARTS:
        if choice.random() < 0.2:
            continue
        files: dict[str, Any] = {}
        for number in range(choice.randint(0, 4)):
            path = f"{choice.choice(FOLDERS)}/{part}-{number}"
            files[path] = {"content": choice.choice("abc") * 3, "mode": choice.choice(["0644", "0600"])}
        if choice.random() < 0.5:
            files[f"/etc/dgxspark/secrets/{part}/KEY"] = {
                "content": choice.choice("xyz"),
                "mode": "0600",
                "secret": True,
            }
        units = []
        for number in range(choice.randint(0, 2)):
            name = f"spark-{part}-{number}.service"
            files[f"/etc/systemd/system/{name}"] = f"[Service]\nExecStart=/bin/{choice.choice('abc')}\n"
            state = choice.choice(["started", "started", "stopped", "triggered"])
            units.append({"name": name, "state": state, "enabled": state == "started"})
        states.append(spark.document(part, files, units))
    return merge(states)


def run(module: Any, capsys: Any, spark: Spark, **args: Any) -> dict[str, Any]:
    result = call_module(module, {"root": str(spark.root), **args}, capsys)
    assert "failed" not in result, result
    return result


def present(spark: Spark, document: HostState) -> dict[str, Any]:
    """Return the state that a rollback restores: files except keys, enabled units, and running units except triggered ones."""
    files = {path: entry for path, entry in spark.files().items() if "/secrets/" not in path}
    units = {
        row.name: (row.name in spark.enabled, row.state == "triggered" or spark.active.get(row.name, "inactive"))
        for row in document.units
    }
    return {"files": files, "units": units}


def document_of(state: HostState) -> dict[str, Any]:
    document = state.to_dict()
    for row in document["files"]:
        row.pop("data", None)
    return document


@pytest.mark.parametrize("seed", SEEDS)
def test_what_changes_is_named_and_what_comes_back_is_what_was(spark: Spark, capsys: Any, seed: int) -> None:
    choice = random.Random(seed)
    print(f"seed {seed}", file=sys.stderr)
    first, second = random_document(spark, choice), random_document(spark, choice)
    spark.apply(first)
    assert run(generation, capsys, spark, action="record", proven=True, services=[])["recorded"] is True
    then = present(spark, first)
    assert run(compare, capsys, spark)["why"] == []
    assert run(compare, capsys, spark, document=document_of(first))["why"] == []

    # An administrator edits files by hand.
    paths = sorted(path for path in then["files"] if not path.startswith("/var/"))
    changed = choice.sample(paths, choice.randint(0, min(3, len(paths))))
    expected: dict[str, list[str]] = {"changed": [], "missing": [], "attributes": [], "added": []}
    for path in changed:
        place, kind = Path(spark.at(path)), choice.choice(["changed", "missing", "attributes"])
        expected[kind].append(str(place))
        if kind == "changed":
            place.write_text("by hand", encoding="utf-8")
        elif kind == "missing":
            place.unlink()
        else:
            place.chmod(0o640)
    if choice.random() < 0.5:
        spark.write("/etc/dgxspark/stranger", "x")
        expected["added"].append(spark.at("/etc/dgxspark/stranger"))
    differences = run(compare, capsys, spark)["differences"]
    assert {kind: differences[kind] for kind in expected} == {kind: sorted(names) for kind, names in expected.items()}
    Path(spark.at("/etc/dgxspark/stranger")).unlink(missing_ok=True)

    spark.apply(second)
    assert run(compare, capsys, spark, document=document_of(second))["differences"]["units"] == {}
    # A proven generation without a key would have removed it.
    run(generation, capsys, spark, action="record", proven=False, services=[])
    back = run(generation, capsys, spark, action="restore", generation=1)
    assert back["current"]["number"] == 1 and back["same"] is True
    assert present(spark, first) == then
    after = run(compare, capsys, spark)
    assert after["differences"]["units"] == {} and not [text for text in after["why"] if "key files" not in text]
    record = deployed.load()
    assert record is not None and engine.document_identity(record.state) == engine.document_identity(first)
    # The same command again changes nothing.
    spark.calls.clear()
    assert run(generation, capsys, spark, action="restore", generation=1)["changed"] is False
    assert not spark.asked("restart") and not spark.asked("start") and not spark.asked("stop")


STEPS = (
    (generation_records, "set_current"),
    (deploy_removal, "save_both"),
    (deploy_files, "make_folders"),
    (deploy_files, "stage"),
    (deploy_removal, "stop_units"),
    (deploy_files, "put_in_place"),
    (deploy_removal, "remove_rows"),
    (deploy_files, "set_attributes"),
    (deploy_units, "systemctl"),
    (deploy_units, "bring"),
    (deployed, "save"),
    (generation_restore, "_restore_receipts"),
)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_interrupted_rollback_is_completed_by_the_next(
    spark: Spark, capsys: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    choice = random.Random(seed)
    first, second = random_document(spark, choice), random_document(spark, choice)
    spark.apply(first)
    run(generation, capsys, spark, action="record", proven=True, services=[])
    then = present(spark, first)
    spark.apply(second)
    run(generation, capsys, spark, action="record", proven=False, services=[])
    module, step = choice.choice(STEPS)
    countdown, is_after, original = choice.randint(1, 3), choice.random() < 0.5, getattr(module, step)
    print(f"seed {seed}: {step}, call {countdown}, {'after' if is_after else 'before'} it", file=sys.stderr)

    def interrupted(*args: Any, **more: Any) -> Any:
        nonlocal countdown
        countdown -= 1
        if countdown == 0 and not is_after:
            raise Interrupted
        result = original(*args, **more)
        if countdown == 0:
            raise Interrupted
        return result

    with monkeypatch.context() as patch:
        patch.setattr(module, step, interrupted)
        try:
            with patch_module_args({"root": str(spark.root), "action": "restore", "generation": 1}):
                generation.main()
        except (Interrupted, SystemExit):
            capsys.readouterr()
    look = run(generation, capsys, spark, action="look", generation=1)
    assert look["problems"] == []
    back = run(generation, capsys, spark, action="restore", generation=1)
    assert back["current"]["number"] == 1 and back["same"] is True
    assert present(spark, first) == then
    assert not [text for text in run(compare, capsys, spark)["why"] if "key files" not in text]
