# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare this collection's arithmetic with what a real vLLM plans: seeded launches of models, each asked of both.

python tests/oracle/compare.py --configs FOLDER --image NAME            the vLLM of an image, by Docker on this machine
python tests/oracle/compare.py --configs FOLDER --python P --source S   that of an unpacked package S, by an interpreter with torch
python tests/oracle/compare.py --configs FOLDER --python P --version V  the same with a published version, which pip fetches

FOLDER has a config.json per model, named MODEL.json, with MODEL.hf_quant_config.json where there is one. See docs/image_plan.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import plan_probe
from ansible_collections.dgxspark.vllm.plugins.module_utils._content.plan_probe_program import PLAN_MARK
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import image_answer
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import launch

GIB = 1 << 30
TOTAL_GIB = 119.67
# Packages of kernels that an image for a Spark has; an unpacked package stands alone.
PRESENT = ("cuda", "cutlass", "deep_gemm", "humming", "quack", "tilelang")
PAIRS = (
    ("block_size", "block_size"),
    ("bytes_per_block", "bytes_per_block"),
    ("num_blocks", "blocks"),
    ("gpu_kv_cache_size_tokens", "tokens"),
    ("needed_bytes_one_request", "needed"),
)
"""What is compared: as the budget calls it, and as the image's answer does."""


def make_args(rng: random.Random) -> dict[str, Any]:
    """Make up the arguments of a launch."""
    args: dict[str, Any] = {
        "max-model-len": rng.choice((4096, 16384, 40960)),
        "max-num-seqs": rng.choice((4, 16, 64)),
        "max-num-batched-tokens": rng.choice((2048, 8192)),
        "enable-prefix-caching": rng.random() < 0.5,
    }
    if rng.random() < 0.5:
        args["kv-cache-dtype"] = "fp8"
    if rng.random() < 0.3:
        args["tensor-parallel-size"] = rng.choice((2, 4))
    if rng.random() < 0.3:
        args["speculative-config"] = {"method": "mtp", "num_speculative_tokens": rng.choice((1, 2, 3))}
    return args


def cases(
    folder: Path, count: int, seed: int, models: str
) -> Iterator[tuple[str, dict[str, str], dict[str, Any], int]]:
    """Yield model, its files, arguments and bytes of the cache; every model comes up before one does again."""
    rng = random.Random(seed)
    names = [path.stem for path in sorted(folder.glob("*.json")) if re.search(models, path.stem)]
    names = [name for name in names if not name.endswith(".hf_quant_config") and name.upper() != name]
    if not names:
        raise SystemExit(f"{folder} has no MODEL.json")
    order: list[str] = []
    for _case in range(count):
        order = order or rng.sample(names, len(names))
        name = order.pop()
        files = {"config.json": (folder / f"{name}.json").read_text(encoding="utf-8")}
        quantised = folder / f"{name}.hf_quant_config.json"
        if quantised.exists():
            files["hf_quant_config.json"] = quantised.read_text(encoding="utf-8")
        yield name, files, make_args(rng), rng.choice((8, 20, 40, 76)) * GIB + rng.randrange(1 << 20)


def ours(name: str, files: dict[str, str], args: dict[str, Any], available: int, version: str) -> dict[str, Any] | str:
    """Return what the arithmetic says, or why it says nothing."""
    service: dict[str, Any] = {
        **{"name": "x", "config": json.loads(files["config.json"]), "vllm_version": version},
        **{"args": {"gpu-memory-utilization": 0.9, **args}, "available_kv_bytes": available},
    }
    if "hf_quant_config.json" in files:
        service["quant_config"] = json.loads(files["hf_quant_config.json"])
    found = memory_budget({"total_gib": TOTAL_GIB, "services": [service]})
    made = found["services"].get("x") or {}
    if made.get("num_blocks") is None:
        return "; ".join(each["message"] for each in found["findings"] if each["severity"] == "error") or "no plan"
    return {**made, "messages": [each["message"] for each in found["findings"]]}


def differences(mine: dict[str, Any] | str, answer: image_answer.Answer, available: int) -> tuple[str, list[str]]:
    """Return how a case ended (equal, different, only image, only arithmetic, neither) and what differs."""
    cut = answer.at(available)
    if not isinstance(cut, image_answer.Cut):
        why = [f"image, {cut.kind} ({cut.stage}): {cut.text[:300]}"] if cut else ["image: not asked about this size"]
        if isinstance(mine, str):
            return "neither", [f"arithmetic: {mine}", *why]
        # The budget has vLLM's sentence among its findings where it refuses.
        if cut and cut.kind == image_answer.REFUSED and any(cut.text[:60] in text for text in mine["messages"]):
            return "equal", []
        return ("different" if cut and cut.kind == image_answer.REFUSED else "only arithmetic"), why
    if isinstance(mine, str):
        return "only image", [f"arithmetic: {mine}"]
    found = [
        f"{name}: arithmetic {mine.get(name)}, image {getattr(cut, other)}"
        for name, other in PAIRS
        if mine.get(name) != getattr(cut, other)
    ]
    weights = answer.ranks[0].target.bytes
    if mine.get("weights_bytes") != weights:
        found.append(f"weights_bytes: arithmetic {mine.get('weights_bytes')}, image {weights}")
    return ("different" if found else "equal"), found


def fetched(version: str) -> str:
    """Return the folder of a published version; of its wheel, which pip fetches, the Python files and data are kept."""
    target = ROOT / ".cache" / "compare" / version
    if target.is_dir():
        return str(target)
    tags = ("manylinux1", "manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, 45)))
    places = [word for tag in tags for word in ("--platform", f"{tag}_{platform.machine()}")]
    with tempfile.TemporaryDirectory() as folder:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
            folder,
        ]
        done = subprocess.run([*pip, "--python-version", "3.12", *places, f"vllm=={version}"], check=False)
        wheels = list(Path(folder).glob("vllm-*.whl"))
        if done.returncode or not wheels:
            raise SystemExit(f"pip cannot fetch a wheel of vLLM {version}: give an unpacked package, --source")
        part = target.with_name(f"{version}.part")
        shutil.rmtree(part, ignore_errors=True)
        with zipfile.ZipFile(wheels[0]) as archive:
            kept = [
                name
                for name in archive.namelist()
                if name.endswith((".py", ".json", ".jinja", "METADATA", "entry_points.txt"))
            ]
            archive.extractall(part, kept)
        part.rename(target)
    return str(target)


def command(options: argparse.Namespace, scratch: Path) -> tuple[list[str], dict[str, str]]:
    """Return what is run, and its environment."""
    if options.image:
        return plan_probe.command(options.image, f"compare-{os.getpid()}", 24 * 3600, 8), dict(os.environ)
    source = Path(options.source).resolve()
    if not (source / "vllm").is_dir():
        raise SystemExit(f"{source}: there is no folder vllm in it, give the unpacked package")
    places = [*(options.packages or []), str(source)]
    if not list(source.glob("vllm-*.dist-info")):
        info = scratch / "vllm.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {options.version}\n")
        places.append(str(scratch))
    return [options.python, "-c", plan_probe.program()], {**os.environ, "PYTHONPATH": ":".join(places)}


def main(argv: Sequence[str]) -> int:
    """Compare; 0 when nothing differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=Path, required=True)
    parser.add_argument("--image")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--source")
    parser.add_argument(
        "--version", default="", help="of the unpacked package, where it has no dist-info; alone: which to fetch"
    )
    parser.add_argument("--packages", action="append", help="a folder of packages that come before the interpreter's")
    parser.add_argument("--models", default="", help="a pattern of models")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.version and not options.image and not options.source:
        options.source = fetched(options.version)
    if bool(options.image) == bool(options.source):
        parser.error("give one of --image, --source and --version")
    results: dict[str, int] = {}
    seconds, peak, version = 0.0, 0, "?"
    with tempfile.TemporaryDirectory() as folder:
        run, environment = command(options, Path(folder))
        with subprocess.Popen(
            run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as child:
            assert child.stdin and child.stdout
            for name, files, args, available in cases(options.configs, options.count, options.seed, options.models):
                asked = plan_probe.question(files, launch.render(args), [available])
                asked["device"]["count"] = 8  # ranks of a cluster, counted without a choice of executor
                if options.source:
                    asked.update(folder=f"{folder}/asked", pretend=PRESENT)
                child.stdin.write(f"{json.dumps(asked)}\n")
                child.stdin.flush()
                line = child.stdout.readline()
                if not line.startswith(PLAN_MARK):
                    raise SystemExit(f"no answer about {name}: {line or 'it ended'}")
                answer = image_answer.read(json.loads(line[len(PLAN_MARK) :]))
                version, peak, seconds = answer.version, max(peak, answer.peak), max(seconds, answer.seconds)
                result, why = differences(ours(name, files, args, available, version), answer, available)
                results[result] = results.get(result, 0) + 1
                if result != "equal":
                    print(
                        json.dumps({"model": name, "args": args, "available": available, "result": result, "why": why}),
                        flush=True,
                    )
            child.stdin.close()
    told = ", ".join(f"{number} {result}" for result, number in sorted(results.items()))
    print(f"vLLM {version}: {told}; at most {seconds:.0f} s and {peak / GIB:.1f} GiB for one", file=sys.stderr)
    return 1 if results.get("different") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
