# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of vLLM: read, compared."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class Version(NamedTuple):
    """A vLLM version, ordered: a development build comes before the release that it is named after."""

    release: tuple[int, ...]
    final: bool

    def __str__(self) -> str:
        return ".".join(map(str, self.release)) + ("" if self.final else " (development build)")


AUTOTUNE_CACHE = "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR"
AUTOTUNE_FOLDER = "/tmp/flashinfer_autotune"
"""A folder of the container, which goes with it."""
AUTOTUNE_CACHE_HANGS = ("0.31.0", "0.32.0")
"""From and before which version a kept autotuning of FlashInfer makes several GPUs wait for ever: vllm-project/vllm#57635, #57579."""


@lru_cache(maxsize=1024)
def parse_version(text: str) -> Version | None:
    """Read C(0.19.0), C(v0.20.2rc1.dev49+g9b4e839) or C(0.19.0+ab12.nv26.04); C(None) if it is no version.

    The text after C(+) names the builder and is ignored.
    """
    match = re.fullmatch(r"v?(\d+(?:\.\d+)+)((?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d*)?)(?:\+.*)?", text.strip())
    if not match:
        return None
    release = tuple(int(part) for part in match.group(1).split("."))
    return Version((*release, 0, 0)[: max(3, len(release))], not re.search(r"a|b|rc|dev", match.group(2)))


def version(text: str) -> Version:
    """Return the version of a text; raises C(ValueError) for other texts than C(parse_version) knows."""
    parsed = parse_version(text)
    if parsed is None:
        raise ValueError(f"{text!r} is not a version of vLLM")
    return parsed


def at_most(release: Version) -> Version:
    """Return the newest release whose features C(release) can have: itself, or the next minor for a development build."""
    return release if release.final else Version((release.release[0], release.release[1] + 1, 0), True)
