"""The generator writes exactly the catalogue's data and page, and fails on sources that it does not understand."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import catalogue_sources
import generate_catalogue as generator
import pytest

FEW = {"name": "seed", "kind": "int", "default": 0, "aliases": [], "negatives": [], "choices": [], "suggested": []}


def probe_answer(**more: Any) -> dict[str, Any]:
    """The answer of the probe about a version with very few names."""
    option = {**FEW, "deprecated": False, **more}
    return {"options": [option], "tables": {"environment": []}, "traits": [], "requires": [], "python": ">=3.9"}


def test_data_is_what_the_generator_writes() -> None:
    assert generator.DATA.read_text(encoding="utf-8") == generator.render(generator.written())


def test_page_is_what_the_generator_writes() -> None:
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page(generator.written())


def test_every_version_has_what_a_version_has() -> None:
    for tables in generator.written().values():
        assert {table for table, (fewest, _title) in generator.TABLES.items() if len(tables[table]) < fewest} == set()


def test_a_version_that_knows_too_little_is_refused() -> None:
    with pytest.raises(generator.Failed, match=r"1 options of vllm serve, expected at least 165"):
        generator.check("0.99.0", probe_answer(), generator.snapshot(probe_answer()), None)


def test_a_version_that_lost_much_is_refused() -> None:
    before = generator.written()["0.33.0"]
    after = {**before, "tool_parsers": dict(list(before["tool_parsers"].items())[:30])}
    with pytest.raises(generator.Failed, match="30 tool parsers"):
        generator.check("0.99.0", {"options": [], "traits": []}, after, before)


def test_a_new_way_to_negate_is_refused() -> None:
    odd = probe_answer(kind="switch", negatives=["--without-seed"])
    with pytest.raises(generator.Failed, match=r"--seed is negated by \['--without-seed'\]"):
        generator.check("0.99.0", odd, generator.snapshot(odd), None)


@pytest.mark.parametrize(
    ("path", "message"), [("x", "holds no vllm/engine/arg_utils.py"), ("vllm/engine/arg_utils.py", "")]
)
def test_sources_that_are_not_understood_are_refused(tmp_path: Path, path: str, message: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    run = subprocess.run([sys.executable, generator.PROBE, tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode != 0 and message in run.stderr and run.stdout == ""


def test_differences_are_said_in_words() -> None:
    versions = generator.written()
    lines = generator.differences(versions["0.19.1"], versions["0.20.0"])
    assert "options of vllm serve, changed: --gpu-memory-utilization: default 0.9 is now 0.92" in lines
    assert any(line.startswith("quantisation methods, removed: ") and "petit_nvfp4" in line for line in lines)
    assert any(line.startswith("speculative methods, added: ") and "dflash" in line for line in lines)
    assert generator.differences(versions["0.20.1"], versions["0.20.2"]) == []


def test_one_version_more_is_added_without_touching_what_is_known() -> None:
    versions = generator.written()
    newer = dict(versions["0.33.0"]["options"])
    del newer["seed"]
    newer["brand-new"] = frozenset({(":", "int"), (">", "1")})
    text = generator.render({**versions, "0.34.0": {**versions["0.33.0"], "options": newer}})
    assert "\nseed|-0.33.0\n" in text and "\nbrand-new|0.34.0-|int|1\n" in text
    assert "\nblock-size|" in text and "\nwatchdog-config|0.33.0-|" in text


@pytest.mark.parametrize(
    ("having", "span"),
    [
        ([True, True, True], ""),
        ([False, True, True], "2-"),
        ([True, False, False], "1"),
        ([True, True, False], "-2"),
        ([True, False, True], "1,3-"),
    ],
)
def test_spans(having: list[bool], span: str) -> None:
    assert generator.render_span(having, ["1", "2", "3"]) == span


def test_archives_cannot_write_outside(tmp_path: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in ("vllm-1/vllm/a.py", "vllm-1/vllm/../../evil.py", "vllm-1/PKG-INFO", "vllm-1/setup.py"):
            archive.addfile(tarfile.TarInfo(name))
    generator.unpack("vllm-1.tar.gz", content.getvalue(), tmp_path / "in" / "1")
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()) == [
        "in/1/PKG-INFO",
        "in/1/vllm/a.py",
    ]


def test_wheels_are_unpacked_as_well(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as wheel:
        for name in ("vllm/a.py", "vllm/b.so", "vllm-1.dist-info/METADATA", "vllm/../../evil.py"):
            wheel.writestr(name, "")
    generator.unpack("vllm-1-cp38-abi3-any.whl", content.getvalue(), tmp_path / "1")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["METADATA", "a.py"]


def test_which_classes_take_adapters_is_read_from_the_sources(tmp_path: Path) -> None:
    files = {
        "model_executor/models/interfaces.py": "class SupportsLoRA:\n    supports_lora = True\n",
        "model_executor/models/plain.py": "from .interfaces import SupportsLoRA\nclass Plain(Module, SupportsLoRA): ...\n",
        "model_executor/models/child.py": "from vllm.model_executor.models.plain import Plain as Base\nclass Child(Base[int]): ...\n",
        "model_executor/models/bare.py": "class Bare(Module): ...\n",
        "model_executor/models/off.py": "from .plain import Plain\nclass Off(Plain):\n    supports_lora = False\n",
        "models/new/__init__.py": "if amd:\n    from .amd.model import New\nelif cpu:\n    from .cpu.model import New\n"
        "else:\n    from .nvidia.model import New\n",
        "models/new/amd/model.py": "class New(Module): ...\n",
        "models/new/cpu/model.py": "class New(Module): ...\n",
        "models/new/nvidia/model.py": "from vllm.model_executor.models.interfaces import SupportsLoRA\n"
        "class New(Module, SupportsLoRA): ...\n",
    }
    for name, text in files.items():
        path = tmp_path / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    registry = {
        **{"A": ("plain", "Plain"), "B": ("child", "Child"), "C": ("bare", "Bare"), "D": ("off", "Off")},
        "E": ("vllm.models.new", "New"),
    }
    assert catalogue_sources.without_adapters(tmp_path / "vllm", registry) == ["C", "D"]
    with pytest.raises(catalogue_sources.LayoutError, match="of F was not found"):
        catalogue_sources.without_adapters(tmp_path / "vllm", {"F": ("gone", "Gone")})
