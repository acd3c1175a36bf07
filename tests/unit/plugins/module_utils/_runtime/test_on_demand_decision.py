# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engines on demand: the decisions to start and stop them, the meaning of a unit's state, and heads of requests."""

from __future__ import annotations

import heapq
import json
import random
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import on_demand
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.on_demand import (
    COLD,
    DRAIN,
    DRAINING,
    FAILED,
    HOLDING,
    LOOK,
    READY,
    REFUSE,
    RESUME,
    START,
    STARTING,
    STOP,
    STOPPING,
    UNKNOWN,
    WARM,
    Action,
    Group,
    Past,
    Service,
    View,
    Wrong,
    decide,
    follow,
)


def service(name: str, **changes: Any) -> Service:
    settings = {"unit": f"spark-{name}.service", "engine": "http://127.0.0.1:18000", "model": name, "set": "big"}
    return Service(name=name, **{**settings, **changes})


def pairs(*names: str) -> Group:
    return Group(tuple(map(frozenset, combinations(names, 2))))


THREE = {name: service(name) for name in "abc"}
BIG = {"big": pairs("a", "b", "c")}
OFF = View(COLD)
IDLE = View(READY, ready=0.0, last=100.0, looked=999.0, busy=False)
BUSY = View(READY, ready=0.0, last=990.0, running=2)
NOW = 1000.0


def acts(views: dict[str, View], now: float = NOW, services: dict[str, Service] | None = None) -> list[tuple[str, str]]:
    return [(action.what, action.name) for action in decide(now, services or THREE, BIG, views)]


# --- decisions ------------------------------------------------------------------------------------------------------------


def test_a_request_starts_what_fits() -> None:
    assert acts({"a": OFF, "b": OFF, "c": replace(OFF, demand=999.0)}) == [(START, "c")]
    assert acts({"a": BUSY, "b": replace(OFF, demand=999.0), "c": OFF}) == [(START, "b")]
    assert acts({"a": OFF, "b": OFF, "c": OFF}) == []


def test_two_that_wait_start_as_far_as_both_fit_the_older_one_first() -> None:
    views = {name: replace(OFF, demand=999.0 - number) for number, name in enumerate("abc")}
    assert acts(views) == [(START, "c"), (START, "b")]


def test_a_service_of_no_set_needs_nobodys_room() -> None:
    services = {**THREE, "free": service("free", set=None)}
    views = {"a": BUSY, "b": BUSY, "c": OFF, "free": replace(OFF, demand=1.0)}
    assert acts(views, services=services) == [(START, "free")]


def test_the_longest_idle_makes_room() -> None:
    waiting = replace(OFF, demand=999.0)
    assert acts({"a": replace(IDLE, last=500.0), "b": IDLE, "c": waiting}) == [(STOP, "b")]
    assert acts({"a": BUSY, "b": IDLE, "c": waiting}) == [(STOP, "b")]


def test_the_lower_priority_makes_room_although_it_was_used_later() -> None:
    services = {**THREE, "b": service("b", priority=5)}
    views = {"a": replace(IDLE, last=900.0), "b": replace(IDLE, last=100.0), "c": replace(OFF, demand=999.0)}
    assert acts(views, services=services) == [(STOP, "a")]


def test_what_stops_holds_its_memory_until_it_is_gone() -> None:
    assert acts({"a": BUSY, "b": View(STOPPING), "c": replace(OFF, demand=999.0)}) == []
    assert acts({"a": BUSY, "b": OFF, "c": replace(OFF, demand=999.0)}) == [(START, "c")]


def test_nothing_stops_while_an_engine_loads_and_nothing_starts_while_one_stops() -> None:
    """Memory that comes back ends an engine that loads."""
    late = replace(OFF, demand=100.0)
    views = {"a": IDLE, "b": View(STARTING), "c": late}
    assert acts(views) == [(STOP, "a")]
    assert [decide(NOW, THREE, BIG, entry, "spark-b.service") for entry in (views, {**views, "a": BUSY})] == [[], []]
    views["a"] = replace(BUSY, state=DRAINING)
    (action,) = decide(NOW, THREE, BIG, views, "spark-b.service")
    assert (action.what, action.name) == (RESUME, "a") and action.why.startswith("spark-b.service loads")
    services = {**THREE, "d": service("d", set=None)}
    views = {"a": View(STOPPING), "b": OFF, "c": OFF, "d": late}
    assert acts(views, services=services) == []
    assert acts({**views, "a": OFF}, services=services) == [(START, "d")]


def test_who_starts_beside_more_than_fit_gets_room() -> None:
    """Somebody started it by hand when the program started another one: it waits at its gate for memory."""
    views = {"a": IDLE, "b": BUSY, "c": View(STARTING, demand=100.0)}
    assert acts(views) == [(STOP, "a")] and acts({**views, "b": OFF}) == []
    assert acts({**views, "a": BUSY}) == [(DRAIN, "a")]
    assert acts({**views, "c": View(STARTING)}) == []
    assert decide(NOW, THREE, BIG, views, "spark-c.service") == []


def test_an_idle_engine_is_asked_before_it_is_stopped() -> None:
    waiting = replace(OFF, demand=999.0)
    unasked = replace(IDLE, looked=None, busy=None)
    assert acts({"a": BUSY, "b": unasked, "c": waiting}) == [(LOOK, "b")]
    assert acts({"a": BUSY, "b": replace(IDLE, looked=900.0), "c": waiting}) == [(LOOK, "b")]
    # A request came and ended in the meantime.
    assert acts({"a": BUSY, "b": replace(IDLE, looked=998.0, last=999.0), "c": waiting}) == [(LOOK, "b")]
    assert acts({"a": BUSY, "b": replace(IDLE, busy=True), "c": waiting}) == []


def test_metrics_that_cannot_be_read_are_waited_for_with_an_end() -> None:
    services = {**THREE, "b": service("b", idle_seconds=120)}
    silent = replace(IDLE, busy=None, unasked=950.0)
    views = {"a": OFF, "b": silent, "c": OFF}
    assert acts(views, services=services) == []
    assert acts({**views, "b": replace(silent, unasked=880.0)}, services=services) == [(STOP, "b")]


def test_nobody_goes_within_the_minimum_stay() -> None:
    young = replace(IDLE, ready=950.0)
    assert acts({"a": young, "b": young, "c": replace(OFF, demand=900.0)}) == []
    assert acts({"a": young, "b": View(STARTING), "c": replace(OFF, demand=900.0)}) == []


def test_one_that_is_never_idle_is_drained_after_a_while() -> None:
    views = {"a": BUSY, "b": replace(BUSY, last=980.0), "c": replace(OFF, demand=941.0)}
    assert acts(views) == []
    views["c"] = replace(OFF, demand=939.0)
    assert acts(views) == [(DRAIN, "b")]
    drained = {**views, "b": replace(views["b"], state=DRAINING)}
    assert acts(drained) == []  # and not the other one too
    empty = replace(drained["b"], running=0, looked=999.0, busy=False)
    assert acts({**drained, "b": empty}) == [(STOP, "b")]


def test_a_drained_one_goes_on_when_nobody_waits_any_more() -> None:
    assert acts({"a": BUSY, "b": replace(BUSY, state=DRAINING), "c": OFF}) == [(RESUME, "b")]


def test_an_idle_one_goes_instead_of_a_drained_one_that_still_works() -> None:
    views = {"a": IDLE, "b": replace(BUSY, state=DRAINING), "c": replace(OFF, demand=900.0)}
    assert sorted(acts(views)) == [(RESUME, "b"), (STOP, "a")]


def test_younger_ones_do_not_take_the_room_of_who_waits_longer() -> None:
    services = {name: service(name) for name in "abcd"}
    group = {"big": Group((frozenset("ab"), frozenset("bc"), frozenset("d")))}
    views = {
        "a": replace(BUSY, ready=990.0), "b": OFF, "c": OFF, "d": replace(OFF, demand=995.0),
    }  # fmt: skip
    # b would fit together with a, but d has waited longer and fits with no other service.
    views["b"] = replace(OFF, demand=996.0)
    assert decide(NOW, services, group, views) == []
    views["b"] = replace(OFF, demand=994.0)
    assert [(entry.what, entry.name) for entry in decide(NOW, services, group, views)] == [(START, "b")]


def test_idle_for_long_enough_is_stopped() -> None:
    assert acts({"a": replace(IDLE, last=-200.0, ready=-900.0), "b": IDLE, "c": OFF}) == [(STOP, "a")]
    never = {**THREE, "a": service("a", idle_seconds=None)}
    assert acts({"a": replace(IDLE, last=-9e6, ready=-9e6), "b": IDLE, "c": OFF}, services=never) == []


def test_pins() -> None:
    assert acts({"a": replace(OFF, pin=WARM, demand=1.0), "b": OFF, "c": OFF}) == [(START, "a")]
    pinned = replace(IDLE, pin=WARM, last=-9000.0, ready=-9000.0)
    assert acts({"a": pinned, "b": OFF, "c": OFF}) == []
    assert acts({"a": pinned, "b": replace(IDLE, last=900.0), "c": replace(OFF, demand=999.0)}) == [(STOP, "b")]
    actions = decide(NOW, THREE, BIG, {"a": pinned, "b": pinned, "c": replace(OFF, demand=999.0)})
    assert [(entry.what, entry.name) for entry in actions] == [(REFUSE, "c")] and "kept warm by its owner" in actions[
        0
    ].why
    # The minimum stay does not apply to a stop by the owner.
    assert acts({"a": replace(IDLE, pin=COLD, ready=999.0), "b": OFF, "c": OFF}) == [(STOP, "a")]
    assert acts({"a": replace(BUSY, pin=COLD), "b": OFF, "c": OFF}) == []
    assert acts({"a": replace(OFF, pin=COLD, demand=1.0), "b": OFF, "c": OFF}) == []


def test_a_failed_start_is_not_tried_again_at_once() -> None:
    assert acts({"a": View(FAILED, demand=990.0, until=1001.0), "b": OFF, "c": OFF}) == []
    assert acts({"a": View(FAILED, demand=990.0, until=1000.0), "b": OFF, "c": OFF}) == [(START, "a")]


def test_what_an_admin_started_beside_the_plan_is_left_and_nothing_is_added() -> None:
    views = {"a": BUSY, "b": BUSY, "c": BUSY}
    assert acts(views) == []
    services = {**THREE, "d": service("d")}
    assert acts({**views, "d": replace(OFF, demand=999.0)}, services=services) == [(REFUSE, "d")]


# --- any state ------------------------------------------------------------------------------------------------------------


def a_case(rng: random.Random) -> tuple[dict[str, Service], dict[str, Group], dict[str, View]]:
    names = "abcdef"[: rng.randint(2, 6)]
    groups = {}
    for kind in ("big", "small"):
        some = [frozenset(rng.sample(names, rng.randint(1, len(names)))) for _number in range(rng.randint(1, 4))]
        groups[kind] = Group(tuple(some))
    services, views = {}, {}
    for name in names:
        services[name] = service(
            name,
            set=rng.choice(("big", "big", "small", None)),
            priority=rng.choice((0, 0, 1)),
            idle_seconds=rng.choice((None, 0, 100, 1200)),
            minimum_seconds=rng.choice((0, 60)),
        )
        state = rng.choice((COLD, COLD, READY, READY, READY, STARTING, DRAINING, STOPPING, FAILED, UNKNOWN))
        ready = rng.choice((0.0, 900.0, 941.0, 970.0))
        views[name] = View(
            state,
            demand=rng.choice((None, rng.uniform(800, 1000))) if state not in (READY,) else None,
            running=rng.choice((0, 0, 1, 5)) if state in (READY, DRAINING) else 0,
            last=max(ready, rng.choice((0.0, 899.0, 990.0, 999.5))),
            ready=ready,
            looked=rng.choice((None, 900.0, 999.6)),
            busy=rng.choice((None, True, False, False)),
            unasked=rng.choice((None, 200.0, 950.0)),
            pin=rng.choice(("", "", "", "", WARM, COLD)),
            until=rng.choice((0.0, 1100.0)),
        )
    return services, groups, views


def wrong_with(
    services: dict[str, Service], groups: dict[str, Group], views: dict[str, View], result: list[Action]
) -> str:
    """Return the broken rules; empty without any."""
    if len({action.name for action in result}) != len(result):
        return "two things at once with one service"
    started = {action.name for action in result if action.what == START}
    waiting = [name for name in services if may_start(views[name])]
    for name in started:
        if name not in waiting:
            return f"{name} is started and may not be"
        group = groups.get(services[name].set or "")
        beside = {
            entry
            for entry in services
            if services[entry].set == services[name].set and (views[entry].state in HOLDING or entry in started)
        }
        if group is not None and not group.fits(beside):
            return f"{sorted(beside)} do not fit"
    for action in result:
        wrong = wrong_action(services, groups, views, action, waiting)
        if wrong:
            return f"{action}: {wrong}"
    first = min(waiting, key=lambda name: (views[name].demand, -services[name].priority, name), default=None)
    stopping = any(view.state == STOPPING for view in views.values()) or any(action.what == STOP for action in result)
    if stopping and started:
        return "memory comes back while it would load"
    if first is not None and first not in started and not stopping:
        beside = {
            name for name in services if services[name].set == services[first].set and views[name].state in HOLDING
        }
        group = groups.get(services[first].set or "")
        if group is None or group.fits(beside | {first}):
            return f"{first} waits longest, has room, and is not started"
    return ""


def may_start(view: View) -> bool:
    may = view.state == COLD or (view.state == FAILED and view.until <= NOW)
    return may and view.demand is not None and view.pin != COLD


def wrong_action(
    services: dict[str, Service],
    groups: dict[str, Group],
    views: dict[str, View],
    action: Action,
    waiting: list[str],
) -> str:
    view, its = views[action.name], services[action.name]
    if action.what in (START, REFUSE):
        return ""
    if action.what == RESUME:
        return "" if view.state == DRAINING else "it is not drained"
    if view.state not in (READY, DRAINING) or (action.what == DRAIN and view.state != READY):
        return "it is not up"
    if view.pin == WARM:
        return "its owner keeps it warm"
    stayed = NOW - view.ready >= its.minimum_seconds
    if not stayed and view.pin != COLD:
        return "it became ready a moment ago"
    group = groups.get(its.set or "")
    mates = {name for name in services if services[name].set == its.set and views[name].state in HOLDING}
    starting = [name for name in services if views[name].state == STARTING and views[name].demand is not None]
    needed = [name for name in (*waiting, *starting) if services[name].set == its.set]
    if group is None or group.fits(mates.union(needed)):
        needed = []
    if action.what == DRAIN:
        late = [name for name in needed if NOW - (views[name].demand or NOW) >= its.minimum_seconds]
        return "" if late else "nobody waits for its room for long enough"
    if view.running:
        return "requests run"
    idle = its.idle_seconds is not None and NOW - max(view.last, view.ready) >= its.idle_seconds
    if not (needed or idle or view.pin == COLD):
        return "nobody needs its room"
    if action.what == STOP:
        if view.looked is None or view.looked < view.last or NOW - view.looked > on_demand.FRESH_SECONDS:
            return "it was not asked"
        if view.busy or (view.busy is None and (view.unasked is None or NOW - view.unasked < (its.idle_seconds or 0))):
            return "it does not say that it is idle"
    return ""


COUNTS = [
    pytest.param(5_000, id="quick"),
    pytest.param(100_000, id="100,000", marks=[pytest.mark.slow, pytest.mark.nightly]),
]


@pytest.mark.parametrize("count", COUNTS)
def test_properties_of_single_decisions(count: int) -> None:
    """Each action must occur in enough of the states, so that the properties are really tested."""
    rng = random.Random(20261123 + count)
    seen: dict[str, int] = {}
    for number in range(count):
        services, groups, views = a_case(rng)
        loading = "spark-x.service" if rng.random() < 0.1 else ""
        actions = decide(NOW, services, groups, views, loading)
        wrong = wrong_with(services, groups, views, actions)
        if loading and {action.what for action in actions} & {STOP, DRAIN, LOOK}:
            wrong = "an engine loads, and memory would come back"
        assert not wrong, f"{wrong}: case {number}: {actions}\n{services}\n{groups}\n{views}"
        for action in actions:
            seen[action.what] = seen.get(action.what, 0) + 1
    assert set(seen) == {START, STOP, DRAIN, RESUME, REFUSE, LOOK} and min(seen.values()) > count / 200, seen


# --- hours --------------------------------------------------------------------------------------------------------------


@dataclass
class Played:
    """An engine of a simulated host."""

    load: float
    state: str = COLD
    ready: float = 0.0
    last: float = 0.0
    looked: float | None = None
    done: float = 0.0  # when the state that it is in ends
    waits: list[tuple[float, float]] = field(default_factory=list)  # since, seconds of work
    works: list[float] = field(default_factory=list)  # heap of ends
    stays: list[tuple[float, float]] = field(default_factory=list)  # ready, stopped


class Host:
    """Requests on a virtual clock, one engine per service; decisions are carried out and compared with the rules."""

    STOPS = 4.0

    def __init__(self, services: dict[str, Service], group: Group, rng: random.Random) -> None:
        self.services, self.groups = services, {"big": group}
        self.now, self.longest, self.served = 0.0, 0.0, 0
        self.engines = {name: Played(rng.uniform(20, 120)) for name in services}

    def ask(self, name: str, seconds: float) -> None:
        self.engines[name].waits.append((self.now, seconds))

    def view(self, engine: Played) -> View:
        return View(
            engine.state,
            demand=engine.waits[0][0] if engine.waits else None,
            running=len(engine.works),
            last=engine.last,
            ready=engine.ready,
            looked=engine.looked,
            busy=False if engine.looked is not None else None,
        )

    def step(self, seconds: float) -> None:
        self.now += seconds
        for engine in self.engines.values():
            while engine.works and engine.works[0] <= self.now:
                engine.last = max(engine.last, heapq.heappop(engine.works))
            if engine.state == STARTING and self.now >= engine.done:
                engine.state, engine.ready, engine.last, engine.looked = READY, self.now, self.now, None
            elif engine.state == STOPPING and self.now >= engine.done:
                engine.state = COLD
            if engine.state == READY:
                for since, work in engine.waits:
                    self.longest, self.served = max(self.longest, self.now - since), self.served + 1
                    heapq.heappush(engine.works, self.now + work)
                engine.waits = []
        actions = self.decide()
        if any(action.what == LOOK for action in actions):
            for action in actions:
                if action.what == LOOK:
                    self.engines[action.name].looked = self.now
            actions = self.decide()
        for action in actions:
            self.do(action)
        holding = [name for name, engine in self.engines.items() if engine.state in HOLDING]
        assert self.groups["big"].fits(holding), f"{holding} at {self.now}"

    def decide(self) -> list[Action]:
        return decide(self.now, self.services, self.groups, {name: self.view(e) for name, e in self.engines.items()})

    def do(self, action: Action) -> None:
        engine = self.engines[action.name]
        if action.what == START:
            assert engine.state == COLD
            engine.state, engine.done = STARTING, self.now + engine.load
        elif action.what == STOP:
            assert engine.state in (READY, DRAINING) and not engine.works
            engine.state, engine.done = STOPPING, self.now + self.STOPS
            engine.stays.append((engine.ready, self.now))
        elif action.what == DRAIN:
            engine.state = DRAINING
        elif action.what == RESUME:
            engine.state = READY


PATTERNS = ("storm", "alternating", "mixed")


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("keep", (1, 2))
def test_hours_of_requests(pattern: str, keep: int) -> None:
    """With any requests, no request waits for ever, no engine is stopped before its minimum stay, and running engines always fit."""
    rng = random.Random(f"{pattern} {keep}")
    names, longest_work = "abcd", 20.0
    services = {name: service(name, idle_seconds=1200) for name in names}
    host = Host(services, Group(tuple(map(frozenset, combinations(names, keep)))), rng)
    turn, requests = 0, 0
    while host.now < 2 * 3600:
        if pattern == "storm":  # never a moment without a request, for any of them
            asks = [(name, longest_work) for name in names if host.now % 4 == 0]
        elif pattern == "alternating":  # the next one as soon as the last one is answered
            idle = not any(engine.waits or engine.works for engine in host.engines.values())
            asks = [(names[turn % len(names)], 1.0)] if idle else []
            turn += len(asks)
        else:
            asks = [(rng.choice(names), rng.uniform(0.1, longest_work))] if rng.random() < 0.2 else []
        for name, seconds in asks:
            host.ask(name, seconds)
        requests += len(asks)
        host.step(1.0)
    while any(engine.waits for engine in host.engines.values()) and host.now < 3 * 3600:
        host.step(1.0)
    load = max(engine.load for engine in host.engines.values())
    turnaround = 60 + longest_work + host.STOPS + load + 2
    assert host.served == requests > 40  # one switch takes the minimum stay, a stop and a load
    assert host.longest <= 60 + len(names) * turnaround, host.longest
    stays = [stay for engine in host.engines.values() for stay in engine.stays]
    assert len(stays) > 5 and all(until - since >= 60 for since, until in stays)
    # For each running engine, at most as many changes as minimum stays fit into the time.
    assert len(stays) <= keep * host.now / 60


def test_no_room_is_given_up_when_all_fit() -> None:
    """Alternating requests for services that fit together never stop an engine."""
    rng = random.Random(7)
    services = {name: service(name) for name in "ab"}
    host = Host(services, Group((frozenset("ab"),)), rng)
    while host.now < 3600:
        if rng.random() < 0.05:
            host.ask(rng.choice("ab"), 3.0)
        host.step(1.0)
    assert not [stay for engine in host.engines.values() for stay in engine.stays] and host.longest < 130


# --- states of units ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("past", "unit", "state"),
    [
        (Past(UNKNOWN), {"ActiveState": "active"}, READY),
        (Past(UNKNOWN), {"ActiveState": "inactive"}, COLD),
        (Past(UNKNOWN), {"ActiveState": "failed"}, FAILED),
        (Past(UNKNOWN), {"ActiveState": "activating"}, STARTING),
        # Started by hand, stopped by hand, ended by itself.
        (Past(COLD), {"ActiveState": "activating"}, STARTING),
        (Past(READY), {"ActiveState": "deactivating"}, STOPPING),
        (Past(READY), {"ActiveState": "inactive"}, COLD),
        (Past(READY), {"ActiveState": "failed"}, FAILED),
        (Past(STOPPING), {"ActiveState": "failed"}, FAILED),
        (Past(DRAINING), {"ActiveState": "active"}, DRAINING),
        (Past(READY), {"ActiveState": "reloading"}, READY),
        # A start under way: its job waits, it has not begun, it began.
        (Past(STARTING, asked=999.0), {"ActiveState": "inactive"}, STARTING),
        (Past(STARTING, asked=900.0), {"ActiveState": "inactive", "Job": "17"}, STARTING),
        (Past(STARTING, asked=900.0), {"ActiveState": "inactive", "Job": "0"}, FAILED),
        # A start that somebody else has requested, and that waits.
        (Past(COLD), {"ActiveState": "inactive", "Job": "17"}, STARTING),
        (Past(FAILED, failed=True), {"ActiveState": "failed", "Job": "17"}, STARTING),
        (Past(STOPPING), {"ActiveState": "inactive", "Job": "17"}, COLD),
        (Past(STARTING, asked=999.0, began=True), {"ActiveState": "inactive"}, FAILED),
        (Past(STARTING, asked=999.0, failed=True), {"ActiveState": "failed"}, STARTING),
        (Past(STARTING, asked=990.0, failed=True), {"ActiveState": "failed"}, FAILED),
        (Past(STARTING, asked=999.0), {"ActiveState": "failed"}, FAILED),
        (Past(STARTING, began=True), {"ActiveState": "deactivating"}, STARTING),
        (Past(STARTING, began=True), {"ActiveState": "active"}, READY),
        # A stop requested by the program itself.
        (Past(STOPPING, asked=999.0, stop=True), {"ActiveState": "active"}, STOPPING),
        (Past(STOPPING, asked=900.0, stop=True), {"ActiveState": "active", "Job": "3"}, STOPPING),
        (Past(STOPPING, asked=900.0, stop=True), {"ActiveState": "active"}, READY),
        (Past(STOPPING, stop=True), {"ActiveState": "failed"}, COLD),
        (Past(COLD, failed=True), {"ActiveState": "failed"}, COLD),
        (Past(COLD), {"ActiveState": "failed"}, FAILED),
        # systemctl reset-failed, and a start that ended without the state "failed".
        (Past(FAILED, failed=True), {"ActiveState": "inactive"}, COLD),
        (Past(FAILED), {"ActiveState": "inactive"}, FAILED),
        (Past(READY), {"ActiveState": "nothing that is known"}, READY),
    ],
)
def test_the_state_of_a_unit(past: Past, unit: dict[str, str], state: str) -> None:
    assert follow(NOW, past, unit) == state


# --- settings -------------------------------------------------------------------------------------------------------------

GIVEN = {
    "services": {
        "a": {"unit": "spark-a.service", "engine": "http://127.0.0.1:18003", "model": "org/a", "set": "big", "further": 1},
        "b": {"unit": "spark-b.service", "engine": "http://[::1]:18004", "model": "b", "idle_seconds": None, "priority": -1},
    },
    "sets": {"big": {"keep": 2, "combinations": [["a", "b", "c"], ["a", "d"]]}},
}  # fmt: skip


def test_settings() -> None:
    services, groups = on_demand.from_mapping(GIVEN)
    assert services["a"] == service("a", engine="http://127.0.0.1:18003", model="org/a")
    assert services["b"].idle_seconds is None and services["b"].set is None and services["b"].hold_seconds == 900
    assert set(groups["big"].combinations) == {frozenset(entry) for entry in ("ab", "ac", "bc", "ad")}
    assert groups["big"].fits("c") and not groups["big"].fits("abc") and not groups["big"].fits("bd")
    assert on_demand.from_mapping({}) == ({}, {})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"engine": "https://127.0.0.1:1"}, "services.a.engine is no URL of the form"),
        ({"engine": "http://127.0.0.1"}, "services.a.engine is no URL of the form"),
        ({"engine": "http://[::1:80"}, "services.a.engine is no URL of the form"),
        ({"unit": None}, "services.a lacks unit"),
        ({"set": "none"}, "services.a.set: there is no set none"),
        ({"idle_seconds": "20"}, "services.a.idle_seconds is no number of at least 0"),
        ({"hold_seconds": True}, "services.a.hold_seconds is no number of at least 0"),
        ({"minimum_seconds": -1}, "services.a.minimum_seconds is no number"),
        ({"while_loading": "later"}, "services.a.while_loading is not one of wait, comments, reject"),
        ({"model": 5}, "services.a.model is no text"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], text: str) -> None:
    content = json.loads(json.dumps(GIVEN))
    content["services"]["a"].update(changes)
    with pytest.raises(Wrong, match=text):
        on_demand.from_mapping(content)


@pytest.mark.parametrize(
    "sets", ({"big": 1}, {"big": {"combinations": ["ab"]}}, {"big": {"combinations": [], "keep": 0}}, [1])
)
def test_sets_that_cannot_be(sets: Any) -> None:
    with pytest.raises(Wrong, match="sets"):
        on_demand.from_mapping({**GIVEN, "sets": sets})


# --- HTTP -------------------------------------------------------------------------------------------------------------------

POST = b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: a\r\nconnection: keep-alive\r\nContent-Length: 2\r\nX-Name: \xe9\r\n\r\n{}"


def test_a_head_is_read_once_it_is_there() -> None:
    for size in range(1, len(POST) - 2):
        assert on_demand.read_head(POST[:size]) is None
    head = on_demand.read_head(POST)
    assert head is not None and POST[head.size :] == b"{}" and head.length == 2 and head.demands
    assert (head.method, head.path, head.version, head.get("host"), head.get("none")) == (
        "POST", "/v1/chat/completions", "1.1", "a", ""
    )  # fmt: skip
    sent = on_demand.forwarded(head)
    assert sent == (
        b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nX-Name: \xe9\r\nConnection: close\r\n\r\n"
    )
    assert b"X-Name" not in on_demand.forwarded(head, ("x-name",))


@pytest.mark.parametrize(
    ("line", "path", "demands"),
    [
        ("GET /health HTTP/1.1", "/health", False),
        ("HEAD http://host:80/ping?a HTTP/1.1", "/ping", False),
        ("OPTIONS * HTTP/1.1", "*", False),
        ("GET http://host HTTP/1.0", "/", False),
        ("DELETE /v1/responses/1 HTTP/1.1", "/v1/responses/1", True),
    ],
)
def test_what_is_asked_for(line: str, path: str, demands: bool) -> None:
    head = on_demand.read_head(f"{line}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    assert head is not None and (head.path, head.demands, head.length) == (path, demands, None)


def test_a_websocket_is_work_and_keeps_its_headers() -> None:
    head = on_demand.read_head(
        b"GET /v1/realtime HTTP/1.1\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n"
    )
    assert head is not None and head.demands
    assert b"\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n" in on_demand.forwarded(head)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01", 400),  # TLS
        (b"GET / HTTP/1.1\n\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: \0\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * on_demand.MOST_HEAD, 431),
    ],
)
def test_heads_that_cannot_be(data: bytes, status: int) -> None:
    with pytest.raises(on_demand.BadHead) as wrong:
        on_demand.read_head(data)
    assert wrong.value.status == status


def test_answers_of_engines() -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello"
    assert on_demand.read_answer(answer) == (200, True, len(answer) - 8)
    assert on_demand.read_answer(answer[:40]) is None
    assert on_demand.read_answer(b"HTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n") == (404, False, 36)
    with pytest.raises(on_demand.BadHead):
        on_demand.read_answer(b"SSH-2.0\r\n\r\n")
    with pytest.raises(on_demand.BadHead):
        on_demand.read_answer(b"x" * on_demand.MOST_HEAD)


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        (b'{"stream": true}', True),
        (b'{"a":1,"stream":true}', True),
        (b'{"stream": false}', False),
        (b'{"messages": [{"content": "\\"stream\\": true"}]}', False),
        (b'{"a": {"stream": true}}', False),
        (b'["stream": true', False),
    ],
)
def test_who_wants_a_stream(body: bytes, stream: bool) -> None:
    assert on_demand.wants_stream(body) is stream


def test_errors_within_a_stream() -> None:
    def event(body: bytes) -> Any:
        text = on_demand.error_event(404, body)
        assert text.startswith("data: ") and text.endswith("\n\n")
        return json.loads(text[6:])["error"]

    assert event(b'{"error": {"message": "no model", "code": 404}}') == {"message": "no model", "code": 404}
    assert event(b'{"message": "no model"}')["message"] == "no model"
    assert event(b"<html>")["message"] == "<html>" and event(b"")["message"] == "the engine answered with HTTP 404"
    assert on_demand.chunk("\u00e9") == b"2\r\n\xc3\xa9\r\n"


def test_what_a_start_still_takes() -> None:
    assert on_demand.seconds_left([], 5) is None
    assert on_demand.seconds_left([100.0, 10.0, 60.0], 20) == 40
    assert on_demand.seconds_left([60.0], 61) is None  # nobody knows
