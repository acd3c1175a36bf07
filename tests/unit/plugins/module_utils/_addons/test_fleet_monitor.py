# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of C(spark_fleet_monitor), and the endpoints that the monitor checks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import addons, fleet_monitor, monitoring
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import fleet_state

ONE, TWO = ("spark-1", "192.168.1.11"), ("spark-2", "192.168.1.12")
HEAVY = endpoints.make(*ONE, "heavy", "vllm", 8001, "0.0.0.0", api_key_file="/keys/heavy")
FAST = endpoints.make(*TWO, "fast", "vllm", 8001, "192.168.1.12")
HIDDEN = endpoints.make(*TWO, "hidden", "vllm", 8002, "127.0.0.1")
ASR = endpoints.make(*ONE, "asr", "asr", 8765, "0.0.0.0")
TTS = endpoints.make(*TWO, "tts", "tts", 8882, "0.0.0.0")
OLLAMA = endpoints.make(*ONE, "ollama", "ollama", 11434, "0.0.0.0", models=["qwen3:8b"])
FLEET = [HEAVY, FAST, ASR, TTS, OLLAMA]
GATEWAY = endpoints.make(
    "forge", "192.168.1.5", "gateway", "external", 4000, "0.0.0.0", models=["auto"], api_key_file="/keys/m"
)
TELEGRAM = {"telegram": {"token_file": "/keys/bot", "chat_id": 42}}


def good(value: Any) -> dict[str, Any]:
    settings, messages = fleet_monitor.read("forge", value)
    assert messages == []
    return settings


def planned(
    value: Any, fleet: list[Any] | None = None, gateways: tuple[Any, ...] = ()
) -> tuple[dict[str, Any], list[str]]:
    outcome, findings = fleet_monitor.plan("forge", good(value), FLEET if fleet is None else fleet, gateways)
    json.dumps(outcome)
    return outcome, [finding.rule for finding in findings]


def test_the_fleet_of_two_sparks_and_two_macs() -> None:
    """The seven endpoints of the report, told by Telegram."""
    macs = [
        {"name": "M3 Ultra", "url": "http://192.168.1.10:8009/v1/models"},
        {"name": "M5 Max", "url": "http://192.168.1.18:8015/v1/models", "kind": "openai"},
    ]
    outcome, rules = planned({"notify": TELEGRAM, "extra": macs})
    assert rules == [] and outcome["state"] == "present" and outcome["every_minutes"] == 7
    settings = outcome["settings"]
    assert [(endpoint["key"], endpoint["url"] + endpoint["health"]) for endpoint in settings["endpoints"]] == [
        ("spark-1/heavy", "http://192.168.1.11:8001/v1/models"),
        ("spark-2/fast", "http://192.168.1.12:8001/v1/models"),
        ("spark-1/asr", "http://192.168.1.11:8765/health"),
        ("spark-2/tts", "http://192.168.1.12:8882/health"),
        ("spark-1/ollama", "http://192.168.1.11:11434/api/tags"),
        ("M3 Ultra", "http://192.168.1.10:8009/v1/models"),
        ("M5 Max", "http://192.168.1.18:8015/v1/models"),
    ]
    # A token is asked of model servers; Ollama would load its model for it, and the Macs were not offered.
    assert [endpoint["key"] for endpoint in settings["endpoints"] if endpoint["complete"]] == [
        "spark-1/heavy",
        "spark-2/fast",
    ]
    assert (settings["completion_every"], settings["failures"]) == (9, 2)
    assert settings["endpoints"][0]["look"] == "journalctl -u spark-heavy.service on spark-1"


def test_where_a_guard_is_it_may_have_stopped_the_engine() -> None:
    outcome, _findings = fleet_monitor.plan("forge", good({"notify": TELEGRAM}), FLEET, (), ["spark-2"])
    looks = {endpoint["key"]: endpoint["look"] for endpoint in outcome["settings"]["endpoints"]}
    assert "guard" not in looks["spark-1/heavy"] and "guard" not in looks["spark-2/tts"]
    assert looks["spark-2/fast"] == (
        "journalctl -u spark-fast.service on spark-2; whether the memory guard stopped it: journalctl -u spark-agent "
        "-p warning on spark-2"
    )


def test_secrets_are_files_of_the_host_and_are_named_in_the_settings() -> None:
    outcome, _rules = planned({"notify": [TELEGRAM, TELEGRAM]}, FLEET, (GATEWAY,))
    assert outcome["secrets"] == [
        {"name": "endpoint.spark-1.heavy", "source": "/keys/heavy"},
        {"name": "endpoint.forge.gateway", "source": "/keys/m"},
        {"name": "telegram.token", "source": "/keys/bot"},
        {"name": "telegram-2.token", "source": "/keys/bot"},
    ]
    text = json.dumps(outcome["settings"])
    assert "/keys/" not in text and "/etc/dgxspark/secrets/fleet_monitor/telegram.token" in text


def test_names_that_would_be_one_file_stay_apart() -> None:
    extra = [
        {"name": name, "url": "http://h:1", "api_key_file": f"/k/{number}"}
        for number, name in enumerate(["a b", "a/b"])
    ]
    outcome, _rules = planned({"extra": extra})
    assert [entry["name"] for entry in outcome["secrets"]][-2:] == ["endpoint.a.b", "endpoint.a.b.2"]


def test_the_gateway_is_asked_for_tokens_by_the_names_it_offers() -> None:
    outcome, _rules = planned({"notify": TELEGRAM}, FLEET, (GATEWAY,))
    (gateway,) = [endpoint for endpoint in outcome["settings"]["endpoints"] if endpoint["key"] == "forge/gateway"]
    assert gateway["complete"] and gateway["models"] == ["auto"] and not gateway["vllm"]
    listed, _rules = planned({"notify": TELEGRAM}, [*FLEET, GATEWAY], (GATEWAY,))
    assert [endpoint["key"] for endpoint in listed["settings"]["endpoints"]].count("forge/gateway") == 1


def test_what_cannot_be_reached_is_said_and_left_out() -> None:
    settings = good({"notify": TELEGRAM})
    outcome, findings = fleet_monitor.plan("forge", settings, [HEAVY, HIDDEN])
    assert [endpoint["key"] for endpoint in outcome["settings"]["endpoints"]] == ["spark-1/heavy"]
    (finding,) = findings
    assert finding.rule == "fleet_monitor.unreachable" and finding.severity == "warning"
    assert "spark-2/hidden listens on 127.0.0.1 of spark-2" in finding.message and "api_key_file" in finding.fix
    outcome, findings = fleet_monitor.plan("spark-2", settings, [HEAVY, HIDDEN])
    assert [endpoint["url"] for endpoint in outcome["settings"]["endpoints"]] == [
        "http://192.168.1.11:8001",
        "http://127.0.0.1:8002",
    ]
    assert [finding.rule for finding in findings] == ["fleet_monitor.own_host"]


@pytest.mark.parametrize("name", ["spark-1", "heavy", "spark-1/heavy"])
def test_hosts_services_and_keys_are_left_out(name: str) -> None:
    outcome, rules = planned({"notify": TELEGRAM, "leave_out": [name]})
    assert "spark-1/heavy" not in [endpoint["key"] for endpoint in outcome["settings"]["endpoints"]] and rules == []
    assert "endpoint.spark-1.heavy" not in [entry["name"] for entry in outcome["secrets"]]


def test_findings() -> None:
    assert planned({"leave_out": ["spark-3"]})[1] == ["fleet_monitor.unknown", "fleet_monitor.notify"]
    assert planned({"notify": TELEGRAM}, [])[1] == ["fleet_monitor.nothing"]
    plain = {"ntfy": {"url": "http://ntfy.lan/sparks", "token_file": "/k"}}
    assert planned({"notify": plain})[1] == ["fleet_monitor.plain"]
    assert planned({"notify": {"ntfy": {"url": "http://ntfy.lan/sparks"}}})[1] == []


@pytest.mark.parametrize(("every", "completion_every"), [(15, 4), (60, 1), (120, 1), (1, 60), (20, 3)])
def test_a_token_is_asked_for_hourly(every: int, completion_every: int) -> None:
    assert good({"every_minutes": every})["completion_every"] == completion_every
    assert good({"every_minutes": every, "completion_every": 0})["completion_every"] == 0


def test_by_default_an_endpoint_that_fails_is_told_within_15_minutes() -> None:
    """Checks are at most an interval and a random delay apart; the first comes right before the fault."""
    outcome, settings = planned({"notify": TELEGRAM})[0], planned({"notify": TELEGRAM})[0]["settings"]
    apart = 60 * outcome["every_minutes"] + outcome["delay_seconds"]
    state, now = fleet_state.fresh(None), 0.0
    fleet_state.judge(state, [fleet_state.Result("spark-1/heavy", "http://h:1", True)], now, settings["failures"])
    while True:
        now += apart
        failed = fleet_state.Result("spark-1/heavy", "http://h:1", False, "refused")
        if fleet_state.judge(state, [failed], now, settings["failures"]):
            break
    assert now + settings["timeout_seconds"] <= 15 * 60
    assert settings["failures"] > 1  # one lost packet is no outage


def test_addresses_of_further_endpoints() -> None:
    extra = [
        {"name": "a", "url": "http://h:1/api/tags", "kind": "ollama"},
        {"name": "b", "url": "http://h:2", "kind": "asr"},
        {"name": "c", "url": "https://h/status?x=1", "kind": "http"},
        {"name": "d", "url": "https://h/llm/v1/models", "models": ["m"], "completion": True},
    ]
    outcome, _rules = planned({"notify": TELEGRAM, "extra": extra}, [])
    addresses = [
        (endpoint["url"], endpoint["health"], endpoint["complete"]) for endpoint in outcome["settings"]["endpoints"]
    ]
    assert addresses == [
        ("http://h:1", "/api/tags", False),
        ("http://h:2", "/health", False),
        ("https://h", "/status?x=1", False),
        ("https://h/llm", "/v1/models", True),
    ]


@pytest.mark.parametrize(
    ("smtp", "more", "server", "port", "tls"),
    [
        ("mail.example.com", {}, "mail.example.com", 587, "starttls"),
        ("mail.example.com:465", {}, "mail.example.com", 465, "tls"),
        ("localhost", {}, "localhost", 25, "none"),
        ("127.0.0.1:2525", {}, "127.0.0.1", 2525, "none"),
        ("mail.example.com:25", {}, "mail.example.com", 25, "starttls"),
        ("mail.lan:25", {"tls": "none"}, "mail.lan", 25, "none"),
        ("[::1]:25", {}, "::1", 25, "none"),
    ],
)
def test_mail_servers(smtp: str, more: dict[str, str], server: str, port: int, tls: str) -> None:
    outcome, _rules = planned({"notify": {"mail": {"smtp": smtp, "from": "a@b", "to": "c@d", **more}}})
    (mail,) = outcome["settings"]["notify"]
    assert (mail["server"], mail["port"], mail["tls"], mail["to"]) == (server, port, tls, ["c@d"])


MAIL = {"smtp": "mail.lan", "from": "a@b", "to": ["c@d"]}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (["x"], "must be a mapping, not a list"),
        ({"every": 5}, "unknown key 'every'; did you mean 'every_minutes'?"),
        ({"every_minutes": 0}, "'every_minutes' is 0; it must be a whole number from 1 to 1440"),
        ({"every_minutes": "15"}, "'every_minutes' is a text; it must be a whole number"),
        ({"failures": True}, "'failures' is a boolean; it must be a whole number"),
        ({"completion_seconds": 2}, "'completion_seconds' is 2; it must be a number from 10 to 600"),
        ({"heartbeat": "8"}, "heartbeat: is '8'; it must be off, or a time like '08:30', in quotes"),
        ({"heartbeat": 510}, "'heartbeat' is a number; it must be a text"),
        ({"quiet": ["22-7"]}, "quiet: '22-7' is no span of time"),
        ({"quiet": "22:00"}, "quiet: '22:00' is no span of time"),
        ({"notify": "telegram"}, "'notify' is a text"),
        ({"notify": {"telegramm": {}}}, "did you mean 'telegram'?"),
        ({"notify": {**TELEGRAM, "ntfy": {"url": "http://x"}}}, "notify[0]: must name one of telegram, ntfy"),
        (
            {"notify": [{"telegram": {"chat_id": 1}}]},
            "'notify[0].telegram.token_file' is missing: file on the controller",
        ),
        (
            {"notify": {"telegram": {"chat_id": 1, "token_file": "/k", "token": "x"}}},
            "unknown key of notify[0].telegram: 'token'",
        ),
        ({"notify": {"telegram": {"chat_id": True, "token_file": "/k"}}}, "chat_id' is a boolean"),
        ({"notify": {"ntfy": {"url": "ntfy.sh/x"}}}, "'notify[0].ntfy.url' is 'ntfy.sh/x'; it must be an address"),
        ({"notify": {"webhook": {}}}, "notify[0].webhook: needs either 'url' or 'url_file'"),
        ({"notify": {"webhook": {"url": "http://x", "url_file": "/k"}}}, "needs either"),
        ({"notify": {"command": {"argv": ["notify-send"]}}}, "the first of them the path of a program"),
        ({"notify": {"command": {"argv": []}}}, "'notify[0].command.argv' is missing"),
        ({"notify": {"mail": {**MAIL, "smtp": "mail.lan:x"}}}, "is neither HOST nor HOST:PORT"),
        ({"notify": {"mail": {**MAIL, "tls": "ssl"}}}, "it must be starttls, tls or none"),
        ({"notify": {"mail": {**MAIL, "tls": "none", "password_file": "/k"}}}, "would go to mail.lan in the clear"),
        ({"notify": [{"name": "Ops!", **TELEGRAM}]}, "'notify[0].name' is 'Ops!'; it must be lower-case letters"),
        (
            {"notify": [{"name": "x", **TELEGRAM}, {"name": "x", **TELEGRAM}]},
            "'notify[1].name' is 'x'; another entry has that name",
        ),
        ({"extra": [{"url": "http://h:1"}]}, "'extra[0].name' is missing"),
        ({"extra": [{"name": "m", "url": "h:1"}]}, "'extra[0].url' is 'h:1'"),
        ({"extra": [{"name": "m", "url": "http://h:99999"}]}, "'extra[0].url' is"),
        ({"extra": [{"name": "m", "url": "http://u:p@h"}]}, "the address contains a password"),
        (
            {"extra": [{"name": "m", "url": "http://h", "kind": "llama"}]},
            "'extra[0].kind' is 'llama'; did you mean 'ollama'?",
        ),
        ({"extra": [{"name": "m", "url": "http://h", "models": "x"}]}, "'extra[0].models' is a text"),
        ({"extra": [{"name": "m", "url": "http://h", "completion": "yes"}]}, "'extra[0].completion' is a text"),
        (
            {"extra": [{"name": "m", "url": "http://h"}, {"name": "m", "url": "http://h"}]},
            "'extra[1].name' is 'm'; another entry has that name",
        ),
        ({"leave_out": [5]}, "'leave_out[0]' is a number; it must be a host"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(value: Any, words: str) -> None:
    _settings, messages = fleet_monitor.read("forge", value)
    assert len(messages) == 1, messages
    assert messages[0].startswith("host forge, spark_fleet_monitor: ") and words in messages[0]


def test_defaults_are_nobodys_to_change() -> None:
    good({})["leave_out"].append("x")
    assert good({})["leave_out"] == []


AGENTS: dict[str, dict[str, Any]] = {
    "spark-1": {"listen": "0.0.0.0", "port": 8095, "key": "/keys/live", "address": "192.168.1.11"},
    "spark-2": {"listen": "fd00::2", "port": 8096, "key": "/keys/live", "address": "fd00::2"},
    "spark-3": {"listen": "127.0.0.1", "port": 8095, "key": None, "address": "192.168.1.13"},
}


def test_no_page_unless_it_is_asked_for() -> None:
    outcome, _findings = fleet_monitor.plan("forge", good({}), FLEET, (), (), AGENTS)
    assert outcome["page"] == {}


def test_the_page_and_the_agents_that_it_reads() -> None:
    settings = good({"page_port": 8090, "page_key_file": "/keys/page"})
    outcome, findings = fleet_monitor.plan("forge", settings, FLEET, (), (), AGENTS)
    key_file = f"{fleet_monitor.SECRETS}/agent"
    assert outcome["page"] == {
        "listen": "127.0.0.1",
        "port": 8090,
        "key_file": f"{fleet_monitor.SECRETS}/page",
        "actions": False,
        "agents": [
            {"host": "spark-1", "url": "http://192.168.1.11:8095", "key_file": key_file},
            {"host": "spark-2", "url": "http://[fd00::2]:8096", "key_file": key_file},
        ],
        "prometheus": "",
    }
    assert {"name": "agent", "source": "/keys/live"} in outcome["secrets"]
    (unread,) = (finding.message for finding in findings if finding.rule == "fleet_monitor.no_agent")
    assert "the agent of spark-3 answers on loopback" in unread
    outcome, _findings = fleet_monitor.plan("spark-3", settings, FLEET, (), (), AGENTS)
    assert {"host": "spark-3", "url": "http://127.0.0.1:8095", "key_file": None} in outcome["page"]["agents"]


@pytest.mark.parametrize(
    ("key", "listen", "expected"),
    [
        ({}, None, ""),
        ({}, "0.0.0.0", "http://127.0.0.1:9090"),
        ({}, "fd00::5", "http://[fd00::5]:9090"),
        ({"page_prometheus": "https://metrics.example/prometheus/"}, "127.0.0.1", "https://metrics.example/prometheus"),
    ],
)
def test_the_page_asks_the_prometheus_of_its_host_or_the_given_one(
    key: dict[str, Any], listen: str | None, expected: str
) -> None:
    settings = monitoring.read_monitoring("forge", {"listen": listen})[0] if listen else None
    url = monitoring.prometheus_url(settings)
    outcome, _findings = fleet_monitor.plan("forge", good({"page_port": 8090, **key}), FLEET, prometheus=url)
    assert outcome["page"]["prometheus"] == expected
    outcome, _findings = fleet_monitor.plan("forge", good({}), FLEET, prometheus=url)
    assert outcome["page"] == {}


def test_a_password_in_the_address_of_prometheus_is_refused() -> None:
    _settings, messages = fleet_monitor.read("forge", {"page_prometheus": "http://me:secret@192.168.1.10:9090"})
    assert len(messages) == 1 and "page_prometheus: the address contains a password" in messages[0]
    assert "secret" not in messages[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [({"page_port": 70000}, "page_port"), ({"page_listen": "not an address"}, "'page_listen' is 'not an address'")],
)
def test_a_page_that_nobody_can_serve(value: dict[str, Any], expected: str) -> None:
    _settings, messages = fleet_monitor.read("forge", value)
    assert len(messages) == 1 and expected in messages[0]


def page_rules(**monitor: Any) -> list[str]:
    settings, messages = addons.read(
        "forge", {"spark_fleet_monitor": {"page_port": 4000, **monitor}}, [], is_spark=False
    )
    gate, more = addons.read(
        "forge", {"spark_gateway": {"aliases": {"a": {"url": "http://h:1", "model": "m"}}}}, [], False
    )
    assert messages == more == []
    host = {
        "address": "192.168.1.5",
        "settings": {**settings, "gateway": gate["gateway"]},
        "engines": None,
        "allow_from": [],
    }
    blank: dict[str, Any] = {
        "measured": None,
        "images": None,
        "gpu_args": [],
        "sysroot": "/",
        "rails": {},
        "firewall": False,
    }
    outcome, findings = addons.plan(
        {"forge": {**host, **blank, "planned_gib": {}, "service_keys": {}, "reserve_gib": 0.0}}
    )
    page_findings = [*findings["forge"], *addons.exposure("forge", outcome["forge"]["sockets"], None)]
    assert addons.exposure("forge", outcome["forge"]["sockets"], {"state": "present"}) == []
    return [finding.rule for finding in page_findings]


def test_the_page_has_a_port_of_its_own() -> None:
    assert "host.port_used" in page_rules()
    assert "host.port_used" in page_rules(page_port=22)
    assert "host.port_used" not in page_rules(page_port=8090)


def test_beyond_loopback_and_for_actions_the_page_needs_a_key() -> None:
    for more in ({"page_listen": "0.0.0.0"}, {"page_actions": True}):
        settings = {"page_port": 8090, **more}
        (problem,) = fleet_monitor.read("forge", settings)[1]
        assert "page_key_file" in problem
        assert not fleet_monitor.read("forge", {**settings, "page_key_file": "/keys/page"})[1]
