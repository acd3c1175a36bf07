# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unusable answers of engines and exporters: each program goes on with the other services and hosts."""

from __future__ import annotations

import asyncio
import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import live_fixture
import pytest
from hostile_texts import HOSTILE, is_harmless

from dgxspark_vllm._agent import accounts, evidence, figures, services, watch
from dgxspark_vllm._fleet import fleet_status, live_host, live_status
from dgxspark_vllm._runtime import command, engine_client, http_client, metrics, systemd, wedge

REPO = Path(__file__).resolve().parents[4]
BAD = [
    "1e999",
    "NaN",
    "-Infinity",
    "1e308",
]
GOOD = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total 5\n"


def load(name: str) -> dict[str, Any]:
    """Return the names of a program of a role, which imports files of its folder."""
    path = REPO / "roles" / name
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        return runpy.run_path(str(path))


def bad_metrics(value: str) -> str:
    names = [name for names in (*metrics.GAUGES.values(), *metrics.COUNTERS.values()) for name in names]
    return "".join(f'{name}{{engine="{engine}"}} {value}\n' for name in names for engine in range(2))


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Metrics by the URL of an engine; the page C(raises) makes the request itself fail with a RecursionError."""
    metrics_pages: dict[str, str] = {}

    def fetch(url: str, *_more: Any, **_named: Any) -> http_client.Reply:
        page = metrics_pages[url.removesuffix("/metrics")]
        if page == "raises":
            raise RecursionError("deep")
        return http_client.Reply(200, {}, page.encode())

    monkeypatch.setattr(http_client, "fetch", fetch)
    monkeypatch.setattr(engine_client.Client, "metrics", lambda self, _timeout: (200, fetch(self.url).body.decode()))
    return metrics_pages


# --- on demand


@pytest.mark.parametrize("value", BAD)
def test_on_demand_does_not_know_what_such_an_engine_does(pages: dict[str, str], value: str) -> None:
    has_requests = load("service/files/spark_on_demand.py")["has_requests"]
    pages["http://a"], pages["http://b"] = bad_metrics(value), GOOD
    assert has_requests("http://a") is None
    assert has_requests("http://b") is False


def test_one_service_on_demand_that_fails_leaves_the_others(
    pages: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = load("service/files/spark_on_demand.py")
    hub = object.__new__(program["Hub"])
    hub.run_dir = tmp_path / "on_demand"
    looked: list[str] = []

    def slot(name: str) -> SimpleNamespace:
        service = SimpleNamespace(name=name, unit=f"spark-{name}.service", engine=f"http://{name}", kind="vllm")
        return SimpleNamespace(service=service, waiters=[], busy=0, last=0.0, looked=None, unasked=None)

    pages["http://a"], pages["http://b"] = "raises", GOOD
    hub.slots = {name: slot(name) for name in "ab"}

    async def run() -> None:
        hub.loop = asyncio.get_running_loop()

        async def follow(slot: Any, _unit: Any) -> None:
            if slot.service.name == "a":
                raise OverflowError("cannot convert float infinity to integer")
            looked.append(slot.service.name)

        hub.follow, hub.known, hub.shown, hub.read_pins = follow, True, True, lambda: None
        text = "".join(f"Id=spark-{name}.service\nActiveState=active\n\n" for name in "ab")
        command_run = command.run
        command.run = lambda *_argv, **_named: command.Answer(command.FINISHED, 0, text)  # type: ignore[assignment]
        try:
            await hub.look()
        finally:
            command.run = command_run
        for hub_slot in hub.slots.values():
            await hub.ask(hub_slot)

    asyncio.run(run())
    assert looked == ["b"]
    assert (hub.slots["a"].busy, hub.slots["b"].busy) == (None, False)
    assert "warning: a: OverflowError" in capsys.readouterr().out


# --- guard


@pytest.mark.parametrize("page", [*map(bad_metrics, BAD), "raises"])
def test_the_guard_takes_the_account_of_the_others(
    tmp_path: Path, pages: dict[str, str], monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    (tmp_path / "services").mkdir()
    for name, metrics_page in (("a", page), ("b", GOOD)):
        settings = {"unit": f"spark-{name}.service", "url": f"http://{name}", "on_demand": {"idle": 1}}
        (tmp_path / "services" / f"{name}.json").write_text(json.dumps(settings))
        pages[f"http://{name}"] = metrics_page
    starts = tmp_path / "run" / "starts"
    starts.mkdir(parents=True)
    (starts / "spark-a.service.json").write_text('{"gate": {"available_gib": 1e999}, "ready": {"available_gib": "x"}}')
    states = {f"spark-{name}.service": {"ActiveState": "active"} for name in "ab"}
    monkeypatch.setattr(services, "unit_states", lambda _units, _seconds: states)
    monkeypatch.setattr(services, "container_ids", lambda _names, _seconds: {})
    monkeypatch.setattr(accounts, "list_processes", dict)
    monkeypatch.setattr(accounts, "add_gpu_memory", lambda _processes: True)
    account = accounts.Accounts(tmp_path, tmp_path / "run", {"services": {}}).take()
    assert {engine.name: engine.idle for engine in account.engines} == {"a": False, "b": True}


def test_processes_have_names_that_steer_nothing(tmp_path: Path) -> None:
    for text in HOSTILE:
        (tmp_path / "status").write_bytes(f"Name:\t{text}\n".encode("utf-8", "surrogatepass"))
        assert is_harmless(services.read_text(tmp_path / "status"))


# --- watchdog


def watchdog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> watch.Watchdog:
    """A watchdog of two services whose units are active."""
    (tmp_path / "services").mkdir()
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/watchdog.json").write_text("{}")
    for name in "ab":
        settings = {"unit": f"spark-{name}.service", "url": f"http://{name}", "model": name}
        (tmp_path / "services" / f"{name}.json").write_text(json.dumps(settings))
    active = {"ActiveState": "active", "InvocationID": "1", "ActiveEnterTimestampMonotonic": "1"}
    monkeypatch.setattr(services, "unit_states", lambda units, _seconds: dict.fromkeys(units, active))
    monkeypatch.setattr(watch, "gpu_power", lambda: 10.0)
    monkeypatch.setattr(evidence, "has_compiler", lambda _containers: False)
    return watch.Watchdog(tmp_path, tmp_path / "run", tmp_path / "state")


@pytest.mark.parametrize("page", [*map(bad_metrics, BAD), "raises"])
def test_the_watchdog_watches_the_others(
    tmp_path: Path, pages: dict[str, str], monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    it = watchdog(tmp_path, monkeypatch)
    pages["http://a"], pages["http://b"] = page, GOOD.replace("running 0", "running 2")
    it.round()
    it.round()
    service_states = json.loads((tmp_path / "state/state.json").read_text())["services"]
    assert set(service_states) == {"a", "b"} and service_states["b"]["state"] == wedge.FROZEN


def test_a_service_that_cannot_be_judged_leaves_the_others(
    tmp_path: Path, pages: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    it = watchdog(tmp_path, monkeypatch)
    pages["http://a"] = pages["http://b"] = GOOD
    looked = []

    def look(self: Any, now: Any) -> str:
        looked.append(now)
        if len(looked) == 1:
            raise OverflowError("cannot convert float infinity to integer")
        return ""

    monkeypatch.setattr(wedge.Tracker, "look", look)
    it.round()
    assert len(looked) == 2
    assert "a cannot be watched: OverflowError" in capsys.readouterr().out


# --- collector


def test_the_collector_leaves_out_what_cannot_be_read_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    etc, state, run = (tmp_path / name for name in ("etc", "state", "run"))
    for folder in (etc / "services", etc / "agent", state / "watchdog", state / "receipts", run / "starts"):
        folder.mkdir(parents=True)
    (etc / "agent/exporters.json").write_text('{"planned_gib": {"a": "x", "b": 2}}')
    for name in "abc":
        (etc / "services" / f"{name}.json").write_text(json.dumps({"unit": f"spark-{name}.service", "memory_gib": 1}))
    (run / "starts/spark-a.service.json").write_text('{"load_guard": [1], "start_seconds": "x"}')
    (run / "starts/spark-b.service.json").write_text('{"load_guard": {"drops": 3}, "start_seconds": 2}')
    (run / "starts/spark-c.service.json").write_text('{"start_seconds": 1e999}')
    (state / "watchdog/state.json").write_text('{"services": {"a": 7, "b": {"state": "working"}}}')
    (state / "receipts/a.json").write_text("[" * 200_000)

    def call(argv: list[str], *_more: Any, **_named: Any) -> tuple[int, str, str]:
        raise command.NoAnswer(argv[0], f"{argv[0]} did not answer")

    text = figures.Collector(etc, state, run, str(tmp_path / "units"), call).collect(0)
    for line in (
        'dgxspark_service_info{service="a"', 'dgxspark_service_start_seconds{service="b"} 2',
        'dgxspark_load_guard_drops{service="b"} 3', 'dgxspark_watchdog_state{service="b",state="working"} 1',
        'dgxspark_collector_source_up{source="services"} 1', 'dgxspark_collector_source_up{source="watchdog"} 1',
        'dgxspark_collector_source_up{source="receipts"} 1', 'dgxspark_collector_source_up{source="units"} 0',
    ):  # fmt: skip
        assert line in text, text
    stderr = capsys.readouterr().err
    assert "the service a" in stderr and "the watchdog's note of a" in stderr and "a.json" in stderr


# --- fleet monitor and its page


@pytest.mark.parametrize("page", [*map(bad_metrics, BAD), "raises"])
def test_the_live_page_shows_the_other_engines(tmp_path: Path, pages: dict[str, str], page: str) -> None:
    pages.update({"http://a": page, "http://b": GOOD})
    planned = [live_fixture.service(name, url=f"http://{name}") for name in "ab"]
    host = live_host.LiveHost({"host": "s", "services": planned}, tmp_path, tmp_path, tmp_path, str(tmp_path))
    document = live_status.parse(host.look(False), "s")
    bad, good = document["services"]
    assert good["requests_running"] == 0 and not good["silent"]
    assert bad["requests_running"] is None and bad["tokens_per_second"] is None


def test_a_host_that_cannot_be_judged_is_not_known_and_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(facts: Any) -> Any:
        if facts["memory"]["total_gib"] == 1:
            raise OverflowError("cannot convert float infinity to integer")
        return fleet_status.HostState("healthy")

    monkeypatch.setattr(fleet_status, "judge_facts", fragile)
    spoilt = live_fixture.document("spark-a", facts={"memory": {"total_gib": 1, "available_gib": 1}})
    sparks = [
        live_status.Spark(body["host"], live_status.parse(body, "s"))
        for body in (spoilt, live_fixture.document("spark-b"))
    ]
    status, _endpoints = live_status.report(sparks, {}, "")
    assert "its figures cannot be judged: OverflowError" in status.hosts["spark-a"].why
    assert status.hosts["spark-b"].state == "healthy"


def test_what_a_server_says_reaches_no_terminal_by_the_fleet_monitor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load("fleet_monitor/files/spark_fleet_monitor.py")
    for text in HOSTILE:
        body = json.dumps({"error": {"message": text}}).encode()
        for status, raw in (
            (400, body),
            (500, text.encode("utf-8", "surrogatepass")),
            (200, json.dumps({"data": [{"id": text}]}).encode()),
        ):
            monkeypatch.setattr(
                engine_client.Client, "call", lambda *_more, status=status, raw=raw, **_named: (status, raw)
            )
            endpoint = {"key": "a/a", "url": "http://a", "health": "/v1/models", "models": ["heavy"], "complete": False}
            result = program["check"](endpoint, 1.0, 1.0, None)
            assert not result["ok"]
            program["report"]({"a/a": result}, {"endpoints": [endpoint], "host": "m"}, False, {})
            program["say"](f"a/a: {result['error']}")
        monkeypatch.setattr(
            http_client,
            "fetch",
            lambda *_more, text=text, **_named: http_client.Reply(400, {}, text.encode("utf-8", "replace")),
        )
        with pytest.raises(program["DeliveryError"]) as caught:
            program["http_post"]("http://hook", b"", {})
        assert is_harmless(str(caught.value))
    output = capsys.readouterr()
    assert is_harmless(output.out) and is_harmless(output.err)


def test_lines_of_the_journal_steer_nothing() -> None:
    for text in HOSTILE:
        assert is_harmless(systemd.journal_line(text, 4), "")


def test_programs_answer_with_harmless_text() -> None:
    for text in HOSTILE:
        if "\0" in text or "\ud800" in text:
            continue
        answer = command.run(["printf", "%s", text])
        assert answer.rc == 0 and is_harmless(answer.out)
        failed = command.run(["sh", "-c", 'printf "%s" "$1" >&2; exit 3', "sh", text])
        assert failed.rc == 3 and is_harmless(failed.err)


@pytest.fixture(autouse=True)
def _no_service_manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    yield
