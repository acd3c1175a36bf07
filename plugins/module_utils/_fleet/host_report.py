# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One report of the sections of M(dgxspark.vllm.spark_info) that a task asks for; here are those that a plan needs: facts and images.

A section is a function of a view of the host and of what the task asks. It is imported when it is asked for: a host compiles what it
imports at each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .._host import host_facts, host_lock, machine, made
from .._host.host_view import BadRequest, Explained, HostView, Request
from .._runtime.command import ADVICE, QUERY_SECONDS, NoAnswer, Unknown, reader


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


ASKED: dict[str, tuple[Callable[[HostView, Request], dict[str, Any]], dict[str, Any]]] = {
    "disks": (_disks, {"disks": {}}),
    "models": (_models, {"models": [], "snapshots": {}, "hf_home": {}}),
}
"""Facts that depend on what the task asks, each with what stands for it where it is unknown."""
FACTS = (*host_facts.FACTS, *ASKED)
"""Sections that are parts of C(spark)."""
Sections = Mapping[str, Callable[[HostView, Request], Any]]
SECTIONS: dict[str, Callable[[HostView, Request], Any]] = {
    "images": _images,
}
"""Sections that are results of their own; C(host_sections) has the others."""
BEFORE_FACTS = ("cabling",)
"""Sections that come before the facts: after a change, addresses and links need the seconds that the probe takes."""
DEFAULT = (*FACTS, "images")
HELPERS = ("docker.service", "earlyoom.service", "nvidia-persistenced.service")
"""Units beside those of services whose state V(health) reports."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "gather": {
        "type": "list",
        "elements": "str",
        "choices": [*FACTS, *SECTIONS],
        "default": list(DEFAULT),
    },
    "fail_on_unknown": {"type": "bool", "default": False},
    "root": {"type": "path", "default": "/"},
    "disk_paths": {"type": "list", "elements": "path", "default": []},
    "hf_home": {"type": "path", "default": "/srv/huggingface"},
    "images": {"type": "list", "elements": "str", "default": []},
    "probe_images": {"type": "bool", "default": False},
    "probe_timeout": {"type": "int", "default": 120},
    "brought_images": {"type": "list", "elements": "str", "default": []},
    "state_dir": {"type": "path", "default": "/var/lib/dgxspark"},
    "query_timeout": {"type": "float", "default": QUERY_SECONDS},
    "settings_dir": {"type": "path", "default": "/etc/dgxspark"},
}
"""Arguments that these sections read, as Ansible has them."""


def report(view: HostView, request: Request, sections: Iterable[str], known: Sections | None = None) -> dict[str, Any]:
    """Return the sections that are asked for.

    :param view: of the host
    :param request: what the task asks
    :param sections: names, of C(FACTS) and C(known)
    :param known: sections that are results of their own, C(SECTIONS) by default
    :returns: C(spark) with the facts, where any are asked for; each other section by its name, None for one without an answer; and
        C(unknown), the reasons of those, by section
    :raises BadRequest: for a malformed parameter
    :raises Unknown: where the task wants to fail for a section without an answer
    """
    wanted = set(sections)
    registry = SECTIONS if known is None else known
    result: dict[str, Any] = {}
    reasons: dict[str, Unknown] = {}

    def gather(names: Iterable[str]) -> None:
        for name in names:
            try:
                result[name] = _answer(view, request, name, registry[name])
            except Unknown as reason:
                result[name], reasons[name] = None, reason

    facts = {name: section for name, section in host_facts.FACTS.items() if name in wanted}
    facts |= {name: (_bound(read, request), missing) for name, (read, missing) in ASKED.items() if name in wanted}
    gather(name for name in BEFORE_FACTS if name in wanted)
    if facts:
        result["spark"] = host_facts.collect(view, facts)
    gather(name for name in registry if name in wanted and name not in BEFORE_FACTS)
    if result.get("images") is not None:
        result["host_architecture"] = machine.docker_architecture()
    unknown = {name: str(reason) for name, reason in reasons.items()}
    if request.params["fail_on_unknown"] and not all(isinstance(reason, Explained) for reason in reasons.values()):
        raise Unknown("; ".join(unknown.values()))
    return {**result, "unknown": unknown}


def _answer(view: HostView, request: Request, name: str, section: Callable[[HostView, Request], Any]) -> Any:
    """Return one section; raises C(BadRequest), and C(Unknown) for every other failure."""
    try:
        return section(view, request)
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


def report_host(module: Any, params: Mapping[str, Any], known: Sections | None = None) -> dict[str, Any]:
    """Return the report of M(dgxspark.vllm.spark_info) for the host that this runs on.

    :param module: the AnsibleModule, which gets the warnings
    :param params: of C(ARGUMENTS)
    :param known: as C(report) takes it
    :returns: of C(report)
    :raises BadRequest, Unknown: as C(report) does
    """
    request = Request(params, module.check_mode)
    ask = reader(params["query_timeout"], 2 * params["query_timeout"])
    others = HELPERS if "health" in params["gather"] else ()
    view = HostView(ask, params["root"], settings=params["settings_dir"], other_units=others)
    result = report(view, request, params["gather"], known)
    _note_brought(module, params["brought_images"], result.get("images") or {})
    for warning in request.warnings:
        module.warn(warning)
    return result


def options_of(
    module: Any, validator: Callable[[dict[str, Any]], Any], option: str, arguments: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the options of another module that one option of a module holds; fails for a wrong one.

    :param module: the AnsibleModule
    :param validator: ArgumentSpecValidator of Ansible
    :param option: name of the option
    :param arguments: of the other module, C(ARGUMENTS) by default
    :returns: the options with their defaults
    """
    checked = validator(ARGUMENTS if arguments is None else arguments).validate(module.params[option])
    if checked.error_messages:
        module.fail_json(msg=f"{option}: {'; '.join(checked.error_messages)}")
    return dict(checked.validated_parameters)


def _note_brought(module: Any, brought: Iterable[str], images: Mapping[str, Any]) -> None:
    """Note the images that this run brought as the collection's. images: what exists now."""
    ids = {str(images[ref]["id"]) for ref in brought if (images.get(ref) or {}).get("present")}
    if not ids or module.check_mode:
        return
    with host_lock.held(module) as locked:
        if locked:
            made.note_images(ids)
