# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to images about their memory plan of a launch: which hosts ask them, and the budget of a host with the answers."""

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
from .service import Host, JudgedLaunch, ServiceSpec, Sources

FREE_GIB = plan_probe.MEMORY_GIB + 4.0
"""Memory that must be available on a Spark to ask an image: the container's limit, and free memory for other programs."""
ASK, ELSEWHERE, ABSENT, NO_FILES, NO_MEMORY, NEVER = "ask", "elsewhere", "absent", "no_files", "no_memory", "never"
"""States of a question: its host asks, another host asks, no host has the image, the model's files, or the memory, or questions are off."""
ANSWERABLE = (
    "memory.refused",
    "memory.plan",
    "memory.align_block",
    "memory.kernel_block",
    "memory.auto_fit",
    "memory.one_request",
    "memory.state_blocks",
)
"""Refusals that depend on the layout of the KV cache; the image decides if the arithmetic was not compared with its version."""
IMAGES, MODELS = "images", "models"
"""Kinds of downloads of a run; questions that wait for one are answered before anything starts."""
_WHY = {
    ABSENT: "no Spark that was reached has it yet",
    NO_FILES: "no Spark that has it has the files of the model yet",
    NO_MEMORY: f"no Spark that has the image has {FREE_GIB:g} GiB of memory available",
    NEVER: "spark_probe is none",
}


def solve(
    request: dict[str, Any],
    services: Sequence[ServiceSpec],
    launches: Mapping[str, JudgedLaunch],
    host: Host,
    sources: Sources,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the memory budget of a host with the answers of images, which the request receives, and the open questions.

    C(image_answers) of the budget is the name of each service's answer.
    """
    budget = memory_budget(request)
    entries = {entry["name"]: entry for entry in request["services"]}
    questions = []
    answers: dict[str, str] = {}
    for service in services:
        rules = _refusals(budget, service.name)
        is_unknown = "memory.refused" in rules
        figures = budget["services"].get(service.name) or {}
        if not is_unknown and (figures.get("sources") or {}).get("kv_cache") != NOT_COMPARED:
            continue
        content, why = _content(service, launches[service.name], host)
        if why:
            if is_unknown:
                entries[service.name]["image_plan"] = {"reason": why}
            continue
        is_refused = not rules.isdisjoint(ANSWERABLE)
        question = _question(service, launches[service.name], host, sources, is_refused, content)
        key, answer = _known_answer(question.pop("keys"), sources)
        if answer is None:
            questions.append(question)
            continue
        entries[service.name]["image_plan"] = answer
        if answer["answer"] is not None:
            answers[service.name] = key
    if any("image_plan" in entries[service.name] for service in services):
        budget = memory_budget(request)
    budget["image_answers"] = answers
    return budget, questions


def _refusals(budget: Mapping[str, Any], service: str) -> set[str]:
    """Return the rules of the errors of a service."""
    errors = [finding for finding in budget["findings"] if finding["severity"] == "error"]
    return {finding["rule"] for finding in errors if finding["service"] == service}


def _known_answer(keys: Sequence[str], sources: Sources) -> tuple[str, Mapping[str, Any] | None]:
    """Return the first earlier answer to a question, with its name; None without one."""
    answers = ((key, sources.image_answer(key)) for key in keys)
    return next((row for row in answers if row[1] is not None), ("", None))


def reads_params_json(service: ServiceSpec, args: Mapping[str, Any]) -> bool:
    """Tell whether vLLM reads a Mistral 4 from params.json, which repositories of Mistral itself have in addition to config.json."""
    config_format = args.get("config-format") or "auto"
    is_of_mistral = str(service.model.get("repo") or "").startswith("mistralai/")
    is_mistral4 = text_config(dict(service.config)).get("model_type") == "mistral4"
    return is_mistral4 and (config_format == "mistral" or (config_format == "auto" and is_of_mistral))


def _content(service: ServiceSpec, judged: JudgedLaunch, host: Host) -> tuple[dict[str, Any], str]:
    """Return the files of a model that an image reads, or why it can read nothing; one of the two is empty.

    The complete config.json of the inventory suffices, except for a model with trusted code. Otherwise a host reads its snapshot:
    C(snapshot) and C(draft_snapshot), with an empty commit for an absent one.
    """
    if (judged.args.get(clustering.REPLICAS) or 1) != 1:
        return {}, "an image plans one replica alone (data-parallel-size)"
    repo = service.model.get("repo")
    on_controller = host.settings["spark_probe"] == "controller"
    has_snapshot = bool(repo) and not service.model.get("path") and not on_controller
    needs_params = reads_params_json(service, judged.args)
    is_complete = "transformers_version" in service.config and not needs_params
    if is_complete and not (judged.args.get("trust-remote-code") and has_snapshot):
        configs = {"config.json": service.config, "hf_quant_config.json": service.quant_config}
        files = {name: json.dumps(config, sort_keys=True) for name, config in configs.items() if config}
        draft = {"config.json": json.dumps(service.draft_config, sort_keys=True)} if service.draft_config else {}
        return {"files": files, "draft_files": draft}, ""
    if has_snapshot:
        return _snapshots(service, judged, host)
    missing = "config is not the whole config.json of the model, it has no transformers_version"
    if needs_params:
        missing = "vLLM reads params.json of this model, which the inventory does not have"
    if on_controller:
        return {}, f"{missing}; the controller, which is asked, has no other"
    return {}, f"{missing}, and there is no snapshot of a repository to read"


def _snapshots(service: ServiceSpec, judged: JudgedLaunch, host: Host) -> tuple[dict[str, Any], str]:
    """Return the snapshots of a model and its drafter, or why a host cannot read them."""
    repo = str(service.model["repo"])
    snapshots = {"snapshot": _snapshot(host, repo, service.model.get("revision"))}
    drafter = (judged.args.get("speculative-config") or {}).get("model")
    extra = next((model for model in service.model.get("extra") or [] if model["repo"] == drafter), None)
    if extra:
        snapshots["draft_snapshot"] = _snapshot(host, extra["repo"], extra.get("revision"))
    elif drafter and drafter != repo:
        return {}, f"the drafter {drafter} is not among the service's additional models (model.extra)"
    return snapshots, ""


def _snapshot(host: Host, repo: str, revision: Any) -> dict[str, str]:
    """Return a snapshot with its commit: of the host, or the revision itself; empty if unknown."""
    revision = str(revision or "main")
    on_host = ((host.measured or {}).get("snapshots") or {}).get(repo) or {}
    commit = (on_host.get("refs") or {}).get(revision, revision)
    commit = commit if COMMIT.fullmatch(commit) else ""
    is_present = commit in (on_host.get("commits") or [])
    return {"repo": repo, "revision": revision, "commit": commit, "there": "yes" if is_present else ""}


def _question(
    service: ServiceSpec,
    judged: JudgedLaunch,
    host: Host,
    sources: Sources,
    is_refused: bool,
    content: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the question to an image about a service, with the names of its answers (C(keys)). content: of C(_content)."""
    ref = service.image["ref"]
    image = host.images.get(ref) or {}
    image_id = str(image["id"]) if image.get("present") and image.get("id") else ""
    digests = sorted(image.get("repo_digests") or ()) if image_id else []
    args = _probe_args(service, judged)
    files, draft_files = content.get("files", {}), content.get("draft_files", {})
    snapshots = {key: model for key, model in content.items() if key.endswith("snapshot")}
    names = {key: f"{model['repo']}@{model['commit'] or model['revision']}" for key, model in snapshots.items()}
    probe = plan_probe.question(files, args, ASKED_BYTES, draft_files, env=judged.env, snapshots=names)
    keys = [plan_probe.cache_name(name, probe) for name in _image_names(ref, image_id, host, sources)]
    # A branch may move, so answers about it have no name.
    is_pinned = all(model["commit"] for model in snapshots.values())
    return {
        "service": service.name,
        "image": ref,
        "image_id": image_id,
        "digests": digests,
        "key": keys[-1],
        "keys": keys if is_pinned else [],
        "files": files,
        "draft_files": draft_files,
        **{name: {"repo": model["repo"], "commit": model["commit"]} for name, model in snapshots.items()},
        "files_there": all(model["there"] for model in snapshots.values()),
        "args": args,
        "env": probe["env"],
        "available": list(ASKED_BYTES),
        "refused": is_refused,
        "state": ABSENT,
    }


def _probe_args(service: ServiceSpec, judged: JudgedLaunch) -> list[str]:
    """Return the options of a launch that change its memory, without solved ones."""
    stated = {key: value for key, value in judged.args.items() if key not in service.solved}
    trust = ["--trust-remote-code"] if judged.args.get("trust-remote-code") else []
    return [*plan_probe.relevant(launch.render(stated)), *trust]


def _image_names(ref: str, image_id: str, host: Host, sources: Sources) -> list[str]:
    """Return the names of an image in the store of answers: its id, or for an absent image the locked ids and its reference."""
    return [image_id] if image_id else [*lock_file.ids_of(sources.applied_lock, ref, host.machine), f"ref:{ref}"]


def assign(
    sparks: Mapping[str, Host], planned: Mapping[str, PlannedHost], reached: Collection[str] | None = None
) -> None:
    """Choose the host that asks each question, one for all hosts with the same question. reached: hosts that the play may ask, None for all.

    The questions receive their state, and refusals the reason if nobody asks.
    """
    by_key: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, body in planned.items():
        for question in body.image_questions:
            by_key.setdefault(question["key"], []).append((name, question))
    for questions in by_key.values():
        reachable = [(name, question) for name, question in questions if reached is None or name in reached]
        state, asking_host = _choose(sparks, reachable) if reachable else (ABSENT, "")
        for name, question in questions:
            question["state"] = ELSEWHERE if asking_host and name != asking_host else state
            if question["refused"] and question["state"] in _WHY:
                _explain(planned[name].findings, question)


def _choose(sparks: Mapping[str, Host], questions: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[str, str]:
    """Return the state of a question, and the host that asks it. questions: the same one, by host."""
    first_host = questions[0][0]
    probe = sparks[first_host].settings["spark_probe"]
    if probe == "none":
        return NEVER, ""
    if probe == "controller":
        return ASK, first_host
    with_image = {name: question for name, question in questions if question["image_id"] and sparks[name].measured}
    if not with_image:
        return ABSENT, ""
    with_files = [name for name, question in with_image.items() if question["files_there"]]
    if not with_files:
        return NO_FILES, ""
    free_gib = {name: _available_gib(sparks[name]) for name in with_files}
    best = max(with_files, key=lambda name: free_gib[name])
    return (ASK, best) if free_gib[best] >= FREE_GIB else (NO_MEMORY, "")


def _available_gib(host: Host) -> float:
    """Return the available memory of a host, 0 if unknown."""
    return float(((host.measured or {}).get("memory") or {}).get("available_gib") or 0.0)


def _explain(findings: Sequence[dict[str, Any]], question: Mapping[str, Any]) -> None:
    """Add to the refusals of a service why its image was not asked."""
    for finding in findings:
        if _is_answerable(finding) and finding["service"] == question["service"]:
            finding["message"] += f" Its image was not asked: {_WHY[question['state']]}."


def _is_answerable(finding: Mapping[str, Any]) -> bool:
    return finding["rule"] in ANSWERABLE and finding["severity"] == "error"


def postpone(planned: Mapping[str, dict[str, Any]], downloads: Collection[str] = (IMAGES, MODELS)) -> None:
    """Turn refusals into warnings if the image may answer after the downloads of this run. downloads: kinds of C(IMAGES) and C(MODELS)."""
    for body in planned.values():
        answered_later = {
            question["service"]
            for question in body["image_questions"]
            if not (question["image_id"] and question["files_there"])
            and (question["image_id"] or IMAGES in downloads)
            and (question["files_there"] or MODELS in downloads)
        }
        for finding in body["findings"]:
            if _is_answerable(finding) and finding["service"] in answered_later:
                finding["severity"] = "warning"
                finding["message"] += " Once the image is present, its answer is used before anything starts."
