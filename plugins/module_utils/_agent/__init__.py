# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The resident program of a host, C(roles/guard/files/spark_agent.py): memory guard, watchdog of the model servers, metrics collector.

What the guard and the watchdog decide is in C(_runtime/guard.py), C(_runtime/load_guard.py) and C(_runtime/wedge.py). It runs on hosts as it
is here, so it imports the standard library, _runtime, _host and _proof.
"""
