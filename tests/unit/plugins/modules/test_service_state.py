"""Stopping and starting deployed services. A function plays systemd, Docker and nvidia-smi; memory is a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from module_calls import call_module
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import nvidia_smi
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import pins
from ansible_collections.dgxspark.vllm.plugins.modules import service_state

GIB = 1024 * 1024


class Spark:
    """A host with services whose engines hold memory."""

    def __init__(self, folder: Path) -> None:
        self.etc, self.root = folder / "etc", folder / "root"
        (self.etc / "services").mkdir(parents=True)
        self.state: dict[str, str] = {}
        self.enabled: dict[str, bool] = {}
        self.held: dict[str, float] = {}
        self.keeps = self.driver_keeps = 0.0
        self.calls: list[list[str]] = []
        self.write()

    def put(self, name: str, state: str, gib: float, **settings: Any) -> None:
        row = {
            "unit": f"spark-{name}.service",
            "container": f"spark-{name}",
            "memory_gib": gib,
            "url": "http://x",
            **settings,
        }
        (self.etc / "services" / f"{name}.json").write_text(json.dumps(row))
        self.state[name], self.enabled[name] = state, True
        if state == "active":
            self.held[name] = gib
        self.write()

    def write(self) -> None:
        available = int((114 - sum(self.held.values()) - self.keeps) * GIB)
        (self.root / "proc").mkdir(parents=True, exist_ok=True)
        (self.root / "proc/meminfo").write_text(f"MemAvailable: {available} kB\nMemFree: {available} kB\n")
        for name in self.held:
            (self.root / f"proc/{ord(name[0])}").mkdir(exist_ok=True)
            (self.root / f"proc/{ord(name[0])}/cgroup").write_text(
                f"0::/system.slice/docker-{ord(name[0]):064x}.scope\n"
            )

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.calls.append(argv)
        out = ""
        if argv[:2] == ["systemctl", "show"]:
            out = "\n\n".join(
                f"Id=spark-{name}.service\nLoadState=loaded\nActiveState={state}\n"
                f"UnitFileState={'enabled' if self.enabled[name] else 'disabled'}"
                for name, state in self.state.items()
            )
        elif argv[:2] == ["systemctl", "stop"]:
            for unit in argv[3:]:
                name = unit[len("spark-") : -len(".service")]
                self.state[name] = "inactive"
                self.held.pop(name, None)
            self.keeps = self.driver_keeps
            self.write()
        elif argv[0] == "systemctl" and argv[1] in ("enable", "disable"):
            for unit in argv[3:]:
                self.enabled[unit[len("spark-") : -len(".service")]] = argv[1] == "enable"
        elif argv[:2] == ["docker", "ps"]:
            out = "\n".join(f"{ord(name[0]):064x}" for name in self.held)
        elif argv[:3] == ["docker", "container", "inspect"]:
            out = json.dumps([{"Name": f"/spark-{name}", "Id": f"{ord(name[0]):064x}"} for name in self.held])
        elif argv[0] == "nvidia-smi" and any("compute-apps" in word for word in argv):
            out = "\n".join(f"{ord(name[0])}, VLLM::EngineCore, {int(gib * 1024)}" for name, gib in self.held.items())
        elif argv[0] == "nvidia-smi" and len(argv) > 1:
            out = "NVIDIA GB10, 580.159.03, 12.1, [N/A], [N/A], [N/A]"
        return 0, out, ""

    def asked(self, verb: str) -> list[str]:
        return [
            word
            for call in self.calls
            if call[:2] == ["systemctl", verb]
            for word in call[2:]
            if word.startswith("spark-")
        ]


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Spark:
    played = Spark(tmp_path)
    play(monkeypatch, played)
    monkeypatch.setattr(nvidia_smi, "GPU_QUERY", ["nvidia-smi", "--query-gpu", "x"])
    monkeypatch.setattr(nvidia_smi, "parse_gpu_query", lambda text: [{"name": "NVIDIA GB10"}] if text else [])
    return played


@pytest.fixture
def call(spark: Spark, capsys: Any) -> Any:
    def call(state: str, *services: str, **args: Any) -> dict[str, Any]:
        settings = {"services": list(services), "state": state, "root": str(spark.root), "etc": str(spark.etc)}
        return call_module(service_state, {**settings, "timeout": 0, **args}, capsys)

    return call


def test_a_stop_says_what_came_back(spark: Spark, call: Any) -> None:
    spark.put("heavy", "active", 95)
    spark.put("fast", "active", 10)
    result = call("stopped", "heavy")
    assert (result["changed"], result["freed_gib"]) == (True, 95.0)
    assert spark.asked("stop") == ["spark-heavy.service"]
    assert spark.state == {"heavy": "inactive", "fast": "active"} and spark.enabled["heavy"] is True
    assert [(s["name"], s["before"], s["changed"]) for s in result["services"]] == [("heavy", "active", True)]


def test_an_engine_that_takes_memory_while_it_is_looked_at(
    spark: Spark, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that fails and is started again: the run does not wait for its memory twice."""
    spark.put("heavy", "activating", 95)
    listed = HostView.containers

    def takes(view: HostView) -> list[dict[str, Any]]:
        if "heavy" not in spark.held and spark.state["heavy"] == "activating":
            spark.held["heavy"] = 95.0
            spark.write()
        return listed(view)

    monkeypatch.setattr(HostView, "containers", takes)
    assert call("stopped", "heavy")["freed_gib"] == 95.0


def test_memory_that_stays_away_is_a_failure_that_says_who_was_stopped(spark: Spark, call: Any) -> None:
    spark.put("heavy", "active", 95)
    spark.driver_keeps = 60.0
    result = call("stopped", "heavy")
    assert (
        result["failed"] is True
        and "the memory is not back" in result["msg"]
        and "54.00 GiB are available" in result["msg"]
    )
    assert [s["changed"] for s in result["services"]] == [True]


@pytest.mark.parametrize(("query", "stopped"), [("--query-gpu", False), ("--query-compute-apps", True)])
def test_memory_is_not_called_free_because_nvidia_smi_fails(
    spark: Spark, call: Any, monkeypatch: pytest.MonkeyPatch, query: str, stopped: bool
) -> None:
    """Before the stop this is a failure; afterwards it does not end the wait."""
    spark.put("heavy", "active", 95)

    def failing(argv: list[str], **options: Any) -> tuple[int, str, str]:
        if argv[0] == "nvidia-smi" and " ".join(argv[1:]).startswith(query) and bool(spark.asked("stop")) is stopped:
            return 15, "", "Unable to determine the device handle: GPU is lost"
        return spark(argv)

    play(monkeypatch, failing)
    result = call("stopped", "heavy")
    assert result["failed"] and "GPU is lost" in result["msg"]
    assert bool(spark.asked("stop")) is stopped


def test_what_is_stopped_or_not_there_is_left_alone(spark: Spark, call: Any) -> None:
    spark.put("heavy", "inactive", 95)
    result = call("stopped", "heavy", "ghost")
    assert result["changed"] is False and spark.asked("stop") == []
    assert [s["deployed"] for s in result["services"]] == [True, False]


def test_a_stop_for_good_reaches_over_a_boot(spark: Spark, call: Any) -> None:
    spark.put("heavy", "inactive", 95)
    assert call("stopped", "heavy", boot=False)["changed"] is True
    assert spark.enabled["heavy"] is False
    assert call("stopped", "heavy", boot=False)["changed"] is False


def test_a_check_run_touches_nothing(spark: Spark, call: Any) -> None:
    spark.put("heavy", "active", 95)
    spark.put("big", "inactive", 100, exclusive="large")
    assert call("stopped", "heavy", boot=False, _ansible_check_mode=True)["changed"] is True
    assert call("started", "big", _ansible_check_mode=True)["changed"] is True
    assert spark.state == {"heavy": "active", "big": "inactive"} and spark.enabled["heavy"] is True
    assert {call[1] for call in spark.calls if call[0] == "systemctl"} == {"show"}


def test_a_start_is_queued_with_its_failures_forgotten(spark: Spark, call: Any) -> None:
    spark.put("heavy", "failed", 95, start_deadline_seconds=270)
    result = call("started", "heavy", boot=True)
    assert result["changed"] is True and result["services"][0]["start_seconds"] == 270
    assert spark.asked("reset-failed") == spark.asked("start") == ["spark-heavy.service"]
    assert any("--no-block" in argv for argv in spark.calls)


def test_what_runs_is_not_started(spark: Spark, call: Any) -> None:
    spark.put("heavy", "active", 95)
    assert call("started", "heavy", boot=True)["changed"] is False
    assert spark.asked("start") == []


def test_a_start_without_its_memory_is_refused(spark: Spark, call: Any) -> None:
    spark.put("heavy", "active", 95)
    spark.put("big", "inactive", 100)
    result = call("started", "big")
    assert result["failed"] is True and "100.00 GiB are needed, 19.00 GiB are available" in result["msg"]
    assert "VLLM::EngineCore (pid 104) 95.00 GiB" in result["msg"] and spark.asked("start") == []


def test_one_of_a_set_is_not_started_beside_another(spark: Spark, call: Any) -> None:
    spark.put("heavy", "active", 40, exclusive="large")
    spark.put("big", "inactive", 40, exclusive="large")
    result = call("started", "big", "ghost")
    assert (
        result["failed"] is True
        and "out=heavy -e in=big" in result["msg"]
        and "ghost is not on this host" in result["msg"]
    )
    assert spark.asked("start") == []


def test_a_check_of_a_swap_knows_who_leaves(spark: Spark, call: Any) -> None:
    spark.put("heavy", "active", 40, exclusive="large")
    spark.put("big", "inactive", 40, exclusive="large")
    assert call("started", "big", leaving=["heavy"], _ansible_check_mode=True)["changed"] is True


def test_what_this_collection_did_not_deploy_is_never_named_to_systemd(spark: Spark, call: Any) -> None:
    (spark.etc / "services" / "evil.json").write_text(json.dumps({"unit": "ssh.service"}))
    assert call("stopped", "evil")["changed"] is False
    assert all("ssh.service" not in argv for argv in spark.calls)


def pin_of(tmp_path: Path, name: str) -> str:
    path = tmp_path / "run/on_demand/pins" / name
    return path.read_text().strip() if path.exists() else "auto"


def test_what_requests_start_is_pinned_and_left_to_its_program(spark: Spark, call: Any, tmp_path: Path) -> None:
    spark.put("heavy", "inactive", 95, on_demand=True)
    spark.put("fast", "inactive", 10)
    spark.enabled["heavy"] = False
    run = {"run_dir": str(tmp_path / "run"), "boot": True}
    result = call("started", "heavy", "fast", **run)
    assert pin_of(tmp_path, "heavy") == "warm" and pin_of(tmp_path, "fast") == "auto"
    # The run does not wait for its memory, and it does not start at boot.
    assert spark.asked("start") == ["spark-fast.service"] and spark.enabled == {"heavy": False, "fast": True}
    assert {s["name"]: (s["on_demand"], s["changed"]) for s in result["services"]} == {
        "heavy": (True, True),
        "fast": (False, True),
    }
    spark.state["heavy"] = "active"
    assert call("stopped", "heavy", **run)["changed"] and pin_of(tmp_path, "heavy") == "cold"
    assert spark.asked("stop") == ["spark-heavy.service"]
    assert not call("stopped", "heavy", **run)["changed"]
    assert call("stopped", "heavy", pin=False, **run)["changed"] and pin_of(tmp_path, "heavy") == "auto"
    call("started", "heavy", pin=False, **run)
    assert spark.asked("start") == ["spark-fast.service", "spark-heavy.service"]


def test_a_speech_server_on_demand_is_pinned_too(spark: Spark, call: Any, tmp_path: Path) -> None:
    spark.put("ears", "inactive", 8, on_demand=True)
    folder = Path(spark.etc) / "speech"
    folder.mkdir()
    (Path(spark.etc) / "services/ears.json").rename(folder / "ears.json")
    (folder / "talk.json").write_text(json.dumps({"unit": "spark-talk.service", "container": "spark-talk"}))
    run = {"run_dir": str(tmp_path / "run")}
    (result,) = call("started", "ears", **run)["services"]
    # The run waits for its unit, because it does not answer requests for engines.
    assert (result["changed"], result["on_demand"], result["url"]) == (True, True, None) and pin_of(
        tmp_path, "ears"
    ) == "warm"
    spark.state["ears"] = "active"
    assert call("stopped", "ears", **run)["changed"] and pin_of(tmp_path, "ears") == "cold"
    assert spark.asked("stop") == ["spark-ears.service"]
    # A failed unit is reset, so that the gateway can start it at once.
    spark.state["ears"] = "failed"
    call("started", "ears", **run)
    assert spark.asked("reset-failed")[-1] == "spark-ears.service" and spark.asked("start") == []


def test_of_a_cluster_on_demand_the_first_rank_is_pinned_and_the_others_follow_it(
    spark: Spark, call: Any, tmp_path: Path
) -> None:
    run = {"run_dir": str(tmp_path / "run")}
    spark.put("pair", "inactive", 95, on_demand=True, url=None, rank={"rank": 1})
    result = call("started", "pair", **run)
    assert not result["changed"] and pin_of(tmp_path, "pair") == "auto" and spark.asked("start") == []
    assert [service["follows"] for service in result["services"]] == [True]
    call("started", "pair", pin=False, **run)
    assert spark.asked("start") == []
    spark.put("pair", "active", 95, on_demand=True, url=None, rank={"rank": 1})
    stopped = call("stopped", "pair", **run)
    assert stopped["freed_gib"] == 95.0 and pin_of(tmp_path, "pair") == "auto"
    # A rank that failed because the other ranks were stopped first is not an error.
    assert spark.asked("stop") == spark.asked("reset-failed") == ["spark-pair.service"]
    spark.put("pair", "inactive", 95, on_demand=True, rank={"rank": 0})
    head = call("started", "pair", **run)
    assert head["changed"] and not head["services"][0]["follows"] and pin_of(tmp_path, "pair") == "warm"


def test_a_start_takes_back_what_the_guard_of_another_rank_said(spark: Spark, call: Any, tmp_path: Path) -> None:
    run, folder = {"run_dir": str(tmp_path / "run")}, tmp_path / "run/on_demand/pins"
    spark.put("pair", "inactive", 95, on_demand=True, url=None, rank={"rank": 1})
    pins.write(folder, "pair", "cold", "the guard")
    assert not call("stopped", "pair", **run)["changed"] and pins.read(folder, "pair").word == "cold"
    assert call("started", "pair", **run, _ansible_check_mode=True)["changed"] and pins.read(folder, "pair").why
    assert call("started", "pair", **run)["changed"] and pins.read(folder, "pair") == pins.Pin()
    assert not call("started", "pair", **run)["changed"] and spark.asked("start") == []
    # At the first rank the owner's pin replaces the guard's.
    spark.put("pair", "inactive", 95, on_demand=True, rank={"rank": 0})
    pins.write(folder, "pair", "cold", "the guard")
    assert call("started", "pair", **run)["changed"] and pins.read(folder, "pair") == pins.Pin("warm")


def test_a_check_run_pins_nothing(spark: Spark, call: Any, tmp_path: Path) -> None:
    spark.put("heavy", "inactive", 95, on_demand=True)
    assert call("started", "heavy", run_dir=str(tmp_path / "run"), _ansible_check_mode=True)["changed"]
    assert pin_of(tmp_path, "heavy") == "auto"
