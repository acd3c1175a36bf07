# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about the launch line (1xx) and the environment (2xx)."""

from __future__ import annotations

from .._common import validation
from .._vllm import catalogue
from .._vllm.launch import long_name
from .rulebook import (
    FIRES,
    GUIDE,
    PACKAGES,
    PARSER,
    SELECTION,
    Change,
    Hits,
    Launch,
    error,
    info,
    sure_spelling,
    version,
    warning,
)


def _problems(launch: Launch, *kinds: str) -> Hits:
    accepted = set(launch.entry.get("options") or ())  # options that the image lists
    for problem in launch.problems:
        name = problem.option.lstrip("-").partition(".")[0].replace("_", "-")
        if problem.kind == "unknown" and accepted & {name, name.partition("no-")[2]}:
            continue
        if problem.kind in kinds:
            yield {
                "option": problem.option,
                "detail": problem.detail,
                "fix": problem.fix,
                "error": problem.vllm_error,
                "value": problem.value,
            }


# 1xx: launch line

_NEVER = "--speculative-disable-by-batch-size"


@error(
    "SPK101",
    "Unknown option",
    "{option} {detail}; vLLM stops at once.",
    "{fix}",
    PARSER,
    "{error}",
    needs_version=True,
    about="This vLLM version does not have the option and stops at once. "
    "The finding names the versions that have it, or the nearest option.",
)
def _unknown_option(launch: Launch) -> Hits:
    for hit in _problems(launch, "unknown"):
        if hit["option"] != _NEVER:
            yield {**hit, "changes": _unknown_changes(launch, hit["option"].lstrip("-"))}


# Options that vLLM has dropped and that the V1 engine implies: it never swaps, never preempts by swapping, processes
# output asynchronously in one way only, and does not log requests by default.
_WITHOUT_EFFECT = {"swap-space", "preemption-mode", "disable-log-requests", "disable-async-output-proc"}


def _unknown_changes(launch: Launch, name: str) -> tuple[Change, ...]:
    """Return the changes that replace an option this vLLM does not have, if the intended option is certain."""
    value = launch.args.get(name)
    gone = Change("args", name)
    if name in _WITHOUT_EFFECT:
        return (gone,)
    if name == "cuda-graph-sizes":
        return gone, Change("args", "cudagraph-capture-sizes", value)
    if name == "disable-mm-preprocessor-cache" and value is True:
        return gone, Change("args", "mm-processor-cache-gb", 0)
    if name == "guided-decoding-backend" and launch.args.get("structured-outputs-config") is None:
        return gone, Change("args", "structured-outputs-config", {"backend": value})
    if name == "task" and str(value) in _TASKS:
        return (gone, *(Change("args", key, replacement) for key, replacement in _TASKS[str(value)].items()))
    if long_name(name) in catalogue.options():
        return ()  # it is spelled right; this version has no such thing
    spelling = sure_spelling(name, tuple(catalogue.options()))
    return (gone, Change("args", spelling, value)) if spelling and spelling not in launch.args else ()


# What --task was replaced by in 0.13.0.
_TASKS = {
    "generate": {"runner": "generate"},
    "embed": {"runner": "pooling", "convert": "embed"},
    "embedding": {"runner": "pooling", "convert": "embed"},
    "classify": {"runner": "pooling", "convert": "classify"},
}


@error(
    "SPK102",
    "Value after a flag",
    "{option} {detail}; vLLM's boolean options take no value.",
    "{fix}",
    PARSER,
    "{error}",
    about="A boolean option has a value, as in --enforce-eager true; vLLM's boolean options take no value.",
)
def _value_to_switch(launch: Launch) -> Hits:
    for hit in _problems(launch, "value_to_switch"):
        name, boolean = hit["option"].lstrip("-"), _BOOLEANS.get(str(hit["value"]).strip().lower())
        option = catalogue.options().get(name)
        if boolean is None or option is None:
            yield hit
            continue
        enable = boolean is (launch.args.get(name) is not False)  # --no-x true asks for what --x false does
        yield {**hit, "changes": (Change("args", name, enable if enable or option.kind == "switch" else None),)}


_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@error(
    "SPK103",
    "vllm serve twice",
    "vllm serve {detail}: {why}.",
    "Pass {instead} after the image name.",
    "entrypoints of the images; vLLM's own parser",
    "{error}",
    about="The command repeats vllm serve, or the image's entrypoint already "
    "runs it: vLLM reads the second serve as the model.",
)
def _doubled(launch: Launch) -> Hits:
    for hit in _problems(launch, "doubled"):
        yield {
            **hit,
            "why": "vLLM reads its second word as the model",
            "instead": "vllm serve once at most",
            "changes": (Change("command", "vllm serve vllm serve", "vllm serve"),),
        }
    if launch.argv[:2] == ["vllm", "serve"] and launch.entrypoint == "serve" and launch.entrypoint_known:
        yield {
            "detail": "is in the command and is the image's entrypoint too",
            "why": "the entrypoint of this image family is vllm serve",
            "instead": "only the model and its options",
            "error": f"unrecognized arguments: serve {' '.join(launch.argv[2:3])}".rstrip(),
            "changes": (Change("command", "vllm serve", ""),),
        }


error(
    "SPK104",
    "Value missing or of the wrong kind",
    "{option} {detail}.",
    "{fix}",
    PARSER,
    "{error}",
    about="An option has no value, text instead of a number, or invalid JSON; or the command has an extra word.",
    when=lambda launch: _problems(launch, "no_value", "bad_value", "extra_word"),
)

error(
    "SPK105",
    "Ambiguous abbreviation",
    "{option} {detail}; vLLM accepts an abbreviation only if it is unique.",
    "{fix}",
    PARSER,
    "{error}",
    about="Several options begin with this abbreviation; vLLM accepts an abbreviation only if it is unique.",
    when=lambda launch: _problems(launch, "ambiguous"),
)

error(
    "SPK106",
    "Key of the service in args",
    "'{option}' {detail}, so that unit, probes and plan agree on it.",
    "{fix}",
    "design of this collection",
    about="args has host, port, served-model-name, model or name. Set them as keys "
    "of the service: the unit, the probes and the plan use them too.",
    when=lambda launch: _problems(launch, "service_key"),
)


@info(
    "SPK107",
    "Model given as --model",
    "--model {detail}; vllm serve still takes that, with a warning that it will go away.",
    "{fix}",
    PARSER,
)
def _model_option(launch: Launch) -> Hits:
    for hit in _problems(launch, "model_option"):
        yield {**hit, "changes": (Change("command", f"--model {launch.repo}", launch.repo),)}


@error(
    "SPK108",
    "Value that is not allowed",
    "{option} {detail}.",
    "{fix}",
    PARSER,
    "{error}",
    needs_version=True,
    about="The parser of this version does not accept the value. Other rules check kernels and KV cache types.",
)
def _bad_choice(launch: Launch) -> Hits:
    for hit in _problems(launch, "bad_choice"):
        name = hit["option"].lstrip("-")
        if name in _OWN_RULES or (name == "mamba-cache-mode" and launch.word(name) == "all"):
            continue
        intended = sure_spelling(str(hit["value"]), catalogue.options(launch.version)[name].choices)
        yield {**hit, "changes": (Change("args", name, intended),) if intended else ()}


# Options whose values have a rule that knows more than the parser does.
_OWN_RULES = ("moe-backend", "kv-cache-dtype", "linear-backend")


@error(
    "SPK111",
    "Key that an option's JSON does not have",
    "--{option} has no key {key} in vLLM {version}{span}.",
    "{fix}",
    PARSER,
    "{error}",
    needs_version=True,
)
def _json_key(launch: Launch) -> Hits:
    for problem in launch.problems:
        option, key = problem.option.lstrip("-"), str(problem.value)
        if problem.kind != "bad_key" or option == "speculative-config":  # SPK604
            continue
        config, span = launch.args[option], launch.names("json_keys").get(f"{option}.{key}")
        intended = sure_spelling(key, tuple(catalogue.json_keys(option, launch.version)))
        remaining = {name: value for name, value in config.items() if name != key}
        sure = intended and not span and intended not in config
        yield {
            "option": option,
            "key": key,
            "span": f" ({span.text()})" if span else "",
            "fix": problem.fix,
            "error": problem.vllm_error,
            "changes": (Change("args", option, {**remaining, intended: config[key]}),) if sure else (),
        }


@error(
    "SPK109",
    "--speculative-disable-by-batch-size",
    "--speculative-disable-by-batch-size never was an option of vllm serve; the launch fails.",
    "Remove it. {instead}",
    vllm_error="{error}",
)
def _disable_by_batch_size(launch: Launch) -> Hits:
    for hit in _problems(launch, "unknown"):
        if hit["option"] == _NEVER:
            if launch.version is None:
                instead = "Up to 0.16.0 and again from 0.24.0 --speculative-config has a key for it."
            elif launch.version < version("0.17.0"):
                instead = 'The key "disable_by_batch_size" of --speculative-config does this.'
            elif launch.version < version("0.24.0"):
                instead = f"vLLM {launch.version} has nothing like it."
            else:
                instead = (
                    'The key "num_speculative_tokens_per_batch_size" of --speculative-config does this, as a list of '
                    "[first batch size, last batch size, tokens]."
                )
            changes: tuple[Change, ...] = (Change("args", _NEVER[2:]),)
            batch_size, spec = launch.args.get(_NEVER[2:]), launch.args.get("speculative-config")
            if launch.before("0.17.0") and isinstance(spec, dict) and str(batch_size).isdecimal():
                changes += (
                    Change("args", "speculative-config", {"disable_by_batch_size": int(str(batch_size)), **spec}),
                )
            yield {**hit, "instead": instead, "changes": changes}


@warning(
    "SPK110",
    "Option unknown to all vLLM versions",
    "{option} {detail}. The vLLM version is not known, so it is passed on.",
    "{fix}",
    PARSER,
    "{error}",
    about="No known vLLM version has the option, and the version of the image "
    "is not known. A fork may have it, so it is passed on.",
)
def _unknown_everywhere(launch: Launch) -> Hits:
    if launch.version is None:
        for hit in _problems(launch, "unknown"):
            if hit["option"] != _NEVER:
                yield hit


@warning(
    "SPK113",
    "Value unknown to all vLLM versions",
    "--{option} {value} is not a value of any known vLLM version. The version of the image is not known, so it is "
    "passed on.",
    "{fix}",
    PARSER,
    about="No known vLLM version has this kernel, parser, format or mode, and the version of "
    "the image is not known. A fork may have it, so it is passed on.",
)
def _value_of_no_vllm(launch: Launch) -> Hits:
    if launch.version is not None:
        return
    for option, value in launch.args.items():
        values = {} if launch.args.get(_PLUGINS.get(option, "")) else catalogue.option_values(option)
        spelled = catalogue.spelled_value(option, value)
        named = launch.entry.get("features", ())
        if values and spelled and "." not in spelled and not {spelled, str(value)} & {*named} and spelled not in values:
            cuda_names = [name for name in values if not name.startswith(_OTHER_DEVICES)]
            family = spelled.partition("_")[0]
            near = validation.nearest_word(spelled, cuda_names, 0.85) or (
                family if family in cuda_names else validation.nearest_word(spelled, cuda_names)
            )
            yield {
                "option": option,
                "value": value,
                "fix": f"Did you mean {near}?" if near else "Check that the image has it, or remove the option.",
            }


# Attention backends of other devices than NVIDIA's.
_OTHER_DEVICES = ("AMX_", "CPU_", "ROCM_", "XPU_")
# With a plugin a parser may have any name.
_PLUGINS = {"tool-call-parser": "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}


@info(
    "SPK112",
    "Options in a file",
    "--config {file} names a file with more options. That file is not read, so its options are not checked.",
    "Set its options in args.",
    PARSER,
)
def _config_file(launch: Launch) -> Hits:
    if launch.args.get("config") is not None:
        yield {"file": launch.args["config"]}


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


def _unknown_variables(launch: Launch) -> list[str]:
    return [
        name
        for name in sorted(launch.env)
        if name.startswith("VLLM_") and name not in _SET_BY_IMAGES and launch.unsupported("environment", name[5:])
    ]


@warning(
    "SPK201",
    "VLLM_USE_V1",
    "VLLM_USE_V1 does nothing in vLLM {version}: it was removed in 0.11.1, which has only the V1 engine.",
    "Remove VLLM_USE_V1 from the environment.",
    needs_version=True,
)
def _use_v1(launch: Launch) -> Hits:
    if "VLLM_USE_V1" in _unknown_variables(launch):
        yield {"changes": (Change("env", "VLLM_USE_V1"),)}


@warning(
    "SPK202",
    "VLLM_FLASHINFER_MOE_BACKEND",
    "VLLM_FLASHINFER_MOE_BACKEND={value} has no effect here: {why}.",
    "Remove it; {instead}.",
    f"{PACKAGES}; {SELECTION}",
    needs_version=True,
)
def _flashinfer_moe_backend(launch: Launch) -> Hits:
    value = launch.env.get("VLLM_FLASHINFER_MOE_BACKEND")
    if value is None:
        return
    instead = (
        "--moe-backend chooses the kernel"
        if not launch.before("0.17.0")
        else "VLLM_USE_FLASHINFER_MOE_FP4 and _FP8 choose the kernels"
    )
    if not launch.before("0.24.0"):
        why = f"vLLM {launch.version} does not know it"
    elif value == "latency":
        why = "latency kernels are for sm_100, on sm_121 vLLM takes CUTLASS"
    elif not any(launch.truthy(f"VLLM_USE_FLASHINFER_MOE_{kind}") for kind in ("FP4", "FP8", "FP16")):
        why = "it is read only together with VLLM_USE_FLASHINFER_MOE_FP4, _FP8 or _FP16"
    else:
        return
    yield {
        "value": value,
        "why": why,
        "instead": instead,
        "changes": (Change("env", "VLLM_FLASHINFER_MOE_BACKEND"),),
    }


@warning(
    "SPK203",
    "Unknown VLLM_ variable",
    "{name} is no environment variable of vLLM {version}{span}; it does nothing.",
    "{fix}",
    vllm_error="Unknown vLLM environment variable detected: {name}",
    needs_version=True,
)
def _unknown_variable(launch: Launch) -> Hits:
    for name in _unknown_variables(launch):
        if name not in ("VLLM_USE_V1", "VLLM_FLASHINFER_MOE_BACKEND"):
            hit = launch.missing("environment", name[5:])
            instead = _REPLACED_VARIABLES.get(name)
            is_option = instead is not None and instead.partition(" ")[0][2:] in catalogue.options(launch.version)
            fix = hit["fix"].replace("Did you mean ", "Did you mean VLLM_")
            yield {
                **hit,
                "name": name,
                "fix": f"Use {instead}." if is_option else "Remove it." if hit["span"] or instead else fix,
                "changes": _variable_changes(launch, name, bool(hit["span"])),
            }


def _variable_changes(launch: Launch, name: str, was_known: bool) -> tuple[Change, ...]:
    """Return the changes that replace a variable this vLLM does not read: use its option, its right spelling, or remove it."""
    value, gone = launch.env[name], Change("env", name)
    if (
        name == "VLLM_ATTENTION_BACKEND"
        and not launch.before("0.13.0")
        and launch.args.get("attention-backend") is None
    ):
        return gone, Change("args", "attention-backend", value)
    if name in ("VLLM_MXFP4_USE_MARLIN", "VLLM_MXFP4_BACKEND", "VLLM_TEST_FORCE_FP8_MARLIN"):
        uses_marlin = launch.truthy(name) or value.lower() == "marlin"
        if uses_marlin and not launch.before("0.17.0") and launch.args.get("moe-backend") is None:
            return gone, Change("args", "moe-backend", "marlin")
        return (gone,)
    if was_known or name in _REPLACED_VARIABLES:
        return (gone,)  # this vLLM ignores it
    spelling = sure_spelling(name[5:], tuple(catalogue.names("environment")))
    return (gone, Change("env", f"VLLM_{spelling}", value)) if spelling and f"VLLM_{spelling}" not in launch.env else ()


@warning(
    "SPK204",
    "Deprecated FlashInfer MoE variables",
    "{name} still works in vLLM {version} but is deprecated; 0.24.0 no longer reads it.",
    "Use --moe-backend.",
    needs_version=True,
)
def _deprecated_variable(launch: Launch) -> Hits:
    if launch.within("0.22.0", "0.24.0"):
        for name in sorted(launch.env):
            if name.startswith("VLLM_USE_FLASHINFER_MOE_") and name not in _unknown_variables(launch):
                yield {"name": name}


@error(
    "SPK205",
    "V2 model runner forced for an unsupported feature",
    "VLLM_USE_V2_MODEL_RUNNER=1 with {what} fails in vLLM {version}.",
    "Remove VLLM_USE_V2_MODEL_RUNNER: vLLM chooses that runner itself when it can run.",
    vllm_error="{error}",
    needs_version=True,
)
def _forced_runner(launch: Launch) -> Hits:
    if not launch.truthy("VLLM_USE_V2_MODEL_RUNNER") or launch.before("0.12.0"):
        return
    limits = {"ngram": "0.32.0", "ngram_gpu": "0.32.0", "draft_model": "0.31.0", "suffix": "0.33.1"}
    if launch.method in limits and launch.within("0.12.0", limits[launch.method]):
        yield {"what": f"speculative method {launch.method}", "error": ""}
    if launch.hybrid and launch.prefix_caching and launch.within("0.21.0", "0.25.0"):
        yield {
            "what": "prefix caching on a hybrid model",
            "error": "Model Runner V2 has not yet supported mamba_cache_mode='align'",
        }


@error(
    "SPK206",
    "Strict environment check with an unknown variable",
    "--fail-on-environ-validation stops the start: this vLLM does not know {names}.",
    "Remove --fail-on-environ-validation{or_names}.",
    vllm_error="Unknown vLLM environment variable detected: {names}",
    needs_version=True,
)
def _strict_environment(launch: Launch) -> Hits:
    if launch.args.get("fail-on-environ-validation") is not True:
        return
    names = _unknown_variables(launch)
    if names:
        yield {"names": ", ".join(names), "or_names": " or these variables"}
    elif launch.entry.get("repository") == "nvcr.io/nvidia/vllm" and not launch.before("0.17.0"):
        yield {"names": "VLLM_VERSION, which NGC images set themselves,", "or_names": ""}


@error(
    "SPK207",
    "V1 model runner forced for an unsupported feature",
    "VLLM_USE_V2_MODEL_RUNNER=0 with {what} fails in vLLM {version}, which runs that on the V2 model runner only.",
    "Remove VLLM_USE_V2_MODEL_RUNNER.",
    needs_version=True,
)
def _refused_runner(launch: Launch) -> Hits:
    if launch.before("0.31.0") or launch.env.get("VLLM_USE_V2_MODEL_RUNNER", "").strip().lower() not in ("0", "false"):
        return
    stages = launch.number("pipeline-parallel-size", 1) > 1 and launch.args.get("async-scheduling") is not False
    for feature, holds in (
        ("speculative method dspark", launch.method == "dspark"),
        ("a diffusion model", any("Diffusion" in name for name in launch.architectures)),
        ("pipeline parallelism and asynchronous scheduling", stages),
    ):
        if holds:
            yield {"what": feature}


@info(
    "SPK208",
    "FlashInfer switched off is not Marlin",
    "{name}=0 only disables the FlashInfer kernels; on sm_121 vLLM {version} then picks its own CUTLASS kernels, not "
    "Marlin.",
    "{fix}",
    f"{PACKAGES}; {SELECTION}",
    needs_version=True,
)
def _flashinfer_off(launch: Launch) -> Hits:
    name = "VLLM_USE_FLASHINFER_MOE_FP4"
    if (
        launch.env.get(name, "").strip() == "0"
        and launch.before("0.24.0")
        and launch.word("moe-backend") in ("", "auto")
    ):
        fix = "With vLLM 0.17.0 and newer --moe-backend marlin gives Marlin." if launch.before("0.17.0") else ""
        yield {
            "name": name,
            "fix": fix or "Set moe-backend to marlin to use Marlin.",
        }


@info(
    "SPK209",
    "VLLM_USE_DEEP_GEMM without effect",
    "VLLM_USE_DEEP_GEMM={value} changes nothing in vLLM {version}: DeepGEMM runs on sm_121 from 0.24.0 on.",
    "Keep it or remove it.",
    f"{PACKAGES}; {GUIDE}",
    needs_version=True,
)
def _deep_gemm(launch: Launch) -> Hits:
    if "VLLM_USE_DEEP_GEMM" in launch.env and launch.before("0.24.0"):
        yield {"value": launch.env["VLLM_USE_DEEP_GEMM"]}


# Targets of CUTLASS' DSL whose code GB10 (compute capability 12.1) can run: 12.1, and 12.0 without the suffix a.
_DSL_TARGETS = {"sm_121a", "sm_121f", "sm_121", "sm_120f", "sm_120"}


@error(
    "SPK210",
    "CUTE_DSL_ARCH of another GPU",
    "CUTE_DSL_ARCH={value} compiles kernels that GB10 cannot load; it is sm_121a.",
    "Set CUTE_DSL_ARCH to sm_121a, or remove it.",
    "families of compute capability 12.1 in CUDA's own documents",
)
def _dsl_target(launch: Launch) -> Hits:
    value = launch.env.get("CUTE_DSL_ARCH", "")
    if value and value.strip().lower() not in _DSL_TARGETS:
        yield {"value": value}


@error(
    "SPK211",
    "GPU that a Spark does not have",
    "{name}={value}, but a DGX Spark has one GPU, number 0.",
    "Remove {name}.",
    "GB10 has one GPU",
)
def _visible_devices(launch: Launch) -> Hits:
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        value = launch.env.get(name)
        if value is not None and value.strip() not in ("0", "all") and not value.strip().upper().startswith("GPU-"):
            yield {"name": name, "value": value}


@error(
    "SPK212",
    "Expandable segments with a KV connector",
    "PYTORCH_CUDA_ALLOC_CONF has expandable_segments:True and --kv-transfer-config has a "
    "connector; vLLM {version} refuses to run both.",
    "Set enable-cumem-allocator: true, or remove expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF; without it, a prompt of 337,000 tokens "
    "took 9 GiB more on two Sparks.",
    f"{PACKAGES}; MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#57",
    "is incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    needs_version=True,
)
def _expandable_segments(launch: Launch) -> Hits:
    transfer = launch.args.get("kv-transfer-config")
    if (
        "expandable_segments:True" in launch.env.get("PYTORCH_CUDA_ALLOC_CONF", "")
        and isinstance(transfer, dict)
        and transfer.get("kv_connector")
        and launch.args.get("enable-sleep-mode") is not True
        and launch.args.get("enable-cumem-allocator") is not True
        and not launch.before("0.23.0")
    ):
        yield FIRES


@warning(
    "SPK213",
    "Compile cache switched off",
    "VLLM_DISABLE_COMPILE_CACHE={value} compiles the model again at every start, which takes minutes.",
    "Remove it. To get rid of a stale entry, empty the cache once.",
    f"{PACKAGES}; {GUIDE}",
)
def _no_compile_cache(launch: Launch) -> Hits:
    if launch.truthy("VLLM_DISABLE_COMPILE_CACHE"):
        yield {"value": launch.env["VLLM_DISABLE_COMPILE_CACHE"]}


@warning(
    "SPK214",
    "Flash attention that GB10 does not have",
    "{what} asks for FlashAttention {number}, which runs on compute capabilities {where}; on sm_121 {then}.",
    "Remove it.",
    SELECTION,
    needs_version=True,
)
def _flash_attention_version(launch: Launch) -> Hits:
    config = launch.args.get("attention-config")
    requests = [("--attention-config", config.get("flash_attn_version") if isinstance(config, dict) else None)]
    if launch.before("0.15.0"):
        requests.append(("VLLM_FLASH_ATTN_VERSION", launch.env.get("VLLM_FLASH_ATTN_VERSION")))
    for place, number in requests:
        if str(number) == "3":
            yield {"what": place, "number": 3, "where": "9.x", "then": "vLLM takes FlashAttention 2 instead"}
        elif str(number) == "4":
            then = "the backend FLASH_ATTN is left without kernels"
            yield {"what": place, "number": 4, "where": "9.x, 10.x and 11.x", "then": then}
