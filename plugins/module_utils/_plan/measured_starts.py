# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tells a launch from others, and which measured starts a service is planned with: those of its launch, on its host or another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._content import plan_probe
from . import lock as lock_file
from .service import Host, JudgedLaunch, PlacedService, Sources

SIZES = ("max-model-len", "max-num-seqs", "max-num-batched-tokens")
"""Options by which near launches may differ: what they change is worked out."""
_KEYS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
_SPANS = ("inside_gib", "outside_gib")


def options_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a launch that may change what it takes, without its sizes.

    Options of the front end, of logs and of names are left out, as for questions to an image.
    """
    return {
        key: value
        for key, value in args.items()
        if key not in SIZES and value is not None and not plan_probe.BESIDE.match(key.removeprefix("no-"))
    }


def launch_of(service: PlacedService, judged: JudgedLaunch, host: Host, sources: Sources) -> dict[str, Any]:
    """Return what tells a launch from others: image, model, and what else changes the memory that it takes.

    :param service: of the host
    :param judged: its launch, as C(judging.check_launch) returns it
    :param host: with what it said of its images
    :param sources: with the lock file
    :returns: C(image_id) (empty where it is not known), C(image_ref), and sums, C(model) and C(options)
    """
    ref = service.image["ref"]
    image = host.images.get(ref) or {}
    there = str(image.get("id") or "") if image.get("present") else ""
    locked = lock_file.ids_of(sources.applied_lock, ref, host.machine)
    about = [options_of(judged.args), service.env, list(service.pip), service.nodes]
    return {
        "image_id": there or (locked[0] if len(locked) == 1 else ""),
        "image_ref": ref,
        "model": _sum([service.config, service.quant_config, service.draft_config]),
        "options": _sum(about),
    }


def _sum(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class KnownStarts:
    """The measured starts of all hosts, found by their launch."""

    def __init__(self, kept: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Sort what was kept. kept: starts by host, as C(residency.start) makes them, terms as the least and the most."""
        self._here: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
        self._all: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        self._joined: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
        for host, starts in kept.items():
            for start in starts:
                self._here.setdefault((host, start["model"], start["options"]), []).append(start)
                self._all.setdefault((start["model"], start["options"]), []).append(start)

    def of(self, host: str, launch: Mapping[str, Any], driver: str | None) -> list[dict[str, Any]]:
        """Return the starts of a launch, for C(memory_budget).

        :param host: name of the host that it is planned for
        :param launch: of C(launch_of)
        :param driver: version of the host's driver now, None where it is not known
        :returns: starts; C(exact) are those of this host, image and driver
        """
        own = self._here.get((host, launch["model"], launch["options"]), ())
        found = []
        for start in own:
            same = bool(launch["image_id"]) and start["image_id"] == launch["image_id"]
            if same or _same_name(start, launch):
                found.append(_for_budget(start, same and driver in (None, start["driver"])))
        return found + self._elsewhere(launch)

    def measured(self, host: str, launch: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return all that was kept of a launch on a host, of any image, driver and size; launch: of C(launch_of)."""
        return self._here.get((host, launch["model"], launch["options"]), ())

    def _elsewhere(self, launch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what the fleet knows of a launch, joined by its sizes: one Spark is like another, not the same."""
        key = (launch["model"], launch["options"], launch["image_id"], launch["image_ref"])
        if key not in self._joined:
            joined: dict[tuple[Any, ...], dict[str, Any]] = {}
            for start in self._all.get(key[:2], ()):
                if start["image_id"] == launch["image_id"] or _same_name(start, launch):
                    sizes = tuple(start[name] for name in _KEYS)
                    entry = _for_budget(start, False)
                    joined[sizes] = merged(joined[sizes], entry) if sizes in joined else entry
            self._joined[key] = list(joined.values())
        return self._joined[key]


def _same_name(start: Mapping[str, Any], launch: Mapping[str, Any]) -> bool:
    """Tell whether an image that is not known by its id has the name of the one that was started."""
    return not launch["image_id"] and start["image_ref"] == launch["image_ref"]


def _for_budget(start: Mapping[str, Any], exact: bool) -> dict[str, Any]:
    return {"exact": exact, **{name: start[name] for name in (*_KEYS, "weights_gib", *_SPANS)}}


def merged(before: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
    """Return a start with the terms of an earlier one: the newest figures, and the least and the most of both where they scatter."""
    found = dict(start)
    for name in _SPANS:
        spans = [each[name] for each in (before, start) if each.get(name) is not None]
        found[name] = [min(span[0] for span in spans), max(span[1] for span in spans)] if spans else None
    return found


def described(
    services: Iterable[PlacedService], launches: Mapping[str, JudgedLaunch], host: Host, sources: Sources
) -> list[dict[str, Any]]:
    """Return what was measured of the services of a host, with what it is of, for C(measurement_rows.export).

    :param services: of the host
    :param launches: of each service, as C(judging.check_launch) returns it
    :param host: that they are on
    :param sources: with the starts
    :returns: launches
    """
    found = []
    for service in services:
        launch = launch_of(service, launches[service.name], host, sources)
        starts = sources.starts.measured(host.name, launch) if sources.starts else ()
        if starts:
            configs = {key: getattr(service, key) for key in ("config", "quant_config", "draft_config")}
            args = options_of(launches[service.name].args)
            found.append({"repo": service.model.get("repo"), **configs, "args": args, "starts": starts})
    return found


MOST_STARTS = 64
"""Launches that are kept of a host; the oldest go."""


def kept(before: Sequence[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the starts to keep of a host.

    :param before: those that were kept, the oldest first
    :param new: of a proof, each as C(residency.start) makes it; one of an image without an id is not kept: its name may stand for
        another image tomorrow
    :returns: starts; the same proof twice changes nothing
    """
    known = {_identity(start): dict(start) for start in before}
    for start in new:
        if not start["image_id"]:
            continue
        spans = {name: None if start[name] is None else [start[name], start[name]] for name in _SPANS}
        entry, key = {**start, **spans}, _identity(start)
        known[key] = merged(known[key], entry) if key in known else entry
    return list(known.values())[-MOST_STARTS:]


def _identity(start: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(start[name] for name in ("image_id", "model", "options", "driver", *_KEYS))


def add(
    request: dict[str, Any],
    services: Sequence[PlacedService],
    launches: Mapping[str, JudgedLaunch],
    host: Host,
    sources: Sources,
) -> None:
    """Put what was measured of launches into the request of a memory budget.

    :param request: of C(memory_budget)
    :param services: of the host
    :param launches: of each service, as C(judging.check_launch) returns it
    :param host: whose variables may switch it off, with what it said of its driver
    :param sources: with the starts
    """
    if sources.starts is None or not host.settings["spark_learn"]:
        return
    gpu = (host.measured or {}).get("gpu") or {}
    entries = {entry["name"]: entry for entry in request["services"]}
    for service in services:
        launch = launch_of(service, launches[service.name], host, sources)
        entries[service.name]["starts"] = sources.starts.of(host.name, launch, gpu.get("driver_version"))
