# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the sections of a host that a task asks for, with those sections that every plan reads: facts and images.

A section is a function of a view of the host and of the options of the task. It imports its code when it runs: hosts compile
every import anew at each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .._host import host_facts, host_lock, machine, made
from .._host.host_view import BadRequest, Explained, HostView, Request
from .._runtime.command import ADVICE, QUERY_SECONDS, NoAnswer, Unknown, reader

Section = Callable[[HostView, Request], Any]
Sections = Mapping[str, Section]


def _disks(request: Request, _view: HostView) -> dict[str, Any]:
    return {"disks": machine.read_disks(request.params["disk_paths"])}


def _models(request: Request, view: HostView) -> dict[str, Any]:
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


FACTS_WITH_OPTIONS: dict[str, tuple[Callable[[Request, HostView], dict[str, Any]], dict[str, Any]]] = {
    "disks": (_disks, {"disks": {}}),
    "models": (_models, {"models": [], "snapshots": {}, "hf_home": {}}),
}
"""Facts that depend on options of the task, each with the values of a section without an answer."""
FACTS = (*host_facts.FACTS, *FACTS_WITH_OPTIONS)
"""Sections that are parts of C(spark)."""
SECTIONS: dict[str, Section] = {"images": _images}
"""Sections that are results themselves; C(host_sections) has the others."""
BEFORE_FACTS = ("cabling",)
"""Sections that come before the facts: after a change, addresses and links need the seconds that the probe takes."""
DEFAULT = (*FACTS, "images")
HELPERS = ("docker.service", "earlyoom.service", "nvidia-persistenced.service")
"""Further units whose state V(health) reports."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "gather": {"type": "list", "elements": "str", "choices": [*FACTS, *SECTIONS], "default": list(DEFAULT)},
    "fail_on_unknown": {"type": "bool", "default": False},
    "root": {"type": "path", "default": "/"},
    "disk_paths": {"type": "list", "elements": "path", "default": []},
    "hf_home": {"type": "path", "default": "/srv/huggingface"},
    "images": {"type": "list", "elements": "str", "default": []},
    "brought_images": {"type": "list", "elements": "str", "default": []},
    "state_dir": {"type": "path", "default": "/var/lib/dgxspark"},
    "query_timeout": {"type": "float", "default": QUERY_SECONDS},
    "settings_dir": {"type": "path", "default": "/etc/dgxspark"},
}
"""Arguments of these sections, in Ansible's form."""


def report(view: HostView, request: Request, names: Iterable[str], sections: Sections = SECTIONS) -> dict[str, Any]:
    """Return the sections that a task asks for.

    :returns: C(spark) with the facts if any are requested; each other section by its name, None without an answer; and C(unknown), the
        reasons of missing answers by section
    :raises BadRequest: for a malformed parameter
    :raises Unknown: for a section without an answer, with the option C(fail_on_unknown)
    """
    requested = set(names)
    result: dict[str, Any] = {}
    reasons: dict[str, Unknown] = {}

    def gather(chosen: Iterable[str]) -> None:
        for name in chosen:
            result[name] = None
            try:
                result[name] = sections[name](view, request)
            except BadRequest:
                raise
            except Unknown as reason:
                reasons[name] = reason
            except NoAnswer as silence:
                reasons[name] = Unknown(f"{silence}. {ADVICE}")
            except Exception as error:  # the boundary of a section
                reasons[name] = Unknown(f"{name} cannot be read: {type(error).__name__}: {error}")

    gather(name for name in BEFORE_FACTS if name in requested)
    facts: dict[str, host_facts.Section] = {
        **host_facts.FACTS,
        **{name: (partial(read, request), missing) for name, (read, missing) in FACTS_WITH_OPTIONS.items()},
    }
    facts = {name: section for name, section in facts.items() if name in requested}
    if facts:
        result["spark"] = host_facts.collect(view, facts)
    gather(name for name in sections if name in requested and name not in BEFORE_FACTS)
    if result.get("images") is not None:
        result["host_architecture"] = machine.docker_architecture()
    unknown = {name: str(reason) for name, reason in reasons.items()}
    if request.params["fail_on_unknown"] and not all(isinstance(reason, Explained) for reason in reasons.values()):
        raise Unknown("; ".join(unknown.values()))
    return {**result, "unknown": unknown}


def report_host(module: Any, params: Mapping[str, Any], sections: Sections = SECTIONS) -> dict[str, Any]:
    """Return the report of M(dgxspark.vllm.spark_info) for the host that this runs on; images that this run brought are noted as the collection's."""
    request = Request(params, module.check_mode)
    run = reader(params["query_timeout"], 2 * params["query_timeout"])
    helpers = HELPERS if "health" in params["gather"] else ()
    view = HostView(run, params["root"], settings=params["settings_dir"], other_units=helpers)
    result = report(view, request, params["gather"], sections)
    images = result.get("images") or {}
    brought = {str(images[ref]["id"]) for ref in params["brought_images"] if (images.get(ref) or {}).get("present")}
    if brought and not module.check_mode:
        with host_lock.held(module) as locked:
            if locked:
                made.note_images(brought)
    for warning in request.warnings:
        module.warn(warning)
    return result


def options_of(
    module: Any, validator: Callable[[dict[str, Any]], Any], option: str, arguments: dict[str, Any] = ARGUMENTS
) -> dict[str, Any]:
    """Return the options of another module that one option of a module holds; fails for a wrong one."""
    validated = validator(arguments).validate(module.params[option])
    if validated.error_messages:
        module.fail_json(msg=f"{option}: {'; '.join(validated.error_messages)}")
    return dict(validated.validated_parameters)
