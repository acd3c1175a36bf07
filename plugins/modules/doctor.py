#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor
short_description: Run all checks on hosts and print findings with their fixes
description:
  - Combines the findings of the plan, of the running engines compared with it, of changes since the deployment, of the placement of
    services and of checks of the running host, and prints them with their fixes, the worst first, equal ones of several hosts once. A host without an
    answer and a check that failed to run are findings, too.
  - It changes nothing, and fails with one line according to O(fail_on).
options:
  plan:
    description: The result of M(dgxspark.vllm.plan) with the facts of the hosts.
    type: dict
    required: true
  asked_from:
    description: Name of the variable with the result of M(dgxspark.vllm.ask) on each host. Its answer is C(host)
      (M(dgxspark.vllm.spark_info) with C(images)).
    type: str
    required: true
  looked_from:
    description: Name of the variable with another such result. Its answers are C(looked) (M(dgxspark.vllm.spark_info) with V(services), V(engines) and
      V(health)) and C(deployed) (M(dgxspark.vllm.compare)).
    type: str
    required: true
  dest:
    description: File on the controller for the findings as JSON. V(-) prints them as one line instead.
    type: str
    default: ''
  fail_on:
    description: Lowest severity that fails the task. V(never) does not fail.
    type: str
    choices: [error, warning, never]
    default: error
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
"""

EXAMPLES = r"""
- name: Show the findings
  dgxspark.vllm.doctor:
    plan: "{{ spark_planned }}"
    asked_from: spark_asked
    looked_from: spark_looked
  run_once: true
"""

RETURN = r"""
counts:
  description: Number of hosts, hosts without an answer, and findings by severity.
  returned: success
  type: dict
  sample: {hosts: 2, silent: 0, error: 0, warning: 1, info: 4}
msg:
  description: The reason of the failure in one line.
  returned: failure
  type: str
  sample: '1 error: doctor.unit_failed'
findings:
  description: The findings, the worst first.
  returned: success
  type: list
  sample: [{host: spark-1, service: heavy, rule: doctor.unit_failed, severity: error, message: spark-heavy.service has failed., fix: Read the reason.}]
"""
