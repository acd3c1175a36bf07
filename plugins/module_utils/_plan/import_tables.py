# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of an import: which options of docker run and which variables are carried over, and the reasons for the others."""

from __future__ import annotations

import re

from .._cluster import clustering
from . import import_engine
from .import_draft import word_set

HF_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HF_API_TOKEN")
_SYSTEMD = import_engine.SYSTEMD
GPU = "spark_gpu_args gives every engine the GPU"
_LATER = "not needed by an engine on one Spark"
# Options of docker run that have no place in a service, and why.
DROPPED = {
    **dict.fromkeys(
        word_set(
            "--rm --interactive --tty --quiet --log-driver --log-opt --label --stop-timeout --stop-signal --cidfile"
        ),
        "the unit of this collection sets it itself",
    ),
    **dict.fromkeys(
        ["--cap-add", "--security-opt", "--device"], f"{_LATER}; put it into docker_args if yours does need it"
    ),
    **dict.fromkeys(["--gpus", "--runtime"], GPU),
    **dict.fromkeys(["--publish-all", "--expose", "--link"], "engines use the host's network here"),
    "--detach": _SYSTEMD,
    "--restart": f"{_SYSTEMD}: Restart= with a bounded number of starts",
    "--pull": "the role images brings images once",
    "--platform": "the image's own architecture is compared with the host's",
    "--ipc": "engines have a private /dev/shm here, --ipc host leaves segments behind on the host; see shm_size",
    "--privileged": f"{_LATER}; put --privileged into docker_args if yours does need it",
    "--cap-drop": "engines get no capabilities, except for RDMA",
    "--user": "engines run as the image's user here, and weights belong to the role models",
}
# Options of docker run that other parts of the import read.
READ_OPTIONS = word_set("--env --volume --mount --publish --name --entrypoint --env-file")
# Options of docker run that mean the same in docker_args.
KEPT = word_set(
    "--add-host --cpus --cpuset-cpus --dns --group-add --hostname --init --memory --memory-swap --oom-score-adj --pids-limit "
    "--read-only --sysctl --tmpfs --workdir"
)
# Limits that the role or the plan sets for every engine; see spark_ulimits and plan.
OWN_ULIMITS = (
    "core=0",
    "core=0:0",
    "memlock=-1",
    "memlock=-1:-1",
    "stack=67108864",
    "stack=67108864:67108864",
    "nofile=65536",
    "nofile=65536:65536",
)
# Variables with the same value for every engine here.
OWN_ENV = word_set(
    "HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE TRANSFORMERS_CACHE HF_HUB_OFFLINE TRANSFORMERS_OFFLINE VLLM_NO_USAGE_STATS "
    "DO_NOT_TRACK VLLM_CACHE_ROOT TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR FLASHINFER_WORKSPACE_BASE HF_ASSETS_CACHE "
    "HF_MODULES_CACHE HF_XET_CACHE XDG_CACHE_HOME TORCH_EXTENSIONS_DIR CUDA_CACHE_PATH B12X_CUTE_COMPILE_CACHE_DIR "
    "NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES"
)
# Paths of programs and libraries on a machine; an image has others.
MACHINE_ENV = word_set(
    "PATH LD_LIBRARY_PATH LIBRARY_PATH CPATH PYTHONPATH PYTHONHOME VIRTUAL_ENV CONDA_PREFIX HOME USER UID GID HOST_UID HOST_GID "
    "DOCKER_HOST COMPOSE_FILE COMPOSE_PROFILES"
)
# Variables that differ between the hosts of a cluster.
CLUSTER_ENV = frozenset(clustering.INTERFACES) | word_set(
    "UCX_NET_DEVICES MN_IF_NAME VLLM_HOST_IP HOST_IP HEAD_IP WORKER_IP HEAD_NODE_IP NCCL_IB_GID_INDEX MASTER_ADDR MASTER_PORT "
    "NODE_RANK NODE_IP RANK WORLD_SIZE NNODES HEADLESS RAY_ADDRESS RAY_CLUSTER_SIZE RAY_HEAD_IP RAY_NODE_IP_ADDRESS "
    "RAY_OVERRIDE_NODE_IP_ADDRESS"
)
# Options of docker run that the plan sets for every container, as far as the rules read them.
OWN_DOCKER_ARGS = ("--network", "host", "--shm-size", "8g")
CLUSTER_OPTIONS = (("--device", "/dev/infiniband"), ("--cap-add", "IPC_LOCK"), ("--privileged", "None"))
CLUSTER_DOCKER_ARGS = ("--device", "/dev/infiniband", "--ulimit", "memlock=-1", "--cap-add", "IPC_LOCK")
CACHES = re.compile(
    r"/root/\.(?:cache/(?:vllm|flashinfer|triton|torch\S*|tilelang)|triton|tilelang|nv|flashinfer)(?:/.*)?"
)
# Options that name a file.
FILE_OPTIONS = ("chat-template", "tool-parser-plugin", "reasoning-parser-plugin")
FILE = re.compile(r"[\w./~-]+\.(?:jinja2?|py|txt)")
