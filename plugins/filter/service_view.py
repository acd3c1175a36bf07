# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fields of planned services that a module reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import service_views

DOCUMENTATION = r"""
name: service_view
short_description: Select the fields of planned services for a module
description: Returns the fields of planned services that a module reads, so that the host does not receive other parts of the plan.
options:
  _input:
    description: The services of a host, as M(dgxspark.vllm.plan) returns them.
    type: list
    elements: dict
    required: true
  view:
    description: The reader. V(report) is M(dgxspark.vllm.spark_info), V(proof) M(dgxspark.vllm.service_proof), V(record)
      M(dgxspark.vllm.generation), V(status) M(dgxspark.vllm.spark_info) with V(services) and V(starts), V(explain)
      M(dgxspark.vllm.explain), and V(support) M(dgxspark.vllm.support_bundle).
    type: str
    choices: [report, proof, record, status, explain, support]
    required: true
"""

EXAMPLES = r"""
- name: Look at the engines
  dgxspark.vllm.spark_info:
    gather: [engines]
    services: "{{ spark_plan.services | dgxspark.vllm.service_view('report') }}"
"""

RETURN = r"""
_value:
  description: The services with the keys of the view.
  type: list
  elements: dict
  sample: [{"name": "heavy", "unit": "spark-heavy.service", "url": "http://127.0.0.1:8001"}]
"""


def service_view(services: Sequence[Mapping[str, Any]], view: str) -> list[dict[str, Any]]:
    """Return the view; DOCUMENTATION has the arguments."""
    if view not in service_views.VIEWS:
        names = ", ".join(service_views.VIEWS)
        raise AnsibleFilterError(f"service_view: there is no view {view!r} of a planned service; take one of {names}")
    return service_views.view(services, view)


class FilterModule:
    """Filters for planned services."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"service_view": service_view}
