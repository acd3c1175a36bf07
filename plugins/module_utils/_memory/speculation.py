# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Speculative decoding of a launch: the number of draft tokens, the caches of the drafter, and the model runner that serves it."""

from __future__ import annotations

from typing import Any

from .geometry import Geometry, read_geometry
from .layers import Config, Layer, Refusal
from .releases import Release
from .service_input import ServiceInput

_SPEC_WITHOUT_MODEL = frozenset(("ngram", "ngram_gpu", "suffix"))
_SPEC_WITH_MODEL = frozenset(("eagle", "eagle3", "draft_model", "dflash"))
# Draft heads without a KV cache; removed in 0.33.
_SPEC_HEADS = frozenset(("medusa", "mlp_speculator"))
# SpeculativeConfig.suffix_decoding_max_tree_depth, the draft tokens of suffix decoding when none are asked for.
SUFFIX_TOKENS = 24


def is_self_drafting(method: Any) -> bool:
    """Tell whether the model's own multi-token-prediction layers draft."""
    return method == "mtp" or str(method).endswith("_mtp")


def reads_hidden_states(method: Any, release: Release) -> bool:
    """Tell whether vLLM counts a method among EAGLE's (SpeculativeConfig.use_eagle)."""
    return (
        method in ("eagle", "eagle3", "dspark")
        or is_self_drafting(method)
        or (method == "dflash" and release.since(20))
    )


def is_v2_supported(method: Any, stages: int, release: Release) -> bool:
    """Tell whether the newer model runner serves a method by default (VllmConfig.use_v2_model_runner).

    It matters from 0.26 on, to windows and pipeline stages. 0.26 to 0.28 went by architecture, too; the larger need counts.
    """
    first = {"ngram": 32, "ngram_gpu": 32, "draft_model": 31}.get(method, 0)
    if method in _SPEC_HEADS or method == "suffix" or not release.since(first):
        return False
    return not (method == "eagle3" and stages > 1 and not release.since(30))


def is_async_scheduled(args: Config, method: Any, release: Release) -> bool:
    """Tell whether vLLM schedules asynchronously, as asked or by default (VllmConfig.__post_init__)."""
    setting = args.get("async-scheduling")
    if setting is not None:
        return bool(setting)
    if method is None or method == "ngram_gpu" or reads_hidden_states(method, release):
        return True
    if method == "draft_model":
        return release.since(28)
    return release.since(33) and is_v2_supported(method, args.get("pipeline-parallel-size", 1), release)


def _count_draft_tokens(item: ServiceInput, geometry: Geometry, spec: Config) -> int:
    """Return how many tokens are drafted, as given or by default; refuse settings of a drafter that are not known."""
    method, count = spec.get("method"), spec.get("num_speculative_tokens")
    key = "args.speculative-config"
    if count is None and method == "suffix":
        count = spec.get("suffix_decoding_max_tree_depth", SUFFIX_TOKENS)
    if count is None and is_self_drafting(method):
        count = geometry.mtp_layers or None
    if count is None:
        raise Refusal(f"{key}.num_speculative_tokens", "the number of draft tokens is missing")
    if spec.get("kv_cache_dtype") is not None:
        raise Refusal(f"{key}.kv_cache_dtype", "a separate cache dtype of the drafter is not known")
    if spec.get("draft_tensor_parallel_size") not in (None, item.args.get("tensor-parallel-size", 1)):
        raise Refusal(f"{key}.draft_tensor_parallel_size", "a drafter on other ranks than the model is not known")
    return int(count)


def _model_draft_caches(item: ServiceInput, geometry: Geometry, method: Any, count: int) -> tuple[Layer, ...]:
    key = "args.speculative-config"
    if geometry.model_type.startswith("gemma4"):
        # The assistant attends to the cache of the model itself (vllm-project/speculators#586).
        if item.draft_weights_gib is None:
            raise Refusal(
                "draft_weights_gib",
                "the size of the assistant model is not known",
                "give draft_weights_gib, the size of its safetensors files",
            )
        return ()
    if not geometry.drafts:
        raise Refusal(
            f"{key}.method",
            "the config of the model names no MTP layers",
            "leave speculative-config out, or use a checkpoint with MTP layers",
        )
    if geometry.draft_method == "dspark":
        if method != "dspark":
            raise Refusal(f"{key}.method", "the draft layers of this model are DSpark's", "use method dspark")
    elif count > geometry.mtp_layers and count % geometry.mtp_layers:
        # SpeculativeConfig.__post_init__: fewer than the layers are fine.
        raise Refusal(
            f"{key}.num_speculative_tokens",
            f"{count} draft tokens cannot be divided over the {geometry.mtp_layers} MTP layers of the model",
        )
    return geometry.draft_caches(count)


def _separate_draft_caches(item: ServiceInput, method: Any) -> tuple[Layer, ...]:
    """Return the caches of a drafter that is a separate model."""
    if item.draft_config is None:
        raise Refusal("draft_config", f"method {method} needs the config of the draft model", "give draft_config")
    drafter = read_geometry(item.draft_config)
    if drafter.recurrent or len(drafter.attention) != len(drafter.caches()):
        raise Refusal("draft_config", "a drafter with a recurrent state or several caches per layer is not known")
    local = any(layer.kind != "full" for layer in drafter.attention)
    if method == "dflash" and (local or item.draft_config.get("dflash_config", {}).get("use_swa")):
        raise Refusal("draft_config", "a DFlash drafter with sliding windows is not known")
    return drafter.attention


def read_speculation(item: ServiceInput, geometry: Geometry) -> tuple[int, tuple[Layer, ...], bool]:
    """Return the draft tokens, the caches of the drafter, and whether the model's own layers draft."""
    spec = item.args.get("speculative-config")
    if not spec:
        return 0, (), False
    method, key = spec.get("method"), "args.speculative-config"
    count = _count_draft_tokens(item, geometry, spec)
    if method in _SPEC_WITHOUT_MODEL:
        return count, (), False
    if method in _SPEC_HEADS:
        if item.draft_weights_gib is None:
            raise Refusal(
                "draft_weights_gib",
                f"the size of the {method} heads is not known",
                "give the size of their safetensors files",
            )
        return count, (), False
    if is_self_drafting(method) or (method == "dspark" and geometry.draft_method == method):
        drafts = _model_draft_caches(item, geometry, method, count)
        return count, drafts, not geometry.model_type.startswith("gemma4")
    if method in _SPEC_WITH_MODEL:
        return count, _separate_draft_caches(item, method), False
    if method is None:
        raise Refusal(f"{key}.method", "the field is missing", "name the method, for example mtp, eagle3 or ngram")
    raise Refusal(f"{key}.method", f"the speculative method {method!r} is not known")
