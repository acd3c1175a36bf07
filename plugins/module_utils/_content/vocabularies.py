# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Vocabularies from outside the hub, by model architecture; engines would download them at their start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

CONTAINER_FOLDER = "/usr/share/dgxspark/vocabularies"
# A mount of docker run in a unit file, and the begin of the checksum in the name of the file.
_MOUNT = re.compile(rf"src=(?P<host>[^,\s\"']+),dst={CONTAINER_FOLDER}/")
_SUM_IN_NAME = re.compile(r"[0-9a-f]{12}(?=-)")


class Vocabulary(NamedTuple):
    """A file and the variable that names its folder to the engine. sha256, bytes: of the file."""

    name: str
    url: str
    sha256: str
    bytes: int
    variable: str

    def path(self, hf_home: str) -> str:
        """Return its path on a host; the checksum in the name separates releases."""
        return f"{hf_home}/downloads/{self.sha256[:12]}-{self.name}"


# Harmony loads o200k_base at the first chat request and ends the server without it: openai/harmony, src/tiktoken_ext/public_encodings.rs
# (0.0.8), and issues 46 and 95; openai/tiktoken has the same sum, tiktoken_ext/openai_public.py (0.11.0). Read 2026-11-28.
O200K_BASE = Vocabulary(
    "o200k_base.tiktoken",
    "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken",
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    3_613_922,
    "TIKTOKEN_ENCODINGS_BASE",
)
BY_ARCHITECTURE = {"GptOssForCausalLM": O200K_BASE}


def needed_by(config: Mapping[str, Any] | None, env: Mapping[str, Any]) -> Vocabulary | None:
    """Return the vocabulary of an engine. env: its variables; an owner's folder of vocabularies wins."""
    listed = (config or {}).get("architectures")
    for name in listed if isinstance(listed, list) else []:
        vocabulary = BY_ARCHITECTURE.get(str(name))
        if vocabulary and vocabulary.variable not in env:
            return vocabulary
    return None


def mounted_by(unit: str) -> list[str]:
    """Return the paths of the vocabularies that a unit file mounts, on the host."""
    return sorted({match["host"] for match in _MOUNT.finditer(unit)})


def sum_in_name(name: str) -> str:
    """Return the begin of the checksum that the name of a vocabulary's file has, empty without one."""
    match = _SUM_IN_NAME.match(name)
    return match.group() if match else ""
