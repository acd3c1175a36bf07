# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From an inventory to what lies on each host: recipes, selection, checks before the start, units and files; how people see it.

_fleet may import it; it imports all others.
It never contacts a host, and reads no file but those that it is given.
"""
