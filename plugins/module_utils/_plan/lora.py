# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""LoRA adapters of a service: what is written of them, and their options of vllm serve; C(_memory/adapters.py) has their memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._common import plain_data
from .._common.validation import Problems

KEYS = ("adapters", "max_rank", "max_loras", "max_cpu_loras")
ADAPTER_KEYS = ("name", "repo", "revision")
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What C(--max-lora-rank) takes (MaxLoRARanks in vllm/config/lora.py)."""
OPTIONS = ("enable-lora", "lora-modules", "max-lora-rank", "max-loras", "max-cpu-loras")
"""Options that follow from the key C(lora), and may not be said twice."""
MOST = 64


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
