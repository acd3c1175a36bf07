# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Monitoring: its settings, the targets of Prometheus, and findings about unreachable targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import monitoring
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints

ROLES = Path(__file__).resolve().parents[5] / "roles"
PASSWORD = {"grafana_password_file": "secrets/grafana"}


def exporters(spark: str = "spark-1", address: str = "192.168.1.11", **value: Any) -> dict[str, Any]:
    settings, messages = monitoring.read_exporters(spark, value)
    assert messages == []
    return monitoring.plan_exporters(spark, settings, address)[0]


def watched(
    *engines: endpoints.Endpoint, host: str = "watch", gateway: Any = None, tell: Any = None, **options: Any
) -> Any:
    settings, messages = monitoring.read_monitoring(host, {**PASSWORD, **options})
    assert messages == []
    known_exporters = {"spark-1": exporters()} if tell is None else tell
    return monitoring.plan_monitoring(host, settings, engines, known_exporters, gateway)


def engine(listen: str = "192.168.1.11", service: str = "heavy", port: int = 8001, **more: Any) -> endpoints.Endpoint:
    return endpoints.make("spark-1", "192.168.1.11", service, "vllm", port, listen, **more)


def job(outcome: dict[str, Any], name: str) -> list[Any]:
    return next(row["targets"] for row in outcome["jobs"] if row["name"] == name)


def test_nothing_written_gives_every_default() -> None:
    settings, messages = monitoring.read_exporters("spark-1", None)
    assert messages == [] and settings == {key: entry[1] for key, entry in monitoring.EXPORTERS_KEYS.items()}
    settings, messages = monitoring.read_monitoring("watch", {"grafana": "none"})
    assert messages == []
    assert settings["thresholds"] == {key: entry[1] for key, entry in monitoring.THRESHOLDS.items()}


def test_defaults_are_not_shared() -> None:
    first, _wrong = monitoring.read_exporters("a", {})
    first["gpu_sha256"]["arm64"] = "changed"
    assert monitoring.read_exporters("b", {})[0]["gpu_sha256"] == {}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"textfile_dir": "/etc"}, "'textfile_dir' is '/etc'"),
        ({"textfile_dir": "/"}, "'textfile_dir' is '/'"),
        ({"node_prot": 1}, "unknown key 'node_prot'; did you mean 'node_port'?"),
        ("yes", "'spark_exporters' must be a mapping, not a text."),
        ({"node_exporter": "mine"}, "'node_exporter' is 'mine'; it must be managed, existing or none."),
        ({"node_port": "9100"}, "'node_port' is a text; it must be a whole number from 1 to 65535."),
        ({"node_port": True}, "'node_port' is a boolean; it must be a whole number from 1 to 65535."),
        ({"node_port": 70000}, "'node_port' is 70000; it must be a whole number from 1 to 65535."),
        ({"gpu_port": 9100}, "'gpu_port' and 'node_port' are both 9100."),
        ({"interval": 1}, "'interval' is 1; it must be a number from 5 to 86400."),
        ({"textfile_dir": "metrics"}, "'textfile_dir' is 'metrics'; it must be an absolute path"),
        ({"textfile_dir": "/a/../b"}, "'textfile_dir' is '/a/../b'; it must be an absolute path"),
        ({"gpu_sha256": {"aarch64": "0" * 64}}, "'gpu_sha256' has aarch64"),
        ({"gpu_sha256": {"arm64": "sha256:1"}}, "'gpu_sha256' has arm64"),
    ],
)
def test_exporters_are_read_strictly(value: Any, message: str) -> None:
    (refusal,) = monitoring.read_exporters("spark-1", value)[1]
    assert refusal.startswith("host spark-1, spark_exporters: ") and message in refusal


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"grafana": "image"}, "'grafana_password_file' is missing"),
        ({**PASSWORD, "grafana": "docker"}, "'grafana' is 'docker'; it must be image, package or none."),
        ({**PASSWORD, "grafana_image": "docker.io/grafana/grafana"}, "which moves"),
        ({**PASSWORD, "grafana_image": "localhost:5000/grafana:latest"}, "which moves"),
        (
            {**PASSWORD, "grafana_image": "--privileged:1"},
            "'grafana_image' is '--privileged:1'; it must be a reference",
        ),
        ({**PASSWORD, "grafana_image": ""}, "it must be a reference"),
        ({**PASSWORD, "interval": 15.5}, "'interval' is"),
        ({**PASSWORD, "prometheus_port": 3000}, "'grafana_port' and 'prometheus_port' are both 3000."),
        ({**PASSWORD, "retention": "a month"}, "'retention' is 'a month'; it must be a duration like 30d."),
        ({**PASSWORD, "retention_size": "20"}, "'retention_size' is '20'; it must be a size like 20GB."),
        ({**PASSWORD, "thresholds": {"memory_gib": 1}}, "unknown key of thresholds: 'memory_gib'"),
        (
            {**PASSWORD, "thresholds": {"kv_cache_ratio": 95}},
            "'thresholds.kv_cache_ratio' is 95; it must be a number from 0 to 1.",
        ),
        ({**PASSWORD, "thresholds": {"memory_critical_gib": 8}}, "'memory_critical_gib' is above 'memory_warning_gib'"),
        ({**PASSWORD, "receivers": [{"type": "ntfy", "topic": "x"}]}, "'receivers[0].name' is missing"),
        ({**PASSWORD, "receivers": [{"name": "a", "type": "sms"}]}, "'receivers[0].type' is 'sms'; it must be webhook"),
        ({**PASSWORD, "receivers": [{"name": "a", "type": "webhook"}]}, "needs 'url or url_file'"),
        (
            {**PASSWORD, "receivers": [{"name": "a", "type": "webhook", "url": "chat.local"}]},
            "it must be an address that begins with http://",
        ),
        ({**PASSWORD, "receivers": [{"name": "a", "type": "telegram", "token_file": "t"}]}, "needs 'chat_id'"),
        (
            {**PASSWORD, "receivers": [{"name": "a", "type": "ntfy", "topic": "x", "chat_id": 1}]},
            "chat_id mean nothing for type ntfy",
        ),
        (
            {**PASSWORD, "receivers": [{"name": "a", "type": "ntfy", "topic": "x", "severities": ["page"]}]},
            "'receivers[0].severities' contains 'page'; its entries must be critical, warning or info.",
        ),
        (
            {
                **PASSWORD,
                "receivers": [
                    {"name": "a", "type": "email", "to": "a@b", "from": "c@d", "smarthost": "m:25", "username": "u"}
                ],
            },
            "'username' has no 'password_file'",
        ),
        ({**PASSWORD, "targets": [{"job": "node", "address": "x", "port": 1}]}, "'targets[0].job' is 'node'"),
        ({**PASSWORD, "targets": [{"job": "x", "address": "x", "port": 0}]}, "'targets[0].port' is 0"),
        ({**PASSWORD, "targets": [{"job": "x", "address": "x", "port": 1, "labels": {"a-b": 1}}]}, "'labels' has a-b"),
    ],
)
def test_monitoring_is_read_strictly(value: Any, message: str) -> None:
    (refusal,) = monitoring.read_monitoring("watch", value)[1]
    assert refusal.startswith("host watch, spark_monitoring") and message in refusal


def test_a_receiver_by_each_way_is_taken() -> None:
    value = [
        {"name": "hook", "type": "webhook", "url_file": "secrets/hook"},
        {"name": "phone", "type": "ntfy", "topic": "sparks", "token_file": "secrets/ntfy"},
        {"name": "chat", "type": "telegram", "token_file": "secrets/bot", "chat_id": -100, "severities": ["critical"]},
        {"name": "mail", "type": "email", "to": "a@b", "from": "c@d", "smarthost": "m:587"},
    ]
    settings, messages = monitoring.read_monitoring("watch", {**PASSWORD, "receivers": value})
    assert messages == [] and [row["name"] for row in settings["receivers"]] == ["hook", "phone", "chat", "mail"]
    twice = monitoring.read_monitoring("watch", {**PASSWORD, "receivers": [value[0], value[0]]})[1]
    assert "'receivers[1].name' is 'hook'; another entry has that name" in twice[0]


def test_exporters_listen_where_the_host_is_reached() -> None:
    assert exporters()["listen"] == "192.168.1.11"
    assert exporters(listen="10.0.0.1")["listen"] == "10.0.0.1"


def test_the_collector_is_told_what_the_plan_expects() -> None:
    settings, _wrong = monitoring.read_exporters("spark-1", {})
    outcome, findings = monitoring.plan_exporters(
        "spark-1", settings, "a", {"heavy": 93.54}, {"enp1s0f0np0": 9000}, "/sim"
    )
    assert outcome["planned_gib"] == {"heavy": 93.54}
    assert outcome["rails"] == {"enp1s0f0np0": 9000} and outcome["sysroot"] == "/sim"
    assert findings == []


def test_an_archive_without_its_sum_is_refused() -> None:
    settings, _wrong = monitoring.read_exporters("spark-1", {"gpu_version": "1.5.0"})
    _outcome, (finding,) = monitoring.plan_exporters("spark-1", settings, "a")
    assert (finding.rule, finding.severity) == ("exporters.no_checksum", "error")
    settings["gpu_sha256"] = {"arm64": "0" * 64}
    assert monitoring.plan_exporters("spark-1", settings, "a")[1] == []
    settings.update(gpu_sha256={}, gpu_exporter=False)
    assert monitoring.plan_exporters("spark-1", settings, "a")[1] == []


def test_figures_that_nobody_asks_for_are_said() -> None:
    settings, _wrong = monitoring.read_exporters("spark-1", {"node_exporter": "none"})
    _outcome, (finding,) = monitoring.plan_exporters("spark-1", settings, "a")
    assert finding.rule == "exporters.no_node_exporter"


def test_targets_carry_the_labels_that_alerts_name() -> None:
    cluster = engine(service="big", key="pair_a/big", hosts=["spark-1", "spark-2"], models=["big-model"], port=8002)
    tell = {"spark-1": exporters(), "spark-2": exporters("spark-2", "192.168.1.12", gpu_exporter=False)}
    outcome, findings = watched(engine(), cluster, tell=tell, receivers=[{"name": "a", "type": "ntfy", "topic": "x"}])
    assert findings == []
    assert job(outcome, "vllm") == [
        {"targets": ["192.168.1.11:8001"], "labels": {"host": "spark-1", "service": "heavy", "model": "heavy"}},
        {
            "targets": ["192.168.1.11:8002"],
            "labels": {"host": "spark-1", "service": "big", "model": "big-model", "cluster": "pair_a"},
        },
    ]
    assert job(outcome, "node")[1] == {
        "targets": ["192.168.1.12:9100"],
        "labels": {"host": "spark-2", "cluster": "pair_a"},
    }
    assert [target["labels"]["host"] for target in job(outcome, "gpu")] == ["spark-1"]
    assert job(outcome, "prometheus")[0]["targets"] == ["127.0.0.1:9090"]


def test_what_has_no_figures_is_not_asked() -> None:
    speech = endpoints.make("spark-1", "192.168.1.11", "asr", "asr", 8765, "0.0.0.0")
    ollama = endpoints.make("spark-1", "192.168.1.11", "ollama", "ollama", 11434, "0.0.0.0")
    assert job(watched(speech, ollama)[0], "vllm") == []


def test_an_engine_on_loopback_of_another_host_is_said() -> None:
    outcome, findings = watched(engine("127.0.0.1"))
    (finding,) = [finding for finding in findings if finding.rule == "monitoring.unreachable"]
    assert finding.service == "heavy" and "api_key_file" in finding.fix and "spark-1" in finding.message
    assert job(outcome, "vllm") == []
    beside, findings = watched(engine("127.0.0.1"), host="spark-1")
    assert job(beside, "vllm")[0]["targets"] == ["127.0.0.1:8001"]
    assert "monitoring.unreachable" not in [finding.rule for finding in findings]


def test_exporters_on_loopback_of_another_host_are_said() -> None:
    _outcome, findings = watched(engine(), tell={"spark-1": exporters(listen="127.0.0.1")})
    (finding,) = [finding for finding in findings if finding.severity == "error"]
    assert finding.rule == "exporters.unreachable" and "spark-1" in finding.message and "watch" in finding.message
    _outcome, findings = watched(engine(), host="spark-1", tell={"spark-1": exporters(listen="127.0.0.1")})
    assert "exporters.unreachable" not in [finding.rule for finding in findings]


def test_hosts_that_nobody_watches_are_said() -> None:
    other = endpoints.make("spark-2", "192.168.1.12", "light", "vllm", 8001, "192.168.1.12")
    findings = watched(engine(), other)[1]
    assert [finding.message.split(":")[0] for finding in findings if finding.rule == "monitoring.no_exporters"] == [
        "spark-2"
    ]
    assert "monitoring.nothing" in [finding.rule for finding in watched(tell={})[1]]


def test_the_gateway_is_asked_where_it_listens() -> None:
    gateway = {"host": "gate", "address": "192.168.1.4", "port": 4000, "listen": "0.0.0.0", "token_file": "secrets/key"}
    outcome, _findings = watched(engine(), gateway=gateway)
    assert job(outcome, "gateway") == [
        {"targets": ["192.168.1.4:4000"], "labels": {"host": "gate", "service": "gateway"}}
    ]
    assert next(row for row in outcome["jobs"] if row["name"] == "gateway")["token_file"] == "secrets/key"
    outcome, findings = watched(engine(), gateway={**gateway, "listen": "127.0.0.1"})
    assert job(outcome, "gateway") == [] and "monitoring.gateway_unreachable" in [finding.rule for finding in findings]


def test_targets_of_ones_own() -> None:
    mine = {"job": "router", "address": "192.168.1.1", "port": 9436, "path": "/m", "labels": {"site": "lab"}}
    outcome, _findings = watched(engine(), targets=[mine])
    added = outcome["jobs"][-1]
    assert added["name"] == "router" and added["path"] == "/m"
    assert added["targets"] == [{"targets": ["192.168.1.1:9436"], "labels": {"site": "lab"}}]
    assert "monitoring.two_paths" in [finding.rule for finding in watched(targets=[mine, {**mine, "path": "/n"}])[1]]


def test_nobody_told_and_nobody_who_tells() -> None:
    assert "monitoring.nobody_told" in [finding.rule for finding in watched(engine())[1]]
    value: dict[str, Any] = {"receivers": [{"name": "a", "type": "ntfy", "topic": "x"}], "alertmanager": False}
    assert "monitoring.receivers_unused" in [finding.rule for finding in watched(engine(), **value)[1]]


def test_addresses_of_ipv6_are_bracketed() -> None:
    outcome, _findings = watched(tell={"spark-1": exporters(listen="fd00::11")})
    assert job(outcome, "node")[0]["targets"] == ["[fd00::11]:9100"]


def test_a_scrape_takes_no_longer_than_its_interval() -> None:
    assert watched(interval=5)[0]["scrape_timeout"] == 5
    assert watched()[0]["scrape_timeout"] == 10


@pytest.mark.parametrize("role", ["exporters", "monitoring"])
def test_the_outcome_is_what_the_role_takes(role: str) -> None:
    specs = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    outcome = exporters() if role == "exporters" else watched()[0]
    assert {f"{role}_{key}" for key in outcome} == set(specs)
    for key, value in outcome.items():
        if not specs[f"{role}_{key}"].get("required") and key not in ("jobs",):
            assert value == specs[f"{role}_{key}"]["default"] or key == "grafana_password_file", key
