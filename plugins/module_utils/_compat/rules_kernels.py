# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about the kernels of sm_121 (5xx)."""

from __future__ import annotations

from .rulebook import FIRES, GUIDE, PACKAGES, SELECTION, Change, Hits, Launch, rule

# 5xx: kernels of sm_121


@rule(
    "SPK501",
    "error",
    "FP8 KV cache with FLASH_ATTN",
    "FLASH_ATTN does not support an FP8 KV cache on sm_121, in any version.",
    "Set attention-backend to FLASHINFER or TRITON_ATTN, or leave it out.",
    SELECTION,
    "No valid attention backend found",
)
def _fp8_flash_attn(launch: Launch) -> Hits:
    if launch.attention == "flash_attn" and launch.kv_dtype.startswith("fp8"):
        yield FIRES


@rule(
    "SPK502",
    "error",
    "NVFP4 KV cache before 0.32.0",
    "An NVFP4 KV cache does not work on sm_121 in vLLM {version}; it does from 0.32.0.",
    "Set kv-cache-dtype to fp8, or use vLLM 0.32.0 or newer.",
    SELECTION,
    needs_version=True,
)
def _nvfp4_kv(launch: Launch) -> Hits:
    if launch.kv_dtype.startswith("nvfp4") and launch.before("0.32.0"):
        yield {"version": launch.version}


# Backends that refuse these experts on sm_121: format to backend to (first affected version, first fixed version).
_REFUSED_MOE: dict[str, dict[str, tuple[str, str | None]]] = {
    "nvfp4": {
        "flashinfer_trtllm": ("0.17.0", None),
        "flashinfer_cutedsl": ("0.17.0", None),
        "triton": ("0.17.0", None),
        "deep_gemm": ("0.17.0", None),
    },
    "nvfp4_weights": {
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
    "nvfp4_weights": "marlin",
    "fp8_block": "triton or marlin",
    "mxfp4": "marlin",
    "bf16": "triton",
}


@rule(
    "SPK503",
    "error",
    "MoE kernels that refuse these experts on sm_121",
    "--moe-backend {backend} does not run {format} experts on sm_121 in vLLM {version}.",
    "Use {working}, or leave moe-backend out.",
    SELECTION,
    needs_version=True,
)
def _moe_backend_refused(launch: Launch) -> Hits:
    backend = launch.word("moe-backend")
    bounds = _REFUSED_MOE.get(launch.expert_format, {}).get(backend)
    if bounds and not launch.before(bounds[0]) and (bounds[1] is None or launch.before(bounds[1])):
        yield {
            "backend": backend,
            "format": launch.expert_format,
            "version": launch.version,
            "working": _WORKING_MOE[launch.expert_format],
        }


@rule(
    "SPK504",
    "error",
    "Marlin for an unquantised MTP layer",
    "--moe-backend marlin also applies to the model's own MTP layer, whose experts this checkpoint leaves "
    "unquantised; vLLM {version} refuses that.",
    "{fix}",
    PACKAGES,
    "moe_backend='marlin' is not supported for unquantized MoE.",
    needs_version=True,
)
def _marlin_draft(launch: Launch) -> Hits:
    if (
        launch.word("moe-backend") == "marlin"
        and launch.moe
        and launch.method.endswith("mtp")
        and launch.draft_unquantised
        and not launch.spec.get("moe_backend")
        and launch.within("0.17.0", "0.33.0")
    ):
        yield {
            "version": launch.version,
            "fix": 'Add "moe_backend": "triton" to speculative-config.'
            if not launch.before("0.19.0")
            else "Remove moe-backend, or use vLLM 0.19.0 or newer and set a moe_backend for the draft.",
            "changes": ()
            if launch.before("0.19.0")
            else (Change("args", "speculative-config", {**launch.spec, "moe_backend": "triton"}),),
        }


@rule(
    "SPK505",
    "error",
    "MoE backend that this vLLM does not have",
    "--moe-backend {backend} is not in vLLM {version}{span}.",
    "{fix}",
    PACKAGES,
    "argument --moe-backend: invalid choice: '{backend}'",
    needs_version=True,
)
def _moe_backend_unknown(launch: Launch) -> Hits:
    backend = launch.word("moe-backend")
    if backend and launch.unsupported("moe_backends", backend) and not launch.before("0.17.0"):
        intended = launch.respelled("moe_backends", backend)
        changes = (Change("args", "moe-backend", intended),) if intended else ()
        yield {**launch.missing("moe_backends", backend, "backend"), "changes": changes}


@rule(
    "SPK506",
    "error",
    "Attention kernels without sinks for gpt-oss",
    "gpt-oss needs attention sinks, which {backend} does not support on sm_121 in vLLM {version}.",
    "Leave attention-backend out, or set it to TRITON_ATTN.",
    SELECTION,
    "No valid attention backend found",
    needs_version=True,
)
def _sinks(launch: Launch) -> Hits:
    backend = launch.attention
    able = {"", "triton_attn"} | (set() if launch.before("0.28.0") else {"flashinfer"})
    if launch.gpt_oss and backend not in able:
        yield {"backend": backend.upper(), "version": launch.version}


@rule(
    "SPK507",
    "error",
    "KV cache type that this vLLM does not have",
    "--kv-cache-dtype {dtype} is not in vLLM {version}{span}.",
    "Use fp8 or auto.",
    PACKAGES,
    "argument --kv-cache-dtype: invalid choice: '{dtype}'",
    needs_version=True,
)
def _kv_dtype_unknown(launch: Launch) -> Hits:
    dtype = str(launch.args.get("kv-cache-dtype") or "")
    if dtype and launch.unsupported("kv_cache_dtypes", dtype) and not dtype.startswith("nvfp4"):
        intended = launch.respelled("kv_cache_dtypes", dtype)
        changes = (Change("args", "kv-cache-dtype", intended),) if intended else ()
        yield {**launch.missing("kv_cache_dtypes", dtype, "dtype"), "changes": changes}


_NO_BACKEND = "No valid attention backend found"


@rule(
    "SPK508",
    "error",
    "Attention kernels without the head sizes of this model",
    "{backend} does not support head size {size} on sm_121 in vLLM {version}.",
    "Leave attention-backend out, or set it to TRITON_ATTN.",
    SELECTION,
    _NO_BACKEND,
    needs_version=True,
)
def _head_size(launch: Launch) -> Hits:
    size = max(launch.head_sizes, default=0)
    if size > 256 and (
        launch.attention == "flash_attn"
        or (launch.attention == "flashinfer" and size == 512 and launch.before("0.22.0"))
    ):
        yield {"backend": launch.attention.upper(), "size": size, "version": launch.version}


@rule(
    "SPK509",
    "error",
    "Attention backend that this vLLM does not have",
    "--attention-backend {name} is not in vLLM {version}{span}.",
    "{fix}",
    PACKAGES,
    "Unknown attention backend: '{name}'",
    needs_version=True,
)
def _attention_unknown(launch: Launch) -> Hits:
    name = launch.word("attention-backend").upper()
    if name and name != "AUTO" and launch.unsupported("attention_backends", name):
        intended = launch.respelled("attention_backends", name)
        changes = (Change("args", "attention-backend", intended),) if intended else ()
        yield {**launch.missing("attention_backends", name), "changes": changes}


@rule(
    "SPK510",
    "info",
    "NVFP4 experts on CUTLASS: the sources disagree",
    "These NVFP4 experts run on {backend} in vLLM {version}{auto}. NVIDIA's recipes, and most here, set "
    "Marlin. Two guides report garbage from CUTLASS FP4 (known cause up to 0.19.1, SPK301); one owner "
    "measured correct and faster output.",
    "{Marlin}, unless you measured both: the proof reports garbage (!!!!!).",
    f"{SELECTION}; NVIDIA/local-ai-inference-recipes; NVIDIA/dgx-spark-playbooks; {GUIDE}; vllm-project/vllm#28129",
    needs_version=True,
)
def _fp4_experts(launch: Launch) -> Hits:
    if launch.expert_format != "nvfp4" or launch.before("0.15.1"):
        return
    backend = launch.word("moe-backend")
    marlin = (
        "Use vLLM 0.17.0 or newer with moe-backend marlin" if launch.before("0.17.0") else "Set moe-backend to marlin"
    )
    hit = {"version": launch.version, "Marlin": marlin}
    if backend in ("", "auto"):
        yield {**hit, "backend": "FLASHINFER_CUTLASS", "auto": ", vLLM's default"}
    elif backend in ("cutlass", "flashinfer_cutlass"):
        yield {**hit, "backend": backend.upper(), "auto": ""}


@rule(
    "SPK511",
    "info",
    "One attention backend for a hybrid model: the sources disagree",
    "--attention-backend {backend} applies to all attention layers of this hybrid model. One nightly "
    "build stopped at init_device with it; vLLM's recipes for DGX Spark use it.",
    "Remove attention-backend if the start stops there.",
    f"{GUIDE}; vLLM's recipes for DGX Spark",
)
def _hybrid_attention(launch: Launch) -> Hits:
    if launch.hybrid and launch.attention == "flashinfer":
        yield {"backend": launch.args.get("attention-backend", launch.attention)}


@rule(
    "SPK512",
    "info",
    "FP8 KV cache without scales in the checkpoint",
    "The checkpoint has no scales for a KV cache of {dtype}; vLLM uses 1.0. Some models then repeat "
    "themselves or answer nonsense.",
    "Compare the answers once with kv-cache-dtype auto.",
    f"{PACKAGES}; {GUIDE}",
    "Using KV cache scaling factor 1.0 for fp8_e4m3.",
)
def _kv_scales(launch: Launch) -> Hits:
    if launch.config and launch.kv_dtype in ("fp8", "fp8_e4m3") and not launch.kv_scales:
        yield {"dtype": launch.kv_dtype}


@rule(
    "SPK513",
    "warning",
    "NVFP4 KV cache with Gemma 4",
    "Gemma 4 with an NVFP4 KV cache was reported to answer wrongly on GB10 with full CUDA graphs, its draft to fail.",
    "Set kv-cache-dtype to fp8.",
    f"vllm-project/vllm#46329; {GUIDE}",
)
def _gemma4_nvfp4_kv(launch: Launch) -> Hits:
    if launch.gemma4 and launch.kv_dtype.startswith("nvfp4") and not launch.before("0.32.0"):
        yield FIRES


@rule(
    "SPK514",
    "error",
    "NVFP4 KV cache with head size 64",
    "This model has head size 64, for which the kernels of the NVFP4 KV cache give wrong results.",
    "Set kv-cache-dtype to fp8.",
    PACKAGES,
    "fa2 prefill misreads NVFP4 at head_size 64.",
)
def _nvfp4_small_heads(launch: Launch) -> Hits:
    if 64 in launch.head_sizes and launch.kv_dtype.startswith("nvfp4") and not launch.before("0.32.0"):
        yield FIRES


@rule(
    "SPK515",
    "error",
    "TurboQuant KV cache with other kernels",
    "--kv-cache-dtype {dtype} works only with the attention backend TURBOQUANT; {backend} is set.",
    "Leave attention-backend out.",
    SELECTION,
    _NO_BACKEND,
)
def _turboquant(launch: Launch) -> Hits:
    if launch.kv_dtype.startswith("turboquant") and launch.attention not in ("", "turboquant"):
        yield {"dtype": launch.args.get("kv-cache-dtype"), "backend": launch.attention.upper()}


@rule(
    "SPK516",
    "error",
    "FP8 KV cache with compressed attention before 0.18.0",
    "On sm_121 vLLM {version} has no kernel for an FP8 KV cache of compressed attention (MLA).",
    "Set kv-cache-dtype to auto, or use vLLM 0.18.0 or newer.",
    SELECTION,
    _NO_BACKEND,
    needs_version=True,
)
def _mla_fp8(launch: Launch) -> Hits:
    if launch.mla and not launch.sparse_mla and launch.kv_dtype.startswith("fp8") and launch.before("0.18.0"):
        yield {"version": launch.version}


@rule(
    "SPK517",
    "error",
    "Sparse compressed attention before 0.24.0",
    "This model attends to an index of tokens; on sm_121 vLLM {version} has no kernel for that.",
    "Use vLLM 0.24.0 or newer.",
    SELECTION,
    _NO_BACKEND,
    needs_version=True,
)
def _sparse(launch: Launch) -> Hits:
    if launch.sparse_mla and launch.before("0.24.0"):
        yield {"version": launch.version}


# Models that see an image's tokens all at once, and the kernels that can.
_PREFIX_MODELS = ("bagel", "gemma3", "molmo2", "paligemma")


@rule(
    "SPK518",
    "error",
    "Attention kernels without bidirectional attention",
    "This model uses bidirectional attention for the tokens of an image; {backend} does not support it.",
    "Leave attention-backend out, or set it to TRITON_ATTN.",
    SELECTION,
    _NO_BACKEND,
    needs_version=True,
)
def _both_ways(launch: Launch) -> Hits:
    if (
        str(launch.config.get("model_type")) in _PREFIX_MODELS
        and launch.attention not in ("", "triton_attn", "flex_attention")
        and not launch.before("0.13.0")
    ):
        yield {"backend": launch.attention.upper()}


@rule(
    "SPK519",
    "error",
    "Linear backend that this vLLM does not have",
    "--linear-backend {name} is not in vLLM {version}{span}.",
    "{fix}",
    PACKAGES,
    "argument --linear-backend: invalid choice: '{name}'",
    needs_version=True,
)
def _linear_unknown(launch: Launch) -> Hits:
    name = launch.word("linear-backend")
    if name and not launch.before("0.22.0") and launch.unsupported("linear_backends", name):
        intended = launch.respelled("linear_backends", name)
        changes = (Change("args", "linear-backend", intended),) if intended else ()
        yield {**launch.missing("linear_backends", name), "changes": changes}


@rule(
    "SPK520",
    "warning",
    "b12x kernels need a package",
    "{option} b12x needs the package b12x, which vllm[b12x] installs and few images contain.",
    "Make sure that the image contains it, or remove {option}.",
    PACKAGES,
)
def _b12x(launch: Launch) -> Hits:
    for option in ("attention-backend", "linear-backend", "moe-backend"):
        has = launch.brings("b12x", "b12x") or "b12x" in launch.entry.get("features", ())
        if launch.word(option) == "b12x" and not has:
            yield {"option": f"--{option}"}


@rule(
    "SPK521",
    "error",
    "Attention kernels of other GPUs",
    "{backend} runs on {where}, not on sm_121.",
    "Leave attention-backend out: vLLM picks kernels that GB10 has.",
    SELECTION,
    _NO_BACKEND,
)
def _foreign_attention(launch: Launch) -> Hits:
    where = _FOREIGN_ATTENTION.get(launch.attention)
    if launch.attention.startswith("rocm_"):
        where = "AMD GPUs"
    if where:
        yield {"backend": launch.attention.upper(), "where": where}


_FOREIGN_ATTENTION = {
    "flashmla": "compute capabilities 9.x and 10.x",
    "flashmla_sparse": "compute capabilities 9.x and 10.x",
    "flash_attn_mla": "compute capability 9.x",
    "cutlass_mla": "compute capability 10.x",
    "flashinfer_mla": "compute capability 10.x",
    "flashinfer_mla_sparse": "compute capability 10.x",
    "tokenspeed_mla": "compute capability 10.x",
    "cpu_attn": "CPUs",
    "xpu_mla_sparse": "Intel GPUs",
}


@rule(
    "SPK522",
    "info",
    "Chunked prefill on Mamba with experts: the sources disagree",
    "--enable-chunked-prefill was reported to make Mamba models with experts nine times slower. vLLM has "
    "it on by default, so the option changes nothing there.",
    "Remove the option, and measure.",
    f"{GUIDE}; {PACKAGES}",
)
def _chunked_mamba(launch: Launch) -> Hits:
    mamba = str(launch.config.get("model_type")) in ("nemotron_h", "jamba", "bamba", "granitemoehybrid")
    if launch.args.get("enable-chunked-prefill") is True and mamba and launch.moe:
        yield FIRES


@rule(
    "SPK523",
    "warning",
    "CUDA graphs switched off",
    "--enforce-eager runs without CUDA graphs and compilation: starts are shorter, every token is slower "
    "(9 instead of 23 tokens a second for one model).",
    "Remove it once the launch works.",
    f"{GUIDE}; vLLM's report on DGX Spark, 2026",
)
def _eager(launch: Launch) -> Hits:
    if launch.args.get("enforce-eager") is True:
        yield FIRES
