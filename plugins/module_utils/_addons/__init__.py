# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The add-on services: speech, Ollama, gateway, clients, monitoring, watchdog, fleet monitor.

_plan and _fleet may import it; it imports _cluster and what stands below.
It never knows how an engine is planned.
"""
