from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import hostmem

GIB_KB = 1024 * 1024


def meminfo(free: float, available: float, cached: float = 0.0) -> str:
    return "".join(
        f"{name}: {int(value * GIB_KB)} kB\n"
        for name, value in {"MemTotal": 119.67, "MemFree": free, "MemAvailable": available, "Cached": cached}.items()
    )


def test_parses_a_capture_of_a_loaded_spark(tree: Any) -> None:
    result = hostmem.read_meminfo(str(tree))
    assert result["MemTotal"] == 127535224
    assert result["HugePages_Total"] == 0
    assert hostmem.mem_available_gib(result) == pytest.approx(22.064, abs=0.001)
    assert hostmem.gib(result, "MemFree") == pytest.approx(4.302, abs=0.001)


def test_page_cache_leaves_shared_memory_out(tree: Any) -> None:
    kib = 20448480 + 77328 + 231480 - 755460
    assert hostmem.page_cache_gib(hostmem.read_meminfo(str(tree))) == pytest.approx(kib / GIB_KB)
    assert hostmem.page_cache_gib({"Cached": 5, "Shmem": 9}) == 0


def test_drop_caches_writes_three_and_reports_the_growth_of_free_memory(tree: Any) -> None:
    drop = tree.root / "proc/sys/vm/drop_caches"

    def kernel() -> None:
        while drop.read_text() != "3\n":
            time.sleep(0.01)
        tree.write("proc/meminfo", meminfo(free=20, available=22))

    thread = threading.Thread(target=kernel, daemon=True)
    thread.start()
    result = hostmem.drop_caches(str(tree))
    thread.join(5)
    assert result["dropped"] is True
    assert result["freed_mib"] == (20 * GIB_KB - 4510768) // 1024
    assert result["after"]["free_gib"] == 20


def test_drop_caches_below_the_threshold_touches_nothing(tree: Any) -> None:
    result = hostmem.drop_caches(str(tree), threshold_gib=50)
    assert result["dropped"] is False
    assert result["freed_mib"] == 0
    assert (tree.root / "proc/sys/vm/drop_caches").read_text() == "0\n"


class Time:
    """A clock that advances only by sleeping; C(events) change the tree at their time."""

    def __init__(self, tree: Any, events: dict[float, str]) -> None:
        self.now = 0.0
        self.tree = tree
        self.events = events

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [moment for moment in self.events if moment <= self.now]:
            self.tree.write("proc/meminfo", self.events.pop(moment))

    def wait(self, need: float, timeout: float) -> dict[str, Any]:
        return hostmem.wait_for_memory(
            need, str(self.tree), timeout, interval_seconds=1, clock=lambda: self.now, sleep=self.sleep
        )


def test_waits_until_a_stopped_engine_has_given_its_memory_back(tree: Any) -> None:
    tree.write("proc/meminfo", meminfo(free=10, available=12))
    result = Time(tree, {30.0: meminfo(free=100, available=110)}).wait(95.74, 240)
    assert result["ok"] and not result["free_short"]
    assert result["waited_seconds"] == 30
    assert result["available_gib"] == 110


def back(tree: Any, events: dict[float, str], expected: float | None) -> dict[str, Any]:
    clock = Time(tree, events)
    return hostmem.wait_until_back(50, expected, str(tree), 60, 1, clock=lambda: clock.now, sleep=clock.sleep)


def test_memory_of_a_stopped_engine_is_back_when_most_of_it_is(tree: Any) -> None:
    tree.write("proc/meminfo", meminfo(free=50, available=50))
    result = back(tree, {5.0: meminfo(free=80, available=80), 20.0: meminfo(free=105, available=105)}, 60)
    assert result == {"ok": True, "freed_gib": 55.0, "waited_seconds": 20.0}


def test_memory_that_does_not_come_back_is_not_waited_for_without_an_end(tree: Any) -> None:
    tree.write("proc/meminfo", meminfo(free=50, available=50))
    result = back(tree, {5.0: meminfo(free=80, available=80)}, 60)
    assert result == {"ok": False, "freed_gib": 30.0, "waited_seconds": 60.0}


def test_where_nobody_knows_what_it_took_memory_is_back_when_it_no_longer_grows(tree: Any) -> None:
    tree.write("proc/meminfo", meminfo(free=50, available=50))
    result = back(tree, {1.0: meminfo(free=70, available=70), 2.0: meminfo(free=90, available=90)}, None)
    assert result == {"ok": True, "freed_gib": 40.0, "waited_seconds": 4.0}


def test_too_little_memory_fails_at_the_deadline_and_not_before(tree: Any) -> None:
    tree.write("proc/meminfo", meminfo(free=90, available=95.5))
    result = Time(tree, {}).wait(95.74, 20)
    assert not result["ok"]
    assert result["waited_seconds"] >= 20


def test_available_but_not_free_goes_on_after_the_grace(tree: Any) -> None:
    tree.write("proc/meminfo", meminfo(free=40, available=110, cached=70))
    result = Time(tree, {}).wait(95.74, 240)
    assert result["ok"] and result["free_short"]
    assert result["waited_seconds"] == 10


def test_available_but_not_free_does_not_outlast_the_time_limit(tree: Any) -> None:
    tree.write("proc/meminfo", meminfo(free=40, available=110, cached=70))
    result = Time(tree, {}).wait(95.74, 3)
    assert result["ok"] and result["free_short"] and result["waited_seconds"] == 3


@pytest.mark.parametrize("name", ["hostmem", "endpoint"])
def test_files_that_are_copied_to_hosts_import_nothing_but_the_standard_library(name: str) -> None:
    text = Path(hostmem.__file__).with_name(f"{name}.py").read_text()
    assert "ansible" not in text
