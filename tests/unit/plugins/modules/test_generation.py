# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generations of a host that is a folder: record, look, restore, forget."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from generation_fixture import COMMITS, ENV, KEY, NEW, OLD, UNIT, Call, Spark, spark
from module_calls import call_module
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import vocabularies
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import (
    generation_host,
    generation_records,
    generation_restore,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generations as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deployed, host_lock, made
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.deployment import Tools
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState, merge
from ansible_collections.dgxspark.vllm.plugins.modules import generation

__all__ = ["spark"]
FOLDER = engine.FOLDER.lstrip("/")


@pytest.fixture
def call(spark: Spark, capsys: Any) -> Call:
    def call(action: str, **args: Any) -> dict[str, Any]:
        spark.calls.clear()
        return call_module(generation, {"action": action, "root": str(spark.root), **args}, capsys)

    return call


def look_at_recorded(spark: Spark) -> dict[str, Any]:
    """Return the current generation from its file."""
    number = json.loads(spark.read(f"{engine.FOLDER}/current.json"))["number"]
    file_content: dict[str, Any] = json.loads(spark.read(f"{engine.FOLDER}/{number}.json"))
    return file_content


def test_a_state_is_recorded_once(spark: Spark, call: Call) -> None:
    spark.deploy()
    first = call("record", proven=True)
    assert (first["changed"], first["recorded"], first["current"]["number"], first["current"]["proven"]) == (
        True,
        True,
        1,
        True,
    )
    assert first["current"]["services"]["heavy"]["commit"] == COMMITS["old"]
    assert first["current"]["services"]["heavy"]["image_id"] == OLD
    repeated = call("record", proven=True)
    assert (repeated["changed"], repeated["recorded"], repeated["current"]["number"]) == (False, False, 1)
    # New measurements of a proof do not make a new generation.
    spark.receipt(measured={"decode": 2})
    assert call("record", proven=True)["recorded"] is False
    spark.deploy(env="A=2\n")
    assert call("record")["current"] == {**call("look")["current"], "number": 2, "parent": 1, "proven": False}


@pytest.mark.parametrize("step", [-3600, 3600])
def test_generations_follow_their_numbers_whatever_the_clock_says(
    spark: Spark, call: Call, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    class Moved(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(seconds=step)

    spark.deploy()
    first = call("record", proven=True)["current"]
    monkeypatch.setattr(generation_records, "datetime", Moved)
    spark.deploy(env="A=2\n")
    second = call("record", proven=True)["current"]
    assert (second["number"], second["parent"], call("look")["current"]["number"]) == (2, 1, 2)
    assert (second["at"] > first["at"]) is (step > 0)
    assert call("look")["same"] is True and call("record", proven=True)["recorded"] is False


def test_a_proof_later_makes_the_same_generation_proven_and_a_failed_one_does_not_take_it_back(
    spark: Spark, call: Call
) -> None:
    spark.deploy()
    assert call("record")["current"]["proven"] is False
    proved = call("record", proven=True)
    assert (proved["changed"], proved["recorded"], proved["current"]["number"], proved["current"]["proven"]) == (
        True,
        False,
        1,
        True,
    )
    assert call("record", proven=False)["current"]["proven"] is True


def test_what_is_kept_is_for_root_alone(spark: Spark, call: Call) -> None:
    spark.deploy(secret="very-secret")
    call("record", proven=True)
    folder = spark.root / engine.FOLDER.lstrip("/")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600) for path in folder.rglob("*"))
    assert "very-secret" not in "".join(
        path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file()
    )


def test_nothing_is_recorded_while_docker_does_not_answer(
    spark: Spark, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.deploy()
    call("record", proven=True)
    answer = spark.__call__

    def dead(argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "docker":
            return 1, "[]", "Cannot connect to the Docker daemon. Is the docker daemon running?"
        return answer(argv)

    play(monkeypatch, dead)
    result = call("record", proven=True)
    assert result["failed"] and "Docker does not say which images run: docker failed: Cannot connect" in result["msg"]
    looked = call("look", generation=1)
    assert looked["current"]["number"] == 1
    (problem,) = looked["problems"]
    assert problem.startswith(
        "which images are on this host is not known: Docker does not say: docker failed: Cannot connect"
    )
    assert "Docker does not say: docker failed: Cannot connect" in call("restore", generation=1)["msg"]
    play(monkeypatch, answer)
    assert call("record", proven=True)["recorded"] is False


@pytest.mark.parametrize("answer", [(1, "[]", ""), (125, "", "")])
def test_a_docker_that_fails_without_a_word_is_silent_too(
    spark: Spark, call: Call, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, str]
) -> None:
    spark.deploy()
    played = spark.__call__
    play(monkeypatch, lambda argv, **options: answer if argv[0] == "docker" else played(argv))
    result = call("record", proven=True)
    assert result["failed"] and f"docker failed: exit code {answer[0]}" in result["msg"]


def test_images_of_which_docker_does_not_say_stay_noted_as_ours(
    spark: Spark, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that are not recorded belong to the owner and are never removed."""
    made.note_images([OLD])
    spark.deploy()
    call("record", proven=True, keep=1)
    spark.deploy(image=f"repo/engine@{NEW}")
    played, gone = spark.__call__, False

    def silent(argv: list[str], **options: Any) -> tuple[int, str, str]:
        nonlocal gone
        if argv[:3] == ["docker", "image", "inspect"] and gone:
            return 1, "[]", "Cannot connect to the Docker daemon"
        gone = gone or argv[:3] == ["docker", "image", "rm"]
        return played(argv)

    call("record", proven=True, keep=1)
    spark.images[OLD] = {"repo/engine:old", f"repo/engine@{OLD}"}
    made.note_images([OLD])
    spark.deploy(image=f"repo/engine@{NEW}", env="A=2\n")
    play(monkeypatch, silent)
    assert call("record", proven=True, keep=1)["recorded"] is True
    assert OLD in made.images()


def test_an_image_that_a_run_did_not_come_to_name_is_named_by_the_next(spark: Spark, call: Call) -> None:
    spark.deploy()
    spark.refuse = {"tag"}
    call("record", proven=True)
    assert engine.tag_of(OLD) not in spark.images[OLD]
    spark.refuse = set()
    assert call("record", proven=True)["changed"] is False
    assert engine.tag_of(OLD) in spark.images[OLD]


def test_going_back_writes_what_was_removes_what_was_not_and_restarts_what_it_concerns(
    spark: Spark, call: Call
) -> None:
    spark.deploy()
    call("record", proven=True)
    before = spark.files()
    engine_of = {"image": f"repo/engine@{NEW}"}
    more = spark.service("more", secret="x", **engine_of)
    spark.apply(spark.host(), spark.service(secret="key-2", env="A=2\n", **engine_of), more)
    spark.weights("new")
    call("record", proven=True)
    look = call("look")
    assert (look["target"], look["problems"], look["safe"]) == (1, [], 2)
    assert look["touched"] == ["spark-heavy.service", "spark-more.service"]
    back = call("restore", generation=look["target"])
    assert back["changed"] is True and back["current"]["number"] == 1 and back["same"] is True
    now = spark.files()
    key = KEY
    assert {path: now[path] for path in before if path != key} == {path: before[path] for path in before if path != key}
    # A restore keeps the current keys and reports it.
    assert now[key] == ("key-2", 0o600) and spark.read("/etc/dgxspark/secrets/more/VLLM_API_KEY") == "x"
    assert (
        back["key_changes"]
        == look["key_changes"]
        == [
            f"{spark.at(KEY)} changed since generation 1; it stays unchanged",
            f"{spark.at('/etc/dgxspark/secrets/more/VLLM_API_KEY')} is newer than generation 1; it stays",
        ]
    )
    assert not spark.exists("/etc/systemd/system/spark-more.service")
    assert spark.read("/srv/huggingface/hub/models--Org--M/refs/main") == COMMITS["old"]
    assert spark.asked("restart") == ["spark-heavy.service"] and spark.asked("stop") == ["spark-more.service"]
    assert "spark-more.service" not in spark.enabled


def test_the_same_command_again_changes_nothing(spark: Spark, call: Call) -> None:
    for env in ("A=1\n", "A=2\n", "A=3\n"):
        spark.deploy(env=env)
        call("record", proven=True)
    assert call("restore")["current"]["number"] == 2
    repeated = call("restore")
    assert (repeated["changed"], repeated["current"]["number"], spark.asked("restart")) == (False, 2, [])
    assert call("restore", generation=1)["current"]["number"] == 1
    assert spark.read("/etc/dgxspark/env/heavy.env") == "A=1\n"
    # The next deployment follows the running generation, not the one with the highest number.
    spark.deploy(env="A=4\n")
    assert {key: call("record")["current"][key] for key in ("number", "parent")} == {"number": 4, "parent": 1}
    assert call("look")["target"] == 1


def test_what_was_never_recorded_goes_back_to_the_current_generation(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    spark.deploy(env="A=half\n")
    look = call("look")
    assert (look["same"], look["target"]) == (False, 1)
    call("restore")
    assert spark.read("/etc/dgxspark/env/heavy.env") == "A=1\n"


def test_a_run_that_was_cut_off_is_finished_by_the_next_one(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    spark.deploy(env="A=2\n")
    call("record", proven=True)
    spark.refuse = {"restart"}
    assert "restart does not work" in call("restore")["msg"]
    spark.refuse = set()
    # The host has the files of generation 1 but still the number 2: it must not go forward again.
    look = call("look")
    assert (look["restoring"], look["target"]) == (1, 1)
    assert call("restore")["current"]["number"] == 1
    assert call("look")["restoring"] is None


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_a_disk_that_is_full_leaves_all_files_as_they_were(
    spark: Spark, call: Call, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The disk has room for this many files: the note about the rollback, the record, contents."""
    spark.deploy()
    call("record", proven=True)
    spark.deploy(env="A=2\n", secret="key-2", image=f"repo/engine@{NEW}")
    call("record", proven=True)
    before, original, remainder = spark.files(), os.fsync, room

    def fsync(handle: int) -> None:
        nonlocal remainder
        remainder -= 1
        if remainder < 0:
            raise OSError(28, "No space left on device")
        original(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    message = call("restore")["msg"]
    assert f"{spark.root}/" in message and "No space left on device" in message
    assert spark.files() == before and not spark.asked("restart")
    monkeypatch.setattr(os, "fsync", original)
    assert call("look")["target"] == 1
    assert call("restore")["current"]["number"] == 1 and call("look")["restoring"] is None
    assert spark.read("/etc/dgxspark/env/heavy.env") == "A=1\n"


def test_missing_images_and_weights_are_named_and_nothing_is_touched(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    spark.deploy(image=f"repo/engine@{NEW}", commit="new")
    call("record", proven=True)
    del spark.images[OLD]
    (spark.root / f"srv/huggingface/hub/models--Org--M/snapshots/{COMMITS['old']}/config.json").unlink()
    before = spark.files()
    look = call("look")
    assert any(f"repo/engine@{OLD}" in text for text in look["problems"])
    assert any("Org/M@" + "1" * 12 in text for text in look["problems"])
    result = call("restore")
    assert result["failed"] and "nothing was touched" in result["msg"]
    assert spark.files() == before and not spark.asked("stop") and not spark.asked("restart")


def test_an_image_without_the_digest_of_its_unit_is_missing(spark: Spark, call: Call) -> None:
    """docker run would not find it by that digest."""
    spark.deploy()
    call("record", proven=True)
    assert call("look", generation=1)["problems"] == []
    spark.images[OLD] = {"repo/engine:old"}
    (problem,) = call("look", generation=1)["problems"]
    assert problem.startswith(f"spark-heavy.service: its image repo/engine@{OLD} (")


def test_an_image_whose_name_leads_elsewhere_is_missing_once_it_is_removed(spark: Spark, call: Call) -> None:
    spark.images[OLD].add("repo/engine:moving")
    spark.deploy(image="repo/engine:moving")
    call("record", proven=True)
    spark.images[NEW].add("repo/engine:moving")
    del spark.images[OLD]
    (problem,) = call("look", generation=1)["problems"]
    assert problem.startswith(f"spark-heavy.service: its image repo/engine:moving ({OLD[:19]}) is not on this host")
    spark.images[NEW].discard("repo/engine:moving")
    assert call("look", generation=1)["problems"] == [problem]


def vocabulary_of(spark: Spark) -> tuple[str, bytes]:
    """Return path and content of a vocabulary that lies on the host."""
    content = b"IQ== 0\n"
    path = f"/srv/huggingface/downloads/{hashlib.sha256(content).hexdigest()[:12]}-o200k_base.tiktoken"
    spark.write(path, content.decode())
    return path, content


@pytest.mark.parametrize(("remainder", "problem"), [(None, "is gone"), ("IQ==", "is damaged")])
def test_a_rollback_asks_for_the_vocabulary_that_its_unit_mounts(
    spark: Spark, call: Call, remainder: str | None, problem: str
) -> None:
    path, _content = vocabulary_of(spark)
    mount = f"--mount type=bind,src={path},dst={vocabularies.CONTAINER_FOLDER}/o200k_base.tiktoken,readonly IMAGE"
    unit = UNIT.replace("IMAGE", mount)
    spark.deploy(unit=unit)
    call("record", proven=True)
    spark.deploy(env="A=2\n")
    call("record", proven=True)
    assert call("look")["problems"] == []
    (spark.root / path.lstrip("/")).unlink()
    if remainder is not None:
        spark.write(path, remainder)
    assert call("look")["problems"] == [
        f"spark-heavy: its vocabulary {path} {problem}; fetch it again (site.yml --tags models) and run again"
    ]


def test_a_tag_that_leads_elsewhere_by_now_is_set_back(spark: Spark, call: Call) -> None:
    spark.images[OLD].add("repo/engine:moving")
    spark.deploy(image="repo/engine:moving")
    call("record", proven=True)
    spark.images[OLD].discard("repo/engine:moving")
    spark.images[NEW].add("repo/engine:moving")
    assert call("look")["same"] is False
    spark.refuse = {"tag"}
    failed = call("restore")
    assert failed["failed"] and f"docker tag {OLD} repo/engine:moving failed: tag does not work" in failed["msg"]
    spark.refuse = set()
    call("restore")
    assert ["docker", "tag", OLD, "repo/engine:moving"] in spark.calls
    assert spark.asked("restart") == ["spark-heavy.service"]


def test_generations_are_pruned_and_their_images_go_unless_somebody_else_brought_them(spark: Spark, call: Call) -> None:
    spark.deploy()
    made.note_images([OLD])
    call("record", proven=True)
    assert engine.tag_of(OLD) in spark.images[OLD]
    removed = []
    for number in range(4):
        spark.deploy(image=f"repo/engine@{NEW}", env=f"B={number}\n")
        removed += call("record", proven=True, keep=2)["removed"]
    assert [entry["number"] for entry in call("look")["generations"]] == [4, 5]
    assert "generation 1" in removed and f"repo/engine@{OLD}" in removed
    assert OLD not in spark.images and engine.tag_of(NEW) in spark.images[NEW]
    store = spark.root / engine.FOLDER.lstrip("/") / "store"
    assert "A=1\n" not in [path.read_text(encoding="utf-8") for path in store.iterdir()]
    assert spark.exists(f"/srv/huggingface/hub/models--Org--M/snapshots/{COMMITS['old']}/config.json")


def test_the_proven_one_before_is_kept_however_many_failed_since(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    for number in range(5):
        spark.deploy(env=f"B={number}\n")
        call("record", proven=False, keep=2, reason="does not answer")
    assert [entry["number"] for entry in call("look")["generations"]] == [1, 5, 6]
    assert call("look")["target"] == 1


def test_check_mode_says_what_would_change_and_changes_nothing(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    spark.deploy(env="A=2\n")
    call("record", proven=True)
    everything = {path: path.stat().st_mtime_ns for path in spark.root.rglob("*") if path.is_file()}
    result = call("restore", _ansible_check_mode=True)
    assert result["changed"] is True and "restarts spark-heavy.service" in result["steps"]
    spark.deploy(env="A=2\n")
    assert call("record", _ansible_check_mode=True)["recorded"] is False
    assert {path for path in spark.root.rglob("*") if path.is_file()} == set(everything)
    assert not spark.asked("restart")


def test_what_runs_without_a_generation_is_recorded_when_asked(spark: Spark, call: Call) -> None:
    spark.deploy()
    assert call("look")["current"] is None
    look = call("look", baseline=True)
    assert (look["current"]["number"], look["current"]["proven"], look["safe"]) == (1, True, 1)
    assert look["plan"] == {} and look["problems"]  # there is nothing before it
    spark.deploy(env="A=2\n")
    call("record")
    assert call("look")["plan"]["services"][0]["unit"] == "spark-heavy.service"


def test_a_baseline_of_something_that_does_not_run_is_not_proven(spark: Spark, call: Call) -> None:
    spark.deploy()
    spark.active["spark-heavy.service"] = "failed"
    assert call("look", baseline=True)["current"]["proven"] is False


def test_a_unit_that_was_stopped_on_purpose_is_stopped_again(spark: Spark, call: Call) -> None:
    spark.deploy()
    spark.deploy(state="stopped", enabled=False)
    call("record", proven=True)
    spark.active["spark-heavy.service"] = "active"
    spark.enabled.add("spark-heavy.service")
    call("restore")
    assert spark.active["spark-heavy.service"] == "inactive" and not spark.enabled


def test_a_host_runs_while_its_enabled_units_are_active(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    assert call("look")["running"] is True
    spark.active["spark-heavy.service"] = "failed"
    assert call("look")["running"] is False


def test_a_unit_whose_document_says_nothing_is_enabled_as_it_was(spark: Spark, call: Call) -> None:
    spark.deploy(enabled=None)
    spark.enabled = {"spark-heavy.service"}
    call("record", proven=True)
    spark.enabled = set()
    call("restore", generation=1)
    assert spark.enabled == {"spark-heavy.service"}


def test_without_an_answer_of_systemd_nothing_is_done(spark: Spark, call: Call) -> None:
    spark.deploy()
    spark.refuse = {"show"}
    message = "systemd cannot be asked about spark-heavy.service: show does not work"
    assert message in call("record")["msg"] and message in call("look")["msg"]
    assert not spark.exists(engine.FOLDER)


def test_files_that_nothing_deployed_are_recorded(spark: Spark, call: Call) -> None:
    created = HostState.from_dict({"created": [spark.at("/etc/dgxspark/state")]}, "service")
    spark.apply(spark.host(), spark.service(), created)
    for path in ("/etc/dgxspark/state/run.json", "/usr/local/lib/dgxspark/__pycache__/a.pyc"):
        spark.write(path, "x")
    strange = ["/etc/dgxspark/notes.txt", "/etc/systemd/system/spark-mine.service"]
    for path in strange:
        spark.write(path, "x")
    call("record", proven=True)
    assert look_at_recorded(spark)["others"] == [spark.at(path) for path in strange]


def test_only_receipts_themselves_are_recorded(spark: Spark, call: Call) -> None:
    spark.deploy()
    receipts = spark.root / "var/lib/dgxspark/receipts"
    (receipts / "old").mkdir()
    (receipts / "fast.json").symlink_to(receipts / "heavy.json")
    spark.write("/var/lib/dgxspark/receipts/.heavy.json.new", "{}")
    call("record", proven=True)
    assert list(look_at_recorded(spark)["receipts"]) == ["/var/lib/dgxspark/receipts/heavy.json"]


def test_the_image_of_a_rank_is_that_of_its_engine(spark: Spark, call: Call) -> None:
    images = ["repo/engine:new", f"repo/engine@{OLD}"]  # of Ray, of the engine
    parts = [{"argv": ["/usr/bin/docker", "run", "--rm", image]} for image in images]
    settings = {"/etc/dgxspark/services/heavy.json": json.dumps({"rank": {"parts": parts}})}
    spark.deploy(unit="[Service]\nExecStart=/usr/bin/python3 spark_rank.py heavy\n", files=settings)
    call("record", proven=True)
    assert look_at_recorded(spark)["images"] == {"spark-heavy.service": {"ref": f"repo/engine@{OLD}", "id": OLD}}


def test_services_without_a_plan_are_those_of_settings_and_receipts(spark: Spark, call: Call) -> None:
    def planned() -> dict[str, Any]:
        (service,) = look_at_recorded(spark)["plan"]["services"]
        return {key: service.get(key) for key in ("name", "unit", "container", "url", "start_timeout", "state")}

    spark.deploy()
    call("record", proven=True)
    expected = {
        "name": "heavy",
        "unit": "spark-heavy.service",
        "container": "spark-heavy",
        "url": "http://127.0.0.1:1",
        "start_timeout": 3000,
        "state": "started",
    }
    assert planned() == expected
    settings = {"url": "http://127.0.0.1:2", "container": "engine", "start_deadline_seconds": 60, "on_demand": True}
    spark.deploy(files={"/etc/dgxspark/services/heavy.json": json.dumps(settings)})
    spark.receipt(deployed={"model": {"repo": "Org/M", "revision": "main"}, "image": {"ref": "repo/engine:old"}})
    call("record", proven=True)
    more = {"container": "engine", "url": "http://127.0.0.1:2", "start_timeout": 60, "state": "on_demand"}
    assert planned() == {**expected, **more}
    assert call("look")["current"]["services"]["heavy"]["image"] == "repo/engine:old"


def test_further_models_of_a_service_are_recorded_by_its_name(spark: Spark, call: Call) -> None:
    spark.deploy()
    spark.write("/srv/huggingface/hub/models--Org--Draft/refs/v1", COMMITS["new"])
    further = [{"repo": "Org/M"}, {"repo": "Org/Draft", "revision": "v1"}, {"path": "/srv/draft"}]
    services = [
        {"name": "heavy", "model": {"repo": "Org/M"}, "lock": {"models": further}},
        {"name": "local", "model": {"path": "/srv/local"}},
        {"name": "bare", "lock": {"models": [{"repo": "Org/M"}]}},
    ]
    call("record", proven=True, services=services)
    main = {"repo": "Org/M", "revision": "main", "commit": COMMITS["old"]}
    assert look_at_recorded(spark)["models"] == {
        "heavy": main,
        "heavy/Org/Draft": {"repo": "Org/Draft", "revision": "v1", "commit": COMMITS["new"]},
        "local": {"path": "/srv/local"},
        "bare/Org/M": main,
    }


def test_the_link_of_a_model_is_set_back(spark: Spark, call: Call) -> None:
    spark.deploy()
    link = spark.root / "srv/huggingface/named/M"
    link.parent.mkdir()
    link.symlink_to("../hub/old")
    model = {"repo": "Org/M", "revision": "main", "link": "named/M"}
    call("record", proven=True, services=[{"name": "heavy", "model": model}])
    assert call("restore", generation=1)["changed"] is False
    link.unlink()
    link.symlink_to("../hub/other")
    assert call("restore", generation=1)["steps"] == ["sets Org/M@main back"]
    assert str(link.readlink()) == "../hub/old"
    link.unlink()
    assert call("restore", generation=1)["changed"] is True
    assert str(link.readlink()) == "../hub/old"


def test_receipts_are_restored_and_later_ones_go(spark: Spark, call: Call) -> None:
    spark.deploy()
    path = "/var/lib/dgxspark/receipts/heavy.json"
    (spark.root / path.lstrip("/")).chmod(0o640)
    first = spark.read(path)
    call("record", proven=True)
    spark.deploy(env="A=2\n")
    spark.receipt(benchmark={"decode": 40})
    spark.write("/var/lib/dgxspark/receipts/fast.json", '{"service": "fast"}')
    call("record", proven=True)
    call("restore", generation=1)
    assert spark.read(path) == first and not spark.exists("/var/lib/dgxspark/receipts/fast.json")
    assert stat.S_IMODE((spark.root / path.lstrip("/")).stat().st_mode) == 0o640


def test_the_mark_of_the_plan_is_that_of_the_last_whole_run(spark: Spark, call: Call) -> None:
    def recorded_mark() -> Any:
        return look_at_recorded(spark)["wanted"]

    spark.deploy()
    call("record", wanted="w1")
    call("record", proven=True)
    assert recorded_mark() == ""  # a run with tags proves only some parts of the plan
    for mark, expected in (("w2", "w2"), ("", "w2"), ("w3", "w3")):
        call("record", proven=True, wanted=mark)
        assert recorded_mark() == expected


@pytest.mark.parametrize("user", [0, 1000])
def test_accounts_of_a_generation_have_to_be_there(
    spark: Spark, call: Call, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    """Root gives files to their owners; others cannot, and need none."""
    spark.deploy()
    call("record", proven=True)
    host = generation_host.Host({"root": str(spark.root), "hf_home": "/srv/huggingface"}, spark, False, print)
    folders = [
        {"path": "/owner", "owner": "absent-1"},
        {"path": "/group", "group": "absent-2"},
        {"path": "/planned", "owner": "planned", "group": "planned"},
    ]
    accounts = [{"name": "planned", "home": "/x", "shell": "/y"}]
    more = HostState.from_dict({"folders": folders, "accounts": accounts})
    target = host.generations[1]
    monkeypatch.setattr(os, "geteuid", lambda: user)
    texts = [
        "/group: no account root:absent-2 on this host; run site.yml --tags host",
        "/owner: no account absent-1:root on this host; run site.yml --tags host",
    ]
    problems = generation_restore.missing(host, replace(target, state=merge([target.state, more])))
    assert problems == (texts if user == 0 else [])


def test_a_rollback_waits_for_no_service(spark: Spark, call: Call) -> None:
    for letter in "ab":
        page = {"/etc/systemd/system/spark-page.service": f"[Service]\nExecStart=/bin/{letter}\n"}
        spark.apply(
            spark.document("host", page, [{"name": "spark-page.service"}]),
            spark.service(env=f"A={letter}\n", wait=True),
        )
        call("record", proven=True)
    call("restore", generation=1)
    restarts = [argv[2:] for argv in spark.calls if argv[:2] == ["systemctl", "restart"]]
    assert restarts == [["--no-block", "--", "spark-heavy.service"], ["--", "spark-page.service"]]


def test_model_and_measurement_are_those_of_the_receipts(spark: Spark, call: Call) -> None:
    spark.deploy()
    model = {"repo": "Org/M", "revision": "main"}
    assert call("look")["receipts"] == {"heavy": {"model": model, "benchmark": None}}
    spark.receipt(benchmark={"decode": 40})
    spark.write("/var/lib/dgxspark/receipts/fast.json", '{"service": "fast"}')
    assert call("look")["receipts"] == {
        "heavy": {"model": model, "benchmark": {"decode": 40}},
        "fast": {"model": None, "benchmark": None},
    }


@pytest.mark.parametrize("kind", ["changed", "gone", "a link"])
def test_nothing_is_recorded_while_a_file_is_not_as_deployed(spark: Spark, call: Call, kind: str) -> None:
    spark.deploy()
    path = spark.root / ENV.lstrip("/")
    content = path.read_text(encoding="utf-8")
    path.unlink()
    if kind == "changed":
        path.write_text("A=9\n", encoding="utf-8")
    elif kind == "a link":
        spark.write("/home/ada/heavy.env", content)
        path.symlink_to(spark.root / "home/ada/heavy.env")
    assert f"nothing was recorded: {path} differs from the deployed file" in call("record", proven=True)["msg"]
    assert call("look")["generations"] == []


def test_revisions_that_have_moved_are_set_back_and_commits_are_not(spark: Spark, call: Call) -> None:
    spark.deploy()
    spark.write("/srv/huggingface/local/config.json", "{}")
    models = [{"repo": "Org/M", "revision": "main"}, {"repo": "Org/M", "revision": COMMITS["old"]}]
    models.append({"path": "/srv/huggingface/local"})
    services = [{"name": f"service-{number}", "model": model} for number, model in enumerate(models)]
    call("record", proven=True, services=services)
    params = {"root": str(spark.root), "hf_home": "/srv/huggingface", "generation": 1}
    tools = Tools(spark, lambda *_args: False, print, True, str(spark.root))
    host = generation_host.Host(params, spark, True, print)
    result = generation_restore.restore(host, tools)
    assert (result["steps"], result["changed"]) == ([], False)
    spark.weights("new")
    result = generation_restore.restore(host, tools)
    assert (result["steps"], result["changed"]) == (["sets Org/M@main back"], True)
    assert spark.read("/srv/huggingface/hub/models--Org--M/refs/main") == COMMITS["new"]
    call("restore", generation=1)
    assert spark.read("/srv/huggingface/hub/models--Org--M/refs/main") == COMMITS["old"]


def test_a_service_that_something_else_starts_is_stopped_and_other_such_units_run_on(spark: Spark, call: Call) -> None:
    """Services of an exclusive set need the memory of each other."""
    page = {"/etc/systemd/system/spark-page.service": "[Service]\nExecStart=/bin/page\n"}
    units = [{"name": "spark-page.service", "state": "triggered"}]
    spark.apply(spark.document("host", page, units), spark.service(state="triggered", enabled=False))
    call("record", proven=True)
    spark.start(["spark-page.service", "spark-heavy.service"])
    assert call("restore", generation=1)["touched"] == ["spark-heavy.service"]
    assert (spark.active["spark-page.service"], spark.active["spark-heavy.service"]) == ("active", "inactive")


def test_forgetting_leaves_the_images(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    assert call("forget")["changed"] is True
    assert not spark.exists(engine.FOLDER) and spark.images[OLD] == {"repo/engine:old", f"repo/engine@{OLD}"}
    assert call("forget")["changed"] is False


def test_a_number_that_is_not_kept_is_refused_with_those_that_are(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    result = call("restore", generation=7)
    assert "generation 7 is not kept on this host (kept: 1)" in result["msg"]


def test_damage_in_the_store_is_found_before_it_is_used(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    spark.deploy(env="A=2\n")
    call("record", proven=True)
    for path in (spark.root / engine.FOLDER.lstrip("/") / "store").iterdir():
        if path.read_text(encoding="utf-8") == "A=1\n":
            path.write_text("A=X\n", encoding="utf-8")
    before = spark.files()
    assert f"{spark.at(ENV)}: what generation 1 kept of it is missing or damaged" in call("restore")["msg"]
    assert spark.files() == before and call("look")["restoring"] is None
    assert spark.read("/etc/dgxspark/env/heavy.env") == "A=2\n"


# --- facts and proofs -------------------------------------------------------------------------------------------------

HEAVY = {"name": "heavy", "model": {"repo": "Org/M", "revision": "main"}}
SPARK_FACTS = {"kernel": "6.17.0", "driver": "580.1", "dgx_os": "7.5.0"}
SPARK = {"kernel": "6.17.0", "gpu": {"driver_version": "580.1"}, "dgx_os": {"version": "7.5.0"}, "containers": ["..."]}


def test_kernel_and_driver_are_those_of_the_last_proof(spark: Spark, call: Call) -> None:
    spark.deploy()

    def facts() -> Any:
        return look_at_recorded(spark)["facts"]

    call("record", facts=SPARK_FACTS)
    assert facts() == SPARK_FACTS
    newer = {**SPARK_FACTS, "driver": "595.1"}
    # A run without a proof does not confirm the new driver.
    assert call("record", facts=newer)["changed"] is False
    assert facts() == SPARK_FACTS
    call("record", facts=newer, proven=True, wanted="w")
    assert facts() == newer
    assert call("record", facts=SPARK_FACTS, proven=True, wanted="w")["changed"] is False
    assert facts() == SPARK_FACTS
    # A run without facts keeps the recorded ones.
    call("record", proven=True, wanted="w")
    assert facts() == SPARK_FACTS


def test_a_proof_after_an_update_is_noted_and_the_plan_stays(spark: Spark, call: Call) -> None:
    spark.deploy()
    assert call("confirm", facts=SPARK_FACTS)["changed"] is False  # nothing was recorded that could be confirmed
    newer = {**SPARK_FACTS, "driver": "595.1"}
    call("record", facts=SPARK_FACTS, wanted="w")
    confirmed = call("confirm", facts=newer)  # running containers do not prove a failed or untried generation
    assert (confirmed["changed"], confirmed["current"]["proven"]) == (False, False)
    call("record", facts=SPARK_FACTS, proven=True, wanted="w")
    assert call("confirm", facts=newer, _ansible_check_mode=True)["changed"] is True
    assert look_at_recorded(spark)["facts"] == SPARK_FACTS
    confirmed = call("confirm", facts=newer)
    assert (confirmed["changed"], confirmed["current"]["proven"], confirmed["current"]["wanted"]) == (True, True, "w")
    assert look_at_recorded(spark)["facts"] == newer
    assert call("confirm", facts=newer)["changed"] is False
    # A file was edited by hand, so the proof is not one of the recorded generation.
    spark.write("/etc/dgxspark/env/heavy.env", "A=9\n")
    assert call("confirm", facts=SPARK_FACTS)["changed"] is False
    assert look_at_recorded(spark)["facts"] == newer


def test_of_a_host_s_facts_three_are_kept() -> None:
    assert engine.facts_of(SPARK) == SPARK_FACTS
    assert engine.facts_of({"kernel": "6.17.0", "gpu": None, "dgx_os": None}) == {"kernel": "6.17.0"}
    assert engine.facts_of(None) == {}


# --- keys and controllers


def test_another_key_makes_no_generation(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    first = look_at_recorded(spark)["secrets"]
    spark.deploy(secret="key-2")
    assert call("look")["same"] is True
    assert call("record", proven=True)["recorded"] is False
    assert look_at_recorded(spark)["secrets"] != first


def test_a_key_that_is_gone_is_named_before_anything_is_touched(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    spark.deploy(env="A=2\n")
    (spark.root / "etc/dgxspark/secrets/heavy/VLLM_API_KEY").unlink()
    call("record", proven=True)
    before = spark.files()
    message = call("restore", generation=1)["msg"]
    assert "VLLM_API_KEY: this key is not on the host any more" in message and spark.files() == before


def test_the_key_of_a_service_goes_when_the_state_without_it_is_proven(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    spark.write("/etc/dgxspark/secrets/gateway/KEY", "g", 0o600)
    spark.apply(spark.host())
    call("record", proven=False, reason="it failed")
    assert spark.exists(KEY), "what failed may still go back"
    spark.write("/etc/dgxspark/secrets/heavy/mine", "x", 0o600)
    call("record", proven=True)
    assert not spark.exists(KEY) and spark.exists("/etc/dgxspark/secrets/gateway/KEY")
    assert spark.read("/etc/dgxspark/secrets/heavy/mine") == "x"
    record = deployed.load()
    assert record is not None and record.retired == ()


def test_the_folder_of_a_retired_key_goes_with_it(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    spark.apply(spark.host())
    assert spark.exists(KEY)
    call("record", proven=True)
    assert not spark.exists("/etc/dgxspark/secrets/heavy") and spark.exists("/etc/dgxspark/secrets")


def test_hostile_two_controllers_do_not_record_what_they_made_together(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True, controller="a")
    call("confirm", controller="a2")
    call("restore", controller="b", generation=1)
    with host_lock.noted("b", True) as run:
        run["changed"] = True
    spark.deploy(env="A=2\n")
    refused = call("record", proven=True, controller="a2")
    assert refused["failed"] and "b changed this host too" in refused["msg"]
    assert [entry["number"] for entry in call("look")["generations"]] == [1]
    # The other run recorded last, with all its changes; the next run starts afresh.
    assert call("record", proven=True, controller="b")["current"]["number"] == 2
    assert call("record", proven=True, controller="c")["recorded"] is False


def test_hostile_what_a_killed_module_left_half_written_goes_with_the_next(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    remainder = [
        f"{folder}/.dgxspark-left"
        for folder in ("/etc/dgxspark/secrets/heavy", f"{engine.FOLDER}/store", engine.FOLDER)
    ]
    for path in remainder:
        spark.write(path, "a key", 0o600)
    call("record", proven=True)
    assert [path for path in remainder if spark.exists(path)] == []


@pytest.mark.parametrize(("account", "expected"), [("root", "root"), ("1000", 1000), ("0", 0)])
def test_an_account_without_a_name_is_given_files_by_its_number(account: str, expected: str | int) -> None:
    assert generation_records.number_or_name(account) == expected


def test_only_root_gives_files_to_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners: list[Any] = []
    monkeypatch.setattr(shutil, "chown", lambda _path, *accounts: owners.append((os.geteuid(), *accounts)))
    for user in (0, 1000):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        generation_records.write(tmp_path / "file", b"", owner="1000", group="docker")
    assert owners == [(0, 1000, "docker")]


def test_weights_of_a_generation_are_whole_and_lie_where_they_lay(spark: Spark) -> None:
    host = generation_host.Host({"root": str(spark.root), "hf_home": "/srv/huggingface"}, spark, False, print)
    entry = {"repo": "Org/M", "revision": "main", "commit": COMMITS["old"]}
    assert generation_restore.lost_weights(host, entry) == f"its weights Org/M@{'1' * 12} are gone"
    spark.weights("old")
    assert generation_restore.lost_weights(host, entry) == ""
    shard = spark.root / f"srv/huggingface/hub/models--Org--M/snapshots/{COMMITS['old']}/model.safetensors"
    shard.symlink_to("../../blobs/gone")
    assert (
        generation_restore.lost_weights(host, entry)
        == f"its weights Org/M@{'1' * 12} are not whole (model.safetensors)"
    )
    shard.unlink()
    (shard.parent / "config.json").unlink()
    assert generation_restore.lost_weights(host, entry) == f"its weights Org/M@{'1' * 12} are not whole (empty)"
    spark.write("/srv/huggingface/local/config.json", "{}")
    assert generation_restore.lost_weights(host, {"path": "/srv/huggingface/local"}) == ""
    assert generation_restore.lost_weights(host, {"path": "/none"}) == "its weights /none are gone"
    (spark.root / "srv/huggingface/empty").mkdir()
    text = "its weights /srv/huggingface/empty are gone"
    assert generation_restore.lost_weights(host, {"path": "/srv/huggingface/empty"}) == text
