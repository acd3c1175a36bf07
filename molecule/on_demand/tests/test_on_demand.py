"""Engines that requests start: answers to clients, and the state of the nodes meanwhile. The tests run in order on the shared nodes."""

from __future__ import annotations

import http.client
import io
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import wave
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule"))

import nodes
from nodes import AT_NIGHT, NODES, SUBNET

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
KEY = "molecule-secret-key"
BIG = ("one", "two", "three")
PLACES = {name: ("11", 8001 + place) for place, name in enumerate(BIG)}
if AT_NIGHT:
    PLACES["tiny"] = ("12", 8003)
# A model over both nodes, which one of the tests adds; and the gateway.
FURTHER = {"both": ("11", 8005), "gateway": ("12", 4000)}
SLOW = 120.0


def node(host, *argv, check=True):
    return nodes.node(host, *argv, check=check).strip()


def host_of(name):
    return "spark-1" if PLACES[name][0] == "11" else "spark-2"


def ask(name, method="POST", path="/v1/completions", key=KEY, timeout=SLOW, stream=False, model=""):
    """Ask a service at its port; returns the status, its headers and the body."""
    address, port = {**PLACES, **FURTHER}[name]
    client = http.client.HTTPConnection(f"{SUBNET}.0.{address}", port, timeout=timeout)
    body = (
        json.dumps({"model": model or name, "prompt": "Say hello", "max_tokens": 4, "stream": stream})
        if method == "POST"
        else None
    )
    try:
        client.request(method, path, body, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        answer = client.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        client.close()


def state(host):
    """What the program on a host says of its services."""
    return json.loads(node(host, "cat", "/run/dgxspark/on_demand/state.json"))["services"]


def unit(name):
    return node(host_of(name), "systemctl", "is-active", f"spark-{name}.service", check=False)


def until(condition, seconds=SLOW):
    """Wait for something that has to come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(1)  # each look starts programs in the nodes
    raise AssertionError({host: state(host) for host in NODES})


def cold(*names):
    return all(unit(name) in ("inactive", "failed") for name in names)


def available_gib(host):
    text = node(host, "grep", "MemAvailable", "/run/spark-sim/root/proc/meminfo")
    return int(text.split()[1]) / 1024 / 1024


def play(playbook, *options, code=0):
    argv = ["ansible-playbook", f"--inventory={ROOT}/molecule/inventory.yml"]
    names = ("inventory", "nightly/inventory") if AT_NIGHT else ("inventory",)
    argv += [f"--inventory={ROOT}/molecule/on_demand/{name}.yml" for name in names]
    argv += [f"dgxspark.vllm.{playbook}", *options]
    # Molecule's own configuration, at night, does not enable the callback that writes timelines.
    env = {**os.environ, "ANSIBLE_CALLBACKS_ENABLED": "dgxspark.vllm.progress"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_each_was_proved_through_its_port():
    for name in PLACES:
        receipt = json.loads(node(host_of(name), "cat", f"/var/lib/dgxspark/receipts/{name}.json"))
        assert receipt["measured"]["ttft_seconds"] > 0
        assert node(host_of(name), "systemctl", "is-enabled", f"spark-{name}.socket") == "enabled"
        assert node(host_of(name), "systemctl", "is-enabled", f"spark-{name}.service", check=False) == "disabled"


def test_they_end_when_nobody_asks_and_give_their_memory_back():
    until(lambda: cold(*PLACES))
    until(lambda: state("spark-1")["three"]["freed_gib"])
    until(lambda: available_gib("spark-1") > 100)


@pytest.mark.nightly
def test_a_speech_server_was_proved_and_ends_when_nobody_asks():
    assert json.loads(node("spark-1", "cat", "/var/lib/dgxspark/speech/ears.proved.json"))["fingerprint"]
    until(lambda: ears() == "inactive")


@pytest.mark.nightly
def test_a_second_run_changes_nothing_and_wakes_nobody():
    text = play("site")
    assert text.count("changed=0") >= 2 and "changed=1" not in text, text
    play("drift")
    play("doctor", "--limit", "spark-1")
    assert cold(*PLACES) and ears() == "inactive"


def test_who_only_looks_wakes_nobody():
    assert ask("one", "GET", "/health")[0] == 200
    status, _headers, body = ask("one", "GET", "/v1/models")
    assert status == 200 and json.loads(body)["data"][0]["id"] == "one"
    assert ask("one", "GET", "/v1/models", key="no")[0] == 401 == ask("one", key="no")[0]
    status, _headers, body = ask("one", "GET", "/metrics")
    assert status == 200 and "spark_on_demand_state" in body
    text = play("status")
    assert f"{len(PLACES) + AT_NIGHT} unloaded" in text or text.count("unloaded") >= 2, text
    assert cold(*PLACES)


def test_the_first_request_starts_it_and_is_answered():
    before = available_gib("spark-1")
    status, _headers, body = ask("one")
    assert status == 200 and json.loads(body)["model"] == "one"
    assert unit("one") == "active" and before - available_gib("spark-1") > 40


@pytest.mark.nightly
def test_a_stream_of_the_real_engine_has_comments_while_it_loads():
    status, headers, body = ask("tiny", stream=True, timeout=300)
    assert status == 200 and headers["Content-Type"].startswith("text/event-stream")
    assert ": loading" in body and "data: [DONE]" in body


@pytest.mark.nightly
def test_what_each_stage_of_a_start_took_is_kept_and_told():
    for name in ("one", "tiny"):
        recorded = json.loads(node(host_of(name), "cat", f"/var/lib/dgxspark/starts/{name}.json"))["starts"]
        # The proof started it, and then a request did.
        assert len(recorded) >= 2 and list(recorded[-1]["stages"])[:2] == ["gate", "arguments"], recorded
        # Its report is written after the records.
        until(
            lambda name=name, recorded=recorded: (
                state(host_of(name))[name]["last_start"]["stages"] == recorded[-1]["stages"]
            ),
            60,
        )
        assert state(host_of(name))[name]["last_start"]["seconds"] > 0
    # The real engine prints its stages.
    assert {"device", "load", "serving"} <= set(recorded[-1]["stages"]), recorded
    tiny_starts = json.loads(node("spark-2", "cat", "/var/lib/dgxspark/starts/tiny.json"))["starts"]
    assert len({start["launch"] for start in tiny_starts}) == 1 and tiny_starts[0]["launch"]
    text = play("doctor", "--limit", "spark-2", "-e", "spark_doctor_fail_on=never")
    assert "its last start took" in " ".join(text.split()), text


@pytest.mark.nightly
def test_two_that_ask_at_once_start_one_engine():
    until(lambda: cold("two"))
    answers = []
    callers = [threading.Thread(target=lambda: answers.append(ask("two")[0])) for _number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert answers == [200] * 8
    since = node("spark-1", "systemctl", "show", "--property=InactiveExitTimestamp", "--value", "spark-two.service")
    started = node(
        "spark-1",
        "journalctl",
        "--unit=spark-two.service",
        f"--since={since.split(' ', 1)[1]}",
        "--grep=gate|memory is there",
        "-o",
        "cat",
    )
    assert started.count("memory is there") == 1, started


def test_200_requests_to_three_of_which_two_fit():
    # By hand: it has to make room, but not while another one loads.
    node("spark-1", "systemctl", "start", "spark-three.service")
    names = random.Random(7).choices(BIG, k=200)
    wrong, most, over = [], [0], threading.Event()
    line = threading.Lock()

    def work():
        while True:
            with line:
                if not names:
                    return
                name = names.pop()
            status, _headers, body = ask(name, timeout=300)
            if status != 200 or json.loads(body)["model"] != name:
                wrong.append((name, status, body[:200]))

    def look():
        while not over.wait(1):
            up = node("spark-1", "docker", "ps", "--format", "{{.Names}}").split()
            most[0] = max(most[0], sum(f"spark-{name}" in up for name in BIG))

    watcher = threading.Thread(target=look)
    watcher.start()
    callers = [threading.Thread(target=work) for _number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    over.set()
    watcher.join()
    assert wrong == []
    assert most[0] == 2


def test_pages_show_the_stages_of_a_start_and_the_day_of_each_service(tmp_path):
    until(lambda: cold("three"))
    play("start", "-e", "services=three", "-e", "spark_pin=false", "-e", f"spark_timeline={tmp_path}/start.html")
    page = (tmp_path / "start.html").read_text()
    last = json.loads(node("spark-1", "cat", "/var/lib/dgxspark/starts/three.json"))["starts"][-1]
    ready = re.search(r"ready after (\d+) s", page)
    assert ready and abs(int(ready[1]) - last["seconds"]) <= 1 and "<h2>Starts of engines</h2>" in page, page
    play("status", "-e", f"spark_status_timeline={tmp_path}/day.html")
    labels = re.findall(r'aria-label="([^"]+)"', (tmp_path / "day.html").read_text())
    on_demand = [label for label in labels if "cold (on demand)" in label]
    # The node is not a day old.
    assert len(on_demand) == len(PLACES) + AT_NIGHT and all(
        "unknown" in label for label in labels if "demand" in label
    ), labels
    assert all("warm (on demand)" in label and "starting" in label for label in on_demand), labels
    agents = [node(host, "systemctl", "is-active", "spark-agent.service", check=False) for host in NODES]
    assert sum(label.startswith("watched: running") for label in labels) == agents.count("active") > 0, labels


def tone(seconds):
    """So much silence as a WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(32000 * seconds))
    return buffer.getvalue()


def hear(seconds=1, method="POST", path="/v1/audio/transcriptions", address="11", port=8765, model="parakeet-tdt-0.6b"):
    """Send the speech server on demand a recording, in chunks; returns the status and the body."""
    head = "--mark\r\nContent-Disposition: form-data; name="
    parts = [
        f'{head}"model"\r\n\r\n{model}\r\n{head}"file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'.encode()
    ]
    audio = tone(seconds) if method == "POST" else b""
    parts += [audio[at : at + 2**16] for at in range(0, len(audio), 2**16)] + [b"\r\n--mark--\r\n"]
    client = http.client.HTTPConnection(f"{SUBNET}.0.{address}", port, timeout=300)
    headers = {"Content-Type": "multipart/form-data; boundary=mark", "Authorization": f"Bearer {KEY}"}
    try:
        client.request(method, path, iter(parts) if method == "POST" else None, headers)
        answer = client.getresponse()
        return answer.status, answer.read().decode()
    finally:
        client.close()


def ears():
    return node("spark-1", "systemctl", "is-active", "spark-ears.service", check=False)


@pytest.mark.nightly
def test_a_speech_server_starts_with_its_first_upload_and_an_engine_makes_room():
    assert node("spark-1", "systemctl", "is-enabled", "spark-ears.socket") == "enabled"
    assert node("spark-1", "systemctl", "is-enabled", "spark-ears.service", check=False) == "disabled"
    until(lambda: ears() == "inactive")
    assert hear(method="GET", path="/health")[0] == 200 and ears() == "inactive"
    for name in ("one", "two"):
        assert ask(name, timeout=300)[0] == 200
    # 30 MB, of which the program keeps no more than a part while it waits.
    status, body = hear(seconds=1000)
    assert status == 200 and "1000.0 seconds of audio" in body, body
    assert ears() == "active" and "active" in (unit("one"), unit("two")) and not unit("one") == unit("two") == "active"
    assert node("spark-1", "docker", "port", "spark-ears") == "5092/tcp -> 127.0.0.1:18765"
    # Through the gateway, and idle again by its own requests.
    assert hear(address="12", port=4000)[0] == 200
    until(lambda: ears() == "inactive")
    until(lambda: state("spark-1")["ears"]["state"] == "cold", 60)
    time.sleep(15)  # checks of the gateway
    assert ears() == "inactive"


@pytest.mark.nightly
def test_a_speech_server_whose_start_fails_says_why_at_once_and_is_kept_down_by_its_owner():
    node("spark-1", "sh", "-c", "echo SPARK_SIM_FAULT=fail >> /etc/dgxspark/speech/ears.env")
    try:
        status, body = hear()
        begin = time.monotonic()
        assert (status, hear()[0]) == (503, 503) and time.monotonic() - begin < 2
        assert "ears could not be started: " in json.loads(body)["error"]["message"]
    finally:
        node("spark-1", "sed", "-i", "/SPARK_SIM_FAULT/d", "/etc/dgxspark/speech/ears.env")
    play("start", "-e", "services=ears")
    assert ears() == "active" and hear()[0] == 200
    play("stop", "-e", "services=ears")
    status, body = hear()
    assert status == 503 and "kept cold" in body and ears() == "inactive"
    play("stop", "-e", "services=ears", "-e", "spark_pin=false")


@pytest.mark.nightly
def test_a_start_that_fails_says_why_at_once():
    until(lambda: cold("three"), 180)
    node("spark-1", "sh", "-c", "echo SPARK_SIM_FAULT=fail >> /etc/dgxspark/env/three.env")
    try:
        status, headers, body = ask("three")
        begin = time.monotonic()
        second = ask("three")
        assert (status, second[0]) == (503, 503) and time.monotonic() - begin < 2
        assert "Retry-After" in headers and "three" in json.loads(body)["error"]["message"]
        until(lambda: state("spark-1")["three"]["state"] == "failed", 10)
    finally:
        node("spark-1", "sed", "-i", "/SPARK_SIM_FAULT/d", "/etc/dgxspark/env/three.env")
    # Somebody who has mended it starts it by hand.
    node("spark-1", "systemctl", "start", "spark-three.service")
    assert ask("three")[0] == 200


@pytest.mark.nightly
def test_through_the_gateway_cold_models_are_listed_and_start_with_their_first_request():
    status, _headers, body = ask("gateway", "GET", "/v1/models")
    assert status == 200 and set(PLACES) <= {model["id"] for model in json.loads(body)["data"]}
    until(lambda: cold("one", "two"), 180)  # whom somebody asked before
    time.sleep(15)  # checks of the gateway come by, several times
    assert cold("one", "two")
    status, _headers, body = ask("gateway", timeout=300, model="two")
    assert status == 200 and json.loads(body)["model"] == "two" and unit("two") == "active"
    begin = time.monotonic()
    node("spark-1", "sh", "-c", "echo SPARK_SIM_FAULT=fail >> /etc/dgxspark/env/one.env")
    try:
        status, headers, body = ask("gateway", timeout=300, model="one")
        message = json.loads(body)["error"]["message"]
        assert status == 503 and message.startswith("one could not be started: ") and int(headers["retry-after"]) > 0
        since = f"--since=-{time.monotonic() - begin + 2:.0f}s"  # in whole seconds: not less than it took
        text = node("spark-1", "journalctl", "-u", "spark-on-demand", "-o", "cat", since)
        assert text.count("one: is started") == 1, text  # LiteLLM's own retries would have started it again
    finally:
        node("spark-1", "sed", "-i", "/SPARK_SIM_FAULT/d", "/etc/dgxspark/env/one.env")
    node("spark-1", "systemctl", "start", "spark-one.service")
    assert ask("gateway", timeout=300, model="one")[0] == 200


@pytest.mark.nightly
def test_the_program_is_killed_and_nobody_is_sent_away():
    main = node("spark-1", "systemctl", "show", "--property=MainPID", "--value", "spark-on-demand.service")
    node("spark-1", "kill", "-9", main)
    assert ask("three")[0] == 200
    assert unit("three") == "active"


@pytest.mark.nightly
def test_an_engine_that_is_killed_while_it_loads_is_told_to_who_waits():
    play("stop", "-e", "services=one,two,three", "-e", "spark_pin=false")
    answers = []
    caller = threading.Thread(target=lambda: answers.append(ask("two")))
    caller.start()
    until(lambda: "spark-two" in node("spark-1", "docker", "ps", "--format", "{{.Names}}"))
    node("spark-1", "docker", "kill", "spark-two")
    caller.join()
    assert answers[0][0] in (200, 503)
    if answers[0][0] == 503:
        assert "two" in json.loads(answers[0][2])["error"]["message"]
        node("spark-1", "systemctl", "reset-failed", "spark-two.service", check=False)


@pytest.mark.nightly
def test_its_owner_keeps_it_down_and_up():
    play("stop", "-e", "services=one")
    status, _headers, body = ask("one")
    assert status == 503 and "kept cold" in body
    play("start", "-e", "services=one")
    assert unit("one") == "active" and ask("one")[0] == 200
    play("stop", "-e", "services=one", "-e", "spark_pin=false")
    assert cold("one") and ask("one")[0] == 200


def rank(host, verb="is-active", unit_kind="service"):
    return node(host, "systemctl", verb, f"spark-both.{unit_kind}", check=False)


def ranks():
    return {rank(host) for host in NODES}


def with_pair(folder):
    """An inventory in which both nodes are a pair, with a model over both that requests start."""
    service = {
        "name": "both",
        "recipe": "scripted-tiny",
        "port": 8005,
        "args": {"gpu-memory-utilization": 0.05},
        "on_demand": {"idle_minutes": 0.5, "minimum_minutes": 0.1, "retry_minutes": 1, "hold_minutes": 5},
    }
    fabric = {"probe_seconds": 2, "min_gbps": {"iperf3": 0.1}}
    cluster = {"name": "pair", "peer_timeout": 15, "fabric": fabric, "services": [service]}
    group = {"hosts": {host: {} for host in NODES}, "vars": {"spark_cluster": cluster}}
    path = folder / "zz.yml"
    path.write_text(json.dumps({"sparks": {"children": {"pair": group}, "vars": {"spark_fabric_args": []}}}))
    return ("-i", str(path))


@pytest.mark.nightly
def test_a_model_over_both_nodes_starts_with_its_first_request_and_ends_on_both(tmp_path):
    play("site", *with_pair(tmp_path))
    for place, host in enumerate(NODES):
        assert json.loads(node(host, "cat", "/var/lib/dgxspark/receipts/both.json"))["rank"] == place
        assert (rank(host, "is-enabled"), rank(host, "is-enabled", "socket")) == ("disabled", "enabled")
    # Proved, it is idle: nothing of it runs, and nothing wakes it.
    until(lambda: ranks() == {"inactive"}, 240)
    until(lambda: state("spark-1")["both"]["state"] == "cold", 60)
    assert set(state("spark-1")["both"]["freed_hosts"]) == {"spark-2"}
    woken = node("spark-2", "systemctl", "show", "--property=InactiveExitTimestamp", "--value", "spark-both.service")
    assert ask("both", "GET", "/v1/models")[0] == 200
    time.sleep(20)
    assert ranks() == {"inactive"}
    shown = node("spark-2", "systemctl", "show", "--property=InactiveExitTimestamp", "--value", "spark-both.service")
    assert shown == woken
    status, _headers, body = ask("both", timeout=300)
    assert status == 200 and json.loads(body)["model"] == "both"
    until(lambda: ranks() == {"active"}, 10)
    assert all("spark-both" in node(host, "docker", "ps", "--format", "{{.Names}}") for host in NODES)
    text = play("status", *with_pair(tmp_path))
    assert "both" in text


@pytest.mark.nightly
def test_one_lost_rank_of_it_ends_both_and_the_next_request_starts_both(tmp_path):
    assert ask("both", timeout=300)[0] == 200
    node("spark-2", "docker", "kill", "spark-both")
    until(lambda: "active" not in ranks(), 120)
    until(lambda: not any("spark-both" in node(host, "docker", "ps", "--format", "{{.Names}}") for host in NODES), 60)
    until(lambda: state("spark-1")["both"]["state"] == "failed", 60)
    # It had served for longer than minimum_minutes, so it is tried at once; else after retry_minutes.
    until(lambda: ask("both", timeout=300)[0] == 200, 120)
    assert ranks() == {"active"}


@pytest.mark.nightly
def test_a_node_that_does_not_take_part_is_the_reason_of_a_start_that_fails(tmp_path):
    play("stop", "-e", "services=both", "-e", "spark_pin=false", *with_pair(tmp_path))
    assert ranks() == {"inactive"}
    node("spark-2", "systemctl", "stop", "spark-both.socket")
    try:
        status, headers, body = ask("both", timeout=120)
        begin = time.monotonic()
        second = ask("both")
        assert (status, second[0]) == (503, 503) and time.monotonic() - begin < 2
        assert "Retry-After" in headers
        assert "spark-2 (rank 1): no heartbeat" in json.loads(body)["error"]["message"]
    finally:
        node("spark-2", "systemctl", "start", "spark-both.socket")
    # Somebody who has mended it starts it by hand, on the head alone.
    node("spark-1", "systemctl", "start", "--no-block", "spark-both.service")
    until(lambda: ranks() == {"active"}, 240)
    assert ask("both")[0] == 200


@pytest.mark.nightly
def test_its_owner_keeps_a_model_over_both_nodes_down_and_up(tmp_path):
    extra = with_pair(tmp_path)
    play("stop", "-e", "services=both", *extra)
    assert ranks() == {"inactive"}
    status, _headers, body = ask("both")
    assert status == 503 and "kept cold" in body
    play("start", "-e", "services=both", *extra)
    assert ranks() == {"active"} and ask("both")[0] == 200
    play("stop", "-e", "services=both", "-e", "spark_pin=false", *extra)
    assert ranks() == {"inactive"}


@pytest.mark.nightly
def test_after_a_reboot_all_is_cold_and_answers():
    nodes.container("spark-1").restart(timeout=60)
    until(lambda: node("spark-1", "systemctl", "is-active", "spark-on-demand.service", check=False) == "active")
    assert cold(*BIG)
    assert ask("two", timeout=300)[0] == 200


@pytest.mark.nightly
def test_without_on_demand_it_is_always_there(tmp_path):
    extra = tmp_path / "zz.yml"
    services = [
        {"name": "one", "recipe": "qwen3-4b-instruct-2507", "port": 8001, "args": {"gpu-memory-utilization": 0.4}}
    ]
    speech = [{"name": "ears", "kind": "asr", "docker_args": "{{ spark_docker_args }}"}]
    spark = {"spark_services": services, "spark_speech": speech}
    extra.write_text(json.dumps({"sparks": {"hosts": {"spark-1": spark}}}))
    play("site", "--limit", "spark-1", "-i", str(extra))
    assert unit("one") == "active" and ask("one")[0] == 200
    # Its port was the program's until a moment before.
    assert ears() == "active" and hear()[0] == 200
    assert (
        node(
            "spark-1",
            "sh",
            "-c",
            "ls /etc/systemd/system/spark-*.socket /etc/dgxspark/on_demand/* 2>/dev/null",
            check=False,
        )
        == ""
    )
