#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spread
short_description: Plan which host takes which image and model from which hosts
description:
  - Combines the answers of the hosts of the play to M(dgxspark.vllm.spark_info) with V(distribution). No host is contacted.
  - O(step=survey) returns for each image and snapshot that a host lacks the one host that downloads it if no host has it, the files to verify before
    they are sent, and the hosts without enough room. O(step=pull) returns what each host takes and from which hosts, the best first. A host serves one
    other host at a time, so the number of sources doubles with each copy. Of hosts on a separate fabric one takes a copy over the LAN, and the others take
    it from there. O(step=review) returns the hosts from which models arrived with wrong digests.
options:
  step:
    description: What to return.
    type: str
    choices: [survey, pull, review]
    required: true
  looks_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.spark_info) with V(distribution) on the hosts.
    type: str
    required: true
  keys_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.spread_access) on the hosts, with O(step=pull).
    type: str
    default: ''
  got_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.transfer) on the hosts, with O(step=review).
    type: str
    default: ''
  things:
    description: RV(things) of the survey, with O(step=pull).
    type: dict
    default: {}
  doubted:
    description: RV(doubted) of the review, with O(step=survey). These hosts verify these models.
    type: dict
    default: {}
  verify:
    description: V(moved) verifies files before they are sent for the first time, and changed files. V(all) verifies every file on every host.
    type: str
    choices: [moved, all]
    default: moved
  reserve_gb:
    description: Gigabytes that stay free on every disk.
    type: float
    default: 10
  again:
    description: Whether this is a further survey of the same run, which does not repeat notes.
    type: bool
    default: false
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
"""

EXAMPLES = r"""
- name: Show what is missing on which host
  dgxspark.vllm.spread:
    step: survey
    looks_from: spread_looked
  run_once: true
  register: spread_surveyed

- name: Plan what each host takes
  dgxspark.vllm.spread:
    step: pull
    looks_from: spread_looked
    keys_from: spread_keys
    things: "{{ spread_surveyed.things }}"
  run_once: true
  register: spread_pull
"""

RETURN = r"""
hosts:
  description: The work of each host. After a survey what it downloads (C(fetch_images), C(fetch_models)), what it verifies (C(verify)), whether it
    takes part (C(moving)), and why it cannot (C(refused)). For a pull what it takes (C(take)), and for M(dgxspark.vllm.spread_access) its
    C(peers), the C(addresses) that it listens on, those on a C(fabric), the C(images) that it may send and what it has (C(ready)).
  returned: with O(step=survey) and O(step=pull)
  type: dict
  sample: {spark-2: {take: [{key: Qwen/Qwen3-8B@main, sources: [{name: spark-1, links: [{kind: fabric, own: 192.168.100.11}]}]}]}}
things:
  description: What is known of each thing that some host lacks.
  returned: with O(step=survey)
  type: dict
lines:
  description: The planned steps, for a person.
  returned: with O(step=survey)
  type: list
  elements: str
ready:
  description: Whether hosts can begin to take things from each other.
  returned: with O(step=survey)
  type: bool
moves:
  description: Whether there is anything to do.
  returned: with O(step=survey)
  type: bool
doubted:
  description: Models that arrived with wrong digests, by the host that sent them.
  returned: with O(step=review)
  type: dict
"""
