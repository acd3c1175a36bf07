# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every module documents. A module says the same key only where its answer is another, or more."""

from __future__ import annotations


class ModuleDocFragment:
    """Shared author and C(attributes)."""

    DOCUMENTATION = r"""
author:
  - dgxspark.vllm contributors (@dgxspark)
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
  diff_mode:
    description: Will return details on what has changed (or possibly needs changing in C(check_mode)), when in diff mode.
    support: none
  idempotent:
    description:
      - When run twice in a row outside check mode, with the same arguments, the second invocation indicates no change.
    support: full
"""

    READ_ONLY = r"""
options: {}
attributes:
  check_mode:
    details:
      - This module does not change anything.
  diff_mode:
    support: N/A
    details:
      - This module does not change anything.
"""
