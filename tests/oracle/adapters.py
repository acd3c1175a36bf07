# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the room for LoRA adapters with what vLLM's own classes set aside, model by model; with C(--record) keep the answers.

python tests/oracle/adapters.py --configs FOLDER --python P --source S   the vLLM of an unpacked package S
python tests/oracle/adapters.py --configs FOLDER --python P --version V  the same with a published version, which pip fetches
python tests/oracle/adapters.py --configs FOLDER --image NAME            the vLLM of an image, by Docker on this machine
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import compare

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import plan_probe
from ansible_collections.dgxspark.vllm.plugins.module_utils._content.plan_probe_program import PLAN_MARK
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import adapters, image_answer
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import read_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Refusal
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.releases import parse_release
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.weight_formats import Quantization
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.weights import Split

ONE = {"enable-lora": True, "max-loras": 2, "max-lora-rank": 16}
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"tensor-parallel-size": 2},
    {"max-loras": 3, "max-lora-rank": 32, "tensor-parallel-size": 2, "fully-sharded-loras": True},
    {"tensor-parallel-size": 2, "enable-expert-parallel": True},
    {"pipeline-parallel-size": 2},
)


def counted(config: dict[str, Any], quant: dict[str, Any] | None, args: dict[str, Any], version: str) -> adapters.Room:
    """Return the result of the arithmetic for a launch."""
    split = Split(
        args.get("tensor-parallel-size", 1),
        args.get("pipeline-parallel-size", 1),
        bool(args.get("enable-expert-parallel")),
    )
    minor = parse_release(version).minor
    padded = Quantization(config, quant, "", minor).padded_experts
    return adapters.compute_room(config, read_geometry(config), args, split, minor=minor, padded=padded)


def ask(options: argparse.Namespace, cases: list[tuple[str, dict[str, Any]]]) -> list[image_answer.Answer]:
    """Return vLLM's answers to launches of models."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        run, environment = compare.command(options, Path(folder))
        with subprocess.Popen(
            run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as child:
            assert child.stdin and child.stdout
            for name, args in cases:
                argv = compare.launch.render({"max-model-len": 8192, "max-num-seqs": 4, **args})
                question = plan_probe.question(compare.read_files(options.configs, name), argv, [20 * compare.GIB])
                question["device"]["count"] = 8
                if options.source:
                    question.update(folder=f"{folder}/asked", pretend=compare.PRESENT)
                child.stdin.write(f"{json.dumps(question)}\n")
                child.stdin.flush()
                line = child.stdout.readline()
                if not line.startswith(PLAN_MARK):
                    raise SystemExit(f"no answer about {name}: {line or 'it ended'}")
                rows.append(image_answer.read(json.loads(line[len(PLAN_MARK) :])))
            child.stdin.close()
    return rows


def keep(record: Path, rows: list[list[Any]], files: dict[str, tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    """Add rows to the fixture, and of configurations what changes an answer of the arithmetic."""
    data = (
        json.loads(record.read_text(encoding="utf-8")) if record.exists() else {"configs": {}, "quant": {}, "rows": []}
    )
    keys = {(row[0], row[1], json.dumps(row[2])) for row in rows}
    data["rows"] = [row for row in data["rows"] if (row[0], row[1], json.dumps(row[2])) not in keys] + rows
    for name in sorted({row[1] for row in rows}):
        config, quant = files[name]
        mine = [row for row in data["rows"] if row[1] == name]

        def answers(
            candidate: dict[str, Any], mine: list[list[Any]] = mine, quant: dict[str, Any] | None = quant
        ) -> str:
            try:
                return str([counted(candidate, quant, row[2], row[0]) for row in mine])
            except (Refusal, ValueError, KeyError, TypeError, AttributeError, IndexError):
                return "an error"

        data["configs"][name] = compare.reduced(config, answers)
        if quant:
            data["quant"][name] = quant
    # A line for each configuration and row.
    parts = [
        f'"{key}": {{\n'
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(data[key][name])}" for name in sorted(data[key]))
        + "\n}"
        for key in ("configs", "quant")
    ]
    listed = ",\n".join(json.dumps(row) for row in sorted(data["rows"], key=json.dumps))
    record.write_text("{" + ",\n".join(parts) + f',\n"rows": [\n{listed}\n]}}\n', encoding="utf-8")


def main() -> int:
    """Compare; 0 when nothing differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    for name in ("--image", "--source", "--version"):
        parser.add_argument(name, default="")
    parser.add_argument("--packages", action="append", help="a folder of packages that come before the interpreter's")
    parser.add_argument("--models", default="", help="names of models, with commas; all when left out")
    parser.add_argument("--variants", type=int, default=len(VARIANTS), help="how many of the variants of a launch")
    parser.add_argument("--record", type=Path, help="a fixture to add the answers to")
    options = parser.parse_args()
    if options.version and not options.image and not options.source:
        options.source = compare.fetched(options.version)
    names = [name for name in options.models.split(",") if name] or [
        path.stem
        for path in sorted(options.configs.glob("*.json"))
        if '"model_type"' in path.read_text(encoding="utf-8")
    ]
    cases = [(name, {**ONE, **variant}) for name in names for variant in VARIANTS[: options.variants]]
    rows: list[list[Any]] = []
    files: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {}
    different = unknown = 0
    for (name, args), answer in zip(cases, ask(options, cases)):
        adapters = [rank.adapters for rank in answer.ranks if rank.adapters is not None]
        if not adapters or len(adapters) != len(answer.ranks):
            unknown += 1
            continue
        texts = compare.read_files(options.configs, name)
        config, quant = (
            json.loads(texts.get(file_name) or "null") for file_name in ("config.json", "hf_quant_config.json")
        )
        files[name] = config, quant
        try:
            computed = counted(config, quant, args, answer.version)
        except Refusal as refusal:
            print(
                json.dumps({"model": name, "args": args, "bytes": max(adapters), "not known": refusal.reason}),
                flush=True,
            )
            unknown += 1
            continue
        rows.append([answer.version, name, args, max(adapters)])
        if computed.typical != max(adapters):
            different += 1
            print(
                json.dumps({"model": name, "args": args, "bytes": max(adapters), "planned": computed.typical}),
                flush=True,
            )
    if options.record and rows:
        keep(options.record, rows, files)
    print(f"{len(rows) - different} equal, {different} different, {unknown} not known", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
