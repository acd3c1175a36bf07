# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The add-on services of all hosts, once the engines are planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .._addons import addons
from .._common.findings import Finding
from . import lock as lock_file
from .service import Host, Sources


def plan_add_ons(
    sparks: Mapping[str, Host],
    others: Mapping[str, Host],
    planned: Mapping[str, dict[str, Any]],
    clusters: Mapping[str, Mapping[str, Any]],
    sources: Sources,
) -> dict[str, dict[str, Any]]:
    """Plan the add-on services; the findings and images of a Spark's go into its part of the plan.

    planned: the Sparks' part of the plan, which is added to. clusters: what concerns each cluster as a whole. Returns what each host has
    of add-on services.
    """
    hosts = {**sparks, **others}
    places = _places(sparks, others, planned, clusters)
    named = {name: addons.images(place["settings"]) for name, place in places.items()}
    for name, place in places.items():
        place["settings"] = addons.with_images(place["settings"], _reference(hosts[name], sources))
    outcome, findings = addons.plan(places)
    for name, images in named.items():
        host = hosts[name]
        if sources.pin:
            bundled = str(host.settings["spark_bundle_dir"]) if name in sparks else ""
            findings[name] += lock_file.addon_findings(
                sources.lock, name, images, host.images, sources.upstream, bundled
            )
        asked = sorted({*images.values(), *lock_file.candidates(sources.lock, images.values(), host.machine)})
        outcome[name]["images"] = {"named": images, "asked": asked}
        if name in planned:
            _add_images(planned[name], images, asked, host, sources)
    for name, body in planned.items():
        for service in body["services"]:
            # Before a restart it is drained there; the head's alone, since its ranks are restarted together.
            service["gateway"] = addons.gateway_of(outcome, name, service)
    for name, found in findings.items():
        _add_findings(hosts[name], found, planned.get(name), outcome[name])
    return outcome


def _places(
    sparks: Mapping[str, Host],
    others: Mapping[str, Host],
    planned: Mapping[str, Mapping[str, Any]],
    clusters: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return the hosts as C(addons.plan) takes them."""
    places: dict[str, dict[str, Any]] = {
        name: {
            "address": str(host.settings["spark_management_address"] or host.address or name),
            "settings": host.settings["addons"],
            "planned": planned[name],
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
            "planned": None,
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


def _reference(host: Host, sources: Sources) -> Callable[[str, str], str]:
    """Return what says by which reference a host runs an image of an add-on service, of a server's name and the image."""

    def reference(_server: str, ref: str) -> str:
        return lock_file.run_ref(sources.applied_lock, ref, host.images, host.machine)

    return reference


def _add_images(
    body: dict[str, Any], images: Mapping[str, str], asked: list[str], host: Host, sources: Sources
) -> None:
    """Put the images of a Spark's add-on services into its part of the plan; asked: all by which they may be there."""
    lock, machine = sources.applied_lock, host.machine
    # Bundles have them, too.
    body["images_beside"] = sorted({lock_file.pin_ref(lock, ref, machine) for ref in images.values()})
    body["addon_images"] = images
    body["images_locked"] |= lock_file.addons(lock, images.values(), machine)
    if lock:
        body["image_candidates"] = sorted({*body["image_candidates"], *asked})


def _add_findings(host: Host, found: list[Finding], body: dict[str, Any] | None, own: dict[str, Any]) -> None:
    """Put findings of add-on services where the other findings of their host are: a Spark's into its part of the plan."""
    ignored = host.ignored if body is None else set(host.settings["spark_ignore_rules"])
    told = [finding.to_dict() for finding in found if finding.rule not in ignored]
    own["findings"] = told if body is None else []
    if body is not None:
        body["findings"] += told
