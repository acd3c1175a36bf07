"""Asking an image: the program that runs inside it, run here for real, and the description made from its answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import program_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import (
    image_looks,
    image_probe,
    image_probe_program,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import containers

PROGRAM = program_text.program(image_probe_program)

ARG_UTILS = """
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        group = parser.add_argument_group("model", "--not-an-option")
        group.add_argument("--model", type=str)
        group.add_argument("--max-num-seqs", *more, **kwargs["max_num_seqs"])
        group.add_argument("--quantization", "-q")
        for number in range(1):
            parser.add_argument("--seed_of_a_fork")
"""
CLI_ARGS = '''
class BaseFrontendArgs:
    """Not --made-up."""
    lora_modules: list[LoRAModulePath] | None = None
    enable_auto_tool_choice: bool = False

    def add_cli_args(parser):
        for key, value in kwargs.items():
            parser.add_argument(f"--{key.replace('_', '-')}", **value)
'''


def package(root: Path, name: str, version: str) -> None:
    """Leave the metadata that pip leaves of an installed package."""
    info = root / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """What a site-packages with vLLM holds; importing any of it would fail."""
    root = tmp_path / "site"
    package(root, "vllm", "0.24.0+092c4842")
    package(root, "torch", "2.11.0+cu130")
    for path, text in {
        "vllm/__init__.py": "raise SystemExit('vllm was imported')",
        "torch/__init__.py": "raise SystemExit('torch was imported')",
        "vllm/engine/arg_utils.py": ARG_UTILS,
        "vllm/entrypoints/openai/cli_args.py": CLI_ARGS,
        f"vllm/{image_probe_program.SPIN_FILE}": 'window = os.getenv("FORK_SHM_BUSY_LOOP_S", "1")  # LOOP_S, SHM_LOOP_SIZE',
        "vllm/envs.py": 'environment_variables = {"VLLM_PORT": lambda: 1, "VLLM_OF_A_FORK": lambda: 2}',
        "vllm/tool_parsers/__init__.py": '_TOOL_PARSERS_TO_REGISTER = {"hermes": ("file", "Class")}',
        "vllm/reasoning/__init__.py": "this is = not Python",
        "vllm/model_executor/models/registry.py": '_A = {"Qwen3ForCausalLM": ("qwen3", "x")}\n_B = {**_A, "B": ()}',
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def ask(path: str, **env: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": path, **env},
    )
    answer, lasting = image_probe.parse(done.returncode, done.stdout, done.stderr, 60)
    assert lasting, done.stderr
    return answer


def test_packages_and_sources_are_read_without_importing_them(site: Path) -> None:
    answer = ask("/nonexistent", PYTHONPATH=str(site))
    assert answer["error"] is None
    assert answer["packages"] == {"vllm": "0.24.0+092c4842", "torch": "2.11.0+cu130"}
    assert answer["options"] == [
        "enable-auto-tool-choice",
        "lora-modules",
        "max-num-seqs",
        "model",
        "quantization",
        "seed-of-a-fork",
    ]
    assert answer["names"] == ["B", "FORK_SHM_BUSY_LOOP_S", "Qwen3ForCausalLM", "VLLM_OF_A_FORK", "VLLM_PORT", "hermes"]


def wheel_of_nccl(site: Path, recorded: int, content: bytes) -> None:
    """Install NCCL as pip does: its record says how large the library was."""
    package(site, "nvidia_nccl_cu13", "2.28.9")
    library = site / "nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(content)
    record = site / "nvidia_nccl_cu13-2.28.9.dist-info/RECORD"
    record.write_text(f"nvidia/nccl/lib/libnccl.so.2,sha256=x,{recorded}\n")


SAID = b"\x7fELF..NCCL version 2.29.7+cuda13.0.."


@pytest.mark.parametrize(
    ("recorded", "env", "nccl"),
    [
        (len(SAID), {}, {"library": "pip", "version": "2.28.9"}),
        (len(SAID) + 1, {}, {"library": "replaced", "version": "2.29.7"}),
        (len(SAID), {"VLLM_NCCL_SO_PATH": "{other}"}, {"library": "named", "version": "2.29.7"}),
        (len(SAID), {"LD_PRELOAD": "/nonexistent.so:/nonexistent/libnccl.so"}, {"library": "named", "version": ""}),
    ],
)
def test_which_nccl_is_loaded(
    site: Path,
    tmp_path: Path,
    recorded: int,
    env: dict[str, str],
    nccl: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wheel_of_nccl(site, recorded, SAID)
    (tmp_path / "libnccl.so.2").write_bytes(SAID)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    for name, value in env.items():
        monkeypatch.setenv(name, value.format(other=tmp_path / "libnccl.so.2"))
    assert image_probe_program.nccl() == nccl


def test_an_image_of_debian_packages_has_the_systems_nccl(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/aarch64-linux-gnu"
    folder.mkdir(parents=True)
    assert image_probe_program.nccl(str(tmp_path)) == {}
    (folder / "libnccl.so.2.28.9").write_bytes(b"x")
    assert image_probe_program.nccl(str(tmp_path)) == {"library": "system", "version": "2.28.9"}


def test_caches_that_an_image_brings_along_are_named(site: Path, tmp_path: Path) -> None:
    (tmp_path / "triton/ab").mkdir(parents=True)
    (tmp_path / "triton/ab/kernel.cubin").write_text("x")
    (tmp_path / "home/.cache/vllm").mkdir(parents=True)  # empty
    env = {"HOME": str(tmp_path / "home"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    answer = ask("/nonexistent", PYTHONPATH=str(site), **env)
    assert answer["caches"] == {"TRITON_CACHE_DIR": str(tmp_path / "triton")}
    assert (image_looks.describe(answer, {}) or {})["caches"] == answer["caches"]


@pytest.mark.parametrize("place", ["openai", "launchers", "common"])
def test_the_front_end_is_found_where_versions_put_it(site: Path, place: str) -> None:
    old = site / "vllm" / "entrypoints" / "openai" / "cli_args.py"
    new = site / "vllm" / "entrypoints" / place / "cli_args.py"
    new.parent.mkdir(exist_ok=True)
    old.rename(new)
    assert "enable-auto-tool-choice" in ask("/nonexistent", PYTHONPATH=str(site))["options"]


def test_the_interpreter_of_the_vllm_command_is_asked_where_python3_has_no_vllm(site: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    other = tools / "python3-of-vllm"
    other.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    (tools / "vllm").write_text(f"#!{other}\nfrom vllm import main\n")
    (tools / "vllm").chmod(0o755)
    assert ask(f"{tools}:/bin:/usr/bin")["packages"]["vllm"] == "0.24.0+092c4842"


def test_an_image_without_vllm_answers_too(tmp_path: Path) -> None:
    (tmp_path / "vllm").write_text("#!/bin/sh\n")
    (tmp_path / "vllm").chmod(0o755)
    answer = ask(str(tmp_path))
    assert answer["options"] == [] and "vllm" not in answer["packages"]
    description = image_looks.describe(answer, {})
    assert description is not None and description["vllm_version"] is None and description["ray"] is None


def test_the_working_directory_is_not_taken_for_the_installed_vllm(site: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=site,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/nonexistent"},
    )
    assert json.loads(done.stdout.partition(image_probe_program.MARK)[2])["options"] == []


def test_the_container_has_no_gpu_and_no_network_and_ends() -> None:
    argv = containers.image_question("sha256:aa", "dgxspark-probe-1", PROGRAM, 30)
    assert argv[:3] == ["timeout", "--kill-after=5", "30"]
    words = " ".join(argv)
    assert "--rm --pull never" in words and "--network none" in words and "--read-only" in words
    assert "--gpus" not in words and "NVIDIA_VISIBLE_DEVICES=void" in words
    assert argv[-3] == "sha256:aa" and argv[-4] == "python3"


@pytest.mark.parametrize(
    ("rc", "out", "err", "error", "lasting"),
    [
        (124, "", "", "no answer within 60 seconds", False),
        (137, "", "", "no answer within 60 seconds", False),
        (127, "", 'docker: exec: "python3": executable file not found in $PATH', "the image has no python3", True),
        (125, "", "docker: Error response from daemon: no space left", "docker: Error response from daemon: no space left", False),
        (1, "", "", "exit code 1", False),
        (0, "dgxspark-image-probe:not json", "", "exit code 0", False),
    ],
)  # fmt: skip
def test_what_is_no_answer(rc: int, out: str, err: str, error: str, lasting: bool) -> None:
    assert image_probe.parse(rc, out, err, 60) == ({"error": error}, lasting)


def test_an_answer_is_found_behind_what_else_python_prints() -> None:
    out = 'Warning: sitecustomize\ndgxspark-image-probe:{"python": "3.12.3"}\n'
    assert image_probe.parse(0, out, "", 60) == ({"error": None, "python": "3.12.3"}, True)


@pytest.mark.parametrize(
    ("packages", "toolkit", "env", "cuda"),
    [
        ({"torch": "2.11.0+cu130"}, "13.2.1", {}, "13.0"),
        ({"torch": "2.12.0a0+1.nv26.04"}, "13.2.1", {}, "13.2"),
        ({"torch": "2.12.0a0"}, None, {"CUDA_VERSION": "13.4.3.012"}, "13.4"),
        ({"torch": "2.10.0", "nvidia-cuda-runtime-cu12": "12.9.79"}, None, {}, "12.9"),
        ({}, None, {}, None),
    ],
)
def test_cuda_release(packages: dict[str, str], toolkit: str | None, env: dict[str, str], cuda: str | None) -> None:
    description = image_looks.describe({"packages": packages, "cuda_toolkit": toolkit}, env)
    assert description is not None and description["cuda"] == cuda


def test_few_options_mean_that_the_sources_could_not_be_read() -> None:
    few = image_looks.describe({"options": ["model"]}, {})
    many = image_looks.describe({"options": [f"o{number}" for number in range(200)]}, {})
    assert few is not None and few["options"] == []
    assert many is not None and len(many["options"]) == 200


def test_an_image_that_was_not_asked_says_nothing() -> None:
    assert image_looks.describe(None, {}) is None


def test_cache_names_are_plain() -> None:
    assert image_looks.cache_name("sha256:" + "ab" * 32) == "ab" * 32 + ".json"
    assert image_looks.cache_name("../../etc/passwd") == "______etc_passwd.json"


def test_assemblers_say_their_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, broken = tmp_path / "ptxas", tmp_path / "ptxas-blackwell"
    good.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n", encoding="utf-8")
    broken.write_text("no program", encoding="utf-8")
    for path in (good, broken):
        path.chmod(0o755)
    places = {"toolkit": str(good), "triton": str(tmp_path / "absent"), "triton-blackwell": str(broken)}
    monkeypatch.setattr(image_probe_program, "PTXAS", places)
    assert image_probe_program.ptxas() == {"toolkit": "13.0"}
