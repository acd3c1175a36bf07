# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make speed-fit`: fit the constants of the speed model to published rates, and print how far it is off by class.

The errors are of rows that the fit has not seen: the rows are divided in two by model, and by source, each half is
fitted and the other one predicted. Nothing is fitted to a single row: rows of one model, source and number of Sparks weigh as one.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from common import ROOT, markdown_table, with_tables

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import quantization_of
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Refusal
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.releases import parse_release
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.weights import Split
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.constants import BUS, GB10, Constants
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.estimate import captured_sizes
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.reads import LaunchSettings, Reads, read_launch
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.time_model import (
    Drafting,
    Launch,
    decode_seconds,
    prefill_seconds,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.fp4_kernels import MARLIN, default_fp4_kernel

FIXTURES = ROOT / "tests" / "unit" / "plugins" / "fixtures"
PAGE = ROOT / "docs" / "speed.md"
MARKER = "<!-- speed: errors -->"
VERSION = "0.33.0"  # of the arithmetic; sizes that are read differ little between versions
LARGEST_ERROR = 0.35  # of one row in a fit, natural logarithm: a row that is far off does not pull the others
LONG_PROMPT = 2000  # tokens from which a prefill rate is one of long matrix products


@dataclass(frozen=True)
class Row:
    """A published figure with its launch."""

    values: Mapping[str, Any]
    launch: Launch

    def __getattr__(self, name: str) -> Any:
        return self.values.get(name)

    @property
    def group(self) -> tuple[str, str, int]:
        """Rows that weigh as one: of one model, source and number of Sparks."""
        return self.values["config_key"], self.values["source"].split()[0], self.values.get("nodes", 1)

    @property
    def length(self) -> float:
        """The mean context of the row, tokens."""
        return (self.values.get("prompt_tokens") or 0) + (self.values.get("output_tokens") or 0) / 2

    @property
    def stream_rate(self) -> float:
        """Measured tokens per second of one stream, 0 if the row has no rate."""
        streams = self.values.get("concurrency", 1)
        together = self.values.get("decode_tps_aggregate")
        return float(together / streams if streams > 1 and together else self.values.get("decode_tps_stream") or 0)

    @property
    def model_class(self) -> str:
        """Name the architecture."""
        stages = self.launch.reads.stages
        if any(stage.latent for stage in stages):
            return "MLA"
        moe = " MoE" if any(stage.experts for stage in stages) else ""
        return f"hybrid{moe or ' dense'}" if any(stage.recurrent for stage in stages) else moe.strip() or "dense"


def read_rows() -> list[Row]:
    """Return the published rows whose model can be read."""
    published = json.loads((FIXTURES / "speed_rows.json").read_text(encoding="utf-8"))["rows"]
    known = (values for values in published if values.get("config_key") and values["sure"] != "load only")
    return [Row(values, _launch(values)) for values in known]


def _launch(values: Mapping[str, Any]) -> Launch:
    linear = str(values.get("linear_backend") or "").lower()
    entry = _configs()[values["config_key"]]
    fp4 = linear or default_fp4_kernel(quantization_of(entry["config"], entry.get("quant_config"))[0])
    fast = "cutlass" in fp4 or "flashinfer" in fp4
    kernels = {
        "fp8": MARLIN if "marlin" in linear else "cutlass",
        "fp4": "b12x" if "b12x" in fp4 else "cutlass" if fast else MARLIN,
    }
    drafting = _drafting(values.get("spec") or {})
    tensor = values.get("tp", 1)
    reads = _reads(
        values["config_key"],
        tensor,
        values.get("pp", 1),
        bool(values.get("ep")),
        values.get("kv_dtype") or "auto",
    )
    chunk = values.get("max_num_batched_tokens") or 8192
    drafted, piecewise = drafting.tokens if drafting else 0, bool(values.get("piecewise"))
    captured = captured_sizes({}, reads.family, 1 if piecewise else 1 + drafted, drafted)
    captured = captured if values.get("engine", "vllm") == "vllm" else ()
    eager = bool(values.get("eager"))
    return Launch(reads, tensor, eager, kernels, chunk, drafting, captured=captured, piecewise=piecewise)


def _drafting(spec: Mapping[str, Any]) -> Drafting | None:
    """Return the speculative decoding of a row, None without a rate of acceptance."""
    if not isinstance(spec.get("accept"), (int, float)):
        return None
    is_mtp = spec["method"] == "mtp"
    # A DFlash drafter of these models has 2.2 GB, if the row does not say otherwise.
    size = None if is_mtp else spec.get("bytes", 2.2e9)
    return Drafting(spec["k"], spec["accept"], spec["k"] if is_mtp else 1, size)


@lru_cache(maxsize=512)
def _reads(key: str, tensor: int, pipeline: int, experts: bool, cache: str) -> Reads:
    entry = _configs()[key]
    for dtype in (cache, "fp8", "auto"):  # caches of forks count as FP8; of some families only one kind is known
        try:
            return read_launch(
                entry["config"],
                entry.get("quant_config"),
                LaunchSettings(
                    parse_release(VERSION),
                    Split(tensor, pipeline, experts),
                    kv_cache_dtype=dtype,
                    runtime_quantization=entry.get("runtime_quantization", ""),
                ),
            )
        except Refusal as refusal:
            if dtype == "auto":
                raise SystemExit(f"{key}: {refusal}") from refusal
    raise AssertionError


@lru_cache(maxsize=1)
def _configs() -> Any:
    return json.loads((FIXTURES / "speed_configs.json").read_text(encoding="utf-8"))


# Classes of rows -------------------------------------------------------------------------------------------------------


def _is_plain(row: Row) -> bool:
    """Tell whether a row is about decode without a drafter, measured in a way that counts."""
    kind, note = row.aggregate_kind or "", row.note or ""
    # Equal prompts touch the same experts, which makes a mixture two to three times faster than real work.
    is_equal = "same prompt" in kind or "benchy total" in kind
    is_rounded = "rounds up" in kind and row.stream_rate < 9
    return bool(row.stream_rate) and not row.spec and "sockets" not in note and not is_equal and not is_rounded


@dataclass(frozen=True)
class RowClass:
    """A class of rows for which errors are stated. predict, measure: tokens per second. names: the constants that it decides."""

    name: str
    holds: Callable[[Row], bool]
    predict: Callable[[Row, Constants], float]
    measure: Callable[[Row], float]
    names: tuple[str, ...]


def _one(row: Row) -> bool:
    return _is_plain(row) and row.nodes == 1 and row.concurrency == 1 and not row.eager


def _long(row: Row) -> bool:
    return bool(row.prefill_tps) and (row.prompt_tokens or 0) >= LONG_PROMPT


DECODE = (
    lambda row, constants: 1 / decode_seconds(row.launch, constants, row.concurrency or 1, row.length),
    lambda row: row.stream_rate,
)
PREFILL = (
    lambda row, constants: float(row.prompt_tokens / prefill_seconds(row.launch, constants, row.prompt_tokens)),
    lambda row: float(row.prefill_tps),
)
CLASSES = (
    RowClass(
        "decode, 1 stream, 1 Spark",
        _one,
        *DECODE,
        (
            "bandwidth",
            "bandwidth_quantised",
            "bandwidth_experts",
            "step",
            "layer",
            "moe_layer",
            "recurrent_layer",
        ),
    ),
    RowClass(
        "decode at 4k tokens or more",
        lambda row: _one(row) and (row.prompt_tokens or 0) >= 4000,
        *DECODE,
        ("bandwidth_cache",),
    ),
    RowClass(
        "prefill of 2k tokens or more, 1 Spark",
        lambda row: _long(row) and row.nodes == 1,
        *PREFILL,
        (
            "flops_bf16",
            "flops_fp8",
            "flops_fp8_marlin",
            "flops_4bit_marlin",
            "flops_experts",
            "flops_attention",
            "flops_attention_large",
            "flops_attention_triton",
            "chunk",
            "shape",
        ),
    ),
    RowClass(
        "experts of batches and drafts",
        lambda row: (
            row.concurrency * (1 + (row.launch.drafting.tokens if row.launch.drafting else 0)) > 1
            and not row.eager
            and any(stage.experts for stage in row.launch.reads.stages)
            and (_is_plain(row) or row.launch.drafting is not None)
            and row.stream_rate > 0
        ),
        *DECODE,
        ("alpha",),
    ),
    RowClass(
        "decode, 2 to 64 streams, 1 Spark",
        lambda row: _is_plain(row) and row.nodes == 1 and row.concurrency > 1 and not row.eager,
        *DECODE,
        ("bandwidth_batch",),
    ),
    RowClass(
        "decode, several Sparks, CUDA graphs",
        lambda row: _is_plain(row) and row.nodes > 1 and not row.eager,
        *DECODE,
        ("reduce_pair", "reduce_doubling"),
    ),
    RowClass(
        "decode, several Sparks, eager",
        lambda row: _is_plain(row) and row.nodes > 1 and bool(row.eager),
        *DECODE,
        ("eager_layer", "eager_recurrent"),
    ),
    RowClass(
        "decode with a drafter, acceptance known",
        lambda row: row.launch.drafting is not None and row.nodes == 1 and row.stream_rate > 0,
        *DECODE,
        ("draft",),
    ),
    RowClass("prefill of 2k tokens or more, several Sparks", lambda row: _long(row) and row.nodes > 1, *PREFILL, ()),
)


# Fit ---------------------------------------------------------------------------------------------------------------------


def error_of(row_class: RowClass, row: Row, constants: Constants) -> float:
    """Return the natural logarithm of predicted over measured."""
    return math.log(row_class.predict(row, constants) / row_class.measure(row))


def mean_error(row_class: RowClass, rows: Iterable[Row], constants: Constants) -> float:
    """Return the mean of the absolute errors, in which each model and source weighs the same."""
    groups: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        error = min(LARGEST_ERROR, abs(error_of(row_class, row, constants)))
        groups.setdefault(row.group, []).append(error)
    return statistics.mean(statistics.mean(errors) for errors in groups.values())


def fit(rows: list[Row], start: Constants = GB10) -> Constants:
    """Return the constants with the least errors: class by class, each constant by itself, in smaller and smaller steps."""
    constants = start
    for row_class in CLASSES:
        chosen = [row for row in rows if row_class.holds(row)]
        if chosen and row_class.names:
            constants = fit_class(row_class, chosen, constants)
    return constants


def fit_class(row_class: RowClass, rows: list[Row], constants: Constants) -> Constants:
    """Return the constants with the least errors in a class of rows."""
    best, factor = mean_error(row_class, rows, constants), 1.4
    while factor > 1.01:
        improved = False
        for name in row_class.names:
            for change in (factor, 1 / factor):
                value = getattr(constants, name) * change
                if (name == "alpha" and value > 1) or (name.startswith("bandwidth") and value > 0.96 * BUS):
                    continue
                tried = replace(constants, **{name: value})
                error = mean_error(row_class, rows, tried)
                if error < best - 1e-6:
                    best, constants, improved = error, tried, True
        factor = factor if improved else math.sqrt(factor)
    return constants


# Tables --------------------------------------------------------------------------------------------------------------


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value below which a share of all values is."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def errors(row_class: RowClass, rows: Iterable[Row], constants: Constants) -> list[float]:
    """Return the absolute errors of the rows of a class."""
    return [abs(error_of(row_class, row, constants)) for row in rows if row_class.holds(row)]


def unseen_errors(rows: list[Row], key: Callable[[Row], str]) -> dict[str, list[float]]:
    """Return errors by class of rows that the constants were not fitted to. key: property by which the rows are divided in two."""
    halves: tuple[list[Row], list[Row]] = ([], [])
    for row in rows:
        halves[zlib.crc32(key(row).encode()) % 2].append(row)
    found: dict[str, list[float]] = {row_class.name: [] for row_class in CLASSES}
    for fitted, other in (halves, halves[::-1]):
        constants = fit(fitted)
        for row_class in CLASSES:
            found[row_class.name] += errors(row_class, other, constants)
    return found


def describe(values: list[float]) -> str:
    """Return median and 80th percentile in percent."""
    return f"{100 * statistics.median(values):.1f} / {100 * quantile(values, 0.8):.1f}" if values else ""


def error_rows(rows: list[Row], constants: Constants, *unseen: Mapping[str, list[float]]) -> list[list[str]]:
    """Return a row of the table of errors for each class."""
    table = []
    for row_class in CLASSES:
        values = errors(row_class, rows, constants)
        cells = [describe(values), *(describe(part.get(row_class.name, [])) for part in unseen)]
        table.append([row_class.name, str(len(values)), *cells])
    for kind in sorted({row.model_class for row in rows}):
        values = errors(CLASSES[0], [row for row in rows if row.model_class == kind], constants)
        if values:
            table.append([f"1 stream, 1 Spark, {kind}", str(len(values)), describe(values), *([""] * len(unseen))])
    return table


def main() -> int:
    """Fit, print constants and errors, and write the errors to the page."""
    rows = read_rows()
    print(f"{'constant':24} {'in use':>10} {'fitted':>10}")
    for name, value in asdict(fit(rows)).items():
        print(f"{name:24} {getattr(GB10, name):10.4g} {value:10.4g}")
    unseen = [unseen_errors(rows, key) for key in (lambda row: row.group[0], lambda row: row.group[1])]
    table = error_rows(rows, GB10, *unseen)
    print("\nclass, rows, error in percent (median / 80th percentile): all rows, unseen model, unseen source")
    for cells in table:
        print(f"{cells[0]:46} {cells[1]:>4} " + "   ".join(f"{cell:12}" for cell in cells[2:]))
    page = markdown_table(("class", "rows", "all rows", "unseen model", "unseen source"), table)
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), MARKER, lambda _mark: page, 1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
