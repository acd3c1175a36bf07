#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: discover
short_description: Find DGX Sparks and write their first inventory
description:
  - With O(action=find), tries addresses, machines that announce ssh by mDNS, and neighbours on the QSFP ports of the controller, and
    returns those on which an ssh server answers. Nobody is logged in to.
  - With O(action=write), reads what M(dgxspark.vllm.ask) brought of these machines, names the Sparks, recommends a model for each that
    serves nothing yet, shows all of it, and writes an inventory folder. A file that exists is never changed; the difference is shown.
  - A machine that is silent or slow, or that cannot be logged in to, is not known, and is named with the reason.
options:
  action:
    description: Which of the two.
    type: str
    choices: [find, write]
    required: true
  hosts:
    description: For O(action=find), addresses, names, C(USER@NAME), C(NAME:PORT), ranges C(192.168.1.10-20) and networks C(192.168.1.0/28), also several in
      one text with commas. C(localhost) is the controller itself, without ssh, which is tried by itself where it is a Spark.
    type: list
    elements: str
    default: []
  search:
    description: For O(action=find), whether mDNS and the neighbours on QSFP ports are asked too.
    type: bool
    default: true
  timeout:
    description: For O(action=find), seconds that a machine has for its greeting.
    type: float
    default: 3
  root:
    description: Where C(/sys) of the controller is read. Simulated Sparks show their own there.
    type: path
    default: /
  found:
    description: For O(action=write), what O(action=find) returned.
    type: dict
    default: {}
  asked_from:
    description: For O(action=write), name of a variable with what M(dgxspark.vllm.ask) brought of C(spark) as root, with its section C(adoption).
    type: str
    default: spark_answers
  plain_from:
    description: For O(action=write), likewise of C(spark) without root.
    type: str
    default: ''
  cables_from:
    description: For O(action=write), likewise of C(probe), with V(cabling).
    type: str
    default: ''
  dest:
    description: For O(action=write), the folder of the inventory, relative to the working directory.
    type: str
    default: my-sparks
  user:
    description: For O(action=write), the account that C(group_vars) name, where it was given.
    type: str
    default: ''
  whole:
    description: For O(action=write), fail before anything is written where a machine that was named, not one of a range, is no Spark or is not known.
    type: bool
    default: false
  pick:
    description: For O(action=write), requirements of a recommended model; the keys of C(spark_pick), which C(docs/models.md) lists.
    type: dict
    default: {}
attributes:
  diff_mode:
    support: full
extends_documentation_fragment:
  - dgxspark.vllm.attributes
"""

EXAMPLES = r"""
- name: Find machines with ssh
  dgxspark.vllm.discover:
    action: find
    hosts: [spark-1, 192.168.1.10-20]
  register: found

- name: Write the inventory
  dgxspark.vllm.discover:
    action: write
    found: "{{ found }}"
    dest: my-sparks
"""

RETURN = r"""
candidates:
  description: For O(action=find), machines that can be asked.
  returned: success
  type: list
  sample: [{address: 192.168.1.11, by: range, user: '', port: 0, local: false}]
silent:
  description: For O(action=find), machines that are not known, each with the reason.
  returned: success
  type: list
  sample: [{address: 192.168.1.12, by: named, user: '', port: 0, why: did not answer in 3 s}]
sparks:
  description: For O(action=write), the Sparks with their names, variables as they are in the inventory, and what they said.
  returned: success
  type: list
  sample: [{name: spark-1, variables: {ansible_host: 192.168.1.11}, measured: {}}]
files:
  description: For O(action=write), each file with V(written), V(unchanged) or V(kept), which differs and was left as it is.
  returned: success
  type: dict
  sample: {hosts.yml: written, group_vars/sparks.yml: written}
"""
