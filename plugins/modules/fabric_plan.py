#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the QSFP network of a group of Sparks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_plan
short_description: Plan the QSFP network of a group of Sparks
version_added: 0.1.0
description:
  - Works out from what the hosts of a group say which QSFP interface is to have which address, what is wrong with the
    network that is there, and the environment of engines that span the group.
  - A network that is right already is adopted as it is, whoever set it up. One that is wrong is named, and planned anew when
    O(migrate) says so.
  - Findings are returned and never fail the task.
author:
  - dgxspark.vllm contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
options:
  hosts:
    description:
      - The hosts of the group by name, the head first.
      - Each has C(fabric) (RV(dgxspark.vllm.spark_info#module:spark.fabric)), and may have C(management_address), C(heard) and
        C(tools) (of RV(dgxspark.vllm.spark_info#module:cabling)) and C(addresses), the ones that are given, CIDR by interface.
    type: dict
    required: true
  network:
    description: IPv4 network that the subnets of new addresses are cut from, one a rail.
    type: str
    default: 192.168.100.0/22
  subnets:
    description: Subnets that are given instead, in the order of rails.
    type: list
    elements: str
    default: []
  first_host:
    description: Number of the first host of the group in each subnet.
    type: int
    default: 10
  mtu:
    description: MTU of all QSFP interfaces.
    type: int
    default: 9000
  migrate:
    description: Plan to repair a network that is wrong and was not set up by this collection.
    type: bool
    default: false
  relay:
    description: In a ring of four or more, plan routes to hosts that are no neighbours.
    type: bool
    default: false
  topology:
    description: What the hosts are cabled to, where it cannot be seen.
    type: str
    choices: [auto, direct, switch, ring]
    default: auto
seealso:
  - module: dgxspark.vllm.spark_info
  - module: dgxspark.vllm.fabric_check
"""

EXAMPLES = r"""
- name: Plan the fabric of a pair
  dgxspark.vllm.fabric_plan:
    hosts:
      spark-1: "{{ {'fabric': hostvars['spark-1'].host.spark.fabric, 'heard': hostvars['spark-1'].host.cabling.heard} }}"
      spark-2: "{{ {'fabric': hostvars['spark-2'].host.spark.fabric, 'heard': hostvars['spark-2'].host.cabling.heard} }}"
  register: fabric

- name: Show the environment of engines on this host
  ansible.builtin.debug:
    var: fabric.hosts[inventory_hostname].environment.mp
"""

RETURN = r"""
topology:
  description: V(direct), V(switch), V(ring), V(line) (a ring without its last cable), or V(none) when not all hosts are joined.
  returned: success
  type: str
  sample: direct
ready:
  description: Whether engines can use the network as it is.
  returned: success
  type: bool
rails:
  description: Each rail with its C(subnet) and C(ends) by host.
  returned: success
  type: list
  elements: dict
  sample:
    - name: rail0
      subnet: 192.168.100.0/24
      ends:
        spark-1: {cage: 0, netdev: enp1s0f0np0, rdma: rocep1s0f0, present: "", address: 192.168.100.10/24}
cables:
  description: Pairs of host and cage that reach each other.
  returned: where RV(topology) is V(line) or V(none), so that there are no rails
  type: list
  elements: list
  sample: [[[spark-1, 0], [spark-2, 1]]]
ports:
  description:
    - What each port is joined to, by host and cage, V(joined) to a port of the group, V(outside) of it, V(silent) (a link, and nobody
      heard), or V(dark).
  returned: success
  type: dict
  sample: {"spark-1": {"0": joined, "1": dark}}
wrong:
  description:
    - C(cables), those that are not where they belong, C(missing), where they belong and are not, each by its two ends, host and cage; and C(ends), ports
      that lead to nobody of the group though they should.
  returned: success
  type: dict
  sample: {"cables": [], "missing": [[[spark-2, 1], [spark-1, 0]]], "ends": []}
hosts:
  description: What concerns each host.
  returned: success
  type: dict
  contains:
    action:
      description:
        - V(keep), V(configure) (nothing is there, or it is ours), V(migrate) or V(refuse) (wrong, and not asked to repair).
      type: str
      returned: always
    apply:
      description: Whether the host differs from RV(hosts.netplan) now.
      type: bool
      returned: always
    rails:
      description: Its rails with interface, RoCE device, address, MTU and the addresses of the peers.
      type: list
      elements: dict
      returned: always
    netplan:
      description: The netplan document to be written; empty when none is.
      type: dict
      returned: always
    set_aside:
      description: Files of others that are replaced by it.
      type: list
      elements: str
      returned: always
    restore:
      description: Commands that bring back what the interfaces have now.
      type: list
      elements: list
      returned: always
    relay:
      description: Interfaces between which the host is to forward, C(from) and C(to).
      type: list
      elements: dict
      returned: where O(relay) is set and there is one
    pings:
      description: What M(dgxspark.vllm.fabric_check) is to send from this host.
      type: list
      elements: dict
      returned: always
    netdev:
      description: The interface that an engine is found by. Like the next three it rests on what the host has once the
        plan is carried out, so it is the same before and after; empty where the network is to stay unusable.
      type: str
      returned: always
    address:
      description: The address on it, which an engine is told as C(VLLM_HOST_IP).
      type: str
      returned: always
    environment:
      description:
        - Environment of engines that span the group, C(mp) and C(ray) by executor; C(per_host), the variables that Ray must
          not copy from the head to the workers; C(sources), why each is there.
      type: dict
      returned: always
    firewall:
      description:
        - C(fabric), the interfaces that peers come in by, and C(peers), the networks that they come from, as the role
          firewall wants them.
      type: dict
      returned: always
findings:
  description: What is wrong or worth knowing.
  returned: success
  type: list
  elements: dict
report:
  description: The findings as lines of text, errors first.
  returned: success
  type: list
  elements: str
misplugged:
  description: Those lines of RV(report) that are about plugs in wrong ports and the order of hosts, which nothing that is written mends.
  returned: success
  type: list
  elements: str
bandwidth_tests:
  description: Probes of the bandwidth with the command lines of both sides. Empty without a program that all hosts have.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import fabric


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "hosts": {"type": "dict", "required": True},
            "network": {"type": "str", "default": "192.168.100.0/22"},
            "subnets": {"type": "list", "elements": "str", "default": []},
            "first_host": {"type": "int", "default": 10},
            "mtu": {"type": "int", "default": 9000},
            "migrate": {"type": "bool", "default": False},
            "relay": {"type": "bool", "default": False},
            "topology": {"type": "str", "choices": list(fabric.TOPOLOGIES), "default": "auto"},
        },
        supports_check_mode=True,
    )
    options = {name: value for name, value in module.params.items() if name != "hosts"}
    settings = fabric.Settings(**{**options, "subnets": tuple(options["subnets"])})
    bare = [name for name, entry in module.params["hosts"].items() if not isinstance((entry or {}).get("fabric"), dict)]
    if bare:
        module.fail_json(msg=f"hosts without the facts of spark_info: {', '.join(bare)}")
    try:
        plan = fabric.plan(module.params["hosts"], settings)
    except ValueError as error:
        module.fail_json(msg=str(error))
    wrong = [found for found in plan["findings"] if found["rule"] in fabric.MISPLUGGED and found["severity"] == "error"]
    module.exit_json(changed=False, report=fabric.lines(plan["findings"]), misplugged=fabric.lines(wrong), **plan)


if __name__ == "__main__":
    main()
