#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: drift
short_description: Report how hosts differ from their deployment, the plan and the lock file
description:
  - Compares the plan with the facts of the hosts and their current generation, and prints the differences, the worst first - changed files, services that
    do not run although they should and the reverse, containers of other images, incomplete models, services that are no longer in the inventory, other
    options than planned, and changed kernels, drivers and releases of DGX OS. Differences between plan and lock file are reported once for all hosts.
  - Messages name files, options and variables, but not their contents, which can be secret.
options:
  plan:
    description: The result of M(dgxspark.vllm.plan) with the facts of the hosts.
    type: dict
    required: true
  asked_from:
    description: Name of the variable with the result of M(dgxspark.vllm.ask) on each host. Its answers are C(host) of M(dgxspark.vllm.spark_info) with
      C(images), and C(deployed) of M(dgxspark.vllm.compare).
    type: str
    required: true
  show:
    description: V(groups) shows equal differences of hosts once, with their fix, V(lines) a line for each difference of each host, V(none) nothing.
    type: str
    choices: [groups, lines, none]
    default: groups
  dest:
    description: File on the controller for the report as JSON. V(-) prints it as one line instead.
    type: str
    default: ''
  fail_on:
    description: Lowest severity that fails the task. Hosts without an answer then fail it, too. V(never) does not fail.
    type: str
    choices: [error, warning, info, never]
    default: never
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
"""

EXAMPLES = r"""
- name: Query the host
  dgxspark.vllm.ask:
    modules:
      host:
        module: dgxspark.vllm.spark_info
        args:
          images: "{{ spark_planned.hosts[inventory_hostname].image_candidates }}"
      deployed:
        module: dgxspark.vllm.compare
        args:
          models: "{{ spark_planned.hosts[inventory_hostname].models }}"
  become: true
  register: spark_asked

- name: Show the differences
  dgxspark.vllm.drift:
    plan: "{{ spark_planned }}"
    asked_from: spark_asked
    fail_on: warning
  run_once: true
"""

RETURN = r"""
counts:
  description: Number of hosts, hosts without an answer, hosts with differences, services, and differences by severity.
  returned: success
  type: dict
  sample: {hosts: 2, silent: 0, drifted: 1, services: 3, error: 0, warning: 1, info: 0}
msg:
  description: The reason of the failure in one line.
  returned: failure
  type: str
  sample: '1 difference on 1 of 2 hosts (spark-1): drift.file_changed'
healthy:
  description: Whether there is no difference from O(fail_on) on; with V(never), no error and no warning.
  returned: success
  type: bool
reason:
  description: The differences in one line; empty if there are none.
  returned: success
  type: str
hosts:
  description: Each host with C(state) (V(same), V(drifted) or V(unreachable)), C(why) it did not answer, and the C(generation) that it was compared with.
  returned: success
  type: dict
  sample: {spark-1: {state: drifted, reached: true, why: '', generation: 3, proven: true, recorded_at: '2026-11-20T12:00:00+00:00'}}
findings:
  description: The findings, the worst first.
  returned: success
  type: list
  sample: [{host: spark-1, service: heavy, rule: drift.file_changed, severity: warning, message: heavy.env was changed., fix: site.yml writes it again.}]
"""
