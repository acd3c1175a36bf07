#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: spread_info
short_description: Report the images and models of a host, and how other nodes reach it
version_added: 0.1.0
description:
  - Says which of the wanted images and snapshots are on the host, and which of their files were verified and have not
    changed since. Files are not read for that, so it costs the same for one gigabyte and for a hundred.
  - Says on which addresses other nodes can take them from here, how much room there is, and which programs are missing.
  - Its answers are what M(dgxspark.vllm.spread) works with.
options:
  images:
    description: References of images that the host is to have.
    type: list
    elements: str
    default: []
  locked:
    description: References that a lock file holds; by reference the C(ids) by which the image may be there too.
    type: dict
    default: {}
  models:
    description: Snapshots that the host is to have, each with C(repo), C(revision) and C(only).
    type: list
    elements: dict
    default: []
  hf_home:
    description: Folder in the layout of C(HF_HOME).
    type: path
    default: /srv/huggingface
  address:
    description: Address of the host that the other nodes reach; the one that its default route starts from when empty.
    type: str
    default: ''
  fabric:
    description: Name of the fast network that the host shares with others of that name; empty when there is none.
    type: str
    default: ''
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: List images and models on the host
  dgxspark.vllm.spread_info:
    images: [nvcr.io/nvidia/vllm:26.04-py3]
    models:
      - {repo: Qwen/Qwen3-8B, revision: main, only: []}
    fabric: pair1
  register: there
"""

RETURN = r"""
look:
  description: What the host has and how it is reached.
  returned: success
  type: dict
  contains:
    images:
      description:
        - By reference what tells the image apart (C(id), C(content), C(layers), C(size)), and the C(name) by which it is there;
          V(null) where it is not.
      type: dict
    models:
      description:
        - By C(repo@revision) whether the snapshot is C(complete), its C(commit), its C(files) and, in C(staged), the bytes
          that came earlier and were not put to use yet.
      type: dict
    address:
      description: Address on the LAN.
      type: str
    fabric:
      description: As given.
      type: str
    interfaces:
      description: C(interface), C(address) and C(network) of the host's other interfaces.
      type: list
      elements: dict
    disks:
      description: C(path), C(device) and C(free) bytes of the places for images and for models.
      type: dict
    tools_missing:
      description: Programs that are needed and not there.
      type: list
      elements: str
    left_open:
      description: Whether a run that was cut off left the access of M(dgxspark.vllm.spread_access) open.
      type: bool
  sample:
    address: 192.0.2.11
    fabric: pair1
    interfaces: [{interface: enp1s0f0np0, address: 192.168.100.10, network: 192.168.100.0/24}]
    tools_missing: []
"""

import ipaddress
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import (
    snapshots,
    spread_access,
    spread_files,
    spreading,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import beneath, docker_facts, machine
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import failing, runner

Run = Callable[[list[str]], "tuple[int, str, str]"]
IP_QUERY = ["ip", "-json", "-4", "address", "show", "up"]
# Of containers and virtual machines; no cable of theirs leads to another node.
VIRTUAL = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "tailscale", "wg", "tun", "tap")


def look_at_images(module: AnsibleModule, run: Run, refs: list[str], locked: dict[str, Any]) -> dict[str, Any]:
    """Ask the engine for each image; one that is named by digest may have come under its alias, or from a bundle.

    :param module: of Ansible
    :param run: runs programs
    :param refs: references
    :param locked: what the lock file has of them
    :returns: what there is, by reference
    """
    found: dict[str, Any] = {}
    for ref in refs:
        found[ref] = None
        for name in spreading.names_of(ref, [str(each) for each in (locked.get(ref) or {}).get("ids") or []]):
            rc, out, err = run(["docker", "image", "inspect", "--", name])
            if rc == 127:
                module.fail_json(msg="there is no docker on this host; install the Docker engine (DGX OS ships it)")
            if rc == 0:
                with failing(module):
                    items = docker_facts.read_inspected(out)
                    found[ref] = {**spread_files.describe(items[0]), "name": name}
                break
            if "no such image" not in err.lower():
                module.fail_json(msg=f"docker image inspect {name} failed: {err.strip() or f'exit code {rc}'}")
    return found


def look_at_model(hf_home: Path, model: dict[str, Any]) -> dict[str, Any]:
    """Say what is there of a snapshot, and what came earlier of one that was cut off."""
    repo, revision, only = model["repo"], model["revision"], list(model.get("only") or [])
    state = snapshots.look(hf_home, repo, revision, only)
    folder = snapshots.repo_folder(hf_home, repo).name
    staging = f"{spread_files.STAGING}/{folder}"
    try:
        came = [entry for entry in beneath.walk(hf_home, staging) if stat.S_ISREG(entry[1].st_mode)]
    except OSError:  # no folder of ours: what takes the model says so
        came = []
    there = state["path"] is not None
    return {
        "repo": repo,
        "revision": revision,
        "only": only,
        "folder": folder,
        "commit": state["commit"],
        "complete": state["complete"],
        "files": spread_files.snapshot_files(hf_home / "hub", folder, state["commit"], only) if there else [],
        "staged": {path[len(spread_files.STAGING) + 1 :]: info.st_size for path, info in came},
    }


def interfaces(module: AnsibleModule, run: Run, own: str) -> list[dict[str, str]]:
    """List the IPv4 addresses of the host's interfaces but for the one that has its address on the LAN.

    Fails where C(ip) does not say: a host whose cables are not known is not one without cables.

    :param module: of Ansible
    :param run: runs programs
    :param own: that address
    :returns: interfaces with their addresses
    """
    rc, out, err = run(IP_QUERY)
    said = err.strip() or f"exit code {rc}"
    if rc != 0:
        module.fail_json(msg=f"the interfaces of this host are not known: {' '.join(IP_QUERY)} failed: {said}")
    found = []
    try:
        for link in parse_json(out or "[]", " ".join(IP_QUERY)):
            infos = [info for info in link.get("addr_info", []) if info.get("local")]
            if link.get("ifname", "lo").startswith(VIRTUAL) or any(info["local"] == own for info in infos):
                continue
            for info in infos:
                network = ipaddress.ip_interface(f"{info['local']}/{info['prefixlen']}").network
                found.append({"interface": link["ifname"], "address": info["local"], "network": str(network)})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        module.fail_json(
            msg=f"the interfaces of this host are not known: what {' '.join(IP_QUERY)} printed cannot be read ({error!r})"
        )
    return sorted(found, key=lambda entry: (entry["interface"], entry["address"]))


def disk(path: Path) -> dict[str, Any]:
    """Say how much room there is where a folder is, or will be."""
    there = next(folder for folder in (path, *path.parents) if folder.is_dir())
    room = os.statvfs(there)
    return {"path": str(path), "device": str(there.stat().st_dev), "free": room.f_bavail * room.f_frsize}


def image_folder(module: AnsibleModule, run: Run) -> Path:
    """Where the engine keeps images. Fails where it does not say: there may be no room where they come to lie."""
    rc, out, err = run(["docker", "info", "--format", "{{.DockerRootDir}}"])
    if rc != 0 or not out.strip():
        module.fail_json(msg=f"docker info does not say where images lie: {err.strip() or f'exit code {rc}'}")
    return Path(out.strip())


def tools_missing(module: AnsibleModule) -> list[str]:
    """Return the programs that are not on this host and that what is asked for takes."""
    places = ["/usr/sbin", "/sbin", "/usr/local/sbin"]
    wanted = [tool for tool in spreading.TOOLS if module.params["models"] or tool not in spreading.MODELS_ALONE]
    return [tool for tool in wanted if module.get_bin_path(tool, opt_dirs=places) is None]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "images": {"type": "list", "elements": "str", "default": []},
            "locked": {"type": "dict", "default": {}},
            "models": {"type": "list", "elements": "dict", "default": []},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "address": {"type": "str", "default": ""},
            "fabric": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params, run = module.params, runner(module)
    for model in params["models"]:
        if not isinstance(model.get("repo"), str) or not isinstance(model.get("revision"), str):
            module.fail_json(msg=f"models: {model} needs 'repo' and 'revision', both texts")
    home = Path(params["hf_home"])
    address = params["address"] or machine.management_address()
    look: dict[str, Any] = {
        "images": look_at_images(module, run, list(dict.fromkeys(params["images"])), params["locked"]),
        "models": {spreading.model_key(model): look_at_model(home, model) for model in params["models"]},
        "hf_home": str(home),
        "address": address,
        "fabric": params["fabric"],
        "interfaces": interfaces(module, run, str(address)),
        "disks": {"models": disk(home)},
        "tools_missing": tools_missing(module),
        "left_open": Path(spread_access.RUN_DIR).exists(),
    }
    look["disks"]["images"] = disk(image_folder(module, run) if params["images"] else Path("/var/lib/docker"))
    module.exit_json(changed=False, look=look)


if __name__ == "__main__":
    main()
