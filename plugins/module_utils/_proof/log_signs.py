# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kinds of failures by the messages of engines, NCCL and Ray, and C(SIGNS) of all kinds. Data only; C(explain.py) reads it.

Failures of single versions are in C(_vllm/known_failures.py), failures of containers and hosts in C(host_log_signs.py). A sign names
the kind of an error and its fix for every version; its pattern matches words that do not change from version to version (vLLM 0.15 to
0.33), not whole sentences.
"""

from __future__ import annotations

from .host_log_signs import CONTAINER, SIGNS_OF_HOST, Sign, sign

SIGNS: tuple[Sign, ...] = (
    *SIGNS_OF_HOST,
    # --- options
    sign(
        "serve_twice",
        r"unrecognized arguments: serve\b",
        "the image's entrypoint already runs vllm serve",
        "pass only the model and options, or set --entrypoint",
        "SPK103",
    ),
    sign(
        "option_unknown",
        r"unrecognized arguments: (?P<options>[^\n]{1,300})",
        "the vLLM of this image has no such option: {options}. It belongs to another version or a fork, or is misspelt",
        "remove it ({options}), or use the image it was written for, by digest",
        "SPK101, SPK110",
    ),
    sign(
        "option_json",
        r"argument (?P<option>\S+?)(?:/\S+)?: (?:Value .{1,300} cannot be converted to|.*(?:invalid loads|Invalid JSON))|JSON string .* cannot be parsed",
        "the value of an option ({option}) is not valid JSON, mostly because a shell removed the quotes",
        "put the JSON in single quotes, or use dotted options (--speculative-config.method mtp)",
        "SPK104",
    ),
    sign(
        "option_value",
        r"argument (?P<option>--[\w-]+)\S*: invalid|argument (?P<option2>--[\w-]+)\S*: expected|"
        r"Unknown attention backend: '(?P<value>[^']+)'|[Ii]nvalid (?:tool call|reasoning) parser|(?:[Tt]ool|[Rr]easoning) parser '?\S+? not found|"
        r"Unknown quantization method|Invalid (?:quantization|load format)|[Uu]nknown load format|Load format \S+ is not supported|"
        r"Input should be (?:'|a valid)|\[type=(?:literal_error|enum|int_parsing|float_parsing|bool_parsing)|Unknown (?:moe|linear|mamba) backend|"
        r"ambiguous option|the following arguments are required|Unsupported speculative method|[Ii]nvalid tokenizer mode",
        "this vLLM does not know the value of an option; the error lists the known ones. If it worked before, "
        "the image behind its tag has changed",
        "set a listed value (names of moe-backend, attention-backend, quantization, tool-call-parser and "
        "others change), or pin the digest that worked",
        "SPK104, SPK108, SPK404, SPK505, SPK509, SPK701",
    ),
    sign(
        "options_conflict",
        r"cannot be used with --|can only be set when|must be greater than or equal to max_num_seqs|is smaller than max_model_len|"
        r"is greater than max_lora_rank|"
        r"num_speculative_tokens (?:must be|was) provided|prompt_lookup_min\S* must be|--enable-auto-tool-choice requires|"
        r"incompatible with PYTORCH_CUDA_ALLOC_CONF|does not support LoRA|when expert parallelism is enabled|intermediate_size % tp_size",
        "two options conflict, one needs another, or the model does not support one",
        "change the options in the error; plan.yml names rule and value",
        "SPK612, SPK613, SPK703, SPK805, SPK809",
    ),
    sign(
        "context_too_long",
        r"max_model_len \(?\d+\)? is greater than the derived max_model_len|User-specified max_model_len",
        "max-model-len exceeds the model's limit",
        "lower max-model-len to the maximum in the error, or configure YaRN in hf-overrides",
        "SPK403",
    ),
    sign(
        "quantization_differs",
        r"does not match the quantization method specified|quantization method .* conflicts",
        "quantization names another method than the checkpoint",
        "take quantization out; vLLM reads it from the checkpoint",
        "SPK402",
    ),
    sign(
        "remote_code",
        r"trust[_-]remote[_-]code|contains custom code which must be executed",
        "the model has its own Python code, which vLLM runs only on request",
        "read that code, pin its revision, add trust-remote-code",
    ),
    sign(
        "model_unknown",
        r"Transformers does not recognize this architecture|are not supported for now|has no vLLM implementation|"
        r"Model architectures .{1,300} (?:failed to be inspected|are not supported)|[Mm]odel type \S+ .*not (?:recognized|supported)|Cannot find model module",
        "this vLLM or its transformers does not have the model's architecture",
        "use an image with a newer vLLM; plan.yml names the first version",
        "SPK401",
    ),
    sign(
        "gpus_per_host",
        r"[Ww]orld size \(?\d+\)? is larger than|[Tt]ensor parallel size \(?\d+\)? (?:exceeds|cannot be larger than) (?:the number of )?available GPUs",
        "the options need more GPUs than this host has; a Spark has one",
        "list the other Sparks in cluster of the service, or set tensor-parallel-size and pipeline-parallel-size to 1",
    ),
    sign(
        "parallel_size",
        r"must be divisible by (?:the )?tensor parallel size|is not divisible by (?:the )?(?:tensor|number of|\d)|tp_size=\d+ must be divisible|"
        r"(?:[Dd]ecode context parallel|decode-context-parallel-size|dcp_world_size|DCP )|tensor parallel size \d+ must be",
        "the model cannot be split over that many GPUs",
        "set tensor-parallel-size (or decode-context-parallel-size) to a divisor of the number in the error, "
        "or to the number of Sparks",
        "SPK801",
    ),
    # --- packages
    sign(
        "audio_package",
        r"vllm\[audio\]|No module named '(?:librosa|soundfile|av|scipy)'",
        "the image lacks the audio packages",
        "install vllm[audio] into the image (pip of the recipe or service)",
        "SPK411",
    ),
    sign(
        "transformers_version",
        r"AmbiguousGlobalPerLayerAttributeError|cannot import name '\w+' from 'transformers|module 'transformers\S*' has no attribute|"
        r"'\w+Config' object has no attribute",
        "this vLLM needs another version of transformers",
        "pin transformers to the required version, or use an image with an older transformers or a newer vLLM",
    ),
    sign(
        "tokenizer_class",
        r"Tokenizer class \S+ does not exist|does not recognize .{1,40} tokenizer",
        "the tokenizer was saved by a newer transformers than the image's",
        "use an image with a newer vLLM (transformers 5), or set tokenizer to a repository of the base model",
    ),
    sign(
        "ray_version",
        r"Version mismatch: The cluster was started with",
        "the hosts run different versions of Ray or Python",
        "use the same image, by digest, on all hosts",
        "cluster.image",
    ),
    sign(
        "package_version",
        r"needs NumPy|compiled using NumPy 1|version \(\S+\) does not match|requires .{1,80} but you have|ContextualVersionConflict|VersionConflict|"
        r"ImportError: .{1,200} is required|cannot import name '\w+' from '",
        "a Python package has another version than vLLM or its packages require, for example after pip install",
        "undo the installation, or pin the package in the error (such as numpy) to the required version",
    ),
    sign(
        "binary_mismatch",
        r"undefined symbol|GLIBCXX_\S+' not found|GLIBC_\S+' not found|lib\S+\.so[.\d]*: cannot open shared object file|wrong ELF class",
        "a compiled package was built for another torch, CUDA or system library (ABI)",
        "remove your own packages, or install builds for the image's torch and CUDA",
    ),
    sign(
        "compiler_missing",
        r"Could not find nvcc|nvcc: (?:command )?not found|Failed to find C compiler|InvalidCxxCompiler|No working C\+\+ compiler|"
        r"No such file or directory: '(?:gcc|g\+\+|cc|c\+\+|nvcc|ninja)'|Ninja is required|Python\.h: No such file",
        "a library compiles kernels at the start, but the image has no compiler",
        "use an image with the CUDA toolkit and gcc (NGC's, or vllm-openai's), or with precompiled kernels",
    ),
    sign(
        "kernel_compiler",
        r"ptxas fatal|PTXASError|Unsupported gpu architecture|[Nn]inja build (?:failed|stopped)|nvcc fatal|NVRTC_ERROR|"
        r"is not a recognized processor|/ptxas'.* returned non-zero|type fp8\w+ not supported in this architecture|"
        r"sm_121\w* is not (?:defined|supported|recognized)",
        "the compiler in the image does not support sm_121, or failed on a kernel of FlashInfer, Triton or DeepGEMM",
        "use an image with CUDA 13.0 or newer; for Triton set TRITON_PTXAS_PATH to its ptxas of CUDA 13",
        "image.ptxas_old",
    ),
    sign(
        "kernel_source_missing",
        r"Failed to open: \S+\.cuh?\b|include_parser|No such file or directory: '\S+\.cuh?'",
        "DeepGEMM has no kernel source for sm_121 and this layer",
        "use another image, such as the recipe's",
    ),
    sign(
        "package_missing",
        r"No module named '(?P<module>[\w.]+)'|[Pp]lease install (?:the )?[`'\"]?(?P<package>(?!(?:a|an|it|same|with)\b)[\w.\[\]-]+)",
        "the image lacks a Python package: {module}{package}",
        "install {module}{package} into the image (pip of the recipe or service), or remove the option that needs it",
    ),
    # --- kernels
    sign(
        "sparse_indexer",
        r"Sparse Attention Indexer .*requires DeepGEMM",
        "this model's sparse attention uses DeepGEMM, which has no kernels for sm_121",
        "use the image of a recipe for the model; installing DeepGEMM does not help",
        "SPK517",
    ),
    sign(
        "deepgemm_kernel",
        r"(?i)deep_?gemm\S*.*(?:assert|unknown|error|fail|unsupported)|(?:Assertion|CUDA (?:driver|runtime)) error \(\S*(?:deep|csrc/\S*jit)",
        "DeepGEMM has no kernel for sm_121 or this layer",
        'set VLLM_USE_DEEP_GEMM to "0", and neither moe-backend nor linear-backend to deep_gemm',
        "SPKK02",
    ),
    sign(
        "cudnn_kernel",
        r"CUDNN_STATUS_(?:EXECUTION_FAILED|NOT_SUPPORTED|BAD_PARAM)|Plan index \d+ is invalid",
        "a cuDNN kernel that FlashInfer uses for FP8 layers does not run on sm_121",
        "set VLLM_DISABLED_KERNELS to FlashInferFP8ScaledMMLinearKernel, or use an image with a newer FlashInfer",
    ),
    sign(
        "no_kernel_image",
        r"no kernel image is available|kernel image is invalid|CUDA_ERROR_(?:INVALID_IMAGE|NO_BINARY_FOR_GPU)|This kernel only supports sm|"
        r"named symbol not found|invalid device function|is not compatible with the current PyTorch installation|"
        r"no compatible kernel for compute capability|flashinfer\S*:\d+: Unsupported architecture",
        "the image, or a package in it, has no kernels for sm_121",
        "use an image built for it, such as a recipe's; spark_info with probe_images lists an image's contents",
        "SPK301",
    ),
    sign(
        "cutlass_kernel",
        r"FP4 gemm Runner|Failed to run cutlass FP4|[Cc]utlass.{0,40}[fF][pP]4.{0,80}(?:Error Internal|failed|Failed)",
        "a CUTLASS kernel for FP4 fails on sm_121 in this build",
        "use CUDA 13 and vLLM 0.20.0 or newer, or set moe-backend (linear-backend) to marlin",
        "SPK301",
    ),
    sign(
        "cutlass_gemm",
        r"[Cc]utlass.{0,160}(?:Error Internal|failed|Failed)|Failed to run cutlass",
        "a CUTLASS kernel for sm_120 fails on sm_121",
        "set VLLM_DISABLED_KERNELS to the kernel in the line Selected ... (CutlassFp8BlockScaledMMKernel for "
        "block FP8), and moe-backend to marlin; or use an image built for sm_121",
        "SPK301",
    ),
    sign(
        "attention_shape",
        r"has no (?:decode|prefill) kernel for this shape|no \S+ sparse-MLA kernel|MLA decode .{0,40}specialization",
        "FlashInfer has no attention kernel for sm_121 with this number of heads and selected tokens",
        "set another tensor-parallel-size, use a recipe's image, or a newer FlashInfer",
    ),
    sign(
        "attention_backend",
        r"No valid attention backend|Selected backend \S+ is not valid|FlashAttention only supports|attention sinks|"
        r"Invalid attention backend|FLASHINFER_MLA_SPARSE\S* on SM1\d\d requires|only supports fp8 kv-cache|requires a BF16 main KV cache|"
        r"fa2 prefill misreads|unsupported kv_cache_dtype|FP8 KV cache not yet supported|head_size \d+ is not supported",
        "no attention kernel runs this model with these options (head size, KV cache type, sparse attention) on sm_121",
        "remove attention-backend and kv-cache-dtype, or set attention-backend to TRITON_ATTN; else use a newer vLLM",
        "SPK501, SPK506, SPK508, SPK517",
    ),
    sign(
        "kernel_refused",
        r"does not support the deployment configuration|kernel does not support|is not supported for (?:unquantized|NvFp4|\S+) MoE|"
        r"moe_backend='\w+' is not supported|is not supported on (?:this|current) (?:device|platform)|linear backend \S+ (?:is not|cannot)|"
        r"No (?:NvFp4|FP8|Mxfp4|Fp8|MXFP4) MoE backend|only supported on|No supported CUDA architectures found for major versions",
        "the chosen kernels do not run these weights on this GPU",
        "remove moe-backend (linear-backend) and VLLM_USE_FLASHINFER_MOE_ variables, or set it to marlin; for "
        "an unquantised draft set moe_backend in speculative-config to triton",
        "SPK503, SPK504",
    ),
    sign(
        "no_layer_kernel",
        r"Failed to find a kernel that can implement",
        "no kernel has this layer's format, group size or shape, as in home-made quantisations",
        "use a checkpoint that a recipe names, leave that layer unquantised, or use a newer image",
    ),
    sign(
        "kernel_fault",
        r"illegal memory access|device-side assert|misaligned address|illegal instruction was encountered|unspecified launch failure|cudaErrorIllegal",
        "a GPU kernel failed; the traceback may name a later place",
        "start once with enforce-eager to rule out CUDA graphs, then try another attention-backend, "
        "moe-backend or vLLM version",
    ),
    sign(
        "compile_cache",
        r"UnpicklingError|Ran out of input|compiler_interface\.py\", line \d+, in load\b|"
        r"(?:torch_compile_cache|inductor|triton/cache|flashinfer/\S*cached_ops)\S*.*(?:No such file|corrupt|Failed to load|EOFError)",
        "the compile cache cannot be read, for example after an update or an interrupted start",
        "stop the service, remove its folder below spark_cache_dir (/var/cache/dgxspark), or ~/.cache/vllm; "
        "the next start compiles",
    ),
    # --- memory
    sign(
        "free_memory",
        r"Free memory on device.* on startup is less than|Available memory on node \S+ .* is less than",
        "less memory is free than gpu-memory-utilization requires; vLLM counts page cache as used",
        "stop other programs (status.yml shows them), or lower gpu-memory-utilization; drop the page cache: "
        "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
        "memory.free_at_start",
    ),
    sign(
        "no_cache_memory",
        r"No available memory for the cache blocks",
        "weights and overheads leave nothing for the KV cache",
        "raise gpu-memory-utilization, or lower max-num-batched-tokens; plan.yml shows values that fit",
        "memory.no_cache_memory",
    ),
    sign(
        "one_request",
        # vLLM before 0.22 prints "models's".
        r"To serve at least one request with the models?'s max seq len|max seq len .* is larger than the maximum number of tokens",
        "one request of max-model-len tokens does not fit into the KV cache",
        "lower max-model-len to the value in the error, raise gpu-memory-utilization, or set kv-cache-dtype to fp8",
        "memory.one_request",
    ),
    sign(
        "auto_fit",
        r"Cannot auto-fit max_model_len",
        "not even one token fits into the KV cache",
        "raise gpu-memory-utilization",
        "memory.auto_fit",
    ),
    sign(
        "memory_moved",
        r"Error in memory profiling",
        "another program released memory while the engine measured it",
        "start engines one after another; load and stop nothing at the same time",
    ),
    sign(
        "mamba_block",
        r"In Mamba cache align mode, block_size|mamba_cache_mode.{0,40}align.{0,200}max_num_batched_tokens|long_prefill_token_threshold.*block_size",
        "a batch is smaller than one block of this hybrid model",
        "raise max-num-batched-tokens to the block size in the error, or set enable-prefix-caching to false",
        "memory.align_block",
    ),
    sign(
        "state_blocks",
        r"exceeds available Mamba cache blocks",
        "fewer blocks for recurrent state than max-num-seqs needs",
        "lower max-num-seqs to the value in the error, or raise gpu-memory-utilization",
        "memory.state_blocks",
    ),
    sign(
        "cache_layout",
        r"No common block size for|page size (?:of the layer )?is not divisible|padded-spec per-token page|"
        r"KV cache specs? to one unified type|same KV cache group must have the same window|[Hh]ybrid KV cache (?:manager|groups|layouts)|"
        r"Mamba cache mode 'align' is currently not compatible|Mamba with speculative decoding is not supported|QSA ring capacity",
        "with these options the layers cannot have KV cache blocks of one size",
        "remove block-size, kv-cache-dtype and speculative-config one by one; plan.yml tries that for you",
        "memory.plan",
    ),
    sign(
        "warm_up_memory",
        r"out of memory occurred when warming up sampler",
        "memory ran out while the sampler warmed up with max-num-seqs requests",
        "lower max-num-seqs or gpu-memory-utilization",
        "memory.node",
    ),
    sign(
        "cuda_memory",
        r"CUDA out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|CUDA [Ee]rror: out of memory|NV_ERR_NO_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|"
        r"Cuda failure \S* ?'?out of memory",
        "the GPU had no memory left",
        "stop other programs (status.yml shows them), or lower gpu-memory-utilization or max-num-batched-tokens",
        "memory.node",
    ),
    # --- the model's files
    sign(
        "vocabulary",
        r"HarmonyError|TIKTOKEN|tiktoken.*(?:download|resolve|retries)|downloading or loading vocab file",
        "the vocabulary of gpt-oss, which is downloaded at the start, is missing",
        "put o200k_base.tiktoken and cl100k_base.tiktoken into a mounted folder, and set TIKTOKEN_ENCODINGS_BASE to it",
    ),
    sign(
        "model_path",
        r"HFValidationError|Repo id must be in the form|Invalid repository ID or local directory",
        "the model's path does not exist in the container, so vLLM reads it as a hub name",
        "mount the folder (-v HOST:CONTAINER:ro) and use its path in the container",
        "model.missing",
    ),
    sign(
        "model_access",
        r"GatedRepoError|gated repo|Access to model \S+ is restricted|401 Client Error|403 Client Error|Invalid (?:username or password|credentials)",
        "the hub refuses the model: no or wrong token, or the licence is not accepted",
        "accept the licence on the model's page, and set a token that may read it (spark_hf_token_file, or HF_TOKEN)",
        "doctor.hub_token",
    ),
    sign(
        "model_not_found",
        r"RepositoryNotFoundError|RevisionNotFoundError|\bEntryNotFoundError|404 Client Error|is not a local folder and is not a valid model identifier",
        "the hub has no such model, revision or file, or it is private",
        "check the spelling; give a token for a private model",
        "model.missing",
    ),
    sign(
        "download_limited",
        r"429 Client Error|Too Many Requests",
        "the hub limits the requests of this address",
        "give a token, and set HF_HUB_OFFLINE=1 once the model is on the disk",
    ),
    sign(
        "offline_cache",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|outgoing traffic has been disabled|offline mode is enabled",
        "downloads are disabled, and the container's cache lacks the model or a part of it",
        "mount the cache at /root/.cache/huggingface, or download the model first; HF_HUB_OFFLINE=0 allows downloads",
        "model.missing",
    ),
    sign(
        "hub_xet",
        r"CAS service error|xethub|hf_xet|Xet (?:download|runtime)",
        "a download by Xet, the hub's storage, failed",
        "run again, it resumes; behind a proxy allow *.xethub.hf.co, or set HF_HUB_DISABLE_XET=1",
    ),
    sign(
        "no_network",
        r"We couldn't connect to|Name or service not known|Temporary failure in name resolution|NameResolutionError|Network is unreachable|"
        r"Max retries exceeded with url|getaddrinfo failed|huggingface\.co.*(?:timed out|refused)|dial tcp: |server misbehaving|no such host|"
        r"TLS handshake timeout|"
        r"ReadTimeout|ConnectTimeout|IncompleteRead|ChunkedEncodingError",
        "the hub or registry cannot be reached, or the connection broke",
        "check network, name server and proxy of host and container; or copy the model and set HF_HUB_OFFLINE=1",
    ),
    sign(
        "weights_damaged",
        r"SafetensorError|HeaderTooLarge|InvalidHeaderDeserialization|incomplete metadata|file not fully covered|Consistency check failed|"
        r"invalid load key|version https://git-lfs",
        "a file of the weights is damaged or incomplete",
        "remove it and download the model again; site.yml checks sizes and checksums",
    ),
    sign(
        "json_damaged",
        r"Expecting value: line \d+ column \d+|JSONDecodeError|Extra data: line \d+",
        "a JSON file of the model is empty or invalid, for example after an interrupted download or a Git LFS clone",
        "find it by its size (ls -lL), remove it and download the model again",
    ),
    sign(
        "no_model",
        r"No model architectures are specified|Should have a `model_type` key|Unrecognized model in ",
        "not a Hugging Face model: config.json is missing or names no architecture",
        "use the folder with config.json; adapters need lora-modules of their base model, Mistral's own files "
        "config-format, load-format and tokenizer-mode mistral, a GGUF file its base model's repository as "
        "tokenizer",
    ),
    sign(
        "weights_missing",
        r"Cannot find any model weights|does not appear to have a file named|no safetensors|No (?:such )?.*config\.json|Can't load tokenizer|"
        r"Couldn't instantiate the backend tokenizer|FileNotFoundError.*\.(?:safetensors|json|model)\b",
        "files of the weights, the config or the tokenizer are missing",
        "download the whole model again; for a tokenizer of another repository set tokenizer",
    ),
    sign(
        "drafter_kind",
        r"ships a DSpark drafter|mtp_block\.(?:main_norm|main_proj|markov_head)",
        "the drafter in this checkpoint is DSpark, which method mtp cannot load",
        "set method to dspark in speculative-config, with num_speculative_tokens of at least its dspark_block_size",
        "SPK618",
    ),
    sign(
        "weights_unmapped",
        r"KeyError: '[\w.]*(?:weight|scale|bias|experts|proj|layers)[\w.]*'|There is no module or parameter named|"
        r"Following weights were not initialized|size mismatch for|Attempted to load weight|shape mismatch|"
        r"Tried to load weights of size|loaded_weight\.shape|Unexpected key",
        "the checkpoint has tensors that this vLLM does not know, or lacks some",
        "use a newer vLLM, or a checkpoint that a recipe names for this version",
    ),
    sign(
        "file_permission",
        r"PermissionError: |\[Errno 13\] Permission denied",
        "the engine may not read or write a file of its caches or models",
        "make the container's account the owner of the folder in the error, or mount another one",
    ),
    # --- several hosts
    sign(
        "rdma_memory",
        r"ibv_reg_mr\S*",
        "NCCL could not register memory with the ConnectX-7",
        "set --ulimit memlock=-1; a kernel 7.0 needs kho=off on its command line",
        "host.kernel_handover",
    ),
    sign(
        "rdma_gid",
        r"ibv_modify_qp failed with (?:61|22)\b",
        "NCCL's GID index no longer exists, as after a change of addresses",
        "remove NCCL_IB_GID_INDEX, or set it to the RoCE v2 index of the address (show_gids)",
        "fabric.no_gid",
    ),
    sign(
        "rdma_path",
        r"ibv_modify_qp failed with \d+|IBV_WC_RETRY_EXC_ERR|Got completion from peer .* with (?:status|error) 12|local WC.* error 12",
        "RDMA packets do not reach the other host",
        "check cable and port, addresses, MTU 9000 on both ends, and ufw on both interfaces of a port; "
        "fabric_check measures it",
        "fabric.ping",
    ),
    sign(
        "gpu_twice",
        r"Duplicate GPU detected",
        "two ranks use one GPU; a Spark has one",
        "set tensor-parallel-size x pipeline-parallel-size to the number of Sparks, and start one container "
        "per host with --nnodes and its own --node-rank",
        "SPK801",
    ),
    sign(
        "nccl_interface",
        r"no socket interface found|NET/IB : No device found|IB device \S+ not found|Unable to find (?:address|interface)|"
        r"Bootstrap : (?:no|invalid)",
        "this host has no such network interface or RDMA device",
        "set NCCL_SOCKET_IFNAME and NCCL_IB_HCA to this host's names, and give the container /dev/infiniband "
        "and the host's network",
        "fabric.no_connectx",
    ),
    sign(
        "nccl_version",
        r"NCCL version mismatch|[Mm]ismatched NCCL|message truncated",
        "the ranks run different versions of NCCL",
        "use the same image on all hosts",
        "cluster.image",
    ),
    sign(
        "nccl_timeout",
        r"Watchdog caught collective operation timeout|collective operation timeout",
        "a rank waited until NCCL's timeout: another rank ended or hangs",
        "read the other ranks' logs; if all are alive, use NCCL 2.29.3 or newer, since older arm64 builds hang",
        "SPK827",
    ),
    sign(
        "head_unreachable",
        r"client socket has (?:failed to connect|timed out)|DistStoreError|Gloo connectFullMesh failed|failed to connect to \[?\S+:2950\d",
        "this rank does not reach the head node",
        "check master-addr, master-port, the head's engine, and the firewall between the hosts (port 29501)",
        "cluster.unreached",
    ),
    sign(
        "ray_resources",
        r"No available node types can fulfill|Current node has no GPU available|[Pp]lacement group .*(?:timed out|cannot be|infeasible)|"
        r"Cannot provide a placement group|GPUs exceeds the total number of available GPUs|waiting for .* placement group",
        "Ray lacks GPUs: a node joined with another address, or another engine uses its GPU",
        "start Ray on each node with --node-ip-address (VLLM_HOST_IP) of the engine's address, and stop other "
        "programs in Ray",
    ),
    sign(
        "ray_connect",
        r"Failed to connect to GCS|Could not find any running Ray instance|Failed to connect to Ray|GCS may have been killed|ray\.exceptions\.RaySystemError",
        "the head of Ray does not answer",
        "start Ray on the head node first; open its port (6379) to the other nodes",
    ),
    sign(
        "host_memory",
        r"\[Errno 12\]|Cannot allocate memory|std::bad_alloc|^MemoryError|DefaultCPUAllocator: (?:can't|not enough)",
        "the host had no memory left outside the GPU's share",
        "stop other programs, lower gpu-memory-utilization, or shrink buffers in plan.yml's memory map",
        "memory.node",
    ),
    # --- requests
    sign(
        "tool_choice",
        r"tool choice requires --enable-auto-tool-choice",
        "a client sends tools, but the engine has no options for them: HTTP 400",
        "add --enable-auto-tool-choice and the model's --tool-call-parser (in args without dashes)",
        "SPK706",
    ),
    sign(
        "request_too_long",
        r"maximum context length is \d+|is longer than the maximum model length",
        "a request is longer than max-model-len",
        "shorten the request or its max_tokens, or raise max-model-len",
    ),
    sign(
        "model_name",
        r"The model `[^`]*` does not exist",
        "a client asks for a model that this engine does not serve",
        "use a name from /v1/models, or add it to served-model-name (aliases of the service)",
    ),
    sign(
        "local_media",
        r"allowed[-_]local[-_]media[-_]path",
        "a request names a picture or video by a path of the host",
        "set allowed-local-media-path in args and mount the folder by docker_args, or send URLs or data",
    ),
    sign(
        "chat_template_file",
        r"chat template .*(?:appears path-like, but doesn't exist|does not exist)",
        "the container has no file of that name for chat-template",
        "put the file into files of the service, and set chat-template to its path in the container",
    ),
    sign(
        "chat_template",
        r"jinja2\.exceptions\.|Error in applying chat template|chat template .*(?:failed|invalid)|no chat template",
        "the chat template failed for a request; it may not know tools or roles",
        "mount a corrected template by files, with chat-template in args",
    ),
    # --- generic errors, which name no cause
    sign(
        "engine_timeout",
        r"RPC call to \w+ timed out|sample_tokens.*timed out|execute_model timed out|RayChannelTimeoutError|TimeoutError: .*RPC",
        "the engine did not answer its API server in time: a rank or kernel hangs, or a host swaps",
        "read the logs of all ranks, free -g and journalctl -k -b on each host; the watchdog restarts a hanging engine",
        generic=True,
    ),
    sign(
        "nccl_error",
        r"NCCL error|DistBackendError|ncclSystemError|ncclInternalError|ncclRemoteError|unhandled system error",
        "communication between the ranks failed without a reason",
        "start once with NCCL_DEBUG=INFO, and read the lines with NCCL WARN on all hosts",
        generic=True,
    ),
    sign(
        "docker_other",
        r"Error response from daemon|^docker: ",
        "Docker refused to start the container",
        "correct what Docker names",
        stage=CONTAINER,
        generic=True,
    ),
    sign(
        "ranks_wait",
        r"No available shared memory broadcast block found",
        "the ranks wait for each other: normal for minutes while one loads, compiles or autotunes; else one hangs",
        "compare GPU load and logs of all ranks; a rank at 20 W with NCCL older than 2.29.3 (arm64 builds) is "
        "a known hang",
        "SPK827",
        waits=True,
    ),
)
