#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: spread_access
short_description: Grant nodes access to images and models of each other during a run
version_added: 0.1.0
description:
  - Runs an SSH server of its own, in a transient unit, with keys that were made for this run. It listens on the addresses
    of the nodes' networks, accepts the keys of the peers from their addresses alone, and gives them rsync that reads the
    hub folder and C(docker save) of the images of this run, and nothing else. On addresses of O(clear) a peer may also take files of the
    hub folder by a TCP connection that is not encrypted, which it asks for by SSH.
  - Everything that belongs to it is in C(/run/dgxspark/spread), in memory, and goes with the unit, however that ends. Nothing is
    written to a home folder, to the host's own SSH settings or to its C(authorized_keys).
  - O(state=prepared) and O(state=closed) also end what a run that was cut off left behind.
options:
  state:
    description:
      - V(prepared) makes the keys of this host, V(open) starts the server for those of the others, V(closed) takes all of it away.
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
    description: References of images that peers may take.
    type: list
    elements: str
    default: []
  hf_home:
    description: Folder in the layout of C(HF_HOME); peers may read the folder C(hub) below it.
    type: path
    default: /srv/huggingface
  lifetime:
    description: Seconds after which the server ends by itself.
    type: int
    default: 14400
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    support: none
    details:
      - Roles do not run it then.
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - Keys are made anew for each run.
author:
  - dgxspark.vllm contributors (@dgxspark)
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
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text, program_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import strict_address
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import file_stream, image_layers, image_stream
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spread_access as access
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import beneath, host_lock, systemctl, units
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import runner

RUN_DIR = Path(access.RUN_DIR)
PRIVILEGE_SEPARATION = Path("/run/sshd")
KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]+\Z")
NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")
START_SECONDS = 10.0

Run = Callable[[list[str]], "tuple[int, str, str]"]


def put(name: str, text: str) -> None:
    """Write a file of the access, for root alone."""
    descriptor = os.open(RUN_DIR / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(text)


def close(module: AnsibleModule, run: Run) -> bool:
    """End server and worker and remove what belongs to them; returns whether there was anything.

    Fails, and removes nothing, where systemd does not end one of them: the access would be open, and said to be closed.
    """
    there = RUN_DIR.exists()
    for unit in (access.WORKER_UNIT, access.SERVER_UNIT):
        why = systemctl.end(run, f"{unit}.service")
        if why:
            module.fail_json(
                msg=f"the access of other nodes may still be open: systemctl stop {unit}.service failed: {why}"
            )
    shutil.rmtree(RUN_DIR, ignore_errors=True)
    return there


def prepare(module: AnsibleModule, run: Run) -> dict[str, str]:
    """Make the keys of this host for this run."""
    close(module, run)
    RUN_DIR.mkdir(mode=0o700, parents=True)
    made = {}
    for name in ("client_key", "host_key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(RUN_DIR / name)]
        rc, _out, err = run(argv)
        if rc != 0:
            module.fail_json(msg=f"ssh-keygen could not make a key in {RUN_DIR}: {err.strip() or f'exit code {rc}'}")
        made[name] = " ".join((RUN_DIR / f"{name}.pub").read_text(encoding="utf-8").split()[:2])
    return made


def check_peers(module: AnsibleModule) -> None:
    """Refuse what would say something else in the server's files than it seems to."""
    for peer in module.params["peers"]:
        wrong = not NAME.match(str(peer.get("name"))) or any(
            not KEY.match(str(peer.get(key))) for key in ("client_key", "host_key")
        )
        if not wrong:
            try:
                [ipaddress.ip_address(strict_address(address)) for address in peer["addresses"]]
            except (AttributeError, KeyError, TypeError, ValueError):
                wrong = True
        if wrong:
            module.fail_json(msg=f"peers: {peer.get('name')!r} needs a name, two keys of ssh-ed25519 and addresses")
    for ref in module.params["images"]:
        if not ref.strip() or any(sign.isspace() for sign in ref) or ref.startswith("-"):
            module.fail_json(msg=f"images: {ref!r} is no reference of an image")


def open_server(module: AnsibleModule, run: Run) -> None:
    """Start the server, and see that it answers."""
    params = module.params
    check_peers(module)
    sshd = module.get_bin_path("sshd", required=True, opt_dirs=["/usr/sbin", "/sbin", "/usr/local/sbin"])
    hub = Path(params["hf_home"]) / "hub"
    hub.mkdir(parents=True, exist_ok=True)
    PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    put("serve", access.serve_script(python=sys.executable))
    put("image_layers.py", program_text.program(image_layers, foreign_text, image_stream))
    put("rsyncd.conf", access.rsyncd_conf(str(hub)))
    put("file_stream.py", program_text.program(file_stream, foreign_text, beneath))
    put("clear", "".join(f"{address} {hub}\n" for address in params["clear"] if address in params["addresses"]))
    put("images", "".join(f"{ref}\n" for ref in params["images"]))
    put("authorized_keys", access.authorized_keys(params["peers"]))
    put("known_hosts", access.known_hosts(params["peers"]))
    put("sshd_config", access.sshd_config(params["addresses"], params["port"]))
    for argv in ([sshd, "-t", "-f", str(RUN_DIR / "sshd_config")], access.server_argv(params["lifetime"], sshd)):
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
            "images": {"type": "list", "elements": "str", "default": []},
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
            result["changed"] = close(module, run)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
