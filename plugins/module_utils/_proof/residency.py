# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the memory that a running engine took, by its start-up lines, with the plan term by term.

vLLM prints the size of its weights and of its KV cache; the requested memory minus both is the overhead inside. The memory
that the host lost between the gate of the unit and the first answer is the residency; residency minus requested memory is the
overhead outside. A term that differs names the override that corrects the next plan.

Each rank of an engine that spans hosts is compared on its host. Its workers print the memory there; only the first rank prints
the figures of the whole engine (tokens, concurrency).

The texts come from vLLM 0.16, 0.19 to 0.23, 0.27 to 0.30, 0.32 and 0.33 (C(vllm/v1/worker), C(vllm/v1/core)); no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common.findings import Finding
from .._common.sizes import GIB
from .._runtime import start_stages
from .._vllm.overheads import LEVELS, OVERHEADS
from .._vllm.versions import parse_version

# A difference is reported above a tenth of the planned figure and above the noise. vLLM prints hundredths of a GiB; the noise
# comes from the momentary use of the host, most of all for differences between two moments.
SHARE = 0.10
NOISE = {"GiB": 0.25, "tokens": 0.0, "requests": 0.0}
HOST_NOISE_GIB = 0.5

NOT_SAID = "the start-up lines do not say it"
OF_FIRST_RANK = "only the first rank of an engine says it, see the head's"

# The start-up lines -------------------------------------------------------------------------------------------------

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# (EngineCore_DP0 pid=83), (Worker_TP1 pid=90), and Ray's (RayWorkerProc pid=90, ip=10.0.0.2) before them.
_PREFIX = re.compile(r"\s*\((?P<process>[A-Za-z][\w.:-]*) pid=\d+(?:, ip=(?P<ip>[^)]+))?\)")

_NUMBER = r"(-?[\d.]+)"
# figure -> the text around it. Figures of one process; of a figure that is printed twice the last one counts.
_OF_PROCESS = {
    **start_stages.SAID,
    # The older V2 model runner (vllm/v1/worker/gpu, up to 0.27) leaves the word "memory" out.
    "weights_gib": re.compile(rf"Model loading took {_NUMBER} GiB (?:memory )?and"),
    "load_seconds": re.compile(rf"Model loading took \S+ GiB (?:memory )?and {_NUMBER} seconds"),
    "kv_cache_gib": re.compile(rf"Available KV cache memory: {_NUMBER} GiB"),
    "graphs_estimate_gib": re.compile(rf"Estimated CUDA graph memory: {_NUMBER} GiB"),
    "graphs_gib": re.compile(rf"Graph capturing finished in \S+ secs, took {_NUMBER} GiB"),
    # Printed after graphs are captured; 0.33 prints weights and memory outside of torch as one figure.
    "peak_gib": re.compile(
        rf"Actual usage is \S+ GiB for (?:weight|consumed memory \([^)]*\)), {_NUMBER} GiB for peak activation"
    ),
    "non_torch_gib": re.compile(rf"GiB for peak activation, {_NUMBER} GiB for non-torch memory"),
    "graphs_seconds": re.compile(rf"Graph capturing finished in {_NUMBER} secs"),
    "init_seconds": re.compile(rf"init engine \(profile, create kv cache, warmup model\) took {_NUMBER} s"),
    # kv-cache-memory-bytes: the size is configured, not derived.
    "kv_cache_told_gib": re.compile(
        rf"reserved {_NUMBER} GiB memory for KV Cache as specified by kv_cache_memory_bytes"
    ),
}
_TOKENS = re.compile(r"\b([A-Z]+)(?: \+ host)? KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(rf"Maximum concurrency for ([\d,]+) tokens per request: {_NUMBER}x")
_BLOCK = re.compile(r"Setting attention block size to (\d+) tokens")
_VERSIONS = (
    re.compile(r"Initializing a V1 LLM engine \(v(\d[\w.+-]*)\)"),
    re.compile(r"vLLM API server version (\d[\w.+-]*)"),
    re.compile(r"Launching vLLM \(v(\d[\w.+-]*)\) headless"),  # ranks behind the first one
    re.compile(r"█ +version (\d+\.\d+[\w.+-]*)\s*$"),  # next to the drawing of the name
)
_UTILIZATION = re.compile(rf"non-default args: .*'gpu_memory_utilization': {_NUMBER}")
# Only the CPU backend has these; up to 0.29 it says "GPU KV cache size" like all others.
_CPU = re.compile(r"\[cpu_(?:worker|model_runner)\.py:|Explicitly set \(\S+ GiB for KV cache")


@dataclass
class StartLog:
    """The figures in the start-up lines of one engine; C(None) for missing ones.

    peak_gib, non_torch_gib: peak of torch without the weights, and memory outside of torch.
    Figures of several ranks on this host: the largest weights and times, the smallest KV cache (vLLM uses the smallest too).
    tokens_count: C(blocks) if the line of the KV cache counts the tokens of its blocks (up to 0.20.0; more than fit in models
    with several kinds of layers); C(requests) if it is concurrency times length.
    """

    version: str | None = None
    device: str | None = None
    ranks: int = 0
    utilization: float | None = None
    weights_gib: float | None = None
    load_seconds: float | None = None
    read_seconds: float | None = None
    kv_cache_gib: float | None = None
    kv_cache_told_gib: float | None = None
    graphs_estimate_gib: float | None = None
    graphs_gib: float | None = None
    peak_gib: float | None = None
    non_torch_gib: float | None = None
    graphs_seconds: float | None = None
    compile_seconds: float | None = None
    init_seconds: float | None = None
    block_size: int | None = None
    kv_cache_tokens: int | None = None
    tokens_count: str | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None

    def complete(self, rank: int) -> bool:
        """Whether the lines of the start of a rank are complete; only the first rank counts tokens."""
        if rank == 0:
            return self.kv_cache_tokens is not None
        return any(getattr(self, name) is not None for name in _OF_PROCESS)


def _parse_integer(text: str) -> int:
    return int(text.replace(",", ""))


def _counts(version: str | None) -> str | None:
    """Return how a release counts the tokens of the KV cache (C(StartLog.tokens_count)), like C(KVPlan.printed_tokens).

    None for a version whose memory is not planned. C(KVPlan) is not imported, since its module would be sent to the host.
    """
    release = parse_version(version or "")
    if release is None or not (0, 15) <= release.release < (1,):
        return None
    return "requests" if release.release >= (0, 20, 1) else "blocks"


def parse_log(lines: Sequence[str], workers: Sequence[str] = ()) -> StartLog:
    """Read the start-up lines of one engine from the logs of its containers; other lines are skipped.

    :param lines: of the containers. Lines that Ray copied from another host (C(ip=)) are skipped: they report memory of that host.
    :param workers: lines of Ray's worker processes on this host. They replace the copies in the engine's log, where Ray prints one
        line for several that differ only in figures, possibly of another host.
    """
    log = StartLog()
    by_process: dict[str, dict[str, float]] = {}
    cpu = False
    for process, line in _lines_of_host(lines, workers):
        cpu = cpu or bool(_CPU.search(line))
        _read_process(by_process.setdefault(process, {}), line)
        cpu = _read_engine(log, line) or cpu
    if any(name in figures for figures in by_process.values() for name in ("weights_gib", "kv_cache_gib")):
        log.device = "gpu"
    if cpu:
        log.device = "cpu"
    log.ranks = sum("weights_gib" in figures for figures in by_process.values())
    for name in _OF_PROCESS:
        values = [figures[name] for figures in by_process.values() if name in figures]
        if values:
            setattr(log, name, min(values) if name.startswith("kv_cache") else max(values))
    if log.kv_cache_tokens is not None:
        log.tokens_count = _counts(log.version)
    return log


def _read_process(figures: dict[str, float], line: str) -> None:
    """Read the figures of one process."""
    for name, pattern in _OF_PROCESS.items():
        match = pattern.search(line)
        value = start_stages.number(match.group(1)) if match else None
        if value is not None:
            # Each part of a model (backbone, encoder, drafter) is compiled separately.
            figures[name] = figures.get(name, 0.0) + value if name == "compile_seconds" else value


def _lines_of_host(lines: Sequence[str], workers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines of processes on this host without colours, each with its process."""
    of_workers = [_COLOUR.sub("", line) for line in workers]
    reported = any(pattern.search(line) for line in of_workers for pattern in _OF_PROCESS.values())
    for line in [*of_workers, *(_COLOUR.sub("", line) for line in lines)]:
        process, elsewhere, copied = _origin(line)
        if not elsewhere and not (copied and reported):
            yield process, line


def _origin(line: str) -> tuple[str, bool, bool]:
    """Return the process of a line, whether it runs on another host, and whether Ray copied the line."""
    process, elsewhere, copied = "", False, False
    match = _PREFIX.match(line)
    while match:
        process = match["process"]
        elsewhere = elsewhere or match["ip"] is not None
        copied = copied or process.startswith("Ray")
        match = _PREFIX.match(line, match.end())
    return process, elsewhere, copied


def _read_engine(log: StartLog, line: str) -> bool:
    """Read the figures that all processes of an engine share; returns whether the line proves that it runs on the CPU."""
    cpu = False
    match = _TOKENS.search(line)
    if match:
        cpu = match.group(1) == "CPU"
        log.kv_cache_tokens = _parse_integer(match.group(2))
        log.device = "gpu"
    match = _CONCURRENCY.search(line)
    if match:
        log.max_model_len, log.max_concurrency = _parse_integer(match.group(1)), start_stages.number(match.group(2))
    match = _BLOCK.search(line)
    if match:
        log.block_size = int(match.group(1))
    match = _UTILIZATION.search(line)
    if match:
        log.utilization = start_stages.number(match.group(1))
    if log.version is None:
        match = next((match for pattern in _VERSIONS if (match := pattern.search(line))), None)
        log.version = match.group(1) if match else None
    return cpu


# Memory of the host -------------------------------------------------------------------------------------------------


@dataclass
class HostUse:
    """Memory of the host before and after a start; C(None) with a reason for unknown figures.

    taken_gib: MemAvailable at the gate of the unit minus MemAvailable after the model's first answer.
    system_gib: used at the gate by everything except other engines, whose number is C(beside).
    gpu_gib: present GPU memory of the container's processes.
    """

    taken_gib: float | None = None
    system_gib: float | None = None
    beside: int = 0
    start_seconds: float | None = None
    gpu_gib: float | None = None
    reason: str = ""


def read_start(record: Any, gpu_gib: float | None, reason: str = "") -> HostUse:
    """Evaluate the record that the helper of the units keeps of a start (C(spark_unit.py)).

    :param record: C({gate: {total_gib, available_gib}, beside: {unit: gib}, ready: {available_gib}, start_seconds}) or None
    :param gpu_gib: GPU memory that the unit holds, GiB
    :param reason: for a missing record, if known
    """
    use = HostUse(gpu_gib=gpu_gib)
    gate, ready = (record.get(key) if isinstance(record, Mapping) else None for key in ("gate", "ready"))
    if not isinstance(gate, Mapping):
        use.reason = reason or "there is no record of its start; it is made at the next one"
        return use
    beside = record.get("beside")
    total, before = gate.get("total_gib"), gate.get("available_gib")
    if isinstance(total, (int, float)) and isinstance(before, (int, float)) and isinstance(beside, Mapping):
        use.system_gib, use.beside = round(total - before - sum(beside.values()), 2), len(beside)
    if not isinstance(ready, Mapping):
        use.reason = "it is not ready yet"
        return use
    after = ready.get("available_gib")
    if isinstance(before, (int, float)) and isinstance(after, (int, float)):
        use.taken_gib = round(before - after, 2)
    if isinstance(record.get("start_seconds"), (int, float)):
        use.start_seconds = round(float(record["start_seconds"]), 1)
    return use


# The comparison -----------------------------------------------------------------------------------------------------


@dataclass
class Term:
    """One term of the plan with its measured value.

    verdict: C(as_planned) within a tenth; C(within_range) between the planned low and high; C(over) or C(under) outside;
    C(not_planned), C(not_comparable) or C(unknown) with C(reason).
    override: settings of the inventory with which the plan has the measured figure.
    """

    unit: str
    planned: dict[str, float] | None = None
    measured: float | None = None
    off_percent: float | None = None
    verdict: str = "unknown"
    reason: str = ""
    override: dict[str, Any] = field(default_factory=dict)

    @property
    def off(self) -> bool:
        """Whether the difference is reported."""
        return self.verdict in ("within_range", "over", "under")

    @property
    def difference(self) -> float:
        """Measured minus planned (typical)."""
        return (self.measured or 0.0) - (self.planned or {}).get("typical", 0.0)


def _term(
    unit: str, planned: Mapping[str, float] | float | None, measured: float | None, reason: str = "", noise: float = 0.0
) -> Term:
    """Judge one term. reason: why it was not measured. noise: in its unit; 0 for the usual one."""
    term = Term(unit)
    if isinstance(planned, Mapping):
        if all(isinstance(planned.get(level), (int, float)) for level in LEVELS):
            term.planned = {level: round(float(planned[level]), 2) for level in LEVELS}
    elif planned is not None:
        term.planned = dict.fromkeys(LEVELS, round(float(planned), 2))
    if measured is None:
        term.reason = reason or NOT_SAID
        return term
    term.measured = round(measured, 2)
    if term.planned is None:
        term.verdict = "not_planned"
        return term
    typical, difference = term.planned["typical"], term.difference
    if typical:
        term.off_percent = round(100 * difference / abs(typical), 1)
    if abs(difference) <= max(SHARE * abs(typical), noise or NOISE.get(unit, 0.0)):
        term.verdict = "as_planned"
    elif term.planned["low"] <= term.measured <= term.planned["high"]:
        term.verdict = "within_range"
    else:
        term.verdict = "over" if difference > 0 else "under"
    return term


def _gib(size: Any) -> float | None:
    return size / GIB if isinstance(size, (int, float)) else None


def _host_gib(planned: Mapping[str, Any], level: str, *, at_start: bool) -> float:
    """Return the named host memory of a service in GiB: allocated at its start, or filled by requests."""
    parts = planned.get("host_memory") or ()
    return float(sum(part["gib"][level] for part in parts if part["at_start"] is at_start))


def _scaled(value: Any, cache: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Spread a figure of the typical KV cache over the planned sizes of the cache; it grows with the blocks."""
    if not isinstance(value, (int, float)) or not cache or cache["typical"] <= 0:
        return None
    return {level: value * max(0.0, cache[level]) / cache["typical"] for level in LEVELS}


def compare(
    service: str, planned: Mapping[str, Any], log: StartLog, use: HostUse, rank: int = 0
) -> tuple[dict[str, Term], list[Finding]]:
    """Compare the memory of a service, or one rank of it, with its plan.

    KV cache, tokens and residency follow from the other terms; they are findings only if no other term explains them.

    :param planned: the C(memory) of the service in the plan, one of C(services) that C(memory_budget) returns
    :returns: the terms by name, and a finding for every term that differs on its own
    """
    kv_measured = log.kv_cache_gib if log.kv_cache_told_gib is None else log.kv_cache_told_gib
    terms = _terms(planned, log, use, kv_measured, OF_FIRST_RANK if rank else "")
    _set_incomparable_aside(terms, planned, log)
    weights, inside = terms["weights"], terms["inside"]
    if terms["kv_cache"].verdict in ("over", "under") and not (weights.off or inside.off):
        # Each is within its tenth, and the larger difference explains the size of the cache.
        causes = [term for term in (weights, inside) if term.verdict == "as_planned"]
        for cause in sorted(causes, key=lambda term: -abs(term.difference))[:1]:
            cause.verdict = "over" if cause.difference > 0 else "under"
    _overrides(terms, planned)
    layout = _layout(service, terms, planned, log, kv_measured)
    return terms, [*_findings(service, terms), *layout, *_unexplained(service, terms["residency"], use)]


def _terms(
    planned: Mapping[str, Any], log: StartLog, use: HostUse, kv_measured: float | None, counted: str
) -> dict[str, Term]:
    """Compare the measured figures with the plan, term by term. counted: why tokens and requests are not judged on this rank, or empty."""
    requested = _gib(planned.get("requested_bytes"))
    cache = planned.get("available_kv_bytes")
    weights = _gib(planned.get("weights_bytes"))
    if weights is not None:
        weights += _gib(planned.get("draft_bytes")) or 0.0
    residency = planned.get("residency_gib")
    if isinstance(residency, Mapping):  # caches that requests fill are empty at the start
        residency = {level: residency[level] - _host_gib(planned, level, at_start=False) for level in residency}

    inside, inside_reason = _inside_gib(requested, log)
    outside = use.taken_gib - requested if requested and use.taken_gib is not None else None
    outside_reason = use.reason if requested and outside is None else ""
    outside_planned = None
    if requested and isinstance(residency, Mapping):
        outside_planned = {level: residency[level] - requested for level in LEVELS}
    return {
        "weights": _term("GiB", weights, log.weights_gib),
        "inside": _term("GiB", planned.get("overhead_gib"), inside, inside_reason),
        "kv_cache": _term("GiB", {k: v / GIB for k, v in cache.items()} if cache else None, kv_measured),
        "kv_cache_tokens": _term(
            "tokens", _scaled(planned.get("gpu_kv_cache_size_tokens"), cache), log.kv_cache_tokens, counted
        ),
        "max_concurrency": _term(
            "requests", _scaled(planned.get("max_concurrency"), cache), log.max_concurrency, counted
        ),
        "outside": _term("GiB", outside_planned, outside, outside_reason, HOST_NOISE_GIB),
        "residency": _term("GiB", residency, use.taken_gib, use.reason, HOST_NOISE_GIB),
        "load_seconds": _term("s", None, log.load_seconds),
        "start_seconds": _term("s", None, use.start_seconds, use.reason),
    }


def _inside_gib(requested: float | None, log: StartLog) -> tuple[float | None, str]:
    """Return the requested memory minus weights and KV cache, GiB, and the reason if it cannot be derived."""
    if log.kv_cache_told_gib is not None:
        return None, "kv-cache-memory-bytes fixes the KV cache, so other memory cannot be derived from it"
    if requested is None or log.weights_gib is None or log.kv_cache_gib is None:
        return None, ""
    return requested - log.weights_gib - log.kv_cache_gib, ""


def _set_incomparable_aside(terms: dict[str, Term], planned: Mapping[str, Any], log: StartLog) -> None:
    """Mark terms as not comparable if device, gpu-memory-utilization, version or max-model-len differ from the plan."""
    share = planned.get("gpu_memory_utilization")
    if log.device == "cpu":
        for name in ("weights", "inside", "kv_cache", "kv_cache_tokens", "max_concurrency", "outside", "residency"):
            _set_aside(terms[name], "the CPU backend sizes its KV cache and takes its memory in other ways")
    elif share is not None and log.utilization is not None and abs(share - log.utilization) >= 0.001:
        reason = f"it was started with gpu-memory-utilization {log.utilization}, the plan says {share}"
        for name in ("inside", "kv_cache", "kv_cache_tokens", "max_concurrency", "outside", "residency"):
            _set_aside(terms[name], reason)
    counts = {_counts(planned.get("vllm_version")), _counts(log.version)}
    if None not in counts and len(counts) > 1:
        _set_aside(
            terms["kv_cache_tokens"],
            f"vLLM {log.version} prints another number of tokens than vLLM {planned.get('vllm_version')}, see max_concurrency",
        )
    if planned.get("max_model_len") and log.max_model_len and planned["max_model_len"] != log.max_model_len:
        reason = f"it serves max-model-len {log.max_model_len}, the plan says {planned['max_model_len']}"
        for name in ("kv_cache_tokens", "max_concurrency"):
            _set_aside(terms[name], reason)


def _set_aside(term: Term, reason: str) -> None:
    term.verdict, term.reason, term.off_percent = "not_comparable", reason, None


def _stated_override(terms: Mapping[str, Term], planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measured C(memory) of a service whose parts are stated; empty for any other service."""
    if "stated_gib" not in planned or terms["weights"].planned is None:
        return {}
    requested = _gib(planned.get("requested_bytes")) or 0.0
    sizes, measured = {}, {}
    for name in ("weights", "kv_cache", "inside"):
        measured[name] = terms[name].measured is not None and terms[name].verdict != "not_comparable"
        gib = terms[name].measured if measured[name] else (terms[name].planned or {}).get("typical")
        sizes[name] = gib or 0.0
    if measured["inside"]:  # cut, not rounded: the sum must not exceed the requested memory
        sizes["inside"] = int(100 * max(0.0, requested - sizes["weights"] - sizes["kv_cache"])) / 100
    return {"memory": dict(zip(("weights_gib", "kv_gib", "other_gib"), sizes.values()))}


def _overrides(terms: Mapping[str, Term], planned: Mapping[str, Any]) -> None:
    """Set the override of each term that differs: with it the plan's typical figure is the measured one."""
    _override_weights_and_inside(terms, planned)
    inside, outside = terms["inside"], terms["outside"]
    usual = (inside.planned or {}).get("typical", 0.0)
    if outside.measured is None or outside.planned is None or not (outside.off or inside.override):
        return
    only_stated = "stated_gib" in planned and "weights_bytes" not in planned
    if only_stated and outside.measured < 0 and planned["solved"]:  # it holds less than it requests
        held = (terms["residency"].measured or 0.0) - outside.planned["typical"]
        outside.override = {"memory_gib": round(max(0.01, held), 2)}
        return
    kept_share = OVERHEADS["kept_share"][LEVELS.index("typical")]
    before = _outside_setting(outside.planned["typical"], usual, kept_share, planned)
    new = max(0.0, inside.measured or 0.0) if inside.override else usual
    figure = round(max(0.0, before + outside.difference + (new - usual) * (1 - kept_share)), 2)
    if outside.off:
        outside.override = {"overheads": {"outside_gib": figure}}
    elif abs(figure - before) > HOST_NOISE_GIB:  # the total is as planned, with another share inside
        overheads = {**inside.override.get("overheads", {}), "outside_gib": figure}
        inside.override = {**inside.override, "overheads": overheads}


def _override_weights_and_inside(terms: Mapping[str, Term], planned: Mapping[str, Any]) -> None:
    stated, weights, inside = _stated_override(terms, planned), terms["weights"], terms["inside"]
    if weights.off and weights.measured is not None:
        gib = weights.measured - (_gib(planned.get("draft_bytes")) or 0.0)
        weights.override = stated or {"weights_gib": round(max(0.01, gib), 2)}
    if inside.off and inside.measured is not None:
        inside.override = stated or {"overheads": {"inside_gib": max(0.0, inside.measured)}}


def _outside_setting(outside: float, inside: float, kept_share: float, planned: Mapping[str, Any]) -> float:
    """Return the setting C(outside_gib), GiB, that a plan corresponds to. outside, inside: planned (typical), GiB.

    service_memory.Engine.residency is requested - (1 - kept share) x inside + outside, or, with a KV cache of a fixed size,
    weights + cache + kept share x inside + outside.
    """
    cache = planned.get("available_kv_bytes") or {}
    if cache and cache["low"] == cache["high"] and "stated_gib" not in planned:
        sizes = planned["weights_bytes"] + planned["draft_bytes"] + cache["typical"] - planned["requested_bytes"]
        setting = outside - sizes / GIB - kept_share * inside
    else:
        setting = outside + (1 - kept_share) * inside
    # graphs and named host memory, which outside_gib does not replace
    named: float = (planned.get("beside_gib") or {}).get("typical", 0.0) + _host_gib(planned, "typical", at_start=True)
    return float(setting - named)


_MESSAGES = {
    "weights": "The weights of {name} take {measured} GiB; the plan has {planned} GiB ({off}).",
    "inside": "{name} uses {measured} GiB of its share in addition to weights and KV cache; the plan has "
    "{planned} GiB ({off}), and the KV cache is that much {cache}.",
    "outside": "{name} uses {measured} GiB {more} than its share (host memory, CUDA context, graphs); the plan has "
    "{planned} GiB.",
}


def _yaml(override: Mapping[str, Any]) -> str:
    """Return an override as one line of YAML for an inventory."""
    parts = [
        f"{key}: {{{_yaml(value)}}}" if isinstance(value, Mapping) else f"{key}: {value:g}"
        for key, value in override.items()
    ]
    return ", ".join(parts)


def _finding(service: str, rule: str, severity: str, message: str, fix: str) -> Finding:
    return Finding(f"residency.{rule}", severity, message, fix, service, basis="measured")


def _findings(service: str, terms: Mapping[str, Term]) -> Iterator[Finding]:
    """Yield a finding for every term that differs on its own."""
    for name in ("weights", "inside", "outside"):
        term = terms[name]
        if not term.off or not term.override or term.planned is None:
            continue
        low, typical, high = (f"{term.planned[level]:.2f}" for level in LEVELS)
        message = _MESSAGES[name].format(
            name=service,
            measured=f"{term.measured if name == 'inside' else abs(term.measured or 0.0):.2f}",
            more="more" if (term.measured or 0.0) >= 0 else "less",
            planned=typical if low == high else f"{typical} (from {low} to {high})",
            off="" if term.off_percent is None else f"{term.off_percent:+.0f} %",
            cache="smaller" if term.difference > 0 else "larger",
        )
        fix = f"Plan again with this in the service {service}: {_yaml(term.override)}"
        if "memory" in term.override:
            fix += "; kv_gib has the present size of its cache, set the size that it should have"
        yield _finding(service, name, "warning" if term.verdict == "over" else "info", message, fix)


def _unexplained(service: str, residency: Term, use: HostUse) -> list[Finding]:
    """Return a finding if the processes hold more GPU memory than planned and the start was not recorded."""
    most = (residency.planned or {}).get("high")
    if residency.measured is not None or use.gpu_gib is None or most is None or use.gpu_gib <= most:
        return []
    message = (
        f"The processes of {service} use {use.gpu_gib:.2f} GiB of GPU memory; the plan expects at most {most:.2f} GiB. The differing term is "
        f"unknown: {residency.reason}."
    )
    fix = f"Restart {service} when it is convenient, so that its start is recorded, and prove it again"
    return [_finding(service, "residency", "warning", message, fix)]


def _layout(
    service: str, terms: Mapping[str, Term], planned: Mapping[str, Any], log: StartLog, kv_measured: float | None
) -> list[Finding]:
    """Return a finding if a KV cache of the measured size holds another number of tokens than the plan calculates."""
    blocks = planned.get("block_size")
    cache = planned.get("available_kv_bytes") or {}
    name = "kv_cache_tokens" if terms["kv_cache_tokens"].verdict != "not_comparable" else "max_concurrency"
    term = terms[name]
    is_judged = term.verdict not in ("not_comparable", "unknown", "not_planned")
    if not is_judged or not kv_measured or not cache.get("typical") or term.planned is None or term.measured is None:
        return []
    expected = term.planned["typical"] * kv_measured * GIB / cache["typical"]
    # vLLM prints hundredths of a GiB; one block more or less is no difference either.
    off = term.measured - expected
    block_tokens = float(blocks or 0) if name == "kv_cache_tokens" else 1.0
    if abs(off) <= max(SHARE * expected, block_tokens):
        return []
    message = (
        f"{kv_measured:.2f} GiB of KV cache of {service} have {term.measured:,.12g} {term.unit}; the plan calculates {expected:,.0f} "
        f"({100 * off / expected:+.0f} %)."
    )
    hints = ", and ".join(_layout_hints(planned, log))
    fix = "Check kv-cache-dtype, speculative-config and vllm_version of the service"
    fix += f": {hints}" if hints else ""
    return [_finding(service, name, "warning" if off < 0 else "info", message, fix)]


def _layout_hints(planned: Mapping[str, Any], log: StartLog) -> Iterator[str]:
    """Yield the differences between log and plan that change the number of tokens."""
    blocks, vllm_version = planned.get("block_size"), planned.get("vllm_version")
    if log.block_size and blocks and log.block_size != blocks:
        yield f"its blocks have {log.block_size} tokens, the plan's {blocks}"
    if log.version and vllm_version and log.version != vllm_version:
        yield f"it is vLLM {log.version}, planned as {vllm_version}"


def compare_system(os_reserve_gib: float | None, uses: Sequence[HostUse]) -> tuple[Term, list[Finding]]:
    """Compare the memory that the host itself uses with C(spark_os_reserve_gib), at the start with the fewest other engines."""
    measured_uses = [use for use in uses if use.system_gib is not None]
    measured = min(measured_uses, key=lambda use: use.beside).system_gib if measured_uses else None
    term = _term("GiB", os_reserve_gib, measured, "no start on this host was recorded", HOST_NOISE_GIB)
    if not term.off or term.planned is None:
        return term, []
    term.override = {"spark_os_reserve_gib": term.measured}
    message = (
        f"{term.measured:.2f} GiB were in use before the engines started; the plan leaves {term.planned['typical']:.2f} GiB to "
        f"everything but services ({term.off_percent or 0:+.0f} %)."
    )
    fix = f"Plan again with this in the variables of the host: {_yaml(term.override)}"
    return term, [_finding("", "system", "warning" if term.verdict == "over" else "info", message, fix)]


def merged_override(terms: Mapping[str, Term]) -> dict[str, Any]:
    """Return the overrides of all terms, merged."""
    merged: dict[str, Any] = {}
    for term in terms.values():
        for key, value in term.override.items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, Mapping) else value
    return merged


def figures(terms: Mapping[str, Term], log: StartLog, use: HostUse) -> dict[str, Any]:
    """Return the measured figures for a receipt, in GiB, tokens and seconds, C(None) for missing ones."""
    sizes = ("weights", "inside", "kv_cache", "outside", "residency")
    of_log = ("kv_cache_tokens", "max_concurrency", "load_seconds", "compile_seconds")
    return {
        **{f"{name}_gib": terms[name].measured for name in sizes},
        **{name: getattr(log, name) for name in of_log},
        "gpu_gib": use.gpu_gib,
        "start_seconds": use.start_seconds,
    }


SIZES = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
"""Keys of a planned memory that describe the size of a launch."""


def start(
    planned: Mapping[str, Any], terms: Mapping[str, Term], log: StartLog, gpu: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the memory that a start took, for later plans; C(None) if it is unknown or of another launch than the planned one.

    :param planned: the C(memory) of the service in the plan, with C(launch), which identifies the launch
    :returns: GiB by term, C(None) for unknown ones, with the identity of the launch
    """
    launch, requested = planned.get("launch"), _gib(planned.get("requested_bytes"))
    sizes = {name: planned.get(name) for name in (*SIZES, "gpu_memory_utilization")}
    judged = [terms["weights"], terms["inside"], terms["kv_cache"]]
    complete = all(term.measured is not None and term.verdict != "not_comparable" for term in judged)
    same = log.max_model_len in (None, sizes["max_model_len"])
    if not (launch and requested and complete and same and log.device == "gpu" and all(sizes.values())):
        return None
    return {
        **launch,
        **sizes,
        "vllm_version": log.version or planned.get("vllm_version"),
        "driver": (gpu or {}).get("driver_version"),
        "gpu": (gpu or {}).get("name"),
        "requested_gib": round(requested, 3),
        **{f"{name}_gib": terms[name].measured for name in ("weights", "inside", "kv_cache", "outside")},
        **{name: getattr(log, name) for name in ("peak_gib", "non_torch_gib", "graphs_estimate_gib", "graphs_gib")},
    }
