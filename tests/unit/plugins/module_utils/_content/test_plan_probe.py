"""Asking an image for its plan: the question, the container, and the program that runs inside, run here without vLLM and with a made-up one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import (
    plan_probe,
    plan_probe_program,
    plan_probe_standins,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._content.plan_probe_program import PLAN_MARK
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import image_answer

FILES = {"config.json": '{"model_type": "made_up"}'}
# What the program uses before it builds anything; the parser refuses what vLLM's would.
FAKE: dict[str, str] = {
    "torch/__init__.py": """
import sys, types
cuda = sys.modules["torch.cuda"] = types.ModuleType("torch.cuda")
class library: pass
def device(name): return name
def empty(*args, **options): return None
""",
    "torch/_ops.py": """
class _OpNamespace:
    def __init__(self, name): self.name = name
    def __getattr__(self, name): raise AttributeError(name)
""",
    "torch/library.py": "def register_fake(op, func=None, /, **options): raise RuntimeError(op)",
    "vllm/__init__.py": "",
    "vllm/logger.py": "",
    "vllm/platforms/__init__.py": "current_platform = None",
    "vllm/platforms/cuda.py": "class NonNvmlCudaPlatform: pass",
    "vllm/platforms/interface.py": "class DeviceCapability(tuple):\n    def __new__(cls, *parts): return tuple.__new__(cls, parts)",
    "vllm/model_executor/__init__.py": "",
    "vllm/model_executor/models/__init__.py": "",
    "vllm/model_executor/models/registry.py": "",
    "vllm/model_executor/layers/__init__.py": "",
    "vllm/model_executor/layers/quantization/__init__.py": "",
    "vllm/model_executor/layers/quantization/gptq_marlin.py": """
class GPTQMarlinConfig:
    def __init__(self, blocks): self.modules_in_block_to_quantize = blocks
    def maybe_update_config(self, model): self.modules_in_block_to_quantize = []
""",
    "vllm/config/__init__.py": "",
    "vllm/config/parallel.py": "def cuda_device_count_stateless(): return 0",
    "vllm/usage/__init__.py": "",
    "vllm/usage/usage_lib.py": "class UsageContext: OPENAI_API_SERVER = 1",
    "vllm/utils/__init__.py": "",
    "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
import os, sys
from pathlib import Path
class EngineArgs:
    speculative_config = None
    def __init__(self, model): self.model = model
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model")
        parser.add_argument("--max-num-seqs", type=int)
        return parser
    @classmethod
    def from_cli_args(cls, args): return cls(args.model)
    def create_engine_config(self, usage):
        print("noise on standard output")
        text = Path(self.model, "config.json").read_text()
        from vllm.platforms import current_platform as platform
        if "who" in text:
            raise ValueError(f"{platform.get_device_name()} {platform.get_device_capability()} {platform.has_device_capability(120)} "
                             f"{platform.has_device_capability((12, 2))} {os.environ['HF_HUB_OFFLINE']} {self.load_format} {self.trust_remote_code}")
        if "gptq" in text:
            from vllm.model_executor.layers.quantization.gptq_marlin import GPTQMarlinConfig
            made = [GPTQMarlinConfig(blocks) for blocks in (None, [["q_proj"], ["o_proj"]], ["experts"])]
            for each in made: each.maybe_update_config(self.model)
            raise ValueError(str([each.modules_in_block_to_quantize for each in made]))
        if "ranks" in text:
            from vllm.config import parallel
            raise ValueError(parallel.cuda_device_count_stateless())
        if "driver" in text:
            raise RuntimeError("Found no NVIDIA driver on your system")
        if "inspect" in text:
            import logging
            try:
                import a_package_that_is_not_there
            except ImportError:
                logging.getLogger("vllm").exception("Error in inspecting model architecture 'MadeUp'")
            raise ValueError("Model architectures ['MadeUp'] failed to be inspected. Please check the logs for more details.")
        if "runner" in text:
            raise ValueError("Model Runner V1 does not support: dspark speculative decoding")
        if "memory" in text:
            return platform.get_device_total_memory()
        if "kernel" in text:
            import vllm._C
            return vllm._C.a_kernel.that_is_there(1) and 1 / 0
        raise ValueError("Model architectures ['MadeUp'] are not supported for now.")
""",
}


def ask(root: Path, *questions: dict[str, Any], version: str = "0.33.0") -> list[dict[str, Any]]:
    """Run the program as an image's python3 would, with the packages below C(root)."""
    environment = {"PYTHONPATH": str(root), "PATH": "/nonexistent"}
    text = "".join(f"{json.dumps({**asked_question, 'folder': str(root / 'asked')})}\n" for asked_question in questions)
    done = subprocess.run(
        [sys.executable, "-S", "-c", plan_probe.program()],
        input=text,
        text=True,
        capture_output=True,
        check=True,
        env=environment,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(questions) and all(line.startswith(PLAN_MARK) for line in lines), done.stdout + done.stderr
    replies = [json.loads(line[len(PLAN_MARK) :]) for line in lines]
    for asked_question in replies:
        image_answer.read(asked_question)  # nothing that it says is refused
    return replies


def question(text: str = "{}", *argv: str) -> dict[str, Any]:
    return plan_probe.question({"config.json": text}, argv, [2**30])


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in FAKE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    info = tmp_path / "vllm-0.33.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")
    return tmp_path


def test_an_image_without_vllm_is_not_known(tmp_path: Path) -> None:
    reply = ask(tmp_path, question())[0]
    assert (reply["failure"]["kind"], reply["failure"]["text"]) == ("unknown", "there is no vLLM in the image")


def test_a_class_that_cannot_be_imported_is_not_known_with_the_reason_of_the_log(site: Path) -> None:
    """vLLM raises an error about it, as if it refused the model."""
    failure = ask(site, question("inspect"))[0]["failure"]
    assert (failure["kind"], failure["stage"]) == ("unknown", "config")
    assert "No module named 'a_package_that_is_not_there'" in failure["text"]
    assert failure["text"].endswith("failed to be inspected. Please check the logs for more details.")


def test_a_runner_that_is_taken_for_want_of_triton_refuses_nothing(site: Path) -> None:
    reply = ask(site, question("runner"))[0]
    assert not reply["triton"] and reply["failure"]["kind"] == "unknown"


def test_vllms_own_refusal_is_told_with_its_text(site: Path) -> None:
    failure = ask(site, question())[0]["failure"]
    assert (failure["kind"], failure["stage"]) == ("refused", "config")
    assert failure["text"] == "Model architectures ['MadeUp'] are not supported for now."


def test_what_its_parser_refuses_is_told(site: Path) -> None:
    failure = ask(site, question("{}", "--max-num-seqs", "many"))[0]["failure"]
    assert (failure["kind"], failure["stage"]) == ("refused", "arguments")
    assert failure["text"] == "argument --max-num-seqs: invalid int value: 'many'"


@pytest.mark.parametrize(("text", "why"), [("driver", "Found no NVIDIA driver"), ("kernel", "division by zero")])
def test_what_needs_a_gpu_is_not_known(site: Path, text: str, why: str) -> None:
    failure = ask(site, question(text))[0]["failure"]
    assert failure["kind"] == "unknown" and why in failure["text"]


def test_it_finds_a_gb10_and_several_questions_are_answered_one_by_one(site: Path) -> None:
    first, second = ask(site, question("who"), question("who", "--trust-remote-code"))
    assert first["failure"]["text"] == "NVIDIA GB10 (12, 1) True False 1 dummy False"
    assert second["failure"]["text"].endswith("True")


def test_without_headers_of_weights_gptq_quantises_what_its_configuration_says(site: Path) -> None:
    """A dot is part of every name of a layer, and of no name of a head."""
    reply = ask(site, question("gptq"))[0]
    assert reply["failure"]["text"] == "[['.'], ['q_proj', 'o_proj'], ['experts']]"
    assert "quantised layers" in reply["assumed"]


def test_until_0_19_it_counts_the_gpus_that_were_asked_about(site: Path) -> None:
    ranks_question = question("ranks")
    ranks_question["device"]["count"] = 8
    assert ask(site, ranks_question)[0]["failure"]["text"] == "8"


def test_until_0_32_the_memory_of_a_gb10_is_not_read(site: Path) -> None:
    new = ask(site, question("memory"))[0]["failure"]
    (site / "vllm-0.33.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.1\n")
    old = ask(site, question("memory"))[0]["failure"]
    assert "NVMLError_NotSupported" in old["text"] and "NVMLError_NotSupported" not in new["text"]


def test_vllm_in_another_interpreter_is_asked_there(site: Path, tmp_path: Path) -> None:
    other = tmp_path / "python-of-vllm"
    other.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')
    script = tmp_path / "bin" / "vllm"
    script.parent.mkdir()
    script.write_text(f"#!{other}\n")
    for path in (other, script):
        path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-S", "-c", plan_probe.program()],
        input=json.dumps({**question(), "folder": str(tmp_path / "asked")}),
        text=True,
        capture_output=True,
        check=True,
        env={"PATH": f"{script.parent}:/usr/bin:/bin"},
    )
    assert json.loads(done.stdout[len(PLAN_MARK) :])["packages"] == {"vllm": "0.33.0"}


def test_files_stay_in_their_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no plain name"):
        plan_probe_program.write_folder(tmp_path / "a", {"../b": ""})
    assert not (tmp_path / "b").exists()


def test_a_stand_in_may_be_named_but_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_probe_program, "assumed", {})
    operator = plan_probe_standins.Op("_C.a_kernel")
    assert operator.default == plan_probe_standins.Op("_C.a_kernel.default")
    with pytest.raises(plan_probe_standins.StandIn, match=r"stand-in called: _C\.a_kernel"):
        operator(1)
    assert plan_probe_standins.Op("_C.cutlass_scaled_mm_supports_fp8")(121) is True
    assert plan_probe_standins.assumed == {"_C.cutlass_scaled_mm_supports_fp8": "True"}


def test_the_container_has_no_gpu_no_network_and_bounds() -> None:
    argv = plan_probe.command("sha256:aa", "a-name", 60, 3)
    line = " ".join(argv[: argv.index("-c")])
    assert line.startswith("timeout --kill-after=5 60 docker run --name a-name --cap-drop ALL")
    for words in (
        *("--rm --pull never", "--interactive"),
        *("--network none", "--read-only", "--memory 3g --memory-swap 3g", "--cpus 2", "NVIDIA_VISIBLE_DEVICES=void"),
        *("--security-opt no-new-privileges", "--tmpfs /tmp:rw,nosuid,nodev,size=512m"),
    ):
        assert words in line
    assert line.endswith("--entrypoint python3 sha256:aa")
    # The kernel takes at most 128 KiB in one argument.
    assert argv[-1] == plan_probe.program() and len(argv[-1].encode()) < 100_000


def test_what_changes_no_memory_is_not_asked_about() -> None:
    argv = [
        "--enforce-eager",
        "--no-enable-prefix-caching",
        "--max-model-len=-1",
        "--speculative-config",
        '{"method":"mtp"}',
    ]
    beside = [
        "--api-key",
        "sk-1",
        "--port=8000",
        "--served-model-name",
        "a",
        "b",
        "--no-enable-log-requests",
        "--node-rank",
        "1",
    ]
    for mixed in ([*argv, *beside], [*beside, *argv], [*argv[:2], *beside, *argv[2:]]):
        assert plan_probe.relevant(mixed) == argv
        mixed_question = question("{}", *mixed)
        assert "sk-1" not in json.dumps(mixed_question) and plan_probe.digest(mixed_question) == plan_probe.digest(
            question("{}", *argv)
        )


def test_a_question_has_one_name_for_all_sizes_and_another_for_all_else() -> None:
    base = plan_probe.question(FILES, [], [1, 2])
    assert plan_probe.digest(base) == plan_probe.digest(plan_probe.question(FILES, [], [3]))
    differing = [
        plan_probe.question({"config.json": "{}"}, [], [1]),
        plan_probe.question(FILES, ["--max-model-len", "5"], [1]),
        plan_probe.question(FILES, ["--trust-remote-code"], [1]),
        plan_probe.question(FILES, [], [1], {"config.json": "{}"}),
        plan_probe.question(FILES, [], [1], None, 2**36),
    ]
    names = {plan_probe.cache_name("sha256:aa", asked_question) for asked_question in (base, *differing)}
    assert len(names) == 6 and all(name.startswith("aa-") and name.endswith(".json") for name in names)


@pytest.mark.parametrize(
    ("files", "trust", "why"),
    [
        ({}, False, "neither config.json nor params.json"),
        ({**FILES, "../a.json": ""}, False, "no plain name"),
        ({**FILES, "model.safetensors": ""}, False, "no plain name"),
        ({**FILES, "configuration_x.py": ""}, False, "only with trust-remote-code"),
        ({"config.json": "x" * (plan_probe.MOST_FILE + 1)}, False, "more than"),
        ({**FILES, "configuration_x.py": ""}, True, ""),
    ],
)
def test_files_that_are_not_given_to_an_image(files: dict[str, str], trust: bool, why: str) -> None:
    messages = plan_probe.problems(files, trust)
    assert (len(messages) == 1 and why in messages[0]) if why else messages == []


@pytest.mark.parametrize(
    ("rc", "out", "err", "why"),
    [
        (0, f"noise\n{PLAN_MARK}{{}}\n", "", ""),
        (0, f"{PLAN_MARK}[1\n", "", "its answer cannot be read"),
        (0, f"{PLAN_MARK}[]\n", "", "its answer cannot be read"),
        (137, "", "", "no answer within 9 seconds and 4 GiB of memory"),
        (127, "", 'exec: "python3": not found', "the image has no python3"),
        (1, "", "first\nlast\n", "last"),
        (125, "", "", "exit code 125"),
    ],
)
def test_what_docker_gives(rc: int, out: str, err: str, why: str) -> None:
    reply, reason = plan_probe.parse(rc, out, err, 9)
    assert reason == why and (reply == {}) is (why == "")


class Tensor:
    """A parameter of 1 byte for each element."""

    dtype = "torch.int8"

    def __init__(self, size: int) -> None:
        self.size = size

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return 1

    def untyped_storage(self) -> Any:
        return type("Storage", (), {"_cdata": id(self)})


@pytest.mark.parametrize(
    ("kind", "ordered", "biased", "total"),
    [
        ("AutoGPTQMoEMethod", False, False, 1),
        ("AutoGPTQMoEMethod", True, False, 1 + 10 + 100),
        ("GPTQMarlinMoEMethod", False, True, 1 + 1000),
        ("UnquantizedFusedMoEMethod", False, False, 1111),
    ],
)
def test_what_gptq_frees_after_loading_is_not_counted(kind: str, ordered: bool, biased: bool, total: int) -> None:
    method = type(kind, (), {})()
    method.quant_config = type("Config", (), {"desc_act": ordered})
    method.moe = type("Moe", (), {"has_bias": biased})
    tensors = {
        "w13_qweight": Tensor(1),
        "w13_g_idx": Tensor(10),
        "w2_g_idx_sort_indices": Tensor(100),
        "w2_bias": Tensor(1000),
    }

    class Model:
        quant_method = method

        def modules(self) -> list[Any]:
            return [self]

        def named_parameters(self, recurse: bool = True) -> list[tuple[str, Tensor]]:
            return list(tensors.items())

        def named_buffers(self) -> list[Any]:
            return []

    assert plan_probe_program.weights_of(Model())["bytes"] == total


class _Tensor:
    """A parameter as far as its bytes are asked for."""

    def __init__(self, rows: int, columns: int, size: int, **marks: Any) -> None:
        self.shape, self.size = (rows, columns), size
        vars(self).update(marks)

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]

    def element_size(self) -> int:
        return self.size


def test_bytes_of_a_parameter_are_those_that_are_stored() -> None:
    assert plan_probe_program.size_of(_Tensor(8, 64, 2)) == 1024
    assert plan_probe_program.size_of(_Tensor(256, 1, 1, use_bitsandbytes_4bit=True)) == 256 + 512 // 64 * 4
    assert plan_probe_program.size_of(_Tensor(8, 64, 1, use_bitsandbytes_8bit=True)) == 512 + 8 * 4
    inside = {"qdata": _Tensor(8, 64, 1), "scale": _Tensor(8, 1, 4)}
    torchao = _Tensor(8, 64, 2, __tensor_flatten__=lambda: (["qdata", "scale"], None), **inside)
    assert plan_probe_program.size_of(torchao) == 512 + 32
