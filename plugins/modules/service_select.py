#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the services that a run is about; the work is done by the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_select
short_description: Find the services that a run is about
version_added: 0.1.0
description:
  - Takes names of services as a person gives them and says which of them are on which host of the play.
  - Refuses names that the inventory does not have, services of hosts outside the play, and engines that span hosts of which the
    play has not all; everything that is wrong is said at once.
  - Runs on the controller; no host is contacted.
options:
  planned:
    description: C(hosts) of what M(dgxspark.vllm.plan) returned.
    type: dict
    required: true
  services:
    description: Names, as a list or as a text with commas; all services of the play's hosts when empty.
    type: raw
    default: ''
  required:
    description: Refuse an empty O(services).
    type: bool
    default: false
  what:
    description: Name of the variable that the names came from, for messages.
    type: str
    default: services
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
seealso:
  - module: dgxspark.vllm.service_state
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Find the services
  dgxspark.vllm.service_select:
    planned: "{{ spark_planned.hosts }}"
    services: heavy,fast
  run_once: true
  register: chosen
"""

RETURN = r"""
hosts:
  description: Names of the chosen services by host, in start order.
  returned: success
  type: dict
  sample: {"spark-1": ["heavy", "fast"]}
"""
