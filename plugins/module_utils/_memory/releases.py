# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM releases, as far as memory planning distinguishes them."""

from __future__ import annotations

from dataclasses import dataclass

from .._vllm.versions import parse_version
from .layers import Refusal

# The newest vLLM minor release whose planner was read; a later one is planned as this one.
NEWEST_MINOR = 33
# The first minor release with the unified-memory code of GB10 that this engine knows.
OLDEST_MINOR = 15
# The minor releases whose planner was compared row by row, and that were asked about whole models often enough, too: all so far.
COMPARED_MINORS = tuple(range(15, 34))


@dataclass(frozen=True)
class Release:
    """A vLLM release as far as memory planning tells releases apart.

    text: as given. minor: the 19 of 0.19.0. exact: a release of this minor was compared. patch: the 0 of 0.19.0.
    is_newer: it came after the newest that was read and counts as that one.
    """

    text: str
    minor: int
    exact: bool
    patch: int = 0
    is_newer: bool = False

    @property
    def name(self) -> str:
        """The version as given, else C(0.MINOR)."""
        return self.text or f"0.{self.minor}"

    def since(self, minor: int, patch: int = 0) -> bool:
        """Tell whether the release is 0.C(minor).C(patch) or later."""
        return (self.minor, self.patch) >= (minor, patch)


def parse_release(text: str) -> Release:
    """Read a version (C(parse_version)) as far as memory planning tells releases apart.

    A development build counts as the release it precedes and is never exact. Raises C(Refusal) below 0.15 and for a text
    that is no version.
    """
    version = parse_version(text)
    if version is None:
        raise Refusal("vllm_version", f"{text!r} is not a vLLM version", "write it as vllm --version does, like 0.23.0")
    major, minor, patch = version.release[:3]
    if major > 0:
        raise Refusal(
            "vllm_version",
            f"the memory planning of vLLM {text} is not known",
            f"use a version of 0.{OLDEST_MINOR} to 0.{NEWEST_MINOR}",
        )
    if minor < OLDEST_MINOR:
        raise Refusal(
            "vllm_version",
            f"memory of vLLM {text} is not planned: before 0.{OLDEST_MINOR} it did not account for "
            "unified memory as it does now",
            f"use vLLM 0.{OLDEST_MINOR} or later",
        )
    return Release(
        text,
        min(minor, NEWEST_MINOR),
        minor in COMPARED_MINORS and version.final,
        patch,
        is_newer=minor > NEWEST_MINOR,
    )
