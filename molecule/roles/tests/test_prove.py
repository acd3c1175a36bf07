"""Receipts have the deployment and its measured figures; an engine that differs from its plan is named with its override."""

from __future__ import annotations

import json


def load(host, path):
    with host.sudo():
        return json.loads(host.file(path).content_string)


def spark(host):
    return host.backend.get_hostname()


def test_receipts(host):
    for name in ["heavy", "fast"] if spark(host) == "spark-1" else ["gemma4"]:
        receipt = load(host, f"/var/lib/dgxspark/receipts/{name}.json")
        measured = receipt["measured"]
        assert receipt["service"] == name
        assert receipt["deployed"]["image"]["id"].startswith("sha256:")
        assert receipt["deployed"]["argv"][0] == "/usr/bin/docker"
        assert measured["checks"]["completion"] is True
        assert measured["checks"]["tools"] is True
        assert measured["weights_gib"] > 5
        assert measured["residency_gib"] > measured["gpu_gib"] > measured["weights_gib"]
        assert measured["kv_cache_tokens"] > measured["max_concurrency"] > 1
        assert 0 < measured["load_seconds"] < measured["start_seconds"] < 300
        # Later figures are compared with the first ones of a deployment.
        assert {"start_seconds", "kv_cache_tokens", "residency_gib"} <= set(receipt["baseline"])


def test_engines_that_go_by_the_plan_are_no_finding(host):
    if spark(host) != "spark-1":
        return
    engines = load(host, "/run/dgxspark/engines.json")
    assert engines["findings"] == []
    assert engines["system"]["verdict"] == "as_planned"
    for service in engines["services"].values():
        assert service["override"] == {}
        verdicts = {name: term["verdict"] for name, term in service["terms"].items()}
        assert set(verdicts.values()) <= {"as_planned", "not_planned"}, verdicts
        assert verdicts["residency"] == verdicts["inside"] == verdicts["kv_cache_tokens"] == "as_planned"


def test_an_engine_that_takes_more_is_named_with_the_override(host):
    if spark(host) != "spark-2":
        return
    engines = load(host, "/run/dgxspark/engines.json")
    assert [(entry["rule"], entry["severity"], entry["service"]) for entry in engines["findings"]] == [
        ("residency.inside", "warning", "gemma4"),
        ("residency.outside", "warning", "gemma4"),
    ]
    overheads = engines["services"]["gemma4"]["override"]["overheads"]
    assert abs(overheads["inside_gib"] - 9.5) < 0.05
    assert abs(overheads["outside_gib"] - 8.0) < 0.1
    terms = engines["services"]["gemma4"]["terms"]
    assert terms["weights"]["verdict"] == "as_planned"
    assert terms["kv_cache"]["measured"] < terms["kv_cache"]["planned"]["typical"] - 5


def test_the_running_services_have_a_record_of_their_start(host):
    with host.sudo():
        records = host.check_output("ls /run/dgxspark/starts").split()
    names = ["heavy", "fast"] if spark(host) == "spark-1" else ["gemma4", "tiny"]
    assert sorted(records) == sorted(f"spark-{name}.service.json" for name in names)


def test_a_cpu_engine_is_read_and_not_compared(host):
    if spark(host) != "spark-2":
        return
    tiny = load(host, "/run/dgxspark/engines.json")["services"]["tiny"]
    assert (tiny["log"]["device"], tiny["log"]["version"]) == ("cpu", "0.32.0")
    assert tiny["findings"] == [] and tiny["override"] == {}
    verdicts = {term["verdict"] for name, term in tiny["terms"].items() if not name.endswith("_seconds")}
    assert verdicts == {"not_comparable"}
    measured = load(host, "/var/lib/dgxspark/receipts/tiny.json")["measured"]
    assert measured["kv_cache_tokens"] > 0 and 0 < measured["start_seconds"] < 300
