# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engines on demand: which to start and to stop, as a pure function, C(decide), and the heads of HTTP requests that wake them.

Only the services of one combination in the plan may hold memory at a time. The longest waiting service comes first: room is made
by the longest idle services of the lowest priority; never by an engine with requests running, nor within its minimum stay. If none is
ever idle, one is drained after that stay: its new requests wait, so that a storm over two models changes engines once a minimum stay, and
nobody starves.

A service that is stopped, starts, or cannot be asked is "not idle": an engine is only stopped when its own metrics count no request.

While an engine of the host loads none is stopped, and none is started while one stops: vLLM ends if memory comes back while it measures.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

UNKNOWN, COLD, STARTING, READY, DRAINING, STOPPING, FAILED = (
    "unknown", "cold", "starting", "ready", "draining", "stopping", "failed"
)  # fmt: skip
STATES = (UNKNOWN, COLD, STARTING, READY, DRAINING, STOPPING, FAILED)
STAYING = (UNKNOWN, STARTING, READY, DRAINING)
"""States in which a service goes on to hold memory until it is stopped."""
HOLDING = (*STAYING, STOPPING)
"""States in which it holds memory."""

START, STOP, DRAIN, RESUME, REFUSE, LOOK = "start", "stop", "drain", "resume", "refuse", "look"
"""Kinds of actions: start an engine; stop one; let its new requests wait; let them go on; answer those that wait with the reason; ask it
for its metrics and decide again."""

WARM = "warm"
VLLM = "vllm"
WAIT, COMMENTS, REJECT = "wait", "comments", "reject"
LOADING = (WAIT, COMMENTS, REJECT)

FRESH_SECONDS = 2.5
"""What an engine said of its requests holds for so long."""
START_GRACE = 3.0
"""A unit that was to start and has neither a job nor begun after so long will not."""
STOP_GRACE = 5.0
"""A unit that was to stop and is still active without a job after so long will not."""


@dataclass(frozen=True)
class Service:
    """One engine, as the settings have it.

    engine: URL of its server. set: name of the set that it shares memory with, None if always allowed. idle_seconds: without a
    request until it is stopped, None for never. minimum_seconds: least stay after it became ready. hold_seconds: most that a request waits.
    retry_seconds: after a failed start. start_seconds: deadline of a start. while_loading: one of C(LOADING). kind: C(VLLM), or the kind of a
    speech server, which has no count of its requests. health: path that says how it is.
    """

    name: str
    unit: str
    engine: str
    model: str
    max_model_len: int | None = None
    api_key_file: str | None = None
    idle_seconds: float | None = 1200.0
    minimum_seconds: float = 60.0
    priority: float = 0.0
    set: str | None = None
    hold_seconds: float = 900.0
    while_loading: str = WAIT
    retry_seconds: float = 300.0
    start_seconds: float = 3600.0
    kind: str = VLLM
    health: str = "/health"


@dataclass(frozen=True)
class Group:
    """Services that share memory: each of C(combinations) fits, and so does any part of one."""

    combinations: tuple[frozenset[str], ...]

    def fits(self, names: Iterable[str]) -> bool:
        """Whether services may hold memory at the same time."""
        together = frozenset(names)
        return any(together <= combination for combination in self.combinations)


@dataclass(frozen=True)
class View:
    """A service at a moment. Clocks are monotonic seconds.

    state: one of C(STATES). demand: since when a request, or the pin of its owner, waits for it; None for neither. running: requests that
    it works on. last: end of the last one, or since when it is ready if there was none. ready: since when it is. looked: when it was last
    asked for its metrics; busy: whether it counted requests then, None if unknown; unasked: since when it does not answer.
    pin: C(warm), C(cold) or empty. until: after a start that failed, before which it is not tried again.
    """

    state: str
    demand: float | None = None
    running: int = 0
    last: float = 0.0
    ready: float = 0.0
    looked: float | None = None
    busy: bool | None = None
    unasked: float | None = None
    pin: str = ""
    until: float = 0.0


@dataclass(frozen=True)
class Action:
    """An action with its service and reason, a text for people."""

    what: str
    name: str
    why: str = ""


class Wrong(ValueError):
    """Settings that cannot be; the text names the key."""


# --- settings -------------------------------------------------------------------------------------------------------------

_LEAST = {
    "max_model_len": 1, "idle_seconds": 0, "minimum_seconds": 0, "hold_seconds": 0, "retry_seconds": 0, "start_seconds": 0,
}  # fmt: skip


def from_mapping(content: Mapping[str, Any]) -> tuple[dict[str, Service], dict[str, Group]]:
    """Read the settings of a host. Raises Wrong for what cannot be."""
    services = {str(name): _service(str(name), value) for name, value in _mapping(content, "services").items()}
    groups = {str(name): _group(str(name), value) for name, value in _mapping(content, "sets").items()}
    for service in services.values():
        if service.set is not None and service.set not in groups:
            raise Wrong(f"services.{service.name}.set: there is no set {service.set}")
    return services, groups


def _group(name: str, value: Any) -> Group:
    """Return one set of services."""
    lists = value.get("combinations") if isinstance(value, Mapping) else None
    if not isinstance(lists, list) or not all(isinstance(entry, list) for entry in lists):
        raise Wrong(f"sets.{name}.combinations is no list of lists of services")
    keep = value.get("keep")
    if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or keep < 1):
        raise Wrong(f"sets.{name}.keep is no number of at least 1")
    # Without the combinations that are part of others.
    together: set[frozenset[str]] = set()
    for members in (sorted(set(map(str, entry))) for entry in lists):
        size = min(keep or len(members), len(members))
        together.update(map(frozenset, itertools.combinations(members, size)))
    return Group(tuple(sorted(together, key=sorted)))


def _mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key) or {}
    if not isinstance(value, Mapping):
        raise Wrong(f"{key} is no mapping")
    return value


def _service(name: str, content: Any) -> Service:
    """Return one service; unknown keys belong to others."""
    if not isinstance(content, Mapping):
        raise Wrong(f"services.{name} is no mapping")
    options: dict[str, Any] = {"name": name}
    for field in fields(Service):
        value = content.get(field.name)
        if field.name == "name" or (value is None and field.name != "idle_seconds") or field.name not in content:
            continue
        _check_value(f"services.{name}.{field.name}", field.name, value)
        options[field.name] = value
    missing = [key for key in ("unit", "engine", "model") if key not in options]
    if missing:
        raise Wrong(f"services.{name} lacks {', '.join(missing)}")
    if options.get("while_loading", WAIT) not in LOADING:
        raise Wrong(f"services.{name}.while_loading is not one of {', '.join(LOADING)}")
    try:
        parts = urlsplit(options["engine"])
        right = parts.scheme == "http" and bool(parts.hostname) and bool(parts.port)
    except ValueError:
        right = False
    if not right:
        raise Wrong(f"services.{name}.engine is no URL of the form http://ADDRESS:PORT")
    return Service(**options)


def _check_value(where: str, key: str, value: Any) -> None:
    """Raise Wrong for a value of the wrong type."""
    if key in _LEAST or key == "priority":
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and (not number or value < _LEAST.get(key, value)):
            raise Wrong(f"{where} is no number of at least {_LEAST.get(key)}")
    elif not isinstance(value, str) or not value:
        raise Wrong(f"{where} is no text")


# --- the decision -----------------------------------------------------------------------------------------------------------


def decide(
    now: float,
    services: Mapping[str, Service],
    groups: Mapping[str, Group],
    views: Mapping[str, View],
    loading: str = "",
) -> list[Action]:
    """Return the next actions, at most one a service.

    :param now: monotonic seconds
    :param loading: unit of the engine of the host that loads, on demand or not; empty for none
    :returns: actions; after a C(LOOK) the function has to be called again with the engine's answer
    """
    turn = _Turn(now, services, groups, views, loading)
    for name in turn.requested():
        turn.admit(name)
    for name in services:
        turn.settle(name)
    stops = any(action.what == STOP for action in turn.actions.values())
    return [action for action in turn.actions.values() if not (stops and action.what == START)]


class _Turn:
    """One decision under way.

    goal: services that will hold memory once everything decided has come true; held: those that do now, and those that are started in this
    turn; promised: those that wait, to which room was given; leaving: who has to go, and for whom.
    """

    def __init__(
        self,
        now: float,
        services: Mapping[str, Service],
        groups: Mapping[str, Group],
        views: Mapping[str, View],
        loading: str,
    ) -> None:
        self.now, self.services, self.groups, self.views, self.loading = now, services, groups, views, loading
        self.stopping = any(view.state == STOPPING for view in views.values())
        self.goal = {name for name in services if views[name].state in STAYING}
        self.held = {name for name in services if views[name].state in HOLDING}
        self.promised: set[str] = set()
        self.leaving: dict[str, str] = {}
        self.actions: dict[str, Action] = {}

    def do(self, kind: str, name: str, why: str = "") -> None:
        self.actions.setdefault(name, Action(kind, name, why))

    def members(self, name: str, names: set[str]) -> frozenset[str]:
        """Return the services of the same set."""
        return frozenset(other for other in names if self.services[other].set == self.services[name].set)

    def requested(self) -> list[str]:
        """Services that somebody waits for and that start or may be started, in the order of their turn."""
        names = []
        for name in self.services:
            view = self.views[name]
            # One that starts waits at its gate while more start than fit, as when somebody starts one by hand.
            may = view.state in (COLD, STARTING) or (view.state == FAILED and self.now >= view.until)
            if may and view.demand is not None and view.pin != COLD:
                names.append((view.demand, -self.services[name].priority, name))
        return [name for _demand, _priority, name in sorted(names)]

    def admit(self, name: str) -> None:
        """Start a service that is waited for, or say who has to go for it."""
        group = self.groups.get(self.services[name].set or "")
        starts = self.views[name].state == STARTING
        if starts and (group is None or group.fits(self.members(name, self.goal))):
            return
        if group is None:
            if not self.stopping:
                self.do(START, name, "a request waits for it")
            return
        victims, why = self.room(name, group)
        if victims is None:
            if why and not starts:
                self.do(REFUSE, name, why)
            return
        for victim in victims:
            self.leaving[victim] = name
        self.goal = (self.goal - victims) | {name}
        self.promised.add(name)
        # A service that stops holds its memory until its end, and gives it back while others would load.
        if not victims and not self.stopping and group.fits(self.members(name, self.held) | {name}):
            self.held.add(name)
            is_warm = self.views[name].pin == WARM
            self.do(START, name, "its owner keeps it warm" if is_warm else "a request waits for it")

    def room(self, name: str, group: Group) -> tuple[frozenset[str] | None, str]:
        """Who has to go for a service: the least that can be done.

        None, and why, where its turn cannot come: without a reason where those who wait longer come first.
        """
        staying = self.members(name, self.goal)
        best: tuple[Any, frozenset[str]] | None = None
        why = "it is in no combination that fits by the plan"
        for combination in group.combinations:
            if name not in combination:
                continue
            victims = staying - combination
            pinned = sorted(other for other in victims if self.views[other].pin == WARM)
            if pinned:
                why = why and f"{', '.join(pinned)} is kept warm by its owner, and both do not fit"
                continue
            if victims & self.promised:
                why = ""
                continue
            cost = self.cost(victims)
            if best is None or cost < best[0]:
                best = (cost, victims)
        return (best[1], "") if best is not None else (None, why)

    def cost(self, victims: frozenset[str]) -> tuple[Any, ...]:
        """Return the cost of stopping services; less is better."""
        hardest = max((self.hardness(other) for other in victims), default=0)
        highest = max((self.services[other].priority for other in victims), default=0.0)
        latest = max((self.views[other].last for other in victims), default=0.0)
        return (hardest, highest if victims else 0.0, len(victims), latest, sorted(victims))

    def hardness(self, name: str) -> int:
        """Return the rank of a service as a victim: 0 idle, 1 drained, 2 busy, 3 must stay."""
        view = self.views[name]
        if view.state not in (READY, DRAINING) or self.now - view.ready < self.services[name].minimum_seconds:
            return 3
        if view.running == 0 and (view.busy is False or not self.fresh(view)):
            return 0
        return 1 if view.state == DRAINING else 2

    def fresh(self, view: View) -> bool:
        """Whether what an engine said of its requests still holds."""
        return view.looked is not None and view.looked >= view.last and self.now - view.looked <= FRESH_SECONDS

    def settle(self, name: str) -> None:
        """Stop, drain or resume a service that runs."""
        view = self.views[name]
        if view.state not in (READY, DRAINING):
            return
        if self.loading:
            if view.state == DRAINING:
                self.do(RESUME, name, f"{self.loading} loads, and nothing is stopped meanwhile")
        elif view.pin == COLD:
            self.stop_quiet(name, "its owner keeps it cold")
        elif self.leaving.get(name) is not None:
            self._make_room(name, self.leaving[name])
        elif view.state == DRAINING:
            self.do(RESUME, name, "nobody needs its room any more")
        else:
            self._stop_idle(name)

    def _make_room(self, name: str, whom: str) -> None:
        """Stop a service for another one, or drain it if that one has waited."""
        view, least = self.views[name], self.services[name].minimum_seconds
        since = self.views[whom].demand
        late = view.state == READY and since is not None and self.now - since >= least
        if self.now - view.ready >= least and not self.stop_quiet(name, f"makes room for {whom}") and late:
            self.do(DRAIN, name, f"{whom} has waited for {self.now - (since or 0.0):.0f} s")

    def _stop_idle(self, name: str) -> None:
        """Stop a service without requests."""
        service, view = self.services[name], self.views[name]
        if view.pin == WARM or view.demand is not None or service.idle_seconds is None:
            return
        idle = self.now - max(view.last, view.ready)
        if self.now - view.ready >= service.minimum_seconds and idle >= service.idle_seconds:
            self.stop_quiet(name, f"idle for {idle:.0f} s")

    def stop_quiet(self, name: str, why: str) -> bool:
        """Stop a service if it has no requests, or have it asked for them; return whether there is a step."""
        view, service = self.views[name], self.services[name]
        if view.running:
            return False
        if not self.fresh(view):
            self.do(LOOK, name, why)
            return True
        silent = 0.0 if view.unasked is None else self.now - view.unasked
        # Unreadable metrics may hide requests of others; that is not waited for without end.
        if view.busy is False or (view.busy is None and silent > 0 and silent >= (service.idle_seconds or 0.0)):
            self.do(STOP, name, why)
            return True
        return False


# --- states of units ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Past:
    """The state of a service before a look at its unit.

    state: one of C(STATES). asked: time of the last request to start or to stop it. began: whether its start was seen. stop: whether this
    program requested the stop. failed: whether systemd called the unit failed.
    """

    state: str
    asked: float = 0.0
    began: bool = False
    stop: bool = False
    failed: bool = False


def follow(now: float, past: Past, unit: Mapping[str, str]) -> str:
    """Return the state of a service by its unit: an admin may start and stop it too.

    :param now: monotonic seconds
    :param unit: its properties as C(systemctl show) prints them; with C(Job) while a job is queued or runs
    :returns: one of C(STATES); C(STARTING) goes on while a start fails, until systemd is done with it
    """
    active, state = unit.get("ActiveState", ""), past.state
    queued = unit.get("Job", "") not in ("", "0")
    stopping = state == STOPPING and past.stop
    recent_stop = stopping and now - past.asked < STOP_GRACE
    if active in ("active", "reloading", "refreshing"):
        if recent_stop or (stopping and queued):
            return STOPPING
        return DRAINING if state == DRAINING else READY
    if active == "activating":
        return STOPPING if recent_stop else STARTING
    if active in ("deactivating", "maintenance"):
        return STARTING if state == STARTING else STOPPING
    if queued and active in ("inactive", "failed") and state != STOPPING:
        return STARTING  # somebody has asked systemd for it
    return _follow_ended(active, past, _may_begin(now, past, queued))


def _may_begin(now: float, past: Past, queued: bool) -> bool:
    """Whether a start that was requested may still begin. now: monotonic seconds. queued: whether systemd has a job for it."""
    return queued or (not past.began and now - past.asked < START_GRACE)


def _follow_ended(active: str, past: Past, waits: bool) -> str:
    """Return the state of a service whose unit does not run. waits: whether its start may still come."""
    state = past.state
    if active == "failed":
        if state == STARTING and past.failed and waits:
            return STARTING  # an earlier start failed
        return COLD if (state == COLD and past.failed) or (state == STOPPING and past.stop) else FAILED
    if active != "inactive":
        return state
    if state == STARTING:
        return STARTING if waits else FAILED
    return FAILED if state == FAILED and not past.failed else COLD


# --- HTTP ---------------------------------------------------------------------------------------------------------------------

MOST_HEAD = 65536
_END = re.compile(rb"\r?\n\r?\n")
_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/(\d\.\d)\Z")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*\Z")
_HOP = {"connection", "keep-alive", "proxy-connection"}
_STREAM = re.compile(rb'"stream"\s*:\s*true')


class BadHead(ValueError):
    """A request that cannot be read. status: of the answer."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Head:
    """The head of a request. size: bytes of it, with the empty line at its end; length: of the body, None without such a header."""

    method: str
    target: str
    version: str
    headers: tuple[tuple[str, str], ...]
    size: int
    length: int | None = None

    def get(self, name: str) -> str:
        """The value of a header, or an empty text."""
        return next((value for key, value in self.headers if key.lower() == name), "")

    @property
    def path(self) -> str:
        """The path of the target, without the query."""
        target = self.target.partition("?")[0]
        absolute = re.match(r"https?://[^/]*(/.*)?\Z", target, re.IGNORECASE)
        return (absolute[1] or "/") if absolute else target

    @property
    def upgrades(self) -> bool:
        """Whether it requests a WebSocket."""
        words = {word.strip().lower() for word in self.get("connection").split(",")}
        return "upgrade" in words and self.get("upgrade").lower() == "websocket"

    @property
    def demands(self) -> bool:
        """Whether it is work for the engine, not a query of its state."""
        return self.method not in ("GET", "HEAD", "OPTIONS") or self.upgrades


def read_head(data: bytes | bytearray) -> Head | None:
    """Return the head of a request, None while its end has not come. Raises BadHead for anything but a request of HTTP/1."""
    end = _END.search(data, 0, MOST_HEAD)
    if end is None:
        if len(data) >= MOST_HEAD:
            raise BadHead(f"the head of the request has more than {MOST_HEAD} bytes", 431)
        if data[:1] and not re.match(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]", data):
            raise BadHead("this is no request of HTTP/1")
        return None
    lines = bytes(data[: end.start()]).decode("latin-1").split("\r\n")
    if end[0] != b"\r\n\r\n" or any("\n" in line or "\r" in line or "\0" in line for line in lines):
        raise BadHead("lines of the head have to end with CR LF")
    first = _LINE.match(lines[0])
    if first is None or first[1] == "CONNECT":
        raise BadHead("the first line is no request of HTTP/1")
    if first[3] not in ("1.0", "1.1"):
        raise BadHead(f"HTTP/{first[3]} is not spoken here", 505)
    headers = []
    for line in lines[1:]:
        field = _FIELD.match(line)
        if field is None:
            raise BadHead("a header has no name that can be, or goes over two lines")
        headers.append((field[1], field[2]))
    return Head(first[1], first[2], first[3], tuple(headers), end.end(), _length(headers))


def _length(headers: list[tuple[str, str]]) -> int | None:
    """Return the length of the body; raises BadHead for an ambiguous one."""
    lengths = {value for name, value in headers if name.lower() == "content-length"}
    coded = [value for name, value in headers if name.lower() == "transfer-encoding"]
    if len(lengths) > 1 or (lengths and coded):
        raise BadHead("the length of the body is given twice")
    for value in lengths:
        if not re.fullmatch(r"[0-9]{1,15}", value):
            raise BadHead("Content-Length is no number")
        return int(value)
    return None


def forwarded(head: Head, without: Iterable[str] = ()) -> bytes:
    """Return the head for the engine, up to the body: one request a connection. without: further headers to leave out, in lower case."""
    out = {*without, *(() if head.upgrades else _HOP)}
    lines = [f"{head.method} {head.target} HTTP/{head.version}"]
    lines += [f"{name}: {value}" for name, value in head.headers if name.lower() not in out]
    if not head.upgrades:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def read_answer(data: bytes | bytearray) -> tuple[int, bool, int] | None:
    """Return status, whether the body comes in chunks, and bytes of the head; None while its end has not come. Raises BadHead for no answer."""
    end = _END.search(data, 0, MOST_HEAD)
    if end is None:
        if len(data) >= MOST_HEAD:
            raise BadHead("the head of the answer has no end")
        return None
    lines = bytes(data[: end.start()]).decode("latin-1").splitlines()
    first = re.match(r"HTTP/1\.[01] (\d{3})(?: |\Z)", lines[0])
    if first is None:
        raise BadHead("the answer is no HTTP/1")
    coded = [line.partition(":") for line in lines[1:] if line.lower().startswith("transfer-encoding:")]
    return int(first[1]), any("chunked" in value.lower() for _name, _colon, value in coded), end.end()


def wants_stream(body: bytes | bytearray) -> bool:
    """Whether a request is JSON that asks for a stream of events."""
    if not _STREAM.search(body):
        return False
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("stream") is True


def chunk(text: str) -> bytes:
    """Return a piece of an answer as one chunk."""
    data = text.encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def problem(status: int, message: str) -> dict[str, Any]:
    """Return an error as OpenAI and vLLM give it."""
    usual = {400: "BadRequestError", 401: "Unauthorized", 503: "ServiceUnavailableError", 502: "BadGatewayError"}
    return {"error": {"message": message, "type": usual.get(status, "Error"), "param": None, "code": status}}


def error_event(status: int, body: bytes) -> str:
    """Return an error as an event of a started stream, in the engine's form if it has one."""
    text = body.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        value = problem(status, text[:2000] or f"the engine answered with HTTP {status}")
    elif not isinstance(value.get("error"), dict):
        value = problem(status, str(value.get("message") or value.get("detail") or text[:2000]))
    return f"data: {json.dumps(value)}\n\n"


# --- times ----------------------------------------------------------------------------------------------------------------------


def usual(starts: Iterable[float]) -> float | None:
    """Return the usual time of a start, seconds: the median of the last ones, None without any."""
    ordered = sorted(starts)
    return ordered[len(ordered) // 2] if ordered else None


def seconds_left(starts: Iterable[float], elapsed: float) -> float | None:
    """Return the remaining seconds of a start; None if unknown, or if it takes longer than earlier ones. starts: seconds of the last ones."""
    usual_seconds = usual(starts)
    return None if usual_seconds is None or elapsed > usual_seconds else usual_seconds - elapsed
