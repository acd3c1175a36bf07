# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The longest context that vLLM derives from config.json and C(--hf-overrides), and its error for a longer one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ALLOW_VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""The variable with which vLLM starts although max-model-len is longer than what it derived."""
# The smallest of these counts (transformers_utils/model_arch_config_convertor.py, derive_max_model_len_and_key).
_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# The first minor release that treats max_position_embeddings of a YaRN config as already scaled (config/model.py, _get_and_verify_max_len).
SCALED_YARN_MINOR = 30
_UNSCALED = ("su", "longrope", "llama3")
_YARN = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
_TEXT_PARTS = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True)
class ContextLimit:
    """The longest context that vLLM accepts without C(ALLOW_VARIABLE), in tokens. key: of config.json. declared: its model_max_length."""

    tokens: int
    key: str
    declared: int | None = None

    def refusal(self, length: int) -> str:
        """Return vLLM's error for a C(max-model-len) of C(length) tokens; empty within the limit."""
        if length <= self.tokens or (self.declared is not None and length <= self.declared):
            return ""
        return (
            f"ValueError: User-specified max_model_len ({length}) is greater than the derived max_model_len ({self.key}={self.tokens} or "
            f"model_max_length={self.declared} in model's config.json)."
        )


def context_limit(config: Mapping[str, Any], overrides: Any, minor: int | None) -> ContextLimit | None:
    """Return the longest context that vLLM derives.

    :param minor: the 23 of vLLM 0.23; None takes the longest that any release derives
    :returns: None where config.json says nothing of its length
    """
    text = _overridden(config, overrides if isinstance(overrides, Mapping) else {})
    lengths = {key: text[key] for key in _KEYS if isinstance(text.get(key), int) and not isinstance(text[key], bool)}
    if not lengths:  # without the config, the length that YaRN extends
        originals = [rope.get("original_max_position_embeddings") for rope in rotary_settings(text)]
        lengths = dict([("max_position_embeddings", size) for size in originals if isinstance(size, int)][:1])
    if not lengths:
        return None
    key = "model_max_length" if lengths.get("model_max_length") else min(lengths, key=lambda name: lengths[name])
    minors = (SCALED_YARN_MINOR - 1, SCALED_YARN_MINOR) if minor is None else (minor,)
    tokens = max(_scaled(text, str(config.get("model_type")), lengths[key], release) for release in minors)
    return ContextLimit(tokens, key, lengths.get("model_max_length"))


def _overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the config that describes the language model, with its overrides."""
    part = next((name for name in _TEXT_PARTS if isinstance(config.get(name), Mapping)), "")
    if not part:
        return {**config, **overrides}
    inner = overrides.get(part)
    # vLLM copies rotary settings at the top of a composed config to the text part.
    top = {key: overrides[key] for key in ("rope_parameters", "rope_scaling") if key in overrides}
    return {**config[part], **top, **(inner if isinstance(inner, Mapping) else {})}


def rotary_settings(text: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of rotary positions in a config, one for each kind of layer that has separate settings."""
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    if isinstance(rope, Mapping):
        kinds = [part for part in rope.values() if isinstance(part, Mapping)]
        yield from kinds or [rope]


def _scaled(text: Mapping[str, Any], model_type: str, length: int, minor: int) -> int:
    """Return a length as a release scales it by rotary settings."""
    if "gemma3" in model_type:
        return length
    unscaled = _UNSCALED + (_YARN if minor >= SCALED_YARN_MINOR else ())
    scaled, factor = float(length), 1.0
    for rope in rotary_settings(text):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind in unscaled:
            continue
        scaling, original = rope.get("factor"), rope.get("original_max_position_embeddings")
        factor = float(scaling) if isinstance(scaling, (int, float)) and scaling else factor
        if kind == "yarn" and isinstance(original, int):
            scaled = float(original)
    return int(scaled * factor)
