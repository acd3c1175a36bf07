# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in's facts about a model: its config.json, the pretended size of its weights, the memory of a token of KV."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GIB = 1 << 30


class ModelError(Exception):
    """Text as the real server would print it."""


@dataclass
class Model:
    path: Path
    config: dict[str, Any]
    sim: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> dict[str, Any]:
        return dict(self.config.get("text_config") or self.config)

    @property
    def max_position(self) -> int:
        return int(self.text.get("max_position_embeddings") or 4096)

    def weight_bytes(self, quantization: str | None, mtp: bool) -> int:
        """Resident weights: as the fixture says, else what the index or the files add up to."""
        size = self.sim.get("quantized_gib", {}).get(quantization or "", self.sim.get("weights_gib"))
        if size is not None:
            return int((float(size) + (float(self.sim.get("mtp_gib", 0)) if mtp else 0)) * GIB)
        index = self.path / "model.safetensors.index.json"
        if index.exists():
            return int(json.loads(index.read_text()).get("metadata", {}).get("total_size", 0))
        return sum(file.stat().st_size for file in self.path.glob("*.safetensors"))


def hub_cache() -> Path:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def locate(name: str, revision: str | None) -> Path:
    """Folder of a model: a path, a cached snapshot, or one fetched with the real Hugging Face client."""
    if Path(name).is_dir():
        return Path(name)
    if name.startswith(("/", ".")):
        raise ModelError(
            f"OSError: Can't load the configuration of '{name}'. If you were trying to load it from 'https://huggingface.co/models', "
            "make sure you don't have a local directory with the same name."
        )
    repo = hub_cache() / ("models--" + name.replace("/", "--"))
    revision_name = revision or "main"
    ref = repo / "refs" / revision_name
    snapshot = repo / "snapshots" / (ref.read_text().strip() if ref.is_file() else revision_name)
    if snapshot.is_dir():
        return snapshot
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    if not offline:
        try:
            from huggingface_hub import snapshot_download

            return Path(snapshot_download(name, revision=revision))
        except Exception as error:
            raise ModelError(f"{type(error).__name__}: {error}") from None
    raise ModelError(
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.\n"
        f"Check your internet connection or see how to run the library in offline mode. ({name}, revision {revision_name}, in {repo.parent})"
    )


def load(name: str, revision: str | None = None) -> Model:
    path = locate(name, revision)
    config = path / "config.json"
    if not config.is_file():
        raise ModelError(
            f"ValueError: Invalid repository ID or local directory specified: '{name}'. No config.json in {path}."
        )
    sim = path / "spark_sim.json"
    return Model(path, json.loads(config.read_text()), json.loads(sim.read_text()) if sim.is_file() else {})
