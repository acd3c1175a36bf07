# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a transfer is, said while it runs."""

from __future__ import annotations

import time

from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots

display = Display()
SAY_EVERY = 5.0  # seconds between two lines of progress


class Progress:
    """Says how far a transfer is, now and then."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self.began = self.said = time.monotonic()

    def add(self, count: int) -> None:
        """Count what has come through."""
        self.done += count
        now = time.monotonic()
        if now - self.said >= SAY_EVERY or self.done >= self.total:
            self.said = now
            display.display(f"  {self.what}: {snapshots.progress(self.done, self.total, now - self.began)}")
