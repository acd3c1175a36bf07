# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a launch can run: the rules, and the functions that apply them to launches and repair options.

_plan may import it; it imports _vllm and _common.
It never knows of hosts or inventories.
"""
