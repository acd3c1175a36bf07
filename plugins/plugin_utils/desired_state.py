# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checksum of the desired state of a host: its state document, and what roles with templates of their own would put there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import rollout
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import unit_files
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import host_documents
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_documents import COLLECTION, ROLES, defaults, digest
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

# Roles whose files are not rows of the document but templates of their own: by what a plan has when one of them is run.
BY_TEMPLATES = ("gateway", "clients", "exporters", "monitoring", "fleet_monitor")
TEMPLATE_CODE = ("plugins/filter/*.py", "plugins/lookup/*.py", "plugins/module_utils/_plan/unit_files.py")
# Roles that site.yml leaves out on a host that is up to date, and the variables that it gives them from the plan.
SKIPPED = ("fabric", "firewall", "guard", "host", "images", "models", "ollama", "ray", "service", "speech", "watchdog")
DOCUMENTED = ("firewall", "guard", "host", "ollama", "service", "speech", "watchdog")
"""Parts of the document, which are tags of site.yml."""
FROM_PLAN = frozenset(
    [
        "fabric_hosts",
        "fabric_name",
        "fabric_plan_file",
        "fabric_addresses",
        "fabric_network",
        "fabric_subnets",
        "fabric_first_host",
        "fabric_mtu",
        "fabric_topology",
        "fabric_migrate",
        "fabric_relay",
        "fabric_probe_seconds",
        "fabric_revert_seconds",
        "fabric_firewall",
        "fabric_bandwidth",
        "fabric_min_gbps",
        "fabric_sysroot",
        "firewall_state",
        "images_refs",
        "images_known",
        "images_locked",
        "images_bundle",
        "images_beside",
        "images_brought",
        "images_built",
        "models_wanted",
        "models_hf_home",
        "models_token_file",
        "models_endpoint",
        "models_verify",
        "models_bundle",
        "models_known",
        "ollama_state",
        "ollama_image",
        "ollama_url",
        "ollama_models",
        "ollama_memory_gib",
        "ollama_models_dir",
        "ollama_env",
        "ollama_argv",
        "ollama_limits",
        "ollama_start_timeout",
        "ollama_pull_timeout",
        "ray_images",
        "ray_pip_env",
        "service_services",
        "service_speech",
        "service_hf_home",
        "speech_services",
    ]
)


def document_of(plan: Mapping[str, Any], addons: Mapping[str, Any] | None, own: Mapping[str, Any]) -> HostState:
    """Return the state document of a host. Raises AnsibleActionFail for what no file of a host can hold.

    plan, addons: the host's. own: variables of roles that are set for it.
    """
    try:
        return host_documents.host_document(plan, addons, own)
    except ValueError as error:
        raise AnsibleActionFail(f"what is planned cannot be written to a host: {error}") from error


def desired_checksum(plan: Mapping[str, Any], addons: Mapping[str, Any] | None, own: Mapping[str, Any]) -> str:
    """Return the checksum of all that would be put on a host.

    plan, addons: the host's. own: variables of roles that are set for it.
    """
    document = _compared(document_of(plan, addons, own))
    made = [document.to_dict(), by_templates(plan, addons or {}, own)]
    return rollout.desired_checksum(plan, addons, made, _sums(plan, addons, made))


def part_checksums(plan: Mapping[str, Any], addons: Mapping[str, Any] | None, own: Mapping[str, Any]) -> dict[str, str]:
    """Return the checksums of what single tags of site.yml put on a host, by tag.

    plan, addons: the host's. own: variables of roles that are set for it.
    """
    document = _compared(document_of(plan, addons, own))
    parts = {part: document.of_parts({part}).to_dict() for part in DOCUMENTED}
    return rollout.part_checksums(plan, addons, parts, _sums(plan, addons, parts))


def _compared(document: HostState) -> HostState:
    """Return a document as checksums see it: whether an engine runs from older files is no part of its desired state."""
    units = tuple(replace(unit, outdated=False) for unit in document.units)
    return host_documents.with_digests(replace(document, units=units))


def _sums(plan: Mapping[str, Any], addons: Mapping[str, Any] | None, made: Any) -> dict[str, str]:
    """Return the checksums of the files of the controller that are copied to the host, by their names."""
    names = rollout.sources_of([plan.get("services"), addons, made])
    return {name: digest(Path(name)) for name in sorted(names)}


def by_templates(plan: Mapping[str, Any], addons: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what else is put on a host, by role: its templates and programs, and the variables that they go by beside the plan."""
    roles = [role for role in BY_TEMPLATES if addons.get(role)]
    roles += [role for role, key in (("fabric", "cluster"), ("ray", "ray_images")) if plan.get(key)]
    found: dict[str, Any] = {}
    for role in roles:
        folder = ROLES / role
        paths = [path for part in ("files", "tasks", "templates", "vars") for path in (folder / part).rglob("*")]
        if role in BY_TEMPLATES:
            paths += [path for pattern in TEMPLATE_CODE for path in COLLECTION.glob(pattern)]
        if role in unit_files.LIBRARIES:
            paths += [COLLECTION / file["bundled"] for file in unit_files.library(role)["files"]]
        found[role] = {
            "files": {
                str(path.relative_to(COLLECTION)): digest(path)
                for path in sorted(paths)
                if path.is_file() and path.suffix != ".pyc"
            },
            "variables": {name: own.get(name, value) for name, value in defaults(role).items()},
        }
    return found


def differs(
    plan: Mapping[str, Any],
    addons: Mapping[str, Any] | None,
    own: Mapping[str, Any],
    spark: Mapping[str, Any],
    parts: Collection[str] = SKIPPED,
) -> list[str]:
    """Return why there is something to apply, as far as the controller knows: accounts, and what is set in the place of the plan.

    spark: the host's facts. parts: roles that are asked about.
    """
    users = spark.get("docker_users") or {}
    found = []
    for account in document_of(plan, addons, own).accounts if "host" in parts else ():
        user = users.get(account.name)
        settings = {"home": account.home, "shell": account.shell} if account.shell else {}
        if user is None or any((user or {}).get(key) != value for key, value in settings.items()):
            found.append(f"{account.name} is no account of this host that may use Docker, or another than it has to be")
    usual = {name: value for role in SKIPPED for name, value in defaults(role).items()}
    return found + [
        f"{name} is set, which is the plan's to say"
        for name in sorted(FROM_PLAN & set(own))
        if own[name] != plain(usual[name]) and name.partition("_")[0] in parts
    ]


def folders_of(plan: Mapping[str, Any], parts: Collection[str] = SKIPPED) -> list[dict[str, Any]]:
    """Return the folders that a host has outside of those that a generation keeps. parts: roles that are asked about."""
    settings = plan.get("settings") or {}
    names = ("hf_home", "cache_dir") if "host" in parts else ()
    found = [{"path": settings[name]} for name in names if settings.get(name)]
    for service in (plan.get("services") or []) if "service" in parts else []:
        found += [folder for folder in service.get("folders") or [] if folder not in found]
    return found
