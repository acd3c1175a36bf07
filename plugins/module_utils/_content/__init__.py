# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models and images as bytes: on disk, from node to node, in bundles, at hubs and registries.

_cluster and all above may import it; it imports _host and what stands below.
It never decides on the contents of a host.
"""
