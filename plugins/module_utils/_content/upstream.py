# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tags and branches stand for at registries and hubs: what to ask for, and what the answers mean. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlencode

DOCKER_HUB = "registry-1.docker.io"
ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
"""An index first: Docker knows an image of several platforms by the digest of its index."""
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")


def registry_of(ref: str) -> tuple[str, str, str]:
    """Split a reference into registry, repository there and tag, as Docker reads it."""
    name, _at, _digest = ref.partition("@")
    first, slash, remainder = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, remainder = DOCKER_HUB, name if slash else f"library/{name}"
    elif first in ("docker.io", "index.docker.io"):
        first, remainder = DOCKER_HUB, remainder if "/" in remainder else f"library/{remainder}"
    path, _slash, leaf = remainder.rpartition("/")
    leaf, _colon, tag = leaf.partition(":")
    return first, f"{path}/{leaf}".lstrip("/"), tag or "latest"


def manifest_url(ref: str) -> str:
    """Return where a registry says what a tag stands for. Docker speaks plain HTTP with the host itself alone."""
    registry, repository, tag = registry_of(ref)
    host = registry.partition(":")[0]
    scheme = "http" if host == "localhost" or host.startswith("127.") else "https"
    return f"{scheme}://{registry}/v2/{repository}/manifests/{tag}"


def token_url(challenge: str, ref: str) -> str | None:
    """Return the address of a registry's tokens, from its C(WWW-Authenticate); None if it asks for a password."""
    kind, _space, parameters = challenge.partition(" ")
    words = dict(re.findall(r'(\w+)="([^"]*)"', parameters))
    if kind.lower() != "bearer" or not words.get("realm", "").startswith("https://"):
        return None
    scope = words.get("scope") or f"repository:{registry_of(ref)[1]}:pull"
    query = {"scope": scope, **({"service": words["service"]} if words.get("service") else {})}
    return f"{words['realm']}{'&' if '?' in words['realm'] else '?'}{urlencode(query)}"


def named(headers: Mapping[str, str], name: str, shape: re.Pattern[str]) -> str | None:
    """Return the digest or the commit that an answer names in a header."""
    text = next((str(value).strip() for key, value in headers.items() if str(key).lower() == name), "")
    return text if shape.fullmatch(text) else None
