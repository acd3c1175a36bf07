# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command lines of docker whose input or output is a stream, for programs that pass it on."""

from __future__ import annotations


def log(container: str, lines: int) -> list[str]:
    """Return the command that prints the last lines of a container's log."""
    return ["docker", "logs", "--tail", str(lines), container]


def save(image: str) -> list[str]:
    """Return the command that writes an image as an archive to standard output."""
    return ["docker", "save", "--", image]


def load() -> list[str]:
    """Return the command that loads an archive of images from standard input."""
    return ["docker", "load", "--quiet"]


def layers(*images: str) -> list[str]:
    """Return the command that prints the layers of images, a JSON list per line."""
    return ["docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", "--", *images]
