# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of the last day: what is unknown is never called stopped, it stands alone, and texts of hosts stay texts."""

from __future__ import annotations

from typing import Any

import pytest
from html_fixture import Reader

from ansible_collections.dgxspark.vllm.plugins.action import status
from ansible_collections.dgxspark.vllm.plugins.module_utils._common import reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import Untrusted
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers, day_page
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.unit_history import AGENT, DAY, MOST_ALARMS

AT = "2026-11-29T10:00:00+00:00"
HOUR = 3600.0
HOSTILE = "</style><script>alert(1)</script>\"'&<img src=x onerror=1>"


def unit(*times: tuple[str, float], begin: float = 0.0, restarts: int = 0) -> dict[str, Any]:
    """Return a unit by the hour at which each of its states ends; an empty state is unknown. begin: hour of the first."""
    spans = []
    for state, end in times:
        spans += [{"state": state, "begin": begin * HOUR, "end": end * HOUR}] if state else []
        begin = end
    return {"spans": spans, "restarts": restarts}


PLANNED = {
    "spark-1": {
        "services": [{"name": "heavy", "state": "started"}, {"name": "night", "state": "on_demand"}],
        "speech": [{"name": "ears", "state": "started"}],
    },
    "spark-2": {"services": [{"name": "heavy", "state": "started"}]},
    "spark-3": {"services": [{"name": "heavy", "state": "started"}]},
}
DAYS: dict[str, Any] = {
    "spark-1": {
        "units": {
            "heavy": unit(("running", 9), ("failed", 9.1), ("starting", 9.3), ("running", 24), restarts=1),
            "night": unit(
                ("stopped", 2), ("starting", 2.2), ("running", 5), ("stopped", 19), ("starting", 19.2), ("running", 24)
            ),
            "ears": unit(("running", 24)),
            AGENT: unit(("running", 11), ("stopped", 13), ("running", 24)),
        },
        "alarms": [
            {"at": 8.9 * HOUR, "text": "guard: memory is short: 2.1 GiB available"},
            {"at": 8.95 * HOUR, "text": "guard: memory is short: 2.1 GiB available"},
            {"at": 9 * HOUR, "text": "watchdog: spark-heavy.service is wedged: no token for 120 s"},
        ],
    },
    "spark-2": {
        "units": {
            "heavy": unit(("running", 6), ("", 15.5), ("stopped", 15.6), ("starting", 15.8), ("running", 24)),
            AGENT: unit(("running", 6), ("", 15.5), ("running", 24)),
        },
        "alarms": [],
    },
    "spark-3": "port 22: Connection refused",
}
"""The day of three Sparks, the second of which was off, and the third of which does not answer; also for tests/webui and docs/images."""


def made(days: dict[str, Any] | None = None, planned: dict[str, Any] | None = None) -> str:
    return day_page.page(DAYS if days is None else days, PLANNED if planned is None else planned, AT, "my-sparks")


def test_it_is_well_formed_and_needs_nothing_but_itself() -> None:
    for text in (made(), made({}), made({"a": {"units": {}, "alarms": []}})):
        html = Reader(text)
        assert not {name for _tag, name, _value in html.attributes} & {"src", "onclick"} and "<script" not in text
        assert "url(" not in text and "default-src 'none'" in text


def test_lines_say_the_same_to_screen_readers_as_their_colours() -> None:
    html = Reader(made())
    labels = html.values("aria-label")
    assert "running 23h 42m, starting 12m 0s, failed 6m 0s, 1 restarts" in labels
    assert "warm (on demand) 7h 36m, starting 24m 0s, cold (on demand) 16h 0m" in labels
    assert "running 14h 12m, starting 12m 0s, stopped 6m 0s, unknown 9h 30m" in labels
    # Without the agent alarms are unknown, also while it is known to be stopped.
    assert "watched: running 22h 0m, unknown 2h 0m; 3 alarms" in labels
    assert "27 Nov" not in html.text and "28 Nov 18:57 UTC" in html.text and "guard: memory is short" in html.text


def test_a_host_that_does_not_answer_is_unknown() -> None:
    html = Reader(made({"spark-3": DAYS["spark-3"]}))
    assert "port 22: Connection refused" in html.text and "1 without an answer" in html.text
    assert html.values("aria-label") == ["unknown"]
    none = Reader(made({"spark-1": {"units": {"heavy": unit()}, "alarms": []}}))
    assert "unknown 1d 0h" in none.values("aria-label") and not [
        style for style in none.values("style") if "width" in style
    ]


def test_hostile_names_and_texts_stay_texts() -> None:
    planned = {HOSTILE: {"services": [{"name": HOSTILE, "state": HOSTILE}]}}
    days = {
        HOSTILE: {"units": {HOSTILE: unit(("running", 24))}, "alarms": [{"at": 1.0, "text": HOSTILE}]},
        "b": HOSTILE,
    }
    text = made(days, planned)
    assert "<script" not in text and "<img" not in text and Reader(text).text.count("onerror=1") >= 4


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, [], {"units": {}}, {"units": {"a": {"spans": [], "restarts": -1}}, "alarms": []}),
        {"units": {"a": {"spans": [{"state": "melted", "begin": 0, "end": 1}], "restarts": 0}}, "alarms": []},
        {"units": {"a": {"spans": [{"state": "running", "begin": "0", "end": 1}], "restarts": 0}}, "alarms": []},
        {"units": {}, "alarms": [{"at": 1, "text": "x"}] * (MOST_ALARMS + 1)},
        {"units": {}, "alarms": [{"at": float("inf"), "text": "x"}]},
    ],
)
def test_malformed_answers_are_refused(wrong: Any) -> None:
    with pytest.raises(Untrusted):
        reader.read(answers.HISTORY, wrong, "history")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"unknown": {"history": "journalctl did not answer in 10 s"}}, "journalctl did not answer in 10 s"),
        ({"failed": True, "msg": "no Python"}, "no Python"),
        ({"history": "\x1b[31m"}, "history is"),
        *(
            ({"unknown": "x"}, "its answer cannot be read"),
            ("x", "its answer cannot be read"),
            ({}, "it was not asked"),
        ),
    ],
)
def test_a_host_without_an_answer_has_the_reason(answer: Any, why: str) -> None:
    day = status.last_day({"reached": True, "answers": {"services": answer}}, "services")
    assert isinstance(day, str) and why in day and "\x1b" not in day
    assert status.last_day({"reached": False, "why": "port 22: timeout"}, "services") == "port 22: timeout"
    good: dict[str, Any] = {"units": {}, "alarms": []}
    assert status.last_day({"reached": True, "answers": {"services": {"history": good}}}, "services") == good


def test_figures_outside_of_the_day_stay_on_the_page() -> None:
    spans = [{"state": "running", "begin": 9e9, "end": 5.0}, {"state": "failed", "begin": 0.0, "end": 9e15}]
    day = {"units": {"heavy": {"spans": spans, "restarts": 2**53}}, "alarms": [{"at": 9e15, "text": "x"}]}
    html = Reader(made({"spark-1": reader.read(answers.HISTORY, day, "history")}))
    lefts = [float(style.partition("left:")[2].partition("%")[0]) for style in html.values("style") if "left:" in style]
    assert lefts and all(0 <= left <= 100 for left in lefts) and DAY == 86400


def test_a_hundred_sparks_with_full_days_are_drawn_in_seconds() -> None:
    spans = [
        {"state": ("running", "failed")[number % 2], "begin": number * 288.0, "end": number * 288.0 + 288}
        for number in range(300)
    ]
    body = {
        "units": {"heavy": {"spans": spans, "restarts": 150}},
        "alarms": [{"at": 1.0, "text": f"x{number}"} for number in range(MOST_ALARMS)],
    }
    hosts = {f"spark-{number}": body for number in range(100)}
    text = made(hosts, dict.fromkeys(hosts, PLANNED["spark-2"]))
    assert len(text) < 12e6 and "Only the newest 200 alarms were read." in text
