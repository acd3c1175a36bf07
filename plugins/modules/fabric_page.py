#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_page
short_description: Keep what was found and measured of the network of a cluster, and write a page of it
version_added: 0.1.0
description:
  - Writes C(fabric.json) and C(fabric.html) on the controller, in the folder of O(dest). The page lists the networks of all clusters of the inventory
    folder, each as it was found out last, with the plugs that are in wrong ports, and the figures that were measured last with their times.
  - What is given is added to what is known. A new plan of a network leaves out figures of what is cabled otherwise by then.
  - Both files are written in check mode too, since no host is changed by them.
options:
  dest:
    description: Where the plan is written, C(plan.json); both files come beside it. A relative path is one of the inventory folder.
    type: str
    required: true
  name:
    description: Name of the cluster.
    type: str
    required: true
  planned:
    description: What M(dgxspark.vllm.fabric_plan) said of it.
    type: dict
  rails:
    description: RV(dgxspark.vllm.fabric_check#module:bandwidth) of its rails.
    type: list
    elements: dict
    default: []
  test:
    description: C(cluster.collective) of the plan of a host, the test whose O(results) are given.
    type: dict
  results:
    description: RV(dgxspark.vllm.fabric_check#module:collective) by host.
    type: dict
    default: {}
  min_gbps:
    description: Gb/s that each program must reach on a rail, and C(all_reduce) over hosts.
    type: dict
    default: {}
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
seealso:
  - module: dgxspark.vllm.fabric_plan
  - module: dgxspark.vllm.fabric_check
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Write the page of the network
  dgxspark.vllm.fabric_page:
    dest: .spark/plan.json
    name: quad
    planned: "{{ fabric_planned }}"
"""

RETURN = r"""
page:
  description: Where the page is.
  returned: success
  type: str
  sample: /home/me/sparks/.spark/fabric.html
"""
