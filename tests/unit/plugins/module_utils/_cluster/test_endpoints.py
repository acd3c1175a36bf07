from __future__ import annotations

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints


@pytest.mark.parametrize(
    ("listen", "url", "target", "elsewhere"),
    [
        ("127.0.0.1", "http://127.0.0.1:8001", True, False),
        ("0.0.0.0", "http://spark-1.lan:8001", True, True),
        ("fd00::1", "http://[fd00::1]:8001", True, True),
    ],
)
def test_who_can_reach_it(listen: str, url: str, target: bool, elsewhere: bool) -> None:
    result = endpoints.make("spark-1", "spark-1.lan", "heavy", "vllm", 8001, listen)
    assert result["url"] == url and result["api_key_file"] is None
    assert endpoints.reachable(result, "spark-1") is target
    assert endpoints.reachable(result, "spark-2") is elsewhere
