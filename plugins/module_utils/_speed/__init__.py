# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The speed of an engine: bytes and operations of a step, the time that they take on a GB10, and ranges for a launch.

_proof, _plan and _fleet may import it; it imports _memory, _vllm and _common.
It never knows of hosts or inventories: configs and arguments in, ranges out.
"""
