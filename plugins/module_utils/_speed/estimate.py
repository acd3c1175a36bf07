# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The speed of a service as ranges: tokens per second by streams, prefill and first token by prompt, and what limits it.

A figure that is not known is left out, with the reason. No I/O, no Ansible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .._common.plain_data import InputError, is_number, is_whole
from .._common.sizes import GIB
from .._memory.engine import start_seconds
from .._memory.geometry import checkpoint_kv_dtype, read_geometry
from .._memory.layers import Refusal
from .._memory.releases import Release, parse_release
from .._memory.service_input import DEFAULT_BATCHED_TOKENS, ServiceInput, read_params
from .._memory.service_weights import split_of
from .._memory.speculation import is_self_drafting
from .._memory.weights import drafter_bytes
from .._vllm.launch import parse
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
from .time_model import (
    MARLIN,
    Drafting,
    Launch,
    StepBytes,
    decode_seconds,
    prefill_seconds,
    step_bytes,
    step_time,
)

STREAMS = (1, 4, 16, 64)
PROMPT_TOKENS = (1024,)
OUTPUT_TOKENS = 128
_LARGEST = 1 << 24
"""No workload has more streams or tokens."""
_HOST = {"total_gib": 119.67}
"""The memory of a GB10; speed does not depend on it."""
# Methods of speculative decoding that draft all tokens in one pass.
_ONE_PASS = frozenset(("dflash", "dspark", "medusa", "mlp_speculator"))
_WITHOUT_WEIGHTS = frozenset(("ngram", "ngram_gpu", "suffix"))
# The number of decode slots whose kernels vLLM picks on sm_121 by itself: FP8 by CUTLASS, 4 bits by Marlin.
_FAST_4BIT = ("cutlass", "flashinfer", "trtllm")


@dataclass(frozen=True)
class Workload:
    """What a service is asked for. streams: at once. prompts: lengths in tokens. output: tokens of an answer."""

    streams: tuple[int, ...] = STREAMS
    prompts: tuple[int, ...] = PROMPT_TOKENS
    output: int = OUTPUT_TOKENS


@dataclass(frozen=True)
class Range:
    """A figure as the least, the most likely and the most."""

    low: float
    typical: float
    high: float

    @classmethod
    def around(cls, rates: Iterable[float], spread: Spread) -> Range:
        """Return the range of rates and of what is published around such rates."""
        ordered = sorted(rates)
        typical = math.sqrt(ordered[0] * ordered[-1])
        return cls(ordered[0] * spread.low, typical, ordered[-1] * spread.high)

    def scaled(self, factor: float) -> Range:
        """Return the range times a factor."""
        return Range(self.low * factor, self.typical * factor, self.high * factor)

    def inverted(self, factor: float) -> Range:
        """Return C(factor) divided by the range: seconds of a rate."""
        return Range(factor / self.high, factor / self.typical, factor / self.low)

    def to_dict(self) -> dict[str, float]:
        """Return three significant digits of each."""
        return {key: _round(value) for key, value in vars(self).items()}


def _round(value: float) -> float:
    return float(f"{value:.3g}")


@dataclass(frozen=True)
class _Service:
    """A service with what its ranks read. launches: one for each acceptance that has to be considered."""

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
        """Ranks, each of which is a Spark."""
        return self.launch.ranks * len(self.reads.stages)

    @property
    def has_varied_steps(self) -> bool:
        """Whether steps of several streams read other bytes than those of one: experts, states."""
        return any(stage.experts or stage.recurrent for stage in self.reads.stages)


def speed_estimate(params: Mapping[str, Any], constants: Constants = GB10) -> dict[str, Any]:
    """Predict the speed of services, each alone on its Sparks.

    :param params: options of the module C(speed_estimate), as documented there
    :param constants: of the GPU
    :returns: C(services) by name
    :raises InputError: for malformed input
    """
    workload, acceptance, raw = _read_workload(params)
    _host, items = read_params({**_HOST, "services": [_without_nodes(service) for service in raw]})
    given = {service.get("name"): service for service in raw}
    return {
        "services": {
            item.name: _estimate_item(item, given[item.name], workload, acceptance, constants) for item in items
        }
    }


def _without_nodes(service: Any) -> Any:
    return {key: value for key, value in service.items() if key != "nodes"} if isinstance(service, Mapping) else service


def _read_workload(params: Mapping[str, Any]) -> tuple[Workload, float | None, list[Any]]:
    """Read the workload, the acceptance and the services; raise one error with all that is wrong."""
    messages = []
    workload = params.get("workload") or {}
    if not isinstance(workload, Mapping):
        raise InputError([f"workload: expected a mapping, got {workload!r}"])
    messages += [
        f"workload.{key}: unknown key; known are concurrency, output_tokens, prompt_tokens"
        for key in workload
        if key not in ("concurrency", "prompt_tokens", "output_tokens")
    ]
    numbers: dict[str, tuple[int, ...]] = {}
    defaults = {"concurrency": STREAMS, "prompt_tokens": PROMPT_TOKENS, "output_tokens": (OUTPUT_TOKENS,)}
    for key, default in defaults.items():
        value = workload.get(key)
        values = list(default) if value is None else value if isinstance(value, list) else [value]
        if not values or not all(is_whole(number, 1, _LARGEST) for number in values):
            messages.append(f"workload.{key}: expected whole numbers of 1 to {_LARGEST}, got {value!r}")
        numbers[key] = tuple(sorted(set(values))) if not messages else default
    acceptance = params.get("acceptance")
    if acceptance is not None and not is_number(acceptance, 1, 64):
        messages.append(f"acceptance: expected the mean tokens of a step, 1 to 64, got {acceptance!r}")
    services = params.get("services")
    if not isinstance(services, list) or not services:
        messages.append(f"services: expected a list of services, got {services!r}")
        services = []
    messages += [
        f"services[{index}].nodes: expected a whole number of at least 1, got {service['nodes']!r}"
        for index, service in enumerate(services)
        if isinstance(service, Mapping) and service.get("nodes") is not None and not is_whole(service["nodes"], 1, 64)
    ]
    if messages:
        raise InputError(messages)
    output = numbers["output_tokens"][-1]
    chosen = Workload(numbers["concurrency"], numbers["prompt_tokens"], output)
    return chosen, None if acceptance is None else float(acceptance), services


def _estimate_item(
    item: ServiceInput, given: Mapping[str, Any], workload: Workload, acceptance: float | None, constants: Constants
) -> dict[str, Any]:
    """Return the result of one service; what cannot be known is in C(unknown), with the reason."""
    try:
        service = _read_service(item, given, acceptance)
    except Refusal as refusal:
        fix = f"; {refusal.fix}" if refusal.fix else ""
        return {"unknown": {"all": f"{refusal.key}: {refusal.reason}{fix}"}}
    return describe(service, workload, constants)


def describe(service: _Service, workload: Workload, constants: Constants) -> dict[str, Any]:
    """Return the figures of a service as plain data."""
    length = workload.prompts[-1] + workload.output / 2
    read = read_bytes(service.launch, 1, length, constants)
    result: dict[str, Any] = {
        "sparks": service.sparks,
        "bytes_per_token": {**{key: round(value) for key, value in vars(read).items()}, "total": round(read.total)},
        "ceiling": _round(BUS / read.total),
        "load_seconds": _load_seconds(service),
        "unknown": {},
    }
    if service.decode_unknown:
        result["unknown"]["decode"] = service.decode_unknown
    else:
        decode = {streams: decode_range(service, streams, length, constants) for streams in workload.streams}
        result["decode"] = {str(streams): rate.to_dict() for streams, rate in decode.items()}
        result["aggregate"] = {str(streams): rate.scaled(streams).to_dict() for streams, rate in decode.items()}
        result["bound_by"] = bound_by(service.launch, workload.streams[0], length, constants)
    if service.prefill_unknown:
        result["unknown"]["prefill"] = service.prefill_unknown
    else:
        prefill = {prompt: prefill_range(service, prompt, constants) for prompt in workload.prompts}
        result["prefill"] = {str(prompt): rate.to_dict() for prompt, rate in prefill.items()}
        result["ttft"] = {str(prompt): rate.inverted(prompt).to_dict() for prompt, rate in prefill.items()}
    return result


def read_bytes(launch: Launch, streams: int, length: float, constants: Constants) -> StepBytes:
    """Return the bytes that the ranks of all stages read one after the other in a decode step."""
    total = StepBytes()
    for stage in launch.reads.stages:
        total += step_bytes(stage, streams, 1, length, constants.alpha)
    return total


def decode_range(service: _Service, streams: int, length: float, constants: Constants) -> Range:
    """Return tokens per second of one stream among C(streams)."""
    rates = [1 / decode_seconds(launch, constants, streams, length) for launch in service.launches]
    if service.sparks > 1:
        spread = SEVERAL_SPARKS_EAGER if service.launch.eager else SEVERAL_SPARKS
    elif streams == 1:
        spread = ONE_STREAM
    else:
        spread = SEVERAL_STREAMS_MOE if service.has_varied_steps else SEVERAL_STREAMS
    return Range.around(rates, spread)


def prefill_range(service: _Service, prompt: int, constants: Constants) -> Range:
    """Return prompt tokens per second of one prompt on an idle engine."""
    rate = prompt / prefill_seconds(service.launch, constants, prompt)
    return Range.around([rate], PREFILL_SEVERAL if service.sparks > 1 else PREFILL)


def bound_by(launch: Launch, streams: int, length: float, constants: Constants) -> str:
    """Name what takes most of a decode step: C(memory), C(compute), C(all-reduce) or C(launch overhead)."""
    time = step_time(launch, constants, streams, length)
    overhead = max(time.kernels, time.processor) if launch.eager else time.kernels
    parts = {"memory": time.memory, "compute": time.compute, "all-reduce": time.reduces, "launch overhead": overhead}
    return max(parts, key=lambda name: parts[name])


def _load_seconds(service: _Service) -> dict[str, int]:
    held = max(stage.held for stage in service.reads.stages)
    return start_seconds(service.item.overheads, int(held), "graphs")


# Input -------------------------------------------------------------------------------------------------------------------


def _read_service(item: ServiceInput, given: Mapping[str, Any], acceptance: float | None) -> _Service:
    args, config = item.args, item.config
    if config is None:
        raise Refusal("config", "without the config of the model nothing is known", "give config, its config.json")
    release = parse_release(item.vllm_version) if item.vllm_version else Release("", max(item.minors or (33,)), False)
    split = split_of(args)
    ranks = split.tensor * split.pipeline * split.replicas
    nodes = given.get("nodes")
    if nodes is not None and nodes != ranks:
        raise Refusal(
            "nodes", f"{ranks} ranks take as many Sparks, not {nodes}", "leave nodes out, or correct the sizes"
        )
    if args.get("decode-context-parallel-size", 1) != 1:
        raise Refusal("args.decode-context-parallel-size", "its speed is not known")
    cache = args.get("kv-cache-dtype", "auto")
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
    draftings, reason = _read_drafting(item, reads, split.tensor, acceptance)
    kernels = _kernels(given)
    launches = tuple(Launch(reads, split.tensor, eager, kernels, chunk, drafting) for drafting in draftings)
    if eager and reads.is_latent:
        reason = "no rate of latent attention without CUDA graphs was published"
    sparse = "sparse attention: published prefill rates are two to four times off the model" if reads.is_sparse else ""
    if not sparse and any(stage.latent and stage.contexts and not _is_plain_latent(reads) for stage in reads.stages):
        sparse = "the prefill of compressed caches is not known"
    return _Service(item, reads, launches, reason, sparse)


def _is_plain_latent(reads: Reads) -> bool:
    """Tell whether all latent layers keep a row for every token, as DeepSeek V3 does."""
    return not reads.family.startswith("deepseek_v4")


def _kernels(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the kernels of formats, as the launch asks for them or as vLLM picks them on a GB10."""
    args = given.get("args")
    env = given.get("env")
    parsed = parse(dict(args)).args if isinstance(args, Mapping) else {}
    variables = env if isinstance(env, Mapping) else {}
    backend = " ".join(
        str(value).lower()
        for value in (parsed.get("linear-backend"), variables.get("VLLM_NVFP4_GEMM_BACKEND"))
        if value
    )
    forced = str(variables.get("VLLM_TEST_FORCE_FP8_MARLIN", "0")) in ("1", "true", "True")
    return {
        "fp8": MARLIN if MARLIN in backend or forced else "cutlass",
        "fp4": "cutlass" if any(name in backend for name in _FAST_4BIT) else MARLIN,
    }


def _read_drafting(
    item: ServiceInput, reads: Reads, tensor: int, acceptance: float | None
) -> tuple[tuple[Drafting | None, ...], str]:
    """Return the speculative decoding of a launch, once for each acceptance to consider, and why its rate is not known."""
    spec = item.args.get("speculative-config")
    if not isinstance(spec, Mapping) or not spec:
        return (None,), ""
    method = str(spec.get("method") or "")
    tokens = spec.get("num_speculative_tokens")
    if not isinstance(tokens, int):
        return (None,), "the number of draft tokens is not stated"
    of_model = is_self_drafting(method) or (method == "dspark" and reads.draft is not None)
    weights: float | None = None
    if not of_model and method not in _WITHOUT_WEIGHTS:
        if item.draft_weights_gib is not None:
            weights = item.draft_weights_gib * GIB / tensor
        elif item.draft_config is not None:
            drafter = read_geometry(item.draft_config)
            weights = float(drafter_bytes(item.draft_config, drafter, method, tensor_parallel=tensor))
        else:
            return (None,), f"the size of the drafter of method {method!r} is not stated"
    elif of_model and reads.draft is None:
        return (None,), "the config names no layers that draft"
    if acceptance is None:
        family = "mtp" if is_self_drafting(method) else method
        published = ACCEPTANCE.get(family, {}).get(tokens)
        if published is None:
            return (
                None,
            ), f"how many of {tokens} draft tokens of method {method!r} are accepted was not published; give acceptance"
    else:
        published = (acceptance, acceptance)
    if published[-1] > tokens + 1:
        return (None,), f"a step with {tokens} draft tokens yields at most {tokens + 1}, not {published[-1]:g}"
    passes = 0 if method in _WITHOUT_WEIGHTS else 1 if method in _ONE_PASS else tokens
    return tuple(Drafting(tokens, accepted, passes, weights) for accepted in sorted(set(published))), ""
