# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask vLLM's own planner: run the planning code of an unpacked vLLM package, without torch and without a GPU.

Modules that only compute are loaded unchanged (REAL); all their other imports are replaced by a stand-in that
accepts anything and does nothing. Functions that live in files too large to load are lifted out of them by name. See
README.md.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import math
import sys
import types
from pathlib import Path
from typing import Any

# Loaded unchanged; all other modules of vLLM are stand-ins.
REAL = frozenset(
    (
        "vllm.utils.math_utils",
        "vllm.utils.mem_constants",
        "vllm.utils.mem_utils",
        "vllm.v1.core.kv_cache_config_builder",
        "vllm.v1.core.kv_cache_planning",
        "vllm.v1.core.kv_cache_utils",
        "vllm.v1.core.single_type_kv_cache_manager",
        "vllm.v1.kv_cache_interface",
        "vllm.v1.kv_cache_layout",
        "vllm.v1.kv_cache_spec_registry",
    )
)
_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1}


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not Anything:
            return super().__call__(*args, **kwargs)
        # As a decorator it hands back what it decorates.
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else Anything

    def __getitem__(cls, _key: Any) -> Any:
        return cls

    def __or__(cls, _other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __bool__(cls) -> bool:
        return cls is not Anything

    def __iter__(cls) -> Any:
        return iter(())


class Anything(metaclass=_Meta):
    """Stands for everything that vLLM imports and its planner does not need."""


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class DType:
    """A torch dtype: a name and a size."""

    def __init__(self, name: str) -> None:
        self.name, self.itemsize = name, _SIZES[name]

    def __repr__(self) -> str:
        return f"torch.{self.name}"


DTYPES = {name: DType(name) for name in _SIZES}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, source: Path) -> None:
        self.source = source

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname in REAL:
            file = self.source / (fullname.replace(".", "/") + ".py")
            if file.exists():
                return importlib.util.spec_from_file_location(fullname, file)
        if fullname.split(".", 1)[0] in ("vllm", "torch", "numpy", "psutil", "typing_extensions"):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = _Module(spec.name)
        vars(module)["__path__"] = []
        return module

    def exec_module(self, module: Any) -> None:
        name = module.__name__
        if name == "torch":
            vars(module).update(DTYPES, dtype=DType)
        elif name == "vllm.utils.torch_utils":
            module.get_dtype_size = lambda dtype: dtype.itemsize
            module.nvfp4_kv_cache_full_dim = lambda size: size // 2 + size // 16
        elif name == "vllm.v1.attention.backend":
            module.MultipleOf = MultipleOf
        elif name == "vllm.logger":
            module.init_logger = lambda _name: Anything
        elif name == "vllm.v1.hisparse.layout":
            module.get_hisparse_kv_cache_groups = lambda *_args: []
        elif name == "typing_extensions":
            module.Self = Any


class MultipleOf:
    """vllm.v1.attention.backend.MultipleOf."""

    def __init__(self, base: int) -> None:
        self.base = base


class Package:
    """The planner of one unpacked vLLM package (the folder that holds vllm/)."""

    def __init__(self, source: str | Path) -> None:
        self.source = Path(source)
        if not (self.source / "vllm").is_dir():
            raise SystemExit(f"{source}: there is no folder vllm in it, give the unpacked package")
        sys.meta_path.insert(0, _Finder(self.source))
        self.interface = importlib.import_module("vllm.v1.kv_cache_interface")
        self.utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        self.planning = self.utils
        if (self.source / "vllm/v1/core/kv_cache_planning.py").exists():
            self.planning = importlib.import_module("vllm.v1.core.kv_cache_planning")
        self._trees: dict[str, ast.Module] = {}

    def has(self, file: str, name: str) -> bool:
        """Tell whether a file of the package defines a function, a class, or Class.method."""
        return (self.source / "vllm" / file).exists() and self._find(file, name) is not None

    def mentions(self, file: str, text: str) -> bool:
        """Tell whether a file of the package has a text in it."""
        return text in (self.source / "vllm" / file).read_text(encoding="utf-8")

    def _find(self, file: str, name: str) -> Any:
        if file not in self._trees:
            self._trees[file] = ast.parse((self.source / "vllm" / file).read_text(encoding="utf-8"))
        definition: Any = self._trees[file]
        for part in name.split("."):
            kinds = (ast.FunctionDef, ast.ClassDef)
            inner = [node for node in ast.walk(definition) if isinstance(node, kinds) and node.name == part]
            if not inner:
                return None
            definition = inner[0]
        return definition

    def lift(self, file: str, name: str, **names: Any) -> Any:
        """Return a function or a class of vLLM without loading its file; names are the globals that it uses."""
        node = self._find(file, name)
        if node is None:
            raise SystemExit(f"vllm/{file}: {name} is not there, this package is not known")
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []  # a property or a class method is lifted as the function under it
        module = ast.parse("from __future__ import annotations")
        module.body.append(node)
        scope: dict[str, Any] = {**vars(self.interface), **names}
        exec(compile(ast.fix_missing_locations(module), f"vllm/{file}", "exec"), scope)
        return scope[node.name]


# One case -----------------------------------------------------------------------------------------------------------

_TORCH_NAMES = {"half": "float16", "float": "float32", "int8_per_token_head": "int8", "nvfp4": "uint8"}
_EAGLE = ("eagle", "eagle3", "mtp", "dflash")


class _Names(types.SimpleNamespace):
    """A config object: fields that the case does not set are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _cdiv(first: int, second: int) -> int:
    return -(-first // second)


class _Backend:
    """An attention backend of sm_121: pages of 16 tokens (FlashAttention, Triton), or FlashInfer's sizes."""

    def __init__(self, sizes: list[Any], customize: Any) -> None:
        self._sizes, self.customize_spec = sizes, customize

    def get_supported_kernel_block_sizes(self, _spec: Any = None) -> list[Any]:
        return self._sizes

    def get_preferred_block_size(self, default: int) -> int:
        return default

    def supports_block_size(self, _size: int) -> bool:
        return True

    def is_mla(self) -> bool:
        return False

    def get_name(self) -> str:
        return "STAND_IN"


class Planner:
    """The answers of one vLLM package to cases; see README.md for the fields of a case."""

    def __init__(self, source: str | Path) -> None:
        self.package = package = Package(source)
        face = package.interface
        self.new_layout = package.planning is not package.utils  # from 0.33
        names = {
            **DTYPES,
            "cdiv": _cdiv,
            "get_kv_quant_mode": getattr(face, "get_kv_quant_mode", None),
            "STR_DTYPE_TO_TORCH_DTYPE": _Dtypes(),
            "current_platform": Anything,
            "MambaPrefillCheckpointExporter": Anything,
            "logger": Anything,
            "torch": sys.modules.get("torch") or importlib.import_module("torch"),
            "AttentionType": _Names(DECODER="decoder", ENCODER_ONLY="encoder_only", ENCODER="encoder"),
            "kv_cache_dtype_str_to_dtype": lambda name, model: model.dtype if name == "auto" else _Dtypes()[name],
            "MultipleOf": MultipleOf,
        }
        layers = "model_executor/layers"
        attention, latent = f"{layers}/attention/attention.py", f"{layers}/attention/mla_attention.py"
        if not (package.source / "vllm" / attention).exists():  # up to 0.15
            attention = latent = "attention/layer.py"
        if package.has(attention, "_largest_kernel_block_within"):
            names["_largest_kernel_block_within"] = package.lift(attention, "_largest_kernel_block_within", **names)
        self.attention = package.lift(attention, "Attention.get_kv_cache_spec", **names)
        self.chunked = package.lift(
            f"{layers}/attention/chunked_local_attention.py", "ChunkedLocalAttention.get_kv_cache_spec", **names
        )
        self.mla = package.lift(latent, "MLAAttention.get_kv_cache_spec", **names)
        self.mamba = package.lift(f"{layers}/mamba/abstract.py", "MambaBase.get_kv_cache_spec", **names)
        self.stages = package.lift("distributed/utils.py", "get_pp_indices", envs=_Names(), logger=Anything)
        self.shapes = package.lift(
            f"{layers}/mamba/mamba_utils.py",
            "MambaStateShapeCalculator",
            divide=_divide,
            is_conv_state_dim_first=lambda: False,
        )
        self.state_dtypes = package.lift(
            f"{layers}/mamba/mamba_utils.py",
            "MambaStateDtypeCalculator",
            get_kv_cache_torch_dtype=lambda name, model: model if name == "auto" else _Dtypes()[name],
            STR_DTYPE_TO_TORCH_DTYPE=_Dtypes(),
            torch=names["torch"],
        )
        self.mamba_mode = package.lift(
            "model_executor/models/config.py", "MambaModelConfig", **{**names, "VerifyAndUpdateConfig": object}
        )
        self.names = names
        self.customizes = package.has("v1/attention/backend.py", "AttentionBackend.customize_spec")
        self.fixed_mode = not package.mentions("v1/kv_cache_interface.py", 'mamba_cache_mode == "all"')
        self.gdn_checkpoints = package.has(
            f"{layers}/mamba/gdn/qwen_gdn_linear_attn.py", "get_prefill_checkpoint_alignment"
        )
        self.mamba_checkpoints = package.has(f"{layers}/mamba/mamba_mixer2.py", "MambaMixer2.get_kv_cache_spec")
        self.in_flight = None
        if package.has("config/vllm.py", "VllmConfig.max_in_flight_tokens"):
            self.in_flight = (
                package.lift("config/vllm.py", "VllmConfig.max_concurrent_batches"),
                package.lift("config/vllm.py", "VllmConfig.max_in_flight_tokens"),
            )
        self.lookahead = None
        if package.has("config/vllm.py", "VllmConfig.num_prefill_lookahead_tokens"):
            self.lookahead = package.lift("config/vllm.py", "VllmConfig.num_prefill_lookahead_tokens")

    # What the command line and the model classes make of a case.

    def _config(self, case: dict[str, Any]) -> Any:
        face, settings = self.package.interface, case["settings"]
        dtype = DTYPES[case.get("dtype", "bfloat16")]
        ranks = settings.get("tensor_parallel", 1)
        drafts, method = settings.get("num_speculative_tokens", 0), settings.get("method", "mtp")
        state: Any = case.get("recurrent")
        attention = next(layer for layer in self._layers(case) if isinstance(layer, list))
        shape = case["palette"][attention[0]]
        block = settings.get("block_size", 0)
        config = _Names(
            model_config=_Names(
                dtype=dtype,
                max_model_len=case["max_model_len"],
                original_max_model_len=-1 if case.get("auto") else case["max_model_len"],
                # Up to 0.16 only models with Gated DeltaNet combine a drafter with a state.
                hf_config=_Names(model_type="qwen3_next" if state and state["kind"] == "gdn" else ""),
                use_mla=shape["kind"] == "mla",
                is_hybrid=bool(state),
                get_num_kv_heads=lambda _parallel: _heads(shape, ranks),
                get_head_size=lambda: shape["head_dim"],
                get_mamba_chunk_size=lambda: (state or {}).get("chunk_size") or 2048,
                supports_mamba_prefix_caching=bool(state) and state["kind"] == "mamba",
                supports_kv_cache_grouping=False,
            ),
            cache_config=_Names(
                cache_dtype=settings.get("kv_cache_dtype", "auto"),
                block_size=block or 16,
                user_specified_block_size=bool(block),
                user_specified_mamba_block_size=False,
                # From 0.32 the mode follows from prefix caching alone and ignores the option.
                mamba_cache_mode=(not self.fixed_mode and settings.get("mamba_cache_mode")) or "none",
                mamba_cache_dtype=settings.get("mamba_cache_dtype", "auto"),
                mamba_ssm_cache_dtype=settings.get("mamba_ssm_cache_dtype", "auto"),
                enable_prefix_caching=settings.get("prefix_caching", True),
                num_gpu_blocks_override=case.get("override"),
                kv_cache_dtype_skip_layers=list(settings.get("skip_layers", ())),
                use_replayssm=False,
                get_resolved_kv_cache_layout=lambda: face.KVCacheLayout.LBNHC,
            ),
            parallel_config=_Names(
                tensor_parallel_size=ranks,
                pipeline_parallel_size=settings.get("pipeline_parallel", 1),
                decode_context_parallel_size=settings.get("decode_context", 1),
                prefill_context_parallel_size=1,
            ),
            scheduler_config=_Names(
                max_num_batched_tokens=settings["max_num_batched_tokens"],
                disable_hybrid_kv_cache_manager=not settings.get("hybrid_manager", True)
                # VllmConfig.__post_init__: chunked local attention and EAGLE.
                or (drafts > 0 and method in _EAGLE and any(p["kind"] == "chunked" for p in case["palette"].values())),
                async_scheduling=settings.get("async_scheduling", True),
                enable_chunked_prefill=True,
            ),
            attention_config=_Names(),
            device_config=_Names(device_type="cuda"),
            use_v2_model_runner=settings.get("model_runner", 2) == 2,
            num_speculative_tokens=drafts,
            num_prefill_lookahead_tokens=0,
        )
        if drafts:
            modules = len(case.get("draft", ())) if method == "mtp" else 1
            config.speculative_config = _Names(
                num_speculative_tokens=drafts,
                method=method,
                use_eagle=lambda: method in _EAGLE,
                use_eagle_block_drop=lambda: False,
                use_multi_module_mtp=lambda: method == "mtp" and min(modules, drafts) > 1,
            )
            if self.lookahead:
                config.num_prefill_lookahead_tokens = self.lookahead(config)
        if self.in_flight:
            batches, tokens = self.in_flight
            config.max_concurrent_batches = batches(config)
            config.max_in_flight_tokens = tokens(config)
        return config

    @staticmethod
    def _layers(case: dict[str, Any]) -> list[Any]:
        """One entry for every layer: [letter of the palette, index], the recurrent state, or None."""
        made: list[Any] = []
        for index, letter in enumerate(case["pattern"]):
            made.append(None if letter == "-" else "state" if letter == "R" else [letter, index])
        return made

    def _attention_spec(self, config: Any, shape: dict[str, Any], index: int) -> Any:
        cache, skip = config.cache_config, config.cache_config.kv_cache_dtype_skip_layers
        window = shape.get("window") or None
        dtype = cache.cache_dtype
        if shape["kind"] != "mla" and (str(index) in skip or (shape["kind"] == "sliding" and "sliding_window" in skip)):
            dtype = "auto"
        layer = _Names(
            attn_type="decoder",
            sliding_window=window if shape["kind"] == "sliding" else None,
            attention_chunk_size=window,
            num_kv_heads=_heads(shape, config.parallel_config.tensor_parallel_size),
            head_size=shape["head_dim"],
            head_size_v=shape.get("head_dim_v", shape["head_dim"]),
            kv_cache_dtype=dtype,
            kv_cache_torch_dtype=config.model_config.dtype if dtype == "auto" else _Dtypes()[dtype],
            attn_backend=self._backend(dtype),
            _uses_flat_kv_cache=lambda: False,
        )
        build = {"mla": self.mla, "chunked": self.chunked}.get(shape["kind"], self.attention)
        spec = build(layer, config)
        if hasattr(spec, "indexes_kv_by_block_stride"):  # what the model runner adds: true of all backends of sm_121
            object.__setattr__(spec, "indexes_kv_by_block_stride", True)
        return layer.attn_backend.customize_spec(spec)

    def _backend(self, dtype: str) -> _Backend:
        sizes: list[Any] = [MultipleOf(16)]
        file, name = "triton_attn.py", "TritonAttentionBackend.customize_spec"
        if dtype.startswith("nvfp4"):
            sizes, file, name = [16, 32, 64], "flashinfer.py", "FlashInferBackend.customize_spec"
        if not self.customizes or not (dtype.startswith("nvfp4") or dtype.endswith("per_token_head")):
            return _Backend(sizes, lambda spec: spec)
        lifted = self.package.lift(
            f"v1/attention/backends/{file}",
            name,
            replace=dataclasses.replace,
            get_dtype_size=lambda element_type: element_type.itemsize,
            nvfp4_kv_cache_full_dim=lambda size: size // 2 + size // 16,
            torch=self.names["torch"],
        )
        return _Backend(sizes, lambda spec: lifted(None, spec))

    def _state(self, case: dict[str, Any], config: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        state, drafts = case["recurrent"], case["settings"].get("num_speculative_tokens", 0)
        cache, ranks = config.cache_config, config.parallel_config.tensor_parallel_size
        ssm = cache.mamba_ssm_cache_dtype
        if ssm == "auto" and state.get("ssm_dtype"):
            ssm = state["ssm_dtype"]
        if state["kind"] == "gdn":
            shapes = self.shapes.gated_delta_net_state_shape(
                ranks,
                state["groups"],
                state["heads"],
                state["state_dim"],
                state["head_dim"],
                state["conv_kernel"],
                drafts,
            )
            build = self.state_dtypes.gated_delta_net_state_dtype
            state_dtypes = (config.model_config.dtype, cache.mamba_cache_dtype, ssm)
            dtypes = build(
                *state_dtypes[: build.__code__.co_argcount - 1]
            )  # up to 0.16 without a separate dtype for the state
        else:
            if ssm == "auto":  # NemotronHForCausalLMConfig
                config_file = "model_executor/models/config.py"
                newer = self.package.has(config_file, "NemotronHForCausalLMConfig.update_mamba_ssm_cache_dtype")
                ssm = "float32" if newer else "float16"
            shape_of = self.shapes.mamba2_state_shape
            sizes = (
                *(ranks, state["heads"] * state["head_dim"], state["groups"], state["heads"], state["head_dim"]),
                *(state["state_dim"], state["conv_kernel"], drafts),
            )
            shapes = shape_of(*sizes[: shape_of.__code__.co_argcount - 1])  # up to 0.16 without the tokens of a drafter
            dtypes = self.state_dtypes.mamba2_state_dtype(config.model_config.dtype, cache.mamba_cache_dtype, ssm)
        return tuple(shapes), tuple(dtypes)

    def _align(self, case: dict[str, Any], config: Any) -> None:
        """Let vLLM choose the block size (HybridAttentionMambaModelConfig, Platform.update_block_size_for_backend)."""
        package, cache = self.package, config.cache_config
        shapes, dtypes = self._state(case, config) if case.get("recurrent") else ((), ())
        model = _Names(
            get_mamba_state_shape_from_config=lambda _config: shapes,
            get_mamba_state_dtype_from_config=lambda _config: dtypes,
        )
        registry = _Names(resolve_model_cls=lambda *_args, **_kwargs: (_Plain(model), None))
        backend = self._backend(cache.cache_dtype)
        alignment = 64 if self._gdn_checkpoints(case) else 1 if self._mamba_checkpoints(case) else None
        for name, values in (
            ("vllm.config.vllm", {"set_current_vllm_config": _Context}),
            ("vllm.model_executor.models", {"ModelRegistry": registry}),
            ("vllm.utils.torch_utils", {"STR_DTYPE_TO_TORCH_DTYPE": _Dtypes()}),
            (
                "vllm.config.cache",
                {"CacheConfig": _Names(DEFAULT_BLOCK_SIZE=16), "get_kv_cache_dtype_handler": lambda _name: None},
            ),
            (
                "vllm.model_executor.layers.mamba.abstract",
                {"get_mamba_prefill_checkpoint_alignment": lambda _config: alignment},
            ),
        ):
            vars(importlib.import_module(name)).update(values)
        if not package.has("platforms/interface.py", "Platform._align_hybrid_block_size"):
            if case.get("recurrent"):
                hybrid = package.lift(
                    "model_executor/models/config.py",
                    "HybridAttentionMambaModelConfig.verify_and_update_config",
                    **{**self.names, "lcm": math.lcm, "ModelRegistry": registry},
                    MambaModelConfig=self.mamba_mode,
                    AttentionBackendEnum=_Names(CUTLASS_MLA="CUTLASS_MLA"),
                )
                hybrid(None, config)
            return
        if case.get("recurrent"):
            self.mamba_mode.verify_and_update_config(config)
        platform = _Plain(
            _Names(
                _find_non_ssm_backend=lambda _config: backend,
                _find_non_ssm_backends=lambda _config: [backend],
                _check_aligned_block_size=lambda *_args: None,
                _get_indexer_block_alignment=lambda *_args: None,
            )
        )
        for name in (
            "_align_hybrid_block_size",
            "_align_heterogeneous_kv_block_size",
            "_preferred_block_size_for_backends",
        ):
            if package.has("platforms/interface.py", f"Platform.{name}"):
                lifted = package.lift(
                    "platforms/interface.py", f"Platform.{name}", logger=Anything, math=math, itertools=itertools
                )
                setattr(platform, name, lambda *args, _call=lifted: _call(platform, *args))
        package.lift("platforms/interface.py", "Platform.update_block_size_for_backend", logger=Anything)(
            platform, config
        )

    def _gdn_checkpoints(self, case: dict[str, Any]) -> bool:
        """GDN with FlashInfer prefill, as sm_121 takes it with key heads of 128."""
        state: Any = case.get("recurrent")
        return bool(state) and state["kind"] == "gdn" and state["state_dim"] == 128 and self.gdn_checkpoints

    def _mamba_checkpoints(self, case: dict[str, Any]) -> bool:
        state: Any = case.get("recurrent")
        return bool(state) and state["kind"] == "mamba" and self.mamba_checkpoints

    def _specs(self, case: dict[str, Any], config: Any) -> list[dict[str, Any]]:
        """The KV cache specs of every pipeline stage."""
        stages = config.parallel_config.pipeline_parallel_size
        layers = self._layers(case)
        made: list[dict[str, Any]] = []
        for stage in range(stages):
            start, end = self.stages(len(layers), stage, stages)
            specs: dict[str, Any] = {}
            for index in range(start, end):
                layer = layers[index]
                if layer is None:
                    continue
                if layer == "state":
                    shapes, dtypes = self._state(case, config)
                    spec = self.mamba(
                        _Names(
                            get_state_shape=lambda s=shapes: s, get_state_dtype=lambda d=dtypes: d, mamba_type="any"
                        ),
                        config,
                    )
                    if self._gdn_checkpoints(case) or self._mamba_checkpoints(case):
                        spec = dataclasses.replace(spec, num_prefill_checkpoint_blocks=1)
                else:
                    spec = self._attention_spec(config, case["palette"][layer[0]], index)
                specs[f"layers.{index}"] = spec
            made.append(specs)
        for index, letter in enumerate(case.get("draft", "")):
            made[-1][f"draft.{index}"] = self._attention_spec(config, case["palette"][letter], len(layers) + index)
        return made

    def answer(self, case: dict[str, Any]) -> dict[str, Any]:
        """Plan a case; an error of vLLM is an answer, too."""
        try:
            return self._answer(case)
        except (ValueError, NotImplementedError, AssertionError, ZeroDivisionError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _answer(self, case: dict[str, Any]) -> dict[str, Any]:
        package, utils = self.package, self.package.utils
        config = self._config(case)
        self._align(case, config)
        specs = self._specs(case, config)
        available = [case["available"]] * len(specs)
        merged = {name: spec for stage in specs for name, spec in stage.items()}
        if self.new_layout:
            builder = package.planning.DefaultKVCacheConfigBuilder()
            vars(importlib.import_module("vllm.v1.core.kv_cache_config_builder")).update(
                get_kv_cache_config_builder=lambda _config: builder
            )
            groups = package.planning.get_global_kv_cache_groups(config, specs)
            plans = package.planning.get_kv_cache_configs(config, specs, available, groups)
        else:
            groups = utils.get_kv_cache_groups(config, merged)
            plans = utils.get_kv_cache_configs(config, specs, available)
        scheduler = utils.generate_scheduler_kv_cache_config(plans)
        self._check_context(config, scheduler)
        length, blocks = config.model_config.max_model_len, scheduler.num_blocks
        if hasattr(utils, "get_kv_cache_capacity"):
            tokens, concurrency = utils.get_kv_cache_capacity(config, scheduler)
        else:
            concurrency = utils.get_max_concurrency_for_kv_cache_config(config, plans[0])
            tokens = self._printed(config, plans[0])
        stages = [self._bytes_per_block(config, plan) for plan in plans]
        return {
            "block_size": config.cache_config.block_size,
            "mamba_cache_mode": config.cache_config.mamba_cache_mode if case.get("recurrent") else "none",
            "groups": [
                [_kind(group.kv_cache_spec), len(group.layer_names), group.kv_cache_spec.block_size] for group in groups
            ],
            "stage_bytes_per_block": stages,
            "num_blocks": blocks,
            "max_model_len": length,
            "tokens": tokens,
            "concurrency": concurrency,
            "needed": self._needed(config, plans, groups),
        }

    def _check_context(self, config: Any, scheduler: Any) -> None:
        """Return the engine's error for groups of a decode context at the creation of its scheduler."""
        kinds = [group.kv_cache_spec for group in scheduler.kv_cache_groups]
        if config.parallel_config.decode_context_parallel_size == 1 or len(kinds) == 1:
            return
        coordinator = "v1/core/kv_cache_coordinator.py"
        if self.package.has("v1/core/kv_cache_utils.py", "resolve_kv_cache_block_sizes"):
            config.kv_transfer_config = None
            config.cache_config.hash_block_size = None
            self.package.utils.resolve_kv_cache_block_sizes(scheduler, config)
        if self.package.mentions(coordinator, "DCP not support hybrid attn now."):
            raise AssertionError("DCP not support hybrid attn now.")
        for spec in kinds:
            if _kind(spec) not in ("full", "mla", "state") and getattr(spec, "dcp_sharded", True):
                newer = self.package.mentions(coordinator, "and replicated draft groups, got")
                only = (
                    "full-attention, Mamba, and replicated draft groups" if newer else "full-attention and Mamba groups"
                )
                raise AssertionError(
                    f"DCP with hybrid KV cache layouts only supports {only}, got: {type(spec).__name__}."
                )

    def _bytes_per_block(self, config: Any, plan: Any) -> Any:
        planning = self.package.planning
        if hasattr(planning, "_pool_bytes_per_block_from_builder"):
            return planning._pool_bytes_per_block(config, plan.kv_cache_groups)
        if hasattr(planning, "_pool_bytes_per_block"):
            try:
                return planning._pool_bytes_per_block(plan.kv_cache_groups)
            except TypeError:
                return planning._pool_bytes_per_block(config, plan.kv_cache_groups)
        return sum(tensor.size for tensor in plan.kv_cache_tensors) // plan.num_blocks

    def _needed(self, config: Any, plans: list[Any], groups: Any) -> Any:
        planning = self.package.planning
        if not hasattr(planning, "_project_kv_cache_groups_to_worker"):  # up to 0.16 for all stages together
            return planning._max_memory_usage_bytes_from_groups(config, groups)
        if self.new_layout:
            builder = planning.DefaultKVCacheConfigBuilder()
            return max(
                planning._max_memory_usage_bytes_from_groups(builder, config, plan.kv_cache_groups) for plan in plans
            )
        return max(planning._max_memory_usage_bytes_from_groups(config, plan.kv_cache_groups) for plan in plans)

    def _printed(self, config: Any, plan: Any) -> int:
        """The number of the line "GPU KV cache size", taken from vLLM's own log call."""
        lines: list[tuple[Any, ...]] = []
        utils = self.package.utils
        vars(utils)["logger"] = _Names(
            info_once=lambda *args, **_kwargs: lines.append(args), info=lambda *_args, **_kwargs: None
        )
        utils._report_kv_cache_config(config, plan)
        vars(utils)["logger"] = Anything
        return next(int(line[1].replace(",", "")) for line in lines if "KV cache size" in line[0])


class _Dtypes:
    """STR_DTYPE_TO_TORCH_DTYPE, by size: one byte for every quantised cache."""

    def __getitem__(self, name: str) -> DType:
        return DTYPES.get(_TORCH_NAMES.get(name, name), DTYPES["uint8"])


class _Context:
    def __init__(self, *_args: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_args: Any) -> None:
        pass


class _Plain:
    """An object with the attributes of another and no more (hasattr is asked of it)."""

    def __init__(self, names: _Names) -> None:
        vars(self).update(vars(names))


def _divide(first: int, second: int) -> int:
    assert first % second == 0, f"{first} is not divisible by {second}"
    return first // second


def _heads(shape: dict[str, Any], ranks: int) -> int:
    return 1 if shape["kind"] == "mla" else max(1, shape["kv_heads"] // ranks)


def _kind(spec: Any) -> str:
    if hasattr(spec, "kv_cache_specs"):
        spec = next(iter(spec.kv_cache_specs.values()))
    name = type(spec).__name__
    return {
        "FullAttentionSpec": "full",
        "SlidingWindowSpec": "sliding",
        "ChunkedLocalAttentionSpec": "chunked",
        "MLAAttentionSpec": "mla",
        "MambaSpec": "state",
    }.get(name, name)
