# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each vLLM version accepts. Data only; M(catalogue) reads it.

Where it comes from: the options of vLLM 0.33.0 are a dump of its real C(vllm serve) parser. Which options and names
other versions have was read from the Python sources of the packages named in C(READ_FROM); exact boundaries come from
vLLM's release notes where the packages read here leave a gap.

How a span is written (C(lo:hi), both parts optional):

    (nothing)         in every package that was read
    0.17.0            from 0.17.0 on
    0.15.1<0.17.1     not in 0.15.1, in 0.17.1; the version between that brought it is not known
    :>0.18.0          no more from 0.18.0 on
    :0.27.1>0.29.0    last seen in 0.27.1, gone in 0.29.0
"""

from __future__ import annotations

READ_FROM = (
    "0.12.0",
    "0.15.1",
    "0.17.1",
    "0.19.0",
    "0.20.1",
    "0.21.0",
    "0.22.1",
    "0.24.0",
    "0.27.1",
    "0.29.0",
    "0.31.0",
    "0.32.0",
    "0.33.0",
)
"""The versions whose packages were read, oldest first."""

# One option of vllm serve a line: name and aliases | kind | span | choices that the parser of the newest one enforces.
# Kinds: flag (no value, cannot be negated), switch (no value, has a --no- form), int, float, size (takes 64k, 64K),
# size-auto (size or auto), json, text; + takes several values, ? none or one, * may be repeated.
# A line that starts with blanks goes on with the choices of the line before.
OPTIONS = """\
additional-config|json
aggregate-engine-logging|flag
all2all-backend|text||allgather_reducescatter deepep_high_throughput deepep_low_latency deepep_v2 flashinfer_all2allv
   flashinfer_nvlink_one_sided flashinfer_nvlink_two_sided moonep mori_high_throughput mori_low_latency naive nixl_ep
   pplx
allow-credentials|switch
allow-deprecated-quantization|switch|0.14.1
allowed-headers|json
allowed-local-media-path|text
allowed-media-domains|text+
allowed-methods|json
allowed-origins|json
anthropic-disabled-thinking-effort|text|0.29.0<0.31.0|auto high low max medium none xhigh
api-key|text+
api-server-count -asc|int
async-scheduling|switch
attention-backend|text|0.13.0
attention-config -ac|json|0.13.0
aux-output-config|json|0.29.0<0.31.0
block-size|int
calculate-kv-scales|switch|:>0.28.0
chat-template|text
chat-template-content-format|text||auto openai string
code-revision|text
cohere-format|text|0.24.0<0.27.1
cohere-is-reasoning-model|switch|0.24.0<0.27.1
collect-detailed-traces|text+||all model worker None
compilation-config -cc|json
config|text
config-format|text
convert|text||auto classify embed none
cp-kv-cache-interleave-size|int
cpu-distributed-timeout-seconds|int|0.21.0<0.22.1
cpu-offload-gb|float
cpu-offload-params|text+|0.15.1<0.17.1
cuda-graph-sizes|int+|:>0.13.0
cudagraph-capture-sizes|int+|0.11.1
cudagraph-metrics|switch|0.12.0<0.15.1
custom-histogram-buckets|text|0.31.0<0.32.0
data-parallel-address -dpa|text
data-parallel-backend -dpb|text
data-parallel-external-lb -dpe|switch
data-parallel-hybrid-lb -dph|switch
data-parallel-multi-port-external-lb -dpm|flag|0.21.0<0.22.1
data-parallel-rank -dpn|int
data-parallel-rpc-port -dpp|int
data-parallel-size -dp|int
data-parallel-size-local -dpl|int
data-parallel-start-rank -dpr|int
data-parallel-supervisor-port|int|0.21.0<0.22.1
dbo-decode-token-threshold|int
dbo-prefill-token-threshold|int
dcp-comm-backend|text|0.17.1<0.19.0|a2a ag_rs None
dcp-kv-cache-interleave-size|int
dcp-q-replicate|switch|0.27.1<0.29.0
decode-context-parallel-size -dcp|int
default-chat-template-kwargs|json|0.14.1
default-mm-loras|json
device-ids|text|0.24.0
diffusion-config -dc|json|0.24.0
disable-access-log-for-endpoints|text|0.15.1<0.17.1
disable-async-output-proc|flag|:>0.11.0
disable-cascade-attn|switch
disable-chunked-mm-input|switch
disable-custom-all-reduce|switch
disable-fastapi-docs|switch
disable-frontend-multiprocessing|switch|:>0.19.0
disable-hybrid-kv-cache-manager|switch
disable-log-requests|switch|:>0.17.0
disable-log-stats|flag
disable-mm-preprocessor-cache|switch|:>0.13.0
disable-nccl-for-dp-synchronization|switch
disable-sliding-window|switch
disable-uvicorn-access-log|switch
distributed-executor-backend|text
distributed-timeout-seconds|int|0.17.1<0.19.0
download-dir|text
dp-supervisor-probe-failure-threshold|int|0.21.0<0.22.1
dp-supervisor-probe-interval-s|float|0.21.0<0.22.1
dp-supervisor-probe-timeout-s|float|0.21.0<0.22.1
dp-sync-interval|int|0.29.0<0.31.0
dtype|text||auto bfloat16 float float16 float32 half
ec-manager-config|json|0.27.1<0.29.0
ec-transfer-config|json
elastic-ep-max-dp-size|int|0.29.0<0.31.0
enable-auto-tool-choice|switch
enable-batch-sharded-sampling|switch|0.27.1<0.29.0
enable-bf16x3-router-gemm|switch|0.24.0<0.27.1:0.29.0>0.31.0
enable-chunked-prefill|switch
enable-cumem-allocator|switch|0.21.0<0.22.1
enable-dbo|switch
enable-elastic-ep|switch|0.15.1<0.17.1
enable-ep-weight-filter|switch|0.17.1<0.19.0
enable-eplb|switch
enable-expert-parallel -ep|switch
enable-fault-tolerance|switch|0.24.0<0.27.1
enable-flash-late-interaction|switch|0.19.0<0.20.1
enable-flashinfer-autotune|switch|0.16.0
enable-force-include-usage|switch
enable-hc-sp|switch|0.31.0<0.32.0
enable-layerwise-nvtx-tracing|switch|0.12.0<0.15.1
enable-log-deltas|switch|0.12.0<0.15.1
enable-log-outputs|switch
enable-log-requests|switch
enable-logging-iteration-details|switch|0.12.0<0.15.1
enable-lora|switch
enable-mamba-cache-stochastic-rounding|switch|0.19.0<0.20.1
enable-mamba-shared-prefix-checkpoint|switch|0.29.0<0.31.0
enable-mfu-metrics|switch|0.12.0<0.15.1
enable-mixed-moe-lora-format|switch|0.21.0<0.22.1
enable-mm-embeds|switch
enable-moe-shared-loras|switch|0.24.0<0.27.1
enable-multimodal-encoder-data-parallel|switch|:0.12.0>0.15.1
enable-nccl-comm-suspend|switch|0.29.0<0.31.0
enable-offline-docs|switch|0.12.0<0.15.1
enable-per-request-metrics|switch|0.24.0<0.27.1
enable-prefix-caching|switch
enable-prompt-embeds|switch
enable-prompt-tokens-details|switch
enable-request-id-headers|switch
enable-return-routed-experts|switch|0.12.0<0.15.1
enable-scale-out|switch|0.29.0<0.31.0
enable-server-load-tracking|switch
enable-shm-tensor-arena|switch|0.31.0<0.32.0
enable-sleep-mode|switch
enable-ssl-refresh|switch
enable-tokenizer-info-endpoint|switch
enable-tower-connector-lora|switch|0.12.0<0.15.1
enable-trace-replay|switch|0.27.1<0.29.0
enforce-eager|switch
engram-config|json|0.29.0<0.31.0
eplb-config|json
exclude-tools-when-tool-choice-none|switch
expert-placement-strategy|text||linear round_robin
fail-on-environ-validation|switch|0.17.0
fault-tolerance-config|json|0.24.0<0.27.1
fingerprint-mode|text|0.20.1<0.21.0|custom full hash none
fingerprint-value|text|0.20.1<0.21.0
fully-sharded-loras|switch
gdn-prefill-backend|text|0.18.0|flashinfer triton cutedsl aiter_flydsl sycl
generation-config|text
gpu-memory-utilization device-memory-utilization|float
grpc|flag|0.17.1<0.19.0
grpc-port|size|0.31.0<0.32.0
guided-decoding-backend|text|:>0.12.0
guided-decoding-disable-additional-properties|switch|:>0.12.0
guided-decoding-disable-any-whitespace|switch|:>0.12.0
guided-decoding-disable-fallback|switch|:>0.12.0
h11-max-header-count|int
h11-max-incomplete-event-size|int
headless|flag
hf-config-path|text
hf-overrides|json
hf-token|text?
host|text
ignore-patterns|text+
interleave-mm-strings|switch
io-processor-plugin|text
ir-op-priority|json|0.19.0<0.20.1
jit-monitor-mode|text|0.24.0<0.27.1|error warn
jit-monitor-verbose|switch|0.22.1<0.24.0
kda-decode-backend|text|0.29.0<0.31.0|auto native flashinfer triton
kda-prefill-backend|text|0.24.0<0.27.1|auto triton flashkda flashinfer fused
kernel-config|json|0.16.0
kv-cache-dtype|text
kv-cache-dtype-skip-layers|text+|0.17.1<0.19.0
kv-cache-memory-bytes|size|0.10.2
kv-cache-metrics|switch
kv-cache-metrics-sample|float
kv-events-config|json
kv-offloading-backend|text||lmcache native
kv-offloading-size|float
kv-sharing-fast-prefill|switch
kv-transfer-config|json
language-model-only|switch|0.17.0
limit-mm-per-prompt|json
linear-backend|text|0.22.0|aiter auto b12x conch cutlass deep_gemm emulation exllama fbgemm flashinfer_b12x
   flashinfer_cudnn flashinfer_cutedsl flashinfer_cutlass flashinfer_trtllm humming machete marlin torch triton xpu
   xpu_woq
load-format|text
log-config-file|text
log-error-stack|switch
log-level|text|0.31.0|CRITICAL ERROR WARNING INFO DEBUG NOTSET
logging-config|json|0.31.0
logits-processor-pattern|text|:0.15.1>0.17.1
logits-processors|text+
logprobs-mode|text||processed_logits processed_logprobs raw_logits raw_logprobs
long-prefill-token-threshold|int
long-prefill-token-threshold-adaptive|switch|0.29.0<0.31.0
lora-dtype|text||auto bfloat16 float16
lora-modules|text+
lora-target-modules|text+|0.17.1<0.19.0
mamba-backend|text|0.19.0<0.20.1
mamba-block-size|size
mamba-cache-dtype|text||auto bfloat16 float16 float32
mamba-cache-mode|text|0.15.1|align none
mamba-cache-philox-rounds|int|0.19.0<0.20.1
mamba-ssm-cache-dtype|text||auto bfloat16 float16 float32
mamba-ssu-algorithm|text|0.24.0<0.27.1|auto horizontal simple vertical None
master-addr|text|0.11.1
master-port|int|0.11.1
max-cpu-loras|size
max-cudagraph-capture-size|int|0.11.1
max-log-len|size
max-logprobs|int
max-long-partial-prefills|int|:>0.27.0
max-lora-cls-labels|size|0.29.0<0.31.0
max-lora-rank|int||1 8 16 32 64 128 256 320 512
max-loras|int
max-model-len|size-auto
max-num-active-seqs|size|0.29.0<0.31.0
max-num-batched-tokens|size
max-num-partial-prefills|int|:>0.27.0
max-num-queued-reqs|size|0.27.1<0.29.0
max-num-queued-tokens|size|0.27.1<0.29.0
max-num-scheduled-tokens|size|0.24.0<0.27.1
max-num-seqs|int
max-parallel-loading-workers|size
max-seq-len-to-capture|int|:>0.11.0
media-io-kwargs|json
middleware|text*
mm-device-do-normalize|switch|0.27.1<0.29.0
mm-encoder-attn-backend|text
mm-encoder-attn-dtype|text|0.20.1<0.21.0|fp8 None
mm-encoder-fp8-scale-path|text|0.20.1<0.21.0
mm-encoder-fp8-scale-save-margin|float|0.20.1<0.21.0
mm-encoder-fp8-scale-save-path|text|0.20.1<0.21.0
mm-encoder-only|switch|0.12.0<0.15.1
mm-encoder-tp-mode|text||data weights
mm-hasher-algorithm|text|0.24.0<0.27.1|blake3 sha256 sha512
mm-ipc-gpu-memory-gb|float|0.24.0<0.27.1
mm-processor-cache-gb|float
mm-processor-cache-type|text||lru shm
mm-processor-device|text|0.27.1<0.29.0|auto cpu
mm-processor-kwargs|json
mm-shm-cache-max-object-size-mb|int
mm-tensor-ipc|text|0.17.1<0.19.0|direct_rpc torch_shm
model|text
model-class-overrides|json|0.24.0<0.27.1
model-impl|text
model-loader-extra-config|json
moe-backend|text|0.17.0|aiter aiter_mega_moe aiter_triton_mxfp4_bf16 aiter_triton_mxfp4_mxfp4 auto b12x batched_triton
   cutlass deep_gemm deep_gemm_mega_moe emulation flashinfer_b12x flashinfer_cutedsl flashinfer_cutlass
   flashinfer_moe_ep_cutedsl flashinfer_moe_ep_mega_deep_gemm flashinfer_trtllm flydsl hpc humming marlin rdna3 triton
   triton_unfused
monokernel|switch|0.32.0<0.33.0
nnodes -n|int|0.11.1
node-rank -r|int|0.11.1
num-gpu-blocks-override|size
numa-bind|switch|0.19.0<0.20.1
numa-bind-cpus|text+|0.19.0<0.20.1
numa-bind-nodes|text+|0.19.0<0.20.1
offload-backend|text|0.15.1<0.17.1|auto prefetch uva
offload-group-size|int|0.15.1<0.17.1
offload-num-in-group|int|0.15.1<0.17.1
offload-params|text+|0.15.1<0.17.1
offload-prefetch-step|int|0.15.1<0.17.1
optimization-level|text|0.12.0
otlp-traces-endpoint|text
override-attention-dtype|text|:>0.28.0
override-generation-config|json
per-request-spec-decode-metrics|text|0.27.1<0.29.0|detailed none summary
performance-mode|text|0.17.0|balanced interactivity throughput
pipeline-parallel-size -pp|int
pooler-config|text
port|int
preemption-mode|text|:>0.11.0
prefill-context-parallel-size -pcp|int
prefill-schedule-interval|int|0.22.1<0.24.0
prefix-cache-retention-interval|size|0.27.1<0.29.0
prefix-caching-hash-algo|text||sha256 sha256_cbor xxhash xxhash_cbor
prefix-match-unit|size|0.24.0<0.27.1
profiler-config|json|0.12.0<0.15.1
pt-load-map-location|json
quantization -q|text
quantization-config|json|0.22.0
ray-workers-use-nsight|switch
reasoning-config|json|0.17.1<0.19.0
reasoning-effort-map|json|0.32.0<0.33.0
reasoning-parser|text
reasoning-parser-plugin|text|0.11.1
renderer-num-workers|int|0.17.1<0.19.0
replayssm-buffer-len|int|0.24.0<0.27.1
response-role|text
return-sampling-mask|switch|0.27.1<0.29.0
return-tokens-as-token-ids|switch
revision|text
root-path|text
rope-scaling|json|:>0.11.1
rope-theta|float|:>0.11.1
runner|text||auto draft generate pooling
safetensors-load-strategy|text||eager lazy prefetch torchao None
safetensors-prefetch-block-size|size|0.20.1<0.21.0
safetensors-prefetch-num-threads|int|0.20.1<0.21.0
scheduler-cls|text
scheduler-reserve-full-isl|switch|0.17.1<0.19.0
scheduling-policy|text||fcfs priority
seed|int
served-model-name|text+
show-hidden-metrics-for-version|text
shutdown-timeout|int|0.17.1<0.19.0
skip-mm-profiling|switch
skip-tokenizer-init|switch
sleep-mode-backend|text|0.33.0
sleep-mode-offload-cudagraph|switch|0.31.0<0.32.0
sleep-preserve-parameter-names|text+|0.29.0<0.31.0
sparse-indexer-topk-backend|text|0.29.0<0.31.0|aiter auto cooperative deep_select flashinfer per_row persistent torch
spec-method|text|0.22.0|bailing_hybrid_mtp bailing_hybrid_v3_mtp custom_class deepseek_mtp dflash dots3_note_mtp
   draft_model dspark eagle eagle3 ernie_mtp exaone4_5_mtp exaone_moe_mtp extract_hidden_states gemma4_mtp
   glm4_moe_lite_mtp glm4_moe_mtp glm5_next_mtp glm_ocr_mtp hy_v3_mtp hy_v4_mtp inkling_mtp kimi_k3_mtp
   longcat_flash_mtp mimo_mtp mimo_v2_mtp minimax_m3_mtp mtp nemotron_h_mtp ngram ngram_gpu pangu_ultra_moe_mtp
   qwen3_5_mtp qwen3_next_mtp qwen4_exp_mtp step3p5_mtp step5_mtp suffix None
spec-model|text|0.22.0
spec-tokens|int|0.22.0
specialize-active-lora|switch|0.15.1<0.17.1
speculative-config -sc|json
sse-keep-alive-interval|int|0.27.1<0.29.0
ssl-ca-certs|text
ssl-cert-reqs|int
ssl-certfile|text
ssl-ciphers|text|0.12.0<0.15.1
ssl-keyfile|text
stream-interval|int
structured-outputs-config|json
swa-bounded-replay|switch|0.29.0<0.31.0
swap-space|float|:>0.18.0
task|text|:>0.13.0
tensor-parallel-size -tp|int
tokenizer|text
tokenizer-mode|text
tokenizer-revision|text
tokens-only|switch
tool-call-parser|text
tool-parser-plugin|text
tool-server|text
tool-strict-level|text|0.29.0<0.31.0|auto function parameter None
trust-remote-code|switch
trust-request-chat-template|switch
trust-request-mm-kwargs|switch|0.29.0<0.31.0
ubatch-size|int|0.12.0<0.15.1
uds|text
use-fp64-gumbel|switch|0.21.0<0.22.1
use-gpu-for-pooling-score|switch|0.15.1<0.17.1:0.17.1>0.19.0
use-replayssm|switch|0.24.0<0.27.1
use-tqdm-on-load|switch
uvicorn-log-level|text||critical debug error info trace warning
video-pruning-method|text|0.24.0<0.27.1|evs vidcom2
video-pruning-rate|text
watchdog-config|json|0.33.0
watermark|float|0.22.1<0.24.0
watermark-config|json|0.29.0<0.31.0
weight-transfer-config|json|0.15.1<0.17.1
worker-cls|text
worker-extension-cls|text
"""

# table: (newest version that it was read from, names with their spans)
NAMES = {
    # environment variables that vLLM reads, without their prefix VLLM_
    "environment": (
        "0.32.0",
        """\
ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN@0.27.1<0.29.0 ALL2ALL_BACKEND@:0.15.1>0.17.1
ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE ALLOW_INSECURE_SERIALIZATION ALLOW_LONG_MAX_MODEL_LEN
ALLOW_RUNTIME_LORA_UPDATING ALLREDUCE_USE_FLASHINFER@0.15.1<0.17.1 ALLREDUCE_USE_FLASHINFER_PCIE_IPC@0.29.0<0.31.0
ALLREDUCE_USE_SYMM_MEM API_KEY ASSETS_CACHE ASSETS_CACHE_MODEL_CLEAN ATTENTION_BACKEND@:>0.15.1 AUDIO_FETCH_TIMEOUT
B12X_MOE_FP4_FORCE_A16@0.27.1<0.29.0 BATCH_INVARIANT@0.17.1<0.19.0 BLOCKSCALE_FP8_GEMM_FLASHINFER@0.12.0<0.15.1
BUILD_COMMIT@0.24.0<0.27.1 BUILD_PIPELINE@0.24.0<0.27.1 BUILD_URL@0.24.0<0.27.1 CACHE_ROOT
CHAT_TEMPLATE_RENDER_TIMEOUT@0.31.0<0.32.0 CI_USE_S3@:0.24.0>0.27.1 COMPILE_CACHE_SAVE_FORMAT COMPUTE_NANS_IN_LOGITS
CONFIGURE_LOGGING CONFIG_ROOT CPU_ATTN_SPLIT_KV@0.19.0<0.20.1 CPU_CI_ENV@0.27.1<0.29.0 CPU_INT4_W4A8@0.19.0<0.20.1
CPU_KVCACHE_SPACE CPU_NUM_OF_RESERVED_CPU CPU_OMP_THREADS_BIND CPU_SGL_KERNEL@:0.27.1>0.29.0 CUDART_SO_PATH
CUDA_COMPATIBILITY_PATH@0.15.1<0.17.1 CUSTOM_SCOPES_FOR_PROFILING DBO_COMM_SMS DCP_Q_REPLICATE@0.24.0<0.27.1
DEBUG_DUMP_PATH DEBUG_LOG_API_SERVER_RESPONSE DEBUG_MFU_METRICS@0.12.0<0.15.1 DEBUG_WORKSPACE@0.12.0<0.15.1
DEEPEPLL_NVFP4_DISPATCH DEEPEP_BUFFER_SIZE_MB DEEPEP_HIGH_THROUGHPUT_FORCE_INTRA_NODE DEEPEP_LOW_LATENCY_USE_MNNVL
DEEPEP_V2_ALLOW_HYBRID_MODE@0.22.1<0.24.0 DEEPEP_V2_ALLOW_MULTIPLE_REDUCTION@0.22.1<0.24.0
DEEPEP_V2_PREFER_OVERLAP@0.22.1<0.24.0 DEEP_GEMM_WARMUP DISABLED_KERNELS DISABLE_COMPILE_CACHE
DISABLE_DSV4_MEGAMOE_SHARED_EXPERT_FUSION@0.27.1<0.29.0 DISABLE_FLASHINFER_PREFILL@:0.12.0>0.15.1
DISABLE_LOG_LOGO@0.12.0<0.15.1 DISABLE_PYNCCL DISABLE_REQUEST_ID_RANDOMIZATION@0.15.1<0.17.1
DISABLE_SHARED_EXPERTS_STREAM DISTRIBUTED_USE_SPLIT_GROUP@0.22.1<0.24.0 DOCKER_BUILD_CONTEXT DO_NOT_TRACK DP_MASTER_IP
DP_MASTER_PORT DP_RANK DP_RANK_LOCAL DP_SIZE EC_SIDE_CHANNEL_HOST@0.24.0<0.27.1 EC_SIDE_CHANNEL_PORT@0.24.0<0.27.1
ELASTIC_EP_DRAIN_REQUESTS@0.15.1<0.17.1 ELASTIC_EP_SCALE_UP_LAUNCH@0.15.1<0.17.1 ENABLE_COHERE_API@0.24.0<0.27.1
ENABLE_CUDAGRAPH_GC ENABLE_CUDA_COMPATIBILITY@0.17.0 ENABLE_FLA_PACKED_RECURRENT_DECODE@0.17.1<0.19.0
ENABLE_FUSED_MOE_ACTIVATION_CHUNKING@:0.17.1>0.19.0 ENABLE_GEMM_RS@0.29.0<0.31.0 ENABLE_HPC_OPS@0.27.1<0.29.0
ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING ENABLE_INDUCTOR_MAX_AUTOTUNE ENABLE_MOE_DP_CHUNK@0.12.0<0.15.1:0.19.0>0.20.1
ENABLE_PREGRAD_PASSES@0.15.1<0.17.1 ENABLE_RESPONSES_API_STORE ENABLE_STARTUP_PLAN@0.24.0<0.27.1
ENABLE_V1_MULTIPROCESSING ENFORCE_STRICT_TOOL_CALLING@0.20.1<0.21.0 ENGINE_ITERATION_TIMEOUT_S@:0.31.0>0.32.0
ENGINE_READY_TIMEOUT_S@0.12.0<0.15.1 EXECUTE_MODEL_TIMEOUT_SECONDS FASTSAFETENSORS_QUEUE_SIZE@0.22.1<0.24.0
FLASHINFER_ALLREDUCE_BACKEND@0.15.1<0.17.1 FLASHINFER_ALLREDUCE_FUSION_THRESHOLDS_MB@:0.24.0>0.27.1
FLASHINFER_AUTOTUNE_CACHE_DIR@0.21.0<0.22.1 FLASHINFER_AUTOTUNE_SKIP_OPS@0.24.0<0.27.1
FLASHINFER_DISABLE_Q_QUANTIZATION@:0.12.0>0.15.1 FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE@0.31.0<0.32.0
FLASHINFER_MOE_BACKEND@:>0.24.0 FLASHINFER_WORKSPACE_BUFFER_SIZE
FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH@:0.12.0>0.15.1 FLASH_ATTN_VERSION@:>0.15.1
FLOAT32_MATMUL_PRECISION@0.12.0<0.15.1 FORCE_AOT_LOAD FUSED_MOE_CHUNK_SIZE@:0.17.1>0.19.0 GC_DEBUG
GDN_DECODE_KERNEL@0.27.1<0.29.0 GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS GPT_OSS_SYSTEM_TOOL_MCP_LABELS
GPU_NIC_PCIE_MAPPING@0.22.1<0.24.0 GPU_SYNC_CHECK@0.24.0<0.27.1 HAS_FLASHINFER_CUBIN HOST_IP HTTP_TIMEOUT_KEEP_ALIVE
HUMMING_INPUT_QUANT_CONFIG@0.19.0<0.20.1 HUMMING_MOE_GEMM_TYPE@0.19.0<0.20.1 HUMMING_ONLINE_QUANT_CONFIG@0.19.0<0.20.1
HUMMING_USE_F16_ACCUM@0.19.0<0.20.1 IMAGE_FETCH_TIMEOUT IMAGE_TAG@0.24.0<0.27.1 KEEP_ALIVE_ON_ENGINE_DEATH
KIMI_K3_AUX_ATTN_RES_STREAM@0.27.1<0.29.0 KIMI_K3_GEMM_AR@0.27.1<0.29.0 KIMI_K3_GEMM_RS@0.27.1<0.29.0:0.29.0>0.31.0
KIMI_K3_SHARD_SP_SHARED_EXPERT@0.24.0<0.27.1 KV_CACHE_LAYOUT KV_EVENTS_USE_INT_BLOCK_HASHES
KV_OFFLOAD_MAX_BATCH_DESCRIPTORS@0.27.1<0.29.0 LOGGING_COLOR LOGGING_CONFIG_PATH LOGGING_LEVEL LOGGING_PREFIX
LOGGING_STREAM LOG_BATCHSIZE_INTERVAL LOG_MODEL_INSPECTION@0.12.0<0.15.1 LOG_STATS_INTERVAL LOOPBACK_IP
LORA_DISABLE_PDL@0.12.0<0.15.1 LORA_ENABLE_DUAL_STREAM@0.19.0<0.20.1 LORA_RESOLVER_CACHE_DIR
LORA_RESOLVER_HF_REPO_LIST@0.15.1<0.17.1 MAIN_CUDA_VERSION MARLIN_INPUT_DTYPE MARLIN_USE_ATOMIC_ADD
MAX_AUDIO_CLIP_FILESIZE_MB MAX_AUDIO_DECODE_BYTES@0.27.1<0.29.0 MAX_AUDIO_DECODE_DURATION_S@0.22.1<0.24.0
MAX_AUDIO_PREPROCESS_WORKERS@0.22.1<0.24.0 MAX_BAD_WORDS_TOTAL_TOKENS@0.27.1<0.29.0
MAX_COMPLETION_PROMPTS@0.24.0<0.27.1 MAX_EMBED_DECODE_BYTES@0.29.0<0.31.0 MAX_IMAGE_PIXELS@0.24.0<0.27.1
MAX_MEDIA_DOWNLOAD_SIZE_MB@0.27.1<0.29.0 MAX_NUM_BAD_WORDS@0.27.1<0.29.0 MAX_N_SEQUENCES@0.17.1<0.19.0
MAX_STOP_STRINGS@0.27.1<0.29.0 MAX_TOKENS_PER_EXPERT_FP4_MOE MEDIA_CACHE@0.19.0<0.20.1
MEDIA_CACHE_MAX_SIZE_MB@0.19.0<0.20.1 MEDIA_CACHE_TTL_HOURS@0.19.0<0.20.1 MEDIA_CONNECTOR
MEDIA_FETCH_MAX_RETRIES@0.17.1<0.19.0 MEDIA_LOADING_THREAD_COUNT MEDIA_URL_ALLOW_REDIRECTS
MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS@0.17.1<0.19.0 MLA_DISABLE MM_HASHER_ALGORITHM@0.12.0<0.15.1:0.29.0>0.31.0
MM_INPUT_CACHE_GIB@:0.12.0>0.15.1 MODEL_REDIRECT_PATH MOE_DP_CHUNK_SIZE@:0.19.0>0.20.1 MOE_ROUTING_SIMULATION_STRATEGY
MOE_SKIP_PADDING@0.24.0<0.27.1 MOE_USE_DEEP_GEMM MOONCAKE_ABORT_REQUEST_TIMEOUT@0.12.0<0.15.1
MOONCAKE_BOOTSTRAP_PORT@0.12.0<0.15.1 MOONCAKE_CONNECTOR_TIMEOUT@0.29.0<0.31.0
MOONCAKE_DISK_STAGING_USABLE_RATIO@0.21.0<0.22.1 MOONCAKE_LOAD_RECV_THREADS@0.24.0<0.27.1
MOONCAKE_STORE_TIER_LOG@0.21.0<0.22.1 MORIIO_CONNECTOR_READ_MODE@0.12.0<0.15.1:0.22.1>0.24.0
MORIIO_NUM_WORKERS@0.12.0<0.15.1:0.22.1>0.24.0 MORIIO_POST_BATCH_SIZE@0.12.0<0.15.1:0.22.1>0.24.0
MORIIO_QP_PER_TRANSFER@0.12.0<0.15.1:0.22.1>0.24.0 MQ_MAX_CHUNK_BYTES_MB MSGPACK_ZERO_COPY_THRESHOLD
MULTI_STREAM_GEMM_TOKEN_THRESHOLD@0.19.0<0.20.1 MXFP4_EMULATION_DEQUANT_AT_LOAD@0.29.0<0.31.0
MXFP4_USE_MARLIN@:>0.24.0 MXFP8_EMULATION_DEQUANT_AT_LOAD@0.22.1<0.24.0 NCCL_INCLUDE_PATH NCCL_SO_PATH
NIC_SELECTION_VARS@0.22.1<0.24.0 NIXL_ABORT_REQUEST_TIMEOUT@:0.21.0>0.22.1
NIXL_EP_MAX_NUM_RANKS@0.17.1<0.19.0:0.29.0>0.31.0 NIXL_SIDE_CHANNEL_HOST NIXL_SIDE_CHANNEL_PORT NO_USAGE_STATS
NVFP4_GEMM_BACKEND@0.11.1:>0.24.0 NVTX_SCOPES_FOR_PROFILING OBJECT_STORAGE_SHM_BUFFER_NAME
P2P_HANDSHAKE_TIMEOUT_S@0.31.0<0.32.0 P2P_IDLE_TIMEOUT_S@0.31.0<0.32.0 P2P_MAX_PEERS@0.31.0<0.32.0
P2P_SIDE_CHANNEL_HOST@0.24.0<0.27.1 P2P_SIDE_CHANNEL_PORT@0.24.0<0.27.1 PATTERN_MATCH_DEBUG PLUGINS PORT
PP_LAYER_PARTITION PREFIX_CACHE_RETENTION_INTERVAL@0.22.1<0.24.0:0.29.0>0.31.0 PROCESS_NAME_PREFIX
PROFILER_DELAY_ITERS@:0.15.1>0.17.1 PROFILER_MAX_ITERS@:0.15.1>0.17.1 RAISE_ON_LOGIT_NANS@0.27.1<0.29.0
RANDOMIZE_DP_DUMMY_INPUTS RAY_BUNDLE_INDICES RAY_DP_PACK_STRATEGY RAY_DP_PLACEMENT_NODE_IPS@0.22.1<0.24.0
RAY_EXTRA_ENV_VARS_TO_COPY@0.15.1<0.17.1 RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY@0.15.1<0.17.1 RAY_PER_WORKER_GPUS
REGEX_COMPILATION_TIMEOUT_S@0.22.1<0.24.0 REPLICATE_EMBED@0.27.1<0.29.0 RINGBUFFER_WARNING_INTERVAL
ROCM_AITER_MEGA_MOE_FUSE_SHARED_EXPERTS@0.31.0<0.32.0 ROCM_AITER_MLA_ASM_PADDING@0.27.1<0.29.0
ROCM_AITER_MLA_DCP_VERIFY@0.29.0<0.31.0 ROCM_AITER_MOE_DISPATCH_POLICY@0.22.1<0.24.0
ROCM_CUSTOM_PAGED_ATTN@:0.17.1>0.19.0 ROCM_FP8_MFMA_PAGE_ATTN ROCM_FP8_PADDING ROCM_MOE_PADDING
ROCM_MONO_DECODE@0.31.0<0.32.0 ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16 ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB
ROCM_QUICK_REDUCE_MIN_SIZE_BYTES_MB@0.21.0<0.22.1 ROCM_QUICK_REDUCE_QUANTIZATION
ROCM_QUICK_REDUCE_QUANTIZATION_MIN_SIZE_KB@0.21.0<0.22.1 ROCM_SHUFFLE_KV_CACHE_LAYOUT@0.12.0<0.15.1
ROCM_SLEEP_MEM_CHUNK_SIZE ROCM_USE_AITER ROCM_USE_AITER_CUSTOM_AR@0.24.0<0.27.1 ROCM_USE_AITER_FP4BMM@0.12.0<0.15.1
ROCM_USE_AITER_FP4_ASM_GEMM ROCM_USE_AITER_FP8BMM ROCM_USE_AITER_FUSION_SHARED_EXPERTS ROCM_USE_AITER_LINEAR
ROCM_USE_AITER_LINEAR_HIPBMM@0.22.1<0.24.0 ROCM_USE_AITER_MHA ROCM_USE_AITER_MLA ROCM_USE_AITER_MOE
ROCM_USE_AITER_MOE_A4W4_DSV4@0.31.0<0.32.0 ROCM_USE_AITER_MOE_SITUV2@0.29.0<0.31.0
ROCM_USE_AITER_MOE_SITUV2_A8W4@0.27.1<0.29.0:0.29.0>0.31.0 ROCM_USE_AITER_PAGED_ATTN@:0.24.0>0.27.1
ROCM_USE_AITER_RMSNORM ROCM_USE_AITER_TRITON_GEMM ROCM_USE_AITER_TRITON_ROPE
ROCM_USE_AITER_TRITON_SPARSE_MLA@0.31.0<0.32.0 ROCM_USE_AITER_UNIFIED_ATTENTION ROCM_USE_SKINNY_GEMM RPC_BASE_PATH
RPC_TIMEOUT@:0.22.1>0.24.0 RUST_FRONTEND_PATH@0.21.0<0.22.1 SERVER_DEV_MODE SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD
SKIP_MODEL_NAME_VALIDATION@0.20.1<0.21.0 SKIP_P2P_CHECK SKIP_PRECOMPILED_VERSION_SUFFIX@0.12.0<0.15.1
SKIP_VERSION_SUFFIX@0.29.0<0.31.0 SLEEP_WHEN_IDLE@:0.17.1>0.19.0 SPARSE_INDEXER_MAX_LOGITS_MB@0.17.1<0.19.0
SSM_CONV_STATE_LAYOUT@0.19.0<0.20.1 SYSTEM_START_DATE@0.15.1<0.17.1 TARGET_DEVICE TEST_FORCE_FP8_MARLIN@:>0.29.0
TEST_FORCE_LOAD_FORMAT TEST_USE_PRECOMPILED_NIGHTLY_WHEEL@:0.12.0>0.15.1 TOOL_JSON_ERROR_AUTOMATIC_RETRY
TOOL_PARSE_REGEX_TIMEOUT_SECONDS TORCH_CUDA_PROFILE@:0.15.1>0.17.1 TORCH_PROFILER_DIR@:0.15.1>0.17.1
TORCH_PROFILER_DISABLE_ASYNC_LLM@:0.15.1>0.17.1 TORCH_PROFILER_DUMP_CUDA_TIME_TOTAL@:0.15.1>0.17.1
TORCH_PROFILER_RECORD_SHAPES@:0.15.1>0.17.1 TORCH_PROFILER_USE_GZIP@:0.15.1>0.17.1
TORCH_PROFILER_WITH_FLOPS@:0.15.1>0.17.1 TORCH_PROFILER_WITH_PROFILE_MEMORY@:0.15.1>0.17.1
TORCH_PROFILER_WITH_STACK@:0.15.1>0.17.1 TPU_BUCKET_PADDING_GAP@:0.24.0>0.27.1 TPU_MOST_MODEL_LEN@:0.24.0>0.27.1
TPU_USING_PATHWAYS TRACE_FUNCTION TRITON_ATTN_USE_TD@0.21.0<0.22.1:0.27.1>0.29.0
TRITON_FORCE_FIRST_CONFIG@0.22.1<0.24.0 TRITON_JIT_WARMUP_NUM_THREADS@0.29.0<0.31.0 TRITON_USE_TD@0.24.0<0.27.1
TUNED_CONFIG_FOLDER USAGE_SOURCE USAGE_STATS_SERVER USE_AOT_COMPILE USE_BREAKABLE_CUDAGRAPH@0.21.0<0.22.1
USE_BYTECODE_HOOK USE_CUDNN_PREFILL@:0.12.0>0.15.1 USE_DEEP_GEMM USE_DEEP_GEMM_E8M0
USE_DEEP_GEMM_TMA_ALIGNED_SCALES@0.12.0<0.15.1 USE_DIRECT_DCP_A2A@0.27.1<0.29.0 USE_DIRECT_DCP_KV_GATHER@0.27.1<0.29.0
USE_DIRECT_DCP_Q_GATHER@0.27.1<0.29.0 USE_EXPERIMENTAL_PARSER_CONTEXT@0.12.0<0.15.1 USE_FASTOKENS@0.21.0<0.22.1
USE_FBGEMM@:>0.24.0 USE_FLASHINFER_MOE_FP16@:>0.24.0 USE_FLASHINFER_MOE_FP4@:>0.24.0 USE_FLASHINFER_MOE_FP8@:>0.24.0
USE_FLASHINFER_MOE_INT4@0.15.1<0.17.1 USE_FLASHINFER_MOE_MXFP4_BF16@:>0.24.0 USE_FLASHINFER_MOE_MXFP4_MXFP8@:>0.24.0
USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS@:>0.24.0 USE_FLASHINFER_SAMPLER USE_FUSED_MOE_GROUPED_TOPK
USE_HW_AGNOSTIC@0.27.1<0.29.0 USE_LAYERNAME@0.19.0<0.20.1 USE_MEGA_AOT_ARTIFACT@0.12.0<0.15.1 USE_MODELSCOPE
USE_NCCL_SYMM_MEM USE_NVFP4_CT_EMULATIONS@:>0.24.0 USE_OINK_OPS@0.15.1<0.17.1 USE_PRECOMPILED
USE_PRECOMPILED_RUST@0.21.0<0.22.1 USE_RAY_COMPILED_DAG_CHANNEL_TYPE@:>0.33.0
USE_RAY_COMPILED_DAG_OVERLAP_COMM@:>0.33.0 USE_RAY_V2_EXECUTOR_BACKEND@0.19.0<0.20.1:>0.33.0 USE_RAY_WRAPPED_PP_COMM
USE_RUST_BENCH@0.24.0<0.27.1 USE_RUST_FRONTEND@0.21.0<0.22.1 USE_SIMPLE_KV_OFFLOAD@0.17.1<0.19.0
USE_SPINLOOP_EXT@0.21.0<0.22.1 USE_STANDALONE_COMPILE USE_TRITON_AWQ USE_TRTLLM_ATTENTION@:>0.15.1
USE_TRTLLM_RAGGED_DEEPSEEK_PREFILL@:0.12.0>0.15.1 USE_V1@:>0.11.1 USE_V2_MODEL_RUNNER@0.12.0 V1_OUTPUT_PROC_CHUNK_SIZE
V1_USE_OUTLINES_CACHE V1_USE_PREFILL_DECODE_ATTENTION@:0.12.0>0.15.1 VIDEO_FETCH_TIMEOUT VIDEO_LOADER_BACKEND
WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY@0.15.1<0.17.1 WEIGHT_OFFLOADING_DISABLE_UVA@0.15.1<0.17.1 WORKER_MULTIPROC_METHOD
WORKER_SHUTDOWN_TIMEOUT_SECONDS@0.22.1<0.24.0 WSL2_ENABLE_PIN_MEMORY@0.22.1<0.24.0 XGRAMMAR_CACHE_MB XLA_CACHE_PATH
XLA_CHECK_RECOMPILATION XLA_USE_SPMD XPU_ENABLE_XPU_GRAPH@0.17.1<0.19.0:0.29.0>0.31.0
XPU_FORCE_N_CONTIG_WEIGHT@0.27.1<0.29.0 XPU_INC_WNA16_BACKEND@0.27.1<0.29.0 XPU_PP_MICROBATCH@0.29.0<0.31.0
XPU_USE_SAMPLER_KERNEL@0.20.1<0.21.0 ZENTORCH_WEIGHT_PREPACK@0.17.1<0.19.0
""",
    ),
    # architectures in the model registry
    "architectures": (
        "0.32.0",
        """\
AXK1ForCausalLM@0.15.1<0.17.1 AfmoeForCausalLM ApertusForCausalLM AquilaForCausalLM AquilaModel ArceeForCausalLM
ArcticForCausalLM AriaForConditionalGeneration AudioFlamingo3ForConditionalGeneration@0.12.0<0.15.1
AyaVisionForConditionalGeneration BagelForConditionalGeneration@0.12.0<0.15.1 BaiChuanForCausalLM BaichuanForCausalLM
BailingMoeForCausalLM BailingMoeV25MTPModel@0.24.0<0.27.1 BailingMoeV2ForCausalLM
BailingMoeV2_5ForCausalLM@0.15.1<0.17.1 BailingMoeV3ForCausalLM@0.27.1<0.29.0 BailingMoeV3MTPModel@0.27.1<0.29.0
BailingMoeV3VLForConditionalGeneration@0.29.0<0.31.0 BambaForCausalLM BartForConditionalGeneration BartModel
BeeForConditionalGeneration BertForMaskedLM@0.24.0<0.27.1 BertForSequenceClassification BertForTokenClassification
BertModel BertSpladeSparseEmbeddingModel BgeM3EmbeddingModel@0.12.0<0.15.1 Blip2ForConditionalGeneration
BloomForCausalLM CLIPModel ChameleonForConditionalGeneration ChatGLMForConditionalGeneration ChatGLMModel
Cheers@0.19.0<0.20.1 CheersForConditionalGeneration@0.19.0<0.20.1 ClefOmniForJointSchema@0.31.0<0.32.0
Cohere2ForCausalLM Cohere2MoeForCausalLM@0.20.1<0.21.0 Cohere2VisionForConditionalGeneration
CohereAsrForConditionalGeneration@0.17.1<0.19.0 CohereCompassForConditionalGeneration@0.29.0<0.31.0 CohereForCausalLM
ColBERTJinaRobertaModel@0.15.1<0.17.1 ColBERTLfm2Model@0.17.1<0.19.0 ColBERTModernBertModel@0.15.1<0.17.1
ColModernVBertForRetrieval@0.15.1<0.17.1 ColPaliForRetrieval@0.17.1<0.19.0 ColQwen3@0.15.1<0.17.1
ColQwen3_5@0.17.1<0.19.0 Cosmos3EdgeForConditionalGeneration@0.24.0<0.27.1
Cosmos3ForConditionalGeneration@0.22.1<0.24.0 CwmForCausalLM DFlash2DraftModel@0.27.1<0.29.0 DFlashDraftModel@0.20.0
DFlashLagunaForCausalLM@0.24.0<0.27.1 DFlashMuseGlimmerAssistantModel@0.27.1<0.29.0 DSparkDraftModel@0.24.0<0.27.1
DSparkV41DraftModel@0.29.0<0.31.0 DbrxForCausalLM DeciLMForCausalLM DeepSeekMTPModel DeepSeekV4MTPModel@0.19.0<0.20.1
DeepseekForCausalLM DeepseekOCR2ForCausalLM@0.15.1<0.17.1 DeepseekOCRForCausalLM DeepseekV2ForCausalLM
DeepseekV32ForCausalLM DeepseekV32MTPModel@0.27.1<0.29.0 DeepseekV3BidirectionalModel@0.27.1<0.29.0
DeepseekV3ForCausalLM DeepseekV41ForCausalLM@0.29.0<0.31.0 DeepseekV4ForCausalLM@0.19.0<0.20.1
DeepseekV4ForConditionalGeneration@0.29.0<0.31.0 DeepseekVLV2ForCausalLM DiffusionGemmaForBlockDiffusion@0.24.0
DonutForConditionalGeneration Dots1ForCausalLM Dots3NoteForCausalLM@0.27.1<0.29.0 Dots3NoteMTPModel@0.27.1<0.29.0
DotsOCRForCausalLM Eagle2_5_VLForConditionalGeneration@0.12.0<0.15.1 Eagle3DeepseekV2ForCausalLM@0.17.1<0.19.0
Eagle3DeepseekV3ForCausalLM@0.17.1<0.19.0 Eagle3LlamaForCausalLM Eagle3MiniMaxM2ForCausalLM@0.19.0<0.20.1
Eagle3Qwen2_5vlForCausalLM Eagle3Qwen3ForCausalLM@0.22.1<0.24.0 Eagle3Qwen3vlForCausalLM
EagleCohereForCausalLM@0.20.1<0.21.0 EagleDeepSeekMTPModel EagleLlama4ForCausalLM EagleLlamaForCausalLM
EagleMiniCPMForCausalLM EagleMistralForCausalLM@0.20.1<0.21.0 EagleMistralLarge3ForCausalLM
EmbeddingGemma2Model@0.31.0<0.32.0 Emu3ForConditionalGeneration Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM
Ernie4_5_VLMoeForConditionalGeneration ErnieForSequenceClassification@0.17.1<0.19.0
ErnieForTokenClassification@0.17.1<0.19.0 ErnieMTPModel ErnieModel@0.17.1<0.19.0 Exaone4ForCausalLM
Exaone4_5_ForConditionalGeneration@0.19.0<0.20.1 Exaone4_5_MTP@0.19.0<0.20.1 ExaoneForCausalLM
ExaoneMoEForCausalLM@0.12.0<0.15.1 ExaoneMoeForCausalLM@0.24.0<0.27.1 ExaoneMoeMTP@0.12.0<0.15.1
ExtractHiddenStatesModel@0.15.1<0.17.1 Fairseq2LlamaForCausalLM FalconForCausalLM FalconH1ForCausalLM
FalconMambaForCausalLM FireRedASR2ForConditionalGeneration@0.15.1<0.17.1
FireRedLIDForConditionalGeneration@0.19.0<0.20.1 FlexOlmoForCausalLM Florence2ForConditionalGeneration
FunASRForConditionalGeneration@0.15.1<0.17.1 FunAudioChatForConditionalGeneration@0.15.1<0.17.1 FuyuForCausalLM
GLM4VForCausalLM GPT2ForSequenceClassification GPT2LMHeadModel GPTBigCodeForCausalLM GPTJForCausalLM
GPTNeoXForCausalLM Gemma2ForCausalLM Gemma2Model Gemma3ForCausalLM Gemma3ForConditionalGeneration Gemma3TextModel
Gemma3nForCausalLM Gemma3nForConditionalGeneration Gemma4DSparkModel@0.24.0<0.27.1 Gemma4ForCausalLM@0.19.0
Gemma4ForConditionalGeneration@0.19.0 Gemma4MTPModel@0.21.0 Gemma4UnifiedForConditionalGeneration@0.23.0
GemmaForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM Glm4MoeLiteForCausalLM@0.12.0<0.15.1
Glm4MoeLiteMTPModel@0.12.0<0.15.1 Glm4MoeMTPModel Glm4vForConditionalGeneration Glm4vMoeForConditionalGeneration
Glm5NextForCausalLM@0.29.0<0.31.0 Glm5NextForConditionalGeneration@0.29.0<0.31.0 Glm5NextMTPModel@0.29.0<0.31.0
GlmAsrForConditionalGeneration@0.12.0<0.15.1 GlmForCausalLM GlmMoeDsaForCausalLM@0.15.1<0.17.1
GlmOcrForConditionalGeneration@0.15.1<0.17.1 GlmOcrMTPModel@0.15.1<0.17.1 GptOssForCausalLM
Granite4VisionForConditionalGeneration@0.19.0<0.20.1 GraniteForCausalLM GraniteMoeForCausalLM
GraniteMoeHybridForCausalLM GraniteMoeSWAForCausalLM@0.27.1<0.29.0 GraniteMoeSharedForCausalLM
GraniteSWAForCausalLM@0.27.1<0.29.0 GraniteSpeechForConditionalGeneration
GraniteSpeechPlusForConditionalGeneration@0.22.1<0.24.0 GritLM Grok1ForCausalLM@0.12.0<0.15.1 Grok1ModelForCausalLM
GteModel GteNewForSequenceClassification GteNewModel H2OVLChatModel HCXVisionForCausalLM
HCXVisionV2ForCausalLM@0.17.1<0.19.0 HF_ColBERT@0.15.1<0.17.1 HYV3ForCausalLM@0.19.0<0.20.1 HYV3MTPModel@0.19.0<0.20.1
HYV4ForCausalLM@0.27.1<0.29.0 HYV4MTPModel@0.27.1<0.29.0 HfMoondream@0.20.1<0.21.0 HrmTextForCausalLM@0.22.1<0.24.0
HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM HunYuanVLForConditionalGeneration
HyperCLOVAXForCausalLM@0.17.1<0.19.0 IQuestCoderForCausalLM@0.12.0<0.15.1 IQuestLoopCoderForCausalLM@0.12.0<0.15.1
Idefics3ForConditionalGeneration InklingForCausalLM@0.24.0<0.27.1 InklingForConditionalGeneration@0.24.0<0.27.1
InklingMTPModel@0.24.0<0.27.1 InternLM2ForCausalLM InternLM2ForRewardModel InternLM2VEForCausalLM InternLM3ForCausalLM
InternLMForCausalLM InternS1ForConditionalGeneration InternS1ProForConditionalGeneration@0.15.1<0.17.1
InternS2MobiusForConditionalGeneration@0.27.1<0.29.0 InternS2MobiusMTP@0.27.1<0.29.0
InternS2PreviewForConditionalGeneration@0.21.0<0.22.1 InternVLChatModel InternVLForConditionalGeneration
IsaacForConditionalGeneration@0.12.0<0.15.1 JAISLMHeadModel Jais2ForCausalLM@0.12.0<0.15.1 JambaForCausalLM
JambaForSequenceClassification JinaEmbeddingsV5Model@0.19.0<0.20.1 JinaForRanking@0.19.0<0.20.1 JinaVLForRanking
K2HorizonForCausalLM@0.29.0<0.31.0 K3DSparkModel@0.24.0<0.27.1 KananaVForConditionalGeneration@0.12.0<0.15.1
KeyeForConditionalGeneration KeyeVL1_5ForConditionalGeneration KimiK25ForConditionalGeneration@0.12.0<0.15.1
KimiK3ForConditionalGeneration@0.24.0<0.27.1 KimiK3MTPModel@0.24.0<0.27.1 KimiLinearForCausalLM
KimiVLForConditionalGeneration LLaMAForCausalLM LagunaForCausalLM@0.21.0 Lfm2ForCausalLM Lfm2MoeForCausalLM
Lfm2VlForConditionalGeneration@0.12.0<0.15.1 LiLiCorrDraftModel@0.29.0<0.31.0 LightOnOCRForConditionalGeneration
Llama4ForCausalLM Llama4ForConditionalGeneration LlamaBidirectionalForSequenceClassification@0.12.0<0.15.1
LlamaBidirectionalModel@0.12.0<0.15.1 LlamaForCausalLM LlamaForCausalLMEagle3 LlamaModel
LlamaNemotronVLForSequenceClassification@0.15.1<0.17.1 LlamaNemotronVLModel@0.15.1<0.17.1 Llama_Nemotron_Nano_VL
LlavaForConditionalGeneration LlavaNextForConditionalGeneration LlavaNextVideoForConditionalGeneration
LlavaOnevision2ForConditionalGeneration@0.24.0<0.27.1 LlavaOnevisionForConditionalGeneration LongCatFlashMTPModel
LongcatFlashForCausalLM LongcatFlashNgramForCausalLM@0.24.0<0.27.1 MBartForConditionalGeneration MPTForCausalLM
Mamba2ForCausalLM MambaForCausalLM MantisForConditionalGeneration MedusaModel MellumForCausalLM@0.21.0<0.22.1
MiDashengLMModel MiMoForCausalLM MiMoMTPModel MiMoV2FlashForCausalLM@0.12.0<0.15.1 MiMoV2ForCausalLM@0.20.1<0.21.0
MiMoV2MTPModel@0.20.1<0.21.0 MiMoV2OmniForCausalLM@0.20.1<0.21.0 MiMoV2OmniMTPModel@0.20.1<0.21.0 MiniCPM3ForCausalLM
MiniCPMForCausalLM MiniCPMO MiniCPMV MiniCPMV4_6ForConditionalGeneration@0.21.0<0.22.1
MiniCPMV4_7ForConditionalGeneration@0.31.0<0.32.0 MiniMaxForCausalLM MiniMaxM1ForCausalLM MiniMaxM2ForCausalLM
MiniMaxM3MTP@0.22.1<0.24.0 MiniMaxM3SparseForCausalLM@0.22.1<0.24.0
MiniMaxM3SparseForConditionalGeneration@0.22.1<0.24.0 MiniMaxText01ForCausalLM MiniMaxVL01ForConditionalGeneration
Ministral3ForCausalLM@0.19.0<0.20.1 Mistral3ForConditionalGeneration MistralForCausalLM MistralLarge3ForCausalLM
MistralModel MixtralForCausalLM MllamaForConditionalGeneration ModernBertForSequenceClassification
ModernBertForTokenClassification ModernBertModel Molmo2ForConditionalGeneration@0.12.0<0.15.1 MolmoForCausalLM
Moondream3ForCausalLM@0.20.1<0.21.0 MoonshotKimiaForCausalLM@0.17.1<0.19.0 MossAudioModel@0.22.1<0.24.0
MossTranscribeDiarizeForConditionalGeneration@0.24.0<0.27.1 MotifForCausalLM MptForCausalLM
MuseGlimmerAssistantModel@0.27.1<0.29.0 MuseGlimmerForCausalLM@0.27.1<0.29.0
MuseGlimmerForConditionalGeneration@0.27.1<0.29.0 MusicFlamingoForConditionalGeneration@0.15.1<0.17.1 NVLM_D
NanbeigeForCausalLM@0.29.0<0.31.0 Nemotron3_5AsrForRNNT@0.31.0<0.32.0 NemotronForCausalLM NemotronHForCausalLM
NemotronHMTPModel@0.15.1<0.17.1 NemotronHPuzzleForCausalLM@0.15.1<0.17.1 NemotronH_Nano_Omni_Reasoning_V3@0.20.0
NemotronH_Nano_VL_V2@0.11.0 NemotronH_Omni_Reasoning_V3@0.27.1<0.29.0 NemotronH_Super_Omni_Reasoning_V3@0.19.0<0.20.1
NemotronParseForConditionalGeneration@0.12.0<0.15.1 NomicBertModel OPTForCausalLM Olmo2ForCausalLM Olmo3ForCausalLM
OlmoForCausalLM OlmoHybridForCausalLM@0.17.1<0.19.0 OlmoeForCausalLM
OpenAIPrivacyFilterForTokenClassification@0.24.0<0.27.1 OpenCUAForConditionalGeneration OpenPanguMTPModel
OpenPanguVLForConditionalGeneration@0.15.1<0.17.1 OpenVLAForActionPrediction@0.21.0<0.22.1
OpsColQwen3Model@0.15.1<0.17.1 OrionForCausalLM OuroForCausalLM Ovis Ovis2_5 Ovis2_6ForCausalLM@0.15.1<0.17.1
Ovis2_6_MoeForCausalLM@0.15.1<0.17.1 PEagleDraftModel@0.21.0<0.22.1 PaddleOCRVLForConditionalGeneration
PaliGemmaForConditionalGeneration PanguEmbeddedForCausalLM PanguProMoEV2ForCausalLM@0.12.0<0.15.1
PanguUltraMoEForCausalLM Param2MoEForCausalLM@0.19.0<0.20.1 PeagleLlamaForCausalLM@0.21.0<0.22.1
PeagleQwen3ForCausalLM@0.22.1<0.24.0 PersimmonForCausalLM Phi3ForCausalLM Phi3SmallForCausalLM Phi3VForCausalLM
Phi4FlashForCausalLM Phi4ForCausalLMV@0.19.0<0.20.1 Phi4MMForCausalLM Phi4MultimodalForCausalLM PhiForCausalLM
PhiMoEForCausalLM PixtralForConditionalGeneration Plamo2ForCausalLM Plamo3ForCausalLM PrithviGeoSpatialMAE
QWenLMHeadModel QianfanOCRForConditionalGeneration@0.20.1<0.21.0 Qwen2AudioForConditionalGeneration Qwen2ForCausalLM
Qwen2ForProcessRewardModel Qwen2ForRewardModel Qwen2Model Qwen2MoeForCausalLM Qwen2VLForConditionalGeneration
Qwen2_5OmniForConditionalGeneration Qwen2_5OmniModel Qwen2_5_VLForConditionalGeneration
Qwen3ASRForConditionalGeneration@0.15.1<0.17.1 Qwen3ASRForcedAlignerForTokenClassification@0.17.1<0.19.0
Qwen3ASRRealtimeGeneration@0.15.1<0.17.1 Qwen3DSparkModel@0.24.0<0.27.1 Qwen3ForCausalLM Qwen3MoeForCausalLM
Qwen3NextForCausalLM@0.10.2 Qwen3NextMTP Qwen3OmniDSparkModel@0.27.1<0.29.0 Qwen3OmniMoeForConditionalGeneration
Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration Qwen3VLNemotronEmbedModel@0.15.1<0.17.1
Qwen3_5ForCausalLM@0.24.0<0.27.1 Qwen3_5ForConditionalGeneration@0.17.0 Qwen3_5MTP@0.15.1<0.17.1
Qwen3_5MoeForCausalLM@0.24.0<0.27.1 Qwen3_5MoeForConditionalGeneration@0.17.0 Qwen3_5MoeMTP@0.15.1<0.17.1
Qwen4ExpForCausalLM@0.27.1<0.29.0 Qwen4ExpForConditionalGeneration@0.27.1<0.29.0 Qwen4ExpMTP@0.27.1<0.29.0
QwenVLForConditionalGeneration RForConditionalGeneration RWForCausalLM Rnj1ForCausalLM@0.19.0<0.20.1
RobertaForMaskedLM RobertaForSequenceClassification RobertaForTokenClassification@0.24.0<0.27.1 RobertaModel
SarvamMLAForCausalLM@0.17.1<0.19.0 SarvamMoEForCausalLM@0.17.1<0.19.0 SeedOssForCausalLM SiglipModel
SkyworkR1VChatModel SmolLM3ForCausalLM SmolVLMForConditionalGeneration SolarForCausalLM StableLMEpochForCausalLM
StableLmForCausalLM Starcoder2ForCausalLM Step1ForCausalLM@0.12.0<0.15.1 Step3TextForCausalLM
Step3VLForConditionalGeneration Step3p5ForCausalLM@0.12.0<0.15.1 Step3p5MTP@0.12.0<0.15.1
Step3p7ForConditionalGeneration@0.22.1<0.24.0 StepVLForConditionalGeneration@0.12.0<0.15.1
Tarsier2ForConditionalGeneration TarsierForConditionalGeneration TeleChat2ForCausalLM
TeleChat3ForCausalLM@0.19.0<0.20.1 TeleChatForCausalLM TeleFLMForCausalLM Terratorch TransformersEmbeddingModel
TransformersForCausalLM TransformersForSequenceClassification TransformersMoEEmbeddingModel TransformersMoEForCausalLM
TransformersMoEForSequenceClassification TransformersMultiModalEmbeddingModel TransformersMultiModalForCausalLM
TransformersMultiModalForSequenceClassification TransformersMultiModalMoEForCausalLM UltravoxModel
UnlimitedOCRForCausalLM@0.24.0<0.27.1 VaultGemmaForCausalLM@0.24.0<0.27.1
VibeVoiceAsrForConditionalGeneration@0.24.0<0.27.1 VoxtralForConditionalGeneration
VoxtralRealtimeGeneration@0.15.1<0.17.1 VoxtralStreamingGeneration@0.12.0<0.15.1:0.15.1>0.17.1
VoyageQwen3BidirectionalEmbedModel@0.15.1<0.17.1 WhisperForConditionalGeneration XLMRobertaForSequenceClassification
XLMRobertaForTokenClassification@0.24.0<0.27.1 XLMRobertaModel XverseForCausalLM Zamba2ForCausalLM
""",
    ),
    # values of --tool-call-parser
    "tool_parsers": (
        "0.33.0",
        """\
apertus@0.21.0<0.22.1 beam@0.32.0<0.33.0 cohere_command3@0.20.1<0.21.0 cohere_command4@0.20.1<0.21.0 deepseek_v3
deepseek_v31 deepseek_v32@0.12.0<0.15.1 deepseek_v4@0.19.0<0.20.1 deepseek_v41@0.29.0<0.31.0 dots@0.27.1<0.29.0
ernie45 functiongemma@0.12.0<0.15.1 gemma4@0.19.0 gigachat3@0.12.0<0.15.1 glm45 glm47@0.12.0<0.15.1 granite
granite-20b-fc granite4@0.17.1<0.19.0 hermes hf@0.32.0 hunyuan_a13b hy_v3@0.19.0<0.20.1 hy_v4@0.27.1<0.29.0
inkling@0.24.0<0.27.1 internlm jamba k2_horizon@0.29.0<0.31.0 kimi_k2 kimi_k3@0.24.0<0.27.1 lfm2@0.20.1<0.21.0
ling3@0.27.1<0.29.0 llama3_json llama4_json llama4_pythonic longcat mimo@0.19.0<0.20.1 minicpm5@0.22.1<0.24.0
minimax@:>0.24.0 minimax_m2 minimax_m3@0.22.1<0.24.0 mistral muse@0.32.0<0.33.0 muse_glimmer@0.27.1<0.29.0
musespark1x@0.32.0<0.33.0 olmo3 openai@0.10.2 phi4_mini_json plamo3@0.31.0<0.32.0 poolside_v1@0.21.0 pythonic
qwen3_coder qwen3_json@0.32.0 qwen3_xml@0.11.0 seed_oss step3 step3p5@0.12.0<0.15.1 step5@0.32.0<0.33.0 xlam
""",
    ),
    # values of --reasoning-parser
    "reasoning_parsers": (
        "0.33.0",
        """\
beam@0.32.0<0.33.0 cohere_command3@0.20.1<0.21.0 cohere_command4@0.20.1<0.21.0 deepseek_r1 deepseek_v3
deepseek_v4@0.19.0<0.20.1 deepseek_v41@0.29.0<0.31.0 ernie45 gemma4@0.19.0 glm45 glm47@0.22.1<0.24.0 granite
granite_thinking_parser@0.29.0<0.31.0 hf@0.31.0<0.32.0 holo2@0.12.0<0.15.1 hunyuan_a13b hy_v3@0.19.0<0.20.1
hy_v4@0.27.1<0.29.0 inkling@0.24.0<0.27.1 k2_horizon@0.29.0<0.31.0 kimi_k2 kimi_k3@0.24.0<0.27.1 ling3@0.27.1<0.29.0
mimo@0.19.0<0.20.1 minicpmv@0.31.0<0.32.0 minimax_m2 minimax_m2_append_think minimax_m3@0.22.1<0.24.0 mistral
muse@0.32.0<0.33.0 muse_glimmer@0.27.1<0.29.0 musespark1x@0.32.0<0.33.0 nemotron_v3@0.17.1 olmo3 openai_gptoss
plamo3@0.31.0<0.32.0 poolside_v1@0.21.0 qwen3 seed_oss step3 step3p5@0.12.0<0.15.1 step5@0.32.0<0.33.0
""",
    ),
    # speculative methods
    "spec_methods": (
        "0.33.0",
        """\
bailing_hybrid_mtp@0.24.0<0.27.1 bailing_hybrid_v3_mtp@0.27.1<0.29.0 custom_class@0.21.0<0.22.1 deepseek_mtp
dflash@0.20.0 dots3_note_mtp@0.27.1<0.29.0 draft_model dspark@0.25.0 eagle eagle3 ernie_mtp
exaone4_5_mtp@0.19.0<0.20.1 exaone_moe_mtp@0.12.0<0.15.1 extract_hidden_states@0.15.1<0.17.1 gemma4_mtp@0.21.0
glm4_moe_lite_mtp@0.12.0<0.15.1 glm4_moe_mtp glm5_next_mtp@0.29.0<0.31.0 glm_ocr_mtp@0.15.1<0.17.1
hy_v3_mtp@0.19.0<0.20.1 hy_v4_mtp@0.27.1<0.29.0 inkling_mtp@0.24.0<0.27.1 kimi_k3_mtp@0.24.0<0.27.1 longcat_flash_mtp
medusa@:>0.33.0 mimo_mtp mimo_v2_mtp@0.20.1<0.21.0 minimax_m3_mtp@0.22.1<0.24.0 mlp_speculator@:>0.33.0 mtp@0.11.0
nemotron_h_mtp@0.17.0 ngram ngram_gpu@0.18.0 pangu_ultra_moe_mtp qwen3_5_mtp@0.17.0 qwen3_next_mtp
qwen4_exp_mtp@0.27.1<0.29.0 step3p5_mtp@0.12.0<0.15.1 step5_mtp@0.32.0<0.33.0 suffix@0.11.1
""",
    ),
    # keys of --speculative-config
    "spec_keys": (
        "0.32.0",
        """\
attention_backend@0.21.0 code_revision disable_by_batch_size@:>0.17.0 disable_eagle_block_drop@0.29.0<0.31.0
disable_padded_drafter_batch draft_load_config@0.15.1<0.17.1 draft_model_config draft_parallel_config
draft_sample_method@0.20.1<0.21.0 draft_tensor_parallel_size dspark_draft_topk@0.27.1<0.29.0
enable_adaptive_verification@0.27.1<0.29.0 enforce_eager index_share_for_mtp_iteration@0.27.1<0.29.0
kv_cache_dtype@0.26.0 max_model_len method model moe_backend@0.19.0 num_speculative_tokens
num_speculative_tokens_per_batch_size@0.24.0 parallel_drafting@0.15.1<0.17.1 prompt_lookup_max prompt_lookup_min
quantization rejection_sample_method@0.17.1<0.19.0 revision speculative_token_tree@:0.20.1>0.21.0
suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor suffix_decoding_max_tree_depth
suffix_decoding_min_token_prob synthetic_acceptance_length@0.19.0<0.20.1
synthetic_acceptance_rate@0.17.1<0.19.0:0.19.0>0.20.1 synthetic_acceptance_rates@0.19.0<0.20.1 target_model_config
target_parallel_config tensor_parallel_size@0.12.0<0.15.1 use_heterogeneous_vocab@0.24.0<0.27.1
use_local_argmax_reduction@0.15.1<0.17.1
""",
    ),
    # values of --quantization
    "quantizations": (
        "0.32.0",
        """\
auto-round@:0.12.0>0.15.1 auto_awq@0.24.0 auto_gptq@0.22.0 awq awq_marlin bitblas@:0.15.1>0.17.1 bitsandbytes@:>0.28.0
compressed-tensors cpu_awq@:0.22.1>0.24.0 cpu_gptq@:0.12.0>0.15.1 deepseek_v4_fp8@0.19.0<0.20.1
deepspeedfp@:0.12.0>0.15.1 experts_int8 fbgemm_fp8 fp8 fp8_per_block@0.19.0<0.20.1 fp8_per_channel@0.22.1<0.24.0
fp8_per_tensor@0.20.0 fp_quant gguf@:>0.24.0 gpt_oss_mxfp4@0.20.0 gptq gptq_bitblas@:0.15.1>0.17.1 gptq_marlin
gptq_marlin_24@:0.15.1>0.17.1 hqq@:0.12.0>0.15.1 humming@0.20.0 inc int8_per_channel_weight_only@0.19.0<0.20.1
ipex@:0.15.1>0.17.1 modelopt modelopt_fp4 modelopt_mixed@0.17.0 modelopt_mxfp8@0.16.0 moe_wna16 mxfp4
mxfp8@0.17.1<0.19.0 nvfp4_per_token@0.26.0 online@0.20.0 petit_nvfp4@:>0.20.0 ptpc_fp8@:0.17.1>0.19.0 quark
rtn@:0.12.0>0.15.1 torchao tpu_int8@:0.12.0>0.15.1
""",
    ),
    # values of --moe-backend
    "moe_backends": (
        "0.33.0",
        """\
aiter@0.17.0 aiter_mega_moe@0.31.0<0.32.0 aiter_triton_mxfp4_bf16@0.29.0<0.31.0 aiter_triton_mxfp4_mxfp4@0.32.0<0.33.0
auto@0.17.0 b12x@0.29.0 batched_triton@0.27.0 cutlass@0.17.0 deep_gemm@0.17.0 deep_gemm_mega_moe@0.19.0<0.20.1
emulation@0.20.0 flashinfer_b12x@0.22.0 flashinfer_cutedsl@0.17.0 flashinfer_cutlass@0.17.0
flashinfer_moe_ep_cutedsl@0.31.0<0.32.0 flashinfer_moe_ep_mega_cutedsl@0.27.1<0.29.0:0.31.0>0.32.0
flashinfer_moe_ep_mega_deep_gemm@0.27.1<0.29.0 flashinfer_trtllm@0.17.0 flydsl@0.22.1<0.24.0 hpc@0.24.0<0.27.1
humming@0.21.0 marlin@0.17.0 rdna3@0.29.0<0.31.0 triton@0.17.0 triton_unfused@0.21.0
""",
    ),
    # values of --kv-cache-dtype
    "kv_cache_dtypes": (
        "0.32.0",
        """\
auto bfloat16 float16@0.17.1<0.19.0 fp8 fp8_ds_mla fp8_e4m3 fp8_e5m2 fp8_inc fp8_per_token_head@0.19.0<0.20.1
int4_per_token_head@0.25.0 int8_per_token_head@0.19.0<0.20.1 nvfp4@0.20.0 nvfp4_4over6@0.28.0
nvfp4_ds_mla@0.29.0<0.31.0 turboquant_3bit_nc@0.19.0<0.20.1 turboquant_4bit_nc@0.19.0<0.20.1
turboquant_k3v4_nc@0.19.0<0.20.1 turboquant_k8v4@0.19.0<0.20.1 ultraquant_4bit@0.31.0<0.32.0
""",
    ),
    # values of --load-format
    "load_formats": (
        "0.32.0",
        """\
auto bitsandbytes@:>0.28.0 dummy fastsafetensors gguf@:>0.24.0 hf instanttensor@0.18.0 ipc_cache@0.30.0 mistral
modelexpress@0.21.0<0.22.1 npcache pt runai_streamer runai_streamer_sharded safetensors sharded_state tensorizer
""",
    ),
}
