"""The real engine image is asked for its plan: its answers are the recorded rows, and plan models that the arithmetic does not know.

Compare, module and playbook of the controller run as a person would run them, with the Docker of a node in the place of this machine's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path[:0] = [str(ROOT / folder) for folder in ("collections", "molecule", "tests/unit/plugins", "tests/sim")]

import launches_fixture
from nodes import NODES
from simlib import realengine

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import budget, service_cache, service_memory
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Refusal

IMAGE, VERSION = "dgxspark/vllm-cpu:0.32.0", "0.32.0"
DOCKER = ["docker", "exec", "-i", NODES["spark-1"], "docker"]
GIB = 1 << 30
SECONDS, PEAK_GIB = 60, 3
"""What a probe may take: seconds of a processor, as scenarios share the cores, and memory."""
# What vLLM reads of a config.json beside the fields that the fixture has, which are those of the arithmetic. Of models with pictures, sparse
# attention or formats of few bits it needs packages or fields that are not there.
ARCHITECTURES = {
    "ERNIE-4.5-21B-A3B": "Ernie4_5_MoeForCausalLM",
    "GLM-4.6": "Glm4MoeForCausalLM",
    "GLM-4.7-Flash": "Glm4MoeLiteForCausalLM",
    "Nemotron-3-Nano-30B-A3B-BF16": "NemotronHForCausalLM",
    "Qwen3-4B-Instruct-2507": "Qwen3ForCausalLM",
    "Qwen3-8B": "Qwen3ForCausalLM",
    "Qwen3-Embedding-0.6B": "Qwen3ForCausalLM",
    "Qwen3-Next-80B-A3B": "Qwen3NextForCausalLM",
    "gpt-oss-20b": "GptOssForCausalLM",
}
# A family without arithmetic: 4 layers with 8 heads of 64 values.
UNKNOWN = {
    **{
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "torch_dtype": "bfloat16",
        "vocab_size": 50304,
    },
    **{"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8},
    **{"max_position_embeddings": 2048, "rotary_pct": 0.25, "transformers_version": "5.0"},
}


# Of the models whose rows were recorded, those that every run asks about: sliding windows, and latent attention.
EACH_RUN = ("gpt-oss-20b", "GLM-4.7-Flash")
SMALL = json.loads((ROOT / "tests/unit/plugins/fixtures/small_models.json").read_text(encoding="utf-8"))["models"]


@pytest.fixture(scope="module", autouse=True)
def docker(tmp_path_factory):
    """The node's Docker in the place of this machine's; returns the log of its calls."""
    folder = tmp_path_factory.mktemp("docker")
    label = '{{index .Config.Labels "dgxspark.engine"}}'
    done = subprocess.run(
        [*DOCKER, "image", "inspect", "--format", label, IMAGE], capture_output=True, text=True, check=True
    )
    if done.stdout.strip() != "vllm-cpu":
        try:
            realengine.fetch_torch(folder)
        except realengine.NotAvailable as error:
            pytest.skip(f"a stand-in has the name of the real engine, which cannot be had here: {error}")
        pytest.fail(
            "a stand-in has the name of the real engine, which could have been built here: sparksim build says why it was not"
        )
    program = folder / "bin" / "docker"
    program.parent.mkdir()
    real = subprocess.run(["which", "docker"], capture_output=True, text=True, check=True).stdout.strip()
    words = [real, *DOCKER[1:]]
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"with open({str(folder / 'log')!r}, 'a') as log:\n    log.write(' '.join(sys.argv[1:2]) + '\\n')\n"
        f"os.execv({real!r}, {words!r} + sys.argv[1:])\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    before = dict(os.environ)
    # The module of the controller keeps what it hears below the home folder.
    os.environ.update(
        PATH=f"{program.parent}:{before['PATH']}",
        HOME=str(folder),
        ANSIBLE_NOCOLOR="1",
        ANSIBLE_CALLBACK_RESULT_FORMAT="json",
    )
    yield folder / "log"
    os.environ.clear()
    os.environ.update(before)


def as_planned(model):
    """The recorded fields of a model's configuration with what only vLLM reads."""
    return {
        **launches_fixture.load()["configs"][model],
        "architectures": [ARCHITECTURES[model]],
        "torch_dtype": "bfloat16",
    }


@pytest.mark.parametrize(
    "models",
    [EACH_RUN, pytest.param(tuple(sorted(set(ARCHITECTURES) - set(EACH_RUN))), marks=pytest.mark.nightly)],
    ids=["two", "all others"],
)
def test_the_image_gives_the_recorded_rows(models, tmp_path):
    data = launches_fixture.load()
    rows = zip(data["cases"], data["versions"][VERSION]["answers"], strict=True)
    recorded = [(case, row) for case, row in rows if case[0] in models]
    assert len(recorded) >= len(models) and all(isinstance(row, list) for _case, row in recorded)
    for model in models:
        (tmp_path / f"{model}.json").write_text(json.dumps(as_planned(model)), encoding="utf-8")
    fixture = tmp_path / "rows" / "asked.json"
    fixture.parent.mkdir()
    launches_fixture.save({**data, "cases": [case for case, _row in recorded], "versions": {}}, fixture)
    # What `make compare IMAGE=` runs.
    compare = [sys.executable, str(ROOT / "tests" / "oracle" / "compare.py"), "--configs", str(tmp_path)]
    done = subprocess.run(
        [*compare, "--image", IMAGE, "--record", str(fixture)], capture_output=True, text=True, timeout=540, check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f": {len(recorded)} equal;" in done.stderr
    ((version, expected),) = launches_fixture.load(fixture)["versions"].items()
    assert version.startswith(VERSION)
    assert expected["answers"] == [row for _case, row in recorded]
    spent, peak = re.search(r"(\d+) s of a processor and ([\d.]+) GiB for one", done.stderr).groups()
    assert int(spent) <= SECONDS and float(peak) <= PEAK_GIB


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["Qwen3-Next-80B-A3B", "Qwen3-4B-Instruct-2507", "GLM-4.7-Flash", "gpt-oss-20b"])
def test_a_family_that_is_hidden_from_the_arithmetic_is_planned_by_the_image_as_by_the_arithmetic(model, monkeypatch):
    hidden_as_known({"config.json": as_planned(model)}, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("model", SMALL)
def test_a_new_family_that_is_hidden_is_planned_by_the_image_too(model, monkeypatch):
    """Delta attention with latent attention; windows with separate heads, whose configuration is code of the model's repository."""
    hidden_as_known(SMALL[model]["files"], monkeypatch)


def hidden_as_known(files, monkeypatch):
    """Compare the image's answer for a model whose family is hidden from the arithmetic with the arithmetic."""
    size = 20 * GIB + 4321
    config = files["config.json"]
    args = {"max-model-len": 16384, "max-num-seqs": 4, "max-num-batched-tokens": 8192, "gpu-memory-utilization": 0.9}
    argv = [word for name, value in args.items() for word in (f"--{name}", str(value))]
    argv += ["--trust-remote-code"] if len(files) > 1 else []
    request = {"image": IMAGE, "files": files, "args": argv, "available": [GIB << 10, GIB << 11]}
    request["cache_dir"] = f"{os.environ['HOME']}/image_plans"
    reply = module(request)
    assert reply["source"] == "image", reply["reason"]
    answer = reply["answer"]
    print(
        f"{config['model_type']}: {answer['seconds']} s, {answer['cpu_seconds']} s of a processor, {answer['peak_bytes'] / GIB:.2f} GiB"
    )
    assert answer["cpu_seconds"] <= SECONDS and answer["peak_bytes"] <= PEAK_GIB * GIB
    assert module(request)["source"] == "cache"

    service = {"name": "x", "config": config, "vllm_version": VERSION, "args": args, "available_kv_bytes": size}
    computed = memory_budget({"services": [service]})["services"]["x"]
    assert set(computed["sources"].values()) == {"calculated (compared with vLLM)"}

    def refuse(_config):
        raise Refusal("config.model_type", "the family is not known")

    monkeypatch.setattr(service_cache, "read_geometry", refuse)
    forget()
    try:
        assert memory_budget({"services": [service]})["services"]["x"] == {"verdict": "fails"}
        informed = {**service, "image_plan": {"answer": answer, "reason": ""}}
        with_answer = memory_budget({"services": [informed]})["services"]["x"]
    finally:
        forget()
    assert set(with_answer["sources"].values()) == {"image"}
    keys = (
        "num_blocks",
        "bytes_per_block",
        "block_size",
        "gpu_kv_cache_size_tokens",
        "max_concurrency",
        "needed_bytes_one_request",
        "model_runner",
        "overhead_gib",
        "beside_gib",
    )
    assert {key: with_answer[key] for key in keys} == {key: computed[key] for key in keys}
    assert with_answer["weights_bytes"] == pytest.approx(computed["weights_bytes"], rel=2e-5)


def forget():
    """Have the next budget worked out anew."""
    service_memory._resolve.cache_clear()
    budget._judge_once.cache_clear()


def module(arguments):
    """Run the module on this machine; returns its result."""
    words = ["ansible", "localhost", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}"]
    words += ["-m", "dgxspark.vllm.image_plan", "-a", json.dumps(arguments)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.partition("=>")[2])


@pytest.mark.nightly
def test_a_family_that_nobody_wrote_arithmetic_for_is_planned_once_for_two_sparks(tmp_path, docker):
    service = {
        **{"name": "new", "model": {"repo": "org/new"}, "config": UNKNOWN, "port": 8001},
        "image": {"ref": IMAGE, "vllm_version": VERSION, "entrypoint": "serve"},
        "args": {"max-model-len": 2048, "max-num-seqs": 4},
    }
    hosts = {f"spark-{number}": {"ansible_host": f"192.0.2.{number}"} for number in (1, 2)}
    inventory = tmp_path / "hosts.yml"
    variables = {"spark_services": [service], "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    inventory.write_text(yaml.safe_dump({"sparks": {"hosts": hosts, "vars": variables}}), encoding="utf-8")
    plan = ["ansible-playbook", "-i", str(inventory), "dgxspark.vllm.plan", "-e", "spark_probe=controller"]
    before = docker.read_text(encoding="utf-8").split().count("run")
    for _run in range(2):  # the second one asks nobody
        done = subprocess.run(plan, cwd=ROOT, capture_output=True, text=True, timeout=540, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "[memory.image]" in done.stdout
    assert docker.read_text(encoding="utf-8").split().count("run") - before == 1
    made = json.loads((tmp_path / ".spark" / "plan.json").read_text(encoding="utf-8"))
    for host in hosts:
        memory = made["hosts"][host]["services"][0]["memory"]
        assert memory["sources"] == {"weights": "image", "kv_cache": "image"}
        # 16 tokens of 4 layers: keys and values of 8 heads of 64 values in 16 bits.
        assert memory["bytes_per_block"] == 16 * 4 * 2 * 8 * 64 * 2
