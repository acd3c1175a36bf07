# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host that is believed up to date is asked, as far as the tags of a run apply something: beside its files the network of its cluster,
images that are made there, servers."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import relay
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generations
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import Folder, HostFile
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.bundles import manifest_of, wanted_models
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.desired_state import (
    BY_TEMPLATES,
    SKIPPED,
    document_of,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_documents import with_digests
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_documents import (
    NETWORK_FILE,
    RELAY_FILE,
    network_text,
    relay_text,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import defaults

ETC = "/etc/dgxspark"
SYSTEM = "/etc/systemd/system"
TAGS = {
    **{role: {role} for role in SKIPPED},
    "spread": {"images", "models"},
    # What is proved is what is planned.
    "prove": {"prove", "service"},
    # Hosts that have them are reached by their roles, all others by nothing.
    **{role: set() for role in BY_TEMPLATES},
}
"""What each tag of site.yml applies."""
FIREWALL_FILES = (f"{ETC}/firewall.nft", f"{SYSTEM}/spark-firewall.service")
MODES = ("owner", "group", "mode", "device")
PINGED = ("direct", "switch", "ring")
"""Topologies that addresses and packets show. A cable of a ring has subnets of its own: where its plugs were changed, packets get lost."""


def parts_of(run: Sequence[str], skipped: Sequence[str]) -> frozenset[str] | None:
    """Return what a run of site.yml with tags applies: roles, and C(prove); None where that is not known.

    run, skipped: C(ansible_run_tags) and C(ansible_skip_tags).
    """
    # Most tasks that are included have the tags of all that they hold, so that one of these leaves out all of it.
    if not set(skipped) <= {"prove"}:
        return None
    if "all" in run:
        found = {*SKIPPED, "prove"}
    elif set(run) <= set(TAGS):
        found = {part for tag in run for part in TAGS[tag]}
    else:
        return None
    return frozenset(found - set(skipped))


def applied(run: Sequence[str], skipped: Sequence[str], proven: Any) -> tuple[bool, frozenset[str]]:
    """Return whether a run that records a generation was to apply all, and the roles that it has applied.

    run, skipped: as C(parts_of) takes them. proven: C(proven) of the module; false is recorded by a run that ended somewhere on its way.
    """
    parts = (parts_of([tag for tag in run if tag != "prove"], skipped) or frozenset()) - {"prove"}
    return parts == set(SKIPPED), frozenset() if proven is False else parts


def unjudged(
    parts: frozenset[str] | None,
    plan: Mapping[str, Any],
    addons: Mapping[str, Any] | None,
    known: Mapping[str, Any],
) -> list[str]:
    """Return why all roles of a run are applied, as far as the controller knows without asking the host.

    parts: of C(parts_of). plan, addons: the host's. known: C(run), its tags; C(facts) and C(looked), what the host has said, of its images
    too; C(lacking), the hosts that lack images and models, and C(play), those of the run: one that has them may have to hand them on.
    """
    if parts is None or "fabric" in known["run"]:
        return ["what these tags apply is not judged by a look"]
    found, lacking, play = [], known["lacking"], set(known["play"])
    relays = (known["facts"].get("fabric") or {}).get("relay")
    if "fabric" in parts and relays and not plan.get("cluster"):
        found.append("the host passes on what is for others, and is in no cluster")
    if "ollama" in parts and ((addons or {}).get("ollama") or {}).get("state") == "absent":
        found.append("Ollama is to be gone")
    if "service" in parts:
        stale = [str(service["name"]) for service in plan.get("services") or [] if service.get("stale")]
        found += [f"{name} runs from older files" for name in stale]
    if "images" in parts:
        looked = known["looked"]
        refs = [ref for ref in plan.get("images") or [] if (looked.get(ref) or {}).get("probe_from", "none") == "none"]
        found += [f"what {ref} holds is not known" for ref in refs]
    for kind in ("images", "models"):
        if kind in parts and not play.isdisjoint(lacking.get(kind) or []):
            found.append(f"{kind} are missing on hosts of this run")
    return found


def others_of(
    parts: Collection[str], plan: Mapping[str, Any], addons: Mapping[str, Any] | None, own: Mapping[str, Any]
) -> list[str]:
    """Return the files and folders that no role that is asked about has to do with.

    parts: of C(parts_of). plan, addons: the host's. own: variables of roles that are set for it.
    """
    document = document_of(plan, addons, own)
    rows: list[Folder | HostFile] = [*document.folders, *document.files]
    mine = {row.path for row in rows if row.part in parts}
    others = {row.path for row in rows if row.part not in parts}
    return sorted((others | (set() if "firewall" in parts else set(FIREWALL_FILES))) - mine)


def files_of(
    parts: Collection[str], plan: Mapping[str, Any], addons: Mapping[str, Any] | None, own: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the files of roles that lie where no generation looks, with their sums; without one, they may not be there.

    parts: of C(parts_of). plan, addons: the host's. own: variables of roles that are set for it.
    """
    document = with_digests(document_of(plan, addons, own).of_parts(parts))
    downloads = [model for model in plan.get("models") or [] if model.get("url")] if "models" in parts else []
    found: list[dict[str, Any]] = [{"path": model["path"], "sha256": model["sha256"]} for model in downloads]
    for file in document.files:
        if not generations.keeps(file.path) and not file.secret:
            modes = {key: getattr(file, key) for key in MODES if getattr(file, key)}
            found.append({"path": file.path, "sha256": file.digest, **modes})
    gone = [row.path for row in document.removed if not generations.keeps(row.path)]
    return found + [{"path": path, "sha256": ""} for path in gone]


def images_of(plan: Mapping[str, Any], parts: Collection[str] = SKIPPED) -> list[list[str]]:
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
        manifest = manifest_of(folder)
    except AnsibleActionFail as error:
        return [], [str(error)]
    asked = [model for model in plan.get("models") or [] if model.get("repo")]
    models, messages = wanted_models(manifest, asked, folder)
    return [{key: model[key] for key in ("repo", "commit", "revisions", "files")} for model in models], messages


def folders_of(
    plan: Mapping[str, Any],
    addons: Mapping[str, Any] | None,
    own: Mapping[str, Any],
    parts: Collection[str] = SKIPPED,
) -> list[dict[str, Any]]:
    """Return the folders of speech servers and Ollama, which may lie outside of those that a generation keeps.

    plan, addons: the host's. own: variables of roles that are set for it. parts: of C(parts_of).
    """
    names = {name for name in ("speech", "ollama") if name in parts and (addons or {}).get(name)}
    folders = document_of(plan, addons, own).of_parts(names).folders if names else ()
    return [{key: getattr(folder, key) for key in ("path", *MODES[:3])} for folder in folders]


def servers_of(
    addons: Mapping[str, Any] | None, own: Mapping[str, Any], parts: Collection[str] = SKIPPED
) -> list[dict[str, Any]]:
    """Return the servers that are no engines, and by which file of the host each is asked.

    addons: the host's. own: variables of roles that are set for it. parts: of C(parts_of). Returns C([{name, settings, seconds}]).
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
        if "speech" in parts and boolean(role["speech_prove"])
    ]
    if "ollama" in parts and ((addons or {}).get("ollama") or {}).get("state") == "present":
        found.append({"name": "ollama", "settings": f"{ETC}/ollama/ollama.json", "seconds": 30.0})
    return found


def network_of(
    plan: Mapping[str, Any], network: Mapping[str, Any] | None, host: str
) -> tuple[dict[str, Any], list[str]]:
    """Return what the host is asked of the network of its cluster, and why the role fabric would have something to do.

    plan: the host's. network: C(fabric) of its cluster in the plan, None where it is not known. host: its name.
    Returns C({file, units, routes, relay, ufw, pings}), nothing for a host without a cluster.
    """
    cluster = plan.get("cluster")
    if not cluster:
        return {}, []
    whole = network or {}
    own = (whole.get("hosts") or {}).get(host)
    if not own or not whole.get("ready"):
        return {}, [f"the network of {cluster['name']} is not known to be ready"]
    why = [str(found["message"]) for found in whole.get("findings") or [] if found["severity"] == "error"]
    if whole["topology"] not in PINGED:
        why.append(f"the hosts of {cluster['name']} are a {whole['topology']}, and have to listen how it is cabled")
    why += [
        f"the network of {name} may have to be changed"
        for name, each in whole["hosts"].items()
        if each["apply"] or each["action"] in ("refuse", "migrate")
    ]
    document, ways = own["netplan"], own.get("relay") or []
    ufw = {
        "netdevs": sorted({rail["netdev"] for rail in own["rails"]}),
        "peers": [peer for peer in own["firewall"]["peers"] if "/" not in peer],
    }
    return {
        "file": {"path": NETWORK_FILE, "sha256": sha256_of(network_text(document))} if document else {},
        # One that is there and is not asked for has to go.
        "units": [{"path": RELAY_FILE, "sha256": sha256_of(relay_text(ways)) if ways else ""}],
        "routes": relay.routes_of(document),
        "relay": ways,
        "ufw": ufw if cluster["fabric"]["firewall"] else {},
        "pings": own["pings"],
    }, why


def sha256_of(text: str) -> str:
    """Return the sum of a text. text: what a file is to hold."""
    return hashlib.sha256(text.encode()).hexdigest()
