# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The speed of a service as ranges: tokens per second by streams, prefill and first token by prompt, and the limit.

A figure that is not known is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .._common.plain_data import InputError, is_number, is_whole
from .._common.sizes import GIB
from .._memory.engine import start_seconds
from .._memory.geometry import checkpoint_kv_dtype, quantization_of, read_geometry
from .._memory.layers import Refusal
from .._memory.profile_run import capture_sizes, largest_capture
from .._memory.releases import Release, parse_release
from .._memory.service_input import DEFAULT_BATCHED_TOKENS, DEFAULT_SEQS, ServiceInput, read_params
from .._memory.service_weights import split_of
from .._memory.speculation import is_self_drafting
from .._memory.weights import Split, drafter_bytes
from .._vllm.catalogue import has
from .._vllm.fp4_kernels import MARLIN, default_fp4_kernel, is_weight_only
from .._vllm.launch import parse
from .._vllm.versions import parse_version
from .constants import (
    ACCEPTANCE,
    BUS,
    GB10,
    ONE_STREAM,
    PREFILL,
    PREFILL_SEVERAL,
    SEVERAL_SPARKS,
    SEVERAL_SPARKS_EAGER,
    SEVERAL_STREAMS,
    SEVERAL_STREAMS_MOE,
    Constants,
    Spread,
)
from .reads import LaunchSettings, Reads, read_launch
from .service_speed import Range, round_figure
from .time_model import (
    Drafting,
    Launch,
    StepBytes,
    decode_seconds,
    least_step_seconds,
    prefill_seconds,
    step_bytes,
    step_time,
)

STREAMS = (1, 4, 16, 64)
PROMPT_TOKENS = (1024,)
OUTPUT_TOKENS = 128
_LARGEST = 1 << 24
"""No workload has more streams or tokens."""
_LARGEST_GRAPH = 1 << 14
"""No CUDA graph is for more tokens."""
_MOST_ACCEPTED = 64
_MOST_SPARKS = 64
_HOST = {"total_gib": 119.67}
"""The memory of a GB10; speed does not depend on it."""
# Methods of speculative decoding that draft all tokens in one pass.
_ONE_PASS = frozenset(("dflash", "dspark", "medusa", "mlp_speculator"))
_WITHOUT_WEIGHTS = frozenset(("ngram", "ngram_gpu", "suffix"))
# Drafters with an output head.
_WITH_HEAD = frozenset(("draft_model", "eagle3"))
# Backends that compute in 4 bits.
_FAST_4BIT = ("cutlass", "flashinfer", "trtllm", "b12x")
# The first minor release that has whole CUDA graphs of steps with drafts on FlashInfer (vllm-project/vllm#49547).
_GRAPHS_WITH_DRAFTS = 28
# The largest head for which vLLM takes FlashInfer by itself.
_LARGE_HEAD = 256


@dataclass(frozen=True)
class Workload:
    """The requests of a service. streams: at once. prompts: lengths in tokens. output: tokens of an answer."""

    streams: tuple[int, ...] = STREAMS
    prompts: tuple[int, ...] = PROMPT_TOKENS
    output: int = OUTPUT_TOKENS


@dataclass(frozen=True)
class SpeedInput:
    """A service and the reads of its ranks. launches: one for each acceptance to consider.

    decode_unknown, prefill_unknown: why a rate is not known, or empty. If only the acceptance is unknown, the launch drafts and accepts nothing.
    """

    item: ServiceInput
    reads: Reads
    launches: tuple[Launch, ...]
    decode_unknown: str
    prefill_unknown: str

    @property
    def launch(self) -> Launch:
        return self.launches[0]

    @property
    def sparks(self) -> int:
        """Ranks of all replicas, each of which is a Spark."""
        return self.launch.ranks * len(self.reads.stages) * self.replicas

    @property
    def joined(self) -> int:
        """Sparks that communicate in a step: of one replica, or of all that divide their experts among them."""
        return self.launch.ranks * len(self.reads.stages) * self.launch.replicas

    @property
    def drafted(self) -> int:
        """Draft tokens of a step, so that a step yields at most one more; 0 without a drafter."""
        spec = self.item.args.get("speculative-config") or {}
        return int(spec.get("num_speculative_tokens") or 0) if isinstance(spec, Mapping) else 0

    @property
    def replicas(self) -> int:
        """Data-parallel replicas, each with its own requests."""
        return split_of(self.item.args).replicas


def speed_estimate(params: Mapping[str, Any], constants: Constants = GB10) -> dict[str, Any]:
    """Predict the speed of services, each alone on its Sparks.

    :param params: options of the module C(speed_estimate), as documented there
    :returns: C(services) by name; C(unknown) of each has the reason for each missing figure
    :raises InputError: for malformed input
    """
    workload, acceptance, services = _read_workload(params)
    plain = [
        {key: value for key, value in service.items() if key != "nodes"} if isinstance(service, Mapping) else service
        for service in services
    ]
    _host, items = read_params({**_HOST, "services": plain})
    by_name = {service["name"]: service for service in services}
    results: dict[str, Any] = {}
    for item in items:
        try:
            results[item.name] = describe(read_service(item, by_name[item.name], acceptance), workload, constants)
        except Refusal as refusal:
            fix = f"; {refusal.fix}" if refusal.fix else ""
            results[item.name] = {"unknown": {"all": f"{refusal.key}: {refusal.reason}{fix}"}}
    return {"services": results}


def _read_workload(params: Mapping[str, Any]) -> tuple[Workload, float | None, list[Any]]:
    """Read the workload, the acceptance and the services; raise one error for all mistakes."""
    messages: list[str] = []
    mapping = params.get("workload") or {}
    if isinstance(mapping, Mapping):
        known = ("concurrency", "output_tokens", "prompt_tokens")
        messages += [
            f"workload.{key}: unknown key; known are {', '.join(known)}" for key in mapping if key not in known
        ]
    else:
        messages.append(f"workload: expected a mapping, got {mapping!r}")
        mapping = {}
    workload = Workload(
        _read_counts(mapping, "concurrency", STREAMS, messages),
        _read_counts(mapping, "prompt_tokens", PROMPT_TOKENS, messages),
        _read_counts(mapping, "output_tokens", (OUTPUT_TOKENS,), messages)[-1],
    )
    acceptance = params.get("acceptance")
    if acceptance is not None and not is_number(acceptance, 1, _MOST_ACCEPTED):
        messages.append(f"acceptance: expected the mean tokens of a step, 1 to {_MOST_ACCEPTED}, got {acceptance!r}")
    services = params.get("services")
    if not isinstance(services, list) or not services:
        messages.append(f"services: expected a list of services, got {services!r}")
        services = []
    for index, service in enumerate(services):
        nodes = service.get("nodes") if isinstance(service, Mapping) else None
        if nodes is not None and not is_whole(nodes, 1, _MOST_SPARKS):
            messages.append(f"services[{index}].nodes: expected a whole number of 1 to {_MOST_SPARKS}, got {nodes!r}")
    if messages:
        raise InputError(messages)
    return workload, None if acceptance is None else float(acceptance), services


def _read_counts(
    mapping: Mapping[str, Any], key: str, default: tuple[int, ...], messages: list[str]
) -> tuple[int, ...]:
    """Return whole numbers in ascending order; a single number may stand for a list."""
    value = mapping.get(key)
    if value is None:
        return default
    values = value if isinstance(value, list) else [value]
    if values and all(is_whole(number, 1, _LARGEST) for number in values):
        return tuple(sorted(set(values)))
    messages.append(f"workload.{key}: expected whole numbers of 1 to {_LARGEST}, got {value!r}")
    return default


def describe(service: SpeedInput, workload: Workload, constants: Constants) -> dict[str, Any]:
    """Return the figures of a service as plain data."""
    length = workload.prompts[-1] + workload.output / 2
    read = read_bytes(service.launch, 1, length, constants)
    result: dict[str, Any] = {
        "sparks": service.sparks,
        "bytes_per_token": {**{key: round(value) for key, value in vars(read).items()}, "total": round(read.total)},
        "ceiling": round_figure(ceiling(service.launch, 1, length)),
        "load_seconds": start_seconds(
            service.item.overheads, int(max(stage.held for stage in service.reads.stages)), "graphs"
        ),
        "unknown": {},
    }
    if service.decode_unknown:
        result["unknown"]["decode"] = service.decode_unknown
    else:
        per_replica = {streams: -(-streams // service.replicas) for streams in workload.streams}
        decode = {streams: decode_range(service, per_replica[streams], length, constants) for streams in per_replica}
        result["decode"] = {str(streams): rate.to_dict() for streams, rate in decode.items()}
        result["aggregate"] = {str(streams): rate.scaled(streams).to_dict() for streams, rate in decode.items()}
        result["bound_by"] = bound_by(service.launch, per_replica[workload.streams[0]], length, constants)
    if service.prefill_unknown:
        result["unknown"]["prefill"] = service.prefill_unknown
    else:
        prefill = {prompt: prefill_range(service, prompt, constants) for prompt in workload.prompts}
        result["prefill"] = {str(prompt): rate.to_dict() for prompt, rate in prefill.items()}
        result["ttft"] = {str(prompt): rate.inverted(prompt).to_dict() for prompt, rate in prefill.items()}
    return result


def read_bytes(launch: Launch, streams: int, length: float, constants: Constants) -> StepBytes:
    """Return the bytes by kind that the ranks of all stages read one after the other in a decode step, at C(length) tokens of context."""
    total = StepBytes()
    for stage in launch.reads.stages:
        total += step_bytes(stage, streams, 1, length, constants.alpha, streams * launch.replicas)
    return total


def decode_range(service: SpeedInput, streams: int, length: float, constants: Constants) -> Range:
    """Return tokens per second of one stream, at C(length) tokens of context."""
    rates = [1 / decode_seconds(launch, constants, streams, length) for launch in service.launches]
    return Range.around(rates, _spread_of(service, streams))


def steps_range(service: SpeedInput, streams: int, length: float, constants: Constants) -> Range:
    """Return decode steps per second, which do not depend on accepted drafts, at C(length) tokens of context."""
    launch = service.launch
    accepted = launch.drafting.accepted if launch.drafting else 1.0
    rate = 1 / (decode_seconds(launch, constants, streams, length) * accepted)
    return Range.around([rate], _spread_of(service, streams))


def ceiling(launch: Launch, streams: float, length: float = 0) -> float:
    """Return the rate of all streams of a replica together, each of one token a step, that takes the whole bandwidth of the memory.

    Nothing in it is fitted: it follows from the data sheet and the config.

    :param streams: of a replica at once; with several replicas their mean
    :param length: context of each, tokens; at 0 no launch is faster
    :returns: tokens per second; a launch with C(k) draft tokens may be C(k + 1) times as fast
    """
    return streams / least_step_seconds(launch, streams, length, BUS)


def _spread_of(service: SpeedInput, streams: int) -> Spread:
    if service.joined > 1:
        return SEVERAL_SPARKS_EAGER if service.launch.eager else SEVERAL_SPARKS
    # A step with drafts is a batch of tokens, even of a single stream.
    if streams == 1 and service.launch.drafting is None:
        return ONE_STREAM
    # Several streams read other experts and states than one stream does.
    varied = any(stage.experts or stage.recurrent for stage in service.reads.stages)
    return SEVERAL_STREAMS_MOE if varied else SEVERAL_STREAMS


def prefill_range(service: SpeedInput, prompt: int, constants: Constants) -> Range:
    """Return prompt tokens per second of one prompt of C(prompt) tokens on an idle engine."""
    rate = prompt / prefill_seconds(service.launch, constants, prompt)
    return Range.around([rate], PREFILL_SEVERAL if service.joined > 1 else PREFILL)


def bound_by(launch: Launch, streams: int, length: float, constants: Constants) -> str:
    """Name the largest part of a decode step: C(memory), C(compute), C(all-reduce) or C(launch overhead)."""
    time = step_time(launch, constants, streams, length)
    overhead = max(time.kernels, time.processor) if launch.eager else time.kernels
    parts = {"memory": time.memory, "compute": time.compute, "all-reduce": time.reduces, "launch overhead": overhead}
    return max(parts, key=lambda name: parts[name])


# Input -------------------------------------------------------------------------------------------------------------------


def read_service(item: ServiceInput, service: Mapping[str, Any], acceptance: float | None = None) -> SpeedInput:
    """Return what the speed of a service follows from.

    :param service: the same as it was given; of it count C(nodes), and C(args) and C(env) for kernels
    :param acceptance: mean tokens of a step with a drafter, None for the range of published rates
    :raises Refusal: for a config or a division that is not known
    """
    args, config = item.args, item.config
    if config is None:
        raise Refusal("config", "the speed follows from the config of the model", "give config, its config.json")
    split = split_of(args)
    _check_division(args, split, service.get("nodes"))
    cache = args.get("kv-cache-dtype", "auto")
    release = parse_release(item.vllm_version) if item.vllm_version else Release("", max(item.minors), False)
    settings = LaunchSettings(
        release,
        split,
        checkpoint_kv_dtype(config, item.quant_config) if cache == "auto" else cache,
        args.get("mamba-ssm-cache-dtype", "auto"),
        args.get("quantization", ""),
    )
    reads = read_launch(config, item.quant_config, settings)
    eager = bool(args.get("enforce-eager"))
    chunk = args.get("max-num-batched-tokens") or DEFAULT_BATCHED_TOKENS
    kernels = _kernels(item, service)
    replicas = split.replicas if any(stage.experts for stage in reads.stages) else 1
    try:
        draftings, decode_unknown = _read_drafting(item, reads, settings, acceptance)
    except _UnknownError as error:
        draftings, decode_unknown = (None,), str(error)
    drafted = draftings[0].tokens if draftings[0] else 0
    options = parse(dict(service.get("args") or {})).args
    piecewise = _is_piecewise(options, reads, settings, drafted)
    captured = captured_sizes(options, str(reads.family), 1 if piecewise else 1 + drafted, drafted)
    launches = tuple(
        Launch(reads, split.tensor, eager, kernels, chunk, drafting, replicas, captured, piecewise)
        for drafting in draftings
    )
    decode_unknown = _why_decode_unknown(args, reads) or decode_unknown
    sparse = "sparse attention: published prefill rates are two to four times off the model"
    return SpeedInput(item, reads, launches, decode_unknown, sparse if reads.is_sparse or reads.is_compressed else "")


def _check_division(args: Mapping[str, Any], split: Split, nodes: Any) -> None:
    """Refuse a division over ranks whose speed is not known, or that C(nodes) Sparks cannot hold."""
    ranks = split.tensor * split.pipeline * split.replicas
    if nodes is not None and nodes != ranks:
        raise Refusal(
            "nodes", f"{ranks} ranks take as many Sparks, not {nodes}", "leave nodes out, or correct the sizes"
        )
    if args.get("decode-context-parallel-size", 1) != 1:
        raise Refusal("args.decode-context-parallel-size", "its speed is not known")


def _why_decode_unknown(args: Mapping[str, Any], reads: Reads) -> str:
    """Return why the decode rate is unknown whatever the drafts; empty if it is known."""
    if args.get("enforce-eager") and reads.is_latent:
        return "no rate of latent attention without CUDA graphs was published"
    return "a pooling model makes no tokens" if args.get("runner") == "pooling" else ""


def captured_sizes(args: Mapping[str, Any], family: str, multiple: int, drafted: int) -> tuple[int, ...]:
    """Return the sizes of batches with a CUDA graph, as the launch lists them or as vLLM chooses them.

    :param args: options of vllm serve by their long names
    :param family: C(model_type) of the model
    :param multiple: of which whole graphs with drafts have a whole number of tokens
    :param drafted: tokens of a step
    :returns: tokens in ascending order
    """
    compilation = args.get("compilation-config")
    compilation = compilation if isinstance(compilation, Mapping) else {}
    sizes = args.get("cudagraph-capture-sizes") or compilation.get("cudagraph_capture_sizes")
    if not isinstance(sizes, list):
        most: Any = args.get("max-cudagraph-capture-size") or compilation.get("max_cudagraph_capture_size")
        default = largest_capture(DEFAULT_SEQS * (1 + drafted), family)
        sizes = capture_sizes(min(most, _LARGEST_GRAPH) if is_whole(most, 1, _LARGEST) else default)
    return tuple(sorted({-(-size // multiple) * multiple for size in sizes if is_whole(size, 1, _LARGEST)}))


def _is_piecewise(args: Mapping[str, Any], reads: Reads, settings: LaunchSettings, drafted: int) -> bool:
    """Tell whether attention runs between CUDA graphs: where the launch says so, and with drafts on FlashInfer before vLLM 0.28."""
    compilation = args.get("compilation-config")
    mode = compilation.get("cudagraph_mode") if isinstance(compilation, Mapping) else None
    if mode is not None:
        return str(mode).upper() == "PIECEWISE"
    backend = str(args.get("attention-backend") or "").upper()
    # FlashInfer is vLLM's choice on a GB10 for keys and values in FP8, which FlashAttention 2 does not read.
    is_default = not backend and settings.kv_cache_dtype.startswith("fp8") and not reads.is_latent
    is_default = is_default and all(stage.head_dim <= _LARGE_HEAD for stage in reads.stages)
    return drafted > 0 and settings.release.minor < _GRAPHS_WITH_DRAFTS and (backend == "FLASHINFER" or is_default)


def _kernels(item: ServiceInput, service: Mapping[str, Any]) -> dict[str, str]:
    """Return the kernels of linear layers by format, as the launch asks for them or as vLLM picks them on a GB10.

    Without an option a format whose kernel is uncertain counts as Marlin's in 4 bits, and as CUTLASS's in FP8.
    """
    args = parse(dict(service.get("args") or {})).args
    variables = _read_variables(item, service)
    quantization, _where = quantization_of(item.config or {}, item.quant_config)
    backend = str(args.get("linear-backend") or "auto").lower()
    linear = "" if backend == "auto" else backend
    fp4 = linear or variables.get("NVFP4_GEMM_BACKEND") or default_fp4_kernel(quantization)
    slow_fp8 = (
        MARLIN in linear
        or variables.get("TEST_FORCE_FP8_MARLIN") in ("1", "true")
        or "int8" in str(args.get("quantization"))  # of weights alone, which have the size of FP8
    )
    is_int8_plain = is_weight_only(quantization) or not quantization.get("config_groups")
    return {
        "fp8": MARLIN if slow_fp8 else "cutlass",
        "int8": MARLIN if MARLIN in linear or is_int8_plain else "cutlass",
        "fp4": _name_fp4_kernel(fp4),
        "experts": "fp4" if _name_fp4_kernel(str(args.get("moe-backend")).lower()) != MARLIN else "",
    }


def _read_variables(item: ServiceInput, service: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that the release may know, by their names without VLLM_, as the catalogue has them."""
    version = parse_version(item.vllm_version) if item.vllm_version else None
    return {
        name[5:]: str(value).lower()
        for name, value in (service.get("env") or {}).items()
        if has("environment", name[5:], version) is not False
    }


def _name_fp4_kernel(backend: str) -> str:
    if "b12x" in backend:
        return "b12x"
    return "cutlass" if any(name in backend for name in _FAST_4BIT) else MARLIN


class _UnknownError(Exception):
    """A reason why a rate is not known."""


def _read_drafting(
    item: ServiceInput, reads: Reads, settings: LaunchSettings, acceptance: float | None
) -> tuple[tuple[Drafting | None, ...], str]:
    """Return the speculative decoding of a launch, once for each acceptance to consider, and why the acceptance is unknown, or empty."""
    spec = item.args.get("speculative-config")
    if not isinstance(spec, Mapping) or not spec:
        return (None,), ""
    method, tokens = str(spec.get("method") or ""), spec.get("num_speculative_tokens")
    if not isinstance(tokens, int):
        raise _UnknownError("the number of draft tokens is not set")
    tensor = settings.split.tensor
    weights = _drafter_bytes(item, reads, method, tensor)
    model = None
    if method == "draft_model" and item.draft_config is not None:
        model = read_launch(item.draft_config, None, replace(settings, split=Split(tensor), runtime_quantization=""))
    passes = 0 if method in _WITHOUT_WEIGHTS else 1 if method in _ONE_PASS else tokens
    accepted, unknown = _read_acceptance(method, tokens, acceptance)
    has_head = method in _WITH_HEAD
    return tuple(Drafting(tokens, mean, passes, weights, has_head, model) for mean in sorted(set(accepted))), unknown


def _read_acceptance(method: str, tokens: int, acceptance: float | None) -> tuple[tuple[float, float], str]:
    """Return the mean tokens of a step, from least to most, and why they are unknown, or empty. acceptance: as of C(read_service)."""
    accepted = ACCEPTANCE.get("mtp" if is_self_drafting(method) else method, {}).get(tokens)
    if acceptance is not None:
        accepted = (acceptance, acceptance)
    if accepted is None:
        reason = f"the acceptance of {tokens} draft tokens of method {method!r} was not published; give acceptance"
    elif accepted[-1] > tokens + 1:
        reason = f"a step with {tokens} draft tokens yields at most {tokens + 1}, not {accepted[-1]:g}"
    else:
        return accepted, ""
    return (1.0, 1.0), reason


def _drafter_bytes(item: ServiceInput, reads: Reads, method: str, tensor: int) -> float | None:
    """Return the bytes of a separate drafter on one rank, C(None) for layers of the checkpoint or methods without a model."""
    if method in _WITHOUT_WEIGHTS:
        return 0.0
    if is_self_drafting(method) or (method == "dspark" and reads.draft is not None):
        if reads.draft is not None:
            return None
        if item.draft_weights_gib is None and item.draft_config is None:
            raise _UnknownError("the config names no layers that draft")
    if item.draft_weights_gib is not None:
        return item.draft_weights_gib * GIB / tensor
    if item.draft_config is None:
        raise _UnknownError(f"the size of the drafter of method {method!r} is not given")
    drafter = read_geometry(item.draft_config)
    return float(drafter_bytes(item.draft_config, drafter, method, tensor_parallel=tensor))
