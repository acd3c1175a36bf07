"""The stage molecule of the test suite: scenarios on sets of simulated Sparks."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import scenarios
from common import BIN, CACHE, ROOT, SPARKSIM, Stopwatch, duration, run, tool_env
from suite_checks import Result, count_tests, finish

# Sets of nodes that run scenarios at the same time: a scenario waits during half of its time.
LANES = ("test", "test2", "test3")
# Four nodes in a ring of cables, unlike the lanes; it takes longest, so it only runs at night, on separate nodes.
RING = "ring4"
RING_SECONDS = 9000  # deadline of an attempt, which takes a third of it alone on two cores
# Nightly scenarios on two nodes: interruptions at many points, long waits, applications of features that other scenarios prove, and the
# second executor of a model over several hosts.
NIGHTLY = ("document_000", "faults", "guard", "long_memory", "pair_ray", "quickstart", "tutorials")
# In this step, modules start as on a Spark; in others they are forked from a Python that has imported the standard library.
REAL_PYTHON = ("site", "converge")
# They start first, so that the lanes end together.
SLOWEST = (
    *("site", "roles", "document_002", "pair_mp", "on_demand", "verbs"),
    *("fabric", "spread", "rollout", "lock", "firewall"),
)


def lane_env(lane: str) -> dict[str, str]:
    """Return the environment that separates the runs of lanes."""
    subnet = {"test": "10.88", "test2": "10.86", "test3": "10.85", "ring": "10.84"}[lane]
    return tool_env(
        MOLECULE_GLOB="molecule/*/molecule.yml",
        MOLECULE_EPHEMERAL_DIRECTORY=str(CACHE / "molecule" / lane),
        SPARKSIM_SET=lane,
        SPARKSIM_SUBNET=subnet,
        NO_COLOR="1",
        PYTEST_ADDOPTS="--durations=8 --durations-min=5",
    )


def molecule(thorough: bool, only: str = "") -> list[Result]:
    """Run every scenario on simulated Sparks, one per lane at a time.

    thorough: also the tests that are marked C(nightly), by molecule itself. only: one scenario, which then runs alone.
    """
    order = {name: position for position, name in enumerate(SLOWEST)}
    if only == RING:
        return [ring_run()]
    waiting = sorted([only] if only else scenarios_of(thorough), key=lambda name: (order.get(name, len(order)), name))
    lanes = LANES[: len(waiting)]
    watch = Stopwatch()
    # Directly, so that the output of a first build is visible. Stand-ins cannot prove everything that scenarios show of a real engine.
    code = run(SPARKSIM, "build", "--require-real-engine")
    results = [finish(Result("images of the simulated Sparks", code == 0, watch.seconds, "see above"))]
    if not results[0].ok:
        return results
    try:
        with ExitStack() as stack:
            if thorough:
                runs = functools.partial(scenario_runs, waiting=waiting, attempt=molecule_run)
            else:
                env = {**lane_env(LANES[0]), **scenarios.environment(waiting[0])}
                quick = stack.enter_context(scenarios.quick_ansible(env, CACHE / "quick"))
                runs = functools.partial(scenario_runs, waiting=waiting, attempt=functools.partial(direct_run, quick))
            for done in stack.enter_context(ThreadPoolExecutor(max_workers=len(lanes))).map(runs, lanes):
                results += done
    finally:
        for lane in lanes:
            run(SPARKSIM, "down", "--set", lane)
    return [*results, ring_run()] if thorough and not only else results


def scenarios_of(thorough: bool) -> list[str]:
    """Return the scenarios of lanes, with the nightly ones if thorough."""
    return [name for name in scenarios.names() if name != RING and (thorough or name not in NIGHTLY)]


def ring_run() -> Result:
    """Run the scenario on four cabled nodes after the lanes have released their memory."""

    def attempt() -> Result:
        try:
            return on_new_nodes("ring", RING, functools.partial(molecule_run, seconds=RING_SECONDS), "--nodes", "4")
        finally:
            run(SPARKSIM, "down", "--set", "ring")

    return twice(attempt)


def twice(attempt: Callable[[], Result]) -> Result:
    """Return the result of an attempt, of the second one if the first fails.

    All nodes share this machine's cores. A scenario that fails twice, the second time on new nodes again, is broken; single
    failures are reported at the end.
    """
    result = attempt()
    if not result.ok:
        first, result = result, attempt()
        result.first_output = first.output
    return result


def scenario_runs(lane: str, waiting: list[str], attempt: Callable[[str, str], Result]) -> list[Result]:
    """Run waiting scenarios on a lane, each on new nodes."""
    results = []
    while waiting:
        results.append(twice(functools.partial(on_new_nodes, lane, waiting.pop(0), attempt)))
    return results


def on_new_nodes(lane: str, name: str, attempt: Callable[[str, str], Result], *options: str) -> Result:
    """Run a scenario on new nodes: creating them is faster than undoing the changes of the previous scenario."""
    watch = Stopwatch()
    if run(SPARKSIM, "down", "--set", lane) or run(SPARKSIM, "up", "--set", lane, *options):
        return finish(Result(f"scenario {name}", False, watch.seconds, "its simulated Sparks are not up: see above"))
    result = attempt(name, lane)
    result.seconds = watch.seconds
    count_tests(result)
    print(f"   {'ok    ' if result.ok else 'FAILED'} scenario {name} ({watch}) {result.note}", flush=True)
    return result


def direct_run(quick: Path, name: str, lane: str) -> Result:
    """Run the steps of a scenario, without its tests marked C(nightly)."""
    env = {**lane_env(lane), **scenarios.environment(name)}
    env["PATH"] = f"{quick}{os.pathsep}{env['PATH']}"
    env["PYTEST_ADDOPTS"] += " -m 'not nightly'"
    forked = {**env, "SPARKSIM_PYTHON": "/usr/local/bin/spark-sim-python"}
    output, ok = "", True
    Path(env["MOLECULE_EPHEMERAL_DIRECTORY"]).mkdir(parents=True, exist_ok=True)  # molecule makes its own
    with tempfile.TemporaryDirectory(prefix="ssh-") as connections:
        env["SPARKSIM_SSH"] = forked["SPARKSIM_SSH"] = connections
        for step in scenarios.steps(name):
            # Molecule cleans up behind a failed scenario, too.
            if not ok and step.name != "cleanup":
                continue
            watch = Stopwatch()
            used = env if (name, step.name) == REAL_PYTHON else forked
            code, text = shown(step.argv, f"{lane} {name}", cwd=scenarios.MOLECULE / name, env=used)
            print(f"{lane} {name} | -- {step.name} took {watch}", flush=True)
            ok = step.holds(code, text) and ok
            output += text
    return Result(f"scenario {name}", ok, 0.0, output)


def molecule_run(name: str, lane: str, seconds: float | None = None) -> Result:
    """Run a scenario with molecule and all of its tests. seconds: deadline."""
    env = lane_env(lane)
    # Molecule assumes that the preparation of one scenario holds for all on shared nodes; remove its notes.
    shutil.rmtree(env["MOLECULE_EPHEMERAL_DIRECTORY"], ignore_errors=True)
    argv = [str(BIN / "molecule"), "test", "-s", name, "--destroy", "never", "--no-command-borders"]
    with tempfile.TemporaryDirectory(prefix="ssh-") as connections:
        env["SPARKSIM_SSH"] = connections
        code, output = shown(argv, f"{lane} {name}", cwd=ROOT, env=env, seconds=seconds)
        if code:  # molecule does not clean up a failed scenario
            run(BIN / "molecule", "cleanup", "-s", name, env=env)
    return Result(f"scenario {name}", code == 0, 0.0, output)


def shown(argv: list[str], label: str, cwd: Path, env: dict[str, str], seconds: float | None = None) -> tuple[int, str]:
    """Run a command and print its output line by line behind a label; returns its exit code and output.

    seconds: after which it is killed with all of its children.
    """
    output, ended = "", threading.Event()
    streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(argv, cwd=cwd, env=env, start_new_session=seconds is not None, **streams) as process:
        assert process.stdout is not None

        def end() -> None:
            ended.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(seconds or 0, end)
        if seconds is not None:
            timer.start()
        for line in process.stdout:
            print(f"{label} | {line}", end="", flush=True)
            output += line
        timer.cancel()
    if ended.is_set():
        output += f"it was ended after {duration(seconds or 0)}\n"
    return process.returncode, output
