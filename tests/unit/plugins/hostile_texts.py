# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts that steer a terminal, turn a line around or end it, as a process name, a file name, a label or a message may hold them."""

from __future__ import annotations

import unicodedata

HOSTILE = (
    "\x1b[2J\x1b[H",  # clears the screen
    "\x1b]0;title\x07",  # sets the title of the window
    "\x1b]52;c;cm0gLXJmIC8=\x07",  # writes to the clipboard
    "\x1b]8;;http://192.0.2.1/\x1b\\click\x1b]8;;\x1b\\",  # a link
    "\x1b[8mhidden\x1b[0m",
    "\x9b2J\x9d0;x\x9c",  # the same by C1 controls
    "ok\x08\x08no",
    "ok\rno",
    "nul\x00byte",
    "\u202egpj.exe\u202c",  # shown from right to left
    "\u2066a\u2069\u200f\u061c",
    "line\u2028paragraph\u2029",
    "\x85next\x0bvertical\x0cform",
    "\x7f\x7f",
    "half \ud800 pair",
)
STEERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")


def is_harmless(text: str, allowed: str = "\n\t") -> bool:
    """Tell whether a text has no character that steers a terminal. allowed: controls that layout of our own may need."""
    return not any(
        character in STEERING or (unicodedata.category(character) in ("Cc", "Cs") and character not in allowed)
        for character in text
    )
