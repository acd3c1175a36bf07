# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host that is believed up to date is asked beside its files: the network of its cluster, images that are made there, servers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.filter.core import to_nice_yaml

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.bundles import manifest_of, wanted_models
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.desired_state import defaults, rendered

NETWORK_FILE = "/etc/netplan/40-cx7.yaml"  # __fabric_netplan of the role
ETC = "/etc/dgxspark"
UNHEARD = ("direct", "switch")
"""Topologies that addresses and packets show. In a ring hosts have to listen which plug the other end of a cable is in."""


def images_of(plan: Mapping[str, Any]) -> list[list[str]]:
    """Return the images that are made on the host itself, and those of add-on services that a bundle brings to it.

    plan: the host's. Each with the names that it may have: one that came from a bundle has its id, and no digest of a registry.
    """
    made = [*(plan.get("built_images") or []), *(plan.get("ray_images") or [])]
    locked = plan.get("images_locked") or {}
    beside = plan.get("images_beside") or [] if bundle_of(plan) else []
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
        manifest = manifest_of(folder)
    except AnsibleActionFail as error:
        return [], [str(error)]
    asked = [model for model in plan.get("models") or [] if model.get("repo")]
    models, messages = wanted_models(manifest, asked, folder)
    return [{key: model[key] for key in ("repo", "commit", "revisions", "files")} for model in models], messages


def folders_of(
    plan: Mapping[str, Any], addons: Mapping[str, Any] | None, own: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the folders of speech servers and Ollama, which may lie outside of those that a generation keeps.

    plan, addons: the host's. own: variables of roles that are set for it.
    """
    names = [name for name in ("speech", "ollama") if (addons or {}).get(name)]
    made = rendered(plan, addons, own) if names else {}
    return [folder for name in names for folder in (made.get(name) or {}).get("folders") or []]


def servers_of(addons: Mapping[str, Any] | None, own: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the servers that are no engines, and by which file of the host each is asked.

    addons: the host's. own: variables of roles that are set for it. Returns C([{name, settings, seconds}]).
    """
    role = {**defaults("speech"), **own}
    speech = ((addons or {}).get("speech") or {}).get("services") or []
    found = [
        {
            "name": str(server["name"]),
            "settings": f"{ETC}/speech/{server['name']}.json",
            "seconds": float(role["speech_prove_seconds"]),
        }
        for server in speech
        if boolean(role["speech_prove"])
    ]
    if ((addons or {}).get("ollama") or {}).get("state") == "present":
        found.append({"name": "ollama", "settings": f"{ETC}/ollama/ollama.json", "seconds": 30.0})
    return found


def network_of(
    plan: Mapping[str, Any], network: Mapping[str, Any] | None, host: str
) -> tuple[dict[str, Any], list[str]]:
    """Return what the host is asked of the network of its cluster, and why the role fabric would have something to do.

    plan: the host's. network: C(fabric) of its cluster in the plan, None where it is not known. host: its name.
    Returns C({file, ufw, pings}), nothing for a host without a cluster.
    """
    cluster = plan.get("cluster")
    if not cluster:
        return {}, []
    whole = network or {}
    own = (whole.get("hosts") or {}).get(host)
    if not own or not whole.get("ready"):
        return {}, [f"the network of {cluster['name']} is not known to be ready"]
    why = [str(found["message"]) for found in whole.get("findings") or [] if found["severity"] == "error"]
    if whole["topology"] not in UNHEARD:
        why.append(f"the hosts of {cluster['name']} are a {whole['topology']}, and have to listen how it is cabled")
    why += [
        f"the network of {name} may have to be changed"
        for name, each in whole["hosts"].items()
        if each["apply"] or each["action"] in ("refuse", "migrate") or each.get("relay")
    ]
    document = own["netplan"]
    ufw = {
        "netdevs": sorted({rail["netdev"] for rail in own["rails"]}),
        "peers": [peer for peer in own["firewall"]["peers"] if "/" not in peer],
    }
    return {
        "file": {"path": NETWORK_FILE, "sha256": hashlib.sha256(network_text(document).encode()).hexdigest()}
        if document
        else {},
        "ufw": ufw if cluster["fabric"]["firewall"] else {},
        "pings": own["pings"],
    }, why


def network_text(document: Mapping[str, Any]) -> str:
    """Return the file of the role fabric, as templates/netplan.yaml.j2 makes it. document: C(netplan) of the host's part of the network."""
    return f"# Ansible managed: dgxspark.vllm.fabric\n{to_nice_yaml(document, indent=2)}"
