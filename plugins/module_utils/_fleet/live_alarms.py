# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the alarms of a Prometheus from its alerting rules. Pure functions.

The rules also tell whether they are evaluated: a Prometheus that evaluates nothing has no alarms, and that is not good news.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from .._common.foreign_text import printable
from .._common.reader import NUMBER, Maybe, Most, one_of, read
from . import fleet_status

PATH = "/api/v1/rules?type=alert"
FIRING = "firing"
"""The state of an alarm; C(pending) ones have not lasted long enough."""
SEVERITIES = ("critical", "warning", "info")
STALE_SECONDS = 300.0
"""An evaluation is old after so long, or after three intervals of its group; Prometheus evaluates once a minute by default."""
_ALERT = {"labels": {str: Any}, "annotations": Maybe({str: Any}), "state": str, "activeAt": str}
_RULE = {"name": str, "health": str, "lastEvaluation": str, "alerts": Maybe(Most([_ALERT], 1000))}
_GROUP = {"interval": NUMBER, "rules": Most([_RULE], 1000)}
_ANSWER = {"status": one_of("success"), "data": {"groups": Most([_GROUP], 1000)}}
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True)
class Alarm:
    """A firing alarm. where: host, cluster and service, as far as it has them. since: seconds since 1970, None if unknown."""

    name: str
    severity: str
    where: str
    text: str
    since: float | None

    @property
    def key(self) -> str:
        """What tells it from others."""
        return "\n".join((self.name, self.severity, self.where, self.text))


@dataclass(frozen=True)
class Alarms:
    """The firing alarms, the worst first. why: further ones are unknown. rules: how many are evaluated."""

    rows: Sequence[Alarm] = ()
    why: str = ""
    rules: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return C({known, why, firing})."""
        return {"known": not self.why, "why": self.why, "firing": [asdict(alarm) for alarm in self.rows]}


def parse(value: Any, now: float) -> Alarms:
    """Return the alarms of an answer to C(PATH). now: seconds since 1970. Raises Untrusted for another form."""
    groups = read(_ANSWER, value, "the answer of Prometheus")["data"]["groups"]
    rules = [(rule, max(STALE_SECONDS, 3 * group["interval"])) for group in groups for rule in group["rules"]]
    silent = []
    for rule, seconds in rules:
        at = _seconds(rule["lastEvaluation"])
        if rule["health"] != "ok" or at is None or now - at > seconds:
            silent.append(_text(rule["name"]))
    alerts = [alert for rule, _seconds_of in rules for alert in rule["alerts"] or [] if alert["state"] == FIRING]
    ranks = {severity: rank for rank, severity in enumerate(SEVERITIES)}
    rows = sorted(
        map(_alarm, alerts),
        key=lambda alarm: (ranks.get(alarm.severity, len(ranks)), -(alarm.since or 0.0), alarm.key),
    )
    why = "" if rules else "Prometheus has no alerting rules"
    if silent:
        names = fleet_status.short(", ".join(silent))
        why = f"Prometheus does not evaluate {len(silent)} of {len(rules)} rules: {names}"
    return Alarms(tuple(rows), why, len(rules))


def _alarm(alert: Mapping[str, Any]) -> Alarm:
    labels, notes = alert["labels"], alert["annotations"] or {}
    places = [_text(labels[name]) for name in ("host", "cluster", "service") if labels.get(name)]
    return Alarm(
        name=_text(labels.get("alertname")),
        severity=_text(labels.get("severity")) or "no severity",
        where="/".join(places) or _text(labels.get("instance")),
        text=_text(notes.get("summary") or notes.get("description") or notes.get("message")),
        since=_seconds(alert["activeAt"]),
    )


def _text(value: Any) -> str:
    return fleet_status.short(printable(str(value or "")))


def _seconds(text: str) -> float | None:
    """Return the seconds since 1970 of a time of Prometheus, which may have nanoseconds; None for another text."""
    match = _TIME.fullmatch(text)
    try:
        return datetime.fromisoformat(match[1] + match[2].replace("Z", "+00:00")).timestamp() if match else None
    except (ValueError, OverflowError):
        return None
