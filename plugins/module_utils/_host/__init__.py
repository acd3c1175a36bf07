# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads and changes a host: GB10, Docker, systemd, the files and units that were put there.

_content and all above may import it; it imports _common and _runtime.
It never knows of models or of vLLM.
"""
