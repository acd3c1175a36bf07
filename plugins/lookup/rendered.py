# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render a template of a role of this collection, with every value escaped for the syntax of the file."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rendered
short_description: Render a template of a role, escaped for the syntax of its file
description:
  - Returns the text of a unit or of a configuration file from a template of a role of this collection.
  - The end of the template's name tells the syntax of the file, such as V(NAME.service.j2). Every value is escaped for that syntax and
    for its place in the file. A value that the file cannot hold fails the task.
  - The template reads variables of the task by their names. It has the filters and tests of Jinja2 only.
options:
  _terms:
    description: Templates as V(ROLE/TEMPLATE.j2), from the folder C(templates) of the role.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Show the unit of the firewall
  ansible.builtin.debug:
    msg: "{{ lookup('dgxspark.vllm.rendered', 'firewall/spark-firewall.service.j2') }}"
  vars:
    __firewall_nft: /usr/sbin/nft
    __firewall_file: /etc/dgxspark/firewall.nft
"""

RETURN = r"""
_raw:
  description: The text of each file.
  type: list
  elements: str
"""

from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.render import names_in, render_template
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain


class LookupModule(LookupBase):
    """Resolve the variables that a template reads, and render it."""

    def run(self, terms: list[str], variables: Any = None, **kwargs: Any) -> list[str]:
        """Return the text of each template."""
        self.set_options(var_options=variables, direct=kwargs)
        texts = []
        for name in terms:
            try:
                names = sorted(names_in(name))
                values = {key: plain(self._templar.resolve_variable_expression(key)) for key in names}
                texts.append(render_template(name, values))
            except ValueError as error:
                raise AnsibleLookupError(f"rendered: {error}") from error
        return texts
