# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From an inventory to the files of each host: recipes, selection, checks before the start, units and files; texts and pages.

_fleet may import it; it imports all others.
It never contacts a host, and reads no file without its path as argument.
"""
