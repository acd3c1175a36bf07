# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Identify launches, and plan services with the measured starts of the same launch, on their host or another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._content import plan_probe
from . import lock as lock_file
from .service import Host, JudgedLaunch, ServiceSpec, Sources

SIZES = ("max-model-len", "max-num-seqs", "max-num-batched-tokens")
"""Options that may differ between near launches: their effect is calculated."""


def options_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a launch that may change its memory, without its sizes.

    Options of the front end, of logs and of names are left out, as for questions to an image.
    """
    return {
        key: value
        for key, value in args.items()
        if key not in SIZES and value is not None and not plan_probe.BESIDE.match(key.removeprefix("no-"))
    }


def launch_of(service: ServiceSpec, judged: JudgedLaunch, host: Host, sources: Sources) -> dict[str, Any]:
    """Return what tells a launch from others: image, model, and what else changes the memory that it takes.

    :returns: C(image_id) (empty if unknown), C(image_ref), and sums, C(model) and C(options)
    """
    ref = service.image["ref"]
    image = host.images.get(ref) or {}
    id_on_host = str(image.get("id") or "") if image.get("present") else ""
    locked = lock_file.ids_of(sources.applied_lock, ref, host.machine)
    about = [options_of(judged.args), service.env, list(service.pip), service.nodes]
    return {
        "image_id": id_on_host or (locked[0] if len(locked) == 1 else ""),
        "image_ref": ref,
        "model": _sum([service.config, service.quant_config, service.draft_config]),
        "options": _sum(about),
    }


def _sum(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def described(
    services: Iterable[ServiceSpec], launches: Mapping[str, JudgedLaunch], host: Host, sources: Sources
) -> list[dict[str, Any]]:
    """Return the measured starts of the services of a host, with configurations and arguments, for C(measurement_rows.export)."""
    launches_with_starts = []
    for service in services:
        launch = launch_of(service, launches[service.name], host, sources)
        starts = sources.starts.measured(host.name, launch) if sources.starts else ()
        if starts:
            configs = {key: getattr(service, key) for key in ("config", "quant_config", "draft_config")}
            args = options_of(launches[service.name].args)
            launches_with_starts.append({"repo": service.model.get("repo"), **configs, "args": args, "starts": starts})
    return launches_with_starts


def add(
    request: dict[str, Any],
    services: Sequence[ServiceSpec],
    launches: Mapping[str, JudgedLaunch],
    host: Host,
    sources: Sources,
) -> None:
    """Put the measured starts of launches into the request of a memory budget."""
    if sources.starts is None or not host.settings["spark_learn"]:
        return
    gpu = (host.measured or {}).get("gpu") or {}
    entries = {entry["name"]: entry for entry in request["services"]}
    for service in services:
        launch = launch_of(service, launches[service.name], host, sources)
        entries[service.name]["starts"] = sources.starts.matching(host.name, launch, gpu.get("driver_version"))
