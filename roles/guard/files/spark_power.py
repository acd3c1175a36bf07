# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program of spark-power.service: switches on what saves power on an idle Spark, and restores the state before.

spark_power.py apply NAME...   switch on; a switch that this host cannot have is left out with a message
spark_power.py undo            restore; while the host shuts down, nothing is done
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.dont_write_bytecode = True  # root runs it from /usr/local/lib, which holds installed files only

from dgxspark_vllm._runtime import command, power_switches
from dgxspark_vllm._runtime.systemd import journal

say = journal("power")


def call(argv: Sequence[str], seconds: float) -> int:
    """Run a program; returns its exit code, 124 without an answer in time."""
    return command.run(list(argv), seconds).rc


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="switches for the power of an idle Spark")
    parser.add_argument("action", choices=["apply", "undo"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--root", type=Path, default=Path("/"))
    parser.add_argument("--state", type=Path, default=Path("/var/lib/dgxspark/power.json"))
    args = parser.parse_args(argv)
    if args.action == "undo" and command.run(["systemctl", "is-system-running"], 10.0).out.strip() == "stopping":
        return 0
    switches = power_switches.Switches(args.root, args.state, call, say)
    try:
        switches.apply(args.names) if args.action == "apply" else switches.undo()
    except OSError as error:
        say(f"{args.action} failed: {error}", 3)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
