# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a launch by the vLLM of an image: the answer of C(_content/plan_probe_program.py), checked and typed.

Answers of images are untrusted: C(raw) refuses values that the program cannot print; C(read) returns an C(Answer).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._common import reader
from .._common.foreign_text import Untrusted, printable
from .._common.reader import MOST_TEXT, NUMBER, SIZE, Either, Maybe, Most, Then, one_of, optional, refused

MOST_LAYERS = 10_000
MOST_SIZES = 1000
UNKNOWN = "unknown"
REFUSED = "refused"


def _bounded(text: str, where: str) -> str:
    if len(text) > MOST_TEXT:
        raise Untrusted(refused(where, text, "a text"))
    return printable(text)


_TEXT = Then(str, _bounded)


def _field(value: Any, where: str) -> Any:
    """Return a field of a spec, whose form differs between versions: a number, a boolean, a short text, or lists of them."""
    if isinstance(value, (list, tuple)):
        return [_field(item, where) for item in reader.read(Most([Any], 100), value, where)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return reader.read(_TEXT, value, where)
    reader.read(NUMBER, -value if isinstance(value, (int, float)) and value < 0 else value, where)  # -1 may mean "all"
    return value


def _spec(value: Any, where: str) -> dict[str, Any]:
    spec: dict[str, Any] = reader.read(_SPEC, value, where)
    return spec


_SPECS = Most([_spec], MOST_LAYERS)
_SPEC = Most(
    {"kind": _TEXT, "block": SIZE, "page": SIZE, "layers": SIZE, "members?": Maybe(_SPECS), _TEXT: _field}, 105
)
_FAILURE = {"stage": _TEXT, "kind": one_of(UNKNOWN, REFUSED), "type": _TEXT, "text": _TEXT, "where?": _TEXT}
_MODULES = Most({_TEXT: SIZE}, MOST_LAYERS)
_WEIGHTS = {
    "bytes": SIZE,
    "host_bytes": SIZE,
    "buffer_bytes": SIZE,
    "dtypes": Most({_TEXT: SIZE}, 100),
    "modules?": _MODULES,
}
_RANK = {
    "weights": {"target": _WEIGHTS, "draft?": _WEIGHTS},
    "kernels": Most([_TEXT], 1000),
    "attention": Most([_TEXT], 100),
    "specs": _SPECS,
    "shared_layers": SIZE,
    "adapters?": optional({"bytes": SIZE, "modules": _MODULES, "failure": _FAILURE}),
}
_SIZE = {
    "available": SIZE,
    **optional(dict.fromkeys(("blocks", "block_size", "bytes_per_block", "max_model_len"), SIZE)),
    **optional(dict.fromkeys(("tokens", "needed"), Maybe(SIZE))),
    **optional({"concurrency": NUMBER, "groups": Most([_spec], 1000), "refused": _FAILURE}),
}
_RESOLVED = {
    **dict.fromkeys(("max_model_len", "max_num_batched_tokens", "max_num_seqs", "cudagraph_sizes"), SIZE),
    **dict.fromkeys(("max_cudagraph_size", "tensor_parallel", "pipeline_parallel", "blocks_override"), SIZE),
    **dict.fromkeys(("async_scheduling", "enable_prefix_caching"), bool),
    **dict.fromkeys(("mamba_cache_mode", "kv_cache_dtype", "dtype", "quantization", "cudagraph_mode"), _TEXT),
    **{"executor": _TEXT, "runner": one_of("v1", "v2"), "gpu_memory_utilization": NUMBER},
    "widths?": Most({_TEXT: _field}, 100),
}
ANSWER = {
    **{"packages": Most({_TEXT: _TEXT}, 100), "failure": Maybe(_FAILURE), "ranks": Most([_RANK], 1024)},
    **{"sizes": Most([_SIZE], MOST_SIZES), "log": Most([_TEXT], 1000), "assumed": Most({_TEXT: _TEXT}, 1000)},
    **{"seconds": NUMBER, "peak_bytes": SIZE},
    "resolved?": Maybe(Either(_RESOLVED, one_of({}))),
    **optional({"triton": bool, "front_end": Most([_TEXT], 1000), "cpu_seconds": NUMBER}),
}
"""Form of an answer as the program prints it."""


def raw(value: Any, where: str) -> dict[str, Any]:
    """Return a checked answer as the program prints it; raises C(Untrusted)."""
    answer: dict[str, Any] = reader.read(ANSWER, value, where)
    return answer


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
    modules: dict[str, int]


@dataclass(frozen=True)
class Rank:
    """One pipeline stage: all tensor-parallel ranks of a stage are alike.

    adapters: bytes that vLLM reserves for LoRA adapters, C(None) if there are no adapters or the size is unknown.
    """

    target: Weights
    draft: Weights | None
    specs: tuple[dict[str, Any], ...]
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
    concurrency: float
    max_model_len: int
    groups: list[dict[str, Any]]
    tokens: int | None = None
    needed: int | None = None


@dataclass(frozen=True)
class Answer:
    """An image's answer about one launch.

    version: of its vLLM. resolved: the arguments after vLLM's defaults. cuts, refusals: by the bytes in the question.
    triton: whether the image has Triton; without it vLLM takes the older model runner and other kernels.
    """

    version: str
    failure: Failure | None
    resolved: dict[str, Any]
    ranks: tuple[Rank, ...]
    cuts: dict[int, Cut]
    refusals: dict[int, Failure]
    triton: bool = True


def _read_weights(value: Mapping[str, Any]) -> Weights:
    return Weights(value["bytes"], value["host_bytes"], value.get("modules") or {})


def _read_cut(value: Mapping[str, Any], override: int, where: str) -> Cut:
    required = ("blocks", "block_size", "bytes_per_block", "concurrency", "max_model_len", "groups")
    missing = [name for name in required if name not in value]
    if missing:
        raise Untrusted(f"{where} lacks '{missing[0]}'")
    # Divisors must not be 0, and a plan must not hold more than the available memory.
    if not all(value[name] for name in required[:-1]):
        raise Untrusted(f"{where} has a cache of nothing")
    if not override and value["blocks"] * value["bytes_per_block"] > value["available"]:
        raise Untrusted(f"{where} has more blocks than {value['available']} bytes allow")
    return reader.from_dict(Cut, value)


def read(value: Any, where: str = "the image's answer") -> Answer:
    """Return a checked answer, as C(plan_probe.parse) returns it; raises C(Untrusted) for values that the program cannot print."""
    answer = raw(value, where)
    ranks = tuple(
        Rank(
            _read_weights(rank["weights"]["target"]),
            _read_weights(rank["weights"]["draft"]) if "draft" in rank["weights"] else None,
            tuple(rank["specs"]),
            (rank.get("adapters") or {}).get("bytes"),
        )
        for rank in answer["ranks"]
    )
    resolved = answer.get("resolved") or {}
    stages = resolved.get("pipeline_parallel", 0)
    if not answer["failure"] and (not ranks or len(ranks) != stages):
        raise Untrusted(f"{where} is of {len(ranks)} pipeline stages, not {stages}")
    cuts: dict[int, Cut] = {}
    refusals: dict[int, Failure] = {}
    for place, entry in enumerate(answer["sizes"]):
        if "refused" in entry:
            refusals[entry["available"]] = reader.from_dict(Failure, entry["refused"])
        else:
            cuts[entry["available"]] = _read_cut(entry, resolved.get("blocks_override", 0), f"{where}.sizes[{place}]")
    return Answer(
        version=answer["packages"].get("vllm", ""),
        failure=reader.from_dict(Failure, answer["failure"]) if answer["failure"] else None,
        resolved=resolved,
        ranks=ranks,
        cuts=cuts,
        refusals=refusals,
        triton=answer.get("triton", True),
    )
