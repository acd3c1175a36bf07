# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules made of the table of reported failures (Kxx): one rule for each row of C(known_failures.ROWS) with C(when)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from .._vllm import known_failures
from .rulebook import REGISTERED, Launch, Rule, numbers

# vLLM's default; with it several requests run at once.
DEFAULT_SEQUENCES = 256


def _has_block_fp8(launch: Launch) -> bool:
    """Tell whether the weights are FP8 with a scale for each block, as fp8 and compressed-tensors checkpoints declare it."""
    groups = launch.quantization.get("config_groups")
    strategies = [
        (group.get("weights") or {}).get("strategy")
        for group in (groups.values() if isinstance(groups, Mapping) else ())
        if isinstance(group, Mapping)
    ]
    return "block" in strategies or (launch.checkpoint == "fp8" and bool(launch.quantization.get("weight_block_size")))


FACTS: dict[str, Callable[[Launch], bool]] = {
    "hybrid": lambda launch: launch.hybrid,
    "dense": lambda launch: launch.dense,
    "mtp": lambda launch: launch.method.endswith("mtp") and launch.spec.get("num_speculative_tokens") != 0,
    "drafts": lambda launch: bool(launch.method) and launch.method not in ("ngram", "ngram_gpu", "suffix"),
    "prefix_caching": lambda launch: launch.prefix_caching,
    "fp8_block": _has_block_fp8,
    "nvfp4_activations": lambda launch: (
        (launch.checkpoint == "modelopt_fp4" or "nvfp4-pack" in str(launch.quantization.get("format")))
        and not launch.weight_only
    ),
    "concurrent": lambda launch: launch.number("max-num-seqs", DEFAULT_SEQUENCES) > 1,
    "four_gpus": lambda launch: launch.number("tensor-parallel-size", 1) >= 4,
    "full_and_piecewise": lambda launch: (
        isinstance(config := launch.args.get("compilation-config"), Mapping)
        and str(config.get("cudagraph_mode")).upper() == "FULL_AND_PIECEWISE"
    ),
}
"""What a row may ask of a launch by name."""


def _has_option(launch: Launch, name: str, expected: Any) -> bool:
    value = launch.args.get(name)
    if expected is True:
        return value not in (None, False)
    return value in (expected if isinstance(expected, tuple) else (expected,))


def _has_variable(launch: Launch, name: str, part: str) -> bool:
    return part in launch.env.get(name, "")


def _check(row: Mapping[str, Any], launch: Launch) -> bool:
    """Tell whether a launch is of the versions and the kind of a row, and has no cure of it."""
    if "first" in row and not launch.within(row["first"], row.get("before", "999")):
        return False
    if "before" in row and not launch.before(row["before"]):
        return False
    condition, cures = row["when"], row.get("unless", {})
    architecture = condition.get("architecture")
    is_kind = (
        (architecture is None or any(name.startswith(architecture) for name in launch.architectures))
        and all(FACTS[name](launch) for name in condition.get("facts", ()))
        and all(_has_option(launch, name, value) for name, value in condition.get("args", {}).items())
        and all(_has_variable(launch, name, part) for name, part in condition.get("env", {}).items())
        and launch.sparks >= condition.get("nodes", 1)
    )
    return is_kind and not _is_cured(launch, cures)


def _is_cured(launch: Launch, cures: Mapping[str, Any]) -> bool:
    """Tell whether a launch already has one of the cures in C(unless) of a row."""
    package, bound = cures.get("package", ("", ""))
    pinned = launch.pinned().get(package)
    return (
        any(_has_option(launch, name, value) for name, value in cures.get("args", {}).items())
        or any(_has_variable(launch, name, part) for name, part in cures.get("env", {}).items())
        or (pinned is not None and numbers(pinned) < numbers(bound))
    )


REGISTERED.extend(
    Rule(
        id=row["id"],
        severity=row.get("severity", known_failures.SEVERITY[row["verdict"]]),
        title=row["title"],
        message=row["message"],
        fix=row["fix"],
        source=f"{row['source']} (read {row['date']})",
        check=partial(_check, row),
        needs_version="first" in row or "before" in row,
    )
    for row in known_failures.ROWS
    if "when" in row
)
