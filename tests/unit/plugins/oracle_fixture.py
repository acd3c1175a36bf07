# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cases that vLLM's own planner answered (tests/oracle), and the answers of this collection to the same cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import Geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.kv_cache import plan_kv_cache
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.kv_plan import KVSettings, PlanFailure
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Attention, Recurrent, Refusal
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.releases import parse_release
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.vllm_errors import (
    error_auto_fit,
    error_no_memory,
    error_too_long,
)

ROWS = Path(__file__).parent / "fixtures" / "oracle_rows.json"
COLUMNS = (
    "block_size",
    "mamba_cache_mode",
    "groups",
    "stage_bytes_per_block",
    "num_blocks",
    "max_model_len",
    "tokens",
    "concurrency",
    "needed",
)
READS_HIDDEN_STATES = ("eagle", "eagle3", "mtp", "dflash")


def load() -> dict[str, Any]:
    """Read the cases and, by version, the answers in the same order: a list of COLUMNS, an error, or null."""
    data: dict[str, Any] = json.loads(ROWS.read_text(encoding="utf-8"))
    return data


def geometry(case: dict[str, Any]) -> Geometry:
    """Return the model of a case."""
    state = None
    if case.get("recurrent"):
        shape = case["recurrent"]
        state = Recurrent(
            conv_key_dim=2 * shape["groups"] * shape["state_dim"],
            conv_value_dim=shape["heads"] * shape["head_dim"],
            checkpoints_since=32 if shape["kind"] == "mamba" else 33 if shape["state_dim"] == 128 else 0,
            **shape,
        )
    made = {"-": None, "R": state, **{letter: Attention(**shape) for letter, shape in case["palette"].items()}}
    layers = tuple(made[letter] for letter in case["pattern"])
    return Geometry(layers, model_type="case", max_position_embeddings=case["max_model_len"])


def settings(case: dict[str, Any], version: str) -> KVSettings:
    """Return the settings of a case."""
    values = dict(case["settings"])
    method, drafts = values.pop("method", ""), case.get("draft", "")
    tokens = values.get("num_speculative_tokens", 0)
    return KVSettings(
        release=parse_release(version),
        skip_layers=tuple(values.pop("skip_layers", ())),
        draft_layers=tuple(Attention(**case["palette"][letter]) for letter in drafts),
        reads_hidden_states=tokens > 0 and method in READS_HIDDEN_STATES,
        multi_module_mtp=method == "mtp" and min(len(drafts), tokens) > 1,
        **values,
    )


def answer(case: dict[str, Any], version: str) -> list[Any] | str | None:
    """Plan a case: a list of COLUMNS, vLLM's error, or null if this collection refuses to answer."""
    try:
        plan = plan_kv_cache(geometry(case), settings(case, version))
    except Refusal:
        return None
    except PlanFailure as failure:
        return str(failure)
    release, override = plan.settings.release, case.get("override") or 0
    available, length = case["available"], case["max_model_len"]
    if override and release.since(20, 1):
        available = override * plan.bytes_per_block
    if case.get("auto"):
        length = plan.largest_length(available, length)
        if not length:
            return error_auto_fit()
    if available <= 0:
        return error_no_memory(release)
    if error := error_too_long(plan, length, case["available"], override):
        return error
    blocks = override or plan.num_blocks(available)
    return [
        plan.block_size,
        plan.mamba_cache_mode,
        [
            [
                "state" if group.kind in ("gdn", "mamba") else group.kind,
                group.layers,
                group.block_size or case["max_model_len"],
            ]
            for group in plan.groups
        ],
        list(plan.stage_bytes_per_block),
        blocks,
        length,
        plan.printed_tokens(blocks, length, case["max_model_len"]),
        plan.max_concurrency(blocks, length),
        plan.needed_bytes(length),
    ]
