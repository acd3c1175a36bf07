# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether launches will work and fit: the rules about each launch, and the memory of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from .._common import validation
from .._common.findings import Finding
from .._common.plain_data import Written
from .._compat import compat
from .._memory.budget import AtOnce, memory_budget
from .._memory.service_input import VARIABLES
from .._vllm.context_length import ALLOW_VARIABLE
from . import image_check, image_questions, measured_starts, on_demand, service_files, variables
from .container_argv import own_docker_args
from .service import Host, JudgedLaunch, PlacedService, ServiceSpec, Sources

# What an engine's host-side processes hold beside its GPU memory; nvidia-smi does not list it (13.8 - 11.97 GiB for
# the 4B of "Two Qwen3 models on one DGX Spark").
HOST_SIDE_GIB = 1.83
SOLVED = ("gpu-memory-utilization", "max-model-len", "max-num-seqs")


def judge(service: ServiceSpec) -> dict[str, Any]:
    """Judge one resolved service as the only one of a Spark, or as one rank of as many Sparks as its C(nodes).

    Returns C({verdict, vllm_version, memory, findings}).
    """
    settings = {name: key.default for name, key in variables.VARIABLES.items()}
    fabric = settings["spark_fabric_args"] if service.nodes > 1 else []  # a cluster's ranks have them
    placed = service.placed(docker_args=[*fabric, *service.docker_args])
    placed = service_files.place(settings, placed, lambda _path: None)
    launch = check_launch(placed, settings, None, {})
    budget = budget_of(settings, [placed], {placed.name: launch}, None)
    findings = [*launch.findings, *budget["findings"]]
    refused = any(finding["severity"] == "error" for finding in findings)
    return {
        "verdict": "fails" if refused else budget["verdict"],
        "vllm_version": launch.vllm_version,
        "memory": budget["services"].get(placed.name) or {},
        "findings": findings,
    }


def check_launch(
    service: PlacedService,
    settings: Mapping[str, Any],
    measured: Mapping[str, Any] | None,
    images: Mapping[str, Any],
) -> JudgedLaunch:
    """Ask the compatibility engine about one launch; a probed fact beats what the recipe or the catalogue says.

    :param service: as it is placed on its host
    :param settings: variables of the host
    :param measured: C(spark) of M(dgxspark.vllm.spark_info), None where nobody asked
    :param images: of the host, by reference
    :returns: the launch as it is judged
    """
    image = service.image
    there = images.get(image["ref"]) or {}
    probe = there.get("probe") or {}
    probed_version = image_check.credible(probe.get("vllm_version"))
    gpu = (measured or {}).get("gpu") or {}
    request: dict[str, Any] = {
        "image": image["ref"],
        "vllm_version": probed_version or image.get("vllm_version") or image_check.credible(there.get("vllm_version")),
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
            *settings["spark_docker_args"],
            *service.docker_args,
            *service_files.mounts(service.files),
        ],
        "packages": [*map(validation.package_name, service.pip), *(["ray"] if service.needs_ray else [])],
        "ignore": [*settings["spark_ignore_rules"], *service.ignore],
        "catalogue": settings["spark_image_catalogue"],
    }
    if probe:
        own = image_check.catalogue_entry(image["ref"], probe, settings["spark_image_catalogue"])
        request["catalogue"] = [own, *settings["spark_image_catalogue"]]
    family = _known(there.get("entrypoint_family")) or image.get("entrypoint")
    if family:
        request["entrypoint"] = family
    if gpu.get("driver_version"):
        request["driver_version"] = gpu["driver_version"]
    result = _judged(Written(request))
    args, env, changes, findings = dict(result["args"]), service.env, [], result["findings"]
    if settings["spark_autofix"]:
        fixed = result["fixed"]
        args, env, changes = dict(fixed["args"]), dict(fixed["env"]), list(fixed["changes"])
        findings = [*fixed["findings"], *(repaired(change).to_dict() for change in changes)]
    findings = [dict(finding) for finding in findings]
    for finding in findings:
        finding["basis"] = "probed" if probe and image_check.rests_on_image(finding["rule"]) else "inventory"
    told = image_check.findings(image["ref"], there, measured or {}, image.get("vllm_version"), service.env)
    findings += [finding.to_dict() for finding in told if finding.rule not in request["ignore"]]
    for finding in findings:
        finding["service"] = service.name
    known, source, entrypoint = (result[key] for key in ("vllm_version", "version_source", "entrypoint"))
    return JudgedLaunch(args, env, known, source, entrypoint, findings, changes)


@lru_cache(maxsize=1024)
def _judged(request: Written) -> Mapping[str, Any]:
    """Judge a launch; the same one on many hosts is judged once. What is returned is shared: nobody may change it."""
    return compat.check_launch(request.content)


def repaired(change: Mapping[str, str]) -> Finding:
    """Say what C(spark_autofix) changed, so that it is seen wherever findings are."""
    return Finding(
        rule=change["rule"],
        severity="info",
        message=f"repaired: {change['before']} -> {change['after'] or 'taken out'}",
        fix="Write it so in the inventory, and it stays so without spark_autofix.",
        source="spark_autofix",
    )


def _known(family: Any) -> str | None:
    return family if family in ("serve", "passthrough") else None


def is_open(key: str, value: Any) -> bool:
    """Tell whether an option says C(auto) where the plan puts a number; vLLM itself knows that word for the length only."""
    word = str(value).lower()
    return key in SOLVED and (word == "auto" or (word == "-1" and key == "max-model-len"))


def budget_of(
    settings: Mapping[str, Any],
    services: Sequence[PlacedService],
    launches: Mapping[str, JudgedLaunch],
    measured: Mapping[str, Any] | None,
    asked: tuple[Host, Sources] | None = None,
) -> dict[str, Any]:
    """Solve what was left open, then judge it; C(questions) are those that an image of the host is to be asked.

    What is left open is solved from totals alone: a figure that followed the momentary free memory would change from
    run to run, and every run would restart the engines. What the host says then decides whether that can start.

    :param settings: variables of the host
    :param services: of the host
    :param launches: as C(check_launch) returns them, by service
    :param measured: C(spark) of M(dgxspark.vllm.spark_info), None where nobody asked
    :param asked: the host, and what answers of images are taken from; without, no image is asked
    :returns: as C(budget.memory_budget), with C(questions)
    """
    request = budget_request(settings, services, launches, measured)
    if asked:
        measured_starts.add(request, services, launches, *asked)
    solved, questions = (
        image_questions.solve(request, services, launches, *asked) if asked else (memory_budget(request), [])
    )
    solved["questions"] = questions
    solved["image_plans"] = {
        entry["name"]: entry["image_plan"] for entry in request["services"] if entry.get("image_plan")
    }
    memory = (measured or {}).get("memory") or {}
    if memory.get("available_gib") is None or {"docker", "nvidia-smi", "systemctl"} & set(
        (measured or {}).get("unknown") or {}
    ):
        return _with_assumed(request, solved)  # what is free says nothing without who holds the rest
    for entry in request["services"]:
        entry["args"] = {**entry.get("args", {}), **solved_args(solved["services"][entry["name"]])}
    wanted = {service.name for service in services}
    # Sidecars are taken to run already, so that the momentary figure is without them.
    resident, leaving = [{"name": each["name"], "gib": each["memory_gib"]} for each in settings["spark_sidecars"]], 0.0
    running = {unit["name"] for unit in (measured or {}).get("units") or [] if unit["active_state"] == "active"}
    staying = set()
    for each in settings.get("beside", ()):
        if each["unit"] in running and not each["idle"]:
            resident.append({"name": each["name"], "gib": each["memory_gib"]})
            staying.add(each["name"])
    for holder in (measured or {}).get("resident") or []:
        holds = float(holder["gib"]) + HOST_SIDE_GIB
        if holder["name"] in wanted:
            holds += sum(
                part["gib"]["typical"]
                for part in solved["services"][holder["name"]].get("host_memory", ())
                if part["at_start"]
            )
            resident.append({"name": holder["name"], "gib": holds})
        elif (
            holder["name"] not in staying
        ):  # a service of ours that this run removes, or a model of Ollama that the gate unloads
            leaving += holds
    request["measured"] = {"mem_available_gib": memory["available_gib"] + leaving, "resident": resident}
    judged = memory_budget(request)
    judged.update(questions=questions, image_answers=solved.get("image_answers", {}), image_plans=solved["image_plans"])
    for name, figures in judged["services"].items():
        if "solved" in figures:
            figures["solved"] = solved["services"][name]["solved"]
    judged["findings"] += [finding for finding in solved["findings"] if finding["rule"] == "memory.solved"]
    return _with_assumed(request, judged)


def combinations(
    settings: Mapping[str, Any],
    services: Sequence[PlacedService],
    launches: Mapping[str, JudgedLaunch],
    budget: Mapping[str, Any],
    measured: Mapping[str, Any] | None,
) -> tuple[dict[str, list[list[str]]], list[on_demand.Cut]]:
    """Return which services of each set fit beside each other, beside all that is always there, and beside each combination of other sets.

    :param settings: of the host
    :param services: all of the host
    :param launches: by service
    :param budget: what the budget of the host worked out
    :param measured: what the host said, None where it was not asked
    :returns: by set, the largest combinations, which C(keep) bounds; empty for a set of which not even one fits. And what was left out of a
        set because another one may run beside it
    """
    members = on_demand.sets_of([*services, *on_demand.servers(settings.get("beside", ()))])
    if not members:
        return {}, []
    request = budget_request(settings, services, launches, measured)
    for entry in request["services"]:
        entry["args"] = {**entry.get("args", {}), **solved_args(budget["services"].get(entry["name"]) or {})}
        if entry["name"] in budget["image_plans"]:
            entry["image_plan"] = budget["image_plans"][entry["name"]]
    node = AtOnce(request)
    return on_demand.fitting(
        {name: [each for each in own if node.alone(each.name)] for name, own in members.items()}, node.fit
    )


def _with_assumed(request: Mapping[str, Any], judged: dict[str, Any]) -> dict[str, Any]:
    """Add C(assumed_residency_gib), what engines would be planned to hold without what was measured of their starts.

    Files of hosts go by it, as the first proof of a launch is not to change them.

    :param request: that was judged
    :param judged: the budget
    :returns: C(judged)
    """
    if any(entry.get("starts") for entry in request["services"]):
        bare = [{key: value for key, value in entry.items() if key != "starts"} for entry in request["services"]]
        for name, figures in memory_budget({**request, "services": bare})["services"].items():
            if name in judged["services"] and "residency_gib" in figures:
                judged["services"][name]["assumed_residency_gib"] = figures["residency_gib"]["typical"]
    return judged


def solved_args(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the budget worked out."""
    return {key: figures[key.replace("-", "_")] for key in figures.get("solved", ())}


def budget_request(
    settings: Mapping[str, Any],
    services: Sequence[PlacedService],
    launches: Mapping[str, JudgedLaunch],
    measured: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return what the memory of a host is judged by.

    :param settings: variables of the host
    :param services: of the host
    :param launches: as C(check_launch) returns them, by service
    :param measured: C(spark) of M(dgxspark.vllm.spark_info), None where nobody asked
    :returns: the input of C(budget.memory_budget)
    """
    request: dict[str, Any] = {
        "os_reserve_gib": settings["spark_os_reserve_gib"],
        "safety_margin_gib": settings["spark_safety_margin_gib"],
        "overheads": settings["spark_overheads"],
        "services": [
            {
                "name": service.name,
                "config": service.config,
                "quant_config": service.quant_config,
                "weights_gib": service.weights_gib,
                "draft_weights_gib": service.draft_weights_gib,
                "memory": service.memory,
                "memory_gib": service.memory_gib,
                "draft_config": service.draft_config,
                "overheads": service.overheads,
                "vllm_version": launches[service.name].vllm_version,
                "args": {
                    **launches[service.name].args,
                    **{key: "auto" for key, value in service.args.items() if is_open(key, value)},
                    **(
                        {"config-format": "mistral"}
                        if image_questions.reads_params_json(service, launches[service.name].args)
                        else {}
                    ),
                },
                "env": {
                    **{name: value for name, value in launches[service.name].env.items() if name in VARIABLES},
                    ALLOW_VARIABLE: "1",  # rules about the launch judge its length
                },
                "share": service.memory_share,
                "exclusive": service.exclusive,
                # Behind the host's own services, which are not to wait for another host; and in one order everywhere.
                "last": service.cluster.position + 1 if service.cluster else 0,
                "rank": service.rank,
            }
            for service in services
        ]
        + [
            {"name": each["name"], "memory_gib": each["memory_gib"], "exclusive": each.get("exclusive", "")}
            for each in [*settings["spark_sidecars"], *settings.get("beside", ())]
        ],
    }
    total = settings["spark_total_gib"] or ((measured or {}).get("memory") or {}).get("total_gib")
    if total:
        request["total_gib"] = total
    return request
