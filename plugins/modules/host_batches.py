#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put hosts into batches without splitting a cluster; the work is done by the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_batches
short_description: Put hosts into batches without splitting a cluster
version_added: 0.1.0
description:
  - Puts the hosts of the play into batches for C(serial), in the order of the inventory. The hosts of a cluster are in one batch,
    however many they are.
  - Runs on the controller; no host is contacted.
options:
  clusters:
    description: C(clusters) of what M(dgxspark.vllm.plan) returned.
    type: dict
    required: true
  size:
    description: Hosts in a batch, at most.
    type: int
    default: 1
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Put the hosts into batches of four
  dgxspark.vllm.host_batches:
    clusters: "{{ spark_planned.clusters }}"
    size: 4
  run_once: true
  register: batches
"""

RETURN = r"""
batches:
  description: The hosts of each batch.
  returned: success
  type: list
  elements: list
  sample: [["spark-1"], ["spark-2", "spark-3"]]
order:
  description: The hosts in that order.
  returned: success
  type: list
  elements: str
  sample: [spark-1, spark-2, spark-3]
sizes:
  description: The sizes of the batches, as C(serial) takes them.
  returned: success
  type: list
  elements: int
  sample: [1, 2]
"""
