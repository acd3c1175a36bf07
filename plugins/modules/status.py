#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: status
short_description: Show the status of the services of all hosts
description:
  - Evaluates the answers of the hosts, prints the state of all planned services, the worst first, grouped by state if there are many, and fails with one
    line if a host did not answer or a service is not ready.
  - A service over several hosts has a row for each rank. It is ready when its first rank answers and the units of all ranks on hosts of the play are
    active.
options:
  planned:
    description: RV(dgxspark.vllm.plan#module:hosts).
    type: dict
    required: true
  asked_from:
    description: Name of the variable with the result of M(dgxspark.vllm.ask) on each host.
    type: str
    required: true
  answer:
    description: Name of the answer of M(dgxspark.vllm.spark_info) in that result, with the sections V(services), V(units), V(memory), V(residency) and
      V(starts).
    type: str
    default: services
  show:
    description:
      - V(table) shows a line per service, V(groups) a line per group of equal services, V(none) nothing.
      - V(auto) is the table for at most 20 services, and groups for more.
    type: str
    choices: [auto, table, groups, none]
    default: auto
  dest:
    description: File on the controller for the status as JSON. V(-) prints it as one line instead.
    type: str
    default: ''
  page:
    description: File on the controller for the status as an HTML page. The page loads no other files.
    type: str
    default: ''
  timeline:
    description: File on the controller for the last day of each host as an HTML page; the answer needs the section V(history).
    type: str
    default: ''
  fail_on:
    description: V(down) fails if a host did not answer or a service is not ready, V(warning) also if a service or host has notes. V(never) does not fail.
    type: str
    choices: [down, warning, never]
    default: down
  watch:
    description: Seconds to wait for another query, which RV(again) requests. V(0) for a single query.
    type: float
    default: 0
  looks:
    description: Number of queries with O(watch), V(0) for no end. Only the last one can fail.
    type: int
    default: 0
  look:
    description: Number of this query.
    type: int
    default: 1
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
"""

EXAMPLES = r"""
- name: Show the status
  dgxspark.vllm.status:
    planned: "{{ spark_planned.hosts }}"
    asked_from: spark_answers
  run_once: true
"""

RETURN = r"""
again:
  description: Whether another query follows.
  returned: success
  type: bool
look:
  description: Number of this query.
  returned: success
  type: int
counts:
  description: Number of hosts, hosts without an answer, services, and services by state.
  returned: success
  type: dict
  sample: {hosts: 2, silent: 0, services: 3, unreachable: 0, unknown: 0, down: 0, starting: 0, warning: 1, healthy: 2}
msg:
  description: The reason of the failure in one line.
  returned: failure
  type: str
  sample: '1 of 3 services are not ready: spark-1/heavy'
healthy:
  description: Whether the fleet is healthy according to O(fail_on).
  returned: success
  type: bool
reason:
  description: The problems in one line; empty if there are none.
  returned: success
  type: str
hosts:
  description: Each host with C(state), C(why) it did not answer, C(notes), memory, and guard (V(null) without one).
  returned: success
  type: dict
  sample: {spark-1: {state: healthy, why: '', notes: [], available_gib: 22.1, total_gib: 121.6, guard: null}}
services:
  description: A row for each service or rank, the worst first. C(state) is V(unreachable), V(unknown) (the host could not be queried), V(down),
    V(starting), V(warning) (it serves, with C(notes)), V(healthy), V(unloaded) (on demand) or V(stopped).
  returned: success
  type: list
  sample: [{host: spark-1, service: heavy, state: healthy, notes: [], unit: active, ready: true, residency_gib: 93.5, url: "http://192.168.1.11:8001"}]
"""
