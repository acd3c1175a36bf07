# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about the model and its quantisation (4xx)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .._vllm import catalogue
from .._vllm.context_length import ALLOW_VARIABLE, SCALED_YARN_MINOR, ContextLimit, context_limit, rotary_settings
from .rulebook import FIRES, GUIDE, PACKAGES, Change, Hits, Launch, error, info, version, warning

# 4xx: model and quantisation


@error(
    "SPK401",
    "Architecture that this vLLM does not support",
    "vLLM {version} does not support the architecture {architecture} ({span}).",
    "Use an image whose vLLM supports it.",
    vllm_error="Model architectures ['{architecture}'] are not supported for now.",
    needs_version=True,
)
def _architecture(launch: Launch) -> Hits:
    architectures = catalogue.names("architectures")
    if not launch.architectures or launch.word("model-impl") == "transformers":
        return
    # vLLM takes the first that it knows; a name in no version at all may still run through transformers.
    if all(name in architectures and launch.unsupported("architectures", name) for name in launch.architectures):
        name = launch.architectures[0]
        yield {"architecture": name, "span": architectures[name].text()}


@error(
    "SPK417",
    "LoRA adapters for an unsupported model class",
    "vLLM {version} supports no LoRA adapters for the architecture {architecture}.",
    "Merge the adapters into the weights and remove lora and enable-lora, or use an image that supports them.",
    vllm_error="does not support LoRA yet.",
    needs_version=True,
)
def _adapters(launch: Launch) -> Hits:
    if launch.args.get("enable-lora") is not True or launch.word("model-impl") == "transformers":
        return
    name = next(iter(launch.architectures), "")
    # A version that nobody has read may have learnt it.
    if catalogue.was_read(launch.version) and catalogue.has("without_adapters", name, launch.version):
        yield {"architecture": name}


# Methods of one family read each other's checkpoints; other methods are not judged.
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


@error(
    "SPK402",
    "Quantisation differs from the checkpoint's",
    "--quantization {asked} does not match the checkpoint, which is quantised as {checkpoint}.",
    "Remove --quantization; vLLM reads it from the checkpoint.",
    vllm_error="Quantization method specified in the model config ({checkpoint}) does not match the quantization method "
    "specified in the `quantization` argument ({asked}).",
)
def _quantisation_mismatch(launch: Launch) -> Hits:
    method = str(launch.args.get("quantization") or "")
    mine, theirs = _QUANTISATION_FAMILIES.get(method), _QUANTISATION_FAMILIES.get(launch.checkpoint)
    if mine and theirs and mine != theirs and not launch.overriding:
        yield {"asked": method, "checkpoint": launch.checkpoint, "changes": (Change("args", "quantization"),)}


@error(
    "SPK403",
    "Context longer than the model's",
    "--max-model-len {asked} exceeds the model's maximum of {limit}.",
    "Set max-model-len to {limit} or less, or extend the context (RoPE parameters in --hf-overrides and "
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1).",
    vllm_error="{error}",
)
def _too_long(launch: Launch) -> Hits:
    if not any(_overridden_ropes(launch)):
        yield from _beyond_limit(launch)


def _beyond_limit(launch: Launch) -> Hits:
    """Yield a configured context length that this vLLM refuses."""
    max_model_len, limit = (
        launch.args.get("max-model-len"),
        _limit(launch, launch.version.release[1] if launch.version else None),
    )
    if isinstance(max_model_len, int) and limit and limit.refusal(max_model_len) and not launch.truthy(ALLOW_VARIABLE):
        yield {"asked": max_model_len, "limit": limit.tokens, "error": limit.refusal(max_model_len).partition(": ")[2]}


def _limit(launch: Launch, minor: int | None) -> ContextLimit | None:
    return context_limit(launch.config, launch.args.get("hf-overrides"), minor)


@warning(
    "SPK418",
    "Context beyond the model's limit",
    "--max-model-len {asked} exceeds the {limit} tokens that the model and its RoPE parameters reach. "
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 only disables vLLM's check: answers to longer prompts are wrong, or "
    "the engine stops.",
    "Set max-model-len to {limit} or less, or extend the context with YaRN in --hf-overrides.",
)
def _unreachable_context(launch: Launch) -> Hits:
    max_model_len, limit = launch.args.get("max-model-len"), _limit(launch, None)
    rotary = launch.text.get("model_type") not in _NO_ROTARY
    if (
        isinstance(max_model_len, int)
        and limit
        and limit.refusal(max_model_len)
        and launch.truthy(ALLOW_VARIABLE)
        and rotary
    ):
        yield {"asked": max_model_len, "limit": limit.tokens}


# Families without rotary positions: states and plain attention reach further than their config says (model_executor/models/nemotron_h.py).
_NO_ROTARY = ("nemotron_h",)


@error(
    "SPK404",
    "Quantisation that this vLLM does not support",
    "{what} {name} is not in vLLM {version}{span}.",
    "{fix}",
    needs_version=True,
)
def _quantisation_unknown(launch: Launch) -> Hits:
    # vLLM never looks up a method that a ModelOpt checkpoint overrides.
    method = "" if launch.overriding else str(launch.args.get("quantization") or "")
    if method:
        for hit in launch.unknown_value("quantization", "quantizations", method):
            yield {"what": "--quantization", **hit}
    # A checkpoint may spell its method in ways that vLLM maps by itself: only names that come and go are judged.
    elif launch.checkpoint in catalogue.names("quantizations") and launch.unsupported(
        "quantizations", launch.checkpoint
    ):
        yield {"what": "The checkpoint's quantisation", **launch.missing("quantizations", launch.checkpoint)}


@warning(
    "SPK405",
    "NVFP4 scales of a Gemma 4 MoE without a mapping",
    "vLLM 0.19.0 cannot map the per-expert NVFP4 scales of this Gemma 4 (KeyError), unless its weight "
    "loader is patched.",
    "Use vLLM 0.20.0 or newer.",
    needs_version=True,
)
def _gemma4_scales(launch: Launch) -> Hits:
    patched = any(target.endswith("/gemma4.py") for _source, target in launch.docker.mounts)
    if launch.within("0.19.0", "0.19.1") and launch.gemma4 and launch.expert_format == "nvfp4" and not patched:
        yield FIRES


error(
    "SPK406",
    "Load format that this vLLM does not support",
    "--load-format {name} is not in vLLM {version}{span}.",
    "{fix}",
    vllm_error="Load format `{name}` is not supported.",
    needs_version=True,
    when=lambda launch: launch.unknown_value("load-format", "load_formats"),
)


# Load formats that need a further package: format to package and the vLLM version that includes it.
_LOADER_PACKAGES: dict[str, tuple[str, str | None]] = {
    "fastsafetensors": ("fastsafetensors", "0.20.0"),
    "instanttensor": ("instanttensor", None),
    "runai_streamer": ("runai-model-streamer", None),
    "runai_streamer_sharded": ("runai-model-streamer", None),
    "tensorizer": ("tensorizer", None),
}


@info(
    "SPK407",
    "Load format that needs an extra package",
    "--load-format {name} needs the package {package}, which vLLM {version} does not depend on.",
    "Check that the image contains it, or remove load-format.",
    needs_version=True,
)
def _loader_package(launch: Launch) -> Hits:
    name = str(launch.args.get("load-format") or "")
    package, since = _LOADER_PACKAGES.get(name, ("", None))
    has_package = launch.brings(package, name.partition("_")[0]) or (since is not None and not launch.before(since))
    if package and not has_package and not launch.unsupported("load_formats", name):
        yield {"name": name, "package": package}


error(
    "SPK408",
    "Random weights",
    "--load-format dummy initialises the model with random weights: its output is meaningless.",
    "Remove load-format.",
    when=lambda launch: launch.args.get("load-format") == "dummy",
)


@error(
    "SPK409",
    "GGUF with vLLM 0.24.0 or newer",
    "{repo} is a GGUF checkpoint; vLLM {version} loads GGUF only with a plugin.",
    "Use a safetensors checkpoint, or vLLM 0.23.0 or older.",
    needs_version=True,
)
def _gguf(launch: Launch) -> Hits:
    # A file, or a repository of such files, of which vLLM takes one by what stands behind a colon.
    if launch.repo.lower().partition(":")[0].endswith((".gguf", "-gguf")) and not launch.before("0.24.0"):
        yield {"repo": launch.repo}


@error(
    "SPK410",
    "Deprecated quantisation",
    "{what} {name} is deprecated in vLLM {version}, which loads it only with --allow-deprecated-quantization.",
    "Set allow-deprecated-quantization: true, and plan to replace the checkpoint.",
    needs_version=True,
)
def _deprecated_quantisation(launch: Launch) -> Hits:
    method = str(launch.args.get("quantization") or "")
    name = method or launch.checkpoint
    if launch.args.get("allow-deprecated-quantization") is True or not name:
        return
    if catalogue.has("deprecated_quantizations", name, launch.version) and not launch.unsupported(
        "quantizations", name
    ):
        yield {
            "what": "--quantization" if method else "The checkpoint's quantisation",
            "name": name,
        }


@warning(
    "SPK411",
    "Audio input without the audio packages",
    "{image} has no packages for decoding audio; requests with audio fail.",
    "Install vllm[audio] in addition (pip of the service), or remove audio from limit-mm-per-prompt.",
    f"{PACKAGES}; {GUIDE}",
)
def _audio(launch: Launch) -> Hits:
    limits = launch.args.get("limit-mm-per-prompt")
    audio_limit = limits.get("audio") if isinstance(limits, dict) else None
    stock = launch.entry.get("repository") == "vllm/vllm-openai" and not launch.docker.values("--entrypoint")
    if audio_limit and stock and not launch.brings("av", "audio"):
        yield FIRES


@info(
    "SPK412",
    "Omni model loaded without audio",
    "--hf-overrides makes vLLM load this omni model as {architecture}: images and video, but no audio.",
    "For audio use vLLM 0.20.0 or newer without the override.",
    "NVIDIA's release notes of 26.04",
)
def _omni_as_vision(launch: Launch) -> Hits:
    listed = launch.config.get("architectures")
    architectures = [str(name) for name in listed] if isinstance(listed, list) else []
    if (
        launch.architectures != architectures
        and "NemotronH_Nano_VL_V2" in launch.architectures
        and ("Omni" in f"{architectures}{launch.repo}")
    ):
        yield {"architecture": "NemotronH_Nano_VL_V2"}


@warning(
    "SPK413",
    "NVFP4 Gemma 4 MoE with tensor parallelism",
    "This NVFP4 Gemma 4 MoE was reported to run with tensor-parallel-size 1 only; here it is {size}.",
    "Serve it on one Spark; expert parallelism was reported to work.",
    GUIDE,
)
def _gemma4_parallel(launch: Launch) -> Hits:
    size = launch.number("tensor-parallel-size", 1)
    if launch.gemma4 and launch.expert_format.startswith("nvfp4") and size > 1:
        yield {"size": size}


@info(
    "SPK414",
    "Static YaRN for every request",
    "--hf-overrides extends the context by {factor} with static YaRN, which lowers quality on short prompts too.",
    "Remove it if the model's own {own} tokens are enough.",
    "model cards of Qwen3.6",
)
def _yarn(launch: Launch) -> Hits:
    for rope in _overridden_ropes(launch):
        if rope.get("rope_type", rope.get("type")) == "yarn" and rope.get("factor"):
            original_length = rope.get("original_max_position_embeddings") or launch.text.get("max_position_embeddings")
            yield {"factor": rope["factor"], "own": original_length or "original"}


@error(
    "SPK415",
    "Context longer than the extended model's",
    "--max-model-len {asked} exceeds the {limit} tokens to which {how} the context.",
    "Set max-model-len to {limit} or less, {more}, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.",
    vllm_error="{error}",
)
def _stretched_too_far(launch: Launch) -> Hits:
    if not any(_overridden_ropes(launch)):
        return
    newer = launch.version is not None and launch.version >= version(f"0.{SCALED_YARN_MINOR}.0")
    for hit in _beyond_limit(launch):
        how = (
            f"vLLM {launch.version}, which takes max_position_embeddings as extended already, limits"
            if newer
            else "--hf-overrides extends"
        )
        yield {
            **hit,
            "how": how,
            "more": "add max_position_embeddings to --hf-overrides" if newer else "raise the factor",
        }


def _overridden_ropes(launch: Launch) -> Iterator[Mapping[str, Any]]:
    """Yield what C(--hf-overrides) say about rotary positions."""
    overrides = launch.args.get("hf-overrides")
    if isinstance(overrides, Mapping):
        for place in (overrides, overrides.get("text_config")):
            if isinstance(place, Mapping):
                yield from rotary_settings(place)


@warning(
    "SPK416",
    "Folder of local media is not mounted",
    "--allowed-local-media-path is {path} inside the container, where no folder of the host is mounted: "
    "such requests are refused.",
    "Mount the folder with docker_args: -v {path}:{path}:ro.",
    f"{PACKAGES}; {GUIDE}",
    "Invalid `--allowed-local-media-path`: The path {path} does not exist.",
)
def _local_media(launch: Launch) -> Hits:
    path = str(launch.args.get("allowed-local-media-path") or "").rstrip("/")
    # Without options of docker, the mounts are unknown.
    if not path.startswith("/") or not launch.docker.options:
        return
    targets = [target.rstrip("/") for _source, target in launch.docker.mounts]
    if not any(f"{target}/".startswith(f"{path}/") or f"{path}/".startswith(f"{target}/") for target in targets):
        yield {"path": path}
