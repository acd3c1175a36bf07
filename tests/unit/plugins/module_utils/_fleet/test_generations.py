"""Selecting a generation, removing old ones, and the units to restart for a changed file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import (
    document_check,
    generations,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.generations import Generation
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState
from ansible_collections.dgxspark.vllm.plugins.modules import generation


def made(*proven: bool, parents: dict[int, int | None] | None = None) -> dict[int, Generation]:
    return {
        number: Generation(number, (parents or {}).get(number, number - 1 or None), "", HostState(), proven=good)
        for number, good in enumerate(proven, start=1)
    }


def at(number: int | None, came: int | None = None, restoring: int | None = None) -> generations.Current:
    return generations.Current(number, came, restoring)


@pytest.mark.parametrize(
    ("manifests", "current", "same", "requested", "expected"),
    [
        (made(True, True), at(2), True, 0, 1),
        (made(True, False, True), at(3), True, 0, 1),
        (
            made(True, True, False),
            at(3),
            False,
            0,
            2,
        ),  # the state is not recorded and newer than 3, which did not prove
        (made(True, True), at(2), False, 0, 2),
        (made(True, True, True), at(2, came=3), True, 0, 2),  # it has gone back already
        (made(True, True, True), at(2, came=3), True, 1, 1),
        (made(True, True, True), at(3, restoring=1), False, 0, 1),
        # 4 was made from 2, after 3 had been taken back.
        (made(True, True, True, False, parents={4: 2}), at(4), True, 0, 2),
        (made(False, True), at(2), True, 0, None),
        (made(True, True), at(2), True, 9, None),
        ({}, at(None), False, 0, None),
        # Its parent is not kept any more: those before by number.
        ({number: made(True, True, True, True)[number] for number in (1, 4)}, at(4), True, 0, 1),
    ],
)
def test_the_one_to_go_back_to(manifests: Any, current: Any, same: bool, requested: int, expected: int | None) -> None:
    number, why = generations.target(manifests, current, same, requested)
    assert number == expected and bool(why) is (expected is None)


def test_the_reason_names_the_generations_that_are_kept() -> None:
    assert "(kept: 1, 2)" in generations.target(made(False, True), at(2), True, 9)[1]
    assert "(kept: 1, 2; proven: 2)" in generations.target(made(False, True), at(2), True)[1]
    assert "(kept: 1; proven: none)" in generations.target(made(False), at(1), True)[1]


def test_what_stays() -> None:
    assert generations.kept(made(*[True] * 8), 8, 3) == {6, 7, 8}
    assert generations.kept(made(True, True, *[False] * 6), 8, 2) == {2, 7, 8}
    assert generations.kept(made(*[True] * 8), 2, 2) == {1, 2, 7, 8}
    assert generations.kept(made(True), 1, 0) == {1}
    assert generations.kept(made(False, False), 2, 0) == {2}


def test_five_generations_stay_unless_the_user_says_otherwise() -> None:
    keep = generation.ARGUMENTS["keep"]["default"]
    assert generations.kept(made(*[True] * 8), 8, keep) == {4, 5, 6, 7, 8}
    assert yaml.safe_load(generation.DOCUMENTATION)["options"]["keep"]["default"] == keep


ENGINE = """[Service]
ExecStartPre=+/usr/bin/python3 /usr/local/libexec/dgxspark/spark_unit.py gate heavy
ExecStart=/usr/bin/docker run --env-file /etc/dgxspark/env/heavy.env \\
  -v /etc/dgxspark/shared:/x:ro repo/engine@sha256:0 vllm
"""
RANK = "[Service]\nExecStart=/usr/bin/python3 /usr/local/libexec/dgxspark/spark_rank.py heavy\n"
WATCHDOG = "[Service]\nExecStart=/usr/bin/python3 /usr/local/libexec/dgxspark/spark_watchdog.py --settings=/etc/dgxspark/watchdog/settings.json\n"


def test_the_image_of_a_unit() -> None:
    assert generations.image_of(ENGINE) == "repo/engine@sha256:0"
    assert generations.image_of(WATCHDOG) is None and generations.image_of("not a unit") is None
    rank = {"rank": {"parts": [{"argv": ["/usr/bin/docker", "run", "--rm", "repo/ray:1", "ray"]}]}}
    assert generations.images_of_rank(rank) == ["repo/ray:1"] and generations.images_of_rank({}) == []


def test_parts_of_a_rank_without_an_image_are_left_out() -> None:
    commands = (["/usr/bin/python3", "watch.py"], ["/usr/bin/docker", "run", "--rm"], ["docker", "run", "repo/ray:1"])
    parts: list[dict[str, Any]] = [{"argv": argv} for argv in commands]
    assert generations.images_of_rank({"rank": {"parts": [*parts, {}]}}) == ["repo/ray:1"]


FILE = {"path": "/etc/dgxspark/a", "digest": "0" * 64, "part": "service"}


def test_generations_are_equal_by_what_was_deployed() -> None:
    state = HostState.from_dict({"files": [FILE, {**FILE, "path": "/etc/dgxspark/b"}]})
    first = Generation(
        1,
        None,
        "now",
        state,
        units={"spark-a.service": {"enabled": True, "active": "active"}},
        images={"spark-a.service": {"ref": "x:1", "id": "i"}},
        models={"a": {"repo": "Org/M", "revision": "main", "commit": "1"}},
    )
    units: dict[str, dict[str, Any]] = {"spark-a.service": {"enabled": True, "active": "failed"}}
    turned = replace(state, files=state.files[::-1])
    assert first.identity == replace(first, number=2, units=units, state=turned, proven=True).identity
    changes: tuple[dict[str, Any], ...] = (
        {"state": HostState.from_dict({"files": [{**FILE, "mode": "0600"}]})},
        {"state": HostState()},
        {"units": {"spark-a.service": {"enabled": False, "active": "active"}}},
        {"images": {"spark-a.service": {"ref": "x:1", "id": "j"}}},
        {"models": {"a": {"repo": "Org/M", "revision": "main", "commit": "2"}}},
    )
    for change in changes:
        assert replace(first, **change).identity != first.identity


def test_a_manifest_of_another_kind_is_refused() -> None:
    state = HostState.from_dict({"files": [FILE], "units": [{"name": "spark-a.service", "restart_on": []}]})
    manifest = Generation(1, None, "now", state, checksums={"service": "1"}, proven=True, wanted="m")
    assert generations.load(generations.dump(manifest)) == manifest
    # The files of hosts have this schema.
    assert generations.load('{"schema": 2, "number": 4, "state": {}}').number == 4
    for text in ("[]", "{}", '{"schema": 3}', '{"schema": 1, "number": "x", "state": {}}'):
        with pytest.raises(ValueError, match=r"not a JSON object|schema|no number"):
            generations.load(text)


def test_checksums_and_images_that_generations_use() -> None:
    """A key is not in the store, and a key that the host generates has no checksum."""
    key = {"path": "/etc/dgxspark/key", "digest": "1" * 64, "secret": True, "part": "service"}
    generated = {"path": "/etc/dgxspark/generated", "generate": 24, "part": "service"}
    generation = Generation(
        1,
        None,
        "now",
        HostState.from_dict({"files": [FILE, key, generated]}),
        images={"a.service": {"ref": "x:1", "id": "sha256:1"}, "b.service": {"ref": "y:1", "id": None}},
        receipts={"/var/lib/dgxspark/receipts/a.json": {"sha256": "2" * 64}},
    )
    assert generations.used([generation]) == ({"0" * 64, "2" * 64}, {"sha256:1"})


def test_a_mark_tells_keys_apart_but_not_what_they_are() -> None:
    mark = generations.secret_mark("/a", b"key-1")
    other_marks = {generations.secret_mark("/a", b"key-2"), generations.secret_mark("/b", b"key-1")}
    assert mark == generations.secret_mark("/a", b"key-1") and len({mark, *other_marks}) == 3 and "key-1" not in mark


def test_keys_are_compared_with_those_of_a_generation() -> None:
    key = {"mark": "1", "owner": "root", "group": "root", "mode": "0600"}
    recorded = {"/same": key, "/rotated": key, "/gone": key, "/given": key}
    now = {
        "/same": key,
        "/rotated": {**key, "mark": "2", "mode": "0640"},
        "/given": {**key, "owner": "ada"},
        "/new": key,
    }
    assert generations.secret_changes(now, recorded) == {
        "changed": ["/rotated"],
        "missing": ["/gone"],
        "new": ["/new"],
        "attributes": ["/given"],
    }


def planned(*services: dict[str, Any]) -> Generation:
    return replace(made(True)[1], plan={"services": list(services)})


def test_gateways_and_clusters_of_the_present_and_the_target_generation() -> None:
    heavy = {"name": "heavy", "unit": "spark-heavy.service", "gateway": {"host": "spark-1", "backend": "heavy"}}
    early = {"name": "early", "unit": "spark-early.service", "gateway": {"host": "spark-1", "backend": "early"}}
    present = planned({**heavy, "cluster": {"name": "duo", "hosts": ["spark-1", "spark-2"]}}, {"name": "alone"})
    target = planned({**heavy, "cluster": {"name": "duo", "hosts": ["spark-3", "spark-1"]}}, early)
    assert generations.gateways([present, target, None]) == [
        {"name": name, "unit": f"spark-{name}.service", "host": "spark-1", "backend": name}
        for name in ("early", "heavy")
    ]
    assert generations.clusters([present, target, None]) == {"duo": ["spark-1", "spark-2", "spark-3"]}


def test_a_summary_names_image_and_model_of_each_service() -> None:
    paths = [f"/etc/dgxspark/services/{name}.json" for name in ("heavy", "local")]
    generation = Generation(
        3,
        2,
        "now",
        HostState.from_dict({"files": [{**FILE, "path": path} for path in paths]}),
        images={
            "spark-heavy.service": {"ref": "repo/engine@sha256:0", "id": "sha256:1"},
            "spark-local.service": {"ref": "repo/other:1", "id": "sha256:2"},
        },
        models={"heavy": {"repo": "Org/M", "revision": "main", "commit": "1"}, "local": {"path": "/srv/model"}},
        proven=True,
        plan={"services": [{"name": "heavy", "image": {"ref": "repo/engine:old"}}, {"name": "local"}]},
    )
    summary = generations.summary(generation)
    assert (summary["number"], summary["parent"], summary["at"], summary["proven"]) == (3, 2, "now", True)
    # The name of the plan can be read; the unit has a digest.
    heavy = {"image": "repo/engine:old", "image_id": "sha256:1", "model": "Org/M", "commit": "1"}
    local = {"image": "repo/other:1", "image_id": "sha256:2", "model": "/srv/model", "commit": None}
    assert summary["services"] == {"heavy": heavy, "local": local}


def test_differences_are_told_without_contents() -> None:
    differences = document_check.Differences(
        changed=["/b"], missing=["/a"], units=[("stop", "x.service"), ("restart", "y.service")], starting=["z.service"]
    )
    assert differences.lines() == ["writes /a, /b", "stops x.service", "restarts y.service", "z.service is activating"]
    assert differences.any() and not document_check.Differences(starting=["z.service"]).any()
