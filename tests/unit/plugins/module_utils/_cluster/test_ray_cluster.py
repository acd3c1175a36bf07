"""Ray's command lines, ports and containers."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import engine_env, firewall, ray_cluster, ray_names

HEAD, WORKER = "192.168.100.10", "192.168.100.11"


def options(argv: list[str]) -> dict[str, str]:
    """The options of `ray start`, after `start`."""
    assert argv[0] == "start"
    pairs = [word.partition("=") for word in argv[1:]]
    assert all(word.startswith("--") for word, _sign, _value in pairs)
    return {word: value for word, _sign, value in pairs}


def test_the_command_lines_that_were_tried() -> None:
    """With Ray 2.60 and vLLM 0.32 on two simulated Sparks; test a change there again."""
    assert ray_cluster.start_argv(True, HEAD, HEAD) == [
        "start",
        "--head",
        "--port=6379",
        "--include-dashboard=false",
        "--node-ip-address=192.168.100.10",
        "--node-manager-port=11000",
        "--object-manager-port=11001",
        "--runtime-env-agent-port=11002",
        "--metrics-export-port=11003",
        "--dashboard-agent-listen-port=11004",
        "--dashboard-agent-grpc-port=11005",
        "--min-worker-port=11020",
        "--max-worker-port=11119",
        "--num-cpus=2",
        "--num-gpus=1",
        "--object-store-memory=1073741824",
        "--disable-usage-stats",
        "--block",
    ]
    head, worker = (
        options(ray_cluster.start_argv(first, address, HEAD)) for first, address in ((True, HEAD), (False, WORKER))
    )
    assert {key for key in worker if worker.get(key) != head.get(key)} == {"--address", "--node-ip-address"}
    assert set(head) - set(worker) == {"--head", "--port", "--include-dashboard"}
    assert (worker["--address"], worker["--node-ip-address"]) == (f"{HEAD}:6379", WORKER)


CLIENT_PORT = 10001
"""Ray's default for its client server, which cannot be switched off where grpcio is installed, nor be named where it is not."""


def listened(slot: int) -> list[int]:
    """Every port that the Ray of a slot may listen on."""
    argv = options(ray_cluster.start_argv(True, HEAD, HEAD, slot))
    named = [int(value) for key, value in argv.items() if key.endswith("port") and "-worker-" not in key]
    low, high = ray_cluster.worker_ports(slot)
    client = [] if slot else [CLIENT_PORT]
    metrics = int(ray_cluster.environment(slot)["AUTOSCALER_METRIC_PORT"])
    return [*named, *client, metrics, *range(low, high + 1)]


def test_no_two_ports_are_one() -> None:
    """Neither within a Ray, nor between several engines on one host."""
    ports = list(itertools.chain.from_iterable(listened(slot) for slot in range(ray_cluster.SLOTS)))
    assert len(ports) == len(set(ports)) == ray_cluster.SLOTS * 109


def test_the_firewall_closes_all_of_them() -> None:
    for slot in range(ray_cluster.SLOTS):
        assert [port for port in listened(slot) if not firewall.is_closed(port, firewall.CLOSED)] == []


def test_workers_find_the_gcs_of_their_slot() -> None:
    head = options(ray_cluster.start_argv(True, HEAD, HEAD, 3))
    worker = options(ray_cluster.start_argv(False, WORKER, HEAD, 3))
    assert worker["--address"] == f"{HEAD}:{head['--port']}" == f"{HEAD}:{ray_cluster.gcs_port(3)}"
    assert f"RAY_ADDRESS={HEAD}:{head['--port']}" in ray_cluster.engine_args("x", "spark-x", HEAD, 3)


@pytest.mark.parametrize("slot", [-1, ray_cluster.SLOTS])
def test_there_are_only_so_many_slots(slot: int) -> None:
    for function in (ray_cluster.gcs_port, ray_cluster.worker_ports, ray_cluster.environment):
        with pytest.raises(ValueError, match="executor mp"):
            function(slot)
    with pytest.raises(ValueError, match="executor mp"):
        ray_cluster.start_argv(True, HEAD, HEAD, slot)


def test_the_engine_shares_what_it_needs_with_ray() -> None:
    args = ray_cluster.engine_args("x", "spark-x", HEAD)
    assert (
        args[args.index("--pid") + 1] == f"container:{ray_names.container_name('spark-x')}" == "container:spark-x-ray"
    )
    mount = ray_cluster.mounts("x")
    assert mount == ["--volume", "/run/dgxspark/ray/x/session:/tmp/ray"]
    assert any(args[place : place + 2] == mount for place in range(len(args)))
    assert ray_cluster.environment()["VLLM_RPC_BASE_PATH"] == mount[1].rpartition(":")[2]


def test_the_environment_repeats_nothing_of_the_fabric() -> None:
    text = Path(str(engine_env.__file__)).read_text()
    assert '"RAY_memory_monitor_refresh_ms"' in text
    assert [name for name in ray_cluster.environment() if f'"{name}"' in text] == []


def test_what_is_not_to_be_copied() -> None:
    arguments: Any = ray_cluster.carry_over(["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
    assert arguments["path"] == "/etc/dgxspark/vllm/ray_non_carry_over_env_vars.json"
    assert json.loads(arguments["content"]) == ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
    root = arguments["path"].rpartition("/")[0]
    assert f"VLLM_CONFIG_ROOT={root}" in ray_cluster.engine_args("x", "spark-x", HEAD)


def test_the_name_of_an_image_follows_from_what_is_in_it() -> None:
    tag = ray_cluster.derived_tag("sha256:aa", "2.60.0")
    assert re.fullmatch(r"dgxspark/ray:[0-9a-f]{12}", tag)
    assert tag == ray_cluster.derived_tag("sha256:aa", "2.60.0")
    assert (
        len({tag, ray_cluster.derived_tag("sha256:ab", "2.60.0"), ray_cluster.derived_tag("sha256:aa", "2.59.0")}) == 3
    )
