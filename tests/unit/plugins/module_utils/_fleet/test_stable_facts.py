# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each fact that a plan reads changes the checksum of a host's facts; naturally varying facts do not."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from planned_fixture import MEASURED

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.reader import Maybe
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import stable_facts
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.stable_facts import stable_checksum
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import known_bad
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import image_questions, preflight

TEXTS = {"container": "spark-tiny", "name": "spark-tiny"}
NOT_READ = {("gpu", "processes"), ("memory", "free_gib")}
"""Facts that count together with others, or not at all."""


def example(form: Any, name: str = "") -> Any:
    """Return a value of a form of C(preflight.ANSWERS), with one entry in each list and mapping."""
    if isinstance(form, Maybe):
        return example(form.form, name)
    if form == {}:
        return {"of": 1}
    if isinstance(form, dict):
        return {
            "of" if key is str else key.rstrip("?"): example(below, name if key is str else key.rstrip("?"))
            for key, below in form.items()
        }
    if isinstance(form, list):
        return [example(form[0], name)]
    return {bool: True, int: 7, str: TEXTS.get(name, f"a {name}")}.get(form, 128.0)


def changed(value: Any) -> Any:
    """Return another value than a leaf."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 64
    return {"of": 2} if isinstance(value, dict) else f"{value} changed"


def leaves(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every leaf."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    paths = [(key, entry) for key, entry in below]
    if not paths or path[-1:] == ("env",) or path[-1:] == ("processes",):
        yield path
        return
    for key, entry in paths:
        yield from leaves(entry, *path, key)


def with_changed(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy with another value at a path."""
    modified = copy.deepcopy(value)
    place = modified
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = changed(place[path[-1]])
    return modified


SPARK, IMAGES = (example(preflight.ANSWERS[name]) for name in ("measured", "images"))


@pytest.mark.parametrize("path", list(leaves(SPARK)), ids=lambda path: ".".join(map(str, path)))
def test_each_fact_that_a_plan_reads_counts(path: tuple[Any, ...]) -> None:
    after = stable_checksum(with_changed(SPARK, path), IMAGES)
    assert (after == stable_checksum(SPARK, IMAGES)) is (path[:2] in NOT_READ)


@pytest.mark.parametrize("path", list(leaves(IMAGES)), ids=lambda path: ".".join(map(str, path)))
def test_each_fact_of_an_image_counts(path: tuple[Any, ...]) -> None:
    assert stable_checksum(SPARK, with_changed(IMAGES, path)) != stable_checksum(SPARK, IMAGES)


def test_what_is_there_or_not_counts() -> None:
    without = {name: value for name, value in SPARK.items() if name != "fabric"}
    sums = {stable_checksum(facts, IMAGES) for facts in (SPARK, without, None, {})}
    assert len({*sums, stable_checksum(SPARK, {}), stable_checksum({**SPARK, "more": 1}, IMAGES)}) == 6
    assert stable_checksum(SPARK, None) == stable_checksum(SPARK, {})


def test_what_varies_by_itself_does_not_count() -> None:
    unit = {"name": "spark-tiny.service", "load_state": "loaded", "active_state": "active", "enabled": True}
    box = {"name": "spark-tiny", "service": "tiny", "state": "running", "fingerprint": "1", "managed": True}
    port = {"port": 8003, "address": "127.0.0.1", "process": "vllm", "unit": None, "container": "spark-tiny"}
    gpu = {**MEASURED["gpu"], "count": 1}
    memory = {"total_gib": 119.67, "available_gib": 62.0, "free_gib": 50.0, "large_blocks": 900, "cached_gib": 9.0}
    before = {
        **MEASURED,
        "units": [{**unit, "main_pid": 71, "active_seconds": 5.0, "n_restarts": 0}],
        "containers": [{**box, "id": "1" * 64, "pid": 72}, {"name": "ci-71", "managed": False, "state": "running"}],
        "listening": [{**port, "pid": 72}, {**port, "port": 22, "pid": 1}],
        "gpu": {**gpu, "temperature_c": 51, "power_w": 30.1, "utilization_percent": 0, "processes": []},
        "resident": [{"name": "tiny", "gib": 49.1}],
        "memory": memory,
        "guard": {"last": "2026-11-28"},
    }
    after = {
        **MEASURED,
        "units": [{**unit, "main_pid": 81, "active_seconds": 99.0, "n_restarts": 1}],
        "containers": [{**box, "id": "2" * 64, "pid": 82}],
        "listening": [{**port, "port": 22, "pid": 1}, {**port, "pid": 82}],
        "gpu": {**gpu, "temperature_c": 66, "power_w": 80.0, "utilization_percent": 97, "processes": [{"pid": 82}]},
        "resident": [{"name": "tiny", "gib": 49.6}],
        "memory": {**memory, "available_gib": 61.3, "free_gib": 41.0, "large_blocks": 700, "cached_gib": 18.0},
        "disks": {"/srv/huggingface": {"free_gib": 899.1, "total_gib": 3700.0}},
        "guard": None,
    }
    image = {"present": True, "id": "sha256:1", "probe": {"vllm_version": "0.32.0"}}
    sums = [
        stable_checksum(facts, {"an/image:1": {**image, "probe_from": source}})
        for facts, source in ((before, "image"), (after, "cache"))
    ]
    assert sums[0] == sums[1]
    assert stable_checksum(json.loads(json.dumps(after)), {}) == stable_checksum(after, {})
    # An image that nobody has asked is another matter.
    assert stable_checksum(after, {"an/image:1": {**image, "probe_from": "none"}}) != sums[0]


@pytest.mark.parametrize(
    ("memory", "counts"),
    [
        ({"available_gib": 20.0}, True),  # something else took the memory
        ({"available_gib": 53.0}, True),
        ({"available_gib": 61.0}, False),
        ({"large_blocks": 5}, True),  # too few pieces for a load of weights
        ({"cma_free_gib": 2.0}, True),  # memory that the kernel keeps for a handover
        ({"cma_free_gib": 0.4}, False),
        ({"total_gib": 118.0}, True),
    ],
)
def test_memory_counts_by_what_a_plan_makes_of_it(memory: dict[str, Any], counts: bool) -> None:
    first = {"total_gib": 119.67, "available_gib": 62.0, "free_gib": 50.0, "large_blocks": 900, "cma_total_gib": 0.0}
    first["cma_free_gib"] = 0.0
    held = {**MEASURED, "resident": [{"name": "tiny", "gib": 49.1}]}
    before = stable_checksum({**held, "memory": first}, {})
    assert (stable_checksum({**held, "memory": {**first, **memory}}, {}) != before) is counts


def test_memory_that_engines_gave_back_is_free_memory() -> None:
    """Memory held by engines does not lower the memory for engines; the engines are counted separately."""
    memory = {"total_gib": 119.67, "available_gib": 62.0}
    held = {"memory": memory, "resident": [{"name": "tiny", "gib": 50.0}]}
    free = {"memory": {**memory, "available_gib": 112.0}, "resident": []}
    assert stable_facts._facts(held)["memory"]["for_engines"] == stable_facts._facts(free)["memory"]["for_engines"]


def test_limits_are_those_that_the_plan_goes_by() -> None:
    assert stable_facts.ASK_GIB == image_questions.FREE_GIB
    assert (stable_facts.EMPTY_GIB, stable_facts.FEW_BLOCKS) == (preflight.EMPTY_GIB, preflight.FEW_BLOCKS)
    assert stable_facts.HANDOVER_STEP_GIB == known_bad._KHO_SIGN_GIB
