from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import engine_logs


def test_the_lines_end_when_the_unit_was_active(fake_run: Any) -> None:
    fake_run.on("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy", "out\n", err="\x1b[32merr\n")
    assert engine_logs.read_logs(HostView(fake_run), ["spark-heavy"], "2026-11-20T09:33:00+00:00") == (
        ["out", "", "\x1b[32merr"],
        "",
    )


def test_a_log_of_a_clock_that_was_set_back_is_read_whole(fake_run: Any) -> None:
    """All of it is dated later than the moment at which the unit was active."""
    fake_run.on("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy").on("docker logs spark-heavy", "start\n")
    assert engine_logs.read_logs(HostView(fake_run), ["spark-heavy"], "2026-11-20T09:33:00+00:00") == (
        ["start", ""],
        "",
    )


def test_each_container_that_cannot_be_read_gives_a_reason(fake_run: Any) -> None:
    fake_run.on("docker logs spark-a", "line").on("docker logs spark-b", rc=1, err="first\nno such container\n")
    lines, reason = engine_logs.read_logs(HostView(fake_run), ["spark-a", "spark-b"], None)
    assert "line" in lines and reason == "its log cannot be read: no such container"


def test_containers_by_name_and_by_label() -> None:
    containers: list[dict[str, Any]] = [
        {"name": "spark-heavy", "service": None, "state": "running"},
        {"name": "spark-heavy-ray", "service": "heavy", "state": "running"},
        {"name": "spark-heavy-old", "service": "heavy", "state": "exited"},
        {"name": "spark-fast", "service": "fast", "state": "running"},
    ]
    assert engine_logs.containers_of("heavy", "spark-heavy", containers) == ["spark-heavy", "spark-heavy-ray"]


def test_units_that_are_not_active_have_no_moment(fake_run: Any) -> None:
    fake_run.on(
        "systemctl show",
        "Id=a.service\nActiveState=active\nActiveEnterTimestamp=Fri 2026-11-20 09:33:00 UTC\n\n"
        "Id=b.service\nActiveState=failed\nActiveEnterTimestamp=\n",
    )
    assert list(engine_logs.read_units(HostView(fake_run), ["a.service", "b.service"])) == ["a.service"]
    assert engine_logs.read_units(HostView(fake_run), []) == {}


@pytest.mark.parametrize("sessions", [[], ["session_2026-11-20_09-25-00_1"]])
def test_rays_newest_session(tmp_path: Path, sessions: list[str]) -> None:
    folder = tmp_path / "ray/heavy/session"
    for name in sessions:
        logs = folder / name / "logs"
        logs.mkdir(parents=True)
        (logs / "worker-1.out").write_text("new\n")
        (logs / "raylet.out").write_text("not a worker's\n")
        (folder / "session_2026-11-19_09-25-00_1/logs").mkdir(parents=True)
        (folder / "session_latest").symlink_to(folder / name)
    lines, reason = engine_logs.read_session(tmp_path, "heavy")
    assert lines == (["new"] if sessions else [])
    assert bool(reason) is not bool(sessions)
