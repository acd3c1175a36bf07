"""An engine that is wedged while it serves is found, described and restarted, once.

The tests run in order on the shared nodes.
"""

from __future__ import annotations

import json
import time

import pytest

STATE = "/var/lib/dgxspark/watchdog/state.json"
UNIT = "spark-fast.service"
ASK = (
    "curl --silent --max-time %s http://127.0.0.1:8002/v1/chat/completions --header 'Content-Type: application/json' "
    "--header 'Authorization: Bearer molecule-secret-key' "
    """--data '{"model": "fast", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}'"""
)


def watchdog_state(host):
    with host.sudo():
        return json.loads(host.file(STATE).content_string)["services"]["fast"]


def wait_for(condition, seconds=120):
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if condition():
            return
        time.sleep(1)
    pytest.fail("it did not come to that")


def invocation(host):
    return host.check_output("systemctl show --property=InvocationID --value %s", UNIT)


def is_watched(host):
    return host.backend.get_hostname() == "spark-1"


def test_it_runs_where_it_is_not_switched_off(host):
    agent = host.service("spark-agent")
    with host.sudo():
        assert host.file("/etc/dgxspark/agent/watchdog.json").exists is is_watched(host)
    if is_watched(host):
        assert agent.is_running and agent.is_enabled
        wait_for(lambda: watchdog_state(host)["state"] in ("idle", "working"))
        wait_for(lambda: "fast" in host.check_output("systemctl show --property=StatusText spark-agent"))


def test_a_wedged_engine_is_restarted_once(host):
    if not is_watched(host):
        return
    before = invocation(host)
    assert host.run(ASK, "20").rc == 0
    with host.sudo():
        host.check_output("spark-sim wedge fast")
    assert host.run(ASK, "2").rc == 28  # curl's word for: no answer in time
    assert host.run("curl --fail --silent http://127.0.0.1:8002/health").rc == 0
    wait_for(lambda: invocation(host) not in (before, ""))
    wait_for(lambda: host.service("spark-fast").is_running, 300)
    after = invocation(host)
    assert host.run(ASK, "20").rc == 0
    wait_for(lambda: watchdog_state(host)["state"] in ("idle", "working"))
    state = watchdog_state(host)
    assert state["restarts_24h"] == 1 and state["last_action"]["what"] == "restart"
    assert invocation(host) == after
    with host.sudo():
        folder = state["last_action"]["evidence"]
        assert host.file(folder).mode == 0o700
        assert "vllm:generation_tokens_total" in host.file(f"{folder}/metrics.txt").content_string
        # The container's own processes, seen from the host.
        assert "VLLM::EngineCor" in host.file(f"{folder}/processes.txt").content_string
        assert "wedged" in host.check_output("journalctl --no-pager --output=cat --unit=spark-agent")


@pytest.mark.nightly
def test_a_stop_on_purpose_stays_a_stop(host):
    if not is_watched(host):
        return
    with host.sudo():
        host.check_output("systemctl stop spark-fast")
        wait_for(lambda: watchdog_state(host)["state"] == "stopped")
        time.sleep(10)
        assert not host.service("spark-fast").is_running
        host.check_output("systemctl start spark-fast")
    assert watchdog_state(host)["restarts_24h"] == 1
