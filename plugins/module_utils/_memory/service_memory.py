# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One service as the memory budget sees it: its input checked, its model read, its overheads estimated.

C(read_params) checks everything that a person wrote and reports all mistakes at once; C(resolve) turns one service into an
C(Engine), which answers how much it asks for, how much is left for its KV cache, and how much it holds once it runs.
No I/O, no Ansible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from .._common.plain_data import EVERYWHERE, InputError, Written, is_number, is_whole, unfit
from .._common.sizes import GIB
from .._common.untrusted import Untrusted
from .._common.validation import nearest_word
from .._vllm.catalogue import minors_with_launch, options
from .._vllm.context_length import ALLOW_VARIABLE, context_limit
from .._vllm.launch import long_name, parse
from .._vllm.overheads import LEVELS, OVERHEADS
from .._vllm.seccomp import TABLE_VARIABLE, table_on_disk
from . import adapters, answered, host_memory, image_answer
from .geometry import Config, Geometry, Layer, Refusal, checkpoint_kv_dtype, read_geometry, text_config
from .host_memory import HostBuffer, HostLaunch, HostWeights, host_buffers, host_weights
from .kv_cache import (
    COMPARED_MINORS,
    KVPlan,
    KVSettings,
    PlanFailure,
    Release,
    error_align,
    error_kernel_block,
    parse_release,
    plan_kv_cache,
)
from .profile_run import V2_ALL, Launch, ProfileRun, asked_captures, by_batch, is_compiled, profile_run
from .tensors import tensors_bytes
from .weight_formats import Quantization
from .weights import Split, Weights, drafter_bytes, weights_bytes

COMPARED, NOT_COMPARED, IMAGE, STATED = SOURCES = (
    "arithmetic, compared",
    "arithmetic, not compared",
    "image",
    "stated",
)
"""What a figure of the plan rests on: arithmetic that gave what this very vLLM gives, or not; the vLLM of the image; a person."""
MEASURED, NARROWED = "measured here", "narrowed by a measured start"
"""The same, of a launch that was measured on this host before, and of one of which a start of another length, batch or host was."""
STAGES = ("arguments", "device", "load", "profile", "kv_cache", "graphs")

# Defaults of vLLM on GB10, whose memory cannot be read through NVML (vllm/engine/arg_utils.py, get_batch_defaults).
DEFAULT_BATCHED_TOKENS = 2048
DEFAULT_SEQS = 256
# Gemma 4 attends to an image in both directions: the default batch holds the largest item (0.33.0).
PREFIX_LM_BATCHED_TOKENS = 2496
# The first release read in which online quantisation makes the 16-bit weights of a layer only when they arrive (fp8.py, device
# "meta"; from 0.19 model_executor/model_loader/reload/layerwise.py, initialize_online_processing; from 0.20 for all formats).
LAYERWISE_MINOR = 16
# What stands where nobody wrote down a version: the tag of an image.
_MOVING_VERSIONS = ("nightly", "latest", "main", "unknown")
# A service that leaves both its memory and its length to the solver gets at least this context.
SOLVER_MIN_LENGTH = 4096

# Models whose tower takes no videos (get_supported_mm_limits in vllm/model_executor/models/: gemma3_mm, mistral3, mllama4, pixtral).
_IMAGES_ONLY = frozenset(("gemma3", "llama4", "mistral3", "pixtral"))
# Whose towers are loaded in any case: their class does not mark them as such (models/inkling/nvidia/model.py).
_ALWAYS_TOWERS = frozenset(("inkling_model",))
_SPEC_WITHOUT_MODEL = frozenset(("ngram", "ngram_gpu", "suffix"))
_SPEC_WITH_MODEL = frozenset(("eagle", "eagle3", "draft_model", "dflash"))
# Heads beside the model that keep no cache of their own; gone in 0.33.
_SPEC_HEADS = frozenset(("medusa", "mlp_speculator"))
# SpeculativeConfig.suffix_decoding_max_tree_depth, the draft tokens of suffix decoding when none are asked for.
SUFFIX_TOKENS = 24

_TOP_KEYS = ("total_gib", "os_reserve_gib", "measured", "overheads", "safety_margin_gib", "services")
_MEASURED_KEYS = ("mem_available_gib", "mem_free_gib", "resident")
_SERVICE_KEYS = (
    "name",
    "config",
    "quant_config",
    "weights_gib",
    "tensors",
    "draft_config",
    "draft_weights_gib",
    "memory_gib",
    "memory",
    "image_plan",
    "starts",
    "vllm_version",
    "args",
    "env",
    "available_kv_bytes",
    "overheads",
    "share",
    "last",
    "rank",
    "exclusive",
)
POSITIVE_ARGS = (
    "max-num-seqs",
    "max-num-batched-tokens",
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "decode-context-parallel-size",
    "data-parallel-size",
    "block-size",
    "num-gpu-blocks-override",
    "kv-cache-memory-bytes",
    "max-loras",
    "max-lora-rank",
    "max-cpu-loras",
)
FLAG_ARGS = (
    "enable-prefix-caching",
    "enable-chunked-prefill",
    "enforce-eager",
    "async-scheduling",
    "language-model-only",
    "disable-hybrid-kv-cache-manager",
    "enable-expert-parallel",
    "enable-lora",
    "fully-sharded-loras",
    "enable-tower-connector-lora",
    "enable-moe-shared-loras",
    "enable-mixed-moe-lora-format",
    "dcp-q-replicate",
)
TEXT_ARGS = (
    "kv-cache-dtype",
    "mamba-cache-mode",
    "mamba-cache-dtype",
    "mamba-ssm-cache-dtype",
    "dtype",
    "quantization",
    "runner",
    "lora-dtype",
)
_OTHER_ARGS = (
    "gpu-memory-utilization",
    "max-model-len",
    "kv-cache-dtype-skip-layers",
    "limit-mm-per-prompt",
    "kv-transfer-config",
    "lora-target-modules",
    "config-format",
    "hf-overrides",
    "trust-remote-code",
)
_MAPPING_ARGS = ("speculative-config", "compilation-config")
# The variable of the environment that names a model runner; all that are looked at.
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
VARIABLES = (RUNNER_VARIABLE, TABLE_VARIABLE, ALLOW_VARIABLE, *host_memory.VARIABLES)
_STATED_KEYS = ("weights_gib", "kv_gib", "other_gib")
_START_KEYS = (
    *("exact", "max_model_len", "max_num_batched_tokens", "max_num_seqs"),
    *("weights_gib", "inside_gib", "outside_gib"),
)
# What of a launch an image need not be asked about again, as the answer holds for any value up to the one that was asked about.
ANSWERED_ARGS = ("gpu-memory-utilization", "max-model-len", "max-num-seqs", "kv-cache-memory-bytes")
# The same of options that leave the memory of the GPU as it is.
HOST_ARGS = host_memory.ARGS
# What changes the plan in ways that are not known here, unless it says 1 or false.
_UNPLANNED_ARGS = (
    "prefill-context-parallel-size",
    "mamba-block-size",
    "disable-sliding-window",
)
_MEMORY_ARGS = (*POSITIVE_ARGS, *FLAG_ARGS, *TEXT_ARGS, *_MAPPING_ARGS, *_OTHER_ARGS, *_UNPLANNED_ARGS, *HOST_ARGS)
# Left out or C(auto), these are worked out (max-num-seqs only for C(auto)).
_OPEN_ARGS = ("gpu-memory-utilization", "max-model-len", "max-num-seqs")


# No size in GiB, share or time is larger; what is, is a slip.
_LARGEST = 1e6


@dataclass(frozen=True)
class Host:
    """The node: sizes in bytes. C(resident) maps the services that run now to what they hold."""

    total: int
    os_reserve: int
    margin: int
    available: int | None
    free: int | None
    resident: dict[str, int]

    def __hash__(self) -> int:
        return hash((self.total, self.os_reserve, self.margin, self.available, self.free, *sorted(self.resident)))


@dataclass(frozen=True)
class Start:
    """What one launch took in all its measured starts, see C(learned.py).

    exact: on this host, of this image, with this driver. weights: GiB of model and drafter. inside: GiB inside the request beside weights
    and cache, the least and the most. outside: GiB held beside the request, likewise; None where it is not known.
    """

    exact: bool
    length: int
    batch: int
    sequences: int
    weights: float
    inside: tuple[float, float]
    outside: tuple[float, float] | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Longest context, batch and requests at once."""
        return self.length, self.batch, self.sequences


@dataclass(frozen=True, eq=False)
class ServiceInput:
    """One service as it was written, its types checked.

    starts: of the same launch, or of one that differs in its lengths or its batch alone.
    stated: GiB of weights, KV cache and the rest that replace all arithmetic; the last two may be open. asked: what the image said of
    this very launch; asked_reason: why it said nothing. runner: the model runner that the environment asks for, 1 or 2, else 0.
    minors: the minor releases that an engine of unknown version is judged by. any_length: vLLM's check of the context is switched off.
    env: variables that decide host memory. rank: of this node in a cluster, 0 for the one that answers requests.
    Two that are written alike are equal and have one hash, so that the same model on many hosts is read once.
    """

    name: str
    args: Config
    overheads: dict[str, tuple[float, float, float]]
    config: Config | None = None
    quant_config: Config | None = None
    weights_gib: float | None = None
    tensors: list[Any] | None = None
    draft_config: Config | None = None
    draft_weights_gib: float | None = None
    memory_gib: float | None = None
    stated: tuple[float, float | None, float | None] | None = None
    asked: image_answer.Answer | None = None
    asked_reason: str = ""
    starts: tuple[Start, ...] = ()
    vllm_version: str = ""
    minors: tuple[int, ...] = ()
    available_kv_bytes: int | None = None
    share: float = 1.0
    last: int = 0
    exclusive: str = ""
    misspelt: tuple[tuple[str, str], ...] = ()
    runner: int = 0
    table: str = ""
    any_length: bool = False
    env: Config = field(default_factory=dict)
    rank: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "_text", repr(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServiceInput) and vars(self)["_text"] == vars(other)["_text"]

    def __hash__(self) -> int:
        return hash(vars(self)["_text"])

    @cached_property
    def unnamed(self) -> ServiceInput:
        """The same without what distinguishes it on its host: its name, share, place and set."""
        return replace(self, name="", share=1.0, last=0, exclusive="")


# Reading what a person wrote ----------------------------------------------------------------------------------------


class _Reader:
    """Collects every mistake instead of stopping at the first."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def wrong(self, where: str, key: str, text: str) -> None:
        """Note a mistake."""
        self.messages.append(f"{where}{key}: {text}")

    def keys(self, value: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        """Note keys that are not known, with the nearest that is."""
        for key in value:
            if key not in known:
                self.wrong(where, str(key), f"unknown key{_nearest(str(key), known)}")

    def number(
        self, value: Mapping[str, Any], key: str, where: str, *, minimum: float = 0.0, above: bool = False
    ) -> float | None:
        """Read a finite number of at least (or above) C(minimum)."""
        found = value.get(key)
        if found is None:
            return None
        if not is_number(found, -math.inf, math.inf) or abs(found) == math.inf:
            self.wrong(where, key, f"expected a number, got {found!r}")
        elif found < minimum or (above and found == minimum):
            self.wrong(where, key, f"must be {'above' if above else 'at least'} {minimum:g}, got {found!r}")
        elif found > _LARGEST:
            self.wrong(where, key, f"must be at most {_LARGEST:g}, got {found!r}")
        else:
            return float(found)
        return None

    def whole(self, value: Mapping[str, Any], key: str, where: str, minimum: int = 1) -> int | None:
        """Read a whole number."""
        found = value.get(key)
        if found is None:
            return None
        if not isinstance(found, int) or not is_whole(found, minimum):
            self.wrong(where, key, f"expected a whole number of at least {minimum}, got {found!r}")
            return None
        return int(found)

    def mapping(self, value: Mapping[str, Any], key: str, where: str) -> dict[str, Any] | None:
        """Read a mapping."""
        found = value.get(key)
        if found is None:
            return None
        if not isinstance(found, Mapping):
            self.wrong(where, key, f"expected a mapping, got {found!r}")
            return None
        if key.endswith("config") and (strange := unfit(found, f"{where}{key}", EVERYWHERE)):
            self.messages += strange
            return None
        return dict(found)

    def listed(self, value: Mapping[str, Any], key: str, where: str) -> list[Any] | None:
        """Read a list that is not empty."""
        found = value.get(key)
        if found is None:
            return None
        if not isinstance(found, list) or not found:
            self.wrong(where, key, f"expected a list, got {found!r}")
            return None
        return found

    def overheads(self, value: Mapping[str, Any], where: str) -> dict[str, tuple[float, float, float]]:
        """Read overrides of the overheads: a number for all levels, or a mapping of levels."""
        merged: dict[str, tuple[float, float, float]] = {}
        known = (*OVERHEADS, "inside_gib")
        self.keys(value, known, where)
        for key in known:
            given = value.get(key)
            if given is None:
                continue
            if isinstance(given, Mapping):
                self.keys(given, LEVELS, f"{where}{key}.")
                default = OVERHEADS.get(key)
                if default is None and set(given) != set(LEVELS):
                    self.wrong(where, key, "needs low, typical and high")
                    continue
                start = default or (0.0, 0.0, 0.0)
                values = []
                for index, level in enumerate(LEVELS):
                    number = self.number(given, level, f"{where}{key}.", above=key.endswith("_per_second"))
                    values.append(start[index] if number is None else number)
            else:
                number = self.number(value, key, where, above=key.endswith("_per_second"))
                values = [1.0 if number is None else number] * 3
            if not values[0] <= values[1] <= values[2]:
                self.wrong(where, key, f"low, typical and high must not fall, got {values}")
            elif key == "kept_share" and values[2] > 1:
                self.wrong(where, key, f"is a share, at most 1, got {values[2]:g}")
            merged[key] = (values[0], values[1], values[2])
        return merged


def _nearest(key: str, known: tuple[str, ...]) -> str:
    near = nearest_word(key.replace("_", "-") if "-" in "".join(known) else key, known)
    return f", did you mean {near}?" if near else f"; known are {', '.join(known)}"


def _spelled(args: Mapping[Any, Any], reader: _Reader, where: str) -> Config:
    """Return the arguments by vLLM's long names and in native values, read as its command line reads them."""
    given: dict[str, Any] = {}
    names: set[str] = set()
    autos: set[str] = set()
    for key, value in args.items():
        if not isinstance(key, str):
            reader.wrong(where, repr(key), "expected the name of an argument")
            continue
        name = long_name(key)
        if name in names and "." not in name:
            reader.wrong(where, key, f"is {name}, which is there already")
        names.add(name)
        if name in _OPEN_ARGS and isinstance(value, str) and value.strip().lower() == "auto":
            autos.add(name)
        else:
            given[key] = value
    parsed = parse(given)
    for problem in parsed.problems:
        if problem.option.lstrip("-") in _MEMORY_ARGS:
            reader.wrong(where, problem.option.lstrip("-"), problem.detail)
    return {**parsed.args, **dict.fromkeys(sorted(autos), "auto")}


def _minors_to_judge(config: Config | None, args: Config) -> tuple[int, ...]:
    """Return the compared minor releases that know the architecture and the options of a launch, all where none does."""
    overrides = args.get("hf-overrides")
    overridden = overrides.get("architectures") if isinstance(overrides, Mapping) else None
    architectures = overridden or (config or {}).get("architectures")
    if not isinstance(architectures, list) or args.get("model-impl") == "transformers":
        architectures = []
    known = minors_with_launch([str(name) for name in architectures], args)
    return tuple(minor for minor in COMPARED_MINORS if minor in known) or COMPARED_MINORS


def _in_mistral_format(config: Config | None, args: Config) -> Config | None:
    """Return the config of Mistral 4 as vLLM has it from params.json: a DeepSeek-V3, whose cache is latent (configs/mistral.py)."""
    text = text_config(config or {})
    if config is None or args.get("config-format") != "mistral" or text.get("model_type") != "mistral4":
        return config
    read = {**text, "model_type": "deepseek_v3", "architectures": ["MistralLarge3ForCausalLM"]}
    return read if text is config else {**config, "text_config": read}


def _misspelt(args: Config) -> tuple[tuple[str, str], ...]:
    """Return arguments that no vLLM has and that look like one that decides memory, each with that one."""
    known = options()
    found = []
    for key in args:
        near = None if key in known else nearest_word(key, _MEMORY_ARGS, cutoff=0.8)
        found += [(key, near)] if near else []
    return tuple(found)


def _read_args(args: Config, reader: _Reader, where: str) -> Config:
    """Check the arguments that matter here; the others are the business of the command line, not of memory."""
    kept = {key: value for key, value in args.items() if key in _MEMORY_ARGS and value is not None}
    autos = tuple(key for key in _OPEN_ARGS if kept.get(key) == "auto")
    for key in autos:
        del kept[key]
    for key in POSITIVE_ARGS:
        reader.whole(kept, key, where)
    for key in host_memory.NUMBERS:
        reader.number(kept, key, where)
    for keys, kind, expected in (
        ((*FLAG_ARGS, *host_memory.FLAGS), bool, "true or false"),
        ((*TEXT_ARGS, *host_memory.TEXTS), str, "a text"),
        (_MAPPING_ARGS, Mapping, "a mapping or its JSON text"),
    ):
        for key in keys:
            if key in kept and not isinstance(kept[key], kind):
                reader.wrong(where, key, f"expected {expected}, got {kept[key]!r}")
    utilization = reader.number(kept, "gpu-memory-utilization", where, above=True)
    if utilization is not None and utilization > 1:
        share = f"; write {utilization / 100:g}" if 10 <= utilization <= 100 else ""
        reader.wrong(
            where, "gpu-memory-utilization", f"is a share of all memory, at most 1, got {utilization:g}{share}"
        )
    if utilization is not None:
        kept["gpu-memory-utilization"] = utilization  # vLLM prints 1 as 1.0
    length = kept.get("max-model-len")
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        reader.wrong(where, "max-model-len", f"expected a whole number of tokens, or auto, got {length!r}")
    spec = kept.get("speculative-config")
    if isinstance(spec, Mapping):
        reader.whole(spec, "num_speculative_tokens", f"{where}speculative-config.")
        if not isinstance(spec.get("method", ""), str):
            reader.wrong(where, "speculative-config.method", f"expected a text, got {spec['method']!r}")
        reader.whole(spec, "draft_tensor_parallel_size", f"{where}speculative-config.")
    skip = kept.get("kv-cache-dtype-skip-layers")
    if skip is not None:
        items = skip if isinstance(skip, list) else [skip]
        if not all(isinstance(item, (str, int)) and not isinstance(item, bool) for item in items):
            reader.wrong(where, "kv-cache-dtype-skip-layers", f"expected a list of layers, got {skip!r}")
        kept["kv-cache-dtype-skip-layers"] = tuple(str(item) for item in items)
    return {**kept, **dict.fromkeys(autos, "auto")}


@lru_cache(maxsize=1024)
def _read_once(written: Written) -> tuple[ServiceInput, list[str]]:
    """Read a service, its index and the overheads of its host; the same on many hosts is read once. Nobody may change what is returned."""
    reader = _Reader()
    value, index, common = written.content
    read = _read_service(value, index, common, reader)
    return read, reader.messages


def _read_services(
    services: list[Any], common: dict[str, tuple[float, float, float]], reader: _Reader
) -> list[ServiceInput]:
    found = []
    for index, value in enumerate(services):
        try:
            written = Written((value, index, common))
        except (ValueError, RecursionError):  # a number of thousands of digits, a list that holds itself
            found.append(_read_service(value, index, common, reader))
        else:
            read, messages = _read_once(written)
            found.append(read)
            reader.messages += messages
    return found


def _read_service(
    value: Any, index: int, common: dict[str, tuple[float, float, float]], reader: _Reader
) -> ServiceInput:
    if not isinstance(value, Mapping):
        reader.wrong("", f"services[{index}]", f"expected a mapping, got {value!r}")
        return ServiceInput("", {}, {})
    name = value.get("name")
    if not isinstance(name, str) or not name:
        reader.wrong(f"services[{index}].", "name", f"expected a text, got {name!r}")
        name = f"services[{index}]"
    where = f"service {name}: "
    reader.keys(value, _SERVICE_KEYS, where)
    version = value.get("vllm_version")
    if version is not None and not isinstance(version, str):
        reader.wrong(where, "vllm_version", f'expected a text such as "0.23.0", got {version!r}')
    version = version if isinstance(version, str) and version.strip().lower() not in _MOVING_VERSIONS else ""
    own = reader.overheads(reader.mapping(value, "overheads", where) or {}, f"{where}overheads.")
    args = _spelled(reader.mapping(value, "args", where) or {}, reader, f"{where}args.")
    env = reader.mapping(value, "env", where) or {}
    config = _in_mistral_format(reader.mapping(value, "config", where), args)
    read = ServiceInput(
        name=name,
        args=_read_args(args, reader, f"{where}args."),
        overheads={**OVERHEADS, **common, **own},
        config=config,
        quant_config=reader.mapping(value, "quant_config", where),
        weights_gib=reader.number(value, "weights_gib", where, above=True),
        tensors=reader.listed(value, "tensors", where),
        draft_config=reader.mapping(value, "draft_config", where),
        draft_weights_gib=reader.number(value, "draft_weights_gib", where),
        memory_gib=reader.number(value, "memory_gib", where, above=True),
        stated=_read_stated(value, reader, where),
        vllm_version=version,
        minors=() if version else _minors_to_judge(config, args),
        available_kv_bytes=reader.whole(value, "available_kv_bytes", where, minimum=0),
        share=1.0 if value.get("share") is None else reader.number(value, "share", where) or 0.0,
        last=reader.whole(value, "last", where, minimum=0) or 0,
        exclusive=str(value.get("exclusive") or ""),
        misspelt=_misspelt(args),
        starts=_read_starts(value, reader, where),
        runner=_asked_runner(env),
        table=table_on_disk(args, env),
        any_length=str(env.get(ALLOW_VARIABLE) or "").strip().lower() in ("1", "true"),
        env={key: value for key, value in env.items() if key in host_memory.VARIABLES},
        rank=reader.whole(value, "rank", where, minimum=0) or 0,
        **_read_asked(value, reader, where),
    )
    _refuse_beside_statement(read, own, reader, where)
    if value.get("config") is None and value.get("memory_gib") is None:
        reader.wrong(
            where, "config", "give the config of the model, or memory_gib for a service that is no vLLM engine"
        )
    return read


def _refuse_beside_statement(read: ServiceInput, own: Mapping[str, Any], reader: _Reader, where: str) -> None:
    """Note what would not count beside C(memory), or C(memory_gib) of an engine."""
    if read.stated is None and (read.memory_gib is None or read.config is None):
        return
    name = "memory_gib" if read.stated is None else "memory"
    if read.stated is not None and read.memory_gib is not None:
        reader.wrong(where, "memory_gib", "stands beside memory, which has its parts; leave one of them out")
    for key in ("weights_gib", "draft_weights_gib", "tensors", "available_kv_bytes"):
        if getattr(read, key) is not None:
            reader.wrong(
                where, key, f"does not count beside {name}; write memory with weights_gib, kv_gib and other_gib alone"
            )
    if read.stated is not None and read.stated[2] is not None and "inside_gib" in own:
        reader.wrong(where, "overheads.inside_gib", "does not count beside memory.other_gib; leave one of them out")


def _asked_runner(env: Mapping[str, Any]) -> int:
    """Return the model runner that an environment asks for, 0 where it does not (maybe_convert_bool of vllm/envs.py)."""
    asked = str(env.get(RUNNER_VARIABLE) if env.get(RUNNER_VARIABLE) is not None else "").strip().lower()
    return {"1": 2, "true": 2, "0": 1, "false": 1}.get(asked, 0)


def _read_stated(
    value: Mapping[str, Any], reader: _Reader, where: str
) -> tuple[float, float | None, float | None] | None:
    """Read what an engine is said to take, C(memory)."""
    given = reader.mapping(value, "memory", where)
    if given is None:
        return None
    where = f"{where}memory."
    reader.keys(given, _STATED_KEYS, where)
    weights, cache, other = (reader.number(given, key, where) for key in _STATED_KEYS)
    if given.get("weights_gib") is None:
        reader.wrong(where, "weights_gib", "is missing; where only the sum is known, give memory_gib")
    return weights or 0.0, cache, other


def _read_starts(value: Mapping[str, Any], reader: _Reader, where: str) -> tuple[Start, ...]:
    """Read what earlier starts were measured to take, C(starts)."""
    given, found = value.get("starts") or [], []
    if not isinstance(given, list):
        reader.wrong(where, "starts", f"expected a list, got {given!r}")
        return ()
    for index, entry in enumerate(given):
        at = f"{where}starts[{index}]."
        if not isinstance(entry, Mapping):
            reader.wrong(where, f"starts[{index}]", f"expected a mapping, got {entry!r}")
            continue
        reader.keys(entry, _START_KEYS, at)
        sizes = [reader.whole(entry, key, at) for key in _START_KEYS[1:4]]
        weights = reader.number(entry, "weights_gib", at)
        inside, outside = (_read_span(entry, key, reader, at) for key in _START_KEYS[5:])
        if None in (*sizes, weights, inside):
            missing = [key for key in _START_KEYS[1:6] if entry.get(key) is None]
            for key in missing:
                reader.wrong(at, key, "is missing")
        elif weights is not None and inside is not None:
            length, batch, sequences = (each or 0 for each in sizes)
            found.append(Start(entry.get("exact") is True, length, batch, sequences, weights, inside, outside))
    return tuple(found)


def _read_span(entry: Mapping[str, Any], key: str, reader: _Reader, where: str) -> tuple[float, float] | None:
    """Read the least and the most of a term, GiB; it may be below nothing where measurements scatter."""
    found = entry.get(key)
    if found is None:
        return None
    if (
        not isinstance(found, list)
        or len(found) != 2
        or not all(is_number(each, -_LARGEST, _LARGEST) for each in found)
    ):
        reader.wrong(where, key, f"expected the least and the most, two numbers, got {found!r}")
        return None
    low, high = float(found[0]), float(found[1])
    if low > high:
        reader.wrong(where, key, f"the least must not be above the most, got {found!r}")
    return low, high


def _read_asked(value: Mapping[str, Any], reader: _Reader, where: str) -> dict[str, Any]:
    """Read what an image said of the launch, C(image_plan): C(answer) and C(reason) of the module of that name."""
    given = reader.mapping(value, "image_plan", where) or {}
    answer, reason = given.get("answer"), given.get("reason")
    if reason is not None and not isinstance(reason, str):
        reader.wrong(where, "image_plan.reason", f"expected a text, got {reason!r}")
    if answer is not None and not isinstance(answer, image_answer.Answer):
        try:
            answer = image_answer.read(answer)
        except Untrusted as error:
            reader.wrong(where, "image_plan.answer", str(error))
            answer = None
    return {"asked": answer, "asked_reason": reason if isinstance(reason, str) else ""}


def read_params(params: Mapping[str, Any]) -> tuple[Host, list[ServiceInput]]:
    """Check the input of the memory budget and give it a shape.

    Raises C(InputError) with every mistake in it.
    """
    reader = _Reader()
    reader.keys(params, _TOP_KEYS, "")
    common = reader.overheads(reader.mapping(params, "overheads", "") or {}, "overheads.")
    total = reader.number(params, "total_gib", "", above=True)
    if total is not None and total * GIB < 1:
        reader.wrong("", "total_gib", f"is less than a byte, {total!r}")
    reserve = reader.number(params, "os_reserve_gib", "")
    margin = reader.number(params, "safety_margin_gib", "")
    measured = reader.mapping(params, "measured", "") or {}
    reader.keys(measured, _MEASURED_KEYS, "measured.")
    available = reader.number(measured, "mem_available_gib", "measured.")
    free = reader.number(measured, "mem_free_gib", "measured.")
    resident: dict[str, int] = {}
    listed = measured.get("resident")
    for index, item in enumerate(listed if isinstance(listed, list) else []):
        where = f"measured.resident[{index}]."
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            reader.wrong("", where[:-1], f"expected a mapping of name and gib, got {item!r}")
            continue
        reader.keys(item, ("name", "gib"), where)
        if item.get("gib") is None:
            reader.wrong(where, "gib", "is missing")
        if item["name"] in resident:
            reader.wrong(where, "name", f"{item['name']!r} stands twice")
        resident[item["name"]] = int((reader.number(item, "gib", where) or 0.0) * GIB)
    if listed is not None and not isinstance(listed, list):
        reader.wrong("measured.", "resident", f"expected a list, got {listed!r}")
    services = params.get("services")
    if not isinstance(services, list):
        reader.wrong("", "services", f"expected a list of services, got {services!r}")
        services = []
    inputs = _read_services(services, common, reader)
    names = [item.name for item in inputs]
    for name in sorted({name for name in names if names.count(name) > 1}):
        reader.wrong("services: ", "name", f"{name!r} stands {names.count(name)} times, names must be unique on a host")
    if reader.messages:
        raise InputError(reader.messages)
    return Host(
        total=int((119.67 if total is None else total) * GIB),
        os_reserve=int((5.2 if reserve is None else reserve) * GIB),
        margin=int((2.0 if margin is None else margin) * GIB),
        available=None if available is None else int(available * GIB),
        free=None if free is None else int(free * GIB),
        resident=resident,
    ), inputs


# One engine ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """A service whose memory can be reasoned about; sizes in bytes, overheads by level.

    plan: how its KV cache is cut; C(None) for a service that only states what it needs (C(fixed)).
    weights: of the model, with the room for LoRA adapters, which is also C(adapters). experts: those of one layer.
    inside: used inside the requested memory besides weights and cache. beside: of this launch, used beside it.
    runner: which of vLLM's model runners serves it, 1 or 2. repacked: its weights are quantised, so kernels reorder them.
    utilization, length, sequences: as given; C(None) for what was left out or C(auto).
    length_auto, sequences_auto: C(auto) stands there.
    limit: the longest context that the model allows. share: the weight by which it grows into what the node has left.
    last: its place among those that start after the others; 0 for one that does not.
    align_error, kernel_error: why vLLM refuses its blocks, empty where it does not; align_block, kernel_block: tokens of a block then.
    minors: the minor releases that an unknown version was judged by. easiest: the plan of the one that needs least, beside C(plan), of
    the one that needs most. refusing: of those that would refuse the launch, the minor and the text.
    exclusive: name of the set of which one runs at a time; empty for a service that is in none.
    stated: what a person says that the engine asks for, in place of C(plan).
    table, disk: what has the model's tables stay on disk, and how large they are there. buffers: what it keeps in host memory beside the
    request, by name. in_host: which of the weights are in host memory.
    weights_from, cache_from, overheads_from: what the figures rest on, one of C(SOURCES), or of C(MEASURED) and C(NARROWED); overheads are
    assumed where it is empty. differences: in what arithmetic and image differ.
    """

    name: str
    overheads: dict[str, tuple[float, float, float]]
    fixed: int | None = None
    stated: int | None = None
    weights_from: str = ""
    cache_from: str = ""
    overheads_from: str = ""
    unknown: str = ""
    differences: tuple[str, ...] = ()
    plan: KVPlan | None = None
    release: Release | None = None
    weights: int = 0
    draft: int = 0
    vision: int = 0
    host: int = 0
    table: str = ""
    disk: int = 0
    adapters: int = 0
    experts: int = 0
    load_peak: int = 0
    load_layerwise: int = 0
    inside: dict[str, float] = field(default_factory=dict)
    beside: dict[str, float] = field(default_factory=dict)
    buffers: tuple[HostBuffer, ...] = ()
    in_host: HostWeights = field(default_factory=HostWeights)
    runner: int = 1
    repacked: bool = False
    utilization: float | None = None
    length: int | None = None
    length_auto: bool = False
    limit: int = 0
    sequences: int | None = None
    sequences_auto: bool = False
    share: float = 1.0
    last: int = 0
    exclusive: str = ""
    pool: int | None = None
    blocks: int | None = None
    needs_state_blocks: bool = False
    align_error: str = ""
    align_block: int = 0
    kernel_error: str = ""
    kernel_block: int = 0
    minors: tuple[int, ...] = ()
    easiest: KVPlan | None = None
    refusing: tuple[tuple[int, str], ...] = ()

    def plan_at(self, level: str) -> KVPlan | None:
        """How the cache is cut: at low overheads by the release that needs least, where the version is not known."""
        return self.easiest if self.easiest is not None and level == "low" else self.plan

    def overhead(self, key: str, level: str) -> float:
        """A term in bytes (or a share, as it is) at a level."""
        value = self.overheads[key][LEVELS.index(level)]
        return value * GIB if key.endswith("_gib") else value

    def available(self, requested: int, level: str) -> int:
        """Memory for the KV cache when C(requested) bytes are asked for; C(level) is that of the overheads."""
        found = self.pool
        if found is None:
            found = int(requested - self.weights - self.draft - self.inside[level])
        if self.blocks is not None and self.plan is not None and self.plan.settings.release.since(20, 1):
            # From 0.20.1 vLLM's own checks count the blocks that are overridden, too.
            return min(found, self.blocks * self.plan.bytes_per_block)
        return found

    def outside(self, level: str) -> float:
        """What it holds beside the memory that it asks for."""
        return self.overhead("outside_gib", level) + self.beside.get(level, 0.0) + self.buffered(level)

    def buffered(self, level: str, at_start: bool | None = None) -> int:
        """What its named parts of host memory take, all of them or those that are (or are not) allocated at the start."""
        return sum(buffer.size(level) for buffer in self.buffers if at_start in (None, buffer.at_start))

    def loading(self, level: str) -> int:
        """What model and drafter take while they load. That each layer is quantised as it comes is believed at low alone."""
        extra = int(self.overhead("load_gib", level)) if self.repacked else 0
        if extra and self.overheads["load_gib"] == OVERHEADS["load_gib"]:  # what somebody set stays
            extra = max(extra, int(self.overhead("load_share", level) * self.experts))
        return (self.load_layerwise if level == "low" else self.load_peak) + self.draft + extra

    def cache_bytes(self, requested: int, level: str) -> int:
        """What the KV cache takes: the blocks that are overridden, or all that is available for it."""
        if self.blocks is not None and self.plan is not None:
            return self.blocks * self.plan.bytes_per_block
        return max(0, self.available(requested, level))

    def residency(self, requested: int, level: str) -> float:
        """What the service holds once it runs: the least, a typical and the most.

        What is used inside the requested memory makes the cache smaller and is then given back, all or in part: the more
        it was, the less is held.
        """
        if self.fixed is not None:
            return self.fixed
        kept, outside = self.overhead("kept_share", level), self.outside(level)
        if self.blocks is not None and self.plan is not None:
            return (
                self.weights
                + self.draft
                + self.blocks * self.plan.bytes_per_block
                + kept * self.inside[level]
                + outside
            )
        if self.pool is not None:
            return self.weights + self.draft + self.pool + kept * self.inside[level] + outside
        opposite = LEVELS[-1 - LEVELS.index(level)]
        return max(requested, self.weights + self.draft) - (1 - kept) * self.inside[opposite] + outside

    def num_blocks(self, available: int, level: str = "typical") -> int:
        """Blocks of the cache, as overridden or as many as fit."""
        plan = self.plan_at(level)
        if plan is None:
            return 0
        return plan.num_blocks(available) if self.blocks is None else self.blocks

    def seconds(self, stage: str) -> dict[str, int]:
        """Seconds into a start at which it comes to the checks of C(stage), one of C(STAGES)."""
        return start_seconds(self.overheads, self.weights + self.draft, stage)


def _drafts_itself(method: Any) -> bool:
    """Tell whether the model's own multi-token-prediction layers draft."""
    return method == "mtp" or str(method).endswith("_mtp")


def _reads_hidden_states(method: Any, release: Release) -> bool:
    """Tell whether vLLM counts a method among EAGLE's (SpeculativeConfig.use_eagle)."""
    return (
        method in ("eagle", "eagle3", "dspark") or _drafts_itself(method) or (method == "dflash" and release.since(20))
    )


def _v2_runner(method: Any, stages: int, release: Release) -> bool:
    """Tell whether the newer model runner serves a method by default (VllmConfig.use_v2_model_runner).

    It matters from 0.26 on, to windows and pipeline stages. 0.26 to 0.28 went by architecture, too; the larger need counts.
    """
    first = {"ngram": 32, "ngram_gpu": 32, "draft_model": 31}.get(method, 0)
    if method in _SPEC_HEADS or method == "suffix" or not release.since(first):
        return False
    return not (method == "eagle3" and stages > 1 and not release.since(30))


def _async_scheduling(args: Config, method: Any, release: Release) -> bool:
    """Tell whether vLLM schedules asynchronously, as asked or by default (VllmConfig.__post_init__)."""
    asked = args.get("async-scheduling")
    if asked is not None:
        return bool(asked)
    if method is None or method == "ngram_gpu" or _reads_hidden_states(method, release):
        return True
    if method == "draft_model":
        return release.since(28)
    return release.since(33) and _v2_runner(method, args.get("pipeline-parallel-size", 1), release)


def _draft_tokens(item: ServiceInput, geometry: Geometry, spec: Config) -> int:
    """Return how many tokens are drafted, as given or by default; refuse settings of a drafter that are not known."""
    method, count = spec.get("method"), spec.get("num_speculative_tokens")
    key = "args.speculative-config"
    if count is None and method == "suffix":
        count = spec.get("suffix_decoding_max_tree_depth", SUFFIX_TOKENS)
    if count is None and _drafts_itself(method):
        count = geometry.mtp_layers or None
    if count is None:
        raise Refusal(f"{key}.num_speculative_tokens", "the number of draft tokens is missing")
    if spec.get("kv_cache_dtype") is not None:
        raise Refusal(f"{key}.kv_cache_dtype", "a cache of the drafter with a dtype of its own is not known")
    if spec.get("draft_tensor_parallel_size") not in (None, item.args.get("tensor-parallel-size", 1)):
        raise Refusal(f"{key}.draft_tensor_parallel_size", "a drafter on other ranks than the model is not known")
    return int(count)


def _own_drafts(item: ServiceInput, geometry: Geometry, method: Any, count: int) -> tuple[Layer, ...]:
    """Return the caches of the model's own layers that draft."""
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


def _drafter_caches(item: ServiceInput, method: Any) -> tuple[Layer, ...]:
    """Return the caches of a drafter that is a model of its own."""
    if item.draft_config is None:
        raise Refusal("draft_config", f"method {method} needs the config of the draft model", "give draft_config")
    drafter = read_geometry(item.draft_config)
    if drafter.recurrent or len(drafter.attention) != len(drafter.caches()):
        raise Refusal("draft_config", "a drafter with a recurrent state or several caches per layer is not known")
    local = any(layer.kind != "full" for layer in drafter.attention)
    if method == "dflash" and (local or item.draft_config.get("dflash_config", {}).get("use_swa")):
        raise Refusal("draft_config", "a DFlash drafter with sliding windows is not known")
    return drafter.attention


def _speculation(item: ServiceInput, geometry: Geometry) -> tuple[int, tuple[Layer, ...], bool]:
    """Return the draft tokens, the caches of the drafter, and whether the model's own layers draft."""
    spec = item.args.get("speculative-config")
    if not spec:
        return 0, (), False
    method, key = spec.get("method"), "args.speculative-config"
    count = _draft_tokens(item, geometry, spec)
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
    if _drafts_itself(method) or (method == "dspark" and geometry.draft_method == method):
        drafts = _own_drafts(item, geometry, method, count)
        return count, drafts, not geometry.model_type.startswith("gemma4")
    if method in _SPEC_WITH_MODEL:
        return count, _drafter_caches(item, method), False
    if method is None:
        raise Refusal(f"{key}.method", "the field is missing", "name the method, for example mtp, eagle3 or ngram")
    raise Refusal(f"{key}.method", f"the speculative method {method!r} is not known")


def _stated(size: int, counted: Callable[[bool], Weights], draft: int, runtime: str) -> Weights:
    """The weights of a rank whose size is stated.

    What vLLM quantises itself has two sizes, that of its files and that of what it makes of them, the one near twice the other.
    The stated one is whichever it is nearer to by the config; the other follows in proportion.
    """
    try:
        made = counted(True) if runtime else None
    except Refusal:
        made = None  # what the config does not settle stays as it is stated
    if made is None or made.load_peak == made.target:
        return Weights(size, draft, size)
    nearer = min(made.load_peak, made.target, key=lambda each: abs(each - size))
    scale = size / nearer
    target, peak = int(scale * made.target), int(scale * made.load_peak)
    return Weights(target, draft, peak, load_layerwise=int(scale * made.load_layerwise))


def _split(args: Config) -> Split:
    """Over how many ranks the weights of a launch go."""
    return Split(
        args.get("tensor-parallel-size", 1),
        args.get("pipeline-parallel-size", 1),
        bool(args.get("enable-expert-parallel")),
        args.get("data-parallel-size", 1),
    )


def _weights(
    item: ServiceInput, config: Config, geometry: Geometry, vision: bool, mtp: bool, minor: int | None = None
) -> Weights:
    """What the model and its drafter take on one rank: from the tensors, else the stated size, else the config."""
    args = item.args
    split = _split(args)
    runtime = args.get("quantization", "")

    def counted(with_vision: bool, split: Split = split) -> Weights:
        return weights_bytes(
            config,
            geometry,
            quant_config=item.quant_config,
            tensor_parallel=split.tensor,
            pipeline_parallel=split.pipeline,
            expert_parallel=split.experts,
            replicas=split.replicas,
            runtime_quantization=runtime,
            vision=with_vision,
            mtp=mtp,
            draft_tokens=int((args.get("speculative-config") or {}).get("num_speculative_tokens") or 0),
            minor=minor,
            tables_on_disk=bool(item.table),
        )

    drafts = mtp and item.draft_weights_gib is None
    if item.tensors is not None:
        made = tensors_bytes(
            item.tensors,
            config,
            geometry,
            quant_config=item.quant_config,
            split=split,
            runtime_quantization=runtime,
            vision=vision,
            mtp=drafts,
        )
    elif item.weights_gib is not None:
        target = int(item.weights_gib * GIB / split.tensor / split.pipeline)
        if split.replicas > 1:
            # Replicas have the experts between them, and all else each: how much of the whole that is, the config says.
            alone = counted(vision, replace(split, replicas=1)).target
            target = int(target * counted(vision).target / alone)
        made = _stated(target, counted, counted(False).draft if drafts else 0, runtime)
    else:
        made = counted(vision)
    spec = args.get("speculative-config") or {}
    if item.draft_weights_gib is not None:
        return replace(made, draft=int(item.draft_weights_gib * GIB / split.tensor))
    if item.draft_config is not None:
        own = read_geometry(item.draft_config)
        return replace(
            made, draft=drafter_bytes(item.draft_config, own, str(spec.get("method")), tensor_parallel=split.tensor)
        )
    return made


# Of a launch, what its weights follow from.
_WEIGHT_ARGS = (
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "data-parallel-size",
    "enable-expert-parallel",
    "quantization",
    "speculative-config",
)


@lru_cache(maxsize=256)
def _weights_once(item: ServiceInput, dtype: str, vision: bool, mtp: bool, minor: int | None) -> Weights:
    config = item.config or {}
    return _weights(item, config, replace(read_geometry(config), dtype=dtype), vision, mtp, minor)


def _loaded(item: ServiceInput, geometry: Geometry, vision: bool, mtp: bool, minor: int | None) -> Weights:
    """The weights of a launch; a fleet has many that differ in their lengths alone."""
    told = ServiceInput(
        name="",
        args={key: item.args[key] for key in _WEIGHT_ARGS if key in item.args},
        overheads={},
        config=item.config,
        quant_config=item.quant_config,
        weights_gib=item.weights_gib,
        tensors=item.tensors,
        draft_config=item.draft_config,
        draft_weights_gib=item.draft_weights_gib,
        table=item.table,
    )
    return _weights_once(told, geometry.dtype, vision, mtp, minor)


def _plan(item: ServiceInput, geometry: Geometry, config: Config, release: Release, batch: int) -> KVPlan:
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
    if dtype == "nvfp4" and not release.since(32):
        raise Refusal(
            "args.kv-cache-dtype",
            "nvfp4 has no kernels for GB10 (sm_121) before vLLM 0.32",
            "use fp8, or vLLM 0.32 or later",
        )
    for key in _UNPLANNED_ARGS:
        if args.get(key) is True or (args.get(key) or 1) != 1:
            raise Refusal(f"args.{key}", "what it does to the KV cache is not known", "leave it out")
    _refuse_context(args, geometry, config, release)
    if args.get("kv-transfer-config") and any(cache.kind != "full" for _index, cache in geometry.caches()):
        raise Refusal(
            "args.kv-transfer-config",
            "with some connectors vLLM keeps windows as full attention, which ones is not known",
        )
    drafts, draft_layers, mtp = _speculation(item, geometry)
    method = (args.get("speculative-config") or {}).get("method")
    if method == "dflash" and not release.since(20):
        raise Refusal("args.speculative-config.method", "dflash is known from vLLM 0.20 on")
    stages = args.get("pipeline-parallel-size", 1)
    return plan_kv_cache(
        geometry,
        KVSettings(
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
            async_scheduling=_async_scheduling(args, method, release),
            v2_runner=item.runner == 2 if item.runner else _v2_runner(method, stages, release),
            reads_hidden_states=_reads_hidden_states(method, release),
            multi_module_mtp=mtp and min(geometry.mtp_modules, drafts) > 1,
        ),
    )


def _refuse_context(args: Config, geometry: Geometry, config: Config, release: Release) -> None:
    """Raise what vLLM says to a decode context that its ranks and heads do not allow, and C(Refusal) for what is not known of one.

    C(ParallelConfig), C(ModelConfig.verify_with_parallel_config): the ranks of a context are of one tensor-parallel group, and hold copies of one
    head of keys.
    """
    context, ranks = args.get("decode-context-parallel-size", 1), args.get("tensor-parallel-size", 1)
    if context == 1:
        return
    fix = "leave out decode-context-parallel-size, or change tensor-parallel-size"
    if ranks % context:
        error, space = "ValueError" if release.since(20) else "AssertionError", " " if release.since(26) else ""
        raise PlanFailure(
            f"{error}: tp_size={ranks} must be divisible by{space}dcp_size={context}.",
            f"a decode context of {context} ranks does not divide {ranks} tensor-parallel ranks",
            fix,
        )
    if (args.get("speculative-config") or {}).get("method") == "draft_model":
        raise Refusal(
            "args.speculative-config.method", "the cache of a drafting model beside a decode context is not known"
        )
    if args.get("dcp-q-replicate", release.since(29) and "GlmMoeDsaForCausalLM" in (config.get("architectures") or [])):
        raise Refusal("args.dcp-q-replicate", "which weights it keeps on each rank is not known", "set it to false")
    if any(layer.kind == "mla" for layer in geometry.attention):
        return
    heads = max((layer.kv_heads for layer in geometry.attention), default=1)
    most, shared = ranks // heads, int(text_config(config).get("num_attention_heads") or 0) // heads
    newer = release.since(27)
    if ranks <= heads:
        raise PlanFailure(
            f"ValueError: Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({ranks}) to be greater than the model's "
            f"total number of KV heads ({heads}). Increase `--tensor-parallel-size` or set `--decode-context-parallel-size 1`."
            if newer
            else f"AssertionError: tensor parallel size {ranks} must be greater than total num kv heads {heads} when enable decode context "
            "parallel for GQA/MQA",
            f"a decode context needs more tensor-parallel ranks than the {heads} key heads of the model",
            fix,
        )
    if context > most:
        raise PlanFailure(
            f"ValueError: `--decode-context-parallel-size` ({context}) exceeds the maximum supported value ({most}) for "
            f"`--tensor-parallel-size` ({ranks}) and {heads} model KV heads."
            if newer
            else f"AssertionError: decode context parallel size must less than or equal to (tensor parallel size {ranks} // total num kv heads "
            f"{heads}) = {most}, but got {context}",
            f"with {ranks} ranks and {heads} key heads a decode context has at most {most} ranks",
            fix,
        )
    if shared % context:
        raise PlanFailure(
            f"ValueError: The model's number of query heads per KV head ({shared}) must be divisible by `--decode-context-parallel-size` "
            f"({context}) for GQA/MQA."
            if newer
            else f"AssertionError: Total number of q per kv attn heads ({shared}) must be divisible by dcp world size when enable decode "
            f"context parallel for GQA ({context}).",
            f"the {shared} query heads of a key head cannot be divided by a decode context of {context} ranks",
            fix,
        )


def _check_length(item: ServiceInput, config: Config, minor: int | None) -> None:
    """Raise what vLLM says, with its arguments, to a context that is longer than it derives from the config."""
    limit, asked = context_limit(config, item.args.get("hf-overrides"), minor), item.args.get("max-model-len")
    text = limit.refusal(asked) if limit and isinstance(asked, int) and not item.any_length else ""
    if limit and text:
        raise PlanFailure(
            text,
            f"max-model-len {asked} exceeds the model's maximum of {limit.tokens}",
            f"set max-model-len to {limit.tokens} or less",
            start_seconds(item.overheads, 0, "arguments"),
            "arguments",
        )


@dataclass(frozen=True)
class _Plans:
    """The plans of the releases that may be in an image.

    hardest, easiest: which need most and least memory for one request. minors: that plan. refusing: that do not, with their texts.
    """

    hardest: KVPlan
    easiest: KVPlan
    minors: tuple[int, ...]
    refusing: tuple[tuple[int, str], ...]


def _plan_releases(
    item: ServiceInput, geometry: Geometry, config: Config, releases: Sequence[Release], batch: int
) -> _Plans:
    """Plan with every release that may be in the image, and leave out those that would refuse.

    Raises C(Refusal) where one of them is not known here and no other plans, C(PlanFailure) where all of them would refuse to plan.
    """
    plans: list[KVPlan] = []
    refused_later: list[KVPlan] = []
    refusing: list[tuple[int, str]] = []
    failures: list[PlanFailure] = []
    unknown: list[Refusal] = []
    for release in releases:
        try:
            plan = _plan(item, geometry, config, release, batch)
        except Refusal as refusal:
            unknown.append(refusal)
        except PlanFailure as failure:
            failures.append(failure)
            refusing.append((release.minor, str(failure)))
        else:
            text = error_align(plan) or error_kernel_block(geometry, plan.settings)
            (refused_later if text else plans).append(plan)
            refusing += [(release.minor, text)] if text else []
    if not plans and not refused_later:
        raise (unknown or failures)[-1]
    if not plans and unknown:
        raise unknown[-1]
    length = item.args.get("max-model-len")
    length = length if isinstance(length, int) else geometry.max_position_embeddings
    needs = sorted(plans or refused_later, key=lambda plan: plan.needed_bytes(length))
    return _Plans(needs[-1], needs[0], tuple(plan.settings.release.minor for plan in needs), tuple(refusing))


def _loads_tower(args: Config, config: Config) -> bool:
    """Tell whether the vision tower is loaded: unless every kind of input that it takes is limited to 0.

    A kind that is not named may come 999 times (MultiModalConfig.get_limit_per_prompt, SupportsMultiModal._mark_tower_model).
    """
    if text_config(config).get("model_type") in _ALWAYS_TOWERS:
        return True
    if args.get("language-model-only"):
        return False
    limits = args.get("limit-mm-per-prompt")
    if not isinstance(limits, Mapping):
        return True

    def limit(kind: str) -> Any:
        found = limits.get(kind, 999)
        return found.get("count", 999) if isinstance(found, Mapping) else found

    kinds = ("image",) if config.get("model_type") in _IMAGES_ONLY else ("image", "video")
    return any(limit(kind) != 0 for kind in kinds)


def _batch(args: Config, geometry: Geometry) -> int:
    """Tokens of a batch, as given or by default (EngineArgs, _set_default_max_num_seqs_and_batched_tokens_args).

    The default for Gemma 4 is that of 0.22 and later; before, 2048 stood, which its images do not fit.
    """
    given = args.get("max-num-batched-tokens")
    if given is not None:
        return int(given)
    batch = DEFAULT_BATCHED_TOKENS
    length = args.get("max-model-len")
    length = length if isinstance(length, int) else geometry.max_position_embeddings
    if args.get("enable-chunked-prefill") is False:
        batch = max(batch, length)
    if geometry.prefix_lm:
        batch = max(batch, PREFIX_LM_BATCHED_TOKENS)
    return min(batch, length * (args.get("max-num-seqs") or DEFAULT_SEQS))


def start_seconds(overheads: Mapping[str, tuple[float, float, float]], loaded: int, stage: str) -> dict[str, int]:
    """Seconds into the start of an engine with C(loaded) bytes of weights at which it comes to C(stage)."""
    found = {}
    for index, level in enumerate(LEVELS):
        until = {
            "arguments": overheads["arguments_seconds"][index],
            "device": overheads["device_seconds"][index],
            "load": loaded / GIB / overheads["load_gib_per_second"][-1 - index],
            "profile": overheads["profile_seconds"][index],
            "graphs": overheads["graphs_seconds"][index],
        }
        found[level] = round(sum(until.get(each, 0.0) for each in STAGES[: STAGES.index(stage) + 1]))
    return found


def resolve(item: ServiceInput) -> Engine:
    """Turn one service into an engine.

    Raises C(Refusal) for what this engine does not know, C(PlanFailure) where vLLM would not plan.
    """
    return replace(
        _resolve(item.unnamed),
        name=item.name,
        share=item.share,
        last=item.last,
        exclusive=item.exclusive,
    )


def _profile_run(item: ServiceInput, config: Config, geometry: Geometry, release: Release, batch: int) -> ProfileRun:
    """What the engine finds in use when it measures itself."""
    args = item.args
    method, stages = (args.get("speculative-config") or {}).get("method"), args.get("pipeline-parallel-size", 1)
    quantised = item.quant_config or config.get("quantization_config") or args.get("quantization")
    sequences, compilation = args.get("max-num-seqs"), args.get("compilation-config") or {}
    # Up to 0.28 the V2 runner serves generation alone (VllmConfig._is_default_v2_model_runner_model).
    pools = args.get("runner") == "pooling"
    launch = Launch(
        release=release,
        batch=batch,
        sequences=sequences if isinstance(sequences, int) else DEFAULT_SEQS,
        ranks=args.get("tensor-parallel-size", 1),
        replicas=args.get("data-parallel-size", 1),
        experts_whole=bool(args.get("enable-expert-parallel")),
        drafts=_speculation(item, geometry)[0],
        eager=bool(args.get("enforce-eager")),
        v2=_v2_runner(method, stages, release) and (not pools or release.since(V2_ALL)),
        quantised=bool(quantised),
        runner=item.runner,
        captures=asked_captures(compilation, batch),
        compiles=is_compiled(compilation),
        pools=pools,
    )
    return profile_run(config, geometry, launch)


def _answered_run(item: ServiceInput, answer: image_answer.Answer, plan: KVPlan) -> ProfileRun:
    """What the engine finds in use by what the vLLM of its image says of model and launch; by the batch alone where it does not say how wide it is."""
    args, resolved, settings = item.args, answer.resolved, plan.settings
    found = answered.shapes(answer, item.config or {})
    asked = {"v1": 1, "v2": 2}.get(resolved.get("runner", ""), 0)
    if found is None:
        return replace(by_batch(settings.max_num_batched_tokens), runner=asked or 1)
    text, geometry = found
    spec, sequences = args.get("speculative-config") or {}, args.get("max-num-seqs")
    compilation = args.get("compilation-config") or {}
    sequences = sequences if isinstance(sequences, int) else DEFAULT_SEQS
    # Of as many requests as were asked about, vLLM itself says for how many sizes of batches it captures graphs.
    same = sequences == resolved.get("max_num_seqs")
    launch = Launch(
        release=settings.release,
        batch=settings.max_num_batched_tokens,
        sequences=sequences,
        ranks=settings.tensor_parallel,
        drafts=int(spec.get("num_speculative_tokens") or 0),
        eager=bool(args.get("enforce-eager")),
        v2=_v2_runner(spec.get("method"), settings.pipeline_parallel, settings.release),
        quantised=bool(resolved.get("quantization")),
        # Without Triton, which an image for a GPU has, vLLM takes its older runner.
        runner=item.runner or (asked if answer.triton else 0),
        captures=_said_captures(resolved) if same else asked_captures(compilation, settings.max_num_batched_tokens),
        compiles=is_compiled(compilation),
        pools=args.get("runner") == "pooling",
    )
    return profile_run({**text, "architectures": (item.config or {}).get("architectures")}, geometry, launch)


def _said_captures(resolved: Mapping[str, Any]) -> int:
    """Count the sizes of batches that the vLLM of an image captures graphs for."""
    return 0 if str(resolved.get("cudagraph_mode", "")).upper() == "NONE" else int(resolved.get("cudagraph_sizes", 0))


def _inside(
    terms: Mapping[str, tuple[float, float, float]], weights: Weights, run: ProfileRun, vision: bool, drafts: bool
) -> dict[str, float]:
    """Bytes used inside the requested memory besides weights and cache, by level."""
    if "inside_gib" in terms:
        return {level: terms["inside_gib"][index] * GIB for index, level in enumerate(LEVELS)}
    return {
        level: GIB
        * (
            terms["inside_base_gib"][index]
            + (terms["inside_vision_gib"][index] if vision else 0.0)
            + (terms["inside_drafter_gib"][index] if drafts else 0.0)
        )
        # At low, torch finds all that it compiled in its cache of the last start.
        + terms["inside_peak_share"][index] * (run.peak if level == "low" else run.compiled)
        + terms["inside_weights_share"][index] * (weights.target + weights.draft)
        + terms["graphs_share"][index] * run.graphs_inside
        + run.tables
        + (run.unknown if level == "high" else 0)
        for index, level in enumerate(LEVELS)
    }


def _beside(terms: Mapping[str, tuple[float, float, float]], run: ProfileRun) -> dict[str, float]:
    """Bytes beside the requested memory, by level: CUDA graphs that are not taken off the cache, and the runner's own."""
    left = run.graphs - run.graphs_inside
    return {level: terms["graphs_share"][index] * left + run.beside for index, level in enumerate(LEVELS)}


def _said_room(answer: image_answer.Answer, args: Config) -> adapters.Room:
    """The room for adapters that the vLLM of an image sets aside."""
    if not args.get(adapters.OPTION):
        return adapters.Room()
    said = [rank.adapters for rank in answer.ranks]
    known = [each for each in said if each is not None]
    if len(known) != len(said):
        raise Refusal(
            f"args.{adapters.OPTION}", "what adapters take is not known, and the image does not say", adapters.ASK
        )
    most = max(known)
    copies = most * int(args.get("max-cpu-loras") or args.get("max-loras") or 1) // int(args.get("max-loras") or 1)
    return adapters.Room(most, most, most, copies)


def _room(item: ServiceInput, config: Config, geometry: Geometry, minor: int | None) -> adapters.Room:
    """The room for adapters: by arithmetic, else what the image said of it, else a range."""
    args = item.args
    split = _split(args)
    if not args.get(adapters.OPTION):
        return adapters.Room()
    padded = Quantization(config, item.quant_config, args.get("quantization", ""), minor).padded_experts
    try:
        found = adapters.room(config, geometry, args, split, minor=minor, padded=padded)
    except Refusal:
        if item.asked is None or not answered.usable(item.asked):
            raise
        return _said_room(item.asked, args)
    if found.exact or item.asked is None or not answered.usable(item.asked):
        return found
    try:
        return _said_room(item.asked, args)
    except Refusal:
        return found


def _buffers(
    item: ServiceInput, args: Config, release: Release, plan: KVPlan | None, media: bool, copies: int
) -> tuple[HostBuffer, ...]:
    """What an engine keeps in host memory. media: whether it takes images, videos or audio. copies: bytes of adapters on the host."""
    split = _split(args)
    ranks, replicas = split.tensor * split.pipeline, split.replicas
    launch = HostLaunch(
        args, item.env, release, item.rank, ranks, replicas, media, copies, plan, {**OVERHEADS, **item.overheads}
    )
    return host_buffers(launch)


def _takes_media(args: Config, config: Config) -> bool:
    """Tell whether a model takes images, videos or audio, so that vLLM caches what it made of them (supports_multimodal_inputs)."""
    towers = any(config.get(key) for key in ("vision_config", "audio_config"))
    limits = args.get("limit-mm-per-prompt")
    heard = not isinstance(limits, Mapping) or limits.get("audio") != 0
    return (
        towers
        and not args.get("language-model-only")
        and (_loads_tower(args, config) or (bool(config.get("audio_config")) and heard))
    )


def _with_extra(inside: dict[str, float], in_host: HostWeights) -> dict[str, float]:
    """Add what weights in host memory take beyond their size."""
    return {level: inside[level] + size for level, size in zip(LEVELS, in_host.extra)}


@lru_cache(maxsize=512)
def _resolve(item: ServiceInput) -> Engine:
    args = {key: None if value == "auto" and key in _OPEN_ARGS else value for key, value in item.args.items()}
    if item.config is None:
        utilization = args.get("gpu-memory-utilization")
        return Engine(item.name, item.overheads, fixed=int((item.memory_gib or 0) * GIB), utilization=utilization)
    if item.memory_gib is not None or item.stated is not None:
        return _by_statement(item, args)
    try:
        own = _by_arithmetic(item, args)
    except PlanFailure as failure:
        if answered.usable(item.asked):
            return replace(_by_image(item, args), unknown=f"the arithmetic expected: {failure}")
        raise
    except Refusal as refusal:
        if answered.usable(item.asked):
            return replace(_by_image(item, args), unknown=f"{refusal.key}: {refusal.reason}")
        why = answered.unknown(item.asked, item.asked_reason)
        if not why:
            raise
        raise Refusal(refusal.key, f"{refusal.reason}; its image gives no plan ({why})", refusal.fix) from refusal
    if not answered.usable(item.asked) or own.plan is None:
        return own
    compared = own.cache_from == COMPARED
    try:
        other = _by_image(item, args)
    except answered.ImageRefusal as refusal:
        if not compared:
            raise
        return replace(own, differences=(f"the image refuses the launch: {refusal.text}",))
    except Refusal:
        return own
    weighed = None if _weights_given(item) else own.weights - own.adapters
    loaded = answered.AnsweredWeights(other.weights - other.adapters, other.draft, other.host, other.vision)
    asked = other.plan if isinstance(other.plan, answered.AnsweredPlan) else None
    found = [] if asked is None else answered.differences(own.plan, weighed, asked, loaded)
    if own.adapters != other.adapters:
        found.append(f"bytes of the adapters {own.adapters} and {other.adapters}")
    if item.asked is not None and answered.shapes(item.asked, item.config) is None:
        other = replace(other, inside=own.inside, beside=own.beside, runner=own.runner)
    elif own.runner != other.runner:
        found.append(f"model runner {own.runner} and {other.runner}")
    chosen = own if compared else replace(other, unknown="this version was not compared")
    return replace(chosen, differences=tuple(found))


def _weights_given(item: ServiceInput) -> bool:
    return item.tensors is not None or item.weights_gib is not None


def _by_statement(item: ServiceInput, args: Config) -> Engine:
    """An engine of which a person says what it takes: the sum, or its parts."""
    if item.stated is None:
        weights, inside, stated = 0, dict.fromkeys(LEVELS, 0.0), int((item.memory_gib or 0.0) * GIB)
    else:
        weights_gib, cache, other = item.stated
        weights = int(weights_gib * GIB)
        batch = args.get("max-num-batched-tokens") or DEFAULT_BATCHED_TOKENS
        counted = _inside(
            item.overheads, Weights(weights, 0, weights), by_batch(batch), False, "speculative-config" in args
        )
        inside = counted if other is None else dict.fromkeys(LEVELS, other * GIB)
        if cache is None and args.get("gpu-memory-utilization") is None:
            raise Refusal(
                "memory.kv_gib",
                "neither it nor gpu-memory-utilization says how large the KV cache is",
                "give one of them",
            )
        stated = int(weights + (cache or 0.0) * GIB + inside["typical"])
    return Engine(
        name=item.name,
        overheads=item.overheads,
        buffers=_buffers(item, args, _release_of(item), None, _takes_media(args, item.config or {}), 0),
        stated=stated,
        weights=weights,
        load_peak=weights,
        load_layerwise=weights,
        inside=inside,
        utilization=args.get("gpu-memory-utilization"),
        weights_from=STATED,
        cache_from=STATED,
    )


def _release_of(item: ServiceInput) -> Release:
    """Return the release of a service whose memory is stated; the newest where its version is not known."""
    try:
        return parse_release(item.vllm_version)
    except Refusal:
        return Release("", max(COMPARED_MINORS), False)


def _changes_plan(args: Config) -> bool:
    """Tell whether options change the KV cache in ways that only the image knows."""
    keys = (*_UNPLANNED_ARGS, "decode-context-parallel-size")
    return any(args.get(key) is True or (args.get(key) or 1) != 1 for key in keys)


def _by_image(item: ServiceInput, args: Config) -> Engine:
    """An engine as the vLLM of its image planned it.

    Raises C(answered.ImageRefusal) where vLLM refuses, C(Refusal) for a plan that cannot be calculated with.
    """
    answer, config = item.asked, item.config or {}
    if answer is None:
        raise Refusal("image_plan", "the image was not asked")
    if _split(args).replicas > 1:
        raise Refusal("image_plan", "an image plans one replica alone, and not what experts of several take")
    plan = answered.kv_plan(answer, item.vllm_version, not _changes_plan(args))
    length = args.get("max-model-len")
    if length is not None and length > plan.longest:
        raise Refusal("image_plan", f"the image was asked about {plan.longest} tokens, not {length}")
    method = (args.get("speculative-config") or {}).get("method")
    loaded = answered.weights(answer, _drafts_itself(method) or method == "dspark")
    # Where the planner of the build counts them all the same.
    disk = loaded.host if item.table and item.weights_gib is None else 0
    target, draft = loaded.target - disk, loaded.draft
    if item.weights_gib is not None:
        target = int(item.weights_gib * GIB / plan.settings.tensor_parallel / plan.settings.pipeline_parallel)
    if item.draft_weights_gib is not None:
        draft = int(item.draft_weights_gib * GIB / plan.settings.tensor_parallel)
    # What vLLM quantises itself comes in 16 bits at first; what of it the image counted as quantised already is not told apart.
    made = bool(args.get("quantization")) and not (config.get("quantization_config") or item.quant_config)
    peak = 2 * target if made else target
    vision = bool(loaded.vision) or (bool(config.get("vision_config")) and _loads_tower(args, config))
    room = _said_room(answer, args)
    release, run = plan.settings.release, _answered_run(item, answer, plan)
    in_host = host_weights(config, args, item.env, target + draft, 0, release, plan.settings.tensor_parallel)
    states = any(group.kind == "mamba" for group in plan.groups)
    return Engine(
        name=item.name,
        overheads=item.overheads,
        plan=plan,
        release=release,
        weights=target + room.typical,
        draft=draft,
        vision=loaded.vision,
        host=loaded.host - disk,
        table=item.table,
        disk=disk,
        adapters=room.typical,
        load_peak=max(peak, target + room.typical),
        load_layerwise=target + room.typical,
        inside=_with_extra(_inside(item.overheads, Weights(target, draft, peak), run, vision, bool(method)), in_host),
        beside=_beside(item.overheads, run),
        buffers=_buffers(item, args, release, plan, vision or _takes_media(args, config), room.copies),
        in_host=in_host,
        utilization=args.get("gpu-memory-utilization"),
        length=length,
        length_auto=item.args.get("max-model-len") == "auto",
        limit=plan.longest,
        sequences=args.get("max-num-seqs"),
        sequences_auto=item.args.get("max-num-seqs") == "auto",
        pool=args.get("kv-cache-memory-bytes") if item.available_kv_bytes is None else item.available_kv_bytes,
        blocks=args.get("num-gpu-blocks-override"),
        needs_state_blocks=states and release.since(20) and not args.get("enforce-eager") and not method,
        repacked=bool(item.quant_config or config.get("quantization_config")),
        runner=run.runner,
        weights_from=STATED if item.weights_gib is not None else IMAGE,
        cache_from=IMAGE,
    )


def _geometry(config: Config, dtype: str) -> Geometry:
    """Return the layers of a model as an engine computes with them. dtype: as its option says."""
    geometry = read_geometry(config)
    if dtype != "auto":
        name = {"half": "float16", "float": "float32"}.get(dtype, dtype)
        if name not in ("float16", "bfloat16", "float32"):
            raise Refusal("args.dtype", f"dtype {dtype!r} is not known")
        return replace(geometry, dtype=name)
    # vLLM casts 32-bit checkpoints unless it is told not to.
    return replace(geometry, dtype="bfloat16") if geometry.dtype == "float32" else geometry


# Long: it says of each term of an engine where it comes from.
def _by_arithmetic(item: ServiceInput, args: Config) -> Engine:
    utilization = args.get("gpu-memory-utilization")
    config = item.config or {}
    geometry = _geometry(config, str(args.get("dtype", "auto")))
    batch = _batch(args, geometry)
    limit = geometry.max_position_embeddings
    length = args.get("max-model-len")

    vision = geometry.has_vision and _loads_tower(args, config)
    drafts, _layers, mtp = _speculation(item, geometry)
    releases = (
        [parse_release(item.vllm_version)]
        if item.vllm_version
        else [Release("", minor, False) for minor in item.minors or COMPARED_MINORS]
    )
    minor = releases[0].minor if item.vllm_version else None
    _check_length(item, config, minor)
    try:
        plans = _plan_releases(item, geometry, config, releases, batch)
    except PlanFailure as failure:
        weights = _loaded(item, geometry, vision, mtp, minor)
        failure.seconds = start_seconds(item.overheads, weights.target + weights.draft, failure.stage)
        raise
    weights = _loaded(item, geometry, vision, mtp, minor)
    plan = plans.hardest
    release = plan.settings.release
    terms = item.overheads
    run = _profile_run(item, config, geometry, release, batch)
    room = _room(item, config, geometry, minor)
    spread = dict(zip(LEVELS, (room.low - room.typical, 0, room.high - room.typical)))
    in_host = host_weights(
        config, args, item.env, weights.target + weights.draft, weights.host, release, _split(args).tensor
    )
    inside = {level: size + spread[level] for level, size in _inside(terms, weights, run, vision, bool(drafts)).items()}
    layerwise = weights.load_layerwise if release.since(LAYERWISE_MINOR) else weights.load_peak
    pool = args.get("kv-cache-memory-bytes") if item.available_kv_bytes is None else item.available_kv_bytes
    mistral = args.get("config-format") == "mistral"
    return Engine(
        name=item.name,
        overheads=terms,
        plan=plan,
        release=release,
        weights=weights.target + room.typical,
        draft=weights.draft,
        vision=weights.vision,
        host=weights.host,
        table=item.table,
        disk=weights.disk,
        adapters=room.typical,
        experts=weights.experts,
        # Room for adapters is made once the weights are there.
        load_peak=max(weights.load_peak, weights.target + room.typical),
        load_layerwise=max(layerwise, weights.target + room.typical),
        inside=_with_extra(inside, in_host),
        beside=_beside(terms, run),
        buffers=_buffers(item, args, release, plan, _takes_media(args, config), room.copies),
        in_host=in_host,
        runner=run.runner,
        repacked=bool(item.quant_config or config.get("quantization_config")),
        utilization=utilization,
        length=length,
        length_auto=item.args.get("max-model-len") == "auto",
        limit=limit,
        sequences=args.get("max-num-seqs"),
        sequences_auto=item.args.get("max-num-seqs") == "auto",
        pool=pool,
        blocks=args.get("num-gpu-blocks-override"),
        # Full CUDA graphs want one state block for every sequence. With a drafter the graphs may be piecewise.
        needs_state_blocks=bool(geometry.recurrent)
        and release.since(20)
        and not args.get("enforce-eager")
        and not drafts,
        align_error=error_align(plan),
        align_block=plan.block_size,
        kernel_error=error_kernel_block(geometry, plan.settings),
        kernel_block=geometry.rules.block,
        minors=() if item.vllm_version else plans.minors,
        easiest=None if item.vllm_version else plans.easiest,
        refusing=() if item.vllm_version else plans.refusing,
        weights_from=STATED if _weights_given(item) else COMPARED if release.exact else NOT_COMPARED,
        cache_from=COMPARED if release.exact and not plan.notes and not mistral else NOT_COMPARED,
    )


__all__ = [
    "Engine",
    "Host",
    "InputError",
    "PlanFailure",
    "ServiceInput",
    "Start",
    "read_params",
    "resolve",
]
