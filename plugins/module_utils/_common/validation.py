# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every check of a person's input needs: names that are allowed, the nearest known word, all problems of a place at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from . import plain_data

SERVICE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
"""A DNS label of at most 40 characters: it becomes a unit, a container, a folder and a model name."""
RESERVED_NAMES = (
    "agent",
    "alertmanager",
    "all",
    "clients",
    "collector",
    "exporters",
    "firewall",
    "fleet-monitor",
    "gateway",
    "gpu-exporter",
    "grafana",
    "hermes",
    "kv-files",
    "live-page",
    "load-guard",
    "monitoring",
    "node-exporter",
    "ollama",
    "on-demand",
    "open-webui",
    "prometheus",
    "speech",
    "status-page",
    "watchdog",
    "guard",
    "gpu-clocks",
    "power",
)
"""Add-on services have units, containers and folders of these names (spark-gateway.service), on any host."""
IMAGE_REF = re.compile(r"[a-z0-9][\w.:/-]{0,255}(?:@sha256:[0-9a-f]{64})?", re.ASCII)
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LONGEST_START = 7 * 24 * 3600
"""Seconds; what takes longer than a week does not start."""
MOUNT_SEPARATORS = (":", ",", '"')
"""What docker run takes for the end of a folder where it is told of a mount."""


class Problems:
    """Collects every problem of one place, so that all are told at once."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.messages: list[str] = []

    def add(self, message: str) -> None:
        """Keep one message, prefixed by the place that it is about."""
        self.messages.append(f"{self.where}: {message}")

    def named(self, place: str) -> bool:
        """Tell whether a place, such as C(receivers[0]), has a message; missing keys there then need no further one."""
        return any(place in message for message in self.messages)

    def unknown(self, keys: Iterable[str], allowed: Sequence[str], kind: str = "key") -> None:
        """Report every unknown key with the nearest valid one."""
        for key in keys:
            if key not in allowed:
                self.add(f"unknown {kind} '{key}'{nearest(key, allowed)} Known: {', '.join(allowed)}.")

    def mapping(self, value: Any, key: str) -> dict[str, Any]:
        """Return C(value) as a dict, or complain and return an empty one."""
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return {str(k): v for k, v in value.items()}
        self.add(f"'{key}' must be a mapping, not {plain_data.kind(value)}.")
        return {}

    def mappings(self, value: Any, key: str) -> list[dict[str, Any]]:
        """Return C(value) as a list of dicts, or complain and return an empty one."""
        if value is not None and not isinstance(value, list):
            self.add(f"'{key}' must be a list of mappings, not {plain_data.kind(value)}.")
            return []
        return [self.mapping(entry, key) for entry in value or []]


def nearest_word(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that a word was most likely meant to be.

    :param cutoff: least similarity; 1 is identical
    :returns: the word, None when nothing is like it
    """
    return _nearest_word(word, tuple(words), cutoff)


@lru_cache(maxsize=1024)  # a launch is read again after every repair
def _nearest_word(word: str, words: tuple[str, ...], cutoff: float) -> str | None:
    close = difflib.get_close_matches(word, words, n=1, cutoff=cutoff)
    return close[0] if close else None


def nearest(word: str, words: Iterable[str]) -> str:
    """End a complaint about an unknown word: C(; did you mean 'x'?) where a known one is near, else a full stop."""
    names = sorted(words)
    longer = [name for name in names if word and name.startswith(word)]
    match = longer[0] if longer else nearest_word(word, names)
    return f"; did you mean '{match}'?" if match else "."


def check_mount(problems: Problems, key: str, folder: Any) -> None:
    """Complain about a folder that docker would take for several parts of a mount."""
    separators = [mark for mark in MOUNT_SEPARATORS if mark in str(folder)]
    if separators:
        problems.add(
            f"'{key}' is '{folder}': docker takes {' and '.join(separators)} for the end of a folder and would mount another one. "
            "Name a folder without."
        )


def package_name(package: str) -> str:
    """Return an entry of C(pip) without its sums."""
    return package.partition(" ")[0]
