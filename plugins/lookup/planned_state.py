# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hand a playbook the state document of planned parts."""

from __future__ import annotations

DOCUMENTATION = r"""
name: planned_state
short_description: The state document of planned parts of a host, as the module deploy takes it
description:
  - Returns one document with the accounts, folders, files and units of some parts of a host. A part that is planned as absent has no rows, so
    M(dgxspark.vllm.deploy) removes it. So a playbook deploys several parts with one task.
  - Role variables that are set for the host count, as in the roles themselves.
options:
  _terms:
    description: The parts, V(host), V(service), V(speech), V(ollama), V(watchdog), V(guard), V(firewall), V(gateway), V(clients), V(exporters), V(monitoring)
      and V(fleet_monitor).
    type: list
    elements: str
    required: true
  plan:
    description: The host's part of RV(dgxspark.vllm.plan#module:hosts). Empty for a host that is no Spark.
    type: raw
    default: {}
  addons:
    description:
      - The host's part of RV(dgxspark.vllm.plan#module:addons).
      - The document of a role that has a key of its own there, such as V(gateway), is made from the variables of the task where it has no such key.
    type: raw
    default: {}
"""

EXAMPLES = r"""
- name: Deploy the watchdog and the guard
  dgxspark.vllm.deploy:
    documents: ["{{ lookup('dgxspark.vllm.planned_state', 'watchdog', 'guard', plan=spark_plan, addons=spark_addons) }}"]
  become: true
"""

RETURN = r"""
_raw:
  description: One document with its C(parts); each row names its part.
  type: list
  elements: dict
"""

from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import merge
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import addon_documents, host_documents
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import own_variables
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

PARTS = ("host", "service", "speech", "ollama", "watchdog", "guard", "firewall", *addon_documents.ROLES)


class LookupModule(LookupBase):
    """Ask the engine."""

    def run(self, terms: list[str], variables: Any = None, **kwargs: Any) -> list[dict[str, Any]]:
        """Return one document with the rows of some parts."""
        self.set_options(var_options=variables, direct=kwargs)
        unknown = [term for term in terms if term not in PARTS]
        if unknown:
            raise AnsibleLookupError(f"planned_state: {', '.join(unknown)}: known are {', '.join(PARTS)}")
        role_variables = own_variables(variables or {}, self._templar.template)
        plan, addons = (plain(self.get_option(name)) or {} for name in ("plan", "addons"))
        unplanned = [role for role in addon_documents.ROLES if role in terms and role not in addons]
        read = self._loader.get_text_file_contents if self._loader else addon_documents.read_file
        try:
            planned = host_documents.host_document(plan, addons, role_variables, read).of_parts(terms)
            alone = [addon_documents.addon_document(role, {}, role_variables, read) for role in unplanned]
        except ValueError as error:
            raise AnsibleLookupError(f"planned_state: {error}") from error
        return [{**merge([planned, *alone]).to_dict(), "parts": terms}]
