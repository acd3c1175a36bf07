# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hand-made launches and the services that are to take their place: compared, and put in an order. Pure functions.

One is touched only if it serves the model of a planned service or answers on its port.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from .._vllm.launch import SERVICE_KEYS, long_name

OWN_ARGS = {*SERVICE_KEYS, "model", "revision", "api-key"}
"""Options that are keys of a service, so that they are compared as such."""


def matches(service: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Say by what an imported launch is that of a planned service: C(model), C(port), or nothing.

    A port alone is enough for a launch of vLLM: the service cannot have it while the other one does.
    """
    model, wanted = found.get("model") or {}, service["model"]
    same = wanted.get("repo") and str(model.get("repo") or "").lower() == str(wanted["repo"]).lower()
    leaf = str(wanted.get("path") or "").rstrip("/").rsplit("/", 1)[-1]
    if same or (leaf and str(model.get("path") or "").rstrip("/").rsplit("/", 1)[-1] == leaf):
        return "model"
    return "port" if found.get("port") == service["port"] else ""


def differences(service: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Say in which a launch differs from the service that is to take its place: what clients see first."""
    lines = []

    def told(what: str, was: Any, now: Any) -> None:
        if was != now:
            lines.append(f"{what}: {_short(was)} -> {_short(now)}")

    told("port", found.get("port"), service["port"])
    told(
        "model",
        (found.get("model") or {}).get("repo") or (found.get("model") or {}).get("path"),
        service["model"].get("repo") or service["model"].get("path"),
    )
    told("served as", found.get("served_model_name"), service["served_model_name"])
    image = found.get("image")
    told("image", image.get("ref") if isinstance(image, Mapping) else image, service["image"]["ref"])
    before = {long_name(str(key)): value for key, value in (found.get("args") or {}).items()}
    after = service["args"]
    for key in sorted({*before, *after} - OWN_ARGS):
        if str(before.get(key, "")).lower() != str(after.get(key, "")).lower():
            told(f"--{key}", before.get(key), after.get(key))
    return lines


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def way_of(service: Mapping[str, Any], found: Mapping[str, Any], available_gib: float | None) -> tuple[str, str]:
    """Say how a service takes the place of a launch: C(beside) it first, without downtime, or C(instead) of it; and why."""
    if found.get("port") == service["port"]:
        return "instead", f"both want port {service['port']}"
    need = float(service["settings"].get("memory_gib") or 0.0)
    if available_gib is None or available_gib < need:
        have = "unknown" if available_gib is None else f"{available_gib:.1f} GiB"
        return "instead", f"{need:.1f} GiB are needed, {have} are available beside it"
    return "beside", f"ports differ and {available_gib:.1f} GiB are available, {need:.1f} GiB are needed"


def command_of(argv: Sequence[str]) -> str:
    """Write the launch of a container as the line that the importer reads."""
    return shlex.join(argv)


def unit_text(argv: Sequence[str]) -> str:
    """Write the launch of a program as the unit that the importer reads."""
    return f"[Service]\nExecStart={shlex.join(argv).replace('%', '%%')}\n"


def pairs(
    services: Sequence[Mapping[str, Any]],
    launches: Sequence[Mapping[str, Any]],
    read: Mapping[str, Mapping[str, Any]],
    available_gib: float | None,
) -> list[dict[str, Any]]:
    """Put each launch to the service that is to take its place; the same model goes before the same port.

    launches: of the section C(adoption) of M(dgxspark.vllm.spark_info). read: the launches as services, by name. A service of a cluster takes
    no place of a single container.
    """
    found: list[dict[str, Any]] = []
    taken: set[str] = set()
    for wanted in ("model", "port"):
        for launch in launches:
            like = read.get(launch["name"])
            if like is None or any(each["name"] == launch["name"] for each in found):
                continue
            # With the same model twice, the one with the same port.
            fitting = sorted(
                (each for each in services if not each.get("cluster") and each["name"] not in taken),
                key=lambda each: each["port"] != like.get("port"),
            )
            service = next((each for each in fitting if matches(each, like) == wanted), None)
            if service is None:
                continue
            taken.add(service["name"])
            way, why = way_of(service, like, available_gib)
            found.append(
                {
                    "service": service["name"],
                    "name": launch["name"],
                    "container": launch["container"],
                    "unit": launch["unit"],
                    "by": wanted,
                    "way": way,
                    "why": why,
                    "differences": differences(service, like),
                    "url": url_of(like),
                    "service_like": dict(like),
                    "refused": refusal(launch, service),
                }
            )
    return found


def url_of(like: Mapping[str, Any]) -> str:
    """Return where a launch answers on its host, empty where that is not known."""
    host = str(like.get("host") or "")
    address = "127.0.0.1" if host in ("", "0.0.0.0", "::", "localhost") else host
    return f"http://{f'[{address}]' if ':' in address else address}:{like['port']}" if like.get("port") else ""


def refusal(launch: Mapping[str, Any], service: Mapping[str, Any]) -> str:
    """Say why a launch is left alone: it could not be brought back as it was."""
    if launch.get("alone"):
        return f"{launch['alone']}. Stop it yourself, then run dgxspark.vllm.site."
    if service.get("state") == "stopped":
        why = "the inventory has it stopped"
        if service.get("exclusive"):
            why = f"of its exclusive set {service['exclusive']} another one is to run, or {why}"
        return f"{service['name']} would not be started: {why}. Change that first, or swap afterwards."
    if launch["container"] == service["container"]:
        return f"its name is that of the service's own container. Give it another one: docker rename {launch['container']} {launch['container']}-old"
    if launch.get("unit") == service["unit"]:
        return f"its unit has the name of the service's own, {service['unit']}. Rename one of them."
    if launch.get("removed") and not launch.get("unit"):
        return (
            "it was started with --rm and no unit runs it: once it is stopped it is gone, and could not come back. "
            "Stop it yourself, then run dgxspark.vllm.site."
        )
    return ""


def lines_of(
    adopted: Sequence[Mapping[str, Any]],
    launches: Sequence[Mapping[str, Any]],
    taken: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Write for people what was found, and what was taken over before."""
    lines = []
    for each in adopted:
        by = f", run by {each['unit']}" if each["unit"] and each["container"] else ""
        lines.append(
            f"{each['name']}{by}: service {each['service']} can take its place (same {each['by']}), {each['way']} it: {each['why']}"
        )
        lines += [f"  {line}" for line in each["differences"]]
        if each["refused"]:
            lines.append(f"  left alone: {each['refused']}")
    matched = {each["name"] for each in adopted}
    for launch in launches:
        if launch["name"] not in matched:
            why = launch.get("unreadable") or "no service of this host has its model or its port"
            lines.append(f"{launch['name']}: left alone: {why}")
    lines = lines or ["no container and no unit runs vLLM here that this collection did not make"]
    for each in taken:
        fate = "can come back: -e spark_adopt_undo=true" if each["there"] else "is not there any more"
        lines.append(f"{each['name']}: {each['service'] or 'a service'} has taken its place; it {fate}")
    return lines
