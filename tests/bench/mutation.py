# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mutation score: change one place of the engine at a time and see whether a unit test fails.

    python tests/bench/mutation.py --count 100 --seed 1 [--part plan ...]

Each mutation is made in a scratch copy of the tracked files, with the unit tests that import the file or name it. It is caught if a
test fails or does not end in time; before that the tests have to pass on the unchanged file. The same seed makes the same mutations.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from common import tracked_files

ENGINE = "plugins/module_utils"
PARTS = {
    "plan": [f"{ENGINE}/_plan"],
    "memory": [f"{ENGINE}/_memory"],
    "compat": [f"{ENGINE}/_compat"],
    "deploy": [f"{ENGINE}/_host/deploy*.py", f"{ENGINE}/_host/unit_steps.py", "plugins/modules/deploy.py"],
    "generation": [f"{ENGINE}/_fleet/generation*.py"],
    "unit helper": ["roles/host/files/spark_unit.py", f"{ENGINE}/_runtime/load_guard.py"],
}
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}
EMPTY = {"str": "", "bool": False, "int": 0, "float": 0.0, "list": [], "dict": {}, "None": None}


@dataclass(frozen=True)
class Mutation:
    """One change of one file: of the lines from C(first) to C(last), the columns C(begin) to C(end), into C(text)."""

    file: str
    change: str
    first: int
    begin: int
    last: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """Return the file with the change. Columns count bytes, as ast does."""
        lines = source.encode().splitlines(keepends=True)
        head = b"".join(lines[: self.first - 1]) + lines[self.first - 1][: self.begin]
        tail = lines[self.last - 1][self.end :] + b"".join(lines[self.last :])
        return (head + self.text.encode() + tail).decode()


def changed(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the possible mutations of an expression, each with its kind of change."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
        yield "comparison", ast.Compare(node.left, [COMPARED[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield "and/or", ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in COUNTED and not _text(node):
        yield "operator", ast.BinOp(node.left, COUNTED[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        yield "constant", ast.Constant(node.value + 1)


def _text(node: ast.BinOp) -> bool:
    """Whether a sum is one of texts or lists, where minus is only a TypeError."""
    kinds = (ast.JoinedStr, ast.List, ast.ListComp)
    sides = (node.left, node.right)
    return any(
        isinstance(side, kinds) or (isinstance(side, ast.Constant) and isinstance(side.value, str)) for side in sides
    )


def mutations(file: str, source: str) -> list[Mutation]:
    """Return every mutation of a file."""
    tree = ast.parse(source)
    result = []
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in inside:  # a message for people; tests do not hold its figures' format
            continue
        if isinstance(node, ast.expr):
            for change, new in changed(node):
                result.append(_mutation(file, change, node, f"({ast.unparse(new)})"))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            kind = re.match(r"\w+", ast.unparse(node.returns))
            default = EMPTY.get(kind[0]) if kind else None
            if not kind or kind[0] not in EMPTY:
                continue
            returns = [item.value for item in ast.walk(node) if isinstance(item, ast.Return) and item.value is not None]
            result += [
                _mutation(file, "return", item, repr(default)) for item in returns if ast.unparse(item) != repr(default)
            ]
    return sorted(set(result), key=lambda item: (item.first, item.begin, item.change, item.text))


def _mutation(file: str, change: str, node: ast.expr, text: str) -> Mutation:
    return Mutation(file, change, node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0, text)


def files_of(part: str) -> list[str]:
    """Return the files of a part."""
    paths: list[Path] = []
    for pattern in PARTS[part]:
        path = ROOT / pattern
        paths += sorted(path.glob("*.py")) if path.is_dir() else sorted(path.parent.glob(path.name))
    return [str(path.relative_to(ROOT)) for path in paths if path.name != "__init__.py"]


def tests_of(file: str, most: int = 3) -> list[str]:
    """Return the unit tests that import a file, or name it as a program: at most so many, those named after it first.

    Rules are registered by the rulebook and named by no test; the tests of their package test them.
    """
    name = Path(file).stem
    if name.startswith("rules_"):
        tests = (ROOT / "tests/unit/plugins/module_utils/_compat").glob("test_*.py")
        return sorted(str(path.relative_to(ROOT)) for path in tests)
    package = re.escape(Path(file).parent.name)
    imported = re.compile(rf"\b{package}(\.{name}\b| import (\([^)]*|[^\n]*)\b{name}\b)|/{name}\.py\b")
    paths = [
        path for path in (ROOT / "tests/unit").rglob("test_*.py") if imported.search(path.read_text(encoding="utf-8"))
    ]
    # What plays whole playbooks comes last: it takes longest and seldom knows more than the tests of the file itself.
    paths.sort(key=lambda path: (name not in path.stem, path.parent.name == "action", str(path)))
    return [str(path.relative_to(ROOT)) for path in paths[:most]]


def choose(parts: list[str], count: int, seed: int) -> list[tuple[str, Mutation]]:
    """Return so many mutations, as many of each part as of the others; only of files that have tests."""
    chance = random.Random(seed)
    chosen = []
    for index, part in enumerate(parts):
        share = count // len(parts) + (index < count % len(parts))
        pool = [
            mutation
            for file in files_of(part)
            if tests_of(file)
            for mutation in mutations(file, (ROOT / file).read_text(encoding="utf-8"))
        ]
        chosen += [(part, mutation) for mutation in chance.sample(pool, min(share, len(pool)))]
    return chosen


def copy(folder: Path) -> Path:
    """Copy the tracked files; the working tree stays unchanged."""
    target = folder / "copy"
    for name in tracked_files():
        source, place = ROOT / name, target / name
        if source.is_symlink() or source.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place, follow_symlinks=False)
    return target


def run(copied: Path, tests: list[str], seconds: float) -> str:
    """Run tests in the copy: C(passed), C(failed), or C(took too long) after the deadline."""
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "not nightly",
        *tests,
    ]
    environment = {**os.environ, "PYTHONPATH": str(copied / "collections"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            ["nice", "-n", "19", *argv],
            cwd=copied,
            env=environment,
            timeout=seconds,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "took too long"
    return "passed" if done.returncode == 0 else "failed"


def main() -> int:
    """Make the mutations and print the share that is caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=100, help="mutations in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", action="append", choices=sorted(PARTS), help="of which part; of all when left out")
    parser.add_argument("--seconds", type=float, default=600, help="that the tests of one mutation may take")
    args = parser.parse_args()
    parts = args.part or list(PARTS)
    caught: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    whole_file: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copied = copy(Path(folder))
        for part, mutation in choose(parts, args.count, args.seed):
            place, tests = copied / mutation.file, tests_of(mutation.file)
            original = place.read_text(encoding="utf-8")
            if mutation.file not in whole_file:
                whole_file[mutation.file] = run(copied, tests, args.seconds)
            where = f"{mutation.file}:{mutation.first} {mutation.change}: {mutation.text}"
            if whole_file[mutation.file] != "passed":
                print(f"skipped     {where} (without it, its tests {whole_file[mutation.file]})", flush=True)
                continue
            began = time.monotonic()
            place.write_text(mutation.apply(original), encoding="utf-8")
            outcome = run(copied, tests, args.seconds)
            place.write_text(original, encoding="utf-8")
            tried[part] += 1
            caught[part] += outcome != "passed"
            word = {"passed": "SURVIVED", "failed": "caught", "took too long": "caught late"}[outcome]
            print(f"{word:11} {where} [{part}, {time.monotonic() - began:.0f} s]", flush=True)
    for part in parts:
        if tried[part]:
            print(f"{part}: {caught[part]} of {tried[part]} caught ({100 * caught[part] / tried[part]:.0f} %)")
    total = sum(tried.values())
    print(
        f"in all: {sum(caught.values())} of {total} caught ({100 * sum(caught.values()) / max(total, 1):.0f} %), seed {args.seed}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
