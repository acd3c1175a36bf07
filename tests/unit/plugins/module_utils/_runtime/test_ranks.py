from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import ranks
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.ranks import (
    ACTIVE,
    ARMED,
    AWAIT_ANSWER,
    AWAIT_NODES,
    DOWN,
    EXIT,
    GATE,
    GATING,
    JOINED,
    SERVING,
    START_ENGINE,
    START_FIRST,
    STARTING,
    STOP,
    STOPPING,
    WAITING,
    Attempts,
    Config,
    Facts,
    Message,
    Peer,
    Rank,
    decode,
    read_config,
)

FACTS = Facts("sha256:aaa", "c0", "r0")
RESTART_SECONDS = 5


def config(rank: int = 0, size: int = 2, **changes: Any) -> Config:
    base = Config(
        service="big",
        unit="spark-big.service",
        cluster="pair",
        rank=rank,
        address=f"192.168.100.{10 + rank}",
        port=29470,
        peers=tuple(
            Peer(other, f"spark-{other + 1}", f"192.168.100.{10 + other}") for other in range(size) if other != rank
        ),
        fingerprint="f0",
    )
    return replace(base, **changes)


class World:
    """Hosts with one rank each, their containers, links and systemd; time advances in seconds."""

    def __init__(self, size: int = 2, **changes: Any) -> None:
        self.size, self.changes = size, changes
        self.now = 1000.0
        self.ranks: dict[int, Rank] = {}
        self.kept: dict[int, Attempts] = {}
        self.containers: dict[int, set[str]] = {rank: set() for rank in range(size)}
        self.facts = dict.fromkeys(range(size), FACTS)
        self.fingerprints = dict.fromkeys(range(size), "f0")
        self.back: dict[int, float] = {}  # when systemd starts a unit again
        self.failed: set[int] = set()  # units that are not started again
        self.cut: set[tuple[int, int]] = set()
        self.held_gates: set[int] = set()
        self.mute: set[int] = set()  # engines that never answer
        self.todo: list[tuple[int, str]] = []
        self.log: list[tuple[int, str]] = []
        self.boots = itertools.count(1)
        for rank in range(size):
            self.start(rank)

    def start(self, rank: int) -> Rank:
        self.failed.discard(rank)
        self.back.pop(rank, None)
        record = self.kept.get(rank)
        attempts = Attempts.read(
            None if record is None else json.loads(json.dumps(vars(record))), self.fingerprints[rank], self.now
        )
        made = config(rank, self.size, fingerprint=self.fingerprints[rank], **self.changes)
        self.ranks[rank] = Rank(made, f"boot{next(self.boots)}", attempts, self.now)
        self.ranks[rank].note_facts(self.facts[rank], self.now)
        return self.ranks[rank]

    def kill(self, rank: int) -> None:
        """End the supervisor at once; its unit removes the containers."""
        gone = self.ranks.pop(rank, None)
        if gone is not None:
            self.kept[rank] = gone.attempts
            self.containers[rank].clear()
            self.todo = [entry for entry in self.todo if entry[0] != rank]
            self.back[rank] = self.now + RESTART_SECONDS

    def stop(self, rank: int) -> None:
        if rank in self.ranks:
            self.ranks[rank].terminate()
        else:
            self.back.pop(rank, None)

    def end_engine(self, rank: int) -> None:
        if self.containers[rank]:
            self.containers[rank].clear()
            self.ranks[rank].failed("the container ended", self.now)

    def second(self) -> None:
        self.now += 1
        for rank, at in list(self.back.items()):
            if self.now >= at:
                self.start(rank)
        self.talk()
        for rank in range(self.size):
            if rank in self.ranks:
                self.todo += [(rank, action) for action in self.ranks[rank].tick(self.now)]
        todo, self.todo = self.todo, []
        for rank, action in todo:
            self.act(rank, action)
        self.check()

    def talk(self) -> None:
        for rank in list(self.ranks):
            message = decode(self.ranks[rank].next_datagram(self.now))
            assert message is not None
            for other in self.ranks:
                if other != rank and (rank, other) not in self.cut:
                    self.ranks[other].receive(message, self.now)

    def act(self, rank: int, action: str) -> None:
        if rank not in self.ranks:
            return
        me = self.ranks[rank]
        self.log.append((rank, action))
        if action == GATE:
            if rank in self.held_gates:
                self.todo.append((rank, action))
            else:
                me.gated()
        elif action in (START_FIRST, START_ENGINE) and me.phase == STARTING:
            self.containers[rank].add(action)
        elif action == AWAIT_NODES and me.phase == STARTING and rank == 0:
            if all(self.containers.values()):
                me.nodes_there()
            else:
                self.todo.append((rank, action))
        elif action == AWAIT_ANSWER and me.phase == STARTING:
            if all(self.containers.values()) and 0 not in self.mute:
                me.answered()
            else:
                self.todo.append((rank, action))
        elif action == STOP:
            self.containers[rank].clear()
            me.stopped()
        elif action == EXIT:
            self.talk()
            self.kept[rank] = me.attempts
            del self.ranks[rank]
            if me.code == ranks.EXIT_AGAIN:
                self.back[rank] = self.now + RESTART_SECONDS
            elif me.code == ranks.EXIT_FOR_GOOD:
                self.failed.add(rank)
                self.kept[rank] = Attempts(words=me.attempts.words)

    def check(self) -> None:
        """Containers of different groups never run together, and every container has a supervisor that knows it."""
        groups = set()
        for rank, running in self.containers.items():
            if running:
                assert rank in self.ranks and self.ranks[rank].phase in (STARTING, SERVING, STOPPING, DOWN)
                if self.ranks[rank].phase in (STARTING, SERVING):
                    members = self.ranks[rank].members
                    assert members is not None and members[rank] == self.ranks[rank].boot
                    groups.add(tuple(sorted(members.items())))
        started = {
            tuple(sorted((self.ranks[rank].members or {}).items()))
            for rank in self.ranks
            if self.ranks[rank].phase == SERVING
        }
        assert len(groups | started) <= 1

    def run(self, seconds: int) -> World:
        for _second in range(seconds):
            self.second()
        return self

    def phases(self) -> dict[int, str]:
        return {rank: me.phase for rank, me in sorted(self.ranks.items())}

    def serves(self) -> bool:
        return self.phases() == dict.fromkeys(range(self.size), SERVING)

    def until_serving(self, limit: int = 300) -> World:
        for _second in range(limit):
            if self.serves():
                return self
            self.second()
        raise AssertionError(f"never served: {self.phases()} {[me.status(self.now) for me in self.ranks.values()]}")


SIZES = pytest.mark.parametrize("size", [2, 3, 4])
KINDS = pytest.mark.parametrize("kind", [{}, {"executor": "ray"}], ids=["mp", "ray"])


def world(size: int = 2, **changes: Any) -> World:
    if changes.get("executor") == "ray":
        changes["parts"] = 1
        made = World(size, **changes)
        made.ranks[0].config = replace(made.ranks[0].config, parts=2)
        old = made.start

        def start(rank: int) -> Rank:
            me = old(rank)
            if rank == 0:
                me.config = replace(me.config, parts=2)
            return me

        made.start = start  # type: ignore[method-assign]
        return made
    return World(size, **changes)


# --- coming up ------------------------------------------------------------------------------------------------------


@SIZES
@KINDS
def test_all_come_up_together(size: int, kind: dict[str, Any]) -> None:
    hosts = world(size, **kind).until_serving()
    assert sorted(rank for rank, action in hosts.log if action == ACTIVE) == list(range(size))
    assert len({tuple(sorted((me.members or {}).items())) for me in hosts.ranks.values()}) == 1
    assert hosts.ranks[0].status(hosts.now).startswith("serving with spark-2")


@SIZES
def test_without_ray_the_first_rank_starts_last(size: int) -> None:
    log = world(size).until_serving().log
    starts = [rank for rank, action in log if action == START_FIRST]
    assert sorted(starts) == list(range(size)) and starts[-1] == 0
    assert next(rank for rank, action in log if action == AWAIT_ANSWER) == 0
    assert not any(action in (AWAIT_NODES, START_ENGINE) for _rank, action in log)


def test_with_ray_the_engine_starts_when_the_nodes_are_there() -> None:
    log = world(2, executor="ray").until_serving().log
    whats = [action for rank, action in log if rank == 0 and action != AWAIT_NODES]
    assert whats == [GATE, START_FIRST, START_ENGINE, AWAIT_ANSWER, ACTIVE]
    assert [action for rank, action in log if rank == 1] == [GATE, START_FIRST, ACTIVE]


def test_gates_are_passed_in_the_order_of_addresses_whoever_leads() -> None:
    """10.0.0.9 is before 10.0.0.10, and the head may be the later one."""
    first, second = Peer(0, "spark-1", "10.0.0.10"), Peer(1, "spark-2", "10.0.0.9")
    head = config(0, address=first.address, peers=(second,))
    assert head.order == config(1, address=second.address, peers=(first,)).order == [1, 0]


def test_a_host_whose_turn_has_not_come_holds_no_lock() -> None:
    hosts = world()
    hosts.held_gates.add(0)
    hosts.run(60)
    assert hosts.phases() == {0: GATING, 1: JOINED}
    assert hosts.ranks[1].status(hosts.now) == "joined with spark-1; other hosts make room first: spark-1 (rank 0)"
    assert hosts.ranks[0].status(hosts.now) == "waits for its turn and for memory on this host"
    hosts.held_gates.clear()
    hosts.until_serving()


def test_armed_says_for_whom_it_waits() -> None:
    hosts = world(3)
    hosts.held_gates.add(2)
    hosts.run(30)
    assert hosts.phases() == {0: ARMED, 1: ARMED, 2: GATING}
    assert hosts.ranks[0].status(hosts.now) == "has its memory; waits for spark-3 (rank 2)"
    assert not any(hosts.containers.values())


RING = tuple(ranks.Link(netdev, "spark-2") for netdev in ("enp1s0f0np0", "enP2p1s0f0np0"))


@pytest.mark.parametrize("seconds", [10, 44])
def test_a_cable_that_is_out_for_less_than_the_limit_changes_nothing(seconds: int) -> None:
    hosts = world(4).until_serving()
    hosts.ranks[1].links(RING, hosts.now)
    hosts.run(seconds)
    hosts.ranks[1].links((), hosts.now)
    assert hosts.run(60).serves() and not hosts.kept


def test_a_cable_of_a_ring_that_is_out_takes_all_down_and_is_what_all_wait_for() -> None:
    hosts = world(4).until_serving()
    boots = {rank: me.boot for rank, me in hosts.ranks.items()}
    for _second in range(120):
        if 1 in hosts.ranks:
            hosts.ranks[1].links(RING, hosts.now)
        hosts.second()
    assert hosts.phases() == dict.fromkeys(range(4), WAITING)
    assert not any(hosts.containers.values()) and not hosts.failed
    text = "enp1s0f0np0 has no link to spark-2, enP2p1s0f0np0 has no link to spark-2: a cable of the ring is out"
    assert text in hosts.ranks[1].status(hosts.now)
    assert f"waits for spark-2 (rank 1): {text}" in hosts.ranks[3].status(hosts.now)
    hosts.ranks[1].links((), hosts.now)
    hosts.until_serving()
    assert not set(boots.values()) & {me.boot for me in hosts.ranks.values()}


def test_an_engine_that_ends_for_a_cable_is_no_failed_start() -> None:
    """NCCL gives up a dead path before the limit is over; the rank still retries after any number of such ends."""
    hosts = world(4)
    for _time in range(5):
        hosts.until_serving()
        hosts.ranks[2].links(RING[:1], hosts.now)
        hosts.end_engine(2)
        hosts.run(3)
        assert not hosts.containers[2]
    hosts.until_serving()
    assert not hosts.failed and all(not me.attempts.failed for me in hosts.ranks.values())


@pytest.mark.parametrize("other", [1, 2, 3])
@pytest.mark.parametrize(("first", "second"), [("kill", "end"), ("end", "stop"), ("kill", "kill"), ("stop", "end")])
def test_two_faults_at_once_of_which_one_is_the_heads_end_with_all_serving(first: str, second: str, other: int) -> None:
    hosts = world(4).until_serving()
    before = {rank: me.boot for rank, me in hosts.ranks.items()}
    faults = {"kill": hosts.kill, "end": hosts.end_engine, "stop": hosts.stop}
    faults[first](0)
    faults[second](other)
    hosts.run(30)
    for rank, action in ((0, first), (other, second)):
        if action == "stop":
            assert rank not in hosts.ranks and not hosts.containers[rank]
            hosts.start(rank)
    hosts.until_serving()
    assert not {me.boot for me in hosts.ranks.values()} & set(before.values())


def test_a_peer_that_is_not_there_is_waited_for_without_holding_anything() -> None:
    hosts = World(2)
    hosts.stop(1)
    hosts.run(100)
    assert hosts.phases() == {0: WAITING} and hosts.ranks[0].members is None
    assert "waits for spark-2 (rank 1): " in hosts.ranks[0].status(hosts.now)
    assert not any(action == GATE for _rank, action in hosts.log)
    hosts.start(1)
    hosts.until_serving()


def test_a_rank_that_never_heard_its_peer_says_for_how_long() -> None:
    me = Rank(config(), "a", Attempts(), 0.0)
    me.note_facts(FACTS, 0.0)
    assert me.tick(12.0) == [] and me.status(12.0) == "waits for spark-2 (rank 1): no heartbeat for 12 s"


@pytest.mark.parametrize("deaf", [(0, 1), (1, 0)])
def test_one_way_links_do_not_start_anything(deaf: tuple[int, int]) -> None:
    hosts = World(2)
    hosts.cut.add(deaf)
    hosts.run(120)
    assert set(hosts.phases().values()) == {WAITING}
    status = hosts.ranks[deaf[0]].status(hosts.now)
    assert f"waits for spark-{deaf[1] + 1} (rank {deaf[1]}): it does not hear this host (UDP port 29470)" == status
    hosts.cut.clear()
    hosts.until_serving()


def test_of_three_two_that_do_not_hear_each_other_are_named() -> None:
    hosts = World(3)
    hosts.cut.add((1, 2))
    hosts.run(60)
    assert set(hosts.phases().values()) == {WAITING}
    assert "spark-3 (rank 2): it does not hear spark-2 (rank 1)" in hosts.ranks[0].status(hosts.now)


# --- facts that have to be equal ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(FACTS, image="sha256:bbb", content="c1"), ["the images", "sha256:aaa here", "sha256:bbb there"]),
        (replace(FACTS, commit="r1"), ["the weights", "r0 here", "r1 there"]),
        (replace(FACTS, commit=""), ["the weights", "r0 here", "none there"]),
    ],
)
def test_hosts_that_differ_wait_and_name_both_values(facts: Facts, words: list[str]) -> None:
    hosts = World(2)
    hosts.ranks[1].note_facts(facts, hosts.now)
    hosts.run(60)
    assert set(hosts.phases().values()) == {WAITING} and not hosts.log
    status = hosts.ranks[0].status(hosts.now)
    for word in [*words, "spark-2 (rank 1)", "run site.yml for all hosts of pair"]:
        assert word in status
    hosts.ranks[1].note_facts(FACTS, hosts.now)  # it was looked at again
    hosts.until_serving()


def test_other_settings_are_named_until_both_have_the_same() -> None:
    hosts = World(2)
    hosts.fingerprints[1] = "f1"
    hosts.kill(1)
    hosts.run(60)
    assert set(hosts.phases().values()) == {WAITING}
    assert "the settings here and on spark-2 (rank 1) differ: f0 here, f1 there" in hosts.ranks[0].status(hosts.now)
    hosts.fingerprints[0] = "f1"
    hosts.kill(0)
    hosts.until_serving()


def test_one_image_in_two_kinds_of_store_is_one_image() -> None:
    hosts = World(2)
    hosts.ranks[1].note_facts(replace(FACTS, image="sha256:bbb"), hosts.now)
    hosts.until_serving()
    empty = Facts("sha256:aaa"), Facts("sha256:bbb")  # nothing is known of the content: the ids are what counts
    hosts = World(2)
    for rank in (0, 1):
        hosts.ranks[rank].note_facts(empty[rank], hosts.now)
    hosts.run(30)
    assert set(hosts.phases().values()) == {WAITING}


def test_a_host_without_the_image_is_told_apart() -> None:
    hosts = World(2)
    hosts.ranks[1].note_facts(Facts(problem="the image x is not there"), hosts.now)
    hosts.run(20)
    assert hosts.ranks[1].status(hosts.now) == "the image x is not there"
    assert hosts.ranks[0].status(hosts.now) == "waits for spark-2 (rank 1): the image x is not there"


def test_nothing_starts_before_this_host_was_looked_at() -> None:
    me = Rank(config(), "a", Attempts(), 0.0)
    me.receive(Message("pair", "big", 1, "b", 1, WAITING, "f0", FACTS, None, {0: "a"}), 1.0)
    assert me.tick(1.0) == [] and me.status(1.0) == "looks for its image"
    assert me.message(1.0).facts.problem
    me.note_facts(FACTS, 1.0)
    assert me.tick(1.0) == [GATE]


def test_a_tag_that_moved_between_meeting_and_start_ends_the_start() -> None:
    hosts = World(2)
    hosts.held_gates.add(0)
    hosts.run(10)
    hosts.ranks[0].note_facts(replace(FACTS, image="sha256:new"), hosts.now)
    me = hosts.ranks[0]
    assert (me.phase, me.code, me.attempts.failed) == (DOWN, ranks.EXIT_AGAIN, [])
    assert me.status(hosts.now) == ("down: the image or the weights of this host changed while the start was under way")


def test_an_image_that_went_away_between_meeting_and_start_is_named() -> None:
    hosts = World(2)
    hosts.held_gates.add(0)
    hosts.run(10)
    hosts.ranks[0].note_facts(Facts(problem="the image x is not there"), hosts.now)
    assert hosts.ranks[0].reason == "the image x is not there"


def test_a_look_that_comes_late_does_not_touch_an_engine() -> None:
    hosts = World(2).until_serving()
    hosts.ranks[0].note_facts(replace(FACTS, image="sha256:new"), hosts.now)
    assert hosts.run(5).serves()


# --- losing one ----------------------------------------------------------------------------------------------------


def reach(hosts: World, phase: str) -> World:
    """Let the ranks reach C(phase) and stay there."""
    if phase in (GATING, JOINED):
        hosts.held_gates.add(0 if phase == GATING else 1)
    elif phase == STARTING:
        hosts.mute.add(0)
    hosts.run(30)
    return hosts


@SIZES
@pytest.mark.parametrize("phase", [GATING, STARTING, SERVING])
@pytest.mark.parametrize("how", ["kill", "stop", "cut", "end"])
def test_a_lost_rank_takes_all_down_and_all_come_back(size: int, phase: str, how: str) -> None:
    for victim in range(size):
        hosts = reach(World(size), phase)
        boots = {me.boot for me in hosts.ranks.values()}
        if how == "kill":
            hosts.kill(victim)
        elif how == "stop":
            hosts.stop(victim)
        elif how == "cut":
            hosts.cut = {pair for pair in itertools.permutations(range(size), 2) if victim in pair}
        else:
            hosts.end_engine(victim)
            if phase == GATING:
                hosts.ranks[victim].failed("the gate was refused", hosts.now)
        hosts.run(100)
        if how == "stop":
            assert victim not in hosts.ranks and not any(hosts.containers.values())
            assert set(hosts.phases().values()) == {WAITING}
            hosts.start(victim)
        if how == "cut":
            assert set(hosts.phases().values()) == {WAITING} and not any(hosts.containers.values())
        hosts.cut.clear()
        hosts.held_gates.clear()
        hosts.mute.clear()
        hosts.until_serving()
        if how != "kill" or phase != GATING:
            assert not boots & {me.boot for me in hosts.ranks.values()}


@SIZES
def test_a_short_break_changes_nothing(size: int) -> None:
    for phase in (GATING, STARTING, SERVING):
        hosts = reach(World(size), phase)
        boots = {me.boot for me in hosts.ranks.values()}
        hosts.cut = set(itertools.permutations(range(size), 2))
        hosts.run(40)
        hosts.cut.clear()
        hosts.held_gates.clear()
        hosts.mute.clear()
        hosts.until_serving()
        assert {me.boot for me in hosts.ranks.values()} == boots


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (lambda hosts: hosts.kill(1), "spark-2 (rank 1) was started anew"),
        (lambda hosts: hosts.stop(1), "spark-2 (rank 1): it was stopped on purpose"),
        (lambda hosts: hosts.end_engine(1), "spark-2 (rank 1): went down: the container ended"),
        (lambda hosts: hosts.cut.update({(0, 1), (1, 0)}), "spark-2 (rank 1) sent no heartbeat for 46 s"),
    ],
)
def test_the_reason_names_who_and_how(case: Any, words: str) -> None:
    hosts = World(2).until_serving()
    head = hosts.ranks[0]
    case(hosts)
    hosts.run(60)
    assert head.reason == words and head.code == ranks.EXIT_AGAIN


def test_what_a_peer_said_last_is_known_to_the_next_incarnation() -> None:
    hosts = World(2).until_serving()
    hosts.stop(1)
    hosts.run(30)
    assert "no heartbeat for" in (status := hosts.ranks[0].status(hosts.now))
    assert status.endswith("last word: it was stopped on purpose")
    hosts.start(1)
    assert hosts.until_serving().ranks[0].attempts.words == {}


def test_a_peer_that_pins_nobody_is_not_waited_for_with_the_lock() -> None:
    """A rank that receives datagrams but does not join, for any reason, is given up after the limit."""
    me = Rank(config(), "a", Attempts(), 0.0)
    me.note_facts(FACTS, 0.0)
    theirs = Message("pair", "big", 1, "b", 1, WAITING, "f0", FACTS, None, {0: "a"})
    me.receive(theirs, 1.0)
    assert me.tick(1.0) == [GATE]
    for second in range(2, 60):
        me.receive(replace(theirs, seq=second), float(second))
        me.tick(float(second))
    assert me.phase == DOWN and me.reason == "spark-2 (rank 1) did not join within 45 s"


def test_a_peer_that_joined_others_is_lost() -> None:
    me = Rank(config(), "a", Attempts(), 0.0)
    me.note_facts(FACTS, 0.0)
    me.receive(Message("pair", "big", 1, "b", 1, WAITING, "f0", FACTS, None, {0: "a"}), 1.0)
    me.tick(1.0)
    me.receive(Message("pair", "big", 1, "b", 2, JOINED, "f0", FACTS, {0: "old", 1: "b"}, {0: "a"}), 2.0)
    assert STOP in me.tick(2.0) and me.reason == "spark-2 (rank 1) has joined other incarnations"


def test_a_peer_that_still_holds_an_earlier_start_is_waited_for() -> None:
    me = Rank(config(), "a2", Attempts(), 0.0)
    me.note_facts(FACTS, 0.0)
    me.receive(Message("pair", "big", 1, "b", 1, SERVING, "f0", FACTS, {0: "a1", 1: "b"}, {0: "a2"}), 1.0)
    assert me.tick(1.0) == []
    assert me.status(1.0) == "waits for spark-2 (rank 1): it has not let go of an earlier start yet (serving)"


# --- datagrams ------------------------------------------------------------------------------------------------------


def test_what_is_said_survives_the_wire_and_fits_into_a_packet() -> None:
    me = World(4).until_serving().ranks[0]
    me.reason = "x" * 5000
    me.facts = Facts("sha256:" + "a" * 64, "c" * 16, "r" * 40)
    message = me.message(1.0)
    assert decode(message.encode()) == message
    assert len(message.encode()) < 1400


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"7",
        b"{}",
        b"[" * 4000,
        b'{"magic": "dgxspark-rank-1"}',
        b'{"magic": "dgxspark-rank-2"}',
        *(
            json.dumps(
                {"magic": "dgxspark-rank-1", **{**json.loads(World(2).ranks[0].next_datagram(0.0)), **change}}
            ).encode()
            for change in (
                {"magic": "other"},
                {"phase": "dancing"},
                {"phase": []},
                {"rank": "0"},
                {"seq": None},
                {"boot": 7},
                {"members": []},
                {"members": {"a": "b"}},
                {"reachable_peers": None},
                {"facts": None},
                {"facts": {"image": "x"}},
                {"more": 1},
                {"reason": {}},
            )
        ),
    ],
)
def test_what_is_no_datagram_of_a_supervisor_is_nothing(data: bytes) -> None:
    assert decode(data) is None


@pytest.mark.parametrize("change", [{"cluster": "other"}, {"service": "other"}, {"rank": 7}, {"rank": 0}])
def test_what_is_for_others_is_nothing(change: dict[str, Any]) -> None:
    me = Rank(config(), "a", Attempts(), 0.0)
    me.receive(replace(Message("pair", "big", 1, "b", 1, WAITING, "f0", FACTS, None, {0: "a"}), **change), 1.0)
    assert me.received == {}


def test_late_and_doubled_datagrams_are_nothing() -> None:
    hosts = World(2).until_serving()
    head, worker = hosts.ranks[0], hosts.ranks[1]
    old = decode(worker.next_datagram(hosts.now))
    new = decode(worker.next_datagram(hosts.now))
    assert old is not None and new is not None
    head.receive(new, hosts.now)
    head.receive(replace(old, phase=WAITING, members=None), hosts.now)
    head.receive(replace(new, phase=DOWN), hosts.now)
    assert head.tick(hosts.now) == [] and head.phase == SERVING


def test_a_past_incarnation_is_not_believed() -> None:
    me = Rank(config(), "a", Attempts(), 0.0)
    theirs = Message("pair", "big", 1, "b1", 50, WAITING, "f0", FACTS, None, {})
    me.receive(theirs, 1.0)
    me.receive(replace(theirs, boot="b2", seq=1), 2.0)
    me.receive(replace(theirs, seq=51), 3.0)
    assert me.received[1].message.boot == "b2"


def test_a_ghost_that_is_believed_is_forgotten_again() -> None:
    """A late datagram of an unknown incarnation comes between datagrams of the present one."""
    hosts = World(2).until_serving()
    ghost = decode(hosts.ranks[1].next_datagram(hosts.now))
    assert ghost is not None
    hosts.kill(1)
    hosts.kill(0)
    hosts.run(6)
    hosts.ranks[0].receive(replace(ghost, seq=10**6), hosts.now)
    hosts.until_serving()


def test_a_ghost_heard_first_joins_nothing() -> None:
    """A datagram of the past incarnation that arrives first: it does not hear this one, so nothing is pinned."""
    me = Rank(config(), "a2", Attempts(), 0.0)
    me.note_facts(FACTS, 0.0)
    me.receive(Message("pair", "big", 1, "b1", 50, WAITING, "f0", FACTS, None, {0: "a1"}), 1.0)
    assert me.tick(1.0) == [] and me.members is None
    me.receive(Message("pair", "big", 1, "b2", 1, WAITING, "f0", FACTS, None, {0: "a2"}), 1.5)
    assert me.tick(1.5) == [GATE] and me.members == {0: "a2", 1: "b2"}


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_three_failed_starts_are_the_end_and_the_other_side_says_why() -> None:
    hosts = World(2)
    for _attempt in range(3):
        hosts.until_serving()
        hosts.end_engine(1)
        hosts.run(3)
    hosts.run(60)
    assert hosts.failed == {1} and set(hosts.phases().values()) == {WAITING}
    status = hosts.ranks[0].status(hosts.now)
    assert "does not come back by itself: gave up after 3 failed starts within 155 min" in status
    assert status.endswith("the last one: the container ended")
    assert hosts.ranks[0].attempts.failed == [] and hosts.ranks[0].attempts.starts == []
    hosts.start(1)  # by hand: a new count
    hosts.until_serving()
    hosts.end_engine(1)
    hosts.run(30)
    hosts.until_serving()


def test_failures_of_the_other_do_not_count_here() -> None:
    hosts = World(2)
    for _attempt in range(2):
        hosts.until_serving()
        hosts.end_engine(0)
        hosts.run(3)
    hosts.until_serving()
    assert len(hosts.ranks[0].attempts.failed) == 2 and hosts.ranks[1].attempts.failed == []


def test_failures_long_ago_do_not_count() -> None:
    hosts = World(2, start_interval=1000.0)
    for _attempt in range(5):
        hosts.until_serving()
        hosts.end_engine(1)
        hosts.run(550)
    assert not hosts.failed


def test_an_engine_that_served_for_long_was_no_failed_start() -> None:
    hosts = World(2, stable_after=100.0)
    for _attempt in range(5):
        hosts.until_serving().run(110)
        hosts.end_engine(1)
        hosts.run(3)
    assert not hosts.failed
    assert hosts.until_serving() and len(hosts.ranks[1].attempts.failed) == 1


def test_a_stop_on_purpose_begins_afresh_and_fails_nothing() -> None:
    hosts = World(2)
    for _attempt in range(2):
        hosts.until_serving()
        hosts.end_engine(1)
        hosts.run(3)
    hosts.until_serving()
    hosts.stop(1)
    hosts.run(10)
    assert hosts.kept[1].failed == [] and 1 not in hosts.failed


def test_other_settings_begin_afresh() -> None:
    attempts = {"fingerprint": "f0", "failed": [1.0, 2.0], "starts": [1.0, 3.0], "words": {"1": "x"}}
    same, other = Attempts.read(attempts, "f0", 10.0), Attempts.read(attempts, "f1", 10.0)
    assert (same.failed, same.starts, same.words) == ([1.0, 2.0], [1.0, 3.0], {1: "x"})
    assert (other.failed, other.starts, other.words) == ([], [1.0, 3.0], {})
    assert Attempts.read(attempts, "f0", 2.5).starts == [1.0]  # the clock of another boot


@pytest.mark.parametrize(
    "attempts", [None, [], "x", {}, {"failed": "x", "starts": [None], "words": []}, {"words": {"a": 1}}]
)
def test_a_damaged_record_is_no_record(attempts: Any) -> None:
    read = Attempts.read(attempts, "f0", 1.0)
    assert (read.failed, read.starts, read.words) == ([], [], {})


def test_the_bound_is_told_in_a_cluster_that_had_more_ranks() -> None:
    hosts = World(2)
    hosts.kill(0)
    hosts.kept[0] = Attempts("f0", starts=[hosts.now - number for number in range(10)], words={3: "went down"})
    hosts.start(0)
    hosts.run(60)
    assert 0 in hosts.failed and "gave up after 10 starts" in hosts.ranks[1].status(hosts.now)


def test_starts_of_any_cause_have_a_bound_of_their_own() -> None:
    hosts = World(2)
    for _attempt in range(10):
        hosts.until_serving()
        hosts.kill(0)
        hosts.run(3)
    hosts.run(60)
    assert hosts.failed and not any(hosts.containers.values())
    (gone,) = hosts.failed
    status = hosts.ranks[1 - gone].status(hosts.now)
    assert "gave up after 10 starts of the engine within 60 min" in status
    assert hosts.ranks[1 - gone].attempts.starts == []  # so that a start by hand there is not refused here
    hosts.start(gone)
    hosts.until_serving()


def test_ten_starts_in_more_than_an_hour_are_none_too_many() -> None:
    hosts = World(2)
    for _attempt in range(15):
        hosts.until_serving()
        hosts.kill(0)
        hosts.run(400)
    assert not hosts.failed


def test_stopping_while_it_goes_down_is_a_stop() -> None:
    me = World(2).until_serving().ranks[1]
    me.failed("the container ended", 2000.0)
    me.terminate()
    assert me.code == ranks.EXIT_STOPPED
    assert me.phase == DOWN


def test_what_comes_after_the_end_changes_nothing() -> None:
    hosts = World(2).until_serving()
    me = hosts.ranks[0]
    me.terminate()
    before = (me.phase, me.reason, me.code, list(me.attempts.failed))
    me.failed("the container ended", hosts.now)
    me.answered()
    me.gated()
    me.note_facts(Facts(), hosts.now)
    assert (
        (me.phase, me.reason, me.code, me.attempts.failed) == before == (STOPPING, "it was stopped on purpose", 0, [])
    )
    assert me.tick(hosts.now) == [STOP] and me.tick(hosts.now) == []
    me.stopped()
    assert me.tick(hosts.now) == [EXIT] and me.tick(hosts.now) == []


# --- random events -------------------------------------------------------------------------------------------------

EVENTS = ("kill", "stop", "start", "cut", "heal", "hold", "let", "mute", "unmute", "end", "wait", "long")


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[tuple[str, int, int]]]:
    size = draw(st.sampled_from([2, 2, 3, 3, 4, 5, 6, 7, 8]))  # large ones take longer, and shrink to small ones
    event = st.tuples(st.sampled_from(EVENTS), st.integers(0, size - 1), st.integers(0, size - 1))
    return size, draw(st.lists(event, max_size=25))


def happen(hosts: World, event: str, rank: int, other: int) -> None:
    if event == "kill":
        hosts.kill(rank)
    elif event == "stop":
        hosts.stop(rank)
    elif event == "start" and rank not in hosts.ranks:
        hosts.start(rank)
    elif event == "cut":
        hosts.cut.add((rank, other))
    elif event == "heal":
        hosts.cut.clear()
    elif event == "hold":
        hosts.held_gates.add(rank)
    elif event == "let":
        hosts.held_gates.discard(rank)
    elif event in ("mute", "unmute"):
        (hosts.mute.add if event == "mute" else hosts.mute.discard)(0)
    elif event == "end":
        hosts.end_engine(rank)
    hosts.run({"wait": 7, "long": 70}.get(event, 1))


def all_serve_again(size: int, history: list[tuple[str, int, int]]) -> None:
    """World.check verifies each second that no two groups run; at the end all ranks run as one group."""
    hosts = World(size, starts=10**6, engine_starts=10**6)  # with no bound it must always come back
    for event in history:
        happen(hosts, *event)
    hosts.cut.clear()
    hosts.held_gates.clear()
    hosts.mute.clear()
    hosts.run(3)
    for rank in range(size):
        if rank not in hosts.ranks and rank not in hosts.back:
            hosts.start(rank)
    hosts.until_serving()


@settings(max_examples=50)
@given(histories())
def test_after_anything_two_to_eight_serve_again(given_history: tuple[int, list[tuple[str, int, int]]]) -> None:
    all_serve_again(*given_history)


@pytest.mark.slow
@pytest.mark.nightly
@settings(max_examples=1500)
@given(histories())
def test_after_anything_else_they_serve_again(given_history: tuple[int, list[tuple[str, int, int]]]) -> None:
    all_serve_again(*given_history)


# --- on demand ------------------------------------------------------------------------------------------------------


class Demand(World):
    """The same for a model on demand: nothing runs, a request starts the first rank, and its datagrams start the others."""

    def __init__(self, size: int = 2, **changes: Any) -> None:
        self.ends: dict[int, list[int | None]] = {rank: [] for rank in range(size)}  # with which code
        self.slow: dict[int, int] = {}  # seconds that a stop of a rank, and the way of its memory, still takes
        self.unreachable: set[int] = set()  # hosts that are off
        self.woken = 0
        super().__init__(size, on_demand=True, **changes)
        self.ranks.clear()

    def ask(self) -> Demand:
        if 0 not in self.ranks:
            self.start(0)
        return self

    def talk(self) -> None:
        for rank in list(self.ranks):
            message = decode(self.ranks[rank].next_datagram(self.now))
            assert message is not None
            for other in range(self.size):
                if other == rank or (rank, other) in self.cut or not self.ranks[rank].speaks_to(other, self.now):
                    continue
                if other not in self.ranks and other and other not in self.unreachable:
                    self.woken += 1
                    self.start(other)
                if other in self.ranks:
                    self.ranks[other].receive(message, self.now)

    def act(self, rank: int, action: str) -> None:
        me = self.ranks.get(rank)
        if me is not None and action == STOP:
            self.containers[rank].clear()
            if self.slow.get(rank, 0) > 0:
                self.slow[rank] -= 1
                self.todo.append((rank, action))
            else:
                me.stopped(40.0 + rank)
        elif me is not None and action == EXIT:
            self.talk()
            self.kept[rank] = me.attempts
            del self.ranks[rank]
            self.ends[rank].append(me.code)
        else:
            super().act(rank, action)

    def kill(self, rank: int) -> None:
        super().kill(rank)
        self.back.clear()

    def cold(self) -> bool:
        return not self.ranks and not any(self.containers.values())

    def until_cold(self, limit: int = 400) -> Demand:
        for _second in range(limit):
            if self.cold():
                return self
            self.second()
        raise AssertionError(f"never cold: {self.phases()} {[me.status(self.now) for me in self.ranks.values()]}")


def demand(size: int = 2, executor: str = "mp") -> Demand:
    made = Demand(size, executor=executor)
    if executor == "ray":
        old = made.start

        def start(rank: int) -> Rank:
            me = old(rank)
            me.config = replace(me.config, parts=1 if rank else 2)
            return me

        made.start = start  # type: ignore[method-assign]
    return made


EXECUTORS = pytest.mark.parametrize("executor", ["mp", "ray"])


@SIZES
@EXECUTORS
def test_a_request_starts_all_ranks_and_a_stop_of_the_first_one_ends_all(size: int, executor: str) -> None:
    hosts = demand(size, executor)
    assert hosts.run(100).cold()
    hosts.ask().until_serving(60)
    hosts.run(1000)
    assert hosts.serves() and not any(hosts.ends.values())
    hosts.stop(0)
    hosts.until_cold(30)
    assert hosts.ends == {rank: [ranks.EXIT_STOPPED] for rank in range(size)}
    hosts.woken = 0
    assert hosts.run(500).cold() and hosts.woken == 0
    hosts.ask().until_serving(60)


def test_the_first_rank_ends_when_the_memory_of_all_hosts_is_back_and_knows_how_much() -> None:
    hosts = demand(3)
    hosts.ask().until_serving()
    hosts.slow = {1: 3, 2: 50}
    head = hosts.ranks[0]
    hosts.stop(0)
    hosts.run(20)
    assert hosts.phases() == {0: STOPPING, 2: DOWN} and not any(hosts.containers.values())
    hosts.until_cold(60)
    assert head.freed() == {"spark-2": 41.0, "spark-3": 42.0}


def test_a_host_that_goes_while_all_stop_is_not_waited_for_without_an_end() -> None:
    hosts = demand()
    hosts.ask().until_serving()
    head = hosts.ranks[0]
    hosts.slow = {1: 10**6}
    hosts.stop(0)
    hosts.run(5)
    hosts.unreachable.add(1)
    hosts.kill(1)
    hosts.until_cold(60)
    assert head.freed() == {"spark-2": None}
    hosts = demand()
    hosts.ask().until_serving()
    hosts.slow = {1: 10**6}
    hosts.stop(0)
    hosts.run(195)
    assert hosts.phases()[0] == STOPPING
    hosts.run(15)
    assert 0 not in hosts.ranks


def test_a_start_with_a_host_that_is_off_fails_with_the_reason() -> None:
    hosts = demand()
    hosts.unreachable.add(1)
    hosts.ask()
    head = hosts.ranks[0]
    hosts.run(55)
    assert hosts.phases() == {0: WAITING}
    hosts.until_cold(20)
    assert (
        hosts.ends[0] == [ranks.EXIT_AGAIN] and "no heartbeat for" in head.reason and "spark-2 (rank 1)" in head.reason
    )
    assert head.reason.startswith("gave up after 61 s: ")
    hosts.unreachable.clear()
    hosts.ask().until_serving(60)


def test_hosts_that_differ_do_not_start_and_end_by_themselves() -> None:
    hosts = demand()
    hosts.facts[1] = replace(FACTS, image="sha256:bbb", content="c1")
    hosts.ask()
    head = hosts.ranks[0]
    hosts.until_cold(100)
    assert "the images here and on spark-2 (rank 1) differ" in head.reason
    assert hosts.ends == {0: [ranks.EXIT_AGAIN], 1: [ranks.EXIT_STOPPED]}


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_lost_rank_brings_all_down_and_the_next_request_all_back(rank: int) -> None:
    hosts = demand(3)
    for _time in range(12):  # without a bound: who repeats a start bounds them
        hosts.ask().until_serving()
        hosts.end_engine(rank)
        hosts.until_cold(40)
    assert hosts.ends[0] == [ranks.EXIT_AGAIN] * 12
    assert hosts.ends[rank] == [ranks.EXIT_AGAIN] * 12
    assert all(hosts.ends[other] == [ranks.EXIT_STOPPED] * 12 for other in {1, 2} - {rank})
    hosts.ask().until_serving()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_supervisor_that_is_killed_takes_all_down(rank: int) -> None:
    hosts = demand(3)
    hosts.ask().until_serving()
    head = hosts.ranks[0]
    hosts.kill(rank)
    hosts.until_cold(120)
    assert rank == 0 or "was started anew" in head.reason
    hosts.ask().until_serving(120)


def test_a_request_that_comes_while_ranks_still_stop_waits_for_them() -> None:
    hosts = demand()
    hosts.ask().until_serving()
    hosts.slow = {1: 100}
    hosts.kill(0)
    hosts.run(2)
    hosts.ask()
    hosts.run(90)
    assert 0 in hosts.ranks and not hosts.serves()
    hosts.until_serving(120)


def test_a_rank_that_nobody_asks_for_is_silent_and_ends() -> None:
    hosts = demand(4)
    hosts.start(1)
    hosts.run(10)
    assert hosts.phases() == {1: WAITING}  # it wakes no other one
    assert hosts.run(10).cold() and hosts.ends[1] == [ranks.EXIT_STOPPED] and hosts.woken == 0


def test_an_idle_stop_is_no_last_word_that_a_later_start_would_tell() -> None:
    hosts = demand()
    hosts.ask().until_serving()
    hosts.stop(0)
    hosts.until_cold()
    assert hosts.kept[0].words == {}


def test_a_supervisor_of_before_says_nothing_of_its_memory() -> None:
    content = json.loads(config_message().encode())
    del content["released"], content["freed_gib"]  # of an earlier version
    old = decode(json.dumps(content).encode())
    assert old is not None and (old.released, old.freed_gib) == (False, None)
    assert decode(json.dumps({**content, "freed_gib": "much"}).encode()) is None


def config_message() -> Message:
    return Rank(config(), "boot", Attempts("f0"), 0.0).message(0.0)


@st.composite
def demands(draw: st.DrawFn) -> tuple[int, list[tuple[str, int, int]]]:
    size = draw(st.integers(2, 4))
    event = st.tuples(
        st.sampled_from(["ask", "stop", "kill", "end", "cut", "mute", "slow", "run"]),
        st.integers(0, size - 1),
        st.integers(1, 60),
    )
    return size, draw(st.lists(event, max_size=12))


def befall(hosts: Demand, action: str, rank: int, seconds: int) -> None:
    if action == "ask":
        hosts.ask()
    elif action == "stop":
        hosts.stop(rank)
    elif action == "kill":
        hosts.kill(rank)
    elif action == "end":
        hosts.end_engine(rank)
    elif action == "cut":
        hosts.cut ^= {(rank, other) for other in range(hosts.size)}
    elif action == "mute":
        hosts.mute ^= {rank}
    elif action == "slow":
        hosts.slow[rank] = seconds
    hosts.run(seconds if action == "run" else seconds % 7)


@settings(max_examples=60)
@given(demands())
def test_after_anything_a_model_on_demand_can_be_cold_and_can_serve(
    given_history: tuple[int, list[tuple[str, int, int]]],
) -> None:
    """World.check verifies each second that no two groups run. At the end a stop ends all ranks, none wakes by itself, and a request starts all."""
    size, history = given_history
    hosts = Demand(size)
    for event in history:
        befall(hosts, *event)
    hosts.cut.clear()
    hosts.mute.clear()
    hosts.stop(0)
    hosts.until_cold()
    hosts.woken = 0
    assert hosts.run(60).cold() and hosts.woken == 0
    hosts.ask().until_serving(120)


# --- settings -------------------------------------------------------------------------------------------------------


def service(**changes: Any) -> dict[str, Any]:
    rank = {
        "cluster": "pair_a",
        "rank": 0,
        "size": 2,
        "executor": "mp",
        "address": "192.168.100.10",
        "port": 29470,
        "peers": [{"rank": 1, "host": "spark-2", "address": "192.168.100.11"}],
        "fingerprint": "0123456789abcdef",
        "image": "sha256:abc",
        "model": {"repo": "org/name", "revision": "main", "hub": "/srv/huggingface/hub"},
        "peer_timeout_seconds": 30,
        "starts": 4,
        "start_interval": 5000,
        "parts": [{"container": "spark-x", "argv": ["/usr/bin/docker", "run"]}],
        **changes,
    }
    return {"name": "x", "unit": "spark-x.service", "rank": rank}


def test_settings_are_read() -> None:
    made = read_config(service())
    assert (made.service, made.cluster, made.peers) == ("x", "pair_a", (Peer(1, "spark-2", "192.168.100.11"),))
    assert (made.peer_timeout, made.starts, made.start_interval, made.parts) == (30.0, 4, 5000.0, 1)
    assert read_config(service(peer_timeout_seconds=None)).peer_timeout == 45.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peers": []}, "lacks peers"),
        ({"fingerprint": "", "port": None}, "lacks port, fingerprint"),
        ({"address": "spark-1"}, "spark-1"),
        ({"size": 3}, "names the ranks 0 and [1] of 3"),
        ({"rank": 1}, "names the ranks 1 and [1] of 2"),
        ({"peers": [{"rank": 1}]}, "host"),
        ({"parts": [{"container": "x", "argv": []}]}, "argv"),
        ({"parts": [{"container": "x", "argv": ["a"]}, {"container": "y", "argv": ["a"]}]}, "comes after"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_config(service(**changes))
    assert words in str(caught.value)


def test_a_service_without_ranks_has_no_supervisor() -> None:
    with pytest.raises(ValueError, match="no ranks"):
        read_config({"name": "x", "unit": "spark-x.service"})
