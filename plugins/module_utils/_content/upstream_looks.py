# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks registries and the hub, from the host, what tags and branches point to: the section C(upstream) of M(dgxspark.vllm.spark_info)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from .._common.foreign_text import parse_json
from .._host.host_view import BadRequest, HostView, Request
from .._runtime import http_client
from . import hub_access, upstream

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
    """Request the headers of an address; a redirect is an answer too.

    :raises OSError, ValueError: without an answer
    """
    reply = http_client.fetch(url, "HEAD", headers, timeout=timeout, proxies=True)
    return reply.status, reply.headers


def ask_registry(ref: str, timeout: float) -> tuple[str | None, str]:
    """Return the digest of a tag, or None and why it is not known. timeout: seconds of each request."""
    url, accept = upstream.manifest_url(ref), {"Accept": upstream.ACCEPT}
    registry = urlsplit(url).netloc
    try:
        status, headers = head(url, accept, timeout)
        token = _anonymous_token(headers, ref, timeout) if status == 401 else None
        if token:
            status, headers = head(url, {**accept, "Authorization": f"Bearer {token}"}, timeout)
    except (OSError, ValueError, AttributeError) as error:
        return None, f"{ref}: {registry}: {getattr(error, 'reason', error)}"
    digest = upstream.named(headers, "docker-content-digest", upstream.DIGEST) if status == 200 else None
    return digest, "" if digest else f"{ref}: {registry} answered {status}"


def _anonymous_token(headers: dict[str, str], ref: str, timeout: float) -> str | None:
    """Return the token that the registry gives to everyone, or None if it requires a password."""
    challenge = next((value for name, value in headers.items() if name.lower() == "www-authenticate"), "")
    url = upstream.token_url(challenge, ref)
    if not url:
        return None
    answer = parse_json(http_client.fetch(url, timeout=timeout, proxies=True).body, urlsplit(url).netloc)
    token: str | None = answer.get("token") or answer.get("access_token")
    return token


def ask_hub(model: dict[str, Any], hub: str, timeout: float) -> tuple[str | None, str]:
    """Ask the hub for the commit of a branch.

    :returns: the commit, or None and why it is not known
    """
    repo, revision = str(model["repo"]), str(model.get("revision") or "main")
    url = hub_access.url_of(hub, repo, revision)
    try:
        status, headers = head(url, {}, timeout)
    except (OSError, ValueError) as error:
        return None, f"{repo}@{revision}: {urlsplit(url).netloc}: {getattr(error, 'reason', error)}"
    commit = upstream.named(headers, "x-repo-commit", upstream.COMMIT)
    return commit, "" if commit else f"{repo}@{revision}: {urlsplit(url).netloc} answered {status}"
