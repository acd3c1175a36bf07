# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checksum of the desired state of a host: what roles would put there, rendered."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.lookup.unit_files import located
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import rollout
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import host_programs, unit_files
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import load_yaml
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

COLLECTION = Path(__file__).resolve().parents[2]
ROLES = COLLECTION / "roles"
# Roles whose templates read the variables of the role: by what a plan has when one of them is run.
BY_TEMPLATES = ("gateway", "clients", "exporters", "monitoring", "fleet_monitor")
# Code that renders a template, and that makes variables of roles.
RENDERER = (
    "plugins/lookup/rendered.py",
    "plugins/module_utils/_common/file_syntax.py",
    "plugins/plugin_utils/render.py",
)
TEMPLATE_CODE = ("plugins/filter/*.py", "plugins/lookup/unit_files.py", "plugins/module_utils/_plan/unit_files.py")
# Roles whose files the engine makes.
RENDERED = ("host", "service", "speech", "ollama", "watchdog", "guard")
# What the engine makes for each of them, by the tag of site.yml that puts it on a host.
COMPONENTS = {
    "host": ("host",),
    "service": ("services",),
    "speech": ("speech",),
    "ollama": ("ollama",),
    "watchdog": ("watchdog",),
    "guard": ("guard", "protection", "gpu_clocks"),
}
# Roles that site.yml leaves out on a host that is up to date, and the variables that it gives them from the plan.
SKIPPED = ("fabric", "firewall", "guard", "host", "images", "models", "ollama", "ray", "service", "speech", "watchdog")
FROM_PLAN = frozenset(
    [
        *(
            "firewall_state",
            "firewall_fabric",
            "firewall_peers",
            "firewall_allowed_tcp",
            "firewall_allowed_udp",
            "firewall_closed",
            "firewall_ranges",
            "firewall_admitted",
        ),
        *("host_known_users", "host_hf_home", "host_cache_dir"),
        *(
            "images_refs",
            "images_known",
            "images_locked",
            "images_bundle",
            "images_beside",
            "images_brought",
            "images_built",
        ),
        *(
            "models_wanted",
            "models_hf_home",
            "models_token_file",
            "models_endpoint",
            "models_verify",
            "models_bundle",
            "models_known",
        ),
        *("service_services", "service_speech", "service_hf_home"),
        *("watchdog_state", "watchdog_settings"),
        *("guard_state", "guard_settings", "guard_protection", "guard_clocks"),
        *(
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
        ),
        *("ray_images", "ray_pip_env"),
        "speech_services",
        *(
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
        ),
    ]
)


def defaults(role: str) -> dict[str, Any]:
    """Return the variables of a role and their defaults."""
    path = ROLES / role / "defaults" / "main.yml"
    return dict(_read(path, path.stat().st_mtime_ns))


@functools.lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> dict[str, Any]:
    return dict(load_yaml(path.read_text(encoding="utf-8")) or {})


def own_variables(known: Mapping[str, Any], resolve: Callable[[Any], Any] | None = None) -> dict[str, Any]:
    """Return the variables of roles that somebody has set for a host.

    known: all variables of the host. resolve: what makes a value of a template, where C(known) has templates.
    """
    roles = [path.parts[-3] for path in ROLES.glob("*/defaults/main.yml")]
    # The firewall lets Ansible in.
    names = {"ansible_port", *(name for role in roles for name in defaults(role))}
    return {name: plain(resolve(known[name]) if resolve else known[name]) for name in sorted(names) if name in known}


def desired_checksum(plan: Mapping[str, Any], addons: Mapping[str, Any] | None, own: Mapping[str, Any]) -> str:
    """Return the checksum of all that would be put on a host: rendered files and units, and sums of the files that are copied there.

    own: variables of roles that are set for it. Raises AnsibleActionFail for what no unit can hold.
    """
    made = [rendered(plan, addons, own), by_templates(plan, addons or {}, own)]
    names = rollout.sources_of([plan.get("services"), addons, made])
    return rollout.desired_checksum(plan, addons, made, {name: digest(Path(name)) for name in sorted(names)})


def part_checksums(plan: Mapping[str, Any], addons: Mapping[str, Any] | None, own: Mapping[str, Any]) -> dict[str, str]:
    """Return the checksums of what single tags of site.yml put on a host, by tag.

    plan, addons: the host's. own: variables of roles that are set for it. Raises AnsibleActionFail for what no unit can hold.
    """
    made, templates = rendered(plan, addons, own), by_templates(plan, {}, own)
    parts: dict[str, Any] = {
        tag: {name: made.get(name) for name in components} for tag, components in COMPONENTS.items()
    }
    parts["firewall"] = templates.get("firewall")
    names = rollout.sources_of([plan.get("services"), addons, parts])
    return rollout.part_checksums(plan, addons, parts, {name: digest(Path(name)) for name in sorted(names)})


def rendered(plan: Mapping[str, Any], addons: Mapping[str, Any] | None, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the engine makes for a host, by component."""
    known = {name: value for role in RENDERED for name, value in defaults(role).items() if name in unit_files.DEFAULTS}
    variables = {name: value for name, value in own.items() if name in unit_files.DEFAULTS}
    try:
        made = unit_files.render(plan, addons, {**known, **variables})
    except ValueError as error:
        raise AnsibleActionFail(f"what is planned cannot be written to a host: {error}") from error
    return {name: located(component) for name, component in made.items()}


def by_templates(plan: Mapping[str, Any], addons: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what else is put on a host, by role: its templates and programs, and the variables that they go by beside the plan."""
    roles = [role for role in BY_TEMPLATES if addons.get(role)]
    roles += [
        role for role, key in (("fabric", "cluster"), ("firewall", "firewall"), ("ray", "ray_images")) if plan.get(key)
    ]
    found: dict[str, Any] = {}
    for role in roles:
        folder = ROLES / role
        paths = [path for part in ("files", "tasks", "templates", "vars") for path in (folder / part).rglob("*")]
        patterns = (*RENDERER, *TEMPLATE_CODE) if role in BY_TEMPLATES else RENDERER
        paths += [path for pattern in patterns for path in COLLECTION.glob(pattern)]
        if role in host_programs.PROGRAMS:
            paths += [COLLECTION / file["bundled"] for file in unit_files.library(role)["files"]]
        found[role] = {
            "files": {
                str(path.relative_to(COLLECTION)): digest(path)
                for path in sorted(paths)
                if path.is_file() and path.suffix != ".pyc"
            },
            "variables": {name: own.get(name, value) for name, value in defaults(role).items()},
        }
    if "firewall" in found:
        found["firewall"]["variables"]["ansible_port"] = str(own.get("ansible_port") or 22)
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
    accounts, users = rendered(plan, addons, own)["host"]["accounts"], spark.get("docker_users") or {}
    found = [
        f"{name} is no account of this host that may use Docker, or another than it has to be"
        for name, account in accounts.items()
        if "host" in parts
        and (name not in users or any((users[name] or {}).get(key) != value for key, value in account.items()))
    ]
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


def digest(path: Path) -> str:
    """Return the sum of a file of the controller; empty for a folder, and for one that cannot be read."""
    try:
        return hashlib.sha256(path.expanduser().read_bytes()).hexdigest()
    except OSError:
        return ""
