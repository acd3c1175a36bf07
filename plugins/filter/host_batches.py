# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts in batches that do not split a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_update

DOCUMENTATION = r"""
name: host_batches
short_description: Group hosts into batches without splitting a cluster
description: Puts the hosts of the play into batches for C(serial), in the order of the inventory. The hosts of a cluster are in one batch,
  however many they are.
options:
  _input:
    description: The hosts of the play, C(ansible_play_hosts_all).
    type: list
    elements: str
    required: true
  clusters:
    description: C(clusters) of what M(dgxspark.vllm.plan) returned.
    type: dict
    required: true
  size:
    description: Hosts in a batch, at most.
    type: int
    default: 1
"""

EXAMPLES = r"""
- name: Divide the hosts into batches of four
  ansible.builtin.set_fact:
    batches: "{{ ansible_play_hosts_all | dgxspark.vllm.host_batches(spark_planned.clusters, 4) }}"
  run_once: true
"""

RETURN = r"""
_value:
  description: C(batches) has the hosts of each batch, C(problem) why there are none. That is a size below 1, or a cluster that the play has in part.
  type: dict
  sample: {"batches": [["spark-1"], ["spark-2", "spark-3"]], "problem": ""}
"""


def host_batches(hosts: Sequence[str], clusters: Mapping[str, Mapping[str, Any]], size: Any = 1) -> dict[str, Any]:
    """Divide hosts into batches; ranks of one cluster stay together."""
    names = list(map(str, hosts))
    members = {name: cluster["hosts"] for name, cluster in clusters.items() if set(cluster["hosts"]) & set(names)}
    try:
        most = int(size)
    except (TypeError, ValueError):
        most = 0
    if most < 1:
        return {"batches": [], "problem": f"the size of a batch is {size}; it must be 1 or more."}
    try:
        return {"batches": host_update.batches(names, members, most), "problem": ""}
    except ValueError as error:
        return {"batches": [], "problem": str(error)}


class FilterModule:
    """Filters for the hosts of a run."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"host_batches": host_batches}
