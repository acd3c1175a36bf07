# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A platform plugin of vLLM: the CPU build on several nodes under Ray, which it refuses by itself."""

from __future__ import annotations


def register() -> str:
    """Name the platform; vLLM calls this by the entry point C(vllm.platform_plugins)."""
    return "vllm_cpu_ray.platform.CpuRayPlatform"
