# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of Ray's container and folders on a host. Hosts compile this file at each run, so it imports nothing."""

from __future__ import annotations

SESSION = "session"
"""Folder of a service that containers mount: Ray opens it to every user of the host; the folder above it belongs to root."""


def container_name(container: str) -> str:
    """Return the name of Ray's container for an engine."""
    return f"{container}-ray"
