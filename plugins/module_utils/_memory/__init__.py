# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory of an engine: geometry of a model, KV cache, weights, one service, one node, and the verdict of the budget.

_proof, _plan and _fleet may import it; it imports _vllm and _common.
It never knows of hosts or inventories: numbers in, numbers out.
"""
