# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of a plan for the status page of the fleet monitor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import watched_status

DOCUMENTATION = r"""
name: page_plan
short_description: What the status page shows of a plan
version_added: 0.1.0
description: Returns of each host its memory map, errors and warnings, and of its services what a table shows. Arguments, environments and paths
  do not travel to the host of the page.
options:
  _input:
    description: The hosts of a plan, as M(dgxspark.vllm.plan) returns them.
    type: dict
    required: true
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Count the findings that the page shows
  ansible.builtin.debug:
    msg: "{{ (spark_planned.hosts | dgxspark.vllm.page_plan)[inventory_hostname].findings | length }}"
"""

RETURN = r"""
_value:
  description: By host, C(total_gib), C(memory_map), C(findings) and C(services).
  type: dict
  sample: {"spark-1": {"total_gib": 121.6, "memory_map": [], "findings": [], "services": []}}
"""


def page_plan(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what the page shows; DOCUMENTATION has the argument."""
    return watched_status.planned(hosts)


class FilterModule:
    """Filters for the status page."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"page_plan": page_plan}
