# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checksum of the desired state of a host: its state document, and the templates and variables of roles outside the document."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import rollout
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import host_programs, unit_files
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import host_documents
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_documents import COLLECTION, digest
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import ROLES, defaults
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

# Roles outside the document: their files depend on answers of the host, such as the number of an account. By their key in the plan of add-ons.
BY_TEMPLATES = ("gateway", "clients", "exporters", "monitoring", "fleet_monitor")
# Code that renders a template, and that makes variables of roles.
RENDERER = (
    "plugins/lookup/rendered.py",
    "plugins/module_utils/_common/file_syntax.py",
    "plugins/plugin_utils/render.py",
)
TEMPLATE_CODE = ("plugins/filter/*.py", "plugins/lookup/unit_files.py", "plugins/module_utils/_plan/unit_files.py")
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


def document_of(
    plan: Mapping[str, Any], addons: Mapping[str, Any] | None, role_variables: Mapping[str, Any]
) -> HostState:
    """Return the state document of a host. Raises AnsibleActionFail for a value that no file can hold.

    plan, addons: the host's. role_variables: variables of roles that are set for it.
    """
    try:
        return host_documents.host_document(plan, addons, role_variables)
    except ValueError as error:
        raise AnsibleActionFail(f"what is planned cannot be written to a host: {error}") from error


def desired_checksum(
    plan: Mapping[str, Any], addons: Mapping[str, Any] | None, role_variables: Mapping[str, Any]
) -> str:
    """Return the checksum of the desired state of a host.

    plan, addons: the host's. role_variables: variables of roles that are set for it.
    """
    document = _compared(document_of(plan, addons, role_variables))
    made = [document.to_dict(), by_templates(plan, addons or {}, role_variables)]
    return rollout.desired_checksum(plan, addons, made, _sums(plan, addons, made))


def part_checksums(
    plan: Mapping[str, Any], addons: Mapping[str, Any] | None, role_variables: Mapping[str, Any]
) -> dict[str, str]:
    """Return the checksums of the parts that single tags of site.yml deploy, by tag.

    plan, addons: the host's. role_variables: variables of roles that are set for it.
    """
    document = _compared(document_of(plan, addons, role_variables))
    parts = {part: document.of_parts({part}).to_dict() for part in DOCUMENTED}
    return rollout.part_checksums(plan, addons, parts, _sums(plan, addons, parts))


def _compared(document: HostState) -> HostState:
    """Return a document without contents, and without the marks of engines that run from older files."""
    units = tuple(replace(unit, outdated=False) for unit in document.units)
    return host_documents.with_digests(replace(document, units=units))


def _sums(plan: Mapping[str, Any], addons: Mapping[str, Any] | None, made: Any) -> dict[str, str]:
    """Return the checksums of the files of the controller that are copied to the host, by their names."""
    names = rollout.sources_of([plan.get("services"), addons, made])
    return {name: digest(Path(name)) for name in sorted(names)}


def by_templates(
    plan: Mapping[str, Any], addons: Mapping[str, Any], role_variables: Mapping[str, Any]
) -> dict[str, Any]:
    """Return by role the checksums of templates and programs, and the role variables, of roles outside the document."""
    roles = [role for role in BY_TEMPLATES if addons.get(role)]
    roles += [role for role, key in (("fabric", "cluster"), ("ray", "ray_images")) if plan.get(key)]
    by_role: dict[str, Any] = {}
    for role in roles:
        folder = ROLES / role
        paths = [path for part in ("files", "tasks", "templates", "vars") for path in (folder / part).rglob("*")]
        patterns = (*RENDERER, *TEMPLATE_CODE) if role in BY_TEMPLATES else RENDERER
        paths += [path for pattern in patterns for path in COLLECTION.glob(pattern)]
        if role in host_programs.PROGRAMS:
            paths += [COLLECTION / file["bundled"] for file in unit_files.library(role)["files"]]
        by_role[role] = {
            "files": {
                str(path.relative_to(COLLECTION)): digest(path)
                for path in sorted(paths)
                if path.is_file() and path.suffix != ".pyc"
            },
            "variables": {name: role_variables.get(name, value) for name, value in defaults(role).items()},
        }
    return by_role


def differs(
    plan: Mapping[str, Any],
    addons: Mapping[str, Any] | None,
    role_variables: Mapping[str, Any],
    spark: Mapping[str, Any],
    parts: Collection[str] = SKIPPED,
) -> list[str]:
    """Return reasons to apply the roles that the controller knows: accounts, and role variables that replace values of the plan.

    spark: the host's facts. parts: the roles of the run.
    """
    users = spark.get("docker_users") or {}
    reasons = []
    docker_users = [
        account for account in document_of(plan, addons, role_variables).accounts if "docker" in account.groups
    ]
    for account in docker_users if "host" in parts else ():
        user = users.get(account.name)
        settings = {"home": account.home, "shell": account.shell} if account.shell else {}
        if user is None or any((user or {}).get(key) != value for key, value in settings.items()):
            reasons.append(
                f"{account.name} is no account of this host that may use Docker, or another than it has to be"
            )
    usual = {name: value for role in SKIPPED for name, value in defaults(role).items()}
    return reasons + [
        f"{name} is set, which is the plan's to say"
        for name in sorted(FROM_PLAN & set(role_variables))
        if role_variables[name] != plain(usual[name]) and name.partition("_")[0] in parts
    ]


def folders_of(plan: Mapping[str, Any], parts: Collection[str] = SKIPPED) -> list[dict[str, Any]]:
    """Return the folders of a host outside of those that a generation keeps. parts: the roles of the run."""
    settings = plan.get("settings") or {}
    names = ("hf_home", "cache_dir") if "host" in parts else ()
    folders = [{"path": settings[name]} for name in names if settings.get(name)]
    for service in (plan.get("services") or []) if "service" in parts else []:
        folders += [folder for folder in service.get("folders") or [] if folder not in folders]
    return folders
