# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts about vLLM: its versions and their options, its images, its command line.

All packages above may import it; it imports _common.
It never knows of hosts, of inventories or of memory.
"""
