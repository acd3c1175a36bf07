# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The KV cache of a service: its settings, its batch and its context, for each release that its image may contain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .._vllm.context_length import context_limit
from .._vllm.shared_memory import connectors
from .engine import start_seconds
from .geometry import Geometry, checkpoint_kv_dtype, read_geometry
from .kv_cache import plan_kv_cache
from .kv_plan import KVPlan, KVSettings, PlanFailure
from .layers import Config, Refusal, text_config
from .releases import Release
from .service_input import DEFAULT_BATCHED_TOKENS, DEFAULT_SEQS, UNPLANNED_ARGS, ServiceInput
from .speculation import is_async_scheduled, is_v2_supported, read_speculation, reads_hidden_states
from .vllm_errors import error_align, error_kernel_block

# Gemma 4 attends to an image in both directions: the default batch holds the largest item (0.33.0).
PREFIX_LM_BATCHED_TOKENS = 2496
_FIX_DECODE_CONTEXT = "leave out decode-context-parallel-size, or change tensor-parallel-size"


def _plan_release(item: ServiceInput, geometry: Geometry, config: Config, release: Release, batch: int) -> KVPlan:
    args = item.args
    if geometry.model_type == "step3p5" and release.since(31) and not args.get("trust-remote-code"):
        raise PlanFailure(
            "AmbiguousGlobalPerLayerAttributeError: 'num_attention_heads' is a per-layer attribute and may vary across layers.",
            "Transformers' own class of this model has a number of heads for each layer, which vLLM cannot read",
            "set trust-remote-code to true: the class of the checkpoint has one number",
        )
    dtype = args.get("kv-cache-dtype", "auto")
    if dtype == "auto":
        dtype = checkpoint_kv_dtype(config, item.quant_config)
    _check_cache_args(args, geometry, config, release, dtype)
    drafts, draft_layers, mtp = read_speculation(item, geometry)
    method = (args.get("speculative-config") or {}).get("method")
    if method == "dflash" and not release.since(20):
        raise Refusal("args.speculative-config.method", "dflash is known from vLLM 0.20 on")
    stages = args.get("pipeline-parallel-size", 1)
    settings = KVSettings(
        release=release,
        max_num_batched_tokens=batch,
        kv_cache_dtype=dtype,
        # Off for hybrid models up to 0.27, on for all others (engine/arg_utils.py, default_prefix_caching).
        prefix_caching=args.get("enable-prefix-caching", release.since(28) or not geometry.recurrent),
        tensor_parallel=args.get("tensor-parallel-size", 1),
        pipeline_parallel=stages,
        decode_context=args.get("decode-context-parallel-size", 1),
        num_speculative_tokens=drafts,
        draft_layers=draft_layers,
        block_size=args.get("block-size", 0),
        mamba_cache_mode=args.get("mamba-cache-mode", ""),
        mamba_cache_dtype=args.get("mamba-cache-dtype", "auto"),
        mamba_ssm_cache_dtype=args.get("mamba-ssm-cache-dtype", "auto"),
        skip_layers=args.get("kv-cache-dtype-skip-layers", ()),
        hybrid_manager=not args.get("disable-hybrid-kv-cache-manager", False),
        async_scheduling=is_async_scheduled(args, method, release),
        v2_runner=item.runner == 2 if item.runner else is_v2_supported(method, stages, release),
        reads_hidden_states=reads_hidden_states(method, release),
        multi_module_mtp=mtp and min(geometry.mtp_modules, drafts) > 1,
    )
    return plan_kv_cache(geometry, settings)


def _check_cache_args(args: Config, geometry: Geometry, config: Config, release: Release, dtype: str) -> None:
    """Raise C(Refusal) for arguments whose effect on the KV cache is not known, else vLLM's error. dtype: of the cache."""
    if dtype == "nvfp4" and not release.since(32):
        raise Refusal(
            "args.kv-cache-dtype",
            "nvfp4 has no kernels for GB10 (sm_121) before vLLM 0.32",
            "use fp8, or vLLM 0.32 or later",
        )
    for key in UNPLANNED_ARGS:
        if args.get(key) is True or (args.get(key) or 1) != 1:
            raise Refusal(f"args.{key}", "its effect on the KV cache is not known", "leave it out")
    _check_decode_context(args, geometry, config, release)
    names = [name for name, _extra in connectors(args.get("kv-transfer-config")) if name]
    # Since 0.22 vLLM asks the connector (config/vllm.py, supports_hma); OffloadingConnector leaves the cache as it is.
    keeps_windows = release.since(22) and set(names) == {"OffloadingConnector"}
    if names and not keeps_windows and any(cache.kind != "full" for _index, cache in geometry.caches()):
        raise Refusal(
            "args.kv-transfer-config",
            "with some connectors vLLM keeps windows as full attention, which ones is not known",
        )


def _check_decode_context(args: Config, geometry: Geometry, config: Config, release: Release) -> None:
    """Raise vLLM's error for a decode context that does not fit the ranks and heads, C(Refusal) for unknown combinations.

    C(ParallelConfig), C(ModelConfig.verify_with_parallel_config): the ranks of a context are in one tensor-parallel group, and hold
    copies of one head of keys.
    """
    context, ranks = args.get("decode-context-parallel-size", 1), args.get("tensor-parallel-size", 1)
    if context == 1:
        return
    if ranks % context:
        error, space = "ValueError" if release.since(20) else "AssertionError", " " if release.since(26) else ""
        raise PlanFailure(
            f"{error}: tp_size={ranks} must be divisible by{space}dcp_size={context}.",
            f"a decode context of {context} ranks does not divide {ranks} tensor-parallel ranks",
            _FIX_DECODE_CONTEXT,
        )
    if (args.get("speculative-config") or {}).get("method") == "draft_model":
        raise Refusal(
            "args.speculative-config.method", "the cache of a draft model together with a decode context is not known"
        )
    if args.get("dcp-q-replicate", release.since(29) and "GlmMoeDsaForCausalLM" in (config.get("architectures") or [])):
        raise Refusal("args.dcp-q-replicate", "which weights it keeps on each rank is not known", "set it to false")
    if all(layer.kind != "mla" for layer in geometry.attention):
        query_heads = int(text_config(config).get("num_attention_heads") or 0)
        _check_context_heads(context, ranks, geometry, query_heads, release)


def _check_context_heads(context: int, ranks: int, geometry: Geometry, query_heads: int, release: Release) -> None:
    """Raise vLLM's error for a decode context that does not fit the heads of grouped-query attention."""
    heads = max((layer.kv_heads for layer in geometry.attention), default=1)
    most, shared = ranks // heads, query_heads // heads
    newer = release.since(27)
    if ranks <= heads:
        raise PlanFailure(
            f"ValueError: Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({ranks}) to be greater than the model's "
            f"total number of KV heads ({heads}). Increase `--tensor-parallel-size` or set `--decode-context-parallel-size 1`."
            if newer
            else f"AssertionError: tensor parallel size {ranks} must be greater than total num kv heads {heads} when enable decode context "
            "parallel for GQA/MQA",
            f"a decode context needs more tensor-parallel ranks than the {heads} key heads of the model",
            _FIX_DECODE_CONTEXT,
        )
    if context > most:
        raise PlanFailure(
            f"ValueError: `--decode-context-parallel-size` ({context}) exceeds the maximum supported value ({most}) for "
            f"`--tensor-parallel-size` ({ranks}) and {heads} model KV heads."
            if newer
            else f"AssertionError: decode context parallel size must less than or equal to (tensor parallel size {ranks} // total num kv heads "
            f"{heads}) = {most}, but got {context}",
            f"with {ranks} ranks and {heads} key heads a decode context has at most {most} ranks",
            _FIX_DECODE_CONTEXT,
        )
    if shared % context:
        raise PlanFailure(
            f"ValueError: The model's number of query heads per KV head ({shared}) must be divisible by `--decode-context-parallel-size` "
            f"({context}) for GQA/MQA."
            if newer
            else f"AssertionError: Total number of q per kv attn heads ({shared}) must be divisible by dcp world size when enable decode "
            f"context parallel for GQA ({context}).",
            f"the {shared} query heads of a key head cannot be divided by a decode context of {context} ranks",
            _FIX_DECODE_CONTEXT,
        )


def check_length(item: ServiceInput, config: Config, minor: int | None) -> None:
    """Raise vLLM's error for a context that exceeds the limit of the config."""
    limit, length = context_limit(config, item.args.get("hf-overrides"), minor), item.args.get("max-model-len")
    text = limit.refusal(length) if limit and isinstance(length, int) and not item.any_length else ""
    if limit and text:
        raise PlanFailure(
            text,
            f"max-model-len {length} exceeds the model's maximum of {limit.tokens}",
            f"set max-model-len to {limit.tokens} or less",
            start_seconds(item.overheads, 0, "arguments"),
            "arguments",
        )


def plan_releases(
    item: ServiceInput, geometry: Geometry, config: Config, releases: Sequence[Release], batch: int
) -> tuple[list[KVPlan], tuple[tuple[int, str], ...]]:
    """Return the plans of the releases that may be in the image, by the memory for one request, and the releases that would refuse.

    Releases that refuse have their minor release and their text; their plans count if no other release plans.
    Raises C(Refusal) if a release is unknown here and no other one plans, C(PlanFailure) if all of them would refuse to plan.
    """
    plans: list[KVPlan] = []
    refused_later: list[KVPlan] = []
    refusing: list[tuple[int, str]] = []
    unknown: list[Refusal] = []
    failures: list[PlanFailure] = []
    for release in releases:
        try:
            plan = _plan_release(item, geometry, config, release, batch)
        except Refusal as refusal:
            unknown.append(refusal)
        except PlanFailure as failure:
            failures.append(failure)
            refusing.append((release.minor, str(failure)))
        else:
            text = error_align(plan) or error_kernel_block(geometry, plan.settings)
            (refused_later if text else plans).append(plan)
            refusing += [(release.minor, text)] if text else []
    if not plans and (unknown or not refused_later):
        raise (unknown or failures)[-1]
    length = item.args.get("max-model-len")
    longest = length if isinstance(length, int) else geometry.max_position_embeddings
    return sorted(plans or refused_later, key=lambda plan: plan.needed_bytes(longest)), tuple(refusing)


def batch_tokens(args: Config, geometry: Geometry) -> int:
    """Return the tokens of a batch, from the argument or by default (EngineArgs, _set_default_max_num_seqs_and_batched_tokens_args).

    The default for Gemma 4 is the default of 0.22 and later; earlier releases used 2048 tokens, which is too small for its images.
    """
    setting = args.get("max-num-batched-tokens")
    if setting is not None:
        return int(setting)
    batch = DEFAULT_BATCHED_TOKENS
    length = args.get("max-model-len")
    length = length if isinstance(length, int) else geometry.max_position_embeddings
    if args.get("enable-chunked-prefill") is False:
        batch = max(batch, length)
    if geometry.prefix_lm:
        batch = max(batch, PREFIX_LM_BATCHED_TOKENS)
    return min(batch, length * (args.get("max-num-seqs") or DEFAULT_SEQS))


def engine_geometry(config: Config, dtype: str) -> Geometry:
    """Return the layers of a model as an engine computes with them. dtype: as its option says."""
    geometry = read_geometry(config)
    if dtype != "auto":
        name = {"half": "float16", "float": "float32"}.get(dtype, dtype)
        if name not in ("float16", "bfloat16", "float32"):
            raise Refusal("args.dtype", f"dtype {dtype!r} is not known")
        return replace(geometry, dtype=name)
    # vLLM casts 32-bit checkpoints unless it is told not to.
    return replace(geometry, dtype="bfloat16") if geometry.dtype == "float32" else geometry
