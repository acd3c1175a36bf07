# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments of M(dgxspark.vllm.compare) for a host: its document, images and models, the network of its cluster, servers, and its proof."""

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
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.addon_documents import read_file
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.bundles import read_manifest, select_models
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet, of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import listed
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_documents import with_digests
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_documents import NETWORK_FILE, network_text
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import defaults

ROLES = ("fabric", "firewall", "guard", "host", "images", "models", "ollama", "ray", "service", "speech", "watchdog")
"""Roles of site.yml that a host without changes does not need; each is a tag, and a part of the document if it deploys files."""
ADD_ONS = ("gateway", "clients", "exporters", "monitoring", "fleet_monitor")
"""Roles of add-on services that hosts other than Sparks may have, too."""
TAGS = {
    **{role: {role} for role in (*ROLES, *ADD_ONS)},
    "spread": {"images", "models"},
    # What is proved is what is planned.
    "prove": {"prove", "service"},
}
"""The parts that each tag of site.yml applies."""
PINGED = ("direct", "switch", "ring")
"""Topologies that addresses and packets show. A cable of a ring has subnets of its own: where its plugs were changed, packets get lost."""


@dataclass(frozen=True)
class PlannedParts:
    """What is planned for a host: its part of the plan, its part of the plan of add-on services, the network of its cluster (C(fabric) of the
    cluster in the plan), the variables of roles that are set for it, and what reads files of keys on the controller."""

    host: str
    plan: Mapping[str, Any]
    addons: Mapping[str, Any]
    network: Mapping[str, Any]
    role_variables: Mapping[str, Any]
    read: Callable[[str], str] = read_file


def parts_of(tags: Sequence[str], skipped: Sequence[str]) -> frozenset[str] | None:
    """Return what a run of site.yml with tags applies: roles, and C(prove); None for tags of other playbooks.

    tags, skipped: C(ansible_run_tags) and C(ansible_skip_tags).
    """
    # Most tasks that are included have the tags of all that they hold, so that one of these leaves out all of it.
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
    """Return whether a run applies all roles, so that its plan is what the whole host was to be. tags, skipped: as C(parts_of) takes them."""
    parts = parts_of([tag for tag in tags if tag != "prove"], skipped)
    return parts is not None and parts >= {*ROLES, *ADD_ONS}


def reasons_to_apply(
    tags: Sequence[str],
    parts: frozenset[str] | None,
    lacking: Mapping[str, Sequence[str]],
    play: Collection[str],
) -> list[str]:
    """Return why a run has to apply its roles, as far as the controller knows that without asking the host.

    :param tags: C(ansible_run_tags)
    :param parts: of C(parts_of)
    :param lacking: C(lacking) of the plan. A host that has what another one of the run lacks may have to hand it on
    :param play: hosts of the run
    """
    if parts is None or "fabric" in tags:
        return ["the role fabric, and tags of other playbooks, are always applied"]
    return [
        f"{kind} are missing on hosts of this run"
        for kind in ("images", "models")
        if kind in parts and not set(play).isdisjoint(lacking.get(kind) or [])
    ]


def unknown_images(plan: Mapping[str, Any], images: Mapping[str, Any], parts: Collection[str]) -> list[str]:
    """Return why images have to be asked for their contents. plan: the host's. images: of its facts. parts: of C(parts_of)."""
    refs = (plan.get("images") or []) if "images" in parts else []
    unknown = [ref for ref in refs if (images.get(ref) or {}).get("probe_from", "none") == "none"]
    return [f"the contents of {ref} are not known" for ref in unknown]


def arguments_of(
    planned: PlannedParts, parts: frozenset[str], task_vars: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of the module for a host, and why the roles would have something to do whatever it answers.

    planned: of the host. parts: of C(parts_of). task_vars: as an action has them. Raises AnsibleActionFail for a value that no file can hold.
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

    The firewall that is planned as absent has no rows. Raises AnsibleActionFail for a value that no file can hold.
    """
    own = (planned.network.get("hosts") or {}).get(planned.host) or {}
    try:
        document = host_documents.host_document(planned.plan, planned.addons, planned.role_variables, planned.read)
        if own.get("relay"):
            unit = role_documents.relay_unit({"ways": own["relay"], "outdated": False})
            document = merge([document, HostState.from_dict(unit, "fabric")])
    except ValueError as error:
        raise AnsibleActionFail(f"the plan cannot be written to {planned.host}: {error}") from error
    return document.of_parts(parts)


def models_of(plan: Mapping[str, Any], task_vars: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the models of a host; one that is copied from the controller with the size and time of its files there.

    plan: the host's. task_vars: as an action has them.
    """
    return [
        {"path": model["path"], "copied": listed(Path(of_host(str(model["source"]), task_vars)))}
        if model.get("source")
        else model
        for model in plan.get("models") or []
    ]


def images_of(plan: Mapping[str, Any], parts: Collection[str]) -> list[list[str]]:
    """Return the images that are made on the host itself, and those of add-on services that a bundle brings to it.

    plan: the host's. parts: of C(parts_of). Each with the names that it may have: one that came from a bundle has its id, and no digest of a
    registry.
    """
    kinds = {"built_images": "images", "ray_images": "ray"}
    made = [image for kind, part in kinds.items() if part in parts for image in plan.get(kind) or []]
    locked = plan.get("images_locked") or {}
    beside = plan.get("images_beside") or [] if bundle_of(plan) and "images" in parts else []
    names = sorted({*(str(image["tag"]) for image in made), *map(str, beside)})
    return [[name, *((locked.get(name) or {}).get("ids") or [])] for name in names]


def bundle_of(plan: Mapping[str, Any]) -> str:
    """Return the bundle that images and weights of a host come from, empty without one. plan: the host's."""
    return str((plan.get("settings") or {}).get("bundle_dir") or "")


def bundled_of(plan: Mapping[str, Any], task_vars: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what the bundle has of the models of a host, and why the roles would refuse it.

    plan: the host's. task_vars: as an action has them. Returns C([{repo, commit, revisions, files}]), nothing without a bundle.
    """
    if not bundle_of(plan):
        return [], []
    folder = Path(of_fleet(bundle_of(plan), task_vars))
    try:
        manifest = read_manifest(folder)
    except AnsibleActionFail as error:
        return [], [str(error)]
    asked = [model for model in plan.get("models") or [] if model.get("repo")]
    models, messages = select_models(manifest, asked, folder)
    return [{key: model[key] for key in ("repo", "commit", "revisions", "files")} for model in models], messages


def servers_of(planned: PlannedParts, parts: Collection[str]) -> list[dict[str, Any]]:
    """Return the servers that are no engines, each with the file of the host by which it is asked: C([{name, settings, seconds}])."""
    role = {**defaults("speech"), **planned.role_variables}
    speech = (planned.addons.get("speech") or {}).get("services") or []
    servers = [
        {
            "name": str(server["name"]),
            "settings": f"/etc/dgxspark/speech/{server['name']}.json",
            "seconds": float(role["speech_prove_seconds"]),
        }
        for server in speech
        if "speech" in parts and boolean(role["speech_prove"])
    ]
    if "ollama" in parts and (planned.addons.get("ollama") or {}).get("state") == "present":
        servers.append({"name": "ollama", "settings": "/etc/dgxspark/ollama/ollama.json", "seconds": 30.0})
    return servers


def network_of(planned: PlannedParts) -> tuple[dict[str, Any], list[str]]:
    """Return what the host is asked of the network of its cluster, and why the role fabric would have something to do.

    Returns C({file, routes, relay, ufw, pings}), nothing for a host without a cluster.
    """
    cluster, network = planned.plan.get("cluster"), planned.network
    if not cluster:
        return {}, []
    own = (network.get("hosts") or {}).get(planned.host)
    if not own or not network.get("ready"):
        return {}, [f"the network of {cluster['name']} is not known to be ready"]
    why = [str(finding["message"]) for finding in network.get("findings") or [] if finding["severity"] == "error"]
    if network["topology"] not in PINGED:
        why.append(f"the hosts of {cluster['name']} are a {network['topology']}, and have to listen how it is cabled")
    why += [
        f"the network of {name} may have to be changed"
        for name, each in network["hosts"].items()
        if each["apply"] or each["action"] in ("refuse", "migrate")
    ]
    netplan = own["netplan"]
    ufw = {
        "netdevs": sorted({rail["netdev"] for rail in own["rails"]}),
        "peers": [peer for peer in own["firewall"]["peers"] if "/" not in peer],
    }
    return {
        "file": {"path": NETWORK_FILE, "sha256": checksum_of(network_text(netplan))} if netplan else {},
        "routes": relay.routes_of(netplan),
        "relay": own.get("relay") or [],
        "ufw": ufw if cluster["fabric"]["firewall"] else {},
        "pings": own["pings"],
    }, why


def proof_of(planned: PlannedParts) -> dict[str, Any]:
    """Return the options of M(dgxspark.vllm.service_proof) for a host, as tasks/prove.yml and the role prove have them."""
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


def checksum_of(text: str) -> str:
    """Return the SHA-256 of a text that a file holds."""
    return hashlib.sha256(text.encode()).hexdigest()
