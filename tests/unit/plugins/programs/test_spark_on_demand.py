# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that runs engines on demand, with a stand-in for systemd, small engines and real sockets."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import resource
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from on_demand_fixture import Host, until

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import pins

pytestmark = pytest.mark.slow

Hosts = Callable[..., Host]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made: list[Host] = []

    def make(names: str = "a", **options: Any) -> Host:
        made.append(Host(tmp_path / f"host{len(made)}", names, **options))
        return made[-1]

    yield make
    for host in made:
        host.close()
        assert "Traceback" not in host.said and "warning: Exception" not in host.said, host.said


def shared(host: Host, keep: int = 2) -> Host:
    """All services of a host in one set."""
    host.sets = {
        "big": {"keep": keep, "combinations": [list(combination) for combination in combinations(host.names, keep)]}
    }
    for service in host.services.values():
        service["set"] = "big"
    return host


@pytest.mark.nightly
def test_requests_of_eight_clients_for_three_models_of_which_two_fit(hosts: Hosts) -> None:
    host = shared(hosts("abc", poll=0.2, minimum_seconds=0.4)).start()
    rng = random.Random(18)
    choices = [[rng.choice("abc") for _request in range(25)] for _client in range(8)]

    def client(number: int) -> list[tuple[str, int, Any]]:
        result = []
        for name in choices[number]:
            stream = rng.random() < 0.3
            status, _headers, text = host.fetch(name, number=number, stream=stream, max_tokens=3, pace=0.005)
            result.append((name, status, text))
        return result

    with ThreadPoolExecutor(8) as pool:
        results = [entry for result in pool.map(client, range(8)) for entry in result]
    assert len(results) == 200 and {status for _name, status, _text in results} == {200}
    for name, _status, text in results:
        models = {line.split('"model": "')[1].split('"')[0] for line in text.decode().splitlines() if '"model"' in line}
        assert models == {f"org/{name}"}
    starts, stops = host.calls("start"), host.calls("stop")
    assert len(starts) >= 3 and len(stops) >= 1
    # The recorded calls show that at most two engines ran at a time.
    up: set[str] = set()
    for _at, unit in sorted(starts + stops):
        up ^= {unit}
        assert len(up) <= 2
    # A client gets its answer shortly before the program counts the request as ended.
    until(
        lambda: (
            [sum(entry[key] for entry in host.told.values()) for key in ("requests", "in_flight", "waiting")]
            == [200, 0, 0]
        )
    )


@pytest.mark.nightly
def test_a_storm_over_two_models_of_which_one_fits(hosts: Hosts) -> None:
    """Under constant load each engine has its turn, running requests are not cut off, and engines change once per minimum stay."""
    host = shared(hosts("ab", poll=0.2, minimum_seconds=1.0), keep=1).start()
    began = time.monotonic()

    def client(number: int) -> list[int]:
        result = []
        while len(host.calls("stop")) < 3 or not result:
            status, _headers, text = host.fetch("ab"[number % 2], stream=True, max_tokens=10, pace=0.05)
            assert text.endswith(b"data: [DONE]\n\n")
            result.append(status)
        return result

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(client, range(6)))
    took = time.monotonic() - began
    assert {status for result in results for status in result} == {200}
    assert len(host.calls("stop")) <= took and "is drained" in host.said and "ended" not in host.said


def test_two_at_once_start_one_engine_and_it_is_unloaded_when_idle(hosts: Hosts) -> None:
    host = hosts(idle_seconds=0.8, minimum_seconds=0.1)
    host.options("a", late=0.5)
    host.start()
    with ThreadPoolExecutor(2) as pool:
        result = list(pool.map(lambda number: host.ask("a", number=number), range(2)))
    assert [(status, value["number"], value["connection"]) for status, value in result] == [
        (200, 0, "close"),
        (200, 1, "close"),
    ]
    assert len(host.calls("start")) == 1
    state = until(lambda: host.told.get("a") if host.state("a") == "cold" else None)
    assert len(host.calls("stop")) == 1 and host.unit("a")["state"] == "inactive"
    # It counts as stopped once its memory is back, which took longer than its processes.
    assert state["freed_gib"] == pytest.approx(40.0) and state["freed_seconds"] >= 0.4
    assert len(state["start_seconds"]) == 1 and state["requests"] == 2 and state["reason"] == ""
    assert json.loads((host.home / "state/starts.json").read_text())["starts"]["a"] == state["start_seconds"]


def test_looks_do_not_wake_an_engine_nor_keep_it(hosts: Hosts) -> None:
    host = hosts(idle_seconds=1.0, minimum_seconds=0.1).start()
    assert host.ask("a", "/health", "GET") == (200, {"status": "cold"})
    assert host.fetch("a", "/ping", "HEAD")[2] == b""
    (model,) = host.ask("a", "/v1/models", "GET")[1]["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("org/a", "model", 4096)
    status, headers, text = host.fetch("a", "/metrics", "GET")
    assert status == 200 and 'spark_on_demand_state{service="a",state="cold"} 1' in text.decode()
    status, headers, text = host.fetch("a", "/version", "GET")
    assert status == 503 and "a is cold" in text.decode() and "retry-after" in headers
    assert host.fetch("a", "/v1/models", "OPTIONS")[0] == 200
    assert host.calls("start") == []
    assert host.ask("a")[0] == 200
    warm_since = time.monotonic()
    while host.unit("a")["state"] == "active":
        assert time.monotonic() - warm_since < 60
        models = host.ask("a", "/v1/models", "GET")[1]
        assert models in ({"engine": "spark-a.service", "path": "/v1/models"},) or "data" in models
        time.sleep(0.05)
    assert len(host.calls("start")) == 1


def test_without_the_key_nothing_is_told_nor_started(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret-1\n")
    host = hosts(api_key_file=str(tmp_path / "key")).start()
    for key in ("", "secret-2"):
        status, headers, _text = host.fetch("a", "/v1/models", "GET", key)
        assert status == 401 and headers["www-authenticate"] == "Bearer"
        assert host.fetch("a", key=key)[0] == 401
    assert host.calls("start") == [] and host.ask("a", "/health", "GET")[0] == 200
    assert host.fetch("a", "/v1/models", "GET", "secret-1")[0] == 200
    assert host.fetch("a", key="secret-1")[0] == 200
    assert "secret-" not in host.said


def test_what_came_back_on_other_hosts_is_told_and_why_a_rank_went_down(hosts: Hosts) -> None:
    """What the supervisor of the first rank leaves in the folder of what lasts until the next boot, and in its status."""
    host = hosts("a", idle_seconds=0.3, minimum_seconds=0)
    (host.home / "freed").mkdir()
    (host.home / "freed/a.json").write_text(json.dumps({"hosts": {"spark-2": 41.5, "spark-3": None}}))
    host.start()
    assert host.ask("a")[0] == 200
    until(lambda: host.state("a") == "cold" and host.told["a"]["freed_gib"])
    assert host.told["a"]["freed_hosts"] == {"spark-2": 41.5, "spark-3": None}
    host.options("a", fail="exit", status="down: spark-2 (rank 1): went down: no room")
    status, result = host.ask("a")
    assert status == 503 and result["error"]["message"].startswith("a could not be started: its unit failed")
    assert (
        "it last said: spark-2 (rank 1): went down: no room. It is not tried again for 30 s"
        in result["error"]["message"]
    )


def test_a_start_that_fails_is_told_at_once_and_not_tried_again(hosts: Hosts) -> None:
    host = hosts(retry_seconds=60)
    host.options("a", load=0.5, fail="exit")
    host.start()
    with ThreadPoolExecutor(3) as pool:
        result = list(pool.map(lambda number: host.fetch("a", number=number), range(3)))
    for status, headers, text in result:
        message = json.loads(text)["error"]["message"]
        assert status == 503 and 1 <= int(headers["retry-after"]) <= 60
        assert "no room for KV" in message and "exit-code" in message and "sk-abcdef" not in message, message
    began = time.monotonic()
    assert host.ask("a")[0] == 503 and time.monotonic() - began < 10 and len(host.calls("start")) == 1
    assert host.ask("a", "/health", "GET")[0] == 503 and "sk-abcdef" not in host.said
    state = until(lambda: host.told.get("a") if host.state("a") == "failed" else None)
    assert "no room for KV" in state["reason"] and "systemctl start spark-a.service" in state["reason"]
    # A start by hand overrides the guard.
    host.options("a")
    host.systemctl("start", "a")
    until(lambda: host.ask("a")[0] == 200)


def test_a_unit_that_systemd_refuses_to_start(hosts: Hosts) -> None:
    host = hosts()
    host.options("a", fail="missing")
    host.start()
    status, result = host.ask("a")
    assert status == 503 and "not found" in result["error"]["message"] and "hunter22" not in json.dumps(result)


def test_a_start_that_has_no_end_is_ended(hosts: Hosts) -> None:
    """The unit of a rank has no time limit: an engine that never becomes ready is stopped, and its start has failed."""
    host = hosts(start_seconds=5, retry_seconds=300)
    host.options("a", load=600, status="waits for spark-2 (rank 1)")
    host.start()
    status, result = host.ask("a")
    assert status == 503
    assert result["error"]["message"].startswith(
        "a could not be started: it was not ready within 5 s: waits for spark-2 (rank 1). It is not tried again for 300 s"
    )
    assert host.unit("a")["state"] == "inactive" and len(host.calls("stop")) == 1
    until(lambda: host.state("a") == "failed")
    host.options("a")
    host.systemctl("start", "a")  # as a person does who mended it; the bound holds for that start too
    until(lambda: host.state("a") == "ready")
    assert host.ask("a")[0] == 200


def test_an_engine_that_is_killed_while_it_loads(hosts: Hosts) -> None:
    host = hosts()
    host.options("a", load=60)
    host.start()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(host.ask, "a")
        number = until(lambda: host.unit("a").get("pid"))
        os.kill(number, signal.SIGKILL)
        status, result = future.result(60)
    assert (
        status == 503
        and "could not be started" in result["error"]["message"]
        and "signal" in result["error"]["message"]
    )


def test_an_engine_that_dies_while_it_answers_is_an_error_and_the_next_request_starts_it(hosts: Hosts) -> None:
    host = hosts(minimum_seconds=0).start()
    assert host.ask("a")[0] == 200
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(host.ask, "a", pace=60)
        until(lambda: host.works("a"))
        os.kill(host.unit("a")["pid"], signal.SIGKILL)
        status, result = future.result(60)
    assert status == 502 and "ended before it answered" in result["error"]["message"]
    until(lambda: host.state("a") == "failed")
    assert host.ask("a")[0] == 200 and len(host.calls("start")) == 2


def test_a_program_that_is_killed_loses_no_connection_that_waits_at_its_sockets(hosts: Hosts) -> None:
    host = hosts("ab").start()
    assert host.ask("a")[0] == 200
    host.kill()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(host.ask, name) for name in "aabb"]
        time.sleep(0.3)
        host.start()
        assert [future.result(60)[0] for future in futures] == [200] * 4
    # The program noticed that service a runs already.
    assert [unit for _at, unit in host.calls("start")] == ["spark-a.service", "spark-b.service"]


def test_what_runs_is_finished_before_it_ends_and_engines_stay(hosts: Hosts) -> None:
    host = hosts().start()
    assert host.ask("a")[0] == 200
    with ThreadPoolExecutor(2) as pool:
        future = pool.submit(host.ask, "a", pace=2.0)
        until(lambda: host.works("a"))
        assert host.process is not None
        host.process.send_signal(signal.SIGTERM)
        assert future.result(60)[0] == 200
        assert host.process.wait(60) == 0
        assert host.unit("a")["state"] == "active" and host.calls("stop") == []
        later = pool.submit(host.ask, "a")
        time.sleep(0.1)
        host.start()
        assert later.result(60)[0] == 200


def test_what_waits_is_served_before_it_ends(hosts: Hosts) -> None:
    host = hosts()
    host.options("a", load=1.0)
    host.start()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(host.ask, "a")
        until(lambda: host.unit("a")["state"] == "activating")
        assert host.kill(signal.SIGTERM) == 0
        assert future.result(1)[0] == 200


@pytest.mark.nightly
def test_an_engine_is_not_idle_since_before_the_program_began(hosts: Hosts) -> None:
    host = hosts(idle_seconds=3.0, minimum_seconds=0).start()
    assert host.ask("a")[0] == 200
    host.kill()
    time.sleep(3.0)
    host.start()
    until(lambda: host.state("a") == "ready")
    assert host.calls("stop") == []
    until(lambda: host.calls("stop"))


def test_sockets_are_known_by_their_names(hosts: Hosts) -> None:
    """A name may come twice, because an engine is asked at two addresses; an unknown name is ignored."""
    host = hosts("ab")
    host.further = [(name, socket.create_server(("127.0.0.1", 0))) for name in ("a", "other")]
    del host.services["b"]
    host.start()
    for _name, sock in host.further[:1]:
        with socket.create_connection(sock.getsockname(), timeout=30) as client:
            client.sendall(b"GET /v1/models HTTP/1.1\r\n\r\n")
            assert b'"id": "org/a"' in client.recv(4096)
    assert "hands over a socket of b" in host.said and "hands over a socket of other" in host.said


def test_an_admin_starts_and_stops_engines_too(hosts: Hosts) -> None:
    host = hosts().start()
    host.systemctl("start", "a")
    until(lambda: host.state("a") == "ready")
    assert host.ask("a")[0] == 200
    host.systemctl("stop", "a")
    until(lambda: host.state("a") == "cold")
    assert host.ask("a")[0] == 200 and len(host.calls("start")) == 2


def test_an_engine_started_by_hand_makes_room_only_when_no_other_one_loads(hosts: Hosts) -> None:
    host = shared(hosts("abc", poll=0.2)).start()
    host.options("a", load=4.0)
    host.systemctl("start", "c")
    until(lambda: host.state("c") == "ready")
    time.sleep(0.6)  # its minimum stay
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(host.ask, "a")
        until(lambda: (host.home / "start.json").exists())
        second = pool.submit(host.ask, "b")
        time.sleep(1.5)
        assert host.ask("c")[0] == 200  # it is not drained either
        assert (first.result()[0], second.result()[0]) == (200, 200), host.said
    (stopped,) = host.calls("stop")
    assert stopped[1] == "spark-c.service" and stopped[0] > host.unit("a")["ActiveEnterTimestampMonotonic"] / 1e6


def test_an_engine_that_begins_to_load_just_before_another_one_is_stopped(hosts: Hosts) -> None:
    """It is not on demand, and passes its gate after the program has decided."""
    host = hosts("ab", poll=0.2, idle_seconds=1.0)
    del host.services["b"]
    host.start()
    with (host.home / "start.lock").open("w") as lock:
        assert host.ask("a")[0] == 200
        fcntl.flock(lock, fcntl.LOCK_EX)
        time.sleep(2.5)
        (host.home / "units/spark-b.service").write_text(json.dumps({"state": "activating"}))
        (host.home / "start.json").write_text(json.dumps({"unit": "spark-b.service", "invocation": "", "loads": True}))
    time.sleep(1.5)
    assert host.calls("stop") == [] and host.ask("a")[0] == 200
    (host.home / "units/spark-b.service").write_text(json.dumps({"state": "active"}))
    until(lambda: host.state("a") == "cold")


def test_a_start_that_failed_because_somebody_stopped_an_engine_is_tried_once_more(hosts: Hosts) -> None:
    host = shared(hosts("abc", poll=0.2)).start()
    for name in "ab":
        host.systemctl("start", name)
        until(lambda name=name: host.state(name) == "ready")
    host.systemctl("stop", "b")
    until(lambda: host.state("b") == "cold")
    host.options("c", load=2.0)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(host.ask, "c")
        until(lambda: (host.home / "start.json").exists())
        time.sleep(0.3)
        host.systemctl("stop", "a")
        assert answer.result()[0] == 200
    assert "because memory was released on this host while it loaded" in host.said
    assert [unit for _at, unit in host.calls("start")].count("spark-c.service") == 2


def test_silence_of_systemd_changes_nothing(hosts: Hosts) -> None:
    host = hosts(idle_seconds=2.0, minimum_seconds=0).start()
    assert host.ask("a")[0] == 200
    (host.home / "silent").touch()
    time.sleep(3.0)
    assert host.calls("stop") == [] and host.ask("a")[0] == 200


def test_a_client_that_goes_away_ends_its_request(hosts: Hosts) -> None:
    host = hosts()
    host.options("a", load=1.0)
    host.start()
    waiting = host.connect("a")
    waiting.request("POST", "/v1/chat/completions", json.dumps({"model": "org/a"}), {})
    # A waiting client that hangs up is noticed even if its body exceeds the buffer.
    large = host.connect("a")
    large.connect()
    large.sock.sendall(b"POST / HTTP/1.1\r\nContent-Length: 9000000\r\n\r\n")
    sender = threading.Thread(target=lambda: large.sock.sendall(b"x" * 1500000), daemon=True)
    sender.start()
    until(lambda: host.told.get("a", {}).get("waiting") == 2)
    waiting.close()
    large.sock.shutdown(socket.SHUT_RDWR)
    large.close()
    until(lambda: host.told["a"]["waiting"] == 0)
    until(lambda: host.state("a") == "ready")
    assert host.told["a"]["requests"] == 0
    running = host.connect("a")
    running.request("POST", "/v1/chat/completions", json.dumps({"model": "org/a", "pace": 60}), {})
    until(lambda: host.works("a"))
    running.close()
    until((host.home / "gone").exists)
    until(lambda: host.told["a"]["in_flight"] == 0)


def test_a_request_is_held_so_long(hosts: Hosts) -> None:
    host = hosts(hold_seconds=0.5)
    host.options("a", load=1.5)
    host.start()
    status, headers, text = host.fetch("a")
    assert status == 503 and "not ready within" in text.decode() and "retry-after" in headers
    until(lambda: host.state("a") == "ready")
    assert host.ask("a")[0] == 200 and len(host.calls("start")) == 1


def test_rejected_while_it_loads_and_started_all_the_same(hosts: Hosts) -> None:
    host = hosts(while_loading="reject").start()
    status, headers, _text = host.fetch("a")
    assert status == 503 and int(headers["retry-after"]) >= 1
    until(lambda: host.state("a") == "ready")
    assert host.ask("a")[0] == 200 and len(host.calls("start")) == 1


def seen_cold(host: Any) -> None:
    """Wait until the program knows that the engine was stopped; its file may be a second old."""
    time.sleep(1.2)
    until(lambda: host.state("a") == "cold")


def test_streams_hear_comments_while_it_loads(hosts: Hosts) -> None:
    host = hosts(while_loading="comments")
    host.options("a", load=0.5)
    host.start()
    connection = host.connect("a")
    connection.request("POST", "/v1/chat/completions", json.dumps({"model": "org/a", "stream": True, "max_tokens": 3}))
    response = connection.getresponse()
    assert (response.status, response.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
    assert response.readline() == b": loading\n" and host.unit("a")["state"] != "active"
    lines = [line for line in response.read().decode().splitlines() if line]
    assert len(lines) == 4 and lines[-1] == "data: [DONE]" and '" 2"' in lines[2]
    # A refusal of the engine is an event; so is a failed start. Requests without a stream wait.
    host.systemctl("stop", "a")
    seen_cold(host)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(host.fetch, "a", model="wrong", stream=True)
        plain = pool.submit(host.ask, "a")
        assert plain.result(60)[0] == 200
        status, _headers, text = other.result(60)
    events = [line for line in text.decode().splitlines() if line and not line.startswith(":")]
    assert status == 200 and json.loads(events[0][6:])["error"]["message"] == "no model wrong" and len(events) == 1
    host.systemctl("stop", "a")
    host.options("a", fail="exit")
    seen_cold(host)
    status, _headers, text = host.fetch("a", stream=True)
    assert status == 200 and ": loading, about" in text.decode() and "no room for KV" in text.decode()


def test_pins(hosts: Hosts) -> None:
    host = shared(hosts("ab", idle_seconds=0.3, minimum_seconds=0), keep=1).start()
    until(lambda: host.told)
    assert host.run("pin", "c", "warm").returncode == 2
    assert host.run("pin", "a", "warm").returncode == 0
    until(lambda: host.state("a") == "ready")
    status, result = host.ask("b")
    assert status == 503 and "a is kept warm by its owner" in result["error"]["message"]
    time.sleep(1.0)
    assert host.calls("stop") == []
    assert host.run("pin", "a", "cold").returncode == 0
    until(lambda: host.state("a") == "cold")
    status, result = host.ask("a")
    assert status == 503 and "a is kept cold by its owner" in result["error"]["message"]
    assert host.ask("b")[0] == 200
    assert host.run("pin", "a", "auto").returncode == 0
    until(lambda: host.told["a"]["pin"] == "auto")
    assert host.ask("a")[0] == 200
    shown = json.loads(host.run("--status").stdout)
    assert shown["services"]["a"]["pin"] == "auto" and shown["version"] == 1


def test_what_the_guard_stopped_stays_down_until_somebody_starts_it(hosts: Hosts) -> None:
    host = hosts().start()
    assert host.ask("a")[0] == 200
    # In the order of the guard: first the pin, then the stop.
    pins.write(host.home / "run/pins", "a", pins.COLD, "the guard of spark-1, which stopped it: 0.4 GiB available")
    host.systemctl("stop", "a")
    until(lambda: host.state("a") == "cold")
    status, result = host.ask("a")
    assert status == 503
    assert result["error"]["message"] == "a is kept cold by the guard of spark-1, which stopped it: 0.4 GiB available"
    assert len(host.calls("start")) == 1
    state = until(lambda: host.told["a"] if host.told["a"]["pin"] == "cold" else None)
    assert state["pin_why"].startswith("the guard of spark-1")
    host.systemctl("start", "a")
    until(lambda: host.state("a") == "ready")
    assert host.ask("a")[0] == 200 and pins.read(host.home / "run/pins", "a") == pins.Pin()
    assert "was started by somebody, so the guard no longer keeps it cold" in host.said
    # A service that its owner keeps cold stays pinned: an admin's start does not remove that pin.
    assert host.run("pin", "a", "cold").returncode == 0
    until(lambda: host.state("a") == "cold")
    host.systemctl("start", "a")
    until(lambda: len(host.calls("stop")) == 3)
    assert pins.read(host.home / "run/pins", "a") == pins.Pin("cold")


def test_others_who_use_an_engine_keep_it(hosts: Hosts) -> None:
    host = hosts(idle_seconds=0.5, minimum_seconds=0)
    host.options("a", foreign=1)
    host.start()
    assert host.ask("a")[0] == 200
    time.sleep(2.5)
    assert host.calls("stop") == [] and host.state("a") == "ready"


def test_a_speech_server_is_idle_by_its_own_requests(hosts: Hosts) -> None:
    """It counts no requests; figures under vLLM's names at its /metrics are ignored. Its own health path is answered while it is cold."""
    host = hosts(idle_seconds=0.5, minimum_seconds=0, kind="asr", health="/api/health?deep=1")
    host.options("a", foreign=1)
    host.start()
    assert host.ask("a", "/api/health", "GET") == (200, {"status": "cold"}) and host.calls("start") == []
    assert host.ask("a", "/v1/models", "GET")[1]["data"][0]["owned_by"] == "asr"
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(host.ask, "a", pace=1.5, max_tokens=1)
        until(lambda: host.told.get("a", {}).get("in_flight"))
        time.sleep(1.0)
        assert host.calls("stop") == []
        assert long.result()[0] == 200
    until(lambda: host.state("a") == "cold")
    assert len(host.calls("stop")) == 1 and host.ask("a", "/api/health", "GET")[0] == 200


@pytest.mark.nightly
def test_a_server_that_ends_with_an_error_when_it_is_stopped_has_not_failed(hosts: Hosts) -> None:
    host = hosts(idle_seconds=0.5, minimum_seconds=0, kind="asr")
    host.options("a", stopped="failed")
    host.start()
    for _round in range(2):
        assert host.ask("a")[0] == 200
        until(lambda: host.state("a") == "cold" and host.unit("a")["state"] == "inactive")
    assert host.told["a"]["reason"] == "" and len(host.calls("reset-failed")) == 2


def peak_mib(host: Host) -> int:
    """Return the peak resident size of the program."""
    assert host.process is not None
    status = Path(f"/proc/{host.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def test_large_bodies_that_wait_share_one_limit(hosts: Hosts) -> None:
    """150 bodies of 8 MiB, which are read to see whether they want a stream; a small request waits with them and is served."""
    host = hosts(while_loading="comments", poll=0.2)
    host.options("a", load=8)
    host.start()
    until(lambda: host.told)
    before = peak_mib(host)
    body = b'{"model": "org/a", "text": "' + b"x" * (8 * 2**20 - 30) + b'"}'
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)

    def send(_number: int) -> bytes:
        answer = b""
        with socket.create_connection(("127.0.0.1", host.sockets["a"].getsockname()[1]), timeout=120) as sock:
            with contextlib.suppress(OSError):
                sock.sendall(head + body)
            with contextlib.suppress(OSError):
                while piece := sock.recv(65536):
                    answer += piece
        return answer

    with ThreadPoolExecutor(150) as large, ThreadPoolExecutor(10) as small:
        answers = large.map(send, range(150))
        until(lambda: host.told["a"]["waiting"] >= 4)
        assert [status for status, _text in small.map(lambda _number: host.ask("a"), range(20))] == [200] * 20
        statuses = Counter(answer[9:12] for answer in answers)
    peak = peak_mib(host)
    print(f"150 bodies of 8 MiB: {dict(statuses)}, resident {before} -> {peak} MiB")
    assert statuses[b"200"] and statuses[b"503"] and set(statuses) <= {b"200", b"503", b""}
    assert peak - before < 160
    assert host.ask("a")[0] == 200


@pytest.mark.nightly
def test_connections_without_a_head_make_way(hosts: Hosts) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 8192  # as the program has it
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * most), hard))
    host = hosts().start()
    until(lambda: host.told)
    slow = []
    try:
        for _number in range(most + 200):
            slow.append(socket.create_connection(("127.0.0.1", host.sockets["a"].getsockname()[1]), timeout=60))
            slow[-1].sendall(b"POST ")
        print(f"{most} connections: resident {peak_mib(host)} MiB")
        assert host.ask("a")[0] == 200
        assert peak_mib(host) < 200
        assert slow[0].recv(1) == b""  # the oldest
    finally:
        for entry in slow:
            entry.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_large_upload_is_passed_on_without_being_kept(hosts: Hosts) -> None:
    host = hosts(kind="asr")
    host.options("a", load=0.5)
    host.start()
    until(lambda: host.told)
    before = peak_mib(host)
    for length in ({}, {"Content-Length": str(96 * 2**20)}):
        connection = host.connect("a")
        headers = {"Content-Type": "multipart/form-data; boundary=x", **length}
        connection.request(
            "POST",
            "/v1/audio/transcriptions",
            (bytes(2**20) for _piece in range(96)),
            headers,
            encode_chunked=not length,
        )
        assert json.loads(connection.getresponse().read()) == {"text": "", "bytes": 96 * 2**20}
        connection.close()
    assert peak_mib(host) - before < 32 and len(host.calls("start")) == 1


def test_bodies_of_all_kinds(hosts: Hosts) -> None:
    host = hosts()
    host.options("a", load=0.5)
    host.start()
    text = json.dumps({"model": "org/a", "text": "x" * 3_000_000}).encode()
    port = host.sockets["a"].getsockname()[1]

    def raw(*parts: bytes, wait_for: bytes = b"") -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
            for part in parts:
                sock.sendall(part)
                if wait_for:
                    assert wait_for in sock.recv(4096)
                    wait_for = b""
            result = b""
            while piece := sock.recv(65536):
                result += piece
        return result

    pieces = b"".join(
        b"%x\r\n%s\r\n" % (len(text[at : at + 9999]), text[at : at + 9999]) for at in range(0, len(text), 9999)
    )
    chunked = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", pieces + b"0\r\n\r\n"
    old = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(text), text
    # While it loads, and then while it is up.
    for _round in range(2):
        with ThreadPoolExecutor(2) as pool:
            for result in pool.map(lambda parts: raw(*parts), (chunked, old)):
                assert result.startswith(b"HTTP/1.1 200") and json.loads(result.partition(b"\r\n\r\n")[2])[
                    "bytes"
                ] == len(text)
    expecting = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(text)
    assert b"HTTP/1.1 200" in raw(expecting, text, wait_for=b"100 Continue")
    assert raw(b"\x16\x03\x01\x02").startswith(b"HTTP/1.1 400 ")
    assert raw(b"GET / HTTP/1.1\nA: b\n\n").startswith(b"HTTP/1.1 400 ")
    # It comes in single bytes.
    assert b" 200 " in raw(*(bytes([entry]) for entry in b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"))


def test_ipv6(hosts: Hosts) -> None:
    try:
        sock = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    host = hosts()
    host.sockets["a"].close()
    host.sockets["a"] = sock
    host.services["a"]["engine"] = f"http://[::1]:{host.ports['a']}"
    host.options("a", host="::1")
    host.start()
    with socket.create_connection(("::1", sock.getsockname()[1]), timeout=30) as client:
        body = json.dumps({"model": "org/a"}).encode()
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_settings_that_cannot_be_are_named(hosts: Hosts) -> None:
    host = hosts()
    host.services["a"]["engine"] = "nowhere"
    host.start()
    assert host.process is not None and host.process.wait(60) == 1
    assert "settings.json: services.a.engine is no URL" in host.said


def test_how_far_an_engine_is_that_starts_and_how_long_it_still_takes(hosts: Hosts) -> None:
    """By what it prints, and by what the stages of its last starts took; comments and Retry-After say the same."""
    host = hosts(while_loading="comments")
    host.options("a", load=3600.0)
    (host.home / "printed").write_text(json.dumps(["Starting to load model org/a"]))
    last = {"at": "2026-11-23T08:00:00Z", "launch": "", "stages": {"gate": 1.0, "load": 900.0, "profile": 60.0}}
    (host.home / "starts/a.json").write_text(json.dumps({"starts": [last]}))
    host.start()
    state = until(lambda: host.told.get("a"))
    assert (
        state["last_start"] == {"at": last["at"], "seconds": 961.0, "stages": last["stages"]} and state["stage"] == ""
    )
    client = threading.Thread(target=host.fetch, args=("a",), kwargs={"stream": True}, daemon=True)
    client.start()
    # The unit has its turn from now on.
    record = {"invocation": f"i{until(lambda: host.unit('a').get('pid'))}", "gate": {"clock": 0.0}}
    (host.home / "starts/spark-a.service.json").write_text(json.dumps(record))
    state = until(lambda: host.told["a"] if host.told["a"]["stage"] == "load" else None)
    assert state["percent"] is None and 60 < state["left_seconds"] <= 960
    status, headers, _text = host.fetch("a", path="/other", method="GET")
    assert status == 503 and 60 < int(headers["retry-after"]) <= 960
    host.systemctl("stop", "a")
    client.join(60)
    assert not client.is_alive()
