# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The key C(kv_tiers) of a service: KV cache in files, which outlives evictions and restarts; C(_runtime/kv_files.py) keeps them in bounds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._common import schema, validation
from .._common.findings import Finding
from .._common.schema import NUMBER, Key
from .._common.sizes import GIB
from .._common.validation import Problems
from .._host import host_paths
from .._memory.kv_plan import STATE_KINDS
from .._speed.service_speed import Range, round_figure
from .._vllm import kv_tiers
from . import speeds
from .planned import KvTiers, PlannedModel, PlannedService
from .service import ServiceSpec

KEYS: dict[str, Key] = {
    "host_gib": Key(
        NUMBER,
        None,
        "buffer between GPU and files; a prompt is restored as far as its KV cache fits into it",
        above=0,
        most=1024,
        unit="GiB",
        required=True,
    ),
    "disk_gib": Key(
        NUMBER, None, "most disk space of the files; the oldest are removed", least=1, most=65536, unit="GiB", required=True
    ),
    "path": Key(str, None, "folder on the host; default: the service's folder below `spark_cache_dir`"),
}  # fmt: skip
"""Keys of C(kv_tiers) of a service."""
PROMPTS = (32768, 131072)
"""Prompts whose prefill the plan compares with reading them back."""
LEAST_PROMPT = 8192
"""A shorter prefix is computed in seconds."""
_SAME_KEYS = frozenset(
    (
        *("gpu-memory-utilization", "kv-cache-memory-bytes", "max-num-seqs", "max-num-batched-tokens", "api-server-count"),
        *("chat-template", "chat-template-content-format", "default-chat-template-kwargs", "tool-call-parser"),
        *("reasoning-parser", "enable-auto-tool-choice", "generation-config", "override-generation-config"),
        *("enable-log-requests", "disable-log-stats", "uvicorn-log-level", "enable-prompt-tokens-details", "limit-mm-per-prompt"),
        *kv_tiers.OWN_OPTIONS,
    )
)  # fmt: skip
"""Options that change neither the values nor the layout of a KV cache, so that its files stay valid."""


def read(problems: Problems, values: Mapping[str, Any] | None, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return C({host_gib, disk_gib, path}) of a service, empty without the key."""
    if values is None:
        return {}
    tiers = schema.filled(problems, values, KEYS, "kv_tiers.")
    path = tiers["path"]
    if path is not None:
        validation.check_mount(problems, "kv_tiers.path", path)
        why = host_paths.problem(path)
        if why:
            problems.add(f"'kv_tiers.path' is '{path}': {why}.")
    twice = [option for option in kv_tiers.OWN_OPTIONS if args.get(option) is not None]
    if twice:
        problems.add(f"args sets {', '.join(twice)}, which 'kv_tiers' sets itself; leave one of them out.")
    return tiers


def folder_of(settings: Mapping[str, Any], service: ServiceSpec) -> str:
    """Return the folder of the files on the host, empty without C(kv_tiers). settings: of the host."""
    if not service.kv_tiers:
        return ""
    path = service.kv_tiers["path"]
    if path is None:
        return f"{settings['spark_cache_dir']}/{service.name}/kv"
    return f"{str(path).rstrip('/')}/{service.name}"


def mount(settings: Mapping[str, Any], service: ServiceSpec) -> str:
    """Return the mount of a folder outside of the caches of the service; empty for none."""
    outside = service.kv_tiers and service.kv_tiers["path"] is not None
    return f"{folder_of(settings, service)}:{kv_tiers.ROOT}" if outside else ""


def options(service: ServiceSpec) -> dict[str, Any]:
    """Return the options of vllm serve for the file tier, empty without one."""
    if not service.kv_tiers:
        return {}
    return {"kv-transfer-config": kv_tiers.transfer_config(int(service.kv_tiers["host_gib"] * GIB))}


def files_of(settings: Mapping[str, Any], service: ServiceSpec, model: PlannedModel) -> dict[str, Any] | None:
    """Return what the unit's helper needs to keep the files valid and in bounds; None without C(kv_tiers).

    The files are removed when one of these changes: C(key), a hash of the launch; the image; a model.
    """
    if not service.kv_tiers:
        return None
    launch = {
        "args": {name: value for name, value in service.args.items() if name not in _SAME_KEYS},
        "env": {name: value for name, value in service.env.items() if name.startswith("VLLM_")},
        "files": [[entry.path, entry.sha256] for entry in service.files],
        "pip": list(service.pip),
    }
    return {
        "folder": folder_of(settings, service),
        "disk_gib": float(service.kv_tiers["disk_gib"]),
        "key": hashlib.sha256(json.dumps(launch, sort_keys=True, default=str).encode()).hexdigest()[:16],
        "hub": f"{settings['spark_hf_home']}/hub",
        "models": [{"repo": part.repo, "revision": part.revision or "main"} for part in model.parts if part.repo],
        **({"path": model.path} if model.path else {}),  # of a model without a repository
    }


def planned(
    folder: str, service: ServiceSpec, args: Mapping[str, Any], launch: Any, memory: Mapping[str, Any]
) -> KvTiers | None:
    """Return the tiers of a planned service with what they are worth; None without C(kv_tiers)."""
    if not service.kv_tiers:
        return None
    host, disk = float(service.kv_tiers["host_gib"]) * GIB, float(service.kv_tiers["disk_gib"]) * GIB
    length = int(memory.get("max_model_len") or 0)
    per_token, fixed = _bytes_of(memory, length)
    written = _written_per_token(memory) or per_token
    worth = []
    for prompt in PROMPTS if per_token else ():
        if prompt <= length:
            size = per_token * prompt + fixed
            least, usual, most = (size / rate for rate in reversed(kv_tiers.READ_BYTES_PER_SECOND))
            prefill = speeds.first_token(service, args, launch, prompt)
            worth.append(
                {
                    "tokens": prompt,
                    "gib": round(size / GIB, 2),
                    "read_seconds": Range(least, usual, most).to_dict(),
                    "prefill_seconds": prefill.to_dict() if prefill else None,
                }
            )
    return KvTiers(
        folder=folder,
        host_gib=float(service.kv_tiers["host_gib"]),
        disk_gib=float(service.kv_tiers["disk_gib"]),
        prompt_tokens=max(0, min(length, int((host - fixed) / per_token))) if per_token else None,
        disk_tokens=int(disk / written) if written else None,
        written_gib=round(written * 1e6 / GIB, 1) if written else None,
        worth=worth,
    )


def _bytes_of(memory: Mapping[str, Any], length: int) -> tuple[float, float]:
    """Return the bytes of one more token, and of the windows and states of a prompt at most; (0, 0) if unknown."""
    per_token, needed = memory.get("marginal_bytes_per_token"), memory.get("needed_bytes_one_request")
    if not per_token or not needed:
        return 0.0, 0.0
    return float(per_token), max(0.0, needed - per_token * length)


def _written_per_token(memory: Mapping[str, Any]) -> float:
    """Return the bytes that a new token writes at most: blocks of all windows, though only the last ones are read back, and a state per batch."""
    size, batch = memory.get("bytes_per_block") or 0, memory.get("max_num_batched_tokens") or 1
    spans = [
        max(group["block_size"], batch) if group["kind"] in STATE_KINDS else group["block_size"]
        for group in memory.get("kv_groups") or ()
    ]
    return sum((size / span for span in spans), 0.0)


def findings(service: PlannedService, args: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings about the tiers of a planned service. args: options of its engine."""
    tiers = service.kv_tiers
    if tiers is None or service.rank:
        return

    kinds: Sequence[str] = [group["kind"] for group in service.memory.get("kv_groups") or []]
    ranks = int(args.get("tensor-parallel-size") or 1) * int(args.get("pipeline-parallel-size") or 1)
    sparks = service.cluster.size if service.cluster else 1
    refused = kv_tiers.refusal(service.vllm_version, args, kinds, ranks, sparks)
    if refused:
        message = f"its KV cache cannot be kept in files: {refused[0]}."
        yield Finding("kv_tiers.refused", "error", message, refused[1], service.name)
        return
    if service.vllm_version is None:
        message = f"kv_tiers needs vLLM {kv_tiers.LEAST}; the version in {service.image.ref} is unknown."
        fix = "Pull the image, or set image.vllm_version."
        yield Finding("kv_tiers.refused", "warning", message, fix, service.name)
    if tiers.prompt_tokens is not None and tiers.prompt_tokens < min(
        LEAST_PROMPT, service.memory.get("max_model_len") or LEAST_PROMPT
    ):
        message = f"kv_tiers restores {tiers.prompt_tokens:,} tokens of a prompt, as many as host_gib, {tiers.host_gib:g}, holds."
        # vLLM cannot map a region of no block.
        severity = "error" if tiers.host_gib * GIB < (service.memory.get("bytes_per_block") or 0) else "warning"
        fix = "Make kv_tiers.host_gib larger, or remove kv_tiers."
        yield Finding("kv_tiers.host", severity, message, fix, service.name)
    severity, message, fix = _worth(tiers)
    yield Finding("kv_tiers.worth", severity, message, fix, service.name)


def _worth(tiers: KvTiers) -> tuple[str, str, str]:
    """Return severity, message and fix of the finding that says what the tiers are worth, a warning if reading takes as long as computing."""
    if tiers.prompt_tokens is None:
        message = "what kv_tiers is worth is unknown: the plan does not know the bytes of a token."
        return "info", message, "Name a recipe, or a model whose config.json is known."
    texts, slower = [], False
    for row in tiers.worth:
        read, prefill = row["read_seconds"], row["prefill_seconds"]
        text = f"kv_tiers restores {row['tokens']:,} tokens ({row['gib']:g} GiB) in {_seconds(read)}"
        if prefill:
            saved = prefill["typical"] - read["typical"]
            slower = slower or saved <= 0
            text += f" instead of {_seconds(prefill)} of prefill, {round_figure(abs(saved)):g} s {'saved' if saved > 0 else 'lost'}"
        texts.append(text)
    message = (
        f"{'; '.join(reversed(texts)) or 'kv_tiers is for prompts of 32,768 tokens and more'}. Its buffer of {tiers.host_gib:g} GiB is memory of "
        f"the GPU and restores up to {tiers.prompt_tokens:,} tokens of a prompt; {tiers.disk_gib:g} GiB of disk keep {tiers.disk_tokens:,} tokens; "
        f"a million new tokens write at most {tiers.written_gib:g} GiB."
    )
    if slower:
        return "warning", message, "Remove kv_tiers, unless the proof measures otherwise on this disk."
    return "info", message, "Compare with the proof, which measures it."


def _seconds(seconds: Mapping[str, float]) -> str:
    return f"{seconds['typical']:g} s ({seconds['low']:g} to {seconds['high']:g})"
