# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show the progress of each host: in place on a terminal, now and then in a log, as events in a file."""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: aggregate
short_description: Show the progress of slow tasks on each host
description:
  - Shows one line a host for tasks that take longer than two seconds - stage, share, rate and time left, as far as they are known; for
    a task without progress its name and its run time.
  - On a terminal the lines stand below the output and are renewed in place. Elsewhere they are printed when the run has been silent for
    10 seconds, at most ten at a time.
  - Works with any stdout callback. It asks no host for anything. Tasks that follow a job on a host look at it at least every 10 seconds,
    and tasks that wait for an engine report the progress of its start.
requirements:
  - enabled in configuration, C(callbacks_enabled = dgxspark.vllm.progress)
options:
  style:
    description:
      - V(terminal) renews lines in place, V(lines) prints them, V(none) writes the O(file) alone.
      - V(auto) is V(terminal) where the output is one, V(lines) elsewhere.
    type: str
    choices: [auto, terminal, lines, none]
    default: auto
    ini:
      - section: callback_dgxspark_vllm_progress
        key: style
    env:
      - name: DGXSPARK_PROGRESS_STYLE
  file:
    description:
      - A file of the controller to which every event is appended as a line of JSON, for programs. The extra variable C(spark_events)
        replaces it. docs/automation.md describes the events, and the outcome of a run in C(spark_result).
    type: path
    ini:
      - section: callback_dgxspark_vllm_progress
        key: file
    env:
      - name: DGXSPARK_PROGRESS_FILE
"""

EXAMPLES = r"""
ansible.cfg: |
  [defaults]
  callbacks_enabled = dgxspark.vllm.progress

  [callback_dgxspark_vllm_progress]
  file = ~/spark-progress.jsonl
"""

import atexit
import contextlib
import json
import os
import select
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.callback import CallbackBase
from ansible.utils.vars import load_extra_vars

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import printable
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import timeline
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.progress import Board
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import events, files
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import inventory_sources
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import Channel

TIMED = ("rollout", "rollback")
TIMELINE = ".spark/timeline.html"
"""The page of verbs that change hosts one after another, below the inventory folder."""
TICK = 0.5  # s between two looks at the clock
MOST_CHARACTERS = 300  # of a failure in the list at the end
SHOWN_PART = 2  # hosts get at most one of so many lines of a terminal


class Screen:
    """The lines below the output of a terminal. C(Output) removes them before this process writes anything else.

    Written by the descriptor: a worker is a fork, and a fork with a locked buffer would wait for ever.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.drawn, self.open_line, self.writing = descriptor, 0, False, 0
        self.lock = threading.Lock()

    def draw(self, lines: list[str]) -> None:
        """Replace the lines, unless other output is being written or waits for an answer."""
        with self.lock:
            if self.writing or self.open_line or not (lines or self.drawn):
                return
            width = shutil.get_terminal_size().columns - 1
            self._put(self._erased() + "".join(f"{line[:width]}\n" for line in lines))
            self.drawn = len(lines)

    def begin(self) -> None:
        """Remove the lines, and draw none until C(end)."""
        with self.lock:
            self.writing += 1
            if self.drawn:
                self._put(self._erased())
                self.drawn = 0

    def end(self, text: str) -> None:
        """Allow lines again. text: the output since C(begin)."""
        with self.lock:
            self.writing -= 1
            self.open_line = not text.endswith("\n") if text else self.open_line

    def _erased(self) -> str:
        return f"\x1b[{self.drawn}A\x1b[J" if self.drawn else ""

    def _put(self, text: str) -> None:
        content = text.encode("utf-8", "replace")
        with contextlib.suppress(OSError):  # a terminal that has gone
            while content:
                content = content[os.write(self.descriptor, content) :]


class Output:
    """A standard stream that removes the lines of a screen before it writes."""

    def __init__(self, stream: Any, screen: Screen) -> None:
        self._stream, self._screen = stream, screen

    def write(self, text: str) -> int:
        """Write as the stream does."""
        self._screen.begin()
        try:
            written = int(self._stream.write(text))
            self._stream.flush()
            return written
        finally:
            self._screen.end(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    """Gets tasks from Ansible and their progress from the workers, through a pipe; a thread shows it."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "dgxspark.vllm.progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.board, self.lock, self.ended = Board(), threading.Lock(), threading.Event()
        self.owner, self.reader = os.getpid(), -1
        self.screen: Screen | None = None
        self.streams: tuple[Any, Any] | None = None
        self.log_start, self.outcome_path, self.timeline_path = 0, "", ""
        self.failures: dict[str, str] = {}
        self.item_messages: dict[str, Any] = {}
        self.is_failure_last = False
        self.prints = False
        self.thread = threading.Thread(target=self._follow, daemon=True)

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Begin to listen."""
        if self.thread.is_alive() or self.ended.is_set():
            return  # a further playbook of the same command
        style = self.get_option("style")
        self._open_events(Path(playbook._file_name).stem)
        if style == "none" and events.EventLog.descriptor < 0:
            self.disabled = True
            return
        if style == "auto":
            style = "terminal" if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" else "lines"
        self.reader, Channel.descriptor = os.pipe()
        for descriptor in (self.reader, Channel.descriptor):
            os.set_blocking(descriptor, False)
        self.prints = style == "lines"
        if style == "terminal":
            Channel.is_terminal = True
            self.screen, self.streams = Screen(sys.stdout.fileno()), (sys.stdout, sys.stderr)
            sys.stdout = Output(sys.stdout, self.screen)
            sys.stderr = Output(sys.stderr, self.screen)
        atexit.register(self._close)
        self.thread.start()

    def _open_events(self, verb: str) -> None:
        """Open the file of events, if one is named or an outcome needs them. verb: name of the playbook."""
        options = context.CLIARGS
        sources = inventory_sources(options.get("inventory") or constants.DEFAULT_HOST_LIST)
        extra_vars = load_extra_vars(DataLoader())
        folder = next(iter(sources.given), "")
        path, self.outcome_path, self.timeline_path = (
            events.path_of(name, folder)
            for name in (
                extra_vars.get("spark_events") or self.get_option("file"),
                extra_vars.get("spark_result"),
                extra_vars.get("spark_timeline") or (TIMELINE if verb in TIMED and Path(folder).exists() else ""),
            )
        )
        paths = list(filter(None, (path, self.outcome_path, self.timeline_path)))
        # Ansible would read such a file as inventory; checked_hosts refuses the run.
        if not paths or any(sources.reads(file) for file in paths):
            self.outcome_path = self.timeline_path = ""
            return
        try:
            self.log_start = events.EventLog.open(path)
            events.EventLog.write(
                "run",
                schema=events.SCHEMA,
                verb=verb,
                check=bool(options.get("check")),
                limit=options.get("subset") or "",
                tags=list(options.get("tags") or ()),
            )
        except OSError as error:  # no reason to end a run
            self._display.warning(f"spark_events: no events are written: {error}. Name another file.")

    def _printed(self, *_args: Any, **_kwargs: Any) -> None:
        """Note that the stdout callback has printed a line, such as the name of a play or a task."""
        with self.lock:
            self.board.printed(time.monotonic())

    v2_playbook_on_play_start = _printed
    v2_playbook_on_task_start = _printed

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """A task begins on a host."""
        with self.lock:
            self.board.begin(host.get_name(), task.get_name(), time.monotonic())
        self._write("begin", host=host.get_name(), task=task.get_name())

    def v2_runner_on_ok(self, result: Any) -> None:
        """A task has ended on a host."""
        self.is_failure_last = False
        self._end(result, "ok")

    def v2_runner_item_on_failed(self, result: Any) -> None:
        """An item of a loop has failed; the result of the task does not say why."""
        self.item_messages.setdefault(result.host.get_name(), result.result.get("msg"))

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A task has ended on a host."""
        self._end(result, "failed")
        message = self.item_messages.pop(result.host.get_name(), None)
        if not ignore_errors:
            self._write_error(result, message)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """A task has ended on a host."""
        self._end(result, "skipped")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A task has ended on a host."""
        self._end(result, "unreachable")
        self._write_error(result)

    def v2_playbook_on_include(self, included_file: Any) -> None:
        """A task that includes others has ended on its hosts; it has no result."""
        with self.lock:
            for host in included_file._hosts:
                self.board.end(host.get_name())
        self._printed()

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The end of the run."""
        hosts = {host: stats.summarize(host) for host in sorted(stats.processed)}
        self._write("stats", hosts=hosts)
        self._close()
        # Other hosts went on after the errors, which have left the screen.
        if (self.screen or self.prints) and not self.is_failure_last:
            for host, why in self.failures.items():
                if events.has_failed(hosts.get(host) or {}):
                    self._display.display(f"failed: {host}: {why}"[:MOST_CHARACTERS])

    def _end(self, result: Any, outcome: str) -> None:
        host, task = result.host.get_name(), result.task.get_name()
        with self.lock:
            self.board.end(host)
        self._printed()
        self._write("end", host=host, task=task, result=outcome)

    def _follow(self) -> None:
        """Read the events of workers until the run has ended, and show them."""
        buffer = b""
        while not self.ended.is_set():
            select.select([self.reader], [], [], TICK)
            with contextlib.suppress(BlockingIOError):
                buffer += os.read(self.reader, 1 << 16)
            *lines, buffer = buffer.split(b"\n")
            for line in filter(None, lines):
                event = json.loads(line)
                with self.lock:
                    self.board.take(event, time.monotonic())
                self._write("progress", **event)
            self._show(time.monotonic())

    def _show(self, now: float) -> None:
        if self.screen:
            with self.lock:
                lines = self.board.lines(now, max(shutil.get_terminal_size().lines // SHOWN_PART - 2, 1), bars=True)
            self.screen.draw(lines)
        elif self.prints:
            with self.lock:
                lines = self.board.due(now)
            for line in lines:
                self._display.display(f"  {line}")

    def _write_error(self, result: Any, of_item: Any = None) -> None:
        """Write the message of a failed task, as the screen has it. of_item: the message of the first failed item of a loop."""
        message = printable(str(of_item or result.result.get("msg") or "").removeprefix("Task failed: "))
        host, task = result.host.get_name(), result.task.get_name()
        self.failures[host], self.is_failure_last = f"{task}: {message.splitlines()[0] if message else 'failed'}", True
        self._write("error", host=host, task=task, message=message)

    @staticmethod
    def _write(event: str, **fields: Any) -> None:
        events.EventLog.write(event, **fields)

    def _write_reports(self) -> None:
        """Write the outcome and the timeline of the run, if files are named for them."""
        if events.EventLog.descriptor < 0:
            return
        lines = events.EventLog.read(self.log_start)
        if self.outcome_path:
            self._write_report(self.outcome_path, json.dumps(events.outcome(lines), indent=1) + "\n")
        if self.timeline_path:
            self._write_report(self.timeline_path, timeline.page(timeline.of_events(lines)))

    def _write_report(self, path: str, text: str) -> None:
        try:
            files.write_report(Path(path), text)
        except OSError as error:  # no reason to end a run
            self._display.warning(f"spark_result, spark_timeline: {path} is not written: {error}")

    def _close(self) -> None:
        """Restore the terminal; a worker, which is a fork, leaves it alone."""
        if self.ended.is_set() or os.getpid() != self.owner:
            return
        self.ended.set()
        if self.thread.is_alive() and Channel.descriptor is not None:
            with contextlib.suppress(BlockingIOError):  # what fills the pipe wakes the thread as well
                os.write(Channel.descriptor, b"\n")
            self.thread.join(2 * TICK)
        Channel.descriptor = None
        if self.screen and self.streams:
            self.screen.draw([])
            sys.stdout, sys.stderr = self.streams
        self._write_reports()
