# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which images are to be asked how they would plan a service, by whom, and what those that were asked mean for the memory of a host."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .._cluster import clustering
from .._content import plan_probe
from .._content.snapshots import COMMIT
from .._memory.answered import ASKED_BYTES
from .._memory.budget import memory_budget
from .._memory.engine import NOT_COMPARED
from .._memory.layers import text_config
from .._vllm import launch
from . import lock as lock_file
from .planned import PlannedHost
from .service import Host, JudgedLaunch, PlacedService, Sources

FREE_GIB = plan_probe.MEMORY_GIB + 4.0
"""Memory that a Spark must have available to be asked: what the container may take, and room for what else runs."""
ASK, ELSEWHERE, ABSENT, NO_FILES, NO_MEMORY, NEVER = "ask", "elsewhere", "absent", "no_files", "no_memory", "never"
"""States of a question: its host is asked, another one is, none has the image yet, none the files of the model that are to be read, none has
the memory, nobody is to be asked."""
ANSWERABLE = (
    "memory.refused",
    "memory.plan",
    "memory.align_block",
    "memory.kernel_block",
    "memory.auto_fit",
    "memory.one_request",
    "memory.state_blocks",
)
"""Refusals that rest on how the cache is cut: where the arithmetic was not compared with this version, its image may know better."""
IMAGES, MODELS = "images", "models"
"""What a run may bring, so that a question that waits for it is answered before anything starts."""
_WHY = {
    ABSENT: "no Spark that was reached has it yet",
    NO_FILES: "no Spark that has it has the files of the model yet",
    NO_MEMORY: f"no Spark that has the image has {FREE_GIB:g} GiB of memory available",
    NEVER: "spark_probe is none",
}


def solve(
    request: dict[str, Any],
    services: Sequence[PlacedService],
    launches: Mapping[str, JudgedLaunch],
    host: Host,
    sources: Sources,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the memory budget of a host with what images said, and the questions that are open.

    :param request: of C(memory_budget); what images said is put into it
    :param services: of the host
    :param launches: of each service, as C(judging.check_launch) returns it
    :param host: with what it said of its images
    :param sources: with the lock file, and what was asked before
    :returns: budget, with C(image_answers), the name of the answer that each service was planned with, and questions
    """
    solved = memory_budget(request)
    entries = {entry["name"]: entry for entry in request["services"]}
    asked, heard = [], False
    used: dict[str, str] = {}
    for service in services:
        own = [each for each in solved["findings"] if each["service"] == service.name and each["severity"] == "error"]
        unknown = any(each["rule"] == "memory.refused" for each in own)
        refused = any(each["rule"] in ANSWERABLE for each in own)
        figures = solved["services"].get(service.name) or {}
        if not unknown and (figures.get("sources") or {}).get("kv_cache") != NOT_COMPARED:
            continue
        content, why = _content(service, launches[service.name], host)
        if why:
            if unknown:
                entries[service.name]["image_plan"] = {"reason": why}
                heard = True
            continue
        question = _question(service, launches[service.name], host, sources, refused, content)
        said = {key: answer for key in question.pop("keys") if (answer := sources.known(key)) is not None}
        if not said:
            asked.append(question)
            continue
        key, entries[service.name]["image_plan"] = next(iter(said.items()))
        heard = True
        if entries[service.name]["image_plan"]["answer"] is not None:
            used[service.name] = key
    if heard:
        solved = memory_budget(request)
    solved["image_answers"] = used
    return solved, asked


def reads_params_json(service: PlacedService, args: Mapping[str, Any]) -> bool:
    """Tell whether vLLM reads a Mistral 4 from params.json, which Mistral's own repositories have beside config.json."""
    asked = args.get("config-format") or "auto"
    own = str(service.model.get("repo") or "").startswith("mistralai/")
    mistral = text_config(dict(service.config)).get("model_type") == "mistral4"
    return mistral and (asked == "mistral" or (asked == "auto" and own))


def _content(service: PlacedService, judged: JudgedLaunch, host: Host) -> tuple[dict[str, Any], str]:
    """Return what an image is given of a model, and why it can be given nothing; one of the two is empty.

    The whole config.json of the inventory is enough, unless the model comes with code that is trusted. Else a host reads the snapshot
    that it has: C(snapshot) and C(draft_snapshot), the commit empty where it has none.
    """
    if (judged.args.get(clustering.REPLICAS) or 1) != 1:
        return {}, "an image plans one replica alone (data-parallel-size)"
    trust, repo = bool(judged.args.get("trust-remote-code")), service.model.get("repo")
    here = host.settings["spark_probe"] == "controller"
    whole = "transformers_version" in service.config and not reads_params_json(service, judged.args)
    readable = bool(repo) and not service.model.get("path") and not here
    if whole and not (trust and readable):
        files = {"config.json": json.dumps(service.config, sort_keys=True)}
        if service.quant_config:
            files["hf_quant_config.json"] = json.dumps(service.quant_config, sort_keys=True)
        draft = {"config.json": json.dumps(service.draft_config, sort_keys=True)} if service.draft_config else {}
        return {"files": files, "draft_files": draft}, ""
    if not readable:
        where = (
            "; the controller, which is asked, has no other"
            if here
            else ", and there is no snapshot of a repository to read"
        )
        missing = (
            "vLLM reads params.json of this model, which the inventory does not have"
            if reads_params_json(service, judged.args)
            else "config is not the whole config.json of the model, it has no transformers_version"
        )
        return {}, f"{missing}{where}"
    found = {"snapshot": _snapshot(host, str(repo), service.model.get("revision"))}
    drafter = (judged.args.get("speculative-config") or {}).get("model")
    extra = next((each for each in service.model.get("extra") or [] if each["repo"] == drafter), None)
    if extra:
        found["draft_snapshot"] = _snapshot(host, extra["repo"], extra.get("revision"))
    elif drafter and drafter != repo:
        return {}, f"the drafter {drafter} is no repository that the service has beside its model (model.extra)"
    return found, ""


def _snapshot(host: Host, repo: str, revision: Any) -> dict[str, str]:
    """Return a snapshot by the commit that a host has, or that its revision is; empty where neither says it."""
    wanted = str(revision or "main")
    there = ((host.measured or {}).get("snapshots") or {}).get(repo) or {}
    commit = (there.get("refs") or {}).get(wanted, wanted)
    known = commit if COMMIT.fullmatch(commit) else ""
    return {
        "repo": repo,
        "revision": wanted,
        "commit": known,
        "there": "yes" if known in (there.get("commits") or []) else "",
    }


def _question(
    service: PlacedService,
    judged: JudgedLaunch,
    host: Host,
    sources: Sources,
    refused: bool,
    content: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what an image is asked of a service, and by which names (C(keys)) its answer is known.

    An image that is not there is known by the ids that the lock file has. content: of C(_content).
    """
    ref = service.image["ref"]
    image = host.images.get(ref) or {}
    there = bool(image.get("present")) and bool(image.get("id"))
    args = plan_probe.relevant(
        launch.render({key: value for key, value in judged.args.items() if key not in service.solved})
    )
    if judged.args.get("trust-remote-code"):
        args.append("--trust-remote-code")
    read = {name: content[name] for name in ("snapshot", "draft_snapshot") if name in content}
    files, draft = content.get("files") or {}, content.get("draft_files") or {}
    named = {name: f"{each['repo']}@{each['commit'] or each['revision']}" for name, each in read.items()}
    asked = plan_probe.question(files, args, ASKED_BYTES, draft, env=judged.env, snapshots=named)
    image_id = str(image["id"]) if there else ""
    ids = [image_id] if there else lock_file.ids_of(sources.applied_lock, ref, host.machine)
    keys = [plan_probe.cache_name(each, asked) for each in [*ids, *([] if there else [f"ref:{ref}"])]]
    # A branch may be another commit tomorrow: nothing is known by its name.
    pinned = all(each["commit"] for each in read.values())
    return {
        "service": service.name,
        "image": ref,
        "image_id": image_id,
        "digests": sorted(image.get("repo_digests") or []) if there else [],
        "key": keys[-1],
        "keys": keys if pinned else [],
        "files": files,
        "draft_files": draft,
        **{name: {"repo": each["repo"], "commit": each["commit"]} for name, each in read.items()},
        "files_there": all(each["there"] for each in read.values()),
        "args": args,
        "env": asked["env"],
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
    if not there:
        return ABSENT, ""
    reading = {name for name, question in everyone if question["files_there"]}
    best = max((name for name in there if name in reading), key=lambda name: free[name], default="")
    if not best:
        return NO_FILES, ""
    return (ASK, best) if free[best] >= FREE_GIB else (NO_MEMORY, "")


def _explain(findings: Sequence[dict[str, Any]], question: Mapping[str, Any]) -> None:
    for finding in findings:
        if _answerable(finding) and finding["service"] == question["service"]:
            finding["message"] += f" Its image was not asked: {_WHY[question['state']]}."


def _answerable(finding: Mapping[str, Any]) -> bool:
    return finding["rule"] in ANSWERABLE and finding["severity"] == "error"


def postpone(planned: Mapping[str, dict[str, Any]], brings: Collection[str] = (IMAGES, MODELS)) -> None:
    """Make warnings of refusals that may be answered once the image, or the model, is on its host.

    :param planned: the plan of each host
    :param brings: what this run brings, of C(IMAGES) and C(MODELS)
    """
    for body in planned.values():
        later = {
            each["service"]
            for each in body["image_questions"]
            if not (each["image_id"] and each["files_there"])
            and (each["image_id"] or IMAGES in brings)
            and (each["files_there"] or MODELS in brings)
        }
        for finding in body["findings"]:
            if _answerable(finding) and finding["service"] in later:
                finding["severity"] = "warning"
                finding["message"] += " Once it is there, what it says is used, before anything starts."
