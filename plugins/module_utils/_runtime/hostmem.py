# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory of a host with one unified pool: reading the free memory, dropping the page cache, waiting for free memory.

On GB10 the GPU has no separate memory, so C(/proc/meminfo) is the only account of it (nvidia-smi answers [N/A]).
vLLM compares its share with C(MemAvailable), the driver allocates from C(MemFree); the page cache is the difference
between the two, which is why it is dropped before an engine loads.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GIB = 2**30
KIB_PER_GIB = 2**20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# For the memory of a stopped engine: tolerance, least growth, and seconds without growth after which it is complete.
BACK_SECONDS, BACK_SHARE, STEADY_GIB, STEADY_SECONDS = 60.0, 0.9, 0.1, 2.0

# A tree that is kept up to date by a process instead of the kernel follows a moment later.
SETTLE_SECONDS = 1.5


# One pass over the text: the guard reads it once a second.
_MEMINFO = re.compile(r"^([A-Za-z0-9_()]+):[ \t]+([0-9]+)(?:[ \t]+kB)?[ \t]*\r?$", re.MULTILINE)


def parse_meminfo(text: str) -> dict[str, int]:
    """Parse the text of C(/proc/meminfo) into C({name: KiB}); lines in pages (C(HugePages_Total)) keep their count."""
    return {name: int(value) for name, value in _MEMINFO.findall(text)}


def read_meminfo(root: str = "/") -> dict[str, int]:
    """Read C(<root>/proc/meminfo); see C(parse_meminfo). Raises OSError when it cannot be read."""
    return parse_meminfo((Path(root) / "proc/meminfo").read_text(encoding="utf-8", errors="replace"))


def gib(meminfo: dict[str, int], name: str) -> float:
    """Return one field of C(meminfo) in GiB, 0.0 when the kernel does not have it."""
    return meminfo.get(name, 0) / KIB_PER_GIB


def mem_available_gib(meminfo: dict[str, int]) -> float:
    """The free memory of an integrated GPU, as vLLM computes it."""
    return gib(meminfo, "MemAvailable")


def available_gib(root: str = "/") -> float | None:
    """Return the available memory of the host in GiB, None if it cannot be read."""
    try:
        return mem_available_gib(read_meminfo(root))
    except OSError:
        return None


def page_cache_gib(meminfo: dict[str, int]) -> float:
    """What a write of 3 to drop_caches can give back: page cache, buffers, reclaimable slab; not shared memory."""
    kib = sum(meminfo.get(name, 0) for name in ("Cached", "Buffers", "SReclaimable")) - meminfo.get("Shmem", 0)
    return max(kib, 0) / KIB_PER_GIB


def summary(meminfo: dict[str, int]) -> dict[str, float]:
    """Return C({available_gib, free_gib, page_cache_gib}) rounded to MiB-ish precision, for results and messages."""
    return {
        "available_gib": round(mem_available_gib(meminfo), 3),
        "free_gib": round(gib(meminfo, "MemFree"), 3),  # what cudaMemGetInfo reports, and the driver allocates from
        "page_cache_gib": round(page_cache_gib(meminfo), 3),
    }


def drop_caches(root: str = "/", threshold_gib: float = 0.0, clean_only: bool = False) -> dict[str, Any]:
    """Write dirty pages back and drop page cache, dentries and inodes.

    :param threshold_gib: do nothing when the page cache is smaller
    :param clean_only: drop only clean pages, without writing dirty ones first
    :returns: C({dropped, freed_mib, before, after}); before and after are C(summary) dicts, freed_mib is the
        growth of MemFree
    :raises OSError: when the kernel refuses, PermissionError for anyone but root
    """
    before = read_meminfo(root)
    if page_cache_gib(before) < threshold_gib:
        return {"dropped": False, "freed_mib": 0, "before": summary(before), "after": summary(before)}
    if not clean_only:
        os.sync()
    (Path(root) / "proc/sys/vm/drop_caches").write_text("1\n" if clean_only else "3\n", encoding="ascii")
    after = read_meminfo(root)
    if os.path.realpath(root) != "/" and page_cache_gib(before) > 0:
        give_up = time.monotonic() + SETTLE_SECONDS
        while after.get("MemFree") == before.get("MemFree") and time.monotonic() < give_up:
            time.sleep(0.1)
            after = read_meminfo(root)
    freed_kib = max(after.get("MemFree", 0) - before.get("MemFree", 0), 0)
    return {"dropped": True, "freed_mib": freed_kib // 1024, "before": summary(before), "after": summary(after)}


def compact(root: str = "/") -> None:
    """Have the kernel move what it can, so that free memory lies together. Raises OSError when it refuses."""
    (Path(root) / "proc/sys/vm/compact_memory").write_text("1\n", encoding="ascii")


def read_buddyinfo(root: str = "/") -> str:
    """Return the text of C(/proc/buddyinfo), empty if unreadable (some kernels allow root alone)."""
    try:
        return (Path(root) / "proc/buddyinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def bytes_in_blocks(buddyinfo: str, page_bytes: int, least: int) -> int | None:
    """Return the free bytes in blocks of at least so many bytes; None where the kernel does not tell of blocks that large.

    :param buddyinfo: the text of C(/proc/buddyinfo): each line is a zone with the number of free blocks of 1, 2, 4 ... pages
    """
    order = (least // page_bytes).bit_length() - 1
    zones = [[int(word) for word in row.split()] for row in re.findall(r"zone +\S+((?: +\d+)+)", buddyinfo)]
    if not zones or len(zones[0]) <= order:
        return None
    return sum(count * page_bytes << power for zone in zones for power, count in enumerate(zone) if power >= order)


def wait_for_memory(
    need_gib: float,
    root: str = "/",
    timeout_seconds: float = 0.0,
    interval_seconds: float = 2.0,
    free_grace_seconds: float = 10.0,
    on_wait: Callable[[dict[str, float]], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Wait until memory is there, both as MemAvailable and as MemFree.

    A stopped engine gives its memory back only after a while, so the wait has a time limit and not one look.
    vLLM checks MemAvailable: no start without enough of it. MemFree alone being short (something refills
    the page cache) is waited for briefly, then C(free_short) tells it.

    :param on_wait: called with the summary before every sleep
    :returns: C({ok, free_short, waited_seconds, available_gib, free_gib, page_cache_gib})
    """
    start = clock()
    enough_since: float | None = None
    while True:
        now = summary(read_meminfo(root))
        waited = clock() - start
        enough = now["available_gib"] >= need_gib
        free_short = now["free_gib"] < need_gib
        if not enough:
            enough_since = None
        elif enough_since is None:
            enough_since = waited
        if enough and not free_short:
            return {"ok": True, "free_short": False, "waited_seconds": waited, **now}
        out_of_time = waited >= timeout_seconds
        if enough_since is not None and (out_of_time or waited - enough_since >= free_grace_seconds):
            return {"ok": True, "free_short": True, "waited_seconds": waited, **now}
        if out_of_time:
            return {"ok": False, "free_short": free_short, "waited_seconds": waited, **now}
        if on_wait is not None:
            on_wait(now)
        sleep(min(interval_seconds, max(timeout_seconds - waited, 0.05)))


def wait_until_back(
    before_gib: float,
    expected_gib: float | None,
    root: str = "/",
    timeout_seconds: float = BACK_SECONDS,
    interval_seconds: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Wait until the memory of an engine whose processes are gone is available again: the driver lets go of it later.

    :param expected_gib: its memory, None if unknown; then the wait ends when the memory no longer grows
    :returns: C({ok, freed_gib, waited_seconds}); ok tells whether the expected memory is free
    :raises OSError: where the memory cannot be read
    """
    start = grown = clock()
    highest = mem_available_gib(read_meminfo(root))
    while True:
        freed, now = highest - before_gib, clock()
        steady = now - grown >= STEADY_SECONDS
        ok = steady if expected_gib is None else freed >= BACK_SHARE * expected_gib
        if ok or now - start >= timeout_seconds:
            return {"ok": ok, "freed_gib": round(max(freed, 0.0), 2), "waited_seconds": round(now - start, 1)}
        sleep(interval_seconds)
        available = mem_available_gib(read_meminfo(root))
        if available > highest + STEADY_GIB:
            grown = clock()
        highest = max(available, highest)
