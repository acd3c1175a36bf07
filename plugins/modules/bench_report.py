#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bench_report
short_description: Show what was measured on all hosts
version_added: 0.1.0
description:
  - Prints tables and charts of what M(dgxspark.vllm.service_bench) measured on the hosts of the play, with what is published
    for the recipes, and findings. Fails when a service could not be measured.
  - A figure that got worse is a finding and fails nothing.
options:
  results_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.service_bench) on the hosts.
    type: str
    required: true
  dest:
    description: File on the controller that gets all of it as JSON; none unless given.
    type: path
    default: ''
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
seealso:
  - module: dgxspark.vllm.service_bench
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Show what was measured
  dgxspark.vllm.bench_report:
    results_from: benched
    dest: /tmp/bench.json
  run_once: true
"""

RETURN = r"""
services:
  description: One entry a measured service.
  returned: always
  type: list
  elements: dict
  sample:
    - where: spark-1/heavy
      service: heavy
      decode_tokens_per_second: 41.5
      baseline_decode_tokens_per_second: 43.0
      ratio: 0.9651
      comparable: true
not_measured:
  description: Services and hosts that were not measured, each with C(where) and C(reason).
  returned: always
  type: list
  elements: dict
  sample: []
findings:
  description: What was found, with C(where).
  returned: always
  type: list
  elements: dict
  sample:
    - where: spark-1/heavy
      rule: bench.decode
      severity: warning
      service: heavy
      message: decode at 512 tokens of heavy is 38 tokens/s; its baseline of 2026-11-02T10:00:00+00:00 is 43 (12% lower)
"""
