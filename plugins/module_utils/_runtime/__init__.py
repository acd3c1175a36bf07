# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs on hosts between plays: commands and HTTP with deadlines, memory, load guard and guard, ranks, wedged engines.

Anybody may import it. Hosts have it installed as the package dgxspark_vllm, next to the programs of the roles.
It never imports anything but C(_common) and the standard library.
"""
