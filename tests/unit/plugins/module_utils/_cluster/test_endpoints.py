from __future__ import annotations

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints


@pytest.mark.parametrize(
    ("listen", "url", "there", "elsewhere"),
    [
        ("127.0.0.1", "http://127.0.0.1:8001", True, False),
        ("0.0.0.0", "http://spark-1.lan:8001", True, True),
        ("fd00::1", "http://[fd00::1]:8001", True, True),
    ],
)
def test_who_can_reach_it(listen: str, url: str, there: bool, elsewhere: bool) -> None:
    found = endpoints.make("spark-1", "spark-1.lan", "heavy", "vllm", 8001, listen)
    assert found["url"] == url and found["api_key_file"] is None
    assert endpoints.reachable(found, "spark-1") is there
    assert endpoints.reachable(found, "spark-2") is elsewhere
