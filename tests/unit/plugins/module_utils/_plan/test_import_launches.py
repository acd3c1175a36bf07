# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launches as owners of Sparks publish them, one test a form: import_draft, import_engine, import_kubernetes, import_scripts
and import_recipes.

The texts are written for these tests in the forms of their projects: NVIDIA/local-ai-inference-recipes (schema 3 and 4),
NVIDIA's Sync scripts, eugr/spark-vllm-docker, compose files of pairs, launchers with functions and arrays.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.action.import_recipe import document_of, inventory_of, report
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import clustering
from ansible_collections.dgxspark.vllm.plugins.module_utils._common import shell, shell_script
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import importer, recipes

IMAGE = "vllm/vllm-openai:v0.28.0"


def read(text: str, **options: Any) -> dict[str, Any]:
    return importer.import_launch(text, document_of(text), **options)


def omissions(launch: dict[str, Any]) -> dict[str, str]:
    return {entry["item"]: entry["reason"] for entry in launch["left_out"]}


def rules(launch: dict[str, Any]) -> set[str]:
    return {finding["rule"] for finding in launch["findings"]}


# --- NVIDIA's catalogue -------------------------------------------------------------------------------------------

SINGLE = """
schema_version: 3
title: A model on one Spark
model: google/gemma-4-31b
hardware: dgx-spark
backend: vllm
checkpoint:
  target: https://huggingface.co/nvidia/Gemma-4-31B-IT-NVFP4/tree/0123456789abcdef
  draft: https://huggingface.co/google/gemma-4-31B-it-assistant
topology: {gpu_count: 1, node_count: 1, tensor_parallel_size: null}
runtime:
  kind: container
  image: vllm/vllm-openai:v0.28.0
  setup_command: |
    export HF_CACHE_DIR="$HOME/.cache/huggingface"
    docker run --rm -it --gpus all --ipc host --network host --shm-size=16g \\
      -e HF_TOKEN=$HF_TOKEN -e VLLM_LOGGING_LEVEL=DEBUG \\
      -v "$HF_CACHE_DIR:/root/.cache/huggingface" --entrypoint /bin/bash vllm/vllm-openai:v0.28.0
serve:
  command: |
    VLLM_FLOAT32_MATMUL_PRECISION="high" \\
    vllm serve nvidia/Gemma-4-31B-IT-NVFP4 --host 0.0.0.0 --port 8002 \\
      --max-model-len 262144 --load-format fastsafetensors \\
      --speculative_config.model google/gemma-4-31B-it-assistant \\
      --speculative_config.num_speculative_tokens 4
  port: 8002
  api_model: nvidia/Gemma-4-31B-IT-NVFP4
"""

PAIR = """
schema_version: 4
model: z-ai/glm-5.3-flash
hardware: dgx-spark-2gpu
backend: vllm
limitations: [It needs an image of its own.]
min_vidmem_gb: 128
checkpoint: {target: https://huggingface.co/lab/GLM-5.3-Flash-NVFP4, draft: null}
topology: {gpu_count: 2, node_count: 2, tensor_parallel_size: 2}
runtime:
  image: eugr/spark-vllm-b12x:latest
  setup_command: |
    # HEAD_IP="10.0.0.1"
    export HEAD_IP="<head-connectx-ip>"
    export ETH_IF="<connectx-interface>"
    export MASTER_PORT=29501
    export IMAGE="eugr/spark-vllm-b12x:latest"
    mkdir -p "$HOME/.cache/vllm"
    docker run --rm -it --privileged --gpus all --network host --ulimit nofile=1048576:1048576 \\
      -e NCCL_SOCKET_IFNAME="$ETH_IF" -e NCCL_IB_DISABLE=0 -e HEAD_IP="$HEAD_IP" -e MASTER_PORT="$MASTER_PORT" \\
      --device /dev/infiniband --entrypoint /bin/bash "$IMAGE"
serve:
  target: head
  command: |
    export CUTE_DSL_ARCH="sm_121a"

    vllm serve lab/GLM-5.3-Flash-NVFP4 --tensor-parallel-size 2 --kv-cache-dtype fp8 \\
      --speculative-config '{"method":"mtp","num_speculative_tokens":5}' \\
      --nnodes 2 --node-rank 0 --master-addr "$HEAD_IP" --master-port "$MASTER_PORT"
  additional_commands:
    - id: worker
      label: Launch worker
      target: workers
      command: |
        export CUTE_DSL_ARCH="sm_121a"
        vllm serve lab/GLM-5.3-Flash-NVFP4 --tensor-parallel-size 2 --kv-cache-dtype fp8 \\
          --speculative-config '{"method":"mtp","num_speculative_tokens":5}' \\
          --nnodes 2 --node-rank "$NODE_RANK" --master-addr "$HEAD_IP" --master-port "$MASTER_PORT" --headless
    - {id: warm, label: Warm up, target: head, command: curl -s localhost:8000/v1/models}
"""


def test_a_recipe_of_nvidia_for_one_spark() -> None:
    launch = read(SINGLE)
    assert (launch["form"], launch["nodes"], launch["spark_cluster"]) == ("nvidia", 1, None)
    assert launch["service"] == {
        "name": "gemma-4-31b",
        "model": {
            "repo": "nvidia/Gemma-4-31B-IT-NVFP4",
            "revision": "0123456789abcdef",
            "extra": [{"repo": "google/gemma-4-31B-it-assistant"}],
        },
        "image": IMAGE,
        "port": 8002,
        "served_model_name": "nvidia/Gemma-4-31B-IT-NVFP4",
        "args": {
            "load-format": "fastsafetensors",
            "max-model-len": 262144,
            "speculative-config": {"model": "google/gemma-4-31B-it-assistant", "num_speculative_tokens": 4},
        },
        "env": {"VLLM_FLOAT32_MATMUL_PRECISION": "high", "VLLM_LOGGING_LEVEL": "DEBUG"},
        "shm_size": "16g",
    }
    assert launch["host_vars"]["spark_hf_token_file"] == ".secrets/hf_token"
    assert [message for message in launch["missing"] if "config" not in message] == []


def test_a_recipe_of_nvidia_for_a_pair() -> None:
    launch = read(PAIR)
    assert (launch["nodes"], launch["spark_cluster"]["name"]) == (2, "glm_5_3_flash")
    assert launch["spark_cluster"]["services"] == [launch["service"]]
    assert launch["service"] == {
        "name": "glm-5-3-flash",
        "model": {"repo": "lab/GLM-5.3-Flash-NVFP4"},
        "image": "eugr/spark-vllm-b12x:latest",
        "port": 8000,
        "served_model_name": "lab/GLM-5.3-Flash-NVFP4",
        "args": {
            "kv-cache-dtype": "fp8",
            "speculative-config": {"method": "mtp", "num_speculative_tokens": 5},
            "tensor-parallel-size": 2,
        },
        "env": {"CUTE_DSL_ARCH": "sm_121a", "NCCL_IB_DISABLE": "0"},
        "docker_args": ["--ulimit", "nofile=1048576:1048576"],
    }
    items = omissions(launch)
    assert items["limitation"] == "It needs an image of its own." and "128 GB" in items["min_vidmem_gb"]
    assert "not part of the engine" in items["command Warm up"] and "command Launch worker" not in items
    assert "RDMA" in items["--device /dev/infiniband"] and "interfaces" in items["NCCL_SOCKET_IFNAME"]
    assert not rules(launch) & {"SPK801", "SPK805", "SPKH05"}
    shown = inventory_of(launch)
    assert set(shown) == {"spark_cluster"} and "put 2 hosts into a group glm_5_3_flash" in report(launch)[0]


def test_a_worker_unlike_its_head_is_named() -> None:
    text = PAIR.replace("--kv-cache-dtype fp8 \\\n          --spec", "--kv-cache-dtype bf16 \\\n          --spec")
    assert text != PAIR and "bf16" in omissions(read(text))["command Launch worker"]


@pytest.mark.parametrize(
    ("old", "new", "needle"),
    [
        ("backend: vllm", "backend: llama-cpp", "for the backend llama-cpp, not for vLLM"),
        ("  command: |\n    VLLM_F", "  text: |\n    VLLM_F", "without serve.command"),
        ("    vllm serve nvidia", "    sglang serve nvidia", "no vllm in here"),
    ],
)
def test_recipes_of_nvidia_that_launch_no_vllm(old: str, new: str, needle: str) -> None:
    text = SINGLE.replace(old, new)
    if "no vllm in here" in needle:
        text = yaml.safe_dump({**yaml.safe_load(text), "runtime": None})
    with pytest.raises(importer.Unreadable, match=needle):
        read(text)
    with pytest.raises(importer.Unreadable, match=r"give a recipe\.yaml"):
        read("schema_version: 4\nid: vllm\nlabel: vLLM\n")


def test_a_recipe_for_another_machine_is_told() -> None:
    items = omissions(read(SINGLE.replace("hardware: dgx-spark", "hardware: rtx-pro")))
    assert "not for a DGX Spark" in items["hardware rtx-pro"]


# --- what stands in front of the engine ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "env", "docker_args", "item"),
    [
        ("taskset -c 5-9,15-19", {}, ["--cpuset-cpus", "5-9,15-19"], None),
        ("taskset --cpu-list 0,2", {}, ["--cpuset-cpus", "0,2"], None),
        ("taskset 0x3", {}, ["--cpuset-cpus", "0,1"], None),
        ("numactl --cpunodebind=0 --membind=0", {}, None, "numactl --cpunodebind=0 --membind=0"),
        ("numactl -N 0 -m 0", {}, None, "numactl -N 0 -m 0"),
        ("env VLLM_LOGGING_LEVEL=DEBUG", {"VLLM_LOGGING_LEVEL": "DEBUG"}, None, None),
        ("env -u KEPT VLLM_SLEEP_WHEN_IDLE=1", {"VLLM_SLEEP_WHEN_IDLE": "1"}, None, None),
        ("exec", {"KEPT": "1"}, None, None),
        ("nice -n -5", {}, None, "nice -n -5"),
        ("ionice -c 2 -n 0", {}, None, "ionice -c 2 -n 0"),
        ("chrt -f 10", {}, None, "chrt -f 10"),
        ("stdbuf -oL -eL", {}, None, "stdbuf -oL -eL"),
        ("timeout 3600", {}, None, "timeout 3600"),
        ("uv run --no-sync", {}, None, "uv run --no-sync"),
        ("/opt/wrap.sh --fast", {}, None, "/opt/wrap.sh --fast"),
        ("nohup env A=b taskset -c 0-3 stdbuf -oL", {"A": "b"}, ["--cpuset-cpus", "0-3"], "nohup"),
    ],
)
@pytest.mark.parametrize("way", ["{0} {1}", "bash -c '{0} {1}'", "bash -lc 'cd /x && exec {0} {1}'"])
def test_programs_in_front_of_the_engine(
    prefix: str, env: dict[str, str], docker_args: list[str] | None, item: str | None, way: str
) -> None:
    launch = way.format(prefix, "vllm serve Qwen/Qwen3-8B --seed 1")
    imported = read(f"docker run --entrypoint '' -e KEPT=1 -e X=y {IMAGE} {launch}")
    service = imported["service"]
    assert service["model"] == {"repo": "Qwen/Qwen3-8B"} and service["args"] == {"seed": 1}
    expected_env = {} if "-u KEPT" in prefix else {"KEPT": "1"}
    assert service["env"] == {"X": "y", **expected_env, **env} and service.get("docker_args") == docker_args
    assert item is None or omissions(imported)[item]


@pytest.mark.parametrize(
    "words", ["echo vllm serve a/b", "pkill -f vllm serve", "pgrep -f 'vllm serve'", "grep vllm serve x"]
)
def test_a_launch_that_is_only_mentioned_is_none(words: str) -> None:
    with pytest.raises(importer.Unreadable, match="no vllm in here"):
        read(words)


@pytest.mark.parametrize(
    "words",
    [
        "python3 -u -m vllm.entrypoints.openai.api_server --model a/b --seed 1",
        "python3 -m vllm.entrypoints.cli.main serve a/b --seed 1",
        "numactl -N 0 python3.12 -m vllm.entrypoints.openai.api_server --model a/b --seed 1",
    ],
)
def test_the_engine_as_a_module_of_python(words: str) -> None:
    service = read(f"docker run --entrypoint '' {IMAGE} {words}")["service"]
    assert service["model"] == {"repo": "a/b"} and service["args"] == {"seed": 1}


# --- scripts ------------------------------------------------------------------------------------------------------

SYNC = r"""
#!/usr/bin/env bash
set -euo pipefail
NAME="vllm-qwen36"
PORT=8010
HF_CACHE_DIR="${HF_HOME:-$HOME/.cache/huggingface}"
STATUS_FILE="$(mktemp)"
cleanup() {
  local status=$?
  trap - EXIT
  if [[ -n "${WAITER:-}" ]]; then
    kill "${WAITER}" >/dev/null 2>&1 || true
  fi
  docker stop "${NAME}" >/dev/null 2>&1 || true
  exit "${status}"
}
trap cleanup EXIT
trap 'exit 130' INT
mkdir -p "$HOME/.cache/vllm"
docker rm -f "${NAME}" >/dev/null 2>&1 || true

docker run -d --name "${NAME}" --gpus all --ipc host --entrypoint "" \
  -p "127.0.0.1:${PORT}:8000" -v "$HF_CACHE_DIR:/root/.cache/huggingface:ro" -e HF_HUB_OFFLINE=1 \
  vllm/vllm-openai:v0.28.0 \
  vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --host 0.0.0.0 --port 8000 --moe-backend marlin

docker wait "${NAME}" > "${STATUS_FILE}" &
WAITER=$!
STATUS="$(<"${STATUS_FILE}")"
if [[ ! "${STATUS}" =~ ^[0-9]+$ ]]; then
  printf 'Could not read the exit status.\n' >&2
  exit 1
fi
exit "${STATUS}"
"""

ARRAYS = r"""
#!/bin/bash
IMAGE="${IMAGE:-nvcr.io/nvidia/vllm:26.07-py3}"
MODEL="${1:-Inferact/Qwen3.8-27B-NVFP4}"   # a comment with (parentheses) and 'a quote
SPEC="${SPEC:-3}"; YARN="${YARN:-0}"; CPUSET="${CPUSET:-5-9,15-19}"; EXTRA_ARGS="${EXTRA_ARGS:-}"
CMD_PREFIX="${CMD_PREFIX-vllm serve}"
ARGS=($CMD_PREFIX)
ARGS+=(
  "$MODEL"
  --served-model-name qwen3.8-27b   # for clients
  --max-num-seqs "$((SPEC * 4 + 4))"
)
if [ "$SPEC" != "0" ]; then
  ARGS+=(--speculative-config "{\"method\":\"mtp\",\"num_speculative_tokens\":$SPEC}")
fi
if [ "$YARN" = "1" ]; then
  ARGS+=(--hf-overrides '{}')
  export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1
else
  ARGS+=(--seed 7)
fi
EXTRA_SPLIT=($EXTRA_ARGS)
DOCKER_ARGS=( -d --name "vllm-qwen38" --gpus all -p "127.0.0.1:8123:8000" -e HF_HUB_OFFLINE=0 )
[ -n "$CPUSET" ] && DOCKER_ARGS+=(--cpuset-cpus "$CPUSET")
if [ -n "${HF_TOKEN:-}" ]; then DOCKER_ARGS+=(-e HF_TOKEN="$HF_TOKEN"); fi
for kv in VLLM_LOGGING_LEVEL=INFO VLLM_SLEEP_WHEN_IDLE=1; do DOCKER_ARGS+=(-e "$kv"); done
echo ">>> docker run $IMAGE vllm serve $MODEL"
CID=$(docker run "${DOCKER_ARGS[@]}" "$IMAGE" "${ARGS[@]}" ${EXTRA_SPLIT[@]+"${EXTRA_SPLIT[@]}"})
( sleep 2; docker logs -f "$CID" ) >/dev/null 2>&1 &
"""


def test_a_script_with_functions_and_traps() -> None:
    launch = read(SYNC)
    assert launch["service"] == {
        "name": "vllm-qwen36",
        "model": {"repo": "nvidia/Qwen3.6-35B-A3B-NVFP4"},
        "image": IMAGE,
        "port": 8010,
        "served_model_name": "nvidia/Qwen3.6-35B-A3B-NVFP4",
        "args": {"moe-backend": "marlin"},
    }
    noise = {"fi", "then", "}", "{", "cleanup", "true", "set -euo pipefail", "exit ${status}"}
    assert not noise & set(omissions(launch)) and not [
        item for item in omissions(launch) if item.startswith(("if", "trap", "docker"))
    ]


def test_a_script_with_arrays_and_conditions() -> None:
    launch = read(ARRAYS)
    assert launch["service"] == {
        "name": "vllm-qwen38",
        "model": {"repo": "Inferact/Qwen3.8-27B-NVFP4"},
        "image": "nvcr.io/nvidia/vllm:26.07-py3",
        "port": 8123,
        "served_model_name": "qwen3.8-27b",
        "args": {
            "max-num-seqs": 16,
            "seed": 7,
            "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
        },
        "env": {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_SLEEP_WHEN_IDLE": "1"},
        "docker_args": ["--cpuset-cpus", "5-9,15-19"],
    }
    other = read(ARRAYS, variables={"YARN": "1", "SPEC": "0"})["service"]
    assert other["args"] == {"hf-overrides": {}, "max-num-seqs": 4}


RANKS = r"""
set -Eeuo pipefail
RANK="${1:?usage: rank.sh <0|1>}"
case "$RANK" in 0|1) ;; *) echo "rank must be 0 or 1" >&2; exit 4 ;; esac
HEADLESS=(); CPU_ARGS=()
[[ -z "${CPUSET_CPUS:-}" ]] || CPU_ARGS=(--cpuset-cpus "$CPUSET_CPUS")
if [[ "$RANK" == 0 ]]; then HOST_IP="$HEAD_IP"; else HOST_IP="$WORKER_IP"; HEADLESS=(--headless); fi
if docker ps --format '{{.Names}}' | grep -Fxq glm; then echo "it runs" >&2; exit 30; fi
python3 - "$MODEL" <<'PY'
import sys  # docker run is only a word here
raise SystemExit(f'{sys.argv}')
PY
docker run -d --name glm --network host --ipc host "${CPU_ARGS[@]}" --device /dev/infiniband:/dev/infiniband \
  -v "/srv/models/glm:/model:ro" -e VLLM_HOST_IP="$HOST_IP" -e NCCL_IB_HCA="${HCA:-rocep1s0f0}" -e NCCL_NET=IB \
  vllm/vllm-openai:v0.28.0 /model --served-model-name glm --port 8888 --tensor-parallel-size 2 \
  --distributed-executor-backend mp --nnodes 2 --node-rank "$RANK" --master-addr "$HEAD_IP" --master-port 25000 \
  "${HEADLESS[@]}"
"""


def test_a_script_that_each_rank_runs() -> None:
    launch = read(RANKS)
    assert (launch["nodes"], launch["service"]) == (
        2,
        {
            "name": "glm",
            "model": {"path": "/srv/models/glm"},
            "image": IMAGE,
            "port": 8888,
            "served_model_name": "glm",
            "args": {"tensor-parallel-size": 2},
            "env": {"NCCL_NET": "IB"},
        },
    )


def test_ranks_started_one_after_another_are_one_launch() -> None:
    script = f"""
    HEAD=10.0.0.1
    start() {{
      local rank=$1 more=""
      [ "$rank" != 0 ] && more="--headless"
      ssh "spark-$rank" docker run -d --name dsv4 --network host {IMAGE} deepseek-ai/DeepSeek-V4-Flash \\
        -tp 4 --nnodes 4 --node-rank $rank --master-addr $HEAD $more
    }}
    for r in 3 2 1 0; do start "$r"; sleep 4; done
    """
    launch = read(script)
    assert launch["nodes"] == 4 and launch["service"]["args"] == {"tensor-parallel-size": 4}
    assert launch["service"]["model"] == {"repo": "deepseek-ai/DeepSeek-V4-Flash"}
    assert launch["spark_cluster"]["name"] == "dsv4"


def test_a_script_with_a_word_for_what_to_do() -> None:
    script = f"""
    start() {{ docker run -d --name v {IMAGE} --model Qwen/Qwen3-8B; }}
    stop() {{ docker stop v; }}
    case "${{1:-}}" in start) start ;; stop) stop ;; *) echo "usage" ; exit 1 ;; esac
    """
    assert read(script)["service"]["model"] == {"repo": "Qwen/Qwen3-8B"}


def test_an_engine_that_is_typed_in_a_container_of_ray() -> None:
    script = f"""
    docker run -d --name ray-head --network host --shm-size 10g -e NCCL_DEBUG=WARN {IMAGE} ray start --head --block
    ssh spark-2 docker run -d --name ray-worker --network host {IMAGE} ray start --address=10.0.0.1:6379 --block
    docker exec -it ray-head bash -c "vllm serve Qwen/Qwen3-235B-A22B-GPTQ-Int4 -tp 2 --distributed-executor-backend ray"
    """
    launch = read(script)
    assert launch["nodes"] == 2 and launch["spark_cluster"]["name"] == "ray_head"
    assert launch["service"]["image"] == IMAGE and launch["service"]["args"] == {"tensor-parallel-size": 2}
    assert launch["service"]["env"] == {"NCCL_DEBUG": "WARN"} and launch["service"]["shm_size"] == "10g"
    assert "ranks of a spark_cluster" in omissions(launch)["container ray-worker"]


GENERATED = r"""
IMAGE=vllm/vllm-openai:v0.28.0; NAME=dsv41; TP=4; TOKENS=5
NODES=(10.0.0.4 10.0.0.3 10.0.0.1 10.0.0.2)
remote() { ssh "${NODES[$1]}" 'cat > /tmp/start.sh && bash /tmp/start.sh'; }
NCCL_ENV="-e NCCL_NET=IB \
 -e NCCL_IB_DISABLE=0"
SPEC='--speculative-config "{\"method\":\"dspark\",\"num_speculative_tokens\":'"$TOKENS"'}"'
rank_script() {
  local r="$1" more=""
  [ "$r" != 0 ] && more="--headless"
  cat <<EOF
docker rm -f $NAME >/dev/null 2>&1 || true
docker run -d --name $NAME --network host --cap-add IPC_LOCK \\
 -e VLLM_HOST_IP=${NODES[$r]} $NCCL_ENV \\
 --entrypoint /bin/bash $IMAGE -lc '
 exec vllm serve deepseek-ai/DeepSeek-V4.1-Flash \\
 --tensor-parallel-size $TP $SPEC \\
 --nnodes $TP --node-rank $r --master-addr ${NODES[0]} $more
 '
EOF
}
if [ "${DRYRUN:-0}" = 1 ]; then rank_script 0; exit 0; fi
for r in 3 2 1 0; do rank_script "$r" | remote "$r"; sleep 4; done
"""


def test_a_script_that_writes_the_script_of_each_rank() -> None:
    launch = read(GENERATED)
    assert (launch["nodes"], launch["service"]) == (
        4,
        {
            "name": "dsv41",
            "model": {"repo": "deepseek-ai/DeepSeek-V4.1-Flash"},
            "image": IMAGE,
            "port": 8000,
            "served_model_name": "deepseek-ai/DeepSeek-V4.1-Flash",
            "args": {
                "speculative-config": {"method": "dspark", "num_speculative_tokens": 5},
                "tensor-parallel-size": 4,
            },
            "env": {"NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"},
        },
    )


def test_the_usage_of_a_script_is_no_launch() -> None:
    script = "usage() {\ncat <<USAGE\nUsage: $0 {start|stop}\n docker run by hand (see README\nUSAGE\n}\nusage\n"
    launch = read(script + f"docker run --name v {IMAGE} --model Qwen/Qwen3-8B")
    assert launch["service"]["name"] == "v" and not [
        item for item in omissions(launch) if "Usage" in item or "container" in item
    ]


def test_the_script_of_vllms_examples() -> None:
    script = f"""
    bash run_cluster.sh {IMAGE} 192.168.100.10 --head ~/.cache/huggingface -e VLLM_HOST_IP=192.168.100.10 -e NCCL_DEBUG=WARN
    vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 2 --max-model-len 2048
    """
    launch = read(script)
    assert launch["nodes"] == 2 and launch["service"]["image"] == IMAGE
    assert launch["service"]["args"] == {"max-model-len": 2048, "tensor-parallel-size": 2}
    assert launch["service"]["env"] == {"NCCL_DEBUG": "WARN"}


@pytest.mark.parametrize(
    "start",
    [
        "docker -H unix:///run/user/1000/docker.sock run",
        "DOCKER_HOST=unix:///run/user/1000/docker.sock docker run",
        "export DOCKER_HOST=unix:///run/user/1000/docker.sock\ndocker run",
        "docker --context rootless run",
    ],
)
def test_rootless_docker(start: str) -> None:
    launch = read(f"{start} -d --name r -p 8001:8000 {IMAGE} Qwen/Qwen3-8B --max-model-len 4096")
    assert (launch["service"]["name"], launch["service"]["port"]) == ("r", 8001)
    assert launch["service"]["args"] == {"max-model-len": 4096} and "env" not in launch["service"]
    assert "does not see images" in omissions(launch)["rootless docker"]


def test_podman_and_its_devices() -> None:
    launch = read(f"podman run --device nvidia.com/gpu=all --name p {IMAGE} --model Qwen/Qwen3-8B")
    assert launch["service"]["name"] == "p" and "spark_gpu_args" in omissions(launch)["--device nvidia.com/gpu=all"]


def test_a_page_with_one_launch() -> None:
    page = f"# How to\n\nIt's easy | really:\n\n```bash\ndocker run {IMAGE} --model Qwen/Qwen3-8B\n```\n\n```json\n{{}}\n```\n"
    assert read(page)["service"]["model"] == {"repo": "Qwen/Qwen3-8B"}
    with pytest.raises(importer.Unreadable, match="a page with 2 launches"):
        read(page + page)
    with pytest.raises(importer.Unreadable, match="a page without"):
        read("text\n```\nls\n```\n")


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("", "the text is empty"),
        ("  \n\n", "the text is empty"),
        ("vllm serve a/b --x (y", "no shell would take this"),
        ("vllm serve a/b ; fi", "line 1: 'fi' closes nothing"),
        ("vllm serve a/b \\\n  --seed 1\n\ndone", "line 4: 'done' closes nothing"),
        ("if true; then\nvllm serve a/b", "line 1: 'then' is never closed"),
        ("vllm serve a/b &&", "nothing follows the '&&'"),
        ("vllm serve a/b | | tee log", "no shell would take this"),
        ("start() {\nvllm serve a/b\n", "'{' is never closed"),
        ("for x in a b\nvllm serve a/b", "has no 'do'"),
        ("case x in a) vllm serve a/b ;;", "'case' is never closed|never closed"),
        ("A=(a b\nvllm serve a/b", "never closed"),
        ("[[ -n x\nvllm serve a/b", "never closed"),
        ("f() { f; f; }\nf\nvllm serve a/b", "without an end|is no launch"),
        ("(" * 200 + "vllm serve a/b", "nested too deeply|never closed"),
        ("docker run -d '  ' --model a/b", "stands where the image belongs"),
        ("$(x: docker run y\nvllm serve a/b", "never closed"),
        ("X=" + "${A:-" * 3000 + "}" * 3000 + "\nvllm serve a/b", "nested too deeply"),
        ("vllm serve a/b --seed 1\nvllm serve c/d --seed 2", "2 different vllm serve commands"),
        ("vllm serve", "no model is named"),
    ],
)
def test_texts_that_are_refused(text: str, needle: str) -> None:
    with pytest.raises(importer.Unreadable, match=needle):
        read(text)


def test_a_container_that_podman_runs_as_a_unit() -> None:
    unit = f"""
[Unit]
Description=a model
[Container]
Image=docker.io/{IMAGE}
ContainerName=vllm-qwen
AddDevice=nvidia.com/gpu=all
PublishPort=8001:8000
Volume=%h/.cache/huggingface:/root/.cache/huggingface
Environment=VLLM_LOGGING_LEVEL=DEBUG "A=b c"
Exec=--model Qwen/Qwen3-8B --max-model-len 32768
PodmanArgs=--shm-size=16g
AutoUpdate=registry
[Service]
Restart=always
"""
    launch = read(unit)
    assert launch["service"] == {
        "name": "vllm-qwen",
        "model": {"repo": "Qwen/Qwen3-8B"},
        "image": IMAGE,
        "port": 8001,
        "served_model_name": "Qwen/Qwen3-8B",
        "args": {"max-model-len": 32768},
        "env": {"A": "b c", "VLLM_LOGGING_LEVEL": "DEBUG"},
        "shm_size": "16g",
    }
    assert {"AutoUpdate=registry", "Restart=always"} <= set(omissions(launch))
    with pytest.raises(importer.Unreadable, match="has no Image"):
        read("[Container]\nExec=--model a/b\n")


def test_a_head_that_is_set_up_step_by_step() -> None:
    script = r"""
    IMAGE="${IMAGE:-nvcr.io/nvidia/vllm:25.10-py3}"; NAME=ray-head; MODEL="${MODEL:-openai/gpt-oss-120b}"; HF_TOKEN="${HF_TOKEN:-}"
    HEAD_IP="${HEAD_IP:-$(ip -o addr show enp1s0f1np1 | awk '/inet /{split($4,a,"/"); print a[1]; exit}')}"
    log() { echo "[$(date)] $*"; }
    if [ -z "${HEAD_IP}" ]; then log "no address"; exit 1; fi
    ENV_ARGS=(-e VLLM_HOST_IP="${HEAD_IP}" -e NCCL_DEBUG=INFO)
    if [ -n "${HF_TOKEN}" ]; then ENV_ARGS+=(-e HF_TOKEN="${HF_TOKEN}"); fi
    docker run -d --name "${NAME}" --network host --shm-size=16g -v "/raid/hf:/root/.cache/huggingface" \
      "${ENV_ARGS[@]}" "${IMAGE}" sleep infinity
    docker exec "${NAME}" bash -lc "ray start --head --port=6379 --node-ip-address=${HEAD_IP}"
    docker exec "${NAME}" bash -lc "
      export RAY_ADDRESS='127.0.0.1:6379'
      nohup vllm serve ${MODEL} --distributed-executor-backend ray --tensor-parallel-size 2 --max-model-len 8192 \
        --download-dir /root/.cache/huggingface > /var/log/vllm.log 2>&1 &
    " || true
    """
    launch = read(script)
    assert (launch["nodes"], launch["service"]["args"]) == (2, {"max-model-len": 8192, "tensor-parallel-size": 2})
    assert launch["service"]["env"] == {"NCCL_DEBUG": "INFO"} and launch["host_vars"] == {"spark_hf_home": "/raid/hf"}
    assert "spark_hf_home" in omissions(launch)["--download-dir"]
    # An image whose vLLM spans hosts by Ray alone is judged as the cluster will run it.
    assert not rules(launch) & {"SPK101", "SPK807"}


# --- compose ------------------------------------------------------------------------------------------------------

FOLDED = r"""
services:
  vllm-dspark:
    image: ${DSPARK_IMAGE:-ghcr.io/anemll/dspark-vllm-gx10:0.1.1}
    entrypoint: []
    network_mode: host
    devices: ["/dev/infiniband:/dev/infiniband"]
    volumes: ["${HF_CACHE:-${HOME}/.cache/huggingface}:/root/.cache/huggingface"]
    environment:
      VLLM_API_KEY: "${VLLM_API_KEY:-}"
      NCCL_SOCKET_IFNAME: "${NCCL_SOCKET_IFNAME}"
      NODE_RANK: "${NODE_RANK}"
      HEADLESS: "${HEADLESS:-}"
      THINKING: "${THINKING:-low}"
      VLLM_USE_B12X_MOE: "1"
    command:
      - bash
      - -lc
      - >
        export PATH="/usr/local/cuda/bin:$${PATH:-}";
        API_KEY_ARGS=(); case "$${VLLM_KEYS:-}" in *[!$$' \t']*) API_KEY_ARGS=(--api-key x) ;; esac;
        if [ -n "$${KV_BYTES:-}" ]; then
          CACHE_ARGS="--kv-cache-memory-bytes $${KV_BYTES}";
        else
          CACHE_ARGS="--gpu-memory-utilization ${UTILIZATION:-0.80}";
        fi;
        SPECULATIVE_CONFIG="{\"method\":\"dspark\",\"num_speculative_tokens\":$${TOKENS:-5}}";
        case "$${THINKING:-low}" in
          off) KWARGS='{"thinking":false}' ;;
          low|high) KWARGS="{\"thinking\":true}" ;;
          *) echo "THINKING must be off, low or high" >&2; exit 2 ;;
        esac;
        python3 /opt/hotfix.py || exit 1;
        exec /usr/local/bin/vllm serve ${MODEL:-deepseek-ai/DeepSeek-V4-Flash-0731}
        --port ${PORT:-8888}
        "$${API_KEY_ARGS[@]}"
        --tensor-parallel-size 2
        --max-cudagraph-capture-size $$(( ${SEQS:-6} * (${TOKENS:-5} + 1) ))
        $${CACHE_ARGS}
        --speculative-config "$${SPECULATIVE_CONFIG}"
        --default-chat-template-kwargs "$${KWARGS}"
        --nnodes 2
        --node-rank ${NODE_RANK}
        --master-addr ${MASTER_ADDR}
        ${HEADLESS:+--headless}
"""


def test_compose_with_a_folded_script() -> None:
    launch = read(FOLDED)
    assert (launch["form"], launch["nodes"]) == ("compose", 2)
    assert launch["service"] == {
        "name": "vllm-dspark",
        "model": {"repo": "deepseek-ai/DeepSeek-V4-Flash-0731"},
        "image": {"ref": "ghcr.io/anemll/dspark-vllm-gx10:0.1.1", "entrypoint": "passthrough"},
        "port": 8888,
        "served_model_name": "deepseek-ai/DeepSeek-V4-Flash-0731",
        "args": {
            "default-chat-template-kwargs": {"thinking": True},
            "gpu-memory-utilization": 0.8,
            "max-cudagraph-capture-size": 36,
            "speculative-config": {"method": "dspark", "num_speculative_tokens": 5},
            "tensor-parallel-size": 2,
        },
        "env": {"THINKING": "low", "VLLM_USE_B12X_MOE": "1"},
        "docker_args": ["--entrypoint", ""],  # as the file does, for nobody knows what the image would start
    }
    items = omissions(launch)
    assert (
        "image's own" in items["PATH=/usr/local/cuda/bin:"]
        and "ran before the engine" in items["python3 /opt/hotfix.py"]
    )
    assert "is empty" in items["VLLM_API_KEY"] and not {"fi", "esac", "done", "exit 2"} & set(items)


def test_compose_with_a_head_of_ray() -> None:
    text = f"""
    services:
      head:
        image: {IMAGE}
        network_mode: host
        entrypoint: /bin/bash
        command: >
          -c "ray start --head --port=6379 && sleep 20 &&
          vllm serve Qwen/Qwen3-235B-A22B-GPTQ-Int4 --tensor-parallel-size 2
          --distributed-executor-backend ray"
      worker:
        image: {IMAGE}
        entrypoint: /bin/bash
        command: -c "ray start --address=head:6379 --block"
      webui: {{image: ghcr.io/open-webui/open-webui:main}}
    """
    launch = read(text)
    assert launch["nodes"] == 2 and launch["service"]["name"] == "head"
    assert launch["service"]["args"] == {"tensor-parallel-size": 2}
    assert (
        "ranks of a spark_cluster" in omissions(launch)["service worker"]
        and "another" in omissions(launch)["service webui"]
    )


def test_an_image_that_waits_for_a_value() -> None:
    launch = read("docker run ${IMAGE:?which} --model vllm/x")
    assert "image" not in launch["service"] and "IMAGE" in omissions(launch)["image"]
    assert any("'image' is missing" in message for message in launch["missing"])


# --- recipes ------------------------------------------------------------------------------------------------------

EUGR = """
recipe_version: "1"
name: Flash-PP3
model: XiaomiMiMo/MiMo-V2.6-Flash-RL
container: vllm-node
cluster_only: true
mods: [mods/mimo-diffkv-fp8-kv]
defaults: {port: 8000, host: 0.0.0.0, tensor_parallel: 1, pipeline_parallel: 3, gpu_memory_utilization: 0.87}
env: {B12X_POLICY_MODE: auto}
command: |
  S=/opt/seed; D="$XDG_CACHE_HOME/b12x"; if [ -d "$S" ]; then mkdir -p "$D" && for f in "$S"/*.json; do cp "$f" "$D/"; done; fi
  taskset -c 5-9,15-19 vllm serve XiaomiMiMo/MiMo-V2.6-Flash-RL --host {host} --port {port} \\
    --tensor-parallel-size {tensor_parallel} --pipeline-parallel-size {pipeline_parallel} \\
    --compilation-config '{{"pass_config":{{"fuse_act_quant":true}}}}' --gpu-memory-utilization {gpu_memory_utilization}
"""


def test_a_recipe_of_eugr_for_three_sparks() -> None:
    launch = read(EUGR)
    assert (launch["form"], launch["nodes"], launch["spark_cluster"]["name"]) == ("eugr", 3, "flash_pp3")
    service = launch["service"]
    assert service["args"] == {
        "compilation-config": {"pass_config": {"fuse_act_quant": True}},
        "gpu-memory-utilization": 0.87,
        "pipeline-parallel-size": 3,
        "tensor-parallel-size": 1,
    }
    assert service["env"] == {"B12X_POLICY_MODE": "auto"} and service["docker_args"] == ["--cpuset-cpus", "5-9,15-19"]
    assert not {"fi", "done"} & set(omissions(launch)) and omissions(launch)["mods mods/mimo-diffkv-fp8-kv"]
    solo = read(EUGR, variables={"pipeline_parallel": "1"})
    assert (
        solo["nodes"] == 1
        and solo["spark_cluster"] is None
        and "its options are for one" in omissions(solo)["several Sparks"]
    )


# eugr's Qwen3.8-27B with a drafter from a hub, for two Sparks by its defaults, and one whose drafter a mod puts into the container.
DRAFTED = """
recipe_version: "1"
name: Qwen3.8-27B-NVFP4-DFlash2
model: nvidia/Qwen3.8-27B-NVFP4
container: vllm-node
defaults: {port: 8000, host: 0.0.0.0, tensor_parallel: 2, gpu_memory_utilization: 0.8, max_model_len: 262144}
env: {}
command: |
  vllm serve nvidia/Qwen3.8-27B-NVFP4 --host {host} --port {port} --max-model-len {max_model_len} \\
    --gpu-memory-utilization {gpu_memory_utilization} --load-format instanttensor \\
    --speculative-config '{{"method":"dflash","model":"z-lab/Qwen3.8-27B-DFlash2","num_speculative_tokens":8}}' \\
    --tensor-parallel-size {tensor_parallel} --distributed-executor-backend ray
"""


def test_a_recipe_with_a_drafter_fetches_it_too() -> None:
    launch = read(DRAFTED)
    service = launch["service"]
    assert service["model"] == {
        "repo": "nvidia/Qwen3.8-27B-NVFP4",
        "extra": [{"repo": "z-lab/Qwen3.8-27B-DFlash2"}],
    }
    assert launch["nodes"] == 2 and launch["spark_cluster"]["services"] == [service]
    assert "distributed-executor-backend" not in service["args"] and service["args"]["tensor-parallel-size"] == 2
    assert "is built on the machine itself" in omissions(launch)["container vllm-node"]


def test_a_drafter_that_lies_in_the_old_container_is_named() -> None:
    launch = read(DRAFTED.replace("z-lab/Qwen3.8-27B-DFlash2", "/workspace/drafter"))
    assert "extra" not in launch["service"]["model"]
    assert "name its repository" in omissions(launch)["drafter /workspace/drafter"]


def test_what_the_plan_gives_a_launch_is_not_asked_for() -> None:
    """An engine that reads by io_uring gets a profile, unless the launch names another."""
    launch = read(
        "docker run --gpus all --ipc host eugr/spark-vllm-b12x:nightly-20260925 vllm serve a/b --load-format b12x"
    )
    assert "SPKH08" not in {finding["rule"] for finding in launch["findings"]}
    assert "docker_args" not in launch["service"]


def test_a_recipe_that_starts_a_program_of_its_own_is_refused() -> None:
    text = "name: x\nmodel: a/b\ncontainer: y\nrecipe_version: '1'\ncommand: |\n  exec /opt/recipe/entrypoint.sh\n"
    with pytest.raises(importer.Unreadable, match=r"it runs exec /opt/recipe/entrypoint\.sh"):
        read(text)


def test_a_recipe_with_nothing_to_launch_is_refused() -> None:
    with pytest.raises(importer.Unreadable, match="neither a command nor a model"):
        read("recipe_version: '2'\nmodel: a/b\n")


def variants(**bodies: Any) -> str:
    return yaml.safe_dump(
        {"model": {"model_id": "org/Big", "min_vllm_version": "0.28.0"}, "variants": bodies}, sort_keys=False
    )


def test_variants_are_listed_with_their_memory_and_one_that_fits_is_taken() -> None:
    text = variants(
        default={"precision": "bf16", "vram_minimum_gb": 700},
        fp8={"precision": "fp8", "model_id": "org/Big-FP8", "vram_minimum_gb": 350},
        nvfp4={"precision": "nvfp4", "model_id": "org/Big-NVFP4", "vram_minimum_gb": 100},
        int2={"precision": "int2", "model_id": "org/Big-INT2", "vram_minimum_gb": 60},
        ascend={"model_id": "org/Big-w4", "vram_minimum_gb": 90, "supported_hardware": ["ascend_950pr"]},
    )
    launch = read(text)
    assert launch["service"]["model"] == {"repo": "org/Big-NVFP4"} and launch["nodes"] == 1
    items = omissions(launch)
    assert items["variant nvfp4"] == "taken: nvfp4, needs 100 GB: fits one Spark"
    assert "needs 700 GB: needs 8 Sparks" in items["variant default"] and "needs 4 Sparks" in items["variant fp8"]
    assert "does not name dgx_spark_gb10" in items["variant ascend"]
    four = read(text, variant="fp8")
    assert four["nodes"] == 4 and four["service"]["args"] == {"tensor-parallel-size": 4}
    assert four["spark_cluster"]["services"][0]["model"] == {"repo": "org/Big-FP8"}


def test_a_variant_for_this_machine_goes_before_the_default() -> None:
    text = variants(
        default={"vram_minimum_gb": 67},
        nvfp4={"model_id": "org/Big-NVFP4", "vram_minimum_gb": 32, "supported_hardware": ["b200", "dgx_spark_gb10"]},
    )
    assert read(text)["service"]["model"] == {"repo": "org/Big-NVFP4"}
    assert read(text, variant="default")["service"]["model"] == {"repo": "org/Big"}


@pytest.mark.parametrize(
    "options",
    [
        "--data-parallel-size 2",  # two GPUs of one machine
        "--data-parallel-size 16 --enable-expert-parallel",
        "--data-parallel-size 2 --data-parallel-size-local 1 --data-parallel-backend ray",
    ],
)
def test_replicas_are_services_of_their_own(options: str) -> None:
    launch = read(f"vllm serve a/b {options} --seed 1")
    assert launch["nodes"] == 1 and omissions(launch)["--data-parallel-size"].startswith(
        "replicas are separate services"
    )
    assert not any(key.startswith("data-parallel") for key in launch["service"]["args"])


@pytest.mark.parametrize(
    ("options", "nodes", "args"),
    [
        ("-dp 2 -dpl 1 --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 13345", 2, {}),
        ("-dp 4 --enable-expert-parallel", 4, {"enable-expert-parallel": True}),
        ("-dp 2 -tp 2 --nnodes 4 --node-rank 0 --master-addr 10.0.0.1", 4, {"tensor-parallel-size": 2}),
        ("-dp 2 --data-parallel-rank 0 --data-parallel-address 10.0.0.1", 2, {}),
    ],
)
def test_replicas_of_several_hosts_become_a_cluster(options: str, nodes: int, args: dict[str, Any]) -> None:
    launch = read(f"docker run --gpus all --network host --ipc host vllm/vllm-openai:v0.24.0 a/b {options}")
    copies = int(options.split()[1])
    assert launch["nodes"] == nodes and launch["service"]["args"] == {**args, "data-parallel-size": copies}
    assert "--data-parallel-size" not in omissions(launch) and "--data-parallel-address" not in omissions(launch)
    assert launch["compatible"], launch["findings"]
    cluster = clustering.Cluster("c", [f"s{number}" for number in range(nodes)], "auto", [])
    launch_args = launch["service"]["args"]
    assert clustering.check_service(cluster, launch_args, {}, 1, None, "x") == []
    assert clustering.check_replicas(cluster, launch_args, "mp", "", "x") == []


def test_a_recipe_of_sparkrun_with_replicas_becomes_a_cluster() -> None:
    launch = read(
        "recipe_version: '2'\nmodel: a/b\ncontainer: org/image:1\nruntime: vllm-distributed\nmin_nodes: 2\n"
        "defaults: {data_parallel: 2, tensor_parallel: 1}\n"
    )
    assert launch["nodes"] == 2 and launch["service"]["args"]["data-parallel-size"] == 2
    assert launch["spark_cluster"]["services"] == [launch["service"]]


@pytest.mark.parametrize("text", [PAIR, RANKS, GENERATED, FOLDED, EUGR])
def test_a_cluster_takes_what_is_imported(text: str) -> None:
    launch = read(text, config={"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"})
    (service,) = launch["spark_cluster"]["services"]
    hosts = [f"spark-{number}" for number in range(launch["nodes"])]
    cluster = clustering.Cluster(launch["spark_cluster"]["name"], hosts, "auto", [service])
    assert clustering.check_service(cluster, service["args"], service.get("env", {}), 1, None, "x") == []
    assert recipes.resolve_service(service, "service", {}, {})[1] == [] == launch["missing"]


# --- launches whose container stands somewhere else ---------------------------------------------------------------


def test_an_image_whose_entrypoint_is_vllm_is_given_serve() -> None:
    text = """
services:
  engine:
    image: local/spark-vllm:1
    network_mode: host
    command: >
      serve Qwen/Qwen3-8B
      --max-model-len 4096
"""
    launch = read(text)
    assert launch["service"]["model"] == {"repo": "Qwen/Qwen3-8B"} and launch["service"]["args"] == {
        "max-model-len": 4096
    }
    assert launch["service"]["image"] == {"ref": "local/spark-vllm:1", "entrypoint": "passthrough"}
    assert launch["service"]["docker_args"] == ["--entrypoint", ""]
    assert "runs vllm itself" in omissions(launch)["serve"]


@pytest.mark.parametrize(
    ("launch", "where"),
    [
        ("docker compose -f a.yml run --rm --service-ports -e A=b engine serve a/b --seed 1", "service engine"),
        ("docker-compose exec -T -e A=b engine vllm serve a/b --seed 1", "service engine"),
        (
            "export HOST_ONLY=1\ndocker exec -it -e A=b node /bin/bash -c 'exec vllm serve a/b --seed 1'",
            "container node",
        ),
        ('docker exec -e A=b "$(docker ps -q | head -1)" vllm serve a/b --seed 1', "container $(docker ps"),
    ],
)
def test_an_engine_in_a_container_that_is_started_elsewhere(launch: str, where: str) -> None:
    imported = read(launch)
    assert imported["service"]["args"] == {"seed": 1} and imported["service"]["env"] == {"A": "b"}
    assert any("'image' is missing" in message for message in imported["missing"])
    why = next(reason for item, reason in omissions(imported).items() if where in item)
    assert "name the image" in why
    assert imported["before"] == []  # there is no docker run whose options could be judged


def test_a_key_that_is_handed_to_a_container_by_exec_is_kept() -> None:
    launch = read('docker exec -e VLLM_API_KEY="$VLLM_API_KEY" -e SEEN box vllm serve a/b')
    assert launch["service"]["api_key_file"] and "open port" not in omissions(launch)
    assert "SEEN" in omissions(launch)


def test_what_a_machine_has_for_itself_is_not_taken_to_the_image() -> None:
    text = "export LIBRARY_PATH=/usr/lib:$LIBRARY_PATH PATH=/opt/bin:$PATH KEPT=1\nsource /opt/venv/bin/activate\nvllm serve a/b"
    launch = read(text)
    assert launch["service"]["env"] == {"KEPT": "1"}
    assert "image has its own" in omissions(launch)["LIBRARY_PATH"]
    assert "image's own Python" in omissions(launch)["source /opt/venv/bin/activate"]


def test_a_makefile_is_read_by_its_commands() -> None:
    launch = read("stop:\n\tray stop\n\nserve:\n\tuv run vllm serve a/b \\\n\t\t--seed 1\n")
    assert launch["service"]["args"] == {"seed": 1} and not {"stop:", "serve:"} & set(omissions(launch))


PROFILES = """
services:
  daily: {image: vllm/vllm-openai:v0.28.0, volumes: ["${WEIGHTS}:/models", "/proc/sys/vm:/vm"], command: --model MODEL}
  other: {image: vllm/vllm-openai:v0.28.0, profiles: [rare], command: --model c/d}
"""


def test_a_service_of_compose_that_needs_no_profile_goes_first() -> None:
    launch = read(PROFILES.replace("MODEL", "a/b"))
    assert (
        launch["service"]["name"] == "daily"
        and "change nothing on their host" in omissions(launch)["--volume /proc/sys/vm:/vm"]
    )
    assert read(PROFILES.replace("MODEL", "a/b"), select="other")["service"]["model"] == {"repo": "c/d"}
    with pytest.raises(importer.Unreadable, match=r"the model's folder waits for WEIGHTS"):
        read(PROFILES.replace("MODEL", "/models/big"))
    named = read(PROFILES.replace("MODEL", "/models/big"), variables={"WEIGHTS": "/data"})
    assert named["service"]["model"] == {"path": "/data/big"}


# --- Kubernetes ---------------------------------------------------------------------------------------------------

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  replicas: 2
  template:
    spec:
      nodeSelector: {gpu: gb10}
      initContainers: [{name: fetch, image: busybox}]
      volumes:
        - {name: shm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}
        - {name: hub, hostPath: {path: /data/hf}}
        - {name: work, persistentVolumeClaim: {claimName: work}}
      containers:
        - name: sidecar
          image: nginx:1.27
        - name: engine
          image: vllm/vllm-openai:v0.28.0
          command: [python3, -m, vllm.entrypoints.openai.api_server]
          args: [--model, "${MODEL}", --max-model-len, $(LENGTH), --port, "8000", --override-generation-config, '{"top_p": 1, "x": "$$cost"}']
          env:
            - {name: LENGTH, value: "8192"}
            - {name: VLLM_LOGGING_LEVEL, value: INFO}
            - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
            - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
            - {name: LICENCE, valueFrom: {secretKeyRef: {name: hub, key: licence}}}
          resources: {limits: {nvidia.com/gpu: "1"}}
          readinessProbe: {httpGet: {path: /health, port: 8000}}
          volumeMounts:
            - {name: shm, mountPath: /dev/shm}
            - {name: hub, mountPath: /root/.cache/huggingface}
            - {name: work, mountPath: /work}
---
apiVersion: v1
kind: Service
metadata: {name: chat}
spec: {ports: [{port: 80, targetPort: 8000}]}
"""


def test_a_manifest_of_kubernetes() -> None:
    launch = read(DEPLOYMENT, variables={"MODEL": "Qwen/Qwen3-8B"})
    assert (launch["form"], launch["nodes"]) == ("kubernetes", 1)
    service = {key: value for key, value in launch["service"].items() if "config" not in key and "gib" not in key}
    assert service == {
        "name": "chat",
        "model": {"repo": "Qwen/Qwen3-8B"},
        "image": IMAGE,
        "port": 8000,
        "served_model_name": "Qwen/Qwen3-8B",
        "args": {"max-model-len": 8192, "override-generation-config": {"top_p": 1, "x": "$cost"}},
        "env": {"LENGTH": "8192", "VLLM_LOGGING_LEVEL": "INFO"},
        "shm_size": "16g",
    }
    assert launch["host_vars"] == {"spark_hf_home": "/data/hf", "spark_hf_token_file": ".secrets/hf_token"}
    items = omissions(launch)
    for item in ("Service chat", "container sidecar", "initContainers", "nodeSelector", "replicas: 2", "resources"):
        assert items[item]
    assert "persistentVolumeClaim" in items["volume work at /work"] and "fieldRef" in items["NODE"]
    assert "'secrets'" in items["LICENCE"]


def test_a_manifest_that_waits_for_its_model_is_refused() -> None:
    with pytest.raises(importer.Unreadable, match="the model waits for MODEL"):
        read(DEPLOYMENT)


WORKERS = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: pair}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
          - name: leader
            image: registry.example/vllm:1
            command: [sh, -c, "bash /ray_init.sh leader --size=$RAY_CLUSTER_SIZE; vllm serve a/b --port 8080 --tensor-parallel-size 2"]
    workerTemplate:
      spec:
        containers:
          - {name: worker, image: "registry.example/vllm:1", command: [sh, -c, "bash /ray_init.sh worker && vllm serve a/b"]}
"""


def test_a_leader_with_its_workers_becomes_a_cluster() -> None:
    launch = read(WORKERS)
    assert launch["nodes"] == 2 and launch["spark_cluster"]["name"] == "pair"
    assert launch["service"]["port"] == 8080 and launch["service"]["args"] == {"tensor-parallel-size": 2}
    assert "spark_cluster" in omissions(launch)["container worker"]


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("kind: Deployment\nmetadata: {name: {{ .Values.name }}}\n", "a template of Helm: render it first"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n", "no vllm in here: found none of the containers"),
        (DEPLOYMENT.replace("name: sidecar\n          image: nginx:1.27", "name: two\n          image: vllm/vllm-openai:v0.28.0"), "2 containers"),
        (WORKERS.replace("command: [sh", "args: 3\n            command: [sh", 1), "'args' of the container leader must be a list"),
        ("apiVersion: v1\nkind: List\nitems: [1]\n", "is no manifest"),
    ],
)  # fmt: skip
def test_manifests_that_cannot_be_read(text: str, needle: str) -> None:
    with pytest.raises(importer.Unreadable, match=needle):
        read(text, variables={"MODEL": "a/b"})


# --- shell --------------------------------------------------------------------------------------------------------

PROGRAM = 'show() { for each in "$@"; do printf "[%s]" "$each"; done; echo; }\n'


@pytest.mark.parametrize(
    "text",
    [
        'A=(a "b c" d); show "${A[@]}" ${#A[@]} "${A[1]}" x"${A[@]}"y',
        'A=(); show "${A[@]}" end ${A[@]+"${A[@]}"} "${A[*]}"',
        'A=(1); A+=(2 3); A+=("4 5"); show "${A[@]}"',
        'X="a b"; show $X "$X" pre$X "${X}post" ${X:+--flag "$X"}',
        'E=""; show $E "$E" ${E:-d} ${E-d} ${U:-} ${U:+x} "${U:-a b}"',
        'X=1; if [ "$X" = 1 ]; then show yes; else show no; fi',
        'X=2; if [ "$X" = 1 ]; then show one; elif [[ $X == 2 && -n "$X" ]]; then show two; else show no; fi',
        'X=ab; case "$X" in a) show a ;; a*|c) show star ;; *) show any ;; esac',
        'f() { local a="$1"; shift; show "$a" "$@"; }; f 1 "2 3" 4',
        'for x in a "b c"; do show "$x"; done; for n in 1 2; do A+=("-e" "$n"); done; show "${A[@]}"',
        'show $((2 * (3 + 4))) "$((10 / 3))" $((7 % 4))',
        "P=/a/b/c.tar.gz; show ${P##*/} ${P%.*} ${P%%.*} ${P#/a} ${P/b/x} ${P//a/z}",
        '[ -n "" ] && show a || show b; [[ -z "" ]] && show c; false || show d; true && show e',
        'D=${A:-${B:-"x y"}}; show "$D"; show ${A:-${B:-z}}',
        "X=$'a\\tb'; show a\\ b 'c d' \"e 'f'\"; { show g; }; ( show h )",
        'if ! [ 3 -gt 2 ]; then show no; fi; [ 3 -ge 3 ] && show "ge"; set -- a "b c"; show "$#" "$@"',
        "while false; do show never; done; until true; do show never; done; show end",
    ],
)
def test_scripts_do_what_bash_does(text: str) -> None:
    ran = subprocess.run(["bash", "-c", PROGRAM + text], capture_output=True, text=True, check=False)
    expected = ran.stdout.splitlines()
    commands = shell_script.read_script(text, {}, [])
    shown = ["".join(f"[{word}]" for word in command.words[1:]) for command in commands if command.words[0] == "show"]
    assert shown == expected


def test_what_only_the_machine_knows_leaves_both_branches() -> None:
    text = "if lspci | grep -q x; then A=1; show a $A; else A=2; show b $A; fi\nwhile read -r l; do show l $l; done < f"
    shown = [command.words for command in shell_script.read_script(text, {}, []) if command.words[0] == "show"]
    assert shown == [["show", "a", "1"], ["show", "b", "1"], ["show", "l", "${l}"]]


def test_here_documents_belong_to_their_command() -> None:
    text = "N=v\ncat > f <<EOF\nname $N \\$HOME\n$(date)\nEOF\nbash <<'EOF'\nraw $N \"\nEOF\nshow end"
    first, second, last = shell_script.read_script(text, {}, [])
    assert first.stdin == "name v $HOME\n$(date)" and second.stdin == 'raw $N "' and last.words == ["show", "end"]


def test_the_line_of_a_fault_is_that_of_the_text() -> None:
    with pytest.raises(ValueError, match="line 5"):
        shell_script.read_script("a \\\n b\n\nc\nfi", {})


def test_values_that_are_not_known_stay_one_word() -> None:
    assert shell.read_words("$A ${B:-c d} x") == ["${A}", "c", "d", "x"]
