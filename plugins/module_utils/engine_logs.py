# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The start-up lines of the engines of this host: of their containers, and of Ray's workers. Reads; changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils import ray_cluster, units

# systemd tells the second, and the clocks of the two are read one after the other.
SLACK = timedelta(seconds=5)
# A worker says what it took within its first lines.
MOST_BYTES = 4 * 2**20
SESSION_LOGS = ("worker-*.out", "worker-*.err")
# What engines say when they do not start, what it means, and what to do; the first that is found counts.
KNOWN = (
    (
        re.compile(r"no kernel image is available for execution on the device"),
        "the image, or a package in it, has no kernels for this GPU (sm_121)",
        "serve from an image that was built for it, as a recipe names one; image_info says what is in an image",
    ),
    (
        re.compile(r"Failed to find a kernel that can implement the"),
        "this vLLM has no kernel for a layer of this checkpoint on this GPU: its format, its group size or its shape, as happens with "
        "checkpoints that were quantised at home",
        "serve a checkpoint that a recipe names, quantise with that layer left out, or take a newer image",
    ),
    (
        re.compile(r"compiler_interface\.py\", line \d+, in load\b|UnpicklingError|EOFError: Ran out of input"),
        "an entry of the compile cache cannot be read, as after an update or a start that was cut off",
        "stop the unit, remove the folder of this service below spark_cache_dir (/var/cache/dgxspark), and start it again; it compiles "
        "for minutes once",
    ),
)


def read_units(run: Any, names: list[str]) -> dict[str, str | None]:
    """Since when each unit has been active, as far as it is."""
    rc, out, _err = run(units.show_command(names)) if names else (0, "", "")
    shown = units.parse_show(out) if rc == 0 else []
    return {unit["name"]: unit["active_since"] for unit in shown if unit["active_state"] == "active"}


def under_ray(service: dict[str, Any]) -> bool:
    return (service["cluster"] or {}).get("executor") == "ray"


def main_container(service: dict[str, Any]) -> str:
    """Name the container in which the rank of this host works."""
    name: str = service["container"]
    return ray_cluster.container_name(name) if under_ray(service) and service["rank"] else name


def containers_of(service: dict[str, Any], containers: list[dict[str, Any]]) -> list[str]:
    """Name the running containers of a service."""
    return [
        container["name"]
        for container in containers
        if container["state"] == "running"
        and (container["name"] == service["container"] or container["service"] == service["name"])
    ]


def read_logs(run: Any, containers: list[str], until: str | None) -> tuple[list[str], str]:
    """The start-up lines of all containers of a service, and why there are none of one of them."""
    lines: list[str] = []
    reasons = []
    for container in containers:
        own, reason = read_log(run, container, until)
        lines += own
        reasons += [reason] if reason else []
    return lines, "; ".join(reasons)


def read_session(run_dir: Path, service: str) -> tuple[list[str], str]:
    """What the workers of this host wrote in the newest session of Ray, or a reason why there is nothing.

    Sessions are named by the time of their start.
    """
    folder = run_dir / "ray" / service / ray_cluster.SESSION
    try:
        sessions = sorted(path for path in folder.glob("session_2*") if path.is_dir() and not path.is_symlink())
        files = [path for pattern in SESSION_LOGS for path in sorted((sessions[-1] / "logs").glob(pattern))]
        lines: list[str] = []
        for path in files:
            with path.open("rb") as stream:
                lines += stream.read(MOST_BYTES).decode("utf-8", "replace").splitlines()
    except IndexError:
        return [], f"its workers write into a session of Ray, and {folder} has none"
    except OSError as error:
        return [], f"what its workers wrote cannot be read: {error}"
    return lines, "" if lines else f"its workers write into a session of Ray, and {sessions[-1]} has nothing of them"


def read_log(run: Any, container: str, until: str | None) -> tuple[list[str], str]:
    """The start-up lines of a container, or a reason why there are none.

    A container of ours is made anew at every start, so its log has no other start; what came after the unit was active
    (requests, for weeks) is left out.
    """
    if until:
        until = (datetime.fromisoformat(until) + SLACK).isoformat()
    rc, out, err = run(["docker", "logs", *([f"--until={until}"] if until else []), container])
    if rc != 0:
        last = err.strip().splitlines()[-1:] or [f"exit code {rc}"]
        return [], f"its log cannot be read: {last[0]}"
    return f"{out}\n{err}".splitlines(), ""


def known(lines: Iterable[str]) -> tuple[str, str]:
    """Say what a log of an engine that did not start means, and what to do; empty texts where it has nothing that is known."""
    text = "\n".join(lines)
    return next(((cause, fix) for pattern, cause, fix in KNOWN if pattern.search(text)), ("", ""))
