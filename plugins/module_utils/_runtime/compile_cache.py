# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile caches of a service belong to one image: what another image compiled goes before the first start from a new one.

Versions of vLLM, PyTorch, Triton and FlashInfer are in the image; an entry of other ones is not found at best, and hangs a
start at worst. The image of a cache is noted with the states of the host, outside of containers.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from . import state_file

KEPT = ("hf_assets", "hf_modules", "hf_xet", "kv", "pip")
"""Downloads, which are the same for every image, and which a host without a network cannot repeat. C(kv_files.py) has rules of its own."""


def notes() -> Path:
    """Return the folder of the notes."""
    return Path(os.environ.get("DGXSPARK_STATE_DIR", "/var/lib/dgxspark")) / "compile_caches"


def of_image(name: str, folder: Path, image_id: str) -> list[str]:
    """Note that a folder of caches is used with an image, and empty it where another one had filled it.

    A folder of an unknown image stays unchanged.

    :param image_id: C(sha256:...) of the image that is about to be started
    :raises OSError: with what could not be removed or noted
    """
    note = notes() / f"{name}.json"
    before = (state_file.read(note) or {}).get("image_id")
    if before == image_id:
        return []
    removed = []
    if before is not None and folder.is_dir() and not folder.is_symlink():
        for path in sorted(folder.iterdir()):
            if path.name in KEPT:
                continue
            # A link counts as a file of the folder itself, without its target.
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            removed.append(path.name)
    state_file.write(note, {"image_id": image_id})
    return removed
