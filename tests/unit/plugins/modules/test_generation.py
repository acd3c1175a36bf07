# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generations on a host that is a folder. systemd and Docker are played by a function that keeps their state."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots, vocabularies
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import (
    generation_asks,
    generation_host,
    generation_looks,
    generation_records,
    generation_restore,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generations as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_lock, made
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import host_proof
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer
from ansible_collections.dgxspark.vllm.plugins.modules import generation

UNIT = """[Unit]
Description=heavy
[Service]
ExecStartPre=/usr/bin/python3 /usr/local/libexec/dgxspark/spark_unit.py gate heavy
ExecStart=/usr/bin/docker run --rm --name spark-heavy --env-file /etc/dgxspark/env/heavy.env IMAGE vllm serve
[Install]
WantedBy=multi-user.target
"""
OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
COMMITS = {"old": "1" * 40, "new": "2" * 40}


class Spark:
    """A host with files below a folder, units and images."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.active: dict[str, str] = {}
        self.enabled: set[str] = set()
        self.images = {OLD: {"repo/engine:old", f"repo/engine@{OLD}"}, NEW: {"repo/engine:new", f"repo/engine@{NEW}"}}
        self.calls: list[list[str]] = []
        self.refuse: set[str] = set()
        self.table: str | None = None

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        place.chmod(mode)

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text(encoding="utf-8")

    def exists(self, path: str) -> bool:
        return (self.root / path.lstrip("/")).exists()

    def deploy(self, image: str = OLD, secret: str = "key-1", env: str = "A=1\n", commit: str = "old") -> None:
        self.write("/etc/systemd/system/spark-heavy.service", UNIT.replace("IMAGE", f"repo/engine@{image}"))
        self.write("/etc/dgxspark/services/heavy.json", json.dumps({"url": "http://127.0.0.1:1", "model": "heavy"}))
        self.write("/etc/dgxspark/env/heavy.env", env, 0o600)
        self.write("/etc/dgxspark/secrets/heavy/VLLM_API_KEY", secret, 0o600)
        self.write("/usr/local/libexec/dgxspark/spark_unit.py", "pass\n")
        self.write(
            "/var/lib/dgxspark/receipts/heavy.json",
            json.dumps({"service": "heavy", "deployed": {"model": {"repo": "Org/M", "revision": "main"}}}),
        )
        self.write("/srv/huggingface/hub/models--Org--M/refs/main", COMMITS[commit])
        self.write(f"/srv/huggingface/hub/models--Org--M/snapshots/{COMMITS[commit]}/config.json", "{}")
        self.active["spark-heavy.service"] = "active"
        self.enabled.add("spark-heavy.service")

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.calls.append(argv)
        if argv[1] in self.refuse:
            return 1, "", f"{argv[1]} does not work"
        names = [word for word in argv[2:] if word.startswith("spark-")]
        out = ""
        if argv[0] == generation_looks.NFT:
            return (1, "", "No such file or directory") if self.table is None else (0, self.table, "")
        if argv[:2] == ["systemctl", "show"]:
            out = "\n\n".join(
                f"Id={name}\nLoadState=loaded\nActiveState={self.active.get(name, 'inactive')}\n"
                f"UnitFileState={'enabled' if name in self.enabled else 'disabled'}\nInactiveExitTimestampMonotonic=0"
                for name in names
            )
        elif argv[0] == "systemctl" and argv[1] in ("start", "restart"):
            self.active.update(dict.fromkeys(names, "active"))
        elif argv[:2] == ["systemctl", "stop"]:
            self.active.update(dict.fromkeys(names, "inactive"))
        elif argv[:2] == ["systemctl", "enable"]:
            self.enabled.update(names)
        elif argv[:2] == ["systemctl", "disable"]:
            self.enabled.difference_update(names)
        elif argv[:3] == ["docker", "image", "inspect"]:
            found = [self.described(image) for image, tags in self.images.items() if {image, *tags} & set(argv[3:])]
            there = {name for image in found for name in (image["Id"], *image["RepoTags"], *image["RepoDigests"])}
            lacking = [name for name in argv[3:] if name not in there]
            return int(bool(lacking)), json.dumps(found), "".join(f"Error: No such image: {name}\n" for name in lacking)
        elif argv[:2] == ["docker", "tag"]:
            next(tags for image, tags in self.images.items() if argv[2] in {image, *tags}).add(argv[3])
        elif argv[:3] == ["docker", "image", "ls"]:
            own = [tag for tags in self.images.values() for tag in tags if tag.startswith(f"{engine.TAG}:")]
            out = "\n".join(tag.split(":")[1] for tag in own)
        elif argv[:3] == ["docker", "image", "rm"]:
            for tags in self.images.values():
                tags.discard(argv[3])
            self.images = {image: tags for image, tags in self.images.items() if tags}
        return 0, out, ""

    def described(self, image: str) -> dict[str, Any]:
        tags = sorted(self.images[image])
        return {
            "Id": image,
            "RepoTags": [tag for tag in tags if "@" not in tag],
            "RepoDigests": [tag for tag in tags if "@" in tag],
        }

    def asked(self, verb: str) -> list[str]:
        return [
            word for call in self.calls if call[:2] == ["systemctl", verb] for word in call[2:] if word[:6] == "spark-"
        ]


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Spark:
    played = Spark(tmp_path)
    play(monkeypatch, played)
    return played


Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(spark: Spark, capsys: Any) -> Call:
    def call(action: str, **args: Any) -> dict[str, Any]:
        spark.calls.clear()
        with patch_module_args({"action": action, "root": str(spark.root), **args}), pytest.raises(SystemExit):
            generation.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return call


def files(spark: Spark) -> dict[str, tuple[str, int]]:
    """All that is on the host beside the generations themselves."""
    return {
        str(path.relative_to(spark.root)): (path.read_text(encoding="utf-8"), stat.S_IMODE(path.stat().st_mode))
        for path in sorted(spark.root.rglob("*"))
        if path.is_file() and "generations" not in path.parts
    }


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
    again = call("record", proven=True)
    assert (again["changed"], again["recorded"], again["current"]["number"]) == (False, False, 1)
    # What a proof measured is no other state.
    spark.write(
        "/var/lib/dgxspark/receipts/heavy.json",
        json.dumps(
            {
                "service": "heavy",
                "measured": {"decode": 2},
                "deployed": {"model": {"repo": "Org/M", "revision": "main"}},
            }
        ),
    )
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
    assert result["failed"] and "Docker does not say which images run: Cannot connect" in result["msg"]
    looked = call("look", generation=1)
    assert looked["current"]["number"] == 1
    (problem,) = looked["problems"]
    assert problem.startswith("which images are on this host is not known: Docker does not say: Cannot connect")
    assert "Docker does not say: Cannot connect" in call("restore", generation=1)["msg"]
    compared = call("compare")
    assert compared["failed"] and "what differs is not known: Docker does not say which images run" in compared["msg"]
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
    assert result["failed"] and f"docker image inspect ended with {answer[0]}" in result["msg"]


def test_images_of_which_docker_does_not_say_stay_noted_as_ours(
    spark: Spark, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not noted is the owner's, and would never be removed."""
    made.note_images([OLD])
    spark.deploy()
    call("record", proven=True, keep=1)
    spark.deploy(image=NEW)
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
    spark.deploy(image=NEW, env="A=2\n")
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
    before = files(spark)
    spark.deploy(image=NEW, secret="key-2", env="A=2\n", commit="new")
    spark.write(
        "/etc/systemd/system/spark-more.service", UNIT.replace("heavy", "more").replace("IMAGE", f"repo/engine@{NEW}")
    )
    spark.write("/etc/dgxspark/secrets/more/KEY", "x", 0o600)
    spark.active["spark-more.service"] = "active"
    spark.enabled.add("spark-more.service")
    call("record", proven=True)
    look = call("look")
    assert (look["target"], look["problems"], look["safe"]) == (1, [], 2)
    assert look["touched"] == ["spark-heavy.service", "spark-more.service"]
    back = call("restore", generation=look["target"])
    assert back["changed"] is True and back["current"]["number"] == 1 and back["same"] is True
    now = files(spark)
    key = "etc/dgxspark/secrets/heavy/VLLM_API_KEY"
    assert {path: now[path] for path in before if path != key} == {path: before[path] for path in before if path != key}
    # Keys stay as they are now, and that is said.
    assert now[key] == ("key-2", 0o600) and spark.read("/etc/dgxspark/secrets/more/KEY") == "x"
    assert (
        back["key_changes"]
        == look["key_changes"]
        == [
            f"/{key} changed since generation 1; it stays as it is now",
            "/etc/dgxspark/secrets/more/KEY is newer than generation 1; it stays",
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
    again = call("restore")
    assert (again["changed"], again["current"]["number"], spark.asked("restart")) == (False, 2, [])
    assert call("restore", generation=1)["current"]["number"] == 1
    assert spark.read("/etc/dgxspark/env/heavy.env") == "A=1\n"
    # What is deployed next comes after the one that runs, not after the newest number.
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
    spark.refuse = {"daemon-reload"}
    assert "daemon-reload does not work" in call("restore")["msg"]
    spark.refuse = set()
    # The files are those of 1 and the number is still 2: it must not go forward again.
    look = call("look")
    assert (look["restoring"], look["target"]) == (1, 1)
    assert call("restore")["current"]["number"] == 1
    assert call("look")["restoring"] is None


def test_a_disk_that_is_full_leaves_all_files_as_they_were(
    spark: Spark, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.deploy()
    call("record", proven=True)
    spark.deploy(env="A=2\n", secret="key-2")
    call("record", proven=True)
    before = files(spark)
    whole, room = os.fsync, 0

    def fsync(handle: int) -> None:
        nonlocal room
        room -= 1
        if room < 0:
            raise OSError(28, "No space left on device")
        whole(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    said = call("restore")["msg"]
    assert f"{spark.root}/etc/dgxspark/" in said and "No space left on device" in said
    assert files(spark) == before and not spark.asked("restart")
    monkeypatch.setattr(os, "fsync", whole)
    assert call("look")["restoring"] is None
    assert call("restore")["current"]["number"] == 1
    assert spark.read("/etc/dgxspark/env/heavy.env") == "A=1\n"


def test_missing_images_and_weights_are_named_and_nothing_is_touched(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    spark.deploy(image=NEW, commit="new")
    call("record", proven=True)
    del spark.images[OLD]
    (spark.root / f"srv/huggingface/hub/models--Org--M/snapshots/{COMMITS['old']}/config.json").unlink()
    before = files(spark)
    look = call("look")
    assert any(f"repo/engine@{OLD}" in text for text in look["problems"])
    assert any("Org/M@" + "1" * 12 in text for text in look["problems"])
    result = call("restore")
    assert result["failed"] and "nothing was touched" in result["msg"]
    assert files(spark) == before and not spark.asked("stop") and not spark.asked("restart")


def vocabulary_of(spark: Spark) -> tuple[str, bytes]:
    """Return path and content of a vocabulary that lies on the host."""
    content = b"IQ== 0\n"
    path = f"/srv/huggingface/downloads/{hashlib.sha256(content).hexdigest()[:12]}-o200k_base.tiktoken"
    spark.write(path, content.decode())
    return path, content


@pytest.mark.parametrize(("left", "problem"), [(None, "is gone"), ("IQ==", "is damaged")])
def test_a_rollback_asks_for_the_vocabulary_that_its_unit_mounts(
    spark: Spark, call: Call, left: str | None, problem: str
) -> None:
    spark.deploy()
    path, _content = vocabulary_of(spark)
    mount = f"--mount type=bind,src={path},dst={vocabularies.CONTAINER_FOLDER}/o200k_base.tiktoken,readonly IMAGE"
    unit = UNIT.replace("IMAGE", mount).replace("IMAGE", f"repo/engine@{OLD}")
    spark.write("/etc/systemd/system/spark-heavy.service", unit)
    call("record", proven=True)
    spark.deploy(env="A=2\n")
    call("record", proven=True)
    assert call("look")["problems"] == []
    (spark.root / path.lstrip("/")).unlink()
    if left is not None:
        spark.write(path, left)
    assert call("look")["problems"] == [
        f"spark-heavy: its vocabulary {path} {problem}; fetch it again (site.yml --tags models) and run again"
    ]


def test_vocabularies_are_compared_by_their_checksum(spark: Spark, call: Call) -> None:
    spark.deploy()
    path, _content = vocabulary_of(spark)
    row = {"url": "https://example.org/o200k_base.tiktoken", "sha256": "x", "bytes": 7, "path": path}

    def compared() -> tuple[bool, list[str]]:
        [found] = call("compare", models=[row])["models"]
        assert found["is_vocabulary"] and found["path"] == path
        return found["there"], found["wrong"]

    assert compared() == (True, [])
    spark.write(path, "IQ==")
    assert compared() == (True, ["its checksum is another"])
    (spark.root / path.lstrip("/")).unlink()
    assert compared() == (False, [])


def test_a_tag_that_leads_elsewhere_by_now_is_set_back(spark: Spark, call: Call) -> None:
    spark.deploy()
    unit = UNIT.replace("IMAGE", "repo/engine:moving")
    spark.write("/etc/systemd/system/spark-heavy.service", unit)
    spark.images[OLD].add("repo/engine:moving")
    call("record", proven=True)
    spark.images[OLD].discard("repo/engine:moving")
    spark.images[NEW].add("repo/engine:moving")
    assert call("look")["same"] is False
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
        spark.deploy(image=NEW, env=f"B={number}\n")
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
    spark.active["spark-heavy.service"] = "inactive"
    spark.enabled.clear()
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
    before = files(spark)
    assert "/etc/dgxspark/env/heavy.env: what generation 1 kept of it is gone or damaged" in call("restore")["msg"]
    assert files(spark) == before and call("look")["restoring"] is None
    assert spark.read("/etc/dgxspark/env/heavy.env") == "A=2\n"


# --- comparing ------------------------------------------------------------------------------------------------------------

HEAVY = {"name": "heavy", "model": {"repo": "Org/M", "revision": "main"}}
SPARK_FACTS = {"kernel": "6.17.0", "driver": "580.1", "dgx_os": "7.5.0"}
SPARK = {"kernel": "6.17.0", "gpu": {"driver_version": "580.1"}, "dgx_os": {"version": "7.5.0"}, "containers": ["..."]}


def test_a_host_without_a_generation_has_nothing_to_compare(spark: Spark, call: Call) -> None:
    found = call("compare")
    assert (found["recorded"], found["same"], found["changed"]) == (None, False, False)
    spark.deploy()
    found = call("compare")
    assert found["recorded"] is None
    assert not any(found["files"].values())
    assert found["units"] == {"spark-heavy.service": {"enabled": True, "active": "active"}}


def test_what_is_different_is_named_and_nothing_of_it_shown_or_written(spark: Spark, call: Call) -> None:
    spark.deploy(secret="first-secret")
    spark.write("/etc/dgxspark/files/heavy/template.jinja", "{{ old }}")
    call("record", proven=True, wanted="w", services=[HEAVY])
    assert call("compare")["same"] is True
    assert not any(call("compare")["files"].values())
    spark.write("/etc/dgxspark/secrets/heavy/VLLM_API_KEY", "second-secret", 0o600)
    spark.write("/etc/dgxspark/env/heavy.env", "A=1\n", 0o644)
    spark.write(
        "/etc/systemd/system/spark-heavy.service.d/override.conf", "[Service]\nEnvironment=TOKEN=third-secret\n"
    )
    (spark.root / "etc/dgxspark/files/heavy/template.jinja").unlink()
    spark.write("/srv/huggingface/hub/models--Org--M/refs/main", COMMITS["new"])
    spark.enabled.clear()
    before = files(spark)
    found = call("compare")
    assert found["changed"] is False and found["same"] is False
    assert found["files"] == {
        "changed": ["/etc/dgxspark/secrets/heavy/VLLM_API_KEY"],
        "missing": ["/etc/dgxspark/files/heavy/template.jinja"],
        "added": ["/etc/systemd/system/spark-heavy.service.d/override.conf"],
        "attributes": ["/etc/dgxspark/env/heavy.env"],
    }
    assert found["moved"] == {
        "heavy": {"repo": "Org/M", "revision": "main", "was": COMMITS["old"], "is": COMMITS["new"]}
    }
    assert found["units"]["spark-heavy.service"]["enabled"] is False
    assert found["recorded"]["units"]["spark-heavy.service"]["enabled"] is True
    assert (found["recorded"]["number"], found["recorded"]["wanted"], found["recorded"]["proven"]) == (1, "w", True)
    assert found["recorded"]["images"]["spark-heavy.service"]["id"] == OLD
    assert 'secret"' not in json.dumps(found) and "third-secret" not in json.dumps(found)
    assert files(spark) == before
    assert not [argv for argv in spark.calls if argv[1] not in ("show", "image")]


def test_models_are_compared_by_names_and_sizes(spark: Spark, call: Call) -> None:
    spark.deploy()
    wanted = {"repo": "Org/M", "revision": "main", "only": [], "locked": "main", "files": {}}
    local = {"source": "/models/mine", "path": "/srv/huggingface/local/mine"}

    def models(*asked: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = call("compare", models=list(asked))["models"]
        return found

    there, lacks = models(wanted, local)
    assert (there["there"], there["wrong"], there["commit"]) == (True, [], COMMITS["old"])
    assert (lacks["there"], lacks["path"]) == (False, local["path"])
    spark.write("/srv/huggingface/local/mine/config.json", "{}")
    assert models(local)[0]["there"] is True
    # The lock file has it by its commit, and longer; a shard that the index names is not there either.
    locked = {"config.json": {"size": 9, "sha256": "f" * 64}, "README.md": {"size": 1, "sha256": "f" * 64}}
    shards = json.dumps({"weight_map": {"a": "model-1.safetensors"}})
    spark.write(f"/srv/huggingface/hub/models--Org--M/snapshots/{COMMITS['old']}/model.safetensors.index.json", shards)
    [cut] = models({**wanted, "revision": COMMITS["old"], "files": locked})
    assert cut["there"] is True
    assert cut["wrong"] == [
        "model-1.safetensors is missing",
        "README.md is missing",
        "config.json has 2 bytes instead of 9",
        "model.safetensors.index.json is not in the lock file",
    ]
    [gone] = models({**wanted, "revision": COMMITS["new"], "locked": COMMITS["new"], "files": locked})
    assert (gone["there"], gone["wrong"]) == (False, [])


def test_kernel_and_driver_are_those_of_the_last_proof(spark: Spark, call: Call) -> None:
    spark.deploy()

    def facts() -> Any:
        return call("compare")["recorded"]["facts"]

    call("record", facts=SPARK_FACTS)
    assert facts() == SPARK_FACTS
    newer = {**SPARK_FACTS, "driver": "595.1"}
    # A run that did not try does not say that this driver is well.
    assert call("record", facts=newer)["changed"] is False
    assert facts() == SPARK_FACTS
    call("record", facts=newer, proven=True, wanted="w")
    assert facts() == newer
    assert call("record", facts=SPARK_FACTS, proven=True, wanted="w")["changed"] is False
    assert facts() == SPARK_FACTS
    # Nobody asked this time: what is known stays.
    call("record", proven=True, wanted="w")
    assert facts() == SPARK_FACTS


def test_a_proof_after_an_update_is_noted_and_the_plan_stays(spark: Spark, call: Call) -> None:
    spark.deploy()
    assert call("confirm", facts=SPARK_FACTS)["changed"] is False  # nothing was recorded that could be confirmed
    newer = {**SPARK_FACTS, "driver": "595.1"}
    call("record", facts=SPARK_FACTS, wanted="w")
    told = call("confirm", facts=newer)  # what failed, or was never tried, is not proved by what happens to run
    assert (told["changed"], told["current"]["proven"]) == (False, False)
    call("record", facts=SPARK_FACTS, proven=True, wanted="w")
    assert call("confirm", facts=newer, _ansible_check_mode=True)["changed"] is True
    assert call("compare")["recorded"]["facts"] == SPARK_FACTS
    told = call("confirm", facts=newer)
    assert (told["changed"], told["current"]["proven"], told["current"]["wanted"]) == (True, True, "w")
    assert call("compare")["recorded"]["facts"] == newer
    assert call("confirm", facts=newer)["changed"] is False
    # By hand since: what was proved is not what the generation says.
    spark.write("/etc/dgxspark/env/heavy.env", "A=9\n")
    assert call("confirm", facts=SPARK_FACTS)["changed"] is False
    assert call("compare")["recorded"]["facts"] == newer


def test_of_a_host_s_facts_three_are_kept() -> None:
    assert engine.facts_of(SPARK) == SPARK_FACTS
    assert engine.facts_of({"kernel": "6.17.0", "gpu": None, "dgx_os": None}) == {"kernel": "6.17.0"}
    assert engine.facts_of(None) == {}


# --- up to date -------------------------------------------------------------------------------------------------------

FACTS = {"kernel": "6.17"}
SERVICE = {"name": "heavy", "unit": "spark-heavy.service", "model": {"repo": "Org/M", "revision": "main", "extra": []}}
MODEL = {"repo": "Org/M", "revision": "main", "only": [], "files": {}}
WANTED: dict[str, Any] = {
    "wanted": "as planned",
    "facts": FACTS,
    "services": [SERVICE],
    "settings": {"verify": "changed"},
}


@pytest.fixture
def up_to_date(spark: Spark, call: Call) -> Callable[..., dict[str, Any]]:
    """A host that was proved as it is, and the question whether it still is that."""
    spark.deploy()
    header = json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    weights = spark.root / "srv/huggingface/hub/models--Org--M/snapshots" / COMMITS["old"] / "model.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header + b"abcd")
    cache = spark.root / "var/cache/dgxspark"
    cache.mkdir(parents=True)
    cache.chmod(0o755)
    assert call("record", proven=True, **WANTED)["recorded"] is True

    def ask(**more: Any) -> dict[str, Any]:
        owner = generation_host.Host.owner(cache)
        folders = [{"path": "/var/cache/dgxspark", "owner": owner["owner"], "group": owner["group"]}]
        return call("up_to_date", **{**WANTED, "models": [MODEL], "folders": folders, **more})

    return ask


def test_a_host_without_a_vocabulary_is_not_up_to_date(spark: Spark, up_to_date: Callable[..., dict[str, Any]]) -> None:
    path, _content = vocabulary_of(spark)
    row = {"url": "https://example.org/o200k_base.tiktoken", "path": path}
    assert up_to_date(models=[MODEL, row])["up_to_date"] is True
    (spark.root / path.lstrip("/")).unlink()
    assert up_to_date(models=[MODEL, row])["why"] == [f"the vocabulary {path} is gone"]


def test_a_model_from_the_controller_is_compared_by_size_and_time(
    spark: Spark, up_to_date: Callable[..., dict[str, Any]]
) -> None:
    spark.write("/srv/huggingface/own/config.json", "{}")
    file = spark.root / "srv/huggingface/own/config.json"
    os.utime(file, (1000, 1000))
    copied = {"path": "/srv/huggingface/own", "copied": {"config.json": {"size": 2, "mtime": 1000}}}
    assert up_to_date(models=[MODEL, copied])["up_to_date"] is True
    whole = up_to_date(models=[MODEL, copied], settings={"verify": "all"})
    assert whole["why"] == ["/srv/huggingface/own is to be read as a whole, and compared with the controller's"]
    wrong = ["/srv/huggingface/own: config.json not as on the controller"]
    os.utime(file, (1000, 1001))
    assert up_to_date(models=[MODEL, copied])["why"] == wrong
    spark.write("/srv/huggingface/own/config.json", "{} ")
    os.utime(file, (1000, 1000))
    assert up_to_date(models=[MODEL, copied])["why"] == wrong
    file.unlink()
    assert up_to_date(models=[MODEL, copied])["why"] == wrong
    file.symlink_to("/etc/hostname")
    assert up_to_date(models=[MODEL, copied])["why"] == wrong


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Any:
    """A server that answers."""
    return request.getfixturevalue("engine")


@pytest.fixture
def proved(
    spark: Spark, up_to_date: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """The same question, with the proof of a service; its receipt lies apart from those of the host."""
    (tmp_path / "receipts").mkdir()
    monkeypatch.setattr(host_proof, "INTERVAL", 999.0)

    def ask(url: str, service: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        entry = {"name": "heavy", "url": url, "served_model_name": "heavy", "argv": ["docker"], **(service or {})}
        proof = {
            **{"services": [entry], "timeout": 2, "receipts_dir": str(tmp_path / "receipts"), "root": str(spark.root)},
            **{"run_dir": str(tmp_path / "run")},
        }
        return up_to_date(**{"prove": True, "proof": proof, **more})

    return ask


def receipts(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "receipts").iterdir())


def test_a_host_that_is_settled_is_proved_in_the_same_look(
    proved: Callable[..., dict[str, Any]], served: Any, tmp_path: Path
) -> None:
    found = proved(served.url)
    assert (found["up_to_date"], found["proved"], found["changed"]) == (True, True, True), found
    assert found["answers"]["heavy"]["ready"] is True and found["receipts"]["heavy"]["receipt"]["service"] == "heavy"
    assert receipts(tmp_path) == ["heavy.json"] and "unproved" not in found
    assert host_lock.lock_file().exists()
    # The receipts lie on the host, the action plugin takes them out; what is left is registered for each host of a fleet.
    assert (
        len(json.dumps({name: value for name, value in found.items() if name not in ("receipts", "invocation")})) < 2000
    )
    # Again: nothing of it is another deployment.
    assert (proved(served.url)["proved"], proved(served.url)["changed"]) == (True, False)


def test_what_is_not_settled_or_not_asked_for_is_not_proved(
    proved: Callable[..., dict[str, Any]], served: Any, tmp_path: Path
) -> None:
    other = proved(served.url, wanted="another")
    assert (other["up_to_date"], other["proved"]) == (False, False)
    assert proved(served.url, prove=False)["proved"] is False
    checked = proved(served.url, _ansible_check_mode=True)
    assert (checked["up_to_date"], checked["proved"]) == (True, False)
    assert served.requests == [] and receipts(tmp_path) == []


def test_who_does_not_answer_soon_is_left_to_the_whole_proof(
    proved: Callable[..., dict[str, Any]], closed_port: int, tmp_path: Path
) -> None:
    found = proved(f"http://127.0.0.1:{closed_port}")
    assert "failed" not in found and (found["up_to_date"], found["proved"]) == (True, False)
    assert "heavy at http://127.0.0.1" in found["unproved"] and receipts(tmp_path) == []


def test_a_finding_that_is_an_error_leaves_no_receipt(
    proved: Callable[..., dict[str, Any]], served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Finding("fast_path.moe_backend", "error", "heavy runs another kernel.", "Do.")
    monkeypatch.setattr(host_proof.engines, "look", lambda *_args: ({}, {}, [wrong]))
    found = proved(served.url)
    assert (found["proved"], found["unproved"]) == (False, "heavy runs another kernel.")
    assert receipts(tmp_path) == []


def test_a_tool_that_is_silent_is_no_failure_of_the_look(
    proved: Callable[..., dict[str, Any]], served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_args: Any) -> Any:
        raise NoAnswer("docker", "docker did not answer in 30 s")

    monkeypatch.setattr(host_proof.engines, "look", silent)
    found = proved(served.url)
    assert "failed" not in found and "docker did not answer in 30 s" in found["unproved"]


def test_what_a_request_starts_is_not_started_by_a_look(
    spark: Spark, proved: Callable[..., dict[str, Any]], served: Any
) -> None:
    asleep = {"name": "cold", "unit": "spark-cold.service", "on_demand": {"set": None}}
    found = proved(served.url, asleep)
    assert (found["proved"], found["unproved"]) == (False, "cold: requests start it")
    assert served.requests == []


def test_what_no_file_shows_is_asked_before_the_proof_and_leaves_it_out(
    spark: Spark, proved: Callable[..., dict[str, Any]], served: Any
) -> None:
    server = {"name": "hear", "settings": "/etc/dgxspark/speech/hear.json", "seconds": 5}
    assert proved(served.url, servers=[server])["proved"] is True
    served.requests.clear()
    for wrong, why in (
        ({"servers": [server]}, f"hear: {generation_asks.HEALTH} does not work"),
        ({"images": [["dgxspark/ray:1"]]}, "the image dgxspark/ray:1 is not there"),
        (
            {"network": {"file": {"path": "/etc/netplan/40-cx7.yaml", "sha256": "0"}}},
            "/etc/netplan/40-cx7.yaml is not as it has to be",
        ),
    ):
        spark.refuse = {generation_asks.HEALTH} if "servers" in wrong else set()
        found = proved(served.url, **wrong)
        assert (found["up_to_date"], found["proved"], len(found["why"])) == (False, False, 1), found
        assert found["why"] == [why] and served.requests == []


def test_a_proof_that_makes_no_sense_is_refused(up_to_date: Callable[..., dict[str, Any]]) -> None:
    assert "services" in up_to_date(prove=True, proof={"timeout": 3})["msg"]


def test_a_host_that_was_proved_as_what_is_wanted_is_settled(
    spark: Spark, up_to_date: Callable[..., dict[str, Any]]
) -> None:
    before = files(spark)
    found = up_to_date()
    assert (found["up_to_date"], found["why"], found["changed"]) == (True, [], False)
    assert not [call for call in spark.calls if call[:2] in (["systemctl", "restart"], ["docker", "tag"])]
    after = files(spark)
    assert {path: after[path] for path in before} == before


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("table inet dgxspark {\n}\n", ""),
        ("table inet dgxspark {\n\tchain input {\n\t}\n}\n", "the table of the firewall is not what was loaded"),
        (None, "the table of the firewall cannot be seen: No such file"),
    ],
)
def test_a_firewall_that_somebody_changed_is_something_to_apply(
    spark: Spark, call: Call, up_to_date: Callable[..., dict[str, Any]], table: str | None, why: str
) -> None:
    spark.write(generation_looks.FIREWALL, "table inet dgxspark {}")
    spark.write(generation_looks.FIREWALL_LOADED, "table inet dgxspark {\n}")
    assert call("record", proven=True, **WANTED)["recorded"] is True
    spark.table = table
    found = up_to_date()
    assert found["up_to_date"] is (not why) and all(text.startswith(why) for text in found["why"]), found["why"]


@pytest.mark.parametrize(
    ("ports", "ephemeral", "why"),
    [
        ("32768\t60999\n", True, []),
        ("10000\t60999\n", True, ["the table of the firewall is not for the ephemeral ports 10000-60999"]),
        ("2768\t60999\n", True, ["the table of the firewall is not for the ephemeral ports 2768-60999"]),
        ("10000\t60999\n", False, []),
    ],
)
def test_ephemeral_ports_that_somebody_changed_are_something_to_apply(
    spark: Spark, call: Call, up_to_date: Callable[..., dict[str, Any]], ports: str, ephemeral: bool, why: list[str]
) -> None:
    spark.write(generation_looks.FIREWALL, "set ranges { elements = { 32768-60999, 29500-29599 } }")
    spark.write(generation_looks.FIREWALL_LOADED, "table")
    spark.write(generation_looks.EPHEMERAL, ports)
    assert call("record", proven=True, **WANTED)["recorded"] is True
    spark.table = "table\n"
    assert up_to_date(ephemeral=ephemeral)["why"] == why
    # Tags that do not apply the firewall leave it alone.
    assert up_to_date(ephemeral=ephemeral, parts={"host": ""}, others=[generation_looks.FIREWALL])["why"] == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"wanted": "another"}, "something else is wanted than generation 1"),
        ({"facts": {"kernel": "6.18"}}, "kernel, driver or DGX OS are others"),
        ({"differs": ["service_hf_home is set"]}, "service_hf_home is set"),
        ({"models": [{**MODEL, "revision": "other"}]}, "Org/M@other is not whole"),
        ({"models": [{**MODEL, "repo": "Org/More"}]}, "Org/More@main is not whole"),
        ({"models": [{**MODEL, "link": "snapshots/Org--M@main"}]}, "does not lead to Org/M@main"),
        (
            {"models": [{**MODEL, "files": {"config.json": {"size": 2, "sha256": "0" * 64}}}]},
            "config.json has the sha256 44136fa355b3",
        ),
        ({"folders": [{"path": "/var/cache/other"}]}, "/var/cache/other is not as it has to be"),
    ],
)
def test_another_wish_is_something_to_apply(
    up_to_date: Callable[..., dict[str, Any]], more: dict[str, Any], why: str
) -> None:
    found = up_to_date(**more)
    assert found["up_to_date"] is False and any(why in text for text in found["why"]), found["why"]


def spoil_file(spark: Spark) -> None:
    spark.write("/etc/dgxspark/env/heavy.env", "A=3\n", 0o600)


def spoil_mode(spark: Spark) -> None:
    (spark.root / "etc/dgxspark/env/heavy.env").chmod(0o644)


def spoil_folder(spark: Spark) -> None:
    (spark.root / "etc/dgxspark/secrets").chmod(0o777)


def spoil_gone(spark: Spark) -> None:
    (spark.root / "usr/local/libexec/dgxspark/spark_unit.py").unlink()


def spoil_added(spark: Spark) -> None:
    spark.write("/etc/dgxspark/services/other.json", "{}")


def spoil_failed(spark: Spark) -> None:
    spark.active["spark-heavy.service"] = "failed"


def spoil_starting(spark: Spark) -> None:
    spark.active["spark-heavy.service"] = "activating"


def spoil_disabled(spark: Spark) -> None:
    spark.enabled.clear()


def spoil_image(spark: Spark) -> None:
    spark.images[NEW] |= {f"repo/engine@{OLD}"}
    del spark.images[OLD]


def spoil_commit(spark: Spark) -> None:
    spark.write("/srv/huggingface/hub/models--Org--M/refs/main", COMMITS["new"])


def spoil_weights(spark: Spark) -> None:
    weights = spark.root / "srv/huggingface/hub/models--Org--M/snapshots" / COMMITS["old"] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def spoil_name(spark: Spark) -> None:
    spark.images[OLD].discard(engine.tag_of(OLD))


def spoil_restoring(spark: Spark) -> None:
    place = spark.root / engine.FOLDER.lstrip("/") / "current.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "restoring": 1}))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (spoil_file, "files, units, images or models are not those"),
        (spoil_mode, "files, units, images or models are not those"),
        (spoil_folder, "folders are not those of generation 1"),
        (spoil_gone, "writes /usr/local/libexec/dgxspark/spark_unit.py"),
        (spoil_added, "removes /etc/dgxspark/services/other.json"),
        (spoil_failed, "starts spark-heavy.service"),
        (spoil_starting, "spark-heavy.service is activating"),
        (spoil_disabled, "enables spark-heavy.service"),
        (spoil_image, "files, units, images or models are not those"),
        (spoil_commit, "files, units, images or models are not those"),
        (spoil_weights, "of its own header"),
        (spoil_name, "has no name"),
        (spoil_restoring, "generation 1 is not proven"),
    ],
)
def test_another_state_is_something_to_apply(
    spark: Spark, up_to_date: Callable[..., dict[str, Any]], spoil: Callable[[Spark], None], why: str
) -> None:
    spoil(spark)
    found = up_to_date()
    assert found["up_to_date"] is False and any(why in text for text in found["why"]), found["why"]


def test_an_engine_that_began_before_a_repair_or_before_its_files_is_not_settled(
    spark: Spark, up_to_date: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_units, now = generation_host.Host.read_units, time.time()

    def began(self: Any) -> dict[str, Any]:
        found: dict[str, Any] = read_units(self)
        self.began = {"spark-heavy.service": now + 1000}
        self.clocks = (self.clocks[0], self.clocks[1] + 3000)
        return found

    monkeypatch.setattr(generation_host.Host, "read_units", began)
    assert up_to_date()["up_to_date"] is True
    mark = snapshots.repair_stamp(spark.root / snapshots.SUMS_DIR.lstrip("/"), "Org/M")
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    assert up_to_date()["up_to_date"] is True
    os.utime(mark, (now + 2000,) * 2)
    assert up_to_date()["why"] == ["spark-heavy.service runs with a file of Org/M that was damaged"]
    mark.unlink()
    os.utime(spark.root / "etc/dgxspark/env/heavy.env", (now + 2000,) * 2)
    assert up_to_date()["why"] == ["restarts spark-heavy.service"]
    # A date that has not come yet says nothing of when it was written; it would restart the engine for ever.
    os.utime(spark.root / "etc/dgxspark/env/heavy.env", (now + 36000,) * 2)
    assert up_to_date()["up_to_date"] is True


OTHERS = ["/etc/dgxspark/env/heavy.env", "/etc/systemd/system/spark-heavy.service", "/etc/dgxspark/secrets/heavy"]
OTHERS += ["/etc/dgxspark/secrets/heavy/VLLM_API_KEY", "/etc/dgxspark/services/heavy.json"]
APART = {"wanted": "another", "models": [], "folders": [], "services": [], "others": OTHERS}


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (spoil_file, False),
        (spoil_mode, False),
        (spoil_failed, False),
        (spoil_disabled, False),
        (spoil_image, False),
        (spoil_commit, False),
        (spoil_weights, False),
        (spoil_gone, True),
        (spoil_added, True),
        (spoil_folder, True),
        (spoil_restoring, True),
    ],
)
def test_a_look_for_tags_is_about_what_these_apply_and_what_nothing_else_does(
    spark: Spark, call: Call, up_to_date: Callable[..., dict[str, Any]], spoil: Callable[[Spark], None], seen: bool
) -> None:
    assert call("record", proven=True, **WANTED, parts={"host": "1", "service": "2"})["recorded"] is False
    assert up_to_date(**APART, parts={"host": "1"})["why"] == []
    spoil(spark)
    assert up_to_date(**APART, parts={"host": "1"})["up_to_date"] is not seen
    # The tag that repairs it sees it.
    assert up_to_date(parts={"host": "1", "service": "2", "models": ""})["up_to_date"] is False


def test_what_is_wanted_is_compared_for_the_tags_of_a_run(
    call: Call, up_to_date: Callable[..., dict[str, Any]]
) -> None:
    call("record", proven=True, **WANTED, parts={"host": "1", "service": "2"})
    assert up_to_date(parts={"host": "9", "service": "2"})["why"] == [], "all is as it was wanted then"
    other = {"wanted": "another"}
    assert up_to_date(**other, parts={"service": "2", "models": ""})["why"] == []
    assert up_to_date(**other, parts={"host": "9"})["why"] == ["something else of host is wanted than generation 1"]
    assert up_to_date(**other, parts={"guard": "3"})["up_to_date"] is False, "what it was is not known"
    # Who proves goes by the kernel, too.
    moved = {"facts": {"kernel": "6.18"}}
    assert up_to_date(**moved, parts={"service": "2"})["up_to_date"] is True
    assert up_to_date(**moved, parts={"service": "2", "prove": ""})["up_to_date"] is False


def test_a_run_with_tags_does_not_claim_what_it_has_not_applied(
    spark: Spark, call: Call, up_to_date: Callable[..., dict[str, Any]]
) -> None:
    part = {**WANTED, "wanted": "", "parts": {"service": "2"}}
    call("record", proven=True, **part)
    # The inventory wants something else by now, of which that run has applied the service alone.
    assert up_to_date(wanted="another")["up_to_date"] is False
    assert up_to_date(wanted="another", parts={"service": "2"})["up_to_date"] is True
    # Nor does one that proves what somebody else has changed by hand.
    spoil_file(spark)
    assert call("record", proven=True, **{**part, "parts": {"firewall": "5"}})["recorded"] is True
    assert up_to_date()["why"] == ["something else is wanted than generation 2"]
    assert up_to_date(parts={"service": "2"})["up_to_date"] is False
    assert up_to_date(parts={"firewall": "5"})["up_to_date"] is True
    call("record", proven=True, **WANTED, parts={"service": "2"})
    assert up_to_date()["up_to_date"] is True


def test_a_proof_by_a_tag_makes_nothing_of_a_run_that_failed_wanted(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=False, **WANTED, parts={"service": "2"})
    call("record", proven=True, **{**WANTED, "wanted": "", "parts": {}})
    assert call("up_to_date", **WANTED)["why"] == ["something else is wanted than generation 1"]
    assert call("up_to_date", **WANTED, parts={"service": "2"})["why"] == []


def test_what_was_never_proved_or_recorded_is_not_settled(spark: Spark, call: Call) -> None:
    spark.deploy()
    assert call("up_to_date", **WANTED)["why"] == ["nothing was recorded yet"]
    call("record", proven=False, **WANTED)
    assert "generation 1 is not proven" in call("up_to_date", **WANTED)["why"]


# --- keys and controllers


def test_hostile_keys_of_an_older_release_are_taken_out_and_do_not_come_back(spark: Spark, call: Call) -> None:
    spark.deploy(secret="rotated-away")
    call("record", proven=True)
    folder = spark.root / engine.FOLDER.lstrip("/")
    manifest = json.loads((folder / "1.json").read_text(encoding="utf-8"))
    key, digest = "/etc/dgxspark/secrets/heavy/VLLM_API_KEY", "f" * 64
    manifest["state"]["files"][key] = {"sha256": digest, "owner": "root", "group": "root", "mode": "0600"}
    del manifest["secrets"]
    (folder / "1.json").write_text(json.dumps(manifest), encoding="utf-8")
    (folder / "store" / digest).write_text("rotated-away", encoding="utf-8")
    spark.deploy(secret="new-key", env="A=2\n")
    assert call("look")["same"] is False and (folder / "store" / digest).exists(), "a look writes nothing"
    call("record", proven=True)
    assert not (folder / "store" / digest).exists()
    assert "secrets/heavy" not in json.dumps(
        json.loads((folder / "1.json").read_text(encoding="utf-8"))["state"]["files"]
    )
    back = call("restore", generation=1)
    assert back["current"]["number"] == 1 and spark.read(key) == "new-key"
    assert back["key_changes"] == [], "whether it changed since is not known"


def test_another_key_makes_no_generation_and_is_not_settled(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    spark.deploy(secret="key-2")
    assert call("look")["same"] is True
    assert "key files are not those of generation 1" in call("up_to_date")["why"]
    assert call("compare")["files"]["changed"] == ["/etc/dgxspark/secrets/heavy/VLLM_API_KEY"]
    assert call("record", proven=True)["recorded"] is False
    assert call("compare")["files"]["changed"] == []


def test_a_key_that_is_gone_is_named_before_anything_is_touched(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    spark.deploy(env="A=2\n")
    (spark.root / "etc/dgxspark/secrets/heavy/VLLM_API_KEY").unlink()
    call("record", proven=True)
    before = files(spark)
    said = call("restore", generation=1)["msg"]
    assert "VLLM_API_KEY: this key is not on the host any more" in said and files(spark) == before


def test_the_key_of_a_service_goes_when_the_state_without_it_is_proven(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    for path in ("etc/dgxspark/services/heavy.json", "etc/systemd/system/spark-heavy.service"):
        (spark.root / path).unlink()
    spark.write("/etc/dgxspark/secrets/gateway/KEY", "g", 0o600)
    call("record", proven=False, reason="it failed")
    assert spark.exists("/etc/dgxspark/secrets/heavy/VLLM_API_KEY"), "what failed may still go back"
    call("record", proven=True)
    assert not spark.exists("/etc/dgxspark/secrets/heavy") and spark.exists("/etc/dgxspark/secrets/gateway/KEY")


def test_hostile_two_controllers_do_not_record_what_they_made_together(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True, controller="a")
    call("up_to_date", controller="a2")
    call("restore", controller="b", generation=1)
    with host_lock.noted("b", True) as run:
        run["changed"] = True
    spark.deploy(env="A=2\n")
    refused = call("record", proven=True, controller="a2")
    assert refused["failed"] and "b changed this host too" in refused["msg"]
    assert [entry["number"] for entry in call("look")["generations"]] == [1]
    # The other one came last with all that it did; and the next run starts afresh.
    assert call("record", proven=True, controller="b")["current"]["number"] == 2
    assert call("record", proven=True, controller="c")["recorded"] is False


def test_hostile_what_a_killed_module_left_half_written_goes_with_the_next(spark: Spark, call: Call) -> None:
    spark.deploy()
    call("record", proven=True)
    left = [
        f"{folder}/.dgxspark-left"
        for folder in ("/etc/dgxspark/secrets/heavy", f"{engine.FOLDER}/store", engine.FOLDER)
    ]
    for path in left:
        spark.write(path, "a key", 0o600)
    call("record", proven=True)
    assert [path for path in left if spark.exists(path)] == []


@pytest.mark.parametrize(("account", "meant"), [("root", "root"), ("1000", 1000), ("0", 0)])
def test_an_account_without_a_name_is_given_files_by_its_number(account: str, meant: str | int) -> None:
    assert generation_records.number_or_name(account) == meant


def test_a_step_of_going_back_that_fails_says_what_the_program_said(spark: Spark) -> None:
    spark.refuse = {"daemon-reload"}
    params = {"root": str(spark.root), "hf_home": "/srv/huggingface"}
    host = generation_host.Host(params, spark, False, print)
    with pytest.raises(generation_host.Refused, match="systemctl daemon-reload failed: daemon-reload does not work"):
        generation_restore.must(host, ["systemctl", "daemon-reload"])
