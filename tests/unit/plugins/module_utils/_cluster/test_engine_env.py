# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment of engines over several hosts follows from the topology, and every value has its source."""

from __future__ import annotations

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster.engine_env import Place, environment

PAIR = Place("enp1s0f0np0", "192.168.100.10", ("rocep1s0f0", "roceP2p1s0f0"))
RING = Place("enP7s7", "10.0.0.1", ("rocep1s0f0", "roceP2p1s0f0", "rocep1s0f1", "roceP2p1s0f1"), True)


def engine_environment(place: Place, topology: str, size: int) -> dict[str, str]:
    result: dict[str, str] = environment(place, topology, size)["mp"]
    return result


@pytest.mark.parametrize(
    ("topology", "size", "expected"),
    [
        ("direct", 2, {"NCCL_IB_MERGE_NICS": "1"}),
        ("switch", 2, {"NCCL_IB_MERGE_NICS": "1"}),
        ("switch", 4, {"NCCL_IB_MERGE_NICS": "1", "NCCL_NVLS_ENABLE": "0"}),
        ("switch", 8, {"NCCL_IB_MERGE_NICS": "1", "NCCL_NVLS_ENABLE": "0"}),
        ("ring", 3, {"NCCL_IB_MERGE_NICS": "0", "NCCL_IB_SUBNET_AWARE_ROUTING": "1"}),
        *(
            (
                "ring",
                size,
                {
                    "NCCL_ALGO": "Ring",
                    "NCCL_IB_MERGE_NICS": "0",
                    "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
                    "NCCL_NVLS_ENABLE": "0",
                },
            )
            for size in (4, 6, 8)
        ),
    ],
)
def test_what_differs_by_topology(topology: str, size: int, expected: dict[str, str]) -> None:
    result = engine_environment(RING if topology == "ring" else PAIR, topology, size)
    differing = ("NCCL_ALGO", "NCCL_IB_MERGE_NICS", "NCCL_IB_SUBNET_AWARE_ROUTING", "NCCL_NVLS_ENABLE")
    assert {name: result[name] for name in differing if name in result} == expected


def test_each_rank_binds_its_own_interface() -> None:
    assert (
        engine_environment(PAIR, "switch", 4)["GLOO_SOCKET_IFNAME"]
        == engine_environment(PAIR, "switch", 4)["TP_SOCKET_IFNAME"]
        == "enp1s0f0np0"
    )
    result = environment(RING, "ring", 4)
    assert result["mp"]["NCCL_SOCKET_IFNAME"] == "enP7s7" and result["mp"]["VLLM_HOST_IP"] == "10.0.0.1"
    assert result["mp"]["NCCL_IB_HCA"] == "rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1"
    assert {"VLLM_HOST_IP", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME"} <= set(result["per_host"])
    assert not {"NCCL_ALGO", "NCCL_NVLS_ENABLE"} & set(result["per_host"])


def test_everything_has_a_source_and_no_index_is_stored() -> None:
    for place, topology, size in ((PAIR, "direct", 2), (RING, "ring", 3), (RING, "ring", 4), (PAIR, "switch", 8)):
        result = environment(place, topology, size)
        assert set(result["sources"]) == set(result["mp"]) | set(result["ray"]) and all(result["sources"].values())
        assert not any("GID_INDEX" in name for name in result["sources"])


def test_a_host_that_is_not_found_is_told_nothing_and_one_without_rdma_no_devices() -> None:
    assert environment(Place(), "ring", 4) == {"mp": {}, "ray": {}, "per_host": [], "sources": {}}
    assert "NCCL_IB_HCA" not in engine_environment(Place("enp1s0f0np0", "192.168.100.10"), "direct", 2)
