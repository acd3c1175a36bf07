# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes of a model's weights on one rank, from the tensors that its safetensors headers list.

A header names every tensor with its dtype and its shape, so nothing about the model has to be known but how vLLM divides
a tensor of that name over the ranks (vllm/model_executor/layers/linear.py and the model classes, 0.33.0). A tensor whose
name says nothing is counted whole on every rank, which is never too little.

An incomplete list is a C(Refusal), which names the missing tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from .._common.plain_data import is_whole
from .formats import Format
from .geometry import Geometry, quantization_of
from .layers import Config, Refusal, stages_of_layers, text_config
from .weight_formats import RUNTIME_FORMATS
from .weights import (
    SHARED,
    Split,
    Weights,
    expert_count,
    is_tied,
    padded_experts,
    padded_vocabulary,
    part_of,
)

_FIX = "give the tensors of all safetensors files of the checkpoint, or leave tensors out"

# Bits of an element (huggingface/safetensors, src/tensor.rs).
_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
}
_FLOATS = ("F16", "BF16", "F32", "F64")

_EMBEDDINGS = frozenset(("embed_tokens", "embeddings", "tok_embeddings", "word_embeddings", "wte", "embed"))
_HEADS = frozenset(("lm_head", "output", "head"))
# Divided along the output: column-parallel matrices, and what belongs to a head or a channel.
_COLUMN = frozenset(
    (
        *(
            "q_proj",
            "q_b_proj",
            "kv_b_proj",
            "wq",
            "wq_b",
            "wo_a",
            "qkv",
            "gate_proj",
            "up_proj",
            "gate_up_proj",
            "w1",
            "w3",
            "c_fc",
        ),
        *("fc", "fc1", "linear_fc1", "linear_1", "input_linear"),
        *("in_proj", "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
    )
)
_CHANNELS = frozenset(("conv1d", "A_log", "D", "dt_bias", "sinks", "embed_tokens_per_layer"))
_KEY_VALUE = frozenset(("k_proj", "v_proj", "wk", "wv"))
_FUSED = frozenset(("qkv_proj", "wqkv"))
# Divided along the input; the vector of such a matrix is whole on every rank.
_ROW = frozenset(
    ("o_proj", "out_proj", "down_proj", "w2", "wo", "wo_b", "c_proj", "fc2", "linear_fc2", "linear_2", "output_linear")
)
_LINEAR = _COLUMN | _KEY_VALUE | _FUSED | _ROW

_TOWER = re.compile(
    r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_encoder|vision_language_adapter|embed_vision|multi_modal_projector"
    r"|mm_projector|patch_merger|audio_tower|audio_encoder|embed_audio|sound_encoder|sound_projection)\."
)
# Indexers of sparse attention are whole on every rank; tables of n-grams are divided by rows.
_INDEXER = re.compile(r"\.indexer\.")
_TABLE = re.compile(r"\.(?:ple|engram)\..*embedding")
_DRAFT = re.compile(r"(?:^|\.)mtp\.")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_EXPERT = re.compile(r"(?:^|\.)(?:experts|block_sparse_moe\.(?:input|output)_linear)(?:\.(\d+))?\.")


@dataclass(frozen=True)
class _Tensor:
    """One tensor. shape: C(None) if only its bytes are known. module, leaf: the names of its module and of the tensor in it."""

    name: str
    bytes: int
    dtype: str
    shape: tuple[int, ...] | None
    module: str
    leaf: str

    @property
    def is_vector(self) -> bool:
        """Whether it has one dimension, or none."""
        if self.shape is None:
            return self.leaf in ("bias", "g_idx")
        return sum(size > 1 for size in self.shape) < 2


def _read_tensor(entry: Any, index: int) -> _Tensor:
    """Read one entry: a name with a dtype and a shape, or with its bytes."""
    where = f"tensors[{index}]"
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise Refusal(where, f"expected a mapping with name, dtype and shape, or name and bytes, got {entry!r}", _FIX)
    name = entry["name"]
    unknown = sorted(str(key) for key in entry if key not in ("name", "dtype", "shape", "bytes"))
    if unknown:
        raise Refusal(where, f"{name} has unknown keys: {', '.join(unknown)}", _FIX)
    shape, dtype = entry.get("shape"), entry.get("dtype")
    if shape is not None and not (isinstance(shape, (list, tuple)) and all(is_whole(dim, 0) for dim in shape)):
        raise Refusal(f"{where}.shape", f"{name}: expected a list of whole numbers, got {shape!r}", _FIX)
    if dtype is not None and dtype not in _BITS:
        raise Refusal(f"{where}.dtype", f"{name}: dtype {dtype!r} is not known; known are {', '.join(_BITS)}", _FIX)
    size = _read_bytes(entry, where)
    module, leaf = _module_and_leaf(name)
    return _Tensor(name, size, dtype or "", None if shape is None else tuple(shape), module, leaf)


def _read_bytes(entry: Mapping[str, Any], where: str) -> int:
    """Return the bytes of an entry with a checked dtype and shape, and refuse bytes that contradict them."""
    name, dtype, shape, size = entry["name"], entry.get("dtype"), entry.get("shape"), entry.get("bytes")
    computed = None if dtype is None or shape is None else prod(shape) * _BITS[dtype] // 8
    if size is None:
        size = computed
    elif not is_whole(size, 0):
        raise Refusal(f"{where}.bytes", f"{name}: expected a whole number, got {size!r}", _FIX)
    elif computed not in (None, size):
        raise Refusal(f"{where}.bytes", f"{name}: {size} bytes do not match its dtype and shape", _FIX)
    if size is None:
        raise Refusal(where, f"{name} needs dtype and shape, or bytes", _FIX)
    return int(size)


def _module_and_leaf(name: str) -> tuple[str, str]:
    """Return the name of a tensor's module and its own name in that module."""
    parts = name.split(".")
    leaf, module = parts[-1], parts[-2] if len(parts) > 1 else ""
    if module == "linear" and len(parts) > 2:  # a wrapped projection: q_proj.linear.weight
        module = parts[-3]
    if module == "experts" or leaf in _CHANNELS:  # a parameter without a module: experts.gate_up_proj, A_log
        module = re.sub(r"_(?:blocks|scales|bias|packed|scale|scale_inv|global_scale)$", "", leaf)
    return module, leaf


class _Checkpoint:
    """The tensors of a checkpoint by part of the model; an incomplete list is refused."""

    def __init__(self, tensors: Sequence[Any], config: Config, geometry: Geometry) -> None:
        self.tower: list[_Tensor] = []
        self.draft: list[_Tensor] = []
        self.layers: dict[int, list[_Tensor]] = {}
        self.embeddings: list[_Tensor] = []
        self.heads: list[_Tensor] = []
        self.rest: list[_Tensor] = []
        self.tied = is_tied(config)
        self._experts: dict[int, set[int]] = {}
        count = len(geometry.layers)
        names: set[str] = set()
        for index, entry in enumerate(tensors):
            tensor = _read_tensor(entry, index)
            if tensor.name in names:
                raise Refusal(f"tensors[{index}].name", f"{tensor.name} stands twice", _FIX)
            names.add(tensor.name)
            self._add(tensor, count)
        missing = self._list_missing(count, expert_count(text_config(config)))
        if missing:
            more = f" and {len(missing) - 5} more" if missing[5:] else ""
            raise Refusal(
                "tensors", f"these are not all tensors of the model, missing: {', '.join(missing[:5])}{more}", _FIX
            )

    def _add(self, tensor: _Tensor, layers: int) -> None:
        """Add a tensor to its part of the model. layers: of the model; further ones draft."""
        layer = _LAYER.search(tensor.name)
        if _TOWER.search(tensor.name):
            self.tower.append(tensor)
        elif _DRAFT.search(tensor.name) or (layer and int(layer.group(1)) >= layers):
            self.draft.append(tensor)
        elif layer:
            index, expert = int(layer.group(1)), _EXPERT.search(tensor.name)
            self.layers.setdefault(index, []).append(tensor)
            if expert and expert.group(1):
                self._experts.setdefault(index, set()).add(int(expert.group(1)))
        elif tensor.module in _EMBEDDINGS:
            self.embeddings.append(tensor)
        elif tensor.module in _HEADS:
            self.heads.append(tensor)
        else:
            self.rest.append(tensor)

    def _list_missing(self, layers: int, experts: int) -> list[str]:
        """Name the missing parts of a model with C(layers) layers and C(experts) experts in each."""
        missing = [f"layer {index}" for index in range(layers) if index not in self.layers]
        if not self.embeddings:
            missing.append("the embedding (embed_tokens.weight)")
        if not self.heads and not self.tied:
            missing.append("the head (lm_head.weight), which is not tied to the embedding")
        if self._experts and not experts:
            raise Refusal("config.num_experts", "the field is missing, but tensors lists experts", _FIX)
        for index, listed in sorted(self._experts.items()):
            lost = sorted(set(range(experts)) - listed)
            if lost:
                more = f" and {len(lost) - 1} more" if lost[1:] else ""
                missing.append(f"expert {lost[0]} of layer {index}{more}")
        return missing


@dataclass(frozen=True)
class _Counter:
    """Counts the bytes of a tensor on one rank, during and after loading."""

    config: Config
    geometry: Geometry
    split: Split
    runtime: Format | None
    only_experts: bool
    padding: float
    ordered: bool

    def _ranks(self, tensor: _Tensor) -> float:
        """Return the number of ranks that share a tensor; a fraction if only a part of it is divided."""
        ranks, module, in_tower = self.split.tensor, tensor.module, bool(_TOWER.search(tensor.name))
        if _EXPERT.search(tensor.name):
            ranks = self.split.of_experts
        if self._is_whole(tensor):
            return 1
        if _TABLE.search(tensor.name):
            return ranks
        if module in _COLUMN | _CHANNELS | _EMBEDDINGS | _HEADS:
            return 1 if tensor.leaf == "g_idx" else ranks
        if module in _ROW or (module == "proj" and in_tower):
            return 1 if tensor.is_vector and tensor.leaf != "g_idx" else ranks
        if module in _KEY_VALUE | _FUSED:
            return ranks if in_tower else self._key_value_ranks(module, ranks)
        return 1

    def _is_whole(self, tensor: _Tensor) -> bool:
        """Tell whether every rank has all of a tensor although its module is divided."""
        if self.split.shares_tokens and SHARED.search(tensor.name) and not _EXPERT.search(tensor.name):
            return True
        is_single = tensor.shape is not None and prod(tensor.shape) <= 1
        return not _TABLE.search(tensor.name) and (bool(_INDEXER.search(tensor.name)) or is_single)

    def _key_value_ranks(self, module: str, ranks: int) -> float:
        """Return the number of ranks that share keys and values; with fewer heads than ranks each rank keeps one head."""
        kv_heads = max((layer.kv_heads for layer in self.geometry.attention), default=1)
        if module in _KEY_VALUE:
            return min(ranks, kv_heads)
        heads = int(text_config(self.config)["num_attention_heads"])
        share = heads / (heads + 2 * kv_heads)
        return 1 / (share / ranks + (1 - share) / min(ranks, kv_heads))

    def size(self, tensor: _Tensor, loading: bool = False) -> float:
        """Return the bytes on one rank. C(loading): before vLLM quantises the weights itself."""
        if tensor.leaf == "g_idx" and not self.ordered:
            return 0  # the order of the rows is dropped where the checkpoint keeps the natural one
        expert = _EXPERT.search(tensor.name)
        is_linear = tensor.module in _LINEAR and not tensor.is_vector
        size = self._loaded_size(tensor)
        if self.runtime and not loading and is_linear and (expert or not self.only_experts):
            if tensor.shape is None:
                size *= self.runtime.bits / 16
            else:
                *stack, rows, columns = tensor.shape
                size = self.runtime.size(rows, columns) * prod(stack)
        if not expert:
            return size / self._ranks(tensor)
        if self.split.experts:
            # Experts in one tensor are counted along its first dimension.
            count = expert_count(text_config(self.config)) or (tensor.shape[0] if tensor.shape else 1)
            return size * self.padding * -(-count // self.split.of_experts) / count
        return size * self.padding / self._ranks(tensor)

    def _loaded_size(self, tensor: _Tensor) -> float:
        """Return the bytes of a whole tensor in the dtype of the model, with a padded vocabulary."""
        size: float = tensor.bytes
        if tensor.dtype in _FLOATS and tensor.leaf in ("weight", "bias"):
            size = size * 8 * (4 if self.geometry.dtype == "float32" else 2) / _BITS[tensor.dtype]
        if tensor.module in _EMBEDDINGS | _HEADS:
            rows = tensor.shape[0] if tensor.shape else text_config(self.config).get("vocab_size")
            if isinstance(rows, int) and rows > 1:
                size = size * padded_vocabulary(rows) / rows
        return size

    def total(self, tensors: Sequence[_Tensor], loading: bool = False) -> int:
        """Return the bytes of several tensors on one rank."""
        return round(sum(self.size(tensor, loading) for tensor in tensors))

    def largest_part(self, tensors: Sequence[_Tensor]) -> int:
        """Return the bytes, before quantisation, of the largest part of a layer that vLLM quantises itself."""
        parts: dict[str, float] = {}
        for tensor in tensors if self.runtime else ():
            before = self.size(tensor, loading=True)
            if before != self.size(tensor):
                part = part_of(tensor.name)
                parts[part] = parts.get(part, 0) + before
        return round(max(parts.values(), default=0))


def _expert_padding(text: Config, method: str) -> float:
    """Return the factor of enlarged experts in vLLM: the kernels of MXFP4 need round sizes."""
    hidden, inner = text.get("hidden_size"), text.get("intermediate_size")
    if method not in ("mxfp4", "gpt_oss_mxfp4") or not is_whole(hidden, 0) or not is_whole(inner, 0):
        return 1.0
    return prod(padded_experts(int(hidden or 0), int(inner or 0))) / (int(hidden or 0) * int(inner or 0))


def tensors_bytes(
    tensors: Sequence[Any],
    config: Config,
    geometry: Geometry,
    *,
    quant_config: Config | None = None,
    split: Split,
    runtime_quantization: str = "",
    vision: bool = True,
    mtp: bool = False,
) -> Weights:
    """Count the bytes of the weights of one rank, of the fullest pipeline stage, from a list of tensors.

    tensors: mappings of C(name), C(dtype) and C(shape), or of C(name) and C(bytes), of all files of the checkpoint.
    The other parameters equal the parameters of C(weights_bytes).
    Raises C(Refusal) for an entry that cannot be read and for a list that is not the whole model.
    """
    checkpoint = _Checkpoint(tensors, config, geometry)
    if vision and geometry.has_vision and not checkpoint.tower:
        raise Refusal("tensors", "it has no tensors of the vision tower", f"{_FIX}; or set language-model-only")
    if mtp and not checkpoint.draft:
        raise Refusal("tensors", "it has no tensors of the MTP layers (mtp.*)", f"{_FIX}, or speculative-config")
    quantization, runtime = quantization_of(config, quant_config)[0], None
    if runtime_quantization and not quantization:  # vLLM quantises the weights itself
        runtime = RUNTIME_FORMATS.get(runtime_quantization)
        if runtime is None:
            reason = f"quantisation {runtime_quantization!r} of an unquantised checkpoint is not known"
            raise Refusal("args.quantization", reason, "give weights_gib")
    counter = _Counter(
        config,
        geometry,
        split.for_family(geometry.model_type),
        runtime,
        runtime_quantization == "experts_int8",
        _expert_padding(text_config(config), str(quantization.get("quant_method") or "")),
        bool(quantization.get("desc_act")),
    )
    stages = _stages(checkpoint, split, len(geometry.layers))
    tower = checkpoint.tower if vision else []
    vision_size = counter.total(tower)
    target = max(map(counter.total, stages)) + vision_size
    peak = max(counter.total(stage, True) for stage in stages) + counter.total(tower, True)
    largest_part = counter.largest_part([tensor for tensors in (*stages, tower) for tensor in tensors])
    return Weights(
        target=target,
        draft=counter.total(_draft_tensors(checkpoint)) if mtp else 0,
        load_peak=peak,
        vision=vision_size,
        load_layerwise=min(peak, target + largest_part),
    )


def _draft_tensors(checkpoint: _Checkpoint) -> list[_Tensor]:
    """Return the tensors of the draft layers without embedding and head, which the drafter shares with the model."""
    return [
        tensor
        for tensor in checkpoint.draft
        if tensor.module not in _EMBEDDINGS | _HEADS and ".shared_head.head." not in tensor.name
    ]


def _stages(checkpoint: _Checkpoint, split: Split, layers: int) -> list[list[_Tensor]]:
    """Return the tensors of each pipeline stage."""
    stages: list[list[_Tensor]] = [[] for _stage in range(split.pipeline)]
    for index, stage in enumerate(stages_of_layers(layers, split.pipeline)):
        stages[stage] += checkpoint.layers[index]
    stages[0] += checkpoint.embeddings
    stages[-1] += checkpoint.rest
    if not checkpoint.tied:
        stages[-1] += checkpoint.heads
    elif split.pipeline > 1:
        stages[-1] += checkpoint.embeddings  # the last stage needs it as its head
    return stages
