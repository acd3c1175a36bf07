# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The key C(lora) of a service: its LoRA adapters, and their options of vllm serve; C(_memory/adapters.py) plans their memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._common import plain_data, schema
from .._common.schema import Key
from .._common.validation import Problems
from . import service_keys

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of C(--max-lora-rank) (MaxLoRARanks in vllm/config/lora.py)."""
OPTIONS = ("enable-lora", "lora-modules", "max-lora-rank", "max-loras", "max-cpu-loras")
"""Options that follow from the key C(lora); C(args) must not have them."""
MOST = 64
ADAPTER: dict[str, Key] = {
    "name": Key(
        str,
        None,
        "model name for clients",
        required=True,
        form=lambda text: plain_data.is_line(text) and "=" not in text,
        like="one line of text without '='",
    ),
    "repo": service_keys.EXTRA_MODEL["repo"],
    "revision": service_keys.EXTRA_MODEL["revision"],
}
"""Keys of an adapter."""
KEYS: dict[str, Key] = {
    "adapters": Key(list, [], "a list of `name`, `repo` and `revision`", required=True, of=ADAPTER),
    "max_rank": Key(int, 16, f"largest rank: {schema.one_of(map(str, RANKS))}"),
    "max_loras": Key(int, None, "adapters in one step; default: all", least=1, most=MOST),
    "max_cpu_loras": Key(int, None, "adapters in host memory; default: `max_loras`", least=1, most=MOST),
}
"""Keys of C(lora) of a service."""


def read(problems: Problems, values: Mapping[str, Any] | None, args: Mapping[str, Any], served: Any) -> dict[str, Any]:
    """Return C({adapters, max_rank, max_loras, max_cpu_loras}) of a service, empty without adapters."""
    if not values:
        return {}
    lora = schema.filled(problems, values, KEYS, "lora.")
    adapters = lora["adapters"]
    if served is not None and any(adapter["name"] == served for adapter in adapters):
        problems.add(f"lora.adapters names '{served}', which is what clients send for the model itself.")
    if lora["max_rank"] not in RANKS:
        problems.add(f"lora.max_rank is {lora['max_rank']}; vLLM takes {schema.one_of(map(str, RANKS))}.")
    lora.update(_counts(lora))
    if lora["max_cpu_loras"] < lora["max_loras"]:
        problems.add(
            "lora.max_cpu_loras is below max_loras; vLLM keeps each adapter that it computes with in host memory too."
        )
    repeated = [option for option in OPTIONS if option in args]
    if repeated:
        problems.add(f"args names {', '.join(repeated)}, which 'lora' says already; leave one of them out.")
    lora["adapters"] = [{key: value for key, value in adapter.items() if value is not None} for adapter in adapters]
    return lora


def _counts(lora: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of adapters in one step and in host memory."""
    at_once = lora["max_loras"] or min(len(lora["adapters"]), MOST) or 1
    return {"max_loras": at_once, "max_cpu_loras": lora["max_cpu_loras"] or at_once}


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
