"""Checks of the test suite: commands with their results, counted tests and reasons of failures."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from common import CACHE, ROOT, Stopwatch, duration, tool_env

LOGS = CACHE / "test-logs"
LINES_SHOWN = 80  # of a failed check
PROGRESS = r"[.sxXFE]+ *\[ *\d+%\]"  # pytest's dots

FEW = 5  # up to this number of failed tests may lack a core
FAILURE_LINES, FAILURE_WIDTH = 8, 1000  # of the reasons of a failed check, repeated at the end
FATAL = re.compile(r"fatal: \[|\[ERROR\]: ")  # beginnings of Ansible's messages about a failed task


@dataclass
class Result:
    """The result of a check: output, duration, number of tests."""

    label: str
    ok: bool
    seconds: float
    output: str = ""
    note: str = ""
    passed: int = 0
    failed: int = 0
    first_output: str = ""  # of an attempt that failed before this one


@dataclass
class Check:
    """One command of a stage. Several argv run one after the other and count as one check."""

    label: str
    commands: list[list[str]]
    cwd: Path = ROOT
    env: dict[str, str] = field(default_factory=tool_env)


def execute(check: Check) -> Result:
    """Run a check, print its result, and return it with its output."""
    watch, output, code = Stopwatch(), "", 0
    for argv in check.commands:
        done = subprocess.run(
            argv, cwd=check.cwd, env=check.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        output += f"$ {textwrap.shorten(' '.join(argv), 300, placeholder=' ...')}\n{done.stdout}"
        code = code or done.returncode
    return finish(Result(check.label, code == 0, watch.seconds, output))


def finish(result: Result) -> Result:
    """Count the tests of a check, and print its line (with its output if it failed)."""
    count_tests(result)
    state = "ok    " if result.ok else "FAILED"
    print(f"   {state} {result.label} ({duration(result.seconds)}) {result.note}".rstrip(), flush=True)
    if not result.ok:
        # Which tests failed comes first: a page that keeps only the beginning of a long log shows that much.
        lines = [line for line in result.output.rstrip().splitlines() if not re.fullmatch(PROGRESS, line)]
        failed = tests_named(result.output)
        lines = [line for line in lines if line not in failed]
        if len(lines) > LINES_SHOWN:
            log = LOGS / (re.sub(r"\W+", "-", result.label) + ".log")
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(result.output, encoding="utf-8")
            note = f"... the last {LINES_SHOWN} of {len(lines)} lines; all are in {log.relative_to(ROOT)}"
            lines = [note, *lines[-LINES_SHOWN:]]
        print("\n".join(f"   | {line}" for line in failed + lines), flush=True)
    return result


def tests_named(output: str) -> list[str]:
    """Return the lines in which pytest names failed tests and their errors."""
    return [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]


def failures(results: list[Result]) -> list[str]:
    """Return the reasons of checks that failed finally or once: their tests, or Ansible's last messages about tasks.

    They are printed last, since pages may only keep the end of a long log.
    """
    lines = []
    for result in results:
        if not result.ok:
            lines += [f"   FAILED {result.label}", *reasons(result.output)]
        elif result.first_output:
            lines += [f"   FAILED ONCE, then passed: {result.label}", *reasons(result.first_output)]
    return lines


def reasons(output: str) -> list[str]:
    """Return the reasons of a failed check in a few lines."""
    lines = tests_named(output)
    lines = lines or [line for line in output.splitlines() if FATAL.search(line)][-2:]
    lines = lines or output.rstrip().splitlines()[-3:]
    return [f"   | {line[:FAILURE_WIDTH]}" for line in lines[:FAILURE_LINES]]


def count_tests(result: Result) -> None:
    """Set the numbers of tests from pytest's closing lines; a check without them counts as one test."""
    closing = re.findall(r".*\d+ (?:passed|failed|error|skipped).* in [\d.]+s.*", result.output)
    for line in closing:
        result.passed += sum(int(n) for n in re.findall(r"(\d+) passed", line))
        result.failed += sum(int(n) for n in re.findall(r"(\d+) (?:failed|error)", line))
    if closing and not result.note:
        result.note = closing[-1].strip("= ")
    if not closing:
        result.passed = int(result.ok)
    if not result.ok:
        result.failed = max(result.failed, 1)


def together(checks: list[Check]) -> list[Result]:
    """Run independent checks, as many at once as there are cores (at most four)."""
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(execute, checks))


def simple(label: str, *argv: str) -> Check:
    """Return a check of one command in the repository."""
    return Check(label, [list(argv)])
