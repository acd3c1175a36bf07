"""What the live pages and status.yml show, compared with the hosts: Docker, systemd, nvidia-smi, /proc and the engines, asked directly.

The tests run in order on the shared nodes, before the others: they begin when the engines on demand become idle.
"""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule"))

from nodes import AT_NIGHT, NODES, SUBNET, node

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
KEY = "molecule-secret-key"
PLACES = {
    "one": "spark-1",
    "two": "spark-1",
    "three": "spark-1",
    "steady": "spark-2",
    **({"tiny": "spark-2"} if AT_NIGHT else {}),
}
PAGE, AGENT = 8090, 8095
SLOW = 120.0
"""Seconds after which a page that still shows something else is wrong; a change takes two looks of 5 s, and longer on a busy machine."""
LOOKS = 12.0
"""Age of a state that a page shows at most, without the duration of the looks."""
# The state of a host, from its own programs.
TRUTH = r"""
import json, re, subprocess, sys, urllib.request
def run(*argv):
    return subprocess.run(argv, capture_output=True, text=True).stdout
def lines(*argv):
    return dict(line.partition("=")[::2] for line in run(*argv).splitlines())
def gib(kib):
    return int(kib) / 2**20
uptime = float(open("/proc/uptime").read().split()[0])
containers = run("docker", "ps", "--format", "{{.Names}}").split()
held = dict(line.split(", ") for line in run("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").splitlines())
services = {}
for name in sys.argv[1:]:
    unit = lines("systemctl", "show", f"spark-{name}.service", "--property=ActiveState,ActiveEnterTimestampMonotonic,NRestarts")
    truth = services[name] = {"unit": unit["ActiveState"], "restarts": int(unit["NRestarts"]), "container": f"spark-{name}" in containers}
    truth["up"] = uptime - int(unit["ActiveEnterTimestampMonotonic"]) / 1e6
    if not truth["container"]:
        continue
    words = json.loads(run("docker", "inspect", "--format", "[{{json .Config.Cmd}}, {{json .Args}}]", f"spark-{name}").strip() or "[]")
    if not words:  # it has just ended
        truth["container"] = False
        continue
    argv = [word for part in words for word in part or []]
    pids = run("docker", "top", f"spark-{name}", "-eo", "pid").split()[1:]
    truth["gib"] = sum(int(held.get(pid, 0)) for pid in pids) / 1024
    try:
        host, port = (argv[argv.index(name) + 1] for name in ("--host", "--port"))
        base = f"http://{host}:{port}"
        text = urllib.request.urlopen(f"{base}/metrics", timeout=5).read().decode()
        truth["version"] = json.load(urllib.request.urlopen(f"{base}/version", timeout=5))["version"]
    except OSError:
        continue
    names = {"running": "num_requests_running", "waiting": "num_requests_waiting", "kv": "kv_cache_usage_perc", "tokens": "generation_tokens_total"}
    for figure, metric in names.items():
        truth[figure] = float(re.search(rf"^vllm:{metric}\{{[^}}]*\}} (\S+)", text, re.M)[1])
sizes = dict(re.findall(r"(MemTotal|MemAvailable):\s+(\d+)", open("/run/spark-sim/root/proc/meminfo").read()))
asked = "utilization.gpu,power.draw,temperature.gpu,clocks.current.sm"
gpu = run("nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader,nounits")
print(json.dumps({
    "services": services, "total_gib": gib(sizes["MemTotal"]), "available_gib": gib(sizes["MemAvailable"]),
    "gpu": [float(figure) for figure in gpu.split(",")],
}))
"""


def truth():
    """Return the state of every node."""
    names = {host: [name for name, place in PLACES.items() if place == host] for host in NODES}
    return {host: json.loads(node(host, "python3", "-c", TRUTH, *names[host])) for host in NODES}


def ask(host, port, path="/", key=KEY, method="GET", body=None, headers=(), timeout=30):
    """Ask a page from this machine; returns the status and the body."""
    client = http.client.HTTPConnection(f"{SUBNET}.0.1{host[-1]}", port, timeout=timeout)
    try:
        client.request(method, path, body, {**({"Authorization": f"Bearer {key}"} if key else {}), **dict(headers)})
        answer = client.getresponse()
        return answer.status, answer.read().decode()
    finally:
        client.close()


def fleet(path="/"):
    """Return an answer of the page of both hosts, which only its own host reaches."""
    return node("spark-1", "curl", "--fail", "--silent", "--max-time", "30", f"http://127.0.0.1:{PAGE}{path}")


def plain(text):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def read_page(text):
    """Return the tiles of the hosts as texts, the cells of each service by heading, and the problems of a page."""
    tiles = [plain(tile) for tile in re.findall(r'<li class="spark">(.*?)</li>\n', text + "\n", re.S)]
    rows = {}
    for row in re.findall(r'<tr id="service-[^>]*>(.*?)</tr>', text, re.S):
        cells = {
            head: plain(cell) for head, cell in re.findall(r'data-of="([^"]+)"><span>(.*?)</span></td>', row, re.S)
        }
        rows[cells["service"].split()[0]] = cells
    return (
        {tile.split()[0]: tile for tile in tiles},
        rows,
        plain(re.search(r'<div id="alarms">(.*?)</section>', text, re.S)[1]),
    )


def status(*options):
    """Run status.yml; returns its text and its JSON."""
    target = ROOT / ".cache/molecule" / SUBNET / "status.json"
    argv = ["ansible-playbook", f"--inventory={ROOT}/molecule/inventory.yml"]
    argv += [
        f"--inventory={ROOT}/molecule/on_demand/{name}.yml"
        for name in ("inventory", *(["nightly/inventory"] if AT_NIGHT else []))
    ]
    argv += [
        "dgxspark.vllm.status",
        "-e",
        f"spark_status_file={target}",
        "-e",
        "spark_status_show=table",
        "-e",
        "spark_status_fail_on=never",
        *options,
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(target.read_text(encoding="utf-8"))


def state_of(name, service):
    """Return the state that a service has by its unit."""
    words = {"active": "healthy", "activating": "starting"}
    return words.get(service["unit"], "down" if name == "steady" else "unloaded")


def is_near(shown, true, share=0.02, least=0.11):
    return shown is not None and abs(shown - true) <= max(share * abs(true), least)


def wrong_rows(entries, true, since):
    """Return the differences between the services of a JSON and the hosts. since: the clock when it was asked for."""
    wrong, shown = [], {entry["service"]: entry for entry in entries}
    services = {name: service for host in true.values() for name, service in host["services"].items()}
    if set(shown) - {"ears"} != set(services):
        return [f"it has the services {sorted(shown)}"]
    for name, service in services.items():
        entry = shown[name]
        expected = {
            "host": PLACES[name],
            "unit": service["unit"],
            "state": state_of(name, service),
            "restarts": service["restarts"],
        }
        if service["unit"] == "active":
            expected |= {
                "requests_running": service["running"],
                "requests_waiting": service["waiting"],
                "vllm_version": service["version"],
            }
        wrong += [
            f"{name}: {key} is {entry[key]!r}, not {value!r}" for key, value in expected.items() if entry[key] != value
        ]
        figures = {
            "residency_gib": service.get("gib") if service["container"] and service["unit"] == "active" else None
        }
        if service["unit"] == "active":
            figures |= {"kv_cache_usage": service["kv"]}
            if not 0 <= service["up"] - (entry["uptime_seconds"] or 0) <= time.monotonic() - since + LOOKS:
                wrong.append(f"{name}: up {entry['uptime_seconds']}, not {service['up']}")
        wrong += [
            f"{name}: {key} is {entry[key]}, not {value}"
            for key, value in figures.items()
            if (entry[key] is not None if value is None else not is_near(entry[key], value))
            and service["unit"] != "activating"
        ]
    return wrong


def wrong_hosts(hosts, true):
    """Return the differences between the hosts of a JSON and the hosts."""
    return [
        f"{host}: {key} is {hosts[host][key]}, not {true[host][key]}"
        for host in true
        for key in ("total_gib", "available_gib")
        if not is_near(hosts[host][key], true[host][key])
    ]


def wrong_page(text, true):
    """Return the differences between the HTML of a page and the hosts."""
    tiles, rows, _problems = read_page(text)
    wrong = []
    for name, service in ((name, service) for host in true.values() for name, service in host["services"].items()):
        cells = rows.get(name) or {}
        expected = {"state": state_of(name, service), "on": PLACES[name], "requests": "-", "KV cache": "-"}
        if service["unit"] == "active":
            waiting = f" {service['waiting']:.0f} waiting" if service["waiting"] else ""
            expected |= {
                "requests": f"{service['running']:.0f} running{waiting}",
                "KV cache": f"{100 * service['kv']:.0f} %",
            }
            if (
                not cells.get("memory", "").startswith(f"{service['gib']:.1f} GiB")
                or f"vLLM {service['version']}" not in cells["service"]
            ):
                wrong.append(f"{name}: {cells}, not {service}")
        elif cells.get("up") != "-":
            wrong.append(f"{name}: up {cells.get('up')}")
        wrong += [
            f"{name}: {head} is {cells.get(head)!r}, not {value!r}"
            for head, value in expected.items()
            if not (cells.get(head, "") + " ").startswith(value + " ")
        ]
    for host, body in true.items():
        load, watts, heat, clock = body["gpu"]
        figures = f"GPU {load:.0f} % power {watts:.0f} W temperature {heat:.0f} °C clock {clock:.0f} MHz links 2 of 2 up, 200 Gb/s"
        free = re.search(r"free ([\d.]+) GiB", tiles.get(host, ""))
        if (
            figures not in tiles.get(host, "")
            or not free
            or not is_near(float(free[1]), body["available_gib"], least=0.3)
        ):
            wrong.append(f"{host}: {tiles.get(host)}, not {figures} and {body['available_gib']:.1f} GiB")
    return wrong


def states(true=None):
    """Return the states of all units."""
    return {name: service["unit"] for body in (true or truth()).values() for name, service in body["services"].items()}


def differences():
    """Return what the pages show otherwise than the hosts; the hosts must be the same before and after."""
    began, before = time.monotonic(), states()
    shown, page = json.loads(fleet("/status.json")), fleet()
    agent_pages = {host: ask(host, AGENT)[1] for host in NODES}
    true = truth()
    if states(true) != before:
        return ["the hosts changed meanwhile"]
    wrong = [f"JSON: {text}" for text in wrong_rows(shown["services"], true, began) + wrong_hosts(shown["hosts"], true)]
    wrong += [f"page: {text}" for text in wrong_page(page, true)]
    return wrong + [
        f"page of {host}: {text}" for host in NODES for text in wrong_page(agent_pages[host], {host: true[host]})
    ]


def agree():
    """Wait until the pages show what the hosts are."""
    end = time.monotonic() + SLOW
    while wrong := differences():
        assert time.monotonic() < end, "\n".join(wrong)
        time.sleep(0.5)


def agree_with_status(unreachable=()):
    """Compare status.yml, text and JSON, with the hosts."""
    while True:  # until the hosts are the same before and after
        began, before = time.monotonic(), states()
        text, shown = status()
        true = truth()
        if states(true) == before:
            break
    true = {host: body for host, body in true.items() if host not in unreachable}
    rows = [entry for entry in shown["services"] if entry["host"] not in unreachable]
    assert wrong_rows(rows, true, began) + wrong_hosts(shown["hosts"], true) == []
    for host, body in true.items():
        for name, service in body["services"].items():
            (line,) = [line for line in text.splitlines() if re.match(rf"\s*{host}\s+{name}\s", line)]
            words = line.split()
            assert service["unit"] in words, line
            assert ("yes" in words) == (service["unit"] == "active"), line
            if service["unit"] == "active":
                assert re.search(rf"\b{service['gib']:.1f} of [\d.]+ GiB|\b{service['gib']:.0f} of", line), line
    return text, shown


def until(condition, seconds=SLOW):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, condition
        time.sleep(0.5)
    return value


def unit(name):
    return node(PLACES[name], "systemctl", "is-active", f"spark-{name}.service", check=False).strip()


def complete(name, port, **more):
    """Ask an engine for a completion."""
    body = json.dumps({"model": name, "prompt": "Say hello", "max_tokens": 4, **more})
    return ask(
        PLACES[name],
        port,
        "/v1/completions",
        method="POST",
        body=body,
        headers={"Content-Type": "application/json"},
        timeout=300,
    )


def test_idle_ones_are_unloaded_and_the_other_one_serves():
    until(lambda: all(unit(name) == "inactive" for name in PLACES if name != "steady"), 180)
    agree()  # the memory of an engine is back some seconds after its unit has stopped
    agree_with_status()
    _tiles, rows, problems = read_page(fleet())
    assert "unloaded" in rows["one"]["state"] and "one" not in problems
    # The last proof, by its receipt.
    for name in ("one", "steady"):
        path = f"/var/lib/dgxspark/receipts/{name}.json"
        receipt, date = (
            json.loads(node(PLACES[name], "cat", path)),
            node(PLACES[name], "date", "--utc", "--reference", path, "+%Y-%m-%d").strip(),
        )
        assert rows[name]["last proof"] == f"{date} {receipt['measured']['decode_tokens_per_second']:.1f} tok/s"


@contextlib.contextmanager
def memory_taken(host, gib):
    """Let another program of a node hold memory."""
    node(host, "systemd-run", "--unit=tenant", "--collect", "spark-sim", "hold", "tenant", str(gib))
    try:
        yield
    finally:
        node(host, "systemctl", "stop", "tenant.service", check=False)


def start_on_page(name, stages):
    """Wait until the page shows the start of a service in one of some stages; return the seconds since its begin and the seconds left."""
    pattern = re.compile(
        rf"starting ({'|'.join(stages)})( \d+ %)?, after (\d+) s(; about (\d+) s left by its last starts)?; 1 request waits"
    )
    shown = until(lambda: pattern.fullmatch(read_page(fleet())[1][name]["state"]))
    return int(shown[3]), shown[5] and int(shown[5])


@pytest.mark.nightly
def test_a_start_is_shown_with_its_stage_and_the_seconds_left_and_then_the_warm_engine():
    starts = json.loads(node("spark-1", "cat", "/var/lib/dgxspark/starts/three.json"))["starts"]
    longest = max(start["seconds"] for start in starts)
    node("spark-1", "sh", "-c", "echo SPARK_SIM_DELAY=16 >> /etc/dgxspark/env/three.env")
    answers = []
    caller = threading.Thread(target=lambda: answers.append(complete("three", 8003)))
    try:
        with memory_taken("spark-1", 80):
            began = time.monotonic()
            caller.start()
            until(lambda: unit("three") == "activating")
            seconds, seconds_left = start_on_page("three", ["gate"])
            assert 0 <= seconds <= time.monotonic() - began + 1 and (
                seconds_left is None or 0 < seconds_left <= longest + 1
            )
            text, shown = status()
            (row,) = [row for row in shown["services"] if row["service"] == "three"]
            assert (row["unit"], row["state"]) == ("activating", "starting") and row["status"] in text, row
            after = re.match(r"gate, after (\d+) s", row["status"])
            assert seconds < int(after[1]) <= time.monotonic() - began + 1, row
            assert "spark-three" not in node("spark-1", "docker", "ps", "--format", "{{.Names}}").split()
        until(lambda: "spark-three" in node("spark-1", "docker", "ps", "--format", "{{.Names}}").split())
        seconds, seconds_left = start_on_page(
            "three", ["arguments", "device", "load", "profile", "kv_cache", "graphs", "warm-up", "serving"]
        )
        assert int(after[1]) < seconds <= time.monotonic() - began + 1 and (
            seconds_left is None or 0 < seconds_left <= longest + 1
        )
    finally:
        caller.join()
        node("spark-1", "sed", "-i", "/SPARK_SIM_DELAY/d", "/etc/dgxspark/env/three.env")
    assert answers[0][0] == 200, answers

    def is_warm():
        assert complete("three", 8003)[0] == 200
        cells = read_page(fleet())[1]["three"]
        return cells["state"].startswith("healthy") and cells["up"] != "-"

    until(is_warm)
    agree()
    agree_with_status()


@pytest.mark.nightly
def test_requests_and_tokens_a_second_are_those_of_the_engine():
    over = threading.Event()

    def load():
        while not over.is_set():
            node("spark-2", "curl", "--silent", "--max-time", "60", "--header", "Content-Type: application/json",
                 "--header", f"Authorization: Bearer {KEY}", "--data", json.dumps({"model": "steady", "prompt": "Hi", "max_tokens": 6000, "ignore_eos": True}),
                 f"http://{SUBNET}.0.12:8001/v1/completions", check=False)  # fmt: skip

    callers = [threading.Thread(target=load) for _number in range(2)]
    for caller in callers:
        caller.start()
    try:
        until(lambda: truth()["spark-2"]["services"]["steady"].get("running") == 2)
        begin, first = time.monotonic(), truth()["spark-2"]["services"]["steady"]["tokens"]

        def is_true():
            cells = read_page(fleet())[1]["steady"]
            rate = (truth()["spark-2"]["services"]["steady"]["tokens"] - first) / (time.monotonic() - begin)
            return cells["requests"] == "2 running" and is_near(
                float(cells["tok/s"].split()[0].replace("-", "0")), rate, 0.3
            )

        until(is_true)
    finally:
        over.set()
        for caller in callers:
            caller.join()


def test_a_stopped_engine_and_a_latched_clock_are_problems_with_a_fix():
    node("spark-2", "systemctl", "stop", "spark-steady.service")
    node("spark-2", "spark-sim", "gpu", "latched")
    try:
        until(lambda: unit("steady") == "inactive")
        agree()
        problems = read_page(fleet())[2]
        assert "spark-2 warning the GPU is busy at 611 MHz and 14 W: its power supply limits it" in problems, problems
        assert "spark-2/steady down its unit is inactive" in problems, problems
        assert problems.count("Fix:") == 2, problems
        agree_with_status()
    finally:
        node("spark-2", "spark-sim", "gpu", "on")
        node("spark-2", "systemctl", "start", "spark-steady.service")
    until(lambda: unit("steady") == "active")


SHUT = ["INPUT", "--protocol", "tcp", "--in-interface", "enP7s7", "--jump", "REJECT", "--reject-with", "tcp-reset"]


@contextlib.contextmanager
def out_of_reach(host):
    """Let a node answer nobody."""
    node(host, "iptables", "--insert", *SHUT)
    try:
        yield
    finally:
        node(host, "iptables", "--delete", *SHUT)


@pytest.mark.nightly
def test_a_host_out_of_reach_is_told_and_the_other_one_is_shown_as_it_is():
    with out_of_reach("spark-2"):
        page = until(lambda: (text := fleet()) and "unreachable" in read_page(text)[0]["spark-2"] and text)
        tiles, rows, problems = read_page(page)
        assert "unreachable" in rows["steady"]["state"] and rows["steady"]["requests"] == "-", rows["steady"]
        assert "GPU" not in tiles["spark-2"] and "free" not in tiles["spark-2"], tiles
        assert "spark-2 unreachable its agent does not answer" in problems
        true = truth()
        assert wrong_page(page, {"spark-1": true["spark-1"]}) == []
        shown = json.loads(fleet("/status.json"))
        assert shown["hosts"]["spark-2"]["state"] == "unreachable" and shown["counts"]["silent"] == 1
        text, shown = agree_with_status({"spark-2"})
        assert shown["hosts"]["spark-2"]["state"] == "unreachable"
        assert {row["state"] for row in shown["services"] if row["host"] == "spark-2"} == {"unreachable"}
        assert re.search(r"spark-2\s+steady\s.*unreachable", text)
    agree()


def raw(host, port, request):
    """Send bytes, and return the status and the whole answer."""
    with socket.create_connection((f"{SUBNET}.0.1{host[-1]}", port), timeout=10) as stream:
        stream.sendall(request.encode())
        answer = b""
        while piece := stream.recv(65536):
            answer += piece
    return int(answer.split(b" ", 2)[1]), answer.decode("utf-8", "replace")


def test_nothing_is_read_without_a_key_except_on_loopback():
    listening = {
        host: node(host, "ss", "--no-header", "--listening", "--tcp", "--numeric").split("\n") for host in NODES
    }
    addresses = {
        (host, port): sorted(
            line.split()[3].rpartition(":")[0]
            for line in listening[host]
            if line.split()[3:4] and line.split()[3].endswith(f":{port}")
        )
        for host in NODES
        for port in (PAGE, AGENT)
    }
    assert addresses == {
        ("spark-1", PAGE): ["127.0.0.1"],
        ("spark-2", PAGE): [],
        ("spark-1", AGENT): [f"{SUBNET}.0.11"],
        ("spark-2", AGENT): [f"{SUBNET}.0.12"],
    }
    with pytest.raises(OSError):
        ask("spark-1", PAGE)
    paths = (
        "/",
        "/index.html",
        "/status.json",
        "/events",
        "/events?after=1",
        "/hour.json?hosts=x",
        "/live.js",
        "/live.css",
        "/etc/passwd",
        "//",
        "/?key=" + KEY,
    )
    for path in paths:
        for key in ("", "wrong", KEY[:-1], KEY + "x", "Ümlaut".encode().decode("latin-1")):
            code, body = ask("spark-1", AGENT, path, key)
            assert (code, body) == (401, "A key is needed.\n"), (path, key)
    code, _body = ask("spark-1", AGENT, "/act", "wrong", "POST", "{}", {"Content-Type": "application/json"})
    assert code == 401
    assert (
        ask("spark-1", AGENT, "/act", KEY, "POST", "{}", {"Content-Type": "application/json"})[0] == 404
    )  # actions are off
    for name in ("evil.example", "spark-1.evil.example", "[", "", "spark-2"):
        code, body = ask("spark-1", AGENT, "/status.json", KEY, headers={"Host": name})
        assert code == 421 and "planned" not in body, name
    for path in (
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/live/../../../../etc/passwd",
        "/uplot.js/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/\\..\\..\\etc\\passwd",
    ):
        head = f"GET {path} HTTP/1.1\r\nHost: {SUBNET}.0.11\r\nAuthorization: Bearer {KEY}\r\n\r\n"
        code, text = raw("spark-1", AGENT, head)
        assert code == 404 and "root:" not in text, path
    assert ask("spark-1", AGENT, "/status.json")[0] == 200
    stranger = ["--header", "Host: evil.example", "--output", "/dev/null", "--write-out", "%{http_code}"]
    assert node("spark-1", "curl", "--silent", *stranger, f"http://127.0.0.1:{PAGE}/status.json") == "421"
