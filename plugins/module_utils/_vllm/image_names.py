# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of images: repository, tag and digest, and all names of one image.

Hosts compile this file at each run, so it imports the standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1024)
def split_image(image: str) -> tuple[str, str | None, str | None]:
    """Split an image reference into repository, tag and digest; Docker Hub's own name is taken off."""
    name, _at, digest = image.strip().partition("@")
    head, slash, leaf = name.rpartition("/")
    leaf, _colon, tag = leaf.partition(":")
    repository = re.sub(r"^(?:index\.)?docker\.io/", "", f"{head}{slash}{leaf}")
    return repository, tag or None, digest or None


def names_of_image(image: Mapping[str, Any]) -> set[str]:
    """Return all names of an image of C(docker image inspect), with and without Docker Hub's own."""
    names = {str(image.get("Id") or "")} | set(image.get("RepoTags") or []) | set(image.get("RepoDigests") or [])
    plain = set()
    for name in names - {""}:
        repository, tag, digest = split_image(name)
        if name.startswith("sha256:"):
            plain.add(name)
            continue
        plain |= {f"{repository}:{tag or 'latest'}"} if not digest else {f"{repository}@{digest}"}
    return (names | plain) - {""}
