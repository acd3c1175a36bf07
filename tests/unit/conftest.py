# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Properties are tried with the same examples everywhere, however slow the machine; HYPOTHESIS_PROFILE=default tries new ones."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("suite", derandomize=True, deadline=None, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
