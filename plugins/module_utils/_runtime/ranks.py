# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rank of a model that spans hosts does next: the decisions, without sockets, containers and clocks.

Ranks of one model live and die together. vLLM does not see to that: the first rank answers /health with the other host
dead, the others outlive it, and a rank that is restarted alone hangs. So every host has a supervisor that tells the
others its state and takes the whole model up and down with them.

A supervisor process is an incarnation, named by a random C(boot). When all ranks hear each other, run the same settings,
the same image and the same weights, each of them pins the others' incarnations: these are the members. From then on one
rank that is silent, stops, or comes back as another incarnation ends the start or the engine on all hosts; all supervisors
exit, come back as new incarnations and meet again::

    waiting -> joined -> gating -> armed -> starting -> serving       any of them -> stopping (asked to) or down -> exit

A cold model on demand has no running supervisors. The first rank's is started for a request; its datagrams wake the others, whose
sockets systemd holds. None comes back by itself: a rank that the first one does not ask for ends, and the first one ends when all others
have let go of their memory. It does not wait for longer than ranks may be silent to meet them.
"""

from __future__ import annotations

import ipaddress
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from .._common.foreign_text import parse_json

MAGIC = "dgxspark-rank-1"

WAITING = "waiting"  # nothing is held; looks for the other ranks
JOINED = "joined"  # the members are pinned; other hosts have their turn at the gate
GATING = "gating"  # waits for the start lock and the memory of its host
ARMED = "armed"  # has both
STARTING = "starting"  # its container was started
SERVING = "serving"  # the model has answered
STOPPING = "stopping"  # was asked to stop
DOWN = "down"  # something failed, here or there
PHASES = (WAITING, JOINED, GATING, ARMED, STARTING, SERVING, STOPPING, DOWN)
UP = {phase: number for number, phase in enumerate(PHASES[:6])}

# What a tick asks the supervisor to do.
GATE = "gate"
START_FIRST = "start the first container"
AWAIT_NODES = "wait for the nodes of Ray"
START_ENGINE = "start the engine"
AWAIT_ANSWER = "wait for the answer"
ACTIVE = "active"
STOP = "stop"
EXIT = "exit"

EXIT_STOPPED = 0
EXIT_AGAIN = 1
EXIT_FOR_GOOD = 78  # EX_CONFIG; the unit does not restart after it

MAX_TEXT = 300  # of a reason: a datagram is to fit into one packet

KEPT_COLD = "the model is kept cold by"
"""Begins the problem of a rank that is not to run until somebody says so."""
PART_SECONDS = 155.0
"""Most seconds for the end of one container beyond its own time, with each call of Docker at its limit."""


def stop_seconds(parts: int, seconds: float) -> float:
    """Return how long a rank may take to end its containers. seconds: that a container is given to end by itself."""
    return parts * (seconds + PART_SECONDS)


@dataclass(frozen=True)
class Peer:
    """Another rank."""

    rank: int
    host: str
    address: str

    def __str__(self) -> str:
        return f"{self.host} (rank {self.rank})"


@dataclass(frozen=True)
class Link:
    """An interface that the engine sends by, to a neighbour. Signs of life may go another way, so that they do not show that it is out."""

    netdev: str
    host: str

    def __str__(self) -> str:
        return f"{self.netdev} has no link to {self.host}"


@dataclass(frozen=True)
class Config:
    """What the settings of a service say of its rank, and the times that only tests change."""

    service: str
    unit: str
    cluster: str
    rank: int
    address: str
    port: int
    peers: tuple[Peer, ...]
    fingerprint: str
    executor: str = "mp"
    parts: int = 1
    links: tuple[Link, ...] = ()
    peer_timeout: float = 45.0
    starts: int = 3
    start_interval: float = 9300.0
    fresh: float = 5.0  # a peer heard within this many seconds is there
    stable_after: float = 600.0  # an engine that served this long was no failed start
    engine_starts: int = 10  # of any cause, within:
    engine_interval: float = 3600.0
    on_demand: bool = False  # requests start it, at the first rank; who repeats a start that failed bounds them, too
    asked_for: float = 15.0  # a rank behind the first one waits this many seconds for it
    let_go: float = 200.0  # that the first one waits for the others to stop and to have their memory back

    @property
    def order(self) -> list[int]:
        """Ranks in the order of their addresses, which all services of a pair of hosts share.

        Two services that were to take the start locks of two hosts in different orders could wait for each other.
        """
        addresses = {peer.rank: peer.address for peer in self.peers}
        addresses[self.rank] = self.address
        return sorted(addresses, key=lambda rank: (int(ipaddress.ip_address(addresses[rank])), rank))


@dataclass(frozen=True)
class Facts:
    """The launch of this host. C(content) identifies the image's content: stores of Docker may name one image differently."""

    image: str = ""
    content: str = ""
    commit: str = ""
    problem: str = ""  # why nothing can be started here, or empty


@dataclass(frozen=True)
class Message:
    """One datagram."""

    cluster: str
    service: str
    rank: int
    boot: str
    seq: int
    phase: str
    fingerprint: str
    facts: Facts
    members: dict[int, str] | None  # the pinned incarnations
    reachable_peers: dict[int, str]  # the incarnations that were heard just now
    reason: str = ""
    final: bool = False  # it does not come back by itself
    released: bool = False  # its containers are gone, and their memory is back or no longer waited for
    freed_gib: float | None = None  # by how much the available memory grew meanwhile

    def encode(self) -> bytes:
        return json.dumps({"magic": MAGIC, **asdict(self)}, separators=(",", ":")).encode()


def decode(data: bytes) -> Message | None:
    """Read a datagram; None when it is not one of a supervisor of this version."""
    try:
        content = parse_json(data, "a datagram")
        if not isinstance(content, dict) or content.pop("magic", None) != MAGIC:
            return None
        content["facts"] = Facts(**{field.name: str(content["facts"][field.name]) for field in fields(Facts)})
        members = content["members"]
        content["members"] = None if members is None else _boots(members)
        content["reachable_peers"] = _boots(content["reachable_peers"])
        message = Message(**content)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    texts = (message.cluster, message.service, message.boot, message.fingerprint, message.reason)
    numbers = isinstance(message.rank, int) and isinstance(message.seq, int)
    numbers = numbers and (message.freed_gib is None or isinstance(message.freed_gib, (int, float)))
    return message if numbers and message.phase in PHASES and all(isinstance(text, str) for text in texts) else None


def _boots(content: Mapping[str, Any]) -> dict[int, str]:
    return {int(rank): str(boot) for rank, boot in content.items()}


@dataclass
class Attempts:
    """The starts that count against a limit. Recorded across incarnations, so times are from the host's monotonic clock."""

    fingerprint: str = ""
    failed: list[float] = field(default_factory=list)  # starts that this rank's own engine made fail
    starts: list[float] = field(default_factory=list)  # starts of the engine, successful or not
    words: dict[int, str] = field(default_factory=dict)  # what peers said last before they went away

    @classmethod
    def read(cls, content: Any, fingerprint: str, now: float) -> Attempts:
        """Return the recorded attempts; failures and messages of other settings do not count, nor times after C(now), of the same clock."""
        attempts = cls(fingerprint)
        if not isinstance(content, dict):
            return attempts
        same = content.get("fingerprint") == fingerprint
        for name in ("failed", "starts") if same else ("starts",):
            times = content.get(name)
            if isinstance(times, list):
                setattr(attempts, name, [float(at) for at in times if isinstance(at, (int, float)) and at <= now])
        words = content.get("words")
        if same and isinstance(words, dict):  # with other settings a number may mean another host
            attempts.words = {int(rank): str(text) for rank, text in words.items() if str(rank).isdigit()}
        return attempts


@dataclass
class _Received:
    message: Message
    at: float


class Rank:
    """The state of one rank. Events change it, C(tick) advances it and returns the next actions."""

    def __init__(self, config: Config, boot: str, attempts: Attempts, now: float) -> None:
        self.config = config
        self.boot = boot
        self.attempts = attempts
        self.born = now
        self.phase = WAITING
        self.facts: Facts | None = None
        self.members: dict[int, str] | None = None
        self.reason = ""
        self.final = False
        self.code: int | None = None
        self.received: dict[int, _Received] = {}
        self.peers = {peer.rank: peer for peer in config.peers}
        self._gone: dict[int, deque[str]] = {peer.rank: deque(maxlen=16) for peer in config.peers}
        self._seq = 0
        self._joined = now
        self._asked: float | None = None  # when the first rank was last heard to be up
        self._left: float | None = None  # since when it goes down
        self._served: float | None = None
        self.released = False
        self.freed_gib: float | None = None
        self.unheard = ""  # why it can neither hear nor be heard
        self.unlinked = ""  # which links are out, and since when
        self._unlinked_at = now
        self._gated = self._nodes = self._answered = self._engine = self._stopped = False
        self._todo: list[str] = []

    # --- messages -------------------------------------------------------------------------------------------------

    def message(self, now: float) -> Message:
        """Return the message to the other ranks, with the number of the last datagram."""
        reachable_peers = {
            rank: received.message.boot
            for rank, received in self.received.items()
            if now - received.at <= self.config.fresh
        }
        facts = self.facts or Facts(problem="has not looked for its image yet")
        if self.unlinked and not facts.problem:  # a broken link prevents a start, as a missing image does
            facts = replace(facts, problem=self.unlinked)
        return Message(
            cluster=self.config.cluster,
            service=self.config.service,
            rank=self.config.rank,
            boot=self.boot,
            seq=self._seq,
            phase=self.phase,
            fingerprint=self.config.fingerprint,
            facts=facts,
            members=self.members,
            reachable_peers=reachable_peers,
            reason=self.reason[:MAX_TEXT],
            final=self.final,
            released=self.released,
            freed_gib=self.freed_gib,
        )

    def speaks_to(self, rank: int, now: float) -> bool:
        """Tell whether a peer is sent anything: a datagram wakes one of a model on demand."""
        if not self.config.on_demand:
            return True
        if self.phase in (STOPPING, DOWN):
            heard = self.received.get(rank)
            # The first rank, a new one too, waits for this one; no datagram wakes it.
            is_fresh = heard is not None and now - heard.at <= self.config.peer_timeout
            return is_fresh and (rank == 0 or not self._gone_by(rank, now))
        # Ranks that wait for a missing one would wake each other for ever.
        was_asked = self._asked is not None and now - self._asked <= self.config.fresh
        return self.phase != WAITING or self.config.rank == 0 or was_asked

    def freed(self) -> dict[str, float | None]:
        """Return what came back on the hosts of the other members, GiB by host; None where a host did not say."""
        return {
            peer.host: self.received[rank].message.freed_gib if rank in self.received else None
            for rank, peer in self.peers.items()
        }

    def next_datagram(self, now: float) -> bytes:
        self._seq += 1
        return self.message(now).encode()

    def receive(self, message: Message, now: float) -> None:
        """Take in a peer's message, unless it is for another service, late, or from a past incarnation."""
        mine = (self.config.cluster, self.config.service)
        if (message.cluster, message.service) != mine or message.rank not in self.peers:
            return
        last = self.received.get(message.rank)
        if last is not None and last.message.boot == message.boot:
            if message.seq <= last.message.seq:
                return
        elif last is not None:
            if message.boot in self._gone[message.rank] and now - last.at <= self.config.fresh:
                return
            self._gone[message.rank].append(last.message.boot)
        self.received[message.rank] = _Received(message, now)
        if message.rank == 0 and message.phase in UP:
            self._asked = now
        if message.phase not in (STOPPING, DOWN):
            self.attempts.words.pop(message.rank, None)
            return
        if self.phase != STOPPING or not self.config.on_demand:  # an idle rank that all stopped together has no news
            self.attempts.words[message.rank] = _last_words(message)
        if message.final:
            self.attempts.starts.clear()  # somebody has to act before it is tried again, so the count begins afresh

    # --- what happens here ----------------------------------------------------------------------------------------

    def note_facts(self, facts: Facts, now: float) -> None:
        """The image and the weights of this host were looked at."""
        if self.phase == WAITING:
            self.facts = facts
        elif facts != self.facts and UP.get(self.phase, UP[STARTING]) < UP[STARTING]:
            changed = "the image or the weights of this host changed while the start was under way"
            self._leave(DOWN, facts.problem or changed, EXIT_AGAIN)

    def links(self, out: Sequence[Link], now: float) -> None:
        """Take in the state of this host's links; C(out) are the broken ones."""
        text = ", ".join(map(str, out))
        if text and not self.unlinked:
            self._unlinked_at = now
        self.unlinked = f"{text}: a cable of the ring is out" if text else ""

    def gated(self) -> None:
        self._gated = True

    def nodes_there(self) -> None:
        self._nodes = True

    def answered(self) -> None:
        self._answered = True

    def failed(self, text: str, now: float) -> None:
        """The start or the engine of this host failed, by itself."""
        if self.phase not in UP:
            return
        if self.unlinked:
            # It sends over that link: no fault of the engine, and no reason to give up.
            self._leave(DOWN, f"{self.unlinked}; {text}", EXIT_AGAIN)
            return
        if self.config.on_demand:
            self._leave(DOWN, text, EXIT_AGAIN)
            return
        if self._served is not None and now - self._served >= self.config.stable_after:
            self.attempts.failed.clear()
        since = now - self.config.start_interval
        self.attempts.failed = [*(at for at in self.attempts.failed if at > since), now]
        count = len(self.attempts.failed)
        if count >= self.config.starts:
            within = _span(self.config.start_interval)
            self._give_up(f"gave up after {count} failed starts within {within}, the last one: {text}")
        else:
            self._leave(DOWN, text, EXIT_AGAIN)

    def terminate(self) -> None:
        """Somebody stopped the unit. That is no failure, and a start after it begins afresh."""
        self.attempts.failed.clear()
        if self.phase in UP:
            self._leave(STOPPING, "it was stopped on purpose", EXIT_STOPPED)
        elif not self.final:
            self.code = EXIT_STOPPED

    def stopped(self, freed_gib: float | None = None) -> None:
        """No container of this rank is left, and their memory (freed_gib, None if not measured) is back or no longer waited for."""
        self._stopped = True
        # The first rank listens to the others to the end, and nothing of it is waited for.
        self.released, self.freed_gib = self.config.on_demand and self.config.rank > 0, freed_gib

    def _give_up(self, text: str) -> None:
        self.final = True
        self._leave(DOWN, text, EXIT_FOR_GOOD)

    def _leave(self, phase: str, reason: str, code: int) -> None:
        self.phase, self.reason, self.code = phase, reason, code
        self._todo.append(STOP)

    # --- what follows ---------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[str]:
        """Advance as far as possible and return the next actions."""
        if self.phase in UP and self.members is not None:
            lost = self._lost(now, self.members)
            if not lost and self.unlinked and now - self._unlinked_at > self.config.peer_timeout:
                self._leave(DOWN, f"{self.unlinked} for {now - self._unlinked_at:.0f} s", EXIT_AGAIN)
            elif lost:
                # A rank that requests start is fine when another one has ended it; the failed rank reports the error.
                cold = self.config.on_demand and self.config.rank > 0
                self._leave(DOWN, lost, EXIT_STOPPED if cold else EXIT_AGAIN)
        if self.phase == WAITING and self.config.on_demand:
            self._bound_wait(now)
        while self._advance(now):
            pass
        todo, self._todo = self._todo, []
        return todo

    def _bound_wait(self, now: float) -> None:
        """End a useless wait: the first rank waits for the others as long as a request waits, the others wait for the first rank."""
        if self.config.rank:
            if now - (self.born if self._asked is None else self._asked) > self.config.asked_for:
                self._leave(STOPPING, "the first rank does not ask for it", EXIT_STOPPED)
            return
        fresh = [received.message for received in self.received.values() if now - received.at <= self.config.fresh]
        causes = "; ".join(text for _key, text in self.waits(now))
        if any(received.facts.problem.startswith(KEPT_COLD) for received in fresh):
            self._leave(DOWN, causes, EXIT_AGAIN)
            return
        # A rank that is woken has to begin first, and a host that still stops an earlier start has to end that.
        stopping = any(peer.members is not None or (peer.phase not in UP and not peer.released) for peer in fresh)
        patience = self.config.peer_timeout + self.config.asked_for + (self.config.let_go if stopping else 0.0)
        if causes and now - self.born > patience:
            self._leave(DOWN, f"gave up after {now - self.born:.0f} s: {causes}", EXIT_AGAIN)

    def _gone_by(self, rank: int, now: float) -> bool:
        """Return whether a peer holds nothing of this start any more, as far as is known."""
        heard = self.received.get(rank)
        if heard is None or self.members is None or now - heard.at > self.config.peer_timeout:
            return True
        return heard.message.released or heard.message.boot != self.members[rank]

    def _lost(self, now: float, members: Mapping[int, str]) -> str:
        """Return which member is gone and the evidence; empty if all are present."""
        for rank, peer in self.peers.items():
            received = self.received[rank]
            message = received.message
            silent = now - received.at
            if message.boot != members[rank]:
                return f"{peer} was started anew"
            if message.phase not in UP:
                return f"{peer}: {_last_words(message)}"
            if silent > self.config.peer_timeout:
                return f"{peer} sent no heartbeat for {silent:.0f} s"
            if message.members is None and now - self._joined > self.config.peer_timeout:
                return f"{peer} did not join within {self.config.peer_timeout:.0f} s"
            if message.members is not None and message.members != members:
                return f"{peer} has joined other incarnations"
        return ""

    def _reached(self, rank: int, phase: str) -> bool:
        """Return whether a peer has reached C(phase), with the same members as this rank."""
        message = self.received[rank].message
        return message.members == self.members and UP.get(message.phase, -1) >= UP[phase]

    def _advance(self, now: float) -> bool:
        """Make one step; return whether there may be another."""
        before = self.phase
        if self.phase == WAITING:
            if not self.waits(now):
                self.members = {self.config.rank: self.boot}
                self.members.update({rank: received.message.boot for rank, received in self.received.items()})
                self.phase, self._joined = JOINED, now
        elif self.phase == JOINED:
            order = self.config.order
            if all(self._reached(rank, ARMED) for rank in order[: order.index(self.config.rank)]):
                self.phase = GATING
                self._todo.append(GATE)
        elif self.phase == GATING:
            if self._gated:
                self.phase = ARMED
        elif self.phase == ARMED:
            # Ray's own start waits for its nodes; without Ray the first rank comes last.
            needed = STARTING if self.config.rank == 0 and self.config.executor != "ray" else ARMED
            if all(self._reached(rank, needed) for rank in self.peers):
                self._start(now)
        elif self.phase == STARTING:
            self._serve(now)
        else:
            self._end(now)
        return self.phase != before

    def _serve(self, now: float) -> None:
        """Start the engine on the first rank; become active when the model has answered."""
        leads = self.config.rank == 0
        if leads and self._nodes and not self._engine:
            self._engine = True
            self._todo += [START_ENGINE, AWAIT_ANSWER]
        if self._answered if leads else self._reached(0, SERVING):
            self.phase, self._served = SERVING, now
            self._todo.append(ACTIVE)

    def _end(self, now: float) -> None:
        """Exit once the containers are stopped; the end of the first rank of a model on demand means that the memory of all hosts is free."""
        self._left = now if self._left is None else self._left
        alone = not self.config.on_demand or self.config.rank > 0 or now - self._left > self.config.let_go
        if self._stopped and (alone or all(self._gone_by(rank, now) for rank in self.peers)):
            self._stopped = False
            self._todo.append(EXIT)

    def _start(self, now: float) -> None:
        since = now - self.config.engine_interval
        self.attempts.starts = [at for at in self.attempts.starts if at > since]
        if len(self.attempts.starts) >= self.config.engine_starts and not self.config.on_demand:
            words = self.attempts.words.items()
            last = "; ".join(f"{self.peers[rank]}: {text}" for rank, text in words if rank in self.peers)
            self._give_up(
                f"gave up after {len(self.attempts.starts)} starts of the engine within {_span(self.config.engine_interval)} (each failed start can "
                "leave memory in use on a GB10)" + (f"; last reported: {last}" if last else "")
            )
            return
        self.attempts.starts.append(now)
        self.phase = STARTING
        self._todo.append(START_FIRST)
        if self.config.parts > 1:
            self._todo.append(AWAIT_NODES)
        elif self.config.rank == 0:
            self._todo.append(AWAIT_ANSWER)

    # --- reasons for a wait ---------------------------------------------------------------------------------------

    def waits(self, now: float) -> list[tuple[str, str]]:
        """Return the reasons why a rank waits: (key that distinguishes causes, text)."""
        reasons: list[tuple[str, str]] = []
        if self.facts is None:
            reasons.append(("facts", "looks for its image"))
        elif self.facts.problem:
            reasons.append((f"cannot start: {self.facts.problem}", self.facts.problem))
        if self.unlinked:
            reasons.append((f"cannot start: {self.unlinked}", self.unlinked))
        if self.unheard:
            return [(self.unheard, self.unheard), *reasons]  # nothing follows from the silence of the others
        for rank, peer in self.peers.items():
            cause = self._silence(peer, now) or self._refusal(peer, self.received[rank].message, now)
            if cause is not None:
                reasons.append((f"{rank} {cause[0]}", cause[1]))
        return reasons

    def _silence(self, peer: Peer, now: float) -> tuple[str, str] | None:
        received = self.received.get(peer.rank)
        silent = now - (received.at if received is not None else self.born)
        words = self.attempts.words.get(peer.rank)
        quiet = "" if received is not None and silent <= self.config.fresh else f"no heartbeat for {silent:.0f} s"
        if words and (quiet or (received is not None and received.message.phase not in UP)):
            return words, f"waits for {peer}: {quiet + '; last word: ' if quiet else ''}{words}"
        return ("silent", f"waits for {peer}: {quiet}") if quiet else None

    def _refusal(self, peer: Peer, message: Message, now: float) -> tuple[str, str] | None:
        """Return the reason against a start with a peer that is heard."""
        if message.facts.problem:
            return f"cannot start: {message.facts.problem}", f"waits for {peer}: {message.facts.problem}"
        for noun, fix, mine, theirs in self._differences(message):
            text = f"{noun} here and on {peer} differ: {mine or 'none'} here, {theirs or 'none'} there; {fix}"
            return f"{noun} {theirs}", text
        boots = {rank: received.message.boot for rank, received in self.received.items()}
        boots[self.config.rank] = self.boot
        if message.members is not None and any(message.members.get(rank) != boot for rank, boot in boots.items()):
            return "held", f"waits for {peer}: it has not let go of an earlier start yet ({message.phase})"
        for rank, boot in boots.items():
            if rank != peer.rank and message.reachable_peers.get(rank) != boot:
                who = "this host" if rank == self.config.rank else str(self.peers[rank])
                return f"deaf {rank}", f"waits for {peer}: it does not hear {who} (UDP port {self.config.port})"
        return None

    def _differences(self, message: Message) -> list[tuple[str, str, str, str]]:
        """Return (what differs, what helps, here, there)."""
        fix = f"run site.yml for all hosts of {self.config.cluster}"
        differences = []
        if message.fingerprint != self.config.fingerprint:
            differences.append(("the settings", fix, self.config.fingerprint, message.fingerprint))
        mine, theirs = self.facts, message.facts
        if mine is None or mine.problem:
            return differences
        same = bool(mine.content) and mine.content == theirs.content
        if mine.image != theirs.image and not same:
            image_fix = f"{fix}, with the image by digest or a fixed tag"
            differences.append(("the images", image_fix, mine.image, theirs.image))
        if mine.commit != theirs.commit:
            differences.append(("the weights", fix, mine.commit, theirs.commit))
        return differences

    def status(self, now: float) -> str:
        """One line for `systemctl status`."""
        if self.phase == WAITING:
            return "; ".join(text for _key, text in self.waits(now)) or "meets the others"
        if self.phase in (STOPPING, DOWN):
            return f"{self.phase}: {self.reason}"
        peer_names = ", ".join(peer.host for peer in self.peers.values())
        if self.phase == SERVING:
            return f"serving with {peer_names}"
        behind = [str(peer) for rank, peer in self.peers.items() if not self._reached(rank, ARMED)]
        late = ", ".join(behind) or peer_names
        return {
            JOINED: f"joined with {peer_names}; other hosts make room first: {late}",
            GATING: "waits for its turn and for memory on this host",
            ARMED: f"has its memory; waits for {late}",
            STARTING: f"starting with {peer_names}",
        }[self.phase]


def _last_words(message: Message) -> str:
    if message.final:
        return f"it does not come back by itself: {message.reason}"
    return f"went down: {message.reason}" if message.phase == DOWN else message.reason


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def read_config(service: Mapping[str, Any]) -> Config:
    """Return the settings of a service. Raises ValueError with the error."""
    rank = service.get("rank")
    if not isinstance(rank, Mapping):
        raise ValueError("this service has no ranks ('rank' is missing)")
    needed = ("cluster", "rank", "size", "executor", "address", "port", "peers", "fingerprint", "image", "parts")
    missing = [name for name in needed if rank.get(name) in (None, "", [])]
    if missing:
        raise ValueError(f"'rank' lacks {', '.join(missing)}")
    try:
        peers = tuple(Peer(int(peer["rank"]), str(peer["host"]), _address(peer["address"])) for peer in rank["peers"])
        config = Config(
            service=str(service["name"]),
            unit=str(service["unit"]),
            cluster=str(rank["cluster"]),
            rank=int(rank["rank"]),
            address=_address(rank["address"]),
            port=int(rank["port"]),
            peers=peers,
            fingerprint=str(rank["fingerprint"]),
            executor=str(rank["executor"]),
            parts=_parts(rank["parts"]),
            links=tuple(Link(str(link["netdev"]), str(link["host"])) for link in rank.get("links") or []),
            on_demand=bool(service.get("on_demand")),
        )
        limits = {"peer_timeout": "peer_timeout_seconds", "starts": "starts", "start_interval": "start_interval"}
        limited = {name: type(getattr(config, name))(rank[key]) for name, key in limits.items() if rank.get(key)}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"'rank' cannot be read: {error!r}") from error
    if sorted([config.rank, *(peer.rank for peer in peers)]) != list(range(int(rank["size"]))):
        raise ValueError(f"'rank' names the ranks {config.rank} and {[peer.rank for peer in peers]} of {rank['size']}")
    return replace(config, **limited)


def _address(content: Any) -> str:
    """The one way to write it that sockets use too."""
    return str(ipaddress.ip_address(str(content)))


def _parts(parts: Sequence[Mapping[str, Any]]) -> int:
    for part in parts:
        if not part["container"] or not all(isinstance(word, str) for word in part["argv"]) or not part["argv"]:
            raise ValueError("a part needs a container and an argv of texts")
    if len(parts) > 1 and not (parts[1].get("after") or {}).get("ray"):
        raise ValueError("the second part does not say what it comes after")
    return len(parts)
