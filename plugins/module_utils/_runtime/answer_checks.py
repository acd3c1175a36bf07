# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what a model answers: damaged tool calls, garbage, and vectors without meaning."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from .._common.foreign_text import parse_json
from .engine_client import Problem, entries_of

# An answer counts as one piece over and over from this many pieces on, when they make up most of it.
REPEATS = 8
REPEATED_SHARE = 0.75
LONGEST_PIECE = 40
# Text that a model without chat may write by the line, as a form to fill in or a rule below a heading.
FILLERS = frozenset("_-=.*# ")
GARBAGE_FIX = (
    "no prompt is at fault, the engine computes wrong: weights in FP4 want other kernels (moe-backend: marlin in args, or an image "
    "that was built for sm_121), weights in another format may have been read with the wrong quantization, and an FP8 KV cache may "
    "not suit the model (try kv-cache-dtype: auto)"
)
# How models write a tool call before a parser has read it: Hermes and Qwen, Qwen3-Coder, Mistral, Gemma, Kimi, DeepSeek, MiniMax,
# Llama, Harmony (vllm/tool_parsers).
_CALL_TEXT = re.compile(
    r"</?tool_calls?>|<function[=_]|</function>|<parameter=|\[TOOL_CALLS\]|<\|/?tool_?call|<\|tool_calls_section|"
    r"<\uff5ctool\u2581|<\uff5cDSML|<invoke name=|<minimax:tool_call|<\|python_tag\|>|<start_function_call>|<\|channel\|>|"
    r"<arg_key>"
)
_CALL_FENCE = re.compile(r"```(?:json|tool_code|tool_call)?\s*[\[{].*?\"name\"\s*:\s*\"(\w+)\"", re.DOTALL)
MALFORMED_FIX = (
    "the engine did not turn the model's text into a call. If other calls arrive, the tool-call-parser is right and the call itself is "
    "damaged: speculative decoding by MTP with prefix caching does that to hybrid models in some versions of vLLM, so set "
    "enable-prefix-caching: false or leave out speculative-config, or use a newer image. If no call ever arrives, set the "
    "tool-call-parser (and chat template) of this model"
)


def is_figure(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def wrong_vectors(vectors: list[Any], expected: int) -> str:
    """Return the error of vectors as such, or an empty text."""
    if len(vectors) != expected:
        return f"{len(vectors)} vectors for {expected} texts"
    if not all(isinstance(vector, list) and vector and all(map(is_figure, vector)) for vector in vectors):
        return "they are no lists of numbers with an end"
    if len({len(vector) for vector in vectors}) > 1:
        return "they differ in length"
    return "" if all(any(vector) for vector in vectors) else "one is nothing but zeros"


def cosine(first: list[float], second: list[float]) -> float:
    """Return the cosine of the angle between two vectors, 1 for the same direction."""
    # Scaled first: squares of very large or small numbers are infinite or zero.
    first, second = ([number / max(map(abs, vector)) for number in vector] for vector in (first, second))
    return sum(x * y for x, y in zip(first, second)) / (math.hypot(*first) * math.hypot(*second))


PARSER_FIX = "set the tool-call-parser (and chat template) that this model was trained with"


def calls_of(choice: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the tool calls of an answer in OpenAI's form. Raises Problem for a damaged call, also for one inside the content."""
    message = choice["message"]
    content = str(message.get("content") or "")
    match = _CALL_TEXT.search(content) or _CALL_FENCE.search(content)
    if match:
        raise Problem(f"a malformed call inside content: {content[match.start() :][:120]!r}", MALFORMED_FIX, True)
    calls = [_read_call(number, call, names) for number, call in enumerate(entries_of(message, "tool_calls"))]
    finish = choice.get("finish_reason")
    if calls and finish not in ("tool_calls", "length"):
        raise Problem(f"the tool call came with finish_reason {finish!r} instead of 'tool_calls'", PARSER_FIX, True)
    return calls if finish != "length" else []


def _read_call(number: int, call: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return one tool call of an answer in OpenAI's form. Raises Problem for a damaged one."""
    function = call.get("function")
    name, raw = (function.get(key) if isinstance(function, dict) else None for key in ("name", "arguments"))
    if name not in names:
        offered = "'get_weather'" if len(names) == 1 else "an offered one"
        raise Problem(f"the tool call names {name!r} instead of {offered}", PARSER_FIX, True)
    try:
        arguments = parse_json(raw, "arguments") if isinstance(raw, str) else raw
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise Problem(f"the arguments of the tool call are not a JSON object: {str(raw)[:120]!r}", PARSER_FIX, True)
    call_id = str(call.get("id") or f"call{number:05d}")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def garbage(text: str, chat: bool = True) -> str:
    """Return what makes an answer garbage, as from an engine whose kernels compute wrong; empty for a proper answer.

    Only text that no working model writes counts: unreadable signs, or one sign or word over and over. Whether an answer is right
    is not judged, nor a repeated phrase, which a model without chat may write by itself.
    """
    stripped = text.strip()
    signs = [sign for sign in stripped if not sign.isspace()]
    if not signs:
        return "nothing but blanks and line breaks" if chat and len(text) >= 2 * REPEATS else ""
    unreadable = sum(sign == "\ufffd" or unicodedata.category(sign) in ("Cc", "Co", "Cn") for sign in signs)
    if unreadable == len(signs) or (unreadable >= REPEATS and 2 * unreadable > len(signs)):
        return f"{unreadable} of its {len(signs)} signs cannot be read"
    if not chat and set(stripped) <= FILLERS:
        return ""
    return _repetition(stripped, signs, frozenset() if chat else FILLERS)


def _repetition(text: str, signs: list[str], ignored: frozenset[str]) -> str:
    """Describe a text that repeats one sign or word, else return an empty text. ignored: signs of words that do not count."""
    if len(set(signs)) == 1 and len(signs) >= REPEATS // 2 and not signs[0].isalnum():
        return f"{signs[0]!r} {len(signs)} times and nothing else"
    piece = _repeated_word(text[-4000:], ignored)
    return f"{piece!r} over and over" if piece else ""


def _repeated_word(tail: str, ignored: frozenset[str]) -> str:
    """Return the word whose repetitions make up most of a text, or an empty text. ignored: signs of words that do not count."""
    for length in range(1, min(LONGEST_PIECE, len(tail) // REPEATS) + 1):
        same = 0
        while same < len(tail) - length and tail[-1 - same] == tail[-1 - same - length]:
            same += 1
        piece = tail[len(tail) - length :].strip()
        enough = (same + length) // length >= REPEATS and same + length >= REPEATED_SHARE * len(tail)
        if enough and len(piece.split()) == 1 and not set(piece) <= ignored:
            return piece
    return ""
