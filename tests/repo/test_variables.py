"""The files generated from the schema are the output of their generator, and name it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tree
import yaml

GENERATOR = "scripts/generate_variables.py"


def generator(*words: str, root: Path = tree.ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / GENERATOR), *words],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tree.ROOT / "collections"), "PATH": str(Path(sys.executable).parent)},
    )


def test_files_are_what_their_generator_writes() -> None:
    run = generator("--check")
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("role", tree.ROLES)
@pytest.mark.parametrize("name", ["defaults/main.yml", "meta/argument_specs.yml", "README.md"])
def test_generated_files_say_how_they_are_made(role: str, name: str) -> None:
    assert GENERATOR in tree.read(f"roles/{role}/{name}")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("roles/gateway/defaults/main.yml", "gateway_start_timeout: 300", "gateway_start_timeout: 301"),
        ("roles/gateway/meta/argument_specs.yml", "Address to listen on.", "Where it listens."),
        ("roles/gateway/README.md", "| `4000` |", "| `4001` |"),
        ("roles/gateway/meta/variables.yml", "default: 127.0.0.1", "default: 127.0.0.2"),
    ],
)
def test_a_changed_file_is_named(tmp_path: Path, name: str, old: str, new: str) -> None:
    """In a copy of what the generator reads and writes."""
    for part in ("README.md", "defaults/main.yml", "meta/argument_specs.yml", "meta/variables.yml"):
        path = tmp_path / "roles/gateway" / part
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(tree.read(f"roles/gateway/{part}"), encoding="utf-8")
    (tmp_path / "scripts").mkdir()
    for script in (GENERATOR, "scripts/common.py"):
        (tmp_path / script).write_text(tree.read(script), encoding="utf-8")
    assert generator("--check", root=tmp_path).returncode == 0
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new), encoding="utf-8")
    run = generator("--check", root=tmp_path)
    assert run.returncode == 1
    if not name.endswith("variables.yml"):
        assert run.stdout == f"{name}: not what {GENERATOR} writes; run it and commit the result.\n"


@pytest.mark.parametrize("role", tree.ROLES)
def test_a_role_takes_what_the_inventory_has(role: str) -> None:
    """A default that is one of an inventory's is named there, not repeated."""
    points = yaml.safe_load(tree.read(f"roles/{role}/meta/variables.yml"))
    specs = tree.load(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]
    assert list(points) == list(specs)
    for name, option in points["main"].get("options", {}).items():
        if "as" in option:
            assert "default" not in option, f"{name} repeats what {option['as']} says"


def test_each_table_has_a_page() -> None:
    pages = "".join(tree.read(name) for name in tree.below("docs/", suffix=".md"))
    names = re.findall(r'^    "(spark_[\w.]+)": ', tree.read(GENERATOR), re.MULTILINE)
    assert len(names) > 12
    for table in ("variables", *(f"keys of {name}" for name in names)):
        assert pages.count(f"<!-- {table}: {GENERATOR} -->") == 1, table
