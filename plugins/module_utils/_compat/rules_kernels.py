# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about the kernels of sm_121 (5xx)."""

from __future__ import annotations

from .rulebook import FIRES, GUIDE, PACKAGES, SELECTION, Change, Hits, Launch, error, info, warning

# 5xx: kernels of sm_121


error(
    "SPK501",
    "FP8 KV cache with FLASH_ATTN",
    "FLASH_ATTN does not support an FP8 KV cache on sm_121, in any version.",
    "Set attention-backend to FLASHINFER or TRITON_ATTN, or leave it out.",
    SELECTION,
    "No valid attention backend found",
    when=lambda launch: launch.attention == "flash_attn" and launch.kv_dtype.startswith("fp8"),
)

error(
    "SPK502",
    "NVFP4 KV cache before 0.32.0",
    "An NVFP4 KV cache does not work on sm_121 in vLLM {version}; it does from 0.32.0.",
    "Set kv-cache-dtype to fp8, or use vLLM 0.32.0 or newer.",
    SELECTION,
    needs_version=True,
    when=lambda launch: launch.kv_dtype.startswith("nvfp4") and launch.before("0.32.0"),
)


# Backends that refuse these experts on sm_121: format to backend to (first affected version, first fixed version).
_Bounds = dict[str, "tuple[str, str | None]"]
_REFUSED_NVFP4: _Bounds = dict.fromkeys(
    ("flashinfer_trtllm", "flashinfer_cutedsl", "triton", "deep_gemm"), ("0.17.0", None)
)
_REFUSED_MOE: dict[str, _Bounds] = {
    "nvfp4": _REFUSED_NVFP4,
    "nvfp4_weights": _REFUSED_NVFP4,
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


@error(
    "SPK503",
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
        yield {"backend": backend, "format": launch.expert_format, "working": _WORKING_MOE[launch.expert_format]}


@error(
    "SPK504",
    "Marlin for an unquantised MTP layer",
    "--moe-backend marlin also applies to the model's own MTP layer, whose experts this checkpoint leaves "
    "unquantised; vLLM {version} refuses that.",
    "{fix}",
    vllm_error="moe_backend='marlin' is not supported for unquantized MoE.",
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
        if launch.before("0.19.0"):
            fix = "Remove moe-backend, or use vLLM 0.19.0 or newer and set a moe_backend for the draft."
            yield {"fix": fix}
        else:
            change = Change("args", "speculative-config", {**launch.spec, "moe_backend": "triton"})
            yield {"fix": 'Add "moe_backend": "triton" to speculative-config.', "changes": (change,)}


@error(
    "SPK505",
    "MoE backend that this vLLM does not have",
    "--moe-backend {name} is not in vLLM {version}{span}.",
    "{fix}",
    vllm_error="argument --moe-backend: invalid choice: '{name}'",
    needs_version=True,
)
def _moe_backend_unknown(launch: Launch) -> Hits:
    if not launch.before("0.17.0"):
        yield from launch.unknown_value("moe-backend", "moe_backends", launch.word("moe-backend"))


@error(
    "SPK506",
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
        yield {"backend": backend.upper()}


@error(
    "SPK507",
    "KV cache type that this vLLM does not have",
    "--kv-cache-dtype {name} is not in vLLM {version}{span}.",
    "Use fp8 or auto.",
    vllm_error="argument --kv-cache-dtype: invalid choice: '{name}'",
    needs_version=True,
)
def _kv_dtype_unknown(launch: Launch) -> Hits:
    if not str(launch.args.get("kv-cache-dtype")).startswith("nvfp4"):
        yield from launch.unknown_value("kv-cache-dtype", "kv_cache_dtypes")


_NO_BACKEND = "No valid attention backend found"


@error(
    "SPK508",
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
        yield {"backend": launch.attention.upper(), "size": size}


@error(
    "SPK509",
    "Attention backend that this vLLM does not have",
    "--attention-backend {name} is not in vLLM {version}{span}.",
    "{fix}",
    vllm_error="Unknown attention backend: '{name}'",
    needs_version=True,
)
def _attention_unknown(launch: Launch) -> Hits:
    name = launch.word("attention-backend").upper()
    if name != "AUTO":
        yield from launch.unknown_value("attention-backend", "attention_backends", name)


@info(
    "SPK510",
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
    hit = {"Marlin": marlin}
    if backend in ("", "auto"):
        yield {**hit, "backend": "FLASHINFER_CUTLASS", "auto": ", vLLM's default"}
    elif backend in ("cutlass", "flashinfer_cutlass"):
        yield {**hit, "backend": backend.upper(), "auto": ""}


@info(
    "SPK511",
    "One attention backend for a hybrid model: the sources disagree",
    "--attention-backend {backend} applies to all attention layers of this hybrid model. One nightly "
    "build stopped at init_device with it; vLLM's recipes for DGX Spark use it.",
    "Remove attention-backend if the start stops there.",
    f"{GUIDE}; vLLM's recipes for DGX Spark",
)
def _hybrid_attention(launch: Launch) -> Hits:
    if launch.hybrid and launch.attention == "flashinfer":
        yield {"backend": launch.args.get("attention-backend", launch.attention)}


@info(
    "SPK512",
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


warning(
    "SPK513",
    "NVFP4 KV cache with Gemma 4",
    "Gemma 4 with an NVFP4 KV cache was reported to answer wrongly on GB10 with full CUDA graphs, its draft to fail.",
    "Set kv-cache-dtype to fp8.",
    f"vllm-project/vllm#46329; {GUIDE}",
    when=lambda launch: launch.gemma4 and launch.kv_dtype.startswith("nvfp4") and not launch.before("0.32.0"),
)

error(
    "SPK514",
    "NVFP4 KV cache with head size 64",
    "This model has head size 64, for which the kernels of the NVFP4 KV cache give wrong results.",
    "Set kv-cache-dtype to fp8.",
    vllm_error="fa2 prefill misreads NVFP4 at head_size 64.",
    when=lambda launch: 64 in launch.head_sizes and launch.kv_dtype.startswith("nvfp4") and not launch.before("0.32.0"),
)


@error(
    "SPK515",
    "TurboQuant KV cache with other kernels",
    "--kv-cache-dtype {dtype} works only with the attention backend TURBOQUANT; {backend} is set.",
    "Leave attention-backend out.",
    SELECTION,
    _NO_BACKEND,
)
def _turboquant(launch: Launch) -> Hits:
    if launch.kv_dtype.startswith("turboquant") and launch.attention not in ("", "turboquant"):
        yield {"dtype": launch.args.get("kv-cache-dtype"), "backend": launch.attention.upper()}


error(
    "SPK516",
    "FP8 KV cache with compressed attention before 0.18.0",
    "On sm_121 vLLM {version} has no kernel for an FP8 KV cache of compressed attention (MLA).",
    "Set kv-cache-dtype to auto, or use vLLM 0.18.0 or newer.",
    SELECTION,
    _NO_BACKEND,
    needs_version=True,
    when=lambda launch: (
        launch.mla and not launch.sparse_mla and launch.kv_dtype.startswith("fp8") and launch.before("0.18.0")
    ),
)

error(
    "SPK517",
    "Sparse compressed attention before 0.24.0",
    "This model attends to an index of tokens; on sm_121 vLLM {version} has no kernel for that.",
    "Use vLLM 0.24.0 or newer.",
    SELECTION,
    _NO_BACKEND,
    needs_version=True,
    when=lambda launch: launch.sparse_mla and launch.before("0.24.0"),
)


# Models that see an image's tokens all at once, and the kernels that can.
_PREFIX_MODELS = ("bagel", "gemma3", "molmo2", "paligemma")


@error(
    "SPK518",
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


@error(
    "SPK519",
    "Linear backend that this vLLM does not have",
    "--linear-backend {name} is not in vLLM {version}{span}.",
    "{fix}",
    vllm_error="argument --linear-backend: invalid choice: '{name}'",
    needs_version=True,
)
def _linear_unknown(launch: Launch) -> Hits:
    if not launch.before("0.22.0"):
        yield from launch.unknown_value("linear-backend", "linear_backends", launch.word("linear-backend"))


@warning(
    "SPK520",
    "b12x kernels need a package",
    "{option} b12x needs the package b12x, which vllm[b12x] installs and few images contain.",
    "Make sure that the image contains it, or remove {option}.",
)
def _b12x(launch: Launch) -> Hits:
    for option in ("attention-backend", "linear-backend", "moe-backend"):
        has = launch.brings("b12x", "b12x") or "b12x" in launch.entry.get("features", ())
        if launch.word(option) == "b12x" and not has:
            yield {"option": f"--{option}"}


@error(
    "SPK521",
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


@info(
    "SPK522",
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


warning(
    "SPK523",
    "CUDA graphs switched off",
    "--enforce-eager runs without CUDA graphs and compilation: starts are shorter, every token is slower "
    "(9 instead of 23 tokens a second for one model).",
    "Remove it once the launch works.",
    f"{GUIDE}; vLLM's report on DGX Spark, 2026",
    when=lambda launch: launch.args.get("enforce-eager") is True,
)
