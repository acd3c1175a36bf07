"""Receipts say what was deployed and what was measured."""

from __future__ import annotations

import json


def test_receipts(host):
    names = ["heavy", "fast"] if host.backend.get_hostname() == "spark-1" else ["gemma4"]
    with host.sudo():
        for name in names:
            receipt = json.loads(host.file(f"/var/lib/dgxspark/receipts/{name}.json").content_string)
            assert receipt["service"] == name
            assert receipt["deployed"]["image"]["id"].startswith("sha256:")
            assert receipt["deployed"]["argv"][0] == "/usr/bin/docker"
            assert receipt["measured"]["checks"]["completion"] is True
            assert receipt["measured"]["checks"]["tools"] is True
            assert receipt["measured"]["residency_gib"] > 5
