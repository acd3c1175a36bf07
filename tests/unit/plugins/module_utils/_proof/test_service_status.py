"""All services of a host at once; a silent one spoils nothing."""

from __future__ import annotations

import calendar
import json
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from module_calls import call_module

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import receipts, service_status
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import start_stages
from ansible_collections.dgxspark.vllm.plugins.modules import spark_info

HOST = ["services", "units", "memory", "residency", "starts"]


def probed(services: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return services as a plan has them."""
    return [{"name": service["name"], "probe": service} for service in services]


def test_one_answers_and_one_does_not(engine: Any, closed_port: int, capsys: Any) -> None:
    services = [
        {"name": "heavy", "url": engine.url, "model": "heavy"},
        {"name": "gone", "url": f"http://127.0.0.1:{closed_port}", "model": "gone"},
    ]
    with (
        patch_module_args({"gather": ["services"], "services": probed(services), "timeout": 1}),
        pytest.raises(SystemExit),
    ):
        spark_info.main()
    result = json.loads(capsys.readouterr().out)
    heavy, gone = result["services"]
    assert result["changed"] is False
    assert (heavy["name"], heavy["ready"], heavy["error"]) == ("heavy", True, "")
    assert heavy["kv_cache_usage"] is None  # this server has no /metrics
    assert (gone["name"], gone["ready"], gone["stage"]) == ("gone", False, "health")
    assert gone["error"]


def test_a_wrong_model_name_is_told(engine: Any, capsys: Any) -> None:
    with (
        patch_module_args(
            {"gather": ["services"], "services": probed([{"name": "a", "url": engine.url, "model": "other"}])}
        ),
        pytest.raises(SystemExit),
    ):
        spark_info.main()
    answer = json.loads(capsys.readouterr().out)["services"][0]
    assert answer["ready"] is False
    assert answer["stage"] == "models"


def test_a_rank_that_answers_no_requests_is_not_asked(engine: Any, capsys: Any) -> None:
    services = [{"name": "rank", "url": None, "model": "heavy"}, {"name": "heavy", "url": engine.url, "model": "heavy"}]
    with (
        patch_module_args({"gather": ["services"], "services": probed(services), "timeout": 1}),
        pytest.raises(SystemExit),
    ):
        spark_info.main()
    rank, heavy = json.loads(capsys.readouterr().out)["services"]
    assert set(rank) == set(heavy) and heavy["ready"] is True
    assert (rank["name"], rank["ready"], rank["stage"], rank["error"]) == ("rank", None, "unit", "")


def test_what_was_measured_last_comes_from_the_receipt(engine: Any, capsys: Any, tmp_path: Any) -> None:
    (tmp_path / "receipts").mkdir()
    receipt = receipts.build("heavy", {"image": "a"}, {}, None)
    section = {"decode_tokens_per_second": 38.0, "ratio": 0.9}
    (tmp_path / "receipts/heavy.json").write_text(receipts.dump(receipts.with_benchmark(receipt, section)))
    services = [{"name": name, "url": engine.url, "model": "heavy"} for name in ("heavy", "never")]

    def ask() -> list[dict[str, Any]]:
        with (
            patch_module_args({"gather": ["services"], "services": probed(services), "state_dir": str(tmp_path)}),
            pytest.raises(SystemExit),
        ):
            spark_info.main()
        answers: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["services"]
        return answers

    heavy, never = ask()
    assert (heavy["decode_tokens_per_second"], heavy["decode_ratio"]) == (38.0, 0.9)
    assert never["decode_tokens_per_second"] is None is never["decode_ratio"]
    changed = receipts.build("heavy", {"image": "b"}, {}, receipts.with_benchmark(receipt, section))
    (tmp_path / "receipts/heavy.json").write_text(receipts.dump(changed))
    heavy, _never = ask()
    assert heavy["decode_tokens_per_second"] is None  # it was measured for another deployment


def test_the_mark_of_the_kernels_comes_from_the_receipt(engine: Any, capsys: Any, tmp_path: Any) -> None:
    (tmp_path / "receipts").mkdir()
    kept = {"fast_path": {"summary": "2 off"}, "speed": {"line": "slow: prefill"}}
    receipt = receipts.build("heavy", {"image": "a"}, {}, None, **kept)
    (tmp_path / "receipts/heavy.json").write_text(receipts.dump(receipt))
    (tmp_path / "receipts/odd.json").write_text('{"fast_path": {"summary": 5}}')
    services = [{"name": name, "url": engine.url, "model": "heavy"} for name in ("heavy", "odd", "never")]
    with (
        patch_module_args({"gather": ["services"], "services": probed(services), "state_dir": str(tmp_path)}),
        pytest.raises(SystemExit),
    ):
        spark_info.main()
    answers = json.loads(capsys.readouterr().out)["services"]
    assert [answer["fast_path"] for answer in answers] == ["2 off", None, None]
    assert [answer["speed"] for answer in answers] == ["slow: prefill", None, None]


def test_the_host_is_looked_at_in_the_same_go(
    engine: Any, tree: Any, capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")  # neither systemd nor Docker nor nvidia-smi: still an answer
    services = [{"name": "heavy", "url": engine.url, "model": "heavy"}]
    params = {"gather": HOST, "services": probed(services), "root": str(tree), "settings_dir": str(tmp_path)}

    def ask() -> dict[str, Any]:
        return call_module(spark_info, params, capsys)

    result = ask()
    assert result["spark"]["guard"] is None
    assert result["spark"]["memory"]["available_gib"] == pytest.approx(22.064, abs=0.001)
    assert result["spark"]["units"] == [] and result["spark"]["resident"] == []
    assert result["services"][0]["ready"] is True
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/guard.json").write_text('{"floor_gib": 4, "act": false}')
    guard = ask()["spark"]["guard"]
    assert (guard["floor_gib"], guard["act"]) == (4.0, False)


def test_what_the_program_on_demand_says_is_taken_while_it_says_something() -> None:
    now = calendar.timegm(time.strptime("2026-11-24T12:00:30Z", "%Y-%m-%dT%H:%M:%SZ"))
    state = {
        "at": "2026-11-24T12:00:00Z",
        "services": {
            "heavy": {"state": "ready", "idle_seconds": 250, "waiting": 0, "pin": "auto", "pin_why": "", "reason": ""},
            "fast": {"state": "cold", "idle_seconds": None, "waiting": 2, "pin": "cold", "pin_why": "the\nguard", "reason": "x"},
            "sick": {"state": "failed", "idle_seconds": "many", "pin": 7, "reason": "sick could not be started: " + "y" * 999},
            "other": {"state": "ready"}, "odd": 5,
        },
    }  # fmt: skip
    names = ["heavy", "fast", "sick", "odd", "absent"]
    reported = service_status.on_demand(state, names, now)
    assert reported["heavy"] == {"state": "ready", "idle_seconds": 250, "waiting": 0, "pin": "", "why": ""}
    assert reported["fast"] == {"state": "cold", "idle_seconds": None, "waiting": 2, "pin": "cold", "why": "the guard"}
    assert (
        reported["sick"]["idle_seconds"] is None
        and len(reported["sick"]["why"]) == 500
        and set(reported) == {"heavy", "fast", "sick"}
    )
    # A program that is gone says nothing new.
    assert service_status.on_demand(state, names, now + 60) == service_status.on_demand(None, names, now) == {}
    for odd in ({}, {"at": 5, "services": {}}, {"at": state["at"]}, {"at": state["at"], "services": 5}):
        assert service_status.on_demand(odd, names, now) == {}


def test_a_service_that_starts_is_as_far_as_its_log_says(
    engine: Any, tree: Any, capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    """By what it printed, the record of its unit, and what its last starts took."""
    now = time.monotonic()
    lines = [(now - 40, "vLLM API server version 0.33.0"), (now - 30, "Starting to load model org/m")]
    journal = [json.dumps({"__MONOTONIC_TIMESTAMP": str(round(at * 1e6)), "MESSAGE": text}) for at, text in lines]
    (tmp_path / "journal").write_text("\n".join(journal))
    states = {"heavy": "activating", "other": "activating", "fast": "active"}
    began = f"InvocationID=a1\nInactiveExitTimestampMonotonic={round((now - 60) * 1e6)}\n"
    units = [
        f"Id=spark-{name}.service\nLoadState=loaded\nActiveState={state}\n{began}" for name, state in states.items()
    ]
    (tmp_path / "units").write_text("\n".join(units))
    for name, text in (("systemctl", f"cat {tmp_path}/units\n"), ("journalctl", f"cat {tmp_path}/journal\n")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "starts").mkdir()
    record = {"invocation": "a1", "gate": {"clock": now - 50}}
    (tmp_path / "starts/spark-heavy.service.json").write_text(json.dumps(record))
    last = start_stages.entry("", "", {"gate": 5.0, "load": 3600.0, "profile": 40.0}, {})
    (tmp_path / "starts/heavy.json").write_text(json.dumps(start_stages.with_start(None, last)))
    params = {
        "gather": HOST,
        "services": probed([{"name": name, "url": engine.url, "model": "heavy"} for name in ("heavy", "fast")]),
        **{"root": str(tree), "settings_dir": str(tmp_path), "run_dir": str(tmp_path), "state_dir": str(tmp_path)},
    }
    with patch_module_args(params), pytest.raises(SystemExit):
        spark_info.main()
    starting = json.loads(capsys.readouterr().out)["starts"]["starting"]
    assert list(starting) == ["heavy"] and starting["heavy"]["stage"] == "load" and starting["heavy"]["percent"] is None
    gone = time.monotonic() - now
    assert 60 <= starting["heavy"]["seconds"] <= 61 + gone
    assert 3600 - 30 + 40 - gone - 1 <= starting["heavy"]["left_seconds"] <= 3600 - 30 + 40


def test_units_that_failed_or_restart_are_explained_by_their_journal(fake_run: Any) -> None:
    units = [
        {"name": f"spark-{name}.service", "active_state": state, "n_restarts": restarts}
        for name, state, restarts in (
            ("full", "failed", 3),
            ("loops", "activating", 2),
            ("first", "activating", 0),
            ("odd", "failed", 0),
            ("up", "active", 1),
        )
    ]
    for name in ("full", "loops"):
        fake_run.on(f"--unit=spark-{name}.service", "OSError: [Errno 28] No space left on device\n")
    fake_run.on("--unit=spark-odd.service", "x.FlangeError: loose\n")

    def run(argv: list[str]) -> Any:
        return fake_run([argv[-1]])

    causes = service_status.causes(run, units, ["full", "loops", "first", "odd", "up", "other"])
    assert set(causes) == {"full", "loops"} and "Fix: see df -h" in causes["full"]


def test_a_loading_engine_is_asked_once(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second try would find it ready."""
    answer = engine.get

    def ready_afterwards(handler: Any) -> None:
        answer(handler)
        engine.set(health=200)

    monkeypatch.setattr(engine.set(health=503), "get", ready_afterwards)
    status = service_status.ask("a", {"url": engine.url}, 60)
    assert status["ready"] is False and status["stage"] == "health" and "503" in status["error"]
