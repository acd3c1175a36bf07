"""The register of findings has every reported finding and no other."""

from __future__ import annotations

import pytest
import registered_findings as register

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import descriptions, servers
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import SEVERITIES, Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import RULES
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import doctor_signs, drift
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import fast_path, receipts


def test_severities_stand_the_worst_first() -> None:
    assert register.REGISTER["memory.load"] == ("error", "warning", "info")
    assert register.REGISTER["doctor.disk"] == ("error", "warning")
    assert register.REGISTER["bundle.pip"] == ("warning",)


def test_every_severity_is_known_and_the_worst_stands_first() -> None:
    for severities in register.REGISTER.values():
        assert severities and sorted(set(severities), key=SEVERITIES.index) == list(severities)


def test_rules_about_launches_are_known_by_their_form() -> None:
    assert len(RULES) > 150
    assert [rule.id for rule in RULES if not register.is_registered(rule.id)] == []


@pytest.mark.parametrize("rule", ["memory.lod", "memory", "", "SPK1", "SPK1010", "xSPK101", "SPK101\n"])
def test_a_finding_that_is_not_registered_is_refused(rule: str) -> None:
    assert not register.is_registered(rule)
    with pytest.raises(AssertionError, match="is not registered"):
        Finding(rule, "error", "no")


def test_a_severity_is_one_of_three() -> None:
    with pytest.raises(ValueError, match=r"severity of memory\.load is 'fatal'"):
        Finding("memory.load", "fatal", "no")


# Ids that are put together from a table: each row of the table has to be registered.


def test_each_figure_of_a_receipt_may_get_worse() -> None:
    assert [name for name in receipts.FIGURES if f"receipt.{name}" not in register.REGISTER] == []


def test_each_sign_of_a_log_is_registered_with_its_severity() -> None:
    assert [
        sign.rule for sign in doctor_signs.KERNEL_SIGNS if sign.severity not in register.REGISTER.get(sign.rule, ())
    ] == []


def test_each_kind_of_kernels_and_each_fact_of_a_host_may_be_another() -> None:
    assert [name for name in fast_path.KERNELS if f"fast_path.{name}" not in register.REGISTER] == []
    assert [name for name in drift.VERSIONS if f"drift.{name}" not in register.REGISTER] == []


@pytest.mark.parametrize("subject", ["speech", "ollama"])
def test_what_speech_and_ollama_share(subject: str) -> None:
    image = {"image": "one/server", "volumes": [], "docker_args": []}
    assert [finding.rule for finding in servers.container_findings(subject, "one", image)] == [f"{subject}.moving_tag"]
    server = endpoints.make("spark-1", "192.168.1.11", "one", "asr", 8000, "127.0.0.1")
    other = {**endpoints.make("spark-1", "", "one", "vllm", 8000, "127.0.0.1"), "key": "spark-1/other"}
    stranger = [{"port": 8000, "address": "127.0.0.1", "process": "nc"}]
    host = servers.ServerHost("spark-1", gateway="forge", listening=stranger)
    findings = servers.endpoint_findings(subject, server, [other], host, True)
    server["listen"] = "192.168.1.11"
    findings += servers.endpoint_findings(subject, server, [], servers.ServerHost("spark-1", gateway="forge"), True)
    words = ("port", "name", "port_taken", "unreachable", "open")
    assert [finding.rule for finding in findings] == [f"{subject}.{word}" for word in words]


def test_each_text_of_an_add_on_is_of_a_registered_finding() -> None:
    rules = {".".join(rule.split(".")[:2]) for rule in descriptions.FINDINGS}
    assert sorted(rules - set(register.REGISTER)) == []
    for rule, text in descriptions.FINDINGS.items():
        severities = register.REGISTER[".".join(rule.split(".")[:2])]
        assert text.get("severity", severities[0]) in severities
