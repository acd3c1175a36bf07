"""Compare the catalogue and the command line with vLLM itself. See README.md here for how to run it.

compare.py SOURCES... [--real PYTHON]: each SOURCES is the unpacked source tree of one version, in a folder named after
it. For each, the parser of that version reads the same argument lists as launch.parse does, and the
catalogue of the version is compared with its parser. With --real the parser runs in PYTHON, an environment that
has vLLM's real packages, and is first compared with the parser on stand-ins.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / "collections"),
    str(ROOT / "scripts"),
    str(ROOT / "tests" / "unit" / "plugins" / "module_utils"),
]

import generate_catalogue as generator

from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import versions
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.launch import parse

word_lists = importlib.import_module("test_launch_versions").word_lists
CASES = 500

# What depends on the platform: stand-ins are a GB10, real packages a CPU.
BY_PLATFORM = {"mm-processor-device"}

# An option whose values vLLM looks into while it parses; the catalogue does not know the form.
VALUES_OF_THEIR_OWN = ("Invalid JSON format for --lora-modules", "Invalid fields for --lora-modules")

# Argument lists for decisions outside argparse.
BY_HAND = [
    ["M", "-O3"],
    ["M", "-O", "2"],
    ["M", "-O=1"],
    ["M", "-tp=2"],
    ["M", "-tp2"],
    ["M", "-n2"],
    ["M", "-t", "2"],
    ["M", "-d", "2"],
    ["M", "--he"],
    ["M", "N"],
    ["--enforce-eager", "M"],
    ["--model", "M"],
    ["--model=M", "--seed", "1"],
    ["-tp", "2", "--served-model-name", "a"],
    ["M", "--served_model_name", "a", "b", "--seed", "1"],
    ["M", "--hf-overrides.a.b", "1", "--hf_overrides.c+", "x,y"],
    ["M", "--hf-overrides.a"],
    ["M", "--max-num-seqs.x", "4"],
    ["M", "--max-num-seqs", "-1.5"],
    ["M", "--kv-transfer-config", '{"kv_connector_extra_config":{"size":64k}}'],
    ["M", "--compilation-config", '{"zz":1}'],
    ["M", "--compilation-config.zz", "1"],
    ["M", "--compilation-config", "3"],
    ["M", "--speculative-config", '{"method":"mtp","num_speculative_tokens":2}'],
    ["M", "--speculative-config", "mtp"],
    ["M", "--enforce-eager", "true"],
    ["M", "--enforce-eager=true"],
    ["M", "--disable-prefix-caching"],
    ["M", "--middleware", "a.b", "--middleware", "c.d"],
    ["M", "--hf-token", "--seed", "1"],
]


def ask(python: Path, tree: Path, *more: str) -> Any:
    """Run the probe."""
    done = subprocess.run(
        [str(python), str(generator.PROBE), str(tree), *more], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{tree.name}: the probe failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Return the differences of two answers of the probe."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = sorted(ours.keys() | theirs.keys())
        return [text for key in keys for text in differences(ours.get(key), theirs.get(key), f"{where}/{key}")]
    return [] if ours == theirs else [f"{where}: {ours!r} is {theirs!r}"]


def by_name(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the probe with its options by name, without those that depend on the platform."""
    options = {option["name"]: option for option in answer["options"] if option["name"] not in BY_PLATFORM}
    return {**answer, "options": options}


def compare_reading(text: str, python: Path, tree: Path, *more: str) -> list[str]:
    """Let vLLM and launch.parse read the same argument lists."""
    version, draw = versions.version(text), random.Random(text)
    cases = [*BY_HAND, *(word_lists(version, draw) for _case in range(CASES))]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([["serve", *words] for words in cases], file)
        file.flush()
        outcomes = ask(python, tree, *more, "--cases", file.name)
    problems = []
    for words, outcome in zip(cases, outcomes):
        parsed = parse(words, text)
        ours = [problem for problem in parsed.problems if problem.kind != "model_option" or problem.vllm_error]
        if outcome.get("error", "").startswith(VALUES_OF_THEIR_OWN):
            continue
        if ("error" in outcome) != bool(ours):
            problems.append(f"{' '.join(words)}: vLLM {outcome}, here {ours}")
        elif "args" in outcome:
            problems += [
                f"{' '.join(words)}: {difference}" for difference in compare_values(parsed.args, outcome["args"])
            ]
    print(
        f"   {len(cases)} argument lists, {sum('args' in outcome for outcome in outcomes)} of them taken, {len(problems)} read differently"
    )
    return problems


def compare_values(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Return the differing values of options that are not at their defaults; objects are not compared."""
    different = []
    for name, value in theirs.items():
        mine = ours.get(name.replace("_", "-"))
        if name not in ("model_tag", "model", "lora_modules") and is_comparable(value) and not is_same(mine, value):
            different.append(f"{name} is {value!r}, here {mine!r}")
    return different


def is_comparable(value: Any) -> bool:
    """Return whether a value of vLLM's parser is no object and not missing."""
    return value is not None and "<" not in str(value) and "..." not in str(value)


def is_same(mine: Any, value: Any) -> bool:
    """Return whether a value of ours is vLLM's."""
    if value is True and isinstance(mine, str) and mine:
        return True  # --guided-decoding-disable-..., which takes any text for true
    if isinstance(value, list) and not isinstance(mine, (list, dict)):
        value, mine = [str(item) for item in value], str(mine).split(",")  # --device-ids
    mine = -1 if mine == "auto" and value == -1 else mine
    return mine == value or str(mine).strip() == str(value).strip()


def main() -> int:
    """Compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--real", type=Path, metavar="PYTHON")
    parsed = parser.parse_args()
    stand_in = generator.probe_python()
    written = generator.written()
    failed = []
    for tree in parsed.sources:
        text = tree.resolve().name
        print(f"== vLLM {text}", flush=True)
        answer = ask(stand_in, tree)
        problems = (
            [] if generator.snapshot(answer) == written[text] else ["the catalogue is not what the generator reads now"]
        )
        if parsed.real:
            real = ask(parsed.real, tree, "--real")
            apart = differences(by_name(answer), by_name(real))
            print(
                f"   {len(real['options'])} options and {sum(map(len, real['tables'].values()))} names asked for with real packages, {len(apart)} different"
            )
            problems += apart
        python, more = (parsed.real, ["--real"]) if parsed.real else (stand_in, [])
        problems += compare_reading(text, python, tree, *more)
        print("\n".join(f"   DIFFERENT {problem}" for problem in problems[:20]) or "   the same", flush=True)
        failed += problems
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
