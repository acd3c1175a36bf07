# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's file tier of the KV cache: which versions have it, for which caches and launches, and its options.

Data and pure functions, from the packages of vLLM 0.11.0 to 0.33.0. Files are named by block hash, so an engine finds the blocks of its last run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .versions import parse_version, version

HISTORY = (
    ("0.14.0", "host buffer (OffloadingConnector), lost with the engine"),  # v1/kv_offload/cpu.py
    ("0.22.0", "file tier, named fs_python; windows stay windows"),  # v1/kv_offload/tiering/factory.py; config/vllm.py
    ("0.23.0", "file tier, named fs"),  # v1/kv_offload/tiering/factory.py
    ("0.24.0", "states of Mamba layers are restored"),  # offloading/scheduler.py (resolve_mamba_align_size)
    # tiering/async_lookup.py (mark_miss), v1/core/kv_cache_utils.py (resolve_none_hash_seed)
    ("0.28.0", "a file that was removed is a miss; before, the request waits forever"),
    ("0.29.0", "file names need no PYTHONHASHSEED"),
)
"""What the file tier can do since a version, oldest first. Sources are files below C(vllm/)."""
LEAST = "0.28.0"
"""vLLM never removes a file, so this collection does; earlier versions ask for a removed file again and again."""
RESTORED = {
    "full": "all blocks",
    "mla": "all blocks",
    "sliding": "the blocks of the last window",
    "chunked": "the blocks of the last chunk",
    "mamba": "the state at the last stored block",
    "gdn": "the state at the last stored block",
    "kda": "the state at the last stored block",
}
"""What is restored of a kind of cache (offloading/scheduler.py); the connector refuses or ignores other kinds."""
SPEC = "TieringOffloadingSpec"
ROOT = "/root/.cache/dgxspark/kv"
"""Folder of the files in the container."""
OWN_OPTIONS = ("kv-transfer-config", "kv-offloading-size", "kv-offloading-backend")
"""Options that the file tier sets, or that would replace it (config/vllm.py, _post_init_kv_transfer_config)."""
READ_BYTES_PER_SECOND = (0.2e9, 0.5e9, 5.1e9)
"""Least, usual and most bytes per second at which KV cache comes back from the NVMe of a Spark, until the first token.

0.20 and 0.26: MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#58 (1.68 GB in 8.5 s), #57 (2.66 GB in 10.4 s). 0.5: ajclark/
GLM-5.3-DCP4-DFlash2-NVMe-KV-Offload-4x-DGX-Spark, docs/NVME-DESIGN.md (100,000 tokens of 16 kB a rank in 3.4 s). 5.1: reading files through a
pinned buffer, vcruz305/vllm-exl3#28.
"""


def transfer_config(host_bytes: int) -> dict[str, Any]:
    """Return C(kv-transfer-config) of the file tier. host_bytes: size of the buffer between GPU and files."""
    tiers = [{"type": "fs", "root_dir": ROOT}]
    extra = {"spec_name": SPEC, "cpu_bytes_to_use": host_bytes, "secondary_tiers": tiers}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""Without it vLLM 0.28 seeds the hashes of blocks at random, and finds no file of its last run."""


def is_file_tier(extra: Mapping[str, Any]) -> bool:
    """Tell whether settings of a connector equal C(transfer_config)."""
    tiers = extra.get("secondary_tiers")
    return isinstance(tiers, list) and any(isinstance(tier, Mapping) and tier.get("root_dir") == ROOT for tier in tiers)


def refusal(
    vllm_version: str | None, args: Mapping[str, Any], kinds: Sequence[str], ranks: int, sparks: int
) -> tuple[str, str] | None:
    """Return why a launch cannot have the file tier, with the fix; None if it can.

    :param kinds: of its KV caches, as C(kv_groups) of the memory budget names them; empty if unknown
    """
    found = parse_version(vllm_version or "")
    if sparks > 1 or ranks > 1:
        # v1/kv_offload/tiering/spec.py: one region in /dev/shm for all ranks, read by the scheduler of the first host.
        return (
            f"the engine spans {max(sparks, ranks)} ranks: vLLM stores the blocks of the first host alone, and the others would answer from "
            "wrong ones without an error",
            "Serve it on one Spark, or remove kv_tiers.",
        )
    if found is not None and found < version(LEAST):
        last = [ability for since, ability in HISTORY if version(since) <= found]
        has = f"it has: {last[-1]}" if last else "it offloads nothing"
        return (
            f"vLLM {vllm_version} is older than {LEAST}, the first that survives a removed file ({has})",
            f"Choose an image with vLLM {LEAST} or newer, or remove kv_tiers.",
        )
    if args.get("enable-prefix-caching") is False:
        return "prefix caching is off, so no block is found again", "Remove enable-prefix-caching: false, or kv_tiers."
    if args.get("runner") == "pooling":
        return "a pooling model keeps no KV cache", "Remove kv_tiers."
    strange = sorted(set(kinds) - set(RESTORED))
    if strange:
        return (
            f"vLLM's connector does not restore caches of the kind {', '.join(strange)}",
            "Remove kv_tiers, or choose another model.",
        )
    return None
