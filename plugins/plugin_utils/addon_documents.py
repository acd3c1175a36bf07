# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents of add-on services, each described by the template C(state.yml.j2) of its role."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import client_keys
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState, merge
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import host_programs, unit_files
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import load_yaml
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.render import render_template
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import defaults

ROLES = ("gateway", "clients", "exporters", "monitoring", "fleet_monitor")
"""Roles with such a description, in the order of their start; also their keys in the plan of add-on services."""

FILES = Path(__file__).resolve().parents[2] / "roles" / "clients" / "files"


def read_file(path: str) -> str:
    """Return the text of a file of the controller."""
    return Path(path).expanduser().read_text(encoding="utf-8")


def variables_of(role: str, planned: Mapping[str, Any], role_variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a role: the plan's keys with the role's name in front win over variables of the host, these over defaults.

    planned: the role's part of the plan of add-on services; empty without a plan.
    """
    host_values = {name: value for name, value in role_variables.items() if name.startswith(f"{role}_")}
    return {**defaults(role), **host_values, **{f"{role}_{key}": value for key, value in planned.items()}}


def _client_keys(variables: Mapping[str, Any], read: Callable[[str], str]) -> list[dict[str, Any]]:
    """Return the files with the keys of the clients. variables: of the role C(clients)."""
    clients = [client for client in (variables["clients_hermes"], variables["clients_open_webui"]) if client]
    return client_keys.client_keys([secret for client in clients for secret in client["secrets"]], _lenient(read))


def addon_document(
    role: str,
    planned: Mapping[str, Any],
    role_variables: Mapping[str, Any],
    read: Callable[[str], str] = read_file,
) -> HostState:
    """Return the document of an add-on service; the same input gives the same document.

    Returns no rows if the variables plan nothing. Raises ValueError for an undefined variable, and for a value that its file cannot hold. read:
    returns the text of a file of the controller, for keys that are joined from several files.
    """
    variables = variables_of(role, planned, role_variables)
    library = unit_files.library(role) if role in host_programs.PROGRAMS else {"folders": [], "files": []}
    library = unit_files.unit_helper() if role == "clients" else library
    values = {**variables, "library": [file["path"] for file in library["files"]]}
    more = _client_keys(variables, read) if role == "clients" else []
    if role == "clients" and variables["clients_hermes"]:
        packages = hermes_packages(variables["clients_hermes"], read)
        values["clients_hermes_environment"] = str(Path(packages["path"]).parent)
    described = load_yaml(render_template(f"{role}/state.yml.j2", values))
    if not described:
        return HostState()
    files = [*(_with_content(file, values) for file in described.get("files") or []), *more]
    rows = [library, {**described, "files": files}]
    if agent := described.get("agent"):
        loop = unit_files.agent(role, agent["settings"], agent["writes"])
        rows.append({**loop, "files": [_with_content(file, file.get("values") or {}) for file in loop["files"]]})
    return merge(HostState.from_dict(row, role) for row in rows)


def _with_content(file: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file with the text of its template."""
    row = {key: value for key, value in file.items() if key not in ("template", "values")}
    return {**row, "content": render_template(file["template"], variables)} if "template" in file else row


def hermes_packages(planned: Mapping[str, Any], read: Callable[[str], str]) -> dict[str, str]:
    """Return the file with the packages of the Hermes agent; its folder is the agent's environment.

    The folder has a checksum of the list in its name: another list makes another environment, and the running one stays until then.
    """
    source = planned["requirements_file"] or str(FILES / f"hermes-{planned['version']}.txt")
    text = (_lenient(read)(source) or "").rstrip() + planned["python"]
    checksum = hashlib.sha256(text.encode()).hexdigest()[:8]
    return {"path": f"{planned['install_dir']}/{planned['version']}-{checksum}/requirements.txt", "source": source}


def _lenient(read: Callable[[str], str]) -> Callable[[str], str | None]:
    """Return a function that returns the text of a readable file, and None for others."""

    def attempt(path: str) -> str | None:
        try:
            return read(path)
        except (OSError, UnicodeError, AnsibleError):
            return None

    return attempt
