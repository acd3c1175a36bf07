# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many hosts over time: status, drift, doctor, generations, rollout, cleanup, adoption, support.

Modules and action plugins alone may import it.
It never contacts a host itself.
"""
