# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a launch by the vLLM of an image: the answer of C(_content/plan_probe_program.py), checked and typed.

Answers of images are untrusted: C(raw) refuses values that the program cannot print. C(read) makes an C(Answer) of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._common import untrusted
from .._common.untrusted import Untrusted, flag, listing, maybe, number, one_of, record, size, table

MOST_LAYERS = 10_000
MOST_SIZES = 1000
UNKNOWN = "unknown"
REFUSED = "refused"


def _words(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > untrusted.MOST_TEXT:
        raise untrusted.refuse(where, value, "a text")
    return untrusted.printable(value)


def _field(value: Any, where: str) -> Any:
    """Return a field of a spec, whose form differs between versions: a number, yes or no, a short text, or lists of them."""
    if isinstance(value, (list, tuple)):
        return [_field(item, where) for item in listing(untrusted.anything, 100)(value, where)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _words(value, where)
    number(-value if isinstance(value, (int, float)) and value < 0 else value, where)  # -1 stands for "all" in some
    return value


def _spec(value: Any, where: str) -> dict[str, Any]:
    needed = {"kind": _words, "block": size, "page": size, "layers": size}
    spec = record(needed)(value, where)
    members = value.get("members")
    if members is not None:
        spec["members"] = listing(_spec, MOST_LAYERS)(members, f"{where}.members")
    more = {name: field_value for name, field_value in value.items() if name not in (*needed, "members")}
    return {**spec, **table(_words, _field, 100)(more, where)}


_FAILURE = record(
    {"stage": _words, "kind": one_of(UNKNOWN, REFUSED), "type": _words, "text": _words}, {"where": _words}
)
_WEIGHTS = record(
    {"bytes": size, "host_bytes": size, "buffer_bytes": size, "dtypes": table(_words, size, 100)},
    {"modules": table(_words, size, MOST_LAYERS)},
)
_RANK = record(
    {
        "weights": table(one_of("target", "draft"), _WEIGHTS, 2),
        "kernels": listing(_words, 1000),
        "attention": listing(_words, 100),
        "specs": listing(_spec, MOST_LAYERS),
        "shared_layers": size,
    },
    {"adapters": record({}, {"bytes": size, "modules": table(_words, size, MOST_LAYERS), "failure": _FAILURE})},
)
_SIZE = record(
    {"available": size},
    {
        **dict.fromkeys(("blocks", "block_size", "bytes_per_block", "max_model_len"), size),
        **{"tokens": maybe(size), "needed": maybe(size), "concurrency": number, "groups": listing(_spec, 1000)},
        "refused": _FAILURE,
    },
)
_RESOLVED = record(
    {
        **dict.fromkeys(("max_model_len", "max_num_batched_tokens", "max_num_seqs", "cudagraph_sizes"), size),
        **dict.fromkeys(("max_cudagraph_size", "tensor_parallel", "pipeline_parallel", "blocks_override"), size),
        **dict.fromkeys(("async_scheduling", "enable_prefix_caching"), flag),
        **dict.fromkeys(("mamba_cache_mode", "kv_cache_dtype", "dtype", "quantization", "cudagraph_mode"), _words),
        **{"executor": _words, "runner": one_of("v1", "v2"), "gpu_memory_utilization": number},
    },
    {"widths": table(_words, _field, 100)},
)
_NEEDED = {
    **{"packages": table(_words, _words, 100), "failure": maybe(_FAILURE), "ranks": listing(_RANK, 1024)},
    **{"sizes": listing(_SIZE, MOST_SIZES), "log": listing(_words, 1000), "assumed": table(_words, _words, 1000)},
    **{"seconds": number, "peak_bytes": size},
}
raw = record(
    _NEEDED,
    {"resolved": maybe(_RESOLVED, {}), "triton": flag, "front_end": listing(_words, 1000), "cpu_seconds": number},
)
"""Parser of an answer as the program prints it; raises C(Untrusted)."""


def brief(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a printed answer without the parts for people only: its log and its assumptions."""
    return {**answer, "log": [], "assumed": {}}


@dataclass(frozen=True)
class Failure:
    """Why there is no figure.

    kind: C(refused) if vLLM refuses the launch, C(unknown) if it could not be asked. stage: the last step it reached (import, arguments,
    config, model, block size, specs, plan). text: of the error itself.
    """

    kind: str
    stage: str
    type: str
    text: str


@dataclass(frozen=True)
class Weights:
    """Bytes of the loaded parameters of one model on one rank, before kernels repack them.

    host: of them, bytes in pinned host memory, which is the same memory on a GB10. modules: bytes by module, layers together as C(*).
    """

    bytes: int
    host: int
    buffers: int
    dtypes: dict[str, int]
    modules: dict[str, int]


@dataclass(frozen=True)
class Rank:
    """One pipeline stage: all tensor-parallel ranks of a stage are alike.

    adapters: bytes that vLLM reserves for LoRA adapters, C(None) if there are no adapters or the size is unknown.
    """

    target: Weights
    draft: Weights | None
    attention: tuple[str, ...]
    kernels: tuple[str, ...]
    specs: tuple[dict[str, Any], ...]
    shared_layers: int
    adapters: int | None = None


@dataclass(frozen=True)
class Cut:
    """The blocks of a KV cache of C(available) bytes.

    tokens: as vLLM prints them. concurrency: requests of C(max_model_len) tokens that fit at once. needed: bytes of one of them.
    """

    available: int
    blocks: int
    block_size: int
    bytes_per_block: int
    tokens: int | None
    concurrency: float
    max_model_len: int
    needed: int | None
    groups: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Answer:
    """An image's answer about one launch.

    version: of its vLLM. resolved: the arguments after vLLM's defaults. cuts, refusals: by the bytes in the question.
    assumed: answers in place of a GPU, by name. seconds, peak: duration and peak memory in bytes of the question. triton: whether the
    image has Triton; without it vLLM takes the older model runner and other kernels.
    """

    version: str
    failure: Failure | None
    resolved: dict[str, Any]
    ranks: tuple[Rank, ...]
    cuts: dict[int, Cut]
    refusals: dict[int, Failure]
    assumed: dict[str, str]
    log: tuple[str, ...]
    seconds: float
    peak: int
    triton: bool = True

    def at(self, available: int) -> Cut | Failure | None:
        """Return how C(available) bytes are cut, or how vLLM refuses; None if the image has to be asked.

        For another size the cut is computed only if it follows from the known ones: blocks of one size, one longest context.
        """
        if self.failure is not None:
            return self.failure
        if available in self.refusals:
            return self.refusals[available]
        if available in self.cuts:
            return self.cuts[available]
        cuts = list(self.cuts.values())
        if (
            len(cuts) < 2
            or self.resolved.get("blocks_override")
            or any(cut.available // cut.bytes_per_block != cut.blocks for cut in cuts)
        ):
            return None
        return _extrapolate(cuts, available)


def _extrapolate(cuts: Sequence[Cut], available: int) -> Cut | None:
    """Return the cut of C(available) bytes if it follows from the known cuts, else None."""
    first = cuts[0]
    request = first.blocks / first.concurrency
    is_uniform = all(
        (cut.bytes_per_block, cut.max_model_len, cut.needed, cut.block_size)
        == (first.bytes_per_block, first.max_model_len, first.needed, first.block_size)
        and abs(cut.blocks / cut.concurrency - request) < 1e-6 * request
        and cut.tokens == int(cut.concurrency * cut.max_model_len)
        for cut in cuts
    )
    # Newer versions keep one block back in their check; sizes that pass only one of the two checks have to be asked.
    if not is_uniform or first.needed is None or available - first.bytes_per_block < first.needed:
        return None
    blocks_of_request = round(request)
    if abs(request - blocks_of_request) > 1e-6 * request:
        return None
    blocks = available // first.bytes_per_block
    concurrency = blocks / blocks_of_request
    return replace(
        first,
        available=available,
        blocks=blocks,
        tokens=int(concurrency * first.max_model_len),
        concurrency=concurrency,
    )


def _read_failure(value: Mapping[str, Any]) -> Failure:
    return Failure(value["kind"], value["stage"], value["type"], value["text"])


def _read_weights(value: Mapping[str, Any]) -> Weights:
    return Weights(
        value["bytes"], value["host_bytes"], value["buffer_bytes"], value["dtypes"], value.get("modules") or {}
    )


def _read_rank(value: Mapping[str, Any], where: str) -> Rank:
    weights = value["weights"]
    if "target" not in weights:
        raise Untrusted(f"{where}.weights lacks 'target'")
    return Rank(
        _read_weights(weights["target"]),
        _read_weights(weights["draft"]) if "draft" in weights else None,
        tuple(value["attention"]),
        tuple(value["kernels"]),
        tuple(value["specs"]),
        value["shared_layers"],
        (value.get("adapters") or {}).get("bytes"),
    )


def _read_cut(value: Mapping[str, Any], override: int, where: str) -> Cut:
    required = ("blocks", "block_size", "bytes_per_block", "concurrency", "max_model_len", "groups")
    missing = [name for name in required if name not in value]
    if missing:
        raise Untrusted(f"{where} lacks '{missing[0]}'")
    # Divisors must not be 0, and a plan must not hold more than the available memory.
    if not all(value[name] for name in ("blocks", "block_size", "bytes_per_block", "concurrency", "max_model_len")):
        raise Untrusted(f"{where} has a cache of nothing")
    if not override and value["blocks"] * value["bytes_per_block"] > value["available"]:
        raise Untrusted(f"{where} has more blocks than {value['available']} bytes hold")
    return Cut(
        value["available"],
        value["blocks"],
        value["block_size"],
        value["bytes_per_block"],
        value.get("tokens"),
        float(value["concurrency"]),
        value["max_model_len"],
        value.get("needed"),
        tuple(value["groups"]),
    )


def read(value: Any, where: str = "the image's answer") -> Answer:
    """Return a checked answer; raises C(Untrusted) for values that the program cannot print.

    value: as C(plan_probe.parse) returns it.
    """
    answer = raw(value, where)
    ranks = tuple(_read_rank(entry, f"{where}.ranks[{place}]") for place, entry in enumerate(answer["ranks"]))
    failure = _read_failure(answer["failure"]) if answer["failure"] else None
    resolved = answer.get("resolved") or {}
    stages = resolved.get("pipeline_parallel", 0)
    if failure is None and (not ranks or len(ranks) != stages):
        raise Untrusted(f"{where} is of {len(ranks)} pipeline stages, not {stages}")
    cuts: dict[int, Cut] = {}
    refusals: dict[int, Failure] = {}
    for place, entry in enumerate(answer["sizes"]):
        if "refused" in entry:
            refusals[entry["available"]] = _read_failure(entry["refused"])
        else:
            cuts[entry["available"]] = _read_cut(entry, resolved.get("blocks_override", 0), f"{where}.sizes[{place}]")
    return Answer(
        answer["packages"].get("vllm", ""),
        failure,
        resolved,
        ranks,
        cuts,
        refusals,
        answer["assumed"],
        tuple(answer["log"]),
        answer["seconds"],
        answer["peak_bytes"],
        answer.get("triton", True),
    )
