# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the facts of a host after an update with earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_update

DOCUMENTATION = r"""
name: update_check
short_description: Compare a host after an update with its state before
description: Reports when the GPU is gone, Docker does not answer any more, or a QSFP interface is gone or has another MTU, which writing firmware can do.
options:
  _input:
    description: C(spark) of M(dgxspark.vllm.spark_info) before the update.
    type: dict
    required: true
  after:
    description: The same afterwards.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Check that GPU and network are unchanged
  ansible.builtin.assert:
    that: (before.spark | dgxspark.vllm.update_check(after.spark)).worse | length == 0
"""

RETURN = r"""
_value:
  description: C(worse) has what is worse, each with its fix; C(changes) what of kernel, driver and DGX OS is new.
  type: dict
  sample: {"worse": [], "changes": ["driver 580.159.03 -> 580.178.04"]}
"""


def update_check(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return C({worse, changes}); DOCUMENTATION has the arguments."""
    worse, changes = host_update.compare(before, after)
    return {"worse": worse, "changes": changes}


class FilterModule:
    """Filters for updates of a host."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"update_check": update_check}
