# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the plan to the truth: what a running engine took, by its own start-up lines, compared with the plan term by term.

vLLM prints what its weights took and what is left for the KV cache; with the memory that it asked for, the overhead inside
follows. What the host lost between the gate of the unit and the first answer is the whole residency, and the overhead
outside follows. A term that is off names the override that makes the next plan right.

Of an engine that spans hosts each rank is looked at on its own host. Its workers print the figures of the memory there; what
the engine as a whole has (tokens, concurrency) only the first rank prints.

The texts are those of vLLM 0.16, 0.19 to 0.23, 0.27 to 0.30, 0.32 and 0.33 (C(vllm/v1/worker), C(vllm/v1/core)); no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .._common.findings import Finding
from .._common.sizes import GIB
from .._runtime import start_stages
from .._vllm.overheads import LEVELS, OVERHEADS
from .._vllm.versions import parse_version

# A difference that is worth a word: a tenth of what is planned, and more than the figures themselves scatter (vLLM prints
# hundredths of a GiB, so it is the momentary use of the host that scatters, most where two of its moments are compared).
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
# figure -> the text before and around it. Figures of one process; where it prints one twice, the last counts.
_OF_PROCESS = {
    **start_stages.SAID,
    # The older V2 model runner (vllm/v1/worker/gpu, up to 0.27) leaves the word "memory" out.
    "weights_gib": re.compile(rf"Model loading took {_NUMBER} GiB (?:memory )?and"),
    "load_seconds": re.compile(rf"Model loading took \S+ GiB (?:memory )?and {_NUMBER} seconds"),
    "kv_cache_gib": re.compile(rf"Available KV cache memory: {_NUMBER} GiB"),
    "graphs_estimate_gib": re.compile(rf"Estimated CUDA graph memory: {_NUMBER} GiB"),
    "graphs_gib": re.compile(rf"Graph capturing finished in \S+ secs, took {_NUMBER} GiB"),
    # Printed once graphs are captured; 0.33 has weights and what is outside of torch as one figure.
    "peak_gib": re.compile(
        rf"Actual usage is \S+ GiB for (?:weight|consumed memory \([^)]*\)), {_NUMBER} GiB for peak activation"
    ),
    "non_torch_gib": re.compile(rf"GiB for peak activation, {_NUMBER} GiB for non-torch memory"),
    "graphs_seconds": re.compile(rf"Graph capturing finished in {_NUMBER} secs"),
    "init_seconds": re.compile(rf"init engine \(profile, create kv cache, warmup model\) took {_NUMBER} s"),
    # kv-cache-memory-bytes: nothing is left over, it is told.
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
    re.compile(r"█ +version (\d+\.\d+[\w.+-]*)\s*$"),  # beside the drawing of the name
)
_UTILIZATION = re.compile(rf"non-default args: .*'gpu_memory_utilization': {_NUMBER}")
# Only the CPU backend has these; up to 0.29 it says "GPU KV cache size" like all others.
_CPU = re.compile(r"\[cpu_(?:worker|model_runner)\.py:|Explicitly set \(\S+ GiB for KV cache")


@dataclass
class StartLog:
    """What the start-up lines of one engine say; C(None) for what they do not.

    peak_gib, non_torch_gib: what torch held at its peak beside the weights, and what else was used.
    Figures of several ranks on this host: the largest weights and times, the smallest KV cache (vLLM goes by it too).
    tokens_count: C(blocks) where the line of the KV cache counts the tokens of its blocks, which for models with several
    kinds of layers is not what fits (up to 0.20.0); C(requests) where it is concurrency times length.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a plain dict."""
        return asdict(self)

    def complete(self, rank: int) -> bool:
        """Whether there is what a rank prints during its start; only the first one counts tokens."""
        if rank == 0:
            return self.kv_cache_tokens is not None
        return any(getattr(self, name) is not None for name in _OF_PROCESS)


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _counts(version: str | None) -> str | None:
    """Return what a release prints as the tokens of the KV cache (C(StartLog.tokens_count)), as in C(KVPlan.printed_tokens).

    None for a version whose memory is not planned. The arithmetic of the plan is not imported for that: it would travel to the host.
    """
    release = parse_version(version or "")
    if release is None or not (0, 15) <= release.release < (1,):
        return None
    return "requests" if release.release >= (0, 20, 1) else "blocks"


def parse_log(lines: Sequence[str], workers: Sequence[str] = ()) -> StartLog:
    """Read the start-up lines of one engine, as its containers wrote them; lines of other kinds are passed over.

    Lines that Ray brought from another host (C(ip=)) are left out: that memory is not of this host.
    workers: what Ray's worker processes of this host wrote themselves. It beats what Ray brought of it into the engine's log:
    there Ray shows one line for all those that differ in figures only, of whichever host it came from.
    """
    log = StartLog()
    by_process: dict[str, dict[str, float]] = {}
    cpu = False
    first_hand = [_COLOUR.sub("", line) for line in workers]
    reported = any(pattern.search(line) for line in first_hand for pattern in _OF_PROCESS.values())
    for line in [*first_hand, *(_COLOUR.sub("", line) for line in lines)]:
        process, elsewhere, brought = _origin(line)
        if elsewhere or (brought and reported):
            continue
        cpu = cpu or bool(_CPU.search(line))
        for name, pattern in _OF_PROCESS.items():
            match = pattern.search(line)
            value = _number(match.group(1)) if match else None
            if value is None:
                continue
            figures = by_process.setdefault(process, {})
            # Each part of a model (backbone, encoder, drafter) is compiled by itself.
            figures[name] = figures.get(name, 0.0) + value if name == "compile_seconds" else value
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


def _origin(line: str) -> tuple[str, bool, bool]:
    """Return the process that a line is of, whether it is of another host, and whether Ray brought it."""
    process, elsewhere, brought = "", False, False
    match = _PREFIX.match(line)
    while match:
        process = match["process"]
        elsewhere = elsewhere or match["ip"] is not None
        brought = brought or process.startswith("Ray")
        match = _PREFIX.match(line, match.end())
    return process, elsewhere, brought


def _read_engine(log: StartLog, line: str) -> bool:
    """Read what is the same in all processes of an engine; returns whether the line says that it runs on the CPU."""
    cpu = False
    match = _TOKENS.search(line)
    if match:
        cpu = match.group(1) == "CPU"
        log.kv_cache_tokens = _whole(match.group(2))
        log.device = "gpu"
    match = _CONCURRENCY.search(line)
    if match:
        log.max_model_len, log.max_concurrency = _whole(match.group(1)), _number(match.group(2))
    match = _BLOCK.search(line)
    if match:
        log.block_size = int(match.group(1))
    match = _UTILIZATION.search(line)
    if match:
        log.utilization = _number(match.group(1))
    if log.version is None:
        match = next((match for pattern in _VERSIONS if (match := pattern.search(line))), None)
        log.version = match.group(1) if match else None
    return cpu


# What the host lost -------------------------------------------------------------------------------------------------


@dataclass
class HostUse:
    """What the host itself says of a start; C(None) with a reason for what it does not.

    taken_gib: MemAvailable at the gate of the unit less that when the model had answered.
    system_gib: in use at the gate by everything but the engines beside it, whose number is C(beside).
    gpu_gib: GPU memory of the container's processes now.
    """

    taken_gib: float | None = None
    system_gib: float | None = None
    beside: int = 0
    start_seconds: float | None = None
    gpu_gib: float | None = None
    reason: str = ""


def read_start(record: Any, gpu_gib: float | None, reason: str = "") -> HostUse:
    """Evaluate the record that the helper of the units keeps of a start (C(spark_unit.py)).

    :param record: C({gate: {total_gib, available_gib}, beside: {unit: gib}, ready: {available_gib},
        start_seconds}) or None
    :param gpu_gib: GPU memory that the unit holds, GiB
    :param reason: why there is no record, where that is known
    :returns: GiB and seconds, None for what the record does not say
    """
    use = HostUse(gpu_gib=gpu_gib)
    gate = record.get("gate") if isinstance(record, Mapping) else None
    ready = record.get("ready") if isinstance(record, Mapping) else None
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
    """One term of the plan beside what was measured.

    verdict: C(as_planned) within a tenth; C(within_range) between the planned low and high; C(over) or C(under) outside;
    C(not_planned), C(not_comparable) or C(unknown) with C(reason).
    override: what the inventory would say so that the plan has this figure.
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
        """Whether the difference is worth a word."""
        return self.verdict in ("within_range", "over", "under")

    @property
    def difference(self) -> float:
        """Measured less planned (typical)."""
        return (self.measured or 0.0) - (self.planned or {}).get("typical", 0.0)


def _term(
    unit: str,
    planned: Mapping[str, float] | float | None,
    measured: float | None,
    reason: str = "",
    noise: float | None = None,
) -> Term:
    """Judge one term; C(reason) says why there is no measured figure."""
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
    if abs(difference) <= max(SHARE * abs(typical), NOISE.get(unit, 0.0) if noise is None else noise):
        term.verdict = "as_planned"
    elif term.planned["low"] <= term.measured <= term.planned["high"]:
        term.verdict = "within_range"
    else:
        term.verdict = "over" if difference > 0 else "under"
    return term


def _gib(size: Any) -> float | None:
    return size / GIB if isinstance(size, (int, float)) else None


def _host_gib(planned: Mapping[str, Any], level: str, *, at_start: bool) -> float:
    """Return the named host memory of a service, in GiB: what is allocated at its start, or what requests fill."""
    parts = planned.get("host_memory") or ()
    return float(sum(part["gib"][level] for part in parts if part["at_start"] is at_start))


def _scaled(value: Any, cache: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Spread a figure of the typical KV cache over the planned sizes of the cache; it grows with the blocks."""
    if not isinstance(value, (int, float)) or not cache or cache["typical"] <= 0:
        return None
    return {level: value * max(0.0, cache[level]) / cache["typical"] for level in LEVELS}


def _same_count(planned: str | None, logged: str | None) -> bool:
    """Whether two versions print the same number as the tokens of the KV cache."""
    counts = {_counts(planned), _counts(logged)}
    return None in counts or len(counts) == 1


def _same_share(planned: float | None, started: float | None) -> bool:
    return planned is None or started is None or abs(planned - started) < 0.001


def compare(
    service: str, planned: Mapping[str, Any], log: StartLog, use: HostUse, rank: int = 0
) -> tuple[dict[str, Term], list[Finding]]:
    """Compare what a service, or one rank of it, took with its plan.

    KV cache, tokens and residency follow from the other terms; they are findings only where none of those
    explains them.

    :param service: its name
    :param planned: the C(memory) of the service in the plan, one of C(services) that C(memory_budget) returns
    :param log: what the start-up lines of its engine say
    :param use: what the host says of it
    :param rank: of the service on this host
    :returns: the terms by name, and a finding for every term that is off by itself
    """
    kv_measured = log.kv_cache_gib if log.kv_cache_told_gib is None else log.kv_cache_told_gib
    terms = _terms(planned, log, use, kv_measured, OF_FIRST_RANK if rank else "")
    _set_incomparable_aside(terms, planned, log)
    _blame(terms)
    _overrides(terms, planned)
    return terms, _findings(service, terms, planned, log, use, kv_measured)


def _terms(
    planned: Mapping[str, Any], log: StartLog, use: HostUse, kv_measured: float | None, counted: str
) -> dict[str, Term]:
    """Set what was measured against the plan, term by term.

    kv_measured: size of the KV cache in GiB. counted: why tokens and requests are not judged on this rank, or an empty text.
    """
    requested = _gib(planned.get("requested_bytes"))
    cache = planned.get("available_kv_bytes")
    weights = _gib(planned.get("weights_bytes"))
    if weights is not None:
        weights += _gib(planned.get("draft_bytes")) or 0.0
    residency = planned.get("residency_gib")
    if isinstance(residency, Mapping):  # caches that requests fill are empty at the start
        residency = {level: residency[level] - _host_gib(planned, level, at_start=False) for level in residency}

    inside = beside = None
    inside_reason = beside_reason = ""
    if log.kv_cache_told_gib is not None:
        inside_reason = "kv-cache-memory-bytes fixes the KV cache, so what else is used cannot be told from it"
    elif requested is not None and log.weights_gib is not None and log.kv_cache_gib is not None:
        inside = requested - log.weights_gib - log.kv_cache_gib
    if requested and use.taken_gib is not None:
        beside = use.taken_gib - requested
    elif requested:
        beside_reason = use.reason
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
        "outside": _term("GiB", outside_planned, beside, beside_reason, HOST_NOISE_GIB),
        "residency": _term("GiB", residency, use.taken_gib, use.reason, HOST_NOISE_GIB),
        "load_seconds": _term("s", None, log.load_seconds),
        "start_seconds": _term("s", None, use.start_seconds, use.reason),
    }


def _set_incomparable_aside(terms: dict[str, Term], planned: Mapping[str, Any], log: StartLog) -> None:
    """Judge no term that device, gpu-memory-utilization, version or max-model-len of the running engine make another one."""
    if log.device == "cpu":
        for name in ("weights", "inside", "kv_cache", "kv_cache_tokens", "max_concurrency", "outside", "residency"):
            _set_aside(terms[name], "the CPU backend sizes its KV cache and takes its memory in other ways")
    elif not _same_share(planned.get("gpu_memory_utilization"), log.utilization):
        reason = (
            f"it was started with gpu-memory-utilization {log.utilization}, the plan says "
            f"{planned['gpu_memory_utilization']}"
        )
        for name in ("inside", "kv_cache", "kv_cache_tokens", "max_concurrency", "outside", "residency"):
            _set_aside(terms[name], reason)
    if not _same_count(planned.get("vllm_version"), log.version):
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


def _blame(terms: Mapping[str, Term]) -> None:
    """Name what made the KV cache another size, where each of its terms alone is within its tenth."""
    if terms["kv_cache"].verdict not in ("over", "under"):
        return
    causes = [terms[name] for name in ("weights", "inside") if terms[name].verdict == "as_planned"]
    if causes and not (terms["weights"].off or terms["inside"].off):
        cause = max(causes, key=lambda term: abs(term.difference))
        cause.verdict = "over" if cause.difference > 0 else "under"


def _stated_override(terms: Mapping[str, Term], planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return C(memory) of the service as it was measured, of one whose parts are stated; empty of any other."""
    if "stated_gib" not in planned or terms["weights"].planned is None:
        return {}
    requested = _gib(planned.get("requested_bytes")) or 0.0
    sizes, measured = {}, {}
    for name in ("weights", "kv_cache", "inside"):
        measured[name] = terms[name].measured is not None and terms[name].verdict != "not_comparable"
        gib = terms[name].measured if measured[name] else (terms[name].planned or {}).get("typical")
        sizes[name] = gib or 0.0
    if measured["inside"]:  # cut, not rounded: the sum must not be above what the engine asks for
        sizes["inside"] = int(100 * max(0.0, requested - sizes["weights"] - sizes["kv_cache"])) / 100
    return {"memory": dict(zip(("weights_gib", "kv_gib", "other_gib"), sizes.values()))}


def _overrides(terms: Mapping[str, Term], planned: Mapping[str, Any]) -> None:
    """Give each term that is off the value that makes the plan's typical figure the measured one."""
    stated = _stated_override(terms, planned)
    for name, other in (("weights", "draft_bytes"), ("inside", "")):
        term = terms[name]
        if not term.off or term.measured is None:
            continue
        if stated:
            term.override = stated
        elif other:
            term.override = {"weights_gib": round(max(0.01, term.measured - (_gib(planned.get(other)) or 0.0)), 2)}
        else:
            term.override = {"overheads": {"inside_gib": max(0.0, term.measured)}}
    outside, usual = terms["outside"], (terms["inside"].planned or {}).get("typical", 0.0)
    if outside.measured is None or outside.planned is None or not (outside.off or terms["inside"].override):
        return
    if "stated_gib" in planned and "weights_bytes" not in planned and outside.measured < 0 and planned["solved"]:
        # It holds less than it asks for, which is only stated.
        held = (terms["residency"].measured or 0.0) - outside.planned["typical"]
        outside.override = {"memory_gib": round(max(0.01, held), 2)}
        return
    # service_memory.Engine.residency: requested - (1 - kept) x inside + outside, at the usual share that is kept; with a KV
    # cache of a fixed size, weights + cache + kept x inside + outside.
    kept_share = OVERHEADS["kept_share"][LEVELS.index("typical")]
    cache = planned.get("available_kv_bytes") or {}
    if cache and cache["low"] == cache["high"] and "stated_gib" not in planned:
        sizes = planned["weights_bytes"] + planned["draft_bytes"] + cache["typical"] - planned["requested_bytes"]
        before = outside.planned["typical"] - sizes / GIB - kept_share * usual
    else:
        before = outside.planned["typical"] + (1 - kept_share) * usual
    # graphs and named host memory, which outside_gib does not replace
    before -= (planned.get("beside_gib") or {}).get("typical", 0.0) + _host_gib(planned, "typical", at_start=True)
    new = max(0.0, terms["inside"].measured or 0.0) if terms["inside"].override else usual
    figure = round(max(0.0, before + outside.difference + (new - usual) * (1 - kept_share)), 2)
    if outside.off:
        outside.override = {"overheads": {"outside_gib": figure}}
    elif abs(figure - before) > HOST_NOISE_GIB:  # as much is held as planned, of another inside
        overheads = terms["inside"].override.get("overheads", {})
        terms["inside"].override = {**terms["inside"].override, "overheads": {**overheads, "outside_gib": figure}}


_WHAT = {
    "weights": "The weights of {name} take {measured} GiB; the plan has {planned} GiB ({off}).",
    "inside": "{name} uses {measured} GiB inside the memory that it asks for, beside weights and KV cache; the plan has "
    "{planned} GiB ({off}), and the KV cache is that much {cache}.",
    "outside": "{name} holds {measured} GiB {more} than it asks for (host memory, CUDA context, graphs); the plan has "
    "{planned} GiB.",
}


def _yaml(override: Mapping[str, Any]) -> str:
    """Return an override as one line of YAML, as it is written in an inventory."""
    parts = [
        f"{key}: {{{_yaml(value)}}}" if isinstance(value, Mapping) else f"{key}: {value:g}"
        for key, value in override.items()
    ]
    return ", ".join(parts)


def _finding(service: str, rule: str, severity: str, message: str, fix: str) -> Finding:
    return Finding(
        rule=f"residency.{rule}", severity=severity, service=service, message=message, fix=fix, basis="measured"
    )


def _findings(
    service: str,
    terms: Mapping[str, Term],
    planned: Mapping[str, Any],
    log: StartLog,
    use: HostUse,
    kv_measured: float | None,
) -> list[Finding]:
    """Return a finding for each term that is off by itself."""

    findings = []
    for name in ("weights", "inside", "outside"):
        term = terms[name]
        if not term.off or not term.override or term.planned is None:
            continue
        message = _WHAT[name].format(
            name=service,
            measured=f"{term.measured if name == 'inside' else abs(term.measured or 0.0):.2f}",
            more="more" if (term.measured or 0.0) >= 0 else "less",
            planned=_range(term.planned),
            off="" if term.off_percent is None else f"{term.off_percent:+.0f} %",
            cache="smaller" if term.difference > 0 else "larger",
        )
        fix = f"Plan again with this in the service {service}: {_yaml(term.override)}"
        if "memory" in term.override:
            fix += "; kv_gib is what its cache has now, write there what it is to have"
        findings.append(_finding(service, name, "warning" if term.verdict == "over" else "info", message, fix))
    findings.extend(_layout(service, terms, planned, log, kv_measured))
    term = terms["residency"]
    most = (term.planned or {}).get("high")
    if term.measured is None and use.gpu_gib is not None and most is not None and use.gpu_gib > most:
        findings.append(
            _finding(
                service,
                "residency",
                "warning",
                f"The processes of {service} hold {use.gpu_gib:.2f} GiB of GPU memory; the plan expects at most {most:.2f} GiB. "
                f"Which term is off cannot be told: {term.reason}.",
                f"Restart {service} when it is convenient, so that its start is recorded, and prove it again",
            )
        )
    return findings


def _layout(
    service: str,
    terms: Mapping[str, Term],
    planned: Mapping[str, Any],
    log: StartLog,
    kv_measured: float | None,
) -> list[Finding]:
    """Judge what a given KV cache holds: that is arithmetic and has no range."""
    blocks = planned.get("block_size")
    cache = planned.get("available_kv_bytes") or {}
    name = "kv_cache_tokens" if terms["kv_cache_tokens"].verdict != "not_comparable" else "max_concurrency"
    term = terms[name]
    if term.verdict in ("not_comparable", "unknown", "not_planned") or not kv_measured or not cache.get("typical"):
        return []
    if term.planned is None or term.measured is None:
        return []
    expected = term.planned["typical"] * kv_measured * GIB / cache["typical"]
    # vLLM prints the memory in hundredths of a GiB, a block more or less is of no interest either.
    off = term.measured - expected
    block_tokens = float(blocks or 0) if name == "kv_cache_tokens" else 1.0
    if abs(off) <= max(SHARE * expected, block_tokens):
        return []
    message = (
        f"{kv_measured:.2f} GiB of KV cache of {service} hold {term.measured:,.12g} {term.unit}; by the plan's arithmetic they "
        f"hold {expected:,.0f} ({100 * off / expected:+.0f} %)."
    )
    hints = []
    if log.block_size and blocks and log.block_size != blocks:
        hints.append(f"its blocks have {log.block_size} tokens, the plan's {blocks}")
    if log.version and planned.get("vllm_version") and log.version != planned["vllm_version"]:
        hints.append(f"it is vLLM {log.version}, planned as {planned['vllm_version']}")
    fix = "Check kv-cache-dtype, speculative-config and vllm_version of the service"
    fix += f": {', and '.join(hints)}" if hints else ""
    return [_finding(service, name, "warning" if off < 0 else "info", message, fix)]


def compare_system(os_reserve_gib: float | None, uses: Sequence[HostUse]) -> tuple[Term, list[Finding]]:
    """Compare what the host itself needs with C(spark_os_reserve_gib), at the start with the fewest engines beside it."""
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


def _range(planned: Mapping[str, float]) -> str:
    if planned["low"] == planned["high"]:
        return f"{planned['typical']:.2f}"
    return f"{planned['typical']:.2f} (from {planned['low']:.2f} to {planned['high']:.2f})"


def merged_override(terms: Mapping[str, Term]) -> dict[str, Any]:
    """Return what all terms together would write into the service."""
    merged: dict[str, Any] = {}
    for term in terms.values():
        for key, value in term.override.items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, Mapping) else value
    return merged


def figures(terms: Mapping[str, Term], log: StartLog, use: HostUse) -> dict[str, Any]:
    """Return the measured figures for a receipt: plain numbers, C(None) where there is none.

    :param terms: of C(compare)
    :param log: what the start-up lines of its engine say
    :param use: what the host says of it
    :returns: GiB, tokens and seconds by name
    """
    values: dict[str, Any] = {
        f"{name}_gib": terms[name].measured for name in ("weights", "inside", "kv_cache", "outside", "residency")
    }
    values.update(
        kv_cache_tokens=log.kv_cache_tokens,
        max_concurrency=log.max_concurrency,
        gpu_gib=use.gpu_gib,
        load_seconds=log.load_seconds,
        compile_seconds=log.compile_seconds,
        start_seconds=use.start_seconds,
    )
    return values


SIZES = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
"""What of a planned memory says how large a launch is."""


def start(
    planned: Mapping[str, Any], terms: Mapping[str, Term], log: StartLog, gpu: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return what a start took, for the plans to come; C(None) where it cannot be told or was of another launch than the planned one.

    :param planned: the C(memory) of the service in the plan, with C(launch), what tells the launch from others
    :param terms: of C(compare)
    :param log: what the start-up lines say
    :param gpu: of C(HostView.gpu)
    :returns: GiB by term, C(None) for those that are not known, with what they are of
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
