from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import engine_logs
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import start_stages


def test_the_lines_end_when_the_unit_was_active(fake_run: Any) -> None:
    fake_run.on("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy", "out\n", err="\x1b[32merr\n")
    assert engine_logs.read_logs(fake_run, ["spark-heavy"], "2026-11-20T09:33:00+00:00") == (
        ["out", "", "\x1b[32merr"],
        "",
    )


def test_a_log_of_a_clock_that_was_set_back_is_read_whole(fake_run: Any) -> None:
    """All of it is dated later than the moment at which the unit was active."""
    fake_run.on("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy").on("docker logs spark-heavy", "start\n")
    assert engine_logs.read_logs(fake_run, ["spark-heavy"], "2026-11-20T09:33:00+00:00") == (["start", ""], "")


def test_each_container_that_cannot_be_read_gives_a_reason(fake_run: Any) -> None:
    fake_run.on("docker logs spark-a", "line").on("docker logs spark-b", rc=1, err="first\nno such container\n")
    lines, reason = engine_logs.read_logs(fake_run, ["spark-a", "spark-b"], None)
    assert "line" in lines and reason == "its log cannot be read: no such container"


def test_containers_by_name_and_by_label() -> None:
    containers: list[dict[str, Any]] = [
        {"name": "spark-heavy", "service": None, "state": "running"},
        {"name": "spark-heavy-ray", "service": "heavy", "state": "running"},
        {"name": "spark-heavy-old", "service": "heavy", "state": "exited"},
        {"name": "spark-fast", "service": "fast", "state": "running"},
    ]
    assert engine_logs.containers_of("heavy", "spark-heavy", containers) == ["spark-heavy", "spark-heavy-ray"]


def test_units_that_are_not_active_have_no_moment(fake_run: Any) -> None:
    fake_run.on(
        "systemctl show",
        "Id=a.service\nActiveState=active\nActiveEnterTimestamp=Fri 2026-11-20 09:33:00 UTC\n\n"
        "Id=b.service\nActiveState=failed\nActiveEnterTimestamp=\n",
    )
    assert list(engine_logs.read_units(fake_run, ["a.service", "b.service"])) == ["a.service"]
    assert engine_logs.read_units(fake_run, []) == {}


@pytest.mark.parametrize("sessions", [[], ["session_2026-11-20_09-25-00_1"]])
def test_rays_newest_session(tmp_path: Path, sessions: list[str]) -> None:
    folder = tmp_path / "ray/heavy/session"
    for name in sessions:
        logs = folder / name / "logs"
        logs.mkdir(parents=True)
        (logs / "worker-1.out").write_text("new\n")
        (logs / "raylet.out").write_text("not a worker's\n")
        (folder / "session_2026-11-19_09-25-00_1/logs").mkdir(parents=True)
        (folder / "session_latest").symlink_to(folder / name)
    lines, reason = engine_logs.read_session(tmp_path, "heavy")
    assert lines == (["new"] if sessions else [])
    assert bool(reason) is not bool(sessions)


@pytest.mark.parametrize(
    ("line", "cause", "fix"),
    [
        (
            "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
            "sm_121",
            "image",
        ),
        (
            "ValueError: Failed to find a kernel that can implement the WNA16 linear layer. Reasons:",
            "quantised at home",
            "recipe",
        ),
        ('  File "/x/vllm/compilation/compiler_interface.py", line 441, in load', "compile cache", "spark_cache_dir"),
        ("_pickle.UnpicklingError: pickle data was truncated", "compile cache", "spark_cache_dir"),
    ],
)
def test_what_a_log_says_is_explained(line: str, cause: str, fix: str) -> None:
    found = engine_logs.known(
        ["loading", line, "RuntimeError: Engine core initialization failed. See root cause above."]
    )
    assert cause in found[0] and fix in found[1]


LOGS = Path(__file__).parents[2] / "fixtures" / "engine_logs"
# Real logs: at which line each stage begins, as read by a person.
BEGINS: dict[str, dict[int, str]] = {
    "healthy_fa3_graphs_then_sigterm": {
        14: "device",
        48: "load",
        51: "profile",
        60: "kv_cache",
        66: "graphs",
        114: "warm-up",
        156: "serving",
    },
    "healthy_moe_fp8_graphs_v1runner": {
        74: "device",
        79: "load",
        85: "profile",
        96: "kv_cache",
        104: "graphs",
        195: "warm-up",
        239: "serving",
    },
    # Graphs are captured twice, the first time to see what they take: until the cache is cut that is profiling.
    "healthy_v33_v2runner_graphs": {
        6: "device",
        10: "load",
        14: "profile",
        33: "kv_cache",
        36: "warm-up",
        39: "graphs",
        43: "warm-up",
    },
    "flashinfer_cut_off_while_warming_up": {77: "device", 82: "load", 85: "profile", 87: "kv_cache", 91: "warm-up"},
    "nvfp4_marlin_gdn_cut_off_while_loading": {84: "device", 90: "load"},
    "refused_kv_too_small_for_max_model_len": {76: "device", 81: "load", 84: "profile", 86: "kv_cache"},
    "refused_no_available_memory": {77: "device", 82: "load", 85: "profile", 87: "kv_cache"},
    "refused_gemma4_transformers_5_17": {},
    "single_tp1_first_start": {16: "device", 34: "load", 46: "profile", 50: "kv_cache", 52: "warm-up", 99: "serving"},
    "mp_tp2_rank0": {21: "device", 41: "load", 53: "kv_cache", 55: "warm-up", 104: "serving"},
    "mp_tp2_rank1": {28: "device", 32: "load", 38: "kv_cache"},
    "ray_tp2_ok_then_worker_killed": {20: "device", 40: "load", 51: "kv_cache", 53: "warm-up", 102: "serving"},
}
# What ended the start, or the engine later; the line at which it first stands; what it means and what to do.
ENDS: dict[str, tuple[int, str, str, str]] = {
    "refused_kv_too_small_for_max_model_len": (
        110,
        "ValueError: To serve at least one request with the model's max seq len (262144), (36.0 GiB KV cache is needed, ",
        "one request of max-model-len tokens",
        "lower max-model-len",
    ),
    "refused_no_available_memory": (
        111,
        "ValueError: No available memory for the cache blocks.",
        "leave nothing",
        "raise gpu-memory",
    ),
    "refused_gemma4_transformers_5_17": (
        124,
        "AmbiguousGlobalPerLayerAttributeError: 'head_dim'",
        "transformers",
        "older",
    ),
}


def log(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines()


def test_every_real_log_is_judged() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(BEGINS)


@pytest.mark.parametrize("name", BEGINS)
def test_the_stage_is_right_for_every_prefix(name: str) -> None:
    lines, reached = log(name), "arguments"
    for length in range(len(lines) + 1):
        reached = BEGINS[name].get(length, reached)
        assert start_stages.stage_of(lines[:length]) == reached, (length, lines[length - 1])
    assert reached == (list(BEGINS[name].values()) or ["arguments"])[-1]


@pytest.mark.parametrize("name", BEGINS)
def test_a_refusal_is_known_from_the_line_on_where_it_stands(name: str) -> None:
    """And of a start that goes well nothing is, for no prefix: warnings with tracebacks and lines that begin like refusals included."""
    lines = log(name)
    at, text, cause, fix = ENDS.get(name, (len(lines) + 1, "", "", ""))
    for length in range(len(lines) + 1):
        known, error = engine_logs.known(lines[:length]), engine_logs.error_of(lines[:length])
        if length < at:
            assert known == ("", ""), (length, lines[length - 1])
            assert name not in ENDS or error == "", (length, error)
        else:
            assert cause in known[0] and fix in known[1] and text in error, (length, error)


def test_of_several_starts_in_one_journal_the_last_one_counts() -> None:
    journal = log("refused_no_available_memory") + log("healthy_fa3_graphs_then_sigterm")[:70]
    assert start_stages.stage_of(journal) == "graphs" and engine_logs.error_of(journal) == ""
    assert start_stages.stage_of(journal[:230]) == "device"


def test_an_error_that_only_points_to_another_is_named_when_there_is_no_other() -> None:
    lines = log("refused_no_available_memory")
    end = next(index for index, line in enumerate(lines) if line.startswith("(APIServer") and "Traceback" in line)
    assert engine_logs.error_of(lines[end:]).startswith("RuntimeError: Engine core initialization failed.")


@pytest.mark.parametrize(
    "line",
    [
        "INFO [backends.py:1] Using cache directory: /root/.cache/vllm/torch_compile_cache/ab/rank_0_0/backbone for vLLM's torch.compile",
        "INFO [backends.py:1] Directly load the compiled graph(s) for compile range (1, 2048) from the cache, took 1.2 s",
        '  File "/x/vllm/compilation/compiler_interface.py", line 250, in compile',
        "ValueError: Free memory on device",
        "",
    ],
)
def test_what_is_not_known_is_not_explained(line: str) -> None:
    assert engine_logs.known([line]) == ("", "")


@pytest.mark.parametrize(
    ("line", "percent"),
    [
        ("Starting to load model org/m", None),
        ("Starting to load model org/m\nLoading safetensors checkpoint shards:   0% Completed | 0/7 [00:00<?]", 0),
        ("Loading safetensors checkpoint shards:  43% Completed | 3/7 [00:09<00:12]", 43),
        # The next stage does not say how far it is.
        ("Loading safetensors checkpoint shards: 100% Completed | 7/7\nModel loading took 3.1 GiB", None),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   6%|▌         | 3/51 [00:00<00:06]", 6),
    ],
)
def test_a_stage_is_as_far_as_its_log_says(line: str, percent: int | None) -> None:
    assert start_stages.percent_of(line.splitlines()) == percent
    # An earlier start does not count.
    assert start_stages.percent_of([*line.splitlines(), "vLLM API server version 0.19.0"]) is None
