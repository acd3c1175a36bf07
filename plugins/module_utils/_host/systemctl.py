# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs systemctl on a host for modules that change units. The state of units is asked by C(units.ask)."""

from __future__ import annotations

from collections.abc import Sequence

from .._runtime.command import NoAnswer, Run

NOT_LOADED = 5
"""Exit code of systemctl stop for a missing unit: EXIT_NOTINSTALLED of the LSB, systemctl(1)."""
NOT_ACTIVE = (3, 4)
"""Exit codes of systemctl is-active for an ended and for a missing unit; any other failure is no answer."""


def act(run: Run, verb: str, names: Sequence[str], *options: str, allowed: Sequence[int] = (0,)) -> str:
    """Run systemctl on units; returns the reason of its failure, empty if it worked or without units. allowed: exit codes of success."""
    if not names:
        return ""
    rc, out, err = run(["systemctl", verb, *options, "--", *names])
    return "" if rc in allowed else err.strip() or out.strip() or f"exit code {rc}"


def end(run: Run, unit: str) -> str:
    """Stop a transient unit and forget its failures; returns the reason of a failure, empty when it has ended or is missing."""
    why = act(run, "stop", [unit], allowed=(0, NOT_LOADED, 127))  # 127: a host without systemd has started none
    act(run, "reset-failed", [unit])
    return why


def is_active(run: Run, unit: str) -> bool | None:
    """Whether a unit is active, None without an answer of systemctl."""
    try:
        rc, _out, _err = run(["systemctl", "is-active", "--quiet", unit])
    except NoAnswer:
        return None
    return True if rc == 0 else False if rc in NOT_ACTIVE else None
