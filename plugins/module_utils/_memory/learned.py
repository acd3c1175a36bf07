# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine with measured terms of earlier starts in place of assumed terms.

A term of the same launch replaces the assumed one. A term of another length or batch is corrected by the computed difference and narrows
the assumed range. Open settings are solved before, from assumed terms: settings that followed measurements would restart engines after
their first proof. All of vLLM's checks stay unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from .._common.sizes import GIB
from .._vllm.overheads import LEVELS, OVERHEADS
from .engine import MEASURED, NARROWED, Engine
from .kv_plan import PlanFailure
from .layers import Refusal
from .service_input import ServiceInput, Start

INSIDE_NOISE_GIB = 0.25
"""Noise between two starts of one launch inside the request: vLLM counts other allocations of the host during its start."""
OUTSIDE_NOISE_GIB = 0.5
"""Noise outside of the request, which is the difference of two measurements of the whole host."""

_INSIDE = (*(key for key in OVERHEADS if key.startswith("inside_")), "graphs_share")
_OUTSIDE = ("outside_gib", "kept_share", "graphs_share")


def apply_starts(
    engine: Engine, item: ServiceInput, length: int, sequences: int, resolved: Callable[[ServiceInput], Engine]
) -> Engine:
    """Return an engine with the measured terms of its service; what the inventory states (C(weights_gib), overheads) stays."""
    if engine.plan is None or not item.starts:
        return engine
    batch = engine.plan.settings.max_num_batched_tokens
    sizes = (length, batch, sequences)

    def distance(start: Start) -> tuple[float, bool]:
        """Return the distance of a start: the factors between batches, requests and lengths; the batch has the largest weight."""
        factors = (abs(math.log(max(1, mine) / max(1, other))) for mine, other in zip(sizes, start.sizes))
        length_factor, batch_factor, sequences_factor = factors
        return 100 * batch_factor + 10 * sequences_factor + length_factor, not start.exact

    start = min(item.starts, key=distance)
    same_launch = start.exact and start.sizes == sizes
    measured_engine = _with_weights(engine, item, start) if start.exact else engine
    if "inside_gib" not in item.overheads and not _has_override(item, _INSIDE):
        measured_engine = _with_inside(measured_engine, item, start, same_launch, sizes, resolved)
    if same_launch and start.outside is not None and engine.pool is None and not _has_override(item, _OUTSIDE):
        measured_engine = _with_outside(measured_engine, start.outside)
    return measured_engine


def _has_override(item: ServiceInput, keys: tuple[str, ...]) -> bool:
    """Tell whether the input sets one of these overheads."""
    return any(item.overheads[key] != OVERHEADS[key] for key in keys if key in item.overheads)


def _with_weights(engine: Engine, item: ServiceInput, start: Start) -> Engine:
    """Take the loaded weights. The planned drafter is subtracted from them, as vLLM prints only the sum."""
    if item.weights_gib is not None or item.tensors is not None or item.draft_weights_gib is not None:
        return engine
    loaded = int(start.weights * GIB) - engine.draft
    if loaded <= 0:
        return engine
    more = loaded - engine.weights
    return replace(
        engine,
        weights=loaded,
        load_peak=max(loaded, engine.load_peak + more),
        load_layerwise=max(loaded, engine.load_layerwise + more),
        weights_from=MEASURED,
    )


def _with_inside(
    engine: Engine,
    item: ServiceInput,
    start: Start,
    same_launch: bool,
    sizes: tuple[int, int, int],
    resolved: Callable[[ServiceInput], Engine],
) -> Engine:
    """Take the measured memory inside the request. The error of stated weights counts as inside, because only the sum was measured."""
    off = start.weights * GIB - engine.weights - engine.draft
    low, high = (size * GIB + off for size in start.inside)
    typical, noise = (low + high) / 2, INSIDE_NOISE_GIB * GIB
    if start.sizes != sizes:
        length, batch, sequences = start.sizes
        args = {"max-model-len": length, "max-num-batched-tokens": batch, "max-num-seqs": sequences}
        try:
            at = resolved(replace(item, starts=(), args={**item.args, **args}))
        except (Refusal, PlanFailure):  # an image was not asked about this length
            return engine
        more = [engine.inside[level] - at.inside[level] for level in LEVELS]
        low, typical, high = low + min(more), typical + more[LEVELS.index("typical")], high + max(more)
    if not same_launch:
        noise *= 2
    low, high = max(0.0, low - noise), max(0.0, high + noise)
    if not same_launch:
        least, most = max(low, engine.inside["low"]), min(high, engine.inside["high"])
        # A measured start outside of the assumed range replaces the range.
        low, high = (least, most) if least <= most else (low, high)
    inside = {"low": low, "typical": min(max(typical, low), high), "high": high}
    return replace(engine, inside=inside, overheads_from=MEASURED if same_launch else NARROWED)


def _with_outside(engine: Engine, measured: tuple[float, float]) -> Engine:
    """Take the measured memory outside of the request: with the new C(outside_gib) the typical residency equals the measured one."""
    kept_share = engine.overheads["kept_share"][LEVELS.index("typical")]
    # Caches that requests fill were empty when it was measured; they still come on top.
    buffered = engine.buffered("typical", at_start=True)
    beside = engine.launch_outside.get("typical", 0.0)
    given_back = (1 - kept_share) * engine.inside["typical"]
    noise = OUTSIDE_NOISE_GIB
    low, high = measured
    values = [
        max(0.0, size + (given_back - beside - buffered) / GIB)
        for size in (low - noise, (low + high) / 2, high + noise)
    ]
    overheads = {**engine.overheads, "outside_gib": (values[0], values[1], values[2]), "kept_share": (kept_share,) * 3}
    buffers = tuple(
        replace(buffer, low=buffer.typical, high=buffer.typical) if buffer.at_start else buffer
        for buffer in engine.buffers
    )
    return replace(engine, overheads=overheads, launch_outside=dict.fromkeys(LEVELS, beside), buffers=buffers)
