# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a hub lets a token have a model: what to ask for, and what its answer means. Pure functions.

A hub answers a HEAD of one file like its download: a redirect or 200 if allowed, else an error with
C(X-Error-Code), the name of the error, and C(X-Error-Message).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

HUB = "https://huggingface.co"
PROBE = "config.json"
"""A file of nearly every model. A missing file proves the permission just as well."""


def file_of(only: Sequence[str]) -> str:
    """Return the file to ask for: a named one, else a common one."""
    return next((name for name in only if not any(mark in name for mark in "*?[")), PROBE)


def url_of(endpoint: str, repo: str, revision: str, only: Sequence[str] = ()) -> str:
    """Return the URL of the file that tells whether a model can be had."""
    return f"{(endpoint or HUB).rstrip('/')}/{repo}/resolve/{quote(revision, safe='')}/{quote(file_of(only))}"


def page_of(endpoint: str, repo: str) -> str:
    """Return the page for accepting the licence: always the hub's, as a mirror has no such page."""
    return (
        f"{HUB}/{repo}" if endpoint and "huggingface.co" not in endpoint else f"{(endpoint or HUB).rstrip('/')}/{repo}"
    )


def judge(status: int, headers: Mapping[str, str], has_token: bool) -> str:
    """Name what an answer means: C(ok), C(licence), C(gated) (no token), C(token) (not accepted), C(missing), C(revision), C(other)."""
    lower = {str(name).lower(): str(value) for name, value in headers.items()}
    code, message = lower.get("x-error-code", ""), lower.get("x-error-message", "").lower()
    if status < 400 or code == "EntryNotFound":
        return "ok"
    if code == "RevisionNotFound":
        return "revision"
    if "invalid credentials" in message or "invalid username or password" in message:
        return "token"
    if code == "GatedRepo":
        return "licence" if has_token else "gated"
    if code in ("RepoNotFound", "RepositoryNotFound") or status == 404:
        return "missing"
    if status == 401:
        return "token" if has_token else "gated"
    if status == 403:
        return "licence" if has_token else "gated"
    return "other"


def explain(repo: str, revision: str, meaning: str, status: int, endpoint: str, token_file: str) -> tuple[str, str]:
    """Return why a model cannot be downloaded, with the fix. meaning: of C(judge)."""
    page = page_of(endpoint, repo)
    token = f"the token of {token_file}" if token_file else "a token"
    name_it = "name a file with a token in spark_hf_token_file"
    sentences = {
        "gated": (
            "its licence has to be accepted, and no token was given",
            f"Accept it on {page}, make a read token on the hub, and {name_it}.",
        ),
        "licence": (
            f"{token} may not read it: its owner has not accepted the licence, or the token is not for gated models",
            f"Log in on {page} as the owner of the token and accept the licence; a fine-grained token needs "
            "'read access to gated repos'. Some owners approve by hand, which takes a while.",
        ),
        "token": (
            f"the hub does not accept {token}: it is wrong, expired or revoked",
            f"Make a new one, and {name_it}.",
        ),
        "missing": (
            "the hub has no such model, or does not show it to "
            + (token if token_file else "an account without a token"),
            "Correct model.repo"
            + (", or take a token that may read it." if token_file else f", or {name_it} if it is private."),
        ),
        "revision": (f"it has no revision {revision}", "Correct model.revision: a commit, tag or branch of that page."),
    }
    why, fix = sentences.get(
        meaning, (f"the hub answered {status}", "Try again later, or set spark_hf_endpoint to a mirror.")
    )
    return f"{repo}@{revision}: {why}.", fix


def refusals(answers: Sequence[Mapping[str, Any]], endpoint: str, token_file: str) -> list[str]:
    """Return a line for every model that may not be had: why, and the fix."""
    lines = []
    for answer in answers:
        if answer["meaning"] in ("ok", "unreachable"):
            continue
        why, fix = explain(
            answer["repo"], answer["revision"], answer["meaning"], answer["status"], endpoint, token_file
        )
        lines.append(f"{why} {fix}")
    return lines
