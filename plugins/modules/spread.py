#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spread
short_description: Plan which node sends which image and model to which
version_added: 0.1.0
description:
  - Joins what the hosts of the play said by M(dgxspark.vllm.spark_info) with V(distribution), and says what each of them does next. No host is
    contacted.
  - With O(step=survey) it names for each image and snapshot that some host lacks the one host that brings it into the site when
    nobody has it, the files that are to be read before they are sent, and the hosts that have no room.
  - With O(step=round) it says who takes what from whom. Every source sends a thing to one host at a time, so the sources double
    from round to round. Hosts on a fabric of their own get one copy over the LAN and pass it on over the fabric.
options:
  step:
    description: What to say.
    type: str
    choices: [survey, round]
    required: true
  looks_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.spark_info) with V(distribution) on the hosts.
    type: str
    required: true
  keys_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.spread_access) on the hosts, before the first round.
    type: str
    default: ''
  got_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.transfer) on the hosts, after a round.
    type: str
    default: ''
  read_from:
    description:
      - Name of a variable that holds a result of M(dgxspark.vllm.transfer) on the hosts that read again what came wrong from
        them, after a round.
    type: str
    default: ''
  state:
    description: RV(state) of the survey, then of the round before.
    type: dict
    default: {}
  verify:
    description:
      - V(moved) has files read that are to be sent and were never verified, and those that changed since. V(all) has every file
        read on every host.
    type: str
    choices: [moved, all]
    default: moved
  reserve_gb:
    description: Gigabytes that stay free on every disk.
    type: float
    default: 10
  again:
    description: Whether this is a further survey of the same run, which repeats no notes.
    type: bool
    default: false
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Show what is missing on which host
  dgxspark.vllm.spread:
    step: survey
    looks_from: spread_looked
  run_once: true
  register: spread_surveyed

- name: Plan the next round of transfers
  dgxspark.vllm.spread:
    step: round
    looks_from: spread_looked
    got_from: spread_got
    state: "{{ spread_round.state | default(spread_surveyed.state) }}"
  run_once: true
  register: spread_round
"""

RETURN = r"""
hosts:
  description:
    - What each host is to do. After a survey what it brings into the site (C(fetch_images), C(fetch_models)), what it reads
      (C(verify)), whether it takes part (C(moving)), and why it cannot (C(refused)). In a round what it takes (C(take)), what it
      reads because it came wrong from there (C(read)), and what it has given up (C(given_up)).
  returned: success
  type: dict
  sample:
    spark-2:
      take:
        - key: Qwen/Qwen3-8B@main
          source: spark-1
          name: Qwen/Qwen3-8B@main
          links: [{kind: fabric, own: 192.168.100.11, source: 192.168.100.10}]
      read: []
      given_up: ''
things:
  description: What there is to know of each thing that some host lacks.
  returned: after a survey
  type: dict
lines:
  description: What is about to be done, for a person.
  returned: after a survey
  type: list
  elements: str
ready:
  description: Whether rounds can begin.
  returned: after a survey
  type: bool
moves:
  description: Whether there is anything to do at all.
  returned: after a survey
  type: bool
state:
  description: Who has what, what was sent and what failed.
  returned: success
  type: dict
last:
  description: Whether nothing is left to send or to read.
  returned: in a round
  type: bool
access:
  description:
    - For each host its peers, the addresses that it listens on and the images that it may give, for
      M(dgxspark.vllm.spread_access).
  returned: in a round, with O(keys_from)
  type: dict
"""
