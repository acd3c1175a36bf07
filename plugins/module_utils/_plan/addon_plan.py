# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The add-on services of all hosts, once the engines are planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._addons import addons
from .._cluster import endpoints
from .._cluster.endpoints import Endpoint
from .._common.findings import Finding
from . import client_tools, lock_findings, on_demand
from . import lock as lock_file
from .planned import Backend, PlannedHost, PlannedService
from .service import Host, Sources


def plan_add_ons(
    sparks: Mapping[str, Host],
    others: Mapping[str, Host],
    planned: Mapping[str, PlannedHost],
    clusters: Mapping[str, Mapping[str, Any]],
    sources: Sources,
) -> dict[str, dict[str, Any]]:
    """Plan the add-on services; the findings and images of a Spark's go into its part of the plan.

    :param sparks: the Sparks by name
    :param others: hosts that are no Sparks and run add-on services, by name
    :param planned: the Sparks' part of the plan, which is added to
    :param clusters: what concerns each cluster as a whole, by name
    :param sources: recipes, lock file and what else the plan is made from
    :returns: what each host has of add-on services
    """
    hosts = {**sparks, **others}
    places = _places(sparks, others, planned, clusters)
    named = {name: addons.images(place["settings"]) for name, place in places.items()}
    for name, place in places.items():
        place["settings"] = addons.with_images(place["settings"], _reference(hosts[name], sources))
    outcome, findings = addons.plan(places)
    engines = {each.key(name): each for name, body in planned.items() for each in body.services if not each.rank}
    settings = {name: place["settings"] for name, place in places.items()}
    for name, found in client_tools.findings(outcome, settings, engines, _architectures(sparks, planned)).items():
        findings[name] += found
    for name, images in named.items():
        host = hosts[name]
        if sources.pin:
            bundled = str(host.settings["spark_bundle_dir"]) if name in sparks else ""
            findings[name] += lock_findings.addon_findings(
                sources.lock, name, images, host.images, sources.upstream, bundled
            )
        asked = sorted({*images.values(), *lock_file.candidates(sources.lock, images.values(), host.machine)})
        outcome[name]["images"] = {"named": images, "asked": asked}
        if name in planned:
            _add_images(planned[name], images, asked, host, sources)
    for name, body in planned.items():
        # Before a restart it is drained there; the head's alone, since its ranks are restarted together.
        body.speech = [
            _asked(each) for each in (outcome[name]["speech"] or {}).get("services", ()) if "on_demand" in each
        ]
        body.speech = body.speech or None
        body.services = [
            each if each.rank else replace(each, gateway=_gateway(outcome, each.key(name))) for each in body.services
        ]
    for name, found in findings.items():
        _add_findings(hosts[name], found, planned.get(name), outcome[name])
    return outcome


def _architectures(sparks: Mapping[str, Host], planned: Mapping[str, PlannedHost]) -> dict[str, str]:
    """Return the architecture of each engine's model by its key in the fleet, where config.json is known."""
    found = {}
    for name, host in sparks.items():
        listed = {service.name: (service.config or {}).get("architectures") for service in host.services}
        for each in planned[name].services:
            names = listed.get(each.name)
            if isinstance(names, list) and names:
                found[each.key(name)] = str(names[0])
    return found


def _places(
    sparks: Mapping[str, Host],
    others: Mapping[str, Host],
    planned: Mapping[str, PlannedHost],
    clusters: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return the hosts as C(addons.plan) takes them."""
    addresses = {
        name: str(host.settings["spark_management_address"] or host.address or name) for name, host in sparks.items()
    }
    places: dict[str, dict[str, Any]] = {
        name: {
            "address": addresses[name],
            "settings": host.settings["addons"],
            "engines": endpoints_of(name, addresses[name], planned[name].services),
            "planned_gib": planned_gib(planned[name].services),
            "service_keys": {each.name: "" if each.rank else each.key(name) for each in planned[name].services},
            "reserve_gib": planned[name].settings["reserve_gib"],
            "left_gib": left_gib(planned[name], host.settings["beside"]),
            "sets": planned[name].sets or {},
            "measured": host.measured,
            "images": host.images,
            "gpu_args": host.settings["spark_gpu_args"],
            "sysroot": host.settings["spark_sysroot"],
            "rails": {},
            "allow_from": host.settings["spark_allow_from"],
            "firewall": host.settings["spark_firewall"],
        }
        for name, host in sparks.items()
    }
    for whole in clusters.values():
        for name, part in ((whole["fabric"] or {}).get("hosts") or {}).items():
            places[name]["rails"] = {rail["netdev"]: rail["mtu"] for rail in part["rails"]}
    return places | {
        name: {
            "address": str(host.variables.get("spark_management_address") or host.address or name),
            "settings": host.settings["addons"],
            "engines": None,
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
            "allow_from": [],
            "firewall": False,
        }
        for name, host in others.items()
    }


def endpoints_of(host: str, address: str, services: Sequence[PlannedService]) -> list[Endpoint]:
    """Return the endpoints of the engines that a host answers for: its own, and those of clusters that it is the head of.

    :param host: its name
    :param address: the host's in the inventory
    :param services: of its plan
    :returns: endpoints of kind C(vllm)
    """
    found = []
    for service in services:
        if service.rank:
            continue
        length = service.args.get("max-model-len")
        more: dict[str, Any] = {
            "key": service.key(host),
            "models": [service.served_model_name],
            "api_key_file": service.api_key and service.api_key.source,
            "max_model_len": length if isinstance(length, int) else None,
            "memory_gib": (service.memory.get("residency_gib") or {}).get("typical"),
            "tools": bool(service.checks.get("tools")),
            "on_demand": service.on_demand is not None,
            "hold_seconds": on_demand.held(service.on_demand),
            "hosts": list(service.cluster.hosts) if service.cluster else [host],
        }
        found.append(endpoints.make(host, address, service.name, "vllm", service.port, service.host, **more))
    return found


def planned_gib(services: Sequence[PlannedService]) -> dict[str, float]:
    """Return what services are planned to hold, by name; files of hosts go by what is assumed, not by what was measured since."""
    found = {}
    for service in services:
        usual = (service.memory.get("residency_gib") or {}).get("typical")
        expected = service.memory.get("assumed_residency_gib", usual)
        if expected is not None:
            found[service.name] = round(float(expected), 3)
    return dict(sorted(found.items()))


def left_gib(planned: PlannedHost, beside: Sequence[Mapping[str, Any]] = ()) -> float | None:
    """Return what is free on a host with all that may run at once, GiB; None where not all of it is known.

    :param planned: the host's part of the plan
    :param beside: what else takes memory there, of which the reserve has no speech servers on demand
    """
    held = planned_gib(planned.services)
    if any(service.name not in held for service in planned.services):
        return None
    woken = {each["name"]: each for each in beside if each.get("on_demand")}
    held |= {name: float(each["memory_gib"]) for name, each in woken.items()}
    sets = {service.name: service.exclusive for service in planned.services}
    # Each service that is always there; of an exclusive set the largest, of one on demand the largest combination.
    slots: dict[str, list[float]] = {}
    for name, exclusive in [*sets.items(), *((name, each["exclusive"]) for name, each in woken.items())]:
        slots.setdefault(f"set {exclusive}" if exclusive else name, []).append(held[name])
    for exclusive, together in (planned.sets or {}).items():
        slots[f"set {exclusive}"] += [sum(held[name] for name in one if name in held) for one in together]
    taken = float(planned.settings["reserve_gib"]) + sum(map(max, slots.values()))
    return round(float(planned.total_gib) - taken, 2)


def _asked(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return what those who ask how services are need of a speech server on demand; its unit says whether it has answered."""
    model = server["settings"]["model"]
    probe = {"name": server["name"], "url": None, "model": model, "api_key_file": None}
    return {**{key: server[key] for key in ("name", "unit", "memory_gib")}, "model": model, "probe": probe}


def _gateway(outcome: Mapping[str, Mapping[str, Any]], key: str) -> Backend | None:
    """Return the gateway that gives an engine requests. outcome: host to what C(addons.plan) made for it. key: of the engine."""
    behind = (
        name for name, made in outcome.items() if made["gateway"] and key in made["gateway"]["settings"]["backends"]
    )
    return next((Backend(name, key) for name in behind), None)


def _reference(host: Host, sources: Sources) -> Callable[[str, str], str]:
    """Return what says by which reference a host runs an image of an add-on service, of a server's name and the image."""

    def reference(_server: str, ref: str) -> str:
        return lock_file.run_ref(sources.applied_lock, ref, host.images, host.machine)

    return reference


def _add_images(body: PlannedHost, images: Mapping[str, str], asked: list[str], host: Host, sources: Sources) -> None:
    """Put the images of a Spark's add-on services into its part of the plan; asked: all by which they may be there."""
    lock, machine = sources.applied_lock, host.machine
    # Bundles have them, too.
    body.images_beside = sorted({lock_file.pin_ref(lock, ref, machine) for ref in images.values()})
    body.addon_images = images
    body.images_locked |= lock_file.locked_images(lock, body.images_beside)
    if lock:
        body.image_candidates = sorted({*body.image_candidates, *asked})


def _add_findings(host: Host, found: list[Finding], body: PlannedHost | None, own: dict[str, Any]) -> None:
    """Put findings of add-on services where the other findings of their host are: a Spark's into its part of the plan."""
    ignored = host.ignored if body is None else set(host.settings["spark_ignore_rules"])
    told = [finding.to_dict() for finding in found if finding.rule not in ignored]
    own["findings"] = told if body is None else []
    if body is not None:
        body.findings += told
