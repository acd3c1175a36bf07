# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Views of a planned service: the fields that a module reads, or that a generation keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._proof import service_arguments

_PROOF = tuple(key for key in service_arguments.PROVED if key != "cache_dir")
_STARTED = ("argv", "env", "parts", "fingerprint")
_PREDICTED = ("speed", "kv_tiers")

VIEWS: dict[str, tuple[str, ...]] = {
    # M(dgxspark.vllm.spark_info) asks for an answer, compares the engine with it, and reads logs and caches.
    "report": tuple(service_arguments.SERVICE),
    # M(dgxspark.vllm.service_proof) asks for an answer too, and says in the receipt how the engine was started.
    "proof": _PROOF,
    # A generation keeps what proves and drains a service; its units, which it keeps as files, say how it is started. Predictions change
    # with releases; its receipts have measured speeds.
    "record": (
        *(key for key in _PROOF if key not in (*_STARTED, *_PREDICTED)),
        "start_timeout",
        "gateway",
        "state",
        "lock",
    ),
    # M(dgxspark.vllm.spark_info) asks for an answer only.
    "status": ("name", "probe"),
    # M(dgxspark.vllm.explain) reads logs.
    "explain": ("name", "unit", "container", "probe"),
    # M(dgxspark.vllm.support_bundle) reads logs and metrics.
    "support": ("name", "unit", "url"),
}
"""The fields of a planned service by view. Services of a generation lack some of them."""


def view(services: Iterable[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the fields of planned services that a view defines. Raises KeyError for an unknown view."""
    keys = VIEWS[name]
    return [{key: service[key] for key in keys if key in service} for service in services]
