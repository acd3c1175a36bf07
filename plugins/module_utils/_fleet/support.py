# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Select, redact and pack the files of a support bundle, the most useful first. No I/O.

Texts are redacted before they are cut: a part of a secret would not be recognised.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

from .._common.redaction import Redactor

MOST_OF_ONE = 2 * 2**20
"""Most bytes of one file; only the end of a longer file is kept."""
LEAST = 4096
"""Fewest useful bytes of a file's end."""

ADDONS = ("gateway", "speech", "ollama", "hermes", "watchdog", "guard", "fleet_monitor", "monitoring", "exporters")
"""Add-on services with a folder of settings."""

# Folder and pattern, without secrets, weights and caches.
FILES = (
    ("/var/lib/dgxspark/receipts", "*.json"),
    ("/etc/dgxspark/services", "*.json"),
    ("/etc/dgxspark/env", "*.env"),
    ("/run/dgxspark/starts", "*.json"),
    *((f"/etc/dgxspark/{part}", "*") for part in ADDONS),
    ("/var/lib/dgxspark/generations", "*.json"),
    ("/var/lib/dgxspark/watchdog", "state.json"),
    ("/var/lib/dgxspark/watchdog", "quality.json"),
    ("/var/lib/dgxspark/guard", "state.json"),
    ("/var/lib/dgxspark/watchdog", "*/*/*"),
    ("/var/lib/dgxspark/fleet_monitor", "state.json"),
    ("/etc/dgxspark", "firewall.nft"),
    ("/etc/netplan", "40-cx7.yaml"),
    ("/etc/docker", "daemon.json"),
)

SECRET_PLACES = (
    "/etc/dgxspark/secrets",
    "/root/.cache/huggingface/token",
    "/root/.cache/huggingface/stored_tokens",
    "/srv/huggingface/token",
    "/srv/huggingface/stored_tokens",
)


class Bundle:
    """Redacted files of bounded size. left_out: a text for each file that was cut or left out."""

    def __init__(self, redactor: Redactor, most: int, most_of_one: int = MOST_OF_ONE) -> None:
        self.redactor = redactor
        self.room = most
        self.most_of_one = most_of_one
        self.files: dict[str, bytes] = {}
        self.left_out: list[str] = []

    def add(self, name: str, text: str) -> None:
        """Add a file; only the end of a long file."""
        name = self.redactor.clean(name)
        if len(text) > self.room < LEAST:
            self.left_out.append(f"{name}: left out, {len(text)} characters")
            return
        content = self.redactor.clean(text).encode("utf-8", "replace")
        if not content.strip():
            return
        allowed = min(self.most_of_one, self.room)
        if allowed < min(len(content), LEAST):
            self.left_out.append(f"{name}: left out, {len(content)} bytes")
            return
        if len(content) > allowed:
            self.left_out.append(f"{name}: the last {allowed} of {len(content)} bytes")
            content = content[-allowed:]
            content = content[content.find(b"\n") + 1 :]
        self.room -= len(content)
        self.files[name] = content

    def manifest(self) -> str:
        """Return the list of all files, and of missing ones."""
        files = {name: len(content) for name, content in self.files.items()}
        body = {"schema": 1, "files": files, "left_out": self.left_out, "redacted": self.redactor.taken}
        return json.dumps(body, indent=1, sort_keys=True) + "\n"

    def pack(self) -> bytes:
        """Return the bundle as tar.gz, without times and owners of the host."""
        raw = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as squeezed,
            tarfile.open(fileobj=squeezed, mode="w") as archive,
        ):
            for name, content in {"MANIFEST.json": self.manifest().encode(), **self.files}.items():
                member = tarfile.TarInfo(name.lstrip("/"))
                member.size, member.mode = len(content), 0o600
                archive.addfile(member, io.BytesIO(content))
        return raw.getvalue()


def index(at: str, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the index of the bundles of a run, by host."""
    keys = ("bundle", "bytes", "sha256", "files", "redacted", "left_out", "why")
    return {
        "schema": 1,
        "at": at,
        "hosts": {host: {key: entry[key] for key in keys if key in entry} for host, entry in entries.items()},
    }


def missing(entries: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
    """Return the hosts without a bundle, with the reason."""
    return [f"{host} ({entry.get('why') or 'not asked'})" for host, entry in entries.items() if not entry.get("bundle")]
