# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The first step of a plan: what the inventory and the hosts say, checked; services merged with their recipes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from .._addons import addons
from .._common import foreign_text, plain_data, reader, schema, validation
from .._common.foreign_text import printable
from . import lock as lock_file
from . import on_demand, preflight, recipes, service_keys, variables
from .service import Host, PlacedService, ServiceSpec, Sources

_WITH_PORT = re.compile(r"[\w.-]+:\d{1,5}")


class InventoryError(Exception):
    """The inventory cannot be planned; C(messages) says everything that is wrong."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


def fit(hosts: Mapping[str, Mapping[str, Any]], messages: list[str]) -> dict[str, dict[str, Any]]:
    """Return hosts without the variables and answers that nothing can be done with; those are complained about."""
    found = {}
    for host, given in hosts.items():
        variables = {}
        for name, value in (given.get("vars") or {}).items():
            strange = plain_data.unfit(value, f"host {host}: {name}", service_keys.ENDLESS)
            if name in addons.VARIABLES:  # services have words of their own for each place
                strange = strange or plain_data.several_lines(value, f"host {host}: {name}", ("config",))
            messages += strange
            if not strange:
                variables[name] = value
        address = given.get("address") or host
        if not plain_data.is_line(address) or len(address.split()) != 1 or plain_data.unfit(address, ""):
            messages.append(
                f"host {host}: ansible_host is {plain_data.shown(address)}; it must be one address or name."
            )
        elif _WITH_PORT.fullmatch(address):
            name, _colon, port = address.rpartition(":")
            messages.append(
                f"host {host}: ansible_host is {plain_data.shown(address)}, which ssh cannot reach. Write ansible_host: {name} and ansible_port: {port}."
            )
        said = {key: given.get(key) for key in ("measured", "images", "fabric")}
        for key, form in preflight.ANSWERS.items():
            strange = plain_data.unfit(said[key], key) or reader.problems(form, said[key], key)
            if strange:
                messages.append(
                    f"host {host}: what it said of itself cannot be used ({' '.join(printable('; '.join(strange[:3])).split())}). Run again; if it stays, "
                    "something else answers in the place of this collection's modules there."
                )
                said[key] = None
            else:
                said[key] = foreign_text.received(said[key])
        found[host] = {**given, **said, "vars": variables}
    return found


def read_spark(name: str, given: Mapping[str, Any], sources: Sources, messages: list[str]) -> Host:
    """Check the variables of a Spark and merge its services.

    :param name: of the host
    :param given: C({vars, address, measured, images, fabric}), see C(plan.make_plan)
    :param sources: recipes, lock file and what else the plan is made from
    :param messages: takes what is wrong
    :returns: the host, which is only meaningful without messages
    """
    settings, wrong = variables.read(name, given["vars"])
    messages += wrong
    said = given.get("images") or {}
    host = _host(name, given, settings)
    host = replace(host, images=lock_file.by_planned_names(said, sources.lock, host.machine, sources.pin))
    services, wrong = _services(host, sources)
    messages += wrong
    names: set[Any] = {taken for taken, _port in claims(host)}
    settings["addons"], wrong = addons.read(name, given["vars"], sorted(str(each) for each in names))
    messages += wrong
    # What this collection runs beside the engines takes its memory like what somebody else runs there.
    settings["beside"] = [] if wrong else on_demand.with_proxy(addons.sidecars(settings["addons"]), services)
    names |= {each["name"] for each in settings["beside"]}
    messages += on_demand.find_conflicts(f"host {name}", [*services, *on_demand.servers(settings["beside"])])
    messages += _check_sidecars(name, settings["spark_sidecars"], names)
    return replace(host, services=services)


def read_other(name: str, given: Mapping[str, Any], messages: list[str]) -> Host:
    """Check the variables of a host that is no Spark and runs add-on services.

    :param name: of the host
    :param given: C({vars, address})
    :param messages: takes what is wrong
    :returns: the host, which is only meaningful without messages
    """
    settings, wrong = addons.read(name, given["vars"], (), is_spark=False)
    messages += wrong
    return _host(name, given, {"addons": settings})


def _host(name: str, given: Mapping[str, Any], settings: Mapping[str, Any]) -> Host:
    said = given.get("images") or {}
    return Host(
        name=name,
        variables=given["vars"],
        address=str(given.get("address") or ""),
        measured=given.get("measured"),
        said=said,
        images=said,
        fabric=given.get("fabric"),
        settings=settings,
    )


def claims(host: Host) -> list[tuple[Any, Any]]:
    """Return name and port of each service in C(spark_services), of malformed ones, too; None for what is not one."""
    return [recipes.claim(entry) for entry in host.settings["spark_services"]]


def _services(host: Host, sources: Sources) -> tuple[list[PlacedService], list[str]]:
    """Return the services of a host merged with their recipes, and all that is wrong with them."""
    services: list[PlacedService] = []
    messages: list[str] = []
    present = [ref for ref, image in host.images.items() if image.get("present")]
    for index, entry in enumerate(host.settings["spark_services"]):
        where = f"host {host.name}, spark_services[{index}]"
        service, wrong = read_service(entry, where, f"{host.name}/", host, sources, present)
        messages += wrong
        if service and service.nodes > 1:
            page = "docs/pair.md" if service.nodes == 2 else "docs/cluster.md"
            messages.append(
                f"{where}: recipe {service.recipe} needs {service.nodes} Sparks. Put it "
                f"into the services of spark_cluster, on a group of so many hosts; {page} shows how."
            )
        if service and service.hosts:
            messages.append(
                f"{where}: 'hosts' is for services of spark_cluster. Take it out, or move the service there."
            )
        services += [service.placed()] if service else []
    return services, [*messages, *_used_twice(host)]


def _used_twice(host: Host) -> list[str]:
    """Return which names and ports several services of a host have."""
    messages = []
    taken = claims(host)
    for position, what in enumerate(("service name", "port")):
        seen: dict[Any, int] = {}
        for index, claim in enumerate(taken):
            value = claim[position]
            if value in seen:
                messages.append(
                    f"host {host.name}, spark_services[{index}]: {what} {value!r} is used twice on this host, "
                    f"first by spark_services[{seen[value]}] ({taken[seen[value]][0]})."
                )
            elif value is not None:
                seen[value] = index
    return messages


def read_service(
    entry: Any, where: str, key: str, host: Host, sources: Sources, present: Collection[str]
) -> tuple[ServiceSpec | None, list[str]]:
    """Merge a service; what the lock file has of it goes by digest and commit.

    :param entry: as it is written
    :param where: its place, for messages
    :param key: C(host/) or C(cluster/)
    :param host: whose C(spark_defaults) hold, a cluster's head
    :param sources: recipes, lock file and what else the plan is made from
    :param present: images that are there
    :returns: the service, None where something is wrong with it, and all that is
    """
    name = entry.get("name") if isinstance(entry, Mapping) else None
    defaults = host.settings["spark_defaults"]
    choice = lock_file.preferred(sources.applied_lock, f"{key}{name}")
    service, wrong = recipes.resolve_service(entry, where, sources.recipes, defaults, choice or present)
    if choice and service and service.image["ref"] not in choice:
        service, wrong = recipes.resolve_service(entry, where, sources.recipes, defaults, present)
    if service is None:
        return None, wrong
    described = lock_file.describe(service, f"{key}{name}", sources.recipes.get(str(service.recipe)), sources.digest)
    if sources.pin:
        service = lock_file.pin(service, sources.lock, host.machine)
    return replace(service, lock=described), wrong


def _check_sidecars(host: str, sidecars: list[Any], taken: set[Any]) -> list[str]:
    """Return what is wrong with C(spark_sidecars); a name may not be that of a service."""
    problems = validation.Problems(f"host {host}")
    for entry in schema.entries(problems, sidecars, service_keys.SIDECAR, "spark_sidecars"):
        if entry["name"] in taken:
            problems.add(f"the name '{entry['name']}' of spark_sidecars is that of a service of this host.")
    return problems.messages
