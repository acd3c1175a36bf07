# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kinds of failures of containers, their GPU, Docker and the resources of the host, by their messages in logs. Data only.

C(log_signs.py) has the failures of engines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

CONTAINER = "container"
"""The stage before the engine prints anything: Docker, the container runtime, the entrypoint."""


@dataclass(frozen=True)
class Sign:
    """A kind of failure.

    id: a stable word. pattern: searched in the last words of a program. cause, fix: format strings for the named groups of the pattern.
    rule: rules or findings of the plan about the same failure. stage: C(CONTAINER) for failures before the engine starts.
    generic: used only where no other sign and no row matches any of the last words. waits: a line that means something as the end of a log.
    """

    id: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    rule: str = ""
    stage: str = ""
    generic: bool = False
    waits: bool = False


def sign(id: str, pattern: str, cause: str, fix: str, rule: str = "", **more: Any) -> Sign:
    """Return a sign whose pattern is text; a dot in it also matches line ends."""
    return Sign(id, re.compile(pattern, re.DOTALL), cause, fix, rule, **more)


of_container = partial(sign, stage=CONTAINER)
SIGNS_OF_HOST: tuple[Sign, ...] = (
    # --- the container and its GPU; one fix each
    of_container(
        "exec_format",
        r"exec format error",
        "the image is for another architecture, or the NVIDIA container runtime (mode auto) adds unsuitable files",
        'use an arm64 image; if its architecture is right (docker image inspect), set mode = "legacy" in '
        "/etc/nvidia-container-runtime/config.toml, then sudo systemctl restart docker",
    ),
    of_container(
        "cdi_devices",
        r"unresolvable CDI devices|failed to inject CDI devices|CDI device injection failed",
        "Docker finds no CDI specification with the GPU, or an old one",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, then sudo systemctl restart docker; "
        "again after each driver update",
    ),
    of_container(
        "nvidia_runtime",
        r"could not select device driver|unknown or invalid runtime name: nvidia|nvidia-container-runtime\S*: no such file|"
        r"exec: \"nvidia-smi\": executable file not found",
        "Docker's NVIDIA container runtime is missing or not registered",
        "install nvidia-container-toolkit, then sudo nvidia-ctk runtime configure --runtime=docker and sudo "
        "systemctl restart docker",
        "host.nvidia_runtime",
    ),
    of_container(
        "kubernetes_runtime",
        r"no runtime for \"nvidia\" is configured|RuntimeHandler \"nvidia\" not supported|RuntimeClass.*\"nvidia\" not found",
        "the cluster has no runtime named nvidia",
        "install nvidia-container-toolkit and restart k3s; elsewhere sudo nvidia-ctk runtime configure "
        "--runtime=containerd, restart containerd; create the RuntimeClass nvidia",
    ),
    of_container(
        "kubernetes_gpu",
        r"Insufficient nvidia\.com/gpu",
        "no node has a free GPU: another pod uses it, or NVIDIA's device plugin does not run",
        "if kubectl describe node shows no nvidia.com/gpu under Allocatable, install the device plugin with "
        "runtimeClassName nvidia; else delete the other pod (updates need strategy Recreate)",
    ),
    sign(
        "secure_boot",
        r"Key was rejected by service",
        "Secure Boot refuses the driver's kernel module",
        "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der, reboot, enroll the key at the console; or "
        "switch Secure Boot off",
    ),
    of_container(
        "driver_mismatch",
        r"(?i)driver/library version mismatch|NVRM: API mismatch",
        "the driver was updated while in use: its libraries are newer than its loaded kernel module",
        "reboot the host",
        "doctor.driver_mismatch",
    ),
    of_container(
        "driver_not_loaded",
        r"nvml error: driver not loaded|NVIDIA-SMI has failed because it couldn't communicate|libnvidia-ml\.so\.1: cannot open",
        "the NVIDIA driver is not loaded on the host",
        "run sudo modprobe nvidia; read its error and journalctl -k -b -g nvidia; after a kernel update "
        "install the driver's modules for it, then reboot",
    ),
    of_container(
        "driver_too_old",
        r"compatibility mode is UNAVAILABLE|forward compatibility was attempted|unsupported display driver / cuda driver combination|"
        r"cudaErrorUnsupportedPtxVersion|unsupported toolchain|CUDA driver version is insufficient|cudaErrorInsufficientDriver|"
        r"cudaErrorCompatNotSupportedOnDevice|NVIDIA driver on your system is too old",
        "the driver is too old for the CUDA of the image",
        "use an image of the driver's CUDA version, or install the next DGX OS release",
        "SPK308",
    ),
    of_container(
        "nvml_unknown",
        r"Failed to initialize NVML: Unknown Error",
        "the container lost the GPU's devices, mostly by systemctl daemon-reload with Docker's systemd cgroup driver",
        "restart the container; against the next daemon-reload, pass devices by CDI, or set "
        "native.cgroupdriver=cgroupfs in /etc/docker/daemon.json",
    ),
    of_container(
        "runtime_mode",
        r"invoking the NVIDIA Container Runtime Hook directly",
        "the NVIDIA container runtime is in mode cdi, which does not support --gpus",
        'use --runtime nvidia or --device nvidia.com/gpu=all, or set mode = "auto" in '
        "/etc/nvidia-container-runtime/config.toml, then sudo systemctl restart docker",
    ),
    of_container(
        "nvidia_hook",
        r"nvidia-container-cli: |nvidia-container-runtime-hook|error running (?:\w+ )?hook",
        "the hook that puts the GPU into containers failed",
        "read the error of sudo nvidia-container-cli -k -d /dev/tty info; update nvidia-container-toolkit to "
        "the version of DGX OS",
    ),
    of_container(
        "cuda_unknown",
        r"CUDA unknown error",
        "the device files of nvidia-uvm are missing or stale, for example after a suspend or an update",
        "on the host: sudo modprobe -r nvidia-uvm && sudo modprobe nvidia-uvm, then sudo nvidia-modprobe -u "
        "-c=0; reboot if in use",
    ),
    of_container(
        "no_gpu",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|Failed to infer device type|Found no NVIDIA driver on your system|"
        r"Failed to initialize NVML|NVML Shared Library Not Found|cudaErrorNoDevice|"
        r"CUDA driver initialization failed, you might not have a CUDA gpu",
        "the container has no GPU",
        "start it with --gpus all or --runtime nvidia (in a pod runtimeClassName nvidia and the limit "
        "nvidia.com/gpu), without CUDA_VISIBLE_DEVICES",
    ),
    # --- Docker
    of_container(
        "docker_socket",
        r"permission denied while trying to connect to the [Dd]ocker|docker\.sock\S*: connect: permission denied",
        "this account may not talk to Docker",
        "sudo usermod -aG docker $USER, then log in again; or use sudo",
    ),
    of_container(
        "docker_down",
        r"Cannot connect to the Docker daemon|docker\.sock: connect: (?:no such file|connection refused)",
        "Docker does not run",
        "sudo systemctl start docker; systemctl status docker shows why it ended",
    ),
    of_container(
        "docker_name",
        r"container name \"/?(?P<name>[^\"]+)\" is already in use",
        "a container named {name} exists already",
        "docker rm -f {name}, or stop its unit",
    ),
    of_container(
        "docker_image_used",
        r"unable to remove repository reference|is using its referenced image|image is being used by (?:running|stopped) container",
        "a container still uses the image",
        "docker rm -f NAME, then docker rmi with the whole name and tag",
    ),
    of_container(
        "image_architecture",
        r"no matching manifest for linux/arm64|does not match the (?:detected host|specified) platform",
        "the image has no arm64 build for a Spark",
        "use an image that is built for linux/arm64",
        "image.architecture",
    ),
    of_container(
        "registry_limited",
        r"toomanyrequests|pull rate limit",
        "the registry limits the pulls of this address",
        "docker login with an account of the registry, or pull later",
    ),
    of_container(
        "registry_login",
        r"unauthorized: |no basic auth credentials|denied: requested access|pull access denied",
        "the registry refuses this account, or has no such image",
        "check the image's name; for nvcr.io docker login nvcr.io with user $oauthtoken and an NGC API key",
        "doctor.registry_login",
    ),
    of_container(
        "image_missing",
        r"manifest unknown|manifest for \S+ not found|No such image|repository \S+ not found|repository does not exist",
        "the registry has no such image and tag",
        "check name and tag; nightly tags are removed after some time",
    ),
    sign(
        "port_taken",
        r"port is already allocated|[Aa]ddress already in use|EADDRINUSE|\[Errno 98\]",
        "another program uses that port",
        "find it with sudo ss -ltnp, and stop it or use another port",
        "host.port_taken",
    ),
    of_container(
        "mount_source",
        r"bind source path does not exist|invalid mount config|error mounting \"|Are you trying to mount a directory onto a file",
        "a mounted folder or file does not exist on the host, or is of the other type",
        "create it, or correct the path before the colon of -v (source of --mount)",
        "container.mount",
    ),
    sign(
        "ray_missing",
        r"\bray: (?:command )?not found|exec: \"ray\"|No module named 'ray'|Ray is not installed|does not support ray|Failed to import Ray",
        "the image has no Ray",
        "use --distributed-executor-backend mp with --nnodes and --node-rank (executor: mp), or an image with Ray",
        "SPK802",
    ),
    of_container(
        "command_split",
        r"(?:^|: )-{1,2}[\w-]+: (?:command )?not found",
        "the shell read an option as a command: the previous line does not end with a backslash",
        "end each line but the last with a backslash and nothing after it",
    ),
    of_container(
        "docker_reference",
        r"invalid reference format",
        "Docker reads another word as the image: a space after a backslash, an empty variable, or capital letters",
        "remove that space, set the variables, write the image in small letters",
    ),
    of_container(
        "docker_usage",
        r"unknown (?:shorthand )?flag: (?P<option>[^\n]{1,80})|flag needs an argument|requires at least \d+ arguments?",
        "Docker cannot read its options {option}",
        "check the spelling; options of Docker belong before the image, options of vLLM after it",
    ),
    sign(
        "certificate",
        r"x509: |CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|certificate verify failed",
        "the certificate of the hub or registry is not trusted: a proxy replaces it, or the clock is wrong",
        "check date; put the proxy's certificate into /usr/local/share/ca-certificates, sudo "
        "update-ca-certificates, restart Docker; in a container mount it and set SSL_CERT_FILE and "
        "REQUESTS_CA_BUNDLE",
    ),
    of_container(
        "command_missing",
        r"executable file not found|exec: \"[^\"]+\": (?:stat|permission denied)|^\S*(?:ba)?sh: .*(?:command )?not found|\bvllm: not found",
        "the command is not in the image",
        "vllm/vllm-openai runs vllm serve: pass only the model and options; NGC images need the whole vllm "
        "serve; other programs need --entrypoint",
        "SPK103",
    ),
    sign(
        "host_docker_internal",
        r"Could not resolve host: host\.docker\.internal|host\.docker\.internal.*(?:not known|resolution)",
        "Docker on Linux does not define host.docker.internal",
        "start the client's container with --add-host=host.docker.internal:host-gateway",
    ),
    # --- resources of the host
    sign(
        "kernel_shared_memory",
        r"out of resource: shared memory|dynamic shared memory size|shared memory, Required: \d+",
        "a kernel for a larger GPU needs more shared memory than sm_121 has (99 KiB a block); /dev/shm is not "
        "the problem",
        "set another backend for the part in the traceback (attention-backend, moe-backend, linear-backend), "
        "remove block-size, or use a newer vLLM",
    ),
    sign(
        "shared_memory",
        r"Insufficient space in /dev/shm|unable to allocate shared memory|No space left on device.*(?:/dev/shm|psm_)|[Bb]us error",
        "the container's /dev/shm is too small; 64 MiB by default",
        "start with --shm-size=16g (spark_shm_size; in Kubernetes an emptyDir of medium Memory) or --ipc=host "
        "without old /dev/shm/vllm_offload_* files; from vLLM 0.27.0 on it includes kv-offloading-size",
        "SPKH06, SPKH09",
    ),
    sign(
        "disk_full",
        r"No space left on device|\[Errno 28\]|Disk quota exceeded|[Nn]ot enough (?:free )?disk space",
        "the disk is full",
        "see df -h, and free space (clean.yml lists unused images and models)",
        "host.disk",
    ),
    sign(
        "open_files",
        r"\[Errno 24\]|Too many open files",
        "the limit of open files and connections is reached",
        "--ulimit nofile=1048576:1048576 (LimitNOFILE of a unit, ulimit -n of a shell)",
    ),
    sign(
        "threads",
        r"can't start new thread|pthread_create failed|Resource temporarily unavailable",
        "the limit of processes and threads is reached",
        "remove --pids-limit, raise TasksMax of the unit or ulimit -u",
    ),
    sign(
        "io_uring",
        r"io_uring\w*.*(?:Operation not permitted|EPERM|failed)|Operation not permitted.*io_uring",
        "Docker's seccomp profile denies io_uring, which this load format or table needs",
        "use a profile that allows io_uring_setup, io_uring_enter and io_uring_register (--security-opt seccomp=FILE)",
        "SPKH08",
    ),
    sign(
        "ray_memory",
        r"killed due to the node running low on memory",
        "Ray killed a worker: it counts the GPU's share of unified memory as used",
        "set RAY_memory_monitor_refresh_ms=0 for ray start on every node",
        "SPK821",
    ),
    sign(
        "ray_worker_died",
        r"A worker died or was killed while executing|ActorDiedError|ActorUnavailableError|The actor died",
        "a worker of Ray ended without an error message",
        "read /tmp/ray/session_latest/logs/worker-*.err and journalctl -k -b on the worker's host",
    ),
    of_container(
        "container_limit",
        r"OOMKilled|Memory cgroup out of memory",
        "the container reached its memory limit",
        "raise or remove it (resources.limits.memory, --memory); page cache, host buffers and /dev/shm count",
    ),
    sign(
        "killed",
        r"status=9/KILL|code=killed|oom-kill|killed by the OOM killer|Out of memory: Killed process|exited with code 137|"
        r"code=exited, status=137|^Killed$",
        "the engine was killed from outside, mostly because the host ran out of memory",
        "see journalctl -k -b -g 'Killed process' and journalctl -u spark-agent -p warning; lower "
        "gpu-memory-utilization, or raise spark_os_reserve_gib",
        "doctor.oom_killed",
    ),
)
