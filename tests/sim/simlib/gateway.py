# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of the gateway: the real LiteLLM from its Python packages, under the name of the image that is deployed."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from . import realengine
from .config import CACHE_DIR, SIM_DIR, content_hash
from .engine import SimError

if TYPE_CHECKING:
    from .build import Inner

VERSION = "1.108.14"
IMAGE = f"ghcr.io/berriai/litellm:v{VERSION}"
# Raise the first when fetch() leaves out something else.
INPUTS: tuple[str | Path, ...] = ("1", SIM_DIR / "gateway", IMAGE, platform.machine())
WASTE = ("numpy/_core/tests", "numpy/tests", "bin")
"""Tests and programs of others."""


def fetch(target: Path) -> None:
    """Install LiteLLM and its dependencies into a folder."""
    requirements = SIM_DIR / "gateway" / "requirements.txt"
    try:
        realengine.uv_install(target, CACHE_DIR / "gateway.log", "--require-hashes", "--requirement", str(requirements))
    except realengine.NotAvailable as error:
        raise SimError(f"the packages of the gateway cannot be had: {error}") from None
    if not (target / "_soundfile_data").is_dir():
        fetch_sound(target)
    for waste in WASTE:
        shutil.rmtree(target / waste, ignore_errors=True)


def fetch_sound(target: Path) -> None:
    """Get the wheel of soundfile that brings its library: an index may have one for every platform too, which does not."""
    text = (SIM_DIR / "gateway" / "requirements.txt").read_text(encoding="utf-8")
    requirement = re.search(r"^soundfile==(?:.*\\\n)*.*", text, re.MULTILINE)
    if not requirement:
        raise SimError("tests/sim/gateway/requirements.txt does not list soundfile")
    with tempfile.TemporaryDirectory(prefix="sound-", dir=CACHE_DIR) as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text(requirement[0] + "\n", encoding="utf-8")
        done = subprocess.run(
            [
                *realengine.pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder,
                "--python-version", "3.11", "--platform", f"manylinux_2_28_{platform.machine()}",
                "--require-hashes", "--requirement", str(listed),
            ],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise SimError(f"the packages of the gateway cannot be had: {done.stderr.strip()[-500:]}")
        for wheel in Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(target)


def write_context(context: Path, base: str, tag: str) -> None:
    """Collect the files of the image."""
    fetch(context / "site")
    labels = {"dgxspark.sim": "image", "dgxspark.sim.hash": tag, "dgxspark.simulated": "false"}
    label = "LABEL " + " ".join(f"{key}={json.dumps(value)}" for key, value in labels.items())
    recipe = (SIM_DIR / "gateway" / "Dockerfile").read_text(encoding="utf-8")
    (context / "Dockerfile").write_text(f"FROM {base}\n{label}\n{recipe}", encoding="utf-8")


def build(inner: Inner, base: str) -> None:
    """Make the image in the engine of a node, if it is missing or was made of other inputs."""
    inputs_hash = content_hash(base, *INPUTS)
    if inner.label(IMAGE, "dgxspark.sim.hash") == inputs_hash:
        return
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gateway-", dir=CACHE_DIR) as temp:
        context = Path(temp)
        write_context(context, base, inputs_hash)
        inner.build(IMAGE, context)


def main(values: list[str]) -> int:
    """Outside of the simulator: BASE TAG builds the image in the engine of this machine."""
    base, tag = values
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gateway-", dir=CACHE_DIR) as temp:
        write_context(Path(temp), base, content_hash(base, *INPUTS))
        return subprocess.run(["docker", "build", "--quiet", "--tag", tag, temp], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
