"""Every line of the table of kernels, drivers and packages, as used by plan, doctor and update."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import doctor
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_update, known_bad, platform_data
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import preflight

# The current release of DGX OS, without findings: it fills the fields that a line leaves open.
KERNEL, DRIVER, DGX_OS = "6.17.0-1032-nvidia", "580.178.04", "7.6.0"
GUARD = {"name": known_bad.KHO_PACKAGE, "old": "", "new": "1.0-1"}
ROWS = [row for row in platform_data.ROWS if "package" not in row]
SEVERITY = {"bad": "error", "doubtful": "warning"}
RUNNING = {"kernel": "host.kernel", "option": "host.kernel_handover", "branch": "host.driver", "pair": "host.driver_pair"}  # fmt: skip


def name(row: dict[str, Any]) -> str:
    return "-".join(
        str(row[key]) for key in ("kernel", "option", "driver", "dgx_os", "other_driver", "package") if key in row
    )


def full(begin: str, example: str) -> str:
    """Go on behind the begin of a version as a real one does."""
    return {"7.0": "7.0.0-1019-nvidia", "580.173": "580.173.02", "595.84": "595.84.01"}.get(begin, begin or example)


def host_of(row: dict[str, Any]) -> dict[str, Any]:
    driver = "595.58.03" if "other_driver" in row else full(row.get("driver", ""), DRIVER)
    return {
        "kernel": full(row.get("kernel", ""), KERNEL),
        "driver": driver,
        "dgx_os": row.get("dgx_os", DGX_OS),
        "option": row.get("option", True),
    }


def facts_of(host: dict[str, Any], keeps_memory: bool) -> dict[str, Any]:
    """What such a host reports; kept: whether its kernel keeps memory for handover."""
    return {
        "machine": {"is_spark": True},
        "docker": {"version": "29", "runtimes": ["nvidia"]},
        "kernel": host["kernel"],
        "gpu": {"driver_version": host["driver"]},
        "dgx_os": {"version": host["dgx_os"]},
        "memory": {"available_gib": 100.0, "cma_total_gib": 0.0, "cma_free_gib": 9.36 if keeps_memory else 0.0},
    }


def subject_of(row: dict[str, Any]) -> str:
    return next(
        entry.subject
        for entry in known_bad.TABLE
        if entry.source == row["source"]
        and entry.kernel == row.get("kernel", "")
        and entry.driver == row.get("driver", "")
    )


def in_plan(host: dict[str, Any], keeps_memory: bool) -> dict[str, str]:
    findings = preflight.check_host(facts_of(host, keeps_memory), [], {})
    assert all(finding.fix and finding.source for finding in findings)
    return {finding.rule: finding.severity for finding in findings}


def in_update(host: dict[str, Any]) -> dict[str, str]:
    """Return the findings about an update that brings all of this to a host of the first release."""
    branch = host["driver"].split(".")[0]
    packages = [(f"linux-image-{host['kernel']}", "1"), (f"nvidia-driver-{branch}-open", f"{host['driver']}-0ubuntu1")]
    install = [{"name": name, "old": "0", "new": new} for name, new in packages]
    pending = {"install": [*install, *([GUARD] if host["option"] else [])], "remove": [], "firmware": []}
    facts = {"driver": "580.95.05", "kernel": "6.11.0-1016-nvidia", "ota": host["dgx_os"]}
    return {finding.rule: finding.severity for finding in host_update.check(pending, facts, True)}


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_the_plan_judges_what_runs(row: dict[str, Any]) -> None:
    host, subject = host_of(row), subject_of(row)
    severities = in_plan(host, row["verdict"] != "good" and subject == "option")
    if row["verdict"] == "good":
        assert severities == {}
    elif "595" in host["driver"]:  # of another branch as well
        assert severities == {RUNNING[subject]: "warning", "host.driver": "warning"}
    else:
        assert severities == {RUNNING[subject]: "warning"}


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_an_update_judges_what_comes(row: dict[str, Any]) -> None:
    subject = subject_of(row)
    of_pair = "update.driver_firmware" if "dgx_os" in row else "update.driver_pair"
    rule = {"kernel": "update.kernel", "option": "update.kernel_option", "branch": "update.driver_branch"}.get(
        subject, of_pair
    )
    severities = in_update(host_of(row))
    if row["verdict"] == "good":
        assert severities == {}
    else:
        assert severities.pop(rule) == SEVERITY[row["verdict"]]
        assert severities == ({"update.driver_branch": "error"} if "595.84" in row.get("driver", "") else {})


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_the_doctor_says_nothing_beside_the_plan_which_it_shows(row: dict[str, Any]) -> None:
    """Its report begins with the findings of the plan; a second verdict would be a duplicate, or a contradiction."""
    facts = facts_of(host_of(row), row["verdict"] != "good" and row.get("option") is False)
    assert doctor.check(doctor.HostReport({}, facts, {}, {}, {}, {})) == []


@pytest.mark.parametrize("row", [row for row in platform_data.ROWS if "package" in row], ids=name)
def test_packages_of_the_table_do_not_come(row: dict[str, Any]) -> None:
    for version, rules in ((f"{row['version']}-1", {"update.package"}), ("9.9.9-1", set())):
        pending = {"install": [{"name": row["package"], "old": "", "new": version}], "remove": [], "firmware": []}
        assert {finding.rule for finding in host_update.check(pending, {}, True)} == rules


@pytest.mark.parametrize("row", platform_data.ROWS, ids=name)
def test_each_line_says_what_it_rests_on(row: dict[str, Any]) -> None:
    assert row["source"] and datetime.date.fromisoformat(row["date"]) <= datetime.date.today()
    assert row["verdict"] in ("good", "bad", "doubtful")
    assert (row["verdict"] == "good") is not bool(row.get("why") and row.get("fix"))


def test_two_lines_do_not_say_different_things_of_one_host() -> None:
    for row in ROWS:
        if row["verdict"] == "good":
            assert known_bad.against(host_of(row)) == []


def test_what_is_not_known_is_no_reason() -> None:
    assert known_bad.against({}) == [] and known_bad.against({"kernel": "7.0.0-1019-nvidia"}) == []
    assert in_plan({"kernel": "7.0.0-1019-nvidia", "driver": DRIVER, "dgx_os": None}, False) == {}


def test_a_flavour_with_64k_pages_is_not_the_one_of_4k() -> None:
    assert known_bad.against({"kernel": "6.17.0-10080-nvidia"}) == []
    assert [row.kernel for row in known_bad.against({"kernel": "6.17.0-1008-nvidia-64k"})] == ["6.17.0-1008-nvidia"]


def test_hosts_of_a_cluster_that_differ_are_named() -> None:
    first, two = facts_of(host_of({}), False), facts_of(host_of({"driver": "580.173.02"}), False)
    alike = list(preflight.check_alike({"a": first, "b": two, "c": first, "d": None}))
    assert [entry.rule for entry in alike] == ["cluster.hosts_differ"]
    assert "580.173.02 on b; 580.178.04 on a, c" in alike[0].message
    assert not list(preflight.check_alike({"a": first, "b": first, "c": {}, "d": None}))
