# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the start-up lines of the engines of this host, from containers and Ray's workers. C(explain.py) interprets them."""

from __future__ import annotations

import fnmatch
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from .._cluster import ray_names
from .._common.foreign_text import decode_text
from .._host import beneath
from .._host.host_view import HostView
from .._runtime.command import noted

# systemd tells the second, and the clocks of the two are read one after the other.
SLACK = timedelta(seconds=5)
# A worker says what it took within its first lines.
MOST_BYTES = 4 * 2**20
SESSION_LOGS = ("worker-*.out", "worker-*.err")


def read_units(view: HostView, names: list[str]) -> dict[str, str | None]:
    """Return since when each unit has been active, by name; units that are not active are left out."""
    shown = noted({}, [], view.named_units, names)
    return {unit["name"]: unit["active_since"] for unit in shown if unit["active_state"] == "active"}


def containers_of(name: str, container: str, containers: list[dict[str, Any]]) -> list[str]:
    """Name the running containers of a service."""
    return [
        entry["name"]
        for entry in containers
        if entry["state"] == "running" and (entry["name"] == container or entry["service"] == name)
    ]


def read_logs(view: HostView, containers: list[str], until: str | None) -> tuple[list[str], str]:
    """Read the start-up lines of all containers of a service. until: as for C(read_log). Returns lines, and the reasons for missing logs."""
    logs = [read_log(view, container, until) for container in containers]
    return [line for lines, _reason in logs for line in lines], "; ".join(reason for _lines, reason in logs if reason)


def read_session(run_dir: Path, service: str) -> tuple[list[str], str]:
    """What the workers of this host wrote in the newest session of Ray, or a reason why there is nothing.

    Sessions are named by the time of their start.
    """
    folder = run_dir / "ray" / service / ray_names.SESSION
    try:
        sessions = sorted(path for path in folder.glob("session_2*") if path.is_dir() and not path.is_symlink())
        logs = f"{sessions[-1].name}/logs"
        with beneath.folder(folder, logs) as at:
            names = beneath.names(at)
        lines: list[str] = []
        # Engines write there; a link could lead to a foreign file.
        for name in (name for pattern in SESSION_LOGS for name in names if fnmatch.fnmatch(name, pattern)):
            with beneath.open_file(folder, f"{logs}/{name}") as stream:
                lines += decode_text(stream.read(MOST_BYTES)).splitlines()
    except IndexError:
        return [], f"its workers write into a session of Ray, and {folder} has none"
    except OSError as error:
        return [], f"what its workers wrote cannot be read: {error}"
    return lines, "" if lines else f"its workers write into a session of Ray, and {sessions[-1]} has nothing of them"


def read_log(view: HostView, container: str, until: str | None) -> tuple[list[str], str]:
    """Read the start-up lines of a container.

    A container is created at every start, so its log has no other start. Lines after the unit was active (requests, for
    weeks) are skipped.

    :param until: when the unit was active, as ISO 8601, None to read all
    :returns: lines, and the reason for a missing log, or an empty text
    """
    if until:
        until = (datetime.fromisoformat(until) + SLACK).isoformat()
    rc, out, err = view.container_log(container, *([f"--until={until}"] if until else []))
    if rc == 0 and until and not (out or err):
        # Its first line is dated later: the wall clock was set back since then.
        rc, out, err = view.container_log(container)
    if rc != 0:
        last = err.strip().splitlines()[-1:] or [f"exit code {rc}"]
        return [], f"its log cannot be read: {last[0]}"
    return f"{out}\n{err}".splitlines(), ""
