# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The first step of a plan: checks of inventory and answers of hosts, and services merged with their recipes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from .._addons import addons
from .._common import foreign_text, plain_data, reader, schema, validation
from .._common.foreign_text import printable
from . import lock as lock_file
from . import on_demand, preflight, recipes, service_keys, tuning, variables
from .service import Host, ServiceSpec, Sources

_WITH_PORT = re.compile(r"[\w.-]+:\d{1,5}")


class InventoryError(Exception):
    """The inventory cannot be planned; C(messages) has all problems."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


def fit(hosts: Mapping[str, Mapping[str, Any]], messages: list[str]) -> dict[str, dict[str, Any]]:
    """Return the hosts without unusable variables and answers; C(messages) receives the reasons."""
    usable = {}
    for name, host in hosts.items():
        values = {}
        for variable, value in (host.get("vars") or {}).items():
            where = f"host {name}: {variable}"
            problems = plain_data.unfit(value, where, service_keys.ENDLESS)
            if variable in addons.VARIABLES and not problems:  # services have messages for each key
                problems = plain_data.several_lines(value, where, ("config",))
            messages += problems
            if not problems:
                values[variable] = value
        messages += _address_problems(name, host.get("address") or name)
        usable[name] = {**host, **_fit_answers(name, host, messages), "vars": values}
    return usable


def _address_problems(host: str, address: Any) -> list[str]:
    where = f"host {host}: ansible_host is {plain_data.shown(address)}"
    if not plain_data.is_line(address) or len(address.split()) != 1 or plain_data.unfit(address, ""):
        return [f"{where}; it must be one address or name."]
    if _WITH_PORT.fullmatch(address):
        name, _colon, port = address.rpartition(":")
        return [f"{where}, which ssh cannot reach. Write ansible_host: {name} and ansible_port: {port}."]
    return []


def _fit_answers(host: str, values: Mapping[str, Any], messages: list[str]) -> dict[str, Any]:
    """Return the answers of a host, None for an unusable one."""
    answers = {}
    for key, form in preflight.ANSWERS.items():
        problems = plain_data.unfit(values.get(key), key) or reader.problems(form, values.get(key), key)
        if problems:
            why = " ".join(printable("; ".join(problems[:3])).split())
            messages.append(
                f"host {host}: what it said of itself cannot be used ({why}). Run again; if it stays, "
                "something else answers in the place of this collection's modules there."
            )
        answers[key] = None if problems else foreign_text.received(values.get(key))
    return answers


def read_spark(name: str, host_values: Mapping[str, Any], sources: Sources, messages: list[str]) -> Host:
    """Return a Spark with its checked variables and merged services; only valid without messages. host_values: see C(plan.make_plan)."""
    settings, problems = variables.read(name, host_values["vars"])
    messages += problems
    host = _host(name, host_values, settings)
    images = lock_file.by_planned_names(host.reported_images, sources.lock, host.machine, sources.pin)
    host = replace(host, images=images)
    services, problems = _services(host, sources)
    messages += problems
    names: set[Any] = {service_name for service_name, _port in claims(host)}
    settings["addons"], problems = addons.read(name, host_values["vars"], sorted(map(str, names)))
    messages += problems
    # Add-on services need memory like programs of others.
    settings["beside"] = [] if problems else on_demand.with_proxy(addons.sidecars(settings["addons"]), services)
    names |= {sidecar["name"] for sidecar in settings["beside"]}
    messages += on_demand.find_conflicts(f"host {name}", [*services, *on_demand.servers(settings["beside"])])
    sidecars = validation.Problems(f"host {name}")
    for entry in schema.entries(sidecars, settings["spark_sidecars"], service_keys.SIDECAR, "spark_sidecars"):
        if entry["name"] in names:
            sidecars.add(f"the name '{entry['name']}' of spark_sidecars is already the name of a service of this host.")
    messages += sidecars.messages
    return replace(host, services=services)


def read_other(name: str, host_values: Mapping[str, Any], messages: list[str]) -> Host:
    """Return a host that is not a Spark and runs add-on services; only valid without messages. host_values: C({vars, address})."""
    settings, problems = addons.read(name, host_values["vars"], (), is_spark=False)
    messages += problems
    return _host(name, host_values, {"addons": settings})


def _host(name: str, host_values: Mapping[str, Any], settings: Mapping[str, Any]) -> Host:
    images = host_values.get("images") or {}
    return Host(
        name=name,
        variables=host_values["vars"],
        address=str(host_values.get("address") or ""),
        measured=host_values.get("measured"),
        reported_images=images,
        images=images,
        fabric=host_values.get("fabric"),
        settings=settings,
    )


def claims(host: Host) -> list[tuple[Any, Any]]:
    """Return name and port of each entry in C(spark_services), of malformed ones too; None for a malformed value."""
    return [recipes.claim(entry) for entry in host.settings["spark_services"]]


def _services(host: Host, sources: Sources) -> tuple[list[ServiceSpec], list[str]]:
    """Return the services of a host merged with their recipes, and all problems."""
    services: list[ServiceSpec] = []
    messages: list[str] = []
    tuned = host.settings["spark_tuned"]
    for index, written in enumerate(host.settings["spark_services"]):
        where, entry = f"host {host.name}, spark_services[{index}]", tuning.tuned_entry(written, tuned)
        service, problems = read_service(entry, where, f"{host.name}/", host, sources, host.present_images)
        messages += problems
        if service is None:
            continue
        if service.nodes > 1:
            messages.append(
                f"{where}: recipe {service.recipe} needs {service.nodes} Sparks. Put it "
                f"into the services of spark_cluster, on a group of so many hosts; docs/cluster.md shows how."
            )
        if service.hosts:
            messages.append(
                f"{where}: 'hosts' is for services of spark_cluster. Take it out, or move the service there."
            )
        services.append(service)
    names = [name for name, _port in claims(host)]
    messages += [
        f"host {host.name}, spark_tuned: {name!r} is no service of this host, or its options are no mapping. Remove it."
        for name, args in tuned.items()
        if name not in names or not isinstance(args, Mapping)
    ]
    for kind, values in (("service name", names), ("port", [port for _name, port in claims(host)])):
        messages += [
            f"host {host.name}, spark_services[{index}]: {kind} {value!r} is used twice on this host, "
            f"first by spark_services[{values.index(value)}] ({names[values.index(value)]})."
            for index, value in enumerate(values)
            if value is not None and values.index(value) < index
        ]
    return services, messages


def read_service(
    entry: Any, where: str, key: str, host: Host, sources: Sources, present: Collection[str]
) -> tuple[ServiceSpec | None, list[str]]:
    """Return a service merged with its recipe and pinned by the lock file, None for a wrong one, and all problems.

    key: C(host/) or C(cluster/). host: with C(spark_defaults); the head of a cluster.
    """
    name = entry.get("name") if isinstance(entry, Mapping) else None
    defaults = host.settings["spark_defaults"]
    choice = lock_file.preferred(sources.applied_lock, f"{key}{name}")
    service, problems = recipes.resolve_service(entry, where, sources.recipes, defaults, choice or present)
    if choice and service and service.image["ref"] not in choice:
        service, problems = recipes.resolve_service(entry, where, sources.recipes, defaults, present)
    if service is None:
        return None, problems
    lock_entry = lock_file.describe(service, f"{key}{name}", sources.recipes.get(str(service.recipe)), sources.digest)
    if sources.pin:
        service = lock_file.pin(service, sources.lock, host.machine)
    return replace(service, lock=lock_entry), problems
