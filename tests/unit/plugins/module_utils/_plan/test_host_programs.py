# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Imports of programs on hosts, in every form of the statement; tests/repo/test_plugins.py compares them with what Python imports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import host_programs


@pytest.fixture
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A collection with the modules a/b, a/c, d/e, d/f and d/unused, and a component of one program."""
    for name in ("a/b", "a/c", "d/e", "d/f", "d/unused"):
        path = tmp_path / host_programs.ENGINE / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import os\n")
    monkeypatch.setattr(host_programs, "COLLECTION", tmp_path)
    monkeypatch.setattr(host_programs, "PROGRAMS", {"one": ("program.py",)})
    for function in (host_programs.library_files, host_programs._imports_of):
        function.cache_clear()
    yield tmp_path
    for function in (host_programs.library_files, host_programs._imports_of):
        function.cache_clear()


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("from dgxspark_vllm.a import b", ("a/b",)),
        ("from dgxspark_vllm.a import (\n    c,\n    b as other,\n)", ("a/b", "a/c")),
        ("from dgxspark_vllm.a.b import something", ("a/b",)),
        ("import dgxspark_vllm.d.e", ("d/e",)),
        ("import json, dgxspark_vllm.d.e as e", ("d/e",)),
        ("def late():\n    from dgxspark_vllm.d import f\n", ("d/f",)),
        ("from a import b", ()),
        ("import dgxspark_vllm", ()),
        ('"""Text.\n\nimport nothing of this, it is a sentence.\n"""', ()),
    ],
)
def test_each_form_of_an_import_is_read(collection: Path, statement: str, names: tuple[str, ...]) -> None:
    (collection / "program.py").write_text(f"import sys\n{statement}\n")
    assert host_programs.library_files("one") == names


def test_imports_of_imports_are_followed(collection: Path) -> None:
    engine = collection / host_programs.ENGINE
    (collection / "program.py").write_text("from dgxspark_vllm.a import b\n")
    (engine / "a/b.py").write_text("from .c import x\nfrom . import b\n")
    (engine / "a/c.py").write_text("from ..d import e\nfrom .._missing import y\n")
    (engine / "d/e.py").write_text("from ..a.b import z\nfrom .f import g\n")
    assert host_programs.library_files("one") == ("a/b", "a/c", "d/e", "d/f")


def test_an_unknown_component_is_refused() -> None:
    with pytest.raises(ValueError, match="known are agent"):
        host_programs.library_files("none")
