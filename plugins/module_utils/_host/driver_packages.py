# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads versions of the driver and of kernels from names of packages and files: which belong to another branch, and which cannot boot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_BRANCH_IN_NAME = re.compile(r"(?:lib)?nvidia-(?:[a-z][a-z0-9]*-)+?(\d{3})(?:-[\w.+-]+)?")
_BRANCH_IN_VERSION = re.compile(
    r"(?:lib)?nvidia-(?:cfg1|common|compute|decode|dkms|driver|encode|extra|fbc1|gl|kernel-(?:common|source)|utils)(?:-open|-server)*"
)


def version_key(text: str) -> tuple[int, ...]:
    """Return the numbers of a driver's version, in the spelling of a package or of C(nvidia-smi); empty for an unknown version."""
    match = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def other_branch(packages: Mapping[str, str], driver: str) -> dict[str, list[str]]:
    """Return the driver packages of another branch than the driver, by branch.

    :param driver: version of the driver that is loaded; without one no package is of another branch
    :returns: sorted names by branch, C({"595": ["libnvidia-compute-595", "nvidia-dkms-595"]})
    """
    loaded = driver.partition(".")[0]
    others: dict[str, list[str]] = {}
    for name, version in sorted(packages.items()) if loaded.isdigit() else ():
        match = _BRANCH_IN_NAME.fullmatch(name)
        key = version_key(version) if not match and _BRANCH_IN_VERSION.fullmatch(name) else ()
        branch = match[1] if match else str(key[0]) if key else loaded
        if branch != loaded:
            others.setdefault(branch, []).append(name)
    return others


def kernels_without_initrd(names: Iterable[str]) -> list[str]:
    """Return the kernels that do not boot: releases with a C(vmlinuz) and no C(initrd.img). names: files in C(/boot) that are not empty."""
    files = set(names)
    releases = [name[len("vmlinuz-") :] for name in files if re.match(r"vmlinuz-\d", name)]
    return sorted((release for release in releases if f"initrd.img-{release}" not in files), key=release_key)


def release_key(release: str) -> tuple[Any, ...]:
    """Order kernels of one flavour by their numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", release))
