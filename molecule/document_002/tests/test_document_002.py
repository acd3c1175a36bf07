"""The stack of two Sparks: what clients reach by one URL, what watches it, and that nobody notices a restart.

The tests run in order on the shared nodes; forge has gateway and monitoring.
"""

from __future__ import annotations

import http.server
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path.insert(0, str(ROOT / "molecule"))

from nodes import AT_NIGHT, NODES, SUBNET, node, run

KEYS = ROOT / ".cache" / "molecule" / "document_002"
GATEWAY, PROMETHEUS = f"http://{SUBNET}.0.13:4000", f"http://{SUBNET}.0.13:9090"
ALIASES = ["spark-gemma4", "spark-qwen36", "spark8b", "tools"]


def ask(path, body=None, key="hermes", base=GATEWAY):
    return json.loads(ask_text(path, body, key, base))


def ask_text(path, body=None, key="hermes", base=GATEWAY):
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = "Bearer " + (KEYS / key).read_text().strip()
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(base + path, data, headers), timeout=60) as answer:
        return answer.read().decode()


def chat(model, **more):
    return ask("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "Hello"}], **more})


def wait_for(condition, why, seconds=90):
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if condition():
            return
        time.sleep(1)
    pytest.fail(why)


# --- one URL


@pytest.mark.parametrize("alias", ALIASES)
def test_every_alias_answers_through_the_gateway(alias):
    (choice,) = chat(alias, max_tokens=32)["choices"]
    assert choice["message"]["content"] or choice["message"]["reasoning_content"]


def test_a_client_sees_its_aliases_and_nothing_else():
    assert sorted(model["id"] for model in ask("/v1/models")["data"]) == ALIASES
    everything = [model["id"] for model in ask("/v1/models", key="gateway")["data"]]
    assert {"qwen36", "gemma4"} <= set(everything)
    with pytest.raises(urllib.error.HTTPError) as refused:
        chat("qwen36")
    assert refused.value.code in (401, 403)


def test_nobody_is_served_without_a_key():
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask("/v1/models", key=None)
    assert refused.value.code == 401


@pytest.mark.nightly
def test_a_tool_call_of_real_vllm_comes_through():
    weather = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    (choice,) = chat("tools", tools=[{"type": "function", "function": weather}], tool_choice="auto")["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


def test_speech_and_fallback_are_there():
    for url in (f"http://{SUBNET}.0.11:8765/health", f"http://{SUBNET}.0.12:8882/health"):
        node("forge", "curl", "--fail", "--silent", "--max-time", "10", url)
    tags = json.loads(node("forge", "curl", "--fail", "--silent", f"http://{SUBNET}.0.11:11434/api/tags"))
    assert [model["name"] for model in tags["models"]] == ["qwen3:8b"]


# --- listening sockets, and clients that get answers


def planned_sockets(name):
    """The planned listening sockets of a node: {(address, port): socket}."""
    plan = json.loads((ROOT / ".cache" / "molecule" / SUBNET / "plan.json").read_text(encoding="utf-8"))
    return {(socket["address"], socket["port"]): socket for socket in plan["addons"][name]["sockets"]}


def real_sockets(name):
    """The real ones, {(address, port): program}, without sshd and Docker's own resolver."""
    sockets = {}
    for line in node(name, "ss", "--tcp", "--listening", "--numeric", "--processes", "--no-header").splitlines():
        address, _colon, port = line.split()[3].rpartition(":")
        program = (re.findall(r'\(\("([^"]+)"', line) or [""])[0]
        if program != "sshd" and address != "127.0.0.11":
            sockets[(address.strip("[]").replace("*", "::"), int(port))] = program
    return sockets


@pytest.mark.parametrize("name", [*NODES, "forge"])
def test_a_node_listens_on_what_the_plan_says_and_nothing_else(name):
    planned, real = planned_sockets(name), real_sockets(name)
    assert sorted(set(planned) - set(real)) == []
    low, high = map(int, node(name, "cat", "/proc/sys/net/ipv4/ip_local_port_range").split())
    more = {
        place: program
        for place, program in real.items()
        if place not in planned
        and not place[0].startswith(("127.", "::1"))
        # The store of torch in vLLM's own process: docs/security.md says so of it.
        and not (low <= place[1] <= high and program.startswith("VLLM"))
    }
    assert more == {}, f"{name} listens on what the plan does not know of"


def reached(address, port):
    """What the controller gets, which the inventory does not name."""
    try:
        socket.create_connection((address, port), 2).close()
    except TimeoutError:
        return "no answer"
    except ConnectionRefusedError:
        return "refused"
    return "open"


@pytest.mark.nightly
def test_an_address_that_is_not_named_is_not_answered_and_the_gateway_is_there_for_it():
    plan = json.loads((ROOT / ".cache" / "molecule" / SUBNET / "plan.json").read_text(encoding="utf-8"))
    closed = 0
    for name in NODES:
        ports = plan["hosts"][name]["firewall"]["closed"]
        for (address, port), server in planned_sockets(name).items():
            if address.startswith("127."):
                continue
            assert port in ports and reached(address, port) == "no answer", (name, server)
            # Published by Docker or not: the refusal names forge and the address that it has to reach.
            assert server["callers"] == ["forge"]
            node("forge", "bash", "-c", f"exec 3<>/dev/tcp/{address}/{port}")
            closed += 1
        assert reached(f"{SUBNET}.0.1{name[-1]}", 22) == "open"
    assert closed == 10
    assert reached(f"{SUBNET}.0.13", 4000) == "open" and reached(f"{SUBNET}.0.13", 3000) == "open"
    # Nobody is shut out who is named for another port: Sparks are strangers to each other here.
    engine = ["curl", "--silent", "--output", "/dev/null", "--max-time", "2", f"http://{SUBNET}.0.11:8001/health"]
    assert run("spark-2", *engine)[0] == 28


# --- who asks: the agent, and people by a page


def on_forge(url, body=None, key=None, status=None):
    """Ask a client on its own host: the agent answers on loopback alone."""
    argv = ["curl", "--silent", "--show-error", "--max-time", "60", "--header", "Content-Type: application/json"]
    argv += ["--write-out", "\\n%{http_code}", *(["--header", f"Authorization: Bearer {key}"] if key else [])]
    argv += ["--data", json.dumps(body)] if body is not None else []
    text, _line, code = node("forge", *argv, url).rpartition("\n")
    assert int(code) == (status or 200), f"{url} answers {code}: {text}"
    return json.loads(text)


def asked_by_key():
    """Requests that the gateway has served so far, by the name of their key."""
    text = ask_text("/metrics/", key="gateway")
    served = {}
    for line in text.splitlines():
        if line.startswith("litellm_proxy_total_requests_metric_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            name = labels.get("api_key_alias", "")
            served[name] = served.get(name, 0) + float(line.rpartition(" ")[2])
    return served


AGENT, PAGE = "http://127.0.0.1:8642", "http://127.0.0.1:3000"
HELLO = [{"role": "user", "content": "Hello"}]


def test_the_clients_run_below_their_units():
    states = node("forge", "systemctl", "is-active", "spark-hermes", "spark-open-webui", check=False).split()
    assert states == ["active", "active"]
    journal = node("forge", "journalctl", "--no-pager", "--output=cat", "-u", "spark-hermes")
    assert "(a stand-in)" in journal and "model spark-qwen36" in journal


def test_the_agent_thinks_through_the_gateway_with_a_key_of_its_own():
    key = (KEYS / "hermes-api").read_text().strip()
    on_forge(f"{AGENT}/v1/chat/completions", {"messages": HELLO}, "wrong", status=401)
    # It holds its own key for the gateway, under the name of its settings, and no other keys.
    pid = node("forge", "systemctl", "show", "--value", "--property=MainPID", "spark-hermes").strip()
    held = dict(line.split("=", 1) for line in node("forge", "cat", f"/proc/{pid}/environ").split("\0") if "=" in line)
    assert held["DGXSPARK_GATEWAY_KEY"] == (KEYS / "hermes").read_text().strip()
    assert (KEYS / "gateway").read_text().strip() not in held.values()
    assert node("forge", "ps", "--no-headers", "-o", "user:32", "-p", pid).strip() == "spark-hermes"
    before = asked_by_key().get("hermes", 0)
    answer = on_forge(f"{AGENT}/v1/chat/completions", {"messages": HELLO}, key)
    assert answer["model"] == "hermes-agent" and answer["choices"][0]["message"]["content"]
    # The engine has its parser for tools: the agent's own tool was called on the way.
    assert answer["hermes"]["tools_used"]
    wait_for(
        lambda: asked_by_key().get("hermes", 0) > before, "the gateway has counted no request of the agent's key", 30
    )


def test_settings_of_the_agents_home_do_not_win():
    home = "/var/lib/dgxspark/hermes/config.yaml"
    node("forge", "sh", "-c", f"echo 'model: {{default: elsewhere}}' > {home}; systemctl restart spark-hermes")
    try:
        run = node("forge", "systemctl", "show", "--value", "--property=InvocationID", "spark-hermes").strip()
        journal = node("forge", "journalctl", "--no-pager", "--output=cat", f"_SYSTEMD_INVOCATION_ID={run}")
        assert "model spark-qwen36" in journal and "elsewhere" not in journal
    finally:
        node("forge", "rm", home)


def test_the_page_lists_its_aliases_and_the_agent_and_a_chat_of_each_is_answered():
    account = {"email": "ada@example.org", "password": (KEYS / "ada").read_text().strip()}
    token = on_forge(f"{PAGE}/api/v1/auths/signin", account)["token"]
    listed = on_forge(f"{PAGE}/api/models", key=token)["data"]
    assert sorted(model["id"] for model in listed) == ["hermes-agent", "spark-gemma4"]
    for model in ("hermes-agent", "spark-gemma4"):
        answer = on_forge(f"{PAGE}/api/chat/completions", {"model": model, "messages": HELLO, "max_tokens": 32}, token)
        message = answer["choices"][0]["message"]
        assert message["content"] or message["reasoning_content"]
    on_forge(f"{PAGE}/api/models", status=401)
    on_forge(f"{PAGE}/api/v1/auths/signup", {"email": "eve@example.org", "password": "eve"}, status=403)


def test_no_key_is_to_be_seen():
    keys = [path.read_text().strip() for path in KEYS.iterdir()]
    for name in (*NODES, "forge"):
        containers = node(name, "docker", "ps", "--quiet").split()
        shown = node(name, "docker", "inspect", *containers) + node(name, "ps", "-eo", "args")
        shown += node(
            name, "sh", "-c", "cat /etc/systemd/system/spark-* 2>/dev/null; journalctl --no-pager -u 'spark-*'"
        )
        assert [key for key in keys if key in shown] == []


# --- nobody notices


@pytest.mark.nightly
def test_a_backend_is_changed_under_200_requests_and_none_fails(tmp_path):
    """It is the only one of its alias: site.yml has it drained first, and who asks meanwhile waits."""
    stop, changed = tmp_path / "stop", tmp_path / "changed.yml"
    changed.write_text(
        "sparks: {hosts: {spark-2: {spark_defaults: {api_key_file: %s, start_timeout: 300, env: {CHANGED: '1'}}}}}\n"
        % (KEYS / "api_key")
    )
    before = node("spark-2", "systemctl", "show", "--property=InvocationID", "spark-gemma4")
    site = ["ansible-playbook"]
    folder = ROOT / "molecule/document_002"
    for inventory in (
        ROOT / "molecule/inventory.yml",
        folder / "inventory.yml",
        folder / "nightly/inventory.yml",
        changed,
    ):
        site += ["-i", str(inventory)]
    site += ["dgxspark.vllm.site", "--limit", "spark-2", "--tags", "service"]
    argv = [
        sys.executable,
        ROOT / "tests/gateway/load.py",
        GATEWAY,
        "--model",
        "spark-gemma4",
        "--key-file",
        KEYS / "hermes",
    ]
    with subprocess.Popen(
        [*argv, "--clients", "200", "--tokens", "6", "--until", stop], stdout=subprocess.PIPE, text=True
    ) as load:
        time.sleep(5)
        ran = subprocess.run(site, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        time.sleep(5)
        stop.touch()
        output = load.communicate(timeout=240)[0]
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert node("spark-2", "systemctl", "show", "--property=InvocationID", "spark-gemma4") != before
    report = json.loads(output.splitlines()[-1])
    assert report["failures"] == [] and report["good"] > 200 and load.returncode == 0, report


# --- what watches


def targets():
    return ask("/api/v1/targets", key=None, base=PROMETHEUS)["data"]["activeTargets"]


def test_prometheus_reaches_every_target():
    wait_for(lambda: all(target["health"] == "up" for target in targets()), "a target is not up")
    jobs = sorted(target["labels"]["job"] for target in targets())
    engines = ["vllm"] * (3 if AT_NIGHT else 2)
    assert jobs == ["alertmanager", "gateway", "gpu", "gpu", "node", "node", "prometheus", *engines], jobs


def test_figures_of_the_gpu_come_from_its_exporter_and_only_those_that_a_gb10_has():
    page = node("forge", "curl", "--fail", "--silent", f"http://{SUBNET}.0.11:9835/metrics")
    names = set(re.findall(r"^(nvidia_smi_\w+)\{", page, re.MULTILINE))
    assert {
        "nvidia_smi_power_draw_watts",
        "nvidia_smi_temperature_gpu",
        "nvidia_smi_clocks_current_sm_clock_hz",
    } <= names
    assert not [name for name in names if "memory" in name or "limit" in name]
    for figure, host in itertools.product(("power_watts", "temperature_celsius", "sm_clock_hertz"), NODES):
        # The collector leaves them to the exporter.
        metrics = node(host, "cat", "/var/lib/dgxspark/textfile/dgxspark.prom")
        assert f"dgxspark_gpu_{figure}" not in metrics
    samples = ask("/api/v1/query?query=dgxspark:gpu_power_watts", key=None, base=PROMETHEUS)["data"]["result"]
    assert sorted(series["metric"]["host"] for series in samples) == sorted(NODES)


# A rule of the owner that fires at once, with labels of somebody who wants to write the page.
HOSTILE = "<script>alert(1)</script>"
PLAYED = {
    "alert": "Played",
    "expr": "vector(1)",
    "labels": {"severity": "critical", "host": HOSTILE},
    "annotations": {"summary": f"</li>{HOSTILE}"},
}
RULES = "/etc/dgxspark/monitoring/rules.d/played.yml"


def page(path):
    return node("forge", "curl", "--fail", "--silent", "--max-time", "30", f"http://127.0.0.1:8090{path}")


def alarms_of_prometheus():
    alerts = ask("/api/v1/alerts", key=None, base=PROMETHEUS)["data"]["alerts"]
    return {
        (alert["labels"]["alertname"], alert["labels"].get("severity"))
        for alert in alerts
        if alert["state"] == "firing"
    }


def alarms_of_page():
    alarms = json.loads(page("/status.json"))["alarms"]
    return {(alarm["name"], alarm["severity"]) for alarm in alarms["firing"]} if alarms["known"] else None


def test_the_live_page_has_the_alarms_of_prometheus_and_its_silence_is_unknown():
    wait_for(lambda: alarms_of_page() == alarms_of_prometheus(), "the page has other alarms")
    node("forge", "sh", "-c", f"echo '{json.dumps({'groups': [{'name': 'played', 'rules': [PLAYED]}]})}' > {RULES}")
    try:
        node("forge", "systemctl", "reload", "spark-prometheus")
        wait_for(lambda: ("Played", "critical") in alarms_of_prometheus(), "the played alarm does not fire")
        wait_for(lambda: alarms_of_page() == alarms_of_prometheus(), "the page has other alarms")
        text = page("/")
        assert "&lt;script&gt;alert(1)" in text and HOSTILE not in text
        assert re.search(r"<b>Played</b>.*?began <time[^>]*>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC<", text, re.S)
        node("forge", "systemctl", "stop", "spark-prometheus")
        wait_for(lambda: alarms_of_page() is None, "the page has alarms of a stopped Prometheus")
        text = page("/")
        assert "Prometheus gives no answer" in text and "rules fires" not in text and "Played" not in text
    finally:
        node("forge", "rm", RULES)
        node("forge", "systemctl", "start", "spark-prometheus")
    # Known again, so Prometheus answers.
    wait_for(
        lambda: (shown := alarms_of_page()) is not None and shown == alarms_of_prometheus(), "the alarms stay unknown"
    )
    assert ("Played", "critical") not in alarms_of_page()


@pytest.mark.nightly
def test_every_panel_has_data_or_needs_what_is_not_here():
    for alias in ALIASES:
        chat(alias, max_tokens=8)
    missing = "rdma,rails,cluster,speculation,failures,watchdog,guard,http,pressure,gpu-memory,benchmarks"
    argv = [sys.executable, ROOT / "tests/monitoring/panels.py", PROMETHEUS, "--without", missing, "--wait", "90"]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-2000:]


@pytest.fixture(scope="module")
def messages():
    """What the fleet monitor sends to its webhook."""
    came = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            came.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer((f"{SUBNET}.0.1", 18099), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield came
        server.shutdown()


def look():
    """One run of the fleet monitor, as its timer starts it; systemd counts runs that follow one another so soon."""
    node("forge", "systemctl", "reset-failed", "spark-fleet-monitor.service")
    node("forge", "systemctl", "start", "spark-fleet-monitor.service", check=False)


def test_a_stopped_endpoint_is_one_message_and_its_return_another(messages):
    # Its timer may have seen an engine down that a test above has changed, and nobody was there to be told.
    look()
    messages.clear()
    look()
    assert messages == [], "all is well, and it was not silent"
    node("spark-2", "systemctl", "stop", "spark-tts")
    look()
    look()
    assert len(messages) == 1 and "spark-2/tts" in messages[0], messages
    node("spark-2", "systemctl", "start", "spark-tts")
    look()
    look()
    assert len(messages) == 2 and "spark-2/tts" in messages[1], messages


def test_a_client_that_is_gone_is_told_too(messages):
    messages.clear()
    node("forge", "systemctl", "stop", "spark-hermes")
    look()
    assert len(messages) == 1 and "hermes" in messages[0], messages
    node("forge", "systemctl", "start", "spark-hermes")
    look()
    look()
    assert len(messages) == 2 and "hermes" in messages[1], messages


def test_the_watchdog_looks_at_every_engine():
    def states(name):
        services = json.loads(node(name, "cat", "/var/lib/dgxspark/watchdog/state.json"))["services"]
        return {service: about["state"] for service, about in services.items()}

    second = {"gemma4", "tiny"} if AT_NIGHT else {"gemma4"}
    for name, services in {"spark-1": {"qwen36"}, "spark-2": second}.items():
        assert set(states(name)) == services
        # A restarted engine is left alone for a while.
        wait_for(lambda name=name: set(states(name).values()) <= {"idle", "working"}, f"{name}: {states(name)}")
