#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Discover which QSFP interfaces of which hosts are connected."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_probe
short_description: Discover which QSFP interfaces of which hosts are connected
version_added: 0.1.0
description:
  - Says on each QSFP interface that is up which one it is, and listens who else does. Needs no addresses, so it works before anything is
    configured. Frames are broadcast with EtherType 0x88B5, twice a second.
  - Run it on all hosts of a group at once (C(forks) of at least as many), and for long enough that slow connections
    overlap.
  - Nothing of the host is changed.
author:
  - dgxspark.vllm contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
options:
  name:
    description: What this host says that it is, its name in the inventory.
    type: str
    required: true
  root:
    description: Where C(/sys) is read to find the interfaces. Simulated Sparks show their own there.
    type: path
    default: /
  seconds:
    description: How long to listen.
    type: float
    default: 6
notes:
  - Raw sockets need root.
seealso:
  - module: dgxspark.vllm.spark_info
  - module: dgxspark.vllm.fabric_plan
"""

EXAMPLES = r"""
- name: Discover the cabling
  dgxspark.vllm.fabric_probe:
    name: "{{ inventory_hostname }}"
  become: true
  register: probe
"""

RETURN = r"""
heard:
  description: Which own interface heard which interface of which host, each once.
  returned: success
  type: list
  elements: dict
  sample: [{"netdev": "enp1s0f0np0", "host": "spark-2", "peer": "enp1s0f0np0"}]
tools:
  description: Which programs that measure bandwidth the host has.
  returned: success
  type: list
  elements: str
  sample: [iperf3]
"""

import select
import socket
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import (
    cabling,
    fabric_bandwidth,
    fabric_beacons,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import failing, runner

INTERVAL = 0.5


def attach(netdev: str) -> socket.socket:
    """Return a socket that hears the frames of one interface alone; raises OSError where there is none.

    Without protocol until it is bound: from the moment that a packet socket has one it takes in the frames of all interfaces, and
    keeps what came before it was bound. What came by another cable then counts as heard here.
    """
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        wire.bind((netdev, fabric_beacons.ETHERTYPE))
    except OSError:
        wire.close()
        raise
    return wire


def listen(wires: dict[Any, tuple[str, bytes]], own: str, seconds: float) -> list[dict[str, str]]:
    """Send each wire's frame again and again and note what comes in.

    :param wires: socket to the name of its interface and its frame
    :param own: name of this host in the frames
    :param seconds: how long
    :returns: who was received where
    """
    found: dict[tuple[str, str, str], None] = {}
    end = time.monotonic() + seconds
    due = 0.0
    while time.monotonic() < end:
        if time.monotonic() >= due:
            due = time.monotonic() + INTERVAL
            for wire, (_netdev, frame) in wires.items():
                wire.send(frame)
        for wire in select.select(list(wires), [], [], INTERVAL / 4)[0]:
            netdev = wires[wire][0]
            said = fabric_beacons.read_beacon(wire.recv(2048))
            if said and (said["host"], said["peer"]) != (own, netdev):
                found[(netdev, said["host"], said["peer"])] = None
    return [{"netdev": netdev, "host": host, "peer": peer} for netdev, host, peer in sorted(found)]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "root": {"type": "path", "default": "/"},
            "seconds": {"type": "float", "default": 6},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    with failing(module):
        facts = HostView(runner(module), root).fabric()
    wires: dict[Any, tuple[str, bytes]] = {}
    try:
        for port in cabling.up_cages(facts).values():
            for netdev in port["netdevs"]:
                if netdev["up"] and netdev["mac"]:
                    frame = fabric_beacons.beacon(netdev["mac"], module.params["name"], netdev["name"])
                    wires[attach(netdev["name"])] = (netdev["name"], frame)
        heard = listen(wires, module.params["name"], module.params["seconds"]) if wires else []
    except OSError as error:
        module.fail_json(msg=f"the QSFP interfaces cannot be listened on: {error}. Run this as root.")
    finally:
        for wire in wires:
            wire.close()
    tools = [name for name in fabric_bandwidth.BANDWIDTH_TOOLS if module.get_bin_path(name)]
    module.exit_json(changed=False, heard=heard, tools=tools)


if __name__ == "__main__":
    main()
