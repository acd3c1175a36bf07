# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The status as an HTML page: well-formed, self-contained, bounded, and safe with hostile text from hosts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from html_fixture import Reader

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import fleet_status, status_page, status_rows

HOSTILE = "</style><script>alert(1)</script>\"'&<img src=x onerror=1>"
AT = "2026-11-23T12:00:00+00:00"


def plan(*names: str) -> dict[str, Any]:
    return {
        "total_gib": 120.0,
        "memory_map": [
            {"label": "system", "gib": 6.0, "kind": "system", "service": None},
            *({"label": f"{name} weights", "gib": 40.0, "kind": "weights", "service": name} for name in names),
            {"label": "free", "gib": 114.0 - 40.0 * len(names), "kind": "free", "service": None},
        ],
        "findings": [],
        "services": [
            {
                "name": name,
                "unit": f"spark-{name}.service",
                "recipe": "r",
                "model": {"repo": f"Org/{name}"},
                "memory": {"residency_gib": {"typical": 40.0}},
                "url": "http://192.0.2.1:8001",
                "vllm_version": "0.24.0",
            }
            for name in names
        ],
    }


def result_of(
    *names: str, active: str = "active", ready: bool = True, error: str = "", **answer: Any
) -> dict[str, Any]:
    units = [
        {"name": f"spark-{name}.service", "active_state": active, "n_restarts": 0, "active_seconds": 268200}
        for name in names
    ]
    host = {
        "units": units,
        "memory": {"available_gib": 60.0, "total_gib": 120.0},
        "resident": [{"name": name, "gib": 39.5} for name in names],
    }
    results = {
        "ready": ready,
        "stage": "completion",
        "error": error,
        "kv_cache_usage": 0.12,
        "requests_running": 3,
        **answer,
    }
    services = [{"name": name, **results} for name in names]
    return {"reached": True, "why": "", "answers": {"services": {"host": host, "services": services}}}


def made(plans: dict[str, Any], results: dict[str, Any]) -> str:
    hosts = {host: fleet_status.judge_host(results.get(host) or {}, "services") for host in plans}
    rows: list[dict[str, Any]] = []
    for host, body in plans.items():
        answer = ((results.get(host) or {}).get("answers") or {}).get("services") or {}
        rows += status_rows.status_rows(host, body, answer.get("host"), answer.get("services"))
    return status_page.page(fleet_status.report(rows, hosts, AT), plans, inventory="my-sparks")


def serving(plans: dict[str, Any]) -> str:
    """Return the page of hosts that serve what is planned for them, a bit below the planned memory; for tests/webui and docs/images."""
    results = {}
    for host, body in plans.items():
        names = [service["name"] for service in body["services"]]
        results[host] = result_of(*names, decode_tokens_per_second=41.5, decode_ratio=1.0, fast_path="ok")
        sizes = [service["memory"]["residency_gib"]["typical"] - 1.8 for service in body["services"]]
        facts = results[host]["answers"]["services"]["host"]
        facts["resident"] = [{"name": name, "gib": size} for name, size in zip(names, sizes)]
        facts["memory"] = {"total_gib": 119.67, "available_gib": 119.67 - sum(sizes) - 5.2}
    return made(plans, results)


MIXED = {
    "s1": plan("heavy", "fast"),
    "s2": plan("heavy"),
    "s3": plan("heavy"),
    "s4": plan(),
}
SAID = {
    "s1": result_of("heavy", "fast", decode_tokens_per_second=41.5, decode_ratio=1.0, fast_path="ok"),
    "s2": result_of("heavy", active="failed", ready=False, error="no answer on port 8001"),
    "s3": {"reached": False, "why": "port 22: Connection refused"},
    "s4": result_of(),
}


@pytest.mark.parametrize("plans", [{}, {"s1": MIXED["s1"]}, MIXED])
def test_it_is_well_formed_and_needs_nothing_but_itself(plans: dict[str, Any]) -> None:
    text = made(plans, SAID)
    reader = Reader(text)
    assert text.startswith("<!DOCTYPE html>") and reader.tags[0] == ("html", {"lang": "en"})
    assert not {name for tag, attributes in reader.tags for name in attributes if tag != "a"} & {
        "src",
        "href",
        "srcset",
        "action",
        "onload",
    }
    assert not {tag for tag, _attributes in reader.tags} & {"script", "link", "iframe", "img", "object", "form"}
    assert not re.search(r"url\(|@import|https?:|//", text)
    policy = [attributes.get("content") for tag, attributes in reader.tags if tag == "meta"]
    assert "default-src 'none'; style-src 'unsafe-inline'" in policy


def test_dark_light_phone_and_keyboard() -> None:
    text = made(MIXED, SAID)
    assert "prefers-color-scheme:dark" in text and "width=device-width" in text and "max-width:760px" in text
    assert ":focus-visible" in text
    # Scrolling and folding regions can be reached without a mouse and have labels.
    reader = Reader(text)
    scrolls = [attributes for _tag, attributes in reader.tags if attributes.get("class") == "scroll"]
    assert scrolls and all(
        element["tabindex"] == "0" and element["role"] == "region" and element["aria-label"] for element in scrolls
    )
    bars = [attributes for _tag, attributes in reader.tags if attributes.get("class") == "bar"]
    assert bars and all(element["role"] == "img" and "GiB" in element["aria-label"] for element in bars)
    headings = [int(tag[1]) for tag, _attributes in reader.tags if re.fullmatch(r"h\d", tag)]
    assert headings[0] == 1 and headings.count(1) == 1 and set(headings[1:]) == {2}
    assert all(attributes.get("scope") == "col" for tag, attributes in reader.tags if tag == "th")


def test_what_is_not_well_comes_first_with_its_fix() -> None:
    text = Reader(made(MIXED, SAID)).text
    attention = text.partition("Needs attention")[2].partition("Hosts")[0]
    assert attention.index("s3 unreachable port 22: Connection refused Fix: Check whether it is on") < attention.index(
        "s2/heavy down"
    )
    assert "no answer on port 8001 Fix: On s2: journalctl -eu spark-heavy; doctor.yml --limit s2" in attention
    assert text.index("s2 1 service down") < text.index("s1 2 services healthy")
    assert "Nothing: everything checked is healthy" in Reader(made({"s1": MIXED["s1"]}, SAID)).text
    # A host that did not answer has its plan, and is not said to be free.
    host = text.rpartition("s3 1 service unreachable")[2].partition("service model")[0]
    assert (
        "now not known plan" in host
        and "74.0 GiB free by plan Its memory is not known: port 22: Connection refused" in host
    )
    assert host.count("free") == 2  # in the bar of the plan, and in the words beside it


def test_what_is_meant_to_be_idle_is_no_trouble() -> None:
    assert set(status_page.SHADES) == set(fleet_status.STATES)
    body = plan("heavy", "late")
    body["services"][1]["state"] = "on_demand"
    results = result_of("heavy", "late")
    results["answers"]["services"]["host"]["units"][1]["active_state"] = "inactive"
    results["answers"]["services"]["services"][1]["ready"] = False
    text = Reader(made({"s1": body}, {"s1": results})).text
    assert (
        "Nothing: everything checked is healthy" in text
        and "s1 2 services healthy" in text
        and "late Org/late vLLM 0.24.0 192.0.2.1:8001 unloaded" in text
    )


def test_findings_of_the_plan_have_their_fix() -> None:
    finding = {"rule": "memory.node", "severity": "error", "service": "", "message": "Too much.", "fix": "Less."}
    body = {**plan("heavy"), "findings": [finding, {**finding, "severity": "info", "message": "A note."}]}
    text = Reader(made({"s1": body}, {"s1": result_of("heavy")})).text
    assert "s1 plan: memory.node Too much. Fix: Less." in text and "A note." not in text


def test_services_with_their_figures() -> None:
    text = Reader(made(MIXED, SAID)).text
    assert (
        "heavy Org/heavy vLLM 0.24.0 192.0.2.1:8001 healthy 3 running 12 % used 39.5 GiB 40.0 GiB planned 41.5 ok 3d 2h"
        in text
    )
    assert "2026-11-23 12:00 UTC, inventory my-sparks." in text


def test_memory_now_and_planned() -> None:
    labels = [
        attributes["aria-label"]
        for _tag, attributes in Reader(made(MIXED, SAID)).tags
        if attributes.get("class") == "bar"
    ]
    assert "heavy 39.5 GiB, fast 39.5 GiB, free 41.0 GiB; 41.0 GiB free of 120.0 GiB" in labels
    assert (
        "system 6.0 GiB, heavy weights 40.0 GiB, fast weights 40.0 GiB, free 34.0 GiB; 34.0 GiB free of 120.0 GiB"
        in labels
    )


@pytest.mark.parametrize(
    "memory",
    [
        {},
        {"total_gib": None, "available_gib": 5},
        {"total_gib": 5, "available_gib": 9},
        {"total_gib": True, "available_gib": True},
    ],
)
def test_memory_that_is_not_known_is_not_drawn(memory: dict[str, Any]) -> None:
    assert status_page.live_map(fleet_status.HostState("healthy", **memory), [], {}) is None


def test_names_cannot_become_markup() -> None:
    results = result_of(HOSTILE, active="failed", ready=False, error=HOSTILE, fast_path=HOSTILE)
    results["answers"]["services"]["host"]["units"][0]["status_text"] = HOSTILE
    finding = {"rule": HOSTILE, "severity": "error", "service": HOSTILE, "message": HOSTILE, "fix": HOSTILE}
    plans = {HOSTILE: {**plan(HOSTILE), "findings": [finding]}, "s2": plan("x")}
    text = made(plans, {HOSTILE: results, "s2": {"reached": False, "why": HOSTILE}})
    reader = Reader(text)
    assert not {tag for tag, _attributes in reader.tags} & {"script", "img"}
    assert text.count("</style>") == 1 and reader.text.count("alert(1)") >= 6
    assert not any("onerror" in attributes for _tag, attributes in reader.tags)


def test_its_size_is_bounded() -> None:
    """A hundred hosts with two services that say as much as they can."""
    plans = {f"spark-{number:03}": plan("heavy", "fast") for number in range(100)}
    results = {host: result_of("heavy", "fast", ready=False, active="failed", error="x" * 100_000) for host in plans}
    text = made(plans, results)
    assert len(text.encode()) < 900_000
    # Of a fleet the hosts are folded.
    assert text.count('<details class="host fails">') == 100


def test_the_same_gives_the_same_bytes() -> None:
    assert made(MIXED, SAID) == made(dict(reversed(list(MIXED.items()))), SAID)
