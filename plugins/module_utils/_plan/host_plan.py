# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of one host: its services in the order of their start, its memory, its images and models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from .._common.findings import Finding
from .._common.sizes import GIB
from .._content import vocabularies
from .._memory.budget import ROOM_RULES
from . import lock as lock_file
from . import measured_starts, on_demand, preflight, service_findings, verbs
from .judging import budget_of, check_launch, combinations
from .planned import ExtraModel, KvTiers, PlannedHost, PlannedModel, PlannedService
from .planned_service import plan_service
from .service import Host, JudgedLaunch, ServiceSpec, Sources
from .service_files import place

_MODEL_MAXIMUM = re.compile(r"\bmaximum of (\d+)")
_OPTION_OF_FINDING = {
    "memory.refused": re.compile(r"\bargs\.(?P<name>[\w-]+): "),
    "memory.argument": re.compile(r"^(?P<name>[\w-]+) of "),
}


def plan_host(host: Host, sources: Sources) -> PlannedHost:
    """Return the planned host, without clusters, add-on services and firewall. Raises C(InputError) for a model with unusable figures."""
    settings, measured = host.settings, host.measured
    services = {service.name: place(settings, service, sources.digest) for service in host.services}
    launches = {name: check_launch(host, service) for name, service in services.items()}
    budget = budget_of(host, list(services.values()), launches, sources)
    planned = _plan_services(host, sources, services, launches, budget)
    order = [service.name for service in planned]
    fitting, cuts = combinations(host, list(services.values()), launches, budget)
    planned = _with_combinations(planned, fitting)
    launch_findings = [finding for launch in launches.values() for finding in launch.findings]
    findings = _explain_by_option(_explain_by_length([*launch_findings, *budget["findings"]]))
    checks = [*on_demand.cut_findings(host.name, fitting, cuts), *_check_planned(host, sources, services, planned)]
    findings += [finding.to_dict() for finding in checks]
    refs = {service.image.ref for service in planned}
    return PlannedHost(
        services=planned,
        sets=fitting or None,
        verdict=budget["verdict"],
        start_order=order,
        utilization_sum=budget["utilization_sum"],
        total_gib=budget["total_gib"],
        findings=[finding for finding in findings if finding["rule"] not in settings["spark_ignore_rules"]],
        autofix=[{"service": name, **change} for name in order for change in launches[name].autofix],
        memory_map=budget["memory_map"],
        image_questions=budget["questions"],
        image_answers=budget.get("image_answers", {}),
        basis="measured" if measured else "inventory",
        images=sorted(refs),
        image_candidates=_image_candidates(host, sources),
        models=_models(planned, sources.lock, sources.pin, settings["spark_hf_home"]),
        # Another host may have them, so that they are copied.
        missing=_missing(planned, host),
        images_locked=lock_file.locked_images(sources.applied_lock, refs),
        built_images=_once(map(attrgetter("built_image"), planned)),
        ray_images=_once(map(attrgetter("ray_image"), planned)),
        settings=_settings(settings, planned),
        measurements=measured_starts.described(services.values(), launches, host, sources)
        if sources.measurements
        else None,
    )


def _plan_services(
    host: Host,
    sources: Sources,
    services: Mapping[str, ServiceSpec],
    launches: Mapping[str, JudgedLaunch],
    budget: Mapping[str, Any],
) -> list[PlannedService]:
    """Return the planned services of a host in the order of their start."""
    order = [name for name in budget["start_order"] if name in launches]
    order += sorted(launches.keys() - set(order))
    planned = []
    for position, name in enumerate(order):
        memory = dict(budget["services"].get(name) or {})
        if memory.get("sources"):
            memory["launch"] = measured_starts.launch_of(services[name], launches[name], host, sources)
        planned.append(plan_service(host, services[name], launches[name], memory, order[:position]))
    return verbs.choose_states(planned, host.measured, list(services))


def _with_combinations(
    planned: Sequence[PlannedService], fitting: Mapping[str, Sequence[Sequence[str]]]
) -> list[PlannedService]:
    """Return the services, those of a set on demand with the combinations of the set that fit."""
    return [
        replace(service, on_demand=replace(service.on_demand, combinations=fitting[service.exclusive]))
        if service.on_demand and service.exclusive
        else service
        for service in planned
    ]


def _image_candidates(host: Host, sources: Sources) -> list[str]:
    """Return all alternatives of the services, of which the first image on the host serves."""
    offered = {ref for service in host.services for ref in service.alternatives}
    return sorted({*offered, *lock_file.candidates(sources.lock, offered, host.machine)})


def _explain_by_option(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return findings in which a refused option is the cause of an unplannable memory, or of an argument that memory does not know."""
    refused = [item for item in findings if item["rule"].startswith("SPK") and item["severity"] == "error"]
    for item in findings:
        pattern = _OPTION_OF_FINDING.get(item["rule"])
        option = pattern.search(item["message"]) if pattern else None
        if option is None:
            continue
        for cause in refused:
            if cause["service"] == item["service"] and f"--{option['name']} " in f"{cause['message']} ":
                item["consequence_of"] = cause["rule"]
    return findings


def _explain_by_length(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return findings in which a length beyond the model's maximum (SPK403) is the cause of a missing KV cache.

    A memory fix that shortens the requests to the model's maximum or less is the fix of both.
    """
    findings = [dict(item) for item in findings]
    refused = {item["service"]: item for item in findings if item["rule"] == "SPK403" and item["severity"] == "error"}
    for item in findings:
        cause = refused.get(item["service"]) if item["rule"] in ROOM_RULES and item["severity"] == "error" else None
        if cause is None:
            continue
        changes = item.get("changes", [])
        maximum = _MODEL_MAXIMUM.search(cause["message"])
        lengths = [change["args"]["max-model-len"] for change in changes if "max-model-len" in change["args"]]
        fits_model = lengths and maximum and max(lengths) <= int(maximum[1])
        if fits_model and not item.get("consequence_of"):
            cause.update(fix=item["fix"], changes=changes)
        item["consequence_of"] = cause["rule"]
    return findings


def _check_planned(
    host: Host, sources: Sources, services: Mapping[str, ServiceSpec], planned: Sequence[PlannedService]
) -> list[Finding]:
    """Return the findings about the facts of a host, if there are any, and about each planned service."""
    findings = _check_host(host, planned) if host.measured else []
    for service in planned:
        findings += service_findings.check(host, sources, service, services[service.name])
    return findings


def _check_host(host: Host, planned: Sequence[PlannedService]) -> list[Finding]:
    """Compare the facts of a host with the needs of its plan."""
    facts, settings = host.measured or {}, host.settings
    models = [model for service in planned for model in service.model.parts]
    missing = [service for service in planned if service.model.repo and not _has_model(facts, service.model)]
    needs = {
        "uses_gpu": any("--gpus" in str(arg) or arg == "--runtime" for arg in settings["spark_gpu_args"]),
        "hf_home": settings["spark_hf_home"],
        "download_gib": sum((service.memory.get("weights_bytes") or 0) / GIB for service in missing),
        "repos": sorted({model.repo for model in models if model.repo}),
        "kv_tiers": _tiers(planned),
    }
    return [*preflight.check_host(facts, planned, needs), *preflight.not_known(facts, planned)]


def _tiers(planned: Sequence[PlannedService]) -> list[KvTiers]:
    return [service.kv_tiers for service in planned if service.kv_tiers]


def _settings(settings: Mapping[str, Any], planned: Sequence[PlannedService]) -> dict[str, Any]:
    sidecars = [*settings["spark_sidecars"], *settings["beside"]]
    resident = [sidecar for sidecar in sidecars if not sidecar.get("idle") and not sidecar.get("on_demand")]
    names = ("hf_home", "cache_dir", "sysroot", "hf_endpoint", "hf_token_file", "verify", "bundle_dir")
    return {
        # Memory in use before the first engine starts.
        "reserve_gib": settings["spark_os_reserve_gib"] + sum(float(sidecar["memory_gib"]) for sidecar in resident),
        "gpu_args": [str(arg) for arg in settings["spark_gpu_args"]],
        **{name: settings[f"spark_{name}"] for name in names},
        "kv_folders": [tiers.folder for tiers in _tiers(planned)],
    }


def _models(
    planned: Sequence[PlannedService], lock: Mapping[str, Any] | None, pin: bool, hf_home: str
) -> list[dict[str, Any]]:
    """Return every model snapshot that the host needs, with an image that can fetch it and its locked files, and vocabularies by C(url)."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for service in planned:
        _add_models(rows, service)
    for row in rows.values():
        if "repo" in row:
            row["files"] = lock_file.files_of(lock, row["repo"], row["revision"], row["only"]) if pin else {}
            row["locked"] = lock_file.commit(lock, row)
    paths = {file.host for service in planned for file in service.files}
    for vocabulary in vocabularies.BY_ARCHITECTURE.values():
        path = vocabulary.path(hf_home)
        if path in paths:
            row = {"url": vocabulary.url, "sha256": vocabulary.sha256, "bytes": vocabulary.bytes, "path": path}
            rows[(path, "")] = row
    return [rows[key] for key in sorted(rows)]


def _add_models(rows: dict[tuple[str, str], dict[str, Any]], service: PlannedService) -> None:
    """Add the model of a service and its further repositories to the rows of a host."""
    model, image = service.model, service.image.run
    if model.source:
        rows[(str(model.path), "")] = {"source": model.source, "path": model.path}
    else:
        key = (str(model.repo), str(model.revision))
        link = model.link if service.linked else (rows.get(key) or {}).get("link", "")
        rows[key] = {"repo": key[0], "revision": key[1], "only": [], "image": image, "link": link}
    for extra in model.extra:
        key = (extra.repo, extra.revision)
        row = rows.setdefault(key, {"repo": key[0], "revision": key[1], "only": extra.only, "image": image, "link": ""})
        row["link"] = row["link"] or extra.link or ""
        # Two services may name different files of one repository; no pattern means all files.
        row["only"] = sorted({*row["only"], *extra.only}) if row["only"] and extra.only else []


def _once(images: Iterable[Any]) -> list[Any]:
    """Return every image that the host makes, once."""
    by_tag = {image.tag: image for image in images if image}
    return [by_tag[tag] for tag in sorted(by_tag)]


def _has_model(measured: Mapping[str, Any], model: PlannedModel | ExtraModel) -> bool:
    """Tell whether a host has a model at its revision; by the name alone if the facts have no snapshots."""
    if measured.get("snapshots") is None:
        return model.repo in (measured.get("models") or [])
    snapshots = measured["snapshots"].get(model.repo) or {}
    selected = snapshots.get("selected") if isinstance(model, ExtraModel) and model.only else None
    commits = [*(snapshots.get("commits") or []), *(selected or [])]
    return (snapshots.get("refs") or {}).get(model.revision, model.revision) in commits


def _missing(planned: Sequence[PlannedService], host: Host) -> dict[str, list[str]]:
    """Return the images and models that a host does not have; nothing for a host without facts."""
    images, measured = host.images, host.measured
    refs = {service.image.ref for service in planned} if images else set()
    models = [model for service in planned for model in service.model.parts if model.repo] if measured else []
    missing = [model for model in models if not _has_model(measured or {}, model)]
    return {
        "images": sorted(ref for ref in refs if not (images.get(ref) or {}).get("present")),
        "models": sorted({lock_file.model_key(str(model.repo), str(model.revision)) for model in missing}),
    }
