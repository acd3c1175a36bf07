# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generations of a host that is a folder: record, look, restore, forget."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from datetime import datetime, timedelta
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
    call("record", proven=True)
    assert not spark.exists(KEY) and spark.exists("/etc/dgxspark/secrets/gateway/KEY")
    record = deployed.load()
    assert record is not None and record.retired == ()


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


def test_weights_of_a_generation_are_whole_and_lie_where_they_lay(spark: Spark) -> None:
    host = generation_host.Host({"root": str(spark.root), "hf_home": "/srv/huggingface"}, spark, False, print)
    entry = {"repo": "Org/M", "revision": "main", "commit": COMMITS["old"]}
    assert generation_restore.lost_weights(host, entry) == f"its weights Org/M@{'1' * 12} are gone"
    spark.weights("old")
    assert generation_restore.lost_weights(host, entry) == ""
    spark.write("/srv/huggingface/local/config.json", "{}")
    assert generation_restore.lost_weights(host, {"path": "/srv/huggingface/local"}) == ""
    assert generation_restore.lost_weights(host, {"path": "/none"}) == "its weights /none are gone"
