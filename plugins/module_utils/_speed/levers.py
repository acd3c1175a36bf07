# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options that would make a launch faster by published measurements, only where the launch does not have them. No Ansible.

C(lever_texts.py) reads the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .._vllm.fp4_kernels import MARLIN
from .._vllm.launch import parse
from .._vllm.versions import parse_version
from .estimate import SpeedInput
from .lever_texts import rows
from .reads import Stage


@dataclass(frozen=True)
class LaunchFacts:
    """A launch as conditions see it. streams: C(max-num-seqs). length: C(max-model-len). args: by vLLM's long names."""

    service: SpeedInput
    args: Mapping[str, Any]
    env: Mapping[str, Any]
    version: str
    streams: int
    length: int

    @property
    def numbers(self) -> dict[str, int]:
        """The figures that C(least) and C(most) bound."""
        return {
            "chunk": self.service.launch.chunk,
            "streams": self.streams,
            "length": self.length,
            "drafted": self.service.drafted,
            "sparks": self.service.joined,
        }

    @property
    def last(self) -> Stage:
        """The last pipeline stage, which has the output head."""
        return self.service.reads.stages[-1]


def _compilation(launch: LaunchFacts) -> Mapping[str, Any]:
    config = launch.args.get("compilation-config")
    return config if isinstance(config, Mapping) else {}


def _runs_marlin(launch: LaunchFacts, name: str) -> bool:
    has_format = any(stage.flops.get(name) for stage in launch.service.reads.stages)
    return bool(has_format) and launch.service.launch.kernels.get(name) == MARLIN


FACTS: dict[str, Callable[[LaunchFacts], bool]] = {
    "eager": lambda launch: launch.service.launch.eager,
    "piecewise": lambda launch: (
        not launch.service.launch.eager and str(_compilation(launch).get("cudagraph_mode") or "").upper() == "PIECEWISE"
    ),
    "flashinfer": lambda launch: str(launch.args.get("attention-backend") or "").upper() == "FLASHINFER",
    "uncaptured": lambda launch: (
        not launch.service.launch.eager
        and not _compilation(launch).get("cudagraph_capture_sizes")
        and launch.streams * (1 + launch.service.drafted) not in launch.service.launch.captured
    ),
    "fp8_marlin": lambda launch: _runs_marlin(launch, "fp8"),
    "fp4_marlin": lambda launch: _runs_marlin(launch, "fp4"),
    "experts_4bit": lambda launch: any(stage.expert_bits == 4 for stage in launch.service.reads.stages),
    "head_16bit": lambda launch: launch.last.head_flops > 0 and launch.last.head > 0.9 * launch.last.head_flops,
    "own_drafter": lambda launch: launch.service.reads.draft is not None,
    "deepseek_v4": lambda launch: launch.service.reads.is_compressed,
    "tensors": lambda launch: launch.service.launch.ranks > 1,
    "pipeline": lambda launch: len(launch.service.reads.stages) > 1 and launch.service.launch.ranks == 1,
}
"""Conditions of levers.yml by name."""


def missing_levers(
    service: SpeedInput, args: Mapping[str, Any], env: Mapping[str, Any], streams: int, length: int
) -> list[str]:
    """Return the names of the levers that a launch with so many requests at a time and such a longest context does not have."""
    launch = LaunchFacts(service, parse(dict(args)).args, env, service.item.vllm_version, streams, length)
    return [name for name, row in rows().items() if _applies(row["when"], launch)]


def _applies(when: Mapping[str, Any], launch: LaunchFacts) -> bool:
    numbers = launch.numbers
    version, bound = parse_version(launch.version), parse_version(when.get("before", ""))
    return (
        all(FACTS[name](launch) for name in when.get("facts", ()))
        and all(launch.args.get(name) == value for name, value in when.get("args", {}).items())
        and all(str(launch.env.get(name)) == value for name, value in when.get("env", {}).items())
        and all(numbers[name] >= bound for name, bound in when.get("least", {}).items())
        and all(numbers[name] <= bound for name, bound in when.get("most", {}).items())
        and (bound is None or (version is not None and version < bound))
    )
