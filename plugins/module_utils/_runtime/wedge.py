# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When is a model server wedged, and when may it be restarted: decisions by looks at it; no clock, no I/O.

A wedged engine answers /health and /v1/models with 200 and shows 96 % of GPU use, but sends no token any more. The signs are
away is that all of its counters stand still although requests run, while the GPU takes little power. None of that is
proof, so two real requests in a row have to fail before anything is done.

Healthy states that look alike: an engine that loads, a long prefill (tokens in, or steps of the scheduler, go on), a kernel
that is being compiled in the middle of a request, a client that is not let in. Those are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NOTHING, PROBE, ACT, REPORT = "nothing", "probe", "act", "report"
"""The next step."""
STATES = ("stopped", "starting", "idle", "working", "frozen", "suspect", "wedged", "unjudged")
STOPPED, STARTING, IDLE, WORKING, FROZEN, SUSPECT, WEDGED, UNJUDGED = STATES
"""What an engine can be, as the state file has it."""
OK, FAILED, REFUSED = "ok", "failed", "refused"
"""Outcomes of a probe; refused: the server answered that it will not (a key, an unknown model)."""
COUNTERS = ("generation_tokens", "prompt_tokens", "iterations")
DAY = 86400.0
POWER_WINDOWS = 5
"""Power speaks for an engine this many windows long; after that only a token does."""
BLIND_WINDOWS = 2
"""Without figures an engine is suspected this many windows late: a busy server may leave them out now and then."""


@dataclass(frozen=True)
class Settings:
    """What the watchdog goes by for one service."""

    interval_seconds: float = 30.0
    window_seconds: float = 120.0
    power_watts: float = 30.0
    probes: int = 2
    probe_seconds: float = 30.0
    grace_seconds: float = 300.0
    compile_minutes: float = 60.0
    idle_probe_minutes: float = 30.0
    cooldown_minutes: float = 30.0
    max_restarts: int = 3
    restart: bool = True


@dataclass(frozen=True)
class Observation:
    """A service at one moment.

    state, invocation, active_seconds: of its unit. starting: its start has not ended, independent of systemd's state.
    host_starting: another engine of the host loads. figures: of C(metrics.progress), None without an answer, and
    C(error) the reason. power: watts of the GPU, None if unknown. others_moved: another engine of the same GPU has
    made tokens since the last look. compiling: compilers run in its container; only looked for when it is suspected.
    """

    clock: float
    state: str
    invocation: str = ""
    active_seconds: float = 0.0
    starting: bool = False
    host_starting: bool = False
    figures: Mapping[str, float | None] | None = None
    error: str = ""
    power: float | None = None
    others_moved: bool = False
    compiling: bool = False


class Tracker:
    """Follows one service from look to look."""

    def __init__(
        self, settings: Settings, restarts: list[float] | None = None, clocks: tuple[float, float] | None = None
    ) -> None:
        """Start from the state of an earlier process.

        :param restarts: when it was restarted, in seconds since 1970
        :param clocks: the monotonic clock and the wall clock at the moment when C(restarts) was written, None after a reboot
        """
        self.settings = settings
        self.restarts = list(restarts or [])
        self.clocks = clocks
        self.state, self.text = STOPPED, "not looked at yet"
        self.invocation: str | None = None
        self.last: dict[str, float | None] | None = None
        self.looked: float | None = None
        self.alive_at = self.quiet_at = self.since = 0.0
        self.failures = 0
        self.hottest: float | None = None
        self.shared = self.moved = False
        self.next_probe = 0.0
        self.reported: float | None = None

    @property
    def frozen_seconds(self) -> float:
        """How long nothing has moved by the last look."""
        return 0.0 if self.looked is None else max(self.looked - self.alive_at, 0.0)

    def suspects(self) -> bool:
        """Tell whether the next look should say if compilers run."""
        return self.state in (FROZEN, SUSPECT, WEDGED)

    def look(self, now: Observation) -> str:
        """Take in one look; returns C(NOTHING) or C(PROBE)."""
        gap = None if self.looked is None else now.clock - self.looked
        restarted = self.invocation != now.invocation or gap is None
        # Looks this far apart prove nothing: the host may have stood still as a whole. Probes and evidence of any service lie between them.
        settings = self.settings
        usual = max(5 * settings.interval_seconds, settings.window_seconds) + 4 * settings.probe_seconds + 120
        if restarted or (gap is not None and gap > usual):
            self._forget(now.clock)
        self.invocation, self.looked, self.moved = now.invocation, now.clock, False
        hold = self._hold(now)
        if hold is not None:
            self._forget(now.clock)
            self._become(*hold, now.clock)
            return NOTHING
        busy = None
        if now.figures is not None:
            running = now.figures.get("requests_running")
            if running is None or now.figures.get("generation_tokens") is None:
                self._forget(now.clock)
                self._become(UNJUDGED, "its /metrics has no figures of vLLM", now.clock)
                return NOTHING
            busy = running + (now.figures.get("requests_waiting") or 0) > 0
            if self._moves(now.figures):
                self.moved = True
                self._alive(now.clock)
                self.quiet_at = now.clock
                self._become(WORKING if busy else IDLE, "it makes tokens" if busy else "nothing to do", now.clock)
                return NOTHING
            if not busy:
                return self._idle(now)
        return self._frozen(now, busy)

    def probed(self, outcome: str, text: str, clock: float, wall: float) -> str:
        """Take in a probe: C(OK), C(REFUSED) or what failed; returns C(NOTHING), C(ACT) or C(REPORT). wall: seconds since 1970."""
        if outcome in (OK, REFUSED):
            self._alive(clock)
            self.quiet_at = clock
            if outcome == OK:
                self._become(WORKING, f"a request was answered: {text}", clock)
            else:
                self._become(UNJUDGED, f"the probe was turned away: {text}", clock)
            return NOTHING
        self.failures += 1
        if self.failures < self.settings.probes:
            self._become(SUSPECT, f"{self._evidence()}; probe {self.failures} failed: {text}", clock)
            return NOTHING
        self._become(WEDGED, f"{self._evidence()}; {self.failures} probes in a row failed, the last: {text}", clock)
        reason = self.bound(clock, wall)
        if reason is None:
            return ACT
        self.text = f"{self.text}. It is not restarted: {reason}"
        self.next_probe = clock + self.settings.window_seconds  # a dead queue is not filled with further requests
        if self.reported is not None and clock - self.reported < 3600:
            return NOTHING
        self.reported = clock
        return REPORT

    def recent(self, clock: float, wall: float) -> list[float]:
        """Return the restarts of the last 24 hours, independent of changes to the wall clock.

        clock: of a clock that is never set. Where the wall clock was set, the moments move with it; those from before a reboot
        that lie in the future by now are taken for now.
        """
        if self.clocks is not None:
            step = (wall - self.clocks[1]) - (clock - self.clocks[0])
            self.restarts = [moment + step for moment in self.restarts]
        self.clocks = (clock, wall)
        self.restarts = [min(moment, wall) for moment in self.restarts if wall - moment < DAY]
        return self.restarts

    def bound(self, clock: float, wall: float) -> str | None:
        """Say why the service may not be restarted now; None when it may."""
        settings = self.settings
        if not settings.restart:
            return "spark_watchdog.restart is false"
        self.recent(clock, wall)
        if len(self.restarts) >= settings.max_restarts:
            times = "once" if len(self.restarts) == 1 else f"{len(self.restarts)} times"
            return (
                f"it was restarted {times} within 24 hours and spark_watchdog.max_restarts is {settings.max_restarts}; "
                "restarts that do not help leave memory behind, so a person has to look"
            )
        waited = wall - self.restarts[-1] if self.restarts else None
        if waited is not None and waited < settings.cooldown_minutes * 60:
            remaining = settings.cooldown_minutes * 60 - waited
            return (
                f"its last restart was {waited / 60:.0f} minutes ago; it is restarted in {remaining / 60:.0f} minutes"
            )
        return None

    def acted(self, clock: float, wall: float) -> None:
        """Note a restart; counts before it is made, so that none is forgotten."""
        self.recent(clock, wall)
        self.restarts.append(wall)
        self._forget(clock)
        self._become(STARTING, "restarted by the watchdog", clock)

    # --- how it is judged ---

    def _hold(self, now: Observation) -> tuple[str, str] | None:
        """Say why the service is not judged at all; None when it is."""
        if now.state in ("inactive", "failed", "deactivating", ""):
            return STOPPED, f"its unit is {now.state or 'not known to systemd'}"
        if now.state != "active":
            return STARTING, f"its unit is {now.state}"
        if now.starting:
            return STARTING, "its start has not ended"
        if now.active_seconds < self.settings.grace_seconds:
            return STARTING, f"it became ready {now.active_seconds:.0f} s ago"
        return None

    def _moves(self, figures: Mapping[str, float | None]) -> bool:
        """Tell whether any counter differs from the last that were seen; the first ones count as moving."""
        seen = {name: figures.get(name) for name in COUNTERS}
        last, self.last = self.last, seen
        return last is None or seen != last

    def _idle(self, now: Observation) -> str:
        """Nothing runs: an engine that died while it had nothing to do shows only when it is asked."""
        limit = self.settings.idle_probe_minutes * 60
        if self.state in (SUSPECT, WEDGED) and self.failures:
            return self._suspect(now, "it has nothing to do")
        self._alive(now.clock)
        self._become(IDLE, "nothing to do", now.clock)
        if limit and now.clock - self.quiet_at >= limit and not now.host_starting and now.clock >= self.next_probe:
            self.quiet_at = now.clock
            return self._suspect(now, f"it had nothing to do for {limit / 60:.0f} minutes")
        return NOTHING

    def _frozen(self, now: Observation, busy: bool | None) -> str:
        settings = self.settings
        still = self.frozen_seconds
        self.shared = self.shared or now.others_moved
        if now.power is not None:
            self.hottest = now.power if self.hottest is None else max(self.hottest, now.power)
        window = settings.window_seconds * (BLIND_WINDOWS if busy is None else 1)
        if still < window:
            symptom = "its counters stand still" if busy else f"its /metrics does not answer ({now.error})"
            self._become(SUSPECT if self.failures else FROZEN, f"{symptom} for {still:.0f} s", now.clock)
            return NOTHING
        # Power of a GPU that another engine uses too says nothing about this one.
        hot = self.hottest is not None and self.hottest >= settings.power_watts and not self.shared
        if hot and still < settings.window_seconds * POWER_WINDOWS:
            self._become(FROZEN, f"no token for {still:.0f} s, but the GPU took up to {self.hottest:.0f} W", now.clock)
            return NOTHING
        return self._suspect(now, "")

    def _suspect(self, now: Observation, text: str) -> str:
        if now.compiling and self.frozen_seconds < self.settings.compile_minutes * 60:
            self._become(
                FROZEN, f"no token for {self.frozen_seconds:.0f} s, but its kernels are being compiled", now.clock
            )
            self.failures = 0
            return NOTHING
        if now.host_starting:
            self._become(FROZEN, f"no token for {self.frozen_seconds:.0f} s, while another engine starts", now.clock)
            return NOTHING
        if self.state != WEDGED:
            self._become(SUSPECT, text or self._evidence(), now.clock)
        return PROBE if now.clock >= self.next_probe else NOTHING

    def _evidence(self) -> str:
        if self.hottest is None:
            power = "the power of the GPU is not known"
        elif self.shared:
            power = f"the GPU took up to {self.hottest:.0f} W, with another engine at work"
        else:
            power = f"the GPU took {self.hottest:.0f} W at most"
        return f"nothing moved for {self.frozen_seconds:.0f} s and {power}"

    # --- memory ---

    def _alive(self, clock: float) -> None:
        self.alive_at = clock
        self.failures = 0
        self.hottest, self.shared = None, False
        self.next_probe, self.reported = 0.0, None

    def _forget(self, clock: float) -> None:
        self._alive(clock)
        self.quiet_at = clock
        self.last = None

    def _become(self, state: str, text: str, clock: float) -> None:
        if state != self.state:
            self.state, self.since = state, clock
        self.text = text

    def facts(self) -> dict[str, Any]:
        """Return the state of a service for the state file, without wall-clock times."""
        return {
            "state": self.state,
            "text": self.text,
            "frozen_seconds": round(self.frozen_seconds, 1),
            "failed_probes": self.failures,
            "gpu_watts": self.hottest,
            "restarts": self.restarts,
        }
