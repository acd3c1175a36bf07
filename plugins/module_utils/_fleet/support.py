# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A support bundle: what belongs into it, in the order of its worth, and how it is bounded and packed. No I/O.

Texts are redacted as wholes, before they are cut, so that no secret is left over because a cut went through it.
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
"""Bytes of one file; of a longer one the end is kept."""
LEAST = 4096
"""Bytes below which the end of a file is not worth having."""

AROUND = ("gateway", "speech", "ollama", "hermes", "watchdog", "guard", "fleet_monitor", "monitoring", "exporters")
"""Add-on services that have settings in a folder of their own."""

# Folder and pattern. Secrets, weights and caches are in none of them.
FILES = (
    ("/var/lib/dgxspark/receipts", "*.json"),
    ("/etc/dgxspark/services", "*.json"),
    ("/etc/dgxspark/env", "*.env"),
    ("/run/dgxspark/starts", "*.json"),
    *((f"/etc/dgxspark/{part}", "*") for part in AROUND),
    ("/var/lib/dgxspark/generations", "*.json"),
    ("/var/lib/dgxspark/watchdog", "state.json"),
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
    """Redacted files, bounded in number of bytes; what was cut or did not fit is remembered."""

    def __init__(self, redactor: Redactor, most: int, most_of_one: int = MOST_OF_ONE) -> None:
        self.redactor = redactor
        self.room = most
        self.most_of_one = most_of_one
        self.files: dict[str, bytes] = {}
        self.left_out: list[str] = []

    def add(self, name: str, text: str) -> None:
        """Take a file in; of one that is too long its end."""
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
        """Return what is in the bundle, and what is not."""
        files = {name: len(content) for name, content in self.files.items()}
        body = {"schema": 1, "files": files, "left_out": self.left_out, "redacted": self.redactor.taken}
        return json.dumps(body, indent=1, sort_keys=True) + "\n"

    def pack(self) -> bytes:
        """Return all of it as tar.gz, without times and owners of the host."""
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
    """Name the hosts without a bundle, with the reason."""
    return [f"{host} ({entry.get('why') or 'not asked'})" for host, entry in entries.items() if not entry.get("bundle")]
