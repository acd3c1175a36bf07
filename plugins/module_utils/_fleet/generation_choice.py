# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the generation of a rollback and the generations to keep, and summarise them for people. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .generations import Current, Generation, service_names

SUMMARY_FIELDS = ("number", "parent", "at", "proven", "reason", "wanted", "checksums")


def ancestors(generations: Mapping[int, Generation], number: int | None) -> list[int]:
    """Return a generation and its kept ancestors, nearest first."""
    numbers: list[int] = []
    while number is not None and number in generations and number not in numbers:
        numbers.append(number)
        number = generations[number].parent
    if number is not None and number not in generations:
        # Its parent was removed; older numbers are the best guess.
        numbers += sorted((older for older in generations if older < number and older not in numbers), reverse=True)
    return numbers


def restorable(generations: Mapping[int, Generation], number: int | None) -> int | None:
    """Return the nearest proven generation, beginning with the given one."""
    return next((ancestor for ancestor in ancestors(generations, number) if generations[ancestor].proven), None)


def target(
    generations: Mapping[int, Generation], current: Current, is_unchanged: bool, requested: int = 0
) -> tuple[int | None, str]:
    """Return the generation to go back to, or the reason without one.

    A changed host goes back to its current generation if that is proven. A host that was rolled back stays there: the same
    command twice goes back once.

    :param requested: number of a generation, 0 for the last proven one
    """
    kept_numbers = _numbers_text(generations)
    if requested:
        if requested in generations:
            return requested, ""
        return None, f"generation {requested} is not kept on this host (kept: {kept_numbers}); name one of these"
    if not generations:
        return None, "this host has no generation yet; site.yml or rollout.yml records the first one"
    if current.restoring in generations:
        return current.restoring, ""
    if is_unchanged and current.came_from is not None:
        return current.number, ""
    start = current.number
    if is_unchanged:
        start = generations[start].parent if start is not None and start in generations else None
    number = restorable(generations, start)
    if number is not None:
        return number, ""
    proven = _numbers_text(number for number in generations if generations[number].proven)
    return None, (
        f"no proven generation before the present one is kept (kept: {kept_numbers}; proven: {proven}); "
        "name one by -e generation=N, or deploy with site.yml"
    )


def _numbers_text(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers)) or "none"


def kept(generations: Mapping[int, Generation], current: int | None, keep: int) -> set[int]:
    """Return the generations to keep: the newest, the current one, and the target of a rollback from there."""
    numbers = set(sorted(generations, reverse=True)[: max(keep, 1)])
    if current is not None and current in generations:
        before = restorable(generations, generations[current].parent)
        numbers |= {current} if before is None else {current, before}
    return numbers


def _planned_services(generations: Iterable[Generation | None]) -> Iterator[Mapping[str, Any]]:
    for generation in generations:
        yield from (generation.plan.get("services") or []) if generation else []


def gateways(generations: Iterable[Generation | None]) -> list[dict[str, str]]:
    """Return the backends of gateways for the services of generations: C([{name, unit, host, backend}])."""
    backends: dict[tuple[str, str], dict[str, str]] = {}
    for service in _planned_services(generations):
        gateway = service.get("gateway")
        if gateway:
            place = {key: gateway[key] for key in ("host", "backend")}
            backends[place["host"], place["backend"]] = {"name": service["name"], "unit": service["unit"], **place}
    return [backends[key] for key in sorted(backends)]


def clusters(generations: Iterable[Generation | None]) -> dict[str, list[str]]:
    """Return the hosts of each cluster that generations have a rank of."""
    spans = [service["cluster"] for service in _planned_services(generations) if service.get("cluster")]
    return united((span["name"], span["hosts"]) for span in spans)


def united(clusters_hosts: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
    """Return all hosts of each cluster, in their order."""
    hosts: dict[str, dict[str, None]] = {}
    for name, members in clusters_hosts:
        hosts.setdefault(name, {}).update(dict.fromkeys(members))
    return {name: list(members) for name, members in hosts.items()}


def summary(generation: Generation) -> dict[str, Any]:
    """Return a generation for reports: image and model of each service."""
    planned = {service.get("name"): service for service in generation.plan.get("services") or []}
    services = {}
    for name in sorted(service_names(file.path for file in generation.state.files)):
        model = generation.models.get(name) or {}
        image = generation.images.get(f"spark-{name}.service") or {}
        services[name] = {
            # The plan has the readable name; the unit may have only a digest.
            "image": ((planned.get(name) or {}).get("image") or {}).get("ref") or image.get("ref"),
            "image_id": image.get("id"),
            "model": model.get("repo") or model.get("path"),
            "commit": model.get("commit"),
        }
    return {**{name: getattr(generation, name) for name in SUMMARY_FIELDS}, "services": services}
