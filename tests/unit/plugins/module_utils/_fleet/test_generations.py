"""Selecting a generation, removing old ones, and the units to restart for a changed file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import (
    document_check,
    generations,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.generations import Generation
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState


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


def test_what_stays() -> None:
    assert generations.kept(made(*[True] * 8), 8, 3) == {6, 7, 8}
    assert generations.kept(made(True, True, *[False] * 6), 8, 2) == {2, 7, 8}
    assert generations.kept(made(*[True] * 8), 2, 2) == {1, 2, 7, 8}
    assert generations.kept(made(True), 1, 0) == {1}


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
    for text in ("[]", "{}", '{"schema": 3}', '{"schema": 1, "number": "x", "state": {}}'):
        with pytest.raises(ValueError, match=r"not a JSON object|schema|no number"):
            generations.load(text)


def test_differences_are_told_without_contents() -> None:
    differences = document_check.Differences(
        changed=["/b"], missing=["/a"], units=[("stop", "x.service"), ("restart", "y.service")], starting=["z.service"]
    )
    assert differences.lines() == ["writes /a, /b", "stops x.service", "restarts y.service", "z.service is activating"]
    assert differences.any() and not document_check.Differences(starting=["z.service"]).any()
