# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far something is, said while it runs: to the callback C(progress) where it is enabled, else as a line now and then."""

from __future__ import annotations

import contextlib
import json
import os
import time

from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import progress

display = Display()
SAY_EVERY = 5.0  # seconds between two lines of progress
HEARD_EVERY = 10.0  # s; who follows a job on a host for the callback asks that often, at least


class Channel:
    """Where the callback listens: the end of a pipe that the workers, which are forks of its process, write to. None when it does not."""

    descriptor: int | None = None

    @classmethod
    def send(cls, *args: str | float | None) -> bool:
        """Send C(progress.event) of these arguments; tell whether somebody listens."""
        if cls.descriptor is None:
            return False
        # A reader that is slow misses a line; nobody waits for it.
        with contextlib.suppress(OSError):
            os.write(cls.descriptor, json.dumps(progress.event(*args)).encode() + b"\n")  # type: ignore[arg-type]
        return True


def poll_seconds(wanted: float) -> float:
    """Return how long to wait between two looks at a job on a host."""
    return wanted if Channel.descriptor is None else min(wanted, HEARD_EVERY)


def bytes_moved(
    host: str, stage: str, what: str, done: int, total: int | None, seconds: float, before: int = 0
) -> None:
    """Say how many bytes have come.

    :param host: of the inventory
    :param stage: one of those of the engine's C(progress)
    :param what: is moved, for people
    :param done: bytes by now
    :param total: bytes of all, None where it is not known
    :param seconds: since the beginning
    :param before: bytes that were there at the beginning
    """
    if not Channel.send(host, stage, what, done, total, "B", before):
        display.display(f"  {host}: {what}: {snapshots.progress(done, total, seconds, before)}")


class Progress:
    """Says how far a transfer is, now and then."""

    def __init__(self, host: str, what: str, total: int) -> None:
        self.host, self.what, self.total, self.done = host, what, total, 0
        self.began = self.said = time.monotonic()

    def add(self, count: int) -> None:
        """Count what has come through."""
        self.done += count
        now = time.monotonic()
        if now - self.said >= SAY_EVERY or self.done >= self.total:
            self.said = now
            bytes_moved(self.host, progress.SPREAD, self.what, self.done, self.total, now - self.began)
