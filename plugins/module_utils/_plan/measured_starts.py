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

_KEYS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
_SPANS = ("inside_gib", "outside_gib")


class KnownStarts:
    """The measured starts of all hosts, found by their launch."""

    def __init__(self, starts_by_host: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Sort recorded starts. starts_by_host: starts by host, as C(residency.start) makes them, terms as the least and the most."""
        self._starts: dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]] = {}
        self._joined: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
        for host, starts in starts_by_host.items():
            for start in starts:
                self._starts.setdefault((start["model"], start["options"]), []).append((host, start))

    def matching(self, host: str, launch: Mapping[str, Any], driver: str | None) -> list[dict[str, Any]]:
        """Return the starts of a launch, for C(memory_budget); C(exact) are those of this host, image and driver (None if unknown)."""
        image = "image_id" if launch["image_id"] else "image_ref"  # the name, if the id is not known
        key = (launch["model"], launch["options"], image, launch[image])
        starts = [row for row in self._starts.get(key[:2], ()) if row[1][image] == launch[image]]
        if key not in self._joined:
            # What the fleet knows of a launch is joined by its sizes: one Spark is like another, not the same.
            joined: dict[tuple[Any, ...], dict[str, Any]] = {}
            for _host, start in starts:
                sizes, entry = tuple(start[name] for name in _KEYS), _for_budget(start, False)
                joined[sizes] = merged(joined[sizes], entry) if sizes in joined else entry
            self._joined[key] = list(joined.values())
        here = [start for name, start in starts if name == host]
        known = bool(launch["image_id"])
        return [
            *(_for_budget(start, known and driver in (None, start["driver"])) for start in here),
            *self._joined[key],
        ]

    def measured(self, host: str, launch: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return all that was kept of a launch on a host, of any image, driver and size; launch: of C(launch_of)."""
        return [start for name, start in self._starts.get((launch["model"], launch["options"]), ()) if name == host]


def _for_budget(start: Mapping[str, Any], exact: bool) -> dict[str, Any]:
    return {"exact": exact, **{name: start[name] for name in (*_KEYS, "weights_gib", *_SPANS)}}


def merged(before: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
    """Return a start with the terms of an earlier one: the newest figures, and least and most of scattered ones."""
    joined = dict(start)
    for name in _SPANS:
        spans = [entry[name] for entry in (before, start) if entry.get(name) is not None]
        joined[name] = [min(span[0] for span in spans), max(span[1] for span in spans)] if spans else None
    return joined


MOST_STARTS = 64
"""Launches that are kept of a host; the oldest go."""


def merge_starts(before: Sequence[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the starts to keep of a host.

    :param before: those that were kept, the oldest first
    :param new: of a proof, each as C(residency.start) makes it; one of an image without an id is not kept: its name may stand for
        another image tomorrow
    :returns: starts; the same proof twice changes nothing
    """
    by_identity = {_identity(start): dict(start) for start in before}
    for start in new:
        if not start["image_id"]:
            continue
        spans = {name: None if start[name] is None else [start[name], start[name]] for name in _SPANS}
        entry, key = {**start, **spans}, _identity(start)
        by_identity[key] = merged(by_identity[key], entry) if key in by_identity else entry
    return list(by_identity.values())[-MOST_STARTS:]


def _identity(start: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(start[name] for name in ("image_id", "model", "options", "driver", *_KEYS))


SIZES = ("max-model-len", "max-num-seqs", "max-num-batched-tokens")
"""Options that may differ between near launches: their effect is calculated."""


def options_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a launch that may change its memory, without its sizes, and without those that C(plan_probe) leaves out."""
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
