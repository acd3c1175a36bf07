#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs modules on the host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ask
short_description: Run modules on a host and tolerate that it is unreachable
description:
  - Runs modules that only read on a host, one after the other, and returns their results. An unreachable host and a failed module are part of the result,
    so that a report on many hosts can name them, where an ordinary task would remove the host from the play.
options:
  modules:
    description:
      - Modules by the name of their answer. Each has C(module), the full name of a module, and C(args), its arguments.
      - If one does not reach the host, the rest are skipped.
    type: dict
    required: true
notes:
  - Action plugins of the same names as the modules are not used, and module defaults do not apply.
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
"""

EXAMPLES = r"""
- name: Query the host
  dgxspark.vllm.ask:
    modules:
      host:
        module: dgxspark.vllm.spark_info
        args:
          disk_paths: [/srv/huggingface]
  register: asked
"""

RETURN = r"""
reached:
  description: Whether all modules reached the host.
  returned: always
  type: bool
why:
  description: Why the host is unreachable, in one line; empty if it was reached.
  returned: always
  type: str
  sample: 'port 22: Connection timed out'
answers:
  description: The results of the executed modules by name. A failed one has only C(failed) and C(msg).
  returned: always
  type: dict
  sample:
    host:
      changed: false
      spark: {}
began:
  description: When the controller began, in seconds since 1970. RV(began) and RV(ended) bound the error of the host's clock.
  returned: always
  type: float
ended:
  description: When the last answer arrived.
  returned: always
  type: float
"""
