# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory that vLLM reserves at its start for LoRA adapters, regardless of the adapters' contents.

For every matrix of the language model that an adapter may change it reserves two: A with C(max-lora-rank) rows and B with as many columns, for
each of C(max-loras). vLLM makes them right after loading and counts them as weights (create_lora_weights of vllm/lora/layers/, read in
0.15.1 to 0.33.0; the bytes of vLLM's own classes are tests/unit/plugins/fixtures/adapter_rows.json).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .geometry import Geometry
from .layers import Config, Recurrent, Refusal, text_config
from .modules import Module
from .weights import Split, is_tied, padded_experts, padded_vocabulary, stage_modules

OPTION = "enable-lora"
ASK = "leave the adapters out, or have the image asked (spark_probe)"

# Matrices of which tensor parallelism divides the columns, so that A is divided and B is not; of all others B is.
_BY_COLUMNS = frozenset(("o_proj", "down_proj", "out_proj"))
# Joined matrices with an A for each part: z, x, B, C and dt of Mamba-2, and q, k and v of a gated delta net.
_JOINED = {"in_proj": 5, "in_proj_qkv": 3}
# Mamba-2 makes its convolution of x, B and C.
_CONVOLUTIONS = {"mamba": 3}
# Kinds of adapters of experts: one A for gate and up together (is_3d_moe_weight), else two.
_GATE_AND_UP_IN_ONE = frozenset(("gpt_oss", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_5_moe_text"))

# Families whose embedding and head may be changed, too (embedding_modules), from the minor release on that is named.
_EMBEDDED = {
    **dict.fromkeys(
        ("apertus", "ernie4_5", "exaone4", "glm", "granite", "granitemoe", "llama", "llama4", "llama4_text"), 0
    ),
    **dict.fromkeys(("mixtral", "nemotron", "nemotron_h", "phi3", "phimoe", "solar"), 0),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text"), 16),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), 29),
}
# Families in which a tied head was the embedding itself and got separate room before this minor release.
_HEAD_IS_EMBEDDING = {"qwen3": 28, "qwen3_vl": 28, "qwen3_vl_text": 28}
# Families whose router gets no adapter before this minor release, since it is no layer of vLLM's; 0 for all releases.
_SPARED_ROUTERS = {"glm4_moe": 31, "glm4_moe_lite": 31, "nemotron_h": 0}
# Families that were compared with vLLM's classes. Others of plain layers are a range; the rest is not known.
COMPARED = frozenset(
    (
        "deepseek_v3",
        "ernie4_5_moe",
        "exaone4",
        "gemma4",
        "gemma4_text",
        "glm4_moe",
        "glm4_moe_lite",
        "gpt_oss",
        "laguna",
        "llama4",
        "llama4_text",
        "ministral3",
        "nemotron_h",
        "qwen3",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl_moe",
        "qwen3_vl_moe_text",
    )
)
# Families with special layers whose adapters were never compared.
_UNKNOWN = frozenset(
    (
        "deepseek_v32",
        "deepseek_v4",
        "deepseek_v41_text",
        "glm5_next_text",
        "glm_moe_dsa",
        "inkling_model",
        "kimi_linear",
        "kimi_k2",
        "mimo_v2",
        "mimo_v2_flash",
        "minimax_m3",
        "minimax_m3_vl",
        "qwen4_exp_text",
        "step3p5",
    )
)
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Room:
    """Bytes of one rank.

    typical: what vLLM sets aside, exact where C(exact) says so. low, high: the same, if it is not known exactly.
    copies: the most that adapters take in memory of the host, where vLLM keeps C(max-cpu-loras) of them.
    """

    low: int = 0
    typical: int = 0
    high: int = 0
    copies: int = 0
    exact: bool = True


@dataclass(frozen=True)
class _Request:
    """The options that decide the room. slots: C(max-loras). sharded: C(fully-sharded-loras). wide: bytes of a number."""

    slots: int
    rank: int
    copies: int
    sharded: bool
    wide: int

    def first_matrix(self, size: int, ranks: int) -> int:
        """Return the numbers on one rank of a matrix that only C(fully-sharded-loras) divides."""
        return _share(size, ranks) if self.sharded else size


def compute_room(
    config: Config, geometry: Geometry, args: Mapping[str, Any], split: Split, *, minor: int | None, padded: bool
) -> Room:
    """Return the memory for adapters on one rank.

    :param minor: the 23 of vLLM 0.23, C(None) if unknown
    :param padded: the experts are padded as in MXFP4
    :returns: bytes; nothing without C(enable-lora)
    :raises Refusal: for a family or an option of which it is not known
    """
    if not args.get(OPTION):
        return Room()
    request = _read_request(args, geometry)
    family = geometry.model_type
    if family in _UNKNOWN:
        raise Refusal(f"args.{OPTION}", f"what adapters of the family {family!r} take is not known", ASK)
    stages = stage_modules(config, geometry, split)
    vocabulary = text_config(config).get("vocab_size") or 0
    newest = 10_000 if minor is None else minor
    layers = [_layers_bytes(stage, family, geometry, request, split, padded, newest) for stage in stages]
    wrapped = [
        _embeddings_bytes(text_config(config), config, family, request, split, newest, place)
        for place in range(split.pipeline)
    ]
    fullest = max(range(split.pipeline), key=lambda place: layers[place] + wrapped[place])
    typical = layers[fullest] + wrapped[fullest]
    copies = request.copies * layers[fullest] // request.slots
    if family in COMPARED and minor is not None and not args.get("lora-target-modules"):
        return Room(typical, typical, typical, copies)
    # Its embedding may be changed or not, its router, too.
    width = text_config(config).get("hidden_size") or 0
    embedding = request.slots * request.rank * request.wide * (vocabulary + width)
    low = 0 if args.get("lora-target-modules") else layers[fullest] * 9 // 10
    return Room(low, typical, max(typical, layers[fullest] + 3 * embedding), copies, False)


def _read_request(args: Mapping[str, Any], geometry: Geometry) -> _Request:
    for option in ("enable-tower-connector-lora", "enable-moe-shared-loras", "enable-mixed-moe-lora-format"):
        if args.get(option):
            raise Refusal(f"args.{option}", "the memory of adapters with it is not known", "leave it out")
    slots = int(args.get("max-loras") or 1)
    dtype = str(args.get("lora-dtype") or "auto")
    wide = _BYTES.get(geometry.dtype if dtype == "auto" else dtype)
    if wide is None:
        raise Refusal("args.lora-dtype", f"{dtype!r} is not known", "leave it out")
    return _Request(
        slots,
        int(args.get("max-lora-rank") or 16),
        int(args.get("max-cpu-loras") or slots),
        bool(args.get("fully-sharded-loras")),
        wide,
    )


def _layers_bytes(
    modules: Sequence[Module],
    family: str,
    geometry: Geometry,
    request: _Request,
    split: Split,
    padded: bool,
    minor: int,
) -> int:
    """Return the bytes of adapters for the layers of one pipeline stage."""
    numbers = 0
    experts: set[str] = set()
    recurrent = next((layer for layer in geometry.layers if isinstance(layer, Recurrent)), None)
    for module in modules:
        if module.experts and module.linear:
            # A layer's experts have two entries: gate and up, then down.
            numbers += _count_experts(module, module.name in experts, family, request, split, padded)
            experts.add(module.name)
        elif not module.experts:
            numbers += _count_pair(module, family, recurrent, request, split, minor)
    # Which of the adapters a batch has, for every layer of experts.
    return numbers * request.slots * request.rank * request.wide + len(experts) * 4 * (request.slots + 1)


def _share(size: int, ranks: int) -> int:
    return -(-size // ranks)


def _count_pair(
    module: Module, family: str, recurrent: Recurrent | None, request: _Request, split: Split, minor: int
) -> int:
    """Return the numbers in A and B of a matrix, for a rank of 1; 0 for a matrix that no adapter changes."""
    name, ranks = module.name.rpartition(".")[2], split.tensor
    inputs, outputs = module.columns, module.rows
    is_mamba = recurrent is not None and recurrent.kind == "mamba"
    if name in ("conv1d", "in_proj") and is_mamba and request.sharded and ranks > 1:
        return 0  # vLLM has no sharded form of matrices of several sizes
    if name == "conv1d" and recurrent is not None:
        inner = _CONVOLUTIONS.get(recurrent.kind, 1) * recurrent.conv_kernel
        return request.first_matrix(inner, ranks) + _share(outputs, ranks)
    if name in ("gate", "router", "shared_expert_gate"):
        return _count_router_pair(name, inputs, outputs, family, minor)
    if not module.linear or name == "lm_head":
        return 0
    if not module.split:
        return inputs + outputs
    if name in _BY_COLUMNS:
        return _share(inputs, ranks) + request.first_matrix(outputs, ranks)
    parts = min(ranks, module.pieces) if module.pieces else ranks
    return request.first_matrix(inputs * _JOINED.get(name, 1), ranks) + _share(outputs, parts)


def _count_router_pair(name: str, inputs: int, outputs: int, family: str, minor: int) -> int:
    """Return the numbers in A and B of a router, for a rank of 1; 0 if the release adds no adapter to it."""
    if name == "shared_expert_gate":
        return outputs + 1
    since = _SPARED_ROUTERS.get(family)
    spared = name == "gate" and since is not None and (not since or minor < since)
    return 0 if spared else inputs + outputs


def _count_experts(module: Module, down: bool, family: str, request: _Request, split: Split, padded: bool) -> int:
    """Return the numbers in A and B of all gate and up matrices of a layer's experts, or of their down matrices, for a rank of 1."""
    per = module.count // module.experts
    count = _share(module.experts, split.of_experts) if split.experts else module.experts
    ranks = 1 if split.experts else split.of_experts
    inner, hidden = (module.columns, module.rows) if down else (module.rows, module.columns)
    inner = _share(inner, ranks)
    if padded:
        hidden, inner = padded_experts(hidden, inner)
    shared = _share(hidden, ranks) if request.sharded else hidden
    if down:
        return count * (inner + shared)
    inputs = 1 if family in _GATE_AND_UP_IN_ONE else per
    return count * (inputs * shared + per * inner)


def _embeddings_bytes(
    text: Config, config: Config, family: str, request: _Request, split: Split, minor: int, stage: int
) -> int:
    """Return the bytes of adapters for embedding and head on a stage; those of the head cover the logits of all ranks."""
    since = _EMBEDDED.get(family)
    if since is None or minor < since:
        return 0
    rows, width = int(text.get("vocab_size") or 0), int(text.get("hidden_size") or 0)
    pair_bytes = request.slots * request.rank * request.wide * (rows + width)
    tied, last = is_tied(config), stage == split.pipeline - 1
    # With a tied head the last stage has the embedding, too.
    size = pair_bytes if stage == 0 or (tied and last) else 0
    if last:
        size += pair_bytes * (2 if tied and minor < _HEAD_IS_EMBEDDING.get(family, 0) else 1)
        # The position of each token in the logits of all ranks.
        size += 8 * padded_vocabulary(rows) if split.tensor > 1 else 0
    return size
