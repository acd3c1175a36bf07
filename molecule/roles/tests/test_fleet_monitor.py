"""The timer is there; a run tells once when an endpoint goes and once when it is back.

The tests run in order on the shared nodes.
"""

from __future__ import annotations

import json

POSTED = "/run/fleet_test.posted"
ASK = "python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())'"


def run(host):
    with host.sudo():
        host.check_output("systemctl start spark-fleet-monitor.service")
        if not host.file(POSTED).exists:
            return []
        return [json.loads(line) for line in host.file(POSTED).content_string.splitlines()]


def test_the_timer_is_active_and_enabled(host):
    timer = host.service("spark-fleet-monitor.timer")
    assert timer.is_running
    assert timer.is_enabled


def test_one_message_when_it_goes_and_one_when_it_is_back(host):
    assert run(host) == []
    with host.sudo():
        host.check_output("touch /run/fleet_test.down")
    (down,) = run(host)
    assert [change["what"] for change in down["changes"]] == ["down"]
    assert "HTTP 503" in down["text"]
    assert len(run(host)) == 1
    with host.sudo():
        host.check_output("rm /run/fleet_test.down")
    assert [change["what"] for change in run(host)[1]["changes"]] == ["up"]
    assert len(run(host)) == 2


def test_runs_that_follow_each_other_at_once(host):
    with host.sudo():
        host.check_output("for run in 1 2 3 4 5 6 7; do systemctl start spark-fleet-monitor.service || exit 1; done")


def test_what_it_remembers(host):
    with host.sudo():
        state = json.loads(host.file("/var/lib/dgxspark/fleet_monitor/state.json").content_string)
    assert state["outbox"] == {"webhook": []}
    assert state["delivery"] == {}


def test_the_live_page_is_served_by_an_account_that_can_write_nothing(host):
    unit = host.service("spark-status-page.service")
    assert unit.is_running
    assert unit.is_enabled
    text = host.check_output(f"{ASK} http://127.0.0.1:8090/")
    assert "<h1>DGX Sparks, live</h1>" in text
    assert "Other endpoints" in text
    assert "HTTP Error 404" in host.run(f"{ASK} http://127.0.0.1:8090/state.json").stderr
    pid = host.check_output("systemctl show --value --property=MainPID spark-status-page.service")
    assert host.check_output(f"stat --format=%u /proc/{pid}") == "65534"


def test_without_a_key_both_pages_listen_on_loopback_alone(host):
    sockets = [line.split()[3] for line in host.check_output("ss --no-header --listening --tcp --numeric").splitlines()]
    assert sorted(place for place in sockets if place.endswith((":8090", ":8095"))) == [
        "127.0.0.1:8090",
        "127.0.0.1:8095",
    ]


def test_the_agent_and_the_page_show_what_is_true(host):
    document = json.loads(host.check_output(f"{ASK} http://127.0.0.1:8095/status.json"))
    units = {unit["name"]: unit["active_state"] for unit in document["facts"]["units"]}
    assert units["spark-agent.service"] == "active"
    planned = [service["unit"] for service in document["planned"]]
    assert planned
    for unit in planned:
        shown = host.check_output(f"systemctl show --value --property=ActiveState {unit}")
        assert units.get(unit, "inactive") == shown
    status = json.loads(host.check_output(f"{ASK} http://127.0.0.1:8090/status.json"))
    (spark,) = status["hosts"].values()
    assert spark["state"] in ("healthy", "warning")
    states = {row["service"]: row["unit"] for row in status["services"]}
    assert {f"spark-{name}.service" for name in states} == set(planned)
    stranger = 'python3 -c \'import sys, urllib.request as r; r.urlopen(r.Request(sys.argv[1], headers={"Host": "evil.example"}))\''
    assert "HTTP Error 421" in host.run(f"{stranger} http://127.0.0.1:8095/").stderr
