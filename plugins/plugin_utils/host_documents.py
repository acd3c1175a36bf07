# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state document of a host as this run deploys it: its plan, the add-on services and the role variables that are set for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.lookup.unit_files import located
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generations
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deployed
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostFile, HostState, merge
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import unit_files
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import role_documents
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.addon_documents import ROLES, addon_document, read_file
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import defaults

COLLECTION = Path(__file__).resolve().parents[2]
ELSEWHERE = {"settings": {"hf_home": "", "cache_dir": ""}}
"""The plan of a host that is no Spark: it has add-on services alone."""
SPARK_PARTS = {"host", "service"}
"""Parts that each Spark has, and no other host."""
RENDERED = ("host", "service", "speech", "ollama")
"""Roles with variables that the engine renders files by, beside the plan."""
SSH_PORT = 22


def host_document(
    plan: Mapping[str, Any],
    addons: Mapping[str, Any] | None,
    role_variables: Mapping[str, Any],
    read: Callable[[str], str] = read_file,
) -> HostState:
    """Return the state document of a host.

    plan: empty for a host that is no Spark. role_variables: of C(role_variables.own_variables). read: see C(addon_document). Raises ValueError
    for a value that no file can hold.
    """
    variables = {name: role_variables.get(name, value) for role in RENDERED for name, value in defaults(role).items()}
    variables = {name: value for name, value in variables.items() if name in unit_files.DEFAULTS}
    document = unit_files.planned_state({**ELSEWHERE, **plan}, addons, variables, located)
    if not plan:
        document = document.of_parts({row.part for rows in vars(document).values() for row in rows} - SPARK_PARTS)
    described = [
        addon_document(role, addons[role], role_variables, read) for role in ROLES if addons and addons.get(role)
    ]
    document = merge([document, *described])
    firewall = plan.get("firewall") or {}
    if firewall.get("state") != "present":
        return document
    # The port that Ansible comes in by may lie in one of the closed ranges.
    ports = sorted({*firewall["allowed"], int(role_variables.get("ansible_port") or SSH_PORT)})
    table = role_documents.firewall({**firewall, "allowed": ports})
    return merge([document, HostState.from_dict(table, "firewall")])


def with_digests(document: HostState) -> HostState:
    """Return the document with checksums in place of contents, and of the names of files on the controller.

    Contents that the host fills in stay: it compares the file with the text of its values. Contents of keys are left out (C(secret_contents)).
    """
    return replace(document, files=tuple(map(_with_digest, document.files)))


def secret_contents(document: HostState) -> dict[str, str]:
    """Return the contents of key files that the host fills in, by path."""
    return {
        file.path: str(file.content)
        for file in document.files
        if file.secret and file.fill and file.content is not None
    }


def desired_checksum(
    plan: Mapping[str, Any], addons: Mapping[str, Any] | None, role_variables: Mapping[str, Any]
) -> str:
    """Return the checksum of the desired state of a host: its document, and the models and images that it needs.

    plan, addons, role_variables: as C(host_document) takes them. Raises AnsibleActionFail for a value that no file can hold.
    """
    try:
        document = with_digests(host_document(plan, addons, role_variables))
    except ValueError as error:
        raise AnsibleActionFail(f"the plan cannot be written to a host: {error}") from error
    models = [
        [model.get("repo"), model.get("locked") or model.get("revision"), model.get("path")]
        for model in plan.get("models") or []
    ]
    return generations.checksum([deployed.checksum(document), models, plan.get("images") or []])


def _with_digest(file: HostFile) -> HostFile:
    content = file.content if file.fill and not file.secret else None
    checksum = None
    if not file.generate:  # the host alone knows a generated one
        path = COLLECTION / file.bundled if file.bundled else Path(str(file.source))
        checksum = digest(path) if file.content is None else hashlib.sha256(str(file.content).encode()).hexdigest()
    return replace(file, content=content, source=None, bundled=None, digest=checksum)


def digest(path: Path) -> str:
    """Return the checksum of a file of the controller; empty for a folder or an unreadable file."""
    try:
        return hashlib.sha256(path.expanduser().read_bytes()).hexdigest()
    except OSError:
        return ""
