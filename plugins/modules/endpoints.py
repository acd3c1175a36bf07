#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoints
short_description: Show the URLs of planned services, with a request to try
description:
  - Prints the endpoints of the hosts of the play - engines and gateways - with the URL from the controller, the URL from the LAN and the
    key file, and a C(curl) command for a chat completion. The command reads the key from its file; no key is printed.
  - An endpoint on loopback is marked, with the C(ssh) command that forwards it to the controller.
  - It contacts no host. A firewall of the plan decides whether the controller reaches a port.
options:
  planned_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.plan).
    type: str
    required: true
  services:
    description: Names of the services to show. If omitted, all of the hosts of the play that are not stopped, and the gateways.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
"""

EXAMPLES = r"""
- name: Show the endpoints
  dgxspark.vllm.endpoints:
    planned_from: spark_planned
  run_once: true
"""

RETURN = r"""
endpoints:
  description: Each endpoint with its C(models), C(host), URLs and C(key_file).
  returned: success
  type: list
  sample:
    - {models: [small], host: spark-1, controller_url: "http://127.0.0.1:8001/v1", lan: "-", key_file: ""}
"""
