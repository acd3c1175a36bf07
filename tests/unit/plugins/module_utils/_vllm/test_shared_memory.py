"""Sizes of /dev/shm that buffers of vLLM need."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.sizes import GIB
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import shared_memory

OFFLOADING = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 20 * GIB}}
NIXL = {"kv_connector": "NixlConnector"}


@pytest.mark.parametrize(
    ("args", "env", "size"),
    [
        ({}, {}, "8g"),
        ({"kv-offloading-size": 4}, {}, "8g"),
        ({"kv-offloading-size": 7.5}, {}, "9g"),
        ({"kv-offloading-size": 30, "kv-offloading-backend": "lmcache"}, {}, "8g"),
        ({"kv-offloading-size": 30}, {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}, "8g"),
        ({"kv-transfer-config": OFFLOADING}, {}, "21g"),
        (
            {
                "kv-transfer-config": {
                    "kv_connector": "MultiConnector",
                    "kv_connector_extra_config": {"connectors": [NIXL, OFFLOADING]},
                }
            },
            {},
            "21g",
        ),
        ({"mm-processor-cache-type": "shm", "mm-processor-cache-gb": 12}, {}, "13g"),
        ({"mm-processor-cache-type": "lru", "mm-processor-cache-gb": 12}, {}, "8g"),
        ({"mm-processor-cache-type": "shm", "kv-offloading-size": 6}, {}, "11g"),
    ],
)
def test_the_size_holds_every_buffer(args: dict[str, Any], env: dict[str, Any], size: str) -> None:
    assert shared_memory.shm_size("8g", args, env) == size


@pytest.mark.parametrize(
    ("size", "expected"),
    [(None, 64 << 20), ("8g", 8 * GIB), ("512MB", 512 << 20), ("1024", 1024), ("1.5G", 3 * GIB // 2), ("big", 0)],
)
def test_sizes_of_docker(size: str | None, expected: int) -> None:
    assert shared_memory.docker_bytes(size) == expected
