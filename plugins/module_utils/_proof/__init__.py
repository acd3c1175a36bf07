# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of running engines: readiness, logs, kernels, used memory, receipts, measurements.

_plan and _fleet may import it; it imports _memory, _cluster and what stands below.
It never changes a host but for its receipts.
"""
