#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: spread_access
short_description: Grant nodes access to images and models of each other during a run
description:
  - Runs a separate SSH server in a transient unit, with keys that are made for this run. It listens on the addresses of the nodes'
    networks, accepts the keys of the peers from their addresses alone, and gives them files of the hub folder and of the images of this
    run, and nothing else. On addresses of O(clear) a peer may also take files over a TCP connection without encryption.
  - Images are saved below C(/var/lib/dgxspark/spread/images) when a peer takes them. All other files are in C(/run/dgxspark/spread), in memory, and are
    removed with the unit. The host's own SSH settings and home folders are not touched. O(state=prepared) and O(state=closed) also end what an interrupted
    run left behind.
options:
  state:
    description: V(prepared) makes the keys of this host, V(open) starts the server for the keys of the peers, V(closed) removes both, and saved images.
    type: str
    choices: [prepared, open, closed]
    required: true
  name:
    description: Name of the host among its peers.
    type: str
    default: ''
  peers:
    description: The other nodes, each with C(name), C(client_key), C(host_key) and C(addresses).
    type: list
    elements: dict
    default: []
  addresses:
    description: Addresses to listen on.
    type: list
    elements: str
    default: []
  clear:
    description: Those of O(addresses) on which files may leave the host without encryption, on a port that the kernel chooses.
    type: list
    elements: str
    default: []
  port:
    description: Port to listen on.
    type: int
    default: 8722
  images:
    description: Images that peers may take, and their names on this host, by reference.
    type: dict
    default: {}
  ready:
    description: Images and snapshots that peers can take at once; others can be taken when M(dgxspark.vllm.transfer) has brought them.
    type: list
    elements: str
    default: []
  hf_home:
    description: Folder in the layout of C(HF_HOME); peers may read the folder C(hub) below it.
    type: path
    default: /srv/huggingface
  lifetime:
    description: Seconds after which the server ends.
    type: int
    default: 14400
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    support: none
    details:
      - Roles do not run it then.
  idempotent:
    support: none
    details:
      - Keys are made anew for each run.
"""

EXAMPLES = r"""
- name: Create the keys of this run
  dgxspark.vllm.spread_access:
    state: prepared
    name: "{{ inventory_hostname }}"
  register: made

- name: Revoke the access
  dgxspark.vllm.spread_access:
    state: closed
"""

RETURN = r"""
client_key:
  description: Public half of the key by which this host takes from others.
  returned: with O(state=prepared)
  type: str
  sample: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI...
host_key:
  description: Public half of the key by which others know this host.
  returned: with O(state=prepared)
  type: str
  sample: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI...
"""

import ipaddress
import json
import re
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import strict_address
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spread_access as access
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spread_files, spread_names, spread_server
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_lock, systemctl, units
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import Run, runner

RUN_DIR = Path(spread_names.RUN_DIR)
PRIVILEGE_SEPARATION = Path("/run/sshd")
KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]+\Z")
NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")
START_SECONDS = 10.0


def close(module: AnsibleModule, run: Run) -> bool:
    """End server and worker and remove their files; returns whether there was anything.

    Fails without removing anything if systemd does not end one of them: the access would be open although it is reported closed.
    """
    is_open = RUN_DIR.exists()
    for unit in (access.WORKER_UNIT, access.SERVER_UNIT):
        reason = systemctl.end(run, f"{unit}.service")
        if reason:
            module.fail_json(
                msg=f"the access of other nodes may still be open: systemctl stop {unit}.service failed: {reason}"
            )
    shutil.rmtree(RUN_DIR, ignore_errors=True)
    return is_open


def prepare(module: AnsibleModule, run: Run) -> dict[str, str]:
    """Make the keys of this host for this run."""
    close(module, run)
    RUN_DIR.mkdir(mode=0o700, parents=True)
    keys = {}
    for name in ("client_key", "host_key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(RUN_DIR / name)]
        rc, _out, err = run(argv)
        if rc != 0:
            module.fail_json(msg=f"ssh-keygen could not make a key in {RUN_DIR}: {err.strip() or f'exit code {rc}'}")
        keys[name] = " ".join((RUN_DIR / f"{name}.pub").read_text(encoding="utf-8").split()[:2])
    return keys


def is_peer(peer: dict[str, Any]) -> bool:
    """Whether a peer has a name, two keys and addresses, which mean the same in the files of the server."""
    if not NAME.match(str(peer.get("name"))):
        return False
    if not all(KEY.match(str(peer.get(key))) for key in ("client_key", "host_key")):
        return False
    try:
        return all(ipaddress.ip_address(strict_address(address)) for address in peer["addresses"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def check_arguments(module: AnsibleModule) -> None:
    """Fail for peers and images that would mean something else in the files of the server."""
    for peer in module.params["peers"]:
        if not is_peer(peer):
            module.fail_json(msg=f"peers: {peer.get('name')!r} needs a name, two keys of ssh-ed25519 and addresses")
    for ref in module.params["images"].values():
        if not isinstance(ref, str) or not ref or any(sign.isspace() for sign in ref) or ref.startswith("-"):
            module.fail_json(msg=f"images: {ref!r} is no reference of an image")


def open_server(module: AnsibleModule, run: Run) -> None:
    """Start the server and wait until it answers."""
    params = module.params
    check_arguments(module)
    sshd = module.get_bin_path("sshd", required=True, opt_dirs=["/usr/sbin", "/sbin", "/usr/local/sbin"])
    hub = Path(params["hf_home"]) / "hub"
    hub.mkdir(parents=True, exist_ok=True)
    PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    clear = [address for address in params["clear"] if address in params["addresses"]]
    images = {spread_names.item_id(ref): name for ref, name in params["images"].items()}
    settings = {"hub": str(hub), "saved": str(spread_files.SAVED), "clear": clear, "images": images}
    items = [f"{spread_server.ITEMS}/{spread_names.item_id(key)}.ready" for key in params["ready"]]
    files = {
        **access.programs(),
        **dict.fromkeys(items, ""),
        spread_server.SETTINGS: json.dumps(settings),
        "authorized_keys": access.authorized_keys(params["peers"], RUN_DIR, sys.executable),
        "known_hosts": access.known_hosts(params["peers"]),
        "sshd_config": access.sshd_config(params["addresses"], params["port"], RUN_DIR, sys.executable),
    }
    access.write(RUN_DIR, files)
    start = access.server_argv(params["lifetime"], sshd, RUN_DIR)
    for argv in ([sshd, "-t", "-f", str(RUN_DIR / "sshd_config")], start):
        rc, _out, err = run(argv)
        if rc != 0:
            module.fail_json(
                msg=f"the server for the other nodes cannot be started: {err.strip() or f'exit code {rc}'}"
            )
    for address in params["addresses"]:
        if not answers(address, params["port"]):
            log = units.last_words(run, access.SERVER_UNIT)
            close(module, run)
            module.fail_json(
                msg=f"nothing answers as SSH on {address} port {params['port']} after the server was started: "
                f"{log}. Is the port taken? Set spread_port to a free one"
            )


def answers(address: str, port: int) -> bool:
    """Wait until an SSH server speaks on an address."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        try:
            with socket.create_connection((address, port), 2) as connection:
                connection.settimeout(5)
                if connection.recv(4) == b"SSH-":
                    return True
        except OSError:
            pass
        time.sleep(0.1)
    return False


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["prepared", "open", "closed"], "required": True},
            "name": {"type": "str", "default": ""},
            "peers": {"type": "list", "elements": "dict", "default": []},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "clear": {"type": "list", "elements": "str", "default": []},
            "port": {"type": "int", "default": 8722},
            "images": {"type": "dict", "default": {}},
            "ready": {"type": "list", "elements": "str", "default": []},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "lifetime": {"type": "int", "default": 14400},
        },
    )
    run = runner(module)
    result: dict[str, Any] = {"changed": True}
    with host_lock.held(module):
        if module.params["state"] == "prepared":
            result.update(prepare(module, run))
        elif module.params["state"] == "open":
            open_server(module, run)
        else:
            saved = spread_files.finished_images()  # parts of others stay, to resume
            result["changed"] = close(module, run) or bool(saved)
            for folder in saved:
                shutil.rmtree(folder)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
