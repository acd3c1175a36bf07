# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launch under test, the class of a rule, and the list of rules that the C(rules_*) files fill."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from typing import Any

from .._common import validation
from .._common.docker_run import DockerRun
from .._common.findings import SEVERITIES, Finding
from .._vllm import catalogue, versions
from .._vllm.fp4_kernels import is_weight_only
from .._vllm.launch import Problem
from .._vllm.versions import Version

FAMILIES = {
    "1": "Launch line",
    "2": "Environment",
    "3": "Image and platform",
    "4": "Model and quantisation",
    "5": "Kernels of sm_121",
    "6": "Speculative decoding",
    "7": "Parsers and tools",
    "8": "Several nodes",
    "9": "Options that govern memory",
    "H": "Host and container",
    "K": "Reported failures of single versions",
    "U": "Units and docker commands",
}
"""What the fourth character of a rule's id stands for."""

HYBRID_MODEL_TYPES = (
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "nemotron_h",
    "jamba",
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "zamba2",
    "plamo2",
    "lfm2",
)

# What vLLM's own documents and packages, and the reports that rules rest on, are called.
PARSER = "vLLM's command-line parser"
PACKAGES = "vLLM's code"
SELECTION = "vLLM's backend selection"
DUO = "report on a pair of Sparks, 2026"
GUIDE = "guide to vLLM on DGX Spark, June 2026"

# What the name of a draft model says to a vLLM that was not told the method (vllm/config/speculative.py).
_DRAFT_NAMES = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))

version = cache(versions.version)
_names = cache(catalogue.names)


# --- the launch under test ----------------------------------------------------------------------------------------


@dataclass
class Launch:
    """One launch with everything the rules look at.

    image: the reference as given. entry: its catalogue entry or C({}). version: C(None) when it is not known.
    args: normalised. config, quant_config: the model's, C({}) when not given. nodes: Sparks that serve it together.
    argv: as typed, empty when options came as a mapping. docker: options of C(docker run). packages: pip
    requirements installed on top of the image. probed: whether the version
    was read out of the image itself.
    """

    image: str
    entry: Mapping[str, Any]
    version: Version | None
    entrypoint: str
    entrypoint_known: bool
    args: Mapping[str, Any]
    problems: list[Problem]
    env: Mapping[str, str]
    repo: str
    config: Mapping[str, Any]
    quant_config: Mapping[str, Any]
    driver: str | None = None
    nodes: int = 1
    executor: str | None = None
    argv: list[str] = field(default_factory=list)
    docker: DockerRun = field(default_factory=DockerRun)
    packages: Sequence[str] = ()
    probed: bool = False

    def before(self, bound: str) -> bool:
        """Tell whether the version is known and older than C(bound).

        A development build may already be the next minor release in all but name, so it is taken for that.
        """
        return self.version is not None and versions.at_most(self.version) < version(bound)

    def within(self, first: str, bound: str) -> bool:
        """Tell whether the version is known, C(first) or newer, and older than C(bound)."""
        return self.version is not None and version(first) <= self.version and self.before(bound)

    def unsupported(self, table: str, name: str) -> bool:
        """Tell whether the version is known not to have a name of C(catalogue_data.NAMES)."""
        return name not in self.entry.get("features", ()) and catalogue.has(table, name, self.version) is False

    @staticmethod
    def names(table: str) -> Mapping[str, catalogue.Span]:
        """Return the names of a table of the catalogue with their spans."""
        return _names(table)

    def respelled(self, table: str, name: str) -> str | None:
        """Return the name that C(name) is a misspelling of, if this version has it and there can be no doubt."""
        supported = (other for other in catalogue.names(table) if not self.unsupported(table, other))
        return sure_spelling(name, tuple(supported))

    def unknown_value(self, option: str, table: str, name: str | None = None) -> Hits:
        """Yield a value of an option that this version does not have, with its spelling if that can be no other.

        :param name: the value if not as written; empty for none
        :returns: hits as C(missing) has them, with C(changes)
        """
        name = str(self.args.get(option) or "") if name is None else name
        if name and self.unsupported(table, name):
            intended = self.respelled(table, name)
            yield {**self.missing(table, name), "changes": (Change("args", option, intended),) if intended else ()}

    def missing(self, table: str, name: str) -> dict[str, Any]:
        """Describe a name of a table that this version does not have, for a rule's texts: C({name, span, fix})."""
        names = catalogue.names(table)
        span = names.get(name)
        # Long names of variables share many letters without being related.
        cutoff = 0.75 if table == "environment" else 0.6
        near = validation.nearest_word(name, (other for other in names if not self.unsupported(table, other)), cutoff)
        fix = f"Did you mean {near}?" if near else "Remove it."
        return {
            "name": name,
            "span": f" ({span.text()})" if span else "",
            "fix": "Use an image whose vLLM has it." if span else fix,
        }

    def word(self, option: str) -> str:
        """Return the value of an option in lower case with underscores, as vLLM normalises backends; empty if unset."""
        value = self.args.get(option)
        return "" if value is None else str(value).strip().lower().replace("-", "_")

    def number(self, option: str, default: int) -> int:
        """Return the value of a whole number."""
        value = self.args.get(option)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def truthy(self, variable: str) -> bool:
        """Tell whether an environment variable is set to something that vLLM reads as true."""
        return self.env.get(variable, "").strip().lower() in ("1", "true")

    def brings(self, package: str, extra: str = "") -> bool:
        """Tell whether a package, or the extra of vLLM that has it, is installed on top of the image."""
        for requirement in self.packages:
            match = re.match(r"([\w.-]+)(?:\[([^]]*)\])?", requirement.strip().lower().replace("_", "-"))
            name, extras = match.groups() if match else ("", None)
            if name == package or (name == "vllm" and extra and extra in (extras or "").replace(" ", "").split(",")):
                return True
        return False

    def pinned(self) -> dict[str, str]:
        """Return the packages that are installed on top of the image in one exact version."""
        pinned = {}
        for requirement in self.packages:
            match = re.fullmatch(r"([\w.-]+)(?:\[[^]]*\])?\s*===?\s*([\w.!+-]+)", requirement.strip())
            if match:
                pinned[match[1].lower().replace("_", "-")] = match[2]
        return pinned

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        """The speculative configuration, empty without one."""
        value = self.args.get("speculative-config")
        spec = dict(value) if isinstance(value, Mapping) else {}
        for key, option in (
            ("method", "spec-method"),
            ("model", "spec-model"),
            ("num_speculative_tokens", "spec-tokens"),
        ):
            if self.args.get(option) is not None:
                spec.setdefault(key, self.args[option])
        return spec

    @property
    def method(self) -> str:
        """The speculative method as vLLM reads it: the configured one, or derived from the name of the draft model; else empty."""
        draft = str(self.spec.get("model") or "").lower()
        return str(self.spec.get("method") or "") or next(
            (method for word, method in _DRAFT_NAMES if word in draft), ""
        )

    @cached_property
    def text(self) -> Mapping[str, Any]:
        """The part of config.json that describes the language model."""
        for key in ("text_config", "llm_config"):
            part = self.config.get(key)
            if isinstance(part, Mapping):
                return part
        return self.config

    @cached_property
    def architectures(self) -> list[str]:
        """Architectures that vLLM will look for; C(--hf-overrides) goes before config.json."""
        overrides = self.args.get("hf-overrides")
        if isinstance(overrides, Mapping) and isinstance(overrides.get("architectures"), list):
            return [str(name) for name in overrides["architectures"]]
        return _texts(self.config.get("architectures"))

    @property
    def hybrid(self) -> bool:
        """Whether it mixes attention with state-space or linear-attention layers."""
        layers = _texts(self.text.get("layer_types") or self.text.get("layers_block_type"))
        return (
            any(kind in ("linear_attention", "mamba", "mamba2") for kind in layers)
            or bool(self.text.get("hybrid_override_pattern") or self.text.get("linear_attn_config"))
            or str(self.config.get("model_type")) in HYBRID_MODEL_TYPES
        )

    @property
    def moe(self) -> bool:
        """Whether it has experts."""
        return any(self.text.get(key) for key in ("num_experts", "n_routed_experts", "num_local_experts"))

    @property
    def dense(self) -> bool:
        """Whether it is known to have no experts: a whole config.json that says nothing of any."""
        return bool(self.text.get("hidden_size")) and not any(
            "expert" in key and value for key, value in self.text.items()
        )

    @property
    def gemma4(self) -> bool:
        """Whether it is a Gemma 4."""
        return any(name.startswith("Gemma4") for name in self.architectures)

    @property
    def gpt_oss(self) -> bool:
        """Whether it is a gpt-oss, whose attention has sinks."""
        return "GptOssForCausalLM" in self.architectures

    @cached_property
    def quantization(self) -> Mapping[str, Any]:
        """How the checkpoint says it is quantised: the config's own section, else hf_quant_config.json."""
        section = self.config.get("quantization_config") or self.text.get("quantization_config")
        if isinstance(section, Mapping) and section:
            return section
        other = self.quant_config.get("quantization")
        if isinstance(other, Mapping) and other:
            return {"quant_method": "modelopt", **other}
        return self.quant_config

    @property
    def checkpoint(self) -> str:
        """Name of the checkpoint's quantisation as vLLM resolves it, empty if unquantised or unknown."""
        method = str(self.quantization.get("quant_method") or "").lower().replace("_", "-")
        if method == "modelopt":
            algorithm = str(self.quantization.get("quant_algo") or "").upper()
            return {"NVFP4": "modelopt_fp4", "MIXED_PRECISION": "modelopt_mixed", "MXFP8": "modelopt_mxfp8"}.get(
                algorithm, "modelopt"
            )
        names = catalogue.names("quantizations")
        return next((name for name in (method, method.replace("-", "_")) if name in names), method)

    @property
    def overriding(self) -> str:
        """The ModelOpt method that vLLM takes for the checkpoint regardless of --quantization, empty for none.

        Each of its ModelOpt classes is asked first (config/model.py, _verify_quantization; override_quantization_method of modelopt.py,
        the same in 0.19 to 0.33).
        """
        if not str(self.quantization.get("quant_method") or "").lower().startswith("modelopt"):
            return ""
        algorithm = str(self.quantization.get("quant_algo") or "").upper()
        if "FP4" in algorithm:
            return "modelopt_fp4"
        if "MXFP8" in algorithm:
            return "modelopt_mxfp8"
        return {"FP8": "modelopt", "MIXED_PRECISION": "modelopt_mixed"}.get(algorithm, "")

    @property
    def unquantised(self) -> bool:
        """Whether the weights are known to be served unquantised."""
        return bool(self.config) and not self.quantization and self.args.get("quantization") is None

    @property
    def draft_unquantised(self) -> bool:
        """Whether the checkpoint is known to leave its own MTP layers unquantised."""
        skipped = [
            *_texts(self.quantization.get("ignore")),
            *_texts(self.quantization.get("exclude_modules")),
            *_texts(self.quantization.get("modules_to_not_convert")),
        ]
        return any(re.match(r"(?:re:)?(?:model\.)?[.*^]*mtp\b", name) for name in skipped)

    @property
    def expert_format(self) -> str:
        """Format of the experts' weights: nvfp4, fp8_block, mxfp4, bf16 or empty if that is not clear."""
        if not self.moe:
            return ""
        if self.unquantised:
            return "bf16"
        if self.checkpoint == "modelopt_fp4" or "nvfp4-pack" in str(self.quantization.get("format")):
            return "nvfp4_weights" if self.weight_only else "nvfp4"
        if self.checkpoint == "fp8" and self.quantization.get("weight_block_size"):
            return "fp8_block"
        return "mxfp4" if self.checkpoint == "mxfp4" else ""

    @property
    def prefix_caching(self) -> bool:
        """Whether prefixes are cached, by option or by that version's default."""
        enabled = self.args.get("enable-prefix-caching")
        if enabled is not None:
            return bool(enabled)
        return not self.hybrid or (self.version is not None and self.version >= version("0.28.0"))

    @property
    def world(self) -> int:
        """GPUs that one replica needs."""
        return self.number("tensor-parallel-size", 1) * self.number("pipeline-parallel-size", 1)

    @property
    def replicas(self) -> int:
        """Replicas of it that data parallelism makes."""
        return max(self.number("data-parallel-size", 1), 1)

    @property
    def joined(self) -> int:
        """GPUs that communicate while they compute: one replica, or all replicas of a model that spreads experts over them."""
        return self.world * (1 if self.dense else self.replicas)

    @property
    def sparks(self) -> int:
        """Sparks that serve it together, as told or as typed."""
        return max(self.nodes, self.number("nnodes", 1))

    @property
    def kv_dtype(self) -> str:
        """Type of the KV cache as asked for, empty for the default."""
        dtype = self.word("kv-cache-dtype")
        return "" if dtype == "auto" else dtype

    @property
    def attention(self) -> str:
        """Attention backend as asked for, by option or by the variable of old versions; empty for vLLM's choice."""
        backend = self.word("attention-backend")
        if not backend and self.before("0.15.0"):
            backend = self.env.get("VLLM_ATTENTION_BACKEND", "").lower()
        return "" if backend == "auto" else backend

    @property
    def mla(self) -> bool:
        """Whether its attention is compressed as DeepSeek's is."""
        return bool(self.text.get("kv_lora_rank"))

    @property
    def sparse_mla(self) -> bool:
        """Whether it attends to an index of tokens, as DeepSeek V3.2 and V4 do."""
        return bool(self.text.get("index_topk")) or str(self.config.get("model_type")) in (
            "deepseek_v32",
            "deepseek_v4",
            "glm_moe_dsa",
        )

    @cached_property
    def head_sizes(self) -> set[int]:
        """Head sizes of its attention layers, empty if config.json does not tell."""
        head_size, heads, width = (self.text.get(key) for key in ("head_dim", "num_attention_heads", "hidden_size"))
        if not head_size and isinstance(heads, int) and isinstance(width, int) and heads:
            head_size = width // heads
        return {size for size in (head_size, self.text.get("global_head_dim")) if isinstance(size, int)}

    @property
    def kv_scales(self) -> bool:
        """Whether the checkpoint was calibrated for an FP8 KV cache."""
        return any(self.quantization.get(key) for key in ("kv_cache_scheme", "kv_cache_quant_algo"))

    @property
    def weight_only(self) -> bool:
        """Whether only the weights of a compressed-tensors or ModelOpt checkpoint are quantised."""
        return is_weight_only(self.quantization)

    @property
    def uses_ray(self) -> bool:
        """Whether the Ray executor was asked for."""
        return "ray" in (self.word("distributed-executor-backend"), (self.executor or "").lower())


@lru_cache(maxsize=1024)  # the same word is looked up again after every repair
def sure_spelling(word: str, names: tuple[str, ...]) -> str | None:
    """Return the name that C(word) misspells; C(None) if no name is near, or two are."""
    plain = {_letters(name): name for name in names}
    same = plain.get(_letters(word))
    if same:
        return same
    close = difflib.get_close_matches(_letters(word), list(plain), n=2, cutoff=0.86)
    return plain[close[0]] if len(close) == 1 else None


def _letters(word: str) -> str:
    return re.sub(r"[-_\s]", "", word.lower())


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


# --- rules --------------------------------------------------------------------------------------------------------

Hits = Iterator[Mapping[str, Any]]
Check = Callable[[Any], object]
"""A generator of hits, or a condition."""
FIRES: dict[str, Any] = {}


@dataclass(frozen=True)
class Change:
    """One step of a repair that keeps the intended meaning: set C(key) of C(where) to C(value), or remove it if that is None.

    where: C(args), C(env), or C(command) for mistakes that the normal form of a command line corrects.
    """

    where: str
    key: str
    value: Any = None


@dataclass(frozen=True)
class Rule:
    """A check of a launch (family U: of a unit) with the texts of its finding.

    message, fix and vllm_error are format strings for the mappings that C(check) yields, one for each time the rule
    fires; a mapping may also hold C(changes), the C(Change)s that repair the launch, and C(details) of the finding. needs_version: skip
    the rule while the version is unknown. about: the text of docs/rules.md if the message consists of placeholders.
    """

    id: str
    severity: str
    title: str
    message: str
    fix: str
    source: str
    check: Check
    vllm_error: str = ""
    needs_version: bool = False
    about: str = ""

    def judge(self, launch: Any) -> list[tuple[Finding, tuple[Change, ...]]]:
        """Return the findings about one launch, each with the changes that repair it."""
        if self.needs_version and launch.version is None:
            return []
        result = self.check(launch)
        hits = result if isinstance(result, Iterator) else [FIRES] if result else []
        common = {"version": launch.version, "image": launch.image} if isinstance(launch, Launch) else {}
        return [
            (
                Finding(
                    rule=self.id,
                    severity=self.severity,
                    message=self.message.format(**values),
                    fix=self.fix.format(**values),
                    source=self.source,
                    vllm_error=self.vllm_error.format(**values),
                    details=str(values.get("details") or ""),
                    basis="probed" if self.needs_version and launch.probed else "inventory",
                ),
                tuple(values.get("changes") or ()),
            )
            for values in ({**common, **hit} for hit in hits)
        ]


REGISTERED: list[Rule] = []
"""Every rule, in the order in which the files were read."""


def rule(
    severity: str,
    id: str,
    title: str,
    message: str,
    fix: str,
    source: str = PACKAGES,
    vllm_error: str = "",
    needs_version: bool = False,
    about: str = "",
    when: Callable[[Launch], object] | None = None,
) -> Callable[[Check], Check]:
    """Register a rule: it fires C(when) a launch is so, or as often as the decorated function yields.

    :param severity: C(error), C(warning) or C(info)
    :param id: C(SPK) and three digits, which never change; C(SPKU) and two for the systemd unit
    :param message: what is wrong and why, with the names of figures in braces
    :param source: of the knowledge, such as a package or a report
    :param when: the condition of a rule whose texts need no figures but version and image, or its hits
    """

    def register(check: Check) -> Check:
        REGISTERED.append(Rule(id, severity, title, message, fix, source, check, vllm_error, needs_version, about))
        return check

    if when:
        register(when)
    return register


error, warning, info = (partial(rule, severity) for severity in SEVERITIES)


def numbers(text: str) -> list[int]:
    """Return the parts of a dotted version."""
    return [int(part) for part in text.split(".") if part.isdigit()]


def meets(installed: str, requirement: str) -> bool:
    """Tell whether a package's version satisfies a requirement of vLLM: C(<5,>=4.56.0), C([cgraph]>=2.48.0)."""
    version_parts = numbers(installed.replace("+", ".+"))
    for part in re.sub(r"^\[[^]]*\]", "", requirement).split(","):
        match = re.fullmatch(r"\s*(==|!=|>=|<=|>|<)\s*([\w.*+]+)\s*", part)
        if match is None:
            continue
        sign, bound = match.groups()
        limit_parts = numbers(bound)
        width = len(limit_parts) if bound.endswith(".*") else max(len(version_parts), len(limit_parts))
        padded_version, padded_limit = ([*parts, *[0] * width][:width] for parts in (version_parts, limit_parts))
        same = padded_version == padded_limit and ("post" not in f"{installed}{bound}" or installed == bound)
        held = {
            "==": same,
            "!=": not same,
            ">=": padded_version >= padded_limit,
            "<=": padded_version <= padded_limit,
            ">": padded_version > padded_limit,
            "<": padded_version < padded_limit,
        }
        if not held[sign]:
            return False
    return True
