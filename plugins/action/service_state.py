# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module that is the first to become root in stop.yml; documented in plugins/modules/service_state.py."""

from __future__ import annotations

from ansible_collections.dgxspark.vllm.plugins.action.spark_info import ActionModule

__all__ = ["ActionModule"]
