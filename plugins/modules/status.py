#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: status
short_description: Show how the services of all hosts are
version_added: 0.1.0
description:
  - Prints one table of all planned services with what the hosts said about them, and fails when one of them is not ready,
    so that its exit code suits cron.
  - A service that spans hosts has a row for each rank. It is ready when its first rank answers and the units of all ranks on
    hosts of the play are active. A rank whose unit is not says what it waits for.
options:
  planned:
    description: RV(dgxspark.vllm.plan#module:hosts).
    type: dict
    required: true
  measured_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.spark_info) on the hosts.
    type: str
    required: true
  answers_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.service_info) on the hosts.
    type: str
    required: true
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Show the status
  dgxspark.vllm.status:
    planned: "{{ spark_planned.hosts }}"
    measured_from: spark_measured
    answers_from: spark_answers
  run_once: true
"""

RETURN = r"""
services:
  description: One row a service, or a rank of one, the ones that are not ready first.
  returned: always
  type: list
  elements: dict
  sample:
    - host: spark-1
      service: heavy
      cluster: null
      rank: 0
      size: 1
      executor: null
      unit: active
      status: ''
      ready: true
      residency_gib: 93.5
      planned_gib: 95.7
"""
