# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host: its services in the order of their start, its memory, and the images and models that it needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._common.findings import Finding
from .._common.sizes import GIB
from .._content import vocabularies
from .._memory.causes import ROOM_RULES
from . import lock as lock_file
from . import measured_starts, on_demand, preflight, service_findings, verbs
from .judging import budget_of, check_launch, combinations
from .planned import BuiltImage, ExtraModel, PlannedHost, PlannedModel, PlannedService, RayImage
from .planned_service import plan_service
from .service import Host, Sources
from .service_files import place

_REFUSED_OPTION = re.compile(r"\bargs\.(?P<name>[\w-]+): ")


def plan_host(host: Host, sources: Sources) -> PlannedHost:
    """Return the part of a host of the plan; clusters, add-on services and firewall come later.

    Raises C(InputError) for figures of a model that nothing can be worked out from.
    """
    settings, measured = host.settings, host.measured
    services = {service.name: place(settings, service, sources.digest) for service in host.services}
    launches = {name: check_launch(service, settings, measured, host.images) for name, service in services.items()}
    budget = budget_of(settings, list(services.values()), launches, measured, (host, sources))
    order = [name for name in budget["start_order"] if name in launches]
    order += [name for name in sorted(launches) if name not in order]
    memories = {name: dict(budget["services"].get(name) or {}) for name in order}
    for name, memory in memories.items():
        if memory.get("sources"):
            memory["launch"] = measured_starts.launch_of(services[name], launches[name], host, sources)
    planned = [
        plan_service(host, services[name], launches[name], memories[name], position, order[: position - 1])
        for position, name in enumerate(order, start=1)
    ]
    planned = verbs.choose_states(planned, measured, list(services))
    fitting, cuts = combinations(settings, list(services.values()), launches, budget, measured)
    planned = _beside_each_other(planned, fitting)
    findings = [finding for launch in launches.values() for finding in launch.findings]
    findings = _explain_by_option(_explain_by_length([*findings, *budget["findings"]]))
    told = on_demand.cut_findings(host.name, fitting, cuts)
    told += _check_host(host, planned) if measured else []
    for service in planned:
        told += service_findings.check(host, sources, service, services[service.name])
    findings += [finding.to_dict() for finding in told]
    measurements = None
    if sources.measurements:
        measurements = measured_starts.described(services.values(), launches, host, sources)
    offered = {ref for service in host.services for ref in service.alternatives}
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
        images=sorted({service.image.ref for service in planned}),
        # What else a recipe offers: the host is asked for all, and the first that is there serves.
        image_candidates=sorted({*offered, *lock_file.candidates(sources.lock, offered, host.machine)}),
        models=_models(planned, sources.lock, sources.pin, settings["spark_hf_home"]),
        # What another host may have: it comes from there then.
        missing=_missing(planned, host),
        images_locked=lock_file.locked_images(sources.applied_lock, (service.image.ref for service in planned)),
        built_images=_built_images(planned),
        ray_images=_ray_images(planned),
        settings=_settings(settings),
        measurements=measurements,
    )


def _explain_by_option(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return findings in which an option that a rule refuses explains that the memory cannot be planned with it."""
    refused = [item for item in findings if item["rule"].startswith("SPK") and item["severity"] == "error"]
    for item in findings:
        option = _REFUSED_OPTION.search(item["message"]) if item["rule"] == "memory.refused" else None
        if option is None:
            continue
        for cause in refused:
            if cause["service"] == item["service"] and f"--{option['name']} " in f"{cause['message']} ":
                item["consequence_of"] = cause["rule"]
    return findings


def _explain_by_length(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return findings in which a length beyond the model's maximum (SPK403) explains that such a request has no room.

    A fix that shortens the requests for lack of memory also satisfies the model, so that it is the fix of both.
    """
    findings = [dict(item) for item in findings]
    refused = {item["service"]: item for item in findings if item["rule"] == "SPK403" and item["severity"] == "error"}
    for item in findings:
        cause = refused.get(item["service"]) if item["rule"] in ROOM_RULES and item["severity"] == "error" else None
        if cause is None:
            continue
        changes = item.get("changes", [])
        if any("max-model-len" in change["args"] for change in changes) and not item.get("consequence_of"):
            cause.update(fix=item["fix"], changes=changes)
        item["consequence_of"] = cause["rule"]
    return findings


def _beside_each_other(
    planned: Sequence[PlannedService], fitting: Mapping[str, Sequence[Sequence[str]]]
) -> list[PlannedService]:
    """Return the services, those on demand with the combinations of their set. fitting: of C(judging.combinations)."""
    return [
        replace(each, on_demand=replace(each.on_demand, combinations=fitting[each.exclusive]))
        if each.on_demand and each.exclusive
        else each
        for each in planned
    ]


def _check_host(host: Host, planned: Sequence[PlannedService]) -> list[Finding]:
    """Compare what a host says of itself with what is to be put there."""
    facts, settings = host.measured or {}, host.settings
    models = [each for service in planned for each in service.model.parts]
    wants = {
        "uses_gpu": any("--gpus" in str(arg) or arg == "--runtime" for arg in settings["spark_gpu_args"]),
        "hf_home": settings["spark_hf_home"],
        "download_gib": _download_gib(planned, facts),
        "repos": sorted({each.repo for each in models if each.repo}),
    }
    return [*preflight.check_host(facts, planned, wants), *preflight.not_known(facts, planned)]


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a host that its roles are given."""
    beside = [*settings["spark_sidecars"], *settings["beside"]]
    return {
        # What is in use before the first engine starts.
        "reserve_gib": settings["spark_os_reserve_gib"]
        + sum(float(each["memory_gib"]) for each in beside if not each.get("idle") and not each.get("on_demand")),
        "hf_home": settings["spark_hf_home"],
        "cache_dir": settings["spark_cache_dir"],
        "sysroot": settings["spark_sysroot"],
        "gpu_args": [str(arg) for arg in settings["spark_gpu_args"]],
        "hf_endpoint": settings["spark_hf_endpoint"],
        "hf_token_file": settings["spark_hf_token_file"],
        "verify": settings["spark_verify"],
        "bundle_dir": settings["spark_bundle_dir"],
    }


def _models(
    planned: Sequence[PlannedService], lock: Mapping[str, Any] | None, pin: bool, hf_home: str
) -> list[dict[str, Any]]:
    """Return every model snapshot that the host needs, once, with an image that can fetch it and the files that the lock has.

    Vocabularies from elsewhere than the hub follow as rows with C(url), C(sha256), C(bytes) and C(path).
    """
    wanted: dict[tuple[str, str], dict[str, Any]] = {}
    for service in planned:
        model, image = service.model, service.image.run
        if model.source:
            wanted[(str(model.path), "")] = {"source": model.source, "path": model.path}
        else:
            key = (str(model.repo), str(model.revision))
            link = model.link if service.linked else (wanted.get(key) or {}).get("link", "")
            wanted[key] = {"repo": key[0], "revision": key[1], "only": [], "image": image, "link": link}
        for extra in model.extra:
            key = (extra.repo, extra.revision)
            new = {"repo": key[0], "revision": key[1], "only": extra.only, "image": image, "link": ""}
            entry = wanted.setdefault(key, new)
            entry["link"] = entry["link"] or extra.link or ""
            # Two services may name different files of one repository; without patterns all of them are meant.
            entry["only"] = sorted({*entry["only"], *extra.only}) if entry["only"] and extra.only else []
    for service in planned:
        for vocabulary in vocabularies.BY_ARCHITECTURE.values():
            path = vocabulary.path(hf_home)
            if any(entry.host == path for entry in service.files):
                row = {"url": vocabulary.url, "sha256": vocabulary.sha256, "bytes": vocabulary.bytes, "path": path}
                wanted[(path, "")] = row
    for entry in wanted.values():
        if "repo" in entry:
            entry["files"] = lock_file.files_of(lock, entry["repo"], entry["revision"], entry["only"]) if pin else {}
            entry["locked"] = lock_file.commit(lock, entry)
    return [wanted[key] for key in sorted(wanted)]


def _built_images(planned: Sequence[PlannedService]) -> list[BuiltImage]:
    """Every image that the host has to make by a Dockerfile, once."""
    wanted = {service.built_image.tag: service.built_image for service in planned if service.built_image}
    return [wanted[tag] for tag in sorted(wanted)]


def _ray_images(planned: Sequence[PlannedService]) -> list[RayImage]:
    """Every image with Ray that the host has to make from one without, once."""
    wanted = {service.ray_image.tag: service.ray_image for service in planned if service.ray_image}
    return [wanted[tag] for tag in sorted(wanted)]


def _download_gib(planned: Sequence[PlannedService], measured: Mapping[str, Any]) -> float:
    """GiB of weights that are not on the host yet."""
    missing = [each for each in planned if each.model.repo and not _has_model(measured, each.model)]
    return sum((each.memory.get("weights_bytes") or 0) / GIB for each in missing)


def _has_model(measured: Mapping[str, Any], model: PlannedModel | ExtraModel) -> bool:
    """Tell whether a host has a model at its revision; by the name alone where the host has said no more."""
    if measured.get("snapshots") is None:
        return model.repo in (measured.get("models") or [])
    own = measured["snapshots"].get(model.repo) or {}
    selected = own.get("selected") if isinstance(model, ExtraModel) and model.only else None
    there = [*(own.get("commits") or []), *(selected or [])]
    return (own.get("refs") or {}).get(model.revision, model.revision) in there


def _missing(planned: Sequence[PlannedService], host: Host) -> dict[str, list[str]]:
    """Images and models that a host that was asked does not have; nothing where it was not asked."""
    images, measured = host.images, host.measured
    wanted = {service.image.ref for service in planned} if images else set()
    models = [each for service in planned for each in service.model.parts if each.repo]
    return {
        "images": sorted(ref for ref in wanted if not (images.get(ref) or {}).get("present")),
        "models": sorted(
            {
                lock_file.model_key(str(each.repo), str(each.revision))
                for each in models
                if not _has_model(measured, each)
            }
            if measured
            else ()
        ),
    }
