# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for a GPU and for compiled parts of vLLM, inside an image: they may be named, and a call ends in C(StandIn)."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

# Compiled parts of vLLM; these names replace modules that are missing or need the driver's library.
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
# Packages of kernels: some cannot be imported without a GPU.
KERNELS = (
    *("cuda", "cutlass", "deep_ep", "deep_gemm", "flash_attn", "flash_mla", "flashinfer", "flashkda", "humming"),
    *("pplx_kernels", "quack", "tilelang"),
)
OPS = (
    *("_C", "_moe_C", "_C_cache_ops", "_C_custom_ar", "_C_cuda_utils", "_C_utils", "_C_stable_libtorch", "_qutlass_C"),
    *("_flashmla_C", "_flashkda_C", "_vllm_fa2_C", "_vllm_fa3_C"),
)
# Shared memory that a GB10 (sm_121) reports to kernels.
SHARED_MEMORY = 101_376
assumed: dict[str, str] = {}
"""Answers of stand-ins, by the name of the replaced part."""


def load(name: str) -> Any:
    """Import a module of the image."""
    return importlib.import_module(name)


class StandIn(RuntimeError):
    """vLLM called a stand-in."""


class Anything:
    """Stands for any name of a compiled package: can be called, indexed, inherited from, and used to decorate."""

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

    def _same(self, *_operands: Any) -> Any:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = _same
    __or__ = __ror__ = __and__ = __neg__ = __pow__ = __lt__ = __gt__ = __le__ = __ge__ = _same


class Hollow(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{self.__name__}.{name}")


class Lenient(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports compiled modules unchanged; a module that needs a GPU to load becomes C(Hollow)."""

    def __init__(self, pretended: tuple[str, ...]) -> None:
        self.pretended = pretended
        self.real: dict[str, Any] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Pretend modules that need a GPU's libraries, if the real ones cannot be imported."""
        first, _dot, submodule = fullname.partition(".")
        compiled = first == "vllm" and submodule.rsplit(".", 1)[-1] in COMPILED
        if not compiled and first not in KERNELS and first not in self.pretended:
            return None
        spec = None
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None:
            parent = sys.modules.get(fullname.rpartition(".")[0])
            if not compiled and first not in self.pretended and not isinstance(parent, Hollow):
                return None
            assumed[fullname if compiled else first] = "not there, counted as present"
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if spec.loader is None:
            return spec
        self.real[fullname] = spec.loader
        spec.loader = self
        return spec

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
    """Stands for a missing operator: may be named, and asked for the device's support."""

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
    """Let operators of vLLM be named without its compiled parts."""
    space = load("torch._ops")._OpNamespace
    real = space.__getattr__

    def get(self: Any, name: str) -> Any:
        # The operator would ask the driver.
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
    # A function for each: torch's compiler refuses the same function twice.
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
    """Have Triton, if installed, find a driver: without one vLLM takes other kernels and its older model runner."""
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

    def has(_cls: Any, least: Any, _device: int = 0, **_options: Any) -> bool:
        return bool(pair >= (tuple(least) if isinstance(least, tuple) else divmod(least, 10)))

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
        "get_cuda_runtime_major": lambda _cls: 13,  # images for a GB10 are built for CUDA 13
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
    """Replace the parts of vLLM that look for a GPU, also in other processes."""
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
    """Have GPTQ and AWQ quantise by their configuration alone, without looking into weights.

    They list the layers that are quantised by the headers of the safetensors files. Up to 0.27, an empty list means no layer.
    """
    for name in ("gptq", "gptq_marlin", "auto_gptq", "awq", "awq_marlin", "auto_awq"):
        with contextlib.suppress(ImportError):
            module = load(f"vllm.model_executor.layers.quantization.{name}")
            for value in list(vars(module).values()):
                if isinstance(value, type) and "maybe_update_config" in vars(value):
                    value.maybe_update_config = as_configured  # type: ignore[attr-defined]


def as_configured(self: Any, *_args: Any, **_options: Any) -> None:
    """Stand for C(maybe_update_config): a list of lists becomes one list, and a missing list matches every name with a dot."""
    if hasattr(self, "modules_in_block_to_quantize"):
        quantised = self.modules_in_block_to_quantize or ["."]
        blocks = [block if isinstance(block, list) else [block] for block in quantised]
        self.modules_in_block_to_quantize = [name for block in blocks for name in block]
    assumed["quantised layers"] = "all but those that the configuration spares"


pinned: list[Any] = []
"""Storages that a real start would put into pinned host memory."""
