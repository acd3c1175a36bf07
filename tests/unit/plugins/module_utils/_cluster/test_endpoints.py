from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints


def service(**more: Any) -> dict[str, Any]:
    return {
        "name": "heavy",
        "rank": 0,
        "cluster": None,
        "port": 8001,
        "host": "192.168.1.11",
        "served_model_name": "qwen-heavy",
        "secrets": [{"name": "VLLM_API_KEY", "source": "/keys/heavy", "path": "/etc/x"}],
        "args": {"max-model-len": 65536},
        "memory": {"residency_gib": {"typical": 93.5}},
        **more,
    }


def test_an_engine_is_listed_with_what_clients_need() -> None:
    (found,) = endpoints.of_engines("spark-1", "spark-1.lan", {"services": [service()]})
    assert found["key"] == "spark-1/heavy" and found["url"] == "http://192.168.1.11:8001"
    assert found["models"] == ["qwen-heavy"] and found["api_key_file"] == "/keys/heavy"
    assert (found["max_model_len"], found["memory_gib"]) == (65536, 93.5)
    assert (found["unit"], found["hosts"]) == ("spark-heavy.service", ["spark-1"])


def test_a_model_over_two_hosts_is_one_endpoint_of_its_head() -> None:
    cluster = {"name": "pair_a", "hosts": ["spark-1", "spark-2"]}
    head = endpoints.of_engines("spark-1", "10.0.0.1", {"services": [service(cluster=cluster)]})
    worker = endpoints.of_engines("spark-2", "10.0.0.2", {"services": [service(cluster=cluster, rank=1)]})
    assert [each["key"] for each in head] == ["pair_a/heavy"] and worker == []
    assert head[0]["hosts"] == ["spark-1", "spark-2"]


@pytest.mark.parametrize(
    ("listen", "url", "there", "elsewhere"),
    [
        ("127.0.0.1", "http://127.0.0.1:8001", True, False),
        ("0.0.0.0", "http://spark-1.lan:8001", True, True),
        ("fd00::1", "http://[fd00::1]:8001", True, True),
    ],
)
def test_who_can_reach_it(listen: str, url: str, there: bool, elsewhere: bool) -> None:
    (found,) = endpoints.of_engines("spark-1", "spark-1.lan", {"services": [service(host=listen, secrets=[])]})
    assert found["url"] == url and found["api_key_file"] is None
    assert endpoints.reachable(found, "spark-1") is there
    assert endpoints.reachable(found, "spark-2") is elsewhere


def test_lengths_that_the_engine_works_out_are_not_known() -> None:
    (found,) = endpoints.of_engines("s", "s", {"services": [service(args={"max-model-len": "auto"}, memory={})]})
    assert found["max_model_len"] is None and found["memory_gib"] is None
