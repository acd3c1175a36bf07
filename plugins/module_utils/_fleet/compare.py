# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a host with a state document and with its current generation, for M(dgxspark.vllm.compare).

Nothing is changed, except that checksums of read weights are kept.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from .._host import deploy
from .._host.deployment import Refused as NotDeployable
from .._host.host_state import HostState
from .._runtime.command import Run
from . import compare_contents, document_check, generations, stable_facts
from .document_check import Differences
from .generation_host import Host
from .generations import Generation

_KEY_KINDS = ("changed", "missing", "attributes")
"""Kinds of differences that key files may have too."""
RECORDED_FIELDS = ("number", "at", "proven", "wanted", "facts", "units", "images")


def compare(
    params: Mapping[str, Any], run: Run, check: bool, warn: Callable[[str], None], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Compare the host that this runs on.

    :param check: check mode; checksums of weights are not kept
    :param facts: of M(dgxspark.vllm.spark_info), C(spark) and C(images), empty if unknown
    :raises ValueError: for a malformed document
    """
    parts = None if params["parts"] is None else frozenset(params["parts"])
    host = Host(params, run, check, warn, parts)
    if params["document"] is None:
        state, differences = host.state, host.differences
        models = [compare_contents.model_report(host, model) for model in params["models"]]
    else:
        state, models = read_document(params["document"], params["contents"]), []
        state = state if parts is None else state.of_parts(parts)
        differences, _units = document_check.check(state, host.record, host.look, parts)
    moved = compare_contents.moved_models(host) if is_about(parts, "service", "models") else {}
    keys, current = _key_changes(host, state), host.generation()
    why = _reasons(host, differences, moved, keys, facts)
    return {
        "up_to_date": not why,
        "why": why,
        "unanswered": [text for text in (host.silent, host.systemd_silent) if text],
        "differences": {
            **{kind: sorted({*getattr(differences, kind), *keys.get(kind, ())}) for kind in _KEY_KINDS},
            # Without a deployment after the current generation.
            "added": sorted(set(host.added()) - set(current.others if current else ())) if parts is None else [],
            "removed": sorted(differences.removed),
            "units": {unit: verb for verb, unit in differences.units},
            "moved": moved,
            "models": models,
        },
        "recorded": _recorded(host),
        "units": host.units,
        "launches": {
            name: host.read_json(f"{generations.RECEIPTS}/{name}.json").get("deployed") or {}
            for name in sorted(host.services)
        },
    }


def read_document(document: Mapping[str, Any], contents: Mapping[str, str]) -> HostState:
    """Return the state document from the controller.

    :param contents: of key files, by path
    :raises ValueError: for a file without content and checksum
    """
    state = HostState.from_dict(document).distinct()
    try:
        deploy.check(state)
    except NotDeployable as refused:
        raise ValueError(str(refused)) from refused
    files = []
    for file in state.files:
        content = contents.get(file.path, file.content)
        if content is not None:
            file = replace(file, content=None, data=base64.b64encode(content.encode()).decode())
        files.append(file)
    return replace(state, files=tuple(files))


def is_about(parts: Collection[str] | None, *names: str) -> bool:
    """Tell whether a run deploys one of the named parts; None is a run of all parts."""
    return parts is None or not set(names).isdisjoint(parts)


def _reasons(
    host: Host,
    differences: Differences,
    moved: Mapping[str, Mapping[str, Any]],
    keys: Mapping[str, list[str]],
    facts: Mapping[str, Any],
) -> list[str]:
    """Return why deploying the document could change something; empty if it could not."""
    params, current = host.params, host.generation()
    why = [host.systemd_silent] if host.systemd_silent else []
    why += differences.lines()
    why += _generation_reasons(host, current, facts) if current else ["nothing was recorded yet"]
    if any(keys.values()):
        why.append("key files differ from the current generation")
    if params["facts_checksum"] and facts:
        checksum = stable_facts.stable_checksum(facts.get("spark"), facts.get("images"))
        if checksum != params["facts_checksum"]:
            why.append("facts of the host differ from the plan")
    why += [f"{model['repo']}@{model['revision']} is another commit than at the last proof" for model in moved.values()]
    why += compare_contents.image_faults(host, params["images"])
    why += compare_contents.network_faults(host, params["network"])
    if params["document"] is not None:
        why += compare_contents.model_faults(host, params["models"])
        why += [text for model in params["bundled"] for text in compare_contents.bundle_faults(host, model)]
    if is_about(host.parts, "service"):
        why += compare_contents.repaired_models(host)
    return why


def _generation_reasons(host: Host, current: Generation, facts: Mapping[str, Any]) -> list[str]:
    """Return why the current generation does not prove the host."""
    why = []
    if not current.proven or host.current.restoring is not None:
        why.append(f"generation {current.number} is not proven")
    spark = facts.get("spark")
    if spark and is_about(host.parts, "prove") and generations.facts_of(spark) != current.facts:
        why.append("kernel, driver or DGX OS are others than at the last proof")
    if host.parts is None:
        identities = [generations.document_identity(state) for state in (host.record.state, current.state)]
        if identities[0] != identities[1]:
            why.append(f"more was deployed than generation {current.number}, and is not recorded")
    return why


def _key_changes(host: Host, state: HostState) -> dict[str, list[str]]:
    """Return the changes of a document's key files since the current generation."""
    current = host.generation()
    if current is None:
        return {}
    paths = {file.path for file in state.files if file.secret}
    both = ({path: key for path, key in keys.items() if path in paths} for keys in (host.secrets, current.secrets))
    return generations.secret_changes(*both)


def _recorded(host: Host) -> dict[str, Any] | None:
    """Return the current generation for reports, None without one."""
    current = host.generation()
    if current is None:
        return None
    deployed_parts = host.record.state.parts()
    return {
        **{name: getattr(current, name) for name in RECORDED_FIELDS},
        # The record keeps the checksum of a removed part, but no rows of it.
        "checksums": {part: checksum for part, checksum in host.record.checksums.items() if part in deployed_parts},
        "from": host.current.came_from,
        "restoring": host.current.restoring,
    }
