# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Twenty launches in the forms in which owners of Sparks keep them in November 2026, a test each, written for these tests.

Their models: launchers of sumner-harris/gb10-llm-docker-recipes, units of RyderFreeman4Logos/gb10-services, compose files of
Sunderrrr/dgx-spark-llm-platform, luisefigueroa/pulsar-gb10-vllm-stack, Stravica/nvidia-spark and timothystewart6/vllm-gb10, a recipe
of ciprianveg/gb10-vllm, scripts of vvChu/dgx-spark-toolkit, tom-doerr/llm, alexziskind1/spark_tests and Sonsal/vllm_cluster, and six
more scripts whose repositories are not known.
"""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.action.import_recipe import document_of
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import importer

DIGEST = "sha256:61fc8a896b0a4fbbbdc063bc4b0dbc25ce98e02b5050c24aeb7830ac02039b14"


def read(text: str, **options: Any) -> dict[str, Any]:
    launch: dict[str, Any] = importer.import_launch(text, document_of(text), **options)
    return launch


def omissions(launch: dict[str, Any]) -> dict[str, str]:
    return {entry["item"]: entry["reason"] for entry in launch["left_out"]}


# --- launchers ----------------------------------------------------------------------------------------------------

LAUNCHER = rf"""#!/usr/bin/env bash
set -Eeuo pipefail
readonly IMAGE='vllm/vllm-openai@{DIGEST}'
readonly MODEL='openai/gpt-oss-120b'
readonly REVISION='b5c939de8f754692c1647ca79fbf85e8c1e70f8a'
NAME="${{NAME:-vllm-gpt-oss}}"
PORT="${{PORT:-8041}}"
SEQS="${{SEQS:-8}}"
for each in PORT SEQS; do
  value="${{!each}}"
  if ! [[ "$value" =~ ^[1-9][0-9]*$ ]] || (( value > 65535 )); then echo "$each: $value" >&2; exit 1; fi
done
if docker container inspect "$NAME" >/dev/null 2>&1; then echo "is there" >&2; exit 1; fi
docker_env_args=(--env 'HF_HOME=/root/.cache/huggingface')
if [[ -n "${{HF_TOKEN:-}}" ]]; then docker_env_args+=(--env HF_TOKEN); fi
docker run --detach --name "$NAME" --restart unless-stopped --gpus all --publish "${{PORT}}:8041" \
  --volume "${{HF_CACHE:-$HOME/hf_cache}}:/root/.cache/huggingface" "${{docker_env_args[@]}}" \
  "$IMAGE" "$MODEL" --revision "$REVISION" --port 8041 --max-num-seqs "$SEQS" --no-enable-prefix-caching
"""


def test_a_launcher_that_checks_what_it_is_given() -> None:
    launch = read(LAUNCHER)
    service = launch["service"]
    assert service["model"] == {"repo": "openai/gpt-oss-120b", "revision": "b5c939de8f754692c1647ca79fbf85e8c1e70f8a"}
    assert service["args"] == {"enable-prefix-caching": False, "max-num-seqs": 8}
    assert (service["name"], service["port"]) == ("vllm-gpt-oss", 8041)
    assert not any("inspect" in item for item in omissions(launch))


def test_an_image_by_a_digest_that_is_known_has_its_version() -> None:
    assert "SPK307" not in {finding["rule"] for finding in read(LAUNCHER)["findings"]}
    other = read(LAUNCHER.replace(DIGEST, DIGEST[:-1] + "5"))
    assert "SPK307" in {finding["rule"] for finding in other["findings"]}


def test_a_launcher_that_needs_a_token() -> None:
    launch = read(
        'if [[ -z "${HF_TOKEN:-}" ]]; then exit 1; fi\nexport HUGGING_FACE_HUB_TOKEN="${HUGGING_FACE_HUB_TOKEN:-$HF_TOKEN}"\n'
        "docker run -d --env HF_TOKEN --env HUGGING_FACE_HUB_TOKEN vllm/vllm-openai:v0.28.0 "
        "mistralai/Mistral-Small-4-119B-2603-NVFP4 --attention-backend TRITON_MLA --tool-call-parser mistral\n"
    )
    assert launch["host_vars"] == {"spark_hf_token_file": ".secrets/hf_token"} and "env" not in launch["service"]
    assert launch["service"]["args"]["attention-backend"] == "TRITON_MLA"


def test_a_launcher_with_a_volume_for_weights() -> None:
    launch = read(
        'readonly V="26.07-py3"\nexport HF_TOKEN\nHF_TOKEN="$(<"${HOME}/.huggingface/token")"\ndocker rm vllm-server -f || true\n'
        "docker run -d --name vllm-server -p 8000:8000 -e HF_TOKEN -e HF_HOME=/hf-cache -e HF_HUB_CACHE=/hf-cache/hub "
        '--mount type=volume,src=vllm-hf-cache,dst=/hf-cache "local/nvidia-vllm:${V}-x" vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 '
        '--kv-cache-memory-bytes 30G --speculative-config \'{"method":"mtp","num_speculative_tokens":3}\'\n'
    )
    service = launch["service"]
    assert service["image"] == {"ref": "local/nvidia-vllm:26.07-py3-x", "entrypoint": "passthrough"}
    assert service["args"]["kv-cache-memory-bytes"] == 30 * 2**30 and "docker_args" not in service
    assert "spark_hf_home" in omissions(launch)["--mount type=volume,src=vllm-hf-cache,dst=/hf-cache"]


def test_a_launcher_that_takes_words() -> None:
    launch = read(
        'MODEL="${1:-Qwen/Qwen2-VL-7B-Instruct}"\nPORT="${2:-8000}"\nIP=$(hostname -I | awk \'{print $1}\')\n'
        'if ! docker images | grep -q "nvidia/vllm"; then echo "pull it"; exit 1; fi\n'
        "docker run -d -p $PORT:$PORT nvcr.io/nvidia/vllm:25.09-py3 vllm serve $MODEL --port $PORT --dtype auto\n"
    )
    assert launch["service"]["model"] == {"repo": "Qwen/Qwen2-VL-7B-Instruct"} and launch["service"]["port"] == 8000


def test_a_manager_of_one_container() -> None:
    launch = read(
        "#!/bin/bash\nNAME=vllm-server\nMODEL=Qwen/Qwen3-VL-30B-A3B-Instruct-FP8\n"
        "is_running() {\n  docker ps --format '{{.Names}}' | grep -q \"^${NAME}$\"\n}\n"
        "start_server() {\n  if is_running; then return 0; fi\n"
        '  docker run -d --name ${NAME} -p 8000:8000 vllm-custom:1 vllm serve "${MODEL}" --max-model-len 32768\n}\n'
        "stop_server() { docker stop ${NAME}; }\n"
        "show_usage() {\ncat << EOF\n  $0 start --model nvidia/Llama-3.1-8B-Instruct-FP8\nEOF\n}\n"
        'COMMAND="${1:-help}"\nshift 2>/dev/null || true\n'
        'case "$COMMAND" in\n  start) start_server ;;\n  stop) stop_server ;;\n  *) show_usage; exit 1 ;;\nesac\n'
    )
    assert launch["service"]["model"] == {"repo": "Qwen/Qwen3-VL-30B-A3B-Instruct-FP8"}
    assert launch["service"]["args"] == {"max-model-len": 32768}


def test_a_script_that_is_written_mounted_and_run() -> None:
    launch = read(
        'MODEL="${MODEL:-Qwen/Qwen3.5-35B-A3B-FP8}"\nENV="-e HF_HUB_OFFLINE=1"\nENV="$ENV -e OMP_NUM_THREADS=1"\n'
        'ARGS="--reasoning-parser qwen3"\nARGS="$ARGS --port 8000"\nssh spark-2 "docker rm -f vllm-fast || true"\n'
        "cat > /tmp/serve.sh <<SCRIPT\n#!/bin/bash\nexec vllm serve $MODEL $ARGS\nSCRIPT\n"
        "scp -q /tmp/serve.sh spark-2:/tmp/serve.sh\n"
        'ssh spark-2 "docker run -d --name vllm-fast --network host -v /tmp/serve.sh:/serve.sh:ro \\\n'
        '    --entrypoint bash $ENV vllm/vllm-openai:v0.28.0 /serve.sh"\n'
    )
    service = launch["service"]
    assert service["model"] == {"repo": "Qwen/Qwen3.5-35B-A3B-FP8"} and service["image"] == "vllm/vllm-openai:v0.28.0"
    assert service["args"] == {"reasoning-parser": "qwen3"} and service["env"] == {"OMP_NUM_THREADS": "1"}
    assert "docker_args" not in service and "are read" in omissions(launch)["script /serve.sh"]


def test_a_mounted_script_that_nobody_shows_is_refused() -> None:
    with pytest.raises(
        importer.Unreadable,
        match=r"the container runs bash /serve\.sh, not vllm serve; this text does not contain the command",
    ):
        read("docker run -v /tmp/serve.sh:/serve.sh:ro --entrypoint bash vllm/vllm-openai:v0.28.0 /serve.sh\n")


PAIR = r"""
SCRIPT_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
IMAGE="${IMAGE:-avarok/dgx-vllm-nvfp4-kernel:v22}"
HEAD_IP="${HEAD_IP:-10.10.10.1}"; MARLIN=1
for arg in "$@"; do
  case "$arg" in
    --stop) sudo docker rm -f vllm-head 2>/dev/null || true; exit 0 ;;
    --cutlass) MARLIN=0 ;;
    *) exit 1 ;;
  esac
done
sudo docker run -d --name vllm-head --network host -e VLLM_HOST_IP="${HEAD_IP}" -e RAY_memory_monitor_refresh_ms=0 \
  -v "${HF_CACHE:-$HOME/.cache/huggingface}:/root/.cache/huggingface" "${IMAGE}" ray-head
ssh "10.10.10.2" "sudo docker run -d --name vllm-worker --network host -e VLLM_HOST_IP=10.10.10.2 ${IMAGE} ray-worker"
STATUS=$(sudo docker exec vllm-head ray status 2>&1)
EXPORTS="export VLLM_USE_FLASHINFER_MOE_FP4=0"
if [ "$MARLIN" -eq 1 ]; then
  EXPORTS+="
export VLLM_NVFP4_GEMM_BACKEND=marlin"
fi
sudo docker exec -d vllm-head bash -c "
export RAY_ADDRESS=${HEAD_IP}:6379
${EXPORTS}
vllm serve lukealonso/MiniMax-M2.5-NVFP4 --port 8888 --tensor-parallel-size 2 --distributed-executor-backend ray \
  2>&1 | tee /tmp/vllm.log
"
"""


def test_an_engine_typed_in_a_container_that_its_image_started() -> None:
    launch = read(PAIR)
    service = launch["service"]
    assert launch["nodes"] == 2 and service["model"] == {"repo": "lukealonso/MiniMax-M2.5-NVFP4"}
    assert service["image"] == {"ref": "avarok/dgx-vllm-nvfp4-kernel:v22", "entrypoint": "passthrough"}
    assert service["docker_args"] == ["--entrypoint", ""]  # docker exec runs none
    assert service["env"] == {
        "RAY_memory_monitor_refresh_ms": "0",
        "VLLM_NVFP4_GEMM_BACKEND": "marlin",
        "VLLM_USE_FLASHINFER_MOE_FP4": "0",
    }


def test_a_snapshot_of_the_hubs_cache_is_its_repository() -> None:
    commit = "0e9e39f249a16976918f6564b8830bc894c89659"
    folder = f"/home/me/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/{commit}/"
    drafter = f"/cache/models--z-lab--Qwen3-8B-DFlash/snapshots/{commit}"
    launch = read(
        f'source /opt/vllm/.venv/bin/activate\nM="{folder}"\nuv run vllm serve $M --host localhost --port 8010 '
        f'--speculative-config \'{{"method":"dflash","model":"{drafter}","num_speculative_tokens":8}}\'\n'
    )
    service = launch["service"]
    assert service["model"] == {
        "repo": "meta-llama/Llama-3.1-8B-Instruct",
        "revision": commit,
        "extra": [{"repo": "z-lab/Qwen3-8B-DFlash"}],
    }
    assert service["args"]["speculative-config"]["model"] == "z-lab/Qwen3-8B-DFlash"
    assert "snapshot" in omissions(launch)[folder]


# --- units --------------------------------------------------------------------------------------------------------


def test_a_unit_with_a_rootless_docker() -> None:
    launch = read(
        "[Service]\nType=simple\nEnvironment=DOCKER_HOST=unix:///run/user/1001/docker.sock\nRestart=on-failure\n"
        "ExecStartPre=-/usr/bin/docker rm -f embedding\nExecStart=/usr/bin/docker run --rm --name embedding --gpus all \\\n"
        "  --dns 8.8.8.8 -p 100.105.4.92:18002:8000 -v /home/me/.cache/huggingface:/root/.cache/huggingface \\\n"
        "  ghcr.io/bjk110/vllm-spark:v019 vllm serve Qwen/Qwen3-Embedding-8B --convert embed --kv-cache-memory-bytes 6656M\n"
        "ExecStop=/usr/bin/docker stop embedding\n"
    )
    service = launch["service"]
    assert service["args"] == {"convert": "embed", "kv-cache-memory-bytes": 6656 * 2**20} and service["port"] == 18002
    assert "does not see" in omissions(launch)["rootless docker"] and service["docker_args"] == ["--dns", "8.8.8.8"]
    assert launch["host_vars"]["spark_hf_home"] == "/home/me/.cache/huggingface"


def test_a_unit_with_a_wrapper_of_its_own_is_refused() -> None:
    with pytest.raises(importer.Unreadable, match=r"runs python3 /opt/guard/wrapper\.py, not vllm serve"):
        read(
            "[Service]\nExecStart=/usr/bin/env -i HOME=/home/me /usr/bin/docker run --rm --name aeon \\\n"
            "  -v /home/me/wrapper.py:/opt/guard/wrapper.py:ro --entrypoint python3 ghcr.io/aeon-7/aeon-vllm-ultimate:1 \\\n"
            "  /opt/guard/wrapper.py serve /models/qwen38 --max-model-len 262144\n"
        )


# --- compose ------------------------------------------------------------------------------------------------------


def test_compose_with_a_default_for_everything() -> None:
    launch = read(
        "services:\n  vllm:\n    image: ${VLLM_IMAGE:-vllm/vllm-openai:v0.26.0}\n    container_name: vllm-server\n"
        '    ports: ["${PORT:-8000}:${PORT:-8000}"]\n    volumes: ["${MODELS_NFS:-/mnt/Models}:/mnt/Models:ro"]\n'
        "    environment: {HF_TOKEN: '${HF_TOKEN:-}'}\n    command: >\n      --model ${MODEL:-Qwen/Qwen3.6-27B-FP8}\n"
        "      --port ${PORT:-8000}\n      --gpu-memory-utilization ${GPU_MEM_UTIL:-0.80}\n      ${ENGINE_ARGS:-}\n"
    )
    service = launch["service"]
    assert service["model"] == {"repo": "Qwen/Qwen3.6-27B-FP8"} and service["args"] == {"gpu-memory-utilization": 0.8}
    assert (
        service["docker_args"] == ["--volume", "/mnt/Models:/mnt/Models:ro"]
        and "empty" in omissions(launch)["HF_TOKEN"]
    )


def test_compose_with_a_profile_and_ollama() -> None:
    engine = "image: nvcr.io/nvidia/vllm:25.09-py3\n    command: [vllm, serve, {}, --download-dir, /root/.cache/huggingface]\n"
    launch = read(
        "name: gpu\nservices:\n  ollama:\n    image: ollama/ollama:0.9\n"
        f"  one:\n    {engine.format('Qwen/Qwen3-32B')}    volumes: ['/opt/hf:/root/.cache/huggingface']\n"
        f"  two:\n    {engine.format('Qwen/Qwen3-32B-FP8')}    profiles: [fp8]\n"
    )
    assert launch["service"]["model"] == {"repo": "Qwen/Qwen3-32B"} and launch["service"]["args"] == {}
    assert launch["host_vars"] == {"spark_hf_home": "/opt/hf"} and "service ollama" in omissions(launch)


def test_compose_without_an_engine_is_refused() -> None:
    with pytest.raises(importer.Unreadable, match="none of the services that run vLLM"):
        read(
            "services:\n  litellm:\n    image: ghcr.io/berriai/litellm:1\n    entrypoint: [sh, -c, 'sleep 5 && start']\n"
            "  portal:\n    build: ./portal\n    environment: {VLLM_API_URL: 'http://172.19.0.1:8000/v1'}\n"
        )


def test_a_folded_command_that_no_shell_would_take_says_why() -> None:
    text = (
        "services:\n  head:\n    image: ghcr.io/timothystewart6/vllm-gb10:1\n    entrypoint: [/bin/bash, -c]\n    command:\n"
        "      - >-\n        ray start\n          --head\n        && sleep 60\n        && vllm serve a/b\n          --port 8000\n"
    )
    with pytest.raises(
        importer.Unreadable, match=r"'&&' cannot stand there; .* a folded text \('>'\) keeps line breaks"
    ):
        read(text)
    flat = text.replace("          --", "        --")  # what its author meant
    assert read(flat)["service"]["model"] == {"repo": "a/b"}


# --- recipes ------------------------------------------------------------------------------------------------------


def test_a_recipe_whose_checkpoint_is_its_own_drafter() -> None:
    launch = read(
        'recipe_version: "1"\nname: GLM-5.3 TP8\ncontainer: ghcr.io/ciprianveg/gb10-glm-5.2:v19\nmodel: /root/models/GLM-5.3\n'
        "cluster_only: true\nenv: {XDG_CACHE_HOME: /cache, NCCL_NET: IB, TORCH_EXTENSIONS_DIR: /cache/torch}\ncommand: |\n"
        "  vllm serve /root/models/GLM-5.3 --port 5001 --tensor-parallel-size 8 --distributed-executor-backend ray \\\n"
        '    --speculative-config \'{{"model":"/root/models/GLM-5.3","method":"mtp","num_speculative_tokens":5}}\'\n'
    )
    service = launch["service"]
    assert launch["nodes"] == 8 and service["args"]["speculative-config"] == {
        "method": "mtp",
        "num_speculative_tokens": 5,
    }
    assert "vLLM takes by itself" in omissions(launch)["drafter /root/models/GLM-5.3"]
    assert service["env"] == {"NCCL_NET": "IB"}


# --- texts without a launch ---------------------------------------------------------------------------------------

MANIFEST = (
    "cat <<EOF >>vllm.yaml\napiVersion: apps/v1\nkind: Deployment\nspec:\n  template:\n    spec:\n      containers:\n"
    '      - name: vllm\n        image: vllm:arm64\n        args: ["vllm serve meta-llama/Llama-3.2-1B-Instruct"]\nEOF\n'
    "kubectl apply -f vllm.yaml\n"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'if [ "$1" == "prod" ]; then sed -i s/A=.*/A=0.15/ .env; fi\ndocker compose up -d vllm-4b\n',
            "starts services of a compose file; give that file",
        ),
        (
            MANIFEST,
            "writes a compose file or a Kubernetes manifest in a here-document; pass that text as a separate file",
        ),
        (
            'pip install "transformers>=5.0" --quiet 2>&1 | tail -5\npython3 << \'PATCH\'\nimport re\nPATCH\nexec vllm serve "$@"\n',
            r"as an argument \(\$@\)",
        ),
        (
            "bash run_cluster.sh $VLLM_IMAGE 192.168.100.10 --worker ~/.cache/huggingface -e MASTER_ADDR=192.168.100.10\n",
            "the container runs ray, not vllm serve",
        ),
        (
            "bash run_cluster.sh vllm/vllm-openai 172.19.0.177 --head /hf --privileged\nsudo docker exec -it node /bin/bash\n"
            "vllm serve Qwen/Qwen2.5-0.5B-Instruct --pipeline-parallel-size 2\nvllm serve Qwen/Qwen2.5-Coder-7B-Instruct\n",
            "2 different vllm serve commands in here",
        ),
    ],
    ids=["compose_up", "manifest", "arguments", "worker", "several"],
)
def test_a_script_without_one_launch_says_where_it_is(text: str, reason: str) -> None:
    with pytest.raises(importer.Unreadable, match=reason):
        read(text)
