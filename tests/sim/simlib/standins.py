# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of add-on servers: speech servers, Ollama and Open WebUI, by the names of the real ones, labelled simulated."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .config import CACHE_DIR, IMAGE_PREFIX, SIM_DIR, content_hash

if TYPE_CHECKING:
    from .build import Inner

# Name, entrypoint, default command, environment: as docker image inspect shows them of the real ones.
IMAGES: tuple[tuple[str, str, str, str], ...] = (
    ("ghcr.io/achetronic/parakeet:0.8.0-int8", '["/app/parakeet"]', '["-port","5092","-models","/models"]', ""),
    ("travisvn/chatterbox-tts-api:v1.0.1", "[]", '["/app/chatterbox"]', "PORT=5123 HOST=0.0.0.0 DEVICE=cpu"),
    ("ollama/ollama:0.33.3", '["/bin/ollama"]', '["serve"]', "OLLAMA_HOST=0.0.0.0:11434"),
    ("ghcr.io/open-webui/open-webui:v0.12.4", "[]", '["bash","start.sh"]', "PORT=8080 DATA_DIR=/app/backend/data"),
)
INPUTS: tuple[str | Path, ...] = (SIM_DIR / "standins", SIM_DIR / "common", repr(IMAGES))
COMMON = f"{IMAGE_PREFIX}/beside:latest"


def build(inner: Inner, base: str) -> None:
    """Make the images that are missing, or were made of other inputs, in the engine of a node."""
    inputs_hash = content_hash(base, *INPUTS)
    stale = [row for row in IMAGES if inner.label(row[0], "dgxspark.sim.hash") != inputs_hash]
    if not stale:
        return
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="standins-", dir=CACHE_DIR) as temp:
        context = Path(temp)
        shutil.copytree(SIM_DIR / "standins", context / "standins", ignore=shutil.ignore_patterns("__pycache__", ".*"))
        shutil.copy(SIM_DIR / "common" / "ledger.py", context / "standins" / "ledger.py")
        dockerfile = context / "standins" / "Dockerfile"
        (context / "Dockerfile").write_text(f"FROM {base}\n" + dockerfile.read_text())
        inner.build(COMMON, context)
    for name, entrypoint, command, environment in stale:
        lines = [
            f"FROM {COMMON}",
            f'LABEL dgxspark.simulated="true" dgxspark.sim="image" dgxspark.sim.hash="{inputs_hash}"',
            *([f"ENV {environment}"] if environment else []),
            f"ENTRYPOINT {entrypoint}",
            f"CMD {command}",
            *(["WORKDIR /app/backend"] if "start.sh" in command else []),
        ]
        inner.docker("build", "--quiet", "--tag", name, "-", input_="\n".join(lines).encode())
