# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sections of M(dgxspark.vllm.spark_info) that no plan reads. Modules that only gather facts do not carry their code to hosts."""

from __future__ import annotations

from functools import partial
from typing import Any

from .._host.host_view import HostView, Request
from . import host_report


def _section(name: str, view: HostView, request: Request) -> Any:
    """Return the section of a name; its code is imported only now.

    Ansible sends a module with the files of its import statements, so a table of names would send nothing.
    """
    if name == "images":
        from .._content import image_looks, image_probe

        return image_looks.section(view, request, image_probe.asker)
    if name in ("services", "starts"):
        from .._proof import service_status

        return (service_status.services if name == "services" else service_status.starts)(view, request)
    if name == "model_files":
        from .._content import model_files

        return model_files.section(view, request)
    if name == "ray":
        from .._cluster import ray_cluster

        return ray_cluster.section(view, request)
    if name == "adoption":
        from . import unmanaged

        return unmanaged.section(view, request)
    if name == "history":
        from . import unit_history

        return unit_history.section(view, request)
    if name == "engines":
        from .._proof import engines

        return engines.section(view, request)
    if name == "health":
        from . import host_health

        return host_health.section(view, request)
    if name == "distribution":
        from .._content import distribution

        return distribution.section(view, request)
    if name == "upstream":
        from .._content import upstream

        return upstream.section(view, request)
    from .._cluster import cable_probe

    return cable_probe.section(view, request)


_NAMES = (
    "images",
    "model_files",
    "ray",
    "adoption",
    "services",
    "starts",
    "history",
    "engines",
    "health",
    "distribution",
    "upstream",
    "cabling",
)
SECTIONS: host_report.Sections = {name: partial(_section, name) for name in _NAMES}
"""Sections that are results themselves."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    **host_report.ARGUMENTS,
    "gather": {**host_report.ARGUMENTS["gather"], "choices": [*host_report.FACTS, *SECTIONS]},
    "probe_images": {"type": "bool", "default": False},
    "probe_timeout": {"type": "int", "default": 120},
    "models": {"type": "list", "elements": "dict", "default": []},
    "verify": {"type": "bool", "default": False},
    "ray": {
        "type": "dict",
        "options": {
            "container": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
        },
    },
    "adopting": {"type": "list", "elements": "dict", "default": []},
    "services": {"type": "list", "elements": "dict", "default": []},
    "timeout": {"type": "float", "default": 10},
    "run_dir": {"type": "path", "default": "/run/dgxspark"},
    "os_reserve_gib": {"type": "float"},
    "log_lines": {"type": "int", "default": 500},
    "ask_services": {"type": "bool", "default": True},
    "answer_timeout": {"type": "float", "default": 30},
    "distribution": {"type": "dict"},
    "cabling": {
        "type": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "seconds": {"type": "float", "default": 6},
        },
    },
    "upstream": {"type": "dict"},
}
"""Arguments of M(dgxspark.vllm.spark_info), in Ansible's form."""
