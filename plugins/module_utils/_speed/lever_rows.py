# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options that made launches on a DGX Spark faster, with the published difference. Data only; none of it was measured by this project.

lever: short name, used once. advice: the change. delta: the published difference. source: who published it. read: the day of the sources.
when: conditions of a launch without the lever, all of which hold:
  facts     names of C(levers.FACTS)
  args      options with this value; C(None) for an option that is not set
  env       variables with this value
  least, most   bounds of C(chunk), C(streams), C(length), C(drafted) and C(sparks), both included
  before    the first release of vLLM without the problem
"""

from __future__ import annotations

from typing import Any

READ = "2026-11-28"

ROWS: tuple[dict[str, Any], ...] = (
    {
        "lever": "CUDA graphs",
        "advice": "remove enforce-eager",
        "delta": "26 to 59 tokens/s (gpt-oss-120b)",
        "source": "Conselara Labs",
        "when": {"facts": ("eager",), "most": {"sparks": 1}},
    },
    {
        "lever": "CUDA graphs over several Sparks",
        "advice": "remove enforce-eager",
        "delta": "one stream over four Sparks in SGLang: 21.5 to 92 (35B-A3B), 23 to 41 (26B-A4B), 20 to 24 (27B); equal at 8 streams",
        "source": "dgxarley",
        "when": {"facts": ("eager",), "least": {"sparks": 2}},
    },
    {
        "lever": "graph mode",
        "advice": "set cudagraph_mode of compilation-config to FULL_AND_PIECEWISE",
        "delta": "prose 17 % faster with FULL_AND_PIECEWISE, 19 % slower with PIECEWISE",
        "source": "tonyd2wild",
        "when": {"facts": ("piecewise",)},
    },
    {
        "lever": "full graphs with drafts on FlashInfer",
        "advice": "use vLLM 0.28.0 or newer",
        "delta": "16 % slower before, since graphs fall back to PIECEWISE",
        "source": "vllm-project/vllm#49547",
        "when": {"facts": ("flashinfer",), "least": {"drafted": 1}, "before": "0.28.0"},
    },
    {
        "lever": "capture sizes",
        "advice": "add max-num-seqs x (1 + draft tokens) to cudagraph-capture-sizes",
        "delta": "46 % faster at 5 streams and 54 % at 10, with sizes of 5 and 10",
        "source": "dendro-logic",
        "when": {"facts": ("uncaptured",), "args": {"cudagraph-capture-sizes": None}},
    },
    {
        "lever": "chunks of 8192",
        "advice": "set max-num-batched-tokens to 8192",
        "delta": "prefill about 31 % faster than with 2048",
        "source": "djangodevreng",
        "when": {"most": {"chunk": 4095}, "least": {"length": 8192}},
    },
    {
        "lever": "chunks of 16384",
        "advice": "set max-num-batched-tokens to 16384",
        "delta": "prefill 52 to 79 % faster than with 8192, first token at 114k tokens 95 to 55 s; all streams 3 % slower",
        "source": "tonyd2wild",
        "when": {"least": {"chunk": 4096, "length": 65536}, "most": {"chunk": 16383}},
    },
    {
        "lever": "more streams",
        "advice": "raise max-num-seqs, if many users ask at once and the KV cache holds their requests",
        "delta": "183 to 503 tokens/s together, from 6 to 64",
        "source": "tonyd2wild",
        "when": {"most": {"streams": 6}},
    },
    {
        "lever": "FP8 kernel",
        "advice": "leave Marlin for FP8 out: VLLM_TEST_FORCE_FP8_MARLIN and linear-backend",
        "delta": "prefill 620 tokens/s on Marlin, 1198 in BF16 (27B)",
        "source": "djangodevreng",
        "when": {"facts": ("fp8_marlin",)},
    },
    {
        "lever": "FP4 kernel",
        "advice": "try linear-backend flashinfer_cutlass for a checkpoint with FP4 activations, and look at the answers",
        "delta": "first token 10.0 to 6.4 s, decode 22 to 27 tokens/s",
        "source": "jschmied",
        "when": {"facts": ("fp4_marlin",), "args": {"linear-backend": None}},
    },
    {
        "lever": "experts on b12x",
        "advice": "try moe-backend flashinfer_b12x for 4 streams or more, and look at the answers",
        "delta": "8 % slower at 1 stream, 4 to 6 % faster at 4 or more",
        "source": "jschmied",
        "when": {"facts": ("experts_4bit",), "args": {"moe-backend": "marlin"}, "least": {"streams": 4}},
    },
    {
        "lever": "DeepSeek V4 on b12x",
        "advice": "use an image with the b12x kernels and moe-backend b12x",
        "delta": "29 to between 55 and 67 tokens/s",
        "source": "guardkit",
        "when": {"facts": ("deepseek_v4",), "args": {"moe-backend": None}},
    },
    {
        "lever": "output head",
        "advice": "use a checkpoint with lm_head in 8 or 4 bits",
        "delta": "with 3 draft tokens 22 tokens/s in BF16, 27 in FP8, 29.6 in NVFP4",
        "source": "jschmied",
        "when": {"facts": ("head_16bit", "own_drafter"), "least": {"drafted": 1}},
    },
    {
        "lever": "drafts",
        "advice": "draft with the checkpoint's own layers: speculative-config {method: mtp, num_speculative_tokens: 3}",
        "delta": "11.4 tokens/s without, 18.4, 22.8 and 25.5 with 1, 2 and 3 draft tokens, short prompts",
        "source": "jschmied",
        "when": {"facts": ("own_drafter",), "most": {"drafted": 0}},
    },
    {
        "lever": "draft depth",
        "advice": "try 3 or 4 draft tokens",
        "delta": "18.4, 22.8, 25.5, 28.3, 26.2 and 27.0 tokens/s with 1 to 6 draft tokens, short prompts",
        "source": "jschmied",
        "when": {"facts": ("own_drafter",), "least": {"drafted": 1}, "most": {"drafted": 2}},
    },
    {
        "lever": "RDMA",
        "advice": "remove NCCL_IB_DISABLE",
        "delta": "a quarter of the speed with NCCL_IB_DISABLE=1",
        "source": "vllm-gb10#24",
        "when": {"env": {"NCCL_IB_DISABLE": "1"}, "least": {"sparks": 2}},
    },
    {
        "lever": "pipeline instead of tensors in eager mode",
        "advice": "set pipeline-parallel-size instead of tensor-parallel-size",
        "delta": "57 instead of 36 tokens/s over two Sparks; first token after 202 instead of 52 ms",
        "source": "heitor-mocelin",
        "when": {"facts": ("eager", "tensors"), "least": {"sparks": 2}},
    },
    {
        "lever": "tensors instead of pipeline",
        "advice": "set tensor-parallel-size instead of pipeline-parallel-size for short waits",
        "delta": "first token after 52 instead of 202 ms over two Sparks in eager mode",
        "source": "heitor-mocelin",
        "when": {"facts": ("pipeline",), "least": {"sparks": 2}},
    },
)
