#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tune
short_description: Keep the trials of a service that is tuned
description:
  - Lists the variants of a service, decides which of them is tried next, keeps what was measured, and chooses the fastest. The playbook
    C(dgxspark.vllm.tune) deploys and measures them.
  - The trials are kept in C(.spark/tune) of the inventory folder, so that an interrupted run goes on.
options:
  step:
    description: V(start) lists the variants. V(judge) decides whether one is tried. V(keep) keeps its result. V(choose) returns the best one. V(finish)
      shows all, and keeps the best one in the inventory with O(write).
    type: str
    choices: [start, judge, keep, choose, finish]
    required: true
  service:
    description: Name of the service.
    type: str
    required: true
  settings:
    description: C(spark_tune) of the inventory.
    type: dict
    default: {}
  levers:
    description: C(tune_levers) of C(playbooks/vars/tune_levers.yml).
    type: list
    elements: dict
    required: true
  planned:
    description: RV(dgxspark.vllm.plan#module:hosts) with the variant, with V(start) without one.
    type: dict
    default: {}
  variant:
    description: Name of the variant.
    type: str
    default: ''
  measured:
    description: Result of M(dgxspark.vllm.service_bench), with V(keep).
    type: dict
    default: {}
  failure:
    description: Why O(variant) failed, with V(keep) and V(choose), or has no plan, with V(judge).
    type: str
    default: ''
  write:
    description: Whether V(finish) writes C(spark_tuned) into the variables of the host in the inventory.
    type: bool
    default: false
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    support: full
  idempotent:
    support: none
"""

EXAMPLES = r"""
- name: List the variants of a service
  dgxspark.vllm.tune:
    step: start
    service: heavy
    planned: "{{ planned.hosts }}"
    levers: "{{ tune_levers }}"
  register: started
"""

RETURN = r"""
variants:
  description: Names and changed options, the service as it is first.
  returned: with O(step=start)
  type: list
  sample: [{name: present, args: {}}, {name: chunk-16384, args: {max-num-batched-tokens: 16384}}]
interrupted:
  description: Whether an earlier run has left a variant on the host.
  returned: with O(step=start)
  type: bool
args:
  description: Changed options of that variant, or of the best one.
  returned: with O(step=start) and O(step=choose)
  type: dict
go:
  description: Whether the variant is tried.
  returned: with O(step=judge)
  type: bool
best:
  description: The variant that is kept; V(present) is the service as it is.
  returned: with O(step=choose)
  type: str
kept:
  description: The variant that stays on the host.
  returned: with O(step=finish)
  type: str
tuned:
  description: C(spark_tuned) of the host with it.
  returned: with O(step=finish)
  type: dict
"""
