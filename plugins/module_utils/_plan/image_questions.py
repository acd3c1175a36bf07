# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which images are to be asked how they would plan a service, by whom, and what those that were asked mean for the memory of a host."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .._content import plan_probe
from .._memory.answered import ASKED_BYTES
from .._memory.budget import memory_budget
from .._memory.service_memory import NOT_COMPARED
from .._vllm import launch
from . import lock as lock_file
from .planned import PlannedHost
from .service import Host, PlacedService, Sources

FREE_GIB = plan_probe.MEMORY_GIB + 4.0
"""Memory that a Spark must have available to be asked: what the container may take, and room for what else runs."""
ASK, ELSEWHERE, ABSENT, NO_MEMORY, NEVER = "ask", "elsewhere", "absent", "no_memory", "never"
"""States of a question: its host is asked, another one is, none has the image yet, none has the memory, nobody is to be asked."""
_WHY = {
    ABSENT: "no Spark that was reached has it yet",
    NO_MEMORY: f"no Spark that has the image has {FREE_GIB:g} GiB of memory available",
    NEVER: "spark_probe is none",
}


def solve(
    request: dict[str, Any],
    services: Sequence[PlacedService],
    launches: Mapping[str, Mapping[str, Any]],
    host: Host,
    sources: Sources,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the memory budget of a host with what images said, and the questions that are open.

    :param request: of C(memory_budget); what images said is put into it
    :param services: of the host
    :param launches: of each service, as C(judging.check_launch) returns it
    :param host: with what it said of its images
    :param sources: with the lock file, and what was asked before
    :returns: budget and questions
    """
    solved = memory_budget(request)
    entries = {entry["name"]: entry for entry in request["services"]}
    asked, heard = [], False
    for service in services:
        refused = any(
            each["rule"] == "memory.refused" and each["service"] == service.name for each in solved["findings"]
        )
        figures = solved["services"].get(service.name) or {}
        if not refused and (figures.get("sources") or {}).get("kv_cache") != NOT_COMPARED:
            continue
        if "transformers_version" not in service.config:
            if refused:
                entries[service.name]["image_plan"] = {
                    "reason": "config is not the whole config.json of the model, it has no transformers_version"
                }
                heard = True
            continue
        question = _question(service, launches[service.name], host, sources, refused)
        said = next(filter(None, map(sources.known, question.pop("keys"))), None)
        if said is None:
            asked.append(question)
        else:
            entries[service.name]["image_plan"] = said
            heard = True
    return (memory_budget(request) if heard else solved), asked


def _question(
    service: PlacedService, judged: Mapping[str, Any], host: Host, sources: Sources, refused: bool
) -> dict[str, Any]:
    """Return what an image is asked of a service, and by which names (C(keys)) its answer is known.

    An image that is not there is known by the ids that the lock file has.
    """
    ref = service.image["ref"]
    image = host.images.get(ref) or {}
    there = bool(image.get("present")) and bool(image.get("id"))
    files = {"config.json": json.dumps(service.config, sort_keys=True)}
    if service.quant_config:
        files["hf_quant_config.json"] = json.dumps(service.quant_config, sort_keys=True)
    draft = {"config.json": json.dumps(service.draft_config, sort_keys=True)} if service.draft_config else {}
    args = plan_probe.relevant(
        launch.render({key: value for key, value in judged["args"].items() if key not in service.solved})
    )
    if judged["args"].get("trust-remote-code"):
        args.append("--trust-remote-code")
    asked = plan_probe.question(files, args, ASKED_BYTES, draft)
    image_id = str(image["id"]) if there else ""
    named = [image_id] if there else lock_file.ids_of(sources.applied_lock, ref, host.machine)
    keys = [plan_probe.cache_name(each, asked) for each in [*named, *([] if there else [f"ref:{ref}"])]]
    return {
        "service": service.name,
        "image": ref,
        "image_id": image_id,
        "digests": sorted(image.get("repo_digests") or []) if there else [],
        "key": keys[-1],
        "keys": keys,
        "files": files,
        "draft_files": draft,
        "args": args,
        "available": list(ASKED_BYTES),
        "refused": refused,
        "state": ABSENT,
    }


def assign(
    sparks: Mapping[str, Host], planned: Mapping[str, PlannedHost], reached: Collection[str] | None = None
) -> None:
    """Say of each question who is asked: one host for all that have the same one.

    :param sparks: all Sparks, by name
    :param planned: the plan of each; C(image_questions) get their state, and refusals say why nobody is asked
    :param reached: hosts that the play may ask now, all where it is None
    """
    by_key: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, body in planned.items():
        for question in body.image_questions:
            by_key.setdefault(question["key"], []).append((name, question))
    for everyone in by_key.values():
        asked = [each for each in everyone if reached is None or each[0] in reached]
        state, chosen = _choose(sparks, asked) if asked else (ABSENT, "")
        for name, question in everyone:
            question["state"] = ELSEWHERE if chosen and name != chosen else state
            if question["refused"] and _WHY.get(question["state"]):
                _explain(planned[name].findings, question)


def _choose(sparks: Mapping[str, Host], everyone: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[str, str]:
    """Return the state of a question, and the host that is asked if one is."""
    first = everyone[0][0]
    probe = sparks[first].settings["spark_probe"]
    if probe == "none":
        return NEVER, ""
    if probe == "controller":
        return ASK, first
    there = [name for name, question in everyone if question["image_id"] and sparks[name].measured]
    free = {name: ((sparks[name].measured or {}).get("memory") or {}).get("available_gib") or 0.0 for name in there}
    best = max(there, key=lambda name: free[name], default="")
    if not best:
        return ABSENT, ""
    return (ASK, best) if free[best] >= FREE_GIB else (NO_MEMORY, "")


def _explain(findings: Sequence[dict[str, Any]], question: Mapping[str, Any]) -> None:
    for finding in findings:
        if finding["rule"] == "memory.refused" and finding["service"] == question["service"]:
            finding["message"] += f" Its image was not asked: {_WHY[question['state']]}."


def postpone(planned: Mapping[str, dict[str, Any]]) -> None:
    """Make warnings of refusals that may be answered once the image is on its host, or is known by its id. planned: the plan of each host."""
    for body in planned.values():
        later = {each["service"] for each in body["image_questions"] if not each["image_id"]}
        for finding in body["findings"]:
            if finding["rule"] == "memory.refused" and finding["service"] in later:
                finding["severity"] = "warning"
                finding["message"] += " Once it is there, what it says is used, before anything starts."
