# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the arguments of M(dgxspark.vllm.compare) for a host: document, images, models, network of its cluster, servers, and proof."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import relay
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generations
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState, merge
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import service_views
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import host_documents, role_documents
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.addon_documents import ROLES as ADD_ONS
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.addon_documents import read_file
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.bundles import read_manifest, select_models
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet, of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import listed
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_documents import with_digests
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_documents import NETWORK_FILE, network_text
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import defaults

ROLES = ("fabric", "firewall", "guard", "host", "images", "models", "ollama", "ray", "service", "speech", "watchdog")
"""Roles of site.yml that an up-to-date host skips; each is a tag, and a part of the document if it deploys files."""
TAGS = {
    **{role: {role} for role in (*ROLES, *ADD_ONS)},
    "spread": {"images", "models"},
    # A proof compares the services with the plan.
    "prove": {"prove", "service"},
}
"""The parts that each tag of site.yml applies."""
PINGED = ("direct", "switch", "ring")
"""Topologies that addresses and pings verify. Each cable of a ring has its own subnets, so swapped plugs lose packets."""


@dataclass(frozen=True)
class PlannedParts:
    """The plan of a host and of its add-on services, the network of its cluster (C(fabric)), the variables of roles that are set for it, and a reader of
    key files on the controller."""

    host: str
    plan: Mapping[str, Any]
    addons: Mapping[str, Any]
    network: Mapping[str, Any]
    role_variables: Mapping[str, Any]
    read: Callable[[str], str] = read_file


def parts_of(tags: Sequence[str], skipped: Sequence[str]) -> frozenset[str] | None:
    """Return the parts that a run of site.yml applies, and C(prove); None for tags of other playbooks.

    tags, skipped: C(ansible_run_tags) and C(ansible_skip_tags).
    """
    # Included tasks have the tags of all their contents, so one skipped tag skips everything.
    if not set(skipped) <= {"prove"}:
        return None
    if "all" in tags:
        parts = {*ROLES, *ADD_ONS, "prove"}
    elif set(tags) <= set(TAGS):
        parts = {part for tag in tags for part in TAGS[tag]}
    else:
        return None
    return frozenset(parts - set(skipped))


def applies_everything(tags: Sequence[str], skipped: Sequence[str]) -> bool:
    """Tell whether a run applies all roles, and so the whole plan. tags, skipped: as C(parts_of) takes them."""
    parts = parts_of([tag for tag in tags if tag != "prove"], skipped)
    return parts is not None and parts >= {*ROLES, *ADD_ONS}


def reasons_to_apply(
    tags: Sequence[str], parts: frozenset[str] | None, lacking: Mapping[str, Sequence[str]], play: Collection[str]
) -> list[str]:
    """Return why a run has to apply its roles, as far as the controller knows without asking the host.

    lacking: C(lacking) of the plan; other hosts may have to send missing images and models. play: hosts of the run.
    """
    if parts is None or "fabric" in tags:
        return ["the role fabric, and tags of other playbooks, are always applied"]
    return [
        f"{kind} are missing on hosts of this run"
        for kind in ("images", "models")
        if kind in parts and not set(play).isdisjoint(lacking.get(kind) or [])
    ]


def unknown_images(
    plan: Mapping[str, Any], images: Mapping[str, Any] | None, parts: Collection[str] | None
) -> list[str]:
    """Return the images with unknown contents. plan: of the host. images: of its facts. parts: of C(parts_of)."""
    refs = (plan.get("images") or []) if "images" in (parts or ()) else []
    unknown = [ref for ref in refs if ((images or {}).get(ref) or {}).get("probe_from", "none") == "none"]
    return [f"the contents of {ref} are not known" for ref in unknown]


def arguments_of(
    planned: PlannedParts, parts: frozenset[str], task_vars: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of the module for a host, and why the roles have to be applied for any answer.

    planned: of the host. parts: of C(parts_of). task_vars: of the action. Raises AnsibleActionFail for a value that no file can hold.
    """
    plan = planned.plan
    network, why = network_of(planned) if "fabric" in parts else ({}, [])
    bundled, unbundled = bundled_of(plan, task_vars) if "models" in parts else ([], [])
    is_whole = parts >= {*ROLES, *ADD_ONS, "prove"}
    document = document_of(planned, parts)
    return {
        "document": with_digests(document).to_dict(),
        "contents": host_documents.secret_contents(document),
        "parts": None if is_whole else sorted(parts),
        "models": models_of(plan, task_vars) if "models" in parts else [],
        "bundled": bundled,
        "images": images_of(plan, parts),
        "network": network,
        "servers": servers_of(planned, parts),
        "settings": plan.get("settings") or {},
        "hf_home": (plan.get("settings") or {}).get("hf_home"),
    }, [*why, *unbundled]


def document_of(planned: PlannedParts, parts: Collection[str]) -> HostState:
    """Return the document of some parts of a host.

    An absent firewall has no rows. Raises AnsibleActionFail for a value that no file can hold.
    """
    network = (planned.network.get("hosts") or {}).get(planned.host) or {}
    try:
        document = host_documents.host_document(planned.plan, planned.addons, planned.role_variables, planned.read)
        if network.get("relay"):
            unit = role_documents.relay_unit({"ways": network["relay"], "outdated": False})
            document = merge([document, HostState.from_dict(unit, "fabric")])
    except ValueError as error:
        raise AnsibleActionFail(f"the plan cannot be written to {planned.host}: {error}") from error
    return document.of_parts(parts)


def models_of(plan: Mapping[str, Any], task_vars: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the models of a host; models of the controller with size and time of their files. plan: of the host. task_vars: of the action."""
    return [
        {"path": model["path"], "copied": listed(Path(of_host(str(model["source"]), task_vars)))}
        if model.get("source")
        else model
        for model in plan.get("models") or []
    ]


def images_of(plan: Mapping[str, Any], parts: Collection[str]) -> list[list[str]]:
    """Return the alternative names of each image that the host builds, or that a bundle brings for an add-on service.

    An image of a bundle has an id, but no digest of a registry. plan: of the host. parts: of C(parts_of).
    """
    kinds = {"built_images": "images", "ray_images": "ray"}
    built = [image for kind, part in kinds.items() if part in parts for image in plan.get(kind) or []]
    locked = plan.get("images_locked") or {}
    of_addons = plan.get("images_beside") or [] if bundle_of(plan) and "images" in parts else []
    names = sorted({*(str(image["tag"]) for image in built), *map(str, of_addons)})
    return [[name, *((locked.get(name) or {}).get("ids") or [])] for name in names]


def bundle_of(plan: Mapping[str, Any]) -> str:
    """Return the folder of the host's bundle, empty without one."""
    return str((plan.get("settings") or {}).get("bundle_dir") or "")


def bundled_of(plan: Mapping[str, Any], task_vars: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the host's models in the bundle, C([{repo, commit, revisions, files}]), and why the roles would refuse it.

    plan: of the host. task_vars: of the action.
    """
    if not bundle_of(plan):
        return [], []
    folder = Path(of_fleet(bundle_of(plan), task_vars))
    try:
        manifest = read_manifest(folder)
    except AnsibleActionFail as error:
        return [], [str(error)]
    planned = [model for model in plan.get("models") or [] if model.get("repo")]
    models, messages = select_models(manifest, planned, folder)
    return [{key: model[key] for key in ("repo", "commit", "revisions", "files")} for model in models], messages


def servers_of(planned: PlannedParts, parts: Collection[str]) -> list[dict[str, Any]]:
    """Return the speech servers and Ollama, each with its settings file on the host: C([{name, settings, seconds}])."""
    role = {**defaults("speech"), **planned.role_variables}
    speech = (planned.addons.get("speech") or {}).get("services") or []
    servers: list[dict[str, Any]] = []
    if "speech" in parts and boolean(role["speech_prove"]):
        names, seconds = [str(server["name"]) for server in speech], float(role["speech_prove_seconds"])
        servers = [
            {"name": name, "settings": f"/etc/dgxspark/speech/{name}.json", "seconds": seconds} for name in names
        ]
    if "ollama" in parts and (planned.addons.get("ollama") or {}).get("state") == "present":
        servers.append({"name": "ollama", "settings": "/etc/dgxspark/ollama/ollama.json", "seconds": 30.0})
    return servers


def _network_reasons(cluster: str, network: Mapping[str, Any]) -> list[str]:
    """Return why the role fabric has to be applied to a cluster with a ready network."""
    why = [str(finding["message"]) for finding in network.get("findings") or [] if finding["severity"] == "error"]
    if network["topology"] not in PINGED:
        why.append(f"the hosts of {cluster} are a {network['topology']}, and have to listen how it is cabled")
    return why + [
        f"the network of {name} may have to be changed"
        for name, host in network["hosts"].items()
        if host["apply"] or host["action"] in ("refuse", "migrate")
    ]


def network_of(planned: PlannedParts) -> tuple[dict[str, Any], list[str]]:
    """Return the questions about the network of a host's cluster, and why the role fabric has to be applied anyway.

    Returns C({file, routes, relay, ufw, pings}), nothing for a host without a cluster.
    """
    cluster, network = planned.plan.get("cluster"), planned.network
    if not cluster:
        return {}, []
    of_host = (network.get("hosts") or {}).get(planned.host)
    if not of_host or not network.get("ready"):
        return {}, [f"the network of {cluster['name']} is not known to be ready"]
    netplan, ufw = of_host["netplan"], {}
    if cluster["fabric"]["firewall"]:
        ufw = {
            "netdevs": sorted({rail["netdev"] for rail in of_host["rails"]}),
            "peers": [peer for peer in of_host["firewall"]["peers"] if "/" not in peer],
        }
    checksum = hashlib.sha256(network_text(netplan).encode()).hexdigest() if netplan else ""
    return {
        "file": {"path": NETWORK_FILE, "sha256": checksum} if netplan else {},
        "routes": relay.routes_of(netplan),
        "relay": of_host.get("relay") or [],
        "ufw": ufw,
        "pings": of_host["pings"],
    }, _network_reasons(cluster["name"], network)


def proof_of(planned: PlannedParts) -> dict[str, Any]:
    """Return the options of M(dgxspark.vllm.service_proof) for a host; tasks/prove.yml and the role prove pass the same."""
    role, settings = {**defaults("prove"), **planned.role_variables}, planned.plan.get("settings") or {}
    services = [
        service for service in planned.plan.get("services") or [] if service.get("state") in ("started", "on_demand")
    ]
    return {
        "services": service_views.view(services, "proof"),
        "timeout": role["prove_timeout"],
        "receipts_dir": generations.RECEIPTS if boolean(role["prove_receipts"]) else "",
        "os_reserve_gib": settings.get("reserve_gib"),
        "root": settings.get("sysroot") or "/",
    }
