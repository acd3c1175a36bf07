# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Receipts: what was deployed on a host, and how it measured there.

A receipt is C({schema: 1, service, cluster, rank, deployed, measured, baseline, fast_path}). C(deployed) is deterministic (image,
argv, env names, revision ...); with C(cluster) and C(rank), which say of what the service is a part on this host, it is all
that counts as a change. C(measured) are the latest figures; C(baseline) those of the first proof of this deployment, so
that a slow slide over many runs is seen as well as a sudden drop. C(benchmark), where there is one, is what bench.yml
measured last with its own baseline (C(bench_compare.py)); a proof keeps it. C(start) is what the engine took at its start, term by term, with
what tells its launch from others: plans to come go by it (C(learned.py)). C(fast_path) says which kernels ran at the last
proof (C(fast_path.record)).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._common.findings import Finding

SCHEMA = 1

# figure -> (which way is worse, share that is noise, absolute difference that is noise, unit, what to look at).
# The shares are wide on purpose: one short request per run scatters, and false alarms cost more trust than late ones.
FIGURES: dict[str, tuple[str, float, float, str, str]] = {
    "decode_tokens_per_second": (
        "lower",
        0.20,
        0.5,
        "tokens/s",
        "check the GPU clock and power, swap in use, and what else runs on the host",
    ),
    "ttft_seconds": (
        "higher",
        1.00,
        1.0,
        "s",
        "check what else runs on the host and whether prefix caching is still on",
    ),
    "warmup_seconds": (
        "higher",
        1.00,
        60.0,
        "s",
        "check that the compile cache directory is still kept between starts",
    ),
    "start_seconds": (
        "higher",
        0.50,
        60.0,
        "s",
        "check the disk that holds the weights and that compile caches are kept between starts",
    ),
    "residency_gib": (
        "higher",
        0.05,
        2.0,
        "GiB",
        "see which of its terms grew (weights, inside, KV cache, outside stand beside it); plan again with the measured one",
    ),
    "kv_cache_tokens": (
        "lower",
        0.05,
        1024.0,
        "tokens",
        "see what else holds memory on the host since the first start",
    ),
}


def subject(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a receipt that counts as a change. Receipts from before there were ranks are of whole services."""
    subject = dict(receipt["deployed"])
    if receipt.get("cluster"):
        subject.update({"cluster": receipt["cluster"], "rank": receipt.get("rank", 0)})
    return subject


def build(
    service: str,
    deployed: dict[str, Any],
    measured: dict[str, Any],
    previous: dict[str, Any] | None,
    cluster: dict[str, Any] | None = None,
    rank: int = 0,
    fast_path: dict[str, Any] | None = None,
    start: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the receipt to write; the baseline of the one before is kept while what is deployed is the same.

    :param service: its name
    :param deployed: C({image, model, vllm_version, argv, env})
    :param measured: figures by name, as C(FIGURES) has their units
    :param previous: the receipt before, None for the first
    :param cluster: the service's cluster, None on one Spark
    :param rank: of the service on this host
    :param fast_path: of C(fast_path.record)
    :param start: of C(residency.start); where this proof could not tell, that of the one before is kept while nothing else is deployed
    :returns: the receipt
    """
    receipt = {"schema": SCHEMA, "service": service, "cluster": cluster, "rank": rank, "deployed": deployed}
    same = previous is not None and subject(previous) == subject(receipt)
    baseline = dict(previous["baseline"]) if same and previous is not None else {}
    for name in FIGURES:
        if isinstance(measured.get(name), (int, float)) and name not in baseline:
            baseline[name] = measured[name]
    receipt.update(measured=measured, baseline=baseline)
    if fast_path:
        receipt["fast_path"] = fast_path
    start = start or ((previous or {}).get("start") if same else None)
    if start:
        receipt["start"] = start
    benchmark = (previous or {}).get("benchmark")
    if isinstance(benchmark, dict):
        # What is deployed now was not what was measured: the ratio says nothing about it until it is measured.
        stale = not same or bool(benchmark.get("stale"))
        receipt["benchmark"] = {**benchmark, "ratio": None, "stale": True} if stale else benchmark
    return receipt


def with_benchmark(previous: dict[str, Any], benchmark: dict[str, Any]) -> dict[str, Any]:
    """Return a receipt with what bench.yml measured; everything else stays."""
    return {**previous, "benchmark": {**benchmark, "stale": False}}


def dump(receipt: dict[str, Any]) -> str:
    """Return the text of a receipt file: sorted keys, so that equal receipts are equal files."""
    return json.dumps(receipt, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def load(text: str) -> dict[str, Any]:
    """Parse the text of a receipt file. Raises ValueError saying what is wrong with it."""
    receipt = json.loads(text)
    if not isinstance(receipt, dict):
        raise ValueError("it is not a JSON object")
    if receipt.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {receipt.get('schema')!r}, expected {SCHEMA}")
    for part in ("deployed", "measured", "baseline"):
        if not isinstance(receipt.setdefault(part, {}), dict):
            raise ValueError(f"its {part} is not an object")
    if not isinstance(receipt.get("benchmark", {}), dict):
        raise ValueError("its benchmark is not an object")
    return receipt


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Name the paths at which two nested values differ, like C(env.VLLM_USE_V1); lists are compared as wholes.

    :param before: plain data
    :param after: plain data
    :param path: where they stand, to begin the paths with
    :returns: paths, none where they are equal
    """
    if isinstance(before, dict) and isinstance(after, dict):
        found: list[str] = []
        for key in sorted(set(before) | set(after), key=str):
            where = f"{path}.{key}" if path else str(key)
            if key not in before or key not in after:
                found.append(where)
            else:
                found.extend(differences(before[key], after[key], where))
        return found
    return [] if before == after else [path]


def drift(previous: dict[str, Any] | None, receipt: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a finding when what is deployed is not what the last receipt says, naming every key that differs."""
    if previous is None:
        return []
    service = receipt["service"]
    keys = differences(subject(previous), subject(receipt))
    if not keys:
        return []
    return [
        Finding(
            rule="receipt.drift",
            severity="info",
            service=service,
            message=f"{service} is deployed differently than its last receipt says: {', '.join(keys)}",
            fix="nothing, if the change was meant; else compare the inventory with the receipt",
            basis="measured",
        ).to_dict()
    ]


def regressions(
    previous: dict[str, Any] | None, measured: dict[str, Any], service: str, same: bool
) -> list[dict[str, Any]]:
    """Return a warning for every figure that is worse than the baseline by more than its noise.

    :param previous: the receipt before, None for the first
    :param measured: figures by name
    :param service: its name
    :param same: whether what is deployed is unchanged; if not, the comparison is with the last measurement and
        says so
    :returns: findings as plain dicts
    """
    if previous is None:
        return []
    reference = previous["baseline"] if same else previous["measured"]
    since = "when this deployment was first proved" if same else "before the deployment was changed"
    found = []
    for name, (worse, share, absolute, unit, fix) in FIGURES.items():
        old, new = reference.get(name), measured.get(name)
        if not isinstance(old, (int, float)) or not isinstance(new, (int, float)):
            continue
        loss = old - new if worse == "lower" else new - old
        if loss > absolute and loss > share * abs(old):
            percent = f" ({abs(new - old) / abs(old):.0%} {worse})" if old else ""
            found.append(
                Finding(
                    rule=f"receipt.{name}",
                    severity="warning",
                    service=service,
                    message=f"{name} of {service} is {new:g} {unit}; it was {old:g} {unit} {since}{percent}",
                    fix=fix,
                    basis="measured",
                ).to_dict()
            )
    return found


def compare(previous: dict[str, Any] | None, receipt: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all findings of a new receipt against the previous one: C(drift) and C(regressions).

    What the plan expects is compared elsewhere (C(residency.py)).
    """
    same = previous is not None and subject(previous) == subject(receipt)
    return drift(previous, receipt) + regressions(previous, receipt["measured"], receipt["service"], same)
