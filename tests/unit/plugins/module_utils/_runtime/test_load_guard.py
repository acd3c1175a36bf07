from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import guard as settings_reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import hostmem, load_guard
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.load_guard import (
    COMPACT,
    DROP,
    GIB,
    MIB,
    Guard,
    Sample,
)

# A GB10 with 4 KiB pages while weights are read: much memory is cached, little is free.
BUDDYINFO = """\
Node 0, zone      DMA      1      0      0      1      2      1      1      0      1      1      3
Node 0, zone   Normal  21562  10480   5019   2202    811    305     92     21      6      2      4
"""


def guard(floor: float = 8.0, interval: float = 1.0) -> Guard:
    return Guard(load_guard.Settings(floor, interval), 0.0)


def look(free: float, cache: float = 40.0, large: float | None = None) -> Sample:
    return Sample(int(free * GIB), int(cache * GIB), None if large is None else int(large * GIB))


def test_above_the_floor_nothing_is_done() -> None:
    made = guard()
    assert made.decide(1.0, look(8.0)) == [] and made.decide(2.0, look(100.0, 0.0)) == []
    assert not made.acted
    assert made.text() == "had nothing to do; lowest MemFree 8.00 GiB (floor 8 GiB, below it in 0 of 2 checks) in 2 s"


def test_below_the_floor_caches_are_dropped_at_every_look_as_long_as_it_helps() -> None:
    made = guard()
    for second in range(1, 6):
        assert made.decide(float(second), look(3.0)) == [DROP]
        made.dropped(second + 0.2, 5 * GIB)
    assert made.account() == {
        "drops": 5,
        "given_back_mib": 25600,
        "compactions": 0,
        "lowest_free_gib": 3.0,
        "floor_gib": 8.0,
        "seconds": 5.2,
        "looks": 5,
        "looks_below": 5,
        "errors": [],
    }
    assert made.text().startswith("dropped caches 5 times, 25600 MiB given back; lowest MemFree 3.00 GiB")


def test_figures_of_the_record_are_gib_with_two_decimals() -> None:
    made = Guard(load_guard.Settings(8.126), 100.0)
    made.decide(101.26, look(3.126))
    account = made.account()
    assert (account["floor_gib"], account["lowest_free_gib"], account["seconds"]) == (8.13, 3.13, 1.3)


def test_drops_that_give_little_become_rare_and_frequent_again_once_they_helped() -> None:
    made, at = guard(), []
    for second in range(1, 301):
        if DROP in made.decide(float(second), look(3.0)):
            at.append(second)
            made.dropped(float(second), 10 * MIB)
    assert at[:5] == [1, 3, 7, 15, 31] and len(at) < 12, at
    gaps = [later - earlier for earlier, later in zip(at, at[1:], strict=False)]
    assert max(gaps) <= load_guard.LONGEST_PAUSE + 1
    # After a drop that freed memory, the next look may drop again.
    second = at[-1] + 61
    assert made.decide(float(second), look(3.0)) == [DROP]
    made.dropped(float(second), 2 * GIB)
    assert made.decide(second + 1.0, look(3.0)) == [DROP]


def test_a_look_may_come_half_an_interval_early() -> None:
    made = guard()
    made.dropped(10.0, 5 * GIB)
    assert made.decide(10.4, look(3.0)) == [] and made.decide(10.6, look(3.0)) == [DROP]


def test_counts_are_written_as_people_say_them() -> None:
    assert [load_guard.times(count) for count in range(4)] == ["not once", "once", "twice", "3 times"]


def test_memory_that_came_back_ends_the_pause() -> None:
    made = guard()
    for second in (1, 3, 7):
        made.decide(float(second), look(3.0))
        made.dropped(float(second), 0)
    assert made.decide(8.0, look(20.0)) == []
    assert made.decide(15.0, look(3.0)) == [DROP]
    made.dropped(15.0, 0)
    assert made.decide(17.0, look(3.0)) == [DROP]  # two seconds again, not sixteen


def test_a_cache_too_small_to_help_is_left_alone() -> None:
    made = guard()
    assert made.decide(1.0, look(3.0, cache=0.3)) == []
    assert "had nothing to give back" in made.text() and "below it in 1 of 1 checks" in made.text()


def test_memory_in_small_pieces_is_compacted_but_not_all_the_time() -> None:
    made, at = guard(), []
    for second in range(1, 41):
        if COMPACT in made.decide(float(second), look(8.7, large=0.1)):
            at.append(second)
            made.compacted(float(second))
    assert at == [1, 16, 31] and made.drops == 0
    assert "compacted memory 3 times" in made.text()


@pytest.mark.parametrize(
    ("free", "large"), [(8.7, None), (8.7, 4.0), (0.2, 0.0)], ids=["unknown", "in large pieces", "nothing to move"]
)
def test_what_is_not_compacted(free: float, large: float | None) -> None:
    assert COMPACT not in guard().decide(1.0, look(free, large=large))


@pytest.mark.parametrize(
    ("free", "large", "compacts"),
    [
        (1.5, 0.6, True),
        (1.1, 0.6, False),
        (0.5, 0.1, True),
        (0.49, 0.1, False),
        (8.7, 0.99, True),
        (8.7, 1.0, False),
    ],
)
def test_memory_is_compacted_when_most_of_what_is_free_is_in_small_pieces(
    free: float, large: float, compacts: bool
) -> None:
    """At a floor of 8 GiB: less than half, and less than 1 GiB, in large blocks, and at least 0.5 GiB free."""
    assert (COMPACT in guard().decide(1.0, look(free, large=large))) is compacts


def test_the_floor_of_large_blocks_can_be_set() -> None:
    settings = load_guard.Settings(8.0, 1.0)
    assert COMPACT not in Guard(settings, 0.0, 0.375).decide(1.0, look(8.7, large=0.5))
    assert COMPACT in Guard(settings, 0.0, 0.375).decide(1.0, look(8.7, large=0.3))
    assert COMPACT in guard().decide(1.0, look(8.7, large=0.5))


def test_a_kernel_that_refuses_is_not_asked_again() -> None:
    made = guard()
    assert made.decide(1.0, look(3.0, large=0.0)) == [DROP, COMPACT]
    assert made.failed(1.0, DROP, "drop: no") and made.failed(1.0, COMPACT, "compact: no")
    assert not made.failed(1.0, DROP, "drop: no")
    assert made.decide(500.0, look(3.0, large=0.0)) == []
    assert made.account()["errors"] == ["drop: no", "compact: no"]


def test_large_blocks_by_the_size_of_a_page() -> None:
    # 4 KiB pages: orders 9 and 10 are 2 and 4 MiB.
    assert hostmem.bytes_in_blocks(BUDDYINFO, 4096, load_guard.LARGE_BLOCK) == (1 * 2 + 3 * 4 + 2 * 2 + 4 * 4) * MIB
    # 64 KiB pages: order 5 is 2 MiB already.
    normal = 305 * 2 + 92 * 4 + 21 * 8 + 6 * 16 + 2 * 32 + 4 * 64
    assert hostmem.bytes_in_blocks(BUDDYINFO.splitlines()[1], 65536, load_guard.LARGE_BLOCK) == normal * MIB
    assert hostmem.bytes_in_blocks("", 4096, load_guard.LARGE_BLOCK) is None
    assert hostmem.bytes_in_blocks("something else\n", 4096, load_guard.LARGE_BLOCK) is None


@pytest.mark.parametrize(
    ("value", "settings"),
    [
        (None, {"enabled": True, "floor_gib": 8.0, "interval_seconds": 1.0}),
        (False, {"enabled": False, "floor_gib": 8.0, "interval_seconds": 1.0}),
        ({"floor-gib": 4}, {"enabled": True, "floor_gib": 4.0, "interval_seconds": 1.0}),
        ({"enabled": False, "interval_seconds": 0.5}, {"enabled": False, "floor_gib": 8.0, "interval_seconds": 0.5}),
    ],
)
def test_read(value: Any, settings: dict[str, Any]) -> None:
    assert settings_reader.read_load_guard("spark-1", value) == (settings, [])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("yes", "host spark-1, spark_load_guard: must be true, false or a mapping, not a text."),
        ([1], "host spark-1, spark_load_guard: must be true, false or a mapping, not a list."),
        ({"floor": 4}, "host spark-1, spark_load_guard: unknown key 'floor'; did you mean 'floor_gib'?"),
        (
            {"floor_gib": True},
            "host spark-1, spark_load_guard: 'floor_gib' is a boolean; it must be a number of GiB from 0.25 to 64.",
        ),
        ({"floor_gib": float("nan")}, "it must be a number of GiB from 0.25 to 64."),
        ({"interval_seconds": 0}, "'interval_seconds' is 0; it must be a number of seconds from 0.1 to 60."),
        ({"enabled": 1}, "'enabled' is a number; it must be a boolean."),
    ],
)
def test_read_says_what_is_wrong(value: Any, message: str) -> None:
    settings, messages = settings_reader.read_load_guard("spark-1", value)
    assert len(messages) == 1 and message in messages[0], messages
    assert settings["floor_gib"] == 8.0


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"enabled": False},
        {"enabled": "true"},
        {"enabled": True, "floor_gib": "x"},
        {"enabled": True, "floor_gib": 0},
        {"enabled": True, "floor_gib": True},
        {"enabled": True, "floor_gib": float("inf")},
        {"enabled": True, "interval_seconds": 0},
        [],
        "on",
    ],
)
def test_settings_of_a_service_without_a_guard(value: Any) -> None:
    assert load_guard.from_service({"load_guard": value}) is None
    assert load_guard.from_service({}) is None


def test_settings_that_a_service_leaves_out_have_defaults() -> None:
    assert load_guard.from_service({"load_guard": {"enabled": True}}) == load_guard.Settings(8.0, 1.0)
    small = {"enabled": True, "floor_gib": 0.25, "interval_seconds": 0.1}
    assert load_guard.from_service({"load_guard": small}) == load_guard.Settings(0.25, 0.1)


def test_settings_of_a_service_as_the_plan_writes_them() -> None:
    planned = json.loads(json.dumps(settings_reader.read_load_guard("spark-1", {"floor_gib": 6})[0]))
    assert load_guard.from_service({"load_guard": planned}) == load_guard.Settings(6.0, 1.0)
