# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each vLLM version accepts. Data only; M(catalogue) reads it.

Written by scripts/generate_catalogue.py (make catalogue), which asks the parser and the tables of every version in
C(VERSIONS). Not to be edited.

A line is C(name|span|kind|default), with several names where the rest is the same; lines with a blank in front belong to
the name above: C(:|span|kind) and C(>|span|default) where these differ between versions, C(-x) another spelling, C(=x) a
choice that the parser enforces, C(~x) one that it only shows, C(!x) a remark, several on a line with C(|span) behind them
unless they are there as long as the name is. C(@table) as a choice stands for all names of that table.

A span is C(first-last) with either left open, several with commas between; no span is every version.
"""

from __future__ import annotations

# Every version read, oldest first.
VERSIONS = """\
0.10.1.1 0.10.2 0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 0.17.1 0.18.0 0.18.1 0.19.0 0.19.1 0.20.0
0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 0.26.0 0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
"""

# Kinds of options: flag (cannot be negated), switch (has a --no- form), int, float, size (takes 64k, 64K), size-auto,
# json, json-text (a text that is no JSON is taken too), text; /none: None is a value; /lower_: case and - do not
# matter; /int: a number is taken for JSON; /class: read into a class of vLLM's; + takes several values, ? none or one, * may be repeated.
# Kinds of environment variables: bool, int, float, text as vllm/envs.py says; direct: read elsewhere, without envs.py
# knowing it, so that vLLM itself calls it unknown.
# Traits: dotted-size (--option.key 64k is a number), json-size (so in JSON), model-option and model-equals (the model
# as --model X and --model=X), short-level (what -O3 stands for), short-dotted (-O.key), served-name-anywhere (the model
# need not come first), config-false (false in a --config file negates), enable-disable-pairs (--enable-x: --disable-x).
TABLES = {
    # options of vllm serve
    "options": r"""
additional-config hf-overrides model-loader-extra-config||json-text|{}
aggregate-engine-logging|0.11.1-|flag|false
allow-credentials disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs disable-sliding-window||switch|false
disable-uvicorn-access-log enable-auto-tool-choice enable-eplb enable-force-include-usage enable-log-outputs||switch|false
enable-log-requests enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers enable-server-load-tracking||switch|false
enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint enforce-eager exclude-tools-when-tool-choice-none||switch|false
fully-sharded-loras interleave-mm-strings kv-sharing-fast-prefill ray-workers-use-nsight return-tokens-as-token-ids||switch|false
skip-mm-profiling skip-tokenizer-init trust-remote-code||switch|false
allow-deprecated-quantization enable-logging-iteration-details enable-mfu-metrics enable-offline-docs|0.14.0-|switch|false
enable-return-routed-experts enable-tower-connector-lora|0.14.0-|switch|false
allowed-headers allowed-methods||json/int|["*"]
allowed-local-media-path tool-parser-plugin worker-extension-cls||text|""
allowed-media-domains|0.11.0-|text/none+|null
api-key logits-processors lora-modules served-model-name||text/none+|null
attention-backend|0.13.0-|text/none|null
aux-output-config|0.31.0-|json/class|"..."
calculate-kv-scales|-0.27.1|switch|false
chat-template code-revision download-dir hf-config-path host otlp-traces-endpoint revision root-path||text/none|null
show-hidden-metrics-for-version ssl-ca-certs ssl-certfile ssl-keyfile tokenizer-revision tool-call-parser tool-server uds||text/none|null
cohere-format|0.27.0-|text|"cmd4"
cohere-is-reasoning-model|0.27.0-|switch|true
config tokenizer||text|null
cpu-distributed-timeout-seconds|0.22.0-|int/none|null
cpu-offload-gb||float|0
cpu-offload-params offload-params|0.17.0-|text+|"..."
cudagraph-metrics enable-layerwise-nvtx-tracing|0.13.0-|switch|false
custom-histogram-buckets|0.32.0-|json/int/none|null
data-parallel-supervisor-port|0.22.0-|int|9256
dbo-decode-token-threshold|0.11.0-|int|32
dbo-prefill-token-threshold|0.11.0-|int|512
dcp-kv-cache-interleave-size stream-interval|0.11.1-|int|1
dcp-q-replicate enable-batch-sharded-sampling|0.29.0-|switch|null
default-chat-template-kwargs|0.14.0-|json/int|null
default-mm-loras mm-processor-kwargs||json/int/none|null
device-ids|0.24.0-|text|null
disable-access-log-for-endpoints|0.16.0-|text/none|null
disable-async-output-proc|-0.10.2|flag|false
disable-frontend-multiprocessing|-0.18.1|switch|false
disable-log-stats headless||flag|false
distributed-timeout-seconds|0.18.0-|int/none|null
dp-supervisor-probe-failure-threshold|0.22.0-|int|3
dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s|0.22.0-|float|5.0
dp-sync-interval|0.30.0-|int|16
ec-manager-config|0.28.0-|json/class|"..."
ec-transfer-config|0.11.1-|json/class/none|null
elastic-ep-max-dp-size|0.30.0-|int|null
enable-bf16x3-router-gemm|0.26.0-0.29.0|switch|false
enable-chunked-prefill enable-lora enable-prefix-caching||switch|null
enable-cumem-allocator enable-mixed-moe-lora-format use-fp64-gumbel|0.22.0-|switch|false
enable-dbo trust-request-chat-template|0.11.0-|switch|false
enable-elastic-ep fail-on-environ-validation language-model-only|0.17.0-|switch|false
enable-ep-weight-filter|0.18.0-|switch|false
enable-fault-tolerance use-replayssm|0.27.0-|switch|false
enable-flash-late-interaction|0.20.0-|switch|true
enable-flashinfer-autotune|0.16.0-|switch|null
enable-hc-sp enable-shm-tensor-arena sleep-mode-offload-cudagraph|0.32.0-|switch|false
enable-log-deltas|0.14.0-|switch|true
enable-lora-bias|-0.11.0|switch|false
enable-mamba-cache-stochastic-rounding numa-bind|0.20.0-|switch|false
enable-mamba-fine-grained-prefix-cache|0.30.0|switch|false
enable-mamba-shared-prefix-checkpoint long-prefill-token-threshold-adaptive trust-request-mm-kwargs|0.31.0-|switch|false
enable-mm-embeds tokens-only|0.11.1-|switch|false
enable-moe-shared-loras|0.26.0-|switch|false
enable-nccl-comm-suspend enable-scale-out|0.30.0-|switch|false
enable-per-request-metrics|0.25.0-|switch|false
enable-trace-replay|0.29.0-|switch|false
engram-config|0.30.0-|json/class/none|null
eplb-config|0.10.2-|json/class|"..."
fault-tolerance-config|0.27.0-|json/class|"..."
fingerprint-value mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-path|0.21.0-|text/none|null
generation-config load-format worker-cls||text|"auto"
grpc|0.20.0-|flag|false
grpc-port|0.32.0-|int/none|null
h11-max-header-count||int|256
h11-max-incomplete-event-size||int|4194304
hf-token||text?|null
io-processor-plugin|0.10.2-|text/none|null
ir-op-priority|0.20.0-|json/class|"..."
jit-monitor-verbose|0.24.0-|switch|false
kernel-config|0.16.0-|json/class|"..."
kv-cache-dtype-skip-layers|0.19.0-|text+|[]
kv-cache-memory-bytes|0.10.2-|size/none|null
kv-cache-metrics|0.12.0-|switch|false
kv-cache-metrics-sample|0.12.0-|float|0.01
kv-events-config kv-transfer-config||json/class/none|null
kv-offloading-size|0.11.1-|float/none|null
limit-mm-per-prompt media-io-kwargs override-generation-config||json/int|{}
log-error-stack|0.10.2-|switch|false
logging-config|0.31.0-|json/class|"==SUPPRESS=="
logits-processor-pattern|-0.16.0|text/none|null
long-prefill-token-threshold ssl-cert-reqs||int|0
lora-target-modules|0.19.0-|text/none+|null
mamba-backend|0.20.0-|text|"TRITON"
mamba-block-size|0.11.1-|int/none|null
mamba-cache-philox-rounds|0.20.0-|int|0
master-addr|0.11.1-|text|"127.0.0.1"
master-port|0.11.1-|int|29501
max-cpu-loras max-log-len max-parallel-loading-workers num-gpu-blocks-override||int/none|null
max-logprobs||int|20
max-long-partial-prefills max-num-partial-prefills|-0.26.0|int|1
max-lora-cls-labels max-num-active-seqs|0.31.0-|int/none|null
max-loras||int|1
max-num-batched-tokens||size|null
max-num-queued-reqs|0.29.0-|int/none|null
max-num-queued-tokens|0.29.0-|size/none|null
max-num-scheduled-tokens|0.26.0-|size/none|null
max-num-seqs||int|null
max-seq-len-to-capture|-0.10.2|int|8192
middleware||text*|[]
mm-device-do-normalize|0.28.0-|switch|null
mm-encoder-attn-backend|0.11.1-|text/none|null
mm-encoder-fp8-scale-save-margin|0.21.0-|float|1.5
mm-encoder-only|0.15.0-|switch|false
mm-ipc-gpu-memory-gb|0.25.0-|float|0
mm-shm-cache-max-object-size-mb|0.11.0-|int|128
model||text|"Qwen/Qwen3-0.6B"
model-class-overrides|0.25.0-|json/int|{}
monokernel|0.33.0-|switch|false
num-lookahead-slots|-0.11.2|int|0
numa-bind-cpus|0.20.0-|text/none+|null
numa-bind-nodes|0.20.0-|int/none+|null
offload-group-size|0.17.0-|int|0
offload-num-in-group offload-prefetch-step|0.17.0-|int|1
optimization-level|0.12.0-|text|"O2"
override-attention-dtype|-0.27.1|text/none|null
override-neuron-config|0.10.1.1|json/int|{}
pooler-config|0.11.0-|json/class/none|null
port||int|8000
prefill-schedule-interval|0.24.0-|int|1
prefix-match-unit|0.26.0-|int/none|null
profiler-config|0.13.0-|json/class|"..."
pt-load-map-location||json-text|"cpu"
quantization-config|0.22.0-|json/class/none|null
reasoning-config|0.19.0-|json/class/none|null
reasoning-effort-map|0.33.0-|json/int|null
reasoning-parser-plugin|0.11.1-|text|""
renderer-num-workers|0.19.0-|int|1
replayssm-buffer-len|0.27.0-|int|16
response-role||text|"assistant"
return-sampling-mask|0.28.0-|switch|false
rope-scaling|-0.11.0|json/int|{}
rope-theta|-0.11.0|float/none|null
safetensors-prefetch-block-size|0.21.0-|size|16777216
safetensors-prefetch-num-threads|0.21.0-|int|8
scheduler-delay-factor|-0.10.2|float|0.0
scheduler-reserve-full-isl|0.19.0-|switch|true
shutdown-timeout|0.18.0-|int|0
sleep-mode-backend|0.33.0-|text|"cumem"
sleep-preserve-parameter-names|0.31.0-|text+|[]
spec-model|0.22.0-|text/none|null
spec-tokens|0.22.0-|int|null
specialize-active-lora|0.16.0-|switch|false
sse-keep-alive-interval|0.29.0-|int|0
ssl-ciphers|0.15.0-|text/none|null
structured-outputs-config|0.11.0-|json/class|"..."
swa-bounded-replay|0.31.0-|switch|true
swap-space|-0.17.1|float|4
ubatch-size|0.14.0-|int|0
use-gpu-for-pooling-score|0.17.0-0.17.1|switch|false
use-tqdm-on-load||switch|true
video-pruning-rate|0.11.0-|float/none|null
watchdog-config|0.33.0-|json/class|"..."
watermark|0.24.0-|float|0.0
watermark-config|0.30.0-|json/int/none|null
weight-transfer-config|0.16.0-|json/class/none|null
all2all-backend|0.11.1-|text
 >|0.11.1-0.13.0|null
 >|0.14.0-|"allgather_reducescatter"
 =@all2all_backends|0.14.0-0.31.0
 =allgather_reducescatter =deepep_high_throughput =deepep_low_latency =flashinfer_all2allv =naive =pplx|0.11.1-0.13.0,0.32.0-
 =deepep_v2 =flashinfer_nvlink_one_sided =flashinfer_nvlink_two_sided =moonep =mori_high_throughput =mori_low_latency =nixl_ep|0.32.0-
allowed-origins||json/int
 >|-0.31.0|["*"]
 >|0.32.0-|[]
anthropic-disabled-thinking-effort|0.31.0-|text|"auto"
 =auto =high =low =max =medium =none =xhigh
api-server-count||int
 >|-0.14.1|1
 >|0.15.0-|null
 -asc
async-scheduling||switch
 >|-0.13.0|false
 >|0.14.0-|null
attention-config|0.13.0-|json/class|"..."
 -ac
block-size||int|null
 =1 =128 =16 =32 =64 =8|-0.17.1
 =256|0.11.1-0.17.1
chat-template-content-format||text|"auto"
 =auto =openai =string
collect-detailed-traces|||null
 :|-0.30.0|text+
 :|0.31.0-|text/none+
 =all =model =worker
 =all,model =all,worker =model,all =model,worker =worker,all =worker,model|-0.30.0
compilation-config||json/class|"..."
 -O|-0.11.2
 -cc|0.12.0-
config-format||text|"auto"
 =auto =hf =mistral|0.10.1.1
 ~auto ~hf ~mistral|0.10.2-
convert||text|"auto"
 =auto =classify =embed =none
 =mm_encoder_only|0.14.0-0.15.1
 =reward|-0.15.1
cp-kv-cache-interleave-size|0.12.0-|int
 >|0.12.0-0.29.0|1
 >|0.30.0-|null
cuda-graph-sizes|-0.12.0
 :|-0.11.0|int+
 :|0.11.1-0.12.0|int/none+
 >|-0.11.0|[]
 >|0.11.1-0.12.0|null
 !deprecated|0.11.1-0.12.0
cudagraph-capture-sizes|0.11.1-||null
 :|0.11.1-0.18.1|int/none+
 :|0.19.0-|int+
data-parallel-address||text|null
 -dpa
data-parallel-backend||text|"mp"
 -dpb
data-parallel-external-lb|0.11.1-|switch|false
 -dpe
data-parallel-hybrid-lb||switch|false
 -dph|0.11.1-
data-parallel-multi-port-external-lb|0.22.0-|flag|false
 -dpm
data-parallel-rank||int|null
 -dpn
data-parallel-rpc-port||int|null
 -dpp
data-parallel-size||int|1
 -dp
data-parallel-size-local||int|null
 -dpl
data-parallel-start-rank||int|null
 -dpr
dcp-comm-backend|0.18.0-
 :|0.18.0-0.30.0|text
 :|0.31.0-|text/none
 >|0.18.0-0.28.0|"ag_rs"
 >|0.29.0-|null
 =a2a =ag_rs
decode-context-parallel-size|0.10.2-|int|1
 -dcp
diffusion-config|0.24.0-|json/int/none|null
 -dc
disable-cascade-attn||switch
 >|-0.17.1|false
 >|0.18.0-0.31.0|true
 >|0.32.0-|null
disable-hybrid-kv-cache-manager||switch
 >|-0.12.0|false
 >|0.13.0-|null
disable-log-requests|-0.16.0|switch|true
 !deprecated
disable-mm-preprocessor-cache|-0.12.0|flag|false
 !deprecated
disable-nccl-for-dp-synchronization|0.11.1-|switch
 >|0.11.1-0.13.0|false
 >|0.14.0-|null
distributed-executor-backend|||null
 :|0.10.1.1|text
 :|0.10.2-|text/none
 =external_launcher =mp =ray =uni|0.10.1.1
 ~external_launcher ~mp ~ray ~uni|0.10.2-
dtype||text|"auto"
 =auto =bfloat16 =float =float16 =float32 =half
enable-expert-parallel||switch|false
 -ep|0.14.0-
enable-multimodal-encoder-data-parallel|-0.12.0||false
 :|0.10.1.1|switch
 :|0.10.2-0.12.0|flag
 !deprecated|0.10.2-0.12.0
enable-prompt-adapter|0.10.1.1|flag|false
 !deprecated
eplb-log-balancedness|-0.11.2|switch
 >|0.10.1.1|false
 >|0.10.2-0.11.2|null
 !deprecated|0.10.2-0.11.2
eplb-step-interval|-0.11.2|int
 >|0.10.1.1|3000
 >|0.10.2-0.11.2|null
 !deprecated|0.10.2-0.11.2
eplb-window-size|-0.11.2|int
 >|0.10.1.1|1000
 >|0.10.2-0.11.2|null
 !deprecated|0.10.2-0.11.2
expert-placement-strategy|0.11.0-|text|"linear"
 =linear =round_robin
fingerprint-mode|0.21.0-|text|"full"
 =custom =full =hash =none
gdn-prefill-backend|0.18.0-|text|null
 =aiter_flydsl|0.32.0-
 =cutedsl|0.22.0-
 =flashinfer =triton
 =sycl|0.33.0-
gpu-memory-utilization||float
 >|-0.19.1|0.9
 >|0.20.0-|0.92
 --device-memory-utilization|0.31.0-
guided-decoding-backend|-0.11.2|text
 >|-0.10.2|"auto"
 >|0.11.0-0.11.2|null
 !deprecated|0.11.0-0.11.2
 =auto =guidance =outlines =xgrammar|-0.10.2
 =lm-format-enforcer|0.10.2
guided-decoding-disable-additional-properties|-0.11.2
 :|-0.10.2|switch
 :|0.11.0-0.11.2|text
 >|-0.10.2|false
 >|0.11.0-0.11.2|null
 !deprecated|0.11.0-0.11.2
guided-decoding-disable-any-whitespace|-0.11.2
 :|-0.10.2|switch
 :|0.11.0-0.11.2|text
 >|-0.10.2|false
 >|0.11.0-0.11.2|null
 !deprecated|0.11.0-0.11.2
guided-decoding-disable-fallback|-0.11.2
 :|-0.10.2|switch
 :|0.11.0-0.11.2|text
 >|-0.10.2|false
 >|0.11.0-0.11.2|null
 !deprecated|0.11.0-0.11.2
ignore-patterns
 :|-0.11.0|text/none+
 :|0.11.1-|text+
 >|-0.11.0|null
 >|0.11.1-|["original/**/*"]
jit-monitor-mode|0.25.0-|text|"warn"
 =error =warn
kda-decode-backend|0.30.0-|text|null
 =auto =flashinfer =native =triton
kda-prefill-backend|0.27.0-|text|null
 =auto =flashkda =triton
 =flashinfer =fused|0.30.0-
kv-cache-dtype||text|"auto"
 =@kv_cache_dtypes|-0.32.0
 ~@kv_cache_dtypes|0.33.0-
kv-offloading-backend|0.11.1-|text
 >|0.11.1-0.13.0|null
 >|0.14.0-|"native"
 =lmcache =native
linear-backend|0.22.0-|text/lower_|"auto"
 =@linear_backends
log-config-file
 :|-0.30.0|text/none
 :|0.31.0-|text
 >|-0.30.0|null
 >|0.31.0-|"==SUPPRESS=="
log-level|0.31.0-|text|"==SUPPRESS=="
 =CRITICAL =DEBUG =ERROR =INFO =NOTSET =WARNING
logprobs-mode||text
 >|0.10.1.1,0.11.0-|"raw_logprobs"
 >|0.10.2|"RAW_LOGPROBS"
 =processed_logits =processed_logprobs =raw_logits =raw_logprobs
lora-dtype||text|"auto"
 =auto =bfloat16 =float16
lora-extra-vocab-size|-0.11.2|int|256
 =256 =512|0.11.1-0.11.2
mamba-cache-dtype||text|"auto"
 =auto =float32
 =bfloat16|0.22.0-
 =float16|0.13.0-
mamba-cache-mode|0.15.0-|text
 >|0.15.0-0.32.0|"none"
 >|0.33.0-|null
 =align =none
 =all|0.15.0-0.31.0
mamba-ssm-cache-dtype||text|"auto"
 =auto =float32
 =bfloat16|0.22.0-
 =float16|0.13.0-
mamba-ssu-algorithm|0.27.0-||null
 :|0.27.0-0.30.0|text
 :|0.31.0-|text/none
 =auto =horizontal =simple =vertical
max-cudagraph-capture-size|0.11.1-||null
 :|0.11.1-0.15.1|int/none
 :|0.16.0-|int
max-lora-rank||int|16
 =1 =128 =16 =256 =32 =320 =512 =64 =8|0.11.1-
max-model-len|||null
 :|-0.13.0|size
 :|0.14.0-|size-auto
mm-encoder-attn-dtype|0.21.0-||null
 :|0.21.0-0.30.0|text
 :|0.31.0-|text/none
 =fp8
mm-encoder-tp-mode|0.10.2-|text|"weights"
 =data =weights
mm-hasher-algorithm|0.27.0-|text|"blake3"
 =blake3 =sha256 =sha512
mm-processor-cache-gb|||4
 :|0.10.1.1|int
 :|0.10.2-|float
mm-processor-cache-type|0.11.0-|text|"lru"
 =lru =shm
mm-processor-device|0.28.0-|text|"auto"
 =auto =cpu =cuda
mm-tensor-ipc|0.19.0-|text|"direct_rpc"
 =direct_rpc =torch_shm
model-impl||text|"auto"
 =auto =transformers =vllm|-0.10.2
 =terratorch|0.10.2
 ~auto ~terratorch ~transformers ~vllm|0.11.0-
moe-backend|0.17.0-|text/lower_|"auto"
 =@moe_backends
nnodes|0.11.1-|int|1
 -n
node-rank|0.11.1-|int|0
 -r
num-redundant-experts|-0.11.2|int
 >|0.10.1.1|0
 >|0.10.2-0.11.2|null
 !deprecated|0.10.2-0.11.2
offload-backend|0.17.0-|text|"auto"
 =auto =prefetch =uva
override-pooler-config|-0.11.2||null
 :|-0.10.2|json-text/none
 :|0.11.0-0.11.2|json/class/none
 !deprecated|0.11.0-0.11.2
per-request-spec-decode-metrics|0.29.0-|text|"none"
 =detailed =none =summary
performance-mode|0.17.0-|text|"balanced"
 =balanced =interactivity =throughput
pipeline-parallel-size||int|1
 -pp
preemption-mode|-0.10.2|text|null
 =recompute =swap
prefill-context-parallel-size|0.12.0-|int|1
 -pcp
prefix-cache-retention-interval|0.29.0-|int/none
 >|0.29.0|"..."
 >|0.30.0-|0
prefix-caching-hash-algo||text
 >|0.10.1.1|"builtin"
 >|0.10.2-|"sha256"
 =builtin =sha256_cbor_64bit|0.10.1.1
 =sha256
 =sha256_cbor|0.10.2-
 =xxhash =xxhash_cbor|0.13.0-
quantization||text/none|null
 -q
reasoning-parser||text|""
 =GptOss|0.10.1.1
 =deepseek_r1 =glm45 =granite =hunyuan_a13b =mistral =qwen3 =step3|-0.11.0
 =openai_gptoss|0.10.2-0.11.0
 =seed_oss|0.11.0
runner||text|"auto"
 =auto =draft =generate =pooling
safetensors-load-strategy|0.10.2-
 :|0.10.2-0.18.1,0.24.0-0.30.0|text
 :|0.19.0-0.23.0,0.31.0-|text/none
 >|0.10.2-0.18.1|"lazy"
 >|0.19.0-|null
 =eager =lazy =prefetch =torchao|0.24.0-
scheduler-cls
 :|-0.16.0|text
 :|0.17.0-|text/none
 >|-0.11.0|"vllm.core.scheduler.Scheduler"
 >|0.11.1-|null
scheduling-policy||text|"fcfs"
 =fcfs =priority
seed
 :|-0.11.2|int/none
 :|0.12.0-|int
 >|-0.11.2|null
 >|0.12.0-|0
sparse-indexer-topk-backend|0.30.0-|text/lower_|"auto"
 =aiter|0.32.0-
 =auto =cooperative =deep_select =flashinfer =per_row =persistent =torch
spec-method|0.22.0-||null
 :|0.22.0-0.30.0|text
 :|0.31.0-|text/none
 =@spec_methods
speculative-config||json/int/none|null
 -sc|0.19.0-
task|-0.12.0|text|null
 !deprecated =auto =classify =draft =embed =embedding =generate =reward =score =transcription
tensor-parallel-size||int|1
 -tp
tokenizer-mode||text|"auto"
 =auto =custom =mistral =slow|-0.11.2
 ~alpamayo2_super|0.33.0-
 ~auto ~hf ~mistral|0.12.0-
 ~cohere ~kimi_k3|0.27.0-
 ~deepseek_v32|0.13.0-
 ~deepseek_v4|0.20.0-
 ~fastokens|0.21.0
 ~inkling|0.26.0-
 ~slow|0.12.0-0.30.0
tool-strict-level|0.31.0-
 :|0.31.0-0.32.0|text
 :|0.33.0-|text/none
 >|0.31.0-0.32.0|"auto"
 >|0.33.0-|null
 =auto =function =parameter
uvicorn-log-level||text|"info"
 =critical =debug =error =info =trace =warning
video-pruning-method|0.27.0-|text|"evs"
 =evs =vidcom2
""",
    # environment variables
    "environment": r"""
AITER_SITUV2_A8W4|0.27.0-0.27.1|bool
CUDA_HOME CUDA_VISIBLE_DEVICES LD_LIBRARY_PATH MAX_JOBS NVCC_THREADS S3_ACCESS_KEY_ID S3_ENDPOINT_URL S3_SECRET_ACCESS_KEY||text
VLLM_API_KEY VLLM_ASSETS_CACHE VLLM_CACHE_ROOT VLLM_CONFIG_ROOT VLLM_CPU_OMP_THREADS_BIND VLLM_CUDART_SO_PATH VLLM_DISABLED_KERNELS||text
VLLM_DP_MASTER_IP VLLM_HOST_IP VLLM_LOGGING_CONFIG_PATH VLLM_LOGGING_LEVEL VLLM_LOGGING_PREFIX VLLM_LOOPBACK_IP||text
VLLM_LORA_RESOLVER_CACHE_DIR VLLM_MODEL_REDIRECT_PATH VLLM_MOE_ROUTING_SIMULATION_STRATEGY VLLM_NCCL_SO_PATH||text
VLLM_NIXL_SIDE_CHANNEL_HOST VLLM_PLUGINS VLLM_PP_LAYER_PARTITION VLLM_PROCESS_NAME_PREFIX VLLM_RAY_BUNDLE_INDICES VLLM_RPC_BASE_PATH||text
VLLM_TARGET_DEVICE VLLM_TEST_FORCE_LOAD_FORMAT VLLM_TUNED_CONFIG_FOLDER VLLM_USAGE_SOURCE VLLM_USAGE_STATS_SERVER||text
VLLM_VIDEO_LOADER_BACKEND VLLM_XLA_CACHE_PATH||text
FORCE_COLOR VLLM_ENABLE_GEMM_RS VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD VLLM_XPU_PP_MICROBATCH|0.31.0-|bool
K_SCALE_CONSTANT Q_SCALE_CONSTANT V_SCALE_CONSTANT|-0.27.1|int
LOCAL_RANK VLLM_AUDIO_FETCH_TIMEOUT VLLM_CPU_KVCACHE_SPACE VLLM_CPU_NUM_OF_RESERVED_CPU VLLM_DP_MASTER_PORT VLLM_DP_RANK||int
VLLM_DP_RANK_LOCAL VLLM_DP_SIZE VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS VLLM_HTTP_TIMEOUT_KEEP_ALIVE VLLM_IMAGE_FETCH_TIMEOUT||int
VLLM_MAX_AUDIO_CLIP_FILESIZE_MB VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE VLLM_MEDIA_LOADING_THREAD_COUNT VLLM_MQ_MAX_CHUNK_BYTES_MB||int
VLLM_MSGPACK_ZERO_COPY_THRESHOLD VLLM_NIXL_SIDE_CHANNEL_PORT VLLM_PORT VLLM_RINGBUFFER_WARNING_INTERVAL||int
VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS VLLM_TRACE_FUNCTION VLLM_V1_OUTPUT_PROC_CHUNK_SIZE||int
VLLM_VIDEO_FETCH_TIMEOUT VLLM_XGRAMMAR_CACHE_MB||int
MOONCAKE_PREFERRED_SEGMENT MOONCAKE_REQUESTER_LOCAL_HOSTNAME VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR VLLM_RUST_FRONTEND_PATH|0.22.0-|text
VLLM_USE_SPINLOOP_EXT|0.22.0-|text
NO_COLOR VLLM_DEEPEPLL_NVFP4_DISPATCH VLLM_USE_V2_MODEL_RUNNER|0.12.0-|bool
VERBOSE VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE VLLM_ALLOW_INSECURE_SERIALIZATION VLLM_ALLOW_LONG_MAX_MODEL_LEN||bool
VLLM_ALLOW_RUNTIME_LORA_UPDATING VLLM_COMPUTE_NANS_IN_LOGITS VLLM_DISABLE_COMPILE_CACHE VLLM_DOCKER_BUILD_CONTEXT VLLM_DO_NOT_TRACK||bool
VLLM_ENABLE_CUDAGRAPH_GC VLLM_ENABLE_RESPONSES_API_STORE VLLM_ENABLE_V1_MULTIPROCESSING VLLM_KEEP_ALIVE_ON_ENGINE_DEATH||bool
VLLM_MARLIN_USE_ATOMIC_ADD VLLM_MLA_DISABLE VLLM_NO_USAGE_STATS VLLM_RANDOMIZE_DP_DUMMY_INPUTS VLLM_ROCM_FP8_PADDING||bool
VLLM_ROCM_MOE_PADDING VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16 VLLM_ROCM_USE_AITER VLLM_ROCM_USE_AITER_LINEAR VLLM_ROCM_USE_AITER_MHA||bool
VLLM_ROCM_USE_AITER_MLA VLLM_ROCM_USE_AITER_MOE VLLM_ROCM_USE_AITER_RMSNORM VLLM_ROCM_USE_SKINNY_GEMM VLLM_SERVER_DEV_MODE||bool
VLLM_SKIP_P2P_CHECK VLLM_TPU_USING_PATHWAYS VLLM_USE_DEEP_GEMM VLLM_USE_DEEP_GEMM_E8M0 VLLM_USE_FLASHINFER_SAMPLER||bool
VLLM_USE_MODELSCOPE VLLM_USE_PRECOMPILED VLLM_USE_TRITON_AWQ VLLM_V1_USE_OUTLINES_CACHE VLLM_XLA_CHECK_RECOMPILATION||bool
VLLM_XLA_USE_SPMD||bool
VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN VLLM_MAX_AUDIO_DECODE_BYTES VLLM_MAX_BAD_WORDS_TOTAL_TOKENS|0.28.0-|int
VLLM_MAX_NUM_BAD_WORDS VLLM_MAX_STOP_STRINGS|0.28.0-|int
VLLM_ALLREDUCE_USE_FLASHINFER VLLM_DISABLE_REQUEST_ID_RANDOMIZATION VLLM_ELASTIC_EP_DRAIN_REQUESTS|0.17.0-|bool
VLLM_ENABLE_CUDA_COMPATIBILITY VLLM_ENABLE_PREGRAD_PASSES VLLM_USE_OINK_OPS VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY|0.17.0-|bool
VLLM_WEIGHT_OFFLOADING_DISABLE_UVA|0.17.0-|bool
VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC|0.30.0-|bool
VLLM_ALLREDUCE_USE_SYMM_MEM VLLM_CUSTOM_SCOPES_FOR_PROFILING VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS|0.10.2-|bool
VLLM_HAS_FLASHINFER_CUBIN VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES VLLM_ROCM_USE_AITER_FP8BMM VLLM_USE_FUSED_MOE_GROUPED_TOPK|0.10.2-|bool
VLLM_ASSETS_CACHE_MODEL_CLEAN VLLM_ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE|0.11.0-|bool
VLLM_MEDIA_URL_ALLOW_REDIRECTS VLLM_NVTX_SCOPES_FOR_PROFILING VLLM_ROCM_FP8_MFMA_PAGE_ATTN VLLM_USE_NCCL_SYMM_MEM|0.11.0-|bool
VLLM_ATTENTION_BACKEND VLLM_USE_TRTLLM_ATTENTION|-0.14.1|text
VLLM_B12X_MOE_FP4_FORCE_A16 VLLM_DISABLE_DSV4_MEGAMOE_SHARED_EXPERT_FUSION VLLM_ENABLE_HPC_OPS VLLM_KIMI_K3_GEMM_AR|0.29.0-|bool
VLLM_REPLICATE_EMBED VLLM_XPU_FORCE_N_CONTIG_WEIGHT|0.29.0-|bool
VLLM_BEAM_ALWAYS_CONSTRAIN_OUTPUT VLLM_STEP5_SHARD_SP_SHARED_EXPERT|0.33.0-|bool
VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER VLLM_DEBUG_MFU_METRICS VLLM_LOG_MODEL_INSPECTION|0.14.0-|bool
VLLM_BUILD_COMMIT VLLM_BUILD_PIPELINE VLLM_BUILD_URL VLLM_EC_SIDE_CHANNEL_HOST VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS|0.26.0-|text
VLLM_IMAGE_TAG VLLM_P2P_SIDE_CHANNEL_HOST|0.26.0-|text
VLLM_CHAT_TEMPLATE_FUEL VLLM_COHERE2_ATTN_MOE_DUAL_STREAM_TOKEN_THRESHOLD VLLM_HTTP_MAX_REQUEST_BODY_SIZE|0.33.0-|int
VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB|0.33.0-|int
VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT|0.32.0-|float
VLLM_CI_USE_S3|-0.25.1|text
VLLM_CPU_ATTN_SPLIT_KV VLLM_CPU_INT4_W4A8 VLLM_HUMMING_USE_F16_ACCUM VLLM_LORA_ENABLE_DUAL_STREAM VLLM_USE_LAYERNAME|0.20.0-|bool
VLLM_CPU_MOE_PREPACK|-0.11.2|bool
VLLM_CPU_SGL_KERNEL|-0.27.1|bool
VLLM_CPU_SIM_MULTI_NUMA|0.16.0-|direct
VLLM_CUDA_COMPATIBILITY_PATH VLLM_RAY_EXTRA_ENV_VARS_TO_COPY VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY VLLM_SYSTEM_START_DATE|0.17.0-|text
VLLM_DBO_COMM_SMS VLLM_DEEPEP_BUFFER_SIZE_MB|0.11.0-|int
VLLM_DCP_Q_REPLICATE VLLM_ENABLE_COHERE_API VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT VLLM_USE_RUST_BENCH|0.27.0-|bool
VLLM_DEBUG_DUMP_PATH VLLM_GC_DEBUG VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS VLLM_MEDIA_CONNECTOR VLLM_RAY_DP_PACK_STRATEGY|0.11.1-|text
VLLM_DEBUG_WORKSPACE VLLM_SKIP_PRECOMPILED_VERSION_SUFFIX VLLM_USE_EXPERIMENTAL_PARSER_CONTEXT|0.13.0-|bool
VLLM_DEEPEP_HIGH_THROUGHPUT_FORCE_INTRA_NODE VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL VLLM_DISABLE_PYNCCL|0.11.1-|bool
VLLM_DISABLE_SHARED_EXPERTS_STREAM VLLM_FORCE_AOT_LOAD VLLM_MOE_USE_DEEP_GEMM VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS|0.11.1-|bool
VLLM_ROCM_USE_AITER_TRITON_GEMM VLLM_ROCM_USE_AITER_TRITON_ROPE VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION|0.11.1-|bool
VLLM_TOOL_JSON_ERROR_AUTOMATIC_RETRY VLLM_USE_AOT_COMPILE VLLM_USE_BYTECODE_HOOK|0.11.1-|bool
VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE VLLM_DEEPEP_V2_ALLOW_MULTIPLE_REDUCTION VLLM_DEEPEP_V2_PREFER_OVERLAP|0.24.0-|bool
VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD VLLM_TRITON_FORCE_FIRST_CONFIG VLLM_WSL2_ENABLE_PIN_MEMORY|0.24.0-|bool
VLLM_DISABLE_FLASHINFER_PREFILL|0.11.0-0.14.1|bool
VLLM_DISABLE_LOG_LOGO VLLM_LORA_DISABLE_PDL VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT VLLM_ROCM_USE_AITER_FP4BMM|0.15.0-|bool
VLLM_USE_DEEP_GEMM_TMA_ALIGNED_SCALES VLLM_USE_MEGA_AOT_ARTIFACT|0.15.0-|bool
VLLM_DISABLE_NCCL_FOR_DP_SYNCHRONIZATION VLLM_ROCM_USE_TRITON_ROPE|0.11.0|bool
VLLM_DISABLE_PAD_FOR_CUDAGRAPH VLLM_USE_DEEP_GEMM_E8M0_HOPPER|0.10.2-0.11.0|bool
VLLM_DISTRIBUTED_USE_SPLIT_GROUP VLLM_ROCM_USE_AITER_LINEAR_HIPBMM|0.23.0-|bool
VLLM_DIST_IDENT VLLM_PRECOMPILED_WHEEL_LOCATION||direct
VLLM_EC_SIDE_CHANNEL_PORT VLLM_MAX_COMPLETION_PROMPTS VLLM_P2P_SIDE_CHANNEL_PORT|0.26.0-|int
VLLM_ENABLE_FLA_PACKED_RECURRENT_DECODE VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS VLLM_ZENTORCH_WEIGHT_PREPACK|0.18.0-|bool
VLLM_ENABLE_FUSED_MOE_ACTIVATION_CHUNKING VLLM_SLEEP_WHEN_IDLE|-0.17.1|bool
VLLM_ENABLE_MOE_DP_CHUNK|0.13.0-0.19.1|bool
VLLM_ENABLE_STARTUP_PLAN VLLM_TRITON_USE_TD|0.26.0-|bool
VLLM_ENFORCE_STRICT_TOOL_CALLING VLLM_SKIP_MODEL_NAME_VALIDATION VLLM_XPU_USE_SAMPLER_KERNEL|0.21.0-|bool
VLLM_ENGINE_ITERATION_TIMEOUT_S|-0.31.0|int
VLLM_ENGINE_READY_TIMEOUT_S|0.14.0-|int
VLLM_FASTSAFETENSORS_QUEUE_SIZE VLLM_MAX_AUDIO_DECODE_DURATION_S VLLM_MAX_AUDIO_PREPROCESS_WORKERS|0.24.0-|int
VLLM_REGEX_COMPILATION_TIMEOUT_S VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS|0.24.0-|int
VLLM_FLASHINFER_ALLREDUCE_FUSION_THRESHOLDS_MB|0.10.2-0.25.1|text
VLLM_FLASHINFER_DISABLE_Q_QUANTIZATION|0.10.2-0.14.1|bool
VLLM_FLASHINFER_FORCE_TENSOR_CORES|0.10.1.1|bool
VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4 VLLM_ROCM_USE_AITER_TRITON_SPARSE_MLA|0.32.0-|bool
VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE VLLM_ROCM_SLEEP_MEM_CHUNK_SIZE VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD|0.11.1-|int
VLLM_FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH|0.11.0-0.14.1|int
VLLM_FLASH_ATTN_VERSION|-0.14.1|int
VLLM_FLAT_LOGPROBS|0.11.1-0.11.2|bool
VLLM_FUN_AUDIOCHAT_DEBUG VLLM_FUN_AUDIOCHAT_DUMP_PATH|0.16.0|direct
VLLM_FUSED_MOE_CHUNK_SIZE|-0.17.1|int
VLLM_GPT_OSS_USE_CONTAINER_TOOL|0.10.2|bool
VLLM_GPU_NIC_PCIE_MAPPING VLLM_NIC_SELECTION_VARS VLLM_RAY_DP_PLACEMENT_NODE_IPS|0.23.0-|text
VLLM_HUMMING_INPUT_QUANT_CONFIG VLLM_HUMMING_MOE_GEMM_TYPE VLLM_HUMMING_ONLINE_QUANT_CONFIG VLLM_MEDIA_CACHE|0.20.0-|text
VLLM_KIMI_K3_AUX_ATTN_RES_STREAM VLLM_RAISE_ON_LOGIT_NANS VLLM_USE_DIRECT_DCP_A2A VLLM_USE_DIRECT_DCP_KV_GATHER|0.28.0-|bool
VLLM_USE_DIRECT_DCP_Q_GATHER VLLM_USE_HW_AGNOSTIC|0.28.0-|bool
VLLM_KIMI_K3_GEMM_RS VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4|0.28.0-0.30.0|bool
VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB|0.29.0-|int
VLLM_LOGGING_COLOR|0.12.0-|text
VLLM_LOGGING_STREAM|0.10.2-|text
VLLM_LOGITS_PROCESSOR_THREADS|-0.11.0|int
VLLM_LOG_BATCHSIZE_INTERVAL VLLM_LOG_STATS_INTERVAL VLLM_RAY_PER_WORKER_GPUS||float
VLLM_LORA_RESOLVER_HF_REPO_LIST|0.16.0-|text
VLLM_MAIN_CUDA_VERSION VLLM_NCCL_INCLUDE_PATH VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME VLLM_PATTERN_MATCH_DEBUG|0.11.0-|text
VLLM_MAX_EMBED_DECODE_BYTES|0.30.0-|int
VLLM_MAX_IMAGE_PIXELS VLLM_MOONCAKE_LOAD_RECV_THREADS|0.25.0-|int
VLLM_MAX_N_SEQUENCES VLLM_MEDIA_FETCH_MAX_RETRIES VLLM_SPARSE_INDEXER_MAX_LOGITS_MB|0.19.0-|int
VLLM_MEDIA_CACHE_MAX_SIZE_MB|0.20.0-|int
VLLM_MEDIA_CACHE_TTL_HOURS|0.20.0-|float
VLLM_MINIMAX_M3_MSA_CUTLASS_MIN_BATCH|0.33.0-|direct
VLLM_MM_INPUT_CACHE_GIB|-0.12.0|int
VLLM_MOE_DP_CHUNK_SIZE|-0.19.1|int
VLLM_MOE_SKIP_PADDING VLLM_ROCM_USE_AITER_CUSTOM_AR|0.25.0-|bool
VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT VLLM_MOONCAKE_BOOTSTRAP_PORT|0.13.0-|int
VLLM_MOONCAKE_CONNECTOR_TIMEOUT|0.31.0-|float
VLLM_MOONCAKE_DISK_STAGING_USABLE_RATIO|0.22.0-|float
VLLM_MOONCAKE_STORE_TIER_LOG VLLM_USE_BREAKABLE_CUDAGRAPH VLLM_USE_FASTOKENS VLLM_USE_PRECOMPILED_RUST VLLM_USE_RUST_FRONTEND|0.22.0-|bool
VLLM_MORIIO_CONNECTOR_READ_MODE|0.14.0-0.22.1|bool
VLLM_MORIIO_NUM_WORKERS VLLM_MORIIO_POST_BATCH_SIZE VLLM_MORIIO_QP_PER_TRANSFER|0.14.0-0.22.1|int
VLLM_MORIIO_TRANSFER_TIMEOUT_S|0.28.0-|direct
VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD|0.20.1-|int
VLLM_MXFP4_USE_MARLIN VLLM_USE_FLASHINFER_MOE_FP4 VLLM_USE_FLASHINFER_MOE_FP8 VLLM_USE_FLASHINFER_MOE_MXFP4_BF16|-0.23.0|bool
VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8 VLLM_USE_NVFP4_CT_EMULATIONS|-0.23.0|bool
VLLM_NEURON_FRAMEWORK|0.10.1.1|direct
VLLM_NIXL_ABORT_REQUEST_TIMEOUT|-0.21.0|int
VLLM_NIXL_EP_MAX_NUM_RANKS|0.18.0-0.29.0|int
VLLM_P2P_HANDSHAKE_TIMEOUT_S VLLM_P2P_IDLE_TIMEOUT_S VLLM_P2P_MAX_PEERS|0.32.0-|int
VLLM_PLE_CPU_OFFLOAD|0.30.0|bool
VLLM_PREFIX_CACHE_RETENTION_INTERVAL|0.23.0-0.29.0|int
VLLM_REQUEST_BODY_LOG_LEVEL VLLM_ROCM_MUSE_MOE_ONLINE_QUANT VLLM_ROCM_MUSE_MOE_REDUCE_DTYPE|0.33.0-|text
VLLM_ROCM_AITER_MEGA_MOE_FUSE_SHARED_EXPERTS VLLM_ROCM_MONO_DECODE|0.32.0|bool
VLLM_ROCM_AITER_MOE_DISPATCH_POLICY|0.23.0-|int
VLLM_ROCM_CUSTOM_PAGED_ATTN|-0.18.1|bool
VLLM_ROCM_QUICK_REDUCE_MIN_SIZE_BYTES_MB VLLM_ROCM_QUICK_REDUCE_QUANTIZATION_MIN_SIZE_KB|0.22.0-|int
VLLM_ROCM_USE_AITER_FP4_ASM_GEMM|0.11.0-0.28.0,0.31.0-0.32.0|bool
VLLM_ROCM_USE_AITER_PAGED_ATTN|-0.25.1|bool
VLLM_RPC_TIMEOUT|-0.22.1|int
VLLM_SKIP_DEEP_GEMM_WARMUP VLLM_USE_AITER_UNIFIED_ATTENTION VLLM_USE_RAY_COMPILED_DAG VLLM_USE_RAY_SPMD_WORKER|-0.11.0|bool
VLLM_USE_TRITON_FLASH_ATTN VLLM_USE_V1 VLLM_V0_USE_OUTLINES_CACHE|-0.11.0|bool
VLLM_SKIP_VERSION_SUFFIX|0.31.0-|text
VLLM_SNAPSHOT_TIMEOUT_S|0.31.0-|direct
VLLM_TEST_DYNAMO_FULLGRAPH_CAPTURE|-0.10.2|text
VLLM_TEST_ENABLE_ARTIFICIAL_PREEMPT|-0.10.2|direct
VLLM_TEST_FORCE_FP8_MARLIN|-0.28.0|text
VLLM_TEST_USE_PRECOMPILED_NIGHTLY_WHEEL|-0.12.0|bool
VLLM_TORCH_PROFILER_DIR|-0.15.1|text
VLLM_TPU_BUCKET_PADDING_GAP VLLM_TPU_MOST_MODEL_LEN|-0.25.1|int
VLLM_TRITON_ATTN_USE_TD|0.22.0-0.28.0|bool
VLLM_TRITON_JIT_WARMUP_NUM_THREADS|0.31.0-|int
VLLM_USE_CUDNN_PREFILL VLLM_V1_USE_PREFILL_DECODE_ATTENTION|-0.14.1|bool
VLLM_USE_FBGEMM VLLM_USE_FLASHINFER_MOE_FP16|0.11.0-0.23.0|bool
VLLM_USE_FLASHINFER_MOE_INT4|0.16.0-|bool
VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS|0.10.2-0.23.0|bool
VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM VLLM_USE_RAY_WRAPPED_PP_COMM|-0.32.0|bool
VLLM_USE_RAY_V2_EXECUTOR_BACKEND|0.20.0-0.32.0|bool
VLLM_USE_SIMPLE_KV_OFFLOAD|0.19.0-|text
VLLM_USE_TRTLLM_FP4_GEMM|-0.11.0|text
VLLM_USE_TRTLLM_RAGGED_DEEPSEEK_PREFILL|0.11.1-0.14.1|bool
VLLM_XPU_ENABLE_XPU_GRAPH|0.19.0-0.30.0|bool
CMAKE_BUILD_TYPE||text
 =Debug =RelWithDebInfo =Release|0.11.0-
GPT_OSS_SYSTEM_TOOL_MCP_LABELS|0.11.0|text
 =code_interpreter =container =web_search_preview
VLLM_ALL2ALL_BACKEND|-0.15.1|text
 =allgather_reducescatter =deepep_high_throughput =deepep_low_latency =flashinfer_all2allv =naive =pplx|0.11.0-0.15.1
 =mori|0.15.0-0.15.1
VLLM_BATCH_INVARIANT|0.12.0-
 :|0.12.0-0.18.1|direct
 :|0.19.0-|bool
VLLM_COMPILE_CACHE_SAVE_FORMAT|0.11.1-|text
 =binary =unpacked
VLLM_CONFIGURE_LOGGING
 :|-0.12.0|int
 :|0.13.0-|bool
VLLM_CPU_CI_ENV
 :|-0.28.0|direct
 :|0.29.0-|bool
VLLM_DEBUG_LOG_API_SERVER_RESPONSE
 :|-0.11.0|text
 :|0.11.1-|bool
VLLM_DEEP_GEMM_WARMUP|0.11.1-|text
 =full =relax =skip
VLLM_ELASTIC_EP_SCALE_UP_LAUNCH
 :|-0.16.0|direct
 :|0.17.0-|bool
VLLM_FLASHINFER_ALLREDUCE_BACKEND|0.17.0-|text
 =auto =mnnvl =trtllm
VLLM_FLASHINFER_MOE_BACKEND|-0.23.0|text
 =latency =throughput|0.11.0-0.21.0
 =masked_gemm|0.12.0-0.21.0
VLLM_FLOAT32_MATMUL_PRECISION|0.13.0-|text
 =high =highest =medium|0.14.0-
 =ieee =tf32|0.13.0
VLLM_GDN_DECODE_KERNEL|0.28.0-|text
 =cuda =triton
VLLM_GPU_SYNC_CHECK|0.25.0-|text
 =error =warn
VLLM_KV_CACHE_LAYOUT||text
 =BHLNC =BLHNC =BLNHC =LBHNC =LBNHC =LHBNC|0.29.0-
 =HND =NHD|0.11.0-
VLLM_MARLIN_INPUT_DTYPE|0.12.0-|text
 =fp8 =int8
VLLM_MM_HASHER_ALGORITHM|0.15.0-0.29.0|text
 =blake3 =sha256 =sha512
VLLM_NVFP4_GEMM_BACKEND|0.11.1-0.23.0|text
 =cutlass =flashinfer-cudnn =flashinfer-cutlass =flashinfer-trtllm|0.11.1-0.21.0
 =emulation|0.20.0-0.21.0
 =marlin|0.15.0-0.21.0
VLLM_PROFILER_DELAY_ITERS|0.12.0-0.15.1
 :|0.12.0|int
 :|0.13.0-0.15.1|text
VLLM_PROFILER_MAX_ITERS|0.12.0-0.15.1
 :|0.12.0|int
 :|0.13.0-0.15.1|text
VLLM_ROCM_AITER_MLA_ASM_PADDING|0.28.0-|text
 =asm =auto =gluon
VLLM_ROCM_AITER_MLA_DCP_VERIFY|0.31.0-0.32.0|text
 =asm =segmented
 =auto|0.32.0
VLLM_ROCM_QUICK_REDUCE_QUANTIZATION||text
 =FP =INT4 =INT6 =INT8 =NONE|0.11.0-
 =INT3|0.25.0-
VLLM_ROCM_USE_AITER_MOE_SITUV2|0.31.0-|text
 =0 =1 =a16w4 =a4w4 =a8w4 =auto
VLLM_SSM_CONV_STATE_LAYOUT|0.20.0-|text
 =DS =SD
VLLM_TORCH_CUDA_PROFILE|0.11.1-0.15.1
 :|0.11.1-0.12.0|bool
 :|0.13.0-0.15.1|text
VLLM_TORCH_PROFILER_DISABLE_ASYNC_LLM|0.12.0-0.15.1
 :|0.12.0|bool
 :|0.13.0-0.15.1|text
VLLM_TORCH_PROFILER_DUMP_CUDA_TIME_TOTAL|0.12.0-0.15.1
 :|0.12.0|bool
 :|0.13.0-0.15.1|text
VLLM_TORCH_PROFILER_RECORD_SHAPES|-0.15.1
 :|-0.12.0|bool
 :|0.13.0-0.15.1|text
VLLM_TORCH_PROFILER_USE_GZIP|0.12.0-0.15.1
 :|0.12.0|bool
 :|0.13.0-0.15.1|text
VLLM_TORCH_PROFILER_WITH_FLOPS|-0.15.1
 :|-0.12.0|bool
 :|0.13.0-0.15.1|text
VLLM_TORCH_PROFILER_WITH_PROFILE_MEMORY|-0.15.1
 :|-0.12.0|bool
 :|0.13.0-0.15.1|text
VLLM_TORCH_PROFILER_WITH_STACK|-0.15.1
 :|-0.12.0|bool
 :|0.13.0-0.15.1|text
VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE|-0.32.0|text
 =auto =nccl =shm|0.11.0-0.32.0
VLLM_USE_STANDALONE_COMPILE
 :|-0.10.2|text
 :|0.11.0-|bool
VLLM_WORKER_MULTIPROC_METHOD||text
 =fork =spawn|0.11.0-
VLLM_XPU_INC_WNA16_BACKEND|0.29.0-|text
 =ark =auto =w4a16 =w4a8
""",
    # model architectures
    "architectures": r"""
AXK1ForCausalLM BailingMoeV2_5ForCausalLM ColBERTJinaRobertaModel ColBERTModernBertModel ColModernVBertForRetrieval ColQwen3|0.17.0-
ExtractHiddenStatesModel FireRedASR2ForConditionalGeneration FunASRForConditionalGeneration|0.17.0-
LlamaNemotronVLForSequenceClassification LlamaNemotronVLModel NemotronHMTPModel OpsColQwen3Model Ovis2_6ForCausalLM|0.17.0-
Ovis2_6_MoeForCausalLM Qwen3ASRRealtimeGeneration Qwen3VLNemotronEmbedModel Qwen3_5ForConditionalGeneration Qwen3_5MTP|0.17.0-
Qwen3_5MoeForConditionalGeneration Qwen3_5MoeMTP|0.17.0-
AfmoeForCausalLM BeeForConditionalGeneration BertSpladeSparseEmbeddingModel CLIPModel DeepseekOCRForCausalLM|0.11.1-
Eagle3Qwen2_5vlForCausalLM FlexOlmoForCausalLM KimiLinearForCausalLM Lfm2MoeForCausalLM LightOnOCRForConditionalGeneration|0.11.1-
MiniMaxM2ForCausalLM ModernBertForTokenClassification OpenPanguMTPModel PaddleOCRVLForConditionalGeneration|0.11.1-
PanguEmbeddedForCausalLM PanguUltraMoEForCausalLM Qwen3OmniMoeForConditionalGeneration SiglipModel TransformersEmbeddingModel|0.11.1-
TransformersForSequenceClassification TransformersMoEEmbeddingModel TransformersMoEForCausalLM|0.11.1-
TransformersMoEForSequenceClassification TransformersMultiModalEmbeddingModel TransformersMultiModalForCausalLM|0.11.1-
TransformersMultiModalForSequenceClassification TransformersMultiModalMoEForCausalLM|0.11.1-
AliceAIForCausalLM Alpamayo2Super BeamForCausalLM ClefFlashForJointSchema ColUltraVBertForRetrieval D3ForSequenceClassification|0.33.0-
DFlash2BeamDraftModel DFlashQwen3XPressModel DomynEdgeForCausalLM DoryForCausalLM FlintForCausalLM Kolibri1ForCausalLM|0.33.0-
Lfm2BidirectionalModel MiniCPMOcrForConditionalGeneration ModernVBertModel MuseSparkDSparkModel MuseSparkForConditionalGeneration|0.33.0-
ParseAuxMTPModel Qwen3XPressModel RadioMBartPrefixForCausalLM Step5ForCausalLM Step5ForConditionalGeneration Step5MTP|0.33.0-
TransformersForMTP TransformersMoEForMTP|0.33.0-
ApertusForCausalLM EagleDeepSeekMTPModel Ernie4_5_VLMoeForConditionalGeneration ErnieMTPModel Gemma3TextModel|0.10.2-
GteNewForSequenceClassification InternVLForConditionalGeneration KeyeVL1_5ForConditionalGeneration Lfm2ForCausalLM|0.10.2-
LlamaForCausalLMEagle3 MiDashengLMModel Ovis2_5 Qwen3NextForCausalLM Qwen3NextMTP RForConditionalGeneration SeedOssForCausalLM|0.10.2-
Terratorch|0.10.2-
AquilaForCausalLM AquilaModel AyaVisionForConditionalGeneration BaiChuanForCausalLM BaichuanForCausalLM Grok1ModelForCausalLM|-0.24.0
MantisForConditionalGeneration Tarsier2ForConditionalGeneration TarsierForConditionalGeneration|-0.24.0
ArceeForCausalLM AriaForConditionalGeneration BailingMoeForCausalLM BertForSequenceClassification BertModel Blip2ForConditionalGeneration
BloomForCausalLM ChatGLMForConditionalGeneration ChatGLMModel Cohere2ForCausalLM Cohere2VisionForConditionalGeneration CohereForCausalLM
DbrxForCausalLM DeciLMForCausalLM DeepSeekMTPModel DeepseekForCausalLM DeepseekV2ForCausalLM DeepseekV3ForCausalLM DeepseekVLV2ForCausalLM
Eagle3LlamaForCausalLM EagleLlama4ForCausalLM EagleLlamaForCausalLM EagleMiniCPMForCausalLM Emu3ForConditionalGeneration
Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM Exaone4ForCausalLM ExaoneForCausalLM FalconForCausalLM FalconH1ForCausalLM
FalconMambaForCausalLM GLM4VForCausalLM GPT2ForSequenceClassification GPT2LMHeadModel GPTBigCodeForCausalLM GPTJForCausalLM
GPTNeoXForCausalLM Gemma2ForCausalLM Gemma2Model Gemma3ForCausalLM Gemma3ForConditionalGeneration Gemma3nForCausalLM
Gemma3nForConditionalGeneration GemmaForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM Glm4MoeMTPModel Glm4vForConditionalGeneration
Glm4vMoeForConditionalGeneration GlmForCausalLM GptOssForCausalLM GraniteForCausalLM GraniteMoeForCausalLM GraniteMoeHybridForCausalLM
GraniteMoeSharedForCausalLM GraniteSpeechForConditionalGeneration GteModel GteNewModel H2OVLChatModel HunYuanDenseV1ForCausalLM
HunYuanMoEV1ForCausalLM Idefics3ForConditionalGeneration InternLM2ForCausalLM InternLM2ForRewardModel InternLM3ForCausalLM
InternS1ForConditionalGeneration InternVLChatModel JambaForCausalLM JambaForSequenceClassification JinaVLForRanking
KeyeForConditionalGeneration KimiVLForConditionalGeneration LLaMAForCausalLM Llama4ForCausalLM Llama4ForConditionalGeneration
LlamaForCausalLM LlamaModel Llama_Nemotron_Nano_VL LlavaForConditionalGeneration LlavaNextForConditionalGeneration
LlavaNextVideoForConditionalGeneration LlavaOnevisionForConditionalGeneration Mamba2ForCausalLM MambaForCausalLM MiMoForCausalLM
MiMoMTPModel MiniCPM3ForCausalLM MiniCPMForCausalLM MiniCPMO MiniCPMV Mistral3ForConditionalGeneration MistralForCausalLM MistralModel
MixtralForCausalLM ModernBertForSequenceClassification ModernBertModel MolmoForCausalLM NVLM_D NemotronForCausalLM NemotronHForCausalLM
NomicBertModel OPTForCausalLM Olmo2ForCausalLM OlmoForCausalLM OlmoeForCausalLM OrionForCausalLM Ovis PaliGemmaForConditionalGeneration
Phi3ForCausalLM Phi3VForCausalLM Phi4MMForCausalLM PhiForCausalLM PhiMoEForCausalLM PixtralForConditionalGeneration
Qwen2AudioForConditionalGeneration Qwen2ForCausalLM Qwen2ForProcessRewardModel Qwen2ForRewardModel Qwen2Model Qwen2MoeForCausalLM
Qwen2VLForConditionalGeneration Qwen2_5OmniForConditionalGeneration Qwen2_5OmniModel Qwen2_5_VLForConditionalGeneration Qwen3ForCausalLM
Qwen3MoeForCausalLM RobertaForMaskedLM RobertaForSequenceClassification RobertaModel SkyworkR1VChatModel SmolLM3ForCausalLM
SmolVLMForConditionalGeneration SolarForCausalLM StableLmForCausalLM Starcoder2ForCausalLM Step3TextForCausalLM
Step3VLForConditionalGeneration TeleChat2ForCausalLM TeleFLMForCausalLM TransformersForCausalLM UltravoxModel
VoxtralForConditionalGeneration WhisperForConditionalGeneration XLMRobertaForSequenceClassification XLMRobertaModel Zamba2ForCausalLM
ArcticForCausalLM ChameleonForConditionalGeneration Fairseq2LlamaForCausalLM GritLM HCXVisionForCausalLM MPTForCausalLM|-0.28.0
MptForCausalLM PrithviGeoSpatialMAE RWForCausalLM StableLMEpochForCausalLM|-0.28.0
AudioFlamingo3ForConditionalGeneration BagelForConditionalGeneration Jais2ForCausalLM|0.13.0-
BailingMoeV25MTPModel DFlashLagunaForCausalLM DSparkDraftModel LlavaOnevision2ForConditionalGeneration|0.25.0-
MossTranscribeDiarizeForConditionalGeneration OpenAIPrivacyFilterForTokenClassification Qwen3DSparkModel UnlimitedOCRForCausalLM|0.25.0-
BailingMoeV2ForCausalLM BertForTokenClassification CwmForCausalLM DeepseekV32ForCausalLM DotsOCRForCausalLM LongCatFlashMTPModel|0.11.0-
LongcatFlashForCausalLM NemotronH_Nano_VL_V2 Olmo3ForCausalLM Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration|0.11.0-
BailingMoeV3ForCausalLM BailingMoeV3MTPModel DFlash2DraftModel DFlashMuseGlimmerAssistantModel Dots3NoteForCausalLM|0.28.0-
Dots3NoteMTPModel InternS2MobiusForConditionalGeneration InternS2MobiusMTP MuseGlimmerAssistantModel MuseGlimmerForCausalLM|0.28.0-
MuseGlimmerForConditionalGeneration|0.28.0-
BailingMoeV3VLForConditionalGeneration CohereCompassForConditionalGeneration DSparkV41DraftModel DeepseekV41ForCausalLM|0.30.0-
DeepseekV4ForConditionalGeneration Glm5NextForCausalLM Glm5NextForConditionalGeneration Glm5NextMTPModel K2HorizonForCausalLM|0.30.0-
NanbeigeForCausalLM|0.30.0-
BambaForCausalLM Dots1ForCausalLM InternLM2VEForCausalLM InternLMForCausalLM MiniMaxForCausalLM MiniMaxM1ForCausalLM|-0.23.0
MiniMaxText01ForCausalLM MiniMaxVL01ForConditionalGeneration QWenLMHeadModel QwenVLForConditionalGeneration XverseForCausalLM|-0.23.0
BartForConditionalGeneration BartModel Florence2ForConditionalGeneration MBartForConditionalGeneration|-0.10.2
MllamaForConditionalGeneration Phi4FlashForCausalLM|-0.10.2
BertForMaskedLM Cosmos3EdgeForConditionalGeneration Gemma4DSparkModel InklingForCausalLM InklingForConditionalGeneration|0.26.0-
InklingMTPModel LongcatFlashNgramForCausalLM RobertaForTokenClassification XLMRobertaForTokenClassification|0.26.0-
BgeM3EmbeddingModel Eagle2_5_VLForConditionalGeneration Glm4MoeLiteForCausalLM Glm4MoeLiteMTPModel KimiK25ForConditionalGeneration|0.15.0-
Molmo2ForConditionalGeneration Step1ForCausalLM StepVLForConditionalGeneration|0.15.0-
Cheers CheersForConditionalGeneration FireRedLIDForConditionalGeneration|0.20.0-0.28.0
ClefOmniForJointSchema EmbeddingGemma2Model MiniCPMV4_7ForConditionalGeneration|0.32.0-
Cohere2MoeForCausalLM EagleCohereForCausalLM EagleMistralForCausalLM Gemma4MTPModel HfMoondream LagunaForCausalLM MiMoV2ForCausalLM|0.21.0-
MiMoV2MTPModel MiMoV2OmniForCausalLM MiMoV2OmniMTPModel Moondream3ForCausalLM QianfanOCRForConditionalGeneration|0.21.0-
CohereAsrForConditionalGeneration ColBERTLfm2Model ColQwen3_5 Gemma4ForCausalLM Gemma4ForConditionalGeneration|0.19.0-
Qwen3ASRForcedAlignerForTokenClassification|0.19.0-
ColPaliForRetrieval Eagle3DeepseekV2ForCausalLM Eagle3DeepseekV3ForCausalLM HCXVisionV2ForCausalLM HyperCLOVAXForCausalLM|0.18.0-
MoonshotKimiaForCausalLM OlmoHybridForCausalLM SarvamMLAForCausalLM SarvamMoEForCausalLM|0.18.0-
Cosmos3ForConditionalGeneration Gemma4UnifiedForConditionalGeneration GraniteSpeechPlusForConditionalGeneration|0.23.0-
Step3p7ForConditionalGeneration|0.23.0-
DFlashDraftModel DeepSeekV4MTPModel DeepseekV4ForCausalLM Eagle3MiniMaxM2ForCausalLM Exaone4_5_ForConditionalGeneration|0.20.0-
Exaone4_5_MTP Granite4VisionForConditionalGeneration HYV3ForCausalLM HYV3MTPModel JinaEmbeddingsV5Model JinaForRanking|0.20.0-
Ministral3ForCausalLM NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Super_Omni_Reasoning_V3 Param2MoEForCausalLM Phi4ForCausalLMV|0.20.0-
Rnj1ForCausalLM TeleChat3ForCausalLM|0.20.0-
DeepseekOCR2ForCausalLM FunAudioChatForConditionalGeneration GlmMoeDsaForCausalLM GlmOcrForConditionalGeneration GlmOcrMTPModel|0.16.0-
HF_ColBERT InternS1ProForConditionalGeneration NemotronHPuzzleForCausalLM OpenPanguVLForConditionalGeneration|0.16.0-
Qwen3ASRForConditionalGeneration VoxtralRealtimeGeneration VoyageQwen3BidirectionalEmbedModel|0.16.0-
DeepseekV32MTPModel DeepseekV3BidirectionalModel GraniteMoeSWAForCausalLM GraniteSWAForCausalLM HYV4ForCausalLM HYV4MTPModel|0.29.0-
NemotronH_Omni_Reasoning_V3 Qwen3OmniDSparkModel Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration Qwen4ExpMTP|0.29.0-
DiffusionGemmaForBlockDiffusion Eagle3Qwen3ForCausalLM HrmTextForCausalLM MiniMaxM3MTP MiniMaxM3SparseForCausalLM|0.24.0-
MiniMaxM3SparseForConditionalGeneration MossAudioModel PeagleQwen3ForCausalLM|0.24.0-
DonutForConditionalGeneration NemotronH_Nano_VL|0.10.2
Eagle3Qwen3vlForCausalLM EagleMistralLarge3ForCausalLM HunYuanVLForConditionalGeneration MistralLarge3ForCausalLM|0.12.0-
OpenCUAForConditionalGeneration Plamo3ForCausalLM|0.12.0-
ErnieForSequenceClassification ErnieForTokenClassification ErnieModel|0.18.0-0.23.0
ExaoneMoEForCausalLM|0.14.0-0.26.0,0.32.0-
ExaoneMoeForCausalLM K3DSparkModel KimiK3ForConditionalGeneration KimiK3MTPModel Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM|0.27.0-
VaultGemmaForCausalLM VibeVoiceAsrForConditionalGeneration|0.27.0-
ExaoneMoeMTP GlmAsrForConditionalGeneration IQuestCoderForCausalLM IQuestLoopCoderForCausalLM IsaacForConditionalGeneration|0.14.0-
KananaVForConditionalGeneration Lfm2VlForConditionalGeneration LlamaBidirectionalForSequenceClassification LlamaBidirectionalModel|0.14.0-
MiMoV2FlashForCausalLM NemotronParseForConditionalGeneration PanguProMoEV2ForCausalLM|0.14.0-
FuyuForCausalLM PersimmonForCausalLM|-0.25.1
Grok1ForCausalLM|0.14.0-0.24.0
InternS2PreviewForConditionalGeneration MiniCPMV4_6ForConditionalGeneration OpenVLAForActionPrediction PEagleDraftModel|0.22.0-
PeagleLlamaForCausalLM|0.22.0-
JAISLMHeadModel|-0.22.1
LiLiCorrDraftModel|0.31.0-
MedusaModel|-0.32.0
MellumForCausalLM|0.22.1-
MotifForCausalLM|0.10.2-0.11.0
MusicFlamingoForConditionalGeneration|0.16.0-0.24.0
OuroForCausalLM|0.11.1-0.26.0
Phi4MultimodalForCausalLM|-0.12.0
Plamo2ForCausalLM|-0.26.0
QuantMixtralForCausalLM|0.10.1.1
Step3p5ForCausalLM Step3p5MTP|0.15.1-
TeleChatForCausalLM|0.12.0-0.25.1
TransformersForMultimodalLM TransformersModel|-0.11.0
VoxtralStreamingGeneration|0.14.0-0.15.1
""",
    # model architectures that take no LoRA adapters
    "without_adapters": r"""
ArcticForCausalLM ChameleonForConditionalGeneration HCXVisionForCausalLM LlavaNextForConditionalGeneration MPTForCausalLM|0.15.0-0.28.0
MptForCausalLM PrithviGeoSpatialMAE Qwen3OmniMoeForConditionalGeneration RWForCausalLM StableLMEpochForCausalLM|0.15.0-0.28.0
AriaForConditionalGeneration BeeForConditionalGeneration BloomForCausalLM CLIPModel Cohere2VisionForConditionalGeneration|0.15.0-
DbrxForCausalLM DeepSeekMTPModel DeepseekVLV2ForCausalLM ErnieMTPModel ExaoneMoeMTP FalconForCausalLM FalconMambaForCausalLM|0.15.0-
GPT2ForSequenceClassification GPT2LMHeadModel GPTJForCausalLM Gemma3TextModel Gemma3nForCausalLM Gemma3nForConditionalGeneration|0.15.0-
Glm4MoeLiteMTPModel Glm4MoeMTPModel GteModel GteNewForSequenceClassification GteNewModel IQuestLoopCoderForCausalLM|0.15.0-
KananaVForConditionalGeneration KimiK25ForConditionalGeneration KimiLinearForCausalLM KimiVLForConditionalGeneration|0.15.0-
LlamaBidirectionalForSequenceClassification LlamaBidirectionalModel LlavaOnevisionForConditionalGeneration LongCatFlashMTPModel|0.15.0-
Mamba2ForCausalLM MambaForCausalLM MiDashengLMModel MiMoMTPModel MiMoV2FlashForCausalLM ModernBertForSequenceClassification|0.15.0-
ModernBertForTokenClassification NemotronParseForConditionalGeneration NomicBertModel OpenPanguMTPModel OrionForCausalLM Ovis|0.15.0-
Ovis2_5 PaddleOCRVLForConditionalGeneration Phi3VForCausalLM Qwen2AudioForConditionalGeneration Qwen3NextMTP|0.15.0-
RForConditionalGeneration SiglipModel SkyworkR1VChatModel StableLmForCausalLM Step1ForCausalLM Step3TextForCausalLM|0.15.0-
Step3VLForConditionalGeneration StepVLForConditionalGeneration Terratorch Zamba2ForCausalLM|0.15.0-
AyaVisionForConditionalGeneration Starcoder2ForCausalLM TarsierForConditionalGeneration|0.15.0-0.24.0
BailingMoeV25MTPModel DFlashLagunaForCausalLM DSparkDraftModel LlavaOnevision2ForConditionalGeneration|0.25.0-
MossTranscribeDiarizeForConditionalGeneration OpenAIPrivacyFilterForTokenClassification|0.25.0-
BailingMoeV2_5ForCausalLM ColBERTJinaRobertaModel ColBERTModernBertModel ColModernVBertForRetrieval ExtractHiddenStatesModel|0.17.0-
FireRedASR2ForConditionalGeneration FunASRForConditionalGeneration NemotronHMTPModel Ovis2_6ForCausalLM Ovis2_6_MoeForCausalLM|0.17.0-
Qwen3_5MTP Qwen3_5MoeMTP|0.17.0-
BailingMoeV3ForCausalLM BailingMoeV3MTPModel Dots3NoteForCausalLM Dots3NoteMTPModel InternS2MobiusMTP|0.28.0-
BailingMoeV3VLForConditionalGeneration DSparkV41DraftModel DeepseekV41ForCausalLM Eagle3LlamaForCausalLM Eagle3MiniMaxM2ForCausalLM|0.30.0-
Eagle3Qwen2_5vlForCausalLM Eagle3Qwen3vlForCausalLM EagleLlama4ForCausalLM EagleLlamaForCausalLM EagleMistralForCausalLM|0.30.0-
EagleMistralLarge3ForCausalLM Glm5NextForCausalLM Glm5NextMTPModel LlamaForCausalLMEagle3 PEagleDraftModel PeagleLlamaForCausalLM|0.30.0-
BeamForCausalLM ColUltraVBertForRetrieval D3ForSequenceClassification DFlash2BeamDraftModel DomynEdgeForCausalLM DoryForCausalLM|0.33.0-
EmbeddingGemma2Model FlintForCausalLM Lfm2BidirectionalModel ModernVBertModel ParseAuxMTPModel RadioMBartPrefixForCausalLM Step5MTP|0.33.0-
BertForMaskedLM Cosmos3EdgeForConditionalGeneration InklingMTPModel RobertaForTokenClassification XLMRobertaForTokenClassification|0.26.0-
BertForSequenceClassification BertForTokenClassification BertModel BertSpladeSparseEmbeddingModel BgeM3EmbeddingModel|0.15.0-0.31.0
GPTNeoXForCausalLM MedusaModel RobertaForMaskedLM RobertaModel XLMRobertaModel|0.15.0-0.31.0
Cohere2MoeForCausalLM Gemma4MTPModel HfMoondream MiMoV2ForCausalLM MiMoV2MTPModel MiMoV2OmniForCausalLM MiMoV2OmniMTPModel|0.21.0-
Moondream3ForCausalLM|0.21.0-
CohereAsrForConditionalGeneration ColBERTLfm2Model|0.19.0-
DeepSeekV4MTPModel Exaone4_5_MTP HYV3MTPModel JinaForRanking Phi4ForCausalLMV|0.20.0-
DeepseekV32MTPModel HYV4MTPModel Qwen4ExpMTP|0.29.0-
DeepseekV4ForCausalLM FireRedLIDForConditionalGeneration|0.20.0-0.28.0
DiffusionGemmaForBlockDiffusion HrmTextForCausalLM MiniMaxM3MTP MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration|0.24.0-
ErnieForSequenceClassification ErnieForTokenClassification ErnieModel|0.18.0-0.23.0
FunAudioChatForConditionalGeneration GlmOcrMTPModel|0.16.0-
FuyuForCausalLM LlavaNextVideoForConditionalGeneration PersimmonForCausalLM|0.15.0-0.25.1
Gemma4ForConditionalGeneration Qwen3ASRForcedAlignerForTokenClassification|0.19.0-0.19.1
HCXVisionV2ForCausalLM MoonshotKimiaForCausalLM|0.18.0-
HF_ColBERT|0.16.0-0.31.0
JAISLMHeadModel|0.15.0-0.22.1
K3DSparkModel KimiK3ForConditionalGeneration KimiK3MTPModel|0.27.0-
MiniCPMV4_6ForConditionalGeneration|0.22.0-0.24.0
MiniMaxForCausalLM MiniMaxM1ForCausalLM MiniMaxText01ForCausalLM MiniMaxVL01ForConditionalGeneration|0.15.0-0.23.0
ModernBertModel NemotronH_Nano_VL_V2 RobertaForSequenceClassification XLMRobertaForSequenceClassification|0.15.0-0.30.0
NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Super_Omni_Reasoning_V3|0.20.0-0.30.0
NemotronH_Omni_Reasoning_V3|0.29.0-0.30.0
OpenVLAForActionPrediction|0.22.0-
Qwen3ASRForConditionalGeneration|0.16.0-0.19.1
Qwen3ASRRealtimeGeneration|0.17.0-0.19.1
Step3p5ForCausalLM Step3p5MTP|0.15.1-
Step3p7ForConditionalGeneration|0.23.0-
VoyageQwen3BidirectionalEmbedModel|0.16.0-0.30.0
WhisperForConditionalGeneration|0.15.0-0.17.1
""",
    # tool parsers
    "tool_parsers": r"""
apertus|0.22.0-
beam muse musespark1x step5|0.33.0-
cohere_command3 cohere_command4 lfm2 poolside_v1|0.21.0-
deepseek_v3 glm45 granite granite-20b-fc hermes hunyuan_a13b internlm jamba kimi_k2 llama3_json llama4_json llama4_pythonic mistral
phi4_mini_json pythonic qwen3_coder step3 xlam
deepseek_v31 openai seed_oss|0.10.2-
deepseek_v32 gigachat3|0.13.0-
deepseek_v4 hy_v3 mimo|0.20.0-
deepseek_v41 k2_horizon|0.30.0-
dots ling3 muse_glimmer|0.28.0-
ernie45 minimax_m2 olmo3|0.11.1-
functiongemma glm47|0.14.0-
gemma4|0.19.0-
granite4|0.18.0-
hf plamo3 qwen3_json|0.32.0-
hy_v4|0.29.0-
inkling|0.26.0-
kimi_k3|0.27.0-
longcat qwen3_xml|0.11.0-
minicpm5|0.23.0-
minimax|-0.23.0
minimax_m3|0.24.0-
step3p5|0.15.1-
""",
    # reasoning parsers
    "reasoning_parsers": r"""
GptOss|0.10.1.1
beam muse musespark1x step5|0.33.0-
cohere_command3 cohere_command4 poolside_v1|0.21.0-
deepseek_r1 glm45 granite hunyuan_a13b mistral qwen3 step3
deepseek_v3 ernie45 kimi_k2 minimax_m2 minimax_m2_append_think olmo3|0.11.1-
deepseek_v4 hy_v3 mimo|0.20.0-
deepseek_v41 k2_horizon|0.30.0-
gemma4|0.19.0-
glm47 minimax_m3|0.24.0-
granite_thinking_parser|0.31.0-
hf minicpmv plamo3|0.32.0-
holo2|0.13.0-
hy_v4|0.29.0-
inkling|0.26.0-
kimi_k3|0.27.0-
ling3 muse_glimmer|0.28.0-
nemotron_v3|0.17.1-
openai_gptoss|0.10.2-
seed_oss|0.11.0-
step3p5|0.15.1-
""",
    # quantisation methods
    "quantizations": r"""
auto-round deepspeedfp hqq rtn|-0.14.1
auto_awq fp8_per_channel|0.24.0-
auto_gptq|0.22.0-
awq awq_marlin compressed-tensors experts_int8 fbgemm_fp8 fp8 gptq gptq_marlin inc modelopt modelopt_fp4 moe_wna16 mxfp4 quark torchao
bitblas gptq_bitblas gptq_marlin_24 ipex|-0.15.1
bitsandbytes|-0.27.1
cpu_awq|0.12.0-0.22.1
cpu_gptq|0.12.0-0.13.0
deepseek_v4_fp8 fp8_per_block fp8_per_tensor gpt_oss_mxfp4 humming int8_per_channel_weight_only online|0.20.0-
fp_quant|0.11.1-
gguf|-0.23.0
marlin neuron_quant qqq|0.10.1.1
modelopt_mixed|0.17.0-
modelopt_mxfp8|0.16.0-
mxfp8|0.19.0-
nvfp4_per_token|0.26.0-
petit_nvfp4|0.10.2-0.19.1
ptpc_fp8|-0.18.1
tpu_int8|-0.13.0
""",
    # quantisation methods that need --allow-deprecated-quantization or warn
    "deprecated_quantizations": r"""
auto-round deepspeedfp hqq rtn|0.14.0-0.14.1
bitblas gptq_bitblas gptq_marlin_24 ipex|0.14.0-0.15.1
experts_int8 petit_nvfp4|0.14.0-0.19.1
fbgemm_fp8 fp_quant|0.14.0-
ptpc_fp8|0.14.0-0.18.1
tpu_int8|0.14.0-0.22.1
""",
    # load formats
    "load_formats": r"""
auto dummy fastsafetensors mistral npcache pt runai_streamer runai_streamer_sharded safetensors sharded_state tensorizer
bitsandbytes|-0.27.1
gguf|-0.23.0
hf|0.12.0-
instanttensor|0.18.0-
ipc_cache|0.30.0-
modelexpress|0.22.0-
""",
    # KV cache dtypes
    "kv_cache_dtypes": r"""
auto fp8 fp8_e4m3 fp8_e5m2 fp8_inc
bfloat16|0.11.0-
float16|0.18.0-
fp8_ds_mla|0.11.1-
fp8_per_token_head int8_per_token_head nvfp4 turboquant_3bit_nc turboquant_4bit_nc turboquant_k3v4_nc turboquant_k8v4|0.20.0-
int4_per_token_head|0.25.0-
nvfp4_4over6|0.28.0-
nvfp4_ds_mla|0.30.0-
octave_k3v3 octave_k3v3_compact octave_k3v4|0.33.0-
ultraquant_4bit|0.32.0-
""",
    # speculative methods
    "spec_methods": r"""
bailing_hybrid_mtp dspark|0.25.0-
bailing_hybrid_v3_mtp dots3_note_mtp|0.28.0-
custom_class|0.22.0-
deepseek_mtp draft_model eagle eagle3 ngram
dflash exaone4_5_mtp hy_v3_mtp|0.20.0-
ernie_mtp qwen3_next_mtp|0.10.2-
exaone_moe_mtp|0.14.0-
extract_hidden_states nemotron_h_mtp qwen3_5_mtp|0.17.0-
gemma4_mtp mimo_v2_mtp|0.21.0-
glm4_moe_lite_mtp|0.15.0-
glm4_moe_mtp pangu_ultra_moe_mtp suffix|0.11.1-
glm5_next_mtp|0.30.0-
glm_ocr_mtp|0.16.0-
hy_v4_mtp qwen4_exp_mtp|0.29.0-
inkling_mtp|0.26.0-
kimi_k3_mtp|0.27.0-
longcat_flash_mtp mimo_mtp mtp|0.11.0-
medusa mlp_speculator|-0.32.0
minimax_m3_mtp|0.24.0-
ngram_gpu|0.18.0-
step3p5_mtp|0.15.1-
step5_mtp|0.33.0-
""",
    # executor backends
    "executor_backends": r"""
external_launcher mp ray uni
""",
    # attention backends
    "attention_backends": r"""
AMX_MLA|0.29.0-
B12X FLASHINFER_MLA_SPARSE_DSV41 FLASHINFER_MLA_SPARSE_SM90 FLASHMLA_SPARSE_DSV41 TRITON_FLASHINFER TRITON_FLASH_ATTN|0.30.0-
CPU_ATTN CUSTOM FLASHMLA_SPARSE ROCM_AITER_UNIFIED_ATTN|0.11.1-
CPU_MLA|0.28.0-
CUTLASS_MLA FLASHINFER FLASHMLA FLASH_ATTN FLEX_ATTENTION NO_ATTENTION ROCM_AITER_FA ROCM_AITER_MLA TORCH_SDPA TRITON_MLA
CUTLASS_MSA TRITON_MSA|0.27.0-
DIFFERENTIAL_FLASH_ATTN DUAL_CHUNK_FLASH_ATTN ROCM_FLASH|-0.11.0
FLASHINFER_MLA FLASH_ATTN_MLA|0.10.2-
FLASHINFER_MLA_SPARSE|0.17.0-
FLASHINFER_MLA_SPARSE_DSV4 FLASHMLA_SPARSE_DSV4 ROCM_FLASHMLA_SPARSE_DSV4|0.23.0-
FLASHINFER_MLA_SPARSE_SM120 MINIMAX_M3_SPARSE TRITON_ATTN_DIFFKV|0.24.0-
FLASHINFER_VLLM_V1 FLASHMLA_VLLM_V1 FLASH_ATTN_VLLM_V1 PALLAS_VLLM_V1 ROCM_AITER_MLA_VLLM_V1 TRITON_ATTN_VLLM_V1 TRITON_MLA_VLLM_V1|-0.10.2
XFORMERS_VLLM_V1|-0.10.2
FLASHMLA_MEGA_ATTN_DSV41|0.31.0-
FLASH_ATTN_DIFFKV|0.14.0-
FLASH_ATTN_MLA_SPARSE HPC_ATTN|0.25.0-
FLASH_ATTN_MLA_SPARSE_FA4 ROCM_FLASHMLA_SPARSE_DSV41 ROCM_OCTAVE STEP5_DSA|0.33.0-
IPEX|-0.15.1
PALLAS|-0.13.0
ROCM_AITER_MLA_SPARSE ROCM_AITER_TRITON_MLA|0.12.0-
ROCM_ATTN TRITON_ATTN|0.11.0-
ROCM_SEGMENTED_ATTN ULTRAQUANT|0.32.0-
TOKENSPEED_MLA|0.21.0-
TORCH_SDPA_VLLM_V1|0.10.2
TREE_ATTN|-0.20.2
TURBOQUANT|0.20.0-
XFORMERS|-0.11.2
XPU_MLA_SPARSE|0.18.0-
""",
    # MoE backends
    "moe_backends": r"""
aiter auto cutlass deep_gemm flashinfer_cutedsl flashinfer_cutlass flashinfer_trtllm marlin triton|0.17.0-
aiter_mega_moe flashinfer_moe_ep_cutedsl|0.32.0-
aiter_triton_mxfp4_bf16 rdna3|0.30.0-
aiter_triton_mxfp4_mxfp4|0.33.0-
b12x flashinfer_moe_ep_mega_deep_gemm|0.29.0-
batched_triton|0.27.0-
deep_gemm_mega_moe emulation|0.20.0-
flashinfer_b12x|0.22.0-
flashinfer_moe_ep_mega_cutedsl|0.29.0-0.31.0
flydsl|0.24.0-
hpc|0.25.0-
humming triton_unfused|0.21.0-
""",
    # linear backends
    "linear_backends": r"""
aiter auto conch cutlass deep_gemm emulation exllama fbgemm flashinfer_cudnn flashinfer_cutlass flashinfer_trtllm machete marlin|0.22.0-
torch triton|0.22.0-
b12x|0.28.0-
flashinfer_b12x flashinfer_cutedsl|0.24.0-
humming xpu xpu_woq|0.25.0-
""",
    # all-to-all backends
    "all2all_backends": r"""
allgather_reducescatter deepep_high_throughput deepep_low_latency flashinfer_all2allv naive pplx|0.14.0-
deepep_v2|0.24.0-
flashinfer_nvlink_one_sided flashinfer_nvlink_two_sided nixl_ep|0.18.0-
moonep|0.31.0-
mori|0.15.0-0.22.1
mori_high_throughput mori_low_latency|0.23.0-
passthrough|0.32.0-
""",
    # keys of JSON options
    "json_keys": r"""
attention-config.* profiler-config.*|0.13.0-0.15.1
attention-config.backend attention-config.disable_flashinfer_q_quantization|0.13.0-
attention-config.flash_attn_max_num_splits_for_cuda_graph attention-config.flash_attn_version attention-config.use_trtllm_attention|0.13.0-
profiler-config.delay_iterations profiler-config.ignore_frontend profiler-config.max_iterations profiler-config.torch_profiler_dir|0.13.0-
profiler-config.torch_profiler_dump_cuda_time_total profiler-config.torch_profiler_record_shapes|0.13.0-
profiler-config.torch_profiler_use_gzip profiler-config.torch_profiler_with_flops profiler-config.torch_profiler_with_memory|0.13.0-
profiler-config.torch_profiler_with_stack|0.13.0-
attention-config.backend_per_kind attention-config.sparse_mla_force_mqa profiler-config.capture_torch_profiler|0.26.0-
profiler-config.detailed_trace_annotation|0.26.0-
attention-config.disable_flashinfer_prefill attention-config.use_cudnn_prefill|0.13.0-0.21.0
attention-config.use_trtllm_ragged_deepseek_prefill|0.13.0-0.21.0
attention-config.flex_attn_block_m attention-config.flex_attn_block_n attention-config.flex_attn_kv_block_size|0.22.0-
attention-config.flex_attn_q_block_size quantization-config.ignore quantization-config.linear quantization-config.moe|0.22.0-
attention-config.hisparse_config engram-config.cpu_offload engram-config.dp_shared_memory engram-config.embedding_across_dp|0.30.0-
ir-op-priority.gelu_and_mul_sparse kernel-config.linear_backend_per_quant profiler-config.proton_graph_attribution|0.30.0-
quantization-config.targets speculative-config.disable_eagle_block_drop watermark-config.allow_target_only_watermarking|0.30.0-
watermark-config.alpha watermark-config.context_width watermark-config.deduplicate_contexts_max_history watermark-config.key|0.30.0-
attention-config.indexer_sparse_logits aux-output-config.enable_return_routed_experts aux-output-config.max_bytes|0.31.0-
engram-config.use_thp logging-config.configure_logging logging-config.pylogging_config_file|0.31.0-
profiler-config.torch_profiler_activities|0.31.0-
attention-config.indexer_tp_shard_min_rows attention-config.minimax_m3_indexer_cp kernel-config.monokernel|0.33.0-
speculative-config.disable_lookahead_block_hashes speculative-config.fly_entropy_threshold speculative-config.fly_entropy_top_k|0.33.0-
speculative-config.fly_window_size speculative-config.xpress_topc watchdog-config.check_interval watchdog-config.dump_dir|0.33.0-
watchdog-config.timeout|0.33.0-
attention-config.mla_prefill_backend attention-config.use_non_causal ir-op-priority.fused_add_rms_norm|0.21.0-
speculative-config.attention_backend|0.21.0-
attention-config.sparse_mla_prefill_workspace_factor attention-config.tokenspeed_mla_min_split_kv|0.32.0-
compilation-config.cudagraph_decoder_replay compilation-config.decoder_replay_cudagraph_capture_sizes|0.32.0-
compilation-config.decoder_replay_trim_threshold eplb-config.enable_migration_batching|0.32.0-
kernel-config.enable_rocm_segmented_attn_autotune pooler-config.enable_flash_late_interaction|0.32.0-
attention-config.tq_max_kv_splits_for_cuda_graph compilation-config.encoder_cudagraph_max_frames_per_batch|0.20.0-
compilation-config.encoder_cudagraph_max_vision_items_per_batch compilation-config.ir_enable_torch_wrap ir-op-priority.rms_norm|0.20.0-
kernel-config.ir_op_priority pooler-config.logit_mean pooler-config.logit_sigma reasoning-config.reasoning_parser|0.20.0-
speculative-config.synthetic_acceptance_length speculative-config.synthetic_acceptance_rates|0.20.0-
attention-config.use_fp4_indexer_cache|0.20.0-0.29.0
attention-config.use_prefill_decode_attention|0.13.0-0.28.0
attention-config.use_prefill_query_quantization speculative-config.draft_load_config speculative-config.use_local_argmax_reduction|0.17.0-
compilation-config.*|-0.12.0
compilation-config.backend compilation-config.cache_dir compilation-config.compile_sizes compilation-config.cudagraph_capture_sizes
compilation-config.cudagraph_copy_inputs compilation-config.cudagraph_mode compilation-config.cudagraph_num_of_warmups
compilation-config.custom_ops compilation-config.debug_dump_path compilation-config.inductor_compile_config
compilation-config.inductor_passes compilation-config.pass_config compilation-config.splitting_ops kv-events-config.buffer_steps
kv-events-config.enable_kv_cache_events kv-events-config.endpoint kv-events-config.hwm kv-events-config.max_queue_size
kv-events-config.replay_endpoint kv-events-config.topic kv-transfer-config.engine_id kv-transfer-config.kv_buffer_device
kv-transfer-config.kv_connector kv-transfer-config.kv_connector_extra_config kv-transfer-config.kv_connector_module_path
kv-transfer-config.kv_port speculative-config.code_revision speculative-config.draft_model_config speculative-config.draft_parallel_config
speculative-config.draft_tensor_parallel_size speculative-config.max_model_len speculative-config.model
speculative-config.num_speculative_tokens speculative-config.prompt_lookup_max speculative-config.prompt_lookup_min
speculative-config.revision speculative-config.target_model_config speculative-config.target_parallel_config
compilation-config.compile_mm_encoder compilation-config.cudagraph_specialize_lora compilation-config.max_cudagraph_capture_size|0.11.1-
compilation-config.mode ec-transfer-config.ec_buffer_device ec-transfer-config.ec_buffer_size ec-transfer-config.ec_connector|0.11.1-
ec-transfer-config.ec_connector_extra_config ec-transfer-config.ec_connector_module_path ec-transfer-config.ec_ip|0.11.1-
ec-transfer-config.ec_port ec-transfer-config.engine_id kv-transfer-config.enable_permute_local_kv pooler-config.use_activation|0.11.1-
speculative-config.suffix_decoding_max_cached_requests speculative-config.suffix_decoding_max_spec_factor|0.11.1-
speculative-config.suffix_decoding_max_tree_depth speculative-config.suffix_decoding_min_token_prob|0.11.1-
structured-outputs-config.enable_in_reasoning structured-outputs-config.reasoning_parser_plugin|0.11.1-
compilation-config.compile_ranges_endpoints profiler-config.active_iterations profiler-config.wait_iterations|0.18.0-
profiler-config.warmup_iterations|0.18.0-
compilation-config.compile_ranges_split_points|0.13.0-0.17.1
compilation-config.cudagraph_mm_encoder compilation-config.encoder_cudagraph_token_budgets reasoning-config.reasoning_end_str|0.19.0-
reasoning-config.reasoning_start_str|0.19.0-
compilation-config.dynamic_shapes_config eplb-config.use_async|0.12.0-
compilation-config.encoder_cudagraph_max_images_per_batch speculative-config.synthetic_acceptance_rate|0.19.0-0.19.1
compilation-config.fast_moe_cold_start kernel-config.enable_flashinfer_autotune speculative-config.parallel_drafting|0.16.0-
compilation-config.full_cuda_graph compilation-config.use_cudagraph speculative-config.disable_log_stats|-0.11.0
speculative-config.disable_logprobs speculative-config.enable_chunked_prefill|-0.11.0
compilation-config.level|-0.17.1
compilation-config.use_inductor|-0.11.2
compilation-config.use_inductor_graph_partition pooler-config.dimensions pooler-config.enable_chunked_processing|0.11.0-
pooler-config.max_embed_len pooler-config.returned_token_ids pooler-config.step_tag_id|0.11.0-
speculative-config.disable_padded_drafter_batch speculative-config.enforce_eager|0.11.0-
structured-outputs-config.disable_additional_properties structured-outputs-config.disable_any_whitespace|0.11.0-
structured-outputs-config.reasoning_parser|0.11.0-
diffusion-config.canvas_length diffusion-config.max_denoising_steps speculative-config.num_speculative_tokens_per_batch_size|0.24.0-
ec-manager-config.encoder_cache_manager_cls ec-manager-config.manager_config profiler-config.proton_mode|0.28.0-
profiler-config.proton_profiler_dir speculative-config.dspark_draft_topk speculative-config.enable_adaptive_verification|0.28.0-
ec-transfer-config.*|0.11.1-0.15.1
ec-transfer-config.ec_parallel_size ec-transfer-config.ec_rank|0.11.1-0.31.0
eplb-config.*|0.10.2-0.15.1
eplb-config.log_balancedness eplb-config.num_redundant_experts eplb-config.step_interval eplb-config.window_size|0.10.2-
eplb-config.log_balancedness_interval|0.14.0-
fault-tolerance-config.engine_recovery_timeout_sec kernel-config.enable_jit_warmup|0.27.0-
kernel-config.enable_bf16x3_router_gemm|0.26.0-0.29.0
kernel-config.enable_cutedsl_warmup speculative-config.use_heterogeneous_vocab|0.25.0-
kv-events-config.* kv-transfer-config.* speculative-config.*|-0.15.1
kv-transfer-config.kv_buffer_size kv-transfer-config.kv_ip kv-transfer-config.kv_parallel_size kv-transfer-config.kv_rank|-0.31.0
override-pooler-config.* override-pooler-config.activation override-pooler-config.dimensions|0.11.0-0.11.2
override-pooler-config.enable_chunked_processing override-pooler-config.logit_bias override-pooler-config.max_embed_len|0.11.0-0.11.2
override-pooler-config.normalize override-pooler-config.pooling_type override-pooler-config.returned_token_ids|0.11.0-0.11.2
override-pooler-config.softmax override-pooler-config.step_tag_id|0.11.0-0.11.2
override-pooler-config.use_activation|0.11.1-0.11.2
pooler-config.* pooler-config.activation pooler-config.normalize pooler-config.softmax structured-outputs-config.*|0.11.0-0.15.1
pooler-config.logit_bias|0.11.0-0.22.1
pooler-config.logit_scale|0.20.0-0.22.1
speculative-config.disable_by_batch_size|-0.16.0
speculative-config.index_share_for_mtp_iteration|0.29.0-
speculative-config.speculative_token_tree|-0.20.2
speculative-config.tensor_parallel_size|0.15.0-
structured-outputs-config.disable_fallback|0.11.0-0.17.1
attention-config.indexer_kv_dtype|0.24.0-
 =auto|0.28.0-0.32.0
 =bf16 =fp8 =mxfp4 =nvfp4|0.24.0-0.32.0
attention-config.minimax_m3_msa_decode_backend|0.27.0-
 =cutlass =triton
attention-config.trtllm_ragged_backend|0.33.0-
 =cute-dsl =trtllm-gen
compilation-config.compile_cache_save_format|0.11.1-
 =binary =unpacked
ec-transfer-config.ec_role|0.11.1-
 =ec_both|0.17.0-
 =ec_consumer =ec_producer
eplb-config.communicator|0.20.0-
 =nixl =pynccl =torch_gloo =torch_nccl
 =torch_xccl|0.31.0-
eplb-config.policy|0.13.0-
 =default
kernel-config.linear_backend|0.22.0-
 =@linear_backends
kernel-config.moe_backend|0.17.0-
 =@moe_backends
kernel-config.sparse_indexer_topk_backend|0.30.0-
 =aiter|0.32.0-
 =auto =cooperative =deep_select =flashinfer =per_row =persistent =torch
kv-events-config.publisher
 =null =zmq|0.11.1-
kv-transfer-config.kv_load_failure_policy|0.13.0-
 =fail =recompute
kv-transfer-config.kv_role
 =kv_both =kv_consumer =kv_producer
logging-config.formatter|0.32.0-
 =json =text
logging-config.log_level|0.31.0-
 =CRITICAL =DEBUG =ERROR =INFO =NOTSET =WARNING
pooler-config.pooling_type|0.11.0-
 =ALL =CLS =LAST =MEAN =STEP|0.12.0-0.13.0
pooler-config.seq_pooling_type|0.14.0-
 =CLS =LAST =MEAN
pooler-config.task|0.19.0-
 =classify =embed =embed&token_classify =plugin =token_classify =token_embed
pooler-config.tok_pooling_type|0.14.0-
 =ALL =STEP
profiler-config.profiler|0.13.0-
 =cuda =torch
 =proton|0.28.0-
profiler-config.proton_backend|0.28.0-
 =cupti
profiler-config.proton_context|0.28.0-
 =python =shadow
profiler-config.proton_data|0.28.0-
 =trace =tree
profiler-config.proton_hook|0.28.0-
 =triton
profiler-config.proton_output_format|0.28.0-
 =chrome_trace =hatchet =hatchet_msgpack
speculative-config.draft_lm_head_quantization|0.33.0-
 =fp8 =nvfp4
speculative-config.draft_sample_method|0.21.0-
 =greedy
 =gumbel|0.21.0
 =probabilistic|0.22.0-
speculative-config.kv_cache_dtype|0.26.0-
 =@kv_cache_dtypes|0.26.0-0.32.0
speculative-config.method
 =@spec_methods
speculative-config.moe_backend|0.19.0-
 =@moe_backends
speculative-config.quantization
 =auto-round =deepspeedfp =hqq =rtn|-0.14.1
 =awq =awq_marlin =bitsandbytes =compressed-tensors =experts_int8 =fbgemm_fp8 =fp8 =gguf =gptq =gptq_marlin =inc =modelopt|-0.18.1
 =modelopt_fp4 =moe_wna16 =mxfp4 =ptpc_fp8 =quark =torchao|-0.18.1
 =bitblas =gptq_bitblas =gptq_marlin_24 =ipex|-0.15.1
 =cpu_awq|0.12.0-0.18.1
 =cpu_gptq|0.12.0-0.13.0
 =fp_quant|0.11.1-0.18.1
 =marlin =neuron_quant =qqq|0.10.1.1
 =modelopt_mixed|0.17.0-0.18.1
 =modelopt_mxfp8|0.16.0-0.18.1
 =petit_nvfp4|0.10.2-0.18.1
 =tpu_int8|-0.13.0
speculative-config.rejection_sample_method|0.18.0-
 =block|0.25.0-
 =fly|0.33.0-
 =probabilistic =strict|0.18.0-0.20.2
 =standard|0.21.0-
 =synthetic|0.19.0-
structured-outputs-config.backend|0.11.0-
 =auto =guidance =lm-format-enforcer =outlines =xgrammar
watermark-config.algorithm|0.30.0-
 =dual_key_gumbel =gumbel
watermark-config.deduplicate_contexts|0.30.0-
 =all =none =single_turn
watermark-config.prf|0.30.0-
 =philox
weight-transfer-config.backend|0.16.0-
 =ipc|0.17.0-0.21.0
 =nccl|0.16.0-0.21.0
""",
    # paths of the HTTP server
    "http_paths": r"""
/classify /detokenize /health /invocations /is_scaling_elastic_ep /load /metrics /ping /pooling /rerank /scale_elastic_ep /score||always
/tokenize /v1/audio/transcriptions /v1/audio/translations /v1/chat/completions /v1/completions /v1/embeddings /v1/models /v1/rerank||always
/v1/responses /v1/responses/{response_id} /v1/responses/{response_id}/cancel /v1/score /v2/rerank /version||always
/cohere/v2/chat /fault_tolerance/apply /fault_tolerance/status|0.27.0-|option
/cohere/v2/chat/render|0.29.0-|option
/collective_rpc|0.10.2-|dev
/docs|0.14.0-|always
/finish_weight_update /start_weight_update|0.21.0-|dev
/generative_scoring|0.20.0-|always
/get_world_size /init_weight_transfer_engine /reset_encoder_cache /update_weights|0.16.0-|dev
/inference/v1/generate /v1/messages|0.11.1-|always
/is_sleeping /reset_prefix_cache /server_info /sleep /wake_up||dev
/kv_event_sources|0.31.0-|always
/ready /readyz|0.22.0-|always
/release_kv_cache_memory|0.31.0-|dev
/reset_mm_cache|0.11.1-|dev
/shutdown_weight_transfer_engine /weight_checker|0.32.0-|dev
/start_draft_weight_update|0.26.0-|dev
/start_profile /stop_profile /tokenizer_info||option
/update_weight_version /weight_info|0.27.0-|dev
/v1/chat/completions/batch|0.19.0-|always
/v1/chat/completions/derender /v1/completions/derender|0.24.0-|always
/v1/chat/completions/render /v1/completions/render|0.15.0-|always
/v1/decisions|0.33.0-|always
/v1/messages/count_tokens|0.17.0-|always
/v1/messages/render|0.29.0-|always
/v1/realtime|0.16.0-|always
/v1/responses/render|0.30.0-|always
/v1/systemone|0.32.0-|always
/v2/embed|0.18.0-|always
/abort_requests|0.11.1-
 :|0.11.1-0.31.0|option
 :|0.32.0-|dev
/is_paused|0.12.0-
 :|0.12.0-0.15.1|always
 :|0.16.0-|dev
/pause|0.12.0-
 :|0.12.0-0.15.1|always
 :|0.16.0-|dev
/resume|0.12.0-
 :|0.12.0-0.15.1|always
 :|0.16.0-|dev
/v1/load_lora_adapter
 :|-0.30.0|option
 :|0.31.0-|always
/v1/unload_lora_adapter
 :|-0.30.0|option
 :|0.31.0-|always
""",
    # beginnings of paths that the API key is asked for
    "guarded_prefixes": r"""
/cohere|0.27.0-
/inference /v2|0.22.0-
/v1
""",
    # requirements
    "requirements": r"""
ray|-0.17.1||[cgraph]>=2.48.0
flashinfer-python|0.11.1-
 >|0.11.1-0.11.2|==0.5.2
 >|0.12.0-0.14.1|==0.5.3
 >|0.15.0-0.15.1|==0.6.1
 >|0.16.0|==0.6.3
 >|0.17.0-0.17.1|==0.6.4
 >|0.18.0-0.19.1|==0.6.6
 >|0.20.0-0.21.0|==0.6.8.post1
 >|0.22.0-0.22.1|==0.6.11.post2
 >|0.23.0-0.24.0|==0.6.12
 >|0.25.0-0.25.1|==0.6.13
 >|0.26.0|==0.6.14
 >|0.27.0-0.28.0|==0.6.16.post3
 >|0.29.0|==0.6.18
 >|0.30.0|==0.6.18.post1
 >|0.31.0-0.32.0|==0.7.0.post1
 >|0.33.0-|==0.7.2.post1
python
 >|0.10.1.1|<3.13,>=3.9
 >|0.10.2-0.11.0|<3.14,>=3.9
 >|0.11.1-0.19.1|<3.14,>=3.10
 >|0.20.0-0.31.0|<3.15,>=3.10
 >|0.32.0-|<3.15,>=3.11
torch
 >|0.10.1.1|==2.7.1
 >|0.10.2-0.11.0|==2.8.0
 >|0.11.1-0.13.0|==2.9.0
 >|0.14.0-0.16.0|==2.9.1
 >|0.17.0-0.19.1|==2.10.0
 >|0.20.0-0.26.0|==2.11.0
 >|0.27.0-0.32.0|==2.13.0
 >|0.33.0-|==2.14.0
transformers
 >|0.10.1.1|>=4.55.0
 >|0.10.2-0.11.0|>=4.55.2
 >|0.11.1-0.19.0|<5,>=4.56.0
 >|0.19.1-0.23.0|!=5.0.*,!=5.1.*,!=5.2.*,!=5.3.*,!=5.4.*,!=5.5.0,>=4.56.0
 >|0.24.0-0.28.0|>=5.5.3
 >|0.29.0-0.30.0|>=5.10.4
 >|0.31.0|<5.18.0,>=5.10.4
 >|0.32.0|<5.20.0,>=5.16.1
 >|0.33.0-|<5.21.0,>=5.16.1
""",
    # traits of the parser
    "traits": r"""
dotted-size json-size|0.20.0-
enable-disable-pairs|0.33.0-
model-equals
model-option|0.11.1-
served-name-anywhere|-0.16.0
short-dotted|-0.12.0
short-level=compilation-config|-0.11.2
short-level=optimization-level|0.12.0-
""",
}
