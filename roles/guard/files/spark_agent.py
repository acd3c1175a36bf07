# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent of a host, the main process of spark-agent.service: memory guard, watchdog of the model servers, metrics collector, live page.

spark-agent                     run the loops that have a settings file, /etc/dgxspark/agent/LOOP.json: guard, watchdog, exporters
spark-agent --once LOOP         one look: guard, watchdog and live as JSON, exporters as the page of metrics; nothing is changed or written
spark-agent --collect NAME      save the evidence about a model server, and leave it alone

The code is in the packages dgxspark_vllm._agent and, for the live page, _fleet; it needs Python's standard library alone.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

sys.dont_write_bytecode = True  # root runs it from /usr/local/lib, which holds installed files only

from dgxspark_vllm._agent import loops, services
from dgxspark_vllm._runtime import state_file
from dgxspark_vllm._runtime.systemd import journal, notify

INTERVAL_SECONDS = 30.0
FINISH_SECONDS = 5.0
KEEP = 5
LIVE_SECONDS = 5.0
PATHS = (
    ("--etc", "/etc/dgxspark", "settings"),
    ("--run", "/run/dgxspark", "records of starts"),
    ("--state", "/var/lib/dgxspark", "state, evidence, receipts"),
    ("--gateway", "/usr/local/libexec/dgxspark/spark_gateway.py", "the gateway's helper"),
    ("--page", "/usr/local/libexec/dgxspark/live", "files of the live page"),
)

say = journal("agent")


def describe_look(name: str, args: argparse.Namespace) -> str:
    """Return one look of a loop as text. name: of the loop. Raises SettingsError."""
    if name == services.EXPORTERS:
        from dgxspark_vllm._agent import figures

        return figures.Collector(args.etc, args.state, args.run, args.units).collect(0.0)
    if name == services.GUARD:
        from dgxspark_vllm._agent import memory

        look = memory.MemoryGuard(args.etc, args.run, args.state / name, args.gateway).look_once()
    elif name == services.LIVE:
        from dgxspark_vllm._fleet import live_agent

        page = live_agent.LiveAgent(args.etc, args.run, args.state, args.units, args.gateway, args.page)
        (spark,) = page.look(True)
        look = dict(spark.document or {"error": spark.why})
    else:
        from dgxspark_vllm._agent import watch

        watchdog = watch.Watchdog(args.etc, args.run, args.state / name, is_dry=True)
        watchdog.round()
        look = {service: tracker.facts() for service, tracker in sorted(watchdog.trackers.items())}
    return json.dumps(look, indent=1) + "\n"


def collect(args: argparse.Namespace) -> int:
    """Save the evidence about a model server; returns the exit code."""
    from dgxspark_vllm._agent import evidence, watch

    watched = watch.watched_services(args.etc)
    if args.collect not in watched:
        names = ", ".join(watched) or "none"
        say(f"{args.collect!r} is no service that this host answers for; there are: {names}", 3)
        return 1
    settings = state_file.read(services.settings_path(args.etc, services.WATCHDOG)) or {}
    why = {"service": args.collect, "reason": "asked for by hand"}
    folder = args.state / "watchdog"
    print(evidence.collect(watched[args.collect], args.etc, folder, why, int(settings.get("keep") or KEEP)))
    return 0


def make_loops(name: str, args: argparse.Namespace) -> list[loops.Loop]:
    """Return the slow loops of a settings file: the watchdog has one that looks and one that asks questions. name: of the file."""
    if name == services.WATCHDOG:
        from dgxspark_vllm._agent import questions, watch

        watchdog = watch.Watchdog(args.etc, args.run, args.state / "watchdog")
        loop = loops.Loop(name, watchdog.interval, watchdog.round, watchdog.status)
        watchdog.beat = loop.beat
        watch.say(f"watches the services of {args.etc}/services every {watchdog.interval:g} s")
        asker = questions.QualityLoop(watchdog, args.gateway)
        asking = loops.Loop("quality", watchdog.interval, asker.round, asker.status)
        asker.beat = asking.beat
        return [loop, asking]
    if name == services.LIVE:
        from dgxspark_vllm._fleet import live_agent

        live = live_agent.LiveAgent(args.etc, args.run, args.state, args.units, args.gateway, args.page)
        return [loops.Loop(name, LIVE_SECONDS, live.tick, nice=loops.COLLECTOR_NICE)]
    from dgxspark_vllm._agent import figures

    settings = services.load_settings(args.etc, name)
    collector = figures.Collector(args.etc, args.state, args.run, args.units)
    interval, folder = float(settings.get("interval") or INTERVAL_SECONDS), Path(str(settings["textfile_dir"]))

    def write_page() -> None:
        figures.write(folder, collector.collect(interval))

    return [loops.Loop(name, interval, write_page, nice=loops.COLLECTOR_NICE)]


def run_slow(names: list[str], args: argparse.Namespace) -> int:
    """Run slow loops: as the child of the memory guard, or as the main process without one; returns an exit code if no loop has settings."""
    slow: list[loops.Loop] = []
    for name in names:
        if name == services.GUARD:
            continue
        try:
            slow += make_loops(name, args)
        except services.SettingsError as error:
            say(f"{name} does not run: {error}", 3)
    if not slow:
        return 1
    loops.lower_priority([loop.name for loop in slow if loop.name in loops.OOM_SCORES])
    if args.beats is not None:
        loops.run_slow(slow, loops.pipe_sender(args.beats))

    def send(text: str) -> None:
        notify(f"READY=1\nWATCHDOG=1\nSTATUS={text}", wait=False)
        loops.end_if_changed(args.etc, names)

    loops.run_slow(slow, send)
    return 0


def run_guard(names: list[str], args: argparse.Namespace) -> None:
    """Run the memory guard in this process, and the other loops in a child. Raises SettingsError if the guard has no settings."""
    from dgxspark_vllm._agent import memory

    threading.stack_size(memory.STACK_BYTES)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    argv = [sys.executable, *sys.argv, "--beats"] if len(names) > 1 else []
    slow = loops.SlowProcess(argv, lambda: loops.end_if_changed(args.etc, names))
    guard = memory.MemoryGuard(args.etc, args.run, args.state / "guard", args.gateway, lambda: slow.status)
    error = memory.stay_in_memory()
    if error:
        say(f"warning: this process cannot be kept out of the swap: {error}", 4)
    slow.start()
    try:
        guard.run()
    finally:
        slow.stop()
        guard.finish(FINISH_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="spark-agent", description="Guards the memory, watches model servers, makes metrics."
    )
    for name, default, text in PATHS:
        parser.add_argument(name, type=Path, default=Path(default), help=f"{text} (default: %(default)s)")
    parser.add_argument("--units", default="/etc/systemd/system", help="unit files (default: %(default)s)")
    parser.add_argument(
        "--once", choices=services.LOOPS, help="one look of a loop, printed; nothing is changed or written"
    )
    parser.add_argument("--collect", metavar="NAME", help="save the evidence about a model server, and end")
    parser.add_argument(
        "--beats", type=int, help=argparse.SUPPRESS
    )  # the pipe to the memory guard, whose child this is
    args = parser.parse_args()
    if args.collect:
        return collect(args)
    if args.once:
        try:
            sys.stdout.write(describe_look(args.once, args))
        except services.SettingsError as error:
            say(str(error), 3)
            return 1
        return 0
    names = loops.enabled_loops(args.etc)
    if not names:
        say(f"{args.etc}/agent has no settings of a loop; run site.yml again", 3)
        return 1
    if services.GUARD in names and args.beats is None:
        try:
            run_guard(names, args)
        except services.SettingsError as error:
            say(f"the memory is not guarded: {error}", 3)
    return run_slow(names, args)


if __name__ == "__main__":
    sys.exit(main())
