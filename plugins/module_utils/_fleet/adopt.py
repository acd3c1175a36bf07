# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Match unmanaged launches with the planned services that can replace them. Pure functions.

A launch is only touched if it serves the model of a planned service or answers on its port.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from .._vllm.launch import SERVICE_KEYS, long_name

Service = Mapping[str, Any]
OPTIONS_OF_KEYS = {*SERVICE_KEYS, "model", "revision", "api-key"}
"""Options that a service has as keys; they are compared as such."""
MOST_TEXT = 80


def _last_name(path: Any) -> str:
    return str(path or "").rstrip("/").rsplit("/", 1)[-1]


def matches(service: Service, launch: Service) -> str:
    """Return the match of an imported launch with a planned service: C(model), C(port), or an empty text.

    The same port is enough: the service cannot listen on it while the launch does.
    """
    model, planned = launch.get("model") or {}, service["model"]
    has_same_repo = planned.get("repo") and str(model.get("repo") or "").lower() == str(planned["repo"]).lower()
    folder = _last_name(planned.get("path"))
    if has_same_repo or (folder and _last_name(model.get("path")) == folder):
        return "model"
    return "port" if launch.get("port") == service["port"] else ""


def differences(service: Service, launch: Service) -> list[str]:
    """Return a line for each difference between a launch and a service, first the differences that clients notice."""
    image, model = launch.get("image"), launch.get("model") or {}
    planned = service["model"]
    values = {
        "port": (launch.get("port"), service["port"]),
        "model": (model.get("repo") or model.get("path"), planned.get("repo") or planned.get("path")),
        "served as": (launch.get("served_model_name"), service["served_model_name"]),
        "image": (image.get("ref") if isinstance(image, Mapping) else image, service["image"]["ref"]),
    }
    before = {long_name(str(key)): value for key, value in (launch.get("args") or {}).items()}
    after = service["args"]
    for key in sorted({*before, *after} - OPTIONS_OF_KEYS):
        if str(before.get(key, "")).lower() != str(after.get(key, "")).lower():
            values[f"--{key}"] = before.get(key), after.get(key)
    return [f"{name}: {_short(old)} -> {_short(new)}" for name, (old, new) in values.items() if old != new]


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 3]}..."


def way_of(service: Service, launch: Service, available_gib: float | None) -> tuple[str, str]:
    """Return how a service replaces a launch, and why: C(beside) starts it first, without downtime; C(instead) stops the launch first."""
    if launch.get("port") == service["port"]:
        return "instead", f"both want port {service['port']}"
    needed_gib = float(service["settings"].get("memory_gib") or 0.0)
    if available_gib is None or available_gib < needed_gib:
        available = "unknown" if available_gib is None else f"{available_gib:.1f} GiB"
        return "instead", f"{needed_gib:.1f} GiB are needed, {available} are available next to it"
    return "beside", f"ports differ and {available_gib:.1f} GiB are available, {needed_gib:.1f} GiB are needed"


def unit_text(argv: Sequence[str]) -> str:
    """Return the launch of a program as a unit for the importer."""
    return f"[Service]\nExecStart={shlex.join(argv).replace('%', '%%')}\n"


def pairs(
    services: Sequence[Service],
    launches: Sequence[Mapping[str, Any]],
    imported: Mapping[str, Service],
    available_gib: float | None,
) -> list[dict[str, Any]]:
    """Assign each launch to the service that can replace it; the same model goes before the same port.

    :param services: of the plan; services of clusters replace no single container
    :param launches: of the section C(adoption) of M(dgxspark.vllm.spark_info)
    """
    paired: dict[str, dict[str, Any]] = {}
    candidates = [service for service in services if not service.get("cluster")]
    for match in ("model", "port"):
        for launch in launches:
            like = imported.get(launch["name"])
            if like is None or launch["name"] in paired:
                continue
            # Of services with the same model, the one with the same port comes first.
            by_port = sorted(candidates, key=lambda service: service["port"] != like.get("port"))
            service = next((service for service in by_port if matches(service, like) == match), None)
            if service is None:
                continue
            candidates = [other for other in candidates if other["name"] != service["name"]]
            way, why = way_of(service, like, available_gib)
            paired[launch["name"]] = {
                "service": service["name"],
                **{key: launch[key] for key in ("name", "container", "unit")},
                "by": match,
                "way": way,
                "why": why,
                "differences": differences(service, like),
                "url": url_of(like),
                "service_like": dict(like),
                "refused": refusal(launch, service),
            }
    return list(paired.values())


def url_of(launch: Service) -> str:
    """Return the address of a launch on its host, empty if unknown."""
    host = str(launch.get("host") or "")
    address = "127.0.0.1" if host in ("", "0.0.0.0", "::", "localhost") else host
    return f"http://{f'[{address}]' if ':' in address else address}:{launch['port']}" if launch.get("port") else ""


def refusal(launch: Mapping[str, Any], service: Service) -> str:
    """Return why a launch is left alone, empty if it may be replaced."""
    if launch.get("alone"):
        return f"{launch['alone']}. Stop it yourself, then run dgxspark.vllm.site."
    if service.get("state") == "stopped":
        why = "the inventory has it stopped"
        if service.get("exclusive"):
            why = f"of its exclusive set {service['exclusive']} another service should run, or {why}"
        return f"{service['name']} would not be started: {why}. Change that first, or swap afterwards."
    if launch["container"] == service["container"]:
        return f"it has the name of the service's container. Rename it: docker rename {launch['container']} {launch['container']}-old"
    if launch.get("unit") == service["unit"]:
        return f"its unit has the name of the service's own, {service['unit']}. Rename one of them."
    if launch.get("removed") and not launch.get("unit"):
        return (
            "it was started with --rm and no unit runs it: once it is stopped it is gone, and could not come back. "
            "Stop it yourself, then run dgxspark.vllm.site."
        )
    return ""


def lines_of(
    paired: Sequence[Mapping[str, Any]],
    launches: Sequence[Mapping[str, Any]],
    stopped: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Return the report for people."""
    paired_names = {pair["name"] for pair in paired}
    lines = []
    for pair in paired:
        owner = f", run by {pair['unit']}" if pair["unit"] and pair["container"] else ""
        match = f"service {pair['service']} can take its place (same {pair['by']})"
        lines.append(f"{pair['name']}{owner}: {match}, {pair['way']} it: {pair['why']}")
        lines += [f"  {line}" for line in pair["differences"]]
        lines += [f"  left alone: {pair['refused']}"] if pair["refused"] else []
    for launch in launches:
        if launch["name"] not in paired_names:
            why = launch.get("unreadable") or "no service of this host has its model or its port"
            lines.append(f"{launch['name']}: left alone: {why}")
    lines = lines or ["no container and no unit runs vLLM here that this collection did not make"]
    for launch in stopped:
        fate = "can come back: -e spark_adopt_undo=true" if launch["there"] else "is not there any more"
        lines.append(f"{launch['name']}: {launch['service'] or 'a service'} has taken its place; it {fate}")
    return lines
