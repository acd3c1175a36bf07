# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Will this vLLM launch start on a DGX Spark, and will it do what its author meant?

C(check_launch) answers for one launch. Everything it can say is a C(Rule) in C(RULES): an id that never changes, a
severity, a message, a fix and the source of the knowledge. A rule that lacks a fact keeps silent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils import catalogue, image_catalogue, launch
from ansible_collections.dgxspark.vllm.plugins.module_utils.catalogue import Version, version
from ansible_collections.dgxspark.vllm.plugins.module_utils.findings import Finding, has_errors

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
}
"""First digit of a rule's number to what the family is about."""

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
GIVEN, PROBED, CATALOGUE, UNKNOWN = "given", "probed", "catalogue", "unknown"

# What vLLM's own documents and packages are called below.
_PARSER = "vLLM's own parser, compared on 0.15.1, 0.19.0, 0.23.0 and 0.33.0"
_PACKAGES = "the vLLM packages, read version by version"
_SELECTION = "vLLM's backend selection, run for compute capability 12.1"
_DUO = "report on a pair of Sparks with Qwen3.6 and Gemma 4, 2026"


# --- the launch under test ----------------------------------------------------------------------------------------


@dataclass
class Launch:
    """One launch with everything the rules look at.

    image: the reference as given. entry: its catalogue entry or C({}). version: C(None) when it is not known.
    args: normalised. config, quant_config: the model's, C({}) when not given. nodes: Sparks that serve it together.
    """

    image: str
    entry: Mapping[str, Any]
    version: Version | None
    entrypoint: str
    entrypoint_known: bool
    args: Mapping[str, Any]
    problems: list[launch.Problem]
    env: Mapping[str, str]
    repo: str
    config: Mapping[str, Any]
    quant_config: Mapping[str, Any]
    driver: str | None = None
    nodes: int = 1
    executor: str | None = None
    argv: list[str] = field(default_factory=list)

    def before(self, bound: str) -> bool:
        """Tell whether the version is known and older than C(bound).

        A development build may already be the next minor release in all but name, so it is taken for that.
        """
        return self.version is not None and catalogue.at_most(self.version) < version(bound)

    def within(self, first: str, bound: str) -> bool:
        """Tell whether the version is known, C(first) or newer, and older than C(bound)."""
        return self.version is not None and version(first) <= self.version and self.before(bound)

    def lacks(self, table: str, name: str) -> bool:
        """Tell whether the version is known not to have a name of C(catalogue_data.NAMES)."""
        return name not in self.entry.get("features", ()) and catalogue.has(table, name, self.version) is False

    def missing(self, table: str, name: str, key: str = "name") -> dict[str, Any]:
        """Describe a name that the version lacks: C(key), version, span and fix for a rule's texts."""
        known = catalogue.names(table)
        span = known.get(name)
        near = catalogue.nearest(name, (other for other in known if not self.lacks(table, other)))
        fix = f"Did you mean {near}?" if near else "Take it out."
        return {
            key: name,
            "version": self.version,
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

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        """The speculative configuration, empty without one."""
        value = self.args.get("speculative-config")
        found = dict(value) if isinstance(value, Mapping) else {}
        for key, option in (
            ("method", "spec-method"),
            ("model", "spec-model"),
            ("num_speculative_tokens", "spec-tokens"),
        ):
            if self.args.get(option) is not None:
                found.setdefault(key, self.args[option])
        return found

    @property
    def method(self) -> str:
        """The speculative method, empty if there is none or vLLM is left to find out."""
        return str(self.spec.get("method") or "")

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
        return [str(name) for name in self.config.get("architectures") or []]

    @property
    def hybrid(self) -> bool:
        """Whether it mixes attention with state-space or linear-attention layers."""
        layers = self.text.get("layer_types") or self.text.get("layers_block_type") or []
        return (
            any(kind in ("linear_attention", "mamba", "mamba2") for kind in layers)
            or bool(self.text.get("hybrid_override_pattern"))
            or str(self.config.get("model_type")) in HYBRID_MODEL_TYPES
        )

    @property
    def moe(self) -> bool:
        """Whether it has experts."""
        return any(self.text.get(key) for key in ("num_experts", "n_routed_experts", "num_local_experts"))

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
        own = self.config.get("quantization_config") or self.text.get("quantization_config")
        if isinstance(own, Mapping) and own:
            return own
        other = self.quant_config.get("quantization")
        if isinstance(other, Mapping) and other:
            return {"quant_method": "modelopt", **other}
        return self.quant_config

    @property
    def checkpoint(self) -> str:
        """Name of the checkpoint's quantisation as vLLM resolves it, empty if it has none or is not known."""
        method = str(self.quantization.get("quant_method") or "").lower().replace("_", "-")
        if method == "modelopt":
            algorithm = str(self.quantization.get("quant_algo") or "").upper()
            return {"NVFP4": "modelopt_fp4", "MIXED_PRECISION": "modelopt_mixed", "MXFP8": "modelopt_mxfp8"}.get(
                algorithm, "modelopt"
            )
        return method

    @property
    def unquantised(self) -> bool:
        """Whether the weights are known to stay as they are."""
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
            return "nvfp4"
        if self.checkpoint == "fp8" and self.quantization.get("weight_block_size"):
            return "fp8_block"
        return "mxfp4" if self.checkpoint == "mxfp4" else ""

    @property
    def prefix_caching(self) -> bool:
        """Whether prefixes are cached, by option or by that version's default."""
        asked = self.args.get("enable-prefix-caching")
        if asked is not None:
            return bool(asked)
        return not self.hybrid or (self.version is not None and self.version >= version("0.26.0"))

    @property
    def world(self) -> int:
        """GPUs that one replica needs."""
        return self.number("tensor-parallel-size", 1) * self.number("pipeline-parallel-size", 1)

    @property
    def uses_ray(self) -> bool:
        """Whether the Ray executor was asked for."""
        return "ray" in (self.word("distributed-executor-backend"), (self.executor or "").lower())


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


# --- rules --------------------------------------------------------------------------------------------------------

Hits = Iterator[Mapping[str, Any]]
_FIRES: dict[str, Any] = {}


@dataclass(frozen=True)
class Rule:
    """One thing that C(check_launch) can say.

    message, fix and vllm_error are format strings for the mappings that C(check) yields, one for each time the rule
    fires. needs_version: it keeps silent while the version is not known. about: what the rules' page says where the
    message is all placeholders.
    """

    id: str
    severity: str
    title: str
    message: str
    fix: str
    source: str
    check: Callable[[Launch], Hits]
    vllm_error: str = ""
    needs_version: bool = False
    about: str = ""

    def findings(self, of: Launch) -> list[Finding]:
        """Judge one launch."""
        if self.needs_version and of.version is None:
            return []
        return [
            Finding(
                rule=self.id,
                severity=self.severity,
                message=self.message.format(**values),
                fix=self.fix.format(**values),
                source=self.source,
                vllm_error=self.vllm_error.format(**values),
            )
            for values in self.check(of)
        ]


_rules: list[Rule] = []


def _rule(
    id: str,
    severity: str,
    title: str,
    message: str,
    fix: str,
    source: str,
    vllm_error: str = "",
    needs_version: bool = False,
    about: str = "",
) -> Callable[[Callable[[Launch], Hits]], Callable[[Launch], Hits]]:
    """Register the decorated function as a rule."""

    def register(check: Callable[[Launch], Hits]) -> Callable[[Launch], Hits]:
        _rules.append(Rule(id, severity, title, message, fix, source, check, vllm_error, needs_version, about))
        return check

    return register


def _problems(of: Launch, *kinds: str) -> Hits:
    for problem in of.problems:
        if problem.kind in kinds:
            yield {"option": problem.option, "detail": problem.detail, "fix": problem.fix, "error": problem.vllm_error}


# 1xx: launch line

_NEVER = "--speculative-disable-by-batch-size"


@_rule(
    "SPK101",
    "error",
    "Unknown option",
    "{option} {detail}; vLLM would stop at once.",
    "{fix}",
    _PARSER,
    "{error}",
    needs_version=True,
    about="An option that this vLLM does not have, not yet or no more; vLLM stops at once. The finding names the versions "
    "that have it, or the nearest option.",
)
def _unknown_option(of: Launch) -> Hits:
    for hit in _problems(of, "unknown"):
        if hit["option"] != _NEVER:
            yield hit


@_rule(
    "SPK102",
    "error",
    "Value behind a flag",
    "{option} {detail}; vLLM's boolean options stand alone.",
    "{fix}",
    _PARSER,
    "{error}",
    about="A value behind a boolean option, as in --enforce-eager true; vLLM's boolean options stand alone.",
)
def _value_to_switch(of: Launch) -> Hits:
    yield from _problems(of, "value_to_switch")


@_rule(
    "SPK103",
    "error",
    "vllm serve twice",
    "vllm serve {detail}: {why}.",
    "Pass {instead} behind the image name.",
    "entrypoints of the images; vLLM's own parser",
    "{error}",
    about="vllm serve is typed where the entrypoint of the image is vllm serve already, or is typed twice: its second word "
    "would be taken for the model.",
)
def _doubled(of: Launch) -> Hits:
    for hit in _problems(of, "doubled"):
        yield {**hit, "why": "its second word would be taken for the model", "instead": "vllm serve once at most"}
    if of.argv[:2] == ["vllm", "serve"] and of.entrypoint == "serve" and of.entrypoint_known:
        yield {
            "detail": "is typed and is the image's entrypoint too",
            "why": "the entrypoint of this image family is vllm serve",
            "instead": "only the model and its options",
            "error": f"unrecognized arguments: serve {' '.join(of.argv[2:3])}".rstrip(),
        }


@_rule(
    "SPK104",
    "error",
    "Value missing or of the wrong kind",
    "{option} {detail}.",
    "{fix}",
    _PARSER,
    "{error}",
    about="An option without the value it needs, a text where a number belongs, JSON that is none, or a word too many.",
)
def _bad_value(of: Launch) -> Hits:
    yield from _problems(of, "no_value", "bad_value", "extra_word")


@_rule(
    "SPK105",
    "error",
    "Ambiguous abbreviation",
    "{option} {detail}; vLLM accepts an abbreviation only if it is unique.",
    "{fix}",
    _PARSER,
    "{error}",
    about="An abbreviation that several options begin with; vLLM accepts one only if it is unique.",
)
def _ambiguous(of: Launch) -> Hits:
    yield from _problems(of, "ambiguous")


@_rule(
    "SPK106",
    "error",
    "Key of the service among its args",
    "'{option}' {detail}, so that unit, probes and plan agree on it.",
    "{fix}",
    "design of this collection",
    about="host, port, served-model-name, model or name stands among the args. They belong to the service, so that unit, "
    "probes and plan agree on them.",
)
def _service_key(of: Launch) -> Hits:
    yield from _problems(of, "service_key")


@_rule(
    "SPK107",
    "info",
    "Model given as --model",
    "--model {detail}; vllm serve still takes that, with a warning that it will go away.",
    "{fix}",
    _PARSER,
)
def _model_option(of: Launch) -> Hits:
    yield from _problems(of, "model_option")


@_rule(
    "SPK108",
    "error",
    "Value that is not on offer",
    "{option} {detail}.",
    "{fix}",
    _PARSER,
    "{error}",
    about="A value that the parser of the newest version read does not offer; older versions are judged by rules of their "
    "own.",
)
def _bad_choice(of: Launch) -> Hits:
    yield from _problems(of, "bad_choice")


@_rule(
    "SPK109",
    "error",
    "--speculative-disable-by-batch-size",
    "--speculative-disable-by-batch-size was never an option of vllm serve, in no version; the launch fails.",
    "Take it out. {instead}",
    _PACKAGES,
    "{error}",
)
def _disable_by_batch_size(of: Launch) -> Hits:
    for hit in _problems(of, "unknown"):
        if hit["option"] == _NEVER:
            if of.version is None:
                instead = "Up to 0.16.0 and again from 0.24.0 --speculative-config has a key for it."
            elif of.version < version("0.17.0"):
                instead = 'The key "disable_by_batch_size" of --speculative-config does this.'
            elif of.version < version("0.24.0"):
                instead = f"vLLM {of.version} has nothing like it."
            else:
                instead = 'The key "num_speculative_tokens_per_batch_size" of --speculative-config does this.'
            yield {**hit, "instead": instead}


@_rule(
    "SPK110",
    "warning",
    "Option of no vLLM known",
    "{option} {detail}. Which vLLM will read it is not known, so it is passed on.",
    "{fix}",
    _PARSER,
    "{error}",
    about="An option that no version read has, in an image whose version is not known. A fork may have it, so it is "
    "passed on.",
)
def _unknown_everywhere(of: Launch) -> Hits:
    if of.version is None:
        for hit in _problems(of, "unknown"):
            if hit["option"] != _NEVER:
                yield hit


# 2xx: environment

_REPLACED_VARIABLES = {
    "VLLM_ATTENTION_BACKEND": "--attention-backend",
    "VLLM_FLASHINFER_MOE_BACKEND": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP4": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP8": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP16": "--moe-backend",
    "VLLM_MXFP4_USE_MARLIN": "--moe-backend marlin",
    "VLLM_TEST_FORCE_FP8_MARLIN": "--moe-backend marlin",
    "VLLM_NVFP4_GEMM_BACKEND": "--linear-backend",
    "VLLM_FP8_MOE_BACKEND": "--moe-backend (this variable never existed)",
    "VLLM_MXFP4_BACKEND": "--moe-backend marlin (this variable never existed)",
}
# Set by NGC images themselves; vLLM warns of them, their user cannot help it.
_SET_BY_IMAGES = {"VLLM_VERSION", "VLLM_FLASH_ATTN_SRC_DIR"}


def _unknown_variables(of: Launch) -> list[str]:
    return [
        name
        for name in sorted(of.env)
        if name.startswith("VLLM_") and name not in _SET_BY_IMAGES and of.lacks("environment", name[5:])
    ]


@_rule(
    "SPK201",
    "warning",
    "VLLM_USE_V1",
    "VLLM_USE_V1 does nothing in vLLM {version}: it went with 0.11.1, there is only the V1 engine.",
    "Take VLLM_USE_V1 out of the environment.",
    _PACKAGES,
    needs_version=True,
)
def _use_v1(of: Launch) -> Hits:
    if "VLLM_USE_V1" in _unknown_variables(of):
        yield {"version": of.version}


@_rule(
    "SPK202",
    "warning",
    "VLLM_FLASHINFER_MOE_BACKEND",
    "VLLM_FLASHINFER_MOE_BACKEND={value} has no effect here: {why}.",
    "Take it out; {instead}.",
    f"{_PACKAGES}; {_SELECTION}",
    needs_version=True,
)
def _flashinfer_moe_backend(of: Launch) -> Hits:
    value = of.env.get("VLLM_FLASHINFER_MOE_BACKEND")
    if value is None:
        return
    instead = (
        "--moe-backend chooses the kernel"
        if not of.before("0.17.0")
        else "VLLM_USE_FLASHINFER_MOE_FP4 and _FP8 choose the kernels"
    )
    if not of.before("0.24.0"):
        yield {"value": value, "why": f"vLLM {of.version} does not know it", "instead": instead}
    elif value == "latency":
        yield {
            "value": value,
            "why": "latency kernels are for sm_100, on sm_121 vLLM takes CUTLASS",
            "instead": instead,
        }
    elif not any(of.truthy(f"VLLM_USE_FLASHINFER_MOE_{kind}") for kind in ("FP4", "FP8", "FP16")):
        yield {
            "value": value,
            "why": "it is read only together with VLLM_USE_FLASHINFER_MOE_FP4, _FP8 or _FP16",
            "instead": instead,
        }


@_rule(
    "SPK203",
    "warning",
    "Unknown VLLM_ variable",
    "{name} is no environment variable of vLLM {version}{span}; it does nothing.",
    "{fix}",
    _PACKAGES,
    "Unknown vLLM environment variable detected: {name}",
    needs_version=True,
)
def _unknown_variable(of: Launch) -> Hits:
    for name in _unknown_variables(of):
        if name not in ("VLLM_USE_V1", "VLLM_FLASHINFER_MOE_BACKEND"):
            hit = of.missing("environment", name[5:])
            instead = _REPLACED_VARIABLES.get(name)
            fix = hit["fix"].replace("Did you mean ", "Did you mean VLLM_")
            yield {**hit, "name": name, "fix": f"Use {instead}." if instead else "Take it out." if hit["span"] else fix}


@_rule(
    "SPK204",
    "warning",
    "FlashInfer MoE variables on their way out",
    "{name} still works in vLLM {version} but is deprecated; 0.24.0 no longer reads it.",
    "Use --moe-backend.",
    _PACKAGES,
    needs_version=True,
)
def _deprecated_variable(of: Launch) -> Hits:
    if of.within("0.22.0", "0.24.0"):
        for name in sorted(of.env):
            if name.startswith("VLLM_USE_FLASHINFER_MOE_") and name not in _unknown_variables(of):
                yield {"name": name, "version": of.version}


@_rule(
    "SPK205",
    "error",
    "V2 model runner forced where it cannot run",
    "VLLM_USE_V2_MODEL_RUNNER=1 with {what} fails in vLLM {version}.",
    "Take VLLM_USE_V2_MODEL_RUNNER out: vLLM uses that runner by itself where it can.",
    _PACKAGES,
    "{error}",
    needs_version=True,
)
def _forced_runner(of: Launch) -> Hits:
    if not of.truthy("VLLM_USE_V2_MODEL_RUNNER") or of.before("0.12.0"):
        return
    limits = {"ngram": "0.32.0", "ngram_gpu": "0.32.0", "draft_model": "0.31.0", "suffix": "0.33.1"}
    if of.method in limits and of.within("0.12.0", limits[of.method]):
        yield {"what": f"speculative method {of.method}", "version": of.version, "error": ""}
    if of.hybrid and of.prefix_caching and of.within("0.21.0", "0.25.0"):
        yield {
            "what": "prefix caching on a hybrid model",
            "version": of.version,
            "error": "Model Runner V2 has not yet supported mamba_cache_mode='align'",
        }


@_rule(
    "SPK206",
    "error",
    "Strict environment check with a variable vLLM does not know",
    "--fail-on-environ-validation stops the start: {names} is not known to this vLLM.",
    "Take out --fail-on-environ-validation{or_names}.",
    _PACKAGES,
    "Unknown vLLM environment variable detected: {names}",
    needs_version=True,
)
def _strict_environment(of: Launch) -> Hits:
    if of.args.get("fail-on-environ-validation") is not True:
        return
    names = _unknown_variables(of)
    if names:
        yield {"names": ", ".join(names), "or_names": " or these variables"}
    elif of.entry.get("repository") == "nvcr.io/nvidia/vllm" and not of.before("0.17.0"):
        yield {"names": "VLLM_VERSION, which NGC images set themselves,", "or_names": ""}


# 3xx: image and platform


@_rule(
    "SPK301",
    "error",
    "Image built for CUDA 12",
    "{image} is built for CUDA {cuda}. Such builds carry their FP8 and FP4 kernels for sm_120a only, which GB10 (sm_121) "
    "cannot load.",
    "Use a CUDA 13 build: {instead}.",
    "kernels inside the published aarch64 packages; reports to vllm-project/vllm",
)
def _cuda12(of: Launch) -> Hits:
    cuda = str(of.entry.get("cuda") or "")
    if cuda == "12" or cuda.startswith("12."):
        tag = str(of.entry.get("tag") or "")
        modern = of.version is not None and of.version >= version("0.20.0")
        if re.search(r"-cu12\d", tag):
            instead = re.sub(r"-cu12\d", "" if modern and tag.startswith("v") else "-cu130", tag)
        elif re.fullmatch(r"gemma4|v\d+\.\d+\.\d+", tag):
            instead = f"{tag}-cu130 where it exists, or v0.20.0 and newer"
        else:
            instead = "v0.20.0 and newer"
        yield {"image": of.image, "cuda": cuda, "instead": instead}


@_rule(
    "SPK302",
    "warning",
    "Moving tag",
    "{image} is pushed again and again; two hosts, or the same host next month, get different builds.",
    "Pin it: {repository}@sha256:..., or a release tag.",
    "tags of the publishers",
)
def _moving_tag(of: Launch) -> Hits:
    if of.entry.get("digest") or "@" in of.image:
        return
    repository, tag, _digest = image_catalogue.split_image(of.image)
    if of.entry.get("moving") or (not of.entry and tag in (None, "latest", "nightly", "main")):
        yield {"image": of.image, "repository": repository}


@_rule(
    "SPK303",
    "error",
    "Image without an arm64 build",
    "{image} has no arm64 build; a DGX Spark is arm64.",
    "Use a tag with an arm64 build.",
    "manifests of the image",
)
def _no_arm64(of: Launch) -> Hits:
    if of.entry.get("arm64") is False:
        yield {"image": of.image}


def _defects(of: Launch) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Yield each known defect of the image and whether this launch runs into it."""
    for defect in of.entry.get("defects") or []:
        hits = {
            None: True,
            "tools": of.args.get("enable-auto-tool-choice") is True,
            "gemma4_nvfp4_moe": of.gemma4 and of.expert_format == "nvfp4",
        }
        yield defect, hits.get(defect.get("when"), True)


@_rule(
    "SPK304",
    "error",
    "Image that is broken as shipped",
    "{image}: {text}.",
    "{fix}",
    "reports to the publisher of the image",
)
def _broken_image(of: Launch) -> Hits:
    for defect, hits in _defects(of):
        if hits:
            yield {"image": of.image, "text": defect["text"], "fix": defect.get("fix", "Use another image.")}


@_rule(
    "SPK305",
    "warning",
    "Image with a defect that other launches meet",
    "{image}: {text}. This launch does not ask for it.",
    "{fix}",
    "reports to the publisher of the image",
)
def _limited_image(of: Launch) -> Hits:
    for defect, hits in _defects(of):
        if not hits and defect.get("when") == "tools":
            yield {"image": of.image, "text": defect["text"], "fix": defect.get("fix", "Use another image.")}


@_rule(
    "SPK306",
    "warning",
    "Entrypoint not known",
    "Nothing is known about the entrypoint of {image}; it is taken for one that runs vllm serve itself.",
    "Say which it is: entrypoint serve or passthrough.",
    "catalogue of images",
)
def _entrypoint_unknown(of: Launch) -> Hits:
    if not of.entrypoint_known:
        yield {"image": of.image}


@_rule(
    "SPK307",
    "warning",
    "vLLM version not known",
    "Which vLLM is in {image} is not known, so {count} rules were not judged ({rules}).",
    "Say it (vllm_version), or let the image be asked once it is on a host.",
    "catalogue of images",
)
def _version_unknown(of: Launch) -> Hits:
    if of.version is None:
        skipped = [rule.id for rule in RULES if rule.needs_version]
        yield {"image": of.image, "count": len(skipped), "rules": ", ".join(skipped)}


# Driver branch that runs a CUDA release natively, where start-up banners showed it.
_NATIVE_DRIVERS = {"13.0": "580", "13.1": "590.44", "13.4": "615"}


def _driver_gap(of: Launch) -> dict[str, str] | None:
    cuda = str(of.entry.get("cuda") or "")
    native = str(of.entry.get("native_driver") or _NATIVE_DRIVERS.get(cuda) or "")
    if not native or not of.driver or not re.fullmatch(r"[\d.]+", of.driver):
        return None
    if _numbers(of.driver)[: len(_numbers(native))] >= _numbers(native):
        return None
    return {"image": of.image, "cuda": cuda, "native": native, "driver": of.driver}


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".") if part]


def _forward_compatible(of: Launch) -> bool:
    ngc = of.entry.get("repository") == "nvcr.io/nvidia/vllm" and of.entrypoint == "passthrough"
    return ngc and of.driver is not None and _numbers(of.driver)[:1] >= [580]


@_rule(
    "SPK308",
    "warning",
    "Driver older than the image's CUDA",
    "{image} brings CUDA {cuda}, which wants driver {native}; this host has {driver}. Kernels compiled at run time "
    "may fail with cudaErrorUnsupportedPtxVersion, sometimes only at the first token.",
    "Use an image with CUDA 13.0, or update driver and firmware together.",
    "NVIDIA's release notes; start-up banners of the images",
)
def _old_driver(of: Launch) -> Hits:
    gap = _driver_gap(of)
    if gap and not _forward_compatible(of):
        yield gap


@_rule(
    "SPK309",
    "info",
    "Driver served by forward compatibility",
    "{image} brings CUDA {cuda}, which wants driver {native}; on this host's {driver} it runs through the forward "
    "compatibility that NVIDIA's entrypoint switches on.",
    "Leave the image's entrypoint as it is.",
    "start-up banners of the images on 580 drivers",
)
def _forward_compatibility(of: Launch) -> Hits:
    gap = _driver_gap(of)
    if gap and _forward_compatible(of):
        yield gap


@_rule(
    "SPK310",
    "warning",
    "NVIDIA's entrypoint replaced",
    "{image} is started without NVIDIA's own entrypoint, which is what enables CUDA forward compatibility on 580 "
    "drivers; without it cudaErrorUnsupportedPtxVersion was reported.",
    "Leave the entrypoint alone and pass vllm serve behind the image name.",
    "reports on NGC images",
)
def _ngc_entrypoint(of: Launch) -> Hits:
    if of.entry.get("repository") == "nvcr.io/nvidia/vllm" and of.entrypoint == "serve":
        yield {"image": of.image}


@_rule(
    "SPK311",
    "warning",
    "Wrong idea of free memory",
    "vLLM {version} does not know GB10's unified memory: it counts page cache as used, and starts fail or get too "
    "little KV cache.",
    "Use vLLM 0.11.1 or newer, or drop the page cache before each start.",
    _PACKAGES,
    needs_version=True,
)
def _memory_accounting(of: Launch) -> Hits:
    if of.before("0.11.1"):
        yield {"version": of.version}


# 4xx: model and quantisation


@_rule(
    "SPK401",
    "error",
    "Architecture that this vLLM does not know",
    "vLLM {version} does not know the architecture {architecture} ({span}).",
    "Use an image whose vLLM has it.",
    _PACKAGES,
    "Model architectures ['{architecture}'] are not supported for now.",
    needs_version=True,
)
def _architecture(of: Launch) -> Hits:
    known = catalogue.names("architectures")
    if not of.architectures or of.word("model-impl") == "transformers":
        return
    # vLLM takes the first that it knows; a name in no version at all may still run through transformers.
    if all(name in known and of.lacks("architectures", name) for name in of.architectures):
        name = of.architectures[0]
        yield {"version": of.version, "architecture": name, "span": known[name].text()}


# Methods of one family read each other's checkpoints; what is not listed is not judged.
_QUANTISATION_FAMILIES = {
    "modelopt": "modelopt",
    "modelopt_fp4": "modelopt",
    "modelopt_mixed": "modelopt",
    "modelopt_mxfp8": "modelopt",
    "awq": "awq",
    "awq_marlin": "awq",
    "auto_awq": "awq",
    "gptq": "gptq",
    "gptq_marlin": "gptq",
    "auto_gptq": "gptq",
    "mxfp4": "mxfp4",
    "gpt_oss_mxfp4": "mxfp4",
    "fp8": "fp8",
    "compressed-tensors": "compressed-tensors",
}


@_rule(
    "SPK402",
    "error",
    "Quantisation other than the checkpoint's",
    "--quantization {asked} does not fit: the checkpoint is quantised as {checkpoint}.",
    "Take --quantization out; vLLM reads it from the checkpoint.",
    _PACKAGES,
    "Quantization method specified in the model config ({checkpoint}) does not match the quantization method "
    "specified in the `quantization` argument ({asked}).",
)
def _quantisation_mismatch(of: Launch) -> Hits:
    asked = str(of.args.get("quantization") or "")
    mine, theirs = _QUANTISATION_FAMILIES.get(asked), _QUANTISATION_FAMILIES.get(of.checkpoint)
    if mine and theirs and mine != theirs:
        yield {"asked": asked, "checkpoint": of.checkpoint}


@_rule(
    "SPK403",
    "error",
    "Context longer than the model's",
    "--max-model-len {asked} is more than the model's {limit}.",
    "Set max-model-len to {limit} or less, or extend the model (rope parameters through --hf-overrides and "
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1).",
    _PACKAGES,
    "User-specified max_model_len ({asked}) is greater than the derived max_model_len "
    "(max_position_embeddings={limit} or model_max_length=None in model's config.json).",
)
def _too_long(of: Launch) -> Hits:
    limit, asked = of.text.get("max_position_embeddings"), of.args.get("max-model-len")
    scaled = any(
        isinstance(of.text.get(key), Mapping) and of.text[key].get("factor")
        for key in ("rope_scaling", "rope_parameters")
    )
    if (
        isinstance(limit, int)
        and isinstance(asked, int)
        and asked > limit
        and not scaled
        and of.args.get("hf-overrides") is None
        and not of.truthy("VLLM_ALLOW_LONG_MAX_MODEL_LEN")
    ):
        yield {"asked": asked, "limit": limit}


@_rule(
    "SPK404",
    "error",
    "Quantisation that this vLLM does not have",
    "{what} {name} is not in vLLM {version}{span}.",
    "{fix}",
    _PACKAGES,
    needs_version=True,
)
def _quantisation_unknown(of: Launch) -> Hits:
    asked = str(of.args.get("quantization") or "")
    if asked and of.lacks("quantizations", asked):
        yield {"what": "--quantization", **of.missing("quantizations", asked)}
    # A checkpoint may spell its method in ways that vLLM maps by itself: only names that come and go are judged.
    elif not asked and of.checkpoint in catalogue.names("quantizations") and of.lacks("quantizations", of.checkpoint):
        yield {"what": "The checkpoint's quantisation", **of.missing("quantizations", of.checkpoint)}


@_rule(
    "SPK405",
    "warning",
    "NVFP4 Gemma 4 MoE on a loader that cannot map its scales",
    "vLLM 0.19.0 cannot map the per-expert NVFP4 scales of this Gemma 4 and stops with a KeyError unless its loader "
    "is patched.",
    "Use vLLM 0.20.0 or newer, without a patched loader.",
    _PACKAGES,
    needs_version=True,
)
def _gemma4_scales(of: Launch) -> Hits:
    if of.within("0.19.0", "0.19.1") and of.gemma4 and of.expert_format == "nvfp4":
        yield _FIRES


# 5xx: kernels of sm_121


@_rule(
    "SPK501",
    "error",
    "FP8 KV cache with FLASH_ATTN",
    "FLASH_ATTN takes no FP8 KV cache on sm_121, in no version.",
    "Set attention-backend to FLASHINFER or TRITON_ATTN, or leave it out.",
    _SELECTION,
    "No valid attention backend found",
)
def _fp8_flash_attn(of: Launch) -> Hits:
    if of.word("attention-backend") == "flash_attn" and of.word("kv-cache-dtype").startswith("fp8"):
        yield _FIRES


@_rule(
    "SPK502",
    "error",
    "NVFP4 KV cache before 0.32.0",
    "An NVFP4 KV cache does not work on sm_121 in vLLM {version}; it came with 0.32.0.",
    "Set kv-cache-dtype to fp8, or use vLLM 0.32.0 or newer.",
    _SELECTION,
    needs_version=True,
)
def _nvfp4_kv(of: Launch) -> Hits:
    if of.word("kv-cache-dtype").startswith("nvfp4") and of.before("0.32.0"):
        yield {"version": of.version}


# Backends that refuse these experts on sm_121: format to backend to (first version concerned, first one that works).
_REFUSED_MOE: dict[str, dict[str, tuple[str, str | None]]] = {
    "nvfp4": {
        "flashinfer_trtllm": ("0.17.0", None),
        "flashinfer_cutedsl": ("0.17.0", None),
        "triton": ("0.17.0", None),
        "deep_gemm": ("0.17.0", None),
    },
    "fp8_block": {
        "cutlass": ("0.17.0", None),
        "flashinfer_cutlass": ("0.17.0", None),
        "flashinfer_trtllm": ("0.17.0", None),
        "deep_gemm": ("0.17.0", "0.24.0"),
    },
    "mxfp4": {
        "flashinfer_trtllm": ("0.17.0", None),
        "flashinfer_cutlass": ("0.17.0", None),
        "flashinfer_cutedsl": ("0.17.0", None),
        "flashinfer_b12x": ("0.22.0", None),
        "b12x": ("0.29.0", None),
        "cutlass": ("0.17.0", None),
        "triton": ("0.17.0", "0.32.0"),
    },
    "bf16": {"deep_gemm": ("0.17.0", None), "marlin": ("0.17.0", "0.33.0"), "flashinfer_cutlass": ("0.17.0", "0.20.0")},
}
_WORKING_MOE = {
    "nvfp4": "flashinfer_cutlass or marlin",
    "fp8_block": "triton or marlin",
    "mxfp4": "marlin",
    "bf16": "triton",
}


@_rule(
    "SPK503",
    "error",
    "MoE kernels that refuse these experts on sm_121",
    "--moe-backend {backend} does not run {format} experts on sm_121 in vLLM {version}.",
    "Use {working}, or leave moe-backend out.",
    _SELECTION,
    needs_version=True,
)
def _moe_backend_refused(of: Launch) -> Hits:
    backend = of.word("moe-backend")
    bounds = _REFUSED_MOE.get(of.expert_format, {}).get(backend)
    if bounds and not of.before(bounds[0]) and (bounds[1] is None or of.before(bounds[1])):
        yield {
            "backend": backend,
            "format": of.expert_format,
            "version": of.version,
            "working": _WORKING_MOE[of.expert_format],
        }


@_rule(
    "SPK504",
    "error",
    "Marlin for an unquantised MTP layer",
    "--moe-backend marlin also applies to the model's own MTP layer, whose experts this checkpoint leaves "
    "unquantised; vLLM {version} refuses that.",
    "{fix}",
    _PACKAGES,
    "moe_backend='marlin' is not supported for unquantized MoE.",
    needs_version=True,
)
def _marlin_draft(of: Launch) -> Hits:
    if (
        of.word("moe-backend") == "marlin"
        and of.moe
        and of.method.endswith("mtp")
        and of.draft_unquantised
        and not of.spec.get("moe_backend")
        and of.within("0.17.0", "0.33.0")
    ):
        yield {
            "version": of.version,
            "fix": 'Add "moe_backend": "triton" to speculative-config.'
            if not of.before("0.19.0")
            else "Take moe-backend out, or use vLLM 0.19.0 or newer with a moe_backend of the draft's own.",
        }


@_rule(
    "SPK505",
    "error",
    "MoE backend that this vLLM does not have",
    "--moe-backend {backend} is not in vLLM {version}{span}.",
    "{fix}",
    _PACKAGES,
    "argument --moe-backend: invalid choice: '{backend}'",
    needs_version=True,
)
def _moe_backend_unknown(of: Launch) -> Hits:
    backend = of.word("moe-backend")
    if backend and of.lacks("moe_backends", backend) and not of.before("0.17.0"):
        yield of.missing("moe_backends", backend, "backend")


@_rule(
    "SPK506",
    "error",
    "Attention kernels without sinks for gpt-oss",
    "gpt-oss needs attention sinks; {backend} has none on sm_121 in vLLM {version}.",
    "Leave attention-backend out, or set it to TRITON_ATTN.",
    _SELECTION,
    "No valid attention backend found",
    needs_version=True,
)
def _sinks(of: Launch) -> Hits:
    backend = of.word("attention-backend")
    able = {"", "auto", "triton_attn"} | (set() if of.before("0.28.0") else {"flashinfer"})
    if of.gpt_oss and backend not in able:
        yield {"backend": backend.upper(), "version": of.version}


@_rule(
    "SPK507",
    "error",
    "KV cache type that this vLLM does not have",
    "--kv-cache-dtype {dtype} is not in vLLM {version}{span}.",
    "Use fp8 or auto.",
    _PACKAGES,
    "argument --kv-cache-dtype: invalid choice: '{dtype}'",
    needs_version=True,
)
def _kv_dtype_unknown(of: Launch) -> Hits:
    dtype = str(of.args.get("kv-cache-dtype") or "")
    if dtype and of.lacks("kv_cache_dtypes", dtype) and not dtype.startswith("nvfp4"):
        yield of.missing("kv_cache_dtypes", dtype, "dtype")


# 6xx: speculative decoding


@_rule(
    "SPK601",
    "error",
    "Speculative method that this vLLM does not have",
    "Speculative method {method} is not in vLLM {version}{span}.",
    "{fix}",
    _PACKAGES,
    needs_version=True,
)
def _method_unknown(of: Launch) -> Hits:
    if of.method and of.lacks("spec_methods", of.method):
        yield of.missing("spec_methods", of.method, "method")


@_rule(
    "SPK602",
    "error",
    "MTP for Gemma 4 before 0.21.0",
    "vLLM {version} has no MTP for Gemma 4; it would take the assistant for an ordinary draft model.",
    "Use vLLM 0.21.0 or newer, or vllm/vllm-openai:gemma4-0505-arm64-cu130.",
    _PACKAGES,
    needs_version=True,
)
def _gemma4_mtp(of: Launch) -> Hits:
    if of.gemma4 and of.method == "mtp" and of.lacks("spec_methods", "gemma4_mtp"):
        yield {"version": of.version}


@_rule(
    "SPK603",
    "warning",
    "Gemma 4's assistant as an ordinary draft model",
    "{model} is an MTP head for this Gemma 4; method draft_model runs it the slow way (40 % fewer tokens a second "
    "were measured).",
    'Set "method": "mtp" (vLLM 0.21.0 or newer, or an image gemma4-0505).',
    _DUO,
)
def _assistant_as_draft(of: Launch) -> Hits:
    model = str(of.spec.get("model") or "")
    if of.method == "draft_model" and "gemma-4" in model.lower() and model.lower().endswith("assistant"):
        yield {"model": model}


@_rule(
    "SPK604",
    "error",
    "Key of --speculative-config that this vLLM does not have",
    "--speculative-config has no key {key} in vLLM {version}{span}.",
    "{fix}",
    _PACKAGES,
    needs_version=True,
)
def _spec_key(of: Launch) -> Hits:
    given = of.args.get("speculative-config")
    for key in sorted(given) if isinstance(given, Mapping) else ():
        if of.lacks("spec_keys", str(key)):
            hit = of.missing("spec_keys", str(key), "key")
            yield {**hit, "fix": "Take the key out." if hit["span"] else hit["fix"]}


@_rule(
    "SPK605",
    "error",
    "DFlash with an FP8 KV cache before 0.24.0",
    "DFlash attends non-causally, and on sm_121 vLLM {version} has no such kernel for an FP8 KV cache.",
    "Set kv-cache-dtype to auto, or use vLLM 0.24.0 or newer.",
    _SELECTION,
    "No valid attention backend found",
    needs_version=True,
)
def _dflash_fp8(of: Launch) -> Hits:
    if of.method == "dflash" and of.word("kv-cache-dtype").startswith("fp8") and of.within("0.20.0", "0.24.0"):
        yield {"version": of.version}


@_rule(
    "SPK606",
    "warning",
    "Suffix decoding needs a package that images lack",
    "Speculative method suffix needs the package arctic-inference, which is no dependency of vLLM.",
    "Build an image with arctic-inference 0.1.1 in it, or use ngram.",
    _PACKAGES,
    "Arctic Inference is required for suffix decoding",
)
def _suffix(of: Launch) -> Hits:
    if of.method == "suffix":
        yield _FIRES


@_rule(
    "SPK607",
    "info",
    "More than one token from one MTP layer",
    "num_speculative_tokens is {tokens}, but the model has one MTP layer, which then runs several times; fewer "
    "of the later tokens are accepted.",
    "Compare with 2 on your own prompts.",
    f"vLLM's own warning; {_DUO}",
)
def _many_mtp_tokens(of: Launch) -> Hits:
    tokens = of.spec.get("num_speculative_tokens")
    if of.method == "mtp" and isinstance(tokens, int) and tokens > 2 and of.text.get("mtp_num_hidden_layers") == 1:
        yield {"tokens": tokens}


@_rule(
    "SPK608",
    "error",
    "Draft models before 0.15.1",
    "vLLM {version} lists the speculative method draft_model but cannot run it.",
    "Use vLLM 0.15.1 or newer.",
    _PACKAGES,
    "Draft model speculative decoding is not supported yet",
    needs_version=True,
)
def _draft_model(of: Launch) -> Hits:
    if of.method == "draft_model" and of.before("0.15.1"):
        yield {"version": of.version}


# 7xx: parsers and tools


# Names that people expect and that vLLM does not have under that option.
_PARSER_FIXES = {
    ("tool_parsers", "nemotron_v3"): "Use qwen3_coder; nemotron_v3 is a reasoning parser.",
    ("reasoning_parsers", "nano_v3"): "Give its file with --reasoning-parser-plugin.",
    ("reasoning_parsers", "super_v3"): "Give its file with --reasoning-parser-plugin.",
}


def _parser_unknown(of: Launch, option: str, table: str, plugin: str) -> Hits:
    name = str(of.args.get(option) or "")
    if name and not of.args.get(plugin) and of.lacks(table, name):
        hit = of.missing(table, name)
        yield {**hit, "fix": _PARSER_FIXES.get((table, name), hit["fix"])}


@_rule(
    "SPK701",
    "error",
    "Tool parser that this vLLM does not have",
    "vLLM {version} has no tool parser {name}{span}.",
    "{fix}",
    _PACKAGES,
    "KeyError: 'invalid tool call parser: {name}",
    needs_version=True,
)
def _tool_parser(of: Launch) -> Hits:
    if of.args.get("enable-auto-tool-choice") is True:  # vLLM looks at the name only then
        yield from _parser_unknown(of, "tool-call-parser", "tool_parsers", "tool-parser-plugin")


@_rule(
    "SPK702",
    "error",
    "Reasoning parser that this vLLM does not have",
    "vLLM {version} has no reasoning parser {name}{span}.",
    "{fix}",
    _PACKAGES,
    "KeyError: 'invalid reasoning parser: {name}",
    needs_version=True,
)
def _reasoning_parser(of: Launch) -> Hits:
    yield from _parser_unknown(of, "reasoning-parser", "reasoning_parsers", "reasoning-parser-plugin")


@_rule(
    "SPK703",
    "error",
    "Automatic tool choice without a parser",
    "--enable-auto-tool-choice needs --tool-call-parser.",
    "Add tool-call-parser{value}.",
    _PARSER,
    "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser",
)
def _no_tool_parser(of: Launch) -> Hits:
    if of.args.get("enable-auto-tool-choice") is True and not of.args.get("tool-call-parser"):
        fitting = _fitting_parsers(of)
        yield {"value": f" {fitting[0]}" if fitting else ""}


def _fitting_parsers(of: Launch) -> tuple[str, ...]:
    """Tool parsers that read what this model writes; empty if that is not known."""
    if of.gemma4:
        return ("gemma4",)
    if any(name.startswith(("Qwen3_5", "NemotronH")) for name in of.architectures):
        return ("qwen3_coder", "qwen3_xml", "qwen3_json")
    return ("openai",) if of.gpt_oss else ()


@_rule(
    "SPK704",
    "warning",
    "Tool parser of another model",
    "Tool parser {parser} does not read what this model writes: tool calls come back as plain text.",
    "Set tool-call-parser to {fitting}.",
    "model cards and vLLM's recipes; the parsers' own formats",
)
def _foreign_parser(of: Launch) -> Hits:
    parser, fitting = str(of.args.get("tool-call-parser") or ""), _fitting_parsers(of)
    if (
        parser
        and fitting
        and parser not in fitting
        and not of.args.get("tool-parser-plugin")
        and not of.lacks("tool_parsers", parser)
    ):
        yield {"parser": parser, "fitting": fitting[0]}


@_rule(
    "SPK705",
    "warning",
    "Tools from a model that always thinks",
    "{repo} always thinks, whatever enable_thinking says, and may end without the tool call that "
    "tool_choice auto waits for.",
    "Serve the Instruct variant for tools{or_hermes}.",
    "report on two Qwen3 models on one DGX Spark, June 2026",
)
def _thinking_tools(of: Launch) -> Hits:
    if re.search(r"Qwen3-Next-.*-Thinking", of.repo) and of.args.get("enable-auto-tool-choice") is True:
        alone = of.args.get("reasoning-parser") is None and of.args.get("tool-call-parser") == "hermes"
        yield {"repo": of.repo, "or_hermes": "" if alone else ", or use parser hermes without a reasoning parser"}


@_rule(
    "SPK706",
    "warning",
    "Tool parser without automatic tool choice",
    "--tool-call-parser is set but --enable-auto-tool-choice is not: requests with tools get HTTP 400.",
    "Add enable-auto-tool-choice: true.",
    _PACKAGES,
    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
)
def _parser_alone(of: Launch) -> Hits:
    if of.args.get("tool-call-parser") and of.args.get("enable-auto-tool-choice") is not True:
        yield _FIRES


# 8xx: several nodes


@_rule(
    "SPK801",
    "error",
    "More GPUs than Sparks",
    "tensor-parallel-size x pipeline-parallel-size is {world}, but {nodes} Spark(s) with one GPU each serve this.",
    "Set tensor-parallel-size to {nodes}, or serve it from {world} Sparks.",
    "GB10 has one GPU; vLLM's own check",
    "World size ({world}) is larger than the number of available GPUs ({nodes}) in this node.",
)
def _too_many_gpus(of: Launch) -> Hits:
    if of.world > of.nodes:
        yield {"world": of.world, "nodes": of.nodes}


@_rule(
    "SPK802",
    "error",
    "Ray executor in an image without Ray",
    "{image} does not ship Ray; the Ray executor cannot start.",
    "Use executor mp (--nnodes, --node-rank, --master-addr), or an image of your own with ray[default] in it.",
    "reports on the images; vLLM's requirements, which dropped Ray in 0.18.0",
    "Failed to import Ray",
)
def _no_ray(of: Launch) -> Hits:
    if of.uses_ray and of.entry.get("ray") is False:
        yield {"image": of.image}


@_rule(
    "SPK803",
    "error",
    "--nnodes with the Ray executor",
    "--nnodes {nnodes} goes with the mp executor only; with Ray vLLM refuses it.",
    "Take out nnodes, node-rank and master-addr, or set the executor to mp.",
    _PACKAGES,
    "nnodes > 1 can only be set when distributed executor backend is mp",
)
def _nnodes_ray(of: Launch) -> Hits:
    if of.number("nnodes", 1) > 1 and of.uses_ray:
        yield {"nnodes": of.number("nnodes", 1)}


@_rule(
    "SPK804",
    "warning",
    "Pinned GID index",
    "NCCL_IB_GID_INDEX={value} pins an index that moves on a Spark (3 became 4 within half an hour); NCCL then "
    "hangs or falls back to TCP.",
    "Take NCCL_IB_GID_INDEX out: NCCL finds the RoCE v2 index itself.",
    "reports from ConnectX-7 pairs",
)
def _gid_index(of: Launch) -> Hits:
    if "NCCL_IB_GID_INDEX" in of.env:
        yield {"value": of.env["NCCL_IB_GID_INDEX"]}


@_rule(
    "SPK805",
    "error",
    "Several nodes without an executor that reaches them",
    "{nodes} Sparks are to serve this, but neither Ray nor --nnodes is given; vLLM stops because it sees one GPU.",
    "Set the executor: mp (vLLM 0.11.1 and newer) or ray.",
    _PACKAGES,
    "World size ({world}) is larger than the number of available GPUs (1) in this node.",
)
def _no_executor(of: Launch) -> Hits:
    if of.nodes > 1 and of.world > 1 and of.executor is None and not of.uses_ray and of.number("nnodes", 1) == 1:
        yield {"nodes": of.nodes, "world": of.world}


@_rule(
    "SPK806",
    "info",
    "Expert parallelism with one GPU",
    "--enable-expert-parallel has no effect on one GPU.",
    "Take it out.",
    _PACKAGES,
)
def _expert_parallel(of: Launch) -> Hits:
    if of.args.get("enable-expert-parallel") is True and of.world == 1 and of.number("data-parallel-size", 1) == 1:
        yield _FIRES


@_rule(
    "SPK807",
    "error",
    "Several nodes without Ray before 0.11.1",
    "vLLM {version} cannot span nodes without Ray.",
    "Use vLLM 0.11.1 or newer, or executor ray.",
    _PACKAGES,
    needs_version=True,
)
def _mp_too_old(of: Launch) -> Hits:
    if of.nodes > 1 and of.before("0.11.1") and (of.executor or of.word("distributed-executor-backend")) == "mp":
        yield {"version": of.version}


# 9xx: options that govern memory


@_rule(
    "SPK901",
    "error",
    "Utilisation that is no fraction",
    "--gpu-memory-utilization {value} is not above 0 and at most 1.",
    "Give a fraction of the whole memory, for example 0.8.",
    _PACKAGES,
)
def _utilisation_range(of: Launch) -> Hits:
    value = of.args.get("gpu-memory-utilization")
    if isinstance(value, (int, float)) and not 0 < value <= 1:
        yield {"value": value}


@_rule(
    "SPK902",
    "warning",
    "Nearly all of the unified memory",
    "--gpu-memory-utilization {value} leaves the host {rest} % of one memory that it shares with the GPU; hosts "
    "have frozen without a message there.",
    "Stay at 0.85 or below, and at 0.80 on a host that does other work.",
    "field reports from GB10 hosts: ceilings of 0.76 to 0.87",
)
def _utilisation_high(of: Launch) -> Hits:
    value = of.args.get("gpu-memory-utilization")
    if isinstance(value, (int, float)) and 0.9 < value <= 1 and of.args.get("kv-cache-memory-bytes") is None:
        yield {"value": value, "rest": round((1 - value) * 100)}


@_rule(
    "SPK903",
    "warning",
    "Prefix caching on a hybrid model with the default batch",
    "Prefix caching on a hybrid model makes vLLM {version} enlarge the cache block; if it ends up above "
    "max-num-batched-tokens, whose default on GB10 is 2048, the start fails.",
    "Set max-num-batched-tokens to 8192.",
    f"{_PACKAGES}; {_DUO}",
    "In Mamba cache align mode, block_size must be <= max_num_batched_tokens (2048).",
    needs_version=True,
)
def _hybrid_batch(of: Launch) -> Hits:
    if (
        of.hybrid
        and of.prefix_caching
        and of.within("0.17.0", "0.27.0")
        and of.args.get("max-num-batched-tokens") is None
    ):
        yield {"version": of.version}


@_rule(
    "SPK904",
    "warning",
    "KV cache in bytes skips the memory check",
    "--kv-cache-memory-bytes makes vLLM skip its memory profile, so nothing holds back what a large batch takes "
    "beside the KV cache.",
    "Set max-num-seqs too, to 16 or less.",
    "reports from GB10 hosts",
)
def _kv_bytes(of: Launch) -> Hits:
    if of.args.get("kv-cache-memory-bytes") is not None and of.args.get("max-num-seqs") is None:
        yield _FIRES


@_rule(
    "SPK905",
    "warning",
    "Sleep mode on unified memory",
    "--enable-sleep-mode moves weights to the host's memory, which on GB10 is the same memory; beside another "
    "model hosts were reported to go down.",
    "Take it out, and stop the service when its memory is needed.",
    "vllm-project/vllm#50011; GB10's memory is shared by CPU and GPU",
)
def _sleep_mode(of: Launch) -> Hits:
    if of.args.get("enable-sleep-mode") is True:
        yield _FIRES


@_rule(
    "SPK906",
    "warning",
    "Offloading to the same memory",
    "--cpu-offload-gb moves weights to the host's memory, which on GB10 is the same memory: nothing is gained and "
    "every step copies.",
    "Take it out.",
    "GB10's memory is shared by CPU and GPU",
)
def _cpu_offload(of: Launch) -> Hits:
    value = of.args.get("cpu-offload-gb")
    if isinstance(value, (int, float)) and value > 0:
        yield _FIRES


RULES: tuple[Rule, ...] = tuple(sorted(_rules, key=lambda rule: rule.id))
"""Every rule, in the order of their ids."""


# --- the check ----------------------------------------------------------------------------------------------------

PARAMETERS = (
    "image",
    "vllm_version",
    "version_source",
    "model",
    "args",
    "argv",
    "env",
    "gpu",
    "driver_version",
    "nodes",
    "executor",
    "entrypoint",
    "ignore",
    "catalogue",
    "refuse_service_keys",
)
"""What C(check_launch) takes."""


def check_launch(params: Mapping[str, Any]) -> dict[str, Any]:
    """Judge one vLLM launch.

    params:
      image (text, required), vllm_version (text; else the catalogue's), version_source (C(given) or C(probed), where
      vllm_version comes from), model (mapping of repo, config, quant_config), args (mapping of options) or argv (list
      as typed), env (mapping), gpu (C(gb10), the only one known), driver_version (text), nodes (Sparks that serve it
      together, 1), executor (C(ray), C(mp) or C(auto)), entrypoint (C(serve) or C(passthrough), beats the catalogue),
      ignore (rule ids), catalogue (further image entries, see C(image_catalogue.lookup)), refuse_service_keys (boolean:
      complain about host, port, served-model-name, model and name among the args).
    Returns compatible, vllm_version, version_source, entrypoint, command (argv behind the image name), args
    (normalised) and findings (plain dicts, errors first). Raises C(ValueError), naming everything that is malformed.
    """
    _complain(params)
    image = str(params["image"]).strip()
    entry = image_catalogue.lookup(image, params.get("catalogue") or ()) or {}
    known, source = _version(params, entry)
    family = params.get("entrypoint") or entry.get("entrypoint")

    argv = [str(word) for word in params.get("argv") or []]
    args = {str(key): value for key, value in (params.get("args") or {}).items()}
    refused: list[launch.Problem] = []
    if params.get("refuse_service_keys"):
        args = {launch.long_name(key): value for key, value in args.items()}
        refused = launch.service_keys(args)
        args = {key: value for key, value in args.items() if key not in launch.SERVICE_KEYS}
    parsed = launch.parse(argv if argv else args, known)

    model = params.get("model") or {}
    of = Launch(
        image=image,
        entry=entry,
        version=catalogue.parse_version(known) if known else None,
        entrypoint=family or "serve",
        entrypoint_known=family is not None,
        args=parsed.args,
        problems=[*refused, *parsed.problems],
        env={str(key): str(value) for key, value in (params.get("env") or {}).items() if value is not None},
        repo=str(model.get("repo") or parsed.model or ""),
        config=model.get("config") or {},
        quant_config=model.get("quant_config") or {},
        driver=str(params.get("driver_version") or "") or None,
        nodes=int(params.get("nodes") or 1),
        executor=params.get("executor") or None,
        argv=argv,
    )
    ignored = set(params.get("ignore") or ())
    findings = [finding for rule in RULES if rule.id not in ignored for finding in rule.findings(of)]
    findings.sort(key=lambda finding: ("error", "warning", "info").index(finding.severity))
    plain = [finding.to_dict() for finding in findings]
    return {
        "compatible": not has_errors(plain),
        "vllm_version": known,
        "version_source": source,
        "entrypoint": of.entrypoint,
        "command": command(of.entrypoint, parsed.model or of.repo, parsed.args),
        "args": parsed.args,
        "findings": plain,
    }


def entrypoint_argv(family: str) -> list[str]:
    """Return what must stand between the image name and the model: nothing, or C(vllm serve)."""
    if family not in image_catalogue.FAMILIES:
        raise ValueError(f"entrypoint is {family!r}, expected one of {', '.join(image_catalogue.FAMILIES)}")
    return ["vllm", "serve"] if family == "passthrough" else []


def command(family: str, model: str, args: Mapping[str, Any]) -> list[str]:
    """Return the exact argv behind the image name."""
    return [*entrypoint_argv(family), *([model] if model else []), *launch.render(args)]


def _version(params: Mapping[str, Any], entry: Mapping[str, Any]) -> tuple[str | None, str]:
    if params.get("vllm_version"):
        return str(params["vllm_version"]), str(params.get("version_source") or GIVEN)
    if entry.get("vllm_version"):
        return str(entry["vllm_version"]), CATALOGUE
    return None, UNKNOWN


def _complain(params: Mapping[str, Any]) -> None:
    """Raise one C(ValueError) with everything that is malformed."""
    wrong: list[str] = []
    for key in params:
        if key not in PARAMETERS:
            near = catalogue.nearest(str(key), PARAMETERS)
            wrong.append(f"unknown key '{key}'" + (f"; did you mean '{near}'?" if near else ""))
    if not isinstance(params.get("image"), str) or not params["image"].strip():
        wrong.append("'image' must be an image reference")
    given = params.get("vllm_version")
    if given and catalogue.parse_version(str(given)) is None:
        wrong.append(f"'vllm_version' is {given!r}, which is no version of vLLM; leave it out if it is not known")
    for key in ("model", "args", "env"):
        if params.get(key) is not None and not isinstance(params[key], Mapping):
            wrong.append(f"'{key}' must be a mapping")
    argv = params.get("argv")
    if argv and (isinstance(argv, (str, bytes)) or not all(isinstance(word, (str, int, float)) for word in argv)):
        wrong.append("'argv' must be a list of texts")
    if argv and params.get("args"):
        wrong.append("'args' and 'argv' exclude each other")
    for key, allowed in (
        ("entrypoint", image_catalogue.FAMILIES),
        ("version_source", (GIVEN, PROBED)),
        ("gpu", ("gb10",)),
        ("executor", ("ray", "mp", "auto")),
    ):
        if params.get(key) and params[key] not in allowed:
            wrong.append(f"'{key}' is {params[key]!r}, expected one of {', '.join(allowed)}")
    nodes = params.get("nodes", 1)
    if nodes is not None and (isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1):
        wrong.append(f"'nodes' is {nodes!r}, expected a whole number from 1 up")
    wrong.extend(_wrong_entries(params.get("catalogue") or ()))
    if wrong:
        raise ValueError("; ".join(wrong))


def _wrong_entries(entries: Iterable[Any]) -> Iterator[str]:
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("image"), str):
            yield f"catalogue[{index}] must be a mapping with at least 'image'"
            continue
        for key in entry:
            if key not in image_catalogue.EXTRA_KEYS:
                yield f"catalogue[{index}] has the unknown key '{key}'; known: {', '.join(image_catalogue.EXTRA_KEYS)}"
        if entry.get("entrypoint") not in (None, *image_catalogue.FAMILIES):
            yield f"catalogue[{index}]: entrypoint must be one of {', '.join(image_catalogue.FAMILIES)}"
        if entry.get("vllm_version") and catalogue.parse_version(str(entry["vllm_version"])) is None:
            yield f"catalogue[{index}]: vllm_version {entry['vllm_version']!r} is no version of vLLM"
