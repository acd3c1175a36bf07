# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of the gateway: the real LiteLLM from its Python packages, under the name of the image that is deployed."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from . import realengine
from .config import CACHE_DIR, SIM_DIR, content_hash
from .engine import SimError

if TYPE_CHECKING:
    from .build import Inner

VERSION = "1.108.7"
IMAGE = f"ghcr.io/berriai/litellm:v{VERSION}"
# The first is to be raised when fetch() leaves out something else.
INPUTS: tuple[str | Path, ...] = ("1", SIM_DIR / "gateway", IMAGE, platform.machine())
WASTE = ("litellm/proxy/_experimental/out", "litellm/proxy/swagger", "numpy/_core/tests", "numpy/tests", "bin")
"""Pages of the admin interface, which is off, and tests of others."""


def fetch(target: Path) -> None:
    """Install LiteLLM and what it needs into a folder."""
    requirements = SIM_DIR / "gateway" / "requirements.txt"
    try:
        realengine.uv_install(target, CACHE_DIR / "gateway.log", "--requirement", str(requirements))
    except realengine.NotAvailable as error:
        raise SimError(f"the packages of the gateway cannot be had: {error}") from None
    for waste in WASTE:
        shutil.rmtree(target / waste, ignore_errors=True)


def write_context(context: Path, base: str, wanted: str) -> None:
    """Put together what the image is built of."""
    fetch(context / "site")
    labels = {"dgxspark.sim": "image", "dgxspark.sim.hash": wanted, "dgxspark.simulated": "false"}
    label = "LABEL " + " ".join(f"{key}={json.dumps(value)}" for key, value in labels.items())
    recipe = (SIM_DIR / "gateway" / "Dockerfile").read_text(encoding="utf-8")
    (context / "Dockerfile").write_text(f"FROM {base}\n{label}\n{recipe}", encoding="utf-8")


def build(inner: Inner, base: str) -> None:
    """Make the image in the engine of a node, if it is missing or was made of other inputs."""
    wanted = content_hash(base, *INPUTS)
    if inner.label(IMAGE, "dgxspark.sim.hash") == wanted:
        return
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gateway-", dir=CACHE_DIR) as temp:
        context = Path(temp)
        write_context(context, base, wanted)
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
