# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether launches will work and fit: the rules about each launch, and the memory of the host."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from .._addons import power
from .._common import validation
from .._common.findings import Finding
from .._common.plain_data import Written
from .._compat import compat
from .._memory.budget import AtOnce, memory_budget
from .._memory.service_input import VARIABLES
from .._vllm import image_catalogue
from .._vllm.context_length import ALLOW_VARIABLE
from . import image_check, image_questions, measured_starts, on_demand, service_files, variables
from .container_argv import given_docker_args, own_docker_args
from .service import Host, JudgedLaunch, ServiceSpec, Sources

# Memory of an engine's host-side processes outside of its GPU memory; nvidia-smi does not list it (13.8 - 11.97 GiB for
# the 4B of "Two Qwen3 models on one DGX Spark").
HOST_SIDE_GIB = 1.83
SOLVED = ("gpu-memory-utilization", "max-model-len", "max-num-seqs")


def judge(service: ServiceSpec) -> dict[str, Any]:
    """Judge one resolved service as the only one of a Spark, or as one rank of as many Sparks as its C(nodes).

    Returns C({verdict, vllm_version, launch, memory, findings}).
    """
    settings = {name: key.default for name, key in variables.VARIABLES.items()}
    fabric = settings["spark_fabric_args"] if service.nodes > 1 else []  # a cluster's ranks have them
    placed = replace(service, docker_args=[*fabric, *service.docker_args])
    placed = service_files.place(settings, placed, lambda _path: None)
    host = Host("", {}, "", None, {}, {}, None, settings)
    launch = check_launch(host, placed)
    budget = budget_of(host, [placed], {placed.name: launch})
    findings = [*launch.findings, *budget["findings"]]
    refused = any(finding["severity"] == "error" for finding in findings)
    return {
        "verdict": "fails" if refused else budget["verdict"],
        "vllm_version": launch.vllm_version,
        "launch": launch,
        "memory": budget["services"].get(placed.name) or {},
        "findings": findings,
    }


def check_launch(host: Host, service: ServiceSpec) -> JudgedLaunch:
    """Return the verdict of the compatibility engine on one launch; probed facts take precedence over recipe and catalogue."""
    image, settings, measured = service.image, host.settings, host.measured or {}
    on_host = host.images.get(image["ref"]) or {}
    request = _launch_request(service, settings, on_host)
    driver = (measured.get("gpu") or {}).get("driver_version")
    if driver:
        request["driver_version"] = driver
    result = _judged(Written(request))
    args, env, changes, findings = dict(result["args"]), service.env, [], result["findings"]
    if settings["spark_autofix"]:
        fixed = result["fixed"]
        args, env, changes = dict(fixed["args"]), dict(fixed["env"]), list(fixed["changes"])
        findings = [*fixed["findings"], *(repaired(change).to_dict() for change in changes)]
    findings = [{**finding, "basis": _basis(finding["rule"], on_host)} for finding in findings]
    image_findings = image_check.findings(image["ref"], on_host, measured, image.get("vllm_version"), service.env)
    findings += [finding.to_dict() for finding in image_findings if finding.rule not in request["ignore"]]
    version, source, entrypoint = (result[key] for key in ("vllm_version", "version_source", "entrypoint"))
    if settings.get("addons", {}).get("power", {}).get("spin_wait") == "low":
        quiet, finding = _spin_wait(service, args, env, version, request["catalogue"])
        env = {**quiet, **env}
        findings = [*(item for item in findings if item["rule"] != "SPK829"), finding.to_dict()]
    findings = [{**finding, "service": service.name} for finding in findings]
    return JudgedLaunch(args, env, version, source, entrypoint, findings, changes)


def _spin_wait(
    service: ServiceSpec, args: Mapping[str, Any], env: Mapping[str, str], version: str | None, catalogue: Sequence[Any]
) -> tuple[dict[str, str], Finding]:
    """Return C(power.spin_wait) of a launch. catalogue: of images, entries of the host first."""
    sizes = [args.get(f"{kind}-parallel-size") for kind in ("tensor", "pipeline")]
    workers = max(math.prod(size for size in sizes if isinstance(size, int)), service.nodes)
    entries = [entry for entry in catalogue if isinstance(entry, Mapping)]
    features = (image_catalogue.lookup(service.image["ref"], entries) or {}).get("features") or ()
    return power.spin_wait(service.name, version, features, workers, env)


def _basis(rule: str, on_host: Mapping[str, Any]) -> str:
    """Return the source of a rule's facts. on_host: the image as the host has it."""
    return "probed" if on_host.get("probe") and image_check.rests_on_image(rule) else "inventory"


def _launch_request(service: ServiceSpec, settings: Mapping[str, Any], on_host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input of C(compat.check_launch). on_host: the image as the host has it."""
    image = service.image
    probe = on_host.get("probe") or {}
    probed_version = image_check.credible(probe.get("vllm_version"))
    request: dict[str, Any] = {
        "image": image["ref"],
        "vllm_version": probed_version
        or image.get("vllm_version")
        or image_check.credible(on_host.get("vllm_version")),
        "version_source": "probed" if probed_version else "given",
        "model": {
            "repo": service.model.get("repo") or service.name,
            "config": service.config,
            "quant_config": service.quant_config,
        },
        "args": {key: value for key, value in service.args.items() if not is_open(key, value)},
        "env": service.env,
        "nodes": service.nodes,
        "docker_args": [
            *own_docker_args(settings, service),
            *(word for ulimit in settings["spark_ulimits"] for word in ("--ulimit", str(ulimit))),
            *given_docker_args(settings, service),
            *service_files.mounts(service.files),
        ],
        "packages": [*map(validation.package_name, service.pip), *(["ray"] if service.needs_ray else [])],
        "ignore": [*settings["spark_ignore_rules"], *service.ignore],
        "catalogue": settings["spark_image_catalogue"],
    }
    if probe:
        entry = image_check.catalogue_entry(image["ref"], probe, settings["spark_image_catalogue"])
        request["catalogue"] = [entry, *settings["spark_image_catalogue"]]
    family = on_host.get("entrypoint_family")
    entrypoint = family if family in ("serve", "passthrough") else image.get("entrypoint")
    if entrypoint:
        request["entrypoint"] = entrypoint
    return request


@lru_cache(maxsize=1024)
def _judged(request: Written) -> Mapping[str, Any]:
    """Return the verdict on a launch, computed once for many hosts. It is shared: callers must not change it."""
    return compat.check_launch(request.content)


def repaired(change: Mapping[str, str]) -> Finding:
    """Return a finding about a change of C(spark_autofix), so that reports show it."""
    return Finding(
        rule=change["rule"],
        severity="info",
        message=f"repaired: {change['before']} -> {change['after'] or 'taken out'}",
        fix="Write it so in the inventory, and it stays so without spark_autofix.",
        source="spark_autofix",
    )


def is_open(key: str, value: Any) -> bool:
    """Return whether the plan solves an option that is C(auto); vLLM itself knows that word for the length only."""
    word = str(value).lower()
    return key in SOLVED and (word == "auto" or (word == "-1" and key == "max-model-len"))


def budget_of(
    host: Host, services: Sequence[ServiceSpec], launches: Mapping[str, JudgedLaunch], sources: Sources | None = None
) -> dict[str, Any]:
    """Return the memory budget of a host, with open options solved; C(questions) are the open questions to its images.

    Open options are solved from totals alone: a figure that followed the momentary free memory would change from
    run to run, and every run would restart the engines. The host's free memory then decides whether the result can start.
    Without C(sources) of images' answers no image is asked.
    """
    request = budget_request(host, services, launches)
    if sources:
        measured_starts.add(request, services, launches, host, sources)
        solved, questions = image_questions.solve(request, services, launches, host, sources)
    else:
        solved, questions = memory_budget(request), []
    solved["questions"] = questions
    solved["image_plans"] = {
        entry["name"]: entry["image_plan"] for entry in request["services"] if entry.get("image_plan")
    }
    facts = host.measured or {}
    available = (facts.get("memory") or {}).get("available_gib")
    if available is None or {"docker", "nvidia-smi", "systemctl"} & set(facts.get("unknown") or {}):
        return _with_assumed(request, solved)  # free memory is no evidence without the holders of the rest
    for entry in request["services"]:
        entry["args"] = {**entry.get("args", {}), **solved_args(solved["services"][entry["name"]])}
    resident, leaving = _residents(host.settings, {service.name for service in services}, facts, solved)
    request["measured"] = {"mem_available_gib": available + leaving, "resident": resident}
    return _with_assumed(request, _judged_budget(request, solved))


def _judged_budget(request: dict[str, Any], solved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the budget with the free memory of the host, and the solved options of the budget from totals alone."""
    judged = memory_budget(request)
    judged.update({key: solved.get(key, {}) for key in ("questions", "image_answers", "image_plans")})
    for name, figures in judged["services"].items():
        if "solved" in figures:
            figures["solved"] = solved["services"][name]["solved"]
    judged["findings"] += [finding for finding in solved["findings"] if finding["rule"] == "memory.solved"]
    return judged


def _residents(
    settings: Mapping[str, Any], planned: Collection[str], facts: Mapping[str, Any], solved: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], float]:
    """Return planned services that hold memory now, with GiB, and the GiB that other services free."""
    # Sidecars count as running, so that the momentary figure is without them.
    resident = [{"name": sidecar["name"], "gib": sidecar["memory_gib"]} for sidecar in settings["spark_sidecars"]]
    running = {unit["name"] for unit in facts.get("units") or [] if unit["active_state"] == "active"}
    staying = [addon for addon in settings.get("beside", ()) if addon["unit"] in running and not addon["idle"]]
    resident += [{"name": addon["name"], "gib": addon["memory_gib"]} for addon in staying]
    leaving = 0.0
    for holder in facts.get("resident") or []:
        gib = float(holder["gib"]) + HOST_SIDE_GIB
        if holder["name"] in planned:
            gib += _host_memory_at_start(solved["services"][holder["name"]])
            resident.append({"name": holder["name"], "gib": gib})
        elif holder["name"] not in {addon["name"] for addon in staying}:
            # A service that this run removes, or a model of Ollama that the gate unloads.
            leaving += gib
    return resident, leaving


def _host_memory_at_start(figures: Mapping[str, Any]) -> float:
    """Return the GiB of host memory that an engine takes with its start. figures: of its budget."""
    return float(sum(part["gib"]["typical"] for part in figures.get("host_memory", ()) if part["at_start"]))


def combinations(
    host: Host, services: Sequence[ServiceSpec], launches: Mapping[str, JudgedLaunch], budget: Mapping[str, Any]
) -> tuple[dict[str, list[list[str]]], list[on_demand.Cut]]:
    """Return which services of each set fit together, with all permanent services and with each combination of other sets.

    :returns: by set, the largest combinations, limited by C(keep); empty for a set without a fitting service. And the services that were
        removed from a set because another one may run at the same time
    """
    members = on_demand.sets_of([*services, *on_demand.servers(host.settings.get("beside", ()))])
    if not members:
        return {}, []
    request = budget_request(host, services, launches)
    for entry in request["services"]:
        entry["args"] = {**entry.get("args", {}), **solved_args(budget["services"].get(entry["name"]) or {})}
        if entry["name"] in budget["image_plans"]:
            entry["image_plan"] = budget["image_plans"][entry["name"]]
    node = AtOnce(request)
    fitting = {name: [service for service in group if node.alone(service.name)] for name, group in members.items()}
    return on_demand.combinations_that_fit(fitting, node.fit)


def _with_assumed(request: Mapping[str, Any], judged: dict[str, Any]) -> dict[str, Any]:
    """Add C(assumed_residency_gib), the planned memory of engines without measured starts.

    Files of hosts use it, because the first proof of a launch must not change them.
    """
    if any(entry.get("starts") for entry in request["services"]):
        bare = [{key: value for key, value in entry.items() if key != "starts"} for entry in request["services"]]
        for name, figures in memory_budget({**request, "services": bare})["services"].items():
            if name in judged["services"] and "residency_gib" in figures:
                judged["services"][name]["assumed_residency_gib"] = figures["residency_gib"]["typical"]
    return judged


def solved_args(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the budget solved."""
    return {key: figures[key.replace("-", "_")] for key in figures.get("solved", ())}


_AS_IN_A_BUDGET = (
    *("name", "config", "quant_config", "weights_gib", "draft_weights_gib", "memory", "memory_gib", "draft_config"),
    *("overheads", "exclusive", "rank"),
)
"""Fields of a service that the memory budget takes as they are."""


def budget_request(host: Host, services: Sequence[ServiceSpec], launches: Mapping[str, JudgedLaunch]) -> dict[str, Any]:
    """Return the input of a host's memory budget."""
    entries = [_budget_entry(service, launches[service.name]) for service in services]
    settings = host.settings
    for addon in [*settings["spark_sidecars"], *settings.get("beside", ())]:
        entries.append(
            {"exclusive": "", **{key: addon[key] for key in ("name", "memory_gib", "exclusive") if key in addon}}
        )
    total = settings["spark_total_gib"] or ((host.measured or {}).get("memory") or {}).get("total_gib")
    return {
        "os_reserve_gib": settings["spark_os_reserve_gib"],
        "safety_margin_gib": settings["spark_safety_margin_gib"],
        "overheads": settings["spark_overheads"],
        "services": entries,
        **({"total_gib": total} if total else {}),
    }


def _budget_entry(service: ServiceSpec, launch: JudgedLaunch) -> dict[str, Any]:
    """Return the input of a memory budget for one service."""
    args = {**launch.args, **{key: "auto" for key, value in service.args.items() if is_open(key, value)}}
    if image_questions.reads_params_json(service, launch.args):
        args["config-format"] = "mistral"
    env = {name: value for name, value in launch.env.items() if name in VARIABLES}
    return {
        **{name: getattr(service, name) for name in _AS_IN_A_BUDGET},
        "vllm_version": launch.vllm_version,
        "args": args,
        "env": {**env, ALLOW_VARIABLE: "1"},  # rules about the launch judge its length
        "share": service.memory_share,
        # After the host's own services, which must not wait for another host; and in one order everywhere.
        "last": service.cluster.position + 1 if service.cluster else 0,
    }
