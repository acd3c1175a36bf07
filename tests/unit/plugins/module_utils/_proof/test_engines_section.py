from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.basic import AnsibleModule
from module_calls import call_module
from programs_fixture import play
from returned_fixture import named

from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import engines
from ansible_collections.dgxspark.vllm.plugins.modules import spark_info

GIB = 1024**3
MEMORY = {
    "gpu_memory_utilization": 0.8,
    "vllm_version": "0.19.0",
    "requested_bytes": int(95.74 * GIB),
    "weights_bytes": int(74.85 * GIB),
    "draft_bytes": 0,
    "overhead_gib": {"low": 0.5, "typical": 1.5, "high": 3.0},
    "available_kv_bytes": {"low": int(17.89 * GIB), "typical": int(19.39 * GIB), "high": int(20.39 * GIB)},
    "residency_gib": {"low": 94.0, "typical": 96.8, "high": 98.2},
    "gpu_kv_cache_size_tokens": 211000,
    "max_concurrency": 12.25,
    "max_model_len": 65536,
    "block_size": 544,
}
LOG = """\
(EngineCore pid=83) INFO 11-20 09:25:20 [core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: model='...'
(EngineCore pid=83) INFO 11-20 09:31:04 [gpu_model_runner.py:4820] Model loading took 74.85 GiB memory and 343.120411 seconds
(EngineCore pid=83) INFO 11-20 09:31:54 [gpu_worker.py:436] Available KV cache memory: {kv} GiB
(EngineCore pid=83) INFO 11-20 09:31:54 [kv_cache_utils.py:1319] GPU KV cache size: {tokens:,} tokens
(EngineCore pid=83) INFO 11-20 09:31:54 [kv_cache_utils.py:1324] Maximum concurrency for 65,536 tokens per request: {times}x
"""
CONTAINERS = [
    {
        "Id": number * 64,
        "Name": f"/spark-{name}",
        "Image": "sha256:aa",
        "Config": {"Image": "vllm", "Labels": {"dgxspark.managed": "true"}},
        "State": {"Status": "running", "Pid": 77},
        "HostConfig": {"PortBindings": {}},
    }
    for number, name in (("1", "heavy"), ("2", "fast"))
]
UNIT = (
    "Id=spark-heavy.service\nLoadState=loaded\nActiveState=active\nActiveEnterTimestamp=Fri 2026-11-20 09:33:00 UTC\n"
)
RECORD = {
    "gate": {"total_gib": 119.67, "available_gib": 114.4, "clock": 10.0},
    "beside": {},
    "ready": {"available_gib": 17.5, "clock": 422.0},
    "start_seconds": 412.0,
}


@pytest.fixture
def spark(tree: Any, fake_run: Any) -> Any:
    """A host on which heavy runs by its plan and nothing is known of fast."""
    tree.write("proc/77/cgroup", f"0::/system.slice/docker-{'1' * 64}.scope\n")
    tree.write("run/starts/spark-heavy.service.json", json.dumps(RECORD))
    fake_run.on("docker ps", f"{'1' * 64}\n{'2' * 64}\n").on("docker container inspect", json.dumps(CONTAINERS))
    fake_run.on("nvidia-smi --query-gpu", "0, NVIDIA GB10, GPU-1, 580.159.03, 12.1, 44, 11.1, 2405, 0\n")
    fake_run.on("nvidia-smi --query-compute-apps", "77, VLLM::EngineCore, 97280\n").on(
        "nvidia-smi", "CUDA Version: 13.0"
    )
    fake_run.on("systemctl show", UNIT)
    fake_run.on(
        "docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy", LOG.format(kv="19.39", tokens=211000, times=12.25)
    )
    fake_run.on(
        "docker logs spark-fast",
        rc=1,
        err="Error response from daemon: configured logging driver does not support reading\n",
    )
    return tree


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: Any, spark: Any, fake_run: Any) -> Callable[..., dict[str, Any]]:
    play(monkeypatch, fake_run)

    def call(**args: Any) -> dict[str, Any]:
        settings = {
            "gather": ["engines"],
            "fail_on_unknown": True,
            "services": [{"name": "heavy", "memory": MEMORY}],
            "os_reserve_gib": 5.2,
            "root": str(spark),
            "run_dir": str(spark.root / "run"),
            **args,
        }
        result = call_module(spark_info, settings, capsys)
        assert result["changed"] is False or result["failed"]
        return result.get("engines") or result

    return call


@pytest.mark.parametrize("check", [False, True])
def test_a_service_that_goes_by_its_plan(call: Any, check: bool) -> None:
    result = call(_ansible_check_mode=check)
    assert result["findings"] == [] and result["system"]["verdict"] == "as_planned"
    heavy = result["services"]["heavy"]
    assert {term["verdict"] for term in heavy["terms"].values()} == {"as_planned", "not_planned"}
    assert heavy["override"] == {} and heavy["log"]["tokens_count"] == "blocks"
    assert heavy["measured"] == {
        "weights_gib": 74.85,
        "inside_gib": 1.5,
        "kv_cache_gib": 19.39,
        "outside_gib": 1.16,
        "residency_gib": 96.9,
        "kv_cache_tokens": 211000,
        "max_concurrency": 12.25,
        "gpu_gib": 95.0,
        "load_seconds": 343.120411,
        "compile_seconds": None,
        "start_seconds": 412.0,
    }


def test_the_documentation_names_every_result(call: Any) -> None:
    names = named(spark_info.RETURN, "engines")
    result = call()
    assert set(result) - {"changed", "invocation", "warnings"} - names == set()
    assert set(result["services"]["heavy"]) - names == set()
    term = result["services"]["heavy"]["terms"]["inside"]
    sample = yaml.safe_load(spark_info.RETURN)["engines"]["sample"]["services"]["heavy"]
    assert set(sample["terms"]["inside"]) == set(term)


def test_a_service_that_takes_more_inside(call: Any, fake_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
    lines = LOG.format(kv="16.29", tokens=177266, times=10.29)
    fake_run.on("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy", lines)
    result = call()
    (finding,) = result["findings"]
    assert (finding["rule"], finding["severity"]) == ("residency.inside", "warning")
    heavy = result["services"]["heavy"]
    assert heavy["override"]["overheads"]["inside_gib"] == 4.6 and heavy["findings"] == [finding]
    assert [text for text in warnings if "overheads: {inside_gib: 4.6" in text]


def test_what_cannot_be_read_is_null_with_a_reason(call: Any) -> None:
    services = [{"name": "heavy", "memory": MEMORY}, {"name": "fast", "memory": MEMORY}, {"name": "gone"}]
    result = call(services=services)
    assert result["findings"] == []
    fast, gone = result["services"]["fast"], result["services"]["gone"]
    assert fast["terms"]["weights"]["measured"] is None
    assert "does not support reading" in fast["terms"]["weights"]["reason"]
    assert fast["terms"]["residency"]["reason"] == "there is no record of its start; it is made at the next one"
    assert gone["terms"]["weights"]["reason"] == "the container spark-gone is not running"


def test_a_rotated_log_and_a_damaged_record(call: Any, spark: Any, fake_run: Any) -> None:
    fake_run.on("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy", "INFO: something later\n")
    spark.write("run/starts/spark-heavy.service.json", "{")
    terms = call()["services"]["heavy"]["terms"]
    assert terms["kv_cache"]["reason"] == "its log no longer has the lines of the start"
    assert terms["residency"]["reason"].startswith("the record of its start cannot be read")


def test_the_log_of_a_service_that_starts_is_read_whole(call: Any, fake_run: Any) -> None:
    fake_run.on("systemctl show", UNIT.replace("ActiveState=active", "ActiveState=activating"))
    fake_run.on("docker logs spark-heavy", LOG.format(kv="19.39", tokens=211000, times=12.25))
    assert call()["services"]["heavy"]["measured"]["kv_cache_tokens"] == 211000


def test_only_logs_are_asked_for_each_service(call: Any, fake_run: Any) -> None:
    call(services=[{"name": "heavy", "memory": MEMORY}, {"name": "fast"}])
    programs = [argv[:2] for argv in fake_run.calls if argv[0] != "nvidia-smi"]
    once = [["systemctl", "show"], ["docker", "ps"], ["docker", "container"]]
    assert sorted(programs) == sorted([*once, ["docker", "logs"], ["docker", "logs"]])


def test_a_bare_machine(call: Any, fake_run: Any, tmp_path: Path) -> None:
    fake_run.answers.clear()
    result = call(run_dir=str(tmp_path / "nothing"))
    assert result["findings"] == [] and result["system"]["verdict"] == "unknown"
    assert result["services"]["heavy"]["measured"]["residency_gib"] is None


# --- ranks of a service that spans hosts

SPAN = {"name": "pair_a", "size": 2, "head": "spark-1", "executor": "ray", "hosts": ["spark-1", "spark-2"]}
WORKER = """\
(Worker_TP1 pid=90) INFO 11-20 09:31:04 [gpu_model_runner.py:5133] Model loading took 74.85 GiB memory and 343.120411 seconds
(Worker_TP1 pid=90) INFO 11-20 09:31:54 [gpu_worker.py:467] Available KV cache memory: 19.39 GiB
"""
ENGINE = "".join(line for line in LOG.splitlines(keepends=True) if "gpu_" not in line).format(
    tokens=211000, times=12.25
)
RANKS = Path(__file__).parents[2] / "fixtures" / "ranks"


def rank_of(spark: Any, fake_run: Any, rank: int, session: str | None = WORKER) -> list[dict[str, Any]]:
    """Make heavy a rank under Ray, whose container holds the memory; returns the services to ask for."""
    containers = [
        {
            **CONTAINERS[0],
            "Name": f"/spark-heavy{suffix}",
            "Id": number * 64,
            "Config": {"Image": "vllm", "Labels": {"dgxspark.managed": "true", "dgxspark.service": "heavy"}},
        }
        for number, suffix in (("1", "-ray"), ("2", ""))
    ]
    fake_run.on("docker container inspect", json.dumps(containers[: 1 if rank else 2]))
    fake_run.on("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy", ENGINE)
    fake_run.on(
        "docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy-ray",
        (RANKS / "ray_worker_container.log").read_text(encoding="utf-8"),
    )
    if session is not None:
        spark.write(
            "run/ray/heavy/session/session_2026-11-20_09-20-00_000001_9/logs/worker-0-1-9.out", "of the start before\n"
        )
        spark.write(
            "run/ray/heavy/session/session_2026-11-20_09-24-21_526633_24/logs/worker-ab-01000000-90.out", session
        )
        spark.link("run/ray/heavy/session/session_latest", "run/ray/heavy/session/session_2026-11-20_09-20-00_000001_9")
    return [{"name": "heavy", "memory": MEMORY, "rank": rank, "cluster": SPAN}]


def test_a_worker_of_ray_is_read_from_its_session(call: Any, spark: Any, fake_run: Any) -> None:
    result = call(services=rank_of(spark, fake_run, 1))
    assert result["findings"] == []
    heavy = result["services"]["heavy"]
    measured = heavy["measured"]
    assert (measured["weights_gib"], measured["inside_gib"], measured["kv_cache_gib"]) == (74.85, 1.5, 19.39)
    assert (measured["gpu_gib"], measured["residency_gib"], measured["kv_cache_tokens"]) == (95.0, 96.9, None)
    assert heavy["terms"]["kv_cache_tokens"]["reason"] == "only the first rank of an engine says it, see the head's"
    assert heavy["terms"]["weights"]["verdict"] == "as_planned"


def test_the_head_of_ray_has_the_engine_s_log_and_the_session(call: Any, spark: Any, fake_run: Any) -> None:
    heavy = call(services=rank_of(spark, fake_run, 0))["services"]["heavy"]
    assert {term["verdict"] for term in heavy["terms"].values()} == {"as_planned", "not_planned"}
    assert (heavy["measured"]["gpu_gib"], heavy["measured"]["kv_cache_tokens"]) == (95.0, 211000)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("session", "words"), [(None, "a session of Ray, and"), ("", "has nothing of them"), (":job_id:01000000\n", "no longer")]
)  # fmt: skip
def test_a_session_that_cannot_be_read(
    call: Any, spark: Any, fake_run: Any, rank: int, session: str | None, words: str
) -> None:
    result = call(services=rank_of(spark, fake_run, rank, session))
    terms = result["services"]["heavy"]["terms"]
    assert result["findings"] == [] and terms["weights"]["measured"] is None
    if rank or words != "no longer":
        assert words in terms["weights"]["reason"]
    else:  # the log of the engine is complete, so missing lines were not written
        assert terms["weights"]["reason"] == "the start-up lines do not say it"
    assert terms["residency"]["measured"] == 96.9


def test_a_rank_of_mp_is_read_from_its_container(call: Any, fake_run: Any) -> None:
    fake_run.on("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy", WORKER)
    services = [{"name": "heavy", "memory": MEMORY, "rank": 1, "cluster": {**SPAN, "executor": "mp"}}]
    heavy = call(services=services)["services"]["heavy"]
    assert (heavy["measured"]["weights_gib"], heavy["measured"]["residency_gib"]) == (74.85, 96.9)
    assert heavy["findings"] == []
    fake_run.on("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy", (RANKS / "mp_rank1.log").read_text())
    heavy = call(services=services)["services"]["heavy"]
    assert (heavy["log"]["device"], heavy["log"]["version"]) == ("cpu", "0.32.0") and heavy["findings"] == []


def test_a_rank_whose_ray_is_not_running(call: Any, fake_run: Any) -> None:
    fake_run.on("docker container inspect", "[]")
    services = [{"name": "heavy", "memory": MEMORY, "rank": 1, "cluster": SPAN}]
    terms = call(services=services)["services"]["heavy"]["terms"]
    assert terms["weights"]["reason"] == "the container spark-heavy-ray is not running"


def test_what_a_start_took_is_kept_of_the_planned_launch_alone(spark: Any, fake_run: Any) -> None:
    launch = {"image_id": "sha256:aa", "image_ref": "vllm", "model": "1" * 32, "options": "2" * 32}
    memory = {**MEMORY, "launch": launch, "max_num_batched_tokens": 2048, "max_num_seqs": 4}

    def start(mark: str | None, label: str | None) -> Any:
        labels = {"dgxspark.managed": "true", **({"dgxspark.fingerprint": label} if label else {})}
        containers = [{**container, "Config": {"Image": "vllm", "Labels": labels}} for container in CONTAINERS]
        fake_run.on("docker container inspect", json.dumps(containers))
        services = [
            engines.Engine("heavy", "spark-heavy.service", "spark-heavy", 0, None, memory, {}, None, None, mark)
        ]
        results, _system, _findings = engines.look(
            HostView(fake_run, str(spark)), services, 5.2, 1.0, spark.root / "run"
        )
        return results["heavy"].start

    took = start("abc", "abc")
    assert (
        took.items()
        >= {**launch, "driver": "580.159.03", "gpu": "NVIDIA GB10", "weights_gib": 74.85, "inside_gib": 1.5}.items()
    )
    assert took["outside_gib"] == 1.16 and took["max_num_batched_tokens"] == 2048
    assert start(None, None) == took
    assert start("abc", "def") is None and start("abc", None) is None
