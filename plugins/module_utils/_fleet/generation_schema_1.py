# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read generations of schema 1, which list the files on the disk instead of a state document."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .._host import deployed
from .._host.host_state import Unit
from . import generations

SYSTEM = "/etc/systemd/system"
# A newer helper program in one of these lines restarts no engine.
HELPER_LINES = ("ExecStartPre", "ExecStartPost", "ExecStop", "ExecStopPost", "ExecReload", "ExecCondition")
SECTIONS = ("files", "folders", "units", "images", "models")


def values_of(content: Mapping[str, Any], stored_text: Callable[[str], str]) -> dict[str, Any]:
    """Return the document, units, images, models and keys of a generation.

    Some files of schema 1 hold keys; only the paths of the keys are kept.

    :param content: of the file
    :param stored_text: returns a file of the store by its checksum
    :returns: fields of C(Generation)
    """
    body = {name: content["state"].get(name) or {} for name in SECTIONS}
    secrets, held_secrets = content.get("secrets"), False
    if not isinstance(secrets, dict):
        secrets = {path: {"mark": None} for path in body["files"] if generations.is_secret(path)}
        held_secrets = bool(secrets)
    # Links have no checksum; the collection makes none there.
    body["files"] = {path: file for path, file in body["files"].items() if path not in secrets and file.get("sha256")}
    state = deployed.from_schema_1({"state": body, "secrets": secrets})
    services = generations.service_names(body["files"])
    digests = {path.rpartition("/")[2]: file["sha256"] for path, file in body["files"].items() if f"{SYSTEM}/" in path}
    units = []
    for unit in state.units:
        text = stored_text(digests.get(unit.name, ""))
        restart_on = tuple(sorted(path for path in body["files"] if concerns(unit.name, text, path)))
        units.append(replace(unit, state=_state_of(body["units"][unit.name], unit, services), restart_on=restart_on))
    return {
        "state": replace(state, units=tuple(units)),
        "secrets": secrets,
        "held_secrets": held_secrets,
        **{name: body[name] for name in ("units", "images", "models")},
    }


def _state_of(entry: Mapping[str, Any], unit: Unit, services: set[str]) -> str:
    """Return the desired state of a unit."""
    if entry.get("active") in generations.RUNNING or entry.get("enabled"):
        return "started"
    # A stopped service of an exclusive set must stay stopped: the others need its memory.
    return "stopped" if re.sub(r"^spark-|\.service$", "", unit.name) in services else "triggered"


def concerns(unit: str, text: str, path: str) -> bool:
    """Tell whether a unit has to restart for a changed file: its definition, or an input of its main process."""
    definition = f"{SYSTEM}/{unit}"
    if path == definition or path.startswith(f"{definition}.d/"):
        return True
    service = re.fullmatch(r"spark-(.+)\.service", unit)
    if service:
        name = service[1]
        folders = (f"/etc/dgxspark/secrets/{name}/", f"/etc/dgxspark/files/{name}/")
        if path == f"/etc/dgxspark/env/{name}.env" or path.startswith(folders):
            return True
        # Only a supervisor of a rank reads its settings; helpers of other units read them at each start.
        if path == f"/etc/dgxspark/services/{name}.json":
            return "spark_rank.py" in text
    helpers = (*(f"{key}=" for key in HELPER_LINES), "#")
    lines = [line for line in re.sub(r"\\\n", " ", text).splitlines() if not line.strip().startswith(helpers)]
    inputs = re.findall(r"/(?:etc|usr/local/lib|usr/local/libexec)/dgxspark/[^\s\"',:=]+", "\n".join(lines))
    return any(path == name or path.startswith(name.rstrip("/") + "/") for name in inputs)
