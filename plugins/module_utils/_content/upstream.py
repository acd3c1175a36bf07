# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks registries and the hub, from the host, what tags and branches point to: the section C(upstream) of M(dgxspark.vllm.spark_info)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode, urlsplit

from .._common.foreign_text import parse_json
from .._host.host_view import BadRequest, HostView, Request
from .._runtime import http_client
from . import hub_access, image_archive

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

AT_ONCE = 16


def section(_view: HostView, request: Request) -> dict[str, Any]:
    """Return digests of tags and commits of branches, and in C(unknown) the reasons of those that are not known.

    :raises BadRequest: for a model without repository
    """
    options = request.params["upstream"] or {}
    timeout, hub = options.get("timeout", 5.0), options.get("endpoint", "")
    refs = list(dict.fromkeys(options.get("images", [])))
    models = {f"{model.get('repo')}@{model.get('revision') or 'main'}": model for model in options.get("models", [])}
    for model in models.values():
        if not model.get("repo"):
            raise BadRequest(f"upstream.models: every entry needs 'repo', ORG/NAME; {model!r} has none")
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        digests = pool.map(lambda ref: ask_registry(ref, timeout), refs)
        commits = pool.map(lambda model: ask_hub(model, hub, timeout), models.values())
        answers = dict(zip(refs, digests)), dict(zip(models, commits))
    images, revisions = ({name: value for name, (value, _why) in group.items() if value} for group in answers)
    unknown = [why for group in answers for _value, why in group.values() if why]
    return {"images": images, "models": revisions, "unknown": unknown}


def head(url: str, headers: dict[str, str], timeout: float) -> tuple[int, dict[str, str]]:
    """Request the headers of an address; a redirect is an answer too. Raises OSError, ValueError without an answer."""
    reply = http_client.fetch(url, "HEAD", headers, timeout=timeout, proxies=True)
    return reply.status, reply.headers


def ask_registry(ref: str, timeout: float) -> tuple[str | None, str]:
    """Return the digest of a tag, or None and why it is not known. timeout: seconds of each request."""
    url, accept = manifest_url(ref), {"Accept": ACCEPT}
    registry = urlsplit(url).netloc
    try:
        status, headers = head(url, accept, timeout)
        challenge = next((value for name, value in headers.items() if name.lower() == "www-authenticate"), "")
        # The registry may give a token to everyone.
        if status == 401 and (place := token_url(challenge, ref)):
            answer = parse_json(http_client.fetch(place, timeout=timeout, proxies=True).body, urlsplit(place).netloc)
            token = answer.get("token") or answer.get("access_token")
            if token:
                status, headers = head(url, {**accept, "Authorization": f"Bearer {token}"}, timeout)
    except (OSError, ValueError, AttributeError) as error:
        return None, f"{ref}: {registry}: {getattr(error, 'reason', error)}"
    digest = named(headers, "docker-content-digest", DIGEST) if status == 200 else None
    return digest, "" if digest else f"{ref}: {registry} answered {status}"


def ask_hub(model: dict[str, Any], hub: str, timeout: float) -> tuple[str | None, str]:
    """Ask the hub for the commit of a branch. Returns the commit, or None and why it is not known."""
    repo, revision = str(model["repo"]), str(model.get("revision") or "main")
    url = hub_access.url_of(hub, repo, revision)
    try:
        status, headers = head(url, {}, timeout)
    except (OSError, ValueError) as error:
        return None, f"{repo}@{revision}: {urlsplit(url).netloc}: {getattr(error, 'reason', error)}"
    commit = named(headers, "x-repo-commit", COMMIT)
    return commit, "" if commit else f"{repo}@{revision}: {urlsplit(url).netloc} answered {status}"


def registry_of(ref: str) -> tuple[str, str, str]:
    """Split a reference into registry, repository there and tag, as Docker reads it."""
    registry, _slash, path = image_archive.full_name(ref.partition("@")[0]).partition("/")
    path, _colon, tag = path.rpartition(":")
    if registry in ("docker.io", "index.docker.io"):
        registry, path = DOCKER_HUB, path if "/" in path else f"library/{path}"
    return registry, path, tag or "latest"


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
