# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The KV cache and the weights of a service as the vLLM of its image planned them, in the shape that the budget calculates with.

An answer (C(image_answer.py)) is of one launch and one longest context. Shorter requests follow from it where only layers of full
attention depend on the length; else a shorter request counts as much as the longest, so that no figure is too small.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .geometry import Geometry
from .image_answer import REFUSED, Answer, Cut, Failure, Weights
from .kv_plan import KVGroup, KVPlan, KVSettings
from .layers import MAX_LAYERS, Attention, Config, Recurrent, Refusal, text_config
from .releases import NEWEST_MINOR, Release, parse_release

ASKED_BYTES = (1 << 40, 1 << 41)
"""Sizes of the cache that an image is asked about, in bytes: a request of any context fits, so that its price is in the answer."""
WEIGHTS_SHARE = 0.005
"""Differences of the weights up to this share are none: quantised ones are within 0.15 % by arithmetic."""

_KINDS = {
    "FullAttentionSpec": "full",
    "MLAAttentionSpec": "mla",
    "SlidingWindowSpec": "sliding",
    "ChunkedLocalAttentionSpec": "chunked",
    "MambaSpec": "mamba",
}
# Fields of a text model with the widths of its MLP or experts.
_INNER = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")
_VISION = re.compile(r"(?:model\.)?(?:visual|vision\w*|vit)\.", re.ASCII)
_SHARED = ("embed_tokens", "lm_head")
"""Modules of a drafter that vLLM replaces by those of the model after loading, where they are as large."""


class ImageRefusal(Refusal):
    """The vLLM of the image refuses the launch; C(text) is its own."""

    def __init__(self, version: str, failure: Failure) -> None:
        super().__init__("image_plan", f"vLLM {version or 'of its image'} refuses the launch", "change what vLLM names")
        self.text = f"{failure.type}: {failure.text}" if failure.type else failure.text


@dataclass(frozen=True)
class AnsweredPlan(KVPlan):
    """A plan that vLLM made; lengths above C(longest) were not asked about.

    request: blocks of a request of C(longest) tokens. request_bytes: bytes of it in vLLM's check. linear: tokens of a block of each group
    whose blocks follow from the length alone. kept_back: bytes that vLLM's check leaves out. by_concurrency: whether the number of tokens
    that this vLLM prints counts full requests.
    """

    longest: int = 0
    request: int = 0
    request_bytes: int = 0
    linear: tuple[int, ...] = ()
    kept_back: int = 0
    by_concurrency: bool = True

    @property
    def marginal_bytes_per_token(self) -> float:
        """Bytes that one more token of context costs, as far as that is known."""
        return sum((self.bytes_per_block / block for block in self.linear), 0.0) + self._state_bytes_per_token

    def blocks_per_request(self, length: int) -> int:
        """Return the blocks that one request of C(length) tokens takes at most."""
        if length > self.longest:
            raise ValueError(f"the image was asked about {self.longest} tokens, not {length}")
        fixed_blocks = self.request - sum(-(-self.longest // block) for block in self.linear)
        return self.request if fixed_blocks < 0 else fixed_blocks + sum(-(-length // block) for block in self.linear)

    def _pages(self, length: int) -> int:
        return self.blocks_per_request(length)

    def bytes_in_check(self, length: int, size: int) -> int:
        """Return the bytes that vLLM's check counts for one request, with blocks of C(size) bytes."""
        if self.request_bytes != self.request * self.bytes_per_block:
            return self.request_bytes * size // self.bytes_per_block
        return self.blocks_per_request(length) * size

    def checked_bytes(self, available: int) -> int:
        """Return the bytes that vLLM's own check compares with."""
        return available - self.kept_back

    def available_for(self, requests: int, length: int) -> int:
        """Return the least memory that passes the check and holds C(requests) requests of C(length) tokens."""
        blocks = self.blocks_per_request(length)
        return max(requests * blocks * self.bytes_per_block, self.needed_bytes(length) + self.kept_back)

    def printed_tokens(self, blocks: int, length: int, limit: int = 0) -> int:
        """Return the number in the line C(GPU KV cache size) of the start-up log. length: tokens of the longest context."""
        if self.by_concurrency:
            return int(self.max_concurrency(blocks, length) * length)
        return super().printed_tokens(blocks, length, limit)

    def ruled_by_batch(self, length: int) -> bool:
        """Tell whether most blocks of a request do not follow from its length, and there are windows, which reserve batches."""
        if not self.linear or all(group.kind not in ("sliding", "chunked") for group in self.groups):
            return False
        by_length = sum(-(-length // block) for block in self.linear)
        return 2 * (self.blocks_per_request(length) - by_length) > self.blocks_per_request(length)

    def largest_batch(self, available: int, length: int) -> int:
        """Return 0: the answer has no batch of another size."""
        return 0


def is_usable(answer: Answer | None) -> bool:
    """Tell whether an answer says anything: a plan, or that vLLM refuses."""
    if answer is None:
        return False
    if answer.failure is not None:
        return answer.failure.kind == REFUSED
    return bool(answer.cuts) or any(failure.kind == REFUSED for failure in answer.refusals.values())


def release_of(answer: Answer, version: str) -> Release:
    """Return the release that an answer is of.

    :param version: version that the plan has of the image, or empty
    :returns: the release; what a build calls itself may be none, then it counts as the newest
    """
    for text in filter(None, (answer.version, version)):
        with contextlib.suppress(Refusal):
            return parse_release(text)
    return Release(answer.version, NEWEST_MINOR, False)


def kv_plan(answer: Answer, version: str, counted: bool) -> AnsweredPlan:
    """Return the plan of an answer.

    :param version: of the image as the plan knows it, or empty
    :param counted: whether blocks of full attention follow from the length, which other options could change
    :raises ImageRefusal: if vLLM refuses the launch
    :raises Refusal: for a plan whose figures do not follow from each other
    """
    cut, request = _largest_cut(answer)
    release = release_of(answer, version)
    resolved = answer.resolved
    settings = KVSettings(
        release=release,
        max_num_batched_tokens=resolved["max_num_batched_tokens"],
        kv_cache_dtype=resolved["kv_cache_dtype"],
        prefix_caching=resolved["enable_prefix_caching"],
        tensor_parallel=resolved["tensor_parallel"],
        pipeline_parallel=resolved["pipeline_parallel"],
    )
    pages = [int(group["page"]) for group in cut.groups]
    groups = []
    for spec in cut.groups:
        kinds = {_KINDS.get(member["kind"], member["kind"]) for member in spec.get("members") or [spec]}
        kind = kinds.pop() if len(kinds) == 1 else spec["kind"]
        groups.append(KVGroup(kind, spec["layers"], spec["block"], int(spec.get("sliding_window") or 0)))
    return AnsweredPlan(
        settings=settings,
        groups=tuple(groups),
        block_size=cut.block_size,
        page_size_bytes=max(pages, default=0),
        group_size=max((int(group["layers"]) for group in cut.groups), default=0),
        bytes_per_block=cut.bytes_per_block,
        mamba_cache_mode=resolved["mamba_cache_mode"],
        state_bytes=0,
        stage_bytes_per_block=(cut.bytes_per_block,),
        longest=cut.max_model_len,
        request=request,
        request_bytes=request * cut.bytes_per_block if cut.needed is None else cut.needed,
        linear=tuple(int(group["block"]) for group in cut.groups if counted and _is_linear(group)),
        kept_back=cut.bytes_per_block if release.since(29) else 0,
        by_concurrency=cut.tokens is None or cut.tokens == int(cut.concurrency * cut.max_model_len),
    )


def _largest_cut(answer: Answer) -> tuple[Cut, int]:
    """Return the cut of the longest context and largest memory, and the blocks of a request in it."""
    if answer.failure is not None:
        raise ImageRefusal(answer.version, answer.failure)
    if not answer.cuts:
        raise ImageRefusal(answer.version, answer.refusals[max(answer.refusals)])
    cuts = list(answer.cuts.values())
    cut = max(cuts, key=lambda entry: (entry.max_model_len, entry.available))
    request = round(cut.blocks / cut.concurrency)
    odd = abs(request * cut.concurrency - cut.blocks) > 1e-6 * cut.blocks
    if odd or not request or any(entry.bytes_per_block != cut.bytes_per_block for entry in cuts):
        raise Refusal("image_plan", "the image has requests or blocks of no fixed size")
    is_overridden = bool(answer.resolved.get("blocks_override"))
    if not is_overridden and any(entry.blocks != entry.available // entry.bytes_per_block for entry in cuts):
        raise Refusal("image_plan", "the blocks of the image's plan do not follow from the memory")
    return cut, request


def _is_linear(spec: Mapping[str, Any]) -> bool:
    """Tell whether a group takes a block for each C(block) tokens of a request, and nothing else."""
    members = spec.get("members")
    if members:
        return all(_is_linear(member) for member in members)
    plain = all(value in (None, 0, 1) for name, value in spec.items() if "compress" in name)
    attends_to_all = _KINDS.get(spec["kind"]) in ("full", "mla") and spec["block"] > 0
    return attends_to_all and plain and spec.get("tokens_per_state", 1) == 1


def read_shapes(answer: Answer, config: Config) -> tuple[Config, Geometry] | None:
    """Return the fields of the text model and its geometry, None if the answer has no widths of the model.

    The geometry has the layers that the memory of a running batch depends on.

    :param config: config.json of the model, possibly incomplete; the values that vLLM read replace it
    """
    resolved = answer.resolved
    text = {**text_config(config), **(resolved.get("widths") or {})}
    if not (text.get("hidden_size") and text.get("vocab_size") and any(text.get(name) for name in _INNER)):
        return None
    entries = [entry for rank in answer.ranks for entry in rank.specs]
    distinct = _distinct_layers(entries, resolved["tensor_parallel"])
    layer_count = text.get("num_hidden_layers")
    layers = layer_count if isinstance(layer_count, int) else sum(int(entry["layers"]) for entry in entries)
    longest = text.get("max_position_embeddings")
    geometry = Geometry(
        model_type=str(text.get("model_type", "")),
        layers=tuple([*distinct, *[None] * (min(layers, MAX_LAYERS) - len(distinct))]),
        max_position_embeddings=longest if isinstance(longest, int) else resolved["max_model_len"],
        dtype=resolved["dtype"],
    )
    return text, geometry


def _distinct_layers(entries: Iterable[Mapping[str, Any]], ranks: int) -> list[Attention | Recurrent]:
    """Return one layer for each distinct spec. entries: specs, or groups of them."""
    layers = (_read_layer(spec, ranks) for entry in entries for spec in entry.get("members") or [entry])
    return list(dict.fromkeys(layer for layer in layers if layer is not None))


def _read_layer(spec: Mapping[str, Any], ranks: int) -> Attention | Recurrent | None:
    """Return a layer of the whole model from its spec on one rank; None if the spec has no sizes of heads or states."""
    kind, shapes_of = _KINDS.get(spec["kind"], ""), spec.get("shapes")
    heads, dim = spec.get("num_kv_heads"), spec.get("head_size")
    if kind == "mamba" and isinstance(shapes_of, list) and len(shapes_of) > 1:
        # Convolutions, in the order of channels and tokens or the other, then the state by heads.
        channels = sum(max(shape) for shape in shapes_of[:-1])
        value = math.prod(shapes_of[-1][:2])
        return Recurrent("gdn", 0, (channels - value) * ranks, value * ranks, 0, 0, 0, 0)
    if kind and isinstance(heads, int) and isinstance(dim, int):
        heads_of_model = heads if kind == "mla" else heads * ranks
        value = spec.get("head_size_v")
        other = value if isinstance(value, int) else 0 if kind == "mla" else dim
        return Attention(kind, heads_of_model, dim, other, int(spec.get("sliding_window") or 0))
    return None


@dataclass(frozen=True)
class AnsweredWeights:
    """Bytes of the parameters on the fullest rank: of the model, of its drafter, of both in host memory, of the vision tower."""

    target: int
    draft: int
    host: int
    vision: int


def weights_of_answer(answer: Answer, own_drafter: bool) -> AnsweredWeights:
    """Return the weights of the fullest pipeline stage. own_drafter: layers of the model draft; embedding and head are shared."""
    ranks = []
    for target, draft in ((rank.target, rank.draft or Weights(0, 0, {})) for rank in answer.ranks):
        vision = sum(size for name, size in target.modules.items() if _VISION.match(name))
        target_sizes = {name.rpartition(".")[2]: size for name, size in target.modules.items()}
        draft_sizes = ((name.rpartition(".")[2], size) for name, size in draft.modules.items() if own_drafter)
        shared = sum(size for name, size in draft_sizes if name in _SHARED and target_sizes.get(name) == size)
        ranks.append(AnsweredWeights(target.bytes, draft.bytes - shared, target.host + draft.host, vision))
    return max(ranks, key=lambda rank_weights: rank_weights.target + rank_weights.draft)


def list_differences(
    computed: KVPlan, computed_weights: int | None, answered: AnsweredPlan, loaded: AnsweredWeights
) -> list[str]:
    """Return in what the arithmetic and an image's plan of the same launch differ, for a person.

    :param computed: the plan by arithmetic
    :param computed_weights: bytes of the model's weights on a rank by arithmetic, None for stated weights
    """
    length = answered.longest
    pairs = [
        ("tokens of a block", computed.block_size, answered.block_size),
        ("bytes of a block", computed.bytes_per_block, answered.bytes_per_block),
        (f"bytes of a request of {length} tokens", computed.needed_bytes(length), answered.needed_bytes(length)),
    ]
    texts = [f"{name} {mine} and {other}" for name, mine, other in pairs if mine != other]
    if computed_weights is not None and abs(computed_weights - loaded.target) > WEIGHTS_SHARE * loaded.target:
        texts.append(f"bytes of the weights {computed_weights} and {loaded.target}")
    return texts
