# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which services nobody stands in for, and which hosts hold more than they can."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import placement


def service(name: str, model: str = "", gib: float = 30.0, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "recipe": "r",
        "served_model_name": name,
        "model": {"repo": model or f"Org/{name}"},
        "memory": {"residency_gib": {"typical": gib}},
        **more,
    }


def host(*services: dict[str, Any], total: float = 100.0) -> dict[str, Any]:
    used = sum(entry["memory"]["residency_gib"]["typical"] for entry in services)
    parts = [{"kind": "weights", "gib": used}, {"kind": "free", "gib": max(total - used, 0.0)}]
    return {"services": list(services), "memory_map": parts, "total_gib": total}


def names(plan: dict[str, Any]) -> list[str]:
    return [entry["service"] for entry in placement.check(plan)["without_replica"]]


def test_the_same_model_or_the_same_name_elsewhere_is_a_replica() -> None:
    plan = {
        "hosts": {
            "a": host(service("heavy", "Org/M"), service("fast")),
            "b": host(service("other", "Org/M")),
            "c": host(service("fast", "Org/N")),
        }
    }
    assert names(plan) == []
    del plan["hosts"]["c"]
    assert names(plan) == ["fast"]


def test_a_second_one_on_the_same_host_is_none() -> None:
    plan = {"hosts": {"a": host(service("one", "Org/M"), service("two", "Org/M")), "b": host()}}
    assert names(plan) == ["one", "two"]


def test_what_is_stopped_stands_in_for_nobody() -> None:
    plan = {"hosts": {"a": host(service("x", "Org/M")), "b": host(service("x", "Org/M", state="stopped"))}}
    assert names(plan) == ["x"]


def test_ranks_are_one_service_with_all_its_hosts() -> None:
    span = {"name": "pair"}
    pair = [service("big", "Org/M", cluster=span, rank=rank) for rank in (0, 1)]
    plan = {"hosts": {"a": host(pair[0]), "b": host(pair[1])}}
    assert placement.check(plan)["without_replica"] == [{"service": "big", "model": "Org/M", "hosts": ["a", "b"]}]
    plan["hosts"]["b"]["services"].append(service("big2", "Org/M"))
    assert names(plan) == ["big", "big2"]  # they share host b
    plan["hosts"]["c"] = host(service("big", "Org/M"))
    assert names(plan) == []


def test_a_model_in_a_folder_is_named_as_clients_know_it() -> None:
    local = {**service("local"), "model": {"source": "/srv/controller/models/m"}}
    plan = {"hosts": {"a": host(local), "b": host(service("fast"))}}
    assert "no other host serves local:" in placement.findings(plan)[0]["message"]


def test_over_committed_hosts_name_what_could_move() -> None:
    plan = {
        "hosts": {
            "a": host(service("heavy", gib=80), service("fast", gib=25), service("tiny", gib=2)),
            "b": host(service("heavy", gib=80)),
            "c": host(service("heavy", gib=60)),
        }
    }
    assert placement.over_committed(plan) == {"a": {"over_gib": 7.0, "move": "fast", "to": "c"}}
    findings = [finding for finding in placement.findings(plan) if finding["rule"] == "placement.over_committed"]
    assert [(finding["host"], finding["severity"]) for finding in findings] == [("a", "warning")]
    assert "Move fast to c" in findings[0]["fix"]
    assert "Over-committed: a by 7.0 GiB; fast would fit on c." in placement.text(plan)


def test_of_an_exclusive_set_only_the_largest_counts() -> None:
    def of_set(name: str, gib: float, **more: Any) -> dict[str, Any]:
        return service(name, gib=gib, exclusive="large", **more)

    small = service("small", gib=20)
    over = host(of_set("heavy", 90), small)  # its map has the largest of the set
    other = of_set("coder", 60, state="stopped")
    plan = {"hosts": {"a": over, "b": host(service("x", gib=5))}}
    # Without its set mate `heavy` would free 90 GiB; with it only the difference between the two.
    assert placement.over_committed(plan) == {"a": {"over_gib": 10.0, "move": "small", "to": "b"}}
    over["services"] = [of_set("heavy", 90), other, service("fast", gib=40)]
    over["memory_map"] = [{"kind": "weights", "gib": 130.0}, {"kind": "free", "gib": 0.0}]
    # 30 GiB too much: taking off `heavy` leaves `coder` in its place, which relieves the host by just that, and is larger to move.
    assert placement.over_committed(plan)["a"]["move"] == "fast"
    over["services"] = [of_set("heavy", 90), of_set("twin", 85, state="stopped"), service("fast", gib=20)]
    over["memory_map"] = [{"kind": "weights", "gib": 110.0}, {"kind": "free", "gib": 0.0}]
    assert placement.over_committed(plan)["a"]["move"] == "fast"
    over["services"][2]["memory"]["residency_gib"]["typical"] = 5.0
    # Nothing alone helps: `heavy` leaves 85 of its 90 GiB to its twin.
    assert placement.over_committed(plan)["a"] == {"over_gib": 10.0, "move": None, "to": None}


def test_a_service_as_large_as_the_excess_can_move() -> None:
    plan = {"hosts": {"a": host(service("heavy", gib=100), service("fast", gib=25)), "b": host()}}
    assert placement.over_committed(plan)["a"] == {"over_gib": 25.0, "move": "fast", "to": "b"}


def test_the_smaller_one_of_an_exclusive_set_relieves_its_host_by_nothing() -> None:
    """Memory is planned for the largest; even half a GiB too much stays."""
    pair = [service(name, gib=gib, exclusive="large") for name, gib in (("heavy", 100.5), ("coder", 100.5))]
    over = {**host(pair[0]), "services": pair}
    assert placement.over_committed({"hosts": {"a": over, "b": host(total=200)}})["a"] == {
        "over_gib": 0.5,
        "move": None,
        "to": None,
    }


def test_what_is_stopped_keeps_its_memory_and_can_move() -> None:
    plan = {"hosts": {"a": host(service("x", gib=80), service("y", gib=30, state="stopped")), "b": host()}}
    assert placement.over_committed(plan)["a"] == {"over_gib": 10.0, "move": "y", "to": "b"}


def test_room_is_given_away_once() -> None:
    full = host(service("heavy", gib=90), service("fast", gib=25))
    plan = {"hosts": {"a": full, "b": full, "c": host(service("x", gib=70))}}
    assert [entry["to"] for entry in placement.over_committed(plan).values()] == ["c", None]


def test_one_host_has_nobody_to_stand_in() -> None:
    plan = {"hosts": {"a": host(service("x"))}}
    assert placement.findings(plan) == [] and placement.text(plan) == ""


def test_a_hundred_hosts_take_one_line() -> None:
    plan = {"hosts": {f"spark-{number:03}": host(service(f"m{number % 50}")) for number in range(100)}}
    assert placement.text(plan) == ""
    plan["hosts"]["spark-100"] = host(*[service(f"alone{number}", gib=1) for number in range(9)])
    text = placement.text(plan)
    assert text.startswith("Without a replica: 9 of 109 services: alone0 (spark-100), ") and "and 3 more." in text
    assert "\n" not in text
