# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of a group: QSFP fabric, clusters and their ranks, Ray, sockets and firewalls.

_proof, _addons and all above may import it; it imports what stands below but _memory.
It never contacts a host.
"""
