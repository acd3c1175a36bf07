# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kinds of failures of containers, their GPU, Docker and the resources of the host, by their messages in logs. Data only.

C(log_signs.py) has the failures of engines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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
    """Return a sign whose pattern is text.

    :param id: a stable word
    :param pattern: of the last words of a program; a dot also matches line ends
    :param cause: format string for the named groups of the pattern
    :param fix: format string, likewise
    :param rule: rules or findings of the plan about the same failure
    :param more: further fields of C(Sign)
    :returns: the sign
    """
    return Sign(id, re.compile(pattern, re.DOTALL), cause, fix, rule, **more)


_CONTAINER: dict[str, Any] = {"stage": CONTAINER}
_RESTART_DOCKER = "sudo systemctl restart docker"

SIGNS_OF_HOST: tuple[Sign, ...] = (
    # --- the container and its GPU; one fix each
    sign(
        "exec_format",
        r"exec format error",
        "the program in the container cannot run: the image is for another architecture, or the NVIDIA container "
        "runtime (mode auto) adds "
        "unsuitable files",
        "use an arm64 image (docker image inspect IMAGE | grep Architecture); if the architecture is right, set mode "
        '= "legacy" in /etc/nvidia-container-runtime/config.toml or write a new CDI specification, then sudo '
        "systemctl restart docker",
        **_CONTAINER,
    ),
    sign(
        "cdi_devices",
        r"unresolvable CDI devices|failed to inject CDI devices|CDI device injection failed",
        "Docker finds no CDI specification with the GPU, or an old one",
        f"sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, then {_RESTART_DOCKER}; repeat it after each update of the driver",
        **_CONTAINER,
    ),
    sign(
        "nvidia_runtime",
        r"could not select device driver|unknown or invalid runtime name: nvidia|nvidia-container-runtime\S*: no such file|"
        r"exec: \"nvidia-smi\": executable file not found",
        "Docker does not give the GPU to containers: the NVIDIA container runtime is missing or not registered",
        f"install nvidia-container-toolkit, then sudo nvidia-ctk runtime configure --runtime=docker and {_RESTART_DOCKER}",
        "host.nvidia_runtime",
        **_CONTAINER,
    ),
    sign(
        "kubernetes_runtime",
        r"no runtime for \"nvidia\" is configured|RuntimeHandler \"nvidia\" not supported|RuntimeClass.*\"nvidia\" not found",
        "containerd, or the cluster, has no runtime named nvidia",
        "install nvidia-container-toolkit and restart k3s; elsewhere run sudo nvidia-ctk runtime configure --runtime=containerd and restart "
        "containerd; create the RuntimeClass nvidia",
        **_CONTAINER,
    ),
    sign(
        "kubernetes_gpu",
        r"Insufficient nvidia\.com/gpu",
        "no node has a free GPU: another pod uses it, or NVIDIA's device plugin does not run",
        "kubectl describe node: if nvidia.com/gpu is missing or 0 under Allocatable, install the device plugin with runtimeClassName nvidia; "
        "otherwise delete the other pod (updates need strategy Recreate)",
        **_CONTAINER,
    ),
    sign(
        "secure_boot",
        r"Key was rejected by service",
        "Secure Boot refuses the driver's kernel module: its signing key is not enrolled",
        "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der, reboot and enroll the key at the console; or switch Secure Boot off",
    ),
    sign(
        "driver_mismatch",
        r"(?i)driver/library version mismatch|NVRM: API mismatch",
        "the driver's libraries are newer than its loaded kernel module: the driver was updated while it was in use",
        "reboot the host",
        "doctor.driver_mismatch",
        **_CONTAINER,
    ),
    sign(
        "driver_not_loaded",
        r"nvml error: driver not loaded|NVIDIA-SMI has failed because it couldn't communicate|libnvidia-ml\.so\.1: cannot open",
        "the NVIDIA driver is not loaded on the host",
        "run sudo modprobe nvidia and read its error and journalctl -k -b -g nvidia; after an update of the kernel install the driver's "
        "modules for it, then reboot",
        **_CONTAINER,
    ),
    sign(
        "driver_too_old",
        r"compatibility mode is UNAVAILABLE|forward compatibility was attempted|unsupported display driver / cuda driver combination|"
        r"cudaErrorUnsupportedPtxVersion|unsupported toolchain|CUDA driver version is insufficient|cudaErrorInsufficientDriver|"
        r"cudaErrorCompatNotSupportedOnDevice|NVIDIA driver on your system is too old",
        "the CUDA of the image is newer than the driver of the host can run",
        "use an image of the driver's CUDA version, or bring the host to the next DGX OS release",
        "SPK308",
        **_CONTAINER,
    ),
    sign(
        "nvml_unknown",
        r"Failed to initialize NVML: Unknown Error",
        "the container lost access to the GPU's devices, for example after systemctl daemon-reload with Docker's systemd cgroup driver",
        "restart the container; to prevent it, pass the devices by CDI, or set native.cgroupdriver=cgroupfs in /etc/docker/daemon.json, which "
        "survives daemon-reload",
        **_CONTAINER,
    ),
    sign(
        "runtime_mode",
        r"invoking the NVIDIA Container Runtime Hook directly",
        "the NVIDIA container runtime is in mode cdi, which does not support --gpus",
        'use --runtime nvidia or --device nvidia.com/gpu=all instead of --gpus, or set mode = "auto" in '
        "/etc/nvidia-container-runtime/config.toml, then sudo systemctl restart docker",
        **_CONTAINER,
    ),
    sign(
        "nvidia_hook",
        r"nvidia-container-cli: |nvidia-container-runtime-hook|error running (?:\w+ )?hook",
        "the hook that puts the GPU into containers failed",
        "run sudo nvidia-container-cli -k -d /dev/tty info and read its error; update nvidia-container-toolkit to the version of DGX OS",
        **_CONTAINER,
    ),
    sign(
        "cuda_unknown",
        r"CUDA unknown error",
        "CUDA could not open the GPU: the device files of nvidia-uvm are missing or stale, for example after a suspend or an update",
        "on the host: sudo modprobe -r nvidia-uvm && sudo modprobe nvidia-uvm, then sudo nvidia-modprobe -u -c=0; reboot if it is in use",
        **_CONTAINER,
    ),
    sign(
        "no_gpu",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|Failed to infer device type|Found no NVIDIA driver on your system|"
        r"Failed to initialize NVML|NVML Shared Library Not Found|cudaErrorNoDevice",
        "the container has no GPU",
        "start it with --gpus all (or --runtime nvidia; in a pod runtimeClassName nvidia and the limit nvidia.com/gpu), and leave "
        "CUDA_VISIBLE_DEVICES unset; nvidia-smi in the container has to show the GPU",
        **_CONTAINER,
    ),
    # --- Docker
    sign(
        "docker_socket",
        r"permission denied while trying to connect to the [Dd]ocker|docker\.sock\S*: connect: permission denied",
        "this account may not talk to Docker",
        "sudo usermod -aG docker $USER, then log in again; or use sudo",
        **_CONTAINER,
    ),
    sign(
        "docker_down",
        r"Cannot connect to the Docker daemon|docker\.sock: connect: (?:no such file|connection refused)",
        "Docker does not run",
        "sudo systemctl start docker; systemctl status docker shows why it ended",
        **_CONTAINER,
    ),
    sign(
        "docker_name",
        r"container name \"/?(?P<name>[^\"]+)\" is already in use",
        "a container named {name} exists already, running or stopped",
        "docker rm -f {name}, or stop its unit if a service of this collection owns it",
        **_CONTAINER,
    ),
    sign(
        "docker_image_used",
        r"unable to remove repository reference|is using its referenced image|image is being used by (?:running|stopped) container",
        "a container still uses the image",
        "remove the container first (docker rm -f NAME), then docker rmi with the whole name and tag",
        **_CONTAINER,
    ),
    sign(
        "image_architecture",
        r"no matching manifest for linux/arm64|does not match the (?:detected host|specified) platform",
        "the image has no arm64 build for a Spark",
        "use an image that is built for linux/arm64",
        "image.architecture",
        **_CONTAINER,
    ),
    sign(
        "registry_limited",
        r"toomanyrequests|pull rate limit",
        "the registry limits how many images this address may pull",
        "docker login with an account of the registry, or pull later",
        **_CONTAINER,
    ),
    sign(
        "registry_login",
        r"unauthorized: |no basic auth credentials|denied: requested access|pull access denied",
        "the registry refuses the image to this account, or has no such image",
        "check the name of the image; for NVIDIA's registry docker login nvcr.io with user $oauthtoken and an NGC API key",
        "doctor.registry_login",
        **_CONTAINER,
    ),
    sign(
        "image_missing",
        r"manifest unknown|manifest for \S+ not found|No such image|repository \S+ not found|repository does not exist",
        "the registry has no image with that name and tag",
        "check name and tag of the image; nightly tags are removed after some time",
        **_CONTAINER,
    ),
    sign(
        "port_taken",
        r"port is already allocated|[Aa]ddress already in use|EADDRINUSE|\[Errno 98\]",
        "another program listens on that port already",
        "find it with sudo ss -ltnp, and stop it or use another port",
        "host.port_taken",
    ),
    sign(
        "mount_source",
        r"bind source path does not exist|invalid mount config|error mounting \"|Are you trying to mount a directory onto a file",
        "a folder or file that is mounted into the container does not exist on the host, or has the other type",
        "create it, or correct the path before the colon of -v (source of --mount)",
        "container.mount",
        **_CONTAINER,
    ),
    sign(
        "ray_missing",
        r"\bray: (?:command )?not found|exec: \"ray\"|No module named 'ray'|Ray is not installed|does not support ray|Failed to import Ray",
        "the image has no Ray",
        "use --distributed-executor-backend mp with --nnodes and --node-rank (executor: mp), or an image with Ray",
        "SPK802",
    ),
    sign(
        "command_split",
        r"(?:^|: )-{1,2}[\w-]+: (?:command )?not found",
        "the shell read an option as a command: the previous line has no backslash at its end, or a space after it",
        "end each line but the last with a backslash and nothing after it",
        **_CONTAINER,
    ),
    sign(
        "docker_reference",
        r"invalid reference format",
        "Docker reads another word as the image: a backslash with a space after it, an empty variable, or capital letters",
        "end lines with a backslash and nothing after it, check that variables have values, and write the image in small letters",
        **_CONTAINER,
    ),
    sign(
        "docker_usage",
        r"unknown (?:shorthand )?flag: (?P<option>[^\n]{1,80})|flag needs an argument|requires at least \d+ arguments?",
        "Docker cannot read its options {option}",
        "check the spelling; options of Docker belong before the image, the model and options of vLLM after it",
        **_CONTAINER,
    ),
    sign(
        "certificate",
        r"x509: |CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|certificate verify failed",
        "the certificate of the hub or registry is not trusted: a proxy replaces it, or the host's clock is wrong",
        "check date; put the proxy's certificate into /usr/local/share/ca-certificates, run sudo update-ca-certificates and restart Docker; in a "
        "container mount it and set SSL_CERT_FILE and REQUESTS_CA_BUNDLE",
    ),
    sign(
        "command_missing",
        r"executable file not found|exec: \"[^\"]+\": (?:stat|permission denied)|^\S*(?:ba)?sh: .*(?:command )?not found|\bvllm: not found",
        "the command is not in the image",
        "images of vllm/vllm-openai have vllm serve as entrypoint: pass only the model and options; for NGC images "
        "pass the whole vllm serve; to "
        "run something else set --entrypoint",
        "SPK103",
        **_CONTAINER,
    ),
    sign(
        "host_docker_internal",
        r"Could not resolve host: host\.docker\.internal|host\.docker\.internal.*(?:not known|resolution)",
        "host.docker.internal is a name of Docker Desktop; Docker on Linux does not define it",
        "start the client's container with --add-host=host.docker.internal:host-gateway",
    ),
    # --- resources of the host
    sign(
        "kernel_shared_memory",
        r"out of resource: shared memory|dynamic shared memory size|shared memory, Required: \d+",
        "a kernel for a larger GPU needs more shared memory than this GPU has (sm_121: 99 KiB a block); /dev/shm and GPU memory are not the problem",
        "set another backend for the part in the traceback (attention-backend, moe-backend, linear-backend), remove block-size, or use a newer vLLM",
    ),
    sign(
        "shared_memory",
        r"Insufficient space in /dev/shm|unable to allocate shared memory|No space left on device.*(?:/dev/shm|psm_)|[Bb]us error",
        "the container's /dev/shm is too small; Docker and Kubernetes give 64 MiB by default",
        "start it with --shm-size=16g (spark_shm_size; in Kubernetes an emptyDir of medium Memory) or --ipc=host, then without old "
        "/dev/shm/vllm_offload_* files; from vLLM 0.27.0 on kv-offloading-size must fit into it too",
        "SPKH06, SPKH09",
    ),
    sign(
        "disk_full",
        r"No space left on device|\[Errno 28\]|Disk quota exceeded|[Nn]ot enough (?:free )?disk space",
        "the disk is full",
        "find it with df -h, and free space (clean.yml lists unused images and models)",
        "host.disk",
    ),
    sign(
        "open_files",
        r"\[Errno 24\]|Too many open files",
        "the process has reached its limit of open files and connections",
        "start the container with --ulimit nofile=1048576:1048576 (LimitNOFILE of a unit, ulimit -n of a shell)",
    ),
    sign(
        "threads",
        r"can't start new thread|pthread_create failed|Resource temporarily unavailable",
        "the container or the account has reached its limit of processes and threads",
        "start the container without --pids-limit, and raise TasksMax of the unit or ulimit -u",
    ),
    sign(
        "io_uring",
        r"io_uring\w*.*(?:Operation not permitted|EPERM|failed)|Operation not permitted.*io_uring",
        "Docker's default seccomp profile denies io_uring, which this load format or table needs",
        "use a seccomp profile that allows io_uring_setup, io_uring_enter and io_uring_register (--security-opt seccomp=FILE)",
        "SPKH08",
    ),
    sign(
        "ray_memory",
        r"killed due to the node running low on memory",
        "Ray killed a worker: its memory monitor counts the GPU's share of unified memory as used",
        "set RAY_memory_monitor_refresh_ms=0 for ray start on every node",
        "SPK821",
    ),
    sign(
        "ray_worker_died",
        r"A worker died or was killed while executing|ActorDiedError|ActorUnavailableError|The actor died",
        "a worker of Ray ended without an error message",
        "read the worker's log (/tmp/ray/session_latest/logs/worker-*.err) and journalctl -k -b on its host",
    ),
    sign(
        "container_limit",
        r"OOMKilled|Memory cgroup out of memory",
        "the container reached its own memory limit and was killed",
        "raise or remove the limit (resources.limits.memory, --memory); page cache of the weights, host buffers and /dev/shm count",
        **_CONTAINER,
    ),
    sign(
        "killed",
        r"status=9/KILL|code=killed|oom-kill|killed by the OOM killer|Out of memory: Killed process|exited with code 137|^Killed$",
        "the engine was killed from outside, mostly because the host ran out of memory",
        "see journalctl -k -b -g 'Killed process' and journalctl -u spark-agent -p warning; plan with a larger spark_reserve_gib or a smaller "
        "gpu-memory-utilization",
        "doctor.oom_killed",
    ),
)
