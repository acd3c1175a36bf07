# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Buffers that options of vLLM place in the container's /dev/shm. Pure functions; vLLM 0.27.0 to 0.33.0."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .._common.sizes import GIB

KV_BUFFER_SINCE = "0.27.0"
"""First release with the buffer of offloaded KV cache blocks in /dev/shm (v1/kv_offload/cpu/shared_offload_region.py)."""

_DOCKER_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": GIB, "t": GIB << 10}
_DOCKERS_DEFAULT = 64 << 20
_MEDIA_CACHE_GIB = 4.0  # default of --mm-processor-cache-gb (config/multimodal.py)
# Message queues between an executor and its workers take 240 MiB (shm_broadcast.py: 10 chunks of 24 MiB).
_MARGIN = GIB


def connectors(transfer: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each connector of C(kv-transfer-config) with its settings, including those inside a MultiConnector."""
    if not isinstance(transfer, Mapping):
        return
    name, extra = str(transfer.get("kv_connector") or ""), transfer.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, Mapping) else {}
    if name != "MultiConnector":
        yield name, dict(extra)
        return
    inner = extra.get("connectors")
    for connector in inner if isinstance(inner, list) else []:
        yield from connectors(connector)


def kv_buffer_bytes(args: Mapping[str, Any], env: Mapping[str, Any]) -> int:
    """Return the size of the OffloadingConnector's buffer, which each host of a launch has in /dev/shm; 0 without that connector."""
    size = _number(args.get("kv-offloading-size"))
    if size:
        simple = str(env.get("VLLM_USE_SIMPLE_KV_OFFLOAD") or "").lower() not in ("", "0", "false")
        return 0 if simple or args.get("kv-offloading-backend") == "lmcache" else int(size * GIB)
    return sum(
        int(_number(extra.get("cpu_bytes_to_use")))
        for name, extra in connectors(args.get("kv-transfer-config"))
        if name == "OffloadingConnector"
    )


def media_cache_bytes(args: Mapping[str, Any]) -> int:
    """Return the size of the media cache's ring buffer; 0 unless C(mm-processor-cache-type) places it in /dev/shm."""
    if args.get("mm-processor-cache-type") != "shm":
        return 0
    size = args.get("mm-processor-cache-gb")
    return int((_MEDIA_CACHE_GIB if size is None else _number(size)) * GIB)


def docker_bytes(size: str | None) -> int:
    """Return the bytes of a value of C(--shm-size), Docker's default for none; 0 for text that is no size."""
    if size is None:
        return _DOCKERS_DEFAULT
    match = _DOCKER_SIZE.fullmatch(size.strip())
    return int(float(match.group(1)) * _UNITS[match.group(2).lower()]) if match else 0


def shm_size(setting: str, args: Mapping[str, Any], env: Mapping[str, Any]) -> str:
    """Return the C(--shm-size) of an engine: the setting, or more if its buffers do not fit, as Docker takes a size."""
    buffers = kv_buffer_bytes(args, env) + media_cache_bytes(args)
    return setting if not buffers or buffers + _MARGIN <= docker_bytes(setting) else enough(buffers)


def enough(buffers: int) -> str:
    """Return the C(--shm-size) in which buffers of so many bytes fit."""
    return f"{math.ceil((buffers + _MARGIN) / GIB)}g"


def _number(value: Any) -> float:
    """Return a size that is written as a number or as text; 0 if it is neither."""
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return 0.0
