# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about speculative decoding (6xx), parsers and tools (7xx)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .rulebook import DUO, GUIDE, PACKAGES, PARSER, SELECTION, Change, Hits, Launch, error, info, warning

# 6xx: speculative decoding


@error(
    "SPK601",
    "Speculative method that this vLLM does not have",
    "Speculative method {name} is not in vLLM {version}{span}.",
    "{fix}",
    needs_version=True,
)
def _method_unknown(launch: Launch) -> Hits:
    if launch.method and launch.unsupported("spec_methods", launch.method):
        intended = launch.respelled("spec_methods", launch.method)
        changes = _spec_changes(launch, method=intended) if intended else ()
        yield {**launch.missing("spec_methods", launch.method), "changes": changes}


def _spec_changes(launch: Launch, drop: str = "", **keys: object) -> tuple[Change, ...]:
    """Return the change of --speculative-config that sets keys and drops one."""
    config = launch.args.get("speculative-config")
    if not isinstance(config, Mapping):
        return ()
    remaining = {key: value for key, value in config.items() if key != drop}
    return (Change("args", "speculative-config", {**remaining, **keys}),)


error(
    "SPK602",
    "MTP for Gemma 4 before 0.21.0",
    "vLLM {version} has no MTP for Gemma 4; it would load the assistant as an ordinary draft model.",
    "Use vLLM 0.21.0 or newer, or vllm/vllm-openai:gemma4-0505-arm64-cu130.",
    needs_version=True,
    when=lambda launch: launch.gemma4 and launch.method == "mtp" and launch.unsupported("spec_methods", "gemma4_mtp"),
)


@warning(
    "SPK603",
    "Gemma 4's assistant as an ordinary draft model",
    "{model} is an MTP head for this Gemma 4; method draft_model runs it more slowly "
    "(40 % fewer tokens per second were measured).",
    'Set "method": "mtp" (vLLM 0.21.0 or newer, or an image gemma4-0505).',
    DUO,
)
def _assistant_as_draft(launch: Launch) -> Hits:
    model = str(launch.spec.get("model") or "")
    if launch.method == "draft_model" and "gemma-4" in model.lower() and model.lower().endswith("assistant"):
        yield {"model": model}


@error(
    "SPK604",
    "Key of --speculative-config that this vLLM does not have",
    "--speculative-config has no key {name} in vLLM {version}{span}.",
    "{fix}",
    needs_version=True,
)
def _spec_key(launch: Launch) -> Hits:
    config = launch.args.get("speculative-config")
    if not isinstance(config, Mapping):
        return
    for key in sorted(config):
        if launch.unsupported("spec_keys", str(key)):
            hit = launch.missing("spec_keys", str(key))
            intended = launch.respelled("spec_keys", str(key))
            changes: tuple[Change, ...] = ()
            if key == "disable_by_batch_size":
                changes = _spec_changes(launch, drop=key)
            elif intended and intended not in config and not hit["span"]:
                changes = _spec_changes(launch, drop=str(key), **{intended: config[key]})
            yield {**hit, "fix": "Remove the key." if hit["span"] else hit["fix"], "changes": changes}


error(
    "SPK605",
    "DFlash with an FP8 KV cache before 0.24.0",
    "On sm_121 vLLM {version} has no kernel for DFlash's non-causal attention with an FP8 KV cache.",
    "Set kv-cache-dtype to auto, or use vLLM 0.24.0 or newer.",
    SELECTION,
    "No valid attention backend found",
    needs_version=True,
    when=lambda launch: (
        launch.method == "dflash" and launch.kv_dtype.startswith("fp8") and launch.within("0.20.0", "0.24.0")
    ),
)

warning(
    "SPK606",
    "Suffix decoding without its package",
    "Speculative method suffix needs the package arctic-inference, which vLLM does not install.",
    "Install arctic-inference==0.1.1 (pip of a service), or use ngram.",
    vllm_error="Arctic Inference is required for suffix decoding",
    when=lambda launch: launch.method == "suffix" and not launch.brings("arctic-inference"),
)


@info(
    "SPK607",
    "Several tokens from one MTP layer",
    "num_speculative_tokens is {tokens}, but the model's one MTP layer then runs several times; fewer "
    "later tokens are accepted.",
    "Compare with {fewer} on your prompts.",
    f"vLLM's own warning; {DUO}",
)
def _many_mtp_tokens(launch: Launch) -> Hits:
    tokens = launch.spec.get("num_speculative_tokens")
    if (
        launch.method == "mtp"
        and isinstance(tokens, int)
        and tokens > 1
        and launch.text.get("mtp_num_hidden_layers") == 1
    ):
        yield {"tokens": tokens, "fewer": min(tokens - 1, 2)}


error(
    "SPK608",
    "Draft models before 0.15.1",
    "vLLM {version} lists the speculative method draft_model but cannot run it.",
    "Use vLLM 0.15.1 or newer.",
    vllm_error="Draft model speculative decoding is not supported yet",
    needs_version=True,
    when=lambda launch: launch.method == "draft_model" and launch.before("0.15.1"),
)


@info(
    "SPK609",
    "DFlash on a quantised model",
    "With quantised weights ({checkpoint}) and releases of vLLM, only the first few DFlash tokens were "
    "reported to be accepted: slower than without.",
    "Watch vllm:spec_decode_num_accepted_tokens_total; use the model's own MTP layer if it stays low.",
    GUIDE,
)
def _dflash_quantised(launch: Launch) -> Hits:
    # DFlash2 was measured with quantised weights on a release: 24 tokens a second where 12 are read without a draft.
    if launch.method == "dflash" and launch.checkpoint and "DFlash2" not in str(launch.spec.get("model")):
        yield {"checkpoint": launch.checkpoint}


# How many parameters a name says a model has: 35B-A3B, 27B.
_SIZE = re.compile(r"(?<![0-9A-Za-z.])(\d+(?:\.\d+)?B)(?:-A(\d+(?:\.\d+)?B))?(?![0-9A-Za-z])", re.IGNORECASE)


@error(
    "SPK610",
    "Draft of another model",
    "{draft} was trained for a model of {theirs}, this one has {own}; a drafter works only with its own target.",
    "Set the model of --speculative-config to the drafter of {repo}.",
    f"{GUIDE}; names of the checkpoints",
)
def _foreign_draft(launch: Launch) -> Hits:
    draft = str(launch.spec.get("model") or "")
    if launch.method not in ("dflash", "eagle", "eagle3", "dspark"):
        return
    model_size, draft_size = _SIZE.search(launch.repo.rpartition("/")[2]), _SIZE.search(draft.rpartition("/")[2])
    if model_size and draft_size and model_size.group(1).upper() != draft_size.group(1).upper():
        yield {"draft": draft, "theirs": draft_size.group(0), "own": model_size.group(0), "repo": launch.repo}


# Methods whose draft is a separate checkpoint.
_SEPARATE = ("dflash", "dspark", "eagle", "eagle3", "medusa", "mlp_speculator", "draft_model")


@error(
    "SPK611",
    "Speculative method without its draft model",
    "Speculative method {method} needs a draft model, and --speculative-config names none.",
    'Add "model" with the drafter of this model.',
    vllm_error="num_speculative_tokens was provided but without speculative model.",
)
def _no_draft(launch: Launch) -> Hits:
    if launch.method not in _SEPARATE or launch.spec.get("model"):
        return
    # DSpark's drafter may be in the checkpoint itself; without its config that is not known.
    if launch.method != "dspark" or (launch.config and not _carries_dspark(launch)):
        yield {"method": launch.method}


def _carries_dspark(launch: Launch) -> bool:
    """Whether the checkpoint has DSpark's drafter inside, as DeepSeek-V4's later ones and V4.1 do; vLLM then drafts with it."""
    return str(launch.config.get("model_type")).startswith("deepseek_v4") or any(
        key.startswith("dspark_") for key in launch.text
    )


@error(
    "SPK612",
    "Speculation without a number of tokens",
    "Speculative method {method} needs num_speculative_tokens.",
    'Add "num_speculative_tokens": 4.',
    vllm_error="num_speculative_tokens must be provided with speculative model unless the draft model config contains an n_predict "
    "parameter.",
)
def _no_tokens(launch: Launch) -> Hits:
    if launch.method in ("ngram", "ngram_gpu") and launch.spec.get("num_speculative_tokens") is None:
        yield {"method": launch.method}


@error(
    "SPK613",
    "Shortest match longer than the longest",
    "prompt_lookup_min {least} is more than prompt_lookup_max {most}.",
    "Swap them.",
    vllm_error="prompt_lookup_min={least} must be <= prompt_lookup_max={most}",
)
def _lookup(launch: Launch) -> Hits:
    least, most = launch.spec.get("prompt_lookup_min"), launch.spec.get("prompt_lookup_max")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        yield {"least": least, "most": most}


@error(
    "SPK614",
    "Draft's attention backend that cannot draft",
    "On sm_121 vLLM {version} has FLASH_ATTN and FLEX_ATTENTION for DFlash's non-causal draft; {backend} cannot.",
    'Remove "attention_backend" from --speculative-config.',
    SELECTION,
    "No valid attention backend found",
    needs_version=True,
)
def _draft_attention(launch: Launch) -> Hits:
    backend = str(launch.spec.get("attention_backend") or "").lower()
    if launch.method == "dflash" and launch.within("0.21.0", "0.24.0") and backend in ("flashinfer", "triton_attn"):
        yield {
            "backend": backend.upper(),
            "changes": _spec_changes(launch, drop="attention_backend"),
        }


@error(
    "SPK615",
    "MTP without the paired draft",
    "{repo} ({architecture}) has no MTP layer; method mtp needs the paired draft as its model.",
    'Add "model" with the assistant of this model.',
    f"{PACKAGES}; {GUIDE}",
)
def _gemma4_pair(launch: Launch) -> Hits:
    if launch.gemma4 and launch.method == "mtp" and not launch.spec.get("model"):
        yield {"architecture": launch.architectures[0], "repo": launch.repo or "this checkpoint"}


@info(
    "SPK616",
    "Few tokens a block for DFlash",
    "num_speculative_tokens is {tokens}; DFlash checks a whole block in one pass, and its range is 7 to 15.",
    "Compare with 7 and 15 on your prompts.",
    GUIDE,
)
def _dflash_tokens(launch: Launch) -> Hits:
    tokens = launch.spec.get("num_speculative_tokens")
    if launch.method == "dflash" and isinstance(tokens, int) and tokens < 7:
        yield {"tokens": tokens}


@info(
    "SPK617",
    "Speculation without a limit under load",
    "{seqs} requests may run at once, and each drafts {tokens} at every step: drafts speed up one stream, "
    "but slow down many.",
    "Measure with bench.yml at your concurrency, with and without speculative-config{bound}.",
    f"{PACKAGES}; {GUIDE}",
)
def _unbounded_speculation(launch: Launch) -> Hits:
    seqs = launch.number("max-num-seqs", 0)
    if not launch.method or seqs <= MANY_REQUESTS or any(launch.spec.get(name) for name in _BOUNDS):
        return
    count = launch.spec.get("num_speculative_tokens")
    tokens = f"{count} token{'s' if count != 1 else ''}" if isinstance(count, int) else "tokens"
    bound = (
        ""
        if launch.version is None or launch.before("0.24.0")
        else "; num_speculative_tokens_per_batch_size in it drafts less when many run"
    )
    yield {"seqs": seqs, "tokens": tokens, "bound": bound}


MANY_REQUESTS = 8
# What of a speculative configuration drafts less the more requests run; the first up to 0.16.0, the second from 0.24.0 on.
_BOUNDS = ("disable_by_batch_size", "num_speculative_tokens_per_batch_size")


@error(
    "SPK618",
    "DSpark drafter by method mtp",
    "The drafter in this checkpoint is DSpark (dspark_block_size {block}); method {method} cannot load its weights.",
    'Set "method": "dspark" with at least "num_speculative_tokens": {block}.',
    "https://github.com/vllm-project/vllm/pull/52165",
    vllm_error="KeyError: 'model.layers.43.mtp_block.main_norm.weight'",
)
def _dspark_by_mtp(launch: Launch) -> Hits:
    block = launch.text.get("dspark_block_size")
    if launch.method in ("mtp", "deepseek_mtp") and not launch.spec.get("model") and block:
        yield {"block": block, "method": launch.method}


# 7xx: parsers and tools


# Names that people expect and that vLLM does not have under that option.
_PARSER_FIXES: dict[tuple[str, str], dict[str, Any]] = {
    ("tool_parsers", "nemotron_v3"): {
        "fix": "Use qwen3_coder; nemotron_v3 is a reasoning parser.",
        "changes": (Change("args", "tool-call-parser", "qwen3_coder"),),
    },
    ("reasoning_parsers", "nano_v3"): {"fix": "Name its file with --reasoning-parser-plugin."},
    ("reasoning_parsers", "super_v3"): {"fix": "Name its file with --reasoning-parser-plugin."},
}


def _parser_unknown(launch: Launch, option: str, table: str, plugin: str) -> Hits:
    for hit in () if launch.args.get(plugin) else launch.unknown_value(option, table):
        yield {**hit, **_PARSER_FIXES.get((table, hit["name"]), {})}


@error(
    "SPK701",
    "Tool parser that this vLLM does not have",
    "vLLM {version} has no tool parser {name}{span}.",
    "{fix}",
    vllm_error="KeyError: 'invalid tool call parser: {name}",
    needs_version=True,
)
def _tool_parser(launch: Launch) -> Hits:
    if launch.args.get("enable-auto-tool-choice") is True:  # vLLM looks at the name only then
        yield from _parser_unknown(launch, "tool-call-parser", "tool_parsers", "tool-parser-plugin")


error(
    "SPK702",
    "Reasoning parser that this vLLM does not have",
    "vLLM {version} has no reasoning parser {name}{span}.",
    "{fix}",
    vllm_error="KeyError: 'invalid reasoning parser: {name}",
    needs_version=True,
    when=lambda launch: _parser_unknown(launch, "reasoning-parser", "reasoning_parsers", "reasoning-parser-plugin"),
)


@error(
    "SPK703",
    "Automatic tool choice without a parser",
    "--enable-auto-tool-choice needs --tool-call-parser.",
    "Add tool-call-parser{value}.",
    PARSER,
    "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser",
)
def _no_tool_parser(launch: Launch) -> Hits:
    if launch.args.get("enable-auto-tool-choice") is True and not launch.args.get("tool-call-parser"):
        fitting = _fitting_parsers(launch)
        changes = (Change("args", "tool-call-parser", fitting[0]),) if fitting else ()
        yield {"value": f" {fitting[0]}" if fitting else "", "changes": changes}


def _fitting_parsers(launch: Launch) -> tuple[str, ...]:
    """Tool parsers of this vLLM that understand the tool calls of this model; empty if unknown."""
    fitting: tuple[str, ...] = ("openai",) if launch.gpt_oss else ()
    if launch.gemma4:
        fitting = ("gemma4",)
    elif any(name.startswith(("Qwen3_5", "NemotronH")) for name in launch.architectures):
        fitting = ("qwen3_coder", "qwen3_xml", "qwen3_json")
    return tuple(name for name in fitting if not launch.unsupported("tool_parsers", name))


@warning(
    "SPK704",
    "Tool parser of another model",
    "Tool parser {parser} does not match the format of this model: tool calls are returned as plain text.",
    "Set tool-call-parser to {fitting}.",
    "model cards and vLLM's recipes; the parsers' own formats",
)
def _foreign_parser(launch: Launch) -> Hits:
    parser, fitting = str(launch.args.get("tool-call-parser") or ""), _fitting_parsers(launch)
    if (
        parser
        and fitting
        and parser not in fitting
        and not launch.args.get("tool-parser-plugin")
        and not launch.unsupported("tool_parsers", parser)
        and parser in launch.names("tool_parsers")  # SPK113, SPK701
        and not (launch.gemma4 and parser == "pythonic")  # SPK707
        and parser != "hf"  # goes by the model's own template
    ):
        changes = (Change("args", "tool-call-parser", fitting[0]),)
        yield {"parser": parser, "fitting": fitting[0], "changes": changes}


@warning(
    "SPK705",
    "Tools from a model that always reasons",
    "{repo} always reasons, even with enable_thinking false, and may end without the tool call that "
    "tool_choice auto expects.",
    "Serve the Instruct variant for tools{or_hermes}.",
    "report on two Qwen3 models on one DGX Spark, June 2026",
)
def _thinking_tools(launch: Launch) -> Hits:
    if re.search(r"Qwen3-Next-.*-Thinking", launch.repo) and launch.args.get("enable-auto-tool-choice") is True:
        alone = launch.args.get("reasoning-parser") is None and launch.args.get("tool-call-parser") == "hermes"
        yield {"repo": launch.repo, "or_hermes": "" if alone else ", or use parser hermes without a reasoning parser"}


warning(
    "SPK706",
    "Tool parser without automatic tool choice",
    "--tool-call-parser is set but --enable-auto-tool-choice is not: requests with tools get HTTP 400.",
    "Add enable-auto-tool-choice: true.",
    vllm_error='"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    when=lambda launch: launch.args.get("tool-call-parser") and launch.args.get("enable-auto-tool-choice") is not True,
)

info(
    "SPK707",
    "Tool parser of Gemma 4: the sources disagree",
    "One guide parses Gemma 4's tool calls with pythonic; NVIDIA's model card and vLLM's recipes use "
    "gemma4 (vLLM 0.19.0 on).",
    "Set tool-call-parser to gemma4 if a request with a tool is returned as text.",
    f"{GUIDE}; model cards and vLLM's recipes",
    when=lambda launch: (
        launch.gemma4
        and launch.args.get("tool-call-parser") == "pythonic"
        and not launch.unsupported("tool_parsers", "gemma4")
    ),
)


@warning(
    "SPK708",
    "Reasoning parser of another model",
    "Reasoning parser {parser} does not match the reasoning of this model: it stays in the answer.",
    "Set reasoning-parser to {fitting}.",
    "model cards and vLLM's recipes; the parsers' own formats",
)
def _foreign_reasoning(launch: Launch) -> Hits:
    parser = str(launch.args.get("reasoning-parser") or "")
    fitting = next((names for start, names in _THOUGHTS if any(a.startswith(start) for a in launch.architectures)), ())
    known_names = {name for _start, names in _THOUGHTS for name in names}
    available = [name for name in fitting if not launch.unsupported("reasoning_parsers", name)]
    if parser in known_names and available and parser not in fitting and not launch.args.get("reasoning-parser-plugin"):
        yield {"parser": parser, "fitting": available[0]}


# Start of an architecture's name to the reasoning parsers that read what it writes.
_THOUGHTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Qwen3", ("qwen3", "deepseek_r1")),
    ("Gemma4", ("gemma4",)),
    ("NemotronH", ("nemotron_v3", "nano_v3", "deepseek_r1")),
    ("Laguna", ("poolside_v1",)),
)


@warning(
    "SPK709",
    "Reasoning stays in the answers",
    "This model reasons by default, and no reasoning parser is set: reasoning stays in the answers, and "
    "tool calls after it may not be parsed.",
    "Set reasoning-parser to {fitting}{or_off}.",
    GUIDE,
)
def _no_reasoning_parser(launch: Launch) -> Hits:
    thinks = next((name for name in launch.architectures if name.startswith("Qwen3_5")), "")
    kwargs = launch.args.get("default-chat-template-kwargs")
    off = isinstance(kwargs, Mapping) and kwargs.get("enable_thinking") is False
    if (
        thinks
        and launch.args.get("enable-auto-tool-choice") is True
        and not launch.args.get("reasoning-parser")
        and not off
    ):
        or_off = ", or disable thinking with --default-chat-template-kwargs"
        yield {"fitting": "qwen3", "or_off": "" if launch.before("0.14.0") else or_off}


@warning(
    "SPK710",
    "Parser plugin that no parser uses",
    "{plugin} is set, but {option} is not: vLLM does not use the file.",
    "Add {option} with the name that the file registers.",
)
def _idle_plugin(launch: Launch) -> Hits:
    for plugin, option in (("tool-parser-plugin", "tool-call-parser"), ("reasoning-parser-plugin", "reasoning-parser")):
        if launch.args.get(plugin) and not launch.args.get(option):
            yield {"plugin": f"--{plugin}", "option": f"--{option}"}
