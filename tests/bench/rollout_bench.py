# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time rollouts over many hosts that are folders, have two controllers at work at once, and cut runs at random points.

    python tests/bench/rollout_bench.py --hosts 100 --cuts 50 --seed 1

Plans, order, decisions and records are the real ones; hosts are played (tests/unit/plugins/rollout_fixture.py), so the
figures are the controller's time, without images, weights or engines. A tenth of the hosts are in pairs. A cut run is killed with
all its children after a random share of the time of a whole run; the next run has to bring every host to the desired state.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests/unit"), str(ROOT / "tests/unit/plugins")]

from rollout_fixture import BROKEN, HOSTS, NEW, OLD, Fleet, played

OTHER = f"{NEW}-2"
FORKS = "20"  # as in ansible.cfg
ALL_AT_ONCE: dict[str, Any] = {"spark_rollout_canary": "none", "spark_rollout_batch": "100%"}


def timed(fleet: Fleet, label: str, code: int, playbook: str, **variables: Any) -> float:
    """Run a playbook, print what it took, and return the seconds; ends the program when its exit code is another."""
    began = time.monotonic()
    exit_code, text = fleet.play(playbook, **variables)
    seconds = time.monotonic() - began
    if (exit_code == 0) != (code == 0):
        sys.exit(f"{label}: exit code {exit_code}\n{text[-4000:]}")
    print(f"{label:<58} {seconds:7.1f} s  {count(fleet)}", flush=True)
    return seconds


def count(fleet: Fleet) -> str:
    """Say how many hosts run what."""
    runs = list(fleet.runs().values())
    return ", ".join(f"{runs.count(tag)} {tag}" for tag in sorted(set(runs)))


def wrong(fleet: Fleet, image: str) -> list[str]:
    """Return the hosts that do not run an image as a proven generation."""
    problems = []
    for name in fleet.names:
        state = json.loads((fleet.folder / name / "state.json").read_text(encoding="utf-8"))
        now = next(generation for generation in state["made"] if generation["number"] == state["current"])
        applied = (fleet.folder / name / "applied").read_text(encoding="utf-8")
        if (applied, now["applied"], now["proven"]) != (image, image, True):
            problems.append(
                f"{name}: {applied}, generation {now['number']} of {now['applied']}, proven: {now['proven']}"
            )
    return problems


def rates(folder: Path, collections: Path, size: int) -> None:
    """Time the ways that a rollout goes."""
    names = [f"spark-{number:03}" for number in range(1, size + 1)]
    joined = names[: max(size // 10 // 2, 1) * 2]
    pairs = list(zip(joined[::2], joined[1::2]))
    fleet = Fleet(folder, collections, names, pairs)
    fleet.begin(OLD)
    print(f"{size} hosts, {len(pairs)} pairs among them, {os.cpu_count()} cores")
    timed(fleet, "a canary that fails goes back, nobody else is touched", 1, "rollout", image=BROKEN)
    broken = names[-1]
    label = f"{broken} of the last batch fails: its batch goes back"
    timed(fleet, label, 1, "rollout", image=BROKEN, breaks=[broken])
    elapsed = timed(fleet, "the rest of another change, canary and batches of a quarter", 0, "rollout", image=NEW)
    timed(fleet, "the same again", 0, "rollout", image=NEW)
    timed(fleet, "back to what each of them ran before", 0, "rollback", breaks=["none"])
    fleet.cut(elapsed / 2, "rollout", image=NEW)
    timed(fleet, f"resumed, a run that was killed after {elapsed / 2:.0f} s ({count(fleet)})", 0, "rollout", image=NEW)
    if problems := wrong(fleet, NEW):
        sys.exit("\n".join(problems))


def controllers(folder: Path, collections: Path) -> None:
    """Have two controllers at work at once: both are refused, nothing of it is proven, and the next run ends right."""
    fleet = Fleet(folder, collections)
    fleet.begin(OLD)
    ended = fleet.together("rollout", *({"image": image, **ALL_AT_ONCE} for image in (NEW, OTHER)))
    print(
        f"two controllers at once, {len(HOSTS)} hosts: exit codes {', '.join(str(code) for code, _text in ended)}; {count(fleet)}"
    )
    for code, text in ended:
        if code == 0 or "changed this host too" not in text:
            sys.exit(f"a controller was not refused: exit code {code}\n{text[-4000:]}")
    timed(fleet, "one of them again", 0, "rollout", image=NEW)
    if problems := wrong(fleet, NEW):
        sys.exit("\n".join(problems))


def cuts(folder: Path, collections: Path, number: int, seed: int) -> None:
    """Kill runs at random points; each next one has to end right."""
    rng = random.Random(seed)
    fleet = Fleet(folder, collections)
    fleet.begin(OLD)
    elapsed = timed(fleet, f"{len(HOSTS)} hosts at once", 0, "rollout", image=NEW, **ALL_AT_ONCE)
    print(f"{number} runs that are cut, seed {seed}, with a canary and then in one batch")
    under_way, resumed = 0, 0.0
    for turn in range(number):
        image = (OLD, NEW)[turn % 2]
        seconds = rng.uniform(0.1, 1.0) * elapsed
        how = ALL_AT_ONCE if turn % 4 < 2 else {}
        under_way += fleet.cut(seconds, "rollout", image=image, **how)
        began = time.monotonic()
        code, text = fleet.play("rollout", image=image, **how)
        resumed += time.monotonic() - began
        if code or wrong(fleet, image):
            sys.exit(
                f"cut {turn} after {seconds:.2f} s, seed {seed}: exit code {code}\n"
                + "\n".join(wrong(fleet, image))
                + text[-4000:]
            )
    print(
        f"{under_way} were under way; every next run ended with all hosts at what was wanted, proven, after {resumed / number:.1f} s "
        "on average"
    )


def main() -> None:
    """Run the requested measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--cuts", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["ANSIBLE_FORKS"] = FORKS
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        collections = played(place / "collections")
        for name in ("fleet", "both", "cut"):
            (place / name).mkdir()
        if options.hosts:
            rates(place / "fleet", collections, options.hosts)
        controllers(place / "both", collections)
        if options.cuts:
            cuts(place / "cut", collections, options.cuts, options.seed)


if __name__ == "__main__":
    main()
