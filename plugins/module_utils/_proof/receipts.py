# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Receipts: the deployment of a service on a host, and its measured figures.

A receipt is C({schema: 1, service, cluster, rank, deployed, measured, baseline, fast_path}). Only C(deployed) (image, argv, env names,
revision ...), C(cluster) and C(rank) count as a change; they are deterministic. C(measured) are the latest figures, C(baseline) the
figures of the first proof of this deployment, so that a slow decline over many runs is noticed as well as a sudden drop.
C(benchmark), if any, is the last measurement of bench.yml with its own baseline (C(bench_compare.py)); a proof keeps it. C(start) is
the memory that the engine took at its start, by term, with the identity of its launch; later plans use it (C(learned.py)).
C(fast_path) records the kernels of the last proof (C(fast_path.record)). C(speed) is the last measurement of a whole proof with its
verdict, and the first one of this deployment (C(speed_record)). C(kv_tiers) is that of C(kv_probe.Probe), kept with the deployment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .._common import reader
from .._common.findings import Finding
from .._common.foreign_text import parse_json

SCHEMA = 1

# Figure, worse direction, share of noise, absolute difference of noise, unit, fix.
# The shares are wide on purpose: one short request per run scatters, and false alarms cost more trust than late ones.
_TABLE = """
decode_tokens_per_second lower 0.20 0.5 tokens/s: check the GPU clock and power, swap in use, and what else runs on the host
ttft_seconds higher 1.00 1.0 s: check other programs of the host, and whether prefix caching is still on
warmup_seconds higher 1.00 60.0 s: check that the compile cache directory is still kept between starts
start_seconds higher 0.50 60.0 s: check the disk of the weights and that compile caches are kept between starts
residency_gib higher 0.05 2.0 GiB: see which of its terms grew (weights, inside, KV cache, outside); plan again with the measured value
kv_cache_tokens lower 0.05 1024.0 tokens: see which other programs use memory since the first start
"""
FIGURES: dict[str, tuple[str, float, float, str, str]] = {
    name: (worse, float(share), float(absolute), unit, fix)
    for name, worse, share, absolute, unit, fix in re.findall(
        r"^(\w+) (\w+) (\S+) (\S+) (\S+): (.*)$", _TABLE, re.MULTILINE
    )
}


@dataclass(frozen=True)
class Receipt:
    """A receipt; C(to_dict) is the content of its file. rank: None in receipts of versions without ranks and clusters."""

    service: str
    cluster: Mapping[str, Any] | None
    rank: int | None
    deployed: Mapping[str, Any]
    measured: Mapping[str, Any]
    baseline: Mapping[str, Any]
    fast_path: Mapping[str, Any] | None = None
    start: Mapping[str, Any] | None = None
    benchmark: Mapping[str, Any] | None = None
    speed: Mapping[str, Any] | None = None
    kv_tiers: Mapping[str, Any] | None = None

    @property
    def subject(self) -> dict[str, Any]:
        """The part that counts as a change."""
        part = {"cluster": self.cluster, "rank": self.rank or 0} if self.cluster else {}
        return {**self.deployed, **part}

    def to_dict(self) -> dict[str, Any]:
        """Return the content of its file, which is also the form of module results."""
        receipt = {"schema": SCHEMA, "service": self.service, "cluster": self.cluster, "rank": self.rank}
        receipt.update(deployed=self.deployed, measured=self.measured, baseline=self.baseline)
        if self.rank is None:
            receipt = {key: value for key, value in receipt.items() if key not in ("cluster", "rank")}
        more = {name: getattr(self, name) for name in ("fast_path", "start", "benchmark", "speed", "kv_tiers")}
        return {**receipt, **{key: value for key, value in more.items() if value is not None}}


def build(
    service: str,
    deployed: Mapping[str, Any],
    measured: Mapping[str, Any],
    previous: Receipt | None,
    cluster: Mapping[str, Any] | None = None,
    rank: int = 0,
    fast_path: Mapping[str, Any] | None = None,
    start: Mapping[str, Any] | None = None,
    speed: Mapping[str, Any] | None = None,
    kv_tiers: Mapping[str, Any] | None = None,
) -> Receipt:
    """Return the receipt to write; it keeps the previous baseline as long as the deployment is the same.

    :param deployed: C({image, model, vllm_version, argv, env})
    :param measured: figures by name, in the units of C(FIGURES)
    :param cluster: the service's cluster, None on one Spark
    :param start: of C(residency.start); None keeps the previous one, if the deployment is the same, as for C(speed) and C(kv_tiers)
    """
    receipt = Receipt(
        service, cluster, rank, deployed, measured, {}, fast_path or None, start or None, None, speed, kv_tiers
    )
    if previous is None:
        return replace(receipt, baseline=_figures(measured))
    same = previous.subject == receipt.subject
    benchmark = previous.benchmark
    if benchmark is not None and (not same or benchmark.get("stale")):
        # The benchmark measured an earlier deployment: its ratio does not apply to the present one.
        benchmark = {**benchmark, "ratio": None, "stale": True}
    return replace(
        receipt,
        baseline={**_figures(measured), **(previous.baseline if same else {})},
        start=receipt.start or (previous.start if same else None) or None,
        benchmark=benchmark,
        speed=speed or (previous.speed if same else None),
        kv_tiers=kv_tiers or (previous.kv_tiers if same else None),
    )


def _figures(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {name: measured[name] for name in FIGURES if isinstance(measured.get(name), (int, float))}


def with_benchmark(previous: Receipt, benchmark: Mapping[str, Any]) -> Receipt:
    """Return a receipt with another benchmark; everything else stays."""
    return replace(previous, benchmark={**benchmark, "stale": False})


def dump(receipt: Receipt) -> str:
    """Return the text of a receipt file."""
    return text_of(receipt.to_dict())


def text_of(value: Mapping[str, Any]) -> str:
    """Return a part of a receipt as text: sorted keys, so that equal receipts are equal files."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def load(text: str) -> Receipt:
    """Return the receipt in the text of its file. Raises ValueError with the problems."""
    content = reader.read(_FILE, parse_json(text, "the receipt"), "receipt")
    return reader.from_dict(Receipt, {"service": "", "deployed": {}, "measured": {}, "baseline": {}, **content})


_PART: dict[Any, Any] = {Any: Any}
_FILE = {
    "schema": reader.one_of(SCHEMA),
    "service?": str,
    "rank?": reader.Maybe(int),
    **reader.optional({"deployed": _PART, "measured": _PART, "baseline": _PART}),
    **reader.optional(
        {part: reader.Maybe(_PART) for part in ("cluster", "fast_path", "start", "benchmark", "speed", "kv_tiers")}
    ),
}


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Return the paths at which two nested values differ, like C(env.VLLM_USE_V1); lists are compared as wholes."""
    if isinstance(before, dict) and isinstance(after, dict):
        paths: list[str] = []
        for key in sorted(set(before) | set(after), key=str):
            where = f"{path}.{key}" if path else str(key)
            if key not in before or key not in after:
                paths.append(where)
            else:
                paths.extend(differences(before[key], after[key], where))
        return paths
    return [] if before == after else [path]


def drift(previous: Receipt | None, receipt: Receipt) -> list[Finding]:
    """Return a finding that names every key in which the deployment differs from the last receipt."""
    keys = differences(previous.subject, receipt.subject) if previous else []
    if not keys:
        return []
    message = f"{receipt.service} is deployed differently than its last receipt says: {', '.join(keys)}"
    fix = "nothing, if the change was meant; else compare the inventory with the receipt"
    return [Finding("receipt.drift", "info", message, fix, receipt.service, basis="measured")]


def regressions(previous: Receipt | None, receipt: Receipt) -> list[Finding]:
    """Return a warning for every figure that is worse than the baseline by more than its noise.

    For another deployment, the figures are compared with the last measurement of the previous receipt, and the message says so.
    """
    if previous is None:
        return []
    same, service = previous.subject == receipt.subject, receipt.service
    reference = previous.baseline if same else previous.measured
    since = "when this deployment was first proved" if same else "before the deployment was changed"
    findings = []
    for name, (worse, share, absolute, unit, fix) in FIGURES.items():
        old, new = reference.get(name), receipt.measured.get(name)
        if not isinstance(old, (int, float)) or not isinstance(new, (int, float)):
            continue
        loss = old - new if worse == "lower" else new - old
        if loss > absolute and loss > share * abs(old):
            percent = f" ({abs(new - old) / abs(old):.0%} {worse})" if old else ""
            message = f"{name} of {service} is {new:g} {unit}; it was {old:g} {unit} {since}{percent}"
            findings.append(Finding(f"receipt.{name}", "warning", message, fix, service, basis="measured"))
    return findings


def compare(previous: Receipt | None, receipt: Receipt) -> list[Finding]:
    """Return all findings of a new receipt against the previous one, C(drift) and C(regressions); C(residency.py) compares with the plan."""
    return drift(previous, receipt) + regressions(previous, receipt)
