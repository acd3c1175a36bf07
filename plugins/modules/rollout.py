#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide the order of a rollout, and when it stops; the work is done by the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout
short_description: Decide the order of a rollout, and when it stops
description:
  - The decisions of C(rollout.yml) and C(rollback.yml), based on the answers of the hosts in their variables.
  - The hosts of a cluster are changed and rolled back together.
  - Runs on the controller; no host is contacted.
options:
  step:
    description: V(order) says who comes when, and leaves out whoever runs what is wanted already. V(gate) fails on a host whose services became slower than
      before the change. V(judge) says which hosts of a batch go back, and whether the rollout stops. V(summary) shows who runs what.
    type: str
    choices: [order, gate, judge, summary]
    required: true
  planned:
    description: C(hosts) of what M(dgxspark.vllm.plan) returned.
    type: dict
    default: {}
  addons:
    description: C(addons) of what M(dgxspark.vllm.plan) returned.
    type: dict
    default: {}
  clusters:
    description: C(clusters) of what M(dgxspark.vllm.plan) returned; with O(step=judge), hosts by cluster. Left out with O(step=order), the hosts go
      back, and clusters are those of their generations.
    type: dict
  canary:
    description: Hosts or clusters that come first, each alone, as a list or a text with commas. The first one that has something to do when empty,
      nobody when it is V(none).
    type: raw
    default: ''
  batch:
    description: How many hosts at once, a number or a share such as V(25%).
    type: raw
    default: 1
  bench:
    description: With O(step=order), the settings of the measurement, which are checked before any host is touched.
    type: dict
    default: {}
  all_hosts:
    description: Leave nobody out.
    type: bool
    default: false
  group:
    description: Group of the hosts, for the summary.
    type: str
    default: sparks
  results:
    description: With O(step=gate), what M(dgxspark.vllm.service_bench) returned.
    type: list
    elements: dict
    default: []
  percent:
    description: With O(step=gate), how much slower is allowed; with O(step=judge), how many hosts of a batch may fail.
    type: float
    default: 0.0
  batches:
    description: With O(step=judge), all batches.
    type: list
    elements: list
    default: []
  notes:
    description: With O(step=summary), what is to be said of hosts.
    type: dict
    default: {}
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
"""

EXAMPLES = r"""
- name: Choose the order of the hosts
  dgxspark.vllm.rollout:
    step: order
    planned: "{{ spark_planned.hosts }}"
    addons: "{{ spark_planned.addons }}"
    clusters: "{{ spark_planned.clusters }}"
    canary: spark-1
    batch: 25%
  run_once: true
  register: order
"""

RETURN = r"""
batches:
  description: Hosts by batch.
  returned: when O(step=order)
  type: list
  sample: [[spark-1], [spark-2, spark-3]]
hosts:
  description: Hosts in their order.
  returned: when O(step=order)
  type: list
  elements: str
serial:
  description: Sizes of the batches.
  returned: when O(step=order)
  type: list
  sample: [1, 2]
done:
  description: Hosts that run what is wanted already.
  returned: when O(step=order)
  type: list
  elements: str
left_out:
  description: Hosts that cannot be reached, and those of their clusters.
  returned: when O(step=order)
  type: list
  elements: str
reasons:
  description: Why each host failed, by host.
  returned: when O(step=judge)
  type: dict
back:
  description: Hosts that go back.
  returned: when O(step=judge)
  type: list
  elements: str
stop:
  description: Whether the rollout stops.
  returned: when O(step=judge)
  type: bool
rows:
  description: Who runs what, a row a service.
  returned: when O(step=summary)
  type: list
  sample: [{"host": "spark-1", "service": "heavy", "image": "vllm/vllm-openai:v0.24.0", "commit": "0123abc", "generation": 3, "proven": true}]
"""
