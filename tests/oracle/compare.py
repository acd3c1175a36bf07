# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare this collection's arithmetic with what a real vLLM plans: seeded launches of models, each asked of both.

python tests/oracle/compare.py --configs FOLDER --image NAME            the vLLM of an image, by Docker on this machine
python tests/oracle/compare.py --configs FOLDER --python P --source S   an unpacked package S, by an interpreter with torch
python tests/oracle/compare.py --configs FOLDER --python P --version V  the same with a published version, which pip fetches

FOLDER has a config.json per model, named MODEL.json, and MODEL.hf_quant_config.json of some. See docs/memory.md.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests/unit/plugins")]

import launches_fixture
from launches_fixture import Answer, Case

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import plan_probe
from ansible_collections.dgxspark.vllm.plugins.module_utils._content.plan_probe_program import PLAN_MARK
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import image_answer, releases
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import launch

GIB = 1 << 30
NEWEST = f"0.{releases.NEWEST_MINOR}.0"
# Packages of kernels that an image for a Spark has; an unpacked package stands alone.
PRESENT = ("cuda", "cutlass", "deep_gemm", "humming", "quack", "tilelang")
# Models that draft tokens by themselves; Qwen3-Next says nothing of it.
DRAFTS = re.compile(r'"(?:num_nextn_predict_layers|mtp_num_hidden_layers|num_mtp_modules)": *[1-9]|qwen3_next')
# Some planners refuse a few numbers of draft tokens, by what these add to states and rings.
DRAFT_LENGTHS = (1, 2, 3, 4, 5, 7, 8, 12)
# Characters of a refusal, and of the reason why there is no answer.
MOST_TEXT, MOST_REASON = 300, 160
# Where the model's files lay.
FOLDER = re.compile(r"[\w./:-]*/asked/model")
NO_CLASS = re.compile(
    r"are not supported for now|Unknown ModelOpt quant algo|does not recognize this architecture|failed to be inspected"
)


def make_args(rng: random.Random, drafts: bool) -> dict[str, Any]:
    """Make up the arguments of a launch; C(drafts): the model can draft tokens by itself."""
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
    if rng.random() < 0.4 and drafts:
        args["speculative-config"] = {"method": "mtp", "num_speculative_tokens": rng.choice(DRAFT_LENGTHS)}
    return args


def read_files(folder: Path, name: str) -> dict[str, str]:
    """Return the files that define a model, under the names that vLLM looks for: MODEL.NAME.py becomes NAME.py."""
    files = {"config.json": (folder / f"{name}.json").read_text(encoding="utf-8")}
    files.update(
        {path.name.removeprefix(f"{name}."): path.read_text(encoding="utf-8") for path in folder.glob(f"{name}.*.py")}
    )
    quantised = folder / f"{name}.hf_quant_config.json"
    if quantised.exists():
        files["hf_quant_config.json"] = quantised.read_text(encoding="utf-8")
    return files


def cases(folder: Path, count: int, seed: int, models: str) -> Iterator[Case]:
    """Make up launches; every model comes up before one does again."""
    rng = random.Random(seed)
    names = [path.stem for path in sorted(folder.glob("*.json")) if re.search(models, path.stem)]
    # Other files in such a folder do not define the kind of the model.
    names = [name for name in names if '"model_type"' in (folder / f"{name}.json").read_text(encoding="utf-8")]
    if not names:
        raise SystemExit(f"{folder} has no MODEL.json")
    order: list[str] = []
    for _case in range(count):
        order = order or rng.sample(names, len(names))
        name = order.pop()
        drafts = bool(DRAFTS.search((folder / f"{name}.json").read_text(encoding="utf-8")))
        yield name, make_args(rng, drafts), rng.choice((8, 20, 40, 76)) * GIB + rng.randrange(1 << 20)


def as_rows(answer: image_answer.Answer, available: int) -> Answer:
    """Return an answer in the form of the fixture, see C(launches_fixture)."""
    cut = answer.cuts.get(available)
    if cut is not None:
        groups = sorted([group["layers"], group["block"]] for group in cut.groups)
        weights = answer.ranks[0].target.bytes
        return [groups, cut.bytes_per_block, cut.blocks, cut.tokens, cut.needed, weights]
    failure = answer.failure or answer.refusals[available]
    text = FOLDER.sub("MODEL", " ".join(failure.text.split()))[:MOST_TEXT]
    # Of another release of Transformers, or of a vLLM before the model: says nothing of memory.
    if failure.kind != image_answer.REFUSED or NO_CLASS.search(text):
        return {"unknown": f"{failure.stage}: {text}"[:MOST_REASON]}
    return text


class Record:
    """The fixture of the tests, to which the answers of a version are added."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.data: dict[str, Any] = {
            "about": "Launches of models, planned by vLLM's own planner and model classes for a GB10, without a GPU; "
            "configs: the fields of config.json that the arithmetic reads",
            **{"configs": {}, "quant_configs": {}, "cases": [], "versions": {}},
        }
        if place.exists():
            self.data = launches_fixture.load(place)

    def add(
        self, folder: Path, version: str, packages: dict[str, str], made: list[Case], answers: list[Answer]
    ) -> None:
        """Add the answers of a version to all cases, and what the arithmetic reads of the configurations."""
        self.data["cases"] = [list(case) for case in made]
        self.data["versions"][version] = {"packages": packages, "answers": answers}
        for name in sorted({case[0] for case, answer in zip(made, answers) if not isinstance(answer, dict)}):
            if name not in self.data["configs"]:
                self.keep(folder, name)
        launches_fixture.save(self.data, self.place)

    def keep(self, folder: Path, name: str) -> None:
        """Keep the fields of a configuration that change an answer of the arithmetic to one of the cases."""
        files = read_files(folder, name)
        config = json.loads(files["config.json"])
        quant = json.loads(files["hf_quant_config.json"]) if "hf_quant_config.json" in files else None
        cases = [case for case in self.data["cases"] if case[0] == name]

        def answers(config: dict[str, Any], quant: dict[str, Any] | None) -> str:
            with contextlib.suppress(Exception):
                return json.dumps(
                    [
                        launches_fixture.planned(config, quant, case, version, weights)
                        for case in cases
                        for version, weights in (
                            *((f"0.{minor}.0", 0) for minor in (releases.OLDEST_MINOR, 23, releases.NEWEST_MINOR)),
                            (NEWEST, GIB),
                        )
                    ]
                )
            return "an error"

        self.data["configs"][name] = reduced(config, lambda candidate: answers(candidate, quant))
        if quant:
            stored = self.data["configs"][name]
            self.data["quant_configs"][name] = reduced(quant, lambda candidate: answers(stored, candidate))


def reduced(config: dict[str, Any], answers: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """Return a configuration without the fields that change no answer."""
    right = answers(config)

    def shrink(part: dict[str, Any]) -> None:
        for key in list(part):
            value = part.pop(key)
            if answers(config) != right:
                part[key] = value
                if isinstance(value, dict):
                    shrink(value)

    shrink(config)
    return config


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
            files = [
                name
                for name in archive.namelist()
                if name.endswith((".py", ".json", ".jinja", "METADATA", "entry_points.txt"))
            ]
            archive.extractall(part, files)
        part.rename(target)
    return str(target)


def command(options: argparse.Namespace, scratch: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command and its environment."""
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
    parser.add_argument(
        "--record", type=Path, help="a fixture to add the answers to; its cases are asked, if it has any"
    )
    options = parser.parse_args(argv)
    if options.version and not options.image and not options.source:
        options.source = fetched(options.version)
    if bool(options.image) == bool(options.source):
        parser.error("give one of --image, --source and --version")
    record = Record(options.record) if options.record else None
    made = [(name, args, available) for name, args, available in record.data["cases"]] if record else []
    made = made or list(cases(options.configs, options.count, options.seed, options.models))
    results: Counter[str] = Counter()
    answers: list[Answer] = []
    seconds, spent, peak, version, packages = 0.0, 0.0, 0, "?", {}
    with tempfile.TemporaryDirectory() as folder:
        run, environment = command(options, Path(folder))
        with subprocess.Popen(
            run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as child:
            assert child.stdin and child.stdout
            for case in made:
                name, args, available = case
                files = read_files(options.configs, name)
                question = plan_probe.question(files, launch.render(args), [available])
                question["device"]["count"] = 8  # ranks of a cluster, counted without a choice of executor
                if options.source:
                    question.update(folder=f"{folder}/asked", pretend=PRESENT)
                child.stdin.write(f"{json.dumps(question)}\n")
                child.stdin.flush()
                line = child.stdout.readline()
                if not line.startswith(PLAN_MARK):
                    raise SystemExit(f"no answer about {name}: {line or 'it ended'}")
                printed = json.loads(line[len(PLAN_MARK) :])
                answer = image_answer.read(printed)
                packages = {key: text for key, text in printed["packages"].items() if key in ("torch", "transformers")}
                version, seconds = answer.version, max(seconds, printed["seconds"])
                peak = max(peak, printed["peak_bytes"])
                spent = max(spent, printed["cpu_seconds"])
                answers.append(as_rows(answer, available))
                config, quant = (
                    json.loads(files[key]) if key in files else None for key in ("config.json", "hf_quant_config.json")
                )
                result, why = launches_fixture.judge(config, quant, case, version, answers[-1])
                results[result] += 1
                if result not in ("equal", "refused alike"):
                    print(
                        json.dumps({"model": name, "args": args, "available": available, "result": result, "why": why}),
                        flush=True,
                    )
            child.stdin.close()
    if record:
        record.add(options.configs, version, packages, made, answers)
    ended = ", ".join(f"{number} {result}" for result, number in sorted(results.items()))
    took = f"at most {seconds:.0f} s, {spent:.0f} s of a processor and {peak / GIB:.1f} GiB for one"
    print(f"vLLM {version}: {ended}; {took}", file=sys.stderr)
    return 1 if results["different"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
