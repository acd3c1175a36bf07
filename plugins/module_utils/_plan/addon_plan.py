# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The add-on services of all hosts, planned after the engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._addons import addons
from .._cluster import endpoints
from .._cluster.endpoints import Endpoint
from .._vllm import known_failures
from . import client_tools, lock_findings
from . import lock as lock_file
from .planned import PlannedHost, PlannedService
from .service import Host, Sources


def plan_add_ons(
    sparks: Mapping[str, Host],
    other_hosts: Mapping[str, Host],
    planned: Mapping[str, PlannedHost],
    clusters: Mapping[str, Mapping[str, Any]],
    sources: Sources,
) -> dict[str, dict[str, Any]]:
    """Return the planned add-on services by host. planned: the planned Sparks; receive findings, images, speech servers and gateways."""
    hosts = {**sparks, **other_hosts}
    places = _places(sparks, other_hosts, planned, clusters)
    images = {name: addons.images(place["settings"]) for name, place in places.items()}
    for name, place in places.items():

        def run_ref(_server: str, ref: str, host: Host = hosts[name]) -> str:
            return lock_file.run_ref(sources.applied_lock, ref, host.images, host.machine)

        place["settings"] = addons.with_images(place["settings"], run_ref)
    outcome, findings = addons.plan(places)
    engines = {
        service.key(name): service for name, body in planned.items() for service in body.services if not service.rank
    }
    settings = {name: place["settings"] for name, place in places.items()}
    client_findings = client_tools.findings(outcome, settings, engines, _architectures(sparks, planned))
    for name, host in hosts.items():
        findings[name] += client_findings.get(name, [])
        if sources.pin:
            bundle_dir = str(host.settings["spark_bundle_dir"]) if name in sparks else ""
            findings[name] += lock_findings.addon_findings(
                sources.lock, name, images[name], host.images, sources.upstream, bundle_dir
            )
        candidates = lock_file.candidates(sources.lock, images[name].values(), host.machine)
        references = sorted({*images[name].values(), *candidates})
        outcome[name]["images"] = {"named": images[name], "asked": references}
        body, ignored = planned.get(name), host.ignored
        if body:
            _add_images(body, images[name], references, sources.applied_lock, host.machine)
            _add_services(body, name, outcome)
            ignored = frozenset(host.settings["spark_ignore_rules"])
        outcome[name]["findings"] = []
        reported = body.findings if body else outcome[name]["findings"]
        reported += [finding.to_dict() for finding in findings[name] if finding.rule not in ignored]
    return outcome


def _architectures(sparks: Mapping[str, Host], planned: Mapping[str, PlannedHost]) -> dict[str, str]:
    """Return the architecture of each engine's model by the engine's key, if its config.json is known."""
    return {
        service.key(name): str(names[0])
        for name, host in sparks.items()
        for service in planned[name].services
        for spec in host.services
        if spec.name == service.name and isinstance(names := spec.config.get("architectures"), list) and names
    }


def _add_images(
    body: PlannedHost,
    images: Mapping[str, str],
    references: Sequence[str],
    lock: Mapping[str, Any] | None,
    machine: str | None,
) -> None:
    """Add the images of a Spark's add-on services to its part of the plan. references: the images and their candidates."""
    # Bundles include them.
    body.images_beside = sorted({lock_file.pin_ref(lock, ref, machine) for ref in images.values()})
    body.addon_images = images
    body.images_locked |= lock_file.locked_images(lock, body.images_beside)
    if lock:
        body.image_candidates = sorted({*body.image_candidates, *references})


def _add_services(body: PlannedHost, name: str, outcome: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the speech servers on demand of a Spark, and the gateways of its services, to its part of the plan."""
    servers = (outcome[name]["speech"] or {}).get("services", ())
    # A status reads these fields; the unit of a server on demand shows whether it answers.
    body.speech = [
        {
            **{key: server[key] for key in ("name", "unit", "memory_gib")},
            "model": (model := server["settings"]["model"]),
            "probe": {"name": server["name"], "url": None, "model": model, "api_key_file": None},
        }
        for server in servers
        if "on_demand" in server
    ] or None
    gateways = {
        key: {"host": host, "backend": key}
        for host, made in reversed(list(outcome.items()))
        for key in (made["gateway"]["settings"]["backends"] if made["gateway"] else ())
    }
    # A gateway is drained before a restart of the head, which restarts its ranks too.
    body.services = [
        service if service.rank else replace(service, gateway=gateways.get(service.key(name)))
        for service in body.services
    ]


_NO_SPARK: Mapping[str, Any] = {
    "engines": None,
    "engine_facts": {},
    "planned_gib": {},
    "service_keys": {},
    "reserve_gib": 0.0,
    "left_gib": None,
    "sets": {},
    "measured": None,
    "images": None,
    "gpu_args": [],
    "sysroot": "/",
    "rails": {},
    "live_services": [],
    "allow_from": [],
    "firewall": False,
}
"""Values of C(addons.plan) for a host that is not a Spark."""


def _places(
    sparks: Mapping[str, Host],
    other_hosts: Mapping[str, Host],
    planned: Mapping[str, PlannedHost],
    clusters: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return the hosts as C(addons.plan) takes them."""
    rails = {
        name: {rail["netdev"]: rail["mtu"] for rail in part["rails"]}
        for cluster in clusters.values()
        for name, part in ((cluster["fabric"] or {}).get("hosts") or {}).items()
    }
    places = {name: _spark_place(name, host, planned[name], rails.get(name, {})) for name, host in sparks.items()}
    for name, host in other_hosts.items():
        address = str(host.variables.get("spark_management_address") or host.address or name)
        places[name] = {**_NO_SPARK, "address": address, "settings": host.settings["addons"]}
    return places


def _spark_place(name: str, host: Host, body: PlannedHost, rails: Mapping[str, int]) -> dict[str, Any]:
    """Return a Spark as C(addons.plan) takes it. rails: MTU by network device."""
    settings = host.settings
    address = str(settings["spark_management_address"] or host.address or name)
    return {
        "address": address,
        "settings": settings["addons"],
        "engines": endpoints_of(name, address, body.services),
        "engine_facts": engine_facts(body),
        "planned_gib": planned_gib(body.services),
        "service_keys": {service.name: "" if service.rank else service.key(name) for service in body.services},
        "reserve_gib": body.settings["reserve_gib"],
        "left_gib": left_gib(body, settings["beside"]),
        "sets": body.sets or {},
        "measured": host.measured,
        "images": host.images,
        "rails": rails,
        "live_services": live_services(body.services),
        **{key: settings[f"spark_{key}"] for key in ("gpu_args", "sysroot", "allow_from", "firewall")},
    }


def endpoints_of(host: str, address: str, services: Sequence[PlannedService]) -> list[Endpoint]:
    """Return the endpoints of the engines of a host, and of the clusters whose head it is."""
    listed = []
    for service in services:
        if service.rank:
            continue
        length, settings = service.args.get("max-model-len"), service.on_demand
        # Requests wait for the service to load, unless they are rejected.
        waits = settings and settings.while_loading != "reject"
        endpoint = endpoints.make(
            *(host, address, service.name, "vllm", service.port, service.host),
            key=service.key(host),
            models=[service.served_model_name],
            api_key_file=service.api_key and service.api_key.source,
            max_model_len=length if isinstance(length, int) else None,
            memory_gib=(service.memory.get("residency_gib") or {}).get("typical"),
            tools=bool(service.checks.get("tools")),
            on_demand=settings is not None,
            hold_seconds=settings.hold_seconds if settings and waits else 0,
            hosts=list(service.cluster.hosts) if service.cluster else [host],
        )
        listed.append(endpoint)
    return listed


WRONG_OUTPUT = {row["id"] for row in known_failures.ROWS if row["verdict"] == "wrong output"}


def engine_facts(body: PlannedHost) -> dict[str, dict[str, Any]]:
    """Return the facts of each engine that questions about its quality depend on, with the fixes of known failures with wrong output."""
    cures: dict[str, list[str]] = {}
    for finding in body.findings:
        if finding["rule"] in WRONG_OUTPUT:
            cures.setdefault(finding["service"], []).append(f"{finding['rule']}: {finding['fix']}")
    facts = {}
    for service in body.services:
        values = {
            "tools": bool(service.checks.get("tools")),
            "temperature": service.checks.get("temperature"),
            "length": service.args.get("max-model-len"),
            "cures": sorted(cures.get(service.name, ())),
        }
        facts[service.name] = {key: value for key, value in values.items() if value not in (None, False, [])}
    return facts


def planned_gib(services: Sequence[PlannedService]) -> dict[str, float]:
    """Return the planned GiB of services by name, without measured starts, which must not change files of hosts."""
    memory = {service.name: service.memory for service in sorted(services, key=lambda service: service.name)}
    typical = {name: (figures.get("residency_gib") or {}).get("typical") for name, figures in memory.items()}
    planned = {name: figures.get("assumed_residency_gib", typical[name]) for name, figures in memory.items()}
    return {name: round(float(gib), 3) for name, gib in planned.items() if gib is not None}


def live_services(services: Sequence[PlannedService]) -> list[dict[str, Any]]:
    """Return what the live page knows of planned services, without measured starts; see C(planned_gib)."""
    memory = planned_gib(services)
    rows = []
    for service in services:
        one_stream = service.speed.one_stream if service.speed else None
        span = service.cluster
        row = {
            **{key: getattr(service, key) for key in ("name", "unit", "rank", "state", "exclusive", "vllm_version")},
            "model": {"repo": service.model.repo or service.recipe},
            "memory": {"residency_gib": {"typical": memory.get(service.name)}},
            "cluster": {"name": span.name, "size": span.size, "executor": span.executor} if span else None,
            "url": None if service.rank else service.url,
            "predicted": one_stream.rounded().typical if one_stream else None,
        }
        rows.append({key: value for key, value in row.items() if value is not None})
    return rows


def left_gib(planned: PlannedHost, sidecars: Sequence[Mapping[str, Any]] = ()) -> float | None:
    """Return the free GiB of a host with all services that may run at once, None if unknown. sidecars: of C(addons.sidecars)."""
    memory = planned_gib(planned.services)
    if any(service.name not in memory for service in planned.services):
        return None
    servers = {sidecar["name"]: sidecar for sidecar in sidecars if sidecar.get("on_demand")}  # not in the reserve
    memory |= {name: float(server["memory_gib"]) for name, server in servers.items()}
    sets = {service.name: service.exclusive for service in planned.services}
    sets |= {name: server["exclusive"] for name, server in servers.items()}
    # Permanent services count each, an exclusive set by its largest service, a set on demand by its largest combination.
    slots: dict[str, list[float]] = {}
    for name, exclusive in sets.items():
        slots.setdefault(f"set {exclusive}" if exclusive else name, []).append(memory[name])
    for exclusive, combinations in (planned.sets or {}).items():
        slots[f"set {exclusive}"] += [sum(memory.get(name, 0.0) for name in names) for names in combinations]
    used = float(planned.settings["reserve_gib"]) + sum(map(max, slots.values()))
    return round(float(planned.total_gib) - used, 2)
