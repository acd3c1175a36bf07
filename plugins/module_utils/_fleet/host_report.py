# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sections of M(dgxspark.vllm.spark_info): which exist, and one report of those that a task asks for.

A section is a function of a view of the host and of what the task asks. It is imported when it is asked for: a host compiles what it
imports at each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .._host import host_facts, machine
from .._host.host_view import BadRequest, Explained, HostView, Request
from .._runtime.command import ADVICE, NoAnswer, Unknown


def _disks(_view: HostView, request: Request) -> dict[str, Any]:
    return {"disks": machine.read_disks(request.params["disk_paths"])}


def _models(view: HostView, request: Request) -> dict[str, Any]:
    from .._content import snapshots
    from .._host import engine_access

    hf_home = Path(request.params["hf_home"])
    present, unreadable = snapshots.present(hf_home)
    view.unknown.update(unreadable)
    models = sorted(repo for repo, snapshot in present.items() if snapshot["commits"])
    return {"models": models, "snapshots": present, "hf_home": engine_access.look(hf_home)}


def _images(view: HostView, request: Request) -> dict[str, Any]:
    from .._content import image_looks

    return image_looks.section(view, request)


def _model_files(view: HostView, request: Request) -> list[dict[str, Any]]:
    from .._content import model_files

    return model_files.section(view, request)


def _ray(view: HostView, request: Request) -> dict[str, Any]:
    from .._cluster import ray_cluster

    return ray_cluster.section(view, request)


def _adoption(view: HostView, request: Request) -> dict[str, Any]:
    from . import launches

    return launches.section(view, request)


def _services(view: HostView, request: Request) -> list[dict[str, Any]]:
    from .._proof import service_status

    return service_status.services(view, request)


def _starts(view: HostView, request: Request) -> dict[str, Any]:
    from .._proof import service_status

    return service_status.starts(view, request)


def _engines(view: HostView, request: Request) -> dict[str, Any]:
    from .._proof import engines

    return engines.section(view, request)


def _health(view: HostView, request: Request) -> dict[str, Any]:
    from . import host_health

    return host_health.section(view, request)


def _distribution(view: HostView, request: Request) -> dict[str, Any]:
    from .._content import distribution

    return distribution.section(view, request)


def _upstream(view: HostView, request: Request) -> dict[str, Any]:
    from .._content import upstream_looks

    return upstream_looks.section(view, request)


def _cabling(view: HostView, request: Request) -> dict[str, Any]:
    from .._cluster import cable_probe

    return cable_probe.section(view, request)


ASKED: dict[str, tuple[Callable[[HostView, Request], dict[str, Any]], dict[str, Any]]] = {
    "disks": (_disks, {"disks": {}}),
    "models": (_models, {"models": [], "snapshots": {}, "hf_home": {}}),
}
"""Facts that depend on what the task asks, each with what stands for it where it is unknown."""
FACTS = (*host_facts.FACTS, *ASKED)
"""Sections that are parts of C(spark)."""
SECTIONS: dict[str, Callable[[HostView, Request], Any]] = {
    "images": _images,
    "model_files": _model_files,
    "ray": _ray,
    "adoption": _adoption,
    "services": _services,
    "starts": _starts,
    "engines": _engines,
    "health": _health,
    "distribution": _distribution,
    "upstream": _upstream,
    "cabling": _cabling,
}
"""Sections that are results of their own."""
BEFORE_FACTS = ("cabling",)
"""Sections that come before the facts: after a change, addresses and links need the seconds that the probe takes."""
DEFAULT = (*FACTS, "images")
HELPERS = ("docker.service", "earlyoom.service", "nvidia-persistenced.service")
"""Units beside those of services whose state V(health) reports."""


def report(view: HostView, request: Request, sections: Iterable[str]) -> dict[str, Any]:
    """Return the sections that are asked for.

    :param view: of the host
    :param request: what the task asks
    :param sections: names, of C(FACTS) and C(SECTIONS)
    :returns: C(spark) with the facts, where any are asked for; each other section by its name, None for one without an answer; and
        C(unknown), the reasons of those, by section
    :raises BadRequest: for a malformed parameter
    :raises Unknown: where the task wants to fail for a section without an answer
    """
    wanted = set(sections)
    result: dict[str, Any] = {}
    reasons: dict[str, Unknown] = {}

    def gather(names: Iterable[str]) -> None:
        for name in names:
            try:
                result[name] = _answer(view, request, name)
            except Unknown as reason:
                result[name], reasons[name] = None, reason

    facts = {name: section for name, section in host_facts.FACTS.items() if name in wanted}
    facts |= {name: (_bound(read, request), missing) for name, (read, missing) in ASKED.items() if name in wanted}
    gather(name for name in BEFORE_FACTS if name in wanted)
    if facts:
        result["spark"] = host_facts.collect(view, facts)
    gather(name for name in SECTIONS if name in wanted and name not in BEFORE_FACTS)
    if result.get("images") is not None:
        result["host_architecture"] = machine.docker_architecture()
    unknown = {name: str(reason) for name, reason in reasons.items()}
    if request.params["fail_on_unknown"] and not all(isinstance(reason, Explained) for reason in reasons.values()):
        raise Unknown("; ".join(unknown.values()))
    return {**result, "unknown": unknown}


def _answer(view: HostView, request: Request, name: str) -> Any:
    """Return one section; raises C(BadRequest), and C(Unknown) for every other failure."""
    try:
        return SECTIONS[name](view, request)
    except (BadRequest, Unknown):
        raise
    except NoAnswer as nothing:
        raise Unknown(f"{nothing}. {ADVICE}") from nothing
    except Exception as error:  # the boundary of a section
        raise Unknown(f"{name} cannot be read: {type(error).__name__}: {error}") from error


def _bound(
    read: Callable[[HostView, Request], dict[str, Any]], request: Request
) -> Callable[[HostView], dict[str, Any]]:
    return lambda view: read(view, request)
