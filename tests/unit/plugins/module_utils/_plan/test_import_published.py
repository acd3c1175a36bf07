# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launches as owners of Sparks have published them, shortened: each is read, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import importer


def read(text: str) -> dict[str, Any]:
    """Import a launch as the action does; a recipe and a compose file come as parsed YAML."""
    document = yaml.safe_load(text) if text.lstrip().startswith(("recipe_version", "services:")) else None
    launch: dict[str, Any] = importer.import_launch(text, document)
    return launch


def omissions(launch: dict[str, Any]) -> dict[str, str]:
    return {entry["item"]: entry["reason"] for entry in launch["left_out"]}


def recipe(head: str, command: str) -> str:
    """A recipe of eugr with one command."""
    lines = "\n".join(f"  {line}" for line in command.strip().splitlines())
    return f'recipe_version: "1"\n{head.strip()}\ncommand: |\n{lines}\n'


SCRIPT = r"""
# 1. Cleanup
docker stop vllm_qwen && docker rm vllm_qwen
docker pull  scitrera/dgx-spark-vllm:0.13.0-t4
docker run -d \
  --gpus '"device=0"' --shm-size=16g -p 8356:8356 \
  -v "$HOME/.cache/huggingface:/root/.cache/huggingface" \
  scitrera/dgx-spark-vllm:0.13.0-t4\
  vllm serve \
        "GAlex535/Qwen3-Coder-30B-A3B-Instruct-NVFP4" \
        --port 8356 --max-model-len 256000  --tool-call-parser qwen3_coder --enable-auto-tool-choice
"""


def test_a_script_that_cleans_up_pulls_and_runs() -> None:
    """An owner's script, whose image stands without a blank before the line goes on."""
    launch = read(SCRIPT)
    service = launch["service"]
    assert service["image"]["ref"] == "scitrera/dgx-spark-vllm:0.13.0-t4"
    assert service["model"] == {"repo": "GAlex535/Qwen3-Coder-30B-A3B-Instruct-NVFP4"}
    assert (service["port"], service["shm_size"], service["args"]["max-model-len"]) == (8356, "16g", 256000)
    assert not any("docker" in item for item in omissions(launch))


def test_one_line_of_powershell() -> None:
    launch = read(
        "docker run --rm --gpus all -v $PWD/.cache/huggingface:/root/.cache/huggingface -p 8000:8000 --ipc=host "
        "vllm/vllm-openai:v0.6.6.post1 --model deepseek-ai/DeepSeek-V3 --trust-remote-code"
    )
    assert launch["service"]["model"] == {"repo": "deepseek-ai/DeepSeek-V3"}
    assert launch["service"]["args"] == {"trust-remote-code": True}
    assert {finding["rule"] for finding in launch["findings"]} >= {"SPK301"}  # a build without the GB10's kernels


PAGE = """
# vLLM GB10 / DGX Spark

Pull (once published):
```bash
docker pull th0rgal/vllm-gb10-dgx-spark:latest
```

Run:
```bash
docker run -d --name step3-vl \\
  --gpus all --ipc=host --ulimit memlock=-1 \\
  -p 8000:8000 -v /root/.cache/huggingface:/root/.cache/huggingface \\
  th0rgal/vllm-gb10-dgx-spark:latest \\
  vllm serve stepfun-ai/Step3-VL-10B -tp 1 --reasoning-parser deepseek_r1
```

## Build locally
```bash
docker build -t vllm-gb10:dev .
```
"""


def test_a_readme_with_one_launch_among_other_blocks() -> None:
    launch = read(PAGE)
    assert launch["service"]["name"] == "step3-vl" and launch["host_vars"] == {
        "spark_hf_home": "/root/.cache/huggingface"
    }
    assert launch["service"]["args"] == {"reasoning-parser": "deepseek_r1", "tensor-parallel-size": 1}


def test_a_readme_whose_image_waits_for_a_version() -> None:
    launch = read(
        "export LATEST_VLLM_VERSION=<latest_container_version>\n\n```bash\n"
        "docker run -it --gpus all -p 8000:8000 nvcr.io/nvidia/vllm:${LATEST_VLLM_VERSION} vllm serve a/b\n```\n"
    )
    assert "image" not in launch["service"] and "LATEST_VLLM_VERSION" in omissions(launch)["image"]


FLASH = recipe(
    """
name: glm-5.3-flash
model: zai-org/GLM-5.3-Flash
container: vllm/vllm-openai:glm53-flash-arm64-cu130
pull_image: true
cluster_only: true
mods: [mods/install-ray, mods/fix-glm53-nope-rope-pad]
defaults:
  {port: 8000, host: 0.0.0.0, tensor_parallel: 4, spec_config: '{"method":"mtp","num_speculative_tokens":5}'}
env: {VLLM_MLA_NOPE_PAD_ROPE: "1"}
""",
    r"""
vllm serve zai-org/GLM-5.3-Flash --host {host} --port {port} --tensor-parallel-size {tensor_parallel} \
    --kv-cache-dtype fp8_ds_mla --speculative-config '{spec_config}' --distributed-executor-backend ray
""",
)


def test_a_recipe_for_four_sparks_with_patches_and_options_in_json() -> None:
    launch = read(FLASH)
    service = launch["service"]
    assert launch["nodes"] == 4 and launch["spark_cluster"]["services"] == [service]
    assert service["args"]["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 5}
    assert service["env"] == {"VLLM_MLA_NOPE_PAD_ROPE": "1"}
    assert "dockerfile" in omissions(launch)["mods mods/install-ray, mods/fix-glm53-nope-rope-pad"]
    assert "pull_image" not in omissions(launch)


DIFFUSION = recipe(
    """
name: Diffusion-Gemma-NVFP4
model: nvidia/diffusiongemma-26B-A4B-it-NVFP4
container: vllm-node
solo_only: true
mods: [mods/diffusiongemma]
defaults: {port: 8000, host: 0.0.0.0, diffusion_config: '{"canvas_length":256}'}
env: {}
""",
    r"""
vllm serve nvidia/diffusiongemma-26B-A4B-it-NVFP4 --port {port} --host {host} \
    --diffusion-config '{diffusion_config}' --chat-template fixed_chat_template.jinja --reasoning-parser gemma4
""",
)


def test_a_template_that_a_patch_puts_into_the_container_is_named() -> None:
    launch = read(DIFFUSION)
    assert launch["nodes"] == 1 and launch["service"]["args"]["diffusion-config"] == {"canvas_length": 256}
    assert "under 'files'" in omissions(launch)["--chat-template fixed_chat_template.jinja"]


def test_a_template_that_is_mounted_is_not() -> None:
    launch = read(
        "docker run --gpus all -v /srv/t:/t:ro vllm/vllm-openai:v0.28.0 --model a/b --chat-template /t/gemma.jinja"
    )
    assert launch["service"]["args"] == {"chat-template": "/t/gemma.jinja"}
    assert launch["service"]["docker_args"] == ["--volume", "/srv/t:/t:ro"]
    assert not any("chat-template" in item for item in omissions(launch))


def test_a_recipe_for_one_spark_with_a_folded_description() -> None:
    launch = read(
        recipe(
            """
name: Nemotron-3-Super-NVFP4-Solo
description: >
  Single DGX Spark deployment of Nemotron-3-Super-120B
  with CUTLASS MoE backend
model: nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4
container: vllm-node
cluster_only: false
solo_only: true
env: {VLLM_ATTENTION_BACKEND: FLASHINFER}
defaults: {port: 8000, host: 0.0.0.0, gpu_memory_utilization: 0.85}
""",
            "vllm serve nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 --kv-cache-dtype fp8 --moe-backend cutlass "
            "--gpu-memory-utilization {gpu_memory_utilization} --host {host} --port {port}",
        )
    )
    assert launch["nodes"] == 1 and launch["spark_cluster"] is None
    assert launch["service"]["args"]["gpu-memory-utilization"] == 0.85
    assert launch["service"]["env"] == {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}


def test_a_recipe_for_pictures_is_refused() -> None:
    text = recipe(
        "name: FLUX.2\nmodel: black-forest-labs/FLUX.2-dev\ncontainer: flux2-torchao:latest\ndefaults: {port: 8000}\n"
        "env: {MODEL_PATH: black-forest-labs/FLUX.2-dev}",
        "uvicorn server:app --port {port}",
    )
    with pytest.raises(importer.Unreadable, match=r"no vllm serve in it: it runs uvicorn server:app"):
        read(text)


def test_a_recipe_with_an_assistant_and_short_options() -> None:
    launch = read(
        recipe(
            """
name: Gemma4-26B-A4B-FP8-Speculative
model: google/gemma-4-26B-A4B-it
container: vllm-node
cluster_only: false
solo_only: false
defaults: {port: 8000, host: 0.0.0.0, tensor_parallel: 2}
env: {}
""",
            r"""
vllm serve google/gemma-4-26B-A4B-it --port {port} --host {host} --quantization fp8 \
  --speculative-config '{{"method":"mtp","model":"google/gemma-4-26B-A4B-it-assistant","num_speculative_tokens":4}}' \
  -tp {tensor_parallel}
""",
        )
    )
    assert launch["service"]["model"]["extra"] == [{"repo": "google/gemma-4-26B-A4B-it-assistant"}]
    assert launch["nodes"] == 2 and launch["service"]["args"]["tensor-parallel-size"] == 2


CLUSTER = r"""
#!/bin/bash
cd ~/src/spark-vllm-docker || exit 1
exec ./launch-cluster.sh -t eugr/spark-vllm-b12x:nightly-20260925 --earlyoom \
  -n 192.168.177.11,192.168.177.12 -v /home/me/models:/models \
  -e CUTE_DSL_ARCH=sm_121a -e VLLM_ENABLE_ROCE_ALLREDUCE=1 --apply-mod mods/fix-x \
  exec vllm serve /models/GLM-5.3-Flash-NVFP4-Spark \
    --served-model-name glm53-spark --host 0.0.0.0 --port 8003 --tensor-parallel-size 2 --load-format b12x
"""


def test_eugrs_own_launcher_of_clusters() -> None:
    launch = read(CLUSTER)
    service = launch["service"]
    assert service["image"] == "eugr/spark-vllm-b12x:nightly-20260925"  # its entrypoint is in the catalogue
    assert service["env"] == {"CUTE_DSL_ARCH": "sm_121a", "VLLM_ENABLE_ROCE_ALLREDUCE": "1"}
    assert service["model"] == {"path": "/home/me/models/GLM-5.3-Flash-NVFP4-Spark"}
    assert (service["served_model_name"], service["port"], launch["nodes"]) == ("glm53-spark", 8003, 2)
    assert "dockerfile" in omissions(launch)["mods mods/fix-x"]
    assert not any("launch-cluster" in item for item in omissions(launch))


@pytest.mark.parametrize("action", ["stop", "status"])
def test_what_stops_a_cluster_is_no_launch(action: str) -> None:
    with pytest.raises(importer.Unreadable):
        read(f"./launch-cluster.sh -t vllm-node-tf5 --name x -n 10.0.0.1,10.0.0.2 {action}\n")


def test_its_own_build_is_named_as_one() -> None:
    launch = read("./launch-cluster.sh -t vllm-node-tf5 --solo exec vllm serve cyankiwi/GLM-4.7-Flash-AWQ-4bit\n")
    assert launch["nodes"] == 1 and launch["service"]["model"] == {"repo": "cyankiwi/GLM-4.7-Flash-AWQ-4bit"}
    assert "built on the machine itself" in omissions(launch)["container vllm-node-tf5"]


def test_an_image_started_by_variables_of_its_own_is_refused() -> None:
    with pytest.raises(importer.Unreadable, match="started by its own variables"):
        read(
            "docker run -d --gpus all --network host -e MODEL=nvidia/Qwen3-30B-A3B-NVFP4 -e PORT=8888 "
            "-e MAX_MODEL_LEN=4096 avarok/dgx-vllm-nvfp4-kernel:v75"
        )
