"""Lines as the packages of each version write them; which text is whose was checked against their sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat import rulebook
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import expected_path, recipes
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service import JudgedLaunch, ServiceSpec
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import fast_path
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof.fast_path import Counted, Running
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import versions

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/ranks"

CONFIG = (
    "Initializing a V1 LLM engine (v{version}) with config: model='/models/x', speculative_config={spec}, "
    "tokenizer='/models/x', dtype=torch.bfloat16, max_seq_len=65536, quantization=modelopt_fp4, "
    "quantization_config=None, enforce_eager={eager}, kv_cache_dtype=fp8, device_config=cuda, seed=0, "
    "served_model_name=heavy, enable_prefix_caching={prefix}, enable_chunked_prefill=True, pooler_config=None, "
    "compilation_config={{'mode': <CompilationMode.VLLM_COMPILE: 3>, 'cudagraph_mode': <CUDAGraphMode.{graphs}>, "
    "'cudagraph_capture_sizes': [1, 2, 4]}}"
)
MTP = "SpeculativeConfig(method='mtp', model='/models/x', num_spec_tokens=3)"

# What one engine of each version writes with NVFP4 experts on Marlin, NVFP4 linear layers on FlashInfer and an FP8 cache.
MESSAGES = {
    "0.17.1": [
        "Using FLASHINFER attention backend out of potential backends: ['FLASHINFER', 'TRITON_ATTN'].",
        "Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['FLASHINFER_TRTLLM', 'MARLIN'].",
        "Using NvFp4LinearBackend.FLASHINFER_CUTLASS for NVFP4 GEMM",
        "Using TRITON backend for Unquantized MoE",
        "Asynchronous scheduling is enabled.",
    ],
    "0.19.0": [
        "Using FLASHINFER attention backend out of potential backends: ['FLASHINFER', 'TRITON_ATTN'].",
        "Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['FLASHINFER_TRTLLM', 'MARLIN'].",
        "Using NvFp4LinearBackend.FLASHINFER_CUTLASS for NVFP4 GEMM",
        "Using TRITON backend for Unquantized MoE",
        "Asynchronous scheduling is enabled.",
    ],
    "0.23.0": [
        "Using FLASHINFER attention backend out of potential backends: ['FLASHINFER', 'TRITON_ATTN'].",
        "Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['FLASHINFER_TRTLLM', 'MARLIN'].",
        "Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
        "Using TRITON Unquantized MoE backend out of potential backends: ['TRITON'].",
        "Asynchronous scheduling is enabled.",
    ],
    "0.33.0": [
        "Using AttentionBackendEnum.FLASHINFER backend.",
        "Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['FLASHINFER_TRTLLM', 'MARLIN'].",
        "Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
        "Using TRITON Unquantized MoE backend out of potential backends: ['TRITON'].",
    ],
}
COMMON = [
    "Chunked prefill is enabled with max_num_batched_tokens=8192.",
    "Graph capturing finished in 12 secs, took 0.19 GiB",
]


def log(version: str, *more: str, **config: str) -> list[str]:
    values = {
        "version": version,
        "spec": MTP,
        "eager": "False",
        "prefix": "True",
        "graphs": "FULL_AND_PIECEWISE: (2, 1)",
    }
    messages = [CONFIG.format(**{**values, **config}), *MESSAGES[version], *COMMON, *more]
    return [f"(EngineCore pid=83) INFO 11-20 09:25:20 [cuda.py:334] {message}" for message in messages]


def planned_launch(
    version: str = "0.24.0", config: dict[str, Any] | None = None, env: dict[str, str] | None = None, **args: Any
) -> Any:
    """A launch; options by their names with underscores."""
    return rulebook.Launch(
        image="",
        entry={},
        version=versions.parse_version(version),
        entrypoint="serve",
        entrypoint_known=True,
        args={name.replace("_", "-"): value for name, value in args.items()},
        problems=[],
        env=env or {},
        repo="org/model",
        config=config or {},
        quant_config={},
    )


NVFP4 = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 128,
    "num_experts": 128,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}


def off(
    launch: Any,
    lines: list[str],
    counted: Counted | None = None,
    rank: int = 0,
    stated: list[dict[str, Any]] | None = None,
) -> list[Any]:
    runs = fast_path.parse_log(lines)
    return fast_path.compare(
        "heavy", expected_path.expectation(launch, stated or []), runs, counted or Counted(), rank
    )[1]


@pytest.mark.parametrize(
    ("name", "uniform"),
    [
        ("NvFp4LinearBackend.FLASHINFER_CUTLASS", "flashinfer_cutlass"),
        ("FlashInferCutlassNvFp4LinearKernel", "flashinfer_cutlass"),
        ("flashinfer-cutlass", "flashinfer_cutlass"),
        ("FlashInfer CUTLASS", "flashinfer_cutlass"),
        ("FLASHINFER_CUTLASS_MXFP4_BF16", "flashinfer_cutlass"),
        ("VLLM_CUTLASS", "cutlass"),
        ("CutlassNvFp4LinearKernel", "cutlass"),
        ("MarlinNvFp4LinearKernel", "marlin"),
        ("BATCHED_MARLIN", "marlin"),
        ("DEEPGEMM", "deep_gemm"),
        ("deep_gemm", "deep_gemm"),
        ("DeepGemmFp8BlockScaledMMKernel", "deep_gemm"),
        ("FlashInferB12xNvFp4LinearKernel", "flashinfer_b12x"),
        ("B12xNvFp4LinearKernel", "b12x"),
        ("FlashInferTrtllmNvFp4LinearKernel", "flashinfer_trtllm"),
        ("FlashInferCuteDslNvFp4LinearKernel", "flashinfer_cutedsl"),
        ("FlashInferCuteDslNvFp4W4A16LinearKernel", "flashinfer_cutedsl_w4a16"),
        ("B12xNvFp4W4A16LinearKernel", "b12x_w4a16"),
        ("EmulationNvFp4LinearKernel", "emulation"),
        ("TRITON", "triton"),
        ("CPU", "cpu"),
    ],
)
def test_kernels_have_one_name(name: str, uniform: str) -> None:
    assert fast_path.kernel(name) == uniform


@pytest.mark.parametrize("version", MESSAGES)
def test_the_lines_of_each_version(version: str) -> None:
    runs = fast_path.parse_log(log(version))
    assert runs.version == version and runs.device == "cuda"
    assert runs.attention == ["FLASHINFER"]
    assert runs.moe == [{"name": "marlin", "format": "nvfp4"}, {"name": "triton", "format": "unquantized"}]
    assert runs.linear == [{"name": "flashinfer_cutlass", "format": "nvfp4"}]
    assert (runs.graphs, runs.max_num_batched_tokens, runs.prefix_caching) == ("FULL_AND_PIECEWISE", 8192, True)
    assert (runs.draft_method, runs.draft_tokens, runs.quantization) == ("mtp", 3, "modelopt_fp4")
    assert (runs.kv_cache_dtype, runs.chunked_prefill) == ("fp8", True)
    assert runs.async_scheduling is (None if version == "0.33.0" else True)


@pytest.mark.parametrize("version", MESSAGES)
def test_an_engine_that_runs_as_meant_is_no_finding(version: str) -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 3}
    launch = planned_launch(
        version,
        NVFP4,
        moe_backend="marlin",
        kv_cache_dtype="fp8",
        speculative_config=spec,
        max_num_batched_tokens=8192,
        enable_prefix_caching=True,
        async_scheduling=True,
    )
    expected = expected_path.expectation(launch)
    counted = Counted(drafts=100, drafted=300, accepted=240, acceptance=0.8, accepted_length=3.4)
    checks, findings = fast_path.compare("heavy", expected, fast_path.parse_log(log(version)), counted)
    assert findings == []
    verdicts = {name: check.verdict for name, check in checks.items()}
    unknown = {"async_scheduling"} if version == "0.33.0" else set()
    assert {name for name, verdict in verdicts.items() if verdict == "unknown"} == unknown
    assert {name for name, verdict in verdicts.items() if verdict == "not_asked"} == {"acceptance"}
    assert fast_path.summary(checks) == "ok"


@pytest.mark.parametrize(
    ("line", "name", "kind"),
    [
        ("Selected CutlassFP8ScaledMMLinearKernel for CompressedTensorsW8A8Fp8", "cutlass", "fp8"),
        ("Using MarlinLinearKernel for GPTQMarlinLinearMethod", "marlin", "gptq"),
        ("Using MarlinLinearKernel for CompressedTensorsWNA16", "marlin", "wna16"),
        ("Using MARLIN backend for MXFP8 GEMM", "marlin", "mxfp8"),
        ("Selected DeepGemmFp8BlockScaledMMKernel for Fp8LinearMethod", "deep_gemm", "fp8"),
    ],
)
def test_linear_kernels_of_other_formats(line: str, name: str, kind: str) -> None:
    assert fast_path.parse_log([line]).linear == [{"name": name, "format": kind}]


@pytest.mark.parametrize(
    ("line", "name", "kind"),
    [
        ("Using DEEPGEMM Fp8 MoE backend out of potential backends: ['DEEPGEMM', 'TRITON'].", "deep_gemm", "fp8"),
        ("Using 'MARLIN' Mxfp4 MoE backend.", "marlin", "mxfp4"),
        ("Using 'MARLIN' WNA16 MoE backend.", "marlin", "wna16"),
        ("Using 'MARLIN' MxFp8 MoE backend (user-requested).", "marlin", "mxfp8"),
        (
            "Using FlashInfer CUTLASS Unquantized MoE backend out of potential backends: ['FlashInfer CUTLASS', 'TRITON'].",
            "flashinfer_cutlass",
            "unquantized",
        ),
    ],
)
def test_experts_of_other_formats(line: str, name: str, kind: str) -> None:
    assert fast_path.parse_log([line]).moe == [{"name": name, "format": kind}]


def test_lines_that_are_about_something_else() -> None:
    runs = fast_path.parse_log(
        [
            "Using backend FLASH_ATTN for vit attention",
            "Using HND KV cache layout for FLASHINFER backend.",
            "Using FlashInfer GDN prefill kernel",
            "Loading weights took 343.1 seconds",
            "Using MoEPrepareAndFinalizeNoDPEPModular",
        ]
    )
    assert (runs.attention, runs.moe, runs.linear, runs.gdn) == ([], [], [], "FlashInfer")


def test_lines_that_ray_brought_from_another_host_do_not_count() -> None:
    line = "(RayWorkerProc pid=90, ip=10.0.0.2) INFO 11-20 [cuda.py:1] Using TRITON_ATTN attention backend out of potential backends"
    assert fast_path.parse_log([line]).attention == []


# --- differences from the expected path -----------------------------------------------------------------------------


def test_experts_on_other_kernels_than_asked_for() -> None:
    lines = [line.replace("'MARLIN' NvFp4", "'FLASHINFER_CUTLASS' NvFp4") for line in log("0.23.0")]
    (finding,) = off(
        planned_launch(
            "0.23.0", NVFP4, moe_backend="marlin", kv_cache_dtype="fp8", speculative_config={"method": "mtp"}
        ),
        lines,
    )
    assert (finding.rule, finding.severity, finding.service) == ("fast_path.moe_backend", "warning", "heavy")
    assert "runs its experts (MoE) on flashinfer_cutlass, not on marlin; moe-backend asks for it" in finding.message
    assert "take moe-backend out" in finding.fix


def test_the_drafters_experts_do_not_count_for_those_of_the_model() -> None:
    """triton runs, but for the unquantised MTP layer alone."""
    (finding,) = off(
        planned_launch(
            "0.23.0", NVFP4, moe_backend="triton", kv_cache_dtype="fp8", speculative_config={"method": "mtp"}
        ),
        log("0.23.0"),
    )
    assert "on marlin, not on triton" in finding.message


def test_a_recipe_that_requires_kernels_makes_it_an_error() -> None:
    stated = [{"what": "experts", "moe_backend": "marlin", "required": True, "source": "a guide"}]
    lines = [line.replace("'MARLIN' NvFp4", "'VLLM_CUTLASS' NvFp4") for line in log("0.19.0")]
    (finding,) = off(
        planned_launch("0.19.0", NVFP4, kv_cache_dtype="fp8", speculative_config={"method": "mtp"}),
        lines,
        stated=stated,
    )
    assert finding.severity == "error" and "the recipe says so (a guide)" in finding.message


def test_what_people_ask_for_beats_the_recipe() -> None:
    stated = [{"what": "experts", "moe_backend": "marlin", "source": "a guide"}]
    expected = expected_path.expectation(planned_launch(moe_backend="flashinfer-cutlass"), stated)
    assert expected["moe_backend"]["any_of"] == ["flashinfer_cutlass"]
    assert expected_path.expectation(planned_launch(moe_backend="auto"), stated)["moe_backend"]["any_of"] == ["marlin"]


def test_an_image_without_flashinfer_is_seen_by_what_vllm_picks_instead() -> None:
    lines = [
        line.replace("FlashInferCutlassNvFp4", "CutlassNvFp4").replace("FLASHINFER attention", "TRITON_ATTN attention")
        for line in log("0.23.0")
    ]
    findings = off(
        planned_launch(
            "0.23.0", NVFP4, moe_backend="marlin", kv_cache_dtype="fp8", speculative_config={"method": "mtp"}
        ),
        lines,
    )
    assert [finding.rule for finding in findings] == ["fast_path.attention_backend", "fast_path.linear_kernel"]
    assert all("flashinfer-cubin" in finding.fix for finding in findings)


@pytest.mark.parametrize(
    ("launch", "pick"),
    [
        (planned_launch(config={"head_dim": 128}), ["FLASH_ATTN"]),
        (planned_launch(config={"head_dim": 128}, kv_cache_dtype="fp8"), ["FLASHINFER"]),
        (planned_launch(config=NVFP4), ["FLASH_ATTN", "FLASHINFER"]),
        (planned_launch(config=NVFP4, kv_cache_dtype="fp8"), ["FLASHINFER"]),
        (planned_launch("0.11.0", config={"head_dim": 128}), None),
        (planned_launch(config={"head_dim": 96}), None),
        (
            planned_launch(config={"architectures": ["Gemma4ForConditionalGeneration"], "head_dim": 256}),
            ["TRITON_ATTN"],
        ),
        (planned_launch("0.24.0", config={"architectures": ["GptOssForCausalLM"], "head_dim": 64}), ["TRITON_ATTN"]),
        (
            planned_launch("0.30.0", config={"architectures": ["GptOssForCausalLM"], "head_dim": 64}),
            ["FLASHINFER", "TRITON_ATTN"],
        ),
        (planned_launch(config={"kv_lora_rank": 512, "head_dim": 128}), ["TRITON_MLA"]),
        (planned_launch(config={"head_dim": 128}, attention_backend="triton_attn"), ["TRITON_ATTN"]),
        (
            planned_launch("0.14.1", config={"head_dim": 128}, env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}),
            ["FLASHINFER"],
        ),
        (
            planned_launch("0.24.0", config={"head_dim": 128}, env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}),
            ["FLASH_ATTN"],
        ),
    ],
)
def test_the_attention_kernels_that_are_expected(launch: Any, pick: list[str] | None) -> None:
    assert (expected_path.expectation(launch).get("attention_backend") or {}).get("any_of") == pick


FP8 = {"num_experts": 8, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


@pytest.mark.parametrize(
    ("launch", "pick"),
    [
        (planned_launch("0.24.0", NVFP4), ["flashinfer_cutlass"]),
        (planned_launch("0.15.1", NVFP4), None),
        (planned_launch("0.19.0", NVFP4, env={"VLLM_USE_FLASHINFER_MOE_FP4": "0"}), None),
        (planned_launch("0.23.0", FP8), ["triton"]),
        (planned_launch("0.24.0", FP8), ["deep_gemm", "triton"]),
        (planned_launch("0.24.0", FP8, env={"VLLM_USE_DEEP_GEMM": "0"}), ["triton"]),
        (planned_launch("0.24.0", {"num_experts": 8, "quantization_config": {"quant_method": "mxfp4"}}), ["marlin"]),
        (planned_launch("0.19.0", {"num_experts": 8}), ["triton"]),
        (planned_launch("0.20.0", {"num_experts": 8}), ["flashinfer_cutlass"]),
        (planned_launch("0.24.0", {"head_dim": 128}), None),
        # Only the format's name: whether the activations are quantised, too, is not told.
        (
            planned_launch(
                "0.24.0",
                {
                    "num_experts": 8,
                    "quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
                },
            ),
            None,
        ),
    ],
)
def test_the_kernels_of_experts_that_are_expected(launch: Any, pick: list[str] | None) -> None:
    assert (expected_path.expectation(launch).get("moe_backend") or {}).get("any_of") == pick


def test_linear_kernels_by_option_and_by_the_variable_of_old_versions() -> None:
    env = {"VLLM_NVFP4_GEMM_BACKEND": "flashinfer-cutlass"}
    assert expected_path.expectation(planned_launch("0.23.0", env=env))["linear_kernel"]["any_of"] == [
        "flashinfer_cutlass"
    ]
    assert "linear_kernel" not in expected_path.expectation(planned_launch("0.24.0", env=env))
    assert expected_path.expectation(planned_launch(linear_backend="marlin"))["linear_kernel"]["any_of"] == ["marlin"]


@pytest.mark.parametrize(
    ("config", "more", "graphs"),
    [
        ({"eager": "True"}, (), "captured"),  # captured all the same: the line at the end of the capture counts
        ({"graphs": "NONE: 0"}, (), "captured"),
        (
            {},
            (
                "CUDAGraphMode.FULL is not supported with TritonAttn backend (support: NEVER); setting cudagraph_mode=PIECEWISE",
            ),
            "PIECEWISE",
        ),
    ],
)
def test_graphs(config: dict[str, str], more: tuple[str, ...], graphs: str) -> None:
    assert fast_path.parse_log(log("0.23.0", *more, **config)).graphs == graphs


@pytest.mark.parametrize(
    "more",
    [
        "Cudagraph is disabled under eager mode",
        "Enforce eager set, disabling torch.compile and CUDAGraphs. This is equivalent to setting -cc.mode=none",
        "Cudagraph mode FULL is not compatible with compilation mode 0.Overriding to NONE.",
        "CUDAGraphMode.FULL is not supported with X backend; setting cudagraph_mode=NONE because attention is compiled",
    ],
)
def test_an_engine_without_graphs(more: str) -> None:
    lines = [line for line in log("0.23.0", more) if "Graph capturing" not in line]
    launch = planned_launch(
        "0.23.0", NVFP4, moe_backend="marlin", kv_cache_dtype="fp8", speculative_config={"method": "mtp"}
    )
    (finding,) = off(launch, lines)
    assert finding.rule == "fast_path.cuda_graphs" and "without CUDA graphs" in finding.message
    launch.args["enforce-eager"] = True  # then it was meant
    assert off(launch, lines) == []


def test_what_is_asked_for_and_not_given() -> None:
    launch = planned_launch(
        "0.23.0",
        NVFP4,
        moe_backend="marlin",
        kv_cache_dtype="nvfp4",
        enable_prefix_caching=True,
        async_scheduling=True,
        max_num_batched_tokens=16384,
    )
    lines = [
        *log(
            "0.23.0",
            "Async scheduling not supported with ngram-based speculative decoding and will be disabled.",
            prefix="False",
        ),
    ]
    messages = {finding.rule: finding.message for finding in off(launch, lines)}
    assert set(messages) == {
        f"fast_path.{name}"
        for name in ("prefix_caching", "async_scheduling", "max_num_batched_tokens", "kv_cache_dtype")
    }
    assert messages["fast_path.prefix_caching"] == "prefix caching of heavy is off, not on as asked for."
    assert (
        "async scheduling of heavy is off, not on as asked for (Async scheduling not supported"
        in messages["fast_path.async_scheduling"]
    )
    assert "is 8192, not 16384" in messages["fast_path.max_num_batched_tokens"]
    assert "kv-cache-dtype of heavy is fp8, not nvfp4" in messages["fast_path.kv_cache_dtype"]


def test_a_batch_that_vllm_raised_and_a_kind_of_fp8_are_fine() -> None:
    launch = planned_launch("0.23.0", NVFP4, moe_backend="marlin", kv_cache_dtype="fp8", max_num_batched_tokens=2048)
    lines = [line.replace("kv_cache_dtype=fp8,", "kv_cache_dtype=fp8_e4m3,") for line in log("0.23.0")]
    assert off(launch, lines) == []


def test_a_drafter_that_does_not_draft() -> None:
    launch = planned_launch(
        "0.23.0", NVFP4, moe_backend="marlin", kv_cache_dtype="fp8", speculative_config={"method": "mtp"}
    )
    (finding,) = off(launch, log("0.23.0", spec="None"))
    assert "drafts nothing, though speculative-config asks for mtp" in finding.message
    (finding,) = off(launch, log("0.23.0", spec=MTP.replace("'mtp'", "'draft_model'")))
    assert "as an ordinary draft model" in finding.message and "0.21.0" in finding.fix
    assert off(launch, log("0.23.0", spec=MTP.replace("'mtp'", "'qwen3_5_mtp'"))) == []


METRICS = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="heavy"}} {drafts}
vllm:spec_decode_num_drafts_created{{engine="0",model_name="heavy"}} 1.79e+09
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="heavy"}} {drafted}
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="heavy"}} {accepted}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="heavy",position="0"}} 84.0
vllm:prefix_cache_queries_total{{engine="0",model_name="heavy"}} 31.0
vllm:prefix_cache_hits_total{{engine="0",model_name="heavy"}} 16.0
vllm:cache_config_info{{block_size="128",enable_prefix_caching="{prefix}",kv_cache_size_tokens="2097152",note="a \\"b\\" c"}} 1.0
"""


def metrics(drafts: float = 105.0, drafted: float = 630.0, accepted: float = 149.0, prefix: str = "True") -> Counted:
    return fast_path.parse_metrics(METRICS.format(drafts=drafts, drafted=drafted, accepted=accepted, prefix=prefix))


def test_metrics() -> None:
    counted = metrics()
    assert (counted.drafts, counted.drafted, counted.accepted) == (105, 630, 149)
    assert (counted.acceptance, counted.accepted_length) == (0.237, 2.42)
    assert (counted.prefix_queries, counted.prefix_hits) == (31, 16)
    assert (counted.prefix_caching, counted.kv_cache_tokens) == (True, 2097152)
    assert fast_path.parse_metrics("") == Counted() == fast_path.parse_metrics("nonsense {\nvllm:x NaN\n")


FLOOR = [{"what": "drafts", "draft": "mtp", "min_acceptance": 0.4, "source": "a guide"}]
DRAFTS = planned_launch(
    "0.23.0", NVFP4, moe_backend="marlin", kv_cache_dtype="fp8", speculative_config={"method": "mtp"}
)


def test_too_few_accepted_drafts() -> None:
    (finding,) = off(DRAFTS, log("0.23.0"), metrics(), stated=FLOOR)
    assert (
        "24% of the drafted tokens of heavy are accepted (2.42 tokens a step, 630 drafted); 40% are expected"
        in finding.message
    )
    assert finding.severity == "warning"
    required = [{**FLOOR[0], "required": True}]
    assert off(DRAFTS, log("0.23.0"), metrics(), stated=required)[0].severity == "error"
    assert off(DRAFTS, log("0.23.0"), metrics(accepted=400.0), stated=FLOOR) == []
    assert (
        off(DRAFTS, log("0.23.0"), metrics(drafts=2.0, drafted=6.0, accepted=0.0), stated=FLOOR) == []
    )  # says nothing
    assert off(DRAFTS, log("0.23.0"), metrics(), rank=1, stated=FLOOR) == []
    assert off(DRAFTS, log("0.23.0"), metrics(), stated=[{**FLOOR[0], "draft": "dflash"}]) == []


def test_drafts_that_are_of_no_use_without_a_stated_floor() -> None:
    (finding,) = off(DRAFTS, log("0.23.0"), metrics(accepted=6.0))
    assert finding.severity == "warning" and "1.0% of 630 drafted tokens" in finding.message
    ngram = planned_launch(
        "0.23.0", NVFP4, moe_backend="marlin", kv_cache_dtype="fp8", speculative_config={"method": "ngram"}
    )
    (finding,) = off(ngram, log("0.23.0", spec=MTP.replace("'mtp'", "'ngram'")), metrics(accepted=6.0))
    assert finding.severity == "info"


@pytest.mark.parametrize(
    ("line", "rule", "severity"),
    [
        (
            "NVFP4 linear falling back to the slow and unoptimized emulation backend as no optimized backend is available",
            "emulation",
            "warning",
        ),
        ("Using Nvfp4QuantizationEmulationTritonExperts MOE backend. This will", "emulation", "warning"),
        (
            "Using default MoE config. Performance might be sub-optimal! Config file not found at /x.json",
            "untuned_moe",
            "info",
        ),
        (
            "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not found at /x",
            "untuned_fp8",
            "info",
        ),
    ],
)
def test_slow_paths(line: str, rule: str, severity: str) -> None:
    (finding,) = off(DRAFTS, log("0.23.0", line, line))
    assert (finding.rule, finding.severity) == (f"fast_path.{rule}", severity)


def test_weights_that_are_unpacked_are_a_word_worth_unless_marlin_was_meant() -> None:
    line = "Your GPU does not have native support for FP4 computation but FP4 quantization is being used."
    assert off(DRAFTS, log("0.23.0", line)) == []
    plain = planned_launch("0.23.0", {"head_dim": 128}, kv_cache_dtype="fp8")
    lines = [entry for entry in log("0.23.0", line, spec="None") if "MARLIN" not in entry]
    (finding,) = off(plain, lines)
    assert finding.rule == "fast_path.fp4_weight_only"


W4A4 = {"num_experts": 128, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
W4A16 = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"a": {"weights": {"num_bits": 4}, "input_activations": None}},
    }
}


@pytest.mark.parametrize(
    ("config", "options", "kernel", "rules"),
    [
        # A backend that was asked for, on its kernel for 16-bit activations.
        (
            W4A4,
            {"linear_backend": "flashinfer_cutedsl"},
            "FlashInferCuteDslNvFp4W4A16LinearKernel",
            ["fp4_weight_only"],
        ),
        (W4A4, {"linear_backend": "flashinfer_cutedsl"}, "FlashInferCuteDslNvFp4LinearKernel", []),
        (W4A4, {"linear_backend": "b12x"}, "B12xNvFp4W4A16LinearKernel", ["fp4_weight_only"]),
        # By itself: the kernel is another than expected, which is said once.
        (W4A4, {}, "FlashInferCuteDslNvFp4W4A16LinearKernel", ["linear_kernel"]),
        (W4A4, {"linear_backend": "marlin"}, "MarlinNvFp4LinearKernel", []),
        # Experts on Marlin by an option say nothing of the linear layers.
        ({"num_experts": 128}, {"moe_backend": "marlin"}, "MarlinNvFp4LinearKernel", ["fp4_weight_only"]),
        ({}, {}, "HummingNvFp4LinearKernel", ["fp4_weight_only"]),
        (W4A16, {}, "MarlinNvFp4LinearKernel", []),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}},
            {},
            "MarlinNvFp4LinearKernel",
            [],
        ),
        (W4A16, {"linear_backend": "b12x"}, "B12xNvFp4W4A16LinearKernel", []),
    ],
)
def test_kernels_for_16_bit_activations_are_told_from_those_for_4(
    config: dict[str, Any], options: dict[str, Any], kernel: str, rules: list[str]
) -> None:
    launch = planned_launch("0.29.0", {"head_dim": 128, **config}, kv_cache_dtype="fp8", **options)
    lines = [f"INFO 11-20 10:00:00 [__init__.py:1077] Using {kernel} for NVFP4 GEMM"]
    findings = off(launch, lines)
    assert [finding.rule.removeprefix("fast_path.") for finding in findings] == rules
    assert all(kernel in finding.message for finding in findings if finding.rule == "fast_path.fp4_weight_only")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        *(("mp_rank0.log", 0), ("mp_rank1.log", 1), ("ray_engine.log", 0)),
        *(("dp_rank0.log", 0), ("dp_rank1.log", 1)),  # two replicas, each in a separate network
    ],
)
def test_engines_on_a_cpu_have_no_kernels_to_compare(name: str, rank: int) -> None:
    """Captured from real engines."""
    lines = (FIXTURES / name).read_text(encoding="utf-8").splitlines()
    launch = planned_launch("0.32.0", NVFP4, moe_backend="marlin", attention_backend="flashinfer")
    runs = fast_path.parse_log(lines)
    checks, findings = fast_path.compare("heavy", expected_path.expectation(launch), runs, Counted(), rank)
    assert runs.device == "cpu" and [finding.rule for finding in findings] == []
    assert all(checks[key].verdict == "unknown" and checks[key].reason == fast_path.ON_CPU for key in fast_path.KERNELS)


def test_the_configuration_of_a_real_engine() -> None:
    """Captured from vLLM 0.32.0 on a CPU."""
    lines = (FIXTURES.parent / "fast_path/config_0.32.0.log").read_text(encoding="utf-8").splitlines()
    runs = fast_path.parse_log(lines)
    assert (runs.version, runs.device, runs.kv_cache_dtype, runs.quantization) == ("0.32.0", "cpu", "auto", None)
    assert (runs.prefix_caching, runs.chunked_prefill, runs.draft_method, runs.graphs) == (True, True, "none", "NONE")
    assert fast_path.compare("tiny", expected_path.expectation(planned_launch("0.32.0")), runs, Counted())[1] == []


def test_without_a_log_nothing_is_off() -> None:
    checks, findings = fast_path.compare("heavy", expected_path.expectation(DRAFTS), Running(), Counted())
    assert findings == [] and fast_path.summary(checks) == "-"
    assert checks["moe_backend"].reason == fast_path.NOT_SAID


def test_the_record_of_a_receipt() -> None:
    lines = [line.replace("'MARLIN' NvFp4", "'VLLM_CUTLASS' NvFp4") for line in log("0.23.0")]
    runs = fast_path.parse_log(lines)
    checks, findings = fast_path.compare("heavy", expected_path.expectation(DRAFTS), runs, metrics())
    record = fast_path.record(checks, runs, metrics(), findings)
    assert (
        record["summary"] == "1 off"
        and record["findings"] == ["fast_path.moe_backend"]
        and record["acceptance"] == 0.237
    )
    assert record["checks"]["moe_backend"] == {
        "expected": ["marlin"],
        "found": ["cutlass"],
        "verdict": "off",
        "reason": "",
    }


def spec(**more: Any) -> ServiceSpec:
    """A service of a model that nothing is known of, unless it is said."""
    entry = {"name": "a", "port": 8000, "model": {"repo": "org/model"}, "image": "some/image:1", "config": {"any": 1}}
    service, problems = recipes.resolve_service(entry, "here", {})
    assert problems == []
    assert service is not None
    return replace(service, **more)


def test_of_service_reads_what_the_plan_has() -> None:
    stated = [{"what": "linear", "linear_kernel": ["cutlass", "flashinfer-cutlass"], "source": "a guide"}]
    service = spec(config=NVFP4, expect=stated)
    launch = JudgedLaunch({}, {"X": "1"}, "0.24.0", "given", "serve", [], [])
    expected = expected_path.of_service(service, {"kv-cache-dtype": "fp8"}, launch)
    assert expected["linear_kernel"]["any_of"] == ["cutlass", "flashinfer_cutlass"]
    assert expected["attention_backend"]["any_of"] == ["FLASHINFER"]
    assert expected["moe_backend"] == {
        "any_of": ["flashinfer_cutlass"],
        "why": "vLLM 0.24.0 picks it on a GB10 by itself (vLLM's backend selection)",
        "required": False,
        "format": "nvfp4",
    }
    assert expected_path.of_service(spec(), {}, replace(launch, vllm_version=None))["draft"] is None


def test_sources_are_named_as_rules_name_them() -> None:
    assert (fast_path.GUIDE, fast_path.PACKAGES) == (rulebook.GUIDE, rulebook.PACKAGES)


# Engines on a GPU, vLLM 0.26.0 ----------------------------------------------------------------------------------------

ON_GPU = Path(__file__).parents[2] / "fixtures" / "engine_logs"
FAILED = (
    "(EngineCore pid=4337) WARNING 11-22 09:51:52 [qwen_gdn_linear_attn.py:1085] GDN prefill kernel warmup (T=64) failed for layer "
    "language_model.model.layers.0.linear_attn. First inference may OOM due to autotuner."
)


def on_gpu(name: str) -> list[str]:
    return (ON_GPU / f"{name}.log").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("name", "linear"),
    [
        ("healthy_moe_fp8_graphs_v1runner", [{"name": "cutlass", "format": "fp8"}]),
        ("nvfp4_marlin_gdn_cut_off_while_loading", [{"name": "cutlass", "format": "fp8"}]),
    ],
)
def test_a_class_is_named_by_its_format(name: str, linear: list[dict[str, str]]) -> None:
    assert fast_path.parse_log(on_gpu(name)).linear == linear


def test_kernels_of_fp8_layers_say_nothing_of_those_in_nvfp4() -> None:
    expected = expected_path.expectation(planned_launch("0.26.0", NVFP4))
    runs = fast_path.parse_log(on_gpu("nvfp4_marlin_gdn_cut_off_while_loading"))
    check = fast_path.compare("heavy", expected, runs, Counted())[0]["linear_kernel"]
    assert (check.verdict, check.reason) == ("unknown", fast_path.NOT_SAID)


def test_a_prefill_kernel_that_failed_its_trial_is_a_warning() -> None:
    lines = on_gpu("nvfp4_marlin_gdn_cut_off_while_loading")
    findings = fast_path.compare("heavy", {}, fast_path.parse_log([*lines, FAILED, FAILED]), Counted())[1]
    (finding,) = [entry for entry in findings if entry.rule == "fast_path.gdn_prefill"]
    assert finding.severity == "warning" and "(FlashInfer)" in finding.message and "gdn-prefill-backend" in finding.fix
    before = fast_path.compare("heavy", {}, fast_path.parse_log(lines), Counted())[1]
    assert not [entry for entry in before if entry.rule == "fast_path.gdn_prefill"]


def test_the_default_batch_is_known_from_silence_between_two_lines() -> None:
    lines = on_gpu("healthy_fa3_graphs_then_sigterm")
    running = fast_path.parse_log(lines)
    assert running.max_num_batched_tokens == 8192
    silent = [
        line.replace("'max_num_batched_tokens': 8192, ", "") for line in lines if "Chunked prefill is" not in line
    ]
    assert fast_path.parse_log(silent).max_num_batched_tokens == 2048
    without_start = [line for line in silent if "non-default args" not in line]
    assert fast_path.parse_log(without_start).max_num_batched_tokens is None
    older = [line.replace("0.26.0", "0.21.0") for line in silent]
    assert fast_path.parse_log(older).max_num_batched_tokens is None
    explicit = [line.replace(": 8192, ", ": 2048, ") for line in lines if "Chunked prefill is" not in line]
    assert fast_path.parse_log(explicit).max_num_batched_tokens == 2048
    raised = [line.replace("'max_num_batched_tokens': 8192", "'max_num_batched_tokens': 2048") for line in lines]
    assert fast_path.parse_log(raised).max_num_batched_tokens == 8192
