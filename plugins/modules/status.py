#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: status
short_description: Show the status of the services of all hosts
version_added: 0.1.0
description:
  - Judges all planned services by what the hosts said about them, prints them with the worst first, and fails in one line when a host
    did not answer or a service is not ready, so that its exit code suits cron.
  - Many services are shown in groups of alike ones, so that a fleet fits on a screen; few have a line each.
  - A service that spans hosts has a row for each rank. It is ready when its first rank answers and the units of all ranks on
    hosts of the play are active. A rank whose unit is not says what it waits for.
options:
  planned:
    description: RV(dgxspark.vllm.plan#module:hosts).
    type: dict
    required: true
  asked_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.ask) on the hosts.
    type: str
    required: true
  answer:
    description: Name of the answer of M(dgxspark.vllm.spark_info) in it, with the sections V(services), V(units), V(memory), V(residency) and
      V(starts).
    type: str
    default: services
  show:
    description:
      - V(table) is a line a service, V(groups) a line for all that are alike, V(none) shows nothing.
      - V(auto) is the table for at most 20 services, and groups for more.
    type: str
    choices: [auto, table, groups, none]
    default: auto
  dest:
    description: File on the controller for all of it as JSON. V(-) prints it as one line instead.
    type: str
    default: ''
  page:
    description:
      - File on the controller for the status as an HTML page. It needs nothing but itself, and a browser that shows it asks nobody for
        anything.
    type: str
    default: ''
  fail_on:
    description:
      - V(down) fails when a host did not answer or a service is not ready, V(look) also when something is worth a look, V(never) does
        not fail.
    type: str
    choices: [down, look, never]
    default: down
  watch:
    description: Seconds after which there is to be another look, for which the task waits; RV(again) says so. V(0) is a single look.
    type: float
    default: 0
  looks:
    description: Looks of O(watch) in all, V(0) for no end. All but the last one do not fail.
    type: int
    default: 0
  look:
    description: Which of them this is.
    type: int
    default: 1
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
    asked_from: spark_answers
  run_once: true
"""

RETURN = r"""
again:
  description: Whether there is to be another look.
  returned: success
  type: bool
look:
  description: Which look of O(watch) this was.
  returned: success
  type: int
counts:
  description: Hosts, hosts that are silent, services, and services by their state.
  returned: success
  type: dict
  sample: {hosts: 2, silent: 0, services: 3, unreachable: 0, unknown: 0, down: 0, starting: 0, look: 1, healthy: 2}
msg:
  description: Why it fails, in one line.
  returned: failure
  type: str
  sample: '1 of 3 services are not ready: spark-1/heavy'
healthy:
  description: Whether nothing is wrong by O(fail_on).
  returned: success
  type: bool
reason:
  description: What is wrong, in one line, empty when nothing is.
  returned: success
  type: str
hosts:
  description: Each host with its C(state), C(why) it is silent, C(notes), memory and guard, V(null) where it has none.
  returned: success
  type: dict
  sample:
    spark-1: {state: healthy, why: '', notes: [], available_gib: 22.1, total_gib: 121.6, guard: null}
services:
  description:
    - One row a service, or a rank of one, the worst first.
    - C(state) is V(unreachable), V(unknown) (the host could not be asked), V(down), V(starting), V(look) (it serves, C(notes) say what
      is worth a look) or V(healthy).
  returned: success
  type: list
  elements: dict
  sample:
    - host: spark-1
      service: heavy
      state: healthy
      notes: []
      cluster: null
      rank: 0
      size: 1
      executor: null
      unit: active
      status: ''
      ready: true
      residency_gib: 93.5
      planned_gib: 95.7
      url: http://192.168.1.11:8001
      vllm_version: 0.19.0
"""
