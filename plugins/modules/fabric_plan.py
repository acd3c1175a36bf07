#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_plan
short_description: Plan the QSFP network of a group of Sparks
description:
  - Works out from what the hosts of a group say which QSFP interface is to have which address, what is wrong with the network that is there, and the
    environment of engines that span the group. A network that is right already is adopted as it is. One that is wrong is named, and planned anew when
    O(migrate) says so. Findings are returned and never fail the task.
  - With O(dest) it writes C(fabric.json) and C(fabric.html) on the controller, in check mode too. The page lists the networks of all clusters
    of the inventory folder, each as it was last planned, with the last figures. A new plan leaves out figures of cables that have changed since.
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
options:
  hosts:
    description: The hosts of the group by name, the head first. Each has C(fabric) (of RV(dgxspark.vllm.spark_info#module:spark)), and may have
      C(management_address), C(heard) and C(tools) (of RV(dgxspark.vllm.spark_info#module:cabling)) and C(addresses), the given ones, CIDR by interface.
      Without hosts nothing is planned; figures are added to O(dest).
    type: dict
    default: {}
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
  dest:
    description: Where the plan of the inventory is written, C(plan.json), beside which the page is written; none if empty. A relative path is one of the
      inventory folder.
    type: str
    default: ''
  name:
    description: Name of the cluster on the page.
    type: str
    default: ''
  bandwidth:
    description: RV(dgxspark.vllm.fabric_check#module:bandwidth) of its rails, for the page.
    type: list
    elements: dict
    default: []
  test:
    description: C(cluster.collective) of the plan of a host, the test whose O(results) are given.
    type: dict
  results:
    description: RV(dgxspark.vllm.fabric_check#module:collective) by host, for the page.
    type: dict
    default: {}
  min_gbps:
    description: Gb/s that each program must reach on a rail, and C(all_reduce) over hosts, for the page.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Plan the fabric of a pair
  dgxspark.vllm.fabric_plan:
    hosts:
      spark-1: "{{ {'fabric': hostvars['spark-1'].host.spark.fabric, 'heard': hostvars['spark-1'].host.cabling.heard} }}"
      spark-2: "{{ {'fabric': hostvars['spark-2'].host.spark.fabric, 'heard': hostvars['spark-2'].host.cabling.heard} }}"
    dest: .spark/plan.json
    name: pair
  run_once: true
  register: fabric
"""

RETURN = r"""
topology:
  description: V(direct), V(switch), V(ring), V(line) (a ring without its last cable), or V(none) when not all hosts are joined.
  returned: with O(hosts)
  type: str
ready:
  description: Whether engines can use the network as it is.
  returned: with O(hosts)
  type: bool
rails:
  description: Each rail with its C(subnet) and C(ends) by host.
  returned: with O(hosts)
  type: list
  sample: [{name: rail0, subnet: 192.168.100.0/24, ends: {spark-1: {cage: 0, netdev: enp1s0f0np0, rdma: rocep1s0f0, address: 192.168.100.10/24}}}]
cables:
  description: Pairs of host and cage that reach each other.
  returned: where RV(topology) is V(line) or V(none), so that there are no rails
  type: list
  sample: [[[spark-1, 0], [spark-2, 1]]]
ports:
  description: What each port is joined to, by host and cage, V(joined) to a port of the group, V(outside) of it, V(silent) (a link, and nobody
    heard), or V(dark).
  returned: with O(hosts)
  type: dict
  sample: {"spark-1": {"0": joined, "1": dark}}
wrong:
  description: C(cables), those that are not where they belong, C(missing), where they belong and are not, each by its two ends, host and cage; and C(ends),
    ports that lead to nobody of the group though they should.
  returned: with O(hosts)
  type: dict
  sample: {"cables": [], "missing": [[[spark-2, 1], [spark-1, 0]]], "ends": []}
hosts:
  description:
    - What concerns each host. C(action) is V(keep), V(configure) (nothing is there, or it is ours), V(migrate) or V(refuse) (wrong, and not asked
      to repair). C(apply) tells whether the host differs from C(netplan) now, the document to be written, empty when none is. C(set_aside) are
      files of others that it replaces, C(restore) commands that bring back what the interfaces have now.
    - C(rails) are its rails with interface, RoCE device, address, MTU and the addresses of the peers; C(relay), with O(relay), the interfaces between
      which it is to forward. C(pings) are what M(dgxspark.vllm.fabric_check) is to send from it.
    - Engines are found by the interface C(netdev) and its C(address) (C(VLLM_HOST_IP)), with the C(environment), C(mp) and C(ray) by executor, C(per_host)
      (variables that Ray must not copy to the workers) and C(sources), once the plan is carried out; all are empty where the network is to stay unusable.
    - C(firewall) has C(fabric), the interfaces that peers come in by, and C(peers), their networks, as the role firewall wants them.
  returned: with O(hosts)
  type: dict
findings:
  description: What is wrong or worth knowing.
  returned: with O(hosts)
  type: list
  elements: dict
report:
  description: The findings as lines of text, errors first.
  returned: with O(hosts)
  type: list
  elements: str
misplugged:
  description: Those lines of RV(report) that are about plugs in wrong ports and the order of hosts, which nothing that is written mends.
  returned: with O(hosts)
  type: list
  elements: str
page:
  description: Where the page is.
  returned: with O(dest)
  type: str
  sample: /home/me/sparks/.spark/fabric.html
bandwidth_tests:
  description: Probes of the bandwidth with the command lines of both sides. Empty without a program that all hosts have.
  returned: with O(hosts)
  type: list
  elements: dict
"""
