#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor
short_description: Diagnose hosts from everything that is known about them
version_added: 0.1.0
description:
  - Puts together the findings of the plan, of the comparison of running engines with it, of what was changed since it was deployed, of
    the placement of services and of the checks of a running host, and prints them with their fixes, the worst first. What is alike on
    several hosts is said once.
  - It changes nothing, and fails in one line by the worst finding, see O(fail_on).
  - A host that is silent, and a check that could not be made, are findings too.
options:
  plan:
    description: The result of M(dgxspark.vllm.plan) that knows what the hosts say.
    type: dict
    required: true
  asked_from:
    description:
      - Name of a variable that holds, on each host, the result of M(dgxspark.vllm.ask) with the answer C(host)
        (M(dgxspark.vllm.spark_info) with its C(images)).
    type: str
    required: true
  looked_from:
    description:
      - Name of a variable that holds that with the answers C(looked) (M(dgxspark.vllm.spark_info) with V(services), V(engines) and V(health))
        and C(deployed) (M(dgxspark.vllm.compare)).
    type: str
    required: true
  dest:
    description: File on the controller for all of it as JSON. V(-) prints it as one line instead.
    type: str
    default: ''
  fail_on:
    description: The mildest severity that fails; V(never) does not fail.
    type: str
    choices: [error, warning, never]
    default: error
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
seealso:
  - module: dgxspark.vllm.spark_info
  - module: dgxspark.vllm.ask
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Judge the hosts
  dgxspark.vllm.doctor:
    plan: "{{ spark_planned }}"
    asked_from: spark_asked
    looked_from: spark_looked
  run_once: true
"""

RETURN = r"""
counts:
  description: Hosts, hosts that are silent, and findings by severity.
  returned: success
  type: dict
  sample: {hosts: 2, silent: 0, error: 0, warning: 1, info: 4}
msg:
  description: Why it fails, in one line.
  returned: failure
  type: str
  sample: '1 error: doctor.unit_failed'
findings:
  description: All findings, errors first, each with its host.
  returned: success
  type: list
  elements: dict
  sample:
    - host: spark-1
      service: heavy
      rule: doctor.unit_failed
      severity: error
      message: spark-heavy.service has failed (exit-code, 3 restarts).
      fix: 'Read the reason: journalctl -u spark-heavy.service -n 100; then systemctl reset-failed and systemctl start, or site.yml.'
"""
