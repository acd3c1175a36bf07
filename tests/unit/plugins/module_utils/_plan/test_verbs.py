"""The services that a verb selects, exclusive sets, and the wait for freed memory."""

from __future__ import annotations

from typing import Any

import pytest
from planned_fixture import service

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import verbs
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.planned import ClusterOf, PlannedService

PAIR = {"name": "pair", "hosts": ["spark-2", "spark-3"]}
PLANNED: dict[str, Any] = {
    "spark-1": {"services": [{"name": "heavy", "cluster": None}, {"name": "fast", "cluster": None}]},
    "spark-2": {"services": [{"name": "fast", "cluster": None}, {"name": "big", "cluster": PAIR}]},
    "spark-3": {"services": [{"name": "big", "cluster": PAIR}]},
}
ALL = list(PLANNED)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("heavy,fast", ["heavy", "fast"]),
        (" heavy  fast, heavy ", ["heavy", "fast"]),
        (["heavy", "fast"], ["heavy", "fast"]),
        ("", []),
        (None, []),
    ],
)
def test_names_as_people_give_them(value: Any, names: list[str]) -> None:
    assert verbs.names_of(value) == names


def test_without_names_all_services_of_the_hosts_are_meant() -> None:
    hosts, messages = verbs.select(PLANNED, ALL, [])
    assert messages == []
    assert hosts == {"spark-1": ["heavy", "fast"], "spark-2": ["fast", "big"], "spark-3": ["big"]}


def test_a_name_is_looked_for_on_all_hosts_of_the_run() -> None:
    assert verbs.select(PLANNED, ALL, ["fast"])[0] == {"spark-1": ["fast"], "spark-2": ["fast"], "spark-3": []}
    assert verbs.select(PLANNED, ["spark-2", "spark-3"], ["fast"])[0] == {"spark-2": ["fast"], "spark-3": []}


def test_everything_that_is_wrong_is_said_at_once() -> None:
    _hosts, messages = verbs.select(PLANNED, ["spark-2"], ["heavi", "heavy", "big", "fast"])
    assert len(messages) == 3
    assert "did you mean 'heavy'?" in messages[0] and "Known: big, fast, heavy." in messages[0]
    assert "is on spark-1, which this run leaves out" in messages[1]
    assert "leaves out spark-3" in messages[2] and "--limit spark-2,spark-3" in messages[2]


def test_a_cluster_that_is_not_asked_for_may_be_cut() -> None:
    assert verbs.select(PLANNED, ["spark-2"], ["fast"]) == ({"spark-2": ["fast"]}, [])
    assert len(verbs.select(PLANNED, ["spark-2"], [])[1]) == 1


def test_ranks_agree_to_be_stopped() -> None:
    pair = ClusterOf("pair", 2, "spark-2", ["spark-2", "spark-3"], "mp")

    def rank(name: str, state: str, alone: bool = False) -> PlannedService:
        return service(name=name, state=state, cluster=None if alone else pair)

    hosts = [
        [rank("big", "started"), rank("fast", "started", alone=True)],
        [rank("big", "stopped"), rank("fast", "stopped", alone=True)],
    ]
    verbs.join_states(hosts)
    assert [[each.state for each in services] for services in hosts] == [
        ["stopped", "started"],
        ["stopped", "stopped"],
    ]


@pytest.mark.parametrize(
    ("active", "states"),
    [
        (None, {"heavy": "started", "big": "stopped", "third": "stopped"}),
        ("big", {"heavy": "stopped", "big": "started", "third": "stopped"}),
        # A service that the inventory stops is never chosen, though it runs still.
        ("third", {"heavy": "started", "big": "stopped", "third": "stopped"}),
        ("alone", {"heavy": "started", "big": "stopped", "third": "stopped"}),
    ],
)
def test_of_an_exclusive_set_the_running_service_stays_or_the_first_starts(
    active: str | None, states: dict[str, str]
) -> None:
    services = [
        service(name=name, unit=f"spark-{name}.service", state=state, exclusive=exclusive)
        for name, state, exclusive in (
            ("third", "stopped", "large"),
            ("big", "started", "large"),
            ("heavy", "started", "large"),
            ("alone", "started", ""),
        )
    ]
    units = [{"name": f"spark-{active}.service", "active_state": "active"}] if active else []
    # In the order of their start; the inventory has the other one.
    names = ["alone", "heavy", "big", "third"]
    chosen = verbs.choose_states(services, {"units": units}, names)
    assert {planned.name: planned.state for planned in chosen} == {**states, "alone": "started"}
    assert verbs.choose_states(services, None, names)[2].state == "started"


SETTINGS: dict[str, dict[str, Any]] = {"heavy": {"exclusive": "large"}, "big": {"exclusive": "large"}, "fast": {}}


def test_a_start_beside_another_of_the_set_is_refused_with_the_way_out() -> None:
    (message,) = verbs.excluded(SETTINGS, ["heavy", "fast"], ["big", "fast"])
    assert "out=heavy -e in=big" in message


def test_two_of_a_set_at_once_are_refused() -> None:
    (message,) = verbs.excluded(SETTINGS, [], ["heavy", "big"])
    assert message.startswith("big and heavy are of the exclusive set large")


@pytest.mark.parametrize(("active", "names"), [([], ["big"]), (["heavy"], ["heavy"]), (["heavy", "big"], ["fast"])])
def test_what_is_free_to_run_is_not_refused(active: list[str], names: list[str]) -> None:
    assert verbs.excluded(SETTINGS, active, names) == []


def test_memory_is_counted_by_the_containers_of_the_services() -> None:
    processes = [
        {"pid": 1, "used_mib": 10240, "container": "spark-heavy"},
        {"pid": 2, "used_mib": None, "container": "spark-heavy"},
        {"pid": 3, "used_mib": 2048, "container": "other"},
    ]
    assert verbs.held_by(["spark-heavy"], processes) == (10.0, [1, 2])


@pytest.mark.parametrize(("held", "need"), [(95.0, 10 + 95 * 0.95), (5.0, 14.0), (0.5, 10.0)])
def test_a_little_may_still_be_missing(held: float, need: float) -> None:
    assert verbs.expected_gib(10.0, held) == pytest.approx(need)


class Looks:
    """A host whose memory comes back step by step; every sleep is a step."""

    def __init__(self, *looks: tuple[float, set[int]]) -> None:
        self.looks = list(looks)
        self.now = 0.0

    def look(self) -> tuple[float, set[int]]:
        return self.looks[min(int(self.now), len(self.looks) - 1)]

    def wait(self, need: float, pids: list[int], timeout: float = 10) -> dict[str, Any]:
        def sleep(seconds: float) -> None:
            self.now += seconds

        return verbs.wait_until_back(
            self.look, need, pids, timeout=timeout, interval=1, clock=lambda: self.now, sleep=sleep
        )


def test_a_process_that_is_gone_is_not_yet_memory_that_is_back() -> None:
    wait = Looks((10, {7}), (10, set()), (60, set()), (100, set())).wait(99, [7])
    assert wait == {"ok": True, "waited_seconds": 3.0, "available_gib": 100, "left": []}


def test_memory_that_is_there_while_a_process_stays_is_not_enough() -> None:
    wait = Looks((100, {7, 8})).wait(99, [7], timeout=2)
    assert wait["ok"] is False and wait["left"] == [7]
    text = verbs.not_back(wait, 99, ["heavy"], "held by x")
    assert "still lists pid 7" in text and "held by x" in text and "heavy" in text


def test_others_that_hold_memory_do_not_keep_it_waiting() -> None:
    assert Looks((100, {8})).wait(99, [7])["ok"] is True
