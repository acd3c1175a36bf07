# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The input of the memory budget: the host, its services and their measured starts, checked and typed.

C(read_params) reports every mistake of the input at once.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from .._common.foreign_text import Untrusted
from .._common.plain_data import EVERYWHERE, InputError, Written, is_number, is_whole, unfit
from .._common.sizes import GIB
from .._common.validation import nearest_word
from .._vllm.catalogue import minors_with_launch, options
from .._vllm.context_length import ALLOW_VARIABLE
from .._vllm.launch import long_name, parse
from .._vllm.overheads import LEVELS, OVERHEADS
from .._vllm.seccomp import TABLE_VARIABLE, table_on_disk
from . import host_memory, image_answer
from .layers import Config, text_config
from .profile_run import GRAPHS_VARIABLE
from .releases import COMPARED_MINORS

# Defaults of vLLM on GB10, whose memory cannot be read through NVML (vllm/engine/arg_utils.py, get_batch_defaults).
DEFAULT_BATCHED_TOKENS = 2048
DEFAULT_SEQS = 256
# Values without a version: moving tags of images.
_MOVING_VERSIONS = ("nightly", "latest", "main", "unknown")
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
VARIABLES = (RUNNER_VARIABLE, GRAPHS_VARIABLE, TABLE_VARIABLE, ALLOW_VARIABLE, *host_memory.VARIABLES)
_STATED_KEYS = ("weights_gib", "kv_gib", "other_gib")
_START_KEYS = (
    *("exact", "max_model_len", "max_num_batched_tokens", "max_num_seqs"),
    *("weights_gib", "inside_gib", "outside_gib"),
)
# Arguments that need no new question to an image: an answer holds for all values up to the one in the question.
ANSWERED_ARGS = ("gpu-memory-utilization", "max-model-len", "max-num-seqs", "kv-cache-memory-bytes")
# The same for options that do not change GPU memory.
HOST_ARGS = host_memory.ARGS
# Options that change the plan in unknown ways, unless they are 1 or false.
UNPLANNED_ARGS = (
    "prefill-context-parallel-size",
    "mamba-block-size",
    "disable-sliding-window",
)
_MEMORY_ARGS = (*POSITIVE_ARGS, *FLAG_ARGS, *TEXT_ARGS, *_MAPPING_ARGS, *_OTHER_ARGS, *UNPLANNED_ARGS, *HOST_ARGS)
# Left out or C(auto), these are worked out (max-num-seqs only for C(auto)).
OPEN_ARGS = ("gpu-memory-utilization", "max-model-len", "max-num-seqs")
# The type of each option, and its name in messages.
_TYPES_OF_ARGS: tuple[tuple[tuple[str, ...], type, str], ...] = (
    ((*FLAG_ARGS, *host_memory.FLAGS), bool, "true or false"),
    ((*TEXT_ARGS, *host_memory.TEXTS), str, "a text"),
    (_MAPPING_ARGS, Mapping, "a mapping or its JSON text"),
)
# Upper limit of every size in GiB, share and time; larger values are typing errors.
_LARGEST = 1e6


@dataclass(frozen=True)
class Host:
    """The node: sizes in bytes. C(resident) maps running services to the bytes that they hold."""

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
    """The memory of one launch in all its measured starts, see C(learned.py).

    exact: on this host, of this image, with this driver. weights: GiB of model and drafter. inside: GiB inside the request besides
    weights and cache, the least and the most. outside: GiB held outside of the request, likewise; None if unknown.
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
    """One service of the input, with checked types.

    starts: of the same launch, or of launches that differ only in lengths or batch.
    stated: GiB of weights, KV cache and the rest that replace all arithmetic; the last two may be open. answer: of the image about
    this launch; answer_reason: why there is no answer. runner: the model runner of the environment, 1 or 2, else 0.
    counts_graphs: whether the environment has CUDA graphs subtracted from the cache, None if it does not say.
    minors: the minor releases that an engine of unknown version is judged by. any_length: vLLM's check of the context is switched off.
    env: variables that decide host memory. rank: of this node in a cluster, 0 for the head node, which answers requests.
    Services with the same text are equal and have one hash, so that the same model on many hosts is read once.
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
    answer: image_answer.Answer | None = None
    answer_reason: str = ""
    starts: tuple[Start, ...] = ()
    vllm_version: str = ""
    minors: tuple[int, ...] = ()
    available_kv_bytes: int | None = None
    share: float = 1.0
    last: int = 0
    exclusive: str = ""
    misspelt: tuple[tuple[str, str], ...] = ()
    runner: int = 0
    counts_graphs: bool | None = None
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
        """The same service without its name, share, place and set on the host."""
        return replace(self, name="", share=1.0, last=0, exclusive="")


class _Reader:
    """Collects every mistake instead of stopping at the first."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def add_error(self, where: str, key: str, text: str) -> None:
        """Add an error."""
        self.messages.append(f"{where}{key}: {text}")

    def check_keys(self, value: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
        """Add errors for unknown keys, with the nearest known key."""
        for key in value:
            if key not in allowed:
                spelled = str(key).replace("_", "-") if "-" in "".join(allowed) else str(key)
                near = nearest_word(spelled, allowed)
                hint = f", did you mean {near}?" if near else f"; known are {', '.join(allowed)}"
                self.add_error(where, str(key), f"unknown key{hint}")

    def read_number(
        self, value: Mapping[str, Any], key: str, where: str, *, minimum: float = 0.0, above: bool = False
    ) -> float | None:
        """Read a finite number of at least (or above) C(minimum)."""
        entry = value.get(key)
        if entry is None:
            return None
        if not is_number(entry, -math.inf, math.inf) or abs(entry) == math.inf:
            self.add_error(where, key, f"expected a number, got {entry!r}")
        elif entry < minimum or (above and entry == minimum):
            self.add_error(where, key, f"must be {'above' if above else 'at least'} {minimum:g}, got {entry!r}")
        elif entry > _LARGEST:
            self.add_error(where, key, f"must be at most {_LARGEST:g}, got {entry!r}")
        else:
            return float(entry)
        return None

    def read_whole_number(self, value: Mapping[str, Any], key: str, where: str, minimum: int = 1) -> int | None:
        """Read a whole number."""
        entry = value.get(key)
        if entry is None:
            return None
        if not isinstance(entry, int) or not is_whole(entry, minimum):
            self.add_error(where, key, f"expected a whole number of at least {minimum}, got {entry!r}")
            return None
        return int(entry)

    def read_mapping(self, value: Mapping[str, Any], key: str, where: str) -> dict[str, Any] | None:
        """Read a mapping."""
        entry = value.get(key)
        if entry is None:
            return None
        if not isinstance(entry, Mapping):
            self.add_error(where, key, f"expected a mapping, got {entry!r}")
            return None
        if key.endswith("config") and (strange := unfit(entry, f"{where}{key}", EVERYWHERE)):
            self.messages += strange
            return None
        return dict(entry)

    def read_list(self, value: Mapping[str, Any], key: str, where: str) -> list[Any] | None:
        """Read a list that is not empty."""
        entry = value.get(key)
        if entry is None:
            return None
        if not isinstance(entry, list) or not entry:
            self.add_error(where, key, f"expected a list, got {entry!r}")
            return None
        return entry

    def read_overheads(self, value: Mapping[str, Any], where: str) -> dict[str, tuple[float, float, float]]:
        """Read overrides of the overheads: a number for all levels, or a mapping of levels."""
        merged: dict[str, tuple[float, float, float]] = {}
        allowed = (*OVERHEADS, "inside_gib")
        self.check_keys(value, allowed, where)
        for key in allowed:
            override = value.get(key)
            if override is None:
                continue
            if isinstance(override, Mapping):
                self.check_keys(override, LEVELS, f"{where}{key}.")
                default = OVERHEADS.get(key)
                if default is None and set(override) != set(LEVELS):
                    self.add_error(where, key, "needs low, typical and high")
                    continue
                start = default or (0.0, 0.0, 0.0)
                values = []
                for index, level in enumerate(LEVELS):
                    number = self.read_number(override, level, f"{where}{key}.", above=key.endswith("_per_second"))
                    values.append(start[index] if number is None else number)
            else:
                number = self.read_number(value, key, where, above=key.endswith("_per_second"))
                values = [1.0 if number is None else number] * 3
            if not values[0] <= values[1] <= values[2]:
                self.add_error(where, key, f"low, typical and high must not fall, got {values}")
            elif key == "kept_share" and values[2] > 1:
                self.add_error(where, key, f"is a share, at most 1, got {values[2]:g}")
            merged[key] = (values[0], values[1], values[2])
        return merged


def _spell_args(args: Mapping[Any, Any], reader: _Reader, where: str) -> Config:
    """Return the arguments by vLLM's long names and in native values, read as its command line reads them."""
    spelled_args: dict[str, Any] = {}
    names: set[str] = set()
    autos: set[str] = set()
    for key, value in args.items():
        if not isinstance(key, str):
            reader.add_error(where, repr(key), "expected the name of an argument")
            continue
        name = long_name(key)
        if name in names and "." not in name:
            reader.add_error(where, key, f"is {name}, which is there already")
        names.add(name)
        if name in OPEN_ARGS and isinstance(value, str) and value.strip().lower() == "auto":
            autos.add(name)
        else:
            spelled_args[key] = value
    parsed = parse(spelled_args)
    for problem in parsed.problems:
        if problem.option.lstrip("-") in _MEMORY_ARGS:
            reader.add_error(where, problem.option.lstrip("-"), problem.detail)
    return {**parsed.args, **dict.fromkeys(sorted(autos), "auto")}


def _minors_to_judge(config: Config | None, args: Config) -> tuple[int, ...]:
    """Return the compared minor releases that know the architecture and the options of a launch, all where none does."""
    overrides = args.get("hf-overrides")
    overridden = overrides.get("architectures") if isinstance(overrides, Mapping) else None
    architectures = overridden or (config or {}).get("architectures")
    if not isinstance(architectures, list) or args.get("model-impl") == "transformers":
        architectures = []
    minors = minors_with_launch([str(name) for name in architectures], args)
    return tuple(minor for minor in COMPARED_MINORS if minor in minors) or COMPARED_MINORS


def _convert_mistral(config: Config | None, args: Config) -> Config | None:
    """Return the config of Mistral 4 as vLLM has it from params.json: a DeepSeek-V3, whose cache is latent (configs/mistral.py)."""
    text = text_config(config or {})
    if config is None or args.get("config-format") != "mistral" or text.get("model_type") != "mistral4":
        return config
    read = {**text, "model_type": "deepseek_v3", "architectures": ["MistralLarge3ForCausalLM"]}
    return read if text is config else {**config, "text_config": read}


def _find_misspelt(args: Config) -> tuple[tuple[str, str], ...]:
    """Return arguments that no vLLM knows but that resemble a memory argument, with that argument."""
    valid_options = options()
    pairs = []
    for key in args:
        near = None if key in valid_options else nearest_word(key, _MEMORY_ARGS, cutoff=0.8)
        pairs += [(key, near)] if near else []
    return tuple(pairs)


def _read_args(args: Config, reader: _Reader, where: str) -> Config:
    """Check the arguments that decide memory; the others are ignored here."""
    memory_args = {key: value for key, value in args.items() if key in _MEMORY_ARGS and value is not None}
    autos = tuple(key for key in OPEN_ARGS if memory_args.get(key) == "auto")
    for key in autos:
        del memory_args[key]
    _check_types(memory_args, reader, where)
    utilization = reader.read_number(memory_args, "gpu-memory-utilization", where, above=True)
    if utilization is not None:
        if utilization > 1:
            share = f"; write {utilization / 100:g}" if 10 <= utilization <= 100 else ""
            problem = f"expected a share of all memory, at most 1, got {utilization:g}{share}"
            reader.add_error(where, "gpu-memory-utilization", problem)
        memory_args["gpu-memory-utilization"] = utilization  # vLLM prints 1 as 1.0
    length = memory_args.get("max-model-len")
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        reader.add_error(where, "max-model-len", f"expected a whole number of tokens, or auto, got {length!r}")
    _check_speculation(memory_args.get("speculative-config"), reader, where)
    skip = memory_args.get("kv-cache-dtype-skip-layers")
    if skip is not None:
        memory_args["kv-cache-dtype-skip-layers"] = _read_skipped_layers(skip, reader, where)
    return {**memory_args, **dict.fromkeys(autos, "auto")}


def _check_types(args: Config, reader: _Reader, where: str) -> None:
    """Check numbers, and the types of the other options."""
    for key in POSITIVE_ARGS:
        reader.read_whole_number(args, key, where)
    for key in host_memory.NUMBERS:
        reader.read_number(args, key, where)
    for keys, kind, expected in _TYPES_OF_ARGS:
        for key in keys:
            if key in args and not isinstance(args[key], kind):
                reader.add_error(where, key, f"expected {expected}, got {args[key]!r}")


def _check_speculation(spec: Any, reader: _Reader, where: str) -> None:
    """Check the fields of C(speculative-config) that decide memory."""
    if isinstance(spec, Mapping):
        reader.read_whole_number(spec, "num_speculative_tokens", f"{where}speculative-config.")
        if not isinstance(spec.get("method", ""), str):
            reader.add_error(where, "speculative-config.method", f"expected a text, got {spec['method']!r}")
        reader.read_whole_number(spec, "draft_tensor_parallel_size", f"{where}speculative-config.")


def _read_skipped_layers(value: Any, reader: _Reader, where: str) -> tuple[str, ...]:
    """Read the layers of C(kv-cache-dtype-skip-layers): numbers or names."""
    layers = value if isinstance(value, list) else [value]
    if not all(isinstance(layer, (str, int)) and not isinstance(layer, bool) for layer in layers):
        reader.add_error(where, "kv-cache-dtype-skip-layers", f"expected a list of layers, got {value!r}")
    return tuple(map(str, layers))


@lru_cache(maxsize=1024)
def _read_once(written: Written) -> tuple[ServiceInput, list[str]]:
    """Read a service from its text, its index and the overheads of its host; equal services are read once. Callers must not change the result."""
    reader = _Reader()
    value, index, common = written.content
    read = _read_service(value, index, common, reader)
    return read, reader.messages


def _read_services(
    services: list[Any], common: dict[str, tuple[float, float, float]], reader: _Reader
) -> list[ServiceInput]:
    inputs = []
    for index, value in enumerate(services):
        try:
            written = Written((value, index, common))
        except (ValueError, RecursionError):  # a number of thousands of digits, a list that holds itself
            inputs.append(_read_service(value, index, common, reader))
        else:
            read, messages = _read_once(written)
            inputs.append(read)
            reader.messages += messages
    return inputs


def _read_service(
    value: Any, index: int, common: dict[str, tuple[float, float, float]], reader: _Reader
) -> ServiceInput:
    if not isinstance(value, Mapping):
        reader.add_error("", f"services[{index}]", f"expected a mapping, got {value!r}")
        return ServiceInput("", {}, {})
    name = value.get("name")
    if not isinstance(name, str) or not name:
        reader.add_error(f"services[{index}].", "name", f"expected a text, got {name!r}")
        name = f"services[{index}]"
    where = f"service {name}: "
    reader.check_keys(value, _SERVICE_KEYS, where)
    version = _read_version(value, reader, where)
    overrides = reader.read_overheads(reader.read_mapping(value, "overheads", where) or {}, f"{where}overheads.")
    args = _spell_args(reader.read_mapping(value, "args", where) or {}, reader, f"{where}args.")
    env = reader.read_mapping(value, "env", where) or {}
    config = _convert_mistral(reader.read_mapping(value, "config", where), args)
    read = ServiceInput(
        name=name,
        args=_read_args(args, reader, f"{where}args."),
        overheads={**OVERHEADS, **common, **overrides},
        config=config,
        quant_config=reader.read_mapping(value, "quant_config", where),
        weights_gib=reader.read_number(value, "weights_gib", where, above=True),
        tensors=reader.read_list(value, "tensors", where),
        draft_config=reader.read_mapping(value, "draft_config", where),
        draft_weights_gib=reader.read_number(value, "draft_weights_gib", where),
        memory_gib=reader.read_number(value, "memory_gib", where, above=True),
        stated=_read_stated(value, reader, where),
        vllm_version=version,
        minors=() if version else _minors_to_judge(config, args),
        available_kv_bytes=reader.read_whole_number(value, "available_kv_bytes", where, minimum=0),
        share=1.0 if value.get("share") is None else reader.read_number(value, "share", where) or 0.0,
        last=reader.read_whole_number(value, "last", where, minimum=0) or 0,
        exclusive=str(value.get("exclusive") or ""),
        misspelt=_find_misspelt(args),
        starts=_read_starts(value, reader, where),
        rank=reader.read_whole_number(value, "rank", where, minimum=0) or 0,
        **_read_answer(value, reader, where),
        **_read_env(env, args),
    )
    _check_statement(read, overrides, reader, where)
    if value.get("config") is None and value.get("memory_gib") is None:
        reader.add_error(
            where, "config", "give the config of the model, or memory_gib for a service that is no vLLM engine"
        )
    return read


def _read_version(value: Mapping[str, Any], reader: _Reader, where: str) -> str:
    """Read C(vllm_version); empty if it is absent or the name of a moving tag."""
    version = value.get("vllm_version")
    if version is not None and not isinstance(version, str):
        reader.add_error(where, "vllm_version", f'expected a text such as "0.23.0", got {version!r}')
    return version if isinstance(version, str) and version.strip().lower() not in _MOVING_VERSIONS else ""


def _read_env(env: Mapping[str, Any], args: Config) -> dict[str, Any]:
    """Return the fields of C(ServiceInput) that follow from the environment of the engine."""
    counts_graphs = None  # also if it is no integer, with which vLLM does not start
    with contextlib.suppress(TypeError, ValueError):
        counts_graphs = bool(int(env.get(GRAPHS_VARIABLE, "")))
    runner = str("" if env.get(RUNNER_VARIABLE) is None else env[RUNNER_VARIABLE]).strip().lower()
    return {
        "runner": {"1": 2, "true": 2, "0": 1, "false": 1}.get(runner, 0),  # maybe_convert_bool of vllm/envs.py
        "counts_graphs": counts_graphs,
        "table": table_on_disk(args, env),
        "any_length": str(env.get(ALLOW_VARIABLE) or "").strip().lower() in ("1", "true"),
        "env": {key: value for key, value in env.items() if key in host_memory.VARIABLES},
    }


def _check_statement(read: ServiceInput, overrides: Mapping[str, Any], reader: _Reader, where: str) -> None:
    """Add errors for keys that C(memory), or C(memory_gib) of an engine, would override."""
    if read.stated is None and (read.memory_gib is None or read.config is None):
        return
    name = "memory_gib" if read.stated is None else "memory"
    if read.stated is not None and read.memory_gib is not None:
        reader.add_error(where, "memory_gib", "is set together with memory, which has its parts; remove one of them")
    for key in ("weights_gib", "draft_weights_gib", "tensors", "available_kv_bytes"):
        if getattr(read, key) is not None:
            reader.add_error(
                where, key, f"has no effect with {name}; set only weights_gib, kv_gib and other_gib in memory"
            )
    if read.stated is not None and read.stated[2] is not None and "inside_gib" in overrides:
        reader.add_error(where, "overheads.inside_gib", "has no effect with memory.other_gib; leave one of them out")


def _read_stated(
    value: Mapping[str, Any], reader: _Reader, where: str
) -> tuple[float, float | None, float | None] | None:
    """Read the stated memory of an engine, C(memory)."""
    statement = reader.read_mapping(value, "memory", where)
    if statement is None:
        return None
    where = f"{where}memory."
    reader.check_keys(statement, _STATED_KEYS, where)
    weights, cache, other = (reader.read_number(statement, key, where) for key in _STATED_KEYS)
    if statement.get("weights_gib") is None:
        reader.add_error(where, "weights_gib", "is missing; where only the sum is known, give memory_gib")
    return weights or 0.0, cache, other


def _read_starts(value: Mapping[str, Any], reader: _Reader, where: str) -> tuple[Start, ...]:
    """Read the measured memory of earlier starts, C(starts)."""
    entries, starts = value.get("starts") or [], []
    if not isinstance(entries, list):
        reader.add_error(where, "starts", f"expected a list, got {entries!r}")
        return ()
    for index, entry in enumerate(entries):
        at = f"{where}starts[{index}]."
        if not isinstance(entry, Mapping):
            reader.add_error(where, f"starts[{index}]", f"expected a mapping, got {entry!r}")
            continue
        reader.check_keys(entry, _START_KEYS, at)
        sizes = [reader.read_whole_number(entry, key, at) for key in _START_KEYS[1:4]]
        weights = reader.read_number(entry, "weights_gib", at)
        inside, outside = (_read_span(entry, key, reader, at) for key in _START_KEYS[5:])
        if None in (*sizes, weights, inside):
            missing = [key for key in _START_KEYS[1:6] if entry.get(key) is None]
            for key in missing:
                reader.add_error(at, key, "is missing")
        elif weights is not None and inside is not None:
            length, batch, sequences = (size or 0 for size in sizes)
            starts.append(Start(entry.get("exact") is True, length, batch, sequences, weights, inside, outside))
    return tuple(starts)


def _read_span(entry: Mapping[str, Any], key: str, reader: _Reader, where: str) -> tuple[float, float] | None:
    """Read the least and the most of a term, GiB; it may be below nothing where measurements scatter."""
    bounds = entry.get(key)
    if bounds is None:
        return None
    if (
        not isinstance(bounds, list)
        or len(bounds) != 2
        or not all(is_number(bound, -_LARGEST, _LARGEST) for bound in bounds)
    ):
        reader.add_error(where, key, f"expected the least and the most, two numbers, got {bounds!r}")
        return None
    low, high = float(bounds[0]), float(bounds[1])
    if low > high:
        reader.add_error(where, key, f"the least must not be above the most, got {bounds!r}")
    return low, high


def _read_answer(value: Mapping[str, Any], reader: _Reader, where: str) -> dict[str, Any]:
    """Read the image's answer about the launch, C(image_plan): C(answer) and C(reason) of the module of that name."""
    image_plan = reader.read_mapping(value, "image_plan", where) or {}
    answer, reason = image_plan.get("answer"), image_plan.get("reason")
    if reason is not None and not isinstance(reason, str):
        reader.add_error(where, "image_plan.reason", f"expected a text, got {reason!r}")
    if answer is not None and not isinstance(answer, image_answer.Answer):
        try:
            answer = image_answer.read(answer)
        except Untrusted as error:
            reader.add_error(where, "image_plan.answer", str(error))
            answer = None
    return {"answer": answer, "answer_reason": reason if isinstance(reason, str) else ""}


def read_params(params: Mapping[str, Any]) -> tuple[Host, list[ServiceInput]]:
    """Return the checked input of the memory budget; raises C(InputError) with every mistake in it."""
    reader = _Reader()
    reader.check_keys(params, _TOP_KEYS, "")
    common = reader.read_overheads(reader.read_mapping(params, "overheads", "") or {}, "overheads.")
    host = _read_host(params, reader)
    services = params.get("services")
    if not isinstance(services, list):
        reader.add_error("", "services", f"expected a list of services, got {services!r}")
        services = []
    inputs = _read_services(services, common, reader)
    for name, count in sorted(Counter(item.name for item in inputs).items()):
        if count > 1:
            reader.add_error("services: ", "name", f"{name!r} stands {count} times, names must be unique on a host")
    if reader.messages:
        raise InputError(reader.messages)
    return host, inputs


def _read_host(params: Mapping[str, Any], reader: _Reader) -> Host:
    """Read the memory of the node, in bytes, with its measured values."""
    total = reader.read_number(params, "total_gib", "", above=True)
    if total is not None and total * GIB < 1:
        reader.add_error("", "total_gib", f"is less than a byte, {total!r}")
    reserve = reader.read_number(params, "os_reserve_gib", "")
    margin = reader.read_number(params, "safety_margin_gib", "")
    measured = reader.read_mapping(params, "measured", "") or {}
    reader.check_keys(measured, _MEASURED_KEYS, "measured.")
    available = reader.read_number(measured, "mem_available_gib", "measured.")
    free = reader.read_number(measured, "mem_free_gib", "measured.")
    return Host(
        total=int((119.67 if total is None else total) * GIB),
        os_reserve=int((5.2 if reserve is None else reserve) * GIB),
        margin=int((2.0 if margin is None else margin) * GIB),
        available=None if available is None else int(available * GIB),
        free=None if free is None else int(free * GIB),
        resident=_read_resident(measured.get("resident"), reader),
    )


def _read_resident(entries: Any, reader: _Reader) -> dict[str, int]:
    """Read the bytes that running services hold, by name."""
    resident: dict[str, int] = {}
    for index, item in enumerate(entries if isinstance(entries, list) else []):
        where = f"measured.resident[{index}]."
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            reader.add_error("", where[:-1], f"expected a mapping of name and gib, got {item!r}")
            continue
        reader.check_keys(item, ("name", "gib"), where)
        if item.get("gib") is None:
            reader.add_error(where, "gib", "is missing")
        if item["name"] in resident:
            reader.add_error(where, "name", f"{item['name']!r} stands twice")
        resident[item["name"]] = int((reader.read_number(item, "gib", where) or 0.0) * GIB)
    if entries is not None and not isinstance(entries, list):
        reader.add_error("measured.", "resident", f"expected a list, got {entries!r}")
    return resident
