# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of the model that the quick start recommends first, without its weights: a folder for tests/sim/fakehub.

Its config.json has the recipe's fields; the stand-in engine takes its size from spark_sim.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "sim" / "node"))

import fixtures

RECIPE = yaml.safe_load((ROOT / "playbooks/recipes/qwen3.6-35b-a3b-nvfp4-modelopt.yml").read_text(encoding="utf-8"))
REPO = RECIPE["model"]["repo"]
SIZE = {"weights_gib": 20.227, "mtp_gib": 1.57}
"""That of the other NVFP4 checkpoint of this model, which simulated Sparks have (C(fixtures.MODELS))."""


def write(folder: Path) -> None:
    """Write them into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in fixtures.files(REPO, RECIPE["config"], SIZE, True).items():
        (folder / name).write_bytes(data)
