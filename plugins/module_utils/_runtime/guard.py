# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard of a host whose engines serve: steps against a shortage of memory. A pure function, C(decide): state in, steps out.

On a GB10 the GPU allocates from the memory of the host, and a host without memory freezes without a word. So steps are taken
before, the mildest first, one at a time: give the page cache back; ask what keeps models for later to unload them; stop engines that are on
demand and idle; let the gateway give the engine in question no new requests; restart the engine that uses more than its plan; last, stop
the least important one.

A healthy engine inside its plan is never stopped while another step is left, nor when the memory went to other processes than this host's
services: then the guard names them. An account of the memory that is missing, old or incomplete is "not known", and no engine is
touched for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

GIB = 2**30

CALM, SHORT, CRITICAL = "calm", "short", "critical"
LEVELS = (CALM, SHORT, CRITICAL)
DROP, UNLOAD, IDLE, REFUSE, RESTART, STOP = "drop", "unload", "idle", "refuse", "restart", "stop"
"""Steps against a shortage, the mildest first."""
ADMIT, NAME = "admit", "name"
"""Harmless steps: requests are admitted again; the holder of the memory is named, or reported as unknown."""
STEPS = (DROP, UNLOAD, IDLE, REFUSE, RESTART, STOP, ADMIT, NAME)

MILD_SECONDS = 5.0
"""Between a mild step and the next one, so that it shows in the memory before more is done."""
URGENT_SECONDS = 1.0
"""The same while memory is critical."""
SETTLE_SECONDS = 20.0
"""After an engine was restarted or stopped, an idle one too: a process of tens of GiB gives them back over seconds."""
LASTING_SECONDS = 30.0
"""A shortage that is not critical has to last so long before an engine is restarted for it."""
ACCOUNT_SECONDS = 60.0
"""An account of the memory that is older is not gone by."""
AHEAD_SECONDS = 2.0
"""Falling memory is judged by the rest after so many seconds: 7 GiB within 3 s were measured before a freeze."""
NAME_SECONDS = 600.0
"""Between two lines about who took the memory."""
HOUR, DAY = 3600.0, 86400.0
LONGEST_CALM = 960.0
"""Seconds of calm before a shortage is over, at most. Each refusal, and each stop of an idle engine, within an hour doubles them."""
STALL_FACTOR = 4.0
"""So many times the pressure that makes memory short makes it critical."""


@dataclass(frozen=True)
class Settings:
    """What the guard goes by.

    floor_gib: C(MemAvailable) below which memory is short while all engines serve; start_floor_gib: while one starts. last_gib: below
    which it is critical. pressure_percent: share of time in which all tasks waited for memory (PSI, full, 10 s), from which it is short;
    swap_percent: the same for swap in use; both count below twice the floor only. free_floor_gib, contiguous_floor_gib: C(MemFree), and of it
    blocks that the driver can use, below which the cache is dropped, and memory compacted. calm_seconds: without a shortage before requests
    are admitted again. idle, refuse, restart, stop: whether these steps are taken. stop_for_others: stop an engine inside its plan also when something
    else took the memory. cooldown_minutes, max_restarts: least time between two restarts of an engine, most of them in 24 hours.
    """

    floor_gib: float = 3.0
    start_floor_gib: float = 5.0
    free_floor_gib: float = 3.0
    contiguous_floor_gib: float = 0.375
    last_gib: float = 1.0
    pressure_percent: float = 10.0
    swap_percent: float = 80.0
    interval_seconds: float = 1.0
    calm_seconds: float = 60.0
    idle: bool = True
    refuse: bool = True
    restart: bool = True
    stop: bool = True
    stop_for_others: bool = False
    cooldown_minutes: float = 60.0
    max_restarts: int = 3


def from_mapping(content: Mapping[str, Any]) -> Settings:
    """Return settings from the known keys of a mapping; missing ones have their defaults."""
    names = {field.name for field in fields(Settings)}
    return Settings(**{key: value for key, value in content.items() if key in names})


@dataclass(frozen=True)
class Look:
    """Memory of the host at one moment.

    clock: monotonic seconds. available: C(MemAvailable), bytes. cache: bytes that dropping the page cache frees. stalled: percent
    of time, PSI's C(full avg10), and swapped: percent of the swap in use; None where the kernel does not say.
    """

    clock: float
    available: int
    cache: int = 0
    stalled: float | None = None
    swapped: float | None = None
    starting: bool = False


@dataclass(frozen=True)
class Engine:
    """A model server of the host.

    used, limit: its bytes, and its most bytes by the plan; None if unknown. rank: 0 is the most
    important one. serving: its unit is active; starting: its unit is activating. door: the gateway of this host gives it requests. idle: it is on
    demand, and nobody asks it anything: the next request starts it again, so stopping it takes nothing away.
    """

    name: str
    used: int | None
    limit: int | None
    rank: int = 0
    serving: bool = True
    starting: bool = False
    door: bool = False
    idle: bool = False

    @property
    def above(self) -> int:
        """Bytes above its plan, 0 for an engine inside it, or of which it is not known."""
        return 0 if self.used is None or self.limit is None else max(self.used - self.limit, 0)


@dataclass(frozen=True)
class Account:
    """Who holds the memory.

    clock: when it was taken; available: C(MemAvailable) then, bytes. helpers: names of those that keep models only for the next request.
    others: bytes that neither engines nor helpers hold, nor the reserve of the host is for. who: the largest of their holders, as text.
    complete: nothing is missing in it.
    """

    clock: float
    available: int = 0
    engines: tuple[Engine, ...] = ()
    helpers: tuple[str, ...] = ()
    others: int = 0
    who: str = ""
    complete: bool = True


@dataclass(frozen=True)
class State:
    """The memory of the guard between looks. Clocks are monotonic seconds, None for not now.

    since: of the shortage; calm: since its end; critical: since when it is critical; eased: since when it is not;
    ready: before which nothing more is done; harmed: when an engine was last restarted or stopped. last: clock and memory of the last
    look. asked: helpers that were asked to unload in this shortage; refused: engines that the gateway gives nothing; spared: engines that
    were restarted or stopped in this shortage; restarts, refusals: when there were any, of the latter also stops of idle engines, which the
    next request starts again; named: when it was last said who took the memory.
    """

    since: float | None = None
    calm: float | None = None
    critical: float | None = None
    eased: float | None = None
    ready: float = 0.0
    harmed: float | None = None
    last: tuple[float, int] | None = None
    dropped: bool = False
    asked: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    spared: frozenset[str] = frozenset()
    restarts: tuple[tuple[str, float], ...] = ()
    refusals: tuple[float, ...] = ()
    named: float | None = None


@dataclass(frozen=True)
class Step:
    """A step: one of C(STEPS), its target (an engine or a helper, empty for the host), and the reason, a text for people."""

    what: str
    whom: str = ""
    why: str = ""


def level(settings: Settings, look: Look, last: tuple[float, int] | None = None) -> str:
    """Return how short the memory is, one of C(LEVELS). last: clock and C(MemAvailable) of the look before: how fast does it fall?"""
    floor = (settings.start_floor_gib if look.starting else settings.floor_gib) * GIB
    stalled = look.stalled or 0.0
    tight = look.available < 2 * floor
    crowded = tight and (stalled >= settings.pressure_percent or (look.swapped or 0.0) >= settings.swap_percent)
    if look.available >= floor and not crowded:
        return CALM
    falling = 0.0
    if last is not None and look.clock > last[0]:
        falling = max(last[1] - look.available, 0) / (look.clock - last[0])
    if look.available < floor and look.available - falling * AHEAD_SECONDS < settings.last_gib * GIB:
        return CRITICAL
    return CRITICAL if tight and stalled >= STALL_FACTOR * settings.pressure_percent else SHORT


def decide(settings: Settings, state: State, look: Look, account: Account | None) -> tuple[list[Step], State]:
    """Return the steps after one look, in their order, at most one against a shortage, and the next state. account: None if unknown."""
    now = look.clock
    current = level(settings, look, state.last)
    since = None if current == CRITICAL else now if state.eased is None else state.eased
    admitted, state = _admit(settings, replace(state, last=(now, look.available), eased=since), current, now, account)
    if current == CALM:
        return admitted, _quiet_state(settings, state, now)
    state = replace(
        state,
        since=now if state.since is None else state.since,
        calm=None,
        critical=None if current == SHORT else now if state.critical is None else state.critical,
    )
    # Of this shortage, recent, and newer than the last change to an engine.
    newest = max(state.since or 0.0, state.harmed or 0.0, now - ACCOUNT_SECONDS)
    usable = account if account is not None and account.clock >= newest else None
    messages, state = _say(settings, state, look, usable)
    step = _next(settings, state, look, current, usable) if now >= state.ready else None
    if step is None:
        return [*admitted, *messages], state
    return [*admitted, *messages, step], _after(state, step, now, current)


def _quiet_state(settings: Settings, state: State, now: float) -> State:
    """Return the state without a shortage: after some calm, earlier steps are forgotten."""
    if state.since is None:
        return state
    calm = now if state.calm is None else state.calm
    state = replace(state, calm=calm, critical=None)
    if now - calm < calm_needed(settings, state, now):
        return state
    return replace(state, since=None, calm=None, dropped=False, asked=frozenset(), spared=frozenset(), named=None)


def _admit(
    settings: Settings, state: State, current: str, now: float, account: Account | None
) -> tuple[list[Step], State]:
    """Admit requests again to engines that are up and, as long as memory is short, inside their plans."""
    if not state.refused or state.eased is None or account is None or now - account.clock > ACCOUNT_SECONDS:
        return [], state
    eased = now - state.eased
    if eased < calm_needed(settings, state, now):
        return [], state
    engines = {engine.name: engine for engine in account.engines}
    admitted = [
        name
        for name in sorted(state.refused)
        # A missing engine gets no requests anyway; a stopped one is found down by the gateway.
        if name not in engines or not (engines[name].starting or (current != CALM and engines[name].above))
    ]
    steps = [Step(ADMIT, name, f"memory is not critical for {eased:.0f} s") for name in admitted]
    return steps, replace(state, refused=state.refused - set(admitted))


def calm_needed(settings: Settings, state: State, now: float) -> float:
    """Return the seconds without a shortage after which it is over: longer after several within an hour. now: monotonic seconds."""
    recent = sum(now - at < HOUR for at in state.refusals)
    longer = settings.calm_seconds * float(2 ** max(recent - 1, 0))
    return max(settings.calm_seconds, min(longer, LONGEST_CALM))


def _say(settings: Settings, state: State, look: Look, account: Account | None) -> tuple[list[Step], State]:
    """Return a step that names the holder of the memory if it is no service, or if it is unknown."""
    now = look.clock
    if state.named is not None and now - state.named < NAME_SECONDS:
        return [], state
    if account is not None and account.complete:
        if not _others_did_it(settings, look, account):
            return [], state
        why = f"{account.others / GIB:.1f} GiB are used by processes that are no service of this host: {account.who or 'no process shows them'}"
    else:
        if state.critical is None or now - state.critical < SETTLE_SECONDS:
            return [], state  # the account is being taken
        why = "the processes that use the memory are not known, so no engine is changed"
    return [Step(NAME, "", why)], replace(state, named=now)


def _others_did_it(settings: Settings, look: Look, account: Account) -> bool:
    """Return whether there would be no shortage without processes that are no services."""
    floor = (settings.start_floor_gib if look.starting else settings.floor_gib) * GIB
    missing = max(floor - look.available, GIB)  # the reserve is no exact figure
    # Memory that was taken after the account may belong to other processes.
    return account.others + max(account.available - look.available, 0) >= missing


def _next(settings: Settings, state: State, look: Look, current: str, account: Account | None) -> Step | None:
    """Return the mildest step that is left."""
    short = f"{look.available / GIB:.2f} GiB available"
    if not state.dropped and look.cache >= GIB / 4:
        return Step(DROP, "", short)
    if account is None:
        return None
    helper = next((name for name in account.helpers if name not in state.asked), None)
    if helper is not None:
        return Step(UNLOAD, helper, short)
    least = _idle_engine(state, account) if settings.idle else None
    if least is not None:
        return Step(IDLE, least.name, f"{short}; it is on demand, and idle")
    harm = _harm(settings, state, look, current, account) if account.complete else None
    if harm is None or not settings.refuse or harm.whom in state.refused:
        return harm
    return _refuse_first(account, harm)


def _idle_engine(state: State, account: Account) -> Engine | None:
    """Return the least important idle engine."""
    idle = [engine for engine in account.engines if engine.serving and engine.idle and engine.name not in state.spared]
    return max(idle, key=lambda engine: engine.rank, default=None)


def _refuse_first(account: Account, harm: Step) -> Step:
    """Return the refusal of new requests that precedes a step against an engine, or the step itself."""
    has_door = any(engine.door and engine.serving for engine in account.engines if engine.name == harm.whom)
    next_step = "restarted" if harm.what == RESTART else "stopped"
    return Step(REFUSE, harm.whom, f"{harm.why}; it is to be {next_step} next") if has_door else harm


def _harm(settings: Settings, state: State, look: Look, current: str, account: Account) -> Step | None:
    """Return the step against the engine that has to free its memory."""
    now, short = look.clock, f"{look.available / GIB:.2f} GiB available"
    engines = [engine for engine in account.engines if engine.name not in state.spared]
    step = _harm_above(settings, state, engines, current, look)
    if step is not None or current != CRITICAL:
        return step
    # A loading engine serves nobody yet, and waits behind its gate until there is memory.
    loading = [engine for engine in engines if engine.starting and may_restart(settings, state, engine.name, now)]
    if settings.restart and loading:
        return Step(RESTART, max(loading, key=lambda engine: engine.rank).name, f"it is loading, {short}")
    if not settings.stop or (not settings.stop_for_others and _others_did_it(settings, look, account)):
        return None
    return _stop_least([engine for engine in engines if engine.serving], short)


def _stop_least(serving: Sequence[Engine], short: str) -> Step | None:
    """Return the stop of the least important serving engine."""
    if not serving:
        return None
    least = max(serving, key=lambda engine: (engine.rank, engine.name))
    return Step(STOP, least.name, f"{short}, nothing milder is left, and it is the least important service")


def _harm_above(settings: Settings, state: State, engines: Sequence[Engine], current: str, look: Look) -> Step | None:
    """Return the step against an engine that uses more memory than planned, once the shortage lasts."""
    if state.critical is None and (state.since is None or look.clock - state.since < LASTING_SECONDS):
        return None
    above = [engine for engine in engines if engine.above and engine.serving]
    for engine in sorted(above, key=lambda engine: (-engine.above, -engine.rank)):
        text = f"{engine.above / GIB:.1f} GiB above its plan, {look.available / GIB:.2f} GiB available"
        if settings.restart and may_restart(settings, state, engine.name, look.clock):
            return Step(RESTART, engine.name, text)
        if settings.stop and current == CRITICAL:
            return Step(STOP, engine.name, f"{text}; it may not be restarted again yet")
    return None


def may_restart(settings: Settings, state: State, name: str, now: float) -> bool:
    """Return whether the limits allow to restart an engine. now: monotonic seconds."""
    times = [at for whom, at in state.restarts if whom == name and now - at < DAY]
    return len(times) < settings.max_restarts and all(now - at >= settings.cooldown_minutes * 60 for at in times)


def _after(state: State, step: Step, now: float, current: str) -> State:
    pause = URGENT_SECONDS if current == CRITICAL else MILD_SECONDS
    if step.what in (IDLE, RESTART, STOP):
        pause = SETTLE_SECONDS
        state = replace(state, harmed=now)
    state = replace(state, ready=now + pause)
    if step.what == DROP:
        return replace(state, dropped=True)
    if step.what == UNLOAD:
        return replace(state, asked=state.asked | {step.whom})
    if step.what in (REFUSE, IDLE):
        state = replace(state, refusals=(*(at for at in state.refusals if now - at < HOUR), now))
    if step.what == REFUSE:
        return replace(state, refused=state.refused | {step.whom})
    state = replace(state, spared=state.spared | {step.whom})
    if step.what == RESTART:
        recent = tuple((whom, at) for whom, at in state.restarts if now - at < DAY)
        return replace(state, restarts=(*recent, (step.whom, now)))
    return state


# --- figures of the kernel ----------------------------------------------------------------------------------------------

_FULL = re.compile(r"^full avg10=([0-9.]+)", re.MULTILINE)


def stalled_percent(pressure: str) -> float | None:
    """Return C(full avg10) of the text of C(/proc/pressure/memory), percent; None without such a line."""
    match = _FULL.search(pressure)
    return float(match[1]) if match else None


def swapped_percent(meminfo: Mapping[str, int]) -> float | None:
    """Return the used share of the swap, percent, from C(/proc/meminfo); None without swap."""
    total = meminfo.get("SwapTotal", 0)
    return 100.0 * (total - meminfo.get("SwapFree", 0)) / total if total else None


# --- state across restarts ------------------------------------------------------------------------------------------------


def to_record(state: State, wall: float, clock: float) -> dict[str, Any]:
    """Return the state for a later process, with wall clocks: limits, and the engines without requests.

    wall: seconds since 1970; clock: monotonic seconds of the same moment.
    """
    ahead = wall - clock
    return {
        "refused": sorted(state.refused),
        "restarts": [[name, round(at + ahead, 1)] for name, at in state.restarts],
        "refusals": [round(at + ahead, 1) for at in state.refusals],
    }


def from_record(content: Any, wall: float, clock: float) -> State:
    """Return the state from a record of C(to_record), in any condition; impossible times are left out. wall, clock: as there."""
    content = content if isinstance(content, Mapping) else {}

    def moment(value: Any) -> float | None:
        right = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= wall - value < DAY
        return clock - (wall - value) if right else None

    def entries(key: str) -> list[Any]:
        value = content.get(key)
        return list(value) if isinstance(value, list) else []

    restarts = []
    for entry in entries("restarts"):
        at = moment(entry[1]) if isinstance(entry, list) and len(entry) == 2 else None
        if at is not None and isinstance(entry[0], str):
            restarts.append((entry[0], at))
    refusals = [at for at in map(moment, entries("refusals")) if at is not None]
    refused = frozenset(name for name in entries("refused") if isinstance(name, str))
    return State(refused=refused, restarts=tuple(restarts), refusals=tuple(refusals))
