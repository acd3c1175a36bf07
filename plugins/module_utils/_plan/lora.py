# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""LoRA adapters of a service: what is written of them, their options of vllm serve, and the memory that they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._common import plain_data
from .._common.sizes import GIB
from .._common.validation import Problems
from .._vllm.overheads import LEVELS, OVERHEADS

KEYS = ("adapters", "max_rank", "max_loras", "max_cpu_loras")
ADAPTER_KEYS = ("name", "repo", "revision")
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What C(--max-lora-rank) takes (MaxLoRARanks in vllm/config/lora.py)."""
OPTIONS = ("enable-lora", "lora-modules", "max-lora-rank", "max-loras", "max-cpu-loras")
"""Options that follow from the key C(lora), and may not be said twice."""
MOST = 64
ELEMENT = 2
"""Bytes of a number of an adapter: vLLM keeps adapters in the model's dtype, 16 bits of the models here."""


def read(problems: Problems, given: Any, args: Mapping[str, Any], served: Any) -> dict[str, Any]:
    """Check what a service says of its adapters.

    :param problems: what is wrong goes there
    :param given: the key C(lora) of the service
    :param args: its options, merged from all layers
    :param served: its own name to clients, which no adapter may have
    :returns: C({adapters, max_rank, max_loras, max_cpu_loras}), empty without adapters
    """
    lora = problems.mapping(given, "lora")
    if not lora:
        return {}
    problems.unknown(lora, KEYS, "key of lora:")
    adapters = problems.mappings(lora.get("adapters"), "lora.adapters")
    if not adapters:
        problems.add("'lora' needs 'adapters', a list of name and repo.")
    names: list[Any] = [served]
    for entry in adapters:
        problems.unknown(entry, ADAPTER_KEYS, "key of lora.adapters:")
        name = entry.get("name")
        if not isinstance(name, str) or not plain_data.is_line(name) or "=" in name or name in names:
            problems.add(
                f"lora.adapters names {plain_data.shown(name)}; it must be a name of its own without '=', which clients send as model."
            )
        names.append(name)
    sizes: dict[str, Any] = {
        "max_rank": lora.get("max_rank", 16),
        "max_loras": lora.get("max_loras", min(len(adapters), MOST) or 1),
    }
    sizes["max_cpu_loras"] = lora.get("max_cpu_loras", sizes["max_loras"])
    if sizes["max_rank"] not in RANKS or isinstance(sizes["max_rank"], bool):
        problems.add(f"lora.max_rank is {sizes['max_rank']!r}; vLLM takes {', '.join(map(str, RANKS))}.")
    for key in ("max_loras", "max_cpu_loras"):
        if not plain_data.is_whole(sizes[key], 1, MOST):
            problems.add(f"lora.{key} is {sizes[key]!r}; it must be a whole number, 1 to {MOST}.")
    if not problems.messages and sizes["max_cpu_loras"] < sizes["max_loras"]:
        problems.add(
            "lora.max_cpu_loras is below max_loras; vLLM keeps each adapter that it computes with in host memory too."
        )
    twice = [option for option in OPTIONS if option in args]
    if twice:
        problems.add(f"args names {', '.join(twice)}, which 'lora' says already; leave one of them out.")
    return {"adapters": [dict(entry) for entry in adapters], **sizes}


def options(lora: Mapping[str, Any], folders: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of C(vllm serve). folders: repository of an adapter to its folder in the container."""
    if not lora:
        return {}
    return {
        "enable-lora": True,
        "max-lora-rank": lora["max_rank"],
        "max-loras": lora["max_loras"],
        "max-cpu-loras": lora["max_cpu_loras"],
        "lora-modules": [f"{entry['name']}={folders[entry['repo']]}" for entry in lora["adapters"]],
    }


def adapter_bytes(config: Mapping[str, Any], rank: int) -> int:
    """Return what one adapter of a rank takes at the most: two matrices beside each that it may change, experts included.

    vLLM sets the room aside for C(max_loras) adapters of the largest rank when it starts (create_lora_weights of vllm/lora/layers), whatever
    the adapters have; tensor parallelism divides one matrix of each pair, which is left out here. What a config does not say is no room.
    """
    text = config.get("text_config") or config.get("llm_config") or config
    get = {key: value for key, value in text.items() if isinstance(value, int) and not isinstance(value, bool)}
    hidden, layers = get.get("hidden_size", 0), get.get("num_hidden_layers", 0)
    heads = get.get("num_attention_heads", 0)
    head = get.get("head_dim") or (hidden // heads if heads else 0)
    keys = get.get("num_key_value_heads", heads)
    attention = 2 * (hidden + heads * head) + 2 * (hidden + keys * head)
    inner = get.get("moe_intermediate_size") or get.get("intermediate_size", 0)
    experts = next((get[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if get.get(key)), 1)
    shared = get.get("shared_expert_intermediate_size", 0)
    forward = 3 * experts * (hidden + inner) + (3 * (hidden + shared) if shared else 0)
    return layers * rank * (attention + forward) * ELEMENT


def overheads(
    lora: Mapping[str, Any], config: Mapping[str, Any], own: Mapping[str, Any], common: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the overheads of an engine with what its adapters take.

    Inside the requested memory they make the cache smaller. Unlike the rest there they stay: what the typical C(kept_share) would give
    back is counted outside, and so are the copies in host memory.

    :param lora: of C(read); empty without adapters
    :param config: config.json of the model
    :param own: overheads of the service
    :param common: those of the host, C(spark_overheads)
    :returns: C(own), with C(inside_base_gib) and C(outside_gib) by level where there are adapters
    """
    if not lora:
        return dict(own)
    one = adapter_bytes(config, lora["max_rank"]) / GIB
    inside, beside = one * lora["max_loras"], one * lora["max_cpu_loras"]

    def level(key: str, index: int) -> float:
        said = own.get(key, common.get(key))
        if isinstance(said, Mapping):
            return float(said.get(LEVELS[index], OVERHEADS[key][index]))
        return float(OVERHEADS[key][index] if said is None else said)

    return {
        **own,
        "inside_base_gib": {name: level("inside_base_gib", index) + inside for index, name in enumerate(LEVELS)},
        "outside_gib": {
            name: level("outside_gib", index) + beside + (1 - level("kept_share", LEVELS.index("typical"))) * inside
            for index, name in enumerate(LEVELS)
        },
    }
