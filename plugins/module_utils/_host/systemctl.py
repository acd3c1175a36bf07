# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs systemctl on a host for modules that change units. The state of units is asked by C(units.ask)."""

from __future__ import annotations

from collections.abc import Sequence

from .._runtime.command import Run


def act(run: Run, verb: str, names: Sequence[str], *options: str, allowed: Sequence[int] = (0,)) -> str:
    """Run systemctl on units; returns the reason of its failure, empty when it worked or there are no units.

    :param run: runs a program
    :param verb: C(start), C(stop) and their like
    :param names: of the units, or paths of unit files
    :param allowed: exit codes that are no failure
    :param options: of systemctl
    :returns: a line of text
    """
    if not names:
        return ""
    rc, out, err = run(["systemctl", verb, *options, "--", *names])
    return "" if rc in allowed else err.strip() or out.strip() or f"exit code {rc}"
