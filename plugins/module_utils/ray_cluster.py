# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ray under an engine that spans Sparks: its command line, its ports, its containers, images that are given it."""

from __future__ import annotations

import hashlib

GCS_PORT = 6379
"""Ray's default."""
IPC = "shareable"
"""The engine's container on the head joins the IPC namespace of Ray's: vLLM passes messages through shared memory."""


def container_name(container: str) -> str:
    """Name Ray's container beside that of an engine."""
    return f"{container}-ray"


def derived_tag(base_id: str, ray_version: str) -> str:
    """Name the image that is made from another one by adding Ray."""
    return f"dgxspark/ray:{hashlib.sha256(f'{base_id} {ray_version}'.encode()).hexdigest()[:12]}"


def mounts(service: str) -> list[str]:
    """Return the options of docker run that let the containers of one host share Ray's session."""
    return ["--volume", f"/run/dgxspark/ray/{service}:/tmp/ray"]


def start_argv(head: bool, address: str, head_address: str) -> list[str]:
    """Return what follows C(ray) on the head, or on a worker."""
    own = ["--node-ip-address", address, "--num-gpus", "1", "--disable-usage-stats", "--block"]
    if head:
        return ["start", "--head", "--port", str(GCS_PORT), "--include-dashboard=false", *own]
    return ["start", "--address", f"{head_address}:{GCS_PORT}", *own]
