"""The module, which is readiness.py with options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from module_calls import call_module
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import units
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import readiness
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command, endpoint
from ansible_collections.dgxspark.vllm.plugins.modules import endpoint_ready

UNIT = "spark-heavy.service"
LOGS = Path(__file__).parents[1] / "fixtures" / "engine_logs"


def shown(active: str, restarts: int = 0, load: str = "loaded") -> str:
    return f"Id={UNIT}\nLoadState={load}\nActiveState={active}\nSubState=x\nResult=exit-code\nNRestarts={restarts}\n"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: Any, fake_run: Any) -> Any:
    play(monkeypatch, fake_run)

    def call(**args: Any) -> dict[str, Any]:
        settings = {"model": "heavy", "timeout": 1.0, "interval": 0.05, "request_timeout": 0.5, **args}
        return call_module(endpoint_ready, settings, capsys)

    return call


def test_ready(call: Any, engine: Any, fake_run: Any) -> None:
    fake_run.on("systemctl show", shown("active"))
    result = call(url=engine.url, unit=UNIT, checks={"tools": True, "reasoning": True})
    assert result["ready"] is True and result["changed"] is False and result["stage"] == "reasoning"
    assert result["checks"] == dict.fromkeys(["health", "models", "completion", "tools", "reasoning"], True)
    assert result["unit_state"]["active_state"] == "active"
    assert not any(argv[0] == "journalctl" for argv in fake_run.calls)


def test_failed_unit_is_not_waited_for_and_its_log_is_shown(call: Any, closed_port: int, fake_run: Any) -> None:
    fake_run.on("systemctl show", shown("failed", 3)).on("journalctl", "loading\nValueError: Free memory on device\n")
    result = call(url=f"http://127.0.0.1:{closed_port}", unit=UNIT, timeout=60, log_lines=1)
    assert result["failed"] is True and result["ready"] is False and result["elapsed_seconds"] < 30
    assert result["stage"] == "health" and result["log"] == ["ValueError: Free memory on device"]
    assert f"the unit {UNIT} has failed" in result["msg"] and "ValueError: Free memory on device" in result["msg"]
    assert result["unit_state"]["n_restarts"] == 3


def test_a_reason_above_the_lines_that_are_shown_is_named(call: Any, closed_port: int, fake_run: Any) -> None:
    message = "ValueError: Failed to find a kernel that can implement the WNA16 linear layer. Reasons:\n"
    fake_run.on("systemctl show", shown("failed", 3)).on("journalctl", message + "its traceback\n" * 60)
    result = call(url=f"http://127.0.0.1:{closed_port}", unit=UNIT, timeout=60, log_lines=2)
    assert result["log"] == ["its traceback"] * 2
    assert "Its log says why: no kernel has this layer's format" in result["msg"]
    assert "Fix: use a checkpoint that a recipe names" in result["msg"]


def test_the_stage_and_the_words_of_the_engine_are_shown_from_far_above(
    call: Any, closed_port: int, fake_run: Any, tmp_path: Path
) -> None:
    """A real log: its last lines only say that the reason is further up."""
    text = (LOGS / "refused_kv_too_small_for_max_model_len.log").read_text(encoding="utf-8")
    key = tmp_path / "key"
    key.write_text("53440\n")
    fake_run.on("systemctl show", shown("failed", 3)).on("journalctl", text)
    result = call(url=f"http://127.0.0.1:{closed_port}", unit=UNIT, timeout=60, log_lines=5, api_key_file=str(key))
    assert result["log_stage"] == "kv_cache"
    assert result["log_error"].startswith(
        "ValueError: To serve at least one request with the model's max seq len (262144)"
    )
    assert "By its log the start had come to the stage kv_cache." in result["msg"]
    assert "one request of max-model-len tokens does not fit" in result["msg"] and result["log_error"] in result["msg"]
    # A number in the log that equals the key is redacted, too.
    assert "53440" not in json.dumps(result) and "estimated maximum model length is ********" in result["msg"]


def test_unit_that_restarts_again_and_again(call: Any, closed_port: int, fake_run: Any, monkeypatch: Any) -> None:
    restarts = iter([4, 4, 5, 6, 6])

    def run(argv: list[str], **_: Any) -> tuple[int, str, str]:
        return (0, shown("activating", next(restarts)), "") if argv[0] == "systemctl" else (0, "", "")

    play(monkeypatch, run)
    result = call(url=f"http://127.0.0.1:{closed_port}", unit=UNIT, timeout=60)
    assert result["failed"] is True and result["elapsed_seconds"] < 30
    assert "restarts again and again (2 times during this wait)" in result["error"]


@pytest.mark.parametrize(
    ("state", "words"), [(shown("inactive"), "is not running"), (shown("inactive", load="not-found"), "does not exist")]
)
def test_unit_that_does_not_run(call: Any, engine: Any, fake_run: Any, state: str, words: str) -> None:
    fake_run.on("systemctl show", state)
    result = call(url=engine.url, unit=UNIT)
    assert result["failed"] is True and words in result["msg"]


def test_start_that_waits_behind_another_unit_is_waited_for(call: Any, engine: Any, fake_run: Any) -> None:
    fake_run.on("systemctl show", shown("inactive") + "Job=321\n")
    assert call(url=engine.url, unit=UNIT)["ready"] is True


@pytest.mark.parametrize("state", [shown("inactive"), shown("inactive", load="not-found")])
def test_check_run_does_not_wait_for_what_it_did_not_start(call: Any, engine: Any, fake_run: Any, state: str) -> None:
    fake_run.on("systemctl show", state)
    result = call(url=engine.url, unit=UNIT, _ansible_check_mode=True)
    assert result["ready"] is None and result["changed"] is False and "failed" not in result
    assert engine.requests == []


def test_check_run_probes_what_runs(call: Any, engine: Any, fake_run: Any) -> None:
    fake_run.on("systemctl show", shown("active"))
    assert call(url=engine.url, unit=UNIT, _ansible_check_mode=True)["ready"] is True


def test_container_that_ended_and_its_log(call: Any, closed_port: int, fake_run: Any) -> None:
    fake_run.on("docker container inspect", '{"Status": "exited"}\n').on("docker logs", "out\n", err="Killed\n")
    result = call(url=f"http://127.0.0.1:{closed_port}", container="spark-heavy", timeout=60)
    assert "the container spark-heavy is not running (exited)" in result["msg"]
    assert result["log"] == ["out", "Killed"]


def test_host_without_systemd_still_has_an_answer(call: Any, engine: Any) -> None:
    result = call(url=engine.url, unit=UNIT)
    assert result["failed"] is True and "does not exist" in result["msg"] and result["log"] == []


def test_stage_and_fix_are_in_the_message(call: Any, engine: Any) -> None:
    result = call(url=engine.set(tools="text").url, checks={"tools": True})
    assert "stage: tools" in result["msg"] and "Fix: the engine did not turn" in result["msg"]


def test_key_in_the_log_is_hidden(call: Any, engine: Any, fake_run: Any, tmp_path: Any) -> None:
    (tmp_path / "key").write_text("sk-hidden\n")
    fake_run.on("systemctl show", shown("active")).on("journalctl", "api_key='sk-hidden'\n")
    result = call(url=engine.set(key="another").url, unit=UNIT, api_key_file=str(tmp_path / "key"))
    assert result["failed"] is True and "sk-hidden" not in json.dumps(result["log"]) + result["msg"]
    assert result["log"] == ["api_key='********'"]


def rank(active: str, restarts: int = 0, says: str = "") -> str:
    return f"{shown(active, restarts)}Type=notify\nStatusText={says}\n"


WAITS = "waits for spark-2 (rank 1): no heartbeat for 320 s"


def test_a_rank_without_a_url_is_ready_when_its_unit_is_active(call: Any, fake_run: Any) -> None:
    fake_run.on("systemctl show", rank("active", says="serving with spark-1"))
    result = call(unit=UNIT)
    assert result["ready"] is True and result["stage"] == "unit" and result["changed"] is False
    assert result["unit_state"]["status_text"] == "serving with spark-1"
    assert "warmup_seconds" not in result  # nothing was asked


def test_a_rank_that_waits_says_for_what(call: Any, fake_run: Any) -> None:
    fake_run.on("systemctl show", rank("activating", 7, WAITS)).on("journalctl", "spark-rank: waits\n")
    result = call(unit=UNIT, timeout=0.3)
    assert result["failed"] is True and result["ready"] is False and result["stage"] == "unit"
    assert f"it says: {WAITS}" in result["msg"] and "7 restarts" in result["msg"]
    assert f"systemctl status {UNIT}" in result["fix"] and result["log"] == ["spark-rank: waits"]


def test_a_rank_that_gave_up_is_not_waited_for(call: Any, fake_run: Any) -> None:
    says = "down: gave up after 3 failed starts within 155 min"
    fake_run.on("systemctl show", rank("failed", 2, says)).on("journalctl", "spark-rank: gave up\n")
    result = call(unit=UNIT, timeout=60)
    assert result["elapsed_seconds"] < 30 and f"the unit {UNIT} has failed" in result["msg"]
    assert f"it says: {says}" in result["msg"] and result["log"] == ["spark-rank: gave up"]


def test_the_first_rank_is_waited_for_through_restarts(call: Any, engine: Any, fake_run: Any, monkeypatch: Any) -> None:
    engine.set(health=503)
    looks = 0

    def run(argv: list[str], **_: Any) -> tuple[int, str, str]:
        nonlocal looks
        looks += argv[0] == "systemctl"
        if looks == 8:
            engine.set(health=200)
        return (0, rank("activating", looks), "") if argv[0] == "systemctl" else (0, "", "")

    play(monkeypatch, run)
    result = call(url=engine.url, unit=UNIT, timeout=60)
    assert result["ready"] is True and result["unit_state"]["n_restarts"] > 6


def test_the_first_rank_says_for_what_it_waits(call: Any, closed_port: int, fake_run: Any) -> None:
    fake_run.on("systemctl show", rank("activating", 3, WAITS))
    result = call(url=f"http://127.0.0.1:{closed_port}", unit=UNIT, timeout=0.3)
    assert "stage: health" in result["msg"] and f"it says: {WAITS}" in result["msg"]
    assert "on the other hosts too" in result["fix"]


@pytest.mark.parametrize("comes_back", [True, False])
def test_requests_that_fail_because_a_rank_was_lost(call: Any, engine: Any, monkeypatch: Any, comes_back: bool) -> None:
    """An engine that keeps answering with errors is broken; if its unit stops it, it comes back."""
    engine.set(chat="error")

    def run(argv: list[str], **_: Any) -> tuple[int, str, str]:
        if argv[0] != "systemctl":
            return 0, "", ""
        failed = sum(path.endswith("completions") for path, _body in engine.requests)
        if not comes_back or failed < endpoint.MAX_SERVER_ERRORS:
            return 0, rank("active"), ""
        engine.set(chat="stream")
        return 0, rank("activating"), ""

    play(monkeypatch, run)
    result = call(url=engine.url, unit=UNIT, timeout=60)
    assert result["ready"] is comes_back and result["elapsed_seconds"] < 30


def test_check_run_does_not_wait_for_a_rank_that_it_did_not_start(call: Any, fake_run: Any) -> None:
    fake_run.on("systemctl show", shown("inactive", load="not-found"))
    result = call(unit=UNIT, _ansible_check_mode=True)
    assert result["ready"] is None and result["stage"] == "unit" and "failed" not in result


@pytest.mark.parametrize("args", [{}, {"url": None}, {"url": ""}])
def test_one_of_url_and_unit_is_needed(call: Any, args: dict[str, Any]) -> None:
    result = call(**args)
    assert result["failed"] is True and "one of the following is required: url, unit" in result["msg"]


def test_an_answer_of_systemctl_that_is_late_is_not_called_a_missing_unit(
    call: Any, engine: Any, fake_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A healthy, proved service was reported as one whose unit does not exist."""
    fake_run.silent("systemctl show").silent("journalctl")
    assert call(url=engine.url, unit=UNIT)["ready"] is True
    result = call(url=engine.set(health=503).url, unit=UNIT, timeout=0.3)
    assert result["failed"] is True and "does not exist" not in result["msg"]
    assert "systemctl did not answer in 30 s, so the state of the unit is not known" in result["msg"]
    assert "None" not in result["msg"] and result["log"] == ["(journalctl did not answer in 30 s)"]


def test_systemctl_is_asked_again_until_the_deadline(
    call: Any, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def run(argv: list[str], **_: Any) -> tuple[int, str, str]:
        nonlocal looks
        looks += argv[0] == "systemctl"
        if looks in (1, 2, 3):
            raise command.NoAnswer("systemctl", "systemctl did not answer in 10 s")
        return (0, shown("failed", 1), "") if argv[0] == "systemctl" else (0, "", "")

    play(monkeypatch, run)
    result = call(url=f"http://127.0.0.1:{closed_port}", unit=UNIT, timeout=60)
    assert f"the unit {UNIT} has failed" in result["error"] and result["elapsed_seconds"] < 30


@pytest.mark.parametrize("silent", [True, False])
def test_a_docker_that_does_not_say_ends_no_wait(call: Any, engine: Any, fake_run: Any, silent: bool) -> None:
    if silent:
        fake_run.silent("docker")
    else:
        fake_run.on("docker", "", 1, "Cannot connect to the Docker daemon")
    assert call(url=engine.url, container="spark-heavy")["ready"] is True
    fake_run.on("docker container inspect", "", 1, "Error: No such container: spark-heavy")
    assert "is not running (missing)" in call(url=engine.url, container="spark-heavy")["error"]


def test_a_start_that_goes_on_comes_back_with_how_far_it_is(call: Any, closed_port: int, fake_run: Any) -> None:
    log = "Starting to load model org/m\nLoading safetensors checkpoint shards:  43% Completed | 3/7 [00:09<00:12]\n"
    fake_run.on("systemctl show", shown("activating", 1) + "InvocationID=0a1b\n")
    # The start before served; of this one alone it says nothing more.
    fake_run.on("journalctl", "Application startup complete\n")
    fake_run.on(" ".join(units.journal_command(UNIT, readiness.READ_LINES, invocation="0a1b")), log)
    result = call(url=f"http://127.0.0.1:{closed_port}", unit=UNIT, timeout=600, look_seconds=0.2)
    assert (result["waiting"], result["ready"], result["changed"]) == (True, False, False)
    assert (result["log_stage"], result["log_percent"], result["restarts_before"]) == ("load", 43, 1)


def test_a_look_is_the_whole_wait_where_the_server_listens_or_is_gone(
    call: Any, engine: Any, closed_port: int, fake_run: Any
) -> None:
    fake_run.on("systemctl show", shown("active"))
    assert call(url=engine.url, unit=UNIT, timeout=60, look_seconds=5)["ready"] is True
    fake_run.on("systemctl show", shown("failed")).on("journalctl", "gone\n")
    result = call(url=f"http://127.0.0.1:{closed_port}", unit=UNIT, timeout=600, look_seconds=60)
    assert result["failed"] is True and f"the unit {UNIT} has failed" in result["msg"] and "waiting" not in result


def test_looks_before_count_restarts_and_the_time_that_was_waited(call: Any, closed_port: int, fake_run: Any) -> None:
    fake_run.on("systemctl show", shown("activating", 4)).on("journalctl", "")
    url = f"http://127.0.0.1:{closed_port}"
    result = call(url=url, unit=UNIT, timeout=600, look_seconds=60, restarts_before=2)
    assert "restarts again and again (2 times during this wait)" in result["msg"]
    result = call(url=url, unit=UNIT, timeout=600, waited_seconds=599.9)
    assert "not ready after 600 s" in result["msg"] and 599 < result["elapsed_seconds"] < 640
