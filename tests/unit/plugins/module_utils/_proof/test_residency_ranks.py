"""What the ranks of an engine that spans hosts say of their start. The fixtures are parts of real logs of vLLM's CPU build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof.residency import (
    NOT_SAID,
    OF_FIRST_RANK,
    HostUse,
    StartLog,
    compare,
    figures,
    parse_log,
)

GIB = 2**30
LOGS = Path(__file__).parents[2] / "fixtures" / "ranks"
PLAN: dict[str, Any] = {
    "gpu_memory_utilization": 0.8,
    "vllm_version": "0.32.0",
    "requested_bytes": int(97.3 * GIB),
    "weights_bytes": int(58.1 * GIB),
    "draft_bytes": 0,
    "overhead_gib": {"low": 1.0, "typical": 2.5, "high": 4.0},
    "available_kv_bytes": {"low": int(35.2 * GIB), "typical": int(36.7 * GIB), "high": int(38.2 * GIB)},
    "residency_gib": {"low": 96.0, "typical": 98.9, "high": 101.0},
    "gpu_kv_cache_size_tokens": 800000,
    "max_concurrency": 24.4,
    "max_model_len": 32768,
    "block_size": 16,
}


def lines(name: str) -> list[str]:
    return (LOGS / name).read_text(encoding="utf-8").splitlines()


def on_gpu(log: list[str], rank: int, weights: float = 58.1, cache: float = 36.7) -> list[str]:
    """The same lines as a GPU worker writes them: its measured memory instead of the CPU build's configured memory."""
    result = []
    for line in log:
        head, _sep, _tail = line.partition(f"(Worker_TP{rank} pid=")
        if "Loading weights took" in line and _sep:
            pid = _tail.partition(")")[0]
            who = f"{head}(Worker_TP{rank} pid={pid}) INFO 11-20 09:38:40"
            result.append(
                f"{who} [gpu_model_runner.py:5133] Model loading took {weights} GiB memory and 300.120000 seconds"
            )
            result.append(f"{who} [gpu_worker.py:467] Available KV cache memory: {cache} GiB")
        elif "Explicitly set" not in line:
            result.append(line.replace("CPU KV cache size", "GPU KV cache size").replace("cpu_", "gpu_"))
    return result


# --- executor mp


def test_the_log_of_a_headless_rank() -> None:
    log = parse_log(lines("mp_rank1.log"))
    assert (log.version, log.device, log.read_seconds) == ("0.32.0", "cpu", 0.01)
    assert (log.kv_cache_tokens, log.max_concurrency, log.init_seconds, log.utilization) == (None, None, None, None)
    assert log.complete(rank=1) and not log.complete(rank=0)


def test_the_log_of_the_first_rank() -> None:
    log = parse_log(lines("mp_rank0.log"))
    assert (log.version, log.device, log.read_seconds) == ("0.32.0", "cpu", 0.01)
    assert (log.kv_cache_tokens, log.max_concurrency, log.init_seconds) == (4194304, 2048.0, 4.97)
    assert log.complete(rank=0)


@pytest.mark.parametrize(("name", "rank"), [("dp_rank0.log", 0), ("dp_rank1.log", 1)])
def test_the_log_of_a_replica(name: str, rank: int) -> None:
    """Captured from two replicas of vLLM 0.32.0: each has an engine, and counts the tokens of its own cache."""
    log = parse_log(lines(name))
    assert (log.version, log.device, log.kv_cache_tokens, log.max_concurrency) == ("0.32.0", "cpu", 1048576, 1024.0)
    assert log.init_seconds is not None and log.complete(rank)


def test_a_headless_rank_is_compared_by_what_it_says() -> None:
    log = parse_log(on_gpu(lines("mp_rank1.log"), 1))
    assert (log.device, log.ranks, log.weights_gib, log.kv_cache_gib) == ("gpu", 1, 58.1, 36.7)
    terms, findings = compare("qwen235", PLAN, log, HostUse(taken_gib=98.9, start_seconds=400.0), rank=1)
    assert findings == []
    verdicts = {name: term.verdict for name, term in terms.items()}
    assert {verdicts.pop(name) for name in ("kv_cache_tokens", "max_concurrency")} == {"unknown"}
    assert set(verdicts.values()) == {"as_planned", "not_planned"}
    assert terms["kv_cache_tokens"].reason == terms["max_concurrency"].reason == OF_FIRST_RANK
    measured = figures(terms, log, HostUse())
    assert (measured["weights_gib"], measured["inside_gib"], measured["kv_cache_tokens"]) == (58.1, 2.5, None)


def test_a_headless_rank_that_takes_more_names_the_override() -> None:
    log = parse_log(on_gpu(lines("mp_rank1.log"), 1, cache=30.7))
    _terms, findings = compare("qwen235", PLAN, log, HostUse(taken_gib=98.9), rank=1)
    assert [(finding.rule, finding.severity) for finding in findings] == [("residency.inside", "warning")]
    assert "inside_gib: 8.5" in findings[0].fix


def test_a_rank_that_said_nothing() -> None:
    log = parse_log(lines("ray_worker_container.log"))
    assert log == StartLog() and not log.complete(rank=1)
    terms, findings = compare("qwen235", PLAN, log, HostUse(reason="nothing noted"), rank=1)
    assert findings == [] and {term.verdict for term in terms.values()} == {"unknown"}
    assert terms["weights"].reason == NOT_SAID and terms["kv_cache_tokens"].reason == OF_FIRST_RANK


# --- executor ray


def session(pid: int) -> list[str]:
    """What a worker itself wrote: the lines that Ray brought to the head, without what Ray puts before them."""
    return [line.split("[0m ", 1)[1] for line in lines("ray_engine.log") if f"RayWorkerProc pid={pid}" in line]


def test_the_head_leaves_out_what_ray_brought_of_another_host() -> None:
    """The worker's own process has another number; its address tells it apart from this host's."""
    brought = lines("ray_engine.log")
    assert sum("ip=10.231.0.2" in line for line in brought) == 5
    log = parse_log(brought)
    assert (log.version, log.device, log.kv_cache_tokens, log.init_seconds) == ("0.32.0", "cpu", 4194304, 3.55)
    assert log.read_seconds == 0.01
    foreign = parse_log([line for line in brought if "ip=" in line])
    assert foreign == StartLog()


@pytest.mark.parametrize(("pid", "rank"), [(32306, 0), (32308, 1)])
def test_what_a_worker_wrote_itself(pid: int, rank: int) -> None:
    log = parse_log(on_gpu(session(pid), rank))
    assert (log.device, log.ranks, log.weights_gib, log.kv_cache_gib, log.version) == ("gpu", 1, 58.1, 36.7, None)
    assert log.complete(rank=1)


def test_a_worker_of_ray_is_compared_by_its_session() -> None:
    log = parse_log(lines("ray_worker_container.log"), on_gpu(session(32308), 1))
    terms, findings = compare("qwen235", PLAN, log, HostUse(taken_gib=98.9), rank=1)
    assert findings == [] and terms["weights"].verdict == terms["inside"].verdict == "as_planned"


def test_what_the_workers_wrote_beats_what_ray_made_of_it() -> None:
    """Ray shows one of the lines that differ in figures only, here as if it were of this host."""
    brought = on_gpu(lines("ray_engine.log"), 0, weights=99.9, cache=1.0)
    assert parse_log(brought).weights_gib == 99.9
    worker_lines = on_gpu(session(32306), 0)
    log = parse_log(brought, worker_lines)
    assert (log.weights_gib, log.kv_cache_gib, log.load_seconds, log.ranks) == (58.1, 36.7, 300.12, 1)
    assert (log.version, log.kv_cache_tokens, log.device) == ("0.32.0", 4194304, "gpu")


def test_nothing_counts_twice_when_both_have_it() -> None:
    compiled = "(Worker_TP0 pid=32306) INFO 11-20 09:35:58 [monitor.py:48] torch.compile took 21.40 s in total"
    log = parse_log([f"\x1b[36m(RayWorkerProc pid=32306)\x1b[0m {compiled}"], [compiled])
    assert log.compile_seconds == 21.4


def test_a_session_without_figures_leaves_what_ray_brought() -> None:
    brought = on_gpu(lines("ray_engine.log"), 0)
    idle = [":job_id:01000000", ":actor_name:RayWorkerProc"]
    assert parse_log(brought, idle).weights_gib == 58.1
