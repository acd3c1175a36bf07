#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a host after an update with what it was; the work is done by the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: update_check
short_description: Compare a host after an update with what it was
version_added: 0.1.0
description:
  - Fails when the GPU is gone, Docker does not answer any more, or a QSFP interface is gone or has another MTU, which writing
    firmware can do.
  - Runs on the controller; no host is contacted.
options:
  before:
    description: C(spark) of M(dgxspark.vllm.spark_info) before.
    type: dict
    required: true
  after:
    description: The same afterwards.
    type: dict
    required: true
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Compare
  dgxspark.vllm.update_check:
    before: "{{ before.spark }}"
    after: "{{ after.spark }}"
"""

RETURN = r"""
changes:
  description: What of kernel, driver and DGX OS is new.
  returned: success
  type: list
  elements: str
  sample: ["driver 580.159.03 -> 580.178.04"]
"""
