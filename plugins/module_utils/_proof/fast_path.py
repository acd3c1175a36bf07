# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the kernels, graphs and drafts of a running engine with the expected fast path.

vLLM falls back silently: an option that does not apply, a missing package or a draft that is never accepted costs only speed.
Its start-up lines name the choices, and /metrics the accepted drafts. This module parses both and compares them with the
expected path (C(expected_path.py), on the controller).

The patterns match the texts of vLLM 0.17.1, 0.19.0, 0.20.2, 0.23.0, 0.27.1, 0.30.0, 0.32.0 and 0.33.0, read from the packages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .._common.findings import Finding
from .._runtime import metrics

GUIDE = "guide to vLLM on DGX Spark, June 2026"
PACKAGES = "vLLM's code"

NOT_SAID = "its start-up lines do not say it"
ON_CPU = "this engine runs on a CPU"

KERNELS = {"attention_backend": "attention", "moe_backend": "experts (MoE)", "linear_kernel": "linear layers"}
"""Keys of C(expect) in a recipe that name kernels, and what people call these."""
EXPECTED = (*KERNELS, "min_acceptance")
FEW_DRAFTED = 20
"""Fewer drafted tokens than this say nothing of how many are accepted."""
MANY_DRAFTED = 200
USELESS_ACCEPTANCE = 0.05
"""Share of accepted tokens below which a draft costs more than it brings."""

# Names of kernels ----------------------------------------------------------------------------------------------------

_PART = re.compile(
    r"flash_?infer|cutlass|trt_?llm|cudnn|cute_?dsl|b12x|deep_?gemm|marlin|triton|torch|emulation|machete|exllama|conch"
    r"|fbgemm|humming|allspark|aiter"
)


def kernel(name: str) -> str:
    """Return a uniform name of kernels, which vLLM writes in several ways.

    C(NvFp4LinearBackend.FLASHINFER_CUTLASS) (to 0.19), C(FlashInferCutlassNvFp4LinearKernel), C(flashinfer-cutlass) and
    C(FlashInfer CUTLASS) are all C(flashinfer_cutlass); C(VLLM_CUTLASS) is C(cutlass). A kernel for 16-bit activations
    keeps a suffix, since its backend may also have one for 4-bit activations: C(FlashInferCuteDslNvFp4W4A16LinearKernel) is C(flashinfer_cutedsl_w4a16).
    """
    parts = [part.replace("_", "") for part in _PART.findall(name.rpartition(".")[2].lower().replace("-", "_"))]
    plain = {"deepgemm": "deep_gemm"}
    backend = "_".join(dict.fromkeys(plain.get(part, part) for part in parts))
    if backend and "w4a16" in name.lower():
        return f"{backend}{W4A16}"
    return backend or name.strip().lower().replace("-", "_").replace(" ", "_")


W4A16 = "_w4a16"
_WEIGHT_ONLY = re.compile(r"(?i)w4a16|marlin|humming|mxfp4_bf16")
"""Kernels for FP4 weights that compute in 16 bits (init_nvfp4_linear_kernel and the oracles of fused_moe, 0.33.0)."""


def is_weight_only(name: str) -> bool:
    """Whether a kernel for FP4 weights unpacks them and computes in 16 bits."""
    return _WEIGHT_ONLY.search(name) is not None


def attention(name: str) -> str:
    """Return the name of an attention backend as vLLM's registry has it."""
    return name.rpartition(".")[2].strip().upper().replace("-", "_")


# The start-up lines --------------------------------------------------------------------------------------------------

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ELSEWHERE = re.compile(r"\([A-Za-z][\w.:-]* pid=\d+, ip=")  # Ray brings lines of other hosts
_CONFIG = re.compile(r"Initializing a V1 LLM engine \(v(?P<version>\d[\w.+-]*)\) with config: (?P<config>.*)")
_ATTENTION = (
    re.compile(r"Using (?P<name>\w+) attention backend out of potential backends"),  # chosen by itself, all versions
    re.compile(r"Using AttentionBackendEnum\.(?P<name>\w+) backend\."),  # asked for, all versions
)
_MOE = (
    re.compile(r"Using '?(?P<name>[\w ]+?)'? (?P<format>NvFp4|Fp8|Int8|Unquantized|W4A8 Int8) MoE backend out of"),
    re.compile(r"Using '(?P<name>[\w ]+)' (?P<format>Mxfp4|MxFp8|WNA16) MoE backend"),  # from 0.19, WNA16 from 0.20
    re.compile(r"Using (?P<name>[\w ]+?) backend for (?P<format>Unquantized) MoE"),  # to 0.19
)
_LINEAR = (
    re.compile(r"Using (?P<name>[\w.]+)(?: backend)? for (?P<format>NVFP4|MXFP4|MXFP6|MXFP8) GEMM"),
    re.compile(r"(?:Using|Selected) (?P<name>\w+Kernel) for (?P<format>\w+)"),
)
_GDN = re.compile(r"Using (?P<name>[\w/-]+) GDN prefill kernel")
_ASYNC = re.compile(r"Asynchronous scheduling is (enabled|disabled)\.")  # to 0.26; later only why it is not
_NO_ASYNC = re.compile(r"(Async scheduling (?:will be disabled because|is disabled because|not supported with) .*)")
_GRAPH_MODE = re.compile(
    r"setting cudagraph_mode=(?P<set>[A-Z_]+)\b"
    r"|(?i:cuda ?graph).*?Overriding (?:cudagraph_mode .*?)?to (?:CUDAGraphMode\.)?(?P<mode>[A-Z_]+)\b"
)
_GRAPHS_DONE = re.compile(r"Graph capturing finished in")
_CPU = re.compile(r"\[cpu_(?:worker|model_runner)\.py:")  # ranks behind the first one write no configuration
_EAGER = re.compile(r"Cudagraph is disabled under eager mode|Enforce eager set, disabling torch\.compile")
_BATCH = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_GIVEN = re.compile(r"non-default args: \{")
_GIVEN_BATCH = re.compile(r"'max_num_batched_tokens': (\d+)")
# While it reads its arguments vLLM sets the default up once with its log turned off, and says nothing twice (read from 0.22.1 on).
SILENT_BATCH, _SILENT_SINCE = 2048, (0, 22)
_SLOW = {
    "emulation": re.compile(
        r"NVFP4 linear falling back to the slow and unoptimized|Using \w*Emulation\w*Experts M[oO]E backend|"
        r"Using Emulation\w+ for "
    ),
    "fp4_weight_only": re.compile(r"does not have native support for FP4 computation"),
    "gdn_prefill": re.compile(r"GDN prefill kernel warmup \(T=\d+\) failed"),
    "untuned_moe": re.compile(r"Using default MoE config\. Performance might be sub-optimal"),
    "untuned_fp8": re.compile(r"Using default W8A8 Block FP8 kernel config\. Performance might be sub-optimal"),
}


@dataclass
class Running:
    """The choices that an engine prints; C(None) and empty for missing ones.

    moe, linear: C({name, format}) in the order of the lines, one each. weight_only: kernels for FP4 weights that compute in 16 bits, by the
    key of C(KERNELS), as the engine writes them. slow: keys of C(_SLOW).
    """

    version: str | None = None
    device: str | None = None
    attention: list[str] = field(default_factory=list)
    moe: list[dict[str, str]] = field(default_factory=list)
    linear: list[dict[str, str]] = field(default_factory=list)
    gdn: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    graphs: str | None = None
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    async_reason: str = ""
    max_num_batched_tokens: int | None = None
    draft_method: str | None = None
    draft_tokens: int | None = None
    weight_only: dict[str, str] = field(default_factory=dict)
    slow: list[str] = field(default_factory=list)


def parse_log(lines: Sequence[str]) -> Running:
    """Read the start-up lines of one engine; lines of other kinds and of other hosts are skipped."""
    running = Running()
    captured = given = False
    for coloured in lines:
        line = _COLOUR.sub("", coloured)
        if _ELSEWHERE.search(line):
            continue
        match = _CONFIG.search(line)
        if match:
            running.version = match["version"]
            _read_config(running, match["config"])
            continue
        _read_kernels(running, line)
        _read_scheduling(running, line)
        given = given or bool(_GIVEN.search(line))
        if _CPU.search(line):
            running.device = "cpu"
        captured = captured or bool(_GRAPHS_DONE.search(line))
    if captured and running.graphs in (None, "NONE"):
        running.graphs = "captured"
    # The batch is printed between the arguments and the configuration; if both are printed without it, it is the default.
    parts = re.match(r"(\d+)\.(\d+)", running.version or "")
    is_silent = parts is not None and (int(parts[1]), int(parts[2])) >= _SILENT_SINCE
    if given and is_silent and running.max_num_batched_tokens is None and running.chunked_prefill:
        running.max_num_batched_tokens = SILENT_BATCH
    return running


_FORMATS = ("nvfp4", "mxfp4", "mxfp8", "fp8", "w4a8", "int8", "wna16", "gptq", "awq")


def _format(name: str) -> str:
    """Return the format of weights in a name, which may be a class: C(ModelOptFp8LinearMethod) is C(fp8)."""
    lower = name.lower()
    return next((known for known in _FORMATS if known in lower), lower.removesuffix("linearmethod"))


def _read_kernels(running: Running, line: str) -> None:
    """Read the kernels of attention, experts and linear layers."""
    for pattern in _ATTENTION:
        match = pattern.search(line)
        if match and attention(match["name"]) not in running.attention:
            running.attention.append(attention(match["name"]))
    for patterns, kernels in ((_MOE, running.moe), (_LINEAR, running.linear)):
        match = next((match for pattern in patterns if (match := pattern.search(line))), None)
        if match:
            weights = _format(match["format"]) if kernels is running.linear else match["format"].lower()
            entry = {"name": kernel(match["name"]), "format": weights}
            if entry not in kernels:
                kernels.append(entry)
            if entry["format"] in ("nvfp4", "mxfp4") and is_weight_only(match["name"]):
                key = "linear_kernel" if kernels is running.linear else "moe_backend"
                running.weight_only.setdefault(key, match["name"].rpartition(".")[2])
            break
    match = _GDN.search(line)
    if match:
        running.gdn = match["name"]


def _read_scheduling(running: Running, line: str) -> None:
    """Read whether scheduling is asynchronous, the most tokens of a step, the mode of CUDA graphs, and the signs of slow paths."""
    match = _ASYNC.search(line)
    if match:
        running.async_scheduling = match[1] == "enabled"
    match = _NO_ASYNC.search(line)
    if match:
        running.async_scheduling, running.async_reason = False, match[1].strip()
    match = _BATCH.search(line) or (_GIVEN.search(line) and _GIVEN_BATCH.search(line))
    if match:
        running.max_num_batched_tokens = int(match[1])
    running.slow += [name for name, pattern in _SLOW.items() if name not in running.slow and pattern.search(line)]
    match = _GRAPH_MODE.search(line)
    if match:
        running.graphs = match["mode"] or match["set"]
    if _EAGER.search(line):
        running.graphs = "NONE"


def _read_config(running: Running, config: str) -> None:
    """Read the line with the whole configuration of an engine."""

    def word(pattern: str) -> str | None:
        match = re.search(pattern, config)
        return match[1] if match else None

    def truth(name: str) -> bool | None:
        return {"True": True, "False": False}.get(word(rf"\b{name}=(\w+)") or "")

    running.device = word(r"\bdevice_config=(\w+)")
    quantization = word(r"\bquantization=([\w-]+)")
    running.quantization = None if quantization == "None" else quantization
    running.kv_cache_dtype = word(r"\bkv_cache_dtype=([\w-]+)")
    running.prefix_caching = truth("enable_prefix_caching")
    running.chunked_prefill = truth("enable_chunked_prefill")
    running.graphs = "NONE" if truth("enforce_eager") else word(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)")
    drafts = word(r"\bspeculative_config=(None|SpeculativeConfig\(.*?\))")
    if drafts == "None":
        running.draft_method = "none"
    elif drafts:
        running.draft_method = (re.search(r"method='([^']*)'", drafts) or ["", None])[1]
        tokens = re.search(r"num_spec_tokens=(\d+)", drafts)
        running.draft_tokens = int(tokens[1]) if tokens else None


# /metrics ------------------------------------------------------------------------------------------------------------

_COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "drafted": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
    "prefix_queries": "vllm:prefix_cache_queries",
    "prefix_hits": "vllm:prefix_cache_hits",
}


@dataclass
class Counted:
    """What /metrics says since the engine's start. acceptance: accepted of drafted tokens. accepted_length: tokens a step, with the model's own."""

    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    acceptance: float | None = None
    accepted_length: float | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    prefix_caching: bool | None = None
    kv_cache_tokens: int | None = None


def parse_metrics(text: str) -> Counted:
    """Read the exposition format; counters of several engines are added up."""
    sums: dict[str, float] = {}
    info: dict[str, str] = {}
    for name, samples in metrics.labelled(text, "vllm:").items():
        if name == "vllm:cache_config_info":
            info = samples[-1][0]
        short = name.removesuffix("_total")
        sums[short] = sums.get(short, 0.0) + sum(value for _labels, value in samples)
    counted = Counted()
    for key, name in _COUNTERS.items():
        if name in sums:
            setattr(counted, key, int(sums[name]))
    if counted.drafted:
        counted.acceptance = round((counted.accepted or 0) / counted.drafted, 3)
    if counted.drafts:
        counted.accepted_length = round(1 + (counted.accepted or 0) / counted.drafts, 2)
    counted.prefix_caching = {"True": True, "False": False}.get(info.get("enable_prefix_caching", ""))
    tokens = info.get("kv_cache_size_tokens", "")
    counted.kv_cache_tokens = int(tokens) if tokens.isdigit() else None
    return counted


# The comparison ------------------------------------------------------------------------------------------------------


@dataclass
class Check:
    """An expected choice and the actual one.

    verdict: C(ok), C(off), C(not_asked) (nothing was expected, C(found) is only recorded) or C(unknown) with C(reason).
    """

    expected: Any = None
    found: Any = None
    verdict: str = "unknown"
    reason: str = ""


def compare(
    service: str, expected: Mapping[str, Any], runs: Running, counted: Counted, rank: int = 0
) -> tuple[dict[str, Check], list[Finding]]:
    """Compare the choices of an engine with the expected ones.

    :param expected: C(fast_path) of the service in the plan
    :param rank: of the service on this host; only rank 0 counts
    """
    comparison = _Comparison(service, expected, runs, counted)
    comparison.kernels()
    comparison.graphs()
    comparison.settings()
    comparison.draft()
    comparison.acceptance(rank)
    comparison.slow_paths()
    return comparison.checks, comparison.findings


class _Comparison:
    """The checks of one engine by name, and the findings about it; a method for each subject."""

    def __init__(self, service: str, expected: Mapping[str, Any], runs: Running, counted: Counted) -> None:
        self.service, self.expected, self.runs, self.counted = service, expected, runs, counted
        self.checks: dict[str, Check] = {}
        self.findings: list[Finding] = []
        self.on_cpu = runs.device == "cpu"

    def off(self, name: str, message: str, fix: str, severity: str = "warning", source: str = PACKAGES) -> None:
        """Add a finding. name: its id without C(fast_path.)."""
        rule = f"fast_path.{name}"
        self.findings.append(Finding(rule, severity, message, fix, self.service, source=source, basis="measured"))

    def kernels(self) -> None:
        """Compare the kernels of attention, experts and linear layers."""
        for key, kind in KERNELS.items():
            planned = self.expected.get(key) or {}
            names = _names(key, self.runs, str(planned.get("format") or ""))
            check = self.checks[key] = Check(planned.get("any_of"), names or None)
            if self.on_cpu or not names:
                check.reason = ON_CPU if self.on_cpu else NOT_SAID
            elif not check.expected:
                check.verdict = "not_asked"
            else:
                # An option names a backend; its kernel for 16-bit activations has another name.
                backends = {name.removesuffix(W4A16) for name in names}
                check.verdict = "ok" if set(check.expected) & {*names, *backends} else "off"
            if check.verdict == "off":
                message = (
                    f"{self.service} runs its {kind} on {_or(names)}, not on {_or(check.expected)}; {planned['why']}."
                )
                self.off(
                    key, message, _kernel_fix(key, planned, names), "error" if planned.get("required") else "warning"
                )

    def graphs(self) -> None:
        """Compare whether CUDA graphs are used."""
        is_eager, graphs = self.expected.get("eager"), self.runs.graphs
        check = self.checks["cuda_graphs"] = Check("NONE" if is_eager else "graphs", graphs)
        if self.on_cpu or graphs is None:
            check.reason = ON_CPU if self.on_cpu else NOT_SAID
            return
        check.verdict = "ok" if is_eager or graphs != "NONE" else "off"
        if check.verdict == "off":
            self.off(
                "cuda_graphs",
                f"{self.service} runs without CUDA graphs, though nothing asks for that: every token is slower.",
                "Look for cudagraph_mode=NONE and its reason in the start-up lines; it is usually an attention backend without graphs. Remove "
                "attention-backend, or set a cudagraph_mode in compilation-config that it supports.",
                source=GUIDE,
            )

    def settings(self) -> None:
        """Compare switches and single figures."""
        runs, counted = self.runs, self.counted
        actual_values: dict[str, Any] = {
            "prefix_caching": runs.prefix_caching if counted.prefix_caching is None else counted.prefix_caching,
            **{name: getattr(runs, name) for name in ("async_scheduling", "max_num_batched_tokens", "kv_cache_dtype")},
        }
        for name, actual in actual_values.items():
            planned = self.expected.get(name)
            check = self.checks[name] = Check(planned, actual)
            if actual is None:
                check.reason = NOT_SAID
            elif planned is None:
                check.verdict = "not_asked"
            else:
                check.verdict = "ok" if _same(planned, actual) else "off"
            if check.verdict == "off":
                reason = f" ({runs.async_reason})" if name == "async_scheduling" and runs.async_reason else ""
                option, fix = _SETTINGS[name]
                words = f"{_word(actual)}, not {_word(planned)}"
                self.off(name, f"{option} of {self.service} is {words} as asked for{reason}.", fix)

    @property
    def drafter(self) -> str:
        """The planned method of speculative decoding, C(some) for an unknown one, empty without."""
        draft = self.expected.get("draft") or {}
        return str(draft.get("method") or "") or ("some" if draft else "")

    def draft(self) -> None:
        """Compare the method of speculative decoding."""
        planned, method = self.drafter, self.runs.draft_method
        check = self.checks["draft"] = Check(planned or "none", method)
        if method is None:
            check.reason = NOT_SAID
        elif not planned:
            check.verdict = "not_asked"
        elif method == "none":
            check.verdict = "off"
            message = f"{self.service} drafts nothing, though speculative-config asks for {planned}."
            self.off("draft", message, "See that the option is in the running command; run site.yml if it is not.")
        elif planned == "mtp" and method == "draft_model":
            check.verdict = "off"
            message = (
                f"{self.service} runs its MTP drafter as an ordinary draft model: this vLLM does not know that drafter."
            )
            self.off("draft", message, "Use a vLLM that knows it (Gemma 4: 0.21.0 or newer).", source=GUIDE)
        else:
            check.verdict = "ok"  # vLLM renames methods, as mtp to qwen3_5_mtp

    def acceptance(self, rank: int) -> None:
        """Compare the share of accepted drafted tokens with the recipe's, or with the share below which drafting is useless."""
        floor, planned, counted = self.expected.get("min_acceptance") or {}, self.drafter, self.counted
        share, drafted = counted.acceptance or 0.0, counted.drafted or 0
        check = self.checks["acceptance"] = Check(floor.get("share"), counted.acceptance)
        if not planned:
            check.verdict, check.expected = "not_asked", None
        elif rank:
            check.reason = "only the first rank counts drafts"
        elif counted.acceptance is None or drafted < FEW_DRAFTED:
            check.reason = f"{drafted} drafted tokens are too few to judge"
        elif floor:
            check.verdict = "off" if share < floor["share"] else "ok"
            if check.verdict == "off":
                self.low_acceptance(floor, share, drafted)
        elif drafted >= MANY_DRAFTED and share < USELESS_ACCEPTANCE:
            check.verdict = "off"
            self.off(
                "acceptance",
                f"{share:.1%} of {drafted} drafted tokens of {self.service} were accepted: drafting costs more than it brings.",
                "Take speculative-config out, or use a drafter that was trained for this model; ngram helps only where the "
                "output repeats the input.",
                "info" if planned in ("ngram", "ngram_gpu", "suffix") else "warning",
                GUIDE,
            )
        else:
            check.verdict = "not_asked"

    def low_acceptance(self, floor: Mapping[str, Any], share: float, drafted: int) -> None:
        """Report a share of accepted tokens below the recipe's."""
        self.off(
            "acceptance",
            f"{share:.0%} of the drafted tokens of {self.service} are accepted ({self.counted.accepted_length:g} tokens "
            f"a step, {drafted} drafted); {floor['share']:.0%} are expected; {floor['why']}.",
            "See that drafter and model belong together (same release, same quantisation family) and that "
            "num_speculative_tokens is not too high; text that is hard to guess accepts less.",
            "error" if floor.get("required") else "warning",
            GUIDE,
        )

    def slow_paths(self) -> None:
        """Report the slow paths that no other check has reported."""
        service, runs = self.service, self.runs
        reported = {key for key in KERNELS if self.checks[key].verdict == "off"}
        weight_only = _unasked_weight_only(self.expected, runs, reported)
        if "emulation" in runs.slow:
            self.off(
                "emulation",
                f"{service} computes with emulated kernels: right, and far slower than any other.",
                "Look for the reasons in the same line of its start-up lines; use an image with FlashInfer or Marlin kernels for "
                "sm_121 (CUDA 13).",
            )
        if weight_only and not self.on_cpu:
            self.off(
                "fp4_weight_only",
                f"{service} runs its {weight_only} with weight-only FP4: weights are unpacked and computed in 16 bits, so prompts are read "
                "slower than with FP4 kernels.",
                "Nothing, if the checkpoint has 16-bit activations (W4A16), or if you want this: set moe-backend or linear-backend to marlin. Else "
                "use an image with CUDA 13 and vLLM 0.20.0 or newer, whose FP4 kernels load on sm_121, and look in the start-up lines for the reason "
                "why FlashInfer's kernel was not chosen.",
            )
        if "gdn_prefill" in runs.slow:
            self.off(
                "gdn_prefill",
                f"The kernel of {service} that reads prompts in Gated DeltaNet layers ({runs.gdn or 'not named'}) failed when vLLM tried it: "
                "the first request may end the engine, though its start passes.",
                "Look for the reason below that line of its start-up lines; FlashInfer may be missing or unusable in this image. Set "
                "gdn-prefill-backend to triton, or use an image that has FlashInfer.",
            )
        for name, label, fix in (
            ("untuned_moe", "experts", "tune them with vLLM's benchmark_moe.py --tune"),
            ("untuned_fp8", "FP8 block kernels", "tune them with vLLM's benchmark_w8a8_block_fp8.py"),
        ):
            if name in runs.slow and not self.on_cpu:
                message = f"vLLM has no tuned configuration of the Triton {label} of {service} for GB10 and takes its default."
                fix = f"It works. For more speed {fix} and name the folder in VLLM_TUNED_CONFIG_FOLDER (experts)."
                self.off(name, message, fix, "info")


_SETTINGS = {
    "prefix_caching": (
        "prefix caching",
        "A repeated prompt is read anew every time. See that the option is in the running command, and whether its start-up lines say why it was "
        "taken back.",
    ),
    "async_scheduling": (
        "async scheduling",
        "Use a method of drafting and an executor that go with it, or take async-scheduling out.",
    ),
    "max_num_batched_tokens": (
        "max-num-batched-tokens",
        "Long prompts are read in other pieces than was meant, and the memory plan is another. Run site.yml: the unit may run from older files.",
    ),
    "kv_cache_dtype": (
        "kv-cache-dtype",
        "The KV cache has another number of tokens than planned. Run site.yml: the unit may run from older files.",
    ),
}
"""Words and fix of each setting."""


def _unasked_weight_only(expected: Mapping[str, Any], runs: Running, reported: set[str]) -> str:
    """Return the kernels that compute FP4 weights in 16 bits without being configured, in words.

    Empty without any, and for checkpoints with 16-bit activations. reported: kinds of kernels with a finding.
    """
    if expected.get("fp4_weight_only"):
        return ""
    intended = {key for key in KERNELS if any(map(is_weight_only, (expected.get(key) or {}).get("any_of") or []))}
    kernels = {key: name for key, name in runs.weight_only.items() if key not in intended and key not in reported}
    if kernels:
        return " and ".join(f"{KERNELS[key]} ({name})" for key, name in sorted(kernels.items()))
    # Marlin's own warning, of an engine whose lines name no kernel.
    named = runs.weight_only or intended or reported
    return "layers (Marlin)" if "fp4_weight_only" in runs.slow and not named else ""


def _names(key: str, runs: Running, wanted_format: str) -> list[str]:
    """Return the kernels of one kind that run, limited to one format of weights if it is known."""
    if key == "attention_backend":
        return list(runs.attention)
    entries = runs.moe if key == "moe_backend" else runs.linear
    of_format = [entry for entry in entries if not wanted_format or entry["format"] == wanted_format]
    if key == "linear_kernel" and not wanted_format:  # only the quantised layers of the checkpoint count
        of_format = [entry for entry in entries if entry["format"] == "nvfp4"] or entries
    return list(dict.fromkeys(entry["name"] for entry in of_format))


def _or(names: Sequence[str]) -> str:
    return " or ".join(names)


def _kernel_fix(key: str, expected: Mapping[str, Any], names: Sequence[str]) -> str:
    option = expected.get("option")
    if option:
        return (
            f"See that the option is in the running command (docker inspect), and run site.yml if it is not; take {option} "
            "out if vLLM overrules it for this model on purpose."
        )
    option = "linear-backend" if key == "linear_kernel" else key.replace("_", "-")
    needs_flashinfer = any("flashinfer" in name.lower() for name in expected["any_of"])
    missing = "FlashInfer may be unusable in this image: from vLLM 0.26.0 it needs flashinfer-cubin or nvcc. "
    return (
        f"{missing if needs_flashinfer else ''}Look for why in the start-up lines of the container; set {option} to {expected['any_of'][0]} to get it "
        f"or a clear error, or to {names[0]} if you want that."
    )


def _same(planned: Any, actual: Any) -> bool:
    if isinstance(actual, bool):
        return bool(planned) is actual
    if isinstance(actual, int):
        return isinstance(planned, int) and actual >= planned  # vLLM raises a batch that an image would not fit into
    return str(actual).startswith(str(planned))  # fp8 may be fp8_e4m3, or fp8_ds_mla


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def summary(checks: Mapping[str, Check]) -> str:
    """Return the verdict for tables: C(ok), C(N off), or C(-) if nothing could be judged."""
    verdicts = [check.verdict for check in checks.values()]
    if "off" in verdicts:
        return f"{verdicts.count('off')} off"
    return "ok" if "ok" in verdicts else "-"


def record(checks: Mapping[str, Check], runs: Running, counted: Counted, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the part of a receipt about the fast path: C({summary, checks, acceptance, accepted_length, slow, findings})."""
    return {
        "summary": summary(checks),
        "checks": {name: asdict(check) for name, check in checks.items()},
        "acceptance": counted.acceptance,
        "accepted_length": counted.accepted_length,
        "slow": list(runs.slow),
        "findings": [finding.rule for finding in findings],
    }
