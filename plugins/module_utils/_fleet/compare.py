# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares a host with a state document and with its current generation: what M(dgxspark.vllm.compare) answers.

Nothing is changed, except for checksums of weights, which are kept after they were read.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from .._host import deploy
from .._host.deployment import Refused as NotDeployable
from .._host.host_state import HostFile, HostState
from .._runtime.command import Run
from . import compare_contents, document_check, stable_facts
from . import generations as engine
from .generation_host import Host


def compare(
    params: Mapping[str, Any],
    run: Run,
    check: bool,
    warn: Callable[[str], None],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Compare the host that this runs on.

    :param params: of M(dgxspark.vllm.compare)
    :param run: runs a program that only reads; raises NoAnswer on silence
    :param check: whether checksums of weights are not kept either
    :param warn: takes a warning for people
    :param facts: of M(dgxspark.vllm.spark_info), C(spark) and C(images), empty if unknown
    :returns: results of the module, as far as files, units, images and models show them
    :raises ValueError: for a malformed document
    """
    parts = None if params["parts"] is None else frozenset(params["parts"])
    host = Host(params, run, check, warn, parts)
    if params["document"] is None:
        state, differences = host.state, host.differences
    else:
        state = read_document(params["document"], params["contents"])
        state = state if parts is None else state.of_parts(parts)
        differences, _seen = document_check.check(state, host.record, host.look, parts)
    moved = compare_contents.moved_models(host) if concerns(parts, "service", "models") else {}
    keys = key_differences(host, state)
    why = reasons(host, differences, moved, keys, facts)
    return {
        "up_to_date": not why,
        "why": why,
        "unanswered": [text for text in (host.silent, host.systemd_silent) if text],
        "differences": {
            "changed": sorted({*differences.changed, *keys[0]}),
            "missing": sorted({*differences.missing, *keys[1]}),
            "added": added(host) if parts is None else [],
            "attributes": sorted({*differences.attributes, *keys[3]}),
            "removed": sorted(differences.removed),
            "units": {unit: verb for verb, unit in differences.units},
            "moved": moved,
            "models": []
            if params["document"] is not None
            else [compare_contents.model_report(host, model) for model in params["models"]],
        },
        "recorded": recorded(host),
        "units": host.units,
        "launches": {
            name: host.read_json(f"{engine.RECEIPTS}/{name}.json").get("deployed") or {}
            for name in sorted(host.services)
        },
    }


def read_document(document: Mapping[str, Any], contents: Mapping[str, str]) -> HostState:
    """Return the state document that the controller has sent.

    :param document: as plain data
    :param contents: of key files, by path
    :returns: the document, with contents as C(deploy) has them
    :raises ValueError: for a file without content and checksum
    """
    state = HostState.from_dict(document).distinct()
    try:
        deploy.check(state)
    except NotDeployable as refused:
        raise ValueError(str(refused)) from refused
    return replace(state, files=tuple(_with_data(file, contents.get(file.path, file.content)) for file in state.files))


def _with_data(file: HostFile, content: str | None) -> HostFile:
    return file if content is None else replace(file, content=None, data=base64.b64encode(content.encode()).decode())


def added(host: Host) -> list[str]:
    """Return the files among those of the collection that nothing deployed, and that were not there when the host was recorded."""
    current = host.generation()
    return sorted(set(host.added()) - set(current.others if current else ()))


def concerns(parts: Collection[str] | None, *names: str) -> bool:
    """Tell whether a run of some parts is about one of these; None is a run of all."""
    return parts is None or bool(set(names) & set(parts))


def reasons(
    host: Host,
    differences: document_check.Differences,
    moved: Mapping[str, Any],
    keys: tuple[list[str], ...],
    facts: Mapping[str, Any],
) -> list[str]:
    """Return why a run that deploys the document could find something to do, empty when it could not."""
    params, parts, current = host.params, host.parts, host.generation()
    why = [text for text in (host.systemd_silent,) if text] + differences.lines()
    if current is None:
        why.append("nothing was recorded yet")
    else:
        why += generation_reasons(host, current, facts)
    if any(keys):
        why.append("key files are not those of the current generation")
    if params["facts_checksum"] and facts:
        checksum = stable_facts.stable_checksum(facts.get("spark"), facts.get("images"))
        if checksum != params["facts_checksum"]:
            why.append("facts of the host are others than those of the plan")
    why += [f"{entry['repo']}@{entry['revision']} is another commit than at the last proof" for entry in moved.values()]
    why += compare_contents.image_faults(host, params["images"])
    why += compare_contents.network_faults(host, params["network"])
    if params["document"] is not None:
        why += compare_contents.model_faults(host, params["models"])
        why += [text for model in params["bundled"] for text in compare_contents.bundle_faults(host, model)]
    if concerns(parts, "service"):
        why += compare_contents.repaired_models(host)
    return why


def generation_reasons(host: Host, current: engine.Generation, facts: Mapping[str, Any]) -> list[str]:
    """Return why the current generation does not prove the host."""
    why = []
    if not current.proven or host.current.restoring is not None:
        why.append(f"generation {current.number} is not proven")
    spark = facts.get("spark")
    if spark and concerns(host.parts, "prove") and engine.facts_of(spark) != current.facts:
        why.append("kernel, driver or DGX OS are others than at the last proof")
    if host.parts is None and engine.document_identity(host.record.state) != engine.document_identity(current.state):
        why.append(f"more was deployed than generation {current.number}, and is not recorded")
    return why


def key_differences(host: Host, state: HostState) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the key files of a document that have changed since they were recorded, are gone, are new, and have another owner or mode."""
    current = host.generation()
    if current is None:
        return [], [], [], []
    paths = {file.path for file in state.files if file.secret}
    now = {path: entry for path, entry in host.secrets.items() if path in paths}
    then = {path: entry for path, entry in current.secrets.items() if path in paths}
    return engine.secret_changes(now, then)


def recorded(host: Host) -> dict[str, Any] | None:
    """Return the fields of the current generation for reports, None without a generation."""
    current = host.generation()
    if current is None:
        return None
    deployed_parts = host.record.state.parts()
    return {
        **{name: getattr(current, name) for name in ("number", "at", "proven", "wanted", "facts", "units", "images")},
        # Of a part that was removed, the record has a checksum and no rows.
        "checksums": {part: text for part, text in host.record.checksums.items() if part in deployed_parts},
        "from": host.current.came_from,
        "restoring": host.current.restoring,
    }
