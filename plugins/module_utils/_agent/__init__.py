# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The resident program of a host, C(roles/guard/files/spark_agent.py): memory guard, watchdog of the model servers, metrics collector.

_plan and _fleet may import it; it imports _common, _runtime, _host and _proof, and is copied to hosts unchanged.
It never decides on a step: C(guard.py), C(load_guard.py) and C(wedge.py) of _runtime do.
"""
