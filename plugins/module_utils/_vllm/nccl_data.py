# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds of NCCL with reports of their use between Sparks: data, and the look-up of a build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .versions import parse_version, version

# library: pip for the wheel's own file (nvidia-nccl-cu13), system for one of Debian's packages. below: versions before it;
# version: this one alone. verdict: good or bad. why, fix: of rows that are not good. date: when the sources were read.
ROWS: tuple[dict[str, Any], ...] = (
    {
        "library": "pip",
        "below": "2.29.3",
        "verdict": "bad",
        "why": "built for aarch64 by a gcc before 10 it loses slots of its proxy: engines over several Sparks hang after 20 to 55 "
        "minutes, one rank at 96 % and about 20 W, the other in an all-reduce",
        "fix": "Install nvidia-nccl-cu13==2.29.7 on top of the image (pip of a service), or take an image with 2.29.3 or newer; DGX OS's own "
        "libnccl2 named by VLLM_NCCL_SO_PATH works too.",
        "source": "release notes of NCCL 2.29.3; vllm-project/vllm#41725, #42354; sgl-project/sglang#33289; marin-community/marin#8038; "
        "eugr/spark-vllm-docker",
        "date": "2026-11-22",
    },
    {
        "library": "system",
        "version": "2.28.9",
        "verdict": "good",
        "source": "the libnccl2 of DGX OS in place of the wheel's: 60 minutes of load without a hang; vllm-project/vllm#42354",
        "date": "2026-11-22",
    },
    {
        "library": "pip",
        "version": "2.29.7",
        "verdict": "good",
        "source": "dozens of starts over eight Sparks, NVIDIA/nccl#2167",
        "date": "2026-11-22",
    },
    {
        "library": "pip",
        "version": "2.30.7",
        "verdict": "good",
        "source": "vllm/vllm-openai:qwen38-flash-next and ghcr.io/anemll/dspark-vllm-gx10:0.1.1 on pairs",
        "date": "2026-11-22",
    },
)


def against(library: str, release: str) -> list[Mapping[str, Any]]:
    """Return the lines that speak against a build; none for one whose version is not known. library: as in C(ROWS)."""
    parsed = parse_version(release)
    return [
        row
        for row in ROWS
        if row["verdict"] != "good"
        and row["library"] == library
        and parsed is not None
        and ("below" not in row or parsed < version(row["below"]))
        and row.get("version") in (None, release)
    ]
