# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failures of vLLM on a DGX Spark that users reported, one row each. Data only.

C(_compat/rules_reported.py) makes a rule for the plan of each row with C(when); C(_proof/explain.py) finds C(symptom) in a log.
docs/known_failures.md is written from this table.

id: C(SPKK) and two digits; never changes, never used again.
title, message, fix, source, date: C(date) is when the sources were read; a text may name the version as C({version}).
verdict: C(does not start), C(wrong output), C(hangs), C(slow). severity: severity in the plan, if not C(SEVERITY) of the verdict.
first, before: range of vLLM releases, the first included, the second not; left out where every release is meant.
when: conditions of the launch; all have to hold:
  architecture   begin of an architecture of config.json
  facts          names of C(FACTS) in C(rules_reported.py)
  args, env      options and variables with this value; C(True) for an option means that it is set to anything but false
  nodes          at least so many Sparks
unless: what cures it; one entry that holds silences the row in the plan:
  args, env      as above; an env value is a part of the value of the variable
  package        name and version: the package is pinned to an older version than that
symptom: regular expression, searched in a line of a log (and its continuation lines). by_version: the text alone is not enough, the
log has to name a version of the range too. last: the text has to be among the last lines of the log, after which nothing came.
"""

from __future__ import annotations

from typing import Any

SEVERITY = {"does not start": "error", "wrong output": "warning", "hangs": "warning", "slow": "warning"}

ROWS: tuple[dict[str, Any], ...] = (
    {
        "id": "SPKK01",
        "title": "Gemma 4 with transformers 5.15 or newer",
        "verdict": "does not start",
        "first": "0.27.0",
        "before": "0.28.0",
        "when": {"architecture": "Gemma4"},
        "unless": {"package": ("transformers", "5.15")},
        "symptom": r"AmbiguousGlobalPerLayerAttributeError",
        "message": "The images of vLLM 0.27.0 and 0.27.1 contain transformers 5.15 or newer. Gemma 4 then ends at its start with "
        "AmbiguousGlobalPerLayerAttributeError, because this vLLM reads head_dim as one value for all layers.",
        "fix": "Use vLLM 0.28.0 or newer, 0.26.0 or older, or add transformers==5.14.1 to pip.",
        "source": "vllm-project/vllm#51744, #52768; 0xBakeer/inference-atlas#14 (GB10)",
        "date": "2026-11-28",
    },
    {
        "id": "SPKK02",
        "title": "Block FP8 on DeepGEMM in vLLM 0.24",
        "verdict": "does not start",
        "first": "0.24.0",
        "before": "0.25.0",
        "when": {"facts": ("fp8_block",)},
        "unless": {"env": {"VLLM_USE_DEEP_GEMM": "0"}},
        "symptom": r"Assertion error \(.*(?:deepgemm|deep_gemm).*\): (?:Unknown SF transformation|Unknown recipe)",
        "message": "vLLM 0.24 runs FP8 weights with block scales on DeepGEMM, and its DeepGEMM has no kernels for sm_121: the start ends while "
        "loading (Unknown SF transformation) or while warming up (Unknown recipe). moe-backend and linear-backend do not change that.",
        "fix": 'Set the variable VLLM_USE_DEEP_GEMM to "0", or use vLLM 0.23.0, or 0.25.0 or newer.',
        "source": "vllm-project/vllm#47130, #47436, #47169; deepseek-ai/DeepGEMM#324",
        "date": "2026-11-28",
    },
    {
        "id": "SPKK03",
        "title": "Dense NVFP4 on a weight-only kernel in vLLM 0.29.0",
        "verdict": "slow",
        "first": "0.29.0",
        "before": "0.30.0",
        "when": {"facts": ("dense", "nvfp4_activations")},
        "unless": {
            "env": {"VLLM_DISABLED_KERNELS": "FlashInferCuteDslNvFp4W4A16LinearKernel"},
            "args": {"linear-backend": ("flashinfer_cutlass", "cutlass", "marlin", "flashinfer_b12x", "b12x")},
        },
        "symptom": r"FlashInferCuteDslNvFp4W4A16LinearKernel",
        "message": "vLLM 0.29.0 prefers a kernel that uses FP4 for weights only (FlashInferCuteDslNvFp4W4A16LinearKernel) for dense NVFP4 layers "
        "on sm_121, although the kernels that compute in FP4 run there. Prefill is slower.",
        "fix": "Set the variable VLLM_DISABLED_KERNELS to FlashInferCuteDslNvFp4W4A16LinearKernel, or use vLLM 0.30.0 or newer.",
        "source": "vllm-project/vllm#53014 (cause), #55170 (fix); unslothai/unsloth#10417",
        "date": "2026-11-28",
    },
    {
        "id": "SPKK04",
        "title": "MTP with prefix caching on a hybrid model",
        "verdict": "wrong output",
        "first": "0.17.0",
        "before": "0.29.0",
        "when": {"facts": ("hybrid", "mtp", "prefix_caching")},
        "message": "MTP with prefix caching spoils the recurrent state of hybrid models up to vLLM 0.28.0. Agents with several turns and many "
        "tools then get malformed tool calls as text (<function= in content), other answers are wrong. Parser and quantisation are "
        "not the cause.",
        "fix": "Set enable-prefix-caching to false, or remove speculative-config. No such report is known for vLLM 0.29.0 or newer.",
        "source": "NVIDIA/dgx-spark-playbooks#89; vllm-project/vllm#43559, #43650, #47194, #48970, #53912 (0.28.0)",
        "date": "2026-11-28",
    },
    {
        "id": "SPKK05",
        "title": "Drafts with asynchronous scheduling on MiMo V2",
        "verdict": "wrong output",
        "when": {"architecture": "MiMoV2", "facts": ("drafts", "concurrent")},
        "unless": {"args": {"async-scheduling": (False,)}},
        "message": "MiMo V2 models with drafts (MTP or DFlash) and asynchronous scheduling were reported to answer with garbage when two requests "
        "run at once.",
        "fix": "Set async-scheduling to false.",
        "source": "vllm-project/vllm#46669; recipe mimo-v2.6-flash of eugr/spark-vllm-docker",
        "date": "2026-11-22",
    },
    {
        "id": "SPKK06",
        "title": "Draft length that the ring of QSA does not allow",
        "verdict": "does not start",
        "symptom": r"QSA ring capacity \d+ must divide the attention block size \d+",
        "message": "The ring of Qwen3.8-Flash-Next's sparse attention has 4 x ceil((4 + k) / 4) tokens for "
        "k draft tokens, which must divide the block size of the KV cache.",
        "fix": "Set num_speculative_tokens in speculative-config to 4 or less.",
        "source": "meirongdev/nv-dgx-spark, MTP k sweep of 2026-09-03; qsa_cache.py of vLLM 0.32.0",
        "date": "2026-11-28",
    },
    {
        "id": "SPKK07",
        "title": "MiMo V2 in vLLM 0.23",
        "verdict": "does not start",
        "first": "0.23.0",
        "before": "0.24.0",
        "when": {"architecture": "MiMoV2"},
        "message": "MiMo V2 needs attention sinks, which vLLM {version} has only in FlashAttention 3; that does not run on sm_121.",
        "fix": "Use vLLM 0.24.0 or newer.",
        "source": "vLLM 0.23.0, started for compute capability 12.1",
        "date": "2026-11-22",
    },
    {
        "id": "SPKK08",
        "title": "Memory that stays in use after a failed start",
        "verdict": "does not start",
        "before": "0.24.0",
        "by_version": True,
        "symptom": r"Engine core initialization failed\b.*Failed core proc\(s\): \{\}",
        "message": "The engine's process ended during its start without a reason. vLLM before "
        "0.24.0 was reported to leave memory in use then; each further start ends after 10 to 14 seconds until the "
        "host reboots.",
        "fix": "Compare free -g with the free memory after the boot; reboot the host if memory is missing, and use vLLM 0.24.0 or newer.",
        "source": "vllm-project/vllm#45179",
        "date": "2026-11-22",
    },
    {
        "id": "SPKK09",
        "title": "Second start over several GPUs with stored FlashInfer autotuning",
        "verdict": "hangs",
        "first": "0.31.0",
        "before": "0.32.0",
        "by_version": True,
        "last": True,
        "symptom": r"No available shared memory broadcast block found",
        "message": "In vLLM 0.31.0 the ranks wait for each other forever when they read FlashInfer autotuning "
        "of an earlier start: one GPU is busy, and the log stops here. The plan avoids it (SPK828).",
        "fix": "Add --no-enable-flashinfer-autotune, or point VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR to a folder that is not mounted.",
        "source": "vllm-project/vllm#57635, #57579",
        "date": "2026-11-22",
    },
    {
        "id": "SPKK10",
        "title": "Prefix cache of Qwen3.8-Flash-Next before vLLM 0.32.0",
        "verdict": "wrong output",
        "severity": "info",
        "first": "0.29.0",
        "before": "0.32.0",
        "when": {"architecture": "Qwen4Exp", "facts": ("prefix_caching",)},
        "message": "Preview images of Qwen3.8-Flash-Next restored an empty recurrent state from the prefix cache and answered wrongly on hits. "
        "vllm#55601, merged after 0.31.0, appears to fix it; vLLM {version} itself was not reported.",
        "fix": "Use vLLM 0.32.0 or newer, or set enable-prefix-caching to false if answers change on a repeated prompt.",
        "source": "two owners of pairs; vllm-project/vllm#55601",
        "date": "2026-11-22",
    },
    {
        "id": "SPKK11",
        "title": "InstantTensor over several Sparks with a draft model",
        "verdict": "does not start",
        "severity": "info",
        "when": {"args": {"load-format": "instanttensor"}, "facts": ("drafts",), "nodes": 2},
        "unless": {"env": {"INSTANTTENSOR_BACKEND": "BUFFERED"}},
        "message": "Two owners lost a worker about a minute after loading with InstantTensor, when the draft was loaded as a second pass over two "
        "Sparks: no exit code, nothing in the kernel's log. Another pair loads without this problem.",
        "fix": "If that happens, set load-format to safetensors, or the variable INSTANTTENSOR_BACKEND to BUFFERED.",
        "source": "eugr/spark-vllm-docker#377; tonyd2wild",
        "date": "2026-11-22",
    },
    {
        "id": "SPKK12",
        "title": "Engines over four GPUs that stall in vLLM 0.27.0",
        "verdict": "hangs",
        "first": "0.27.0",
        "before": "0.27.1",
        "when": {"facts": ("four_gpus",)},
        "message": "vLLM 0.27.0 with tensor parallelism over four GPUs was reported to stall after idle time or under six requests at once: "
        "/v1/models answers, chats do not.",
        "fix": "Use another version of vLLM. The watchdog restarts an engine that stalls.",
        "source": "vllm-project/vllm#51921, three reports",
        "date": "2026-11-22",
    },
    {
        "id": "SPKK13",
        "title": "Full CUDA graphs of DeepSeek V4",
        "verdict": "hangs",
        "severity": "info",
        "when": {"architecture": "DeepseekV4", "facts": ("full_and_piecewise",)},
        "message": "DeepSeek V4 was reported to hang on GB10 while CUDA graphs of the mode FULL_AND_PIECEWISE are captured; NVIDIA's own recipe "
        "uses that mode.",
        "fix": "If the start stops there, set cudagraph_mode in compilation-config to PIECEWISE.",
        "source": "vllm-project/vllm#40969; NVIDIA/local-ai-inference-recipes",
        "date": "2026-11-22",
    },
    {
        "id": "SPKK14",
        "title": "Expandable segments with autotuning on DeepSeek V4",
        "verdict": "does not start",
        "severity": "info",
        "first": "0.25.0",
        "before": "0.26.0",
        "when": {
            "architecture": "DeepseekV4",
            "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        },
        "message": "On builds of vLLM 0.25 the driver refused memory (NVRM 0x51) while DeepSeek V4 warmed "
        "up with expandable segments; without them and without autotuning it started.",
        "fix": "If that happens, remove expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF, and enable-flashinfer-autotune.",
        "source": "NVIDIA/dgx-spark-playbooks#97",
        "date": "2026-11-22",
    },
    {
        "id": "SPKK15",
        "title": "prometheus-fastapi-instrumentator 8.0.0",
        "verdict": "wrong output",
        "symptom": r"'_IncludedRouter' object has no attribute 'path'",
        "message": "The image has prometheus-fastapi-instrumentator 8.0.0, which answers every request with HTTP 500 (as in NGC 26.06).",
        "fix": "Install prometheus-fastapi-instrumentator==8.0.2 into the image (pip), or use another image.",
        "source": "reports on nvcr.io/nvidia/vllm:26.06-py3",
        "date": "2026-11-22",
    },
    {
        "id": "SPKK16",
        "title": "DeepSeek V4 on sparse B12X attention after hours",
        "verdict": "wrong output",
        "severity": "info",
        "when": {"architecture": "DeepseekV4", "args": {"attention-backend": "B12X_MLA_SPARSE"}},
        "message": "A build of 2026-08-15 with B12X_MLA_SPARSE was reported to garble and repeat long prompts and long answers of DeepSeek V4 after "
        "hours, while short requests and /health stay fine.",
        "fix": "Restart the service, which clears it for hours; use another build; quality in spark_watchdog notices it.",
        "source": "eugr/spark-vllm-docker#356, two pairs",
        "date": "2026-11-29",
    },
)
