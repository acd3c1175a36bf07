# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the progress of a task: to the callback C(progress) if it listens, else as a line now and then."""

from __future__ import annotations

import contextlib
import json
import os
import time

from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import progress

display = Display()
LINE_SECONDS = 5.0  # between two lines of progress
HEARD_EVERY = 10.0  # s; longest time between two looks at a job on a host while the callback listens


class Channel:
    """The pipe to the callback, written by workers, which are forks of its process; no descriptor while nobody listens."""

    descriptor: int | None = None
    is_terminal = False
    """Whether the callback renews lines of a terminal; a worker has no terminal of its own."""

    @classmethod
    def send(cls, *args: str | float | None) -> bool:
        """Send C(progress.event) of these arguments; return whether somebody listens."""
        if cls.descriptor is None:
            return False
        # A slow reader misses a line; nobody waits for it.
        with contextlib.suppress(OSError):
            os.write(cls.descriptor, json.dumps(progress.event(*args)).encode() + b"\n")  # type: ignore[arg-type]
        return True


def poll_seconds(seconds: float) -> float:
    """Return the time between two looks at a job on a host. seconds: without a listener."""
    return seconds if Channel.descriptor is None else min(seconds, HEARD_EVERY)


def bytes_moved(
    host: str, stage: str, name: str, done: int, total: int | None, seconds: float, before: int = 0
) -> None:
    """Report the bytes of a transfer.

    stage: of the engine's C(progress). total: None if unknown. seconds: since the beginning. before: bytes at the beginning.
    """
    if not Channel.send(host, stage, name, done, total, "B", before):
        display.display(f"  {host}: {name}: {snapshots.progress(done, total, seconds, before)}")


class Progress:
    """Reports the progress of a transfer, now and then."""

    def __init__(self, host: str, name: str, total: int) -> None:
        self.host, self.name, self.total, self.done = host, name, total, 0
        self.began = self.reported = time.monotonic()

    def add(self, count: int) -> None:
        """Count transferred bytes."""
        self.done += count
        now = time.monotonic()
        if now - self.reported >= LINE_SECONDS or self.done >= self.total:
            self.reported = now
            bytes_moved(self.host, progress.SPREAD, self.name, self.done, self.total, now - self.began)
