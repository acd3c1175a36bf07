# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pins of services on demand: the owner, or the guard of the memory, keeps one up or down, with a reason.

A pin is a file below C(/run), so it holds until the next boot at the longest. Its first line is C(warm) or C(cold), its second one why,
if the owner did not set it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from . import state_file

FOLDER = "on_demand/pins"
"""Below C(/run/dgxspark)."""
WARM, COLD = "warm", "cold"
MOST_TEXT = 500


@dataclass(frozen=True)
class Pin:
    """word: C(warm), C(cold) or empty. why: what a guard said, empty where a person did it."""

    word: str = ""
    why: str = ""

    def text(self, name: str) -> str:
        """Return why a service is kept warm or cold."""
        return f"{name} is kept {self.word} by {self.why or 'its owner'}"


def read(folder: Path, name: str) -> Pin:
    """Return the pin of a service; an unreadable or invalid one counts as no pin."""
    try:
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return Pin()
    word = lines[0].strip() if lines else ""
    return Pin(word, lines[1][:MOST_TEXT] if len(lines) > 1 else "") if word in (WARM, COLD) else Pin()


def write(folder: Path, name: str, word: str, why: str = "") -> None:
    """Keep a service up or down from now on. word: C(warm), C(cold), or empty. why: unless the owner sets it. Raises OSError."""
    if not word:
        with contextlib.suppress(FileNotFoundError):
            (folder / name).unlink()
        return
    reason = " ".join(why.split())[:MOST_TEXT]
    state_file.write_text(folder / name, f"{word}\n" + (f"{reason}\n" if reason else ""))
