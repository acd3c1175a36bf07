# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of measured launches, which the overheads are compared with: made from proofs, checked, and compared with the plan.

A row names no host, service, path or key. It contains the numbers of configs and arguments, and words that published models use.
C(docs/memory.md), What proofs measured, describes the file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from .._common.plain_data import InputError, is_number, shown
from .._common.sizes import GIB
from .._vllm import catalogue
from .budget import memory_budget
from .service_input import ANSWERED_ARGS, FLAG_ARGS, POSITIVE_ARGS, TEXT_ARGS

SCHEMA = 1
ROUNDED = 0.02 * GIB
"""Bytes by which sizes from a log may be off: it has hundredths of a GiB, and a size inside the request is what two of them leave."""
MOST_ROWS = 10_000

_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TEXT = re.compile(r"[A-Za-z0-9_.*,:^$|()\[\]+\\-]{1,400}", re.ASCII)
_NUMBERS = re.compile(r"\d{1,3}(?:,\d{1,3})*", re.ASCII)
_FAMILY = re.compile(r"[a-z][a-z0-9_]{3,40}", re.ASCII)
_MOST_DIGITS = re.compile(r"\d{5,}")
_PATTERN = re.compile(r"[ME*-]{1,400}")  # a layer each, of Nemotron-H
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}(?: [A-Za-z0-9_.,/-]{1,40}){0,6}", re.ASCII)
_VERSION = re.compile(r"(0\.\d{1,3}(?:\.\d{1,3})?(?:rc\d{1,2})?)(?:\+.*)?", re.ASCII | re.DOTALL)
_DRIVER = re.compile(r"\d{3,4}\.\d{1,3}(?:\.\d{1,3})?", re.ASCII)
_GPU = re.compile(
    r"NVIDIA (?:GeForce |RTX |Tesla )*[A-Z]{1,4}\d{1,4}[A-Z]{0,2}(?: (?:\d{1,3}GB|HBM\d\w?|PCIe|NVL|SXM\d|Ti|SUPER))*",
    re.ASCII,
)
_SPEC = ("method", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
_BACKENDS = ("attention-backend", "moe-backend", "linear-backend")

# Words of configs of published models: keys, formats and names of modules. Names of vLLM's architectures are known as well.
_WORDS = """
a ab abs act activation activations add algo architectures attention attn axis b ba backbone base bfloat bias bidirectional bins bit bits
block bnb bound by cache causal channels checkpoint chunk cls compress compressed compression conditional config connection conv convert
count d data decoder dedicated deepseek deepstack default dense depth desc dim divisible dmel dmodel down downsample dsa dtype dynamic e emb
embed embedding embeddings enable encoder end engram enum eq ernie exaone exclude exp expand expert experts extent factor first float fmt
fnu for format fp fqn freq full g gate gating gemma generation glm global gpt gptq granularity group groups h hash hc head heads height
hidden hmlp hybrid hyper ids idx ignore ignored img in index indexer indexes init inkling input int interleave intermediate interval intx is
k kda kernel key kimi kpool kv laguna language latent layer layers length linear lite llama llm lm ln load local lora lower lowrank ls m
make mamba markov max mel merge method mhc mimo min minimax ministral mistral mixed mixer mla mlp mm mode model modelopt modules moe mtp
mult mxfp n nano nemotron next nextn ngram noise nope norm not num nvfp o offset omni only oss other out output override p pack partial
partition patch pattern per pixtral plain ple pos posemb position post pre precision predict proj projection projector q qk qkv qscheme
quant quantization quantized quark qwen radio rank ratio ratios re reasoning rel replace res rmsnorm rope rotary routed router routing row
scale scheme sconv self setting shared short sink size skip sliding source sparse spatial ssm standardize start state step store strategy
structure swa sym symmetric target targets temporal tensor tensors text tie to tok token tokens top topk torch torchao tower type types ue
uint unified unpacked up use v value version vision visual vl vocab vt w weight weights width window wise word z
image video audio pooling eagle dspark dflash suffix medusa draft drafter speculative prompt lookup auto align none all half awq marlin flash flashinfer triton
"""
WORDS = frozenset(_WORDS.split())


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    """Return the names of architectures, backends and formats in vLLM."""
    tables = ("architectures", "attention_backends", "moe_backends", "linear_backends", "quantizations")
    return frozenset(name for table in tables for name in catalogue.names(table))


@lru_cache(maxsize=1)
def _families() -> tuple[str, ...]:
    return tuple(_plain_name(name) for name in catalogue.names("architectures"))


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def is_public(text: str, family: bool = False) -> bool:
    """Tell whether a text is a name that vLLM has, or made of words of published models, so that it says nothing of who uses it.

    text: a key or a value of a config. family: whether it names a family, which architectures are named after.
    """
    if text in _names() or _PATTERN.fullmatch(text) or _NUMBERS.fullmatch(text):
        return True
    if family and _FAMILY.fullmatch(text) and any(name.startswith(_plain_name(text)) for name in _families()):
        return True
    tokens = _TOKEN.findall(text)
    public_words = bool(tokens) and all(token.lower() in WORDS for token in tokens)
    return bool(public_words and _TEXT.fullmatch(text) and not _MOST_DIGITS.search(text))


def public_fields(value: Any) -> Any:
    """Return the part of a config that does not identify its user: numbers, and known words."""
    if isinstance(value, Mapping):
        fields = {
            str(key): item if key == "model_type" and _is_family(item) else public_fields(item)
            for key, item in value.items()
            if is_public(str(key))
        }
        return {key: item for key, item in fields.items() if item is not _LEFT_OUT}
    if isinstance(value, (list, tuple)):
        return [item for item in map(public_fields, value) if item is not _LEFT_OUT]
    return value if _is_public_scalar(value) else _LEFT_OUT


def _is_public_scalar(value: Any) -> bool:
    """Tell whether a value that is no collection is a number or made of known words."""
    if isinstance(value, str):
        return is_public(value)
    return value is None or isinstance(value, bool) or is_number(value, -1e15, 1e15)


_LEFT_OUT: Any = object()


def _is_family(value: Any) -> bool:
    return isinstance(value, str) and is_public(value, family=True)


def public_arguments(args: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the arguments of a launch that decide memory and say nothing of who uses it, and how many others there are.

    args: of a launch by long names, without arguments of the front end
    """
    arguments: dict[str, Any] = {}
    for key, value in args.items():
        plain = isinstance(value, bool) or is_number(value, 0, 1e15)
        if (key in (*POSITIVE_ARGS, *FLAG_ARGS, *ANSWERED_ARGS) and plain) or (
            key in (*TEXT_ARGS, *_BACKENDS) and isinstance(value, str) and is_public(value)
        ):
            arguments[key] = value
        elif key in ("speculative-config", "limit-mm-per-prompt") and isinstance(value, Mapping):
            fields = public_fields(value)
            arguments[key] = {name: fields[name] for name in fields if key != "speculative-config" or name in _SPEC}
    return arguments, len([key for key in args if key not in arguments])


def public_row(start: Mapping[str, Any], args: Mapping[str, Any], model: str) -> tuple[dict[str, Any], str]:
    """Return a row of what the starts of one launch took.

    :param start: as the controller keeps it, see C(measured_starts)
    :param args: of the launch, without its sizes
    :returns: the row, or none with the reason
    """
    version = _VERSION.fullmatch(str(start["vllm_version"] or ""))
    if not version:
        return {}, "the version of vLLM is not a published one"
    public_args, further = public_arguments(args)
    share = start["gpu_memory_utilization"]
    sizes = {
        "max-model-len": start["max_model_len"],
        "max-num-batched-tokens": start["max_num_batched_tokens"],
        "max-num-seqs": start["max_num_seqs"],
        "gpu-memory-utilization": share,
    }
    requested = _bytes(start["requested_gib"]) or 0
    outside = start["outside_gib"]
    driver, gpu = str(start["driver"] or ""), str(start["gpu"] or "")
    return {
        "launch": f"{model} {start['max_num_batched_tokens']}/{start['max_num_seqs']} {start['max_model_len']}",
        "model": model,
        "vllm": version.group(1),
        "gpu": gpu if _GPU.fullmatch(gpu) else "NVIDIA",
        "driver": driver if _DRIVER.fullmatch(driver) else None,
        "total": int(requested / share),
        "arguments": {**public_args, **sizes},
        "further_arguments": further,
        "rounded": True,
        "runner": None,
        "requested": requested,
        "weights": _bytes(start["weights_gib"]),
        "kv_cache": _bytes(start["kv_cache_gib"]),
        "torch_peak": _bytes(start["peak_gib"]),
        "non_torch": _bytes(start["non_torch_gib"]),
        "graphs_estimate": _bytes(start["graphs_estimate_gib"]),
        "graphs_gib": start["graphs_gib"],
        "used": None if outside is None else requested + (_bytes(sum(outside) / 2) or 0),
    }, ""


def _bytes(size: float | None) -> int | None:
    return None if size is None else int(size * GIB)


_CONFIG_PARTS = ("models", "quant_configs", "draft_configs")
KEYS = ("schema", *_CONFIG_PARTS, "rows")
"""Keys of the file of measured launches."""


def export(launches: Iterable[Mapping[str, Any]], public: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the file of measured launches.

    :param launches: C({repo, config, quant_config, draft_config, args, starts}) of each
    :param public: repositories of published models, which a row may name
    :returns: the file, and why launches are not in it, without their names
    """
    named = frozenset(public)
    content: dict[str, Any] = dict(zip(KEYS, (SCHEMA, {}, {}, {}, [])))
    left_out: list[str] = []
    for launch in launches:
        configs = {key: public_fields(launch[key]) for key in ("config", "quant_config", "draft_config") if launch[key]}
        text = json.dumps(configs, sort_keys=True)
        repo = str(launch["repo"] or "")
        name = repo.rpartition("/")[2] if repo in named else f"model-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        if not configs["config"].get("model_type"):
            left_out.append("the model's family is not a known name")
            continue
        for start in launch["starts"]:
            row, why = public_row(start, launch["args"], name)
            if why:
                left_out.append(why)
            elif row not in content["rows"]:
                content["rows"].append(row)
                content["models"][name] = configs["config"]
                for key in ("quant_config", "draft_config"):
                    if key in configs:
                        content[f"{key}s"][name] = configs[key]
    # The order of hosts and services says nothing either.
    content["rows"].sort(key=lambda row: json.dumps(row, sort_keys=True))
    return content, sorted(left_out)


# A file of somebody ---------------------------------------------------------------------------------------------------

_SIZES = ("total", "requested", "weights")
_MAYBE = ("torch_peak", "non_torch", "graphs_estimate", "used", "before_profile", "num_blocks", "further_arguments")
_KEYS = (
    *("launch", "model", "vllm", "gpu", "driver", "arguments", "runner", "rounded", "kv_cache", "graphs_gib"),
    *_SIZES,
    *_MAYBE,
)


def problems(content: Any) -> list[str]:
    """Return all errors in the content of a file of rows. content: its JSON."""
    if not isinstance(content, Mapping):
        return [f"the file: expected an object with schema, models and rows, got {shown(content)}"]
    messages = []
    if content.get("schema") != SCHEMA:
        messages.append(f"schema: expected {SCHEMA}, got {shown(content.get('schema'))}")
    models = content.get("models")
    if not isinstance(models, Mapping) or not all(isinstance(item, Mapping) for item in models.values()):
        messages.append("models: expected configs by name")
        models = {}
    for part in _CONFIG_PARTS:
        messages += _config_problems(part, content.get(part) or {})
    rows = content.get("rows")
    if not isinstance(rows, list) or not rows or len(rows) > MOST_ROWS:
        return [*messages, f"rows: expected a list of 1 to {MOST_ROWS} rows"]
    seen: set[str] = set()
    for number, row in enumerate(rows):
        messages += [f"rows[{number}]{item}" for item in _row_problems(row, models)]
        text = json.dumps(row, sort_keys=True, default=str)
        if text in seen:
            messages.append(f"rows[{number}]: stands twice")
        seen.add(text)
    return messages


def _config_problems(part: str, configs: Any) -> list[str]:
    """Return the errors in the configs of a file. part: their key in it."""
    if not isinstance(configs, Mapping):
        return [f"{part}: expected configs by name"]
    return [
        *(f"{part}: {shown(name)} is no plain name" for name in configs if not _MODEL.fullmatch(str(name))),
        *(
            f"{part}.{name}: {', '.join(more)} is no word of a published model"
            for name, config in configs.items()
            if (more := _list_unknown_words(config))
        ),
    ]


def _list_unknown_words(value: Any) -> list[str]:
    """Return the keys and texts of a config that are no words of published models."""
    if isinstance(value, Mapping):
        keys = [shown(str(key)) for key in value if not is_public(str(key))]
        values = [item for key, item in value.items() if not (key == "model_type" and _is_family(item))]
        return keys + [text for item in values for text in _list_unknown_words(item)]
    if isinstance(value, list):
        return [text for item in value for text in _list_unknown_words(item)]
    return [shown(value)] if isinstance(value, str) and not is_public(value) else []


def _row_problems(row: Any, models: Mapping[str, Any]) -> list[str]:
    if not isinstance(row, Mapping):
        return [f": expected an object, got {shown(row)}"]
    messages = [f".{key}: unknown key; known are {', '.join(sorted(_KEYS))}" for key in row if key not in _KEYS]
    if row.get("model") not in models:
        messages.append(f".model: {shown(row.get('model'))} is not among the models")
    for key, pattern in (("launch", _LABEL), ("gpu", _GPU), ("driver", _DRIVER), ("vllm", _VERSION)):
        value = row.get(key)
        is_empty = (key, value) in (("driver", None), ("gpu", "NVIDIA"))
        if not is_empty and not (isinstance(value, str) and pattern.fullmatch(value)):
            messages.append(f".{key}: {shown(value)} has not the form of one")
    messages += _number_problems(row)
    if not messages and row["weights"] + row["kv_cache"] > row["requested"] + ROUNDED:
        messages.append(": weights and kv_cache are together more than requested")
    if not messages and row["requested"] > row["total"]:
        messages.append(": more is requested than total")
    return messages + _argument_problems(row.get("arguments"))


def _argument_problems(args: Any) -> list[str]:
    if not isinstance(args, Mapping):
        return [f".arguments: expected an object, got {shown(args)}"]
    public_args, _further = public_arguments(args)
    needed = ("gpu-memory-utilization", "max-model-len", "max-num-batched-tokens", "max-num-seqs")
    messages = [f".arguments.{key}: is missing" for key in needed if key not in args]
    return messages + [
        f".arguments.{key}: {shown(value)} is not an argument that decides memory, or no value that a row may have"
        for key, value in args.items()
        if public_args.get(key) != value
    ]


def _number_problems(row: Mapping[str, Any]) -> list[str]:
    messages = []
    for key in _SIZES:
        if not is_number(row.get(key), 1, 1e14):
            messages.append(f".{key}: expected bytes, a number above 0, got {shown(row.get(key))}")
    if not is_number(row.get("kv_cache"), -1e13, 1e14):
        messages.append(f".kv_cache: expected bytes, got {shown(row.get('kv_cache'))}")
    for key in (*_MAYBE, "graphs_gib"):
        if row.get(key) is not None and not is_number(row[key], 0, 1e14):
            messages.append(f".{key}: expected a number or null, got {shown(row[key])}")
    if row.get("runner") not in (None, 1, 2):
        messages.append(f".runner: expected 1, 2 or null, got {shown(row['runner'])}")
    return messages


def planned(content: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of the launch of a row, as C(memory_budget) has it of a service; raises C(InputError)."""
    config = {"config": content["models"][row["model"]]}
    for key in ("quant_config", "draft_config"):
        more = (content.get(f"{key}s") or {}).get(row["model"])
        config |= {key: more} if more else {}
    service = {"name": "a", **config, "vllm_version": row["vllm"], "args": dict(row["arguments"])}
    budget = memory_budget({"total_gib": row["total"] / GIB, "os_reserve_gib": 0, "services": [service]})
    made: dict[str, Any] = {**budget["services"]["a"], "findings": budget["findings"]}
    return made


def contradiction(content: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return the contradiction between a row and the ranges of the plan in words; empty if there is no contradiction."""
    try:
        made = planned(content, row)
    except InputError as error:
        return f"cannot be planned: {error}"
    size = made.get("available_kv_bytes")
    if size is None:
        errors = [finding["message"] for finding in made["findings"] if finding["severity"] == "error"]
        return f"cannot be planned: {' '.join(errors)}"
    slack = ROUNDED if row.get("rounded") else 0
    real = row["kv_cache"]
    if not size["low"] - slack <= real <= size["high"] + slack:
        text = " / ".join(f"{size[level] / GIB:.2f}" for level in ("low", "typical", "high"))
        return f"{real / GIB:.2f} GiB of KV cache, planned {text}"
    if row.get("runner") and made["model_runner"] != row["runner"]:
        return f"model runner V{row['runner']}, planned V{made['model_runner']}"
    return ""


def joined(before: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows with the new ones of another file.

    :param new: content of the other file, which has no problems
    :returns: content; a model with the name of another config gets another name
    """
    result = {**before, **{part: dict(before.get(part) or {}) for part in _CONFIG_PARTS}, "rows": list(before["rows"])}
    for row in new["rows"]:
        configs = {part: (new.get(part) or {}).get(row["model"]) for part in _CONFIG_PARTS}
        name = _find_free_name(row["model"], "-", _list_other_models(result, configs))
        entry = {**row, "model": name}
        if any({**existing, "launch": entry["launch"]} == entry for existing in result["rows"]):
            continue
        for part in _CONFIG_PARTS:
            if configs[part] is not None:
                result[part][name] = configs[part]
        labels = {existing["launch"] for existing in result["rows"]}
        result["rows"].append({**entry, "launch": _find_free_name(entry["launch"], " ", labels)})
    return {key: value for key, value in result.items() if value or key not in _CONFIG_PARTS}


def _list_other_models(content: Mapping[str, Any], configs: Mapping[str, Any]) -> set[str]:
    """Return the names of the models with another config."""
    parts = configs.items()
    return {name for name in content["models"] if any(content[part].get(name) != config for part, config in parts)}


def _find_free_name(name: str, separator: str, taken: set[str]) -> str:
    """Return the name itself, or with a number from 2 on, that is not taken."""
    numbered = (f"{name}{separator}{number}" for number in itertools.count(2))
    return next(candidate for candidate in itertools.chain([name], numbered) if candidate not in taken)
