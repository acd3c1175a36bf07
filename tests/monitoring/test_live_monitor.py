"""Real Prometheus, Alertmanager and node_exporter with the role's settings: every panel has data, and an alert arrives."""

from __future__ import annotations

import json
from collections.abc import Iterator

import monitoring_lab
import panels
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[monitoring_lab.Lab]:
    with monitoring_lab.running(tmp_path_factory.mktemp("lab")) as running:
        yield running


def test_every_target_is_up(lab: monitoring_lab.Lab) -> None:
    def health() -> dict[str, str]:
        targets = panels.api(lab.url, "targets")["activeTargets"]
        return {target["labels"]["job"]: target["health"] for target in targets}

    expected = dict.fromkeys(("node", "gpu", "vllm", "gateway", "prometheus", "alertmanager"), "up")
    lab.wait(lambda: health() == expected, "not every target is up")
    assert health() == expected


def test_every_panel_has_data(lab: monitoring_lab.Lab) -> None:
    def empty() -> list[str]:
        return [
            f"{panel.dashboard}: {panel.panel}: {panel.error or panel.query}"
            for panel in panels.ask(lab.url, (), "10s")
            if not panel.good
        ]

    lab.wait(lambda: not empty(), "some panels stay empty")
    assert empty() == []


def test_every_rule_can_be_evaluated(lab: monitoring_lab.Lab) -> None:
    rules = [rule for group in panels.api(lab.url, "rules")["groups"] for rule in group["rules"]]
    lab.wait(
        lambda: all(
            rule["health"] == "ok" for group in panels.api(lab.url, "rules")["groups"] for rule in group["rules"]
        ),
        "some rules fail",
    )
    assert len(rules) > 30


def test_an_alert_arrives_with_what_to_do(lab: monitoring_lab.Lab) -> None:
    """The host of the lab has 1.75 GiB left."""

    def message() -> dict[str, str] | None:
        for posted in lab.hook.posted:
            for alert in posted["body"]["alerts"]:
                if alert["labels"]["alertname"] == "SparkMemoryCritical":
                    assert posted["authorization"] == "Bearer a-token"
                    return dict(alert["annotations"])
        return None

    lab.wait(message, "no message about the memory arrives")
    text = message()
    assert text is not None
    assert text["summary"] == "spark-1 is about to freeze"
    assert text["description"] == "spark-1 has 1.75GiB of memory available."
    assert "systemctl stop" in text["fix"]
    assert "no value" not in json.dumps(lab.hook.posted)


def test_what_is_missing_is_told(lab: monitoring_lab.Lab) -> None:
    """A Prometheus that knows nothing of Sparks fails the very check that passes above."""
    answer = panels.Answer("node", "Power", "dgxspark:gpu_power_watts", 0)
    assert not answer.good
    answer.excuse = panels.EXCUSES["gpu"][0]
    assert answer.good
    answer.error = "parse error"
    assert not answer.good
